from __future__ import annotations

import os
import random
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.runs.prediction import (
    PREDICTORS,
    Fit,
    FromHistory,
    Limit,
    Predicted,
    Predictor,
    amount_text,
    forecast,
    judged,
    predict,
    predicted_of,
    quantity_name,
    unfit,
)
from fairmile.runs.record.record import Metric, RunRecord
from fairmile.runs.record.run import Run
from fairmile.runs.record.spec import RunSpec

HOST = "n1"
ARGV = ["python", "train.py", "--epochs", "{epochs}"]


def spec_of(name: str = "train", argv: Sequence[str] = ARGV, **params: Any) -> RunSpec:
    return RunSpec(name=name, argv=tuple(word.format(**params) for word in argv), params=params)


def earlier(
    spec: RunSpec,
    elapsed_s: float,
    *,
    created: float = 1.0,
    state: str = "done",
    host: str = HOST,
    gpus: Sequence[str] = (),
    rss: int | None = None,
    energy_j: float | None = None,
    channels: Sequence[str] = ("gpu0.energy",),
) -> Run:
    result: dict[str, Any] = {"state": state, "elapsed_s": elapsed_s}
    if rss is not None:
        result["usage"] = {"max_rss_bytes": rss}
    if energy_j is not None:
        result["energy"] = {"total_j": energy_j, "parts": [{"channel": each} for each in channels]}
    document = {
        "id": f"{spec.name}-{created}",
        "created": created,
        "spec": spec.model_dump(mode="json", exclude_defaults=True),
        "captured": {"hardware": {"host": host, "gpus": [{"model": each} for each in gpus]}},
        "result": result,
    }
    return Run(RunRecord.from_dict(document), Path("/nowhere"))


def told(spec: RunSpec, history: Sequence[Run], **given: Any) -> dict[str, Predicted]:
    return FromHistory(host=HOST, **given).predict(spec, history)


def test_without_history_nothing_is_predicted() -> None:
    assert told(spec_of(epochs=2), []) == {}


def test_one_earlier_run_gives_its_numbers_and_no_interval() -> None:
    run = earlier(spec_of(epochs=2), 60.0, rss=1000, energy_j=500.0)
    assert told(spec_of(epochs=2), [run]) == {
        "elapsed_s": Predicted(60.0, None, None, "1 earlier run on this machine"),
        "memory_bytes": Predicted(1000.0, None, None, "1 earlier run on this machine"),
        "energy_j": Predicted(500.0, None, None, "1 earlier run on this machine"),
    }


def test_what_no_run_measured_is_not_predicted() -> None:
    assert set(told(spec_of(epochs=2), [earlier(spec_of(epochs=2), 60.0)])) == {"elapsed_s"}


def test_several_runs_give_their_median_and_the_interval_of_a_new_one() -> None:
    runs = [earlier(spec_of(epochs=2), value) for value in (59.0, 60.0, 61.0)]
    found = told(spec_of(epochs=2), runs)["elapsed_s"]
    assert (found.value, found.source) == (60.0, "median of 3 earlier runs on this machine")
    width = 2.919985580 * (4 / 3) ** 0.5  # t of 2 degrees, standard deviation 1
    assert (found.low, found.high) == pytest.approx((60 - width, 60 + width))


def test_one_run_out_of_line_hardly_matters() -> None:
    runs = [earlier(spec_of(epochs=2), value) for value in (59.0, 59.5, 60.0, 60.5, 61.0, 60.0, 900.0)]
    found = told(spec_of(epochs=2), runs)["elapsed_s"]
    assert found.value == 60.0
    assert found.high is not None and found.high < 65


def test_the_interval_holds_a_new_run_as_often_as_it_says() -> None:
    draw = random.Random(3)
    inside = 0
    for _ in range(400):
        runs = [earlier(spec_of(epochs=2), draw.gauss(60, 2)) for _ in range(8)]
        found = told(spec_of(epochs=2), runs)["elapsed_s"]
        assert found.low is not None and found.high is not None
        inside += found.low <= draw.gauss(60, 2) <= found.high
    assert 0.84 <= inside / 400 <= 0.96


def test_only_the_newest_runs_count() -> None:
    old = [earlier(spec_of(epochs=2), 600.0, created=at) for at in range(30)]
    new = [earlier(spec_of(epochs=2), 60.0, created=100 + at) for at in range(20)]
    found = told(spec_of(epochs=2), [*old, *new])["elapsed_s"]
    assert (found.value, found.source) == (60.0, "median of 20 earlier runs on this machine")


@pytest.mark.parametrize(
    "other",
    [
        earlier(spec_of(epochs=2), 60.0, state="failed"),
        earlier(spec_of(epochs=2), 60.0, state="timeout"),
        earlier(spec_of("other", epochs=2), 60.0),
        earlier(spec_of(epochs=2), 60.0, host="n2"),
        earlier(spec_of(argv=["python", "test.py", "--epochs", "{epochs}"], epochs=2), 60.0),
        earlier(spec_of(argv=[*ARGV, "--fast"], epochs=2), 60.0),
        earlier(spec_of(epochs=2, batch=8), 60.0),
        earlier(spec_of(epochs=3), 60.0),
        earlier(spec_of(epochs=2).model_copy(update={"dataset": "dataset/mnist"}), 60.0),
        earlier(
            RunSpec.model_validate({**spec_of(epochs=2).model_dump(), "resources": {"nodes": 2}}),
            60.0,
        ),
    ],
    ids=["failed", "timeout", "name", "host", "program", "option", "parameter", "value", "dataset", "resources"],
)
def test_a_run_of_something_else_predicts_nothing(other: Run) -> None:
    assert told(spec_of(epochs=2), [other]) == {}


def test_another_seed_account_or_place_of_the_program_makes_no_difference() -> None:
    argv = ["/opt/bin/python", "train.py", "--epochs", "{epochs}", "--seed={seed}"]
    before = RunSpec.model_validate(
        {**spec_of(argv=argv, epochs=2, seed=1).model_dump(), "resources": {"account": "a", "time_s": 600}}
    )
    now = spec_of(argv=["python", *argv[1:]], epochs=2, seed=7)
    assert told(now, [earlier(before, 60.0)])["elapsed_s"].value == 60.0


def test_two_parameters_of_one_value_do_not_confuse_the_command() -> None:
    argv = ["train", "--epochs", "{epochs}", "--layers", "{layers}"]
    runs = [earlier(spec_of(argv=argv, epochs=n, layers=1), 10.0 + n) for n in (1, 2, 3)]
    assert told(spec_of(argv=argv, epochs=4, layers=1), runs)["elapsed_s"].value == pytest.approx(14)


def test_a_line_over_one_number_needs_three_points() -> None:
    runs = [earlier(spec_of(epochs=n), 10.0 + 5 * n, rss=1000) for n in (2, 4, 8)]
    found = told(spec_of(epochs=6), runs)
    assert found["elapsed_s"].value == pytest.approx(40)
    assert found["memory_bytes"].value == pytest.approx(1000)
    assert found["elapsed_s"].source == "a line over epochs through 3 earlier runs on this machine"
    assert told(spec_of(epochs=6), runs[:2]) == {}


def test_beyond_what_was_seen_the_line_says_so() -> None:
    runs = [earlier(spec_of(epochs=n), 10.0 + 5 * n) for n in (2, 4, 8)]
    found = told(spec_of(epochs=100), runs)["elapsed_s"]
    assert found.value == pytest.approx(510)
    assert found.source.endswith("extrapolated from 2 to 8")


def test_the_line_is_not_drawn_where_the_points_do_not_support_it() -> None:
    runs = [earlier(spec_of(epochs=n), value) for n, value in ((2, 10.0), (4, 100.0), (8, 20.0))]
    assert told(spec_of(epochs=6), runs) == {}


def test_same_parameters_go_before_the_line() -> None:
    runs = [earlier(spec_of(epochs=n), 10.0 + 5 * n) for n in (2, 4, 8)]
    assert told(spec_of(epochs=4), [*runs, earlier(spec_of(epochs=4), 32.0)])["elapsed_s"].value == 31.0


def test_runs_that_differ_in_two_numbers_make_no_line() -> None:
    runs = [earlier(spec_of(epochs=n, batch=n), 10.0 + 5 * n) for n in (2, 4, 8)]
    assert told(spec_of(epochs=6, batch=16), runs) == {}


def test_a_text_is_no_place_on_a_line() -> None:
    runs = [earlier(spec_of(epochs=n), 10.0 + 5 * int(n)) for n in ("2", "4", "8")]
    assert told(spec_of(epochs="6"), runs) == {}


def test_other_gpus_are_another_machine() -> None:
    runs = [
        earlier(spec_of(epochs=2), 60.0, gpus=["A100"], created=1),
        earlier(spec_of(epochs=2), 20.0, gpus=["H200"], created=2),
    ]
    newest = told(spec_of(epochs=2), runs)["elapsed_s"]
    assert (newest.value, newest.source) == (20.0, "1 earlier run on this machine with H200")
    assert told(spec_of(epochs=2), runs, gpus=["A100"])["elapsed_s"].value == 60.0
    assert told(spec_of(epochs=2), runs, gpus=["MI250"]) == {}


def test_energy_of_other_counters_is_another_quantity() -> None:
    runs = [
        earlier(spec_of(epochs=2), 60.0, energy_j=100.0, channels=["gpu0.energy", "cpu.energy"], created=2),
        earlier(spec_of(epochs=2), 60.0, energy_j=30.0, created=1),
    ]
    assert told(spec_of(epochs=2), runs)["energy_j"].value == 100.0


def test_the_system_is_what_counts_for_a_run_that_goes_there() -> None:
    there = RunSpec.model_validate({**spec_of(epochs=2).model_dump(), "system": "jureca"})
    found = told(there, [earlier(there, 60.0, host="jrc0123"), earlier(spec_of(epochs=2), 5.0)])
    assert found["elapsed_s"] == Predicted(60.0, None, None, "1 earlier run on jureca")


# The hook


class Model:
    """Somebody's own predictor."""

    def predict(self, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]:
        return {
            "elapsed_s": Predicted(1.0, source="a model"),
            "memory_bytes": Predicted(2.0, source="a model"),
        }


class Broken:
    def predict(self, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]:
        raise ZeroDivisionError("by zero")


class Refusing:
    def predict(self, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]:
        raise UsageError("this model has no layers")


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry[type[Predictor]]]:
    package = types.ModuleType("somebodys_predictors")
    package.__dict__.update(Model=Model, Broken=Broken, Refusing=Refusing)
    monkeypatch.setitem(sys.modules, package.__name__, package)

    def registry(*names: str) -> Registry[type[Predictor]]:
        table = {"history": Plugin("fairmile.runs.prediction:FromHistory")}
        return Registry("predictor", table | {name: Plugin(f"{package.__name__}:{name}") for name in names})

    return registry


Plugged = Callable[..., Registry[type[Predictor]]]


def test_the_built_in_predictor_is_found_by_its_name() -> None:
    assert PREDICTORS["history"] is FromHistory
    assert predict(PREDICTORS, spec_of(epochs=2), []) == {}


def test_what_was_measured_goes_before_what_a_model_says(plugged: Plugged) -> None:
    here = os.uname().nodename
    found = predict(plugged("Model"), spec_of(epochs=2), [earlier(spec_of(epochs=2), 60.0, host=here)])
    assert found == {
        "elapsed_s": {"value": 60.0, "low": None, "high": None, "source": "1 earlier run on this machine"},
        "memory_bytes": {"value": 2.0, "low": None, "high": None, "source": "a model"},
    }


def test_a_predictor_that_is_given_is_asked_last_and_named_when_it_breaks(plugged: Plugged) -> None:
    class Given:
        def predict(self, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]:
            return {name: Predicted(7.0, source="given") for name in ("elapsed_s", "energy_j")}

    found = predict(plugged("Model"), spec_of(epochs=2), [], {"step": Given})
    assert {name: each["source"] for name, each in found.items()} == {
        "elapsed_s": "a model",
        "memory_bytes": "a model",
        "energy_j": "given",
    }
    with pytest.raises(SystemFailure, match="predictor 'step' failed: ZeroDivisionError: by zero"):
        predict(plugged(), spec_of(epochs=2), [], {"step": Broken})


def test_a_predictor_that_breaks_is_named(plugged: Plugged) -> None:
    with pytest.raises(SystemFailure, match="predictor 'Broken' failed: ZeroDivisionError: by zero"):
        predict(plugged("Broken"), spec_of(epochs=2), [])


def test_a_predictor_that_explains_itself_is_heard(plugged: Plugged) -> None:
    with pytest.raises(UsageError, match="no layers"):
        predict(plugged("Refusing"), spec_of(epochs=2), [])


# Beside the measurement


def test_each_expected_number_stands_beside_the_measured_one() -> None:
    run = earlier(spec_of(epochs=2), 58.0, rss=2000)
    expected = {
        "elapsed_s": asdict(Predicted(60.0, 55.0, 65.0, "4 earlier runs")),
        "memory_bytes": asdict(Predicted(1000.0, 900.0, 1100.0, "4 earlier runs")),
        "energy_j": asdict(Predicted(5.0, 4.0, 6.0, "4 earlier runs")),
        "images_per_s": asdict(Predicted(7.0, source="a model")),
    }
    metric = {"value": 8.0, "first": 8.0, "min": 8.0, "max": 8.0, "mean": 8.0, "count": 1, "unit": "", "better": ""}
    run.record.prediction, run.record.result.metrics = expected, {"images_per_s": Metric.from_dict(metric)}
    rows = judged(run)
    assert [(what, measured, inside) for what, _, measured, inside in rows] == [
        ("elapsed_s", 58.0, True),
        ("memory_bytes", 2000.0, False),
        ("energy_j", None, None),
        ("images_per_s", 8.0, None),
    ]
    assert rows[0].predicted == Predicted(60.0, 55.0, 65.0, "4 earlier runs")


def test_a_run_without_a_prediction_is_not_judged() -> None:
    assert judged(earlier(spec_of(epochs=2), 58.0)) == []


GIB = float(1 << 30)


@for_each(
    "low, high, fit",
    [(10, 38, Fit.FITS), (35, 52, Fit.MAY_NOT), (39.5, 60, Fit.DOES_NOT), (None, None, Fit.FITS)],
)
def test_the_verdict_follows_from_the_interval_and_what_the_device_has(
    low: float | None, high: float | None, fit: Fit
) -> None:
    least, most = (None if each is None else each * GIB for each in (low, high))
    told = Predicted(30 * GIB, least, most, "a model", limit=39 * GIB, device="a100-40gb")
    assert told.fit is fit
    assert told.to_json()["fit"] == str(fit)
    assert unfit({"peak_memory_bytes": told.to_json()})[0] is fit
    assert predicted_of(told.to_json()) == told


def test_without_a_limit_there_is_no_verdict() -> None:
    told = Predicted(30 * GIB, source="earlier runs")
    assert told.fit is None
    assert told.to_json() == {"value": 30 * GIB, "low": None, "high": None, "source": "earlier runs"}
    assert unfit({"memory_bytes": told.to_json()}) == (Fit.FITS, "")


def test_the_worst_verdict_counts_with_its_numbers() -> None:
    large = Predicted(50 * GIB, 45 * GIB, 60 * GIB, limit=39 * GIB, device="a100-40gb")
    both = {"elapsed_s": Predicted(1.0), "a_bytes": replace(large, low=30 * GIB), "peak_memory_bytes": large}
    fit, why = unfit({name: each.to_json() for name, each in both.items()})
    assert fit is Fit.DOES_NOT
    assert why == "peak memory 50.0 GiB (45.0 GiB to 60.0 GiB); a100-40gb has 39.0 GiB for it"


@for_each("limit_s, fit", [(30.0, Fit.DOES_NOT), (100.0, Fit.MAY_NOT), (1000.0, Fit.FITS)])
def test_the_time_that_earlier_runs_took_is_compared_with_the_time_limit(limit_s: float, fit: Fit) -> None:
    class Known:
        def predict(self, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]:
            return {"elapsed_s": Predicted(100.0, 60.0, 200.0, "earlier runs")}

    limit = Limit(limit_s, "the time limit", "request more with --time")
    told = forecast(RunSpec(name="train", argv=("train",)), [], {"train": Known}, {"elapsed_s": limit})
    assert told.fit is fit
    if fit is Fit.DOES_NOT:
        assert told.fit_reason == "time 1m 40s (1m to 3m 20s); the time limit is 30 s"
        assert told.numbers["elapsed_s"]["remedy"] == "request more with --time"


@for_each(
    "what, value, text",
    [
        ("elapsed_s", 90.0, "time 1m 30s"),
        ("memory_bytes", 2 * GIB, "memory 2.0 GiB"),
        ("energy_j", 12.345, "energy 12.35 J"),
        ("images_per_s", 250.0, "images per s 250"),
        ("loss", 0.25, "loss 0.25"),
    ],
)
def test_a_quantity_is_shown_with_its_name_and_unit(what: str, value: float, text: str) -> None:
    assert f"{quantity_name(what)} {amount_text(what, value)}" == text
