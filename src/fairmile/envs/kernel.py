"""Jupyter kernels that start inside an environment: modules loaded, prefix first, container around it if it has one.

A kernel runs on the machine that its notebook server runs on; starting one through a batch system is not done here:
start the notebook server itself as a job instead.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from fairmile.base.commands import Runner
from fairmile.base.errors import Conflict, SystemFailure
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.words import slug

_LAUNCHER = "start.sh"
_CHECK = "--check"
_CHECK_S = 300.0
_MODE = 0o755


class InstalledKernelDict(TypedDict):
    """A kernel that was installed, or would be, as JSON."""

    kernel: str
    folder: str
    dry_run: bool


@dataclass(frozen=True, repr=False)
class InstalledKernel(Result):
    """A Jupyter kernel and the folder that it was installed in, or would be with `dry_run`."""

    name: str
    folder: Path
    dry_run: bool

    def to_dict(self) -> InstalledKernelDict:
        """Return the kernel as `fairmile env kernel --json` prints it."""
        return {"kernel": self.name, "folder": str(self.folder), "dry_run": self.dry_run}

    def summary(self) -> str:
        """Return the name and the folder."""
        return f"{'would install' if self.dry_run else 'installed'} {self.name} in {self.folder}"


@dataclass(frozen=True)
class Kernel:
    """A kernel as Jupyter finds it: the name of its folder, its kernel.json and the script that starts it."""

    name: str
    spec: Mapping[str, Any]
    launcher: str

    def files(self) -> dict[str, str]:
        """Return the texts of the folder by name, in the order in which they must appear there."""
        return {_LAUNCHER: self.launcher, "kernel.json": json.dumps(self.spec, indent=1, sort_keys=True) + "\n"}


def kernelspec(
    environment: str, preamble: Sequence[str], *, system: str = "", prefix: Path | None = None, wrap: Sequence[str] = ()
) -> Kernel:
    """Return the Jupyter kernel of an environment.

    `preamble` are lines for bash that make the environment; `wrap` is what stands before its programs. The `python3`
    that is found after them must have the package ipykernel.
    """
    shown = f"{environment} ({system})" if system else environment
    about = {"environment": environment, "system": system, "prefix": str(prefix) if prefix is not None else ""}
    spec: dict[str, Any] = {
        "argv": ["bash", f"{{resource_dir}}/{_LAUNCHER}", "{connection_file}"],
        "display_name": shown,
        "language": "python",
        # A signal may not get through to a program in a container; a message does.
        "interrupt_mode": "message" if wrap else "signal",
        "metadata": {"debugger": True, "fairmile": {key: text for key, text in about.items() if text}},
    }
    return Kernel(slug(f"fairmile-{environment}-{system}".rstrip("-")), spec, _script(preamble, wrap))


def kernels_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Return where Jupyter looks for the kernels of a user."""
    if environ.get("JUPYTER_DATA_DIR"):
        return Path(environ["JUPYTER_DATA_DIR"]) / "kernels"
    data = Path(environ["XDG_DATA_HOME"]) if environ.get("XDG_DATA_HOME") else home / ".local/share"
    return data / "jupyter/kernels"


def check_kernel(kernel: Kernel, runner: Runner) -> None:
    """Make sure that the kernel would start here: its environment can be entered and has ipykernel."""
    command = ["bash", "--noprofile", "--norc", "-c", kernel.launcher, _LAUNCHER, _CHECK]
    result = runner.run(command, check=False, timeout_s=_CHECK_S)
    if result.exit_code == 0:
        return
    messages = (result.stderr.strip() or result.stdout.strip()).splitlines()
    reason = messages[-1] if messages else f"it ended with exit code {result.exit_code}"
    missing = "ipykernel" in reason
    raise SystemFailure(
        f"the kernel {kernel.name} does not start: {reason}",
        hint="add ipykernel to python.packages and rebuild the environment"
        if missing
        else "see the output of its checks",
    )


def install_kernel(kernel: Kernel, folder: Path, *, dry_run: bool = False) -> Path:
    """Put a kernel below `folder`, replacing an older one of ours, and return where it lies.

    Jupyter sees the old kernel or the new one, never half of one. A kernel of that name that is not ours raises
    Conflict and is left alone.
    """
    target = folder / kernel.name
    existing = target / "kernel.json"
    try:
        before = json.loads(existing.read_text(encoding="utf-8"))
        ours = "fairmile" in before.get("metadata", {})
    except FileNotFoundError:
        ours = True
    except (OSError, ValueError, AttributeError, TypeError):
        ours = False
    if not ours:
        raise Conflict(f"{existing} is a kernel not made by Fairmile", hint="move it away, then try again")
    if not dry_run:
        for name, text in kernel.files().items():
            write_atomic(target / name, text, mode=_MODE if name == _LAUNCHER else None)
    return target


def _script(preamble: Sequence[str], wrap: Sequence[str]) -> str:
    before = f"{shlex.join(wrap)} " if wrap else ""
    lines = ["#!/bin/bash", "# Starts a Python kernel in its environment; made by Fairmile.", "set -eu", *preamble]
    # The connection file must be there inside a container too.
    lines += ['FAIRMILE_BIND=$(dirname -- "$1")', "export FAIRMILE_BIND"] if wrap else []
    run = f'exec {before}python3 -m ipykernel_launcher -f "$1"'
    check = f"exec {before}python3 -c 'import ipykernel'"
    return "\n".join([*lines, f'if [ "$1" = {_CHECK} ]; then {check}; fi', run]) + "\n"
