"""Compiled training steps that were predicted before anybody had measured them, from programs that Inductor wrote."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from compiled_steps import of_model
from torch import nn
from torch.nn import functional

CASES: list[tuple[str, dict[str, Any]]] = [
    ("public_words", {"kind": "qwen2", "batch": 8, "length": 1024, "precision": "bf16"}),
    ("public_words", {"kind": "roberta", "batch": 32, "length": 128}),
    ("public_words", {"kind": "albert", "batch": 16, "length": 384, "precision": "bf16"}),
    ("public_images", {"kind": "convnextv2", "batch": 64, "precision": "bf16"}),
    ("public_images", {"kind": "regnet", "batch": 64}),
    ("public_images", {"kind": "resnet18", "batch": 256, "precision": "bf16"}),
    ("public_series", {"batch": 64, "precision": "bf16"}),
    ("variational", {"batch": 128}),
    ("denoiser", {"batch": 4, "precision": "bf16"}),
    ("waves", {"batch": 16}),
    ("molecules", {"batch": 64}),
    ("points", {"batch": 32, "precision": "bf16"}),
    ("clips", {"batch": 8, "precision": "bf16"}),
    ("experts", {"batch": 16, "precision": "bf16"}),
    ("clicks", {"batch": 8192}),
    ("perceiver", {"batch": 8, "precision": "bf16"}),
]
MODES = {2: ["reduce-overhead"], 7: ["default", "reduce-overhead"], 14: ["reduce-overhead"], 15: ["max-autotune"]}


def public_words(kind: str, batch: int, length: int, precision: str = "fp32") -> Any:
    """A language model or a classifier of texts, as transformers has it, with fewer layers."""
    import transformers as hub

    few = {"num_hidden_layers": 4}
    models: dict[str, Any] = {
        "qwen2": lambda: hub.Qwen2ForCausalLM(
            hub.Qwen2Config(
                **few, vocab_size=32000, hidden_size=896, intermediate_size=4864,
                num_attention_heads=14, num_key_value_heads=2, use_cache=False,
            )
        ),
        "roberta": lambda: hub.RobertaForSequenceClassification(hub.RobertaConfig(**few, vocab_size=50265)),
        "albert": lambda: hub.AlbertForMaskedLM(
            hub.AlbertConfig(**few, hidden_size=768, num_attention_heads=12, intermediate_size=3072)
        ),
    }  # fmt: skip

    def loss(model: Any) -> torch.Tensor:
        ids = torch.randint(0, 30000, (batch, length), device="cuda")
        labels = torch.randint(0, 2, (batch,), device="cuda") if kind == "roberta" else ids
        return model(input_ids=ids, labels=labels).loss  # type: ignore[no-any-return]

    return of_model(models[kind](), loss, precision)


def public_images(kind: str, batch: int, precision: str = "fp32") -> Any:
    """A classifier of images, as transformers has it."""
    import transformers as hub

    models: dict[str, Any] = {
        "convnextv2": lambda: hub.ConvNextV2ForImageClassification(
            hub.ConvNextV2Config(num_labels=1000, depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512])
        ),
        "regnet": lambda: hub.RegNetForImageClassification(
            hub.RegNetConfig(num_labels=1000, depths=[1, 2, 4, 1], hidden_sizes=[64, 160, 384, 896], groups_width=32)
        ),
        "resnet18": lambda: hub.ResNetForImageClassification(
            hub.ResNetConfig(num_labels=1000, depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic")
        ),
    }

    def loss(model: Any) -> torch.Tensor:
        scores = model(torch.randn(batch, 3, 224, 224, device="cuda")).logits
        return functional.cross_entropy(scores.float(), torch.randint(0, 1000, (batch,), device="cuda"))

    return of_model(models[kind](), loss, precision)


def public_series(batch: int, length: int = 512, precision: str = "fp32") -> Any:
    """A forecast of several series from patches of them, as transformers has it."""
    import transformers as hub

    model = hub.PatchTSTForPrediction(
        hub.PatchTSTConfig(
            num_input_channels=8, context_length=length, prediction_length=96, patch_length=16, patch_stride=8,
            num_hidden_layers=3, d_model=256, num_attention_heads=8, ffn_dim=512, loss="mse",
        )
    )  # fmt: skip

    def loss(model: Any) -> torch.Tensor:
        past, future = (torch.randn(batch, steps, 8, device="cuda") for steps in (length, 96))
        return model(past_values=past, future_values=future).loss  # type: ignore[no-any-return]

    return of_model(model, loss, precision)


def variational(batch: int, side: int = 64, precision: str = "fp32") -> Any:
    """An autoencoder whose code is drawn at random."""

    class Autoencoder(nn.Module):
        def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
            super().__init__()
            down: list[nn.Module] = []
            up: list[nn.Module] = []
            for width, wider in pairwise((3, *widths)):
                down += [nn.Conv2d(width, wider, 4, 2, 1), nn.BatchNorm2d(wider), nn.SiLU()]
            for wide, width in pairwise((*widths[::-1], 32)):
                up += [nn.ConvTranspose2d(wide, width, 4, 2, 1), nn.BatchNorm2d(width), nn.SiLU()]
            self.encoder, self.decoder = nn.Sequential(*down), nn.Sequential(*up, nn.Conv2d(32, 3, 3, padding=1))
            self.shape = (widths[-1], side // 16, side // 16)
            self.code = nn.Linear(math.prod(self.shape), 256)
            self.grow = nn.Linear(128, math.prod(self.shape))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            mean, spread = self.code(self.encoder(x).flatten(1)).chunk(2, -1)
            drawn = mean + torch.randn_like(mean) * torch.exp(spread / 2)
            return self.decoder(self.grow(drawn).unflatten(1, self.shape)), mean, spread

    def loss(model: Any) -> torch.Tensor:
        x = torch.rand(batch, 3, side, side, device="cuda")
        made, mean, spread = model(x)
        return functional.mse_loss(made.float(), x) + 1e-3 * (mean.square() + spread.exp() - 1 - spread).float().mean()

    return of_model(Autoencoder(), loss, precision)


class _Look(nn.Module):
    """Attention of one set of vectors to another, with a network behind it."""

    def __init__(self, width: int, heads: int, other: int) -> None:
        super().__init__()
        self.heads = heads
        self.asks, self.gives = nn.Linear(width, width), nn.Linear(other, 2 * width)
        self.before, self.of_other, self.after = nn.LayerNorm(width), nn.LayerNorm(other), nn.LayerNorm(width)
        self.out = nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        asked = self.asks(self.before(x))
        key, value = self.gives(self.of_other(other)).chunk(2, -1)
        split = [each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (asked, key, value)]
        seen = functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        return x + self.network(self.after(x))  # type: ignore[no-any-return]


def perceiver(batch: int, inputs: int = 8192, width: int = 512, precision: str = "fp32") -> Any:
    """A few vectors that look at many inputs, and then at each other."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Parameter(torch.randn(256, width) / 50)
            self.into = nn.Linear(32, 128)
            self.first = _Look(width, 8, 128)
            self.among = nn.ModuleList(_Look(width, 8, width) for _ in range(4))
            self.out = nn.Linear(width, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            known = self.first(self.start.expand(len(x), -1, -1), self.into(x))
            for layer in self.among:
                known = layer(known, known)
            return self.out(known.mean(1))  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        scores = model(torch.randn(batch, inputs, 32, device="cuda"))
        return functional.cross_entropy(scores.float(), torch.randint(0, 10, (batch,), device="cuda"))

    return of_model(Network(), loss, precision)


def denoiser(batch: int, side: int = 128, width: int = 128, precision: str = "fp32") -> Any:
    """A U-Net that removes noise, with attention where the image is smallest."""

    class Block(nn.Module):
        def __init__(self, width: int, out: int) -> None:
            super().__init__()
            self.norm, self.again = nn.GroupNorm(16, width), nn.GroupNorm(16, out)
            self.into, self.onto = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
            self.skip = nn.Conv2d(width, out, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = functional.silu(self.again(self.into(functional.silu(self.norm(x)))))
            return self.skip(x) + self.onto(hidden)  # type: ignore[no-any-return]

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
            self.first, self.second = Block(width, width), Block(width, 2 * width)
            self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
            self.third, self.fourth = Block(4 * width, width), Block(2 * width, width)
            self.down = nn.Conv2d(width, width, 3, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            fine = self.first(self.into(x))
            coarse = self.second(self.down(fine))
            small = functional.avg_pool2d(coarse, 4)
            words = small.flatten(2).transpose(1, 2)
            words = words + self.attention(words, words, words, need_weights=False)[0]
            seen = functional.interpolate(words.transpose(1, 2).unflatten(2, small.shape[2:]), scale_factor=4.0)
            back = functional.interpolate(self.third(torch.cat([coarse, seen], 1)), scale_factor=2.0)
            return self.out(self.fourth(torch.cat([fine, back], 1)))  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        clean, noise = torch.randn(2, batch, 4, side, side, device="cuda").unbind()
        return functional.mse_loss(model(clean + noise).float(), noise)

    return of_model(Network(), loss, precision)


def waves(batch: int, length: int = 8192, width: int = 96, precision: str = "fp32") -> Any:
    """Gated convolutions over a signal, ever more dilated."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Conv1d(1, width, 1), nn.Conv1d(width, 64, 1)
            self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, dilation=2**at) for at in range(8))
            self.mix = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.into(x)
            total = torch.zeros_like(x)
            for at, (gated, mix) in enumerate(zip(self.gated, self.mix, strict=True)):
                value, gate = gated(functional.pad(x, (2 ** (at + 1), 0))).chunk(2, 1)
                made = mix(torch.tanh(value) * torch.sigmoid(gate))
                x, total = x + made, total + made
            return self.out(functional.relu(total))  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        scores = model(torch.randn(batch, 1, length, device="cuda"))
        return functional.cross_entropy(scores.float(), torch.randint(0, 64, (batch, length), device="cuda"))

    return of_model(Network(), loss, precision)


def molecules(batch: int, atoms: int = 48, width: int = 128, precision: str = "fp32") -> Any:
    """Filters that follow from distances, over all pairs of atoms that are near each other."""
    nodes, pairs = atoms * batch, 16 * atoms * batch

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Sequential(nn.Linear(50, width), nn.Softplus(), nn.Linear(width, width))
            self.into, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)

        def forward(self, x: torch.Tensor, spread: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            sent = self.into(x)[ends[0]] * self.filter(spread)
            return x + self.out(functional.softplus(torch.zeros_like(x).index_add(0, ends[1], sent)))  # type: ignore[no-any-return]

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, width)
            self.layers = nn.ModuleList(Layer() for _ in range(4))
            self.out = nn.Sequential(nn.Linear(width, 64), nn.Softplus(), nn.Linear(64, 1))
            self.register_buffer("centers", torch.linspace(0, 5, 50))

        def forward(self, kinds: torch.Tensor, places: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            apart = (places[ends[0]] - places[ends[1]]).square().sum(-1).add(1e-6).sqrt()
            spread = torch.exp(-10 * (apart[:, None] - self.centers).square())
            x = self.embed(kinds)
            for layer in self.layers:
                x = layer(x, spread, ends)
            return self.out(x).unflatten(0, (batch, atoms)).sum((1, 2))  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        kinds = torch.randint(1, 100, (nodes,), device="cuda")
        ends = torch.randint(0, nodes, (2, pairs), device="cuda")
        energy = model(kinds, torch.randn(nodes, 3, device="cuda"), ends)
        return functional.mse_loss(energy.float(), torch.randn(batch, device="cuda"))

    return of_model(Network(), loss, precision)


def points(batch: int, count: int = 4096, precision: str = "fp32") -> Any:
    """A network over clouds of points: the same layers for each, then the largest of all."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            each: list[nn.Module] = []
            for width, wider in pairwise((6, 64, 128, 256, 1024)):
                each += [nn.Conv1d(width, wider, 1), nn.BatchNorm1d(wider), nn.ReLU()]
            self.each = nn.Sequential(*each)
            self.all = nn.Sequential(
                nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 40)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.all(self.each(x).amax(-1))  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        scores = model(torch.randn(batch, 6, count, device="cuda"))
        return functional.cross_entropy(scores.float(), torch.randint(0, 40, (batch,), device="cuda"))

    return of_model(Network(), loss, precision)


def clips(batch: int, side: int = 112, frames: int = 16, precision: str = "fp32") -> Any:
    """A classifier of short films: convolutions in space, then in time."""
    layers: list[nn.Module] = []
    for width, wider in pairwise((3, 64, 128, 256)):
        layers += [
            nn.Conv3d(width, wider, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False), nn.BatchNorm3d(wider), nn.ReLU(),
            nn.Conv3d(wider, wider, (3, 1, 1), (1, 1, 1), (1, 0, 0), bias=False), nn.BatchNorm3d(wider), nn.ReLU(),
        ]  # fmt: skip
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, 101))

    def loss(model: Any) -> torch.Tensor:
        scores = model(torch.randn(batch, 3, frames, side, side, device="cuda"))
        return functional.cross_entropy(scores.float(), torch.randint(0, 101, (batch,), device="cuda"))

    return of_model(model, loss, precision)


def experts(batch: int, length: int = 256, width: int = 512, count: int = 8, precision: str = "fp32") -> Any:
    """A transformer's networks as soft mixtures of experts: every expert gets its share of every word."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.slots = nn.LayerNorm(width), nn.Parameter(torch.randn(width, count, 32) / 20)
            self.first = nn.Parameter(torch.randn(count, width, 4 * width) / 20)
            self.second = nn.Parameter(torch.randn(count, 4 * width, width) / 40)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            words = self.norm(x)
            scores = torch.einsum("bld,des->bles", words, self.slots)
            sent = torch.einsum("bld,bles->ebsd", words, scores.softmax(1)).flatten(1, 2)
            made = torch.bmm(functional.gelu(torch.bmm(sent, self.first)), self.second).unflatten(1, (batch, 32))
            back = scores.flatten(2).softmax(-1).unflatten(-1, (count, 32))
            return x + torch.einsum("ebsd,bles->bld", made, back.to(made.dtype))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(8000, width), nn.Linear(width, 8000)
            self.looks = nn.ModuleList(_Look(width, 8, width) for _ in range(3))
            self.mixtures = nn.ModuleList(Mixture() for _ in range(3))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            for look, mixture in zip(self.looks, self.mixtures, strict=True):
                x = mixture(look(x, x))
            return self.out(x)  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        ids = torch.randint(0, 8000, (batch, length), device="cuda")
        return functional.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())

    return of_model(Network(), loss, precision)


def clicks(batch: int, width: int = 64, precision: str = "fp32") -> Any:
    """A recommender: embeddings of many properties, all their products, and a network."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(100_000, width) for _ in range(8))
            self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
            self.top = nn.Sequential(
                nn.Linear(36 + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
            )
            self.register_buffer("pairs", torch.triu_indices(9, 9, 1), persistent=False)

        def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            bottom = self.bottom(dense)
            seen = torch.stack([bottom, *(table(ids[:, at]) for at, table in enumerate(self.tables))], 1)
            products = torch.bmm(seen, seen.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
            return self.top(torch.cat([bottom, products], 1)).squeeze(-1)  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        ids = torch.randint(0, 100_000, (batch, 8), device="cuda")
        scores = model(torch.randn(batch, 13, device="cuda"), ids)
        return functional.binary_cross_entropy_with_logits(scores.float(), torch.rand(batch, device="cuda"))

    return of_model(Network(), loss, precision)
