"""Programs and command lines of predecessors, unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairmile.base.errors import NotFound, UsageError
from fairmile.compat.predecessors import published_path, translate

PROGRAM = """
from cloudmesh.common.StopWatch import StopWatch, StopWatchBlock, benchmark, progress
from cloudmesh.gpu.gpu import Gpu
from hpcfair import hpcfair_dataset
from hpcfair.hpcfair_model import convert, list_models, load, run, search
from cloudmesh.common.others import ANSWER

StopWatch.start("tide")
StopWatch.stop("tide")
print(StopWatch.keys(), ANSWER, hpcfair_dataset.load_dataset.__module__)
"""


def test_imports_work_unchanged_beside_an_installed_cloudmesh(tmp_path: Path) -> None:
    installed = tmp_path / "site/cloudmesh/common"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    (installed / "others.py").write_text("ANSWER = 42\n")
    (installed / "StopWatch.py").write_text("raise ImportError('not this one')\n")
    environ = {**os.environ, "PYTHONPATH": f"{published_path().python}:{tmp_path / 'site'}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True)
    assert done.stdout == "['tide'] 42 fairmile.compat.hpcfair_dataset\n", done.stderr


def test_the_published_commands_are_programs() -> None:
    folders = published_path()
    assert folders.programs == ("cms", "lamec")
    assert all(os.access(folders.commands / name, os.X_OK) for name in folders.programs)
    assert "cloudmesh.gpu.gpu" in folders.modules


@pytest.mark.parametrize(
    "line, command",
    [
        ("lamec gen DEEP ddp heat", "system modules deep ddp heat"),
        ("lamec eval train.sh --to jureca --write", "system eval train.sh --to jureca --write"),
        (
            "cms ee generate --source=a.in.sh --config=a.yaml,b.json --name=tides --noos --mode=h --dryrun",
            "sweep generate a.yaml b.json --template a.in.sh --name tides --out tides --dry-run",
        ),
        (
            "cms sbatch generate a.in.slurm --config=a.yaml --source_dir=in --output_dir=out --copycode=x.py",
            "sweep generate in/a.yaml --template in/a.in.slurm --out out --code in/x.py",
        ),
        ("cms gpu watch --delay=0.5 --logfile=g.log", "watch --source nvidia --live --every 0.5s --log g.log"),
    ],
)
def test_a_published_command_line_has_one_here(line: str, command: str) -> None:
    assert list(translate(line.split()).command) == command.split()


def test_experiments_of_the_command_line_become_parameters() -> None:
    words = ["cms", "ee", "generate", "--source=a.sh", "--config=a.yaml", "--experiment=epoch=[1-3] x=1,4"]
    assert translate(words).command[-4:] == ("-p", "epoch=[1-3]", "-p", "x=1,4")


@pytest.mark.parametrize(
    "line", ["cms ee generate --name=a", "cms ee generate --source=a --config=b --zzz=1", "lamec gen"]
)
def test_a_command_line_that_says_too_little_or_too_much_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        translate(line.split())


def test_an_unknown_command_is_answered_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match="did you mean 'lamec gen'") as refused:
        translate(["lamec", "gem"])
    assert "cms ee generate" in str(refused.value.hint)
