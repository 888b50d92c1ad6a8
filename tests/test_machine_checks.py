"""What the machine lacks for what, and the command that brings it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairmile import machine_checks
from fairmile.machine_checks import Check, check_machine


def checks(home: Path) -> dict[str, Check]:
    return {each.name: each for each in check_machine(home)}


def test_each_check_either_passes_or_says_how_to_fix_it(tmp_path: Path) -> None:
    for each in check_machine(tmp_path):
        assert each.detail and each.serves
        assert bool(each.fix) == (each.state != "ok"), each


def test_a_missing_package_names_what_needs_it_and_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    check = checks(tmp_path)["tune"]
    assert (check.state, check.serves) == ("missing", "tuning with Optuna")
    assert check.fix == "pip install 'fairmile[tune]'"


def test_missing_programs_name_the_package_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = checks(tmp_path)
    assert found["C compiler"].fix == "sudo apt-get install gcc"
    assert found["container runtime"].fix == "sudo apt-get install podman"
    assert found["scheduler"].state == "missing" and "--on SYSTEM" in found["scheduler"].fix
    (tmp_path / "apt-get").rename(tmp_path / "dnf")
    assert checks(tmp_path)["C++ compiler"].fix == "sudo dnf install gcc-c++"


def test_a_disk_that_is_nearly_full_names_what_frees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks(tmp_path / "not" / "yet")["disk"].state == "ok"
    monkeypatch.setattr(machine_checks, "_LEAST_FREE_BYTES", 1 << 62)
    check = checks(tmp_path)["disk"]
    assert check.state == "warning" and "fairmile store gc" in check.fix


def test_a_clock_that_cannot_be_right_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks(tmp_path)["clock"].state == "ok"
    monkeypatch.setattr(machine_checks, "_RELEASED", 1e11)
    assert checks(tmp_path)["clock"].state == "warning"


@pytest.mark.thorough
def test_byte_code_that_is_never_kept_is_named_with_what_compiles_it(tmp_path: Path) -> None:
    package = Path(machine_checks.__file__).parent
    module = "import fairmile.machine_checks as m, pathlib; c = m._bytecode(); print(c.state); print(c.fix)"
    # Compiled forms are looked for in a folder of their own, which is empty at first.
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONPATH": str(package.parent)}
    never = {**environ, "PYTHONDONTWRITEBYTECODE": "1"}
    state, fix = run(module, never)
    assert state == "warning"
    subprocess.run(fix, shell=True, env=never, check=True)
    assert importlib.util.cache_from_source("x.py") and any(tmp_path.rglob("machine_checks.*.pyc"))
    assert run(module, never)[0] == "ok"


def run(code: str, environ: dict[str, str]) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True)
    return [*done.stdout.splitlines(), ""][:2]
