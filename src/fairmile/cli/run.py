"""`fairmile run` and `fairmile rerun`: run a program and record it, or repeat a recorded run."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from click.core import ParameterSource

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy
from fairmile.base.units import format_duration, format_number, format_size
from fairmile.cli.job_options import job_options
from fairmile.cli.notices import notifies
from fairmile.cli.options import DRY_RUN, WAIT
from fairmile.cli.out import Out, count, json_output
from fairmile.cli.run_options import ANYWAY, WithCommand, changes_from, command_of, pairs, run_options
from fairmile.runs.plan import RunPlan, Step
from fairmile.runs.prediction import Fit, amount_text, quantity_name
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.rerun import Rerun
from fairmile.runs.results import RunList
from fairmile.runs.review import Review
from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace

if TYPE_CHECKING:
    from fairmile.runs.execute.isolation import isolating_runtime
else:
    isolating_runtime = lazy("fairmile.runs.execute.isolation:isolating_runtime")

_INTERRUPTED = 130
_REFUSED = 2
_NAMED = 3
_COLOURS = {RunState.DONE: "green", RunState.RUNNING: "yellow", RunState.QUEUED: "yellow"}


@click.command(cls=WithCommand)
@click.argument("what", metavar="[NAME]", required=False)
@click.argument("dataset", required=False)
@click.option(
    "-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="Set a parameter, passed as {KEY}; repeatable."
)
@run_options
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of repeats, recorded as one group; seeds count up.",
)
@click.option("--again", is_flag=True, help="Run even if a run with the same inputs exists.")
@click.option("--resume", metavar="RUN", help="Resume a run that failed or was interrupted.")
@click.option("--set", "command_set", default="", metavar="NAME", help="Command set of a SABATH model.")
@WAIT
@job_options(program=False)
@DRY_RUN
@json_output(Run, RunList, RunPlan)
@click.pass_context
@notifies
def run(context: click.Context, /, out: Out, what: str | None, dataset: str | None, **options: Any) -> int:
    """Run a program, an asset or a file, and record it.

    PROGRAM is the path of a Python file or an executable. Everything after it is passed
    to it and recorded as parameters, so put Fairmile's own options before it.

    NAME is a benchmark, an asset whose card says how to run it, a YAML run file, or a
    SABATH model followed by its DATASET.

    The run is local, or a job on a system with --on.

    \b
    Examples:
      fairmile run train.py --lr 0.1
      fairmile run --on jureca --account me --nodes 2 --time 1:00:00 --dry-run ./train.py --lr 0.1
      fairmile run -- echo high tide
      fairmile run -p level=2.5 --metric 'level=at ([0-9.]+)' -- echo high tide at {level}
    """
    runs = Workspace.open().runs
    if options["resume"]:
        if options["dry_run"]:
            out.show(runs.resume_plan(options["resume"]), lambda plan: _print_plan(out, plan))
            return 0
        resumed = RunList([runs.resume(options["resume"], echo=_echo(out))])
        return _show_runs(out, runs, _wait_for(out, runs, resumed, options["wait"]))
    if dataset and "=" in dataset and not Path(dataset).exists():
        raise UsageError(f"no data set is named {dataset!r}", hint=f"`-p {dataset}` sets a parameter")
    command = command_of(context)
    changes = changes_from(options) | ({"argv": command} if what and command else {})
    plan = runs.plan(_target(what, command), dataset or "", options={"set": options["command_set"]}, **changes)
    if options["dry_run"]:
        out.show(plan, lambda plan: _print_plan(out, plan))
        if out.as_json:  # the plan itself has the verdict
            return _REFUSED if plan.refusal is not None else 0
        if plan.refusal is not None:
            raise plan.refusal
        return 0
    for note in plan.notes:
        out.say(f"note: {note}")
    if options["repeat"] > 1:
        executed = runs.repeat(options["repeat"], plan, echo=_echo(out))
    else:
        again = options["again"] or _wants_new_run(context, options)
        executed = RunList([runs.execute(plan, again=again, echo=_echo(out), on_step=lambda step: _say(out, step))])
    return _show_runs(out, runs, _wait_for(out, runs, executed, options["wait"]))


@click.command()
@click.argument("reference", metavar="RUN|CRATE")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Relative tolerance for metrics.  [default: as declared, or 0.05]",
)
@click.option("--on", default="", metavar="SYSTEM", help="System to run on.  [default: as recorded]")
@click.option("--env", "variables", multiple=True, metavar="KEY=VALUE", help="Set an environment variable; repeatable.")
@click.option("--environment", default="", metavar="ENV", help="Environment to run in.  [default: as recorded]")
@click.option(
    "--in-container", "container", default="", metavar="IMAGE", help="Run in this container image, without network."
)
@ANYWAY
@click.option("--yes", is_flag=True, help="Run a record from somebody else without asking.")
@DRY_RUN
@json_output(Rerun, RunPlan)
@notifies
def rerun(out: Out, reference: str, **options: Any) -> int:
    """Repeat a run from its record in a fresh folder, and show what differs.

    If somebody else recorded the run, as in a crate or an imported run, Fairmile first
    lists its command, variables, system, files and builds, and asks before running it.

    \b
    Examples:
      fairmile rerun last
      fairmile rerun last --tolerance 0.01
    """
    runs = Workspace.open().runs
    changes: dict[str, Any] = {}
    if options["on"]:
        changes["system"] = "" if options["on"] == "laptop" else options["on"]
    if options["variables"]:
        changes["env"] = dict(pairs("--env", options["variables"]))
    if options["environment"]:
        changes["environment"] = options["environment"]
    if options["anyway"]:
        changes["anyway"] = True
    plan = runs.rerun_plan(reference, container=options["container"], **changes)
    if options["dry_run"]:
        out.show(plan, lambda plan: _print_plan(out, plan))
        return 0
    if plan.review is not None and not options["yes"] and not _has_consent(out, plan.review, options["container"]):
        out.say("nothing was run")
        return 2
    done = runs.rerun(plan, tolerance=options["tolerance"], echo=_echo(out), trust=True)
    out.show(done, lambda done: _print_rerun(out, done))
    if done.again.state is RunState.CANCELLED:
        return _INTERRUPTED
    return 0 if done.reproduced else 1


def _has_consent(out: Out, review: Review, container: str) -> bool:
    """List what a record from elsewhere would do, and ask; without a terminal, refuse."""
    out.say(f"run {review.run} was recorded by somebody else. Running it does the following:")
    for what, line in review.lines():
        out.say(f"  {what:<9} {line}")
    if not container:
        out.say("The program can read your files and use the network. It cannot see your other environment variables.")
        if runtime := isolating_runtime():
            out.hint(f"--in-container IMAGE runs it with {runtime}: no network, only its own folder")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"run {review.run} was recorded by somebody else, and there is no terminal to ask for your consent",
            hint="check what is listed above, then pass --yes",
        )
    return click.confirm("Run it?", default=False, err=True)


def _wants_new_run(context: click.Context, options: Mapping[str, Any]) -> bool:
    """Tell whether the options ask for a new run: a name, a number of repeats, or --leave."""
    is_counted = context.get_parameter_source("repeat") is not ParameterSource.DEFAULT
    return bool(options.get("name")) or is_counted or not options["wait"]


def _wait_for(out: Out, runs: Runs, executed: RunList, wait: bool) -> RunList:
    """Wait for runs on systems to end, if asked to."""
    for run in executed:
        if run.job is not None and run.result is None:
            out.say(f"run {run.id}: job {run.job.key} on {run.job.system}")
    return RunList(runs.wait(run.id, echo=_echo(out)) if wait and run.job is not None else run for run in executed)


def _target(name: str | None, command: Sequence[str]) -> str | Sequence[str]:
    if name:
        return name
    if not command:
        raise UsageError(
            "nothing to run",
            hint="name a program, as `fairmile run train.py`, an asset, or write `fairmile run -- COMMAND…`",
        )
    return command


def _echo(out: Out) -> BinaryIO:
    """Return where the program's output goes: with --json, stdout is for data."""
    return sys.stderr.buffer if out.as_json else sys.stdout.buffer


def _say(out: Out, step: Step) -> None:
    out.say(f"{step.verb}: {step.what}")


def range_text(name: str, low: float | None, high: float | None) -> str:
    """Return a prediction interval, which may be open above, as the beginning of a list."""
    if low is None:
        return ""
    upper = f" to {amount_text(name, high)}" if high is not None else " or more"
    return f"{amount_text(name, low)}{upper}; "


def _print_plan(out: Out, plan: RunPlan) -> None:
    if plan.review is not None:
        for what, line in plan.review.lines():
            out.line(f"{what:<9} {line}")
        return
    for step in plan.steps:
        size = f"  ({format_size(step.size_bytes)})" if step.size_bytes else ""
        out.line(f"{step.verb:<7} {step.what}{size}")
    for name, each in plan.prediction.items():
        range_ = range_text(name, each.get("low"), each.get("high"))
        out.line(f"predict {quantity_name(name)}: {amount_text(name, each['value'])} ({range_}{each['source']})")
    if plan.fit_reason:
        out.line(f"fit     {plan.fit}" + ("" if plan.fit is Fit.MAY_NOT else f": {plan.fit_reason}"))
    if plan.unpredicted:
        out.line(f"predict unknown: {plan.unpredicted}")
    for note in plan.notes:
        out.say(f"note: {note}")
    if plan.script:
        out.line()
        out.document(plan.script)


def _show_runs(out: Out, runs: Runs, executed: RunList) -> int:
    """Print how runs ended and return the exit code."""
    if len(executed) == 1:
        out.show(executed[0], lambda run: _print_run(out, runs, run))
    else:
        out.show(executed, lambda executed: _print_repeats(out, runs, executed))
    states = {run.state for run in executed}
    if RunState.CANCELLED in states:
        return _INTERRUPTED
    return 0 if states <= {RunState.DONE, RunState.QUEUED, RunState.RUNNING} else 1


def _print_repeats(out: Out, runs: Runs, repeats: RunList) -> None:
    for run in repeats:
        _print_run(out, runs, run)
    out.hint(f"`fairmile compare {repeats[0].group}` shows {count(len(repeats), 'run')} with their spread")


def _print_run(out: Out, runs: Runs, run: Run) -> None:
    took = f" in {format_duration(run.elapsed_s)}" if run.elapsed_s is not None else ""
    out.say(f"run {run.id}: {out.colour(str(run.state), _COLOURS.get(run.state, 'red'))}{took}")
    for name, metric in run.metrics.items():
        source = f"  (read from its {metric.source})" if metric.source else ""
        out.say(f"  {name} {format_number(metric.value, metric.unit)}{source}")
    for note in run.notes:
        out.say(f"  note: {note}")
    if run.energy_j is not None:
        out.say(f"  energy {format_number(run.energy_j, 'J')}")
    why = runs.explain(run)
    if why is not None:
        out.say(f"  {run.reason or why.what}" + (f": {why.line}" if why.line else ""))
        if why.advice:
            out.hint(why.advice)
        if why.resumable:
            out.hint(f"`fairmile run --resume {run.id}` resumes it")
    elif not run.state.is_end:
        out.hint(f"`fairmile runs show {run.id}` shows its progress")
    elif names := run.undeclared:
        named = " ".join(f"--out {shlex.quote(name)}" for name in _patterns(names)[:_NAMED])
        out.hint(f"{named} keeps the files that it wrote, and lets the result be reused")


def _patterns(names: Sequence[str]) -> list[str]:
    """Return what names these files, those of a folder together: the next run may give them other names."""
    folders = Counter(name.partition("/")[0] for name in names if "/" in name)
    heads = ((name, name.partition("/")[0]) for name in names)
    return list(dict.fromkeys(f"{head}/**" if folders[head] > 1 else name for name, head in heads))


def _print_rerun(out: Out, done: Rerun) -> None:
    words = {True: out.colour("same", "green"), False: out.colour("differs", "red"), None: "unknown"}
    out.table(["what", "verdict", ""], [[each.what, words[each.same], each.detail] for each in done.verdicts])
    verdict = "reproduced" if done.reproduced else "not reproduced"
    out.say(f"run {done.again.id} is a rerun of {done.original.id}: {verdict}")
