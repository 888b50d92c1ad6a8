"""The executor that is pilot jobs: workers that stay on a system, so that no run waits for its scheduler.

Parsl does the work: it starts the workers, hands runs to them and replaces those that are lost. They end with the
process that submitted them; where that was killed, they end what they are at (see `pilot_exchange`).
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import FairmileError, MissingExtra, SystemFailure, Unsupported, UsageError
from fairmile.base.files import write_failure
from fairmile.jobs.directives import slurm_directives
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.request_rules import DEFAULT_TIME_S, make_request
from fairmile.jobs.spec import JobSpec
from fairmile.runs.execute import worker
from fairmile.runs.execute.cancellation import BEFORE, cancel_name, watcher
from fairmile.runs.execute.crew import CANCELLED, TAKEN
from fairmile.runs.execute.executor import Handle, Member, PreparedRun, RunHost, TaskStatus, Work
from fairmile.runs.execute.following import Follower
from fairmile.runs.execute.local_pool import run_order
from fairmile.runs.execute.worker import Batch
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import RunSpec

if TYPE_CHECKING:
    from parsl.config import Config

    from fairmile.jobs.machines import Machine

_LOOPBACK = "127.0.0.1"
_LONGEST_REASON = 500
_LOST_RETRIES = 1  # of a run whose worker was lost
# What of our header Parsl writes itself.
_THEIRS = ("--job-name", "--nodes", "--ntasks-per-node", "--cpus-per-task", "--time", "--output", "--error")
_EXCHANGE = "fairmile.runs.execute.pilot_exchange"


class Pilot:
    """Executes runs on pilot jobs of a machine; they end with the block of this executor.

    `blocks` pilot jobs are submitted, with the resources and software that the first run or batch asks for, and with
    `workers` workers on each node, or one for each core. The folders of runs and batches must be seen by the nodes;
    `address` is where they reach this machine.
    """

    def __init__(
        self, machine: Machine, host: RunHost, *, blocks: int = 1, workers: int | None = None, address: str = ""
    ) -> None:
        _check(machine, blocks, workers)
        self._machine, self._host = machine, host
        self._blocks, self._workers, self._address = blocks, workers, address or _address(machine)
        self._kernel: Any = None
        self._run: Callable[..., Any] | None = None
        self._scratch: Path | None = None
        self._futures: dict[Any, Handle] = {}
        self._own: set[Handle] = set()  # runs of their own
        self._wishes: dict[Handle, Path] = {}
        self._over: set[Handle] = set()
        self._follower = Follower(host.collect)

    def __enter__(self) -> Pilot:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kernel is not None:
            self._kernel.cleanup()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        """Hand runs to the workers; the first submission starts them, like a job of that run or batch."""
        handles = []
        for work in works:
            handle = Handle.of(work)
            self._over.discard(handle)
            if isinstance(work, PreparedRun):
                self._own.add(handle)
                order, start, spec = _run_order(work, self._host), work.folder.parent, work.spec
            elif isinstance(work, Member):
                order, start, spec = {"batch": str(work.batch), "number": work.number, "id": work.id}, work.batch, None
            else:
                raise Unsupported("a loop needs a process of its own, which pilot jobs do not give")
            wish = self._wishes[handle] = start / cancel_name(work.id)
            wish.unlink(missing_ok=True)
            self._futures[self._app(start, spec)(order, str(wish))] = handle
            handles.append(handle)
        return handles

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        """Return what has ended; runs of other processes are followed by their records."""
        done = wait(self._futures, wait_s, FIRST_COMPLETED).done if self._futures else set()
        news = [status for future in done if (status := self._ended(future)) is not None]
        own = set(self._futures.values())
        others = self._follower.news(each for each in handles if each not in own and each not in self._over)
        self._over |= {status.handle for status in others if status.is_over}
        if not self._futures and not news and not others:
            time.sleep(wait_s)
        return [*news, *others]

    def cancel(self, handles: Collection[Handle]) -> None:
        """Wish that runs end: a worker sees that before it begins one, and while one runs."""
        for handle in handles:
            start = handle.batch if handle.batch is not None else self._host.collect(handle.run).folder.parent
            wish = start / cancel_name(handle.run)
            try:
                wish.touch()
            except OSError as error:
                raise write_failure(str(wish), error) from error

    def collect(self, handle: Handle) -> Run:
        """Return the run of a task."""
        return self._host.collect(handle.run)

    def _app(self, start: Path, spec: RunSpec | None) -> Callable[..., Any]:
        """Return what hands an order to a worker; the pilot jobs are started once, and write below `start`."""
        if self._run is None:
            kernel_class, app = _parsl()
            like = spec or RunSpec.model_validate(Batch.read(start).shared.spec.to_dict())
            job = JobSpec(argv=("true",), launch="plain", resources=like.resources, software=like.software)
            request = make_request(self._machine.filled(job), self._machine.system)
            self._scratch = Path(tempfile.mkdtemp(prefix=".pilot-", dir=start))
            config = _config(request, self._machine, self._scratch, self._workers, self._blocks, self._address)
            self._kernel = kernel_class(config)
            self._run = app(execute_order, data_flow_kernel=self._kernel)
        return self._run

    def _ended(self, future: Any) -> TaskStatus | None:
        """Return how a run ended; None where another process executes it, whose record is followed."""
        handle = self._futures.pop(future)
        self._wishes.pop(handle).unlink(missing_ok=True)
        try:
            state, reason = future.result()
        except Exception as error:  # noqa: BLE001  whatever Parsl raises: the worker, the block or the interchange is gone
            state, reason = "interrupted", " ".join(f"the pilot jobs failed: {error}".split())[:_LONGEST_REASON]
        if state == TAKEN:
            return None
        self._over.add(handle)
        if handle in self._own and state == str(RunState.DONE):
            self._host.conclude(self._host.collect(handle.run))
        return TaskStatus(handle, RunState(state), reason)


def execute_order(order: Mapping[str, Any], wish: str) -> tuple[str, str]:
    """Execute a run on a worker, and return its state and why; only what the worker does not survive is raised.

    It is ended, or never begun, as soon as there is a file `wish`.
    """
    file = Path(wish)
    if file.exists():
        return CANCELLED, BEFORE
    look = watcher(file)
    if "batch" not in order:
        ended = worker.execute_order({**order, "env": {**os.environ, **order["env"]}}, look)
        return ended.state, ended.reason
    batch = Batch.read(Path(order["batch"]))
    try:
        record = batch.execute(batch.member(order["number"]), look=look)
    except (FairmileError, OSError) as error:
        return "failed", str(error)
    if record is None or record.result is None:
        return TAKEN, ""
    return str(record.result.state), record.result.reason


def _run_order(work: PreparedRun, host: RunHost) -> dict[str, Any]:
    """Return what a worker needs to execute a run; of variables only those that a pilot job has not, or otherwise."""
    order = run_order(work, host)
    return order | {"env": {name: value for name, value in order["env"].items() if os.environ.get(name) != value}}


def _check(machine: Machine, blocks: int, workers: int | None) -> None:
    for name, value in (("blocks", blocks), ("workers", workers)):
        if value is not None and value < 1:
            raise UsageError(f"{name}: expected at least 1, found {value}")
    check_pilot(machine)


def check_pilot(machine: Machine) -> None:
    """Raise where pilot jobs cannot work on a machine."""
    dialect = machine.system.scheduler.dialect
    if dialect not in ("shell", "slurm"):
        raise Unsupported(
            f"pilot jobs work with Slurm and on this machine, but {machine.system.name} uses {dialect}",
            hint="submit the sweep as job arrays instead",
        )
    if machine.reach.host:
        raise Unsupported(
            f"pilot jobs must be started on {machine.system.name}: its nodes connect to this process",
            hint=f"log in and run it there, or submit the sweep as job arrays (ssh {machine.reach.host})",
        )


def _parsl() -> tuple[Callable[[Config], Any], Callable[..., Any]]:
    try:
        from parsl import python_app
        from parsl.dataflow.dflow import DataFlowKernel
    except ImportError as error:
        raise MissingExtra("pilot jobs need Parsl", "pilot") from error
    return DataFlowKernel, python_app


def _config(
    request: Request, machine: Machine, scratch: Path, workers: int | None, blocks: int, address: str
) -> Config:
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor

    # The programs that Parsl looks for by name stand beside its Python; modules may have put another one before it.
    beside = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    lines = "\n".join([*request.lines, beside])
    cpus = request.cpus_per_task * request.tasks_per_node if request.cpus_per_task else None
    executor = HighThroughputExecutor(
        label="pilot",
        provider=_provider(request, machine, lines, blocks, cpus),
        interchange_launch_cmd=[sys.executable, "-P", "-m", _EXCHANGE, str(scratch), str(os.getpid())],
        address=address,
        max_workers_per_node=workers or cpus,
        worker_logdir_root=str(scratch),
        encrypted=True,  # others on this machine must not hand our workers runs
        heartbeat_period=10,
        heartbeat_threshold=40,
    )
    return Config(
        executors=[executor],
        retries=_LOST_RETRIES,
        run_dir=str(scratch),
        strategy="simple",
        strategy_period=1,
        initialize_logging=False,
        usage_tracking=0,
    )


def _provider(request: Request, machine: Machine, lines: str, blocks: int, cpus: int | None) -> Any:
    from parsl.launchers import SimpleLauncher, SingleNodeLauncher, SrunLauncher
    from parsl.providers import LocalProvider, SlurmProvider

    size: dict[str, Any] = {"init_blocks": blocks, "min_blocks": 0, "max_blocks": blocks, "worker_init": lines}
    if machine.system.scheduler.dialect == "shell":
        make_local: Any = LocalProvider  # it has no types
        return make_local(launcher=SingleNodeLauncher(), **size)
    ours = slurm_directives(request, JobFiles("", ""))
    options = [line for line in ours if not line.removeprefix("#SBATCH ").startswith(_THEIRS)]
    seconds = math.ceil(request.time_s or DEFAULT_TIME_S)
    return SlurmProvider(
        nodes_per_block=request.nodes,
        cores_per_node=cpus,
        walltime=f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        scheduler_options="\n".join(options),
        exclusive=False,  # our own options say so where it is meant
        cmd_timeout=60,
        launcher=SrunLauncher() if request.nodes > 1 else SimpleLauncher(),
        **size,
    )


def _address(machine: Machine) -> str:
    """Return the address by which nodes reach this machine; Parsl takes no names."""
    if machine.system.scheduler.dialect == "shell":
        return _LOOPBACK
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise SystemFailure(f"the name of this machine, {socket.gethostname()}, has no address: {error}") from error
