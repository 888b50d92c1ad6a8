"""Counts the scikit-learn estimators that convert to ONNX with proof, of all that skl2onnx lists.

Run: python speed/sklearn_estimators.py [NAME …]

Each estimator is fitted on small bundled data, saved, converted as `fairmile model convert FILE --to onnx --data ROWS
--trust-pickle` does, and proved on drawn inputs and on rows that it was not fitted on. One that is refused, or whose
ONNX file differs by more than the tolerance, is counted under its reason. The goal: at least 95 % of the list.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pickle
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets, ensemble, linear_model, preprocessing

from fairmile.models.convert.program import convert
from fairmile.models.convert.request import Request

_ROWS = 120  # to fit on; the others are compared
_TEXTS = ["the sea rises with the tide", "a tide of two metres", "wind and sea", "two winds over the sea", "the wind"]


class Outcome(NamedTuple):
    """What became of one estimator: passed, differs or refused, by how much, and why."""

    name: str
    module: str
    state: str
    largest: float
    reason: str


class Task(NamedTuple):
    """What an estimator is fitted on, the rows to compare on, and how its input is described."""

    rows: Any
    targets: Any
    other_rows: Any
    inputs: tuple[str, ...] = ()


def listed() -> list[type]:
    """Return the public estimators that skl2onnx lists."""
    importlib.import_module("skl2onnx")
    known: Any = importlib.import_module("skl2onnx._supported_operators").sklearn_operator_name_map
    public = [each for each in known if not each.__name__.startswith("_")]
    return sorted(public, key=lambda each: (each.__module__.split(".")[1], each.__name__))


def _inner(kind: str) -> Any:
    return linear_model.LogisticRegression() if kind == "classifier" else linear_model.Ridge()


_ARGUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "ColumnTransformer": lambda: {
        "transformers": [("a", preprocessing.StandardScaler(), [0, 1]), ("b", "passthrough", [2, 3])]
    },
    "FeatureUnion": lambda: {
        "transformer_list": [("a", preprocessing.StandardScaler()), ("b", preprocessing.MinMaxScaler())]
    },
    "RandomTreesEmbedding": lambda: {"sparse_output": False},
    "GridSearchCV": lambda: {"estimator": _inner("classifier"), "param_grid": {"C": [0.1, 1.0]}},
    "MultiOutputClassifier": lambda: {"estimator": _inner("classifier")},
    "MultiOutputRegressor": lambda: {"estimator": _inner("regressor")},
    "OneVsOneClassifier": lambda: {"estimator": _inner("classifier")},
    "OneVsRestClassifier": lambda: {"estimator": _inner("classifier")},
    "Pipeline": lambda: {"steps": [("scale", preprocessing.StandardScaler()), ("fit", _inner("classifier"))]},
    "RFE": lambda: {"estimator": _inner("classifier"), "n_features_to_select": 2},
    "RFECV": lambda: {"estimator": _inner("classifier"), "min_features_to_select": 2},
    "SelectFromModel": lambda: {"estimator": _inner("classifier")},
    "GenericUnivariateSelect": lambda: {"mode": "k_best", "param": 2},
    "SelectKBest": lambda: {"k": 2},
    "StackingClassifier": lambda: {
        "estimators": [("a", _inner("classifier")), ("b", ensemble.RandomForestClassifier(5))]
    },
    "StackingRegressor": lambda: {"estimators": [("a", _inner("regressor")), ("b", ensemble.RandomForestRegressor(5))]},
    "VotingClassifier": lambda: {
        "estimators": [("a", _inner("classifier")), ("b", ensemble.RandomForestClassifier(5))]
    },
    "VotingRegressor": lambda: {"estimators": [("a", _inner("regressor")), ("b", ensemble.RandomForestRegressor(5))]},
    "TunedThresholdClassifierCV": lambda: {"estimator": _inner("classifier")},
    "CastRegressor": lambda: {"estimator": _inner("regressor")},
    "KBinsDiscretizer": lambda: {"encode": "onehot-dense"},
    "NearestNeighbors": lambda: {"radius": None},
    "LocalOutlierFactor": lambda: {"novelty": True},
    "RadiusNeighborsClassifier": lambda: {"radius": 100.0},
    "RadiusNeighborsRegressor": lambda: {"radius": 100.0},
    "KNeighborsTransformer": lambda: {"mode": "distance"},
    "GaussianRandomProjection": lambda: {"n_components": 2},
    "FeatureHasher": lambda: {"n_features": 8, "input_type": "string"},
}
_REGRESSORS = ("PLSRegression", "TargetEncoder")


def task_of(kind: type) -> Task:
    """Return what an estimator of a kind is fitted on."""
    name = kind.__name__
    rows, labels = (np.asarray(each) for each in datasets.load_iris(return_X_y=True))
    generator = np.random.default_rng(0)
    order = generator.permutation(len(rows))
    # Measured to 0.1, rows have neighbours at the same distance, of which any may be taken.
    rows = (rows[order] + generator.normal(0, 0.02, rows.shape)).astype(np.float32).astype(np.float64)
    labels = labels[order]
    values = rows @ np.array([1.0, -2.0, 0.5, 1.5]) + 0.1 * labels + 10.0
    if name in ("TunedThresholdClassifierCV", "GaussianProcessClassifier"):
        labels = (labels > 0).astype(int)
    if name.startswith("MultiTask") or name == "MultiOutputRegressor":
        values = np.stack([values, rows[:, 0] - rows[:, 2]], axis=1)
    if name == "MultiOutputClassifier":
        labels = np.stack([labels, (rows[:, 0] > 5.8).astype(int)], axis=1)
    if name in ("CategoricalNB", "OneHotEncoder", "OrdinalEncoder", "TargetEncoder"):
        rows = np.floor(rows).clip(1, 5)
    if name in ("CountVectorizer", "TfidfVectorizer"):
        return Task(_TEXTS, None, np.array(_TEXTS[:3]), ("X=string[batch]",))
    if name == "FeatureHasher":
        return Task([[each] for each in _TEXTS], None, np.array(_TEXTS[:3])[:, None], ("X=string[batch,1]",))
    if name in ("LabelBinarizer", "LabelEncoder"):
        return Task(labels, None, labels[_ROWS:], ("X=int64[batch]",))
    if name == "KernelCenterer":
        return Task(rows[:20] @ rows[:20].T, None, rows[20:40] @ rows[:20].T)
    if name == "DictVectorizer":
        return Task([{"a": 1.0, "b": 2.0}, {"b": 3.0, "c": 1.0}], None, np.zeros((2, 3)))
    is_regression = issubclass(kind, _regressor_base()) or name in _REGRESSORS
    targets = values if is_regression else labels
    inputs = ("X=float32[batch,4]",) if "onnx" in kind.__module__ else ()  # these do not keep how many columns they saw
    return Task(rows[:_ROWS], targets[:_ROWS], rows[_ROWS:], inputs)


def _regressor_base() -> type:
    base: type = importlib.import_module("sklearn.base").RegressorMixin
    return base


def fitted(kind: type, task: Task) -> Any:
    """Return an estimator of a kind, fitted on its task."""
    arguments = _ARGUMENTS.get(kind.__name__, dict)()
    taken = inspect.signature(kind).parameters
    arguments |= {name: value for name, value in {"random_state": 0}.items() if name in taken}
    if "n_estimators" in taken:
        arguments["n_estimators"] = 10
    return (
        kind(**arguments).fit(task.rows, task.targets) if task.targets is not None else kind(**arguments).fit(task.rows)
    )


def judge(kind: type, folder: Path) -> Outcome:
    """Return what becomes of an estimator of a kind that is fitted and converted with proof."""
    name, module = kind.__name__, kind.__module__.split(".")[1]
    task = task_of(kind)
    model = fitted(kind, task)
    file, rows = folder / f"{name}.pkl", folder / f"{name}.npy"
    file.write_bytes(pickle.dumps(model))
    np.save(rows, task.other_rows)
    request = Request("onnx", str(file), "sklearn-pickle", inputs=task.inputs, data=str(rows), trust_pickle=True)
    try:
        _, _, proof = convert(request, folder)
    except Exception as error:  # noqa: BLE001  converters raise whatever comes up
        text = (str(error).strip() or "no message").splitlines()[0][:160]
        return Outcome(name, module, "refused", float("nan"), f"{type(error).__name__}: {text}")
    worst = max(proof.cases, key=lambda each: each.largest)
    reason = "" if proof.holds else f"{proof.largest:.1e} on {worst.inputs}; tolerance {proof.tolerance:.1e}"
    return Outcome(name, module, "passed" if proof.holds else "differs", proof.largest, reason)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="estimators; default: all that are listed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    outcomes = []
    begins = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for kind in listed():
            if not options.names or kind.__name__ in options.names:
                outcomes.append(judge(kind, Path(folder)))
                if outcomes[-1].state != "passed":
                    print(f"{outcomes[-1].state:8} {outcomes[-1].name}: {outcomes[-1].reason}")
    states = Counter(each.state for each in outcomes)
    share = states["passed"] / len(outcomes)
    print(
        f"passed {states['passed']} of {len(outcomes)} ({share:.1%})   differs {states['differs']}"
        f"   refused {states['refused']}   {time.process_time() - begins:.1f} s CPU"
    )
    print("goal (95 %): " + ("met" if share >= 0.95 else "not met"))
    return 0 if share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
