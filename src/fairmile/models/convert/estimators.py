"""Estimators of scikit-learn: all outputs of each, in the order of its ONNX form, and that form."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Unsupported
from fairmile.models.convert.proof import Array
from fairmile.models.formats.description import TensorSpec

FLOAT32 = "skl2onnx"
_OPSETS = {"": 22, "ai.onnx.ml": 3}  # the newest that skl2onnx is tested with; some converters refuse a newer one
_LOCALE = "C.UTF-8"  # by which texts become lower case; skl2onnx would write en_US.UTF-8, which many systems lack


def methods_of(model: Any) -> tuple[str, ...]:
    """Return the methods that give all outputs of an estimator: labels with scores, values, or transformed rows."""
    from sklearn.base import ClusterMixin, OutlierMixin, is_classifier
    from sklearn.feature_selection import SelectorMixin

    last = _last(model)
    if isinstance(last, SelectorMixin) or not hasattr(last, "predict"):
        return ("transform",) if hasattr(last, "transform") else ("kneighbors",)
    if hasattr(last, "predict_proba"):
        return "predict", "predict_proba"
    if isinstance(last, OutlierMixin) or is_classifier(last):
        return ("predict", "decision_function") if hasattr(last, "decision_function") else ("predict",)
    if isinstance(last, ClusterMixin) and hasattr(last, "transform"):
        return "predict", "transform"
    return ("predict",)


def compute_outputs(model: Any, rows: Array) -> list[Array]:
    """Return all outputs of an estimator for rows."""
    values: list[Any] = []
    for name in methods_of(model):
        value = getattr(model, name)(rows)
        values += reversed(value) if name == "kneighbors" else [value]  # distances and indices, in ONNX the reverse
    return plain_outputs(values)


def _last(model: Any) -> Any:
    """Return the estimator that gives the outputs: the last step of a pipeline, the best one of a search."""
    if hasattr(model, "best_estimator_"):
        return _last(model.best_estimator_)
    return _last(model.steps[-1][1]) if hasattr(model, "steps") else model


def plain_outputs(values: list[Any]) -> list[Array]:
    """Return outputs as arrays: dense, numbers as float32, and one value a row as a column.

    Converters write such values as a column or not, as it comes; to an estimator both are the same.
    """
    flat = [part for each in values for part in (each if isinstance(each, list) else [each])]
    arrays = [np.asarray(each.toarray() if hasattr(each, "toarray") else each) for each in flat]
    typed = [each.astype(np.float32) if each.dtype.kind == "f" else each for each in arrays]
    return [each[:, None] if each.ndim == 1 else each for each in typed]


def write_estimator(model: Any, spec: TensorSpec, file: Path, *, refused: str = "") -> str:
    """Write an estimator as ONNX and return the way; in float64 where `refused` says why float32 does not do."""
    from skl2onnx import to_onnx
    from skl2onnx.common import data_types
    from sklearn.base import is_classifier
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    types = {"float32": "Float", "int64": "Int64", "string": "String"}
    if spec.type not in types:
        raise Unsupported(f"no estimator of scikit-learn is converted with {spec.type} inputs")
    kind = getattr(data_types, f"{'Double' if refused else types[spec.type]}TensorType")
    sizes = [size if isinstance(size, int) else None for size in spec.shape or ()]
    # The option only shapes what VotingClassifier.transform returns, which ONNX does not have.
    plain = copy.copy(model)
    if hasattr(plain, "flatten_transform"):
        plain.flatten_transform = False
    methods = methods_of(model)
    texts = {each: {"locale": _LOCALE} for each in (CountVectorizer, TfidfVectorizer)}
    plain_scores = {id(plain): {"zipmap": False}} if is_classifier(model) and methods[0] == "predict" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        convert = partial(to_onnx, plain, initial_types=[(spec.name, kind(sizes))], target_opset=_OPSETS)
        try:
            converted = convert(options={**texts, **plain_scores})
        except NameError:  # skl2onnx's error for an option that a converter does not know: its scores are plain
            converted = convert(options=texts)
    if methods == ("predict",):
        del converted.graph.output[1:]  # votes of a classifier that scikit-learn gives no scores for
    file.write_bytes(converted.SerializeToString())
    return f"{FLOAT32} in float64 (in float32, {refused})" if refused else FLOAT32
