"""Recurrent layers: RNN, GRU and LSTM, in both directions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmile.base.errors import Unsupported
from fairmile.models.onnx_torch.operators import Node, operator

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softsign": F.softsign,
    "softplus": F.softplus,
}
_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@operator("RNN", "GRU", "LSTM")
def recurrent(
    node: Node,
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    hidden: Tensor | None = None,
    cell: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    is_batch_first = bool(node.get("layout", 0))
    if is_batch_first:
        x = x.transpose(0, 1)
        hidden = hidden.transpose(0, 1) if hidden is not None else None
        cell = cell.transpose(0, 1) if cell is not None else None
    directions, size = weight.shape[0], recurrence.shape[-1]
    empty = x.new_zeros(directions, x.shape[1], size)
    if bias is None:
        bias = x.new_zeros(directions, 2 * _GATES[node.type] * size)
    results = []
    for number in range(directions):
        is_backward = number == 1 or node.get("direction", "forward") == "reverse"
        layer = _Layer(node, number, weight, recurrence, bias, peepholes)
        results.append(
            layer.run(
                x,
                (hidden if hidden is not None else empty)[number],
                (cell if cell is not None else empty)[number],
                lengths,
                is_backward=is_backward,
            )
        )
    outputs = torch.stack([each[0] for each in results], 1)
    last = torch.stack([each[1] for each in results])
    cells = torch.stack([each[2] for each in results])
    if is_batch_first:
        outputs, last, cells = outputs.permute(2, 0, 1, 3), last.transpose(0, 1), cells.transpose(0, 1)
    return (outputs, last, cells) if node.type == "LSTM" else (outputs, last)


class _Layer:
    """One direction of a recurrent layer."""

    def __init__(
        self, node: Node, number: int, weight: Tensor, recurrence: Tensor, bias: Tensor, peepholes: Tensor | None
    ) -> None:
        self._type, self._size = node.type, recurrence.shape[-1]
        self._weight, self._recurrence = weight[number], recurrence[number]
        self._input_bias, self._recurrent_bias = bias[number].chunk(2)
        self._peepholes = peepholes[number].chunk(3) if peepholes is not None else None
        self._resets_late = bool(node.get("linear_before_reset", 0))
        self._couples = bool(node.get("input_forget", 0))
        self._clip = node.get("clip")
        defaults = _DEFAULTS[node.type]
        names = [_text(each) for each in node.get("activations") or defaults * (number + 1)]
        names = names[len(defaults) * number :][: len(defaults)] or names[: len(defaults)]
        alphas, betas = list(node.get("activation_alpha") or []), list(node.get("activation_beta") or [])
        self._activations = [self._activation(name, alphas, betas) for name in names]

    def _activation(self, name: str, alphas: list[float], betas: list[float]) -> Callable[[Tensor], Tensor]:
        plain = _PLAIN.get(name.lower())
        if plain is None and name.lower() == "affine":
            alpha, beta = (alphas.pop(0) if alphas else 1.0), (betas.pop(0) if betas else 0.0)
            plain = lambda x: alpha * x + beta  # noqa: E731
        if plain is None and name.lower() == "hardsigmoid":
            alpha, beta = (alphas.pop(0) if alphas else 0.2), (betas.pop(0) if betas else 0.5)
            plain = lambda x: torch.clamp(alpha * x + beta, 0, 1)  # noqa: E731
        if plain is None and name.lower() == "leakyrelu":
            slope = alphas.pop(0) if alphas else 0.01
            plain = lambda x: F.leaky_relu(x, slope)  # noqa: E731
        if plain is None:
            raise Unsupported(f"{self._type}: activation {name} is not supported")
        clip = self._clip
        return plain if clip is None else lambda x: plain(torch.clamp(x, -clip, clip))

    def run(
        self, x: Tensor, hidden: Tensor, cell: Tensor, lengths: Tensor | None, *, is_backward: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of all steps, the last output and the last cell."""
        inputs = x @ self._weight.T + self._input_bias
        steps = range(x.shape[0])
        outputs: list[Tensor] = [hidden] * x.shape[0]
        for step in reversed(steps) if is_backward else steps:
            new_hidden, new_cell = getattr(self, f"_step_{self._type.lower()}")(inputs[step], hidden, cell)
            if lengths is not None:
                is_inside = (step < lengths).unsqueeze(-1)
                outputs[step] = torch.where(is_inside, new_hidden, torch.zeros_like(new_hidden))
                new_hidden = torch.where(is_inside, new_hidden, hidden)
                new_cell = torch.where(is_inside, new_cell, cell)
            else:
                outputs[step] = new_hidden
            hidden, cell = new_hidden, new_cell
        return torch.stack(outputs) if outputs else x.new_zeros(0, *hidden.shape), hidden, cell

    def _step_rnn(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return self._activations[0](inputs + hidden @ self._recurrence.T + self._recurrent_bias), cell

    def _step_gru(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        gate, transform = self._activations
        update_in, reset_in, new_in = inputs.chunk(3, -1)
        update_r, reset_r, new_r = self._recurrence.chunk(3)
        update_b, reset_b, new_b = self._recurrent_bias.chunk(3)
        update = gate(update_in + hidden @ update_r.T + update_b)
        reset = gate(reset_in + hidden @ reset_r.T + reset_b)
        if self._resets_late:
            new = transform(new_in + reset * (hidden @ new_r.T + new_b))
        else:
            new = transform(new_in + (reset * hidden) @ new_r.T + new_b)
        return (1 - update) * new + update * hidden, cell

    def _step_lstm(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        gate, transform, output = self._activations
        sums = inputs + hidden @ self._recurrence.T + self._recurrent_bias
        enter, leave, forget, new = sums.chunk(4, -1)
        if self._peepholes is not None:
            enter, forget = enter + self._peepholes[0] * cell, forget + self._peepholes[2] * cell
        entered = gate(enter)
        kept = 1 - entered if self._couples else gate(forget)
        cell = kept * cell + entered * transform(new)
        if self._peepholes is not None:
            leave = leave + self._peepholes[1] * cell
        return gate(leave) * output(cell), cell


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
