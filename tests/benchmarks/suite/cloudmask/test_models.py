"""The U-Net is the published one, and masks of whole scenes have no seams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.cloudmask.models import UNet, check_edge
from fairmile.benchmarks.suite.cloudmask.tiles import mask_scene


def test_the_reference_has_as_many_parameters_as_published() -> None:
    assert sum(each.numel() for each in UNet().parameters()) == 1_948_609


def test_normalisation_replaces_the_biases() -> None:
    plain, normalised = UNet(width=4), UNet(width=4, is_normalised=True)
    channels = 2 * (4 + 8 + 16 + 32 + 16 + 8 + 4)
    assert sum(each.numel() for each in normalised.parameters()) == (
        sum(each.numel() for each in plain.parameters()) - channels + 2 * channels
    )
    assert normalised(torch.zeros(2, 9, 16, 24)).shape == (2, 16, 24)


def test_a_patch_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a multiple of 8 for depth 3, found 100"):
        check_edge(100, 3)


def test_a_scene_is_masked_as_one_whatever_its_size() -> None:
    class Bright(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, 0] - 0.5

    x = np.random.default_rng(1).random((37, 53, 9)).astype(np.float16)
    mask = mask_scene(Bright(), x, 16, 4, torch.device("cpu"))
    assert np.array_equal(mask, x[..., 0] > 0.5)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_it_exports_to_onnx_and_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, x = UNet(width=4, is_normalised=True).eval(), torch.randn(1, 9, 16, 16)
    torch.onnx.export(model, (x,), tmp_path / "unet.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "unet.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert logits == pytest.approx(model(x).detach().numpy(), rel=1e-5, abs=1e-5)
