"""`fairmile benchmark`: which benchmarks there are, a new one, and measuring what runs depend on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from fairmile.base.commands import Here
from fairmile.base.errors import UsageError
from fairmile.base.files import write_atomic
from fairmile.base.units import format_duration, format_size, parse_duration, parse_size
from fairmile.benchmarks import storage as storages
from fairmile.benchmarks.benchmarks import KINDS, Benchmark
from fairmile.benchmarks.stages import planned_steps, run_stages
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, count, json_option, one_line
from fairmile.costs.collectives.measure import ModelComparison, measure_collectives, plan_collectives, write_measured
from fairmile.costs.collectives.ranks import BACKENDS
from fairmile.runs.record.run import Run
from fairmile.runs.targets import parse_params
from fairmile.store.quota import Quotas
from fairmile.workspace import Workspace

_POOR_FIT = 0.2  # of the measured time, from which a model is told to be off
_SHOWN = {
    "write": "seq_write_bytes_per_s",
    "read": "seq_read_bytes_per_s",
    "4K reads": "random_read_per_s",
    "4K writes": "random_write_per_s",
    "fsync": "fsync_median_s",
    "creates": "file_create_per_s",
    "stats": "file_stat_per_s",
    "small reads": "file_read_per_s",
    "deletes": "file_delete_per_s",
}


@click.group(cls=LazyGroup)
def benchmark() -> None:
    """Know the benchmarks, begin your own, and measure what runs depend on.

    `fairmile run NAME` runs one.
    """


@benchmark.command("ls")
@json_option
def list_benchmarks(out: Out) -> None:
    """List the benchmarks: those whose program comes along first.

    \b
    Examples:
      fairmile benchmark ls
      fairmile benchmark ls --json
    """
    found = Workspace.open().benchmarks.ls()
    if out.as_json:
        out.data({"benchmarks": [_facts(each) for each in found]})
        return
    rows = [
        (
            each.name,
            each.rule.get("domain", ""),
            each.rule.get("metric", ""),
            _figure(each.rule.get("target")),
            "here" if each.folder else "its own program",
            each.card.text("description").partition(". ")[0].partition(": ")[0],
        )
        for each in found
    ]
    out.table(("name", "domain", "metric", "target", "runs", "about"), rows)


@benchmark.command()
@click.argument("name", metavar="NAME|FOLDER")
@json_option
def show(out: Out, name: str) -> None:
    """Tell what a benchmark measures, what is known of it, and what can be set.

    \b
    Examples:
      fairmile benchmark show earthquake
      fairmile benchmark show cosmoflow --json
    """
    found = Workspace.open().benchmarks.get(name)
    parameters = found.parameters()
    schema = found.schema()
    if out.as_json:
        data = {what: [vars(field) for field in fields] for what, fields in schema.items()}
        out.data({**_facts(found), "parameters": [vars(each) for each in parameters], "schema": data})
        return
    out.line(f"{found.name}: {found.card.text('name')} {found.card.handle.version}")
    out.line()
    out.item("", found.card.text("description"))
    out.line()
    rule = found.rule
    facts = [
        ("metric", f"{rule.get('metric', '')}, {rule.get('direction', '')} is better"),
        ("rule", rule.get("rule", "")),
    ]
    facts += [("run", f"fairmile run {name}"), ("folder", str(found.folder or ""))]
    out.items([(label, str(text)) for label, text in facts if text])
    known = [
        (each.get("name", ""), each.get("metric", ""), each.get("value", ""), each.get("source", ""))
        for each in found.baselines
    ]
    known += [
        (
            each.get("description") or each.get("name", ""),
            each.get("propertyID", ""),
            each.get("value", ""),
            each.get("citation", ""),
        )
        for each in found.published
    ]
    if known:
        out.line()
        out.table(("known result", "metric", "value", "source"), [tuple(map(str, row)) for row in known])
    for what, fields in schema.items():
        out.line()
        out.line(f"data: {what}")
        out.table(("field", "form", "unit", "meaning"), [(e.name, e.form, e.unit, e.meaning) for e in fields])
    if parameters:
        out.line()
        out.table(
            ("parameter", "default", "meaning"),
            [(each.name, _shown(each.default), each.meaning) for each in parameters],
        )


@benchmark.command()
@click.argument("name")
@click.option("--to", "folder", default=".", metavar="DIR", type=click.Path(path_type=Path), help="Below which folder.")
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], help="What it runs.  [default: learning]")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@json_option
def new(out: Out, name: str, folder: Path, kind: str, dry_run: bool) -> None:
    """Begin a benchmark of your own: a folder that runs as it is.

    `learning` is a model in PyTorch that the harness trains; `program` is any program
    that tells its figures.

    \b
    Examples:
      fairmile benchmark new tides
      fairmile benchmark new lake --kind program --dry-run
    """
    files = Workspace.open().benchmarks.new(name, folder, kind=kind, dry_run=dry_run)
    if out.as_json:
        out.data({"folder": str(folder / name), "files": [str(each) for each in files], "dry_run": dry_run})
        return
    for each in files:
        out.line(f"{'would write' if dry_run else 'wrote'}  {each}")
    if not dry_run:
        place = folder / name if folder.is_absolute() else f"./{folder / name}"
        out.hint(f"`fairmile run {place}` runs it; its README tells where to go on")


@benchmark.command()
@click.argument("name", metavar="NAME|FOLDER")
@click.argument("steps", nargs=-1, metavar="[STEP...]")
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="A parameter of the benchmark.")
@click.option("--seed", type=int, help="Fills FAIRMILE_SEED of each run.")
@click.option("--again", is_flag=True, help="Run even where the same inputs gave a result before.")
@click.option("--dry-run", is_flag=True, help="Say which steps would run; run nothing.")
@json_option
def stages(out: Out, name: str, steps: tuple[str, ...], params: tuple[str, ...], dry_run: bool, **given: Any) -> None:
    """Run a benchmark step by step: each is a run, given what those before it left.

    With STEPs it goes as far as those. Called again it goes on where it stopped.

    \b
    Examples:
      fairmile benchmark stages miniweather --dry-run
      fairmile benchmark stages miniweather simulate -p nx=32 -p nz=16 -p storm_s=60
    """
    if dry_run:
        planned = planned_steps(name, steps)
        out.data({"steps": planned, "dry_run": True}) if out.as_json else out.line("\n".join(planned))
        return
    echo = sys.stderr.buffer if out.as_json else sys.stdout.buffer
    runs = Workspace.open().runs
    found = run_stages(runs, name, steps, params=parse_params(params), echo=echo, on_stage=_stage(out), **given)
    if out.as_json:
        out.data({"group": found[0].group, "runs": [dict(run.document) for run in found]})
    else:
        out.hint(f"`fairmile compare {found[0].group}` shows them side by side")


def _stage(out: Out) -> Callable[[str, Run], None]:
    def tell(step: str, run: Run) -> None:
        took = f" in {format_duration(run.elapsed_s)}" if run.elapsed_s is not None else ""
        out.say(f"{step}: run {run.id} {run.state}{took}")

    return tell


def _facts(found: Benchmark) -> dict[str, Any]:
    known = {"baselines": found.baselines, "published": found.published}
    where = {"handle": str(found.card.handle), "folder": str(found.folder) if found.folder else None}
    return {**found.rule, "name": found.name, **where, "about": found.card.text("description"), **known}


def _figure(value: Any) -> str:
    """Return a number of a card in a few digits, and anything else as it is said there."""
    return f"{value:g}" if isinstance(value, int | float) else str(value or "")


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)


def _size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    return None if value is None else parse_size(value)


@benchmark.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option(
    "--size", callback=_size, metavar="SIZE", help="Of the large file.  [default: 1 GB, less where room is short]"
)
@click.option("--need", callback=_size, metavar="SIZE", default="0", help="How much data the run has: must fit.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured; write nothing.")
@json_option
def storage(out: Out, paths: tuple[Path, ...], size: int | None, need: int, dry_run: bool) -> int:
    """Measure folders and say which one a run should keep its data in.

    Large files from end to end and at random, small files, and how long the disk takes
    to make a write safe. The result is a run; everything that is written is removed.

    \b
    Examples:
      fairmile benchmark storage . /dev/shm --size '4 MB'
      fairmile benchmark storage . --need '1 GB' --dry-run
    """
    workspace = Workspace.open()
    places = storages.plan(
        paths,
        size_bytes=size,
        purged={
            str(pool.folder): f"purged after {pool.purge_days} days"
            for pool in workspace.store.pools
            if pool.purge_days
        },
        quotas=Quotas(Here()),
        environ=workspace.environ,
    )
    if dry_run:
        _tell_plan(out, places)
        return 0
    params = {"paths": " ".join(place.path for place in places), "size_bytes": size}
    with (
        _cleaned_up(),
        workspace.runs.recording("storage", params=params, metrics=storages.metric_specs(places)) as run,
    ):
        report = storages.evaluate(places, need_bytes=need, on_step=_Line().show)
        run.log(**report.metrics())
        write_atomic(run.folder / storages.FILE, report.text())
    _tell(out, report, run.id)
    return 3 if any(each.problem for each in report.measured) else 0


@benchmark.command()
@click.option(
    "--backend", type=click.Choice(BACKENDS), default="gloo", show_default=True, help="What the ranks talk by."
)
@click.option("--ranks", default="2", show_default=True, metavar="COUNTS", help="Ranks on this machine, as 2,4.")
@click.option(
    "--sizes", default="", metavar="SIZES", help="Bytes of each rank, as 1KiB,1MiB.  [default: 4 B to 64 MiB]"
)
@click.option("--collectives", "named", default="", metavar="NAMES", help="Only these, as all_reduce,broadcast.")
@click.option("--for", "lasting", default="300ms", show_default=True, metavar="TIME", help="How long for each size.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Keep points and fits in this file.")
@click.option("--dry-run", is_flag=True, help="Say which commands would run; measure nothing.")
@json_option
def collectives(out: Out, backend: str, ranks: str, sizes: str, named: str, dry_run: bool, **options: Any) -> None:
    """Measure collectives between ranks and set a model beside them.

    With torch over gloo or NCCL, or with MPI. The fit tells latency and bandwidth, and which algorithm's
    formula explains the times best.

    \b
    Examples:
      fairmile benchmark collectives --sizes 1KiB,64KiB,1MiB --for 20ms --collectives all_reduce
      fairmile benchmark collectives --backend mpi --ranks 2,4 --dry-run
    """
    counts = _counts(ranks)
    asked: dict[str, Any] = {
        "sizes": _words(sizes),
        "collectives": _words(named),
        "seconds": parse_duration(options["lasting"]),
    }
    if dry_run:
        out.data({"commands": [" ".join(each) for each in plan_collectives(backend, counts, **asked)]})
        return
    found = measure_collectives(backend, counts, **asked)
    if options["output"] is not None:
        write_measured(options["output"], found)
    if out.as_json:
        out.data(found.document())
        return
    rows = [
        (
            each.collective.replace("_", " "),
            each.ranks,
            format_size(round(each.size_bytes)),
            format_duration(each.measured_s),
            f"{each.bus_bytes_per_s / 1e9:.3g} GB/s",
            format_duration(each.model_s),
            f"{each.error:+.1%}",
            each.algorithm,
        )
        for each in found.compared()
    ]
    out.table(("collective", "ranks", "size", "measured", "bus", "model", "error", "like"), rows)
    _tell_poor_fits(out, found.compared())
    for name, reason in found.left_out.items():
        out.say(f"note: {name} was left out: {reason}")


def _tell_poor_fits(out: Out, compared: Sequence[ModelComparison]) -> None:
    """Say where the model is far from what was measured."""
    worst: dict[str, ModelComparison] = {}
    for each in compared:
        known = worst.get(each.collective)
        if abs(each.error) > max(_POOR_FIT, abs(known.error) if known else 0.0):
            worst[each.collective] = each
    for name, each in worst.items():
        out.say(
            f"note: the model of {name.replace('_', ' ')} is off by up to {each.error:+.0%} "
            f"({format_size(round(each.size_bytes))}, {count(each.ranks, 'rank')}): there trust the measured times; "
            "a longer --for on a quiet machine and more sizes make a better fit"
        )


def _counts(text: str) -> list[int]:
    for each in _words(text):
        if not each.isdecimal():
            raise UsageError(f"--ranks: {each!r} is no number", hint="write 2,4")
    return [int(each) for each in _words(text)]


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _tell_plan(out: Out, places: tuple[storages.StorageFolder, ...]) -> None:
    if out.as_json:
        out.data({"would_measure": [place.document() for place in places], "dry_run": True})
        return
    rows = [(p.path, p.kind, format_size(p.free_bytes), format_size(p.size_bytes), p.lifetime) for p in places]
    out.table(("FOLDER", "KIND", "FREE", "WOULD WRITE", "FILES THERE"), rows)
    out.say(f"at most {format_duration(storages.LONGEST_S * len(places))}")


def _tell(out: Out, report: storages.StorageReport, run: str) -> None:
    if out.as_json:
        out.data({"run": run, **report.document()})
        return
    good = [each for each in report.measured if not each.problem]
    rows = [
        (each.place.path, each.place.kind, *(storages.rate_words(name, each.values[name]) for name in _SHOWN.values()))
        for each in good
    ]
    out.table(("FOLDER", "KIND", *(heading.upper() for heading in _SHOWN)), rows)
    methods: dict[str, list[str]] = {}
    for each in good:
        methods.setdefault(each.method, []).append(each.place.path)
    for method, folders in methods.items():
        out.line()
        out.item(f"{', '.join(folders) if len(methods) > 1 else 'how'}: ", method)
    out.line()
    out.items([(advice.use, advice.why) for advice in report.advice])
    for each in report.measured:
        if each.problem:
            out.say(f"error: {each.problem}")
    out.hint(f"`fairmile runs show {run}` keeps the figures")


class _Line:
    """Shows on a terminal what is being done."""

    def __init__(self) -> None:
        self._sees = sys.stderr.isatty()

    def show(self, place: storages.StorageFolder, step: str) -> None:
        if self._sees:
            sys.stderr.write(f"\r\033[K{one_line(f'{place.path}: {step}')}" if step else "\r\033[K")
            sys.stderr.flush()


@contextmanager
def _cleaned_up() -> Iterator[None]:
    """Let a batch system's signal end the block like an interruption, so that its files are removed."""

    def end(_: int, __: FrameType | None) -> Any:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
