"""The model's side of a coupled run: it waits for solvers at a socket, and answers their steps."""

from __future__ import annotations

import array
import json
import mmap
import os
import selectors
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from fairmile import meter
from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

    Fields = Mapping[str, np.ndarray[Any, Any]]

SOCKET = "FAIRMILE_COUPLE"
_NOTE = struct.Struct("=qq")
_STEP, _ANSWER, _END, _STOP, _READY = 1, 2, 3, 4, 5
_MOST_HELLO = 1 << 20
_MOST_BYTES = 1 << 40
_KINDS = ("f4", "f8", "i4", "i8")
_LONGEST_SOCKET = 100


@dataclass(frozen=True)
class Exchange:
    """One step of one solver: what it sent, and where the answers go. Both are views of shared memory."""

    solver: Solver
    step: int  # counts coupled steps from 0
    fields: Fields
    answers: Fields

    def stop(self) -> None:
        """Ask the solver to end: its step returns FAIRMILE_STOP instead of an answer."""
        self.solver.is_stopping = True


@dataclass
class Solver:
    """A process of the simulation."""

    rank: int
    size: int
    lag: int  # steps between a question and the use of its answer
    every: int  # the solver couples each n-th of its steps
    line: socket.socket = field(repr=False)
    slots: list[tuple[Fields, Fields]] = field(repr=False)
    steps: int = 0
    is_stopping: bool = False

    def exchange(self, step: int) -> Exchange:
        """Return a step with its fields."""
        fields, answers = self.slots[step % len(self.slots)]
        return Exchange(self, step, fields, answers)


def serve(path: str | Path | None = None, *, solvers: int | None = None) -> Iterator[Exchange]:
    """Yield each step of each solver; when the loop asks for the next one, the answer is sent.

    `path` is the socket's, by default the one that FAIRMILE_COUPLE names. The loop ends when all `solvers` have ended;
    by default these are as many as the first one says that the program has.
    """
    place = Path(path or os.environ.get(SOCKET) or "")
    if not place.name:
        raise UsageError(
            "there is no socket to serve at", hint=f"set {SOCKET} to a path, the same for the model and the solver"
        )
    if not hasattr(socket, "recv_fds"):
        raise Unsupported("coupling on one node needs Unix sockets, which this system lacks")
    with _listening(place) as listening, selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ)
        yield from _steps(listening, waiting, solvers)


def _steps(listening: socket.socket, waiting: selectors.BaseSelector, solvers: int | None) -> Iterator[Exchange]:
    met, coupled = 0, list[Solver]()
    if not (meter.current().component or os.environ.get("FAIRMILE_COMPONENT")):
        meter.component("model")
    asked_ns = monotonic_ns()
    try:
        while solvers is None or met < solvers or coupled:
            for key, _ in waiting.select():
                if key.data is None:
                    solver = _greet(listening.accept()[0])
                    asked_ns = monotonic_ns()  # until now the solver was starting
                    coupled.append(solver)
                    waiting.register(solver.line, selectors.EVENT_READ, solver)
                    met, solvers = met + 1, solvers or solver.size
                    continue
                solver = key.data
                step = _receive(solver)
                if step is not None:
                    exchange = solver.exchange(step)
                    _note_received(exchange, asked_ns)
                    with meter.span("model"):
                        yield exchange
                    is_sent = _answer(exchange)
                    asked_ns = monotonic_ns()
                    if is_sent:
                        continue
                waiting.unregister(solver.line)
                solver.line.close()
                coupled.remove(solver)
    finally:
        for solver in coupled:
            solver.line.close()


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


def _greet(line: socket.socket) -> Solver:
    """Read what a solver says of itself, map its memory, and tell it that the model is ready."""
    files = array.array("i")
    try:
        said = json.loads(_hello(line, files))
        if said["protocol"] != 1:
            raise Unsupported(f"the solver speaks protocol {said['protocol']}, expected 1: compile it again")
        memory = _mapped(files, said["slots"] * said["slot_bytes"])
        slots = [_views(memory, said, number) for number in range(said["slots"])]
        solver = Solver(said["rank"], said["size"], said["lag"], said["every"], line, slots)
        line.sendall(_NOTE.pack(_READY, 0))
    except (ValueError, KeyError, TypeError) as error:
        line.close()
        raise Unsupported(f"a solver described its fields in a way that does not fit its memory ({error})") from error
    except BaseException:
        line.close()
        raise
    finally:
        for each in files:
            os.close(each)
    return solver


def _hello(line: socket.socket, files: array.array[int]) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        part, more, _, _ = socket.recv_fds(line, 65536, 4)
        files.extend(more)
        received += part
        if not part or len(received) > _MOST_HELLO:
            raise Unsupported("the connected program is not a solver that includes fairmile_couple.h")
    return received


def _mapped(files: array.array[int], size: int) -> mmap.mmap:
    if len(files) != 1 or not 0 < size < _MOST_BYTES or os.fstat(files[0]).st_size < size:
        raise ValueError(f"{len(files)} files for {size} bytes")
    return mmap.mmap(files[0], size)


def _views(memory: mmap.mmap, said: Mapping[str, Any], slot: int) -> tuple[Fields, Fields]:
    """Return the fields of a slot as arrays: those that came in, and those that go back."""
    import numpy as np

    fields: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    for each in said["fields"]:
        if each["kind"] not in _KINDS:
            raise ValueError(f"kind {each['kind']}")
        start = slot * said["slot_bytes"] + each["offset"]
        shape = tuple(int(length) for length in each["shape"])
        view: Any = np.ndarray(shape, each["kind"], memory, start, order=each["order"])
        if each["offset"] < 0 or each["offset"] + view.nbytes > said["slot_bytes"]:
            raise ValueError(f"field {each['label']} lies outside")
        if each["way"] == "out":
            view.flags.writeable = False
            fields[each["label"]] = view
        else:
            answers[each["label"]] = view
    return fields, answers


def _receive(solver: Solver) -> int | None:
    """Return the step that a solver asks for, or None where it has ended."""
    try:
        received = solver.line.recv(_NOTE.size, socket.MSG_WAITALL)
    except ConnectionError:
        return None
    if len(received) < _NOTE.size:
        return None
    kind, step = _NOTE.unpack(received)
    return step if kind == _STEP and step >= 0 else None


def _note_received(exchange: Exchange, asked_ns: int) -> None:
    """Note for the trace what came, and that the model has waited for it since `asked_ns`."""
    rank, size = exchange.solver.rank, sum(each.nbytes for each in exchange.fields.values())
    with meter.exchange("get", f"fields/{rank}", peer="solver", bytes=size, version=exchange.step) as got:
        got.asked(asked_ns)
        got.ready()


def _answer(exchange: Exchange) -> bool:
    solver, size = exchange.solver, sum(each.nbytes for each in exchange.answers.values())
    solver.steps += 1
    note = _NOTE.pack(_STOP if solver.is_stopping else _ANSWER, exchange.step)
    with meter.exchange("put", f"answers/{solver.rank}", peer="solver", bytes=size, version=exchange.step):
        try:
            solver.line.sendall(note)
        except OSError:
            return False
    return True
