"""Very many short commands through pilot jobs: workers that stay, so that no command waits for the scheduler.

Parsl does the work: it starts the workers, hands commands to them and replaces those that are lost.
"""

from __future__ import annotations

import math
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.commands import Here
from fairmile.base.errors import FairmileError, Unsupported, UsageError
from fairmile.jobs.directives import slurm_directives
from fairmile.jobs.machines import Machine
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.resolve import DEFAULT_TIME_S, resolve
from fairmile.jobs.spec import JobSpec

if TYPE_CHECKING:
    from parsl.config import Config

_LOOPBACK = "127.0.0.1"
_CAPTURED = 1 << 16
_NOT_FOUND = 127
# What of our header Parsl writes itself.
_THEIRS = ("--job-name", "--nodes", "--ntasks-per-node", "--cpus-per-task", "--time", "--output", "--error")


@dataclass(frozen=True)
class Outcome:
    """How one command ended; without an exit code, `trouble` says why it never did."""

    exit_code: int | None
    stdout: str = ""
    trouble: str = ""


def run_pilot(
    commands: Sequence[Sequence[str]],
    machine: Machine,
    folder: Path,
    *,
    like: JobSpec | None = None,
    workers: int | None = None,
    blocks: int = 1,
    retries: int = 1,
    address: str = "",
    watch: Callable[[int, Outcome], None] = lambda index, outcome: None,
) -> list[Outcome]:
    """Run commands on pilot jobs and return how each ended, in their order.

    `blocks` pilot jobs are submitted, each with the resources, software, preamble and environment of `like`, and
    `workers` workers on each node, or one for each core. A command whose worker was lost is run again, `retries`
    times; one that ended with whatever exit code is not. `folder` must be seen by the nodes; `address` is where they
    reach this machine. When this returns, or raises, no pilot job and no worker is left.
    """
    _check(commands, machine, blocks, workers)
    request = resolve(machine.filled(like or JobSpec(argv=("true",), launch="plain")), machine.system)
    kernel_class, app = _parsl()
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="pilot-", dir=folder))
    config = _config(request, machine, scratch, workers, blocks, retries, address or _address(machine))
    kernel = kernel_class(config)
    try:
        run = app(_run_one, data_flow_kernel=kernel)
        futures = [run(list(command)) for command in commands]
        found = []
        for index, future in enumerate(futures):
            found.append(_outcome(future))
            watch(index, found[-1])
    finally:
        kernel.cleanup()
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def _check(commands: Sequence[Sequence[str]], machine: Machine, blocks: int, workers: int | None) -> None:
    for number, command in enumerate(commands):
        if not command or not command[0]:
            raise UsageError(f"command {number}: expected a program and its arguments, found none")
    for name, value in (("blocks", blocks), ("workers", workers)):
        if value is not None and value < 1:
            raise UsageError(f"{name}: expected at least 1, found {value}")
    dialect = machine.system.scheduler.dialect
    if dialect not in ("shell", "slurm"):
        raise Unsupported(
            f"pilot jobs are known for Slurm and for this machine alone, {machine.system.name} has {dialect}",
            hint="pack the commands into one job instead",
        )
    if machine.reach.host:
        raise Unsupported(
            f"pilot jobs must be started on {machine.system.name} itself: its nodes have to reach this process",
            hint=f"run the same there, or pack the commands into one job (ssh {machine.reach.host})",
        )


def _parsl() -> tuple[Callable[[Config], Any], Callable[..., Any]]:
    try:
        from parsl import python_app
        from parsl.dataflow.dflow import DataFlowKernel
    except ImportError as error:
        raise Unsupported("pilot jobs need Parsl", hint="pip install 'fairmile[pilot]'") from error
    return DataFlowKernel, python_app


def _config(
    request: Request, machine: Machine, scratch: Path, workers: int | None, blocks: int, retries: int, address: str
) -> Config:
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.executors.high_throughput import interchange

    # The programs that Parsl looks for by name stand beside its Python; modules may have put another one before it.
    beside = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    lines = "\n".join([*request.lines, beside])
    cpus = request.cpus_per_task * request.tasks_per_node if request.cpus_per_task else None
    executor = HighThroughputExecutor(
        label="pilot",
        provider=_provider(request, machine, lines, blocks, cpus),
        interchange_launch_cmd=[sys.executable, interchange.__file__],
        address=address,
        max_workers_per_node=workers or cpus,
        worker_logdir_root=str(scratch),
        encrypted=True,  # others on this machine must not hand our workers commands
        heartbeat_period=10,
        heartbeat_threshold=40,
    )
    return Config(
        executors=[executor],
        retries=retries,
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
    return _LOOPBACK if machine.system.scheduler.dialect == "shell" else socket.gethostname()


def _run_one(command: list[str]) -> tuple[int, str]:
    """Run a command on a worker; only what the worker itself does not survive is raised."""
    try:
        result = Here(capture_bytes=_CAPTURED).run(command, check=False)
    except FairmileError as error:
        return _NOT_FOUND, str(error)
    return result.exit_code if result.exit_code >= 0 else 128 - result.exit_code, result.stdout


def _outcome(future: Any) -> Outcome:
    try:
        code, said = future.result()
    except Exception as error:  # noqa: BLE001  whatever Parsl raises: the worker, the block or the interchange is gone
        return Outcome(None, trouble=f"{type(error).__name__}: {error}")
    return Outcome(code, said)
