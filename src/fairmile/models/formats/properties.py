"""What a model file adds to the card that is drafted of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.models.formats import ModelDescription, recognise
from fairmile.models.formats.description import TensorSpec
from fairmile.models.formats.source import Damaged

_MEDIA_TYPES = {
    "onnx": "application/x-onnx",
    "savedmodel": "application/x-tensorflow-savedmodel",
    "tf-checkpoint": "application/x-tensorflow-checkpoint",
    "keras": "application/x-keras",
    "keras-h5": "application/x-keras",
    "pytorch-state-dict": "application/x-pytorch",
    "torchscript": "application/x-pytorch",
    "pytorch-exported": "application/x-pytorch",
    "pickle": "application/x-pickle",
    "sklearn-pickle": "application/x-pickle",
    "safetensors": "application/x-safetensors",
    "skops": "application/x-skops",
    "mlflow": "application/x-mlflow",
    "huggingface": "application/x-transformers",
}


def read_properties(path: Path) -> dict[str, Any] | None:
    """Return the properties of a card that a model file states itself; None where it is no model."""
    try:
        return card_properties(recognise(path))
    except Damaged:
        raise
    except UsageError:
        return None


def card_properties(described: ModelDescription) -> dict[str, Any]:
    """Return framework, format, number of parameters and signature as a card names them."""
    sides = {"inputs": described.inputs, "outputs": described.outputs}
    signature = {side: [_spec(each) for each in specs] for side, specs in sides.items() if specs}
    values: dict[str, Any] = {
        "machineLearningFramework": described.framework,
        "modelFormat": _MEDIA_TYPES[described.format],
        "parameterCount": described.parameters,
        "signature": signature,
    }
    if described.runs_code:
        message = f"{Path(described.path).name} can execute code when it is loaded"
        values["warnings"] = [{"field": "distribution", "message": message}]
    return {key: value for key, value in values.items() if value not in ("", None, {}, [])}


def _spec(tensor: TensorSpec) -> dict[str, Any]:
    shape = None if tensor.shape is None else [each if isinstance(each, int) else None for each in tensor.shape]
    spec = {"name": tensor.name, "dtype": tensor.type, "shape": shape}
    return {key: value for key, value in spec.items() if value not in ("", None)}
