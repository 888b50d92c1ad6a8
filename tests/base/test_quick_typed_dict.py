"""A TypedDict that is cheap to import means what that of the standard library means."""

from __future__ import annotations

from typing import NotRequired, get_type_hints, is_typeddict

from fairmile.base.quick_typed_dict import TypedDict


class Buoy(TypedDict):
    name: str
    depth_m: NotRequired[float]


class Moored(Buoy, total=False):
    chain_m: float


def test_keys_and_types_are_declared() -> None:
    assert is_typeddict(Moored)
    assert get_type_hints(Moored) == {"name": str, "depth_m": float, "chain_m": float}
    assert (Buoy.__required_keys__, Buoy.__optional_keys__) == ({"name"}, {"depth_m"})
    assert (Moored.__required_keys__, Moored.__optional_keys__) == ({"name"}, {"depth_m", "chain_m"})


def test_what_it_makes_is_a_plain_dictionary() -> None:
    made = Buoy(name="Alpha")
    assert made == {"name": "Alpha"}
    assert type(made) is dict
