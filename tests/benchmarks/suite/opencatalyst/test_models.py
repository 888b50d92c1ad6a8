"""Energies and forces of the networks obey what physics demands of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairmile.benchmarks.suite.opencatalyst.benchmark import evaluate, make_model
from fairmile.benchmarks.suite.opencatalyst.models import DimeNet
from fairmile.benchmarks.suite.opencatalyst.settings import choose

Batch = dict[str, torch.Tensor]
MODELS = pytest.mark.parametrize("name", ["schnet", "dimenet"])


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(1)
    model = make_model(choose({"model": name, "width": 16, "filters": 16}, has_data=False))
    for output in getattr(model, "outputs", ()):  # DimeNet++ begins with an energy of 0
        torch.nn.init.normal_(output.last.weight)
    return model


def in_double(batch: Batch) -> Batch:
    return {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}


def test_dimenet_has_as_many_parameters_as_the_reference() -> None:
    assert sum(each.numel() for each in DimeNet().parameters()) == 1_810_182
    published = choose({"preset": "mlperf"}, has_data=True)
    assert sum(each.numel() for each in make_model(published).parameters()) == 1_810_182


@MODELS
def test_forces_are_the_slope_of_the_energy(batch: Batch, name: str) -> None:
    model, batch, step = made(name).double(), in_double(batch), 1e-4
    _, forces = evaluate(model, batch, name, trains=False)
    for atom, axis in [(0, 0), (7, 1), (12, 2)]:
        energies = []
        for way in (step, -step):
            moved = batch["positions"].clone()
            moved[atom, axis] += way
            energies.append(evaluate(model, {**batch, "positions": moved}, name, trains=False)[0].sum())
        assert float(-(energies[0] - energies[1]) / (2 * step)) == pytest.approx(float(forces[atom, axis]), rel=1e-5)


@MODELS
def test_forces_sum_to_zero_in_each_structure(batch: Batch, name: str) -> None:
    _, forces = evaluate(made(name), batch, name, trains=False)
    sums = torch.zeros(2, 3).index_add(0, batch["structure"], forces)
    assert float(sums.abs().max()) <= 1e-5 * max(float(forces.abs().sum()), 1)


@MODELS
def test_a_rotation_leaves_energies_and_turns_forces(batch: Batch, name: str) -> None:
    model = made(name)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(2)))[0]
    turned = {**batch, "positions": batch["positions"] @ turn, "shift": batch["shift"] @ turn}
    energy, forces = evaluate(model, batch, name, trains=False)
    energy_turned, forces_turned = evaluate(model, turned, name, trains=False)
    assert float(((energy - energy_turned) / energy).abs().max()) <= 1e-5
    assert float((forces @ turn - forces_turned).abs().max() / forces.abs().max()) <= 1e-5


@MODELS
def test_a_structure_has_the_same_energy_alone_and_in_a_batch(batch: Batch, name: str) -> None:
    together = evaluate(made(name), batch, name, trains=False)[0]
    first = batch["structure"] == 0
    edges = first[batch["target"]]
    kept = edges[batch["outgoing"]]
    alone = {each: batch[each][first] for each in ("numbers", "positions", "structure")} | {
        **{each: batch[each][edges] for each in ("target", "source", "shift")},
        **{each: batch[each][kept] for each in ("incoming", "outgoing")},
        "atoms": batch["atoms"][:1],
    }
    assert float(evaluate(made(name), alone, name, trains=False)[0][0]) == pytest.approx(float(together[0]), rel=1e-5)


def test_the_angular_functions_are_orthogonal() -> None:
    """Zeros and norms of the Bessel functions are right if the functions are orthonormal on the unit ball."""
    model = DimeNet(width=8)
    x = torch.linspace(0.02, 1, 2001, dtype=torch.float64)
    values = model._spherical(x, torch.ones_like(x))
    for order in (0, 3, 6):
        products = torch.einsum("xa,xb,x->ab", values[:, order], values[:, order], x**2) * float(x[1] - x[0])
        assert np.allclose(products.numpy(), np.eye(6), atol=5e-3)
