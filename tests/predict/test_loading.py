"""Whether a training starves, from what a storage evaluation found."""

from __future__ import annotations

import math

import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.storage import METRICS
from fairmile.predict.loading import loading

DISK = {"seq_read_bytes_per_s": 1e9, "file_read_per_s": 2000.0, "random_read_per_s": 50_000.0}


def test_the_names_are_those_of_a_storage_evaluation() -> None:
    assert set(DISK) <= set(METRICS)


def test_a_step_that_eats_more_than_the_disk_gives_is_input_bound() -> None:
    found = loading(0.1, 64, 10e6, DISK, files_per_sample=0.001)
    assert (found.wanted_per_s, found.delivered_per_s, found.limit) == (640.0, 100.0, "storage")
    assert found.is_input_bound and found.step_time_s == pytest.approx(0.64)
    assert "faster storage" in found.sentence


def test_a_step_that_eats_less_is_not() -> None:
    found = loading(0.1, 8, 1e5, DISK)
    assert not found.is_input_bound and found.step_time_s == 0.1 and found.share == 1.0
    assert found.sentence.startswith("not input-bound")


def test_many_small_files_are_bound_by_the_file_system() -> None:
    found = loading(0.01, 64, 1000, DISK, files_per_sample=1)
    assert (found.limit, found.delivered_per_s) == ("files", 2000.0)
    assert "pack samples" in found.sentence


def test_samples_within_large_files_are_read_at_random_places() -> None:
    assert loading(0.0001, 64, 1000, DISK, files_per_sample=0).delivered_per_s == 50_000.0


def test_workers_bound_what_is_slow_to_decode() -> None:
    found = loading(0.1, 640, 1000, DISK, workers=4, decode_s=0.01, files_per_sample=0.01)
    assert (found.limit, found.delivered_per_s) == ("decoding", 400.0)
    assert not loading(0.1, 30, 1000, DISK, workers=4, decode_s=0.01).is_input_bound


def test_ranks_that_share_a_disk_get_a_part_each() -> None:
    assert loading(0.1, 8, 1e6, DISK, readers=4).delivered_per_s == pytest.approx(250.0)


def test_without_a_storage_evaluation_nothing_is_claimed() -> None:
    found = loading(0.1, 8, 1e6, {})
    assert (
        not found.is_input_bound and math.isinf(found.delivered_per_s) and "the input rate is unknown" in found.sentence
    )


def test_a_step_without_time_cannot_be_fed() -> None:
    with pytest.raises(UsageError, match="cannot predict loading"):
        loading(0.0, 8, 1e6, DISK)
