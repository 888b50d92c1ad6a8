"""Learning curves continued: the value at the end, an honest spread, and what stopping by it would have done."""

from __future__ import annotations

import builtins
import math
import random

import pytest
from cases import for_each
from extras import needs_extra

from fairmile.base.errors import NotFound
from fairmile.sweeps.tuning import curves
from fairmile.sweeps.tuning.curves import UNKNOWN, Extrapolation, LeastSquares, SupportVectors, hindsight, stopper
from fairmile.sweeps.tuning.engine import Settings, TrialRecord

STEPS = 40


def curve(end: float, rate: float, *, noise: float = 0.0, seed: int = 0, steps: int = STEPS, shape: str = "exp"):
    """An accuracy that rises to `end`, with noise."""
    draw = random.Random(seed)
    rest = {"exp": lambda s: math.exp(-rate * s), "power": lambda s: s**-rate}[shape]
    return tuple((float(s), end - 0.6 * rest(s) + draw.gauss(0, noise)) for s in range(1, steps + 1))


def trial(number: int, points, *, state: str = "done") -> TrialRecord:
    return TrialRecord(number, state, {}, (points[-1][1],), tuple(points), 0.0, float(number))


def population(count: int, *, noise: float = 0.003) -> list[TrialRecord]:
    draw = random.Random(7)
    return [trial(n, curve(draw.uniform(0.5, 0.95), draw.uniform(0.1, 0.4), noise=noise, seed=n)) for n in range(count)]


@pytest.mark.parametrize("shape", ["exp", "power"])
def test_least_squares_finds_the_end_of_a_clean_curve_of_its_families_from_half_of_it(shape):
    whole = curve(0.9, 0.3 if shape == "exp" else 0.8, shape=shape)
    value, low, high = LeastSquares().predict(whole[:20], STEPS)
    assert value == pytest.approx(whole[-1][1], abs=0.01)
    assert low <= whole[-1][1] <= high


def test_a_spread_holds_about_nine_of_ten_outcomes_where_finished_curves_calibrate_it():
    known, fresh = population(40), population(80)[40:]
    for name in ("least-squares", "svr"):
        watch = Extrapolation(name)
        told = [watch.predict(each.curve[:12], STEPS, known) for each in fresh]
        inside = sum(p.low <= each.values[0] <= p.high for p, each in zip(told, fresh, strict=True))
        assert inside >= 0.75 * len(fresh)
        widths = sorted(p.high - p.low for p in told)
        assert widths[len(widths) // 2] < 0.45, "a spread as wide as all outcomes says nothing"


def test_noise_widens_the_spread():
    quiet, loud = (LeastSquares().predict(curve(0.9, 0.3, noise=n)[:20], STEPS) for n in (0.001, 0.05))
    assert loud.high - loud.low > 5 * (quiet.high - quiet.low)


def test_a_prediction_does_not_depend_on_units():
    points = curve(0.9, 0.3, noise=0.01)[:20]
    plain = LeastSquares().predict(points, STEPS)
    scaled = LeastSquares().predict([(1000 * s, 5 - 100 * v) for s, v in points], 1000 * STEPS)
    assert scaled.value == pytest.approx(5 - 100 * plain.value)
    assert (scaled.low, scaled.high) == pytest.approx((5 - 100 * plain.high, 5 - 100 * plain.low))


@for_each("points", [[], curve(0.9, 0.3)[:4], [(s, 0.1) for s in range(20)], [(1.0, 0.1)] * 9])
def test_too_few_points_or_none_that_move_are_unknown_and_stop_nothing(points):
    assert LeastSquares().predict(points, STEPS) == pytest.approx(UNKNOWN, nan_ok=True)
    assert Extrapolation("least-squares").stop_early(population(10), points, 0.99, "higher", STEPS) == ""


def test_values_that_are_no_numbers_are_passed_over():
    points = [*curve(0.9, 0.3)[:20], (21.0, math.nan), (22.0, math.inf)]
    assert Extrapolation("least-squares").predict(points, STEPS).value == pytest.approx(0.9, abs=0.02)


def test_support_vectors_learn_from_finished_curves_what_no_formula_says():
    def late(end: float, seed: int):
        """Stands still for half of its steps, and then leaps by what its first values tell."""
        draw = random.Random(seed)
        return tuple((float(s), (0.1 * end if s < 20 else end) + draw.gauss(0, 0.001)) for s in range(1, STEPS + 1))

    known = [late(0.3 + 0.02 * n, n) for n in range(30)]
    fresh = late(0.65, 99)
    learnt = SupportVectors(known).predict(fresh[:15], STEPS)
    assert learnt.value == pytest.approx(0.65, abs=0.05)
    assert abs(LeastSquares(known).predict(fresh[:15], STEPS).value - 0.65) > 0.3


def test_support_vectors_claim_nothing_before_nine_curves_are_finished():
    known = [each.curve for each in population(9)]
    points = curve(0.7, 0.2)[:10]
    assert math.isnan(SupportVectors(known[:8]).predict(points, STEPS).value)
    assert math.isfinite(SupportVectors(known).predict(points, STEPS).high)


def test_curves_that_did_not_come_to_the_asked_step_teach_nothing():
    short = [each.curve[:20] for each in population(20)]
    assert math.isnan(SupportVectors(short).predict(curve(0.7, 0.2)[:10], STEPS).value)


@pytest.mark.parametrize("method", ["least-squares", "svr"])
def test_a_hopeless_trial_is_stopped_with_a_reason_and_a_promising_one_goes_on(method):
    watch, known = Extrapolation(method), population(30)
    reason = watch.stop_early(known, curve(0.4, 0.3, noise=0.003)[:25], 0.95, "higher", STEPS)
    assert method in reason and "0.95" in reason and "step 40" in reason
    assert watch.stop_early(known, curve(0.97, 0.15, noise=0.003)[:15], 0.9, "higher", STEPS) == ""


def test_an_annealer_learns_from_finished_curves_too():
    known = population(14)
    ends = [Extrapolation("qubo-svr").predict(curve(end, 0.3)[:12], STEPS, known) for end in (0.55, 0.9)]
    assert [each.value for each in ends] == pytest.approx([0.55, 0.9], abs=0.1)
    assert all(each.low < each.value < each.high < math.inf for each in ends)


def test_lower_is_better_mirrors_higher():
    def mirrored(points):
        return [(s, -v) for s, v in points]

    known = [trial(n, mirrored(each.curve)) for n, each in enumerate(population(30))]
    watch = Extrapolation("least-squares")
    assert watch.stop_early(known, mirrored(curve(0.4, 0.3)[:25]), -0.95, "lower", STEPS)
    assert watch.stop_early(known, mirrored(curve(0.97, 0.15)[:15]), -0.9, "lower", STEPS) == ""


def test_nothing_is_stopped_too_early():
    bad = curve(0.4, 0.3)
    watch = Extrapolation("least-squares", startup=5, min_steps=12)
    assert watch.stop_early(population(30), bad[:20], 0.95, "higher", STEPS)
    assert watch.stop_early(population(4), bad[:20], 0.95, "higher", STEPS) == "", "before enough trials are done"
    assert watch.stop_early(population(30), bad[:11], 0.95, "higher", STEPS) == "", "before its own first steps"
    assert watch.stop_early(population(30), bad, 0.95, "higher", STEPS) == "", "at its last step"
    pruned = [trial(n, each.curve, state="pruned") for n, each in enumerate(population(30))]
    assert watch.stop_early(pruned, bad[:20], 0.95, "higher", STEPS) == "", "stopped trials are not done"


def test_what_has_been_better_than_the_best_already_goes_on():
    falling = [(float(s), 1 - 0.02 * s) for s in range(1, 21)]
    assert Extrapolation("least-squares").stop_early(population(30), falling, 0.9, "higher", STEPS) == ""


def test_settings_make_what_an_engine_asks():
    assert stopper(Settings(), "higher") is None
    ask = stopper(Settings(extrapolate="least-squares", startup=5), "higher")
    known = [*population(30), trial(30, curve(0.99, 0.3))]
    assert "0.99" in ask(known, curve(0.4, 0.3)[:25])
    assert ask([], curve(0.4, 0.3)[:25]) == ""


@pytest.mark.parametrize("method", ["least-squares", "svr"])
def test_hindsight_counts_every_judged_trial_once_and_saves_steps_without_losing_the_best(method):
    known = population(40)
    (row,) = hindsight(known, "higher", methods=[method])
    leaders = sum(each.values[0] > max(e.values[0] for e in known[:n]) for n, each in enumerate(known) if n >= 5)
    assert row.judged == 35 and row.stopped == row.right + row.wrong
    assert row.missed == row.judged - leaders - row.right
    assert row.right >= 10 and row.wrong <= 1 and row.keeps_best
    assert 0 < row.steps_saved < row.steps == 35 * STEPS
    assert row.precision == row.right / row.stopped


def test_hindsight_calls_a_stop_wrong_where_the_trial_became_best():
    """Every curve looks flat for long and only one leaps at its end, which nobody can foresee."""
    known = [trial(n, curve(0.5 + 0.001 * (n % 7), 0.5, noise=0.001, seed=n)) for n in range(12)]
    leap = [(s, v if s < 39 else 0.9) for s, v in curve(0.4, 0.5, noise=0.001, seed=50)]
    (row,) = hindsight([*known, trial(12, leap)], "higher", methods=["least-squares"])
    assert row.wrong == 1 and not row.keeps_best


def test_hindsight_of_nothing_is_nothing():
    assert [(row.judged, row.stopped, row.precision) for row in hindsight([], "lower")] == [(0, 0, 1.0)] * 2


def test_another_method_plugs_in_by_name(monkeypatch):
    class Pessimist:
        def __init__(self, finished):
            pass

        def predict(self, points, at_step):
            return curves.Prediction(0.0, 0.0, 0.0)

    monkeypatch.setattr(curves, "Pessimist", Pessimist, raising=False)
    table = {**curves.METHODS._table, "pessimist": curves.Plugin("fairmile.sweeps.tuning.curves:Pessimist")}
    monkeypatch.setattr(curves.METHODS, "_table", table)
    assert "pessimist expects 0" in Extrapolation("pessimist").stop_early(
        population(5), curve(0.4, 0.3)[:9], 0.5, "higher", STEPS
    )
    assert hindsight(population(9), "higher", methods=["pessimist"])[0].missed == 0


def test_an_unknown_method_is_told_with_the_nearest():
    with pytest.raises(NotFound, match="'svr'"):
        Extrapolation("svm")


@pytest.mark.parametrize(("method", "package"), [("least-squares", "scipy"), ("svr", "sklearn")])
def test_a_missing_package_is_one_sentence_with_what_to_install(monkeypatch, method, package):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with needs_extra("tune"):
        Extrapolation(method).predict(curve(0.9, 0.3)[:9], STEPS)
