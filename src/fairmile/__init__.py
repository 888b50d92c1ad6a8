"""Fairmile: from the name of an AI model for science to a result that anyone can find, rerun and trust.

`import fairmile as fm` gives verbs (`fm.search`, `fm.show`, `fm.match`, `fm.fetch`, `fm.run`, `fm.sweep`, `fm.tune`)
and nouns (`fm.catalog`, `fm.models`, `fm.datasets`, `fm.workflows`, `fm.assets`, `fm.store`, `fm.systems`, `fm.envs`,
`fm.jobs`, `fm.runs`, `fm.sweeps`, `fm.studies`, `fm.benchmarks`, `fm.reports`, `fm.predict`, `fm.traces`), all of the
workspace that the settings name. Code that works with another one opens it: `fm.Workspace.open(...)`. Inside a program,
`fm.log`, `fm.span` and `fm.event` write to the record of the run that it is part of.
"""

from __future__ import annotations

import sys

from fairmile.base.version import __version__ as __version__

__all__ = [
    "Card",
    "FairmileError",
    "JobSpec",
    "Workspace",
    "assets",
    "benchmarks",
    "catalog",
    "datasets",
    "envs",
    "event",
    "fetch",
    "jobs",
    "log",
    "match",
    "models",
    "predict",
    "reports",
    "run",
    "runs",
    "search",
    "show",
    "span",
    "store",
    "studies",
    "sweep",
    "sweeps",
    "systems",
    "traces",
    "trust",
    "tune",
    "workflows",
]

TYPE_CHECKING = False  # a program that only logs must not wait for `typing`
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from fairmile.base.errors import FairmileError
    from fairmile.base.trust import TrustedProject
    from fairmile.benchmarks.benchmarks import Benchmarks
    from fairmile.catalog.assets import Assets
    from fairmile.catalog.card import Card
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.fetched import FetchedAssets
    from fairmile.catalog.match import Matches
    from fairmile.catalog.results import ResolvedCard, SearchResult
    from fairmile.catalog.verbs import Datasets, Workflows
    from fairmile.envs.envs import Envs
    from fairmile.jobs.machines import Machines
    from fairmile.jobs.queue import Jobs
    from fairmile.jobs.spec import JobSpec
    from fairmile.meter import event, log, span
    from fairmile.models.models import Models
    from fairmile.predict.predict import Predict
    from fairmile.reports.reports import Reports
    from fairmile.runs.record.run import Run
    from fairmile.runs.runs import Runs
    from fairmile.store.store import Store
    from fairmile.sweeps.results import SweepStatus
    from fairmile.sweeps.sweeps import Sweeps
    from fairmile.sweeps.tuning.results import StudyStatus
    from fairmile.sweeps.tuning.study import Studies
    from fairmile.traces.traces import Traces
    from fairmile.workspace import Workspace

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
    benchmarks: Benchmarks
    reports: Reports
    predict: Predict
    traces: Traces

_NOUNS = (
    *("catalog", "models", "datasets", "workflows", "assets", "store"),
    *("systems", "envs", "jobs", "runs", "sweeps", "studies", "benchmarks"),
    *("reports", "predict", "traces"),
)


def search(text: str = "", *, kind: str | None = None, limit: int = 20) -> SearchResult:
    """Return the assets that match words, `field:value`, `prefix*` and `/regex/`."""
    return _workspace().catalog.search(text, kind=kind, limit=limit)


def show(name: str, *, kind: str | None = None) -> ResolvedCard:
    """Return the card that a name, handle, id, DOI or digest resolves to, or that a file or folder holds."""
    return _workspace().show(name, kind=kind)


def match(
    *, model: str | None = None, dataset: str | None = None, domain: str | None = None, limit: int = 20
) -> Matches:
    """Return which data sets a model accepts, which models a data set trains, and why."""
    return _workspace().catalog.match(model=model, dataset=dataset, domain=domain, limit=limit)


def fetch(
    names: str | Sequence[str],
    *,
    to: str | Path | None = None,
    pool: str | None = None,
    fresh: bool = False,
    limit: int | None = None,
    access_granted: bool = False,
) -> FetchedAssets:
    """Fetch assets or addresses into the store, and into the folder `to` where given; what is stored does not move.

    With `access_granted` you confirm that you may have data whose card restricts access.
    """
    from pathlib import Path

    folder = Path(to) if to is not None else None
    return _workspace().assets.fetch(
        names, to=folder, pool=pool, fresh=fresh, limit=limit, access_granted=access_granted
    )


def run(what: str | Sequence[str], dataset: str = "", *, again: bool = False, **fields: Any) -> Run:
    """Run an asset, a YAML file or a command and return its record; `fields` are those of a run, as `params`.

    Where exactly the same went in before, that record is returned, unless `again` is given.
    """
    return _workspace().runs.run(what, dataset, again=again, **fields)


def sweep(
    what: str | Path | Sequence[str], *, params: Mapping[str, Any] | None = None, at_once: int = 1, **fields: Any
) -> SweepStatus:
    """Run a file, an asset or a command over all combinations of values, and return the status of each point.

    `params` are axes, as `{"lr": [0.1, 0.01]}`; `fields` are those of a run, as `system`, where it then runs.
    """
    workspace = _workspace()
    definition, source = workspace.sweeps.read_any(what, params=params)
    made = workspace.sweeps.create(definition, source, **fields)
    if not made.system:
        return workspace.sweeps.run(made, at_once=at_once)
    workspace.sweeps.submit(made, at_once=at_once if at_once > 1 else None)
    return workspace.sweeps.wait(made)


def tune(
    what: str | Path | Sequence[str], *, params: Mapping[str, Any] | None = None, workers: int = 1, **fields: Any
) -> StudyStatus:
    """Search for the best values as a file says, until its budget is spent, and return the trials and the best.

    `fields` are those of a run, or of the file's `tuning`, as `trials` and `sampler`.
    """
    workspace = _workspace()
    definition, source = workspace.sweeps.read_any(what, params=params)
    made = workspace.studies.create(definition, source, **fields)
    if not made.system:
        return workspace.studies.run(made, workers=workers)
    workspace.studies.submit(made, workers=workers)
    return workspace.studies.wait(made)


def trust(path: str | Path, *, dry_run: bool = False) -> TrustedProject:
    """Trust a `fairmile.yaml`, or that of a folder, as it is now; return what its settings may do from then on."""
    from fairmile.workspace import Workspace, project_file

    return Workspace.trust().add(project_file(path), dry_run=dry_run)


def _workspace() -> Workspace:
    from fairmile.workspace import Workspace

    return Workspace.current()


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
    """Serves the nouns; a folder of the same name, once imported, would otherwise stand in their place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _NOUNS:
            super().__setattr__(name, value)


def _noun(name: str) -> property:
    return property(lambda module: getattr(_workspace(), name))


for _name in _NOUNS:
    setattr(_Fairmile, _name, _noun(_name))
sys.modules[__name__].__class__ = _Fairmile
