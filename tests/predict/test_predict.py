"""Memory, time and scaling before a job runs, of traced steps and of descriptions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from step_making import step_trace

from fairmile.base.errors import FairmileError, Integrity, NotFound, RunFailed, UsageError
from fairmile.base.units import format_size
from fairmile.costs.devices import device
from fairmile.costs.operators.signatures import candidates_of, signature, write_tensors
from fairmile.costs.operators.table import OperatorTiming, TableOrigin, write_table
from fairmile.costs.steps import Op, StepTrace
from fairmile.jobs.machines import Machines
from fairmile.predict import predict as predictions
from fairmile.predict import step_cache as foresight
from fairmile.predict.fake_device.request import TraceRequest, trace_targets
from fairmile.predict.memory.account import account
from fairmile.predict.memory.closed_forms import closed_form
from fairmile.predict.memory.options import parse_allocator_options
from fairmile.predict.memory.sharding import Layout
from fairmile.predict.predict import Predict
from fairmile.predict.results import MemoryPrediction
from fairmile.predict.step_cache import StepForecast
from fairmile.predict.step_time import StepTime, step_time
from fairmile.resolve import Nouns, Target, resolve
from fairmile.systems.model import Gpu, Partition

STEP = Path(__file__).parents[2] / "docs" / "examples" / "step.py"
TARGET = f"{STEP}:build"
SMALL = {"width": 8}
GPT = str(STEP.with_name("gpt.yaml"))
H200 = device("h200")
MIB = 1 << 20


def no_benchmark(target: Target) -> Path:
    raise NotFound(f"no asset named {target.word!r}")


def resolved(word: str) -> Target:
    return resolve(word, Nouns(), for_="predict")


@pytest.fixture
def predict(tmp_path: Path) -> Predict:
    machines = Machines([], tmp_path / "jobs")
    return Predict(
        tmp_path / "perf",
        resolve=resolved,
        step_of=no_benchmark,
        partition_of=machines.partition,
        metrics_of=lambda run: {},
        steps_of_runs=lambda predict: {},
    )


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepTrace]:
    """The step of the documentation, traced in one process in all the ways that are asked for below."""
    pytest.importorskip("torch")
    arguments = {"whole": {"batch": 16}, "eighth": {"batch": 2}, "twice": {"batch": 16}}
    requests = [
        TraceRequest(str(STEP), "build", {**SMALL, **given}, accumulate=2 if name == "twice" else 1)
        for name, given in arguments.items()
    ]
    found = trace_targets(requests, folder=tmp_path_factory.mktemp("traces"))
    return {name: each for name, each in zip(arguments, found, strict=True) if isinstance(each, StepTrace)}


@pytest.fixture
def traced(traces: dict[str, StepTrace], monkeypatch: pytest.MonkeyPatch) -> list[TraceRequest]:
    """The requests, which are answered with what was traced before."""
    requests: list[TraceRequest] = []

    def answer(request: TraceRequest, **_: Any) -> StepTrace:
        requests.append(request)
        small = request.arguments.get("batch") == 2
        return traces["eighth" if small else "twice" if request.accumulate == 2 else "whole"]

    monkeypatch.setattr(predictions, "trace_targets", lambda asked, **_: [answer(each) for each in asked])
    return requests


Making = Callable[..., None]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Making:
    """Answer with steps made by hand, of the batch that is asked for."""

    def use(**how: Any) -> None:
        monkeypatch.setattr(
            predictions,
            "trace_targets",
            lambda asked, **_: [step_trace(each.arguments.get("batch", 8), **how) for each in asked],
        )

    return use


def test_a_traced_step_shows_itself_in_a_line(predict: Predict, made: Making) -> None:
    made()
    trace = predict.trace(TARGET)
    assert len(repr(trace)) <= 200 and " operators in " in repr(trace)
    assert len(trace.to_pandas()) == len(trace.ops)
    assert "<table" in trace._repr_html_()


# Memory


@pytest.mark.thorough
def test_memory_of_a_step_is_its_account_on_the_gpu(
    predict: Predict, traced: list[TraceRequest], traces: dict[str, StepTrace]
) -> None:
    found = predict.memory(TARGET, arguments={**SMALL, "batch": 16}, precision="bf16", checkpointing=None)
    assert (found.estimate, found.batch, found.fits) == (account(traces["whole"], H200), 16, True)
    asked = TraceRequest(str(STEP), "build", {**SMALL, "batch": 16}, precision="bf16", partial=True)
    assert traced == [asked]
    said = found.to_dict()
    assert said["target"] == TARGET
    assert said["gpu"] == "h200"
    assert 0 < said["peak_allocated_bytes"] <= said["peak_reserved_bytes"] < said["device_used_bytes"]
    # Two layers keep what they made of 16 images of 224 by 224 with 8 channels, before and after the norm.
    assert said["breakdown"]["activations"] > 2 * 16 * 8 * 224 * 224 * 4
    outside = ("slack", "context")
    parts = sum(size for name, size in said["breakdown"].items() if name not in outside)
    assert parts == said["peak_allocated_bytes"]


def test_the_allocator_can_be_told(predict: Predict, made: Making) -> None:
    made(sample=3 * MIB)
    usual, other = (predict.memory(TARGET, allocator=each) for each in ("", "expandable_segments:True"))
    assert usual.to_dict()["peak_allocated_bytes"] == other.to_dict()["peak_allocated_bytes"]
    options = parse_allocator_options("expandable_segments:True")
    assert other.estimate == account(step_trace(8, sample=3 * MIB), H200, options)
    assert other.estimate != usual.estimate
    with pytest.raises(UsageError):
        predict.memory(TARGET, allocator="nonsense:3")


def test_what_does_not_fit_says_so(predict: Predict, made: Making) -> None:
    made(sample=256 * MIB)
    found = predict.memory(TARGET, gpu="v100-16gb")
    assert not found.fits
    assert "out of memory" in found.to_dict()["out_of_memory"].lower()


def test_each_of_several_replicas_takes_the_batch_of_the_target(predict: Predict, made: Making) -> None:
    made()
    found = predict.memory(TARGET, arguments={"batch": 8}, layout=Layout(data=4))
    assert found.rank is not None
    assert found.rank.activations_bytes == 3 * 8 * 400
    assert found.rank.buffers_bytes == 10_000
    assert found.to_dict()["layout"]["micro_batch"] == 8
    assert found.device_used_bytes == round(found.rank.device_bytes)


def test_micro_batches_share_the_batch_of_a_replica(predict: Predict, made: Making) -> None:
    made()
    found = predict.memory(TARGET, arguments={"batch": 8}, layout=Layout(micro_batches=4))
    assert found.layout is not None
    assert found.layout.micro_batch == 2
    assert found.rank is not None
    assert found.rank.activations_bytes == 3 * 2 * 400
    with pytest.raises(UsageError, match="a batch of 8 cannot be split into 3 equal micro-batches") as told:
        predict.memory(TARGET, arguments={"batch": 8}, layout=Layout(micro_batches=3))
    assert "1, 2, 4 or 8" in (told.value.hint or "")


@pytest.mark.thorough
def test_a_replica_needs_no_less_than_a_single_gpu(
    predict: Predict, traced: list[TraceRequest], traces: dict[str, StepTrace]
) -> None:
    alone = predict.memory(TARGET)
    replica = predict.memory(TARGET, layout=Layout(data=4))
    assert replica.rank is not None
    assert alone.to_dict()["breakdown"]["slack"] > 0
    share = alone.to_dict()["peak_reserved_bytes"] / alone.to_dict()["peak_allocated_bytes"]
    assert replica.rank.reserved_bytes == pytest.approx(share * replica.rank.allocated_bytes)
    gradients = replica.rank.gradients_bytes
    assert replica.device_used_bytes >= alone.device_used_bytes + gradients


@pytest.mark.thorough
def test_a_rank_may_fit_because_its_allocator_gives_unused_segments_back(
    predict: Predict, traced: list[TraceRequest], traces: dict[str, StepTrace], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = account(traces["whole"], H200)
    layout = Layout(data=2)
    roomy = predict.memory(TARGET, layout=layout)
    assert roomy.rank is not None and roomy.squeeze == ""
    ends = {}
    for short in (True, False):
        # A little less than is wanted, and a little more than tensors take.
        room = roomy.rank.device_bytes - MIB if short else roomy.rank.least_device_bytes + 1
        small = replace(H200, memory_bytes=int(room))
        monkeypatch.setattr(predictions, "device", lambda _, known=small: known)
        limit = taken.context_bytes + (room - taken.context_bytes) * taken.peak_allocated_bytes / (
            roomy.rank.allocated_bytes
        )
        found = ends[short] = predict.memory(TARGET, layout=layout)
        assert found.fits == account(traces["whole"], small, limit_bytes=int(limit)).fits
    assert (ends[True].fits, ends[False].fits) == (True, False)
    assert ends[True].device_used_bytes == ends[True].gpu.memory_bytes
    assert "only by returning unused segments to the device" in ends[True].squeeze
    assert ends[True].squeeze.endswith(format_size(round(roomy.rank.device_bytes)))
    assert ends[False].device_used_bytes == roomy.device_used_bytes


def test_figures_of_the_rank_and_of_the_unspread_step_stand_apart(predict: Predict, made: Making) -> None:
    made()
    whole, said = predict.memory(TARGET).to_dict(), predict.memory(TARGET, layout=Layout(data=4, zero=1)).to_dict()
    assert "breakdown" not in said and "peak_allocated_bytes" not in said
    for name in ("breakdown", "peak_allocated_bytes", "device_used_bytes"):
        assert said["unspread"][name] == whole[name]
    assert said["rank"]["device_bytes"] == said["device_used_bytes"]
    assert said["rank"]["reserved_bytes"] + said["rank"]["context_bytes"] == said["rank"]["device_bytes"]
    assert all(isinstance(size, int) for name, size in said["rank"].items() if name.endswith("_bytes"))


def test_tensor_parallelism_of_anything_but_a_described_transformer_is_noted(
    predict: Predict, made: Making, tmp_path: Path
) -> None:
    made()
    cnn = tmp_path / "cnn.yaml"
    cnn.write_text("kind: cnn\nside: [32, 32]\ndense: [10, 10]\nbatch: 2\n")
    for target in (TARGET, str(cnn)):
        notes = predict.memory(target, layout=Layout(tensor=2)).notes
        assert "how tensor parallelism splits this model is unknown: a transformer's split is assumed" in notes
        assert not any("how tensor parallelism splits" in note for note in predict.memory(target).notes)
    assert not any(
        "how tensor parallelism splits" in note for note in predict.memory(GPT, layout=Layout(tensor=2)).notes
    )
    with pytest.raises(UsageError, match="cannot split 16 heads over 3 ranks"):
        predict.memory(GPT, layout=Layout(tensor=3))


def test_sharding_shares_parameters_gradients_and_state(predict: Predict, made: Making) -> None:
    made()
    rank = predict.memory(TARGET, layout=Layout(data=4, zero=3)).rank
    assert rank is not None
    assert (rank.parameters_bytes, rank.gradients_bytes, rank.optimizer_bytes) == (2500, 2500, 5000)


def test_a_rank_that_has_too_little_does_not_fit(predict: Predict, made: Making) -> None:
    made(sample=256 * MIB)
    whole = predict.memory(TARGET, arguments={"batch": 8}, gpu="v100-16gb", layout=Layout(data=2))
    spread = predict.memory(TARGET, arguments={"batch": 8}, gpu="v100-16gb", layout=Layout(micro_batches=8))
    assert (whole.fits, spread.fits) == (False, True)


# The largest batch


def test_the_largest_batch_fits_and_one_more_does_not(predict: Predict, made: Making) -> None:
    made(sample=256 * MIB)
    found = predict.largest_batch(TARGET, arguments={"batch": 4}, gpu="v100-32gb")
    on = device("v100-32gb")
    assert account(step_trace(found.batch, sample=256 * MIB), on).fits
    assert not account(step_trace(found.batch + 1, sample=256 * MIB), on).fits
    assert found.tried == (4, 8, found.batch, found.batch + 1)
    with pytest.raises(RunFailed, match="a batch of 1 does not fit"):
        made(sample=8192 * MIB)
        predict.largest_batch(TARGET, batch_argument="batch", gpu="v100-32gb")


def test_the_batch_is_found_among_the_parameters_of_the_function(predict: Predict, made: Making) -> None:
    made(sample=256 * MIB)
    found = predict.largest_batch(TARGET, gpu="v100-32gb")
    assert found.batch == predict.largest_batch(TARGET, arguments={"batch": 4}, gpu="v100-32gb").batch
    assert found.tried[:2] == (32, 64)


def test_the_argument_that_is_the_batch_must_be_known(predict: Predict, made: Making, tmp_path: Path) -> None:
    made()
    file = tmp_path / "step.py"
    file.write_text("def build(images=4): ...\n")
    with pytest.raises(UsageError, match=r"cannot tell which argument of .*step\.py:build is the batch size"):
        predict.largest_batch(f"{file}:build")


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("n_samples=10000, batch_size=32", "batch_size"),
        ("micro_batch=4, batch=32", "batch"),
        ("samples='data.csv', width=8", ""),
    ],
)
def test_what_is_called_a_batch_is_the_batch_wherever_it_stands(
    predict: Predict, made: Making, tmp_path: Path, signature: str, name: str
) -> None:
    made(sample=256 * MIB)
    file = tmp_path / "step.py"
    file.write_text(f"def build({signature}): ...\n", encoding="utf-8")
    if not name:
        with pytest.raises(UsageError, match=r"which argument of .* is the batch"):
            predict.largest_batch(f"{file}:build")
        return
    assert predict.largest_batch(f"{file}:build", gpu="v100-32gb").tried[:2] == (32, 64)


@pytest.mark.parametrize("batch", [-4, "many", 1.5])
def test_a_batch_that_is_no_number_of_samples_is_refused(predict: Predict, made: Making, batch: Any) -> None:
    made()
    with pytest.raises(UsageError, match=f"batch={batch} is not a batch size"):
        predict.memory(TARGET, arguments={"batch": batch})
    predict.memory(TARGET, arguments={"batch": 4, "samples": "data.csv"})


def test_a_step_that_was_not_followed_to_its_end_is_not_spread_and_has_no_largest_batch(
    predict: Predict, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = replace(step_trace(8), stopped="step.py:9 cannot run the backward")
    monkeypatch.setattr(predictions, "trace_targets", lambda asked, **_: [least for _ in asked])
    for ask in (lambda: predict.memory(TARGET, layout=Layout(data=2)), lambda: predict.largest_batch(TARGET)):
        with pytest.raises(UsageError, match=r"to the end of its step: step\.py:9"):
            ask()


def test_where_slack_alone_rules_out_a_larger_description_the_largest_batch_says_so(predict: Predict) -> None:
    found = predict.largest_batch(GPT, gpu="a100-40gb")
    assert any("without the estimated slack, a larger batch would fit" in note for note in found.account.notes)
    assert predict.memory(GPT, gpu="a100-40gb", arguments={"batch": found.batch + 1}).fits is False


def test_the_largest_batch_of_a_description_is_arithmetic(predict: Predict) -> None:
    found = predict.largest_batch(GPT, gpu="a100-80gb")
    at, beyond = (predict.memory(GPT, gpu="a100-80gb", arguments={"batch": found.batch + more}) for more in (0, 1))
    assert (at.fits, beyond.fits) == (True, False)
    assert found.account.device_used_bytes == at.device_used_bytes
    assert found.too_large is not None
    assert found.too_large.out_of_memory == (
        f"{format_size(beyond.device_used_bytes)} of {format_size(beyond.gpu.memory_bytes)} needed"
    )
    again = predict.largest_batch(GPT, gpu="a100-80gb", arguments={"batch": 1}, checkpointing=True)
    assert again.batch > found.batch


# Descriptions


def described(found: MemoryPrediction) -> int:
    size: int = found.to_dict()["peak_allocated_bytes"]
    return size


def test_a_description_gives_its_closed_form(predict: Predict) -> None:
    found = predict.memory(GPT, gpu="a100-80gb")
    form = closed_form(resolved(GPT).content, device("a100-80gb"))
    assert (found.estimate, found.batch, found.gpu.slug) == (form, 4, "a100-80gb")
    assert found.device_used_bytes == form.peak_reserved_bytes + form.breakdown["context"]
    assert found.to_dict()["peak_reserved_bytes"] == form.peak_reserved_bytes > form.peak_allocated_bytes
    assert predict.memory(GPT, gpu="a100-40gb", arguments={"batch": 3}).fits


def test_a_description_that_would_fit_without_slack_says_so(predict: Predict) -> None:
    doubt, clear = (predict.memory(GPT, gpu="a100-40gb", arguments={"batch": each}) for each in (4, 8))
    assert (doubt.fits, clear.fits) == (False, False)
    assert doubt.notes[-1].startswith("without the estimated slack it would fit")
    assert not clear.notes[-1].startswith("without the estimated slack")
    assert doubt.to_dict()["notes"] == list(doubt.notes)


def test_libraries_of_a_gpu_take_the_same_of_a_description_and_of_a_traced_step(
    predict: Predict, traced: list[TraceRequest]
) -> None:
    for gpu in ("h200", "a100-40gb", "t4"):
        code, form = predict.memory(TARGET, gpu=gpu), predict.memory(GPT, gpu=gpu)
        for part in ("workspace", "context"):
            assert form.to_dict()["breakdown"][part] == code.to_dict()["breakdown"][part], (gpu, part)
        told = [[note for note in each.notes if "were not measured" in note] for each in (code, form)]
        assert told[0] == told[1] and bool(told[0]) is (gpu != "h200")


def test_what_is_asked_changes_a_description(predict: Predict) -> None:
    usual = described(predict.memory(GPT))
    assert described(predict.memory(GPT, arguments={"batch": 8})) > usual
    assert described(predict.memory(GPT, precision="fp32")) > usual
    assert described(predict.memory(GPT, checkpointing=True)) < usual
    assert described(predict.memory(GPT, training=False)) < usual / 2
    asked: dict[str, Any] = {
        "precision": None,
        "accumulate": 1,
        "checkpointing": None,
        "channels_last": None,
        "optimizer_form": None,
    }
    assert described(predict.memory(GPT, **asked)) == usual


def test_a_replica_of_a_description_takes_its_batch(predict: Predict) -> None:
    rank = predict.memory(GPT, layout=Layout(data=8, zero=3)).rank
    form = closed_form(resolved(GPT).content)
    assert rank is not None
    kept, copies = form.footprint.activations_bytes, form.footprint.copies_bytes or {}
    assert rank.activations_bytes == pytest.approx(sum(kept.values()) + sum(copies.values()))
    assert rank.parameters_bytes == pytest.approx(form.footprint.total_parameters_bytes / 8)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"channels_last": True}, "--channels-last does not apply to the description"),
        ({"allocator": "expandable_segments:True"}, "--allocator does not apply to the description"),
        ({"arguments": {"layers": "many"}}, "gpt.yaml layers: Input should be a valid integer"),
        ({"arguments": {"colour": "red"}}, "gpt.yaml colour: Extra inputs are not permitted"),
        ({"precision": "fp8"}, "gpt.yaml precision: Input should be"),
        ({"gpu": "k9"}, "no device named 'k9'"),
    ],
)
def test_what_a_description_cannot_tell_is_said(predict: Predict, how: dict[str, Any], message: str) -> None:
    with pytest.raises(FairmileError) as told:
        predict.memory(GPT, **how)
    assert message in str(told.value)


def test_a_description_has_no_operators_to_time(predict: Predict) -> None:
    for verb in (predict.time, predict.trace):
        with pytest.raises(UsageError, match="is a description, so its operators are unknown") as told:
            verb(GPT)
        assert f"fairmile predict scaling {GPT} --on SYSTEM --gpus 1" in (told.value.hint or "")


# Time


def test_a_step_takes_time_and_energy_and_gives_samples(predict: Predict, traced: list[TraceRequest]) -> None:
    found = predict.time(TARGET, arguments={"batch": 16})
    assert found.step.low_s < found.step_time_s < found.step.high_s
    assert found.interval_s == (found.step.low_s, found.step.high_s)
    assert found.energy is not None
    assert H200.idle_w <= found.energy.power_w <= H200.max_w
    said = found.to_dict()
    assert said["samples_per_s"] == pytest.approx(16 / said["step_time_s"])
    assert said["bound"] in ("compute", "memory", "launch")


def test_a_step_of_several_batches_takes_all_their_samples(predict: Predict, traced: list[TraceRequest]) -> None:
    one, two = predict.time(TARGET), predict.time(TARGET, accumulate=2)
    assert (one.batch, two.batch) == (16, 32)
    assert two.step_time_s > 1.5 * one.step_time_s


def test_what_a_trace_lacks_is_told_with_every_answer(predict: Predict, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = replace(step_trace(8), notes=["only the forward is in this trace"])
    monkeypatch.setattr(predictions, "trace_targets", lambda *_, **__: [lacking])
    for said in (predict.memory(TARGET).to_dict(), predict.time(TARGET).to_dict()):
        assert said["notes"][0] == "only the forward is in this trace"
    assert predict.scaling(TARGET, "juwels", [1]).notes[0] == "only the forward is in this trace"


def test_input_of_unknown_speed_is_told_in_valid_json(predict: Predict, made: Making) -> None:
    made()
    said = predict.time(TARGET, storage={"write_bytes_per_s": 1.0}).to_dict()
    assert said["input"]["delivered_per_s"] is None
    assert json.dumps(said, allow_nan=False)


def test_samples_that_come_late_make_the_step_longer(predict: Predict, made: Making) -> None:
    made()
    found = predict.time(TARGET, storage={"seq_read_bytes_per_s": 800.0}, sample_bytes=100.0)
    assert found.bound == "input"
    assert found.step_time_s == pytest.approx(1.0)
    assert found.interval_s == (pytest.approx(found.step_time_s), pytest.approx(found.step_time_s))
    assert found.to_dict()["input"]["limit"] == "storage"


def test_a_step_that_waits_for_input_draws_little_more_than_idle_power(predict: Predict, made: Making) -> None:
    made()
    quick, slow = predict.time(TARGET), predict.time(TARGET, decode_s=1.0)
    said = slow.to_dict()
    assert said["step_time_s"] == pytest.approx(8.0)
    assert said["utilisation"] == pytest.approx(slow.step.device_s / 8.0)
    assert said["step_time_without_waiting_s"] == quick.step_time_s
    assert quick.energy is not None and slow.energy is not None
    assert H200.idle_w < slow.energy.power_w < quick.energy.power_w
    assert slow.energy.joules == pytest.approx(8.0 * slow.energy.power_w)


def test_input_that_is_hardly_late_leaves_the_interval_of_the_step(predict: Predict, made: Making) -> None:
    made()
    step = predict.time(TARGET).step
    late = predict.time(TARGET, decode_s=(step.step_time_s + step.high_s) / 2 / 8)
    assert (late.bound, late.interval_s) == ("input", (pytest.approx(late.step_time_s), step.high_s))
    early = predict.time(TARGET, decode_s=(step.step_time_s + step.low_s) / 2 / 8)
    assert early.bound != "input"
    # Were the step quicker than told, its input would hold it up.
    assert step.low_s < early.interval_s[0] < early.step_time_s


def test_workers_that_are_quick_enough_change_nothing(predict: Predict, made: Making) -> None:
    made()
    found = predict.time(TARGET, decode_s=1e-9, workers=4)
    assert found.input is not None
    assert found.bound != "input"
    assert found.step_time_s == predict.time(TARGET).step_time_s


# Scaling


def test_a_traced_step_scales_by_two_batches(
    predict: Predict, traced: list[TraceRequest], traces: dict[str, StepTrace]
) -> None:
    found = predict.scaling(TARGET, "juwels", [1, 4], arguments={**SMALL, "batch": 16})
    assert [row.gpus for row in found.rows] == [1, 4]
    assert [row.global_batch for row in found.rows] == [16, 16]
    assert [request.arguments["batch"] for request in traced] == [16, 2]
    first, last = found.rows
    assert first.step_time_s is not None
    assert last.step_time_s is not None
    assert last.step_time_s < first.step_time_s


def test_weak_scaling_needs_one_batch(predict: Predict, traced: list[TraceRequest]) -> None:
    found = predict.scaling(TARGET, "juwels:booster", [1, 2, 8], mode="weak", arguments={"batch": 16})
    assert [row.global_batch for row in found.rows] == [16, 32, 128]
    assert len(traced) == 1
    efficiencies = [row.efficiency for row in found.rows if row.efficiency is not None]
    assert efficiencies == sorted(efficiencies, reverse=True)


def test_batches_of_one_optimizer_step_belong_together(predict: Predict, traced: list[TraceRequest]) -> None:
    found = predict.scaling(TARGET, "juwels", [1], mode="weak", accumulate=2)
    assert found.rows[0].global_batch == 32


def test_a_described_transformer_is_spread_in_every_way(predict: Predict) -> None:
    found = predict.scaling(GPT, "jupiter", [64, 128], batch=512)
    assert [(row.gpus, row.global_batch) for row in found.rows] == [(64, 512), (128, 512)]
    assert all(row.plan is not None for row in found.rows)


def test_where_it_cannot_scale_is_told(predict: Predict, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="laptop has no GPUs"):
        predict.scaling(GPT, "laptop", [1])
    with pytest.raises(NotFound, match="juwels has no partition 'nosuch'"):
        predict.scaling(GPT, "juwels:nosuch", [1])
    (tmp_path / "lstm.yaml").write_text("kind: rnn\nlayers: 1\nhidden: 8\nseq: 4\ninputs: 2\nbatch: 2\n")
    with pytest.raises(UsageError, match="among descriptions, only transformers can be scaled"):
        predict.scaling(str(tmp_path / "lstm.yaml"), "juwels", [1])


# What was measured here


def seen(predict: Predict, times: float) -> tuple[StepForecast, float, str]:
    step = predict.time(TARGET).step
    foreseen = StepForecast("h200", 8, (0, 0, 0), (step.step_time_s, step.low_s, step.high_s), step.by_kind, 0)
    return foreseen, times * step.step_time_s, "train-1"


@pytest.mark.parametrize("times", [0.8, 1.25])
def test_runs_move_predictions_towards_what_they_took(
    predict: Predict, traced: list[TraceRequest], times: float
) -> None:
    before = predict.time(TARGET).step_time_s
    learnt = predict.learn("NVIDIA H200", [seen(predict, times)])
    assert (learnt.device, learnt.runs) == ("h200", ("train-1",))
    after = predict.time(TARGET).step_time_s
    assert before < after < 1.25 * before if times > 1 else 0.8 * before < after < before
    # Nothing was measured on another device.
    assert predict.time(TARGET, gpu="a100-80gb").step.by_kind


def test_learning_again_does_not_correct_twice(predict: Predict, traced: list[TraceRequest]) -> None:
    first = seen(predict, 1.25)
    assert predict.learn("h200", [first]) == predict.learn("h200", [first])


def test_a_dry_run_learns_nothing(predict: Predict, traced: list[TraceRequest], tmp_path: Path) -> None:
    learnt = predict.learn("h200", [seen(predict, 1.25)], dry_run=True)
    assert any(factor > 1 for factor in learnt.factors.values())
    assert not (tmp_path / "perf").exists()


@pytest.mark.thorough
def test_operators_measured_here_go_before_those_of_the_table_that_comes_along(
    predict: Predict, traced: list[TraceRequest], traces: dict[str, StepTrace]
) -> None:
    before = predict.time(TARGET).step
    ops = [each.op for each in candidates_of(traces["whole"], "step") if "convolution" in each.op.name]
    table = predict.table_file("NVIDIA H200")
    table.parent.mkdir(parents=True)
    rows = [OperatorTiming(signature(op), write_tensors(op.outputs), ("step",), 900.0, 900.0, 20.0) for op in ops]
    write_table(table, rows, TableOrigin("NVIDIA H200", "", "2.11.0", "2026-11-16"))
    after = predict.time(TARGET).step
    assert after.by_how["here"] == after.by_kind["conv"] == pytest.approx(sum(_calls(before, op) for op in ops) * 9e-4)
    kept = {kind: seconds for kind, seconds in before.by_kind.items() if kind not in ("conv", "elementwise", "copy")}
    assert kept and {kind: after.by_kind[kind] for kind in kept} == kept
    assert predict.time(TARGET, gpu="a100-80gb").step.by_how.keys() == {"scaled"}


def _calls(step: StepTime, op: Op) -> int:
    return next(line.count for line in step.top if line.signature == signature(op))


@pytest.fixture
def step_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark's step; what traces it answers with one made by hand."""
    monkeypatch.setattr(foresight, "trace_target", lambda *_, **__: step_trace())
    (tmp_path / "step.py").write_text("")
    return tmp_path / "step.py"


def test_what_is_foreseen_of_a_run_follows_what_runs_taught(predict: Predict, step_file: Path) -> None:
    first = predict.foresee(step_file, {}, "NVIDIA H200")
    assert first == predict.foresee(step_file, {}, "h200", as_shipped=True)
    factors = predict.learn("h200", [(first, 1.25 * first.step_s[0], "train-1")]).factors
    after = predict.foresee(step_file, {}, "h200")
    assert after.step_s[0] == step_time(step_trace(), H200, correction=factors).step_time_s > first.step_s[0]
    assert after.peak_bytes == first.peak_bytes
    # What is learnt from must not be corrected before.
    assert predict.foresee(step_file, {}, "h200", as_shipped=True) == first


def test_what_is_foreseen_of_a_run_on_a_partition_is_that_of_its_gpu(predict: Predict, step_file: Path) -> None:
    big = Partition(gpu=Gpu(count=4, model="A100", memory_gib=80))
    old = Partition(gpu=Gpu(count=4, model="Tesla V100 (SXM2)", memory_gib=16))
    assert predict.foresee(step_file, {}, big).gpu == "a100-80gb"
    assert predict.foresee(step_file, {}, old).gpu == "v100-16gb"


def test_a_gpu_that_is_not_known_is_told_before_anything_is_traced(
    predict: Predict, tmp_path: Path, traced: list[TraceRequest]
) -> None:
    unknown = Partition(gpu=Gpu(count=1, model="GeForce 256"))
    for on in ("GeForce 256", unknown):
        with pytest.raises(NotFound, match="no device named 'GeForce 256'"):
            predict.foresee(tmp_path / "nosuch.py", {}, on)
    with pytest.raises(NotFound, match="the partition has no GPUs"):
        predict.foresee(tmp_path / "nosuch.py", {}, Partition(cores=4))


def test_broken_corrections_are_told(predict: Predict, traced: list[TraceRequest], tmp_path: Path) -> None:
    predict.learn("h200", [seen(predict, 1.25)])
    (file,) = (tmp_path / "perf" / "corrections").iterdir()
    file.write_text('{"format": 1}')
    with pytest.raises(Integrity, match="is not a file of corrections"):
        predict.time(TARGET)


def test_a_calibration_measures_the_operators_of_targets_beside_a_general_list(
    predict: Predict, traced: list[TraceRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The whole list takes seconds.
    monkeypatch.setattr(predictions, "generic_candidates", lambda: candidates_of(step_trace(), "a small step"))
    usual, more = predict.calibrate(dry_run=True).left, predict.calibrate([TARGET], dry_run=True).left
    assert 0 < usual < more
    assert not (tmp_path / "perf").exists()


def test_the_time_of_a_calibration_runs_while_operators_are_listed(
    predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    clock = iter(range(100, 200))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(predictions, "calibrate", lambda *_, since, **__: given.append(since))
    monkeypatch.setattr(predictions, "generic_candidates", lambda: [None for _ in range(0, next(clock), 1000)][1:])
    predict.calibrate(for_s=25.0, device_name="cpu", file=tmp_path / "cpu.csv")
    assert given == [100]


def test_times_of_a_cpu_or_of_no_gpu_are_no_table(predict: Predict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "hardware", dict)
    with pytest.raises(UsageError, match="CPU times cannot be stored as those of a GPU"):
        predict.calibrate(device_name="cpu", gpu="h200")
    with pytest.raises(NotFound, match="this machine has no GPU to measure") as told:
        predict.calibrate()
    assert "run it on a machine with a GPU" in (told.value.hint or "")


def test_a_rank_of_a_description_computes_again_what_the_whole_would(predict: Predict) -> None:
    layout = Layout(data=4)
    plain, again = (predict.memory(GPT, layout=layout, checkpointing=each) for each in (None, True))
    assert plain.rank is not None and again.rank is not None
    assert again.rank.activations_bytes < plain.rank.activations_bytes / 5


def test_a_batch_cannot_be_cut_into_more_parts_than_it_has(predict: Predict) -> None:
    with pytest.raises(UsageError, match="a batch of 4 cannot be split into 8 equal micro-batches"):
        predict.memory(GPT, layout=Layout(micro_batches=8))


def test_one_replica_has_nobody_to_share_its_state_with(predict: Predict) -> None:
    with pytest.raises(UsageError, match="only one"):
        predict.memory(GPT, layout=Layout(zero=3))
    found = predict.memory(GPT, layout=Layout(zero=2, optimizer_on="host"))
    assert found.rank is not None and found.rank.optimizer_bytes == 0


def test_batches_of_a_description_may_be_summed_before_the_update(predict: Predict) -> None:
    one, four = predict.memory(GPT), predict.memory(GPT, accumulate=4)
    assert (one.batch, four.batch) == (4, 4)
    assert described(one) < described(four)
    said = [predict.scaling(GPT, "jupiter", [1], accumulate=each).rows[0].global_batch for each in (1, 4)]
    assert said == [4, 16]


def test_scaling_tells_the_memory_and_the_notes_of_the_step_on_one_gpu(
    predict: Predict, traced: list[TraceRequest]
) -> None:
    found = predict.scaling(TARGET, "juwels", [1, 2])
    alone, timed = (ask(TARGET, gpu="a100-40gb") for ask in (predict.memory, predict.time))
    first = found.rows[0].plan
    assert first is not None
    assert first.memory.device_bytes == pytest.approx(alone.device_used_bytes, rel=0.01)
    assert first.memory.device_bytes >= alone.device_used_bytes
    assert set(alone.notes) | set(timed.step.notes) <= set(found.notes)
    assert len(found.notes) == len(set(found.notes))


def test_a_small_model_is_not_sharded_for_nothing(predict: Predict, traced: list[TraceRequest]) -> None:
    found = predict.scaling(TARGET, "juwels", [2, 4, 16], arguments={"batch": 16})
    assert [row.plan.layout.zero for row in found.rows if row.plan is not None] == [0, 0, 0]
