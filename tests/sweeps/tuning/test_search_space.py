"""The space of a tuning: what can be drawn from, in which order, and what a grid holds."""

from __future__ import annotations

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.sweeps.tuning.search_space import Dimension, Space

CHOICE = {"kind": "choice", "choices": ["adam", "sgd"]}
UNIFORM = {"kind": "uniform", "low": 0, "high": 1}


def _lowest(dimension: Dimension):
    return dimension.choices[0] if dimension.choices else dimension.low


def _origin(*path):
    return f"study.yaml:{len(path)}"


def test_a_point_has_a_value_for_each_distribution_in_the_order_of_the_file():
    space = Space({"lr": UNIFORM, "layers": {"kind": "integer", "low": 1, "high": 4}, "optimizer": CHOICE})
    assert list(space.draw(_lowest).items()) == [("lr", 0.0), ("layers", 1), ("optimizer", "adam")]


def test_a_condition_is_judged_after_what_it_asks_for_wherever_it_stands():
    space = Space({"momentum": {**UNIFORM, "when": "optimizer == 'sgd'"}, "lr": UNIFORM, "optimizer": CHOICE})
    assert [each.name for each in space.dimensions] == ["lr", "optimizer", "momentum"]
    assert space.draw(_lowest) == {"lr": 0.0, "optimizer": "adam"}
    sgd = space.draw(lambda each: "sgd" if each.name == "optimizer" else 0.5)
    assert list(sgd.items()) == [("momentum", 0.5), ("lr", 0.5), ("optimizer", "sgd")]


def test_a_condition_on_a_parameter_that_is_absent_fails():
    space = Space(
        {
            "optimizer": CHOICE,
            "momentum": {**UNIFORM, "when": "optimizer == 'sgd'"},
            "nesterov": {"kind": "choice", "choices": [True, False], "when": "momentum < 0.5 or momentum >= 0.5"},
        }
    )
    assert space.draw(_lowest) == {"optimizer": "adam"}


def test_a_grid_walks_the_last_dimension_fastest_and_leaves_out_what_does_not_apply():
    space = Space(
        {
            "optimizer": CHOICE,
            "momentum": {"kind": "uniform", "low": 0, "high": 0.3, "step": 0.1, "when": "optimizer == 'sgd'"},
            "layers": {"kind": "integer", "low": 2, "high": 5, "step": 2},
        }
    )
    points = [tuple(point.values()) for point in space.grid()]
    assert points == [
        ("adam", 2),
        ("adam", 4),
        *[("sgd", momentum, layers) for momentum in (0.0, 0.1, 0.2, 0.3) for layers in (2, 4)],
    ]


def test_a_range_that_its_step_does_not_divide_ends_at_the_last_step():
    (dimension,) = Space({"x": {"kind": "uniform", "low": 0.1, "high": 0.95, "step": 0.2}}).dimensions
    assert list(dimension.every()) == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert dimension.high == 0.9


def test_a_drawn_value_between_steps_is_written_without_the_dust_of_binary_fractions():
    (dimension,) = Space({"x": {"kind": "uniform", "low": 0.0, "high": 1.0, "step": 0.1}}).dimensions
    assert dimension.tidy(0.1 + 0.2) == 0.3


def test_a_grid_over_a_continuous_range_is_refused():
    with pytest.raises(UsageError, match="lr is continuous") as caught:
        list(Space({"lr": UNIFORM}).grid())
    assert "step" in str(caught.value.hint)


@for_each(
    "said, message, hint",
    [
        ({"kind": "unifrom", "low": 0, "high": 1}, "'unifrom' is not a kind", "'uniform'"),
        ({"kind": "uniform", "low": 1, "high": 1}, "is empty", "lower end"),
        ({"kind": "uniform", "low": 2, "high": 1}, "is empty", "lower end"),
        ({"kind": "uniform", "low": 0, "high": 1, "log": True}, "cannot start at 0", "above 0"),
        ({"kind": "uniform", "low": 0.1, "high": 1, "log": True, "step": 0.1}, "cannot have a step", "choice"),
        ({"kind": "integer", "low": 1, "high": 64, "log": True, "step": 2}, "cannot have a step", "choice"),
        ({"kind": "uniform", "low": 0, "high": 1, "step": 2}, "step 2 does not fit", None),
        ({"kind": "uniform", "low": 0, "high": 1, "step": 0}, "step 0 does not fit", None),
        ({"kind": "uniform", "low": 0, "high": float("nan")}, "'high' must be a number", None),
        ({"kind": "uniform", "low": False, "high": 1}, "'low' must be a number", None),
        ({"kind": "uniform", "low": "0", "high": 1}, "'low' must be a number", None),
        ({"kind": "integer", "low": 0.5, "high": 3}, "must be an integer", "uniform"),
        ({"kind": "choice", "choices": []}, "must be a list", None),
        ({"kind": "choice", "choices": [[1], [2]]}, "not a single value", None),
        ({"kind": "choice", "choices": [1, 2, 1]}, "appears twice", None),
        ({"kind": "choice", "choices": [1, True]}, "appears twice", "true equals 1"),
        ({"kind": "choice", "choices": ["a"], "low": 3}, "has no 'low'", None),
        ({"kind": "uniform", "low": 0, "high": 1, "when": 3}, "`when` must be a condition", "optimizer"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused_with_its_place(said, message, hint):
    with pytest.raises(UsageError, match=message) as caught:
        Space({"x": said}, _origin)
    assert str(caught.value).startswith("study.yaml:2 axes.x: ")
    if hint:
        assert hint in str(caught.value.hint)


def test_a_condition_on_an_unknown_name_names_the_nearest():
    with pytest.raises(UsageError, match=r"study.yaml:2 axes.momentum: .*'optimiser'") as caught:
        Space({"optimizer": CHOICE, "momentum": {**UNIFORM, "when": "optimiser == 'sgd'"}}, _origin)
    assert caught.value.hint == "did you mean 'optimizer'?"


def test_conditions_in_a_circle_are_shown_as_one():
    axes = {"free": UNIFORM, "a": {**UNIFORM, "when": "b > 0"}, "b": {**UNIFORM, "when": "c > 0"}}
    with pytest.raises(UsageError, match=r"axes\.b: conditions form a cycle: b → c → b"):
        Space({**axes, "c": {**UNIFORM, "when": "b > 0"}})


def test_a_condition_on_itself_is_a_circle():
    with pytest.raises(UsageError, match="x → x"):
        Space({"x": {**UNIFORM, "when": "x > 0"}})


def test_no_distributions_are_nothing_to_tune():
    with pytest.raises(UsageError, match="nothing to tune"):
        Space({})
