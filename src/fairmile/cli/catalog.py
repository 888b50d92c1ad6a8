"""`fairmile catalog`: check, add, change and exchange cards; manage sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import UsageError
from fairmile.catalog.exchange import READERS, WRITERS
from fairmile.catalog.sources import SyncReport
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, json_option
from fairmile.workspace import Workspace

_FILES = click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
_FORMAT = click.option(
    "--format", help="Read as this format instead of recognising it: card, " + ", ".join(READERS.names())
)
_KIND = click.option("--kind", help="Which one, when a name is that of several kinds of asset.")


@click.group(cls=LazyGroup)
def catalog() -> None:
    """Check, add, change and exchange cards; manage sources."""


@catalog.command()
@_FILES
@_FORMAT
@json_option
def check(files: tuple[Path, ...], format: str | None, out: Out) -> int:
    """Check cards and foreign descriptions: file, line, field, what was expected. Changes nothing."""
    verdicts = Workspace.open().catalog.check(files, format=format)
    if out.as_json:
        out.data({"files": [_verdict(verdict) for verdict in verdicts]})
    for verdict in verdicts if not out.as_json else []:
        for problem in verdict.problems:
            colour = "red" if problem.severity == "error" else "yellow"
            out.line(
                f"{out.colour(problem.severity, colour)}: {problem}" + (f" ({problem.hint})" if problem.hint else "")
            )
        errors = sum(problem.severity == "error" for problem in verdict.problems)
        warnings = len(verdict.problems) - errors
        state = "valid" if verdict.ok else "not valid"
        out.line(
            f"{verdict.file}: {state}, {errors} errors, {warnings} warnings"
            + "".join(f", {h}" for h in verdict.handles)
        )
    return 0 if all(verdict.ok for verdict in verdicts) else 2


def _verdict(verdict: Any) -> dict[str, Any]:
    keys = ("severity", "field", "line", "message", "hint")
    problems = [{key: getattr(problem, key) for key in keys} for problem in verdict.problems]
    return {"file": verdict.file, "ok": verdict.ok, "handles": verdict.handles, "problems": problems}


@catalog.command()
@_FILES
@_FORMAT
@click.option("--anyway", is_flag=True, help="Add in spite of equal content or source.")
@click.option("--dry-run", is_flag=True, help="Say what would be added; add nothing.")
@json_option
def add(files: tuple[Path, ...], format: str | None, anyway: bool, dry_run: bool, out: Out) -> int:
    """Add cards, or import foreign descriptions, to the local catalog."""
    cards = Workspace.open(on_progress=out.progress).catalog
    results = []
    for file in files:
        for each in cards.add(file, format=format, anyway=anyway, dry_run=dry_run):
            results.append({"file": str(file), "handle": each.handle, "status": each.status, "warnings": each.warnings})
            if not out.as_json:
                out.line(f"{each.status:<8} {each.handle}")
                for warning in each.warnings:
                    out.say(f"  warning: {warning['field']}: {warning['message']}")
    if out.as_json:
        out.data({"cards": results})
    return 0


@catalog.command()
@click.argument("name")
@click.option("--set", "set_", multiple=True, metavar="KEY=VALUE", help="Set a property; the value is JSON or text.")
@click.option("--add", "add_", multiple=True, metavar="KEY=VALUE", help="Append to a property.")
@click.option("--unset", multiple=True, metavar="KEY", help="Drop a property.")
@_KIND
@click.option("--dry-run", is_flag=True, help="Print the changed card; write nothing.")
@json_option
def update(
    name: str,
    set_: tuple[str, ...],
    add_: tuple[str, ...],
    unset: tuple[str, ...],
    kind: str | None,
    dry_run: bool,
    out: Out,
) -> int:
    """Change properties of a card; a new version makes a new card linked to the old one."""
    if not (set_ or add_ or unset):
        raise UsageError("nothing to change", hint="--set KEY=VALUE, --add KEY=VALUE or --unset KEY")
    card = Workspace.open(on_progress=out.progress).catalog.update(
        name, set=_pairs(set_), add=_pairs(add_), unset=unset, kind=kind, dry_run=dry_run
    )
    if out.as_json or dry_run:
        out.data({"handle": str(card.handle), "card": card.body})
    else:
        out.line(f"updated  {card.handle}")
    return 0


def _pairs(texts: tuple[str, ...]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(f"{text!r} is not KEY=VALUE")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        # A version, a name, a number of an address are texts even where they look like numbers.
        parsed = (
            value
            if isinstance(parsed, (int, float)) and not isinstance(parsed, bool) and key in ("version", "name")
            else parsed
        )
        pairs[key] = (
            [*pairs[key], parsed]
            if key in pairs and isinstance(pairs[key], list)
            else parsed
            if key not in pairs
            else [pairs[key], parsed]
        )
    return pairs


@catalog.command()
@click.argument("name")
@click.option("--reason", default="", help="Why; kept on the tombstone.")
@click.option("--successor", default="", help="The asset that takes its place.")
@_KIND
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@json_option
def rm(name: str, reason: str, successor: str, kind: str | None, dry_run: bool, out: Out) -> int:
    """Remove a card of the local catalog; a tombstone stays and the name stays reserved."""
    card = Workspace.open().catalog.remove(name, reason=reason, successor=successor, kind=kind, dry_run=dry_run)
    if out.as_json:
        out.data({"handle": str(card.handle), "tombstone": card["tombstone"], "dry_run": dry_run})
    else:
        out.line(f"{'would remove' if dry_run else 'removed'}  {card.handle}")
    return 0


@catalog.command()
@click.argument("name")
@_KIND
@json_option
def versions(name: str, kind: str | None, out: Out) -> int:
    """List every version of an asset, newest first."""
    rows = Workspace.open(on_progress=out.progress).catalog.versions(name, kind=kind)
    facts = [
        {"version": r.version, "handle": r.handle, "id": r.iri, "digest": r.digest, "removed": r.gone} for r in rows
    ]
    if out.as_json:
        out.data({"versions": facts})
    else:
        out.table(
            ["version", "handle", "state"],
            [[f["version"], f["handle"], "removed" if f["removed"] else ""] for f in facts],
        )
    return 0


@catalog.command()
@click.argument("name")
@click.option("--to", "format", required=True, help="card, " + ", ".join(WRITERS.names()))
@click.option("-o", "--out", "target", type=click.Path(path_type=Path, file_okay=False), help="Write into this folder.")
@_KIND
@json_option
def export(name: str, format: str, target: Path | None, kind: str | None, out: Out) -> int:
    """Describe an asset in a foreign format; printed, or written to a folder."""
    documents = Workspace.open(on_progress=out.progress).catalog.export(name, format, target, kind=kind)
    written = [str(target / file) for file in documents] if target else []
    if out.as_json:
        out.data({"format": format, "written": written, "documents": documents})
    elif target:
        for path in written:
            out.line(f"wrote    {path}")
    else:
        for text in documents.values():
            out.text(text)
    return 0


@catalog.command()
@click.argument("names", nargs=-1)
@json_option
def sync(names: tuple[str, ...], out: Out) -> int:
    """Bring sources up to date; one that fails is reported and its last copy still serves."""
    reports = Workspace.open(on_progress=out.progress).catalog.sync(names)
    if out.as_json:
        out.data({"sources": [report.__dict__ for report in reports]})
    for report in reports if not out.as_json else []:
        _render_report(report, out)
    return 3 if any(report.error for report in reports) else 0


def _render_report(report: SyncReport, out: Out) -> None:
    if report.error:
        out.say(f"failed   {report.name}: {report.error}; the last copy still serves")
        return
    pinned = f" at {report.revision[:12]}" if report.revision else ""
    out.line(
        f"synced   {report.name}{pinned}: {report.cards} cards, {report.changed} changed, {report.removed} removed"
    )
    for problem in report.problems[:20]:
        out.say(f"  left out: {problem}")
    if len(report.problems) > 20:
        out.say(f"  and {len(report.problems) - 20} more; `fairmile doctor --json` lists all")


@catalog.command()
@json_option
def reindex(out: Out) -> int:
    """Build the search index anew from the files."""
    report = Workspace.open(on_progress=out.progress).catalog.reindex()
    if out.as_json:
        out.data({"cards": report.added, "damaged": [{"path": p, "why": why} for p, why in report.damaged]})
    else:
        out.line(f"indexed  {report.added} cards")
        for path, why in report.damaged:
            out.say(f"  left out: {path}: {why}")
    return 4 if report.damaged else 0


@catalog.command()
@click.argument("target", type=click.Path(path_type=Path, file_okay=False))
@click.option("--catalog", "name", help="Which catalog; the local one unless given.")
@json_option
def publish(target: Path, name: str | None, out: Out) -> int:
    """Write a catalog as a folder that any web server can offer as a source."""
    count = Workspace.open(on_progress=out.progress).catalog.publish(target, catalog=name)
    if out.as_json:
        out.data({"cards": count, "folder": str(target)})
    else:
        out.line(f"wrote    {count} cards and index.json to {target}")
    return 0


@catalog.group(cls=LazyGroup)
def source() -> None:
    """Add, list and remove catalogs of others: a folder, a git repository, a web address."""


@source.command("add")
@click.argument("name")
@click.argument("location")
@click.option(
    "--type", "type_", type=click.Choice(["folder", "git", "web"]), help="Guessed from the location unless given."
)
@click.option("--revision", default="", help="Git: the branch, tag or commit to pin.")
@json_option
def source_add(name: str, location: str, type_: str | None, revision: str, out: Out) -> int:
    """Add a source and bring its cards."""
    report = Workspace.open(on_progress=out.progress).catalog.add_source(name, location, type=type_, revision=revision)
    if out.as_json:
        out.data(report.__dict__)
    else:
        _render_report(report, out)
    return 0


@source.command("ls")
@json_option
def source_ls(out: Out) -> int:
    """List the catalogs in order of precedence, with their state and name clashes."""
    found = Workspace.open(on_progress=out.progress).catalog.catalogs()
    if out.as_json:
        out.data({"catalogs": found})
        return 0
    rows = [
        [
            c["name"],
            c["type"],
            c["cards"],
            len(c["clashes"]),
            c.get("synced_at", ""),
            c.get("error") or "ok",
            c["location"],
        ]
        for c in found
    ]
    out.table(["catalog", "type", "cards", "clashes", "synced", "state", "location"], rows)
    for each in found:
        for clash in each["clashes"]:
            out.say(
                f"clash: {each['name']} describes {clash} otherwise than a catalog before it, which takes precedence"
            )
    return 0


@source.command("rm")
@click.argument("name")
@json_option
def source_rm(name: str, out: Out) -> int:
    """Remove a source and its copy."""
    Workspace.open().catalog.remove_source(name)
    if out.as_json:
        out.data({"removed": name})
    else:
        out.line(f"removed  {name}")
    return 0
