"""A benchmark in steps, each a run of its own whose inputs are what the steps before it left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from fairmile.base.digest import canonical_json, sha256_file, sha256_hex
from fairmile.base.errors import NotFound, RunFailed, UsageError
from fairmile.base.files import safe_join
from fairmile.base.words import did_you_mean, slug
from fairmile.benchmarks.harness.settings import read_settings
from fairmile.benchmarks.program import SETTINGS, folder_of, load
from fairmile.benchmarks.results import StagePlan, StageRuns
from fairmile.runs import plan as plans
from fairmile.runs.execute.executor import After, Graph, PreparedRun, Task, TaskStatus, Work
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import Input
from fairmile.runs.record.values import Value
from fairmile.runs.runs import Runs

STEP = "step"  # the parameter that names one


class Step(Protocol):
    """What the settings of a benchmark say of a step: files that it hands on, and parameters that matter to it."""

    @property
    def gives(self) -> Sequence[str]: ...

    @property
    def params(self) -> Sequence[str] | None: ...


def declared_steps(name: str) -> Mapping[str, Step]:
    """Return the steps that a benchmark, by its name or its folder, declares as `STEPS` in its settings."""
    steps: Mapping[str, Step] | None = getattr(load(folder_of(name), SETTINGS), "STEPS", None)
    if not steps:
        raise UsageError(
            f"the benchmark {name} has no steps: it is run as a whole", hint=f"`fairmile run {name}` does that"
        )
    return steps


def planned_steps(name: str, steps: Sequence[str] = ()) -> StagePlan:
    """Return the steps that would run, in their order, up to the last that is wanted: each needs those before it."""
    declared = declared_steps(name)
    for step in steps:
        if step not in declared:
            near = did_you_mean(step, declared)
            raise UsageError(f"{name} has no step {step!r}", hint=near or f"there are {', '.join(declared)}")
    order = list(declared)
    return StagePlan(order[: max((order.index(step) for step in steps), default=len(order) - 1) + 1])


def run_stages(
    runs: Runs,
    name: str,
    steps: Sequence[str] = (),
    *,
    params: Mapping[str, Value] | None = None,
    seed: int | None = None,
    again: bool = False,
    echo: BinaryIO | None = None,
    on_stage: Callable[[str, Run], None] = lambda _, __: None,
    on_step: Callable[[str, plans.Step], None] = lambda _, __: None,
    **changes: Any,
) -> StageRuns:
    """Run the steps of a benchmark one after the other, as one group, and return their records.

    Each is given the files of those before it, by digest, and the parameters that matter to it. Called again, it goes
    on where it stopped: what had exactly the same inputs is not run again, unless `again` says so or its files are
    gone. Where a step fails it ends with the reason. `steps` names some of them, empty are all; `changes` are fields
    of the specification of every run. `on_stage` is called with each as it ends, `on_step` with notes before it
    starts, such as why an earlier run does not stand for it.
    """
    declared, wanted = declared_steps(name), planned_steps(name, steps)
    given = dict(params or {})
    if STEP in given:
        raise UsageError(f"the parameter {STEP} is set for each step", hint="name the steps to run instead")
    # What only the last step knows is checked now, not when it is reached.
    read_settings(load(folder_of(name), SETTINGS).Settings, given)
    group = str(changes.pop("group", "")) or _group(name, given, seed)
    inputs: dict[str, Input] = dict(changes.pop("inputs", {}))
    executed: dict[str, Run] = {}

    def made(step: str, before: Mapping[str, Run]) -> Work | Run:
        takes = declared[step].params
        own = {key: value for key, value in given.items() if takes is None or key in takes}
        files = [file for each, run in before.items() for file in _given(run, declared[each].gives)]
        handed = inputs | {file.name: Input(path=str(file)) for file in files}
        asked = {**changes, "params": {**own, STEP: step}, "seed": seed, "inputs": handed, "group": group}
        plan = runs.plan(name, **asked)
        told: list[plans.Step] = []
        work = runs.prepare(plan, again=again or "name" in asked, on_step=told.append)
        # It is known, but what it made no longer exists.
        if isinstance(work, Run) and (lost := _lost(work, declared[step].gives)):
            told = [plans.Step("again", f"{lost[0]} of run {work.id} is gone or changed")]
            work = runs.prepare(plan)
        if not told and isinstance(work, PreparedRun) and (why := _why(runs, group, step, work)):
            told = [plans.Step("again", why)]
        for each in told:
            on_step(step, each)
        return work

    def ended(step: str, status: TaskStatus) -> None:
        if not status.handle.run:
            return
        run = executed[step] = graph.collect(step)
        on_stage(step, run)
        if run.state is not RunState.DONE:
            raise _failed(runs, name, step, run)
        if missing := _lost(run, declared[step].gives):
            raise NotFound(
                f"step {step} of {name} did not write {missing[0]}",
                hint=f"see `fairmile runs show {run.id}`; the card must list it in `outputs`",
            )

    tasks = [
        Task(step, partial(made, step), tuple(After(each) for each in wanted[:number]))
        for number, step in enumerate(wanted)
    ]
    graph = Graph(tasks, runs.executors.echoing(echo).place, ended)
    graph.follow()
    return StageRuns(executed.values())


def _group(name: str, params: Mapping[str, Value], seed: int | None) -> str:
    """Return the name of what belongs together, the same whenever the same is asked for."""
    short = slug(Path(name).name)[:40] or "stages"
    return f"{short}-{sha256_hex(canonical_json({'name': name, 'params': dict(params), 'seed': seed}))[:8]}"


def _why(runs: Runs, group: str, step: str, work: PreparedRun) -> str:
    """Return why a step runs that ran in its group before, in the words of a flow's plan; empty where it never did."""
    others = (runs.get(row.id) for row in runs.rows(group=group) if row.id != work.id)
    before = next((run for run in others if run.params.get(STEP) == step), None)
    if before is None:
        return ""
    if before.state is not RunState.DONE:
        return f"{before.state} the last time"
    if before.identity == work.record.identity:
        return "asked for"
    for name, each in work.record.captured.inputs.items():
        known = before.captured.inputs.get(name)
        if known is None or known.sha256 != each.sha256:
            return f"input {name} " + ("is new" if known is None else "has another digest")
    return "its code or packages changed"


def _made(run: Run, patterns: Sequence[str]) -> Iterator[tuple[str, Path, str]]:
    """Yield what of the outputs of a run is handed on: pattern, file and the digest it was recorded with."""
    for pattern in patterns:
        for name, each in run.outputs.items():
            if fnmatch(name, pattern):
                yield pattern, safe_join(run.work, name), each.sha256


def _lost(run: Run, patterns: Sequence[str]) -> list[str]:
    """Return of what should be handed on that which is not there, or not what it was."""
    there: set[str] = set()
    for pattern, file, digest in _made(run, patterns):
        if not file.is_file() or sha256_file(file) != digest:
            return [file.name]
        there.add(pattern)
    return [pattern for pattern in patterns if pattern not in there]


def _given(run: Run, patterns: Sequence[str]) -> list[Path]:
    return [file for _, file, _ in _made(run, patterns)]


def _failed(runs: Runs, name: str, step: str, run: Run) -> RunFailed:
    reason = run.reason or f"it is {run.state}"
    lines = runs.output(run.id).decode(errors="replace").strip().splitlines()
    message = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
    return RunFailed(
        f"step {step} of {name} failed ({run.id}): {message or reason}",
        hint=f"`fairmile runs show {run.id}` shows details; run the command again to continue with this step",
    )
