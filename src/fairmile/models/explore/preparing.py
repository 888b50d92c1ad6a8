"""What all candidates of an exploration share, made in a process of its own: `python -m …explore.preparing JSON`.

It leaves `prepared.json`, the model as ONNX in each precision, and for each batch size the inputs with the outputs of
the source, `inputs-8.npz`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import FairmileError, MissingExtra, UsageError
from fairmile.models.convert.program import convert
from fairmile.models.convert.proof import Array, Arrays
from fairmile.models.convert.request import Request
from fairmile.models.convert.sources import Source, open_model
from fairmile.models.explore.quality import quality_of
from fairmile.models.explore.request import Candidate, Exploring, InputDict, Prepared, extra_of
from fairmile.models.formats.description import TensorSpec

PREPARED = "prepared.json"
TARGETS = "targets"
_ROWS = 1024  # of a data set that are compared
_OTHER_SIZE = 16  # of sizes that vary beside the batch
_NEED_ONNX = ("onnxruntime", "openvino")


def inputs_file(batch: int) -> str:
    return f"inputs-{batch}.npz"


def prepare(asked: Exploring, folder: Path) -> Prepared:
    """Write what the candidates need into a folder, and return what there is."""
    model = dataclasses.replace(asked.model, to="onnx", data="")
    source = open_model(model, with_exact=False)
    fixed = _fixed_batch(source.specs)
    candidates = asked.candidates(fixed)
    data = _read_data(asked.model.data, source.specs)
    batches = {each.batch for each in candidates if fixed in (None, each.batch)}
    metric, quality = "", None
    described: dict[str, dict[str, InputDict]] = {}
    for batch in sorted(batches):
        parts = _portions(source, batch, data, asked.model.seed)
        described[str(batch)] = {name: _described(each) for name, each in parts[0].items()}
        name, value = _write_inputs(source, parts, data, folder / inputs_file(batch))
        metric, quality = name or metric, value if quality is None else quality
    files, reasons = _onnx_files(model, source, candidates, data, folder)
    gpu = _gpu() if asked.device == "cuda" else ""
    rows = len(next(iter(data.values()))) if data else 0
    return Prepared(source.kind, files, reasons, fixed, gpu, metric, quality, rows, described)


def _described(array: Array) -> InputDict:
    low, high = (float(array.min()), float(array.max())) if array.dtype.kind in "iub" and array.size else (0.0, 0.0)
    return {"shape": list(array.shape), "type": str(array.dtype), "low": low, "high": high}


def _fixed_batch(specs: Sequence[TensorSpec]) -> int | None:
    """Return the only batch size that a model takes, None where it varies."""
    first = specs[0].shape[0] if specs and specs[0].shape else None
    varies = any(not isinstance(size, int) for spec in specs for size in spec.shape or ())
    return None if varies else first if isinstance(first, int) else 1


def _read_data(file: str, specs: Sequence[TensorSpec]) -> Arrays:
    """Return the rows of a data set by input, with its targets if it has them."""
    if not file:
        return {}
    content = np.load(file, allow_pickle=False)
    if isinstance(content, np.ndarray):
        return {specs[0].name: content[:_ROWS]}
    missing = [each.name for each in specs if each.name not in content.files]
    if missing:
        raise UsageError(
            f"{Path(file).name} has no array {missing[0]!r}; it has {', '.join(content.files)}",
            hint="name the arrays after the inputs of the model, and the expected outputs `targets`",
        )
    names = [each.name for each in specs] + ([TARGETS] if TARGETS in content.files else [])
    return {name: content[name][:_ROWS] for name in names}


def chunks(data: Mapping[str, Array], batch: int) -> list[Arrays]:
    """Return rows in portions of a batch size; the last one is filled up with the first rows."""
    rows = len(next(iter(data.values())))
    places = [np.arange(start, start + batch) % rows for start in range(0, rows, batch)]
    return [{name: each[place] for name, each in data.items()} for place in places]


def _portions(source: Source, batch: int, data: Arrays, seed: int) -> list[Arrays]:
    """Return inputs of a batch size: rows of the data set, or random ones where there is none."""
    inputs = {name: each for name, each in data.items() if name != TARGETS}
    if not inputs:
        return [_drawn(source, batch, np.random.default_rng(seed + number)) for number in range(2)]
    types = {each.name: each.type for each in source.specs}
    return [{name: each.astype(types[name]) for name, each in part.items()} for part in chunks(inputs, batch)]


def _write_inputs(source: Source, portions: Sequence[Arrays], data: Arrays, file: Path) -> tuple[str, float | None]:
    """Write inputs with the outputs of the source, and return the source's own quality on the data."""
    content: dict[str, Any] = {}
    outputs = []
    for number, part in enumerate(portions):
        computed = source.compute(part)
        outputs.append(computed)
        content |= {f"{number}/in/{name}": each for name, each in part.items()}
        content |= {f"{number}/out/{place}": each for place, each in enumerate(computed)}
    if TARGETS in data:
        content[TARGETS] = data[TARGETS]
    np.savez(file, **content)
    return quality_of(outputs, data[TARGETS]) if TARGETS in data else ("", None)


def _drawn(source: Source, batch: int, generator: np.random.Generator) -> Arrays:
    arrays: Arrays = {}
    names = [size for spec in source.specs for size in (spec.shape or ())[:1] if not isinstance(size, int)]
    for spec in source.specs:
        shape = [
            size
            if isinstance(size, int)
            else batch
            if place == 0 or (size in names and size is not None)
            else _OTHER_SIZE
            for place, size in enumerate(spec.shape or ())
        ]
        if np.dtype(spec.type).kind == "f":
            arrays[spec.name] = generator.standard_normal(shape).astype(spec.type)
        else:
            low, high = source.ranges.get(spec.name, (0, 1))
            arrays[spec.name] = generator.integers(int(low), int(high) + 1, shape).astype(spec.type)
    return arrays


def _onnx_files(
    model: Request, source: Source, candidates: Sequence[Candidate], data: Arrays, folder: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Write the model as ONNX in the precisions that candidates need, and return the files and reasons for none."""
    wanted = {
        "int8" if each.precision == "int8" else each.precision for each in candidates if each.runtime in _NEED_ONNX
    }
    if not wanted and source.kind in ("onnx", "torch"):
        return ({"fp32": str(source.model)} if source.kind == "onnx" else {}), {}
    if source.kind == "onnx":
        hub = Path(source.model)
    else:
        try:
            hub, way, proof = convert(model, folder)
        except Exception as error:  # noqa: BLE001  exporters raise whatever comes up
            return {}, dict.fromkeys(("fp32", "fp16", "int8"), f"no ONNX form: {_first_line(error)}")
        if not proof.holds:
            differs = f"differs by {proof.largest:.1e}" if np.isfinite(proof.largest) else "fails on some inputs"
            return {}, dict.fromkeys(("fp32", "fp16", "int8"), f"its ONNX form ({way}) {differs}")
    files: dict[str, str] = {"fp32": str(hub)}
    reasons: dict[str, str] = {}
    for precision in ("fp16", "int8"):
        if precision in wanted:
            file = folder / f"model-{precision}.onnx"
            try:
                _half(hub, file) if precision == "fp16" else _quantize(hub, file, source.specs, data)
                files[precision] = file.name
            except Exception as error:  # noqa: BLE001  converters raise whatever comes up
                reasons[precision] = f"ONNX Runtime cannot convert the model to {precision}: {_first_line(error)}"
    return files, reasons


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _half(hub: Path, file: Path) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(str(hub)), keep_io_types=True), str(file))


def _quantize(hub: Path, file: Path, specs: Sequence[TensorSpec], data: Arrays) -> None:
    """Quantize to int8: with ranges from the data set, or from each input anew where there is none."""
    import onnx
    from onnxruntime import quantization

    ready, model = file.with_suffix(".ready.onnx"), onnx.load(str(hub))
    # The quantizer transposes weights, and then meets the shapes that an exporter noted before.
    del model.graph.value_info[:]
    onnx.save(model, str(ready))
    inputs = {each.name: data[each.name].astype(each.type) for each in specs if each.name in data}
    if not inputs:
        quantization.quantize_dynamic(str(ready), str(file), weight_type=quantization.QuantType.QUInt8)
        return

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._parts = iter(chunks(inputs, 8))

        def get_next(self) -> dict[str, Array] | None:
            return next(self._parts, None)

    quantization.quantize_static(str(ready), str(file), Reader(), quant_format=quantization.QuantFormat.QDQ)


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise UsageError("PyTorch sees no NVIDIA GPU here", hint="--device cpu")
    return str(torch.cuda.get_device_name(0))


def main(argv: list[str]) -> int:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    folder = Path.cwd()
    try:
        prepared = prepare(Exploring.from_json(argv[0]), folder)
    except ImportError as error:
        missing = MissingExtra(f"exploring this model needs {error.name}", extra_of(error.name or ""))
        (folder / PREPARED).write_text(json.dumps({"error": missing.to_dict()}))
        return missing.exit_code
    except FairmileError as error:
        (folder / PREPARED).write_text(json.dumps({"error": error.to_dict()}))
        return error.exit_code
    (folder / PREPARED).write_text(json.dumps(dataclasses.asdict(prepared)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
