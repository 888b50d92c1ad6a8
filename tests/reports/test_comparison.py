"""Groups compared: verdicts that noise cannot fake, and what differed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from run_making import make_run, metric_document, repeats

from fairmile.base.errors import NotFound, UsageError
from fairmile.reports.comparison import Cell, Comparison, compare, group_runs
from fairmile.reports.verdicts import Verdict
from fairmile.runs.record.record import Coverage, ReadFile
from fairmile.runs.record.run import Run

LOW, HIGH = [1.0, 1.1, 0.9, 1.05], [2.0, 2.1, 1.9, 2.05]


def cell(comparison: Comparison, metric: str, group: str = "b") -> Cell:
    row = next(row for row in comparison.rows if row.metric == metric)
    return next(cell for cell in row.cells if cell.group == group)


def two(tmp_path: Path, metric: str, a: list[float], b: list[float]) -> dict[str, list[Run]]:
    return {"a": repeats(tmp_path, "a", {metric: a}), "b": repeats(tmp_path, "b", {metric: b})}


def test_a_lower_loss_is_better_and_a_higher_one_worse(tmp_path: Path) -> None:
    groups = two(tmp_path, "loss", HIGH, LOW)
    assert cell(compare(groups), "loss").verdict is Verdict.BETTER
    assert cell(compare({"b": groups["b"], "a": groups["a"]}), "loss", "a").verdict is Verdict.WORSE


def test_a_higher_accuracy_is_better(tmp_path: Path) -> None:
    assert cell(compare(two(tmp_path, "accuracy", LOW, HIGH)), "accuracy").verdict is Verdict.BETTER


def test_there_is_no_winner_inside_the_noise(tmp_path: Path) -> None:
    found = cell(compare(two(tmp_path, "loss", [1.0, 1.4, 0.7], [0.9, 1.3, 0.8])), "loss")
    assert found.verdict is Verdict.SAME
    assert found.effect is not None and found.effect.low < 0 < found.effect.high


def test_the_first_group_has_no_verdict(tmp_path: Path) -> None:
    found = cell(compare(two(tmp_path, "loss", LOW, HIGH)), "loss", "a")
    assert (found.verdict, found.effect) == (None, None)


def test_one_run_each_says_nothing_about_noise(tmp_path: Path) -> None:
    found = cell(compare(two(tmp_path, "loss", [1.0], [2.0])), "loss")
    assert found.verdict is Verdict.TOO_FEW
    assert found.why == "one run each: noise is unknown"


def test_one_run_each_shows_the_difference_all_the_same(tmp_path: Path) -> None:
    columns, rows = compare(two(tmp_path, "loss", [1.0], [2.0]), ["loss"]).table()
    assert rows[1][columns.index("vs first")] == "+100 %"


def test_identical_repeats_are_told_since_they_show_no_noise(tmp_path: Path) -> None:
    found = cell(compare(two(tmp_path, "loss", [2.0, 2.0, 2.0], [1.0, 1.0, 1.0])), "loss")
    assert (found.verdict, found.why) == (Verdict.BETTER, "identical repeats: no noise seen")
    same = cell(compare(two(tmp_path / "same", "loss", [2.0, 2.0], [2.0, 2.0])), "loss")
    assert (same.verdict, same.why) == (Verdict.SAME, "")


def test_one_run_against_many_names_the_lonely_one(tmp_path: Path) -> None:
    found = cell(compare(two(tmp_path, "loss", LOW, [2.0])), "loss")
    assert (found.verdict, found.why) == (Verdict.TOO_FEW, "one run of b: noise is unknown")


def test_nan_is_never_dropped_in_silence(tmp_path: Path) -> None:
    groups = {"a": repeats(tmp_path, "a", {"loss": LOW}), "b": repeats(tmp_path, "b", {"loss": [2.0, "NaN", 2.1]})}
    found = cell(compare(groups), "loss")
    assert (found.verdict, found.why) == (Verdict.NOT_COMPARABLE, "1 of 3 values are NaN or infinite")
    assert found.estimate is not None and found.estimate.not_finite == 1


def test_nan_in_the_first_group_is_named_with_it(tmp_path: Path) -> None:
    groups = {"a": repeats(tmp_path, "a", {"loss": ["NaN", 1.0]}), "b": repeats(tmp_path, "b", {"loss": HIGH})}
    assert cell(compare(groups), "loss").why == "a: 1 of 2 values are NaN or infinite"


def test_other_units_are_not_comparable(tmp_path: Path) -> None:
    runs = {
        unit: [
            make_run(tmp_path, f"{unit}-{n}", metrics={"speed": metric_document(n, unit=unit, better="higher")})
            for n in range(3)
        ]
        for unit in ("km", "mi")
    }
    found = cell(compare(runs, ["speed"]), "speed", "mi")
    assert (found.verdict, found.why) == (Verdict.NOT_COMPARABLE, "the units differ: km, mi")


def test_a_metric_that_one_group_lacks_is_not_comparable(tmp_path: Path) -> None:
    groups = {"a": repeats(tmp_path, "a", {"loss": LOW}), "b": repeats(tmp_path, "b", {"accuracy": LOW})}
    comparison = compare(groups)
    assert cell(comparison, "loss").why == "it was not measured"
    assert cell(comparison, "accuracy").why == "a: it was not measured"


def test_a_difference_without_direction_is_no_win(tmp_path: Path) -> None:
    found = cell(compare(two(tmp_path, "colour", LOW, HIGH), ["colour"]), "colour")
    assert (found.verdict, found.why) == (Verdict.DIFFERS, "no better direction is declared")


def test_a_difference_within_the_declared_tolerance_counts_as_the_same(tmp_path: Path) -> None:
    groups = {
        name: [
            make_run(tmp_path, f"{name}-{n}", metrics={"loss": metric_document(value + n * 1e-6, tolerance=0.05)})
            for n in range(4)
        ]
        for name, value in (("a", 1.0), ("b", 1.02))
    }
    found = cell(compare(groups), "loss")
    assert (found.verdict, found.why) == (Verdict.SAME, "within the tolerance of 5 %")


def test_many_comparisons_of_noise_make_no_winner(tmp_path: Path) -> None:
    chance = random.Random(5)
    winners = 0
    for trial in range(20):
        values = {
            name: {f"loss{n}": [chance.gauss(1, 0.1) for _ in range(4)] for n in range(12)} for name in ("a", "b")
        }
        groups = {name: repeats(tmp_path / f"{trial}", name, each) for name, each in values.items()}
        verdicts = [each.verdict for row in compare(groups).rows for each in row.cells[1:]]
        winners += any(verdict in (Verdict.BETTER, Verdict.WORSE) for verdict in verdicts)
    # 240 looks at 95 % would give about 12 false ones; over whole tables it is to be 1 of 20.
    assert winners <= 3


def test_what_stands_out_alone_but_not_among_many_says_so(tmp_path: Path) -> None:
    a, b = [1.00, 1.02, 0.98, 1.01], [1.03, 1.05, 1.02, 1.04]
    assert cell(compare(two(tmp_path / "one", "loss", a, b), ["loss"]), "loss").verdict is Verdict.WORSE
    flat = {f"error{n}": [1.0, 1.1, 0.9, 1.0] for n in range(9)}
    groups = {name: repeats(tmp_path / "many", name, {"loss": own, **flat}) for name, own in (("a", a), ("b", b))}
    found = cell(compare(groups), "loss")
    assert found.verdict is Verdict.SAME
    assert found.why == "significant alone, not among 13 comparisons"


def test_runs_that_are_not_done_do_not_count_and_are_told(tmp_path: Path) -> None:
    good = repeats(tmp_path, "a", {"loss": LOW})
    bad = make_run(tmp_path, "a-bad", name="a", group="a", state="failed", metrics={"loss": 99.0})
    comparison = compare({"a": [*good, bad], "b": repeats(tmp_path, "b", {"loss": LOW})})
    assert bad.id not in comparison.groups["a"]
    assert "a: 1 of 5 runs do not count (1 failed)" in comparison.notes


def test_a_group_without_a_run_that_is_done_is_not_comparable(tmp_path: Path) -> None:
    bad = make_run(tmp_path, "b-1", name="b", state="timeout")
    found = cell(compare({"a": repeats(tmp_path, "a", {"loss": LOW}), "b": [bad]}), "loss")
    assert (found.verdict, found.why) == (Verdict.NOT_COMPARABLE, "none of its runs is done")


def test_groups_without_any_run_that_is_done_are_refused(tmp_path: Path) -> None:
    failed = make_run(tmp_path, "failed", state="failed")
    with pytest.raises(NotFound, match="none of these runs is done"):
        compare({"a": [failed]})


def test_what_went_in_differently_is_told(tmp_path: Path) -> None:
    groups = {
        "a": repeats(tmp_path, "a", {"loss": LOW}, params={"lr": 0.1}, lock=["numpy==2.1.0", "torch==2.4"]),
        "b": repeats(
            tmp_path, "b", {"loss": LOW}, params={"lr": 0.2}, lock=["numpy==2.2.0"], commit="f" * 40,
            inputs={"data": "e" * 64}, host="n2",
        ),
    }  # fmt: skip
    found = {each.fact: each.text for each in compare(groups).differences}
    assert found == {
        "param lr": "0.1 → 0.2",
        "code commit": "0123456789ab → ffffffffffff",
        "input data": "cccccccccccc → eeeeeeeeeeee",
        "package numpy": "2.1.0 → 2.2.0",
        "package torch": "2.4 → –",
        "host": "n1 → n2",
    }


def test_a_file_that_changed_between_runs_is_told_and_one_that_nobody_watched_is_not(tmp_path: Path) -> None:
    runs = {name: make_run(tmp_path, name, metrics={"loss": 1.0}) for name in ("a", "b", "unwatched")}
    for name, digest in (("a", "1" * 64), ("b", "2" * 64)):
        runs[name].record.spec.folder = "/home/me"
        reads = {"/home/me/data.csv": ReadFile(sha256=digest), "/etc/same": ReadFile(sha256="3" * 64)}
        runs[name].captured.coverage = Coverage(reads=reads)
    found = {each.fact: each.text for each in compare({"a": [runs["a"]], "b": [runs["b"]]}).differences}
    assert found == {"read data.csv": "111111111111 → 222222222222"}
    assert compare({"a": [runs["a"]], "unwatched": [runs["unwatched"]]}).differences == ()


def test_repeats_that_are_none_are_told(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"a-{lr}", params={"lr": lr}, metrics={"loss": 1.0}) for lr in (1, 2)]
    comparison = compare({"a": runs, "b": repeats(tmp_path, "b", {"loss": LOW})})
    assert "a: its runs are not exact repeats: they differ in param lr" in comparison.notes


def test_other_seeds_are_still_repeats(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"a-{seed}", spec={"seed": seed}, metrics={"loss": 1.0}) for seed in (1, 2)]
    assert compare({"a": runs, "b": repeats(tmp_path, "b", {"loss": LOW})}).notes == ()


def test_runs_of_a_sweep_over_seeds_are_repeats(tmp_path: Path) -> None:
    settings = [{"lr": lr, "seed": seed} for lr in (1, 2) for seed in (1, 2, 3)]
    runs = [
        make_run(tmp_path, f"n-{at}", group="n", params=each, metrics={"loss": each["lr"] + each["seed"] / 100})
        for at, each in enumerate(settings)
    ]
    groups = group_runs(runs)
    assert {name: len(each) for name, each in groups.items()} == {"lr=1": 3, "lr=2": 3}
    assert compare(groups).notes == ()


def test_single_runs_with_other_seeds_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"a-{seed}", params={"seed": seed}, identity=str(seed)) for seed in (1, 2)]
    assert list(group_runs(runs)) == ["seed=1", "seed=2"]


def test_an_unknown_metric_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="'los'") as error:
        compare(two(tmp_path, "loss", LOW, HIGH), ["los"])
    assert error.value.hint == "did you mean 'loss'?"


def test_nothing_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        compare({"a": [], "b": []})


def test_a_comparison_is_plain_data_even_with_nan(tmp_path: Path) -> None:
    groups = {"a": repeats(tmp_path, "a", {"loss": ["NaN", "NaN"]}), "b": repeats(tmp_path, "b", {"loss": HIGH})}
    document = json.loads(json.dumps(compare(groups).to_dict(), allow_nan=False))
    loss = next(row for row in document["rows"] if row["metric"] == "loss")
    assert loss["cells"][0]["estimate"]["mean"] == "NaN"
    assert loss["cells"][1]["verdict"] == "not comparable"


def test_a_comparison_prints_as_a_table(tmp_path: Path) -> None:
    text = str(compare(two(tmp_path, "loss", HIGH, LOW), ["loss"]))
    assert text.splitlines()[0].split()[:3] == ["metric", "group", "runs"]
    assert "better" in text.splitlines()[2]


def test_a_table_has_mean_deviation_difference_and_verdict(tmp_path: Path) -> None:
    columns, rows = compare(two(tmp_path, "loss", HIGH, LOW), ["loss"]).table()
    assert columns == ["metric", "group", "runs", "mean (lowest to highest)", "sd", "verdict", "vs first"]
    assert rows[1][:5] == ["", "b", "4", "1.012 (0.9 to 1.1)", "0.085"]


def test_of_one_group_alone_nothing_is_judged(tmp_path: Path) -> None:
    columns, rows = compare({"a": repeats(tmp_path, "a", {"loss": LOW * 2})}, ["loss"]).table()
    assert columns == ["metric", "group", "runs", "mean ± 95 %", "sd"]
    assert " ± " in rows[0][3]


def test_repeats_of_a_group_stand_together_and_points_of_a_sweep_apart(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, f"t-{lr}-{n}", group="sweep-1", params={"lr": lr, "deep": True})
        for lr in (0.1, 0.2)
        for n in range(3)
    ]
    groups = group_runs(runs)
    assert {name: len(each) for name, each in groups.items()} == {"lr=0.1": 3, "lr=0.2": 3}


def test_runs_without_a_group_stand_with_those_of_their_identity(tmp_path: Path) -> None:
    same = [make_run(tmp_path, f"a-{n}", identity="1" * 64) for n in range(2)]
    other = make_run(tmp_path, "a-x", identity="2" * 64)
    assert sorted(len(each) for each in group_runs([*same, other]).values()) == [1, 2]


def test_runs_without_identity_are_each_on_their_own(tmp_path: Path) -> None:
    groups = group_runs([make_run(tmp_path, f"a-{n}", identity="") for n in range(3)])
    assert len(groups) == len(set(groups)) == 3


def test_one_thing_on_two_systems_is_two_groups(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"a-{host}", group="g", host=host) for host in ("n1", "n2")]
    assert list(group_runs(runs)) == ["train on n1", "train on n2"]
