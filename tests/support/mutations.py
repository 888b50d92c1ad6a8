"""JSON documents changed at random: any value, any place, and where a key ended up."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from effort import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

Place = tuple[Any, ...]

UNKNOWN = "x-unknown-key"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# A key with a prefix such as sc: is a term of a vocabulary, which a reader may write in another way.
_KEYS = TEXTS.filter(lambda text: ":" not in text)
# Whole numbers as far as every JSON reader gives them back unchanged.
_WHOLE = st.integers(-(2**53) + 1, 2**53 - 1)
_SCALARS = st.none() | st.booleans() | _WHOLE | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=6
)
anything = settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the path of every value inside the value, the value itself first."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*path, key))


def at(value: Any, path: Place) -> Any:
    """Return the value that stands at the path."""
    for key in path:
        value = value[key]
    return value


def values_under(value: Any, wanted: str) -> Iterator[Any]:
    """Yield every value that stands under the wanted key, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == wanted:
                yield inner
            yield from values_under(inner, wanted)
    elif isinstance(value, list):
        for inner in value:
            yield from values_under(inner, wanted)


def add_unknown_key(data: st.DataObject, body: Any) -> tuple[Place, Any]:
    """Put UNKNOWN with any value into one of the mappings of the body; return where, and the value."""
    place = data.draw(st.sampled_from([place for place in places(body) if isinstance(at(body, place), dict)]))
    value = data.draw(VALUES)
    at(body, place)[UNKNOWN] = value
    return place, value


def replace_a_value(data: st.DataObject, body: Any, others: st.SearchStrategy[Any]) -> None:
    """Put one of the others in the place of a value inside the body."""
    place = data.draw(st.sampled_from(list(places(body))[1:]))
    # A copy: what hypothesis hands out twice must not end up inside itself.
    at(body, place[:-1])[place[-1]] = copy.deepcopy(data.draw(others))
