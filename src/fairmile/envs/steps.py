"""What every part of an environment is built by: a step, the tools it is given, and what it changes in a shell."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from fairmile.base.commands import Result, Runner
from fairmile.base.errors import SystemFailure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.envs.shells import Act, render, within
from fairmile.envs.spec import EnvironmentSpec

_SHOWN_LINES = 20
# Every program of a build bears this variable, so that whoever takes the build over can end what is left of it.
_BUILD_MARK = "FAIRMILE_BUILD"


def build_mark(work: Path) -> str:
    """Return what stands in the environment of every program of the build that works in a folder."""
    return f"{_BUILD_MARK}={work}"


@dataclass(frozen=True)
class Use:
    """What a program must be given to see what a step built.

    `acts` (Assign, Prepend, Unset, ModuleLine, Source of `fairmile.envs.shells`) are done in the shell, in this
    order, before the program starts. `wrap` is the argv that stands before the program's own: the command of a
    container.
    """

    acts: tuple[Act, ...] = ()
    wrap: tuple[str, ...] = ()


class Step(Protocol):
    """One part of an environment, built into the prefix that all its parts share.

    Making a step changes nothing. `name` is unique in its environment and fit for a file name.
    """

    @property
    def name(self) -> str: ...

    def describe(self) -> str:
        """Return what would be done, in one line for the plan: "install numpy>=2 with uv into Python 3.11.7"."""
        ...

    def material(self) -> Any:
        """Return all that went in, as JSON data: files by their sha256, folders by their tree digest.

        Two steps with the same material build the same thing; what has no influence (paths of inputs, number of
        processors) is left out, and so is every secret. It becomes part of the environment's digest.
        """
        ...

    def run(self, prefix: Path, tools: Tools) -> Mapping[str, Any]:
        """Build into `prefix` and return what is there now, for the lock: each package with version and digest.

        `prefix` exists; steps before this one have run, so it need not be empty, and it may hold what an earlier
        call of this very step left when it was killed: running again must then lead to the same end. It is never
        called again once it returned. It leaves nothing outside `prefix`, `tools.work` and `tools.cache`. What fails
        raises an error that names the program and its last lines (`Tools.run` does).
        """
        ...

    def use(self, prefix: Path) -> Use:
        """Return how a program sees what was built; asked for without `run` too, long after, on another node."""
        ...


@dataclass(frozen=True)
class Tools:
    """What a step is given to work with.

    `bring(address, sha256)` returns a local file that must not be changed. `unpack(archive, folder)` unpacks one
    safely into a new folder. `work` is a folder of this environment for what is in between; it is removed when the
    environment is ready, and what a killed build left there is there still. `cache` is shared by all environments
    and may be emptied at any time. `acts` are those of the steps before, done in the shell of every command.
    `umask` holds for every command, so that a group can share what is built.
    """

    runner: Runner
    bring: Callable[[str, str | None], Path]
    unpack: Callable[[Path, Path], None]
    work: Path
    cache: Path
    environ: Mapping[str, str]
    jobs: int = 1
    umask: int | None = None
    acts: tuple[Act, ...] = ()
    on_line: Callable[[str], None] = field(default=lambda _: None)

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float | None = None,
        quiet: bool = False,
    ) -> Result:
        """Run `argv` in a shell in which `acts` were done, telling every line unless `quiet`.

        With `check` an exit code other than 0 raises SystemFailure with the last lines that it printed.
        """
        last: deque[str] = deque(maxlen=_SHOWN_LINES)

        def take(line: str) -> None:
            last.append(line)
            if not quiet:
                self.on_line(line)

        share = [] if self.umask is None else [f"umask {self.umask:04o}"]
        if not quiet:
            self.on_line("$ " + shlex.join(argv))
        result = self.runner.run(
            within([*share, *render(self.acts)], argv),
            cwd=cwd,
            env={**(env or {}), _BUILD_MARK: str(self.work)},
            timeout_s=timeout_s,
            check=False,
            on_line=take,
        )
        if check and result.exit_code != 0:
            output = "\n".join(last)
            shown = shlex.join(argv)
            raise SystemFailure(
                f"`{shown if len(shown) <= 200 else shown[:197] + '...'}` ended with exit code {result.exit_code}"
                + (f":\n{output}" if output else "")
            )
        return result


# How the steps of a specification's parts are made, each called when that part is given, in the order of the build.
MakeSteps: TypeAlias = Callable[[EnvironmentSpec, Tools], Sequence[Step]]
KINDS: Registry[MakeSteps] = Registry(
    "part of an environment",
    {
        "modules": Plugin("fairmile.envs.modules:make_steps"),
        "conda": Plugin("fairmile.envs.conda:make_steps", extra="conda"),
        "python": Plugin("fairmile.envs.python:make_steps"),
        "builds": Plugin("fairmile.envs.source:make_steps"),
        "container": Plugin("fairmile.envs.containers:make_steps"),
    },
)
