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

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import FairmileError, Integrity, NotFound, Transient
from fairmile.base.units import format_duration
from fairmile.flows.ahead import Ahead, plan_ahead
from fairmile.flows.graph import is_wild, placed
from fairmile.flows.keeping import copy_outputs, keep_outputs, restore_outputs
from fairmile.flows.model import condition_of, is_in_pilot
from fairmile.flows.places import Places, own_inputs
from fairmile.flows.plan import ASSET, Action, PlannedStep, Planner
from fairmile.flows.results import StepStatus, step_status
from fairmile.flows.state import Entry, FlowState, Via
from fairmile.runs.execute.executor import After, Executor, Graph, Handle, PreparedRun, Task, TaskStatus, Work
from fairmile.runs.execute.limits import Limited
from fairmile.runs.execute.patient import Patient
from fairmile.runs.plan import RunPlan
from fairmile.runs.record.record import Captured, CapturedInput
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import Input
from fairmile.runs.runs import Runs

if TYPE_CHECKING:
    from fairmile.jobs.spec import Nearby
    from fairmile.store.store import Store

_LOOK_S = 0.5  # between two looks for somebody who wants the flow to stop
_EXPANDS = "?"  # begins the names of tasks that expand a step
OnEvent = Callable[[str, str, str], None]  # the step, what happened, and why


class Engine:
    """Runs one flow, whose lock the caller holds; calls `on_event` for each change of a step."""

    def __init__(
        self,
        planner: Planner,
        state: FlowState,
        runs: Runs,
        store: Callable[[], Store],
        *,
        at_once: int,
        host_timeout_s: float = math.inf,
        native: bool = False,
        on_event: OnEvent = lambda *_: None,
    ) -> None:
        self._planner, self._state, self._runs, self._store = planner, state, runs, store
        self._flow, self._folder = planner.flow, planner.folder
        self._at_once, self._native, self._on_event = at_once, native, on_event
        self._places = Places(planner, state, runs, runs.is_remote)
        self._executors: dict[str, Executor] = {}
        self._open = contextlib.ExitStack()  # executors that last as long as the flow is carried out
        self._plans: dict[str, tuple[RunPlan, Captured]] = {}  # by step, what its runs share
        self._begun: dict[str, PlannedStep] = {}  # nodes as they were when their runs were prepared
        self._reasons: dict[str, str] = {}  # why steps ended as they did
        self._ahead: Mapping[str, Ahead] = {}
        self._owed: dict[str, Entry] = {}  # steps whose results are still to come home
        self._step_of: dict[str, str] = {}  # by the ids of runs
        self._patients: dict[Executor, Patient] = {}  # that hold runs for a system until it answers
        self._lasting: list[Executor] = []  # executors whose systems go on without this process
        self._looked = 0.0
        self._host_timeout_s, self._heard, self._silence = host_timeout_s, time.monotonic(), ""
        self._has_new_outputs = False

    def run(self, again: Collection[str] = ()) -> Mapping[str, PlannedStep]:
        """Carry the flow to its end and return its steps; `status` tells what became of one.

        A `native` one is left as soon as all that is under way is the business of schedulers.
        """
        self._again = again
        self._round = self._planner.look(self._state, again=again)
        self._keep_programs()
        limit = self._flow.limits.get("local", self._at_once)
        with self._open:
            self._executors[""] = self._open.enter_context(self._runs.executors.pool(limit))
            self._graph = Graph((), self._place, self._ended)
            self._add()
            while self._graph.advance():
                if self._is_to_stop():
                    self._graph.cancel()
                if self._native and self._graph.waits_only_for(self._lasting):
                    break
                if self._is_given_up():
                    break
            self._settle_debts()
        self._keep()
        is_open = self._owed or any(each.action in (Action.RUN, Action.WAIT) for each in self._round.steps.values())
        if is_open and self._is_given_up():
            raise Transient(
                f"no answer for {format_duration(self._host_timeout_s)}: {self._silence}",
                hint=f"`fairmile flow run {self._state.id}` resumes it; the setting `flows.host_timeout` "
                "says how long a flow waits",
            )
        return self._round.steps

    def _is_given_up(self) -> bool:
        """Tell whether all that is left waits for systems that have not answered for too long."""
        live = (self._patients.get(each) for each in self._graph.executors)
        if not self._silence or any(each is None or not each.is_silent for each in live):
            self._heard = time.monotonic()
        return time.monotonic() - self._heard > self._host_timeout_s

    def _note_answer(self) -> None:
        self._heard, self._silence = time.monotonic(), ""

    def collect(self) -> None:
        """Take the ends of runs that others were left to execute; nothing is begun."""
        self._again = ()
        self._round = self._planner.look(self._state, is_left=True)
        for name, planned in self._round.steps.items():
            newest = self._state.newest.get(name)
            if any(self._is_under_way(other) for other in planned.node.needs):
                continue  # what its end means depends on theirs
            run = self._runs.find(newest.run) if newest is not None and newest.state == "begun" else None
            if run is None or newest is None or not (run := self._runs.collect(run.id)).state.is_end:
                continue
            retries = self._flow.steps[planned.node.step].retries
            if run.state is not RunState.DONE and len(run.record.attempts) <= retries:
                continue
            self._begun[name] = self._round.decide(name)
            if self._begun[name].action is Action.OMIT or self._is_run_of(newest, self._begun[name]):
                self._take(name, run, TaskStatus(Handle(run.id), run.state, run.reason))
        self._keep()

    def _is_under_way(self, name: str) -> bool:
        newest = self._state.newest.get(name)
        return newest is not None and newest.state == "begun"

    def _keep(self) -> None:
        if self._has_new_outputs and (trouble := keep_outputs(self._state, self._flow, self._folder, self._store())):
            self._on_event("", "not kept", trouble)

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

    # Executors

    def _place(self, work: Work) -> Executor:
        step = self._flow.steps[self._step_of[work.id]]
        key = work.system
        if is_in_pilot(self._flow, step):
            needs = step.resources.model_dump_json(exclude_defaults=True)
            key = f"pilot {step.on} {needs}"
        if key not in self._executors:
            self._executors[key] = self._executor(work.system, is_pilot=key != work.system)
        return self._executors[key]

    def _executor(self, system: str, *, is_pilot: bool) -> Executor:
        limit = self._flow.limits.get(system)
        if is_pilot:
            pilot = self._runs.executors.pilot(system, self._flow.pilots or 1)
            executor: Executor = self._open.enter_context(pilot)
        else:
            patient = Patient(self._runs.executors.on(system), self._tell_waiting, self._note_answer)
            executor = patient
        made = Limited(executor, limit) if limit is not None else executor
        if isinstance(executor, Patient):
            self._patients[made] = executor
            self._lasting.append(made)
        return made

    def _tell_waiting(self, run: str, why: str) -> None:
        name = next((name for name, entry in self._state.newest.items() if entry.run == run), run)
        self._silence = why
        if self._reasons.get(name) != why:
            self._tell(name, "waiting", why)

    # Tasks

    def _add(self) -> None:
        """Make tasks of all nodes that may have to run and are not waiting for values."""
        held: set[str] = set()  # nodes whose values, or those of one before them, are unknown
        tasks: list[Task] = []
        idle = (Action.SKIP, Action.OMIT, Action.FAILED)
        self._state.announce(sum(planned.action not in idle for planned in self._round.steps.values()))
        if self._native:
            self._ahead = plan_ahead(self._round.steps, self._flow, self._runs.is_remote)
        for name, planned in self._round.steps.items():
            if planned.node.unknown or held.intersection(planned.node.needs):
                held.add(name)
            elif planned.action in (Action.RUN, Action.WAIT, Action.RESTORE) and name not in self._graph:
                tasks.append(self._task(planned))
        for name in held:
            planned = self._round.steps[name]
            task = f"{_EXPANDS}{name}"
            if planned.node.unknown and task not in self._graph and self._can_expand(planned):
                tasks.append(Task(task, lambda _: self._expand(), self._after(planned)))
        self._graph.add(tasks)

    def _can_expand(self, planned: PlannedStep) -> bool:
        """Tell whether the steps that a repeated one waits for are tasks, and not repeated over unknown values."""
        return all(not self._round.steps[name].node.unknown for name in planned.node.needs)

    def _task(self, planned: PlannedStep) -> Task:
        step = self._flow.steps[planned.node.step]
        name = planned.name
        is_ahead = bool(self._ahead.get(name, Ahead()).before)
        return Task(name, lambda _: self._work(name), self._after(planned), step.retries, is_ahead, step.backoff)

    def _after(self, planned: PlannedStep) -> tuple[After, ...]:
        """Return the tasks that one waits for: nodes that are up to date or left out are none."""
        idle = (Action.SKIP, Action.OMIT, Action.FAILED)
        needs = [name for name in planned.node.needs if self._round.steps[name].action not in idle]
        ahead = self._ahead.get(planned.name, Ahead()).before
        condition = condition_of(self._flow.steps[planned.node.step])
        return tuple(
            After(name, "done" if condition == "done" else "over") if name in ahead else After(name, "over", True)
            for name in needs
        )

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
            is_open = planned.action is Action.WAIT and bool(self._ahead.get(name, Ahead()).before)
            if planned.action is Action.RUN or is_open:
                return self._prepared(planned)
            if planned.action is Action.RESTORE and not self._restored(name):
                return self._prepared(self._round.decide(name))
        except Transient as error:
            self._silence = str(error)
            if self._reasons.get(name) != str(error):
                self._tell(name, "waiting", str(error))
            return TaskStatus(Handle(""), RunState.QUEUED, str(error))
        except FairmileError as error:
            return TaskStatus(Handle(""), RunState.FAILED, str(error))
        if planned.action is Action.OMIT:
            return TaskStatus(Handle(""), RunState.CANCELLED, planned.reason)
        return TaskStatus(Handle(""), RunState.DONE, planned.reason)

    def _restored(self, name: str) -> bool:
        """Bring the outputs of a step back; where they are gone everywhere, the step is to run again."""
        entry = self._state.done[name]
        try:
            if not entry.on or not self._store().absent(entry.outputs.values()):
                restore_outputs(entry, self._folder, self._store())
            else:
                self._places.bring_outputs(entry)
        except NotFound as error:
            if not entry.on:
                raise
            self._state.note(Entry(name, "gone", reason=str(error)))
            return False
        return True

    def _prepared(self, planned: PlannedStep) -> Work | Run | TaskStatus:
        self._begun[planned.name] = planned
        self._places.bring_inputs(planned, self._round)
        near = self._near(planned)
        if near is None:
            return TaskStatus(Handle(""), RunState.QUEUED, "a step before it is not submitted yet")
        newest = self._state.newest.get(planned.name)
        begun = newest.run if newest is not None and newest.state == "begun" else ""
        folder = None
        if newest is not None and begun:
            run = self._runs.find(begun)
            if self._is_run_of(newest, planned):
                if run is not None:
                    return self._again_with(planned, run, near)
                folder = self._runs.root / begun
            elif run is not None and not self._runs.collect(begun).state.is_end:
                self._runs.cancel(begun)  # what went in has changed since
        work = self._new(planned, near, folder)
        entry = Entry(planned.name, "begun", planned.key, work.id, self._program(planned), planned.params)
        entry.inputs, entry.via = planned.inputs if not planned.key else {}, self._via(planned)
        self._state.note(entry, sync=bool(work.system))
        self._step_of[work.id] = planned.node.step
        self._on_event(planned.name, "begun", planned.reason)
        return work

    def _via(self, planned: PlannedStep) -> Via:
        if is_in_pilot(self._flow, self._flow.steps[planned.node.step]):
            return "pilot"
        return "" if planned.key else "ahead"

    def _again_with(self, planned: PlannedStep, run: Run, near: Mapping[str, Nearby]) -> Work | Run:
        """Return a run that was begun before: it is done, or goes on."""
        self._step_of[run.id] = planned.node.step
        if run.state is RunState.DONE:
            return run
        places = {str(self._folder / path): each for path, each in near.items()}
        names = {name: places[each.path] for name, each in run.captured.inputs.items() if each.path in places}
        leaves = self._leaves(planned)
        return PreparedRun(run.folder, run.record, run.spec, nearby=names, leaves_outputs=leaves)

    def _is_run_of(self, begun: Entry, planned: PlannedStep) -> bool:
        """Tell whether a run that was begun has what goes in now; one submitted ahead as far as that was known."""
        if begun.key:
            return begun.key == planned.key
        is_same = begun.program == self._program(planned) and begun.params == planned.params
        return is_same and all(planned.inputs.get(path) == digest for path, digest in begun.inputs.items())

    def _leaves(self, planned: PlannedStep) -> bool:
        """Tell whether the outputs of a step stay where it ran, until somebody needs them."""
        return bool(planned.system) and self._runs.is_remote(planned.system)

    def _near(self, planned: PlannedStep) -> dict[str, Nearby] | None:
        """Return, by path, the inputs that lie or will lie on the remote system of a step; None: not known yet."""
        if not self._leaves(planned):
            return {}
        near = {}
        for path, _ in own_inputs(planned):
            entry = self._round.away.get(path)
            if (
                entry is not None
                and entry.on == planned.system
                and (there := self._places.nearby(entry, path)) is not None
            ):
                near[path] = there
        others = [self._round.steps[name] for name in self._ahead.get(planned.name, Ahead()).before]
        late = self._places.late(planned, [each for each in others if each.action in (Action.RUN, Action.WAIT)])
        return None if late is None else {**near, **late}

    def _new(self, planned: PlannedStep, near: Mapping[str, Nearby], folder: Path | None = None) -> PreparedRun:
        """Return a new run of a node; what all nodes of its step share is captured once."""
        node = planned.node
        if node.step not in self._plans:
            self._plans[node.step] = self._shared(planned)
        plan, shared = self._plans[node.step]
        inputs, captured = dict(shared.inputs), {}
        names: dict[str, Nearby] = {}
        files = dict(own_inputs(planned)) | {path: "" for path, each in near.items() if not each.sha256}
        if not planned.key:  # of what is made before it begins, only the path is known
            texts = (placed(self._flow.steps[node.step].folder, text) for text in node.inputs.values())
            files |= {path: "" for path in texts if path not in planned.inputs and not is_wild(path)}
        for number, (path, digest) in enumerate(files.items()):
            name = self._input_name(planned, path, number)
            inputs[name] = CapturedInput(path=str(self._folder / path), sha256=digest)
            captured[name] = Input(path=str(self._folder / path))
            names |= {name: near[path]} if path in near else {}
        update = {
            "params": {**plan.spec.params, **planned.params},
            "inputs": {**plan.spec.inputs, **captured},
            "outputs": node.outputs,
            "env": self._planner.variables(node),
        }
        own = replace(plan, spec=plan.spec.model_copy(update=update))
        work = self._runs.prepare_captured(own, replace(shared, inputs=inputs), folder)
        if not planned.key:
            work.record.identity = ""  # it answers for no later run before its inputs are known
        return replace(work, nearby=names, leaves_outputs=self._leaves(planned))

    def _shared(self, planned: PlannedStep) -> tuple[RunPlan, Captured]:
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
            inputs = {**{name: Input(path=text) for name, text in planned.node.inputs.items()}, **fields["inputs"]}
            given = {**program.fields, **fields, "params": params, "inputs": inputs}
            plan = self._runs.plan(program.word, used=used, **given)
            own = {
                name: each for name, each in plan.spec.inputs.items() if name not in inputs or name in fields["inputs"]
            }
            plan = replace(plan, spec=plan.spec.model_copy(update={"inputs": own}))
        else:
            plan = self._runs.plan(program.spec.model_copy(update={**fields, "params": params}), used=used)
        return plan, self._runs.capture(plan)

    def _input_name(self, planned: PlannedStep, path: str, number: int) -> str:
        """Return the name of an input: that of the step, or of one file of many a number."""
        step = self._flow.steps[planned.node.step]
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
        if name in self._ahead and self._ahead[name].before:  # what goes in is known now, if all went well before it
            self._begun[name] = self._round.decide(name)
        planned = self._begun.get(name) or self._round.steps[name]
        is_refused = bool(status.handle.run and planned.system and self._runs.find(status.handle.run) is None)
        if is_refused and status.state is RunState.FAILED:
            self._places.note_gone(planned, self._round)
        if is_refused or not status.handle.run:
            self._ended_without_run(planned, status)
            return
        self._take(name, self._graph.collect(name), status)

    def _take(self, name: str, run: Run, status: TaskStatus) -> None:
        """Note how a run ended, and what it gave."""
        planned = self._begun[name]
        if planned.action is Action.OMIT:  # it was submitted ahead of one that failed, and its scheduler dropped it
            self._state.note(Entry(name, "skipped", run=run.id, reason=planned.reason))
            self._round.leave_out(name, planned.reason)
            self._tell(name, "left out", planned.reason)
            return
        entry = Entry(name, str(status.state), planned.key, run.id, self._program(planned), planned.params)
        entry.inputs, entry.reason = planned.inputs, status.reason
        entry.metrics = {each: metric.value for each, metric in run.metrics.items()}
        entry.elapsed_s, entry.tries = run.elapsed_s, len(run.record.attempts)
        entry.on = planned.system if self._leaves(planned) else ""
        if self._state.newest[name].via == "ahead":
            self._note_inputs(planned, run)
        if status.state is RunState.DONE:
            try:
                entry.outputs = self._outputs(planned, run)
                self._bring_home(entry)
                if changed := self._changed_meanwhile(planned):
                    entry.key, entry.reason = "", f"{changed} changed while it ran"
            except FairmileError as error:
                entry.state, entry.reason = "failed", str(error)
        self._state.note(entry)
        self._has_new_outputs = self._has_new_outputs or bool(entry.outputs)
        self._round.close(name, is_done=entry.is_done)
        self._tell(name, entry.state, entry.reason)

    def _note_inputs(self, planned: PlannedStep, run: Run) -> None:
        """Add to the record of a run that was submitted ahead what went in, by digest."""
        record = run.record.copy()
        names = {each.path: name for name, each in record.captured.inputs.items()}
        for number, (path, digest) in enumerate(own_inputs(planned)):
            place = str(self._folder / path)
            name = names.get(place) or self._input_name(planned, path, number)
            captured = record.captured.inputs.setdefault(name, CapturedInput(path=place))
            captured.sha256 = digest
        self._runs.write(run.folder, record)

    def _bring_home(self, entry: Entry) -> None:
        """Bring home what a step gave, where it is to come home; from a system that does not answer, later."""
        try:
            self._places.bring_outputs(entry)
        except Transient as error:
            self._owed[entry.step], self._silence = entry, str(error)
            self._on_event(entry.step, "waiting", str(error))

    def _settle_debts(self) -> None:
        """Bring home the results that could not come when their steps ended."""
        while self._owed and not self._native and not self._state.is_asked_to_stop and not self._is_given_up():
            time.sleep(_LOOK_S)
            for entry in list(self._owed.values()):
                with contextlib.suppress(Transient):
                    self._places.bring_outputs(entry)
                    del self._owed[entry.step]
                    self._note_answer()

    def _ended_without_run(self, planned: PlannedStep, status: TaskStatus) -> None:
        name = planned.name
        if status.state is RunState.DONE:  # up to date, or restored
            what = "restored" if planned.action is Action.RESTORE else "skipped"
            self._state.confirm(name)
            self._round.close(name, is_done=True)
            self._tell(name, what, status.reason)
            return
        if status.state is RunState.FAILED:
            self._state.note(Entry(name, "failed", reason=status.reason))
            self._round.close(name, is_done=False)
            self._tell(name, "failed", status.reason)
            return
        newest = self._state.newest.get(name)
        if newest is None or newest.state != "begun":  # else its run is still to be collected, or cancelled
            self._state.note(Entry(name, "skipped", reason=status.reason))
        self._round.leave_out(name, status.reason)
        self._tell(name, "left out", status.reason)

    def _tell(self, name: str, what: str, reason: str) -> None:
        self._reasons[name] = reason
        self._on_event(name, what, reason)

    def _outputs(self, planned: PlannedStep, run: Run) -> dict[str, str]:
        """Return what a step gave, as paths of the flow with their digests; a declared file that is missing raises."""
        step = self._flow.steps[planned.node.step]
        made = {placed(step.folder, name): each.sha256 for name, each in run.outputs.items()}
        is_away = self._leaves(planned)
        if not is_away and Path(run.record.spec.folder) != self._planner.folder_of(step):
            copy_outputs(run, self._planner.folder_of(step), self._runs)
        for output in planned.node.outputs:
            path = placed(step.folder, output)
            if path in made or any(each.startswith(f"{path}/") for each in made):
                continue
            if is_wild(path):
                continue
            digest = "" if is_away else self._planner.digest(str(self._folder / path))
            if not digest:
                raise Integrity(f"it succeeded, but did not write its output {output}")
            made[path] = digest
        return made

    def _changed_meanwhile(self, planned: PlannedStep) -> str:
        """Return an input that is no longer what it was when the step began."""
        for path, digest in own_inputs(planned):
            now = self._planner.digest(str(self._folder / path))
            if now != digest and (now or path not in self._round.away):
                return f"input {path}"
        return ""

    def _keep_programs(self) -> None:
        programs = {}
        for planned in self._round.steps.values():
            if planned.action is not Action.SKIP:
                program = self._planner.program(planned.node)
                programs[program.digest] = program.parts
        self._state.keep_programs(programs)
