"""What a probe found on a machine; what could not be found out is None, empty, or says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date


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


@dataclass(frozen=True)
class ProbeResult:
    """All that a probe found out about a machine."""

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
