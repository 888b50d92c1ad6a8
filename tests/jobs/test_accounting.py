"""What all users' jobs took, read from Slurm's accounting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster

from fairmile.base.commands import Here, Result
from fairmile.base.errors import Unsupported, UsageError
from fairmile.jobs.accounting import GROUPINGS, SystemUsage, parse_jobs, read_usage

# As sacct 22.05 prints it, with two projects, a step each, and a job that runs.
RECORDS = """\
7|ada|tides|gpu|COMPLETED|3600|4|billing=4,cpu=4,gres/gpu=2,mem=8G,node=1|cpu=4,mem=8G|02:00:00|||100|160
7.batch|||gpu|COMPLETED|3600|4|cpu=4,mem=8G,node=1||02:00:00|2147483648|0|160|160
7.0|||gpu|COMPLETED|3600|4|cpu=4,mem=8G,node=1||01:00:00|1073741824|0|160|160
8|bob|tides|cpu|TIMEOUT|1800|2|billing=2,cpu=2,mem=400M,node=1|cpu=2,mem=400M|00:30:00||7200000|100|400
9_1|bob|waves|cpu|CANCELLED by 1001|0|0||cpu=1,mem=100M|00:00:00|||100|Unknown
10|bob|waves|cpu|RUNNING|60|1|cpu=1,mem=100M,node=1|cpu=1,mem=100M|00:00:00|||100|120
11|eve|waves|cpu|OUT_OF_MEMORY|3600|1|billing=1,cpu=1,mem=100M,node=1|cpu=1,mem=100M|00:30:00|||100|100
11.batch|||cpu|OUT_OF_MEMORY|3600|1|cpu=1,mem=100M,node=1||00:30:00|104857600|0|100|100
"""


def usage(by: str) -> SystemUsage:
    return SystemUsage("lake", 86400, by, parse_jobs(RECORDS, GROUPINGS[by]))


def test_hours_and_efficiency_are_summed_for_each_project() -> None:
    tides, waves = usage("project")
    assert (tides.name, tides.jobs, tides.cpu_hours, tides.gpu_hours) == ("tides", 2, 5.0, 2.0)
    assert tides.cpu_efficiency == pytest.approx(2.5 / 5)
    assert (waves.jobs, waves.cpu_hours, waves.cpu_efficiency) == (2, 1.0, 0.5)


def test_memory_is_what_was_asked_for_and_what_the_largest_task_used() -> None:
    tides, waves = usage("project")
    assert tides.memory_asked_bytes == pytest.approx(((8 << 30) * 2 + (400 << 20)) / 3)
    assert tides.memory_efficiency == 0.25  # of the job that was measured
    assert waves.memory_efficiency == 1.0


def test_energy_wait_and_failures_are_told_where_they_are_known() -> None:
    report = usage("project")
    tides, waves = report
    assert (tides.energy_j, waves.energy_j) == (7_200_000, None)
    assert tides.wait_s == 180
    assert tides.failures == {"TIMEOUT": 1}
    assert waves.failures == {"CANCELLED": 1, "OUT_OF_MEMORY": 1}
    assert report.total.jobs == 4  # a job that runs has not taken all that it will


def test_the_energy_of_a_job_is_that_of_its_longest_step_where_its_own_row_has_none() -> None:
    counted = RECORDS.replace("|2147483648|0|", "|2147483648|3600000|").replace("|1073741824|0|", "|1073741824|900000|")
    tides, _ = SystemUsage("lake", 86400, "project", parse_jobs(counted, "Account"))
    assert tides.energy_j == 7_200_000 + 3_600_000


class Answers(Here):
    """A runner whose programs print what is given for them."""

    def __init__(self, **printed: str) -> None:
        self._printed = printed

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        return Result(tuple(argv), 0, self._printed[argv[0]], "", 0.0)


def test_gpu_hours_are_unknown_where_the_accounting_counts_no_gpus() -> None:
    records = RECORDS.replace("gres/gpu=2,", "")
    report = read_usage(Answers(sacct=records, sacctmgr="cpu|\nmem|\n"), "slurm", "lake", 60, "project")
    assert [each.gpu_hours for each in (*report, report.total)] == [None, None, None]
    assert "AccountingStorageTRES" in report.notes[0]
    report = read_usage(Answers(sacct=records, sacctmgr="cpu|\ngres|gpu\n"), "slurm", "lake", 60, "project")
    assert (report.total.gpu_hours, report.notes) == (0.0, [])


def test_users_and_partitions_are_groups_too() -> None:
    assert [each.name for each in usage("user")] == ["ada", "bob", "eve"]
    assert {each.name for each in usage("partition")} == {"gpu", "cpu"}


def test_other_groups_and_schedulers_are_refused() -> None:
    with pytest.raises(UsageError, match="usage cannot be grouped by 'projekt'") as refused:
        read_usage(Here(), "slurm", "lake", 60, "projekt")
    assert "project" in str(refused.value.hint)
    with pytest.raises(Unsupported, match="the accounting of pbs is not read"):
        read_usage(Here(), "pbs", "lake", 60, "user")


@pytest.mark.thorough
def test_a_real_accounting_tells_what_jobs_took(
    slurm_with_accounting: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = slurm_with_accounting
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    before = read_usage(Here(), "slurm", "test", 3600, "user").total
    for line, *options in (("sleep 2", "-p", "gpu", "--gres=gpu:2"), ("exit 3",)):
        submit = ("sbatch", "--wait", "-n1", "-o", str(tmp_path / "%j.out"), *options)
        cluster.run(*submit, f"--wrap={line}", check=False)
    deadline = time.monotonic() + 60
    while (report := read_usage(Here(), "slurm", "test", 3600, "user")).total.jobs < before.jobs + 2:
        assert time.monotonic() < deadline, cluster.run("sacct", "-a").stdout
        time.sleep(0.2)
    assert report.total.failures.get("FAILED", 0) == before.failures.get("FAILED", 0) + 1
    assert report.total.cpu_hours > before.cpu_hours
    assert report.total.gpu_hours is not None and before.gpu_hours is not None
    assert report.total.gpu_hours - before.gpu_hours > 2 * 1 / 3600
    assert report.total.wait_s is not None
    assert report.total.memory_asked_bytes
