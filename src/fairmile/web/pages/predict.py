"""Predictions: will it fit, how long does a step take, on how many GPUs is it worth it.

A description is answered while one types. A benchmark is traced, which takes seconds and executes its code: only the
button of this page asks for that, never a link that somebody follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import ValidationError

from fairmile.base import yaml
from fairmile.base.errors import FairmileError, UsageError
from fairmile.base.results import Result
from fairmile.costs.devices import device_names
from fairmile.predict.predict import GPU
from fairmile.predict.results import MemoryPrediction, TimePrediction
from fairmile.predict.scaling.curves import ScalingPrediction, parse_gpus
from fairmile.reports.blocks import Block, Title
from fairmile.reports.predict_page import memory_blocks, scaling_blocks, time_blocks
from fairmile.web.api import predict as api
from fairmile.web.kept import Kept
from fairmile.web.parameters import Word
from fairmile.web.render import PART_HEADER, Page
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("predictions")
_EXAMPLE = """\
kind: transformer
layers: 24
hidden: 2048
heads: 16
vocab: 50304
seq: 2048
batch: 4
precision: bf16
optimizer: adamw
"""
_SYSTEM = "jupiter"
_Question = Literal["memory", "time", "scaling"]
_QUESTIONS = {
    "memory": "Will it fit?",
    "time": "How long does a step take?",
    "scaling": "How many GPUs are worth it?",
}
_SPREAD = ("data", "zero", "tensor", "pipeline", "micro_batches")


@routes.page("/predict")
def predict_page(
    request: Request,
    question: _Question = "memory",
    target: Word = "",
    description: Annotated[str, Query(max_length=10_000)] = "",
    gpu: Word = GPU,
    batch: Word = "",
    on: Word = "",
    gpus: Word = "1..64",
    mode: Literal["strong", "weak"] = "strong",
    samples: Word = "",
    data: Word = "",
    zero: Word = "",
    tensor: Word = "",
    pipeline: Word = "",
    micro_batches: Word = "",
) -> Page:
    """Predict memory, time or scaling of a description or a benchmark."""
    workspace = workspace_of(request)
    chosen = {
        **{"question": question, "target": target, "description": description or ("" if target else _EXAMPLE)},
        **{"gpu": gpu, "batch": batch, "on": on or _SYSTEM, "gpus": gpus, "mode": mode, "data": data, "zero": zero},
        **{"samples": samples, "tensor": tensor, "pipeline": pipeline, "micro_batches": micro_batches},
    }
    values: dict[str, Any] = {
        "chosen": chosen,
        "questions": _QUESTIONS,
        "benchmarks": workspace.benchmarks.with_step(),
        "gpu_names": device_names(),
        "systems": [each.name for each in workspace.systems.ls() if not each.problem],
        "may_start": identity_of(request).may("start"),
        **{"problem": "", "title": None, "waits": False},
    }
    blocks: list[Block] = []
    try:
        prediction = _predict(request, chosen)
        values["waits"] = prediction is None
        blocks = list(_blocks(prediction))
        values["title"] = next((each for each in blocks if isinstance(each, Title)), None)
    except FairmileError as error:
        values["problem"] = f"{error}. {error.hint or ''}".replace("--", "")
    shown = [each for each in blocks if not isinstance(each, Title)]
    return Page("predict.html", "Predict", values, shown, scripts=["predict.js"])


def _predict(request: Request, chosen: dict[str, str]) -> Result | None:
    """Return the prediction that the form asks for; None where only the button may ask for it."""
    what, answer = _request_of(chosen)
    kept: Kept = request.app.state.kept
    reader = identity_of(request).name, workspace_of(request).hidden
    asked = ("predict", *reader, chosen["question"], what.model_dump_json())
    if chosen["target"] and PART_HEADER not in request.headers and not kept.has(asked):
        return None
    result: Result = kept.get(asked, lambda: answer(request, what))
    return result


def _request_of(chosen: dict[str, str]) -> tuple[Any, Any]:
    """Return the same question as the API takes it, and what answers it."""
    about: dict[str, Any] = {"target": chosen["target"]} if chosen["target"] else {}
    if not chosen["target"]:
        data = yaml.load(chosen["description"], file="description")
        if not isinstance(data, dict):
            raise UsageError("the description has no fields", hint="begin with its kind, such as kind: transformer")
        about["description"] = data
    batch = _number(chosen, "batch")
    try:
        if chosen["question"] == "scaling":
            about |= {"on": chosen["on"], "gpus": parse_gpus(chosen["gpus"]), "mode": chosen["mode"], "batch": batch}
            about["samples"] = chosen["samples"].replace(",", "").strip() or None
            return api.ScalingRequest(**about), api.predict_scaling
        about |= {"gpu": chosen["gpu"], "arguments": _batch_argument(chosen, batch)}
        if chosen["question"] == "time":
            return api.TimeRequest(**about), api.predict_time
        spread = {name: value for name in _SPREAD if (value := _number(chosen, name)) is not None}
        layout = api.LayoutRequest.model_validate(spread) if spread else None
        return api.MemoryRequest(**about, layout=layout), api.predict_memory
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]).replace("layout.", "").replace("_", " ")
        raise UsageError(f"{field or 'form'}: {first['msg'].lower()}") from None


def _batch_argument(chosen: dict[str, str], batch: int | None) -> dict[str, int]:
    if batch is None:
        return {}
    return {"batch_size" if chosen["target"] else "batch": batch}


def _number(chosen: dict[str, str], field: str) -> int | None:
    text = chosen[field].strip()
    if text and not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{field.replace('_', ' ')}: {text!r} is not a whole number")
    return int(text[:12]) if text else None


def _blocks(prediction: Result | None) -> Iterator[Block]:
    match prediction:
        case MemoryPrediction():
            yield from memory_blocks(prediction)
        case TimePrediction():
            yield from time_blocks(prediction)
        case ScalingPrediction():
            yield from scaling_blocks(prediction, title=f"{prediction.target} on {prediction.on}")
