"""Devices by name: every file is whole, and a wrong name gets a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import for_each

from fairmile.base.errors import Integrity, NotFound
from fairmile.costs.devices import device, device_names, read_device


@for_each("name", ["h200", "H200", "NVIDIA H200", "h200-sxm"])
def test_a_device_has_many_names(name: str) -> None:
    assert device(name).name == "NVIDIA H200"


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(NotFound) as caught:
        device("h20")
    assert caught.value.hint == "did you mean 'h200'?"


@for_each("name", device_names())
def test_every_device_is_whole(name: str) -> None:
    one = device(name)
    assert one.source and len(one.date) >= 7
    assert 5e12 < one.peak_flops_per_s["float32"] < 5e14
    assert 2e11 < one.bandwidth_bytes_per_s < 1e13
    assert 1e10 < one.memory_bytes < 4e11
    assert 0 < one.idle_w < one.max_w <= 1200
    assert one.multiprocessors > 0 and one.cache_bytes > 0 and 0 < one.least_op_s < 1e-5
    assert one.peak("float16") >= one.peak("float32")


def test_the_list_holds_what_centres_run() -> None:
    assert {"h200", "h100-sxm", "h100-pcie", "a100-40gb", "a100-80gb", "v100-16gb", "p100", "gh200"} <= set(
        device_names()
    )
    assert {"mi250x-gcd", "mi300x", "l40s", "a10", "b200", "tpu-v4", "tpu-v5e"} <= set(device_names())


def test_convolutions_of_32_bits_use_the_faster_units_and_products_only_when_allowed() -> None:
    one = device("h200")
    assert one.peak("float32", "conv") == one.peak("float32", "gemm", tf32=True) == one.peak_flops_per_s["tf32"]
    assert one.peak("float32", "gemm") == one.peak_flops_per_s["float32"]
    assert device("v100").peak("float32", "conv") == device("v100").peak_flops_per_s["float32"]


@for_each("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_products_of_one_byte_an_operand_use_the_fastest_units_there_are(dtype: str) -> None:
    h200, a100 = device("h200"), device("a100-80gb")
    assert h200.peak(dtype) == pytest.approx(2 * h200.peak("bfloat16"), rel=0.01)
    assert a100.peak(dtype) == a100.peak("float16")  # without units for fp8


def test_what_is_elementwise_never_counts_at_the_rate_of_matrices() -> None:
    assert device("h200").peak("bfloat16", "elementwise") == device("h200").peak_flops_per_s["float32"]


def test_a_file_that_lacks_something_says_what(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: Mine\narchitecture: x\npeak_flops_per_s: {float32: 1e13}\n")
    with pytest.raises(Integrity, match="memory_bytes"):
        read_device(path)


def test_products_of_64_bits_use_the_units_that_are_faster_at_them() -> None:
    one = device("a100")
    assert one.peak("float64") == one.peak("complex128") == 19.5e12
    assert one.peak("float64", "conv") == one.peak("float64", "elementwise") == 9.7e12
    assert device("t4").peak("complex128") == device("t4").peak_flops_per_s["float64"]


@for_each("name", device_names())
def test_every_device_says_whether_its_figures_were_looked_up(name: str) -> None:
    assert "compared" in device(name).source or "from memory" in device(name).source
