"""A device without memory that user code takes for its GPU: 'cuda' and the default device both mean it."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.utils.backend_registration as backends

from fairmile.predict.fake_device import casts, dispatch, kernels, moving, parallel
from fairmile.predict.fake_device.request import Refused

NAME = kernels.NAME
_torch: Any = torch  # for what its types do not tell, and to change it
_LARGE_ELEMENTS = 1 << 16  # a model's tensors from this size on are never given memory while it is built

_FACTORIES = (
    "empty zeros ones full rand randn randint randperm arange linspace logspace eye tensor as_tensor empty_strided "
    "tril_indices triu_indices scalar_tensor asarray hann_window hamming_window blackman_window bartlett_window "
    "kaiser_window normal"
)
_FREQUENCIES = "fftfreq rfftfreq"
_LIKES = "empty_like zeros_like ones_like full_like rand_like randn_like randint_like"
_NEWS = "new_empty new_zeros new_ones new_full new_tensor new_empty_strided"
_SIZED = ("empty", "zeros", "ones", "full", "rand", "randn", "eye")
_IDLE = "synchronize empty_cache reset_peak_memory_stats init _lazy_init set_device manual_seed manual_seed_all"
_LEAVES_OUT = frozenset(("as_tensor", "asarray", "tensor"))


class _Module:
    """What torch asks of a backend's module."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    def synchronize(self, device: Any = None) -> None:
        pass

    def device(self, device: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def is_bf16_supported(self) -> bool:
        return True

    def current_stream(self, device: Any = None) -> _Nothing:
        return _Nothing()

    def stream(self, stream: Any) -> _Nothing:
        return _Nothing()


class DefaultDevice:
    """Where tensors go for which no device is named: to the device while the loss runs, else to the host.

    Large ones of a model that is built go to the device as well, so that they take no memory.
    """

    def __init__(self) -> None:
        self.building = True
        self.notes: list[str] = []

    def chosen(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the device of a factory call that names none."""
        if name in _LEAVES_OUT and args and isinstance(args[0], torch.Tensor):
            return None
        if name == "normal" and len(args) < 3 and "size" not in kwargs:  # its tensors say where
            return None
        if sys._getframe(2).f_globals.get("__name__", "").startswith("torch.utils.data"):
            return None  # loaders draw seeds and orders on the host
        if not self.building:
            return NAME if dispatch.is_in_model() else None
        return NAME if name in _SIZED and _elements(args, kwargs) >= _LARGE_ELEMENTS else None


def _elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    size = kwargs.get("size", args)
    if isinstance(size, (list, tuple)) and size and isinstance(size[0], (list, tuple)):
        size = size[0]
    if not isinstance(size, (list, tuple)) or not all(isinstance(each, int) for each in size):
        return 0
    return math.prod(size)


def set_up() -> DefaultDevice:
    """Register the device and let user code written for CUDA reach it; once in a process."""
    if not hasattr(torch._C, "_acc") or not hasattr(torch._C._acc, "create_empty_tensor"):
        raise Refused(f"torch {torch.__version__} cannot trace without a GPU", "install torch 2.10 or newer")
    _spare_compiler()
    backends._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    torch._C._set_only_lift_cpu_tensors(True)
    torch.autograd.set_multithreading_enabled(False)
    library = _torch.library.Library("aten", "IMPL")
    casts.register(library, NAME)
    kernels.register(library)
    dispatch.install(library)
    _kept.append(library)
    place = DefaultDevice()
    _patch_factories(place)
    _patch_moves()
    _patch_values(place)
    _patch_cuda()
    _patch_compilers(place)
    parallel.patch()
    torch.backends.mha.set_fastpath_enabled(False)
    return place


_kept: list[Any] = []


def _spare_compiler() -> None:
    """Keep torch from importing its compiler, seconds of work, only to tell it what not to compile."""
    code = _torch._compile._disable_dynamo(_spare_compiler).__code__
    if "fn" not in code.co_freevars:
        return
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__ is code and function.__closure__ is not None:
            plain = function.__closure__[code.co_freevars.index("fn")].cell_contents
            setattr(plain, "__dynamo_disable", plain)


def mapped(device: Any) -> Any:
    """Return this device where CUDA is meant, anything else as it is."""
    if device is None:
        return None
    if isinstance(device, int) and not isinstance(device, bool):
        return NAME
    kind = device.type if isinstance(device, torch.device) else device
    if isinstance(kind, str) and kind.partition(":")[0] == "cuda":
        return NAME
    return device


def _patch_factories(place: DefaultDevice) -> None:
    for name in _FACTORIES.split():
        setattr(torch, name, _factory(getattr(torch, name), name, place))
    for name in _FREQUENCIES.split():
        setattr(torch.fft, name, _factory(getattr(torch.fft, name), name, place))
    for name in _LIKES.split():
        setattr(torch, name, _with_device(getattr(torch, name)))
    for name in _NEWS.split():
        setattr(torch.Tensor, name, _with_device(getattr(torch.Tensor, name)))
    _torch.get_default_device = lambda: torch.device(NAME)
    _torch.set_default_device = lambda device: None


def _factory(made: Callable[..., Any], name: str, place: DefaultDevice) -> Callable[..., Any]:
    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None:
            device = place.chosen(name, args, kwargs)
            if device is not None:
                kwargs["device"] = device
        else:
            kwargs["device"] = mapped(device)
        kwargs.pop("pin_memory", None)
        return made(*args, **kwargs)

    return make


def _with_device(made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = mapped(kwargs["device"])
        return made(*args, **kwargs)

    return make


def _patch_moves() -> None:
    tensor_to, module_to, load = torch.Tensor.to, torch.nn.Module.to, torch.load

    def moved(to: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(to)
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], (str, torch.device, int)):
                args = (mapped(args[0]), *args[1:])
            if "device" in kwargs:
                kwargs["device"] = mapped(kwargs["device"])
            return to(self, *args, **kwargs)

        return move

    _torch.Tensor.to = moved(tensor_to)
    _torch.nn.Module.to = moved(module_to)
    _torch.load = lambda f, map_location=None, *args, **kwargs: load(f, "cpu", *args, **kwargs)
    _torch.Tensor.cuda = lambda self, *args, **kwargs: self.to(NAME)
    _torch.nn.Module.cuda = lambda self, device=None: self.to(NAME)
    _torch.Tensor.pin_memory = lambda self, *args: self
    _torch.Tensor.is_cuda = property(lambda self: self.device.type in (NAME, "cuda"))  # a compiler's are of CUDA
    moving.patch()


def _patch_values(place: DefaultDevice) -> None:
    """Let tensors of the device be printed, and those of a model that is built be read as if they were on the host."""
    shown, as_array = _torch.Tensor.__repr__, _torch.Tensor.numpy

    def show(self: Any, *, tensor_contents: Any = None) -> str:
        if self.device.type == NAME:
            return f"tensor(..., device='cuda:0', size={tuple(self.shape)})"
        return str(shown(self, tensor_contents=tensor_contents))

    def numpy(self: Any, **how: Any) -> Any:
        there = place.building and self.device.type == NAME
        return as_array(self.cpu() if there else self, **how)

    _torch.Tensor.__repr__ = show
    _torch.Tensor.numpy = numpy


def _patch_cuda() -> None:
    cuda: Any = torch.cuda
    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, total_memory=150_000_000_000, multi_processor_count=132, warp_size=32
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": properties.name,
        "get_device_properties": properties,
        "get_device_capability": (9, 0),
        "is_bf16_supported": True,
        "is_initialized": True,
        "is_current_stream_capturing": False,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "memory_stats": Counter(),
        "memory_summary": "",
        "mem_get_info": (properties.total_memory, properties.total_memory),
    }
    for name, answer in answers.items():
        setattr(cuda, name, lambda *args, _answer=answer, **kwargs: _answer)
    for name in _IDLE.split():
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda.Stream = cuda.Event = cuda.device = _Nothing
    cuda.nvtx._nvtx = _Nothing()
    _torch._C._cuda_getCurrentRawStream = lambda device: 0
    for name in ("current_stream", "default_stream", "stream"):
        setattr(cuda, name, lambda *args, **kwargs: _Nothing())
    _torch.Generator = type("Generator", (_generator,), {"__new__": _new_generator})
    _patch_amp()


class _Nothing:
    """A stream or event on which there is nothing to wait for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: 0.0

    def record_event(self, event: Any = None) -> _Nothing:
        return _Nothing()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


_module: Any = _Module
_module.Stream = _module.Event = _Nothing

_generator: Any = torch.Generator


def _new_generator(kind: Any, device: Any = None) -> Any:
    return _generator.__new__(kind, "cpu")  # its numbers are not needed


def _patch_compilers(place: DefaultDevice) -> None:
    """Leave models as they are where they would be compiled: what eager mode does is traced."""

    def note(what: str) -> None:
        sentence = f"{what} is compiled: its eager form was traced, which keeps other tensors"
        if sentence not in place.notes:
            place.notes.append(sentence)

    def compiled(model: Any = None, **options: Any) -> Any:
        if model is None:
            return compiled
        if isinstance(model, torch.nn.Module):
            note("the model")
            return model

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            note(f"`{getattr(model, '__name__', model)}`")
            return model(*args, **kwargs)

        return call

    _torch.compile = compiled
    _torch.nn.Module.compile = lambda self, *args, **kwargs: note("the model")
    _torch.jit.script = lambda obj, *args, **kwargs: obj
    # There is one device: its only replica is the module itself.
    _torch.nn.DataParallel.forward = lambda self, *args, **kwargs: self.module(*args, **kwargs)


def _patch_amp() -> None:
    autocast, scaler = _torch.autocast, _torch.amp.GradScaler
    for made in (autocast, scaler):
        begin = made.__init__

        @functools.wraps(begin)
        def init(self: Any, *args: Any, _begin: Any = begin, **kwargs: Any) -> None:
            if args:
                args = (mapped(args[0]), *args[1:])
            for key in ("device", "device_type"):
                if key in kwargs:
                    kwargs[key] = mapped(kwargs[key])
            if not args and "device" not in kwargs and isinstance(self, scaler):
                kwargs["device"] = NAME
            _begin(self, *args, **kwargs)

        made.__init__ = init
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        asked = getattr(torch, name)

        def ask(*args: Any, _asked: Any = asked) -> Any:
            return _asked(*[mapped(arg) if isinstance(arg, str) else arg for arg in args])

        setattr(torch, name, ask)
    _torch.is_autocast_available = lambda device: True
    _torch.amp.autocast_mode.is_autocast_available = _torch.is_autocast_available


@contextlib.contextmanager
def without_initialisation() -> Iterator[None]:
    """Within the block no weights are initialised: their values are not needed."""
    init = torch.nn.init
    names = [
        name for name in dir(init) if name.endswith("_") and not name.startswith("_") and callable(getattr(init, name))
    ]
    kept = {name: getattr(init, name) for name in names}
    for name in names:
        setattr(init, name, lambda tensor, *args, **kwargs: tensor)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(init, name, function)
