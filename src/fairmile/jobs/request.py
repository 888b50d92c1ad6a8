"""What is asked of a scheduler once the system's rules filled in what the job left open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from fairmile.base.quick_dataclass import dataclass
from fairmile.jobs.spec import Array, JobSpec, Signal

_DECIDED = (
    *("partition", "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node"),
    *("memory_gib", "time_s", "account", "qos", "launch"),
)


@dataclass(frozen=True)
class Request:
    """A job with every value decided; `origins` says for each value where it comes from."""

    spec: JobSpec
    system: str
    nodes: int
    tasks_per_node: int
    cpus_per_task: int | None
    gpus_per_node: int
    time_s: float | None
    memory_gib: float | None
    partition: str
    account: str
    qos: str
    exclusive: bool | None
    launch: str
    beside: Request | None = None  # what the second part of a heterogeneous job asks for
    options: tuple[str, ...] = ()  # of the system and of the job, as header options
    gpu_option: str = "gpus-per-node"
    names_partition: bool = True  # whether the header names the partition; elsewhere options choose the nodes
    starter: str = "none"  # what starts tasks on the nodes: srun, mpirun, mpiexec, jsrun, flux, none
    lines: tuple[str, ...] = ()  # modules and environment, in the order they run
    notes: tuple[str, ...] = ()  # what a person should know: a rule that was overruled, a value that is a guess
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def array(self) -> Array | None:
        return self.spec.array

    @property
    def signal(self) -> Signal | None:
        return self.spec.signal

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node

    def decided(self) -> Iterator[tuple[str, str | int | float | None, str]]:
        """Yield the name of each value that a system's rules may fill in, the value, and where it comes from."""
        for name in _DECIDED:
            yield name, getattr(self, name), self.origins.get(name, "")


@dataclass(frozen=True)
class JobFiles:
    """Where a job's script finds its files, on the machine that runs it.

    `stdout` and `stderr` are relative to `folder`; in those of an array `{index}` stands for the task's number.
    """

    folder: str
    work: str
    stdout: str = "out.log"
    stderr: str = "err.log"
    key: str = ""
    after: tuple[tuple[str, str], ...] = ()  # (scheduler's id of the other job, ok | failed | any)
    after_folders: tuple[str, ...] = ()  # the folders of those jobs
    after_tasks: tuple[int, ...] = ()  # how many tasks each of them has; 0 unless it is an array
