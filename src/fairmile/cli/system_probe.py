"""`fairmile system probe`: describe a machine, or compare it with a known system."""

from __future__ import annotations

from pathlib import Path

import click

from fairmile.base.errors import UsageError
from fairmile.cli.out import Out, count, json_output
from fairmile.systems.change_report import ChangeReport
from fairmile.systems.probing import SystemDraft
from fairmile.systems.survey import Survey
from fairmile.workspace import Workspace

_FILE = click.Path(path_type=Path, dir_okay=False)
_LEAST_SHARE = 0.2  # of a system's components; a machine that has fewer is probably another one
_COLOURS = {"differs": "yellow", "missing": "red", "same": "green"}


@click.command()
@click.option("--on", "known", metavar="SYSTEM", default="", help="Compare the machine with this system.")
@click.option(
    "--over", metavar="HOST", default="", help="Probe another machine over ssh, which must work without a password."
)
@click.option("--name", metavar="NAME", default="", help="Name of the system in the draft.  [default: the host name]")
@click.option("--output", metavar="FILE", type=_FILE, help="Write the draft of a system file to this file.")
@click.option("--card", metavar="FILE", type=_FILE, help="With --on: write the comparison to this file, as JSON-LD.")
@json_output(SystemDraft, Survey)
def probe(known: str, over: str, name: str, output: Path | None, card: Path | None, out: Out) -> int:
    """Describe this machine as a draft of its system file, or compare it with a known system.

    Fairmile asks the machine's own programs about processors, memory, GPUs, scheduler,
    modules, file systems, network, compilers, containers, and frameworks in the default
    python3. It reports programs that are missing or fail, and continues.

    \b
    Examples:
      fairmile system probe
      fairmile system probe --on laptop
    """
    if card is not None and not known:
        raise UsageError("--card needs --on", hint="add --on SYSTEM, the system to compare with")
    systems = Workspace.open().systems

    def report(step: str) -> None:
        out.say(f"checking {step}")

    if not known:
        draft = systems.probe(over=over, name=name, output=output, on_step=report)
        out.show(draft, lambda draft: _print_draft(out, draft))
        return 0
    survey = systems.survey(known, over=over, name=name, output=output, card=card, on_step=report)
    out.show(survey, lambda survey: _print_survey(out, survey, output, card))
    return 0


@click.command()
@click.argument("system", metavar="SYSTEM")
@click.option(
    "--over", metavar="HOST", default="", help="Probe another machine over ssh, which must work without a password."
)
@click.option("--output", metavar="FILE", type=_FILE, help="Write the text to this file.")
@json_output(ChangeReport)
def report(system: str, over: str, output: Path | None, out: Out) -> int:
    """Report which modules and partitions of a system are gone, changed or new since its file was written.

    Probes this machine, or HOST, and prints the text of an issue for the maintainers of the file. Nothing is sent.

    \b
    Examples:
      fairmile system report laptop
    """
    systems = Workspace.open().systems
    changes = systems.report(system, over=over, output=output, on_step=lambda step: out.say(f"checking {step}"))
    out.show(changes, lambda each: out.document(each.text) if each.file is None else out.line(f"wrote {each.file}"))
    if (changes.survey.share or 0.0) < _LEAST_SHARE:
        out.hint(f"{changes.survey.host} may not be {changes.survey.title}: probe that system with --over HOST")
    return 0


def _print_draft(out: Out, draft: SystemDraft) -> None:
    if draft.file is None:
        out.document(draft.text)
        return
    out.line(f"wrote {draft.file}")
    out.hint(f"fill in the values that its comments name, then `fairmile system check {draft.file}`")


def _print_survey(out: Out, survey: Survey, *files: Path | None) -> None:
    rows = [
        [out.colour(row.verdict, _COLOURS.get(row.verdict, "dim")), row.component, row.registered, row.found]
        for row in survey.sorted()
    ]
    out.table(["verdict", "component", "registered", "found"], rows, shrink=["registered", "found"])
    out.line(", ".join(f"{number} {verdict}" for verdict, number in survey.counts.items() if number))
    share = "no registered component was found" if survey.share is None else f"{survey.share:.0%} as registered"
    out.say(f"{survey.title} compared with {survey.host}: {count(len(survey.rows), 'component')}, {share}")
    for file in filter(None, files):
        out.say(f"wrote {file}")
