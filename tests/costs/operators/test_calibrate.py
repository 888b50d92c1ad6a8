"""Calibration as it really runs, with the processor as the device."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from made_once import made_once

from fairmile.costs.operators import calibrate as calibration
from fairmile.costs.operators.calibrate import calibrate, main, measure, time_left_s
from fairmile.costs.operators.signatures import Candidate, signature, tensor, write_candidates
from fairmile.costs.operators.table import OperatorTiming, read_rows
from fairmile.costs.steps import Op

torch = pytest.importorskip("torch")


def at(place: int) -> dict[str, int]:
    return {"tensor": place}


MM = Op(
    "aten.mm.default",
    "",
    "",
    (tensor((32, 64)), tensor((64, 16), strides=(1, 64))),
    (tensor((32, 16)),),
    (at(0), at(1)),
)
ADD = Op("aten._foreach_add_.List", "", "", (tensor((50,)),) * 4, (), ({"tensors": [0, 1]}, {"tensors": [2, 3]}))
INDEX = Op(
    "aten.index.Tensor", "", "", (tensor((9, 4)), tensor((30,), "int64")), (tensor((30, 4)),), (at(0), {"tensors": [1]})
)
REPEATED = Op(
    "aten.embedding.default",
    "",
    "",
    (tensor((2, 4)), tensor((8, 5), "int64", (0, 1))),
    (tensor((8, 5, 4)),),
    (at(0), at(1)),
)
POOL = Op(
    "aten.max_pool2d_with_indices_backward.default",
    "",
    "",
    (tensor((1, 2, 4, 4)), tensor((1, 2, 8, 8)), tensor((1, 2, 4, 4), "int64")),
    (tensor((1, 2, 8, 8)),),
    (at(0), at(1), [2, 2], [2, 2], [0, 0], [1, 1], False, at(2)),
)
FULL = Op("aten.full.default", "", "", (), (tensor((5,)),), ([5], "-inf"), (("dtype", {"dtype": "float32"}),))
UNKNOWN = Op("aten.no_such_thing.default", "", "", (tensor((3,)),), (), (at(0),))
ALL = [Candidate(op, ("grid",)) for op in (MM, ADD, INDEX, REPEATED, replace(POOL, outputs=()), FULL, UNKNOWN)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "calibration", make_table) / "cpu.csv.gz"


def make_table(folder: Path) -> None:
    """Let the program read a list and say what came of it."""
    write_candidates([*ALL, Candidate(MM, ("unet",))], folder / "list.jsonl")
    program = [sys.executable, "-m", "fairmile.costs.operators.calibrate"]
    words = ["list.jsonl", "cpu.csv.gz", "--device", "cpu"]
    done = subprocess.run([*program, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "cpu.csv.gz: 7 operators, 7 of them new, 1 failed, 0 not reached\n"


@pytest.mark.thorough
def test_each_call_gets_its_times_and_the_one_that_torch_lacks_a_reason(table: Path) -> None:
    about, rows = read_rows(table)
    assert (about.device, about.torch) == ("cpu", torch.__version__)
    found = {row.signature: row for row in rows}
    for op in (MM, ADD, INDEX, REPEATED, POOL, FULL):
        row = found[signature(op)]
        assert row.device_us > 0 and row.host_us > 0 and not row.problem
    assert "no operator aten.no_such_thing" in found[signature(UNKNOWN)].problem
    assert found[signature(MM)].origins == ("grid", "unet")
    assert found[signature(POOL)].outputs == "f32[1,2,8,8]", "what the list leaves out of a call"
    assert not list(table.parent.glob("*.part")) and not list(table.parent.glob("*.now"))


@pytest.mark.thorough
def test_a_second_call_measures_only_what_is_missing(table: Path, tmp_path: Path) -> None:
    again = tmp_path / "cpu.csv.gz"
    again.write_bytes(table.read_bytes())
    before = {row.signature: row.device_us for row in read_rows(table)[1]}
    more = Op("aten.relu.default", "", "", (tensor((10,)),), (tensor((10,)),), (at(0),))
    done = calibrate([*ALL, Candidate(more, ("x",))], again, for_s=300, device="cpu")
    assert (done.rows, done.measured) == (8, 1)
    assert {row.signature: row.device_us for row in read_rows(again)[1] if row.signature in before} == before


def test_when_the_time_is_over_the_rest_is_counted(tmp_path: Path) -> None:
    done = calibrate(ALL, tmp_path / "cpu.csv", for_s=0, device="cpu")
    assert (done.rows, done.left) == (0, 7)


def test_a_list_that_is_missing_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing.jsonl"), str(tmp_path / "out.csv"), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("error: no such file: ")


def test_half_of_the_time_is_kept_however_long_it_takes_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert time_left_s(25.0, since=96.0) == 21.0
    assert time_left_s(25.0, since=10.0) == 12.5


def test_the_time_begins_when_the_first_call_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def row(_: object, each: Candidate, text: str, outputs: str, *rest: object) -> OperatorTiming:
        now[0] += 1.0 if now[0] else 20.0  # torch loads much with the first
        return OperatorTiming(text, outputs, each.origins)

    monkeypatch.setattr(calibration, "_row", row)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert measure(ALL, tmp_path / "cpu.csv.part", for_s=3.0, device="cpu") == 5
