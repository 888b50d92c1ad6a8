"""Runs that jobs carry: as processes here, over ssh on a machine without Fairmile, and through a real Slurm."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
from slurm_cluster import SlurmCluster
from slurm_jobs import system_text

from fairmile.base.errors import DiskFailure, FairmileError
from fairmile.jobs.queue import Jobs
from fairmile.meter.mllog import read_mllog
from fairmile.reports.results import results_of
from fairmile.runs.execute import carrier
from fairmile.runs.record import ledger
from fairmile.runs.record.run import RunState
from fairmile.runs.record.spec import Input, RunSpec
from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace

METRIC = """echo '{"loss": 0.5, "step": 1}' >> "$FAIRMILE_METRICS"; echo printed"""


def runs_with(tmp_path: Path, systems: Mapping[str, Any]) -> Runs:
    """Return the runs of a workspace whose settings tell how to reach systems."""
    settings = tmp_path / "settings"
    (settings / "fairmile").mkdir(parents=True)
    reaches = {name: ", ".join(f"{key}: {value}" for key, value in each.items()) for name, each in systems.items()}
    lines = "".join(f"  {name}: {{{reach}}}\n" for name, reach in reaches.items())
    (settings / "fairmile" / "config.yaml").write_text(f"systems:\n{lines}")
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(settings)}
    environ["FAIRMILE_HOME"] = str(tmp_path / "home")
    environ.pop("FAIRMILE_EVENTS", None)
    return Workspace.open(environ=environ, cwd=tmp_path).runs


@pytest.fixture
def box(tmp_path: Path) -> Runs:
    """Runs on a machine without a scheduler, which is this one."""
    file = tmp_path / "box.yaml"
    file.write_text("name: box\ntitle: A box\nscheduler: {dialect: shell}\npartitions: {here: {}}\n")
    return runs_with(tmp_path, {"box": {"file": file}})


class TestHere:
    def test_a_job_writes_the_record_itself(self, box: Runs) -> None:
        started = box.run(["sh", "-c", METRIC], system="box", name="tides")
        assert started.state in (RunState.QUEUED, RunState.RUNNING, RunState.DONE)
        run = box.wait(started.id, timeout_s=60)
        assert run.state is RunState.DONE
        assert run.metrics["loss"].value == 0.5
        assert box.output(run.id) == b"printed\n"
        assert run.hardware["cpu"]["threads"] > 0
        assert box.rows()[0].state is RunState.DONE

    def test_a_failure_has_its_exit_code(self, box: Runs) -> None:
        run = box.wait(box.run(["sh", "-c", "exit 4"], system="box").id, timeout_s=60)
        assert (run.state, run.result.exit_code) == (RunState.FAILED, 4)

    def test_a_recorder_that_is_killed_leaves_the_word_to_the_scheduler(self, box: Runs) -> None:
        started = box.run(["sh", "-c", "kill -9 $PPID; sleep 1"], system="box")
        run = box.wait(started.id, timeout_s=60)
        assert run.state.is_end
        assert run.state is not RunState.DONE
        assert run.captured.recorded_by == "the scheduler of box"

    def test_status_brings_what_has_ended(self, box: Runs) -> None:
        started = box.run(["true"], system="box")
        box.wait(started.id, timeout_s=60)
        box.refresh()
        assert box.with_jobs() == []
        assert box.counts()[""] == {RunState.DONE: 1}

    def test_what_failed_can_be_resumed_as_a_new_job(self, box: Runs) -> None:
        program = "if [ -e half ]; then echo went on; else touch half; exit 5; fi"
        first = box.wait(box.run(RunSpec(argv=("sh", "-c", program)), system="box").id, timeout_s=60)
        assert first.state is RunState.FAILED
        box.resume(first.id)
        again = box.wait(first.id, timeout_s=60)
        assert again.state is RunState.DONE
        assert box.output(first.id) == b"went on\n"

    def test_going_on_keeps_what_placeholders_stood_for(self, box: Runs) -> None:
        program = 'echo "$0" "$1"; if [ -e "$1/half" ]; then exit 0; else touch "$1/half"; exit 5; fi'
        spec = RunSpec(argv=("sh", "-c", program, "{word}", "{run}"), params={"word": "high"})
        first = box.wait(box.run(spec, system="box").id, timeout_s=60)
        box.resume(first.id)
        assert box.wait(first.id, timeout_s=60).state is RunState.DONE
        assert box.output(first.id).decode() == f"high {first.folder}\n" * 2

    def test_going_on_that_cannot_be_submitted_loses_nothing(self, box: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        first = box.wait(box.run(["sh", "-c", "echo kept; exit 5"], system="box").id, timeout_s=60)

        def refuse(*_: object, **__: object) -> None:
            raise DiskFailure("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(ledger, "write_record", refuse)
            with pytest.raises(DiskFailure):
                box.resume(first.id)
        with monkeypatch.context() as patch:
            patch.setattr(Jobs, "submit", refuse)
            with pytest.raises(DiskFailure):
                box.resume(first.id)
        assert box.output(first.id) == b"kept\n"
        assert box.get(first.id).result.exit_code == 5

    def test_a_plan_shows_the_script_and_submits_nothing(self, box: Runs) -> None:
        plan = box.plan(["true"], system="box")
        assert "fairmile.runs.execute.recorder" in plan.script
        assert [step.verb for step in plan.steps] == ["submit", "run"]
        assert box.rows() == []

    def test_what_cannot_be_submitted_leaves_no_run(self, box: Runs) -> None:
        with pytest.raises(FairmileError):
            box.run(["true"], system="box", resources={"nodes": 5})
        assert box.rows() == []


class TestOverSsh:
    @pytest.fixture
    def there(self, tmp_path: Path, sshd: Any) -> Runs:
        """Runs on a machine behind ssh, whose jobs lie in a folder of their own."""
        reach = {"host": sshd.host, "ssh_config": sshd.config, "folder": tmp_path / "far"}
        file = tmp_path / "far.yaml"
        file.write_text("name: far\ntitle: A box\nscheduler: {dialect: shell}\npartitions: {here: {}}\n")
        return runs_with(tmp_path, {"far": {**reach, "file": file}})

    def test_record_code_and_recorder_travel_and_come_back(
        self, there: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = tmp_path / "here"
        here.mkdir()
        monkeypatch.chdir(here)
        Path("measure.sh").write_text(METRIC + "\npwd\n")
        started = there.run(["sh", "measure.sh"], system="far")
        run = there.wait(started.id, timeout_s=120)
        assert run.state is RunState.DONE, there.output(run.id)
        assert run.metrics["loss"].value == 0.5
        assert there.output(run.id).decode().splitlines()[1].startswith(str(tmp_path / "far"))
        assert (run.folder / "ro-crate-metadata.json").exists()

    def test_inputs_modules_and_files_from_above_travel_too(
        self, there: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = tmp_path / "here"
        (here / "data").mkdir(parents=True)
        monkeypatch.chdir(here)
        Path("beside.py").write_text("def told(path): return open(path).read()\n")
        Path("train.py").write_text(
            "import os, sys, beside\n"
            "print(beside.told(sys.argv[1]), os.path.samefile(sys.argv[1], os.environ['FAIRMILE_INPUT_ONE']))\n"
            "print(sorted(os.listdir(sys.argv[2])))\n"
        )
        Path("one.txt").write_text("first")
        Path("data/a.txt").write_text("a")
        argv = ["python3", str(here / "train.py"), "{inputs.one}", "{inputs.many}"]
        inputs = {"one": Input(path="one.txt"), "many": Input(path="data")}
        started = there.run(argv, system="far", inputs=inputs)
        for name in ("train.py", "beside.py", "one.txt"):  # nothing is read from here any more
            Path(name).unlink()
        run = there.wait(started.id, timeout_s=120)
        assert there.output(run.id).decode().splitlines() == ["first True", "['a.txt']"], run.result
        assert run.state is RunState.DONE
        assert not (run.folder / "work").exists()
        Path("one.txt").write_text("first")
        done = there.rerun(run.id, system="")
        assert done.reproduced, done.verdicts
        assert done.again.identity == run.identity

    @pytest.mark.thorough
    def test_a_benchmark_brings_along_what_it_needs_of_fairmile_and_its_small_outputs_come_back(
        self, there: Runs, tmp_path: Path
    ) -> None:
        packages = tmp_path / "packages"
        packages.mkdir()
        for each in Path(numpy.__file__).parents[1].iterdir():  # all but Fairmile, which has another way of being there
            if "fairmile" not in each.name:
                (packages / each.name).symlink_to(each)
        python = tmp_path / "bin" / "python3"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
        env = {"PATH": f"{python.parent}:{os.environ['PATH']}"}
        started = there.run("mnist", system="far", params={"epochs": 1}, env=env)
        run = there.wait(started.id, timeout_s=240)
        assert run.state is RunState.DONE, there.output(run.id)
        assert run.metrics["accuracy"].value > run.metrics["most_frequent_digit.accuracy"].value
        results = results_of(run)
        assert results is not None
        assert results["benchmark"] == "MNIST"

    @pytest.mark.thorough
    def test_without_a_python_there_the_scheduler_tells_the_end(
        self, there: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(carrier, "_START_TEXT", carrier._START_TEXT.replace("python3", "no-python"))
        run = there.wait(there.run(["sh", "-c", "echo plain; exit 6"], system="far").id, timeout_s=120)
        assert (run.state, run.result.exit_code) == (RunState.FAILED, 6)
        assert run.captured.recorded_by == "the scheduler of far"
        assert there.output(run.id) == b"plain\n"


class TestTheTravellingRecorder:
    def test_is_the_same_file_at_any_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = carrier.recorder_bytes()
        monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
        assert carrier.recorder_bytes() == before

    def test_needs_nothing_but_a_python(self, tmp_path: Path) -> None:
        file = tmp_path / "recorder.pyz"
        file.write_bytes(carrier.recorder_bytes())
        run = tmp_path / "run"
        run.mkdir()
        (run / "run.json").write_text('{"id": "a-b", "created": 1.0, "spec": {"name": "a", "argv": ["true"]}}')
        argv = [sys.executable, "-I", "-S", str(file), str(run), "--pack", "--", "sh", "-c", METRIC + "; sleep 0.6"]
        done = subprocess.run(argv, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "printed\n", "")
        with zipfile.ZipFile(run / "run.zip") as packed:
            assert set(packed.namelist()) == {"run.json", "output.log", "events.jsonl", "ro-crate-metadata.json"}


class TestOnSlurm:
    @pytest.fixture
    def slurm(self, slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
        file = tmp_path / "rig.yaml"
        file.write_text(system_text(slurm_cluster))
        for name, value in slurm_cluster.environ.items():
            monkeypatch.setenv(name, value)
        return runs_with(tmp_path, {"rig": {"file": file}})

    def test_a_run_over_two_tasks_is_recorded_once(self, slurm: Runs) -> None:
        resources = {"nodes": 1, "tasks_per_node": 2, "cpus_per_task": 1}
        argv = ["sh", "-c", 'echo "rank $SLURM_PROCID"; sleep 0.5']
        started = slurm.run(argv, system="rig", resources=resources, launch="srun")
        run = slurm.wait(started.id, timeout_s=120)
        assert run.state is RunState.DONE, slurm.output(run.id)
        assert sorted(slurm.output(run.id).splitlines()) == [b"rank 0", b"rank 1"]
        assert run.captured.scheduler["name"] == "slurm"

    def test_mpirun_starts_the_ranks_of_a_run_on_two_nodes(self, slurm: Runs) -> None:
        resources = {"nodes": 2, "tasks_per_node": 2}
        argv = ["sh", "-c", 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"']
        env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        started = slurm.run(argv, system="rig", resources=resources, launch="mpirun", env=env)
        run = slurm.wait(started.id, timeout_s=120)
        assert run.state is RunState.DONE, slurm.output(run.id)
        assert sorted(slurm.output(run.id).splitlines()) == [f"rank {rank} of 4".encode() for rank in range(4)]

    @pytest.mark.thorough
    def test_torchrun_starts_the_ranks_of_a_run_on_a_node(
        self, slurm: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")
        program = tmp_path / "rank.py"
        program.write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)")
        resources = {"nodes": 1, "tasks_per_node": 2, "memory_gib": 1.0}
        started = slurm.run(["python", str(program)], system="rig", resources=resources, launch="torchrun")
        run = slurm.wait(started.id, timeout_s=120)
        assert run.state is RunState.DONE, bytes(slurm.output(run.id))
        lines = [line for line in slurm.output(run.id).splitlines() if line.startswith(b"rank ")]
        assert sorted(lines) == [b"rank 0 of 2", b"rank 1 of 2"]

    @pytest.mark.thorough
    @pytest.mark.parametrize("launch", ["srun", "mpirun"])
    def test_a_benchmark_trains_on_two_nodes_and_is_recorded_once(
        self, slurm: Runs, monkeypatch: pytest.MonkeyPatch, launch: str
    ) -> None:
        if launch == "mpirun" and shutil.which(launch) is None:
            pytest.skip("needs mpirun")
        monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # The names of these nodes are in no name service, and what two of them share in memory would have one name.
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,tcp"}
        started = slurm.run(
            "mnist",
            params={"strategy": "ddp", "epochs": 2, "device": "cpu"},
            seed=3,
            system="rig",
            resources={"nodes": 2, "tasks_per_node": 1, "cpus_per_task": 1, "memory_gib": 1.8},
            launch=launch,
            env=env,
        )
        run = slurm.wait(started.id, timeout_s=400)
        assert run.state is RunState.DONE, bytes(slurm.output(run.id))
        assert run.metrics["accuracy"].value > 0.5
        assert run.metrics["train_loss"].count == 2, "one rank tells of each epoch"
        log = read_mllog(run.work / "mllog.txt")
        told = {each.key: each.value for each in log.records}
        assert (told["number_of_nodes"], told["global_batch_size"]) == (2, 64)
