"""Reads the traces of all ranks, whatever wrote them, into one table on one clock."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.cores import usable_cores
from fairmile.base.errors import FairmileError, Integrity, NotFound, Unsupported, UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.traces.clocks import align_clocks
from fairmile.traces.events import EventKind, EventTable, RankGroup, concat
from fairmile.traces.readers.naming import number_at_end, rank_in
from fairmile.traces.readers.opening import head_of
from fairmile.traces.sequences import number_collectives

FORMATS: Registry[Callable[..., EventTable]] = Registry(
    "trace format",
    {
        "kineto": Plugin("fairmile.traces.readers.kineto:read", "traces", "PyTorch profiler, JSON"),
        "horovod": Plugin("fairmile.traces.readers.horovod:read", "traces", "Horovod timeline"),
        "chrome": Plugin("fairmile.traces.readers.chrome:read", "traces", "Chrome and Perfetto JSON"),
        "otf2": Plugin("fairmile.traces.readers.otf2:read", "traces", "OTF2 archive (Score-P, TAU)"),
        "xplane": Plugin("fairmile.traces.readers.xplane:read", None, "TensorFlow and JAX profiler, *.xplane.pb"),
        "flight": Plugin("fairmile.traces.readers.flight:read", None, "NCCL flight recorder dump"),
        "meter": Plugin("fairmile.traces.readers.meter:read", None, "events.jsonl of a run"),
    },
    entry_points="fairmile.trace_formats",
)
# One process starts in 0.2 s of CPU time and hands its events back: it must have a second of reading to be worth it.
_WORTH_BYTES = 1 << 30
_ONE_OF = 8  # so many profiles is read with the inputs of its operators: ranks do much the same, and it takes longer
_Job = tuple[str, tuple[Path, ...]]
_KINETO = re.compile(rb'"(?:deviceProperties|distributedInfo|baseTimeNanoseconds|trace_id)"|"cat":\s*"cpu_op"')
_FLIGHT = re.compile(rb'"(?:pg_config|collective_seq_id|profiling_name|comm_lib_version|nccl_version)"')
_FLIGHT_KEY = re.compile(rb"pg_config|collective_seq_id|profiling_name")  # a pickle holds texts as they are
_FLIGHT_NAME = re.compile(r"(?i)trace|flight|nccl|fr_|rank")
_TRACE_NAME = re.compile(r"(?i)\.(?:json|jsonl|json\.gz|pickle|pkl)$")
_MOST_NAMED = 5
_HOROVOD = re.compile(rb'"NEGOTIATE_[A-Z]+"|"CYCLE_START"')


def read_traces(
    paths: str | Path | Iterable[str | Path], *, format: str | None = None, workers: int | None = None
) -> EventTable:
    """Return the events of all traces: files, folders or patterns; ranks aligned in time, collectives numbered.

    `notes` of the table say what is missing, broken or was mended. Memory: about 75 bytes an event, twice that while
    one file is read, whatever its size (1 GB of a PyTorch profile: 380 MB); Chrome's general format: 1 kB an event.
    """
    jobs, passed_over = _jobs(paths, format)
    tables, notes = _read_all(jobs, _workers(jobs, workers))
    notes += passed_over
    _name_components(tables)
    tables, doubled = _without_repeats(tables)
    tables, more = _one_file_a_rank(tables)
    more += [*doubled, *_place_beside_others(tables)]
    table = concat(tables, consume=True)
    table.notes = [*notes, *table.notes, *more]
    if not len(table):
        raise Integrity("the traces have no events", hint="; ".join(table.notes) or None)
    _name_world(table)
    table.notes += number_collectives(table)
    table = align_clocks(table)
    table.notes += [*_missing(table), *_steps(table)]
    return table


def format_of(file: Path) -> str | None:
    """Return the format of a trace by its content, None where it is none that we read."""
    if file.is_dir():
        return "otf2" if any(file.glob("*.otf2")) else None
    if file.suffix == ".otf2":
        return "otf2"
    if file.name.endswith((".xplane.pb", ".xplane.pb.gz")):
        return "xplane"
    head = head_of(file).lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"\x80"):  # a pickle, which anything may be
        return "flight" if _FLIGHT_NAME.search(file.name) or _FLIGHT_KEY.search(head) else None
    if file.suffix == ".jsonl" and b'"writer"' in head:
        return "meter"
    if not head.startswith((b"{", b"[")):
        return None
    if _FLIGHT.search(head) and b'"traceEvents"' not in head:
        return "flight"
    if _HOROVOD.search(head):
        return "horovod"
    if b'"traceEvents"' in head or (head.startswith(b"[") and b'"ph"' in head):
        return "kineto" if head.startswith(b"{") and _KINETO.search(head) else "chrome"
    return None


def _jobs(paths: str | Path | Iterable[str | Path], format: str | None) -> tuple[list[_Job], list[str]]:
    """Return format and files of each trace, and a sentence on files that are called like traces and are none."""
    if format is not None and format not in FORMATS:
        FORMATS[format]  # says which formats there are
    jobs: dict[Path, str] = {}
    unknown: list[Path] = []
    broken: list[Path] = []
    for file, was_named in _files([paths] if isinstance(paths, str | Path) else paths):
        kind = format if format is not None and was_named else format_of(file)
        if kind is not None and (format is None or kind == format):
            jobs.setdefault(file, kind)
        elif was_named:
            unknown.append(file)
        elif kind is None and _seems_broken(file):
            broken.append(file)
    if unknown:
        known = ", ".join(f"{name} ({FORMATS.summary(name)})" for name in FORMATS.names())
        raise UsageError(f"{unknown[0]} is not a trace in a known format", hint=f"known: {known}")
    if not jobs:
        names = ", ".join(map(str, [paths] if isinstance(paths, str | Path) else paths))
        known = f"known formats: {', '.join(FORMATS.names())}"
        raise NotFound(f"no trace found in {names}", hint="; ".join([*_passed_over(broken), known]))
    twins = [file for file in jobs if _is_twin(file, jobs)]
    for file in twins:
        del jobs[file]
    # The logs of one run are one: processes on other hosts write their own.
    logs: dict[Path, list[tuple[str, Path]]] = {
        (file.parent if name == "meter" else file): [] for file, name in jobs.items()
    }
    for file, name in jobs.items():
        logs[file.parent if name == "meter" else file].append((name, file))
    notes = _passed_over(broken)
    if twins:
        notes.append(f"skipped {', '.join(_distinct_processes(twins))}: the same events as in *.xplane.pb beside")
    return [(same[0][0], tuple(file for _, file in same)) for same in logs.values()], notes


def _is_twin(file: Path, jobs: Mapping[Path, str]) -> bool:
    """Tell whether a file is what JAX and TensorFlow write once more, for viewers, beside their profile."""
    stem = file.name.removesuffix(".gz").removesuffix(".trace.json")
    return file.name.endswith((".trace.json", ".trace.json.gz")) and file.with_name(f"{stem}.xplane.pb") in jobs


def _seems_broken(file: Path) -> bool:
    """Tell whether a file is called like a trace and holds nothing that could be one; other documents may lie there."""
    return bool(_TRACE_NAME.search(file.name)) and not head_of(file).lstrip().startswith(b"{")


def _passed_over(broken: Sequence[Path]) -> list[str]:
    if not broken:
        return []
    names = _distinct_processes(broken)
    listed = ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else "")
    return [f"skipped files that are not traces: {listed}"]


def _distinct_processes(files: Sequence[Path]) -> list[str]:
    """Return the names of files, with the folders that tell them apart where they are called the same."""
    names = [file.name for file in files]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([file.absolute().parent for file in files])
    return [os.path.relpath(file.absolute(), common) for file in files]


def _files(paths: Iterable[str | Path]) -> Iterable[tuple[Path, bool]]:
    """Yield each file and whether it was named itself; what lies in a folder may be something else."""
    for path in paths:
        place = Path(path)
        if place.is_dir():
            yield from ((file, False) for file in _inside(place))
        elif place.exists():
            yield place, True
        else:
            matches = sorted(glob.glob(str(path), recursive=True))
            if not matches:
                raise NotFound(f"no such file: {path}")
            for each in matches:
                file = Path(each)
                yield from ((inner, False) for inner in _inside(file)) if file.is_dir() else [(file, False)]


def _inside(folder: Path) -> Iterable[Path]:
    anchors = sorted(folder.glob("*.otf2"))
    if anchors:
        yield anchors[0]
        return
    for each in sorted(folder.iterdir(), key=lambda each: _natural(each.name)):
        if each.is_dir():
            if not each.is_symlink():  # it may lead back to where we came from
                yield from _inside(each)
        elif each.is_file() and not each.name.startswith("."):  # a hidden file is not finished
            yield each


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return what sorts rank10 behind rank9."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))


def _workers(jobs: Sequence[_Job], workers: int | None) -> int:
    if workers is not None:
        return max(1, min(workers, len(jobs)))
    size = sum(file.stat().st_size for name, files in jobs if name != "meter" for file in files)
    cores = usable_cores()
    return min(cores, len(jobs), 8) if size >= _WORTH_BYTES and cores >= 4 else 1


def _read_all(jobs: Sequence[_Job], workers: int) -> tuple[list[EventTable], list[str]]:
    traces = [job for job in jobs if job[0] != "meter"]
    profiles = [job for job in traces if job[0] == "kineto"]
    whole = set(profiles[::_ONE_OF])
    options = [{"inputs": job in whole} if job[0] == "kineto" else {} for job in traces]
    if workers == 1:
        results = list(map(_read_one, traces, options))
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(_read_one, traces, options))
    tables = [each for each in results if isinstance(each, EventTable)]
    processes = [each for table in tables for each in table.processes if each.pid > 0]
    known = {(each.host, each.pid): each.rank for each in processes}
    results += [_read_one(job, {"known": known}) for job in jobs if job[0] == "meter"]
    tables = [each for each in results if isinstance(each, EventTable)]
    failures = [each for each in results if not isinstance(each, EventTable)]
    if not tables:
        raise failures[0]
    return tables, [f"skipped: {each}" for each in failures]


def _read_one(job: _Job, options: Mapping[str, Any]) -> EventTable | FairmileError:
    name, files = job
    try:
        return FORMATS[name](files if name == "meter" else files[0], **options)
    except Unsupported:
        raise
    except FairmileError as error:
        return error
    except OverflowError:
        return Integrity(f"{files[0]}: a number is too large for its field")


def _one_file_a_rank(tables: list[EventTable]) -> tuple[list[EventTable], list[str]]:
    """Mend or leave out traces that claim the rank of another of the same format."""
    notes: list[str] = []
    by_claim: dict[tuple[str, str, int], list[EventTable]] = {}
    for table in tables:
        if len(table.processes) == 1:
            each = table.processes[0]
            by_claim.setdefault((each.format, each.component, each.rank), []).append(table)
    for (_, _, rank), claimed in by_claim.items():
        if len(claimed) < 2 or _follow_each_other(claimed) or _are_parts(claimed):
            continue
        files = _distinct_processes([Path(table.processes[0].file) for table in claimed])
        names = [Path(file).name for file in files]
        ranks = [named if (named := rank_in(file)) is not None else number_at_end(file) for file in names]
        others = {table.processes[0].rank for table in tables if len(table.processes) == 1 and table not in claimed}
        numbers = [number for number in ranks if number is not None]
        if len(set(numbers)) == len(claimed) and not others & set(numbers):
            for table, number in zip(claimed, numbers, strict=True):
                _set_rank(table, number)
            notes.append(
                f"{len(claimed)} files claim rank {rank}; ranks are taken from the file names: {sorted(numbers)}"
            )
        else:
            kept = max(claimed, key=len)
            tables = [table for table in tables if table is kept or all(table is not each for each in claimed)]
            left = [file for file, table in zip(files, claimed, strict=True) if table is not kept]
            notes.append(f"{', '.join(files)} all claim rank {rank}: skipped {', '.join(left)}")
    return tables, notes


def _without_repeats(tables: list[EventTable]) -> tuple[list[EventTable], list[str]]:
    """Leave out flight recorders of ranks whose profiler tells of collectives: it knows when each began and ended."""
    profiled = {
        each.rank
        for table in tables
        for each in table.processes
        if each.format == "kineto" and table.of_kind(EventKind.COLLECTIVE).any()
    }
    doubled = [table for table in tables if all(e.format == "flight" and e.rank in profiled for e in table.processes)]
    kept = [table for table in tables if all(table is not each for each in doubled)]
    files = ", ".join(Path(table.processes[0].file).name for table in doubled)
    return kept, [f"skipped {files}: the profiler recorded the same collectives"] if doubled else []


def _follow_each_other(tables: Sequence[EventTable]) -> bool:
    """Tell whether traces of one rank are windows one after the other, as a profiler with a schedule writes them."""
    spans = sorted((int(table.start_ns.min()), int(table.end_ns.max())) for table in tables if len(table))
    return all(before[1] <= behind[0] for before, behind in pairwise(spans))


def _are_parts(tables: Sequence[EventTable]) -> bool:
    """Tell whether traces are those of different processes of one rank, such as its loaders, one of which talks."""
    pids = [table.processes[0].pid for table in tables]
    talking = sum(bool(table.of_kind(EventKind.COLLECTIVE, EventKind.P2P, EventKind.PHASE).any()) for table in tables)
    return min(pids) > 0 and len(set(pids)) == len(pids) and talking <= 1


def _place_beside_others(tables: Sequence[EventTable]) -> list[str]:
    """Move traces that count from their own start to where others of the same ranks begin, which tell the real time."""
    timed = [table for table in tables if len(table) and all(each.since_epoch for each in table.processes)]
    ranks = {(each.component, each.rank) for table in timed for each in table.processes}
    notes = []
    for table in tables:
        mine = {(each.component, each.rank) for each in table.processes}
        if not len(table) or any(each.since_epoch for each in table.processes) or not mine & ranks:
            continue
        apart = min(int(other.start_ns.min()) for other in timed) - int(table.start_ns.min())
        table.start_ns, table.end_ns = table.start_ns + apart, table.end_ns + apart
        name = Path(table.processes[0].file).name
        table.processes = [replace(each, since_epoch=True) for each in table.processes]
        notes.append(f"{name} has only relative times: assumed to start with the first of the others")
    return notes


def _name_components(tables: Sequence[EventTable]) -> None:
    """Give a profile the component that the meter of the same process told."""
    known = {
        (each.host, each.pid): each.component
        for table in tables
        for each in table.processes
        if each.format == "meter" and each.component and each.pid > 0
    }
    for table in tables:
        if len(table.processes) == 1 and table.components == [""]:
            component = known.get((table.processes[0].host, table.processes[0].pid), "")
            table.components = [component]
            table.lanes = [replace(lane, component=component) for lane in table.lanes]
            table.processes = [replace(process, component=component) for process in table.processes]


def _name_world(table: EventTable) -> None:
    """Put collectives that name no group into one of all ranks of their component."""
    lost = table.of_kind(EventKind.COLLECTIVE) & (table.group < 0)
    for component in np.unique(table.component[lost]).tolist():
        rows = lost & (table.component == component)
        ranks = tuple(sorted({each.rank for each in table.processes if each.component == table.components[component]}))
        table.group[rows] = len(table.groups)
        table.groups.append(RankGroup("world", ranks, size=len(ranks)))


def _set_rank(table: EventTable, rank: int) -> None:
    table.rank[:] = rank
    table.lanes = [replace(lane, rank=rank) for lane in table.lanes]
    table.processes = [replace(process, rank=rank) for process in table.processes]


def _missing(table: EventTable) -> list[str]:
    notes = []
    parts: dict[str, list[int]] = {}
    for component, rank in table.missing():
        parts.setdefault(component, []).append(rank)
    for component, ranks in parts.items():
        worlds = [each.world for each in table.processes if each.component == component]
        of = f" of {component}" if component else ""
        listed = ", ".join(map(str, ranks[:16])) + (", …" if len(ranks) > 16 else "")
        word = "rank" if len(ranks) == 1 else "ranks"
        notes.append(f"{len(ranks)} of {max(worlds)} ranks{of} have no trace: {word} {listed}")
    return notes


def _steps(table: EventTable) -> list[str]:
    """Return a sentence where ranks recorded other steps."""
    phases = np.flatnonzero(table.of_kind(EventKind.PHASE) & (table.step >= 0))
    by_lane: dict[tuple[int, int], set[int]] = {}
    for row in phases.tolist():
        by_lane.setdefault((int(table.component[row]), int(table.rank[row])), set()).add(int(table.step[row]))
    notes = []
    for component in sorted({part for part, _ in by_lane}):
        mine = {rank: steps for (part, rank), steps in by_lane.items() if part == component}
        common = set.intersection(*mine.values())
        every = set.union(*mine.values())
        if len(mine) > 1 and common != every:
            some = f"steps {min(common)} to {max(common)}" if common else "no step"
            listed = "; ".join(f"rank {rank}: {min(steps)} to {max(steps)}" for rank, steps in sorted(mine.items())[:8])
            notes.append(f"the ranks recorded different steps and have {some} in common ({listed})")
    return notes
