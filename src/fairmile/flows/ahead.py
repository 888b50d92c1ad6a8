"""Which steps are submitted before those they come after have ended, so that their scheduler holds them back.

Only what a scheduler can decide goes ahead: that another job has ended, well or not. Everything else waits here, and a
plan says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fairmile.base.quick_dataclass import dataclass
from fairmile.flows.graph import is_wild, matches, may_overlap, placed
from fairmile.flows.model import Flow, Step, condition_of, is_in_pilot, metric_condition
from fairmile.flows.plan import Action, PlannedStep

_PENDING = (Action.RUN, Action.WAIT)


@dataclass(frozen=True)
class Ahead:
    """The steps that one is submitted `before` the end of, and those whose end is waited for here; or why it waits."""

    before: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def sentence(self) -> str:
        """How a plan says it."""
        if not self.before:
            return f"not submitted ahead: {self.refusal}" if self.refusal else ""
        return f"submitted ahead once `{self.here[0]}` has ended" if self.here else "submitted ahead"


def plan_ahead(steps: Mapping[str, PlannedStep], flow: Flow, is_remote: Callable[[str], bool]) -> Mapping[str, Ahead]:
    """Return, for each step, what may be submitted before it, or why it must wait; other steps have no entry."""
    return {
        name: ahead
        for name, planned in steps.items()
        if planned.action in _PENDING and (ahead := _ahead(planned, steps, flow, is_remote)) != Ahead()
    }


def _ahead(
    planned: PlannedStep, steps: Mapping[str, PlannedStep], flow: Flow, is_remote: Callable[[str], bool]
) -> Ahead:
    step = flow.steps[planned.node.step]
    pending = [steps[name] for name in planned.node.needs if steps[name].action in _PENDING]
    there = [each for each in pending if flow.steps[each.node.step].system == step.system]
    if not step.system or not there:
        return Ahead()
    if refusal := _refusal(planned, step, there, flow, is_remote(step.system)):
        return Ahead(refusal=refusal)
    names = tuple(each.name for each in there)
    here = tuple(name for name in planned.node.needs if steps[name] in pending and name not in names)
    return Ahead(names, here)


def _refusal(planned: PlannedStep, step: Step, there: Sequence[PlannedStep], flow: Flow, is_remote: bool) -> str:
    """Return why a step cannot be submitted before others have ended; empty where it can."""
    first = there[0].name
    if planned.node.unknown:
        return f"how often it is repeated is unknown until `{planned.node.unknown}` has run"
    if metric_condition(step):
        return f"`when` needs metrics of `{first}`"
    if condition_of(step) == "failed":
        return f"it runs only if `{first}` fails"
    if step.system in flow.limits:
        return f"`limits` holds steps back on {step.system}"
    if is_in_pilot(flow, step):
        return "it runs in a pilot job"
    for each in there:
        before = flow.steps[each.node.step]
        if each.node.unknown:
            return f"how often `{each.node.step}` is repeated is unknown until `{each.node.unknown}` has run"
        if before.retries:
            return f"`{each.name}` may be retried"
        if is_in_pilot(flow, before):
            return f"`{each.name}` runs in a pilot job"
        if is_remote and (path := _unnamed(planned, step, each, before)):
            return f"which files of {path} `{each.name}` makes is unknown until it has run"
    return ""


def _unnamed(planned: PlannedStep, step: Step, other: PlannedStep, before: Step) -> str:
    """Return an input that another step makes in files whose names nobody knows yet."""
    for text in planned.node.inputs.values():
        path = placed(step.folder, text)
        for output in other.node.outputs:
            made = placed(before.folder, output)
            if may_overlap(path, made) and (
                is_wild(made) or not (path == made or (is_wild(path) and matches(path, made)))
            ):
                return text
    return ""
