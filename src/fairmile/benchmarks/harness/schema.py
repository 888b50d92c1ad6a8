"""The form of a benchmark's data, declared: what `fairmile benchmark show` tells and what small data is held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """One column, array or attribute of the data."""

    name: str
    dtype: str  # as NumPy names it, or `text`
    shape: tuple[int | str, ...]  # a word is a length that is not fixed, the same wherever it stands
    meaning: str
    unit: str = ""

    @property
    def form(self) -> str:
        """Type and shape in words: `int16 (n, n, n, 4)`."""
        lengths = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"{self.dtype} ({lengths})" if self.shape else self.dtype


Schema = Mapping[str, Sequence[Field]]  # by what a file is


def differences(fields: Sequence[Field], arrays: Mapping[str, Any]) -> list[str]:
    """Return what of arrays is not as declared, one sentence each; none: they conform."""
    lengths: dict[str, int] = {}
    sentences = []
    for field in fields:
        array = arrays.get(field.name)
        if array is None:
            sentences.append(f"{field.name} is missing")
            continue
        dtype = "text" if array.dtype.kind in "SUO" else array.dtype.name
        if dtype != field.dtype:
            sentences.append(f"{field.name}: expected {field.dtype}, found {dtype}")
        shape = tuple(array.shape)
        expected = [
            lengths.setdefault(e, n) if isinstance(e, str) else e for e, n in zip(field.shape, shape, strict=False)
        ]
        if len(shape) != len(field.shape) or tuple(expected) != shape:
            sentences.append(f"{field.name}: expected {field.form}, found {shape}")
    return sentences
