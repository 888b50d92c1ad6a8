"""Benchmarks that run: step by step, and those of storage and of collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import UsageError
from fairmile.base.files import read_text, write_atomic
from fairmile.base.lazy import lazy
from fairmile.base.yaml import load
from fairmile.benchmarks.benchmarks import Benchmarks
from fairmile.benchmarks.comparison import BenchmarkTable, compare_benchmarks
from fairmile.benchmarks.ensembles.results import Ensemble
from fairmile.benchmarks.loaders import LoaderChoice, read_choice
from fairmile.benchmarks.results import StagePlan, StageRuns
from fairmile.benchmarks.stages import planned_steps, run_stages
from fairmile.benchmarks.storage import StorageFolder, StoragePlan, StorageRun, measure_storage, plan_storage
from fairmile.benchmarks.submission.package import Labels, submit
from fairmile.benchmarks.submission.results import Submission
from fairmile.catalog.catalog import Catalog
from fairmile.costs.collectives.measure import MeasuredBackend, measure_collectives, plan_collectives, write_measured
from fairmile.costs.collectives.results import MeasurementPlan
from fairmile.runs.plan import RunPlan
from fairmile.runs.record.spec import Input
from fairmile.runs.runs import Runs
from fairmile.store.store import Store

if TYPE_CHECKING:
    from fairmile.benchmarks.ensembles.ensemble import join
    from fairmile.benchmarks.ensembles.page import ensemble_page
else:
    join = lazy("fairmile.benchmarks.ensembles.ensemble:join")
    ensemble_page = lazy("fairmile.benchmarks.ensembles.page:ensemble_page")


class MeasuredBenchmarks(Benchmarks):
    """Benchmarks of a workspace, including those of storage and collectives."""

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        runs: Callable[[], Runs],
        store: Callable[[], Store],
        environ: Mapping[str, str],
    ) -> None:
        super().__init__(catalog)
        self._runs = runs
        self._store = store
        self._environ = environ

    def compare(self, *references: str) -> BenchmarkTable:
        """Return a row for each benchmark: trivial and best classical baseline, model, time and energy, over all seeds.

        `references` are runs, groups or names of runs; without any, every run of a benchmark counts.
        """
        return compare_benchmarks(self._runs(), references)

    def plan_stages(self, name: str, steps: Sequence[str] = ()) -> StagePlan:
        """Return the steps of a benchmark that would run, up to the last one named."""
        return planned_steps(name, steps)

    def stages(self, name: str, steps: Sequence[str] = (), **given: Any) -> StageRuns:
        """Run a benchmark step by step; each step is a run that reads the outputs of the previous ones.

        `given` are `params`, `seed` and `again`, or fields of every run.
        """
        return run_stages(self._runs(), name, steps, **given)

    def plan_storage(self, paths: Sequence[str | Path], *, size_bytes: int | None = None) -> StoragePlan:
        """Return the folders whose storage would be measured, with file system and free space."""
        return plan_storage(self._store(), paths, size_bytes=size_bytes, environ=self._environ)

    def storage(
        self,
        paths: Sequence[str | Path],
        *,
        size_bytes: int | None = None,
        need_bytes: int = 0,
        on_step: Callable[[StorageFolder, str], None] = lambda *_: None,
    ) -> StorageRun:
        """Measure the storage of folders, record it as a run, and recommend one for `need_bytes` of data."""
        folders = self.plan_storage(paths, size_bytes=size_bytes)
        return measure_storage(self._runs(), folders, size_bytes=size_bytes, need_bytes=need_bytes, on_step=on_step)

    def loaders(
        self,
        name: str,
        dataset: str = "",
        *,
        params: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Input] | None = None,
        dry_run: bool = False,
    ) -> LoaderChoice | RunPlan:
        """Measure ways to feed the training of a benchmark, in turns on its own data and step, and recommend one.

        With `dry_run`, return what would run.
        """
        given: dict[str, Any] = {"params": {**(params or {}), "work": "loaders"}, "inputs": dict(inputs or {})}
        if dry_run:
            return self._runs().plan(name, dataset, **given)
        return read_choice(self._runs().run(name, dataset, again=True, **given))

    def ensemble(
        self,
        runs: str | Sequence[str],
        *,
        calibration_share: float = 0.5,
        seed: int = 0,
        output: str | Path | None = None,
    ) -> Ensemble:
        """Join runs that differ in their seed, calibrate the uncertainty of the whole and judge it on other samples.

        `output` is an HTML page to write, with a reliability figure.
        """
        references = [runs] if isinstance(runs, str) else runs
        joined = join(self._runs(), references, calibration_share=calibration_share, seed=seed)
        if output is None:
            return joined
        write_atomic(Path(output), ensemble_page(joined))
        return replace(joined, page=str(output))

    def submit(
        self,
        runs: Sequence[str],
        folder: str | Path,
        *,
        to: str,
        org: str,
        division: str = "open",
        availability: str = "research",
        system: str = "",
        descriptor: str = "experiment-1",
        description: Mapping[str, Any] | str | Path | None = None,
        dry_run: bool = False,
    ) -> Submission:
        """Make a submission to `mlperf-hpc` or `mlcommons-science` from runs, and run the committee's checkers on it.

        `description`, or the YAML or JSON file that has it, states what no record holds, such as `cooling`.
        """
        labels = Labels(org, division, availability, system, descriptor)
        stated = _read_description(description) if isinstance(description, str | Path) else description or {}
        return submit(
            self._runs(), self._store(), runs, Path(folder), to=to, labels=labels, description=stated, dry_run=dry_run
        )

    def plan_collectives(self, backend: str = "gloo", ranks: Sequence[int] = (2,), **given: Any) -> MeasurementPlan:
        """Return the commands that would measure collectives; `given` are `sizes`, `collectives` and `seconds`."""
        return plan_collectives(backend, ranks, **given)

    def collectives(
        self, backend: str = "gloo", ranks: Sequence[int] = (2,), *, output: Path | None = None, **given: Any
    ) -> MeasuredBackend:
        """Measure collectives between ranks on this machine, fit a model to them, and write both to `output`."""
        measured = measure_collectives(backend, ranks, **given)
        if output is not None:
            write_measured(output, measured)
        return measured


def _read_description(file: str | Path) -> Mapping[str, Any]:
    """Return the fields of a system description that a file states."""
    document = load(read_text(Path(file)), file=str(file))
    if not isinstance(document, Mapping):
        raise UsageError(f"{file} does not state fields of a system", hint="write lines such as `cooling: air`")
    return document
