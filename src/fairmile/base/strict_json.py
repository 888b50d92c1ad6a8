"""JSON read strictly: one value per key, finite numbers, bounded depth, errors with line and column."""

from __future__ import annotations

import json
import re
from typing import Any

from fairmile.base.errors import InvalidDocument, Problem
from fairmile.base.lazy import lazy_pattern
from fairmile.base.line_numbers import Position

DEEPEST = 100

_TOKEN = lazy_pattern(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_SURROGATE_ESCAPE = lazy_pattern(r"\\u[dD][89a-fA-F]")
_EXPECTED = (
    ("Expecting property name", "expected a key in double quotes"),
    ("Expecting ':'", "expected ':' after the key"),
    ("Expecting ','", "expected ',' or the closing bracket"),
    ("Expecting value", "expected a value"),
    ("Illegal trailing comma", "expected no ',' before the closing bracket"),
    ("Extra data", "expected the end of the document after the first value"),
    ("Unterminated string", 'expected a closing "'),
    ("Invalid control character", "expected no raw line break or control character in a text (write \\n)"),
    ("Invalid \\u", "expected four hex digits after \\u"),
    ("Invalid \\", "expected a known escape after the backslash"),
)


class _Refused(ValueError):
    """A value that the JSON grammar or Python accepts and we do not."""


def load_json(text: str, *, file: str = "") -> Any:
    """Return the value of a JSON text, or raise InvalidDocument with line, column and what was expected.

    A repeated key, NaN, an infinite number, half a surrogate pair and nesting beyond 100 levels are refused.
    """
    text = text.removeprefix("\ufeff")
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise _syntax_error(text, file, error) from error
    except _Refused as error:
        raise _refusal(text, file, str(error)) from error
    except ValueError as error:  # Python bounds the digits of a whole number, since reading it takes squared time
        raise _refusal(text, file, "a whole number has too many digits") from error
    except RecursionError as error:
        raise _refusal(text, file, f"brackets are nested more than {DEEPEST} deep") from error
    if text.count("[") + text.count("{") > DEEPEST and _is_too_deep(value):
        raise _refusal(text, file, f"brackets are nested more than {DEEPEST} deep")
    try:
        text.encode()
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _refusal(text, file, "a text has an unpaired surrogate, which is not a character") from error
    return value


def scan(text: str) -> Position:
    """Return the places of a valid JSON text."""
    return _Scanner(text).places


class _Scanner:
    """Walk over the tokens of a JSON text, note where each key and item stands, and the first thing we refuse."""

    def __init__(self, text: str, *, strict: bool = False) -> None:
        self._strict = strict
        self.places = Position(1)
        self.refused: tuple[int, str] | None = None  # line and, for a repeated key, the key
        self._stack: list[Position] = []
        self._objects: list[bool] = []
        self._key: str | None = None
        line, at = 1, 0
        for match in _TOKEN.finditer(text):
            line += text.count("\n", at, match.start())
            at = match.start()
            self._token(match[0], line)

    def _token(self, token: str, line: int) -> None:
        if token in ("{", "["):
            place = self._value(line)
            self._stack.append(place)
            self._objects.append(token == "{")
            if len(self._stack) > DEEPEST:
                self._refuse(line, "")
        elif token in ("}", "]"):
            if self._stack:
                self._stack.pop()
                self._objects.pop()
        elif token in (",", ":"):
            pass
        elif self._objects and self._objects[-1] and self._key is None:
            self._start_key(token, line)
        else:
            self._value(line)
            if self._strict and not _is_plain(token):
                self._refuse(line, "")

    def _start_key(self, token: str, line: int) -> None:
        try:
            key = str(json.loads(token))
        except ValueError:
            key = token
        if key in self._stack[-1].inside:
            self._refuse(line, key)
        self._key = key
        self._stack[-1].inside[key] = Position(line)
        if self._strict and not _is_plain(token):
            self._refuse(line, "")

    def _value(self, line: int) -> Position:
        if not self._stack:
            self.places.line = line
            return self.places
        top = self._stack[-1]
        if self._objects[-1]:
            place = top.inside.setdefault(self._key or "", Position(line))
            self._key = None
        else:
            place = top.inside[len(top.inside)] = Position(line)
        return place

    def _refuse(self, line: int, key: str) -> None:
        if self.refused is None:
            self.refused = line, key


def _is_plain(token: str) -> bool:
    """Tell whether load_json accepts a scalar token as far as one token can tell."""
    try:
        value = json.loads(token, parse_constant=_no_constant, parse_float=_finite)
        if isinstance(value, str):
            value.encode()
    except (ValueError, RecursionError):
        return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused(f"the key {key!r} appears twice in one object")
            seen.add(key)
    return members


def _no_constant(name: str) -> Any:
    raise _Refused(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _Refused(f"the number {text[:40]} is too large")
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))]
        if not inner:
            return False
        level = [part for parts in inner for part in parts]
    return True


def _syntax_error(text: str, file: str, error: json.JSONDecodeError) -> InvalidDocument:
    expected = next((words for start, words in _EXPECTED if error.msg.startswith(start)), error.msg)
    if not text.strip():
        return InvalidDocument([Problem("the document is empty, expected a JSON value", file=file, line=1)])
    rest = text[error.pos : error.pos + 20].split("\n")[0].strip()
    token = (
        f", found {rest!r}" if rest else ", found the end of the line" if error.pos < len(text) else ", found the end"
    )
    return InvalidDocument([Problem(f"column {error.colno}: {expected}{token}", file=file, line=error.lineno)])


def _refusal(text: str, file: str, message: str) -> InvalidDocument:
    refused = _Scanner(text, strict=True).refused
    return InvalidDocument([Problem(message, file=file, line=refused[0] if refused else None)])
