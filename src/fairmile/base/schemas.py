"""The JSON Schema of results, from the types that their `to_dict()` returns."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import typing_extensions
from pydantic import TypeAdapter

from fairmile.base.results import Result

_IN_PLACE = "#/$defs/{model}"


def schema_of_results(
    results: tuple[type[Result], ...], *, ref_template: str = _IN_PLACE
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of what one of these results is as JSON, and the definitions that it refers to."""
    schemas = [
        TypeAdapter(_readable(get_type_hints(each.to_dict)["return"])).json_schema(ref_template=ref_template)
        for each in results
    ]
    definitions = {key: value for schema in schemas for key, value in schema.pop("$defs", {}).items()}
    return (schemas[0] if len(schemas) == 1 else {"anyOf": schemas}), definitions


@cache
def _readable_dict(hint: Any) -> Any:
    fields = {name: _readable(each) for name, each in get_type_hints(hint, include_extras=True).items()}
    optional = hint.__optional_keys__
    fields = {
        name: NotRequired[each] if name in optional and get_origin(each) is not NotRequired else each
        for name, each in fields.items()
    }
    return typing_extensions.TypedDict(hint.__name__, fields)  # type: ignore[operator]


def _readable(hint: Any) -> Any:
    """Return a type with every TypedDict as pydantic reads it: before Python 3.12, it refuses those of `typing`.

    Only those are kept: unions of the same types in another order are equal, and each keeps its own order.
    """
    if is_typeddict(hint):
        return _readable_dict(hint)
    arguments = [_readable(each) if isinstance(each, type) or get_args(each) else each for each in get_args(hint)]
    origin = get_origin(hint)
    if not arguments or origin is None or list(get_args(hint)) == arguments:
        return hint
    return (
        reduce(or_, arguments)
        if origin is UnionType
        else origin[arguments[0] if len(arguments) == 1 else tuple(arguments)]
    )
