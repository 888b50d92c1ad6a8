"""A machine probed for a person: as the draft of a system file, or compared with a known system."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TypedDict

from fairmile.base.commands import Here, Ssh
from fairmile.base.errors import Conflict, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.words import slug
from fairmile.systems.change_report import ChangeReport, make_report
from fairmile.systems.draft import draft
from fairmile.systems.model import NAME, System
from fairmile.systems.probe import probe
from fairmile.systems.probe_result import ProbeResult, ProbeResultDict
from fairmile.systems.survey import Survey, compare

OnStep = Callable[[str], None]


class SystemDraftDict(TypedDict):
    """What a probe found, and the draft of a system file, as JSON."""

    found: ProbeResultDict
    draft: str
    file: str | None


@dataclass(frozen=True, repr=False)
class SystemDraft(Result):
    """What a probe found on a machine, the draft of its system file, and where the draft was written."""

    result: ProbeResult
    text: str
    file: Path | None

    def to_dict(self) -> SystemDraftDict:
        """Return the draft as `fairmile system probe --json` prints it."""
        return {
            "found": self.result.to_dict(),
            "draft": self.text,
            "file": None if self.file is None else str(self.file),
        }

    def summary(self) -> str:
        """Return what was found on the machine."""
        return self.result.summary()


def probe_machine(*, over: str = "", name: str = "", output: Path | None = None, on_step: OnStep) -> SystemDraft:
    """Probe this machine, or the host `over` by ssh, and draft its system file; write that to `output` where given."""
    _check_name(name)
    _refuse_existing(output)
    return _draft(_probe(over, None, on_step), name, output)


def survey_system(
    system: System,
    *,
    over: str = "",
    name: str = "",
    output: Path | None = None,
    card: Path | None = None,
    on_step: OnStep,
) -> Survey:
    """Probe a machine and compare it with a system; `output` gets a draft of its file, `card` the survey as JSON-LD."""
    _check_name(name)
    _refuse_existing(output, card)
    result = _probe(over, system, on_step)
    if output is not None:
        _draft(result, name, output)
    survey = compare(result, system)
    if card is not None:
        write_atomic(card, json.dumps(survey.card(), indent=1, ensure_ascii=False) + "\n")
    return survey


def report_changes(system: System, *, over: str = "", output: Path | None = None, on_step: OnStep) -> ChangeReport:
    """Probe a machine and report what changed since the file of a system was written; `output` gets the text."""
    _refuse_existing(output)
    report = make_report(compare(_probe(over, system, on_step), system), system)
    if output is None:
        return report
    write_atomic(output, report.text)
    return replace(report, file=output)


def _probe(over: str, system: System | None, on_step: OnStep) -> ProbeResult:
    also = [each.path for each in system.file_systems.values()] if system else []
    return probe(Ssh(over) if over else Here(), today=date.today(), also=also, on_step=on_step)


def _draft(result: ProbeResult, name: str, output: Path | None) -> SystemDraft:
    text = draft(result, name or slug(result.host))
    if output is not None:
        write_atomic(output, text)
    return SystemDraft(result, text, output)


def _check_name(name: str) -> None:
    if name and not NAME.fullmatch(name):
        raise UsageError(
            f"--name: expected at most 64 letters, digits, '.', '_' or '-', the first a letter or digit, found {name!r}"
        )


def _refuse_existing(*files: Path | None) -> None:
    for file in files:
        if file is not None and file.exists():
            raise Conflict(f"{file} exists already", hint="choose another name, or remove it first")
