"""Every executor of runs passes the same suite, with the real thing: processes, a Slurm, an ssh server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from far_systems import FAR, plain_system, slurm_system
from slurm_cluster import SlurmCluster
from sweep_making import environ_of, workspace_here, workspace_on

from fairmile.jobs.queue import Jobs
from fairmile.runs.execute.scheduler import Packing
from fairmile.testing.executors import ExecutorSetup, ExecutorSuite
from fairmile.workspace import Workspace


def remote(folder: Path, systems: str) -> Workspace:
    workspace = workspace_here(folder, systems)
    # A test wants to know sooner than a scheduler should be asked.
    workspace.__dict__["jobs"] = Jobs(workspace.home / "jobs", workspace.systems, ask_every_s=1.0)
    return workspace


class TestInPlace(ExecutorSuite):
    outlives = False

    @pytest.fixture
    def place(self, tmp_path: Path) -> ExecutorSetup:
        return ExecutorSetup(workspace_here(tmp_path).runs, "in place", tmp_path, environ_of(tmp_path))


class TestLocalPool(ExecutorSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> ExecutorSetup:
        return ExecutorSetup(workspace_here(tmp_path).runs, "pool", tmp_path, environ_of(tmp_path))


class TestScheduler(ExecutorSuite):
    chains = True

    @pytest.fixture
    def place(self, slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExecutorSetup:
        runs = workspace_on(slurm_cluster, tmp_path, monkeypatch).runs
        return ExecutorSetup(runs, "system", tmp_path, {**environ_of(tmp_path), **slurm_cluster.environ}, "rig")


@pytest.mark.thorough
class TestPackedScheduler(ExecutorSuite):
    chains = True

    @pytest.fixture
    def place(self, slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExecutorSetup:
        runs = workspace_on(slurm_cluster, tmp_path, monkeypatch).runs
        environ = {**environ_of(tmp_path), **slurm_cluster.environ}
        return ExecutorSetup(runs, "system", tmp_path, environ, "rig", Packing(pack=4, slots=2))


class SharedSuite(ExecutorSuite):
    """Tests of an executor whose start, or whose first connection, is made once for all of them."""

    @pytest.fixture
    def place(self, shared: ExecutorSetup, request: pytest.FixtureRequest) -> ExecutorSetup:
        folder = shared.folder / request.node.name
        folder.mkdir()
        return replace(shared, folder=folder)


@pytest.mark.thorough
class TestSsh(SharedSuite):
    chains = True

    @pytest.fixture(scope="class")
    def shared(self, tmp_path_factory: pytest.TempPathFactory, sshd: Any) -> ExecutorSetup:
        folder = tmp_path_factory.mktemp("ssh")
        runs = remote(folder, plain_system(sshd, folder)).runs
        return ExecutorSetup(runs, "system", folder, environ_of(folder), FAR)


@pytest.mark.thorough
class TestSchedulerOverSsh(SharedSuite):
    chains = True

    @pytest.fixture(scope="class")
    def shared(self, slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory, sshd: Any) -> ExecutorSetup:
        folder = tmp_path_factory.mktemp("slurm")
        runs = remote(folder, slurm_system(sshd, slurm_cluster, folder)).runs
        return ExecutorSetup(runs, "system", folder, environ_of(folder), FAR)


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("parsl") is None, reason="needs the Python package parsl")
# Sockets of Parsl are closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
class TestPilot(SharedSuite):
    @pytest.fixture(scope="class")
    def shared(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecutorSetup]:
        """Pilot jobs that stay: six processes that import Parsl."""
        folder = tmp_path_factory.mktemp("pilot")
        alone = ExecutorSetup(workspace_here(folder).runs, "pilot", folder, environ_of(folder))
        with alone.executor() as pilot:
            yield replace(alone, kept=pilot)
