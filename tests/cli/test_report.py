"""`fairmile report`: pages, figures and leaderboards on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_making import CREATED, make_run, repeats, training_events

Fairmile = Callable[..., Any]


@pytest.fixture
def runs(place: Path, fairmile: Fairmile) -> Path:
    """A home with two groups of repeats and a training, which is the last run."""
    folder = place.parent / "home" / "runs"
    repeats(folder, "base", {"loss": [1.0, 1.1, 0.9]}, tags=["night"])
    repeats(folder, "wide", {"loss": [2.0, 2.1, 1.9]})
    make_run(folder, "train-k3x9qa", events=training_events(), metrics={"loss": 0.2}, created=CREATED + 99)
    return folder


@pytest.mark.thorough
def test_last_means_all_runs_of_a_sweep_also_where_they_were_combined(fairmile: Fairmile, place: Path) -> None:
    text = "name: parts\ncommand: sh -c 'echo loss={n}'\naxes: {n: [1, 2]}\nmetrics: {loss: 'loss=(.)'}\nevery: 0\n"
    for more in ("", "combine: cat {inputs.results}\n"):
        (place / "parts.yaml").write_text(text + more)
        assert fairmile("sweep", "run", "parts.yaml").code == 0
        said = fairmile("report", "last", "-o", "parts.html", "--json").json
        assert [id.rpartition("-")[2] for id in said["runs"]] == ["00000", "00001"]
        assert said == fairmile("report", "-o", "parts.html", "--json").json


def test_a_sweep_is_reported_by_the_metric_that_its_file_names(fairmile: Fairmile, place: Path) -> None:
    (place / "train.sh").write_text('echo "{\\"train_loss\\": 0.$1, \\"val_accuracy\\": 0.$1}" >> $FAIRMILE_METRICS\n')
    (place / "swept.yaml").write_text(
        "name: swept\ncommand: sh train.sh {x}\naxes: {x: [1, 2, 3]}\nbest: val_accuracy\nevery: 0\n"
    )
    fairmile("sweep", "run", "swept.yaml")
    page = fairmile("report", "swept", "--json", "-o", "s.html").json
    assert (page["sweep"]["metric"], page["sweep"]["better"]) == ("val_accuracy", "higher")
    assert page["sweep"]["best"]["value"] == 0.3
    other = fairmile("report", "swept", "--json", "-o", "s.html", "-m", "train_loss").json
    assert other["sweep"]["metric"] == "train_loss", "what the command line names goes first"


def test_without_a_word_the_last_run_is_reported(fairmile: Fairmile, runs: Path, place: Path) -> None:
    result = fairmile("report")
    assert result.code == 0
    assert result.out.split() == ["wrote", "report.html"]
    assert "train-k3x9qa" in (place / "report.html").read_text()


def test_several_runs_go_into_one_page(fairmile: Fairmile, runs: Path, place: Path) -> None:
    result = fairmile("report", "base", "wide", "-o", "both.html", "--json")
    assert result.json["files"] == ["both.html"]
    assert result.json["comparison"]["groups"]["wide"]
    assert "Comparison" in (place / "both.html").read_text()


def test_a_run_that_is_named_twice_counts_once(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("report", "base", "base-000000", "--dry-run", "--json")
    assert len(result.json["runs"]) == 3


def test_a_condition_alone_means_all_runs_that_fit(fairmile: Fairmile, runs: Path) -> None:
    assert len(fairmile("report", "--where", "tag=night", "--dry-run", "--json").json["runs"]) == 3


def test_a_condition_that_no_run_fits_is_named(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("report", "--where", "tag=day")
    assert result.code == 2
    assert "no run has tag=day" in result.err


def test_the_ending_tells_the_format(fairmile: Fairmile, runs: Path, place: Path) -> None:
    result = fairmile("report", "-o", "r.md")
    assert result.code == 0
    assert (place / "r.md").read_text().startswith("# train")
    assert (place / "r-figures" / "phases.svg").exists()


@pytest.mark.parametrize("form", ["svg", "png"])
def test_figures_alone_go_into_a_folder(fairmile: Fairmile, runs: Path, place: Path, form: str) -> None:
    assert fairmile("report", "train-k3x9qa", "--format", form, "-o", "pictures").code == 0
    assert (place / "pictures" / f"learning-curve.{form}").exists()


def test_a_page_can_go_to_stdout(fairmile: Fairmile, runs: Path, place: Path) -> None:
    assert fairmile("report", "-o", "-", "--format", "md").out.startswith("# train")
    assert fairmile("report", "-o", "-", "--format", "png").code == 2


def test_a_dry_run_writes_nothing(fairmile: Fairmile, runs: Path, place: Path) -> None:
    assert fairmile("report", "--dry-run").out.split() == ["would", "write", "report.html"]
    assert not (place / "report.html").exists()


def test_the_leaderboard_is_printed(fairmile: Fairmile, runs: Path, place: Path) -> None:
    result = fairmile("report", "--top", "loss", "-n", "2")
    assert [line.split()[1] for line in result.out.splitlines()[1:]] == ["train", "base"]
    assert "-n 3 shows all" in result.err
    assert not (place / "report.html").exists()


def test_the_leaderboard_is_filtered(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("report", "--top", "loss", "--where", "tag=night", "--json")
    assert [place["label"] for place in result.json["places"]] == ["base"]


def test_an_unknown_metric_is_answered_with_the_nearest(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("report", "--top", "los")
    assert result.code == 2
    assert "did you mean 'loss'?" in result.err


def test_without_any_run_the_next_step_is_told(fairmile: Fairmile) -> None:
    result = fairmile("report")
    assert result.code == 2
    assert "hint:" in result.err
