"""QSVR: support vector regression by an annealer, beside the classical one with the same C and least squares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fairmile import meter
from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.harness.scores import Results, Score
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.suite.qsvr.comparison import MODEL, PEERS, Comparison, compare
from fairmile.benchmarks.suite.qsvr.data import Table, curves, diabetes, read_table
from fairmile.benchmarks.suite.qsvr.settings import Settings
from fairmile.meter import span

_NOTES = {"svr": "the same C, kernel and rows", "least squares": "linear, the same rows", "mean": "of these rows"}


def run(session: Session) -> None:
    """Compare on each table, and report differences with their intervals."""
    settings = session.settings(Settings)
    with span("data"):
        tables = _tables(session, settings)
    if settings.work == "prepare":
        session.say("; ".join(f"{each.about}: {len(each.target)} rows" for each in tables))
        return
    if not session.ranks.is_first:
        return
    compared = []
    for table in tables:
        with span(f"compare {table.name}"):
            compared.append(compare(table, settings, session.seed))
    for comparison in compared:
        meter.log(**_logged(comparison))
    with span("plots"):
        figure = save_figure(
            session.folder / "differences.svg",
            lambda each: _draw(each, compared),
            size=(7, 1.2 + 1.1 * len(compared)),
            title="Errors of the methods",
        )
    session.report(_results(session, settings, compared, figure))


def _tables(session: Session, settings: Settings) -> list[Table]:
    if session.data is not None:
        return [read_table(session.data)]
    made: dict[str, Callable[[], Table]] = {"diabetes": diabetes, "curves": lambda: curves(settings.seen_epochs)}
    return [make() for name, make in made.items() if settings.table in (name, "both")]


def _results(session: Session, settings: Settings, compared: list[Comparison], figure: str) -> Results:
    solver = compared[0].solver
    scores = [
        Score("trivial" if name == "mean" else "classical", name, _values(compared, name), _NOTES[name])
        for name in reversed(PEERS)
    ]
    scores.append(Score("model", f"{MODEL} by {solver}", _values(compared, MODEL), f"{settings.bits} bits a weight"))
    return Results(
        benchmark="QSVR",
        data="; ".join(each.table.about for each in compared) + f"; {settings.splits} splits, {settings.seeds} seeds",
        metric=Metric("rmse", "lower"),
        scores=scores,
        seed=session.seed,
        settings=dataclasses.asdict(settings),
        notes=[f"solver: {solver}", *(line for each in compared for line in _lines(each))],
        figures=[figure] if figure else [],
    )


def _values(compared: list[Comparison], method: str) -> dict[str, float]:
    """Return the errors of a method: the first table's is the one that counts."""
    first, *others = compared
    return {"rmse": first.mean(method)} | {f"rmse_{each.table.name}": each.mean(method) for each in others}


def _lines(comparison: Comparison) -> list[str]:
    """Return what the differences say, a line each, and how far seeds of the solver differ."""
    name, lines = comparison.table.name, []
    for peer in PEERS[:2]:
        value, low, high = difference = comparison.difference(peer)
        interval = f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
        lines.append(f"{name}: {MODEL} - {peer} = {interval}: {difference.verdict}")
    lines.append(f"{name}: standard deviation over seeds of the solver {comparison.spread_of_seeds:.3f}")
    if comparison.violation:
        lines.append(f"{name}: sums of weights differ by up to {comparison.violation:g}; a larger penalty helps")
    return lines


def _logged(comparison: Comparison) -> dict[str, float]:
    """Return metrics that name the solver and the peer."""
    place, solver = comparison.table.name, comparison.solver.split(" (")[0].replace(" ", "_")
    named = {f"{place}.rmse.{solver}": comparison.mean(MODEL)}
    for peer in PEERS[:2]:
        value, low, high = comparison.difference(peer)
        key = f"{place}.minus_{peer.replace(' ', '_')}"
        named |= {key: value, f"{key}.low": low, f"{key}.high": high}
    return named


def _draw(figure: Any, compared: list[Comparison]) -> None:
    """Draw the differences of all splits and their means with intervals."""
    axes = figure.subplots()
    labels: list[str] = []
    for comparison in compared:
        for peer in PEERS[:2]:
            at = -len(labels)
            value, low, high = comparison.difference(peer)
            each = comparison.errors[MODEL] - comparison.errors[peer]
            axes.plot(each, [at] * len(each), "|", color="#888888", markersize=9, alpha=0.6)
            axes.errorbar(
                value, at, xerr=[[value - low], [high - value]], fmt="o", color="#0b7285", capsize=3, markersize=5
            )
            labels.append(f"{comparison.table.name}: minus {peer}")
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks([-at for at in range(len(labels))], labels)
    axes.set_xlabel("RMSE of qubo-svr minus that of the other, in standard deviations\nof the target (left: better)")
    axes.set_title("Each split, and the mean with its 95 % interval")
