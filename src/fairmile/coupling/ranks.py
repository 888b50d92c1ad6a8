"""The model's side of a coupled run in one MPI job: it is some ranks of the job, and the solver the others.

Who takes part says so in one exchange of all ranks; see fairmile_couple.h, whose messages these are.
"""

from __future__ import annotations

import atexit
import mmap
import time
from collections.abc import Iterator
from dataclasses import field
from typing import Any

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

MPI_JOB = "mpi"  # in place of a socket
_NOTES, _TEXT, _FIELDS = 1, 2, 16  # tags
_STEP, _ANSWER, _END, _STOP, _READY, _GONE, _HELLO = range(1, 8)
_LOOK_S, _NAP_S = 1e-3, 5e-5


@dataclass(eq=False, kw_only=True)
class RankSolver(Solver):
    """A process of the simulation in the same MPI job."""

    place: int  # its rank among all of the job
    out: list[list[tuple[int, memoryview]]] = field(repr=False)  # of each slot: the number of a field and its bytes
    back: list[list[tuple[int, memoryview]]] = field(repr=False)
    sending: list[list[Any]] = field(repr=False)


def serve_ranks() -> Iterator[Exchange]:
    """Yield each step of each rank of the solver that this rank of the model answers."""
    ranks = _Ranks()
    if is_own_name_open():
        meter.component("model")
    atexit.register(ranks.leave)  # before MPI is finalized, for which the solver would wait
    asked_ns = time.monotonic_ns()
    try:
        while ranks.open:
            place, kind, number = ranks.hear()
            if kind == _HELLO:
                ranks.greet(place, number)
                asked_ns = time.monotonic_ns()
            elif kind == _END:
                ranks.part(place)
            elif kind == _STEP:
                solver, trace = ranks.coupled[place]
                slot = ranks.take(solver, number)
                trace.received(number, asked_ns)
                with trace.computing():
                    yield Exchange(solver, number, *solver.slots[slot])
                with trace.answering(number):
                    ranks.answer(solver, number)
                asked_ns = time.monotonic_ns()
    finally:
        ranks.leave()
        atexit.unregister(ranks.leave)


class _Ranks:
    """The ranks of the solver, and the messages between them and this rank of the model."""

    def __init__(self) -> None:
        import numpy as np

        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise Unsupported(
                f"a model in ranks of an MPI job needs mpi4py ({error})", hint="pip install mpi4py"
            ) from error
        world = MPI.COMM_WORLD
        roles = np.empty(world.Get_size(), "i")
        world.Iallgather(np.ones(1, "i"), roles).Wait()  # the solver waits for it with a time limit
        world.Split(1, world.Get_rank())
        self._mpi, self._line = MPI, world.Dup()
        self._note = np.empty(2, "q")
        models, solvers = (np.flatnonzero(roles == role).tolist() for role in (1, 0))
        if not solvers:
            raise UsageError(
                "no solver is in this MPI job",
                hint="start both in one job: mpirun -n 3 ./solver : -n 1 python model.py",
            )
        mine = models.index(world.Get_rank())
        self.open = {each for at, each in enumerate(solvers) if at * len(models) // len(solvers) == mine}
        self.coupled: dict[int, tuple[RankSolver, Trace]] = {}

    def hear(self) -> tuple[int, int, int]:
        """Wait for a note; return who sent it, its kind and its number."""
        status, began = self._mpi.Status(), time.perf_counter()
        while not self._line.Iprobe(self._mpi.ANY_SOURCE, _NOTES, status):
            if time.perf_counter() - began > _LOOK_S:
                time.sleep(_NAP_S)
        self._line.Recv(self._note, status.Get_source(), _NOTES)
        return (status.Get_source(), *self._note.tolist())

    def greet(self, place: int, size: int) -> None:
        """Receive what a solver says of itself, and tell it that the model is ready."""
        if not 0 < size < MOST_HELLO:
            raise Unsupported(f"rank {place} describes its fields in {size} bytes: it is not a solver of this version")
        text = bytearray(size)
        self._line.Recv([text, self._mpi.BYTE], place, _TEXT)
        said = read_hello(bytes(text))
        memory = mmap.mmap(-1, bytes_of(said))
        places = [
            [
                (at, memoryview(memory)[start : start + each["bytes"]], each["way"])
                for at, each in enumerate(said["fields"])
                for start in [WORDS * WORD_BYTES + slot * said["slot_bytes"] + each["offset"]]
            ]
            for slot in range(said["slots"])
        ]
        out, back = (
            [[(at, part) for at, part, each in slot if each == way] for slot in places] for way in ("out", "in")
        )
        about = (said["rank"], said["size"], said["lag"], said["every"], view_slots(memory, said))
        solver = RankSolver(*about, place=place, out=out, back=back, sending=[[] for _ in places])
        self.coupled[place] = solver, Trace(solver)
        self._say(place, _READY)

    def take(self, solver: RankSolver, step: int) -> int:
        """Receive the fields of a step; return the slot they are in."""
        slot = step % len(solver.slots)
        self._mpi.Request.Waitall(solver.sending[slot])  # the solver has received what it held
        for at, part in solver.out[slot]:
            self._line.Recv([part, self._mpi.BYTE], solver.place, _FIELDS + at)
        return slot

    def answer(self, solver: RankSolver, step: int) -> None:
        """Send the answer to a step, or the wish that the solver ends."""
        solver.steps += 1
        slot = step % len(solver.slots)
        if solver.is_stopping:
            self._say(solver.place, _STOP, step)
            return
        self._say(solver.place, _ANSWER, step)
        solver.sending[slot] = [
            self._line.Isend([part, self._mpi.BYTE], solver.place, _FIELDS + at) for at, part in solver.back[slot]
        ]

    def part(self, place: int) -> None:
        """Tell a solver that its end was heard."""
        self.open.discard(place)
        self._say(place, _GONE)

    def leave(self) -> None:
        """Tell the solvers that have not ended that the model does."""
        for place in sorted(self.open):
            self.part(place)
        self.open.clear()

    def _say(self, place: int, kind: int, number: int = 0) -> None:
        import numpy as np

        self._line.Send(np.array([kind, number], "q"), place, _NOTES)
