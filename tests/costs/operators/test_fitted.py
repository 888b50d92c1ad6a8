"""Families of measured operators in the user's cache: read back to the last digit, worked out again if in doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cases import for_each

from fairmile.costs.devices import Device, device
from fairmile.costs.operators import fitted as module
from fairmile.costs.operators.fitted import Family, fitted
from fairmile.costs.operators.op_times import OpTime, OpTimes
from fairmile.costs.operators.samples import call
from fairmile.costs.operators.signatures import signature, tensor, write_tensors
from fairmile.costs.operators.table import OperatorTiming, TableOrigin
from fairmile.costs.steps import Op

H200 = device("h200")


def relu(*shape: int) -> Op:
    return call("aten.relu.default", tensor(shape))


def product(m: int, n: int, k: int) -> Op:
    return call("aten.mm.default", tensor((m, k), "bfloat16"), tensor((k, n), "bfloat16"))


def row(op: Op, us: float) -> OperatorTiming:
    return OperatorTiming(signature(op), write_tensors(op.outputs), ("grid",), us, 1.1 * us, us / 7)


ROWS = [row(relu(8, 3**power), 3 + 1.7**power) for power in range(12)]
ROWS += [row(product(size, size, width), 2 + size * width / 7e4) for size in (64, 500, 4000) for width in (100, 900)]
ASKED = (relu(16, 777), relu(3, 5, 7), product(200, 300, 400), product(3000, 64, 1))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fairmile" / "operators"


def answers(rows: list[OperatorTiming] = ROWS, on: Device = H200, cold_share: float = 0.5) -> list[OpTime]:
    table = OpTimes(rows, on, TableOrigin(on.name, "", "", ""), cold_share)
    return [table.time_of(op) for op in ASKED]


def test_the_second_process_reads_what_the_first_worked_out_to_the_last_digit(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answers()
    assert {each.how for each in first} == {"interpolated"}
    monkeypatch.setattr(OpTimes, "_learnt", lambda *_: pytest.fail("worked out although it is in the cache"))
    assert answers() == first


@for_each("kept", [lambda data: data[: len(data) // 2], lambda _: b"", lambda data: data.replace(b"rows", b"rosw")])
def test_a_damaged_file_is_written_anew(cache: Path, kept: Callable[[bytes], bytes]) -> None:
    first = answers()
    whole = {each: each.read_bytes() for each in cache.iterdir()}
    for file, data in whole.items():
        file.write_bytes(kept(data))
    assert answers() == first
    assert {each: each.read_bytes() for each in cache.iterdir()} == whole


@for_each(
    "other",
    [
        {"rows": [ROWS[0]._replace(device_us=5.0), *ROWS[1:]]},
        {"rows": [each._replace(cold_us=9.0) for each in ROWS]},
        {"rows": ROWS[:-1]},
        {"on": replace(H200, least_op_s=9e-6)},
        {"cold_share": 0.25},
    ],
)
def test_another_table_is_not_taken_for_this_one(cache: Path, other: dict[str, object]) -> None:
    answers()
    before = set(cache.iterdir())
    fresh = answers(**other)  # type: ignore[arg-type]
    assert set(cache.iterdir()) - before
    for each in cache.iterdir():
        each.unlink()
    assert answers(**other) == fresh  # type: ignore[arg-type]


def test_other_code_does_not_read_what_this_one_wrote(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers()
    before = set(cache.iterdir())
    monkeypatch.setattr(module, "_code", lambda: b"another")
    answers()
    assert len(set(cache.iterdir()) - before) == len(before)


def test_where_nothing_can_be_kept_answers_are_the_same(cache: Path) -> None:
    first = answers()
    for each in cache.iterdir():
        each.unlink()
    cache.rmdir()
    cache.write_text("a file where the folder should be")
    assert answers() == first


def test_the_cache_is_bounded_and_the_oldest_goes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 3)
    made: list[str] = []
    for cold_share in range(6):
        fitted(ROWS, H200, cold_share, dict[str, Family])
        made += {each.name for each in cache.iterdir()} - set(made)
    assert {each.name for each in cache.iterdir()} == set(made[-3:])
