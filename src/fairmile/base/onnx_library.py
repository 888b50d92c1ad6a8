"""Where the library of an installed ONNX Runtime lies, for programs that load it themselves."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def find_onnx_library() -> Path | None:
    """Return the library in the package of this Python; None where it is not installed. Nothing of it is loaded."""
    spec = find_spec("onnxruntime")
    places = spec.submodule_search_locations if spec is not None else None
    libraries = (each for place in places or () for each in sorted(Path(place, "capi").glob("libonnxruntime.*")))
    return next(libraries, None)
