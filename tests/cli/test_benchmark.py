"""`fairmile benchmark`: what a user sees of a measurement."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.units import parse_size
from fairmile.benchmarks import measured
from fairmile.benchmarks.storage import METRICS
from fairmile.costs.collectives.measure import MeasuredBackend
from fairmile.costs.collectives.tables import MeasuredPoint
from fairmile.store import speed

Fairmile = Callable[..., Any]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to measure, quickly."""
    monkeypatch.setattr(speed, "_RANDOM_MOST", 50)
    monkeypatch.setattr(speed, "_SYNCS", 5)
    monkeypatch.setattr(speed, "_SMALL_FILES", 20)
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def records(place: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in (place.parent / "home" / "runs").glob("storage-*/run.json")]


def test_the_figures_and_the_advice_are_shown_and_kept_as_a_run(fairmile: Fairmile, place: Path, data: Path) -> None:
    result = fairmile("benchmark", "storage", str(data), "--size", "1 MB")
    assert result.code == 0
    assert result.out.startswith("folder")
    assert re.search(rf"^many small files +{re.escape(os.path.realpath(data))}: ", result.out, re.MULTILINE)
    assert "one process, one request at a time" in result.out
    (record,) = records(place)
    assert record["result"]["state"] == "done"
    assert {name.rpartition(".")[2] for name in record["result"]["metrics"]} == set(METRICS)
    metric = next(each for name, each in record["result"]["metrics"].items() if name.endswith("fsync_median_s"))
    assert (metric["unit"], metric["better"], metric["count"]) == ("s", "lower", 1)
    assert record["id"] in result.err
    assert (place.parent / "home" / "runs" / record["id"] / "storage.json").exists()
    assert os.listdir(data) == []


def test_how_it_was_measured_is_told_once_for_folders_measured_alike(fairmile: Fairmile, data: Path) -> None:
    (data / "a").mkdir()
    (data / "b").mkdir()
    result = fairmile("benchmark", "storage", str(data / "a"), str(data / "b"), "--size", "1 MB")
    assert result.out.count("one process, one request at a time") == 1


def test_as_json_it_is_the_whole_report(fairmile: Fairmile, data: Path) -> None:
    told = fairmile("benchmark", "storage", str(data), "--size", "1 MB", "--json").json
    assert told["run"].startswith("storage-")
    assert told["measured"][0]["place"]["size_bytes"] >= parse_size("1 MB")
    assert set(told["measured"][0]["values"]) == set(METRICS)
    assert len(told["advice"]) == 5


def test_a_dry_run_writes_nothing(fairmile: Fairmile, place: Path, data: Path) -> None:
    result = fairmile("benchmark", "storage", str(data), "--size", "1 MB", "--dry-run")
    assert (result.code, records(place), os.listdir(data)) == (0, [], [])
    assert os.path.realpath(data) in result.out
    assert "at most" in result.err
    told = fairmile("benchmark", "storage", str(data), "--dry-run", "--json").json
    assert told["would_measure"][0]["path"] == os.path.realpath(data)


def test_a_pool_that_is_purged_is_no_place_for_results(fairmile: Fairmile, data: Path) -> None:
    assert fairmile("store", "pool", "add", "here", str(data), "--purge", "30 d").code == 0
    told = fairmile("benchmark", "storage", str(data), "--size", "1 MB", "--json").json
    assert told["measured"][0]["place"]["lifetime"] == "purged after 30 days"
    assert told["advice"][-1]["ranking"] == []


def test_data_that_fits_nowhere_is_told(fairmile: Fairmile, data: Path) -> None:
    told = fairmile("benchmark", "storage", str(data), "--size", "1 MB", "--need", "9000 PB", "--json").json
    assert {tuple(each["ranking"]) for each in told["advice"]} == {()}


def test_a_folder_that_is_not_there_is_a_mistake_of_the_user(fairmile: Fairmile, place: Path, data: Path) -> None:
    result = fairmile("benchmark", "storage", str(data / "nothing"))
    assert (result.code, records(place)) == (2, [])
    assert "no folder" in result.err


def test_a_folder_that_fails_midway_ends_with_code_3_and_the_run_is_kept(
    fairmile: Fairmile, place: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> list[float]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(speed, "sync_times", broken)
    result = fairmile("benchmark", "storage", str(data), "--size", "1 MB")
    assert result.code == 3
    assert "Input/output error" in result.err
    assert "none of the folders could be measured" in result.out
    assert len(records(place)) == 1


def test_on_a_terminal_each_step_is_shown_and_taken_away(
    fairmile: Fairmile, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    assert fairmile("benchmark", "storage", str(data), "--size", "1 MB", "--json").code == 0
    shown = screen.getvalue()
    assert "writing a large file" in shown
    assert shown.endswith("\r\033[K")


def test_a_signal_of_the_batch_system_leaves_nothing(place: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    command = [sys.executable, "-m", "fairmile", "benchmark", "storage", str(data), "--size", "64 MB"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not os.listdir(data) and process.poll() is None:
                time.sleep(0.002)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, said) == (143, "")
    assert os.listdir(data) == []
    (result,) = [record["result"] for record in records(place)]
    assert (result["state"], result["signal"]) == ("cancelled", "TERM")


class TestBenchmarks:
    def test_are_listed_with_metric_and_target(self, fairmile: Fairmile) -> None:
        lines = fairmile("benchmark", "ls").out.splitlines()
        assert lines[0].split() == ["name", "domain", "metric", "target", "runs", "about"]
        (line,) = [each for each in lines if each.startswith("cosmoflow")]
        assert "mae" in line and "0.124" in line and "here" in line

    def test_tell_what_is_known_and_what_can_be_set(self, fairmile: Fairmile) -> None:
        out = fairmile("benchmark", "show", "mnist").out
        assert "accuracy, higher is better" in out
        assert "most frequent class" in out
        assert "hidden" in out and "units of the hidden layer" in out

    def test_begin_in_a_new_folder(self, fairmile: Fairmile, place: Path) -> None:
        result = fairmile("benchmark", "new", "waves", "--kind", "program")
        assert result.code == 0
        assert "`fairmile run ./waves` runs it" in result.err
        assert fairmile("run", "./waves", "-p", "terms=5").code == 0
        again = fairmile("benchmark", "new", "waves")
        assert (again.code, "already exists" in again.err) == (2, True)

    def test_begin_in_any_folder_and_say_how_to_run_there(self, fairmile: Fairmile, tmp_path: Path) -> None:
        asked = ("benchmark", "new", "waves", "--kind", "program", "--to", str(tmp_path / "far"))
        assert "runs it" not in fairmile(*asked, "--dry-run").err
        assert f"`fairmile run {tmp_path}/far/waves` runs it" in fairmile(*asked).err

    def test_of_other_catalogs_may_have_a_target_in_words(self, fairmile: Fairmile, place: Path) -> None:
        fairmile("benchmark", "new", "waves")
        card = json.loads((place / "waves" / "card.jsonld").read_text())
        card["matchSpec"] |= {"target": "as low as can be", "name": "other"}
        (place / "waves" / "card.jsonld").write_text(json.dumps(card))
        assert fairmile("catalog", "add", "waves/card.jsonld").code == 0
        assert "as low as can be" in fairmile("benchmark", "ls").out
        assert "waves" in [each["name"] for each in fairmile("benchmark", "ls", "--json").json["benchmarks"]]

    def test_are_not_hidden_by_a_folder_of_the_same_name(self, fairmile: Fairmile, place: Path) -> None:
        assert fairmile("benchmark", "new", "mnist", "--kind", "program").code == 0
        both = fairmile("run", "mnist", "--dry-run")
        told = "'mnist' may be the folder mnist or the benchmark builtin/benchmark/mnist@1.0"
        assert (both.code, both.err.splitlines()[0]) == (2, f"error: {told}")
        named = fairmile("run", "benchmark/mnist", "--dry-run", "--json").json
        assert named["spec"]["asset"] == "builtin/benchmark/mnist@1.0"
        own = fairmile("run", "./mnist", "--dry-run", "--json").json["spec"]
        assert ("asset" in own, own["params"]) == (False, {"terms": 100000})

    def test_run_by_their_name_before_a_model_of_the_same_name(self, fairmile: Fairmile) -> None:
        planned = fairmile("run", "cosmoflow", "--dry-run", "--json").json
        assert planned["spec"]["asset"] == "builtin/benchmark/cosmoflow@3.0"
        assert planned["spec"]["argv"] == ["{python}", "-m", "fairmile.benchmarks", "cosmoflow"]
        assert [step["verb"] for step in planned["steps"]] == ["needs", "run"]


# Collectives


def test_the_commands_that_would_measure_collectives_are_told(fairmile: Fairmile) -> None:
    asked = ("benchmark", "collectives", "--ranks", "4, 2", "--sizes", "1KiB,1MiB", "--collectives", "AllReduce")
    told = fairmile(*asked, "--for", "20ms", "--dry-run", "--json").json
    two, four = told["commands"]
    assert (two.endswith("--ranks 2"), four.endswith("--ranks 4")) == (True, True)
    assert "--backend gloo --sizes 1024,1048576 --collectives all_reduce --seconds 0.02" in two
    assert "mpirun -np 2 " in fairmile("benchmark", "collectives", "--backend", "mpi", "--dry-run").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "two"], "--ranks: 'two' is not a number"),
        (["--ranks", "-2"], "--ranks: '-2' is not a number"),
        (["--ranks", "²"], "--ranks: '²' is not a number"),
        (["--ranks", "1"], "the numbers of ranks are [1], expected 2 or more"),
        (["--ranks", ","], "the numbers of ranks are [], expected 2 or more"),
        (["--sizes", "big"], "big"),
        (["--collectives", "all_redouce"], "all_redouce"),
        (["--for", "0s"], "the time per size is 0.0 s, expected more than 0"),
    ],
)
def test_what_cannot_be_measured_of_collectives_is_told(fairmile: Fairmile, arguments: list[str], message: str) -> None:
    result = fairmile("benchmark", "collectives", *arguments, "--dry-run")
    assert result.code == 2
    assert message in result.err.splitlines()[0]


def test_measured_collectives_stand_beside_a_model(
    fairmile: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [2.0**power for power in range(10, 24, 2)]
    points = tuple(MeasuredPoint("all_reduce", size, 2, 20e-6 + size / 5e9) for size in sizes)
    found = MeasuredBackend("gloo", "gloo", points, {"all_to_all": "gloo has none"})
    monkeypatch.setattr(measured, "measure_collectives", lambda *_, **__: found)
    result = fairmile("benchmark", "collectives", "-o", "points.json")
    heading = "collective ranks size measured bus model error like"
    assert result.out.splitlines()[0].split() == heading.split()
    assert len(result.out.splitlines()) == 1 + len(sizes)
    assert result.out.splitlines()[1].split()[:7] == ["all", "reduce", "2", "1.0", "KiB", "20.2", "µs"]
    assert "note: all_to_all was skipped: gloo has none" in result.err
    told = fairmile("benchmark", "collectives", "--json").json
    assert told == json.loads((place / "points.json").read_text())
    assert all(abs(each["error"]) < 0.05 for each in told["points"])
    assert "the model of" not in result.err


def test_a_model_that_is_far_from_what_was_measured_is_told_below_the_table(
    fairmile: Fairmile, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = tuple(
        MeasuredPoint("all_reduce", 2.0**power, 2, (20e-6 + 2.0**power / 5e9) * (3 if power == 16 else 1))
        for power in range(10, 24, 2)
    )
    monkeypatch.setattr(measured, "measure_collectives", lambda *_, **__: MeasuredBackend("gloo", "gloo", points, {}))
    (note,) = fairmile("benchmark", "collectives").err.splitlines()
    assert note.startswith("note: the model of all reduce is off by up to -")
    assert "(64.0 KiB, 2 ranks): use the measured times there" in note


def test_a_submission_lists_what_its_runs_lack_and_the_verdicts_of_the_checkers(
    fairmile: Fairmile, place: Path
) -> None:
    assert fairmile("run", "--", "cat", "cosmoflow-mllog.txt").code == 0
    result = fairmile("benchmark", "submit", "last", "--to", "mlperf-hpc", "--org", "Lake", "-o", "submission")
    assert result.code == 1
    assert re.search(r"^cat-\w+ +cosmoflow .* best logged 0.131", result.out, re.MULTILINE)
    assert re.search(r"^missing +cosmoflow on .*: 1 of 10 runs$", result.out, re.MULTILINE)
    assert re.search(r"^passed +repository checker", result.out, re.MULTILINE)
    assert re.search(r"^failed +package checker +Lake$", result.out, re.MULTILINE)
    assert (place / "submission" / "Lake" / "systems").is_dir()
