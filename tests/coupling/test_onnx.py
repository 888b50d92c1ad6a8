"""A solver computes an ONNX file in its own process: the bits of its physics, and an end whatever the file holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairmile import coupling
from fairmile.workspace import Workspace

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SOLVER_C = r"""
#define FAIRMILE_COUPLE_IMPLEMENTATION
#include "fairmile_couple.h"
/* A field that halves at each step: by a model, or by its own physics. */
int main(void) {
  int64_t shape[] = {3, 2};
  double t[6], q[6] = {0};
  int own = 0, held = 0, n, at;
  for (at = 0; at < 6; at++) t[at] = 1.0 / (at + 3);
  fairmile_couple_out("temperature", t, FAIRMILE_DOUBLE, 2, shape);
  fairmile_couple_in("heating", q, FAIRMILE_DOUBLE, 2, shape);
  for (n = 0; n < 6; n++) {
    int answer = fairmile_couple_step();
    if (answer == FAIRMILE_HELD) held++;
    if (answer == FAIRMILE_PHYSICS) {
      own++;
      for (at = 0; at < 6; at++) q[at] = -0.5 * t[at];
    }
    for (at = 0; at < 6; at++) t[at] += q[at];
  }
  fairmile_couple_end();
  printf("%d own, %d held\n", own, held);
  for (at = 0; at < 6; at++) printf("%a\n", t[at]);
  return 0;
}
"""
SOLVER_F90 = """
program solver
  use fairmile_couple
  use, intrinsic :: iso_c_binding, only: c_double
  real(c_double), target :: t(3, 2), q(3, 2)
  integer :: n, own = 0
  t = reshape([1d0, 2d0, 3d0, 4d0, 5d0, 6d0], [3, 2]) / 3
  call fairmile_couple_out('temperature', t)
  call fairmile_couple_in('heating', q)
  do n = 1, 3
    if (fairmile_couple_step() == fairmile_physics) then
      own = own + 1
      q(:, 1) = 1.1d0 * t(:, 1)
      q(:, 2) = 1.3d0 * t(:, 2)
    end if
    t = t + q
  end do
  print '(i0, 6z18)', own, t
end program
"""


def save(
    file: Path, *nodes: Any, kind: int = onnx.TensorProto.DOUBLE, shape: Any = (3, 2), reads: str = "temperature"
) -> Path:
    """Write a model from one field to another."""
    given = onnx.helper.make_tensor_value_info(reads, kind, shape)
    answer = onnx.helper.make_tensor_value_info("heating", kind, shape)
    graph = onnx.helper.make_graph(list(nodes), "model", [given], [answer])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)
    return file


def constant(values: Any, name: str) -> Any:
    return onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(values)))


def halving(dtype: str = "float64", reads: str = "temperature") -> list[Any]:
    return [constant(np.array(-0.5, dtype), "half"), onnx.helper.make_node("Mul", [reads, "half"], ["heating"])]


def endless() -> list[Any]:
    """Return a model that takes far longer than any test."""
    scalar = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Identity", ["go"], ["goes_on"]),
            onnx.helper.make_node("Add", ["x", "x"], ["y"]),
        ],
        "body",
        [scalar("n", 7, []), scalar("go", 9, []), scalar("x", 11, (3, 2))],
        [scalar("goes_on", 9, []), scalar("y", 11, (3, 2))],
    )
    loop = onnx.helper.make_node("Loop", ["times", "", "temperature"], ["heating"], body=body)
    return [constant(np.array(1 << 60), "times"), loop]


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("solver")
    (folder / "solver.c").write_text(SOLVER_C)
    strict = ["-std=gnu99", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror", "-O1"]
    command = ["gcc", *strict, f"-I{coupling.include()}", "solver.c", "-o", "solver", "-ldl", "-pthread"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "solver"


def run(solver: Path, model: Path | str, **settings: object) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {f"FAIRMILE_COUPLE_{name.upper()}": str(value) for name, value in settings.items()}
    environ.setdefault("FAIRMILE_COUPLE_RUNTIME", str(coupling.onnx_runtime()))
    environ["FAIRMILE_COUPLE"] = str(model)
    return subprocess.run([solver], env=environ, capture_output=True, text=True, timeout=60)


def test_a_model_that_is_the_physics_gives_the_same_bits(solver: Path, tmp_path: Path) -> None:
    uncoupled = run(solver, "").stdout.splitlines()
    assert uncoupled[0] == "6 own, 0 held"
    done = run(solver, save(tmp_path / "model.onnx", *halving()))
    assert (done.stdout.splitlines(), done.stderr) == (["0 own, 0 held", *uncoupled[1:]], "")


def test_single_precision_is_converted_and_answers_may_be_some_steps_old(solver: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "single.onnx", *halving("float32"), kind=onnx.TensorProto.FLOAT, shape=("rows", 2))
    words, *values = run(solver, file).stdout.splitlines()
    assert words == "0 own, 0 held"
    assert [float.fromhex(each) for each in values] == pytest.approx([1 / 64 / n for n in range(3, 9)], rel=1e-6)
    assert run(solver, file, every=2, lag=1).stdout.splitlines()[0] == "2 own, 2 held"


def test_a_model_that_is_too_slow_is_replaced_if_that_is_declared(solver: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "slow.onnx", *endless())
    done = run(solver, file, fallback="physics", timeout_s=0.05)
    assert done.stdout == run(solver, "").stdout
    assert "step 6: no answer in time; fallback: physics" in done.stderr
    assert run(solver, file, timeout_s=0.05).returncode == 3


def test_an_answer_that_is_not_finite_counts_as_none_where_that_is_wanted(solver: Path, tmp_path: Path) -> None:
    below = [constant(np.array(-1.0), "minus"), onnx.helper.make_node("Mul", ["temperature", "minus"], ["below"])]
    file = save(tmp_path / "root.onnx", *below, onnx.helper.make_node("Sqrt", ["below"], ["heating"]))
    assert "nan" in run(solver, file).stdout
    done = run(solver, file, fallback="physics", finite=1)
    assert done.stdout == run(solver, "").stdout
    assert "6 values of heating are not finite; fallback: physics" in done.stderr


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ({"reads": "wind"}, "the model reads wind, which is no field of this program"),
        ({"shape": (2, 3)}, "Got invalid dimensions for input: temperature"),
        ({"kind": onnx.TensorProto.FLOAT16}, "temperature of the model is not float, double, int32 or int64"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(solver: Path, tmp_path: Path, model: Any, why: str) -> None:
    dtype = "float16" if "kind" in model else "float64"
    file = save(tmp_path / "model.onnx", *halving(dtype, model.get("reads", "temperature")), **model)
    done = run(solver, file)
    assert (done.returncode, done.stdout) == (3, "")
    assert why in done.stderr


def test_a_run_of_solver_and_file_records_both(solver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    save(tmp_path / "model.onnx", *halving())
    workspace = Workspace.open(environ={**os.environ, "HOME": str(home), "FAIRMILE_HOME": str(home)}, cwd=tmp_path)
    run = workspace.runs.run([str(solver), ":", "model.onnx"], coupled=True)
    assert (run.folder / "output.log").read_text().startswith("0 own, 0 held")
    assert {each.name for each in run.captured.code.files} >= {"model.onnx"}
    assert not (home / ".cache" / "Microsoft").exists()


def test_what_is_missing_is_named(solver: Path, tmp_path: Path) -> None:
    done = run(solver, tmp_path / "gone.onnx", fallback="physics")
    assert done.stdout.startswith("6 own")
    assert "gone.onnx" in done.stderr
    done = run(solver, tmp_path / "gone.onnx", runtime="/nowhere/libonnxruntime.so")
    assert "FAIRMILE_COUPLE_RUNTIME must name the library of ONNX Runtime (/nowhere" in done.stderr
    assert done.returncode == 3


@pytest.mark.skipif(not shutil.which("gfortran"), reason="gfortran is not installed")
def test_fortran_gets_the_same_bits_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "solver.f90").write_text(SOLVER_F90)
    sources = [coupling.include() / "fairmile_couple.f90", coupling.include() / "fairmile_couple.c", "solver.f90"]
    subprocess.run(["gfortran", *map(str, sources), "-o", "solver", "-ldl", "-pthread"], cwd=tmp_path, check=True)
    columns = constant(np.array([1.1, 1.3]), "columns")
    multiply = onnx.helper.make_node("Mul", ["temperature", "columns"], ["heating"])
    file = save(tmp_path / "model.onnx", columns, multiply)
    own, *uncoupled = run(tmp_path / "solver", "").stdout.split()
    assert (own, len(set(uncoupled))) == ("3", 6)
    assert run(tmp_path / "solver", file).stdout.split() == ["0", *uncoupled]
