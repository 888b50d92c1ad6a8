from __future__ import annotations

import pytest
import torch
from cases import for_each
from torch.nn import functional

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.cosmoflow.models import CosmoFlow, flops, training_flops


def count(model: torch.nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def as_written(model: CosmoFlow, counts: torch.Tensor) -> torch.Tensor:
    """The network in the order in which the reference is written down."""
    x = torch.log(counts.float() + 1)
    for block in model.blocks:
        y = functional.conv3d(x, block.convolution.weight, block.bias, padding="same")
        x = functional.max_pool3d(torch.where(y > 0, y, 0.3 * y), 2)
    x = x.flatten(1)
    for layer in model.dense:
        x = functional.leaky_relu(functional.linear(x, layer.weight, layer.bias), 0.3)
    return 1.2 * torch.tanh(model.last(x))


def test_the_network_of_mlperf_has_as_many_parameters_as_published():
    with torch.device("meta"):
        assert count(CosmoFlow(128)) == 8_907_556


def test_the_small_network_has_about_60_thousand():
    assert count(CosmoFlow(16, width=8, depth=3)) == 59_612


def test_pooling_before_bias_and_leaky_relu_gives_the_same_numbers_and_gradients():
    torch.manual_seed(0)
    model = CosmoFlow(16, width=4, depth=2, dropout=0.0)
    with torch.no_grad():
        for block in model.blocks:
            block.bias.normal_()
    counts = torch.randint(0, 30, (3, 4, 16, 16, 16), dtype=torch.int16)
    ours, theirs = model(counts), as_written(model, counts)
    assert torch.allclose(ours, theirs, atol=1e-6)
    mine = torch.autograd.grad(ours.square().sum(), list(model.parameters()))
    plain = torch.autograd.grad(theirs.square().sum(), list(model.parameters()))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(mine, plain, strict=True))
    assert all(each.abs().sum() > 0 for each in mine)


def test_channels_last_changes_nothing_but_the_layout():
    torch.manual_seed(0)
    model = CosmoFlow(8, width=4, depth=2, dropout=0.0)
    counts = torch.randint(0, 30, (2, 8, 8, 8, 4), dtype=torch.int16).permute(0, 4, 1, 2, 3)
    assert torch.allclose(model(counts), model(counts.contiguous()), atol=1e-6)


def test_weights_start_as_glorot_and_biases_as_zero():
    torch.manual_seed(0)
    model = CosmoFlow(32, width=16, depth=3)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any()
        else:
            field = weight[0, 0].numel()
            bound = (6 / ((weight.shape[0] + weight.shape[1]) * field)) ** 0.5
            assert bound * 0.95 < weight.abs().max() <= bound


def test_outputs_stay_within_1_2_and_dropout_acts_only_while_training():
    torch.manual_seed(0)
    model = CosmoFlow(8, width=4, depth=2, dropout=0.5)
    counts = torch.randint(0, 3000, (2, 4, 8, 8, 8), dtype=torch.int16)
    model.train()
    assert not torch.equal(model(counts), model(counts))
    model.eval()
    found = model(counts)
    assert torch.equal(found, model(counts))
    assert found.shape == (2, 4)
    assert found.abs().max() <= 1.2


def test_without_the_logarithm_counts_are_divided_by_their_mean():
    model = CosmoFlow(8, width=4, depth=2, dropout=0.0, is_log=False)
    counts = torch.randint(1, 9, (2, 4, 8, 8, 8))
    assert torch.allclose(model(counts), model(counts * 5), atol=1e-6)


@for_each("size, depth", [(16, 5), (12, 3), (16, 0)])
def test_more_layers_than_the_cube_allows_are_refused(size, depth):
    with pytest.raises(UsageError, match=f"edge of {size}"):
        CosmoFlow(size, depth=depth)


def test_operations_are_those_that_pytorch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    model = CosmoFlow(16, width=8, depth=3)
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(1, 4, 16, 16, 16)).sum().backward()
    given = {"width": 8, "depth": 3}
    assert training_flops(16, **given) == pytest.approx(counter.get_total_flops(), rel=1e-3)
    assert sum(each for _, each, _ in flops(128)) == pytest.approx(68.9e9, rel=0.01)
