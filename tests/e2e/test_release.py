"""A release: built twice to the same bytes, and the first ten minutes from its wheel in an empty environment."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from made_once import made_once

from fairmile import __version__

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TRAIN = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
lr = parser.parse_args().lr
for epoch in range(1, 4):
    print(f"epoch {epoch} loss {lr / epoch:.3f}")
"""


def build(folder: Path) -> None:
    """Make a release as `make dist` does, with the environment that runs the tests."""
    make = ["make", "-s", "-o", f"{BIN.parent}/.dev", "dist", f"VENV={BIN.parent}", f"DIST={folder}"]
    subprocess.run(make, cwd=ROOT, check=True, capture_output=True)


def files_of(folder: Path) -> dict[str, Path]:
    return {file.suffix: file for file in folder.glob("fairmile-*")}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return files_of(made_once(tmp_path_factory, "dist", build))


def test_the_same_commit_gives_the_same_bytes(release: dict[str, Path], tmp_path: Path) -> None:
    build(tmp_path / "dist")
    again = files_of(tmp_path / "dist")
    assert set(again) == {".whl", ".gz"}
    assert {kind: digest(file) for kind, file in again.items()} == {
        kind: digest(file) for kind, file in release.items()
    }


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(release: dict[str, Path]) -> None:
    listed = subprocess.run(["git", "ls-files", "src/fairmile"], cwd=ROOT, check=True, capture_output=True, text=True)
    wanted = {name.removeprefix("src/") for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    with zipfile.ZipFile(release[".whl"]) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == wanted


@pytest.fixture(scope="module")
def user(release: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run a command as a user who has just installed the wheel, without any extra."""
    home = tmp_path_factory.mktemp("user")
    # Nothing of the environment that runs the tests may help; the tools that install read their own settings.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRMILE", "PYTHON", "XDG"))}
    environ = {**kept, "PATH": f"{home}/venv/bin:/usr/bin:/bin", "NO_COLOR": "1"}
    uv = shutil.which("uv", path=str(BIN)) or "uv"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, home / "venv"], check=True)
    constraints = ["-c", str(ROOT / "constraints.txt")]
    install = [uv, "pip", "install", "-q", "--python", home / "venv/bin/python", *constraints, release[".whl"]]
    subprocess.run(install, env=kept, check=True)
    (home / "work").mkdir()
    (home / "work" / "train.py").write_text(TRAIN)
    environ["HOME"] = str(home)

    def call(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            ["fairmile", *arguments], cwd=home / "work", env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return call


def test_the_first_ten_minutes_work_from_the_wheel(user: Callable[..., str]) -> None:
    assert user("--version") == f"fairmile {__version__}\n"
    assert "cosmoflow" in user("search", "cosmology", "kind:model")
    assert "loss" in user("run", "--name", "slow", "train.py", "--lr", "0.01")
    user("run", "--name", "fast", "train.py", "--lr", "0.1")
    runs = json.loads(user("runs", "ls", "--json"))["runs"]
    assert [(run["name"], run["state"], run["params"]) for run in runs] == [
        ("fast", "done", {"lr": 0.1}),
        ("slow", "done", {"lr": 0.01}),
    ]
    assert "loss" in user("compare", "fast", "slow")
    user("report", "fast", "-o", "page.html")
    assert "fast" in user("status")
    assert "bash" in user("completion", "install", "--shell", "bash")


def test_what_an_extra_brings_is_answered_with_its_installation(user: Callable[..., str]) -> None:
    command = ["tune", "--objective", "loss", "--trials", "1", "train.py", "--lr", "0.1..1.0"]
    assert user(*command, code=3).splitlines()[-1].strip() == "hint: pip install 'fairmile[tune]'"
    assert user("run", "mnist", code=2).splitlines()[-1].strip() == "hint: pip install 'fairmile[benchmarks]'"
    assert user("serve", "--no-browser", code=3).splitlines()[-1].strip() == "hint: pip install 'fairmile[web]'"
