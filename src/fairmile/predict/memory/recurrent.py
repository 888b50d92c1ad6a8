"""Memory of cuDNN's recurrent layers: what is kept for the backward pass, and the workspace of each pass.

Both are closed forms, counted in states: the hidden values of one layer in one direction for one step of the whole
batch. Of 382 calls measured on one H200 (cuDNN 9.19), batches up to 512, they give all but two within 64 bytes, and
these two within 1.6 %; see the tests.
"""

from __future__ import annotations

from fairmile.base.quick_dataclass import dataclass

_ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
_KEPT = {"lstm": 5, "gru": 6, "rnn": 1}  # states kept of each layer and step
_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_PRODUCT_BYTES = 8 << 20  # for the matrix products of each layer and direction
_STEPS_AT_ONCE = 256  # gates of one direction are computed from the input for so many steps at once
_ROWS_AT_ONCE = 1024  # stacked layers go backward a few steps at a time: at most eight, and at most so many rows
# Widest layers for which torch asks for a persistent kernel, in the forward and in the backward pass.
_PERSISTENT_HIDDEN = {"lstm": (192, 128), "gru": (192, 128), "rnn": (384, 256)}
# States of the first and last step and the like, of each layer: with one direction and with two.
_ENDS = {"lstm": (10, 24), "gru": (5, 14), "rnn": (5, 14)}
_PERSISTENT_ENDS = {"lstm": (8, 18), "gru": (6, 14), "rnn": (6, 14)}


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
    backward: bool = False
    training: bool = True
    packed: bool = False  # sequences of several lengths, one step of all after the other

    @property
    def width(self) -> int:
        """How wide the output of one direction is."""
        return self.projection or self.hidden

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of one layer in one direction, all steps."""
        return self.steps * self.batch * self.hidden * _ELEMENT.get(self.dtype, 4)

    @property
    def input_bytes(self) -> int:
        """Bytes of the input of the first layer, all steps."""
        return self.steps * self.batch * self.inputs * _ELEMENT.get(self.dtype, 4)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of all weights without biases."""
        gates, project = _GATES[self.kind] * self.hidden, self.projection * self.hidden
        first = gates * (self.inputs + self.width) + project
        later = gates * (self.directions * self.width + self.width) + project
        return self.directions * (first + (self.layers - 1) * later) * _ELEMENT.get(self.dtype, 4)

    @property
    def is_persistent(self) -> bool:
        """Whether a kernel runs that keeps its weights on the multiprocessors: torch asks for it, cuDNN has it."""
        if self.projection or self.packed or self.dtype not in ("float32", "float16"):
            return False
        if self.hidden <= _PERSISTENT_HIDDEN[self.kind][self.backward]:
            return True
        return (
            self.dtype == "float16"
            and self.kind != "gru"
            and self.layers == self.directions == 1
            and self.hidden <= 1024
            and self.hidden % 128 == self.inputs % 128 == self.batch % 8 == 0
            and self.batch <= 128
            and (self.kind == "lstm" or self.batch < 96 or self.hidden < 896)
        )


def reserve_bytes(call: RecurrentCall) -> int:
    """Return how much the forward pass keeps for the backward pass."""
    # A projected layer also keeps its output before and after the projection.
    projected = call.layers * (call.hidden + call.projection) if call.projection else 0
    values = call.hidden * (_KEPT[call.kind] * call.layers + call.layers - 1) + projected
    rows = call.directions * call.steps * call.batch
    masks = (call.layers - 1) * call.directions * rows * call.hidden // 8
    return rows * values * _ELEMENT.get(call.dtype, 4) + 256 + (masks if call.dropout else 0)


def recurrent_workspace_bytes(call: RecurrentCall) -> int:
    """Return the workspace of a pass: cuDNN asks for the larger of what forward and backward take, in either."""
    if call.state_bytes == 0:
        return 0
    step_bytes = call.state_bytes // call.steps
    held = _forward_states(call) * step_bytes
    if call.training:
        held = max(held, _backward_states(call) * step_bytes + call.input_bytes)
    products = _PRODUCT_BYTES * call.layers * call.directions
    return int(held) + call.input_bytes + call.matrix_bytes + products + 8 * call.batch + 256


def _forward_states(call: RecurrentCall) -> float:
    """Count what the forward pass holds beside its input and the weights."""
    steps, gates, narrow = call.steps, _GATES[call.kind], call.width / call.hidden
    if call.directions == 2:
        held = (2 * gates + 6) * steps
    else:
        held = gates * (steps if call.is_persistent else min(steps, _STEPS_AT_ONCE)) + steps
        held += steps if call.dropout and call.layers > 1 else 0
    # Without a backward pass to come, these hold no second copy of the states at the ends.
    spared = 0 if call.training or call.kind == "lstm" else 2 * call.directions
    if call.is_persistent:
        ends = _PERSISTENT_ENDS[call.kind][call.directions - 1] - spared
        return held + (8 + 2 * gates if call.training else 4 * gates) * steps + call.layers * ends
    narrower = 2 * call.directions * (1 - narrow)
    boundary = _ENDS[call.kind][call.directions - 1] - narrower - (spared if call.kind == "rnn" else 0)
    projected = call.directions * narrow * steps if call.projection else 0
    return held + projected + call.layers * boundary


def _backward_states(call: RecurrentCall) -> float:
    """Count what the backward pass holds beside the input and its gradient and the weights."""
    steps, layers, stacked = call.steps, call.layers, call.layers > 1
    wide = (12 if stacked else 10) if call.directions == 2 else (5 if stacked else 4)
    if call.is_persistent:
        ends = _PERSISTENT_ENDS[call.kind][call.directions - 1]
        return (wide + 8 + _KEPT[call.kind]) * steps + layers * ends
    ends = _ENDS[call.kind][call.directions - 1] + (call.directions if call.kind == "lstm" else 0)
    if stacked and call.directions == 1:
        at_once = max(1, min(8, _ROWS_AT_ONCE // call.batch))
        return 3 * steps * call.width / call.hidden + (layers + 1) * at_once + layers * ends
    return wide * steps * call.width / call.hidden + layers * ends
