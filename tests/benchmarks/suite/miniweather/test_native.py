"""The kernel in C: the same as NumPy's, wherever it comes from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Integrity, SystemFailure, Unsupported
from fairmile.benchmarks.suite.miniweather import native
from fairmile.benchmarks.suite.miniweather.solver import CASES, Gate, Grid, Kernel, NumpyKernel, begin
from fairmile.workspace import Workspace

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
WITHOUT = {"PATH": "/nowhere"}
HERE = {"PATH": os.environ.get("PATH", "")}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native.compiled(tmp_path_factory.mktemp("kernel"), HERE)


@needs_compiler
def test_it_passes_the_gate(library: Path, follow_thermal: Callable[[Kernel], Gate]) -> None:
    gate = follow_thermal(native.NativeKernel(library))

    assert gate.is_passed
    assert gate.energy_change == pytest.approx(-4.142e-5, abs=2e-8)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("z_first", [False, True])
def test_each_case_gives_what_numpy_gives(library: Path, name: str, z_first: bool) -> None:
    problem, start = begin(CASES[name], Grid(18, 9))
    mine, theirs = start.copy(), start.copy()
    dt_s = problem.grid.step_s(1.5)

    native.NativeKernel(library)(problem, mine, dt_s, 25, z_first=z_first)
    NumpyKernel()(problem, theirs, dt_s, 25, z_first=z_first)

    assert np.abs(theirs - start).max() > 1e-6
    back = problem.background
    whole = np.zeros((4, 9, 1))
    whole[0, :, 0], whole[3, :, 0] = back.density, back.density_theta
    size = np.abs(theirs + whole).max(axis=(1, 2), keepdims=True)
    size[1:3] = np.maximum(size[1:3], 1)
    assert (np.abs(mine - theirs) / size).max() < 1e-12


@needs_compiler
def test_steps_taken_in_parts_are_the_same_as_at_once(library: Path) -> None:
    problem, start = begin(CASES["thermal"], Grid(12, 6))
    once, parts = start.copy(), start.copy()
    kernel = native.NativeKernel(library)

    kernel(problem, once, 1.0, 5)
    kernel(problem, parts, 1.0, 3)
    kernel(problem, parts, 1.0, 2, z_first=True)

    np.testing.assert_array_equal(once, parts)


@needs_compiler
def test_it_is_compiled_once(tmp_path: Path) -> None:
    first = native.compiled(tmp_path, HERE)
    stamp = first.stat().st_mtime_ns

    assert native.compiled(tmp_path, HERE) == first
    assert first.stat().st_mtime_ns == stamp
    assert [each.name for each in first.parent.iterdir()] == [native.LIBRARY]


def test_without_a_compiler_numpy_computes_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []

    assert native.find_kernel("auto", tmp_path, WITHOUT, said.append).name == "numpy"
    assert "no C compiler" in said[0]
    with pytest.raises(Unsupported, match="no C compiler"):
        native.find_kernel("c", tmp_path, WITHOUT)


@needs_compiler
@pytest.mark.thorough
def test_a_compiler_may_be_named_with_words_of_its_own(tmp_path: Path) -> None:
    file = native.compiled(tmp_path, {**HERE, "CC": "cc -DANYTHING=1"})

    assert native.NativeKernel(file).name == "c"
    assert file.parent != native.compiled(tmp_path, {**HERE, "CC": "cc"}).parent


def test_a_compiler_that_fails_is_told_of(tmp_path: Path) -> None:
    said: list[str] = []

    assert native.find_kernel("auto", tmp_path, {**HERE, "CC": "false"}, said.append).name == "numpy"
    assert "false" in said[0]


def test_asked_for_numpy_nothing_is_compiled(tmp_path: Path) -> None:
    assert native.find_kernel("numpy", tmp_path, HERE).name == "numpy"
    assert not list(tmp_path.iterdir())


def test_a_library_that_a_variable_names_must_be_there_and_be_one(tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match=r"nothing\.so, which is not there"):
        native.installed({native.VARIABLE: str(tmp_path / "nothing.so")})
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    with pytest.raises(Integrity, match=r"broken\.so is not a library of this kernel"):
        native.NativeKernel(native.installed({native.VARIABLE: str(broken)}) or Path())


@needs_compiler
def test_a_library_of_another_version_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "kernel.c"
    source.write_text(native.SOURCE.read_text().replace("#define VERSION 2", "#define VERSION 7"))
    library = tmp_path / "other.so"
    subprocess.run(["cc", "-std=c99", "-fPIC", "-shared", "-o", library, source, "-lm"], check=True)

    with pytest.raises(Integrity, match="is version 7 of the kernel, not 2"):
        native.NativeKernel(library)


@needs_compiler
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_an_environment_builds_it_and_a_program_in_it_finds_it(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    workspace = Workspace.open(environ=environ, cwd=tmp_path)

    built = workspace.envs.build(str(native.SOURCE.parent.parent / "environment.yaml"))

    asks = f"import os; from {native.__name__} import *; print(find_kernel('c', Path('.'), os.environ).file)"
    command = workspace.envs.shell(built.digest, [sys.executable, "-c", asks])
    done = subprocess.run(command.argv, env={**environ, **command.env}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(built.prefix / "lib" / native.LIBRARY)
