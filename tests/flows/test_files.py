"""What is wrong with a flow is told before anything starts, with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.flows.flows import Flows
from fairmile.flows.model import Flow, FromFiles, Step

Write = Callable[[str], Path]


def problems(flows: Flows, file: Path) -> list[str]:
    with pytest.raises(InvalidDocument) as caught:
        flows.plan(file)
    return [str(each) for each in caught.value.problems]


def test_the_smallest_flow_has_three_lines(flows: Flows, write: Write) -> None:
    Path("raw.csv").write_text("1\n")
    file = write(
        "steps:\n"
        "  clean: {shell: sort raw.csv > clean.csv, inputs: raw.csv, outputs: clean.csv}\n"
        "  count: {shell: wc -l < clean.csv > n.txt, inputs: clean.csv, outputs: n.txt}\n"
    )
    plan = flows.plan(file).to_dict()
    assert [(each["name"], each["needs"], each["on"], each["reason"]) for each in plan["steps"]] == [
        ("clean", [], "local", "never done"),
        ("count", ["clean"], "local", "never done"),
    ]


def test_python_makes_the_same_flow_as_a_file(flows: Flows, write: Write) -> None:
    file = write("name: two\nsteps:\n  a: {command: touch a, outputs: a}\n  b: {command: cat a, inputs: a}\n")
    steps = {"a": Step(command="touch a", outputs="a"), "b": Step(command=["cat", "a"], inputs="a")}
    made = Flow(name="two", steps=steps)
    assert flows.plan(made).to_dict() == flows.plan(file).to_dict()
    assert flows.read(file).flow.steps == made.steps


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("{shell: echo, needs: b}", "flow.yaml:2 steps.a.needs: no such key; did you mean 'after'?"),
        ("{comand: echo}", "flow.yaml:2 steps.a.comand: no such key; did you mean 'command'?"),
        ("{command: cat x | sort}", "flow.yaml:2 steps.a.command: '|' needs a shell: write `shell:`"),
        ("{inputs: x}", "flow.yaml:2 steps.a: nothing to execute: expected exactly one of command, shell"),
        ("{command: x, shell: y}", "flow.yaml:2 steps.a: both command and shell: expected exactly one"),
        ("{command: x, outputs: ../x}", "flow.yaml:2 steps.a.outputs: '../x' leads out of the folder"),
        ("{command: x, retries: -1}", "flow.yaml:2 steps.a.retries: expected at least 0, found -1"),
        ("{command: 'echo {lr}'}", "flow.yaml:2 steps.a.command: nothing defines {lr}"),
        ("{command: python fit.py}", "flow.yaml:2 steps.a.command: there is no file fit.py"),
        ("{run: ./fit.py}", "flow.yaml:2 steps.a.run: there is no file ./fit.py"),
        ("{notebook: fit.ipynb}", "flow.yaml:2 steps.a.notebook: there is no notebook fit.ipynb"),
        ("", "flow.yaml:2 steps.a: expected keys such as `shell` and `outputs`, found None"),
        ("{command: x, resources: {gpu_per_node: 1}}", "resources.gpu_per_node: no such key; did you mean 'gpus_per_"),
        ("{command: x, inputs: '*.nc'}", "flow.yaml:2 steps.a.inputs: input: no file matches *.nc, and no step gives"),
        ("{command: x, over: {f: {glob: '*.nc'}}}", "flow.yaml:2 steps.a.over: no file matches *.nc, and no step"),
        ("{command: x, over: {f: {lines: f.txt}}}", "steps.a.over: cannot read the values in"),
        ("{command: x, when: b.loss < 1}", "flow.yaml:2 steps.a.when: 'b.loss' names no metric of a step"),
        ("{command: echo, on: laptip}", "flow.yaml:2 steps.a.on: no system named 'laptip'; did you mean 'laptop'?"),
        ("{command: echo, inputs: raw.csv}", "flow.yaml:2 steps.a.inputs: raw: there is no file raw.csv, no step"),
        ("{command: echo, after: b}", "flow.yaml:2 steps.a.after: there is no step 'b'"),
        ("{command: echo, after: a}", "flow.yaml:2 steps.a.after: it comes after itself"),
        ("{command: echo, inputs: x, outputs: x}", "flow.yaml:2 steps.a.inputs: it takes its own output as an input"),
        ("{command: echo, when: never}", "flow.yaml:2 steps.a.when: 'never' names no metric of a step"),
        ("{command: echo, over: {n: '1,2'}, outputs: x}", "steps.a.outputs: 'x' is an output of both a[1] and a[2]"),
        ("{flow: other.yaml}", "flow.yaml:2 steps.a.flow: no such file"),
        ("{flow: flow.yaml}", "flow.yaml:2 steps.a.flow: flow.yaml is part of itself"),
    ],
)
def test_a_problem_of_one_step_names_line_field_and_remedy(flows: Flows, write: Write, step: str, message: str) -> None:
    (problem,) = problems(flows, write(f"steps:\n  a: {step}\n"))
    assert message in problem
    assert not flows.root.exists() or not list(flows.root.glob("flow-*"))


def test_a_flow_that_is_refused_when_it_is_run_leaves_nothing_behind(flows: Flows, write: Write) -> None:
    file = write("steps:\n  a: {command: cat x.nc, inputs: '*.nc'}\n")
    for _ in range(2):
        with pytest.raises(InvalidDocument, match="no file matches"):
            flows.run(file)
        assert not list(flows.root.glob("flow-*"))


def test_a_cycle_and_an_output_of_two_steps_are_told_together(flows: Flows, write: Write) -> None:
    text = (
        "steps:\n  a: {command: echo, after: b, outputs: x}\n  b: {command: echo, after: a}\n"
        "  c: {command: echo, outputs: x}\n"
    )
    cycle, twice = problems(flows, write(text))
    assert cycle == "flow.yaml:2 steps.a: steps wait for each other: a → b → a"
    assert twice == "flow.yaml:4 steps.c.outputs: 'x' is also an output of 'a'"


def test_a_parameter_that_no_step_has_is_refused(flows: Flows, write: Write) -> None:
    file = write("params: {rate: 1}\nsteps:\n  a: {command: 'echo {rate}'}\n")
    with pytest.raises(UsageError, match="no step has a parameter 'rat'; did you mean 'rate'"):
        flows.plan(file, params={"rat": 2})


def test_a_long_file_is_parsed_once(flows: Flows, write: Write) -> None:
    lines = "".join(f"  s{number}: {{command: echo a long command of step {number}}}\n" for number in range(2000))
    file = write(f"steps:\n{lines}")
    first = flows.read(file).flow
    (copy,) = (flows.root / ".parsed").glob("*.json")
    before = copy.stat().st_mtime_ns
    assert flows.read(file).flow == first
    file.write_text(file.read_text().replace("step 7}", "step 7, comand: x}"))
    with pytest.raises(InvalidDocument, match=r"flow\.yaml:9 steps\.s7\.comand"):
        flows.read(file)
    assert copy.stat().st_mtime_ns >= before


def test_a_time_without_a_unit_is_refused_with_its_line(flows: Flows, write: Write) -> None:
    with pytest.raises(InvalidDocument, match=r"flow\.yaml:2 steps\.a\.timeout: 15 has no unit: write 15m .* or 15s"):
        flows.read(write("steps:\n  a: {shell: echo, timeout: 15}\n"))


def test_what_is_kept_of_a_file_is_the_same_flow_by_whatever_name(flows: Flows, write: Write) -> None:
    file = write(
        "params: {rate: 0.5}\nlimits: {local: 3}\nsteps:\n"
        "  a: {shell: 'echo {n} {rate} > {n}.txt', over: {n: 1..3}, outputs: '{n}.txt', timeout: 2 min, retries: 2}\n"
        "  b: {command: cat, over: {file: {glob: '*.txt'}}, inputs: '{file}', metrics: {loss: {better: lower}}}\n"
        "  c: {command: [echo, 'a b'], resources: {time_s: 1h}, env: {A: '1'}, after: [a, b], keep: false}\n"
    )
    first = flows.read(file).flow
    assert flows.read(file).flow == first
    other = file.rename("other.yaml")
    kept = flows.read(other).flow
    assert kept == first.model_copy(update={"name": "other"})
    assert len(list((flows.root / ".parsed").iterdir())) == 1


def test_the_steps_of_another_file_stand_where_a_step_names_it(flows: Flows, write: Write) -> None:
    Path("inner").mkdir()
    Path("inner/part.yaml").write_text(
        "params: {n: 1}\nsteps:\n  one: {shell: 'echo {n} > one.txt', outputs: one.txt}\n"
        "  two: {shell: cat one.txt > two.txt, inputs: one.txt, outputs: two.txt}\n"
    )
    file = write(
        "steps:\n  part: {flow: inner/part.yaml, params: {n: 5}}\n"
        "  last: {shell: cat inner/two.txt > last.txt, inputs: inner/two.txt, outputs: last.txt}\n"
    )
    plan = flows.plan(file)
    assert {name: each.node.needs for name, each in plan.steps.items()} == {
        "part/one": [],
        "part/two": ["part/one"],
        "last": ["part/two"],
    }
    flows.run(file)
    assert Path("last.txt").read_text() == "5\n"


def test_a_flow_made_in_python_is_saved_as_a_file_that_says_the_same(flows: Flows, tmp_path: Path) -> None:
    steps = {
        "raw data": Step(command=["sh", "-c", "echo '12:00:00 no' > a.txt; echo 1 | cat", "|"], outputs="a.txt"),
        "fit": Step(shell="cat a.txt\ncat a.txt > f{rate}.txt", over={"rate": [0.1, 2]}, inputs={"raw": "a.txt"},
                    outputs="f{rate}.txt", timeout="90s", retries=2, params={"on": "no", "n": 1e-3}),
        "each": Step(command="wc -l {name}", over={"name": FromFiles(glob="f*.txt")}, when="always", on="local"),
    }  # fmt: skip
    flow = Flow(name="tides", steps=steps, params={"epochs": 5}, limits={"local": 2})
    file = flow.save("tides.yaml")
    assert file.read_text().startswith("name: tides\nparams:\n  epochs: 5\n")
    assert "command: wc -l {name}\n" in file.read_text()
    assert flows.read(file).flow == flows.read(flow).flow
    (tmp_path / "other").mkdir()
    assert flows.read(flow.save(tmp_path / "other" / "tides.yaml")).flow.folder == str(Path.cwd())
    assert flows.run("tides.yaml").counts() == {"done": 5}
