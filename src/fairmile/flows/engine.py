"""Carries a flow out: a planner over the executors of `runs`.

Every node that may have to run becomes a task of one graph. When all before it is over, the node is looked at again:
its inputs are there now, so that its identity is known, and it is skipped, restored from the store, left out, or made a
run. Before a run is handed to anybody, its id is written into the state of the flow. Whoever starts the flow again
after a kill finds that id. Executors begin nothing twice: a run which is done stands, one that runs is followed, and
one that never began is begun.

A step over what an earlier step makes is expanded when that has ended: the flow is planned again, and what is new
becomes tasks of the same graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import FairmileError, Integrity
from fairmile.flows.graph import is_wild, placed
from fairmile.flows.keeping import copy_outputs, keep_outputs, restore_outputs
from fairmile.flows.model import Step
from fairmile.flows.plan import ASSET, Action, PlannedStep, Planner
from fairmile.flows.results import StepStatus, step_status
from fairmile.flows.state import Entry, FlowState
from fairmile.runs.execute.executor import After, Executor, Graph, Handle, PreparedRun, Task, TaskStatus, Work
from fairmile.runs.execute.limits import Limited
from fairmile.runs.plan import RunPlan
from fairmile.runs.record.record import Captured, CapturedInput
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import Input
from fairmile.runs.runs import Runs

if TYPE_CHECKING:
    from fairmile.store.store import Store

_LOOK_S = 0.5  # between two looks for somebody who wants the flow to stop
_EXPANDS = "?"  # begins the names of tasks that expand a step
OnEvent = Callable[[str, str, str], None]  # the step, what happened, and why


class Engine:
    """Carries out one flow, which the caller holds; `on_event` is told what happens to each step."""

    def __init__(
        self,
        planner: Planner,
        state: FlowState,
        runs: Runs,
        store: Callable[[], Store],
        *,
        at_once: int,
        on_event: OnEvent = lambda *_: None,
    ) -> None:
        self._planner, self._state, self._runs, self._store = planner, state, runs, store
        self._flow, self._folder = planner.flow, planner.folder
        self._at_once, self._on_event = at_once, on_event
        self._executors: dict[str, Executor] = {}
        self._plans: dict[str, tuple[RunPlan, Captured]] = {}  # by step, what its runs share
        self._begun: dict[str, PlannedStep] = {}  # nodes as they were when their runs were prepared
        self._reasons: dict[str, str] = {}  # why steps ended as they did
        self._looked = 0.0
        self._has_new_outputs = False

    def run(self, again: Collection[str] = ()) -> Mapping[str, PlannedStep]:
        """Carry the flow to its end and return its steps; `status` tells what became of one."""
        self._again = again
        self._round = self._planner.look(self._state, again=again)
        self._keep_programs()
        limit = self._flow.limits.get("local", self._at_once)
        with self._runs.executors.pool(limit) as pool:
            self._executors[""] = pool
            self._graph = Graph((), self._place, self._ended)
            self._add()
            while self._graph.advance():
                if self._is_to_stop():
                    self._graph.cancel()
        if self._has_new_outputs:
            keep_outputs(self._state, self._flow, self._folder, self._store())
        return self._round.steps

    def status(self, planned: PlannedStep) -> StepStatus:
        """Return what became of a step."""
        name = planned.name
        status = step_status(planned, self._state.newest.get(name), self._state.done.get(name))
        return replace(status, reason=self._reasons.get(name, status.reason))

    def _is_to_stop(self) -> bool:
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        return self._state.is_asked_to_stop

    def _place(self, work: Work) -> Executor:
        if work.system not in self._executors:
            executor: Executor = self._runs.executors.on(work.system)
            limit = self._flow.limits.get(work.system)
            self._executors[work.system] = Limited(executor, limit) if limit is not None else executor
        return self._executors[work.system]

    # Tasks

    def _add(self) -> None:
        """Make tasks of all nodes that may have to run and are not waiting for values."""
        held: set[str] = set()  # nodes whose values, or those of one before them, are unknown
        tasks: list[Task] = []
        idle = (Action.SKIP, Action.OMIT, Action.FAILED)
        self._state.announce(sum(planned.action not in idle for planned in self._round.steps.values()))
        for name, planned in self._round.steps.items():
            if planned.node.unknown or held.intersection(planned.node.needs):
                held.add(name)
            elif planned.action in (Action.RUN, Action.WAIT, Action.RESTORE) and name not in self._graph:
                tasks.append(self._task(planned))
        for name in held:
            planned = self._round.steps[name]
            task = f"{_EXPANDS}{name}"
            if planned.node.unknown and task not in self._graph and self._can_expand(planned):
                after = self._after(planned)
                tasks.append(Task(task, lambda _: self._expand(), after))
        self._graph.add(tasks)

    def _can_expand(self, planned: PlannedStep) -> bool:
        """Tell whether the steps that a repeated one waits for are tasks, and not repeated over unknown values."""
        return all(not self._round.steps[name].node.unknown for name in planned.node.needs)

    def _task(self, planned: PlannedStep) -> Task:
        step = self._flow.steps[planned.node.step]
        name = planned.name
        after = self._after(planned)
        return Task(name, lambda _: self._work(name), after, step.retries, backoff_s=step.backoff)

    def _after(self, planned: PlannedStep) -> tuple[After, ...]:
        """Return the tasks that one waits for: nodes that are up to date or left out are none."""
        idle = (Action.SKIP, Action.OMIT, Action.FAILED)
        needs = [name for name in planned.node.needs if self._round.steps[name].action not in idle]
        return tuple(After(name, "over") for name in needs)

    def _expand(self) -> TaskStatus:
        """Plan again what is still open, since a step has made what others are repeated over."""
        before = self._round
        done = [name for name in self._again if name not in before.closed]
        self._round = self._planner.look(self._state, again=done, failed=before.failed)
        self._add()
        return TaskStatus(Handle(""), RunState.DONE)

    # One step

    def _work(self, name: str) -> Work | Run | TaskStatus:
        """Decide what becomes of a node whose inputs are there, and prepare its run where it needs one."""
        try:
            planned = self._round.decide(name)
            if planned.action is Action.RUN:
                return self._prepared(planned)
            if planned.action is Action.RESTORE:
                restore_outputs(self._state.done[name], self._folder, self._store())
        except FairmileError as error:
            return TaskStatus(Handle(""), RunState.FAILED, str(error))
        if planned.action is Action.OMIT:
            return TaskStatus(Handle(""), RunState.CANCELLED, planned.reason)
        return TaskStatus(Handle(""), RunState.DONE, planned.reason)

    def _prepared(self, planned: PlannedStep) -> Work | Run:
        self._begun[planned.name] = planned
        newest = self._state.newest.get(planned.name)
        if newest is not None and newest.state == "begun" and newest.key == planned.key:
            run = self._runs.find(newest.run)
            if run is not None and run.state is RunState.DONE:
                return run
            if run is not None:
                return PreparedRun(run.folder, run.record, run.spec)
            work = self._new(planned, self._runs.root / newest.run)
        else:
            work = self._new(planned)
        entry = Entry(planned.name, "begun", planned.key, work.id, program=self._program(planned))
        self._state.note(entry, sync=bool(work.system))
        self._on_event(planned.name, "begun", planned.reason)
        return work

    def _new(self, planned: PlannedStep, folder: Path | None = None) -> PreparedRun:
        """Return a new run of a node; what all nodes of its step share is captured once."""
        node = planned.node
        step = self._flow.steps[node.step]
        if node.step not in self._plans:
            self._plans[node.step] = self._shared(planned, step)
        plan, shared = self._plans[node.step]
        inputs, captured = dict(shared.inputs), {}
        for number, (path, digest) in enumerate(planned.inputs.items()):
            if digest.startswith(ASSET):
                continue
            name = self._input_name(planned, step, path, number)
            inputs[name] = CapturedInput(path=str(self._folder / path), sha256=digest)
            captured[name] = Input(path=str(self._folder / path))
        update = {
            "params": {**plan.spec.params, **planned.params},
            "inputs": {**plan.spec.inputs, **captured},
            "outputs": node.outputs,
            "env": self._planner.variables(node),
        }
        own = replace(plan, spec=plan.spec.model_copy(update=update))
        return self._runs.prepare_captured(own, replace(shared, inputs=inputs), folder)

    def _shared(self, planned: PlannedStep, step: Step) -> tuple[RunPlan, Captured]:
        program = self._planner.program(planned.node)
        assets = {
            name: Input(asset=text)
            for name, text in planned.node.inputs.items()
            if planned.inputs.get(text, "").startswith(ASSET)
        }
        fields: dict[str, Any] = {"inputs": {**program.spec.inputs, **assets}, "group": self._state.id}
        params = {**program.spec.params, **planned.params}
        used = set(params)
        if program.word:
            plan = self._runs.plan(program.word, used=used, **{**program.fields, **fields, "params": params})
        else:
            plan = self._runs.plan(program.spec.model_copy(update={**fields, "params": params}), used=used)
        return plan, self._runs.capture(plan)

    def _input_name(self, planned: PlannedStep, step: Step, path: str, number: int) -> str:
        """Return the name of an input: that of the step, or of one file of many a number."""
        for name, text in planned.node.inputs.items():
            if placed(step.folder, text) == path:
                return name
        return f"input_{number}"

    def _program(self, planned: PlannedStep) -> str:
        return self._planner.program(planned.node).digest

    # Ends

    def _ended(self, name: str, status: TaskStatus) -> None:
        if name.startswith(_EXPANDS):
            return
        planned = self._begun.get(name) or self._round.steps[name]
        if not status.handle.run:
            self._ended_without_run(planned, status)
            return
        run = self._graph.collect(name)
        state, reason = str(status.state), status.reason
        outputs: Mapping[str, str] = {}
        key = planned.key
        if status.state is RunState.DONE:
            try:
                outputs = self._outputs(planned, run)
                if changed := self._changed_meanwhile(planned):
                    key, reason = "", f"{changed} changed while it ran"
            except FairmileError as error:
                state, reason = "failed", str(error)
        entry = Entry(
            name, state, key, run.id, self._program(planned), planned.params, planned.inputs, outputs, reason=reason
        )
        entry.metrics = {each: metric.value for each, metric in run.metrics.items()}
        entry.elapsed_s, entry.tries = run.elapsed_s, len(run.record.attempts)
        self._state.note(entry)
        self._has_new_outputs = self._has_new_outputs or bool(outputs)
        self._round.close(name, is_done=state == "done")
        self._tell(name, state, reason)

    def _ended_without_run(self, planned: PlannedStep, status: TaskStatus) -> None:
        name = planned.name
        if status.state is RunState.DONE:  # up to date, or restored
            what = "restored" if planned.action is Action.RESTORE else "skipped"
            self._round.close(name, is_done=True)
            self._tell(name, what, status.reason)
            return
        if status.state is RunState.FAILED:
            self._state.note(Entry(name, "failed", reason=status.reason))
            self._round.close(name, is_done=False)
            self._tell(name, "failed", status.reason)
            return
        self._round.leave_out(name, status.reason)
        self._tell(name, "left out", status.reason)

    def _tell(self, name: str, what: str, reason: str) -> None:
        self._reasons[name] = reason
        self._on_event(name, what, reason)

    def _outputs(self, planned: PlannedStep, run: Run) -> dict[str, str]:
        """Return what a step gave, as paths of the flow with their digests; a declared file that is missing raises."""
        step = self._flow.steps[planned.node.step]
        made = {placed(step.folder, name): each.sha256 for name, each in run.outputs.items()}
        if not run.record.spec.folder or Path(run.record.spec.folder) != self._planner.folder_of(step):
            copy_outputs(run, self._planner.folder_of(step), self._runs)
        for output in planned.node.outputs:
            path = placed(step.folder, output)
            if path in made or any(each.startswith(f"{path}/") for each in made):
                continue
            if is_wild(path):
                continue
            digest = self._planner.digest(str(self._folder / path))
            if not digest:
                raise Integrity(f"it succeeded, but did not write its output {output}")
            made[path] = digest
        return made

    def _changed_meanwhile(self, planned: PlannedStep) -> str:
        """Return an input that is no longer what it was when the step began."""
        for path, digest in planned.inputs.items():
            if not digest.startswith(ASSET) and self._planner.digest(str(self._folder / path)) != digest:
                return f"input {path}"
        return ""

    def _keep_programs(self) -> None:
        programs = {}
        for planned in self._round.steps.values():
            if planned.action is not Action.SKIP:
                program = self._planner.program(planned.node)
                programs[program.digest] = program.parts
        self._state.keep_programs(programs)
