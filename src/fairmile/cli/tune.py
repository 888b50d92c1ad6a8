"""`fairmile tune`: search for the best parameter values, and stop poor trials early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fairmile.base.units import format_duration, format_number, format_value
from fairmile.cli.job_options import job_options
from fairmile.cli.notices import notifies
from fairmile.cli.options import DRY_RUN, WAIT
from fairmile.cli.out import Out, count, json_output
from fairmile.cli.run_options import WithCommand, changes_from, run_options
from fairmile.cli.sweep import (
    GroupOrTarget,
    check_only,
    known_sweep,
    print_failures,
    print_notes,
    read_definition,
    space_options,
)
from fairmile.sweeps.folder import Sweep
from fairmile.sweeps.tuning.engine import Settings, TrialRecord
from fairmile.sweeps.tuning.results import ChangedStudy, StudyStatus
from fairmile.sweeps.tuning.study import Studies, StudyPlan
from fairmile.workspace import Workspace

_SHOWN = 20
_INTERRUPTED = 130
_COLOURS = {"done": "green", "running": "yellow", "pruned": "dim"}
_PRINTED_SETTINGS = ("engine", "sampler", "pruner", "extrapolate", "trials", "steps", "seed")
_STUDY = click.argument("reference", metavar="STUDY")


def _read_objectives(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Return objectives as a file has them: one, or a list."""
    objectives: list[str | dict[str, str]] = []
    for text in texts:
        metric, colon, better = text.rpartition(":")
        objectives.append({metric: better} if colon and better in ("lower", "higher") else text)
    return objectives[0] if len(objectives) == 1 else objectives


@click.group(cls=GroupOrTarget)
def tune() -> None:
    """Search a parameter space for the best values.

    `fairmile tune --objective loss train.py --lr 1e-4..1e-1:log` searches for the rate
    with the lowest loss; `fairmile tune run --help` lists the options.

    Each trial is a recorded run. STUDY is an id from `fairmile sweep ls`, its unique
    start or end, or `last`.
    """


@tune.command(cls=WithCommand)
@space_options
@click.option(
    "-j",
    "workers",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of trials to run concurrently.",
)
@click.option(
    "--objective",
    callback=_read_objectives,
    multiple=True,
    metavar="METRIC[:lower|higher]",
    help="Metric to optimize, and whether lower or higher is better; repeatable.",
)
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Number of trials.")
@click.option("--within", metavar="TIME", help="Time budget, such as 2h; no trial starts after it.")
@click.option("--engine", help="Tuning engine: optuna, ray or deephyper.  [default: optuna]")
@click.option(
    "--sampler", help="How to choose values: random, grid, tpe, gp, cma-es, nsga-ii, bohb or pbt.  [default: tpe]"
)
@click.option("--pruner", help="How to stop poor trials early: asha, hyperband, median or none.  [default: none]")
@click.option("--extrapolate", help="Stop poor trials by extrapolating their curves: least-squares, svr or qubo-svr.")
@click.option("--tuning-seed", type=int, metavar="N", help="Seed of the sampler.")
@WAIT
@run_options
@job_options(program=False)
@DRY_RUN
@json_output(StudyStatus, StudyPlan)
@click.pass_context
@notifies
def run(context: click.Context, /, out: Out, words: Sequence[str], **options: Any) -> int:
    """Run the study that a file or a program's arguments define, or resume STUDY.

    In the arguments of a program, `1e-4..1e-1:log` is a range on a log scale,
    `0.1..0.9` a linear range, `1..64` a range of integers, and `a,b,c` a choice.

    \b
    Examples:
      fairmile tune --objective loss --trials 4 --dry-run train.py --lr 1e-4..1e-1:log
      fairmile tune tide-study.yaml --trials 4 -j 2
      fairmile tune tide-study.yaml --pruner asha --dry-run
      fairmile tune run last --trials 6
    """
    workspace = Workspace.open()
    studies = workspace.studies
    known = known_sweep(workspace, words, "tune") if not options["axes"] else None
    if known is None:
        options["words"] = words
        definition, source = read_definition(workspace, options, context, "tune")
        options["name"] = definition.name
        changes = changes_from(options) | _settings(options)
        if options["dry_run"]:
            plan = studies.plan(definition, template=options["template"], **changes)
            out.show(plan, lambda plan: _print_plan(out, plan))
            return 0
        known = studies.create(definition, source, template=options["template"], **changes)
        print_notes(out, known)
        out.say(f"study {known.id}")
    else:
        workspace.studies.get(known)
        check_only(context, known, "workers", "trials", "wait", "notify", "dry_run", "as_json")
        if options["dry_run"]:
            return _show_status(out, workspace, known)
        if options["trials"]:
            known = studies.extend(known, trials=options["trials"])
    try:
        _work(out, studies, known, options)
    except KeyboardInterrupt:
        out.hint(f"`fairmile tune run {known.id}` resumes it")
        return _INTERRUPTED
    return _show_status(out, workspace, known)


@tune.command()
@_STUDY
@json_output(StudyStatus)
def show(out: Out, reference: str) -> None:
    """Show the trials of a study and the best of them.

    \b
    Examples:
      fairmile tune show last
    """
    workspace = Workspace.open()
    study = workspace.studies.get(reference)
    workspace.studies.settle(study)
    _show_status(out, workspace, study)


@tune.command()
@_STUDY
@DRY_RUN
@json_output(ChangedStudy)
def stop(out: Out, reference: str, dry_run: bool) -> None:
    """Stop a study: start no more trials, and cancel its jobs.

    \b
    Examples:
      fairmile tune stop last --dry-run
    """
    stopped = Workspace.open().studies.stop(reference, dry_run=dry_run)
    out.show(stopped, lambda stopped: out.line(f"study {stopped.id}: {stopped.done}"))


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the study that the options state."""
    settings = {
        name: options[name] for name in ("trials", "engine", "sampler", "pruner", "extrapolate") if options[name]
    }
    if options["tuning_seed"] is not None:
        settings["tuning_seed"] = options["tuning_seed"]
    if options["within"]:
        settings["time"] = options["within"]
    return settings


def _work(out: Out, studies: Studies, study: Sweep, options: Mapping[str, Any]) -> None:
    def look(trials: Sequence[TrialRecord]) -> None:
        out.progress(sum(each.state != "running" for each in trials), max(study.most_trials, len(trials)))

    if not study.system:
        studies.run(study, workers=options["workers"], on_look=look)
        return
    if not studies.is_live(study) and not studies.is_spent(study):
        out.say(f"job {studies.submit(study, workers=options['workers'])} on {study.system}")
    if options["wait"]:
        studies.wait(study, on_look=look)


def _print_plan(out: Out, plan: StudyPlan) -> None:
    settings = plan.settings
    for name, space in plan.space.items():
        out.line(f"{name}: {_distribution_text(space)}")
    for each in plan.objectives:
        out.line(f"objective: {each.metric}, {each.better} is better")
    values = {name: getattr(settings, name) for name in _PRINTED_SETTINGS} | {
        "within": format_duration(settings.time_s) if settings.time_s else None,
        "node-hours": settings.node_hours,
        "joules": settings.energy_j,
    }
    out.line(", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, "")))
    if _stops(settings):
        part = f"1/{settings.reduction**2} of the first finished trial"
        known = f"step {settings.first_rung}" if settings.first_rung else part
        out.line(f"trials are stopped early at {known} or later")
    if plan.trial_s is not None:
        out.line(f"time: {format_duration(plan.trial_s)} per trial ({plan.trial_s_from})")
    if plan.node_hours is not None:
        out.line(f"node-hours: {plan.node_hours:.3g}{', minus trials stopped early' if _stops(settings) else ''}")
    for note in plan.run.notes:
        out.say(f"note: {note}")


def _stops(settings: Settings) -> bool:
    return bool(settings.pruner or settings.extrapolate)


def _distribution_text(space: Mapping[str, Any]) -> str:
    """Return in words which values a parameter may have."""
    if space["kind"] == "choice":
        text = f"one of {', '.join(map(str, space['choices']))}"
    else:
        kind = "an integer" if space["kind"] == "integer" else "a number"
        text = f"{kind} from {space['low']:g} to {space['high']:g}"
        text += ", logarithmic" if space.get("log") else ""
        text += f", in steps of {space['step']:g}" if space.get("step") is not None else ""
    return text + (f", when {space['when']}" if space.get("when") else "")


def _show_status(out: Out, workspace: Workspace, study: Sweep) -> int:
    """Print the trials of a study and return the exit code."""
    status = workspace.studies.status(study)
    out.show(status, lambda status: _print_status(out, workspace, status))
    return 0 if status.best or not status else 1


def _print_status(out: Out, workspace: Workspace, status: StudyStatus) -> None:
    study, best = status.study, status.best
    metrics = [each["metric"] for each in status.objectives]
    names = list(study.study.distributions)
    units = _units(workspace, best[0], metrics) if best else [""] * len(metrics)
    states = Counter(each.state for each in status)
    shown = ", ".join(out.colour(f"{number:,} {state}", _COLOURS.get(state, "red")) for state, number in states.items())
    out.line(f"study {study.id}: {shown or 'no trial yet'}; {status.spent['node_hours']:.3g} node-hours")
    rows = []
    for each in best[:_SHOWN]:
        values = [format_number(value, unit) for value, unit in zip(each.values, units, strict=True)]
        step = [] if len(metrics) > 1 else [f"{each.step:g}" if each.step is not None else ""]
        params = (format_value(each.params.get(name, "")) for name in names)
        rows.append([each.number, *values, *step, *params, each.run])
    out.table(["best trial", *metrics, *(["step"] if len(metrics) == 1 else []), *names, "run"], rows)
    if any(each.state != "done" for each in status) or len(status) > len(best):
        out.table(["trial", "state", *metrics, *names, "run"], _rows(status, names, units, out))
        if len(status) > _SHOWN:
            out.hint(f"{len(status) - _SHOWN:,} earlier trials: --json lists all")
    _print_failures(out, workspace, status)
    for row in workspace.studies.hindsight(study):
        if row["stopped"]:
            stopped = f"stopped {row['stopped']} of {count(row['trials'], 'trial')} early, {row['correctly']} correctly"
            saved = f"saved {row['steps saved']:g} of {row['steps']:g} steps"
            out.line(f"--extrapolate {row['method']} would have {stopped}, and {saved}")
    if best:
        which = "the best trial" if len(metrics) == 1 else f"trial {best[0].number}"
        out.hint(f"`fairmile report {study.id}` plots it; `fairmile rerun {best[0].run}` repeats {which}")


def _print_failures(out: Out, workspace: Workspace, status: StudyStatus) -> None:
    reasons = workspace.studies.engine(status.study).reasons()
    failed = [each for each in status if each.state == "failed"][:_SHOWN]
    print_failures(
        out,
        workspace.runs,
        [(f"trial {each.number}: failed", each.run, reasons.get(each.number, "")) for each in failed],
        "runs log",
    )


def _units(workspace: Workspace, trial: TrialRecord, metrics: Sequence[str]) -> list[str]:
    """Return the unit of each metric, by the run of a trial that has them."""
    known = workspace.ledger.get(trial.run).metrics if trial.run else {}
    return [known[name].unit if name in known else "" for name in metrics]


def _rows(trials: Sequence[TrialRecord], names: Sequence[str], units: Sequence[str], out: Out) -> list[list[Any]]:
    rows = []
    for each in trials[-_SHOWN:]:
        values = [format_number(value, unit) for value, unit in zip(each.values, units, strict=False)]
        values += [""] * (len(units) - len(values))
        state = out.colour(each.state, _COLOURS.get(each.state, "red"))
        params = (format_value(each.params.get(name, "")) for name in names)
        rows.append([each.number, state, *values, *params, each.run])
    return rows
