"""One number, three places: the terminal, the page and JSON agree on every run, sweep, study and comparison."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairmile.base.units import format_number

Fairmile = Callable[..., Any]
Texts = dict[Any, str]
PYTHON = sys.executable
SWEEP = f"""\
name: tides
command: {PYTHON} tide.py {{rate}} {{epochs}} {{seed}}
axes:
  rate: [0.02, 0.3]
  epochs: [3, 7]
seed: 1
repeats: 3
best: loss
"""
STUDY = f"""\
name: tides
command: {PYTHON} tide.py {{rate}} 6
axes:
  rate: {{log: [0.01, 0.9]}}
objective: {{amplitude_error: lower}}
tuning: {{trials: 5, seed: 3}}
"""


class Shown(NamedTuple):
    """What each place says, by what it says it of."""

    terminal: Texts
    page: Texts
    json: Texts


class Seen:
    """What the terminal, the page and JSON show."""

    def __init__(self, fairmile: Fairmile, place: Path) -> None:
        self._fairmile = fairmile
        self._page = place / "page.html"

    def terminal(self, *arguments: str) -> str:
        done = self._fairmile(*arguments)
        assert done.code == 0, done.err
        return str(done.out)

    def json(self, *arguments: str) -> Any:
        done = self._fairmile(*arguments, "--json")
        assert done.code == 0, done.err
        return done.json

    def page(self, *references: str) -> str:
        self.terminal("report", *references, "-o", str(self._page))
        return self._page.read_text()


def columns_of(text: str, heading: str, *more: str) -> list[dict[str, str]]:
    """Return the rows of the table of a terminal whose headings begin with these, each by its headings."""
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if re.split(r"\s{2,}", line)[: 1 + len(more)] == [heading, *more])
    starts = [match.start() for match in re.finditer(r"(?:^|(?<=  ))\S", lines[begin])]
    names = re.split(r"\s{2,}", lines[begin])
    ends = [*starts[1:], None]
    rows: list[dict[str, str]] = []
    for line in lines[begin + 1 :]:
        if any(line[at - 2 : at].strip() for at in starts[1:]) or len(line) <= starts[1]:
            break  # this line is not of the table
        rows.append({name: line[a:b].strip() for name, a, b in zip(names, starts, ends, strict=True)})
    return rows


def tables_of(page: str) -> list[list[dict[str, str]]]:
    """Return the tables of a page, each row by its headings."""
    tables = []
    for table in re.findall(r"<table[^>]*>(.*?)</table>", page, re.DOTALL):
        head, _, body = table.partition("<tbody>")
        names = [_text(each) for each in re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", head, re.DOTALL)]
        rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
        tables.append(
            [dict(zip(names, map(_text, re.findall(r"<td[^>]*>(.*?)</td>", row)), strict=True)) for row in rows]
        )
    return tables


def table_of(page: str, *headings: str) -> list[dict[str, str]]:
    """Return the only table of a page that has these headings."""
    (match,) = [table for table in tables_of(page) if table and set(headings) <= table[0].keys()]
    return match


def words(page: str) -> str:
    return " ".join(_text(page).split())


def _text(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", html))


def one_run(seen: Seen) -> Shown:
    seen.terminal("run", "--name", "tides", "--", PYTHON, "tide.py", "0.2", "10")
    printed, page, told = seen.terminal("runs", "show", "last"), seen.page("last"), seen.json("runs", "show", "last")
    reported = {name: each["value"] for name, each in seen.json("report", "last")["measures"].items()}
    metrics: Mapping[str, Any] = told["result"]["metrics"]
    assert all(reported[name] == each["value"] for name, each in metrics.items())
    best = {"lower": "min", "higher": "max"}
    listed = columns_of(seen.terminal("runs", "ls"), "run")[0]["metrics"]
    assert listed.split(", ")[0] == f"loss {format_number(metrics['loss']['value'])}"
    return Shown(
        {(row["metric"], key): row[key] for row in columns_of(printed, "metric") for key in ("last", "best")},
        {(row["metric"], key): row[key] for row in table_of(page, "metric", "last") for key in ("last", "best")},
        {
            (name, key): format_number(value)
            for name, each in metrics.items()
            for key, value in (("last", each["value"]), ("best", each[best[each["better"]]]))
        },
    )


def a_sweep(seen: Seen) -> Shown:
    Path("sweep.yaml").write_text(SWEEP)
    seen.terminal("sweep", "run", "sweep.yaml", "-j", "2")
    printed, page = seen.terminal("sweep", "show", "last", "--best", "loss"), seen.page("tides")
    sentence = re.compile(r"Best by loss: (\S+), (\S+) with (\S+ \(\S+ to \S+\)), 3 runs\.")
    told, reported = seen.json("sweep", "show", "last"), seen.json("report", "tides")
    found = [sentence.search(words(text)) for text in (printed, page)]
    assert told["best"] in words(page)
    best = reported["sweep"]["best"]
    (point,) = [each for each in reported["sweep"]["points"] if each["runs"] == best["runs"]]
    estimate = point["metrics"]["loss"]
    assert estimate["mean"] == best["value"] and reported["leaderboard"]["places"][0]["estimate"] == estimate
    terminal = {row["run"]: row["loss"] for row in columns_of(printed, "run")}
    shown = {row["run"]: row["loss"] for row in table_of(page, "run", "loss")}
    values = {each["run"]: format_number(each["metrics"]["loss"]) for each in told["points"]}
    setting = tuple(f"{name}={value}" for name, value in point["params"].items())
    return Shown(
        {**terminal, "best": str(found[0] and found[0].groups())},
        {**shown, "best": str(found[1] and found[1].groups())},
        {**values, "best": str((*setting, mean_text(estimate)))},
    )


def a_study(seen: Seen) -> Shown:
    pytest.importorskip("optuna", reason="needs optuna")
    Path("study.yaml").write_text(STUDY)
    seen.terminal("tune", "study.yaml")
    printed, page = seen.terminal("tune", "show", "last"), seen.page("tides")
    told, reported = seen.json("tune", "show", "last"), seen.json("report", "tides")
    (best,) = columns_of(printed, "best trial")
    sentence = re.search(r"Best amplitude_error: (\S+) \(trial (\d+), step (\d+): rate=(\S+)\)\.", words(page))
    assert sentence
    values = {each["number"]: each["values"][0] for each in told["trials"]}
    (number,) = told["best"]
    trial = next(each for each in told["trials"] if each["number"] == number)
    assert values == {each["number"]: each["value"] for each in reported["study"]["trials"]}
    assert reported["sweep"]["best"]["value"] == min(values.values()) == values[number]
    rows = columns_of(printed, "trial", "state")
    all_trials = table_of(page, "trial", "outcome", "rate")
    terminal = {int(row["trial"]): row["amplitude_error"] for row in rows}
    names = ("amplitude_error", "best trial", "step", "rate")
    step = next(step for step, value in trial["curve"] if value == values[number])
    assert told["best_steps"] == [step]
    return Shown(
        {**terminal, "best": str(tuple(best[name] for name in names))},
        {
            **{int(row["trial"]): row["amplitude_error"] for row in all_trials},
            "best": str(sentence.groups()),
        },
        {
            **{number: format_number(value) for number, value in values.items()},
            "best": str((format_number(values[number]), str(number), f"{step:g}", f"{trial['params']['rate']:.6g}")),
        },
    )


def a_comparison(seen: Seen) -> Shown:
    names = {"slow": "0.02", "middle": "0.1", "fast": "0.5"}
    for name, rate in names.items():
        options = ("--name", name, "--repeat", "3", "--seed", "1")
        seen.terminal("run", *options, "--", PYTHON, "tide.py", rate, "5", "{seed}")
    printed, page = seen.terminal("compare", *names), seen.page(*names)
    told = seen.json("compare", *names)["comparison"]
    reported = seen.json("report", *names)
    assert told["rows"] == reported["comparison"]["rows"]
    terminal, metric = {}, ""
    for row in columns_of(printed, "metric"):
        metric = row["metric"] or metric
        terminal[metric, row["group"]] = f"{row['mean (lowest to highest)']} {row['verdict']}"
    shown = {
        (row["metric"], row["group"]): f"{row['mean (lowest to highest)']} {row['verdict']}"
        for row in table_of(page, "metric", "group", "verdict")
    }
    wanted = ("loss", "amplitude_error")
    ranked = {place["label"]: place["verdict"] for place in reported["leaderboard"]["places"][1:]}
    json = {
        (row["metric"], cell["group"]): f"{mean_text(cell['estimate'])} {cell['verdict'] or '↓ lower is better'}"
        for row in told["rows"]
        for cell in row["cells"]
        if row["metric"] in wanted
    }
    assert set(ranked) < set(names) and len(json) == 6
    return Shown(
        {key: text for key, text in terminal.items() if key[0] in wanted},
        {key: text for key, text in shown.items() if key[0] in wanted},
        json,
    )


# The first trials end by themselves, the second of them with its best value in the middle. Each later one has nothing
# good to log and waits until it is stopped; the last one ends by itself, too.
ASHA_PROGRAM = """\
echo >> "$1"
number=$(wc -l < "$1")
log() { echo "{\\"loss\\": $2, \\"step\\": $1}" >> "$FAIRMILE_METRICS"; }
case $number in
  1) for step in 1 2 3 4 5 6 7 8 9; do log $step 0.5; done ;;
  2) for step in 1 2 3 4; do log $step 0.4; done; log 5 0.123456; for step in 6 7 8 9; do log $step 0.3; done ;;
  6) for step in 1 2 3 4 5 6 7 8 9; do log $step 0.9; done ;;
  *) for step in 1 2 3; do log $step 0.8$number; done; exec sleep 300 ;;
esac
"""
ASHA_STUDY = """\
name: asha
command: sh program.sh {counter} {{x}}
axes:
  x: {{uniform: [0, 1]}}
objective: {{loss: lower}}
every: 0
tuning: {{trials: 6, sampler: random, pruner: asha, steps: 9, min_steps: 3, seed: 1}}
"""


@pytest.mark.thorough
def test_a_finished_trial_is_never_pruned_and_the_best_is_that_of_all_steps(fairmile: Fairmile, place: Path) -> None:
    pytest.importorskip("optuna", reason="needs optuna")
    Path("program.sh").write_text(ASHA_PROGRAM)
    Path("study.yaml").write_text(ASHA_STUDY.format(counter=place / "counter"))
    seen = Seen(fairmile, place)
    seen.terminal("tune", "study.yaml")
    printed, page = seen.terminal("tune", "show", "last"), seen.page("asha")
    told, reported = seen.json("tune", "show", "last"), seen.json("report", "asha")
    states = ["done", "done", "pruned", "pruned", "pruned", "done"]
    assert [each["state"] for each in told["trials"]] == states
    assert [each["state"] for each in reported["study"]["trials"]] == states
    assert [row["state"] for row in columns_of(printed, "trial", "state")] == states
    shown = {int(row["trial"]): row["outcome"] for row in table_of(page, "trial", "outcome", "x")}
    assert [shown[number] for number in range(6)] == states
    (best,) = columns_of(printed, "best trial")
    assert (best["best trial"], best["loss"], best["step"]) == ("1", "0.1235", "5")
    assert "Best loss: 0.1235 (trial 1, step 5: x=" in words(page)
    assert (told["best"], told["best_steps"]) == ([1], [5.0])
    assert told["trials"][1]["values"] == [reported["sweep"]["best"]["value"]] == [0.123456]


def mean_text(estimate: Mapping[str, Any]) -> str:
    """Return the mean of few values with their range, as people read it."""
    mean, low, high = (format_number(estimate[key]) for key in ("mean", "least", "largest"))
    return f"{mean} ({low} to {high})"


@pytest.mark.parametrize(
    "make", [a_sweep, *(pytest.param(each, marks=pytest.mark.thorough) for each in (one_run, a_study, a_comparison))]
)
def test_terminal_page_and_json_show_the_same_numbers(
    make: Callable[[Seen], Shown], fairmile: Fairmile, place: Path
) -> None:
    shown = make(Seen(fairmile, place))
    assert shown.terminal == shown.json
    assert shown.page == shown.json
    assert len(shown.json) >= 4
