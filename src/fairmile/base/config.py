"""Settings from defaults, files, environment and command line, each knowing where its value came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fairmile.base import yaml
from fairmile.base.errors import FairmileError, InvalidDocument, NotFound, Problem, SystemFailure, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import Suggestions, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Option(NamedTuple):
    """A setting that exists: its default, how a given value is read (`parse` raises ValueError), what it does.

    An option whose default is a mapping is merged key by key over the files; `parse` then gets the mapping of
    one layer at a time. A `safe` option can neither start a program nor lead reads and writes elsewhere, so a
    project file may set it before the user trusts that file.
    """

    default: Any
    parse: Callable[[Any], Any]
    help: str
    safe: bool = False


class Setting(NamedTuple):
    """A value in force and where it came from."""

    key: str
    value: Any
    origin: str


class Given(NamedTuple):
    """A raw value as one layer states it; `where` is the origin as a later reader sees it."""

    key: str
    raw: Any
    where: str
    lines: Mapping[str, str] = _NOTHING


class Guarded(NamedTuple):
    """A settings file that somebody else may have written; `allows` says whether the user trusts this text of it.

    `allows` gets the text and what it sets, by option, as far as that is not safe.
    """

    file: Path
    allows: Callable[[str, Mapping[str, Any]], bool]


class Config:
    """The settings in force; `Config.load` builds one. `ignored` are the options that an untrusted file sets."""

    def __init__(
        self,
        options: Mapping[str, Option],
        values: Mapping[str, Any],
        origins: Mapping[str, str],
        ignored: Sequence[str] = (),
    ) -> None:
        self._options = options
        self._values = values
        self._origins = origins
        self.ignored = tuple(ignored)

    @classmethod
    def load(
        cls,
        options: Mapping[str, Option],
        *,
        files: Sequence[Path] = (),
        guarded: Guarded | None = None,
        environ: Mapping[str, str] = _NOTHING,
        overrides: Mapping[str, str] = _NOTHING,
    ) -> Config:
        """Return the settings in force: defaults, then each file, then `FAIRMILE_…` variables, then overrides.

        The guarded file comes last among the files; where it is not allowed, only its safe settings count. Missing
        files and empty variables are skipped, and so is a key whose value is null. An unknown key in a file or
        override, or a value that its option refuses, raises UsageError naming the place.
        """
        values = {key: dict(o.default) if _is_table(o) else o.default for key, o in options.items()}
        origins = dict.fromkeys(options, "default")
        for key, option in options.items():
            if _is_table(option):
                origins |= {f"{key}.{name}": "default" for name in option.default}
        ignored: list[str] = []
        for given in _layers(options, files, guarded, ignored, environ, overrides):
            option = options[given.key]
            value = _parse(option, given)
            origins[given.key] = given.where
            if _is_table(option):
                values[given.key].update(value)
                origins |= {f"{given.key}.{name}": given.lines.get(name, given.where) for name in value}
            else:
                values[given.key] = value
        return cls(options, values, origins, ignored)

    def __getitem__(self, key: str) -> Any:
        if key not in self._options:
            raise _unknown(key, self._options)
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._options

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def origin(self, key: str) -> str:
        """Return where a value came from: "default", "FILE:LINE", "environment NAME" or "command line"."""
        if key not in self._origins:
            raise _unknown(key, self._origins)
        return self._origins[key]

    def settings(self) -> list[Setting]:
        """Return every value in force; an option that is a mapping gives one setting for each of its keys."""
        settings: list[Setting] = []
        for key, option in self._options.items():
            value = self._values[key]
            if _is_table(option) and value:
                settings += [
                    Setting(f"{key}.{name}", part, self._origins[f"{key}.{name}"]) for name, part in value.items()
                ]
            else:
                settings.append(Setting(key, value, self._origins[key]))
        return settings


def variable_name(key: str) -> str:
    """Return the environment variable that sets `key`."""
    return "FAIRMILE_" + key.upper().replace(".", "_").replace("-", "_")


def _is_table(option: Option) -> bool:
    return isinstance(option.default, Mapping)


def _unknown(key: str, known: Mapping[str, Any]) -> NotFound:
    near = did_you_mean(key, known)
    return NotFound(f"no setting named {key!r}" + (f"; {near}" if near else ""), hint=f"known: {', '.join(known)}")


def needing_trust(options: Mapping[str, Option], given: Iterable[Given]) -> dict[str, list[Any]]:
    """Return the values of those settings that a project file sets only with the user's trust, by option."""
    values: dict[str, list[Any]] = {}
    for each in given:
        if not options[each.key].safe:
            values.setdefault(each.key, []).append(each.raw)
    return values


def _layers(
    options: Mapping[str, Option],
    files: Sequence[Path],
    guarded: Guarded | None,
    ignored: list[str],
    environ: Mapping[str, str],
    overrides: Mapping[str, str],
) -> Iterator[Given]:
    for path in files:
        yield from given_in(options, path, read_settings(path))
    if guarded is not None:
        yield from _from_guarded(options, guarded, ignored)
    for key in options:
        name = variable_name(key)
        if environ.get(name):
            yield Given(key, environ[name], f"environment {name}")
    for key, raw in overrides.items():
        owner = _owner(options, key)
        if owner is None:
            near = did_you_mean(key, options)
            raise UsageError(
                f"command line: no setting named {key!r}" + (f"; {near}" if near else ""),
                hint=f"known: {', '.join(options)}",
            )
        entry = key[len(owner) + 1 :]
        yield Given(owner, {entry: raw} if entry else raw, "command line")


def _owner(options: Mapping[str, Option], key: str) -> str | None:
    """Return the option that `key` names, itself or as one entry of a mapping."""
    if key in options:
        return key
    return next((name for name, option in options.items() if _is_table(option) and key.startswith(f"{name}.")), None)


def _from_guarded(options: Mapping[str, Option], guarded: Guarded, ignored: list[str]) -> Iterator[Given]:
    text = read_settings(guarded.file)
    given = given_in(options, guarded.file, text)
    needing = needing_trust(options, given)
    if needing and not guarded.allows(text, needing):
        ignored += needing
    yield from (each for each in given if each.key not in ignored)


def read_settings(path: Path) -> str:
    """Return the text of a settings file, empty where there is none."""
    try:
        with path.open(encoding="utf-8") as stream:
            return stream.read(yaml.MOST_BYTES + 1)  # more is refused when it is parsed
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise SystemFailure(f"cannot read {path}: {error}", hint="make it a readable UTF-8 text file") from error


def given_in(options: Mapping[str, Option], path: Path, text: str) -> list[Given]:
    """Return what the text of a settings file states, in its order."""
    document = yaml.load_located(text, file=str(path)) if text else None
    if document is None or document.data is None:
        return []
    if not isinstance(document.data, dict):
        raise InvalidDocument([Problem("expected keys with values", file=str(path), line=document.line([]))])
    suggest = Suggestions()
    problems: list[Problem] = []
    given: list[Given] = []
    # Each entry is a path of keys in the file together with its value.
    todo: list[tuple[tuple[Any, ...], Any]] = [((key,), value) for key, value in document.data.items()]
    while todo:
        steps, value = todo.pop(0)
        key = ".".join(map(str, steps))
        owner = _owner(options, key)
        holds_options = any(name.startswith(f"{key}.") for name in options)
        if owner is not None:
            if value is not None:
                given.append(_given_in_file(path, document, owner, steps, value))
        elif holds_options and isinstance(value, dict):
            todo = [((*steps, name), inner) for name, inner in value.items()] + todo
        elif not holds_options or value is not None:
            near = suggest(key, options)
            message = "no such setting" + (f"; {near}" if near else "")
            problems.append(Problem(message, field=key, file=str(path), line=document.line(steps)))
    if problems:
        raise InvalidDocument(problems, hint=f"known: {', '.join(options)}")
    return given


def _given_in_file(path: Path, document: yaml.Located, owner: str, steps: tuple[Any, ...], value: Any) -> Given:
    where = f"{path}:{document.line(steps)}"
    entry = ".".join(map(str, steps))[len(owner) + 1 :]
    if entry:  # one entry of a mapping, written with a dot
        return Given(owner, {entry: value}, where)
    names = value if isinstance(value, dict) else {}
    return Given(owner, value, where, {name: f"{path}:{document.line([*steps, name])}" for name in names})


def _parse(option: Option, given: Given) -> Any:
    try:
        value = option.parse(given.raw)
    except ValueError as error:
        hint = error.hint if isinstance(error, FairmileError) else None
        raise UsageError(f"{given.where} {given.key}: {error}", hint=hint or option.help) from error
    except (TypeError, LookupError, AttributeError) as error:
        # A reader that expects a text trips over a list or number in its own way.
        raise UsageError(f"{given.where} {given.key}: {given.raw!r} cannot be used here", hint=option.help) from error
    if _is_table(option) and not isinstance(value, Mapping):
        raise UsageError(f"{given.where} {given.key}: expected keys with values", hint=option.help)
    return value
