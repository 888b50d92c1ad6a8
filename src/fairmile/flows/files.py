"""Flow files: YAML or JSON read into a `Flow`, with the line of every part for messages.

    name: tides
    steps:
      clean: {command: python clean.py, inputs: raw.csv, outputs: clean.csv}
      fit: {command: python fit.py, inputs: clean.csv, outputs: fit.json}

A file of thousands of written-out steps takes seconds to parse, and a short one takes longer to load the reader of
YAML than to read: what a file holds is kept as JSON under the digest of its text, and read from there the next time.
Only messages need lines, and they are looked up when there is one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import DiskFailure, InvalidDocument, NotFound, Problem, UsageError
from fairmile.base.files import read_text, write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.specifications import errors_of, expected_by, known_fields
from fairmile.base.units import parse_time
from fairmile.base.words import did_you_mean, slug
from fairmile.base.yaml import Located, load, load_located
from fairmile.flows.model import Flow, Step

_COPY = "2"  # how parsed copies are written
_DEEPEST = 8  # flows in flows
_MOST_COPIES = 50


class Reader(Protocol):
    """Reads the files of another tool as flows."""

    def recognises(self, data: Any) -> bool:
        """Tell whether a document is one of that tool."""
        ...

    def read(self, data: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
        """Return the document of the same flow as our own files have it."""
        ...

    def label(self, text: str, facts: Mapping[str, str | float | None]) -> str:
        """Return the label of a step with what is known of it filled in; see `labels`."""
        return text


# Returns the file of a flow of the catalog; its files are, or will be, in a folder of its name below the one given.
CatalogFlow = Callable[[str, Path], Path]

READERS: Registry[Reader] = Registry(
    "format of flows",
    {
        "cloudmesh-cc": Plugin("fairmile.compat.cloudmesh_cc:READER"),
        "wfformat": Plugin("fairmile.flows.exchange.wfformat:READER"),
    },
    entry_points="fairmile.flow_formats",
)


@dataclass(frozen=True)
class Source:
    """A flow with where it was read from."""

    flow: Flow
    file: Path | None = None
    format: str = ""  # of another tool

    def line_of(self, place: Sequence[str]) -> int | None:
        """Return the line of a part of a step, or of what holds it."""
        if self._located is None:
            return None
        if self.format:
            return self._located.line(["workflow", "nodes", *place]) or self._located.line([])
        return self._located.line(["steps", *place])

    @cached_property
    def _located(self) -> Located | None:
        if self.file is None:
            return None
        try:
            return load_located(self.file.read_text(encoding="utf-8"), file=str(self.file))
        except (OSError, UnicodeDecodeError, InvalidDocument):  # it changed since
            return None

    @property
    def shown(self) -> str:
        """The file as messages name it."""
        return os.path.relpath(self.file) if self.file is not None else ""


def read_flow(
    file: Path,
    *,
    copies: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    catalog: CatalogFlow | None = None,
) -> Source:
    """Return the flow that a file describes, or every reason why it describes none.

    `copies` is a folder for parsed copies of long files; `changes` are values of parameters that go before those of
    the file. `catalog` finds flows that steps name and that are no files.
    """
    return _Reading(copies, catalog).read(file, changes or {}, ())


@dataclass(frozen=True)
class _Reading:
    copies: Path | None
    catalog: CatalogFlow | None

    def read(self, file: Path, changes: Mapping[str, Any], outer: tuple[Path, ...]) -> Source:
        """Return the flow of a file, with the steps of flows that it names in their places."""
        source = _read(file, self.copies, changes)
        return replace(source, flow=self._with_inner_flows(source, (*outer, file.absolute())))

    def _with_inner_flows(self, source: Source, outer: tuple[Path, ...]) -> Flow:
        """Return a flow in which the steps of other flows stand where steps name those."""
        flow = source.flow
        if not any(step.flow for step in flow.steps.values()):
            return flow
        steps: dict[str, Step] = {}
        for name, step in flow.steps.items():
            steps |= dict(self._inner_steps(source, name, step, outer)) if step.flow else {name: step}
        return flow.model_copy(update={"steps": steps})

    def _inner_steps(
        self, source: Source, name: str, step: Step, outer: tuple[Path, ...]
    ) -> Iterator[tuple[str, Step]]:
        def refuse(message: str, key: str = "flow") -> InvalidDocument:
            line = source.line_of([name, key])
            return InvalidDocument([Problem(message, f"steps.{name}.{key}", file=source.shown, line=line)])

        given = step.model_dump(exclude_defaults=True)
        if extra := [key for key in given if key not in ("flow", "after", "params", "folder", "on")]:
            raise refuse(f"a step that is a flow takes no {extra[0]}: write it in {step.flow}", extra[0])
        try:
            file = self._file(step.flow, Path(source.flow.folder, step.folder))
            if file.absolute() in outer or len(outer) >= _DEEPEST:
                raise refuse(f"{step.flow} is part of itself")
            inner = self.read(file, step.params, outer).flow
        except NotFound as error:
            raise refuse(str(error)) from None
        folder = os.path.relpath(inner.folder, source.flow.folder)
        for each, own in inner.steps.items():
            update: dict[str, Any] = {
                "params": {**inner.params, **own.params},
                "folder": "" if (at := os.path.normpath(os.path.join(folder, own.folder))) == "." else at,
                "after": (*(f"{name}/{other}" for other in own.after), *step.after),
                "on": own.on or step.on,
            }
            yield f"{name}/{each}", own.model_copy(update=update)

    def _file(self, word: str, folder: Path) -> Path:
        """Return the file of a flow that a step names: one here, else one of the catalog."""
        file = folder / word
        if file.is_file() or self.catalog is None or file.suffix in (".yaml", ".yml", ".json"):
            return file
        try:
            return self.catalog(word, folder)
        except NotFound as error:
            raise NotFound(f"there is no file {file}, and no flow of the catalog: {error}") from None


def _read(file: Path, copies: Path | None, changes: Mapping[str, Any]) -> Source:
    text = read_text(file)
    copy = _copy_of(text, copies)
    kept = _read_copy(copy)
    data = load(text, file=str(file)) if kept is None else kept
    if not isinstance(data, Mapping):
        raise UsageError(f"{file}: expected a flow: `steps:` with a name for each", hint="see docs/flows.md")
    format = ""
    if "steps" not in data:
        format = next((name for name in READERS.names() if READERS[name].recognises(data)), "")
        if not format:
            raise UsageError(
                f"{file}: expected `steps:` with a name for each step; found {', '.join(map(str, data)) or 'nothing'}"
            )
    file = file.absolute()
    document = READERS[format].read(data, file) if format else data
    fields = {"name": slug(file.stem)[:48] or "flow", **document, "folder": _folder(document, file)}
    source = Source(_checked(fields, text, file, format), file, format)
    if not format and kept is None:
        _check_times(data.get("steps"), text, file)
    if copy is not None and kept is None:
        _write_copy(copy, data, source.flow, format)
    if unknown := [name for name in changes if name not in _all_params(source.flow)]:
        near = did_you_mean(unknown[0], _all_params(source.flow))
        raise UsageError(f"{source.shown}: no step has a parameter {unknown[0]!r}{f'; {near}' if near else ''}")
    flow = source.flow.model_copy(update={"params": {**source.flow.params, **changes}})
    return replace(source, flow=_without_own(flow, changes))


def _folder(data: Mapping[str, Any], file: Path) -> str:
    return os.path.normpath(os.path.join(file.parent, str(data.get("folder") or "")))


def _all_params(flow: Flow) -> set[str]:
    return {*flow.params, *(name for step in flow.steps.values() for name in step.params)}


def _without_own(flow: Flow, changes: Mapping[str, Any]) -> Flow:
    """Return the flow with the values of a person in place of those that steps have."""
    steps = {
        name: step.model_copy(
            update={"params": {**step.params, **{k: v for k, v in changes.items() if k in step.params}}}
        )
        if step.params.keys() & changes.keys()
        else step
        for name, step in flow.steps.items()
    }
    return flow.model_copy(update={"steps": steps}) if changes else flow


def _copy_of(text: str, copies: Path | None) -> Path | None:
    """Return where the parsed copy of a document lies; None for JSON, which is read as quickly."""
    if copies is None or text.lstrip()[:1] == "{":
        return None
    return copies / f"{sha256_hex(text.encode())}.{_COPY}.json"


def _read_copy(copy: Path | None) -> Any:
    """Return what a parsed copy holds; None where there is none."""
    if copy is None:
        return None
    try:
        data = json.loads(copy.read_bytes())
        os.utime(copy)
        return data
    except (OSError, ValueError):
        return None


def _write_copy(copy: Path, data: Mapping[str, Any], flow: Flow, format: str) -> None:
    """Keep a document as it is after its check, which then takes a third of the time."""
    try:
        fields = flow.model_dump(mode="json", exclude_defaults=True, exclude={"name", "folder"})
        own = {key: data[key] for key in ("name", "folder") if key in data}
        text = json.dumps(data if format else {**own, **fields})
        if not format and Flow.model_validate({**json.loads(text), "name": flow.name, "folder": flow.folder}) != flow:
            text = json.dumps(data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(copy, text, sync=False)
        _forget_old(copy.parent)
    except (DiskFailure, OSError, TypeError, ValueError):  # a cache
        pass


# How other tools call the keys of a step.
_OUR_KEYS = {
    **dict.fromkeys(("needs", "depends", "depends_on", "dependencies", "requires"), "after"),
    **dict.fromkeys(("cmd", "bash", "script"), "shell"),
    **dict.fromkeys(("foreach", "matrix", "with_items"), "over"),
    **{"deps": "inputs", "outs": "outputs", "if": "when", "timeout_s": "timeout"},
}


def _forget_old(copies: Path) -> None:
    files = sorted(copies.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for old in files[:-_MOST_COPIES]:
        old.unlink(missing_ok=True)


def _checked(fields: Mapping[str, Any], text: str, file: Path, format: str) -> Flow:
    try:
        return Flow.model_validate(fields)
    except ValueError as error:
        errors = errors_of(error)
        located = load_located(text, file=str(file))
        shown = os.path.relpath(file)
        raise InvalidDocument([_problem(each, shown, None if format else located) for each in errors]) from None


def _check_times(steps: Any, text: str, file: Path) -> None:
    """Raise InvalidDocument for times without a unit: their keys do not say what a number counts."""
    problems, located = [], None
    for name, step in steps.items() if isinstance(steps, Mapping) else ():
        for key in ("timeout", "backoff") if isinstance(step, Mapping) else ():
            try:
                parse_time(step.get(key) or 0)
            except UsageError as error:
                located = located or load_located(text, file=str(file))
                place = ["steps", str(name), key]
                line = located.line(place)
                problems.append(Problem(error.message, ".".join(place), file=os.path.relpath(file), line=line))
    if problems:
        raise InvalidDocument(problems)


def _problem(error: Any, file: str, located: Located | None) -> Problem:
    place = [str(part) for part in error["loc"] if not str(part).startswith(("function-", "tuple[", "json-or"))]
    message = str(error["msg"]).removeprefix("Value error, ")
    hint = ""
    if error["type"] == "extra_forbidden":
        is_inside = len(place) > 2 and place[0] == "steps"
        known = known_fields(Step, place[2:-1]) if is_inside else list(Flow.model_fields)
        ours = _OUR_KEYS.get(place[-1], "") if is_inside and len(place) == 3 else ""
        near = f"did you mean {ours!r}?" if ours else did_you_mean(place[-1], known)
        message = f"no such key{f'; {near}' if near else ''}"
        hint = "" if near else f"keys: {', '.join(each for each in known if each not in ('label', 'shape', 'style'))}"
    elif error["type"] == "too_short" and place == ["steps"]:
        message = "expected at least one step"
    elif error["type"] == "model_type" and len(place) == 2:
        message = f"expected keys such as `shell` and `outputs`, found {error['input']!r:.60}"
    elif error["type"] != "value_error":
        message = f"expected {expected_by(error)}, found {error['input']!r:.60}"
    line = located.line([part if not part.isdigit() else int(part) for part in place]) if located is not None else None
    return Problem(message, ".".join(place), file=file, line=line, hint=hint)
