"""What a system file says, and how far it can be trusted.

Verified means compared with the sources that the file names, or, in a draft of a probe, with what the machine's
own programs say; it does not mean that anything was tried there, which certification does. A value that no named
source carries is listed in `unverified`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from fairmile.base.documents import StrictDocument
from fairmile.base.lazy import lazy_pattern
from fairmile.base.units import parse_duration
from fairmile.base.words import did_you_mean

Steps: TypeAlias = tuple[str | int, ...]  # where a value stands in a system file


def _one_line(text: str) -> str:
    if text != text.strip() or not text.isprintable():
        raise ValueError(f"expected one line of printable text, found {text!r}")
    return text


def _shell_line(text: str) -> str:
    if not _one_line(text):
        raise ValueError("expected a shell command, found an empty text")
    return text


def _option(text: str) -> str:
    if not text.startswith("-") or not text.isprintable():
        raise ValueError(f"expected an option such as '--hint=nomultithread', found {text!r}")
    return text


def _variables(values: Mapping[str, str]) -> Mapping[str, str]:
    for name, text in values.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not an environment variable that can be set")
        if not text.isprintable():
            raise ValueError(f"{name!r} is set to {text!r}, expected one line of printable text")
    return values


def _dialect(name: str) -> str:
    """Return the name of a scheduler that is known here, or that an installed package brings along."""
    if name in DIALECTS:
        return name
    from importlib.metadata import entry_points  # only a rare file needs it, and it takes long to load

    if name not in entry_points(group="fairmile.schedulers").names:
        known = f"{', '.join(map(repr, DIALECTS[:-1]))} or {DIALECTS[-1]!r}"
        raise ValueError("; ".join(filter(None, [f"expected {known}, found {name!r}", did_you_mean(name, DIALECTS)])))
    return name


_VARIABLE = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
NAME = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # as `Name`, for what must be known before there is a file

DIALECTS = ("slurm", "lsf", "pbs", "flux", "shell", "practice")
Dialect = Annotated[str, AfterValidator(_dialect)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
# These become words of a header line or of a command, where nothing quotes them.
Word = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._:+@-]*)?$")]
Suffix = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$")]
Line = Annotated[str, AfterValidator(_one_line)]
ShellLine = Annotated[str, AfterValidator(_shell_line)]
Option = Annotated[str, AfterValidator(_option)]
Variables = Annotated[Mapping[str, str], AfterValidator(_variables)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]
Count = Annotated[int, Field(ge=1, strict=True)]
Gib = Annotated[float, Field(gt=0, allow_inf_nan=False)]


_STAGE = lazy_pattern(r"\bStages/(\d{4})\b")  # of Jülich
_LUMI_STAGE = lazy_pattern(r"\bLUMI/(\d\d)\.(\d\d)\b")
_OLD_MONTHS = 18
_DATED = lazy_pattern(r"\((\d{4}(?:-\d{2}){0,2})\)$")


class Contradictions(ValueError):
    """Values that fit one by one but not together: where each stands, and what is wrong with it."""

    def __init__(self, pairs: Sequence[tuple[Steps, str]]) -> None:
        super().__init__("; ".join(message for _, message in pairs))
        self.pairs = tuple(pairs)


class Gpu(StrictDocument):
    """The accelerators of one node."""

    count: Count
    model: Line
    memory_gib: Gib | None = None
    vendor: Literal["nvidia", "amd", "intel", "graphcore", "other"] = "nvidia"


class Partition(StrictDocument):
    """A kind of node and the limits of the queue that gives it out; None means not known."""

    nodes: Count | None = None  # number of nodes
    cores: Count | None = None  # physical cores of one node that a job can request
    threads_per_core: Count = 1
    sockets: Count | None = None
    processor: Line = ""
    memory_gib: Gib | None = None  # memory of one node in GiB
    gpu: Gpu | None = None
    interconnect: Line = ""
    max_time: Seconds | None = None  # time limit, such as `2-00:00:00`
    max_nodes: Count | None = None  # most nodes of one job
    min_nodes: Count = 1  # fewest nodes of one job
    qos: Word = ""  # QOS that jobs here must name
    named: bool = True  # whether job headers name the partition; if not, `options` choose the nodes
    options: tuple[Option, ...] = ()  # header options of every job here, such as `--constraint=gpu`
    purpose: Literal["batch", "devel", "interactive", "login"] = "batch"
    note: Line = ""


class SchedulerRules(StrictDocument):
    """How jobs are handed over here."""

    dialect: Dialect
    version: Line = ""
    gpu_option: Literal["gpus-per-node", "gres", "both", "none"] = "gpus-per-node"  # Slurm: how to request GPUs
    needs_account: bool = False  # whether every job must name an account
    needs_time: bool = False  # whether every job must name a time limit
    options: tuple[Option, ...] = ()  # header options of every job, such as `--hint=nomultithread`
    most_array_tasks: Count | None = None  # largest job array
    accounting: bool = True  # whether the scheduler keeps accounting
    source_profile: bool = False  # whether scripts must read /etc/profile to get `module`


class FileSystem(StrictDocument):
    """A place for files."""

    path: Line  # may contain variables of the system, such as `$SCRATCH`
    purpose: Literal["home", "project", "scratch", "archive", "node"]
    kind: Line = ""  # such as lustre, gpfs or nfs
    purge: Line = ""  # in words, such as `files not read for 90 days are removed`
    capacity: Line = ""


class LaunchRules(StrictDocument):
    """How programs are started inside a job."""

    launcher: Literal["srun", "mpirun", "mpiexec", "jsrun", "flux", "none"] = "none"
    mpi: Word = ""  # value of `srun --mpi`
    binding: Line = ""  # options of the launcher, such as `--cpu-bind=none`
    rendezvous_suffix: Suffix = ""  # appended to the first node's name to reach its fast network, such as `i` at JSC
    environment: Variables = {}


class SoftwareSet(StrictDocument):
    """What a framework needs here: exact shell lines, and how its job is cut."""

    variant: Name | Literal[""] = ""  # what tells it from other sets of the framework; empty: container or modules
    lines: tuple[ShellLine, ...] = ()  # module lines, exactly as in a script
    partitions: tuple[Name, ...] = ()  # partitions that it works on; empty: all
    partition: str = ""  # default partition of its jobs
    tasks_per_node: Count | Literal["gpus"] | None = None
    cpus_per_task: Count | None = None
    gpus_per_node: Annotated[int, Field(ge=0, strict=True)] | None = None
    launch: Literal["torchrun", "srun", "mpirun", "horovodrun", "ray", "deepspeed", "plain"] | None = None
    container: tuple[Line, ...] = ()  # command before the program, such as `[singularity, run, IMAGE]`
    environment: Variables = {}
    source: Line = ""
    verified: date | None = None
    disagrees: tuple[Line, ...] = ()  # where published rules differ, one sentence each
    note: Line = ""

    @property
    def dated(self) -> str:
        """When the lines were written, such as `2026-07`: the date of the source, else of the stage; "" unknown."""
        match = _DATED.search(self.source)
        if match is not None:
            return match[1]
        stages = [f"20{year}-{month}" for year, month in _LUMI_STAGE.findall(" ".join(self.lines))]
        return max([*stages, *_STAGE.findall(" ".join(self.lines))], default="")

    def is_old(self, today: date) -> bool:
        """Tell whether the lines are more than 18 months old: centres replace their modules about once a year."""
        if not self.dated:
            return False
        year, month = map(int, (self.dated + "-12")[:7].split("-"))
        return 12 * (today.year - year) + today.month - month > _OLD_MONTHS

    @property
    def age(self) -> str:
        """Such as "old, of 2022" today; "" for lines that are not old, and for none."""
        return f"old, of {self.dated}" if self.lines and self.is_old(date.today()) else ""


class System(StrictDocument):
    """A machine."""

    name: Name
    title: Line
    centre: Line = ""
    country: Line = ""
    aliases: tuple[Name, ...] = ()
    description: str = ""
    architecture: Line = "x86_64"
    login: Word = ""  # login host
    scheduler: SchedulerRules
    default_partition: str = ""  # partition of jobs that name none
    partitions: Mapping[Name, Partition] = Field(min_length=1)
    file_systems: Mapping[Name, FileSystem] = {}
    stages: tuple[Line, ...] = ()  # module stages, newest last
    module_system: Literal["lmod", "environment-modules", "none"] = "lmod"
    # One set per framework, or a list; the first that fits the partition applies.
    software: Mapping[Name, tuple[SoftwareSet, ...]] = {}
    launch: LaunchRules = LaunchRules()
    verified: date | None = None  # date of the last comparison with the sources
    sources: tuple[Line, ...] = ()  # each may end with its date: (2026-07-27), (2026-07) or (2026)
    # Values that no source states, such as `partitions.gpu.memory_gib`; `*` stands for every name.
    unverified: tuple[Line, ...] = ()
    retired: date | None = None  # date on which the system went out of service

    @field_validator("software", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: sets if isinstance(sets, (list, tuple)) else [sets] for name, sets in value.items()}

    @model_validator(mode="after")
    def _names_lead_somewhere(self) -> System:
        contradictions = [*self._lost_names(), *self._lost_limits()]
        if contradictions:
            raise Contradictions(contradictions)
        return self

    def _lost_names(self) -> Iterator[tuple[Steps, str]]:
        known = ", ".join(self.partitions)
        if self.default_partition and self.default_partition not in self.partitions:
            yield ("default_partition",), f"{self.default_partition!r} is not one of the partitions: {known}"
        for name, sets in self.software.items():
            for place, each in enumerate(sets):
                here = ("software", name, place)
                if each.variant and each.variant in [other.variant for other in sets[:place]]:
                    yield (*here, "variant"), f"{each.variant!r} is the variant of another set of {name}"
                named = [((*here, "partitions", number), one) for number, one in enumerate(each.partitions)]
                for path, partition in [*named, ((*here, "partition"), each.partition)]:
                    if partition and partition not in self.partitions:
                        yield path, f"{partition!r} is not one of the partitions: {known}"
                if each.partition and each.partitions and each.partition not in each.partitions:
                    yield (*here, "partition"), f"{each.partition!r} is not among the partitions of this set"

    def _lost_limits(self) -> Iterator[tuple[Steps, str]]:
        for name, each in self.partitions.items():
            if each.max_nodes is not None and each.min_nodes > each.max_nodes:
                yield ("partitions", name, "min_nodes"), f"{each.min_nodes} is more than max_nodes, {each.max_nodes}"
            if each.nodes is not None and each.max_nodes is not None and each.max_nodes > each.nodes:
                yield (
                    ("partitions", name, "max_nodes"),
                    f"{each.max_nodes} is more than there are, {each.nodes}",
                )

    def variants(self, framework: str) -> dict[str, SoftwareSet]:
        """Return the software sets of a framework by variant: as the file calls them, else `container` or `modules`."""
        sets = self.software[framework]
        named = {each.variant for each in sets}
        variants: dict[str, SoftwareSet] = {}
        for each in sets:
            usual = "container" if each.container else "modules"
            numbered = (f"{usual}-{number}" if number > 1 else usual for number in range(1, len(sets) + 2))
            free = (name for name in numbered if name not in variants and name not in named)
            variants[each.variant or next(free)] = each
        return variants

    @property
    def software_words(self) -> list[str]:
        """The words that choose software here: each framework, and behind a colon each of several variants."""
        words = []
        for name, sets in self.software.items():
            words += [name, *(f"{name}:{each}" for each in self.variants(name) if len(sets) > 1)]
        return words

    @property
    def newest_source(self) -> str:
        """The date of the newest source that has one, as it is given; "" where none has. Software has its own."""
        return max((match[1] for each in self.sources if (match := _DATED.search(each))), default="")

    @property
    def compared(self) -> str:
        """When this description was compared with its sources, and how old these are: not that it works."""
        if self.verified is None:
            return "never compared with a source"
        age = f"newest source: {self.newest_source}" if self.newest_source else "its sources have no dates"
        return f"compared with its sources on {self.verified}; {age}"

    def is_unverified(self, path: str) -> bool:
        """Tell whether no source carries the value at a path such as `partitions.gpu.nodes`, or all that holds it."""
        return any(covers(doubt, path) for doubt in self.unverified)


def covers(doubt: str, path: str) -> bool:
    """Tell whether a path of `unverified`, where * is any one name, names the value at `path` or what holds it."""
    wanted, names = doubt.split("."), path.split(".")
    if len(names) < len(wanted):
        return False
    last = names[len(wanted) - 1]
    holders = [last, *(last[:place] for place, letter in enumerate(last) if letter == "[")]
    return all(map(_fits, wanted[:-1], names)) and any(_fits(wanted[-1], each) for each in holders)


def _fits(wanted: str, name: str) -> bool:
    if "*" not in wanted:
        return wanted == name
    pattern = re.sub(r"[\[?]", r"[\g<0>]", wanted).replace("*", "?*")
    return fnmatchcase(name, pattern)
