"""A solver asks a model beside it: the same fields, bit for bit, and an end whatever the other side does."""

from __future__ import annotations

import os
import shutil
import socket as socketlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fairmile import coupling
from fairmile.base.errors import Unsupported, UsageError
from fairmile.coupling.exchange import PROTOCOL
from fairmile.coupling.server import _KEEPS_ORDER
from fairmile.meter import include
from fairmile.runs.record.run import RunState
from fairmile.workspace import Workspace

SOLVER_C = r"""
#define _GNU_SOURCE
#define FAIRMILE_COUPLE_IMPLEMENTATION
#include "fairmile_couple.h"
/* A field of 500 + rank values that halves at each step: by a model, or by its own physics. */
int main(int count, char **words) {
  int rank = atoi(words[1]), steps = atoi(words[2]), own = 0, held = 0, n, at;
  int64_t shape[] = {500 + rank};
  double *t = malloc(sizeof(double) * (size_t)shape[0]), *q = calloc((size_t)shape[0], sizeof(double));
  (void)count;
  for (at = 0; at < shape[0]; at++) t[at] = rank + 1.0 / (at + 3);
  fairmile_couple_rank(rank, atoi(words[3]));
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
  fairmile_couple_end();
  printf("%d steps, %d own, %d held\n", n, own, held);
  for (at = 0; at < shape[0]; at++) printf("%a\n", t[at]);
  return 0;
}
"""
SOLVER_F90 = """
program solver
  use fairmile_couple
  use, intrinsic :: iso_c_binding, only: c_double
  real(c_double), target :: t(3, 2), q(3, 2)
  integer :: n
  t = reshape([1d0, 2d0, 3d0, 4d0, 5d0, 6d0], [3, 2])
  call fairmile_couple_out('temperature', t)
  call fairmile_couple_in('heating', q)
  do n = 1, 3
    if (fairmile_couple_step() == fairmile_physics) q = -0.5d0 * t
    t = t + q
  end do
  call fairmile_couple_end()
  print '(6f12.6)', t
end program
"""
MODEL = """
import os, sys, time
from fairmile import coupling
for exchange in coupling.serve():
    if sys.argv[1] == "slow": time.sleep(60)
    if sys.argv[1] == "dies" and exchange.step == 3: os._exit(1)
    if sys.argv[1] == "nan" and exchange.step in (2, 3, 6):
        exchange.answers["heating"][-1] = float("nan")
        continue
    if sys.argv[1] == "stops" and exchange.step == 4: exchange.stop()
    exchange.answers["heating"][...] = -0.5 * exchange.fields["temperature"]
print("served", exchange.solver.steps)
"""


ENDING = """
from fairmile import coupling
for exchange in coupling.serve():
    pass
print("ended")
"""
TALKER = """
import socket, sys
line = socket.socket(socket.AF_UNIX)
while line.connect_ex(sys.argv[1]): pass
line.send(sys.argv[2].encode())
"""


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("solver")
    (folder / "solver.c").write_text(SOLVER_C)
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-O1"]
    subprocess.run(["gcc", *strict, f"-I{coupling.include()}", "solver.c", "-o", "solver"], cwd=folder, check=True)
    return folder / "solver"


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
@pytest.mark.parametrize("standard", ["c++11", "c++20"])
def test_the_header_is_good_for_cpp_too(tmp_path: Path, standard: str) -> None:
    names = ["fairmile_meter", "fairmile_couple"]
    lines = [f'#define {name.upper()}_IMPLEMENTATION\n#include "{name}.h"\n' for name in names]
    (tmp_path / "solver.cpp").write_text("".join(lines))
    folders = [f"-I{folder}" for folder in (coupling.include(), include())]
    strict = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run(["g++", *strict, *folders, "solver.cpp"], cwd=tmp_path, check=True)


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        yield Path(folder) / "model"


def run(command: list[object], socket: Path | None, **settings: object) -> subprocess.Popen[str]:
    environ = os.environ | {f"FAIRMILE_COUPLE_{name.upper()}": str(value) for name, value in settings.items()}
    environ["FAIRMILE_COUPLE"] = str(socket or "")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*map(str, command)], env=environ, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def model(socket: Path, how: str = "answers") -> subprocess.Popen[str]:
    return run([sys.executable, "-c", MODEL, how], socket)


def uncoupled(solver: Path, rank: int = 0, steps: int = 10) -> list[str]:
    words, *values = run([solver, rank, steps, 1], None).communicate(timeout=60)[0].splitlines()
    assert words == f"{steps} steps, {steps} own, 0 held"
    return values


def test_a_model_that_is_the_physics_gives_the_same_bits_in_all_ranks(solver: Path, socket: Path) -> None:
    serving = model(socket)
    ranks = [run([solver, rank, 10, 2], socket) for rank in (0, 1)]
    for rank, each in enumerate(ranks):
        words, *values = each.communicate(timeout=60)[0].splitlines()
        assert words == "10 steps, 0 own, 0 held"
        assert len(values) == 500 + rank
        assert values == uncoupled(solver, rank)
    assert serving.communicate(timeout=60)[0] == "served 10\n"
    assert not socket.exists()


def test_each_second_step_is_coupled_and_an_answer_may_be_some_steps_old(solver: Path, socket: Path) -> None:
    serving = model(socket)
    words = run([solver, 0, 10, 1], socket, every=2, lag=2).communicate(timeout=60)[0].splitlines()[0]
    assert words == "10 steps, 4 own, 3 held"  # steps 0 to 3 have no answer yet; 5, 7 and 9 are between
    assert serving.communicate(timeout=60)[0] == "served 5\n"


def test_a_model_can_end_the_simulation(solver: Path, socket: Path) -> None:
    serving = model(socket, "stops")
    assert run([solver, 0, 10, 1], socket).communicate(timeout=60)[0].startswith("4 steps, 0 own")
    serving.communicate(timeout=60)


def test_a_model_that_dies_leaves_its_last_answer_if_that_is_declared(solver: Path, socket: Path) -> None:
    serving = model(socket, "dies")
    done = run([solver, 0, 10, 1], socket, fallback="hold")
    printed, complaint = done.communicate(timeout=60)
    assert printed.startswith("10 steps, 0 own, 7 held")
    assert "the model has ended; fallback: hold" in complaint
    serving.communicate(timeout=60)
    assert serving.returncode == 1


def test_a_model_that_is_too_slow_is_replaced_by_the_physics_if_that_is_declared(solver: Path, socket: Path) -> None:
    serving = model(socket, "slow")
    done = run([solver, 0, 4, 1], socket, fallback="physics", timeout_s=0.1)
    printed, complaint = done.communicate(timeout=60)
    assert printed.splitlines()[0] == "4 steps, 4 own, 0 held"
    assert printed.splitlines()[1:] == uncoupled(solver, steps=4)
    assert "step 1: no answer in time; fallback: physics" in complaint
    serving.kill()
    serving.communicate(timeout=60)


@pytest.mark.parametrize(("fallback", "counts"), [("hold", "0 own, 3 held"), ("physics", "3 own, 0 held")])
def test_an_answer_that_is_not_finite_counts_as_none_where_that_is_wanted(
    solver: Path, socket: Path, fallback: str, counts: str
) -> None:
    serving = model(socket, "nan")
    printed, complaints = run([solver, 0, 10, 1], socket, fallback=fallback, finite=1).communicate(timeout=60)
    words, *values = printed.splitlines()
    assert words == f"10 steps, {counts}"
    assert (values == uncoupled(solver)) == (fallback == "physics")
    why = f"1 values of heating are not finite; fallback: {fallback}"
    assert [line.split(", ", 1)[1] for line in complaints.splitlines()] == [f"step 3: {why}", f"step 7: {why}"]
    serving.communicate(timeout=60)
    assert serving.returncode == 0


def test_fields_that_the_shared_memory_of_a_container_does_not_hold_are_exchanged(solver: Path, socket: Path) -> None:
    mount = "mount -t tmpfs -o size=64k none /dev/shm"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("needs user namespaces to mount a small file system")
    serving = model(socket)
    done = run(["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "_", solver, 100_000, 10, 1], socket)
    printed, complaints = done.communicate(timeout=60)
    assert (done.returncode, complaints) == (0, "")
    assert printed.startswith("10 steps, 0 own, 0 held\n")
    serving.communicate(timeout=60)
    assert serving.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_the_socket_of_another_user_is_sent_nothing(solver: Path, socket: Path) -> None:
    with socketlib.socket(socketlib.AF_UNIX) as line:
        line.bind(str(socket))
        os.seteuid(65534)
        try:
            line.listen()
        finally:
            os.seteuid(0)
        done = run([solver, 0, 2, 1], socket, fallback="physics")
        printed, complaints = done.communicate(timeout=60)
        assert printed.startswith("2 steps, 2 own")
        assert f"{socket} is the socket of another user; fallback: physics" in complaints
        with line.accept()[0] as talk:
            assert talk.recv(1) == b""
        with pytest.raises(UsageError, match="cannot serve here"):
            next(coupling.serve(socket))


def test_both_sides_look_for_each_other_only_if_there_is_a_core_for_each(solver: Path, socket: Path) -> None:
    cores = os.sched_getaffinity(0)
    for some, each_has_one in (({min(cores)}, False), (cores, len(cores) > 1)):
        os.sched_setaffinity(0, some)
        try:
            running = run([solver, 0, 2, 1], socket)
            seen = [exchange.solver.has_cores for exchange in coupling.serve(socket)]  # type: ignore[attr-defined]
        finally:
            os.sched_setaffinity(0, cores)
        assert seen == [each_has_one] * 2 or not _KEEPS_ORDER
        running.communicate(timeout=60)


def test_a_model_ends_when_the_solver_did_before_it_came(socket: Path) -> None:
    serving = run([sys.executable, "-c", ENDING], socket)
    for talk in ("", '{"protocol"'):  # another model that looks whether the socket is in use; a solver that is killed
        run([sys.executable, "-c", TALKER, socket, talk], None).communicate(timeout=60)
    socket.unlink()
    assert serving.communicate(timeout=60)[0] == "ended\n"


def test_an_answer_is_written_into_its_array(solver: Path, socket: Path) -> None:
    running = run([solver, 0, 2, 1], socket, fallback="physics")
    for exchange in coupling.serve(socket):
        for wrong, values in (("cannot be replaced", exchange.fields["temperature"]), ("read-only", None)):
            with pytest.raises(ValueError, match=wrong):
                if values is None:
                    exchange.fields["temperature"][...] = 0.0
                else:
                    exchange.answers["heating"] = values  # type: ignore[index]
        with pytest.raises(ValueError, match="could not broadcast"):
            exchange.answers["heating"][...] = np.zeros(3)
        exchange.answers["heating"][...] = -0.5 * exchange.fields["temperature"]
    assert running.communicate(timeout=60)[0].startswith("2 steps, 0 own")


def test_without_a_model_the_program_stops_by_default(solver: Path, socket: Path) -> None:
    done = run([solver, 0, 2, 1], socket, start_s=0.1)
    assert f"no model answers at its socket {socket} (No such file" in done.communicate(timeout=60)[1]
    assert done.returncode == 3
    done = run([solver, 0, 2, 1], socket, fallback="guess")
    assert "FAIRMILE_COUPLE_FALLBACK is 'guess': expected stop, hold or physics" in done.communicate(timeout=60)[1]
    assert done.returncode == 2


@pytest.mark.thorough
def test_the_trace_of_a_recorded_run_shows_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    metered = SOLVER_C.replace("FAIRMILE_STOP) break", "FAIRMILE_STOP) break; else usleep(1000)").splitlines()
    head = ["#define FAIRMILE_METER_IMPLEMENTATION", '#include "fairmile_meter.h"']
    Path("solver.c").write_text("\n".join([*head, *(line for line in metered if "_GNU_SOURCE" not in line)]))
    folders = [f"-I{folder}" for folder in (coupling.include(), include())]
    subprocess.run(["gcc", *folders, "solver.c", "-o", "solver", "-lpthread"], check=True)
    Path("model.py").write_text(MODEL.replace("exchange.answers", "time.sleep(0.02); exchange.answers"))
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    workspace = Workspace.open(environ=environ, cwd=tmp_path)
    command = ["./solver", "0", "20", "1", ":", sys.executable, "model.py", "answers"]
    run = workspace.runs.run(command, coupled=True, again=True)
    assert run.state is RunState.DONE
    first = workspace.traces.analyze(run.id).findings[0]
    assert first.title == "The solver waits for the model"


@pytest.mark.skipif(not shutil.which("gfortran"), reason="gfortran is not installed")
def test_fortran_keeps_its_order(tmp_path: Path, socket: Path) -> None:
    (tmp_path / "solver.f90").write_text(SOLVER_F90)
    sources = [coupling.include() / "fairmile_couple.f90", coupling.include() / "fairmile_couple.c", "solver.f90"]
    subprocess.run(["gfortran", *map(str, sources), "-o", "solver"], cwd=tmp_path, check=True)
    fortran = run([tmp_path / "solver"], socket)
    seen = []
    for exchange in coupling.serve(socket):
        seen.append(exchange.fields["temperature"].copy())
        exchange.answers["heating"][...] = -0.5 * exchange.fields["temperature"]
    assert np.array_equal(seen[0], [[1, 4], [2, 5], [3, 6]])
    assert [float(each) for each in fortran.communicate(timeout=60)[0].split()] == [n / 8 for n in range(1, 7)]


def test_what_is_no_solver_is_refused(socket: Path) -> None:
    hello = f'{{"protocol": {PROTOCOL}, "slots": 1, "slot_bytes": 64}}\n'
    old = '{"protocol": 1}\n'
    for words, problem in (
        ("GET /\n", "does not fit its memory"),
        (hello, "0 files for 384 bytes"),
        (old, "protocol 1, expected"),
    ):
        talker = run([sys.executable, "-c", TALKER, socket, words], None)
        with pytest.raises(Unsupported, match=problem):
            next(coupling.serve(socket))
        talker.communicate(timeout=60)
    with pytest.raises(UsageError, match="there is no socket to serve at"):
        next(coupling.serve())
