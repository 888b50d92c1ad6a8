"""The text that names one operator call apart from any model: its name, its tensors and its other arguments.

Two calls of one signature take the same time on one device, so that tables of measured times are kept by it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from fairmile.base.errors import Integrity, NotFound
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.steps import Op, StepEvent, StepTrace, TensorSpec

_SHORT = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b8",
    "complex64": "c64",
    "complex128": "c128",
}
_SAYS_NOTHING = ("device", "layout", "pin_memory")  # of how long a call takes
_LONG = {short: long for long, short in _SHORT.items()}
_TENSOR = re.compile(r"(?:(\d+)\*)?(host )?([A-Za-z_0-9]+)\[([\d,]*)\](?:s\[([\d,]*)\])?")


@dataclass(frozen=True)
class Candidate:
    """An operator call that is worth measuring, and the models or lists that it comes from."""

    op: Op
    origins: tuple[str, ...]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor that lies densely in the order of its dimensions."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def tensor(shape: Sequence[int], dtype: str = "float32", strides: Sequence[int] | None = None) -> TensorSpec:
    """Return the description of a tensor on the device, dense where no strides are given."""
    return TensorSpec(tuple(shape), tuple(strides) if strides is not None else contiguous(shape), dtype, 0)


def signature(op: Op) -> str:
    """Return the text that names the call; what it returns follows from it and stands not in it."""
    words = [_words(each) for each in op.arguments]
    named = [[name, _words(value)] for name, value in op.keywords if name not in _SAYS_NOTHING and value is not None]
    values = json.dumps([words, named] if named else [words], separators=(",", ":"))
    return f"{op.name}|{write_tensors(op.inputs)}|{values}"


def read_signature(text: str, outputs: str = "") -> Op:
    """Return the call that a signature names; Integrity where the text is none."""
    try:
        name, tensors, values = text.split("|", 2)
        document = json.loads(values)
        arguments = tuple(_value(each) for each in document[0])
        keywords = tuple((each[0], _value(each[1])) for each in document[1]) if len(document) > 1 else ()
        return Op(name, "", "", read_tensors(tensors), read_tensors(outputs), arguments, keywords)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise Integrity(
            f"{text[:80]!r} is not an operator signature: {error}", hint="trace or calibrate again"
        ) from error


def write_tensors(tensors: Iterable[TensorSpec]) -> str:
    """Return tensors as one text, equal neighbours counted."""
    parts = []
    for text, run in groupby(tensors, key=_tensor_text):
        count = sum(1 for _ in run)
        parts.append(f"{count}*{text}" if count > 1 else text)
    return ";".join(parts)


def read_tensors(text: str) -> tuple[TensorSpec, ...]:
    """Return what `write_tensors` wrote; ValueError where it is something else."""
    specs: list[TensorSpec] = []
    for part in text.split(";") if text else ():
        specs += _specs(part)
    return tuple(specs)


@cache
def _specs(text: str) -> tuple[TensorSpec, ...]:
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a tensor")
    count, host, short, shape, strides = match.groups()
    lengths = tuple(int(each) for each in shape.split(",")) if shape else ()
    steps = tuple(int(each) for each in strides.split(",")) if strides else None
    spec = tensor(lengths, _LONG.get(short, short), steps)
    return (replace(spec, storage=-1) if host else spec,) * int(count or 1)


def step_ops(trace: StepTrace) -> list[Op]:
    """Return the operators of a trace's last step, in order; all of them where no step is marked."""
    first = 0
    seen = False
    order: list[int] = []
    for kind, number, _ in trace.events:
        if kind == StepEvent.STEP:
            first, seen = len(order), True
        elif kind == StepEvent.BEGIN:
            order.append(number)
    if not seen:
        return [op for op in trace.ops if op.phase != "build"]
    return [trace.ops[each] for each in order[first:]]


def candidates_of(trace: StepTrace, origin: str) -> list[Candidate]:
    """Return each different call of a trace's last step once."""
    seen: dict[str, Candidate] = {}
    for op in step_ops(trace):
        seen.setdefault(signature(op), Candidate(op, (origin,)))
    return list(seen.values())


def merged(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return each call once, in the order first seen, with all its origins."""
    return list(by_signature(candidates).values())


def by_signature(candidates: Iterable[Candidate]) -> dict[str, Candidate]:
    """Return the same by what tells one call from another."""
    merged_by: dict[str, Candidate] = {}
    for each in candidates:
        text = signature(each.op)
        before = merged_by.get(text)
        if before is None:
            merged_by[text] = each
        else:
            merged_by[text] = Candidate(before.op, tuple(dict.fromkeys(before.origins + each.origins)))
    return merged_by


def write_candidates(candidates: Iterable[Candidate], path: Path) -> None:
    """Write a list of calls, a line of JSON each; compressed where the name ends in .gz."""
    lines = [
        json.dumps([signature(each.op), write_tensors(each.op.outputs), list(each.origins)], separators=(",", ":"))
        for each in candidates
    ]
    data = ("\n".join(lines) + "\n").encode()
    write_atomic(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_candidates(path: Path) -> list[Candidate]:
    """Read what `write_candidates` wrote; Integrity names the line that is something else."""
    return list(_candidates(path))


def _candidates(path: Path) -> Iterator[Candidate]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}", hint="write one with write_candidates") from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise Integrity(f"{path} cannot be read as a list of operators: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        try:
            signed, outputs, origins = json.loads(line)
            yield Candidate(read_signature(signed, outputs), tuple(origins))
        except ValueError as error:
            raise Integrity(f"{path}:{number}: not an operator with its origins: {error}") from error


def _tensor_text(spec: TensorSpec) -> str:
    shape = ",".join(map(str, spec.shape))
    text = f"{'host ' if spec.storage < 0 else ''}{_SHORT.get(spec.dtype, spec.dtype)}[{shape}]"
    return text if _is_dense(spec) else f"{text}s[{','.join(map(str, spec.strides))}]"


def _is_dense(spec: TensorSpec) -> bool:
    # The stride of a dimension of length 1 says nothing.
    dense = contiguous(spec.shape)
    return all(n == 1 or a == b for n, a, b in zip(spec.shape, spec.strides, dense, strict=True))


def _words(value: Any) -> Any:
    """Return an argument shorter than a trace has it: "@3" for a tensor, "@3:9" for tensors 3 to 8 in a row."""
    if isinstance(value, dict):
        if "tensor" in value:
            return f"@{value['tensor']}"
        if "tensors" in value:
            places = value["tensors"]
            if places and places[0] is not None and list(places) == list(range(places[0], places[0] + len(places))):
                return f"@{places[0]}:{places[0] + len(places)}"
            return "@[" + ",".join("" if each is None else str(each) for each in places) + "]"
    if isinstance(value, (list, tuple)):
        return [_words(each) for each in value]
    return value


def _value(word: Any) -> Any:
    if isinstance(word, str) and word.startswith("@["):
        inside = word[2:-1]
        return {"tensors": [int(each) if each else None for each in inside.split(",")] if inside else []}
    if isinstance(word, str) and word.startswith("@"):
        first, _, end = word[1:].partition(":")
        return {"tensors": list(range(int(first), int(end)))} if end else {"tensor": int(first)}
    if isinstance(word, list):
        return [_value(each) for each in word]
    return word
