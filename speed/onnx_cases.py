"""Measures how many of ONNX's own node cases our PyTorch module computes, beside onnx2torch on the same cases.

Run: python speed/onnx_cases.py [--peer FOLDER] [--failures]

The cases come with the onnx package: small graphs with inputs, expected outputs and tolerances. A case is passed if
every output has the expected type, shape and values. One that is refused names what is missing; any other is wrong.
Cases whose result is random (dropout in training, Bernoulli) cannot be passed and count as wrong.
FOLDER holds onnx2torch (`pip install --target FOLDER --no-deps onnx2torch`). It imports torchvision, which is replaced
by an empty module: no node case needs it. The goal: at least 60 % of the cases, and twice the share of onnx2torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.machinery
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from fairmile.base.errors import Unsupported
from fairmile.models.onnx_torch.module import OnnxModule, tensor_of

Converter = Callable[[onnx.ModelProto], torch.nn.Module]


class Outcome(NamedTuple):
    """What became of one case: passed, refused or wrong, and why."""

    name: str
    state: str
    reason: str


def judge(case: Any, convert: Converter) -> Outcome:
    """Return whether a converted case gives the expected outputs."""
    try:
        module = convert(case.model)
        for inputs, expected in case.data_sets:
            with torch.no_grad():
                outputs = module(*map(to_torch, inputs))
            results = [outputs] if len(expected) == 1 else list(outputs)
            for result, value in zip(results, expected, strict=True):
                compare(to_numpy(result), value, case.rtol, case.atol)
    except (Unsupported, NotImplementedError) as error:
        return Outcome(case.name, "refused", str(error))
    except Exception as error:  # noqa: BLE001  a peer may fail in any way
        return Outcome(case.name, "wrong", f"{type(error).__name__}: {error}".replace("\n", " ")[:200])
    return Outcome(case.name, "passed", "")


def read_case(case: Any) -> Any:
    """Return a case that lies in a folder with its model and its data."""
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        files = [data / f"input_{place}.pb" for place in range(len(model.graph.input))]
        inputs = [_read(file, each) for file, each in zip(files, model.graph.input, strict=True) if file.is_file()]
        outputs = [_read(data / f"output_{place}.pb", each) for place, each in enumerate(model.graph.output)]
        sets.append((inputs, outputs))
    return dataclasses.replace(case, model=model, data_sets=sets)


def _read(file: Path, value: onnx.ValueInfoProto) -> Any:
    kind = onnx.SequenceProto if value.type.HasField("sequence_type") else onnx.TensorProto
    return kind.FromString(file.read_bytes())


def to_torch(value: Any) -> Any:
    """Return an input of a case as tensors."""
    if value is None:
        return None
    if isinstance(value, list):
        return [to_torch(each) for each in value]
    if isinstance(value, onnx.SequenceProto):
        return [tensor_of(each) for each in value.tensor_values]
    if isinstance(value, onnx.TensorProto):
        return tensor_of(value)
    array = np.asarray(value)
    return tensor_of(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape)))


def to_numpy(value: Any) -> Any:
    """Return an output as arrays; types that numpy lacks become float32, which holds each of their values."""
    if isinstance(value, list | tuple):
        return [to_numpy(each) for each in value]
    if value is None:
        return None
    is_foreign = value.dtype is torch.bfloat16 or (value.dtype.is_floating_point and value.dtype.itemsize == 1)
    return (value.float() if is_foreign else value).detach().numpy()


def compare(actual: Any, expected: Any, rtol: float, atol: float) -> None:
    """Raise AssertionError unless an output is the expected one."""
    if isinstance(expected, onnx.TensorProto):
        expected = numpy_helper.to_array(expected)
    if isinstance(expected, onnx.SequenceProto):
        expected = list(expected.tensor_values)
    if expected is None or actual is None:
        assert actual is expected
        return
    if isinstance(actual, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            compare(one, other, rtol, atol)
        return
    expected = np.asarray(expected)
    if expected.dtype.kind == "V" or "float8" in expected.dtype.name or expected.dtype.name == "bfloat16":
        expected = expected.astype(np.float32)
    assert actual.dtype == expected.dtype, f"type {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def peer_converter(folder: str) -> Converter:
    """Return onnx2torch's converter, with an empty module in place of torchvision."""
    for name in ("torchvision", "torchvision.ops"):
        stub: Any = types.ModuleType(name)
        stub.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = stub
    sys.modules["torchvision"].ops = sys.modules["torchvision.ops"]  # type: ignore[attr-defined]
    for name in ("nms", "roi_align", "deform_conv2d", "RoIAlign", "DeformConv2d"):
        setattr(sys.modules["torchvision.ops"], name, None)
    sys.path.insert(0, folder)
    convert: Converter = importlib.import_module("onnx2torch").convert
    return convert


def report(title: str, outcomes: Sequence[Outcome], cpu_s: float, failures: bool) -> float:
    """Print the shares of one converter and return the share that it passed."""
    states = Counter(each.state for each in outcomes)
    share = states["passed"] / len(outcomes)
    print(
        f"{title:12} passed {states['passed']:5} of {len(outcomes)} ({share:.1%})"
        f"   refused {states['refused']:4}   wrong {states['wrong']:4}   {cpu_s:.1f} s CPU"
    )
    if failures:
        reasons = Counter(each.reason for each in outcomes if each.state == "refused")
        for reason, count in reasons.most_common():
            print(f"  {count:4} × {reason}")
        for each in outcomes:
            if each.state == "wrong":
                print(f"  {each.name}: {each.reason}")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="folder that holds onnx2torch")
    parser.add_argument("--failures", action="store_true", help="print why each case is refused or wrong")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases

    cases = collect_testcases(None)
    shares = []
    for title, convert in [
        ("fairmile", OnnxModule),
        *([("onnx2torch", peer_converter(options.peer))] * bool(options.peer)),
    ]:
        begins = time.process_time()
        outcomes = [judge(case, convert) for case in cases]
        shares.append(report(title, outcomes, time.process_time() - begins, options.failures and not shares))
    is_met = shares[0] >= 0.6 and all(shares[0] >= 2 * each for each in shares[1:])
    print("goal (60 %, twice the peer): " + ("met" if is_met else "not met"))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
