from __future__ import annotations

import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.cosmoflow.settings import choose


def chosen(has_data=False, has_gpu=False, ranks=1, **params):
    return choose(params, has_data=has_data, has_gpu=has_gpu, ranks=ranks)


def test_without_data_the_small_benchmark_runs_and_with_data_the_published_one():
    small, published = chosen(), chosen(has_data=True)
    assert (small.preset, small.size, small.width, small.depth, small.optimizer) == ("small", 16, 8, 3, "adam")
    assert (published.preset, published.width, published.depth, published.optimizer) == ("mlperf", 32, 5, "sgd")
    assert published.train_samples == 0
    assert chosen(has_data=True, preset="small").width == 8


def test_the_published_settings_are_those_of_mlperf():
    found = chosen(preset="mlperf", batch_size=4, ranks=32)
    assert (found.momentum, found.dropout, found.epochs) == (0.9, 0.5, 128)
    assert found.learning_rate == pytest.approx(0.002)  # 0.001 at 64, and 128 samples per step
    assert found.learning_rate * found.warmup_factor == pytest.approx(0.001)
    assert found.warmup_epochs == 4
    assert (found.decay_epochs, found.decay_factors) == ((32, 64), (0.25, 0.125))
    assert (found.size, found.augment, found.apply_log) == (128, False, True)


def test_a_small_global_batch_gets_a_small_learning_rate_without_a_rise_to_it():
    found = chosen(preset="mlperf")
    assert found.learning_rate == pytest.approx(0.001 * 4 / 64)
    assert found.warmup_factor == 1
    assert chosen(preset="mlperf", accumulate=32).learning_rate == pytest.approx(0.002)


def test_what_is_given_wins_over_preset_and_device():
    found = chosen(has_gpu=True, preset="mlperf", precision="fp32", compile=False, epochs=3, width=16)
    assert (found.precision, found.compile, found.epochs, found.width) == ("fp32", False, 3, 16)
    assert chosen(preset="mlperf", scale_learning_rate=False, learning_rate=0.5).learning_rate == 0.5


def test_a_gpu_gets_what_was_measured_as_fastest():
    large, small = chosen(has_gpu=True, preset="mlperf"), chosen(has_gpu=True)
    assert (large.precision, large.channels_last, large.compile) == ("bf16", True, True)
    assert (small.precision, small.compile) == ("fp32", False)
    assert chosen(has_gpu=True, preset="mlperf", device="cpu").precision == "fp32"
    assert chosen(preset="mlperf").compile is False


def test_fsdp_which_cuts_weights_in_rows_gets_no_channels_last():
    assert chosen(strategy="fsdp").channels_last is False
    assert chosen(strategy="ddp").channels_last is True


def test_an_unknown_preset_or_parameter_is_told():
    with pytest.raises(UsageError, match="preset"):
        chosen(preset="large")
    with pytest.raises(UsageError, match="widht"):
        chosen(widht=3)
