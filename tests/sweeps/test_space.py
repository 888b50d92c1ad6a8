"""Spaces: order, links, exclusions, inclusions, repeats, identities, and no memory."""

from __future__ import annotations

import tracemalloc
from itertools import islice
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.sweeps.axes import values
from fairmile.sweeps.model import Points
from fairmile.sweeps.space import Space


def ids(space: Points) -> list[str]:
    points = list(space)
    assert len(points) == len(space)
    assert len({point.id for point in points}) == len(points)
    return [point.id for point in points]


def test_the_last_axis_is_the_fastest_and_numbers_count_from_0() -> None:
    space = Space({"lr": [0.1, 0.01], "model": ["a", "b"], "seed": [7]})
    assert ids(space) == [
        "lr_0.1_model_a_seed_7",
        "lr_0.1_model_b_seed_7",
        "lr_0.01_model_a_seed_7",
        "lr_0.01_model_b_seed_7",
    ]
    assert [point.number for point in space] == [0, 1, 2, 3]
    first = next(iter(space))
    assert dict(first.values) == {"lr": 0.1, "model": "a", "seed": 7}
    assert first.repeat is None
    assert space.axes == {"lr": [0.1, 0.01], "model": ["a", "b"], "seed": [7]}


def test_two_walks_at_once_do_not_disturb_each_other() -> None:
    space = Space({"a": [1, 2], "b": [3, 4]})
    assert [(one.id, other.id) for one, other in zip(space, space, strict=True)] == [
        (each, each) for each in ids(space)
    ]


def test_linked_axes_advance_together_at_the_place_of_the_first() -> None:
    space = Space({"a": [1, 2], "b": ["x", "y"], "c": [3, 3]}, linked=[["c", "a"]])
    assert ids(space) == ["a_1_b_x_c_3", "a_1_b_y_c_3", "a_2_b_x_c_3", "a_2_b_y_c_3"]


def test_linked_axes_of_different_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="a has 2 values, b has 3 values"):
        Space({"a": [1, 2], "b": [1, 2, 3]}, linked=[["a", "b"]])
    with pytest.raises(UsageError, match="linked twice"):
        Space({"a": [1], "b": [1], "c": [1]}, linked=[["a", "b"], ["b", "c"]])


@for_each(
    "exclude, left",
    [
        (["a == 1 and b == 'x'"], ["a_1_b_y", "a_2_b_x", "a_2_b_y"]),
        ([{"a": 1, "b": "x"}], ["a_1_b_y", "a_2_b_x", "a_2_b_y"]),
        ([{"a": "1"}], ["a_2_b_x", "a_2_b_y"]),
        ([{"b": ["x", "y"]}], []),
        (["a == 1", {"b": "y"}], ["a_2_b_x"]),
    ],
)
def test_exclusions_are_conditions_or_mappings(exclude: list[Any], left: list[str]) -> None:
    assert ids(Space({"a": [1, 2], "b": ["x", "y"]}, exclude=exclude)) == left


def test_an_exclusion_may_look_at_axes_with_one_value() -> None:
    assert ids(Space({"a": [1], "b": [1, 2]}, exclude=["a == 1"])) == []
    assert ids(Space({"a": [1], "b": [1, 2]}, exclude=["a == 1 and b == 2"])) == ["a_1_b_1"]


def test_included_points_come_behind_and_may_have_values_of_their_own() -> None:
    space = Space({"a": [1, 2], "b": ["x"]}, include=[{"a": 5}, {"a": [2, 6, 6], "b": "z"}])
    assert ids(space) == ["a_1_b_x", "a_2_b_x", "a_5_b_x", "a_2_b_z", "a_6_b_z"]
    assert space.axes == {"a": [1, 2, 5, 6], "b": ["x", "z"]}
    assert [point.number for point in space] == [0, 1, 2, 3, 4]


def test_an_included_point_that_is_there_is_not_doubled_but_one_that_was_excluded_comes_back() -> None:
    assert ids(Space({"a": [1, 2]}, include=[{"a": 2}])) == ["a_1", "a_2"]
    assert ids(Space({"a": [1, 2, 3]}, include=[{"a": 2}], exclude=["a > 1"])) == ["a_1", "a_2"]
    linked = Space({"a": [1, 2], "b": [1, 2]}, linked=[["a", "b"]], include=[{"a": 1, "b": 2}, {"a": 2, "b": 2}])
    assert ids(linked) == ["a_1_b_1", "a_2_b_2", "a_1_b_2"]


def test_an_inclusion_must_say_the_value_of_every_axis_that_varies() -> None:
    with pytest.raises(UsageError, match="lacks a value for 'b'"):
        Space({"a": [1, 2], "b": [1, 2]}, include=[{"a": 5}])


def test_repeats_are_innermost() -> None:
    points = list(Space({"a": [1, 2]}, repeats=2))
    assert [(point.number, point.id, point.repeat) for point in points] == [
        (0, "a_1_repeat_1", 1),
        (1, "a_1_repeat_2", 2),
        (2, "a_2_repeat_1", 1),
        (3, "a_2_repeat_2", 2),
    ]
    assert dict(points[1].values) == {"a": 1}
    assert ids(Space({}, repeats=2)) == ["repeat_1", "repeat_2"]
    assert ids(Space({})) == ["point"]
    with pytest.raises(UsageError, match="repeats is 0"):
        Space({"a": [1]}, repeats=0)


@for_each("select", ["a == 2", "b == 'y'", "a == 2 and b == 'y'", "c == 9", "c == 8", "a > 4"])
def test_a_selection_changes_neither_number_nor_id_of_what_it_leaves(select: str) -> None:
    rest: dict[str, Any] = {
        "axes": {"a": [1, 2, 3], "b": ["x", "y"], "c": [9], "d": [1, 2]},
        "exclude": ["a == 1 and d == 2", {"a": 3, "b": "x"}],
        "include": [{"a": 5, "b": "y", "d": 4}],
        "repeats": 2,
    }
    every = {point.id: point for point in Space(**rest)}
    chosen = Space(**rest, select=select)
    assert {point.number for point in every.values()} == set(range(len(every)))
    assert len(chosen) == len(list(chosen))
    for point in chosen:
        assert every[point.id] == point
    named = select.split()[0]
    expected = [each for each in every.values() if str(each.values[named]) in select.replace("> 4", "5")]
    assert [point.id for point in chosen] == [
        each.id for each in expected if "and" not in select or each.values["b"] == "y"
    ]


@for_each("key", ["linked", "exclude", "include", "select"])
def test_an_unknown_axis_is_answered_with_the_nearest(key: str) -> None:
    said: dict[str, Any] = {
        "linked": [["epoch", "epochs"]],
        "exclude": ["epoch > 1"],
        "include": [{"epoch": 1}],
        "select": "epoch > 1",
    }
    with pytest.raises(UsageError, match="no axis named 'epoch'; did you mean 'epochs'"):
        Space({"epochs": [1, 2]}, **{key: said[key]})


def test_messages_begin_with_the_place() -> None:
    with pytest.raises(UsageError, match=r"^s\.yaml:exclude:0 exclude\.0: no axis"):
        Space({"a": [1]}, exclude=["b > 1"], origin=lambda *path: "s.yaml:" + ":".join(map(str, path)))


# Identities


@for_each(
    "value, id",
    [
        ("12:00:00", "a_12:00:00"),
        ("a100-dgx", "a_a100-dgx"),
        (".5", "a_.5"),
        ("é", "a_é"),
        (False, "a_False"),
        (None, "a_null"),
        ("", "a_"),
        (1e-05, "a_1e-05"),
    ],
)
def test_a_value_that_a_file_name_can_hold_stands_as_it_is(value: Any, id: str) -> None:
    assert ids(Space({"a": [value]})) == [id]


@pytest.mark.parametrize(
    "value", ["/data/x", "..", "../x", ".hidden", "a b", "a\tb", "a\0b", "a\nb", "$(rm)", "a'b", "*", "\udc80", "/"]
)
def test_a_value_that_none_can_hold_is_replaced_readably_and_always_alike(value: str, tmp_path: Any) -> None:
    (id,) = ids(Space({"a": [value]}))
    (tmp_path / id).mkdir()
    assert id.startswith("a_")
    assert not set(id) & set("/\0\n\t $'*")
    assert ids(Space({"a": [value, "other"]}))[0] == id


def test_values_that_become_the_same_text_keep_different_ids() -> None:
    assert len(set(ids(Space({"a": ["x/y", "x-y", "x y", "x//y"]})))) == 4
    assert len(set(ids(Space({"a": [1, "1", 1.0, True, "True"]})))) == 5


def test_ids_of_which_two_would_be_equal_are_refused() -> None:
    with pytest.raises(UsageError, match="two points have the same id a_1_b_2_b_2"):
        Space({"a": ["1", "1_b_2"], "b": ["2", "2_b_2"]})
    with pytest.raises(UsageError, match="two points have the same id"):
        Space({"a": ["v", "v_x"], "x_x": ["1", "x_1"]})
    assert len(ids(Space({"model": ["cnn", "cnn_large"], "directive": ["gpu", "gpu_2"], "gpu": [1, 2]}))) == 8
    assert len(ids(Space({"a": ["1", "1_b_2"], "b": ["2", "3"]}))) == 4


def test_only_axes_that_vary_may_make_the_id() -> None:
    axes: dict[str, list[Any]] = {"a": [1], "b": [1, 2], "c": ["x"]}
    assert ids(Space(axes, identify="axes that vary")) == ["b_1", "b_2"]
    assert ids(Space({"a": [1], "c": ["x"]}, identify="axes that vary")) == ["a_1_c_x"]


def test_an_id_longer_than_a_file_name_is_refused_with_axes_and_length() -> None:
    axes = {"first": ["x" * 200], "second": ["y" * 60, "z"]}
    with pytest.raises(UsageError, match="274 bytes, but a file name has at most 255") as caught:
        Space(axes)
    assert "first_x" in caught.value.message
    assert "second_y" in caught.value.message
    assert len(Space(axes, exclude=[{"second": "y" * 60}])) == 1
    assert len(ids(Space({"a": ["é" * 126 + "x"]}))) == 1
    with pytest.raises(UsageError, match="256 bytes"):
        Space({"a": ["é" * 127]})
    with pytest.raises(UsageError, match="264 bytes"):
        Space({"a": ["x" * 253]}, repeats=2)


# Size


@pytest.mark.thorough
def test_a_million_points_are_counted_at_once_and_walked_without_being_held() -> None:
    space = Space({name: list(range(10)) for name in "abcdef"})
    assert len(space) == 1_000_000
    walk = iter(space)
    next(walk)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in islice(walk, 50_000):
            pass
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # of which other threads of the test run may take some; 50,000 points would take 20 MB


def test_what_is_excluded_as_a_whole_is_not_walked() -> None:
    axes = {name: list(range(100)) for name in "abcde"}
    space = Space(axes, exclude=["a > 0"], select="b == 3")
    assert len(space) == 1_000_000
    assert next(iter(space)).number == 3_000_000
    with pytest.raises(UsageError, match="combinations"):
        Space({name: list(range(100)) for name in "abcdefgh"})


def test_ids_are_those_of_cloudmesh() -> None:
    said = {"directive": "a100-dgx,v100", "epoch": "[1-2]", "repeat": "[08-09]", "no_cache": False}
    axes = {name: values(each, typed=False, where=name) for name, each in said.items()}
    assert ids(Space(axes))[:3] == [
        "directive_a100-dgx_epoch_1_repeat_08_no_cache_False",
        "directive_a100-dgx_epoch_1_repeat_09_no_cache_False",
        "directive_a100-dgx_epoch_2_repeat_08_no_cache_False",
    ]
