"""Builds a model from a user's function and runs its steps under the recorder."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmile.base.errors import UsageError
from fairmile.predict.fake_device import device, moving, parallel
from fairmile.predict.fake_device.dispatch import adopt, hooked
from fairmile.predict.fake_device.kernels import NAME
from fairmile.predict.fake_device.operators import Mixed, OperatorRecorder, Unpredictable
from fairmile.predict.fake_device.request import PRECISIONS, Refused, TraceRequest, Unfollowed

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# What torch adds: its C++ frames, all its signatures, how to debug its compiler.
_RESTS = (" Exception raised from ", ", but expected one of:", " Set TORCHDYNAMO_VERBOSE")
_MOST_TAKEN = 3  # times that tensors of the host are taken over: a loss may make new ones at each call


class TracedProgram:
    """What a user's function returned, ready to run."""

    def __init__(self, built: Any, request: TraceRequest) -> None:
        where = f"{request.file}:{request.function}"
        self.model = _part(built, "model", where)
        self.loss = _part(built, "loss", where)
        self.make_optimizer = _part(built, "optimizer", where, optional=True)
        if not isinstance(self.model, torch.nn.Module):
            raise Refused(f"`model` of {where} is a {type(self.model).__name__}", "return a torch.nn.Module")
        if not callable(self.loss):
            raise Refused(
                f"`loss` of {where} is not callable", "return a function that takes the model and returns a scalar"
            )
        if self.make_optimizer is not None and not callable(self.make_optimizer):
            raise Refused(
                f"`optimizer` of {where} is not callable", "return a function that takes the parameters, or None"
            )
        self.called: Any = self.model  # what the loss is given: the model, or its compiled form
        precision = request.precision or _part(built, "precision", where, optional=True) or "fp32"
        if precision not in PRECISIONS:
            raise Refused(f"`precision` of {where} is {precision!r}", f"use one of {', '.join(PRECISIONS)}")
        self.precision: str = precision
        self.samples = int(_part(built, "samples", where, optional=True) or 0)
        self.training = self.make_optimizer is not None if request.training is None else request.training


def _part(built: Any, name: str, where: str, *, optional: bool = False) -> Any:
    if isinstance(built, dict):
        is_there, value = name in built, built.get(name)
    else:
        is_there, value = hasattr(built, name), getattr(built, name, None)
    if not is_there and not optional:
        raise Refused(f"the object that {where} returns has no `{name}`", "return model, loss, optimizer and precision")
    return value


def build(request: TraceRequest, recorder: OperatorRecorder, place: device.DefaultDevice) -> TracedProgram:
    """Call the user's function and bring its model onto the device, nothing of which takes memory."""
    _seed()
    function = _load(request)
    adopt()
    place.building = True
    with device.without_initialisation(), _parameters_moved(), _explain_errors(request, "cannot build the model"):
        program = TracedProgram(function(**request.arguments), request)
    place.building = False
    adopt()  # what came with modules that the function imported
    model = program.model
    with _explain_errors(request, "cannot move the model to the device"):
        moving.bring(model, recorder)
    recorder.rest()
    if request.channels_last:
        _channels_last(model)
        for parameter in model.parameters():
            recorder.claim(parameter, "parameter")
    if request.checkpointing:
        enable = getattr(model, "gradient_checkpointing_enable", None)
        if enable is None:
            raise Refused(
                f"{type(model).__name__} has no gradient_checkpointing_enable, so --checkpointing has no effect",
                "remove --checkpointing; torch.utils.checkpoint in the model itself is traced as it is",
            )
        enable()
    model.train(program.training)
    return program


def _seed() -> None:
    """Fix what a program draws, such as how it turns a batch: one question has one answer."""
    random.seed(0)
    torch.manual_seed(0)
    np.random.seed(0)


def _load(request: TraceRequest) -> Callable[..., Any]:
    path = Path(request.file)
    if not path.is_file():
        raise Refused(f"no such file: {path}", "check the path of the Python file")
    name = f"fairmile_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Refused(f"{path} is not a Python file", "name a file that ends in .py")
    if str(path.resolve().parent) not in sys.path:
        sys.path.insert(0, str(path.resolve().parent))
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: a package of the user's is found there, nothing installed is replaced
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _explain_errors(request, "cannot be imported"):
        spec.loader.exec_module(module)
    function = getattr(module, request.function, None)
    if not callable(function):
        names = sorted(each for each, value in vars(module).items() if inspect.isfunction(value))
        raise Refused(f"{path} has no function {request.function!r}", f"it has {', '.join(names) or 'no functions'}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # one that is written in C may not tell
        return function  # type: ignore[no-any-return]
    try:
        signature.bind(**request.arguments)
    except TypeError as error:
        raise Refused(
            f"cannot call {path}:{request.function} with these arguments: {error}", f"its parameters: {signature}"
        ) from error
    return function  # type: ignore[no-any-return]


@contextlib.contextmanager
def _explain_errors(request: TraceRequest, what: str) -> Iterator[None]:
    """Within the block whatever a user's program raises becomes a refusal that names the line."""
    try:
        yield
    except Refused:
        raise
    except Unpredictable as error:
        hint = "make shapes and control flow of the model depend only on the shapes of its inputs"
        raise Unfollowed(f"{_where(request, error)} {what}: {error}", hint) from error
    except UsageError as error:
        raise Refused(error.message, error.hint or _hint(error)) from error
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        for rest in _RESTS:
            message = message.partition(rest)[0]
        message = message[:300]
        raise Refused(f"{_where(request, error)} {what}: {type(error).__name__}: {message}", _hint(error)) from error


def _hint(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name or 'the missing package'} in the environment that runs the prediction"
    return "call the function on its own to see where it fails"


def _where(request: TraceRequest, error: BaseException) -> str:
    """Return the last line of the user's own file that an error went through."""
    lines = [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
    own = str(Path(request.file).resolve())
    return next((line for line in reversed(lines) if line.startswith((own, request.file))), request.file)


@contextlib.contextmanager
def _parameters_moved() -> Iterator[None]:
    """Within the block a parameter is on the device, without memory, as soon as a module has it."""
    register = torch.nn.Module.register_parameter

    def register_moved(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if type(param) is torch.nn.Parameter and param.device.type == "cpu":
            moving.rehome(param)
        register(self, name, param)

    torch.nn.Module.register_parameter = register_moved  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def _channels_last(model: torch.nn.Module) -> None:
    ranks = {parameter.dim() for parameter in model.parameters()}
    form = torch.channels_last_3d if 5 in ranks else torch.channels_last
    model.to(memory_format=form)  # type: ignore[call-overload]


def run(program: TracedProgram, request: TraceRequest, recorder: OperatorRecorder) -> int:
    """Run the steps and return how many; what fails after a forward that worked leaves a note and a lower bound."""
    with _explain_errors(request, "cannot create the optimizer"):
        optimizer = _optimizer(program, request)
    taken = 0
    scaler = torch.amp.GradScaler("cuda") if program.training and program.precision == "fp16" else None
    steps = 0
    follow: Any = contextlib.nullcontext() if request.compile else hooked(recorder, program.model)
    if request.compile:
        if parallel.ranks() > 1:
            raise Refused("the step of several ranks cannot be compiled here", "predict its eager form")
        from fairmile.predict.fake_device.compiler import compiled

        program.called = compiled(program.model, recorder)
    with follow:
        while steps < request.steps:
            before, mixed = recorder.position(), ""
            recorder.step(steps)
            try:
                if not _step(program, request, recorder, optimizer, scaler):
                    steps += 1
                    break
            except Unfollowed as error:
                if not request.partial:
                    raise
                recorder.stopped = error.sentence
                recorder.backward_begins()  # while the error still holds what the forward made
            except Mixed as error:
                mixed = f"a host tensor of shape {tuple(error.tensor.shape)} is used with device tensors"
            if not mixed:
                steps += 1
                if recorder.stopped:
                    _end_step(program, request, recorder, optimizer)
                continue
            taken += 1
            if taken > _MOST_TAKEN or not _take_over(program, recorder):
                raise Refused(mixed, "create it in `loss` without a device argument, or on the device of the model")
            recorder.forget(before)
    if request.compile:
        from fairmile.predict.fake_device.compiler import ended

        ended(recorder)
    recorder.phase = "end"  # before the optimizer and its state go
    return steps


def _end_step(program: TracedProgram, request: TraceRequest, recorder: OperatorRecorder, optimizer: Any) -> None:
    """End a step that cannot be followed so far: parameters get gradients, the optimizer gets its state."""
    gc.collect()  # what the forward left that could not go on
    if not program.training:
        return
    for parameter in program.model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    recorder.backward_ended(program.model)
    _update(request, recorder, optimizer, None)


def _on_host(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.dim()]


def _take_over(program: TracedProgram, recorder: OperatorRecorder) -> bool:
    """Move the tensors that the loss holds to the device, where they were meant to be made; say if there are any.

    Where there are none, those go that modules hold beside their parameters and buffers. They stay the same objects.
    """
    gc.collect()  # what the forward left that came upon them
    held = _on_host(moving.held(program.loss, 4)) or _on_host(moving.held_by_modules(program.model))
    for tensor in held:
        with torch.no_grad():
            there = tensor.detach().to(NAME).requires_grad_(tensor.requires_grad)
        swap: Any = torch.utils.swap_tensors
        swap(tensor, there)
        recorder.claim(tensor, "input")
    if held:
        recorder.note("host tensors were used on the device: they count as inputs")
    return bool(held)


def _step(
    program: TracedProgram, request: TraceRequest, recorder: OperatorRecorder, optimizer: Any, scaler: Any
) -> bool:
    if program.training:
        return _train(program, request, recorder, optimizer, scaler)
    with torch.no_grad(), _cast(program.precision):
        _loss(program, request, recorder)
    return True


def _optimizer(program: TracedProgram, request: TraceRequest) -> Any:
    if not program.training or program.make_optimizer is None:
        return None
    optimizer = program.make_optimizer(program.model.parameters())
    if not all(callable(getattr(optimizer, name, None)) for name in ("step", "zero_grad")):
        where = f"{request.file}:{request.function}"
        raise Refused(f"`optimizer` of {where} returns a {type(optimizer).__name__}", "return a torch.optim.Optimizer")
    adopt()
    form = request.optimizer_form
    if form is not None:
        for group in [optimizer.defaults, *optimizer.param_groups]:
            group["foreach"], group["fused"] = form == "foreach", form == "fused"
        if form == "fused":
            optimizer._step_supports_amp_scaling = True
    return optimizer


def _cast(precision: str) -> contextlib.AbstractContextManager[Any]:
    dtype = _DTYPES.get(precision)
    return contextlib.nullcontext() if dtype is None else torch.autocast("cuda", dtype)


def _loss(program: TracedProgram, request: TraceRequest, recorder: OperatorRecorder) -> Any:
    recorder.forward_begins()
    with _explain_errors(request, "cannot run the forward pass"):
        loss = program.loss(program.called)
    where = f"`loss` of {request.file}:{request.function}"
    if (shape := recorder.empty_input()) is not None:
        raise Refused(f"{where} creates an input of shape {shape}: the batch is empty", "use at least one sample")
    if not program.training:
        return loss
    if not isinstance(loss, torch.Tensor):
        raise Refused(f"{where} returns a {type(loss).__name__}", "return a tensor with one element")
    if loss.numel() != 1:
        raise Refused(f"{where} returns a tensor of shape {tuple(loss.shape)}", "return a tensor with one element")
    if not loss.requires_grad:
        raise Refused(
            f"{where} does not depend on any parameter", "compute it from the output of the model, without no_grad"
        )
    return loss


def _train(
    program: TracedProgram, request: TraceRequest, recorder: OperatorRecorder, optimizer: Any, scaler: Any
) -> bool:
    recorder.phase = "optimizer"
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    else:
        program.model.zero_grad(set_to_none=True)
    for _ in range(request.accumulate):
        with _cast(program.precision):
            loss = _loss(program, request, recorder)
        try:
            with _explain_errors(request, "cannot run the backward pass"):
                if request.accumulate > 1:
                    loss = loss / request.accumulate
                recorder.backward_begins()
                (scaler.scale(loss) if scaler is not None else loss).backward()
        except Refused as refused:
            recorder.note(f"the trace lacks the backward pass: {refused.sentence}")
            recorder.stopped = refused.sentence
            return True
        recorder.backward_ended(program.model)
    return _update(request, recorder, optimizer, scaler)


def _update(request: TraceRequest, recorder: OperatorRecorder, optimizer: Any, scaler: Any) -> bool:
    """Run the optimizer's step; where that cannot be followed, say so and that the trace is not whole."""
    recorder.phase = "optimizer"
    try:
        with _explain_errors(request, "cannot run the optimizer step"):
            _step_optimizer(recorder, optimizer, scaler)
    except Refused as refused:
        recorder.note(f"the trace lacks the optimizer step: {refused.sentence}")
        recorder.stopped = recorder.stopped or refused.sentence
        return False
    return True


def _step_optimizer(recorder: OperatorRecorder, optimizer: Any, scaler: Any) -> None:
    if optimizer is None:
        return
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
        for value in (scaler._scale, scaler._growth_tracker):
            recorder.claim(value, "optimizer")
    recorder.stepped(optimizer)
