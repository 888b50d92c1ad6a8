"""`fairmile catalog`: check, add, change and exchange cards; manage sources."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.registry import Registry
from fairmile.base.units import format_size
from fairmile.base.words import did_you_mean
from fairmile.catalog.card import Card, as_list
from fairmile.catalog.content import Contents
from fairmile.catalog.converting.results import ConvertedData
from fairmile.catalog.declared import AddedSource, SyncReport, SyncReports
from fairmile.catalog.describing.describe import Description
from fairmile.catalog.exchange import READERS, WRITERS
from fairmile.catalog.index import Refresh
from fairmile.catalog.results import (
    Additions,
    CatalogDict,
    Catalogs,
    Checked,
    CheckedFiles,
    ExportedDocuments,
    Publication,
    RemovedCard,
    SourceRemoval,
    UpdatedCard,
    Versions,
)
from fairmile.cli.failures import ShownFailure
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN, properties
from fairmile.cli.out import Out, count, json_output, one_line
from fairmile.workspace import Workspace

_OWN_FORMAT = "card"
_SHOWN_PROBLEMS = 20
_SHOWN_FILES = 20
_LONGEST_VALUE = 90
_IN_TABLES = ("distribution", "recordSet", "variableMeasured")


class _FormatOption(click.Option):
    """Takes the name of a format; the names, plug-ins included, are looked up when they are needed."""

    def __init__(self, *args: Any, registry: Registry[Any], **kwargs: Any) -> None:
        super().__init__(*args, callback=self._known, **kwargs)
        self._registry = registry
        self._what = self.help

    def _names(self) -> list[str]:
        return [_OWN_FORMAT, *self._registry.names()]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        default = "" if self.required else "  [default: detected]"
        self.help = f"{self._what}: {', '.join(self._names())}.{default}"
        return super().get_help_record(ctx)

    def _known(self, _: click.Context, __: click.Parameter, value: str | None) -> str | None:
        if value is not None and value not in (names := self._names()):
            near = did_you_mean(value, names)
            raise NotFound(
                f"no {self._registry.kind} named {value!r}" + (f"; {near}" if near else ""),
                hint=f"known: {', '.join(names)}",
            )
        return value


_FILES = click.argument("files", metavar="FILE|URL...", nargs=-1, required=True, type=click.Path(readable=False))
_FORMAT = click.option(
    "--format",
    cls=_FormatOption,
    registry=READERS,
    metavar="FORMAT",
    help="Format of the files",
)
_KIND = click.option("--kind", metavar="KIND", help="Kind of the asset, when several kinds share the name.")
_FOLDER = click.Path(path_type=Path, file_okay=False, readable=False)
_PATH = click.Path(path_type=Path, exists=True)
_FILE = click.Path(path_type=Path, dir_okay=False, readable=False)


@click.group(cls=LazyGroup)
def catalog() -> None:
    """Check, add, change and exchange cards; manage sources.

    NAME is a name, model/name, a full handle such as builtin/model/cosmoflow@1.0, an id, a DOI or a digest.
    """


@catalog.command(short_help="Check cards and descriptions in other formats.")
@_FILES
@_FORMAT
@json_output(CheckedFiles)
def check(files: tuple[str, ...], format: str | None, out: Out) -> int:
    """Check cards and descriptions in other formats; change nothing.

    Each problem is reported with its file, line and field, what was expected, and how to fix it.

    \b
    Example:
      fairmile catalog check lake.jsonld codemeta.json
    """
    verdicts = Workspace.open().catalog.check(files, format=format)
    out.show(verdicts, lambda each: _print_verdicts(each, out))
    return 0 if verdicts.ok else 2


def _print_verdicts(verdicts: CheckedFiles, out: Out) -> None:
    for verdict in verdicts:
        _print_verdict(verdict, out)


def _print_verdict(verdict: Checked, out: Out) -> None:
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


@catalog.command(short_help="Add cards to your catalog, or import other formats.")
@_FILES
@_FORMAT
@click.option("--anyway", is_flag=True, help="Add assets that the catalog already has under another name.")
@DRY_RUN
@json_output(Additions)
def add(files: tuple[str, ...], format: str | None, anyway: bool, dry_run: bool, out: Out) -> int:
    """Add cards to your catalog, or import descriptions in other formats and from hubs.

    URL is the address of a description or of a web page that holds one, or an asset on a hub: hf://ORG/NAME,
    zenodo:RECORD or openml:NUMBER. The card of a model file states its framework, format,
    signature and sha256.

    Files that cannot be added are reported; the others are added.

    \b
    Examples:
      fairmile catalog add lake.jsonld
      fairmile catalog add codemeta.json --dry-run
    """
    added = Workspace.open(on_progress=out.progress).catalog.add_files(
        files, format=format, anyway=anyway, dry_run=dry_run
    )
    out.show(added, lambda each: _print_added(each, out))
    return added.exit_code


def _print_added(added: Additions, out: Out) -> None:
    for each in added:
        status = "would add" if added.dry_run and each.status == "added" else each.status
        same = f": same {each.because} as {each.stands_as}" if each.because in ("content", "source") else ""
        out.line(f"{status:<8} {each.handle}{same}")
        if same:
            out.hint("use --anyway to add it under this name as well")
        for warning in each.warnings:
            out.say(f"  warning: {warning['field']}: {warning['message']}")
    for failed in added.failed:
        ShownFailure.of(failed.error).tell(as_json=False)


@catalog.command(short_help="Draft a card from a file, folder or URL.")
@click.argument("source", metavar="FOLDER|FILE|URL")
@click.option("--kind", metavar="KIND", help="Kind of the asset.  [default: detected]")
@click.option(
    "--set", "set_", multiple=True, metavar="KEY=VALUE", help="Set a property, such as license=CC-BY-4.0; repeatable."
)
@click.option("--address", default="", metavar="URL", help="URL where others can fetch the files.")
@click.option("--add", is_flag=True, help="Add the card to your catalog.")
@click.option("-o", "--out", "target", type=_FILE, metavar="FILE", help="Write the card to this file.")
@click.option("--replace", is_flag=True, help="Overwrite existing files that differ.")
@json_output(Description)
def describe(
    source: str,
    kind: str | None,
    set_: tuple[str, ...],
    address: str,
    add: bool,
    target: Path | None,
    replace: bool,
    out: Out,
) -> int:
    """Draft a card from a file, folder or URL: files, formats, columns, licence, citation, README, git.

    Nothing is written without --add or -o. Properties that only the owner knows are listed with the command that
    sets each.

    \b
    Examples:
      fairmile catalog describe ./shared-cards
      fairmile catalog describe tides.tar.gz --set license=CC-BY-4.0 --add
    """
    drafted = Workspace.open(on_progress=out.progress).catalog.describe(
        source, kind=kind, set=properties("--set", set_), address=address, target=target, add=add, replace=replace
    )
    out.show(drafted, lambda each: _print_description(each, out))
    return 0


def _print_description(drafted: Description, out: Out) -> None:
    card = drafted.card
    out.heading(f"{card.title}  ({card.kind}, version {card.version})")
    out.line(f"{count(drafted.files, 'file')}, {format_size(drafted.size_bytes)}")
    out.line()
    shown = [key for key in card if key not in ("@context", "@type", "conformsTo", "contentDigest", *_IN_TABLES)]
    out.table(["property", "value", "from"], [[key, _shown(card, key), drafted.origins.get(key, "")] for key in shown])
    if card.files:
        out.line()
        rows = [
            [each.name, format_size(each.size_bytes) if each.size_bytes is not None else "", each.media_type]
            for each in card.files[:_SHOWN_FILES]
        ]
        out.table(["file", "size", "type"], rows)
        if len(card.files) > _SHOWN_FILES:
            out.line(f"and {len(card.files) - _SHOWN_FILES} more; use --json to list all")
    _print_columns(card, out)
    for note in drafted.notes:
        out.say(f"note: {note}")
    if drafted.questions:
        out.line()
        out.heading("Only the owner can say:")
        for question in drafted.questions:
            out.line(f"  {question.question}")
            out.line(f"    {question.command}")
    if drafted.written:
        out.say(f"wrote {drafted.written}")
    if drafted.added:
        out.say(f"added {drafted.added}")
    elif not drafted.written:
        command = f"fairmile catalog describe {shlex.quote(drafted.source)} --add"
        out.hint(f"nothing was written; `{command}` adds the card to your catalog")


def _shown(card: Card, key: str) -> str:
    texts = card.texts(key)
    text = one_line(", ".join(texts[:3]) + (" …" if len(texts) > 3 else ""))
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _print_columns(card: Card, out: Out) -> None:
    fields = [
        [records.get("name", ""), field.get("name", ""), field.get("dataType", ""), field.get("arrayShape", ""),
         field.get("unitText", "")]
        for records in as_list(card.get("recordSet"))
        for field in as_list(records.get("field"))
    ]  # fmt: skip
    if fields:
        out.line()
        out.table(["records", "field", "type", "shape", "unit"], fields[:_SHOWN_FILES])
    if len(fields) > _SHOWN_FILES:
        out.line(f"and {len(fields) - _SHOWN_FILES} more; use --json to list all")


@catalog.command(short_help="Change properties of a card, or create a new version.")
@click.argument("name")
@click.option("--set", "set_", multiple=True, metavar="KEY=VALUE", help="Set a property to text or JSON; repeatable.")
@click.option(
    "--add", "add_", multiple=True, metavar="KEY=VALUE", help="Append to a property, or complete an entry; repeatable."
)
@click.option("--unset", multiple=True, metavar="KEY", help="Remove a property; repeatable.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=_PATH,
    help="Add a file or folder with its size, sha256, format and columns; repeatable.",
)
@click.option("--address", default="", metavar="URL", help="URL for the files that have none.")
@_KIND
@DRY_RUN
@json_output(UpdatedCard)
def update(
    name: str,
    set_: tuple[str, ...],
    add_: tuple[str, ...],
    unset: tuple[str, ...],
    files: tuple[Path, ...],
    address: str,
    kind: str | None,
    dry_run: bool,
    out: Out,
) -> int:
    """Change properties of a card. A new version creates a new card linked to the old one.

    A card of another catalog is copied into yours and changed there; the copy takes precedence. Short forms of
    values: creator='NAME (ORCID)', variableMeasured='depth [m]', hyperparameters='lr=0.1, layers=3'.

    \b
    Examples:
      fairmile catalog update lake-temperatures --add creator='Josiah Carberry (0000-0002-1825-0097)'
      fairmile catalog update lake-temperatures --add keywords=limnology --set accessRights=public
      fairmile catalog update lake-temperatures --set version=1.1
    """
    if not (set_ or add_ or unset or files or address):
        raise UsageError("nothing to change", hint="--set KEY=VALUE, --add KEY=VALUE, --unset KEY or --file PATH")
    card = Workspace.open(on_progress=out.progress).catalog.update(
        name,
        set=properties("--set", set_),
        add=properties("--add", add_),
        unset=unset,
        files=files,
        address=address,
        kind=kind,
        dry_run=dry_run,
    )
    out.show(card, lambda each: out.data(each.to_dict()) if dry_run else out.line(f"updated  {each.handle}"))
    return 0


@catalog.command(short_help="Remove a card from your catalog; a tombstone remains.")
@click.argument("name")
@click.option("--reason", default="", metavar="TEXT", help="Reason to keep on the tombstone.")
@click.option("--successor", default="", metavar="NAME", help="Asset that supersedes this one.")
@_KIND
@DRY_RUN
@json_output(RemovedCard)
def rm(name: str, reason: str, successor: str, kind: str | None, dry_run: bool, out: Out) -> int:
    """Remove a card from your catalog. A tombstone remains, and the name stays reserved.

    \b
    Example:
      fairmile catalog rm lake-temperatures@1.0 --reason "sensor fault" --successor lake-temperatures@1.1
    """
    card = Workspace.open(on_progress=out.progress).catalog.remove(
        name, reason=reason, successor=successor, kind=kind, dry_run=dry_run
    )
    out.show(card, lambda each: out.line(f"{'would remove' if dry_run else 'removed '} {each.handle}"))
    return 0


@catalog.command()
@click.argument("name")
@_KIND
@json_output(Versions)
def versions(name: str, kind: str | None, out: Out) -> int:
    """List every version of an asset, newest first.

    \b
    Example:
      fairmile catalog versions model/cosmoflow
    """
    out.show(
        Workspace.open(on_progress=out.progress).catalog.versions(name, kind=kind),
        lambda rows: out.table(
            ["version", "state", "handle"], [[row.version, "removed" if row.gone else "", row.handle] for row in rows]
        ),
    )
    return 0


@catalog.command(short_help="Export an asset's description to another format.")
@click.argument("name")
@click.option(
    "--to",
    "format",
    cls=_FormatOption,
    registry=WRITERS,
    required=True,
    metavar="FORMAT",
    help="Format to write",
)
@click.option("-o", "--out", "target", type=_FOLDER, metavar="FOLDER", help="Write the files into this folder.")
@click.option("--replace", is_flag=True, help="Overwrite existing files that differ.")
@_KIND
@DRY_RUN
@json_output(ExportedDocuments)
def export(
    name: str, format: str, target: Path | None, replace: bool, kind: str | None, dry_run: bool, out: Out
) -> int:
    """Export an asset's description to another format: print it, or write it to a folder.

    \b
    Examples:
      fairmile catalog export dataset/mnist --to croissant
      fairmile catalog export model/cosmoflow --to rocrate -o crate
    """
    cards = Workspace.open(on_progress=out.progress).catalog
    documents = cards.export(name, format, target, kind=kind, replace=replace, dry_run=dry_run)
    out.show(documents, lambda each: _print_documents(each, out))
    return 0


def _print_documents(documents: ExportedDocuments, out: Out) -> None:
    for path in documents.paths:
        out.line(f"{'would write' if documents.dry_run else 'wrote   '} {path}")
    if documents.paths:
        return
    if len(documents) > 1:
        raise UsageError(f"{documents.format} consists of {len(documents)} files", hint="write them with -o FOLDER")
    for text in documents.values():
        out.document(text)


@catalog.command(short_help="Print size, digests and SWHID of files and folders.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@json_output(Contents)
def digest(paths: tuple[Path, ...], out: Out) -> int:
    """Print size, sha256, content digest and SWHID of files and folders, as cards use them.

    \b
    Example:
      fairmile catalog digest lake.jsonld
    """
    out.show(Workspace.open().catalog.measure_all(paths), lambda contents: _print_contents(contents, out))
    return 0


def _print_contents(contents: Contents, out: Out) -> None:
    for each in contents:
        fields = {key: value for key, value in each.to_dict().items() if key != "distribution"}
        for key, value in (*fields.items(), *(("sha256", entry["sha256"]) for entry in each.distribution)):
            out.line(f"{key:<14} {value}")


@catalog.command(short_help="Update the copies of sources.")
@click.argument("names", metavar="[SOURCE]...", nargs=-1)
@click.option("--allow-empty", is_flag=True, help="Accept a source without cards, and remove its earlier cards.")
@DRY_RUN
@json_output(SyncReports)
def sync(names: tuple[str, ...], allow_empty: bool, dry_run: bool, out: Out) -> int:
    """Update the copies of all sources, or of the given ones.

    Sources that fail are reported and keep their last copy; the others are updated.

    \b
    Example:
      fairmile catalog sync
    """
    reports = Workspace.open(on_progress=out.progress).catalog.sync(names, dry_run=dry_run, allow_empty=allow_empty)
    out.show(reports, lambda each: _print_reports(each, out))
    return 3 if any(report.error for report in reports) else 0


def _print_reports(reports: SyncReports, out: Out) -> None:
    for report in reports:
        _print_report(report, out, reports.dry_run)
    if not reports:
        out.say("there is no source to sync")
        out.hint("add one with `fairmile catalog source add NAME LOCATION`")


def _print_report(report: SyncReport, out: Out, dry_run: bool) -> None:
    if report.error:
        out.say(f"failed   {report.name}: {' '.join(report.error.split())}")
        return
    pinned = f" at {report.revision[:12]}" if report.revision else ""
    cards = count(report.cards, "card")
    done = "would sync" if dry_run else "synced  "
    out.line(f"{done} {report.name}{pinned}: {cards}, {report.changed} changed, {report.removed} removed")
    for problem in report.problems[:_SHOWN_PROBLEMS]:
        out.say(f"  skipped: {problem}")
    if len(report.problems) > _SHOWN_PROBLEMS:
        more = len(report.problems) - _SHOWN_PROBLEMS
        out.say(f"  and {more} more; list all with `fairmile catalog source ls --json`")


@catalog.command(short_help="Convert a data set to another format, and compare every value.")
@click.argument("name", metavar="FILE|NAME")
@click.option(
    "--to", required=True, metavar="FORMAT", help="Format to write: npy, hdf5, netcdf, zarr, tfrecord, parquet or csv."
)
@click.option("-o", "--out", "target", metavar="FILE", help="File to write.  [default: named after the source]")
@click.option("--file", default="", metavar="FILE", help="File of the asset to convert, if it has several.")
@click.option("--array", "arrays", multiple=True, metavar="NAME", help="Convert only this array or column; repeatable.")
@click.option("--lossy", is_flag=True, help="Round 64-bit floats where the format has only 32-bit ones.")
@click.option("--replace", is_flag=True, help="Overwrite an existing file.")
@DRY_RUN
@json_output(ConvertedData)
def convert(name: str, to: str, target: str | None, out: Out, **how: Any) -> int:
    """Convert a data set to another format, and compare every value.

    The file is read and written in blocks, so it may be larger than memory. The new file is read back; if a value
    differs, nothing is published. It gets a card that says what it was derived from.

    \b
    Examples:
      fairmile catalog convert tide.csv --to parquet
      fairmile catalog convert tide.csv --to zarr --array level --dry-run
    """
    converted = Workspace.open(on_progress=out.progress).datasets.convert(name, to, out=target, **how)
    out.show(converted, lambda each: _print_converted(each, out))
    return 0


def _print_converted(converted: ConvertedData, out: Out) -> None:
    for each in converted.arrays:
        stored = "" if each.stored_as == each.dtype else f" as {each.stored_as}"
        rounded = f", rounded by at most {each.largest_difference:.3g}" if each.largest_difference else ""
        out.line(f"  {each.name}: {'×'.join(map(str, each.shape)) or 'scalar'} {each.dtype}{stored}{rounded}")
    for note in converted.notes:
        out.say(note)
    out.line(f"{'would write' if converted.dry_run else 'wrote'} {converted.file}")
    if converted.card:
        out.line(f"every value reads back the same · {converted.card}")


@catalog.command()
@DRY_RUN
@json_output(Refresh)
def reindex(dry_run: bool, out: Out) -> int:
    """Rebuild the search index from the files.

    \b
    Example:
      fairmile catalog reindex
    """
    report = Workspace.open(on_progress=out.progress).catalog.reindex(dry_run=dry_run)
    out.show(report, lambda each: _print_refresh(each, out))
    return 4 if report.damaged else 0


def _print_refresh(report: Refresh, out: Out) -> None:
    out.line(f"{'would index' if report.dry_run else 'indexed '} {count(report.added, 'card')}")
    for path, why in report.damaged:
        out.say(f"  skipped: {path}: {why}")


@catalog.command(short_help="Write a catalog as a folder for a web server.")
@click.argument("target", metavar="FOLDER", type=_FOLDER)
@click.option("--catalog", "name", metavar="NAME", help="Catalog to publish.  [default: yours]")
@DRY_RUN
@json_output(Publication)
def publish(target: Path, name: str | None, dry_run: bool, out: Out) -> int:
    """Write a catalog as a folder that any web server can serve as a source.

    \b
    Example:
      fairmile catalog publish ./site
    """
    done = "would write" if dry_run else "wrote   "
    out.show(
        Workspace.open(on_progress=out.progress).catalog.publish(target, catalog=name, dry_run=dry_run),
        lambda each: out.line(f"{done} {count(each.cards, 'card')} and index.json to {target}"),
    )
    return 0


@catalog.group(cls=LazyGroup)
def source() -> None:
    """Add, list and remove sources: catalogs in a folder, a git repository or on the web."""


@source.command("add")
@click.argument("name")
@click.argument("location")
@click.option(
    "--type", "type_", type=click.Choice(["folder", "git", "web"]), help="Type of source.  [default: detected]"
)
@click.option("--revision", default="", metavar="REVISION", help="Git branch, tag or commit to pin.")
@DRY_RUN
@json_output(AddedSource)
def source_add(name: str, location: str, type_: str | None, revision: str, dry_run: bool, out: Out) -> int:
    """Add a source and copy its cards.

    LOCATION is a folder, a git repository, or a URL with an index.json.

    \b
    Example:
      fairmile catalog source add group ./shared-cards
    """
    cards = Workspace.open(on_progress=out.progress).catalog
    report = cards.add_source(name, location, type=type_, revision=revision, dry_run=dry_run)
    out.show(report, lambda each: _print_report(each, out, dry_run))
    return 0


@source.command("ls")
@json_output(Catalogs)
def source_ls(out: Out) -> int:
    """List the catalogs in order of precedence, with their state and name clashes."""
    catalogs = Workspace.open(on_progress=out.progress).catalog.catalogs()
    out.show(catalogs, lambda each: _print_catalogs(each, out))
    return 0


def _print_catalogs(catalogs: Catalogs, out: Out) -> None:
    print_catalog_table(catalogs, out)
    for each in catalogs:
        if error := each.get("error"):
            out.say(f"failed: {each['name']}: {' '.join(error.split())}")
        for clash in each["clashes"]:
            out.say(f"clash: {each['name']} describes {clash} differently from a catalog that takes precedence")


def print_catalog_table(catalogs: Sequence[CatalogDict], out: Out) -> None:
    """Print the catalogs in order of precedence, with their state."""
    rows = [
        [each["name"], each["type"], each["cards"], len(each["clashes"]), _state(each), each["location"]]
        for each in catalogs
    ]
    out.table(["catalog", "type", "cards", "clashes", "state", "location"], rows)


def _state(catalog: CatalogDict) -> str:
    if catalog.get("error"):
        return "failed"
    if "synced_at" not in catalog:
        return "ok"
    return f"synced {catalog['synced_at']}" if catalog["synced_at"] else "not synced yet"


@source.command("rm")
@click.argument("name")
@DRY_RUN
@json_output(SourceRemoval)
def source_rm(name: str, dry_run: bool, out: Out) -> int:
    """Remove a source and its copy.

    \b
    Example:
      fairmile catalog source rm group
    """
    out.show(
        Workspace.open(on_progress=out.progress).catalog.remove_source(name, dry_run=dry_run),
        lambda each: out.line(f"{'would remove' if dry_run else 'removed '} {each.name}"),
    )
    return 0
