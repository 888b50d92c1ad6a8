"""Converts one model and proves the result, in a process of its own: `python -m …convert.program JSON [FIELD=FILE…]`.

It runs in the folder of a run and leaves there the converted file, `proof.json`, and `worst.npz` where the result is
not the same. What fails for a reason of the model is written as an error; the exit code is that of the error.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fairmile.base.errors import FairmileError, Unsupported, UsageError
from fairmile.base.garbage import search_rarely
from fairmile.base.quick_dataclass import dataclass
from fairmile.meter import log
from fairmile.models.convert.checkpoints import (
    COUNTER,
    Mapped,
    from_tensorflow,
    plain_array,
    to_tensorflow,
    torch_tensor,
)
from fairmile.models.convert.data_sets import read_inputs
from fairmile.models.convert.estimators import FLOAT32, plain_outputs
from fairmile.models.convert.in_double import (
    REFERENCE_BYTES,
    graph_in_double,
    keras_in_double,
    keras_of,
    program_in_double,
    reference_in_double,
)
from fairmile.models.convert.keras_layers import write_keras
from fairmile.models.convert.proof import (
    Array,
    Arrays,
    Case,
    Compute,
    FunctionCheck,
    Proof,
    difference,
    prove,
    sample_inputs,
)
from fairmile.models.convert.request import TARGETS, WEIGHTS_ALONE, Request
from fairmile.models.convert.runtimes import (
    adds_in_a_race,
    in_order,
    onnxruntime_of,
    openvino_of,
    reference_of,
    torch_of,
)
from fairmile.models.convert.savedmodel import TensorFlow
from fairmile.models.convert.sources import Source, load_torch, open_model, read_weights
from fairmile.models.convert.targets import FIRST_EXPORTER, write_onnx, write_openvino, write_torch, write_weights
from fairmile.models.formats.tensor_bundle import write_bundle
from fairmile.models.formats.tensorflow import read_values

RESULT = "proof.json"
WORST = "worst.npz"


def convert(request: Request, folder: Path) -> tuple[Path, str, Proof]:
    """Write the converted model into a folder, and return its file, the way it took, and its proof."""
    file = folder / f"model{TARGETS[request.to]}"
    if request.copies_weights:
        return _convert_weights(request, folder / "model.pt" if request.to == "pytorch" else file)
    validation = _open_validation(request.judge)
    # The benchmark of the run builds its model for its own data, whose sizes no parameter may state.
    built = validation.build() if validation is not None and request.takes_settings else None
    source = open_model(request, built=built)
    if request.to in WEIGHTS_ALONE and request.to != "pytorch":
        if source.kind != "torch":
            raise Unsupported(f"no conversion from {request.format} to {request.to}")
        return _written(dict(source.model.state_dict()), request, file)
    sets = (
        ("data", _given(request.data, source)),
        ("validation data", _validated(validation, source)),
        (request.data_set, read_inputs(Path(request.data_set_path), source.specs) if request.data_set else {}),
    )
    given = {what: arrays for what, arrays in sets if arrays}
    ranges = {**source.ranges, **_ranges(given)}
    evidence = Evidence(sample_inputs(source.specs, request.seed, ranges, given), validation)
    hub, way, proof = _proved(request, source, file, folder, evidence)
    if not proof.holds and way.startswith((FIRST_EXPORTER, FLOAT32)):
        hub, way, proof = _second_way(request, source, file, folder, evidence, (hub, way, proof))
    if request.to == "onnx":
        first = next(iter(evidence.cases.values()))
        proof = dataclasses.replace(proof, second_opinion=_second(hub, first, source))
    if request.to != "onnx" and source.kind != "onnx":
        hub.unlink()
    return file, way, proof


class Validation(Protocol):
    """The validation data of a benchmark's run."""

    @property
    def inputs(self) -> Mapping[str, Array]: ...

    def build(self) -> tuple[Any, tuple[Any, ...]]: ...

    def scores(self, compute: Compute) -> dict[str, float]: ...


@dataclass(frozen=True)
class Evidence:
    """What source and result are compared on: sets of inputs by what they are, and the data of a run."""

    cases: Mapping[str, Arrays]
    validation: Validation | None = None


def _open_validation(judge: Mapping[str, Any]) -> Validation | None:
    """Return the validation data of the run that a request names, opened by the benchmark of the run."""
    if not judge:
        return None
    module, _, function = str(judge["call"]).rpartition(":")
    opened: Validation = getattr(importlib.import_module(module), function)(**judge["with"])
    return opened


def _validated(validation: Validation | None, source: Source) -> dict[str, Array]:
    """Return the validation data under the names of the inputs; refuse that of another model."""
    if validation is None:
        return {}
    names = [each.name for each in source.specs]
    if len(names) != len(validation.inputs):
        raise UsageError(
            f"the model has {len(names)} inputs, and the model of the run {len(validation.inputs)}",
            hint="--validate-on takes a run that trained the same model",
        )
    inputs = in_order(validation.inputs, names)
    for spec in source.specs:
        sizes = zip(spec.shape or inputs[spec.name].shape, inputs[spec.name].shape, strict=False)
        fits = len(spec.shape or ()) in (0, inputs[spec.name].ndim)
        if not fits or any(isinstance(own, int) and own != size for own, size in sizes):
            raise UsageError(
                f"input {spec} does not take validation data of shape {list(inputs[spec.name].shape)}",
                hint="--validate-on takes a run that trained the same model",
            )
    return inputs


def _ranges(given: Mapping[str, Arrays]) -> dict[str, tuple[float, float]]:
    """Return the values that integers have in given data."""
    arrays = [(name, each) for case in given.values() for name, each in case.items() if each.size]
    return {name: (float(each.min()), float(each.max())) for name, each in arrays if each.dtype.kind in "iu"}


def _proved(
    request: Request, source: Source, file: Path, folder: Path, evidence: Evidence, *, refused: str = ""
) -> tuple[Path, str, Proof]:
    """Write a model as ONNX and from there as what is wanted, and return the ONNX file, the way, and the proof."""
    hub, ways = _hub(request.to, source, folder, refused)
    if request.to == "onnx" and adds_in_a_race(hub):
        ways.append(_ONE_THREAD)
    result, wide, way = _target(request, hub, source, file)
    ways += [way] if way else []
    if source.kind == "sklearn":
        result = partial(_plain, result)
    functions, missing = _function_checks(source, request.to, hub, wide)
    judge = _JUDGES[request.to]
    proof = prove(evidence.cases, source.compute, source.exact, result, judge, functions=functions, missing=missing)
    if evidence.validation is not None and proof.holds:
        before, after = (evidence.validation.scores(each) for each in (source.compute, result))
        proof = dataclasses.replace(proof, scores={name: (before[name], after[name]) for name in before})
    return hub, ", then ".join(ways), proof


_ONE_THREAD = "run by ONNX Runtime on one thread (with more, its ScatterND loses sums at repeated indices)"


def _plain(compute: Compute, arrays: Mapping[str, Array]) -> list[Array]:
    return plain_outputs(compute(arrays))


def _second_way(
    request: Request, source: Source, file: Path, folder: Path, evidence: Evidence, first: tuple[Path, str, Proof]
) -> tuple[Path, str, Proof]:
    """Convert again by the other exporter, or in float64; the first result stays where that cannot be had."""
    largest = first[2].largest
    refused = f"its result differs by {largest:.1e}" if np.isfinite(largest) else "its result fails"
    content = first[0].read_bytes()
    try:
        second = _proved(request, source, file, folder, evidence, refused=refused)
    except Exception:  # noqa: BLE001  exporters fail in their own ways, as operators that lack float64 do
        second = first
    if not second[2].holds:
        first[0].write_bytes(content)
        return first
    return second


_JUDGES = {
    "onnx": "ONNX Runtime",
    "pytorch": "PyTorch",
    "openvino": "OpenVINO",
    "keras": "Keras",
    "savedmodel": "TensorFlow",
}


def _hub(to: str, source: Source, folder: Path, refused: str) -> tuple[Path, list[str]]:
    """Return the ONNX file from which a target is written, or the Keras file, and the way to it."""
    if source.kind == "onnx":
        return source.model, []
    if source.kind == "keras" and to == "savedmodel":
        file = folder / "layers.keras"
        source.model.save(file)
        return file, []
    hub = folder / "model.onnx"
    return hub, [write_onnx(source, hub, refused=refused)]


Wide = Callable[[], Compute]  # a result in float64, made where it is asked for


def _target(request: Request, hub: Path, source: Source, file: Path) -> tuple[Compute, Wide | None, str]:
    """Write the file of a target from ONNX, and return how it is computed, also in float64, and the way it took."""
    to = request.to
    if to == "onnx":
        return onnxruntime_of(hub), lambda: graph_in_double(hub).compute, ""
    if to == "openvino":
        way = write_openvino(hub, file)
        return openvino_of(file), None, way
    if to == "savedmodel":
        layers = hub if source.kind == "keras" else file.with_name("layers.keras")
        ways = [] if layers == hub else [write_keras(hub, layers)]
        tensorflow = TensorFlow(request.python, layers, file)
        return tensorflow, None, ", then ".join([*ways, f"Keras export in TensorFlow {tensorflow.version}"])
    if to == "keras":
        import keras

        way = write_keras(hub, file)
        model: Any = keras.saving.load_model(file)
        names = [each.name for each in model.inputs]
        return keras_of(model, names), lambda: keras_in_double(model, names), way
    way = write_torch(hub, source, file)
    format = "torchscript" if "TorchScript" in way else "pytorch-exported"
    return torch_of(load_torch(file, format)), lambda: program_in_double(file, format), way


def _function_checks(source: Source, to: str, hub: Path, wide: Wide | None) -> tuple[tuple[FunctionCheck, ...], str]:
    """Return what compares source and result in float64, and why nothing does, if so.

    What becomes of an ONNX graph in PyTorch is our module: the source is then computed by ONNX's own evaluator.
    """
    if source.kind == "sklearn":
        return (), "ONNX's operators for estimators compute in float32 alone"
    if wide is None:
        return (), f"{_JUDGES[to]} computes the file in float32"
    checks: list[FunctionCheck] = []
    is_own_module = source.kind == "onnx" and to == "pytorch"
    if source.exact is not None and not is_own_module:
        by = "Keras and PyTorch" if "keras" in (source.kind, to) else "PyTorch"
        checks.append(FunctionCheck(source.exact.compute, _later(wide), by))
    if hub.stat().st_size <= REFERENCE_BYTES:
        reference = _later(lambda: reference_in_double(hub))
        if source.kind == "onnx":
            checks.append(FunctionCheck(reference, _later(wide), "ONNX's reference evaluator", is_slow=True))
        elif source.exact is not None and to == "onnx":
            checks.append(FunctionCheck(source.exact.compute, reference, "ONNX's reference evaluator", is_slow=True))
    if checks:
        return tuple(checks), ""
    if is_own_module:
        return (), "the model is too large for ONNX's reference evaluator"
    return (), "the source cannot be computed in float64"


def _later(make: Wide) -> Compute:
    """Return what is made at the first call."""
    made = cache(make)
    return lambda arrays: made()(arrays)


def _second(hub: Path, arrays: Mapping[str, Array], source: Source) -> str:
    if hub.stat().st_size > REFERENCE_BYTES:
        return "not asked: the model is too large for the reference evaluator"
    try:
        largest, _ = difference(source.compute(arrays), reference_of(hub)(arrays))
    except Exception as error:  # noqa: BLE001  the evaluator raises whatever an operator of it does
        return f"none: the reference evaluator fails ({type(error).__name__})"
    return f"ONNX's reference evaluator differs by {largest:.1e}"


def _given(data: str, source: Source) -> dict[str, Array]:
    """Return inputs from a file: one array, or one for each input by name."""
    if not data:
        return {}
    content = np.load(data, allow_pickle=False)
    if isinstance(content, np.ndarray):
        return {source.specs[0].name: content}
    return {each.name: content[each.name] for each in source.specs}


def _convert_weights(request: Request, file: Path) -> tuple[Path, str, Proof]:
    path = Path(request.source)
    if request.format not in ("tf-checkpoint", "savedmodel"):
        return _written(read_weights(path), request, file)
    mapped = Mapped.read(request.map)
    values = read_values(path)
    weights = {name: torch_tensor(each) for name, each in from_tensorflow(values, mapped).items()}
    _, _, proof = _written(weights, dataclasses.replace(request, map=""), file)
    return file, "variables by name and layout", proof


def _written(weights: dict[str, Any], request: Request, file: Path) -> tuple[Path, str, Proof]:
    """Write weights of PyTorch in a format, and prove that what is read back is the same, bit by bit."""
    if request.to != "tf-checkpoint":
        way = write_weights(weights, file, request.to)
        return file, way, _same_weights(weights, read_weights(file))
    mapped = Mapped.read(request.map)
    variables = to_tensorflow({name: plain_array(name, each) for name, each in weights.items()}, mapped)
    write_bundle(file.with_suffix(""), variables)
    counted = {name: each for name, each in weights.items() if not name.endswith(COUNTER)}
    back = from_tensorflow(read_values(file), mapped.completed(counted))
    again = {name: torch_tensor(each) for name, each in back.items()}
    return file, "variables by name and layout", _same_weights(counted, again)


def _same_weights(weights: Mapping[str, Any], again: Mapping[str, Any]) -> Proof:
    """Return the proof of weights that were written and read again: each is the same, bit by bit."""
    import torch

    tensors = {name: each for name, each in weights.items() if isinstance(each, torch.Tensor)}
    same = again.keys() == tensors.keys() and all(torch.equal(again[name], each) for name, each in tensors.items())
    gap = 0.0 if same else float("inf")
    case = Case(f"{len(tensors)} weights", gap, gap, 0.0)
    return Proof("weights are copied bit by bit", "equality", (case,), function_missing="nothing is computed")


def main(argv: list[str]) -> int:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    folder = Path.cwd()
    try:
        files: dict[str, Any] = dict(word.split("=", 1) for word in argv[1:])
        file, way, proof = convert(dataclasses.replace(Request.from_json(argv[0]), **files), folder)
    except FairmileError as error:
        (folder / RESULT).write_text(json.dumps({"error": error.to_dict()}))
        return error.exit_code
    log(**proof.metrics())
    for name, (before, after) in proof.scores.items():
        log(**{f"source.{name}": before, f"result.{name}": after})
    (folder / RESULT).write_text(json.dumps({"file": file.name, "way": way, "proof": proof.to_dict()}))
    if not proof.holds:
        worst: dict[str, Any] = dict(proof.worst)
        np.savez(folder / WORST, **worst)
    return 0 if proof.holds else 1


if __name__ == "__main__":
    search_rarely()
    sys.exit(main(sys.argv[1:]))
