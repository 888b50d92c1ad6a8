"""Axes among the arguments of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from sweep_making import workspace_here

from fairmile.base.errors import UsageError
from fairmile.sweeps.arguments import program_axes
from fairmile.workspace import Workspace

ENVIRON = {"PATH": "/nowhere"}
PROGRAM = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("-s", "--seed", type=int)
parser.add_argument("--columns")
arguments = parser.parse_args()
print(f"loss={arguments.lr * arguments.seed} columns={arguments.columns}")
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return workspace_here(tmp_path)


def axes_of(words: str, *, tuning: bool = False) -> tuple[str, dict[str, Any]]:
    command, axes = program_axes(["train.py", *words.split(" ")], ENVIRON, tuning=tuning)
    return " ".join(command).removeprefix("{python} train.py "), axes


@for_each(
    "words, command, axes",
    [
        ("--lr 0.1,0.01", "--lr {lr}", {"lr": [0.1, 0.01]}),
        ("--lr=0.1,0.01 --seed 3", "--lr={lr} --seed 3", {"lr": [0.1, 0.01]}),
        ("-s 1..3", "-s {seed}", {"seed": [1, 2, 3]}),
        ("model.lr=0.1,0.2 +n=range(1,4)", "model.lr={model.lr} +n={n}", {"model.lr": [0.1, 0.2], "n": [1, 2, 3]}),
        ("--lr logspace(1e-3,1e-1,3),5", "--lr {lr}", {"lr": [0.001, 0.01, 0.1, 5]}),
        ("--columns 'a,b' --lr 1,2", "--columns a,b --lr {lr}", {"lr": [1, 2]}),
        ("--columns 'a,b',c", "--columns {columns}", {"columns": ["a,b", "c"]}),
        ("--layers [64,32] --map {a:1,b:2} --f(x,y)", "--layers [64,32] --map {a:1,b:2} --f(x,y)", {}),
        ("--date 2026-11-17 --path ../up --version 1.2.3", "--date 2026-11-17 --path ../up --version 1.2.3", {}),
        ("--lr 0.1..0.9", "--lr {lr}", {"lr": {"uniform": [0.1, 0.9]}}),
        ("--lr 1e-4..1e-1:log", "--lr {lr}", {"lr": {"log": [1e-4, 1e-1]}}),
        ("--width 1..64:log", "--width {width}", {"width": {"integer": [1, 64], "log": True}}),
    ],
)
def test_are_lists_and_ranges_and_nothing_else(words: str, command: str, axes: dict[str, Any]) -> None:
    assert axes_of(words) == (command, axes)


def test_of_a_study_are_searched_between_their_ends() -> None:
    assert axes_of("--seed 1..64", tuning=True) == ("--seed {seed}", {"seed": {"integer": [1, 64]}})


@for_each(
    "words, message",
    [
        ("--seed 3..1", "--seed: the range 3..1 is reversed"),
        ("--lr 1,2 --lr 3,4", "--lr is given twice"),
        ("--seed 1..99999999", "more than 1,000,000 values"),
        ("--lr 0.1..0.2,5", "a search range"),
    ],
)
def test_that_are_wrong_are_named(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        axes_of(words)


def test_run_with_the_values_as_arguments_and_parameters(workspace: Workspace) -> None:
    words = ["train.py", "--lr", "0.1,0.01", "-s", "1..2", "--columns", "'a,b'"]
    definition, source, _ = workspace.sweeps.define(words)
    plan = workspace.sweeps.plan(definition)
    started = plan.commands[0].partition(" train.py")[0]
    assert plan.commands[1] == f"{started} train.py --lr 0.1 -s 2 --columns a,b"
    assert plan.to_dict()["commands"] == list(plan.commands)
    assert len(plan.commands) == 4

    sweep = workspace.sweeps.create(definition, source)
    workspace.sweeps.run(sweep)
    runs = workspace.sweeps.results(sweep)
    assert [dict(run.spec.params) for run in runs] == [
        {"columns": "a,b", "lr": lr, "seed": seed} for lr in (0.1, 0.01) for seed in (1, 2)
    ]
    assert b"loss=0.2 columns=a,b" in bytes(workspace.runs.output(runs[1].id))


def test_are_needed_and_said_once(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match=r"no argument of train\.py has several values"):
        workspace.sweeps.read(program=["train.py", "--lr", "0.1"])
    with pytest.raises(UsageError, match=r"no argument of train\.py has a range or a choice"):
        workspace.sweeps.read(program=["train.py", "--lr", "0.1"], tuning=True)
    with pytest.raises(UsageError, match=r"the range 1\.\.9:logg ends with 'logg', expected log"):
        workspace.sweeps.read(program=["train.py", "--lr", "1..9:logg"], tuning=True)
    with pytest.raises(UsageError, match="lr is given twice"):
        workspace.sweeps.read(program=["train.py", "--lr", "0.1,0.2"], params={"lr": "1,2"})
    definition, _ = workspace.sweeps.read(program=["train.py", "--lr", "0.1,0.2"], params={"depth": "1,2"})
    with pytest.raises(UsageError, match="nothing uses the parameter depth"):
        workspace.sweeps.plan(definition)
