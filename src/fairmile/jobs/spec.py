"""What a job is, in one vocabulary for every scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from fairmile.base.lazy import lazy_pattern
from fairmile.base.specifications import Before, Limits, Specification, check
from fairmile.base.units import parse_duration
from fairmile.jobs.launch import Launch

Seconds = Annotated[float, Before(parse_duration)]
Count = Annotated[int, Limits(ge=1)]
# These become words of a header line, where no scheduler offers quoting.
Word = Annotated[str, Limits(pattern=r"^[A-Za-z0-9_.:,+=/@%\[\]&|*()!-]*$")]
_VARIABLE = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = lazy_pattern(r"[^/\0\n][^\0\n]*")


class Resources(Specification):
    """What a job needs; None leaves it to the system's rules."""

    nodes: Count | None = None
    tasks_per_node: Count | None = None
    cpus_per_task: Count | None = None
    gpus_per_node: Annotated[int, Limits(ge=0)] | None = None
    memory_gib: Annotated[float, Limits(gt=0)] | None = None  # of one node
    time_s: Annotated[Seconds, Limits(gt=0)] | None = None
    partition: Word = ""
    account: Word = ""
    qos: Word = ""
    constraint: Word = ""
    reservation: Word = ""
    exclusive: bool | None = None
    options: tuple[str, ...] = ()  # further options of the scheduler, taken as they are

    @check("options")
    @classmethod
    def _single_lines(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for option in value:
            if not option.startswith("-") or not option.isprintable():
                raise ValueError(f"expected an option such as '--hint=nomultithread', found {option!r}")
        return value


class Array(Specification):
    """The same job many times; each finds its number in FAIRMILE_ARRAY_INDEX, counted from 0."""

    count: Annotated[int, Limits(ge=1, le=1_000_000)]
    at_once: Count | None = None


class After(Specification):
    """Another job that must have come so far; `job` is its id of ours."""

    job: str
    condition: Literal["ok", "failed", "any"] = "ok"


class Nearby(Specification):
    """A file that an earlier job left in its folder on the same system; `job` is its id of ours."""

    job: str
    path: str
    sha256: str


class Signal(Specification):
    """A signal that the job gets some time before its limit, so that it can save its state."""

    name: Literal["USR1", "USR2", "TERM", "INT", "HUP"] = "USR1"
    before_s: Seconds = 120.0


class Beside(Specification):
    """Another program of the same MPI job, on nodes of its own: with it, a job is a heterogeneous one."""

    argv: Annotated[tuple[str, ...], Limits(min_length=1)]
    resources: Resources = Resources()


class JobSpec(Specification):
    """A job: its program, resources and environment."""

    earlier_names: ClassVar[Mapping[str, str]] = {"recorder": "around"}
    argv: Annotated[tuple[str, ...], Limits(min_length=1)]
    name: Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "job"
    env: Mapping[str, str] = {}
    resources: Resources = Resources()
    beside: Beside | None = None
    software: tuple[str, ...] = ()  # software sets of the system: `ddp`, `horovod`
    # How `argv` is started: None follows the software set and the system.
    launch: Launch | None = None
    preamble: tuple[str, ...] = ()  # shell lines of an environment, before the program starts
    wrap: tuple[str, ...] = ()  # what stands before the program: the command of a container
    # The command before the launcher, once for the whole job, that records it.
    recorder: tuple[str, ...] = ()
    folder: str = ""  # where it runs; empty: a folder of its own
    shows: str = ""  # a folder here whose contents that folder shows; what it writes stays in its own
    inputs: Mapping[str, str] = {}  # name in the job's folder → file or folder here
    nearby: Mapping[str, Nearby] = {}  # of inputs, what need not be sent where a remote system still has it
    texts: Mapping[str, str] = {}  # name in the job's folder → what stands in it
    outputs: tuple[str, ...] = ()  # names in the job's folder that are brought back
    array: Array | None = None
    after: tuple[After, ...] = ()
    signal: Signal | None = None
    requeue: bool = True  # whether the scheduler may start it again after a lost node or a preemption
    retries: Annotated[int, Limits(ge=0, le=100)] = 0  # further submissions after a failure that may pass
    key: str = ""  # the same key never becomes two jobs
    parts: Count | None = None  # how many commands are packed into it, each with an `ended` file of its own

    @check("argv")
    @classmethod
    def _can_be_run(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value[0] or any("\0" in word for word in value):
            raise ValueError("expected a program and its arguments, without NUL characters")
        return value

    @check("env")
    @classmethod
    def _are_variables(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if not _VARIABLE.fullmatch(name) or "\0" in text:
                raise ValueError(f"{name!r} is not an environment variable that can be set")
        return value

    @check("inputs", "texts")
    @classmethod
    def _stay_inside(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name in value:
            _checked_name(name)
        return value

    @check("outputs")
    @classmethod
    def _outputs_stay_inside(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            _checked_name(name)
        return value


def _checked_name(name: str) -> None:
    if not _FILE.fullmatch(name) or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a name inside the job's folder")
