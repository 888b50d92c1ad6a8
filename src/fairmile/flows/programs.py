"""What a step executes: the command, its code and its environment, each with a digest that tells what changed.

Code is the files that a command names, the modules beside them that they import, and what the step lists under `code`.
Files that steps declare as inputs or outputs are data, and no code.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.digest import sha256_hex
from fairmile.base.digest_cache import DigestCache
from fairmile.base.errors import NotFound, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.placeholders import names_in
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import closest, slug
from fairmile.flows.graph import is_wild, placed
from fairmile.flows.model import Flow, Step
from fairmile.jobs.spec import Resources
from fairmile.resolve import Word
from fairmile.runs.arguments import start_program
from fairmile.runs.execute import capture
from fairmile.runs.record.spec import Input, RunSpec
from fairmile.sweeps.notebooks import notebook_argv

if TYPE_CHECKING:
    from fairmile.envs.envs import Envs
    from fairmile.runs.runs import Runs

_SCRIPTS = (".py", ".sh", ".R", ".jl", ".pl")
_MAY_BE_PATH = lazy_pattern(r"[/=]|^-m$")
_ENCODER = json.JSONEncoder(sort_keys=True)
# Parts of a step that the model has checked as far as a run does.
_CANNOT_FAIL = frozenset({"command", "shell", "inputs", "outputs", "after", "over", "params", "folder", "when"})


@dataclass(frozen=True)
class Program:
    """What a step executes, apart from the values and inputs of its nodes."""

    word: str  # what `fairmile run` is given; empty where the command stands in the step
    argv: tuple[str, ...]  # with placeholders
    parts: Mapping[str, Any]
    digest: str
    shared: Mapping[str, Any]  # parameters of the flow that it mentions
    fields: Mapping[str, Any]  # of its runs
    resolved: RunSpec | None = None  # what a word means

    @cached_property
    def spec(self) -> RunSpec:
        """The specification of its runs; most plans of thousands of steps need none."""
        return self.resolved or RunSpec(**self.fields)


class Programs:
    """Finds the programs of steps; each is looked at once."""

    def __init__(
        self,
        flow: Flow,
        runs: Callable[[], Runs],
        envs: Callable[[], Envs],
        environ: Mapping[str, str],
        digests: DigestCache,
    ) -> None:
        self._flow, self._runs, self._envs, self._environ, self._digests = flow, runs, envs, environ, digests
        self._known: dict[str, Program] = {}
        self._environments: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._folders: dict[str, Path] = {}
        self._listings: dict[Path, Collection[str] | None] = {}
        self._starts: dict[tuple[str, Path], tuple[str, ...]] = {}
        self._data = self._declared()

    def _declared(self) -> Collection[str]:
        """Return the files that are data, as absolute paths."""
        folders = {step.folder: os.path.join(self._flow.folder, step.folder) for step in self._flow.steps.values()}
        return {
            placed(folders[step.folder], each)
            for step in self._flow.steps.values()
            for each in (*step.outputs, *step.inputs.values())
            if "{" not in each and not is_wild(each)
        }

    def folder(self, step: Step) -> Path:
        """Return where a step runs."""
        if step.folder not in self._folders:
            folder = os.path.normpath(os.path.join(self._flow.folder or os.getcwd(), step.folder))
            self._folders[step.folder] = Path(folder)
        return self._folders[step.folder]

    def check(self, name: str, step: Step) -> None:
        """Raise what is wrong with the program of a step, as far as files and the catalog tell."""
        program = self.of(name)
        argv, folder = program.argv, self.folder(step)
        if self._listing(folder) is None and not folder.is_dir():
            raise NotFound(f"there is no folder {folder}")
        scripts = [
            word for word in argv[:3] if word.endswith(_SCRIPTS) and "{" not in word and not word.startswith("-")
        ]
        for word in (argv[:1] if "/" in argv[0] else ()) + tuple(scripts[:1]) if step.command else ():
            if not (folder / word).exists() and placed(str(folder), word) not in self._data:
                near = closest(os.path.basename(word), os.listdir(folder), 1)
                raise NotFound(f"there is no file {word}", hint=f"did you mean {near[0]}?" if near else None)

    def of(self, name: str) -> Program:
        """Return the program of a step."""
        if name not in self._known:
            self._known[name] = self._program(name, self._flow.steps[name])
        return self._known[name]

    def _listing(self, folder: Path) -> Collection[str] | None:
        """Return what lies in a folder, which is looked at once; None where that cannot be told."""
        if folder not in self._listings:
            try:
                self._listings[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listings[folder] = None
        return self._listings[folder]

    def _program(self, name: str, step: Step) -> Program:
        word, fields = self._fields(name, step)
        spec = self._resolved(step, word, fields) if word else None
        argv = spec.argv if spec is not None else fields["argv"]
        environment = spec.environment if spec is not None else step.environment
        code = fields["code"] if spec is None else spec.code
        folder = self.folder(step)
        parts: dict[str, Any] = {"command": list(argv), "code": self._code(step, argv, code, folder)}
        parts["environment"] = self._environment(environment, argv)
        own = {"env": dict(step.env), "seed": step.seed, "asset": spec.asset if spec else "", "folder": step.folder}
        parts |= {key: value for key, value in own.items() if value not in ("", {}, None)}
        shared: dict[str, Any] = {}
        if self._flow.params:
            words = (*argv, *step.env.values(), *step.outputs, *step.inputs.values())
            mentioned = {part for each in names_in(words, self._flow.params.__contains__) for part in each.parts}
            params = self._flow.params.items()
            shared = {key: value for key, value in params if key in mentioned and key not in step.params}
        program = Program(word, argv, parts, quick_digest(parts), shared, fields, spec)
        if not step.model_fields_set <= _CANNOT_FAIL:
            _ = program.spec  # refuses what no run may have before anything starts
        return program

    def _fields(self, name: str, step: Step) -> tuple[str, dict[str, Any]]:
        """Return the word that `fairmile run` takes, empty where the step has a command, and the fields of its runs."""
        folder = self.folder(step)
        fields: dict[str, Any] = {
            "name": slug(name.replace("/", "-"))[:64].strip("-._") or "step",
            "folder": str(folder),
            "code": step.code,
            "environment": step.environment,
            "metrics": step.metrics,
            "seed": step.seed,
            "timeout_s": step.timeout or None,
            "system": step.system,
            "resources": self._resources(step),
        }
        if step.run:
            path = folder / step.run
            given = {key: value for key, value in fields.items() if value not in ("", (), {}, None, Resources())}
            if path.exists():
                return str(path), given
            if Word(step.run).is_path:
                raise NotFound(f"there is no file {step.run}")
            return step.run, {
                key: value for key, value in given.items() if key != "folder"
            }  # it has a folder of its own
        if step.notebook:
            if not (folder / step.notebook).is_file():
                raise NotFound(f"there is no notebook {step.notebook}")
            fields |= {"argv": notebook_argv(step.notebook), "code": (*step.code, step.notebook)}
        elif step.shell:
            fields["argv"] = ("sh", "-ec", step.shell)
        else:
            fields["argv"] = (*self._start(step.command[0], folder), *step.command[1:])
        return "", fields

    def _start(self, program: str, folder: Path) -> tuple[str, ...]:
        """Return the words that start a program."""
        if (program, folder) not in self._starts:
            self._starts[program, folder] = start_program((program,), folder, self._environ)
        return self._starts[program, folder]

    def _resolved(self, step: Step, word: str, fields: Mapping[str, Any]) -> RunSpec:
        """Return what `fairmile run` makes of a word."""
        used = {*step.params, *(step.over if isinstance(step.over, Mapping) else ()), *self._flow.params}
        # What the inputs are differs from node to node; that the step has them is all that matters here.
        named = {name: Input(path=text) for name, text in step.inputs.items()}
        spec = self._runs().resolve_spec(word, used=used, params=dict(step.params), inputs=named, **fields)
        own = {name: each for name, each in spec.inputs.items() if name not in named}
        return spec.model_copy(update={"inputs": own})

    @staticmethod
    def _resources(step: Step) -> Any:
        return step.resources.model_copy(update={"partition": step.partition}) if step.partition else step.resources

    def _code(self, step: Step, argv: Sequence[str], code: Sequence[str], folder: Path) -> dict[str, str]:
        """Return the digests of the files that a command consists of, by their names."""
        if step.shell:
            try:
                argv = shlex.split(step.shell, comments=True)
            except ValueError:  # it is the shell's business to say so
                argv = step.shell.split()
        argv = [word.rstrip(";") for word in argv]
        here = self._listing(folder)
        if not code and here is not None and not any(word in here or _MAY_BE_PATH.search(word) for word in argv):
            return {}  # as most of thousands of steps
        files = capture.program_files(argv, folder, code)
        digests = {name: self._digest(path) for name, path in files.items() if os.path.abspath(path) not in self._data}
        if missing := [name for name in code if not digests.get(name, "-")]:
            raise NotFound(f"{missing[0]} is listed as code but is not there")
        return digests

    def _digest(self, path: Path) -> str:
        if (known := self._files.get(str(path))) is None:
            known = self._files[str(path)] = capture.digest(path, self._digests)
        return known

    def _environment(self, environment: str, argv: Sequence[str]) -> str:
        """Return a digest of the packages that a program sees."""
        key = environment or argv[0]
        if key not in self._environments:
            if environment:
                planned = self._envs().plan(environment)
                if planned.trouble:
                    raise UsageError(f"environment {environment}: {planned.trouble}")
                self._environments[key] = planned.digest
            else:
                seen = capture.environment(argv, self._environ)
                lines = [seen.python, *seen.lock]
                self._environments[key] = sha256_hex("\n".join(lines).encode()) if any(lines) else ""
        return self._environments[key]


def quick_digest(value: Any) -> str:
    """Return the digest of plain data; our own canonical JSON takes four times as long."""
    return sha256_hex(_ENCODER.encode(value).encode())  # nobody else has to come to the same one
