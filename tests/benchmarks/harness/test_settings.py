"""Settings of a benchmark: defaults, and parameters of a run on top, each checked."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.settings import TrainSettings, option, read_settings
from fairmile.benchmarks.program import SETTINGS, folder_of, load, names


@dataclass(frozen=True, kw_only=True)
class Own(TrainSettings):
    epochs: int = option(7, "passes")
    grid: tuple[int, ...] = option((8, 8), "cells")
    case: Literal["warm", "cold"] = option("warm", "which bubble")
    share: float = option(0.5, "part", least=0, most=1)
    limit: float | None = option(None, "none: no limit")


def test_defaults_are_the_benchmarks_own_before_those_of_all() -> None:
    found = read_settings(Own, {})
    assert (found.epochs, found.grid, found.case, found.limit) == (7, (8, 8), "warm", None)
    assert found.batch_size == TrainSettings().batch_size


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("epochs", 3, 3),
        ("epochs", "3", 3),
        ("epochs", 1e3, 1000),
        ("learning_rate", "1e-3", 0.001),
        ("learning_rate", 1, 1.0),
        ("compile", True, True),
        ("compile", "no", False),
        ("grid", "16,32", (16, 32)),
        ("grid", 4, (4,)),
        ("grid", "", ()),
        ("case", "cold", "cold"),
        ("limit", "2.5", 2.5),
        ("limit", None, None),
        ("stage", None, ""),
    ],
)
def test_a_parameter_becomes_what_its_field_is(name: str, value: object, expected: object) -> None:
    found = getattr(read_settings(Own, json.loads(json.dumps({name: value}))), name)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "message", "hint"),
    [
        ("epoch", 3, "no parameter named 'epoch'", "did you mean 'epochs'?"),
        ("epochs", "many", "parameter epochs: expected a whole number, found 'many'", None),
        ("epochs", 2.5, "parameter epochs: expected a whole number, found 2.5", None),
        ("epochs", True, "parameter epochs: expected a whole number, found True", None),
        ("compile", "perhaps", "parameter compile: expected true or false, found 'perhaps'", None),
        ("grid", "8,x", "parameter grid: expected a whole number, found 'x'", None),
        ("case", "hot", "parameter case: 'hot' is not one of warm, cold", None),
        (
            "precision",
            "bf17",
            "parameter precision: 'bf17' is not one of fp32, tf32, bf16, fp16",
            "did you mean 'bf16'?",
        ),
        ("epochs", 0, "parameter epochs: expected at least 1, found 0", None),
        ("learning_rate", 0.0, "parameter learning_rate: expected a number above 0, found 0", None),
        ("share", 1.5, "parameter share: expected at most 1, found 1.5", None),
        ("share", -1, "parameter share: expected at least 0, found -1", None),
        ("learning_rate", "nan", "parameter learning_rate: expected a number, found 'nan'", None),
    ],
)
def test_anything_else_is_one_sentence(name: str, value: object, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        read_settings(Own, {name: value})
    assert str(caught.value) == message
    assert hint is None or hint in str(caught.value.hint)


@pytest.mark.parametrize("benchmark", names())
def test_a_seed_below_zero_is_refused_by_name(benchmark: str) -> None:
    settings = load(folder_of(benchmark), SETTINGS).Settings
    for seed in (field.name for field in dataclasses.fields(settings) if field.name.endswith("seed")):
        with pytest.raises(UsageError, match=f"parameter {seed}: expected at least 0, found -1"):
            read_settings(settings, {seed: -1})
