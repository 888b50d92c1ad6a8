"""The states of a job, and what is known about one at a moment."""

from __future__ import annotations

from enum import StrEnum

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict


class State(StrEnum):
    """Where a job is; those behind `DONE` are its ends."""

    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    ENDING = "ending"
    UNKNOWN = "unknown"  # the scheduler said a word that we do not know: not an end
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAILED = "node_failed"
    PREEMPTED = "preempted"
    LOST = "lost"  # no scheduler and no file knows how it ended

    @property
    def is_end(self) -> bool:
        return self in _ENDS

    @property
    def is_transient(self) -> bool:
        """Tell whether the same job may well succeed when it is run once more."""
        return self in (State.NODE_FAILED, State.PREEMPTED, State.LOST)


_ENDS = frozenset(list(State)[list(State).index(State.DONE) :])


class UsageDict(TypedDict):
    """What a job used, as JSON."""

    source: str
    elapsed_s: float | None
    cpu_s: float | None
    max_rss_bytes: int | None
    energy_j: float | None


@dataclass(frozen=True)
class Usage:
    """What a job used, as far as its scheduler tells; `source` names who counted."""

    source: str
    elapsed_s: float | None = None
    cpu_s: float | None = None
    max_rss_bytes: int | None = None
    energy_j: float | None = None

    def to_dict(self) -> UsageDict:
        """Return what was used as data."""
        return {
            "source": self.source,
            "elapsed_s": self.elapsed_s,
            "cpu_s": self.cpu_s,
            "max_rss_bytes": self.max_rss_bytes,
            "energy_j": self.energy_j,
        }


@dataclass(frozen=True)
class Observed:
    """What a scheduler says of a job, or of one task of an array, at a moment.

    `native` is its own word for the state and `reason` its own word for why; `sentence` says it to a person.
    """

    state: State
    native: str = ""
    reason: str = ""
    sentence: str = ""
    exit_code: int | None = None
    signal: int | None = None
    nodes: str = ""
    restarts: int = 0
    usage: Usage | None = None
