"""How names, numbers and attributes are said in a line of the log: as JSON, without its package where that will do."""

from __future__ import annotations

import sys
from array import array
from binascii import b2a_base64
from contextlib import suppress
from functools import lru_cache
from struct import error as struct_error
from struct import pack

from fairmile.meter.tally import INT64

TYPE_CHECKING = False  # typing alone would take most of the time that `import fairmile.meter` may take
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

FEW = 64  # entries of a list that a line tells as such; more are told as base64
_DEEPEST = 20
_LONGEST_BITS = 10_000  # of a whole number; Python refuses to say much longer ones in decimals


def number(name: str, value: Any) -> str:
    """Return a number as JSON, or its name as a text where JSON has no word for it."""
    kind = type(value)
    if kind is int:
        return repr(value)
    if kind is not float:
        if isinstance(value, (str, bytes)):
            raise usage_error(f"metric {name!r} is a string, expected a number", "log strings with event(…)")
        try:
            item = value.item() if hasattr(value, "item") else value  # float() of a tensor with a gradient warns
            value = float(item)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise usage_error(f"metric {name!r} is a {kind.__name__}, expected a number", str(error)) from error
        if isinstance(item, int):
            return repr(int(item))
    if value - value == 0:
        return repr(value)
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'


def base64(packed: bytes) -> str:
    """Return packed numbers, 64 bits each, as a text with the low byte first."""
    if sys.byteorder == "big":
        numbers = array("q", packed)
        numbers.byteswap()
        packed = numbers.tobytes()
    return f'"{b2a_base64(packed, newline=False).decode()}"'


@lru_cache(maxsize=4096, typed=True)
def quote(name: object) -> str:
    """Return a name as JSON."""
    return _text(str(name))


def attributes_text(data: Mapping[str, object]) -> str:
    """Return attributes as JSON; what JSON cannot say becomes text."""
    pairs = []
    with suppress(ValueError):  # a number of thousands of digits
        for name, value in data.items():
            kind = type(value)
            if kind is int or (kind is float and value - value == 0):  # type: ignore[operator]
                pairs.append(f"{quote(name)}: {value!r}")
            elif kind is str:
                pairs.append(f"{quote(name)}: {_text(value)}")  # type: ignore[arg-type]
            else:
                break
        else:
            return f"{{{', '.join(pairs)}}}"
    return _dumps(data)


def column_text(values: Sequence[Any]) -> str:
    """Return what one attribute was in each of many calls: a list, or numbers of 64 bits by the name of their kind."""
    kinds = set(map(type, values))
    if len(values) > FEW and kinds == {float}:
        return f'{{"float64": {base64(pack(f"{len(values)}d", *values))}}}'
    if len(values) > FEW and kinds == {int}:
        with suppress(struct_error):  # one has more than 64 bits
            return f'{{"int64": {base64(pack(f"{len(values)}{INT64}", *values))}}}'
    if kinds == {int} or kinds == {float}:
        with suppress(ValueError):  # thousands of digits
            return f"[{', '.join([number('', value) for value in values])}]"
    if kinds == {str} and _is_plain("".join(values)):
        joined = '", "'.join(values)
        return f'["{joined}"]'
    return _dumps(values)


def usage_error(message: str, hint: str) -> Exception:
    """Return the error that a wrong call gets."""
    # What it imports takes far longer than all the rest, and a program that makes no mistake never needs it.
    from fairmile.base.errors import UsageError

    return UsageError(message, hint=hint)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def _text(text: str) -> str:
    return f'"{text}"' if _is_plain(text) else _dumps(text)


def _dumps(data: object) -> str:
    try:
        return _encoder()(data)
    except (TypeError, ValueError, RecursionError):
        return _encoder()(_plain(data, 0))


@lru_cache(maxsize=1)
def _encoder() -> Callable[[object], str]:
    from json import JSONEncoder

    return JSONEncoder(allow_nan=False).encode


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() < _LONGEST_BITS else hex(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else number("", float(value))[1:-1]
    if depth < _DEEPEST:
        if isinstance(value, dict):
            return {str(key): _plain(each, depth + 1) for key, each in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(each, depth + 1) for each in value]
        if hasattr(value, "tolist"):  # numpy, torch, jax
            return _plain(value.tolist(), depth + 1)
    return str(value) if depth < _DEEPEST else "…"
