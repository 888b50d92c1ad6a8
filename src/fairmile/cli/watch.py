"""`fairmile watch`: power, energy and load, of a program or of the machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.files import write_failure
from fairmile.base.units import format_duration, format_size, parse_duration
from fairmile.cli.out import Out, count, json_option, one_line
from fairmile.meter.energy import estimate
from fairmile.meter.figures import Summary, read_samples, summarise
from fairmile.meter.footprint import footprint
from fairmile.meter.lines import Channel, Log
from fairmile.meter.sources import SOURCES, find_sources
from fairmile.meter.watch import Values, Watch, Watched, watch_command, watch_for

_REFRESH_S = 0.25
_STALE_S = 5.0
_SHORTEST_S = 0.01
_GPU_SOURCES = ("nvidia", "nvidia_energy", "amd")
_GPU = re.compile(r"[0-9]{1,3}|GPU-[0-9a-fA-F-]+")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--every", default="1s", show_default=True, metavar="TIME", help="How often to look: 0.1s, 500ms, 10Hz.")
@click.option("--for", "lasting", metavar="TIME", help="Look at the machine for that long; run nothing.")
@click.option("--read", "log_to_read", type=click.Path(path_type=Path), help="Read a log, ours or cloudmesh-gpu's.")
@click.option("--log", type=click.Path(path_type=Path, dir_okay=False), help="Append every sample to this file.")
@click.option("--source", metavar="NAMES", help="Measure by these only, such as nvidia,rapl.  [default: all there are]")
@click.option("--gpu", metavar="NUMBERS", help="Look at these GPUs only, such as 0,1.")
@click.option("--region", default="", metavar="CODE", help="Tell cost and CO₂ there, such as DE.")
@click.option("--table", type=click.Path(path_type=Path, dir_okay=False), help="Your own table of regions.")
@click.option("--pue", type=float, default=1.0, help="What the building uses for each joule of the machine.")
@click.option(
    "--estimate", type=float, metavar="WATTS", help="Where nothing measures energy, reckon with so many watts."
)
@click.option("--live", is_flag=True, help="Show values while a command runs, too.")
@click.option("--list", "list_", is_flag=True, help="Show what this machine can measure, and why not the rest.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; run nothing.")
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def watch(out: Out, command: tuple[str, ...], lasting: str | None, log_to_read: Path | None, **options: Any) -> int:
    """Measure power, energy and load of a program, or just of the machine.

    The program's output and exit code are its own; the summary goes to stderr. Every number names what measured it,
    what it covers and how well. Without a program and without --for it looks until Ctrl-C.

    \b
    Examples:
      fairmile watch --every 10Hz --region DE -- sleep 0.5
      fairmile watch --for 1s --log levels.jsonl
      fairmile watch --read levels.jsonl --json
      fairmile watch --list
    """
    if sum((bool(command), lasting is not None, log_to_read is not None, options["list_"])) > 1:
        raise UsageError("give one of a command, --for, --read and --list")
    reckoning = {"region": options["region"], "table": options["table"], "pue": options["pue"]}
    reckoning["watts"] = options["estimate"]
    _check(**reckoning)
    if log_to_read is not None:
        _tell(out, summarise(read_samples(log_to_read), **reckoning), {"log": str(log_to_read)})
        return 0
    gpus = _gpus(options["gpu"])
    wanted, period_s = _wanted(options["source"], gpus), _period_s(options["every"])
    if options["list_"] or options["dry_run"]:
        _tell_sources(out, wanted, period_s, command, is_plan=options["dry_run"])
        return 0
    if options["source"] or gpus:
        _require(wanted, gpus, all_of_them=options["source"] is not None)
    _check_log(options["log"])
    live = _Live() if sys.stderr.isatty() and not out.as_json and (options["live"] or not command) else None
    kept = {"wanted": wanted, "file": options["log"], "period_s": period_s, "on_sample": live and live.show}
    if command:
        watched = watch_command(command, **kept)
    else:
        watched = watch_for(parse_duration(lasting) if lasting is not None else None, **kept)
    if live is not None:
        live.clear()
    facts = {"command": list(command), **_facts(watched), "log": str(options["log"]) if options["log"] else None}
    log = Log(samples=[watched.samples])
    summary = summarise(log, **reckoning, within_ns=(watched.start_ns, watched.end_ns))
    _tell(out, summary, facts, aside=bool(command))
    _tell_trouble(out, watched)
    return _exit_code(watched, lasting)


def _check(region: str, table: Path | None, pue: float, watts: float | None) -> None:
    """Refuse what could not be reckoned with before a program has run for hours."""
    if region:
        footprint(0.0, region, file=table, pue=pue)
    elif table is not None or pue != 1.0:
        raise UsageError("--table and --pue say nothing without --region", hint="add --region CODE")
    if watts is not None:
        estimate(watts, 0, 0, scope="")


def _gpus(text: str | None) -> list[str]:
    """Return the GPUs that a person names; none where they name none."""
    found = [part.strip() for part in text.split(",")] if text is not None else []
    for each in found:
        if not _GPU.fullmatch(each):
            raise UsageError(
                f"--gpu {text}: {each!r} is neither the number nor the UUID of a GPU",
                hint="write 0, or 0,1, or GPU-5d5ba0d6-…; `fairmile watch --list` shows them",
            )
    return found


def _wanted(names: str | None, gpus: Sequence[str]) -> list[str] | None:
    if names is None and not gpus:
        return None
    chosen = [name.strip() for name in names.split(",") if name.strip()] if names is not None else SOURCES.names()
    if not chosen:
        raise UsageError(f"--source {names}: that names no source", hint=f"known: {', '.join(SOURCES.names())}")
    if gpus and not set(chosen) & set(_GPU_SOURCES):
        raise UsageError(f"--gpu says nothing of {', '.join(chosen)}", hint="add nvidia or amd to --source")
    return [f"{name}:{','.join(gpus)}" if gpus and name in _GPU_SOURCES else name for name in chosen]


def _period_s(text: str) -> float:
    plain = text.strip().lower()
    try:
        seconds = 1 / float(plain.removesuffix("hz")) if plain.endswith("hz") else parse_duration(plain)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(
            f"--every {text}: that is neither a time nor a rate", hint="write 0.1s, 500ms or 10Hz"
        ) from error
    if not seconds >= _SHORTEST_S:
        raise UsageError(f"--every {text}: more often than each {_SHORTEST_S * 1e3:g} ms is not possible")
    return seconds


def _require(wanted: Sequence[str] | None, gpus: Sequence[str], *, all_of_them: bool) -> None:
    """Refuse what is not here before a program has run for hours: sources asked for by name, one GPU of several."""
    found = find_sources(wanted)
    devices = [{each.scope for each in source.channels()} for source in found.sources if source.name in _GPU_SOURCES]
    found.close()
    hint = "`fairmile watch --list` shows what this machine has"
    if all_of_them:
        for sentence in found.missing.values():
            raise Unsupported(sentence, hint=hint)
    for each in gpus if devices else ():  # a machine without any measures the rest
        if not any(scope.startswith(f"device {each} ") or each in scope for scopes in devices for scope in scopes):
            raise UsageError(f"--gpu {each}: there is no such GPU here", hint=hint)


def _check_log(file: Path | None) -> None:
    if file is None:
        return
    try:
        with open(file, "ab"):
            pass
    except OSError as error:
        raise write_failure(str(file), error) from error


def _exit_code(watched: Watched, lasting: str | None) -> int:
    if watched.exit_code is None:
        return 130 if watched.interrupted and lasting is not None else 0
    return watched.exit_code if watched.exit_code >= 0 else 128 - watched.exit_code


def _facts(watched: Watched) -> dict[str, Any]:
    share = 100 * watched.watch_cpu_s / watched.elapsed_s if watched.elapsed_s else 0.0
    return {
        "exit_code": watched.exit_code,
        "elapsed_s": watched.elapsed_s,
        "cpu_s": watched.cpu_s,
        "interrupted": watched.interrupted,
        "missing": watched.missing,
        "skipped_samples": watched.skipped,
        "watch_cpu_percent": share,
        "failures": watched.failures,
    }


def _tell(out: Out, summary: Summary, facts: dict[str, Any], *, aside: bool = False) -> None:
    if out.as_json:
        out.data({**summary.document(), **facts})
        return
    say = out.say if aside else out.line
    rows = [(each.channel.name, *_shown(each.channel, each)) for each in summary.figures]
    for line in _aligned([("channel", "mean", "highest", "change", "of"), *rows]) if rows else ():
        say(line)
    energies = [(e.channel, _joules(e.joules), e.method, e.scope, e.error) for e in summary.energies]
    for line in _aligned([("energy", "", "by", "of", "error"), *energies]) if energies else ():
        say(line)
    spans = [(f"{e.name} ({len(e.calls)}×)", _joules(e.joules), e.method, e.scope) for e in summary.spans]
    for line in _aligned([("span", "", "by", "of"), *spans]) if spans else ():
        say(line)
    for line in _conclusion(summary, facts):
        say(one_line(line))


def _conclusion(summary: Summary, facts: dict[str, Any]) -> list[str]:
    lines = []
    took = f" in {format_duration(facts['elapsed_s'])}" if "elapsed_s" in facts else ""
    lines.append(f"{count(summary.samples, 'sample')}{took}")
    if summary.total.joules is None:
        lines.append("energy: nothing here measures it; `fairmile watch --list` tells why, --estimate WATTS reckons")
    else:
        parts = ", ".join(part.channel for part in summary.total.parts)
        kind = "estimated" if any(part.method == "estimate" for part in summary.total.parts) else "measured"
        lines.append(f"energy: {_joules(summary.total.joules)} {kind} ({parts})")
    lines += [f"  without {name}: {why}" for name, why in summary.total.left_out.items()]
    lines += [f"note: {each.channel}: {note}" for each in summary.energies for note in each.notes]
    lines += list(dict.fromkeys(f"note: span {each.name}: {note}" for each in summary.spans for note in each.warnings))
    if summary.footprint is not None:
        lines += [f"{name}: {sentence}" for name, sentence in summary.footprint.sentences()]
    if summary.damaged:
        lines.append(f"note: {count(summary.damaged, 'line')} of the log could not be read")
    return lines


def _tell_trouble(out: Out, watched: Watched) -> None:
    if watched.skipped:
        out.say(
            f"note: {count(watched.skipped, 'sample')} left out, since the one before took too long; look less often"
        )
    for what, times in watched.failures.items():
        out.say(f"note: {what} ({count(times, 'time')})")


def _tell_sources(
    out: Out, wanted: Sequence[str] | None, period_s: float, command: Sequence[str], *, is_plan: bool
) -> None:
    found = find_sources(wanted)
    found.close()
    if out.as_json:
        plan = {"command": list(command), "period_s": period_s, "dry_run": True} if is_plan else {}
        channels = {each.name: [_described(channel) for channel in each.channels()] for each in found.sources}
        out.data({**plan, "sources": channels, "missing": found.missing})
        return
    if is_plan:
        what = f"run `{shlex.join(command)}` and " if command else ""
        out.line(f"would {what}measure each {format_duration(period_s)}:")
    rows = [(c.name, c.unit, c.source, c.scope, c.error) for each in found.sources for c in each.channels()]
    out.table(("channel", "unit", "source", "of", "error"), rows, shrink=("of", "error"))
    for sentence in found.missing.values():
        out.say(f"missing: {sentence}")


def _described(channel: Channel) -> dict[str, Any]:
    names = ("name", "unit", "kind", "source", "scope", "error")
    return {name: getattr(channel, name) for name in names}


def _shown(channel: Channel, figures: Any) -> tuple[str, str, str, str]:
    if channel.kind == "counter":
        change = _value(channel.unit, figures.increase) if figures.increase is not None else "began anew"
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
