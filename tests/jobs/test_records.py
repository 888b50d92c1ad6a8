"""Records of jobs: what earlier versions wrote stays readable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairmile.base.errors import UsageError
from fairmile.jobs.judge import TaskStatus
from fairmile.jobs.records import Known, Records
from fairmile.jobs.spec import Array, JobSpec
from fairmile.jobs.states import Observed, State


def test_a_job_of_the_first_version_names_its_recorder_otherwise(tmp_path: Path) -> None:
    records = Records(tmp_path)
    record, _ = records.create(JobSpec(argv=("true",), recorder=("sh", "start.sh")), "laptop", 1.0)
    (file,) = (path for path in record.folder.iterdir() if "recorder" in path.read_text())
    document = json.loads(file.read_text())
    document["spec"]["around"] = document["spec"].pop("recorder")
    file.write_text(json.dumps(document))
    assert Records(tmp_path).get(record.id).spec == record.spec


def test_the_last_word_of_a_scheduler_is_remembered_as_the_first_version_did(tmp_path: Path) -> None:
    records = Records(tmp_path)
    record, _ = records.create(JobSpec(argv=("true",)), "laptop", 1.0)
    known = Known(TaskStatus(State.RUNNING), observed={"7": Observed(State.RUNNING, "R")})
    records.remember(record, known)
    assert json.loads((record.folder / "standing.json").read_text())["told"]["7"]["state"] == "running"
    assert records.known(record) == known


@pytest.mark.parametrize(
    ("array", "task", "name"),
    [(None, None, "out.log"), (Array(count=2), None, "out.0.log"), (Array(count=2), 1, "out.1.log")],
)
def test_each_task_has_a_log_of_its_own(tmp_path: Path, array: Array | None, task: int | None, name: str) -> None:
    record, _ = Records(tmp_path).create(JobSpec(argv=("true",), array=array), "laptop", 1.0)
    assert record.log_name(task) == name
    with pytest.raises(UsageError, match="no task 9"):
        record.log_name(9)
