"""Work that outlives the request which starts it: a command of its own, which goes on when the server ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.jobs.spec import Resources
from fairmile.workspace import Workspace

_NAME = r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$"
_LOOK_S = 0.1
_PATIENCE_S = 10.0  # most commands that cannot begin say so sooner


class Where(BaseModel):
    """The part of a request that says where work runs: on this machine, or as a job on a system."""

    model_config = ConfigDict(extra="forbid")

    on: str = Field("", max_length=100, pattern=_NAME, description="system to run on; empty: this machine")
    partition: str = Field("", max_length=100, pattern=_NAME)

    def changes(self, workspace: Workspace) -> dict[str, Any]:
        """Return the fields of a run that say so; NotFound where no such system is known."""
        if not self.on:
            if self.partition:
                raise UsageError(f"a partition needs a system: {self.partition}", hint="name it with `on`")
            return {}
        workspace.systems[self.on]
        return {"system": self.on, "resources": Resources(partition=self.partition)}

    def words(self) -> list[str]:
        """Return the options of a command that say so."""
        partition = ["--partition", self.partition] if self.partition else []
        return ["--on", self.on, *partition] if self.on else []


class StartedDict(TypedDict):
    command: list[str]
    follow: str


@dataclass(frozen=True, repr=False)
class Started(Result):
    """A command that was started, and where its progress can be asked for."""

    command: tuple[str, ...]
    follow: str = "/api/status"
    printed: str = ""  # the JSON of one that has ended already

    def to_dict(self) -> StartedDict:
        return {"command": list(self.command), "follow": self.follow}


def start(
    workspace: Workspace, *words: str, cwd: Path | None = None, has_begun: Callable[[], bool] = lambda: False
) -> Started:
    """Start a command of ours; return when `has_begun`, or when it is still running after some seconds.

    What it says when it fails sooner is raised.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115  the process and the thread that waits for it share it
    process = subprocess.Popen(
        [sys.executable, "-m", "fairmile", *words, "--json"],
        cwd=cwd,
        env=dict(workspace.environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    ended = threading.Event()
    threading.Thread(target=_wait, args=(process, ended), daemon=True).start()
    waited = 0.0
    while waited < _PATIENCE_S and not ended.wait(_LOOK_S) and not has_begun():
        waited += _LOOK_S
    if ended.is_set() and process.returncode:
        raise UsageError(*_failure(output))
    with output:
        output.seek(0)
        printed = output.read().decode("utf-8", "replace") if ended.is_set() else ""
    return Started(("fairmile", *words), printed=printed)


def program_of(workspace: Workspace, name: str) -> str:
    """Return the handle of an asset that is to be run: never a path, a file or a command from outside."""
    return str(workspace.catalog.get(name).handle)


def _wait(process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    process.wait()
    ended.set()


def _failure(output: IO[bytes]) -> tuple[str]:
    """Return what a command printed of its failure."""
    with output, contextlib.suppress(ValueError, KeyError, TypeError):
        output.seek(0)
        error = json.loads(output.read())["error"]
        return (": ".join(filter(None, (error["message"], error["hint"]))),)
    return ("the command failed",)
