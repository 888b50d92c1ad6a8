"""`fairmile benchmark`: list and create benchmarks, and measure storage and collectives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import UsageError
from fairmile.base.signals import asked_to_end
from fairmile.base.units import format_duration, format_size, parse_size, parse_time
from fairmile.benchmarks.benchmarks import KINDS, BenchmarkDetails, BenchmarkList
from fairmile.benchmarks.results import NewBenchmark, StagePlan, StageRuns
from fairmile.benchmarks.storage import (
    LONGEST_S,
    StorageFolder,
    StoragePlan,
    StorageRun,
    rate_words,
)
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.main import Entry
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output, one_line
from fairmile.costs.collectives.measure import MeasuredBackend, ModelComparison
from fairmile.costs.collectives.ranks import BACKENDS
from fairmile.costs.collectives.results import MeasurementPlan
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import parse_params
from fairmile.workspace import Workspace

_ENTRIES = {
    "compare": Entry("fairmile.cli.benchmark_compare", "compare", "Show the results of all benchmarks in one table."),
    "ensemble": Entry("fairmile.cli.benchmark_ensemble", "ensemble", "Join runs, and judge their uncertainty."),
    "loaders": Entry("fairmile.cli.benchmark_loaders", "loaders", "Measure ways to feed a training with data."),
    "submit": Entry("fairmile.cli.benchmark_submit", "submit", "Make a submission from runs, and check it."),
}
_POOR_FIT = 0.2  # of the measured time, from which a warning says that the model is off
_COLUMNS = {
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


@click.group(cls=LazyGroup, entries=_ENTRIES)
def benchmark() -> None:
    """List, create, compare and submit benchmarks, and measure storage and collectives.

    `fairmile run NAME` runs a benchmark.
    """


@benchmark.command("ls")
@json_output(BenchmarkList)
def list_benchmarks(out: Out) -> None:
    """List benchmarks, built-in ones first.

    \b
    Examples:
      fairmile benchmark ls
      fairmile benchmark ls --json
    """
    out.show(Workspace.open().benchmarks.ls(), lambda benchmarks: _print_benchmarks(out, benchmarks))


def _print_benchmarks(out: Out, benchmarks: BenchmarkList) -> None:
    rows = [
        (
            each.name,
            each.rule.get("domain", ""),
            each.rule.get("metric", ""),
            _number_text(each.rule.get("target")),
            "here" if each.folder else "its own program",
            each.card.text("description").partition(". ")[0].partition(": ")[0],
        )
        for each in benchmarks
    ]
    out.table(("name", "domain", "metric", "target", "runs", "about"), rows)


@benchmark.command()
@click.argument("name", metavar="NAME|FOLDER")
@json_output(BenchmarkDetails)
def show(out: Out, name: str) -> None:
    """Show the metric, known results, data and parameters of a benchmark.

    \b
    Examples:
      fairmile benchmark show earthquake
      fairmile benchmark show cosmoflow --json
    """
    out.show(Workspace.open().benchmarks.show(name), lambda details: _print_details(out, name, details))


def _print_details(out: Out, name: str, details: BenchmarkDetails) -> None:
    benchmark = details.benchmark
    out.line(f"{benchmark.name}: {benchmark.card.text('name')} {benchmark.card.handle.version}")
    out.line()
    out.item("", benchmark.card.text("description"))
    out.line()
    rule = benchmark.rule
    facts = [
        ("metric", f"{rule.get('metric', '')}, {rule.get('direction', '')} is better"),
        ("rule", rule.get("rule", "")),
        ("run", f"fairmile run {name}"),
        ("folder", str(benchmark.folder or "")),
    ]
    out.items([(label, str(text)) for label, text in facts if text])
    known = [
        (each.get("name", ""), each.get("metric", ""), each.get("value", ""), each.get("source", ""))
        for each in benchmark.baselines
    ]
    known += [
        (
            each.get("description") or each.get("name", ""),
            each.get("propertyID", ""),
            each.get("value", ""),
            each.get("citation", ""),
        )
        for each in benchmark.published
    ]
    if known:
        out.line()
        out.table(("known result", "metric", "value", "source"), [tuple(map(str, row)) for row in known])
    for part, fields in details.schema.items():
        out.line()
        out.line(f"data: {part}")
        out.table(("field", "form", "unit", "meaning"), [(e.name, e.form, e.unit, e.meaning) for e in fields])
    if details.parameters:
        out.line()
        out.table(
            ("parameter", "default", "meaning"),
            [(each.name, _default_text(each.default), each.meaning) for each in details.parameters],
        )


@benchmark.command()
@click.argument("name")
@click.option(
    "--to",
    "folder",
    default=".",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Parent folder.  [default: the current one]",
)
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], help="Kind of benchmark.  [default: learning]")
@DRY_RUN
@json_output(NewBenchmark)
def new(out: Out, name: str, folder: Path, kind: str, dry_run: bool) -> None:
    """Create a benchmark folder to adapt; it runs as is.

    The kind `learning` is a PyTorch model that the harness trains; `program` is any
    program that prints its metrics.

    \b
    Examples:
      fairmile benchmark new tides
      fairmile benchmark new lake --kind program --dry-run
    """

    def render(files: NewBenchmark) -> None:
        for each in files:
            out.line(f"{'would write' if dry_run else 'wrote'}  {each}")
        if not dry_run:
            place = folder / name if folder.is_absolute() else f"./{folder / name}"
            out.hint(f"`fairmile run {place}` runs it; its README describes the next steps")

    out.show(Workspace.open().benchmarks.new(name, folder, kind=kind, dry_run=dry_run), render)


@benchmark.command()
@click.argument("name", metavar="NAME|FOLDER")
@click.argument("steps", nargs=-1, metavar="[STEP...]")
@click.option(
    "-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="Set a parameter of the benchmark; repeatable."
)
@click.option("--seed", type=int, metavar="N", help="Random seed, passed as FAIRMILE_SEED.")
@click.option("--again", is_flag=True, help="Run even if a run with the same inputs exists.")
@DRY_RUN
@json_output(StageRuns, StagePlan)
def stages(out: Out, name: str, steps: tuple[str, ...], params: tuple[str, ...], dry_run: bool, **given: Any) -> None:
    """Run a benchmark step by step. Each step is a run that reads the outputs of earlier steps.

    Without STEP, all steps run; otherwise those up to the last STEP. Finished steps
    with the same inputs do not run again.

    \b
    Examples:
      fairmile benchmark stages miniweather --dry-run
      fairmile benchmark stages miniweather simulate -p nx=32 -p nz=16 -p storm_s=60
    """
    benchmarks = Workspace.open().benchmarks
    if dry_run:
        out.show(benchmarks.plan_stages(name, steps), lambda plan: out.line("\n".join(plan)))
        return
    echo = sys.stderr.buffer if out.as_json else sys.stdout.buffer
    given |= {"params": parse_params(params), "echo": echo, "on_stage": _stage(out)}
    stage_runs = benchmarks.stages(
        name, steps, on_step=lambda stage, step: out.say(f"{stage}: {step.verb}: {step.what}"), **given
    )
    out.show(stage_runs, lambda stages: out.hint(f"`fairmile compare {stages.group}` compares them"))


def _stage(out: Out) -> Callable[[str, Run], None]:
    def report(step: str, run: Run) -> None:
        took = f" in {format_duration(run.elapsed_s)}" if run.elapsed_s is not None else ""
        out.say(f"{step}: run {run.id} {run.state}{took}")

    return report


def _number_text(value: Any) -> str:
    """Return a number of a card in a few digits, and anything else as text."""
    return f"{value:g}" if isinstance(value, int | float) else str(value or "")


def _default_text(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)


def _size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    return None if value is None else parse_size(value)


@benchmark.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option(
    "--size", callback=_size, metavar="SIZE", help="Size of the large file.  [default: 1 GB, less if space is short]"
)
@click.option("--need", callback=_size, metavar="SIZE", default="0", help="Size of the data that must fit.")
@DRY_RUN
@json_output(StorageRun, StoragePlan)
def storage(out: Out, paths: tuple[Path, ...], size: int | None, need: int, dry_run: bool) -> int:
    """Measure the storage of folders and recommend one for the data of a run.

    Measures sequential and random access to a large file, operations on small files,
    and fsync. Records the result as a run, and removes all files afterwards.

    \b
    Examples:
      fairmile benchmark storage . /dev/shm --size '4 MB'
      fairmile benchmark storage . --need '1 GB' --dry-run
    """
    benchmarks = Workspace.open().benchmarks
    if dry_run:
        out.show(benchmarks.plan_storage(paths, size_bytes=size), lambda folders: _print_storage_plan(out, folders))
        return 0
    with asked_to_end():  # as by batch systems: no files may be left
        done = benchmarks.storage(paths, size_bytes=size, need_bytes=need, on_step=_ProgressLine().show)
    out.show(done, lambda done: _print_storage(out, done))
    return 3 if any(each.problem for each in done.report.measured) else 0


@benchmark.command()
@click.option(
    "--backend", type=click.Choice(BACKENDS), default="gloo", show_default=True, help="Communication library."
)
@click.option(
    "--ranks", default="2", show_default=True, metavar="COUNTS", help="Numbers of ranks on this machine, such as 2,4."
)
@click.option(
    "--sizes", default="", metavar="SIZES", help="Sizes per rank, such as 1KiB,1MiB.  [default: 4 B to 64 MiB]"
)
@click.option(
    "--collectives",
    "named",
    default="",
    metavar="NAMES",
    help="Measure only these collectives, such as all_reduce,broadcast.",
)
@click.option("--for", "lasting", default="300ms", show_default=True, metavar="TIME", help="Time to measure each size.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write points and fits to this file.")
@DRY_RUN
@json_output(MeasuredBackend, MeasurementPlan)
def collectives(out: Out, backend: str, ranks: str, sizes: str, named: str, dry_run: bool, **options: Any) -> None:
    """Measure collectives between ranks, and fit a cost model.

    Uses torch with gloo or NCCL, or MPI. The fit gives latency, bandwidth and the
    algorithm whose formula matches the times best.

    \b
    Examples:
      fairmile benchmark collectives --ranks 2 --sizes 1KiB,16KiB,256KiB --for 20ms --collectives all_reduce
      fairmile benchmark collectives --backend mpi --ranks 2,4 --dry-run
    """
    counts = _counts(ranks)
    arguments: dict[str, Any] = {
        "sizes": _words(sizes),
        "collectives": _words(named),
        "seconds": parse_time(options["lasting"]),
    }
    benchmarks = Workspace.open().benchmarks
    if dry_run:
        plan = benchmarks.plan_collectives(backend, counts, **arguments)
        out.show(plan, lambda plan: out.line("\n".join(plan.to_dict()["commands"])))
        return
    measured = benchmarks.collectives(backend, counts, output=options["output"], **arguments)
    out.show(measured, lambda measured: _print_collectives(out, measured))


def _print_collectives(out: Out, measured: MeasuredBackend) -> None:
    compared = measured.compared()
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
        for each in compared
    ]
    out.table(("collective", "ranks", "size", "measured", "bus", "model", "error", "like"), rows)
    _warn_of_poor_fits(out, compared)
    for name, reason in measured.left_out.items():
        out.say(f"note: {name} was skipped: {reason}")


def _warn_of_poor_fits(out: Out, compared: Sequence[ModelComparison]) -> None:
    """Say for which collectives the model is far from the measured times."""
    worst: dict[str, ModelComparison] = {}
    for each in compared:
        known = worst.get(each.collective)
        if abs(each.error) > max(_POOR_FIT, abs(known.error) if known else 0.0):
            worst[each.collective] = each
    for name, each in worst.items():
        out.say(
            f"note: the model of {name.replace('_', ' ')} is off by up to {each.error:+.0%} "
            f"({format_size(round(each.size_bytes))}, {count(each.ranks, 'rank')}): use the measured times there; "
            "a longer --for on an idle machine and more sizes improve the fit"
        )


def _counts(text: str) -> list[int]:
    for each in _words(text):
        if not each.isdecimal():
            raise UsageError(f"--ranks: {each!r} is not a number", hint="write 2,4")
    return [int(each) for each in _words(text)]


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _print_storage_plan(out: Out, folders: StoragePlan) -> None:
    rows = [
        (each.path, each.kind, format_size(each.free_bytes), format_size(each.size_bytes), each.lifetime)
        for each in folders
    ]
    out.table(("folder", "kind", "free", "would write", "lifetime"), rows)
    out.say(f"at most {format_duration(LONGEST_S * len(folders))}")


def _print_storage(out: Out, done: StorageRun) -> None:
    report = done.report
    good = [each for each in report.measured if not each.problem]
    rows = [
        (
            each.place.path,
            each.place.kind,
            *(rate_words(name, each.values[name]) for name in _COLUMNS.values()),
        )
        for each in good
    ]
    out.table(("folder", "kind", *_COLUMNS), rows)
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
    out.hint(f"`fairmile runs show {done.run}` shows the numbers again")


class _ProgressLine:
    """Shows the current step on a terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    def show(self, place: StorageFolder, step: str) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r\033[K{one_line(f'{place.path}: {step}')}" if step else "\r\033[K")
            sys.stderr.flush()
