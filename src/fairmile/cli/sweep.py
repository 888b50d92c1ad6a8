"""`fairmile sweep`: run a program over a parameter space, from a file or from the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.units import format_duration, format_size
from fairmile.cli.job_options import job_options, spec_from
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.notices import notifies
from fairmile.cli.options import DRY_RUN, WAIT, limit_option
from fairmile.cli.out import Out, count, json_output, place
from fairmile.cli.run_options import WithCommand, changes_from, command_of, program_of, run_options
from fairmile.jobs.diagnosis import REJECTED, Diagnosis
from fairmile.runs.execute.crew import Ended
from fairmile.runs.record.run import RunState
from fairmile.runs.runs import Runs
from fairmile.status import states_text
from fairmile.sweeps.files import is_definition
from fairmile.sweeps.folder import Sweep
from fairmile.sweeps.generate import Generated, GenerationPlan
from fairmile.sweeps.model import Definition, place_of
from fairmile.sweeps.record import Source
from fairmile.sweeps.results import ChangedSweep, PointStatus, SweepList, SweepPlan, SweepPoints, SweepStatus
from fairmile.sweeps.sweeps import Sweeps
from fairmile.workspace import Workspace

_SHOWN = 20
_FILES = (".yaml", ".yml", ".json", ".py", ".ipynb")
_INTERRUPTED = 130
_BAD = ("failed", "timeout", "interrupted")
_COLOURS = {"done": "green", "running": "yellow", "queued": "yellow", "left": "dim"}
_STATES = ("left", *map(str, RunState))
_OF_SYSTEMS = ("pack", "slots", "at_once", "queued", "pilots", "wait")
_OF_ANY = ("failed", "best", "notify", "dry_run", "as_json")
_SWEEP = click.argument("reference", metavar="SWEEP")
_NAME = click.option("--name", default="", help="Name of the sweep.")
_BEST = click.option(
    "--best",
    default="",
    metavar="METRIC",
    help="Rank points by this metric.  [default: a validation metric, or the first one]",
)


class GroupOrTarget(LazyGroup):
    """Takes a word that is not a command as the target: `fairmile sweep bench -p lr=0.1,0.01`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.list_commands(ctx) and _names_target(args):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def _names_target(args: Sequence[str]) -> bool:
    """Tell whether words that are not a command name a target, and not a misspelt command."""
    is_option = args[0].startswith("-") and args[0] not in ("-h", "--help")
    is_path = args[0].endswith(_FILES) or "/" in args[0]
    return is_option or is_path or any(word.startswith(("-p", "--param")) or word == "--" for word in args)


def space_options(command: Any) -> Any:
    """Give a command the options that define its program and its axes; `read_definition` reads them."""
    for option in reversed(
        (
            click.argument("words", metavar="[CONFIG]...", nargs=-1),
            click.option(
                "-p",
                "--param",
                "axes",
                multiple=True,
                metavar="KEY=VALUES",
                help="Values of a parameter, such as lr=0.1,0.01; repeatable.",
            ),
            click.option(
                "--template", type=click.Path(path_type=Path), help="Script to run, with {placeholders} for parameters."
            ),
            click.option("--allow-code", is_flag=True, help="Execute CONFIG if it is a Python file or a notebook."),
        )
    ):
        command = option(command)
    return command


def definition_options(command: Any) -> Any:
    for option in (
        click.option("--repeats", type=click.IntRange(min=1), metavar="N", help="Number of repeats per point."),
        click.option(
            "--select", default="", metavar="FILTER", help="Keep only points that match, such as 'lr > 0.01'."
        ),
        space_options,
    ):
        command = option(command)
    return command


@click.group(cls=GroupOrTarget)
def sweep() -> None:
    """Run a program over all combinations of parameter values.

    `fairmile sweep train.py --lr 0.1,0.01 --seed 1..3` runs train.py six times. To
    pass a comma to the program, quote the value twice: --columns '"a,b"'.
    `fairmile sweep run --help` lists the options.

    CONFIG is one or more YAML or JSON files, including those of cloudmesh-ee, or the
    name of an asset. SWEEP is an id from `fairmile sweep ls`, its unique start or end,
    or `last`.
    """


@sweep.command(cls=WithCommand)
@definition_options
@_NAME
@json_output(SweepPoints)
@click.pass_context
def plan(context: click.Context, /, out: Out, **options: Any) -> None:
    """List the points of a sweep; run nothing.

    \b
    Examples:
      fairmile sweep plan tide-sweep.yaml
      fairmile sweep plan -p lr=0.1,0.01 -p 'n=range(1,9)' -- python train.py {lr} {n}
    """
    workspace = Workspace.open()
    definition, _ = _read_points(workspace, options, context)
    points = workspace.sweeps.list_points(definition, template=options["template"])
    out.show(points, lambda points: _print_points(out, points))


@sweep.command(name="generate")
@definition_options
@_NAME
@click.option("--out", "folder", type=click.Path(path_type=Path), required=True, help="Output folder.")
@click.option("--code", "copy", multiple=True, metavar="PATH", help="File or folder to copy to each point; repeatable.")
@click.option(
    "--split-among",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of submit scripts to split the points among.",
)
@DRY_RUN
@json_output(Generated, GenerationPlan)
def generate_(out: Out, folder: Path, dry_run: bool, **options: Any) -> None:
    """Write a folder per point, with its script and configuration, to submit by hand.

    \b
    Examples:
      fairmile sweep generate tide-sweep.yaml --template tide.in.slurm --out rates
      fairmile sweep generate tide-sweep.yaml --out by-two --split-among 2
    """
    workspace = Workspace.open()
    sweeps = workspace.sweeps
    definition, _ = _read_points(workspace, options)
    changes = {name: options[name] for name in ("template", "name", "copy", "split_among")}
    if dry_run:
        out.show(sweeps.plan_generation(definition, folder, **changes), lambda plan: _print_generation_plan(out, plan))
        return
    for note in definition.notes:
        out.say(f"note: {note}")
    generated = sweeps.generate(definition, folder, on_progress=out.progress, **changes)
    out.show(generated, lambda generated: _print_generated(out, generated))


@sweep.command(cls=WithCommand)
@definition_options
@click.option(
    "-j",
    "jobs",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of points to run concurrently on this machine.",
)
@click.option("--failed", is_flag=True, help="Retry the failed points of SWEEP as well.")
@click.option(
    "--pack",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of points per job.  [default: as many as take ten minutes]",
)
@click.option(
    "--slots", type=click.IntRange(min=1), metavar="N", help="Number of points to run concurrently within a job."
)
@click.option("--at-once", type=click.IntRange(min=1), metavar="N", help="Maximum number of running jobs.")
@click.option("--queued", type=click.IntRange(min=1), metavar="N", help="Maximum number of queued jobs.")
@click.option("--pilots", type=click.IntRange(min=1), metavar="N", help="Run the points in this many pilot jobs.")
@_BEST
@WAIT
@run_options
@job_options(program=False)
@DRY_RUN
@json_output(SweepStatus, SweepPlan)
@click.pass_context
@notifies
def run(context: click.Context, /, out: Out, words: Sequence[str], **options: Any) -> int:
    """Run a sweep, or the missing points of SWEEP.

    Points run on this machine, -j at a time, or as job arrays on a system with --on.
    `fairmile sweep run SWEEP` resumes an interrupted sweep; finished points do not run
    again.

    \b
    Examples:
      fairmile sweep run tide-sweep.yaml -j 2
      fairmile sweep -j 2 train.py --lr 0.1,0.01 --seed 1..3
      fairmile sweep run -p n=1,2,3 -- echo {n}
      fairmile sweep run last --failed
    """
    workspace = Workspace.open()
    sweeps = workspace.sweeps
    known = known_sweep(workspace, words) if not options["axes"] else None
    if known is None:
        options["words"] = words
        definition, source = _read_points(workspace, options, context)
        options["name"] = definition.name
        changes = changes_from(options)
        if "run" not in definition.fields:  # a run file may name a system, too
            _check_where(context, changes.get("system") or definition.fields.get("system", ""))
        first, template = list(islice(definition.points, 1)), options["template"]
        sweeps.check(definition, first, template=template, **changes)
        if options["dry_run"]:
            out.show(sweeps.plan(definition, template=template, **changes), lambda plan: _print_plan(out, plan))
            return 0
        known = sweeps.create(definition, source, template=template, **changes)
        print_notes(out, known)
        unit = "run" if first and first[0].repeat else "point"
        out.say(f"sweep {known.id}: {count(known.count, unit)}")
    else:
        _refuse_study(known, "tune run")
        check_only(context, known, *_OF_ANY, "jobs", *_OF_SYSTEMS)
        _check_where(context, known.system)
        if options["dry_run"]:
            out.show(sweeps.points(known), lambda status: _print_status(out, status))
            return 0
    try:
        points = _execute(out, sweeps, known, options)
        status = SweepStatus(known, points)
        if options["best"] or known.record.best or any(each.metrics for each in points):
            status.best = _best(out, workspace, status, options["best"])
        out.show(status, lambda status: _print_outcome(out, workspace, status))
        return _exit_code(status, is_over=options["wait"] or not known.system)
    except KeyboardInterrupt:
        there = f"its jobs on {known.system} continue; `fairmile sweep run {known.id}` follows them again"
        here = f"`fairmile sweep run {known.id}` runs the missing points"
        out.hint(there if known.system and not options["pilots"] else here)
        return _INTERRUPTED


@sweep.command()
@limit_option("sweeps", _SHOWN)
@json_output(SweepList)
def ls(out: Out, limit: int) -> None:
    """List sweeps and studies, newest first.

    \b
    Examples:
      fairmile sweep ls
    """
    out.show(Workspace.open().sweeps.ls(limit=limit), lambda sweeps: _print_sweeps(out, sweeps))


@sweep.command()
@_SWEEP
@_BEST
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="Show only points in this state; repeatable."
)
@json_output(SweepStatus)
def show(out: Out, reference: str, best: str, states: Sequence[str]) -> None:
    """Show the status and metrics of each point of a sweep.

    \b
    Examples:
      fairmile sweep show last
      fairmile sweep show last --state failed
    """
    sweeps = Workspace.open().sweeps
    sweep = sweeps.get(reference)
    _refuse_study(sweep, "tune show")
    out.show(sweeps.status(sweep, states=states, best=best), lambda status: _print_status(out, status))


@sweep.command()
@_SWEEP
@DRY_RUN
@json_output(ChangedSweep)
def cancel(out: Out, reference: str, dry_run: bool) -> None:
    """Cancel a sweep, its jobs or the process that runs it here; keep finished points.

    \b
    Examples:
      fairmile sweep cancel last --dry-run
    """
    sweeps = Workspace.open().sweeps
    sweep = sweeps.get(reference)
    _refuse_study(sweep, "tune stop")
    _show_change(out, sweeps.cancel(sweep, dry_run=dry_run))


@sweep.command()
@_SWEEP
@DRY_RUN
@json_output(ChangedSweep)
def rm(out: Out, reference: str, dry_run: bool) -> None:
    """Remove a sweep; keep its runs.

    \b
    Examples:
      fairmile sweep rm last --dry-run
    """
    _show_change(out, Workspace.open().sweeps.remove(reference, dry_run=dry_run))


def print_notes(out: Out, sweep: Sweep) -> None:
    """Print what a person should know before a new sweep runs."""
    for note in sweep.record.notes:
        out.say(f"note: {note}")


def _show_change(out: Out, sweep: ChangedSweep) -> None:
    out.show(sweep, lambda sweep: out.line(f"sweep {sweep.id}: {sweep.done}"))


def _refuse_study(sweep: Sweep, instead: str) -> None:
    if sweep.is_study:
        raise UsageError(f"{sweep.id} is a study, not a sweep", hint=f"`fairmile {instead} {sweep.id}`")


def check_only(context: click.Context, sweep: Sweep, *allowed: str) -> None:
    """Raise UsageError for an option that was fixed when the sweep was created."""
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and parameter.name not in allowed and _is_given(context, parameter)
    ]
    if command_of(context):
        given.append("a command")
    if given:
        raise UsageError(
            f"{given[0]} cannot change {sweep.id}, which exists already",
            hint="pass the file again to create a new sweep",
        )


def _is_given(context: click.Context, parameter: click.Parameter) -> bool:
    return context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE


def _check_where(context: click.Context, system: str) -> None:
    """Raise UsageError for an option that does not apply where the sweep runs."""
    wrong = ("jobs",) if system else _OF_SYSTEMS
    for parameter in context.command.params:
        if parameter.name in wrong and _is_given(context, parameter):
            name, hint = (
                "/".join([parameter.opts[-1], *parameter.secondary_opts]),
                "-j sets how many points run concurrently here; --on names a system",
            )
            where = f"on {system}" if system else "here"
            hint = "--at-once limits the number of running jobs there" if system else hint
            raise UsageError(f"{name} does not apply to a sweep that runs {where}", hint=hint)


def _read_points(
    workspace: Workspace, options: Mapping[str, Any], context: click.Context | None = None
) -> tuple[Definition, Source]:
    """Return the sweep that is defined; UsageError if an axis is a distribution."""
    definition, source = read_definition(workspace, options, context)
    for name in definition.distributions:
        raise UsageError(
            f"{place_of(definition.origin, 'axes', name)} is a distribution, and a sweep needs values",
            hint=f"`fairmile tune` searches it; a sweep takes a list of values, such as -p {name}=0.1,0.2",
        )
    return definition, source


def read_definition(
    workspace: Workspace, options: Mapping[str, Any], context: click.Context | None = None, verb: str = "sweep"
) -> tuple[Definition, Source]:
    """Return the sweep that the words and options of a command line define."""
    words = list(options["words"])
    command = command_of(context) if context is not None else ()
    program = program_of(context) if context is not None else ()
    files = [word for word in words if is_definition(workspace.resolve(word, for_=verb, without=("sweep",)))]
    names = [word for word in words if word not in files]
    if len(names) > 1 or (names and files):
        raise UsageError(f"{names[0]!r} is not a file", hint="pass configuration files, or the name of one asset")
    if not words and not command:
        raise UsageError("nothing to sweep over", hint="pass a program with its arguments, a file, or a name")
    spec_from({"name": options["name"]})  # an invalid name is reported as that of the option
    changes = {name: options[name] for name in ("select", "repeats", "best", "name", "objective") if options.get(name)}
    changes |= {"seed": options["seed"]} if options.get("seed") is not None else {}
    axes: dict[str, str] = {}
    for name, values in map(_axis, options["axes"]):
        if name in axes:
            raise UsageError(f"-p {name} is given twice", hint=f"list all values in one: -p {name}={axes[name]},…")
        axes[name] = values
    return workspace.sweeps.read(
        files,
        what=names[0] if names else "",
        command=() if program else command,
        program=program,
        tuning=verb == "tune",
        params=axes,
        allow_code=options["allow_code"],
        changes=changes,
    )


def _axis(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise UsageError(f"-p {text!r} is not an axis", hint="write -p NAME=VALUES, such as -p lr=0.1,0.01")
    return name, values


def known_sweep(workspace: Workspace, words: Sequence[str], verb: str = "sweep") -> Sweep | None:
    """Return the sweep that one word names, or None where it names what is to be run."""
    target = workspace.resolve(words[0], for_=verb) if len(words) == 1 else None
    return target.content if target is not None and target.kind == "sweep" else None


def _execute(out: Out, sweeps: Sweeps, sweep: Sweep, options: Mapping[str, Any]) -> SweepStatus:
    """Run the missing points of a sweep here, or submit them and wait for them if asked to."""
    if not sweep.system or options["pilots"]:
        return _run_to_end(out, sweeps, sweep, options)
    submitting = {name: options[name] for name in ("pack", "slots", "at_once", "queued")}
    for job in sweeps.submit(sweep, failed=options["failed"], **submitting):
        out.say(f"job {job.job} on {sweep.system}")
    if not options["wait"]:
        return sweeps.points(sweep)
    return sweeps.wait(sweep, on_look=lambda points: _print_progress(out, points))


def _run_to_end(out: Out, sweeps: Sweeps, sweep: Sweep, options: Mapping[str, Any]) -> SweepStatus:
    ended_points = Counter[str]()

    def report(ended: Ended) -> None:
        ended_points[ended.state] += 1
        out.progress(ended_points.total(), sweep.count)
        if ended.state not in ("done", "cancelled"):
            out.say(f"{ended.id}: {ended.state}: {ended.reason}")

    limits = {"at_once": options["jobs"], "pilots": options["pilots"] or 0}
    return sweeps.run(sweep, failed=options["failed"], on_end=report, **limits)


def _best(out: Out, workspace: Workspace, status: SweepStatus, metric: str) -> str:
    """Return which point is best; a metric that none has is an error, which does not hide how the sweep ended."""
    try:
        return workspace.sweeps.best(status.sweep, metric)
    except NotFound:
        if not out.as_json:
            _print_outcome(out, workspace, status)
        raise


def _print_progress(out: Out, points: Sequence[PointStatus]) -> None:
    out.progress(sum(each.is_over for each in points), len(points))


def _exit_code(status: SweepStatus, *, is_over: bool) -> int:
    """Return 1 if a point failed, or if not all are done when the sweep is over."""
    states = Counter(each.state for each in status)
    return 1 if states["failed"] or states["timeout"] or (is_over and states["done"] < len(status)) else 0


def _print_outcome(out: Out, workspace: Workspace, status: SweepStatus) -> None:
    """Print how many points are in which state, why points failed, and what to do next."""
    sweep = status.sweep
    states = Counter(each.state for each in status)
    shown = [out.colour(f"{number:,} {state}", _COLOURS.get(state, "red")) for state, number in states.items()]
    out.line(f"sweep {sweep.id}: {', '.join(shown)}")
    bad = [each for each in status if each.state in _BAD]
    fixes = print_failures(
        out,
        workspace.runs,
        [(f"{each.id}: {each.state}", each.run, each.reason) for each in bad[:_SHOWN]],
        "run --resume",
    )
    if len(bad) > _SHOWN:
        out.hint(f"{len(bad) - _SHOWN:,} more: `fairmile sweep show {sweep.id} --state failed` lists them")
    combined = workspace.sweeps.combined(sweep)
    if combined is not None:
        out.line(f"combined by run {combined.id}: {combined.state}")
    if status.best:
        out.paragraph(status.best)
    if len(status) <= _SHOWN and any(each.metrics for each in status):
        _print_results(out, status)
    if states["failed"] or states["timeout"]:
        _print_retry(out, sweep, fixes)
    if states["queued"] or states["running"]:
        out.hint(f"`fairmile sweep run {sweep.id}` follows it, `fairmile status` shows its progress")
    elif states["left"] or states["interrupted"] or states["cancelled"]:
        out.hint(f"`fairmile sweep run {sweep.id}` runs the missing points")
    elif states.keys() == {"done"}:
        lists = f"`fairmile sweep show {sweep.id}` lists them, " if len(status) > _SHOWN else ""
        if any(each.metrics for each in status):
            out.hint(f"{lists}`fairmile report {sweep.id}` plots the results")
        else:
            out.hint(f"{lists}`fairmile runs log {status[0].run}` prints the output of a point; --metric reads numbers")


def _print_retry(out: Out, sweep: Sweep, fixes: Sequence[Diagnosis]) -> None:
    if fixes and all(each.what == REJECTED for each in fixes):  # a sweep keeps its arguments
        out.hint(f"then start a new sweep; `fairmile sweep rm {sweep.id}` removes this one")
        return
    retry = f"`fairmile sweep run {sweep.id} --failed` retries the failed points"
    out.hint(f"{retry} once the cause is fixed" if fixes else retry)


def print_failures(out: Out, runs: Runs, failures: Sequence[tuple[str, str, str]], next_step: str) -> list[Diagnosis]:
    """Print why runs failed, each given as label, run and reason, and return what fixes them, each printed once.

    `next_step` is the command for a run that can succeed unchanged.
    """
    fixes: dict[str, Diagnosis] = {}
    for label, run, reason in failures:
        try:
            diagnosis = runs.explain(runs.get(run)) if run else None
        except NotFound:  # it never began, or was removed
            diagnosis = None
        line = diagnosis.line if diagnosis is not None else ""
        text = f"{label}: {reason}: {line}" if line and line not in reason else f"{label}: {reason}"
        if diagnosis is not None and not diagnosis.resumable:
            fixes[diagnosis.advice] = diagnosis
            out.line(text)
        else:
            out.line(text + (f"  → fairmile {next_step} {run}" if run else ""))
    for advice in fixes:
        out.hint(advice)
    return list(fixes.values())


def _print_axes(out: Out, axes: Mapping[str, Sequence[Any]]) -> None:
    for name, values in axes.items():
        shown = ", ".join(map(str, values[:_SHOWN])) + (" …" if len(values) > _SHOWN else "")
        out.line(f"{name}: {count(len(values), 'value')}: {shown}")


def _print_points(out: Out, points: SweepPoints) -> None:
    _print_axes(out, points.axes)
    out.line(count(len(points), "point"))
    out.table(["point", *points.axes], [[each.id, *each.values.values()] for each in points[:_SHOWN]])
    if len(points) > _SHOWN:
        out.hint(f"{len(points) - _SHOWN:,} more: --json lists all of them")


def _print_plan(out: Out, plan: SweepPlan) -> None:
    _print_axes(out, plan.definition.points.axes)
    out.line(f"{count(plan.count, 'point')}: first {plan.first.id}, last {plan.last.id}")
    out.line(f"disk: about {format_size(plan.disk_bytes)} of records")
    if plan.point_s is None:
        out.line("time: unknown (no successful earlier run)")
    else:
        out.line(f"time: {format_duration(plan.point_s)} per point ({plan.point_s_from})")
        out.line(f"node-hours: {plan.node_hours:.3g}")
    if plan.commands:
        points = islice(plan.definition.points, len(plan.commands))
        out.table(["point", "command"], [[each.id, text] for each, text in zip(points, plan.commands, strict=True)])
    if plan.count > len(plan.commands):
        out.hint("`fairmile sweep plan` with the same arguments lists all points with --json")
    for note in plan.notes:
        out.say(f"note: {note}")


def _print_generation_plan(out: Out, plan: GenerationPlan) -> None:
    first, last = (point.id if point else "" for point in (plan.first, plan.last))
    out.line(f"{count(plan.count, 'folder')} in {plan.folder}: first {first}, last {last}")
    out.line(f"{count(plan.files, 'file')}, about {format_size(plan.size_bytes)}")
    out.line(f"submit command: {plan.submit.strip()}")


def _print_generated(out: Out, generated: Generated) -> None:
    kept = f", {generated.kept:,} of them unchanged" if generated.kept else ""
    out.line(f"{count(generated.count, 'folder')} in {generated.folder}{kept}")
    out.hint(f"`sh {generated.submit[0]}` submits them")


def _print_sweeps(out: Out, sweeps: SweepList) -> None:
    rows = [
        [
            each.id,
            "study" if each.is_study else count(each.count, "point"),
            states_text(sweeps.counts[each.id]),
            place(each.system),
            f"{datetime.fromtimestamp(each.created, UTC):%Y-%m-%d %H:%M}",
        ]
        for each in sweeps
    ]
    out.table(["sweep", "size", "runs", "where", "created (UTC)"], rows)
    if not sweeps:
        out.say("no sweeps yet")
        out.hint("`fairmile sweep train.py --lr 0.01,0.1` starts one")


def _print_results(out: Out, status: SweepStatus) -> None:
    columns, rows = status.table()
    coloured = [[run, out.colour(str(state), _COLOURS.get(str(state), "red")), *rest] for run, state, *rest in rows]
    out.table(columns, coloured, shrink=["reason"])


def _print_status(out: Out, status: SweepStatus) -> None:
    _print_results(out, status)
    if status.best:
        out.paragraph(status.best)
