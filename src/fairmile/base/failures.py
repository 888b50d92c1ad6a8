"""Any error as data: one sentence, a hint, an exit code."""

from __future__ import annotations

import errno
import os
from typing import Self

from fairmile.base.errors import ErrorDict, FairmileError, InvalidDocument
from fairmile.base.quick_named_tuple import NamedTuple


class Failure(NamedTuple):
    """What went wrong, what to do, and the exit code it means."""

    type: str
    message: str
    hint: str
    exit_code: int
    # Further problems of the same document, each with its own hint.
    problems: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the failure to show for an error of any kind."""
        if isinstance(error, FairmileError):
            problems = error.problems if isinstance(error, InvalidDocument) else ()
            lines = tuple((str(problem), problem.hint) for problem in problems)
            return cls(type(error).__name__, str(error), error.hint or "", error.exit_code, lines)
        if isinstance(error, OSError):
            return cls("SystemFailure", *_system(error), 3)
        if type(error).__module__ == "sqlite3":
            hint = "free some space, or rebuild it with `fairmile catalog reindex`"
            return cls("SystemFailure", f"cannot use the index: {error}", hint, 3)
        if isinstance(error, MemoryError):
            return cls("SystemFailure", "out of memory", "use a machine with more memory, or run less concurrently", 3)
        hint = "this is a bug in fairmile; run the command again with --debug and report the output"
        return cls(type(error).__name__, f"{type(error).__name__}: {error}", hint, 3)

    def to_dict(self) -> ErrorDict:
        """Return the failure as data."""
        facts: ErrorDict = {
            "type": self.type,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }
        if self.problems:
            facts["problems"] = [{"message": message, "hint": hint} for message, hint in self.problems]
        return facts


def _system(error: OSError) -> tuple[str, str]:
    if error.filename is None and isinstance(error, FileNotFoundError) and not _is_somewhere():
        return "the current folder no longer exists", "change to another folder with cd"
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"cannot write the output: {reason}" if error.errno == errno.ENOSPC else reason, ""
    return f"{error.filename}: {reason}", "check the path, its permissions and the free space"


def _is_somewhere() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True
