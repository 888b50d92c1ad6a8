"""What a compiled forward pass keeps is the cheapest set from which everything follows."""

from __future__ import annotations

import itertools

import numpy as np

from fairmile.predict.compiled.dataflow import Value
from fairmile.predict.compiled.partition import saved_values


def follows(values: dict[int, Value], kept: set[int], needed: list[int]) -> bool:
    """Tell whether all needed values can be had from the kept ones."""

    def has(key: int) -> bool:
        again = values[key].again
        return key in kept or (again is not None and all(map(has, again)))

    return all(map(has, needed))


def test_the_kept_values_are_enough_and_no_set_is_cheaper() -> None:
    for seed in range(40):
        random = np.random.default_rng(seed)
        values: dict[int, Value] = {}
        for key in range(int(random.integers(2, 9))):
            earlier = [each for each in range(key) if random.random() < 0.5]
            again = tuple(earlier) if earlier and random.random() < 0.7 else None
            values[key] = Value(key, int(random.integers(1, 100)), key, again)
        needed = [each for each in values if random.random() < 0.5]
        written = set(values)
        kept = saved_values(values, needed, written)
        assert follows(values, kept, needed), seed
        cheapest = min(
            sum(values[key].size_bytes for key in chosen)
            for count in range(len(values) + 1)
            for chosen in itertools.combinations(values, count)
            if follows(values, set(chosen), needed)
        )
        assert sum(values[key].size_bytes for key in kept) == cheapest, seed


def test_a_chain_is_computed_again_from_its_smallest_tensor() -> None:
    values = {0: Value(0, 100, 0, None), 1: Value(1, 50, 1, (0,)), 2: Value(2, 200, 2, (1,)), 3: Value(3, 200, 3, (2,))}
    assert saved_values(values, [3], {0, 1, 2, 3}) == {1}
    assert saved_values(values, [3], {0}) == {0}, "what is in memory anyway is cheaper than a tensor written for it"


def test_parameters_cost_nothing() -> None:
    values = {0: Value(0, 0, -1, None), 1: Value(1, 10, 0, (0,))}
    assert saved_values(values, [1], {1}) == {0}
