"""Axes among the arguments of a program: `train.py --lr 0.1,0.01 --seed 1..3` is four by three points.

    0.1,0.01                  these values
    1..3                      1, 2 and 3
    range(1,9)  linspace(0,1,5)  logspace(1e-4,1e-1,4)
    1e-4..1e-1:log  0.1..0.9  a distribution, which only a study can search

Anything else stays as it is, and so does a value in quotes of its own: `--columns '"a,b"'` gives the program `a,b`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.runs.arguments import read_arguments, start_program
from fairmile.sweeps.axes import parse_range, split_pieces, values

_QUOTES = ("'", '"')


def program_axes(
    words: Sequence[str], environ: Mapping[str, str], *, tuning: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Return the command of a program with a placeholder for each axis, and the axes that its arguments give.

    For `tuning`, `1..64` is a range of whole numbers to search and not a list of values.
    """
    command = list(start_program(words, Path(), environ))
    axes: dict[str, Any] = {}
    for each in read_arguments(command, Path(), environ):
        if each.text is None or "{" in each.text:
            continue
        where = f"--{each.name}"
        axis = _axis(each.text, where, tuning=tuning)
        before = command[each.word][: each.start]
        if axis is not None:
            if each.name in axes:
                raise UsageError(f"{where} is given twice", hint=f"list all values in one: {where} 1,2,3")
            axes[each.name] = axis
            command[each.word] = f"{before}{{{each.name}}}"
        elif (plain := _unquoted(each.text)) is not None:
            command[each.word] = f"{before}{plain}"
    return command, axes


def no_axes(program: str, *, tuning: bool = False) -> UsageError:
    """Return what is wrong with a program none of whose arguments has several values."""
    if tuning:
        advice = f"write ranges or choices, such as `{program} --lr 1e-4..1e-1:log --depth 1..4`, or use -p"
        return UsageError(f"no argument of {program} has a range or a choice", hint=advice)
    advice = f"write several values, such as `{program} --lr 0.1,0.01 --seed 1..3`, or use -p"
    if program.endswith(".py"):
        advice += "; --allow-code reads a Python file as a configuration"
    return UsageError(f"no argument of {program} has several values", hint=advice)


def _axis(text: str, where: str, *, tuning: bool) -> Any:
    """Return the values of an axis, a distribution, or None for a single value."""
    span = parse_range(text, where)
    if span is not None and (tuning or "integer" not in span or "log" in span):
        return span
    pieces = split_pieces(text)
    if len(pieces) < 2 and span is None and not _has_several(text, where):
        return None
    several: list[Any] = []
    for piece in pieces:
        plain = _unquoted(piece)
        several += [plain] if plain is not None else values(piece, typed=True, where=where)
    return several


def _has_several(text: str, where: str) -> bool:
    """Tell whether a text without commas stands for several values: `range(1,9)`."""
    return text.endswith(")") and values(text, typed=True, where=where) != [text]


def _unquoted(text: str) -> str | None:
    """Return a text without the quotes that it is written in; None where it has none."""
    is_quoted = len(text) > 1 and text[0] in _QUOTES and text[-1] == text[0]
    return text[1:-1] if is_quoted else None
