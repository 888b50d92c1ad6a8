"""`fairmile sweep`: thousands of runs from one small file, or from a line."""

from __future__ import annotations

import os
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
from fairmile.cli.out import Out, count, json_option
from fairmile.cli.run_options import WithCommand, changes_from, command_of, run_options
from fairmile.meter.lines import number_text
from fairmile.reports.sweep import best as best_of
from fairmile.runs.record.run import RunState
from fairmile.runs.runs import Runs
from fairmile.sweeps.folder import Sweep
from fairmile.sweeps.generate import GenerationPlan, generate, plan_generation
from fairmile.sweeps.model import Definition, Point
from fairmile.sweeps.sweeps import PointStatus, SweepPlan, Sweeps
from fairmile.workspace import Workspace

_SHOWN = 20
_FILES = (".yaml", ".yml", ".json", ".py", ".ipynb")
_INTERRUPTED = 130
_BAD = ("failed", "timeout", "interrupted")
_COLOURS = {"done": "green", "running": "yellow", "queued": "yellow", "left": "dim"}
_STATES = ("left", *map(str, RunState))
_OF_SYSTEMS = ("pack", "slots", "at_once", "queued", "pilots", "wait")
_OF_ANY = ("failed", "best", "dry_run", "as_json")
_SWEEP = click.argument("reference", metavar="SWEEP")
_NAME = click.option("--name", default="", help="What it is called, and the manifest that is written.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; do nothing.")


class GroupOrWhat(LazyGroup):
    """A word that is no command is what is run: `fairmile sweep bench -p lr=0.1,0.01`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.list_commands(ctx) and _says_what(args):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def _says_what(args: Sequence[str]) -> bool:
    """Tell whether words that name no command say what to run, and are no misspelt command."""
    return args[0].endswith(_FILES) or any(word.startswith(("-p", "--param")) or word == "--" for word in args)


def space_options(command: Any) -> Any:
    """Give a command the options that say what is executed over which values; `read_definition` reads them."""
    for option in reversed(
        (
            click.argument("words", metavar="[CONFIG]...", nargs=-1),
            click.option("-p", "--param", "axes", multiple=True, metavar="KEY=VALUES", help="An axis: lr=0.1,0.01."),
            click.option("--template", type=click.Path(path_type=Path), help="A script with {placeholders}."),
            click.option("--allow-code", is_flag=True, help="Execute configurations that are Python or notebooks."),
        )
    ):
        command = option(command)
    return command


def definition_options(command: Any) -> Any:
    for option in (
        click.option("--repeats", type=click.IntRange(min=1), help="Repeats per point."),
        click.option("--select", default="", metavar="FILTER", help="Only points for which it holds: 'lr > 0.01'."),
        space_options,
    ):
        command = option(command)
    return command


@click.group(cls=GroupOrWhat)
def sweep() -> None:
    """Run a program over all combinations of values.

    CONFIG are YAML or JSON files, also those of cloudmesh-ee, or the name of an
    asset; SWEEP is an id that `fairmile sweep ls` shows, its start or end, or `last`.
    """


@sweep.command(cls=WithCommand)
@definition_options
@_NAME
@json_option
@click.pass_context
def plan(context: click.Context, /, out: Out, **options: Any) -> None:
    """Show the points of a sweep; nothing is written.

    \b
    Examples:
      fairmile sweep plan tide-sweep.yaml
      fairmile sweep plan -p lr=0.1,0.01 -p 'n=range(1,9)' -- python train.py {lr} {n}
    """
    workspace = Workspace.open()
    definition, _ = _read_points(workspace.sweeps, options, command_of(context))
    points = list(definition.points)
    workspace.sweeps.check(definition, points, catalog=lambda: workspace.catalog, template=options["template"])
    if out.as_json:
        out.data(
            {
                "count": len(points),
                "axes": {name: list(values) for name, values in definition.points.axes.items()},
                "points": [{"id": point.id, "values": _values(point)} for point in points],
            }
        )
        return
    _matrix(out, definition)
    out.line(count(len(points), "point"))
    out.table(["point", *definition.points.axes], [[each.id, *each.values.values()] for each in points[:_SHOWN]])
    if len(points) > _SHOWN:
        out.hint(f"{len(points) - _SHOWN:,} more: --json lists all of them")


@sweep.command(name="generate")
@definition_options
@_NAME
@click.option("--out", "folder", type=click.Path(path_type=Path), required=True, help="Where the folders go.")
@click.option("--code", "copy", multiple=True, metavar="PATH", help="Files or folders that each point needs.")
@click.option(
    "--split-among", type=click.IntRange(min=1), default=1, help="Number of people to write submit scripts for."
)
@_DRY_RUN
@json_option
def generate_(out: Out, folder: Path, copy: Sequence[str], split_among: int, dry_run: bool, **options: Any) -> None:
    """Write a folder per point, with script and configuration, for those who submit by hand.

    \b
    Examples:
      fairmile sweep generate tide-sweep.yaml --template tide.in.slurm --out rates
      fairmile sweep generate tide-sweep.yaml --out by-two --split-among 2
    """
    definition, _ = _read_points(Workspace.open().sweeps, options, ())
    given: dict[str, Any] = {"name": options["name"], "copy": copy, "split_among": split_among, "environ": os.environ}
    if dry_run:
        _show_generation(out, plan_generation(definition, options["template"], folder, **given))
        return
    made = generate(definition, options["template"], folder, on_progress=out.progress, **given)
    if out.as_json:
        submit = [str(file) for file in made.submit]
        out.data({"count": made.count, "kept": made.kept, "manifest": str(made.manifest), "submit": submit})
        return
    kept = f", {made.kept:,} of them as before" if made.kept else ""
    out.line(f"{count(made.count, 'folder')} in {made.folder}{kept}")
    out.hint(f"`sh {made.submit[0]}` submits them")


@sweep.command(cls=WithCommand)
@definition_options
@click.option(
    "-j",
    "jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of points to run concurrently here.",
)
@click.option("--failed", is_flag=True, help="Also those points of SWEEP again that failed.")
@click.option("--pack", type=click.IntRange(min=1), help="Points per job.  [default: what fills ten minutes]")
@click.option("--slots", type=click.IntRange(min=1), help="Points that run concurrently in a job.")
@click.option("--at-once", type=click.IntRange(min=1), help="Maximum number of running jobs.")
@click.option("--queued", type=click.IntRange(min=1), help="Maximum number of queued jobs.")
@click.option("--pilots", type=click.IntRange(min=1), help="Number of pilot jobs that execute the points.")
@click.option("--best", default="", metavar="METRIC", help="Show the point that is best by this metric.")
@click.option("--wait/--leave", default=True, help="Follow a sweep on a system to its end.  [default: wait]")
@run_options
@job_options(program=False)
@_DRY_RUN
@json_option
@click.pass_context
def run(context: click.Context, /, out: Out, words: Sequence[str], **options: Any) -> int:
    """Execute a sweep, or with SWEEP what of one is missing.

    It runs here, -j points at once, or as job arrays on a system with --on. What was
    interrupted goes on with `fairmile sweep run SWEEP`; nothing is done twice.

    \b
    Examples:
      fairmile sweep run tide-sweep.yaml -j 2
      fairmile sweep run -p n=1,2,3 -- echo {n}
      fairmile sweep run last --failed
    """
    workspace = Workspace.open()
    sweeps = workspace.sweeps
    found = known_sweep(sweeps, words) if not options["axes"] else None
    if found is None:
        options["words"] = words
        definition, source = _read_points(sweeps, options, command_of(context))
        options["name"] = definition.name
        changes = changes_from(options)
        if "run" not in definition.fields:  # a run file may name a system, too
            _check_where(context, changes.get("system") or definition.fields.get("system", ""))
        first, template = list(islice(definition.points, 1)), options["template"]
        sweeps.check(definition, first, catalog=lambda: workspace.catalog, template=template, **changes)
        if options["dry_run"]:
            _show_plan(out, sweeps.plan(definition, template=template, **changes))
            return 0
        found = sweeps.create(definition, source, template=template, **changes)
        print_notes(out, found)
        out.say(f"sweep {found.id}: {count(found.count, 'point')}")
    else:
        _no_study(found, "tune run")
        check_only(context, found, *_OF_ANY, "jobs", *_OF_SYSTEMS)
        _check_where(context, found.system)
        if options["dry_run"]:
            _show_standing(out, found, sweeps.points(found))
            return 0
    try:
        points = _executed(out, sweeps, found, options)
        return _told(out, workspace, found, points, options)
    except KeyboardInterrupt:
        where = f"its jobs on {found.system} go on; `fairmile sweep run {found.id}` follows them again"
        here = f"`fairmile sweep run {found.id}` goes on with what is missing"
        out.hint(where if found.system and not options["pilots"] else here)
        return _INTERRUPTED


@sweep.command()
@click.option("-n", "--limit", type=click.IntRange(min=1), default=_SHOWN, show_default=True, help="How many.")
@json_option
def ls(out: Out, limit: int) -> None:
    """List sweeps and studies, the newest first.

    \b
    Examples:
      fairmile sweep ls
    """
    workspace = Workspace.open()
    found = workspace.sweeps.ls()[:limit]
    states = {each.id: Counter(str(row.state) for row in workspace.ledger.rows(group=each.id)) for each in found}
    if out.as_json:
        out.data({"sweeps": [_facts(each) | {"runs": dict(states[each.id])} for each in found]})
        return
    rows = [
        [
            each.id,
            "study" if each.is_study else count(each.count, "point"),
            ", ".join(f"{number:,} {state}" for state, number in states[each.id].items()),
            each.system or "here",
            f"{datetime.fromtimestamp(each.created, UTC):%Y-%m-%d %H:%M}",
        ]
        for each in found
    ]
    out.table(["sweep", "size", "runs", "where", "created (UTC)"], rows)


@sweep.command()
@_SWEEP
@click.option("--best", default="", metavar="METRIC", help="Show the point that is best by this metric.")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Only points in that state.")
@json_option
def show(out: Out, reference: str, best: str, states: Sequence[str]) -> None:
    """Show where each point of a sweep stands, and what came out.

    \b
    Examples:
      fairmile sweep show last
      fairmile sweep show last --state failed
    """
    sweeps = Workspace.open().sweeps
    found = sweeps.get(reference)
    _no_study(found, "tune show")
    points = [each for each in sweeps.points(found) if not states or each.state in states]
    _show_standing(out, found, points, **_best(sweeps, found, best))


@sweep.command()
@_SWEEP
@_DRY_RUN
@json_option
def cancel(out: Out, reference: str, dry_run: bool) -> None:
    """End the jobs of a sweep; what they have done stays.

    \b
    Examples:
      fairmile sweep cancel last --dry-run
    """
    sweeps = Workspace.open().sweeps
    found = sweeps.get(reference)
    _no_study(found, "tune stop")
    if not found.system:
        _done(out, found, "has no jobs, since it runs here")
        return
    if not dry_run:
        sweeps.cancel(found)
    _done(out, found, "would be cancelled" if dry_run else "cancelled")


@sweep.command()
@_SWEEP
@_DRY_RUN
@json_option
def rm(out: Out, reference: str, dry_run: bool) -> None:
    """Forget a sweep; its runs stay.

    \b
    Examples:
      fairmile sweep rm last --dry-run
    """
    sweeps = Workspace.open().sweeps
    found = sweeps.get(reference) if dry_run else sweeps.remove(reference)
    _done(out, found, "would be removed" if dry_run else "removed")


def print_notes(out: Out, sweep: Sweep) -> None:
    """Print what a person should know before a new sweep runs."""
    for note in sweep.document.get("notes", []):
        out.say(f"note: {note}")


def _done(out: Out, sweep: Sweep, what: str) -> None:
    if out.as_json:
        out.data(_facts(sweep) | {"done": what})
    else:
        out.line(f"sweep {sweep.id}: {what}")


def _no_study(sweep: Sweep, instead: str) -> None:
    if sweep.is_study:
        raise UsageError(f"{sweep.id} is a study and no sweep", hint=f"`fairmile {instead} {sweep.id}`")


def check_only(context: click.Context, sweep: Sweep, *allowed: str) -> None:
    """Raise UsageError for an option that says of a sweep what was decided when it was made."""
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and parameter.name not in allowed and _is_given(context, parameter)
    ]
    if command_of(context):
        given.append("a command")
    if given:
        raise UsageError(
            f"{given[0]} cannot be given for {sweep.id}, whose runs are decided",
            hint="give the file again for a new one",
        )


def _is_given(context: click.Context, parameter: click.Parameter) -> bool:
    return context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE


def _check_where(context: click.Context, system: str) -> None:
    """Raise UsageError for an option that only sweeps elsewhere have."""
    wrong = ("jobs",) if system else _OF_SYSTEMS
    for parameter in context.command.params:
        if parameter.name in wrong and _is_given(context, parameter):
            name, hint = (
                "/".join([parameter.opts[-1], *parameter.secondary_opts]),
                "-j says how many points run at once here; --on names a system",
            )
            where = f"on {system}" if system else "here"
            hint = "--at-once says how many jobs run at once there" if system else hint
            raise UsageError(f"{name} means nothing for a sweep that runs {where}", hint=hint)


def _read_points(
    sweeps: Sweeps, options: Mapping[str, Any], command: Sequence[str]
) -> tuple[Definition, dict[str, Any]]:
    """Return the sweep that is defined; of a space without values UsageError."""
    definition, source = read_definition(sweeps, options, command)
    for name in definition.distributions:
        raise UsageError(
            f"{definition.origin('axes', name)} axes.{name} is a distribution, and a sweep needs values",
            hint=f"`fairmile tune` searches it; here -p {name}=VALUES gives it values",
        )
    return definition, source


def read_definition(
    sweeps: Sweeps, options: Mapping[str, Any], command: Sequence[str]
) -> tuple[Definition, dict[str, Any]]:
    """Return the sweep that the words and options of a command line define."""
    words = list(options["words"])
    files = [word for word in words if word.endswith(_FILES) or Path(word).is_file()]
    names = [word for word in words if word not in files]
    if len(names) > 1 or (names and files):
        raise UsageError(f"{names[0]!r} is no file", hint="give configuration files, or the name of one asset")
    if not words and not command:
        raise UsageError("nothing to sweep over", hint="give a file, a name, or -p AXIS=VALUES -- COMMAND…")
    spec_from({"name": options["name"]})  # a name that no job can have is told as that of the option
    changes = {name: options[name] for name in ("select", "repeats", "name") if options.get(name)}
    axes: dict[str, str] = {}
    for name, values in map(_axis, options["axes"]):
        if name in axes:
            raise UsageError(f"-p {name} is given twice", hint=f"write all values at once: -p {name}={axes[name]},…")
        axes[name] = values
    return sweeps.read(
        files,
        what=names[0] if names else "",
        command=command,
        params=axes,
        allow_code=options["allow_code"],
        changes=changes,
    )


def _axis(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise UsageError(f"-p {text!r} gives no axis", hint="write -p NAME=VALUES, as -p lr=0.1,0.01")
    return name, values


def known_sweep(sweeps: Sweeps, words: Sequence[str]) -> Sweep | None:
    """Return the sweep that one word names, where it names one and no file; NotFound where it may be any of several."""
    if len(words) != 1 or words[0].endswith(_FILES) or Path(words[0]).is_file():
        return None
    try:
        return sweeps.get(words[0])
    except NotFound:
        if words[0] == "last" or any(each.id.startswith(words[0]) for each in sweeps.ls()):
            raise
        return None


def _executed(out: Out, sweeps: Sweeps, sweep: Sweep, options: Mapping[str, Any]) -> list[PointStatus]:
    if not sweep.system or options["pilots"]:
        done = Counter[str]()

        def tell(ended: Any) -> None:
            done[ended.state] += 1
            out.progress(done.total(), sweep.count)
            if ended.state not in ("done", "cancelled"):
                out.say(f"{ended.id}: {ended.state}: {ended.reason}")

        executing = {"at_once": options["jobs"], "pilots": options["pilots"] or 0}
        return sweeps.run(sweep, failed=options["failed"], on_end=tell, **executing)
    submitting = {name: options[name] for name in ("pack", "slots", "at_once", "queued")}
    for job in sweeps.submit(sweep, failed=options["failed"], **submitting):
        out.say(f"job {job.job} on {sweep.system}")
    if not options["wait"]:
        return sweeps.points(sweep)
    return sweeps.wait(sweep, on_look=lambda found: _look(out, found))


def _look(out: Out, found: Sequence[PointStatus]) -> None:
    out.progress(sum(each.state not in ("queued", "running", "left") for each in found), len(found))


def _told(
    out: Out, workspace: Workspace, sweep: Sweep, found: Sequence[PointStatus], options: Mapping[str, Any]
) -> int:
    """Tell how a sweep stands and return the exit code."""
    states = Counter(each.state for each in found)
    metric = options["best"] or str(sweep.document.get("best") or "")
    if out.as_json:
        _show_standing(out, sweep, found, **_best(workspace.sweeps, sweep, metric))
    else:
        shown = [out.colour(f"{number:,} {state}", _COLOURS.get(state, "red")) for state, number in states.items()]
        out.line(f"sweep {sweep.id}: {', '.join(shown)}")
        bad = [each for each in found if each.state in _BAD]
        for each in bad[:_SHOWN]:
            reason = why_it_failed(workspace.runs, each.run, each.reason)
            out.line(f"{each.id}: {each.state}: {reason}  → fairmile run --resume {each.run}")
        if len(bad) > _SHOWN:
            out.hint(f"{len(bad) - _SHOWN:,} more: `fairmile sweep show {sweep.id} --state failed` lists them")
        combined = workspace.sweeps.combined(sweep)
        if combined is not None:
            out.line(f"combined by run {combined.id}: {combined.state}")
        for text in _best(workspace.sweeps, sweep, metric).values():
            out.paragraph(text)
        if states["failed"] or states["timeout"]:
            out.hint(f"`fairmile sweep run {sweep.id} --failed` does the failed ones again")
        if states["queued"] or states["running"]:
            out.hint(f"`fairmile sweep run {sweep.id}` follows it, `fairmile status` tells how far it is")
        elif states["left"] or states["interrupted"] or states["cancelled"]:
            out.hint(f"`fairmile sweep run {sweep.id}` goes on with what is missing")
        elif states.keys() == {"done"}:
            out.hint(f"`fairmile report {sweep.id}` draws the results")
    waited = options["wait"] or not sweep.system
    return 1 if states["failed"] or states["timeout"] or (waited and states["done"] < len(found)) else 0


def why_it_failed(runs: Runs, run: str, reason: str) -> str:
    """Return the reason of a failure with the line of its output that tells most."""
    try:
        found = runs.explain(runs.get(run)) if run else None
    except NotFound:  # it never began, or was removed
        return reason
    return f"{reason}: {found.line}" if found is not None and found.line and found.line not in reason else reason


def _best(sweeps: Sweeps, sweep: Sweep, metric: str) -> dict[str, str]:
    """Return which point is best by a metric, where one is asked for."""
    if not metric:
        return {}
    done = [run for run in sweeps.results(sweep) if run.state is RunState.DONE]
    return {"best": best_of(done, metric).text} if done else {}


def _values(point: Point) -> dict[str, Any]:
    return {**point.values, **({"repeat": point.repeat} if point.repeat is not None else {})}


def _matrix(out: Out, definition: Definition) -> None:
    for name, values in definition.points.axes.items():
        shown = ", ".join(map(str, values[:_SHOWN])) + (" …" if len(values) > _SHOWN else "")
        out.line(f"{name}: {count(len(values), 'value')}: {shown}")


def _show_plan(out: Out, plan: SweepPlan) -> None:
    facts = {
        "count": plan.count,
        "axes": {name: list(values) for name, values in plan.definition.points.axes.items()},
        "first": {"id": plan.first.id, "values": _values(plan.first)},
        "last": {"id": plan.last.id, "values": _values(plan.last)},
        "disk_bytes": plan.disk_bytes,
        "point_s": plan.point_s,
        "node_hours": plan.node_hours,
        "notes": list(plan.notes),
        "script": plan.run.script if plan.run else "",
    }
    if out.as_json:
        out.data(facts)
        return
    _matrix(out, plan.definition)
    out.line(f"{count(plan.count, 'point')}: first {plan.first.id}, last {plan.last.id}")
    out.line(f"disk: about {format_size(plan.disk_bytes)} of records")
    if plan.point_s is None:
        out.line("time: not known, since no earlier run of it has ended well")
    else:
        out.line(f"time: {format_duration(plan.point_s)} a point ({plan.point_s_from})")
        out.line(f"node-hours: {plan.node_hours:.3g}")
    if plan.run is not None:
        out.line(f"runs: {' '.join(plan.run.spec.argv)}")
    for note in plan.notes:
        out.say(f"note: {note}")


def _show_generation(out: Out, plan: GenerationPlan) -> None:
    ends = {"first": plan.first.id if plan.first else "", "last": plan.last.id if plan.last else ""}
    facts = {"count": plan.count, **ends, "files": plan.files, "size_bytes": plan.size_bytes, "submit": plan.submit}
    if out.as_json:
        out.data(facts | {"axes": {name: list(values) for name, values in plan.axes.items()}})
        return
    out.line(f"{count(plan.count, 'folder')} in {plan.folder}: first {ends['first']}, last {ends['last']}")
    out.line(f"{count(plan.files, 'file')}, about {format_size(plan.size_bytes)}")
    out.line(f"each is submitted by {plan.submit.strip()}")


def _facts(sweep: Sweep) -> dict[str, Any]:
    found = {"id": sweep.id, "name": sweep.name, "count": sweep.count, "created": sweep.created}
    return found | {"system": sweep.system, "study": sweep.is_study, "axes": sweep.document["axes"]}


def _standing_facts(standing: PointStatus) -> dict[str, Any]:
    metrics = {name: number_text(value) for name, value in standing.metrics.items()}
    return vars(standing) | {"values": dict(standing.values), "metrics": metrics}


def _show_standing(out: Out, sweep: Sweep, found: Sequence[PointStatus], **more: str) -> None:
    if out.as_json:
        out.data(_facts(sweep) | more | {"points": [_standing_facts(each) for each in found]})
        return
    metrics = list(dict.fromkeys(name for each in found for name in each.metrics))[:3]
    axes = [name for name, values in sweep.document["axes"].items() if len(values) > 1]
    repeated = ["repeat"] if any(each.repeat is not None for each in found) else []
    rows = [
        [
            each.run,
            out.colour(each.state, _COLOURS.get(each.state, "red")),
            *(each.values.get(name) for name in axes),
            *([each.repeat] if repeated else []),
            *(f"{each.metrics[name]:.5g}" if name in each.metrics else "" for name in metrics),
            each.reason,
        ]
        for each in found
    ]
    out.table(["run", "state", *axes, *repeated, *metrics, "reason"], rows, shrink=["reason"])
    for text in more.values():
        out.paragraph(text)
