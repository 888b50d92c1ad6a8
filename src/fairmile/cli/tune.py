"""`fairmile tune`: search for the best values, stopping early what will not win."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fairmile.base.errors import UsageError
from fairmile.base.units import format_duration
from fairmile.cli.job_options import job_options
from fairmile.cli.out import Out, json_option
from fairmile.cli.run_options import WithCommand, changes_from, command_of, run_options
from fairmile.cli.sweep import (
    GroupOrWhat,
    check_only,
    known_sweep,
    print_notes,
    read_definition,
    space_options,
    why_it_failed,
)
from fairmile.sweeps.folder import Sweep
from fairmile.sweeps.model import Definition
from fairmile.sweeps.sweeps import Sweeps
from fairmile.sweeps.tuning.engine import TrialRecord
from fairmile.sweeps.tuning.study import Studies, StudyPlan
from fairmile.workspace import Workspace

_SHOWN = 20
_INTERRUPTED = 130
_COLOURS = {"done": "green", "running": "yellow", "pruned": "dim"}
_TOLD = ("engine", "sampler", "pruner", "extrapolate", "trials", "steps", "seed")
_STUDY = click.argument("reference", metavar="STUDY")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; do nothing.")


@click.group(cls=GroupOrWhat)
def tune() -> None:
    """Search for the best values of a space, as one YAML file says.

    Trials are runs; STUDY is an id that `fairmile sweep ls` shows, its start or end,
    or `last`.
    """


@tune.command(cls=WithCommand)
@space_options
@click.option("-j", "workers", type=click.IntRange(min=1), default=1, show_default=True, help="Trials at once.")
@click.option("--trials", type=click.IntRange(min=1), help="So many trials.")
@click.option("--within", metavar="TIME", help="Begin no trial after so long.")
@click.option("--engine", help="optuna, ray or deephyper.")
@click.option("--sampler", help="random, grid, tpe, gp, cma-es, nsga-ii, bohb or pbt.")
@click.option("--pruner", help="asha, hyperband, median or none.")
@click.option("--extrapolate", help="Stop by the curve so far: least-squares or svr.")
@click.option("--tuning-seed", type=int, help="The seed of the sampler.")
@click.option("--wait/--leave", default=True, help="Follow a study on a system to its end.  [default: wait]")
@run_options
@job_options(program=False)
@_DRY_RUN
@json_option
@click.pass_context
def run(context: click.Context, /, out: Out, words: Sequence[str], **options: Any) -> int:
    """Tune as a file says, or with STUDY go on until its budget is spent.

    \b
    Examples:
      fairmile tune tide-study.yaml --trials 4 -j 2
      fairmile tune tide-study.yaml --pruner asha --dry-run
      fairmile tune run last --trials 6
    """
    workspace = Workspace.open()
    studies = workspace.studies
    found = known_sweep(workspace, words, "tune") if not options["axes"] else None
    if found is None:
        options["words"] = words
        definition, source = read_definition(workspace, options, command_of(context), "tune")
        options["name"] = definition.name
        changes = changes_from(options) | _settings(options)
        if options["dry_run"]:
            _show_plan(out, definition, studies.plan(definition, template=options["template"], **changes))
            return 0
        found = studies.create(definition, source, template=options["template"], **changes)
        print_notes(out, found)
        out.say(f"study {found.id}")
    else:
        _check_study(found)
        check_only(context, found, "workers", "trials", "wait", "dry_run", "as_json")
        if options["dry_run"]:
            _show(out, workspace, found)
            return 0
        if options["trials"]:
            found = studies.extend(found, trials=options["trials"])
    try:
        _work(out, studies, found, options)
    except KeyboardInterrupt:
        out.hint(f"`fairmile tune run {found.id}` goes on with it")
        return _INTERRUPTED
    return _show(out, workspace, found)


@tune.command()
@_STUDY
@json_option
def show(out: Out, reference: str) -> None:
    """Show the trials of a study and the best of them.

    \b
    Examples:
      fairmile tune show last
    """
    workspace = Workspace.open()
    found = _study(workspace.sweeps, reference)
    workspace.studies.settle(found)
    _show(out, workspace, found)


@tune.command()
@_STUDY
@_DRY_RUN
@json_option
def stop(out: Out, reference: str, dry_run: bool) -> None:
    """Have a study end: begin no trial any more, and cancel its jobs.

    \b
    Examples:
      fairmile tune stop last --dry-run
    """
    workspace = Workspace.open()
    found = _study(workspace.sweeps, reference)
    if not dry_run:
        workspace.studies.stop(found)
    said = "would be stopped" if dry_run else "stopped"
    if out.as_json:
        out.data({"id": found.id, "done": said})
    else:
        out.line(f"study {found.id}: {said}")


def _study(sweeps: Sweeps, reference: str) -> Sweep:
    found = sweeps.get(reference)
    _check_study(found)
    return found


def _check_study(sweep: Sweep) -> None:
    if not sweep.is_study:
        raise UsageError(f"{sweep.id} is a sweep and no study", hint=f"`fairmile sweep show {sweep.id}`")


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the options say of the tuning itself."""
    found = {name: options[name] for name in ("trials", "engine", "sampler", "pruner", "extrapolate") if options[name]}
    if options["tuning_seed"] is not None:
        found["tuning_seed"] = options["tuning_seed"]
    if options["within"]:
        found["time"] = options["within"]
    return found


def _work(out: Out, studies: Studies, study: Sweep, options: Mapping[str, Any]) -> None:
    wanted = study.document["study"]["settings"].get("trials") or 0

    def look(trials: Sequence[TrialRecord]) -> None:
        out.progress(sum(each.state != "running" for each in trials), max(wanted, len(trials)))

    if not study.system:
        studies.run(study, workers=options["workers"], on_look=look)
        return
    if not studies.is_live(study) and not studies.is_spent(study):
        out.say(f"job {studies.submit(study, workers=options['workers'])} on {study.system}")
    if options["wait"]:
        studies.wait(study, on_look=look)


def _show_plan(out: Out, definition: Definition, plan: StudyPlan) -> None:
    settings = vars(plan.settings)
    if out.as_json:
        facts = {
            "space": plan.space,
            "settings": settings,
            "objectives": [vars(each) for each in definition.objectives],
        }
        more = {"trial_s": plan.trial_s, "node_hours": plan.node_hours, "notes": list(plan.run.notes)}
        out.data(facts | more | {"script": plan.run.script})
        return
    for name, space in plan.space.items():
        out.line(f"{name}: {_distribution(space)}")
    for each in definition.objectives:
        out.line(f"objective: {each.metric}, {each.better} is better")
    said = {name: settings[name] for name in _TOLD} | {
        "within": format_duration(settings["time_s"]) if settings["time_s"] else None,
        "node-hours": settings["node_hours"],
        "joules": settings["energy_j"],
    }
    out.line(", ".join(f"{name} {value}" for name, value in said.items() if value not in (None, "")))
    if plan.trial_s is not None:
        out.line(f"time: {format_duration(plan.trial_s)} a trial ({plan.trial_s_from})")
    if plan.node_hours is not None:
        out.line(f"node-hours: {plan.node_hours:.3g}{', less what is stopped early' if _stops(settings) else ''}")
    for note in plan.run.notes:
        out.say(f"note: {note}")


def _stops(settings: Mapping[str, Any]) -> bool:
    return bool(settings["pruner"] or settings["extrapolate"])


def _distribution(said: Mapping[str, Any]) -> str:
    """Return in words what values a parameter may have."""
    if said["kind"] == "choice":
        found = f"one of {', '.join(map(str, said['choices']))}"
    else:
        whole = "a whole number" if said["kind"] == "integer" else "a number"
        found = f"{whole} from {said['low']:g} to {said['high']:g}"
        found += ", logarithmic" if said.get("log") else ""
        found += f", in steps of {said['step']:g}" if said.get("step") is not None else ""
    return found + (f", when {said['when']}" if said.get("when") else "")


def _show(out: Out, workspace: Workspace, study: Sweep) -> int:
    """Show the trials of a study and return the exit code."""
    studies = workspace.studies
    trials, best = studies.trials(study), studies.best(study)
    spent = studies.spent(study)
    objectives = study.document["study"]["objectives"]
    if out.as_json:
        out.data(
            {
                "id": study.id,
                "objectives": objectives,
                "spent": spent,
                "best": [each.number for each in best],
                "trials": [_facts(each) for each in trials],
            }
        )
        return 0 if best or not trials else 1
    states = Counter(each.state for each in trials)
    shown = ", ".join(out.colour(f"{number:,} {state}", _COLOURS.get(state, "red")) for state, number in states.items())
    out.line(f"study {study.id}: {shown or 'no trial yet'}; {spent['node_hours']:.3g} node-hours")
    names = list(study.document["study"]["distributions"])
    rows = []
    for each in best[:_SHOWN]:
        values = [f"{value:.6g}" for value in each.values]
        rows.append([each.number, *values, *(_short(each.params.get(name, "")) for name in names), each.run])
    out.table(["best trial", *(each["metric"] for each in objectives), *names, "run"], rows)
    if any(each.state != "done" for each in trials) or len(trials) > len(best):
        columns = ["trial", "state", *(each["metric"] for each in objectives), *names, "run"]
        out.table(columns, _rows(trials, names, len(objectives), out))
        if len(trials) > _SHOWN:
            out.hint(f"{len(trials) - _SHOWN:,} earlier ones: --json has all")
    reasons = studies.engine(study).reasons()
    for each in [each for each in trials if each.state == "failed"][:_SHOWN]:
        reason = why_it_failed(workspace.runs, each.run, reasons.get(each.number, ""))
        out.line(f"trial {each.number}: failed: {reason}" + (f"  → fairmile runs log {each.run}" if each.run else ""))
    for row in studies.hindsight(study):
        rightly = f"stopped {row['stopped']} of {row['trials']} trials early, {row['rightly']} of them rightly"
        out.line(f"{row['method']} would have {rightly}, and saved {row['steps saved']:g} of {row['steps']:g} steps")
    if best:
        out.hint(f"`fairmile report {study.id}` draws it; `fairmile rerun {best[0].run}` does the best again")
    return 0 if best or not trials else 1


def _rows(trials: Sequence[TrialRecord], names: Sequence[str], objectives: int, out: Out) -> list[list[Any]]:
    rows = []
    for each in trials[-_SHOWN:]:
        values = [f"{value:.6g}" for value in each.values] + [""] * (objectives - len(each.values))
        state = out.colour(each.state, _COLOURS.get(each.state, "red"))
        rows.append([each.number, state, *values, *(_short(each.params.get(name, "")) for name in names), each.run])
    return rows


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _facts(trial: TrialRecord) -> dict[str, Any]:
    found = vars(trial) | {"params": dict(trial.params), "values": list(trial.values)}
    return found | {"curve": [list(each) for each in trial.curve]}
