"""Pages, comparisons and leaderboards of the runs of one workspace, by the names of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.nouns import Noun
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result
from fairmile.meter.footprint import Supply
from fairmile.reports.comparison import Comparison, compare, group_runs
from fairmile.reports.inference import CONFIDENCE
from fairmile.reports.leaderboard import Leaderboard, leaderboard, parse_where
from fairmile.reports.measures import ALWAYS
from fairmile.reports.page import MOST_ROWS, Report, comparison_report, report
from fairmile.reports.references import Check, check, read_references
from fairmile.reports.sampling import Sample, best_runs, sample_runs
from fairmile.reports.shapes import EvaluationDict
from fairmile.reports.sweep import Goal
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.run import Run

if TYPE_CHECKING:
    from fairmile.models.explore.results import Exploration
    from fairmile.predict.characterization import Characterization
    from fairmile.predict.results import MemoryPrediction, TimePrediction
    from fairmile.predict.scaling.curves import ScalingPrediction
    from fairmile.traces.analyze import TraceAnalysis

# Most reports are of runs, which need neither predictions nor traces.
_PAGES: Registry[Callable[..., str]] = Registry("page", {"result": Plugin("fairmile.reports.result_pages:result_page")})
_LAST = "last"
_COMBINED = "-combined"  # ends the id of the run that combines the results of a sweep


@dataclass(frozen=True)
class About:
    """What a sweep or study says of its runs beside their records."""

    objectives: Sequence[Goal] = ()
    hindsight: Sequence[Mapping[str, object]] = ()
    log: Sequence[str] = ()  # parameters that are searched on a logarithmic scale


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """Runs compared with one another, and checked against reference values; None where there was no such question."""

    comparison: Comparison | None
    check: Check | None

    @property
    def passed(self) -> bool:
        """Whether every metric is within the tolerance of its reference; also where nothing was checked."""
        return self.check is None or self.check.passed

    def to_dict(self) -> EvaluationDict:
        return {
            "comparison": self.comparison.to_dict() if self.comparison else None,
            "check": self.check.to_dict() if self.check else None,
        }

    def summary(self) -> str:
        return "; ".join(each.summary() for each in (self.check, self.comparison) if each)

    def _repr_html_(self) -> str:
        return "".join(each._repr_html_() for each in (self.comparison, self.check) if each)


_INTERNAL = "groups compared"  # for other parts of Fairmile


class Reports(Noun, internal=_INTERNAL, package=__package__):
    """Reports of runs; each reference is an id, a group or a name of runs, or `last`."""

    def __init__(self, ledger: Callable[[], Ledger], supply: Supply, about: Callable[[str], About]) -> None:
        self._ledger = ledger
        self._supply = supply
        self._about = about  # of a group of runs

    def page(
        self,
        *references: str,
        metrics: Sequence[str] | None = None,
        where: Sequence[str] = (),
        over: Sequence[str] = (),
        most_rows: int = MOST_ROWS,
        most_runs: int | None = None,
    ) -> Report:
        """Report runs, or the last ones without a reference; `write(path)` of the result writes the file.

        A sweep or study is reported by the metric that its file names, unless `metrics` are given. Tables of points and
        of runs have at most `most_rows`. One sweep or study of more than `most_runs` is reported from a sample.
        """
        sample = self._sample(references, most_runs) if most_runs is not None and not where else None
        runs = sample.runs if sample is not None else self._filtered(references, where)
        groups = {run.group for run in runs}
        about = self._about(groups.pop()) if len(groups) == 1 and "" not in groups else About()
        made = report(
            runs,
            metrics=metrics or None,
            objectives=about.objectives,
            hindsight=about.hindsight,
            over=over,
            log=about.log,
            supply=self._supply,
            most_rows=most_rows,
        )
        return sample.mark(made) if sample is not None else made

    def _sample(self, references: Sequence[str], most_runs: int) -> Sample | None:
        if len(references) != 1:
            return None
        goals = tuple(self._about(references[0]).objectives)
        return sample_runs(self._ledger(), references[0], most_runs, goals)

    def compare(
        self, *references: str, metrics: Sequence[str] | None = None, confidence: float = CONFIDENCE
    ) -> Comparison:
        """Compare groups of repeats with the first; a single reference is split into groups of repeats."""
        return compare(self.groups(*references), metrics, confidence=confidence)

    def compared(self, *references: str) -> Report:
        """Report what `compare` finds, with curves; a single reference that has no groups is reported by itself."""
        groups = self.groups(*references)
        return comparison_report(groups) if len(groups) > 1 else self.page(*references)

    def evaluate(
        self,
        *references: str,
        metrics: Sequence[str] | None = None,
        confidence: float = CONFIDENCE,
        file: Path | None = None,
    ) -> Evaluation:
        """Compare several runs, and check them against a file of reference values if given."""
        several = sum(map(len, self.groups(*references).values())) > 1
        if not several and file is None:
            raise UsageError(
                "there is only one run, and nothing to compare it with",
                hint="name a second run, group or name, or a file with --reference",
            )
        return Evaluation(
            self.compare(*references, metrics=metrics, confidence=confidence) if several else None,
            self.check(*references, file=file) if file else None,
        )

    def check(self, *references: str, file: Path) -> Check:
        """Compare runs with the reference values of a file."""
        return check([run for each in self.groups(*references).values() for run in each], read_references(file))

    def write_page(
        self,
        result: MemoryPrediction | TimePrediction | ScalingPrediction | Characterization | TraceAnalysis | Exploration,
        path: str | Path,
        *,
        title: str = "",
    ) -> Path:
        """Write what `fm.predict`, `fm.traces.analyze` or `fm.models.explore` returned as one HTML page."""
        write_atomic(Path(path), _PAGES["result"](result, title))
        return Path(path)

    def leaderboard(
        self, metric: str, *references: str, n: int = 10, where: Sequence[str] = (), most_runs: int | None = None
    ) -> Leaderboard:
        """Rank runs by a metric; without a reference, all runs that have it, or the best `most_runs` of them."""
        if most_runs is not None and not references:
            runs, total = best_runs(self._ledger(), metric, " ".join(where), most_runs)
            if total > len(runs):
                some = f"{len(runs):,} best of {total:,} runs"
                note = f"Ranked are the {some}; repeats that are not among them do not count."
                board = leaderboard(runs, metric, n=n)
                return replace(board, notes=(*board.notes, note))
        return leaderboard(self._having(metric, references), metric, n=n, where=parse_where(where))

    def groups(self, *references: str) -> Mapping[str, Sequence[Run]]:
        """Return the runs of each reference; those of a single reference in groups of repeats."""
        selected = {reference: self._ledger().select(reference) for reference in references}
        return group_runs(next(iter(selected.values()))) if len(selected) == 1 else selected

    def _filtered(self, references: Sequence[str], where: Sequence[str]) -> list[Run]:
        holds, ledger = parse_where(where), self._ledger()
        everything = not references and bool(where)
        named = [ledger.get(row.id) for row in ledger.rows()] if everything else self._chosen(references)
        chosen = [run for run in named if holds(run)]
        if named and not chosen:
            raise NotFound(f"no run has {' and '.join(where)}", hint="`fairmile runs ls` lists the runs")
        return chosen

    def _chosen(self, references: Sequence[str]) -> list[Run]:
        words = [self._group_of_last() if each == _LAST else each for each in references or (_LAST,)]
        return list({run.id: run for word in words for run in self._ledger().select(word)}.values())

    def _group_of_last(self) -> str:
        """Return the sweep, the study or the repeats that the last run is part of."""
        run = self._ledger().get(_LAST)
        return run.group or run.id.removesuffix(_COMBINED)

    def _having(self, metric: str, references: Sequence[str]) -> list[Run]:
        if references:
            return self._chosen(references)
        rows = self._ledger().rows()
        having = [row for row in rows if metric in ALWAYS or metric in row.metrics] or rows
        return [self._ledger().get(row.id) for row in having]
