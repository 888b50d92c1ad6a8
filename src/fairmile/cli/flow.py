"""`fairmile flow`: carry out a graph of steps, here and elsewhere, and look at it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fairmile.base.units import format_duration, parse_time
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN, properties
from fairmile.cli.out import Out, json_output, one_line
from fairmile.flows.drawing import FORMATS, Drawing
from fairmile.flows.exchange import Export
from fairmile.flows.plan import Action, FlowPlan
from fairmile.flows.results import CancelledFlow, FlowList, FlowStatus, SavedFlow, StepLog, StepStatus
from fairmile.flows.state import BAD
from fairmile.flows.suggest import Suggestion
from fairmile.runs.record.values import parse_params, value_text
from fairmile.workspace import Workspace

_SHOWN = 200
_LIVE = 15  # steps of the live view
_COLOURS = {
    Action.RUN: "yellow",
    Action.WAIT: "yellow",
    Action.RESTORE: "green",
    Action.SKIP: "dim",
    Action.OMIT: "dim",
}
_FLOW = click.argument("reference", metavar="FLOW")


def _params(command: Any) -> Any:
    for option in (
        click.option(
            "--again", multiple=True, metavar="STEP", help="Run this step even if it is up to date; repeatable."
        ),
        click.option(
            "-p",
            "--param",
            "params",
            multiple=True,
            metavar="KEY=VALUE",
            help="Set a parameter of the flow; repeatable.",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=LazyGroup)
def flow() -> None:
    """Run a graph of steps on this machine, ssh hosts and batch queues.

    FLOW is a YAML or JSON file with `steps:`, a flow of the catalog, an id from
    `fairmile flow ls`, or `last`. A step whose command, code, parameters, environment and
    inputs are unchanged does not run again.
    """


_NATIVE = click.option(
    "--native",
    is_flag=True,
    help="Submit consecutive steps on a system together, with scheduler dependencies.",
)


@flow.command()
@_FLOW
@_params
@_NATIVE
@json_output(FlowPlan)
def plan(out: Out, reference: str, params: Sequence[str], again: Sequence[str], native: bool) -> None:
    """Show what each step would do and why; run nothing.

    \b
    Examples:
      fairmile flow plan tide-flow.yaml
      fairmile flow plan tide-flow.yaml -p epochs=20 --json
    """
    planned = Workspace.open().flows.plan(reference, params=parse_params(params), again=again, native=native)
    out.show(planned, lambda planned: _print_plan(out, planned))


def _print_plan(out: Out, planned: FlowPlan) -> None:
    steps = list(planned.steps.values())
    rows = [
        [out.colour(str(each.action), _COLOURS[each.action]), each.name, each.on, each.reason]
        for each in steps[:_SHOWN]
    ]
    out.table(["action", "step", "on", "reason"], rows)
    if len(steps) > _SHOWN:
        out.hint(f"{len(steps) - _SHOWN:,} more: --json lists all of them")
    out.line(", ".join(f"{number:,} {action}" for action, number in planned.counts().items()))


@flow.command()
@_FLOW
@_params
@click.option(
    "-j",
    "jobs",
    type=click.IntRange(min=1),
    help="Number of steps to run concurrently on this machine.  [default: number of cores]",
)
@_NATIVE
@click.option(
    "--pilots", type=click.IntRange(min=1), metavar="N", help="Run the steps of a system in this many pilot jobs there."
)
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder to fetch a flow of the catalog into and run it in.  [default: ./NAME]",
)
@DRY_RUN
@json_output(FlowStatus, FlowPlan)
def run(out: Out, reference: str, params: Sequence[str], again: Sequence[str], jobs: int | None, **options: Any) -> int:
    """Run a flow, or resume it where it stopped.

    Each step starts as soon as its inputs are ready. Steps that are up to date are
    skipped, and deleted outputs are restored from the store. The exit code is 1 if a step failed.
    With --native, the command returns once only systems have work left; run it again to collect.

    \b
    Examples:
      fairmile flow run tide-flow.yaml
      fairmile flow run tide-flow.yaml -j 4 --again best
    """
    flows, native = Workspace.open().flows, options["native"]
    given = parse_params(params)
    if options["dry_run"]:
        planned = flows.plan(reference, params=given, again=again, native=native)
        out.show(planned, lambda planned: _print_plan(out, planned))
        return 0
    how = {"at_once": jobs, "native": native, "pilots": options["pilots"], "to": options["to"]}
    status = flows.run(reference, params=given, again=again, **how, on_event=lambda *event: _tell(out, *event))
    out.show(status, lambda status: _print_end(out, status))
    if native and not status.is_over:
        out.hint(f"`fairmile flow status {status.id}` shows how far it is, `fairmile flow run {reference}` collects it")
    return 1 if status.has_failed else 0


@flow.command(name="status")
@_FLOW
@json_output(FlowStatus)
def status_(out: Out, reference: str) -> None:
    """Show the status of each step of a flow.

    \b
    Examples:
      fairmile flow status tide-flow.yaml
      fairmile flow status last --json
    """
    out.show(Workspace.open().flows.status(reference), lambda status: _print_status(out, status))


@flow.command()
@_FLOW
@click.option("--every", default="2s", show_default=True, metavar="TIME", help="Time between two updates.")
@json_output(FlowStatus)
def watch(out: Out, reference: str, every: str) -> int:
    """Follow a flow until all its steps have ended.

    \b
    Example:
      fairmile flow watch tide-flow.yaml
    """
    flows = Workspace.open().flows
    pause_s = max(parse_time(every), 0.1)
    shown = ""
    while True:
        status = flows.status(reference)
        if not out.as_json and (text := _live_text(status)) != shown:
            out.redraw(text)
            shown = text
        if status.is_over or not (status.holder or status.has_live):
            break
        time.sleep(pause_s)
    out.show(status, lambda status: out.line(status.summary()))
    return 1 if status.has_failed else 0


@flow.command()
@_FLOW
@DRY_RUN
@json_output(CancelledFlow)
def cancel(out: Out, reference: str, dry_run: bool) -> None:
    """Cancel a flow: its running steps here and its jobs on systems.

    \b
    Example:
      fairmile flow cancel tide-flow.yaml
    """
    ended = Workspace.open().flows.cancel(reference, dry_run=dry_run)
    out.show(ended, lambda ended: _print_cancelled(out, ended))


@flow.command()
@_FLOW
@click.argument("step")
@json_output(StepLog)
def log(out: Out, reference: str, step: str) -> None:
    """Print the output of a step.

    \b
    Example:
      fairmile flow log tide-flow.yaml best
    """
    out.show(Workspace.open().flows.log(reference, step), lambda log: out.document(log.output))


@flow.command()
@_FLOW
@click.option("--format", type=click.Choice(FORMATS), help="Format.  [default: by the file name, otherwise mermaid]")
@click.option("-o", "--out", "target", type=click.Path(path_type=Path), help="Write to this file.")
@json_output(Drawing)
def graph(out: Out, reference: str, format: str | None, target: Path | None) -> None:
    """Draw the steps of a flow and their states.

    \b
    Examples:
      fairmile flow graph tide-flow.yaml
      fairmile flow graph tide-flow.yaml -o tide-flow.svg
    """
    format = format or ("svg" if target is not None and target.suffix == ".svg" else "mermaid")
    drawing = Workspace.open().flows.graph(reference, format=format)
    _write_or_show(out, drawing, target)


@flow.command()
@_FLOW
@click.option("--to", required=True, metavar="FORMAT", help="Format: airflow, rocrate, snakemake or wfformat.")
@click.option("-o", "--out", "target", type=click.Path(path_type=Path), help="Write to this file.")
@json_output(Export)
def export(out: Out, reference: str, to: str, target: Path | None) -> None:
    """Write a flow in the format of another tool.

    \b
    Examples:
      fairmile flow export tide-flow.yaml --to airflow -o dags/tides.py
      fairmile flow export tide-flow.yaml --to snakemake -o Snakefile
      fairmile flow export tide-flow.yaml --to rocrate -o tides.zip
      fairmile flow export tide-flow.yaml --to wfformat
    """
    exported = Workspace.open().flows.export(reference, to=to)
    _write_or_show(out, exported, target)


def _write_or_show(out: Out, result: Drawing | Export, target: Path | None) -> None:
    if target is not None:
        result.write(target)
        out.say(f"wrote {target}")
    if target is None or out.as_json:
        out.show(result, lambda result: out.document(result.text))


@flow.command()
@click.option("--model", required=True, metavar="NAME", help="Model to train and evaluate.")
@click.option("--dataset", default="", metavar="NAME", help="Data set.  [default: the one that fits the model best]")
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write the flow to this file.")
@json_output(Suggestion)
def suggest(out: Out, model: str, dataset: str, output: Path | None) -> None:
    """Propose a flow from the catalog: programs that prepare the data of a model, train it and evaluate it.

    Prints the file of a flow, with the reason for each step, and marks what the cards leave open.

    \b
    Examples:
      fairmile flow suggest --model cosmoflow
    """
    suggestion = Workspace.open().flows.suggest(model, dataset=dataset, output=output)
    out.show(suggestion, lambda each: out.document(each.text) if each.file is None else out.line(f"wrote {each.file}"))
    for line in suggestion.open:
        out.say(f"to do: {line}")


@flow.command()
@_FLOW
@click.option("--name", default="", metavar="NAME", help="Name of the asset.  [default: name of the flow]")
@click.option("--set", "set_", multiple=True, metavar="KEY=VALUE", help="Set a property of the card; repeatable.")
@click.option("--address", default="", metavar="URL", help="Web folder from which others fetch the files.")
@DRY_RUN
@json_output(SavedFlow)
def save(out: Out, reference: str, name: str, set_: Sequence[str], address: str, dry_run: bool) -> None:
    """Add a flow to your catalog, with its files, for others to run.

    The card lists the file of the flow, the scripts and files that its steps take from its
    folder, its parameters, and the assets that its steps use. Without --address, the
    files are copied into the store.

    \b
    Examples:
      fairmile flow save tide-flow.yaml --set version=1.0 --set license=CC-BY-4.0
      fairmile flow save tide-flow.yaml --dry-run
    """
    saved = Workspace.open().flows.save(
        reference, name=name, address=address, set=properties("--set", set_), dry_run=dry_run
    )
    out.show(saved, lambda saved: _print_saved(out, saved))


def _print_saved(out: Out, saved: SavedFlow) -> None:
    out.line(f"{'would save' if saved.dry_run else 'saved'}  {saved.handle}")
    for title, names in (("files", saved.files), ("assets", saved.assets)):
        if names:
            out.line(f"{title:<7}{', '.join(names)}")
    if saved.params:
        out.line(f"params {', '.join(f'{name}={value_text(value)}' for name, value in saved.params.items())}")


@flow.command()
@json_output(FlowList)
def ls(out: Out) -> None:
    """List flows, newest first."""
    out.show(Workspace.open().flows.ls(), lambda flows: _print_flows(out, flows))


def _tell(out: Out, step: str, what: str, reason: str) -> None:
    if what == "skipped":
        return
    why = f": {reason}" if reason else ""
    out.say(f"{what}  {one_line(f'{step}{why}')}" if step else one_line(f"{what}{why}"))


def _print_end(out: Out, status: FlowStatus) -> None:
    for step in status.steps:
        if step.state in BAD:
            out.line(one_line(f"{step.name}: {step.state}{f': {step.reason}' if step.reason else ''}"))
            if step.run:
                out.hint(f"`fairmile runs show {step.run}` shows details")
    out.line(f"flow {status.summary()}")


def _print_status(out: Out, status: FlowStatus) -> None:
    rows = [_row(out, step) for step in status.steps[:_SHOWN]]
    out.table(["state", "step", "on", "time", "progress", "run", "reason"], rows, shrink=["reason"])
    if len(status.steps) > _SHOWN:
        out.hint(f"{len(status.steps) - _SHOWN:,} more: --json lists all of them")
    by = f", run by {status.holder}" if status.holder else ""
    out.line(f"flow {status.summary()}{by}")


def _row(out: Out, step: StepStatus) -> list[str]:
    colour = "red" if step.state in BAD else {"done": "green", "running": "yellow", "queued": "yellow"}.get(step.state)
    took = format_duration(step.elapsed_s) if step.elapsed_s is not None else ""
    share = f"{step.progress:.0%}" if step.progress is not None else ""
    state = out.colour(step.state, colour) if colour else step.state
    return [state, step.name, step.on, took, share, step.run, step.reason]


def _live_text(status: FlowStatus) -> str:
    """Return the steps that run, failed or come next, and how many there are of each state."""
    steps = [step for step in status.steps if step.state not in ("done", "left out")][:_LIVE]
    lines = []
    for step in steps:
        took = format_duration(step.elapsed_s) if step.elapsed_s is not None else ""
        share = f"{step.progress:.0%}" if step.progress is not None else ""
        lines.append(f"{step.state:<12} {step.name:<30} {step.on:<12} {took:>9} {share:>5} {step.reason}".rstrip())
    return "\n".join([*lines, f"flow {status.summary()}"])


def _print_cancelled(out: Out, ended: CancelledFlow) -> None:
    verb = "would be asked to stop" if ended.dry_run else "was asked to stop"
    if ended.holder:
        out.line(f"flow {ended.id}: {ended.holder} {verb}")
    word = "would cancel" if ended.dry_run or ended.holder else "cancelled"
    for run in ended.runs:
        out.line(f"{word} run {run}")
    if not ended.holder and not ended.runs:
        out.line(f"flow {ended.id}: nothing runs")


def _print_flows(out: Out, flows: FlowList) -> None:
    out.table(["flow", "name", "file"], [[each.id, each.name, each.file or each.folder] for each in flows])
