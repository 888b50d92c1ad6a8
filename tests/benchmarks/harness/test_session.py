"""What a benchmark's program is told of its run, and what it keeps for the next one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fairmile.base.errors import NotFound, UsageError
from fairmile.benchmarks.harness.scores import Results, Score
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"FAIRMILE_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}


def test_a_run_tells_parameters_seed_data_and_ranks(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "events.csv").touch()
    environ |= {"FAIRMILE_PARAMS": '{"epochs": 3}', "FAIRMILE_SEED": "7", "FAIRMILE_RESUME": "1"}
    environ |= {"FAIRMILE_INPUT_DATA": str(tmp_path / "events.csv"), "RANK": "1", "WORLD_SIZE": "4"}
    session = Session.of("quake", environ, tmp_path)
    assert (session.params, session.seed, session.is_resumed) == ({"epochs": 3}, 7, True)
    assert session.data == tmp_path / "events.csv"
    assert (session.ranks.rank, session.ranks.size, session.ranks.is_first) == (1, 4, False)


def test_outside_of_a_run_defaults_hold(tmp_path: Path) -> None:
    session = Session.of("quake", {"HOME": str(tmp_path)}, tmp_path)
    assert (session.params, session.seed, session.data, session.is_resumed) == ({}, 0, None, False)
    assert session.cache == tmp_path / ".cache" / "fairmile" / "benchmarks"
    assert session.ranks.is_first


def test_data_that_is_not_there_is_told(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(NotFound, match="no data at /nowhere"):
        Session.of("quake", {**environ, "FAIRMILE_INPUT_DATA": "/nowhere"}, tmp_path)


@pytest.mark.parametrize("seed", ["-1", "one", str(1 << 63)])
def test_a_seed_that_is_none_is_told(tmp_path: Path, environ: dict[str, str], seed: str) -> None:
    with pytest.raises(UsageError, match=f"the seed is {seed}: expected a whole number"):
        Session.of("quake", {**environ, "FAIRMILE_SEED": seed}, tmp_path)


@pytest.mark.parametrize(
    ("variables", "rank", "nodes"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, 3, 2),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, 1, 2),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}, 1, 2),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 5, 2),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "4,3"}, 5, 2),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"}, 0, 1),  # the script of a job
        ({"FLUX_TASK_RANK": "2", "FLUX_JOB_SIZE": "6", "FLUX_TASK_LOCAL_ID": "0", "FLUX_JOB_NNODES": "3"}, 2, 3),
    ],
)
def test_each_launcher_is_understood(tmp_path: Path, variables: dict[str, str], rank: int, nodes: int) -> None:
    ranks = Session.of("quake", variables, tmp_path).ranks
    assert (ranks.rank, ranks.nodes) == (rank, nodes)


class TestPreparedData:
    def test_is_made_once_for_the_same_question(self, tmp_path: Path, environ: dict[str, str]) -> None:
        calls = []

        def make(folder: Path) -> None:
            calls.append(folder)
            (folder / "data.npy").write_text("x")

        first = Session.of("quake", environ, tmp_path).prepared({"years": 5}, make)
        again = Session.of("quake", environ, tmp_path).prepared({"years": 5}, make)
        other = Session.of("quake", environ, tmp_path).prepared({"years": 6}, make)
        assert first == again != other
        assert len(calls) == 2
        assert (first / "data.npy").read_text() == "x"

    def test_is_made_again_where_the_real_data_changed(self, tmp_path: Path, environ: dict[str, str]) -> None:
        data = tmp_path / "events.csv"
        data.write_text("one")
        environ["FAIRMILE_INPUT_DATA"] = str(data)
        first = Session.of("quake", environ, tmp_path).prepared({}, lambda folder: None)
        data.write_text("longer")
        assert Session.of("quake", environ, tmp_path).prepared({}, lambda folder: None) != first

    def test_leaves_nothing_where_making_fails(self, tmp_path: Path, environ: dict[str, str]) -> None:
        def make(folder: Path) -> None:
            (folder / "half").touch()
            raise UsageError("line 3: no number")

        session = Session.of("quake", environ, tmp_path)
        with pytest.raises(UsageError, match="line 3"):
            session.prepared({}, make)
        assert [each.name for each in (session.cache / "quake").iterdir()] == []
        assert session.prepared({}, lambda folder: None).is_dir()

    def test_needs_a_folder_with_files(self, tmp_path: Path, environ: dict[str, str]) -> None:
        (tmp_path / "empty").mkdir()
        session = Session.of("quake", {**environ, "FAIRMILE_INPUT_DATA": str(tmp_path / "empty")}, tmp_path)
        with pytest.raises(UsageError, match="has no files"):
            session.prepared({}, lambda folder: None)


class TestAReport:
    RESULTS = Results(
        benchmark="Quake",
        data="a synthetic catalog",
        metric=Metric("nnse", "higher"),
        scores=[
            Score("trivial", "mean", {"nnse": 0.5}),
            Score("classical", "ridge", {"nnse": 0.61, "skill": 0.2}),
            Score("model", "tft", {"nnse": 0.734567}),
        ],
        seed=3,
        settings={"epochs": 2},
        notes=("made up",),
    )

    def test_is_a_table_a_file_and_metrics(
        self, tmp_path: Path, environ: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        Session.of("quake", environ, tmp_path).report(self.RESULTS)
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line]
        assert lines == [
            "Quake on a synthetic catalog, seed 3",
            "                   nnse    skill",
            "mean (trivial)     0.5",
            "ridge (classical)  0.61    0.2",
            "tft (model)        0.7346",
            "note: made up",
        ]
        written = json.loads((tmp_path / "results.json").read_text())
        assert written["scores"][2]["values"] == {"nnse": 0.734567}
        assert written["metric"]["better"] == "higher"

    def test_has_published_results_beside_real_data_alone(self, tmp_path: Path, environ: dict[str, str]) -> None:
        published = [{"name": "TFT", "metric": "nnse", "value": 0.937, "source": "doi:10.3390/geohazards3020011"}]
        results = dataclasses.replace(self.RESULTS, published=published)
        Session.of("quake", environ, tmp_path).report(results)
        assert json.loads((tmp_path / "results.json").read_text())["published"] == []
        (tmp_path / "events.csv").touch()
        environ["FAIRMILE_INPUT_DATA"] = str(tmp_path / "events.csv")
        Session.of("quake", environ, tmp_path).report(results)
        assert json.loads((tmp_path / "results.json").read_text())["published"] == published

    def test_has_a_line_for_each_of_many_metrics(self) -> None:
        many = {f"m{n}": n / 10 for n in range(9)}
        scores = [Score("trivial", "mean", many), Score("model", "tft", {"m0": 1.0})]
        lines = dataclasses.replace(self.RESULTS, scores=scores).table().splitlines()
        assert lines[0].split() == ["mean", "(trivial)", "tft", "(model)"]
        assert [line.split() for line in lines[1:3]] == [["m0", "0", "1"], ["m1", "0.1"]]

    def test_is_told_by_the_first_rank_alone(
        self, tmp_path: Path, environ: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        Session.of("quake", {**environ, "RANK": "1", "WORLD_SIZE": "2"}, tmp_path).report(self.RESULTS)
        assert capsys.readouterr().out == ""
        assert not (tmp_path / "results.json").exists()


class TestAMetric:
    def test_knows_which_value_is_better(self) -> None:
        assert Metric("mae", "lower").is_better(0.1, 0.2)
        assert not Metric("mae", "lower").is_better(0.2, 0.1)
        assert Metric("nnse", "higher").is_better(0.2, 0.1)
        assert Metric("mae", "lower").is_better(5.0, None)
        assert Metric("mae", "lower").is_better(5.0, float("nan"))
        assert not Metric("mae", "lower").is_better(float("nan"), None)

    def test_has_a_target_only_where_one_is_set(self) -> None:
        assert Metric("mae", "lower", target=0.124).is_met(0.124)
        assert not Metric("mae", "lower", target=0.124).is_met(0.125)
        assert not Metric("mae", "lower").is_met(0.0)
