"""Measure collectives on this machine and set the model beside what was measured."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairmile.base.commands import Here, Runner
from fairmile.base.errors import RunFailed, SystemFailure, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.strict_json import load_json
from fairmile.costs.collectives.fit import CollectiveFit, fit_points
from fairmile.costs.collectives.formulas import bus_factor
from fairmile.costs.collectives.links import Link, Topology
from fairmile.costs.collectives.program import chosen_collectives, chosen_sizes
from fairmile.costs.collectives.ranks import BACKENDS
from fairmile.costs.collectives.results import MeasuredDict, MeasuredPointDict, MeasurementPlan
from fairmile.costs.collectives.tables import FORMAT, MeasuredPoint, parse_points
from fairmile.costs.collectives.times import CollectiveModel, Fitted
from fairmile.costs.collectives.wiring import Wiring, wiring_of

if TYPE_CHECKING:
    from fairmile.systems.model import Partition

_LONGEST_S = 1800.0
_LINES = 12


@dataclass(frozen=True)
class ModelComparison:
    """A measured time beside the model's; `algorithm` is the one whose formula explains the collective best."""

    collective: str
    ranks: int
    size_bytes: float
    measured_s: float
    model_s: float
    algorithm: str
    algorithm_s: float

    @property
    def error(self) -> float:
        """The model's time against the measured one, less one."""
        return self.model_s / self.measured_s - 1

    @property
    def bus_bytes_per_s(self) -> float:
        return self.size_bytes / self.measured_s * bus_factor(self.collective, self.ranks)


@dataclass(frozen=True, repr=False)
class MeasuredBackend(Result):
    """What was measured with one backend, with all numbers of ranks; `left_out` says what could not be, and why."""

    backend: str
    library: str
    points: tuple[MeasuredPoint, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()  # the points with their quartiles and repeats

    def fits(self) -> dict[str, CollectiveFit]:
        """Return the model of each collective."""
        return fit_points(self.points)

    def compared(self, fits: Mapping[str, CollectiveFit] | None = None) -> tuple[ModelComparison, ...]:
        """Return each point beside the model."""
        models = self.fits() if fits is None else fits
        return tuple(_compared(point, models[point.collective]) for point in self.points)

    def model(self) -> CollectiveModel:
        """Return what predicts collectives on this machine, on one node and between several as far as measured."""
        here = fit_points([point for point in self.points if point.nodes == 1])
        between = fit_points([point for point in self.points if point.nodes > 1])
        notes = (f"measured with {self.library}",)
        return CollectiveModel.from_fit(here, topology_of(here or between), between=between, notes=notes)

    def summary(self) -> str:
        ranks = ", ".join(str(each) for each in sorted({point.ranks for point in self.points}))
        return f"{len(self.points)} points with {self.library or self.backend}, {ranks} ranks"

    def to_dict(self) -> MeasuredDict:
        """Return it as JSON can say it; `read_points` reads it back."""
        models = self.fits()
        compared = [
            {"model_s": each.model_s, "error": each.error, "algorithm": each.algorithm, "algorithm_s": each.algorithm_s}
            for each in self.compared(models)
        ]
        rows = self.rows or tuple(point.document() for point in self.points)
        points = [{**row, **more} for row, more in zip(rows, compared, strict=True)]
        return {
            "format": FORMAT,
            "backend": self.backend,
            "library": self.library,
            "points": cast(list[MeasuredPointDict], points),
            "left_out": dict(self.left_out),
            "fits": {name: fit.document() for name, fit in models.items()},
        }


def plan_collectives(
    backend: str,
    ranks: Sequence[int],
    *,
    sizes: Sequence[str | int] = (),
    collectives: Sequence[str] = (),
    seconds: float = 0.3,
    python: str = sys.executable,
) -> MeasurementPlan:
    """Return the command of each number of ranks, without the file that it writes; bad arguments raise UsageError."""
    if backend not in BACKENDS:
        raise UsageError(f"no backend named {backend!r}", hint=f"known: {', '.join(BACKENDS)}")
    if not ranks or min(ranks) < 2:
        raise UsageError(f"the numbers of ranks are {list(ranks)}, expected 2 or more", hint="write such as 2,4")
    if not seconds > 0:
        raise UsageError(f"the time per size is {seconds!r} s, expected more than 0")
    words = [python, "-P", "-m", "fairmile.costs.collectives", "--backend", backend]
    words += ["--sizes", ",".join(str(size) for size in chosen_sizes(sizes))]
    words += ["--collectives", ",".join(chosen_collectives(collectives)), "--seconds", f"{seconds:g}"]
    return MeasurementPlan(tuple(_launched(backend, count, words)) for count in sorted(set(ranks)))


def measure_collectives(
    backend: str,
    ranks: Sequence[int],
    sizes: Sequence[str | int] = (),
    collectives: Sequence[str] = (),
    *,
    seconds: float = 0.3,
    python: str = sys.executable,
    runner: Runner | None = None,
    timeout_s: float = _LONGEST_S,
    on_ranks: Callable[[int], None] = lambda _: None,
) -> MeasuredBackend:
    """Start so many ranks here, one number after the other, and return what they measured."""
    commands = plan_collectives(backend, ranks, sizes=sizes, collectives=collectives, seconds=seconds, python=python)
    if backend == "mpi" and shutil.which("mpirun") is None:
        raise SystemFailure("mpirun was not found", hint="load or install an MPI library, or measure with gloo")
    measured = []
    with tempfile.TemporaryDirectory(prefix="fairmile-collectives-") as folder:
        for count, command in zip(sorted(set(ranks)), commands, strict=True):
            on_ranks(count)
            file = Path(folder) / f"{count}.json"
            _run(runner or Here(), [*command, "--out", str(file)], timeout_s)
            measured.append(read_measured(file))
    return merged(measured)


def read_measured(path: str | Path) -> MeasuredBackend:
    """Read the file that the program, or `write_measured`, wrote."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SystemFailure(f"{path} cannot be read: {error.strerror}") from error
    document = load_json(text, file=str(path))
    points = parse_points(text, file=str(path)) if document.get("points") else ()
    left_out = document.get("left_out", [])
    if isinstance(left_out, list):
        left_out = {each["collective"]: each["reason"] for each in left_out}
    return MeasuredBackend(
        str(document.get("backend", "")),
        str(document.get("library", "")),
        points,
        left_out,
        tuple(document.get("points", ())),
    )


def model_of_partition(path: str | Path, partition: Partition) -> CollectiveModel:
    """Return the model of a partition where the collectives of a file were measured.

    The file is one that `write_measured` wrote, or the output of nccl-tests. What it lacks follows from the system
    file, as much slower or faster as the all reduce that was measured.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not a text file") from error
    points = parse_points(text, file=str(file))
    inside = fit_points([point for point in points if point.nodes == 1 and point.ranks > 1])
    between = fit_points([point for point in points if point.nodes > 1])
    notes = tuple(
        f"measured {where}: {', '.join(sorted(fits)).replace('_', ' ')}, up to "
        f"{max(rank for fit in fits.values() for rank in fit.groups):,} ranks ({file.name})"
        for where, fits in (("inside a node", inside), ("between nodes", between))
        if fits
    )
    wiring = wiring_of(partition)
    return CollectiveModel.from_fit(
        _with_others(inside, wiring), wiring, between=_with_others(between, wiring), notes=notes
    )


@dataclass(frozen=True)
class _Scaled:
    """A collective that was not measured: the time of its formula, times how far a measured one is from its own."""

    collective: str
    measured: CollectiveFit
    nominal: CollectiveModel

    def time_s(self, size_bytes: float, ranks: int) -> float:
        nodes = -(-ranks // self.nominal.topology.ranks_per_node)
        mine, theirs = (
            self.nominal.time_s(name, size_bytes, ranks, nodes=nodes)
            for name in (self.collective, self.measured.collective)
        )
        return mine * self.measured.time_s(size_bytes, ranks) / theirs


def _with_others(fits: Mapping[str, CollectiveFit], wiring: Wiring) -> dict[str, Fitted]:
    """Return the fits, and the other collectives of training scaled as the measured all reduce."""
    known = fits.get("all_reduce")
    if known is None:
        return dict(fits)
    nominal = CollectiveModel(wiring)
    others = ("all_gather", "reduce_scatter", "broadcast")
    return {**{name: _Scaled(name, known, nominal) for name in others}, **fits}


def write_measured(path: str | Path, measured: MeasuredBackend) -> None:
    """Write what was measured, with the model beside it."""
    write_atomic(path, json.dumps(measured.to_dict(), indent=1) + "\n")


def merged(parts: Sequence[MeasuredBackend]) -> MeasuredBackend:
    """Return several measurements of one backend as one."""
    if not parts or not any(part.points for part in parts):
        reasons = {reason for part in parts for reason in part.left_out.values()}
        raise RunFailed("no collective could be measured" + (f": {'; '.join(sorted(reasons))}" if reasons else ""))
    left_out: dict[str, str] = {}
    for part in parts:
        left_out.update(part.left_out)
    return MeasuredBackend(
        parts[0].backend,
        parts[0].library,
        tuple(point for part in parts for point in part.points),
        left_out,
        tuple(row for part in parts for row in part.rows),
    )


def topology_of(fits: Mapping[str, CollectiveFit]) -> Topology:
    """Return one node whose link explains the messages between two ranks best, or else any collective."""
    for name in ("point_to_point", "all_reduce", *fits):
        fit = fits.get(name)
        if fit is not None and fit.algorithm is not None:
            algorithm = fit.algorithm
            link = Link(algorithm.link.alpha_s + algorithm.call_s, algorithm.link.beta_s_per_byte)
            return Topology(max(fit.groups), link, link, "shared memory")
    raise UsageError("the measured collectives do not determine the link between two ranks")


def _compared(point: MeasuredPoint, fit: CollectiveFit) -> ModelComparison:
    by_formula = fit.algorithm
    return ModelComparison(
        point.collective,
        point.ranks,
        point.size_bytes,
        point.time_s,
        fit.time_s(point.size_bytes, point.ranks),
        by_formula.algorithm if by_formula else "",
        by_formula.time_s(point.collective, point.size_bytes, point.ranks) if by_formula else 0.0,
    )


def _launched(backend: str, count: int, words: Sequence[str]) -> Iterator[str]:
    if backend == "mpi":
        yield from ("mpirun", "-np", str(count))
        if count > (os.cpu_count() or 1):
            yield "--oversubscribe"
        yield from words
    else:
        yield from (*words, "--ranks", str(count))


def _run(runner: Runner, command: Sequence[str], timeout_s: float) -> None:
    result = runner.run(command, timeout_s=timeout_s, check=False)
    if result.exit_code == 0:
        return
    lines = [line for line in (result.stderr or result.stdout).splitlines() if line.strip()]
    hint = "\n".join(lines[-_LINES:]) or None
    if "as root" in result.stderr and "mpirun" in result.stderr:
        hint = "run it as another user, or set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    raise RunFailed(reason or f"the ranks failed with exit code {result.exit_code}", hint=hint)
