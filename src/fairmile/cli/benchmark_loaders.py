"""`fairmile benchmark loaders`: measure ways to feed the training of a benchmark, and recommend one."""

from __future__ import annotations

from pathlib import Path

import click

from fairmile.base.units import format_duration
from fairmile.benchmarks.loaders import LoaderChoice
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, json_output
from fairmile.cli.run_options import pairs
from fairmile.runs.plan import RunPlan
from fairmile.runs.record.spec import Input
from fairmile.runs.record.values import parse_params
from fairmile.workspace import Workspace


@click.command()
@click.argument("name")
@click.argument("dataset", default="")
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="Set a parameter; repeatable.")
@click.option("--data", "inputs", multiple=True, metavar="KEY=PATH|ASSET", help="Input file or asset; repeatable.")
@DRY_RUN
@json_output(LoaderChoice, RunPlan)
def loaders(out: Out, name: str, dataset: str, params: tuple[str, ...], inputs: tuple[str, ...], dry_run: bool) -> None:
    """Measure ways to feed the training of a benchmark with data, and recommend one.

    Trains some steps in turns with batches read when needed, by 1 or 2 threads, and with
    the data on the device. Says whether reading is the limit, and what lossless
    compression of the data would save. Records the result as a run.

    \b
    Examples:
      fairmile benchmark loaders mnist
      fairmile benchmark loaders mnist -p batch_size=8 --dry-run
    """
    given = {key: Input.named(value, Path.cwd()) for key, value in pairs("--data", inputs)}
    chosen = Workspace.open().benchmarks.loaders(
        name, dataset, params=parse_params(params), inputs=given, dry_run=dry_run
    )
    if isinstance(chosen, RunPlan):
        out.show(chosen, lambda plan: out.line("\n".join(f"{step.verb} {step.what}" for step in plan.steps)))
    else:
        out.show(chosen, lambda chosen: _print(out, chosen))


def _print(out: Out, chosen: LoaderChoice) -> None:
    data = chosen.data
    slower = {each["name"]: each for each in data["answer"]["others"]}
    rows = []
    for way in data["ways"]:
        other = slower.get(way["name"])
        ratio = "fastest" if other is None else f"× {other['ratio']:.3f} ({other['low']:.3f} to {other['high']:.3f})"
        rows.append((way["name"], format_duration(way["step_s"]), f"{way['wait_share']:.1%}", ratio, way["settings"]))
    out.table(("batches", "step", "waits", "time", "parameters"), rows)
    out.line(chosen.summary())
    out.line(f"compression: {data['compression']['advice']}")
    for each in data["compression"]["methods"]:
        rate = each["decompress_bytes_per_s"] / 1e6
        out.line(f"  {each['name']}: {each['ratio']:.2f} times smaller, read at {rate:,.0f} MB/s")
    for name, why in data["left_out"].items():
        out.say(f"note: {name}: {why}")
