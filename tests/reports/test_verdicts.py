"""One difference has one verdict, wherever it is shown."""

from __future__ import annotations

from pathlib import Path

from run_making import make_run, metric_document, repeats

from fairmile.reports.comparison import compare
from fairmile.reports.figures import INK, PAPER, bars
from fairmile.reports.page import report
from fairmile.runs.record.run import Run


def point(folder: Path, number: int, rate: float, loss: float) -> Run:
    metrics = {"loss": metric_document(loss, better="lower"), "acc": metric_document(1 - loss / 10, better="higher")}
    return make_run(folder, f"swept-{number}", name="swept", group="swept", params={"rate": rate}, metrics=metrics)


def swept(folder: Path) -> list[Run]:
    """Return three points with repeats: the first is the best, the second within its noise in some tests only."""
    losses = {0.1: [1.0, 1.2], 0.2: [1.6, 1.8], 0.3: [2.0, 3.0]}
    values = [(rate, loss) for rate, each in losses.items() for loss in each]
    return [point(folder, at, rate, loss) for at, (rate, loss) in enumerate(values)]


def test_comparison_and_leaderboard_of_a_page_agree_on_each_pair(tmp_path: Path) -> None:
    data = report(swept(tmp_path)).to_dict()
    compared = next(row for row in data["comparison"]["rows"] if row["metric"] == "loss")
    told = {cell["group"]: cell["verdict"] for cell in compared["cells"][1:]}
    ranked = {place["label"]: place["verdict"] for place in data["leaderboard"]["places"][1:]}
    assert told == ranked
    level = {each["what"] for each in data["sweep"]["best"]["level"]}
    assert level == {name for name, verdict in ranked.items() if verdict == "same within noise"}


def test_runs_of_several_names_agree_too(tmp_path: Path) -> None:
    runs = []
    for name, losses in {"a": [1.0, 1.1, 1.2], "b": [1.3, 1.5, 1.4]}.items():
        for at, loss in enumerate(losses):
            metrics = {"loss": metric_document(loss, better="lower")}
            metrics |= {f"m{more}": metric_document(loss + more, better="lower") for more in range(5)}
            runs.append(make_run(tmp_path, f"{name}-{at}", name=name, group=name, metrics=metrics))
    data = report(runs).to_dict()
    (row,) = [row for row in data["comparison"]["rows"] if row["metric"] == "loss"]
    assert row["cells"][1]["verdict"] == data["leaderboard"]["places"][1]["verdict"]


def test_a_comparison_alone_says_what_a_page_with_a_ranking_says(tmp_path: Path) -> None:
    losses = {"a": [1.5, 1.6, 1.55], "b": [1.0, 1.1, 1.05], "c": [1.2, 1.32, 1.27], "d": [1.61, 1.69, 1.72]}
    groups = {}
    for name, values in losses.items():
        metrics = [{"loss": metric_document(loss, better="lower")} for loss in values]
        groups[name] = [
            make_run(tmp_path, f"{name}-{at}", name=name, group=name, metrics=each) for at, each in enumerate(metrics)
        ]
    data = report([run for runs in groups.values() for run in runs]).to_dict()
    assert data["comparison"]["rows"] == compare(groups).to_dict()["rows"]
    assert data["leaderboard"]["places"][0]["label"] == "b", "the ranking compares with another group than the first"


def test_few_repeats_are_points_and_many_have_whiskers(tmp_path: Path) -> None:
    def drawn(count: int) -> tuple[str, str]:
        values = [1.0 + at / 10 for at in range(count)]
        groups = {
            name: repeats(tmp_path / f"{name}{count}", name, {"loss": values, "elapsed_s": values})
            for name in ("a", "b")
        }
        picture = bars(compare(groups, ["loss", "elapsed_s"]))
        return picture.svg().decode(), picture.note

    (few, few_note), (many, many_note) = drawn(3), drawn(7)
    points = f"fill: {PAPER}; stroke: {INK}"
    assert few.count(points) >= 12 and points not in many, "two groups, two metrics, three runs"
    assert "points are single runs" in few_note and "confidence interval" not in few_note
    assert "95 % confidence intervals" in many_note


def test_a_page_of_few_repeats_shows_no_impossible_number(tmp_path: Path) -> None:
    made = report(swept(tmp_path))
    assert "1.1 (1 to 1.2)" in made.markdown()
    data = made.to_dict()
    estimates = [each for one in data["sweep"]["points"] for each in one["metrics"].values()]
    estimates += [cell["estimate"] for row in data["comparison"]["rows"] for cell in row["cells"]]
    assert all(each["low"] is None and each["high"] is None and each["least"] >= 0 for each in estimates)
    effects = [cell["effect"] for row in data["comparison"]["rows"] for cell in row["cells"][1:]]
    assert all(each["relative_low"] >= -1 for each in effects), "nothing falls by more than all of it"
