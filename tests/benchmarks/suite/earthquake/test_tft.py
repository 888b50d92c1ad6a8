"""The temporal fusion transformer: equations, shapes, what it may see, what it counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.earthquake.tft import (
    GatedResidual,
    GroupedLinear,
    InterpretableAttention,
    Shape,
    TemporalFusionTransformer,
    VariableSelection,
)

SHAPE = Shape(static=2, known=3, observed=4, history=5, horizon=6, outputs=7)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def inputs(batch: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 2), torch.randn(batch, 11, 3), torch.randn(batch, 5, 4)


def model(dropout: float = 0.0) -> TemporalFusionTransformer:
    return TemporalFusionTransformer(SHAPE, 8, 2, dropout).eval()


def test_a_grouped_layer_equals_one_layer_for_each_variable() -> None:
    grouped = GroupedLinear(3, 4, 5)
    values = torch.randn(3, 6, 4)
    for variable in range(3):
        alone = nn.Linear(4, 5)
        alone.weight.data = grouped.weight.data[variable].t()
        alone.bias.data = grouped.bias.data[variable, 0]
        torch.testing.assert_close(grouped(values)[variable], alone(values[variable]))


def test_a_gated_residual_network_is_its_equation() -> None:
    network = GatedResidual(4, 0.0, context=True)
    a, c = torch.randn(5, 4), torch.randn(5, 4)
    assert network.context is not None
    hidden = a @ network.first.weight.t() + network.first.bias + c @ network.context.weight.t()
    eta = torch.where(hidden > 0, hidden, torch.exp(hidden) - 1) @ network.second.weight.t() + network.second.bias
    both = eta @ network.gate.gate.layer.weight.t() + network.gate.gate.layer.bias
    total = a + both[:, :4] * torch.sigmoid(both[:, 4:])
    expected = (total - total.mean(1, keepdim=True)) / torch.sqrt(total.var(1, unbiased=False, keepdim=True) + 1e-5)
    torch.testing.assert_close(network(a, c), expected, atol=1e-5, rtol=1e-5)


def test_grouped_residual_networks_equal_networks_of_their_own() -> None:
    grouped, values = GatedResidual(4, 0.0, variables=3), torch.randn(3, 6, 4)
    names = [("first",), ("second",), ("gate", "gate", "layer")]
    for variable in range(3):
        alone = GatedResidual(4, 0.0)
        for path in names:
            mine, theirs = grouped, alone
            for name in path:
                mine, theirs = getattr(mine, name), getattr(theirs, name)
            theirs.weight.data, theirs.bias.data = mine.weight.data[variable].t(), mine.bias.data[variable, 0]
        torch.testing.assert_close(grouped(values)[variable], alone(values[variable]))


def test_variable_selection_weighs_each_variable_and_the_weights_sum_to_one() -> None:
    selection = VariableSelection(4, 8, 0.0, context=True)
    found, weights = selection(torch.randn(3, 5, 4), torch.randn(3, 8))
    assert found.shape == (3, 5, 8)
    assert weights.shape == (3, 5, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 5))


def test_selection_at_a_step_depends_on_that_step_alone() -> None:
    selection, context = VariableSelection(4, 8, 0.0, context=True), torch.randn(2, 8)
    values = torch.randn(2, 5, 4)
    changed = values.clone()
    changed[:, 3] += 1
    before, after = selection(values, context)[0], selection(changed, context)[0]
    same = [step for step in range(5) if torch.equal(before[:, step], after[:, step])]
    assert same == [0, 1, 2, 4]


def test_a_forecast_has_the_shape_that_was_asked_for() -> None:
    assert model()(*inputs()).shape == (3, 6, 7)


def test_attention_sums_to_one_and_sees_nothing_later() -> None:
    seen = model().explain(*inputs())
    assert seen.attention.shape == (3, 6, 11)
    torch.testing.assert_close(seen.attention.sum(-1), torch.ones(3, 6))
    for step in range(6):
        assert (seen.attention[:, step, : 6 + step] > 0).all()
        assert (seen.attention[:, step, 6 + step :] == 0).all()


def test_a_step_of_the_horizon_does_not_depend_on_what_is_known_of_later_ones() -> None:
    network, (static, known, observed) = model(), inputs()
    later = known.clone()
    later[:, 5 + 3 :] += 1
    before, after = network(static, known, observed), network(static, later, observed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


def test_every_input_reaches_the_forecast_and_every_weight_learns() -> None:
    network, given = model(), [each.requires_grad_() for each in inputs()]
    network(*given).square().sum().backward()
    for each in given:
        assert (each.grad.abs().sum(0) > 0).all()
    silent = [name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()]
    # A shift of all keys changes no attention.
    assert silent in ([], ["attention.key.bias"]), silent


def test_heads_share_one_value_projection() -> None:
    attention = InterpretableAttention(8, 4, 0.0)
    assert attention.value.weight.shape == (2, 8)
    output, weights = attention(torch.randn(2, 3, 8), torch.randn(2, 5, 8))
    assert output.shape == (2, 3, 8)
    assert weights.shape == (2, 3, 5)


def test_a_width_that_the_heads_cannot_share_is_refused() -> None:
    with pytest.raises(UsageError, match="10 cannot be divided among 4 heads"):
        InterpretableAttention(10, 4, 0.0)


def test_the_number_of_weights_is_that_of_the_published_parts() -> None:
    d = 8

    def grn(inputs: int, outputs: int, context: bool = False) -> int:
        dense = inputs * d + d + d * outputs + outputs + (d * d if context else 0)
        skip = inputs * outputs + outputs if inputs != outputs else 0
        return dense + skip + 2 * outputs * (outputs + 1) + 2 * outputs

    def selection(variables: int, context: bool) -> int:
        return variables * 2 * d + variables * grn(d, d) + grn(variables * d, variables, context)

    skip_gate = 2 * d * (d + 1) + 2 * d
    lstm = 2 * (4 * d * (2 * d) + 8 * d)
    attention = 2 * (d * d + d) + (d * (d // 2) + d // 2) + (d // 2) * d
    expected = selection(2, False) + selection(7, True) + selection(3, True) + 4 * grn(d, d) + 2 * lstm
    expected += 3 * skip_gate + grn(d, d, True) + grn(d, d) + attention + d * 7 + 7
    assert sum(weight.numel() for weight in model().parameters()) == expected
