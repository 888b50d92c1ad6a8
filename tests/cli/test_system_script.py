"""`fairmile system script`: the script on stdout, what to know on stderr, refusals with their limits."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from printed_results import assert_printed

from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.cli.job_options import spec_from
from fairmile.jobs.spec import Array, JobSpec, Resources, Signal
from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]
JURECA = ("system", "script", "--on", "jureca", "--software", "ddp", "--nodes", "2", "--time", "1:00:00")
TRAIN = ("--", "python", "train.py")


def test_the_script_is_all_that_stdout_gets(fairmile: Fairmile) -> None:
    result = fairmile(*JURECA, *TRAIN)
    assert result.code == 0
    assert result.out.startswith("#!/bin/bash\n#SBATCH --job-name=job\n#SBATCH --partition=dc-gpu\n#SBATCH --nodes=2\n")
    assert "# MODULES BEGIN jureca ddp\nml --force purge\n" in result.out
    assert result.out.rstrip().endswith("train.py")
    assert "note: jureca requires an account: add one before you submit." in result.err


def test_python_returns_what_the_command_prints(fairmile: Fairmile) -> None:
    resources = Resources(nodes=2, time_s="1:00:00")
    spec = JobSpec(argv=("python", "train.py"), software=("ddp",), resources=resources)
    machine = Workspace.open().systems["jureca"]
    assert_printed(fairmile, machine.script(spec), *JURECA, *TRAIN)
    written = machine.script(spec, output=Path("job.sh"))
    assert Path("job.sh").read_text() == written.text
    assert_printed(fairmile, written, *JURECA, "--output", "job.sh", *TRAIN)


def test_every_value_can_be_set(fairmile: Fairmile) -> None:
    result = fairmile(
        *JURECA,
        *("--partition", "dc-gpu-devel", "--account", "zam", "--qos", "fast", "--gpus-per-node", "2"),
        *("--tasks-per-node", "2", "--cpus-per-task", "16", "--memory", "64GiB", "--exclusive", "--array", "10%3"),
        *("--signal", "usr2@5m", "--name", "mine", "--env", "A=b=c d", "--launch", "srun", "--no-requeue"),
        *("--option", "--hint=nomultithread"),
        *TRAIN,
    )
    assert result.code == 0
    for line in (
        "--partition=dc-gpu-devel",
        "--account=zam",
        "--qos=fast",
        "--gpus-per-node=2",
        "--ntasks-per-node=2",
        "--cpus-per-task=16",
        "--mem=65536M",
        "--exclusive",
        "--array=0-9%3",
        "--signal=B:USR2@300",
        "--job-name=mine",
        "--no-requeue",
        "--hint=nomultithread",
        "--output=%x-%A_%a.out",
    ):
        assert f"#SBATCH {line}\n" in result.out
    assert "export A='b=c d'\n" in result.out
    assert "exec srun --nodes=2 --ntasks=4" in result.out
    assert "an account" not in result.err


def test_where_each_value_comes_from_is_shown(fairmile: Fairmile) -> None:
    lines = fairmile(*JURECA, "--explain", *TRAIN).out.splitlines()
    rows = {line.split("  ")[0]: line.split() for line in lines}
    assert rows["nodes"][1:] == ["2", "requested"]
    assert rows["CPUs per task"][3:] == ["32", "software", "set", "ddp"]
    assert rows["time"][1:] == ["1h", "requested"]
    assert "#SBATCH" not in "".join(lines)


def test_everything_is_given_as_data(fairmile: Fairmile) -> None:
    found = fairmile(*JURECA, "--json", *TRAIN).json
    assert found["system"] == "jureca"
    assert found["values"]["gpus_per_node"] == {"value": 4, "origin": "software set ddp"}
    assert found["script"].startswith("#!/bin/bash\n")
    assert any("account" in note for note in found["notes"])


def test_the_script_is_written_to_a_file(fairmile: Fairmile, place: Path) -> None:
    result = fairmile(*JURECA, "--output", "job.sh", *TRAIN)
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("wrote job.sh\n")
    assert (place / "job.sh").read_text() == fairmile(*JURECA, *TRAIN).out


def test_all_that_the_partition_cannot_give_is_refused_at_once(fairmile: Fairmile) -> None:
    result = fairmile("system", "script", *JURECA[2:], "--gpus-per-node", "8", "--time", "48:00:00", *TRAIN)
    assert (result.code, result.out) == (2, "")
    assert "8 GPUs requested, a node of partition dc-gpu of jureca has 4" in result.err
    assert "2d requested, partition dc-gpu of jureca allows 1d at most" in result.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--on", "jurec"], "did you mean 'jureca'?"),
        (["--on", "jureca", "--partition", "dc-gpus"], "did you mean 'dc-gpu'?"),
        (["--on", "jureca", "--software", "dpd"], "did you mean 'ddp'?"),
        (["--time", "soon"], "'soon' is not a duration"),
        (["--memory", "much"], "'much' is not a size"),
        (["--array", "1-5"], "'1-5' is not an array"),
        (["--array", "0"], "--array: "),
        (["--signal", "KILL@60"], "--signal: "),
        (["--env", "A"], "is not KEY=VALUE"),
        (["--env", "1A=x"], "not an environment variable"),
        (["--name", "a b"], "--name: "),
        (["--account", "a b"], "--account: "),
        (["--option", "x"], "expected an option such as"),
        (["--launch", "magic"], "magic"),
        (["--nodes", "2"], "laptop is a single machine"),
    ],
)
def test_what_cannot_be_used_is_refused(fairmile: Fairmile, arguments: list[str], told: str) -> None:
    result = fairmile("system", "script", *arguments, *TRAIN)
    assert (result.code, result.out) == (2, "")
    assert told in result.err
    assert "Traceback" not in result.err


def test_a_program_is_needed(fairmile: Fairmile) -> None:
    assert fairmile("system", "script", "--on", "jureca").code == 2


def test_words_behind_the_dashes_are_the_programs_own(fairmile: Fairmile, place: Path) -> None:
    # Written for a machine without a scheduler, the script can be run as it is.
    result = fairmile("system", "script", "--", "printf", "%s|", "--json", "--nodes", "it's $HOME", "")
    (place / "job.sh").write_text(result.out)
    done = subprocess.run(["bash", "job.sh"], cwd=place, check=True, capture_output=True, text=True)
    log = place / "out.log"
    assert done.stdout + (log.read_text() if log.exists() else "") == "--json|--nodes|it's $HOME||"


def test_options_become_a_job() -> None:
    spec = spec_from({"argv": ("a", "b"), "array": "5", "signal": "TERM@90", "time": "90m", "memory": "1.5 GiB"})
    assert (spec.argv, spec.array, spec.signal) == (("a", "b"), Array(count=5), Signal(name="TERM", before_s=90))
    assert (spec.resources.time_s, spec.resources.memory_gib) == (5400, 1.5)
    assert spec_from({"argv": ("a",), "signal": "USR2"}).signal == Signal(name="USR2")


def test_every_option_that_cannot_be_read_is_told() -> None:
    with pytest.raises(InvalidDocument) as caught:
        spec_from({"argv": ("a",), "time": "x", "memory": "y", "array": "z"})
    assert [problem.field for problem in caught.value.problems] == ["--array", "--time", "--memory"]
    with pytest.raises(UsageError):
        spec_from({"argv": ("a",), "env": ("A",)})
