"""QSVR from nothing: differences with intervals, no winner inside the noise, and the solver by its name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.qsvr import benchmark, data
from fairmile.benchmarks.suite.qsvr.comparison import MODEL, Comparison, Difference

SMALL = {"splits": 2, "seeds": 2, "rows": 12, "reads": 4, "sweeps": 10}


def session(folder: Path, file: Path | None = None, **params: object) -> Session:
    environ = {"FAIRMILE_PARAMS": json.dumps(SMALL | params), "FAIRMILE_SEED": "1", "HOME": str(folder)}
    return Session.of("qsvr", environ | ({"FAIRMILE_INPUT_DATA": str(file)} if file else {}), folder)


def test_both_tables_are_compared_and_the_solver_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.run(session(tmp_path))
    results = json.loads((tmp_path / "results.json").read_text())
    scores = {each["name"]: each for each in results["scores"]}
    assert list(scores) == ["mean", "least squares", "svr", "qubo-svr by simulated annealing on a CPU (NumPy)"]
    assert [each["kind"] for each in scores.values()] == ["trivial", "classical", "classical", "model"]
    assert all(set(each["values"]) == {"rmse", "rmse_curves"} for each in scores.values())
    assert scores["mean"]["values"]["rmse"] == pytest.approx(1, abs=0.5)
    assert results["figures"] == ["differences.svg"]
    printed = capsys.readouterr().out
    assert "diabetes: qubo-svr - svr = " in printed
    assert "solver: simulated annealing on a CPU (NumPy)" in printed
    assert "quantum" not in printed


def test_a_table_of_ones_own_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.linspace(0, 1, 30)
    np.savetxt(tmp_path / "level.csv", np.c_[x, 3 * x], delimiter=",", header="depth,level", comments="")
    benchmark.run(session(tmp_path, tmp_path / "level.csv", sweeps=40))
    assert "level.csv, target level; 2 splits, 2 seeds" in capsys.readouterr().out
    scores = {
        each["name"]: each["values"]["rmse"] for each in json.loads((tmp_path / "results.json").read_text())["scores"]
    }
    assert scores["least squares"] < 1e-9 < scores["qubo-svr by simulated annealing on a CPU (NumPy)"] < scores["mean"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a,b\n1,x\n", "expected a header and rows of numbers"),
        ("a,b\n1,2\n", "expected at least 8 rows"),
        ("a,b\n" + "1,nan\n" * 9, "not a finite number"),
    ],
)
def test_a_bad_table_is_refused_by_name(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "bad.csv").write_text(content)
    with pytest.raises(UsageError, match=f"bad.csv: .*{problem}"):
        data.read_table(tmp_path / "bad.csv")


def test_more_rows_than_a_table_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="parameter rows: expected at most 75 for curves, which has 150 rows, found 100"
    ):
        benchmark.run(session(tmp_path, table="curves", rows=100))


def test_an_interval_that_covers_zero_names_no_winner() -> None:
    assert Difference(0.1, -0.1, 0.3).verdict == "no winner"
    assert Difference(0.2, 0.1, 0.3).verdict == "qubo-svr is worse"
    assert Difference(-0.2, -0.3, -0.1).verdict == "qubo-svr is better"
    even = np.array([1.0, 1.1, 0.9, 1.0])
    table = data.Table("t", even[:, None], even, "t")
    noisy = Comparison(table, {MODEL: even + 0.1 * np.array([1, -1, 1, -1]), "svr": even}, 0.0, 0.0, "")
    assert noisy.difference("svr").verdict == "no winner"
    clear = Comparison(table, {MODEL: even + np.array([0.5, 0.51, 0.5, 0.49]), "svr": even}, 0.0, 0.0, "")
    assert clear.difference("svr").verdict == "qubo-svr is worse"
