"""Executes one run and writes its record; the same in this process, in a batch job, and on a machine without Fairmile.

It needs nothing but the standard library, `base` and `meter`, so that it can travel as one file of pure Python.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from fairmile.base.errors import Conflict, DiskFailure, FairmileError
from fairmile.base.files import Holder, allocate, write_atomic, write_failure
from fairmile.meter.energy import energies, total
from fairmile.meter.lines import FILE, Log, event_files, read_log
from fairmile.meter.meter import Meter
from fairmile.meter.summaries import metric_documents, span_documents
from fairmile.runs.execute import capture
from fairmile.runs.execute.ending import find_cause, find_outputs, find_undeclared, stamp_outputs
from fairmile.runs.execute.output_reader import LONGEST_LINE
from fairmile.runs.execute.pair import TROUBLE
from fairmile.runs.execute.printed import MOST_VALUES, find_metrics
from fairmile.runs.execute.processes import find_processes
from fairmile.runs.execute.program import Ending, Program
from fairmile.runs.execute.watching import FileWatch
from fairmile.runs.execute.written import SOURCE as EVENT_FILES
from fairmile.runs.execute.written import take_event_files
from fairmile.runs.record.crate import card_text
from fairmile.runs.record.layout import CARD, OUTPUT, PACK, RECORD, read_record, work_folder, write_record
from fairmile.runs.record.record import (
    Attempt,
    DeclaredMetric,
    EnergyUse,
    Metric,
    RecordedSpec,
    RunRecord,
    RunResult,
    RunState,
)
from fairmile.runs.record.values import better_of

_READ_OUTPUT = "metrics read from output"
_ROOM, _ROOM_BYTES = ".room", 64 << 10
_MOST_UNTOUCHED = 100
_SMALL_BYTES, _MOST_SMALL_BYTES = 5_000_000, 50_000_000  # outputs that come back from elsewhere

_NOTHING: Mapping[str, str] = MappingProxyType({})


def begin(folder: Path, record: RunRecord, env: Mapping[str, str]) -> None:
    """Note where and on what a run starts, before it does."""
    spec, captured = record.spec, record.captured
    work = work_folder(folder, spec)
    places = [folder.parent] if work.is_relative_to(folder) else [work, folder.parent]
    captured.hardware = capture.hardware(places)
    captured.software = capture.software(env)
    captured.scheduler = capture.scheduler(env)
    captured.variables = capture.variables({**env, **spec.env})
    if not record.attempts:
        record.before = stamp_outputs(work, spec.outputs)
    me = Holder.me()
    record.attempts.append(Attempt(started=time.time(), host=me.host, pid=me.pid, holder=me.text()))
    record.state, record.result = RunState.RUNNING, None
    write_record(folder, record)
    _keep_room(folder)


def finish(
    folder: Path,
    record: RunRecord,
    ending: Ending,
    elapsed_s: float,
    missing: Mapping[str, str],
    *,
    printed_from: int = 0,
    watch: FileWatch | None = None,
) -> None:
    """Note how a run ended, with all that its log and its outputs tell, and write its card.

    The output of this attempt begins at `printed_from`.
    """
    spec = record.spec
    work = work_folder(folder, spec)
    started = record.attempts[-1].started
    cause, advice = find_cause(folder, work, ending.state, out_of_memory=ending.out_of_memory)
    (folder / _ROOM).unlink(missing_ok=True)
    vanished = not (folder / RECORD).exists()
    first = record.attempts[0].started
    if watch is not None:
        watch.finish(elapsed_s)
    is_first = len(record.attempts) == 1  # what earlier attempts wrote counts, too
    written = watch.written if watch is not None and is_first else None
    in_event_files, doubts = take_event_files(folder, work, since_s=first, written=written)
    log = _read_log(folder, spec, printed_from)
    reason = "; ".join(filter(None, [ending.reason, cause])) if ending.state == "failed" else ending.reason
    if vanished:
        reason = "; ".join(filter(None, [reason, "its folder was removed during the run"]))
    outputs, untouched, trouble = find_outputs(work, spec.outputs, record.before)
    notes = [trouble, *_losses(log), *doubts]
    if cause and ending.state != "failed":
        notes.append(f"{cause}: its output may be incomplete")
    record.state = RunState(ending.state)
    record.result = RunResult(
        state=record.state,
        exit_code=ending.exit_code,
        signal=ending.signal,
        reason=reason,
        hint=(advice if ending.state == "failed" else "") or ending.hint,
        started=started,
        ended=started + elapsed_s,  # the clock on the wall may have been set meanwhile
        elapsed_s=elapsed_s,
        usage=dict(ending.usage),
        metrics=_measured_metrics(log, spec, in_event_files),
        spans=span_documents(log),
        energy=_energy(log, missing),
        outputs=outputs,
        damaged_lines=log.damaged,
        untouched=untouched[:_MOST_UNTOUCHED],
        notes=[note for note in notes if note],
    )
    if ending.state == "done":  # it will not go on
        record.before = {}
    coverage = record.captured.coverage
    if coverage is not None and coverage.is_complete and ending.state == "done":
        coverage.left = find_undeclared(folder, record, watch.before if watch is not None else {})
    try:
        write_record(folder, record)
    except DiskFailure:  # rather an end without its lists than none
        record.result.spans, record.result.outputs = {}, {}
        record.result.notes = ["the disk was full: spans and outputs were not recorded"]
        write_record(folder, record)
    # The card can be made again from the record, so it need not survive a power cut, nor find room.
    with contextlib.suppress(DiskFailure):
        write_atomic(folder / CARD, card_text(record, folder), sync=False)


def _read_log(folder: Path, spec: RecordedSpec, printed_from: int) -> Log:
    """Return the log of a run; where its program logged no metric, with those that its output states."""
    log = read_log(event_files(folder))
    if log.metrics and not any(event.name == _READ_OUTPUT for event in log.events):
        return log
    try:
        with open(folder / OUTPUT, "rb") as output:
            output.seek(printed_from)
            lines = (line.decode(errors="replace") for line in iter(lambda: output.readline(LONGEST_LINE), b""))
            metrics = list(islice(find_metrics(lines, params=spec.params), MOST_VALUES))
    except OSError:  # it printed nothing
        return log
    if not metrics:
        return log
    meter = Meter(folder / FILE, flusher=False)
    try:
        for metric in metrics:
            meter.log(step=metric.step, **{metric.name: metric.value})
        meter.event(_READ_OUTPUT, values=len(metrics))
    finally:
        meter.close()
    return read_log(event_files(folder))


def _losses(log: Log) -> Iterator[str]:
    """Yield what of the log is not there, in words."""
    failed = sum(event.name == "meter.write_failed" for event in log.events)
    if failed or log.damaged:
        lines = f", {log.damaged} damaged" if log.damaged else ""
        yield f"part of the log could not be written, for example on a full disk{lines}: values may be missing"
    yield from (event.attributes["reason"] for event in log.events if event.name == TROUBLE)
    unreadable = sum(event.name == "unreadable metric" for event in log.events)
    if unreadable:
        what = "1 line or value is" if unreadable == 1 else f"{unreadable} lines or values are"
        yield f"{what} not a valid metric; `events.jsonl` lists them"


def _keep_room(folder: Path) -> None:
    """Keep room for the end of the record, which must be written also when the program filled the disk."""
    with contextlib.suppress(OSError):
        # The new record lies beside the old one for a moment.
        room_bytes = _ROOM_BYTES + 2 * os.stat(os.path.join(folder, RECORD)).st_size
        descriptor = os.open(os.path.join(folder, _ROOM), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            allocate(descriptor, room_bytes)
        finally:
            os.close(descriptor)


def execute(
    folder: Path,
    record: RunRecord,
    *,
    argv: Sequence[str],
    env: Mapping[str, str],
    given: Mapping[str, str] = _NOTHING,
    echo: BinaryIO | None = None,
    look: Callable[[], str] | None = None,
    then: Callable[[RunRecord], None] | None = None,
) -> RunRecord:
    """Run a program to its end and return its record, which is in the folder by then; what it prints goes to `echo`.

    A program of somebody else sees of the variables `env` only what is passed on, and all that a person has `given` it.
    `look` is called again and again while it runs: as soon as that returns a reason, the program is stopped, politely
    first. `then` may add to the record what the end shows, before it is written.
    """
    work = work_folder(folder, record.spec)
    try:
        os.makedirs(work, exist_ok=True)
    except OSError as error:
        raise write_failure(str(work), error) from error
    if record.foreign:  # a stranger's program is not given what this person exported
        env = {**capture.passed_on(env), **given}
    begin(folder, record, env)
    watch = FileWatch.of(folder, record)
    program = Program(folder, record, argv, env, work, echo, look, watch)
    ending, elapsed_s = program.run()
    if then is not None:
        record.state = RunState(ending.state)
        then(record)
    finish(folder, record, ending, elapsed_s, program.missing, printed_from=program.printed_from, watch=watch)
    return record


def check_no_orphan(folder: Path, id: str) -> None:
    """Raise Conflict while the program of a run still lives although its recorder does not."""
    if pids := find_processes(folder):
        raise Conflict(
            f"the program of run {id} still runs without its recorder, as process {', '.join(map(str, pids[:5]))}",
            hint=f"wait until it ends, or end it with `fairmile runs cancel {id}`",
        )


def _energy(log: Log, missing: Mapping[str, str]) -> EnergyUse:
    """Return what was measured of energy, each part with its source, scope and error."""
    energy = total(each for samples in log.samples for each in energies(samples))
    return EnergyUse(
        total_j=energy.joules,
        parts=[asdict(each) for each in energy.parts],
        left_out=dict(energy.left_out),
        missing=dict(missing),
    )


def _measured_metrics(log: Log, spec: RecordedSpec, in_event_files: Collection[str]) -> dict[str, Metric]:
    """Return the metrics of a log with what was declared of them."""
    metrics = {name: Metric.from_dict(each) for name, each in metric_documents(log).items()}
    source = "output" if any(event.name == _READ_OUTPUT for event in log.events) else ""
    for name, metric in metrics.items():
        metric.source = EVENT_FILES if name in in_event_files else source
        declared = spec.metrics.get(name, DeclaredMetric())
        metric.unit, metric.tolerance = declared.unit, declared.tolerance
        metric.better = declared.better or better_of(name)
    return metrics


def start(arguments: Sequence[str]) -> int:
    """`recorder FOLDER [--pack] -- COMMAND…`: execute the run whose run.json lies in a folder; return its exit code.

    With --pack the files of its record, and its small outputs, are left in one, to be brought back; with --pack-record
    the record alone.
    """
    given, command = arguments[: (cut := list(arguments).index("--"))], list(arguments[cut + 1 :])
    folder = Path(given[0]).absolute()
    try:
        record = execute(folder, read_record(folder), argv=command, env=os.environ, echo=sys.stdout.buffer)
    except (FairmileError, OSError) as problem:
        sys.stderr.write(f"fairmile: {problem}\n")
        return getattr(problem, "exit_code", 3)
    if given[1:]:
        _pack(folder, record, with_outputs="--pack" in given)
    result = record.result
    assert result is not None
    if result.reason:
        sys.stderr.write(f"fairmile: run {record.id}: {result.reason}\n")
    return result.exit_code if result.exit_code is not None else 1


def _pack(folder: Path, record: RunRecord, *, with_outputs: bool) -> None:
    import zipfile  # only what comes back from elsewhere is packed

    work = work_folder(folder, record.spec)
    outputs = record.result.outputs if record.result is not None and with_outputs else {}
    sizes = {work / name: each.size_bytes for name, each in outputs.items()}
    small = [file for file, size in sizes.items() if size <= _SMALL_BYTES and file.is_relative_to(folder)]
    if sum(sizes[file] for file in small) > _MOST_SMALL_BYTES:
        small = []
    temporary = folder / f".{PACK}"
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in [folder / RECORD, folder / CARD, folder / OUTPUT, *event_files(folder), *small]:
            if file.is_file():
                archive.write(file, str(file.relative_to(folder)))
    temporary.replace(folder / PACK)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
