"""What a probe found on a machine; what could not be found out is None, empty, or says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from datetime import date
from typing import Any, TypedDict, cast

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result


class ProcessorDict(TypedDict):
    """The processors of one node."""

    model: str
    sockets: int | None
    cores: int | None
    threads_per_core: int


class AcceleratorDict(TypedDict):
    """One accelerator that its driver knows."""

    model: str
    vendor: str
    memory_gib: float | None
    driver: str


class NodesDict(TypedDict):
    """Nodes of one kind in a partition."""

    count: int
    cpus: int | None
    sockets: int | None
    cores: int | None
    threads_per_core: int
    memory_gib: float | None
    gpus: int
    gpu_model: str


class QueueDict(TypedDict):
    """A partition as its scheduler describes it."""

    name: str
    kinds: list[NodesDict]
    max_time_s: float | None
    min_nodes: int
    max_nodes: int | None
    default: bool
    up: bool


class SlurmDict(TypedDict):
    """What a running Slurm reports."""

    version: str
    cluster: str
    accounting: bool
    most_array_tasks: int | None
    gpu_option: str
    architectures: list[str]


class StoragePlaceDict(TypedDict):
    """A folder for files, and its file system."""

    name: str
    path: str
    kind: str
    size_bytes: int | None
    free_bytes: int | None
    problem: str


class NetworkDict(TypedDict):
    """A fast network that the machine is connected to."""

    kind: str
    device: str
    rate: str


class ProgramDict(TypedDict):
    """A program: its version, or why it failed."""

    path: str
    version: str
    problem: str


class ModulesDict(TypedDict):
    """The module system and its modules."""

    kind: str
    version: str
    available: list[str]
    reachable: list[str]
    stages: list[str]
    problem: str


class ProbeResultDict(TypedDict):
    """What a probe found on a machine, as JSON."""

    host: str
    day: str
    architecture: str
    login: str
    processor: ProcessorDict
    memory_gib: float | None
    accelerators: list[AcceleratorDict]
    scheduler: str
    slurm: SlurmDict | None
    queues: list[QueueDict]
    modules: ModulesDict
    places: list[StoragePlaceDict]
    networks: list[NetworkDict]
    programs: dict[str, ProgramDict]
    python: str
    components: dict[str, str]


@dataclass(frozen=True)
class Processor:
    """The processors of one node."""

    model: str = ""
    sockets: int | None = None
    cores: int | None = None  # of the node, physical
    threads_per_core: int = 1


@dataclass(frozen=True)
class Accelerator:
    """One accelerator that its driver knows."""

    model: str
    vendor: str
    memory_gib: float | None = None
    driver: str = ""


@dataclass(frozen=True)
class Nodes:
    """Nodes of one kind in a partition."""

    count: int
    cpus: int | None = None
    sockets: int | None = None
    cores: int | None = None  # of one node, physical
    threads_per_core: int = 1
    memory_gib: float | None = None
    gpus: int = 0
    gpu_model: str = ""


@dataclass(frozen=True)
class Queue:
    """A partition as its scheduler describes it; the first kind of nodes is the most frequent."""

    name: str
    kinds: tuple[Nodes, ...]
    max_time_s: float | None = None  # None: no limit
    min_nodes: int = 1
    max_nodes: int | None = None
    default: bool = False
    up: bool = True

    @property
    def nodes(self) -> int:
        return sum(kind.count for kind in self.kinds)


@dataclass(frozen=True)
class Slurm:
    """What a running Slurm says of itself."""

    version: str = ""
    cluster: str = ""
    accounting: bool = True
    most_array_tasks: int | None = None
    gpu_option: str = "none"
    architectures: tuple[str, ...] = ()  # of its nodes, the most frequent first


@dataclass(frozen=True)
class StoragePlace:
    """A folder for files, and the file system that it lies on."""

    name: str  # the variable or path that led there, such as `$SCRATCH`
    path: str
    kind: str = ""
    size_bytes: int | None = None
    free_bytes: int | None = None
    problem: str = ""  # why it cannot be used, when it cannot


@dataclass(frozen=True)
class Network:
    """A fast network that this machine is connected to."""

    kind: str
    device: str
    rate: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [self.kind, self.rate]))


@dataclass(frozen=True)
class Program:
    """A program: its version when it answered, its complaint when it failed."""

    path: str
    version: str = ""
    problem: str = ""

    def __str__(self) -> str:
        return f"failed: {self.problem}" if self.problem else self.version or "there"


@dataclass(frozen=True)
class Modules:
    """The module system and what it offers; without one, `kind` is "none"."""

    kind: str = "none"
    version: str = ""
    available: tuple[str, ...] = ()  # what can be loaded now
    reachable: tuple[str, ...] = ()  # what can be loaded once other modules are, where the module system tells
    stages: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, repr=False)
class ProbeResult(Result):
    """All that a probe found on a machine."""

    host: str
    day: date
    architecture: str = ""
    login: str = ""  # the host that ssh was told, when it was another machine
    processor: Processor = Processor()
    memory_gib: float | None = None
    accelerators: tuple[Accelerator, ...] = ()
    scheduler: str = "shell"  # whose programs answer
    slurm: Slurm | None = None
    queues: tuple[Queue, ...] = ()
    modules: Modules = Modules()
    places: tuple[StoragePlace, ...] = ()
    networks: tuple[Network, ...] = ()
    programs: Mapping[str, Program] = field(default_factory=dict)  # those that are there
    python: str = ""
    components: Mapping[str, str] = field(default_factory=dict)  # of frameworks, with versions, in the default python3

    def to_dict(self) -> ProbeResultDict:
        """Return everything as data."""
        return cast("ProbeResultDict", _plain(asdict(self)))

    def summary(self) -> str:
        """Return the host, its processor, memory, accelerators and scheduler."""
        cores = f"{self.processor.cores} cores" if self.processor.cores else ""
        memory = f"{self.memory_gib:g} GiB" if self.memory_gib else ""
        gpus = ", ".join(dict.fromkeys(each.model for each in self.accelerators))
        number = f"{len(self.accelerators)} × {gpus}" if gpus else ""
        return ", ".join(filter(None, [self.host, cores, memory, number, self.scheduler]))


def _plain(value: Any) -> Any:
    """Return data with its dates as texts and its tuples as lists."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, date) else value
