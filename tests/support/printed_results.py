"""What a result must be: data of the type that it declares, exactly what the command prints, short as a `repr`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from fairmile.base.results import Result


def assert_printed(fairmile: Callable[..., Any], result: Result, *arguments: str) -> None:
    """Check a result, and that the command line prints it with `--json`."""
    assert_sound(result)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    done = fairmile(*arguments[:at], "--json", *arguments[at:])
    assert done.json == result.to_dict(), done.err


def assert_sound(result: Result) -> None:
    """Check that a result is data of its declared type, no key more or less, and has a short `repr`."""
    misfits = list(_misfits(result.to_dict(), get_type_hints(type(result).to_dict)["return"], ""))
    assert not misfits
    assert repr(result).startswith(f"<{type(result).__name__}: ")
    assert len(repr(result)) <= 200


def _misfits(value: Any, hint: Any, path: str) -> list[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _misfits(value, arguments[0], path)
    if is_typeddict(hint):
        return _misfits_of_keys(value, get_type_hints(hint, include_extras=True), path)
    if origin in (Union, UnionType):
        ways = [_misfits(value, each, path) for each in arguments]
        return [] if [] in ways else max(ways, key=len)
    if origin is list and type(value) is list:
        return [each for at, item in enumerate(value) for each in _misfits(item, arguments[0], f"{path}[{at}]")]
    if origin is dict and type(value) is dict:
        names = [each for name in value for each in _misfits(name, arguments[0], f"{path} key {name!r}")]
        return names + [each for name, item in value.items() for each in _misfits(item, arguments[1], f"{path}.{name}")]
    if origin is Literal:
        fits = value in arguments
    elif isinstance(hint, type) and issubclass(hint, Enum):
        fits = isinstance(value, hint)
    else:
        fits = hint is Any or type(value) is hint or (hint is float and type(value) is int)
        fits = fits or (hint is NoneType and value is None)
    return [] if fits else [f"{path}: {value!r} is no {hint}"]


def _misfits_of_keys(value: Any, fields: dict[str, Any], path: str) -> list[str]:
    if type(value) is not dict:
        return [f"{path}: {value!r} is no dictionary"]
    optional = {name for name, hint in fields.items() if get_origin(hint) is NotRequired}
    wrong = (value.keys() - fields.keys()) | (fields.keys() - optional - value.keys())
    misfits = [f"{path}.{name} is not declared, or is missing" for name in sorted(wrong)]
    for name in value.keys() & fields.keys():
        hint = get_args(fields[name])[0] if name in optional else fields[name]
        misfits += _misfits(value[name], hint, f"{path}.{name}")
    return misfits
