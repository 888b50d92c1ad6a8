"""The options that describe a run, for every command that makes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from fairmile.base.errors import UsageError
from fairmile.base.units import parse_duration
from fairmile.cli.job_options import spec_from
from fairmile.jobs.spec import Resources
from fairmile.runs.record.spec import Input

F = TypeVar("F", bound=Callable[..., Any])

_COMMAND = "fairmile.command"
ANYWAY = click.option(
    "--anyway", is_flag=True, help="Run even if it is predicted not to fit, or a requirement is missing."
)
_OPTIONS = (
    click.option(
        "--reads-params",
        is_flag=True,
        help="The program reads FAIRMILE_PARAMS, even if its files do not show it.",
    ),
    click.option("--seed", type=int, help="Random seed; fills {seed} and FAIRMILE_SEED."),
    click.option(
        "--data", "inputs", multiple=True, metavar="KEY=PATH|ASSET", help="Input file or asset; fills {inputs.KEY}."
    ),
    click.option("--out", "outputs", multiple=True, metavar="PATTERN", help="Output files to record by digest."),
    click.option("--metric", "metrics", multiple=True, metavar="NAME=REGEX", help="Read a metric from the output."),
    click.option("--code", multiple=True, metavar="PATH", help="Additional files or folders of the program."),
    click.option("--tag", "tags", multiple=True, help="Tag to find the run by."),
    click.option("--environment", default="", metavar="ENV", help="Environment, its file, or an asset that has one."),
    ANYWAY,
    click.option("--timeout", metavar="TIME", help="Stop the run after this time."),
    click.option("--every", default="1s", metavar="TIME", help="Sampling period of power and usage; 0 disables it."),
)


class WithCommand(click.Command):
    """Separates the options before `--` from the command behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            ctx.meta[_COMMAND], args = tuple(args[cut + 1 :]), args[:cut]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def command_of(context: click.Context) -> tuple[str, ...]:
    """Return the command behind `--`."""
    return tuple(context.meta.get(_COMMAND, ()))


def run_options(command: F) -> F:
    """Give a command the options that describe a run, beside its parameters; `changes_from` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def changes_from(options: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of a run that the options state."""
    job = spec_from({**options, "argv": ("true",), "name": options.get("name") or ""})
    fields: dict[str, Any] = {
        "params": params,
        "reads_params": options["reads_params"],
        "seed": options["seed"],
        "env": dict(job.env),
        "inputs": {key: Input.named(value, Path.cwd()) for key, value in pairs("--data", options["inputs"])},
        "outputs": tuple(options["outputs"]),
        "metrics": {key: {"pattern": value} for key, value in pairs("--metric", options["metrics"])},
        "code": tuple(options["code"]),
        "tags": tuple(options["tags"]),
        "environment": options["environment"],
        "anyway": options["anyway"],
        "timeout_s": parse_duration(options["timeout"]) if options["timeout"] else None,
        "system": "" if options["on"] == "laptop" else options["on"],
        "resources": job.resources,
        "software": job.software,
        "launch": job.launch,
        "name": options.get("name"),
    }
    kept = {name: value for name, value in fields.items() if value and value != Resources()}
    useless = [name for name in ("resources", "software", "launch") if name in kept and "system" not in kept]
    if useless:
        raise UsageError("options for nodes, time and software need a system", hint="name one with --on, or omit them")
    if options["seed"] is not None:
        kept["seed"] = options["seed"]
    if (period_s := parse_duration(options["every"])) != 1.0:
        kept["watch_s"] = period_s
    return kept


def pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    split = [text.partition("=") for text in texts]
    for text, (key, equals, value) in zip(texts, split, strict=True):
        if not (key and equals and value):
            raise UsageError(f"{option} {text!r} has no NAME=VALUE", hint=f"write {option} NAME=VALUE")
    return [(key, value) for key, _, value in split]
