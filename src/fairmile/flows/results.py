"""What the calls of flows return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.results import Result, Results
from fairmile.flows.plan import Action, PlannedStep
from fairmile.flows.state import BAD, Entry

# How steps stand, in the order in which they are counted; `waiting` ones have not begun.
STATES = ("failed", "timeout", "interrupted", "cancelled", "running", "queued", "waiting", "done", "left out")


class StepStatusDict(TypedDict):
    name: str
    needs: list[str]
    on: str
    state: str
    run: str
    elapsed_s: float | None
    progress: float | None
    reason: str


class FlowStatusDict(TypedDict):
    """Where a flow stands: who carries it out, how many steps are in each state, and each step."""

    flow: str
    holder: str
    counts: dict[str, int]
    steps: list[StepStatusDict]


@dataclass(frozen=True)
class StepStatus:
    """Where a step stands; `progress` is a share that its program told."""

    name: str
    needs: list[str]
    on: str
    state: str
    run: str = ""
    elapsed_s: float | None = None
    progress: float | None = None
    reason: str = ""

    def to_dict(self) -> StepStatusDict:
        return {
            "name": self.name,
            "needs": self.needs,
            "on": self.on,
            "state": self.state,
            "run": self.run,
            "elapsed_s": self.elapsed_s,
            "progress": self.progress,
            "reason": self.reason,
        }


@dataclass(frozen=True, repr=False)
class FlowStatus(Result):
    """Where a flow stands, step by step."""

    id: str
    steps: list[StepStatus]
    holder: str = ""  # who carries it out; empty: nobody
    rows_field = "steps"

    def counts(self) -> dict[str, int]:
        """Return how many steps are in each state."""
        counted = Counter(step.state for step in self.steps)
        return {state: counted[state] for state in STATES if counted[state]}

    @property
    def has_failed(self) -> bool:
        return any(step.state in BAD for step in self.steps)

    @property
    def is_over(self) -> bool:
        """Whether no step runs, waits for a system, or has still to begin."""
        return not any(step.state in ("running", "queued", "waiting") for step in self.steps)

    @property
    def has_live(self) -> bool:
        """Whether a step runs or is queued somewhere."""
        return any(step.state in ("running", "queued") for step in self.steps)

    def step(self, name: str) -> StepStatus:
        """Return where one step stands."""
        return next(each for each in self.steps if each.name == name)

    def to_dict(self) -> FlowStatusDict:
        steps = [step.to_dict() for step in self.steps]
        return {"flow": self.id, "holder": self.holder, "counts": self.counts(), "steps": steps}

    def summary(self) -> str:
        return f"{self.id}: {', '.join(f'{count:,} {state}' for state, count in self.counts().items()) or 'no steps'}"


def step_status(planned: PlannedStep, newest: Entry | None, done: Entry | None) -> StepStatus:
    """Return where a step stands by its plan and by what happened to it last."""
    at = (planned.name, planned.node.needs, planned.on)
    if planned.action is Action.OMIT:
        return StepStatus(*at, "left out", reason=planned.reason)
    if planned.action in (Action.SKIP, Action.RESTORE) and done is not None:
        reason = planned.reason if planned.action is Action.RESTORE else done.reason
        return StepStatus(*at, "done", done.run, done.elapsed_s, reason=reason)
    if newest is not None and newest.is_bad:
        return StepStatus(*at, newest.state, newest.run, newest.elapsed_s, reason=newest.reason)
    return StepStatus(*at, "waiting", reason=planned.reason)


class CancelledFlowDict(TypedDict):
    """The flow, who carried it out, and the runs that were ended."""

    flow: str
    holder: str
    runs: list[str]
    dry_run: bool


@dataclass(frozen=True, repr=False)
class CancelledFlow(Result):
    """What cancelling a flow ended."""

    id: str
    holder: str
    runs: list[str]
    dry_run: bool = False

    def to_dict(self) -> CancelledFlowDict:
        return {"flow": self.id, "holder": self.holder, "runs": self.runs, "dry_run": self.dry_run}

    def summary(self) -> str:
        return f"{self.id}: {len(self.runs):,} runs"


class StepLogDict(TypedDict):
    """The run of a step, and what its program printed."""

    step: str
    run: str
    output: str


@dataclass(frozen=True, repr=False)
class StepLog(Result):
    """What the program of a step has printed so far."""

    step: str
    run: str
    output: bytes

    def to_dict(self) -> StepLogDict:
        return {"step": self.step, "run": self.run, "output": self.output.decode(errors="replace")}

    def summary(self) -> str:
        return f"{self.step}, run {self.run}, {len(self.output):,} bytes"


class FlowInfoDict(TypedDict):
    id: str
    name: str
    file: str
    folder: str
    created: float


@dataclass(frozen=True, repr=False)
class FlowInfo(Result):
    """A flow that was run before."""

    id: str
    name: str
    file: str
    folder: str
    created: float

    def to_dict(self) -> FlowInfoDict:
        return {
            "id": self.id,
            "name": self.name,
            "file": self.file,
            "folder": self.folder,
            "created": self.created,
        }

    def summary(self) -> str:
        return f"{self.id} {self.file}"


class FlowListDict(TypedDict):
    """Flows that were run, the newest first."""

    flows: list[FlowInfoDict]


class FlowList(Results[FlowInfo]):
    """Flows, the newest first."""

    def to_dict(self) -> FlowListDict:
        return {"flows": [each.to_dict() for each in self]}


class SavedFlowDict(TypedDict):
    """The handle of the card of a flow, its files, its parameters and the assets that its steps use."""

    handle: str
    files: list[str]
    params: dict[str, Any]
    assets: list[str]
    dry_run: bool


@dataclass(frozen=True, repr=False)
class SavedFlow(Result):
    """A flow that is an asset now."""

    handle: str
    files: list[str]
    params: Mapping[str, Any]
    assets: list[str]
    dry_run: bool = False

    def to_dict(self) -> SavedFlowDict:
        return {
            "handle": self.handle,
            "files": self.files,
            "params": dict(self.params),
            "assets": self.assets,
            "dry_run": self.dry_run,
        }

    def summary(self) -> str:
        return f"{self.handle}, {len(self.files):,} files"
