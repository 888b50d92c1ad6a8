"""Hardware and frameworks that a card declares: checked before a run, refused where they are missing, recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.catalog.kinds import CONTEXT_IRI
from fairmile.runs.execute import capture
from fairmile.runs.needs import Offer, check_needs, declared_needs, unmet
from fairmile.runs.record.run import RunState
from fairmile.runs.record.spec import RunSpec
from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace

GPU = "NVIDIA GPU with CUDA 11.8"


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The GPUs of this machine: none, unless a test adds one."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(capture, "hardware", lambda *_: {"gpus": found})
    return found


@pytest.fixture
def card() -> str:
    body = {
        "@context": CONTEXT_IRI,
        "@type": "SoftwareSourceCode",
        "name": "Tide",
        "version": "1",
        "license": "https://spdx.org/licenses/MIT",
        "command": [sys.executable, "-c", "print(1)"],
        "processorRequirements": GPU,
        "softwareRequirements": ["pkg:pypi/horovod@0.28", "pkg:pypi/pandas"],
    }
    Path("tide.json").write_text(json.dumps(body))
    return "tide.json"


@for_each(
    "body, needs",
    [
        ({"processorRequirements": GPU}, (GPU,)),
        ({"processorRequirements": ["8 cores of an AMD EPYC CPU"]}, ()),
        ({"processorRequirements": "AMD GPU with ROCm"}, ("AMD GPU with ROCm",)),
        ({"supportsAccelerator": True}, ()),
        ({"machineLearningFramework": ["PyTorch", "keras"]}, ("torch", "keras")),
        ({"softwareRequirements": ["pkg:pypi/horovod", "pkg:pypi/numpy", "Horovod 0.28", "tensorflow>=2"]},
         ("horovod", "tensorflow")),
        ({"softwareRequirements": ["https://w3id.org/x/environment/torch"]}, ()),
    ],
)  # fmt: skip
def test_what_a_card_declares(body: dict[str, Any], needs: tuple[str, ...]) -> None:
    assert declared_needs([body]) == needs


def test_what_is_missing_is_refused_with_all_that_was_found(runs: Runs, card: str) -> None:
    said = rf"tide declares that it needs {GPU}, horovod, but this machine has no GPU, no horovod"
    with pytest.raises(UsageError, match=said) as caught:
        runs.run(card)
    assert "--anyway" in (caught.value.hint or "")
    assert not runs.rows()


def test_a_benchmark_of_ours_without_its_packages_is_answered_with_their_installation() -> None:
    def software(name: str) -> tuple[bool, str]:
        return False, f"this machine has no {name}"

    here = Offer("this machine", (), software, "--on SYSTEM runs it elsewhere", is_here=True)
    checked = check_needs(["torch", "scikit-learn"], here)
    error = unmet("builtin/benchmark/mnist@1.0", checked, here)
    assert error is not None and error.hint == "pip install 'fairmile[benchmarks]'"
    assert "--anyway" in str(error)
    stranger = unmet("local/benchmark/tide@1", checked, here)
    assert stranger is not None and "pip install" not in (stranger.hint or "")


def test_the_plan_tells_what_is_missing_before_anything_happens(runs: Runs, card: str) -> None:
    told = [step.what for step in runs.plan(card).steps if step.verb == "needs"]
    assert told == [f"{GPU}: missing (this machine has no GPU)", "horovod: missing (this machine has no horovod)"]


def test_needs_can_be_ignored_and_the_record_says_what_was_missing(runs: Runs, card: str) -> None:
    run = runs.run(card, anyway=True)
    assert run.state is RunState.DONE
    assert [(each["declared"], each["met"]) for each in run.captured.needs] == [(GPU, False), ("horovod", False)]


def test_one_word_runs_it_regardless_as_a_sweep_and_once_more(workspace: Workspace) -> None:
    sweeps = workspace.sweeps
    definition, source = sweeps.read(command=["echo", "{n}"], params={"n": [1, 2]})
    with pytest.raises(UsageError, match="this machine has no GPU"):
        sweeps.create(definition, source, needs=(GPU,))
    sweep = sweeps.create(definition, source, needs=(GPU,), anyway=True)
    assert [point.state for point in sweeps.run(sweep)] == ["done", "done"]
    run = workspace.runs.run(["echo", "1"], needs=(GPU,), anyway=True)
    assert workspace.runs.rerun(run.id).again.state is RunState.DONE


def test_what_is_there_is_recorded(runs: Runs, gpus: list[dict[str, Any]]) -> None:
    gpus.append({"model": "NVIDIA H200"})
    run = runs.run(RunSpec(argv=(sys.executable, "-c", "1"), needs=(GPU, "scikit-learn")))
    assert [(each["met"], each["found"].partition("==")[0]) for each in run.captured.needs] == [
        (True, "1 × NVIDIA H200"),
        (True, "scikit-learn"),
    ]


def test_a_gpu_of_another_vendor_does_not_do(runs: Runs, gpus: list[dict[str, Any]]) -> None:
    gpus.append({"model": "AMD Instinct MI250X"})
    with pytest.raises(UsageError, match="has only AMD Instinct MI250X"):
        runs.run(RunSpec(argv=("true",), needs=(GPU,)))
    assert runs.run(RunSpec(argv=("true",), needs=("a GPU",))).captured.needs[0]["met"] is True


def test_a_system_is_asked_by_its_description(runs: Runs) -> None:
    spec = RunSpec(argv=("true",), needs=(GPU, "horovod"), system="jureca")
    with pytest.raises(UsageError, match="but the partition dc-cpu of jureca has no GPU") as caught:
        runs.check_needs(spec)
    assert "--partition dc-gpu has GPUs" in (caught.value.hint or "")
    there = {"resources": {"partition": "dc-gpu"}, "software": ("horovod",)}
    checked = runs.check_needs(RunSpec.model_validate(spec.model_dump() | there))
    assert [each.met for each in checked] == [True, True]
    assert [each.met for each in runs.check_needs(spec.model_copy(update={"anyway": True}))] == [False, None]
