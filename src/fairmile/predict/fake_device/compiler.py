"""Compiles models for a GPU that is not there: torch's own compiler writes the program, and that program runs here.

Dynamo and AOTAutograd follow the model on the device without memory. Its graphs are then said to be CUDA's, so that
Inductor partitions, fuses and schedules them as on a GPU. Only the last step, from Triton's text to a binary, is left
out: such a kernel is noted with the tensors it is given.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

from fairmile.costs.steps import FUSED
from fairmile.predict.fake_device import kernels
from fairmile.predict.fake_device.kernels import NAME
from fairmile.predict.fake_device.operators import OperatorRecorder
from fairmile.predict.fake_device.request import Refused
from fairmile.predict.fake_device.triton import pointers, work_of_text

_torch: Any = torch  # for what its types do not tell, and to change it
aten = torch.ops.aten
_POINTER = re.compile(r"(in_out|in|out)_ptr\d+$")
_ASKED = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")
_CUDA, _META = 1, 14  # numbers of device types in torch
_WORTH_PADDING = 1 << 20  # elements of the larger side, as in the rules without Inductor
_recorders: list[OperatorRecorder] = []
_kept: list[Any] = []
_graphs: list[int] = []  # how many calls each has that was compiled


def compiled(model: torch.nn.Module, recorder: OperatorRecorder) -> Callable[..., Any]:
    """Return a model that runs what torch.compile makes of it, and is compiled when it is first called."""
    with _originals():  # Dynamo learns which functions are torch's when it is imported
        from torch._dynamo import optimize, reset, trace_rules
        from torch._dynamo.utils import counters

        trace_rules.get_torch_obj_rule_map()
        _set_up()
    _recorders[:] = [recorder]
    reset()
    counters.clear()
    _graphs.clear()
    called = optimize(backend=_backend)(model)
    return _Called(model, called, recorder)


def ended(recorder: OperatorRecorder) -> None:
    """Note graph breaks; refuse a model if nothing of it was compiled, as when its loss does not call it."""
    from torch._dynamo.utils import counters

    if not _graphs:
        raise Refused("torch.compile makes no graph of this model", "predict the eager step")
    if counters["graph_break"]:
        recorder.note("the compiled model consists of several graphs")


class _Called(torch.nn.Module):
    """A compiled model: the same attributes, but its call runs compiled code."""

    def __init__(self, model: torch.nn.Module, called: Any, recorder: OperatorRecorder) -> None:
        super().__init__()
        self.__dict__.update(vars(model))  # the same parameters, buffers and parts
        object.__setattr__(self, "_orig_mod", model)
        object.__setattr__(self, "_called", called)
        object.__setattr__(self, "_recorder", recorder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._orig_mod, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._recorder.enter("")
        try:
            with _originals():
                return self._called(*args, **kwargs)
        finally:
            self._recorder.leave()


def _backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    from torch._inductor import compile_fx as inductor

    _graphs.append(len(graph.graph.nodes))

    def inner(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        _call_cuda(graph)
        for value in inputs:
            _cuda(value)
        with _originals():
            return inductor.compile_fx_inner(graph, inputs, **options)

    return inductor.compile_fx(graph, inputs, inner_compile=inner)


def _call_cuda(graph: torch.fx.GraphModule) -> None:
    """Say of a graph's tensors that they are on a CUDA device, as Inductor asks for one."""
    from torch.utils._pytree import tree_map

    for module in graph.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            node.args = torch.fx.node.map_aggregate(node.args, _cuda)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _cuda)
            for name in ("val", "example_value", "eager_input_vals"):
                if name in node.meta:
                    tree_map(_cuda, node.meta[name])
        module.recompile()


def _cuda(value: Any) -> Any:
    if getattr(getattr(value, "fake_device", None), "type", "") == NAME:
        value.fake_device = torch.device("cuda", 0)
    return torch.device("cuda", 0) if isinstance(value, torch.device) and value.type == NAME else value


@contextlib.contextmanager
def _originals() -> Iterator[None]:
    """Within the block torch's functions are its own again: Dynamo knows them, not those in their place."""
    kept = []
    here = os.path.dirname(__file__)
    for owner in (torch, torch.Tensor, torch.fft, torch.nn.Module, torch.autocast, torch.amp.GradScaler):
        for name, value in list(vars(owner).items()):
            if not isinstance(value, FunctionType) or not value.__code__.co_filename.startswith(here):
                continue
            own = (value.__defaults__ or (None,))[0] if name in _ASKED else getattr(value, "__wrapped__", None)
            if own is not None:
                kept.append((owner, name, value))
                setattr(owner, name, own)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def _let_cuda_be_entered() -> None:
    """Let torch's own C++ code enter CUDA's device where torch was built without it: entering then does nothing.

    torch does the same itself for builds with CUDA on a machine without a GPU, but not for others.
    """
    torch._C._ensureCUDADeviceGuardSet()
    name = {"darwin": "libc10.dylib", "win32": "c10.dll"}.get(sys.platform, "libc10.so")
    library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", name))
    try:
        guards = (ctypes.c_void_p * (_META + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    except ValueError as error:
        raise Refused(f"torch {torch.__version__} cannot be told of a CUDA device here", "use torch 2.13") from error
    if not guards[_CUDA]:
        guards[_CUDA] = guards[_META]


@functools.cache
def _set_up() -> None:
    """Let Inductor write programs for a GPU on a machine without one, and let them run here."""
    _let_cuda_be_entered()
    _answer_for_cuda()
    _answer_for_triton()
    _keep_bytes()
    _join_graphs_as_cuda()
    from torch._dynamo import trace_rules
    from torch._functorch import config as functorch
    from torch._inductor import config

    trace_rules.add(__package__)  # the recorder is not part of the model
    config.compile_threads = 1
    config.fx_graph_cache = config.fx_graph_remote_cache = False
    functorch.enable_autograd_cache = False


def _answer_for_cuda() -> None:
    """Answer what the compiler and its programs ask of CUDA."""
    from torch._dynamo import device_interface
    from torch._inductor import decomposition
    from torch._subclasses import fake_tensor

    bindings: Any = torch._C
    for name in ("_cuda_getDevice", "_cuda_exchangeDevice", "_cuda_maybeExchangeDevice"):
        setattr(bindings, name, lambda *args: 0)
    bindings._cuda_setDevice = lambda *args: None
    cuda: Any = torch.cuda
    cuda.get_rng_state = lambda *args: torch.zeros(16, dtype=torch.uint8, device="cpu")
    cuda.set_rng_state = lambda *args: None
    cuda._DeviceGuard = lambda device: contextlib.nullcontext()
    _torch.version.cuda = _torch.version.cuda or "13.0"
    _torch.nn.parallel.DistributedDataParallel._get_active_ddp_module = staticmethod(lambda: None)
    decompositions: Any = decomposition
    decompositions.is_gpu = lambda name: name in (NAME, "cuda")  # sums gradients of biases in kernels of its own
    bindings._select_conv_backend = lambda *args, **named: None  # the next decides by layouts alone
    bindings._conv_determine_backend_memory_format = lambda data, weight, backend: kernels.layout(data, weight)
    fake_mode: Any = fake_tensor.FakeTensorMode
    fake_mode.may_turn_const = lambda self, tensor: False  # would compute with it on the device
    device_interface.register_interface_for_device(NAME, _interface(device_interface))
    guards = bindings._dynamo.guards
    guards._empty_strided_cuda = lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=NAME)
    guards._reinterpret_tensor = _reinterpreted
    for name in ("empty.memory_format", "empty_strided"):  # what written programs ask for beside those
        if not bindings._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            _kept.append(_torch.library.Library("aten", "IMPL"))
            _kept[-1].impl(name, functools.partial(_emptied, getattr(torch, name.partition(".")[0])), "CUDA")


def _emptied(make: Callable[..., torch.Tensor], *args: Any, **named: Any) -> torch.Tensor:
    return make(*args, **{**named, "device": torch.device(NAME)})


def _answer_for_triton() -> None:
    """Let programs be written for Triton, which need not be there, and stand in for its kernels."""
    from torch._inductor import async_compile, compile_fx, scheduler, select_algorithm
    from torch._inductor.codegen import wrapper
    from torch._inductor.fx_passes import pad_mm
    from torch.utils import _triton

    plain: Any = _triton
    plain.triton_hash_with_backend = lambda: ""
    modules: list[Any] = [compile_fx, scheduler, pad_mm]
    for asking in modules:
        asking.has_triton = lambda: True
    padding: Any = pad_mm
    padding._should_pad = _is_worth_padding
    making: Any = async_compile.AsyncCompile
    making.triton = lambda self, name, source, **_: _Kernel(name, source)
    written: Any = wrapper.PythonWrapperCodegen
    written.write_triton_header_once = lambda self: None
    written.write_get_raw_stream_header = lambda self: self.imports.writeline("get_raw_stream = lambda device: 0")
    choice: Any = select_algorithm
    choice.extern_kernels = _Extern(choice.extern_kernels)


def _is_worth_padding(match: Any, first: torch.Tensor, second: torch.Tensor, *_: Any) -> bool:
    """Tell whether a product's sides are padded to what fast units read; Inductor would try that out on the GPU."""
    large = max(int(first.numel()), int(second.numel())) >= _WORTH_PADDING
    return large and first.dtype in (torch.bfloat16, torch.float16)


def _keep_bytes() -> None:
    """Let Inductor write beside each kernel how many bytes it moves, as it does for its own profiles."""
    from torch._inductor import config
    from torch._inductor.codegen import triton

    written: Any = triton.TritonKernel
    meta = written.inductor_meta_per_kernel

    def with_bytes(self: Any) -> Any:
        with config.patch(profile_bandwidth=True):
            return meta(self)

    written.inductor_meta_per_kernel = with_bytes


def _join_graphs_as_cuda() -> None:
    """Let the passes over forward and backward together see CUDA's tensors, and fold constants on the host."""
    from torch._inductor import compile_fx
    from torch._inductor.fx_passes import joint_graph

    compiler: Any = compile_fx
    joint = compiler._recursive_joint_graph_passes

    def passes(graph: torch.fx.GraphModule, *args: Any, **options: Any) -> Any:
        _call_cuda(graph)
        with _originals():
            return joint(graph, *args, **options)

    compiler._recursive_joint_graph_passes = passes
    folder_of: Any = joint_graph.UniformValueConstantFolder
    deduce = folder_of._deduce_value

    def deduced(self: Any, node: torch.fx.Node) -> Any:
        own = node.kwargs
        if "device" in own:
            node.kwargs = {**own, "device": torch.device("cpu")}
        try:
            return deduce(self, node)
        finally:
            node.kwargs = own

    folder_of._deduce_value = deduced


def _interface(device_interface: Any) -> Any:
    class Interface(device_interface.DeviceInterface):  # type: ignore[misc]
        """What Dynamo asks of a device."""

        is_available = staticmethod(lambda: True)
        current_device = staticmethod(lambda: 0)
        get_compute_capability = staticmethod(lambda device=None: 90)
        is_bf16_supported = staticmethod(lambda including_emulation=False: True)
        get_device_properties = staticmethod(lambda device=None: torch.cuda.get_device_properties())

    return Interface


def _reinterpreted(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


class _Kernel:
    """A kernel of Triton: running it notes what it reads and writes."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.roles = [match[1] if (match := _POINTER.match(each)) else "" for each in pointers(source)]
        self.work = work_of_text(source).keywords()

    def run(self, *args: Any, **_: Any) -> None:
        read: list[torch.Tensor] = []
        written: list[torch.Tensor] = []
        for role, value in zip(self.roles, args, strict=False):
            if isinstance(value, torch.Tensor):
                (written if role == "out" else read).append(value)
                if role == "in_out":
                    written.append(value)
        _recorders[-1].launch(FUSED, read, written, {"kernel": self.name, **self.work})


class _Extern:
    """Kernels of libraries: those that write into a given tensor are noted as the operator they are."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._own, name)
        packet = getattr(aten, name, None)
        if packet is None:
            return own

        def call(*args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> Any:
            if out is None:
                return own(*args, **kwargs)
            return _recorders[-1].run_into(packet.default, args, kwargs, out)

        return call
