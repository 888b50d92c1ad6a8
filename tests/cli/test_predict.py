"""`fairmile predict`: what a user sees before a job runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from notebook_html import notebook_html
from printed_results import assert_printed, assert_sound
from run_making import make_run
from step_making import step_trace
from sweep_making import wait_until

from fairmile.base import progress
from fairmile.base.units import format_size
from fairmile.costs.operators.refine import Correction, Corrections
from fairmile.costs.steps import StepTrace
from fairmile.predict import predict as predictions
from fairmile.predict import step_cache as foresight
from fairmile.predict.compiled.steps import trace_compiled
from fairmile.predict.fake_device.request import TraceRequest, trace_target
from fairmile.predict.memory.sharding import Layout
from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]
STEP = ("step.py:build", "-a", "batch=16", "-a", "width=8")
_TRACED: dict[str, StepTrace] = {}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Trace each request once, since that takes seconds; the function is the same wherever its file lies."""
    pytest.importorskip("torch")

    def once(request: TraceRequest, **how: Any) -> StepTrace:
        key = repr(request).replace(str(place), "")
        if key not in _TRACED:
            _TRACED[key] = trace_target(request, **how)
        return _TRACED[key]

    monkeypatch.setattr(predictions, "trace_targets", lambda asked, **how: [once(each, **how) for each in asked])
    monkeypatch.setattr(foresight, "trace_target", once)


# Memory


@pytest.mark.usefixtures("traced")
@pytest.mark.thorough
def test_memory_of_a_step_is_shown_by_part_and_as_json(fairmile: Fairmile, place: Path) -> None:
    told = fairmile("predict", "memory", *STEP, "--json").json
    assert (told["target"], told["gpu"], told["batch"], told["fits"]) == ("step.py:build", "h200", 16, True)
    assert told["peak_allocated_bytes"] <= told["peak_reserved_bytes"] < told["device_used_bytes"]
    result = fairmile("predict", "memory", *STEP, "-o", "page.html")
    assert result.code == 0
    assert result.out.startswith("part of the peak  size\n")
    shown = [line.partition(" ")[0] for line in result.out.splitlines()]
    assert [
        name for name in ("activations", "allocated", "reserved", "device", "peak", "fits") if name not in shown
    ] == []
    assert "yes, on NVIDIA H200 with a batch of 16" in result.out
    for name, figure in (("allocated", "peak_allocated_bytes"), ("device", "device_used_bytes")):
        span, line = told[f"{name}_span"], next(each for each in result.out.splitlines() if each.startswith(name))
        assert span["low"] <= told[figure] <= span["high"]
        assert f"({format_size(span['low'])} to {format_size(span['high'])})" in line
    assert "<html" in (place / "page.html").read_text().lower()


@pytest.mark.usefixtures("traced")
def test_a_search_that_meets_no_end_says_that_it_stopped(fairmile: Fairmile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fairmile("predict", "memory", *STEP).code == 0
    small = next(iter(_TRACED.values()))
    monkeypatch.setattr(predictions, "trace_targets", lambda asked, **_: [small] * len(asked))
    assert "largest batch  1,048,576 or more (larger batches were not tried)\n" in fairmile(
        "predict", "memory", *STEP, "--largest"
    ).out  # fmt: skip


@pytest.mark.thorough
@pytest.mark.usefixtures("traced")
def test_a_spread_step_tells_the_fullest_rank(fairmile: Fairmile) -> None:
    whole = fairmile("predict", "memory", *STEP, "--json").json
    told = fairmile("predict", "memory", *STEP, "--data", "4", "--zero", "1", "--json").json
    assert (told["layout"]["data"], told["layout"]["zero"], told["layout"]["micro_batch"]) == (4, 1, 16)
    assert told["rank"]["activations_bytes"] == pytest.approx(whole["breakdown"]["activations"], rel=0.5)
    text = fairmile("predict", "memory", *STEP, "--data", "4", "--zero", "1").out
    assert text.startswith("part of the fullest rank  size\n")
    assert f"unsharded  {format_size(whole['device_used_bytes'])} on one GPU" in text
    assert "with a batch of 16 a replica: each of 4 ranks (data 4, ZeRO 1)" in text
    shown = dict(line.split(maxsplit=1) for line in text.splitlines() if not line.startswith(("part", "unsharded")))
    for name in ("allocated", "reserved", "optimizer", "slack"):
        assert shown[name] == format_size(told["rank"][f"{name}_bytes"])


@pytest.mark.usefixtures("traced")
@pytest.mark.thorough
def test_a_program_that_shards_itself_is_one_of_its_ranks_and_not_split_once_more(fairmile: Fairmile) -> None:
    step = ("sharded.py:build", "--ranks", "8", "-a", "layers=2", "-a", "width=256")
    told = fairmile("predict", "memory", *step, "--json").json
    assert "this is one of 8 ranks, each with such a batch" in told["notes"]
    assert "communication between the ranks takes further time" in fairmile("predict", "time", *step, "--json").out
    for split in (("memory", *step, "--data", "2"), ("scaling", *step, "--on", "juwels:booster")):
        refused = fairmile("predict", *split)
        assert refused.code == 2
        assert "divides its work over 8 ranks itself, so no other layout can be predicted" in refused.err


def test_what_does_not_fit_ends_with_1(fairmile: Fairmile) -> None:
    result = fairmile("predict", "memory", "gpt.yaml", "--gpu", "v100-16gb")
    assert (result.code, result.err) == (1, "")
    assert "no, on " in result.out
    assert fairmile("predict", "memory", "gpt.yaml", "--gpu", "a100-80gb").code == 0


def test_a_description_is_changed_by_options_and_arguments(fairmile: Fairmile) -> None:
    def peak(*options: str) -> int:
        size: int = fairmile("predict", "memory", "gpt.yaml", *options, "--json").json["peak_allocated_bytes"]
        return size

    usual = peak()
    assert peak("--checkpointing") < usual
    assert peak("--inference") < usual
    assert peak("-a", "batch=8") > usual
    assert peak("--precision", "fp32") > usual
    offloaded = fairmile("predict", "memory", "gpt.yaml", "--offload", "host", "--json").json
    assert offloaded["rank"]["host_bytes"] > 0


def test_of_a_step_whose_shapes_depend_on_weights_the_intervals_reach_from_nothing_to_everything_selected(
    fairmile: Fairmile, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {(): 1 << 20, ("selected=0.0",): 1 << 18, ("selected=1.0",): 1 << 22}
    requests: list[TraceRequest] = []

    def traced(asked: list[TraceRequest], **_: object) -> list[StepTrace]:
        requests.extend(asked)
        return [
            replace(step_trace(8, sample=sizes.get(tuple(each.assume or ()), 1 << 19)), assumed=True) for each in asked
        ]

    monkeypatch.setattr(predictions, "trace_targets", traced)
    usual = fairmile("predict", "memory", "step.py", "--json").json
    assert [tuple(each.assume or ()) for each in requests] == list(sizes)
    assert usual["allocated_span"]["low"] < usual["peak_allocated_bytes"] / 2
    assert usual["allocated_span"]["high"] > usual["peak_allocated_bytes"] * 2
    assert "the intervals include masks that select nothing and everything" in usual["notes"][-1]
    requests.clear()
    half = fairmile("predict", "memory", "step.py", "--assume", "selected=0.5", "--json").json
    assert [tuple(each.assume or ()) for each in requests] == [("selected=0.5",)]
    assert half["peak_allocated_bytes"] < usual["peak_allocated_bytes"]
    assert fairmile("predict", "memory", "step.py", "--assume", "selected=2").code == 2


def test_of_a_step_that_depends_on_data_the_least_that_it_takes_is_told(
    fairmile: Fairmile, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = replace(step_trace(8), stopped="step.py:9 cannot run the forward: its shapes depend on data")
    requests: list[TraceRequest] = []
    monkeypatch.setattr(predictions, "trace_targets", lambda asked, **_: [requests.append(asked[0]) or least])
    result = fairmile("predict", "memory", "step.py", "--json")
    assert result.code == 2 and requests[0].partial
    assert "cannot determine whether it fits: step.py:9" in result.err
    assert (result.json["lower_bound"], result.json["fits"]) == (True, None)
    assert result.json["breakdown"]["optimizer"] > 0
    assert result.json["device_span"]["high"] is None
    shown = fairmile("predict", "memory", "step.py", "-o", "page.html")
    assert shown.code == 2
    assert (
        "cannot determine, on NVIDIA H200" in shown.out
        and "lower bound  the step was traced only in part: step.py:9" in shown.out
    )
    # What is more than the device has at least does not fit.
    least = replace(step_trace(8, sample=1 << 33), stopped="its shapes depend on data")
    assert fairmile("predict", "memory", "step.py", "--gpu", "t4").code == 1


def test_the_hint_of_largest_names_only_what_was_asked_for(fairmile: Fairmile) -> None:
    assert "--output" not in fairmile("predict", "memory", "step.py", "--largest", "--zero", "3").err
    assert "--output" in fairmile("predict", "memory", "step.py", "--largest", "-o", "x.html").err


@pytest.mark.usefixtures("traced")
def test_progress_names_the_batches_that_are_traced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    def small(asked: list[TraceRequest], **_: Any) -> list[StepTrace]:
        sizes = " and ".join(str(each.arguments["batch"]) for each in asked)
        wait_until(lambda: any(f"tracing the step with a batch of {sizes}," in note for note in notes))
        return [step_trace(each.arguments["batch"], sample=1 << 28) for each in asked]

    monkeypatch.setattr(predictions, "trace_targets", small)
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.01)
    Workspace.open(cwd=place).predict.largest_batch("step.py", gpu="t4", progress=lambda each: notes.append(each.note))
    assert any("a batch of 32 and 64," in note for note in notes)


def test_the_largest_batch_of_a_description_is_told(fairmile: Fairmile) -> None:
    told = fairmile("predict", "memory", "gpt.yaml", "--largest", "--gpu", "a100-80gb")
    batch = told.out.splitlines()[0].removeprefix("largest batch").strip()
    assert told.code == 0 and int(batch) > 4
    assert "one more" in told.out and " needed" in told.out
    assert fairmile("predict", "memory", "gpt.yaml", "-a", f"batch={batch}", "--gpu", "a100-80gb").code == 0


def test_every_precision_and_sum_of_batches_that_help_names_can_be_asked_of_a_description(fairmile: Fairmile) -> None:
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        assert fairmile("predict", "memory", "gpt.yaml", "--precision", precision, "--accumulate", "2").code == 0


def test_the_time_of_a_description_is_said_to_be_found_elsewhere(fairmile: Fairmile) -> None:
    told = fairmile("predict", "time", "gpt.yaml")
    assert "fairmile predict scaling gpt.yaml --on SYSTEM --gpus 1" in told.err
    assert fairmile("predict", "scaling", "gpt.yaml", "--on", "jupiter", "--gpus", "1").code == 0


def test_the_gpus_are_listed_without_a_target(fairmile: Fairmile) -> None:
    result = fairmile("predict", "memory", "--list-gpus")
    assert result.code == 0
    assert {"h200", "a100-80gb", "v100-16gb"} <= set(result.out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["memory", "gpt.yaml", "-a", "batch"], "-a 'batch' is not NAME=VALUE"),
        (["memory", "gpt.yaml", "-a", "a-b=1"], "-a 'a-b=1' is not NAME=VALUE"),
        (["memory", "gpt.yaml", "-a", "layers=[1]"], "gpt.yaml layers: Input should be a valid integer"),
        (["memory", "nosuch.py"], "no such file: nosuch.py"),
        (["memory", "gpt.yaml", "--gpu", "h2oo"], "no device named 'h2oo'"),
        (["memory", "gpt.yaml", "--channels-last"], "--channels-last does not apply to the description gpt.yaml"),
        (["memory", "gpt.yaml", "--micro-batches", "3"], "a batch of 4 cannot be split into 3 equal micro-batches"),
        (["memory", "gpt.yaml", "--tensor", "3"], "cannot split 16 heads over 3 ranks"),
        (["memory", "step.py", "-a", "batch=abc"], "batch=abc is not a batch size"),
        (["memory", "step.py", "-a", "batch=1.5"], "batch=1.5 is not a batch size"),
        (["memory", "step.py", "-a", "batch=NaN"], "batch=nan is not a batch size"),
        (["memory", "plain.py", "--largest"], "cannot tell which argument of plain.py is the batch size"),
        (["memory", "step.py", "--largest", "--zero", "3"], "--largest applies to one GPU"),
        (["memory", "step.py", "--largest", "-o", "x.html"], "--largest applies to one GPU"),
        (["memory", "gpt.yaml", "--pipeline", "99"], "a pipeline of 99 stages needs 99 layers or more"),
        (["time", "gpt.yaml"], "gpt.yaml is a description, so its operators are unknown"),
        (["time", "step.py", "--sample-size", "²"], "²"),
        (["time", "step.py", "--decode", "soon"], "soon"),
        (["time", "step.py", "--storage", "nosuch"], "nosuch"),
        (["scaling", "gpt.yaml", "--on", "laptop"], "laptop has no GPUs"),
        (["scaling", "gpt.yaml", "--on", "juwels", "--gpus", "many"], "'many' is not a number of GPUs"),
        (["scaling", "gpt.yaml", "--on", "juwels", "--price", "2"], "a price needs the number of samples"),
        (["calibrate", "--device", "cpu"], "CPU times cannot be stored as those of a GPU"),
        (["calibrate", "--for", "ever"], "ever"),
    ],
)
def test_bad_input_is_one_sentence(fairmile: Fairmile, place: Path, arguments: list[str], message: str) -> None:
    (place / "plain.py").write_text("def build(): ...\n")
    result = fairmile("predict", *arguments)
    assert result.code not in (0, 1)
    assert message in result.err.splitlines()[0]
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err


# Time


@pytest.mark.usefixtures("traced")
def test_time_is_shown_with_what_bounds_it(fairmile: Fairmile, place: Path) -> None:
    told = fairmile("predict", "time", *STEP, "--json").json
    assert told["low_s"] < told["step_time_s"] < told["high_s"]
    assert told["energy"]["joules"] > 0
    assert told["input"] is None
    result = fairmile("predict", "time", *STEP, "-o", "page.html")
    assert result.out.startswith("operator ")
    assert f"{16 / told['step_time_s']:,.1f} a second with a batch of 16" in result.out
    assert (place / "page.html").stat().st_size > 1000


@pytest.mark.usefixtures("traced")
def test_a_measured_storage_decides_whether_samples_come_in_time(fairmile: Fairmile, place: Path) -> None:
    runs = place.parent / "home" / "runs"
    # Two folders; the name of the first has a dot.
    slow = {"storage.data.v1.seq_read_bytes_per_s": 1600.0, "storage.data.v1.file_read_per_s": 1e9}
    make_run(runs, "storage-k3x9qa", name="storage", metrics={**slow, "storage.fast.seq_read_bytes_per_s": 1e12})
    make_run(runs, "other-k3x9qa", name="other", metrics={"loss": 1.0})
    fairmile("runs", "reindex")
    told = fairmile("predict", "time", *STEP, "--storage", "storage-k3x9qa", "--sample-size", "100", "--json").json
    assert (told["bound"], told["input"]["limit"]) == ("input", "storage")
    assert told["step_time_s"] == pytest.approx(1.0)
    result = fairmile("predict", "time", *STEP, "--storage", "other-k3x9qa")
    assert "run other-k3x9qa did not measure storage" in result.err


@pytest.mark.usefixtures("traced")
def test_all_that_is_told_of_a_step_that_waits_goes_by_the_step_with_its_waiting(fairmile: Fairmile) -> None:
    quick = fairmile("predict", "time", *STEP, "--json").json
    waiting = ("predict", "time", *STEP, "--decode", "1s")
    told = fairmile(*waiting, "--json").json
    assert (told["step_time_s"], told["bound"]) == (pytest.approx(16.0), "input")
    text = fairmile(*waiting).out
    step = next(line for line in text.splitlines() if line.startswith("step "))
    assert "16 s" in step and "set by its input" in step
    assert f"busy {quick['device_s'] / 16:.0%} of the time" in text
    longest = text.splitlines()[1].split()
    assert float(longest[longest.index("memory") - 1].rstrip("%")) == pytest.approx(
        100 * told["top"][0]["device_s"] / 16, abs=0.1
    )


# Scaling


@pytest.mark.thorough
def test_scaling_has_a_row_for_each_number_of_gpus(fairmile: Fairmile, place: Path) -> None:
    asked = ("scaling", "gpt.yaml", "--on", "juwels", "--gpus", "8..32", "--batch", "128")
    told = fairmile("predict", *asked, "--samples", "1e6", "--price", "2", "--json").json
    assert (told["target"], told["on"]) == ("gpt.yaml", "juwels")
    assert [row["gpus"] for row in told["rows"]] == [8, 16, 32]
    assert all(row["cost"] == pytest.approx(2 * row["gpu_hours"]) for row in told["rows"])
    text = fairmile("predict", *asked, "--samples", "1e6", "--price", "2").out
    assert f"{told['rows'][0]['cost']:,.2f}" in text and "GPU-hours" in text and "kWh" in text
    result = fairmile("predict", *asked, "-o", "page.html")
    assert [line.split()[0] for line in result.out.splitlines()[:4]] == ["GPUs", "8", "16", "32"]
    assert (place / "page.html").stat().st_size > 1000


# What was measured here


def test_without_runs_nothing_is_learnt(fairmile: Fairmile, place: Path) -> None:
    result = fairmile("predict", "learn")
    assert (result.code, result.out) == (0, "")
    assert "no run of a benchmark on a single GPU measured its speed yet" in result.err
    assert fairmile("predict", "learn", "--json").json == {"corrections": [], "dry_run": False}


@pytest.mark.thorough
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("times", [0.8, 1.25])
def test_predictions_follow_the_runs_of_the_workspace(fairmile: Fairmile, place: Path, times: float) -> None:
    target = ("predict", "time", "mnist", "-a", "batch_size=16", "--json")
    before = fairmile(*target).json
    spec = {"argv": ["python", "-m", "fairmile.benchmarks", "mnist"], "params": {"batch_size": 16}}
    rate = before["samples_per_s"] / times
    make_run(place.parent / "home" / "runs", "mnist-k3x9qa", spec=spec, metrics={"train_samples_per_s": rate})
    fairmile("runs", "reindex")
    planned = fairmile("predict", "learn", "--dry-run", "--json").json
    assert fairmile(*target).json["step_time_s"] == before["step_time_s"]
    learnt = fairmile("predict", "learn", "--json").json
    assert learnt["corrections"] == planned["corrections"]
    (correction,) = learnt["corrections"]
    assert (correction["device"], correction["runs"]) == ("h200", ["mnist-k3x9qa"])
    after = fairmile(*target).json["step_time_s"]
    assert after > before["step_time_s"] if times > 1 else after < before["step_time_s"]
    assert fairmile("predict", "learn").out.startswith("gpu ")
    kept = place.parent / "home" / "perf" / "corrections" / "h200.json"
    assert json.loads(kept.read_text())["runs"] == ["mnist-k3x9qa"]


# From Python


@pytest.mark.usefixtures("traced")
@pytest.mark.thorough
def test_what_python_gets_is_what_json_prints(fairmile: Fairmile) -> None:
    predict, given = Workspace.open().predict, {"batch": 16, "width": 8}
    step, sharded = "step.py:build", Layout(data=4, zero=1)
    memory = predict.memory("gpt.yaml", layout=sharded)
    assert_printed(fairmile, memory, "predict", "memory", "gpt.yaml", "--data", "4", "--zero", "1")
    assert_printed(fairmile, predict.memory("gpt.yaml"), "predict", "memory", "gpt.yaml")
    traced = predict.memory(step, arguments=given, accumulate=1)
    assert_printed(fairmile, traced, "predict", "memory", *STEP)
    assert_printed(fairmile, predict.time(step, arguments=given, accumulate=1), "predict", "time", *STEP)
    largest = predict.largest_batch("gpt.yaml", gpu="a100-80gb")
    assert_printed(fairmile, largest, "predict", "memory", "gpt.yaml", "--largest", "--gpu", "a100-80gb")
    scaling = predict.scaling("gpt.yaml", "juwels", [8, 4096], batch=128)
    assert_printed(
        fairmile, scaling, "predict", "scaling", "gpt.yaml", "--on", "juwels", "--gpus", "8,4096", "--batch", "128"
    )
    assert_printed(fairmile, predict.calibrate(dry_run=True), "predict", "calibrate", "--dry-run")
    assert_printed(fairmile, predict.learn_from_runs(), "predict", "learn")


def test_a_lower_bound_has_no_upper_end_in_any_interval(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    partial = replace(step_trace(8), stopped="its shapes depend on data")
    monkeypatch.setattr(predictions, "trace_targets", lambda asked, **_: [partial])
    bound = Workspace.open().predict.memory("step.py")
    assert_sound(bound)
    assert "may not fit" in repr(bound) and "lower bound" in bound._repr_html_()


def test_notebooks_show_the_main_numbers_of_a_prediction(place: Path) -> None:
    predict = Workspace.open().predict
    memory = predict.memory("gpt.yaml", gpu="a100-80gb")
    assert repr(memory) == (
        f"<MemoryPrediction: gpt.yaml fits NVIDIA A100-SXM4-80GB, {format_size(memory.device_used_bytes)} of "
        f"{format_size(memory.gpu.memory_bytes)} with a batch of 4>"
    )
    assert f"<th>activations</th><td>{format_size(memory.estimate.breakdown['activations'])}</td>" in notebook_html(
        memory
    )
    scaling = predict.scaling("gpt.yaml", "juwels", [8, 16], batch=128)
    assert scaling._repr_html_().count("<tr>") == 3
    assert repr(scaling.rows[0]).startswith("<ScalingRow: 8 GPUs: ")


def test_corrections_become_a_data_frame() -> None:
    corrections = Corrections([Correction("h200", {"gemm": 0.9}, ("a-k3x9qa",))])
    assert list(corrections.to_pandas()["factors.gemm"]) == [0.9]
    assert repr(corrections[0]) == "<Correction: h200: gemm 0.90, from 1 run>"


@pytest.mark.thorough
def test_a_compiled_step_is_predicted_from_the_program_that_inductor_writes(
    fairmile: Fairmile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    traced: list[StepTrace] = []

    def once(requests: Sequence[TraceRequest], **how: Any) -> list[StepTrace]:
        assert [each.compile for each in requests] == ["default"]
        if not traced:
            traced.extend(each for each in trace_compiled(requests, **how) if isinstance(each, StepTrace))
        return traced

    monkeypatch.setattr(predictions, "trace_compiled", once)
    predict, given = Workspace.open().predict, {"arguments": {"batch": 16, "width": 8}, "accumulate": 1}
    memory = predict.memory("step.py:build", **given, compile="default")
    time = predict.time("step.py:build", **given, compile="default")
    assert_printed(fairmile, memory, "predict", "memory", *STEP, "--compile", "default")
    assert_printed(fairmile, time, "predict", "time", *STEP, "--compile", "default")
    for notes in (memory.to_dict()["notes"], time.step.notes):
        assert any(note.startswith("the compiled step consists of the kernels that Inductor") for note in notes)
