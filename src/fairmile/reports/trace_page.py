"""The page of a trace: what costs time and what to try, time lines, parts by rank, waiting, collectives, coupling."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairmile.base.units import format_duration, format_size
from fairmile.reports import figures, html, trace_figures
from fairmile.reports.blocks import (
    NO_FIGURES,
    Block,
    Cell,
    Fold,
    Heading,
    Note,
    Row,
    Text,
    Tile,
    Tiles,
    Title,
    Tone,
    table,
)
from fairmile.reports.one_run import drawn
from fairmile.reports.trace_figures import PART_NAMES, Roofline, RooflinePoint, ceilings, named_apart
from fairmile.traces.achieved import device_of_names
from fairmile.traces.analyze import TraceAnalysis
from fairmile.traces.breakdown import StepBreakdown
from fairmile.traces.coupling import CouplingAnalysis
from fairmile.traces.evidence import STEPS, Finding
from fairmile.traces.finding_events import COUNTED
from fairmile.traces.waiting import mean_over_ranks

_NAMESPACE = re.compile(r"\w+::")
_LONGEST_NAME = 100
_MOST_ROWS = 40
_MOST_STEPS = 500
_MOST_FOLDS = 8
_GREAT = 0.1  # share of the time from which a finding is red


def trace_page(analysis: TraceAnalysis, *, title: str) -> str:
    """Return the analysis of a trace as one HTML file that needs nothing else."""
    return html.render(title, trace_blocks(analysis, title=title))


def trace_blocks(analysis: TraceAnalysis, *, title: str) -> list[Block]:
    """Return the parts of the page, for any writer."""
    if not analysis.is_timed:
        return [_title(analysis, title), *_traffic(analysis), *(Note(each) for each in analysis.notes)]
    blocks = [
        _title(analysis, title),
        _tiles(analysis),
        *_findings(analysis),
        *_timelines(analysis),
        *_breakdown(analysis),
        *_waiting(analysis),
        *_collectives(analysis),
        *_critical(analysis),
        *_roofline(analysis),
        *_traffic(analysis),
        *_names(analysis),
        *(_coupling(analysis.coupling) if analysis.coupling else ()),
    ]
    if not figures.can_draw():
        blocks.append(NO_FIGURES)
    return blocks


def _title(analysis: TraceAnalysis, title: str) -> Title:
    ranks = len(analysis.ranks)
    badge = f"{ranks} rank{'s' if ranks > 1 else ''}, {analysis.steps:,} step{'s' if analysis.steps > 1 else ''}"
    events = f"{analysis.events:,} event{'s' if analysis.events != 1 else ''}"
    facts = [f"{events} over {format_duration(analysis.span_s)}", *analysis.devices]
    tone: Tone = "warn" if analysis.missing_ranks else ""
    return Title(f"Trace {title}", badge, tone, " · ".join(facts))


def _tiles(analysis: TraceAnalysis) -> Tiles:
    ranks = analysis.breakdown.ranks
    total = analysis.total_s or 1.0

    def mean(name: str) -> float:
        return sum(float(getattr(each.total, name)) for each in ranks) / max(1, len(ranks))

    talk = mean("communication_s")
    waits = mean_over_ranks(analysis.waiting.collectives, "exposed_wait_s", len(ranks))
    tiles = [
        Tile("step", format_duration(analysis.step_s), "mean over steps and ranks"),
        Tile("compute", _percent(mean("compute_s") / total), f"{format_duration(mean('compute_s'))} in all"),
        Tile("exposed communication", _percent(mean("exposed_communication_s") / total),
             f"{_percent(mean('overlap_s') / talk)} of all is hidden" if talk else "no communication"),
        Tile("waiting for others", _percent(waits / total), "part of the exposed communication"),
        Tile("input", _percent(mean("input_s") / total), "waiting for the next batch"),
        Tile("launch and idle", _percent((mean("launch_s") + mean("idle_s")) / total), "nothing is computed"),
    ]  # fmt: skip
    return Tiles(tuple(tiles))


def _findings(analysis: TraceAnalysis) -> Iterator[Block]:
    yield Heading("What costs time, and what to try")
    if not analysis.findings:
        yield Note("Nothing costs more than 1 % of the time.", "good")
    else:
        yield from drawn(lambda: trace_figures.finding_bars(analysis.findings, analysis.total_s))
        rows: list[Row] = []
        for each in analysis.findings:
            tone: Tone = "bad" if each.share >= _GREAT else "warn"
            rows.append(
                [
                    Cell(each.title, tone=tone),
                    Cell(format_duration(each.seconds), each.seconds),
                    Cell(_percent(each.share) + ("" if each.share_of == STEPS else f" of {each.share_of}"), each.share),
                    f"{each.why} ({each.where})",
                    each.what_to_try,
                ]
            )
        yield table(["finding", "costs", "of the time", "why", "what to try"], rows, numbers=["costs", "of the time"])
        yield from (_events_of(each) for each in analysis.findings[:_MOST_FOLDS] if each.events)
        yield Text(
            "Each line shows what removing this cause alone would gain. Causes overlap: removing two can gain less "
            "than their sum."
        )
    yield from (Note(each) for each in analysis.notes)


def _events_of(finding: Finding) -> Fold:
    """Return the events of a finding, folded."""
    rows: list[Row] = [
        [
            each.name,
            each.rank,
            each.lane,
            Cell(format_duration(each.start_s), each.start_s),
            Cell(format_duration(each.duration_s), each.duration_s),
            Cell(format_duration(each.counted_s), each.counted_s) if each.role == COUNTED else "(cause)",
        ]
        for each in finding.events
    ]
    count = sum(each.role == COUNTED for each in finding.events)
    title = f"Events of: {finding.title}"
    if count < finding.event_count:
        title += f" (the {count} longest of {finding.event_count:,})"
    columns = ["event", "rank", "lane", "at", "takes", "counted"]
    return Fold(title, (table(columns, rows, numbers=columns[3:]),))


def _timelines(analysis: TraceAnalysis) -> Iterator[Block]:
    yield Heading("Timeline")
    for at, each in enumerate(reversed(analysis.timelines)):
        yield from drawn(lambda each=each, at=at: trace_figures.timeline(each, name=f"timeline-{at + 1}"))  # type: ignore[misc]
    yield from drawn(lambda: trace_figures.steps_over_time(analysis.breakdown))
    steps = analysis.breakdown.steps[:_MOST_STEPS]
    rows = [_step_row(each) for each in steps]
    columns = ["rank", "step", *_PART_COLUMNS]
    used = _used(columns, rows)
    shown = [columns[at] for at in used]
    every = len(analysis.breakdown.steps)
    title = f"All {every:,} steps" if every <= _MOST_STEPS else f"The first {_MOST_STEPS} of {every:,} steps"
    yield Fold(title, (table(shown, [[row[at] for at in used] for row in rows], numbers=shown[1:]),))


_PART_COLUMNS = ("total", *PART_NAMES.values(), "all communication", "hidden")


def _breakdown(analysis: TraceAnalysis) -> Iterator[Block]:
    yield Heading("Where the time goes, by rank")
    yield from drawn(lambda: trace_figures.breakdown_bars(analysis.breakdown))
    columns = ["rank", "steps", *_PART_COLUMNS]
    rows = [[each.label, str(each.steps), *_part_cells(each.total, each.steps)] for each in analysis.breakdown.ranks]
    used = _used(columns, rows)
    parts: tuple[Block, ...] = (
        table([columns[at] for at in used], [[row[at] for at in used] for row in rows],
              numbers=[columns[at] for at in used[1:]]),
        Text("Means per step. Hidden communication ran while the rank computed."),
    )  # fmt: skip
    yield from parts
    if any(each.device for each in analysis.breakdown.ranks):
        yield Fold("Devices from their first kernel to the end of their last", tuple(_devices(analysis)))


def _devices(analysis: TraceAnalysis) -> Iterator[Block]:
    columns = ["rank", "from first to last", "idle", "compute", "other than compute", "communication", "hidden"]
    rows: list[Row] = []
    for each in analysis.breakdown.ranks:
        if each.device:
            device = each.device
            values = [device.span_s, device.idle_s, device.compute_s, device.non_compute_s, device.communication_s,
                      device.overlap_s]  # fmt: skip
            rows.append([each.label, *(_seconds(value) for value in values)])
    yield table(columns, rows, numbers=columns[1:])


def _step_row(each: StepBreakdown) -> Row:
    label = f"{each.component} {each.rank}".strip()
    return [label, str(each.step), *_part_cells(each, 1)]


def _part_cells(total: StepBreakdown, steps: int) -> list[str | Cell]:
    names = ["exposed_communication_s" if part == "communication" else f"{part}_s" for part in PART_NAMES]
    return [
        _seconds(float(getattr(total, name)) / max(1, steps))
        for name in ("total_s", *names, "communication_s", "overlap_s")
    ]


def _waiting(analysis: TraceAnalysis) -> Iterator[Block]:
    waits = analysis.waiting
    if not waits.states and not waits.delays:
        return
    yield Heading("Who waits for whom")
    title = "How long each rank waited for each other"
    yield from drawn(lambda: trace_figures.wait_matrix(waits.labels, waits.matrix, name="waiting", title=title))
    if waits.delays:
        labels = {(each.component, each.rank): each.label for each in analysis.breakdown.ranks}
        delays: list[Row] = [
            [
                labels[(each.component, each.rank)],
                PART_NAMES.get(each.cause, each.cause) if each.cause != "idle" else "nothing recorded",
                _count(each.calls),
                _seconds(each.lost_s),
                _seconds(each.waiting_s),
                _seconds(each.indirect_s),
            ]
            for each in waits.delays[:_MOST_ROWS]
        ]
        columns = ["came last", "because of longer", "calls", "the job lost", "others waited", "of it indirectly"]
        yield table(columns, delays, numbers=columns[2:])
        yield Text(
            "The job lost what it would gain if this rank worked like the others, by a replay of the trace. Indirect "
            "waiting reached a rank through other waiting ranks."
        )
    states: list[Row] = [
        [f"{each.component} {each.rank}".strip(), each.state, _count(each.calls), _seconds(each.seconds),
         _seconds(each.exposed_s)]
        for each in sorted(waits.states, key=lambda each: -each.seconds)
    ]  # fmt: skip
    columns = ["rank", "wait state", "calls", "time", "not hidden"]
    worst: list[Row] = [
        [each.operation.replace("_", "-"), each.group, each.last, PART_NAMES.get(each.cause, each.cause),
         _seconds(each.wait_s), _seconds(each.transfer_s)]
        for each in waits.worst
    ]  # fmt: skip
    names = ["operation", "group", "came last", "because of longer", "longest wait", "transfer"]
    yield Fold("Wait states by rank, as Scalasca names them", (table(columns, states, numbers=columns[2:]),))
    yield Fold("The calls with the longest waits", (table(names, worst, numbers=names[-2:]),))


def _collectives(analysis: TraceAnalysis) -> Iterator[Block]:
    collectives = analysis.waiting.collectives
    if not collectives:
        return
    yield Heading("Collectives and messages")
    yield from drawn(lambda: trace_figures.bandwidth(collectives))
    columns = ["operation", "group", "ranks", "size", "calls", "wait", "queue", "transfer", "not hidden", "one call",
               "bandwidth", "model", "efficiency"]  # fmt: skip
    rows: list[Row] = []
    for each in collectives[:_MOST_ROWS]:
        slow = each.efficiency is not None and each.efficiency < 0.5
        rows.append(
            [
                each.operation.replace("_", "-"),
                each.group,
                _count(each.ranks),
                Cell(format_size(each.bytes) if each.bytes >= 0 else "–", float(each.bytes)),
                _count(each.calls),
                _seconds(each.wait_s),
                _seconds(each.queued_s),
                _seconds(each.transfer_s),
                _seconds(each.exposed_s),
                _seconds(each.median_transfer_s),
                _rate(each.bus_bytes_per_s),
                _seconds(each.model_s),
                Cell(_percent(each.efficiency) if each.efficiency is not None else "–", each.efficiency,
                     "bad" if slow else ""),
            ]
        )  # fmt: skip
    used = _used(columns, rows)
    numbers = [columns[at] for at in used if columns[at] not in ("operation", "group")]
    yield table([columns[at] for at in used], [[row[at] for at in used] for row in rows], numbers=numbers)
    yield Text(
        "Wait lasts until the last rank arrives, queue from then until data moves (if the trace records it), and "
        "transfer is the rest: only transfer shows the speed of the network. One call is the median. Bandwidth is bus "
        "bandwidth as nccl-tests defines it. Efficiency is the modelled time divided by the measured time."
    )
    if len(collectives) > _MOST_ROWS:
        yield Text(f"The first {_MOST_ROWS} of {len(collectives):,}.")


def _critical(analysis: TraceAnalysis) -> Iterator[Block]:
    path = analysis.critical
    if len(analysis.ranks) < 2 or not path.by_name:
        return
    yield Heading("Critical path")
    count = len({(each.component, each.rank) for each in path.pieces})
    yield Text(
        f"The chain of work and transfers that decided when the program ended, {format_duration(path.total_s)} over "
        f"{count} rank{'s' if count > 1 else ''}. Only speeding up what is on it makes the program faster."
    )
    yield from drawn(lambda: trace_figures.critical_bars(analysis))
    rows: list[Row] = [
        [Cell(name, code=True), _seconds(seconds), Cell(_percent(seconds / path.total_s), seconds)]
        for name, seconds in path.by_name
    ]
    names = table(["what ran", "time", "of the path"], rows, numbers=["time", "of the path"])
    yield Fold("What is on it, by name", (names,))


def measured_roofline(analysis: TraceAnalysis) -> Roofline:
    """Return the operators of a trace under the ceilings of its device, where that is known."""
    on = device_of_names(analysis.devices)
    points = named_apart(
        RooflinePoint(_short(each.name), each.intensity, each.flops_per_s, each.bound, each.seconds)
        for each in analysis.operators
    )
    if on is None:
        return Roofline(points, (), 0.0, " and ".join(analysis.devices))
    peaks = ceilings(on, [(each.kind, each.dtype) for each in analysis.operators])
    return Roofline(points, peaks, on.bandwidth_ceiling, on.name)


def _roofline(analysis: TraceAnalysis) -> Iterator[Block]:
    operators = analysis.operators
    if not operators:
        return
    yield Heading("Roofline")
    yield from drawn(lambda: trace_figures.roofline(measured_roofline(analysis)))
    rows: list[Row] = [
        [
            Cell(_short(each.name), code=True),
            f"{each.shapes} {each.dtype}",
            each.bound or "–",
            _count(each.calls),
            _seconds(each.seconds),
            Cell(f"{each.intensity:.3g}", each.intensity),
            Cell(_flops(each.flops_per_s), each.flops_per_s),
            Cell("–" if each.of_roof is None else _percent(each.of_roof), each.of_roof),
        ]
        for each in operators[:_MOST_ROWS]
    ]
    columns = ["operator", "inputs", "bound by", "calls", "time", "flop per byte", "achieved", "of the roof"]
    used = _used(columns, rows)
    shown = [columns[at] for at in used]
    numbers = [each for each in shown if each not in columns[:3]]
    yield Fold("The operators", (table(shown, [[row[at] for at in used] for row in rows], numbers=numbers),))
    yield Text(
        "Products, convolutions, attention and recurrent networks, with the time of their kernels where a device ran "
        "them. Bytes are those of their inputs and results, each moved once. With many ranks, one in eight is counted."
    )


def _short(operator: str) -> str:
    return operator.removeprefix("aten::")


def readable(name: str) -> str:
    """Return a kernel's C++ name without its parameters and namespaces, and any name no longer than a line."""
    if "::" in name and ("<" in name or "(" in name):
        name, depth = name.replace("(anonymous namespace)::", ""), 0
        for at, sign in enumerate(name):
            depth += (sign == "<") - (sign == ">")
            if sign == "(" and depth == 0:
                name = name[:at]
                break
        name = _NAMESPACE.sub("", name).removeprefix("void ")
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _flops(per_s: float) -> str:
    return f"{per_s / 1e12:.3g} Tflop/s" if per_s >= 1e11 else f"{per_s / 1e9:.3g} Gflop/s"


def _traffic(analysis: TraceAnalysis) -> Iterator[Block]:
    counted = analysis.traffic
    if counted is None:
        return
    steps = max(1, counted.steps)
    yield Heading("Memory traffic of the GPU, as its hardware counted it")
    moved = (counted.read_bytes + counted.written_bytes) / steps
    tiles = [
        Tile("moved in each step" if counted.steps else "moved", format_size(round(moved)), counted.device),
        Tile("rate", f"{format_size(round(counted.bytes_per_s))}/s",
             f"{_percent(counted.of_peak)} of the datasheet's" if counted.of_peak is not None else "while kernels ran"),
        Tile("by products", format_size(round(counted.products_bytes / steps)),
             "matrix products, convolutions, attention"),
    ]  # fmt: skip
    if counted.products_model_bytes is not None:
        model = format_size(round(counted.products_model_bytes / steps))
        tiles.append(Tile("their inputs and outputs", model, "each through memory once"))
    yield Tiles(tuple(tiles))
    rows: list[Row] = [
        [
            Cell(each.kernel, code=True),
            f"{each.calls / steps:g}",
            Cell(format_size(round(each.read_bytes / steps)), each.read_bytes),
            Cell(format_size(round(each.written_bytes / steps)), each.written_bytes),
            _seconds(each.seconds / steps),
            Cell(f"{format_size(round(each.bytes_per_s))}/s", each.bytes_per_s),
            Cell(_percent(each.of_peak), each.of_peak) if each.of_peak is not None else "",
        ]
        for each in counted.kernels[:_MOST_ROWS]
    ]
    columns = ["kernel", "calls", "read", "written", "time", "rate", "of the datasheet's"]
    yield table(columns, rows, numbers=columns[1:])


def _names(analysis: TraceAnalysis) -> Iterator[Block]:
    if not analysis.names:
        return
    yield Heading("Longest operations")
    rows: list[Row] = [
        [
            Cell(readable(each.name), code=True),
            _count(each.calls),
            _seconds(each.seconds),
            Cell(_percent(each.share), each.share),
        ]
        for each in analysis.names[:_MOST_ROWS]
    ]
    columns = ["name", "calls", "time", "of all ranks' time"]
    shown = table(columns, rows[:10], numbers=columns[1:])
    yield shown
    if len(rows) > 10:
        yield Fold(f"All {len(rows)}", (table(columns, rows, numbers=columns[1:]),))
    yield Text("Sums over ranks; each moment of a rank counts for the innermost event, the device before the host.")


def _coupling(coupling: CouplingAnalysis) -> Iterator[Block]:
    yield Heading("Coupling")
    title = "How long each part waited for each other"
    yield from drawn(lambda: trace_figures.wait_matrix(coupling.names, coupling.matrix, name="coupling", title=title))
    parts: list[Row] = [
        [
            each.name or "the program",
            _count(each.ranks),
            _count(each.steps),
            _seconds(each.span_s),
            _seconds(each.compute_s),
            _seconds(each.exchange_s),
            _seconds(each.waits_s),
            _seconds(each.idle_s),
            Cell(_percent(each.cost), each.cost, "bad" if each.cost >= _GREAT else ""),
        ]
        for each in coupling.components
    ]
    columns = ["part", "ranks", "steps", "time", "compute", "exchange", "of it waiting", "idle", "cost of coupling"]
    yield table(columns, parts, numbers=columns[1:])
    yield Text("Means over ranks. The cost of coupling is the exposed exchange time divided by the step time.")
    rows: list[Row] = [
        [
            f"{each.giver or 'program'} → {each.taker or 'program'}",
            Cell(each.key, code=True),
            _count(each.count),
            Cell(format_size(each.bytes), float(each.bytes)),
            _seconds(each.put_s),
            _seconds(each.get_s),
            _seconds(each.taker_waits_s),
            _seconds(each.giver_waits_s),
            _rate(each.bytes_per_s),
            _seconds(each.age_s),
            Cell(f"{each.versions_behind:.3g}", each.versions_behind),
        ]
        for each in coupling.exchanges[:_MOST_ROWS]
    ]
    columns = ["from → to", "key", "times", "moved", "put", "get", "taker waited", "giver waited", "bandwidth",
               "age when taken", "versions behind"]  # fmt: skip
    yield table(columns, rows, numbers=columns[2:])
    if coupling.unmatched:
        yield Note(f"{coupling.unmatched:,} gets have no matching put in the trace.")
    if coupling.untaken:
        yield Text(f"{coupling.untaken:,} versions were put but never read.")


def _used(columns: list[str], rows: list[Row]) -> list[int]:
    """Return the columns that say anything."""
    return [
        at
        for at in range(len(columns))
        if at < 2 or any((cell.text if isinstance(cell, Cell) else cell) not in ("", "–", "0 s") for cell in
                         (row[at] for row in rows))
    ]  # fmt: skip


def _seconds(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(format_duration(value), value)


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", float(value))


def _rate(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(f"{format_size(round(value))}/s", value)


def _percent(share: float) -> str:
    percent = share * 100
    return f"{percent:.0f} %" if percent >= 9.5 or percent == 0 else f"{percent:.1f} %"
