"""The workspace: settings, folders, and the nouns that use them. No logic."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.commands import Here
from fairmile.base.config import Config, Guarded

# Each command imports what it asks for: a search needs neither store nor engine, a list of runs no catalog.
from fairmile.base.lazy import lazy
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.version import __version__
from fairmile.catalog import OWN_IDS
from fairmile.settings import ignored_text, options, settings_files, user_file
from fairmile.transfer.settings import Settings

if TYPE_CHECKING:
    from fairmile.access.access import Access
    from fairmile.base.progress import Watch
    from fairmile.base.trust import Trust
    from fairmile.benchmarks.expected import FromStep
    from fairmile.benchmarks.measured import MeasuredBenchmarks
    from fairmile.benchmarks.program import check_parameters
    from fairmile.catalog.assets import Assets
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.results import ResolvedCard
    from fairmile.course.course import Course
    from fairmile.doctor import Diagnosis
    from fairmile.envs.envs import Envs
    from fairmile.flows.flows import Flows
    from fairmile.flows.pipelines import Datasets, Workflows
    from fairmile.jobs.machines import Machines
    from fairmile.jobs.queue import Jobs
    from fairmile.meter.footprint import Supply
    from fairmile.models.models import Models
    from fairmile.notify import Notice
    from fairmile.predict.predict import MeasuredRun, Predict
    from fairmile.reports.reports import Reports
    from fairmile.resolve import Target
    from fairmile.runs.record.ledger import Ledger
    from fairmile.runs.record.run import Run
    from fairmile.runs.runs import Runs
    from fairmile.status import WorkspaceStatus
    from fairmile.store.reservations import Held
    from fairmile.store.store import Store
    from fairmile.sweeps.sweeps import Sweeps
    from fairmile.sweeps.tuning.study import Studies
    from fairmile.traces.traces import Traces
    from fairmile.transfer.credentials import Credentials
    from fairmile.transfer.fetchers import Fetchers
    from fairmile.transfer.items import Watcher
    from fairmile.transfer.remote import Context
    from fairmile.transfer.transfer import Transfer
else:
    check_parameters = lazy("fairmile.benchmarks.program:check_parameters")
    Credentials = lazy("fairmile.transfer.credentials:Credentials")
    Context = lazy("fairmile.transfer.remote:Context")
    Fetchers = lazy("fairmile.transfer.fetchers:Fetchers")

_NESTING = ("systems",)  # these settings name files of settings in turn, such as those of ssh


def _best_point(runs: Sequence[Run], metric: str) -> str:
    from fairmile.reports.measures import counts
    from fairmile.reports.sweep import best, judge_points, own_metric, survey

    metric = metric or own_metric([run for run in runs if counts(run)])
    if not metric:
        return ""
    first, _ = judge_points(survey(runs, metric))
    return (first or best(runs, metric)).text  # a metric that cannot rank is an error here


def _below(place: str, origin: str) -> str:
    """Return a folder given in a settings file as seen from that file; any other stays as it is."""
    file = origin.rpartition(":")[0]
    is_folder = "://" not in place and not place.startswith(("git@", "~", "/"))
    return str(Path(file).parent / place) if is_folder and file.startswith("/") else place


def _reach_below(given: Any, origin: str) -> Any:
    """Return how a system is reached, its files as seen from the settings file that names them."""
    if not isinstance(given, Mapping):
        return given
    files = {key: _below(given[key], origin) for key in ("ssh_config", "file") if isinstance(given.get(key), str)}
    return {**given, **files}


def _fetcher_below(given: Any, origin: str) -> Any:
    """Return a program that fetches, its path as seen from the settings file, not from where the user happens to be."""
    if not isinstance(given, Mapping):
        return given
    argvs = {key: given[key] for key in ("command", "find") if isinstance(given.get(key), list) and given[key]}
    placed = {
        key: [_below(argv[0], origin), *argv[1:]]
        for key, argv in argvs.items()
        if isinstance(argv[0], str) and "/" in argv[0]
    }
    return {**given, **placed}


def _note_ignored(file: Path, keys: Sequence[str]) -> None:
    """Say, once in a process, which settings of a project file have no effect."""
    if (file, tuple(keys)) not in _noted:
        _noted.add((file, tuple(keys)))
        name = "".join(c if c.isprintable() else "?" for c in str(file))
        sys.stderr.write(f"note: {ignored_text(name, keys)}\n")


def _stamp(file: Path) -> tuple[str, int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return str(file), status.st_mtime_ns, status.st_ino, status.st_size


@dataclass(frozen=True)
class Workspace:
    """One workspace: its catalog, store, runs and all other nouns, under one set of settings."""

    config: Config
    user_file: Path
    environ: Mapping[str, str]
    on_progress: Callable[[int, int], None] | None = None
    watcher: Watcher | None = None
    project: Path | None = None  # the project file in sight, trusted or not
    named: tuple[Path, ...] = ()  # the files beside it whose content the user's trust depends on
    hidden: frozenset[str] = frozenset()  # assets that whom a server answers must not hear of

    @classmethod
    def open(
        cls,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        overrides: Mapping[str, str] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        watcher: Watcher | None = None,
    ) -> Workspace:
        """Read the settings: site file, user file, project file, environment, overrides; the last one wins.

        The project file is the nearest `fairmile.yaml` upwards from `cwd`. Until the user trusts it, only its safe
        settings count. `FAIRMILE_CONFIG` names another file to read in its place, which is trusted.
        """
        environ = os.environ if environ is None else environ
        files, project = settings_files(environ, Path.cwd() if cwd is None else cwd)
        named: list[Path] = []
        guarded: Guarded | None = cls.trust(environ).guard(project, named) if project is not None else None
        config = Config.load(options(environ), files=files, guarded=guarded, environ=environ, overrides=overrides or {})
        if project is not None and config.ignored:
            _note_ignored(project, config.ignored)
        return cls(config, user_file(environ), environ, on_progress, watcher, project, tuple(named))

    @classmethod
    def current(cls) -> Workspace:
        """Return the workspace of this process: a new one only where folder, variables or settings have changed."""
        global _current
        files, project = settings_files(os.environ, Path.cwd())
        files += [project, cls.trust().records] if project is not None else []

        def state(workspace: Workspace) -> object:
            return os.getcwd(), dict(os.environ), [_stamp(file) for file in (*files, *workspace.named)]

        if _current is None or _current[0] != state(_current[1]):
            workspace = cls.open()
            _current = (state(workspace), workspace)
        return _current[1]

    @staticmethod
    def trust(environ: Mapping[str, str] | None = None) -> Trust:
        """Return the project files that the user trusts."""
        from fairmile.base.trust import Trust

        environ = os.environ if environ is None else environ
        return Trust(user_file(environ).with_name("trusted.json"), options(environ), _NESTING)

    @property
    def home(self) -> Path:
        return Path(_below(str(self.config["home"]), self.config.origin("home")))

    @property
    def sources(self) -> dict[str, Any]:
        """The sources as declared, folders as seen from the file that declares them."""
        sources: dict[str, Any] = {}
        for name, given in self.config["sources"].items():
            origin = self.config.origin(f"sources.{name}")
            if isinstance(given, str):
                sources[name] = _below(given, origin)
            elif isinstance(given, dict) and isinstance(given.get("location"), str):
                sources[name] = {**given, "location": _below(given["location"], origin)}
            else:
                sources[name] = given
        return sources

    @property
    def supply(self) -> Supply:
        """Where the energy of runs comes from."""
        from fairmile.meter.footprint import Supply

        table = self.config["footprint.table"]
        file = Path(_below(str(table), self.config.origin("footprint.table"))) if table is not None else None
        return Supply(self.config["footprint.region"], self.config["footprint.pue"], file)

    def resolve(self, word: str, *, for_: str = "", without: Sequence[str] = (), **options: Any) -> Target:
        """Return what a word means to a verb (run, fetch, sweep, tune, flow, predict, show), or to any of them.

        `options` are what stands beside the word, as `kind="model"`; `without` leaves kinds of targets out.
        """
        from fairmile.resolve import Nouns, resolve

        nouns = Nouns(
            catalog=lambda: self.catalog,
            runs=lambda: self.ledger,
            sweeps=lambda: self.sweeps,
            flows=lambda: self.flows,
        )
        return resolve(word, nouns, for_=for_, options=options, without=without)

    def show(self, word: str, *, kind: str | None = None) -> ResolvedCard:
        """Return the card that a name resolves to, and count its use, or the card that a file or folder holds."""
        from fairmile.catalog.results import ResolvedCard

        target = self.resolve(word, for_="show", kind=kind)
        card = self.catalog.show(target.handle) if target.handle else target.content
        return ResolvedCard(card, target.others, lambda: self.catalog.fair(card).score, origin=target.origin)

    @cached_property
    def catalog(self) -> Catalog:
        from fairmile.catalog.catalog import Catalog

        open_catalog: Callable[..., Catalog] = Catalog
        if self.hidden:
            from fairmile.access.view import VisibleCatalog

            open_catalog = partial(VisibleCatalog, hidden=self.hidden)
        return open_catalog(
            self.home,
            sources=self.sources,
            source_origins={name: self.config.origin(f"sources.{name}") for name in self.config["sources"]},
            settings_file=self.user_file,
            base=self.config["catalog.base"],
            context=self.context,
            on_progress=self.on_progress,
            systems=lambda: self.systems.registry.rows(),
            fetch=lambda address, folder: self.assets.fetch([address], to=folder),
        )

    def seen_without(self, hidden: frozenset[str]) -> Workspace:
        """Return this workspace without some assets, given as `catalog/kind/name`."""
        return replace(self, hidden=hidden) if hidden else self

    @cached_property
    def access(self) -> Access:
        from fairmile.access.access import Access

        given = dict(self.config["access.oidc"])
        if isinstance(given.get("client_secret_file"), str):
            given["client_secret_file"] = _below(given["client_secret_file"], self.config.origin("access.oidc"))
        return Access(self.home, lambda: self.catalog, context=self.context, oidc=given)

    @cached_property
    def store(self) -> Store:
        from fairmile.store.pools import Pools, parse_pools
        from fairmile.store.store import Store

        origins = {name: self.config.origin(f"pools.{name}") for name in self.config["pools"]}
        pools = parse_pools(self.config["pools"], self.home / "store", origins, environ=self.environ)
        return Store(Pools(pools, runner=Here()), runner=Here(), settings_file=self.user_file, environ=self.environ)

    @cached_property
    def assets(self) -> Assets:
        from fairmile.catalog.assets import Assets

        return Assets(self.home, lambda: self.catalog, self.store, self.transfer)

    @cached_property
    def context(self) -> Context:
        """What everything that reaches out of this machine is given."""
        settings = Settings(
            connections=self.config["transfer.connections"],
            segment_bytes=self.config["transfer.segment"],
            stall_s=self.config["transfer.stall"],
            unsized_bytes=self.config["transfer.unsized"],
            retries=self.config["transfer.retries"],
            socket_buffer_bytes=self.config["transfer.socket_buffer"],
            limits=self.config["transfer.limits"],
            fetchers={
                name: _fetcher_below(given, self.config.origin(f"transfer.fetchers.{name}"))
                for name, given in self.config["transfer.fetchers"].items()
            },
            s3_endpoint=self.config["transfer.s3_endpoint"],
            globus_collection=self.config["transfer.globus_collection"],
            globus_root=self.config["transfer.globus_root"],
            hubs={name: self.config[f"hubs.{name}"] for name in Settings().hubs},
        )
        return Context(self.environ, Here(), Credentials(self.environ), settings)

    def ask(self, name: str) -> None:
        """Begin to ask the source of a web address, which answers while store and catalog are loaded; then `close`."""
        if not name.startswith(OWN_IDS):
            fetchers = Fetchers(self.context)
            fetchers.ask(name)
            self._asking.append(fetchers)

    @cached_property
    def _asking(self) -> list[Fetchers]:
        """What `ask` has begun and no transfer has taken over yet."""
        return []

    def close(self) -> None:
        """Drop the questions that nobody waits for any more."""
        while self._asking:
            self._asking.pop().close()

    def diagnose(self) -> Diagnosis:
        """Return the settings with their origin, the state of catalogs and pools, and what does not work."""
        from fairmile.doctor import diagnose

        is_ignored = self.project is not None and self.config.ignored
        return diagnose(
            self.home,
            self.config,
            [ignored_text(str(self.project), self.config.ignored)] if is_ignored else [],
            catalogs=lambda: self.catalog.catalogs(),
            pools=lambda: self.store.pools.ranked(),
            systems=lambda: self.systems.registry.rows(),
        )

    @contextmanager
    def watched(self, progress: bool | Watch) -> Iterator[tuple[Workspace, Watch | None]]:
        """Give this workspace for a call whose progress is shown here or by a function, and what shows it."""
        from fairmile.base.progress import TransferProgress, watching

        with watching(progress) as watch:
            yield (replace(self, watcher=TransferProgress(watch)) if watch is not None else self), watch

    def notify(
        self,
        notice: Notice,
        to: Sequence[str] = (),
        on_problem: Callable[[str], None] = lambda _: None,
        on_sent: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Tell `to` that work has ended; without `to`, whom the settings name, if it took as long as they say.

        `on_problem` hears of each destination that could not be reached, `on_sent` of the others.
        """
        from fairmile.notify import send

        is_long = notice.elapsed_s >= self.config["notify.after"]
        send(notice, to or (self.config["notify.to"] if is_long else ()), on_problem, on_sent)

    def transfer(self, watcher: Watcher | None = None) -> Transfer:
        """Return a transfer into the store that `watcher` sees, or that of this workspace; close it after use."""
        from fairmile.transfer.transfer import Transfer

        fetchers = self._asking.pop() if self._asking else Fetchers(self.context)
        return Transfer(self.store, self.context, watcher or self.watcher, fetchers)

    @cached_property
    def systems(self) -> Machines:
        from fairmile.jobs.machines import Machines

        folders = [Path("/etc/fairmile/systems"), self.home / "systems"]
        origins = {name: self.config.origin(f"systems.{name}") for name in self.config["systems"]}
        reaches = {name: _reach_below(given, origins[name]) for name, given in self.config["systems"].items()}
        return Machines(folders, self.home / "jobs", reaches=reaches, origins=origins)

    @cached_property
    def envs(self) -> Envs:
        from fairmile.catalog.needs import environment_of
        from fairmile.envs.cards import spec_from_card
        from fairmile.envs.envs import Envs, Noted

        def find(name: str) -> Noted | None:
            body = environment_of(self.catalog, name)
            return None if body is None else spec_from_card(body)

        return Envs(
            self.home / "envs",
            Here(),
            environ=self.environ,
            bring=lambda address, sha256: self.assets.file(address, sha256),
            find=find,
            version=__version__,
        )

    @cached_property
    def jobs(self) -> Jobs:
        from fairmile.jobs.queue import Jobs

        return Jobs(self.home / "jobs", self.systems)

    @property
    def ledger(self) -> Ledger:
        """The runs as far as lists need them, which takes less to load than what makes new ones."""
        from fairmile.runs.record.ledger import Ledger

        return Ledger(self.home / "runs", hidden=self.hidden)

    def status(self, on_problem: Callable[[str], None] = lambda _: None) -> WorkspaceStatus:
        """Return what runs, what waits and what ended last, here and on every system.

        `on_problem` hears why a system could not be asked; its runs keep their last known state.
        """
        from fairmile.flows.state import active_flows
        from fairmile.runs.record.layout import open_arrays
        from fairmile.status import live_jobs, read_status

        ledger = self.ledger
        if ledger.with_jobs() or open_arrays(ledger.root):
            self.runs.refresh(on_problem=on_problem)
        live = live_jobs(self.home / "jobs")
        jobs = [job for job in self.jobs.ls(live=True) if job.id in live] if live else []
        for job in jobs:
            if job.trouble:
                on_problem(f"{job.id}: {job.trouble}")
        flows = list(active_flows(self.home / "flows"))
        return read_status(ledger, self.home / "sweeps", flows=flows, jobs=jobs, transfers=self._transfers())

    def _transfers(self) -> Iterator[Held]:
        """Yield the transfers into the pools, without loading the store where there are none."""
        if not self.config["pools"] and not any((self.home / "store" / "reserved").glob("[0-9a-f]*")):
            return
        pools = self.store.pools
        for pool in pools:
            yield from pools.reservations(pool)

    @cached_property
    def runs(self) -> Runs:
        from fairmile.runs.runs import Runs
        from fairmile.runs.services import Services

        services = Services(
            catalog=lambda: self.catalog,
            assets=lambda: self.assets,
            store=lambda: self.store,
            envs=lambda: self.envs,
            jobs=lambda: self.jobs,
            context=lambda: self.context,
            predictors={"fairmile.benchmarks": lambda: self._from_step},
            checks={"fairmile.benchmarks": check_parameters},
            supply=self.supply,
        )
        return Runs(self.home / "runs", services, environ=self.environ, hidden=self.hidden)

    @cached_property
    def _from_step(self) -> FromStep:
        from fairmile.benchmarks.expected import FromStep

        return FromStep(lambda: self.predict, lambda: self.systems)

    @cached_property
    def sweeps(self) -> Sweeps:
        from fairmile.sweeps.sweeps import Sweeps

        return Sweeps(
            self.home / "sweeps",
            lambda: self.runs,
            resolve=self.resolve,
            catalog=lambda: self.catalog,
            environ=self.environ,
            best=_best_point,
        )

    @cached_property
    def studies(self) -> Studies:
        from fairmile.sweeps.tuning.study import Studies

        return Studies(self.sweeps, lambda: self.runs)

    @cached_property
    def flows(self) -> Flows:
        from fairmile.flows.flows import Flows

        return Flows(
            self.home / "flows",
            lambda: self.runs,
            sweeps=lambda: self.sweeps,
            catalog=lambda: self.catalog,
            envs=lambda: self.envs,
            store=lambda: self.store,
            machines=lambda: self.systems,
            assets=lambda: self.assets,
            resolve=self.resolve,
            environ=self.environ,
            host_timeout_s=self.config["flows.host_timeout"],
        )

    @property
    def reports(self) -> Reports:
        from fairmile.reports.reports import About, Reports

        return Reports(lambda: self.ledger, self.supply, lambda group: About(*self.studies.about(group)))

    @property
    def models(self) -> Models:
        from fairmile.models.models import Models

        return Models(
            self.catalog,
            self.assets,
            lambda: self.runs,
            self._step_of,
            self._validation_of,
            lambda *exploration: self.predict.foresee_exploration(*exploration),
            lambda: self.envs,
            self.environ,
        )

    @property
    def benchmarks(self) -> MeasuredBenchmarks:
        from fairmile.benchmarks.measured import MeasuredBenchmarks

        return MeasuredBenchmarks(lambda: self.catalog, lambda: self.runs, lambda: self.store, self.environ)

    @property
    def course(self) -> Course:
        from fairmile.course.course import Course

        return Course(lambda: self.runs)

    def _step_of(self, target: str | Target) -> Path:
        from fairmile.benchmarks.benchmarks import Benchmarks

        return Benchmarks(lambda: self.catalog).step_of(target)

    def _validation_of(self, run: Run) -> Mapping[str, object]:
        from fairmile.benchmarks.benchmarks import Benchmarks

        return Benchmarks(lambda: self.catalog).validation_of(run)

    @property
    def predict(self) -> Predict:
        from fairmile.predict.predict import Predict

        return Predict(
            self.home / "perf",
            resolve=lambda word: self.resolve(word, for_="predict"),
            step_of=self._step_of,
            partition_of=lambda name: self.systems.partition(name),
            metrics_of=lambda run: {name: each.value for name, each in self.ledger.get(run).metrics.items()},
            steps_of_runs=self._measured_steps,
        )

    def _measured_steps(self, predict: Predict) -> Mapping[str, Sequence[MeasuredRun]]:
        from fairmile.benchmarks.expected import measured_steps

        ledger = self.ledger
        return measured_steps((ledger.get(row.id) for row in ledger.rows() if row.state == "done"), predict)

    @property
    def traces(self) -> Traces:
        from fairmile.traces.traces import Traces

        return Traces(lambda name: self.systems.partition(name), lambda run: self.ledger.get(run))

    @property
    def datasets(self) -> Datasets:
        from fairmile.flows.pipelines import Datasets

        return Datasets(self.catalog, self.assets, lambda: self.flows, self.environ)

    @property
    def workflows(self) -> Workflows:
        from fairmile.flows.pipelines import Workflows

        return Workflows(self.catalog, self.assets, lambda: self.flows)


_noted: set[tuple[Path, tuple[str, ...]]] = set()  # what this process has said of settings that need trust
_current: tuple[object, Workspace] | None = None  # what `Workspace.current` gave last, and for what
