"""The program of a recorded inference: `python -m fairmile.models.inference MODEL DATA OUT [--trust-pickle]`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from fairmile.base.errors import FairmileError
from fairmile.base.garbage import search_rarely
from fairmile.meter import log
from fairmile.models.ready import ModelFile


def main(model_file: str, data: str, out: str, *, trust_pickle: bool) -> None:
    """Call a model with the arrays of a file, and write its outputs and the time that it took."""
    arrays = np.load(data, allow_pickle=False)
    model = ModelFile(Path(model_file), trust_pickle=trust_pickle)
    _ = model.native  # its framework is not part of the time
    start = time.perf_counter()
    if isinstance(arrays, np.ndarray):
        rows, outputs = len(arrays), model(arrays)
    else:
        rows, outputs = len(arrays[arrays.files[0]]), model(**{name: arrays[name] for name in arrays.files})
    log(inference_time=time.perf_counter() - start, rows=rows)
    named = outputs if isinstance(outputs, dict) else {"output": outputs}
    np.savez(out, **named)


if __name__ == "__main__":
    search_rarely()
    try:
        main(*sys.argv[1:4], trust_pickle="--trust-pickle" in sys.argv)
    except FairmileError as error:
        sys.exit(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""))
