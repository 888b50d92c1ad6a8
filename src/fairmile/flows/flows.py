"""Flows: read, planned, carried out, looked at, drawn."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.cores import usable_cores
from fairmile.base.digest_cache import DigestCache
from fairmile.base.errors import Conflict, InvalidDocument, NotFound, UsageError
from fairmile.base.lazy import lazy
from fairmile.base.nouns import Noun
from fairmile.base.words import did_you_mean
from fairmile.flows.ahead import plan_ahead
from fairmile.flows.drawing import FORMATS, Drawing, draw, lay_out
from fairmile.flows.exchange import EXPORTS, Export, ExportedFlow
from fairmile.flows.files import READERS, Source, read_flow
from fairmile.flows.graph import StepGraph, check_steps
from fairmile.flows.labels import label_facts
from fairmile.flows.model import Flow, Step, is_in_pilot
from fairmile.flows.plan import Action, FlowPlan, PlannedStep, Planner
from fairmile.flows.programs import Programs
from fairmile.flows.results import (
    CancelledFlow,
    FlowInfo,
    FlowList,
    FlowStatus,
    SavedFlow,
    StepLog,
    StepStatus,
    step_status,
)
from fairmile.flows.state import FLOW, Entry, FlowState, folder_of, open_state
from fairmile.runs.execute.executor import Handle
from fairmile.runs.record.values import Value

# A plan asks few of them, and each takes longer to load than most plans to make.
if TYPE_CHECKING:
    from fairmile.catalog.assets import Assets
    from fairmile.catalog.card import Card
    from fairmile.catalog.catalog import Catalog
    from fairmile.envs.envs import Envs
    from fairmile.flows.engine import Engine, OnEvent
    from fairmile.flows.exporting import exported_step
    from fairmile.flows.live import FlowChanges, FlowPicture, changed_since, cursor_of
    from fairmile.flows.progress import read_progress
    from fairmile.flows.saved import FlowFiles, main_file, save_flow
    from fairmile.flows.suggest import Suggestion, suggest_flow
    from fairmile.jobs.machines import Machines
    from fairmile.resolve import Target
    from fairmile.runs.execute.pilot import check_pilot
    from fairmile.runs.runs import Runs
    from fairmile.store.store import Store
    from fairmile.sweeps.sweeps import Sweeps
else:
    Engine = lazy("fairmile.flows.engine:Engine")
    exported_step = lazy("fairmile.flows.exporting:exported_step")
    FlowChanges = lazy("fairmile.flows.live:FlowChanges")
    FlowPicture = lazy("fairmile.flows.live:FlowPicture")
    changed_since = lazy("fairmile.flows.live:changed_since")
    cursor_of = lazy("fairmile.flows.live:cursor_of")
    read_progress = lazy("fairmile.flows.progress:read_progress")
    check_pilot = lazy("fairmile.runs.execute.pilot:check_pilot")
    FlowFiles = lazy("fairmile.flows.saved:FlowFiles")
    main_file = lazy("fairmile.flows.saved:main_file")
    save_flow = lazy("fairmile.flows.saved:save_flow")
    suggest_flow = lazy("fairmile.flows.suggest:suggest_flow")

_COPIES, _DIGESTS = ".parsed", ".digests.json"
Definable = Flow | str | os.PathLike[str]


class Flows(Noun, package=__package__):
    """All flows of one workspace; what is known of each lies in a folder of its own below `root`."""

    def __init__(
        self,
        root: Path,
        runs: Callable[[], Runs],
        *,
        sweeps: Callable[[], Sweeps],
        catalog: Callable[[], Catalog],
        envs: Callable[[], Envs],
        store: Callable[[], Store],
        machines: Callable[[], Machines],
        assets: Callable[[], Assets],
        resolve: Callable[..., Target],
        environ: Mapping[str, str],
        host_timeout_s: float = math.inf,
    ) -> None:
        self.root = root
        self._runs, self._sweeps, self._catalog = runs, sweeps, catalog
        self._envs, self._store, self._machines, self._environ = envs, store, machines, environ
        self._assets, self._resolve, self._host_timeout_s = assets, resolve, host_timeout_s

    # Plan

    def read(self, what: Definable, *, params: Mapping[str, Value] | None = None) -> Source:
        """Return the flow that a file, an asset or the id of a flow means, or every reason why it is none.

        `params` go before its own. An asset is read from the folder of its name here, else from the store.
        """
        if not isinstance(what, Flow):
            return self._read(self._file(what), params)
        folder = os.path.abspath(what.folder)
        return Source(what.model_copy(update={"folder": folder, "params": {**what.params, **(params or {})}}))

    def _read(self, file: Path, params: Mapping[str, Value] | None, *, is_run: bool = False) -> Source:
        def catalog(word: str, folder: Path) -> Path:
            target = self._resolve(word, for_="flow")
            if target.kind != "workflow":
                raise NotFound(f"{word!r} is a {target.kind}")
            card = target.content
            at = folder / card.handle.name
            # No plan can be made without its files, so that they come where they are to run.
            return self._asset_file(card, at, is_run=is_run or not (at / main_file(card)).is_file())

        return read_flow(file, copies=self.root / _COPIES, changes=params, catalog=catalog)

    def plan(
        self,
        what: Definable,
        *,
        params: Mapping[str, Value] | None = None,
        again: Collection[str] = (),
        native: bool = False,
    ) -> FlowPlan:
        """Return what each step of a flow would do, and why; steps in `again` run in any case. Nothing happens.

        With `native` the reasons say which steps are submitted ahead of those they come after.
        """
        source = self.read(what, params=params)
        plan = self._planner(source).plan(self._state(source), again=again)
        ahead = plan_ahead(plan.steps, source.flow, self._is_remote) if native else {}
        for name, each in ahead.items():
            plan.steps[name].reason += f"; {each.sentence}"
        return plan

    # Run

    def run(
        self,
        what: Definable,
        *,
        params: Mapping[str, Value] | None = None,
        again: Collection[str] = (),
        at_once: int | None = None,
        native: bool = False,
        pilots: int | None = None,
        to: str | os.PathLike[str] | None = None,
        on_event: OnEvent = lambda *_: None,
    ) -> FlowStatus:
        """Carry a flow to its end, or go on where it stopped, and return where each step stands.

        The files of an asset are fetched into the folder `to`, by default one of its name here, and it runs there.
        `at_once` steps run together on this machine, by default as many as it has processors; `limits` of the flow say
        how many run on systems. With `native`, steps that follow each other on one system are submitted together, with
        dependencies of its scheduler, and this returns when only systems have work left: a later call collects it.
        `pilots` is the number of pilot jobs on each system that execute the steps there, instead of a job for each.
        Calls `on_event` with the step, its new state and the reason.
        """
        if isinstance(what, Flow):
            source = self.read(what, params=params)
        else:
            source = self._read(self._file(what, is_run=True, to=to), params, is_run=True)
        if pilots is not None:
            source = replace(source, flow=source.flow.model_copy(update={"pilots": pilots}))
        planner = self._planner(source)
        is_first = not self._state(source).document
        state = self._opened(source, params or {})
        try:
            with state.held():
                processors = usable_cores()
                limits: dict[str, Any] = {"at_once": at_once or processors, "host_timeout_s": self._host_timeout_s}
                engine = Engine(planner, state, self._runs(), self._store, **limits, native=native, on_event=on_event)
                steps = engine.run(again)
        except InvalidDocument:
            if is_first and not state.newest:  # nothing has begun, so that nothing stays
                shutil.rmtree(state.folder, ignore_errors=True)
            raise
        return FlowStatus(state.id, [self._ended_status(engine, state, each) for each in steps.values()])

    def _ended_status(self, engine: Engine, state: FlowState, planned: PlannedStep) -> StepStatus:
        newest = state.newest.get(planned.name)
        is_left = newest is not None and newest.state == "begun" and planned.action is not Action.OMIT
        return self._look(planned, state) if is_left else engine.status(planned)

    # Share

    def save(
        self,
        what: str | os.PathLike[str],
        *,
        name: str = "",
        address: str = "",
        set: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> SavedFlow:
        """Add a flow to the catalog, with its files, as an asset that others fetch and run with their parameters.

        `address` is the folder on the web where others find the files; without it they are copied into the store, and
        the card is of use on this machine. `set` has further properties of the card, such as the licence.
        """
        source = self.read(what)
        planner = self._planner(source)
        plan = planner.plan(self._state(source))
        return save_flow(source, plan, planner, self._catalog(), self._assets, name, address, set or {}, dry_run)

    def suggest(self, model: str, *, dataset: str = "", output: str | os.PathLike[str] | None = None) -> Suggestion:
        """Propose a flow of catalog programs that prepare data, train a model and evaluate it; `output` gets its file.

        Without `dataset` it is the one that matches the model best.
        """
        return suggest_flow(self._catalog(), model, dataset, None if output is None else Path(output))

    # Look

    def status(self, what: Definable) -> FlowStatus:
        """Return where each step of a flow stands; runs on systems are brought up to date.

        What has ended of a flow that nobody carries out is collected first.
        """
        return self._status(self._as_run(what))

    def _status(self, source: Source) -> FlowStatus:
        state = self._state(source)
        if any(entry.state == "begun" for entry in state.newest.values()):
            with contextlib.suppress(Conflict), state.held():
                Engine(self._planner(source), state, self._runs(), self._store, at_once=1).collect()
        holder = state.holder if state.folder.is_dir() else ""
        round = self._planner(source).look(state, is_left=not holder)
        return FlowStatus(state.id, [self._look(each, state) for each in round.steps.values()], holder)

    def _look(self, planned: PlannedStep, state: FlowState) -> StepStatus:
        newest = state.newest.get(planned.name)
        if newest is None or newest.state != "begun":
            status = step_status(planned, newest, state.done.get(planned.name))
            is_new = newest is not None and newest.state == "skipped" and newest.at >= state.started > 0
            return replace(status, state="left out", reason=newest.reason) if newest and is_new else status
        try:
            run = self._runs().collect(newest.run)
        except NotFound:  # it was to begin when somebody was killed
            return step_status(planned, None, state.done.get(planned.name))
        if planned.action is Action.OMIT and run.state.is_end:  # its scheduler dropped it
            return step_status(planned, None, None)
        seconds = run.elapsed_s
        if seconds is None and run.record.attempts:
            seconds = max(time.time() - run.record.attempts[-1].started, 0.0)
        at = (planned.name, planned.node.needs, planned.on, str(run.state), run.id, seconds)
        return StepStatus(*at, progress=read_progress(run), reason=run.reason)

    def graph(self, what: Definable, *, format: str = "svg") -> Drawing:
        """Return the graph of a flow as `svg` or `mermaid`, with the states of its steps."""
        if format not in FORMATS:
            raise UsageError(f"{format!r} is not a format of graphs", hint=f"formats: {', '.join(FORMATS)}")
        source = self._as_run(what)
        status = self._status(source)
        return draw(status, format, *self._labels_and_shapes(source, status))

    def picture(self, what: Definable) -> FlowPicture:
        """Return the graph of a flow with the place and the state of each box, and a cursor for `changes`."""
        source = self._as_run(what)
        state = self._state(source)
        status = self._status(source)
        return FlowPicture(status, cursor_of(state, status), lay_out(status, *self._labels_and_shapes(source, status)))

    def changes(self, what: Definable, *, since: str) -> FlowChanges:
        """Return the steps and boxes of a flow that changed since a cursor, and the next cursor.

        Its `layout` is that of the picture whose boxes they are; where that differs, `picture` returns the new one.
        """
        source = self._as_run(what)
        state = self._state(source)
        status = self._status(source)
        cursor = cursor_of(state, status)
        drawn = lay_out(status, *self._labels_and_shapes(source, status))
        return FlowChanges(status, cursor, drawn, changed_since(since, cursor, state, status))

    def _labels_and_shapes(self, source: Source, status: FlowStatus) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the texts and the outlines of steps that files of another tool give them."""
        if not source.format:
            return {}, {}
        reader, state = READERS[source.format], self._state(source)
        created = source.file.stat().st_mtime if source.file is not None else None
        labels = {
            step.name: reader.label(text, label_facts(step, state, created))
            for step in status.steps
            if step.name in source.flow.steps and (text := source.flow.steps[step.name].label)
        }
        return labels, {name: step.shape for name, step in source.flow.steps.items() if step.shape}

    def export(self, what: Definable, *, to: str) -> Export:
        """Return a flow in another tool's format, such as a Snakefile; `write` writes it to a file or folder."""
        source = self._as_run(what)
        state, planner = self._state(source), self._planner(source)
        plan = planner.plan(state)
        if unknown := next((each.node for each in plan.steps.values() if each.node.unknown), None):
            raise UsageError(
                f"how often {unknown.step!r} is repeated is unknown until {unknown.unknown!r} has run",
                hint="run the flow first",
            )
        steps = [exported_step(each, planner, state) for each in plan.steps.values()]

        def own_files() -> Mapping[str, Path]:
            return FlowFiles(source, plan, planner, self._catalog()).files

        flow = source.flow
        root = Path(os.path.commonpath([source.file.parent, flow.folder]) if source.file is not None else flow.folder)
        language = source.format or "Fairmile flow"
        exported = ExportedFlow(flow.name, flow.folder, steps, source.file, language, flow.params, root, own_files)
        made = EXPORTS[to](exported)
        return Export(to, made) if isinstance(made, str) else Export(to, made.text, made.main, made.files)

    def log(self, what: Definable, step: str) -> StepLog:
        """Return what the program of a step has printed so far."""
        state = self._state(self._as_run(what))
        entry = state.newest.get(step)
        if entry is None or not entry.run:
            near = did_you_mean(step, state.newest)
            raise NotFound(f"step {step!r} has not run{f'; {near}' if near else ''}")
        return StepLog(step, entry.run, self._runs().output(entry.run))

    def ls(self) -> FlowList:
        """Return the flows that were run, the newest first."""
        flows = []
        for file in self.root.glob(f"[!.]*/{FLOW}"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                document = json.loads(file.read_bytes())
                flows.append(
                    FlowInfo(
                        file.parent.name, document["name"], document["file"], document["folder"], document["created"]
                    )
                )
        return FlowList(sorted(flows, key=lambda each: each.created, reverse=True))

    def cancel(self, what: Definable, *, dry_run: bool = False) -> CancelledFlow:
        """End what runs of a flow, here and on systems, and have nothing more begin.

        Whoever carries it out stops; where nobody does, the runs that were left on systems are cancelled.
        """
        source = self._as_run(what)
        state = self._state(source)
        runs = self._runs()
        begun = [
            entry for entry in state.newest.values() if entry.state == "begun" and runs.find(entry.run) is not None
        ]
        live = {entry.run: entry for entry in begun if not runs.collect(entry.run).state.is_end}
        holder = state.holder if state.folder.is_dir() else ""
        if dry_run:
            return CancelledFlow(state.id, holder, list(live), dry_run=True)
        if holder:
            state.ask_to_stop()
        else:
            for entry in reversed(live.values()):  # else a scheduler drops what comes after one, and nobody knows why
                self._cancel_run(entry, runs)
        return CancelledFlow(state.id, holder, list(live))

    @staticmethod
    def _cancel_run(entry: Entry, runs: Runs) -> None:
        """Cancel a run that was left; a pilot job whose coordinator was killed looks for the wish that its run end."""
        try:
            if entry.via == "pilot" and (run := runs.find(entry.run)) is not None:
                runs.executors.pilot(run.spec.system, 1).cancel([Handle(entry.run)])
            else:
                runs.cancel(entry.run)
        except Conflict:
            if not runs.collect(entry.run).state.is_end:
                raise

    def _as_run(self, what: Definable) -> Source:
        """Return a flow with the parameters that its last run was given."""
        source = self.read(what)
        params = self._state(source).document.get("params")
        with contextlib.suppress(UsageError):  # the file no longer has such a parameter
            return self.read(source.file or what, params=params) if params else source
        return source

    def _file(
        self, what: str | os.PathLike[str], *, is_run: bool = False, to: str | os.PathLike[str] | None = None
    ) -> Path:
        """Return the file that a word means; to run it, an asset is fetched into a folder."""
        if os.path.isfile(what):
            return Path(what)
        target = self._resolve(os.fspath(what), for_="flow")
        if target.kind != "workflow":
            return target.path or Path(target.content.file)
        return self._asset_file(target.content, Path(to or target.content.handle.name).absolute(), is_run=is_run)

    def _asset_file(self, card: Card, folder: Path, *, is_run: bool) -> Path:
        """Return the file of a flow of the catalog: in a folder, which is fetched to run it, or else in the store."""
        name = main_file(card)
        if is_run:
            self._assets().fetch(str(card.handle), to=folder)
        elif not (folder / name).is_file():
            folder = self._assets().load(str(card.handle)).path
        return folder / name

    def _planner(self, source: Source) -> Planner:
        """Check a flow as a whole and return what plans it."""
        graph = StepGraph(source.flow, file=source.shown, line_of=source.line_of)
        digests = DigestCache(self.root / _DIGESTS)
        programs = Programs(source.flow, self._runs, self._envs, self._environ, digests)
        checks = {"on": lambda _, step: self._check_system(source.flow, step), "command": programs.check}
        check_steps(graph, checks)
        return Planner(source, graph, programs, self._points, digests, absent=self._absent, asset=self._asset)

    def _check_system(self, flow: Flow, step: Step) -> None:
        if not step.system or "{" in step.system:
            return
        machine = self._machines()[step.system]
        if is_in_pilot(flow, step):
            check_pilot(machine)
        if step.partition:
            names = list(machine.system.partitions)
            if step.partition not in names:
                raise NotFound(f"{step.system} has no partition {step.partition!r}", hint=f"it has {', '.join(names)}")

    def _is_remote(self, system: str) -> bool:
        return bool(self._machines()[system].reach.host)

    def _points(self, file: str) -> Sequence[Mapping[str, Value]]:
        return [point.values for point in self._sweeps().read([file])[0].points]

    def _absent(self, digests: Iterable[str]) -> Collection[str]:
        return self._store().absent(digests)

    def _asset(self, name: str) -> str:
        return str(self._catalog().get(name).handle)

    def _folder(self, source: Source) -> Path:
        return folder_of(self.root, source.flow.name, source.flow.folder, source.file)

    def _state(self, source: Source) -> FlowState:
        """Return what is known of a flow; nothing is made for one that has never run."""
        return FlowState(self._folder(source))

    def _opened(self, source: Source, params: Mapping[str, Value]) -> FlowState:
        return open_state(self._folder(source), source.flow.name, source.flow.folder, source.file, params)
