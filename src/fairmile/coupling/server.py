"""The model's side of a coupled run on one node: it waits for solvers at a socket, and answers by shared memory."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import platform
import selectors
import socket
import struct
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from time import monotonic_ns

from fairmile import meter
from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.coupling.exchange import (
    MOST_HELLO,
    WORD_BYTES,
    WORDS,
    Exchange,
    Solver,
    Trace,
    bytes_of,
    is_own_name_open,
    read_hello,
    view_slots,
)
from fairmile.coupling.ranks import MPI_JOB, serve_ranks

SOCKET = "FAIRMILE_COUPLE"
_NOTE = struct.Struct("=qq")
_STEP, _ANSWER, _READY = 1, 2, 5
_ASKED, _DONE, _STOPS, _MODEL_SLEEPS, _SOLVER_SLEEPS = (word * WORD_BYTES // 8 for word in range(WORDS))
# Python has no memory barriers, and needs none where a processor shows its writes in their order.
_KEEPS_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")
_LOOK_NS = 500_000  # who waits longer hardly feels what a sleep costs, some ten microseconds
_RECHECK_S, _STARTING_S = 0.1, 0.5
_LONGEST_SOCKET = 100


@dataclass(eq=False, kw_only=True)
class LocalSolver(Solver):
    """A process of the simulation on this node."""

    line: socket.socket = field(repr=False)
    words: memoryview = field(repr=False)
    has_cores: bool  # who looks for words keeps no other process from work


def serve(path: str | Path | None = None, *, solvers: int | None = None) -> Iterator[Exchange]:
    """Yield each step of each solver; when the loop asks for the next one, the answer is sent.

    `path` is the socket's, by default the one that FAIRMILE_COUPLE names; `mpi` serves the solver in other ranks of
    the same MPI job. The loop ends when all `solvers` have ended; by default these are as many as the first one says
    that the program has.
    """
    place = Path(path or os.environ.get(SOCKET) or "")
    if str(place) == MPI_JOB:
        yield from serve_ranks()
        return
    if not place.name:
        raise UsageError(
            "there is no socket to serve at", hint=f"set {SOCKET} to a path, the same for the model and the solver"
        )
    if not hasattr(socket, "recv_fds"):
        raise Unsupported("coupling on one node needs Unix sockets, which this system lacks")
    with _listening(place) as listening, selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ)
        yield from _steps(place, listening, waiting, solvers)


def _steps(
    place: Path, listening: socket.socket, waiting: selectors.BaseSelector, solvers: int | None
) -> Iterator[Exchange]:
    met, coupled = 0, dict[LocalSolver, Trace]()
    if is_own_name_open():
        meter.component("model")
    look_ns, asked_ns = 0, monotonic_ns()
    try:
        while solvers is None or met < solvers or coupled:
            solver = _look(coupled, look_ns)
            if solver is not None:
                trace, step = coupled[solver], solver.steps
                trace.received(step, asked_ns)
                with trace.computing():
                    yield Exchange(solver, step, *solver.slots[step % len(solver.slots)])
                with trace.answering(step):
                    _answer(solver)
                asked_ns = monotonic_ns()
                if met == solvers:
                    continue
            events = _events(waiting, coupled, is_idle=solver is None)
            if not events and not coupled and not place.is_socket():  # who started the solver knows that it has ended
                return
            for key, _ in events:
                if key.data is None:
                    new = _greet(listening.accept()[0])
                    if new is None:
                        continue
                    asked_ns = monotonic_ns()  # until now the solver was starting
                    coupled[new] = Trace(new)
                    waiting.register(new.line, selectors.EVENT_READ, new)
                    met, solvers = met + 1, solvers or new.size
                    look_ns = _LOOK_NS if new.has_cores else 0
                elif not _is_there(key.data):
                    waiting.unregister(key.data.line)
                    key.data.line.close()
                    del coupled[key.data]
    finally:
        for solver in coupled:
            solver.line.close()


def _look(coupled: dict[LocalSolver, Trace], look_ns: int) -> LocalSolver | None:
    """Look for a while which solver has sent a step; None if there is none."""
    until = monotonic_ns() + look_ns
    while True:
        for solver in coupled:
            if solver.words[_ASKED] > solver.steps:
                return solver
        if monotonic_ns() >= until:
            return None


def _events(
    waiting: selectors.BaseSelector, coupled: dict[LocalSolver, Trace], *, is_idle: bool
) -> list[tuple[selectors.SelectorKey, int]]:
    """Return which sockets have something to read; who is idle sleeps until then."""
    if not is_idle:
        return waiting.select(0)
    if not _KEEPS_ORDER or not coupled:  # the solvers always send a note
        return waiting.select(None if coupled else _STARTING_S)
    for solver in coupled:
        solver.words[_MODEL_SLEEPS] = 1
    events = waiting.select(0)  # a call of the system: what was written before is seen by all others
    if not events and not any(solver.words[_ASKED] > solver.steps for solver in coupled):
        events = waiting.select(_RECHECK_S)
    for solver in coupled:
        solver.words[_MODEL_SLEEPS] = 0
    return events


class _listening:
    """A socket at a path that nobody else uses; the path goes with it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> socket.socket:
        if len(str(self._path)) > _LONGEST_SOCKET:
            raise UsageError(f"{self._path}: expected a path of at most {_LONGEST_SOCKET} characters for a socket")
        self._line = socket.socket(socket.AF_UNIX)
        if self._path.is_socket() and _is_deserted(self._path):
            self._path.unlink()
        before = os.umask(0o177)  # only this user may connect
        try:
            self._line.bind(str(self._path))
        except OSError as error:
            self._line.close()
            raise UsageError(f"{self._path}: cannot serve here ({error.strerror})") from error
        finally:
            os.umask(before)
        self._line.listen(1024)
        return self._line

    def __exit__(self, *_: object) -> None:
        self._line.close()
        self._path.unlink(missing_ok=True)


def _is_deserted(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _greet(line: socket.socket) -> LocalSolver | None:
    """Read what a solver says of itself, map its memory, and tell it that the model is ready; None if nobody is there.

    Another model that finds its socket in use connects and says nothing; a solver may be killed before it has.
    """
    files = array.array("i")
    try:
        text = _hello(line, files)
        if not text:
            line.close()
            return None
        said = read_hello(text)
        memory = _mapped(files, bytes_of(said))
        words = memoryview(memory)[: WORDS * WORD_BYTES].cast("q")
        words[_MODEL_SLEEPS] = not _KEEPS_ORDER
        about = (said["rank"], said["size"], said["lag"], said["every"], view_slots(memory, said))
        has_cores = _KEEPS_ORDER and (int(said["cores"], 16) | _own_cores()).bit_count() > said["size"]
        with contextlib.suppress(OSError):  # killed meanwhile: its socket shows that
            line.sendall(_NOTE.pack(_READY, has_cores))
        return LocalSolver(*about, line=line, words=words, has_cores=has_cores)
    except (ValueError, KeyError, TypeError) as error:
        line.close()
        raise Unsupported(f"a solver described its fields in a way that does not fit its memory ({error})") from error
    except BaseException:
        line.close()
        raise
    finally:
        for each in files:
            os.close(each)


def _own_cores() -> int:
    """Return which cores this process may use, a bit each."""
    if hasattr(os, "sched_getaffinity"):
        return sum(1 << core for core in os.sched_getaffinity(0))
    return (1 << (os.cpu_count() or 1)) - 1


def _hello(line: socket.socket, files: array.array[int]) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        try:
            part, more, _, _ = socket.recv_fds(line, 65536, 4)
        except ConnectionError:
            part, more = b"", []
        files.extend(more)
        received += part
        if not part:
            return b""
        if len(received) > MOST_HELLO:
            raise Unsupported("the connected program is not a solver that includes fairmile_couple.h")
    return received


def _mapped(files: array.array[int], size: int) -> mmap.mmap:
    if len(files) != 1 or os.fstat(files[0]).st_size < size:
        raise ValueError(f"{len(files)} files for {size} bytes")
    return mmap.mmap(files[0], size)


def _is_there(solver: LocalSolver) -> bool:
    """Read the note of a solver that a step is there, or that it has ended."""
    try:
        received = solver.line.recv(_NOTE.size, socket.MSG_WAITALL)
    except ConnectionError:
        return False
    return len(received) == _NOTE.size and _NOTE.unpack(received)[0] == _STEP


def _answer(solver: LocalSolver) -> None:
    """Tell the solver that the answer is there; one that is gone meanwhile is noticed at its socket."""
    words = solver.words
    solver.steps += 1
    words[_STOPS] = solver.is_stopping
    if _KEEPS_ORDER:
        words[_DONE] = solver.steps
    if not _KEEPS_ORDER or words[_SOLVER_SLEEPS]:
        with contextlib.suppress(OSError):
            solver.line.sendall(_NOTE.pack(_ANSWER, solver.steps - 1))
