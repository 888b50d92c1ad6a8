"""The own format of sweeps and studies: the keys of a file, checked and made into a definition."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from fairmile.base.errors import InvalidDocument, Problem, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.specifications import Specification
from fairmile.base.units import parse_duration, parse_time
from fairmile.base.words import did_you_mean, slug
from fairmile.runs.record.spec import Input, MetricSpec, RunSpec
from fairmile.runs.record.values import Value, better_of
from fairmile.runs.runnable import checked_spec
from fairmile.runs.targets import command_target, is_run_file
from fairmile.sweeps.axes import parse_range, values
from fairmile.sweeps.filters import Filter
from fairmile.sweeps.model import Better, Definition, Objective, Points, place_of
from fairmile.sweeps.origins import Origins, SourceFile, key_text
from fairmile.sweeps.record import Source
from fairmile.sweeps.space import Condition, Space
from fairmile.sweeps.tuning.search_space import Space as TuningSpace

_OWN: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "run": (str,),
    "command": (str, list),
    "notebook": (str,),
    "template": (str,),
    "settings": (dict,),
    "variables": (str, list),
    "axes": (dict,),
    "linked": (list,),
    "exclude": (str, dict, list),
    "include": (dict, list),
    "repeats": (int,),
    "select": (str,),
    "best": (str,),
    "combine": (str, list),
    "objective": (str, dict, list),
    "tuning": (dict,),
}
_EXECUTED = ("command", "argv", "run", "notebook", "template")  # of these a file has one
_KINDS = {str: "a text", dict: "a mapping", list: "a list", int: "a whole number"}
# Words of files for fields of a run.
_SYNONYMS = {"argv": "command", "timeout_s": "timeout", "watch_s": "every"}
_TIMES = frozenset({"timeout", "every"})  # which do not say what a number counts
_FIELDS_OF_KEYS = {short: field for field, short in _SYNONYMS.items() if short != "command"}
_OF_SWEEPS = frozenset({"name", "group", "argv"})  # fields of a run that a sweep sets itself
_RUN_FIELDS = frozenset(RunSpec.model_fields) - _OF_SWEEPS
_KEYS = (*_OWN, *_FIELDS_OF_KEYS, *sorted(_RUN_FIELDS - set(_FIELDS_OF_KEYS.values())))
ALL_KEYS = frozenset({*_KEYS, *_SYNONYMS})
_SEVERAL = ("code", "outputs", "software", "tags")  # one text may stand for a list
_INSIDE: dict[str, type[Specification]] = {
    "resources": type(RunSpec.model_fields["resources"].default),
    "inputs": Input,
    "metrics": MetricSpec,
}
_DISTRIBUTIONS = ("uniform", "log", "integer", "choice")
_AXIS = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_VARIABLE = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
_HOLDS_NAME = lazy_pattern(r"\{[A-Za-z_{]")


def read_keys(files: Sequence[SourceFile], source: Source) -> Definition:
    """Return the definition that files in this format hold, with what the command line changes."""
    return _Reading(files, source).definition()


class _Reading:
    """Makes a definition of what the files and the command line say."""

    def __init__(self, files: Sequence[SourceFile], source: Source) -> None:
        self._source = source
        self._params = source.params
        self._files = files
        self._places = Origins(files, source)
        self._keys: dict[str, Any] = {}
        for file in files:
            data = self._checked(file)
            for one, other in (("settings", "axes"), ("axes", "settings")):
                # What a later file says of a name goes before what an earlier one says elsewhere.
                for name in data.get(other, {}):
                    self._keys.get(one, {}).pop(name, None)
            if any(key in data for key in _EXECUTED):
                self._keys = {key: value for key, value in self._keys.items() if key not in _EXECUTED}
            self._keys = _merged(self._keys, data)
        for key, value in source.changes.items():
            if why := "no such key" if key not in _KEYS else _wrong_kind(key, value):
                raise UsageError(f"{key}: {why}")
        self._keys = _merged(self._keys, absolute_paths(source.changes, source.folder))
        if "argv" in self._keys:
            self._keys.setdefault("command", self._keys.pop("argv"))

    def definition(self) -> Definition:
        """Return the definition."""
        settings = dict(self._keys.get("settings", {}))
        plain, distributions = self._axes(settings)
        select = self._keys.get("select", "")
        return Definition(
            name=self._name(),
            points=self._points(plain, select),
            settings=settings,
            origin=self._places,
            variables=self._variables(),
            fields=self._fields(),
            distributions=distributions,
            objectives=tuple(self._objectives()),
            tuning=self._keys.get("tuning", {}),
            select=select,
            best=self._keys.get("best", ""),
            combine=tuple(self._words("combine")),
            sources=tuple(file.path for file in self._files),
        )

    def _fail(self, message: str, *path: str | int, hint: str = "") -> NoReturn:
        raise InvalidDocument([self._places.problem(message, path, hint)])

    def _checked(self, file: SourceFile) -> dict[str, Any]:
        """Return the data of a file whose keys are known and whose values are of the right kind."""
        places = Origins([file])
        raw = file.located.data if file.located is not None else None
        if not isinstance(raw, Mapping):
            hint = "a file needs at least a name, a command and axes"
            raise InvalidDocument([Problem("expected a mapping such as `axes:`", file=file.shown, line=1, hint=hint)])
        data: dict[str, Any] = _with_text_keys(raw)
        problems = [
            places.problem("has no value (null)", path, 'write "" for an empty string, or remove it')
            for path in _nulls(data, ())
        ]
        empty = {problem.field for problem in problems}
        for key, value in data.items():
            if key not in _KEYS and key not in _SYNONYMS:
                hint = did_you_mean(key, _KEYS) or "put your own fixed values under `settings`"
                problems.append(places.problem("no such key", [key], hint))
            elif key not in empty and (why := _wrong_kind(key, value)):
                problems.append(places.problem(why, [key]))
        if not problems:
            both = [name for name in data.get("axes", {}) if name in data.get("settings", {})]
            problems = [
                places.problem("is both an axis and a setting", ["axes", name], "keep one of them") for name in both
            ]
            problems += _executed_twice(data, places)
        if problems:
            raise InvalidDocument(problems)
        return absolute_paths(data, os.path.dirname(file.path))

    def _name(self) -> str:
        """Return the name that is given, else one after the file, the asset or the command."""
        if "name" in self._keys:
            return str(self._keys["name"])
        what = self._source.what
        if self._files or what:
            text = Path(self._files[0].path if self._files else what).name
            return (slug(text.split(".")[0] if self._files or is_run_file(what) else text).lstrip("_") or "sweep")[:64]
        return command_target(self._source.command, {}).spec.name

    def _words(self, key: str) -> list[str]:
        """Return a command that is a text or a list of words."""
        words = self._keys.get(key, [])
        if isinstance(words, str):
            try:
                return shlex.split(words)
            except ValueError as error:
                self._fail(f"{words!r} is not a command: {str(error).lower()}", key)
        for place, word in enumerate(words):
            if isinstance(word, (dict, list)):
                self._fail("expected a word, found a list or a mapping", key, place)
        return [_text(word) for word in words]

    def _variables(self) -> tuple[str, ...]:
        listed = self._keys.get("variables", [])
        names = [each.strip() for each in listed.split(",")] if isinstance(listed, str) else listed
        for place, name in enumerate(names):
            if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
                self._fail(f"{name!r} is not the name of an environment variable", "variables", place)
        return tuple(dict.fromkeys(names))

    # Axes

    def _axes(self, settings: dict[str, Any]) -> tuple[dict[str, list[Value]], dict[str, dict[str, Any]]]:
        """Return plain axes and distributions; what the command line sets is taken out of `settings`."""
        plain: dict[str, list[Value]] = {}
        distributions: dict[str, dict[str, Any]] = {}
        given: dict[str, list[Value]] = {}
        for name, value in self._params.items():
            if distribution := self._searched(name, value):
                distributions[name] = distribution
            else:
                given[name] = [None] if value is None else self._values(name, value)
        for name, value in self._keys.get("axes", {}).items():
            if not _AXIS.fullmatch(name):
                hint = "use letters, digits, `_`, `-` and dots, such as lr or model.depth"
                self._fail(f"{name!r} is not a name for an axis", "axes", name, hint=hint)
            if name in distributions:
                continue
            if isinstance(value, dict):
                distributions[name] = self._distribution(name, value)
            plain[name] = (
                given.pop(name) if name in given else [] if isinstance(value, dict) else self._values(name, value)
            )
        plain = {name: several for name, several in plain.items() if several}
        for name, several in given.items():
            if not _AXIS.fullmatch(name):
                raise UsageError(f"-p {name}: {name!r} is not a name for an axis")
            plain[name] = several
        for name in self._params:
            _remove(settings, name.split("."))
        asked = {
            name for each in distributions.values() for name in (Filter(each["when"]).names if each["when"] else ())
        }
        for name in [name for name in distributions if name in plain]:
            # A condition can only ask for what is chosen, so what it asks for is chosen from these values.
            if name in asked:
                distributions[name] = {**_NOTHING, "kind": "choice", "choices": plain.pop(name)}
            else:
                del distributions[name]
        if distributions:
            TuningSpace(distributions, self._places)
        return plain, distributions

    def _searched(self, name: str, value: Any) -> dict[str, Any] | None:
        """Return the distribution that the command line gives an axis; None for values."""
        if isinstance(value, str) and (span := parse_range(value, place_of(self._places, "axes", name))):
            value = span if span.keys() != {"integer"} else value  # a range of whole numbers is all of them
        return self._distribution(name, value) if isinstance(value, dict) else None

    def _values(self, name: str, given: Any) -> list[Value]:
        where = place_of(self._places, "axes", name)
        is_linked = any(name in group for group in self._linked())
        if is_linked and isinstance(given, list):  # its repetitions have partners that differ
            return [value for each in given for value in values([each], typed=True, where=where)]
        return values(given, typed=True, where=where)

    def _distribution(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a distribution in the words of tuning; whether it can be drawn from is checked there."""
        path = ("axes", name)
        kinds = [
            each for each in _DISTRIBUTIONS if each in given and not (each == "log" and isinstance(given[each], bool))
        ]
        for key in given:
            if key not in (*_DISTRIBUTIONS, "step", "when"):
                hint = did_you_mean(key, (*_DISTRIBUTIONS, "step", "when")) or f"kinds: {', '.join(_DISTRIBUTIONS)}"
                self._fail("no such key in a distribution", *path, key, hint=hint)
        if len(kinds) != 1:
            self._fail(f"expected one of {', '.join(_DISTRIBUTIONS)}", *path, hint=f"write {name}: {{uniform: [0, 1]}}")
        (kind,) = kinds
        distribution = {**_NOTHING, "kind": "uniform" if kind == "log" else kind, "when": given.get("when", "")}
        if not isinstance(distribution["when"], str):
            self._fail("expected a condition as a string", *path, "when", hint="write when: \"optimizer == 'sgd'\"")
        if kind == "choice":
            for key in ("log", "step"):
                if key in given:
                    self._fail("does not apply to a choice", *path, key)
            where = f"{self._places(*path, kind)} axes.{name}.choice"
            return {**distribution, "choices": values(given[kind], typed=True, where=where)}
        ends = given[kind]
        if not isinstance(ends, list) or len(ends) != 2 or not all(map(_is_number, ends)):
            self._fail(f"expected two numbers, found {ends!r}", *path, kind, hint=f"write {name}: {{{kind}: [1, 64]}}")
        if "step" in given and not _is_number(given["step"]):
            self._fail(f"expected a number, found {given['step']!r}", *path, "step")
        return {
            **distribution,
            "low": ends[0],
            "high": ends[1],
            "log": kind == "log" or given.get("log", False),
            "step": given.get("step"),
        }

    def _points(self, axes: Mapping[str, Sequence[Value]], select: str) -> Points:
        exclude: list[Condition] = []
        exclusions = self._keys.get("exclude", [])
        for place, each in enumerate(exclusions if isinstance(exclusions, list) else [exclusions]):
            if not isinstance(each, (str, dict)):
                self._fail("expected a condition, or a mapping from axes to values", "exclude", place)
            exclude.append(self._several("exclude", place, each) if isinstance(each, dict) else each)
        include: list[Mapping[str, Any]] = []
        inclusions = self._keys.get("include", [])
        for place, each in enumerate(inclusions if isinstance(inclusions, list) else [inclusions]):
            if not isinstance(each, dict):
                self._fail("expected a mapping from axes to values", "include", place)
            include.append(self._several("include", place, each))
        repeats = self._keys.get("repeats", 1)
        # One value from the command line stands still while its partners advance.
        fixed = {name for name in self._params if len(axes.get(name, ())) == 1}
        linked = [[name for name in group if name not in fixed] for group in self._linked()]
        return Space(
            axes,
            linked=linked,
            exclude=exclude,
            include=include,
            repeats=repeats,
            select=select,
            origin=self._places,
        )

    def _linked(self) -> list[list[str]]:
        linked = self._keys.get("linked", [])
        groups = [linked] if linked and all(isinstance(each, str) for each in linked) else linked
        for place, group in enumerate(groups):
            if not isinstance(group, list) or not all(isinstance(name, str) for name in group) or len(group) < 2:
                self._fail(
                    "expected the names of two or more axes", "linked", place, hint="write linked: [[lr, epochs]]"
                )
        return list(groups)

    def _several(self, key: str, place: int, given: Mapping[str, Any]) -> dict[str, list[Value]]:
        where = self._places(key, place)
        return {name: values(each, typed=True, where=f"{where} {key}.{name}") for name, each in given.items()}

    # What a run is

    def _fields(self) -> dict[str, Any]:
        """Return the fields of the run of a point, as far as they can be checked while placeholders are in them."""
        fields = {
            _FIELDS_OF_KEYS.get(key, key): value
            for key, value in self._keys.items()
            if key in _RUN_FIELDS or key in _FIELDS_OF_KEYS
        }
        for key in ("run", "notebook", "template"):
            if key in self._keys:
                fields[key] = self._keys[key]
        if "command" in self._keys:
            fields["argv"] = self._words("command")
            if not fields["argv"]:
                self._fail("the command is empty", "command")
        fields |= absolute_paths(command_fields(self._source), self._source.folder)
        if "notebook" in fields and ("argv" in fields or "run" in fields):
            self._fail("a notebook cannot be combined with a command or an asset", "notebook")
        self._complete(fields)
        given = {key: value for key, value in fields.items() if key not in ("run", "notebook", "template")}
        checked = _without_placeholders({**given, "name": self._name()})
        try:
            checked_spec({**checked, "argv": checked.get("argv") or ["true"]})
        except InvalidDocument as error:
            raise InvalidDocument([self._placed(problem) for problem in error.problems]) from None
        for name in self._params:
            _remove(fields.get("params", {}), [name])
            if name == "seed":
                fields.pop("seed", None)
        return fields

    def _complete(self, fields: dict[str, Any]) -> None:
        """Put the full form where a file may have a short one."""
        for key in _SEVERAL:
            if isinstance(fields.get(key), str):
                fields[key] = [fields[key]]
        for key in ("timeout_s", "watch_s"):
            if isinstance(fields.get(key), str) and not _HOLDS_NAME.search(fields[key]):
                try:
                    fields[key] = parse_duration(fields[key])
                except UsageError as error:
                    self._fail(error.message, _SYNONYMS[key], hint=error.hint or "")
        if isinstance(fields.get("env"), dict):
            fields["env"] = {
                name: value if isinstance(value, (dict, list)) else _text(value)
                for name, value in fields["env"].items()
            }
        if isinstance(fields.get("metrics"), dict):
            metrics = fields["metrics"].items()
            fields["metrics"] = {name: {"pattern": each} if isinstance(each, str) else each for name, each in metrics}
        if isinstance(fields.get("params"), dict):
            fields["params"] = dict(fields["params"])
        if isinstance(fields.get("resources"), dict) and "time" in fields["resources"]:
            fields["resources"] = {
                "time_s" if key == "time" else key: value for key, value in fields["resources"].items()
            }

    def _placed(self, problem: Problem) -> Problem:
        """Return a problem of a run with the place in the files, and with the nearest word."""
        first, *rest = problem.field.split(".")
        key = _SYNONYMS[first] if first in _SYNONYMS and _SYNONYMS[first] in self._keys else first
        file, line = self._places.find([key, *(int(each) if each.isdecimal() else each for each in rest)])
        hint = problem.hint
        if rest and first in _INSIDE and problem.message == "no such field":
            hint = did_you_mean(rest[-1], _INSIDE[first].model_fields)
        return replace(problem, field=".".join([key, *rest]), file=file, line=line, hint=hint)

    # What is wanted

    def _objectives(self) -> Iterator[Objective]:
        given = self._keys.get("objective", [])
        for place, each in enumerate(given if isinstance(given, list) else [given]):
            path: tuple[str | int, ...] = ("objective", place) if isinstance(given, list) else ("objective",)
            if isinstance(each, str):
                known = better_of(each)
                if not known:
                    self._fail(
                        f"the direction of {each!r} is unknown",
                        *path,
                        hint=f"write {{{each}: lower}} or {{{each}: higher}}; in the shell --objective {each}:lower",
                    )
                yield Objective(each, known)
            elif isinstance(each, dict):
                for metric, better in each.items():
                    yield Objective(metric, self._better(better, *path, metric))
            else:
                self._fail("expected a metric and its direction", *path, hint="write objective: {loss: lower}")

    def _better(self, direction: Any, *path: str | int) -> Better:
        if direction == "lower":
            return "lower"
        if direction == "higher":
            return "higher"
        return self._fail(f"expected lower or higher, found {direction!r}", *path)


_NOTHING: Mapping[str, Any] = {"low": None, "high": None, "log": False, "step": None, "choices": [], "when": ""}


def _executed_twice(data: Mapping[str, Any], places: Origins) -> list[Problem]:
    """Return what is wrong with a file that names two things to execute; of several files the last one counts."""
    first, *others = [key for key in data if key in _EXECUTED] or [""]
    hint = "keep one of them"
    if {first, *others} == {"run", "command"}:
        hint += "; to run another command with the files of an asset, write it after `--` on the command line"
    return [places.problem(f"conflicts with `{first}`: a point runs only one of them", [key], hint) for key in others]


def _wrong_kind(key: str, value: Any) -> str:
    """Return why a value is of the wrong kind, or an empty text; fields of runs are checked with the run."""
    if key == "argv":
        key = "command"
    if key in _TIMES and not (isinstance(value, str) and _HOLDS_NAME.search(value)):
        try:
            parse_time(value)
        except UsageError as error:
            return error.message
    if key not in _OWN or (isinstance(value, _OWN[key]) and not isinstance(value, bool)):
        if key == "repeats" and value < 1:
            return f"expected an integer of at least 1, found {value}"
        return ""
    kinds = " or ".join(_KINDS[each] for each in _OWN[key])
    return f"expected {kinds}, found {value!r}" if not isinstance(value, (dict, list)) else f"expected {kinds}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _remove(tree: Any, path: Sequence[str]) -> None:
    """Take what a path leads to out of a tree, whose keys may hold dots."""
    if not isinstance(tree, dict):
        return
    tree.pop(".".join(path), None)
    if len(path) > 1 and isinstance(tree.get(path[0]), dict):
        tree[path[0]] = dict(tree[path[0]])
        _remove(tree[path[0]], path[1:])


def _without_placeholders(data: Any) -> Any:
    """Return data without the texts that are not known before a point fills them."""
    if isinstance(data, dict):
        return {key: _without_placeholders(each) for key, each in data.items() if not _is_open(each)}
    return [_without_placeholders(each) for each in data if not _is_open(each)] if isinstance(data, list) else data


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and _HOLDS_NAME.search(value) is not None


def _with_text_keys(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key_text(key): _with_text_keys(each) for key, each in data.items()}
    return [_with_text_keys(each) for each in data] if isinstance(data, list) else data


def _nulls(data: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of everything that has no value."""
    if data is None:
        yield path
    elif isinstance(data, (dict, list)):
        for key, each in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _nulls(each, (*path, key))


def _merged(one: Mapping[str, Any], other: Mapping[str, Any], *, deep: bool = True) -> dict[str, Any]:
    """Return a mapping with another one on top; an axis is replaced as a whole."""
    both = dict(one)
    for key, value in other.items():
        is_joined = deep and isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = _merged(both[key], value, deep=key != "axes") if is_joined else value
    return both


def absolute_paths(keys: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the keys of a definition with the paths among them starting at the root."""

    def path(text: Any) -> Any:
        # One that starts with a placeholder may become an absolute one.
        if not isinstance(text, str) or not text or text.startswith("{"):
            return text
        return os.path.normpath(os.path.join(folder, os.path.expanduser(text)))

    def source(named: Any) -> Any:
        if isinstance(named, str):
            named = Input.named(named, Path(folder)).model_dump(exclude_defaults=True)
        return {**named, "path": path(named["path"])} if isinstance(named, dict) and "path" in named else named

    absolute = dict(keys)
    for key in ("template", "notebook", "folder"):
        if key in absolute:
            absolute[key] = path(absolute[key])
    for key in ("run", "environment"):
        if isinstance(absolute.get(key), str) and is_run_file(absolute[key]):
            absolute[key] = path(absolute[key])
    if "code" in absolute:
        code = absolute["code"]
        absolute["code"] = [path(each) for each in ([code] if isinstance(code, str) else code)] if code else code
    if isinstance(absolute.get("inputs"), dict):
        absolute["inputs"] = {name: source(each) for name, each in absolute["inputs"].items()}
    return absolute


def command_fields(source: Source) -> dict[str, Any]:
    fields: dict[str, Any] = {"run": source.what} if source.what else {}
    return {**fields, **({"argv": list(source.command)} if source.command else {})}
