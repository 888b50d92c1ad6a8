"""Plans of runs: what a word, a command or a recorded run means, and what running it would do. Nothing happens yet.

A new run is planned in three stages, each of which takes data and returns data: resolve (what is it?), specify (which
fields has its run?), plan (what happens when it runs?). A recorded run is planned from its record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import Conflict, NotFound, SystemFailure, Transient, Unsupported, UsageError
from fairmile.base.lazy import lazy
from fairmile.base.placeholders import fill_words
from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.exchange import EXCHANGES, ImportedRun
from fairmile.runs.execute.host import WorkspaceRuns
from fairmile.runs.execute.materials import plan_materials
from fairmile.runs.execute.preparation import Preparation
from fairmile.runs.execute.recorder import check_no_orphan
from fairmile.runs.ignored import check_arguments
from fairmile.runs.needs import Need, check_needs, offer_for, unmet
from fairmile.runs.parameters import UNSEEN_READER, check_placeholders, check_used, unused_params
from fairmile.runs.plan import RunPlan, Step
from fairmile.runs.prediction import Fit, Forecast, Limit, forecast
from fairmile.runs.record.commands import is_inside, local_command, value_texts
from fairmile.runs.record.crate import CODE
from fairmile.runs.record.layout import PACKED
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import Input
from fairmile.runs.rerun import check_repeatable, rerun_spec
from fairmile.runs.review import is_foreign, restrict, review
from fairmile.runs.runnable import Runnable, checked_spec
from fairmile.runs.services import Services
from fairmile.runs.targets import resolve_run

if TYPE_CHECKING:
    from fairmile.jobs.queue import JobStatus
    from fairmile.runs.execute.carrier import local_job
    from fairmile.runs.interchange import known_run
    from fairmile.runs.projection import with_time
    from fairmile.runs.record.spec import RunSpec
    from fairmile.runs.record.values import Value
else:
    local_job = lazy("fairmile.runs.execute.carrier:local_job")
    known_run = lazy("fairmile.runs.interchange:known_run")
    with_time = lazy("fairmile.runs.projection:with_time")


@dataclass(frozen=True)
class _Part:
    """What one concern adds to a plan."""

    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    script: str = ""


_GIB = 1 << 30
RUN_ADDRESS = "run:"  # of inputs: a file of an earlier run


class Planner(Ledger):
    """The runs of a workspace, and what running something new, going on with one or repeating one would do."""

    def __init__(
        self, root: Path, services: Services, *, environ: Mapping[str, str], hidden: Iterable[str] = ()
    ) -> None:
        super().__init__(root, hidden=hidden)
        self._services, self._environ = services, environ
        self._preparation = Preparation(root, services, environ)
        self._host = WorkspaceRuns(self, self._preparation, services, environ)

    def collect(self, reference: str, arrays: dict[str, JobStatus | None] | None = None) -> Run:
        """Return a run; one that a job carries, or whose recorder is gone, is brought up to date.

        `arrays` keeps, from one call to the next, where job arrays stand, each of which carries many runs.
        """
        return self._host.collect(reference, arrays)

    # Something new

    def plan(
        self,
        what: str | Sequence[str] | RunSpec,
        dataset: str = "",
        *,
        options: Mapping[str, Any] | None = None,
        used: Collection[str] = (),
        place: Callable[[str], str] = lambda _: "",
        **changes: Any,
    ) -> RunPlan:
        """Return what running a name, a file, a command or a specification would do; only sizes are asked for.

        `changes` are fields of the specification. `options` are those that the resolver of a kind of target knows, such
        as `set`, which of several sets of commands. A parameter that nothing uses is an error; those in `used` serve
        whoever asks, who may tell the `place` of the others.
        """
        runnable = self._with_files_of_runs(resolve_run(what, self._services.catalog, dataset, options or {}, changes))
        self._check_command(runnable, used, place)
        spec = runnable.spec
        timing: tuple[str, ...] = ()
        history = self.history(spec.name)
        asked_s = spec.resources.time_s
        if spec.system:
            spec, timing = with_time(spec, history, self._services.jobs)
        expected = forecast(spec, history, self._services.predictors, self._limits(spec))
        needs, unmet_needs = self._compare_needs(spec)
        refusal = None if spec.anyway else unmet_needs or _too_large(spec.name, expected)
        parts = [
            _Part(tuple(self._fetching(runnable)), runnable.notes),
            self._building(spec),
            _Part(tuple(Step("needs", str(each)) for each in needs)),
            _Part(notes=timing),
            self._submitting(spec),
            _fitting(expected),
            _running(spec),
        ]
        return RunPlan(
            spec,
            tuple(step for part in parts for step in part.steps),
            tuple(note for part in parts for note in part.notes),
            expected.numbers,
            "".join(part.script for part in parts),
            runnable.sources,
            runnable.materials,
            runnable.is_complete,
            unpredicted=expected.unpredicted,
            projected_s=spec.resources.time_s if spec.resources.time_s != asked_s else None,
            fit=expected.fit,
            fit_reason=expected.fit_reason,
            needs=tuple(needs),
            refusal=refusal,
        )

    def _limits(self, spec: RunSpec) -> dict[str, Limit]:
        """Return the time and memory that a run gets where it goes, as far as that is known."""
        limits: dict[str, Limit] = {}
        if spec.resources.memory_gib is not None:
            most = spec.resources.memory_gib * _GIB
            limits["memory_bytes"] = Limit(most, "the memory limit", "request more with --memory")
        if not spec.system or not (machine := self._services.jobs().machines[spec.system]).has_scheduler:
            return limits
        longest_s = machine.limit_s(spec.resources.partition)
        time_s = spec.resources.time_s or longest_s
        if time_s is not None:
            is_longest = longest_s is not None and time_s >= longest_s
            remedy = "use another partition, or do less in one run" if is_longest else "request more with --time"
            limits["elapsed_s"] = Limit(time_s, "the time limit", remedy)
        return limits

    def resolve_spec(
        self,
        what: str | Sequence[str] | RunSpec,
        *,
        used: Collection[str] = (),
        place: Callable[[str], str] = lambda _: "",
        **changes: Any,
    ) -> RunSpec:
        """Return the specification that a name, a file or a command means; nothing but the catalog is asked."""
        runnable = self._with_files_of_runs(resolve_run(what, self._services.catalog, "", {}, changes))
        self._check_command(runnable, used, place)
        return runnable.spec

    def _with_files_of_runs(self, runnable: Runnable) -> Runnable:
        """Return it with the paths of inputs that name a file of an earlier run, as `run:ID/checkpoint.pt` does."""
        inputs = dict(runnable.spec.inputs)
        for name, each in inputs.items():
            if each.asset.startswith(RUN_ADDRESS):
                inputs[name] = Input(path=str(self._file_of_run(name, each.asset)), sha256=each.sha256)
        if inputs == runnable.spec.inputs:
            return runnable
        return replace(runnable, spec=runnable.spec.model_copy(update={"inputs": inputs}))

    def _file_of_run(self, name: str, address: str) -> Path:
        reference, _, file = address.removeprefix(RUN_ADDRESS).partition("/")
        if not reference or not is_inside(file):
            raise UsageError(
                f"input {name}: {address!r} names no file of a run", hint="write run:ID/FILE, as run:last/checkpoint.pt"
            )
        run = self.get(reference)
        if not (run.work / file).exists():
            raise NotFound(f"input {name}: run {run.id} has no file {file}: no such file: {run.work / file}")
        return run.work / file

    def check_needs(self, spec: RunSpec) -> list[Need]:
        """Compare declared hardware and frameworks with where a run goes; what is missing there raises UsageError.

        A specification that runs `anyway` gets the result instead.
        """
        checked, refusal = self._compare_needs(spec)
        if refusal is not None and not spec.anyway:
            raise refusal
        return checked

    def _compare_needs(self, spec: RunSpec) -> tuple[list[Need], UsageError | None]:
        """Return what is declared beside what there is, and the error for what is missing."""
        if not spec.needs:
            return [], None
        argv = local_command(spec)
        offer = offer_for(spec, argv, self._services.jobs, self._environ)
        checked = check_needs(spec.needs, offer)
        return checked, unmet(spec.asset or spec.name, checked, offer)

    def check_values(self, spec: RunSpec, params: Mapping[str, Value], place: Callable[[str], str]) -> None:
        """Raise UsageError for a parameter that the program of a specification would refuse, as far as that is known.

        A text with a placeholder is left out: its value is not known yet. `place` returns where a parameter stands.
        """
        checks = [check for package, check in self._services.checks.items() if package in spec.argv]
        known = {name: value for name, value in params.items() if not (isinstance(value, str) and "{" in value)}
        for check in checks:
            for name, value in known.items():
                try:
                    check(spec.argv, {name: value})
                except UsageError as error:
                    where = place(name)
                    text = str(error).removeprefix(f"parameter {name}: " if where.endswith(name) else "")
                    raise UsageError(f"{where}: {text}" if where else text, hint=error.hint) from None

    def _check_command(self, runnable: Runnable, used: Collection[str], place: Callable[[str], str]) -> None:
        """Raise UsageError where a placeholder has no value, or a value no use."""
        if runnable.is_complete:
            return
        spec = runnable.spec
        check_placeholders(spec, runnable.where)
        names = [name for name in spec.params if name not in used and name not in runnable.declared]
        unused = unused_params(spec, names, self._environ, sources=bool(runnable.sources))
        check_used(unused, spec, (place(unused[0]) if unused else "") or runnable.where)
        self.check_values(spec, spec.params, place)
        if spec.folder and not runnable.sources and not spec.reads_params:
            check_arguments(spec.argv, Path(spec.folder), self._environ, runnable.where, otherwise=UNSEEN_READER)

    def _fetching(self, runnable: Runnable) -> Iterator[Step]:
        names = [*runnable.sources, *(each.asset for each in runnable.spec.inputs.values() if each.asset)]
        for name in names:
            try:
                (planned,) = self._services.assets().plan(name)
                yield Step("fetch", planned.describe(), planned.need_bytes)
            except (SystemFailure, Transient, Unsupported) as error:
                yield Step("fetch", f"{name} (unavailable now: {error})")
        if runnable.materials:
            for text, size_bytes in plan_materials(runnable.materials, self._services.assets()):
                yield Step("fetch", text, size_bytes)

    def _building(self, spec: RunSpec) -> _Part:
        if not spec.environment:
            return _Part()
        planned = self._services.envs().plan(spec.environment)
        state = "is ready" if planned.state == "ready" else "; ".join(each.words for each in planned.steps)
        trouble = [planned.trouble] if planned.trouble else []
        return _Part((Step("build", f"environment {planned.name}: {state}"),), (*planned.notes, *trouble))

    def _submitting(self, spec: RunSpec) -> _Part:
        if not spec.system:
            return _Part()
        machine = self._services.jobs().machines[spec.system]
        notes: list[str] = []
        if machine.reach.host and (left := self._preparation.left_behind(spec)):
            notes.append(f"not copied to {spec.system}: {left}; --data NAME=PATH copies one to the same relative path")
        argv = local_command(spec)
        made = machine.script(local_job(spec, argv, self.root / "RUN", ""))
        away = f", but not from here: {machine.elsewhere}" if machine.elsewhere else ""
        step = Step("submit", f"to {spec.system} ({machine.system.scheduler.dialect}){away}")
        return _Part((step,), (*notes, *made.notes), made.text)

    # Something recorded

    def resume_plan(self, reference: str) -> RunPlan:
        """Return what resuming a run would do, or raise why it cannot be resumed."""
        run = self.resumable(reference)
        return RunPlan(run.spec, (Step("run", " ".join(run.argv)),))

    def resumable(self, reference: str) -> Run:
        """Return a run that can go on, or raise why it cannot."""
        run = self.collect(reference)
        state = run.state
        if state is RunState.DONE:
            raise Conflict(f"run {run.id} is done", hint=f"`fairmile rerun {run.id}` repeats it in a fresh folder")
        if state is RunState.RUNNING and self.is_orphaned(run):
            check_no_orphan(run.folder, run.id)
        if not state.is_end:
            raise Conflict(f"run {run.id} is {state}", hint=f"`fairmile runs show {run.id}` shows its progress")
        if run.packed or run.folder.parent != self.root:
            raise UsageError(f"run {run.id} is packed or outside this workspace", hint="unpack or import it first")
        if run.record.imported:
            raise UsageError(f"run {run.id} ran elsewhere", hint=f"`fairmile rerun {run.id}` repeats it here")
        check_no_orphan(run.folder, run.id)
        return run

    def rerun_plan(self, reference: str, *, container: str = "", **changes: Any) -> RunPlan:
        """Return what doing a run again would do; `reference` may also be a crate, of which nothing is kept yet.

        A run of somebody else comes with a `review` of all that it would execute, set, build and ask for. With
        `container`, an image, its program has no network and can write to nothing but its folder.
        """
        crate = self._crate(reference)
        if crate is not None:
            (imported,) = EXCHANGES["rocrate"].read(crate)
            if known_run(self, imported, crate) is None:
                return _plan_crate(imported, crate, container, changes)
            reference = imported.id
        original = self.collect(reference)
        check_repeatable(original, lambda root: self._services.store().complete(root))
        code = original.captured.code
        kept = {entry.path for entry in self._services.store().tree(code.snapshot)} if code.snapshot else set()
        foreign = is_foreign(original, self.root)
        spec = rerun_spec(original, self._preparation.inputs_again(original, foreign=foreign), kept)
        dropped: dict[str, str] = {}
        if foreign:
            spec, dropped = restrict(spec, original)
        spec = _changed_spec(spec, changes)
        checked = None
        if foreign:
            source = str(original.record.imported.get("from") or original.record.rerun_of or original.folder)
            checked = review(original, spec, dropped, sorted(kept), source, container)
        _check_container(container, spec)
        sources = tuple(each.asset for each in code.sources)
        steps = (Step("run", " ".join(spec.argv)),)
        return RunPlan(
            spec, steps, sources=sources, original=original, review=checked, container=container, changes=changes
        )

    def _crate(self, reference: str) -> Path | None:
        """Return the crate, or folder of a run, that a path outside of this workspace names; None for an id."""
        path = Path(reference)
        if "/" not in reference and reference not in (".", "..") and not reference.endswith(PACKED):
            return None
        return path if path.exists() and path.absolute().parent != self.root else None


def _running(spec: RunSpec) -> _Part:
    command = " ".join(fill_words(spec.argv, {"python": "python", **value_texts(spec)}))
    where = f"in {spec.folder or 'a folder of its own'}" + ("" if spec.system else " on this machine")
    return _Part((Step("run", f"{command} {where}"),))


def _fitting(expected: Forecast) -> _Part:
    return _Part(notes=(f"it may not fit: {expected.fit_reason}",)) if expected.fit is Fit.MAY_NOT else _Part()


def _too_large(name: str, expected: Forecast) -> UsageError | None:
    """Return the error for a run that is expected to have no room on its device; None where it may have."""
    if expected.fit is not Fit.DOES_NOT:
        return None
    too_large = [each for each in expected.numbers.values() if each.get("fit") == Fit.DOES_NOT]
    remedies = [each["remedy"] for each in too_large if each.get("remedy")]
    advice = remedies[0] if remedies else "reduce the batch, or use a device with more memory"
    return UsageError(f"{name} does not fit: {expected.fit_reason}", hint=f"{advice}; --anyway runs it regardless")


def _plan_crate(imported: ImportedRun, crate: Path, container: str, changes: Mapping[str, Any]) -> RunPlan:
    """Return the plan of doing a record again that is not among ours yet."""
    original = Run(imported.record, Path())
    check_repeatable(original, lambda _: True)  # its code is in the crate
    kept = {name.removeprefix(f"{CODE}/") for name in imported.files if name.startswith(f"{CODE}/")}
    spec, dropped = restrict(rerun_spec(original, {}, kept), original)
    spec = _changed_spec(spec, changes)
    checked = review(original, spec, dropped, sorted(kept), imported.source, container)
    _check_container(container, spec)
    steps = (Step("import", str(crate)), Step("run", " ".join(spec.argv)))
    return RunPlan(spec, steps, original=original, review=checked, crate=crate, container=container, changes=changes)


def _changed_spec(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """Return a specification with fields that a person changed; variables are added to those it has."""
    if not changes:
        return spec
    env = {**spec.env, **changes.get("env", {})}
    return checked_spec({**spec.model_dump(mode="json", exclude_defaults=True), **changes, "env": env})


def _check_container(container: str, spec: RunSpec) -> None:
    """Raise UsageError where a program is to be isolated on a system."""
    if container and spec.coupled:
        raise UsageError("a coupled run cannot be isolated in a container: its two programs share memory")
    if container and spec.system:
        raise UsageError(f"a container isolates programs on this machine, not on {spec.system}", hint="add --on laptop")
