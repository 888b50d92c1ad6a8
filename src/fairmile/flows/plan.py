"""The plan of a flow: what each step would do and why, before anything has happened.

A step is identified by the digest of what it executes, its parameters and its inputs. One that was done with the same
identity, and whose outputs are as it left them, is skipped. Where outputs are gone, the store brings them back. Of
every other step the plan says why it runs; of one whose inputs depend on a step that runs, that it is unknown until
then.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fairmile.base.digest_cache import DigestCache
from fairmile.base.errors import InvalidDocument, NotFound, UsageError
from fairmile.base.placeholders import fill_words
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.results import Result
from fairmile.base.words import did_you_mean
from fairmile.flows.files import Source
from fairmile.flows.graph import (
    Expansion,
    Node,
    Points,
    StepGraph,
    holes_open,
    is_wild,
    matches,
    may_overlap,
    metric_word,
    placed,
)
from fairmile.flows.model import HERE, Flow, Step, condition_of, metric_condition
from fairmile.flows.programs import Program, Programs, quick_digest
from fairmile.flows.state import Entry, FlowState
from fairmile.runs.execute import capture
from fairmile.runs.record.values import value_text
from fairmile.sweeps.filters import Filter

ASSET = "asset:"  # begins the digest of an input that is an asset: its name, version included
_LISTED = 3


class Action(StrEnum):
    """What becomes of a step."""

    RUN = "run"
    RESTORE = "restore"  # its outputs come back from the store
    SKIP = "skip"  # it is up to date
    WAIT = "wait"  # unknown until another step has run
    OMIT = "omit"  # its condition does not hold, or it comes after one that is left out
    FAILED = "failed"  # while a flow is carried out: it ran, and failed


_OPEN = (Action.RUN, Action.WAIT)


class PlannedStepDict(TypedDict):
    name: str
    needs: list[str]
    on: str
    reason: str
    action: str


class FlowPlanDict(TypedDict):
    """What a flow would do: each step with the steps it needs, where it runs, and why."""

    flow: str
    counts: dict[str, int]
    steps: list[PlannedStepDict]


@dataclass(slots=True)
class PlannedStep:
    """One node of the graph with what becomes of it, and why."""

    node: Node
    on: str
    action: Action
    reason: str
    key: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)  # path or asset → sha256
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def system(self) -> str:
        """The system that it runs on; empty: this machine."""
        return "" if self.on in HERE else self.on.partition("/")[0]

    def to_dict(self) -> PlannedStepDict:
        node = self.node
        return {
            "name": node.name,
            "needs": node.needs,
            "on": self.on,
            "reason": self.reason,
            "action": str(self.action),
        }


@dataclass(frozen=True, repr=False)
class FlowPlan(Result):
    """What a flow would do; nothing has happened yet."""

    flow: str
    steps: Mapping[str, PlannedStep]
    rows_field = "steps"

    def counts(self) -> dict[Action, int]:
        """Return how many steps have each action."""
        counts = dict.fromkeys(Action, 0)
        for step in self.steps.values():
            counts[step.action] += 1
        return {action: count for action, count in counts.items() if count}

    @property
    def is_up_to_date(self) -> bool:
        return all(step.action in (Action.SKIP, Action.OMIT) for step in self.steps.values())

    def to_dict(self) -> FlowPlanDict:
        counts = {str(action): count for action, count in self.counts().items()}
        return {"flow": self.flow, "counts": counts, "steps": [step.to_dict() for step in self.steps.values()]}

    def summary(self) -> str:
        return f"{self.flow}: {', '.join(f'{count:,} {action}' for action, count in self.counts().items())}"


class Planner:
    """Plans one flow; `stored` returns which of some digests the store lacks, `asset` the version of an asset."""

    def __init__(
        self,
        source: Source,
        graph: StepGraph,
        programs: Programs,
        points: Points,
        digests: DigestCache,
        *,
        absent: Callable[[Iterable[str]], Collection[str]],
        asset: Callable[[str], str],
    ) -> None:
        self._source, self._graph, self._programs, self._points = source, graph, programs, points
        self._digests, self._absent, self._asset = digests, absent, asset
        self._folder = Path(source.flow.folder or os.getcwd())
        self._assets: dict[str, str] = {}

    @property
    def flow(self) -> Flow:
        return self._source.flow

    @property
    def folder(self) -> Path:
        return self._folder

    def program(self, node: Node) -> Program:
        """Return what a node executes."""
        return self._programs.of(node.step)

    def plan(self, state: FlowState, *, again: Collection[str] = ()) -> FlowPlan:
        """Return what becomes of each step; those in `again` run in any case."""
        return FlowPlan(self.flow.name, self.look(state, again=again).steps)

    def look(
        self, state: FlowState, *, again: Collection[str] = (), failed: Collection[str] = (), is_left: bool = False
    ) -> Round:
        """Look at all nodes; those that have `failed` while the flow is carried out do not run again.

        Where a flow `is_left`, nothing begins: what failed the last time has failed, and what comes after is left out.
        """
        self._check_again(again)
        round = Round(self, state, again, failed, is_left)
        expansion = Expansion(self._graph, self._folder, self._points)
        for name in self._graph.order:
            for node in expansion.nodes(name, round.made):
                round.add(node)
        self._digests.save()
        return round

    def _check_again(self, again: Collection[str]) -> None:
        for name in again:
            if name.partition("[")[0] not in self.flow.steps:
                near = did_you_mean(name, self.flow.steps)
                raise NotFound(f"there is no step {name!r}{f'; {near}' if near else ''}")

    def folder_of(self, step: Step) -> Path:
        """Return where a step runs."""
        return self._programs.folder(step)

    def variables(self, node: Node) -> dict[str, str]:
        """Return the environment variables that the step of a node sets."""
        step = self.flow.steps[node.step]
        if not step.env:
            return {}
        values = {**self.flow.params, **step.params, **node.values}
        texts = {key: value_text(value) for key, value in values.items()}
        return dict(zip(step.env, fill_words(tuple(step.env.values()), texts), strict=True))

    def digest(self, path: str) -> str:
        """Return the digest of a file or folder; empty where there is none."""
        return capture.digest(path, self._digests)

    def may_stay(self, step: str, path: str) -> bool:
        """Tell whether an output of a step need not come home from the system that made it."""
        return self._graph.may_stay(step, path)

    def asset(self, name: str) -> str:
        """Return what names an asset in one version."""
        if name not in self._assets:
            self._assets[name] = f"{ASSET}{self._asset(name)}"
        return self._assets[name]

    def lost(self, digests: Iterable[str]) -> Collection[str]:
        """Return which of some digests the store lacks."""
        return self._absent(digests)

    def refuse(self, node: Node, key: str, message: str, hint: str = "") -> InvalidDocument:
        """Return an error that names a part of a step with its line."""
        return InvalidDocument([self._graph.problem(message, node.step, key, hint=hint)])


class Round:
    """One pass over all nodes in order, and what is decided anew while they are carried out."""

    def __init__(
        self, planner: Planner, state: FlowState, again: Collection[str], failed: Collection[str], is_left: bool
    ) -> None:
        self._planner, self._state, self._again, self._is_left = planner, state, again, is_left
        self.failed, self.closed = set(failed), set[str]()
        self._flow, self._root = planner.flow, str(planner.folder)
        self.steps: dict[str, PlannedStep] = {}
        self._given: dict[str, str] = {}  # what steps that are up to date gave: path → digest
        self.away: dict[str, Entry] = {}  # by path, the ends of steps that left outputs on a remote system
        self._of: dict[str, list[str]] = {}  # the nodes of each step

    def made(self, node: Node) -> Sequence[str] | None:
        """Return what a node has made, as paths of the flow; None where that is not known yet."""
        step = self.steps[node.name]
        if step.action is Action.OMIT:
            return []
        return list(self._state.done[node.name].outputs) if step.action in (Action.SKIP, Action.RESTORE) else None

    def add(self, node: Node) -> None:
        """Decide what becomes of a node."""
        step = self._flow.steps[node.step]
        self._of.setdefault(node.step, []).append(node.name)
        planned = PlannedStep(node, step.on or "local", Action.RUN, "")
        self.steps[node.name] = planned
        if node.name in self.failed:
            planned.action, planned.reason = Action.FAILED, "failed"
            return
        if node.unknown:
            planned.action, planned.reason = Action.WAIT, f"unknown until `{node.unknown}` has run"
            return
        planned.action, planned.reason = self._decide(planned, step)
        if self._is_left and planned.action in (Action.RUN, Action.WAIT):
            self._leave(planned)
        if planned.action in (Action.SKIP, Action.RESTORE):
            self._give(node.name)

    def _leave(self, planned: PlannedStep) -> None:
        """Let the last end of a node stand, where it had one."""
        newest = self._state.newest.get(planned.name)
        if newest is not None and newest.is_bad:
            planned.action, planned.reason = Action.FAILED, "failed"
        elif newest is not None and newest.is_done and newest.key == planned.key:  # as what follows a failure
            planned.action = Action.SKIP

    def _give(self, name: str) -> None:
        entry = self._state.done[name]
        self._given |= entry.outputs
        if entry.on:
            self.away |= dict.fromkeys(entry.outputs, entry)

    def decide(self, name: str) -> PlannedStep:
        """Decide about a node once more: all that it needs is over."""
        planned = self.steps[name]
        planned.action, planned.reason = self._decide(planned, self._flow.steps[planned.node.step])
        return planned

    def close(self, name: str, *, is_done: bool) -> None:
        """Note that a node is over, well or not."""
        planned = self.steps[name]
        planned.action = Action.SKIP if is_done else Action.FAILED
        self.closed.add(name)
        if is_done:
            self._give(name)
        else:
            self.failed.add(name)

    def leave_out(self, name: str, reason: str) -> None:
        """Note that a node does not run."""
        self.steps[name].action, self.steps[name].reason = Action.OMIT, reason
        self.closed.add(name)

    def _decide(self, planned: PlannedStep, step: Step) -> tuple[Action, str]:
        node = planned.node
        program = self._planner.program(node)
        planned.params = {**program.shared, **step.params, **node.values}
        before = [self.steps[name] for name in node.needs]
        open_ = next((each for each in before if each.action in _OPEN), None) if before else None
        if (decided := self._by_condition(node, step, before, open_)) is not None:
            return decided
        planned.inputs, is_open = self._inputs(node, step, open_ is not None)
        done = self._state.done.get(node.name)
        if is_open:
            if done is None or self._is_again(node):
                return Action.RUN, self._why(node, program, planned, done)
            if reason := self._changes(program, planned, done, is_open=True):
                return Action.RUN, reason
            assert open_ is not None
            return Action.WAIT, f"unknown until `{open_.name}` has run"
        planned.key = key_of(program.digest, planned.params, planned.inputs)
        if condition_of(step) == "failed":  # what follows a failure follows each one
            return Action.RUN, f"`{next(each.name for each in before if each.action is Action.FAILED)}` failed"
        if self._is_again(node) or done is None or done.key != planned.key:
            return Action.RUN, self._why(node, program, planned, done)
        return self._by_outputs(node, done)

    def _is_again(self, node: Node) -> bool:
        return (
            bool(self._again)
            and node.name not in self.closed
            and (node.step in self._again or node.name in self._again)
        )

    def _by_condition(
        self, node: Node, step: Step, before: Sequence[PlannedStep], open_: PlannedStep | None
    ) -> tuple[Action, str] | None:
        """Return what a condition decides; None where the step may run as far as that goes."""
        if not before and not step.when:
            return None
        condition = condition_of(step)
        omitted = next((each for each in before if each.action is Action.OMIT), None)
        failed = next((each for each in before if each.action is Action.FAILED), None)
        if condition == "failed":
            if failed is not None and open_ is None:
                return None
            if open_ is not None:
                return Action.WAIT, f"only if `{open_.name}` fails"
            return Action.OMIT, "no step before it failed"
        if condition == "done" and failed is not None:
            return Action.OMIT, f"`{failed.name}` failed"
        if condition == "done" and omitted is not None:
            return Action.OMIT, f"`{omitted.name}` is left out"
        text = metric_condition(step)
        if not text:
            return None
        if open_ is not None:
            return Action.WAIT, f"unknown until `{open_.name}` has run"
        return None if self._holds(node, text) else (Action.OMIT, f"{text} does not hold")

    def _holds(self, node: Node, text: str) -> bool:
        metrics: dict[str, float] = {}
        for name in node.needs:
            other = self.steps[name].node
            if len(self._of[other.step]) == 1 and name in self._state.done:
                word = metric_word(other.step)
                metrics |= {f"{word}.{each}": value for each, value in self._state.done[name].metrics.items()}
        return condition_holds(text, metrics, lambda why: self._planner.refuse(node, "when", why))

    # What goes in

    def _inputs(self, node: Node, step: Step, is_open: bool) -> tuple[dict[str, str], bool]:
        """Return the digests of what goes in, and whether one of them is still to be made."""
        digests: dict[str, str] = {}
        made_later = self._made_later(node) if is_open else ()
        awaits = False
        for name, text in node.inputs.items():
            path = placed(step.folder, text)
            if any(self._may_come_from(path, other) for other in made_later):
                awaits = True
                continue
            if path in self._given:
                digests[path] = self._given[path]
            elif is_wild(path):
                matched = self._matched(path)
                if not matched and not any(self._may_come_from(path, self.steps[each]) for each in node.needs):
                    raise self._planner.refuse(node, "inputs", f"{name}: no file matches {text}, and no step gives one")
                digests |= matched
            else:
                digests |= self._one(node, name, text, path)
        return digests, awaits

    def _made_later(self, node: Node) -> list[PlannedStep]:
        return [each for name in node.needs if (each := self.steps[name]).action in (Action.RUN, Action.WAIT)]

    def _may_come_from(self, path: str, other: PlannedStep) -> bool:
        folder = self._flow.steps[other.node.step].folder
        return any(may_overlap(path, placed(folder, holes_open(each))) for each in other.node.outputs)

    def _matched(self, pattern: str) -> dict[str, str]:
        """Return the files that a pattern matches: what steps gave, and what lies there besides."""
        given = {path: digest for path, digest in self._given.items() if matches(pattern, path)}
        for path in sorted(glob.glob(pattern, root_dir=self._root, recursive=True)):
            if path not in given and (digest := self._planner.digest(os.path.join(self._root, path))):
                given[path] = digest
        return given

    def _one(self, node: Node, name: str, text: str, path: str) -> dict[str, str]:
        digest = self._planner.digest(os.path.join(self._root, path))
        if digest:
            return {path: digest}
        below = {each: given for each, given in self._given.items() if each.startswith(f"{path}/")}
        if below:  # a folder whose files are to be restored
            return below
        is_path = text.startswith(("/", ".", "~")) or text.endswith("/")
        if not is_path:
            try:
                return {text: self._planner.asset(text)}
            except (NotFound, UsageError):
                pass
        raise self._planner.refuse(
            node, "inputs", f"{name}: there is no file {text}, no step gives it, and no asset has that name"
        )

    # What came out

    def _by_outputs(self, node: Node, done: Entry) -> tuple[Action, str]:
        gone = []
        for path, digest in done.outputs.items():
            now = self._planner.digest(path if path.startswith("/") else f"{self._root}/{path}")
            if not now and done.on and self._planner.may_stay(node.step, path):
                continue
            if not now:
                gone.append(path)
            elif now != digest:
                return Action.RUN, f"output {path} was changed"
        if not gone:
            return Action.SKIP, "up to date"
        if self._planner.lost(done.outputs[path] for path in gone):
            if done.on:
                return Action.RESTORE, f"{_outputs(gone)} on {done.on}"
            return Action.RUN, f"{_outputs(gone)} gone"
        return Action.RESTORE, f"{_outputs(gone)} gone, and in the store"

    # Why

    def _why(self, node: Node, program: Program, planned: PlannedStep, done: Entry | None) -> str:
        """Return why a step runs."""
        newest = self._state.newest.get(node.name)
        if self._is_again(node):
            return "asked for"
        if done is None:
            if newest is None or newest.state == "begun":
                return "never done" if newest is None else "not finished"
            if newest.state == "gone":
                return newest.reason
            return f"{newest.state} the last time" if newest.state != "skipped" else "never done"
        return self._changes(program, planned, done) or "what goes in changed"

    def _changes(self, program: Program, planned: PlannedStep, done: Entry | None, *, is_open: bool = False) -> str:
        """Return what differs from when a step was last done; empty where nothing is known to."""
        if done is None:
            return ""
        if done.program != program.digest:
            before = self._state.programs.get(done.program, {})
            return _program_change(before, program.parts)
        for name in [*planned.params, *done.params]:
            if planned.params.get(name) != done.params.get(name):
                return f"parameter {name} changed"
        for path, digest in planned.inputs.items():
            if path not in done.inputs:
                return f"input {path} is new"
            if done.inputs[path] != digest:
                return f"input {path} has another digest"
        gone = [] if is_open else [path for path in done.inputs if path not in planned.inputs]
        return f"input {gone[0]} is no longer one" if gone else ""


def key_of(program: str, params: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Return the identity of a step: the digest of what it executes, its parameters and its inputs."""
    return quick_digest([program, dict(params), dict(inputs)])


def condition_holds(text: str, metrics: Mapping[str, float], refuse: Callable[[str], Exception]) -> bool:
    """Tell whether a condition on metrics holds; one that names a metric which nobody measured raises."""
    filter = Filter(text)
    if missing := sorted(filter.names - metrics.keys()):
        known = f"; measured: {', '.join(sorted(metrics))}" if metrics else ""
        raise refuse(f"there is no value of {missing[0]}{known}")
    return filter.holds(metrics)


def _program_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if not before:
        return "its program changed"
    old, new = before.get("code", {}), now.get("code", {})
    for name in [*new, *old]:
        if old.get(name) != new.get(name):
            verb = "is new" if name not in old else "is no longer part of it" if name not in new else "changed"
            return f"{name} {verb}"
    for key, words in (("command", "the command"), ("environment", "the environment"), ("env", "its variables")):
        if before.get(key) != now.get(key):
            return f"{words} changed"
    return "its program changed"


def _outputs(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_LISTED]) + (" and more" if len(paths) > _LISTED else "")
    return f"output {shown} is" if len(paths) == 1 else f"outputs {shown} are"
