"""The scheduler to practise with is the fake one, reached by name, with its state in the workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairmile.course.lessons import FILES
from fairmile.jobs.schedulers import SCHEDULERS
from fairmile.jobs.spec import JobSpec
from fairmile.testing.practice import Practice
from fairmile.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    for name in [name for name in os.environ if name.startswith("FAIRMILE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FAIRMILE_HOME", str(tmp_path))
    workspace = Workspace.open(cwd=tmp_path)
    workspace.systems.add(FILES / "practice.yaml")
    return workspace


def test_a_system_of_its_dialect_runs_jobs_on_this_machine(workspace: Workspace, tmp_path: Path) -> None:
    job = workspace.jobs.submit(JobSpec(argv=("sh", "-c", "echo $FAIRMILE_JOB_ID")), system="practice")
    (ended,) = workspace.jobs.wait([job.id])
    assert ended.state == "done"
    assert workspace.jobs.log(job.id) == b"1\n"
    assert (tmp_path / "practice" / "state.json").is_file()


def test_its_scripts_have_its_name(workspace: Workspace) -> None:
    plan = workspace.jobs.plan(JobSpec(argv=("true",)), system="practice")
    assert "#PRACTICE --nodes=1" in str(plan.to_dict())


def test_without_a_workspace_its_state_lies_in_the_default_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAIRMILE_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    scheduler = SCHEDULERS["practice"]()
    assert isinstance(scheduler, Practice) and scheduler.folder == tmp_path / "fairmile" / "practice"
