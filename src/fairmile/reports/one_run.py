"""One run as the parts of a report: what ran, how it went, its numbers, its machine, and where all of it came from."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fairmile.base.errors import NotFound
from fairmile.base.units import format_number, format_size
from fairmile.meter.energy import energies, energy_by_span, total
from fairmile.meter.footprint import Supply
from fairmile.meter.lines import Log
from fairmile.reports import figures
from fairmile.reports.blocks import (
    Block,
    Cell,
    Code,
    Facts,
    Fold,
    Heading,
    Image,
    Note,
    Row,
    Text,
    Tile,
    Tiles,
    Title,
    Tone,
    printed,
    table,
)
from fairmile.reports.differences import hardware_lines, storage_lines
from fairmile.reports.figures import MEASURED_AS, Picture
from fairmile.reports.measures import Measure, between, measures, percent, results_only, title, unit_of
from fairmile.reports.results import output_blocks, result_blocks, results_of
from fairmile.runs.record.layout import OUTPUT
from fairmile.runs.record.record import GitState
from fairmile.runs.record.run import Run, RunState

_TAIL_BYTES, _TAIL_LINES = 64 << 10, 60
_ARROWS = {"lower": "↓", "higher": "↑"}
_ENDS = {
    RunState.FAILED: "failed",
    RunState.TIMEOUT: "ran out of time",
    RunState.CANCELLED: "was cancelled",
    RunState.INTERRUPTED: "was interrupted",
}
_TONES: dict[RunState, Tone] = {RunState.DONE: "good", RunState.RUNNING: "warn", RunState.QUEUED: "warn"}


def one_run(run: Run, supply: Supply) -> Iterator[Block]:
    """Return the parts of the report of one run; `supply` tells what its energy meant."""
    log = Log() if run.packed else run.log()
    yield Title(f"{run.name} · {run.id}", str(run.state), state_tone(run.state), _about(run))
    yield Tiles(tuple(_tiles(run)))
    yield from _ending(run)
    bad = run.state in _ENDS
    if bad:  # then what it printed last is what people look for
        yield from _output(run)
    yield from result_blocks(run)
    yield from _metrics(run)
    yield from output_blocks(run)
    yield from _phases(run, log)
    yield from _prediction(run)
    yield from _energy(run, supply)
    yield from machine_blocks(run)
    yield from origin_blocks(run)
    if not bad:
        yield from _output(run)
    yield Heading("Run it again")
    yield Code(rerun_line(run))


def document_of(run: Run, supply: Supply) -> dict[str, Any]:
    """Return what the report of a run says as plain data."""
    numbers = {name: vars(each) for name, each in measures(run).items()}
    footprint = supply.footprint(run.energy_j, run.period)
    return {
        "runs": [run.id],
        "name": run.name,
        "state": str(run.state),
        "reason": run.reason,
        "measures": numbers,
        **({"results": dict(results)} if (results := results_of(run)) is not None else {}),
        "phases": dict(run.spans),
        "energy": run.energy.to_dict() if run.result is not None else {},
        **({"footprint": asdict(footprint)} if footprint is not None else {}),
        "prediction": {
            name: {**predicted, "measured": _measured(run, name)} for name, predicted in run.prediction.items()
        },
        "rerun": rerun_line(run),
    }


def rerun_line(run: Run) -> str:
    """Return the command that does it again from the record alone."""
    return f"fairmile rerun {shlex.quote(run.id)}"


def file_link(run: Run, name: str) -> str:
    """Return where a server has an output of a run; one that lies elsewhere or is packed has no such place."""
    return "" if run.packed else f"/runs/{quote(run.id, safe='')}/files/{quote(name)}"


def state_tone(state: RunState) -> Tone:
    """Return how a state is coloured."""
    return _TONES.get(state, "bad")


def when(moment_s: float) -> str:
    """Return a time as people write it, in UTC."""
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def drawn(make: Callable[[], Picture]) -> Iterator[Block]:
    """Return a figure, or nothing where there is nothing to draw or nothing to draw with."""
    if figures.can_draw():
        with suppress(NotFound):
            yield Image(make())


def _about(run: Run) -> str:
    parts = [f"on {run.system}" if run.system else "", when(run.created)]
    parts.append(f"executes {run.record.spec.asset}" if run.record.spec.asset else "")
    return " · ".join(filter(None, parts))


def _tiles(run: Run) -> Iterator[Tile]:
    known, usage = measures(run), run.usage
    for name in results_only(run.metrics)[:2]:
        metric = run.metrics[name]
        best = (
            f"best {format_number(metric.best, metric.unit)}" if metric.better and metric.best != metric.value else ""
        )
        yield Tile(f"{name} {_ARROWS.get(metric.better, '')}".strip(), format_number(metric.value, metric.unit), best)
    for name in ("elapsed_s", "energy_j", "max_rss_bytes"):
        if name in known:
            yield Tile(title(name), format_number(known[name].value, known[name].unit), _tile_note(run, name))
        elif name == "energy_j" and run.state.is_end:
            yield Tile("energy", "–", "not measured")
    if usage.get("cpu_s") is not None:
        share = f"{usage['cpu_s'] / run.elapsed_s:.1f} cores on average" if run.elapsed_s else ""
        yield Tile("CPU time", format_number(usage["cpu_s"], "s"), share)


def _tile_note(run: Run, name: str) -> str:
    prediction = run.prediction.get(next((key for key, own in MEASURED_AS.items() if own == name), name))
    if prediction:
        return f"predicted {format_number(float(prediction['value']), unit_of(name))}"
    if name == "energy_j" and run.elapsed_s:
        return f"{format_number((run.energy_j or 0) / run.elapsed_s, 'W', digits=3)} on average"
    return ""


def _ending(run: Run) -> Iterator[Block]:
    """Say at once what went wrong and what to do."""
    reason, hint, result = run.reason, run.hint, run.result
    if run.state in _ENDS:
        code = result.exit_code if result is not None else None
        more = f" (exit code {code})" if code is not None and str(code) not in reason else ""
        yield Note(f"This run {_ENDS[run.state]}: {(reason or 'no reason is known').rstrip('.')}{more}.", "bad")
        if hint:
            yield Text(hint)
    elif not run.state.is_end:
        yield Note(f"This run is {run.state}: all results are preliminary.", "warn")
    if broken := [name for name, each in run.metrics.items() if not math.isfinite(each.value)]:
        yield Note(f"The last value of {', '.join(broken)} is NaN or infinite.", "warn")
    if run.packed:
        line = f"fairmile runs unpack {run.id}"
        yield Note(f"This run is packed: curves, phases and output are shown after `{line}`.", "dim")
    if result is not None and result.damaged_lines:
        yield Note(f"{result.damaged_lines} lines of its log could not be read and are in no number here.", "warn")


def _metrics(run: Run) -> Iterator[Block]:
    if not run.metrics:
        return
    yield Heading("Metrics")
    rows: list[Row] = []
    for name, each in run.metrics.items():
        values = (each.value, each.best, each.first, each.mean, each.min, each.max)
        cells = [
            Cell(format_number(value, each.unit), sort=value if math.isfinite(value) else None) for value in values
        ]
        cells[1] = cells[1] if each.better else Cell("")
        better = {"lower": "↓ lower", "higher": "↑ higher"}.get(each.better, "")
        rows.append([name, *cells, Cell(f"{each.count:,}", sort=each.count), better])
    columns = ["metric", "last", "best", "first", "mean", "lowest", "highest", "values", "better"]
    yield table(columns, rows, numbers=columns[1:-1])
    if not run.packed:
        yield from drawn(lambda: figures.learning_curve(run))


def _phases(run: Run, log: Log) -> Iterator[Block]:
    energy, warnings = _energy_by_span(log)
    if not run.spans and not log.spans and not log.samples:
        return
    rows: list[Row] = []
    whole = run.elapsed_s or 0.0
    for name, each in run.spans.items():
        times = [each.get(key) for key in ("total_s", "mean_s", "p50_s", "p95_s", "max_s")]
        cells = [Cell("" if value is None else format_number(value, "s"), sort=value) for value in times]
        total_s = each.get("total_s") or 0.0
        share = Cell(percent(total_s / whole, signed=False) if whole else "", sort=total_s)
        used = energy.get(name)
        joules = Cell("" if used is None else format_number(used, "J"), sort=used)
        rows.append([name, Cell(f"{each.get('count', 0):,}", sort=each.get("count")), *cells, share, joules])
    drawing = [] if run.packed else list(drawn(lambda: figures.phases(run)))
    if rows or drawing:
        yield Heading("Phases")
    if rows:
        columns = ["phase", "calls", "total", "mean", "median", "95 %", "longest", "share of the run", "energy"]
        columns = columns if energy else columns[:-1]
        yield table(columns, [row[: len(columns)] for row in rows], numbers=columns[1:])
    yield from drawing
    for warning in warnings:
        yield Note(warning, "dim")


def _energy_by_span(log: Log) -> tuple[dict[str, float], list[str]]:
    """Return the energy of each phase over what was measured, counted once, and what makes it poor."""
    watches = [samples for samples in log.samples if len(samples.at_ns)]
    counted = {(each.host, each.channel) for each in total(e for samples in watches for e in energies(samples)).parts}
    joules: dict[str, float] = {}
    warnings: dict[str, None] = {}
    for each in energy_by_span(log, watches):
        if (each.host, each.channel) in counted:
            joules[each.name] = joules.get(each.name, 0.0) + each.joules
            warnings |= dict.fromkeys(f"{each.name}: {warning}." for warning in each.warnings)
    return joules, list(warnings)[:5]


def _prediction(run: Run) -> Iterator[Block]:
    if not run.prediction:
        return
    yield Heading("Prediction and measurement")
    rows: list[Row] = []
    for name, prediction in run.prediction.items():
        unit, value, measured = unit_of(name), float(prediction["value"]), _measured(run, name)
        low, high = prediction.get("low"), prediction.get("high")
        span = between(float(low), float(high), unit) if low is not None and high is not None else ""
        off = percent((measured - value) / value) if measured is not None and value else ""
        tone: Tone = ""
        if measured is not None and low is not None and high is not None:
            tone = "good" if float(low) <= measured <= float(high) else "warn"
        shown = Cell("not measured" if measured is None else format_number(measured, unit), tone=tone)
        rows.append([title(name), format_number(value, unit), span, shown, off, str(prediction.get("source") or "")])
    columns = ["quantity", "predicted", "range", "measured", "off by", "predicted from"]
    yield table(columns, rows, numbers=["predicted", "range", "measured", "off by"])
    yield from drawn(lambda: figures.prediction(run))


def _measured(run: Run, name: str) -> float | None:
    measure: Measure | None = measures(run).get(MEASURED_AS.get(name, name))
    return None if measure is None else measure.value


def _energy(run: Run, supply: Supply) -> Iterator[Block]:
    if run.result is None:
        return
    yield Heading("How energy was measured")
    columns = ["what", "energy", "how", "counter", "source", "error"]
    rows: list[Row] = []
    for part in run.energy.parts:
        origin = [str(part.get(key) or "") for key in ("method", "channel", "source", "error")]
        rows.append([str(part.get("scope") or ""), _joules(part.get("joules")), *origin])
    if rows:
        yield table(columns, rows, numbers=["energy"])
        footprint = supply.footprint(run.energy_j, run.period)
        if footprint is not None:
            yield Facts(tuple(footprint.sentences()))
    else:
        yield Text("The energy of this run was not measured.")
    if missing := run.energy.missing:
        yield Text("Not measured:")
        yield Facts(tuple((name, why.removeprefix(f"{name}: ")) for name, why in missing.items()))


def _joules(value: Any) -> Cell:
    return Cell("" if value is None else format_number(float(value), "J"), sort=None if value is None else float(value))


def machine_blocks(run: Run) -> Iterator[Block]:
    """Tell what it ran on."""
    hardware, software = run.hardware, run.captured.software
    pairs = list(hardware_lines(hardware).items())
    pairs += [("storage", line) for line in storage_lines(hardware)]
    names = {"os": "system software", "kernel": "kernel", "machine": "architecture", "libc": "C library"}
    pairs += [(word, str(software[key])) for key, word in names.items() if software.get(key)]
    scheduler = run.captured.scheduler
    pairs += (
        [("scheduler", ", ".join(f"{key} {value}" for key, value in scheduler.items() if value))] if scheduler else []
    )
    if pairs:
        yield Heading("Machine")
        yield Facts(tuple(pairs))


def origin_blocks(run: Run) -> Iterator[Block]:
    """Tell where everything came from that went in, and what came out."""
    asked, captured = run.record.spec, run.captured
    yield Heading("Provenance")
    code, environment = captured.code, captured.environment
    pairs = [
        ("command", shlex.join(run.argv)),
        ("command as given", shlex.join(asked.argv) if asked.argv != run.argv else ""),
        ("parameters", ", ".join(f"{name} = {value}" for name, value in run.params.items())),
        ("seed", "" if asked.seed is None else str(asked.seed)),
        ("group", run.group),
        ("tags", ", ".join(asked.tags)),
        ("code", _commit(code.git or GitState())),
        ("code snapshot", code.snapshot),
        ("environment", environment.name),
        ("Python", " ".join(each for each in (environment.python, environment.interpreter) if each)),
        ("Fairmile", str(captured.software.get("fairmile") or "")),
        ("identity of all that went in", run.identity),
        ("attempts", str(len(run.record.attempts)) if len(run.record.attempts) > 1 else ""),
    ]
    yield Facts(tuple((name, text) for name, text in pairs if text))
    files: list[tuple[str, Cell, int | None, str]] = [
        ("program", Cell(each.name), each.size_bytes, each.sha256) for each in code.files
    ]
    for name, given in captured.inputs.items():
        asset = f"/assets/{quote(given.asset)}" if given.asset else ""
        files.append(
            ("input", Cell(f"{name}: {given.asset or given.path}", link=asset), given.size_bytes, given.sha256)
        )
    for name, made in run.outputs.items():
        files.append(("output", Cell(name, link=file_link(run, name)), made.size_bytes, made.sha256))
    if files:
        rows: list[Row] = [
            [kind, name, _size(size_bytes), Cell(sha256 or "not known", code=True)]
            for kind, name, size_bytes, sha256 in files
        ]
        yield table(["", "file", "size", "SHA-256"], rows, numbers=["size"])
    if code.git is not None and code.git.diff:
        yield Fold("Uncommitted changes", (Code(code.git.diff),))
    if environment.lock:
        yield Fold(f"Packages ({len(environment.lock)})", (Code("\n".join(environment.lock)),))
    if captured.variables:
        yield Fold("Variables", (Facts(tuple(captured.variables.items())),))


def _commit(git: GitState) -> str:
    if not git.commit:
        return ""
    place = f" on {git.branch}" if git.branch else ""
    remote = f", {git.remote}" if git.remote else ""
    return f"commit {git.commit}{place}{remote}{', with changes that were not committed' if git.dirty else ''}"


def _size(size_bytes: int | None) -> Cell:
    return Cell("") if size_bytes is None else Cell(format_size(size_bytes), sort=float(size_bytes))


def _output(run: Run) -> Iterator[Block]:
    """Show the end of what the program printed."""
    if run.packed:
        return
    try:
        with open(run.folder / OUTPUT, "rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            data = stream.read(_TAIL_BYTES)
    except OSError:
        return
    lines = printed(data).rstrip("\n").split("\n")
    shown = [line if len(line) <= 2000 else line[:2000] + "…" for line in lines[-_TAIL_LINES:]]
    if not any(shown):
        return
    yield Heading("Output")
    if size > _TAIL_BYTES or len(lines) > _TAIL_LINES:
        yield Text(f"The last {len(shown)} lines of {format_size(size)}.")
    yield Code("\n".join(shown))
