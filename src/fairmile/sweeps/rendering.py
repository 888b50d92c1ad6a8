"""The files of a point: its script, from a template or a command, and its configuration."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.yaml_text import dump
from fairmile.sweeps.model import Definition, Point
from fairmile.sweeps.templates import Texts, together

CONFIG = "config.yaml"
_COMMAND_SCRIPT = "run.sh"


@dataclass(frozen=True, slots=True)
class Rendered:
    """The files of one point, and its settings as data."""

    script: str
    config: str
    settings: dict[str, Any]


class Renderer:
    """Renders script and configuration of one point after the other.

    Without a template the script holds the command of the definition. `mode` is that of the template, and who may read
    the script may also run it. `interpreter` is what the script names in its first line, or `sh`.
    """

    def __init__(self, definition: Definition, template: Path | None, environ: Mapping[str, str]) -> None:
        self._texts = Texts(definition, environ)
        self._config = ConfigText()
        self._text: Callable[[Point], str]
        self.interpreter: tuple[str, ...] = ("/bin/sh",)
        if template is None:
            self.script_name, self.mode = _COMMAND_SCRIPT, 0o755
            self._text = self._command(definition)
            return
        text, mode = _read(template)
        self.script_name = template.name.replace(".in.", ".").removesuffix(".in")
        if self.script_name in ("", CONFIG):
            raise UsageError(
                f"the script of the template {template} would be named {self.script_name!r}", hint="rename it"
            )
        self.mode = mode | 0o200 | (mode & 0o444) >> 2
        self.interpreter = interpreter(text)
        compiled = self._texts.compile(text, template)
        self._text = lambda point: self._texts.fill(compiled, point)

    def check(self, point: Point) -> None:
        """Raise UsageError where a placeholder stays undefined at a point."""
        self._texts.settings(point)
        self._text(point)

    def render(self, point: Point) -> Rendered:
        """Return the files of a point; a placeholder that stays undefined raises UsageError."""
        settings = self._texts.settings(point)
        return Rendered(self._text(point), self._config.text(settings), settings)

    def script(self, point: Point) -> str:
        """Return the script of a point alone."""
        return self._text(point)

    def _command(self, definition: Definition) -> Callable[[Point], str]:
        argv = definition.fields.get("argv")
        if not argv:
            raise UsageError(
                f"{definition.name}: no template and no command to write scripts from",
                hint="add --template FILE",
            )
        where = definition.origin("command")
        given = shlex.split(argv) if isinstance(argv, str) else argv
        words = together(partial(self._texts.compile, str(word), where) for word in given)
        return lambda point: f"#!/bin/sh\nexec {shlex.join(self._texts.fill(word, point) for word in words)}\n"


def interpreter(script: str) -> tuple[str, ...]:
    """Return the command that executes a script, less its name."""
    first = script.partition("\n")[0]
    return tuple(first[2:].split() if first.startswith("#!") else ()) or ("sh",)


class ConfigText:
    """Writes trees of settings one after the other, each exactly as `yaml.dump` does, and faster when they are alike.

    Only the lines whose values differ from those of the tree before are made anew. A mapping in it that is the very one
    of the tree before must hold the same as then.
    """

    def __init__(self, indent: str = "") -> None:
        self._indent = indent
        self._values: dict[Any, tuple[Any, str]] = {}
        self._keys: dict[Any, str] = {}
        self._starts: dict[Any, tuple[str, ConfigText]] = {}

    def text(self, data: Mapping[Any, Any]) -> str:
        """Return the settings as YAML."""
        pieces = []
        for key, value in data.items():
            known = self._values.get(key)
            if known is None or (known[0] is not value and not _is_same(value, known[0])) or type(value) is list:
                known = self._values[key] = (value, self._entry(key, value))
            pieces.append(known[1])
        return "".join(pieces) if pieces else dump({})

    def _entry(self, key: Any, value: Any) -> str:
        if type(value) is str and "\n" not in value:
            if key not in self._keys:
                self._keys[key] = _indented(dump({key: 0}), self._indent).removesuffix("0\n")
            return self._keys[key] + dump(value)
        if type(value) is not dict or not value:
            return _indented(dump({key: value}), self._indent)
        if key not in self._starts:
            start = dump({key: {"x": 0}}).rpartition("  x: 0\n")[0]
            self._starts[key] = (_indented(start, self._indent), ConfigText(self._indent + "  "))
        start, inner = self._starts[key]
        return start + inner.text(value)


def _is_same(value: Any, other: Any) -> bool:
    # 1, 1.0 and true are equal and yet written differently, as are 0.0 and -0.0.
    kind = type(value)
    return kind is type(other) and (kind is str or kind is int) and bool(value == other)


def _indented(text: str, indent: str) -> str:
    if not indent:
        return text
    # Only line feeds end lines here: other characters that do so in Python stand inside of texts.
    lines = text.removesuffix("\n").split("\n")
    return "\n".join([indent + line if line else line for line in lines]) + "\n"


def _read(template: Path) -> tuple[str, int]:
    try:
        return template.read_bytes().decode(), template.stat().st_mode & 0o777
    except FileNotFoundError:
        raise NotFound(f"no such file: {template}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SystemFailure(f"cannot read the template {template}: {error}") from error
