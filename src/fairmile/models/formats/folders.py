"""Folders with a description beside the weights: Hugging Face's and MLflow's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmile.base.errors import FairmileError, UsageError
from fairmile.base.yaml import load as load_yaml
from fairmile.models.formats import safetensors, torch_zip
from fairmile.models.formats.description import ModelDescription, TensorSpec, count_values
from fairmile.models.formats.source import Source, open_source
from fairmile.models.formats.tensorflow import folder_size

_MOST_SHARDS = 2_000
_LONGEST_MLMODEL = 1 << 20
_COLUMN_TYPES = {
    **{"double": "float64", "float": "float32", "long": "int64", "integer": "int32", "boolean": "bool"},
    **{"string": "str", "binary": "bytes", "datetime": "datetime64[ns]"},
}


def recognises_huggingface(source: Source) -> bool:
    """Tell whether a folder has a configuration of transformers, or weights as a hub names them."""
    if not source.is_folder:
        return False
    config = source.file_json("config.json")
    is_configured = isinstance(config, Mapping) and bool({"model_type", "architectures"} & config.keys())
    return is_configured or (source.path / "model.safetensors").is_file()


def read_huggingface(source: Source) -> ModelDescription:
    """Return what the configuration and the headers of the weights declare."""
    config = source.file_json("config.json")
    config = config if isinstance(config, Mapping) else {}
    weights: list[TensorSpec] = []
    warnings: list[str] = []
    shards = sorted(source.path.glob("*.safetensors"))[:_MOST_SHARDS]
    pickled = sorted(source.path.glob("pytorch_model*.bin"))[:_MOST_SHARDS] if not shards else []
    runs_code = False
    for shard in [*shards, *pickled]:
        with open_source(shard) as file:
            read = safetensors.read if safetensors.recognises(file) else torch_zip.read_state
            if read is torch_zip.read_state and not torch_zip.recognises_state(file):
                raise source.damaged("Hugging Face folder", f"{shard.name} holds no weights")
            part = read(file)
            weights += part.weights
            runs_code = runs_code or part.runs_code
    if not weights:
        warnings.append("has no weights")
    remote = config.get("auto_map")
    if remote:
        warnings.append("needs Python code of the folder (auto_map)")
    architectures = config.get("architectures")
    details = {
        "class": ", ".join(map(str, architectures)) if isinstance(architectures, list) else "",
        "model type": str(config.get("model_type", "")),
    }
    version = config.get("transformers_version", "")
    return ModelDescription(
        str(source.path),
        "huggingface",
        "transformers" if config.get("model_type") else "pytorch",
        folder_size(source.path),
        producer=f"transformers {version}" if version else "",
        parameters=count_values(weights),
        weights=tuple(weights),
        runs_code=runs_code or bool(remote),
        details={name: value for name, value in details.items() if value},
        warnings=tuple(warnings),
    )


def recognises_mlflow(source: Source) -> bool:
    """Tell whether a folder has an MLmodel file."""
    return source.is_folder and (source.path / "MLmodel").is_file()


def read_mlflow(source: Source, recognise: Any) -> ModelDescription:
    """Return what an MLmodel file declares, with what is in the model file that it names."""
    document = _small_yaml(source)
    flavors = _mapping(document.get("flavors"))
    own = next((name for name in flavors if name != "python_function"), "python_function")
    signature = _mapping(document.get("signature"))
    inner, warning = _inner(source, _mapping(flavors.get(own)), recognise)
    inputs = _columns(source, signature.get("inputs"))
    described = ModelDescription(
        str(source.path),
        "mlflow",
        {"sklearn": "scikit-learn"}.get(own, own),
        folder_size(source.path),
        producer=f"MLflow {document['mlflow_version']}" if document.get("mlflow_version") else "MLflow",
        inputs=inputs,
        outputs=_columns(source, signature.get("outputs")),
        details={"flavors": ", ".join(map(str, flavors))},
        warnings=(warning,) if warning else (),
    )
    if inner is None:
        return described
    return replace(
        described,
        inputs=inputs or inner.inputs,
        outputs=described.outputs or inner.outputs,
        parameters=inner.parameters,
        weights=inner.weights,
        operators=inner.operators,
        opset=inner.opset,
        runs_code=inner.runs_code,
        imports=inner.imports,
        details={**described.details, "model file": inner.path, "model format": inner.title},
        warnings=(*described.warnings, *inner.warnings),
    )


def _inner(source: Source, flavor: Mapping[str, Any], recognise: Any) -> tuple[ModelDescription | None, str]:
    """Return the description of the model file that a flavour names, or why there is none."""
    names = [flavor.get(key) for key in ("pickled_model", "data", "model_data", "saved_model_dir", "model_path")]
    for name in [str(each) for each in names if isinstance(each, str)]:
        path = (source.path / name).resolve()
        if not path.is_relative_to(source.path.resolve()):
            return None, f"names a file outside its folder: {name}"
        candidates = [path] if path.is_file() else [path, *sorted(path.glob("model.*"))] if path.is_dir() else []
        for each in candidates:
            try:
                inner: ModelDescription = recognise(each)
            except UsageError as error:
                if each == candidates[-1]:
                    return None, str(error)
                continue
            return replace(inner, path=str(Path(each).relative_to(source.path.resolve()))), ""
    return None, ""


def _columns(source: Source, text: Any) -> tuple[TensorSpec, ...]:
    """Return inputs or outputs of a signature, which MLflow keeps as JSON in a text."""
    entries = source.parse_json(text.encode(), "MLmodel file: signature") if isinstance(text, str) else []
    specs = []
    for index, each in enumerate(entries if isinstance(entries, list) else ()):
        each = _mapping(each)
        tensor = _mapping(each.get("tensor-spec"))
        shape = tensor.get("shape")
        dims = tuple(None if d == -1 else d for d in shape) if isinstance(shape, list) else None
        kind = str(tensor.get("dtype") or _COLUMN_TYPES.get(str(each.get("type")), str(each.get("type", ""))))
        specs.append(TensorSpec(str(each.get("name", index)), kind, dims if tensor else (None,)))
    return tuple(specs)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _small_yaml(source: Source) -> Mapping[str, Any]:
    try:
        with (source.path / "MLmodel").open("rb") as stream:
            return _mapping(load_yaml(stream.read(_LONGEST_MLMODEL).decode("utf-8"), file="MLmodel"))
    except (OSError, UnicodeDecodeError, FairmileError) as error:
        raise source.damaged("MLflow folder", str(error)) from error
