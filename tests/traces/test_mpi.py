"""Calls of MPI in programs that are not changed, in C, Fortran and Python: who waits, and for whom."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fairmile.meter.lines import event_files, read_log
from fairmile.traces.record import Recorded, record
from fairmile.traces.traces import Traces

RING = r"""
#include <mpi.h>
int main(int count, char **words) {
  int rank, size, step;
  double out[100] = {0}, in[100], sum;
  volatile double work = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (step = 0; step < 10; step++) {
    for (long n = 0; n < (rank == 1 ? 20000000 : 1000000); n++) work += n;
    MPI_Sendrecv(out, 100, MPI_DOUBLE, (rank + 1) % size, 0, in, 100, MPI_DOUBLE, (rank + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Allreduce(in, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, 50, MPI_DOUBLE, MPI_COMM_WORLD);
    for (long n = 0; n < 20; n++) MPI_Bcast(out, step, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return sum != 0;
}
"""
FORTRAN = """
program ring
  use {module}
  implicit none
  integer :: rank, ierror, step
  real(8) :: mine, all
  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  mine = rank
  do step = 1, 5
    call MPI_Allreduce(mine, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
  end do
  call MPI_Finalize(ierror)
  if (all /= 1d0) error stop
end program
"""
PYTHON = "from mpi4py import MPI\nfor step in range(5): MPI.COMM_WORLD.Barrier()\n"
RANKS = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no MPI")


def compiled(folder: Path, compiler: str, name: str, text: str) -> str:
    (folder / name).write_text(text)
    words = [compiler, "-O1", name, "-o", "program"]
    if shutil.which(compiler) is None or subprocess.run(words, cwd=folder, capture_output=True).returncode:
        pytest.skip(f"{compiler} compiles no program of MPI here")
    return str(folder / "program")


def recorded(folder: Path, *program: str) -> Recorded:
    done = record([*RANKS, *program], folder / "recorded", watch=False)
    assert done.exit_code == 0
    return done


def calls(done: Recorded) -> Counter[tuple[int | None, str]]:
    """Return how often each rank made each call."""
    log = read_log(event_files(done.folder))
    return sum((Counter({(each.writer.rank, each.name): len(each.durations_ns)}) for each in log.spans), Counter())


def sizes(done: Recorded) -> dict[str, set[int | None]]:
    """Return how many bytes the calls of each name moved."""
    log = read_log(event_files(done.folder))
    found: dict[str, set[int | None]] = {}
    for each in log.spans:
        found.setdefault(each.name, set()).update((told or {}).get("bytes") for told in each.attributes)
    return found


def test_a_program_in_c_shows_which_rank_the_others_wait_for(tmp_path: Path) -> None:
    done = recorded(tmp_path, compiled(tmp_path, "mpicc", "ring.c", RING))
    made = calls(done)
    for rank in (0, 1):
        assert (made[rank, "MPI_Sendrecv"], made[rank, "MPI_Allreduce"], made[rank, "MPI_Finalize"]) == (10, 10, 1)
    assert "only calls of MPI, spans and samples were recorded" in done.notes[0]
    moved = sizes(done)
    assert (moved["MPI_Sendrecv"], moved["MPI_Allreduce"], moved["MPI_Allgather"]) == ({800}, {8}, {800})
    assert moved["MPI_Bcast"] == {8 * step for step in range(10)}, "also where a line packs many calls"
    assert moved["MPI_Finalize"] == {None}
    traces = Traces(lambda name: pytest.fail(name), lambda run: pytest.fail(run))
    first, *others = traces.analyze(done.folder).findings
    assert first.kind == "messages"
    assert not any("gradients" in each.what_to_try for each in others)  # a solver has none
    assert "Rank 1 computes longest" in first.why


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["mpi", "mpi_f08"])
def test_a_program_in_fortran_shows_its_calls(tmp_path: Path, module: str) -> None:
    done = recorded(tmp_path, compiled(tmp_path, "mpif90", "ring.f90", FORTRAN.format(module=module)))
    made = calls(done)
    assert sizes(done)["MPI_Allreduce"] == {8}
    assert [made[rank, "MPI_Allreduce"] for rank in (0, 1)] == [5, 5]


@pytest.mark.thorough
def test_a_program_in_python_shows_its_calls(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PYTHON)
    made = calls(recorded(tmp_path, sys.executable, str(tmp_path / "program.py")))
    assert [made[rank, "MPI_Barrier"] for rank in (0, 1)] == [5, 5]
    assert not any(name == "outside MPI" for _, name in made)


def test_without_a_compiler_the_program_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpirun").symlink_to("/bin/echo")
    monkeypatch.setenv("PATH", str(tmp_path))
    done = record(["mpirun", "ranks"], tmp_path / "recorded", watch=False)
    assert done.exit_code == 0
    assert "only spans and samples were recorded" in done.notes[0]
