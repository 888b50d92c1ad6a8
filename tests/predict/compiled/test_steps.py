"""Compiled steps as torch's own compiler writes them, and the rules that answer where it cannot be run."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.costs.devices import device
from fairmile.costs.operators.signatures import step_ops
from fairmile.costs.steps import FUSED, StepEvent, StepTrace
from fairmile.predict.compiled import steps
from fairmile.predict.fake_device.request import TraceRequest, trace_targets
from fairmile.predict.memory.account import account

MODEL = '''
import torch
from torch import nn

WIDTH, ROWS = 256, 1024

def build(called=True):
    """Two linear layers with an activation between them, and a norm in front."""
    model = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def loss(model):
        data = torch.randn(ROWS, WIDTH, device="cuda")
        weights = sum(each.square().sum() for each in model.parameters())
        return (model(data) if called else list(model.children())[1](data)).square().mean() + weights

    optimizer = lambda parameters: torch.optim.SGD(parameters, 0.1)
    return {"model": model, "loss": loss, "optimizer": optimizer, "precision": "fp32"}
'''
ACTIVATION = 1024 * 256 * 4  # bytes
ON = device("h200")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


def traced(*requests: TraceRequest) -> list[StepTrace]:
    answers = steps.trace_compiled(requests, timeout_s=600)
    assert all(isinstance(each, StepTrace) for each in answers), answers
    return [each for each in answers if isinstance(each, StepTrace)]


def reasons(trace: StepTrace) -> list[str]:
    return [each for each in trace.notes if each.startswith("Inductor could not be run for this step: ")]


@pytest.mark.thorough
def test_inductor_writes_the_step_twice_alike_and_leaves_nothing_behind(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # what a user may have set for his own runs
    request = TraceRequest(model, compile="default")
    first, second = (traced(request)[0] for _ in range(2))
    assert (first.compiled_by, first.compiled) == ("inductor", "default")
    assert any("kernels that Inductor of torch" in each for each in first.notes) and not reasons(first)
    assert (first.ops, first.storages, first.events) == (second.ops, second.storages, second.events)
    assert not list(place.iterdir())

    calls = Counter(op.name for op in step_ops(first) if op.phase in ("forward", "backward"))
    # Two products forward, four backward: the data needs no gradient, but the norm's weight does.
    assert calls["aten.mm.default"] + calls["aten.addmm.default"] == 6
    assert not {"aten.gelu.default", "aten.native_layer_norm.default", "aten.gelu_backward.default"} & set(calls)
    kernels = [op for op in step_ops(first) if op.name == FUSED]
    assert all(dict(op.keywords)["moved_bytes"] > 0 for op in kernels)
    norm = next(op for op in kernels if "layer_norm" in dict(op.keywords)["kernel"])
    assert dict(norm.keywords)["moved_bytes"] == pytest.approx(2 * ACTIVATION, rel=0.01)  # read and written once


@pytest.mark.thorough
def test_what_inductor_does_not_keep_takes_no_memory(model: str, tmp_path: Path) -> None:
    fast = traced(TraceRequest(model, compile="default"))[0]
    (tmp_path / "eager").mkdir()
    eager = trace_targets([TraceRequest(model)], folder=tmp_path / "eager")[0]
    assert isinstance(eager, StepTrace)
    taken = [
        sum(trace.storages[number].size_bytes for kind, number, _ in trace.events if kind == StepEvent.ALLOC)
        for trace in (fast, eager)
    ]
    # In each of two steps, one result less: that of the norm's backward is written over what it read.
    assert taken[0] < taken[1] - ACTIVATION
    assert account(fast, ON).peak_allocated_bytes <= account(eager, ON).peak_allocated_bytes


@pytest.mark.thorough
def test_each_step_that_inductor_cannot_follow_says_why_and_the_others_are_its_own(model: str) -> None:
    asked = [TraceRequest(model, arguments={"called": called}, compile="default") for called in (False, True)]
    by_rules, by_inductor = traced(*asked)
    assert (by_rules.compiled_by, by_inductor.compiled_by) == ("rules", "inductor")
    assert reasons(by_rules) == ["Inductor could not be run for this step: torch.compile makes no graph of this model"]


def test_where_the_compiler_breaks_down_or_takes_too_long_the_rules_answer(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = steps.trace_targets

    def broken(requests: Sequence[TraceRequest], **how: Any) -> list[StepTrace | UsageError]:
        if requests[0].compile:
            raise SystemFailure("tracing failed with exit code -11: no message")
        return own(requests, **how)

    request = TraceRequest(model, compile="max-autotune")
    monkeypatch.setattr(steps, "trace_targets", broken)
    died = traced(request)[0]
    monkeypatch.setattr(steps, "trace_targets", own)
    monkeypatch.setattr(steps, "INDUCTOR_S", 0.05)
    late = traced(request)[0]
    for trace, why in ((died, "exit code -11"), (late, "0.05")):
        assert (trace.compiled_by, trace.compiled) == ("rules", "max-autotune")
        assert len(reasons(trace)) == 1 and why in reasons(trace)[0]
        assert any("gains of autotuning are unknown" in each for each in trace.notes)
        assert any(op.name == FUSED for op in trace.ops)


def test_a_mistake_of_the_user_is_told_as_without_compiling(tmp_path: Path) -> None:
    missing = TraceRequest(str(tmp_path / "missing.py"), compile="default")
    (answer,) = steps.trace_compiled([missing], timeout_s=600)
    assert isinstance(answer, UsageError) and "no such file" in answer.message
