"""The pages of predictions: what a step needs and when, how long it takes and why, how far it scales and how."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fairmile.base.errors import NotFound
from fairmile.base.units import format_duration, format_size
from fairmile.costs.devices import Device, device
from fairmile.predict.memory.account import MemoryAccount, SizeInterval
from fairmile.predict.memory.sharding import Layout, RankMemory
from fairmile.predict.results import MemoryPrediction, TimePrediction
from fairmile.predict.scaling.curves import ScalingPrediction, ScalingRow, lost_words
from fairmile.reports import figures, html, predict_figures, trace_figures
from fairmile.reports.blocks import (
    NO_FIGURES,
    Block,
    Cell,
    Facts,
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
from fairmile.reports.predict_figures import (
    MEMORY_NAMES,
    STEP_NAMES,
    percent,
    rank_parts,
    roof_points,
    short_name,
    step_parts,
    under_the_roof,
)

_MOST_MODULES = 20
_HOW = {
    "here": "measured here",
    "exact": "measured",
    "interpolated": "from measured calls of other sizes",
    "scaled": "from measured calls on another device",
    "roofline": "from the roof of the device alone",
}


def memory_page(prediction: MemoryPrediction) -> str:
    """Return what a step needs as one HTML file that needs nothing else."""
    return _page(f"Memory of {prediction.target}", list(memory_blocks(prediction)))


def time_page(prediction: TimePrediction) -> str:
    """Return how long a step takes as one HTML file that needs nothing else."""
    return _page(f"Time of {prediction.target}", list(time_blocks(prediction)))


def scaling_page(prediction: ScalingPrediction, *, title: str) -> str:
    """Return how a target scales as one HTML file that needs nothing else."""
    return _page(title, list(scaling_blocks(prediction, title=title)))


def _page(title: str, blocks: list[Block]) -> str:
    if not figures.can_draw():
        blocks.append(NO_FIGURES)
    return html.render(title, blocks)


# ---- memory


def memory_blocks(prediction: MemoryPrediction) -> Iterator[Block]:
    """Yield the parts of the page about memory, for any writer."""
    where = f"{prediction.gpu.name} · batch of {prediction.batch:,}"
    if prediction.layout is not None:
        at_once = (
            f"{prediction.layout.micro_batch:,} of the {prediction.layout.global_batch:,} samples of a step at once"
        )
        where = (
            f"{prediction.gpu.name} · {prediction.layout.ranks:,} ranks: {spread_words(prediction.layout)} · {at_once}"
        )
    badge = {True: "fits", False: "does not fit", None: "at least"}[prediction.fits]
    tone: Tone = "good" if prediction.fits else "warn" if prediction.fits is None else "bad"
    yield Title(f"Memory of {prediction.target}", badge, tone, where)
    yield _memory_tiles(prediction)
    account = prediction.estimate if isinstance(prediction.estimate, MemoryAccount) else None
    if account is not None and account.out_of_memory and prediction.rank is None:
        yield Note(_sentence(f"The run would end with: {account.out_of_memory}"), "bad")
    elif prediction.squeeze:
        yield Note(_sentence(f"It fits {prediction.squeeze}"))
    elif prediction.fits is False:
        short = prediction.device_used_bytes - prediction.gpu.memory_bytes
        yield Note(f"The device lacks {format_size(short)}.", "bad")
    if prediction.stopped:
        yield Note(_sentence(f"All figures are lower bounds, since {prediction.stopped}"))
    yield from (Note(_sentence(each)) for each in prediction.notes)
    if prediction.rank is not None:
        yield from _rank(prediction.rank, prediction.gpu)
    yield from _whole(prediction)
    if account is not None:
        yield from _over_time(account)
        yield from _modules(account.by_module, "Activations at the peak, by module", "module")
    elif not isinstance(prediction.estimate, MemoryAccount):
        footprint = prediction.estimate.footprint
        copies = footprint.copies_bytes or {}
        kept = {name: round(size + copies.get(name, 0.0)) for name, size in footprint.activations_bytes.items()}
        yield from _modules(kept, "Activations that are kept for backward, by part of the model", "part")


def _memory_tiles(prediction: MemoryPrediction) -> Tiles:
    account = (
        prediction.estimate if isinstance(prediction.estimate, MemoryAccount) and prediction.rank is None else None
    )
    parts = rank_parts(prediction.rank) if prediction.rank is not None else prediction.estimate.breakdown
    allocated, reserved = prediction.estimate.peak_allocated_bytes, prediction.estimate.peak_reserved_bytes
    if prediction.rank is not None:
        allocated, reserved = round(prediction.rank.allocated_bytes), round(prediction.rank.reserved_bytes)
    used, limit = prediction.device_used_bytes, prediction.gpu.memory_bytes
    largest = max(parts, key=lambda name: parts[name]) if parts else ""
    estimated = "with the slack that the whole step has" if prediction.rank is not None else "an estimate by its kind"
    open_end = bool(prediction.stopped)
    return Tiles(
        (
            Tile("allocated at the peak", format_size(allocated),
                 _span(account.allocated_span, open_end) if account else ""),
            Tile("reserved", format_size(reserved), _span(account.reserved_span, open_end) if account else estimated),
            Tile("device", format_size(used),
                 f"{percent(used / limit)} of {format_size(limit)}" + (
                     f"; {_span(account.device_span, open_end)}" if account else "")),
            Tile("fits", {True: "yes", False: "no", None: "not known"}[prediction.fits], f"on {prediction.gpu.name}"),
            Tile("largest part", MEMORY_NAMES.get(largest, largest),
                 f"{format_size(parts[largest])}, {percent(parts[largest] / used)}" if largest and used else ""),
        )
    )  # fmt: skip


def _rank(rank: RankMemory, gpu: Device) -> Iterator[Block]:
    yield Heading("Memory of the fullest rank")
    parts = rank_parts(rank)
    yield from drawn(lambda: predict_figures.device_filling(
        parts, gpu.memory_bytes, name="rank", title="Device memory of the fullest rank"
    ))  # fmt: skip
    yield _parts_table(parts, folded=True)
    outside = [("memory of the host", rank.host_bytes), ("NVMe", rank.nvme_bytes)]
    kept = [f"{format_size(round(size))} in the {name}" for name, size in outside if size]
    if kept:
        yield Text(
            f"Outside the device it keeps {' and '.join(kept)}; moving it takes {format_duration(rank.offload_s)} of "
            "each step."
        )


def _whole(prediction: MemoryPrediction) -> Iterator[Block]:
    is_alone = prediction.rank is None
    yield Heading("Device memory at the peak" if is_alone else "Memory of one GPU without parallelism")
    parts = prediction.estimate.breakdown
    if is_alone:
        title = "Device memory"
        limit = (
            prediction.estimate.device_bytes
            if isinstance(prediction.estimate, MemoryAccount)
            else prediction.gpu.memory_bytes
        )
        yield from drawn(lambda: predict_figures.device_filling(parts, limit, name="breakdown", title=title))
    yield _parts_table(parts, folded=is_alone)
    if isinstance(prediction.estimate, MemoryAccount):
        peak = prediction.estimate.peak
        when = "while the model is built" if peak.step < 0 else f"in step {peak.step + 1}, {peak.phase or 'between'}"
        ran = f", in {short_name(peak.op)}" if peak.op else ""
        of = f" of module {peak.module}" if peak.module else ""
        yield Text(f"The peak is {when}{ran}{of}.")
        if is_alone:
            yield Text(
                "Intervals are calibrated on measured cases. The context is the memory that a process takes on the "
                "device before it allocates anything."
            )
    else:
        yield Text(
            f"The peak is at: {prediction.estimate.moment}. The model has {prediction.estimate.parameters:,} "
            f"parameters, a step takes {prediction.estimate.flops_per_step / 1e12:,.4g} Tflop. "
            "From a description only: what the allocator reserves "
            "beyond the peak is an estimate."
        )


def _over_time(account: MemoryAccount) -> Iterator[Block]:
    if not account.timeline:
        return
    yield Heading("Memory over the steps")
    yield from drawn(lambda: predict_figures.memory_over_time(account))
    rows: list[Row] = []
    steps = sorted({(each.step, each.phase) for each in account.timeline if each.phase},
                   key=lambda each: (each[0], _PHASE_ORDER.get(each[1], len(_PHASE_ORDER))))  # fmt: skip
    for step, phase in steps:
        inside = [each for each in account.timeline if (each.step, each.phase) == (step, phase)]
        rows.append(
            [
                Cell(str(step + 1), float(step)),
                phase,
                _size(max(each.allocated_bytes for each in inside)),
                _size(max(each.reserved_bytes for each in inside)),
            ]
        )
    columns = ["step", "phase", "most allocated", "most reserved"]
    yield Fold("Steps and phases", (table(columns, rows, numbers=("step", *columns[2:])),))


_PHASE_ORDER = {"forward": 0, "backward": 1, "optimizer": 2}


def _modules(sizes: Mapping[str, int], heading: str, column: str) -> Iterator[Block]:
    shown = sorted(((name, size) for name, size in sizes.items() if size > 0), key=lambda each: -each[1])
    if not shown:
        return
    total = sum(size for _, size in shown)
    yield Heading(heading)
    rows: list[Row] = [
        [Cell(name or "outside any module", code=bool(name)), _size(size), Cell(percent(size / total), size / total)]
        for name, size in shown
    ]
    columns = [column, "size", "of all"]
    yield table(columns, rows[:_MOST_MODULES], numbers=columns[1:])
    if len(rows) > _MOST_MODULES:
        rest = sum(size for _, size in shown[_MOST_MODULES:])
        title = f"{len(rows) - _MOST_MODULES:,} more, {format_size(rest)} together"
        yield Fold(title, (table(columns, rows[_MOST_MODULES:], numbers=columns[1:]),))


def _parts_table(parts: Mapping[str, int], *, folded: bool) -> Block:
    total = sum(parts.values()) or 1
    rows: list[Row] = [
        [MEMORY_NAMES.get(name, name), _size(size), Cell(percent(size / total), size / total)]
        for name, size in sorted(parts.items(), key=lambda each: -each[1])
        if size
    ]
    columns = ["part", "size", "of all"]
    shown = table(columns, rows, numbers=columns[1:])
    return Fold("The same as a table", (shown,)) if folded and figures.can_draw() else shown


# ---- time


def time_blocks(prediction: TimePrediction) -> Iterator[Block]:
    """Yield the parts of the page about time, for any writer."""
    step = prediction.step
    badge = f"{prediction.bound}-bound"
    yield Title(f"Time of {prediction.target}", badge, "warn" if prediction.bound in ("input", "launch") else "",
                f"{step.device} · batch of {prediction.batch:,}")  # fmt: skip
    yield _time_tiles(prediction)
    yield from (Note(_sentence(each)) for each in step.notes)
    yield from _input(prediction)
    yield Heading("Device time of a step")
    yield from drawn(lambda: predict_figures.time_parts(step.by_kind, step.by_phase))
    parts = [_shares_table("class of operator", step.by_kind), _shares_table("phase", step.by_phase)]
    yield from ([Fold("The same as tables", tuple(parts))] if figures.can_draw() else parts)
    modules = {name or "outside any module": value for name, value in step.by_module.items()}
    yield Fold("By module", (_shares_table("module", modules, code=True),))
    slow = "longer than the device computes" if step.host_s > step.device_s else "mostly while the device computes"
    yield Text(
        f"The device computes for {format_duration(step.device_s)}. The host needs {format_duration(step.host_s)} to "
        f"launch all operators, {slow}. At the roofline limit, all operators together would take "
        f"{format_duration(step.roof_s)}."
    )
    yield from _operators(prediction)
    yield from _movement(prediction)


def _time_tiles(prediction: TimePrediction) -> Tiles:
    step = prediction.step
    is_waiting = prediction.input is not None and prediction.input.is_input_bound
    between = f"{format_duration(step.low_s)} to {format_duration(step.high_s)}"
    rates = f"{_rate(prediction.batch / step.high_s)} to {_rate(prediction.batch / step.low_s)}"
    tiles = [
        Tile("step", format_duration(prediction.step_time_s),
             f"{format_duration(step.step_time_s)} if input arrived in time" if is_waiting else between),
        Tile("samples per second", _rate(prediction.batch / prediction.step_time_s),
             f"what {prediction.input.limit} delivers" if prediction.input is not None and is_waiting else rates),
        Tile("bound by", prediction.bound, _BOUNDS.get(prediction.bound, "")),
        Tile("device busy", percent(step.device_s / prediction.step_time_s if is_waiting else step.utilisation),
             f"{step.flops / prediction.step_time_s / 1e12:,.3g} Tflop/s"),
    ]  # fmt: skip
    if prediction.energy is not None:
        energy = prediction.energy
        between = f"{_energy(energy.low_j)} to {_energy(energy.high_j)}, {energy.power_w:.0f} W"
        tiles.append(Tile("energy of a step", _energy(energy.joules), between))
    return Tiles(tuple(tiles))


_BOUNDS = {
    "compute": "arithmetic of the device",
    "memory": "bandwidth of its memory",
    "launch": "the host feeds it too slowly",
    "input": "samples arrive too slowly",
}


def _input(prediction: TimePrediction) -> Iterator[Block]:
    fed = prediction.input
    if fed is None:
        return
    yield Heading("Input")
    yield Note(_sentence(fed.sentence), "bad" if fed.is_input_bound else "good")
    delivered = f"{_rate(fed.delivered_per_s)} samples/s" if math.isfinite(fed.delivered_per_s) else "not known"
    pairs = [("a step consumes", f"{_rate(fed.wanted_per_s)} samples/s"), ("arrive", delivered)]
    if fed.limit:
        pairs.append(("limited by", fed.limit))
    pairs += [
        ("arrive in time", percent(fed.share)),
        (
            "step with waiting",
            f"{format_duration(fed.step_time_s)}, {format_duration(prediction.step.step_time_s)} without",
        ),
    ]
    yield Facts(tuple(pairs))


def _operators(prediction: TimePrediction) -> Iterator[Block]:
    step = prediction.step
    if not step.top:
        return
    yield Heading("Longest operators")
    points, on = roof_points(step.top), _device(step.device)
    if on is not None:
        yield from drawn(lambda: trace_figures.roofline(under_the_roof(step.top, on)))
    rows: list[Row] = []
    for each in step.top:
        point = points.get(each.signature)
        rows.append(
            [
                Cell(short_name(each.name), code=True),
                Cell(_shapes(each.signature), code=True),
                Cell(f"{each.count:,}", float(each.count)),
                Cell(format_duration(each.device_s), each.device_s),
                Cell(percent(each.device_s / step.device_s), each.device_s),
                Cell(f"{point.intensity:.3g}", point.intensity) if point else Cell("–"),
                each.bound,
                _HOW[each.how] if each.how in ("here", "exact") else each.how,
            ]
        )
    columns = ["operator", "tensors", "calls", "time", "of all", "flop per byte", "bound by", "source"]
    yield table(columns, rows, numbers=columns[2:6])
    known = ", ".join(
        f"{percent(value / step.device_s)} {_HOW.get(name, name)}"
        for name, value in sorted(step.by_how.items(), key=lambda each: -each[1])
    )
    yield Text(f"Sources of the times, by share of time: {known}. Calls with the same tensors are counted together.")


def _movement(prediction: TimePrediction) -> Iterator[Block]:
    step = prediction.step
    if not step.moved_bytes or not step.least_bytes:
        return
    yield Heading("Data moved in a step")
    on = _device(step.device)
    rate = on.bandwidth_ceiling if on is not None else 0.0
    yield from drawn(lambda: predict_figures.moved_bytes(step.moved_bytes, step.least_bytes, rate))
    yield Text(
        f"Its operators move {format_size(step.moved_bytes)}, {step.moved_bytes / step.least_bytes:.3g} times the "
        f"{format_size(step.least_bytes)} that cannot be avoided: data that outlives the step or that the backward "
        "pass needs. Fusing operators and recomputing activations reduce it."
    )


def _shapes(signature: str) -> str:
    """Return the first tensors of a signature."""
    parts = signature.split("|")
    tensors = parts[1].split(";") if len(parts) > 1 else []
    return "; ".join(tensors[:2]) + (" …" if len(tensors) > 2 else "")


def _shares_table(name: str, parts: Mapping[str, float], *, code: bool = False) -> Block:
    total = sum(parts.values()) or 1.0
    rows: list[Row] = [
        [Cell(each, code=code), Cell(format_duration(value), value), Cell(percent(value / total), value)]
        for each, value in sorted(parts.items(), key=lambda each: -each[1])
        if value > 0
    ]
    return table([name, "time", "of all"], rows, numbers=["time", "of all"])


def _device(name: str) -> Device | None:
    try:
        return device(name)
    except NotFound:
        return None


# ---- scaling


def scaling_blocks(prediction: ScalingPrediction, *, title: str) -> Iterator[Block]:
    """Yield the parts of the page about scaling, for any writer."""
    kind = "Strong scaling: the batch of a step stays the same" if prediction.mode == "strong" else (
        "Weak scaling: the batch of one GPU stays the same"
    )  # fmt: skip
    worth = prediction.worth_up_to
    badge = f"worth it up to {worth:,} GPUs" if worth is not None else "no plan"
    yield Title(title, badge, "good" if worth is not None else "bad", kind)
    yield _scaling_tiles(prediction)
    rows = [each for each in prediction.rows if each.plan is not None]
    if not rows:
        yield Note("No layout fits in memory at any of these GPU counts.", "bad")
    yield Heading("Time and throughput")
    yield from drawn(lambda: predict_figures.scaling_curves(prediction))
    yield _rows_table(prediction)
    if rows:
        yield Heading("How many GPUs are worth it")
        yield Text(_worth(prediction))
        yield from drawn(lambda: predict_figures.efficiency_curve(prediction))
        yield Heading("Parts of a step")
        yield from drawn(lambda: predict_figures.step_shares(prediction))
        yield _parts_by_count(rows)
        yield Heading("Memory")
        yield from drawn(lambda: predict_figures.rank_memory_bars(prediction, prediction.memory_bytes))
        yield _memory_by_count(rows, prediction.memory_bytes)
        yield from _costs(rows)
    if prediction.notes:
        yield Heading("Assumptions and sources")
        yield from (Text(_sentence(each)) for each in prediction.notes)


def _scaling_tiles(prediction: ScalingPrediction) -> Tiles:
    rows = [each for each in prediction.rows if each.plan is not None]
    tiles = [Tile("worth it up to", f"{prediction.worth_up_to:,} GPUs" if prediction.worth_up_to is not None else "–",
                  f"efficiency of {prediction.threshold * 100:.0f} % or more")]  # fmt: skip
    if rows:
        fastest = min(rows, key=lambda each: (each.step_time_s or 0.0) / each.global_batch)
        worth = next((each for each in rows if each.gpus == prediction.worth_up_to), rows[0])
        low_s, high_s = worth.interval_s or (0.0, 0.0)
        tiles += [
            Tile(f"step on {worth.gpus:,}", format_duration(worth.step_time_s or 0.0),
                 f"{format_duration(low_s)} to {format_duration(high_s)}"),
            Tile(f"samples per second on {worth.gpus:,}", _rate(worth.samples_per_s or 0.0),
                 f"batch of {worth.global_batch:,}"),
            Tile("fastest on", f"{fastest.gpus:,} GPUs",
                 f"{_rate(fastest.samples_per_s or 0.0)} samples/s at {percent(fastest.efficiency or 0.0)}"),
            Tile("memory", format_size(round(max(each.plan.memory.device_bytes for each in rows if each.plan))),
                 "of the fullest rank of any plan"),
        ]  # fmt: skip
    return Tiles(tuple(tiles))


def _worth(prediction: ScalingPrediction) -> str:
    if prediction.worth_up_to is None:
        return "The efficiency cannot be determined at any GPU count."
    text = (
        f"Up to {prediction.worth_up_to:,} GPUs, the throughput per GPU is at least {prediction.threshold * 100:.0f} % "
        "of that on the fewest GPUs."
    )
    beyond = [each for each in prediction.rows if each.gpus > prediction.worth_up_to and each.efficiency is not None]
    if beyond and beyond[0].efficiency is not None:
        text += f" On {beyond[0].gpus:,} it is {percent(beyond[0].efficiency)}."
    return text


def _rows_table(prediction: ScalingPrediction) -> Block:
    columns = ["GPUs", "nodes", "batch", "step", "from", "to", "samples/s", "efficiency", "lost to",
               "layout"]  # fmt: skip
    rows: list[Row] = []
    for each in prediction.rows:
        start: Row = [_count(each.gpus), _count(each.nodes), _count(each.global_batch)]
        if each.plan is None:
            rows.append([*start, *(Cell("–") for _ in range(6)), Cell(each.reason, tone="warn")])
            continue
        low_s, high_s = each.interval_s or (None, None)
        good = each.efficiency is not None and each.efficiency >= prediction.threshold
        rows.append(
            [
                *start,
                _seconds(each.step_time_s),
                _seconds(low_s),
                _seconds(high_s),
                Cell(_rate(each.samples_per_s or 0.0), each.samples_per_s),
                Cell(percent(each.efficiency or 0.0), each.efficiency, "good" if good else "bad"),
                lost_words(each.lost, percent),
                spread_words(each.plan.layout),
            ]
        )
    return table(columns, rows, numbers=columns[:-2])


def _parts_by_count(rows: Sequence[ScalingRow]) -> Block:
    parts = [step_parts(each.plan) if each.plan else {} for each in rows]
    used = [name for name in STEP_NAMES if any(each.get(name) for each in parts)]
    cells: list[Row] = [
        [_count(row.gpus), *(_seconds(each.get(name)) for name in used)]
        for row, each in zip(rows, parts, strict=True)
    ]  # fmt: skip
    columns = ["GPUs", *(STEP_NAMES[name] for name in used)]
    shown = table(columns, cells, numbers=columns)
    return Fold("The same as a table", (shown,)) if figures.can_draw() else shown


def _memory_by_count(rows: Sequence[ScalingRow], limit_bytes: float | None) -> Block:
    parts = [rank_parts(each.plan.memory) if each.plan else {} for each in rows]
    used = [name for name in MEMORY_NAMES if any(each.get(name) for each in parts)]
    cells: list[Row] = []
    for row, each in zip(rows, parts, strict=True):
        whole = sum(each.values())
        host = round(row.plan.memory.host_bytes) if row.plan else 0
        line: Row = [_count(row.gpus), _size(whole)]
        line.append(Cell(percent(whole / limit_bytes), whole / limit_bytes) if limit_bytes else Cell("–"))
        cells.append([*line, *(_size(each.get(name, 0)) for name in used), _size(host)])
    columns = ["GPUs", "all", "of the device", *(MEMORY_NAMES[name] for name in used), "on the host"]
    shown = [at for at in range(len(columns)) if any(_says(row[at]) for row in cells)]
    names = [columns[at] for at in shown]
    whole_table = table(names, [[row[at] for at in shown] for row in cells], numbers=names)
    return Fold("The same as a table", (whole_table,)) if figures.can_draw() else whole_table


def _costs(rows: Sequence[ScalingRow]) -> Iterator[Block]:
    columns = ["GPUs", "time in all", "GPU-hours", "energy", "energy of a sample", "cost"]
    cells: list[Row] = [
        [
            _count(each.gpus),
            _seconds(each.wall_s),
            Cell(_rate(each.gpu_hours), each.gpu_hours) if each.gpu_hours is not None else Cell("–"),
            Cell(_energy(each.energy_j), each.energy_j) if each.energy_j is not None else Cell("–"),
            Cell(_energy(each.energy_per_sample_j), each.energy_per_sample_j)
            if each.energy_per_sample_j is not None
            else Cell("–"),
            Cell(f"{each.cost:,.2f}", each.cost) if each.cost is not None else Cell("–"),
        ]
        for each in rows
    ]
    shown = [at for at in range(len(columns)) if any(_says(row[at]) for row in cells)]
    if len(shown) < 2:
        return
    yield Heading("Cost and energy")
    names = [columns[at] for at in shown]
    yield table(names, [[row[at] for at in shown] for row in cells], numbers=names)
    if rows[0].wall_s is not None:
        samples = rows[0].wall_s / (rows[0].step_time_s or 1.0) * rows[0].global_batch
        yield Text(f"For {samples:,.0f} samples. Energy is that of GPUs at their full power.")
    else:
        yield Text("Energy is that of GPUs at their full power. Give the number of samples (--samples) for the total.")


def spread_words(layout: Layout) -> str:
    """Return a layout in words: `data 8, tensor 2, ZeRO 3`."""
    ways = (("data", layout.data), ("tensor", layout.tensor), ("pipeline", layout.pipeline))
    words = [f"{name} {value:,}" for name, value in ways if value > 1]
    if layout.zero:
        words.append(f"ZeRO {layout.zero}")
    if layout.micro_batches > 1:
        words.append(f"{layout.micro_batches:,} micro-batches of {layout.micro_batch:,}")
    if layout.recompute != "none":
        words.append(f"{layout.recompute} recomputation")
    if layout.optimizer_on != "device":
        words.append(f"optimizer on {layout.optimizer_on}")
    return ", ".join(words) or "one GPU"


# ---- words and cells


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".")


def _says(cell: str | Cell) -> bool:
    return (cell.text if isinstance(cell, Cell) else cell) not in ("", "–", "0 B")


def _size(value: int) -> Cell:
    return Cell(format_size(value), float(value))


def _seconds(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(format_duration(value), value)


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", float(value))


def _span(span: SizeInterval, open_end: bool) -> str:
    return f"{format_size(span.low)} {'or more' if open_end else 'to ' + format_size(span.high)}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _energy(joules: float) -> str:
    size, unit = figures.scale(joules, "J")
    return f"{joules / size:,.3g} {unit}"
