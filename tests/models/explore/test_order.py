"""The order of candidates is decided by rounds, or it is said that it cannot be."""

from __future__ import annotations

import math
import random

from fairmile.models.explore.order import median_interval, order_of, rounds_needed


def test_the_interval_of_a_median_has_the_coverage_of_its_order_statistics() -> None:
    interval = median_interval([float(each) for each in range(1, 11)])
    assert interval is not None
    assert (interval.low, interval.middle, interval.high) == (2.0, 5.5, 9.0)  # 97.9 % for ten values
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_a_candidate_that_is_slower_in_every_round_is_decided_however_loud_the_machine_is() -> None:
    noise = random.Random(0)
    rounds = [math.exp(noise.gauss(0, 1)) for _ in range(rounds_needed(2)[0])]
    order = order_of({"fast": rounds, "slow": [1.1 * each for each in rounds]})
    assert (order.leader, order.is_decided) == ("fast", True)
    assert math.isclose(order.ratios["slow"].middle, 1.1)


def test_candidates_within_five_percent_are_equal_and_those_that_cross_are_open() -> None:
    count = rounds_needed(3)[0]
    costs = {
        "one": [1.0] * count,
        "same": [1.02] * count,
        "unsteady": [0.5, 1.7] * (count // 2) + [1.1] * (count % 2),
    }
    order = order_of(costs)
    assert order.leader == "one"
    assert (order.equal, order.open) == ((), ("unsteady",))  # 1.02 in every round is slower, and decided
    close = order_of({"one": [1.0] * count, "near": [1.0 + (-1) ** each * 0.01 for each in range(count)]})
    assert (len(close.equal), close.is_decided) == (1, True)


def test_more_candidates_need_more_rounds_before_the_first_look() -> None:
    assert rounds_needed(2) == (8, 16, 32)
    assert rounds_needed(20)[0] > rounds_needed(5)[0]
