"""Models as functions of arrays, by the runtime that computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.models.convert.proof import Array, Compute


def onnxruntime_of(file: Path) -> Compute:
    """Return an ONNX file as ONNX Runtime computes it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if adds_in_a_race(file):
        options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    wide = {each.name for each in session.get_inputs() if each.type == "tensor(double)"}

    def compute(arrays: Mapping[str, Array]) -> list[Array]:
        feed = in_order(arrays, names)
        feed |= {name: each.astype(np.float64) for name, each in feed.items() if name in wide}
        return [np.asarray(each) for each in flat_outputs(session.run(None, feed))]

    return compute


def adds_in_a_race(file: Path) -> bool:
    """Tell whether a graph adds values at repeated places, which ONNX Runtime does right on one thread only.

    With two threads, 30 of 200 calls of a graph network differed by up to 39 % (ONNX Runtime 1.31.1, ScatterND).
    """
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    return any(_adds(node) for part in (model.graph, *model.functions) for node in part.node)


def _adds(node: Any) -> bool:
    is_reduced = any(each.name == "reduction" and each.s != b"none" for each in node.attribute)
    inner = (graph for each in node.attribute for graph in (each.g, *each.graphs))
    return (node.op_type == "ScatterND" and is_reduced) or any(_adds(each) for graph in inner for each in graph.node)


def reference_of(file: Path) -> Compute:
    """Return an ONNX file as ONNX's own reference evaluator computes it."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(file))

    def compute(arrays: Mapping[str, Array]) -> list[Array]:
        return [np.asarray(each) for each in evaluator.run(None, in_order(arrays, evaluator.input_names))]

    return compute


def openvino_of(file: Path) -> Compute:
    """Return a model as OpenVINO computes it in float32."""
    import openvino

    compiled = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def compute(arrays: Mapping[str, Array]) -> list[Array]:
        results = compiled(list(arrays.values()))
        return [np.asarray(results[place]) for place in range(len(compiled.outputs))]

    return compute


def torch_of(module: Any) -> Compute:
    """Return a PyTorch module as a function of arrays."""
    import torch

    def compute(arrays: Mapping[str, Array]) -> list[Array]:
        tensors = [torch.from_numpy(np.array(each)) for each in arrays.values()]
        with torch.no_grad():
            outputs = module(*tensors)
        return [each.detach().numpy() for each in flat_outputs(outputs)]

    return compute


def flat_outputs(outputs: Any) -> list[Any]:
    """Return the tensors of an answer, which may be nested."""
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    if isinstance(outputs, list | tuple):
        return [tensor for each in outputs for tensor in flat_outputs(each)]
    return [outputs]


def in_order(arrays: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """Return arrays under the names of a runtime: by name where they are the same, otherwise by place."""
    if set(names) <= set(arrays):
        return {name: arrays[name] for name in names}
    return dict(zip(names, arrays.values(), strict=True))
