from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.costs.collectives.fit import CollectiveFit, InterpolatedTimes, fit_collective, fit_points, rank_algorithms
from fairmile.costs.collectives.formulas import bus_factor, cost
from fairmile.costs.collectives.links import Link
from fairmile.costs.collectives.rings import cube_mesh_rings
from fairmile.costs.collectives.tables import MeasuredPoint

SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
FEW = [2**power for power in range(18, 31, 2)]
MANY = [int(2 ** (power / 3)) for power in range(54, 91)]


def points_of(law: Callable[[float, int], float], sizes: Iterable[float], ranks: Iterable[int]) -> list[MeasuredPoint]:
    return [MeasuredPoint("all_reduce", float(size), each, law(size, each)) for each in ranks for size in sizes]


def mean_error(fit: CollectiveFit, points: Iterable[MeasuredPoint]) -> float:
    errors = [abs(fit.time_s(point.size_bytes, point.ranks) / point.time_s - 1) for point in points]
    return sum(errors) / len(errors)


def switched(size: float, ranks: int) -> float:
    """A switch: a floor, a copy of everything, the ring's bytes, and short messages that do not fill the links."""
    ring = size * 2 * (ranks - 1) / ranks
    return 3e-5 + 5e-6 * (ranks - 1) + 1.8e-12 * size + 3.2e-12 * ring + 8e-13 * ring / (1 + size / 1e8)


def direct(size: float, ranks: int) -> float:
    return 2e-5 + 5e-6 * ranks + size * 2 * (ranks - 1) / ranks / (22.5e9 * cube_mesh_rings(ranks))


def test_latency_and_bandwidth_come_back_from_exact_times() -> None:
    link = Link(4e-6, 2e-10)
    points = [
        MeasuredPoint("all_reduce", float(size), ranks, cost("all_reduce", "ring", size, ranks, link))
        for ranks in (2, 4, 8)
        for size in FEW
    ]
    first = rank_algorithms("all_reduce", points)[0]
    assert first.algorithm == "ring"
    assert (first.link.alpha_s, first.link.beta_s_per_byte) == (pytest.approx(4e-6), pytest.approx(2e-10))
    assert first.mean_error < 1e-9


@for_each("algorithm", ["rabenseifner", "recursive_doubling", "binomial"])
@pytest.mark.thorough
def test_the_algorithm_is_found_by_its_times(algorithm: str) -> None:
    link = Link(4e-6, 2e-10)
    points = [
        MeasuredPoint("all_reduce", float(size), ranks, cost("all_reduce", algorithm, size, ranks, link))
        for ranks in (2, 3, 5, 8)
        for size in (16, 1024, 2**16, 2**22)
    ]
    assert fit_collective("all_reduce", points).algorithm.algorithm == algorithm  # type: ignore[union-attr]


def test_between_two_ranks_many_algorithms_are_one() -> None:
    points = points_of(lambda size, ranks: 1e-5 + 1e-9 * size, FEW, [2])
    fit = fit_collective("all_reduce", points)
    assert {fit.algorithm.algorithm, *fit.equals} >= {"ring", "recursive_doubling", "rabenseifner"}  # type: ignore[union-attr]


def test_few_sizes_tell_all_sizes_and_other_ranks() -> None:
    fit = fit_collective("all_reduce", points_of(switched, FEW, (2, 4, 8)))
    assert fit.has_law
    assert mean_error(fit, points_of(switched, MANY, (2, 4, 8))) < 0.005
    assert mean_error(fit, points_of(switched, MANY, (3, 5, 6, 7))) < 0.01


def test_outliers_count_little() -> None:
    points = points_of(switched, FEW, (2, 4, 8))
    spoilt = [
        MeasuredPoint(each.collective, each.size_bytes, each.ranks, each.time_s * (6 if at == 9 else 1))
        for at, each in enumerate(points)
    ]
    fit = fit_collective("all_reduce", spoilt)
    assert mean_error(fit, points_of(switched, MANY, (3, 5, 6, 7))) < 0.03


@pytest.mark.thorough
def test_without_a_law_each_group_keeps_its_own_table() -> None:
    fit = fit_collective("all_reduce", points_of(direct, FEW, (2, 4, 5, 8)))
    assert not fit.has_law
    assert "no formula fits" in fit.notes[0]
    assert mean_error(fit, points_of(direct, FEW, (2, 4, 5, 8))) < 0.01
    assert fit.error_bar(6) > 0.15


@pytest.mark.thorough
def test_two_groups_that_no_law_joins_are_seen_too() -> None:
    fit = fit_collective("all_reduce", points_of(direct, FEW, (2, 8)))
    assert not fit.has_law
    assert mean_error(fit, points_of(direct, FEW, (2, 8))) < 0.01


def test_with_the_rings_that_links_form_there_is_a_law() -> None:
    fit = fit_collective("all_reduce", points_of(direct, FEW, (2, 4, 8)), rings=cube_mesh_rings)
    assert fit.has_law
    assert mean_error(fit, points_of(direct, MANY, (3, 5, 6, 7))) < 0.02


def test_groups_with_as_many_rings_share_what_the_law_does_not_know() -> None:
    def slower(size: float, ranks: int) -> float:
        return direct(size, ranks) * (1.06 if cube_mesh_rings(ranks) == 4 else 1.0)

    fit = fit_collective("all_reduce", points_of(slower, FEW, (2, 4, 8)), rings=cube_mesh_rings)
    assert fit.time_s(1e9, 7) == pytest.approx(slower(1e9, 7), rel=0.02)


def test_an_error_bar_is_wider_for_what_was_not_measured() -> None:
    fit = fit_collective("all_reduce", points_of(switched, FEW, (2, 4, 8)))
    assert fit.error_bar(5) >= fit.error_bar(4)
    assert fit_collective("all_reduce", points_of(switched, FEW, (2, 4))).error_bar(8) >= 0.15


def test_parameters_have_standard_errors_that_noise_widens() -> None:
    exact = fit_collective("all_reduce", points_of(direct, FEW, (8,))).law
    noisy = fit_collective(
        "all_reduce",
        [
            MeasuredPoint(each.collective, each.size_bytes, each.ranks, each.time_s * (1 + 0.05 * (-1) ** at))
            for at, each in enumerate(points_of(direct, FEW, (8,)))
        ],
    ).law
    assert exact.errors[3] < exact.coefficients[3] * 1e-6
    assert noisy.errors[3] > noisy.coefficients[3] * 0.005


def test_a_table_is_straight_between_its_points_and_keeps_its_bandwidth_beyond() -> None:
    table = InterpolatedTimes((100.0, 10_000.0), (1e-6, 1e-4))
    assert table.time_s(1000) == pytest.approx(1e-5)
    assert table.time_s(10) == 1e-6
    assert table.time_s(20_000) == pytest.approx(2e-4)


def test_one_time_and_times_without_bytes_can_be_learnt_from() -> None:
    one = fit_collective("broadcast", [MeasuredPoint("broadcast", 1e6, 4, 1e-3)])
    assert one.time_s(1e6, 4) == pytest.approx(1e-3)
    assert one.time_s(1e6, 1) == 0
    barrier = fit_collective("barrier", [MeasuredPoint("barrier", 0, 2, 1e-5), MeasuredPoint("barrier", 0, 4, 2e-5)])
    assert barrier.time_s(0, 4) == pytest.approx(2e-5, rel=0.01)


def test_each_collective_has_its_own_fit_and_can_be_written_down() -> None:
    points = [
        *points_of(switched, FEW, (2, 4)),
        MeasuredPoint("broadcast", 1e6, 2, 1e-3),
        MeasuredPoint("broadcast", 2e6, 2, 2e-3),
    ]
    fits = fit_points(points)
    assert set(fits) == {"all_reduce", "broadcast"}
    written = fits["all_reduce"].document()
    assert written["groups"][0]["ranks"] == 2
    assert all(math.isfinite(value) for value in written["law"]["standard_errors"].values())


def test_what_cannot_be_learnt_from_is_told() -> None:
    with pytest.raises(UsageError, match="no measurement of all_reduce with more than one rank"):
        fit_collective("all_reduce", [MeasuredPoint("all_reduce", 1, 1, 1.0)])
    with pytest.raises(UsageError, match="invalid measurement"):
        fit_collective("all_reduce", [MeasuredPoint("all_reduce", 1, 2, 0.0)])
    with pytest.raises(UsageError, match="do not form a ring"):
        fit_collective("all_reduce", [MeasuredPoint("all_reduce", 1, 2, 1.0)], rings=lambda ranks: 0.0)


# ---- the public tables


def table_of(gpu: str) -> dict[int, list[MeasuredPoint]]:
    file = SHARED / "perf" / "nccl_allreduce.csv"
    if not file.is_file():
        pytest.skip(f"the public all-reduce tables are not in {SHARED}")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    found: dict[int, list[MeasuredPoint]] = {}
    for row in csv.DictReader(lines):
        if row["gpu"] == gpu:
            ranks = int(row["nranks"])
            point = MeasuredPoint("all_reduce", float(row["size_bytes"]), ranks, float(row["time_ns"]) * 1e-9)
            found.setdefault(ranks, []).append(point)
    return found


def nine(points: list[MeasuredPoint]) -> list[MeasuredPoint]:
    """Nine sizes of 1 MiB to 1 GiB, each about twice the one before."""
    return [points[min(len(points) - 1, 2**power - 1)] for power in range(9)]


def test_a100_behind_a_switch_is_told_from_nine_sizes() -> None:
    table = table_of("a100")
    used = [point for points in table.values() for point in nine(points)]
    fit = fit_collective("all_reduce", used)
    assert fit.has_law
    for points in table.values():
        assert mean_error(fit, [point for point in points if point not in used]) < 0.02


def test_a100_is_told_for_ranks_that_were_never_measured() -> None:
    table = table_of("a100")
    for left_out in sorted(table)[1:-1]:
        used = [point for ranks, points in table.items() if ranks != left_out for point in nine(points)]
        assert mean_error(fit_collective("all_reduce", used), table[left_out]) < 0.04


def test_v100_with_direct_links_is_told_by_its_rings() -> None:
    table = table_of("v100")
    used = [point for points in table.values() for point in nine(points)]
    fit = fit_collective("all_reduce", used, rings=cube_mesh_rings)
    for points in table.values():
        assert mean_error(fit, [point for point in points if point not in used]) < 0.02
    # What the facts state of the same machine for ranks that the table lacks: bus bandwidth in GB/s.
    for ranks, stated in {3: 45, 5: 37, 6: 46, 7: 87}.items():
        bus = 1e9 * bus_factor("all_reduce", ranks) / fit.time_s(1e9, ranks) / 1e9
        assert bus == pytest.approx(stated, rel=0.06)


@pytest.mark.thorough
def test_v100_is_told_for_ranks_that_were_left_out() -> None:
    table = table_of("v100")
    used = [point for ranks in (2, 8) for point in nine(table[ranks])]
    assert mean_error(fit_collective("all_reduce", used, rings=cube_mesh_rings), table[4]) < 0.06
