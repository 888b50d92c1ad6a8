"""The values of an axis, from any way in which people write them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NoReturn

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy, lazy_pattern
from fairmile.base.words import closest, did_you_mean
from fairmile.runs.record.values import Value, parse_params

if TYPE_CHECKING:
    from decimal import Decimal, localcontext
else:
    Decimal = lazy("decimal:Decimal")
    localcontext = lazy("decimal:localcontext")

MOST_VALUES = 1_000_000  # of one axis, so that a slip such as range(0, 1e12) ends in a sentence
_CALL = lazy_pattern(r"([A-Za-z_]\w*)\(([^()]*)\)")
_NUMBER_TEXT = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"
_NUMBER = lazy_pattern(_NUMBER_TEXT)
_SPAN = lazy_pattern(rf"({_NUMBER_TEXT})\.\.({_NUMBER_TEXT})(?::([A-Za-z]+))?")
_OPENING, _CLOSING, _QUOTES = "[({", "])}", "'\""
_RANGE = lazy_pattern(r"([0-9]{1,18})-([0-9]{1,18})")
_PARTS = lazy_pattern(r"\[([^\[\]]*)\]")
_DIGITS = 50
_AS_LIST = 'to use the text as it is, write a list: ["…"]'


def values(given: Any, *, typed: bool, where: str) -> list[Value]:
    """Return the values that an axis has, each once, in the order in which they are written.

    A list is taken as it is and a scalar is one value. A text is split at commas; `[1-3]`, `[08-11]` and `x[1-2]y[a,b]`
    are host lists; `1..3` is 1, 2 and 3; `range(1,9)` ends before 9 as in Python, `linspace(0,1,5)` and
    `logspace(1e-4,1e-1,4)` include both ends. With `typed` the pieces of a text become numbers, true, false and null
    where they look like it, and a text such as `["a,b", "c"]` is the list; else all stay texts. `where` begins the
    message of an error.
    """
    if isinstance(given, str):
        pieces = _of_text(given, typed, where)
    elif isinstance(given, Sequence) and not isinstance(given, bytes):
        pieces = iter([_scalar(each, where) for each in given])
    else:
        pieces = iter([_scalar(given, where)])
    distinct: dict[tuple[type, Value], Value] = {}
    for each in pieces:
        distinct.setdefault((type(each), each), each)  # 1, 1.0 and true are equal, but not the same
        if len(distinct) > MOST_VALUES:
            raise _error(where, f"more than {MOST_VALUES:,} values", "split the sweep")
    if not distinct:
        raise _error(where, "no values", "write at least one")
    return list(distinct.values())


def _scalar(value: Any, where: str) -> Value:
    if value is None:
        raise _error(where, "a value is missing (null)", 'write "" for an empty string, or remove it')
    if not isinstance(value, str | int | float | bool):
        kind = "a list" if isinstance(value, Sequence) else "a mapping" if hasattr(value, "keys") else repr(value)
        raise _error(where, f"expected a single value, found {kind}", "use a string, a number, true or false")
    if isinstance(value, float) and not math.isfinite(value):
        raise _error(where, f"{value} is not a finite number", 'write it as a string: "inf"')
    return value


def _of_text(text: str, typed: bool, where: str) -> Iterator[Value]:
    """Yield the values of a text, whose repetitions are not dropped yet."""
    if typed and text.startswith('["'):  # a command line has no lists but as JSON
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise _error(where, f"{text!r} is not a list: {error}", _AS_LIST) from None
        yield from [_scalar(each, where) for each in listed]
        return
    pieces = _split(text, where)
    if not pieces:
        if text.strip():
            raise _error(where, f"{text!r} contains only commas", _AS_LIST)
        yield text
    for piece in pieces:
        span, call = parse_range(piece, where), _CALL.fullmatch(piece)
        if call is not None and (call[1] in _FUNCTIONS or closest(call[1], _FUNCTIONS)):
            for number in _call(call[1], call[2], where):
                yield number if typed else str(number)
        elif span is not None:
            low, high = span.get("integer") or _no_values(piece, where)
            yield from (number if typed else str(number) for number in range(low, high + 1))
        elif "[" in piece or "]" in piece:
            yield from _host_list(piece, typed, where)
        else:
            yield _typed(piece) if typed else piece


def parse_range(text: str, where: str) -> dict[str, Any] | None:
    """Return the range that a text such as `1..64` or `1e-4..1e-1:log` writes, as a distribution; None for another."""
    span = _SPAN.fullmatch(text)
    if span is None:
        return None
    if span[3] not in (None, "log"):
        if not closest(span[3], ("log",)):
            return None
        raise _error(where, f"the range {text} ends with {span[3]!r}, expected log", f"write {span[1]}..{span[2]}:log")
    is_whole = _is_whole(span[1]) and _is_whole(span[2])
    low, high = ((int if is_whole else float)(each) for each in (span[1], span[2]))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise _error(where, f"{text}: a number is too large", "write such as 1..3, or 1e-4..1e-1:log")
    if low > high:
        raise _error(where, f"the range {text} is reversed", f"write {span[2]}..{span[1]}")
    if is_whole and not span[3] and high - low >= MOST_VALUES:
        raise _error(where, f"the range {text} has more than {MOST_VALUES:,} values", "split the sweep")
    if is_whole:
        return {"integer": [low, high]} | ({"log": True} if span[3] else {})
    return {"log" if span[3] else "uniform": [low, high]}


def _no_values(text: str, where: str) -> NoReturn:
    raise _error(
        where,
        f"{text} is a search range, but a sweep needs values",
        "`fairmile tune` searches it; linspace(0,1,5) and logspace(1e-4,1e-1,4) are values",
    )


def split_pieces(text: str) -> list[str]:
    """Return the pieces of a text between commas that stand in no brackets and in no quotes; empty ones are nothing."""
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote or letter in _QUOTES:
            quote = "" if letter == quote else quote or letter
        depth += 0 if quote else (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth <= 0 and not quote:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces if piece.strip()]


def _typed(text: str) -> Value:
    return parse_params([f"x={text}"])["x"]


def _split(text: str, where: str) -> list[str]:
    """Return the pieces between commas that stand in no brackets; empty ones are nothing."""
    pieces, start, square, round_ = [], 0, 0, 0
    for place, letter in enumerate(text):
        if letter == "[":
            square += 1
        elif letter == "]":
            square -= 1
        elif letter == "(":
            round_ += 1
        elif letter == ")":
            round_ = max(0, round_ - 1)
        elif letter == "," and not square and not round_:
            pieces.append(text[start:place])
            start = place + 1
        if not 0 <= square <= 1:
            break
    if square:
        what = "brackets inside brackets" if square > 1 else "a bracket that is not closed or not opened"
        raise _error(where, f"{text!r} has {what}", _AS_LIST)
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces if piece.strip()]


# Host lists


def _host_list(text: str, typed: bool, where: str) -> Iterator[Value]:
    """Yield the product of the bracketed parts of a text, the last part fastest."""
    parts = _PARTS.split(text)  # plain, bracketed, plain, bracketed, …, plain
    choices = [[part] if place % 2 == 0 else _bracketed(part, text, where) for place, part in enumerate(parts)]
    if math.prod(len(each) for each in choices) > MOST_VALUES:
        raise _error(where, f"{text!r} stands for more than {MOST_VALUES:,} values", "split the sweep")
    # Of [08-11] all values stay texts, since 08 is no number: some texts and some numbers would help nobody.
    keeps_texts = any(len(each) > 1 and each[0] == "0" for part in choices for each in part if each.isdecimal())
    for each in product(*choices):
        word = "".join(each)
        yield _typed(word) if typed and not keeps_texts else word


def _bracketed(text: str, whole: str, where: str) -> list[str]:
    values: list[str] = []
    for piece in (each.strip() for each in text.split(",")):
        span = _RANGE.fullmatch(piece)
        if span is None:
            if not piece or ("-" in piece and not _NUMBER.fullmatch(piece)):
                raise _error(where, f"{piece!r} in {whole!r} is not a range of integers such as 1-3", _AS_LIST)
            values.append(piece)
            continue
        low, high = int(span[1]), int(span[2])
        if low > high:
            raise _error(where, f"the range {piece} in {whole!r} is reversed", f"write {span[2]}-{span[1]}")
        if high - low >= MOST_VALUES:
            raise _error(where, f"the range {piece} has more than {MOST_VALUES:,} values", "split the sweep")
        values.extend(f"{number:0{len(span[1])}d}" for number in range(low, high + 1))
    return values


# Functions


def _call(name: str, arguments: str, where: str) -> Sequence[int | float]:
    shown = f"{name}({arguments})"
    if name not in _FUNCTIONS:
        raise _error(where, f"no function {name!r}; {did_you_mean(name, _FUNCTIONS)}", _AS_LIST)
    words = [each.strip() for each in arguments.split(",")]
    if not all(map(_NUMBER.fullmatch, words)):
        raise _error(where, f"the arguments of {shown} are not numbers", _USES[name])
    try:
        numbers = _FUNCTIONS[name](words)
    except ValueError as error:
        raise _error(where, f"{shown}: {error}", _USES[name]) from None
    if not (math.isfinite(numbers[0]) and math.isfinite(numbers[-1])):
        raise _error(where, f"{shown}: a number is too large", _USES[name])
    return numbers


def _is_whole(word: str) -> bool:
    return word.lstrip("+-").isdecimal()


def _range(words: list[str]) -> Sequence[int | float]:
    if not 1 <= len(words) <= 3:
        raise ValueError("expected START, END and optionally STEP")
    # Decimals keep 0.1 + 0.2 what people think it is.
    start, end = (Decimal(0), Decimal(words[0])) if len(words) == 1 else (Decimal(words[0]), Decimal(words[1]))
    step = Decimal(words[2]) if len(words) == 3 else Decimal(1)
    if not step:
        raise ValueError("the step is 0")
    with localcontext(prec=_DIGITS):
        count = math.ceil((end - start) / step)
        if count < 1:
            raise ValueError("it has no values")
        _check_count(count)
        if all(map(_is_whole, words)):
            return range(int(start), int(end), int(step))
        return [float(start + place * step) for place in range(count)]


def _linspace(words: list[str]) -> Sequence[int | float]:
    low, high, count = _ends(words)
    with localcontext(prec=_DIGITS):
        return _plain([low + (high - low) * place / max(1, count - 1) for place in range(count)], words)


def _logspace(words: list[str]) -> Sequence[int | float]:
    low, high, count = _ends(words)
    if low <= 0 or high <= 0:
        raise ValueError("both ends must be above 0")
    with localcontext(prec=_DIGITS):
        ratio = (high / low).ln() / max(1, count - 1)
        # 15 digits are what a float holds for sure; those behind come from the logarithm.
        numbers = [Decimal(f"{low * (ratio * place).exp():.15g}") for place in range(count)]
    return _plain([low, *numbers[1:-1], high][:count], words)


def _ends(words: list[str]) -> tuple[Decimal, Decimal, int]:
    if len(words) != 3 or not _is_whole(words[2]):
        raise ValueError("expected FIRST, LAST and COUNT")
    count = int(words[2])
    if count < 1:
        raise ValueError("it has no values")
    _check_count(count)
    return Decimal(words[0]), Decimal(words[1]), count


def _plain(numbers: Sequence[Decimal], words: list[str]) -> Sequence[int | float]:
    """Return whole numbers where both ends are written so and all between are; else floats."""
    if _is_whole(words[0]) and _is_whole(words[1]) and all(each == int(each) for each in numbers):
        return [int(each) for each in numbers]
    return [float(each) for each in numbers]


def _check_count(count: int) -> None:
    if count > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES:,} values")


_FUNCTIONS: dict[str, Callable[[list[str]], Sequence[int | float]]] = {
    "range": _range,
    "linspace": _linspace,
    "logspace": _logspace,
}
_USES = {
    "range": "range(1,9) is 1 to 8, range(0,1,0.25) is 0, 0.25, 0.5 and 0.75",
    "linspace": "linspace(0,1,5) is 0, 0.25, 0.5, 0.75 and 1",
    "logspace": "logspace(1e-4,1e-1,4) is 0.0001, 0.001, 0.01 and 0.1",
}


def _error(where: str, message: str, hint: str) -> UsageError:
    return UsageError(f"{where}: {message}" if where else message, hint=hint)
