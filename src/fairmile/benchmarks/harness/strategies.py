"""How a model is trained on one device or on many: one interface, whatever library carries it out."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import nn

from fairmile.base.errors import Integrity, Unsupported, UsageError
from fairmile.benchmarks.harness.meeting import join_group, leave_group
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.settings import TrainSettings

Array = np.ndarray[Any, Any]
State = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]  # of the parameters of the module it is given

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def make_strategy(settings: TrainSettings, ranks: Ranks) -> Strategy:
    """Return the strategy that the settings ask for, with its processes joined; `close` lets them part."""
    device = pick_device(settings.device, ranks)
    if settings.precision == "fp16" and device.type == "cpu":
        raise UsageError("precision fp16 needs a GPU", hint="use precision=bf16 or precision=fp32 on the CPU")
    _set_precision(settings.precision)
    return _STRATEGIES[settings.strategy](settings, ranks, device)


def pick_device(wanted: str, ranks: Ranks) -> torch.device:
    """Return the device of this rank: its own GPU where there is one, unless another is named."""
    try:
        device = torch.device("cuda" if wanted == "auto" else wanted)
    except RuntimeError as error:
        raise UsageError(
            f"parameter device: {wanted!r} is not a device", hint="use auto, cpu, cuda or cuda:1"
        ) from error
    if device.type != "cuda":
        if device.type != "cpu" and not getattr(getattr(torch, device.type, None), "is_available", bool)():
            raise UsageError(f"parameter device: no {wanted!r} on this machine", hint="use device=cpu or device=auto")
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        if wanted == "auto":
            return torch.device("cpu")
        raise UsageError(f"parameter device: no GPU for {wanted!r}", hint="use device=cpu or device=auto")
    # A launcher may show each process only its own GPU: then all of them have the number 0.
    index = ranks.local_rank % count if device.index is None else device.index
    if index >= count:
        raise UsageError(f"parameter device: no {wanted}, only {count} GPUs", hint=f"use cuda:{count - 1}")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


class Strategy:
    """Training in one process on one device; those of many processes derive from it."""

    def __init__(self, settings: TrainSettings, ranks: Ranks, device: torch.device) -> None:
        self.settings = settings
        self.ranks = ranks
        self.device = device
        self._check()
        self._half = _HALF.get(settings.precision)
        self._scaler = torch.amp.GradScaler(device.type) if self._half is torch.float16 else None

    def _check(self) -> None:
        if self.ranks.size > 1:
            raise UsageError(
                f"strategy single uses one process, but the launcher started {self.ranks.size}",
                hint="use strategy=ddp, or start one process",
            )

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model on the device, wrapped as the settings say, and the optimizer of its parameters."""
        model = self._placed(model)
        if self.settings.compile:
            model.compile()
        return model, make_optimizer(model)

    def _placed(self, model: nn.Module) -> nn.Module:
        model = model.to(self.device)
        lay_out(model, self.settings)
        return model

    def in_precision(self, forward: Callable[P, T]) -> Callable[P, T]:
        """Return a function that runs a forward pass in the precision of the settings."""
        if self._half is None:
            return forward
        in_half: Callable[P, T] = torch.autocast(self.device.type, self._half)(forward)
        return in_half

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return the context of forward and backward of all but the last batch of a step."""
        return contextlib.nullcontext()

    def backward(self, model: nn.Module, loss: torch.Tensor) -> None:
        """Add the gradients of a loss, which the caller divided by the number of batches of the step."""
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float = 0.0) -> None:
        """Let the optimizer do a step with the gradients, cut to a norm unless that is 0, and clear them."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        if clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()
        for group in optimizer.param_groups:  # `zero_grad` does the same, but is slower: it marks itself for profilers
            for parameter in group["params"]:
                parameter.grad = None

    def gather(self, array: Array) -> Array:
        """Return the arrays of all ranks, whose lengths may differ, one after the other; every rank calls it."""
        return array

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> State:
        """Return a copy of all weights and of the optimizer, on the CPU and whole; every rank calls it.

        It says nothing of the strategy: any other goes on with it.
        """
        state: State = {"model": {name: _whole(value) for name, value in self._plain(model).state_dict().items()}}
        if optimizer is not None:
            state["optimizer"] = _mapped(self._optimizer_state(model, optimizer), _whole)
        if self._scaler is not None:
            state["scaler"] = self._scaler.state_dict()
        return state

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, state: Mapping[str, Any]) -> None:
        """Take over what `state` of any strategy returned; every rank calls it."""
        _fill(self._plain(model), state["model"])
        if optimizer is not None and state.get("optimizer"):
            self._load_optimizer(model, optimizer, state["optimizer"])
        if self._scaler is not None and state.get("scaler"):
            self._scaler.load_state_dict(dict(state["scaler"]))

    def _optimizer_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
        return optimizer.state_dict()

    def _load_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        _check_count(state, len(parameters))
        values = {
            number: {name: _like(value, parameters[number]) for name, value in of_one.items()}
            for number, of_one in state["state"].items()
        }
        optimizer.load_state_dict({"state": values, "param_groups": copy.deepcopy(state["param_groups"])})

    def _plain(self, model: nn.Module) -> nn.Module:
        """Return the module whose weights have their plain names."""
        return model

    def unwrapped(self, model: nn.Module) -> nn.Module:
        """Return the model as it was before it was wrapped, with the weights of now; every rank calls it."""
        return self._plain(model)

    def barrier(self) -> None:
        """Wait for all ranks."""

    def close(self) -> None:
        """Part from the other ranks."""


class _Group(Strategy):
    """What all strategies that use the process group of torch share."""

    def __init__(self, settings: TrainSettings, ranks: Ranks, device: torch.device) -> None:
        super().__init__(settings, ranks, device)
        self._joined = join_group(ranks, device, os.environ)

    def _check(self) -> None:
        if not torch.distributed.is_available():
            raise Unsupported(
                f"strategy {self.settings.strategy} needs torch with distributed support", hint="pip install torch"
            )

    def gather(self, array: Array) -> Array:
        if self.ranks.size == 1:
            return array
        shape = (*array.shape[1:],)
        own = torch.tensor([len(array)], device=self.device)
        lengths = [torch.zeros_like(own) for _ in range(self.ranks.size)]
        torch.distributed.all_gather(lengths, own)
        rows = [int(each) for each in lengths]
        row_bytes = array.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        padded = torch.zeros(max(rows) * row_bytes, dtype=torch.uint8)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        padded[: raw.size] = torch.from_numpy(raw.copy())
        padded = padded.to(self.device)
        parts = [torch.empty_like(padded) for _ in rows]
        torch.distributed.all_gather(parts, padded)
        arrays = [
            part[: count * row_bytes].cpu().numpy().view(array.dtype).reshape(count, *shape)
            for part, count in zip(parts, rows, strict=True)
        ]
        return np.concatenate(arrays)

    def barrier(self) -> None:
        # The barrier of nccl guesses the device; a sum cannot get it wrong.
        torch.distributed.all_reduce(torch.zeros(1, device=self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        if self._joined:
            leave_group()
            self._joined = False


class _Ddp(_Group):
    """Each rank has the whole model; gradients are averaged while they are computed."""

    _wrapped: nn.parallel.DistributedDataParallel | None = None

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = self._placed(model)
        optimizer = make_optimizer(model)
        if self.settings.compile:
            model.compile()
        devices = [self.device.index] if self.device.type == "cuda" else None
        self._wrapped = nn.parallel.DistributedDataParallel(model, devices, gradient_as_bucket_view=True)
        return self._wrapped, optimizer

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        return model.no_sync() if isinstance(model, nn.parallel.DistributedDataParallel) else contextlib.nullcontext()

    def _plain(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model

    def close(self) -> None:
        # What averages gradients must go before the group: the last to hold a group waits for its threads, and this
        # one would do so with Python's lock in its hands, which they may need.
        if self._wrapped is not None:
            for part in ("logger", "reducer"):
                vars(self._wrapped).pop(part, None)
            self._wrapped = None
        super().close()


class _Fsdp(_Group):
    """Each rank has a share of every weight, and of its gradient and optimizer state."""

    def _check(self) -> None:
        super()._check()
        if self.settings.channels_last:
            raise UsageError(
                "strategy fsdp shards weights by rows, so channels_last is not possible",
                hint="use strategy=ddp or channels_last=false",
            )
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise Unsupported("strategy fsdp needs torch 2.6 or newer", hint="pip install 'torch>=2.6'") from error
        self._shard: Callable[..., Any] = fully_shard

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        from torch.distributed.device_mesh import init_device_mesh

        self._whole_model = copy.deepcopy(model)
        mesh = init_device_mesh(self.device.type, (self.ranks.size,))
        model = self._placed(model)
        for parameter in (*model.parameters(), *model.buffers()):  # all begin with the weights of the first rank
            torch.distributed.broadcast(parameter.detach(), 0)
        for block in _blocks(model):
            self._shard(block, mesh=mesh)
        self._shard(model, mesh=mesh)
        if self.settings.compile:
            model.compile()
        return model, make_optimizer(model)

    @contextlib.contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        set_sync: Callable[[bool], None] = model.set_requires_gradient_sync  # type: ignore[assignment]
        set_sync(False)
        try:
            yield
        finally:
            set_sync(True)

    def unwrapped(self, model: nn.Module) -> nn.Module:
        state = self.state(model)
        whole = self._whole_model.to(self.device)
        _fill(whole, state["model"])
        return whole.train(model.training)


class _DeepSpeed(_Group):
    """The engine of DeepSpeed with ZeRO stage 1: each rank has the optimizer state of its share of the weights."""

    def _check(self) -> None:
        super()._check()
        if importlib.util.find_spec("deepspeed") is None:
            raise Unsupported("strategy deepspeed needs DeepSpeed", hint="pip install deepspeed")
        os.environ.setdefault("DS_ACCELERATOR", self.device.type)  # read on import; else it guesses
        os.environ.setdefault("LOCAL_RANK", str(self.ranks.local_rank))  # its engine does not begin without
        import deepspeed
        from deepspeed import utils

        self._library: Any = deepspeed
        self._fragments: Any = utils

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        self._scaler = None  # the engine has its own
        model = self._placed(model)
        optimizer = make_optimizer(model)
        # The engine puts one flat tensor in the place of the parameters of a group.
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        engine, *_ = self._library.initialize(model=model, optimizer=optimizer, config=self._config())
        if self.settings.compile:
            engine.compile()
        return engine, optimizer

    def _config(self) -> dict[str, Any]:
        settings = self.settings
        half = {"bf16": "bfloat16", "fp16": "float16"}.get(settings.precision)
        return {
            "train_micro_batch_size_per_gpu": settings.batch_size,
            "gradient_accumulation_steps": settings.accumulate,
            "gradient_clipping": settings.clip_norm,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "torch_autocast": {"enabled": half is not None, **({"dtype": half} if half else {})},
            "steps_per_print": 2**31,
        }

    @contextlib.contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        engine: Any = model
        engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            engine.set_gradient_accumulation_boundary(True)

    def backward(self, model: nn.Module, loss: torch.Tensor) -> None:
        engine: Any = model
        engine.backward(loss, scale_wrt_gas=False)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float = 0.0) -> None:
        engine: Any = model  # it cuts the gradients as its configuration says, and clears them
        engine.set_gradient_accumulation_boundary(True)
        engine.step()

    def _plain(self, model: nn.Module) -> nn.Module:
        engine: Any = model
        plain: nn.Module = engine.module if isinstance(model, self._library.DeepSpeedEngine) else model
        return plain

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, state: Mapping[str, Any]) -> None:
        super().load(model, optimizer, state)
        for parameter in (each for group in self._groups for each in group):
            self._fragments.safe_set_full_fp32_param(parameter, parameter.detach().float())

    def _optimizer_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
        shared: dict[str, Any] = next(iter(optimizer.state.values()), {})
        states: dict[int, dict[str, Any]] = {}
        for number, parameter in enumerate(each for group in self._groups for each in group):
            states[number] = {
                name: self._fragments.safe_get_full_optimizer_state(parameter, name) if _is_spread(value) else value
                for name, value in shared.items()
            }
        groups, first = [], 0
        for group, parameters in zip(optimizer.param_groups, self._groups, strict=True):
            plain = {name: value for name, value in group.items() if name != "params"}
            groups.append(plain | {"params": list(range(first, first + len(parameters)))})
            first += len(parameters)
        return {"state": states if shared else {}, "param_groups": groups}

    def _load_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        parameters = [each for group in self._groups for each in group]
        _check_count(state, len(parameters))
        if state["state"] and not optimizer.state:
            self._begin_state(model, optimizer)
        for number, values in state["state"].items():
            for name, value in values.items():
                if _is_spread(value):
                    value = value.to(self.device)
                    self._fragments.safe_set_full_optimizer_state(parameters[number], value, name)
                    continue
                for of_group in optimizer.state.values():
                    of_group[name] = value.clone() if isinstance(value, torch.Tensor) else value
        for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})

    def _begin_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer of a fresh engine make its state, which it else does in its first step."""
        flat = [each for group in optimizer.param_groups for each in group["params"]]
        for each in flat:
            each.grad = torch.zeros_like(each)
        optimizer.step()
        for each in flat:
            each.grad = None
        engine: Any = model
        engine.optimizer._lazy_init_hp_params_optimizer_state()


class _Horovod(Strategy):
    """Each rank has the whole model; Horovod averages the gradients."""

    def _check(self) -> None:
        try:
            import horovod.torch
        except ImportError as error:
            raise Unsupported(
                "strategy horovod needs Horovod", hint="HOROVOD_WITH_PYTORCH=1 pip install --no-build-isolation horovod"
            ) from error
        self._library: Any = horovod.torch
        self._library.init()
        if self._library.size() != self.ranks.size:
            raise UsageError(
                f"Horovod counts {self._library.size()} ranks, the launcher {self.ranks.size}",
                hint="start the program with horovodrun or mpirun",
            )

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, plain = super().prepare(model, make_optimizer)
        self._library.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer: torch.optim.Optimizer = self._library.DistributedOptimizer(
            plain, named_parameters=model.named_parameters(), backward_passes_per_step=self.settings.accumulate
        )
        return model, optimizer

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float = 0.0) -> None:
        spread: Any = optimizer
        spread.synchronize()  # the gradients are averaged before they are cut, and once
        with spread.skip_synchronize():
            super().step(model, optimizer, clip_norm)

    def gather(self, array: Array) -> Array:
        gathered: Array = self._library.allgather(torch.from_numpy(np.ascontiguousarray(array)), name="gather").numpy()
        return gathered

    def barrier(self) -> None:
        self._library.allreduce(torch.zeros(1), name="barrier")

    def close(self) -> None:
        self._library.shutdown()


def _set_precision(precision: str) -> None:
    """Let matrix products use tf32 unless full precision is asked for."""
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def lay_out(model: nn.Module, settings: TrainSettings) -> None:
    """Give a model the memory layout that the settings ask for, and let it compute activations again if they do."""
    if settings.channels_last:
        _use_channels_last(model)
    if settings.checkpoint_activations:
        _checkpoint_blocks(model)


def _use_channels_last(model: nn.Module) -> None:
    for parameter in model.parameters():
        layout = _FORMATS.get(parameter.dim())
        if layout is not None:
            parameter.data = parameter.data.contiguous(memory_format=layout)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the direct parts of a model that have parts of their own, looking into lists of them."""
    blocks: list[nn.Module] = []
    for child in model.children():
        inner = list(child.children())
        holds_blocks = any(any(True for _ in each.children()) for each in inner)
        if isinstance(child, nn.ModuleList) or (isinstance(child, nn.Sequential) and holds_blocks):
            blocks += [each for each in inner if any(True for _ in each.children())]
        elif inner and not isinstance(child, nn.ModuleDict):
            blocks.append(child)
    return [each for each in blocks if any(True for _ in each.parameters())]


def _checkpoint_blocks(model: nn.Module) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    blocks = {id(each) for each in _blocks(model)}
    if not blocks:
        raise UsageError(
            f"{type(model).__name__} has no blocks whose activations could be recomputed",
            hint="use checkpoint_activations=false",
        )
    apply_activation_checkpointing(model, check_fn=lambda each: id(each) in blocks)


def _whole(value: Any) -> Any:
    """Return a value on the CPU, a tensor as a whole and as a copy."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    return value.to("cpu", copy=True).contiguous()


def _like(value: Any, parameter: torch.Tensor) -> Any:
    """Return a copy of a value cut as the parameter it belongs to is cut."""
    if not isinstance(value, torch.Tensor):
        return value
    if not hasattr(parameter, "full_tensor") or value.shape != parameter.shape:
        return value.clone()  # an optimizer goes on to write into what it was given
    from torch.distributed.tensor import distribute_tensor

    cut: Any = parameter
    return distribute_tensor(value.to(cut.device), cut.device_mesh, cut.placements)


def _is_spread(value: Any) -> bool:
    """Tell whether a value of an optimizer is one number for each weight."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _check_count(state: Mapping[str, Any], count: int) -> None:
    saved = sum(len(group["params"]) for group in state["param_groups"])
    if saved != count:
        raise Integrity(f"the checkpoint's optimizer has {saved} parameters, the model has {count}")


def _mapped(value: Any, each: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(inner, each) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(inner, each) for inner in value)
    return each(value)


def _fill(model: nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Put saved weights into a model, or say which one does not fit."""
    own = model.state_dict()
    for name, value in own.items():
        if name not in saved:
            raise Integrity(f"the checkpoint does not fit the model: it has no {name}")
        if value.shape != saved[name].shape:
            raise Integrity(
                f"the checkpoint does not fit the model: {name} is {list(saved[name].shape)} there and "
                f"{list(value.shape)} in the model"
            )
    for name in saved:
        if name not in own:
            raise Integrity(f"the checkpoint does not fit the model, which has no {name}")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(_like(saved[name], value))


_STRATEGIES: Mapping[str, Callable[[TrainSettings, Ranks, torch.device], Strategy]] = {
    "single": Strategy,
    "ddp": _Ddp,
    "fsdp": _Fsdp,
    "deepspeed": _DeepSpeed,
    "horovod": _Horovod,
}
