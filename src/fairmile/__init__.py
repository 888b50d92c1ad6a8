"""Fairmile: from the name of an AI model for science to a result that anyone can find, rerun and trust.

`import fairmile as fm` gives the verbs of the command line (`fm.search`, `fm.show`, `fm.match`, `fm.fetch`, `fm.run`,
`fm.rerun`, `fm.sweep`, `fm.tune`, `fm.status`, `fm.compare`, `fm.report`, `fm.watch`, `fm.serve`, `fm.trust`,
`fm.doctor`) and nouns (`fm.catalog`, `fm.models`, `fm.datasets`, `fm.workflows`, `fm.assets`, `fm.store`, `fm.systems`,
`fm.envs`, `fm.jobs`, `fm.runs`, `fm.sweeps`, `fm.studies`, `fm.flows`, `fm.benchmarks`, `fm.reports`, `fm.predict`,
`fm.traces`, `fm.access`, `fm.course`), all of the workspace that the settings name. Code that works with another one
opens it: `fm.Workspace.open(...)`. Inside a program, `fm.log`, `fm.span` and `fm.event` write to the record of the run
that it is part of.
"""

from __future__ import annotations

import sys

from fairmile.base.version import __version__ as __version__

__all__ = [
    "Card",
    "FairmileError",
    "JobSpec",
    "Workspace",
    "access",
    "assets",
    "benchmarks",
    "catalog",
    "compare",
    "course",
    "datasets",
    "doctor",
    "envs",
    "event",
    "fetch",
    "flows",
    "jobs",
    "log",
    "match",
    "models",
    "predict",
    "report",
    "reports",
    "rerun",
    "run",
    "runs",
    "search",
    "serve",
    "show",
    "span",
    "status",
    "store",
    "studies",
    "sweep",
    "sweeps",
    "systems",
    "traces",
    "trust",
    "tune",
    "watch",
    "workflows",
]

TYPE_CHECKING = False  # a program that only logs must not wait for `typing`
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from fairmile.access.access import Access
    from fairmile.base.errors import FairmileError
    from fairmile.base.progress import Watch
    from fairmile.base.trust import TrustedProject
    from fairmile.benchmarks.measured import MeasuredBenchmarks
    from fairmile.catalog.assets import Assets
    from fairmile.catalog.card import Card
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.fetched import FetchedAssets
    from fairmile.catalog.match import Matches
    from fairmile.catalog.results import ResolvedCard, SearchResult
    from fairmile.course.course import Course
    from fairmile.doctor import Diagnosis
    from fairmile.envs.envs import Envs
    from fairmile.flows.flows import Flows
    from fairmile.flows.pipelines import Datasets, Workflows
    from fairmile.jobs.machines import Machines
    from fairmile.jobs.queue import Jobs
    from fairmile.jobs.spec import JobSpec
    from fairmile.meter import event, log, span
    from fairmile.meter.watching import WatchReport
    from fairmile.models.models import Models
    from fairmile.predict.predict import Predict
    from fairmile.reports.page import Report
    from fairmile.reports.reports import Evaluation, Reports
    from fairmile.runs.record.run import Run
    from fairmile.runs.rerun import Rerun
    from fairmile.runs.runs import Runs
    from fairmile.status import WorkspaceStatus
    from fairmile.store.store import Store
    from fairmile.sweeps.folder import Sweep
    from fairmile.sweeps.results import SweepStatus
    from fairmile.sweeps.sweeps import Sweeps
    from fairmile.sweeps.tuning.engine import TrialRecord
    from fairmile.sweeps.tuning.results import StudyStatus
    from fairmile.sweeps.tuning.study import Studies
    from fairmile.traces.traces import Traces
    from fairmile.web.serve import Serving
    from fairmile.workspace import Workspace

    Recorded = Run | SweepStatus | StudyStatus

    # These names are also those of folders; the nouns are what `fm.catalog` and `fm.store` give.
    catalog: Catalog
    store: Store
    assets: Assets
    models: Models
    datasets: Datasets
    workflows: Workflows
    systems: Machines
    envs: Envs
    jobs: Jobs
    runs: Runs
    sweeps: Sweeps
    studies: Studies
    flows: Flows
    benchmarks: MeasuredBenchmarks
    reports: Reports
    predict: Predict
    traces: Traces
    access: Access
    course: Course

_NOUNS = (
    *("catalog", "models", "datasets", "workflows", "assets", "store"),
    *("systems", "envs", "jobs", "runs", "sweeps", "studies", "flows", "benchmarks"),
    *("reports", "predict", "traces", "access", "course"),
)


def search(
    text: str = "",
    *,
    kind: str | None = None,
    regex: str | None = None,
    limit: int = 20,
    all_versions: bool = False,
) -> SearchResult:
    """Return the assets that match words, `field:value`, `prefix*` and `/regex/`."""
    return _workspace().catalog.search(text, kind=kind, regex=regex, limit=limit, all_versions=all_versions)


def show(name: str, *, kind: str | None = None) -> ResolvedCard:
    """Return the card of a name, handle, id, DOI or digest, or of a file or folder."""
    return _workspace().show(name, kind=kind)


def match(
    *, model: str | None = None, dataset: str | None = None, domain: str | None = None, limit: int = 20
) -> Matches:
    """Return which data sets a model accepts, which models a data set trains, and why."""
    return _workspace().catalog.match(model=model, dataset=dataset, domain=domain, limit=limit)


def fetch(
    names: str | Sequence[str], *, to: str | Path | None = None, progress: bool | Watch = True, **options: Any
) -> FetchedAssets:
    """Fetch assets or URLs into the store, and into the folder `to` if given.

    `options` are those of `fm.assets.fetch`, such as `pool`, `fresh`, `limit`, `sha256`, `unpack` and `replace`. With
    `access_granted=True` you confirm that you may have data whose card restricts access.

    A notebook or a terminal shows the progress. `progress=False` shows nothing; a function is called with each
    `Progress` instead.
    """
    from pathlib import Path

    with _watched(progress) as (workspace, _):
        return workspace.assets.fetch(names, to=Path(to) if to is not None else None, **options)


def run(
    what: str | Sequence[str],
    dataset: str = "",
    *,
    again: bool = False,
    echo: bool = False,
    progress: bool | Watch = True,
    **fields: Any,
) -> Run:
    """Run a script, an asset, a YAML file or a command and return its record.

    `fields` are those of a run, such as `params`, `outputs` and `system`. If a run with exactly the same inputs exists,
    its record is returned, unless `again` is given. `echo` prints the output of the program; otherwise a notebook or a
    terminal shows its last line while it runs (see `fm.fetch` for `progress`).
    """
    from fairmile.base.progress import echo_of

    name = what if isinstance(what, str) else " ".join(what)
    with _watched(progress) as (workspace, watch):
        return workspace.runs.run(what, dataset, again=again, echo=echo_of(echo, watch, name), **fields)


def rerun(
    run: str | Run,
    *,
    tolerance: float | None = None,
    trust: bool = False,
    echo: bool = False,
    progress: bool | Watch = True,
    **changes: Any,
) -> Rerun:
    """Repeat a run or a crate from its record in a fresh folder, and return what differs.

    `changes` are fields of the new run, such as `system` and `environment`. A run that somebody else recorded needs
    `trust=True`; read `fm.runs.rerun_plan(run).review` first. See `fm.run` for `echo` and `progress`.
    """
    from fairmile.base.progress import echo_of

    with _watched(progress) as (workspace, watch):
        name = _id(run)
        stream = echo_of(echo, watch, name)
        return workspace.runs.rerun(name, tolerance=tolerance, trust=trust, echo=stream, **changes)


def sweep(
    what: str | Path | Sequence[str],
    *,
    params: Mapping[str, Any] | None = None,
    at_once: int = 1,
    failed: bool = False,
    progress: bool | Watch = True,
    **fields: Any,
) -> SweepStatus:
    """Run a script, a file, an asset or a command over all combinations of values, and return the status of each point.

    `params` are axes, such as `{"lr": [0.1, 0.01]}`. `fields` are those of a run, such as `system`, where it then runs,
    or `best`, the metric that decides. The id of a sweep runs its missing points, and with `failed` also those that
    failed. `at_once` points run concurrently. See `fm.fetch` for `progress`.
    """
    from fairmile.base.progress import CountProgress

    with _watched(progress) as (workspace, watch):
        sweeps = workspace.sweeps
        known = _existing(workspace, what, "sweep") if params is None and not fields else None
        if known is None:
            definition, source, changes = sweeps.define(what, params=params, **fields)
            known = sweeps.create(definition, source, **changes)
        count = CountProgress(watch, f"sweep {known.id}", "points")
        if known.system:
            sweeps.submit(known, failed=failed, at_once=at_once if at_once > 1 else None)
            sweeps.wait(known, on_look=lambda points: count(sum(each.is_over for each in points), len(points)))
        else:
            sweeps.run(known, at_once=at_once, failed=failed, on_end=count.one_of(known.count))
        return sweeps.status(known)


def tune(
    what: str | Path | Sequence[str],
    *,
    params: Mapping[str, Any] | None = None,
    workers: int = 1,
    progress: bool | Watch = True,
    **fields: Any,
) -> StudyStatus:
    """Search for the best values until the budget is spent, and return the trials and the best of them.

    `params` are the space, such as `{"lr": "1e-4..1e-1:log", "layers": [2, 3, 4]}`. `fields` are those of a run, or
    settings of the study such as `objective`, `trials` and `sampler`. The id of a study resumes it, with `trials` up to
    that number. `workers` trials run concurrently. See `fm.fetch` for `progress`.
    """
    from fairmile.base.progress import CountProgress

    with _watched(progress) as (workspace, watch):
        studies = workspace.studies
        known = _existing(workspace, what, "tune") if params is None and fields.keys() <= {"trials"} else None
        if known is not None and fields:
            known = studies.extend(known, trials=fields["trials"])
        if known is None:
            definition, source, changes = workspace.sweeps.define(what, params=params, tuning=True, **fields)
            known = studies.create(definition, source, **changes)
        count, most = CountProgress(watch, f"study {known.id}", "trials"), known.most_trials

        def look(trials: Sequence[TrialRecord]) -> None:
            count(sum(each.state != "running" for each in trials), max(most, len(trials)))

        if not known.system:
            return studies.run(known, workers=workers, on_look=look)
        studies.submit(known, workers=workers)
        return studies.wait(known, on_look=look)


def _existing(workspace: Workspace, what: str | Path | Sequence[str], verb: str) -> Sweep | None:
    """Return the sweep or study that a word names, or None where it names what to run."""
    target = workspace.resolve(what, for_=verb) if isinstance(what, str) else None
    return target.content if target is not None and target.kind == "sweep" else None


def _id(run: str | Recorded) -> str:
    return run if isinstance(run, str) else run.id


def status() -> WorkspaceStatus:
    """Return active and queued work and recent runs, here and on every system."""
    return _workspace().status()


def compare(
    *runs: str | Recorded, metrics: Sequence[str] = (), reference: str | Path | None = None, confidence: float = 0.95
) -> Evaluation:
    """Compare runs, groups of repeats or all runs of a name with the first, and tell differences from noise.

    Each is an id, a name, or what `fm.run`, `fm.sweep` and `fm.tune` return. `reference` is a file of reference values
    to check them against.
    """
    from pathlib import Path

    file = Path(reference) if reference is not None else None
    return _workspace().reports.evaluate(*map(_id, runs), metrics=metrics, confidence=confidence, file=file)


def report(
    *runs: str | Recorded, metrics: Sequence[str] = (), where: Sequence[str] = (), over: Sequence[str] = ()
) -> Report:
    """Report runs, or the last ones; a notebook shows the report, `write(path)` writes it to a file.

    Each is an id, a name, or what `fm.run`, `fm.sweep` and `fm.tune` return.
    """
    return _workspace().reports.page(*map(_id, runs), metrics=metrics, where=where, over=over)


def watch(command: Sequence[str] = (), *, seconds: float | None = None, **options: Any) -> WatchReport:
    """Measure power, energy and load of a program, or of the machine for some seconds or until interrupted.

    `options` are those of `fairmile.meter.watching.watch`, such as `sources`, `gpus`, `period_s` and `log`.
    """
    from fairmile.meter.watching import watch

    return watch(command, seconds=seconds, **options)


def serve(*, wait: bool = True, open_browser: bool = True, **settings: Any) -> Serving:
    """Serve catalog, runs and flows to the browser, with a REST API, until interrupted.

    Without `wait`, it serves in the background until `stop()` of the result is called. `settings` are those of
    `fairmile.web.serve.ServeSettings`, such as `port` and `host`.
    """
    from fairmile.web.serve import ServeSettings, announce, serve

    given = ServeSettings(**settings)
    return serve(_workspace(), given, wait=wait, open_browser=open_browser, on_ready=announce)


def doctor() -> Diagnosis:
    """Return the settings with their origin, the state of catalogs and pools, and problems."""
    return _workspace().diagnose()


def trust(path: str | Path, *, dry_run: bool = False) -> TrustedProject:
    """Trust a `fairmile.yaml`, or that of a folder, in its current form; return what its settings allow."""
    from fairmile.settings import project_file
    from fairmile.workspace import Workspace

    return Workspace.trust().add(project_file(path), dry_run=dry_run)


def _workspace() -> Workspace:
    from fairmile.workspace import Workspace

    return Workspace.current()


def _watched(progress: bool | Watch) -> AbstractContextManager[tuple[Workspace, Watch | None]]:
    """Give the workspace for a call whose progress is shown, and what shows it."""
    return _workspace().watched(progress)


def __getattr__(name: str) -> Any:
    if name == "Workspace":
        from fairmile.workspace import Workspace

        return Workspace
    if name == "Card":
        from fairmile.catalog.card import Card

        return Card
    if name == "JobSpec":
        from fairmile.jobs.spec import JobSpec

        return JobSpec
    if name in ("event", "log", "span"):
        from fairmile import meter

        return getattr(meter, name)
    if name == "FairmileError":
        from fairmile.base.errors import FairmileError

        return FairmileError
    raise AttributeError(f"module 'fairmile' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


class _Fairmile(type(sys)):  # type: ignore[misc]  # ModuleType
    """Serves the nouns and verbs; a module of the same name, once imported, would otherwise take their place."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_taken = name in _NOUNS or (name in __all__ and isinstance(value, type(sys)))
        if not is_taken:
            super().__setattr__(name, value)


def _noun(name: str) -> property:
    return property(lambda module: getattr(_workspace(), name))


for _name in _NOUNS:
    setattr(_Fairmile, _name, _noun(_name))
sys.modules[__name__].__class__ = _Fairmile
