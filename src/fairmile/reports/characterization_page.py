"""The page of a characterization: one training step from all sides, predictions beside measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairmile.base.units import format_duration, format_size
from fairmile.predict.characterization import Characterization, ComparisonDict
from fairmile.reports import figures, html
from fairmile.reports.blocks import NO_FIGURES, Block, Cell, Facts, Heading, Row, Text, Title, table
from fairmile.reports.predict_page import memory_blocks, scaling_blocks, time_blocks

_NAMES = {
    "step_s": "step",
    "samples_per_s": "samples a second",
    "peak_allocated_bytes": "allocated at the peak",
    "peak_reserved_bytes": "reserved at the peak",
    "moved_bytes": "moved through GPU memory",
}
_CLOSE = 0.15


def characterization_page(found: Characterization) -> str:
    """Return a characterization as one HTML file that needs nothing else."""
    blocks = list(characterization_blocks(found))
    if not figures.can_draw():
        blocks.append(NO_FIGURES)
    return html.render(f"Characterization of {found.target}", blocks)


def characterization_blocks(found: Characterization) -> Iterator[Block]:
    """Yield the parts of the page, for any writer."""
    rows = found.comparison()
    worst = max((abs(row["off"]) for row in rows), default=0.0)
    badge = f"within {worst:.0%} of what was measured" if rows else "predicted"
    where = f"{found.memory.gpu.name} · batch of {found.memory.batch:,}"
    yield Title(
        f"Characterization of {found.target}", badge, ("good" if worst <= _CLOSE else "warn") if rows else "", where
    )
    yield Facts(tuple(found.facts()))
    if found.measured is not None:
        yield Heading("Prediction and measurement")
        columns = ["quantity", "predicted", "measured", "prediction is off by"]
        yield table(columns, [_row(row) for row in rows], numbers=columns[1:])
        when = f" on {found.measured.date}" if found.measured.date else ""
        yield Text(f"Measured on {found.measured.gpu or 'a GPU'}{when}, from {found.measured.source}.")
    yield from _part(memory_blocks(found.memory))
    yield from _part(time_blocks(found.time))
    if found.scaling is not None:
        yield from _part(scaling_blocks(found.scaling, title=f"Scaling of {found.target} on {found.scaling.on}"))


def _part(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of a page as a part of another: its title becomes a heading."""
    for block in blocks:
        if isinstance(block, Title):
            yield Heading(block.text)
            yield Text(" · ".join(part for part in (block.badge, block.below) if part) + ".")
        else:
            yield block


def _row(row: ComparisonDict) -> Row:
    name, off = row["quantity"], row["off"]
    shown = [_value(name, row["predicted"]), _value(name, row["measured"])]
    return [_NAMES[name], *shown, Cell(f"{off:+.1%}", abs(off), "good" if abs(off) <= _CLOSE else "bad")]


def _value(name: str, value: float) -> Cell:
    if name == "step_s":
        return Cell(format_duration(value), value)
    return Cell(format_size(round(value)) if name.endswith("_bytes") else f"{value:,.4g}", value)
