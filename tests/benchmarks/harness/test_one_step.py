"""One step of a benchmark without its data is the step that its training takes."""

import importlib
import sys

import pytest
import torch
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.benchmarks.benchmarks import Benchmarks
from fairmile.benchmarks.program import SUITE, folder_of
from fairmile.predict.fake_device.request import TraceRequest, trace_targets

WITH_STEP = sorted(file.parent.name for file in SUITE.glob("*/step.py"))
SMALL = {
    "cloudmask": {"batch_size": 2, "patch": 16},
    "cosmoflow": {"batch_size": 2},
    "deepcam": {"batch_size": 2, "rows": 32, "shrink": 32, "middle": 1},
    "earthquake": {"batch_size": 2, "d_model": 8},
    "miniweather": {"batch_size": 2},
    "mnist": {"batch_size": 2},
    "opencatalyst": {"batch_size": 2},
    "sgemm": {"batch_size": 2},
    "stemdl": {"batch_size": 2, "pixels": 32},
    "uno": {"batch_size": 2, "width": 8},
}


def build(name, **params):
    return importlib.import_module(f"fairmile.benchmarks.suite.{name}.step").build(**params)


def test_every_benchmark_that_the_harness_trains_has_a_step():
    assert sorted(SMALL) == WITH_STEP


@for_each("name", WITH_STEP)
def test_it_trains_on_made_up_batches(name):
    step = build(name, **SMALL[name])
    optimizer = step.optimizer(step.model.parameters())
    before = [each.detach().clone() for each in step.model.parameters()]
    loss = step.loss(step.model)
    assert loss.shape == ()
    loss.backward()
    optimizer.step()
    assert any(not torch.equal(now, then) for now, then in zip(step.model.parameters(), before, strict=True))


def test_the_model_is_the_one_that_the_settings_ask_for():
    published = build("cosmoflow", preset="mlperf", size=32, batch_size=1)
    assert published.precision == "bf16"
    assert (
        sum(each.numel() for each in published.model.blocks.parameters())
        == 27 * (4 * 32 + 32 * 64 + 64 * 128 + 128 * 256 + 256 * 512) + 992
    )
    assert published.model.blocks[1].convolution.weight.is_contiguous(memory_format=torch.channels_last_3d)


def test_inference_has_no_optimizer():
    assert build("mnist", work="inference").optimizer is None


def test_a_parameter_that_does_not_exist_is_named():
    with pytest.raises(UsageError, match="batch_sise"):
        build("mnist", batch_sise=3)
    with pytest.raises(UsageError, match="trains nothing"):
        build("earthquake", model="persistence")


def test_a_new_benchmark_has_a_step_of_its_own(tmp_path, monkeypatch):
    Benchmarks(lambda: None).new("tides", tmp_path)
    folder = folder_of(str(tmp_path / "tides"))
    monkeypatch.syspath_prepend(str(folder))
    for name in ("step", "benchmark", "settings"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    step = importlib.import_module("step").build(batch_size=4)
    try:
        assert step.loss(step.model).shape == ()
    finally:
        for name in ("step", "benchmark", "settings"):
            sys.modules.pop(name, None)


@pytest.mark.thorough
def test_data_that_lies_on_the_device_is_part_of_the_step(tmp_path):
    file = str(SUITE / "cosmoflow" / "step.py")
    small = {"batch_size": 2, "train_samples": 40, "validation_samples": 10}
    asked = [TraceRequest(file, arguments={**small, "resident": resident}) for resident in (True, False)]
    with_data, without = (
        sum(each.size_bytes for each in trace.storages) for trace in trace_targets(asked, folder=tmp_path)
    )
    assert with_data - without == 50 * (16**3 * 4 * 2 + 4 * 4)
