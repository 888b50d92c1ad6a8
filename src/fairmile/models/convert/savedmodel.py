"""SavedModels, written and computed by a TensorFlow that lives in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Unsupported
from fairmile.models.convert.proof import Array

_PROGRAM = Path(__file__).with_name("tensorflow_program.py")


class TensorFlow:
    """A process of TensorFlow that has written a Keras file as a SavedModel, and computes that; it ends with ours."""

    def __init__(self, python: Sequence[str], keras_file: Path, folder: Path) -> None:
        argv = [*python, str(_PROGRAM), str(keras_file), str(folder)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.version = str(self._answer()["version"])
        except Unsupported:
            self.close()
            raise

    def __call__(self, arrays: Mapping[str, Array]) -> list[Array]:
        assert self._process.stdin is not None
        with tempfile.TemporaryDirectory() as place:
            for number, each in enumerate(arrays.values()):
                np.save(Path(place, f"{number}.npy"), each)
            self._process.stdin.write(json.dumps(place) + "\n")
            self._process.stdin.flush()
            count = self._answer()["outputs"]
            return [np.load(Path(place, f"out-{number}.npy")) for number in range(count)]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise Unsupported(f"TensorFlow cannot write or compute the model: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process before ours ends."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()
