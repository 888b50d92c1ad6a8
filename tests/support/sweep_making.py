"""Workspaces for sweeps: here, and with the Slurm of the tests as the system `rig`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_jobs import system_text

from fairmile.jobs.queue import Jobs
from fairmile.workspace import Workspace

_PATIENCE_S = 240.0


def wait_until(condition: Callable[[], object], process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for a condition; the test fails when it is never met, or the process ends before it is."""
    deadline = time.monotonic() + _PATIENCE_S
    pause_s = 0.02
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            pytest.fail(f"it ended with {process.returncode}")
        if time.monotonic() > deadline:
            pytest.fail("it waits in vain")
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.2)  # asking keeps a core from what is waited for


def workspace_here(folder: Path, systems: str = "") -> Workspace:
    """Return a workspace below a folder; `systems` are lines of its settings."""
    settings = folder / "settings" / "fairmile"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "config.yaml").write_text(f"systems:\n{systems}" if systems else "")
    return Workspace.open(environ=environ_of(folder), cwd=folder)


def environ_of(folder: Path) -> dict[str, str]:
    """Return the variables under which a command finds that workspace."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRMILE_")}
    return {
        **environ,
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "settings"),
        "FAIRMILE_HOME": str(folder / "home"),
    }


def workspace_on(cluster: SlurmCluster, folder: Path, patch: pytest.MonkeyPatch) -> Workspace:
    """Return a workspace whose system `rig` is a cluster."""
    file = folder / "rig.yaml"
    file.write_text(system_text(cluster))
    for name, value in cluster.environ.items():
        patch.setenv(name, value)
    workspace = workspace_here(folder, f"  rig: {{file: {file}}}\n")
    # A test wants to know sooner than a scheduler should be asked.
    workspace.__dict__["jobs"] = Jobs(workspace.home / "jobs", workspace.systems, ask_every_s=1.0)
    return workspace
