"""`fairmile store`: look after the bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from fairmile.base.units import format_size, parse_duration, parse_size
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, count, json_option
from fairmile.store.cleanup import GcPlan, PoolPlan
from fairmile.store.declared import declare_pool, forget_pool
from fairmile.store.exchange import Exchanged
from fairmile.store.pools import Pool, Ranked, Speed
from fairmile.store.refs import Ref
from fairmile.store.upkeep import Listed, Usage, Verified
from fairmile.workspace import Workspace

T = TypeVar("T")

_SHOWN = 20


def _as(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str], T]:
    """Return what turns the text of an option into a size or a duration."""
    return lambda _context, _parameter, text: read(text)


_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")


@click.group(cls=LazyGroup)
def store() -> None:
    """Look after the bytes: list, verify, repair, clean up, pin, pools.

    NAME is a name that `fairmile store ls` shows, or the end of one: mnist stands
    for builtin/dataset/mnist@1.0.
    """


@store.command()
@json_option
def ls(out: Out) -> int:
    """List what was fetched: name, size, pool, whether all of it is there."""
    rows = Workspace.open().store.ls()
    if out.as_json:
        out.data({"names": [dataclasses.asdict(row) for row in rows]})
        return 0
    columns = ["kind", "name", "files", "size", "pool", "state", "last use"]
    out.table(columns, [_listed(row) for row in rows], shrink=["name"])
    if not rows:
        out.say("nothing was fetched yet")
        out.hint("`fairmile fetch NAME` brings an asset")
    return 0


def _listed(row: Listed) -> list[str]:
    state = "complete" if row.complete else "incomplete"
    return [row.kind, row.name, f"{row.files:,}", format_size(row.size_bytes), row.pool, state, _day(row.used)]


def _day(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")


@store.command()
@json_option
def du(out: Out) -> int:
    """Show what each pool holds and how much room it has."""
    rows = Workspace.open().store.du()
    if out.as_json:
        out.data({"pools": [dataclasses.asdict(row) for row in rows]})
        return 0
    columns = ["pool", "objects", "size", "packed", "shared", "damaged", "incoming", "reserved", "free", "folder"]
    out.table(columns, [_usage(row) for row in rows])
    for row in rows:
        if row.trouble:
            out.say(f"pool {row.pool}: {row.trouble}")
    return 0


def _usage(row: Usage) -> list[str]:
    sizes = (row.packed_bytes, row.shared_bytes, row.damaged_bytes, row.incoming_bytes, row.reserved_bytes)
    free = "unknown" if row.free_bytes is None else format_size(row.free_bytes)
    return [row.pool, f"{row.objects:,}", format_size(row.objects_bytes), *map(format_size, sizes), free, row.folder]


@store.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_option
def verify(names: tuple[str, ...], out: Out) -> int:
    """Read every byte again, of all that is there or of what is named.

    What is damaged is put aside and never served again; the next fetch, or
    `fairmile store repair`, brings it anew. The exit code is then 4.

    \b
    Example:
      fairmile store verify lake-temperatures
    """
    report = Workspace.open().store.verify(names)
    if out.as_json:
        out.data(dataclasses.asdict(report))
    else:
        _render_verified(report, out)
    return 4 if report.damaged else 0


def _render_verified(report: Verified, out: Out) -> None:
    for each in report.damaged:
        needed = f"; needed by {', '.join(each.names)}" if each.names else ""
        aside = "" if each.put_aside else "; it could not be put aside"
        out.line(f"{out.colour('damaged', 'red')}    {each.path}: {each.reason}{needed}{aside}")
    for name in report.incomplete:
        out.line(f"incomplete {name}")
    found = f"{len(report.damaged):,} damaged" if report.damaged else "all as they were stored"
    out.line(f"verified   {count(report.objects, 'object')}, {format_size(report.size_bytes)}: {found}")
    if report.incomplete or report.damaged:
        out.hint("`fairmile store repair` brings again what is missing")


@store.command()
@_DRY_RUN
@json_option
def repair(dry_run: bool, out: Out) -> int:
    """Bring again what is damaged or missing of everything that was fetched.

    \b
    Example:
      fairmile store repair --dry-run
    """
    outcome = Workspace.open(on_progress=out.progress).assets.repair(dry_run=dry_run)
    if out.as_json:
        out.data({"names": [{"name": name, "outcome": told} for name, told in outcome], "dry_run": dry_run})
    else:
        for name, told in outcome:
            out.line(f"{name}: {told}")
        if not outcome:
            out.line("nothing is missing")
    return 3 if any(told.startswith("failed") for _, told in outcome) else 0


@store.command()
@click.option(
    "--older-than",
    callback=_as(parse_duration),
    default="30d",
    metavar="DURATION",
    help="Drop addresses not used for so long (30d).",
)
@click.option(
    "--grace",
    callback=_as(parse_duration),
    default="1d",
    metavar="DURATION",
    help="Leave alone what is younger (1d); half-done transfers for an hour at least.",
)
@_DRY_RUN
@json_option
def gc(older_than: float, grace: float, dry_run: bool, out: Out) -> int:
    """Remove what no card, run or pin refers to any more.

    Names that other users of a shared pool wrote are kept. It is safe beside a
    fetch under way.

    \b
    Example:
      fairmile store gc --dry-run
    """
    workspace = Workspace.open(on_progress=out.progress)
    keep = workspace.assets.is_referred
    plan = workspace.store.gc(keep, older_than_s=older_than, grace_s=grace, dry_run=dry_run)
    if out.as_json:
        out.data({**dataclasses.asdict(plan), "size_bytes": plan.size_bytes})
    else:
        _render_plan(plan, out)
    return 0


def _render_plan(plan: GcPlan, out: Out) -> None:
    verb = "would remove" if plan.dry_run else "removed"
    for each in plan.pools:
        if each.passed_over:
            out.say(f"pool {each.pool}: passed over: {each.passed_over}")
            continue
        for line in (*map(str, each.refs[:_SHOWN]), *each.leftovers[:_SHOWN]):
            out.line(f"{verb} {line}")
        out.line(f"pool {each.pool}: {_summary(each)}")
        if each.kept_leftovers:
            out.say(
                f"pool {each.pool}: kept {count(each.kept_leftovers, 'leftover')} "
                f"({format_size(each.kept_leftovers_bytes)}) younger than an hour: a transfer may be writing them"
            )
    out.line(f"{'would give' if plan.dry_run else 'gave'} back {format_size(plan.size_bytes)}")


def _summary(plan: PoolPlan) -> str:
    objects = f"{count(plan.objects, 'object')} ({format_size(plan.objects_bytes)})"
    leftovers = f"{count(len(plan.leftovers), 'leftover')} ({format_size(plan.leftovers_bytes)})"
    numbers = [count(len(plan.refs), "name"), count(len(plan.trees), "tree"), objects, leftovers]
    return ", ".join([*numbers, count(plan.reservations, "dead reservation")])


@store.command()
@click.argument("name")
@click.option("--as", "label", metavar="LABEL", help="What to call the pin; the name unless given.")
@_DRY_RUN
@json_option
def pin(name: str, label: str | None, dry_run: bool, out: Out) -> int:
    """Keep what a name stands for, whatever becomes of the name.

    \b
    Example:
      fairmile store pin lake-temperatures --as paper-2026
    """
    pinned = Workspace.open().store.pin(name, label, dry_run=dry_run)
    if out.as_json:
        out.data({"pin": _pinned(pinned), "dry_run": dry_run})
    else:
        out.line(f"{'would pin' if dry_run else 'pinned  '} {pinned.name}: {pinned.details['of']}")
    return 0


def _pinned(ref: Ref) -> dict[str, Any]:
    return {"label": ref.name, "of": ref.details["of"], "root": ref.root, "size_bytes": ref.size_bytes}


@store.command()
@click.argument("label")
@_DRY_RUN
@json_option
def unpin(label: str, dry_run: bool, out: Out) -> int:
    """Take a pin away; its bytes stay until the next gc.

    \b
    Example:
      fairmile store unpin paper-2026
    """
    Workspace.open().store.unpin(label, dry_run=dry_run)
    if out.as_json:
        out.data({"unpinned": label, "dry_run": dry_run})
    else:
        out.line(f"{'would unpin' if dry_run else 'unpinned'} {label}")
    return 0


@store.command()
@json_option
def pins(out: Out) -> int:
    """List the pins."""
    found = Workspace.open().store.refs("pin")
    if out.as_json:
        out.data({"pins": [_pinned(ref) for ref in found]})
    else:
        rows = [[ref.name, ref.details["of"], format_size(ref.size_bytes), _day(ref.created)] for ref in found]
        out.table(["pin", "of", "size", "since"], rows)
    return 0


@store.command()
@click.argument("name")
@click.argument("target")
@_DRY_RUN
@json_option
def push(name: str, target: str, dry_run: bool, out: Out) -> int:
    """Bring what a name stands for to another pool folder.

    TARGET is a folder, on a disk to carry away perhaps, or user@host:/folder over
    ssh and rsync. Only what is missing there moves; it is verified there.

    \b
    Example:
      fairmile store push lake-temperatures ./usb-disk
    """
    _render_exchanged(Workspace.open().store.push(name, target, dry_run=dry_run), "push", out)
    return 0


@store.command()
@click.argument("name")
@click.argument("source")
@click.option("--pool", metavar="POOL", help="Store into this pool; else the best one with room.")
@_DRY_RUN
@json_option
def pull(name: str, source: str, pool: str | None, dry_run: bool, out: Out) -> int:
    """Bring what a name stands for in another pool folder into yours.

    SOURCE is a folder or user@host:/folder, as `fairmile store push` fills them.

    \b
    Example:
      fairmile store pull lake-temperatures ./usb-disk
    """
    _render_exchanged(Workspace.open().store.pull(name, source, pool=pool, dry_run=dry_run), "pull", out)
    return 0


def _render_exchanged(done: Exchanged, verb: str, out: Out) -> None:
    if out.as_json:
        out.data(dataclasses.asdict(done))
        return
    told = f"would {verb}" if done.dry_run else f"{verb}ed"
    moved = f"{count(done.moved_objects, 'object')}, {format_size(done.moved_bytes)} to move"
    was = moved if done.dry_run else moved.replace(" to move", " moved")
    out.line(f"{told:<8} {done.name}  {count(done.files, 'file')}  {format_size(done.size_bytes)}  ({was})")


@store.group(cls=LazyGroup)
def pool() -> None:
    """List, add, remove and measure pools: the folders that hold the bytes."""


@pool.command("ls")
@json_option
def pool_ls(out: Out) -> int:
    """List the pools, the one that the next fetch would use first."""
    found = Workspace.open().store.pools.ranked()
    if out.as_json:
        out.data({"pools": [_ranked(each) for each in found]})
        return 0
    columns = ["pool", "speed", "purpose", "free", "limited by", "folder", "why"]
    out.table(columns, [_rank_row(each) for each in found], shrink=["why"])
    return 0


def _rank_row(each: Ranked) -> list[str]:
    free, limit = (format_size(each.space.free_bytes), each.space.limited_by) if each.space else ("unknown", "")
    why = each.trouble or each.why
    return [each.pool.name, each.speed_class, each.pool.purpose, free, limit, str(each.pool.folder), why]


def _ranked(each: Ranked) -> dict[str, Any]:
    return {**dataclasses.asdict(each), "pool": _pool(each.pool)}


def _pool(pool: Pool) -> dict[str, Any]:
    return {**dataclasses.asdict(pool), "folder": str(pool.folder)}


@pool.command("add")
@click.argument("name")
@click.argument("folder")
@click.option("--capacity", metavar="SIZE", help="Use at most so much, as in '10 TB'.")
@click.option("--purge", metavar="DAYS", help="Files are removed by the system after so long, as in '30 d'.")
@click.option("--speed", metavar="CLASS", help="fast, normal or slow, until it is measured.")
@click.option("--purpose", metavar="PURPOSE", help="scratch, project or archive.")
@click.option("--pack", metavar="SIZE", help="Keep objects smaller than this together in packs.")
@click.option("--links", metavar="WAY,...", help="How to lay files out: reflink,hardlink,symlink,copy.")
@_DRY_RUN
@json_option
def pool_add(name: str, folder: str, links: str | None, dry_run: bool, out: Out, **given: str | None) -> int:
    """Declare a folder as a pool, in your settings file.

    \b
    Example:
      fairmile store pool add scratch ./scratch --speed fast --purge '30 d'
    """
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if links:
        settings["links"] = links.split(",")
    workspace = Workspace.open()
    added = declare_pool(
        workspace.user_file,
        workspace.store.pools,
        name,
        {"folder": folder, **settings},
        environ=workspace.environ,
        dry_run=dry_run,
    )
    if out.as_json:
        out.data({"pool": _pool(added), "dry_run": dry_run})
    else:
        out.line(f"{'would add' if dry_run else 'added   '} {added.name}: {added.folder}")
    return 0


@pool.command("rm")
@click.argument("name")
@_DRY_RUN
@json_option
def pool_rm(name: str, dry_run: bool, out: Out) -> int:
    """Take a pool out of your settings file; its folder stays.

    \b
    Example:
      fairmile store pool rm scratch
    """
    workspace = Workspace.open()
    gone = forget_pool(workspace.user_file, workspace.store.pools, name, dry_run=dry_run)
    if out.as_json:
        out.data({"removed": name, "folder": str(gone.folder), "dry_run": dry_run})
    else:
        out.line(f"{'would remove' if dry_run else 'removed '} {name}; its bytes stay in {gone.folder}")
    return 0


@pool.command("measure")
@click.argument("name")
@click.option(
    "--size", callback=_as(parse_size), default="256 MB", metavar="SIZE", help="Write and read so much (256 MB)."
)
@_DRY_RUN
@json_option
def pool_measure(name: str, size: int, dry_run: bool, out: Out) -> int:
    """Measure how fast a pool is; `fetch` then ranks pools by what was found.

    \b
    Example:
      fairmile store pool measure home --size '4 MB'
    """
    pools = Workspace.open().store.pools
    speed = None if dry_run else pools.measure(pools[name], size)
    if out.as_json:
        out.data({"pool": name, "speed": dataclasses.asdict(speed) if speed else None, "dry_run": dry_run})
    elif speed is None:
        out.line(f"would write and read {format_size(size)} in {pools[name].folder}")
    else:
        out.items(_speed(speed))
    return 0


def _speed(speed: Speed) -> list[tuple[str, str]]:
    return [
        ("writes", f"{format_size(round(speed.write_bytes_per_s))}/s"),
        ("reads", f"{format_size(round(speed.read_bytes_per_s))}/s from {speed.read_from}"),
        ("creates", f"{speed.creates_per_s:,.0f} small files/s"),
        ("measured", f"{speed.measured} on {speed.host}: {speed.method}"),
    ]
