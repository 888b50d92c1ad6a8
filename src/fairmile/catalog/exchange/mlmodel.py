"""MLflow's MLmodel files: the YAML beside a saved model that says its flavours, signature and origin."""

from __future__ import annotations

import math
import re
import uuid
from collections import ChainMap
from typing import Any

from fairmile.base.errors import InvalidDocument
from fairmile.base.strict_json import load_json
from fairmile.catalog.exchange.common.media_types import is_pickle, media_type
from fairmile.catalog.exchange.common.taking import Fields, keep_rest, kind_of, scalar_text, settle_typed, unused
from fairmile.catalog.exchange.draft import Document, Draft

_SIGN = re.compile(
    r"^(?:mlflow_version|model_uuid|artifact_path|run_id|utc_time_created|saved_input_example_info)\s*:", re.MULTILINE
)
_FLAVORS = re.compile(r"^[\"']?flavors[\"']?\s*:|[{,]\s*\"flavors\"\s*:", re.MULTILINE)
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d+)?)")
# A flavour's name, the framework as it is searched for and its package on PyPI.
_FRAMEWORKS = {
    "catboost": ("catboost", "catboost"),
    "fastai": ("fastai", "fastai"),
    "keras": ("keras", "keras"),
    "lightgbm": ("lightgbm", "lightgbm"),
    "onnx": ("onnx", "onnx"),
    "paddle": ("paddlepaddle", "paddlepaddle"),
    "pmdarima": ("pmdarima", "pmdarima"),
    "prophet": ("prophet", "prophet"),
    "pytorch": ("pytorch", "torch"),
    "sklearn": ("scikit-learn", "scikit-learn"),
    "spacy": ("spacy", "spacy"),
    "spark": ("spark", "pyspark"),
    "statsmodels": ("statsmodels", "statsmodels"),
    "tensorflow": ("tensorflow", "tensorflow"),
    "transformers": ("transformers", "transformers"),
    "xgboost": ("xgboost", "xgboost"),
}
_PICKLED = frozenset({"fastai", "pmdarima", "pytorch", "statsmodels"})
_FORMATS = {
    "catboost": "application/x-catboost",
    "keras": "application/x-keras",
    "lightgbm": "application/x-lightgbm",
    "onnx": "application/x-onnx",
    "pytorch": "application/x-pytorch",
    "spark": "application/x-spark-ml",
    "tensorflow": "application/x-tensorflow-savedmodel",
    "transformers": "application/x-transformers",
    "xgboost": "application/x-xgboost",
}
_PATH_KEYS = ("pickled_model", "model_path", "data", "model_data", "python_model", "saved_model_dir")
# Column types of MLflow's schema in the names that tensors use.
_DTYPES = {
    "binary": "bytes",
    "boolean": "bool",
    "datetime": "datetime64[ns]",
    "double": "float64",
    "float": "float32",
    "integer": "int32",
    "long": "int64",
    "string": "str",
}


def recognises(document: Document) -> bool:
    """Tell whether the document is an MLmodel file, by its name or by its keys."""
    if document.file_name == "MLmodel":
        return True
    try:
        text = document.text[:200_000]
    except InvalidDocument:
        return False
    return bool(_FLAVORS.search(text)) and (bool(_SIGN.search(text)) or "python_function" in text)


def read(document: Document) -> list[Draft]:
    """Return the model that the file describes."""
    fields = Fields(document, _plain(document.yaml()))
    draft = Draft("model", {})
    flavors = fields.mapping("flavors")
    if flavors is None:
        raise fields.refuse("flavors", "is missing", hint="an MLmodel file lists at least one flavour")
    if not flavors.data:
        raise fields.refuse("flavors", "is empty", hint="an MLmodel file lists at least one flavour")
    needs: list[str] = []
    for name in list(flavors.data):
        flavor = flavors.mapping(name)
        if flavor is None:
            continue
        if name == "python_function":
            _python_function(draft, flavor, needs)
        else:
            _flavor(draft, name, flavor, needs)
    version = fields.text("mlflow_version")
    needs += [f"pkg:pypi/mlflow@{version}"] if version else []
    draft.put("softwareRequirements", list(dict.fromkeys(needs)))
    _identity(draft, fields)
    _signature(draft, fields)
    draft.put("examples", fields.take("saved_input_example_info"))
    draft.put("tags", fields.take("metadata"))
    size = fields.data.get("model_size_bytes")
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        draft.put("contentSize", f"{fields.take('model_size_bytes')} B")
    keep_rest(draft, fields.rest())
    return [settle_typed(draft)]


def _plain(value: Any) -> Any:
    """Return YAML data as JSON can hold it: keys are texts and numbers finite."""
    if isinstance(value, dict):
        plain: dict[str, Any] = {}
        for key, each in value.items():
            plain[key if isinstance(key, str) else unused(str(scalar_text(key)), ChainMap(plain, value))] = _plain(each)
        return plain
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _identity(draft: Draft, fields: Fields) -> None:
    number = fields.text("model_uuid")
    if number is not None:
        draft.put("identifier", number)
        try:
            draft.put("@id", f"urn:uuid:{uuid.UUID(number)}")
        except ValueError:
            draft.warn("model_uuid", f"{number!r} is not a UUID; kept as an identifier")
    path = fields.text("artifact_path")
    name = fields.text("name")
    if name is None and path and path != "model" and not path.startswith("models:"):
        name = path.rstrip("/").rsplit("/", 1)[-1]
    if name is None:
        # Nearly every model is logged under the path "model", which would name none of them.
        framework = next(iter(draft.body.get("machineLearningFramework", [])), "mlflow")
        name = f"{framework} model {(number or fields.document.sha256)[:8]}"
        draft.warn("name", f"the source gives no name; called {name!r}")
    draft.put("name", name)
    if path and path != name:
        draft.put("alternateName", path)
    run = fields.text("run_id")
    draft.put("wasGeneratedBy", [run] if run else [])
    created = fields.text("utc_time_created")
    match = _TIME.fullmatch(created) if created else None
    draft.put("dateCreated", f"{match[1]}T{match[2]}Z" if match else created)


def _flavor(draft: Draft, name: str, flavor: Fields, needs: list[str]) -> None:
    framework, package = _FRAMEWORKS.get(name, (name, ""))
    draft.put("machineLearningFramework", [*draft.body.get("machineLearningFramework", []), framework])
    versions = [key for key in flavor.data if key.endswith("_version") and scalar_text(flavor.data[key])]
    for key in versions:
        version = str(scalar_text(flavor.data[key]))
        # sklearn_version, xgb_version, pytorch_version name the framework; python_version and opset_version do not.
        if key in (f"{name}_version", "xgb_version", "lgb_version", f"{framework}_version"):
            flavor.take(key)
            draft.put("mlFrameworkVersion", [*draft.body.get("mlFrameworkVersion", []), version])
            needs.append(f"pkg:pypi/{package}@{version}" if package else f"{name} {version}")
    form = _FORMATS.get(name)
    given = scalar_text(flavor.data.get("serialization_format")) or scalar_text(flavor.data.get("model_format"))
    if given and media_type(given):
        form = media_type(given)
    elif given and is_pickle(given):
        form = "application/x-pickle"
    _files(draft, name, flavor)
    pickled = name in _PICKLED or (given is not None and is_pickle(given)) or _has_pickle(flavor)
    if pickled:
        form = form or "application/x-pickle"
        draft.warn(
            f"flavors.{name}",
            f"the {name} flavour is stored as a Python pickle: loading it executes code that it contains",
        )
    if form:
        draft.put("modelFormat", list(dict.fromkeys([*draft.body.get("modelFormat", []), form])))


def _has_pickle(flavor: Fields) -> bool:
    return any(isinstance(value, str) and is_pickle(value) for value in flavor.data.values())


def _files(draft: Draft, name: str, flavor: Fields) -> None:
    """Add the files the flavour names; a path that leaves the model's folder is kept, but is no file of the asset."""
    for key in _PATH_KEYS:
        path = flavor.data.get(key)
        if not isinstance(path, str) or "." not in path.rsplit("/", 1)[-1]:
            continue
        parts = path.replace("\\", "/").split("/")
        if path.startswith("/") or ":" in parts[0] or not all(part.strip(".") for part in parts):
            draft.warn(f"flavors.{name}.{key}", f"{path!r} leads out of the folder of the model; not taken as its file")
            continue
        if path not in {entry["name"] for entry in draft.body.get("distribution", ())}:
            draft.add_file(name=path, media_type=media_type(path))


def _python_function(draft: Draft, flavor: Fields, needs: list[str]) -> None:
    version = flavor.text("python_version")
    if version:
        needs.append(f"pkg:generic/python@{version}")
    environment = flavor.data.get("env")
    files = list(environment.values()) if isinstance(environment, dict) else [environment]
    if environment is not None and all(isinstance(each, str) for each in files):
        flavor.take("env")
        draft.put("buildInstructions", files)
    if isinstance(flavor.data.get("python_model"), str) and is_pickle(flavor.data["python_model"]):
        message = "the model is a pickled Python class: loading it executes code that it contains"
        draft.warn("flavors.python_function.python_model", message)
        draft.put("modelFormat", list(dict.fromkeys([*draft.body.get("modelFormat", []), "application/x-pickle"])))
    _files(draft, "python_function", flavor)


def _signature(draft: Draft, fields: Fields) -> None:
    given = fields.mapping("signature")
    if given is None:
        draft.warn("signature", "is missing: the inputs and outputs of the model are unknown")
        return
    signature: dict[str, Any] = {}
    for side in ("inputs", "outputs", "params"):
        value = given.data.get(side)
        if value is None:
            given.take(side)
            continue
        specs = _inner_json(given, side, value)
        if not isinstance(specs, list):
            raise given.refuse(side, f"expected a list of columns or tensors, found {kind_of(specs)}")
        given.take(side)
        signature[side] = [_spec(given, f"{side}[{number}]", spec) for number, spec in enumerate(specs)]
    draft.put("signature", signature)


def _inner_json(fields: Fields, key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return load_json(value, file=fields.document.name)
    except InvalidDocument as error:
        raise fields.refuse(key, f"contains text that is not JSON: {error.problems[0].message}") from error


def _spec(fields: Fields, place: str, spec: Any) -> dict[str, Any]:
    """Return a column or tensor with `dtype` and `shape` beside what MLflow says of it."""
    if not isinstance(spec, dict):
        raise fields.refuse(place, f"expected a column or tensor, found {kind_of(spec)}")
    tensor = spec.get("tensor-spec")
    if isinstance(tensor, dict):
        inner = {key: value for key, value in tensor.items() if key in ("dtype", "shape") and key not in spec}
        left = {key: value for key, value in tensor.items() if key not in inner}
        others = {key: value for key, value in spec.items() if key != "tensor-spec"}
        return others | inner | ({"tensor-spec": left} if left else {})
    kind = spec.get("type")
    dtype = _DTYPES.get(kind) if isinstance(kind, str) else None
    return spec | {"dtype": dtype} if dtype and "dtype" not in spec else spec
