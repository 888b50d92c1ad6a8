"""What a file of data holds, and how it is read and written in blocks of rows, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fairmile.base.errors import Unsupported
from fairmile.base.quick_named_tuple import NamedTuple

BLOCK_BYTES = 16 << 20
TEXT = np.dtype(object)  # blocks of texts are arrays of Python texts
_TEXT_BYTES = 64  # an assumption: what one text takes

Block = Mapping[str, "np.ndarray[Any, Any]"]


class ArraySpec(NamedTuple):
    """One array: its name, shape and type, its attributes, and the names of its dimensions where it has any."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attributes: Mapping[str, Any] = {}
    dimensions: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        return self.dtype == TEXT

    @property
    def row_bytes(self) -> int:
        size = _TEXT_BYTES if self.is_text else self.dtype.itemsize
        return max(1, size * int(np.prod(self.shape[1:], dtype=np.int64)))


class Source(Protocol):
    """A file that is read."""

    @property
    def arrays(self) -> Sequence[ArraySpec]: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...
    @property
    def notes(self) -> Sequence[str]:
        """Return what was changed on reading, as missing values that became NaN."""
        ...

    def blocks(self, names: Sequence[str], rows: int) -> Iterator[tuple[int, Block]]:
        """Yield the first row and the values of each block of arrays of one length; a scalar is one block."""
        ...

    def close(self) -> None: ...


class Sink(Protocol):
    """A file that is written."""

    def write(self, start: int, block: Block) -> None:
        """Write a block of arrays; blocks of the same arrays come in order."""
        ...

    def close(self) -> None: ...


class Format(Protocol):
    """A format of data: what it can store, and how it is read and written."""

    @property
    def takes_rows(self) -> bool:
        """Tell whether all arrays are written row by row, so that they must be equally long."""
        ...

    @property
    def keeps_attributes(self) -> bool: ...

    def stored(self, array: ArraySpec) -> np.dtype[Any]:
        """Return the type in which values are stored without loss; Unsupported where there is none."""
        ...

    def open(self, path: Path) -> Source: ...
    def create(self, path: Path, arrays: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> Sink: ...


def groups(arrays: Sequence[ArraySpec], *, by_row: bool) -> list[list[ArraySpec]]:
    """Return the arrays that are read together: all of them by row, or each alone."""
    return [list(arrays)] if by_row else [[each] for each in arrays]


def rows_of(arrays: Sequence[ArraySpec]) -> int:
    """Return how many rows of these arrays together make a block."""
    return max(1, BLOCK_BYTES // max(1, sum(each.row_bytes for each in arrays)))


def refused(array: ArraySpec, format: str, hint: str = "") -> Unsupported:
    kind = "text" if array.is_text else str(array.dtype)
    return Unsupported(
        f"{format} cannot hold {array.name} ({kind}, shape {array.shape})",
        hint=hint or "leave it out with --array, or choose another format",
    )
