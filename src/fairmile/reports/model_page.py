"""The page of an exploration: which way to run a model is best, by how much, and what each loses."""

from __future__ import annotations

from collections.abc import Iterator

from fairmile.base.units import format_duration, format_size
from fairmile.models.explore.results import (
    CandidateDict,
    Exploration,
    candidate_name,
    cost_text,
    exploration_columns,
    exploration_row,
    unpredicted_reasons,
)
from fairmile.reports import figures, html, model_figures
from fairmile.reports.blocks import NO_FIGURES, Block, Cell, Facts, Heading, Note, Row, Text, Tile, Tiles, Title, table
from fairmile.reports.one_run import drawn

_NUMBERS = ("batch", "threads", "latency", "p99", "samples/s", "first call", "memory", "size", "error", "J/sample",
            "predicted", "predicted memory", "accuracy", "rmse")  # fmt: skip


def exploration_page(explored: Exploration) -> str:
    """Return an exploration as one HTML file that needs nothing else."""
    blocks = list(exploration_blocks(explored))
    if not figures.can_draw():
        blocks.append(NO_FIGURES)
    return html.render(f"Exploration of {explored.data['model']}", blocks)


def exploration_blocks(explored: Exploration) -> Iterator[Block]:
    """Yield the parts of the page, for any writer."""
    data, machine = explored.data, explored.data["machine"]
    winner = explored.recommended
    where = machine["gpu"] or f"{machine['name']}, {machine['cores']} cores"
    badge, tone = ("decided", "good") if winner is not None else ("cannot tell", "warn")
    yield Title(f"Fastest way to run {data['model']}", badge, tone, f"by {data['best']} · {where}")  # type: ignore[arg-type]
    if winner is not None:
        yield Tiles(tuple(_tiles(explored, winner)))
    yield Note(data["answer"][:1].upper() + data["answer"][1:] + ".", "good" if winner is not None else "warn")
    if explored.warning:
        yield Note(explored.warning[:1].upper() + explored.warning[1:] + ".")
    yield Heading("Speed and error")
    yield from drawn(lambda: model_figures.speed_front(explored))
    yield from drawn(lambda: model_figures.cost_bars(explored))
    yield from drawn(lambda: model_figures.error_points(explored))
    yield Heading("Combinations")
    rows = model_figures.measured_rows(explored)
    columns = exploration_columns(explored)
    yield table(columns, [_row(explored, each, columns) for each in rows], numbers=[*_NUMBERS])
    yield Text(_meaning(explored))
    for what, reason in unpredicted_reasons(explored).items():
        yield Text(f"{what[:1].upper()}{what[1:]}: {reason}.")
    refused = [each for each in explored.candidates if each["state"] == "refused"]
    if refused:
        yield Heading("Not available")
        reasons = {(f"{each['runtime']} {each['precision']}", each["reason"]): None for each in refused}
        yield table(["combination", "reason"], [[name, reason] for name, reason in reasons])
    yield Heading("How it was measured")
    yield Facts(tuple(_facts(explored)))


def _tiles(explored: Exploration, winner: CandidateDict) -> Iterator[Tile]:
    name, _, setting = candidate_name(winner).partition(", ")
    yield Tile("recommended", name, setting)
    if explored.data["best"] == "energy":
        yield Tile("energy", cost_text(winner, "energy"))
    yield Tile(
        "latency",
        format_duration(winner["latency_s"]),
        f"p99 {format_duration(winner['p99_s'])}" if "p99_s" in winner else "",
    )
    yield Tile(
        "samples per second",
        f"{winner['throughput_per_s']:,.0f}",
        f"first call {format_duration(winner['first_call_s'])}",
    )
    yield Tile("memory", format_size(winner["memory_bytes"]), f"model {format_size(winner['size_bytes'])}")


def _row(explored: Exploration, row: CandidateDict, columns: list[str]) -> Row:
    sorting = {
        "batch": float(row["batch"]),
        "threads": float(row["threads"]),
        "latency": row["latency_s"],
        "p99": row.get("p99_s"),
        "samples/s": row["throughput_per_s"],
        "first call": row["first_call_s"],
        "memory": float(row["memory_bytes"]),
        "size": float(row["size_bytes"]),
        "error": row["error"],
        "J/sample": row.get("energy_per_sample_j"),
        "predicted": row.get("predicted_s"),
        "predicted memory": row.get("predicted_memory_bytes"),
    }
    tones = {"best": "good", "equal": "good", "not the same": "bad", "open": "warn"}
    cells: Row = []
    for name, text in zip(columns, exploration_row(explored, row, columns), strict=True):
        tone = tones.get(row["verdict"], "") if name == "verdict" else ""
        cells.append(Cell(text, sorting.get(name), tone))  # type: ignore[arg-type]
    return cells


def _meaning(explored: Exploration) -> str:
    data = explored.data
    quality = data["quality"]
    text = (
        "Latency is the median of all calls, with its 95 % interval; p99 needs 100 calls. Inputs are on the device "
        "before a call. First call includes compilation. Error is the largest difference from the source in fp32, "
        "relative to its largest output. Factors compare with the recommended combination, with their interval. "
    )
    if quality["metric"]:
        return text + (
            f"The source has {quality['metric']} {quality['source']:.4g} on {quality['rows']:,} rows; combinations "
            f"that lose more than {quality['max_loss']:g} of it are not recommended."
        )
    return text + f"Combinations with an error above {quality['max_loss']:g} are not recommended."


def _facts(explored: Exploration) -> Iterator[tuple[str, str]]:
    data, machine = explored.data, explored.data["machine"]
    yield "machine", f"{machine['name']}, {machine['cores']} cores"
    if machine["gpu"]:
        yield "GPU", machine["gpu"]
    yield "load average", f"{machine['load'][0]:.1f} before, {machine['load'][-1]:.1f} after"
    yield "turns", f"{data['rounds']} rounds in {format_duration(data['measured_s'])}"
    yield "energy", machine["energy_source"] or "no counter"
    yield "versions", ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    yield "run", data["run"]
