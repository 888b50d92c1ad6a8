"""Models ready to call, from files of every format: arrays in, arrays out."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import MissingExtra, Unsupported, UsageError
from fairmile.base.lazy import lazy
from fairmile.base.results import Result
from fairmile.catalog.access import LoadedAsset
from fairmile.models.formats import ModelDescription, TensorSpec, recognise
from fairmile.models.formats.description import Dim
from fairmile.models.formats.tensorflow import read_values

if TYPE_CHECKING:
    from fairmile.models.convert.runtimes import adds_in_a_race
else:
    adds_in_a_race = lazy("fairmile.models.convert.runtimes:adds_in_a_race")

Call = Callable[..., Any]

_EXTRAS = {
    **{"onnxruntime": "models", "safetensors": "models", "torch": "benchmarks", "sklearn": "benchmarks"},
    "joblib": "benchmarks",
}


class Ready:
    """What can be called: the model of a file or folder, loaded by its framework when it is first used.

    `model_path` is the file or folder. A pickle is loaded only with `trust_pickle`; `into` is a module of PyTorch that
    takes the weights of a file that holds nothing else.
    """

    model_path: Path
    trust_pickle: bool = False
    into: Any = None

    @cached_property
    def description(self) -> ModelDescription:
        """What the file declares; no framework is needed for it."""
        return recognise(self.model_path)

    @cached_property
    def _loaded(self) -> tuple[Any, Call]:
        return load_native(self.description, self.model_path, trust_pickle=self.trust_pickle, into=self.into)

    @property
    def native(self) -> Any:
        """The model as its framework has it; of a file with weights alone, the weights by name."""
        return self._loaded[0]

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Return the outputs for arrays, given in the order of the inputs or by their names.

        One output is an array, several are a dictionary by name, or a list where they have none.
        """
        return self._loaded[1](*arrays, **named)


class ModelFile(Ready, Result):
    """A model file or folder, ready to call."""

    def __init__(self, path: Path, *, trust_pickle: bool = False, into: Any = None) -> None:
        self.model_path = path
        self.trust_pickle = trust_pickle
        self.into = into

    def to_dict(self) -> Any:
        return self.description.to_dict()

    def summary(self) -> str:
        return self.description.summary()


class LoadedModel(Ready, LoadedAsset):
    """A model of the catalog with its files, ready to call."""

    def __init__(self, asset: LoadedAsset, *, trust_pickle: bool = False, into: Any = None) -> None:
        super().__init__(asset.card, asset.root, asset._store, asset._folder)
        self.trust_pickle = trust_pickle
        self.into = into

    @cached_property
    def model_path(self) -> Path:  # type: ignore[override]
        """The only file of the model, or the folder with all of them."""
        return self.files[0].path if len(self.files) == 1 else self.path


def load_native(
    described: ModelDescription, path: Path, *, trust_pickle: bool = False, into: Any = None
) -> tuple[Any, Call]:
    """Return a model as its framework has it, and a function from arrays to arrays."""
    if described.format == "mlflow":
        inner = described.details.get("model file")
        if not inner:
            raise Unsupported(f"{path}: the MLflow folder names no model file of a known format")
        return load_native(recognise(path / inner), path / inner, trust_pickle=trust_pickle, into=into)
    check_loadable(described, path, trust_pickle=trust_pickle)
    return _LOADERS[described.format](described, path, into)


def check_loadable(described: ModelDescription, path: Path, *, trust_pickle: bool) -> None:
    """Raise UsageError where loading a file could run code and nobody has said that its author is trusted."""
    if trust_pickle or not described.runs_code:
        return
    what = described.warnings[0] if described.warnings else "loading it can run any code that its author chose"
    raise UsageError(
        f"{path}: {what}, so Fairmile does not load it",
        hint="if you trust its author, pass trust_pickle=True; `fairmile model show` lists what it imports",
    )


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        if package in _EXTRAS:
            raise MissingExtra(f"{path.name}: {package} is not installed", _EXTRAS[package]) from error
        raise Unsupported(f"{path.name}: {package} is not installed", hint=f"pip install {package}") from error


def _onnx(described: ModelDescription, path: Path, *_: Any) -> tuple[Any, Call]:
    runtime = _library("onnxruntime", path)
    options = runtime.SessionOptions()
    if "ScatterND" in described.operators and (importlib.util.find_spec("onnx") is None or adds_in_a_race(path)):
        options.intra_op_num_threads = 1
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise Unsupported(f"{path}: ONNX Runtime cannot load it: {_first_line(error)}") from error
    names = [each.name for each in session.get_outputs()]
    return session, lambda *arrays, **named: _outputs(
        names, session.run(None, _inputs(described.inputs, arrays, named, path))
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _inputs(
    specs: tuple[TensorSpec, ...], arrays: tuple[Any, ...], named: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """Return the arrays by the names of the inputs, in the types that are declared."""
    numpy = _library("numpy", path)
    names = [each.name for each in specs]
    unknown = [name for name in named if name not in names]
    if len(arrays) > len(specs) or unknown:
        given = f"no input {unknown[0]!r}" if unknown else f"{len(arrays)} arrays given"
        raise UsageError(f"{path.name}: {given}; inputs: {', '.join(map(str, specs))}")
    values = {**dict(zip(names, arrays, strict=False)), **named}
    missing = [name for name in names if name not in values]
    if missing:
        raise UsageError(f"{path.name}: no array for {missing[0]!r}; inputs: {', '.join(map(str, specs))}")
    taken = {each.name: _as_type(numpy, values[each.name], each.type) for each in specs}
    for each in specs:
        lengths = list(taken[each.name].shape)
        if each.shape is not None and not _fits(lengths, each.shape):
            raise UsageError(f"{path.name}: the array for {each.name!r} has the shape {lengths}, expected {each}")
    return taken


def _fits(lengths: Sequence[int], shape: Sequence[Dim]) -> bool:
    pairs = zip(lengths, shape, strict=False)
    return len(lengths) == len(shape) and all(length == dim for length, dim in pairs if isinstance(dim, int))


def _as_type(numpy: Any, value: Any, kind: str) -> Any:
    array = numpy.asarray(value)
    is_numeric = kind.startswith(("float", "int", "uint")) and array.dtype.kind in "fiub"
    return array.astype(kind) if is_numeric and kind in numpy.sctypeDict and array.dtype.name != kind else array


def _outputs(names: list[str], values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else dict(zip(names, values, strict=True))


def _torch_call(torch: Any, module: Any) -> Call:
    """Return a function that hands arrays to a module as tensors and returns arrays."""
    first = next(iter(module.parameters()), None)

    def tensor(value: Any) -> Any:
        given = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
        return given.to(first.dtype) if first is not None and given.dtype == torch.float64 else given

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().cpu().numpy()
        if isinstance(value, Mapping):
            return {name: plain(each) for name, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, (tuple, list)) else value

    def call(*arrays: Any, **named: Any) -> Any:
        with torch.no_grad():
            return plain(module(*map(tensor, arrays), **{name: tensor(each) for name, each in named.items()}))

    return call


def _torchscript(_: ModelDescription, path: Path, *__: Any) -> tuple[Any, Call]:
    torch = _library("torch", path)
    module = torch.jit.load(str(path), map_location="cpu").eval()
    return module, _torch_call(torch, module)


def _exported(_: ModelDescription, path: Path, *__: Any) -> tuple[Any, Call]:
    torch = _library("torch", path)
    module = torch.export.load(str(path)).module()
    return module, _torch_call(torch, module)


def _state(described: ModelDescription, path: Path, into: Any) -> tuple[Any, Call]:
    torch = _library("torch", path)
    return _weights(torch.load(path, map_location="cpu", weights_only=not described.runs_code), path, into)


def _safetensors(_: ModelDescription, path: Path, into: Any) -> tuple[Any, Call]:
    if into is None:
        return _weights(_library("safetensors.numpy", path).load_file(path), path, None)
    return _weights(_library("safetensors.torch", path).load_file(path), path, into)


def _weights(state: Any, path: Path, into: Any) -> tuple[Any, Call]:
    """Return weights by name, or the module that takes them."""
    if into is None:

        def refuse(*_: Any, **__: Any) -> Any:
            raise Unsupported(
                f"{path}: holds weights alone, without the model that computes with them",
                hint="pass a module of PyTorch that takes them, as in load(FILE, into=MyModule())",
            )

        return state, refuse
    into.load_state_dict(state)
    into.eval()
    return into, _torch_call(_library("torch", path), into)


def _keras(_: ModelDescription, path: Path, *__: Any) -> tuple[Any, Call]:
    if "keras" not in sys.modules and importlib.util.find_spec("tensorflow") is None:
        os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras itself would ask for TensorFlow
    keras = _library("keras", path)
    model = keras.saving.load_model(path, compile=False)

    def call(*arrays: Any, **named: Any) -> Any:
        outputs = model(*arrays, training=False) if not named else model(named, training=False)
        convert = keras.ops.convert_to_numpy
        return [convert(each) for each in outputs] if isinstance(outputs, (list, tuple)) else convert(outputs)

    return model, call


def _savedmodel(described: ModelDescription, path: Path, *_: Any) -> tuple[Any, Call]:
    tensorflow = _library("tensorflow", path)
    model = tensorflow.saved_model.load(str(path))
    serve = next(iter(model.signatures.values()), None)

    def call(*arrays: Any, **named: Any) -> Any:
        if serve is None:
            raise Unsupported(f"{path}: the SavedModel has no signature to call")
        values = _inputs(described.inputs, arrays, named, path)
        outputs = serve(**{name: tensorflow.constant(each) for name, each in values.items()})
        return _outputs(list(outputs), [each.numpy() for each in outputs.values()])

    return model, call


def _checkpoint(_: ModelDescription, path: Path, *__: Any) -> tuple[Any, Call]:
    return _weights(read_values(path), path, None)


def _skops(_: ModelDescription, path: Path, __: Any) -> tuple[Any, Call]:
    skops = _library("skops.io", path)
    model = skops.load(path, trusted=skops.get_untrusted_types(file=path))
    return model, _predict(model, path)


def _pickle(described: ModelDescription, path: Path, *_: Any) -> tuple[Any, Call]:
    if described.framework == "pytorch":
        torch = _library("torch", path)
        module = torch.load(path, map_location="cpu", weights_only=False)
        return module, _torch_call(torch, module)
    model = _library("joblib", path).load(path)
    return model, _predict(model, path)


def _predict(model: Any, path: Path) -> Call:
    """Return the function by which an estimator, or any other object, is used."""
    for name in ("predict", "transform", "__call__"):
        if hasattr(model, name):
            function: Call = getattr(model, name)
            return function
    raise Unsupported(f"{path}: a {type(model).__name__} cannot be called")


def _huggingface(described: ModelDescription, path: Path, into: Any) -> tuple[Any, Call]:
    if described.framework != "transformers" or into is not None:
        return _safetensors(described, path / "model.safetensors", into)
    transformers, torch = _library("transformers", path), _library("torch", path)
    # The code of a folder is never run: trust_remote_code stays off.
    name = described.details.get("class", "").partition(",")[0]
    kind = getattr(transformers, name, None) or transformers.AutoModel
    model = kind.from_pretrained(path, local_files_only=True).eval()
    call = _torch_call(torch, model)
    return model, lambda *arrays, **named: next(iter(dict(call(*arrays, **named)).values()))


_LOADERS: dict[str, Callable[[ModelDescription, Path, Any], tuple[Any, Call]]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
    "pytorch-exported": _exported,
    "pytorch-state-dict": _state,
    "safetensors": _safetensors,
    "keras": _keras,
    "keras-h5": _keras,
    "savedmodel": _savedmodel,
    "tf-checkpoint": _checkpoint,
    "skops": _skops,
    "pickle": _pickle,
    "sklearn-pickle": _pickle,
    "huggingface": _huggingface,
}
