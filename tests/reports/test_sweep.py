"""Sweeps: which parameters vary, how each point did, which is best beyond noise, and the page of it all."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from run_making import CREATED, make_run, metric_document

from fairmile.base.errors import NotFound, UsageError
from fairmile.reports.page import report
from fairmile.reports.sweep import axes, best, effects, heat_map, is_log, judge_points, levels, own_metric, survey
from fairmile.reports.sweep_page import is_sweep, sweep_blocks
from fairmile.runs.record.run import Run


def point(tmp_path: Path, at: int, params: Mapping[str, Any], loss: Any = None, **said: Any) -> Run:
    metrics = {} if loss is None else {"loss": metric_document(loss, better="lower")}
    facts = {"name": "train", "group": "night", "created": CREATED + at, "metrics": metrics, "params": params}
    return make_run(tmp_path, f"night-{at}", **(facts | said))


def grid(tmp_path: Path, *, repeats: int = 1, noise: float = 0.0) -> list[Run]:
    """Return runs over lr and depth whose loss is lr + depth/10, and a little noise."""
    random_numbers = random.Random(1)
    runs = []
    for lr in (0.1, 0.2, 0.3):
        for depth in (1, 2):
            for _ in range(repeats):
                loss = lr + depth / 10 + random_numbers.gauss(0, noise)
                runs.append(point(tmp_path, len(runs), {"lr": lr, "depth": depth, "epochs": 5}, loss))
    return runs


def test_only_parameters_that_vary_are_axes_and_numbers_are_in_order(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"lr": lr, "opt": opt, "epochs": 5}) for at, (lr, opt) in
            enumerate([(0.3, "sgd"), (0.1, "adam"), (0.2, "sgd")])]  # fmt: skip
    assert [(axis.name, axis.values) for axis in axes(runs)] == [("lr", (0.1, 0.2, 0.3)), ("opt", ("sgd", "adam"))]


def test_texts_that_are_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"epochs": text}) for at, text in enumerate(["30", "1", "200"])]
    (axis,) = axes(runs)
    assert axis.values == ("1", "30", "200")
    assert axis.numbers == (1.0, 30.0, 200.0)


def test_a_truth_value_is_no_number(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"x": value}) for at, value in enumerate([1, True, 1.0, "1"])]
    (axis,) = axes(runs)
    assert len(axis.values) == 3
    assert axis.numbers is None


def test_a_parameter_that_only_some_runs_have_varies(tmp_path: Path) -> None:
    runs = [point(tmp_path, 0, {"momentum": 0.9}), point(tmp_path, 1, {})]
    (axis,) = axes(runs)
    assert (axis.name, axis.absent) == ("momentum", 1)


@for_each(
    "numbers, logarithmic",
    [
        ([1e-4, 1e-3, 1e-2], True),
        ([16, 32, 64], True),
        ([1, 2, 3], False),
        ([0, 1, 1000], False),
        ([0.005, 0.4, 0.6, 0.99], False),  # spans two decades, but evenly
        ([-1, 10, 100], False),
        ([1, 1000], False),
    ],
)
def test_a_scale_is_logarithmic_only_where_numbers_grow_so(numbers: list[float], logarithmic: bool) -> None:
    assert is_log(numbers) is logarithmic


def test_many_numbers_become_ranges_that_hold_both_ends(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"x": at}) for at in range(41)]
    found = levels(axes(runs)[0], ranges=4)
    assert found.labels == ("0 … 10", "10 … 20", "20 … 30", "30 … 40")
    assert [found.of(run) for run in (runs[0], runs[10], runs[40])] == [0, 1, 3]


def test_a_point_holds_its_repeats_and_the_reason_of_its_failure(tmp_path: Path) -> None:
    runs = [
        point(tmp_path, 0, {"lr": 1}, 1.0),
        point(tmp_path, 1, {"lr": 1}, 3.0),
        point(tmp_path, 2, {"lr": 2}, state="failed", result={"reason": "out of memory"}),
    ]
    first, second = survey(runs, "loss").points
    assert (first.estimates["loss"].mean, first.estimates["loss"].count) == (2.0, 2)
    assert (second.endings, second.reason, second.estimates) == ({"failed": 1}, "out of memory", {})


@pytest.mark.parametrize(
    ("logged", "ranks"),
    [
        (["loss", "accuracy"], "loss"),
        (["train_loss", "val_loss"], "val_loss"),
        (["loss", "values", "test/accuracy"], "test/accuracy"),
        (["value_loss", "Validation-Loss"], "Validation-Loss"),
        (["colour"], ""),
        ([], ""),
    ],
)
def test_a_metric_of_the_validation_ranks_before_one_of_the_training(
    tmp_path: Path, logged: list[str], ranks: str
) -> None:
    run = point(tmp_path, 0, {"lr": 1}, metrics=dict.fromkeys(logged, 1.0))
    assert own_metric([run]) == ranks


def test_the_best_of_single_runs_says_that_noise_is_not_known(tmp_path: Path) -> None:
    found = best(grid(tmp_path), "loss")
    assert found.first.runs == ("night-0",)
    assert not found.noise_known
    assert found.text == ("Best by loss: lr=0.1, depth=1 with 0.2. Noise is unknown without repeats.")


def test_seeds_of_a_sweep_are_repeats_and_no_axis(tmp_path: Path) -> None:
    settings = [(lr, seed) for lr in (0.1, 0.5) for seed in (1, 2, 3)]
    runs = [point(tmp_path, at, {"lr": lr, "seed": seed}, lr + seed / 100) for at, (lr, seed) in enumerate(settings)]
    assert [axis.name for axis in axes(runs)] == ["lr"]
    assert best(runs, "loss").text == "Best by loss: lr=0.1 with 0.12 (0.11 to 0.13), 3 runs."


def test_points_within_the_noise_of_all_repeats_are_level_with_the_best(tmp_path: Path) -> None:
    losses = {1: [0.50, 0.54], 2: [0.51, 0.55], 3: [0.90, 0.94], 4: [0.70, 0.74]}
    runs = [
        point(tmp_path, lr * 10 + at, {"lr": lr}, loss) for lr, each in losses.items() for at, loss in enumerate(each)
    ]
    found = best(runs, "loss")
    assert found.names[found.first.runs[0]] == "lr=1"
    assert [found.names[each.runs[0]] for each in found.level] == ["lr=2"]
    assert found.board.noise == pytest.approx(0.04 / 2**0.5)
    assert "1 other is within noise: lr=2." in found.text


def test_few_points_are_judged_among_all_that_is_compared_so_that_terminal_and_page_agree(tmp_path: Path) -> None:
    losses, runs = {1: [0.50, 0.54], 2: [0.62, 0.66], 3: [0.90, 0.94]}, []
    for lr, values in losses.items():
        for at, loss in enumerate(values):
            noise = {f"m{k}": metric_document(k + lr * 0.1 + at * 3.0, better="lower") for k in range(8)}
            metrics = {"loss": metric_document(loss, better="lower"), **noise}
            runs.append(point(tmp_path, lr * 10 + at, {"lr": lr}, metrics=metrics))
    alone, (first, comparison) = best(runs, "loss"), judge_points(survey(runs, "loss"))
    assert first is not None and comparison is not None
    assert (len(alone.level), len(first.level)) == (0, 1)
    assert first.text in "".join(getattr(each, "text", "") for each in sweep_blocks(runs, metric="loss").blocks)


def test_points_of_the_same_value_are_as_good_without_repeats(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"lr": at}, loss) for at, loss in enumerate([0.5, 0.5, 0.6])]
    assert "1 other is exactly as good: lr=1." in best(runs, "loss").text


def test_the_direction_can_be_told_where_the_runs_do_not(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"lr": at}, metrics={"y": float(at)}) for at in range(3)]
    with pytest.raises(UsageError, match="its better direction is unknown"):
        best(runs, "y")
    assert best(runs, "y", better="higher").first.runs == ("night-2",)


def test_a_heat_map_is_the_mean_over_the_other_parameters_and_shows_what_is_missing(tmp_path: Path) -> None:
    runs = [
        point(tmp_path, 0, {"a": 1, "b": 1, "c": 1}, 1.0),
        point(tmp_path, 1, {"a": 1, "b": 1, "c": 2}, 3.0),
        point(tmp_path, 2, {"a": 2, "b": 1, "c": 1}, state="failed"),
        point(tmp_path, 3, {"a": 1, "b": 2, "c": 1}, 5.0),
    ]
    found = heat_map(survey(runs, "loss"), "a", "b")
    assert found.means == ((2.0, None), (5.0, None))
    assert found.counts == ((2, 0), (1, 0))
    assert found.endings[0][1] == "failed"
    assert found.endings[1][1] == ""


def test_a_heat_map_over_what_does_not_vary_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no parameter 'dept' varies") as caught:
        heat_map(survey(grid(tmp_path), "loss"), "lr", "dept")
    assert "depth" in str(caught.value.hint)


def test_the_axis_that_explains_most_comes_first(tmp_path: Path) -> None:
    found = effects(survey(grid(tmp_path, repeats=2, noise=0.001), "loss"))
    assert [each.axis.name for each in found] == ["lr", "depth"]
    assert found[0].share is not None and found[1].share is not None
    assert 0.6 < found[0].share < 0.8  # 2/300 of variance by lr, 1/400 by depth: 8/11
    assert [each.mean for each in found[0].estimates] == pytest.approx([0.25, 0.35, 0.45], abs=0.005)


def test_what_is_only_noise_explains_next_to_nothing(tmp_path: Path) -> None:
    random_numbers = random.Random(3)
    runs = [point(tmp_path, at, {"x": at % 5, "y": at % 2}, random_numbers.gauss(1, 1)) for at in range(100)]
    assert all((each.share or 0) < 0.1 for each in effects(survey(runs, "loss")))


def test_an_unknown_metric_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="none of these runs has a metric 'los'"):
        survey(grid(tmp_path), "los")


def test_a_group_that_varies_is_a_sweep_and_repeats_or_two_groups_are_not(tmp_path: Path) -> None:
    assert is_sweep(grid(tmp_path / "a"))
    assert not is_sweep([point(tmp_path / "b", at, {"lr": 1}) for at in range(3)])
    assert not is_sweep([point(tmp_path / "c", at, {"lr": at}, group=f"g{at}") for at in range(2)])
    assert not is_sweep([point(tmp_path / "d", at, {"lr": at}, group="") for at in range(2)])


def test_the_page_of_a_sweep_shows_results_influence_and_figures(tmp_path: Path) -> None:
    runs = [
        *grid(tmp_path, repeats=2, noise=0.01),
        point(tmp_path, 99, {"lr": 9.0, "depth": 1}, state="failed", result={"reason": "out of memory"}),
    ]
    made = report(runs)
    text = made.markdown("figures")
    for words in (
        "# train · night (12 done, 1 failed)",
        "7 points",
        "> 1 of 13 runs failed: 1 × out of memory.",
        "## All points",
        "★ best | 0.1 | 1 |",
        "failed: out of memory",
        "## Parameter effects on loss",
        "Noise, from the repeats of all points together",
        "## Leaderboard by loss",
        "fairmile rerun night-99",
    ):
        assert words in text, words
    assert text.index("![") < text.index("## Leaderboard by loss") < text.index("## All points")
    names = [picture.name for picture in made.pictures]
    assert names[:3] == ["effects-loss", "heat-map-loss-depth-lr", "parallel-loss"]
    assert made.to_dict()["sweep"]["axes"]["depth"] == [1, 2]
    assert made.to_dict()["sweep"]["best"]["runs"] == ["night-0", "night-1"]
    json.dumps(made.to_dict(), allow_nan=False)


def test_the_heat_map_is_drawn_over_the_parameters_that_were_asked_for(tmp_path: Path) -> None:
    made = report(grid(tmp_path), over=["lr", "depth"])
    assert [each.name for each in made.pictures if each.name.startswith("heat")] == ["heat-map-loss-lr-depth"]
    with pytest.raises(UsageError, match="a heat map needs two parameters"):
        report(grid(tmp_path / "b"), over=["lr"])


def test_two_metrics_make_a_front(tmp_path: Path) -> None:
    text = report(grid(tmp_path), metrics=["loss", "elapsed_s"]).markdown("f")
    assert "## Pareto front" in text


def test_what_else_differed_is_told(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"lr": at}, float(at), commit=str(at) * 40, host=f"n{at}") for at in range(1, 4)]
    assert "> These runs differ not only in parameters: code commit." in report(runs).markdown("f")


def test_a_sweep_without_any_metric_is_still_shown(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"lr": at}, state="failed", result={"reason": "no GPU"}) for at in range(3)]
    text = report(runs).markdown("f")
    assert "3 of 3 runs failed: 3 × no GPU." in text
    assert "## All points" in text


def test_a_sweep_that_still_runs_is_reported_as_far_as_it_is_known(tmp_path: Path) -> None:
    runs = [point(tmp_path, 0, {"lr": 1}, 0.5), point(tmp_path, 1, {"lr": 2}, state="running")]
    assert "> 1 of 2 runs have not ended" in report(runs).markdown("f")


def test_a_parameter_may_be_called_as_a_metric_is(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"loss": at}, float(at)) for at in range(3)]
    text = report(runs).markdown("f")
    assert "| loss | loss (2) |" in text


def test_points_stand_in_their_order_whichever_began_first(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"x": at}, float(at)) for at in (2, 11, 0, 1)]
    assert [found["params"]["x"] for found in sweep_blocks(runs).data["sweep"]["points"]] == [0, 1, 2, 11]


@pytest.mark.thorough
def test_of_more_points_than_a_page_holds_the_best_are_shown(tmp_path: Path) -> None:
    runs = [point(tmp_path, at, {"x": at}, 600.0 - at) for at in range(600)]
    part = sweep_blocks(runs)
    text = " ".join(block.text for block in part.points if type(block).__name__ == "Text")  # type: ignore[union-attr]
    assert "500 of 600 points, by loss, the best first" in text
    table = next(block for block in part.points if type(block).__name__ == "Table")
    assert [cell.text for cell in table.rows[0]][:2] == ["★ best", "599"]  # type: ignore[union-attr]
    assert len(table.rows) == 500  # type: ignore[union-attr]
    assert len(part.data["sweep"]["points"]) == 600


def test_notes_of_the_caller_are_shown(tmp_path: Path) -> None:
    assert "> 3 node-hours were predicted." in report(grid(tmp_path), notes=["3 node-hours were predicted."]).markdown(
        "f"
    )
