"""The one error tree; each error says what happened, may carry a hint, and knows its exit code.

FairmileError                          3  something outside the program went wrong
├── UsageError      (ValueError)       2  the caller gave something that cannot be used
│   └── InvalidDocument                2  a document breaks its rules; lists every problem
├── NotFound        (LookupError)      2  a name leads nowhere
├── Conflict                           2  what already exists contradicts what is asked for
├── Unsupported     (NotImplementedError)  3  this system lacks the feature
│   └── MissingExtra                   3  a package is not installed; the hint is the command that installs it
├── SystemFailure   (OSError)          3  a command is missing, a folder cannot be read
│   └── DiskFailure                    3  our own disk is full, read-only or not ours to write
├── Transient       (ConnectionError)  3  a retry makes sense
├── Integrity                          4  bytes are not what their digest says
└── RunFailed       (RuntimeError)     1  the experiment itself failed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NotRequired

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict


class ProblemDict(TypedDict):
    message: str
    hint: str


class ErrorDict(TypedDict):
    type: str
    message: str
    hint: str
    exit_code: int
    problems: NotRequired[list[ProblemDict]]


class FairmileError(Exception):
    """Every error that Fairmile raises on purpose."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Second bases such as OSError read several arguments as errno and file name: they get exactly one.
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # which a traceback shows below the message

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,), self.__dict__

    def to_dict(self) -> ErrorDict:
        """Return the error as data, as every command prints it with `--json`."""
        return {
            "type": type(self).__name__,
            "message": str(self),
            "hint": self.hint or "",
            "exit_code": self.exit_code,
        }

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the lines of the user's code that led here, and the message."""
        return [*_callers(self), f"{type(self).__name__}: {self}", *([f"hint: {self.hint}"] if self.hint else [])]


def _callers(error: FairmileError) -> list[str]:
    """Return the lines of code that led to the first call of Fairmile."""
    from itertools import takewhile
    from traceback import extract_tb

    package = f"{__file__.rpartition('/base/')[0]}/"
    outside = takewhile(lambda frame: not frame.filename.startswith(package), extract_tb(error.__traceback__))
    users = [frame for frame in outside if "/IPython/" not in frame.filename]
    return [f"{_source_of(frame.filename)}line {frame.lineno}: {frame.line}" for frame in users]


def _source_of(file: str) -> str:
    return "" if "/ipykernel_" in file or file.startswith("<") else f"{file}, "


class UsageError(FairmileError, ValueError):
    """The caller gave something that cannot be used."""

    exit_code = 2


class NotFound(FairmileError, LookupError):
    """A name leads nowhere."""

    exit_code = 2


class Conflict(FairmileError):
    """What already exists contradicts what is asked for."""

    exit_code = 2


class Unsupported(FairmileError, NotImplementedError):
    """This system lacks the feature, or a package that it needs."""


class MissingExtra(Unsupported):
    """A package is not installed; the hint is the command that installs it, and nothing else."""

    def __init__(self, sentence: str, extra: str) -> None:
        super().__init__(sentence, hint=f"pip install 'fairmile[{extra}]'")
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.extra), self.__dict__


class SystemFailure(FairmileError, OSError):
    """The machine cannot do it: a command is missing, a disk is full, a folder is read-only."""


class DiskFailure(SystemFailure):
    """Our own disk refuses: it is full, read-only or not ours to write."""


class Locked(SystemFailure):
    """Another process holds what only one may have at a time."""


class Transient(FairmileError, ConnectionError):
    """The other side did not answer as it should; a retry makes sense."""


class Integrity(FairmileError):
    """Bytes are not what their digest says."""

    exit_code = 4


class RunFailed(FairmileError, RuntimeError):
    """The experiment itself failed."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a document, and where."""

    message: str
    field: str = ""
    severity: Literal["error", "warning"] = "error"
    file: str = ""
    line: int | None = None
    hint: str = ""

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place = f"{self.file}:{self.line}" if self.file else f"line {self.line}"
        place = " ".join(part for part in (place, self.field) if part)
        return f"{place}: {self.message}" if place else self.message


class InvalidDocument(UsageError):
    """A document breaks its rules; `problems` lists all that was found, the message names the first error."""

    def __init__(self, problems: Sequence[Problem], *, hint: str | None = None) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        if self.problems:
            first = next((p for p in self.problems if p.severity == "error"), self.problems[0])
            message, hint = str(first), hint or first.hint or None
            if len(self.problems) > 1:
                message += f" (and {len(self.problems) - 1} more)"
        else:
            message = "the document is invalid"
        super().__init__(message, hint=hint)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,), self.__dict__

    def to_dict(self) -> ErrorDict:
        """Return the error as data, with every problem."""
        data = super().to_dict()
        if self.problems:
            data["problems"] = [{"message": str(each), "hint": each.hint} for each in self.problems]
        return data
