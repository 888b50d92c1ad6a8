"""A NamedTuple that is cheap to import means what that of the standard library means."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from typing import Any, get_type_hints

import pytest

from fairmile.base.quick_named_tuple import NamedTuple


class Buoy(NamedTuple):
    """A buoy and how deep the sea is there."""

    name: str
    depth_m: float = 10.0

    @property
    def is_deep(self) -> bool:
        return self.depth_m > 100


class Standard(typing.NamedTuple):
    name: str
    depth_m: float = 10.0


class Moored(Buoy):
    """One with a method more."""

    def shout(self) -> str:
        return self.name.upper()


def test_objects_are_tuples_whose_places_have_names() -> None:
    made = Buoy("Alpha", depth_m=120.0)
    name, depth_m = made
    assert (name, depth_m, made.name, made.is_deep) == ("Alpha", 120.0, "Alpha", True)
    assert made == ("Alpha", 120.0)
    assert hash(made) == hash(("Alpha", 120.0))
    assert Buoy("Beta").depth_m == 10.0


@pytest.mark.parametrize(
    "look",
    [
        lambda made: (made._fields, made._field_defaults, made.__match_args__),
        lambda made: made("A")._asdict(),
        lambda made: made("A")._replace(depth_m=2.0)[:],
        lambda made: made._make(["A", 3])[:],
        lambda made: repr(made("A")).partition("(")[2],
        lambda made: [(each.name, each.default) for each in inspect.signature(made).parameters.values()],
        get_type_hints,
        lambda made: made.__mro__[1:],
    ],
)
def test_it_answers_as_that_of_the_standard_library(look: Any) -> None:
    assert look(Buoy) == look(Standard)


@pytest.mark.parametrize("values", [(), ("A", 1, 2)])
def test_values_that_do_not_fit_are_refused_with_the_same_words(values: tuple[Any, ...]) -> None:
    told = []
    for each in (Buoy, Standard):
        with pytest.raises(TypeError) as refused:
            each(*values)
        told.append(str(refused.value).partition("__new__")[2])
    assert told[0] == told[1]


def test_no_place_can_be_set() -> None:
    with pytest.raises(AttributeError):
        Buoy("Alpha").name = "Beta"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Buoy("Alpha").other = 1  # type: ignore[attr-defined]


def test_a_class_that_inherits_makes_objects_of_its_own_before_its_base_does() -> None:
    class First(NamedTuple):
        name: str

    class Second(First):
        pass

    made = Second("A")
    assert type(made) is Second
    assert type(First("A")) is First


def test_objects_survive_being_copied_and_pickled() -> None:
    made = Moored("Alpha")
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (type(again), again, again.shout()) == (Moored, made, "ALPHA")
