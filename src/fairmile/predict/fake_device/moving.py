"""Brings a model onto the device in the order in which torch moves one there."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.predict.fake_device.kernels import NAME
from fairmile.predict.fake_device.operators import OperatorRecorder


def rehome(parameter: torch.nn.Parameter) -> None:
    """Move a parameter onto the device, without its data; it stays the same object."""
    with torch.no_grad():
        there = torch.nn.Parameter(parameter.detach().to(NAME), requires_grad=parameter.requires_grad)
    swap: Any = torch.utils.swap_tensors
    swap(parameter, there)


def bring(module: torch.nn.Module, recorder: OperatorRecorder, path: str = "") -> None:
    """Move what is left of a model, and note its allocations; a module's children come before itself."""
    for name, child in module.named_children():
        bring(child, recorder, f"{path}.{name}" if path else name)
    for parameter in module._parameters.values():
        if parameter is not None:
            if parameter.device.type == "cpu":
                rehome(parameter)
            recorder.claim(parameter, "parameter", path)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = buffer = buffer.to(NAME)
            recorder.claim(buffer, "buffer", path)
    if isinstance(module, torch.nn.RNNBase):
        _flatten(module, recorder, path)


def _flatten(module: torch.nn.RNNBase, recorder: OperatorRecorder, path: str) -> None:
    """Put all weights of a recurrent layer into one buffer, as cuDNN wants them."""
    weights = [weight for weight in module._parameters.values() if weight is not None]
    if len({weight.dtype for weight in weights}) != 1:
        return
    with torch.no_grad():
        flat = torch.empty(sum(weight.numel() for weight in weights), dtype=weights[0].dtype, device=NAME)
        recorder.claim(flat, "parameter", path)
        at = 0
        for weight in weights:
            weight.data = flat.as_strided(weight.shape, weight.stride(), at)
            at += weight.numel()
