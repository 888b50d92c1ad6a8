"""Brings a model onto the device in the order in which torch moves one there."""

from __future__ import annotations

from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from fairmile.predict.fake_device.kernels import NAME
from fairmile.predict.fake_device.operators import OperatorRecorder

_torch: Any = torch  # for what its types do not tell, and to change it


def patch() -> None:
    """Let parameters change the device as they do on CUDA: they stay the same objects, and of their kind."""
    by_swap = torch.__future__.set_swap_module_params_on_conversion
    by_swap(True)
    apply, data = _torch.nn.Module._apply, _torch.Tensor.data

    def apply_to_kinds(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        by_swap(not any(moves_itself(each) for each in self._parameters.values()))
        try:
            return apply(self, *args, **kwargs)
        finally:
            by_swap(True)

    def set_data(self: torch.Tensor, new: torch.Tensor) -> None:
        if torch._has_compatible_shallow_copy_type(self, new):
            data.__set__(self, new)
            return
        there = _torch.Tensor._make_subclass(type(self), new.detach(), self.requires_grad)
        there.__dict__.update(self.__dict__)
        _torch.utils.swap_tensors(self, there)

    _torch.nn.Module._apply = apply_to_kinds
    _torch.Tensor.data = property(data.__get__, set_data)


def moves_itself(parameter: torch.nn.Parameter | None) -> bool:
    """Say whether a parameter is of a kind of its own that does more than move, as one that is quantized then."""
    return isinstance(parameter, torch.nn.Parameter) and "to" in vars(type(parameter))


def rehome(parameter: torch.nn.Parameter) -> None:
    """Move a parameter onto the device, without its data; it stays the same object."""
    with torch.no_grad():
        there = torch.nn.Parameter(parameter.detach().to(NAME), requires_grad=parameter.requires_grad)
    _torch.utils.swap_tensors(parameter, there)


def bring(module: torch.nn.Module, recorder: OperatorRecorder, path: str = "") -> None:
    """Move what is left of a model, and note its allocations; a module's children come before itself."""
    for name, child in module.named_children():
        bring(child, recorder, f"{path}.{name}" if path else name)
    kinds = [parameter for parameter in module._parameters.values() if moves_itself(parameter)]
    if kinds:
        _torch.nn.Module._apply(module, lambda tensor: tensor.to(NAME), recurse=False)
    for parameter in module._parameters.values():
        if parameter is not None:
            if parameter.device.type == "cpu" and not hasattr(parameter, "device_mesh"):  # a shard stays where it is
                rehome(parameter)
            recorder.claim(parameter, "parameter", path)
    for each in held([vars(parameter) for parameter in kinds], 4):  # scales of a quantized one
        recorder.claim(each, "parameter", path)
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


def held(value: Any, depth: int) -> list[torch.Tensor]:
    """Return the tensors that a function, or what it holds, holds."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth == 0 or isinstance(value, (str, bytes, int, float, type, ModuleType, torch.nn.Module)):
        return []
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        parts = list(value)
    else:
        parts = list(getattr(value, "__dict__", {}).values())
        parts += [getattr(value, name, None) for name in ("__self__", "__defaults__", "func", "args", "keywords")]
        if isinstance(value, FunctionType):
            parts += [value.__globals__.get(name) for name in value.__code__.co_names]
        parts += [cell.cell_contents for cell in getattr(value, "__closure__", None) or () if _is_filled(cell)]
    tensors = {id(tensor): tensor for part in parts for tensor in held(part, depth - 1)}
    return list(tensors.values())


def held_by_modules(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the tensors that modules hold beside their parameters, buffers and children, such as in lists."""
    own = vars(torch.nn.Module())
    parts = [value for module in model.modules() for name, value in vars(module).items() if name not in own]
    return list({id(tensor): tensor for part in parts for tensor in held(part, 2)}.values())


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
