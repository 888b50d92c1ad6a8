"""One call of a model as a step that predictions trace: the model as an exploration runs it, on inputs of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from fairmile.models.convert.request import Request
from fairmile.models.convert.runtimes import flat_outputs
from fairmile.models.convert.sources import build_module, load_torch
from fairmile.models.explore.request import InputDict


def build(model: str, inputs: Mapping[str, InputDict], precision: str, onnx_file: str) -> Any:
    """Return the model of a request without an optimizer, and a call of it as its loss.

    `precision` is that of weights and inputs. `onnx_file` is given where PyTorch runs the ONNX form of the model.
    """
    kind = getattr(torch, precision)
    module = _module(Request.from_json(model), onnx_file, kind)
    held: list[Any] = []

    def call(module: Any) -> Any:
        # Inputs are on the device before a call, in the types of the model; each call converts them.
        held.extend(() if held else map(_tensor, inputs.values()))
        outputs = flat_outputs(module(*(each.to(kind) if each.is_floating_point() else each for each in held)))
        return next((each for each in outputs if each.is_floating_point()), outputs[0])

    samples = next(iter(inputs.values()))["shape"]
    return SimpleNamespace(
        model=module.to(kind), loss=call, optimizer=None, precision="fp32", samples=samples[0] if samples else 1
    )


def _module(request: Request, onnx_file: str, kind: torch.dtype) -> Any:
    if onnx_file:
        from fairmile.models.onnx_torch.module import OnnxModule

        return OnnxModule(onnx_file, precision=None if kind is torch.float32 else kind)
    if request.code:
        return build_module(request)
    return load_torch(request.source, request.format)


def _tensor(described: InputDict) -> Any:
    """Return a tensor on the device of the trace, which the model runs on."""
    kind: Any = getattr(torch, described["type"])
    shape = described["shape"]
    if kind.is_floating_point:
        return torch.zeros(shape, dtype=kind, device="cuda")
    return torch.randint(int(described["low"]), int(described["high"]) + 1, shape, device="cuda").to(kind)
