"""Memory of cuDNN's recurrent layers: what is kept for the backward pass, and the workspace of each pass."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import log

_ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
_KEPT = {"lstm": 5, "gru": 6, "rnn": 1}  # values kept per layer and element of its output
_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_AT_WORK = {"lstm": 5, "gru": 4, "rnn": 3}  # values of one layer in the workspace, measured on large layers
_JOINED = 4  # further values where there are two directions
_PER_LAYER_BYTES = 8 << 20  # for the products of each layer and direction


@dataclass(frozen=True)
class RecurrentCall:
    """A stack of recurrent layers over `steps` steps of `batch` sequences; `kind` is lstm, gru or rnn."""

    kind: str
    dtype: str
    layers: int
    directions: int
    dropout: bool
    steps: int
    batch: int
    hidden: int
    inputs: int
    projection: int = 0  # width of the output of an LSTM that is a smaller product of its state, else 0

    @property
    def width(self) -> int:
        """How wide the output of one direction is."""
        return self.projection or self.hidden

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of one layer in one direction, all steps."""
        return self.steps * self.batch * self.hidden * _ELEMENT.get(self.dtype, 4)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights and biases."""
        gates, project = _GATES[self.kind] * self.hidden, self.projection * self.hidden
        first = gates * (self.inputs + self.width + 2) + project
        later = gates * (self.directions * self.width + self.width + 2) + project
        return self.directions * (first + (self.layers - 1) * later) * _ELEMENT.get(self.dtype, 4)


def reserve_bytes(call: RecurrentCall) -> int:
    """Return how much the forward pass keeps for the backward pass."""
    # The state before its projection is one more value; that is all a single measured step told of projections.
    kept = _KEPT[call.kind] + bool(call.projection)
    values = call.directions * (kept * call.layers + call.layers - 1) * call.state_bytes
    masks = (call.layers - 1) * call.directions**2 * call.steps * call.batch * call.hidden // 8
    return values + 256 + (masks if call.dropout else 0)


def recurrent_workspace_bytes(call: RecurrentCall, table: str) -> int:
    """Return the workspace of a pass, from the nearest measured one."""
    rows = [row for row in _read(table) if row[0].kind == call.kind]
    if not rows or call.state_bytes == 0:
        return 0
    near, measured = min(rows, key=lambda row: _distance(call, row[0]))
    rest = measured - _base(near)
    scale = (call.weight_bytes / near.weight_bytes) ** 0.7 if near.weight_bytes else 1.0
    return _base(call) + int(rest * scale)


def _base(call: RecurrentCall) -> int:
    """What is taken for sure: values of one layer, more where directions are joined, weights, room for products."""
    values = (_AT_WORK[call.kind] + bool(call.projection)) * call.directions + _JOINED * (call.directions - 1)
    return values * call.state_bytes + call.weight_bytes + _PER_LAYER_BYTES * call.layers * call.directions


def _distance(call: RecurrentCall, other: RecurrentCall) -> float:
    apart = abs(log(call.weight_bytes / other.weight_bytes)) + 0.3 * abs(log(call.state_bytes / other.state_bytes))
    apart += 0.2 * abs(log(call.batch / other.batch)) + 0.7 * abs(
        log(call.layers * call.directions / (other.layers * other.directions))
    )
    half = {"float16", "bfloat16"}
    return apart + (0.5 if (call.dtype in half) != (other.dtype in half) else 0.0)


@cache
def _read(name: str) -> tuple[tuple[RecurrentCall, int], ...]:
    text = resources.files("fairmile.perf").joinpath("data", "workspaces", name).read_text(encoding="utf-8")
    rows = []
    for said in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        layers, directions, steps, batch, hidden, inputs = (
            int(said[name]) for name in ("layers", "directions", "steps", "batch", "hidden", "inputs")
        )
        dropout = said["dropout"] == "1"
        call = RecurrentCall(said["kind"], said["dtype"], layers, directions, dropout, steps, batch, hidden, inputs)
        rows.append((call, int(said["workspace_bytes"])))
    return tuple(rows)
