"""What an exploration is asked for: the candidates, the criterion, and which candidates cannot be had."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypedDict

from fairmile.base.cores import usable_cores
from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.models.convert.request import Request

RUNTIMES = ("torch", "compile", "cudagraphs", "onnxruntime", "openvino")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")
DEVICES = ("cpu", "cuda")
CRITERIA = ("latency", "throughput", "energy", "size")
BATCHES = (1, 8, 32)
OF_TORCH = ("torch", "compile", "cudagraphs")
ALL_CORES = 0  # as a number of threads, where the number of cores is not known
CUDA = "CUDAExecutionProvider"  # of ONNX Runtime
_DEVICES = {"cudagraphs": "cuda", "openvino": "cpu"}  # of runtimes that have one only
_PACKAGES = {"openvino": "openvino", "onnxruntime": "onnxruntime"}
_EXTRAS = {"openvino": "openvino", "onnxruntime": "models", "torch": "benchmarks"}
_LIMIT = 100


@dataclass(frozen=True)
class Candidate:
    """One way to run a model."""

    runtime: str
    precision: str
    batch: int
    threads: int
    device: str = "cpu"

    @property
    def name(self) -> str:
        """The candidate in a few words, such as `onnxruntime fp32, batch 8, 2 threads`."""
        where = "cuda" if self.device == "cuda" else f"{self.threads} thread" + ("s" if self.threads > 1 else "")
        return f"{self.runtime} {self.precision}, batch {self.batch}, {where}"


@dataclass(frozen=True)
class Exploring:
    """One exploration: a model, as a conversion names it, and what to try."""

    model: Request
    runtimes: tuple[str, ...] = ()  # none: those that the device and the installed packages have
    precisions: tuple[str, ...] = ("fp32",)
    batches: tuple[int, ...] = ()  # none: 1, 8 and 32, or the one size that the model takes
    threads: tuple[int, ...] = ()  # none: all cores
    device: str = "cpu"
    best: str = "latency"
    max_loss: float = 0.01
    time_s: float = 120.0  # the longest time of all turns; preparing comes on top
    turn_s: float = 0.0  # 0: 0.1 s, and 0.5 s where an energy counter is read

    def __post_init__(self) -> None:
        _check("runtime", self.runtimes, RUNTIMES)
        _check("precision", self.precisions, PRECISIONS)
        _check("device", (self.device,), DEVICES)
        _check("criterion", (self.best,), CRITERIA)
        for what, numbers in (("batch size", self.batches), ("number of threads", self.threads)):
            if any(each < 1 for each in numbers):
                raise UsageError(f"a {what} must be at least 1")
        if self.max_loss < 0:
            raise UsageError("the allowed loss must not be negative")

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "model": self.model.to_json()}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Exploring:
        fields: dict[str, Any] = json.loads(text)
        many = ("runtimes", "precisions", "batches", "threads")
        fields |= {name: tuple(fields[name]) for name in many}
        return cls(**{**fields, "model": Request.from_json(fields["model"])})

    def candidates(self, fixed_batch: int | None = None, *, elsewhere: bool = False) -> list[Candidate]:
        """Return all combinations; `fixed_batch` is the only size that the model takes, if it is known.

        Packages and cores are those of this machine, or unknown `elsewhere`.
        """
        known = [each for each in RUNTIMES if _is_of(each, self.device) and (elsewhere or _is_installed(each))]
        batches = self.batches or ((fixed_batch,) if fixed_batch else BATCHES)
        threads = self.threads or (ALL_CORES if elsewhere else usable_cores(),)
        combined = [
            Candidate(runtime, precision, batch, count, self.device)
            for batch in dict.fromkeys(batches)
            for runtime in dict.fromkeys(self.runtimes or known)
            for precision in dict.fromkeys(self.precisions)
            for count in dict.fromkeys(threads)
        ]
        if len(combined) > _LIMIT:
            raise UsageError(
                f"{len(combined)} combinations are more than {_LIMIT}: each is a process of its own",
                hint="name fewer batch sizes, precisions, runtimes or numbers of threads",
            )
        return combined


def _check(what: str, words: Sequence[str], known: Sequence[str]) -> None:
    for word in words:
        if word not in known:
            raise UsageError(
                f"no {what} named {word!r}", hint=did_you_mean(word, known) or f"known: {', '.join(known)}"
            )


def _is_of(runtime: str, device: str) -> bool:
    return runtime not in _DEVICES or _DEVICES[runtime] == device


def extra_of(module: str) -> str:
    """Return the extra that installs a module."""
    return _EXTRAS.get(module.partition(".")[0], "models")


def _is_installed(runtime: str) -> bool:
    return find_spec(_PACKAGES.get(runtime, "torch")) is not None


def refusal(candidate: Candidate) -> str:
    """Return why this machine cannot run a candidate of any model, empty if it may."""
    package = _PACKAGES.get(candidate.runtime, "torch")
    if not _is_installed(candidate.runtime):
        return f"{package} is not installed: pip install 'fairmile[{_EXTRAS[package]}]'"
    if candidate.threads > usable_cores():
        return f"{candidate.threads} threads are more than the {usable_cores()} cores here"
    reason = refusal_anywhere(candidate)
    if not reason and candidate.runtime == "onnxruntime" and candidate.device == "cuda":
        providers = import_module("onnxruntime").get_available_providers()
        if CUDA not in providers:
            reason = (
                f"the installed ONNX Runtime has no {CUDA}, only {', '.join(providers)}: pip install onnxruntime-gpu"
            )
    return reason


def refusal_anywhere(candidate: Candidate) -> str:
    """Return why no machine can run a candidate, empty if one may."""
    runtime, precision = candidate.runtime, candidate.precision
    on_gpu = candidate.device == "cuda"
    if runtime == "cudagraphs" and not on_gpu:
        return "CUDA graphs need an NVIDIA GPU: --device cuda"
    if runtime == "openvino" and on_gpu:
        return "OpenVINO does not compute on NVIDIA GPUs"
    if precision == "tf32" and not on_gpu:
        return "TF32 is a format of NVIDIA GPUs: --device cuda"
    if precision == "bf16" and runtime == "onnxruntime":
        return "ONNX Runtime has bf16 for few operators only"
    if precision == "int8" and runtime in OF_TORCH and on_gpu:
        return "PyTorch quantizes layers for CPUs only"
    if precision == "int8" and runtime == "compile":
        return "torch.compile does not take quantized layers of PyTorch: use torch int8"
    return ""


class InputDict(TypedDict):
    """An input of a model as one call takes it."""

    shape: list[int]
    type: str
    low: float  # of whole numbers, else 0
    high: float


@dataclass(frozen=True)
class Prepared:
    """What all candidates share: the model as ONNX in each precision that can be had, and reasons for the others."""

    kind: str  # of the source: onnx, torch, keras, sklearn
    files: dict[str, str] = field(default_factory=dict)  # the ONNX file by precision
    reasons: dict[str, str] = field(default_factory=dict)  # why a precision has none
    fixed_batch: int | None = None
    gpu: str = ""
    quality: str = ""  # the metric of the data set, if it has targets
    expected_quality: float | None = None  # of the source
    rows: int = 0  # of the data set
    inputs: dict[str, dict[str, InputDict]] = field(default_factory=dict)  # of one call, by batch size and name
