"""What many runs share, prepared once: inputs, environment, and a copy of the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from fairmile.base.errors import Unsupported
from fairmile.base.files import write_failure
from fairmile.base.views import View
from fairmile.jobs.spec import JobSpec
from fairmile.runs.execute import carrier
from fairmile.runs.execute.batches import Frozen, write_batch
from fairmile.runs.execute.host import WorkspaceRuns
from fairmile.runs.execute.worker import MEMBER, Batch
from fairmile.runs.needs import Need
from fairmile.runs.plan import RunPlan
from fairmile.runs.record.commands import local_command, recorded_spec
from fairmile.runs.record.layout import WORK
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.spec import RunSpec


def freeze(
    plan: RunPlan,
    folder: Path,
    host: WorkspaceRuns,
    check_needs: Callable[[RunSpec], list[Need]],
    *,
    in_place: bool = False,
) -> Frozen:
    """Prepare once what many runs share, below a folder, and return it; see `Runs.freeze`."""
    spec = plan.spec
    if plan.projected_s is not None:  # of one run: what all of them need is projected when they are submitted
        spec = spec.model_copy(update={"resources": spec.resources.model_copy(update={"time_s": None})})
    if spec.system:
        host.jobs().machines[spec.system].refuse_elsewhere()
    is_remote = bool(spec.system) and bool(host.jobs().machines[spec.system].reach.host)
    if is_remote and spec.environment:  # which is refused
        host.jobs().in_environment(JobSpec(argv=(MEMBER,)), host.envs(), spec.environment, system=spec.system)
    stated = recorded_spec(spec)
    captured = host.preparation.fetch_inputs(plan, check_needs(spec), spec, local_command(spec), stated)
    shared = RunRecord(spec=stated, captured=captured, prediction=dict(plan.prediction))
    moves = bool(spec.folder) and (is_remote or not in_place)
    if moves:
        spec = host.preparation.travelling(folder, shared, spec)
    values = host.preparation.materialize(shared, folder, code=True)
    view = View([str(each) for each in (PurePath(spec.subfolder), *PurePath(spec.subfolder).parents)][:-1])
    if moves and not is_remote:
        view = host.preparation.show(captured.code, Path(plan.spec.folder), folder, spec)
    if is_remote:
        values |= {"python": carrier.PYTHON}
        carrier.copy_parts(spec.argv, folder / WORK)
    if spec.folder != plan.spec.folder and not is_remote:
        argv = _within_reach(spec.argv, Path(plan.spec.folder), folder / WORK / spec.subfolder)
        spec = spec.model_copy(update={"argv": argv})
        shared.spec.argv = list(argv)
    values = {name: text for name, text in values.items() if name not in ("run", "source")}
    # Where things are elsewhere is known only there: placeholders stay until then.
    frozen = Frozen(folder, spec, {} if is_remote else values, tuple(view.notes(Path(plan.spec.folder))))
    code = folder / WORK
    env = dict(spec.env)
    wrapper: tuple[str, ...] = (MEMBER,)
    if spec.model_resources is not None:
        raise Unsupported("the points of a sweep cannot be heterogeneous jobs: omit model_resources")
    if spec.environment and not spec.system:
        if spec.coupled:
            raise Unsupported("the points of a sweep cannot be coupled runs in an environment")
        command = host.envs().shell(captured.environment.digest, [MEMBER])
        env, wrapper = {**command.env, **env}, tuple(command.argv)
    is_there = code.is_dir() and not spec.folder
    write_batch(
        Batch(
            folder,
            shared,
            host.ledger.root,
            env,
            str(code) if is_there else "",
            wrapper,
            values=values if is_remote else {},
            own=frozenset(view.own),
        )
    )
    _make(host.ledger.root)
    return frozen


def _within_reach(argv: Sequence[str], before: Path, work: Path) -> tuple[str, ...]:
    """Return a command with the files that were not copied with its code named by where they are."""
    return tuple(
        str(before / word)
        if word and (number or "/" in word) and not (work / word).exists() and (before / word).exists()
        else word
        for number, word in enumerate(argv)
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(str(folder), error) from error
