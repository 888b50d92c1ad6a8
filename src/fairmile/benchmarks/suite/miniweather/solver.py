"""The two-dimensional dry compressible Euler equations as perturbations of a hydrostatic atmosphere, in NumPy.

Finite volumes of fourth order with hyperviscosity, three stages of Runge and Kutta, and directions that take turns.
Arrays of a state are (variable, z, x): density', density·u, density·w, (density·theta)'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from fairmile.base.errors import RunFailed, UsageError
from fairmile.base.words import did_you_mean

Array = np.ndarray[Any, Any]
Profile = Callable[[Array], tuple[Array, Array]]  # height in m → density, potential temperature

GRAVITY, CP, CV, RD, P0 = 9.8, 1004.0, 717.0, 287.0, 1e5
C0, GAMMA = 27.5629410929725921, 1.40027894  # pressure = C0 (density · theta) ** GAMMA
DENSITY, U, W, THETA = range(4)
FIELDS = ("density", "density times u", "density times w", "density times theta")
BETA = 0.05  # strength of the hyperviscosity
WAVE_SPEED_M_S = 450.0
_THETA0_K = 300.0
_JET_M_S, _JET_THETA_K = 50.0, 298.0
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(3)
_CHECK_STEPS = 20  # between two looks at whether the state is still finite


@dataclass(frozen=True)
class Grid:
    """Equal cells, periodic in x, between two solid walls in z."""

    nx: int
    nz: int
    length_m: float = 20_000.0
    height_m: float = 10_000.0

    def __post_init__(self) -> None:
        if self.nx < 4 or self.nz < 4:
            raise UsageError(f"a grid of {self.nx} x {self.nz} cells is too small", hint="4 x 4 is the smallest")

    @property
    def dx_m(self) -> float:
        return self.length_m / self.nx

    @property
    def dz_m(self) -> float:
        return self.height_m / self.nz

    @cached_property
    def x_m(self) -> Array:
        return (np.arange(self.nx) + 0.5) * self.dx_m

    @cached_property
    def z_m(self) -> Array:
        return (np.arange(self.nz) + 0.5) * self.dz_m

    def step_s(self, courant: float) -> float:
        """Return the time step at which a sound wave with wind crosses so much of a cell."""
        return courant * min(self.dx_m, self.dz_m) / WAVE_SPEED_M_S


@dataclass(frozen=True)
class Background:
    """The atmosphere at rest: means of cells, and values at the faces between them."""

    density: Array  # (z,)
    density_theta: Array
    face_density: Array  # (z + 1,)
    face_density_theta: Array
    beyond: Array = field(default_factory=lambda: np.ones(4))  # density in two rows below, two above; 1: as inside

    @cached_property
    def face_pressure(self) -> Array:
        return pressure(self.face_density_theta)

    @classmethod
    def of(cls, grid: Grid, profile: Profile) -> Background:
        """Return the background that a profile gives on a grid."""
        heights = grid.z_m[:, None] + _POINTS / 2 * grid.dz_m
        density, theta = profile(heights)
        faces, face_theta = profile(np.arange(grid.nz + 1) * grid.dz_m)
        halves = _WEIGHTS / 2
        outside = np.array([-1.5, -0.5, grid.nz + 0.5, grid.nz + 1.5])[:, None] + _POINTS / 2
        means = density @ halves
        beyond = profile(outside * grid.dz_m)[0] @ halves / means[[0, 0, -1, -1]]
        return cls(means, (density * theta) @ halves, faces, faces * face_theta, beyond)


@dataclass(frozen=True)
class Problem:
    """What is solved: grid, background, and what acts on the air beside gravity."""

    grid: Grid
    background: Background
    forcing: Array | None = None  # acceleration of w, (z, x)
    jet: Array | None = None  # rows at which air is blown in from the left, (z,) of bool


class Kernel(Protocol):
    """Advances a state in place by some steps; the first goes through x before z unless `z_first`."""

    name: str

    def __call__(self, problem: Problem, state: Array, dt_s: float, steps: int, *, z_first: bool = False) -> None: ...


def pressure(density_theta: Array) -> Array:
    """Return the pressure of air, in Pa."""
    pressure_pa: Array = C0 * density_theta**GAMMA
    return pressure_pa


class NumpyKernel:
    """The equations in NumPy."""

    name = "numpy"

    def __call__(self, problem: Problem, state: Array, dt_s: float, steps: int, *, z_first: bool = False) -> None:
        along_x, along_z = partial(_change_x, problem), partial(_change_z, problem)
        for _ in range(steps):
            for change in (along_z, along_x) if z_first else (along_x, along_z):
                stage = state
                for part in (3, 2, 1):
                    stage = state + dt_s / part * change(stage, dt_s / part)
                state[:] = stage
            z_first = not z_first


def _change_x(problem: Problem, state: Array, dt_s: float) -> Array:
    """Return the change per second by what flows along x."""
    back, dx = problem.background, problem.grid.dx_m
    wide = np.concatenate([state[:, :, -2:], state, state[:, :, :2]], axis=2)
    if problem.jet is not None:
        rows = problem.jet
        blown = wide[DENSITY, rows, :2] + back.density[rows, None]
        wide[U, rows, :2] = blown * _JET_M_S
        wide[THETA, rows, :2] = blown * _JET_THETA_K - back.density_theta[rows, None]
    n = problem.grid.nx + 1
    a, b, c, d = (wide[:, :, i : i + n] for i in range(4))
    value = (7 * (b + c) - (a + d)) / 12
    viscous = (BETA * dx / (16 * dt_s)) * (d - a + 3 * (b - c))
    density = value[DENSITY] + back.density[:, None]
    density_theta = value[THETA] + back.density_theta[:, None]
    u = value[U] / density
    flux = viscous
    flux[DENSITY] += value[U]
    flux[U] += value[U] * u + pressure(density_theta)
    flux[W] += value[W] * u
    flux[THETA] += density_theta * u
    change: Array = (flux[:, :, :-1] - flux[:, :, 1:]) / dx
    return change


def _change_z(problem: Problem, state: Array, dt_s: float) -> Array:
    """Return the change per second by what flows along z, and by gravity."""
    back, dz, nz = problem.background, problem.grid.dz_m, problem.grid.nz
    wide = np.concatenate([state[:, :1], state[:, :1], state, state[:, -1:], state[:, -1:]], axis=1)
    wide[W, :2] = wide[W, -2:] = 0
    wide[U, :2] *= back.beyond[:2, None]  # the wind goes on beyond a wall, in thicker or thinner air
    wide[U, -2:] *= back.beyond[2:, None]
    n = nz + 1
    a, b, c, d = (wide[:, i : i + n] for i in range(4))
    value = (7 * (b + c) - (a + d)) / 12
    value[W, 0] = value[W, -1] = 0
    viscous = (BETA * dz / (16 * dt_s)) * (d - a + 3 * (b - c))
    viscous[DENSITY, 0] = viscous[DENSITY, -1] = 0  # no mass goes through a wall
    density = value[DENSITY] + back.face_density[:, None]
    density_theta = value[THETA] + back.face_density_theta[:, None]
    w = value[W] / density
    flux = viscous
    flux[DENSITY] += value[W]
    flux[U] += value[U] * w
    flux[W] += value[W] * w + pressure(density_theta) - back.face_pressure[:, None]
    flux[THETA] += density_theta * w
    change: Array = (flux[:, :-1] - flux[:, 1:]) / dz
    change[W] -= state[DENSITY] * GRAVITY
    if problem.forcing is not None:
        change[W] += problem.forcing * back.density[:, None]
    return change


# Cases


def neutral(height_m: Array) -> tuple[Array, Array]:
    """Return an atmosphere of constant potential temperature."""
    exner = 1 - GRAVITY * height_m / (CP * _THETA0_K)
    return _of_exner(exner, np.full_like(height_m, _THETA0_K))


def stable(height_m: Array, frequency_hz: float = 0.02) -> tuple[Array, Array]:
    """Return an atmosphere in which air that is moved up and down swings with one frequency."""
    theta = _THETA0_K * np.exp(frequency_hz**2 / GRAVITY * height_m)
    exner = 1 - GRAVITY**2 / (CP * frequency_hz**2) * (theta - _THETA0_K) / (theta * _THETA0_K)
    return _of_exner(exner, theta)


def _of_exner(exner: Array, theta: Array) -> tuple[Array, Array]:
    density_theta = (P0 * exner ** (CP / RD) / C0) ** (1 / GAMMA)
    return density_theta / theta, theta


@dataclass(frozen=True)
class Bubble:
    """A squared cosine in an ellipse."""

    size: float
    x_m: float
    z_m: float
    x_radius_m: float = 2000.0
    z_radius_m: float = 2000.0

    def __call__(self, x_m: Array, z_m: Array) -> Array:
        """Return its value at places."""
        far = np.hypot((x_m - self.x_m) / self.x_radius_m, (z_m - self.z_m) / self.z_radius_m)
        values: Array = np.where(far <= 1, self.size * np.cos(np.minimum(far, 1) * np.pi / 2) ** 2, 0.0)
        return values


@dataclass(frozen=True)
class Case:
    """A start for the solver, and how long it is usually followed."""

    duration_s: float
    bubbles: tuple[Bubble, ...] = ()  # of potential temperature, in K
    profile: Profile = neutral
    wind_m_s: float = 0.0
    lift: Bubble | None = None  # acceleration of w
    has_jet: bool = False


CASES: Mapping[str, Case] = {
    "thermal": Case(1000, (Bubble(3, 10_000, 2000),)),
    "collision": Case(700, (Bubble(20, 10_000, 2000), Bubble(-20, 10_000, 8000))),
    "density_current": Case(600, (Bubble(-20, 10_000, 5000, 4000, 2000),)),
    "gravity_waves": Case(1500, profile=stable, wind_m_s=15, lift=Bubble(0.01, 2500, 1000, 500, 500)),
    "injection": Case(1200, has_jet=True),
}


def find_case(name: str) -> Case:
    """Return the case of a name."""
    if name not in CASES:
        raise UsageError(f"no case named {name!r}", hint=did_you_mean(name, CASES) or f"known: {', '.join(CASES)}")
    return CASES[name]


def begin(case: Case, grid: Grid) -> tuple[Problem, Array]:
    """Return what is to be solved and the state it begins with: means over cells by three points each way."""
    jet = np.abs(grid.z_m - 0.75 * grid.height_m) <= grid.height_m / 16 if case.has_jet else None
    forcing = case.lift(grid.x_m[None, :], grid.z_m[:, None]) if case.lift is not None else None
    problem = Problem(grid, Background.of(grid, case.profile), forcing, jet)
    state = np.zeros((4, grid.nz, grid.nx))
    for x_point, x_weight in zip(_POINTS, _WEIGHTS / 2, strict=True):
        for z_point, z_weight in zip(_POINTS, _WEIGHTS / 2, strict=True):
            x, z = grid.x_m + x_point / 2 * grid.dx_m, grid.z_m + z_point / 2 * grid.dz_m
            density = case.profile(z)[0][:, None]
            warmer = sum((each(x[None, :], z[:, None]) for each in case.bubbles), np.zeros((grid.nz, grid.nx)))
            state[U] += x_weight * z_weight * density * case.wind_m_s
            state[THETA] += x_weight * z_weight * density * warmer
    return problem, state


# What comes out


@dataclass(frozen=True)
class Totals:
    """Mass and energy of all air, per metre of depth."""

    mass: float
    energy: float  # as miniWeather sums it: density (u² + w²) + density cv T


def totals(problem: Problem, state: Array) -> Totals:
    """Return mass and energy by the sums of miniWeather's own check."""
    back, area = problem.background, problem.grid.dx_m * problem.grid.dz_m
    density = state[DENSITY] + back.density[:, None]
    density_theta = state[THETA] + back.density_theta[:, None]
    temperature = density_theta / density * (pressure(density_theta) / P0) ** (RD / CP)
    motion = (state[U] ** 2 + state[W] ** 2) / density
    return Totals(float(density.sum() * area), float((motion + density * CV * temperature).sum() * area))


def perturbations(problem: Problem, state: Array) -> dict[str, Array]:
    """Return density, winds and potential temperature as miniWeather writes them, less the background's."""
    back = problem.background
    density = state[DENSITY] + back.density[:, None]
    theta = (state[THETA] + back.density_theta[:, None]) / density
    rest = (back.density_theta / back.density)[:, None]
    return {"dens": state[DENSITY], "uwnd": state[U] / density, "wwnd": state[W] / density, "theta": theta - rest}


@dataclass
class Integration:
    """A state on its way through time."""

    problem: Problem
    state: Array
    kernel: Kernel = field(default_factory=NumpyKernel)
    time_s: float = 0.0
    steps: int = 0

    def advance(self, steps: int, dt_s: float) -> None:
        """Take some steps; a state that is no longer one of air ends it."""
        left = steps
        while left:
            count = min(left, _CHECK_STEPS)
            with np.errstate(all="ignore"):  # a state that breaks is told of in a sentence below
                self.kernel(self.problem, self.state, dt_s, count, z_first=self.steps % 2 == 1)
            self.steps, self.time_s, left = self.steps + count, self.time_s + count * dt_s, left - count
            self._check(dt_s)

    def run(self, duration_s: float, every_s: float, courant: float) -> Iterator[float]:
        """Advance by a duration, and yield the time at its start and after about each `every_s`."""
        rounds = max(round(duration_s / every_s), 1)
        steps, dt_s = split_time(duration_s / rounds, self.problem.grid.step_s(courant))
        yield self.time_s
        for _ in range(rounds):
            self.advance(steps, dt_s)
            yield self.time_s

    def _check(self, dt_s: float) -> None:
        back = self.problem.background
        lasting = self.state[DENSITY] > -back.density[:, None]
        for name, values, good in (
            *((name, values, np.isfinite(values)) for name, values in zip(FIELDS, self.state, strict=True)),
            ("density", self.state[DENSITY], lasting),
        ):
            if not good.all():
                z, x = np.argwhere(~good)[0]
                what = "no finite number" if not np.isfinite(values[z, x]) else "below zero"
                raise RunFailed(
                    f"the simulation broke down by {self.time_s:.4g} s: {name} is {what} in cell x={x}, z={z}",
                    hint=f"its time step is {dt_s:.3g} s: take a smaller `courant`, 1.5 is usual",
                )


def split_time(duration_s: float, most_s: float) -> tuple[int, float]:
    """Return into how many equal steps, none longer than `most_s`, a duration is cut, and how long each is."""
    if not duration_s > 0 or not most_s > 0:
        raise UsageError(f"a duration of {duration_s} s cannot be cut into steps of {most_s} s")
    steps = max(int(np.ceil(duration_s / most_s * (1 - 1e-12))), 1)
    return steps, duration_s / steps


# The gate


MASS_LIMIT, ENERGY_LIMIT = 1e-13, 4.5e-5
GATE_S, GATE_NX = 400.0, 100


@dataclass(frozen=True)
class Gate:
    """What became of mass and energy, relative to their start."""

    mass_change: float
    energy_change: float

    @property
    def is_passed(self) -> bool:
        """Whether mass is kept to rounding and energy is lost, but little of it."""
        return abs(self.mass_change) < MASS_LIMIT and -ENERGY_LIMIT < self.energy_change < 0


def changed(before: Totals, after: Totals) -> Gate:
    """Return what became of mass and energy."""
    return Gate((after.mass - before.mass) / before.mass, (after.energy - before.energy) / before.energy)
