"""Training steps whose shapes depend on values: experts, masks, lengths, transcripts and graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WORDS = 8000


def step(model: nn.Module, loss: Any, precision: str) -> Any:
    optimizer = lambda parameters: torch.optim.AdamW(parameters, 1e-4)  # noqa: E731
    return SimpleNamespace(model=model, loss=loss, optimizer=optimizer, precision=precision)


class Block(nn.Module):
    """A transformer block with one feed-forward network, or with experts and top-2 routing."""

    def __init__(self, width: int, heads: int, experts: int = 0) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.experts = heads, experts
        networks = [
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts or 1)
        ]
        self.networks = nn.ModuleList(networks)
        self.router = nn.Linear(width, experts) if experts else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        batch, length, width = rows.shape
        parts = self.query_key_value(self.before(rows)).chunk(3, -1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        rows = rows + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        normed = self.after(rows)
        if self.router is None:
            return rows + self.networks[0](normed)
        return rows + self._routed(normed.reshape(-1, width), self.router).view_as(rows)

    def _routed(self, words: torch.Tensor, router: nn.Linear) -> torch.Tensor:
        weights, chosen = router(words).softmax(-1).topk(2, -1)
        out = torch.zeros_like(words)
        mask = functional.one_hot(chosen, self.experts).permute(2, 1, 0)
        for number, network in enumerate(self.networks):
            which, where = torch.where(mask[number])
            out.index_add_(0, where, (network(words[where]) * weights[where, which, None]).to(out.dtype))
        return out


class LanguageModel(nn.Module):
    def __init__(self, layers: int, experts: int = 0, width: int = 512) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.blocks = nn.Sequential(*(Block(width, 8, experts) for _ in range(layers)))

    def forward(self, words: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        rows = self.blocks(self.words(words))
        return self.head(rows if mask is None else rows[mask])  # type: ignore[no-any-return]


def experts(batch: int = 8, length: int = 512, experts: int = 8, precision: str = "fp32") -> Any:
    """A mixture of experts: weights decide how many words each expert gets."""

    def loss(model: Any) -> torch.Tensor:
        words = torch.randint(0, WORDS, (batch, length), device="cuda")
        return functional.cross_entropy(model(words).flatten(0, 1), words.flatten())

    return step(LanguageModel(4, experts), loss, precision)


def masked(batch: int = 16, length: int = 512, precision: str = "fp32") -> Any:
    """Masked words: the inputs decide how many there are."""

    def loss(model: Any) -> torch.Tensor:
        words = torch.randint(0, WORDS, (batch, length), device="cuda")
        mask = torch.rand(batch, length, device="cuda") < 0.15
        return functional.cross_entropy(model(words, mask), words[mask])

    return step(LanguageModel(6), loss, precision)


class Speech(nn.Module):
    def __init__(self, width: int = 384) -> None:
        super().__init__()
        convolutions = nn.Conv1d(80, width, 3, 2, 1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        self.sound, self.head = nn.Sequential(*convolutions), nn.Linear(width, 64)
        self.blocks = nn.Sequential(*(Block(width, 6) for _ in range(4)))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.sound(sound).transpose(1, 2)))  # type: ignore[no-any-return]


def speech(batch: int = 16, precision: str = "fp32") -> Any:
    """Transcripts of different lengths, with a CTC loss."""

    def loss(model: Any) -> torch.Tensor:
        scores = model(torch.randn(batch, 80, 1600, device="cuda")).float().log_softmax(-1).transpose(0, 1)
        lengths = torch.randint(20, 60, (batch,), device="cuda")
        texts, frames = torch.randint(1, 64, (batch, 60), device="cuda"), torch.full((batch,), 400, device="cuda")
        return functional.ctc_loss(scores, texts, frames, lengths)

    return step(Speech(), loss, precision)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5000, 256), nn.Linear(512, 5000)
        self.layers = nn.LSTM(256, 512, 2, batch_first=True)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rows = nn.utils.rnn.pack_padded_sequence(self.words(words), lengths.cpu(), True, enforce_sorted=False)
        return self.head(self.layers(rows)[0].data)  # type: ignore[no-any-return]


def packed(batch: int = 64, length: int = 100, precision: str = "fp32") -> Any:
    """Sequences of different lengths, packed; the same ones in each step."""
    lengths = torch.linspace(20, length, batch, device="cpu").long()

    def loss(model: Any) -> torch.Tensor:
        words = torch.randint(0, 5000, (batch, length), device="cuda")
        return model(words, lengths).float().logsumexp(-1).mean()  # type: ignore[no-any-return]

    return step(Recurrent(), loss, precision)


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(128, 256), nn.Linear(256, 256), nn.Linear(256, 1)

    def forward(self, rows: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nodes, places = torch.unique(torch.cat([sources, targets]), return_inverse=True)
        hidden = functional.relu(self.first(rows[nodes]))
        sums = torch.zeros_like(hidden).index_add_(0, places[len(sources) :], hidden[places[: len(sources)]])
        hidden = functional.relu(self.second(sums) + hidden)
        return self.head(hidden[sums.abs().sum(1) > 0])  # type: ignore[no-any-return]


def graph(nodes: int = 200_000, edges: int = 400_000, precision: str = "fp32") -> Any:
    """A graph: inputs decide which nodes take part, weights which of them are judged."""

    def loss(model: Any) -> torch.Tensor:
        sources, targets = (torch.randint(0, nodes, (edges,), device="cuda") for _ in range(2))
        return model(torch.randn(nodes, 128, device="cuda"), sources, targets).square().mean()  # type: ignore[no-any-return]

    return step(Graph(), loss, precision)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("experts", {}),
    ("experts", {"precision": "bf16"}),
    ("experts", {"batch": 2, "experts": 16}),
    ("masked", {}),
    ("masked", {"precision": "bf16"}),
    ("speech", {}),
    ("speech", {"batch": 48, "precision": "bf16"}),
    ("packed", {}),
    ("packed", {"batch": 256}),
    ("graph", {}),
    ("graph", {"nodes": 50_000, "edges": 1_000_000}),
]
