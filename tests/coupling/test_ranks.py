"""A model in ranks of the solver's own MPI job: the same fields, bit for bit, and an end whatever the model does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairmile import coupling
from fairmile.runs.record.run import RunState
from fairmile.workspace import Workspace

pytest.importorskip("mpi4py")
SOLVER_C = r"""
#include <mpi.h>
#define FAIRMILE_COUPLE_IMPLEMENTATION
#include "fairmile_couple.h"
/* A field of 500 + rank values that halves at each step: by a model, or by its own physics. */
int main(int count, char **words) {
  int rank, size, steps = atoi(words[1]), own = 0, held = 0, n, at;
  int64_t shape[1];
  double t[600], q[600] = {0}, sum = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(fairmile_couple_comm(), &rank);
  MPI_Comm_size(fairmile_couple_comm(), &size);
  shape[0] = 500 + rank;
  for (at = 0; at < shape[0]; at++) t[at] = rank + 1.0 / (at + 3);
  fairmile_couple_out("temperature", t, FAIRMILE_DOUBLE, 1, shape);
  fairmile_couple_in("heating", q, FAIRMILE_DOUBLE, 1, shape);
  for (n = 0; n < steps; n++) {
    int answer = fairmile_couple_step();
    if (answer == FAIRMILE_STOP) break;
    if (answer == FAIRMILE_HELD) held++;
    if (answer == FAIRMILE_PHYSICS) {
      own++;
      for (at = 0; at < shape[0]; at++) q[at] = -0.5 * t[at];
    }
    for (at = 0; at < shape[0]; at++) t[at] += q[at];
  }
  for (at = 0; at < shape[0]; at++) sum += t[at];
  printf("rank %d of %d: %d steps, %d own, %d held, %a\n", rank, size, n, own, held, sum);
  MPI_Finalize();
  return 0;
}
"""
MODEL = """
import sys, time
from fairmile import coupling
for exchange in coupling.serve():
    if sys.argv[1] == "hangs": time.sleep(600)
    if sys.argv[1] == "raises" and exchange.step == 3: raise ValueError("no weights")
    if sys.argv[1] == "nan" and exchange.step in (2, 3, 6):
        exchange.answers["heating"][-1] = float("nan")
        continue
    if sys.argv[1] == "stops" and exchange.step == 4: exchange.stop()
    assert exchange.fields["temperature"].shape == (500 + exchange.solver.rank,)
    exchange.answers["heating"][...] = -0.5 * exchange.fields["temperature"]
print("served to the end")
"""
LABELS = [
    "temperature_of_the_air_in_the_lowest_layer_above_the_ground.in-K",
    "heating_of_the_air_in_the_lowest_layer_above_the_ground.in-K-s-1",
]
SOLVER_F90 = f"""
program solver
  use mpi
  use fairmile_couple
  use, intrinsic :: iso_c_binding, only: c_double
  implicit none
  real(c_double), allocatable, target :: t(:), q(:)
  integer :: comm, rank, size, error, n, at, own = 0, held = 0, answer
  call MPI_Init(error)
  comm = fairmile_couple_comm()
  call MPI_Comm_rank(comm, rank, error)
  call MPI_Comm_size(comm, size, error)
  t = [(rank + 1d0 / (at + 3), at = 0, 499 + rank)]
  q = 0 * t
  call fairmile_couple_out('{LABELS[0]}', t)
  call fairmile_couple_in('{LABELS[1]}', q)
  do n = 1, 10
    answer = fairmile_couple_step()
    if (answer == fairmile_held) held = held + 1
    if (answer == fairmile_physics) own = own + 1
    t = t + q
  end do
  print '(4(a,i0),a)', 'rank ', rank, ' of ', size, ': 10 steps, ', own, ' own, ', held, ' held, ended'
  call MPI_Finalize(error)
end program
"""
PAIR = f"""
from fairmile import coupling
for exchange in coupling.serve():
    assert (list(exchange.fields), list(exchange.answers)) == ({LABELS[:1]}, {LABELS[1:]})
    assert exchange.fields["{LABELS[0]}"].shape == (500 + exchange.solver.rank,)
    assert (exchange.solver.every, exchange.solver.size) == (2, 2)
    exchange.answers["{LABELS[1]}"][...] = -0.5 * exchange.fields["{LABELS[0]}"]
    last = exchange.step
print("rank of the model: served to step", last)
"""
MPIRUN = ["mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solver")
    (folder / "solver.c").write_text(SOLVER_C)
    (folder / "model.py").write_text(MODEL)
    strict = ["-std=gnu99", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror", "-O1"]
    command = ["mpicc", *strict, f"-I{coupling.include()}", "solver.c", "-o", "solver"]
    if not shutil.which("mpicc") or not shutil.which("mpirun"):
        pytest.skip("there is no MPI with headers")
    subprocess.run(command, cwd=folder, check=True)
    return folder / "solver"


def run(
    solver: Path, how: str, *, solvers: int = 2, models: int = 1, steps: int = 10, **settings: object
) -> tuple[list[str], str, int]:
    """Run a job; return what the solver printed in the order of its ranks, the complaints, and the exit code."""
    environ = os.environ | {f"FAIRMILE_COUPLE_{name.upper()}": str(value) for name, value in settings.items()}
    environ["FAIRMILE_COUPLE"] = "mpi" if how else ""
    command = [*MPIRUN, "-n", str(solvers), str(solver), str(steps)]
    if models:
        command += [":", "-n", str(models), sys.executable, str(solver.with_name("model.py")), how] if how else []
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    return sorted(each for each in done.stdout.splitlines() if "rank" in each), done.stderr, done.returncode


def test_ranks_of_different_sizes_get_the_same_bits_from_several_ranks_of_the_model(solver: Path) -> None:
    alone, _, _ = run(solver, "", solvers=3)
    assert [line.split(", ")[1:3] for line in alone] == [["10 own", "0 held"]] * 3
    coupled, complaints, code = run(solver, "answers", solvers=3, models=2)
    assert code == 0, complaints
    assert coupled == [line.replace("10 own", "0 own") for line in alone]


@pytest.mark.parametrize("language", ["c", "c++", "fortran"])
def test_in_each_language_labels_sizes_and_frequency_arrive_and_the_end_is_heard(language: str, tmp_path: Path) -> None:
    compiler = {"c": "mpicc", "c++": "mpicxx", "fortran": "mpif90"}[language]
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    folder, suffix = coupling.include(), {"c": "c", "c++": "cpp", "fortran": "f90"}[language]
    text = SOLVER_F90 if language == "fortran" else SOLVER_C
    for own, long in zip(("temperature", "heating"), LABELS, strict=True):
        text = text.replace(f'"{own}"', f'"{long}"')
    (tmp_path / f"solver.{suffix}").write_text(text)
    (tmp_path / "model.py").write_text(PAIR)
    parts = [f"-I{folder}"]
    if language == "fortran":
        subprocess.run(
            ["mpicc", "-DFAIRMILE_COUPLE_MPI", "-c", str(folder / "fairmile_couple.c")], cwd=tmp_path, check=True
        )
        parts = [str(folder / "fairmile_couple.f90"), "fairmile_couple.o"]
    subprocess.run([compiler, *parts, f"solver.{suffix}", "-o", "solver"], cwd=tmp_path, check=True)
    lines, complaints, code = run(tmp_path / "solver", "answers", every=2)
    assert code == 0, complaints
    assert [line.split(", ")[:3] for line in lines] == [
        ["rank 0 of 2: 10 steps", "0 own", "5 held"],
        ["rank 1 of 2: 10 steps", "0 own", "5 held"],
        ["rank of the model: served to step 4"],
    ]


@pytest.mark.thorough
def test_answers_may_be_old_and_a_model_can_end_the_simulation(solver: Path) -> None:
    assert [line.split(", ")[1:3] for line in run(solver, "answers", every=2, lag=2)[0]] == [["4 own", "3 held"]] * 2
    stopped, _, code = run(solver, "stops")
    assert [line.split(", ")[0].split(": ")[1] for line in stopped] == ["4 steps"] * 2
    assert code == 0


@pytest.mark.thorough
def test_a_model_that_fails_leaves_its_last_answer_if_that_is_declared(solver: Path) -> None:
    _, complaints, code = run(solver, "raises", solvers=1)
    assert "step 4: the model has ended; fallback: stop" in complaints
    assert code == 3
    lines, complaints, _ = run(solver, "raises", solvers=1, fallback="hold")
    assert lines[0].startswith("rank 0 of 1: 10 steps, 0 own, 7 held")
    assert "ValueError: no weights" in complaints


@pytest.mark.thorough
def test_an_answer_that_is_not_finite_counts_as_none_where_that_is_wanted(solver: Path) -> None:
    lines, complaints, _ = run(solver, "nan", solvers=1, fallback="hold", finite=1)
    assert lines[0].startswith("rank 0 of 1: 10 steps, 0 own, 3 held")
    assert "nan" not in lines[0]
    assert complaints.count("1 values of heating are not finite; fallback: hold") == 2


@pytest.mark.thorough
def test_a_model_that_hangs_ends_no_later_than_the_job(solver: Path) -> None:
    lines, complaints, code = run(solver, "hangs", fallback="physics", timeout_s=0.2, end_s=0.5)
    assert [line.split(", ")[1:] for line in lines] == [line.split(", ")[1:] for line in run(solver, "", solvers=2)[0]]
    assert complaints.count("no answer in time; fallback: physics") == 2
    assert "the model does not end; the job is ended" in complaints
    assert code == 3


@pytest.mark.thorough
def test_a_job_without_a_model_ends_in_a_sentence(solver: Path) -> None:
    environ = os.environ | {"FAIRMILE_COUPLE": "mpi"}
    done = subprocess.run([*MPIRUN, "-n", "1", str(solver), "2"], env=environ, capture_output=True, text=True)
    assert "no model is in this job: mpirun -n 3 ./solver : -n 1 python model.py" in done.stderr
    assert done.returncode == 3
    without = solver.with_name("without.c")
    include = '#define FAIRMILE_COUPLE_IMPLEMENTATION\n#include "fairmile_couple.h"\n'
    without.write_text(include + "int main(void) { return fairmile_couple_step(); }\n")
    subprocess.run(["gcc", f"-I{coupling.include()}", without, "-o", without.with_suffix("")], check=True)
    done = subprocess.run([without.with_suffix("")], env=environ, capture_output=True, text=True)
    assert "include mpi.h before fairmile_couple.h" in done.stderr


def test_a_job_of_both_is_one_run(solver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(solver.parent)
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    workspace = Workspace.open(environ=environ, cwd=solver.parent)
    command = [*MPIRUN, "-n", "2", "./solver", "10", ":", "-n", "1", sys.executable, "model.py", "answers"]
    run = workspace.runs.run(command, coupled=True)
    assert run.state is RunState.DONE
    printed = sorted((run.folder / "output.log").read_text().splitlines())
    assert [line.split(", ")[1] for line in printed[:2]] == ["0 own", "0 own"]
    assert printed[2] == "served to the end"
    assert {file.name for file in run.record.captured.code.files} >= {"solver", "model.py"}
