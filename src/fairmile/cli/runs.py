"""`fairmile runs` and `fairmile status`: what was executed, where it stands, and how it leaves the house."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fairmile.base.units import format_duration, format_size
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, count, json_option
from fairmile.meter.footprint import Footprint
from fairmile.meter.lines import number_text
from fairmile.runs.record.layout import open_arrays
from fairmile.runs.record.ledger import RunRow
from fairmile.runs.record.run import Run, RunState
from fairmile.sweeps.folder import Sweep, list_sweeps
from fairmile.workspace import Workspace

_COLOURS = {RunState.DONE: "green", RunState.RUNNING: "yellow", RunState.QUEUED: "yellow"}
_SHOWN = 20
_METRICS = 3
_REFERENCE = click.argument("reference", metavar="RUN")
_REFERENCES = click.argument("references", nargs=-1, required=True, metavar="RUN...")
_FORMS = "rocrate, mlflow, clearml or openml."
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; do nothing.")


@click.group(cls=LazyGroup)
def runs() -> None:
    """Look at what was executed, and exchange it.

    RUN is an id that `fairmile runs ls` shows, the start or end of one, `last`, or
    the path of a run's folder.
    """


@runs.command()
@click.option("--name", default="", help="Only runs of that name.")
@click.option("--group", default="", help="Only those that belong together.")
@click.option("--state", "states", multiple=True, type=click.Choice([str(each) for each in RunState]))
@click.option("--tag", default="", help="Only those with that word.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=_SHOWN, show_default=True, help="How many.")
@click.option("--all", "every", is_flag=True, help="All of them.")
@json_option
def ls(out: Out, name: str, group: str, states: Sequence[str], tag: str, limit: int, every: bool) -> None:
    """List runs, the newest first.

    \b
    Examples:
      fairmile runs ls --state failed
      fairmile runs ls --name tides -n 5
    """
    ledger = Workspace.open().ledger
    wanted = [RunState(each) for each in states]
    rows = ledger.rows(name=name, group=group, states=wanted, tag=tag, limit=None if every else limit)
    if out.as_json:
        out.data({"runs": [_facts(row) for row in rows]})
        return
    _table(out, rows)
    if len(rows) == limit and not every:
        out.hint("there may be more: --all lists them")


@runs.command()
@_REFERENCE
@click.option("--region", metavar="CODE", help="Tell cost and CO₂ there, such as DE.  [default: footprint.region]")
@click.option("--pue", type=float, help="What the building uses for each joule.  [default: footprint.pue]")
@json_option
def show(out: Out, reference: str, **given: Any) -> None:
    """Show the record of a run, and what its energy means where the region is known.

    \b
    Examples:
      fairmile runs show last
      fairmile runs show last --region DE --pue 1.2
    """
    workspace = Workspace.open()
    run = workspace.runs.collect(reference)
    supply = replace(workspace.supply, **{name: value for name, value in given.items() if value is not None})
    found = supply.footprint(run.energy_j)
    if out.as_json:
        out.data({**run.to_dict(), **({"footprint": asdict(found)} if found is not None else {})})
        return
    _show(out, run, found)


@runs.command()
@_REFERENCE
@json_option
def log(out: Out, reference: str) -> None:
    """Print what the program of a run printed.

    \b
    Examples:
      fairmile runs log last
    """
    text = Workspace.open().runs.output(reference)
    if out.as_json:
        out.data({"output": text.decode(errors="replace")})
    else:
        out.document(text)


@runs.command()
@_REFERENCES
@_DRY_RUN
@json_option
def cancel(out: Out, references: Sequence[str], dry_run: bool) -> None:
    """End runs that wait or run, here or on a system, even if their recorder was killed.

    \b
    Examples:
      fairmile runs cancel last --dry-run
    """
    ledger = Workspace.open().runs
    if dry_run:
        unfinished = [run for run in map(ledger.collect, references) if not run.state.is_end]
        _done(out, [f"{run.id}: {run.state}" for run in unfinished], "would cancel")
    else:
        _done(out, [f"{run.id}: {run.state}" for run in map(ledger.cancel, references)], "cancelled")


@runs.command()
@_REFERENCES
@_DRY_RUN
@json_option
def rm(out: Out, references: Sequence[str], dry_run: bool) -> None:
    """Remove runs that have ended.

    \b
    Examples:
      fairmile runs rm last --dry-run
    """
    ledger = Workspace.open().runs
    ids = [ledger.get(each).id for each in references] if dry_run else ledger.remove(references)
    _done(out, ids, "would remove" if dry_run else "removed")


@runs.command()
@_REFERENCES
@_DRY_RUN
@json_option
def pack(out: Out, references: Sequence[str], dry_run: bool) -> None:
    """Put each run into one file, which saves inodes; all commands still find it.

    \b
    Examples:
      fairmile runs pack last
    """
    ledger = Workspace.open().runs
    found = [ledger.get(each).folder if dry_run else ledger.pack(each) for each in references]
    _done(out, [str(path) for path in found], "would pack" if dry_run else "packed into")


@runs.command()
@_REFERENCES
@_DRY_RUN
@json_option
def unpack(out: Out, references: Sequence[str], dry_run: bool) -> None:
    """Bring the folders of packed runs back.

    \b
    Examples:
      fairmile runs unpack last
    """
    ledger = Workspace.open().runs
    found = [ledger.get(each).folder if dry_run else ledger.unpack(each) for each in references]
    _done(out, [str(path) for path in found], "would unpack" if dry_run else "unpacked to")


@runs.command()
@_REFERENCE
@click.option("--to", "format", metavar="FORM", default="rocrate", show_default=True, help=_FORMS)
@click.option("-o", "--out-path", type=click.Path(path_type=Path), help="Where it goes.  [default: RUN.crate.zip]")
@click.option("--with-inputs", is_flag=True, help="Also what went in, not only its digest.")
@_DRY_RUN
@json_option
def export(out: Out, reference: str, format: str, out_path: Path | None, with_inputs: bool, dry_run: bool) -> None:
    """Write a run for others: a crate that reruns itself, or for MLflow, ClearML, OpenML.

    \b
    Examples:
      fairmile runs export last -o tides.crate.zip
    """
    ledger = Workspace.open().runs
    run = ledger.collect(reference)
    target = out_path or Path(f"{run.id}.crate.zip" if format == "rocrate" else f"{run.id}.{format}")
    written = [target] if dry_run else ledger.export(run.id, format, target, with_inputs=with_inputs)
    _done(out, [str(path) for path in written], "would write" if dry_run else "wrote")


@runs.command("import")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--from", "format", metavar="FORM", default="rocrate", show_default=True, help=_FORMS)
@_DRY_RUN
@json_option
def import_(out: Out, source: Path, format: str, dry_run: bool) -> None:
    """Take in runs that others wrote; every digest is checked.

    \b
    Examples:
      fairmile runs import tides.crate.zip
    """
    found = Workspace.open().runs.import_runs(source, format, dry_run=dry_run)
    _done(out, [run.id for run in found], "would import" if dry_run else "imported")


@runs.command()
@click.argument("references", nargs=-1, required=True, metavar="RUN...")
@click.option("--to", "steps", type=click.IntRange(min=1), required=True, help="How many steps the long run has.")
@click.option("--param", default="epochs", show_default=True, help="The parameter that counts the steps.")
@click.option("--span", default="epoch", show_default=True, help="The span that is one step.")
@json_option
def project(out: Out, references: Sequence[str], steps: int, param: str, span: str) -> None:
    """Tell from short runs how long a long one takes, and which time to ask for.

    \b
    Examples:
      fairmile runs project tides --to 1000
    """
    projection, walltime_s = Workspace.open().runs.project(references, to=steps, param=param, span=span)
    if out.as_json:
        out.data({**vars(projection), "walltime_s": walltime_s})
        return
    band = ""
    if projection.low is not None and projection.high is not None:
        band = f" ({format_duration(projection.low)} to {format_duration(projection.high)})"
    out.line(f"{format_duration(projection.seconds)}{band}; ask for --time {format_duration(walltime_s)}")
    out.say(projection.basis)
    if projection.warning:
        out.say(f"warning: {projection.warning}")


@runs.command()
@_DRY_RUN
@json_option
def reindex(out: Out, dry_run: bool) -> None:
    """Make the index anew from the folders.

    \b
    Examples:
      fairmile runs reindex
    """
    ledger = Workspace.open().ledger
    number = len(ledger.rows()) if dry_run else ledger.reindex()
    if out.as_json:
        out.data({"runs": number})
    else:
        out.line(f"{count(number, 'run')} {'would be indexed' if dry_run else 'indexed'}")


@click.command()
@json_option
def status(out: Out) -> None:
    """Tell what runs, what waits and what ended last, here and on every system."""
    workspace = Workspace.open()
    ledger = workspace.ledger
    if ledger.with_jobs() or open_arrays(ledger.root):
        workspace.runs.refresh(on_problem=out.say)
    sweeps = list_sweeps(workspace.home / "sweeps")
    counts = ledger.counts([each.id for each in sweeps])
    unfinished = [each for each in sweeps if _is_unfinished(each, counts[each.id])]
    live = ledger.rows(states=[RunState.RUNNING, RunState.QUEUED])
    last = ledger.rows(limit=5)
    if out.as_json:
        going = [{"id": each.id, "count": each.count, "runs": _by_state(counts[each.id])} for each in unfinished]
        shown = {"live": [_facts(row) for row in live], "last": [_facts(row) for row in last]}
        out.data({"counts": _by_state(counts[""]), "sweeps": going, **shown})
        return
    out.line(f"runs: {_sentence(counts['']) or 'none yet'}")
    for each in unfinished:
        of = f" of {each.count:,}" if each.count else ""
        where = f" on {each.system}" if each.system else ""
        out.line(f"sweep {each.id}{where}: {_sentence(counts[each.id]) or 'none begun'}{of}")
    _table(out, live[:_SHOWN] or last)
    if len(live) > _SHOWN:
        out.hint(f"{len(live) - _SHOWN:,} more run or wait: `fairmile runs ls --state running --all`")


def _is_unfinished(sweep: Sweep, counts: Mapping[RunState, int]) -> bool:
    """Tell whether a sweep has points that have not come to an end, or a study trials that run."""
    alive = counts.get(RunState.RUNNING, 0) + counts.get(RunState.QUEUED, 0)
    begun = sum(counts.values()) - counts.get(RunState.INTERRUPTED, 0) - counts.get(RunState.CANCELLED, 0)
    return alive > 0 or begun < sweep.count


def _by_state(counts: Mapping[RunState, int]) -> dict[str, int]:
    return {str(state): number for state, number in counts.items()}


def _sentence(counts: Mapping[RunState, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in sorted(counts.items()))


def _facts(row: RunRow) -> dict[str, Any]:
    metrics = {name: number_text(value) for name, value in row.metrics.items()}
    return {**vars(row), "state": str(row.state), "tags": list(row.tags), "metrics": metrics}


def _table(out: Out, rows: Sequence[RunRow]) -> None:
    shown = []
    for row in rows:
        took = format_duration(row.elapsed_s) if row.elapsed_s is not None else ""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in list(row.metrics.items())[:_METRICS])
        state = out.colour(str(row.state), _COLOURS.get(row.state, "red"))
        shown.append([row.id, state, _when(row.created), took, row.system, metrics or row.reason])
    out.table(["run", "state", "started", "took", "on", "metrics"], shown, shrink=["metrics"])


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M") if time_s else ""


def _done(out: Out, what: Sequence[str], verb: str) -> None:
    if out.as_json:
        out.data({"done": list(what), "what": verb})
    else:
        for each in what:
            out.line(f"{verb} {each}")


def _used(usage: Mapping[str, float]) -> list[str]:
    found = []
    if "cpu_s" in usage:
        found.append(f"CPU {format_duration(usage['cpu_s'])}")
    if "max_rss_bytes" in usage:
        found.append(f"memory {format_size(int(usage['max_rss_bytes']))}")
    elif "seen_rss_bytes" in usage:
        found.append(f"memory at least {format_size(int(usage['seen_rss_bytes']))}")
    return found


def _show(out: Out, run: Run, footprint: Footprint | None) -> None:
    out.heading(f"{run.id}: {run.state}")
    spec, code = run.spec, run.captured.code
    pairs = [("command", " ".join(spec.argv)), ("started", _when(run.created)), ("on", run.system)]
    if run.elapsed_s is not None:
        pairs.append(("took", ", ".join([format_duration(run.elapsed_s), *_used(run.usage)])))
    if run.params:
        pairs.append(("params", ", ".join(f"{name}={json.dumps(value)}" for name, value in run.params.items())))
    if code.git is not None:
        dirty = " with changes" if code.git.dirty else ""
        pairs.append(("code", f"commit {code.git.commit[:12]}{dirty} in {code.git.root}"))
    for file in code.files:
        pairs.append(("code", f"{file.name} sha256 {file.sha256[:12]}"))
    for name, given in run.captured.inputs.items():
        pairs.append((f"input {name}", f"{given.asset or given.path} sha256 {given.sha256[:12] or '?'}"))
    for name, made in run.outputs.items():
        pairs.append(("output", f"{name} {format_size(made.size_bytes)} sha256 {made.sha256[:12]}"))
    for part in run.energy.parts:
        how = f"{part['method']} ({part['source']}, {part['error']})"
        pairs.append(("energy", f"{part['joules']:.5g} J of {part['scope']}, {how}"))
    pairs += footprint.sentences() if footprint is not None else []
    if run.result is not None and run.energy_j is None:
        why = "; ".join(run.energy.missing.values())
        pairs.append(("energy", f"not measured: {why}" if why else "not measured"))
    for what, each in run.prediction.items():
        pairs.append(("predicted", f"{what} {each['value']:.4g} ({each['source']})"))
    if run.reason:
        pairs.append(("reason", run.reason))
    pairs += [("note", note) for note in run.notes]
    out.items(pairs)
    metrics = [[n, f"{m.value:.6g}", f"{m.best:.6g}", m.count, m.unit, m.better] for n, m in run.metrics.items()]
    out.table(["metric", "last", "best", "values", "unit", "better"], metrics)
    spans = [
        [name, each["count"], *(format_duration(each[key]) for key in ("total_s", "mean_s", "p95_s"))]
        for name, each in run.spans.items()
    ]
    out.table(["span", "calls", "total", "mean", "p95"], spans)
    out.say(f"in {run.folder}")
    out.hint(f"`fairmile rerun {run.id}` does it again; `fairmile report {run.id}` draws it")
