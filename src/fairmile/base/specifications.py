"""Specifications that files and programs state, checked without loading pydantic while they are plainly right.

    class Buoy(Specification):
        name: Annotated[str, Limits(pattern="^[a-z]+$")]
        depth_m: Annotated[float, Limits(ge=0)] = 0.0

        @check("name")
        @classmethod
        def _is_free(cls, value: str) -> str: ...

Values of exactly the declared types are accepted here. Whatever else is given, a conversion such as "3" for 3 and every
error, is left to a model of pydantic that `documents` makes of the same declarations at that moment: to load pydantic
and to build its models takes longer than a command that runs a few steps.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from operator import itemgetter
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from fairmile.base.errors import InvalidDocument, Problem
from fairmile.base.lazy import lazy
from fairmile.base.words import did_you_mean

if TYPE_CHECKING:
    from fairmile.base.documents import model_of, schema_of
else:
    model_of = lazy("fairmile.base.documents:model_of")
    schema_of = lazy("fairmile.base.documents:schema_of")

_Accept = Callable[[Any], Any]
_Method = TypeVar("_Method")
_NOTHING: Any = object()
_EXPECTED = {
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type"), "a mapping"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
}
_PLAIN: frozenset[type] = frozenset({str, int, float, bool, NoneType, list, tuple})


class _Unsure(ValueError):
    """What was given is not plainly right: pydantic decides."""


class Limits:
    """What a value must keep to, as part of `Annotated`."""

    __is_annotated_types_grouped_metadata__ = True  # how pydantic knows that it stands for several of its own

    def __init__(
        self,
        *,
        ge: float | None = None,
        gt: float | None = None,
        le: float | None = None,
        finite: bool = False,
        pattern: str = "",
        min_length: int = 0,
    ) -> None:
        self.ge, self.gt, self.le, self.finite = ge, gt, le, finite
        self.pattern, self.min_length = pattern, min_length

    def __iter__(self) -> Iterator[Any]:
        """Yield the same limits as pydantic knows them."""
        import annotated_types
        import pydantic

        for kind, limit in (
            (annotated_types.Ge, self.ge),
            (annotated_types.Gt, self.gt),
            (annotated_types.Le, self.le),
        ):
            if limit is not None:
                yield kind(limit)
        if self.finite:
            yield pydantic.AllowInfNan(False)
        if self.min_length:
            yield annotated_types.MinLen(self.min_length)
        if self.pattern:
            yield from pydantic.StringConstraints(pattern=self.pattern)

    def admits(self, value: Any) -> bool:
        """Tell whether a value of the right type keeps to them."""
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (not self.finite or math.isfinite(value))
            and len(value if self.min_length else "") >= self.min_length
            and (not self.pattern or re.fullmatch(self.pattern, value) is not None)
        )


class Before:
    """A function that what was given goes through first, as part of `Annotated`."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.change, handler(source))


def check(*fields: str) -> Callable[[_Method], _Method]:
    """Mark a class method that checks the value of these fields: it returns the value or raises ValueError."""

    def mark(method: _Method) -> _Method:
        method.checked_fields = fields  # type: ignore[attr-defined]
        return method

    return mark


class SpecificationField:
    """One field: its type as it is written, and its default."""

    def __init__(self, owner: type[Specification], name: str, annotation: str) -> None:
        self._owner = owner
        self.name = name
        self.annotation = annotation
        self.default = owner.__dict__.get(name, _NOTHING)

    def is_required(self) -> bool:
        return self.default is _NOTHING

    @property
    def hint(self) -> Any:
        """The type of its values."""
        return eval(self.annotation, vars(sys.modules[self._owner.__module__]))

    @cached_property
    def accept(self) -> _Accept:
        """Return the value for what was given, or raise _Unsure."""
        accept = _accept(self.hint)
        checks = [getattr(self._owner, each) for each, fields in self._owner._checks.items() if self.name in fields]
        if not checks:
            return accept

        def accept_checked(given: Any) -> Any:
            value = accept(given)
            for each in checks:
                value = each(value)
            return value

        return accept_checked


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Specification:
    """Fields by name, all of them known, which do not change; methods have the names of a pydantic model's."""

    model_fields: ClassVar[Mapping[str, SpecificationField]] = {}
    file_names: ClassVar[Mapping[str, str]] = {}  # field → its key in files, where that is no name in Python
    earlier_names: ClassVar[Mapping[str, str]] = {}  # field → the key that earlier records have for it
    _keys: ClassVar[Mapping[str, SpecificationField]] = {}
    _checks: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    _defaults: ClassVar[dict[str, Any]] = {}
    _values: ClassVar[itemgetter[Any]]

    def __init_subclass__(cls) -> None:
        fields = {
            name: SpecificationField(cls, name, text)
            for name, text in cls.__annotations__.items()
            if not text.startswith("ClassVar")
        }
        cls.model_fields = fields
        others = {key: fields[name] for names in (cls.file_names, cls.earlier_names) for name, key in names.items()}
        cls._keys = {**fields, **others}
        marked = ((name, getattr(method, "checked_fields", ())) for name, method in vars(cls).items())
        cls._checks = {name: checked for name, checked in marked if checked}
        cls._defaults = {name: each.default for name, each in fields.items() if not each.is_required()}
        cls._values = itemgetter(*fields)

    if not TYPE_CHECKING:

        def __init__(self, **given: Any) -> None:
            try:
                values = self._accepted(given)
                self.__dict__.update(values)
                self._check_whole()
            except ValueError:
                self.__dict__.clear()
                self.__dict__.update(self._explained(given).__dict__)

    @classmethod
    def model_validate(cls, given: Any) -> Self:
        """Return the specification that a mapping states; raise what pydantic raises where it states none."""
        if isinstance(given, cls):
            return given
        try:
            return cls._plainly(given)
        except ValueError:
            return cls._judged(given)

    @classmethod
    def _plainly(cls, given: Any) -> Self:
        if type(given) is not dict:
            raise _Unsure
        made = cls._of_values(cls._accepted(given))
        made._check_whole()
        return made

    @classmethod
    def _judged(cls, given: Any) -> Self:
        return cls.of_model(model_of(cls).model_validate(given))

    @classmethod
    def _explained(cls, given: Any) -> Self:
        """Return the specification that keywords state; raise InvalidDocument with all that is wrong."""
        try:
            return cls._judged(given)
        except ValueError as error:
            raise InvalidDocument([_problem(cls, each) for each in errors_of(error)]) from None

    @classmethod
    def of_model(cls, model: Any) -> Self:
        """Return what a model of pydantic of the same fields holds."""
        values = {name: getattr(model, name) for name in cls.model_fields}
        made = cls._of_values({**values, "_given": frozenset(model.model_fields_set)})
        made._check_whole()
        return made

    @classmethod
    def _of_values(cls, values: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", values)
        return made

    @classmethod
    def _accepted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Return all values where those given are plainly right."""
        values = cls._defaults.copy()
        keys = cls._keys
        names = set()
        for key, value in given.items():
            if (field := keys.get(key)) is None:
                raise _Unsure
            names.add(field.name)
            values[field.name] = field.accept(value)
        if len(names) != len(given) or len(values) != len(cls.model_fields):  # given twice, or missing
            raise _Unsure
        values["_given"] = frozenset(names)
        return values

    def _check_whole(self) -> None:
        """Raise ValueError where the fields do not go together."""

    @property
    def model_fields_set(self) -> frozenset[str]:
        """The fields that were given."""
        given: frozenset[str] = self.__dict__["_given"]
        return given

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with other values, which are not checked."""
        changes = dict(update or {})
        return self._of_values({**self.__dict__, **changes, "_given": self.model_fields_set | changes.keys()})

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        by_alias: bool = False,
        exclude_defaults: bool = False,
        exclude: frozenset[str] | set[str] = frozenset(),
    ) -> dict[str, Any]:
        """Return the fields as a mapping, with mode="json" of what JSON has."""
        values = self.__dict__
        dumped: dict[str, Any] = {}
        for name, field in self.model_fields.items():
            value = values[name]
            if name in exclude or (exclude_defaults and value == field.default):
                continue
            if type(value) is not str:
                value = dump_value(value, mode=mode, by_alias=by_alias, exclude_defaults=exclude_defaults)
            dumped[self.file_names.get(name, name) if by_alias else name] = value
        return dumped

    def model_dump_json(self, *, exclude_defaults: bool = False) -> str:
        """Return the fields as JSON."""
        document = self.model_dump(mode="json", exclude_defaults=exclude_defaults)
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return schema_of(cls, handler)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        values = type(self)._values
        return bool(values(self.__dict__) == values(other.__dict__))

    def __hash__(self) -> int:
        return hash(type(self)._values(self.__dict__))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.model_fields)})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: make a copy with model_copy")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted")


def errors_of(error: Exception) -> list[Any]:
    """Return the errors that pydantic lists; raise any other error again."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        raise error
    return error.errors(include_url=False)


def expected_by(error: Mapping[str, Any]) -> str:
    """Return what an error of pydantic expects in the place of what was given, as it reads after "expected"."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "model_type":
        fields = _fields_of(str(context["class_name"]))
        return f"a mapping with {' and '.join(fields)}" if fields else "a mapping"
    if kind == "string_pattern_mismatch":
        return f"text that matches {context['pattern']!r}"
    words = _EXPECTED.get(kind) or str(error["msg"]).removeprefix("Input should be ")
    words = words.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    return f"{words[:1].lower()}{words[1:]}".replace("greater", "more")


def _fields_of(name: str) -> list[str]:
    """Return the fields that a specification needs, of all that it has where it needs none."""
    fields = next((each.model_fields for each in Specification.__subclasses__() if each.__name__ == name), {})
    return [name for name, each in fields.items() if each.is_required()] or list(fields)


def known_fields(specification: type[Specification], place: Sequence[str | int]) -> list[str]:
    """Return the fields of a specification, or of one in it at a place; none where there is no such one."""
    for name in place:
        field = specification.model_fields.get(str(name))
        hint = field.hint if field is not None else None
        if not isinstance(hint, type) or not issubclass(hint, Specification):
            return []
        specification = hint
    return list(specification.model_fields)


def _problem(specification: type[Specification], error: Mapping[str, Any]) -> Problem:
    """Return what pydantic says about a keyword in our words."""
    kind, place = error["type"], [str(part) for part in error["loc"] if "[" not in str(part)]
    hint = ""
    if kind == "value_error":
        message = str(error["ctx"]["error"])
    elif kind == "missing":
        message = "is missing"
    elif kind == "extra_forbidden":
        message = "no such field"
        hint = did_you_mean(place[-1], known_fields(specification, error["loc"][:-1]))
    else:
        message = f"expected {expected_by(error)}, found {error['input']!r}"
    return Problem(message, ".".join([specification.__name__, *place]), hint=hint)


def dump_value(
    value: Any,
    *,
    mode: Literal["python", "json"] = "python",
    by_alias: bool = False,
    exclude_defaults: bool = False,
) -> Any:
    """Return a value with mappings in place of specifications, with mode="json" of what JSON has."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    dump = partial(dump_value, mode=mode, by_alias=by_alias, exclude_defaults=exclude_defaults)
    if isinstance(value, Specification):
        return value.model_dump(mode=mode, by_alias=by_alias, exclude_defaults=exclude_defaults)
    if isinstance(value, Mapping):
        return {
            key if mode == "python" or type(key) is str else _jsonable(key): dump(each) for key, each in value.items()
        }
    if kind in (list, tuple):
        return tuple(map(dump, value)) if kind is tuple and mode == "python" else list(map(dump, value))
    return value if mode == "python" else _jsonable(value)


def _jsonable(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def _accept(hint: Any) -> _Accept:
    """Return a function that returns the value of a type for what was given, or raises ValueError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda given: given
    if origin is Annotated:
        return _accept_annotated(*arguments)
    if origin in (Union, UnionType):
        return _accept_one_of(arguments)
    if origin is Literal:
        return _accept_only(lambda given: type(given) is str and given in arguments)
    if origin is tuple:
        return _accept_tuple(_accept(arguments[0]))
    if origin is Mapping:
        return _accept_mapping(*map(_accept, arguments))
    if hint is float:
        return _accept_number
    if issubclass(hint, Specification):
        return lambda given: given if type(given) is hint else hint._plainly(given)
    return _accept_only(lambda given: type(given) is hint)


def _accept_only(is_right: Callable[[Any], bool]) -> _Accept:
    def accept(given: Any) -> Any:
        if is_right(given):
            return given
        raise _Unsure

    return accept


def _accept_number(given: Any) -> float:
    if type(given) is float or (type(given) is int and abs(given) < 2**53):
        return float(given)
    raise _Unsure


def _accept_tuple(accept_each: _Accept) -> _Accept:
    def accept(given: Any) -> tuple[Any, ...]:
        if type(given) is not list and type(given) is not tuple:
            raise _Unsure
        return tuple([accept_each(each) for each in given])

    return accept


def _accept_mapping(accept_key: _Accept, accept_value: _Accept) -> _Accept:
    def accept(given: Any) -> dict[Any, Any]:
        if type(given) is not dict:
            raise _Unsure
        return {accept_key(key): accept_value(value) for key, value in given.items()}

    return accept


def _accept_annotated(hint: Any, *marks: Any) -> _Accept:
    accept = _accept(hint)
    for mark in marks:
        accept = _accept_within(accept, mark) if isinstance(mark, Limits) else _accept_changed(accept, mark.change)
    return accept


def _accept_within(accept: _Accept, limits: Limits) -> _Accept:
    def accept_limited(given: Any) -> Any:
        if limits.admits(value := accept(given)):
            return value
        raise _Unsure

    return accept_limited


def _accept_changed(accept: _Accept, change: Callable[[Any], Any]) -> _Accept:
    return lambda given: accept(change(given))


def _accept_one_of(members: tuple[Any, ...]) -> _Accept:
    """Return what takes the member of exactly the type that is given, as pydantic prefers it."""
    others = [each for each in members if each is not NoneType]
    if len(others) == 1:
        accept_other = _accept(others[0])
        return lambda given: None if given is None else accept_other(given)
    by_type = {_python_type(each): _accept(each) for each in members if each is not Any}
    accept_any: dict[type, _Accept] = {each: _accept(Any) for each in _PLAIN} if Any in members else {}
    for specification in [each for each in by_type if issubclass(each, Specification)]:
        by_type[dict] = by_type[specification]
    choices: dict[type, _Accept] = {**accept_any, **by_type}

    def accept(given: Any) -> Any:
        if (accept_given := choices.get(type(given))) is None:
            raise _Unsure
        return accept_given(given)

    return accept


def _python_type(hint: Any) -> type:
    """Return the type of values that a member of a union takes as they are."""
    kind: type = dict if get_origin(hint) is Mapping else hint
    return kind
