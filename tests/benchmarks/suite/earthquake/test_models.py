"""The models and their task: known part of windows, context, weights of places, losses, learning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.transfer import start_from
from fairmile.benchmarks.suite.earthquake.bins import Grid
from fairmile.benchmarks.suite.earthquake.context import CONTEXT, add_context, add_known_part
from fairmile.benchmarks.suite.earthquake.data import Prepared, load, prepare
from fairmile.benchmarks.suite.earthquake.models import (
    ForecastTask,
    Weighted,
    forecast_all,
    place_weights,
    scores_of,
)
from fairmile.benchmarks.suite.earthquake.nomenclature import OBSERVED
from fairmile.benchmarks.suite.earthquake.parameters import averaged, score_parameters, wanted
from fairmile.benchmarks.suite.earthquake.settings import Settings
from fairmile.benchmarks.suite.earthquake.windows import split

METRIC = Metric("nnse", "higher")
SMALL = Settings(synthetic_years=6, synthetic_locations=12, d_model=8, heads=2, dropout=0.0, hide_place=0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder: Path = tmp_path_factory.mktemp("earthquake")
    prepare(None, folder, SMALL)
    return load(folder)


def task_of(data: Prepared, settings: Settings = SMALL) -> ForecastTask:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return ForecastTask.of(settings, METRIC, *split(data, settings))


def tensors(task: ForecastTask, numbers: list[int]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in task.training.batch(np.array(numbers)).items()}


def test_the_known_part_is_the_energy_of_the_window_that_lies_in_the_history(data: Prepared) -> None:
    task = task_of(data)
    batch = tensors(task, [0, 7])
    known = data.restore(task.model().known_part(batch["observed"][..., 0]).numpy())
    history = np.asarray(batch["observed"][..., 0]) * (data.high[0] - data.low[0]) + data.low[0]
    energy = 10 ** (1.5 * history)
    for step, target, fortnights in ((1, 3, 25), (10, 3, 16), (1, 1, 6), (12, 2, 1)):
        expected = np.log10(energy[:, -fortnights:].sum(1)) / 1.5
        np.testing.assert_allclose(known[:, step - 1, target], np.maximum(expected, data.low[target]), rtol=2e-5)
    for step, target in ((1, 0), (7, 1), (13, 2), (26, 3)):  # nothing of these windows is known
        np.testing.assert_allclose(known[:, step - 1, target], data.low[target], rtol=1e-6)


def test_the_truth_is_never_below_the_known_part(data: Prepared) -> None:
    task = task_of(data)
    batch = tensors(task, list(range(0, len(task.training), 17)))
    known = task.model().known_part(batch["observed"][..., 0])
    assert ((batch["target"] - known) * batch["weight"] > -1e-5).all()


def test_context_looks_back_only(data: Prepared) -> None:
    at = data.observed.shape[1] // 2
    later = np.array(data.observed)
    later[:, at + 1 :] = later[:, at + 1 :][:, ::-1]
    grid = Grid()
    before = add_context(data, grid, "magnitude").observed
    after = add_context(replace(data, observed=later), grid, "magnitude").observed
    assert before.shape[2] == len(OBSERVED) + len(CONTEXT)
    assert np.array_equal(before[..., : len(OBSERVED)], data.observed, equal_nan=True)

    def correlation(place: int) -> float:  # each variable is scaled over all times, so compare its shape
        return float(np.corrcoef(before[:, : at + 1, place].ravel(), after[:, : at + 1, place].ravel())[0, 1])

    assert min(correlation(len(OBSERVED) + place) for place in range(len(CONTEXT))) > 1 - 1e-6


def test_context_does_not_change_what_was_observed_nor_where_it_is_missing(data: Prepared) -> None:
    broken = np.array(data.observed)
    broken[:, 40] = np.nan
    found = add_context(replace(data, observed=broken), Grid(), "magnitude").observed
    assert np.isnan(found[:, 40]).all()
    assert not np.isnan(np.delete(found, 40, axis=1)).any()


def test_places_count_by_the_inverse_of_their_variance(data: Prepared) -> None:
    training, _ = split(data, SMALL)
    weights = place_weights(training, balance=True)
    variance = np.var(data.target[training.locations].astype(float), axis=1)
    inside = (weights > 0.2) & (weights < 5)
    np.testing.assert_allclose((weights * variance / variance.mean(0))[inside], 1, rtol=1e-4)
    assert (place_weights(training, balance=False) == 1).all()
    numbers = np.array([0, len(training) - 1])
    samples = Weighted(training, weights)
    assert np.array_equal(samples.batch(numbers)["place_weight"], weights[[0, -1]])
    there = samples.resident(torch.device("cpu")).batch(torch.from_numpy(numbers))
    assert np.array_equal(there["place_weight"].numpy(), weights[[0, -1]])
    np.testing.assert_array_equal(there["observed"].numpy(), samples.batch(numbers)["observed"])


def test_the_weights_of_places_know_nothing_of_a_later_validation(data: Prepared) -> None:
    training, validation = split(data, replace(SMALL, split="time"))
    later = np.array(data.target)
    later[:, validation.starts[0] + validation.history :] *= 100
    changed = replace(training, data=replace(data, target=later))
    assert np.array_equal(place_weights(changed, balance=True), place_weights(training, balance=True))


def test_context_of_either_scale_is_that_of_the_same_energy(data: Prepared, tmp_path: Path) -> None:
    prepare(None, tmp_path, replace(SMALL, scale="energy"))
    other = load(tmp_path)
    added = len(OBSERVED)
    ours, theirs = add_context(data, Grid(), "magnitude").observed, add_context(other, Grid(), "energy").observed
    # The first is a mean of the scale itself; all others are of energies and counts.
    np.testing.assert_allclose(theirs[..., added + 1 :], ours[..., added + 1 :], atol=2e-2)
    level, quarter = (
        add_known_part(each, scale).observed[..., -1] for each, scale in ((data, "magnitude"), (other, "energy"))
    )
    np.testing.assert_allclose(quarter, 10 ** (0.375 * (level - 3.29)), rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["tft", "lstm"])
@pytest.mark.parametrize("residual", [True, False])
def test_a_model_learns_a_batch(data: Prepared, model: str, residual: bool) -> None:
    task = task_of(data, replace(SMALL, model=model, residual=residual))
    network = task.model()
    batch = tensors(task, list(range(0, 640, 40)))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = task.loss(network, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    assert task.predict(network, batch)["forecast"].shape == (16, 26, 4)


def test_the_loss_counts_only_what_was_observed(data: Prepared) -> None:
    task = task_of(data)
    network, batch = task.model(), tensors(task, [0, 1])
    batch["weight"][:, 5:] = 0
    before = task.loss(network, batch)
    batch["target"][:, 5:] = 1e6
    assert torch.equal(task.loss(network, batch), before)


def test_losses_are_their_equations(data: Prepared) -> None:
    plain = replace(SMALL, balance=False, focus=1.0)
    numbers = [3, 50]
    for kind in ("mse", "mae", "quantile"):
        task = task_of(data, replace(plain, loss=kind))
        network, batch = task.model().eval(), tensors(task, numbers)
        found = network(batch["static"], batch["known"], batch["observed"])
        wrong = ((batch["target"][..., None] - found) / network.error[..., None]).double()
        if kind == "quantile":
            assert found.shape == (2, 26, 4, 3)
            each = sum(
                torch.where(w >= 0, q * w, (q - 1) * w) for q, w in zip((0.1, 0.5, 0.9), wrong.unbind(-1), strict=True)
            )
        else:
            each = wrong[..., 0] ** 2 if kind == "mse" else wrong[..., 0].abs()
        weight = batch["weight"].double()
        expected = (each * weight).sum() / weight.sum()
        torch.testing.assert_close(task.loss(network, batch).double(), expected, rtol=1e-5, atol=1e-6)


def test_steps_that_are_scored_count_more(data: Prepared) -> None:
    focus = task_of(data, replace(SMALL, focus=8.0)).model().focus
    scored = {(step - 1, target) for step, target in ((1, 0), (1, 1), (1, 2), (1, 3), (7, 1), (13, 2), (26, 3))}
    assert {tuple(pair) for pair in (focus == 8).nonzero().tolist()} == scored
    assert (focus[focus != 8] == 1).all()


def test_a_hidden_place_changes_nothing_when_it_is_never_shown(data: Prepared) -> None:
    task = task_of(data, replace(SMALL, hide_place=1.0))
    network, batch = task.model().eval(), tensors(task, [0, 1])
    other = network(batch["static"] + 1, batch["known"], batch["observed"])
    torch.testing.assert_close(network(batch["static"], batch["known"], batch["observed"]), other)


def test_all_windows_are_forecast_in_their_order(data: Prepared) -> None:
    task = task_of(data, replace(SMALL, eval_batch_size=64))
    network = task.model().eval()
    found = forecast_all(task, network, task.validation, torch.device("cpu"))["forecast"]
    numbers = np.array([0, 65, len(task.validation) - 1])
    batch = {name: torch.from_numpy(np.array(value)) for name, value in task.validation.batch(numbers).items()}
    with torch.no_grad():
        alone = task.predict(network, batch)["forecast"]
    np.testing.assert_allclose(found[numbers], alone.numpy(), atol=1e-5)


def test_scores_of_both_leads_have_names_of_their_own(data: Prepared) -> None:
    _, validation = split(data, SMALL)
    truth = {lead: np.nan_to_num(validation.truth(lead)) for lead in ("overlapping", "non-overlapping")}
    truth["non-overlapping"] = np.broadcast_to(
        np.nanmean(validation.truth("non-overlapping"), axis=1, keepdims=True), truth["overlapping"].shape
    )
    found = scores_of(truth, validation, "overlapping")
    assert found["nnse"] == found["nnse_52wk"] == found["summed_14wk"] == 1
    assert [found[f"ahead_{weeks}wk"] for weeks in (14, 26, 52)] == pytest.approx([0.5] * 3, abs=1e-6)
    assert found["nnse_all"] == pytest.approx((4 + 3 * 0.5) / 7, abs=1e-6)
    assert scores_of(truth, validation, "non-overlapping")["nnse"] == pytest.approx(0.5, abs=1e-6)


def test_missing_observations_count_as_hits_only_where_the_published_way_is_asked_for(data: Prepared) -> None:
    target = np.array(data.target)
    target[:, 60:70] = np.nan
    task = task_of(replace(data, target=target))
    outputs = {"forecast": np.full((len(task.validation), 26, 4), 0.3, np.float32)}
    published = replace(task, settings=replace(SMALL, missing="published"))
    assert published.scores(outputs)["nnse"] != task.scores(outputs)["nnse"]
    whole = task_of(data)
    published = replace(whole, settings=replace(SMALL, missing="published"))
    assert published.scores(outputs) == whole.scores(outputs)


def test_a_lead_beyond_the_horizon_is_refused(data: Prepared) -> None:
    settings = replace(SMALL, horizon=4)
    _, validation = split(data, settings)
    with pytest.raises(UsageError, match="needs a horizon of 26"):
        scores_of({"overlapping": validation.last()}, validation, "non-overlapping")


def test_the_hybrid_forecasts_from_its_neighbours_too(data: Prepared) -> None:
    task = task_of(data, replace(SMALL, model="hybrid", neighbours=3))
    model, batch = task.model().eval(), tensors(task, [0, 40, 90])
    forecast = task.predict(model, batch)["forecast"]
    assert forecast.shape == (3, 26, 4)
    other = {**batch, "around": batch["around"].flip(1)}
    assert not torch.allclose(task.predict(model, other)["forecast"], forecast)
    # Which of them comes first is not told: only where each lies.
    turned = {**batch, "around": batch["around"].flip(2), "offset": batch["offset"].flip(1)}
    torch.testing.assert_close(task.predict(model, turned)["forecast"], forecast)
    before = float(task.loss(model, batch).detach())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(10):
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.8 * before


def test_an_average_of_steps_is_that_of_their_energies(data: Prepared) -> None:
    _, validation = split(data, SMALL)
    truth = validation.every_step()
    mean = averaged(validation, truth, 7, SMALL)
    sums = data.restore(validation.truth("non-overlapping"))[..., 1]
    np.testing.assert_allclose(mean + np.log10(7) / 1.5, sums, atol=1e-4)
    rows = score_parameters(validation, truth.reshape(len(validation), 26, 4), wanted(SMALL), SMALL)
    assert {row.average for row in rows} == {1.0}
    past = {row.prediction.name: row.persistence_average for row in rows}
    assert past["2wk+7AVG"] == pytest.approx(past["3 Months Ahead"], abs=1e-5)


def test_ranges_of_a_region_do_not_travel_with_the_weights(data: Prepared, tmp_path: Path) -> None:
    task = task_of(data, replace(SMALL, model="lstm"))
    model = task.model()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    elsewhere = replace(data, low=data.low - 1, high=data.high + 1)
    other = task_of(elsewhere, replace(SMALL, model="lstm")).model()
    ranges = {name: getattr(other.known_part, name).clone() for name in ("low", "width")}
    start_from(tmp_path / "weights.pt", other)
    assert torch.equal(other.network.output[1].weight, model.network.output[1].weight)
    for name, values in ranges.items():
        assert torch.equal(getattr(other.known_part, name), values)
        assert not torch.equal(values, getattr(model.known_part, name))
