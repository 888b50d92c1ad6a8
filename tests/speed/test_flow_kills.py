"""A flow over this machine, an ssh host and Slurm whose coordinator is killed at random moments runs each step once."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from far_systems import plain_system
from slurm_cluster import SlurmCluster
from slurm_jobs import system_text
from ssh_server import SshServer
from sweep_making import environ_of, workspace_here

SPEED = Path(__file__).parents[2] / "speed"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flow_kills", SPEED / "flow_kills.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flow_kills"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_no_step_of_a_killed_flow_runs_twice_or_is_lost(
    tmp_path: Path, sshd: SshServer, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm_cluster.environ.items():
        monkeypatch.setenv(name, value)
    random.seed(1)
    (tmp_path / "rig.yaml").write_text(system_text(slurm_cluster))
    workspace_here(tmp_path, plain_system(sshd, tmp_path) + f"  rig: {{file: {tmp_path / 'rig.yaml'}}}\n")
    _, counts = _load().carry_out(tmp_path / "flow", environ_of(tmp_path), chains=3, kills=4, longest_s=6.0)
    assert set(counts.values()) == {1}
    assert len(counts) == 3 * 3 + 2
    assert (tmp_path / "flow" / "lines.txt").read_text().strip() == "3"
