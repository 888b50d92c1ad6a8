"""Specifications are accepted without pydantic while they are plainly right, and judged by it otherwise."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pytest
from cases import for_each
from pydantic import BaseModel, ValidationError

from fairmile.base.documents import model_of
from fairmile.base.errors import InvalidDocument
from fairmile.base.specifications import Before, Limits, Specification, check, dump_value, errors_of


class Anchor(Specification):
    weight_kg: Annotated[float, Limits(gt=0, finite=True)] = 10.0


class Buoy(Specification):
    """A buoy of these tests."""

    file_names: ClassVar[Mapping[str, str]] = {"class_": "class"}
    earlier_names: ClassVar[Mapping[str, str]] = {"depth_m": "depth"}
    name: Annotated[str, Limits(pattern="^[a-z]+$")]
    class_: Literal["can", "spar", ""] = ""
    depth_m: Annotated[float, Limits(ge=0, le=11_000)] | None = None
    lights: Annotated[tuple[str, ...], Before(lambda given: given.split() if isinstance(given, str) else given)] = ()
    anchors: Annotated[Mapping[str, Anchor], Limits(min_length=1)] = {"main": Anchor()}
    anchor: Anchor = Anchor()
    is_lit: bool = True
    params: Mapping[str, str | int | float | bool | None] = {}
    over: Mapping[str, Anchor | Any] | str = ""

    @check("lights")
    @classmethod
    def _have_colours(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "black" in value:
            raise ValueError("black is no light")
        return value

    def _check_whole(self) -> None:
        if self.lights and not self.is_lit:
            raise ValueError("lights of an unlit buoy")


GIVEN: list[dict[str, Any]] = [
    {"name": "red"},
    {"name": "red", "class": "can", "depth_m": 3, "lights": "red green"},
    {"name": "red", "class_": "spar", "depth": 2.5, "lights": ["red"]},
    {"name": "red", "anchors": {"a": {"weight_kg": 1}, "b": Anchor()}, "anchor": {"weight_kg": 2.0}},
    {"name": "red", "params": {"a": 1, "b": 1.5, "c": True, "d": None, "e": "x"}, "over": "sweep.yaml"},
    {"name": "red", "over": {"a": [1, 2], "b": {"weight_kg": 3}, "c": {"other": 1}, "d": 1, "e": None}},
    {"name": "red", "depth_m": "3", "is_lit": "yes", "anchor": {"weight_kg": "4"}},  # these are converted
]
WRONG: list[Any] = [
    {},
    "red",
    {"name": "Red"},
    {"name": 3},
    {"name": "red\n"},
    {"name": "red", "colour": "red"},
    {"name": "red", "depth_m": -1},
    {"name": "red", "depth_m": float("nan")},
    {"name": "red", "depth_m": 1, "depth": 2},
    {"name": "red", "class": "ball"},
    {"name": "red", "lights": "black"},
    {"name": "red", "lights": "red", "is_lit": False},
    {"name": "red", "anchors": {}},
    {"name": "red", "anchors": {"a": {"weight_kg": 0}}},
    {"name": "red", "anchor": {"weight_kg": float("inf")}},
]


@for_each("given", GIVEN)
def test_what_is_accepted_is_what_pydantic_makes_of_it(given: dict[str, Any]) -> None:
    buoy = Buoy.model_validate(given)
    judged = model_of(Buoy).model_validate(given)
    assert repr(buoy) == repr(Buoy.of_model(judged)) and buoy == Buoy.of_model(judged)
    assert buoy.model_fields_set == judged.model_fields_set
    for options in ({}, {"mode": "json"}, {"exclude_defaults": True}, {"by_alias": True, "exclude": {"name"}}):
        assert buoy.model_dump(**options) == judged.model_dump(**options)  # type: ignore[arg-type]
    assert Buoy.model_validate(buoy.model_dump()) == buoy


@for_each("given", WRONG)
def test_what_is_wrong_is_told_as_pydantic_tells_it(given: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Buoy.model_validate(given)
    with pytest.raises(ValidationError) as expected:
        model_of(Buoy).model_validate(given)
    told = [(each["loc"], each["type"], each["msg"]) for each in errors_of(caught.value)]
    assert told == [(each["loc"], each["type"], each["msg"]) for each in expected.value.errors()]


def test_keywords_are_checked_as_a_mapping_is() -> None:
    assert Buoy(name="red", depth_m=3) == Buoy.model_validate({"name": "red", "depth_m": 3.0})
    assert Buoy(name="red", lights="red green").lights == ("red", "green")  # type: ignore[arg-type]
    with pytest.raises(InvalidDocument, match="black is no light"):
        Buoy(name="red", lights=("black",))


@for_each(
    "given, message, hint",
    [
        ({}, "Buoy.name: is missing", None),
        ({"name": "red", "anchr": {}}, "Buoy.anchr: no such field", "did you mean 'anchor'?"),
        (
            {"name": "red", "anchor": {"weight": 1}},
            "Buoy.anchor.weight: no such field",
            "did you mean 'weight_kg'?",
        ),
        ({"name": "red", "anchor": 3}, "Buoy.anchor: expected a mapping with weight_kg, found 3", None),
        ({"name": "Red"}, "Buoy.name: expected text that matches '^[a-z]+$', found 'Red'", None),
        ({"name": "red", "depth_m": -1}, "Buoy.depth_m: expected at least 0, found -1", None),
        ({"name": "red", "depth_m": "deep"}, "Buoy.depth_m: expected a number, found 'deep'", None),
        ({"name": "red", "lights": 3}, "Buoy.lights: expected a list, found 3", None),
        ({"name": "red", "class_": "ball"}, "Buoy.class_: expected 'can', 'spar' or '', found 'ball'", None),
        ({"name": "red", "lights": "red", "is_lit": False}, "Buoy: lights of an unlit buoy", None),
    ],
)
def test_a_wrong_keyword_is_one_sentence(given: dict[str, Any], message: str, hint: str | None) -> None:
    with pytest.raises(InvalidDocument) as caught:
        Buoy(**given)
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_it_does_not_change_and_can_be_copied() -> None:
    buoy = Buoy(name="red")
    with pytest.raises(AttributeError, match="model_copy"):
        buoy.name = "green"  # type: ignore[misc]
    assert buoy.model_copy(update={"name": "green"}) == Buoy(name="green") != buoy
    assert pickle.loads(pickle.dumps(buoy)) == copy.deepcopy(buoy) == buoy
    assert hash(Anchor()) == hash(Anchor(weight_kg=10)) and {Anchor(), Anchor()} == {Anchor()}


def test_a_model_of_pydantic_can_hold_one() -> None:
    class Harbour(BaseModel):
        anchor: Anchor = Anchor()

    assert Harbour.model_validate({"anchor": {"weight_kg": "2"}}).anchor == Anchor(weight_kg=2)
    assert Harbour(anchor=Anchor()).model_dump() == {"anchor": {"weight_kg": 10.0}}
    assert Harbour.model_json_schema()["$defs"]["Anchor"]["properties"]["weight_kg"]["exclusiveMinimum"] == 0


def test_values_hold_mappings_in_place_of_specifications() -> None:
    assert dump_value({"a": [Anchor()], "b": (1, 2)}, mode="json", exclude_defaults=True) == {"a": [{}], "b": [1, 2]}


def test_no_other_error_is_taken_for_one_of_pydantic() -> None:
    with pytest.raises(ZeroDivisionError):
        errors_of(ZeroDivisionError())


def test_a_flow_that_is_plainly_right_does_not_load_pydantic() -> None:
    code = (
        "import sys\n"
        "from fairmile.flows.model import Flow\n"
        "step = {'shell': 'a', 'over': {'n': '1..3'}, 'inputs': 'b', 'outputs': ['c'], 'timeout': '1 min'}\n"
        "step |= {'resources': {'nodes': 1, 'time_s': '1h'}, 'metrics': {'loss': {'better': 'lower'}}, 'retries': 2}\n"
        "Flow.model_validate({'name': 'tides', 'steps': {'a': step}, 'params': {'x': 1}, 'limits': {'local': 2}})\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
