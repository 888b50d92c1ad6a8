"""From a point of a sweep to the run that it is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.placeholders import fill_words, names_in
from fairmile.base.specifications import dump_value
from fairmile.base.units import parse_duration
from fairmile.catalog import OWN_IDS
from fairmile.catalog.catalog import Catalog
from fairmile.runs.arguments import PARAMS
from fairmile.runs.execute.batches import Frozen
from fairmile.runs.parameters import first_seed, mentions
from fairmile.runs.record.commands import value_texts
from fairmile.runs.record.spec import RunSpec
from fairmile.runs.record.values import Value
from fairmile.runs.runnable import checked_spec
from fairmile.sweeps.model import Definition, Point
from fairmile.sweeps.notebooks import notebook_argv
from fairmile.sweeps.rendering import CONFIG, Renderer
from fairmile.sweeps.templates import Texts
from fairmile.transfer.schemes import scheme_of

_PLACEHOLDER = lazy_pattern(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_OF_RUNS = lazy_pattern(r"run|source|seed|python|inputs\..+")  # what the run itself knows
_ONCE = frozenset({"inputs", "environment", "system", "code", "folder", "software", "launch"})  # prepared for all
_DESCRIPTIVE = frozenset({"params", "name", "tags", "outputs", "metrics"})  # of a run; its program does not see them
_NO_POINT = Point(0, "", {})
_DURATIONS = frozenset({"timeout_s", "watch_s"})
_RECORD_BYTES = 12_000  # what the record of a short run takes on disk
_BATCH_LINES = ("#SBATCH", "#BSUB", "#PBS")
_DECIDED = lazy_pattern(r"(--(output|error|job-name|array|open-mode|chdir)\b|-[oeJaD]\b)")

_SINGLE = lazy_pattern(r"(-[A-Za-z]|--[a-z-]+)[=\s]*(\S+)")
# Options of sbatch that are fields of resources.
_FIELDS = {
    **dict.fromkeys(("-N", "--nodes"), "nodes"),
    **dict.fromkeys(("-c", "--cpus-per-task"), "cpus_per_task"),
    **dict.fromkeys(("-t", "--time"), "time_s"),
    **dict.fromkeys(("-p", "--partition"), "partition"),
    **dict.fromkeys(("-A", "--account"), "account"),
    **dict.fromkeys(("-q", "--qos"), "qos"),
    **dict.fromkeys(("-C", "--constraint"), "constraint"),
    "--ntasks-per-node": "tasks_per_node",
    "--reservation": "reservation",
}

# Options of ours that are not called as the fields that they say.
_OPTIONS = {
    **{"inputs": "data", "outputs": "out", "metrics": "metric", "tags": "tag", "system": "on"},
    "options": "option",
}

# Fills the placeholders of a field for one point.
_Fill = Callable[[Point], Any]


class _Seen(dict[str, Value]):
    """The values of a point, and which of them were asked for."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self.names.add(name)
        return super().__getitem__(name)


class Members:
    """Makes the runs of a definition: what all of them share, and what each point says otherwise."""

    def __init__(
        self,
        definition: Definition,
        template: Path | None,
        environ: Mapping[str, str],
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Read what a definition says of runs; `changes` are fields of all of them that go before its own."""
        self._definition = definition
        self._texts = Texts(definition, environ)
        fields = definition.fields
        self._what = str(fields.get("run") or "")
        self._fields = {name: value for name, value in fields.items() if name not in ("run", "notebook", "template")}
        self._renderer: Renderer | None = None
        given = template or fields.get("template")
        if given is not None:
            self._renderer = Renderer(definition, Path(given), environ)
            self._fields["argv"] = (*self._renderer.interpreter, self._renderer.script_name)
        elif fields.get("notebook"):
            if not Path(fields["notebook"]).is_file():
                raise NotFound(f"{definition.origin('notebook')}: no such file: {fields['notebook']}")
            self._fields["argv"] = notebook_argv(fields["notebook"])
            self._fields.setdefault("outputs", [self._fields["argv"][-1]])
        if isinstance(self._fields.get("argv"), str):
            self._fields["argv"] = shlex.split(self._fields["argv"])
        self._given = {name: dump_value(more, exclude_defaults=True) for name, more in (changes or {}).items()}
        for name, more in self._given.items():
            self._fields[name] = _joined(self._fields.get(name), more)
        self._axes = set(definition.points.axes) | set(definition.distributions)
        self._fields = {
            name: value if name == "argv" else self._settled(name, value) for name, value in self._fields.items()
        }
        self._varying = {name: fill for name, value in self._fields.items() if (fill := self._filler(name, value))}
        for name in _ONCE & self._varying.keys():
            value = self._fields[name]
            each = next((key for key in value if self._tree_filler(name, value[key])), "") if name == "inputs" else ""
            raise UsageError(
                f"{self._where(name, each)}: {name} cannot depend on an axis, because all points share it",
                hint="use it in the command, or run one sweep for each value",
            )

    @property
    def can_run(self) -> bool:
        """Whether the definition says what a point executes."""
        return bool(self._what or self._fields.get("argv"))

    def target(self, point: Point) -> tuple[str | Sequence[str], dict[str, Any]]:
        """Return what `Runs.plan` needs for a point: a name or a command, and fields of its specification."""
        fields = {**self._fields, **self._own(point)}
        self._texts.settings(point)  # also one that nothing uses may not stay undefined
        if self._renderer is not None:
            fields |= _asked_by(self._renderer.render(point).script, fields.get("resources", {}))
        argv = fields.pop("argv", None)
        fields.setdefault("name", self._definition.name)
        for name in _DURATIONS & fields.keys():
            fields[name] = parse_duration(fields[name])
        if self._what:
            return self._what, {**fields, **({"argv": tuple(argv)} if argv else {})}
        return tuple(argv or ()), fields

    def commands(self, spec: RunSpec, points: Iterable[Point]) -> Iterator[str]:
        """Yield the command line of each point; `spec` is that of the first one."""
        fill = self._varying.get("argv")
        for point in points:
            own = spec.model_copy(update={"params": {**spec.params, **point.values}})
            texts = {**dict.fromkeys(self._axes - own.params.keys(), ""), **value_texts(own)}
            yield shlex.join(fill_words(fill(point) if fill is not None else spec.argv, texts))

    def used(self, point: Point) -> set[str]:
        """Return the axes that a definition itself uses at a point: for what its runs are given beside parameters.

        One that is linked with another tells of the same choice, so that the other's use is its own, too.
        """
        if self._definition.dialect.reads_settings:
            return self._axes
        seen = _Seen(point.values)
        noted = replace(point, values=seen)
        for name in self._varying.keys() - _DESCRIPTIVE:
            self._varying[name](noted)
        if self._renderer is not None:
            script = ("sh", "-c", self._renderer.script(noted))
            if any(mentions(mark, script, Path(self._fields.get("folder") or ".")) for mark in (CONFIG, PARAMS)):
                return self._axes
        names = seen.names & self._axes
        placeholders = names_in(self._fields.get("argv", ()), self._axes.__contains__)
        names |= self._axes & {part for each in placeholders for part in each.parts}
        for group in self._definition.points.linked:
            names |= set(group) if names & set(group) else set()
        return names

    def place_of(self, name: str) -> str:
        """Return where an axis or a parameter is said."""
        return self._definition.origin("axes", name) if name in self._axes else self._definition.origin("params", name)

    def needs(self, point: Point) -> Mapping[str, Any] | None:
        """Return the resources of a point where they depend on it, else None."""
        if "resources" not in self._varying:
            return None
        return {**self._fields["resources"], **self._varying["resources"](point)}

    def check(self, spec: RunSpec) -> None:
        """Raise UsageError for a placeholder in the command of an asset that neither a point nor the asset fills."""
        for word in spec.argv if self._what else ():
            names = _PLACEHOLDER.findall(word)
            own = [name for name in names if name in spec.params or _OF_RUNS.fullmatch(name)]
            self._texts.compile(word, f"the command of {self._what}", leave=own)

    def check_values(self, check: Callable[[Mapping[str, Value], Callable[[str], str]], None]) -> None:
        """Let `check` see each value of each axis, or the ends of its distribution, and how to tell where it stands."""
        for name, values in self._definition.points.axes.items():
            for value in values:
                check({name: value}, self.place_of)
        for name, each in self._definition.distributions.items():
            for value in each["choices"] if each["kind"] == "choice" else (each["low"], each["high"]):
                check({name: value}, self.place_of)

    def check_inputs(self, spec: RunSpec, catalog: Callable[[], Catalog]) -> None:
        """Raise NotFound for an input that no catalog has; a path or an address is not looked up."""
        for name, each in spec.inputs.items():
            if not each.asset or _is_elsewhere(each.asset):
                continue
            try:
                catalog().resolve(each.asset)
            except (NotFound, UsageError) as error:  # what cannot be a name is none that a catalog has
                raise NotFound(f"{self._where_input(name)}: {error}", hint=error.hint) from None

    def lines(self, frozen: Frozen, sweep: str) -> Iterator[dict[str, Any]]:
        """Yield the members of a batch, one a point, in their order."""
        width = max(5, len(str(len(self._definition.points))))
        for point in self._definition.points:
            yield self.line(frozen, f"{sweep}-{point.number:0{width}d}", point)

    def line(self, frozen: Frozen, id: str, point: Point, **params: Value) -> dict[str, Any]:
        """Return the member that a point is; `params` come on top of its values."""
        rendered = self._renderer.render(point) if self._renderer is not None else None
        changes = self._changes(frozen, point, rendered.script if rendered is not None else "")
        changes["params"] |= params
        line = {**frozen.member(id, **changes), "point": point.id}
        if point.repeat is not None:
            line["repeat"] = point.repeat
        absent = dict.fromkeys(self._axes - changes["params"].keys(), "")  # their condition does not hold here
        if absent:
            line["argv"] = fill_words(line["argv"], absent)
        if self._renderer is not None and rendered is not None:
            line["files"] = {self._renderer.script_name: rendered.script, CONFIG: rendered.config}
        return line

    def _changes(self, frozen: Frozen, point: Point, script: str) -> dict[str, Any]:
        """Return the fields in which the run of a point differs from what all of them share."""
        fields = self._own(point)
        shared_params = {name: value for name, value in frozen.spec.params.items() if name not in self._axes}
        params = {**shared_params, **fields.pop("params")}
        argv = fields.pop("argv", None)
        fields |= _asked_by(script, {**self._fields.get("resources", {}), **fields.get("resources", {})})
        changes: dict[str, Any] = {"params": params}
        if argv is not None:
            changes["argv"] = tuple(argv)
        if fields:
            shared = frozen.spec.model_dump(mode="json", exclude_defaults=True)
            for name, value in fields.items():
                if isinstance(value, Mapping) and isinstance(shared.get(name), Mapping):
                    fields[name] = {**shared[name], **value}
            for name in _DURATIONS & fields.keys():
                fields[name] = parse_duration(fields[name])
            checked = checked_spec({**shared, **fields, "argv": frozen.spec.argv})
            changes |= {name: getattr(checked, name) for name in fields}
        seed = changes.get("seed", first_seed(frozen.spec) if point.repeat is not None else frozen.spec.seed)
        if seed is not None and point.repeat is not None:
            changes["seed"] = seed + point.repeat - 1
        return changes

    def size_bytes(self, point: Point) -> int:
        """Return about how much disk the record of a point takes, without what its program writes."""
        if self._renderer is None:
            return _RECORD_BYTES
        rendered = self._renderer.render(point)
        return _RECORD_BYTES + len(rendered.script) + len(rendered.config)

    def _own(self, point: Point) -> dict[str, Any]:
        """Return the fields that depend on the point; its values are parameters of its run."""
        fields = {name: fill(point) for name, fill in self._varying.items()}
        params = {**self._fields.get("params", {}), **fields.get("params", {}), **point.values}
        return {**fields, "params": params}

    def _where(self, name: str, key: str = "") -> str:
        """Return where a field, or one key of it, is said: in a file, or by an option as it is typed."""
        given = self._given.get(name)
        if not given or (isinstance(given, Mapping) and key not in given):
            return self._definition.origin(name)
        if name == "resources":  # each of which has an option of its own
            name, key = key, ""
        return f"--{_OPTIONS.get(name, name)} {key}".strip()

    def _where_input(self, name: str) -> str:
        """Return where an input is said: by an option, in the definition, or by what the definition runs."""
        if name in self._given.get("inputs", {}):
            return self._where("inputs", name)
        is_own = name in self._definition.fields.get("inputs", {})
        return self._definition.origin("inputs", name) if is_own else self._definition.origin("run")

    def _settled(self, name: str, value: Any, key: str = "") -> Any:
        """Return a field with the placeholders filled that are the same at every point."""
        if isinstance(value, str) and _PLACEHOLDER.search(value):
            compiled = self._texts.compile(value, self._where(name, key))
            return self._texts.fill(compiled, _NO_POINT) if compiled.is_fixed else value
        if isinstance(value, Mapping):
            return {inner: self._settled(name, each, key or inner) for inner, each in value.items()}
        return [self._settled(name, each, key) for each in value] if isinstance(value, list | tuple) else value

    def _filler(self, name: str, value: Any) -> _Fill | None:
        """Return what fills a field, or None where it is the same for all points."""
        if name == "argv":
            return self._each(value, self._word_filler)
        return self._tree_filler(name, value)

    def _word_filler(self, word: str) -> _Fill | None:
        """Return what fills a word; what names an axis is filled by the run, which keeps it as a parameter."""
        own = [name for name in _PLACEHOLDER.findall(word) if name in self._axes or _OF_RUNS.fullmatch(name)]
        compiled = self._texts.compile(word, self._definition.origin("command"), leave=own)
        filled = self._texts.fill(compiled, _NO_POINT) if compiled.is_fixed else ""
        if compiled.is_fixed and filled == word:
            return None
        return (lambda _: filled) if compiled.is_fixed else (lambda point: self._texts.fill(compiled, point))

    def _tree_filler(self, name: str, value: Any, key: str = "") -> _Fill | None:
        if isinstance(value, str) and _PLACEHOLDER.search(value):
            compiled = self._texts.compile(value, self._where(name, key))
            return lambda point: self._texts.fill(compiled, point)
        if isinstance(value, Mapping):
            parts = {inner: self._tree_filler(name, each, key or inner) for inner, each in value.items()}
            if not any(parts.values()):
                return None
            return lambda point: {inner: fill(point) if (fill := parts[inner]) else value[inner] for inner in value}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return self._each(value, lambda each: self._tree_filler(name, each, key))
        return None

    @staticmethod
    def _each(values: Sequence[Any], filler: Callable[[Any], _Fill | None]) -> _Fill | None:
        fillers = [filler(each) for each in values]
        if not any(fillers):
            return None
        return lambda point: [fill(point) if fill else each for fill, each in zip(fillers, values, strict=True)]


def _is_elsewhere(asset: str) -> bool:
    """Tell whether what stands for an asset is an address or a path of this machine instead of a name."""
    return (bool(scheme_of(asset)) and not asset.startswith(OWN_IDS)) or Path(asset).exists()


def _joined(field: Any, more: Any) -> Any:
    """Return a field with another one on top, which replaces it unless both are mappings."""
    return {**field, **more} if isinstance(field, Mapping) and isinstance(more, Mapping) else more


def kept(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of runs as JSON can hold them, for another process that makes the same members of them."""
    return {name: dump_value(value, mode="json", exclude_defaults=True) for name, value in changes.items()}


def _asked_by(script: str, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources as a field where a script asks for more; what is said beside the script goes before it.

    The time that a script for Slurm asks for is that of one point: as a field, it grows with the points of a job.
    """
    asked, options = dict(resources), []
    for mark, option in _options(script):
        single = _SINGLE.fullmatch(option) if mark == "#SBATCH" else None
        field = _FIELDS.get(single[1]) if single is not None else None
        if field is not None and resources.get(field):
            continue
        if single is not None and field == "time_s":
            asked[field] = parse_duration(single[2]) * (60 if single[2].isdecimal() else 1)
        else:
            options.append(option)
    if options:
        asked["options"] = list(dict.fromkeys([*options, *resources.get("options", ())]))
    return {"resources": asked} if asked != resources else {}


def _options(script: str) -> Iterator[tuple[str, str]]:
    """Yield what a batch script asks its scheduler for, as options, less what is decided for the whole sweep."""
    for line in script.splitlines():
        mark, rest = (*line.split(None, 1), "", "")[:2]
        option = rest.split(" #")[0].strip()
        if mark in _BATCH_LINES and option.startswith("-") and not _DECIDED.match(option):
            yield mark, option
