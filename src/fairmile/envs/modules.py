"""Modules of a cluster in an environment, through Lmod or environment-modules, whichever the machine has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmile.base.errors import SystemFailure
from fairmile.base.words import did_you_mean
from fairmile.envs.inputs import file_sha256
from fairmile.envs.shells import ModuleLine, render
from fairmile.envs.spec import EnvironmentSpec
from fairmile.envs.steps import Step, Tools, Use

_TELL = (
    r'printf "%s\n" "${LOADEDMODULES-}" "${_LMFILES_-}" '
    '"${LMOD_VERSION:+Lmod $LMOD_VERSION}${MODULES_CMD:+environment-modules}"'
)
# Lmod and environment-modules print lists to stderr unless told otherwise, in ways that differ.
_AVAILABLE = "module -t avail 2>&1"


def make_steps(spec: EnvironmentSpec, tools: Tools) -> Sequence[Step]:
    """Return the step that loads the modules of a specification."""
    return (ModulesStep(spec.modules),) if spec.modules else ()


def lines(modules: Sequence[str]) -> tuple[str, ...]:
    """Return modules and lines as lines for a shell: a name is loaded, a line stays as it is."""
    return tuple(each if " " in each else f"module load {each}" for each in modules)


class ModulesStep:
    """Modules, loaded before all else; nothing of them goes into the prefix."""

    name = "modules"

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = tuple(modules)
        self._lines = lines(modules)

    def describe(self) -> str:
        return f"load modules: {'; '.join(self._lines)}"

    def material(self) -> Any:
        return {"lines": list(self._lines)}

    def run(self, prefix: Path, tools: Tools) -> Mapping[str, Any]:
        done = self._output_of(tools, self._lines, _TELL)
        if done is None:
            raise self._failure(tools)
        loaded, files, system = [*done.split("\n"), "", "", ""][:3]
        names = [each for each in loaded.split(":") if each]
        for wanted in (each for each in self._modules if " " not in each):
            # The oldest module systems end with 0 even when there is no such module.
            if not any(each == wanted or each.startswith(f"{wanted}/") for each in names):
                raise SystemFailure(f"the module {wanted} is not loaded after `module load {wanted}`")
        return {
            "system": system,
            "modules": names,
            "files": {each: file_sha256(each) for each in files.split(":") if Path(each).is_file()},
        }

    def use(self, prefix: Path) -> Use:
        return Use(tuple(ModuleLine(line) for line in self._lines))

    def trouble(self, tools: Tools) -> SystemFailure | None:
        """Return why the modules cannot be loaded on this machine, or None where they can."""
        return None if self._output_of(tools, self._lines, "true") is not None else self._failure(tools)

    def _output_of(self, tools: Tools, lines: Sequence[str], command: str) -> str | None:
        """Return what a command prints after the lines were run, or None when one of them fails."""
        script = "\n".join([*render([ModuleLine(line) for line in lines]), command])
        done = replace(tools, acts=()).run(["bash", "--noprofile", "--norc", "-c", script], check=False, quiet=True)
        return done.stdout if done.exit_code == 0 else None

    def _failure(self, tools: Tools) -> SystemFailure:
        """Return what to say: the line that fails, what the module system says, the nearest module that is there."""
        for number in range(1, len(self._lines) + 1):
            script = "\n".join(render([ModuleLine(line) for line in self._lines[:number]]))
            done = replace(tools, acts=()).run(["bash", "--noprofile", "--norc", "-c", script], check=False, quiet=True)
            if done.exit_code == 0:
                continue
            tools.on_line(done.stderr)
            messages = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            if not any(line.startswith("fairmile: failed") for line in messages):
                return SystemFailure(
                    messages[-1].removeprefix("fairmile: ") if messages else "modules cannot be loaded here"
                )
            known = (self._output_of(tools, self._lines[: number - 1], _AVAILABLE) or "").split()
            word = self._lines[number - 1].split()[-1]
            near = did_you_mean(word, [each for each in known if not each.endswith((":", "/"))])
            message = " ".join(line for line in messages if not line.startswith("fairmile: failed"))
            return SystemFailure(
                f"`{self._lines[number - 1]}` failed" + (f": {message[:400]}" if message else ""), hint=near or None
            )
        return SystemFailure("the modules cannot be loaded", hint="load them yourself to see their messages")
