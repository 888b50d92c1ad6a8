"""The library of ONNX Runtime is found beside the installed package, which is not loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairmile.base.onnx_library import find_onnx_library


def test_it_lies_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert find_onnx_library() is None
    for name in ("libonnxruntime_providers_shared.so", "libonnxruntime.so.1.31.1"):
        (package / "capi" / name).touch()
    assert find_onnx_library() == package / "capi" / "libonnxruntime.so.1.31.1"
