"""Records a program as it is: torch profiler traces of all its ranks, meter spans and watch samples under one clock."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypedDict

from fairmile.base.errors import Conflict, UsageError
from fairmile.base.files import write_atomic, write_failure
from fairmile.base.html_tables import rows_table
from fairmile.base.native import build_library
from fairmile.base.plain import plain
from fairmile.base.progress import Watch, working
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_duration
from fairmile.meter import include
from fairmile.meter.lines import FILE, FILE_VARIABLE, HOST_VARIABLE, event_files
from fairmile.meter.meter import Meter
from fairmile.meter.watch import watch_command
from fairmile.runs.record.layout import RECORDING
from fairmile.traces.counters import FILE as COUNTERS
from fairmile.traces.counters import counting_command, read_counts

VARIABLE = "FAIRMILE_TRACE"
_HOOK = Path(__file__).parent / "hook"
_MPI_CALLS = _HOOK / "mpi_calls.c"
# Programs that start the ranks of another one.
_MPI_STARTERS = frozenset(
    {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "jsrun", "aprun", "flux"}
)
_PROCESSES = "processes"
_LIBRARY = "mpi_calls.so"
_HOROVOD = "horovod.json"
_FLIGHT = "nccl_trace_rank_"
_FLIGHT_ENTRIES = 20_000
_OF_WINDOW = "file", "by", "first_step", "last_step", "reason", "clocks", "device"
_FORMAT = 1


class RecordSettingsDict(TypedDict):
    """`RecordSettings` as JSON holds it."""

    skip: int
    steps: int
    every: int | None
    after_s: float
    seconds: float
    with_stack: bool
    memory: bool
    flight_recorder: bool
    counters: bool


@dataclass(frozen=True)
class RecordSettings:
    """What is recorded: after `skip` steps of the optimizer so many `steps`, once, or again `every` so many steps.

    A program without an optimizer is recorded for `seconds`, `after_s` seconds behind its import of torch. With
    `counters`, what is recorded is the bytes that each kernel moves instead of times (see `fairmile.traces.counters`).
    """

    skip: int = 5
    steps: int = 10
    every: int | None = None
    after_s: float = 5.0
    seconds: float = 1.0  # a tight loop of small operators leaves 100 MB in that time
    with_stack: bool = False
    memory: bool = False
    flight_recorder: bool = False
    counters: bool = False

    def __post_init__(self) -> None:
        for name, least in (("skip", 1), ("steps", 1), ("after_s", 0), ("seconds", 0.01)):
            if not least <= getattr(self, name) < 1e9:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected a number of at least {least}")
        if self.every is not None and self.every < self.steps + 2:
            raise UsageError(
                f"cannot record {self.steps} steps every {self.every} steps",
                hint=f"use --every {self.steps + 2} or more",
            )


class TracedDict(TypedDict):
    """`Traced` as JSON holds it."""

    host: str
    pid: int
    rank: int | None
    world: int | None
    file: str | None
    by: str | None
    first_step: int | None
    last_step: int | None
    reason: str
    clocks: list[dict[str, Any]]
    device: str | None


@dataclass(frozen=True)
class Traced:
    """A window of one process: its trace, or the reason why there is none."""

    host: str
    pid: int
    rank: int | None
    world: int | None
    file: str | None  # in the folder of the recording
    by: str | None = None  # "steps" or "seconds"
    first_step: int | None = None
    last_step: int | None = None
    reason: str = ""
    clocks: Sequence[Mapping[str, Any]] = ()
    device: str | None = None  # whose counters were read


class RecordingDict(TypedDict):
    """What recording.json holds."""

    recording: int  # version of the format
    argv: list[str]
    exit_code: int
    elapsed_s: float
    processes: list[TracedDict]
    events: list[str]
    notes: list[str]
    host: str
    began_ns: int
    ended_ns: int
    settings: RecordSettingsDict
    horovod_timeline: str | None
    flight_recorder: list[str]
    counters: str | None


class RecordedDict(RecordingDict):
    """`Recorded` as JSON holds it."""

    folder: str


class RecordingPlanDict(RecordSettingsDict):
    """`RecordingPlan` as JSON holds it."""

    command: list[str]
    folder: str


@dataclass(frozen=True, repr=False)
class RecordingPlan(Result):
    """What `record` would do."""

    command: tuple[str, ...]
    folder: Path
    settings: RecordSettings

    def to_dict(self) -> RecordingPlanDict:
        settings: RecordSettingsDict = plain(self.settings)
        return {"command": list(self.command), "folder": str(self.folder), **settings}

    def summary(self) -> str:
        return f"{self.settings.steps:,} steps of `{shlex.join(self.command)}` into {self.folder}"


@dataclass(frozen=True, repr=False)
class Recorded(Result):
    """A folder with all that a program left; `exit_code` is the program's, or 128 and the signal that ended it."""

    folder: Path
    argv: tuple[str, ...]
    exit_code: int
    elapsed_s: float
    traced: tuple[Traced, ...]
    events: tuple[str, ...]
    notes: tuple[str, ...] = ()
    host: str = ""
    began_ns: int = 0
    ended_ns: int = 0
    settings: RecordSettings = field(default_factory=RecordSettings)
    horovod_timeline: str | None = None
    flight_recorder: tuple[str, ...] = ()
    counters: str | None = None

    def document(self) -> RecordingDict:
        """Return what recording.json holds."""
        return {
            "recording": _FORMAT,
            "argv": list(self.argv),
            "exit_code": self.exit_code,
            "elapsed_s": self.elapsed_s,
            "processes": [plain(each) for each in self.traced],
            "events": list(self.events),
            "notes": list(self.notes),
            "host": self.host,
            "began_ns": self.began_ns,
            "ended_ns": self.ended_ns,
            "settings": plain(self.settings),
            "horovod_timeline": self.horovod_timeline,
            "flight_recorder": list(self.flight_recorder),
            "counters": self.counters,
        }

    def to_dict(self) -> RecordedDict:
        return {"folder": str(self.folder), **self.document()}

    @property
    def content(self) -> str:
        """What was recorded, in words."""
        traces = sum(each.file is not None for each in self.traced)
        if traces:
            return f"{traces:,} trace{'s' * (traces != 1)}"
        return "events, but no profiler trace," if self.events else "nothing"

    def summary(self) -> str:
        ended = f"exit code {self.exit_code} after {format_duration(self.elapsed_s)}"
        return f"{self.content} in {self.folder}, {ended}"

    def _repr_html_(self) -> str:
        hosts = ("host",) if len({each.host for each in self.traced}) > 1 else ()
        rows = [
            (
                each.rank,
                *([each.host] if hosts else []),
                "" if each.first_step is None else f"{each.first_step} to {each.last_step}",
                each.file,
                each.reason,
            )
            for each in self.traced
        ]
        return rows_table(["rank", *hosts, "steps", "trace", "reason"], rows, note=f"{self.summary()}.")


def plan_recording(argv: Sequence[str], folder: str | Path, *, settings: RecordSettings | None = None) -> RecordingPlan:
    """Return what `record` would do with the same arguments; run nothing."""
    return RecordingPlan(tuple(argv), Path(folder), settings or RecordSettings())


def record(
    argv: Sequence[str],
    folder: Path,
    *,
    settings: RecordSettings | None = None,
    watch: bool = True,
    period_s: float = 1.0,
    progress: bool | Watch = True,
) -> Recorded:
    """Run an unmodified program and write its traces, spans and samples to a new folder.

    Its input, output, signals and exit code are its own. Nodes other than this one need the folder, too. A notebook
    shows the progress (see `fm.fetch`); a terminal shows the output of the program.
    """
    if not argv:
        raise UsageError("the command to record is empty")
    folder = Path(os.path.abspath(folder))
    settings = settings or RecordSettings()
    command = counting_command(argv, folder / COUNTERS, os.environ) if settings.counters else argv
    _make(folder)
    outer = os.environ.get(FILE_VARIABLE, "")
    began_ns = time.time_ns()
    with working(progress, shlex.join(argv), "recording", has_own_output=True):
        watched = watch_command(
            command,
            env=variables(folder, settings, mpi=any(os.path.basename(word) in _MPI_STARTERS for word in argv)),
            wanted=None if watch else [],
            file=folder / FILE if watch else None,
            period_s=period_s,
        )
    code = watched.exit_code if watched.exit_code is not None else 1
    if outer:
        _copy_events(Path(outer), folder)
    traced = tuple(_traced(folder))
    horovod = folder / _HOROVOD
    recorded = Recorded(
        folder,
        tuple(argv),
        code if code >= 0 else 128 - code,
        watched.elapsed_s,
        traced,
        tuple(file.name for file in event_files(folder)),
        tuple(_notes(traced, mpi=(folder / _PROCESSES / _LIBRARY).exists())) + _counting_notes(folder, settings),
        os.uname().nodename,
        began_ns,
        time.time_ns(),
        settings,
        _HOROVOD if horovod.exists() and horovod.stat().st_size else None,
        tuple(sorted(each.name for each in folder.glob(f"{_FLIGHT}*"))),
        COUNTERS if (folder / COUNTERS).exists() else None,
    )
    write_atomic(folder / RECORDING, json.dumps(recorded.document(), indent=1) + "\n")
    shutil.rmtree(folder / _PROCESSES, ignore_errors=True)
    return recorded


def variables(folder: Path, settings: RecordSettings, *, mpi: bool = False) -> dict[str, str]:
    """Return what the environment of a program needs for its ranks to be recorded, here or in a batch job.

    With `mpi`, the MPI calls of its ranks are, too, where there is a C compiler.
    """
    here = os.environ
    options = {"with_stack": settings.with_stack, "profile_memory": settings.memory}
    names = ("skip", "steps", "every", "after_s", "seconds")
    flight = str(folder / _FLIGHT) if settings.flight_recorder else ""
    hook_settings = {"folder": str(folder), "options": options, "flight": flight, "counters": settings.counters}
    hook_settings |= {name: getattr(settings, name) for name in names}
    added = {
        VARIABLE: json.dumps(hook_settings),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_HOOK), here.get("PYTHONPATH", "")])),
    }
    if not here.get(FILE_VARIABLE):  # else the program is part of a run, which must not lose what it logs
        added |= {FILE_VARIABLE: str(folder / FILE), HOST_VARIABLE: Meter().host}
    if mpi and (library := _mpi_library(folder)):
        added["LD_PRELOAD"] = os.pathsep.join(filter(None, [str(library), here.get("LD_PRELOAD", "")]))
    # The profiler tells each start and stop on stderr, which is the program's.
    asked = {"HOROVOD_TIMELINE": str(folder / _HOROVOD), "KINETO_LOG_LEVEL": "6"}
    if settings.flight_recorder:
        for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):  # as newer and older torch call it
            asked[name] = str(_FLIGHT_ENTRIES)
        asked["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
            asked[name] = flight
    added |= {name: value for name, value in asked.items() if name not in here}
    if "OMPI_MCA_mca_base_env_list" not in here:  # Open MPI hands nothing else to other nodes
        added["OMPI_MCA_mca_base_env_list"] = ";".join(sorted(added))
    return added


def _mpi_library(folder: Path) -> Path | None:
    """Build what times MPI calls, where all nodes see it; None where that cannot be."""
    place = folder / _PROCESSES
    try:
        place.mkdir(exist_ok=True)
        flags = ("-fvisibility=hidden", f"-I{include()}")
        library = build_library(_MPI_CALLS.read_bytes(), place, os.environ, flags)
        if not library:
            return None
        file = place / _LIBRARY
        file.write_bytes(library)
    except (OSError, subprocess.SubprocessError):
        return None
    return file


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise write_failure(str(folder), error) from error
    if not is_empty:
        raise Conflict(f"{folder} is not empty", hint="name a new folder with -o")


def _copy_events(outer: Path, folder: Path) -> None:
    """Copy the log of the run around us, which has what the program itself said."""
    for file in event_files(outer.parent):
        shutil.copyfile(file, folder / f"{FILE.removesuffix('.jsonl')}.run.{file.name.removeprefix('events.')}")


def _traced(folder: Path) -> list[Traced]:
    traced = []
    for file in sorted((folder / _PROCESSES).glob("*.json")):
        try:
            document = json.loads(file.read_bytes())
            traced += _windows(document, folder)
        except (ValueError, KeyError, TypeError):  # it died while it wrote, which it never does in place
            continue
    return sorted(traced, key=lambda each: (each.rank is None, each.rank or 0, each.host, each.pid))


def _windows(document: Mapping[str, Any], folder: Path) -> list[Traced]:
    who = {name: document[name] for name in ("host", "pid", "rank", "world")}
    windows = [
        Traced(**who, **{name: each[name] for name in _OF_WINDOW})
        for each in document["windows"]
        if (folder / each["file"]).exists()
    ]
    if document["state"] == "recording":
        windows.append(Traced(**who, file=None, reason="killed before its trace was written"))
    elif document["state"] == "begun":
        windows.append(Traced(**who, file=None, reason="killed or ended by os._exit before recording began"))
    elif not windows:
        windows.append(Traced(**who, file=None, reason=document["reason"] or "its trace is missing"))
    return windows


def _counting_notes(folder: Path, settings: RecordSettings) -> tuple[str, ...]:
    reason = read_counts(folder / COUNTERS)[1] if settings.counters else ""
    return (reason,) if reason else ()


def _notes(traced: Sequence[Traced], *, mpi: bool) -> list[str]:
    if not traced:
        seen = "calls of MPI, spans and samples" if mpi else "spans and samples"
        return [f"no process imported torch, or it ignored PYTHONPATH: only {seen} were recorded"]
    without = [each for each in traced if each.file is None]
    notes = [
        f"{'' if each.rank is None else f'rank {each.rank}, '}process {each.pid} on {each.host}: {each.reason}"
        for each in without
    ]
    ranks = {each.rank for each in traced if each.file is not None and each.rank is not None}
    world = max((each.world or 0 for each in traced), default=0)
    missing = [str(rank) for rank in range(world) if rank not in ranks]
    if ranks and missing:
        notes.append(f"no trace of rank {', '.join(missing)} of {world}")
    return notes
