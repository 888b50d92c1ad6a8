"""ONNX graphs of known layers become Keras models, with branches, several inputs and channels in the last place."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from fairmile.base.errors import Unsupported
from fairmile.models.convert.program import convert
from fairmile.models.convert.request import Request


@pytest.fixture(autouse=True)
def keras_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")


class Residual(nn.Module):
    """An encoder and decoder: sums, concatenations, depthwise and transposed convolutions, pooling, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1, stride=(1, 2))
        self.norm = nn.BatchNorm2d(4)
        self.deep = nn.Conv2d(4, 8, 3, padding=1, groups=4, bias=False)
        self.skip = nn.Conv2d(4, 8, 1)
        self.down, self.up = nn.MaxPool2d(2), nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)
        self.mix = nn.Conv2d(8, 3, 3, dilation=2)
        self.flat, self.head = nn.Linear(3 * 4 * 4, 5), nn.Linear(4, 5)
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.relu(self.norm(self.first(x)))
        both = torch.tanh(self.deep(first) + self.skip(first))
        wide = torch.cat([first, self.up(self.down(both))], dim=1)
        mixed = nn.functional.leaky_relu(self.mix(wide), 0.2)
        pooled = first.mean((2, 3))
        return mixed, torch.softmax(self.flat(mixed.flatten(1)) + self.head(pooled), 1)


class Inputs(nn.Module):
    """Two inputs that meet: a product, a difference, constants, and a bias that stands alone."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(12, 2)
        self.kernel, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

    def forward(self, level: torch.Tensor, wind: torch.Tensor) -> torch.Tensor:
        one, two = torch.relu(self.left(level)), torch.sigmoid(self.right(wind))
        third = (one * two) @ self.kernel + self.bias
        found: torch.Tensor = self.last(torch.cat([one - two, 1 - third * 0.5, third + one], 1).view(-1, 12))
        return found


class Line(nn.Module):
    """A chain in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 4, 5, padding=2), nn.ConvTranspose1d(4, 2, 2, stride=2)
        self.pool = nn.AvgPool1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.pool(nn.functional.elu(self.first(x)))).transpose(1, 2)
        return found


def written(module: nn.Module, folder: Path, *shapes: tuple[int, ...]) -> Request:
    """Return the conversion of a module, by way of ONNX, to Keras."""
    names = [f"in_{number}" for number in range(len(shapes))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), tuple(torch.zeros(2, *each) for each in shapes), str(folder / "module.onnx"), dynamo=False,
            opset_version=17, input_names=names, dynamic_axes={name: {0: "batch"} for name in names},
        )  # fmt: skip
    return Request("keras", str(folder / "module.onnx"), "onnx")


@pytest.mark.parametrize(
    ("make", "shapes"),
    [(Residual, [(2, 8, 16)]), (Inputs, [(3,), (2,)]), (Line, [(3, 8)])],
)
def test_branches_and_several_inputs_become_the_same_function_in_keras(
    make: Callable[[], nn.Module], shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    file, way, proof = convert(written(make(), tmp_path, *shapes), tmp_path)
    assert way == "graph of Keras layers"
    assert proof.holds
    assert proof.function_by == "Keras and PyTorch"
    assert proof.function is not None
    assert proof.function < 2e-7  # some layers of Keras compute in float32
    assert file.is_file()


class Padded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool2d(x, 3, padding=1)


class Turned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(1, 0, 2, 3)


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 4, 1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Padded, "no layer for MaxPool with padding"),
        (Turned, "no layer for Transpose that moves the batch"),
        (Grouped, "no layer for Conv with 2 groups of several channels"),
    ],
)
def test_what_keras_computes_in_another_way_is_refused_with_its_reason(
    make: Callable[[], nn.Module], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=reason):
        convert(written(make(), tmp_path, (4, 6, 6)), tmp_path)
