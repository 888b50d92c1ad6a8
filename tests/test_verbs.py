"""The verbs as somebody in a notebook calls them: a plain script, Python values, objects in place of ids."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import fairmile as fm
from fairmile.base import progress as progress_module
from fairmile.base.errors import UsageError
from fairmile.base.progress import Progress
from fairmile.predict import predict as predictions

STEP = Path(__file__).parents[1] / "docs" / "examples" / "step.py"
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--fast", action="store_true")
args = parser.parse_args()
for epoch in range(2):
    print(f"epoch {epoch} loss {args.lr + args.seed + 1 - epoch}", flush=True)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRMILE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def test_parameters_reach_a_plain_script_as_options() -> None:
    run = fm.run("train.py", params={"lr": 0.25}, seed=3)
    assert run.argv == ["python", "train.py", "--lr", "0.25", "--seed", "3"]
    assert run.metrics["loss"].value == 3.25


def test_a_parameter_that_the_script_does_not_take_is_an_error() -> None:
    with pytest.raises(UsageError, match="nothing uses the parameter rate"):
        fm.run("train.py", params={"rate": 1})


def test_a_misspelt_field_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="parms: no such field") as raised:
        fm.run("train.py", parms={"lr": 1})
    assert raised.value.hint == "did you mean 'params'?"


def test_a_sweep_of_a_script_takes_lists_fixed_values_and_repeats_with_seeds() -> None:
    sweep = fm.sweep("train.py", params={"lr": [0.1, 0.2]}, repeats=2, seed=5, best="loss")
    frame = sweep.to_pandas()
    assert list(frame["values.lr"]) == [0.1, 0.1, 0.2, 0.2]
    assert list(frame["metrics.loss"]) == pytest.approx([5.1, 6.1, 5.2, 6.2])
    assert sweep.best.startswith("Best by loss: lr=0.1")
    assert [str(command) for command in fm.sweeps.plan("train.py", params={"lr": [1, 2], "seed": 7}).commands] == [
        "python train.py --lr 1 --seed 7",
        "python train.py --lr 2 --seed 7",
    ]


def test_a_study_of_a_script_searches_ranges_and_goes_on_with_more_trials() -> None:
    pytest.importorskip("optuna")
    settings: dict[str, Any] = {"objective": {"loss": "lower"}, "sampler": "random", "tuning_seed": 1}
    study = fm.tune("train.py", params={"lr": "0.1..1"}, trials=1, **settings)
    assert 0.1 <= study.best[0].params["lr"] <= 1
    more = fm.tune(study.id, trials=2)
    assert (more.id, len(more)) == (study.id, 2)
    frame = more.to_pandas()  # a row for each trial, a column for each parameter and objective
    assert frame["number"].to_list() == [0, 1]
    assert frame["values.loss"].to_list() == pytest.approx(frame["params.lr"].to_list())
    assert fm.studies.plan(["train.py", "--lr", "1..64"], objective={"loss": "lower"}).space["lr"]["kind"] == "integer"


def test_what_a_verb_returned_stands_for_its_id() -> None:
    first, second = fm.run("train.py"), fm.run("train.py", params={"lr": 0.1})
    assert fm.compare(first, second).to_dict() == fm.compare(first.id, second.id).to_dict()
    assert fm.report(first).title == fm.report(first.id).title
    assert fm.rerun(first).reproduced


def test_the_history_of_a_run_has_a_row_for_each_step() -> None:
    history = fm.run("train.py").history()
    assert history.to_pandas()["loss"].to_list() == [1.5, 0.5]
    assert repr(history) == "<History: 2 rows of loss>"


def test_progress_goes_to_a_function_of_the_caller_and_to_nobody_else(capfd: pytest.CaptureFixture[str]) -> None:
    stated: list[Progress] = []
    fm.run("train.py", progress=stated.append)
    assert {each.what for each in stated} == {"train.py"}
    assert stated[0].note.startswith("epoch ")
    stated.clear()
    fm.sweep("train.py", params={"lr": [1, 2]}, progress=stated.append)
    assert [(each.done, each.total, each.unit) for each in stated] == [(1, 2, "points"), (2, 2, "points")]
    stated.clear()
    fm.fetch("train.py", progress=stated.append)
    assert stated[-1].done == stated[-1].total == len(SCRIPT)
    assert capfd.readouterr() == ("", "")


def test_recording_a_trace_states_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_PATIENCE_S", 0.01)
    stated: list[Progress] = []

    def watch(progress: Progress) -> None:
        stated.append(progress)
        (tmp_path / "stated").touch()

    waiting = "until [ -e stated ]; do sleep 0.01; done"
    fm.traces.record(["sh", "-c", waiting], "first", watch=False, progress=watch)
    assert stated[0].what == f"sh -c '{waiting}'" and stated[0].note.startswith("recording, ")


def test_a_prediction_states_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_PATIENCE_S", 0.01)
    is_stated = threading.Event()
    stated: list[Progress] = []

    def trace(*_: object, **__: object) -> None:
        assert is_stated.wait(20)
        raise UsageError("enough")

    monkeypatch.setattr(predictions, "trace_targets", trace)
    calls = (fm.predict.memory, fm.predict.time, fm.predict.largest_batch, fm.predict.trace)
    for call in calls:
        with pytest.raises(UsageError, match="enough"):
            call(f"{STEP}:build", progress=lambda progress: (stated.append(progress), is_stated.set()))
        is_stated.clear()
    assert {each.what for each in stated} == {f"{STEP}:build"}
    assert all(each.note.startswith("tracing the step") for each in stated)


def test_loading_data_states_its_progress(tmp_path: Path) -> None:
    card = {
        "@context": "https://w3id.org/fairmile/card/1.0/context",
        "@type": "Dataset",
        "name": "tides",
        "version": "1",
        "description": "Water levels.",
        "license": "https://spdx.org/licenses/CC0-1.0",
        "creator": [{"@type": "Person", "name": "A. Sailor"}],
        "distribution": [{"@type": "FileObject", "name": "train.py", "contentUrl": (tmp_path / "train.py").as_uri()}],
    }
    fm.catalog.add(card)
    stated: list[Progress] = []
    loaded = fm.datasets.load("tides", progress=stated.append)
    assert loaded.file("train.py").read_text() == SCRIPT
    assert repr(loaded) == f"<LoadedAsset: local/dataset/tides@1, 1 file, {len(SCRIPT)} B>"
    assert loaded.to_pandas()["name"].tolist() == ["train.py"] and "train.py" in loaded._repr_html_()
    assert stated[-1].done == stated[-1].total == len(SCRIPT)


def test_nothing_is_printed_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    fm.run("train.py")
    fm.fetch("train.py")
    fm.sweep("train.py", params={"lr": [1, 2]})
    assert capfd.readouterr() == ("", "")
    fm.run("train.py", echo=True, again=True)
    assert capfd.readouterr() == ("epoch 0 loss 1.5\nepoch 1 loss 0.5\n", "")


def test_pages_of_predictions_and_traces_are_one_call() -> None:
    with pytest.raises(UsageError, match="a Run has no page of its own"):
        fm.reports.write_page(fm.run("train.py"), "run.html")  # type: ignore[arg-type]
    assert not Path("run.html").exists()
