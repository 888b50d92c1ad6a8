"""`fairmile watch`: power, energy and load, of a program or of the machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import UsageError
from fairmile.base.units import format_duration, format_size, parse_time
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output, one_line
from fairmile.meter.figures import Figures, Summary
from fairmile.meter.footprint import Supply
from fairmile.meter.lines import Channel
from fairmile.meter.watch import Values, Watch, Watched
from fairmile.meter.watching import LogReport, SourceList, WatchPlan, WatchReport, list_sources, plan_watch, read_report
from fairmile.meter.watching import watch as watch_and_report

_REFRESH_S = 0.25
_STALE_S = 5.0
_SHORTEST_S = 0.01
_GPU = re.compile(r"[0-9]{1,3}|GPU-[0-9a-fA-F-]+")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--every", default="1s", show_default=True, metavar="TIME", help="Sampling period, such as 500ms or 10Hz."
)
@click.option("--for", "lasting", metavar="TIME", help="Measure the machine for this long, without a program.")
@click.option(
    "--read",
    "log_to_read",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Summarize a log written by --log or by cloudmesh-gpu.",
)
@click.option(
    "--log", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Append every sample to this file."
)
@click.option("--source", metavar="NAMES", help="Read only these sources, such as nvidia,rapl.  [default: all]")
@click.option("--gpu", metavar="NUMBERS", help="Measure only these GPUs, such as 0,1.  [default: all]")
@click.option("--region", default="", metavar="CODE", help="Region for the cost and CO₂ of energy, such as DE.")
@click.option(
    "--table",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Read prices and CO₂ factors from this table of regions.",
)
@click.option(
    "--pue",
    type=float,
    default=1.0,
    show_default=True,
    help="Power usage effectiveness of the data centre.",
)
@click.option(
    "--estimate", type=float, metavar="WATTS", help="Assume this power in watts when no energy counter is available."
)
@click.option("--live", is_flag=True, help="Show current values while the program runs.")
@click.option("--list", "list_", is_flag=True, help="List what this machine can measure, and why sources are missing.")
@DRY_RUN
@json_output(WatchReport, LogReport, SourceList, WatchPlan)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def watch(out: Out, command: tuple[str, ...], lasting: str | None, log_to_read: Path | None, **options: Any) -> int:
    """Measure power, energy and load of a program, or of the machine.

    The program keeps its output and exit code; the summary goes to stderr. Every number names its source, scope
    and error. Without a program and --for, measures until Ctrl-C.

    \b
    Examples:
      fairmile watch --every 10Hz --region DE -- sleep 0.5
      fairmile watch --for 1s --log levels.jsonl
      fairmile watch --read levels.jsonl --json
      fairmile watch --list
    """
    if sum((bool(command), lasting is not None, log_to_read is not None, options["list_"])) > 1:
        raise UsageError("a program, --for, --read and --list exclude each other", hint="use one of them")
    supply = _supply(options["region"], options["table"], options["pue"])
    if log_to_read is not None:
        report = read_report(log_to_read, supply=supply, watts=options["estimate"])
        out.show(report, lambda report: _print_summary(report.samples, out.line))
        return 0
    sources, gpus, period_s = _names(options["source"]), _gpus(options["gpu"]), _period_s(options["every"])
    if options["dry_run"]:
        plan = plan_watch(command, sources=sources, gpus=gpus, period_s=period_s)
        out.show(plan, lambda plan: _print_plan(out, plan))
        return 0
    if options["list_"]:
        out.show(list_sources(sources, gpus), lambda available: _print_sources(out, available))
        return 0
    live = _Live() if sys.stderr.isatty() and not out.as_json and (options["live"] or not command) else None
    measured = watch_and_report(
        command,
        seconds=parse_time(lasting) if lasting is not None else None,
        sources=sources,
        gpus=gpus,
        period_s=period_s,
        log=options["log"],
        supply=supply,
        watts=options["estimate"],
        on_sample=None if live is None else live.show,
    )
    if live is not None:
        live.clear()
    out.show(measured, lambda report: _print_report(out, report))
    _print_trouble(out, measured.watched)
    return _exit_code(measured.watched, lasting)


def _supply(region: str, table: Path | None, pue: float) -> Supply:
    if not region and (table is not None or pue != 1.0):
        raise UsageError("--table and --pue need --region", hint="add --region CODE")
    supply = Supply(region, pue, table)
    supply.footprint(0.0)  # an unknown region raises
    return supply


def _names(text: str | None) -> list[str] | None:
    """Return the sources named on the command line; None where the option is not given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _gpus(text: str | None) -> list[str]:
    """Return the GPUs named on the command line; none where the option is not given."""
    gpus = [part.strip() for part in text.split(",")] if text is not None else []
    for each in gpus:
        if not _GPU.fullmatch(each):
            raise UsageError(
                f"--gpu {text}: {each!r} is neither the number nor the UUID of a GPU",
                hint="write 0, or 0,1, or GPU-5d5ba0d6-…; `fairmile watch --list` shows them",
            )
    return gpus


def _period_s(text: str) -> float:
    plain = text.strip().lower()
    try:
        seconds = 1 / float(plain.removesuffix("hz")) if plain.endswith("hz") else parse_time(plain)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"--every {text}: expected a time or a rate", hint="write 0.1s, 500ms or 10Hz") from error
    if not seconds >= _SHORTEST_S:
        raise UsageError(f"--every {text}: the shortest period is {_SHORTEST_S * 1e3:g} ms")
    return seconds


def _exit_code(watched: Watched, lasting: str | None) -> int:
    if watched.exit_code is None:
        return 130 if watched.interrupted and lasting is not None else 0
    return watched.exit_code if watched.exit_code >= 0 else 128 - watched.exit_code


def _print_report(out: Out, report: WatchReport) -> None:
    # The output of a program is its own.
    _print_summary(report.samples, out.say if report.command else out.line, report.watched.elapsed_s)


def _print_summary(summary: Summary, write: Callable[[str], None], elapsed_s: float | None = None) -> None:
    rows = [(each.channel.name, *_cells(each)) for each in summary.figures]
    for line in _aligned([("channel", "mean", "highest", "change", "of"), *rows]) if rows else ():
        write(line)
    energies = [(e.channel, _joules(e.joules), e.method, e.scope, e.error) for e in summary.energies]
    for line in _aligned([("energy", "", "by", "of", "error"), *energies]) if energies else ():
        write(line)
    spans = [(f"{e.name} ({len(e.calls)}×)", _joules(e.joules), e.method, e.scope) for e in summary.spans]
    for line in _aligned([("span", "", "by", "of"), *spans]) if spans else ():
        write(line)
    for line in _conclusion(summary, elapsed_s):
        write(one_line(line))


def _conclusion(summary: Summary, elapsed_s: float | None) -> list[str]:
    lines = []
    time_taken = f" in {format_duration(elapsed_s)}" if elapsed_s is not None else ""
    lines.append(f"{count(summary.samples, 'sample')}{time_taken}")
    if summary.total.joules is None:
        lines.append("energy: not measured; `fairmile watch --list` shows why, --estimate WATTS estimates it")
    else:
        parts = ", ".join(part.channel for part in summary.total.parts)
        kind = "estimated" if summary.is_estimate else "measured"
        lines.append(f"energy: {_joules(summary.total.joules)} {kind} ({parts})")
    lines += [f"  without {name}: {why}" for name, why in summary.total.left_out.items()]
    lines += [f"note: {each.channel}: {note}" for each in summary.energies for note in each.notes]
    lines += list(dict.fromkeys(f"note: span {each.name}: {note}" for each in summary.spans for note in each.warnings))
    if summary.footprint is not None:
        lines += [f"{name}: {sentence}" for name, sentence in summary.footprint.sentences()]
    if summary.damaged:
        lines.append(f"note: {count(summary.damaged, 'line')} of the log could not be read")
    return lines


def _print_trouble(out: Out, watched: Watched) -> None:
    if watched.skipped:
        out.say(
            f"note: skipped {count(watched.skipped, 'sample')}: reading took too long; sample less often with --every"
        )
    for what, times in watched.failures.items():
        out.say(f"note: {what} ({count(times, 'time')})")


def _print_plan(out: Out, plan: WatchPlan) -> None:
    command = f"run `{shlex.join(plan.command)}` and " if plan.command else ""
    out.line(f"would {command}measure every {format_duration(plan.period_s)}:")
    _print_sources(out, plan.sources)


def _print_sources(out: Out, available: SourceList) -> None:
    rows = [(each.name, each.unit, each.source, each.scope, each.error) for each in available.channels]
    out.table(("channel", "unit", "source", "of", "error"), rows, shrink=("of", "error"))
    for sentence in available.missing.values():
        out.say(f"missing: {sentence}")


def _cells(figures: Figures) -> tuple[str, str, str, str]:
    channel = figures.channel
    if channel.kind == "counter":
        change = _value(channel.unit, figures.increase) if figures.increase is not None else "was reset"
        return "", "", change, channel.scope
    return _value(channel.unit, figures.mean), _value(channel.unit, figures.highest), "", channel.scope


def _value(unit: str, value: float | None) -> str:
    if value is None:
        return "–"
    if unit == "bytes":
        return format_size(round(value))
    if unit == "J":
        return _joules(value)
    if unit == "s":
        return format_duration(value)
    return f"{value:.4g}" if unit == "count" else f"{value:.4g} {unit}"


def _joules(value: float) -> str:
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g} J"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    rows = [tuple(one_line(cell) for cell in row) for row in rows]  # a log is somebody else's text
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


class _Live:
    """One block on the terminal that shows the latest values; of counters, how fast they grow."""

    def __init__(self) -> None:
        self._lines = 0
        self._shown_at = float("-inf")
        self._texts: dict[int, tuple[float, str]] = {}
        self._counted: dict[int, tuple[float, float]] = {}

    def show(self, watch: Watch, values: Values) -> None:
        """Take a sample in and show it, unless what is shown is too fresh."""
        now = time.monotonic()
        for place, (channel, value) in enumerate(zip(watch.channels, values, strict=True)):
            if value is not None:
                self._take(channel, place, now, value)
        if now - self._shown_at < _REFRESH_S:
            return
        self._shown_at = now
        # Some are read less often than others: theirs stays until it is old.
        oldest = now - max(_STALE_S, 3 * watch.period_s)
        texts = [self._texts.get(place, (oldest, "–")) for place in range(len(values))]
        rows = [(c.name, text if at > oldest else "–") for c, (at, text) in zip(watch.channels, texts, strict=True)]
        size = shutil.get_terminal_size()
        lines = [line[: size.columns - 1] for line in _aligned(rows)][: max(size.lines - 1, 1)] if rows else []
        text = "".join(f"\r{line}\033[K\n" for line in lines)
        self._write((f"\033[{self._lines}A" if self._lines else "") + text)
        self._lines = len(lines)

    def clear(self) -> None:
        """Take the block away."""
        if self._lines:
            self._write(f"\033[{self._lines}A\r\033[J")
            self._lines = 0

    def _take(self, channel: Channel, place: int, now: float, value: float) -> None:
        if channel.kind != "counter":
            self._texts[place] = now, _value(channel.unit, value)
            return
        then, before = self._counted.setdefault(place, (now, value))
        if now - then < _REFRESH_S:
            return
        self._counted[place] = now, value
        rate = (value - before) / (now - then)
        if rate < 0:
            text = "–"
        elif channel.unit == "J":
            text = f"{rate:.4g} W"
        else:
            text = f"{100 * rate:.3g} % of a core" if channel.unit == "s" else f"{_value(channel.unit, rate)}/s"
        self._texts[place] = now, text

    def _write(self, text: str) -> None:
        try:
            os.write(sys.stderr.fileno(), text.encode())
        except (OSError, ValueError):
            return
