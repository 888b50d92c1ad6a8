"""Who follows a flow gets its graph once, with places and states, and then only what changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from sweep_making import wait_until

from fairmile.flows.flows import Flows

Write = Callable[[str], Path]
PROGRAM = "from fairmile.cli.main import main; main()"
STEPS = """\
steps:
  first: {shell: touch first, outputs: first}
  many: {shell: 'while ! test -e go; do sleep 0.05; done; touch m{n}; test {n} != 3', over: {n: 1..9}, inputs: first,
         outputs: 'm{n}'}
  last: {shell: touch last, inputs: [first, 'm*'], outputs: last}
"""


def started(tmp_path: Path, file: Path) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    argv = [sys.executable, "-c", PROGRAM, "flow", "run", str(file), "-j", "2"]
    return subprocess.Popen(argv, env=environ, stderr=subprocess.DEVNULL)


def test_a_picture_has_places_and_states_and_changes_have_only_what_happened_since(
    flows: Flows, write: Write, tmp_path: Path
) -> None:
    file = write(STEPS)
    picture = flows.picture(file).to_dict()
    assert [(box["name"], box["count"], box["state"]) for box in picture["boxes"]] == [
        *[("first", 1, "waiting"), ("many × 9", 9, "waiting"), ("last", 1, "waiting")]
    ]
    assert picture["edges"] == [[0, 1], [1, 2]]  # that `last` takes `first` is implied
    assert all(box["x"] + box["width"] <= picture["width"] for box in picture["boxes"])
    assert [box["y"] for box in picture["boxes"]] == sorted(box["y"] for box in picture["boxes"])
    process = started(tmp_path, file)
    wait_until(lambda: flows.status(file).counts().get("running") == 2)
    begun = flows.changes(file, since=picture["cursor"]).to_dict()
    assert {"first", "many[1]", "many[2]"} <= {step["name"] for step in begun["steps"]}
    assert [box["id"] for box in begun["boxes"][:2]] == [0, 1]
    assert begun["layout"] == picture["layout"]  # boxes keep their places while their texts change
    ElementTree.fromstring(begun["boxes"][0]["svg"])
    still = flows.changes(file, since=begun["cursor"])
    assert (still.cursor, still.to_dict()["steps"], still.to_dict()["boxes"]) == (begun["cursor"], [], [])
    Path("go").touch()
    assert process.wait(300) == 1
    end = flows.changes(file, since=still.cursor).to_dict()
    assert (end["is_over"], end["holder"]) == (True, "")
    assert {step["name"]: step["state"] for step in end["steps"]}["last"] == "left out"
    assert not flows.changes(file, since=end["cursor"]).changed


def test_a_cursor_of_another_time_brings_everything(flows: Flows, write: Write) -> None:
    file = write("steps:\n  a: {command: touch a, outputs: a}\n  b: {command: touch b, inputs: a, outputs: b}\n")
    flows.run(file)
    for cursor in ("", "nonsense", "1-5.abc"):
        assert {step.name for step in flows.changes(file, since=cursor).steps} == {"a", "b"}


def test_what_is_left_out_is_shown_while_the_flow_still_runs(flows: Flows, write: Write, tmp_path: Path) -> None:
    file = write(
        "steps:\n  bad: {command: 'false'}\n  after: {command: touch after, after: bad}\n"
        "  slow: {shell: 'while ! test -e go; do sleep 0.05; done'}\n"
    )
    process = started(tmp_path, file)
    wait_until(lambda: flows.status(file).step("after").state == "left out")
    assert flows.status(file).step("after").reason == "`bad` failed"
    Path("go").touch()
    process.wait(300)
