"""What making a submission returns."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result


class SubmittedRunDict(TypedDict):
    """One run of a submission; `missing` lists what the rules ask for and the run does not have."""

    run: str
    benchmark: str
    system: str
    seed: int | str | None
    elapsed_s: float | None
    file: str
    changed: list[str]
    missing: list[str]


class CheckDict(TypedDict):
    checker: str
    path: str
    passed: bool
    required: bool
    messages: list[str]


class ScoreDict(TypedDict):
    """The score of one benchmark on one system: the mean time without the fastest and the slowest run."""

    benchmark: str
    system: str
    runs: int
    needed: int
    time_to_solution_s: float | None


class SubmissionDict(TypedDict):
    to: str
    ruleset: str
    division: str
    folder: str
    accepted: bool
    runs: list[SubmittedRunDict]
    missing: list[str]
    scores: list[ScoreDict]
    checks: list[CheckDict]
    files: list[str]
    dry_run: bool


@dataclass(frozen=True)
class SubmittedRun:
    """One run of a submission; `changed` are the keys of its log that the submission set."""

    run: str
    benchmark: str
    system: str
    seed: int | str | None
    elapsed_s: float | None
    file: str
    changed: tuple[str, ...]
    missing: tuple[str, ...]

    def to_dict(self) -> SubmittedRunDict:
        return {
            "run": self.run,
            "benchmark": self.benchmark,
            "system": self.system,
            "seed": self.seed,
            "elapsed_s": self.elapsed_s,
            "file": self.file,
            "changed": list(self.changed),
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class Check:
    """The verdict of one of the committee's checkers on a folder."""

    checker: str
    path: str
    passed: bool
    messages: tuple[str, ...] = ()
    is_required: bool = True  # whether the rules ask for it in the division of the submission

    def to_dict(self) -> CheckDict:
        return {
            "checker": self.checker,
            "path": self.path,
            "passed": self.passed,
            "required": self.is_required,
            "messages": list(self.messages),
        }


@dataclass(frozen=True)
class Score:
    """The score of one benchmark on one system; None below the number of runs that the rules ask for."""

    benchmark: str
    system: str
    runs: int
    needed: int
    time_to_solution_s: float | None

    def to_dict(self) -> ScoreDict:
        return {
            "benchmark": self.benchmark,
            "system": self.system,
            "runs": self.runs,
            "needed": self.needed,
            "time_to_solution_s": self.time_to_solution_s,
        }


@dataclass(frozen=True, repr=False)
class Submission(Result):
    """A submission, what it lacks, and what the committee's checkers say of it."""

    rows_field: ClassVar[str] = "runs"

    to: str
    ruleset: str
    division: str
    folder: Path
    runs: tuple[SubmittedRun, ...]
    missing: tuple[str, ...]  # of the whole: fields of the system description, documents, code
    scores: tuple[Score, ...]
    checks: tuple[Check, ...]
    files: tuple[str, ...]  # below `folder`
    dry_run: bool = False

    @property
    def accepted(self) -> bool:
        """Whether every checker that the rules ask for passes and nothing is missing."""
        is_complete = not self.missing and not any(each.missing for each in self.runs)
        return is_complete and all(each.passed for each in self.checks if each.is_required)

    def to_dict(self) -> SubmissionDict:
        return {
            "to": self.to,
            "ruleset": self.ruleset,
            "division": self.division,
            "folder": str(self.folder),
            "accepted": self.accepted,
            "runs": [each.to_dict() for each in self.runs],
            "missing": list(self.missing),
            "scores": [each.to_dict() for each in self.scores],
            "checks": [each.to_dict() for each in self.checks],
            "files": list(self.files),
            "dry_run": self.dry_run,
        }

    def summary(self) -> str:
        verdict = "ready" if self.accepted else "incomplete"
        runs = f"{len(self.runs)} run" + ("" if len(self.runs) == 1 else "s")
        return f"{self.to} {self.ruleset}, {self.division} division, {runs}: {verdict}"
