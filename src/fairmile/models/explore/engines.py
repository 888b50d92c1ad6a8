"""A model in one runtime and one precision, ready to be called over and over with the same inputs."""

from __future__ import annotations

import importlib
import io
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fairmile.base.errors import Unsupported
from fairmile.models.convert.proof import Array
from fairmile.models.convert.request import Request
from fairmile.models.convert.runtimes import adds_in_a_race, flat_outputs, in_order
from fairmile.models.convert.sources import open_model
from fairmile.models.explore.request import CUDA, OF_TORCH, Candidate, Prepared

_WARM_UP_CALLS = 3  # before a CUDA graph is captured


class Engine(Protocol):
    """A loaded model: `settle` its types, `take` inputs, `call` it with them, `read` the outputs of the last call."""

    way: str
    provider: str  # what ONNX Runtime says that it computes with; empty elsewhere

    @property
    def size_bytes(self) -> int: ...

    def settle(self, arrays: Mapping[str, Array]) -> None: ...

    def take(self, arrays: Mapping[str, Array]) -> None: ...

    def call(self) -> None: ...

    def read(self) -> list[Array]: ...


def engine_of(candidate: Candidate, model: Request, prepared: Prepared, folder: Path) -> Engine:
    """Return the model of a request as a candidate runs it, loaded; raise Unsupported where that cannot be had."""
    if candidate.runtime == "onnxruntime":
        return _OnnxRuntime(candidate, _file(prepared, candidate.precision, folder))
    if candidate.runtime == "openvino":
        stored = "int8" if candidate.precision == "int8" else "fp32"
        return _OpenVino(candidate, _file(prepared, stored, folder))
    return _Torch(candidate, model, prepared, folder)


def _file(prepared: Prepared, precision: str, folder: Path) -> Path:
    if precision not in prepared.files:
        raise Unsupported(prepared.reasons.get(precision) or f"no ONNX file in {precision}")
    return folder / prepared.files[precision]


def _size(file: Path) -> int:
    """Return the bytes of a model, with the file of its weights where that is one of its own.

    The folder is not listed: a run that does so cannot be reused once anything is added there.
    """
    weights = file.with_name(f"{file.name}.data")
    return file.stat().st_size + (weights.stat().st_size if weights.is_file() else 0)


_CPU = "CPUExecutionProvider"
_ALL_THERE = "session.disable_cpu_ep_fallback"  # an option: no operator runs elsewhere


class _OnnxRuntime:
    def __init__(self, candidate: Candidate, file: Path) -> None:
        self.way = file.name
        self.size_bytes = _size(file)
        self._device = candidate.device
        self._session, elsewhere = _session(candidate, file)
        self.provider: str = self._session.get_providers()[0]
        if elsewhere:
            self.way += f"; {elsewhere}"
        self._names = [each.name for each in self._session.get_inputs()]
        self._feed: dict[str, Array] = {}
        self._outputs: list[Any] = []
        self._bound: Any = None

    def settle(self, arrays: Mapping[str, Array]) -> None:
        """Do nothing: the file has its types."""

    def take(self, arrays: Mapping[str, Array]) -> None:
        self._feed = in_order(arrays, self._names)
        if self._device != "cpu":
            self._bound = bound(self._session, self._feed, self._device)

    def call(self) -> None:
        if self._bound is None:
            self._outputs = self._session.run(None, self._feed)
        else:
            self._session.run_with_iobinding(self._bound)
            self._bound.synchronize_outputs()

    def read(self) -> list[Array]:
        outputs = self._outputs if self._bound is None else self._bound.copy_outputs_to_cpu()
        return [np.asarray(each) for each in outputs]


def bound(session: Any, feed: Mapping[str, Array], device: str) -> Any:
    """Return inputs and outputs of a session bound to the memory of a device, so that a call copies nothing."""
    import onnxruntime

    binding = session.io_binding()
    for name, array in feed.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device, 0)
        binding.bind_ortvalue_input(name, value)
    for each in session.get_outputs():
        binding.bind_output(each.name, device)
    binding.synchronize_inputs()
    return binding


def _session(candidate: Candidate, file: Path) -> tuple[Any, str]:
    """Return a session on the device of a candidate, and what of it runs elsewhere; Unsupported where all of it does.

    ONNX Runtime falls back to the CPU where it cannot load CUDA, with a line in its log only.
    """
    import onnxruntime

    if candidate.device == "cpu":
        if candidate.threads > 1 and adds_in_a_race(file):
            raise Unsupported("ONNX Runtime loses sums of ScatterND at repeated indices with several threads")
        return onnxruntime.InferenceSession(str(file), _options(candidate), providers=[_CPU]), ""
    provider = (CUDA, {"use_tf32": "1" if candidate.precision == "tf32" else "0"})
    options, elsewhere = _options(candidate), ""
    options.add_session_config_entry(_ALL_THERE, "1")
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=[provider])
    except Exception:  # noqa: BLE001  it names no kind of error for operators that CUDA lacks
        session = onnxruntime.InferenceSession(str(file), _options(candidate), providers=[provider, _CPU])
        elsewhere = "some operators run on the CPU"
    if session.get_providers()[0] != CUDA:
        raise Unsupported(f"ONNX Runtime cannot load {CUDA} and fell back to the CPU: check its CUDA libraries")
    return session, elsewhere


def _options(candidate: Candidate) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = candidate.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


_OPENVINO_TYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}


class _OpenVino:
    def __init__(self, candidate: Candidate, file: Path) -> None:
        import openvino

        self.way, self.provider = file.name, ""
        self.size_bytes = _size(file)
        options = {"INFERENCE_NUM_THREADS": candidate.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        wanted = _OPENVINO_TYPES.get(candidate.precision, "f32")
        core = openvino.Core()
        if candidate.precision in ("bf16", "fp16"):
            known = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            if candidate.precision.upper() not in known:
                raise Unsupported(f"OpenVINO has no {candidate.precision} on this CPU, only {', '.join(known)}")
        self._compiled: Any = core.compile_model(str(file), "CPU", {**options, "INFERENCE_PRECISION_HINT": wanted})
        self._request = self._compiled.create_infer_request()
        self._feed: list[Array] = []
        self._results: Any = None

    def settle(self, arrays: Mapping[str, Array]) -> None:
        """Do nothing: the compiled model has its types."""

    def take(self, arrays: Mapping[str, Array]) -> None:
        self._feed = [np.ascontiguousarray(each) for each in arrays.values()]

    def call(self) -> None:
        self._results = self._request.infer(self._feed, share_inputs=True)

    def read(self) -> list[Array]:
        return [np.array(self._results[place]) for place in range(len(self._compiled.outputs))]


class _Torch:
    """PyTorch: as it is, compiled, or as a CUDA graph."""

    def __init__(self, candidate: Candidate, model: Request, prepared: Prepared, folder: Path) -> None:
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(candidate.threads)
        torch.set_grad_enabled(False)
        self._torch, self._candidate = torch, candidate
        is_tf32 = candidate.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = is_tf32
        torch.backends.cudnn.allow_tf32 = is_tf32
        self._type = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(candidate.precision, torch.float32)
        self.way = self.provider = ""
        self._autocast = False
        self._load: Callable[[], Any] = lambda: _module(torch, candidate, model, prepared, folder)
        self._module: Any = self._placed(self._load())
        self._call = self._module
        self._tensors: list[Any] = []
        self._outputs: Any = None
        self._graph: Any = None

    @property
    def size_bytes(self) -> int:
        if self._candidate.precision == "int8":
            stream = io.BytesIO()
            self._torch.save(self._module.state_dict(), stream)
            return stream.getbuffer().nbytes
        tensors = [*self._module.parameters(), *self._module.buffers()]
        return sum(each.numel() * each.element_size() for each in tensors)

    def _placed(self, module: Any) -> Any:
        module = module.to(self._candidate.device)
        if self._type is self._torch.float32 or self._autocast:
            return module
        return module.to(self._type)

    def settle(self, arrays: Mapping[str, Array]) -> None:
        """Choose between weights in half precision and autocast, by a call that is not compiled, and then compile."""
        torch = self._torch
        self._tensors = self._placed_inputs(arrays)
        try:
            if self._type is not torch.float32:
                self._run()
        except RuntimeError as error:
            # Some models make tensors of float32 themselves; autocast converts where they meet.
            first = str(error).strip().splitlines()[0]
            self._autocast, self.way = True, f"autocast, since its weights in {self._candidate.precision} fail: {first}"
            self._module = self._placed(self._load())
        is_compiled = self._candidate.runtime == "compile"
        self._call = torch.compile(self._module, dynamic=False) if is_compiled else self._module

    def _placed_inputs(self, arrays: Mapping[str, Array]) -> list[Any]:
        return [self._torch.from_numpy(np.array(each)).to(self._candidate.device) for each in arrays.values()]

    def take(self, arrays: Mapping[str, Array]) -> None:
        self._tensors = self._placed_inputs(arrays)
        if self._graph is not None:
            for held, given in zip(self._held, self._typed(), strict=True):
                held.copy_(given)
        elif self._candidate.runtime == "cudagraphs":
            self._capture()
        else:
            self._run()

    def _typed(self) -> list[Any]:
        if self._type is self._torch.float32 or self._autocast:
            return self._tensors
        return [each.to(self._type) if each.is_floating_point() else each for each in self._tensors]

    def _run(self) -> None:
        with self._torch.autocast(self._candidate.device, dtype=self._type, enabled=self._autocast):
            self._outputs = self._call(*self._typed())

    def _capture(self) -> None:
        cuda = self._torch.cuda
        self._tensors = self._held = [each.clone() for each in self._typed()]
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(_WARM_UP_CALLS):
                self._run()
        cuda.current_stream().wait_stream(stream)
        self._graph = cuda.CUDAGraph()
        with cuda.graph(self._graph):
            self._run()

    def call(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run()
        if self._candidate.device == "cuda":
            self._torch.cuda.synchronize()

    def read(self) -> list[Array]:
        return [
            (each.float() if each.is_floating_point() else each).detach().cpu().numpy()
            for each in flat_outputs(self._outputs)
        ]


def _module(torch: Any, candidate: Candidate, model: Request, prepared: Prepared, folder: Path) -> Any:
    """Return the PyTorch module of a model: its own, or its ONNX graph in PyTorch."""
    if prepared.kind == "torch":
        module = open_model(model, with_exact=False).model
    else:
        from fairmile.models.onnx_torch.module import OnnxModule

        precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(candidate.precision)
        module = OnnxModule(_file(prepared, "fp32", folder), precision=precision).eval()
    if candidate.precision == "int8":
        return _quantized(torch, module)
    return module


def _quantized(torch: Any, module: Any) -> Any:
    kinds = {torch.nn.Linear, torch.nn.LSTM, torch.nn.GRU}
    if not any(type(each) in kinds for each in module.modules()):
        raise Unsupported("PyTorch quantizes linear and recurrent layers only, and the model has none")
    # PyTorch's own choice on some ARM machines is "x86", which fails there.
    engine = "x86" if platform.machine() in ("x86_64", "AMD64") else "qnnpack"
    if engine not in torch.backends.quantized.supported_engines:
        raise Unsupported("this build of PyTorch has no quantized layers")
    torch.backends.quantized.engine = engine
    return torch.ao.quantization.quantize_dynamic(module, kinds, dtype=torch.qint8)


def import_runtime(candidate: Candidate) -> None:
    """Import the library of a candidate; on a GPU PyTorch also takes the device."""
    library: Any = importlib.import_module("torch" if candidate.runtime in OF_TORCH else candidate.runtime)
    if candidate.runtime in OF_TORCH and candidate.device == "cuda":
        library.cuda.init()


def limit_threads(threads: int) -> None:
    """Keep this process on so many cores; before any library starts its threads."""
    if hasattr(os, "sched_setaffinity"):  # on macOS only the libraries can be told
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
