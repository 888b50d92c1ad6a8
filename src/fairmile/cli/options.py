"""Options that several commands share, and help that lists options by section."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import click

from fairmile.base.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
WAIT = click.option(
    "--wait/--leave",
    default=True,
    help="With --on: wait for the end, or return once submitted.  [default: wait]",
)
_WIDEST = 30  # names longer than this take a line of their own
_GENERAL = ("--notify", "--dry-run", "--json", "--help")


def limit_option(things: str, default: int) -> Callable[[F], F]:
    """Return the option for how many things a list shows."""
    return click.option(
        "-n",
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        default=default,
        show_default=True,
        help=f"Maximum number of {things}.",
    )


def write_sections(formatter: click.HelpFormatter, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write the sections of a help page that have rows, with one width for the first column of all."""
    longest = max((len(name) for rows in sections.values() for name, _ in rows), default=0)
    width = min(longest, _WIDEST)
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows], col_max=_WIDEST)


def properties(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return properties of a card as a person states them: texts, or JSON; a repeated one is a list."""
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
                f"the value of {key} is not valid JSON: {error}", hint="put it in single quotes"
            ) from error
        return text
    # A version or a name is a text even where it looks like a number.
    return text if key in ("version", "name") and not isinstance(value, str) else value


class SectionedCommand(click.Command):
    """A command whose help lists its options by section, the most used first; `sections` names them by long form."""

    sections: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Parameters": (
            *("--param", "--seed", "--repeat", "--repeats", "--select"),
            *("--template", "--reads-params", "--allow-code"),
        ),
        "Search": (
            *("--objective", "--trials", "--within", "--sampler", "--pruner"),
            *("--extrapolate", "--engine", "--tuning-seed"),
        ),
        "Record": ("--name", "--tag", "--metric", "--best", "--data", "--out", "--code", "--every"),
        "Execution": (
            *("-j", "--again", "--failed", "--resume", "--environment", "--env", "--timeout", "--anyway", "--set"),
            *("--split-among", "--array", "--launch", "--input", "--output-file", "--folder"),
            *("--after", "--retries", "--key"),
        ),
        "System and resources": (
            *("--on", "--nodes", "--time", "--account", "--partition", "--qos", "--gpus-per-node"),
            *("--tasks-per-node", "--cpus-per-task", "--memory", "--exclusive", "--software", "--variant"),
            *("--wait", "--pack", "--slots", "--at-once", "--queued", "--pilots"),
            *("--signal", "--requeue", "--option"),
        ),
    }

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = {max(each.opts, key=len): each for each in self.get_params(ctx) if isinstance(each, click.Option)}
        listed = {name for names in self.sections.values() for name in names}
        rest = [name for name in options if name not in listed and name not in _GENERAL]
        sections: dict[str, list[tuple[str, str]]] = {}
        for title, names in {**self.sections, "General": (*rest, *_GENERAL)}.items():
            records = [options[name].get_help_record(ctx) for name in names if name in options]
            sections[title] = [record for record in records if record is not None]
        write_sections(formatter, sections)
