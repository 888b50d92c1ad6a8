"""Parts of records: typed fields that are read from JSON, checked, and written to it.

A key of the file that this version does not know stays where it is, in `extra` of its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
)

from fairmile.base.errors import SystemFailure
from fairmile.meter.lines import number, number_text
from fairmile.runs.record.values import Better

T = TypeVar("T")
P = TypeVar("P")
_STATED = "stated"
Stated = Annotated[T, _STATED]  # a field that a record states also where it has its default


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def part(cls: type[P]) -> type[P]:
    """Make a class a part of a record: a dataclass whose methods are those of `Part`.

    Methods of its own for each class would take longer to make, in every process that imports them, than to list runs.
    """
    return dataclass(init=False, repr=False, eq=False)(cls)


@part
class Part:
    """A part of a record; `extra` are the keys of the file that this version does not know.

    A missing key, or null, stands for the default of its field.
    """

    extra: dict[str, Any] = field(default_factory=dict)

    def __init__(self, **values: Any) -> None:
        own, layout = self.__dict__, _layout(type(self))
        own.update(layout.fixed)
        for name, make in layout.made:
            if name not in values:
                own[name] = make()
        own.update(values)
        if len(own) != layout.size:
            wrong = sorted(own.keys() ^ {*layout.slots, "extra"})
            raise TypeError(f"{type(self).__name__}: missing or unknown: {', '.join(wrong)}")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        stated = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items())
        return f"{type(self).__name__}({stated})"

    @classmethod
    def from_dict(cls, data: Any, source: str = "the record of a run") -> Self:
        """Return what JSON states; SystemFailure that names `source` and the field where a value is of a wrong kind."""
        try:
            return cls._read(data)
        except _Misfit as misfit:
            raise SystemFailure(f"{source} is damaged: {misfit}") from misfit

    @classmethod
    def _read(cls, data: Any) -> Self:
        if not isinstance(data, dict):
            raise _Misfit(data, "an object")
        layout = _layout(cls)
        made = cls.__new__(cls)
        own = made.__dict__
        own.update(layout.fixed)
        extra: dict[str, Any] = {}
        slots, key = layout.slots, ""
        try:
            for key, value in data.items():
                if key not in slots:
                    extra[key] = value
                elif value is not None:
                    own[key] = slots[key].read(value)
        except _Misfit as misfit:
            misfit.path.insert(0, key)
            raise
        own["extra"] = extra
        if len(own) != layout.size:
            for name, make in layout.made:
                if name not in own:
                    own[name] = make()
        for name in layout.required:
            if name not in own:
                raise _Misfit(data, f"an object with {name}")
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON states it."""
        stated: dict[str, Any] = {}
        own = self.__dict__
        for name, slot in _layout(type(self)).slots.items():
            value = own[name]
            if slot.is_stated or value != slot.default:
                stated[name] = slot.write(value)
        return stated | self.extra


class _Misfit(Exception):
    """A value is not of the kind that its field has."""

    def __init__(self, value: Any, expected: str) -> None:
        super().__init__(value, expected)
        self.path: list[str] = []
        self._value, self._expected = value, expected

    def __str__(self) -> str:
        return f"{'.'.join(self.path) or 'it'} is {self._value!r:.60}, expected {self._expected}"


class _Slot(NamedTuple):
    """How one field of a part is read and written."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    default: Any  # to compare with; MISSING where a value must be stated
    is_stated: bool


class _Layout(NamedTuple):
    """What a class of parts consists of."""

    slots: Mapping[str, _Slot]
    fixed: Mapping[str, Any]  # the defaults that all parts can share
    made: Sequence[tuple[str, Callable[[], Any]]]  # what makes the others
    required: Sequence[str]
    size: int  # number of fields, with `extra`


_LAYOUTS: dict[type[Part], _Layout] = {}


def _layout(cls: type[Part]) -> _Layout:
    layout = _LAYOUTS.get(cls)
    return layout if layout is not None else _LAYOUTS.setdefault(cls, _find_layout(cls))


def _find_layout(cls: type[Part]) -> _Layout:
    slots: dict[str, _Slot] = {}
    fixed: dict[str, Any] = {}
    made: list[tuple[str, Callable[[], Any]]] = [("extra", dict)]
    for each in fields(cls):
        if each.name == "extra":
            continue
        hint: Any = each.type  # no text: what declares parts does not postpone its annotations
        is_stated = get_origin(hint) is Annotated
        read, write = _conversion(get_args(hint)[0] if is_stated else hint)
        if each.default_factory is not MISSING:
            made.append((each.name, each.default_factory))
            default = each.default_factory()
        else:
            default = each.default
            fixed |= {each.name: default} if default is not MISSING else {}
        slots[each.name] = _Slot(read, write, default, is_stated)
    required = [name for name, slot in slots.items() if slot.default is MISSING]
    return _Layout(slots, fixed, made, required, len(slots) + 1)


def _conversion(hint: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return how a value of a type is read from JSON, and written to it."""
    if isinstance(hint, UnionType):  # of a type and None, which nobody reads
        (kind,) = (each for each in get_args(hint) if each is not NoneType)
        read, write = _conversion(kind)
        return read, lambda value: None if value is None else write(value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return _list_conversion(*_conversion(arguments[0]))
    if origin is dict:
        return _dict_conversion(*_conversion(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, Part):
        return hint._read, hint.to_dict
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_reader(hint), str
    if hint is float:
        return _read_float, number_text
    return _SCALARS.get(hint, _keep), _keep


def _keep(value: Any) -> Any:
    return value


def _list_conversion(
    read: Callable[[Any], Any], write: Callable[[Any], Any]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def read_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _Misfit(value, "a list")
        try:
            return [read(each) for each in value]
        except _Misfit:
            return [_inside(str(index), read, each) for index, each in enumerate(value)]  # which tells where

    return read_list, list if write is _keep else lambda value: [write(each) for each in value]


def _dict_conversion(
    read: Callable[[Any], Any], write: Callable[[Any], Any]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def read_dict(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _Misfit(value, "an object")
        if read is _keep:
            return dict(value)
        return {key: _inside(key, read, each) for key, each in value.items() if each is not None}

    return read_dict, dict if write is _keep else lambda value: {key: write(each) for key, each in value.items()}


def _inside(name: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except _Misfit as misfit:
        misfit.path.insert(0, name)
        raise


def _enum_reader(kind: type[StrEnum]) -> Callable[[Any], StrEnum]:
    def read(value: Any) -> StrEnum:
        try:
            return kind(value)
        except ValueError:
            raise _Misfit(value, f"one of {', '.join(kind)}") from None

    return read


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Misfit(value, "a text")
    return value


def _read_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Misfit(value, "a whole number")
    return value


def _read_float(value: Any) -> float:
    try:
        return number(value)
    except ValueError:
        raise _Misfit(value, "a number") from None


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Misfit(value, "true or false")
    return value


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    str: _read_text,
    Better: _read_text,
    int: _read_int,
    bool: _read_bool,
}
