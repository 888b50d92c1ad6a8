"""Dataclasses that are cheap to import mean what those of the standard library mean."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from fairmile.base.quick_dataclass import dataclass


@dataclass(frozen=True)
class Buoy:
    kind: ClassVar[str] = "float"
    name: str
    depth_m: float = 0.0
    tags: list[str] = field(default_factory=list, compare=False)
    seen: int = field(default=0, kw_only=True, repr=False)


@dataclass(frozen=True)
class Moored(Buoy):
    chain_m: float = 1.0


@dataclass
class Log:
    entries: dict[str, int] = field(default_factory=dict, init=False)
    length: int = field(default=7, init=False)
    start: int = 3

    def __post_init__(self) -> None:
        self.entries["start"] = self.start


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass(frozen=True)
class Reference:
    name: str
    depth_m: float = 0.0


def test_values_are_given_by_place_or_name_and_have_defaults() -> None:
    assert Buoy("fair", 3.5, ["red"], seen=2) == Buoy(depth_m=3.5, name="fair", seen=2)
    assert (Buoy("a").depth_m, Buoy("a").tags, Buoy("a").seen) == (0.0, [], 0)
    assert Buoy("a").tags is not Buoy("a").tags
    assert Moored("a", 1.0, [], 4.0, seen=1).chain_m == 4.0
    for wrong in ({}, {"name": "a", "color": 1}):
        with pytest.raises(TypeError, match="__init__"):
            Buoy(**wrong)
    many: Any = ("a", 1.0, [], 5)
    with pytest.raises(TypeError, match="positional"):
        Buoy(*many)


def test_fields_that_are_no_arguments_are_set_and_post_init_is_called() -> None:
    log = Log(5)
    assert (log.entries, log.length, log.start) == ({"start": 5}, 7, 5)
    log.start = 6
    assert log.start == 6


def test_equality_hash_and_repr_are_those_of_the_standard_library() -> None:
    assert repr(Buoy("a", 1.0)) == "Buoy(name='a', depth_m=1.0, tags=[])"
    assert repr(Point(1)) == repr(dataclasses.make_dataclass("Point", ["x", "y"])(1, 0))
    assert Buoy("a", tags=["x"]) == Buoy("a") and Buoy("a") != Buoy("b") and Buoy("a") != Moored("a")
    assert Buoy("a") != Reference("a")
    assert hash(Buoy("a", tags=["x"])) == hash(Buoy("a")) and len({Point(1), Point(1), Point(2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Log())


def test_what_a_class_defines_itself_stays() -> None:
    @dataclass(frozen=True)
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "own"

    assert Own(1) == Own(2) and repr(Own(1)) == "own" and hash(Own(1)) == hash(Own(1))


@pytest.mark.parametrize("value", [Buoy("a"), Point(1)], ids=["plain", "slots"])
def test_a_frozen_one_cannot_be_changed(value: Any) -> None:
    name = dataclasses.fields(value)[0].name
    for change in (lambda: setattr(value, name, 1), lambda: delattr(value, name), lambda: setattr(value, "new", 1)):
        with pytest.raises(FrozenInstanceError, match=r"cannot (assign to|delete) field"):
            change()


def test_a_subclass_that_is_no_dataclass_has_attributes_of_its_own() -> None:
    class Painted(Buoy):
        color = ""

    painted = Painted("a")
    painted.color = "red"
    assert painted.color == "red"
    with pytest.raises(FrozenInstanceError):
        painted.name = "b"  # type: ignore[misc]


def test_the_functions_of_the_standard_library_work() -> None:
    buoy = Buoy("a", 1.0, ["x"])
    assert dataclasses.replace(buoy, name="b") == Buoy("b", 1.0)
    assert dataclasses.asdict(buoy) == {"name": "a", "depth_m": 1.0, "tags": ["x"], "seen": 0}
    assert str(inspect.signature(Point)) == "(x: 'int', y: 'int' = 0) -> None"
    for value in (buoy, Point(1, 2), Log(4), Moored("m")):
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_threads_may_make_the_first_instances_at_once() -> None:
    @dataclass(frozen=True)
    class First:
        a: int

    barrier, made = threading.Barrier(8), []

    def make(number: int) -> None:
        barrier.wait()
        made.append(First(number))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.a for each in made) == list(range(8))


def test_fields_are_found_at_their_first_use() -> None:
    @dataclass
    class Tide:
        heights: list[float] = field(default_factory=list)

    assert not isinstance(Tide.__dict__["__dataclass_fields__"], dict)
    assert [each.name for each in dataclasses.fields(Tide)] == ["heights"]
    assert isinstance(Tide.__dict__["__dataclass_fields__"], dict) and Tide.__match_args__ == ("heights",)
    assert Tide().heights == []


@dataclass(frozen=True)
class Sounding:
    """A class of which one object after the other is made."""

    depth_m: float
    notes: list[str] = field(default_factory=list)
    place: str = "fairway"


def test_each_object_is_made_alike_however_many_there_were_before() -> None:
    for number in range(100):
        each = Sounding(number, place="bar")
        assert (each.depth_m, each.notes, each.place) == (number, [], "bar")
        assert each.notes is not Sounding(number).notes
        for wrong in ((), (1.0, [], "bar", 2)):
            with pytest.raises(TypeError, match=r"__init__\(\) (missing 1|takes from 2 to 4)"):
                Sounding(*wrong)
        with pytest.raises(TypeError, match="multiple values for argument 'depth_m'"):
            Sounding(1.0, depth_m=2.0)  # type: ignore[misc]
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            Sounding(1.0, colour="red")  # type: ignore[call-arg]
