"""Rankings, filters, histograms, and the three patterns over sets of runs."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from cases import for_each
from hypothesis import example, given
from hypothesis import strategies as st
from run_making import make_run, metric_document, repeats

from fairmile.base.errors import NotFound, RunFailed, UsageError
from fairmile.reports.leaderboard import (
    competition,
    cooperation,
    histogram,
    leaderboard,
    parse_where,
    selection,
)
from fairmile.reports.page import report
from fairmile.reports.verdicts import Verdict
from fairmile.runs.record.run import Run


def field(tmp_path: Path) -> list[Run]:
    values = {"slow": [3.0, 3.1, 2.9], "fast": [1.0, 1.1, 0.9], "equal": [1.05, 0.95, 1.02]}
    return [run for name, each in values.items() for run in repeats(tmp_path, name, {"loss": each})]


def test_the_best_mean_comes_first(tmp_path: Path) -> None:
    board = leaderboard(field(tmp_path), "loss")
    assert [place.label for place in board.places] == ["fast", "equal", "slow"]
    assert [place.rank for place in board.places] == [1, 2, 3]
    assert (board.places[0].best, board.places[0].best_run) == (0.9, "fast-000002")


def test_higher_accuracy_ranks_first(tmp_path: Path) -> None:
    runs = [*repeats(tmp_path, "a", {"accuracy": [0.8]}), *repeats(tmp_path, "b", {"accuracy": [0.9]})]
    assert [place.label for place in leaderboard(runs, "accuracy").places] == ["b", "a"]


def test_a_place_says_whether_more_than_noise_tells_it_from_the_first(tmp_path: Path) -> None:
    board = leaderboard(field(tmp_path), "loss")
    assert [place.verdict for place in board.places] == [None, Verdict.SAME, Verdict.WORSE]


def test_what_lies_within_the_tolerance_of_the_metric_is_no_worse(tmp_path: Path) -> None:
    values = {"a": [1.000, 1.001, 0.999], "b": [1.010, 1.011, 1.009]}

    def board(tolerance: float | None) -> list[Verdict | None]:
        runs = [
            make_run(
                tmp_path / f"{tolerance}",
                f"{name}-{at}",
                name=name,
                group=name,
                metrics={"loss": metric_document(value, better="lower", tolerance=tolerance)},
            )
            for name, each in values.items()
            for at, value in enumerate(each)
        ]
        return [place.verdict for place in leaderboard(runs, "loss").places]

    assert board(None) == [None, Verdict.WORSE]
    assert board(0.02) == [None, Verdict.SAME]


def test_single_runs_are_ranked_without_a_claim(tmp_path: Path) -> None:
    runs = [*repeats(tmp_path, "a", {"loss": [1.0]}), *repeats(tmp_path, "b", {"loss": [2.0]})]
    assert leaderboard(runs, "loss").places[1].verdict is Verdict.TOO_FEW


def test_equal_means_share_a_rank_and_the_next_is_left_out(tmp_path: Path) -> None:
    runs = [
        run
        for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0))
        for run in repeats(tmp_path, name, {"loss": [value]})
    ]
    assert [place.rank for place in leaderboard(runs, "loss").places] == [1, 1, 3]


def test_only_so_many_places_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    board = leaderboard(field(tmp_path), "loss", n=1)
    assert (len(board.places), board.of) == (1, 3)


def test_nan_comes_last_and_is_told(tmp_path: Path) -> None:
    runs = [*repeats(tmp_path, "broken", {"loss": [0.1, "NaN"]}), *repeats(tmp_path, "good", {"loss": [1.0, 1.1]})]
    board = leaderboard(runs, "loss")
    assert [place.label for place in board.places] == ["good", "broken"]
    assert board.places[1].verdict is Verdict.NOT_COMPARABLE
    assert "broken" in board.notes[-1]


def test_runs_that_are_not_done_are_left_out_and_told(tmp_path: Path) -> None:
    runs = [*field(tmp_path), make_run(tmp_path, "x", state="failed", metrics={"loss": 0.0})]
    board = leaderboard(runs, "loss")
    assert "x" not in {id for place in board.places for id in place.runs}
    assert board.notes == ("1 of 10 runs are not done and do not count",)


def test_a_metric_without_direction_cannot_be_ranked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its better direction is unknown"):
        leaderboard([make_run(tmp_path, metrics={"colour": 1.0})], "colour")


def test_mixed_units_cannot_be_ranked(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, unit, metrics={"loss": metric_document(1.0, unit=unit)}) for unit in ("bits", "nats")]
    with pytest.raises(UsageError, match="units bits, nats"):
        leaderboard(runs, "loss")


def test_an_unknown_metric_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="'los'") as error:
        leaderboard(field(tmp_path), "los")
    assert error.value.hint == "did you mean 'loss'?"


def test_a_leaderboard_is_plain_data_and_a_table(tmp_path: Path) -> None:
    board = leaderboard(field(tmp_path), "loss")
    assert json.loads(json.dumps(board.to_dict(), allow_nan=False))["places"][0]["label"] == "fast"
    columns, rows = board.table()
    assert columns[:3] == ["rank", "what", "loss"]
    assert rows[0][:2] == ["1", "fast"]


@pytest.mark.parametrize(
    ("conditions", "ids"),
    [
        ([], ["a", "b", "c"]),
        (["name=train"], ["a", "b"]),
        (["system=jureca"], ["b"]),
        (["tag=night"], ["a", "c"]),
        (["state=failed"], ["c"]),
        (["lr=0.10"], ["a"]),
        (["deep=true"], ["b"]),
        (["param.name=x"], ["c"]),
        (["name=train", "tag=night"], ["a"]),
        (["nothing=1"], []),
    ],
)
def test_runs_are_filtered_by_what_they_are(tmp_path: Path, conditions: list[str], ids: list[str]) -> None:
    runs = [
        make_run(tmp_path, "a", params={"lr": 0.1}, tags=["night"]),
        make_run(tmp_path, "b", params={"lr": 0.2, "deep": True}, system="jureca"),
        make_run(tmp_path, "c", name="other", params={"name": "x"}, tags=["night"], state="failed"),
    ]
    assert [run.id for run in runs if parse_where(conditions)(run)] == ids


@for_each("condition", ["lr", "=3", ""])
def test_a_condition_without_key_or_value_is_refused(condition: str) -> None:
    with pytest.raises(UsageError, match="is not a condition"):
        parse_where([condition])


@given(st.lists(st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=200))
@example([0.0, 0.0, 2.2250738585072014e-308, -6.0])
def test_every_finite_value_is_in_one_bin(values: list[float]) -> None:
    found = histogram(values)
    assert sum(found.counts) == len(values)
    assert len(found.edges) == len(found.counts) + 1
    assert found.edges[0] <= min(values) and found.edges[-1] >= max(values)
    assert list(found.edges) == sorted(found.edges)


def test_a_histogram_counts_what_it_cannot_show() -> None:
    assert histogram([1.0, math.nan, math.inf]).not_finite == 2
    assert histogram([math.nan]).counts == ()


def test_a_bell_is_highest_in_the_middle() -> None:
    chance = random.Random(1)
    counts = histogram([chance.gauss(0, 1) for _ in range(2000)]).counts
    assert counts.index(max(counts)) in range(len(counts) // 3, 2 * len(counts) // 3 + 1)


def test_so_many_bins_as_asked_for() -> None:
    assert histogram([0.0, 1.0, 2.0, 3.0], bins=3).counts == (1, 1, 2)


def test_selection_takes_the_best(tmp_path: Path) -> None:
    chosen = selection(field(tmp_path), "loss", 2)
    assert [run.id for run in chosen] == ["fast-000002", "equal-000001"]


def test_selection_takes_what_a_filter_lets_through(tmp_path: Path) -> None:
    chosen = selection(field(tmp_path), where=lambda run: run.name == "slow")
    assert [run.name for run in chosen] == ["slow"] * 3


def test_competition_is_won_by_the_best_of_all(tmp_path: Path) -> None:
    runs = [*field(tmp_path), make_run(tmp_path, "cheat", state="failed", metrics={"loss": 0.0})]
    won = competition(runs, "loss")
    assert (won.winner.id, won.value, won.of) == ("fast-000002", 0.9, 10)
    assert "cheat" not in won.ranking


def test_nobody_wins_with_nan(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no run has a finite value"):
        competition([make_run(tmp_path, metrics={"loss": "NaN"})], "loss")


def test_cooperation_combines_the_parts(tmp_path: Path) -> None:
    runs = repeats(tmp_path, "part", {"samples": [10, 20, 30], "loss": [1.0, 2.0, 3.0], "elapsed_s": [5.0, 7.0, 6.0]})
    whole = cooperation(runs, {"samples": "sum", "loss": "mean", "elapsed_s": max})
    assert whole.values == {"samples": 60, "loss": 2, "elapsed_s": 7}
    assert len(whole.parts) == 3


def test_a_whole_with_a_missing_part_is_none(tmp_path: Path) -> None:
    runs = [*repeats(tmp_path, "part", {"loss": [1.0]}), make_run(tmp_path, "lost", state="failed")]
    with pytest.raises(RunFailed, match="cannot combine run lost: it is failed"):
        cooperation(runs, {"loss": "sum"})


def test_a_part_without_the_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cannot combine 'samples': run part-000000 lacks it"):
        cooperation(repeats(tmp_path, "part", {"loss": [1.0]}), {"samples": "sum"})


def test_an_unknown_way_to_combine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'median' is not a way to combine metrics"):
        cooperation(repeats(tmp_path, "part", {"loss": [1.0]}), {"loss": "median"})


def test_a_page_colours_verdicts_and_no_value(tmp_path: Path) -> None:
    runs = [run for name, loss in (("a", 1.0), ("b", 2.0)) for run in repeats(tmp_path, name, {"loss": [loss]})]
    table = report(runs).html().partition('">Leaderboard by loss</h2>')[2].partition("</table>")[0]
    assert '<td class="number" data-sort="2">2</td>' in table
