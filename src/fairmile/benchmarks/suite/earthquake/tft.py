"""The temporal fusion transformer (Lim et al., arXiv:1912.09363), its networks of all variables batched into one.

The published model has a small network for each variable. Run one after the other they take most of the time, so here
the weights of all variables are one tensor [V, in, out] and a step is one batched product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fairmile.base.errors import UsageError


@dataclass(frozen=True)
class Shape:
    """How many variables and steps a forecast has."""

    static: int
    known: int
    observed: int
    history: int
    horizon: int
    outputs: int  # numbers for each step of the horizon


@dataclass(frozen=True)
class Explained:
    """A forecast and what it looked at."""

    output: torch.Tensor  # [B, horizon, outputs]
    attention: torch.Tensor  # [B, horizon, history + horizon]: mean over the heads, each row sums to 1
    static_weights: torch.Tensor  # [B, static]: how much each variable was selected; rows sum to 1
    history_weights: torch.Tensor  # [B, history, observed + known]
    horizon_weights: torch.Tensor  # [B, horizon, known]


class GroupedLinear(nn.Module):
    """One linear layer for each of V variables: [V, N, in] to [V, N, out]."""

    def __init__(self, variables: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(variables, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(variables, 1, outputs).uniform_(-bound, bound))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, values, self.weight)


class GatedLinear(nn.Module):
    """A gated linear unit: half of a linear layer decides how much of the other half passes."""

    def __init__(self, inputs: int, outputs: int, variables: int = 0) -> None:
        super().__init__()
        self.layer = _linear(inputs, 2 * outputs, variables)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.glu(self.layer(values), dim=-1)


class GatedSkip(nn.Module):
    """LayerNorm(skip + GLU(dropout(values)))."""

    def __init__(self, width: int, dropout: float, variables: int = 0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.gate = GatedLinear(width, width, variables)
        self.norm = _norm(width, variables)

    def forward(self, values: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.norm(skip + self.gate(self.dropout(values)))
        return output


class GatedResidual(nn.Module):
    """A gated residual network: LayerNorm(a + GLU(W1 ELU(W2 a + W3 c + b2) + b1)), for one or for V variables."""

    def __init__(
        self,
        width: int,
        dropout: float,
        *,
        inputs: int = 0,
        outputs: int = 0,
        context: bool = False,
        variables: int = 0,
    ) -> None:
        super().__init__()
        inputs, outputs = inputs or width, outputs or width
        self.first = _linear(inputs, width, variables)
        self.context = nn.Linear(width, width, bias=False) if context else None
        self.second = _linear(width, outputs, variables)
        self.skip = nn.Linear(inputs, outputs) if inputs != outputs else None
        self.gate = GatedSkip(outputs, dropout, variables)

    def forward(self, values: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.first(values)
        if self.context is not None and context is not None:
            hidden = hidden + self.context(context)
        output: torch.Tensor = self.gate(
            self.second(functional.elu(hidden)), values if self.skip is None else self.skip(values)
        )
        return output


class VariableSelection(nn.Module):
    """Embeds each variable, transforms it by its own network and adds them up by weights that depend on all of them."""

    def __init__(self, variables: int, width: int, dropout: float, *, context: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(variables, 1, width).uniform_(-1, 1))
        self.shift = nn.Parameter(torch.empty(variables, 1, width).uniform_(-1, 1))
        self.each = GatedResidual(width, dropout, variables=variables)
        self.weights = GatedResidual(width, dropout, inputs=variables * width, outputs=variables, context=context)

    def forward(self, values: torch.Tensor, context: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return [..., width] and the weights [..., V] of values [..., V]; the context is [B, width]."""
        shape = values.shape
        if context is not None and values.dim() > 2:
            context = context[:, None].expand(*shape[:-1], -1).reshape(-1, context.shape[-1])
        rows = values.reshape(-1, shape[-1])
        embedded = rows.t().unsqueeze(-1) * self.scale + self.shift  # [V, N, width]
        if torch.is_autocast_enabled(rows.device.type):  # such sums stay in full precision, at twice the memory
            embedded = embedded.to(torch.get_autocast_dtype(rows.device.type))
        flat = embedded.transpose(0, 1).flatten(1)
        weights = torch.softmax(self.weights(flat, context).float(), dim=-1)
        combined = torch.einsum("nv,vnd->nd", weights.to(embedded.dtype), self.each(embedded))
        return combined.reshape(*shape[:-1], -1), weights.reshape(shape)


class InterpretableAttention(nn.Module):
    """Attention of several heads that share one value projection, so that the mean of their weights can be read."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"parameter d_model: {width} cannot be divided among {heads} heads")
        self.heads, self.size = heads, width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, self.size)
        self.output = nn.Linear(self.size, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and the weights [B, queries, values]; a query sees what is not later than itself.

        The queries are the last steps of the values.
        """
        batch, count, all_of = *queries.shape[:2], values.shape[1]
        query = self.query(queries).view(batch, count, self.heads, self.size).transpose(1, 2)
        key = self.key(values).view(batch, all_of, self.heads, self.size).transpose(1, 2)
        scores = (query @ key.transpose(2, 3)).float() / math.sqrt(self.size)
        later = torch.ones(count, all_of, dtype=torch.bool, device=scores.device).triu(all_of - count + 1)
        weights = torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1)
        # All heads weigh the same values: the mean of their outputs is the output of their mean weights.
        mean = self.dropout(weights).mean(1)
        value = self.value(values)
        return self.output(mean.to(value.dtype) @ value), weights.mean(1)


class TemporalFusionTransformer(nn.Module):
    """Variable selection, LSTM encoder and decoder, static enrichment, interpretable attention; the published order."""

    def __init__(self, shape: Shape, width: int, heads: int, dropout: float, lstm_layers: int = 2) -> None:
        super().__init__()
        self.shape = shape
        self.static_selection = VariableSelection(shape.static, width, dropout, context=False)
        self.contexts = nn.ModuleDict(
            {name: GatedResidual(width, dropout) for name in ("selection", "enrichment", "hidden", "cell")}
        )
        self.history_selection = VariableSelection(shape.observed + shape.known, width, dropout, context=True)
        self.horizon_selection = VariableSelection(shape.known, width, dropout, context=True)
        between = dropout if lstm_layers > 1 else 0.0
        self.encoder = nn.LSTM(width, width, lstm_layers, batch_first=True, dropout=between)
        self.decoder = nn.LSTM(width, width, lstm_layers, batch_first=True, dropout=between)
        self.after_lstm = GatedSkip(width, dropout)
        self.enrichment = GatedResidual(width, dropout, context=True)
        self.attention = InterpretableAttention(width, heads, dropout)
        self.after_attention = GatedSkip(width, dropout)
        self.position_wise = GatedResidual(width, dropout)
        self.before_output = GatedSkip(width, 0.0)
        self.output = nn.Linear(width, shape.outputs)

    def forward(self, static: torch.Tensor, known: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
        """Return [B, horizon, outputs] of static [B, S], known [B, history + horizon, K], observed [B, history, O]."""
        return self.explain(static, known, observed).output

    def explain(self, static: torch.Tensor, known: torch.Tensor, observed: torch.Tensor) -> Explained:
        """Return the forecast with the weights of attention and of the selection of variables."""
        history = self.shape.history
        chosen, static_weights = self.static_selection(static)
        context = {name: network(chosen) for name, network in self.contexts.items()}
        past, past_weights = self.history_selection(torch.cat([observed, known[:, :history]], 2), context["selection"])
        future, future_weights = self.horizon_selection(known[:, history:], context["selection"])
        layers = self.encoder.num_layers
        state: Any = tuple(context[name].expand(layers, -1, -1).contiguous() for name in ("hidden", "cell"))
        encoded, state = self.encoder(past, state)
        decoded, _ = self.decoder(future, state)
        steps = self.after_lstm(torch.cat([encoded, decoded], 1), torch.cat([past, future], 1))
        enriched = self.enrichment(steps, context["enrichment"][:, None])
        last = enriched[:, history:]
        attended, attention = self.attention(last, enriched)
        output = self.position_wise(self.after_attention(attended, last))
        output = self.before_output(output, steps[:, history:])
        return Explained(self.output(output), attention, static_weights, past_weights, future_weights)


class _GroupedNorm(nn.Module):
    """Layer normalisation over the last axis with a scale for each variable: [V, N, width]."""

    def __init__(self, variables: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.ones(variables, 1, width))
        self.bias = nn.Parameter(torch.zeros(variables, 1, width))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(values, (self.width,)) * self.weight + self.bias


def _linear(inputs: int, outputs: int, variables: int) -> nn.Module:
    return GroupedLinear(variables, inputs, outputs) if variables else nn.Linear(inputs, outputs)


def _norm(width: int, variables: int) -> nn.Module:
    return _GroupedNorm(variables, width) if variables else nn.LayerNorm(width)
