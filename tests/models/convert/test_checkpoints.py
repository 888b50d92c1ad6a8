"""Weights of PyTorch as a checkpoint of TensorFlow and back, by rule or by a map of names and layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fairmile.base.errors import UsageError
from fairmile.models.convert.checkpoints import Mapped, from_tensorflow, to_tensorflow
from fairmile.models.convert.program import convert
from fairmile.models.convert.request import Request
from fairmile.models.formats.tensorflow import read_values


def test_layers_go_to_tensorflow_and_back_bit_by_bit(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 5), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    file, way, proof = convert(Request("tf-checkpoint", str(tmp_path / "net.pt"), "pytorch-state-dict"), tmp_path)
    assert (file.name, way, proof.largest) == ("model.index", "variables by name and layout", 0.0)
    shapes = {name: each.shape for name, each in read_values(file).items()}
    assert shapes["0/kernel"] == (5, 5, 3, 4)
    assert shapes["3/kernel"] == (4, 2)
    assert {"1/gamma", "1/beta", "1/moving_mean", "1/moving_variance", "3/bias"} < shapes.keys()
    back, _, _ = convert(Request("pytorch", str(file), "tf-checkpoint"), tmp_path)
    state = torch.load(back, weights_only=True)
    for name, value in net.state_dict().items():
        assert name == "1.num_batches_tracked" or torch.equal(state[name], value), name


def test_a_map_names_single_weights_and_their_layout(tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text("fc.weight: dense/kernel\nemb.weight: {name: table, layout: [0, 1]}\n")
    mapped = Mapped.read(str(tmp_path / "map.yaml"))
    weights = {"fc.weight": np.arange(6.0).reshape(2, 3), "emb.weight": np.ones((7, 2))}
    variables = to_tensorflow(weights, mapped)
    assert {name: each.shape for name, each in variables.items()} == {"dense/kernel": (3, 2), "table": (7, 2)}
    again = from_tensorflow(variables, mapped)
    assert all(np.array_equal(again[name], each) for name, each in weights.items())
    with pytest.raises(UsageError, match=r"the map names emb\.weight, which is not in the source"):
        to_tensorflow({"fc.weight": weights["fc.weight"]}, mapped)


def test_a_wrong_map_is_refused_by_line(tmp_path: Path) -> None:
    for text, message in (
        ("- a\n", "expected TensorFlow's names"),
        ("a: {name: b, layout: [0, 2]}\n", "a: expected a name, or name and layout"),
    ):
        (tmp_path / "map.yaml").write_text(text)
        with pytest.raises(UsageError, match=message):
            Mapped.read(str(tmp_path / "map.yaml"))
    with pytest.raises(UsageError, match="a has 1 axes, and its layout 2"):
        to_tensorflow(
            {"a": np.ones(3)},
            Mapped(
                {
                    "a": (  # type: ignore[dict-item]
                        "b",
                        (1, 0),
                    )
                }
            ),
        )
