"""Plain data written as YAML that every YAML 1.1 and 1.2 reader understands alike."""

from __future__ import annotations

import math
import re
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern

_DEEPEST = 100
_LONGEST_SIMPLE_KEY = 120
# YAML 1.1 readers turn these words into truth values or nothing; `=` and `<<` have a meaning of their own there.
_RESERVED = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_BLOCK = lazy_pattern(r"[^\s\x00-\x1f].*", re.DOTALL)


def dump(data: Any) -> str:
    """Return `data` as block-style YAML with keys in their given order; `load` gives the same data back."""
    if isinstance(data, (dict, list, tuple)) and data:
        return "\n".join(_lines(data, 0)) + "\n"
    return _scalar(data) + "\n"


def _lines(data: Any, level: int) -> list[str]:
    if level >= _DEEPEST:
        raise UsageError(f"the data is nested more than {_DEEPEST} deep and cannot be written as YAML")
    out: list[str] = []
    if isinstance(data, dict):
        for key, value in data.items():
            if not isinstance(key, (str, int, float)):
                raise UsageError(f"{key!r} cannot be a key in YAML", hint="keys are texts or numbers")
            name = _scalar(key)
            start = f"{name}:" if len(name) <= _LONGEST_SIMPLE_KEY else f"? {name}\n:"
            out += _attach(start, value, level)
    else:
        for value in data:
            out += _attach("-", value, level)
    return out


def _attach(start: str, value: Any, level: int) -> list[str]:
    """Return the lines of one key or dash with its value; inner lines are indented by two blanks."""
    if isinstance(value, (dict, list, tuple)) and value:
        inner = _lines(value, level + 1)
        if start == "-":
            return [f"- {inner[0]}", *("  " + line if line else line for line in inner[1:])]
        return [*start.split("\n"), *("  " + line if line else line for line in inner)]
    if isinstance(value, str) and "\n" in value and _fits_block(value):
        body = value.removesuffix("\n").split("\n")
        return [
            *f"{start} |{'' if value.endswith(chr(10)) else '-'}".split("\n"),
            *("  " + x if x else x for x in body),
        ]
    return f"{start} {_scalar(value)}".split("\n")


def _fits_block(text: str) -> bool:
    lines = text.removesuffix("\n").split("\n")
    return (
        _BLOCK.fullmatch(text) is not None
        and bool(lines[-1])
        and all(line.isprintable() and line == line.rstrip() for line in lines)
    )


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, (list, tuple)):
        return "[]"
    raise UsageError(f"{value!r} of type {type(value).__name__} cannot be written as YAML")


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    # YAML 1.1 takes 1e+16 for a text; with a point both versions see the number.
    mantissa, mark, exponent = repr(float(value)).partition("e")
    return mantissa + (mark and f"{'' if '.' in mantissa else '.0'}e{exponent}")


def _is_plain(text: str) -> bool:
    first = text[:1]
    return (
        (first.isalpha() or first in ("_", "/"))
        and bool(first)
        and text.isprintable()
        and ": " not in text
        and " #" not in text
        and text[-1] not in ": "
        and text.lower() not in _RESERVED
    )


def _quoted(text: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    out = []
    for character in text:
        code = ord(character)
        if character in short:
            out.append(short[character])
        elif character.isprintable():
            out.append(character)
        elif 0xD800 <= code <= 0xDFFF:
            raise UsageError(f"the text {text[:40]!r} has an unpaired surrogate, which YAML cannot express")
        else:
            out.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(out) + '"'
