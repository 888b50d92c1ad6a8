"""Reports of runs: what ran and how it went, or how several compare, as HTML, Markdown, figures and data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

from fairmile.base.errors import FairmileError, NotFound, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.html_tables import fields_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_number, format_value
from fairmile.meter.footprint import Supply
from fairmile.reports import figures, html, markdown
from fairmile.reports.blocks import (
    NO_FIGURES,
    Block,
    Cell,
    Facts,
    Fold,
    Heading,
    Image,
    Note,
    Row,
    Text,
    Title,
    Tone,
    table,
)
from fairmile.reports.comparison import Comparison, compare, group_runs, json_value
from fairmile.reports.differences import hardware_lines
from fairmile.reports.figures import PAPER_WIDTH_MM, Picture
from fairmile.reports.leaderboard import VERSUS_FIRST, Leaderboard, leaderboard
from fairmile.reports.measures import (
    ALWAYS,
    between,
    counts,
    deviation,
    ending,
    known_names,
    measures,
    percent,
    results_only,
    title,
)
from fairmile.reports.one_run import document_of, drawn, one_run, rerun_line, state_tone, when
from fairmile.reports.shapes import ReportDict, ReportFilesDict
from fairmile.reports.sweep import Goal, axes, main_metric
from fairmile.reports.sweep_page import SweepReport, is_sweep, sweep_blocks, unique_columns
from fairmile.reports.verdicts import Verdict
from fairmile.runs.record.run import Run, RunState

Format = Literal["html", "md", "svg", "png", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)
_MOST_GROUPS = 6  # more groups than this are ranked, not compared with the first
MOST_ROWS = 500  # of a table
_ON_A_SCREEN = 30  # rows
_TOP = 20
_MOST_PARAMETERS = 8  # columns of a list of runs
_MOST_BANDS = 2
_MOST_IN_NOTEBOOK = 4  # figures
_NARROWEST_MM, _WIDEST_MM = 60, 400  # of figures
_MOST_BESIDE = 6
_HISTOGRAM_FROM = 10
_TONES: dict[Verdict, Tone] = {Verdict.BETTER: "good", Verdict.WORSE: "bad", Verdict.NOT_COMPARABLE: "warn"}


class ReportFiles(Results[Path]):
    """The files of a report, and the report."""

    def __init__(self, report: Report, files: Iterable[Path]) -> None:
        super().__init__(files)
        self.report = report

    def to_dict(self) -> ReportFilesDict:
        return cast(ReportFilesDict, {"files": [str(file) for file in self], **self.report.to_dict()})

    def summary(self) -> str:
        return f"{self.report.title}: {', '.join(map(str, self))}"

    def _repr_html_(self) -> str:
        return fields_table({"report": self.report.title, "files": ", ".join(map(str, self))})


@dataclass(frozen=True, repr=False)
class Report(Result):
    """A report that can be written in several formats; `data` is what it says as plain data."""

    title: str
    blocks: tuple[Block, ...]
    data: Mapping[str, Any]

    @property
    def pictures(self) -> list[Picture]:
        """The figures in their order."""
        return [block.picture for block in self.blocks if isinstance(block, Image)]

    @property
    def lacks_figures(self) -> bool:
        """Tell whether figures are left out because nothing can draw them."""
        return NO_FIGURES in self.blocks

    def html(self) -> str:
        """Return one HTML file that needs nothing else."""
        return html.render(self.title, self.blocks)

    def markdown(self, folder: str = "") -> str:
        """Return Markdown; its figures are files in the folder, or within the text where none is named."""
        if not folder:
            return markdown.render(self.blocks)
        return markdown.render(self.blocks, lambda picture: f"{folder}/{picture.name}.svg")

    def to_dict(self) -> ReportDict:
        return cast(ReportDict, json_value(self.data))

    def summary(self) -> str:
        return f"{self.title}, {len(self.data['runs'])} runs, {len(self.pictures)} figures"

    def _repr_html_(self) -> str:
        about = {"report": self.title, "runs": len(self.data["runs"]), "figures": len(self.pictures)}
        return fields_table(about) + "".join(map(html.standalone, self.pictures[:_MOST_IN_NOTEBOOK]))

    def write(
        self, path: str | Path, form: Format = "html", *, width_mm: float = PAPER_WIDTH_MM, dry_run: bool = False
    ) -> ReportFiles:
        """Write the report and return its files: an HTML file, or Markdown and a folder of figures, or the folder.

        Figures alone (svg, png, pdf) are as a paper needs them; see `Picture.file`.
        """
        if not _NARROWEST_MM <= width_mm <= _WIDEST_MM:
            raise UsageError(
                f"the width of figures is {width_mm:g} mm", hint=f"choose {_NARROWEST_MM} to {_WIDEST_MM} mm"
            )
        path = Path(path)
        wanted: list[tuple[Path, Callable[[], bytes]]]
        if form in ("svg", "png", "pdf"):
            if not self.pictures:
                raise _no_figures()
            wanted = [
                (path / f"{each.name}.{form}", partial(each.file, form, width_mm=width_mm)) for each in self.pictures
            ]
        elif form == "md":
            folder = path.with_name(f"{path.stem}-figures")
            wanted = [(path, lambda: self.markdown(folder.name).encode())]
            wanted += [(folder / f"{each.name}.svg", each.svg) for each in self.pictures]
        else:
            wanted = [(path, lambda: self.html().encode())]
        if not dry_run:
            for file, content in wanted:
                write_atomic(file, content())
        return ReportFiles(self, (file for file, _ in wanted))


def report(
    runs: Sequence[Run],
    *,
    metrics: Sequence[str] | None = None,
    objectives: Sequence[Goal] = (),
    notes: Sequence[str] = (),
    hindsight: Sequence[Mapping[str, object]] = (),
    over: Sequence[str] = (),
    log: Collection[str] = (),
    supply: Supply | None = None,
    most_rows: int = MOST_ROWS,
) -> Report:
    """Report one run in full, or several as a comparison of their groups with a leaderboard.

    Runs of one group that differ in parameters are reported as a sweep, and trials as a study; see `sweep_blocks` for
    what `objectives`, `notes`, `hindsight`, `over` and `log` say of those. `supply` tells what the energy of one run
    meant. Tables of points and of runs have at most `most_rows`.
    """
    if not runs:
        raise UsageError("no run to report", hint="`fairmile runs ls` lists the runs")
    if len(runs) == 1:
        run = runs[0]
        supply = supply or Supply()
        blocks, data, about = list(one_run(run, supply)), document_of(run, supply), f"{run.name} · {run.id}"
    elif is_sweep(runs):
        about = f"{runs[0].name} · {runs[0].group}"
        goals = [(name, dict(objectives).get(name, "")) for name in metrics] if metrics else objectives
        first = metrics[0] if metrics else None
        part = sweep_blocks(
            runs,
            metric=first,
            objectives=goals,
            notes=notes,
            hindsight=hindsight,
            over=over,
            log=log,
            compared=metrics,
            most_points=most_rows,
        )
        blocks, data = _swept(part, metrics, about, most_rows)
    else:
        names = list(dict.fromkeys(run.name for run in runs))
        about = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        blocks, data = _several(runs, metrics, about, most_rows)
    _note_missing_figures(blocks)
    return Report(about, tuple(blocks), data)


def _note_missing_figures(blocks: list[Block]) -> None:
    """Say above the first section that figures are left out, where nothing can draw them."""
    if not figures.can_draw():
        first = next((at for at, block in enumerate(blocks) if isinstance(block, Heading)), len(blocks))
        blocks.insert(first, NO_FIGURES)


def _several(
    runs: Sequence[Run], metrics: Sequence[str] | None, about: str, most_rows: int
) -> tuple[list[Block], dict[str, Any]]:
    groups = group_runs(runs)
    done = [run for run in runs if counts(run)]
    failed = [run for run in runs if run.state.is_end and ending(run) not in ("done", "pruned")]
    data: dict[str, Any] = {
        "runs": [run.id for run in runs],
        "groups": {name: [run.id for run in each] for name, each in groups.items()},
    }
    count = f"{len(runs)} runs in {len(groups)} groups" if len(groups) > 1 else f"{len(runs)} repeats"
    blocks: list[Block] = [_title(about, runs, count)]
    main = main_metric(done, metrics)
    board = leaderboard(runs, main, n=_TOP) if main and len(groups) > 1 else None
    if done and len(groups) <= _MOST_GROUPS:
        # Each is judged among all comparisons of the page, so that no pair has two verdicts.
        comparison = compare(groups, metrics, also=board.chances if board else {})
        board = board and leaderboard(runs, main, n=_TOP, also=comparison.chances)
        data["comparison"] = comparison.to_dict()
        blocks += _compared(comparison) if len(groups) > 1 else _repeated(comparison)
    if board:
        data["leaderboard"] = board.to_dict()
        blocks += leaderboard_blocks(board)
        if not board.has_repeats:
            blocks.append(Note("One run each: noise is unknown without repeats.", "dim"))
        groups = _best_first(groups, board)
    blocks += _curves(groups, done, main, metrics, ranked=board is not None)
    blocks += _failures(failed, most_rows)
    blocks += [Heading("Runs"), *_folded(runs, most_rows)]
    blocks += _machines(runs)
    return blocks, data


def comparison_report(groups: Mapping[str, Sequence[Run]]) -> Report:
    """Report groups of runs compared with the first: statistics, different inputs, and curves overlaid."""
    runs = [run for each in groups.values() for run in each]
    done = [run for run in runs if counts(run)]
    comparison, about = compare(groups), ", ".join(list(groups)[:3]) + (" …" if len(groups) > 3 else "")
    blocks: list[Block] = [_title(about, runs, f"{len(runs)} runs in {len(groups)} groups"), *_compared(comparison)]
    blocks += _curves(groups, done, main_metric(done, None), None, ranked=False)
    blocks += _failures([run for run in runs if run.state.is_end and ending(run) not in ("done", "pruned")], MOST_ROWS)
    blocks += [Heading("Runs"), *_listed(runs, MOST_ROWS), *_machines(runs)]
    _note_missing_figures(blocks)
    return Report(about, tuple(blocks), {"runs": [run.id for run in runs], "comparison": comparison.to_dict()})


def _swept(
    part: SweepReport, metrics: Sequence[str] | None, about: str, most_rows: int
) -> tuple[list[Block], dict[str, Any]]:
    """Return a sweep with what all sets of runs get: the comparison of few points, a leaderboard, curves, failures."""
    runs, main = part.sweep.runs, part.sweep.metric
    groups = {point.label: list(point.runs) for point in part.sweep.points}
    done = [run for run in runs if counts(run)]
    data: dict[str, Any] = {"runs": [run.id for run in runs], **part.data}
    what = "trials" if "study" in data else "points"
    number = len(runs) if what == "trials" else len(groups)
    blocks: list[Block] = [_title(about, runs, f"{number:,} {what}"), *part.blocks]
    if part.comparison is not None:
        data["comparison"] = part.comparison.to_dict()
        blocks += _compared(part.comparison)
    if part.best:
        board = replace(part.best.board, places=part.best.board.places[:_TOP])
        data["leaderboard"] = board.to_dict()
        if what == "points":  # the table of all trials is a ranking already
            blocks += leaderboard_blocks(board)
        groups = _best_first(groups, board)
    if what == "points":
        blocks += _curves(groups, done, main, metrics, ranked=part.best is not None)
    failed = [run for run in runs if run.state.is_end and ending(run) not in ("done", "pruned")]
    blocks += _failures(failed, most_rows)
    blocks += part.points
    if len(groups) < len(runs):
        blocks += [Heading("Runs"), Fold(f"All {len(runs):,} runs", tuple(_listed(runs, most_rows)))]
    blocks += _machines(runs)
    return blocks, data


def _best_first(groups: Mapping[str, list[Run]], board: Leaderboard) -> dict[str, list[Run]]:
    """Return groups in an order of which the first can be drawn: as they came where all can, else the best first."""
    if len(groups) <= _MOST_GROUPS:
        return dict(groups)
    return {each.label: groups[each.label] for each in board.places if each.label in groups} | dict(groups)


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """Return the table of a comparison with what to know about it."""
    columns, rows = comparison.table()
    verdicts = [cell.verdict for row in comparison.rows for cell in row.cells]
    cells: list[Row] = []
    metric = ""
    for row, verdict in zip(rows, verdicts, strict=True):
        metric = row[0] or metric  # each line says it, since a reader may sort them
        tone: Tone = _TONES.get(verdict, "dim") if verdict else "dim"
        tones: dict[str, Tone] = {"verdict": tone, "vs first": "dim", "why": "warn" if tone == "warn" else "dim"}
        shown = zip(columns, [metric, *row[1:]], strict=True)
        cells.append([Cell(text, tone=tones.get(name, "")) for name, text in shown])
    yield table(columns, cells, numbers=columns[2:5])
    ranges = "with the lowest and highest run in brackets"
    if comparison.has_intervals:
        ranges = f"with {comparison.confidence * 100:g} % confidence intervals, for few runs {ranges}"
    yield Text(
        f"Means, {ranges}. sd is the standard deviation. Differences are to the first group, by Welch’s t-test; "
        "points of a sweep share one noise estimate. A group is better or worse only if its difference exceeds the "
        "noise, corrected for all comparisons on this page (Holm)."
    )
    yield from (Note(note) for note in comparison.notes)


def _title(about: str, runs: Sequence[Run], count: str) -> Title:
    states = Counter(map(ending, runs))
    badge = ", ".join(f"{several} {state}" for state, several in states.items())
    tones = [state_tone(run.state) for run in runs if ending(run) not in ("done", "pruned")]
    times = sorted(run.created for run in runs)
    tone: Tone = "bad" if "bad" in tones else tones[0] if tones else "good"
    return Title(about, badge, tone, f"{count} · {_period(times[0], times[-1])}")


def _period(first: float, last: float) -> str:
    """Return two times as people write them; of the same day, the day once."""
    begin, end = when(first).removesuffix(" UTC"), when(last)
    if begin == end.removesuffix(" UTC"):
        return end
    return f"{begin} to {end.removeprefix(begin[:11])}"


def _compared(comparison: Comparison) -> Iterator[Block]:
    yield Heading("Comparison")
    yield from comparison_blocks(comparison)
    yield from drawn(lambda: figures.bars(comparison, figures.group_colours(comparison.groups)))
    yield Heading("Different inputs")
    if not comparison.differences:
        yield Text("Nothing that was recorded: code, parameters, inputs, environment and machine are the same.")
        return
    rows: list[Row] = [
        [each.fact, *(" | ".join(each.values.get(name, ())) or "–" for name in comparison.groups)]
        for each in comparison.differences
    ]
    yield table(["fact", *comparison.groups], rows)


def _repeated(comparison: Comparison) -> Iterator[Block]:
    yield Heading("Over the repeats")
    rows: list[Row] = []
    for row in comparison.rows:
        estimate, why = row.cells[0].estimate, row.cells[0].why
        if estimate is None:
            continue
        spread = (
            percent(estimate.sd / abs(estimate.mean), signed=False) if estimate.sd is not None and estimate.mean else ""
        )
        to = " … " if comparison.has_intervals else " to "
        shown = [
            format_number(estimate.mean, row.unit),
            deviation(estimate.sd, estimate.mean, row.unit),
            spread,
            between(*estimate.ends, row.unit, to=to) if estimate.ends else "",
        ]
        rows.append([title(row.metric), *shown, str(estimate.count), Cell(why, tone="warn")])
    interval = f"{comparison.confidence * 100:g} % confidence interval"
    ends = interval if comparison.has_intervals else "lowest to highest"
    columns = ["metric", "mean", "standard deviation", "relative", ends, "runs", ""]
    yield table(columns, rows, numbers=columns[1:-1])
    yield from (Note(note) for note in comparison.notes)


def leaderboard_blocks(board: Leaderboard) -> Iterator[Block]:
    """Yield a leaderboard as parts of a report."""
    yield Heading(f"Leaderboard by {title(board.metric)}")
    columns, rows = board.table()
    cells: list[Row] = []
    for row, place in zip(rows, board.places, strict=True):
        tone: Tone = "warn" if place.verdict in (Verdict.TOO_FEW, Verdict.NOT_COMPARABLE) else "dim"
        sort = {"rank": float(place.rank), title(board.metric): place.estimate.mean, "best": place.best}
        cells.append(
            [Cell(text, sort.get(name), tone if name == VERSUS_FIRST else "")
             for name, text in zip(columns, row, strict=True)]
        )  # fmt: skip
    yield table(columns, cells, numbers=["rank", title(board.metric), "runs", "best"])
    if board.of > len(board.places):
        yield Text(f"The first {len(board.places)} of {board.of}.")
    yield from (Note(note) for note in board.notes)


def _curves(
    groups: Mapping[str, Sequence[Run]],
    done: Sequence[Run],
    main: str,
    metrics: Sequence[str] | None,
    *,
    ranked: bool,
) -> Iterator[Block]:
    """Draw metrics over steps with bands over repeats, the curves of few single runs, and a histogram of many."""
    readable = {name: chosen for name, runs in groups.items() if (chosen := [run for run in runs if not run.packed])}
    names = list(metrics or sorted(results_only(known_names(done)), key=lambda name: name != main))
    images: list[Block] = []
    colours = figures.group_colours(groups)
    for name in names:
        if len(images) < _MOST_BANDS:
            images += drawn(lambda name=name: figures.bands(readable, name, colours, ranked=ranked))  # type: ignore[misc]
    few = [run for run in done if not run.packed]
    if 1 < len(few) <= 4 and len(groups) < len(few):  # single runs have their curves above
        by_run = {run.id: colours[name] for name, runs in groups.items() for run in runs}
        images += drawn(lambda: figures.learning_curve(few, metrics, by_run))
    is_compared = 1 < len(groups) <= _MOST_BESIDE  # the runs of each group are drawn side by side
    if main and len(done) >= _HISTOGRAM_FROM and not is_compared:
        measured = [each for run in done if (each := measures(run).get(main))]
        images += drawn(lambda: figures.histogram([each.value for each in measured], main, measured[0].unit))
    if images:
        yield Heading("Curves")
        yield from images


def _failures(failed: Sequence[Run], most: int) -> Iterator[Block]:
    if not failed:
        return
    yield Heading("What failed")
    rows: list[Row] = [
        [
            run.id,
            Cell(str(run.state), tone="bad"),
            run.reason,
            Cell(rerun_line(run), code=True),
        ]
        for run in failed[:most]
    ]
    yield table(["run", "state", "why", "again"], rows)


def _folded(runs: Sequence[Run], most: int) -> Iterator[Block]:
    """Yield the table of runs, folded where it would fill more than a screen."""
    listed = tuple(_listed(runs, most))
    yield from listed if len(runs) <= _ON_A_SCREEN else (Fold(f"All {len(runs):,} runs", listed),)


def _listed(runs: Sequence[Run], most: int) -> Iterator[Block]:
    names = [name for name in known_names(runs[:most]) if name not in ALWAYS][:4] + list(ALWAYS)
    varying = [axis.name for axis in axes(runs)][:_MOST_PARAMETERS]
    rows: list[Row] = []
    for run in runs[:most]:
        known = measures(run)
        numbers = [known.get(name) for name in names]
        cells = [Cell(format_number(each.value, each.unit), each.value) if each else Cell("") for each in numbers]
        params = [format_value(run.params[name]) if name in run.params else "" for name in varying]
        seed = "" if run.record.spec.seed is None else str(run.record.spec.seed)
        state = Cell(str(run.state), tone=state_tone(run.state) if run.state is not RunState.DONE else "")
        rows.append([run.id, state, run.system, *params, seed, *cells, Cell(when(run.created)[:16], run.created)])
    columns = unique_columns(["run", "state", "system", *varying, "seed", *map(title, names), "created (UTC)"])
    filled = [at for at in range(len(columns)) if any(_cell_text(row[at]) for row in rows)]
    shown: list[Row] = [[row[at] for at in filled] for row in rows]
    yield table([columns[at] for at in filled], shown, numbers=[title(name) for name in names])
    if len(runs) > most:
        yield Text(f"The first {most} of {len(runs):,}.")
    yield Text("fairmile rerun RUN repeats one of them from its record alone.")


def _cell_text(cell: str | Cell) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def _machines(runs: Sequence[Run]) -> Iterator[Block]:
    machines = {run.system: hardware_lines(run.hardware) for run in runs}
    folds = [Fold(name or "this machine", (Facts(tuple(lines.items())),)) for name, lines in machines.items() if lines]
    if folds:
        yield Heading("Machines")
        yield from folds[:_TOP]


def _no_figures() -> FairmileError:
    if not figures.can_draw():
        return figures.needs_matplotlib()
    return NotFound("these runs logged nothing to draw", hint="`fm.log(loss=…, step=…)` logs a metric")
