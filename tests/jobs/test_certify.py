"""The suite that a machine passes, run for real on this machine and on Slurm."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_jobs import jobs_on, torch_lines

from fairmile.base.errors import InvalidDocument, NotFound, Transient
from fairmile.jobs.certify import Certificate, certify, plan
from fairmile.jobs.machines import Machines
from fairmile.jobs.queue import Jobs, JobStatus
from fairmile.jobs.spec import JobSpec, Resources

BOX = """\
name: box
title: A machine without a scheduler
scheduler: {dialect: shell}
partitions: {here: {PARTITION}}
module_system: none
"""
EVERYWHERE = ["job", "exit code and output", "array", "cancel"]
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture(autouse=True)
def root_may_run_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ROOT_MAY.items():
        monkeypatch.setenv(name, value)


def box(folder: Path, more: str = "", partition: str = "") -> Jobs:
    (folder / "box.yaml").write_text(BOX.replace("PARTITION", partition) + more)
    reaches = {"box": {"file": str(folder / "box.yaml")}}
    return Jobs(folder / "jobs", Machines([], folder / "jobs", reaches=reaches))


def outcomes(made: Certificate) -> dict[str, str]:
    return {check.name: check.outcome for check in made.checks}


def reason(made: Certificate, name: str) -> str:
    return next(check.reason for check in made.checks if check.name == name)


def test_this_machine_passes_what_applies_to_it(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs", Machines([], tmp_path / "jobs"))
    seen = []
    made = certify(jobs, "laptop", watch=lambda check: seen.append(check.name))
    found = outcomes(made)
    assert made.passed, [check for check in made.checks if check.outcome == "failed"]
    assert {found[name] for name in EVERYWHERE} == {"passed"}
    assert found["GPUs"] == "not applicable"
    assert found["tasks started together"] == ("passed" if shutil.which("mpirun") else "not applicable")
    assert seen == [check.name for check in made.checks]
    assert sorted(seen) == sorted(plan(jobs, "laptop").checks)
    assert jobs.ls() == []


def test_a_record_is_kept_with_its_card(tmp_path: Path) -> None:
    jobs = box(tmp_path)
    made = certify(jobs, "box", software=())
    file = Path(made.keep(tmp_path / "certificates").file)
    assert file.parent == tmp_path / "certificates" / "box"
    kept = json.loads(file.read_text())
    assert (kept["system"], kept["scheduler"], kept["passed"]) == ("box", "shell", True)
    assert [check["name"] for check in kept["checks"]] == [check.name for check in made.checks]
    assert kept["card"]["@context"] == "https://schema.org/"
    assert kept["card"]["variableMeasured"][0] == {
        "@type": "PropertyValue",
        "name": "job",
        "value": "passed",
        "description": "",
    }


def test_modules_that_load_pass_and_those_that_do_not_fail(tmp_path: Path) -> None:
    jobs = box(tmp_path, "software:\n  good: {lines: [export GOOD=1]}\n  bad: {lines: ['no-such-command load CUDA']}\n")
    made = certify(jobs, "box")
    found = outcomes(made)
    assert (found["good: modules"], found["good: python"]) == ("passed", "passed")
    assert found["bad: modules"] == "failed"
    assert "a module could not be loaded" in reason(made, "bad: modules")
    assert "bad: MPI" not in found
    assert not made.passed
    failed = next(check for check in made.checks if check.name == "bad: modules")
    assert "no-such-command" in failed.output
    assert [job.id for job in jobs.ls()] == [failed.job]


@pytest.mark.thorough
def test_only_the_software_that_was_named_is_tried(tmp_path: Path) -> None:
    jobs = box(tmp_path, "software:\n  good: {lines: [export GOOD=1]}\n  bad: {lines: ['no-such-command']}\n")
    assert certify(jobs, "box", software=["good"]).passed
    unknown = certify(jobs, "box", software=["unheard-of"])
    assert "refused: " in reason(unknown, "unheard-of: modules")
    assert "no software 'unheard-of'" in reason(unknown, "unheard-of: modules")


def test_every_declared_file_system_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it's a disk" / "fast").mkdir(parents=True)
    monkeypatch.setenv("FAST_DISK", f"{tmp_path}/it's a disk")
    jobs = box(
        tmp_path,
        "file_systems:\n"
        "  fast: {path: $FAST_DISK/fast, purpose: scratch}\n"
        f'  quoted: {{path: "{tmp_path}/it\'s a disk/${{LOGNAME_OF_NOBODY}}", purpose: scratch}}\n'
        "  gone: {path: /no/such/folder; echo hi, purpose: project}\n"
        "  kernel: {path: /proc, purpose: node}\n"
        "  private: {path: /p/<project>, purpose: project}\n",
    )
    made = certify(jobs, "box")
    names = ("fast", "quoted", "gone", "kernel", "private")
    found = {name: outcomes(made)[f"file system {name}"] for name in names}
    assert found == {
        "fast": "passed",
        "quoted": "failed",
        "gone": "failed",
        "kernel": "not applicable",
        "private": "not applicable",
    }
    assert reason(made, "file system fast") == f"{tmp_path}/it's a disk/fast was written and read"
    assert reason(made, "file system quoted").endswith("${LOGNAME_OF_NOBODY} is not set in a job")
    assert reason(made, "file system gone") == "/no/such/folder; echo hi is not there"
    assert list((tmp_path / "it's a disk" / "fast").iterdir()) == []


def test_gpus_are_counted_against_those_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = box(tmp_path, partition="cores: 2, gpu: {count: 2, model: A100}")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert reason(certify(jobs, "box"), "GPUs") == "nvidia-smi is not installed, which counts them"
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'GPU 0: A100 (UUID: GPU-1)'\necho 'GPU 1: A100 (UUID: GPU-2)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    made = certify(jobs, "box")
    assert outcomes(made)["GPUs"] == "passed"
    assert reason(made, "GPUs") == "2 × A100 requested, 2 seen"
    program.write_text("#!/bin/sh\necho 'GPU 0: A100 (UUID: GPU-1)'\n")
    made = certify(jobs, "box")
    assert (outcomes(made)["GPUs"], reason(made, "GPUs")) == ("failed", "2 × A100 requested, 1 seen")


def test_an_mpirun_that_refuses_root_says_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "mpirun"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'mpirun has detected an attempt to run as root.' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    made = certify(box(tmp_path), "box")
    assert outcomes(made)["tasks started together"] == "not applicable"
    assert "OMPI_ALLOW_RUN_AS_ROOT" in reason(made, "tasks started together")


def test_what_the_system_cannot_be_asked_is_said_before_any_job(tmp_path: Path) -> None:
    jobs = box(tmp_path)
    with pytest.raises(NotFound, match="no system named 'bxo'"):
        certify(jobs, "bxo")
    with pytest.raises(InvalidDocument, match="no partition 'there'"):
        certify(jobs, "box", resources=Resources(partition="there"))
    with pytest.raises(InvalidDocument, match="need an account"):
        plan(jobs, "deep")
    assert jobs.ls() == []


def test_what_a_scheduler_has_no_word_for_does_not_apply_and_what_it_does_not_answer_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "flux"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'flux-batch: ERROR: the broker is on fire' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    jobs = box(tmp_path, "launch: {launcher: flux}\n")
    (tmp_path / "box.yaml").write_text((tmp_path / "box.yaml").read_text().replace("dialect: shell", "dialect: flux"))
    made = certify(jobs, "box")
    assert (outcomes(made)["array"], reason(made, "array")) == ("not applicable", "Flux has no arrays of batch jobs")
    assert {outcomes(made)[name] for name in ("job", "cancel", "python")} == {"failed"}
    assert "the broker is on fire" in reason(made, "job")


@pytest.mark.parametrize("trouble", [Transient("the line is cut"), KeyboardInterrupt()])
def test_nothing_of_a_suite_that_breaks_off_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: BaseException
) -> None:
    jobs = box(tmp_path)
    submit = jobs.submit

    def submits_and_breaks(spec: JobSpec, *, system: str) -> JobStatus:
        job = submit(spec, system=system)
        if "sleep" in spec.argv[-1]:
            raise trouble
        return job

    monkeypatch.setattr(jobs, "submit", submits_and_breaks)
    if isinstance(trouble, Transient):
        made = certify(jobs, "box")
        assert (outcomes(made)["cancel"], reason(made, "cancel")) == ("failed", "the line is cut")
        assert outcomes(made)["job"] == "passed"
    else:
        with pytest.raises(KeyboardInterrupt):
            certify(jobs, "box")
    ends = jobs.wait([job.id for job in jobs.ls()], timeout_s=60)
    assert ends
    assert all(end.is_over for end in ends)


@pytest.mark.thorough
def test_a_job_that_takes_too_long_is_cancelled_and_has_failed(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_on(slurm_cluster, tmp_path, monkeypatch)
    for node in slurm_cluster.nodes:
        slurm_cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        made = certify(jobs, "rig", patience_s=3)
    finally:
        for node in slurm_cluster.nodes:
            slurm_cluster.node_resume(node)
    assert outcomes(made)["job"] == "failed"
    assert reason(made, "job") == "it was queued for 3 s and was cancelled"
    assert outcomes(made)["cancel"] == "passed"
    slurm_cluster.wait_idle()


def test_a_slurm_passes_through_its_own_scheduler(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_on(slurm_cluster, tmp_path, monkeypatch, more="file_systems: {tmp: {path: /tmp, purpose: node}}\n")
    made = certify(jobs, "rig", resources=Resources(nodes=2, memory_gib=0.5))
    assert made.passed, [check for check in made.checks if check.outcome == "failed"]
    found = outcomes(made)
    assert [found[name] for name in (*EVERYWHERE, "tasks started together", "file system tmp")] == ["passed"] * 6
    assert reason(made, "tasks started together") == "4 processes on 2 nodes"
    gpus = certify(jobs, "rig", resources=Resources(partition="gpu"))
    assert reason(gpus, "GPUs") == "cannot count GPUs of vendor other"


@pytest.mark.thorough
def test_distributed_torch_and_mpi_say_hello_on_slurm(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch", "mpi4py"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    jobs = jobs_on(slurm_cluster, tmp_path, monkeypatch, more=torch_lines(), launcher="mpirun")
    made = certify(jobs, "rig", software=["ddp"], resources=Resources(memory_gib=1.8))
    assert made.passed, [check for check in made.checks if check.outcome == "failed"]
    found = outcomes(made)
    assert (found["torch, distributed"], found["ddp: torch, distributed"]) == ("not applicable", "passed")
    assert (found["MPI"], found["ddp: MPI"]) == ("not applicable", "passed")
    assert reason(made, "ddp: torch, distributed") == "2 processes on 1 node"
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in reason(made, "ddp: python")
