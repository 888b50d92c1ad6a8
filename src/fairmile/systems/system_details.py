"""One system in full, with where its description comes from, as `fairmile system show` prints it."""

from __future__ import annotations

from typing import Literal, TypedDict, cast

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.systems.model import Dialect, System


class GpuDict(TypedDict):
    """The accelerators of one node."""

    count: int
    model: str
    memory_gib: float | None
    vendor: Literal["nvidia", "amd", "intel", "graphcore", "other"]


class PartitionDict(TypedDict):
    """A kind of node and the limits of its queue; null means not known, `max_time` is in seconds."""

    nodes: int | None
    cores: int | None
    threads_per_core: int
    sockets: int | None
    processor: str
    memory_gib: float | None
    gpu: GpuDict | None
    interconnect: str
    max_time: float | None
    max_nodes: int | None
    min_nodes: int
    qos: str
    named: bool
    options: list[str]
    purpose: Literal["batch", "devel", "interactive", "login"]
    note: str


class SchedulerRulesDict(TypedDict):
    """How jobs are submitted."""

    dialect: Dialect
    version: str
    gpu_option: Literal["gpus-per-node", "gres", "both", "none"]
    needs_account: bool
    needs_time: bool
    options: list[str]
    most_array_tasks: int | None
    accounting: bool
    source_profile: bool


class FileSystemDict(TypedDict):
    """A file system."""

    path: str
    purpose: Literal["home", "project", "scratch", "archive", "node"]
    kind: str
    purge: str
    capacity: str


class LaunchRulesDict(TypedDict):
    """How programs are started inside a job."""

    launcher: Literal["srun", "mpirun", "mpiexec", "jsrun", "flux", "none"]
    mpi: str
    binding: str
    rendezvous_suffix: str
    environment: dict[str, str]


class SoftwareSetDict(TypedDict):
    """The module lines of a framework, and the resources of its jobs."""

    variant: str
    lines: list[str]
    partitions: list[str]
    partition: str
    tasks_per_node: int | Literal["gpus"] | None
    cpus_per_task: int | None
    gpus_per_node: int | None
    launch: Literal["torchrun", "srun", "mpirun", "horovodrun", "ray", "deepspeed", "plain"] | None
    container: list[str]
    environment: dict[str, str]
    source: str
    verified: str | None
    disagrees: list[str]
    note: str


class SystemDetailsDict(TypedDict):
    """A system as JSON; `origin` is "built-in" or the file that describes it."""

    name: str
    title: str
    centre: str
    country: str
    aliases: list[str]
    description: str
    architecture: str
    login: str
    scheduler: SchedulerRulesDict
    default_partition: str
    partitions: dict[str, PartitionDict]
    file_systems: dict[str, FileSystemDict]
    stages: list[str]
    module_system: Literal["lmod", "environment-modules", "none"]
    software: dict[str, list[SoftwareSetDict]]
    launch: LaunchRulesDict
    verified: str | None
    sources: list[str]
    unverified: list[str]
    retired: str | None
    origin: str


@dataclass(frozen=True, repr=False)
class SystemDetails(Result):
    """A system, and where its description comes from: "built-in" or the path of its file."""

    system: System
    origin: str

    def to_dict(self) -> SystemDetailsDict:
        """Return the system as `fairmile system show --json` prints it."""
        return cast("SystemDetailsDict", {**self.system.model_dump(mode="json"), "origin": self.origin})

    def summary(self) -> str:
        """Return the name, the title, the scheduler and the partitions."""
        system = self.system
        partitions = ", ".join(system.partitions)
        return f"{system.name}, {system.title}; {system.scheduler.dialect}; partitions: {partitions}"
