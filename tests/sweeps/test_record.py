"""The record of a sweep: what is written is read again, also what earlier versions wrote, and damage is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.sweeps.folder import SWEEP, list_sweeps, read_sweep, write_sweep
from fairmile.sweeps.model import Objective
from fairmile.sweeps.record import Source, StudyRecord, SweepRecord
from fairmile.sweeps.tuning.engine import Settings

SOURCE = Source(files=("/w/a.yaml",), texts={"/w/a.yaml": "axes: {lr: [1, 2]}"}, shown={"/w/a.yaml": "a.yaml"})
SWEPT = SweepRecord(
    "rates-1", "rates", 12.5, SOURCE, 2, axes={"lr": [1, 2]}, best="loss", combine=("join", "{results}")
)
STUDY = StudyRecord(Settings(trials=7), {"lr": {"kind": "float", "low": 0, "high": 1}}, (Objective("loss", "lower"),))

# Version 0.1 wrote these words.
FIRST: dict[str, Any] = {
    "format": "fairmile-sweep/1",
    "id": "old-2",
    "name": "old",
    "created": 3.0,
    "source": {
        **{"format": 1, "files": [], "texts": {}, "shown": {}, "params": {"x": [1]}, "what": "", "command": ["echo"]},
        **{"changes": {}, "folder": "/w", "allow_code": False},
    },
    **{"count": 1, "template": "", "axes": {"x": [1]}, "system": "", "spec": {"name": "old", "argv": ["echo"]}},
    **{"values": {}, "best": "", "combine": [], "notes": ["slow"]},
}


@pytest.mark.parametrize("record", [SWEPT, replace(SWEPT, study=STUDY, changes={"seed": 3})])
def test_what_is_written_is_read_again(record: SweepRecord, tmp_path: Path) -> None:
    assert write_sweep(tmp_path, record).record == record
    assert read_sweep(tmp_path).record == record
    assert (tmp_path / SWEEP).stat().st_mode & 0o777 == 0o600


def test_what_the_first_version_wrote_is_read() -> None:
    record = SweepRecord.from_dict(FIRST, "sweep.json")
    assert (record.id, record.source.command, record.source.folder) == ("old-2", ("echo",), "/w")
    assert (record.axes, record.notes, record.study) == ({"x": [1]}, ("slow",), None)
    assert record.to_dict() == FIRST


@pytest.mark.parametrize(
    "text", ["[]", "{}", json.dumps({**FIRST, "count": "many"}), json.dumps({**FIRST, "study": 3})]
)
def test_damage_is_told_and_left_out_of_lists(text: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / SWEEP).write_text(text)
    with pytest.raises(SystemFailure, match=r"sweep\.json is damaged: expected the record of a sweep"):
        read_sweep(tmp_path / "a")
    assert list_sweeps(tmp_path) == []


def test_only_a_study_has_what_makes_it_one(tmp_path: Path) -> None:
    assert write_sweep(tmp_path, replace(SWEPT, study=STUDY)).objectives == [("loss", "lower")]
    swept = write_sweep(tmp_path, SWEPT)
    assert swept.objectives == [("loss", "")]
    with pytest.raises(UsageError, match="rates-1 is a sweep, not a study"):
        _ = swept.study
