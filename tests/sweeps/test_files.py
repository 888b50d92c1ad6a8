"""Definitions: from files and command lines, kept as a document, refused with file and line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument, NotFound, UsageError
from fairmile.sweeps.files import collect_source, read_definition
from fairmile.sweeps.model import Definition, Objective
from fairmile.sweeps.record import Source

SMALLEST = """\
name: tide
command: python train.py {lr} {epochs}
axes:
  lr: 0.1,0.01
  epochs: range(1,3)
"""

Read = Callable[..., Definition]


def definition_of(files: Sequence[Path], *, environ: Mapping[str, str], **rest: Any) -> Definition:
    """Return what files and a command line say of a sweep."""
    return read_definition(collect_source(files, **rest), environ=environ)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Read texts, which become the files 0.yaml, 1.yaml … of the current folder."""
    monkeypatch.chdir(tmp_path)

    def reading(*texts: str, **rest: Any) -> Definition:
        for place, text in enumerate(texts):
            Path(f"{place}.yaml").write_text(text)
        files = [Path(f"{place}.yaml") for place in range(len(texts))]
        return definition_of(files, **{"params": {}, "environ": {}, **rest})

    return reading


def ids(definition: Definition) -> list[str]:
    return [point.id for point in definition.points]


def refused(read: Read, *texts: str, **rest: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(*texts, **rest)
    return caught.value


def test_the_smallest_file_has_five_lines(read: Read, tmp_path: Path) -> None:
    found = read(SMALLEST)
    assert found.name == "tide"
    assert ids(found) == ["lr_0.1_epochs_1", "lr_0.1_epochs_2", "lr_0.01_epochs_1", "lr_0.01_epochs_2"]
    assert dict(next(iter(found.points)).values) == {"lr": 0.1, "epochs": 1}
    assert found.fields == {"argv": ["python", "train.py", "{lr}", "{epochs}"]}
    assert (found.dialect.name, found.prefix, found.sources) == ("fairmile", "", (str(tmp_path / "0.yaml"),))


def test_times_stay_texts_and_truth_values_stay_what_they_are(read: Read) -> None:
    found = read("axes:\n  wall: 12:00:00\n  cache: [true, false]\n  when: no\nsettings: {time: 0:30:00}\n")
    assert found.points.axes == {"wall": ["12:00:00"], "cache": [True, False], "when": ["no"]}
    assert found.settings == {"time": "0:30:00"}


def test_the_name_is_after_the_file_the_asset_or_the_command(read: Read) -> None:
    Path("My_Sweep.v2.yaml").write_text("axes: {a: 1}")
    assert definition_of([Path("My_Sweep.v2.yaml")], params={}, environ={}).name == "my_sweep"
    assert read(what="bench", params={"a": 1}).name == "bench"
    assert read(command=["python", "src/train.py"], params={"a": 1}).name == "train"


def test_everything_that_a_file_can_say(read: Read, tmp_path: Path) -> None:
    found = read(
        """
name: all
command: ["python", "train.py", "--lr={lr}", 5]
settings: {data: {scratch: "/s/{os.USER}"}, time: {1: 5}}
variables: [USER]
axes:
  lr: [0.1, 0.2]
  a: [1, 1, 2]
  b: x,y,z
linked: [a, b]
exclude: ["lr > 0.1 and b == 'x'"]
include: {lr: 0.5, a: 9, b: q}
repeats: 2
select: a < 9
best: nnse
combine: python combine.py 'all parts'
objective: [{loss: lower}, accuracy]
tuning: {trials: 5, time: 2h}
env: {OMP_NUM_THREADS: 4, X: "{lr}", FLAG: true}
inputs: {data: ./data.csv, given: some/asset, more: {path: "{data.scratch}/x"}}
outputs: "*.txt"
metrics: {loss: 'loss ([0-9.]+)', rate: {unit: 1/s}}
resources: {nodes: "{a}", time: 1:00:00, gpus_per_node: 2}
timeout: 90m
every: 0.5s
code: [train.py, lib]
environment: env.yaml
params: {fixed: 3}
seed: 4
tags: x
system: jureca
"""
    )
    assert found.settings == {"data": {"scratch": "/s/{os.USER}"}, "time": {"1": 5}}
    assert found.variables == ("USER",)
    assert ids(found)[:2] == ["lr_0.1_a_1_b_x_repeat_1", "lr_0.1_a_1_b_x_repeat_2"]
    assert len(found.points) == (2 * 3 - 1) * 2
    assert (found.select, found.best, found.combine) == ("a < 9", "nnse", ("python", "combine.py", "all parts"))
    assert found.objectives == (Objective("loss", "lower"), Objective("accuracy", "higher"))
    assert found.tuning == {"trials": 5, "time": "2h"}
    assert found.fields == {
        "argv": ["python", "train.py", "--lr={lr}", "5"],
        "env": {"OMP_NUM_THREADS": "4", "X": "{lr}", "FLAG": "true"},
        "inputs": {
            "data": {"path": str(tmp_path / "data.csv")},
            "given": {"asset": "some/asset"},
            "more": {"path": "{data.scratch}/x"},
        },
        "outputs": ["*.txt"],
        "metrics": {"loss": {"pattern": "loss ([0-9.]+)"}, "rate": {"unit": "1/s"}},
        "resources": {"nodes": "{a}", "time_s": "1:00:00", "gpus_per_node": 2},
        "timeout_s": 5400.0,
        "watch_s": 0.5,
        "code": [str(tmp_path / "train.py"), str(tmp_path / "lib")],
        "environment": str(tmp_path / "env.yaml"),
        "params": {"fixed": 3},
        "seed": 4,
        "tags": ["x"],
        "system": "jureca",
    }


_WAYS = {"command": "echo {a}", "argv": "echo {a}", "run": "tides", "notebook": "a.ipynb", "template": "job.in.sh"}


@pytest.mark.parametrize("one", _WAYS)
@pytest.mark.parametrize("other", _WAYS)
def test_a_file_names_one_thing_that_its_points_execute(read: Read, one: str, other: str) -> None:
    if one == other:
        assert read(f"{one}: {_WAYS[one]}\naxes: {{a: [1, 2]}}\n").fields
        return
    with pytest.raises(UsageError) as caught:
        read(f"{one}: {_WAYS[one]}\naxes: {{a: [1, 2]}}\n{other}: {_WAYS[other]}\n")
    assert caught.value.message == f"0.yaml:3 {other}: conflicts with `{one}`: a point runs only one of them"
    assert "keep one of them" in caught.value.hint


def test_of_what_several_files_execute_the_last_counts(read: Read, tmp_path: Path) -> None:
    found = read("run: tides\naxes: {a: [1, 2]}\n", "command: echo {a}\n", "template: job.in.sh\n")
    assert found.fields == {"template": str(tmp_path / "job.in.sh")}


def test_a_command_of_the_command_line_runs_with_the_files_of_an_asset(read: Read) -> None:
    assert read("run: tides\naxes: {a: [1, 2]}\n", command=["echo", "{a}"]).fields == {
        "run": "tides",
        "argv": ["echo", "{a}"],
    }


def test_a_file_of_a_run_is_a_definition_too(read: Read) -> None:
    found = read("argv: echo {a}\nparams: {b: 2}\n", params={"a": "1,2"})
    assert found.fields == {"argv": ["echo", "{a}"], "params": {"b": 2}}


# Several files


def test_files_are_merged_deeply_and_the_later_wins(read: Read) -> None:
    found = read(
        "name: one\nsettings: {a: {x: 1, y: 2}, b: 3}\naxes: {lr: [1, 2], m: {uniform: [0, 1]}}\ntags: [p, q]\n",
        "name: two\nsettings: {a: {y: 5}}\naxes: {lr: 7, m: {integer: [1, 4]}, n: a}\ntags: [r]\n",
    )
    assert found.name == "two"
    assert found.settings == {"a": {"x": 1, "y": 5}, "b": 3}
    assert found.points.axes == {"lr": [7], "n": ["a"]}
    assert found.distributions["m"]["kind"] == "integer"
    assert found.fields == {"tags": ["r"]}


def test_a_later_file_may_make_an_axis_of_a_setting_and_a_setting_of_an_axis(read: Read) -> None:
    found = read("settings: {a: 1}\naxes: {b: [1, 2], c: 1}\n", "settings: {b: 3}\naxes: {a: [1, 2]}\n")
    assert found.settings == {"b": 3}
    assert found.points.axes == {"c": [1], "a": [1, 2]}


def test_paths_start_at_the_file_that_says_them(read: Read, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    Path("sub/a.yaml").write_text("code: lib\naxes: {a: 1}\n")
    Path("b.yaml").write_text("notebook: n.ipynb\n")
    found = definition_of([Path("sub/a.yaml"), Path("b.yaml")], params={}, environ={})
    assert found.fields == {"code": [str(tmp_path / "sub/lib")], "notebook": str(tmp_path / "n.ipynb")}


def test_the_place_of_everything_is_known(read: Read) -> None:
    origin = read(
        "command: x\nsettings:\n  time:\n    1: 5\naxes:\n  lr: [1,\n    2]\n", "settings:\n\n  more: 1\n"
    ).origin
    assert origin("command") == "0.yaml:1"
    assert origin("settings", "time", "1") == origin("time", "1") == "0.yaml:4"
    assert origin("axes", "lr", 1) == origin("lr", 1) == "0.yaml:7"
    assert origin("more") == "1.yaml:3"
    assert origin("time", "nothing") == "0.yaml:3"
    assert origin("nothing") == "0.yaml"
    assert read(SMALLEST, params={"lr": 1}).origin("lr") == "-p lr"


# Command line


def test_the_command_line_alone_is_enough(read: Read) -> None:
    found = read(what="bench", params={"lr": "0.1,0.01", "epochs": "range(1,9)"})
    assert len(found.points) == 16
    assert found.fields == {"run": "bench"}
    found = read(command=["python", "t.py", "{lr}"], params={"lr": 0.1})
    assert found.fields == {"argv": ["python", "t.py", "{lr}"]}
    assert ids(found) == ["lr_0.1"]
    assert found.origin("command") == "the command behind --"
    assert "nothing to sweep" in refused(read).message


def test_a_run_file_of_the_command_line_is_found_from_everywhere(read: Read, tmp_path: Path) -> None:
    assert read(what="sub/run.yaml", params={"a": 1}).fields == {"run": str(tmp_path / "sub/run.yaml")}
    assert read(what="sub/run.yaml", params={"a": 1}).name == "run"


def test_parameters_replace_axes_in_their_place_and_settings(read: Read) -> None:
    text = "settings: {a: {x: 1, y: 2}, b: 3}\nparams: {c: 4, d: 5}\naxes: {lr: [1, 2], m: [1, 2]}\nseed: 3\n"
    found = read(text, params={"lr": "[5-6]", "a.x": 9, "b": 0.5, "c": None, "seed": 1})
    assert found.points.axes == {"lr": [5, 6], "m": [1, 2], "a.x": [9], "b": [0.5], "c": [None], "seed": [1]}
    assert found.settings == {"a": {"y": 2}}
    assert found.fields == {"params": {"d": 5}}


def test_one_value_of_the_command_line_stands_still_while_its_partner_advances(read: Read) -> None:
    text = "axes: {a: [1, 2], b: [3, 4]}\nlinked: [[a, b]]\n"
    assert ids(read(text)) == ["a_1_b_3", "a_2_b_4"]
    assert ids(read(text, params={"a": 7})) == ["a_7_b_3", "a_7_b_4"]
    assert "same number" in refused(read, text, params={"a": "1,2,3"}).message


def test_other_keys_can_be_changed(read: Read) -> None:
    found = read(SMALLEST, changes={"select": "lr > 0.05", "repeats": 2, "name": "other"})
    assert (found.name, len(found.points), found.select) == ("other", 4, "lr > 0.05")
    assert refused(read, SMALLEST, changes={"select": "12:00"}).message.startswith(
        "--select: '12:00' is not a condition"
    )
    assert refused(read, SMALLEST, changes={"select": "x > 1"}).message.startswith("--select: no axis named 'x'")
    assert "repeats" in refused(read, SMALLEST, changes={"repeats": 0}).message


def test_a_bad_parameter_is_named(read: Read) -> None:
    assert refused(read, SMALLEST, params={"lr": "[3-1]"}).message.startswith("-p lr: ")
    assert refused(read, SMALLEST, params={"l r": "1"}).message.startswith("-p l r: ")


# Distributions


def test_distributions_are_kept_apart_from_plain_axes(read: Read) -> None:
    found = read(
        """
axes:
  lr: {log: [1e-5, 0.1], when: "optimizer == 'sgd'"}
  drop: {uniform: [0, 1], step: 0.1}
  width: {integer: [1, 64], log: true}
  optimizer: {choice: [sgd, adam]}
  model: a,b
"""
    )
    nothing = {"low": None, "high": None, "log": False, "step": None, "choices": [], "when": ""}
    assert found.distributions == {
        "lr": nothing | {"kind": "uniform", "low": 1e-5, "high": 0.1, "log": True, "when": "optimizer == 'sgd'"},
        "drop": nothing | {"kind": "uniform", "low": 0, "high": 1, "step": 0.1},
        "width": nothing | {"kind": "integer", "low": 1, "high": 64, "log": True},
        "optimizer": nothing | {"kind": "choice", "choices": ["sgd", "adam"]},
    }
    assert ids(found) == ["model_a", "model_b"]


def test_a_parameter_takes_the_place_of_a_distribution(read: Read) -> None:
    text = "axes:\n  lr: {log: [1e-5, 0.1], when: \"opt == 'sgd'\"}\n  opt: {choice: [sgd, adam]}\n"
    found = read(text, params={"lr": 0.1})
    assert (set(found.distributions), found.points.axes) == ({"opt"}, {"lr": [0.1]})
    found = read(text, params={"opt": "sgd"})
    assert found.distributions["opt"]["choices"] == ["sgd"]
    assert found.points.axes == {}


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("{unifrom: [0, 1]}", "unifrom"),
        ("{uniform: [0]}", "two numbers"),
        ("{uniform: [a, b]}", "two numbers"),
        ("{uniform: [0, 1], integer: [0, 1]}", "expected one of"),
        ("{step: 1}", "expected one of"),
        ("{choice: []}", "no values"),
        ("{choice: [a], log: true}", "log"),
        ("{uniform: [0, 1], step: x}", "number"),
        ("{uniform: [0, 1], when: 5}", "condition"),
        ("{uniform: [1, 0]}", ""),
        ("{log: [0, 1]}", ""),
        ("{uniform: [0, 1], when: other > 3}", "other"),
    ],
)
def test_a_distribution_that_is_none_is_refused_with_its_line(read: Read, said: str, word: str) -> None:
    error = refused(read, f"axes:\n  lr: {said}\n")
    assert error.message.startswith("0.yaml:2 axes.lr")
    assert word in error.message


# Mistakes


def test_all_mistakes_of_a_file_are_told_with_their_lines(read: Read) -> None:
    error = refused(read, "name: 5\ncommnd: x\naxes:\n  lr:\n  e: [1, null]\nrepeats: 0\nsettings: 3\n")
    assert isinstance(error, InvalidDocument)
    assert sorted((each.line, each.field) for each in error.problems) == [
        (1, "name"),
        (2, "commnd"),
        (4, "axes.lr"),
        (5, "axes.e.1"),
        (6, "repeats"),
        (7, "settings"),
    ]
    assert {each.file for each in error.problems} == {"0.yaml"}
    assert "did you mean 'command'?" in {each.hint for each in error.problems}


@pytest.mark.parametrize(
    ("text", "start", "word"),
    [
        ("axes: {lr: 1}\nresources: {nodez: 2}\n", "0.yaml:2 resources.nodez", "no such field"),
        ("axes: {lr: 1}\nresources:\n  nodes: many\n", "0.yaml:3 resources.nodes", "many"),
        ("axes: {lr: 1}\ntimeout: soon\n", "0.yaml:2 timeout", "not a duration"),
        ("axes: {lr: 1}\nseed: x\n", "0.yaml:2 seed", "whole number"),
        ("axes: {lr: 1}\nmetrics:\n  loss: '(['\n", "0.yaml:3 metrics.loss.pattern", "regular expression"),
        ("axes: {lr: 1, lr: 2}\n", "0.yaml:1", "twice"),
        ("axes:\n  lr: 1\nsettings: {lr: 1}\n", "0.yaml:2 axes.lr", "an axis and a setting"),
        ("axes: [lr]\n", "0.yaml:1 axes", "expected a mapping"),
        ("axes:\n  a b: 1\n", "0.yaml:2 axes.a b", "not a name for an axis"),
        ("axes:\n  a: [[1]]\n", "0.yaml:2 axes.a", "a list"),
        ("axes:\n  a: '[1-'\n", "0.yaml:2 axes.a", "bracket"),
        ("[1]", "0.yaml:1", "expected a mapping"),
        ("", "0.yaml:1", "expected a mapping"),
        ("axes: {a: 1}\nselect: 12:00:00\n", "0.yaml:2", "not a condition"),
        ("axes: {a: 1}\nexclude:\n- a > 1\n- aa > 1\n", "0.yaml:4 exclude.1", "did you mean 'a'"),
        ("axes: {a: 1}\nexclude: [5]\n", "0.yaml:2 exclude.0", "condition"),
        ("axes: {a: 1}\ninclude: [5]\n", "0.yaml:2 include.0", "mapping"),
        ("axes: {a: 1}\nlinked: [[a]]\n", "0.yaml:2 linked.0", "two or more"),
        ("axes: {a: [1, 2], b: 1}\nlinked:\n- [a, b]\n", "0.yaml:3 linked.0", "same number"),
        ("axes: {a: 1}\nobjective: thing\n", "0.yaml:2 objective", "the direction of 'thing' is unknown"),
        ("axes: {a: 1}\nobjective: {loss: down}\n", "0.yaml:2 objective.loss", "down"),
        ("axes: {a: 1}\nvariables: [1x]\n", "0.yaml:2 variables.0", "1x"),
        ("axes: {a: 1}\ncommand: 'a \"b'\n", "0.yaml:2 command", "quotation"),
        ("axes: {a: 1}\ncommand: []\n", "0.yaml:2 command", "empty"),
        ("axes: {a: 1}\ncommand: x\nnotebook: n.ipynb\n", "0.yaml:3 notebook", "runs only one of them"),
        ("name: my sweep\naxes: {a: 1}\n", "0.yaml:1 name", "my sweep"),
        ('{"axes": {"a": 1,\n"b": null}}', "0.yaml:2 axes.b", "null"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_line_and_field(read: Read, text: str, start: str, word: str) -> None:
    error = refused(read, text)
    assert error.message.startswith(f"{start}: ")
    assert word in error.message
    assert error.exit_code == 2


def test_a_value_with_placeholders_is_checked_only_when_it_is_known(read: Read) -> None:
    found = read('axes: {n: [1, 2]}\nresources: {nodes: "{n}", time: "{t.{n}}"}\ntimeout: "{t}"\nseed: "{n}"\n')
    assert found.fields["resources"] == {"nodes": "{n}", "time_s": "{t.{n}}"}
    assert found.fields["timeout_s"] == "{t}"


def test_a_file_that_is_not_there_is_named(read: Read) -> None:
    with pytest.raises(NotFound, match=r"no such file: none\.yaml"):
        definition_of([Path("none.yaml")], params={}, environ={})


# Sources

PROJECT = 'name: old\nconfig: more.yaml\nexperiment:\n  epoch: "1,30"\n  wall: "12:00:00"\n'


def test_a_source_is_json_and_gives_the_same_when_the_files_are_gone(read: Read, tmp_path: Path) -> None:
    Path("a.yaml").write_text(SMALLEST + "code: lib\nselect: lr > 0.05\n")
    source = collect_source([Path("a.yaml")], params={"x": (1, 2)}, command=["echo", "{lr}"])
    kept = Source.from_dict(json.loads(json.dumps(source.to_dict())))
    assert kept == source
    before = read_definition(source, {})
    Path("a.yaml").unlink()
    after = read_definition(kept, {})
    assert list(after.points) == list(before.points)
    assert len(after.points) == 4
    assert after.fields == {"argv": ["echo", "{lr}"], "code": [str(tmp_path / "lib")]}
    assert after.origin("axes", "lr") == "a.yaml:4"


@pytest.mark.parametrize("change", [Path.unlink, lambda file: file.write_text("experiment: {epoch: 5}\n")])
def test_a_project_of_cloudmesh_is_kept_with_the_files_that_it_names(read: Read, change: Any, tmp_path: Path) -> None:
    Path("more.yaml").write_text("data: {scratch: /x}\n")
    Path("old.yaml").write_text(PROJECT)
    source = Source.from_dict(json.loads(json.dumps(collect_source([Path("old.yaml")], params={}).to_dict())))
    before = read_definition(source, {})
    change(Path("old.yaml"))
    change(Path("more.yaml"))
    after = read_definition(source, {})
    for found in (before, after):
        assert (found.dialect.name, found.prefix, found.name) == ("cloudmesh", "experiment", "old")
        assert ids(found) == ["epoch_1_wall_12:00:00", "epoch_30_wall_12:00:00"]
        assert found.settings["data"] == {"scratch": "/x"}
        assert set(found.sources) == {str(tmp_path / "old.yaml"), str(tmp_path / "more.yaml")}
    assert before.origin("experiment", "epoch") == "old.yaml:4"
    assert after.origin("experiment", "epoch") == f"{tmp_path}/old.yaml:4"


def test_a_project_of_cloudmesh_can_be_changed_from_the_command_line(read: Read) -> None:
    found = read(
        PROJECT.replace("config: more.yaml\n", ""),
        changes={"select": "epoch > 5", "repeats": 2, "name": "new"},
        command=["echo"],
        params={"epoch": "[1-9]"},
    )
    assert found.name == "new"
    assert ids(found)[:2] == ["epoch_6_wall_12:00:00_repeat_1", "epoch_6_wall_12:00:00_repeat_2"]
    assert len(found.points) == 8
    assert found.fields["argv"] == ["echo"]


def test_a_source_of_another_version_is_refused() -> None:
    with pytest.raises(UsageError, match="another version"):
        Source.from_dict({"format": 99})
