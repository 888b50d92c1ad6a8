"""A column, variable or array as the header of a file declares it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_DTYPE = re.compile(r"^[<>|=]?(u?int|float|bool|complex)(\d*)(?:_t)?$")
_CODE = re.compile(r"^[<>|=]?([iufbcSUOM])(\d+)?")
_UNIT = re.compile(r"^(.*\S)\s*[\[(]\s*([^\[\]()]{1,30})\s*[\])]$")
_WHOLE = {"u": "cr:UInt", "i": "cr:Int", "f": "cr:Float"}


class Column(NamedTuple):
    """A name, a Croissant data type, a unit where the file gives one, and the shape of an array."""

    name: str
    data_type: str = ""
    unit: str = ""
    shape: tuple[int, ...] | None = None

    def field(self) -> dict[str, Any]:
        """Return the column as a field of a record set."""
        made: dict[str, Any] = {"@type": "Field", "name": self.name}
        if self.data_type:
            made["dataType"] = self.data_type
        if self.shape is not None:
            made |= {"isArray": True, "arrayShape": ",".join(map(str, self.shape))}
        if self.unit:
            made["unitText"] = self.unit
        return made

    def variable(self) -> dict[str, Any]:
        """Return the column as a variable that was measured."""
        return {"@type": "PropertyValue", "name": self.name, **({"unitText": self.unit} if self.unit else {})}


def with_unit(header: str) -> tuple[str, str]:
    """Split a header such as `depth [m]` or `depth (m)` into name and unit."""
    match = _UNIT.match(header.strip())
    return (match[1], match[2].strip()) if match else (header.strip(), "")


def data_type(dtype: str) -> str:
    """Return the Croissant type of a NumPy, Arrow or HDF5 type; empty where it has none."""
    text = dtype.strip().lower()
    named = _DTYPE.match(text.replace("double", "float64").replace("half", "float16"))
    if named:
        if named[1] in ("bool", "complex"):
            return "sc:Boolean" if named[1] == "bool" else ""
        kind = {"uint": "UInt", "int": "Int", "float": "Float"}[named[1]]
        return f"cr:{kind}{named[2] or ('64' if kind != 'Float' else '32')}"
    if text.startswith(("string", "large_string", "utf8", "str", "object", "|s", "<u", ">u")) and "int" not in text:
        return "sc:Text"
    if text.startswith(("timestamp", "date", "<m8", "datetime")):
        return "sc:DateTime" if "date3" not in text else "sc:Date"
    coded = _CODE.match(dtype.strip())
    if coded and coded[1] in _WHOLE and coded[2]:
        return f"{_WHOLE[coded[1]]}{int(coded[2]) * 8}"
    return {"b": "sc:Boolean", "S": "sc:Text", "U": "sc:Text"}.get(coded[1], "") if coded else ""
