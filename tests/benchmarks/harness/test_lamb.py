from __future__ import annotations

import copy

import pytest
import torch

from fairmile.benchmarks.harness.lamb import Lamb


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
