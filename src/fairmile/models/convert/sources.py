"""Models to convert: what each computes, what goes in, and the same in double precision."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pickle
import runpy
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.models.convert.estimators import compute_outputs
from fairmile.models.convert.in_double import (
    graph_in_double,
    keras_in_double,
    keras_of,
    program_in_double,
    torch_in_double,
)
from fairmile.models.convert.proof import Array, Compute, Double
from fairmile.models.convert.request import Request, parse_input
from fairmile.models.convert.runtimes import onnxruntime_of, torch_of
from fairmile.models.formats import recognise
from fairmile.models.formats.description import TensorSpec
from fairmile.models.formats.skops import untrusted

_SAVED_WEIGHTS = ("model", "state_dict", "model_state_dict")


@dataclass(frozen=True)
class Source:
    """A model that is loaded: its inputs, its function, and the same in float64 where that can be had."""

    kind: str  # onnx, torch, keras, sklearn
    model: Any
    specs: tuple[TensorSpec, ...]
    compute: Compute
    exact: Double | None = None
    examples: tuple[Any, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def open_model(
    request: Request, *, with_exact: bool = True, built: tuple[Any, tuple[Any, ...]] | None = None
) -> Source:
    """Return the model that a request names, loaded; in float64 as well unless `with_exact` is off.

    `built` is a PyTorch model with inputs, in place of what the code of the request builds.
    """
    if request.code:
        return _torch_source(request, *(built or _built(request)), with_exact=with_exact)
    path = Path(request.source)
    if request.format == "onnx":
        return Source(
            "onnx",
            path,
            tuple(recognise(path).inputs),
            onnxruntime_of(path),
            _graph_exact(path) if with_exact else None,
        )
    if request.format in ("torchscript", "pytorch-exported"):
        request = request if request.inputs else dataclasses.replace(request, inputs=_declared_inputs(path))
        return _torch_source(request, load_torch(path, request.format), (), with_exact=with_exact)
    if request.format in ("keras", "keras-h5"):
        return _keras_source(path, with_exact=with_exact)
    if request.format in ("sklearn-pickle", "pickle", "skops"):
        return _sklearn_source(request, path)
    if request.format in ("pytorch-state-dict", "safetensors"):
        raise UsageError(
            f"{path.name} holds weights alone, and {request.to} needs the model",
            hint="name what builds it: --code FILE.py:FUNCTION or --code MODULE:CLASS",
        )
    raise Unsupported(f"{path.name}: no conversion from {request.format} to {request.to}")


def _declared_inputs(path: Path) -> tuple[str, ...]:
    """Return the inputs that a file describes with their sizes, as `--input` would; none if it lacks some."""
    inputs = recognise(path).inputs
    return tuple(f"{each.name}={each.type}{each.shape_text()}" for each in inputs if each.shape is not None)


def _graph_exact(path: Path) -> Double | None:
    try:
        return graph_in_double(path)
    except Unsupported:
        return None


def build_module(request: Request) -> Any:
    """Return the PyTorch model that the user's code builds, with the weights that it starts from."""
    made = _made(request)
    if isinstance(made, tuple):
        return made[0]
    return made.model if hasattr(made, "loss") and hasattr(made, "model") else made


def _built(request: Request) -> tuple[Any, tuple[Any, ...]]:
    """Return the PyTorch model that the user's code builds, and inputs if the code has them."""
    made = _made(request)
    if hasattr(made, "loss") and hasattr(made, "model"):
        return made.model, _taken_inputs(made)
    if isinstance(made, tuple):
        return made[0], tuple(made[1])
    return made, ()


def _made(request: Request) -> Any:
    """Return what the user's code makes: a model, a model with inputs, or a training step."""
    place, _, name = request.code.rpartition(":")
    if not place or not name:
        raise UsageError(f"{request.code!r} names no code", hint="write FILE.py:FUNCTION or MODULE:CLASS")
    if place.endswith(".py"):
        sys.path.insert(0, str(Path(place).absolute().parent))
        content: Mapping[str, Any] = runpy.run_path(place)
    else:
        content = vars(importlib.import_module(place))
    if name not in content:
        raise UsageError(f"{place} defines no {name}")
    import torch

    torch.manual_seed(request.seed)  # weights that nobody trained are the same in every process
    return content[name](**{**_saved_settings(request), **request.params})


def _saved_settings(request: Request) -> dict[str, Any]:
    """Return the settings that a benchmark kept beside the weights which it trained."""
    if not request.takes_settings or not request.source:
        return {}
    import torch

    content = torch.load(request.source, weights_only=True, map_location="cpu")
    settings = content.get("settings") if isinstance(content, dict) else None
    return dict(settings) if isinstance(settings, dict) else {}


def _taken_inputs(step: Any) -> tuple[Any, ...]:
    """Return what a training step hands to its model, seen by a hook at the first call."""
    taken: list[tuple[Any, ...]] = []

    class _Seen(Exception):
        pass

    def see(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        order = list(inspect.signature(module.forward).parameters)
        taken.append((*positional, *(named[name] for name in order if name in named)))
        raise _Seen

    hook = step.model.register_forward_pre_hook(see, with_kwargs=True)
    try:
        step.loss(step.model)
    except _Seen:
        pass
    finally:
        hook.remove()
    return taken[0]


def _torch_source(request: Request, model: Any, examples: tuple[Any, ...], *, with_exact: bool) -> Source:
    import copy

    import torch

    if request.code and request.source:
        model.load_state_dict(read_weights(Path(request.source)))
    names = _input_names(model, len(examples) or len(request.inputs))
    if request.inputs:
        specs = tuple(parse_input(text, number) for number, text in enumerate(request.inputs))
        if len(names) == len(specs):
            specs = tuple(
                TensorSpec(name if each.name.startswith("input_") else each.name, each.type, each.shape)
                for name, each in zip(names, specs, strict=True)
            )
        examples = tuple(_example(each) for each in specs)
    elif examples:
        varying = len({len(each) for each in examples if each.ndim}) == 1
        specs = tuple(_spec_of(name, each, varying) for name, each in zip(names, examples, strict=True))
        examples = tuple(_two_of(each) for each in examples) if varying else examples
    else:
        raise UsageError("the inputs of the model are unknown", hint="describe each: --input x=float32[batch,3]")
    # An exported program computes as it was exported: PyTorch refuses to change its mode.
    if isinstance(model, torch.nn.Module) and not isinstance(model, torch.jit.ScriptModule | torch.fx.GraphModule):
        model = model.eval()
        exact = _in_double(lambda: torch_in_double(copy.deepcopy(model)), specs, examples)
    elif request.format in ("torchscript", "pytorch-exported") and not request.code:
        exact = _in_double(lambda: program_in_double(request.source, request.format), specs, examples)
    else:
        exact = None
    if not with_exact:
        exact = None
    ranges = {
        spec.name: (float(each.min()), float(each.max()))
        for spec, each in zip(specs, examples, strict=True)
        if not each.is_floating_point() and each.numel()
    }
    compute = torch_of(model)
    return Source("torch", model, specs, compute, Double(exact, compute) if exact else None, examples, ranges)


def _in_double(
    widen: Callable[[], Compute], specs: tuple[TensorSpec, ...], examples: tuple[Any, ...]
) -> Compute | None:
    """Return a model in double precision, None where it fixes another one."""
    try:
        exact = widen()
        exact({spec.name: each.detach().numpy() for spec, each in zip(specs, examples, strict=True)})
    except (RuntimeError, TypeError):
        return None
    return exact


def _two_of(tensor: Any) -> Any:
    """Return an example with two samples: an exporter takes a size of one for fixed."""
    return tensor[:2] if len(tensor) >= 2 else tensor.repeat((2,) + (1,) * (tensor.ndim - 1))


def _example(spec: TensorSpec) -> Any:
    import torch

    shape = [size if isinstance(size, int) else 2 for size in spec.shape or ()]
    return torch.zeros(shape, dtype=getattr(torch, spec.type))


def _spec_of(name: str, tensor: Any, varying: bool) -> TensorSpec:
    shape: tuple[int | str, ...] = tuple(tensor.shape)
    shape = ("batch", *shape[1:]) if varying and shape else shape
    return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), shape)


def _input_names(model: Any, count: int) -> list[str]:
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError, AttributeError):
        parameters = []  # type: ignore[assignment]
    plain = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD][:count]
    return plain if len(plain) == count else [f"input_{number}" for number in range(count)]


def read_weights(path: Path) -> dict[str, Any]:
    """Return the weights of a file by name; nothing of a file is executed."""
    import torch

    if not zipfile.is_zipfile(path) and recognise(path).format == "safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise UsageError(f"{path.name} holds more than weights: {str(error).splitlines()[0]}") from error
    best = content.get("best") if isinstance(content, dict) else None
    if isinstance(best, dict) and isinstance(best.get("model"), dict):
        return dict(best["model"])
    for key in _SAVED_WEIGHTS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            return dict(content[key])
    if not isinstance(content, dict):
        raise UsageError(f"{path.name} holds no weights by name")
    return content


def load_torch(path: Path | str, format: str) -> Any:
    """Return a model that PyTorch itself loads: TorchScript or an exported program."""
    import torch

    load: Callable[[Path | str], Any] = torch.jit.load
    return load(path) if format == "torchscript" else torch.export.load(path).module()


def _keras_source(path: Path, *, with_exact: bool) -> Source:
    import keras

    model = keras.saving.load_model(path, compile=False)  # in Keras's safe mode: no code of the file is executed
    names = [each.name for each in model.inputs]
    specs = tuple(TensorSpec(each.name, str(each.dtype), ("batch", *each.shape[1:])) for each in model.inputs)

    compute = keras_of(model, names)
    exact = Double(keras_in_double(model, names), compute) if with_exact else None
    return Source("keras", model, specs, compute, exact)


def _sklearn_source(request: Request, path: Path) -> Source:
    model = _estimator(request, path)
    features = getattr(model, "n_features_in_", None)
    if request.inputs:
        spec = parse_input(request.inputs[0], 0)
    elif features is not None:
        spec = TensorSpec("X", "float32", ("batch", int(features)))
    else:
        raise UsageError(
            f"{path.name}: the inputs of {type(model).__name__} are unknown, or it is no trained estimator",
            hint="describe them, as --input 'X=string[batch]' for text",
        )

    def compute(arrays: Mapping[str, Array]) -> list[Array]:
        rows = arrays[spec.name]
        return compute_outputs(model, rows.astype(np.float64) if rows.dtype.kind == "f" else rows)

    return Source("sklearn", model, (spec,), compute)


def _estimator(request: Request, path: Path) -> Any:
    if request.format == "skops":
        import skops.io

        types = skops.io.get_untrusted_types(file=path)  # skops itself does not know the trees of scikit-learn
        unknown = untrusted(types)
        if unknown and not request.trust_pickle:
            raise UsageError(
                f"{path.name} names types of others: {', '.join(unknown)}", hint="allow it: --trust-pickle"
            )
        return skops.io.load(path, trusted=types)
    if not request.trust_pickle:
        raise UsageError(
            f"{path.name} is a pickle: loading it can execute any code",
            hint="if you trust who made it: --trust-pickle",
        )
    with path.open("rb") as stream:
        return pickle.load(stream)
