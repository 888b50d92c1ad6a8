"""DeepLabV3+ is the published network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.deepcam.models import DeepLab, check_grid


def test_the_reference_has_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        model = DeepLab()
        assert model(torch.zeros(1, 16, 64, 96)).shape == (1, 3, 64, 96)
    assert sum(each.numel() for each in model.parameters()) == 56_454_720


def test_the_encoder_leaves_a_sixteenth_and_a_quarter() -> None:
    far, near = DeepLab(shrink=32, middle=1).encoder(torch.zeros(2, 16, 48, 64))
    assert far.shape[2:] == (3, 4)
    assert near.shape[2:] == (12, 16)


def test_a_grid_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(UsageError, match="a grid with edges that 16 divides, found 96 x 100"):
        check_grid(96, 100)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_it_exports_to_onnx_and_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, x = DeepLab(shrink=32, middle=1).eval(), torch.randn(1, 16, 32, 48)
    torch.onnx.export(model, (x,), tmp_path / "deeplab.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "deeplab.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert logits == pytest.approx(model(x).detach().numpy(), rel=1e-4, abs=1e-5)
