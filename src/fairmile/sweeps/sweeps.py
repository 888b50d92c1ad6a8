"""Sweeps: from a definition to thousands of runs, here or on a system, found again after a logout, a crash, a kill."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from fairmile.base.errors import Conflict, Locked, NotFound, UsageError
from fairmile.base.files import Holder, Lock, write_atomic, write_failure
from fairmile.base.nouns import Noun
from fairmile.base.units import parse_duration
from fairmile.base.words import did_you_mean
from fairmile.catalog.catalog import Catalog
from fairmile.meter.lines import number_text
from fairmile.resolve import Target, Word
from fairmile.runs.arguments import is_program, with_options
from fairmile.runs.execute.batches import ArrayState, Frozen, read_tasks
from fairmile.runs.execute.crew import Ended
from fairmile.runs.execute.executor import Graph, Handle, Member, Task, TaskStatus
from fairmile.runs.execute.scheduler import Packing
from fairmile.runs.execute.worker import Batch
from fairmile.runs.plan import RunPlan
from fairmile.runs.prediction import Fit
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import RunSpec
from fairmile.runs.record.values import Value
from fairmile.runs.runs import Runs
from fairmile.sweeps.arguments import no_axes, program_axes
from fairmile.sweeps.backlog import held_back, hold_back, packing
from fairmile.sweeps.files import collect_source, is_definition, read_definition
from fairmile.sweeps.folder import COMBINED, Sweep, clear_leftovers, list_sweeps, making, remove_folder, write_sweep
from fairmile.sweeps.generate import Generated, GenerationPlan, Progress, generate, plan_generation
from fairmile.sweeps.members import Members, kept
from fairmile.sweeps.model import Definition, Point
from fairmile.sweeps.record import Source, StudyRecord, SweepRecord
from fairmile.sweeps.rendering import Renderer
from fairmile.sweeps.results import (
    ChangedSweep,
    PointStatus,
    SweepList,
    SweepPlan,
    SweepPoints,
    SweepStatus,
)
from fairmile.sweeps.templates import Texts

Definable = Definition | str | Path | Sequence[str]  # what defines a sweep: a file, an asset, the words of a command
RESULTS = "results.json"
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
_PACK_S = 600.0  # what a task of a job array should take: shorter ones cost the scheduler more than the points
_LOOK_S = 0.5
_SELDOM_LOOK_S = 2.0  # where a look costs more: at many points, or over a network
_HISTORY = 50
_SHOWN = 20  # commands of a plan
_PATIENCE_S = 60.0  # while another process submits, or ends
_TURN = ".turn"
_ASKED = "the time limit: an upper bound"
_LEFT = "left"  # not begun, and in no job
_OF_DEFINITION = ("select", "repeats", "best", "objective", "name", "seed")
_AGAIN = frozenset({RunState.INTERRUPTED, RunState.CANCELLED})


_INTERNAL = "check combined define define_any plan_trial points"  # for other parts of Fairmile


class Sweeps(Noun, internal=_INTERNAL, package=__package__):
    """All sweeps of a workspace, each in its own folder."""

    def __init__(
        self,
        root: Path,
        runs: Callable[[], Runs],
        *,
        resolve: Callable[..., Target],
        catalog: Callable[[], Catalog],
        environ: Mapping[str, str],
        best: Callable[[Sequence[Run], str], str] = lambda _, __: "",
    ) -> None:
        self.root = root
        self._runs = runs
        self._resolve = resolve
        self._catalog = catalog
        self._environ = environ
        self._best = best  # says in a sentence which of some runs is best by a metric

    # Plan

    def read(
        self,
        files: Sequence[Path | str] = (),
        *,
        what: str = "",
        command: Sequence[str] = (),
        program: Sequence[str] = (),
        tuning: bool = False,
        params: Mapping[str, Any] | None = None,
        allow_code: bool = False,
        changes: Mapping[str, Any] | None = None,
    ) -> tuple[Definition, Source]:
        """Return the definition of a sweep from files, a name or a command, and its source as data.

        `program` is the path of a program and its arguments, some of which are axes, as `--lr 0.1,0.01`; `tuning` tells
        that they are searched. `params` are axes and settings that go before those of the files, `changes` other keys,
        such as `select`.
        """
        if program:
            command, axes = program_axes(program, self._environ, tuning=tuning)
            if twice := [name for name in axes if name in (params or {})]:
                raise UsageError(f"{twice[0]} is given twice", hint=f"remove -p {twice[0]} or the argument")
            params = {**axes, **(params or {})}
            if not params:
                raise no_axes(program[0], tuning=tuning)
            seed = ["seed"] if (changes or {}).get("seed") is not None else []
            command = with_options(command, [*params, *seed], Path(), self._environ)
        source = collect_source(
            [Path(file) for file in files],
            params=params or {},
            what=what,
            command=command,
            allow_code=allow_code,
            changes=changes or {},
        )
        return read_definition(source, environ=self._environ), source

    def define(
        self,
        what: str | Path | Sequence[str],
        *,
        params: Mapping[str, Any] | None = None,
        tuning: bool = False,
        **fields: Any,
    ) -> tuple[Definition, Source, dict[str, Any]]:
        """Return what `read` returns for a file, an asset, a program with its arguments, or a command; and the rest.

        Of `fields`, `select`, `repeats`, `best`, `objective`, `name` and `seed` are part of the definition. The others,
        and the name, are fields of the runs, which is the rest.
        """
        own = {key: fields[key] for key in _OF_DEFINITION if key in fields}
        rest = {key: value for key, value in fields.items() if key not in own or key == "name"}
        return *self._read_any(what, params=params, tuning=tuning, changes=own), rest

    def define_any(self, what: Definable, **options: Any) -> tuple[Definition, dict[str, Any]]:
        """Return the definition of whatever `define` takes, or one that already exists, and the rest."""
        if isinstance(what, Definition):
            return what, {name: value for name, value in options.items() if name not in ("params", "tuning")}
        definition, _, rest = self.define(what, **options)
        return definition, rest

    def _read_any(self, what: str | Path | Sequence[str], **how: Any) -> tuple[Definition, Source]:
        words = [str(what)] if isinstance(what, str | Path) else [str(word) for word in what]
        first = Word(words[0])
        if first.is_path and is_program(first.path):
            return self.read(program=words, **how)
        if not isinstance(what, str | Path):
            return self.read(command=words, **how)
        if isinstance(what, Path) or is_definition(self._resolve(what, for_="sweep", without=("sweep",))):
            return self.read([what], **how)
        return self.read(what=what, **how)

    def check(
        self,
        definition: Definition,
        points: Sequence[Point],
        *,
        template: Path | None = None,
        **changes: Any,
    ) -> None:
        """Raise an error if points cannot run: an undefined placeholder, a missing file or asset.

        `changes` are fields of the runs, as `system`.
        """
        is_ours = definition.dialect.checks_runs
        given = template or (definition.fields.get("template") if is_ours else None)
        check: Callable[[Point], object] = Texts(definition, self._environ).settings
        has_inputs = bool(definition.fields.get("inputs") or changes.get("inputs"))
        members = None
        if is_ours and (has_inputs or not given):
            members = Members(definition, template, self._environ, changes)
        if given:
            check = Renderer(definition, Path(given), self._environ).check
        elif members is not None:
            check = members.target
        for point in points:
            check(point)
        if members is not None and members.can_run and points:
            what, fields = members.target(points[0])
            try:
                spec = self._runs().resolve_spec(what, used=members.used(points[0]), place=members.place_of, **fields)
            except NotFound as error:
                raise NotFound(f"{definition.origin('run')}: {error}", hint=error.hint) from None
            members.check(spec)
            members.check_inputs(spec, self._catalog)

    def list_points(
        self, what: Definable, *, params: Mapping[str, Any] | None = None, template: Path | None = None
    ) -> SweepPoints:
        """Return the points of a sweep; raise an error if one of them is invalid."""
        definition, _ = self.define_any(what, params=params)
        points = SweepPoints(definition.points.axes, definition.points)
        self.check(definition, points, template=template)
        return points

    def plan_generation(
        self,
        what: Definable,
        folder: Path,
        *,
        params: Mapping[str, Any] | None = None,
        template: Path | None = None,
        name: str = "",
        copy: Sequence[str | Path] = (),
        split_among: int = 1,
    ) -> GenerationPlan:
        """Return what `generate` with the same arguments would write."""
        given: dict[str, Any] = {"name": name, "copy": copy, "split_among": split_among, "environ": self._environ}
        return plan_generation(self.define_any(what, params=params)[0], template, Path(folder), **given)

    def generate(
        self,
        what: Definable,
        folder: Path,
        *,
        params: Mapping[str, Any] | None = None,
        template: Path | None = None,
        name: str = "",
        copy: Sequence[str | Path] = (),
        split_among: int = 1,
        on_progress: Progress | None = None,
    ) -> Generated:
        """Write a folder per point, with its script and configuration, to submit by hand."""
        given: dict[str, Any] = {"name": name, "copy": copy, "split_among": split_among, "environ": self._environ}
        return generate(
            self.define_any(what, params=params)[0], template, Path(folder), on_progress=on_progress, **given
        )

    def plan(
        self,
        what: Definable,
        *,
        params: Mapping[str, Any] | None = None,
        template: Path | None = None,
        **changes: Any,
    ) -> SweepPlan:
        """Return what a sweep would do; `changes` are fields of its runs, such as `system`, or of its definition."""
        definition, changes = self.define_any(what, params=params, **changes)
        first, last, count = _ends(definition)
        members = Members(definition, template, self._environ, changes)
        if not members.can_run:
            return SweepPlan(
                definition,
                first,
                last,
                count,
                None,
                disk_bytes=members.size_bytes(first) * count,
                notes=definition.notes,
            )
        plan = self._fitting_plan(members, first, last)
        point_s, source = self._expected(plan)
        return SweepPlan(
            definition,
            first,
            last,
            count,
            plan,
            point_s,
            source,
            None if point_s is None else _node_hours(definition, members, plan, point_s, source),
            members.size_bytes(first) * count,
            tuple(members.commands(plan.spec, islice(definition.points, _SHOWN))),
            (*definition.notes, *plan.notes),
        )

    def plan_trial(
        self, definition: Definition, *, template: Path | None = None, **changes: Any
    ) -> tuple[RunPlan, float | None, str]:
        """Return the plan of one trial, its expected seconds, and the source of that estimate."""
        plan = self._plan_of(self._members(definition, template, changes), _any_point(definition))
        return plan, *self._expected(plan)

    def _members(self, definition: Definition, template: Path | None, changes: Mapping[str, Any]) -> Members:
        members = Members(definition, template, self._environ, changes)
        if not members.can_run:
            raise UsageError(
                f"{definition.name}: no program to run at each point",
                hint="add `command`, `run` or `notebook` to the file, or use --template",
            )
        return members

    def _expected(self, plan: RunPlan) -> tuple[float | None, str]:
        """Return how long a point is expected to take, and who says so."""
        predicted = plan.prediction.get("elapsed_s")
        if predicted:
            return float(predicted["value"]), str(predicted.get("source") or "earlier runs")
        took = self._took_before(plan.spec)
        if took is not None:
            return took, f"the mean of earlier runs named {plan.spec.name}"
        if plan.spec.resources.time_s is not None:
            return plan.spec.resources.time_s, _ASKED
        return None, ""

    def _took_before(self, spec: RunSpec) -> float | None:
        rows = self._runs().rows(name=spec.name, states=[RunState.DONE], limit=_HISTORY)
        took = [row.elapsed_s for row in rows if row.elapsed_s]
        return fmean(took) if took else None

    def _plan_of(self, members: Members, point: Point) -> RunPlan:
        what, fields = members.target(point)
        plan = self._runs().plan(what, used=members.used(point), place=members.place_of, **fields)
        if plan.is_complete and point.values:
            raise UsageError(
                f"{what} builds its command itself, so all points would run the same one",
                hint=f"run it once for each value: `fairmile run {what} -p NAME=VALUE`",
            )
        members.check(plan.spec)
        members.check_values(partial(self._runs().check_values, plan.spec))
        if plan.fit is Fit.DOES_NOT:  # other trials may
            plan = replace(plan, notes=(*plan.notes, f"point {point.id} does not fit: {plan.fit_reason}"))
        return plan

    def _fitting_plan(self, members: Members, first: Point, last: Point) -> RunPlan:
        """Return the plan of the first point; UsageError where it or the last one is expected not to fit.

        The ends tell of the whole: axes mostly rise or fall. Without a limit for the first there is none for the last.
        """
        plan = self._plan_of(members, first)
        is_limited = any("limit" in each for each in plan.prediction.values())
        for point in (first, last) if is_limited else ():
            each = plan if point is first else self._plan_of(members, point)
            if each.fit is Fit.DOES_NOT and each.refusal is not None:
                raise UsageError(f"point {point.id} does not fit: {each.fit_reason}", hint=each.refusal.hint)
        return plan

    # Make and find

    def create(
        self,
        definition: Definition,
        source: Source,
        *,
        template: Path | None = None,
        study: StudyRecord | None = None,
        **changes: Any,
    ) -> Sweep:
        """Create a sweep: freeze its points, code and inputs in a new folder."""
        given = template or definition.fields.get("template")
        members = self._members(definition, template, changes)
        first, last, count = _ends(definition) if study is None else (_any_point(definition), None, 0)
        plan = self._plan_of(members, first) if last is None else self._fitting_plan(members, first, last)
        folder, id = self._new_folder(definition.name)
        with making(folder):
            frozen = self._freeze(plan, folder, id, in_place="folder" in definition.fields)
            if study is None:
                frozen.write_members(members.lines(frozen, id))
            elif given is not None:
                shutil.copyfile(given, folder / Path(given).name)
            record = SweepRecord(
                id=id,
                name=definition.name,
                created=time.time(),
                source=source,
                count=count,
                template=Path(given).name if given is not None else "",
                axes={name: list(values) for name, values in definition.points.axes.items()},
                system=frozen.spec.system,
                spec=frozen.spec.model_dump(mode="json", exclude_defaults=True, exclude={"env"}),
                values=dict(frozen.values),
                best=definition.best,
                combine=tuple(definition.combine),
                notes=(*definition.notes, *plan.notes, *frozen.notes),
                study=study,
                # Trials are made later, by other processes, from the file and what was said beside it.
                changes=kept(changes) if study is not None else {},
            )
            return write_sweep(folder, record)

    def _freeze(self, plan: RunPlan, folder: Path, id: str, *, in_place: bool) -> Frozen:
        spec = plan.spec.model_copy(update={"group": id})
        shared = RunPlan(spec, plan.steps, sources=plan.sources, materials=plan.materials)
        return self._runs().freeze(shared, folder, in_place=in_place)

    def _new_folder(self, name: str) -> tuple[Path, str]:
        while True:
            id = f"{name}-{''.join(secrets.choice(_LETTERS) for _ in range(6))}"
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                clear_leftovers(self.root)
                (self.root / id).mkdir(mode=0o700)
            except FileExistsError:
                continue
            except OSError as error:
                raise write_failure(str(self.root / id), error) from error
            return self.root / id, id

    def ls(self, *, limit: int | None = None) -> SweepList:
        """Return sweeps and studies, newest first, with the number of runs in each state."""
        sweeps = self._visible()[:limit]
        return SweepList(sweeps, self._runs().counts([each.id for each in sweeps]))

    def _visible(self) -> list[Sweep]:
        """Return all sweeps but those of assets that are hidden here, newest first."""
        return [each for each in list_sweeps(self.root) if not self._runs().hides(_assets_of(each.record.spec))]

    def get(self, reference: str | Sweep) -> Sweep:
        """Return a sweep by its id, the unique start or end of it, a unique name, or `last`."""
        if isinstance(reference, Sweep):
            return reference
        sweeps = self._visible()
        if reference == "last" and sweeps:
            return sweeps[0]
        matches = [each for each in sweeps if each.id == reference] or [
            each for each in sweeps if each.id.startswith(reference) or each.id.endswith(f"-{reference}")
        ]
        if len(matches) == 1 and reference:
            return matches[0]
        if matches and reference:
            ids = ", ".join(each.id for each in matches[:5])
            raise NotFound(f"{reference!r} is ambiguous: {ids}", hint="give a longer part of the id")
        near = did_you_mean(reference, [each.id for each in sweeps])
        raise NotFound(
            f"no sweep named {reference!r}" + (f"; {near}" if near else ""), hint="`fairmile sweep ls` lists them"
        )

    def remove(self, reference: str, *, dry_run: bool = False) -> ChangedSweep:
        """Remove a sweep; its runs stay."""
        sweep = self.get(reference)
        if dry_run:
            return ChangedSweep(sweep.folder, sweep.record, "would be removed")
        if any(not job.is_over for job in self._arrays(sweep)):
            raise Conflict(f"sweep {sweep.id} has jobs", hint=f"`fairmile sweep cancel {sweep.id}` cancels them")
        with self._turn(sweep):  # nobody is at it
            pass
        try:
            remove_folder(sweep.folder)
        except OSError as error:
            raise write_failure(str(sweep.folder), error) from error
        return ChangedSweep(sweep.folder, sweep.record, "removed")

    # Status

    def status(self, reference: str | Sweep, *, states: Collection[str] = (), best: str = "") -> SweepStatus:
        """Return the status of the points of a sweep, optionally only in some states, and the best point.

        `best` is the metric, if not the one that the sweep declares or, without that, the one that ranks its page. Of
        points in some states it is told only where it is asked for.
        """
        sweep = self.get(reference)
        points = [each for each in self.points(sweep) if not states or each.state in states]
        return SweepStatus(sweep, points, self.best(sweep, best) if best or not states else "")

    def best(self, sweep: Sweep, metric: str = "") -> str:
        """Return a sentence about the best point; empty if no point is done or no metric ranks them.

        Without `metric` that is the one which the sweep declares, or else the one that ranks its page.
        """
        runs = self.results(sweep)
        is_any_done = any(run.state is RunState.DONE for run in runs)
        return self._best(runs, metric or sweep.record.best) if is_any_done else ""

    def points(self, sweep: Sweep) -> SweepStatus:
        """Return the status of each point, after updating runs whose jobs have ended."""
        statuses = SweepStatus(sweep)
        batch = Batch.read(sweep.folder)
        shared = batch.shared.spec.params
        for each in self._runs().executors.statuses(sweep.folder):
            member, row = each.member, each.row
            at = (each.number, member["point"], each.id, member["spec"].get("params", shared))
            repeat = member.get("repeat")
            if each.is_queued:
                statuses.append(PointStatus(*at, "queued", repeat=repeat))
            elif row is None:  # it has not begun
                statuses.append(PointStatus(*at, _LEFT, repeat=repeat))
            else:
                state = (str(row.state), row.reason, row.elapsed_s, row.metrics)
                statuses.append(PointStatus(*at, *state, repeat, row.units))
        return statuses

    def _arrays(self, sweep: Sweep) -> Iterator[ArrayState]:
        for listed in read_tasks(sweep.folder):
            job = self._runs().arrays.get(listed["key"])
            if job is not None:
                yield job

    # Execute

    def run(
        self,
        sweep: Sweep,
        *,
        at_once: int = 1,
        failed: bool = False,
        pilots: int = 0,
        on_end: Callable[[Ended], None] = lambda _: None,
    ) -> SweepStatus:
        """Run the missing points of a sweep, and with `failed` also the failed ones.

        That is done by `at_once` processes on this machine, or by so many `pilots` on the sweep's system: jobs that
        stay and take one point after the other, so that none waits in the queue.
        """
        with self._turn(sweep):
            statuses = self.points(sweep)
            # Workers of a controller that was killed end what they are at.
            wanted = [each for each in statuses if _is_missing(each, failed) or self._is_begun_here(each)]
            numbers = {each.run: each.number for each in wanted}
            tasks = [Task.of(Member(sweep.folder, each.number, each.run)) for each in wanted]
            executors = self._runs().executors
            with executors.pilot(sweep.system, pilots) if pilots else executors.pool(at_once) as executor:
                Graph(tasks, lambda _: executor, lambda _, status: on_end(_end_of(numbers, status))).follow()
            statuses = self.points(sweep) if wanted else statuses
            self._conclude(sweep, statuses)
        return statuses

    def _is_begun_here(self, point: PointStatus) -> bool:
        """Tell whether a point runs on this machine, where its end is seen."""
        run = self._runs().find(point.run) if point.state == str(RunState.RUNNING) else None
        attempts = run.record.attempts if run is not None else []
        return bool(attempts) and attempts[-1].host == os.uname().nodename

    def submit(
        self,
        sweep: Sweep,
        *,
        failed: bool = False,
        pack: int | None = None,
        slots: int | None = None,
        at_once: int | None = None,
        queued: int | None = None,
    ) -> list[ArrayState]:
        """Submit the missing points of a sweep to its system as job arrays, and return at once.

        A task executes `pack` points, one after the other or `slots` at once; without `pack` as many as fill ten
        minutes by what points took before. `at_once` tasks run together at most, and no more than `queued` wait. What
        is not given is as it was the last time.
        """
        with self._turn(sweep):
            limits = packing(sweep, pack=pack, slots=slots, at_once=at_once, queued=queued)
            statuses = self.points(sweep)
            missing = [each.number for each in statuses if _is_missing(each, failed)]
            return self._hand_over(sweep, statuses, missing, limits)

    def _hand_over(
        self, sweep: Sweep, statuses: Sequence[PointStatus], wanted: Sequence[int], limits: Packing
    ) -> list[ArrayState]:
        """Submit points as far as the queue has room for them, and note which are held back."""
        executor = self._runs().executors.on(sweep.system, limits)
        members = [Member(sweep.folder, number, statuses[number].run, sweep.system) for number in wanted]
        taken = {handle.run for handle in executor.submit(members)}
        hold_back(sweep, [number for number in wanted if statuses[number].run not in taken])
        return executor.submitted

    def wait(self, sweep: Sweep, *, on_look: Callable[[Sequence[PointStatus]], None] = lambda _: None) -> SweepStatus:
        """Wait for a sweep on its system to end; points held back by limits are submitted as others end."""
        while True:
            statuses = self.points(sweep)
            on_look(statuses)
            held = held_back(sweep)
            if not held and not any(each.state in ("queued", "running") for each in statuses):
                break
            if held:
                with contextlib.suppress(Conflict), self._turn(sweep):  # else somebody else hands them over
                    self._hand_over(sweep, statuses, held_back(sweep), packing(sweep))
            time.sleep(
                _LOOK_S if len(statuses) < 100 and not self._runs().arrays.is_remote(sweep.system) else _SELDOM_LOOK_S
            )
        with contextlib.suppress(Conflict), self._turn(sweep):  # else somebody else who waited does so
            self._conclude(sweep, statuses)
        return statuses

    def cancel(self, reference: str | Sweep, *, dry_run: bool = False) -> ChangedSweep:
        """Cancel the jobs of a sweep, or interrupt the process that executes it here.

        Finished points stay, and points not yet begun stay so.
        """
        sweep = self.get(reference)
        holder = Holder.of(sweep.folder / _TURN) if not sweep.system else None
        if not sweep.system and holder is None:
            return ChangedSweep(sweep.folder, sweep.record, "does not run")
        if dry_run:
            return ChangedSweep(sweep.folder, sweep.record, "would be cancelled")
        if holder is not None:
            return self._interrupt(sweep, holder)
        with self._turn(sweep, patience_s=_PATIENCE_S):
            hold_back(sweep, ())
            members = Batch.read(sweep.folder).members()
            handles = [Handle(member["id"], sweep.folder) for member in members]
            self._runs().executors.on(sweep.system).cancel(handles)
        return ChangedSweep(sweep.folder, sweep.record, "cancelled")

    def _interrupt(self, sweep: Sweep, holder: Holder) -> ChangedSweep:
        """End the process that executes a sweep on this machine, as Ctrl-C does, with the programs of its points."""
        if not holder.is_alive_here() or holder.pid == os.getpid():
            raise Conflict(f"sweep {sweep.id} is being executed on {holder.host}", hint="interrupt it there")
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGINT)
        with self._turn(sweep, patience_s=_PATIENCE_S):
            return ChangedSweep(sweep.folder, sweep.record, "cancelled")

    # What came out

    def results(self, sweep: Sweep) -> list[Run]:
        """Return the runs of all started points, in the order of the points."""
        runs = self._runs()
        return sorted((runs.get(row.id) for row in runs.rows(group=sweep.id)), key=lambda run: (len(run.id), run.id))

    def combined(self, sweep: Sweep) -> Run | None:
        """Return the run of the combining step; None if there is none."""
        return self._runs().find(f"{sweep.id}{COMBINED}")

    def _forget_unknown_metric(self, sweep: Sweep, statuses: Sequence[PointStatus]) -> None:
        """Stop ranking by a metric that no point of a finished sweep has: reports rank by one that exists."""
        metric = sweep.record.best
        if not metric or any(metric in each.metrics for each in statuses) or not all(each.is_over for each in statuses):
            return
        try:
            self.best(sweep)
        except NotFound:
            write_sweep(sweep.folder, replace(sweep.record, best=""))

    def _conclude(self, sweep: Sweep, statuses: Sequence[PointStatus]) -> None:
        """Write the table of results; where all points are done, take the combining step unless that is done, too."""
        rows = [
            {
                "point": each.id,
                "run": each.run,
                "folder": str(self._runs().root / each.run),
                "values": dict(each.values),
                "repeat": each.repeat,
                "state": each.state,
                "metrics": {name: number_text(value) for name, value in each.metrics.items()},
            }
            for each in statuses
        ]
        write_atomic(sweep.folder / RESULTS, json.dumps(rows, allow_nan=False))
        self._forget_unknown_metric(sweep, statuses)
        command = sweep.record.combine
        before = self.combined(sweep)
        is_combined = before is not None and before.state is RunState.DONE
        if not command or is_combined or any(each.state != "done" for each in statuses):
            return
        runs = self._runs()
        plan = runs.plan(
            command,
            name=f"{sweep.name}-combined"[:64],
            inputs={"results": {"path": str(sweep.folder / RESULTS)}},
            folder=sweep.record.source.folder or str(Path.cwd()),
            tags=("combined", sweep.id),
        )
        folder = sweep.folder / "combine"
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        frozen, id = runs.freeze(plan, folder), f"{sweep.id}{COMBINED}"
        frozen.write_members([frozen.member(id)])
        # One that failed before may have been mended since.
        combine = Member(folder, 0, id, mended=True)
        Graph([Task.of(combine)], lambda _: runs.executors.in_place()).follow()

    # Inside

    @contextlib.contextmanager
    def _turn(self, sweep: Sweep, *, patience_s: float = 0.5) -> Iterator[None]:
        """Let one process at a time decide what of a sweep is executed next."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(Lock(sweep.folder / _TURN, timeout_s=patience_s))
            except Locked as error:
                raise Conflict(
                    f"sweep {sweep.id} is being executed by another process",
                    hint=f"`fairmile sweep show {sweep.id}` shows its progress",
                ) from error
            yield


def _assets_of(spec: Mapping[str, Any]) -> list[str]:
    inputs = [each.get("asset") for each in (spec.get("inputs") or {}).values()]
    return [asset for asset in (spec.get("asset"), spec.get("dataset"), *inputs) if asset]


def _ends(definition: Definition) -> tuple[Point, Point, int]:
    if definition.distributions:
        names = ", ".join(definition.distributions)
        raise UsageError(
            f"{definition.name}: {names} has a distribution, but a sweep needs values"
            if len(definition.distributions) == 1
            else f"{definition.name}: {names} have distributions, but a sweep needs values",
            hint="use `fairmile tune` to search distributions, or list values",
        )
    first = last = next(iter(definition.points), None)
    if first is None or last is None:
        raise UsageError(f"{definition.name}: no points are left", hint="check `exclude` and `select`")
    for point in definition.points:
        last = point
    return first, last, len(definition.points)


def _node_hours(definition: Definition, members: Members, plan: RunPlan, point_s: float, source: str) -> float:
    """Return what all points take together, each with the nodes and the time that it asks for."""
    nodes = plan.spec.resources.nodes or 1
    if members.needs(next(iter(definition.points))) is None:
        return len(definition.points) * nodes * point_s / 3600
    total_s = 0.0
    for point in definition.points:
        needs = members.needs(point) or {}
        took_s = parse_duration(needs["time_s"]) if source == _ASKED and needs.get("time_s") else point_s
        total_s += int(needs.get("nodes") or nodes) * took_s
    return total_s / 3600


def _any_point(definition: Definition) -> Point:
    """Return a point of a space that is drawn from, to see what its runs look like."""
    values: dict[str, Value] = {name: choices[0] for name, choices in definition.points.axes.items()}
    for name, distribution in definition.distributions.items():
        values[name] = distribution["choices"][0] if distribution["kind"] == "choice" else distribution["low"]
    return Point(0, "first", values)


def _end_of(numbers: Mapping[str, int], status: TaskStatus) -> Ended:
    return Ended(numbers[status.handle.run], status.handle.run, str(status.state), status.reason)


def _is_missing(status: PointStatus, failed: bool) -> bool:
    again = {_LEFT, *map(str, _AGAIN)} | ({str(RunState.FAILED), str(RunState.TIMEOUT)} if failed else set())
    return status.state in again
