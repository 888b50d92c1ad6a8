"""Submissions: the folder that a committee's rules ask for, from recorded runs, checked by its own checkers."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmile.base.errors import Conflict, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_duration, format_number
from fairmile.base.words import slug
from fairmile.base.yaml import dump
from fairmile.benchmarks.submission.checkers import Checkers, parse_errors, repository
from fairmile.benchmarks.submission.files import (
    code_version,
    data_of,
    has_generated_data,
    readme,
    run_lines,
    suite_name,
    write_code,
    write_scripts,
)
from fairmile.benchmarks.submission.logs import RunLog, labelled_text, read_log_of, same_seeds
from fairmile.benchmarks.submission.results import Check, Score, Submission, SubmittedRun
from fairmile.benchmarks.submission.rules import AVAILABILITIES, BenchmarkRule, Rules, rules_for
from fairmile.benchmarks.submission.system import describe_system, unanswered
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.runs import Runs
from fairmile.store.store import Store

_IMPLEMENTATION = "fairmile"
# What the committee names it, spelling included.
_CONTRIBUTION = "sientific_contribution.pdf"


@dataclass(frozen=True)
class Labels:
    """Who submits what, and where; `system` is a name for all runs, else each run's own system names it."""

    org: str
    division: str = "open"
    availability: str = "research"
    system: str = ""
    descriptor: str = "experiment-1"


@dataclass(frozen=True)
class _Entry:
    """The runs of one benchmark on one system."""

    rule: BenchmarkRule
    system: str
    logs: list[RunLog]

    @property
    def first(self) -> RunLog:
        return self.logs[0]


def submit(
    runs: Runs,
    store: Store,
    references: Sequence[str],
    folder: Path,
    *,
    to: str,
    labels: Labels,
    description: Mapping[str, Any],
    dry_run: bool = False,
) -> Submission:
    """Write the submission of runs, and run the committee's checkers on it; a dry run leaves nothing behind."""
    rules = rules_for(to)
    _validate(rules, labels)
    if not dry_run and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Conflict(f"{folder} is not empty", hint="name a new folder with -o")
    entries = _entries(rules, [read_log_of(runs, run) for run in _selected(runs, references)], labels)
    for entry in entries:
        _refuse_small_set(rules, entry, labels)
    with _scratch(folder, dry_run) as place:
        package = _Package(rules, labels, description, store, place)
        for entry in entries:
            package.add(entry)
        checks = package.checks()
        files = sorted(str(each.relative_to(place)) for each in place.rglob("*") if each.is_file())
        return Submission(
            to,
            rules.ruleset,
            labels.division,
            folder,
            tuple(package.runs),
            tuple(dict.fromkeys(package.missing)),
            tuple(_score(entry, package.runs) for entry in entries),
            tuple(_relative(check, place) for check in checks),
            tuple(files),
            dry_run,
        )


def _validate(rules: Rules, labels: Labels) -> None:
    if not labels.org.strip():
        raise UsageError("a submission needs the name of an organization", hint="pass it with --org")
    if labels.division not in rules.divisions:
        raise UsageError(
            f"{rules.target} has no {labels.division} division", hint=f"there is {' and '.join(rules.divisions)}"
        )
    if labels.availability not in AVAILABILITIES:
        raise UsageError(f"no availability {labels.availability!r}", hint=f"there are {', '.join(AVAILABILITIES)}")


def _selected(runs: Runs, references: Sequence[str]) -> list[Run]:
    selected: dict[str, Run] = {}
    for reference in references:
        for run in runs.select(reference):
            collected = runs.collect(run.id)
            selected.setdefault(collected.id, collected)
    if not selected:
        raise UsageError("name the runs to submit")
    return list(selected.values())


def _entries(rules: Rules, logs: Sequence[RunLog], labels: Labels) -> list[_Entry]:
    """Group runs by benchmark and system, in the order in which they are named."""
    entries: dict[tuple[str, str], _Entry] = {}
    for log in logs:
        named = suite_name(log.run) or str(log.value("submission_benchmark") or log.run.name)
        rule = rules.benchmark(named, log.run.id)
        system = slug(labels.system or log.run.system) or "system"
        entries.setdefault((rule.name, system), _Entry(rule, system, [])).logs.append(log)
    return list(entries.values())


def _refuse_small_set(rules: Rules, entry: _Entry, labels: Labels) -> None:
    """Refuse the closed division for runs that did not train on the full data set."""
    if labels.division != "closed":
        return
    sizes = {"train_samples": entry.rule.train_samples, "eval_samples": entry.rule.eval_samples}
    if all(size is None for size in sizes.values()):
        raise UsageError(f"the size of the full data set of {entry.rule.name} is not known", hint="--division open")
    for log in entry.logs:
        if suite_name(log.run) and "data" not in log.run.captured.inputs:
            raise UsageError(
                f"run {log.run.id} trained on generated data; the closed division of {rules.target} {rules.ruleset} "
                "needs the published data set",
                hint="name the data set when you run the benchmark, or submit with --division open",
            )
        for key, size in sizes.items():
            logged = log.value(key)
            if size is not None and logged != size:
                raise UsageError(
                    f"run {log.run.id} logs {key} {logged}; the closed division of {rules.target} {rules.ruleset} "
                    f"needs {size}",
                    hint="submit runs on a smaller data set with --division open",
                )


@contextlib.contextmanager
def _scratch(folder: Path, dry_run: bool) -> Iterator[Path]:
    """Give the folder to write to: one beside the target that takes its name at the end, or one that goes."""
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="fairmile-submission-") as scratch:
            yield Path(scratch)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", suffix="-part", dir=folder.parent))
    try:
        yield aside
        if folder.exists():
            folder.rmdir()
        aside.chmod(0o755)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


class _Package:
    """Writes the entries of a submission below one folder, and collects what they lack."""

    def __init__(self, rules: Rules, labels: Labels, description: Mapping[str, Any], store: Store, place: Path) -> None:
        self.runs: list[SubmittedRun] = []
        self.missing: list[str] = []
        self._rules = rules
        self._labels = labels
        self._given = description
        self._store = store
        self._place = place
        self._top = place / slug(labels.org, keep_case=True)
        self._checkers = Checkers(rules.usage, rules.ruleset)
        self._results: dict[Path, dict[str, list[str]]] = {}  # by folder, what is wrong in each result file

    def add(self, entry: _Entry) -> None:
        """Write one benchmark on one system."""
        if self._rules.usage:
            self._add_training(entry)
        else:
            self._add_science(entry)

    def checks(self) -> list[Check]:
        """Run the committee's checkers on what was written."""
        checks = [repository(self._top)]
        if self._rules.usage:
            checks += [_compliance(folder, files) for folder, files in self._results.items()]
            checks += [self._checkers.package(self._top)]
            is_closed = self._labels.division == "closed"
            checks += [self._checkers.convergence(folder, is_required=is_closed) for folder in self._results]
        return checks

    def _add_training(self, entry: _Entry) -> None:
        """Write systems, benchmarks and results as MLPerf's training benchmarks have them."""
        self._describe(entry, self._top / "systems" / f"{entry.system}.json")
        implementations = self._top / "benchmarks" / entry.rule.name / "implementations"
        self._code(entry, implementations / _IMPLEMENTATION)
        folder = implementations / entry.system
        write_scripts(entry.first.run, folder)
        about = {
            "implementation": _IMPLEMENTATION,
            "command": run_lines(entry.first.run),
            "code": code_version(entry.first.run),
            "hyperparameters": dict(entry.first.run.params),
        }
        write_atomic(folder / f"{entry.system}_{_IMPLEMENTATION}.json", _json(about))
        results = self._top / "results" / entry.system / "strong" / entry.rule.name
        self._results[results] = {}
        done = self._logs(entry, results, "result_{}.txt", 0)
        self._readme(entry, folder, done)

    def _add_science(self, entry: _Entry) -> None:
        """Write the folder that holds everything of one experiment, as MLCommons Science has it."""
        folder = self._top / entry.rule.name / entry.system / slug(self._labels.descriptor)
        self._describe(entry, folder / "system.json")
        self._code(entry, folder / "code")
        write_scripts(entry.first.run, folder)
        run = entry.first.run
        git = run.captured.code.git
        settings = {
            "github": {"repo": git.remote if git is not None else "", "version": code_version(run)},
            "data": data_of(run),
            "run": run_lines(run),
            "seed": run.record.spec.seed,
            "hyperparameters": dict(run.params),
        }
        write_atomic(folder / "config.yaml", dump(settings))
        self.missing.append(f"{entry.rule.name}: {_CONTRIBUTION}, which describes the scientific contribution")
        done = self._logs(entry, folder, "result-{}.txt", 1)
        self._readme(entry, folder, done)

    def _describe(self, entry: _Entry, file: Path) -> None:
        labels = {
            "submitter": self._labels.org,
            "division": self._labels.division,
            "status": self._labels.availability,
            "system_name": entry.system,
        }
        description = describe_system(entry.first, labels, self._given)
        write_atomic(file, _json(description))
        if empty := unanswered(description):
            self.missing.append(f"system {entry.system}: {', '.join(empty)}")

    def _code(self, entry: _Entry, folder: Path) -> None:
        if missing := write_code(entry.first.run, self._store, folder):
            self.missing.append(missing)

    def _logs(self, entry: _Entry, folder: Path, name: str, first: int) -> list[SubmittedRun]:
        repeats = same_seeds(entry.logs)
        done = []
        for number, log in enumerate(entry.logs, first):
            file = folder / name.format(number)
            text, changed = labelled_text(log, self._log_labels(entry, log))
            write_atomic(file, text)
            missing = [*self._missing_of(log, file)]
            if log.run.id in repeats:
                missing.append(f"same seed as run {repeats[log.run.id]}")
            where = str(file.relative_to(self._place))
            seed = log.value("seed")
            row = (log.run.id, entry.rule.name, entry.system, seed, log.duration_s, where)
            done.append(SubmittedRun(*row, tuple(changed), tuple(missing)))
        if len(entry.logs) < entry.rule.runs:
            self.missing.append(f"{entry.rule.name} on {entry.system}: {len(entry.logs)} of {entry.rule.runs} runs")
        self.runs += done
        return done

    def _log_labels(self, entry: _Entry, log: RunLog) -> dict[str, Any]:
        labels: dict[str, Any] = {
            "submission_benchmark": entry.rule.name,
            "submission_org": self._labels.org,
            "submission_division": self._labels.division,
            "submission_status": self._labels.availability,
            "submission_platform": entry.system,
        }
        if self._rules.usage:
            return labels
        version = str(log.run.captured.software.get("fairmile") or "")
        labels |= {"submission_version": version, "submission_github_commit_version": code_version(log.run)}
        if not log.values("result"):
            labels["result"] = {name: metric.value for name, metric in log.run.metrics.items()}
        return labels

    def _missing_of(self, log: RunLog, file: Path) -> Iterator[str]:
        """Tell what a run lacks, in the words of the committee's checker where it has them."""
        if log.run.state is not RunState.DONE:
            yield f"the run is {log.run.state}" + (f": {log.run.reason}" if log.run.reason else "")
        if has_generated_data(log.run):
            yield "it trained on generated data: the committee's targets and results hold for the published data set"
        if not log.source:
            yield "no MLPerf log: neither an output file nor the printed output has :::MLLOG lines"
            return
        if not self._rules.usage:
            yield from parse_errors(file)
            if not log.run.metrics and not log.values("result"):
                yield "no result: neither a metric nor a log line with the key result"
            return
        messages = self._results[file.parent][file.name] = self._checkers.compliance(file)
        for message in messages:
            measured = [
                f"; best logged {format_number(best(values))}"
                for key, best in (("eval_error", min), ("eval_accuracy", max))
                if key in message and (values := [v for v in log.values(key) if isinstance(v, int | float)])
            ]
            yield message + "".join(measured)

    def _readme(self, entry: _Entry, folder: Path, done: Sequence[SubmittedRun]) -> None:
        facts = {
            "organization": self._labels.org,
            "system": entry.system,
            "division": self._labels.division,
            "rules": f"{self._rules.target} {self._rules.ruleset}, {self._rules.source}",
            "data": ", ".join(data_of(entry.first.run)) or "what the program brings",
        }
        rows = []
        for log, each in zip(entry.logs, done, strict=True):
            took = "" if each.elapsed_s is None else format_duration(each.elapsed_s)
            metrics = ", ".join(f"{k} {format_number(m.value, m.unit)}" for k, m in list(log.run.metrics.items())[:3])
            rows.append((each.run, Path(each.file).name, "" if each.seed is None else str(each.seed), took, metrics))
        changed = list(dict.fromkeys(key for each in done for key in each.changed))
        notes = ["Set in the logs after the runs: " + ", ".join(changed) + "."] if changed else []
        write_atomic(folder / "README.md", readme(entry.rule.name, entry.first.run, facts, rows, notes))


def _compliance(folder: Path, files: Mapping[str, Sequence[str]]) -> Check:
    """Return what the compliance checker found in the logs of a folder; runs without a log are not among them."""
    wrong = [f"{name}: {message}" for name, messages in files.items() for message in messages]
    comply = sum(not messages for messages in files.values())
    is_good = bool(files) and not wrong
    return Check("compliance checker", str(folder), is_good, (f"{comply} of {len(files)} logs comply", *wrong))


def _score(entry: _Entry, done: Sequence[SubmittedRun]) -> Score:
    """Return the mean time to the target without the fastest and the slowest run, if enough runs reach it.

    Of runs with the same seed only the first counts; a run that lacks something takes for ever.
    """
    incomplete = {each.run for each in done if each.missing}
    repeats = same_seeds(entry.logs)
    times = sorted(
        math.inf if log.duration_s is None or log.run.id in incomplete else log.duration_s
        for log in entry.logs
        if log.run.id not in repeats
    )
    is_scored = len(times) >= entry.rule.runs > 2
    value = sum(times[1:-1]) / len(times[1:-1]) if is_scored else math.inf
    time_s = value if math.isfinite(value) else None
    return Score(entry.rule.name, entry.system, len(entry.logs), entry.rule.runs, time_s)


def _relative(check: Check, place: Path) -> Check:
    """Return a check with paths as they stand in the submission, wherever it was made."""
    messages = tuple(message.replace(f"{place}/", "") for message in check.messages)
    return replace(check, path=str(Path(check.path).relative_to(place)), messages=messages)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, default=str) + "\n"
