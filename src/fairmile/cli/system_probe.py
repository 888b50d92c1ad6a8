"""`fairmile system probe`: describe a machine, and compare it with what is known of it."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from pathlib import Path
from typing import Any

import click

from fairmile.base.commands import Here, Ssh
from fairmile.base.errors import Conflict, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.words import slug
from fairmile.cli.out import Out, count, json_option
from fairmile.systems.draft import draft
from fairmile.systems.model import NAME, System
from fairmile.systems.probe import probe as look
from fairmile.systems.probe_result import ProbeResult
from fairmile.systems.survey import Survey, compare
from fairmile.workspace import Workspace

_FILE = click.Path(path_type=Path, dir_okay=False)
_COLOURS = {"differs": "yellow", "missing": "red", "same": "green"}


@click.command()
@click.option("--on", "known", metavar="SYSTEM", default="", help="Compare with what is known of this system.")
@click.option(
    "--over", metavar="HOST", default="", help="Look at another machine, which ssh reaches without a password."
)
@click.option("--name", metavar="NAME", default="", help="Name of the system in the draft; default: the machine's.")
@click.option("--output", metavar="FILE", type=_FILE, help="Write the draft of a system file there.")
@click.option("--card", metavar="FILE", type=_FILE, help="With --on: keep the comparison there, as JSON-LD.")
@json_option
def probe(known: str, over: str, name: str, output: Path | None, card: Path | None, out: Out) -> int:
    """Describe this machine as a draft of its system file, or compare it with a known system.

    The machine's own programs are asked: processors, memory, GPUs, scheduler, modules,
    file systems, network, compilers, containers, frameworks in the default python3. What
    is not there or fails is said and harms nothing.

    \b
    Examples:
      fairmile system probe
      fairmile system probe --on laptop
    """
    if card is not None and not known:
        raise UsageError("--card keeps a comparison, so it needs --on", hint="name the system to compare with")
    if name and not NAME.fullmatch(name):
        raise UsageError(
            f"--name: expected at most 64 letters, digits, '.', '_' or '-', the first a letter or digit, found {name!r}"
        )
    for file in filter(None, (output, card)):
        _refuse_existing(file)
    system = Workspace.open().systems.registry[known] if known else None
    found = _look(over, system, out)
    text = draft(found, name or slug(found.host))
    if output is not None:
        write_atomic(output, text)
    if system is None:
        _render_draft(found, text, output, out)
        return 0
    survey = compare(found, system)
    if card is not None:
        write_atomic(card, json.dumps(survey.card(), indent=1, ensure_ascii=False) + "\n")
    _render_survey(survey, output, card, out)
    return 0


def _look(over: str, system: System | None, out: Out) -> ProbeResult:
    runner = Ssh(over) if over else Here()
    also = [each.path for each in system.file_systems.values()] if system else []
    return look(runner, today=date.today(), also=also, on_step=lambda what: out.say(f"looking at {what}"))


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise Conflict(f"{file} is there already", hint="choose another name, or remove it first")


def _render_draft(found: ProbeResult, text: str, output: Path | None, out: Out) -> None:
    if out.as_json:
        out.data({"found": _plain(dataclasses.asdict(found)), "draft": text, "file": str(output) if output else None})
    elif output is None:
        out.document(text)
    else:
        out.line(f"wrote {output}")
        out.hint(f"fill in what its comments ask for, then `fairmile system check {output}`")


def _render_survey(survey: Survey, output: Path | None, card: Path | None, out: Out) -> None:
    counts = survey.counts
    if out.as_json:
        facts = {"system": survey.system, "host": survey.host, "day": str(survey.day)}
        out.data(
            {**facts, "rows": [dataclasses.asdict(row) for row in survey.rows], "counts": counts, "share": survey.share}
        )
        return
    rows = [
        [out.colour(row.verdict, _COLOURS.get(row.verdict, "dim")), row.component, row.registered, row.found]
        for row in survey.sorted()
    ]
    out.table(["verdict", "component", "registered", "found"], rows, shrink=["registered", "found"])
    out.line(", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number))
    share = "nothing that is registered could be seen" if survey.share is None else f"{survey.share:.0%} as registered"
    out.say(f"{survey.title} beside {survey.host}: {count(len(survey.rows), 'component')}, {share}")
    for file in filter(None, (output, card)):
        out.say(f"wrote {file}")


def _plain(value: Any) -> Any:
    """Return data with its dates as texts."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return str(value) if isinstance(value, date) else value
