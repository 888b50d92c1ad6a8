"""Epoch times at a larger scale from the smaller one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scaling_accuracy.epochs import Pair, find_pairs, learn_effects, predict_epoch_s
from scaling_accuracy.published import Submission

from fairmile.base.errors import UsageError
from fairmile.predict.scaling.data_parallel import Effects

BASE = Submission(
    round="v1.0",
    benchmark="deepcam",
    scaling="strong",
    submitter="NVIDIA",
    system="dgxa100_n64",
    accelerators=512,
    instance=512,
    accelerator="A100",
    global_batch=1024,
    epoch_s=8.89,
    samples=121266,
    framework="PyTorch",
)
ALONE = Effects(straggling=1e-9, half_batch=1e-9, overlap=1.0, contention=0.0)


def _sized(gpus: int, batch: int, epoch_s: float = 0.0, **said: object) -> Submission:
    sized = replace(BASE, accelerators=gpus, instance=gpus, global_batch=batch, epoch_s=epoch_s)
    return replace(sized, **said)  # type: ignore[arg-type]


def test_without_losses_twice_the_gpus_take_half_the_time() -> None:
    pair = Pair(_sized(512, 1024, 100.0), _sized(1024, 2048))
    assert predict_epoch_s(pair, ALONE) == pytest.approx(50.0, rel=0.02)


def test_more_ranks_wait_longer_for_the_slowest() -> None:
    pair = Pair(_sized(512, 1024, 100.0), _sized(4096, 8192))
    waiting = [predict_epoch_s(pair, replace(ALONE, straggling=value)) for value in (0.01, 0.05, 0.1)]
    assert waiting == sorted(waiting)
    assert waiting[0] > 100 / 8


def test_smaller_batches_of_a_rank_save_less_than_their_share() -> None:
    pair = Pair(_sized(512, 1024, 100.0), _sized(1024, 1024))
    assert predict_epoch_s(pair, ALONE) == pytest.approx(50.0, rel=0.05)
    assert predict_epoch_s(pair, replace(ALONE, half_batch=2.0)) == pytest.approx(75.0, rel=0.05)


def test_the_same_size_takes_the_same_time() -> None:
    pair = Pair(_sized(512, 1024, 8.89), _sized(512, 1024))
    assert predict_epoch_s(pair) == pytest.approx(8.89, rel=1e-6)


def test_a_slow_network_is_felt_only_where_it_is_exposed() -> None:
    fast, slow = (_sized(128, 256, 20.0, system=name) for name in ("dgxa100_n", "longhorn_n"))
    times = [predict_epoch_s(Pair(row, replace(row, instance=2048, global_batch=4096)), ALONE) for row in (fast, slow)]
    assert times[1] > times[0]


def test_effects_that_made_the_epochs_are_learned_again() -> None:
    truth = Effects(straggling=0.06, half_batch=3.0)
    pairs = []
    for small, large in (((512, 1024), (2048, 2048)), ((128, 256), (1024, 2048)), ((64, 256), (256, 256))):
        pair = Pair(_sized(*small, epoch_s=50.0), _sized(*large))
        pairs.append(Pair(pair.small, replace(pair.large, epoch_s=predict_epoch_s(pair, truth))))
    found = learn_effects(pairs * 20)
    assert found.straggling == pytest.approx(0.06, rel=0.2)
    assert found.half_batch == pytest.approx(3.0, rel=0.1)


def test_pairs_are_of_one_machine_submitter_round_division_and_framework() -> None:
    rows = [
        _sized(512, 512),
        _sized(2048, 2048),
        _sized(4096, 4096),
        _sized(1024, 1024, submitter="LBNL"),
        _sized(1024, 1024, round="v2.0"),
        _sized(1024, 1024, framework="MXNet"),
        _sized(1024, 1024, benchmark="cosmoflow"),
        _sized(1024, 1024, system="perlmutter_n256"),
        _sized(1024, 1024, system="dgxa100_n128_open"),
        _sized(1024, 1024, scaling="weak"),
        replace(_sized(1024, 1024), instance=None),
    ]
    sizes = [(pair.small.instance, pair.large.instance) for pair in find_pairs(rows)]
    assert sizes == [(512, 2048), (2048, 4096)]
    loose = [(pair.small.instance, pair.large.instance) for pair in find_pairs(rows, strict=False)]
    assert loose == [(512, 1024), (1024, 2048), (2048, 4096)]


def test_entries_that_are_repeated_make_no_pair() -> None:
    assert find_pairs([_sized(512, 512), _sized(512, 512)]) == []


def test_a_row_that_does_not_say_its_size_cannot_be_predicted() -> None:
    with pytest.raises(UsageError, match="how large"):
        predict_epoch_s(Pair(replace(BASE, instance=None), BASE))
