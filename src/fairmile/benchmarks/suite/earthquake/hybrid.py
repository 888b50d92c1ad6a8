"""The third published family: a hybrid of spatial and temporal parts (the science transformer of Fox et al. 2022).

At each step of the history attention looks at the nearest locations (the published spatial search), an LSTM of two
layers reads what comes of it in time, and a decoder with attention over history and horizon (the temporal search)
makes the forecast.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.earthquake.tft import GatedResidual, GatedSkip, InterpretableAttention, Shape

_OFFSETS = 2  # north, east


class SpatialSearch(nn.Module):
    """Attention of a location to its nearest ones at the same time; how near they are is part of what it sees."""

    def __init__(self, seen: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"parameter d_model: {width} cannot be divided among {heads} heads")
        self.heads, self.size = heads, width // heads
        self.embed = nn.Linear(seen, width)
        self.place = nn.Linear(_OFFSETS + 1, width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.skip = GatedSkip(width, dropout)

    def forward(self, own: torch.Tensor, around: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] of own steps [B, T, width], around [B, T, K, seen] and offset [B, K, 2]."""
        batch, steps, count = around.shape[:3]
        distance = torch.log1p(offset.square().sum(-1, keepdim=True).sqrt())
        place = self.place(torch.cat([offset / 10, distance], -1))
        there = torch.nn.functional.elu(self.embed(around) + place[:, None])
        key, value = self.key_value(there).view(batch, steps, count, 2, self.heads, self.size).unbind(3)
        query = self.query(own).view(batch, steps, 1, self.heads, self.size)
        weights = torch.softmax((query * key).sum(-1).float() / math.sqrt(self.size), dim=2)
        found = (weights.to(value.dtype)[..., None] * value).sum(2).flatten(2)
        output: torch.Tensor = self.skip(found, own)
        return output


class SpaceTimeForecaster(nn.Module):
    """Spatial search at each step, an LSTM in time, a decoder with attention over all steps."""

    def __init__(self, shape: Shape, seen: int, width: int, heads: int, dropout: float, layers: int) -> None:
        super().__init__()
        self.shape = shape
        common = shape.static + shape.known
        self.past = nn.Linear(common + shape.observed, width)
        self.future = nn.Linear(common, width)
        self.space = SpatialSearch(seen, width, heads, dropout)
        between = dropout if layers > 1 else 0.0
        self.encoder = nn.LSTM(width, width, layers, batch_first=True, dropout=between)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True, dropout=between)
        self.after_lstm = GatedSkip(width, dropout)
        self.attention = InterpretableAttention(width, heads, dropout)
        self.after_attention = GatedSkip(width, dropout)
        self.position_wise = GatedResidual(width, dropout)
        self.output = nn.Linear(width, shape.outputs)

    def forward(
        self,
        static: torch.Tensor,
        known: torch.Tensor,
        observed: torch.Tensor,
        around: torch.Tensor,
        offset: torch.Tensor,
    ) -> torch.Tensor:
        """Return [B, horizon, outputs]; the first arguments as those of the TFT, the others as a window has them."""
        history = self.shape.history
        steps = torch.cat([known, static[:, None].expand(-1, known.shape[1], -1)], 2)
        past = self.space(self.past(torch.cat([steps[:, :history], observed], 2)), around, offset)
        future = self.future(steps[:, history:])
        encoded, state = self.encoder(past)
        decoded, _ = self.decoder(future, state)
        all_steps = self.after_lstm(torch.cat([encoded, decoded], 1), torch.cat([past, future], 1))
        last = all_steps[:, history:]
        attended, _ = self.attention(last, all_steps)
        forecast: torch.Tensor = self.output(self.position_wise(self.after_attention(attended, last)))
        return forecast
