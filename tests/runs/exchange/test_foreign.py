"""Records from elsewhere become records of ours."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from cases import for_each
from extras import needs_extra

from fairmile.base.errors import UsageError
from fairmile.meter.lines import event_files, read_log
from fairmile.runs.exchange import EXCHANGES, ImportedRun
from fairmile.runs.exchange.foreign import ForeignRun, Point, metric_figures, run_name, typed
from fairmile.runs.record.run import Metric, Run, RunState


@for_each(
    "text, value",
    [
        ("1", 1),
        ("-3", -3),
        ("0.1", 0.1),
        ("1e-3", 0.001),
        ("True", True),
        ("false", False),
        ("None", None),
        ("adam", "adam"),
        ("", ""),
        ("007", "007"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("1e999", math.inf),
        ("1.", "1."),
        ("9" * 30, int("9" * 30)),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_a_parameter_that_was_kept_as_text_gets_its_value_back(text: str, value: object) -> None:
    found = typed(text)
    assert found == value and isinstance(found, bool) == isinstance(value, bool)


@for_each("text", ["", "...", "größe", "../../x", "a" * 500, "-rf", "日本", "a b/c"])
def test_any_name_becomes_one_that_a_run_can_have(text: str) -> None:
    made = ForeignRun("test", "key", text, 1.0)
    assert Run(made.record(), Path()).spec.name == run_name(text)
    assert "/" not in made.record().id and len(made.record().id) <= 100


def test_a_metric_is_summed_up_and_a_nan_does_not_spoil_the_rest() -> None:
    values = [2.0, math.nan, 1.0, 3.0]
    [(name, said)] = metric_figures([Point("loss", value, n, n) for n, value in enumerate(values)]).items()
    assert name == "loss"
    assert said == Metric(value=3.0, first=2.0, min=1.0, max=3.0, mean=2.0, count=4, better="lower")
    only = metric_figures([Point("x", math.inf, None, 0)])["x"]
    assert (only.value, math.isnan(only.mean), only.better) == (math.inf, True, "")


def test_the_values_come_back_from_the_log_of_the_run(tmp_path: Path) -> None:
    points = [Point("loss", math.nan, 1, 100.25), Point("acc", 0.5, None, 101.0)]
    foreign = ForeignRun("test", "key", "name", 100.0, 102.0, points=points, printed="hello\n")
    imported = ImportedRun(foreign.record(), foreign.names(), "a test", foreign.lay)
    run = imported.lay(tmp_path / "run")
    assert imported.files == ("events.jsonl", "output.log")
    log = read_log(event_files(run.folder))
    assert [(each.name, each.step, each.at_ns) for each in log.metrics] == [
        ("loss", 1, 100_250_000_000),
        ("acc", None, 101_000_000_000),
    ]
    assert math.isnan(log.metrics[0].value)
    assert math.isnan(run.metrics["loss"].value) and run.elapsed_s == 2.0
    assert (run.folder / "output.log").read_text() == "hello\n"
    assert (run.folder / "ro-crate-metadata.json").is_file()


def test_values_that_no_record_can_hold_become_text() -> None:
    params = {"list": [1, 2], "nested": {"a": None}, "inf": math.inf, "path": Path("x"), "flag": True}
    said = ForeignRun("test", "key", "name", 1.0, params=params).record().spec.params
    assert said == {"list": "[1, 2]", "nested": '{"a": null}', "inf": "Infinity", "path": '"x"', "flag": True}


def test_a_file_that_would_leave_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    foreign = ForeignRun("test", "key", "name", 1.0, files={"../../evil": tmp_path / "x"})
    with pytest.raises(UsageError, match="leaves its folder"):
        foreign.lay(tmp_path / "run")
    assert not (tmp_path / "evil").exists()


def test_a_run_that_never_ended_has_no_result() -> None:
    record = ForeignRun("test", "key", "name", 1.0, state=RunState.RUNNING).record()
    assert record.result is None and Run(record, Path()).state is RunState.RUNNING


@pytest.mark.parametrize(("format", "package"), [("mlflow", "mlflow"), ("openml", "openml")])
def test_a_missing_package_is_one_sentence_with_the_command(
    format: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"fairmile.runs.exchange.{format}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with needs_extra("interop"):
        EXCHANGES[format]
