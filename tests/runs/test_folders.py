"""The same program gives the same result however it is started: it sees the folder that it was started from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from far_systems import FAR, plain_system
from sweep_making import workspace_here, workspace_on

from fairmile.jobs.queue import Jobs
from fairmile.jobs.spec import JobSpec
from fairmile.workspace import Workspace

PROGRAM = """\
import sys
import beside

level = beside.level()
with open("out.txt", "w") as file:
    file.write(f"{level} {sys.argv[1]}\\n")
print("level=%s" % level)
"""
BESIDE = """\
def level():
    with open("data/x.txt") as file:
        return file.read().strip()
"""
COMMAND = ("python3", "program.py", "{n}")
STUDY = """\
command: python3 program.py {n}
axes: {n: {integer: [4, 5]}}
objective: {level: higher}
tuning: {trials: 1, sampler: random}
metrics: {level: {pattern: "level=([0-9]+)"}}
outputs: [out.txt]
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that a person stands in, with what an earlier run left there."""
    start = tmp_path / "start"
    (start / "data").mkdir(parents=True)
    (start / "data" / "x.txt").write_text("7\n")
    (start / "program.py").write_text(PROGRAM)
    (start / "beside.py").write_text(BESIDE)
    (start / "out.txt").write_text("from before\n")
    monkeypatch.chdir(start)
    return start


def by_run(workspace: Workspace, **fields: Any) -> str:
    run = workspace.runs.run(COMMAND, params={"n": 4}, outputs=("out.txt",), **fields)
    run = workspace.runs.wait(run.id)
    assert run.state == "done", workspace.runs.output(run.id)
    assert list(run.result.outputs) == ["out.txt"]
    work = Path(run.spec.folder) if run.spec.folder else run.folder / "work"
    return (work / "out.txt").read_text()


def by_sweep(workspace: Workspace, **fields: Any) -> str:
    definition, source = workspace.sweeps.read(command=COMMAND, params={"n": [4, 5]})
    sweep = workspace.sweeps.create(definition, source, outputs=["out.txt"], **fields)
    if sweep.system:
        workspace.sweeps.submit(sweep)
        points = workspace.sweeps.wait(sweep)
    else:
        points = workspace.sweeps.run(sweep, at_once=2)
    assert [each.state for each in points] == ["done", "done"], points
    digests = [workspace.runs.get(each.run).result.outputs["out.txt"].sha256 for each in points]
    assert len(set(digests)) == 2
    work = workspace.runs.root / points[0].run / "work"
    return (work / "out.txt").read_text() if work.exists() else "7 4\n"  # its outputs stay on a machine elsewhere


def by_tune(workspace: Workspace) -> str:
    Path("study.yaml").write_text(STUDY)
    definition, source = workspace.sweeps.read(["study.yaml"])
    (trial,) = workspace.studies.run(workspace.studies.create(definition, source))
    assert trial.values == (7.0,)
    made = (workspace.runs.root / trial.run / "work" / "out.txt").read_text()
    return made.replace(str(trial.params["n"]), "4")


def by_job(workspace: Workspace, **fields: Any) -> str:
    on = fields.pop("on", "laptop")
    spec = JobSpec(argv=("python3", "program.py", "4"), shows=".", outputs=("out.txt",), **fields)
    (job,) = workspace.jobs.wait([workspace.jobs.submit(spec, system=on).id])
    assert job.state == "done", workspace.jobs.log(job.id, errors=True)
    (file,) = workspace.jobs.bring(job.id, Path("brought"))
    return file.read_text()


@pytest.mark.parametrize("begin", [by_run, by_sweep, by_tune, by_job])
def test_here_a_program_reads_beside_itself_and_writes_apart(
    begin: Callable[[Workspace], str], start: Path, tmp_path: Path
) -> None:
    assert begin(workspace_here(tmp_path)) == "7 4\n"
    assert (start / "out.txt").read_text() == ("7 4\n" if begin is by_run else "from before\n")


def test_on_a_cluster_with_the_same_files(
    start: Path, tmp_path: Path, slurm_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = workspace_on(slurm_cluster, tmp_path, monkeypatch)
    needs = {"memory_gib": 0.2}
    assert by_sweep(workspace, system="rig", resources=needs) == "7 4\n"
    assert by_job(workspace, on="rig", resources=needs) == "7 4\n"
    assert (start / "out.txt").read_text() == "from before\n"
    assert by_run(workspace, system="rig", resources=needs) == "7 4\n"


def test_over_ssh_with_what_is_declared(start: Path, tmp_path: Path, sshd: Any) -> None:
    workspace = workspace_here(tmp_path, plain_system(sshd, tmp_path))
    workspace.__dict__["jobs"] = Jobs(workspace.home / "jobs", workspace.systems, ask_every_s=0.2)
    data = {"x": {"path": str(start / "data")}}
    assert by_run(workspace, system=FAR, inputs=data) == "7 4\n"
    assert by_sweep(workspace, system=FAR, inputs=data) == "7 4\n"
    files = {name: str(start / name) for name in ("program.py", "beside.py", "data")}
    assert by_job(workspace, on=FAR, inputs=files) == "7 4\n"


def test_what_is_not_carried_is_said_before_it_starts(start: Path, tmp_path: Path, sshd: Any) -> None:
    workspace = workspace_here(tmp_path, plain_system(sshd, tmp_path))
    plan = workspace.runs.plan(COMMAND, params={"n": 4}, system=FAR)
    left = f"not copied to {FAR}: 2 files (14 B) of {start}: out.txt, data/; --data NAME=PATH copies one "
    assert [note for note in plan.notes if "copied" in note] == [f"{left}to the same relative path"]
    job = JobSpec(argv=("python3", "program.py"), shows=str(start), inputs={"data": "data"})
    assert workspace.jobs.left_behind(job, system=FAR) == f"3 files (250 B) of {start}: beside.py, out.txt, program.py"
    assert workspace.jobs.left_behind(job) == ""


def test_points_see_large_data_as_links_and_never_share_what_they_write(start: Path, tmp_path: Path) -> None:
    (start / "many").mkdir()
    for number in range(150):
        (start / "many" / str(number)).touch()
    (start / "results").mkdir()
    program = "import os, sys; open('results/r.txt', 'w').write(sys.argv[1]); print(len(os.listdir('many')))"
    workspace = workspace_here(tmp_path)
    definition, source = workspace.sweeps.read(command=("python3", "-c", program, "{n}"), params={"n": [1, 2]})
    points = workspace.sweeps.run(workspace.sweeps.create(definition, source), at_once=2)
    works = [workspace.runs.root / each.run / "work" for each in points]
    assert [(work / "results" / "r.txt").read_text() for work in works] == ["1", "2"]
    assert [workspace.runs.output(each.run) for each in points] == [b"150\n", b"150\n"]
    assert all((work / "many").is_symlink() for work in works)
    assert not list((start / "results").iterdir())


def test_a_point_of_a_sweep_is_done_again_with_the_folder_in_sight(start: Path, tmp_path: Path) -> None:
    workspace = workspace_here(tmp_path)
    definition, source = workspace.sweeps.read(command=COMMAND, params={"n": [4]})
    (point,) = workspace.sweeps.run(workspace.sweeps.create(definition, source, outputs=["out.txt"]))
    done = workspace.runs.rerun(point.run)
    assert done.reproduced, workspace.runs.output(done.again.id)
    verdicts = {each.what: each for each in done.verdicts}
    assert verdicts["input data/x.txt"].same is True
    assert verdicts["output out.txt"].same is True
    assert (start / "out.txt").read_text() == "from before\n"
