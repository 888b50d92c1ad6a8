"""The plan of a run: what it would do, before anything has happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.runs.execute.materials import Material
from fairmile.runs.needs import Need
from fairmile.runs.prediction import Fit
from fairmile.runs.record.run import Run
from fairmile.runs.results import RunPlanDict, StepDict
from fairmile.runs.review import Review

if TYPE_CHECKING:
    from fairmile.runs.record.spec import RunSpec


@dataclass(frozen=True)
class Step:
    """One thing that happens before or while a run is executed."""

    verb: str  # fetch, build, submit, run; known, restore and again where an earlier run has the same identity
    what: str
    size_bytes: int | None = None

    def to_dict(self) -> StepDict:
        return {"verb": self.verb, "what": self.what, "size_bytes": self.size_bytes}


@dataclass(frozen=True, repr=False)
class RunPlan(Result):
    """What a run would do; nothing has happened yet."""

    spec: RunSpec
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    prediction: Mapping[str, Any] = field(default_factory=dict)
    script: str = ""  # of the job, where a system's scheduler carries it
    sources: tuple[str, ...] = ()
    materials: tuple[Material, ...] = ()  # what goes to places of the folder it runs in
    is_complete: bool = False  # its parameters are part of its command already
    original: Run | None = None  # what is done again
    review: Review | None = None  # of a record from elsewhere: what somebody must have agreed to
    crate: Path | None = None  # what the record is imported from before it is done again
    container: str = ""  # the image that a program is locked into
    changes: Mapping[str, Any] = field(default_factory=dict)
    unpredicted: str = ""  # why there is no prediction
    projected_s: float | None = None  # the wall time, where it was chosen from earlier runs
    fit: Fit = Fit.FITS  # whether the run is expected to have room on its device; FITS also where nothing tells
    fit_reason: str = ""  # what tells that; empty where nothing does
    needs: tuple[Need, ...] | None = None  # what the target declares, beside what there is; None: not compared yet
    refusal: UsageError | None = None  # why it would wait in a queue only to fail; None for one that may run

    def to_dict(self) -> RunPlanDict:
        plan: RunPlanDict = {
            "spec": self.spec.model_dump(mode="json", exclude_defaults=True),
            "steps": [step.to_dict() for step in self.steps],
            "notes": list(self.notes),
            "prediction": dict(self.prediction),
            "fit": str(self.fit) if self.fit_reason else None,
            "script": self.script,
        }
        if self.review is not None:
            plan["review"] = self.review.to_dict()
        return plan

    def summary(self) -> str:
        where = f" on {self.spec.system}" if self.spec.system else ""
        return f"{self.spec.name}{where}: {' '.join(self.spec.argv)}"
