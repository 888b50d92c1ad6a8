"""The arguments of a program on its command line are parameters of its run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.runs.arguments import argument_params, start_program, with_options
from fairmile.workspace import Workspace

ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int)
parser.add_argument("--lr", type=float, dest="rate")
parser.add_argument("--verbose", action="store_true")
parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction)
parser.add_argument("--layers", nargs="+", type=int)
parser.add_argument("--no-cuda", dest="cuda", action="store_false")
print(parser.parse_known_args())
"""
CLICK = """
import click
@click.command()
@click.option("-b", "--batch", "size", type=int)
@click.option("--fast/--slow")
@click.option("--dry", is_flag=True)
@click.option("--tag", multiple=True)
def main(**options): ...
"""


def params_of(*argv: str) -> dict[str, Any]:
    return argument_params(argv, Path.cwd(), os.environ)


@for_each(
    "words, expected",
    [
        ("--lr 0.1", {"lr": 0.1}),
        ("--lr=0.1 --name=a=b", {"lr": 0.1, "name": "a=b"}),
        ("-b 32 -x", {"b": 32, "x": True}),
        ("-b32 -j-4", {"b": 32, "j": -4}),
        ("--shift -3 --low -.5", {"shift": -3, "low": -0.5}),
        ("--batch-size 8 --no-shuffle", {"batch_size": 8, "no_shuffle": True}),
        ("--tag a --tag b", {"tag": "a,b"}),
        ("model.lr=0.1 +trainer.devices=2 ++seed=3", {"model.lr": 0.1, "trainer.devices": 2, "seed": 3}),
        ("db/engine=fast ~db data.csv", {"db.engine": "fast"}),
        ("--flag true --id 007 --none null --bad nan", {"flag": True, "id": "007", "none": None, "bad": "nan"}),
        ("--lr 0.1 -- --seed 3", {"lr": 0.1}),
        ("--lr {lr} --seed 1", {"seed": 1}),
        ("data.csv - 5", {}),
    ],
)
def test_are_named_without_dashes_and_have_types(words: str, expected: dict[str, Any]) -> None:
    found = params_of("python", "train.py", *words.split())
    assert found == expected
    assert {name: type(value) for name, value in found.items()} == {k: type(v) for k, v in expected.items()}


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        (ARGPARSE, "-b 32 --lr 0.1", {"batch_size": 32, "rate": 0.1}),
        (ARGPARSE, "--verbose data.csv --no-shuffle x --no-cuda", {"verbose": True, "shuffle": False, "cuda": False}),
        (ARGPARSE, "--layers 64 32 --verbose", {"layers": "64 32", "verbose": True}),
        (ARGPARSE, "-b8 --shuffle", {"batch_size": 8, "shuffle": True}),
        (CLICK, "-b 4 --slow data.csv --dry x --tag a", {"size": 4, "fast": False, "dry": True, "tag": "a"}),
        ("def broken(:", "--lr 0.1", {"lr": 0.1}),
    ],
)
def test_are_read_as_the_program_declares_them(
    program: str, words: str, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(program)
    assert params_of("python", "-u", "train.py", *words.split()) == expected


@for_each(
    "command",
    [
        "ls --color auto",
        "sh -c true --lr 1",
        "python -c pass --lr 1",
        "python -m fairmile.benchmarks --lr 1",
        "echo --lr 1",
        "/usr/bin/env --lr 1",
    ],
)
def test_of_commands_of_the_system_are_no_parameters(command: str) -> None:
    assert params_of(*command.split()) == {}


def test_begin_behind_a_launcher_and_its_script() -> None:
    assert params_of("torchrun", "--nproc-per-node", "2", "train.py", "--lr", "0.1") == {"lr": 0.1}
    assert params_of("python", "-m", "trainer", "--lr", "0.1") == {"lr": 0.1}
    assert params_of("./simulate", "--steps", "10") == {"steps": 10}


@pytest.mark.parametrize(
    ("program", "given", "names", "expected"),
    [
        (ARGPARSE, "", ["batch_size", "rate"], "--batch-size {batch_size} --lr {rate}"),
        (ARGPARSE, "-b 8", ["batch_size", "rate"], "-b 8 --lr {rate}"),
        (ARGPARSE, "--lr {rate}", ["rate"], "--lr {rate}"),
        (ARGPARSE, "", ["verbose", "layers", "depth"], ""),
        (CLICK, "", ["size", "tag"], "--batch {size} --tag {tag}"),
    ],
)
def test_parameters_that_a_program_declares_as_options_are_passed_as_such(
    program: str, given: str, names: list[str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program)
    command = with_options(["python", "train.py", *given.split()], names, tmp_path, os.environ)
    assert command == ("python", "train.py", *expected.split())


class TestAProgram:
    @pytest.fixture(autouse=True)
    def _folder(self, workspace: Workspace) -> None:
        Path("train.py").write_text("import sys\nprint('trained', sys.argv)")
        Path("simulate").write_text("#!/bin/sh\necho simulated $1\n")
        Path("simulate").chmod(0o755)
        Path("notes.txt").write_text("plain")

    def test_is_started_by_python_or_by_itself(self) -> None:
        here, environ = Path.cwd(), {"PATH": "/nowhere"}
        assert start_program(["train.py", "--lr", "1"], here, environ) == ("{python}", "train.py", "--lr", "1")
        assert start_program(["simulate", "3"], here, environ) == ("./simulate", "3")
        assert start_program(["./simulate"], here, environ) == ("./simulate",)
        assert start_program(["notes.txt"], here, environ) == ("notes.txt",)
        assert start_program(["sh"], here, {"PATH": "/bin"}) == ("sh",)

    def test_runs_from_python_with_its_arguments_as_parameters(self, workspace: Workspace) -> None:
        run = workspace.runs.run(["train.py", "--lr", "0.1", "--deep"])
        assert (run.state, run.spec.name, dict(run.spec.params)) == ("done", "train", {"lr": 0.1, "deep": True})
        assert workspace.runs.run("./simulate").state == "done"
        (row,) = [row for row in workspace.runs.rows() if row.id == run.id]
        assert row.params == {"lr": 0.1, "deep": True}

    def test_is_named_by_a_run_file_with_its_arguments(self, workspace: Workspace) -> None:
        Path("run.yaml").write_text("argv: python3 train.py --lr 0.1 --seed {n}\nparams: {n: 3}\n")
        assert workspace.runs.run("run.yaml").spec.params == {"lr": 0.1, "n": 3}

    def test_that_gets_a_value_twice_is_an_error(self, workspace: Workspace) -> None:
        with pytest.raises(UsageError, match="nothing uses the parameter lr"):
            workspace.runs.plan(["train.py", "--lr", "0.1"], params={"lr": 0.5})
