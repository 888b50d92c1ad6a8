"""`fairmile catalog`: check, add, change and exchange cards; manage sources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import FairmileError, NotFound, UsageError
from fairmile.base.registry import Registry
from fairmile.base.words import did_you_mean
from fairmile.catalog.exchange import READERS, WRITERS
from fairmile.catalog.results import Added, Checked
from fairmile.catalog.sources import SyncReport
from fairmile.cli.failures import Failure
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, count, json_option
from fairmile.workspace import Workspace

_OWN_FORMAT = "card"
_SHOWN_PROBLEMS = 20


class _FormatOption(click.Option):
    """Takes the name of a format; the names, plug-ins included, are looked up when they are needed."""

    def __init__(self, *args: Any, registry: Registry[Any], **kwargs: Any) -> None:
        super().__init__(*args, callback=self._known, **kwargs)
        self._registry = registry
        self._what = self.help

    def _names(self) -> list[str]:
        return [_OWN_FORMAT, *self._registry.names()]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = f"{self._what}: {', '.join(self._names())}."
        return super().get_help_record(ctx)

    def _known(self, _: click.Context, __: click.Parameter, value: str | None) -> str | None:
        if value is not None and value not in (names := self._names()):
            near = did_you_mean(value, names)
            raise NotFound(
                f"no {self._registry.kind} named {value!r}" + (f"; {near}" if near else ""),
                hint=f"known: {', '.join(names)}",
            )
        return value


_FILES = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False)
)
_FORMAT = click.option(
    "--format", cls=_FormatOption, registry=READERS, metavar="FORMAT", help="Read as this instead of recognising it"
)
_KIND = click.option("--kind", metavar="KIND", help="Which one, when assets of several kinds have the name.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
_FOLDER = click.Path(path_type=Path, file_okay=False, readable=False)


@click.group(cls=LazyGroup)
def catalog() -> None:
    """Check, add, change and exchange cards; manage sources.

    NAME is a name, model/name, a whole handle such as builtin/model/cosmoflow@1.0, an id, a DOI or a digest.
    """


@catalog.command(short_help="Check cards and foreign descriptions; change nothing.")
@_FILES
@_FORMAT
@json_option
def check(files: tuple[Path, ...], format: str | None, out: Out) -> int:
    """Check cards and foreign descriptions; change nothing.

    Every problem is told with file, line, field, what was expected and what to do.

    \b
    Example:
      fairmile catalog check lake.jsonld codemeta.json
    """
    verdicts = Workspace.open().catalog.check(files, format=format)
    if out.as_json:
        out.data({"files": [_verdict(verdict) for verdict in verdicts]})
    else:
        for verdict in verdicts:
            _render_verdict(verdict, out)
    return 0 if all(verdict.ok for verdict in verdicts) else 2


def _verdict(verdict: Checked) -> dict[str, Any]:
    keys = ("severity", "field", "line", "message", "hint")
    problems = [{key: getattr(problem, key) for key in keys} for problem in verdict.problems]
    return {"file": verdict.file, "ok": verdict.ok, "handles": verdict.handles, "problems": problems}


def _render_verdict(verdict: Checked, out: Out) -> None:
    for problem in verdict.problems:
        label = out.colour(problem.severity, "red" if problem.severity == "error" else "yellow")
        out.item(f"{label}: ", str(problem))
        if problem.hint:
            out.item("  hint: ", problem.hint)
    errors = sum(problem.severity == "error" for problem in verdict.problems)
    warnings = len(verdict.problems) - errors
    numbers = [count(number, noun) for number, noun in ((errors, "error"), (warnings, "warning")) if number]
    out.line(", ".join([f"{verdict.file}: {'valid' if verdict.ok else 'not valid'}", *numbers]))
    for handle in verdict.handles:
        out.line(f"  describes {handle}")


@catalog.command(short_help="Add cards, or import foreign descriptions, to your catalog.")
@_FILES
@_FORMAT
@click.option("--anyway", is_flag=True, help="Add what is there already under another name.")
@click.option("--dry-run", is_flag=True, help="Say what would be added; add nothing.")
@json_option
def add(files: tuple[Path, ...], format: str | None, anyway: bool, dry_run: bool, out: Out) -> int:
    """Add cards, or import foreign descriptions, to your catalog.

    A file that cannot be added is told, and the others still are.

    \b
    Examples:
      fairmile catalog add lake.jsonld
      fairmile catalog add codemeta.json --dry-run
    """
    cards = Workspace.open(on_progress=out.progress).catalog
    results: list[dict[str, Any]] = []
    failed: list[tuple[Path, Failure]] = []
    for file in files:
        try:
            added = cards.add(file, format=format, anyway=anyway, dry_run=dry_run)
        except FairmileError as error:
            if len(files) == 1:
                raise
            failed.append((file, Failure.of(error)))
            if not out.as_json:
                failed[-1][1].tell(as_json=False)
            if error.exit_code != 2:  # the disk, not the file: the next one would fail as well
                break
            continue
        results += [{"file": str(file), **each._asdict()} for each in added]
        if not out.as_json:
            _render_added(added, dry_run, out)
    if out.as_json:
        _print_added(results, failed, dry_run, out)
    return failed[-1][1].exit_code if failed else 0


def _print_added(
    results: Sequence[Mapping[str, Any]], failed: Sequence[tuple[Path, Failure]], dry_run: bool, out: Out
) -> None:
    facts: dict[str, Any] = {"cards": list(results), "dry_run": dry_run}
    if failed:
        facts["failed"] = [{"file": str(file), **failure.to_dict()} for file, failure in failed]
        facts["error"] = failed[-1][1].to_dict()
    out.data(facts)


def _render_added(added: Sequence[Added], dry_run: bool, out: Out) -> None:
    for each in added:
        status = "would add" if dry_run and each.status == "added" else each.status
        where = f": its {each.because} stands as {each.stands_as}" if each.because in ("content", "source") else ""
        out.line(f"{status:<8} {each.handle}{where}")
        if where:
            out.hint("--anyway adds it under this name too")
        for warning in each.warnings:
            out.say(f"  warning: {warning['field']}: {warning['message']}")


@catalog.command(short_help="Change properties of a card, or give it a new version.")
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
    """Change properties of a card; a new version makes a new card linked to the old one.

    A card of another catalog is changed as a copy in yours, which takes precedence.

    \b
    Examples:
      fairmile catalog update lake-temperatures --add keywords=limnology --set accessRights=public
      fairmile catalog update lake-temperatures --set version=1.1
    """
    if not (set_ or add_ or unset):
        raise UsageError("nothing to change", hint="--set KEY=VALUE, --add KEY=VALUE or --unset KEY")
    card = Workspace.open(on_progress=out.progress).catalog.update(
        name, set=_pairs("--set", set_), add=_pairs("--add", add_), unset=unset, kind=kind, dry_run=dry_run
    )
    if out.as_json or dry_run:
        out.data({"handle": str(card.handle), "card": card.body, "dry_run": dry_run})
    else:
        out.line(f"updated  {card.handle}")
    return 0


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UsageError(f"{option} {text!r} is not KEY=VALUE", hint=f"as in {option} keywords=limnology")
        values.setdefault(key.strip(), []).append(_value(key.strip(), value))
    return {key: many[0] if len(many) == 1 else many for key, many in values.items()}


def _value(key: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        if text.lstrip()[:1] in ("{", "["):
            raise UsageError(
                f"the value of {key} begins like JSON and is not: {error}", hint="put it in single quotes"
            ) from error
        return text
    # A version or a name is a text even where it looks like a number.
    return text if key in ("version", "name") and not isinstance(value, str) else value


@catalog.command(short_help="Remove a card of yours; a tombstone stays.")
@click.argument("name")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept on the tombstone.")
@click.option("--successor", default="", metavar="NAME", help="The asset that takes its place.")
@_KIND
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@json_option
def rm(name: str, reason: str, successor: str, kind: str | None, dry_run: bool, out: Out) -> int:
    """Remove a card of your catalog; a tombstone stays and the name stays reserved.

    \b
    Example:
      fairmile catalog rm lake-temperatures@1.0 --reason "sensor fault" --successor lake-temperatures@1.1
    """
    card = Workspace.open(on_progress=out.progress).catalog.remove(
        name, reason=reason, successor=successor, kind=kind, dry_run=dry_run
    )
    if out.as_json:
        out.data({"handle": str(card.handle), "tombstone": card["tombstone"], "dry_run": dry_run})
    else:
        out.line(f"{'would remove' if dry_run else 'removed '} {card.handle}")
    return 0


@catalog.command()
@click.argument("name")
@_KIND
@json_option
def versions(name: str, kind: str | None, out: Out) -> int:
    """List every version of an asset, newest first.

    \b
    Example:
      fairmile catalog versions model/cosmoflow
    """
    rows = Workspace.open(on_progress=out.progress).catalog.versions(name, kind=kind)
    facts = [
        {"version": r.version, "handle": r.handle, "id": r.iri, "digest": r.digest, "removed": bool(r.gone)}
        for r in rows
    ]
    if out.as_json:
        out.data({"versions": facts})
    else:
        lines = [[f["version"], "removed" if f["removed"] else "", f["handle"]] for f in facts]
        out.table(["version", "state", "handle"], lines)
    return 0


@catalog.command(short_help="Describe an asset in a foreign format.")
@click.argument("name")
@click.option(
    "--to",
    "format",
    cls=_FormatOption,
    registry=WRITERS,
    required=True,
    metavar="FORMAT",
    help="What to write",
)
@click.option("-o", "--out", "target", type=_FOLDER, metavar="FOLDER", help="Write into this folder.")
@click.option("--replace", is_flag=True, help="Replace files that are there and differ.")
@_KIND
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@json_option
def export(
    name: str, format: str, target: Path | None, replace: bool, kind: str | None, dry_run: bool, out: Out
) -> int:
    """Describe an asset in a foreign format; printed, or written to a folder.

    \b
    Examples:
      fairmile catalog export dataset/mnist --to croissant
      fairmile catalog export model/cosmoflow --to rocrate -o crate
    """
    cards = Workspace.open(on_progress=out.progress).catalog
    documents = cards.export(name, format, target, kind=kind, replace=replace, dry_run=dry_run)
    paths = [str(target / file) for file in documents] if target else []
    if out.as_json:
        out.data({"format": format, "written": paths, "documents": documents, "dry_run": dry_run})
    elif target:
        for path in paths:
            out.line(f"{'would write' if dry_run else 'wrote   '} {path}")
    elif len(documents) > 1:
        raise UsageError(f"{format} takes {len(documents)} files", hint="-o FOLDER writes them")
    else:
        for text in documents.values():
            out.document(text)
    return 0


@catalog.command(short_help="Print size, digests and SWHID of files and folders.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@json_option
def digest(paths: tuple[Path, ...], out: Out) -> int:
    """Print size, sha256, content digest and SWHID of files and folders, as a card takes them.

    \b
    Example:
      fairmile catalog digest lake.jsonld
    """
    cards = Workspace.open().catalog
    found = [cards.measure(path).to_dict() for path in paths]
    if out.as_json:
        out.data({"contents": found})
        return 0
    for each in found:
        for entry in each.pop("distribution", []):
            each["sha256"] = entry["sha256"]
        for key, value in each.items():
            out.line(f"{key:<14} {value}")
    return 0


@catalog.command(short_help="Bring sources up to date.")
@click.argument("names", metavar="[SOURCE]...", nargs=-1)
@click.option("--allow-empty", is_flag=True, help="Drop the cards of a source that lists none any more.")
@_DRY_RUN
@json_option
def sync(names: tuple[str, ...], allow_empty: bool, dry_run: bool, out: Out) -> int:
    """Bring sources up to date, all of them or those named.

    A source that fails is told, its last copy still serves, and so do the others.

    \b
    Example:
      fairmile catalog sync
    """
    reports = Workspace.open(on_progress=out.progress).catalog.sync(names, dry_run=dry_run, allow_empty=allow_empty)
    if out.as_json:
        out.data({"sources": [dict(vars(report)) for report in reports], "dry_run": dry_run})
    else:
        for report in reports:
            _render_report(report, out, dry_run)
        if not reports:
            out.say("there is no source to sync")
            out.hint("`fairmile catalog source add NAME LOCATION` adds one")
    return 3 if any(report.error for report in reports) else 0


def _render_report(report: SyncReport, out: Out, dry_run: bool) -> None:
    if report.error:
        out.say(f"failed   {report.name}: {' '.join(report.error.split())}")
        return
    pinned = f" at {report.revision[:12]}" if report.revision else ""
    cards = count(report.cards, "card")
    done = "would sync" if dry_run else "synced  "
    out.line(f"{done} {report.name}{pinned}: {cards}, {report.changed} changed, {report.removed} removed")
    for problem in report.problems[:_SHOWN_PROBLEMS]:
        out.say(f"  left out: {problem}")
    if len(report.problems) > _SHOWN_PROBLEMS:
        more = len(report.problems) - _SHOWN_PROBLEMS
        out.say(f"  and {more} more; `fairmile catalog source ls --json` lists all")


@catalog.command()
@_DRY_RUN
@json_option
def reindex(dry_run: bool, out: Out) -> int:
    """Build the search index anew from the files.

    \b
    Example:
      fairmile catalog reindex
    """
    report = Workspace.open(on_progress=out.progress).catalog.reindex(dry_run=dry_run)
    if out.as_json:
        out.data(
            {
                "dry_run": dry_run,
                "cards": report.added,
                "damaged": [{"path": p, "why": why} for p, why in report.damaged],
            }
        )
    else:
        out.line(f"{'would index' if dry_run else 'indexed '} {count(report.added, 'card')}")
        for path, why in report.damaged:
            out.say(f"  left out: {path}: {why}")
    return 4 if report.damaged else 0


@catalog.command(short_help="Write a catalog for a web server to offer.")
@click.argument("target", metavar="FOLDER", type=_FOLDER)
@click.option("--catalog", "name", metavar="NAME", help="Which catalog; yours unless given.")
@_DRY_RUN
@json_option
def publish(target: Path, name: str | None, dry_run: bool, out: Out) -> int:
    """Write a catalog as a folder that any web server can offer as a source.

    \b
    Example:
      fairmile catalog publish ./site
    """
    cards = Workspace.open(on_progress=out.progress).catalog.publish(target, catalog=name, dry_run=dry_run)
    if out.as_json:
        out.data({"cards": cards, "folder": str(target), "dry_run": dry_run})
    else:
        out.line(f"{'would write' if dry_run else 'wrote   '} {count(cards, 'card')} and index.json to {target}")
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
@click.option("--revision", default="", metavar="REVISION", help="Git: the branch, tag or commit to pin.")
@_DRY_RUN
@json_option
def source_add(name: str, location: str, type_: str | None, revision: str, dry_run: bool, out: Out) -> int:
    """Add a source and bring its cards.

    LOCATION is a folder, a git repository, or a web address with an index.json.

    \b
    Example:
      fairmile catalog source add group ./shared-cards
    """
    cards = Workspace.open(on_progress=out.progress).catalog
    report = cards.add_source(name, location, type=type_, revision=revision, dry_run=dry_run)
    if out.as_json:
        out.data({"source": dict(vars(report)), "dry_run": dry_run})
    else:
        _render_report(report, out, dry_run)
    return 0


@source.command("ls")
@json_option
def source_ls(out: Out) -> int:
    """List the catalogs in order of precedence, with their state and name clashes."""
    found = Workspace.open(on_progress=out.progress).catalog.catalogs()
    if out.as_json:
        out.data({"catalogs": found})
        return 0
    catalog_table(found, out)
    for each in found:
        if each.get("error"):
            out.say(f"failed: {each['name']}: {' '.join(each['error'].split())}")
        for clash in each["clashes"]:
            out.say(f"clash: {each['name']} describes {clash} otherwise than a catalog before it, which is shown")
    return 0


def catalog_table(catalogs: Sequence[Mapping[str, Any]], out: Out) -> None:
    """Print the catalogs in order of precedence, with their state."""
    rows = [
        [each["name"], each["type"], each["cards"], len(each["clashes"]), _state(each), each["location"]]
        for each in catalogs
    ]
    out.table(["catalog", "type", "cards", "clashes", "state", "location"], rows)


def _state(catalog: Mapping[str, Any]) -> str:
    if catalog.get("error"):
        return "failed"
    if "synced_at" not in catalog:
        return "ok"
    return f"synced {catalog['synced_at']}" if catalog["synced_at"] else "not synced yet"


@source.command("rm")
@click.argument("name")
@_DRY_RUN
@json_option
def source_rm(name: str, dry_run: bool, out: Out) -> int:
    """Remove a source and its copy.

    \b
    Example:
      fairmile catalog source rm group
    """
    Workspace.open(on_progress=out.progress).catalog.remove_source(name, dry_run=dry_run)
    if out.as_json:
        out.data({"removed": name, "dry_run": dry_run})
    else:
        out.line(f"{'would remove' if dry_run else 'removed '} {name}")
    return 0
