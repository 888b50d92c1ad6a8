"""What is the same is skipped, and of all else the plan says why it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.flows.flows import Flows

Write = Callable[[str], Path]
TWO = """\
steps:
  scale: {command: sh scale.sh, inputs: raw.txt, outputs: scaled.txt, params: {factor: 2}}
  total: {shell: cat scaled.txt > total.txt, inputs: scaled.txt, outputs: total.txt}
"""


@pytest.fixture
def two(flows: Flows, write: Write) -> Path:
    """A flow of two steps that is up to date."""
    Path("raw.txt").write_text("1\n")
    Path("scale.sh").write_text("cat raw.txt raw.txt > scaled.txt\n")
    file = write(TWO)
    assert flows.run(file).counts() == {"done": 2}
    return file


def reasons(flows: Flows, file: Path) -> dict[str, str]:
    return {name: each.reason for name, each in flows.plan(file).steps.items()}


def test_what_is_the_same_is_skipped(flows: Flows, two: Path) -> None:
    assert reasons(flows, two) == {"scale": "up to date", "total": "up to date"}
    events: list[tuple[str, ...]] = []
    flows.run(two, on_event=lambda *event: events.append(event))
    assert events == []


def test_a_time_stamp_changes_nothing(flows: Flows, two: Path) -> None:
    for name in ("raw.txt", "scale.sh", "scaled.txt"):
        os.utime(name, (1, 1))
    assert set(reasons(flows, two).values()) == {"up to date"}


def test_changed_bytes_of_the_same_size_and_time_are_seen(flows: Flows, two: Path) -> None:
    before = os.stat("raw.txt")
    Path("raw.txt").write_text("2\n")
    os.utime("raw.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reasons(flows, two)["scale"] == "input raw.txt has another digest"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda: Path("scale.sh").write_text("# new\ncat raw.txt raw.txt > scaled.txt\n"), "scale.sh changed"),
        (lambda: Path("raw.txt").write_text("7\n"), "input raw.txt has another digest"),
        (lambda: Path("flow.yaml").write_text(TWO.replace("factor: 2", "factor: 3")), "parameter factor changed"),
        (lambda: Path("flow.yaml").write_text(TWO.replace("sh scale.sh", "sh -e scale.sh")), "the command changed"),
        (lambda: Path("scaled.txt").write_text("mine\n"), "output scaled.txt was changed"),
    ],
)
def test_a_plan_says_what_changed(flows: Flows, two: Path, change: Callable[[], object], reason: str) -> None:
    change()
    assert reasons(flows, two) == {"scale": reason, "total": "unknown until `scale` has run"}


def test_a_step_that_gives_the_same_again_stops_the_change(flows: Flows, two: Path) -> None:
    Path("scale.sh").write_text("cat raw.txt raw.txt > scaled.txt  # in other words\n")
    events: list[tuple[str, str]] = []
    flows.run(two, on_event=lambda step, what, _: events.append((step, what)))
    assert events == [("scale", "begun"), ("scale", "done"), ("total", "skipped")]


def test_a_deleted_output_comes_back_from_the_store_and_nothing_runs(flows: Flows, two: Path) -> None:
    os.remove("scaled.txt")
    assert reasons(flows, two)["scale"] == "output scaled.txt is gone, and in the store"
    events: list[tuple[str, str]] = []
    flows.run(two, on_event=lambda step, what, _: events.append((step, what)))
    assert events == [("scale", "restored")]
    assert Path("scaled.txt").read_text() == "1\n1\n"


def test_an_output_that_was_not_kept_is_made_again(flows: Flows, write: Write) -> None:
    file = write("steps:\n  a: {shell: echo 1 > a.txt, outputs: a.txt, keep: false}\n")
    flows.run(file)
    os.remove("a.txt")
    assert reasons(flows, file) == {"a": "output a.txt is gone"}


def test_a_parameter_from_outside_counts(flows: Flows, two: Path) -> None:
    plan = flows.plan(two, params={"factor": 5})
    assert plan.steps["scale"].reason == "parameter factor changed"


def test_a_step_can_be_asked_for(flows: Flows, two: Path) -> None:
    assert flows.plan(two, again=["scale"]).steps["scale"].reason == "asked for"
    events: list[tuple[str, str]] = []
    flows.run(two, again=["scale"], on_event=lambda step, what, _: events.append((step, what)))
    assert ("scale", "done") in events


def test_values_of_an_earlier_step_are_unknown_until_it_has_run(flows: Flows, write: Write) -> None:
    file = write(
        "steps:\n"
        "  split: {shell: 'mkdir -p parts; for n in 1 2 3; do echo $n > parts/$n.txt; done', outputs: 'parts/*.txt'}\n"
        "  twice: {shell: 'cat {part} {part} > {part}.twice', over: {part: {glob: 'parts/*.txt'}},\n"
        "          inputs: '{part}', outputs: '{part}.twice'}\n"
        "  join: {shell: 'cat parts/*.twice > all.txt', inputs: 'parts/*.twice', outputs: all.txt}\n"
    )
    plan = flows.plan(file).to_dict()["steps"]
    assert [(each["name"], each["reason"]) for each in plan][1] == ("twice", "unknown until `split` has run")
    status = flows.run(file)
    assert [step.name for step in status.steps] == [
        *("split", "twice[parts/1.txt]", "twice[parts/2.txt]", "twice[parts/3.txt]", "join")
    ]
    assert Path("all.txt").read_text() == "1\n1\n2\n2\n3\n3\n"
    assert flows.plan(file).is_up_to_date
    Path("parts/9.txt").write_text("9\n")  # which no step made
    assert "twice[parts/9.txt]" not in flows.plan(file).steps


def test_a_step_is_repeated_over_a_list_and_taken_together(flows: Flows, write: Write) -> None:
    file = write(
        "steps:\n"
        "  make: {shell: 'echo {n} {s} > {n}-{s}.txt', over: {n: 1..2, s: [a, b]}, outputs: '{n}-{s}.txt'}\n"
        "  copy: {shell: 'cp {n}-a.txt {n}.copy', over: {n: 1..2}, inputs: '{n}-a.txt', outputs: '{n}.copy'}\n"
        "  all: {shell: cat *.copy > all.txt, inputs: '*.copy', outputs: all.txt}\n"
    )
    plan = flows.plan(file)
    assert plan.steps["copy[2]"].node.needs == ["make[2,a]"]
    assert plan.steps["all"].node.needs == ["copy[1]", "copy[2]"]
    flows.run(file)
    assert Path("all.txt").read_text() == "1 a\n2 a\n"


def test_a_step_is_repeated_over_the_lines_of_a_file_and_the_points_of_a_sweep(flows: Flows, write: Write) -> None:
    Path("names.txt").write_text("x y\nit's\n")
    Path("points.yaml").write_text("command: echo {lr}\naxes: {lr: [0.1, 0.2], seed: [1, 2]}\n")
    file = write(
        "steps:\n"
        "  named: {command: 'echo {name}', over: {name: {lines: names.txt}}}\n"
        "  swept: {command: 'echo {lr} {seed}', over: points.yaml}\n"
    )
    assert list(flows.plan(file).steps) == [
        *("named[x y]", "named[it's]", "swept[0.1,1]", "swept[0.1,2]", "swept[0.2,1]", "swept[0.2,2]")
    ]


def test_ten_thousand_steps_are_planned_from_few_lines(flows: Flows, write: Write) -> None:
    file = write(
        "steps:\n"
        "  a: {shell: 'echo {n} > a{n}', over: {n: 'range(0,5000)'}, outputs: 'a{n}'}\n"
        "  b: {shell: 'cp a{n} b{n}', over: {n: 'range(0,5000)'}, inputs: 'a{n}', outputs: 'b{n}'}\n"
    )
    plan = flows.plan(file)
    assert len(plan.steps) == 10_000
    assert plan.steps["b[4999]"].node.needs == ["a[4999]"]
