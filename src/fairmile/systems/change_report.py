"""What changed on a machine since its file was written, as a text for its maintainers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.systems.model import System
from fairmile.systems.survey import Survey, SurveyRow, Verdict

# What each verdict is called in the text; rows of the others make none.
_SECTIONS: dict[Verdict, str] = {"missing": "Gone", "differs": "Changed", "new": "New"}


class ChangeReportDict(TypedDict):
    """A report as JSON: the rows of the survey that differ, by section, and the text of an issue."""

    system: str
    host: str
    day: str
    compared: str
    gone: list[str]
    changed: list[str]
    new: list[str]
    unseen: int
    same: int
    title: str
    text: str
    file: str | None


@dataclass(frozen=True, repr=False)
class ChangeReport(Result):
    """What a probe found gone, changed and new, beside the file of a system."""

    survey: Survey
    compared: str  # when the file was compared with its sources, and how old these are
    sources: tuple[str, ...]
    file: Path | None = None  # where the text was written

    @property
    def title(self) -> str:
        counts = self.survey.counts
        parts = [f"{counts[verdict]} {name.lower()}" for verdict, name in _SECTIONS.items() if counts[verdict]]
        return f"{self.survey.title}: {', '.join(parts) or 'nothing changed'} ({self.survey.day})"

    @property
    def text(self) -> str:
        """The report in Markdown, ready for an issue."""
        return "\n".join(self._lines()) + "\n"

    def lines(self, verdict: Verdict) -> list[str]:
        """Return one line for each component with a verdict; modules come first."""
        rows = [row for row in self.survey.rows if row.verdict == verdict]
        return [_line(row) for row in sorted(rows, key=lambda row: not row.component.startswith(("module", "stage")))]

    def summary(self) -> str:
        """Return how much is gone, changed and new."""
        return self.title

    def to_dict(self) -> ChangeReportDict:
        """Return the lines of each section, and the text."""
        counts = self.survey.counts
        return {
            "system": self.survey.system,
            "host": self.survey.host,
            "day": str(self.survey.day),
            "compared": self.compared,
            "gone": self.lines("missing"),
            "changed": self.lines("differs"),
            "new": self.lines("new"),
            "unseen": counts["unknown"],
            "same": counts["same"],
            "title": self.title,
            "text": self.text,
            "file": None if self.file is None else str(self.file),
        }

    def _lines(self) -> Iterator[str]:
        survey, counts = self.survey, self.survey.counts
        yield f"# {self.title}"
        yield ""
        yield f"The file of the system `{survey.system}` was {self.compared}. A probe of `{survey.host}` found:"
        for verdict, name in _SECTIONS.items():
            if lines := self.lines(verdict):
                yield from ("", f"## {name}", "", *(f"- {line}" for line in lines))
        yield ""
        yield f"As the file says: {counts['same']}. Not visible from this host: {counts['unknown']}."
        if self.sources:
            yield from ("", "Sources of the file:", "", *(f"- {source}" for source in self.sources))


def make_report(survey: Survey, system: System) -> ChangeReport:
    """Return the report of a survey of a system."""
    return ChangeReport(survey, system.compared, system.sources)


def _line(row: SurveyRow) -> str:
    if row.verdict == "new":
        return f"{row.component}: {row.found}"
    registered = f" ({row.registered})" if row.registered.startswith("for ") else ""
    if registered or row.registered in row.component or row.registered == "registered":
        return f"{row.component}{registered}: {row.found}"
    return f"{row.component}: {row.registered} in the file, {row.found} on the machine"
