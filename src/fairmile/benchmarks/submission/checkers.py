"""The committees' public checkers, from the package mlperf-logging, run on a submission."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fairmile.base.errors import MissingExtra
from fairmile.base.quick_dataclass import dataclass
from fairmile.benchmarks.submission.results import Check

_FEWEST_SCORED = 3
# What a checker raises where it does not expect the value of a key, such as a seed that is no number.
_CRASHES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, OSError, TypeError, ValueError)
_RULESET_OF_PARSER = "3.0.0"  # for logs of committees that have no rule set of their own in the package


class _Collected(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.has_errors = False

    def emit(self, record: logging.LogRecord) -> None:
        self.has_errors = self.has_errors or record.levelno >= logging.ERROR
        self.lines.append(" ".join(record.getMessage().split()))


@dataclass(frozen=True)
class Checkers:
    """The checkers of one rule set, such as `hpc` 3.0.0."""

    usage: str
    ruleset: str

    def compliance(self, file: Path) -> list[str]:
        """Return what the compliance checker finds wrong in one result file."""
        module = _module("compliance_checker.mlp_compliance")
        checker = module.make_checker(self.usage, self.ruleset, quiet=True, werror=False)
        try:
            with _collected():
                module.main(str(file), f"{self.usage}_{self.ruleset}/common.yaml", checker)
        except _CRASHES as error:
            return [_crash(error)]
        messages = [*checker.overwritable.values(), *checker.not_overwritable]
        return [message.partition("\ncurrent context")[0].replace("\n", " ").strip() for message in messages]

    def package(self, folder: Path) -> Check:
        """Run the package checker on the folder of an organization."""
        module = _module("package_checker.package_checker")

        def passes() -> bool:
            systems = module.check_systems(str(folder), self.usage, self.ruleset)
            options = {"quiet": False, "werror": False, "rcp_bypass": False, "rcp_bert_train_samples": False}
            files = module.check_training_result_files(
                str(folder), self.usage, self.ruleset, **options, seed_checker_bypass=False
            )
            return bool(systems and files)

        return _run("package checker", folder, passes)

    def convergence(self, folder: Path, *, is_required: bool) -> Check:
        """Compare the epochs to the target with the committee's reference convergence points (RCP).

        The rules ask for that in the closed division only.
        """
        if len(list(folder.glob("result_*.txt"))) < _FEWEST_SCORED:
            message = f"needs at least {_FEWEST_SCORED} runs: the fastest and the slowest do not count"
            return Check("RCP checker", str(folder), False, (message,), is_required=is_required)
        module = _module("rcp_checker.rcp_checker")
        try:
            with _collected() as seen:
                passed, message, _ = module.check_directory(
                    str(folder), self.usage, self.ruleset, False, False, rcp_pass="pruned_rcps"
                )
        except _CRASHES as error:
            return Check("RCP checker", str(folder), False, (_crash(error),), is_required=is_required)
        reason = "" if passed or message != "RCP found" else ", but the runs needed fewer epochs than it allows"
        messages = (f"{message}{reason}", *seen.lines)
        return Check("RCP checker", str(folder), bool(passed), messages, is_required=is_required)


def parse_errors(file: Path) -> list[str]:
    """Return the lines of a result file that mlperf-logging cannot parse, with its reasons."""
    module = _module("compliance_checker.mlp_parser")
    with _collected():
        _, errors = module.parse_file(str(file), ruleset=_RULESET_OF_PARSER)
    return [f"{reason}: {str(line)[:200]}" for line, reason in errors]


def repository(folder: Path) -> Check:
    """Run the check that every file can be committed to the committee's repository."""
    module = _module("repo_checker.repo_checker")
    with _collected() as seen:
        module.run_checks(str(folder))  # it returns False in any case; its errors tell
    return Check("repository checker", str(folder), not seen.has_errors, tuple(seen.lines))


def _run(name: str, folder: Path, passes: Callable[[], bool]) -> Check:
    try:
        with _collected() as seen:
            passed = passes()
    except _CRASHES as error:
        return Check(name, str(folder), False, (_crash(error),))
    return Check(name, str(folder), passed, tuple(dict.fromkeys(seen.lines)))


def _crash(error: Exception) -> str:
    return f"the committee's checker cannot read the log: {type(error).__name__}: {error}"


@contextlib.contextmanager
def _collected() -> Iterator[_Collected]:
    """Collect warnings and errors of the checkers, which log to the root logger and print."""
    handler, root = _Collected(), logging.getLogger()
    before, own = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield handler
            handler.lines += [str(each.message) for each in warned]
    finally:
        root.handlers[:] = before
        root.setLevel(own)


def _module(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"mlperf_logging.{name}")
    except ImportError as error:
        raise MissingExtra("the committees' checkers need mlperf-logging", "submit") from error
