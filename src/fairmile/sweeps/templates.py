"""Placeholders in templates, commands and settings: `{section.name}`, `{time.{experiment.model}}`, `{os.USER}`.

The rule, for templates as for settings:

- `{…}` around the name of a setting or of an axis is replaced. `{point.id}`, `{point.number}`, `{point.repeat}` and
  `{point.uuid}` tell of the point itself; `{os.NAME}` is an environment variable that the definition allows.
- `{name|quote}` is the value as one word of a shell, whatever it holds.
- `${…}` is the shell's and `\\{…}` is left as it stands; a placeholder inside `${VAR:-{run.branch}}` is replaced.
- Braces that hold no name are left alone: JSON, `{1..9}`, `{a,b}`, `{print $1}`, `{}`.
- What looks like a name and is not defined is an error, so that a typing mistake is found before a job runs. Left
  alone are only: comments; f-strings of Python on one line; and, where there is no dot in the name, the bare
  statements of awk (`{print}`), `{{name}}`, `%{name}`, `@{name}` and the descriptors of bash (`exec {fd}>file`).
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fairmile.base.errors import InvalidDocument, Problem, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.placeholders import Name, scan
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import closest
from fairmile.sweeps.model import Definition, Point
from fairmile.systems.hardware import looks_secret

# Sections of the settings that serve the lookup and are no settings of the person: other names by which settings go,
# why a name that one may expect is missing, and the tables of batch directives that a dialect brings.
ALSO, WHY, DIRECTIVES = INTERNAL = ("_also", "_why", "_directives")

_HARMLESS = frozenset({"USER", "LOGNAME", "HOME", "PWD", "TMPDIR"})
_LARGEST = 1_000_000  # characters and items of what one text or setting comes to, once settings have filled it
_LARGEST_SETTINGS = 16_000_000
_LONGEST_CHAIN = 100
_OPTION = "a line that a scheduler would read as an option"
# What must not come into a header line, and what must not come into a script as a line of its own.
_CONTROL = lazy_pattern(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_DIRECTIVE = lazy_pattern(r"[\n\r\x0b\x0c\x85\u2028\u2029][ \t]*#[ \t]*(?:SBATCH|BSUB|PBS|COBALT|FLUX|flux|\$|@)")

_Get = Callable[[Point], Any]
T = TypeVar("T")


class Undefined(InvalidDocument):
    """Placeholders that name nothing, each with its place."""


def together(steps: Iterable[Callable[[], T]]) -> list[T]:
    """Take all steps and return what they give; the names that stay undefined in any of them are told at once."""
    made: list[T] = []
    problems: dict[str, Problem] = {}
    for step in steps:
        try:
            made.append(step())
        except Undefined as error:
            problems.update({problem.message: problem for problem in error.problems})
    if problems:
        raise Undefined(list(problems.values()))
    return made


class _Term(NamedTuple):
    """What a placeholder or a setting stands for: one value, or one for each point."""

    value: Any = None
    get: _Get | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A text that was read once; what is the same for all points is filled already."""

    parts: tuple[str | _Get, ...]

    @property
    def is_fixed(self) -> bool:
        """Tell whether the text is the same at every point."""
        return all(isinstance(part, str) for part in self.parts)


class Texts:
    """Fills the placeholders of a definition; what does not depend on the point is looked up once."""

    def __init__(self, definition: Definition, environ: Mapping[str, str]) -> None:
        self._definition = definition
        self._environ = environ
        self._text: Callable[[Any], str] = definition.dialect.text or _plain_text
        self._flat = dict(_flat(definition.settings, ()))
        if not definition.dialect.keeps_null:  # such a setting is none, though a configuration keeps it
            self._flat = {name: term for name, term in self._flat.items() if term[1] is not None}
        self._axes = {
            f"{definition.prefix}.{name}" if definition.prefix else name: name
            for name in (*definition.points.axes, *definition.distributions)
        }
        self._terms: dict[str, _Term] = {}
        self._undefined_in: dict[str, Undefined] = {}
        self._tree: _Term | None = None
        why = definition.settings.get(WHY)
        self._why: Mapping[str, str] = why if isinstance(why, Mapping) else {}
        settings = {key: value for key, value in definition.settings.items() if key != definition.prefix}
        identity = json.dumps([definition.name, settings], sort_keys=True, default=str)
        self._namespace = uuid.uuid5(uuid.NAMESPACE_URL, f"https://w3id.org/fairmile/sweep/{identity}")

    def compile(self, text: str, where: str | Path, *, leave: Collection[str] = ()) -> Compiled:
        """Read a text once for all points; a name that stays undefined raises UsageError.

        `where` is the file that the text is, whose lines messages tell, or the place of a setting in words. The names
        in `leave` are filled by others.
        """
        return Compiled(tuple(self._parts(text, where, (), leave)))

    def fill(self, compiled: Compiled, point: Point) -> str:
        """Return a text as it is at a point."""
        text = self._text
        pieces: list[str] = [part if part.__class__ is str else text(part(point)) for part in compiled.parts]  # type: ignore[operator]
        if sum(map(len, pieces)) > _LARGEST:
            raise _too_large("a text with placeholders")
        return "".join(pieces)

    def settings(self, point: Point) -> dict[str, Any]:
        """Return all settings as they are at a point, with its values; parts that never differ are shared."""
        if self._tree is None:
            tree = {key: value for key, value in self._definition.settings.items() if key not in INTERNAL}
            self._tree = self._mapping(tree, (), ())
            value, get = self._tree
            if _size(value if get is None else get(point), {}) > _LARGEST_SETTINGS:
                raise _too_large("all settings together", _LARGEST_SETTINGS)
        value, get = self._tree
        settings: dict[str, Any] = dict(value) if get is None else get(point)
        prefix = self._definition.prefix
        if not prefix:
            return {**settings, **point.values}
        # The values of the point come first, as in the file; what is derived from them follows.
        more = settings.get(prefix)
        settings[prefix] = {**point.values, **more} if isinstance(more, Mapping) else dict(point.values)
        return settings

    def _parts(
        self, text: str, where: str | Path, chain: tuple[str, ...], leave: Collection[str] = ()
    ) -> Iterator[str | _Get]:
        """Yield the pieces of a text, with what is fixed joined."""
        fixed: list[str] = []
        room = max(_LARGEST, len(text))
        parts = list(scan(text, self._is_known))
        names = [part for part in parts if not isinstance(part, str)]
        terms = iter(together(partial(self._term, name, where, chain, leave) for name in names))
        for part in parts:
            term = _Term(part) if isinstance(part, str) else next(terms)
            if isinstance(part, Name):
                term = self._kept_in_line(term, part, text, where)
            if term.get is None:
                fixed.append(part if isinstance(part, str) else self._text(term.value))
                room -= len(fixed[-1])
                if room < 0:
                    raise _too_large(str(where))
                continue
            if fixed:
                yield "".join(fixed)
                fixed.clear()
            yield term.get
        if fixed:
            yield "".join(fixed)

    def _kept_in_line(self, term: _Term, name: Name, text: str, where: str | Path) -> _Term:
        """Return the term of a placeholder, refused where its value would add a line that a scheduler reads.

        One that stands alone on its line may be a block of such lines.
        """
        line = text.split("\n", name.line)[name.line - 1].strip()
        is_header = line.startswith("#")
        if not is_header and (line == name.source or not isinstance(where, Path)):
            return term
        breaks = _CONTROL if is_header else _DIRECTIVE
        place = f"{where}:{name.line}" if isinstance(where, Path) else where

        def checked(value: Any) -> Any:
            filled = self._text(value)
            if breaks.search(filled):
                what = "a line break or another control character in a header line" if is_header else _OPTION
                raise UsageError(
                    f"{place}: the value of {name.source} brings {what}: {filled[:80]!r}",
                    hint="change the value of that axis or setting",
                )
            return value

        value, get = term
        return _Term(checked(value)) if get is None else _Term(get=lambda point: checked(get(point)))

    def _term(self, name: Name, where: str | Path, chain: tuple[str, ...], leave: Collection[str] = ()) -> _Term:
        """Return what a placeholder stands for; one that is somebody else's stands for itself."""
        if not name.is_quoted:
            return self._plain_term(name, where, chain, leave)
        value, get = self._plain_term(name._replace(is_quoted=False), where, chain)
        if get is None:
            return _Term(shlex.quote(self._text(value)))
        return _Term(get=lambda point: shlex.quote(self._text(get(point))))

    def _plain_term(self, name: Name, where: str | Path, chain: tuple[str, ...], leave: Collection[str] = ()) -> _Term:
        place = f"{where}:{name.line}" if isinstance(where, Path) else where
        parts = [each if isinstance(each, str) else self._term(each, place, chain) for each in name.parts]
        if all(isinstance(each, str) or each.get is None for each in parts):
            key = "".join([each if isinstance(each, str) else self._text(each.value) for each in parts])
            if key in leave:
                return _Term(name.source)
            term = self._look_up(key, place, chain)
            if term is None and name.must:
                raise self._undefined(key, name.source, place)
            return _Term(name.source) if term is None else term

        def get(point: Point) -> Any:
            key = "".join(
                [
                    each if isinstance(each, str) else self._text(each.value if each.get is None else each.get(point))
                    for each in parts
                ]
            )
            term = self._look_up(key, place, chain)
            if term is None and name.must:
                raise self._undefined(key, name.source, place)
            if term is None or term.get is None:
                return name.source if term is None else term.value
            try:
                return term.get(point)
            except RecursionError:
                raise UsageError(f"{place}: {name.source}, here {{{key}}}, refers to itself") from None

        return _Term(get=get)

    def _is_known(self, name: str) -> bool:
        return name in self._axes or name in self._flat or f"{ALSO}.{name}" in self._flat

    def _look_up(self, name: str, place: str, chain: tuple[str, ...]) -> _Term | None:
        """Return what a name stands for, or None where it is not defined."""
        if name in chain:
            circle = " → ".join(f"{{{each}}}" for each in (*chain[chain.index(name) :], name))
            raise UsageError(f"{place}: {circle} refers to itself")
        if len(chain) >= _LONGEST_CHAIN:
            raise UsageError(f"{place}: settings refer to one another in a chain of more than {_LONGEST_CHAIN}")
        if name in self._undefined_in:
            raise self._undefined_in[name]
        if name not in self._terms:
            try:
                term = self._find(name, place, chain)
            except Undefined as error:  # told once: settings that name it twice each would ask without end
                self._undefined_in[name] = error
                raise
            if term is None:
                return None
            self._terms[name] = _bounded(term, f"{place}: {{{name}}}")
        return self._terms[name]

    def _find(self, name: str, place: str, chain: tuple[str, ...]) -> _Term | None:
        axis = self._axes.get(name)
        if axis is not None:
            return _Term(get=lambda point: _value_of(point, axis, place))
        for known in (name, f"{ALSO}.{name}"):
            if known in self._flat:
                path, value = self._flat[known]
                return self._tree_term(value, path, (*chain, name))
        if name.startswith("os."):
            return _Term(self._variable(name[3:], place))
        return self._of_the_point(name)

    def _of_the_point(self, name: str) -> _Term | None:
        if name == "point.id":
            return _Term(get=lambda point: point.id)
        if name == "point.number":
            return _Term(get=lambda point: point.number)
        if name == "point.repeat" or (name == "repeat" and self._definition.dialect.has_repeat):
            return _Term(get=lambda point: 1 if point.repeat is None else point.repeat)
        if name == "point.uuid":
            return _Term(get=lambda point: str(uuid.uuid5(self._namespace, point.id)))
        return None

    def _tree_term(self, value: Any, path: tuple[str | int, ...], chain: tuple[str, ...]) -> _Term:
        """Return what a setting stands for; a text that is one placeholder keeps the type of what it names."""
        if isinstance(value, str):
            if "{" not in value:
                return _Term(value)
            try:
                return self._text_term(value, path, chain)
            except Undefined:
                if chain or not self._definition.dialect.leaves_unused:
                    raise
                return _Term(value)
        if isinstance(value, Mapping):
            return self._mapping(value, path, chain)
        if isinstance(value, (list, tuple)):
            items = [self._tree_term(each, (*path, index), chain) for index, each in enumerate(value)]
            if all(each.get is None for each in items):
                return _Term([each.value for each in items])
            return _Term(get=lambda point: [each.value if each.get is None else each.get(point) for each in items])
        return _Term(value)

    def _text_term(self, value: str, path: tuple[str | int, ...], chain: tuple[str, ...]) -> _Term:
        where = self._definition.origin(*path) or ".".join(map(str, path))
        parts = list(scan(value, self._is_known))
        if len(parts) == 1 and isinstance(parts[0], Name):
            return self._term(parts[0], where, chain)
        compiled = Compiled(tuple(self._parts(value, where, chain)))
        if compiled.is_fixed:
            return _Term("".join(str(part) for part in compiled.parts))
        return _Term(get=lambda point: self.fill(compiled, point))

    def _mapping(self, value: Mapping[Any, Any], path: tuple[str | int, ...], chain: tuple[str, ...]) -> _Term:
        compiled_terms = together(partial(self._tree_term, each, (*path, key), chain) for key, each in value.items())
        terms = dict(zip(value, compiled_terms, strict=True))
        fixed = {key: term.value for key, term in terms.items()}
        getters = [(key, term.get) for key, term in terms.items() if term.get is not None]
        if not getters:
            return _Term(fixed)

        def get(point: Point) -> dict[Any, Any]:
            filled = fixed.copy()
            for key, each in getters:
                filled[key] = each(point)
            return filled

        return _Term(get=get)

    def _variable(self, name: str, place: str) -> str:
        definition = self._definition
        if not definition.dialect.allows_variables and name not in definition.variables:
            raise UsageError(
                f"{place}: the file does not allow the environment variable {{os.{name}}}",
                hint=f"write `variables: [{', '.join((*definition.variables, name))}]` into the file",
            )
        value = self._environ.get(name)
        if not value and name in ("USER", "LOGNAME", "HOME"):
            value = _account(name)
        if value is None:
            message = f"{place}: {{os.{name}}} is not defined: no environment variable {name}"
            hint = f"set it with `export {name}=…`, or write the value into the file"
            raise Undefined([Problem(message, hint=hint)])
        if name not in _HARMLESS and looks_secret(name, value):
            raise UsageError(
                f"{place}: {{os.{name}}} looks like a secret, which would be written to scripts and records",
                hint="read the variable in the program instead",
            )
        return value

    def _undefined(self, name: str, source: str, place: str) -> Undefined:
        start = f"{place}: " if place else ""
        shown = source if source == f"{{{name}}}" else f"{source}, here {{{name}}},"
        why = self._why.get(name) or self._why.get(name.partition(".")[0])
        if why:
            return Undefined([Problem(f"{start}{shown} is not defined: {why}")])
        names = [
            *self._axes,
            *(each.removeprefix(f"{ALSO}.") for each in self._flat if not each.startswith(INTERNAL[1:])),
        ]
        inside = [each for each in names if each.startswith(f"{name}.")]
        if inside:
            hint = f"use one of its settings, such as {{{inside[0]}}}"
            return Undefined([Problem(f"{start}{shown} is a section, not a setting", hint=hint)])
        near = [each for each in names if each.endswith(f".{name}")][:1] or closest(name, names, 1)
        if near:
            hint = f"did you mean {{{near[0]}}}?"
        elif name in self._environ:
            hint = f"did you mean {{os.{name}}}?"
        else:
            hint = f"define it in the settings, or write \\{source} to keep the braces"
        return Undefined([Problem(f"{start}{shown} is not defined", hint=hint)])


def _bounded(term: _Term, what: str) -> _Term:
    """Return a term whose value is found once for each point, and refused where it is too large.

    Settings that name one another twice each would otherwise double with every step.
    """
    value, get = term
    if get is None:
        _refuse_large(value, what)
        return term
    last: tuple[Point | None, Any] = (None, None)

    def once(point: Point) -> Any:
        nonlocal last
        known, latest = last
        if known is not point:
            latest = get(point)
            _refuse_large(latest, what)
            last = (point, latest)
        return latest

    return _Term(get=once)


def _refuse_large(value: Any, what: str) -> None:
    if isinstance(value, (str, Mapping, list, tuple)) and _size(value, {}) > _LARGEST:
        raise _too_large(what)


def _size(value: Any, known: dict[int, int]) -> int:
    """Return how many characters and items a value has when written out; parts that are shared are visited once."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (Mapping, list, tuple)):
        return 1
    if id(value) not in known:
        parts = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(1 + _size(each, known) for each in parts)
    return known[id(value)]


def _too_large(what: str, most: int = _LARGEST) -> UsageError:
    return UsageError(
        f"{what}: more than {most:,} characters after filling in placeholders",
        hint="settings that refer to others several times grow quickly; refer to them less often",
    )


def _value_of(point: Point, axis: str, place: str) -> Any:
    try:
        return point.values[axis]
    except KeyError:
        raise UsageError(f"{place}: {axis!r} has no value at the point {point.id}") from None


def _flat(
    tree: Mapping[Any, Any], path: tuple[str | int, ...]
) -> Iterator[tuple[str, tuple[tuple[str | int, ...], Any]]]:
    """Yield every setting that is no section: its dotted name, its path and its value."""
    for key, value in tree.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            yield from _flat(value, here)
        else:
            yield ".".join(map(str, here)), (here, value)


def _plain_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, dict)) else str(value)


def _account(name: str) -> str | None:
    """Return what the account tells where the environment does not: containers and cron jobs have no USER."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return None
    return entry.pw_dir if name == "HOME" else entry.pw_name
