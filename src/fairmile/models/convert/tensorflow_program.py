"""Writes a Keras model as a SavedModel and computes it: `python tensorflow_program.py FILE.keras FOLDER`.

TensorFlow's own Python runs it, and need not have Fairmile: nothing else is imported. After a line that says which
TensorFlow it is, each line of its input names a folder with inputs, `0.npy`, `1.npy` …, where it then writes outputs.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any


def write(file: str, folder: str) -> tuple[str, Callable[[str], int]]:
    """Write a SavedModel, and return the version of TensorFlow and what computes the files of a folder."""
    import keras
    import numpy as np

    tf: Any = importlib.import_module("tensorflow")
    model = keras.saving.load_model(file, compile=False)  # in safe mode: no code of the file is executed
    count = len(model.inputs)
    model.export(folder, format="tf_saved_model", verbose=False)
    loaded = tf.saved_model.load(folder)  # held, since what it serves dies with it

    def compute(place: str) -> int:
        arrays = [tf.constant(np.load(os.path.join(place, f"{number}.npy"))) for number in range(count)]
        outputs = tf.nest.flatten(loaded.serve(arrays[0] if count == 1 else arrays))
        for number, each in enumerate(outputs):
            np.save(os.path.join(place, f"out-{number}.npy"), each.numpy())
        return len(outputs)

    return str(tf.__version__), compute


def main(file: str, folder: str) -> int:
    # TensorFlow prints what it likes: only this program writes to the pipe of answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        version, compute = write(file, folder)
    except Exception as error:  # noqa: BLE001  TensorFlow raises whatever comes up
        print(json.dumps(_failure(error)), file=answers)
        return 1
    print(json.dumps({"version": version}), file=answers)
    for line in sys.stdin:
        try:
            answer = {"outputs": compute(json.loads(line))}
        except Exception as error:  # noqa: BLE001
            answer = _failure(error)
        print(json.dumps(answer), file=answers)
    return 0


def _failure(error: Exception) -> dict[str, Any]:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return {"error": f"{type(error).__name__}: {text[:200]}"}


if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main(*sys.argv[1:]))
