"""What public calls return: an object whose `to_dict()` is what `--json` prints, with a short `repr` and a table.

class Disk(Result):
    def to_dict(self) -> DiskDict: ...      # a TypedDict: docs/schemas/ is generated from it
    def summary(self) -> str: ...           # a few words for `repr`

class Disks(Results[Disk]):                 # a list of them
    def to_dict(self) -> list[DiskDict]: ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fairmile.base.errors import Unsupported
from fairmile.base.html_tables import fields_table, is_empty, readable, rows_table

if TYPE_CHECKING:
    import pandas

R = TypeVar("R")

_LONGEST_REPR = 200
_MOST_COLUMNS = 12
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}  # as JSON says them


class Result:
    """What a public call returns. A dataclass that is one says `repr=False`, so that the short form below holds."""

    rows_field: ClassVar[str] = ""  # the field of `to_dict()` whose list is the table of the result, such as `places`

    def to_dict(self) -> Any:
        """Return the result as data that JSON can hold, exactly what `--json` prints."""
        raise NotImplementedError

    def summary(self) -> str:
        """Return the result in a few words."""
        return ", ".join(f"{name}={value}" for name, value in _flat(self.to_dict()).items() if value not in (None, ""))

    def __repr__(self) -> str:
        text = " ".join(f"<{type(self).__name__}: {self.summary()}>".split())
        return text if len(text) <= _LONGEST_REPR else f"{text[: _LONGEST_REPR - 2]}…>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table of the result; a nested field `a: {b: 1}` is the column `a.b`.

        NaN and infinities, which are texts in JSON, are numbers in columns that hold nothing else but numbers.
        """
        try:
            import pandas
        except ImportError as error:
            raise Unsupported("pandas is not installed", hint="pip install pandas") from error
        rows = [_flat(each) for each in self._rows()]
        for name in {name for row in rows for name, value in row.items() if _is_not_finite(value)}:
            if all(_is_number(row.get(name)) for row in rows):
                rows = [{**row, name: _NOT_FINITE.get(row[name], row[name])} if name in row else row for row in rows]
        return pandas.DataFrame(rows)

    def _repr_html_(self) -> str:
        return fields_table(readable(_flat(self.to_dict())))

    def _rows(self) -> list[Any]:
        """Return the rows of the table: those that the result lists, or the result itself as one."""
        data = self.to_dict()
        for name in self.rows_field.split(".") if self.rows_field else ():
            data = data[name] or {}
        return [data] if isinstance(data, Mapping) else list(data)


class Results(list[R], Result):
    """Several results, as a list."""

    columns: ClassVar[tuple[str, ...]] = ()  # what a notebook shows, `a.b` of a nested field; else whatever there is

    def to_dict(self) -> Any:
        return [each.to_dict() if isinstance(each, Result) else each for each in self]

    def summary(self) -> str:
        """Return how many there are."""
        return f"{len(self):,} item" + ("" if len(self) == 1 else "s")

    __repr__ = Result.__repr__

    def _repr_html_(self) -> str:
        items = [_flat(each) for each in self._rows()]
        if not items:
            return rows_table([], [], note=self.summary())
        known = dict.fromkeys(name for each in items for name, value in each.items() if not is_empty(value))
        names = [name for name in self.columns or known if name in known][:_MOST_COLUMNS]
        rows = [readable({name: each.get(name) for name in names}) for each in items]
        headings = list(dict.fromkeys(name for row in rows for name in row))
        return rows_table(headings, [[row.get(name) for name in headings] for row in rows])

    def _rows(self) -> list[Any]:
        data = self.to_dict()
        if isinstance(data, list):
            return data
        rows: list[Any] = data[self.rows_field or next(name for name, each in data.items() if isinstance(each, list))]
        return rows


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, str) and value in _NOT_FINITE


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or _is_not_finite(value)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with dots between names; other values stay as they are."""
    if not isinstance(value, Mapping):
        return {prefix.rstrip(".") or "value": value}
    fields: dict[str, Any] = {}
    for name, each in value.items():
        fields |= _flat(each, f"{prefix}{name}.")
    return fields
