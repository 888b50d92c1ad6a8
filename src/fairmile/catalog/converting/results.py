"""What a conversion of a data set returns."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result


class ConvertedArrayDict(TypedDict):
    name: str
    shape: list[int]
    dtype: str
    stored_as: str
    largest_difference: NotRequired[float]


class ConvertedDataDict(TypedDict):
    dry_run: bool
    source: str
    to: str
    file: str
    arrays: list[ConvertedArrayDict]
    notes: list[str]
    verified: bool
    content: NotRequired[str]
    card: NotRequired[str]


@dataclass(frozen=True)
class ConvertedArray:
    """One array: its type in the source and in the new file, and how far rounding moved a value."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored_as: str
    largest_difference: float | None = None


@dataclass(frozen=True, repr=False)
class ConvertedData(Result):
    """A data set in another format, with what was compared; `card` is the handle of the new file's card."""

    source: str
    to: str
    file: str
    arrays: tuple[ConvertedArray, ...] = ()
    notes: tuple[str, ...] = ()
    verified: bool = False
    content: str = ""
    card: str = ""
    dry_run: bool = False

    def to_dict(self) -> ConvertedDataDict:
        arrays: list[ConvertedArrayDict] = []
        for each in self.arrays:
            about: ConvertedArrayDict = {
                "name": each.name,
                "shape": list(each.shape),
                "dtype": each.dtype,
                "stored_as": each.stored_as,
            }
            if each.largest_difference is not None:
                about["largest_difference"] = each.largest_difference
            arrays.append(about)
        data: ConvertedDataDict = {
            "dry_run": self.dry_run,
            "source": self.source,
            "to": self.to,
            "file": self.file,
            "arrays": arrays,
            "notes": list(self.notes),
            "verified": self.verified,
        }
        if self.content:
            data["content"] = self.content
        if self.card:
            data["card"] = self.card
        return data

    def summary(self) -> str:
        return f"{self.source} as {self.to}: {self.file}, {len(self.arrays)} arrays"
