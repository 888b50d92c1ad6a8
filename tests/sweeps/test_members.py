"""From a point to its run: what all points share, what each says otherwise, and who has the last word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sweep_making import workspace_here

from fairmile.base.errors import UsageError
from fairmile.sweeps.sweeps import Sweeps


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweeps:
    monkeypatch.chdir(tmp_path)
    return workspace_here(tmp_path).sweeps


def members(sweeps: Sweeps, text: str, **changes: Any) -> list[dict[str, Any]]:
    """Return the members of a sweep, each with its specification as a whole."""
    Path("s.yaml").write_text(text)
    definition, source = sweeps.read([Path("s.yaml")])
    sweep = sweeps.create(definition, source, **changes)
    shared = json.loads((sweep.folder / "batch.json").read_text())["document"]["spec"]
    lines = (sweep.folder / "members.jsonl").read_text().splitlines()
    return [{**shared, **json.loads(line)["spec"]} for line in lines]


@pytest.mark.parametrize(
    "said", ["inputs: {data: './{n}.txt'}", "system: 'rig{n}'", "software: ['gcc/{n}']", "folder: '/tmp/{n}'"]
)
def test_what_is_prepared_once_for_all_cannot_depend_on_an_axis(sweeps: Sweeps, said: str) -> None:
    with pytest.raises(UsageError, match=r"s\.yaml:3.*cannot depend on an axis"):
        members(sweeps, f"name: s\ncommand: echo {{n}}\n{said}\naxes: {{n: [1, 2]}}\n")
    assert sweeps.ls() == []


def test_it_may_depend_on_settings_that_are_the_same_everywhere(sweeps: Sweeps, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    text = "name: s\ncommand: cat {inputs.data} {n}\ninputs: {data: './{which}.txt'}\nsettings: {which: a}\n"
    (only,) = members(sweeps, text + "axes: {n: [1]}\n")
    assert only["inputs"]["data"]["path"] == str(tmp_path / "a.txt")


def test_the_command_line_goes_before_the_file_at_every_point(sweeps: Sweeps) -> None:
    text = "name: s\ncommand: 'true'\nresources: {nodes: '{n}', partition: slow}\nenv: {A: '{n}', B: file}\n"
    changes: dict[str, Any] = {"resources": {"partition": "fast"}, "env": {"B": "line"}}
    found = members(sweeps, text + "axes: {n: [1, 2]}\n", **changes)
    assert [each["resources"] for each in found] == [
        {"nodes": 1, "partition": "fast"},
        {"nodes": 2, "partition": "fast"},
    ]
    assert [each["env"] for each in found] == [{"A": "1", "B": "line"}, {"A": "2", "B": "line"}]
    assert {
        each["resources"]["nodes"] for each in members(sweeps, text + "axes: {n: [1, 2]}\n", resources={"nodes": 3})
    } == {3}


def test_repeats_count_up_from_a_seed_that_depends_on_an_axis(sweeps: Sweeps) -> None:
    text = "name: s\ncommand: echo {seed}\nseed: '{first}'\nrepeats: 2\naxes: {first: [10, 20]}\n"
    assert [each["seed"] for each in members(sweeps, text)] == [10, 11, 20, 21]


def test_a_time_limit_needs_a_unit(sweeps: Sweeps) -> None:
    text = "name: s\ncommand: echo {n}\naxes: {n: [1]}\n"
    with pytest.raises(UsageError, match=r"s\.yaml:4 timeout: 15 has no unit: write 15m .* or 15s"):
        members(sweeps, text + "timeout: 15\n")
    assert members(sweeps, text + "timeout_s: 15\n")[0]["timeout_s"] == 15


def test_repeats_of_a_benchmark_have_seeds_of_their_own(sweeps: Sweeps) -> None:
    text = "name: s\ncommand: true -m fairmile.benchmarks mnist {n}\nrepeats: 2\naxes: {n: [1]}\n"
    assert [each["seed"] for each in members(sweeps, text)] == [0, 1]
    assert [each["seed"] for each in members(sweeps, text + "seed: 3\n")] == [3, 4]


def test_a_template_asks_its_scheduler_beside_what_the_file_asks_for(sweeps: Sweeps) -> None:
    head = "#!/bin/sh\n#SBATCH --qos=q{n}\n#SBATCH\t--hint=nomultithread\n#SBATCH --output=x.log\n#SBATCH -J name\n"
    Path("job.in.sh").write_text(head + "echo {n}\n")
    text = "name: s\ntemplate: job.in.sh\nresources: {options: ['--exclusive']}\naxes: {n: [1, 2]}\n"
    assert [each["resources"]["options"] for each in members(sweeps, text)] == [
        ["--qos=q1", "--hint=nomultithread", "--exclusive"],
        ["--qos=q2", "--hint=nomultithread", "--exclusive"],
    ]


def test_the_time_of_a_template_is_that_of_a_point_and_what_is_said_beside_it_goes_before_it(sweeps: Sweeps) -> None:
    Path("job.in.sh").write_text("#!/bin/sh\n#SBATCH --time={n}\n#SBATCH -p slow\n#SBATCH -N 1 -n 4\necho {n}\n")
    text = "name: s\ntemplate: job.in.sh\naxes: {n: [1, '0:02:00']}\n"
    found = [each["resources"] for each in members(sweeps, text)]
    assert found == [{"time_s": time_s, "options": ["-p slow", "-N 1 -n 4"]} for time_s in (60, 120)]
    found = [each["resources"] for each in members(sweeps, text, resources={"partition": "fast", "time_s": 5})]
    assert found == [{"time_s": 5, "partition": "fast", "options": ["-N 1 -n 4"]}] * 2
