"""Predictions of validation samples, kept beside the results of a run so that runs can be joined to an ensemble."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from fairmile.base.errors import Integrity, NotFound
from fairmile.base.files import write_atomic

Array = np.ndarray[Any, Any]
Kind = Literal["regression", "classification"]
FILE = "predictions.npz"


@dataclass(frozen=True)
class Predictions:
    """What a model predicts of validation samples, and the truth.

    Regression: both are [samples, outputs], the truth NaN where it is missing. Classification: probabilities [samples,
    classes], and the classes [samples]. Samples of a group are not independent, as those of one place.
    """

    kind: Kind
    predicted: Array
    truth: Array
    outputs: Sequence[str] = ()  # names of what is predicted; of classes none are needed
    unit: str = ""
    groups: Array | None = None  # [samples] whole numbers

    def write(self, folder: Path) -> None:
        """Write them into a folder."""
        about = {"kind": self.kind, "outputs": list(self.outputs), "unit": self.unit}
        groups = np.arange(len(self.truth)) if self.groups is None else self.groups
        buffer = BytesIO()
        np.savez_compressed(
            buffer,
            about=np.frombuffer(json.dumps(about).encode(), np.uint8),
            predicted=np.asarray(self.predicted, np.float32),
            truth=np.asarray(self.truth, np.int32 if self.kind == "classification" else np.float32),
            groups=np.asarray(groups, np.int32),
        )
        write_atomic(folder / FILE, buffer.getvalue())


def read_predictions(folder: Path, run: str) -> Predictions:
    """Return the predictions that a run kept in its folder."""
    file = folder / FILE
    if not file.is_file():
        raise NotFound(f"run {run} keeps no predictions", hint="run the benchmark with -p predictions=true")
    try:
        with np.load(file, allow_pickle=False) as kept:
            about = json.loads(kept["about"].tobytes())
            predicted, truth, groups = (np.asarray(kept[name]) for name in ("predicted", "truth", "groups"))
        kind, outputs, unit = str(about["kind"]), [str(each) for each in about["outputs"]], str(about["unit"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise Integrity(f"{file} cannot be read: {error}", hint="run it again with -p predictions=true") from error
    is_sound = kind in ("regression", "classification") and predicted.ndim == 2
    is_sound &= len(predicted) == len(truth) == len(groups) and (kind == "classification" or truth.ndim == 2)
    if not is_sound:
        raise Integrity(f"{file}: predictions {predicted.shape} do not fit the truth {truth.shape}")
    return Predictions(cast(Kind, kind), predicted, truth, outputs, unit, groups)
