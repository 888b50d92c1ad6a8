"""The header of a batch script, word for word in every dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.jobs.directives import (
    flux_directives,
    lsf_directives,
    pbs_directives,
    slurm_directives,
)
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.spec import Array, JobSpec, Resources, Signal

Write = Callable[[Request, JobFiles], list[str]]
HERE = JobFiles("/jobs/7", "/jobs/7")
ALL: list[Write] = [slurm_directives, lsf_directives, pbs_directives, flux_directives]


def request(spec: dict[str, Any] | None = None, **changes: Any) -> Request:
    """A job of two nodes with everything that a header can say, unless changed."""
    described = JobSpec(argv=("train",), name="train", **(spec or {}))
    values: dict[str, Any] = {
        "system": "here",
        "nodes": 2,
        "tasks_per_node": 4,
        "cpus_per_task": 8,
        "gpus_per_node": 4,
        "time_s": 5400.0,
        "memory_gib": 64.0,
        "partition": "gpu",
        "account": "zam",
        "qos": "",
        "exclusive": None,
        "launch": "srun",
    }
    return Request(spec=described, **values | changes)


def test_slurm_is_asked_for_everything() -> None:
    assert slurm_directives(request(options=("--hint=nomultithread",)), replace(HERE, key="k-1")) == [
        "#SBATCH --job-name=train",
        "#SBATCH --account=zam",
        "#SBATCH --partition=gpu",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --mem=65536M",
        "#SBATCH --time=01:30:00",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=/jobs/7/out.log",
        "#SBATCH --error=/jobs/7/err.log",
        "#SBATCH --comment=k-1",
        "#SBATCH --hint=nomultithread",
    ]


def test_lsf_is_asked_for_everything() -> None:
    assert lsf_directives(request(starter="mpirun"), replace(HERE, key="k-1")) == [
        "#BSUB -J train",
        "#BSUB -P zam",
        "#BSUB -q gpu",
        "#BSUB -n 8",
        '#BSUB -R "span[ptile=4] affinity[core(8)] rusage[mem=65536MB]"',
        '#BSUB -gpu "num=4:mode=shared"',
        "#BSUB -W 1:30",
        "#BSUB -r",
        "#BSUB -o /jobs/7/scheduler.log",
        "#BSUB -e /jobs/7/scheduler.log",
        "#BSUB -Jd k-1",
    ]


def test_lsf_gives_whole_nodes_where_jsrun_cuts_them() -> None:
    lines = lsf_directives(request(starter="jsrun"), HERE)
    assert "#BSUB -nnodes 2" in lines
    assert not any("-gpu" in line or "-R" in line or "-n " in line for line in lines)


def test_pbs_is_asked_for_everything() -> None:
    assert pbs_directives(request(options=("-l filesystems=home",)), replace(HERE, key="k-1")) == [
        "#PBS -N train",
        "#PBS -A zam",
        "#PBS -q gpu",
        "#PBS -l select=2:ncpus=32:mpiprocs=4:ompthreads=8:ngpus=4:mem=65536mb",
        "#PBS -l place=scatter",
        "#PBS -l walltime=01:30:00",
        "#PBS -r y",
        "#PBS -o /jobs/7/scheduler.log",
        "#PBS -j oe",
        "#PBS -v FAIRMILE_KEY=k-1",
        "#PBS -l filesystems=home",
    ]


def test_pbs_leaves_placing_to_the_system_where_it_has_a_rule() -> None:
    lines = pbs_directives(request(options=("-l place=free",)), HERE)
    assert [line for line in lines if "place" in line] == ["#PBS -l place=free"]


def test_flux_is_asked_for_everything() -> None:
    assert flux_directives(request(), HERE) == [
        "# flux: --job-name=train",
        "# flux: --bank=zam",
        "# flux: --queue=gpu",
        "# flux: --nodes=2",
        "# flux: --nslots=2",
        "# flux: --cores-per-slot=32",
        "# flux: --gpus-per-slot=4",
        "# flux: --time-limit=5400s",
        "# flux: --output=/jobs/7/scheduler.log",
    ]


@for_each(
    "option, lines",
    [
        ("gpus-per-node", ["--gpus-per-node=4"]),
        ("gres", ["--gres=gpu:4"]),
        ("both", ["--gpus-per-node=4", "--gres=gpu:4"]),
        ("none", []),
    ],
)
def test_slurm_is_asked_for_gpus_as_the_system_wants_it(option: str, lines: list[str]) -> None:
    found = slurm_directives(request(gpu_option=option), HERE)
    assert [line for line in found if "gpu:" in line or "gpus" in line] == [f"#SBATCH {line}" for line in lines]


@for_each("write", ALL)
def test_what_is_not_asked_for_is_not_in_the_header(write: Write) -> None:
    least = request(
        cpus_per_task=None, gpus_per_node=0, time_s=None, memory_gib=None, account="", partition="", starter="mpirun"
    )
    text = "\n".join(write(least, HERE)).lower()
    for word in ("gpu", "mem", "time", "-w ", "account", "bank", "-p ", "partition", "--queue", "cpus", "core"):
        assert word not in text


@for_each("write", ALL)
def test_a_partition_that_jobs_do_not_name_is_not_named(write: Write) -> None:
    assert not any("main" in line for line in write(request(partition="main", names_partition=False), HERE))


@for_each(
    "write, line",
    [
        (slurm_directives, "#SBATCH --array=0-9%3"),
        (lsf_directives, '#BSUB -J "train[1-10]%3"'),
        (pbs_directives, "#PBS -J 0-9%3"),
    ],
)
def test_an_array_is_asked_for(write: Write, line: str) -> None:
    files = replace(HERE, stdout="out.{index}.log", stderr="err.{index}.log")
    assert line in write(request({"array": Array(count=10, at_once=3)}), files)


def test_slurm_puts_the_number_of_a_task_into_the_names_of_its_logs() -> None:
    files = JobFiles("/50%", "/50%", "out.{index}.log", "err.{index}.log")
    lines = slurm_directives(request({"array": Array(count=2)}), files)
    assert "#SBATCH --output=/50%%/out.%a.log" in lines


def test_an_array_of_one_task_is_one_for_pbs_too() -> None:
    assert "#PBS -J 0-1:2" in pbs_directives(request({"array": Array(count=1)}), HERE)


@for_each(
    "write, line",
    [
        (slurm_directives, "#SBATCH --signal=B:USR2@90"),
        (lsf_directives, "#BSUB -wa USR2 -wt 2"),
        (flux_directives, "# flux: --signal=USR2@90s"),
    ],
)
def test_a_signal_before_the_limit_is_asked_for(write: Write, line: str) -> None:
    assert line in write(request({"signal": Signal(name="USR2", before_s=90)}), HERE)


@for_each(
    "write, lines",
    [
        (slurm_directives, ["#SBATCH --dependency=afterok:11:12,afternotok:13", "#SBATCH --kill-on-invalid-dep=yes"]),
        (lsf_directives, ['#BSUB -w "done(11) && done(12) && exit(13)" -ti']),
        (pbs_directives, ["#PBS -W depend=afterok:11:12,afternotok:13"]),
        (flux_directives, [f"# flux: --dependency={each}" for each in ("afterok:11", "afterok:12", "afternotok:13")]),
    ],
)
def test_other_jobs_are_waited_for(write: Write, lines: list[str]) -> None:
    files = replace(HERE, after=(("11", "ok"), ("12", "ok"), ("13", "failed")))
    found = write(request(), files)
    assert [line for line in found if line in lines] == lines


def test_times_of_days_are_written_as_slurm_does() -> None:
    assert "#SBATCH --time=2-03:00:01" in slurm_directives(request(time_s=2 * 86400 + 3 * 3600 + 0.5), HERE)


@for_each(
    "write, lines",
    [
        (slurm_directives, ["#SBATCH --output=%x-%j.out", "#SBATCH --error=%x-%j.err"]),
        (lsf_directives, ["#BSUB -o train-%J.out", "#BSUB -e train-%J.err"]),
        (flux_directives, ["# flux: --output=train-{{id}}.out"]),
        (pbs_directives, []),
    ],
)
def test_without_a_folder_the_logs_are_named_after_the_job(write: Write, lines: list[str]) -> None:
    found = write(request(), JobFiles("", ""))
    assert [line for line in found if ".out" in line or ".err" in line or ".log" in line] == lines


@for_each("write", ALL)
def test_a_folder_with_blanks_stays_one_word(write: Write) -> None:
    text = "\n".join(write(request(), JobFiles("/my jobs/7", "/")))
    assert '"/my jobs/7/' in text


@pytest.mark.parametrize("write", ALL)
@pytest.mark.parametrize("folder", ['/a"b', "/a\nb", "/a\\b"])
def test_a_folder_that_could_write_a_header_line_is_refused(write: Write, folder: str) -> None:
    with pytest.raises(UsageError, match="is not allowed in the header"):
        write(request(), JobFiles(folder, folder))


@for_each("write", [slurm_directives, lsf_directives, pbs_directives])
def test_a_key_that_is_no_word_is_refused(write: Write) -> None:
    with pytest.raises(UsageError, match="is not a key"):
        write(request(), replace(HERE, key="a b"))


@for_each("write", ALL)
def test_an_id_that_is_no_word_is_refused(write: Write) -> None:
    with pytest.raises(UsageError, match="is not an id of a job"):
        write(request(), replace(HERE, after=(("1; rm -rf /", "ok"),)))


def test_constraint_reservation_and_exclusive_nodes_are_asked_for() -> None:
    asked = {"resources": Resources(constraint="a&b", reservation="maintenance")}
    lines = slurm_directives(request(asked, exclusive=True, qos="fast"), HERE)
    for line in ('--constraint="a&b"', "--reservation=maintenance", "--exclusive", "--qos=fast"):
        assert f"#SBATCH {line}" in lines
    assert '#BSUB -R "select[a&b]"' in lsf_directives(request(asked), HERE)
    assert "#PBS -q maintenance" in pbs_directives(request(asked), HERE)


def test_a_job_that_must_not_start_again_says_so() -> None:
    once = request({"requeue": False})
    assert "#SBATCH --no-requeue" in slurm_directives(once, HERE)
    assert "#BSUB -rn" in lsf_directives(once, HERE)
    assert "#PBS -r n" in pbs_directives(once, HERE)
