"""`fairmile runs`: list, show, cancel and exchange runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fairmile.base.units import format_duration, format_number, format_size, format_value
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN, limit_option
from fairmile.cli.out import Out, count, json_output, place
from fairmile.envs.shells import without_shell
from fairmile.runs.prediction import amount_text, quantity_name
from fairmile.runs.record.index_rows import RunRow
from fairmile.runs.record.ledger import Changes, RunIndex, RunRows
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.results import Projection, RunDetails, RunOutput
from fairmile.workspace import Workspace

_COLOURS = {RunState.DONE: "green", RunState.RUNNING: "yellow", RunState.QUEUED: "yellow"}
_SHOWN = 20
_METRICS = 3
_PARAMETERS = 4
_READS = 10
_REFERENCE = click.argument("reference", metavar="RUN")
_REFERENCES = click.argument("references", nargs=-1, required=True, metavar="RUN...")
_FORMATS = "Format: rocrate, mlflow, clearml, openml, zenodo or tensorboard."


@click.group(cls=LazyGroup)
def runs() -> None:
    """List, show and exchange recorded runs.

    RUN is an id from `fairmile runs ls`, its unique start or end, `last`, or the path
    of a run's folder.
    """


@runs.command()
@click.option("--name", default="", help="List only runs with this name.")
@click.option("--group", default="", help="List only runs of this group, such as a sweep or repeats.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([str(each) for each in RunState]),
    help="List only runs in this state; repeatable.",
)
@click.option("--tag", default="", help="List only runs with this tag.")
@limit_option("runs", _SHOWN)
@click.option("--all", "every", is_flag=True, help="List all runs.")
@json_output(RunRows)
def ls(out: Out, name: str, group: str, states: Sequence[str], tag: str, limit: int, every: bool) -> None:
    """List runs, newest first.

    \b
    Examples:
      fairmile runs ls --state failed
      fairmile runs ls --name tides -n 5
    """
    wanted = [RunState(each) for each in states]
    most = None if every else limit
    rows = Workspace.open().ledger.rows(name=name, group=group, states=wanted, tag=tag, limit=most)

    def render(rows: RunRows) -> None:
        print_rows(out, rows)
        if not rows:
            is_chosen = bool(name or group or states or tag)
            out.say("no such runs" if is_chosen else "no runs yet")
            out.hint("`fairmile runs ls` lists all" if is_chosen else "`fairmile run train.py --lr 0.1` records one")
        if len(rows) == most:
            out.hint("there may be more runs; use --all to list them")

    out.show(rows, render)


@runs.command()
@_REFERENCE
@click.option(
    "--region",
    metavar="CODE",
    help="Region for the cost and CO₂ of energy, such as DE.  [default: setting footprint.region]",
)
@click.option(
    "--pue", type=float, help="Power usage effectiveness of the data centre.  [default: setting footprint.pue]"
)
@json_output(RunDetails)
def show(out: Out, reference: str, region: str | None, pue: float | None) -> None:
    """Show the record of a run, with the cost and CO₂ of its energy if the region is known.

    \b
    Examples:
      fairmile runs show last
      fairmile runs show last --region DE --pue 1.2
    """
    out.show(Workspace.open().runs.show(reference, region=region, pue=pue), lambda details: _print_run(out, details))


@runs.command()
@_REFERENCE
@json_output(RunOutput)
def log(out: Out, reference: str) -> None:
    """Print the output of a run.

    \b
    Examples:
      fairmile runs log last
    """
    out.show(Workspace.open().runs.output(reference), out.document)


@runs.command()
@_REFERENCES
@DRY_RUN
@json_output(Changes)
def cancel(out: Out, references: Sequence[str], dry_run: bool) -> None:
    """Cancel queued or running runs, here or on a system. Other points or trials of a sweep or study go on.

    \b
    Examples:
      fairmile runs cancel last --dry-run
    """
    _show_changes(out, Workspace.open().runs.cancel_runs(references, dry_run=dry_run))


@runs.command()
@_REFERENCES
@DRY_RUN
@json_output(Changes)
def rm(out: Out, references: Sequence[str], dry_run: bool) -> None:
    """Remove ended runs.

    \b
    Examples:
      fairmile runs rm last --dry-run
    """
    _show_changes(out, Workspace.open().runs.remove(references, dry_run=dry_run))


@runs.command()
@_REFERENCES
@DRY_RUN
@json_output(Changes)
def pack(out: Out, references: Sequence[str], dry_run: bool) -> None:
    """Pack each run into one file to save inodes. Commands still find packed runs.

    \b
    Examples:
      fairmile runs pack last
    """
    _show_changes(out, Workspace.open().runs.pack_runs(references, dry_run=dry_run))


@runs.command()
@_REFERENCES
@DRY_RUN
@json_output(Changes)
def unpack(out: Out, references: Sequence[str], dry_run: bool) -> None:
    """Restore the folders of packed runs.

    \b
    Examples:
      fairmile runs unpack last
    """
    _show_changes(out, Workspace.open().runs.unpack_runs(references, dry_run=dry_run))


@runs.command()
@_REFERENCE
@click.option("--to", "format", metavar="FORM", default="rocrate", show_default=True, help=_FORMATS)
@click.option("-o", "--out-path", type=click.Path(path_type=Path), help="Output path.  [default: RUN.crate.zip]")
@click.option("--with-inputs", is_flag=True, help="Include the input files, not only their digests.")
@click.option("--upload", is_flag=True, help="Send it to your account on MLflow, ClearML, OpenML or Zenodo.")
@click.option("--publish", is_flag=True, help="Publish the draft on Zenodo, which cannot be undone.")
@DRY_RUN
@json_output(Changes)
def export(
    out: Out,
    reference: str,
    format: str,
    out_path: Path | None,
    with_inputs: bool,
    upload: bool,
    publish: bool,
    dry_run: bool,
) -> None:
    """Export a run as an RO-Crate, or to MLflow, ClearML, OpenML, Zenodo or TensorBoard.

    `fairmile rerun` accepts an RO-Crate.

    \b
    Examples:
      fairmile runs export last -o tides.crate.zip
      fairmile runs export last --to tensorboard -o logs
      fairmile runs export last --to zenodo --upload --dry-run
    """
    runs = Workspace.open().runs
    how = {"with_inputs": with_inputs, "upload": upload, "publish": publish, "dry_run": dry_run}
    _show_changes(out, runs.export(reference, format, out_path, **how))
    read = list(runs.get(reference).read_beside)
    if read and format == "rocrate" and not with_inputs:
        more = f" and {len(read) - _READS:,} more" if len(read) > _READS else ""
        out.hint(f"--with-inputs includes what it read: {', '.join(read[:_READS])}{more}")


@runs.command("import")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--from", "format", metavar="FORM", default="rocrate", show_default=True, help=_FORMATS)
@DRY_RUN
@json_output(Changes)
def import_(out: Out, source: Path, format: str, dry_run: bool) -> None:
    """Import runs from a file or folder, and verify every digest.

    \b
    Examples:
      fairmile runs import tides.crate.zip
    """
    _show_changes(out, Workspace.open().runs.import_runs(source, format, dry_run=dry_run))


@runs.command()
@_REFERENCES
@click.option(
    "--to", "steps", type=click.IntRange(min=1), metavar="N", required=True, help="Number of steps of the long run."
)
@click.option("--param", default="epochs", show_default=True, help="Parameter that sets the number of steps.")
@click.option("--span", default="epoch", show_default=True, help="Span that times one step.")
@json_output(Projection)
def project(out: Out, references: Sequence[str], steps: int, param: str, span: str) -> None:
    """Predict the time of a long run from short ones, and the time limit to request.

    \b
    Examples:
      fairmile runs project tides --to 1000
    """
    projection = Workspace.open().runs.project(references, to=steps, param=param, span=span)
    out.show(projection, lambda projection: _print_projection(out, projection))


@runs.command()
@DRY_RUN
@json_output(RunIndex)
def reindex(out: Out, dry_run: bool) -> None:
    """Rebuild the run index from the run folders.

    \b
    Examples:
      fairmile runs reindex
    """
    verb = "would be indexed" if dry_run else "indexed"
    index = Workspace.open().ledger.reindex(dry_run=dry_run)
    out.show(index, lambda index: out.line(f"{count(index.runs, 'run')} {verb}"))


def print_rows(out: Out, rows: Sequence[RunRow]) -> None:
    """Print runs as a table."""
    cells = []
    names = _varying(rows)
    for row in rows:
        took = format_duration(row.elapsed_s) if row.elapsed_s is not None else ""
        shown = list(row.metrics.items())[:_METRICS]
        metrics = ", ".join(f"{name} {format_number(value, row.units.get(name, ''))}" for name, value in shown)
        state = out.colour(str(row.state), _COLOURS.get(row.state, "red"))
        params = [format_value(row.params.get(name, "")) for name in names]
        cells.append([row.id, state, _date(row.created), took, place(row.system), *params, metrics or row.reason])
    out.table(["run", "state", "started", "took", "on", *names, "metrics"], cells, shrink=[*names, "metrics"])


def _varying(rows: Sequence[RunRow]) -> list[str]:
    """Return the parameters that tell some of the runs apart, at most as many as fit."""
    names = dict.fromkeys(name for row in rows for name in row.params)
    return [name for name in names if len({str(row.params.get(name)) for row in rows if name in row.params}) > 1][
        :_PARAMETERS
    ]


def _date(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M") if time_s else ""


def _show_changes(out: Out, changes: Changes[Any]) -> None:
    def render(changes: Changes[Any]) -> None:
        for name in changes.names():
            out.line(f"{changes.what} {name}")

    out.show(changes, render)


def _print_projection(out: Out, projection: Projection) -> None:
    interval = ""
    if projection.low is not None and projection.high is not None:
        interval = f" ({format_duration(projection.low)} to {format_duration(projection.high)})"
    asked = format_duration(projection.walltime_s)
    out.line(f"{format_duration(projection.seconds)}{interval}; request --time {asked}")
    out.say(projection.basis)
    if projection.warning:
        out.say(f"warning: {projection.warning}")


def _watched_pairs(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what the program was seen to read, and what was not watched."""
    coverage = run.captured.coverage
    reads = list((coverage.reads or {}).items()) if coverage is not None else []
    start = run.record.spec.folder or run.captured.start
    for path, read in reads[:_READS]:
        state = f"sha256 {read.sha256[:12]}" if read.sha256 else "not there" if read.absent else read.trouble
        name = path.removeprefix(f"{start}/") if start else path
        yield "read", f"{name} {state or 'too large to digest'}"
    if len(reads) > _READS:
        yield "read", f"{len(reads) - _READS:,} more: --json lists them"
    for each in coverage.unwatched if coverage is not None else ():
        yield "unwatched", each


def _usage_texts(usage: Mapping[str, float]) -> list[str]:
    texts = []
    if "cpu_s" in usage:
        texts.append(f"CPU {format_duration(usage['cpu_s'])}")
    if "max_rss_bytes" in usage:
        texts.append(f"memory {format_size(int(usage['max_rss_bytes']))}")
    elif "seen_rss_bytes" in usage:
        texts.append(f"memory at least {format_size(int(usage['seen_rss_bytes']))}")
    return texts


def _place(run: Run) -> str:
    """Return where a run was: on a system also the host, which its name does not tell."""
    host = str(run.hardware.get("host") or "")
    where = place(run.system)
    return f"{where} ({host})" if host and where not in (host, "here") else where


def _print_run(out: Out, details: RunDetails) -> None:
    run, footprint = details.run, details.footprint
    out.heading(f"{run.id}: {run.state}")
    code = run.captured.code
    pairs = [("command", shlex.join(without_shell(run.argv))), ("started", _date(run.created)), ("on", _place(run))]
    if run.elapsed_s is not None:
        pairs.append(("took", ", ".join([format_duration(run.elapsed_s), *_usage_texts(run.usage)])))
    if run.params:
        pairs.append(("params", ", ".join(f"{name}={json.dumps(value)}" for name, value in run.params.items())))
    if code.git is not None:
        dirty = " with changes" if code.git.dirty else ""
        pairs.append(("code", f"commit {code.git.commit[:12]}{dirty} in {code.git.root}"))
    for file in code.files:
        pairs.append(("code", f"{file.name} sha256 {file.sha256[:12]}"))
    if (environment := run.captured.environment).name:
        pairs.append(("environment", f"{environment.name} {environment.digest[:16]}"))
    if environment.interpreter:
        packages = f"{len(environment.lock)} packages"
        pairs.append(("python", f"{environment.python} {environment.interpreter}, {packages}"))
    for name, given in run.captured.inputs.items():
        pairs.append((f"input {name}", f"{given.asset or given.path} sha256 {given.sha256[:12] or '?'}"))
    pairs += _watched_pairs(run)
    for name in run.undeclared:
        pairs.append(("wrote", f"{name} (not kept: no --out named it)"))
    for name, made in run.outputs.items():
        pairs.append(("output", f"{name} {format_size(made.size_bytes)} sha256 {made.sha256[:12]}"))
    for part in run.energy.parts:
        how = f"{part['method']} ({part['source']}, {part['error']})"
        pairs.append(("energy", f"{format_number(part['joules'], 'J')} of {part['scope']}, {how}"))
    pairs += footprint.sentences() if footprint is not None else []
    if run.result is not None and run.energy_j is None:
        missing = run.energy.missing
        why = ": ".join(["", *missing.values()]) if len(missing) == 1 else ""
        none = f": no counter of {', '.join(missing)} here (--json says why)" if len(missing) > 1 else why
        pairs.append(("energy", f"not measured{none}"))
    for what, each in run.prediction.items():
        pairs.append(("predicted", f"{quantity_name(what)} {amount_text(what, each['value'])} ({each['source']})"))
    if run.reason:
        pairs.append(("reason", run.reason))
    pairs += [("note", note) for note in run.notes]
    out.items(pairs)
    metrics = [
        [name, format_number(each.value, each.unit), format_number(each.best, each.unit), each.count, each.better]
        for name, each in run.metrics.items()
    ]
    out.table(["metric", "last", "best", "values", "better"], metrics)
    spans = [
        [name, each["count"], *(format_duration(each[key]) for key in ("total_s", "mean_s", "p95_s"))]
        for name, each in run.spans.items()
    ]
    out.table(["span", "calls", "total", "mean", "p95"], spans)
    out.say(f"in {run.folder}")
    out.hint(f"`fairmile rerun {run.id}` repeats it; `fairmile report {run.id}` writes a report")
