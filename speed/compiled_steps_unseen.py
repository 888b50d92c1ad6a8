"""Compiled training steps that no rule was made from: other architectures, sizes, precisions and modes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from compiled_steps import of_model
from torch import nn
from torch.nn import functional

CASES: list[tuple[str, dict[str, Any]]] = [
    ("vision", {"kind": "resnet50", "batch": 64, "precision": "bf16"}),
    ("vision", {"kind": "mobilenet", "batch": 64}),
    ("vision", {"kind": "dinov2", "batch": 32, "precision": "bf16"}),
    ("gpt2", {"batch": 8, "precision": "bf16"}),
    ("t5", {"batch": 16, "precision": "bf16"}),
    ("distilbert", {"batch": 16}),
    ("segmentation", {"batch": 8, "precision": "bf16"}),
    ("segmentation", {"batch": 2, "side": 64, "axes": 3}),
    ("regressor", {"batch": 16384}),
    ("series", {"batch": 64, "precision": "bf16"}),
    ("attention_over_edges", {"batch": 16}),
    ("fourier", {"batch": 8}),
    ("scan", {"batch": 16, "precision": "bf16"}),
    ("vision", {"kind": "convmixer", "batch": 32}),
]
MODES = {3: ["default", "reduce-overhead"], 8: ["reduce-overhead"], 9: ["default", "max-autotune"]}


def vision(kind: str, batch: int = 32, precision: str = "fp32") -> Any:
    """A classifier of images."""
    import transformers as hub

    made: dict[str, Callable[[], nn.Module]] = {
        "convmixer": lambda: nn.Sequential(
            nn.Conv2d(3, 512, 7, 7), nn.GELU(), nn.BatchNorm2d(512), *(_Mixer(512) for _ in range(8)),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
        ),
        "resnet50": lambda: hub.ResNetForImageClassification(hub.ResNetConfig(num_labels=1000)),
        "mobilenet": lambda: hub.MobileNetV2ForImageClassification(hub.MobileNetV2Config(num_labels=1000)),
        "dinov2": lambda: hub.Dinov2ForImageClassification(hub.Dinov2Config(image_size=224, num_labels=1000)),
    }  # fmt: skip

    def loss(model: Any) -> torch.Tensor:
        out = model(torch.randn(batch, 3, 224, 224, device="cuda"))
        scores = getattr(out, "logits", out)
        return functional.cross_entropy(scores.float(), torch.randint(0, 1000, (batch,), device="cuda"))

    return of_model(made[kind](), loss, precision)


class _Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.space = nn.Sequential(
            nn.Conv2d(width, width, 9, padding=4, groups=width), nn.GELU(), nn.BatchNorm2d(width)
        )
        self.mix = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x + self.space(x))  # type: ignore[no-any-return]


def gpt2(batch: int = 8, length: int = 512, precision: str = "fp32") -> Any:
    """GPT-2 of common size."""
    import transformers as hub

    def words(model: Any) -> torch.Tensor:
        ids = torch.randint(0, 50000, (batch, length), device="cuda")
        return model(input_ids=ids, labels=ids, use_cache=False).loss  # type: ignore[no-any-return]

    return of_model(hub.GPT2LMHeadModel(hub.GPT2Config()), words, precision)


def t5(batch: int = 16, length: int = 256, precision: str = "fp32") -> Any:
    """T5 of small size: encoder and decoder with relative positions."""
    import transformers as hub

    def words(model: Any) -> torch.Tensor:
        ids = torch.randint(0, 32000, (batch, length), device="cuda")
        return model(input_ids=ids, labels=ids, use_cache=False).loss  # type: ignore[no-any-return]

    return of_model(hub.T5ForConditionalGeneration(hub.T5Config(decoder_start_token_id=0)), words, precision)


def distilbert(batch: int = 16, length: int = 128, precision: str = "fp32") -> Any:
    """A classifier of sentences."""
    import transformers as hub

    def words(model: Any) -> torch.Tensor:
        ids = torch.randint(0, 30000, (batch, length), device="cuda")
        return model(input_ids=ids, labels=torch.randint(0, 2, (batch,), device="cuda")).loss  # type: ignore[no-any-return]

    return of_model(hub.DistilBertForSequenceClassification(hub.DistilBertConfig()), words, precision)


class _Unet(nn.Module):
    def __init__(self, axes: int, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        convolution, norm = (nn.Conv2d, nn.BatchNorm2d) if axes == 2 else (nn.Conv3d, nn.InstanceNorm3d)
        transposed = nn.ConvTranspose2d if axes == 2 else nn.ConvTranspose3d

        def block(width: int, out: int) -> nn.Module:
            return nn.Sequential(
                convolution(width, out, 3, padding=1), norm(out), nn.LeakyReLU(),
                convolution(out, out, 3, padding=1), norm(out), nn.LeakyReLU(),
            )  # fmt: skip

        self.down = nn.ModuleList(block(width, out) for width, out in zip((1, *widths), widths, strict=False))
        self.pool = nn.MaxPool2d(2) if axes == 2 else nn.MaxPool3d(2)
        pairs = list(pairwise(widths))[::-1]
        self.grow = nn.ModuleList(transposed(wide, width, 2, 2) for width, wide in pairs)
        self.up = nn.ModuleList(block(2 * width, width) for width, _ in pairs)
        self.out = convolution(widths[0], 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for block in self.down:
            if kept:
                x = self.pool(x)
            x = block(x)
            kept.append(x)
        kept.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([grow(x), kept.pop()], 1))
        return self.out(x)  # type: ignore[no-any-return]


def segmentation(batch: int = 8, side: int = 256, axes: int = 2, precision: str = "fp32") -> Any:
    """A U-Net in two or three dimensions."""

    def loss(model: Any) -> torch.Tensor:
        out = model(torch.randn(batch, 1, *[side] * axes, device="cuda"))
        return functional.cross_entropy(out.float(), torch.randint(0, 3, (batch, *[side] * axes), device="cuda"))

    return of_model(_Unet(axes), loss, precision)


def regressor(batch: int = 16384, width: int = 512, precision: str = "fp32") -> Any:
    """A plain network of layers with batch normalization."""
    layers: list[nn.Module] = [nn.Linear(40, width), nn.ReLU()]
    for _ in range(5):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 3))

    def loss(model: Any) -> torch.Tensor:
        out = model(torch.randn(batch, 40, device="cuda"))
        return functional.huber_loss(out.float(), torch.randn(batch, 3, device="cuda"))

    return of_model(model, loss, precision)


def series(batch: int = 64, length: int = 336, precision: str = "fp32") -> Any:
    """A transformer over patches of time series."""
    width = 256

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.place = nn.Linear(16, width), nn.Parameter(torch.zeros(1, length // 8 - 1, width))
            layer = nn.TransformerEncoderLayer(width, 8, 1024, 0.1, "gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.out = nn.Linear(width * (length // 8 - 1), 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            series = x.transpose(1, 2).flatten(0, 1).unfold(-1, 16, 8)
            hidden = self.encoder(self.into(series) + self.place)
            return self.out(hidden.flatten(1))  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        out = model(torch.randn(batch, length, 7, device="cuda"))
        return functional.mse_loss(out.float(), torch.randn(7 * batch, 96, device="cuda"))

    return of_model(Forecast(), loss, precision)


def attention_over_edges(batch: int = 16, width: int = 128, precision: str = "fp32") -> Any:
    """A graph network whose edges are weighted by attention."""
    nodes, edges = 200 * batch, 3000 * batch

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.score = nn.Linear(width, 2 * width), nn.Linear(width, 4)
            self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

        def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            sent, met = self.both(x).chunk(2, -1)
            pair = functional.leaky_relu(sent[source] + met[target], 0.2)
            score = torch.exp(self.score(pair).clamp(-8, 8))
            total = torch.zeros(len(x), 4, device=x.device, dtype=score.dtype).index_add(0, target, score)
            weight = score / (total[target] + 1e-6)
            message = (sent[source].view(-1, 4, width // 4) * weight[..., None]).flatten(1)
            summed = torch.zeros_like(x).index_add(0, target, message.to(x.dtype))
            return self.norm(x + self.out(functional.elu(summed)))  # type: ignore[no-any-return]

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(32, width), nn.Linear(width, 1)
            self.layers = nn.ModuleList(Layer() for _ in range(5))

        def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            x = self.into(x)
            for layer in self.layers:
                x = layer(x, source, target)
            return self.out(x)  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        ends = torch.randint(0, nodes, (2, edges), device="cuda")
        out = model(torch.randn(nodes, 32, device="cuda"), ends[0], ends[1])
        return functional.mse_loss(out.float(), torch.randn(nodes, 1, device="cuda"))

    return of_model(Network(), loss, precision)


def fourier(batch: int = 8, side: int = 128, width: int = 48, modes: int = 16, precision: str = "fp32") -> Any:
    """A Fourier neural operator."""

    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width)
            self.local = nn.Conv2d(width, width, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            spectrum = torch.fft.rfft2(x)
            weight = torch.view_as_complex(self.weight)
            out = torch.zeros_like(spectrum)
            out[:, :, :modes, :modes] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :modes, :modes], weight[0])
            out[:, :, -modes:, :modes] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -modes:, :modes], weight[1])
            return functional.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))

    model = nn.Sequential(nn.Conv2d(3, width, 1), *(Spectral() for _ in range(4)), nn.Conv2d(width, 1, 1))

    def loss(model: Any) -> torch.Tensor:
        out = model(torch.randn(batch, 3, side, side, device="cuda"))
        return functional.mse_loss(out.float(), torch.randn(batch, 1, side, side, device="cuda"))

    return of_model(model, loss, precision)


def scan(batch: int = 16, length: int = 512, width: int = 512, precision: str = "fp32") -> Any:
    """A state-space network: gates, short convolutions, and a decaying sum over the sequence."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, 3 * width)
            self.mix = nn.Conv1d(width, width, 4, padding=3, groups=width)
            self.out = nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            value, gate, decay = self.into(self.norm(x)).chunk(3, -1)
            value = functional.silu(self.mix(value.transpose(1, 2))[..., :length]).transpose(1, 2)
            rate = functional.logsigmoid(decay.float()) / 16
            total = torch.cumsum(rate, 1)
            state = torch.cumsum(value.float() * torch.exp(-total), 1) * torch.exp(total)
            return x + self.out(state.to(gate.dtype) * functional.silu(gate))  # type: ignore[no-any-return]

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(1024, width), nn.Linear(width, 1024)
            self.blocks = nn.ModuleList(Block() for _ in range(8))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            return self.out(x)  # type: ignore[no-any-return]

    def loss(model: Any) -> torch.Tensor:
        ids = torch.randint(0, 1024, (batch, length), device="cuda")
        return functional.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())

    return of_model(Network(), loss, precision)
