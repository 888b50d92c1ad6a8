"""What operators of a trace achieved: work by their inputs, time by their kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

pytest.importorskip("msgspec")

from trace_files import kineto_events, write_kineto

from fairmile.traces.achieved import OperatorWork, device_of_names, is_counted, operators
from fairmile.traces.analyze import analyze
from fairmile.traces.reading import read_traces

HOST = {"pid": 100, "tid": 100}
DEVICE = {"pid": 0, "tid": 7}
HALF = "c10::BFloat16"


def op(name: str, ts: float, dur: float, dims: Any = None, types: Any = (), values: Any = ()) -> dict[str, Any]:
    args = {} if dims is None else {"Input Dims": dims, "Input type": list(types), "Concrete Inputs": list(values)}
    return {"ph": "X", "cat": "cpu_op", "name": f"aten::{name}", **HOST, "ts": ts, "dur": dur, "args": args}


def launched(number: int, ts: float, kernel_ts: float, dur: float, *, cat: str = "kernel") -> list[dict[str, Any]]:
    return [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **HOST, "ts": ts, "dur": 2,
         "args": {"correlation": number}},
        {"ph": "X", "cat": cat, "name": f"kernel {number}", **DEVICE, "ts": kernel_ts, "dur": dur,
         "args": {"correlation": number}},
    ]  # fmt: skip


def found_in(folder: Path, events: list[dict[str, Any]], **head: Any) -> tuple[OperatorWork, ...]:
    write_kineto(folder, 0, world=1, events=events, **head)
    return operators(read_traces(folder))


def test_a_product_has_its_operations_its_bytes_and_the_time_of_its_kernels(tmp_path: Path) -> None:
    events = [
        op("addmm", 10, 20, [[4096], [8192, 1024], [1024, 4096], [], []], [HALF] * 3 + ["Scalar"] * 2,
           [""] * 3 + ["1"] * 2),
        *launched(1, 12, 500, 80),
        *launched(2, 20, 600, 20, cat="gpu_memset"),
        *launched(3, 40, 700, 999),  # of nobody
    ]  # fmt: skip
    [found] = found_in(tmp_path, events)
    size = 2 * (4096 + 8192 * 1024 + 1024 * 4096 + 8192 * 4096)
    assert (found.name, found.kind, found.dtype, found.calls) == ("aten::addmm", "gemm", "bfloat16", 1)
    assert (found.flops, found.bytes) == (2 * 8192 * 1024 * 4096, size)
    assert found.seconds == pytest.approx(100e-6)
    assert found.flops_per_s == pytest.approx(found.flops / 100e-6)
    assert found.intensity == pytest.approx(found.flops / size)
    assert found.bound == "compute"
    assert found.of_roof == pytest.approx(found.flops / 9.894e14 / 100e-6)


def test_calls_with_the_same_inputs_are_one_and_others_are_apart(tmp_path: Path) -> None:
    events = []
    for number, rows in enumerate((64, 64, 32), 1):
        at = 100.0 * number
        events += [op("mm", at, 10, [[rows, 8], [8, 16]], ["float"] * 2), *launched(number, at + 1, at + 50, number)]
    found = {each.shapes: (each.calls, each.flops, round(each.seconds * 1e6, 6)) for each in found_in(tmp_path, events)}
    assert found == {"64×8, 8×16": (2, 2.0 * 64 * 8 * 16, 3.0), "32×8, 8×16": (1, 2.0 * 32 * 8 * 16, 3.0)}


def test_under_autocast_the_inner_product_counts_which_knows_the_type(tmp_path: Path) -> None:
    events = [
        op("linear", 10, 90, [[64, 8], [16, 8], []], ["float", "float", ""]),
        *launched(1, 12, 200, 7),  # the cast
        op("linear", 30, 60, [[64, 8], [16, 8], []], [HALF, HALF, ""]),
        op("mm", 40, 40, [[64, 8], [8, 16]], [HALF, HALF]),
        *launched(2, 50, 300, 5),
    ]
    [found] = found_in(tmp_path, events)
    assert (found.name, found.dtype) == ("aten::mm", "bfloat16")
    assert found.seconds == pytest.approx(5e-6)


def test_an_attention_counts_whole_whatever_products_it_is_made_of(tmp_path: Path) -> None:
    shape = [2, 4, 128, 64]
    events = [
        op("scaled_dot_product_attention", 10, 90, [shape] * 3 + [[], [], []], ["float"] * 3 + ["", "Scalar", "Scalar"],
           ["", "", "", "", "0.", "False"]),
        op("bmm", 20, 10, [[8, 128, 64], [8, 64, 128]], ["float"] * 2),
        *launched(1, 21, 200, 5),
        op("bmm", 40, 10, [[8, 128, 128], [8, 128, 64]], ["float"] * 2),
        *launched(2, 41, 300, 6),
        op("bmm", 200, 10, [[8, 128, 128], [8, 128, 64]], ["float"] * 2),
        *launched(3, 201, 400, 7),
    ]  # fmt: skip
    found = {each.name: each for each in found_in(tmp_path, events)}
    assert found["aten::scaled_dot_product_attention"].flops == 4 * 8 * 128 * 128 * 64
    assert found["aten::scaled_dot_product_attention"].seconds == pytest.approx(11e-6)
    assert found["aten::bmm"].calls == 1 and found["aten::bmm"].seconds == pytest.approx(7e-6)


def test_launches_of_another_thread_are_not_those_of_the_operator(tmp_path: Path) -> None:
    other = launched(1, 12, 500, 80)
    other[0]["tid"] = 101
    events = [op("mm", 10, 20, [[64, 8], [8, 16]], ["float"] * 2), *other, *launched(2, 15, 600, 3)]
    [found] = found_in(tmp_path, events)
    assert found.seconds == pytest.approx(3e-6)


def test_what_a_trace_does_not_tell_whole_is_left_out(tmp_path: Path) -> None:
    bad = [
        op("mm", 10, 5),
        op("mm", 20, 5, [[64, 8]], ["float", "float"]),
        op("mm", 30, 5, [["s0", 8], [8, 16]], ["float", "float"]),
        op("mm", 40, 5, [[64, -8], [8, 16]], ["float", "float"]),
        op("mm", 50, 5, [[1 << 40, 1 << 40], [8, 16]], ["float", "float"]),
        op("mm", 60, 5, {"a": 1}, ["float"]),
        op("mm", 70, 5, [[64, 8], [8, 16]], [None, 3]),
        op("convolution", 80, 5, [[1, 2, 3, 3], [4, 2, 9, 9], []], ["float", "float", ""], ["", "", ""]),
        op("convolution", 90, 5, [[1, 2, 3, 3], [4, 2, 3, 3], *[[]] * 7], ["float", "float", "", *["ScalarList"] * 6],
           ["", "", "", "[None, 1]", "[0]", "[1]", "[", "{}", "[" * 100]),
    ]  # fmt: skip
    assert found_in(tmp_path / "bad", [*bad, *launched(1, 12, 500, 80)]) == ()
    assert operators(read_traces(write_kineto(tmp_path, 0, events=kineto_events(0)))) == ()  # without types


def test_the_device_is_the_one_that_the_trace_names(tmp_path: Path) -> None:
    events = [op("mm", 10, 20, [[64, 8], [8, 16]], ["float"] * 2), *launched(1, 12, 500, 80)]
    [found] = found_in(tmp_path, events, deviceProperties=[{"id": 0, "name": "Some GPU"}])
    assert (found.bound, found.of_roof) == ("", None)
    assert found.flops_per_s > 0
    h200 = device_of_names(["NVIDIA H200", "NVIDIA H200"])
    assert h200 is not None and h200.slug == "h200"
    assert device_of_names(["NVIDIA H200", "NVIDIA A100-SXM4-80GB"]) is None
    assert device_of_names([]) is None


def test_of_nine_ranks_of_nccl_the_first_and_the_ninth_tell_their_operators(tmp_path: Path) -> None:
    for rank in range(9):
        events = [op("mm", 10, 20, [[64, 8], [8, 16]], ["float"] * 2), *launched(1, 12, 500, 80)]
        write_kineto(tmp_path, rank, world=9, events=events)
    [found] = operators(read_traces(tmp_path))
    assert found.calls == 2
    [alone] = operators(read_traces(tmp_path / "rank5.json"))
    assert alone.calls == 1


def test_the_analysis_tells_operators_also_as_json(tmp_path: Path) -> None:
    events = [op("mm", 10, 20, [[64, 8], [8, 16]], ["float"] * 2), *launched(1, 12, 500, 80)]
    write_kineto(tmp_path, 0, world=1, events=events)
    [told] = json.loads(json.dumps(analyze(read_traces(tmp_path)).to_dict(), default=str))["operators"]
    assert (told["name"], told["calls"], told["flops"]) == ("aten::mm", 1, 2 * 64 * 8 * 16)
    assert told["flops_per_s"] == pytest.approx(told["flops"] / 80e-6)
    assert told["intensity"] == pytest.approx(told["flops"] / told["bytes"])


@for_each(
    "name, is_one",
    [("aten::addmm", True), ("aten::addmv_", True), ("aten::add", False), ("aten::_convolution", False), ("mm_", True)],
)
def test_wrappers_of_others_are_not_counted(name: str, is_one: bool) -> None:
    assert is_counted(name) is is_one


def test_a_real_profile_on_the_cpu_tells_exactly_what_was_computed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    attend = torch.nn.functional.scaled_dot_product_attention
    convolution = torch.nn.Conv2d(3, 8, 3, padding=1, stride=2)
    upwards = torch.nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)
    layer, recurrent = torch.nn.Linear(8, 5), torch.nn.LSTM(6, 7, 2)
    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        convolution(torch.randn(4, 3, 16, 16)).sum().backward()
        upwards(torch.randn(2, 4, 5, 5)).sum()
        layer(torch.randn(3, 10, 8)).sum().backward()
        attend(q, q, q, is_causal=True).sum().backward()
        torch.bmm(torch.randn(2, 3, 4), torch.randn(2, 4, 5))
        recurrent(torch.randn(5, 3, 6))
    profile.export_chrome_trace(str(tmp_path / "rank0.json"))
    found = operators(read_traces(tmp_path))
    told = {(each.name.removeprefix("aten::"), each.shapes.partition(",")[0]): each for each in found}
    forward = 2 * 4 * 64 * 8 * 27  # samples, places, channels, weights of one
    flops = {
        ("convolution", "4×3×16×16"): forward,
        ("convolution_backward", "4×8×8×8"): forward + 4 * 8 * 64,  # of the weights and the bias alone
        ("convolution", "2×4×5×5"): 2 * 2 * 25 * 4 * 3 * 9,
        ("addmm", "5"): 2 * 30 * 8 * 5,
        ("mm", "5×30"): 2 * 5 * 30 * 8,
        ("bmm", "2×3×4"): 2 * 2 * 3 * 4 * 5,
        ("lstm", "5×3×6"): 2 * 5 * 3 * (28 * 6 + 3 * 28 * 7),
        ("_scaled_dot_product_flash_attention_for_cpu", "2×4×16×8"): 8 * (16 * 17 / 2) * 4 * 8,
        ("_scaled_dot_product_flash_attention_for_cpu_backward", "2×4×16×8"): 8 * (16 * 17 / 2) * 10 * 8,
    }
    assert {name: each.flops for name, each in told.items()} == flops
    assert all(each.calls == 1 and each.seconds > 0 and not each.bound for each in found)
    assert told["bmm", "2×3×4"].bytes == 4 * (24 + 40 + 30)
    assert told["addmm", "5"].bytes == 4 * (5 + 240 + 40 + 150)
    assert told["convolution", "2×4×5×5"].bytes == 4 * (2 * 4 * 25 + 4 * 3 * 9 + 6 + 2 * 6 * 11 * 11)
