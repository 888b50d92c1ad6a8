"""Where something that a definition says stands: in which file and line, or which option says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairmile.base.errors import Problem
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.yaml import Located
from fairmile.sweeps.record import Source

_COMMAND_LINE = "the command line"
_COMMAND = "the command behind --"
_NO_SOURCE = Source()


@dataclass(frozen=True)
class SourceFile:
    """A file as it was read; a program has no data."""

    path: str
    shown: str  # how messages name it
    located: Located | None


class Origins:
    """Tells where something stands: in the last file that says it, below `settings` and `axes` also by its own name."""

    def __init__(self, files: Sequence[SourceFile], source: Source = _NO_SOURCE) -> None:
        self._files = files
        self._source = source

    def __call__(self, *path: str | int) -> str:
        """Return `file:line` of a setting, the file where no line is known, or the option that says it."""
        name = ".".join(map(str, path[1:] if path[:1] == ("axes",) else path))
        if name in self._source.params:
            return f"-p {name}"
        if option := option_of(path, self._source):
            return option
        file, line = self.find(path)
        return file if line is None else f"{file}:{line}"

    def find(self, path: Sequence[str | int]) -> tuple[str, int | None]:
        """Return the file and the line of a part, or of the nearest one that holds it."""
        best = 0
        place: tuple[str, int | None] = (self._files[0].shown if self._files else _COMMAND_LINE, None)
        for file in reversed(self._files):
            if file.located is None:
                continue
            for start in (("settings",), (), ("axes",)):
                keys = _keys(file.located.data, (*start, *path))
                if len(keys) - len(start) > best:
                    best, place = len(keys) - len(start), (file.shown, file.located.line(keys))
        return place

    def problem(self, message: str, path: Sequence[str | int], hint: str = "") -> Problem:
        """Return what is wrong at a place of the files."""
        file, line = self.find(path)
        return Problem(message, ".".join(map(str, path)), file=file, line=line, hint=hint)


def option_of(path: Sequence[str | int], source: Source) -> str:
    """Return what else than -p says a setting on the command line, as typed; an empty text where nothing does."""
    if path and path[0] in source.changes:
        return f"--{path[0]}"
    return _COMMAND if path == ("command",) and source.command else ""


def _keys(data: Any, path: Sequence[str | int]) -> list[Any]:
    """Return the keys on a path as the file has them, as far as it goes."""
    keys: list[Any] = []
    for step in path:
        if isinstance(data, Mapping):
            # Only a key that is no text, such as 1 or true, has to be looked for.
            others = (key for key in data if not isinstance(key, str) and key_text(key) == str(step))
            key = step if step in data else next(others, None)
        else:
            key = step if isinstance(data, list) and isinstance(step, int) and step < len(data) else None
        if key is None:
            break
        keys.append(key)
        data = data[key]
    return keys


def key_text(key: Any) -> str:
    """Return the key of a mapping as the text that a person would write."""
    return str(key).lower() if isinstance(key, bool) else str(key)
