"""Predictions beside an exploration: what each combination on a GPU was expected to take, or why that is unknown."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmile.base.digest import sha256_file, sha256_hex
from fairmile.base.errors import FairmileError
from fairmile.base.files import write_atomic
from fairmile.base.version import __version__
from fairmile.costs.devices import TF32_BY_DEFAULT, Device, device
from fairmile.costs.operators.work import work_of
from fairmile.costs.steps import StepTrace
from fairmile.models.convert.request import Request
from fairmile.models.explore.request import OF_TORCH, Exploring
from fairmile.models.explore.results import CandidateDict, ExplorationDict
from fairmile.predict.compiled.doubts import of_compiled
from fairmile.predict.compiled.rewrite import compiled
from fairmile.predict.fake_device.request import TraceRequest, trace_targets
from fairmile.predict.measured import MeasuredTimes
from fairmile.predict.memory.account import account
from fairmile.predict.step_time import HostCosts

_LONGEST_S = 600.0
_TYPES = {"bf16": "bfloat16", "fp16": "float16"}
_CALL_US = 15.0  # of the host beside a call's operators: it waits for the device, and nothing else of a training step
_NO_TF32 = "no times of convolutions and recurrent layers without TF32 are known"
_ON_CPU = "only combinations on a GPU are predicted"


def predict_exploration(
    asked: Exploring, explored: ExplorationDict, folder: Path, cache: Path, measured: MeasuredTimes
) -> ExplorationDict:
    """Return an exploration with a prediction for each measured combination, or why it has none.

    `folder` is that of its run. Each model is traced once for all combinations; `cache` keeps what was predicted.
    """
    rows = [each for each in explored["candidates"] if each["state"] == "measured"]
    reasons = [_reason(asked.model, explored, each, folder) for each in rows]
    open_rows = [each for each, reason in zip(rows, reasons, strict=True) if not reason]
    known: Mapping[str, Mapping[str, Any]] = {}
    problem = ""
    if open_rows:
        try:
            known = _predicted(asked, explored, open_rows, folder, cache, measured)
        except FairmileError as error:
            problem = error.message
    predicted: dict[int, Any] = {}
    for row, reason in zip(rows, reasons, strict=True):
        fields = known.get(_key(row), {"unpredicted": problem}) if not reason else {"unpredicted": reason}
        predicted[id(row)] = {**row, **fields}
    return {**explored, "candidates": [predicted.get(id(each), each) for each in explored["candidates"]]}


def _reason(model: Request, explored: ExplorationDict, row: CandidateDict, folder: Path) -> str:
    """Return why nothing can be predicted of a combination, before its model is traced."""
    if row["device"] != "cuda":
        return _ON_CPU
    if row["runtime"] not in OF_TORCH:
        return "only PyTorch's runtimes are predicted"
    if str(row["batch"]) not in explored.get("inputs", {}):
        return "its run kept no sizes of inputs"
    file = _onnx_file(model, folder)
    return "" if not file or Path(file).is_file() else "its run left the ONNX form of the model on the system"


def _onnx_file(model: Request, folder: Path) -> str:
    """Return the ONNX form that PyTorch runs of a model, empty where it runs the model itself."""
    if model.code or model.format in ("torchscript", "pytorch-exported"):
        return ""
    return model.source if model.format == "onnx" else str(folder / "model.onnx")


def _key(row: CandidateDict) -> str:
    is_autocast = row.get("way", "").startswith("autocast")
    return f"{row['runtime']} {row['precision']}{' autocast' if is_autocast else ''} {row['batch']}"


def _predicted(
    asked: Exploring,
    explored: ExplorationDict,
    rows: Sequence[CandidateDict],
    folder: Path,
    cache: Path,
    measured: MeasuredTimes,
) -> Mapping[str, Mapping[str, Any]]:
    """Return the predictions of combinations by their keys."""
    on = device(explored["machine"]["gpu"])
    requests = {_traced(row): _request(asked.model, explored, row, folder) for row in rows}
    kept = cache / f"{_digest(asked.model, requests, rows, on, measured)}.json"
    with suppress(OSError, ValueError):  # not there yet, or something else wrote it
        content: dict[str, dict[str, Any]] = json.loads(kept.read_bytes())
        return content
    with tempfile.TemporaryDirectory(prefix="fairmile-trace-") as place:
        answers = trace_targets([*requests.values()], timeout_s=_LONGEST_S, folder=Path(place))
    traces = dict(zip(requests, answers, strict=True))
    predicted: dict[str, dict[str, Any]] = {}
    for row in rows:
        trace = traces[_traced(row)]
        refused = trace.stopped if isinstance(trace, StepTrace) else trace.message
        predicted[_key(row)] = (
            {"unpredicted": refused}
            if refused or not isinstance(trace, StepTrace)
            else _forecast(trace, row, on, measured)
        )
    with suppress(FairmileError):  # what cannot be kept is traced again
        write_atomic(kept, json.dumps(predicted))
    return predicted


def _forecast(trace: StepTrace, row: CandidateDict, on: Device, measured: MeasuredTimes) -> dict[str, Any]:
    """Return the time and the allocated memory of one call: eager, compiled, or as a CUDA graph."""
    if row["runtime"] == "compile":
        trace = compiled(trace, "default")
    taken = account(trace, on)
    taken = of_compiled(taken, trace) if trace.compiled else taken
    memory = {"predicted_memory_bytes": taken.peak_allocated_bytes}
    if row["precision"] == "fp32" and any(work_of(each).kind in TF32_BY_DEFAULT for each in trace.ops):
        return {**memory, "unpredicted": _NO_TF32}
    # A CUDA graph is the eager kernels without their launches.
    timed = replace(trace, compiled="reduce-overhead") if row["runtime"] == "cudagraphs" else trace
    time = measured.step_time(timed, on, replace(HostCosts(), step_us=_CALL_US))
    times = {"predicted_s": time.step_time_s, "predicted_low_s": time.low_s, "predicted_high_s": time.high_s}
    return {**times, **memory}


def _traced(row: CandidateDict) -> str:
    """Return what traces of combinations are told apart by."""
    return _key(row).partition(" ")[2]


def _request(model: Request, explored: ExplorationDict, row: CandidateDict, folder: Path) -> TraceRequest:
    is_autocast = row.get("way", "").startswith("autocast")
    kind = "float32" if is_autocast else _TYPES.get(row["precision"], "float32")
    arguments = {
        "model": model.to_json(),
        "inputs": explored["inputs"][str(row["batch"])],
        "precision": kind,
        "onnx_file": _onnx_file(model, folder),
    }
    precision = row["precision"] if is_autocast or row["precision"] == "tf32" else "fp32"
    return TraceRequest(_step_file(), arguments=arguments, training=False, precision=precision)


def _step_file() -> str:
    """Return the file that builds a call; it imports PyTorch, so that it is not imported here."""
    found = importlib.util.find_spec("fairmile.models.explore.step")
    return str(found.origin) if found is not None else ""


def _digest(
    model: Request,
    requests: Mapping[str, TraceRequest],
    rows: Sequence[CandidateDict],
    on: Device,
    measured: MeasuredTimes,
) -> str:
    """Return what predictions depend on: the model with its code, the combinations, the GPU and measured times."""
    code = model.code.rpartition(":")[0]
    files = [Path(each) for each in (model.source, code if code.endswith(".py") else "") if each]
    digests = [sha256_file(each) if each.is_file() else "" for each in files]
    asked = [__version__, on.slug, measured.digest(on), digests, [_key(each) for each in rows]]
    return sha256_hex(json.dumps([asked, {name: each.arguments for name, each in requests.items()}]).encode())[:32]
