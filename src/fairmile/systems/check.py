"""A system file read and checked: every problem with its line, in words that say what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from pydantic import BaseModel, ValidationError

from fairmile.base.documents import steps_in_file, steps_text
from fairmile.base.errors import InvalidDocument, Problem
from fairmile.base.lazy import lazy_pattern
from fairmile.base.words import Suggestions
from fairmile.base.yaml import Located, load_located
from fairmile.systems.model import (
    Contradictions,
    FileSystem,
    Gpu,
    LaunchRules,
    Partition,
    SchedulerRules,
    SoftwareSet,
    Steps,
    System,
)

_FORMS: dict[str, type[BaseModel]] = {
    "scheduler": SchedulerRules,
    "launch": LaunchRules,
    "partitions": Partition,
    "file_systems": FileSystem,
    "software": SoftwareSet,
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "date": "a date such as 2026-11-15",
    "tuple": "a list",
    "mapping": "keys with values",
    "dict": "keys with values",
    "model": "keys with values",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
}
_LOADS = lazy_pattern(
    r"(?:ml|module)\s+(?!purge\b|use\b|unuse\b|list\b|unload\b|-)\S|source\s|\.\s|export\s|spack\s+load|conda\s+activate"
)


class Document:
    """A system file as it stands: the system, when it describes one, and what is wrong with it."""

    def __init__(self, file: str, located: Located) -> None:
        self.file = file
        self._located = located
        self._suggest = Suggestions()
        self.system: System | None = None
        self.errors: list[Problem] = []
        self._validate(located.data)

    def need(self) -> System:
        """Return the system, or raise InvalidDocument with every error."""
        if self.system is None:
            raise InvalidDocument(self.errors, hint="`fairmile system check FILE` lists all problems")
        return self.system

    def line(self, steps: Steps) -> int | None:
        return self._located.line(steps)

    def problems(self, today: date, old: date) -> list[Problem]:
        """Return the errors, or else the warnings: what is doubtful on the day `today`, unverified since `old`."""
        return self.errors or list(self._warnings(today, old))

    def _problem(self, steps: Steps, message: str, *, hint: str = "", severity: Any = "error") -> Problem:
        return Problem(
            message, field=steps_text(steps), severity=severity, file=self.file, line=self.line(steps), hint=hint
        )

    # Errors

    def _validate(self, data: Any) -> None:
        if not isinstance(data, dict):
            content = "nothing" if data is None else repr(data)[:80]
            self.errors.append(self._problem((), f"expected a system as keys with values, found {content}"))
            return
        try:
            self.system = System.model_validate(data)
        except ValidationError as error:
            self.errors += self._explain(error, data)

    def _explain(self, error: ValidationError, data: Mapping[str, Any]) -> list[Problem]:
        by_place: dict[Steps, list[Any]] = {}
        contradictions: list[Problem] = []
        for entry in error.errors(include_url=False):
            cause = entry.get("ctx", {}).get("error")
            if isinstance(cause, Contradictions):
                contradictions += [self._problem(steps_in_file(steps, data), message) for steps, message in cause.pairs]
            else:
                by_place.setdefault(steps_in_file(entry["loc"], data), []).append(entry)
        problems = [self._problem_of(steps, entries) for steps, entries in by_place.items()]
        return sorted(problems + contradictions, key=lambda problem: problem.line or 0)

    def _problem_of(self, steps: Steps, entries: Sequence[Any]) -> Problem:
        """Return one problem for all that pydantic says of one place."""
        entry = entries[0]
        kind, given = entry["type"], entry["input"]
        if kind == "missing":
            return self._problem(steps, "is missing", hint=f"it needs {_needed(entry['loc'])}")
        if kind == "extra_forbidden":
            fields = list(_form(steps).model_fields)
            near = self._suggest(str(steps[-1]), fields)
            return self._problem(
                steps, "no such field" + (f"; {near}" if near else ""), hint=f"known here: {', '.join(fields)}"
            )
        if kind == "value_error":
            cause = entry["ctx"]["error"]
            return self._problem(steps, str(cause), hint=getattr(cause, "hint", None) or "")
        if kind == "string_pattern_mismatch" and entry["loc"][-1] == "[key]":
            return self._problem(
                steps, f"{steps[-1]!r} is not a name", hint="names are letters, digits, '.', '_' and '-'"
            )
        expected = " or ".join(dict.fromkeys(_expected(each) for each in entries))
        near = self._suggest(given, _choices(entries)) if isinstance(given, str) else ""
        return self._problem(steps, f"expected {expected}, found {given!r:.80}" + (f"; {near}" if near else ""))

    # Warnings

    def _warnings(self, today: date, old: date) -> Iterator[Problem]:
        system = self.system
        if system is None:
            return
        yield from self._age(system, today, old)
        for name, partition in system.partitions.items():
            if partition.cores is None and system.scheduler.dialect != "shell":
                yield self._doubt(
                    ("partitions", name),
                    "does not state its cores, so tasks cannot be fitted",
                    "add `cores`, the physical cores of one node",
                )
        for name, sets in system.software.items():
            for place, each in enumerate(sets):
                steps = steps_in_file(("software", name, place), self._located.data)
                yield from self._software(system, steps, each)
        for place, doubt in enumerate(system.unverified):
            if not _leads_somewhere(doubt, self._located.data):
                yield self._doubt(
                    ("unverified", place),
                    f"{doubt!r} is not a value of this file",
                    "write the path of a value, such as partitions.gpu.memory_gib",
                )

    def _doubt(self, steps: Steps, message: str, hint: str = "") -> Problem:
        return self._problem(steps, message, hint=hint, severity="warning")

    def _age(self, system: System, today: date, old: date) -> Iterator[Problem]:
        renew = "compare it with the machine, as `fairmile system probe` does there, and write today's date"
        if system.retired is not None and system.retired <= today:
            yield self._doubt(("retired",), f"out of service since {system.retired}")
        elif system.verified is None and system.scheduler.dialect != "shell":
            yield self._doubt(("verified",), "this file was never verified", renew)
        elif system.verified is not None and system.verified < old:
            yield self._doubt(("verified",), f"verified on {system.verified}, more than a year ago", renew)
        if not system.sources and system.scheduler.dialect != "shell":
            yield self._doubt(("sources",), "no source given", "add the addresses of the sources")

    def _software(self, system: System, steps: Steps, each: SoftwareSet) -> Iterator[Problem]:
        if not each.lines and not each.note:
            yield self._doubt(steps, "has no lines", "add the lines of a script, or say in `note` why none are needed")
        elif each.lines and not any(_LOADS.match(line) for line in each.lines):
            yield self._doubt((*steps, "lines"), "load nothing", "add the modules that the framework needs")
        for name in each.partitions or ((each.partition,) if each.partition else ()):
            partition = system.partitions[name]
            has = partition.gpu.count if partition.gpu else 0
            if each.gpus_per_node is not None and each.gpus_per_node > has:
                yield self._doubt((*steps, "gpus_per_node"), f"{each.gpus_per_node}, but {name!r} has {has} on a node")
            tasks = has if each.tasks_per_node == "gpus" else each.tasks_per_node
            wanted = (tasks or 1) * (each.cpus_per_task or 1)
            if partition.cores is not None and wanted > partition.cores * partition.threads_per_core:
                threads = partition.cores * partition.threads_per_core
                yield self._doubt(
                    (*steps, "cpus_per_task"), f"the tasks need {wanted} on a node, but {name!r} has {threads}"
                )


def read_document(text: str, file: str) -> Document:
    """Return a system file as it stands; a text that is not YAML raises InvalidDocument."""
    return Document(file, load_located(text, file=file))


def _form(steps: Steps) -> type[BaseModel]:
    """Return the model whose fields may stand where a field that is none stands."""
    if len(steps) == 1:
        return System
    return Gpu if "gpu" in steps[2:-1] else _FORMS.get(str(steps[0]), System)


def _needed(location: Sequence[str | int]) -> str:
    wanted = {
        "name": "a short name of letters, digits, '.', '_' and '-'",
        "title": "the name as people write it",
        "scheduler": "the batch system, such as {dialect: slurm}",
        "dialect": "slurm, lsf, pbs, flux or shell",
        "partitions": "at least one partition, such as {batch: {cores: 64}}",
        "path": "the folder, which may contain variables of the system",
        "purpose": "home, project, scratch, archive or node",
        "count": "the number of accelerators of one node",
        "model": "the name of the accelerator",
    }
    return wanted.get(str(location[-1]), "a value")


def _expected(entry: Any) -> str:
    kind, context = entry["type"], entry.get("ctx", {})
    if kind == "literal_error":
        return str(context["expected"])
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{words} {context[name]}"
    if kind == "string_pattern_mismatch":
        return "a word of letters, digits, '.', '_' and '-'"
    if kind == "string_too_long":
        return f"at most {context['max_length']} letters"
    if kind == "too_short":
        return "at least one"
    if kind == "finite_number":
        return "a finite number"
    return _KINDS.get(kind.split("_")[0], "something else")


def _choices(entries: Sequence[Any]) -> list[str]:
    expected = [str(each["ctx"]["expected"]) for each in entries if each["type"] == "literal_error"]
    return [word for text in expected for word in re.findall(r"'([^']+)'", text)]


def _leads_somewhere(path: str, data: Any) -> bool:
    """Tell whether a path such as `partitions.*.max_time` leads to at least one value."""
    if not path:
        return True
    if isinstance(data, list):
        match = re.match(r"\[(\d+)\]\.?(.*)", path)
        return match is not None and int(match[1]) < len(data) and _leads_somewhere(match[2], data[int(match[1])])
    if not isinstance(data, dict):
        return False
    for name, value in data.items():
        key = "*" if path == "*" or path.startswith(("*.", "*[")) else str(name)
        rest = path.removeprefix(key)
        if path.startswith(key) and rest[:1] in ("", ".", "[") and _leads_somewhere(rest.removeprefix("."), value):
            return True
    return False
