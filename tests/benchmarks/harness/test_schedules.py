from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings
from itertools import pairwise

import pytest
import torch
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.schedules import learning_rates, make_optimizer, plateau_factor
from fairmile.benchmarks.harness.settings import TrainSettings
from fairmile.benchmarks.harness.task import Metric


def rates(total: int = 100, per_epoch: int = 10, **settings: object) -> list[float]:
    found = learning_rates(TrainSettings(**settings), steps_per_epoch=per_epoch, total_steps=total)
    return [found(step) for step in range(total)]


def test_a_constant_rate_is_the_peak_from_the_first_step() -> None:
    assert rates(learning_rate=0.5) == [0.5] * 100


def test_the_warm_up_rises_in_a_line_from_its_factor_to_the_peak() -> None:
    found = rates(learning_rate=1.0, warmup_epochs=2, warmup_factor=0.2)
    assert found[0] == 0.2
    assert found[10] == pytest.approx(0.6)
    assert found[20:] == [1.0] * 80
    steps = {round(b - a, 12) for a, b in pairwise(found[:20])}
    assert steps == {0.04}


def test_factors_of_decay_are_of_the_peak_and_not_of_each_other() -> None:
    found = rates(
        learning_rate=8.0,
        schedule="steps",
        decay_epochs=(3, 6),
        decay_factors=(0.25, 0.125),
        warmup_epochs=1,
        warmup_factor=0.5,
    )
    assert (found[0], found[10], found[29], found[30], found[59], found[60]) == (4.0, 8.0, 8.0, 2.0, 2.0, 1.0)


def test_the_cosine_is_that_of_pytorch() -> None:
    found = rates(learning_rate=0.3, schedule="cosine", min_learning_rate=0.03)
    assert found == pytest.approx(_of_pytorch(0.3, 100, "cosine"), rel=1e-9)


@for_each("total", [7, 40, 100])
def test_one_cycle_is_that_of_pytorch(total: int) -> None:
    assert rates(total, learning_rate=0.3, schedule="onecycle") == pytest.approx(_of_pytorch(0.3, total, "one"))


def test_a_warm_up_says_where_the_cycle_has_its_peak() -> None:
    found = rates(learning_rate=1.0, schedule="onecycle", warmup_epochs=5)
    assert found.index(max(found)) == 49


def test_a_plateau_lowers_the_rate_when_scores_do_not_get_better() -> None:
    settings = TrainSettings(schedule="plateau", plateau_patience=2, plateau_factor=0.1, learning_rate=1.0)
    metric = Metric("mae", "lower")
    assert plateau_factor(settings, metric, [3, 2, 2, 2]) == 1.0
    assert plateau_factor(settings, metric, [3, 2, 2, 2, 2]) == 0.1
    assert plateau_factor(settings, metric, [3, 2, 2, 2, 2, 1, 1, 1, 1]) == pytest.approx(0.01)
    assert plateau_factor(settings, Metric("r2", "higher"), [1, 2, 3, 4, 5]) == 1.0
    floor = dataclasses.replace(settings, min_learning_rate=0.05)
    assert plateau_factor(floor, metric, [1.0] * 20) == 0.05


def test_other_schedules_know_no_plateau() -> None:
    assert plateau_factor(TrainSettings(), Metric("mae", "lower"), [1.0] * 50) == 1.0


@for_each(
    "settings, message",
    [
        ({"decay_epochs": (1, 2), "decay_factors": (0.5,)}, "2 epochs, but 1 factors"),
        ({"decay_epochs": (4, 2), "decay_factors": (0.5, 0.1)}, "rising numbers, found 4, 2"),
    ],
)
def test_settings_that_make_no_schedule_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rates(**settings)


@for_each("name", ["sgd", "adam", "adamax", "adamw", "nadam", "lamb"])
def test_every_optimizer_moves_what_is_trained_and_nothing_else(name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    model[0].requires_grad_(False)
    before = [each.clone() for each in model.parameters()]
    optimizer = make_optimizer(TrainSettings(optimizer=name, learning_rate=0.1), model.parameters())
    assert type(optimizer).__name__.lower() == name
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert moved == [False, False, True, True]


def _of_pytorch(peak: float, total: int, kind: str) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    scheduler = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total, eta_min=peak / 10)
        if kind == "cosine"
        else torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=total, cycle_momentum=False)
    )
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(total):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return found


STEPS = """
import sys
import torch
from fairmile.benchmarks.harness.schedules import make_optimizer
from fairmile.benchmarks.harness.settings import TrainSettings

OWN = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adamax": torch.optim.Adamax,
       "nadam": torch.optim.NAdam, "lamb": None}

def trained(make):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = make(model.parameters())
    for rate in (0.1, 0.05):
        optimizer.param_groups[0]["lr"] = rate
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    return model.weight.detach()

found = {}
for name in OWN:
    settings = TrainSettings(optimizer=name, learning_rate=0.1, weight_decay=0.01)
    found[name] = trained(lambda weights, of=settings: make_optimizer(of, weights))
assert "torch._dynamo" not in sys.modules
for name, kind in OWN.items():
    if kind is not None:
        more = {"momentum": 0.9} if name == "sgd" else {}
        given = {"lr": 0.1, "weight_decay": 0.01, **more}
        torch.testing.assert_close(found[name], trained(lambda weights: kind(weights, **given)))
"""


def test_optimizers_step_as_those_of_pytorch_and_leave_its_compiler_alone() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
