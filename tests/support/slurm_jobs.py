"""The queue on the real Slurm of the tests: a system file made from the cluster, and jobs that go to it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster

from fairmile.jobs.machines import Machines
from fairmile.jobs.queue import Jobs

NAME = "rig"


def system_text(cluster: SlurmCluster, *, launcher: str = "srun", more: str = "") -> str:
    """Return the system file of a cluster; `more` are further lines."""
    return (
        f"name: {NAME}\ntitle: The Slurm of the tests\narchitecture: any\n"
        f"scheduler: {{dialect: slurm, accounting: {str(cluster.with_accounting).lower()}}}\n"
        f"default_partition: cpu\nmodule_system: none\nlaunch: {{launcher: {launcher}}}\npartitions:\n"
        f"  cpu: {{nodes: {len(cluster.nodes) - 1}, cores: {cluster.cores}, memory_gib: 1.9, max_time: 1h}}\n"
        f"  gpu: {{nodes: 1, cores: {cluster.cores}, max_time: 1h, gpu: {{count: 2, model: make-believe, "
        "vendor: other}}\n" + more
    )


def torch_lines() -> str:
    """Return the lines of a system file with a set `ddp`: the PyTorch of the Python that runs the tests."""
    bin = Path(sys.executable).parent
    return f"software:\n  ddp:\n    lines: ['export PATH={bin}:$PATH']\n    launch: torchrun\n"


def jobs_on(
    cluster: SlurmCluster, folder: Path, patch: pytest.MonkeyPatch, *, launcher: str = "srun", more: str = ""
) -> Jobs:
    """Return a queue whose system `rig` is the cluster, asked as often as a test wants to know."""
    for name, value in cluster.environ.items():
        patch.setenv(name, value)
    file = folder / f"{NAME}.yaml"
    file.write_text(system_text(cluster, launcher=launcher, more=more))
    return Jobs(folder / "jobs", Machines([], folder / "jobs", reaches={NAME: {"file": str(file)}}), ask_every_s=1.0)
