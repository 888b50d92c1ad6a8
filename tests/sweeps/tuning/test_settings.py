"""The `tuning` section: words, defaults that fit, and combinations that cannot work."""

from __future__ import annotations

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.engine import Settings
from fairmile.sweeps.tuning.search_space import Space
from fairmile.sweeps.tuning.settings import check_fits, parse_settings

LOSS = Objective("loss", "lower")
TIME = Objective("time", "lower")
CHOICE = {"kind": "choice", "choices": ["a", "b"]}
UNIFORM = {"kind": "uniform", "low": 0, "high": 1}


def _origin(*path):
    return "study.yaml:7" if len(path) > 1 else "study.yaml"


def parse(objectives=(LOSS,), space=None, **tuning) -> Settings:
    return parse_settings(tuning, objectives, _origin, space=space)


@for_each("said, expected", [({"steps": 27}, 3), ({"steps": 4}, 1), ({"steps": 27, "min_steps": 2}, 2), ({}, None)])
def test_no_trial_is_stopped_in_the_first_ninth_unless_stated(said: dict[str, int], expected: int | None) -> None:
    assert Settings(pruner="asha", **said).first_rung == expected  # type: ignore[arg-type]


def test_nothing_said_means_fifty_trials_of_tpe():
    assert parse() == Settings(engine="optuna", sampler="tpe", pruner="", trials=50)


def test_several_objectives_mean_nsga_ii():
    assert parse((LOSS, TIME)).sampler == "nsga-ii"


def test_bohb_is_tpe_with_hyperband():
    settings = parse(sampler="bohb", steps=27)
    assert (settings.sampler, settings.pruner) == ("tpe", "hyperband")


def test_pbt_means_the_engine_that_has_it():
    settings = parse(sampler="pbt")
    assert (settings.engine, settings.trials) == ("ray", None)


@for_each("budget", [{"time": "1h"}, {"node_hours": 2}, {"energy": 5}, {"sampler": "grid"}])
def test_another_budget_or_a_grid_sets_no_number_of_trials(budget):
    assert parse(**budget).trials is None


def test_budgets_are_read_with_their_units():
    settings = parse(trials=7, time="1:30:00", node_hours=2.5, energy="1.5 kWh")
    assert (settings.trials, settings.time_s, settings.node_hours, settings.energy_j) == (7, 5400.0, 2.5, 5.4e6)


@for_each("energy, joules", [(500, 500.0), ("500J", 500.0), ("2 kJ", 2e3), ("1 MJ", 1e6), ("1Wh", 3600)])
def test_energy_is_joules_or_carries_its_unit(energy, joules):
    assert parse(energy=energy).energy_j == joules


@for_each("said, sampler", [("CMA_ES", "cma-es"), ("cmaes", "cma-es"), ("NSGAII", "nsga-ii")])
def test_a_sampler_may_be_spelt_as_others_do(said, sampler):
    assert parse(sampler=said).sampler == sampler


def test_every_other_key_lands_in_its_place():
    settings = parse(
        pruner="asha",
        seed=0,
        steps=30,
        min_steps=3,
        reduction=4,
        startup=0,
        extrapolate="svr",
        population=8,
        interval=2,
    )
    assert (settings.pruner, settings.seed, settings.steps, settings.min_steps) == ("asha", 0, 30, 3)
    assert (settings.reduction, settings.startup, settings.extrapolate) == (4, 0, "svr")
    assert (settings.population, settings.interval) == (8, 2)


def test_none_is_a_word_for_no_pruner():
    assert parse(pruner="none", extrapolate="none") == parse()


@for_each(
    "tuning, message, hint",
    [
        ({"smapler": "tpe"}, "tuning.smapler: tuning has no key 'smapler'", "did you mean 'sampler'?"),
        ({"sampler": "tpee"}, "tuning.sampler: unknown sampler 'tpee'", "did you mean 'tpe'?"),
        ({"pruner": "ashe"}, "tuning.pruner: unknown pruner 'ashe'", "did you mean 'asha'?"),
        ({"engine": "optna"}, "unknown engine 'optna'", "did you mean 'optuna'?"),
        ({"extrapolate": "spline"}, "unknown extrapolate 'spline'", "least-squares"),
        ({"sampler": True}, "unknown sampler True", "choose one of"),
        ({"trials": 0}, "'trials' must be at least 1", None),
        ({"trials": 2.5}, "'trials' must be a whole number", None),
        ({"trials": True}, "'trials' must be a whole number", None),
        ({"seed": -1}, "'seed' must be at least 0", None),
        ({"reduction": 1}, "'reduction' must be at least 2", None),
        ({"time": "soon"}, "'soon' is not a duration", "1:30:00"),
        ({"time": 0}, "longer than 0 s", None),
        ({"node_hours": 0}, "above 0", None),
        ({"node_hours": float("inf")}, "above 0", None),
        ({"energy": "3 horsepower"}, "is not an energy", "kWh"),
        ({"energy": "0 J"}, "is not an energy", "kWh"),
        ({"options": [1]}, "'options' must be a mapping", None),
        ({"options": {"n_startup": 3}}, "the sampler tpe has no option 'n_startup'", "n_startup_trials"),
        ({"options": {"n_startup_trials": True}}, "must be a whole number", None),
        ({"options": {"multivariate": 1}}, "must be true or false", None),
        ({"sampler": "random", "options": {"x": 1}}, "random has no option 'x'", "remove"),
        ({"sampler": "bohb", "pruner": "median", "steps": 3}, "bohb uses hyperband", "remove the pruner"),
        ({"sampler": "bohb"}, "needs the last step", "steps: N"),
        ({"pruner": "hyperband"}, "needs the last step", "steps: N"),
        ({"pruner": "asha", "steps": 3, "min_steps": 4}, "min_steps 4 is larger than steps 3", None),
        ({"engine": "optuna", "sampler": "pbt"}, "optuna has no pbt", "engine: ray"),
        ({"sampler": "pbt", "pruner": "asha"}, "pbt replaces poor members itself", "remove the pruner"),
    ],
)
def test_what_cannot_be_is_refused_with_place_and_remedy(tuning, message, hint):
    with pytest.raises(UsageError) as caught:
        parse(**tuning)
    assert message in str(caught.value)
    assert str(caught.value).startswith("study.yaml:7 tuning.")
    if hint:
        assert hint in str(caught.value.hint)


@for_each(
    "tuning",
    [{"pruner": "asha"}, {"pruner": "median"}, {"extrapolate": "svr"}, {"sampler": "cma-es"}, {"sampler": "pbt"}],
)
def test_what_compares_one_metric_is_refused_for_several(tuning):
    with pytest.raises(UsageError, match=r"study.yaml:7 tuning\."):
        parse((LOSS, TIME), **tuning)


def test_a_tuning_without_an_objective_is_refused():
    with pytest.raises(UsageError, match=r"study.yaml: .*objective"):
        parse(())


@for_each(
    "axes",
    [
        {"a": CHOICE, "b": CHOICE},
        {"a": CHOICE, "x": UNIFORM},
        {"a": CHOICE, "x": UNIFORM, "y": {**UNIFORM, "when": "a == 'a'"}},
    ],
)
def test_cma_es_needs_two_numbers(axes):
    with pytest.raises(UsageError, match="cma-es needs at least two numbers") as caught:
        parse(sampler="cma-es", space=Space(axes))
    assert "tpe" in str(caught.value.hint)


def test_a_grid_needs_an_end():
    with pytest.raises(UsageError, match="infinite because x is continuous"):
        parse(sampler="grid", space=Space({"a": CHOICE, "x": UNIFORM}))
    assert parse(sampler="grid", space=Space({"a": CHOICE, "x": {**UNIFORM, "step": 0.5}})).sampler == "grid"


def test_settings_made_elsewhere_are_checked_without_a_file():
    with pytest.raises(UsageError, match=r"^tuning\.pruner: "):
        check_fits(Settings(pruner="hyperband"), (LOSS,))
