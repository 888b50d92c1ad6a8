"""`fairmile store`: list, verify, repair and clean up stored data; manage pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from fairmile.base.units import format_size, parse_size, parse_time
from fairmile.catalog.fetched import Repairs
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output
from fairmile.store.cleanup import GcPlan, PoolPlan
from fairmile.store.declared import AddedPool, RemovedPool
from fairmile.store.exchange import Exchanged
from fairmile.store.pins import Pinned, Pins, Unpinned
from fairmile.store.pools import MeasuredPool, RankedPools
from fairmile.store.rows import NAME_COLUMNS, POOL_COLUMNS, USAGE_COLUMNS, day, name_rows, pool_rows, usage_rows
from fairmile.store.upkeep import PoolUsages, StoredNames, Verified
from fairmile.workspace import Workspace

T = TypeVar("T")

_SHOWN = 20


def _as(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str], T]:
    """Return a callback that parses the text of an option."""
    return lambda _context, _parameter, text: read(text)


@click.group(cls=LazyGroup)
def store() -> None:
    """Manage stored data: list, verify, repair, clean up, pin, pools.

    NAME is a name that `fairmile store ls` shows, or the end of one: mnist resolves
    to builtin/dataset/mnist@1.0.
    """


@store.command()
@json_output(StoredNames)
def ls(out: Out) -> int:
    """List fetched data with size, pool and completeness."""
    out.show(Workspace.open().store.ls(), lambda names: _print_names(names, out))
    return 0


def _print_names(names: StoredNames, out: Out) -> None:
    out.table(NAME_COLUMNS, name_rows(names), shrink=["name"])
    if not names:
        out.say("the store is empty")
        out.hint("`fairmile fetch NAME` downloads an asset")


@store.command()
@json_output(PoolUsages)
def du(out: Out) -> int:
    """Show the contents and free space of each pool."""
    out.show(Workspace.open().store.du(), lambda usages: _print_usages(usages, out))
    return 0


def _print_usages(usages: PoolUsages, out: Out) -> None:
    out.table(USAGE_COLUMNS, usage_rows(usages))
    for each in usages:
        if each.trouble:
            out.say(f"pool {each.pool}: {each.trouble}")


@store.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_output(Verified)
def verify(names: tuple[str, ...], out: Out) -> int:
    """Verify the checksums of all stored data, or of the given names.

    Damaged data is set aside and no longer used; the next fetch or
    `fairmile store repair` downloads it again. The exit code is then 4.

    \b
    Example:
      fairmile store verify lake-temperatures
    """
    report = Workspace.open().store.verify(names)
    out.show(report, lambda each: _print_verified(each, out))
    return 4 if report.damaged else 0


def _print_verified(report: Verified, out: Out) -> None:
    for each in report.damaged:
        needed = f"; needed by {', '.join(each.names)}" if each.names else ""
        aside = "" if each.put_aside else "; it could not be set aside"
        out.line(f"{out.colour('damaged', 'red')}    {each.path}: {each.reason}{needed}{aside}")
    for name in report.incomplete:
        out.line(f"incomplete {name}")
    verdict = f"{len(report.damaged):,} damaged" if report.damaged else "all intact"
    out.line(f"verified   {count(report.objects, 'object')}, {format_size(report.size_bytes)}: {verdict}")
    if report.incomplete or report.damaged:
        out.hint("`fairmile store repair` downloads what is missing")


@store.command()
@DRY_RUN
@json_output(Repairs)
def repair(dry_run: bool, out: Out) -> int:
    """Download again whatever is damaged or missing.

    \b
    Example:
      fairmile store repair --dry-run
    """
    repairs = Workspace.open(on_progress=out.progress).assets.repair(dry_run=dry_run)
    out.show(repairs, lambda each: _print_repairs(each, out))
    return 3 if any(each.failed for each in repairs) else 0


def _print_repairs(repairs: Repairs, out: Out) -> None:
    for each in repairs:
        out.line(f"{each.name}: {each.outcome}")
    if not repairs:
        out.line("nothing is missing")


@store.command()
@click.option(
    "--older-than",
    callback=_as(parse_time),
    default="30d",
    metavar="DURATION",
    help="Remove URLs not used for this long.  [default: 30d]",
)
@click.option(
    "--grace",
    callback=_as(parse_time),
    default="1d",
    metavar="DURATION",
    help="Keep data younger than this, and partial transfers for at least an hour.  [default: 1d]",
)
@DRY_RUN
@json_output(GcPlan)
def gc(older_than: float, grace: float, dry_run: bool, out: Out) -> int:
    """Remove data that no card, run or pin refers to.

    Keeps names that other users of a shared pool wrote. Safe to run during a fetch.

    \b
    Example:
      fairmile store gc --dry-run
    """
    assets = Workspace.open(on_progress=out.progress).assets
    plan = assets.gc(older_than_s=older_than, grace_s=grace, dry_run=dry_run)
    out.show(plan, lambda each: _print_plan(each, out))
    return 0


def _print_plan(plan: GcPlan, out: Out) -> None:
    verb = "would remove" if plan.dry_run else "removed"
    for each in plan.pools:
        if each.passed_over:
            out.say(f"pool {each.pool}: skipped: {each.passed_over}")
            continue
        for line in (*map(str, each.refs[:_SHOWN]), *each.leftovers[:_SHOWN]):
            out.line(f"{verb} {line}")
        out.line(f"pool {each.pool}: {_removals(each)}")
        if each.kept_leftovers:
            out.say(
                f"pool {each.pool}: kept {count(each.kept_leftovers, 'leftover')} "
                f"({format_size(each.kept_leftovers_bytes)}) younger than an hour: a transfer may be writing them"
            )
    out.line(f"{'would free' if plan.dry_run else 'freed'} {format_size(plan.size_bytes)}")


def _removals(plan: PoolPlan) -> str:
    objects = f"{count(plan.objects, 'object')} ({format_size(plan.objects_bytes)})"
    leftovers = f"{count(len(plan.leftovers), 'leftover')} ({format_size(plan.leftovers_bytes)})"
    numbers = [count(len(plan.refs), "name"), count(len(plan.trees), "tree"), objects, leftovers]
    return ", ".join([*numbers, count(plan.reservations, "dead reservation")])


@store.command()
@click.argument("name")
@click.option("--as", "label", metavar="LABEL", help="Label of the pin.  [default: the name]")
@DRY_RUN
@json_output(Pinned)
def pin(name: str, label: str | None, dry_run: bool, out: Out) -> int:
    """Keep the data of a name until it is unpinned, even if the name changes.

    \b
    Example:
      fairmile store pin lake-temperatures --as paper-2026
    """
    out.show(
        Workspace.open().store.pin(name, label, dry_run=dry_run),
        lambda pin: out.line(f"{'would pin' if dry_run else 'pinned  '} {pin.name}: {pin.details['of']}"),
    )
    return 0


@store.command()
@click.argument("label")
@DRY_RUN
@json_output(Unpinned)
def unpin(label: str, dry_run: bool, out: Out) -> int:
    """Remove a pin. Its data stays until the next gc.

    \b
    Example:
      fairmile store unpin paper-2026
    """
    out.show(
        Workspace.open().store.unpin(label, dry_run=dry_run),
        lambda each: out.line(f"{'would unpin' if dry_run else 'unpinned'} {each.label}"),
    )
    return 0


@store.command()
@json_output(Pins)
def pins(out: Out) -> int:
    """List the pins."""
    out.show(Workspace.open().store.pins(), lambda each: _print_pins(each, out))
    return 0


def _print_pins(pins: Pins, out: Out) -> None:
    rows = [[pin.name, pin.details["of"], format_size(pin.size_bytes), day(pin.created)] for pin in pins]
    out.table(["pin", "of", "size", "since"], rows)


@store.command()
@click.argument("name")
@click.argument("target")
@DRY_RUN
@json_output(Exchanged)
def push(name: str, target: str, dry_run: bool, out: Out) -> int:
    """Copy the data of a name to another pool folder.

    TARGET is a folder, for example on a removable disk, or user@host:/folder over
    ssh and rsync. Only missing data is copied, and it is verified there.

    \b
    Example:
      fairmile store push lake-temperatures ./usb-disk
    """
    out.show(
        Workspace.open().store.push(name, target, dry_run=dry_run), lambda done: _print_exchanged(done, "push", out)
    )
    return 0


@store.command()
@click.argument("name")
@click.argument("source")
@click.option("--pool", metavar="POOL", help="Pool to store into.  [default: the best one with enough space]")
@DRY_RUN
@json_output(Exchanged)
def pull(name: str, source: str, pool: str | None, dry_run: bool, out: Out) -> int:
    """Copy the data of a name from another pool folder into yours.

    SOURCE is a folder or user@host:/folder, as written by `fairmile store push`.

    \b
    Example:
      fairmile store pull lake-temperatures ./usb-disk
    """
    out.show(
        Workspace.open().store.pull(name, source, pool=pool, dry_run=dry_run),
        lambda done: _print_exchanged(done, "pull", out),
    )
    return 0


def _print_exchanged(done: Exchanged, verb: str, out: Out) -> None:
    action, moved = (f"would {verb}", "to move") if done.dry_run else (f"{verb}ed", "moved")
    objects = f"{count(done.moved_objects, 'object')}, {format_size(done.moved_bytes)} {moved}"
    out.line(f"{action:<8} {done.name}  {count(done.files, 'file')}  {format_size(done.size_bytes)}  ({objects})")


@store.group(cls=LazyGroup)
def pool() -> None:
    """List, add, remove and measure pools: the folders that hold stored data."""


@pool.command("ls")
@json_output(RankedPools)
def pool_ls(out: Out) -> int:
    """List the pools in the order in which the next fetch would use them."""
    out.show(
        Workspace.open().store.pools.ranked(),
        lambda pools: out.table(POOL_COLUMNS, pool_rows(pools), shrink=["why"]),
    )
    return 0


@pool.command("add")
@click.argument("name")
@click.argument("folder")
@click.option("--capacity", metavar="SIZE", help="Maximum size, such as '10 TB'.")
@click.option("--purge", metavar="DAYS", help="Time after which the system deletes files, such as '30 d'.")
@click.option("--speed", metavar="CLASS", help="Speed class until it is measured: fast, normal or slow.")
@click.option("--purpose", metavar="PURPOSE", help="Purpose: scratch, project or archive.")
@click.option("--pack", metavar="SIZE", help="Combine objects smaller than this into packs.")
@click.option(
    "--links",
    metavar="WAY,...",
    help="Ways to create files with --to, in order, such as symlink,copy.  [default: reflink,copy]",
)
@DRY_RUN
@json_output(AddedPool)
def pool_add(name: str, folder: str, links: str | None, dry_run: bool, out: Out, **given: str | None) -> int:
    """Declare a folder as a pool in your settings file.

    \b
    Example:
      fairmile store pool add scratch ./scratch --speed fast --purge '30 d'
    """
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if links:
        settings["links"] = links.split(",")

    def render(added: AddedPool) -> None:
        out.line(f"{'would add' if dry_run else 'added   '} {added.pool.name}: {added.pool.folder}")
        if added.replaces:
            replaced = "would take" if dry_run else "takes"
            out.say(f"note: it {replaced} the place of the default pool in {added.replaces}; data there is not used")
            out.hint(f"`fairmile store pool add NAME {added.replaces}` keeps that data in use")

    out.show(Workspace.open().store.add_pool(name, folder, dry_run=dry_run, **settings), render)
    return 0


@pool.command("rm")
@click.argument("name")
@DRY_RUN
@json_output(RemovedPool)
def pool_rm(name: str, dry_run: bool, out: Out) -> int:
    """Remove a pool from your settings file. Its folder and data stay.

    \b
    Example:
      fairmile store pool rm scratch
    """
    done = "would remove" if dry_run else "removed "
    out.show(
        Workspace.open().store.remove_pool(name, dry_run=dry_run),
        lambda each: out.line(f"{done} {each.pool.name}; its data stays in {each.pool.folder}"),
    )
    return 0


@pool.command("measure")
@click.argument("name")
@click.option(
    "--size",
    callback=_as(parse_size),
    default="256 MB",
    metavar="SIZE",
    help="Amount of data to write and read.  [default: 256 MB]",
)
@DRY_RUN
@json_output(MeasuredPool)
def pool_measure(name: str, size: int, dry_run: bool, out: Out) -> int:
    """Measure the speed of a pool. `fetch` then ranks pools by measured speed.

    \b
    Example:
      fairmile store pool measure home --size '4 MB'
    """
    out.show(Workspace.open().store.measure_pool(name, size, dry_run=dry_run), lambda each: _print_measured(each, out))
    return 0


def _print_measured(measured: MeasuredPool, out: Out) -> None:
    speed = measured.speed
    if speed is None:
        out.line(f"would write and read {format_size(measured.size_bytes)} in {measured.pool.folder}")
        return
    out.items(
        [
            ("writes", f"{format_size(round(speed.write_bytes_per_s))}/s"),
            ("reads", f"{format_size(round(speed.read_bytes_per_s))}/s from {speed.read_from}"),
            ("creates", f"{speed.creates_per_s:,.0f} small files/s"),
            ("measured", f"{speed.measured} on {speed.host}: {speed.method}"),
        ]
    )
