"""A moist atmosphere: the solver carries vapour, cloud and rain along, and any microphysics turns one into another.

Kept simple on purpose. Water is carried by the air and gives it its latent heat and its weight; it is no part of the
air's own density and pressure, which stay those of dry air. There is no turbulence, radiation, ice or surface.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fairmile.base.errors import RunFailed
from fairmile.benchmarks.suite.miniweather import kessler, solver
from fairmile.benchmarks.suite.miniweather.kessler import Cells
from fairmile.benchmarks.suite.miniweather.solver import Bubble, Case, Grid, Integration, Kernel, Problem, split_time

Array = np.ndarray[Any, Any]
VAPOUR, CLOUD, RAIN = range(3)
_GROUND_K, _LAPSE_K_M, _MOST_VAPOUR = 300.0, 87.0 / 12_000, 0.014
_MOST_CELLS = 100.0  # that wind may cross while it carries water once: more is no storm any more


class Microphysics(Protocol):
    """Turns cells into what they are a time step later."""

    @property
    def name(self) -> str: ...

    def __call__(self, cells: Cells, dt_s: float) -> Cells: ...


@dataclass(frozen=True)
class NoMicrophysics:
    """Leaves everything as it is: what a simulation without any gets wrong."""

    name: str = "none"

    def __call__(self, cells: Cells, dt_s: float) -> Cells:
        return cells


def sounding(height_m: Array) -> tuple[Array, Array]:
    """Return a summer's atmosphere: 300 K at the ground, 213 K in 12 km."""
    temperature = _GROUND_K - _LAPSE_K_M * height_m
    pressure_pa = solver.P0 * (temperature / _GROUND_K) ** (solver.GRAVITY / (solver.RD * _LAPSE_K_M))
    theta = temperature * (solver.P0 / pressure_pa) ** (solver.RD / solver.CP)
    return pressure_pa / (solver.RD * temperature), theta


def humidity(height_m: Array) -> Array:
    """Return the relative humidity of that atmosphere."""
    relative: Array = 1 - 0.75 * (np.minimum(height_m, 12_000) / 12_000) ** 1.25
    return relative


def bubble_of(member: int, seed: int, length_m: float) -> Bubble:
    """Return the warm bubble that a simulation begins with: the same for member 0, drawn for all others."""
    if member == 0:
        return Bubble(3.0, length_m / 2, 2000.0)
    draw = np.random.default_rng([seed, member])
    size, x_m, z_m = draw.uniform(1.5, 4.5), draw.uniform(0.3, 0.7) * length_m, draw.uniform(1500, 2500)
    return Bubble(size, x_m, z_m, draw.uniform(1500, 3500), draw.uniform(1200, 1500))


@dataclass
class MoistSimulation:
    """A warm moist bubble on its way."""

    integration: Integration
    water: Array  # (vapour, cloud, rain; z; x), kg/m³
    microphysics: Microphysics
    ground: Array  # rain that fell, kg/m² for each x
    physics_s: float = 0.0  # time taken by microphysics
    calls: int = 0
    _x_first: bool = field(default=True)

    @classmethod
    def of(cls, grid: Grid, bubble: Bubble, microphysics: Microphysics, kernel: Kernel) -> MoistSimulation:
        """Return a simulation at its beginning: the bubble is as humid, relatively, as the air around it."""
        problem, state = solver.begin(Case(0, (bubble,), profile=sounding), grid)
        dry, temperature = dry_and_temperature(problem, state)
        full = kessler.saturation(temperature, solver.RD * dry * temperature)
        water = np.zeros((3, grid.nz, grid.nx))
        water[VAPOUR] = np.minimum(humidity(grid.z_m)[:, None] * full, _MOST_VAPOUR) * dry
        return cls(Integration(problem, state, kernel), water, microphysics, np.zeros(grid.nx))

    @property
    def problem(self) -> Problem:
        return self.integration.problem

    @property
    def cells(self) -> Cells:
        """What microphysics sees."""
        dry, temperature = dry_and_temperature(self.problem, self.integration.state)
        return Cells(temperature, dry, *self.water)

    @property
    def total_water(self) -> float:
        """All water in the air and on the ground, kg per metre of depth."""
        grid = self.problem.grid
        return float(self.water.sum()) * grid.dx_m * grid.dz_m + float(self.ground.sum()) * grid.dx_m

    def run(
        self, duration_s: float, steps: int, courant: float, observe: Callable[[Cells], None] = lambda _: None
    ) -> Iterator[float]:
        """Advance by a duration, with microphysics each `steps` steps of the solver, and yield the time after each.

        `observe` is given the cells that go into microphysics.
        """
        calls, dt_s = physics_time(self.problem.grid, duration_s, steps, courant)
        for _ in range(calls):
            self._move(steps, dt_s / steps)
            cells = self.cells
            observe(cells)
            self._change(cells, dt_s)
            yield self.integration.time_s

    def fields(self) -> dict[str, Array]:
        """Return what is written of it, each (z, x)."""
        dry = solver.perturbations(self.problem, self.integration.state)
        return {**dry, **{f"rho_{name}": values for name, values in zip(("v", "c", "p"), self.water, strict=True)}}

    def _move(self, steps: int, dt_s: float) -> None:
        """Let the air move, and carry the water with the mean of its flow before and after."""
        state, back = self.integration.state, self.problem.background
        before = state.copy()
        self.integration.advance(steps, dt_s)
        mean = (before[[solver.U, solver.W]] + state[[solver.U, solver.W]]) / 2
        density = before[solver.DENSITY] + back.density[:, None]
        self.water = carried(self.water, density, mean, self.problem.grid, steps * dt_s, x_first=self._x_first)
        self._x_first = not self._x_first

    def _change(self, cells: Cells, dt_s: float) -> None:
        began = time.perf_counter()
        after = self.microphysics(cells, dt_s)
        self.physics_s += time.perf_counter() - began
        self.calls += 1
        self._check(after)
        state, back, grid = self.integration.state, self.problem.background, self.problem.grid
        whole = state[solver.THETA] + back.density_theta[:, None]
        state[solver.THETA] += whole * (after.temperature / cells.temperature - 1)
        rain, fallen = kessler.fall(cells.dry, after.rain, grid.dz_m, dt_s)
        self.ground += fallen
        self.water = np.stack([after.vapour, after.cloud, rain])
        state[solver.W] -= dt_s * solver.GRAVITY * (self.water[CLOUD] + self.water[RAIN])

    def _check(self, cells: Cells) -> None:
        for name, values in zip(Cells._fields, cells, strict=True):
            if not np.isfinite(values).all():
                raise RunFailed(
                    f"the moist simulation broke down by {self.integration.time_s:.4g} s: {name} is not finite",
                    hint=f"its microphysics is {self.microphysics.name}: train it longer, or use a smaller `courant`",
                )


def physics_time(grid: Grid, duration_s: float, steps: int, courant: float) -> tuple[int, float]:
    """Return how often microphysics is called in a duration, and for how long each time."""
    return split_time(duration_s, steps * grid.step_s(courant))


def dry_and_temperature(problem: Problem, state: Array) -> tuple[Array, Array]:
    """Return density and temperature of the air."""
    density = state[solver.DENSITY] + problem.background.density[:, None]
    density_theta = state[solver.THETA] + problem.background.density_theta[:, None]
    return density, solver.pressure(density_theta) / (solver.RD * density)


def carried(water: Array, density: Array, flow: Array, grid: Grid, dt_s: float, *, x_first: bool) -> Array:
    """Return densities of water after the flow of air (density times u and w; z; x) carried them for a time.

    Limited upwind of second order, one direction after the other, in as many steps as no wind crosses half a cell in
    one: what is nowhere negative stays so, nothing is lost, and what is evenly mixed stays evenly mixed.
    """
    across = {2: (_faces(flow[0], 1, wall=False), grid.dx_m), 1: (_faces(flow[1], 0, wall=True), grid.dz_m)}
    cells = max(
        float((np.abs(through) / _face_mean(density, axis - 1)).max()) * dt_s / size_m
        for axis, (through, size_m) in across.items()
    )
    if not cells < _MOST_CELLS:
        raise RunFailed(
            f"the moist simulation broke down: wind crosses {cells:.3g} cells between two steps of microphysics",
            hint="take fewer `physics_steps`, or a smaller `courant`",
        )
    steps = max(int(np.ceil(2 * cells)), 1)
    for _ in range(steps):
        for axis in (2, 1) if x_first else (1, 2):
            through, size_m = across[axis]
            ratio = dt_s / steps / size_m
            mixing = water / density
            carried = through * _upwind(mixing, through, axis, ratio / _face_mean(density, axis - 1))
            water = water - ratio * np.diff(carried, axis=axis)
            density = density - ratio * np.diff(through, axis=axis - 1)
    return water


def _wide(values: Array, axis: int, *, wall: bool, width: int = 2) -> Array:
    """Return values with rows added at both ends: of the other end, or where there is a wall those beside it."""
    pad = [(width, width) if at == axis else (0, 0) for at in range(values.ndim)]
    return np.pad(values, pad, mode="edge" if wall else "wrap")


def _part(values: Array, axis: int, first: int, end: int) -> Array:
    """Return a stretch of an axis."""
    return values[(slice(None),) * axis + (slice(first, end),)]


def _faces(values: Array, axis: int, *, wall: bool) -> Array:
    """Return values at the faces between cells as the solver finds them; nothing goes through a wall."""
    wide = _wide(values, axis, wall=wall)
    n = values.shape[axis] + 1
    a, b, c, d = (_part(wide, axis, i, i + n) for i in range(4))
    values_at_faces: Array = (7 * (b + c) - (a + d)) / 12
    if wall:
        values_at_faces[0] = values_at_faces[-1] = 0
    return values_at_faces


def _face_mean(values: Array, axis: int) -> Array:
    wide = _wide(values, axis, wall=axis == 0, width=1)
    n = values.shape[axis] + 1
    means: Array = (_part(wide, axis, 0, n) + _part(wide, axis, 1, n + 1)) / 2
    return means


def _upwind(values: Array, through: Array, axis: int, ratio: Array) -> Array:
    """Return the values at faces that come with the wind, from slopes limited as van Leer does."""
    wide = _wide(values, axis, wall=axis == 1)
    rises = np.diff(wide, axis=axis)
    n = values.shape[axis] + 1
    left, right = _part(rises, axis, 0, n + 1), _part(rises, axis, 1, n + 2)
    product = left * right
    both = left + right
    slope = np.divide(2 * product, both, out=np.zeros_like(both), where=(product > 0) & (both != 0))
    inner = _part(wide, axis, 1, n + 2)
    crossed = np.abs(through) * ratio
    from_left = _part(inner, axis, 0, n) + (1 - crossed) / 2 * _part(slope, axis, 0, n)
    from_right = _part(inner, axis, 1, n + 1) - (1 - crossed) / 2 * _part(slope, axis, 1, n + 1)
    upwind: Array = np.where(through > 0, from_left, from_right)
    return upwind
