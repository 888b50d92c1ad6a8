"""The executors of a workspace: which there are, and which of them takes a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fairmile.base.lazy import lazy
from fairmile.runs.execute.executor import Executor, Work
from fairmile.runs.execute.host import WorkspaceRuns
from fairmile.runs.execute.in_place import InPlace
from fairmile.runs.execute.worker import Batch

if TYPE_CHECKING:
    from fairmile.runs.execute.batch_status import MemberStatus, member_statuses
    from fairmile.runs.execute.job_arrays import Arrays
    from fairmile.runs.execute.local_pool import LocalPool
    from fairmile.runs.execute.pilot import Pilot
    from fairmile.runs.execute.scheduler import Packing, Scheduler, SharedRuns
    from fairmile.runs.execute.ssh import SentRuns
else:
    Pilot = lazy("fairmile.runs.execute.pilot:Pilot")
    SentRuns = lazy("fairmile.runs.execute.ssh:SentRuns")
    member_statuses = lazy("fairmile.runs.execute.batch_status:member_statuses")
    Arrays = lazy("fairmile.runs.execute.job_arrays:Arrays")
    LocalPool = lazy("fairmile.runs.execute.local_pool:LocalPool")
    Packing = lazy("fairmile.runs.execute.scheduler:Packing")
    Scheduler = lazy("fairmile.runs.execute.scheduler:Scheduler")
    SharedRuns = lazy("fairmile.runs.execute.scheduler:SharedRuns")


class Executors:
    """Makes executors over the runs of a workspace; what runs of their own print goes to `echo`."""

    def __init__(self, host: WorkspaceRuns, *, echo: BinaryIO | None = None) -> None:
        self._host, self._echo = host, echo
        self._places: dict[str, Executor] = {}

    def echoing(self, echo: BinaryIO | None) -> Executors:
        """Return executors of the same runs that print to `echo`."""
        return Executors(self._host, echo=echo)

    def place(self, work: Work) -> Executor:
        """Return the executor that takes a run: that of its system, or this process; it is the same for all of them."""
        if work.system not in self._places:
            self._places[work.system] = self.on(work.system) if work.system else self.in_place()
        return self._places[work.system]

    def in_place(self, *, batch: Callable[[Path], Batch] = Batch.read) -> InPlace:
        """Return the executor that is this process."""
        return InPlace(self._host, echo=self._echo, batch=batch)

    def pool(self, at_once: int) -> LocalPool:
        """Return a pool of so many processes on this machine, which lasts as long as its block."""
        return LocalPool(at_once, self._host)

    def statuses(self, batch: Path) -> list[MemberStatus]:
        """Return where each member of a batch stands, on whichever system."""
        return member_statuses(batch, self._host, self._arrays)

    def on(self, system: str, packing: Packing | None = None) -> Scheduler:
        """Return the executor of a system: jobs of its scheduler, over ssh where it is reached so.

        `packing` says how members of a batch are put into its job arrays.
        """
        carrier = SentRuns(self._host) if self._host.jobs().machines[system].reach.host else SharedRuns(self._host)
        return Scheduler(system, self._host, self._arrays(), packing or Packing(), carrier, echo=self._echo)

    def pilot(self, system: str, blocks: int, *, workers: int | None = None, address: str = "") -> Pilot:
        """Return pilot jobs on a system, or on this machine where it is `laptop`, which last as long as its block."""
        machine = self._host.jobs().machines[system]
        return Pilot(machine, self._host, blocks=blocks, workers=workers, address=address)

    def _arrays(self) -> Arrays:
        return Arrays(self._host.ledger.root, self._host.jobs(), self._host.envs)
