from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from fairmile.benchmarks.harness.lamb import Lamb

Array = np.ndarray[Any, Any]


def moved(weights: torch.Tensor, gradient: torch.Tensor, **given: float) -> torch.Tensor:
    """Return how far a first step moves a layer."""
    layer = torch.nn.Parameter(weights.clone())
    layer.grad = gradient
    Lamb([layer], **{"lr": 0.1, **given}).step()
    return layer.detach() - weights


def test_a_first_step_is_as_long_as_the_weights_whatever_the_gradient() -> None:
    weights, gradient = torch.tensor([3.0, 4.0]), torch.tensor([0.2, -0.7])
    for scale in (1.0, 1000.0):
        step = moved(weights, scale * gradient)
        assert step.norm() == pytest.approx(0.1 * 5, rel=1e-5)
        assert torch.equal(step.sign(), -gradient.sign())


def test_weight_decay_turns_the_step_and_does_not_lengthen_it() -> None:
    weights, gradient = torch.tensor([3.0, 4.0]), torch.tensor([1.0, -1.0])
    step = moved(weights, gradient, weight_decay=0.5)
    move = torch.tensor([1.0 + 0.5 * 3, -1.0 + 0.5 * 4])
    assert torch.allclose(step, -0.1 * 5 * move / move.norm(), atol=1e-5)


def test_a_layer_of_zeros_takes_the_step_of_adam() -> None:
    assert torch.allclose(moved(torch.zeros(3), torch.tensor([1.0, -2.0, 0.5])), torch.tensor([-0.1, 0.1, -0.1]))


def test_a_step_worked_by_hand() -> None:
    """The second step of weights (3, 4) with gradients (0.6, -0.8) and (1, 0.2), in the words of the paper:

    m = 0.9 (0.06, -0.08) + 0.1 (1, 0.2) = (0.154, -0.052), divided by 1 - 0.9^2
    v = 0.999 (0.00036, 0.00064) + 0.001 (1, 0.04) = (0.00135964, 0.00067936), divided by 1 - 0.999^2
    """
    layer = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    optimizer = Lamb([layer], lr=0.01, weight_decay=0.1, eps=1e-6)
    layer.grad = torch.tensor([0.6, -0.8], dtype=torch.float64)
    optimizer.step()
    # r = (1, -1) but for eps; u = r + 0.1 w = (1.3, -0.6); 5 / |u| = 3.492151478847891
    assert layer.tolist() == pytest.approx([3 - 0.01 * 3.4921515 * 1.3, 4 + 0.01 * 3.4921515 * 0.6], abs=2e-7)
    first = layer.tolist()
    layer.grad = torch.tensor([1.0, 0.2], dtype=torch.float64)
    optimizer.step()
    r = 0.8105263157894737 / (0.8247181822 + 1e-6), -0.2736842105263158 / (0.5829664870 + 1e-6)
    u = r[0] + 0.1 * first[0], r[1] + 0.1 * first[1]
    ratio = math.hypot(*first) / math.hypot(*u)
    assert layer.tolist() == pytest.approx([first[0] - 0.01 * ratio * u[0], first[1] - 0.01 * ratio * u[1]], abs=1e-7)


def written_out(
    weights: Array, gradients: list[Array], *, lr: float, decay: float, eps: float, betas: tuple[float, float]
) -> Array:
    """Return the weights of one layer after steps as algorithm 2 of arXiv:1904.00962 has them, without phi's bounds."""
    (one, two), w = betas, weights.copy()
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = one * m + (1 - one) * g, two * v + (1 - two) * g**2
        r = (m / (1 - one**t)) / (np.sqrt(v / (1 - two**t)) + eps)
        u = r + decay * w
        size, length = np.linalg.norm(w), np.linalg.norm(u)
        w = w - lr * (size / length if size > 0 and length > 0 else 1.0) * u
    return w


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.7)])
def test_steps_are_those_of_the_paper_layer_by_layer(decay: float, betas: tuple[float, float]) -> None:
    """Layers of very different size, one of zeros, one whose gradient is zero: the ratio has no bounds."""
    draw = np.random.default_rng(3)
    starts = [1e-4 * draw.normal(size=(4, 3)), 1e3 * draw.normal(size=7), np.zeros(5), draw.normal(size=(2, 2))]
    slopes = [[draw.normal(size=each.shape) * 10 ** (3 - step) for step in range(5)] for each in starts]
    slopes[3] = [np.zeros_like(starts[3])] * 5
    layers = [torch.nn.Parameter(torch.from_numpy(each.copy())) for each in starts]
    optimizer = Lamb(layers, lr=0.02, weight_decay=decay, betas=betas)
    for step in range(5):
        for layer, slope in zip(layers, slopes, strict=True):
            layer.grad = torch.from_numpy(slope[step].copy())
        optimizer.step()
    given = {"lr": 0.02, "decay": decay, "eps": 1e-6, "betas": betas}
    for layer, start, slope in zip(layers, starts, slopes, strict=True):
        wanted = written_out(start, slope, **given)
        assert np.allclose(layer.detach().numpy(), wanted, rtol=1e-12, atol=0)
    assert torch.equal(layers[3].detach(), torch.from_numpy(starts[3])) == (decay == 0)


def test_it_learns_and_goes_on_from_its_state() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 4)

    def train(model: torch.nn.Module, optimizer: Lamb, steps: int) -> float:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    model = torch.nn.Linear(4, 1)
    optimizer = Lamb(model.parameters(), lr=0.02)
    first = train(model, optimizer, 20)
    again = torch.nn.Linear(4, 1)
    again.load_state_dict(model.state_dict())
    resumed = Lamb(again.parameters(), lr=0.02)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert train(model, optimizer, 200) < 0.1 * first
    train(again, resumed, 200)
    assert torch.equal(model.weight, again.weight)
