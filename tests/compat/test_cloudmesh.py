"""Projects of cloudmesh-ee and cloudmesh-sbatch are read as they are; what is wrong in one is told with its line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import FairmileError, InvalidDocument, NotFound, UsageError
from fairmile.compat.cloudmesh import directives, read_project, sbatch_lines
from fairmile.resolve import parse_document
from fairmile.sweeps.model import Definition
from fairmile.sweeps.templates import Texts

ENVIRON = {"USER": "ann"}
OSMI = """\
name: osmi-training
ee:
  time: "0:30:00"
submission:
  benchmark: {name}
  by: [{name}]
experiment:
  model: "small,large"
  directive: "default"
  repeat: "1,2"
time:
  small: 5
  large: 60
identifier: "{experiment.directive}_{experiment.model}-{experiment.repeat}"
system:
  host: crusher
run: {dir: "/scratch/{os.USER}", start: 12:00:00}
"""
EARTHQUAKE = """\
name: earthquake-project
mode: h
epochs: 20
experiments:
  card_name: "a100,p100"
  gpu_count: 1
  epochs: "2,10"
attributes:
  time: "3-0"
  user: {account: ds6011}
  system: {host: rivanna, partition: gpu}
"""


def project(folder: Path, text: str, name: str = "config.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def read(folder: Path, text: str, **more: Any) -> Definition:
    return read_project([project(folder, text)], environ=ENVIRON, **more)


def scripts(definition: Definition, template: str) -> list[str]:
    texts = Texts(definition, ENVIRON)
    compiled = texts.compile(template, Path("job.in.slurm"))
    return [texts.fill(compiled, point) for point in definition.points]


def refusal(folder: Path, text: str, **more: Any) -> FairmileError:
    with pytest.raises(FairmileError) as error:
        read(folder, text, **more)
    assert error.value.exit_code == 2
    return error.value


def test_ids_name_every_parameter_and_the_last_one_advances_first(tmp_path: Path) -> None:
    definition = read(tmp_path, OSMI)
    assert [point.id for point in definition.points] == [
        f"model_{model}_directive_default_repeat_{repeat}" for model in ("small", "large") for repeat in (1, 2)
    ]
    assert (definition.name, definition.prefix, definition.dialect.name) == ("osmi-training", "experiment", "cloudmesh")
    assert definition.variables == ("USER",)


def test_a_template_is_filled_as_cloudmesh_fills_it(tmp_path: Path) -> None:
    template = (
        "{slurm.sbatch}\n#SBATCH --time={time.{experiment.model}} -J {identifier}\n"
        "{ee.identifier} {ee.time} {run.dir} ${X}"
    )
    assert scripts(read(tmp_path, OSMI), template)[2] == (
        "#SBATCH --partition=batch\n#SBATCH --time=60 -J default_large-1\n"
        "model_large_directive_default_repeat_1 0:30:00 /scratch/ann ${X}"
    )


def test_the_settings_of_a_point_are_those_of_the_file_with_its_values(tmp_path: Path) -> None:
    definition = read(tmp_path, OSMI)
    point = next(iter(definition.points))
    found = Texts(definition, ENVIRON).settings(point)
    uuid = found["ee"].pop("uuid")
    assert len(uuid) == 36
    assert found == {
        "name": "osmi-training",
        "ee": {"time": "0:30:00", "identifier": point.id},
        "submission": {"benchmark": "osmi-training", "by": ["osmi-training"]},
        "experiment": {"model": "small", "directive": "default", "repeat": "1", "card_name": "default"},
        "time": {"small": 5, "large": 60},
        "identifier": "default_small-1",
        "system": {"host": "crusher"},
        "run": {"dir": "/scratch/ann", "start": "12:00:00"},
        "slurm": {"sbatch": "#SBATCH --partition=batch"},
    }
    assert list(found)[:4] == ["name", "ee", "submission", "experiment"]


def test_the_older_form_with_attributes_is_read_too(tmp_path: Path) -> None:
    definition = read(tmp_path, EARTHQUAKE)
    assert [point.id for point in definition.points][:2] == [
        "card_name_a100_gpu_count_1_epochs_2",
        "card_name_a100_gpu_count_1_epochs_10",
    ]
    template = (
        "{card_name} {experiment.card_name} {experiments.card_name} {time} {attributes.time} {user.account} "
        "{system.partition} {epochs} {slurm.directive.gres}\n{slurm.sbatch}"
    )
    assert scripts(definition, template)[-1] == (
        "p100 p100 p100 3-0 3-0 ds6011 gpu 10 gpu:p100:1\n"
        "#SBATCH --gres=gpu:p100:1\n#SBATCH --partition=gpu\n#SBATCH --account=bii_dsc_community"
    )


def test_older_templates_find_their_uuids(tmp_path: Path) -> None:
    made = scripts(read(tmp_path, EARTHQUAKE), "{meta.uuid} {ee.uuid} {meta.parent.uuid} {sbatch.identifier}")
    rows = [each.split() for each in made]
    assert all(row[0] == row[1] for row in rows)
    assert len({row[0] for row in rows}) == len(rows) == 4
    assert len({row[2] for row in rows}) == 1
    assert rows == [
        each.split()
        for each in scripts(read(tmp_path, EARTHQUAKE), "{meta.uuid} {ee.uuid} {meta.parent.uuid} {ee.identifier}")
    ]


def test_parameters_stay_texts_and_keep_their_form(tmp_path: Path) -> None:
    text = (
        'experiment: {a: "[08-10]", b: "x[1-2]y", c: 12:00:00, d: 0.001, e: False, f: "1,2,1", g: [1, z], h: "l:a,b"}\n'
    )
    assert dict(read(tmp_path, text).points.axes) == {
        "a": ["08", "09", "10"],
        "b": ["x1y", "x2y"],
        "c": ["12:00:00"],
        "d": [0.001],
        "e": [False],
        "f": ["1", "2"],
        "g": [1, "z"],
        "h": ["l:a", "l:b"],
    }


def test_parameters_may_be_one_text_and_may_name_settings(tmp_path: Path) -> None:
    assert dict(read(tmp_path, "experiment: epoch=[1-2,5] x=1,3\n").points.axes) == {
        "epoch": ["1", "2", "5"],
        "x": ["1", "3"],
    }
    text = 'sizes: "1,2"\nname: n\nexperiment: {size: "{sizes}", by: {name}}\n'
    assert dict(read(tmp_path, text).points.axes) == {"size": ["1", "2"], "by": ["n"]}


def test_json_is_read_too(tmp_path: Path) -> None:
    file = project(tmp_path, json.dumps({"experiment": {"x": "a,b"}, "n": 1}), "config.json")
    assert scripts(read_project([file], environ={}), "{experiment.x}{n}") == ["a1", "b1"]


def test_a_later_file_replaces_whole_sections(tmp_path: Path) -> None:
    one = project(tmp_path, "experiment: {x: 'a,b'}\nsystem: {p: 1, q: 2}\nr: 3\n", "one.yaml")
    two = project(tmp_path, "system: {q: 5}\n", "two.yaml")
    definition = read_project([one, two], environ={})
    assert scripts(definition, "{experiment.x} {system.q} {r}") == ["a 5 3", "b 5 3"]
    with pytest.raises(UsageError, match=r"\{system\.p\} is not defined"):
        scripts(definition, "{system.p}")
    assert definition.origin("system", "q") == f"{two}:1"
    assert definition.origin("r") == f"{one}:3"
    assert definition.sources == (str(one), str(two))


def test_a_file_named_in_config_comes_before_the_one_that_names_it(tmp_path: Path) -> None:
    project(tmp_path, "a: 1\nb: 1\n", "base.yaml")
    definition = read(tmp_path, "config: base.yaml\nb: 2\nexperiment: {x: 1}\n")
    assert scripts(definition, "{a} {b}") == ["1 2"]
    assert refusal(tmp_path, "n: 1\nconfig: gone.yaml\nexperiment: {x: 1}\n").message.startswith(
        f"{tmp_path}/config.yaml:2: no such file"
    )
    assert len(read(tmp_path, "config: config.yaml\nexperiment: {x: 1}\n").points) == 1


def test_parameters_of_the_command_line_replace_and_add(tmp_path: Path) -> None:
    params = {"repeat": "7,8", "experiment.seed": "1", "system.host": "frontier"}
    definition = read(tmp_path, OSMI, params=params)
    assert [point.id for point in definition.points][1] == "model_small_directive_default_repeat_8_seed_1"
    assert scripts(definition, "{system.host}")[0] == "frontier"
    assert len(read(tmp_path, "n: 1\n", params={"x": "1,2,3"}).points) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n: 1\nexperiment:\n  epoch:\n", "{file}:2 experiment: has no parameters"),
        ("n: 1\nexperiment:\n", "{file}:2 experiment: has no parameters"),
        ("experiment: {x: 1}\na: [1\n", "{file}:3: "),
        ("n: 1\n", "{file}: the file defines no experiments"),
        ("n: 1\nexperiment: {}\n", "{file}:2 experiment: has no parameters"),
        ("n: 1\nexperiment: 5\n", "{file}:2: expected parameters with their values"),
        ("- a\n", "{file}:1: expected settings"),
        ('experiment:\n  x: "{nope}"\n', "{file}:2: {{nope}} is not defined"),
        ("experiment:\n  y: 1\n  x: [1, [2]]\n", "{file}:3 experiment.x: expected a single value, found a list"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).message.startswith(message.format(file=tmp_path / "config.yaml"))


NULLS = """
experiment: {x: "1,2", epoch: ~}
ee:
slurm:
system: {host: ~, reservation: ~}
attributes:
  user: {account: ~}
"""


def test_what_has_no_value_counts_as_absent_until_something_needs_it(tmp_path: Path) -> None:
    definition = read(tmp_path, NULLS)
    assert [point.id for point in definition.points] == ["x_1", "x_2"]
    assert scripts(definition, "{ee.identifier} {experiment.x}") == ["x_1 1", "x_2 2"]
    settings = Texts(definition, {}).settings(next(iter(definition.points)))
    assert settings["system"] == {"host": None, "reservation": None}  # a program may ask for it
    for name, line in (("system.reservation", 5), ("user.account", 7), ("experiment.epoch", 2)):
        with pytest.raises(UsageError) as error:
            scripts(definition, f"#!/bin/sh\n{{{name}}}")
        why = f"{tmp_path / 'config.yaml'}:{line} has no value (null)"
        assert error.value.message.endswith(f":2: {{{name}}} is not defined: {why}")


def test_a_null_among_the_values_of_a_parameter_is_one(tmp_path: Path) -> None:
    definition = read(tmp_path, "experiment: {preset: [~, dark]}")
    assert scripts(definition, "{experiment.preset}") == ["None", "dark"]


def test_the_command_line_reaches_what_stands_below_attributes(tmp_path: Path) -> None:
    text = "experiments: {n: 1}\nattributes: {user: {account: a, mail: m}, depth: 3}\n"
    definition = read(tmp_path, text, params={"user.account": "b"})
    assert scripts(definition, "{user.account} {user.mail} {attributes.user.account}") == ["b m b"]
    assert scripts(read(tmp_path, text, params={"depth": "4,5"}), "{depth}") == ["4", "5"]
    assert scripts(read(tmp_path, text, params={"other.name": "c"}), "{other.name}") == ["c"]
    with pytest.raises(UsageError, match=r"^-p user\.account: \{nope\} is not defined"):
        scripts(read(tmp_path, text, params={"user.account": "{nope}"}), "{user.account}")


def test_a_parameter_of_the_command_line_takes_the_place_of_a_setting_of_its_name(tmp_path: Path) -> None:
    text = "experiment: {n: 1}\nmask: float\n"
    assert scripts(read(tmp_path, text, params={"mask": "int,float"}), "{mask}") == ["int", "float"]


def test_all_names_that_are_not_defined_are_told_at_once(tmp_path: Path) -> None:
    definition = read(tmp_path, "experiment: {x: 1}\nrun:\n  a: '{gone} {lost.a}'\n  b: '{left}'\n")
    with pytest.raises(InvalidDocument) as error:
        scripts(definition, "{aa}\n{run.a}\n{bb} {cc.dd}\n{aa}\n")
    config = tmp_path / "config.yaml"
    assert [problem.message for problem in error.value.problems] == [
        "job.in.slurm:1: {aa} is not defined",
        f"{config}:3: {{gone}} is not defined",
        f"{config}:3: {{lost.a}} is not defined",
        "job.in.slurm:3: {bb} is not defined",
        "job.in.slurm:3: {cc.dd} is not defined",
        "job.in.slurm:4: {aa} is not defined",
    ]


def test_of_a_key_that_appears_twice_the_last_one_counts_and_a_note_says_so(tmp_path: Path) -> None:
    text = "experiment: {n: 1}\nrun: {branch: main}\nrun: {branch: work}\n"
    definition = read(tmp_path, text)
    assert scripts(definition, "{run.branch}") == ["work"]
    note = f"{tmp_path / 'config.yaml'}:3: the key 'run' appears twice in one mapping; the last one counts"
    assert definition.notes == (note,)
    file = tmp_path / "config.yaml"
    assert parse_document(text, str(file)).data["run"] == {"branch": "work"}
    with pytest.raises(InvalidDocument, match="the key 'axes' appears twice"):
        parse_document("axes: {n: 1}\naxes: {n: 2}\n", "own.yaml")


def test_generated_experiments_execute_their_scripts_in_their_folders(tmp_path: Path) -> None:
    manifest = {}
    for epochs in (2, 10):
        id = f"card_name_v100_epochs_{epochs}"
        folder = tmp_path / "localscratch" / id
        folder.mkdir(parents=True)
        (folder / "run.slurm").write_text(f"#!/bin/sh\necho {epochs} > epochs.txt\n")
        old = f"/sfs/home/somebody/localscratch/{id}"  # as on the machine where they were generated
        row = {"id": id, "directory": old, "experiment": f"card_name=v100 epochs={epochs}", "variables": {}}
        manifest[id] = {**row, "script": f"{old}/run.slurm", "config": f"{old}/config.yaml"}
    file = tmp_path / "localscratch.json"
    file.write_text(json.dumps(manifest))
    definition = read_project([file], environ={})
    assert [point.id for point in definition.points] == list(manifest)
    texts = Texts(definition, {})
    for point in definition.points:
        argv = [texts.fill(texts.compile(word, "argv"), point) for word in definition.fields["argv"]]
        subprocess.run(argv, check=True)
    assert (tmp_path / "localscratch/card_name_v100_epochs_10/epochs.txt").read_text() == "10\n"
    (tmp_path / "localscratch/card_name_v100_epochs_2/run.slurm").unlink()
    with pytest.raises(NotFound, match=r"there is no .*card_name_v100_epochs_2/run\.slurm"):
        read_project([file], environ={})


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        read_project([tmp_path / "gone.yaml"], environ={})


def test_an_unknown_host_or_directive_is_told_where_the_project_counts_on_it(tmp_path: Path) -> None:
    text = "ee: {}\nexperiment: {directive: a100}\nsystem:\n  python: 3\n  host: rivana\n"
    error = refusal(tmp_path, text)
    assert error.message == f"{tmp_path}/config.yaml:5: no Slurm directives are known for the host 'rivana'"
    assert (error.hint or "").startswith("did you mean 'rivanna'?")
    error = refusal(tmp_path, text.replace("rivana", "rivanna").replace("a100", "a10"))
    assert error.message == f"{tmp_path}/config.yaml:5: the host 'rivanna' has no directive 'a10'"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "experiment: {directive: default}\nsystem: {host: mine}\n",
            "no Slurm directives are known for the host 'mine'",
        ),
        ("experiment: {card_name: b200}\nsystem: {host: rivanna}\n", "the host 'rivanna' has no directive 'b200'"),
        (
            "experiment: {x: 1}\nsystem: {host: mine}\n",
            "its lines come from `experiment.directive`, which is missing",
        ),
        ("experiment: {directive: a100}\n", "its lines come from `system.host`, which is missing"),
    ],
)
def test_else_a_host_matters_only_where_the_template_needs_its_lines(tmp_path: Path, text: str, why: str) -> None:
    definition = read(tmp_path, text)
    assert scripts(definition, "echo") == ["echo"]
    with pytest.raises(UsageError) as error:
        scripts(definition, "#!/bin/sh\n{slurm.sbatch}")
    assert error.value.message == f"job.in.slurm:2: {{slurm.sbatch}} is not defined: {why}"


def test_a_project_brings_directives_of_its_own_and_the_host_may_be_a_parameter(tmp_path: Path) -> None:
    text = """\
experiment: {host: "mine,crusher", directive: default}
system: {host: "{experiment.host}"}
directives: {mine: {default: {partition: gpu, nodes: 2}}}
"""
    assert scripts(read(tmp_path, text), "{slurm.sbatch}") == [
        "#SBATCH --partition=gpu\n#SBATCH --nodes=2",
        "#SBATCH --partition=batch",
    ]
    lost = read(tmp_path, text.replace("mine,", "lost,"))
    with pytest.raises(UsageError, match="the host has no such directive"):
        scripts(lost, "{slurm.sbatch}")


def test_the_card_is_the_directive_up_to_the_dash(tmp_path: Path) -> None:
    text = 'experiment: {directive: "a100-dgx,v100"}\nsystem: {host: rivanna}\n'
    assert scripts(read(tmp_path, text), "{experiment.card_name}") == ["a100", "v100"]
    own = text.replace("{directive", "{card_name: mine, directive")
    assert scripts(read(tmp_path, own), "{experiment.card_name}") == ["mine", "mine"]


def test_every_host_of_the_table_has_directives() -> None:
    assert directives("rivanna", "a100-dgx") == {
        "gres": "gpu:a100:1",
        "reservation": "bi_fox_dgx",
        "partition": "bii-gpu",
        "account": "bii_dsc_community",
    }
    assert sbatch_lines(directives("greene", "v100")) == "#SBATCH --gres=gpu:v100:1"
    with pytest.raises(NotFound, match="the host 'greene' has no directive 'k80'"):
        directives("greene", "k80")


PROGRAM = "import math\nprint('hello')\n_hidden = 1\nn = 40 + 2\nexperiment = {'x': 'a,b'}\ndef f(): pass\n"


def test_a_program_is_not_executed_unasked(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for name in ("config.py", "config.ipynb"):
        file = project(tmp_path, f"open({str(trace)!r}, 'w')\n", name)
        with pytest.raises(UsageError, match="is a program, which is executed only with --allow-code"):
            read_project([file], environ={})
    assert not trace.exists()


def test_a_program_is_executed_when_asked_and_its_plain_variables_are_the_settings(tmp_path: Path) -> None:
    definition = read_project([project(tmp_path, PROGRAM, "config.py")], environ={}, allow_code=True)
    assert scripts(definition, "{experiment.x} {n}") == ["a 42", "b 42"]
    assert not {"math", "f", "_hidden"} & set(definition.settings)


def test_the_code_of_a_notebook_is_executed_when_asked(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# not code"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!ls\n", "n = 1"]},
        {"cell_type": "code", "source": "experiment = {'x': f'{n},2'}"},
    ]
    file = project(tmp_path, json.dumps({"cells": cells}), "config.ipynb")
    definition = read_project([file], environ={}, allow_code=True)
    assert dict(definition.points.axes) == {"x": ["1", "2"]}


def test_a_program_that_fails_is_told_in_one_sentence(tmp_path: Path) -> None:
    file = project(tmp_path, "raise ValueError('no luck')\n", "config.py")
    with pytest.raises(UsageError, match=r"config\.py failed: ValueError: no luck"):
        read_project([file], environ={}, allow_code=True)


def test_an_undefined_name_in_a_setting_that_no_script_uses_stays(tmp_path: Path) -> None:
    definition = read(tmp_path, "experiment:\n  x: 1\nrun:\n  log: '/scratch/{user}/{experiment.x}'\n")
    assert scripts(definition, "{experiment.x}") == ["1"]
    settings = Texts(definition, {}).settings(next(iter(definition.points)))
    assert settings["run"] == {"log": "/scratch/{user}/{experiment.x}"}
    with pytest.raises(UsageError, match=r"\{user\} is not defined"):
        scripts(definition, "{run.log}")
