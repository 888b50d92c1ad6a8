"""A parameter that nothing uses is an error before anything runs; one that a program reads is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import UsageError
from fairmile.runs.parameters import unused_params
from fairmile.runs.record.spec import RunSpec
from fairmile.runs.record.values import parse_params
from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace

READS = "import json, os\nPARAMS = json.loads(os.environ['FAIRMILE_PARAMS'])\n"


def unused(folder: Path, *argv: str, names: tuple[str, ...] = ("lr",), **fields: Any) -> list[str]:
    spec = RunSpec(argv=argv, params=dict.fromkeys(names, 0.1), folder=str(folder), **fields)
    return unused_params(spec, names, os.environ)


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    "argv", [("python", "train.py", "--lr", "{lr}"), ("echo", "a{lr}b"), ("sh", "-c", "train {lr|quote}")]
)
def test_a_placeholder_uses_one(tmp_path: Path, argv: tuple[str, ...]) -> None:
    assert unused(tmp_path, *argv) == []
    assert unused(tmp_path, *argv, names=("lr", "depth")) == ["depth"]


@pytest.mark.parametrize(
    ("files", "argv"),
    [
        ({"train.py": READS}, ("python", "train.py")),
        ({"train.py": "import helper\n", "helper.py": READS}, ("mpirun", "-n", "2", "python", "train.py")),
        ({"pkg/__init__.py": "", "pkg/__main__.py": "from . import go\n", "pkg/go.py": READS}, ("python", "-m", "pkg")),
        ({"run.sh": "python code/train.py\n", "code/train.py": READS}, ("bash", "run.sh")),
        ({"train.R": 'Sys.getenv("FAIRMILE_PARAMS")\n'}, ("Rscript", "train.R")),
        ({"train.py": READS}, ("sh", "-c", "cd . && python train.py")),
        ({}, ("sh", "-c", "echo $FAIRMILE_PARAMS")),
        ({"train": "\0ELF getenv FAIRMILE_PARAMS\0"}, ("./train",)),
        ({}, (sys.executable, "-m", "fairmile.benchmarks", "mnist")),
    ],
)
def test_a_program_that_reads_the_variable_uses_all(
    tmp_path: Path, files: Mapping[str, str], argv: tuple[str, ...]
) -> None:
    write(tmp_path, files)
    assert unused(tmp_path, *argv, names=("lr", "depth")) == []


def test_a_program_that_does_not_is_not_saved_by_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "print(0.5)\n", "other.py": READS})
    assert unused(tmp_path, "python", "train.py") == ["lr"]
    assert unused(tmp_path, "python", "train.py", reads_params=True) == []
    assert unused(tmp_path, "python", "train.py", code=("other.py",)) == []


class TestPlanning:
    @pytest.fixture
    def workspace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
        monkeypatch.chdir(tmp_path)
        write(tmp_path, {"train.py": "print(0.5)\n"})
        return Workspace.open(environ={**os.environ, "FAIRMILE_HOME": str(tmp_path / "home")}, cwd=tmp_path)

    def test_a_run_is_refused_with_the_way_to_use_it(self, workspace: Workspace) -> None:
        with pytest.raises(UsageError, match=r"nothing uses the parameter lr: `python train\.py` has no") as problem:
            workspace.runs.run(["python", "train.py"], params=parse_params(["lr=0.1"]))
        assert problem.value.hint is not None
        assert "as `--lr {lr}`, or read the variable FAIRMILE_PARAMS" in problem.value.hint
        assert "--reads-params" in problem.value.hint
        assert workspace.runs.rows() == []

    def test_of_a_script_that_declares_options_the_nearest_is_named(self, workspace: Workspace) -> None:
        Path("fit.py").write_text(
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n"
        )
        with pytest.raises(UsageError, match=r"lrr: fit\.py has no argument --lrr(?:\n|$)") as problem:
            workspace.runs.run(["python", "fit.py"], params=parse_params(["lrr=0.1"]))
        assert str(problem.value.hint).startswith("did you mean --lr? `python fit.py --help` lists its arguments")

    def test_a_run_file_is_named(self, workspace: Workspace) -> None:
        Path("one.yaml").write_text("argv: python train.py\nparams: {lr: 0.1}\n")
        with pytest.raises(UsageError, match=r"one\.yaml: nothing uses the parameter lr"):
            workspace.runs.plan("one.yaml")
        Path("one.yaml").write_text("argv: python train.py\nparams: {lr: 0.1}\nreads_params: true\n")
        assert workspace.runs.plan("one.yaml").spec.params == {"lr": 0.1}

    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("command: python train.py\naxes:\n  n: [1]\n  lr: [0.1, 0.2]\ntags: ['{lr}{n}']\n", "s.yaml:3"),
            ("run: one.yaml\naxes:\n  lr: [0.1, 0.2]\n", "s.yaml:3"),
            ("command: python train.py {n}\naxes: {n: [1]}\nparams:\n  depth: 3\n", "s.yaml:4"),
        ],
    )
    def test_a_sweep_is_refused_at_the_line_that_says_the_axis(
        self, workspace: Workspace, text: str, place: str
    ) -> None:
        Path("s.yaml").write_text(text)
        Path("one.yaml").write_text("argv: python train.py\n")
        definition, source = workspace.sweeps.read(["s.yaml"])
        with pytest.raises(UsageError, match=f"{place}: nothing uses the parameter"):
            workspace.sweeps.create(definition, source)
        assert workspace.sweeps.ls() == []

    @pytest.mark.parametrize(
        "text",
        [
            "command: python train.py\nenv: {LR: '{lr}'}\n",
            "command: python train.py\nresources: {nodes: '{lr}'}\n",
            "command: python train.py {about.{lr}}\nsettings: {about: {1: one, 2: two}}\n",
            "command: python train.py {word}\nsettings: {word: 'is {lr}'}\n",
            "template: job.in.sh\n",
            "command: python train.py\nreads_params: true\n",
        ],
    )
    def test_an_axis_is_used_wherever_a_run_differs_by_it(self, workspace: Workspace, text: str) -> None:
        Path("s.yaml").write_text(f"{text}axes: {{lr: [1, 2]}}\n")
        Path("job.in.sh").write_text("#!/bin/sh\npython train.py config.yaml\n")
        definition, _ = workspace.sweeps.read(["s.yaml"])
        assert workspace.sweeps.plan(definition).count == 2

    def test_one_that_is_linked_with_another_names_the_same_choice(self, workspace: Workspace) -> None:
        text = "command: python train.py {lr}\naxes: {speed: [slow, fast], lr: [1, 2]}\nlinked: [[speed, lr]]\n"
        Path("s.yaml").write_text(text)
        definition, _ = workspace.sweeps.read(["s.yaml"])
        assert workspace.sweeps.plan(definition).count == 2


def test_what_a_card_declares_is_its_programs_own(runs: Runs, tmp_path: Path) -> None:
    card = tmp_path / "cards" / "card.jsonld"
    card.parent.mkdir()
    card.write_text(
        '{"@context": "https://w3id.org/fairmile/context/v1", "@type": "Benchmark", "@id": "urn:x", "name": "tides", '
        '"description": "d", "version": "1", "command": ["sh", "-c", "echo"], "hyperparameters": {"lr": 0.1}}'
    )
    assert runs.plan(str(card), params={"lr": 0.2}).spec.params == {"lr": 0.2}
    with pytest.raises(UsageError, match="nothing uses the parameter lrr"):
        runs.plan(str(card), params={"lrr": 0.2})
