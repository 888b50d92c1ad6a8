"""Windows are cut where they say, for arrays and on a device alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.earthquake.data import Prepared
from fairmile.benchmarks.suite.earthquake.settings import Settings
from fairmile.benchmarks.suite.earthquake.windows import split

L, T = 10, 80


def series(missing=()):
    """Return series whose values tell their location and time."""
    where, when = np.meshgrid(np.arange(L), np.arange(T), indexing="ij")
    base = (where * 1000 + when).astype(np.float32)
    observed, target = np.stack([base + i / 16 for i in range(9)], -1), np.stack([base + i / 8 for i in range(4)], -1)
    observed[:, list(missing)], target[:, list(missing)] = np.nan, np.nan
    known = np.arange(T, dtype=np.float32)[:, None] + np.zeros(13, np.float32)
    static = np.arange(L, dtype=np.float32)[:, None] + np.zeros(5, np.float32)
    plain = np.zeros(4)
    return Prepared(
        known, observed, static, target, np.arange(L), np.arange(T), plain, plain + 1, plain, plain, 1, True, "test", ()
    )


def test_a_sample_is_a_window_at_a_location():
    training, _ = split(series(), Settings(history=26, horizon=26))
    assert len(training.starts) == T - 51
    assert len(training) == 8 * (T - 51)
    numbers = np.array([0, len(training) - 1, 30])
    batch = training.batch(numbers)
    for row, number in enumerate(numbers):
        location, start = training.locations[number // 29], number % 29
        assert (batch["static"][row] == location).all()
        assert batch["known"][row, :, 0].tolist() == list(range(start, start + 52))
        assert batch["observed"][row, :, 0].tolist() == [location * 1000 + start + i for i in range(26)]
        assert batch["observed"][row, 0, 8] - batch["observed"][row, 0, 0] == 0.5
        assert batch["target"][row, :, 0].tolist() == [location * 1000 + start + 26 + i for i in range(26)]
        assert batch["target"][row, 0, 3] - batch["target"][row, 0, 0] == 0.375
    assert (batch["weight"] == 1).all()
    assert {name: values.shape for name, values in batch.items()} == {
        "static": (3, 5),
        "known": (3, 52, 13),
        "observed": (3, 26, 9),
        "target": (3, 26, 4),
        "weight": (3, 26, 4),
    }
    assert all(values.dtype == np.float32 for values in batch.values())


def test_a_device_cuts_the_same_windows():
    for part in split(series(missing=[70, 71]), Settings(history=6, horizon=9, split_seed=3)):
        there = part.resident(torch.device("cpu"))
        numbers = np.random.default_rng(0).integers(0, len(part), 64)
        assert len(there) == len(part)
        ours, theirs = part.batch(numbers), there.batch(numbers)
        assert ours.keys() == theirs.keys()
        for name, values in ours.items():
            np.testing.assert_array_equal(values, theirs[name].numpy())
        assert part.size_bytes == sum(
            each.numel() * each.element_size()
            for each in (there._target, there._weight, there._observed, there._known, there._static)
        )


def test_a_missing_target_weighs_nothing_and_no_history_holds_a_missing_observation():
    training, _ = split(series(missing=[40, 41]), Settings(history=6, horizon=4))
    assert not set(training.starts) & set(range(35, 42))
    assert 34 in training.starts
    batch = training.batch(np.array([list(training.starts).index(34)]))
    assert batch["weight"][0, :, 0].tolist() == [0, 0, 1, 1]
    assert batch["target"][0, :2].tolist() == [[0] * 4] * 2
    assert not any(np.isnan(values).any() for values in training.batch(np.arange(len(training))).values())


def test_the_split_by_location_is_a_seeded_draw_that_shares_no_location():
    training, validation = split(series(), Settings())
    assert sorted([*training.locations, *validation.locations]) == list(range(L))
    assert len(validation.locations) == 2
    again = split(series(), Settings())[1]
    assert validation.locations.tolist() == again.locations.tolist()
    draws = {tuple(split(series(), Settings(split_seed=seed))[1].locations) for seed in range(8)}
    assert len(draws) > 3


def test_the_split_in_time_forecasts_nothing_that_training_saw():
    training, validation = split(series(), Settings(split="time", history=10, horizon=5, validation_share=0.25))
    border = 60
    assert training.starts.max() + 15 == border
    assert validation.starts.min() + 10 == border
    assert validation.starts.max() + 15 == T
    assert len(training.locations) == len(validation.locations) == L


def test_truth_lies_one_step_on_or_a_whole_window_on():
    _, validation = split(series(), Settings())
    location = validation.locations[1] * 1000
    last = validation.starts[3] + 25
    assert validation.truth("overlapping")[1, 3].tolist() == [location + last + 1 + i / 8 for i in range(4)]
    steps = (1, 7, 13, 26)
    far = [location + last + step + i / 8 for i, step in enumerate(steps)]
    assert validation.truth("non-overlapping")[1, 3].tolist() == far
    assert validation.last()[1, 3].tolist() == [location + last + i / 8 for i in range(4)]


@pytest.mark.parametrize("lead", ["overlapping", "non-overlapping"])
def test_outputs_that_are_true_are_the_truth_at_each_lead(lead):
    _, validation = split(series(), Settings())
    outputs = np.asarray(validation.batch(np.arange(len(validation)))["target"])
    np.testing.assert_array_equal(validation.at_lead(outputs, lead), validation.truth(lead))
    np.testing.assert_array_equal(validation.shaped(outputs), validation.every_step())


@for_each(
    "changes, sentence",
    [
        ({"history": 60}, "no window of 60 . 26 fortnights is left for training"),
        ({"split": "time", "history": 26, "horizon": 40}, "is left for"),
        ({"validation_share": 1.0}, "validation_share"),
        ({"horizon": 0}, "must be at least 1"),
    ],
)
def test_a_split_that_leaves_nothing_is_refused(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        split(series(), Settings(**changes))


def test_leads_beyond_the_horizon_are_refused():
    _, validation = split(series(), Settings(horizon=8))
    validation.truth("overlapping")
    with pytest.raises(UsageError, match="need a horizon of 26 fortnights, it is 8"):
        validation.truth("non-overlapping")


def test_the_hybrid_sees_what_was_observed_at_the_nearest_locations():
    data = replace(series(), latitude=np.zeros(L), longitude=np.array([0, 0.1, 0.3, 0.4, 2, 3, 4, 5, 6, 7.0]))
    training, _ = split(data, Settings(history=6, horizon=26, model="hybrid", neighbours=2))
    assert training.nearest is not None
    assert training.nearest.places[:5].tolist() == [[1, 2], [0, 2], [3, 1], [2, 1], [5, 3]]
    np.testing.assert_allclose(training.nearest.offset[2], [[0, 1], [0, -2]], atol=1e-6)
    numbers = np.array([0, 30, len(training) - 1])
    batch = training.batch(numbers)
    assert batch["around"].shape == (3, 6, 2, 3)
    for row, number in enumerate(numbers):
        place, start = divmod(int(number), len(training.starts))
        near = training.nearest.places[training.locations[place]]
        expected = [[float(where * 1000 + start + step) for where in near] for step in range(6)]
        assert batch["around"][row, :, :, 0].tolist() == expected
    there = training.resident(torch.device("cpu")).batch(torch.from_numpy(numbers))
    for name, values in batch.items():
        np.testing.assert_array_equal(there[name].numpy(), values, err_msg=name)
