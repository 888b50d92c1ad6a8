"""MiniWeather: simulate a storm, learn its microphysics, simulate it again with what was learned, and compare."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fairmile.base.errors import NotFound, RunFailed, UsageError
from fairmile.benchmarks.harness.scores import Results, Score
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.miniweather import compare, figures, solver, surrogate
from fairmile.benchmarks.suite.miniweather.archive import DRY, MOIST, Film, dataset, opened, written
from fairmile.benchmarks.suite.miniweather.coupled import (
    Microphysics,
    MoistSimulation,
    NoMicrophysics,
    bubble_of,
    physics_time,
)
from fairmile.benchmarks.suite.miniweather.kessler import Cells, Kessler
from fairmile.benchmarks.suite.miniweather.learning import learn, metric
from fairmile.benchmarks.suite.miniweather.native import find_kernel
from fairmile.benchmarks.suite.miniweather.settings import STEPS, STORM, Settings
from fairmile.benchmarks.suite.miniweather.solver import Grid, Kernel
from fairmile.benchmarks.suite.miniweather.surrogate import CellSamples
from fairmile.meter import log, span

Array = np.ndarray[Any, Any]
_EACH = 4  # of so many calls of microphysics one is kept to sample from
_TITLE = "MiniWeather"
_PUBLISHED = (
    {
        "name": "published notebook, last epoch",
        "metric": "mse",
        "value": 1.6e-7,
        "source": "https://github.com/mrnorman/miniWeatherML",
    },
)
_WORDS = {"identity": "no change", "linear": "ridge regression"}


def run(session: Session) -> None:
    """Do the steps that the settings name; each leaves files that those after it read."""
    settings = session.settings(Settings)
    _check(settings)
    steps = tuple(STEPS) if settings.step == "all" else (settings.step,)
    if settings.work == "prepare":
        steps = tuple(each for each in steps if each in ("simulate", "sample"))
    is_real = session.data is not None
    if is_real and settings.step == "all":  # these samples are of another model: no storm of ours fits them
        steps = ("sample", "train")[: 1 if settings.work == "prepare" else 2]
    with TemporaryDirectory(prefix="fairmile-miniweather-") as scratch:
        # Other ranks do the same for themselves and only learn together.
        folder = session.folder if session.ranks.is_first else Path(scratch)
        work = _Work(session, settings, folder, os.environ)
        for step in steps:
            with span(step):
                getattr(work, step)()
        if "train" in steps and "compare" not in steps:
            work.report_scores()


def _check(settings: Settings) -> None:
    for name in ("courant", "storm_s", "output_s"):
        if not getattr(settings, name) > 0:
            raise UsageError(f"parameter {name}: expected more than 0, found {getattr(settings, name)}")


@dataclass(frozen=True)
class _Work:
    """The steps, and the files between them."""

    session: Session
    settings: Settings
    folder: Path
    environ: Mapping[str, str]

    def file(self, name: str) -> Path:
        """Return a file that an earlier step made: here, or as an input of the run."""
        if (self.folder / name).is_file():
            return self.folder / name
        given = self.environ.get(f"FAIRMILE_INPUT_{re.sub('[^A-Za-z0-9]', '_', name).upper()}")
        if given:
            return Path(given)
        maker = next(step for step, each in STEPS.items() if name in each.gives)
        raise NotFound(
            f"step {self.settings.step} needs {name}, which step {maker} makes",
            hint="`fairmile benchmark stages miniweather` does one after the other",
        )

    @property
    def grid(self) -> Grid:
        return Grid(self.settings.nx, self.settings.nz)

    def kernel(self) -> Kernel:
        with span("initialise"):
            kernel = find_kernel(self.settings.kernel, self.session.cache, self.environ, self.session.say)
        return kernel

    def attributes(self) -> dict[str, Any]:
        """Return all settings of the simulation and the seed, as they go into files."""
        return {**{name: getattr(self.settings, name) for name in STORM}, "seed": self.session.seed}

    # Simulate

    def simulate(self) -> None:
        """Simulate the dry case, the storm to compare with, and those to learn from."""
        names = STEPS["simulate"].gives
        if self.session.is_resumed and all((self.folder / name).is_file() for name in names):
            self.session.say("the simulations exist already")
            return
        calls, dt_s = self._physics_time()
        if calls < _EACH:
            raise UsageError(
                f"parameter storm_s: in {self.settings.storm_s:g} s microphysics is called {calls} times, expected at "
                f"least {_EACH}",
                hint="make storm_s longer, or physics_steps fewer",
            )
        kernel = self.kernel()
        with span("dry"):
            self._dry(kernel)
        with span("storm"):
            film, _ = self.storm(Kessler(), kernel, 0)
            with written(self.folder / "storm.h5") as handle:
                film.write(handle)
        self.session.say(compare.describe(film))
        with span("members"), written(self.folder / "members.h5") as handle:
            handle.attrs.update({**self.attributes(), "dt_s": dt_s, "variables": list(surrogate.INPUTS)})
            for member in range(1, self.settings.members + 1):
                handle.create_dataset(f"member{member}", data=self._snapshots(kernel, member))
        self.session.say(f"{self.settings.members} storms to learn from")

    def _snapshots(self, kernel: Kernel, member: int) -> Array:
        """Return what went into microphysics in the course of a storm, (time, 5, z, x)."""
        kept: list[Array] = []
        numbers = itertools.count(1)

        def observe(cells: Cells) -> None:
            if next(numbers) % _EACH == 0:
                kept.append(np.stack(cells).astype(np.float32))

        self.storm(Kessler(), kernel, member, observe)
        return np.stack(kept)

    def _physics_time(self) -> tuple[int, float]:
        settings = self.settings
        return physics_time(self.grid, settings.storm_s, settings.physics_steps, settings.courant)

    def _dry(self, kernel: Kernel) -> None:
        settings, case = self.settings, solver.find_case(self.settings.case)
        problem, state = solver.begin(case, self.grid)
        before = solver.totals(problem, state)
        integration = solver.Integration(problem, state, kernel)
        film = Film(self.grid.x_m, self.grid.z_m, attributes=self.attributes())
        duration_s = settings.duration_s or case.duration_s
        film.attributes |= {"case": settings.case, "duration_s": duration_s}
        for time_s in integration.run(duration_s, settings.output_s, settings.courant):
            film.add(time_s, solver.perturbations(problem, state))
        gate = solver.changed(before, solver.totals(problem, state))
        film.attributes |= {"mass_change": gate.mass_change, "energy_change": gate.energy_change}
        with written(self.folder / "dry.h5") as handle:
            film.write(handle)
        if self.session.ranks.is_first:
            log(mass_change=gate.mass_change, energy_change=gate.energy_change)
        self.session.say(
            f"{settings.case}, {duration_s:g} s on {self.grid.nx} x {self.grid.nz} cells with {kernel.name}: "
            f"mass {gate.mass_change:+.1e}, energy {gate.energy_change:+.3e}"
        )
        is_gated = (settings.case, duration_s, settings.courant) == ("thermal", solver.GATE_S, 1.5)
        if is_gated and self.grid.nx >= solver.GATE_NX and self.grid.nx == 2 * self.grid.nz and not gate.is_passed:
            raise RunFailed(
                f"the solver does not pass its gate: mass {gate.mass_change:+.1e} of {solver.MASS_LIMIT:g}, "
                f"energy {gate.energy_change:+.2e} of -{solver.ENERGY_LIMIT:g} to 0",
                hint="compare kernel=numpy with kernel=c",
            )
        if not case.has_jet and abs(gate.mass_change) > solver.MASS_LIMIT:
            raise RunFailed(f"the solver lost mass: {gate.mass_change:+.1e} of it, expected 0 to {solver.MASS_LIMIT:g}")

    def storm(
        self,
        microphysics: Microphysics,
        kernel: Kernel,
        member: int,
        observe: Callable[[Cells], None] = lambda _: None,
    ) -> tuple[Film, MoistSimulation]:
        """Return a storm as it went, and how it ended; one that breaks down says when."""
        settings, grid = self.settings, self.grid
        bubble = bubble_of(member, self.session.seed, grid.length_m)
        simulation = MoistSimulation.of(grid, bubble, microphysics, kernel)
        film = Film(grid.x_m, grid.z_m, attributes=self.attributes() | {"microphysics": microphysics.name})
        film.add(0.0, simulation.fields())
        water = [simulation.total_water]
        due_s = settings.output_s
        try:
            for time_s in simulation.run(settings.storm_s, settings.physics_steps, settings.courant, observe):
                if time_s >= due_s - 1e-6 or time_s >= settings.storm_s - 1e-6:
                    film.add(time_s, simulation.fields())
                    water.append(simulation.total_water)
                    due_s += settings.output_s
        except RunFailed as error:
            if isinstance(microphysics, Kessler):
                raise
            film.attributes |= {"broke_down_s": simulation.integration.time_s, "reason": str(error)}
        film.attributes |= {"water": np.array(water), "rain_kg_m2": simulation.ground}
        return film, simulation

    # Sample

    def sample(self) -> None:
        """Choose cells to learn from, half of them active; those that were given are only looked at."""
        if self.session.data is not None:
            samples = CellSamples.read(self.session.data)
            self.session.say(f"{len(samples):,} samples in {self.session.data.name}")
            return
        file = self.file("members.h5")
        with opened(file) as handle:
            if "dt_s" not in handle.attrs or not len(handle):
                raise UsageError(f"{file} holds no storms to learn from: no attribute dt_s, or no member")
            dt_s = float(handle.attrs["dt_s"])
            snapshots = [np.asarray(each, np.float64) for name in handle for each in dataset(handle, name, file)]
        samples, active = surrogate.sample(snapshots, dt_s, Kessler(), self.settings.samples, self.session.seed)
        samples.write(self.folder / "samples.h5", dt_s=dt_s, active=active, variables=list(surrogate.INPUTS))
        self.session.say(f"{len(samples):,} cells of {len(snapshots)} snapshots, {active:,} of them active")

    # Learn

    def train(self) -> None:
        """Fit what stands in for microphysics."""
        with span("data"):
            file = self.session.data or self.file("samples.h5")
            samples = CellSamples.read(file)
            with opened(file) as handle:
                dt_s = float(handle.attrs.get("dt_s", 0.0))
        surrogates, scores = learn(self.session, self.settings, samples, dt_s)
        surrogate.save(self.folder / "surrogate.npz", surrogates, scores)
        self.session.say(f"{self.settings.model}: {surrogates[-1].parameters} parameters")

    def report_scores(self) -> None:
        """Report what was learned, as long as it is in no storm yet."""
        _, scores = surrogate.load(self.file("surrogate.npz"), rules=self.settings.rules)
        self._report(scores, {}, [], [])

    # Put back

    def hybrid(self) -> None:
        """Simulate the storm with each surrogate, and without any microphysics."""
        surrogates, _ = surrogate.load(self.file("surrogate.npz"), rules=self.settings.rules)
        kernel = self.kernel()
        with written(self.folder / "hybrid.h5") as handle:
            every: list[Microphysics] = [NoMicrophysics(), *surrogates]
            for each in every:
                began = time.perf_counter()
                film, simulation = self.storm(each, kernel, 0)
                film.attributes["elapsed_s"] = time.perf_counter() - began
                speeds = compare.speeds((Kessler(), each), simulation)
                film.attributes |= {f"{name}_s": value for name, value in speeds.items()} | {"calls": simulation.calls}
                film.write(handle.create_group(each.name))
                self.session.say(compare.describe(film))

    # Compare

    def compare(self) -> None:
        """Hold each simulation against that with Kessler's microphysics, draw them, and report."""
        _, scores = surrogate.load(self.file("surrogate.npz"), rules=self.settings.rules)
        storm, hybrid, dry = (self.file(name) for name in ("storm.h5", "hybrid.h5", "dry.h5"))
        with opened(storm) as handle:
            truth = Film.read(handle, MOIST, storm)
        with opened(hybrid) as handle:
            films = {name: Film.read(handle[name], MOIST, hybrid) for name in handle}
        with opened(dry) as handle:
            dry_film = Film.read(handle, DRY, dry)
        errors = {name: compare.Errors.of(truth, film) for name, film in films.items()}
        drawn: list[str] = []
        if self.session.ranks.is_first:
            with span("plots"):
                drawn = figures.draw(self.session.folder, dry_film, truth, films, errors)
        notes = [*compare.notes(films), *(() if drawn else ("No figures, because matplotlib is not installed.",))]
        notes.append(
            f"Dry {dry_film.attributes.get('case', 'case')}: mass {dry_film.attributes['mass_change']:+.1e}, "
            f"energy {dry_film.attributes['energy_change']:+.3e}."
        )
        values = {name: {**errors[name].values, **compare.costs(films[name])} for name in films}
        self._report(scores, values, notes, drawn)

    def _report(
        self,
        scores: Mapping[str, Mapping[str, float]],
        storms: Mapping[str, Mapping[str, float]],
        notes: list[str],
        drawn: list[str],
    ) -> None:
        """Print and keep one table: trivial, linear, network; offline, and in the storm where there is one."""
        is_real = self.session.data is not None
        rows = []
        for name, offline in scores.items():
            kind = {"identity": "trivial", "linear": "classical"}.get(name, "model")
            online = storms.get("none" if name == "identity" else name, {})
            rows.append(Score(kind, _WORDS.get(name, name), {**offline, **online}))  # type: ignore[arg-type]
        lost = [each for each in surrogate.OUTPUTS if scores[self.settings.model][f"skill_{each}"] < 0]
        if scores["linear"]["mse"] < scores[self.settings.model]["mse"]:
            notes = [*notes, "Ridge regression is better than the network: train it longer, or on more storms."]
        if lost:
            notes = [*notes, f"No change is better than the network for {', '.join(lost)}."]
        if not is_real:
            notes = [*notes, "These are not the published samples: no published figure applies."]
        given = f"samples of {self.session.data.name}" if self.session.data is not None else ""
        storm = f"storms of {self.settings.storm_s:g} s on {self.grid.nx} x {self.grid.nz} cells"
        self.session.report(
            Results(
                benchmark=_TITLE,
                data=given or storm,
                metric=metric(is_real),
                scores=rows,
                seed=self.session.seed,
                settings=dataclasses.asdict(self.settings),
                published=_PUBLISHED if is_real else (),
                notes=notes,
                figures=drawn,
            )
        )
