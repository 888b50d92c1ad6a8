"""What an exploration is asked for, and what cannot be had."""

from __future__ import annotations

from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.models.convert.request import Request
from fairmile.models.explore.request import Candidate, Exploring, refusal
from fairmile.models.explore.results import runtime_name

MODEL = Request("onnx", "tides.onnx", "onnx")


def test_all_combinations_are_candidates_and_survive_json() -> None:
    asked = Exploring(MODEL, ("torch", "onnxruntime"), ("fp32", "int8"), (1, 8), (1,))
    assert len(asked.candidates()) == 8
    assert Exploring.from_json(asked.to_json()) == asked
    assert asked.candidates()[0].name == "torch fp32, batch 1, 1 thread"


def test_a_model_with_one_batch_size_is_asked_for_that_unless_others_are_named() -> None:
    assert {each.batch for each in Exploring(MODEL, ("torch",)).candidates(fixed_batch=4)} == {4}
    assert {each.batch for each in Exploring(MODEL, ("torch",), batches=(1, 2)).candidates(fixed_batch=4)} == {1, 2}


@for_each(
    "fields, reason",
    [
        ({"runtimes": ("onnxrt",)}, "no runtime named 'onnxrt'"),
        ({"precisions": ("fp8",)}, "no precision named 'fp8'"),
        ({"best": "speed"}, "no criterion named 'speed'"),
        ({"batches": (0,)}, "a batch size must be at least 1"),
        ({"max_loss": -1.0}, "the allowed loss must not be negative"),
    ],
)
def test_unknown_words_and_numbers_that_make_no_sense_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Exploring(MODEL, **fields)  # type: ignore[arg-type]


def test_more_than_a_hundred_processes_are_refused() -> None:
    with pytest.raises(UsageError, match="more than 100"):
        Exploring(MODEL, ("torch",), batches=tuple(range(1, 102))).candidates()


@for_each(
    "candidate, reason",
    [
        (Candidate("cudagraphs", "fp32", 1, 1), "CUDA graphs need an NVIDIA GPU"),
        (Candidate("openvino", "fp32", 1, 1, "cuda"), "OpenVINO does not compute on NVIDIA GPUs"),
        (Candidate("torch", "tf32", 1, 1), "TF32 is a format of NVIDIA GPUs"),
        (Candidate("onnxruntime", "bf16", 1, 1), "ONNX Runtime has bf16 for few operators only"),
        (Candidate("torch", "int8", 1, 1, "cuda"), "for CPUs only"),
        (Candidate("torch", "fp32", 1, 4096), "4096 threads are more than the"),
        (Candidate("torch", "fp32", 1, 1), ""),
    ],
)
def test_what_no_model_can_have_is_refused_with_its_reason(candidate: Candidate, reason: str) -> None:
    assert reason in refusal(candidate)
    assert bool(refusal(candidate)) == bool(reason)


def test_a_provider_that_onnx_runtime_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    on_gpu = Candidate("onnxruntime", "fp32", 1, 1, "cuda")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert refusal(on_gpu) == (
        "the installed ONNX Runtime has no CUDAExecutionProvider, only CPUExecutionProvider: "
        "pip install onnxruntime-gpu"
    )
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    assert refusal(on_gpu) == ""
    assert refusal(Candidate("onnxruntime", "fp32", 1, 1)) == ""


def test_a_row_names_the_provider_that_computed() -> None:
    row: Any = {"runtime": "onnxruntime", "provider": "CUDAExecutionProvider"}
    assert runtime_name(row) == "onnxruntime (CUDA)"
    assert runtime_name({**row, "provider": ""}) == "onnxruntime"
