"""`fairmile trace`: record a program, see where its time went, and what would be if."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import UsageError
from fairmile.base.files import write_atomic
from fairmile.base.units import format_duration, format_size, parse_duration
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, count, json_option
from fairmile.reports.trace_page import trace_page
from fairmile.traces.analyze import TraceAnalysis
from fairmile.traces.breakdown import Breakdown, RankTime
from fairmile.traces.coupling import Coupling
from fairmile.traces.critical import CriticalPath
from fairmile.traces.findings import STEPS
from fairmile.traces.record import Recorded, Settings
from fairmile.traces.replay import WhatIf
from fairmile.traces.traces import EXPORTS
from fairmile.traces.waiting import Waiting
from fairmile.workspace import Workspace

_SHOWN = 8
_LISTED = 4
_LEAST = 0.001  # of the time, from which a wait is shown
_BECAUSE = {"idle": "what was not recorded", "launch": "a later host"}


@click.group(cls=LazyGroup)
def trace() -> None:
    """Record programs, and see where the time of their ranks went."""


def _reading(command: Any) -> Any:
    """Give a command the traces it reads."""
    command = click.option("--format", "form", metavar="NAME", help="What wrote them.  [default: each file tells]")(
        command
    )
    return click.argument("paths", metavar="PATH...", nargs=-1, required=True)(command)


@trace.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("trace"),
    show_default=True,
    help="A new folder for all that is recorded.",
)
@click.option("--skip", type=int, default=5, show_default=True, help="Optimizer steps before recording begins.")
@click.option("--steps", type=int, default=10, show_default=True, help="Optimizer steps that are recorded.")
@click.option("--every", type=int, metavar="STEPS", help="Record again every so many steps.")
@click.option(
    "--for",
    "seconds",
    default="1s",
    show_default=True,
    metavar="TIME",
    help="How long, of a program without optimizer.",
)
@click.option("--after", default="5s", show_default=True, metavar="TIME", help="How long such a program runs before.")
@click.option("--stack", is_flag=True, help="Keep the lines of Python code; slower.")
@click.option("--memory", is_flag=True, help="Keep allocations; slower.")
@click.option("--flight-recorder", is_flag=True, help="Keep NCCL's own record of collectives, too.")
@click.option("--no-watch", is_flag=True, help="No samples of power, load and memory.")
@click.option("--dry-run", is_flag=True, help="Say what would be recorded; run nothing.")
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def record(out: Out, command: tuple[str, ...], output: Path, dry_run: bool, no_watch: bool, **options: Any) -> int:
    """Run a program and record all its ranks, without any change to it.

    PyTorch profiler traces of every process that imports torch, spans of the meter, and samples of
    power and load go into one folder, under one clock. Launchers such as torchrun and mpirun are
    part of the command. The program's output and exit code are its own.

    \b
    Examples:
      fairmile trace record --skip 2 --steps 5 -o second -- python train.py
      fairmile trace record --dry-run -- torchrun --nproc-per-node 2 train.py
    """
    settings = Settings(
        skip=options["skip"], steps=options["steps"], every=options["every"], after_s=parse_duration(options["after"]),
        seconds=parse_duration(options["seconds"]), with_stack=options["stack"], memory=options["memory"],
        flight_recorder=options["flight_recorder"],
    )  # fmt: skip
    if dry_run:
        out.data({"command": list(command), "folder": str(output), **dataclasses.asdict(settings)})
        return 0
    found = Workspace.open().traces.record(command, output, settings=settings, watch=not no_watch)
    _tell_recorded(out, found)
    return found.exit_code


def _tell_recorded(out: Out, found: Recorded) -> None:
    if out.as_json:
        out.data({"folder": str(found.folder), **found.document()})
        return
    traced = [each for each in found.traced if each.file]
    for note in found.notes:
        out.say(f"note: {note}")
    out.say(f"{count(len(traced), 'trace')} in {found.folder}, {format_duration(found.elapsed_s)}")
    if traced or found.events:
        out.hint(f"`fairmile trace analyze {found.folder}` tells where the time went")


@trace.command()
@_reading
@click.option("--on", default="", metavar="SYSTEM", help="Hold collectives against the network of this system.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write the page with timeline and figures, too.")
@json_option
def analyze(out: Out, paths: Sequence[str], form: str | None, on: str, output: Path | None) -> None:
    """Tell where the time of recorded ranks went, who waited for whom, and what to try.

    PATH is a folder of `trace record`, files, or a pattern: traces of the PyTorch profiler, Horovod
    timelines, OTF2 archives, Chrome and Perfetto files, NCCL flight recorder dumps, or the log of a run.

    \b
    Examples:
      fairmile trace analyze first
      fairmile trace analyze first -o first.html
      fairmile trace analyze first --on juwels --json
    """
    found = Workspace.open().traces.analyze(paths, format=form, on=on)
    if output is not None:
        write_atomic(output, trace_page(found, title=Path(paths[0]).name))
    if out.as_json:
        out.data({**found.to_json(), "page": str(output) if output else None})
        return
    _tell_analysis(out, found)
    if output is not None:
        out.say(f"page in {output}")


def _tell_analysis(out: Out, found: TraceAnalysis) -> None:
    out.say(f"{count(len(found.ranks), 'rank')}, {_steps(found.breakdown)}, {count(found.events, 'event')}")
    parts = [each.name for each in dataclasses.fields(found.breakdown.ranks[0].total) if each.name.endswith("_s")]
    rows = [
        (each.label, *(_share(getattr(each.total, name), each.total.total_s, name) for name in parts))
        for each in found.breakdown.ranks
    ]
    out.table(("rank", *(name.removesuffix("_s").replace("_", " ") for name in parts)), rows)
    for each in found.findings[:_SHOWN]:
        of = "" if each.share_of == STEPS else f" of {each.share_of}"
        costs = f"{format_duration(each.seconds)} ({each.share:.0%}{of})" if each.seconds else each.kind
        out.items([(costs, each.title), ("", each.why), ("", f"Try: {each.what_to_try}")])
    if not found.findings:
        out.say("nothing stands out")
    _tell_waiting(out, found.waiting, _LEAST * found.total_s)
    if found.coupling is not None:
        _tell_coupling(out, found.coupling)
    if len(found.ranks) > 1:  # of one rank it is all that the rank did
        _tell_critical_path(out, found.critical)
    for note in found.notes:
        out.say(f"note: {note}")


def _steps(times: Breakdown) -> str:
    """Return how many steps of which length there are, of each component where they differ."""
    parts: dict[str, list[RankTime]] = {}
    for each in times.ranks:
        if each.steps_found_by != "nothing":
            parts.setdefault(each.component, []).append(each)
    if len(parts) < 2:
        return f"{count(max(each.steps for each in times.ranks), 'step')} of {format_duration(times.step_s)}"
    return ", ".join(
        f"{name} {count(max(each.steps for each in mine), 'step')} of "
        + format_duration(sum(each.total.total_s for each in mine) / max(1, sum(each.steps for each in mine)))
        for name, mine in parts.items()
    )


def _tell_waiting(out: Out, waiting: Waiting, least_s: float) -> None:
    """Show the wait states and who was waited for where they cost something, and the collectives that cost most."""
    component = {state.component for state in waiting.states}
    states = sorted((each for each in waiting.states if each.exposed_s > least_s), key=lambda each: -each.exposed_s)
    out.table(
        ("wait state", "rank", "time", "not hidden", "calls"),
        [
            (
                each.state,
                f"{each.component} {each.rank}" if len(component) > 1 else each.rank,
                format_duration(each.seconds),
                format_duration(each.exposed_s),
                each.calls,
            )
            for each in states[:_LISTED]
        ],
    )
    late = [each for each in waiting.delays if each.waiting_s > least_s]
    out.table(
        ("came last", "because of", "calls", "others waited"),
        [
            (
                f"{each.component or 'rank'} {each.rank}",
                _BECAUSE.get(each.cause, f"longer {each.cause}"),
                each.calls,
                format_duration(each.waiting_s),
            )
            for each in late[:_LISTED]
        ],
    )
    modelled = any(each.model_s is not None for each in waiting.collectives)
    queued = any(each.queued_s > 0 for each in waiting.collectives)
    columns = ("collective", "size", "ranks", "calls", "wait", *(["queue"] if queued else []), "transfer", "bandwidth")
    out.table(
        (*columns, *(["model"] if modelled else [])),
        [
            (
                each.operation.replace("_", " "),
                format_size(each.bytes) if each.bytes >= 0 else "",
                each.ranks,
                each.calls,
                format_duration(each.wait_s),
                *([format_duration(each.queued_s)] if queued else []),
                format_duration(each.transfer_s),
                f"{format_size(round(each.bus_bytes_per_s))}/s" if each.bus_bytes_per_s else "",
                *([format_duration(each.model_s * each.calls) if each.model_s is not None else ""] if modelled else []),
            )
            for each in waiting.collectives[:_LISTED]
        ],
    )


def _tell_coupling(out: Out, coupling: Coupling) -> None:
    out.table(
        (
            "exchange",
            "from",
            "to",
            "count",
            "size",
            "taker waits",
            "giver waits",
            "bandwidth",
            "age",
            "versions behind",
        ),
        [
            (
                each.key,
                each.giver,
                each.taker,
                each.count,
                format_size(each.bytes),
                format_duration(each.taker_waits_s),
                format_duration(each.giver_waits_s),
                f"{format_size(round(each.bytes_per_s))}/s" if each.bytes_per_s else "",
                format_duration(each.age_s),
                f"{each.versions_behind:.2f}",
            )
            for each in coupling.exchanges[:_SHOWN]
        ],
        shrink=("exchange",),
    )
    if coupling.unmatched or coupling.untaken:
        gets, puts = count(coupling.unmatched, "get"), count(coupling.untaken, "version")
        out.say(f"note: {gets} of what nobody put, {puts} that nobody got")


def _tell_critical_path(out: Out, path: CriticalPath) -> None:
    if not path.total_s:
        return

    def shares(listed: Sequence[tuple[str, float]]) -> str:
        return ", ".join(f"{name} {seconds / path.total_s:.0%}" for name, seconds in listed[:_LISTED])

    named = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in path.by_name[:3])
    parts = [shares(path.by_rank), shares(path.by_part), f"longest: {named}" if named else ""]
    out.items([("critical path", f"{format_duration(path.total_s)}: {'; '.join(filter(None, parts))}")])


def _share(seconds: float, total_s: float, name: str) -> str:
    if name == "total_s" or not total_s:
        return format_duration(seconds)
    return f"{seconds / total_s:.1%}"


@trace.command()
@_reading
@click.option("--on", default="", metavar="SYSTEM", help="The system that was traced.")
@click.option("--to", default="", metavar="SYSTEM", help="With the network of this system.")
@click.option("--algorithm", multiple=True, metavar="COLLECTIVE=NAME", help="With this algorithm, as all_reduce=ring.")
@click.option("--bandwidth", type=float, default=1.0, metavar="FACTOR", help="With so many times the bandwidth.")
@click.option("--latency", type=float, default=1.0, metavar="FACTOR", help="With so many times the latency.")
@click.option("--ranks", type=click.IntRange(min=1), help="With so many ranks.")
@click.option("--without", type=int, metavar="RANK", help="As if this rank were as fast as the others.")
@click.option(
    "--faster",
    multiple=True,
    metavar="OPERATOR=FACTOR",
    help="With operators so many times faster; `*` fits any letters.",
)
@click.option("--no-input-wait", is_flag=True, help="As if input were always there.")
@json_option
def replay(out: Out, paths: Sequence[str], form: str | None, **options: Any) -> None:
    """Replay a trace under other conditions, and tell what a step would take.

    \b
    Examples:
      fairmile trace replay first --bandwidth 4
      fairmile trace replay first --no-input-wait
      fairmile trace replay first --on juwels --algorithm all_reduce=rabenseifner
    """
    faster = {name: _factor(value, name) for name, value in _pairs(options["faster"]).items()}
    change = WhatIf(
        bandwidth=options["bandwidth"], latency=options["latency"], ranks=options["ranks"], faster=faster,
        without_straggler=options["without"], without_input_wait=options["no_input_wait"],
    )  # fmt: skip
    found = Workspace.open().traces.replay(
        paths, change, format=form, on=options["on"], to=options["to"], algorithms=_pairs(options["algorithm"])
    )
    if out.as_json:
        out.data({**dataclasses.asdict(found), "speedup": found.speedup, "replay_error": found.error})
        return
    out.items(
        [
            ("measured", f"{format_duration(found.measured_step_s)} a step"),
            ("predicted", f"{format_duration(found.step_s)} a step with {count(found.ranks, 'rank')}"),
            ("speed-up", f"{found.speedup:.2f}"),
            ("check", f"replayed as it was, a step comes out within {found.error:.1%} of what was measured"),
            *(("note", note) for note in found.notes),
        ]
    )


def _pairs(given: Sequence[str]) -> Mapping[str, str]:
    pairs = [each.partition("=") for each in given]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise UsageError(f"{name}{equals}{value}: expected NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _factor(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--faster {name}={text}: expected a number", hint="2 means twice as fast") from None


@trace.command()
@_reading
@click.option("--to", type=click.Choice(EXPORTS), default="chrome", show_default=True, help="chrome opens in Perfetto.")
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="The file or folder to write.")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@json_option
def export(out: Out, paths: Sequence[str], form: str | None, to: str, output: Path, dry_run: bool) -> None:
    """Write traces of all ranks, aligned in time, in another format.

    \b
    Examples:
      fairmile trace export first -o first.json
      fairmile trace export first --to otf2 -o first.otf2
    """
    written = Workspace.open().traces.export(paths, output, to=to, format=form, dry_run=dry_run)
    if out.as_json:
        out.data({"written": [str(each) for each in written], "dry_run": dry_run})
        return
    for each in written:
        size = "" if dry_run or each.is_dir() else f", {format_size(each.stat().st_size)}"
        if to == "otf2" and not dry_run:  # the file that is opened is the smallest of the archive
            whole = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
            size = f", an archive of {format_size(whole)}"
        out.say(f"{'would write' if dry_run else 'wrote'} {each}{size}")
