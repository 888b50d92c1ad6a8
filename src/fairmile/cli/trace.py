"""`fairmile trace`: record a program, see where its time went, and replay what-if scenarios."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import UsageError
from fairmile.base.units import format_duration, format_size, parse_time
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output
from fairmile.runs.arguments import start_file
from fairmile.traces.analyze import TraceAnalysis
from fairmile.traces.breakdown import Breakdown, RankTime
from fairmile.traces.counters import KernelTraffic, Traffic
from fairmile.traces.coupling import CouplingAnalysis
from fairmile.traces.critical import CriticalPath
from fairmile.traces.evidence import STEPS, Finding
from fairmile.traces.finding_events import COUNTED
from fairmile.traces.record import Recorded, RecordingPlan, RecordSettings
from fairmile.traces.replay import Replayed, WhatIf
from fairmile.traces.traces import EXPORTS, Exported
from fairmile.traces.waiting import Waiting
from fairmile.workspace import Workspace

_SHOWN = 8
_LISTED = 4
_KERNELS = 12
_LONGEST_KERNEL = 64
_LEAST = 0.001  # of the time, from which a wait is shown
_BECAUSE = {"idle": "what was not recorded", "launch": "a later host"}


@click.group(cls=LazyGroup)
def trace() -> None:
    """Record programs, see where time went on every rank, and replay what-if scenarios."""


def _trace_arguments(command: Any) -> Any:
    """Give a command the traces it reads."""
    command = click.option("--format", "form", metavar="NAME", help="Format of the traces.  [default: detected]")(
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
    help="Folder to create for the recording.",
)
@click.option(
    "--skip",
    type=int,
    metavar="N",
    default=5,
    show_default=True,
    help="Number of optimizer steps to skip before recording.",
)
@click.option(
    "--steps", type=int, metavar="N", default=10, show_default=True, help="Number of optimizer steps to record."
)
@click.option("--every", type=int, metavar="STEPS", help="Record again every STEPS optimizer steps.")
@click.option(
    "--for",
    "seconds",
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Time to record of a program without an optimizer.",
)
@click.option(
    "--after",
    default="5s",
    show_default=True,
    metavar="TIME",
    help="Time to wait before recording a program without an optimizer.",
)
@click.option("--stack", is_flag=True, help="Record Python call stacks; slower.")
@click.option("--memory", is_flag=True, help="Record memory allocations; slower.")
@click.option("--flight-recorder", is_flag=True, help="Also keep the NCCL flight recorder's dumps.")
@click.option("--counters", is_flag=True, help="Count the bytes that GPU kernels move, with NVIDIA's ncu; no times.")
@click.option("--no-watch", is_flag=True, help="Do not sample power, load and memory.")
@DRY_RUN
@json_output(Recorded, RecordingPlan)
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="PROGRAM [ARGUMENT]... | -- COMMAND..."
)
def record(out: Out, command: tuple[str, ...], output: Path, dry_run: bool, no_watch: bool, **options: Any) -> int:
    """Run an unmodified program and record all its ranks.

    Writes a PyTorch profiler trace of every process that imports torch, spans of the meter, and
    samples of power and load, all on one clock. Put launchers such as torchrun or mpirun into the
    command. The program keeps its output and exit code.

    \b
    Examples:
      fairmile trace record --skip 2 --steps 5 -o first -- python train.py
      fairmile trace record --counters --steps 2 -o counted -- python train.py
      fairmile trace record --dry-run -- torchrun --nproc-per-node 2 train.py
    """
    settings = RecordSettings(
        skip=options["skip"], steps=options["steps"], every=options["every"], after_s=parse_time(options["after"]),
        seconds=parse_time(options["seconds"]), with_stack=options["stack"], memory=options["memory"],
        flight_recorder=options["flight_recorder"], counters=options["counters"],
    )  # fmt: skip
    traces = Workspace.open().traces
    command = start_file(command, Path(), os.environ)
    if dry_run:
        out.show(traces.plan_recording(command, output, settings=settings), lambda plan: _print_plan(out, plan))
        return 0
    recorded = traces.record(command, output, settings=settings, watch=not no_watch)
    out.show(recorded, lambda recorded: _print_recorded(out, recorded))
    return recorded.exit_code


def _print_plan(out: Out, plan: RecordingPlan) -> None:
    settings = plan.settings
    steps = f"{count(settings.steps, 'optimizer step')} after {settings.skip:,}"
    if settings.every is not None:
        steps += f", again every {settings.every:,}"
    time = f"{format_duration(settings.seconds)} after {format_duration(settings.after_s)} without an optimizer"
    what = "would count" if settings.counters else "would record"
    pairs = [("would run", shlex.join(plan.command)), (what, f"{steps}; {time}")]
    out.items([*pairs, ("folder", str(plan.folder))])


def _print_recorded(out: Out, recorded: Recorded) -> None:
    for note in recorded.notes:
        out.say(f"note: {note}")
    out.say(f"{recorded.content} in {recorded.folder}, {format_duration(recorded.elapsed_s)}")
    if any(each.file for each in recorded.traced) or recorded.events:
        out.hint(f"analyze it: fairmile trace analyze {shlex.quote(str(recorded.folder))}")


@trace.command()
@_trace_arguments
@click.option("--on", default="", metavar="SYSTEM", help="Compare collectives with the network of this system.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="Also write an HTML page with timeline and figures to this file.",
)
@click.option("--why", type=click.IntRange(min=1), metavar="N", help="List the events that finding N is made of.")
@json_output(TraceAnalysis)
def analyze(out: Out, paths: Sequence[str], form: str | None, on: str, output: Path | None, why: int | None) -> None:
    """Show where time went on every rank, which ranks waited, and what to try.

    PATH is a run, a folder of `trace record`, a file, or a pattern: PyTorch profiler traces, Horovod
    timelines, TensorFlow and JAX profiles, OTF2 archives, Chrome and Perfetto files, NCCL flight
    recorder dumps, or a run's log.

    \b
    Examples:
      fairmile trace analyze first
      fairmile trace analyze first -o first.html
      fairmile trace analyze first --why 1
      fairmile trace analyze first --on juwels --json
    """
    workspace = Workspace.open()
    analysis = workspace.traces.analyze(paths, format=form, system=on)
    if output is not None:
        workspace.reports.write_page(analysis, output, title=Path(paths[0]).name)
        analysis = dataclasses.replace(analysis, page=str(output))
    if why is not None and why > len(analysis.findings):
        raise UsageError(
            f"--why {why}: the trace has {count(len(analysis.findings), 'finding')}",
            hint="`--why 1` is the first" if analysis.findings else None,
        )
    show = _print_analysis if why is None else functools.partial(_print_events, number=why)
    out.show(analysis, lambda analysis: show(out, analysis))


def _print_analysis(out: Out, analysis: TraceAnalysis) -> None:
    if analysis.traffic is not None:
        _print_traffic(out, analysis.traffic)
    if analysis.is_timed:
        _print_times(out, analysis)
    for note in analysis.notes:
        out.say(f"note: {note}")
    if analysis.page is not None:
        out.say(f"page in {analysis.page}")


def _print_traffic(out: Out, traffic: Traffic) -> None:
    steps = max(1, traffic.steps)
    per = f"a step, of {count(traffic.steps, 'step')}" if traffic.steps else "in the recorded time"

    def rate(each: Traffic | KernelTraffic) -> str:
        share = f", {each.of_peak:.0%} of peak" if each.of_peak is not None else ""
        return f"{format_size(round(each.bytes_per_s))}/s{share}"

    moved = traffic.read_bytes + traffic.written_bytes
    products = f"{format_size(round(traffic.products_bytes / steps))}"
    if traffic.products_model_bytes is not None:
        model = format_size(round(traffic.products_model_bytes / steps))
        products += f", their inputs and outputs once {model}"
    out.items(
        [
            ("GPU memory", f"{format_size(round(moved / steps))} {per}, on {traffic.device or 'an unknown GPU'}"),
            ("kernels", f"{format_duration(traffic.seconds / steps)}, {rate(traffic)}"),
            ("products", products),
        ]
    )
    out.table(
        ("kernel", "calls", "read", "written", "time", "rate"),
        [
            (
                _shorten(each.kernel),
                f"{each.calls / steps:g}",
                format_size(round(each.read_bytes / steps)),
                format_size(round(each.written_bytes / steps)),
                format_duration(each.seconds / steps),
                rate(each),
            )
            for each in traffic.kernels[:_KERNELS]
        ],
        shrink=("kernel",),
    )
    if len(traffic.kernels) > _KERNELS:
        out.say(f"{len(traffic.kernels) - _KERNELS} more kernels, with --json")


def _shorten(kernel: str) -> str:
    """Return a name without the end of those of libraries, which tell tiles and registers."""
    return kernel if len(kernel) <= _LONGEST_KERNEL else f"{kernel[: _LONGEST_KERNEL - 1]}…"


def _print_times(out: Out, analysis: TraceAnalysis) -> None:
    steps = _steps_text(analysis.breakdown)
    out.say(f"{count(len(analysis.ranks), 'rank')}, {steps}, {count(analysis.events, 'event')}")
    parts = [each.name for each in dataclasses.fields(analysis.breakdown.ranks[0].total) if each.name.endswith("_s")]
    rows = [
        (each.label, *(_share(getattr(each.total, name), each.total.total_s, name) for name in parts))
        for each in analysis.breakdown.ranks
    ]
    out.table(("rank", *(name.removesuffix("_s").replace("_", " ") for name in parts)), rows)
    for number, each in enumerate(analysis.findings[:_SHOWN], 1):
        _print_finding(out, number, each)
    if not analysis.findings:
        out.say("no findings")
    _print_waiting(out, analysis.waiting, _LEAST * analysis.total_s)
    if analysis.coupling is not None:
        _print_coupling(out, analysis.coupling)
    if len(analysis.ranks) > 1:  # of one rank it is all that the rank did
        _print_critical_path(out, analysis.critical)


def _print_finding(out: Out, number: int, finding: Finding) -> None:
    of = "" if finding.share_of == STEPS else f" of {finding.share_of}"
    costs = f"{format_duration(finding.seconds)} ({finding.share:.0%}{of})" if finding.seconds else finding.kind
    out.items([(f"{number}. {costs}", finding.title), ("", finding.why), ("", f"Try: {finding.what_to_try}")])


def _print_events(out: Out, analysis: TraceAnalysis, number: int) -> None:
    """Show one finding and the events it is made of."""
    finding = analysis.findings[number - 1]
    _print_finding(out, number, finding)
    out.table(
        ("event", "rank", "lane", "at", "takes", "counted"),
        [
            (
                each.name,
                each.rank,
                each.lane,
                format_duration(each.start_s),
                format_duration(each.duration_s),
                format_duration(each.counted_s) if each.role == COUNTED else "(cause)",
            )
            for each in finding.events
        ],
        shrink=("event",),
    )
    counted = sum(each.role == COUNTED for each in finding.events)
    rest = f"; the {counted:,} longest are shown" if counted < finding.event_count else ""
    total = f"{count(finding.event_count, 'event')} on {count(len(analysis.ranks), 'rank')}"
    out.say(f"{total} count {format_duration(finding.events_s)}, summed over ranks{rest}")
    for note in analysis.notes:
        out.say(f"note: {note}")


def _steps_text(times: Breakdown) -> str:
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


def _print_waiting(out: Out, waiting: Waiting, least_s: float) -> None:
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
        ("late rank", "because of", "calls", "others waited"),
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


def _print_coupling(out: Out, coupling: CouplingAnalysis) -> None:
    out.table(
        (
            "exchange",
            "from",
            "to",
            "count",
            "size",
            "receiver waits",
            "sender waits",
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
        out.say(f"note: {gets} without a matching put, {puts} never read")


def _print_critical_path(out: Out, path: CriticalPath) -> None:
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
@_trace_arguments
@click.option("--on", default="", metavar="SYSTEM", help="System that was traced.")
@click.option("--to", default="", metavar="SYSTEM", help="What if it ran on the network of this system.")
@click.option(
    "--algorithm",
    multiple=True,
    metavar="COLLECTIVE=NAME",
    help="What if a collective used this algorithm, such as all_reduce=ring; repeatable.",
)
@click.option("--bandwidth", type=float, default=1.0, metavar="FACTOR", help="Scale network bandwidth by this factor.")
@click.option("--latency", type=float, default=1.0, metavar="FACTOR", help="Scale network latency by this factor.")
@click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="What if it ran on this many ranks.")
@click.option("--without", type=int, metavar="RANK", help="What if this rank ran at the speed of the others.")
@click.option(
    "--faster",
    multiple=True,
    metavar="OPERATOR=FACTOR",
    help="What if matching operators were FACTOR times faster; `*` matches any text; repeatable.",
)
@click.option("--no-input-wait", is_flag=True, help="What if input were always ready.")
@json_output(Replayed)
def replay(out: Out, paths: Sequence[str], form: str | None, **options: Any) -> None:
    """Replay a trace in a what-if scenario, and predict the step time.

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
    replayed = Workspace.open().traces.replay(
        paths, change, format=form, system=options["on"], to=options["to"], algorithms=_pairs(options["algorithm"])
    )
    out.show(replayed, lambda replayed: _print_replayed(out, replayed))


def _print_replayed(out: Out, replayed: Replayed) -> None:
    out.items(
        [
            ("measured", f"{format_duration(replayed.measured_step_s)} a step"),
            ("predicted", f"{format_duration(replayed.step_s)} a step with {count(replayed.ranks, 'rank')}"),
            ("speed-up", f"{replayed.speedup:.2f}"),
            ("check", f"a replay without changes is within {replayed.error:.1%} of the measured step"),
            *(("note", note) for note in replayed.notes),
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
@_trace_arguments
@click.option(
    "--to",
    type=click.Choice(EXPORTS),
    default="chrome",
    show_default=True,
    help="Format to write; chrome opens in Perfetto.",
)
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="File or folder to write.")
@DRY_RUN
@json_output(Exported)
def export(out: Out, paths: Sequence[str], form: str | None, to: str, output: Path, dry_run: bool) -> None:
    """Convert the traces of all ranks to another format, on one clock.

    \b
    Examples:
      fairmile trace export first -o first.json
      fairmile trace export first --to otf2 -o first.otf2
    """
    exported = Workspace.open().traces.export(paths, output, to=to, format=form, dry_run=dry_run)
    archive = output if to == "otf2" else None
    out.show(exported, lambda exported: _print_exported(out, exported, archive))


def _print_exported(out: Out, exported: Exported, archive: Path | None) -> None:
    for each in exported:
        if exported.dry_run:
            out.say(f"would write {each}")
            continue
        size = "" if each.is_dir() else f", {format_size(each.stat().st_size)}"
        if archive is not None:  # the file that is opened is the smallest of the archive
            total = sum(file.stat().st_size for file in archive.rglob("*") if file.is_file())
            size = f", an archive of {format_size(total)}"
        out.say(f"wrote {each}{size}")
