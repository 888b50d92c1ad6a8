"""Training steps whose compiled form is predicted and measured: networks of several fields, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Loss = Callable[[Any], torch.Tensor]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("transformers_step", {"kind": "bert", "batch": 16, "precision": "bf16"}),
    ("transformers_step", {"kind": "vit", "batch": 64, "precision": "bf16"}),
    ("transformers_step", {"kind": "convnext", "batch": 32, "precision": "bf16"}),
    ("transformers_step", {"kind": "llama", "batch": 4, "precision": "bf16"}),
    ("transformers_step", {"kind": "swin", "batch": 32}),
    ("volumes", {"batch": 4}),
    ("diffusion", {"batch": 8, "precision": "bf16"}),
    ("messages", {"batch": 32}),
    ("operator", {"batch": 16, "precision": "bf16"}),
    ("features", {"batch": 8192}),
]
MODES = {3: ["default", "reduce-overhead"], 9: ["default", "reduce-overhead"]}


def of_model(model: nn.Module, loss: Loss, precision: str) -> Any:
    optimizer = lambda parameters: torch.optim.AdamW(parameters, 1e-4)  # noqa: E731
    return SimpleNamespace(model=model, loss=loss, optimizer=optimizer, precision=precision)


def transformers_step(kind: str, batch: int = 8, precision: str = "fp32") -> Any:
    """Return the step of a class of transformers of common size."""
    import transformers as hub

    if kind in ("bert", "llama"):
        model: Any = (
            hub.BertForMaskedLM(hub.BertConfig())
            if kind == "bert"
            else hub.LlamaForCausalLM(
                hub.LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16)
            )
        )
        length = 512 if kind == "bert" else 1024

        def words(model: Any) -> torch.Tensor:
            ids = torch.randint(0, 30000, (batch, length), device="cuda")
            return model(input_ids=ids, labels=ids).loss  # type: ignore[no-any-return]

        return of_model(model, words, precision)
    made = {
        "vit": lambda: hub.ViTForImageClassification(hub.ViTConfig(num_labels=1000)),
        "convnext": lambda: hub.ConvNextForImageClassification(hub.ConvNextConfig(num_labels=1000)),
        "swin": lambda: hub.SwinForImageClassification(hub.SwinConfig(num_labels=1000)),
    }

    def images(model: Any) -> torch.Tensor:
        pixels = torch.randn(batch, 3, 224, 224, device="cuda")
        return model(pixel_values=pixels, labels=torch.randint(0, 1000, (batch,), device="cuda")).loss  # type: ignore[no-any-return]

    return of_model(made[kind](), images, precision)


def volumes(batch: int = 4, side: int = 96, precision: str = "fp32") -> Any:
    """A classifier of volumes: 3-D convolutions with batch normalization."""
    layers: list[nn.Module] = []
    width = 2
    for wider in (32, 64, 128, 256):
        layers += [nn.Conv3d(width, wider, 3, padding=1), nn.BatchNorm3d(wider), nn.ReLU(), nn.MaxPool3d(2)]
        width = wider
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(width, 10))

    def loss(model: Any) -> torch.Tensor:
        data = torch.randn(batch, 2, side, side, side, device="cuda")
        return functional.cross_entropy(model(data).float(), torch.randint(0, 10, (batch,), device="cuda"))

    return of_model(model, loss, precision)


class Residual(nn.Module):
    """A block of a diffusion network: group normalization, SiLU and convolutions, moved by the time."""

    def __init__(self, width: int, out: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, width), nn.GroupNorm(8, out)
        self.into, self.onto = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.into(functional.silu(self.first(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.onto(functional.silu(self.second(hidden)))  # type: ignore[no-any-return]


class Diffusion(nn.Module):
    """A U-Net that predicts noise."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256), time: int = 256) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(1, time), nn.SiLU(), nn.Linear(time, time))
        self.into, self.out = nn.Conv2d(3, widths[0], 3, padding=1), nn.Conv2d(widths[0], 3, 3, padding=1)
        pairs = list(zip((widths[0], *widths[:-1]), widths, strict=True))
        self.down = nn.ModuleList(Residual(width, out, time) for width, out in pairs)
        self.middle = Residual(widths[-1], widths[-1], time)
        self.up = nn.ModuleList(Residual(2 * out, width, time) for width, out in reversed(pairs))

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        time = self.embed(when[:, None])
        x, kept = self.into(x), []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.out(x)  # type: ignore[no-any-return]


def diffusion(batch: int = 8, side: int = 128, precision: str = "fp32") -> Any:
    """A step of a diffusion model: predict the noise that was added."""

    def loss(model: Any) -> torch.Tensor:
        images, noise = torch.randn(2, batch, 3, side, side, device="cuda").unbind()
        when = torch.rand(batch, device="cuda")
        mixed = images * (1 - when)[:, None, None, None] + noise * when[:, None, None, None]
        return functional.mse_loss(model(mixed, when).float(), noise)

    return of_model(Diffusion(), loss, precision)


class Messages(nn.Module):
    """Message passing over edges: gather, a small network, sum over neighbours."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(16, width), nn.Linear(width, 1)
        self.edges = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for network in self.edges:
            message = network(torch.cat([x[source], x[target]], -1))
            x = x + torch.zeros_like(x).index_add_(0, target, message.to(x.dtype))
        return self.out(x)  # type: ignore[no-any-return]


def messages(batch: int = 32, precision: str = "fp32") -> Any:
    """A graph network on random graphs of 60 nodes with 20 neighbours each."""
    nodes = 60 * batch

    def loss(model: Any) -> torch.Tensor:
        ends = torch.randint(0, nodes, (2, 20 * nodes), device="cuda")
        out = model(torch.randn(nodes, 16, device="cuda"), ends[0], ends[1])
        return functional.l1_loss(out.float(), torch.randn(nodes, 1, device="cuda"))

    return of_model(Messages(), loss, precision)


def operator(batch: int = 16, side: int = 64, precision: str = "fp32") -> Any:
    """A network of patches and mixing over a field, as surrogates of simulations use."""
    width, patches = 384, (side // 4) ** 2

    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens = nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches))
            self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.tokens(self.before(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.after(x))  # type: ignore[no-any-return]

    model = nn.Sequential(
        nn.Conv2d(5, width, 4, 4), nn.Flatten(2), _Transposed(), *(Mixing() for _ in range(8)), nn.Linear(width, 80)
    )

    def loss(model: Any) -> torch.Tensor:
        out = model(torch.randn(batch, 5, side, side, device="cuda"))
        return functional.mse_loss(out.float(), torch.randn(batch, patches, 80, device="cuda"))

    return of_model(model, loss, precision)


class _Transposed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def features(batch: int = 8192, width: int = 1024, precision: str = "fp32") -> Any:
    """A network of features with residual blocks, normalization and dropout."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.layers(self.norm(x))  # type: ignore[no-any-return]

    model = nn.Sequential(nn.Linear(64, width), *(Block() for _ in range(6)), nn.Linear(width, 1))

    def loss(model: Any) -> torch.Tensor:
        data = torch.randn(batch, 64, device="cuda")
        return functional.mse_loss(model(data).float(), torch.randn(batch, 1, device="cuda"))

    return of_model(model, loss, precision)
