"""Files of other formats: each writer returns the way it took, since several may lead there."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Unsupported
from fairmile.models.convert.estimators import write_estimator
from fairmile.models.convert.proof import Array
from fairmile.models.convert.sources import Source
from fairmile.models.formats.description import TensorSpec

_ONE_FILE_BYTES = 1 << 30  # up to here an ONNX file holds its weights itself
_OPSET = 17  # of the second exporter
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
FIRST_EXPORTER = "torch.export exporter"


def write_onnx(source: Source, file: Path, *, refused: str = "") -> str:
    """Write a model as ONNX and return by which exporter.

    `refused` says why the first way is not to be used, if it is not: the first exporter of PyTorch, or float32.
    """
    if source.kind == "torch":
        return _torch_to_onnx(source, file, refused)
    if source.kind == "keras":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Keras refuses to export a model that was loaded and never called.
            source.compute({each.name: _zeros(each) for each in source.specs})
            source.model.export(str(file), format="onnx", verbose=False)
        return "Keras export"
    if source.kind == "sklearn":
        return write_estimator(source.model, source.specs[0], file, refused=refused)
    raise Unsupported(f"no conversion from {source.kind} to ONNX")


def _zeros(spec: TensorSpec) -> Array:
    return np.zeros([size if isinstance(size, int) else 2 for size in spec.shape or ()], spec.type)


def _torch_to_onnx(source: Source, file: Path, refused: str) -> str:
    import torch

    names = [each.name for each in source.specs]
    moving = [
        {place: size for place, size in enumerate(spec.shape or ()) if not isinstance(size, int)}
        for spec in source.specs
    ]
    size = sum(each.numel() * each.element_size() for each in source.model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if not refused:
                shapes = tuple(dict.fromkeys(each, torch.export.Dim.AUTO) for each in moving)
                torch.onnx.export(
                    source.model,
                    source.examples,
                    str(file),
                    dynamo=True,
                    verbose=False,
                    input_names=names,
                    dynamic_shapes=shapes if any(moving) else None,
                    external_data=size >= _ONE_FILE_BYTES,
                )
                return FIRST_EXPORTER
        except (torch.onnx.OnnxExporterError, RuntimeError, ValueError, TypeError, AssertionError) as error:
            text = _COLOURS.sub("", str(error)).strip()
            refused = text.splitlines()[0] if text else type(error).__name__
        axes = {
            name: {place: str(word or f"d{place}") for place, word in each.items()}
            for name, each in zip(names, moving, strict=True)
        }
        torch.onnx.export(
            source.model,
            source.examples,
            str(file),
            dynamo=False,
            opset_version=_OPSET,
            input_names=names,
            dynamic_axes=axes,
        )
    return f"TorchScript exporter (torch.export: {refused[:160]})"


def write_torch(onnx_file: Path, source: Source, file: Path) -> str:
    """Write an ONNX model as an exported program of PyTorch, or as TorchScript where it cannot be exported."""
    import torch

    from fairmile.models.onnx_torch.module import OnnxModule

    module = OnnxModule(onnx_file).eval()
    examples = source.examples or tuple(_example(each) for each in source.specs)
    moving = [
        [place for place, size in enumerate(spec.shape or ()) if not isinstance(size, int)] for spec in source.specs
    ]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            shapes = {"arrays": tuple(dict.fromkeys(each, torch.export.Dim.AUTO) for each in moving)}
            torch.export.save(torch.export.export(module, examples, dynamic_shapes=shapes, strict=False), file)
            return "interpreted graph, torch.export"
        except Exception as error:  # noqa: BLE001  exporters of PyTorch raise whatever comes up
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        torch.jit.trace(module, examples, check_trace=False).save(str(file))  # type: ignore[no-untyped-call]
    return f"interpreted graph, TorchScript trace (torch.export: {first[:160]})"


def _example(spec: Any) -> Any:
    import torch

    shape = [size if isinstance(size, int) else 2 for size in spec.shape or ()]
    return torch.zeros(shape, dtype=getattr(torch, spec.type))


def write_openvino(onnx_file: Path, file: Path) -> str:
    """Write an ONNX model as OpenVINO's XML, with its weights in a file beside it."""
    import openvino

    openvino.save_model(openvino.convert_model(str(onnx_file)), str(file), compress_to_fp16=False)
    return "OpenVINO's reader of ONNX"


def write_weights(weights: dict[str, Any], file: Path, format: str) -> str:
    """Write weights by name as safetensors or as a state dict of PyTorch."""
    import torch

    plain = {name: value.contiguous().clone() for name, value in weights.items() if isinstance(value, torch.Tensor)}
    if format == "safetensors":
        from safetensors.torch import save_file

        save_file(plain, str(file))
    else:
        torch.save(plain, file)
    return "weights by name"
