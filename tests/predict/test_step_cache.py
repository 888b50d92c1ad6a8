"""What a step is expected to do is traced once, and again when its code changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from step_making import step_trace

from fairmile.base.errors import UsageError
from fairmile.costs.devices import device
from fairmile.costs.operators.refine import MeasuredStep
from fairmile.costs.steps import StepTrace
from fairmile.predict import step_cache as foresight
from fairmile.predict.fake_device.request import TraceRequest
from fairmile.predict.measured import MeasuredTimes
from fairmile.predict.memory.account import account
from fairmile.predict.step_cache import StepForecast, foresee
from fairmile.predict.step_time import step_time

H200 = device("h200")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "model.py").write_text("WIDTH = 1\n")
    (tmp_path / "bench" / "step.py").write_text("import model\n")
    return tmp_path / "bench" / "step.py"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "predictions"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TraceRequest]:
    """The requests for a trace, which are answered with a step made by hand."""
    requests: list[TraceRequest] = []

    def traced(request: TraceRequest, **_: Any) -> StepTrace:
        requests.append(request)
        if request.arguments.get("batch_size") == 0:
            raise UsageError("a batch of nothing")
        return step_trace(request.arguments.get("batch_size", 4))

    monkeypatch.setattr(foresight, "trace_target", traced)
    return requests


def test_it_is_the_account_and_the_time_of_the_step(file: Path, cache: Path, asked: list[TraceRequest]) -> None:
    found = foresee(file, {"batch_size": 64}, H200, cache, None)
    taken, step = account(step_trace(64), H200), step_time(step_trace(64), H200)
    assert (found.gpu, found.batch) == ("h200", 64)
    assert found.peak_bytes == (taken.peak_allocated_bytes, taken.allocated_span.low, taken.allocated_span.high)
    assert found.step_s == (step.step_time_s, step.low_s, step.high_s)
    assert found.by_kind == step.by_kind
    assert found.usable_bytes == H200.memory_bytes - taken.context_bytes
    assert asked == [TraceRequest(str(file), arguments={"batch_size": 64})]


def test_a_longer_step_gives_fewer_samples_a_second() -> None:
    assert StepForecast("h200", 8, (0, 0, 0), (2.0, 1.0, 4.0), {}, 0).samples_per_s == (4.0, 2.0, 8.0)


def test_the_second_time_it_is_read(file: Path, cache: Path, asked: list[TraceRequest]) -> None:
    first = foresee(file, {"batch_size": 8}, H200, cache, None)
    assert foresee(file, {"batch_size": 8}, H200, cache, None) == first
    assert len(asked) == 1


def test_a_folder_that_is_named_like_code_is_none(file: Path, cache: Path, asked: list[TraceRequest]) -> None:
    (file.parent / "old.py").mkdir()
    assert foresee(file, {"batch_size": 8}, H200, cache, None).batch == 8


def test_other_parameters_gpus_or_code_are_traced_anew(file: Path, cache: Path, asked: list[TraceRequest]) -> None:
    foresee(file, {"batch_size": 8}, H200, cache, None)
    foresee(file, {"batch_size": 9}, H200, cache, None)
    assert foresee(file, {"batch_size": 8}, device("a100-80gb"), cache, None).gpu == "a100-80gb"
    assert len(asked) == 3
    (file.parent / "model.py").write_text("WIDTH = 2\n")
    foresee(file, {"batch_size": 8}, H200, cache, None)
    assert len(asked) == 4


def test_what_was_measured_since_is_heard(file: Path, cache: Path, asked: list[TraceRequest], tmp_path: Path) -> None:
    measured = MeasuredTimes(tmp_path / "perf")
    plain = foresee(file, {}, H200, cache, None)
    # Nothing was measured yet: what the table that comes along says is known already.
    assert (foresee(file, {}, H200, cache, measured), len(asked)) == (plain, 1)
    measured.learn(H200, [MeasuredStep(1.25 * plain.step_s[0], plain.step_s[0], plain.by_kind, "train-1")])
    learnt = foresee(file, {}, H200, cache, measured)
    step = measured.step_time(step_trace(), H200)
    assert learnt.step_s == (step.step_time_s, step.low_s, step.high_s) != plain.step_s
    assert foresee(file, {}, H200, cache, measured) == learnt
    assert (foresee(file, {}, H200, cache, None), len(asked)) == (plain, 2)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"gpu": "h200"', b"shorter"])
def test_a_damaged_file_is_written_again(file: Path, cache: Path, asked: list[TraceRequest], damage: bytes) -> None:
    first = foresee(file, {}, H200, cache, None)
    (kept,) = cache.iterdir()
    whole = json.loads(kept.read_bytes())
    kept.write_bytes(json.dumps({**whole, "step_s": [1.0]}).encode() if damage == b"shorter" else damage)
    assert foresee(file, {}, H200, cache, None) == first
    assert (len(asked), json.loads(kept.read_bytes())) == (2, whole)


def test_what_cannot_be_kept_is_told_all_the_same(file: Path, tmp_path: Path, asked: list[TraceRequest]) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    for _ in range(2):
        assert foresee(file, {}, H200, tmp_path / "taken" / "predictions", None).batch == 4
    assert len(asked) == 2


def test_a_refused_step_leaves_nothing_behind(file: Path, cache: Path, asked: list[TraceRequest]) -> None:
    with pytest.raises(UsageError, match="a batch of nothing"):
        foresee(file, {"batch_size": 0}, H200, cache, None)
    assert not cache.exists()
