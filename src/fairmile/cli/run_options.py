"""The options that describe a run, for every command that makes one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy
from fairmile.base.units import parse_time
from fairmile.cli.job_options import LAUNCH, spec_from
from fairmile.cli.options import SectionedCommand
from fairmile.resolve import Word
from fairmile.runs.arguments import is_program, start_program
from fairmile.runs.parameters import mentions
from fairmile.runs.record.values import parse_params

if TYPE_CHECKING:
    from fairmile.jobs.spec import Resources
    from fairmile.runs.record.spec import Input
else:
    Input = lazy("fairmile.runs.record.spec:Input")
    Resources = lazy("fairmile.jobs.spec:Resources")

F = TypeVar("F", bound=Callable[..., Any])

_COMMAND, _PROGRAM = "fairmile.command", "fairmile.program"
ANYWAY = click.option(
    "--anyway", is_flag=True, help="Run even if a prediction says it does not fit, or a requirement is missing."
)
_OPTIONS = (
    click.option(
        "--reads-params",
        is_flag=True,
        help="Declare that the program reads its parameters from FAIRMILE_PARAMS.",
    ),
    click.option(
        "--couple",
        "coupled",
        is_flag=True,
        help="Run two programs as one, a solver and a model beside it: SOLVER... : MODEL...",
    ),
    click.option(
        "--model-resources",
        multiple=True,
        metavar="KEY=VALUE",
        help="Give the model nodes of its own in a heterogeneous job, such as partition=gpu; repeatable.",
    ),
    click.option("--seed", type=int, metavar="N", help="Random seed, passed as {seed} and FAIRMILE_SEED."),
    click.option(
        "--data",
        "inputs",
        multiple=True,
        metavar="KEY=PATH|ASSET",
        help="Input file or asset, passed as {inputs.KEY}; repeatable.",
    ),
    click.option("--out", "outputs", multiple=True, metavar="PATTERN", help="Record these output files; repeatable."),
    click.option(
        "--metric",
        "metrics",
        multiple=True,
        metavar="NAME=REGEX",
        help="Read a metric from the output by a regular expression; repeatable.",
    ),
    click.option(
        "--code", multiple=True, metavar="PATH", help="Additional source file or folder of the program; repeatable."
    ),
    click.option("--tag", "tags", multiple=True, help="Tag of the run; repeatable."),
    click.option(
        "--environment",
        default="",
        metavar="ENV",
        help="Environment to run in: its name, its file, or an asset that has one.",
    ),
    ANYWAY,
    LAUNCH,
    click.option("--timeout", metavar="TIME", help="Stop the run after this time, such as 90s or 2h."),
    click.option(
        "--every",
        default="1s",
        show_default=True,
        metavar="TIME",
        help="Sampling period of power and usage; 0 disables sampling.",
    ),
)


_PROGRAMS = (".py", ".sh")  # a file with such a name that is missing is a mistyped program


class WithCommand(SectionedCommand):
    """Separates its own options from a program and its arguments: behind `--`, or from the path of a program on."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        start = self._program(ctx, own)
        if start is not None and not os.path.exists(os.path.expanduser(args[start])):
            args = args[: start + 1]  # what is wrong is its path, and not an argument
        elif start is not None:
            self._refuse_own_options(args[start:])
            ctx.meta[_PROGRAM] = ctx.meta[_COMMAND] = tuple(args[start:])
            args = args[:start]
        elif len(own) < len(args):
            ctx.meta[_COMMAND], args = tuple(args[len(own) + 1 :]), own
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[PROGRAM [ARGUMENT]... | -- COMMAND...]"]

    def _program(self, ctx: click.Context, args: list[str]) -> int | None:
        """Return where among the words the path of a program is; None where the first that is no option names none."""
        options: list[click.Parameter] = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        if "--allow-code" in args:  # a Python file is a configuration then
            return None
        parser = click.Command(self.name, params=options, add_help_option=False).make_parser(ctx)
        parser.allow_interspersed_args = False
        try:
            _, rest, _ = parser.parse_args(list(args))
        except click.UsageError:  # which the whole command line tells better
            return None
        # A name without a slash may also be one of the catalog, which has no arguments: as in a shell, `./NAME` has.
        word = Word(rest[0] if rest else "")
        is_missing = not word.exists and len(rest) > 1
        is_missing = is_missing and (word.path.suffix in _PROGRAMS or rest[0].startswith(("./", "../", "/")))
        return len(args) - len(rest) if word.is_path and (is_missing or is_program(word.path)) else None

    def _refuse_own_options(self, command: Sequence[str]) -> None:
        """Raise UsageError where an option of ours stands among the arguments of a program that does not mention it."""
        own = {flag for each in self.params if isinstance(each, click.Option) for flag in each.opts}
        for word in command[1:]:
            flag = word.partition("=")[0]
            if word == "--":
                return
            if flag in own and not _mentions(command, flag):
                started = " ".join(start_program(command[:1], Path(), os.environ))
                raise UsageError(
                    f"{flag} comes after {command[0]}, which does not mention it",
                    hint=f"put Fairmile's options before {command[0]}; "
                    f"to pass it to the program, write `-- {started} …`",
                )


def _mentions(command: Sequence[str], flag: str) -> bool:
    """Tell whether the files of a program name an option, as it is typed or as a variable."""
    name = flag.lstrip("-")
    names = (flag,) if len(name) == 1 else (name, name.replace("-", "_"))
    return any(mentions(each, command[:1], Path()) for each in names)


def command_of(context: click.Context) -> tuple[str, ...]:
    """Return the program and its arguments, or the command behind `--`."""
    return tuple(context.meta.get(_COMMAND, ()))


def program_of(context: click.Context) -> tuple[str, ...]:
    """Return the path of a program and its arguments; empty where the command line names none, or one behind `--`."""
    return tuple(context.meta.get(_PROGRAM, ()))


def run_options(command: F) -> F:
    """Give a command the options that describe a run, beside its parameters; `changes_from` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def changes_from(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run that the options state; those of commands that have no -p, without parameters."""
    job = spec_from({**options, "argv": ("true",), "name": options.get("name") or "", "outputs": ()})
    fields: dict[str, Any] = {
        "params": parse_params(options.get("params", ())),
        "reads_params": options["reads_params"],
        "coupled": options["coupled"],
        "model_resources": parse_params(options["model_resources"]) or None,
        "seed": options["seed"],
        "env": dict(job.env),
        "inputs": {key: Input.named(value, Path.cwd()) for key, value in pairs("--data", options["inputs"])},
        "outputs": tuple(options["outputs"]),
        "metrics": {key: {"pattern": value} for key, value in pairs("--metric", options["metrics"])},
        "code": tuple(options["code"]),
        "tags": tuple(options["tags"]),
        "environment": options["environment"],
        "anyway": options["anyway"],
        "timeout_s": parse_time(options["timeout"]) if options["timeout"] else None,
        # What a launcher starts here is a job of this machine, with the processes that the resources state.
        "system": "" if options["on"] == "laptop" and not job.launch else options["on"],
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
    if (period_s := parse_time(options["every"])) != 1.0:
        kept["watch_s"] = period_s
    return kept


def pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    split = [text.partition("=") for text in texts]
    for text, (key, equals, value) in zip(texts, split, strict=True):
        if not (key and equals and value):
            raise UsageError(f"{option} {text!r} is not NAME=VALUE", hint=f"write {option} NAME=VALUE")
    return [(key, value) for key, _, value in split]
