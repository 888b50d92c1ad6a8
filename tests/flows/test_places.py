"""Files of a flow move between machines only when a step needs them where they are not, and a host may go away."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from far_systems import plain_system
from ssh_server import SshServer, Wire
from sweep_making import wait_until, workspace_here

from fairmile.base import commands
from fairmile.base.errors import Transient
from fairmile.workspace import Workspace

LARGE = 3_000_000
CHAIN = """\
name: chain
steps:
  make: {{shell: head -c {size} /dev/urandom > 'a file.bin', on: {first}, outputs: a file.bin}}
  turn: {{shell: tr a b < 'a file.bin' > turned.bin, on: {second}, inputs: a file.bin, outputs: turned.bin}}
  sum: {{shell: sha256sum < turned.bin > sum.txt, on: {second}, inputs: turned.bin, outputs: sum.txt}}
"""


@pytest.fixture(scope="module")
def other_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with SshServer(tmp_path_factory.mktemp("other-sshd")) as server:
        yield server


@pytest.fixture
def wire(sshd: SshServer) -> Iterator[Wire]:
    with Wire(sshd.port) as wire:
        yield wire


@pytest.fixture
def workspace(
    tmp_path: Path, sshd: SshServer, other_sshd: SshServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    """A workspace with the ssh machines `far`, whose bytes are counted, and `other`."""
    monkeypatch.chdir(tmp_path)
    counted = SimpleNamespace(config=tmp_path / "counted_config")
    sshd.through(wire, counted.config)
    return workspace_here(tmp_path, plain_system(counted, tmp_path) + plain_system(other_sshd, tmp_path, "other"))


def test_steps_on_one_host_take_files_where_they_are_and_results_come_home(
    workspace: Workspace, tmp_path: Path, wire: Wire
) -> None:
    Path("flow.yaml").write_text(CHAIN.format(size=LARGE, first="far", second="far"))
    status = workspace.flows.run("flow.yaml")
    assert status.counts() == {"done": 3}, status.to_dict()
    assert wire.bytes < LARGE / 2  # records and the recorder, but none of the two large files
    assert sorted(each.name for each in tmp_path.glob("*.bin")) == []
    turned = next((tmp_path / "far").glob("*/run/work/turned.bin"))
    assert Path("sum.txt").read_text().split()[0] == hashlib.sha256(turned.read_bytes()).hexdigest()
    assert workspace.flows.plan("flow.yaml").is_up_to_date
    # A step that needs them here brings them, and those before it do not run again.
    text = Path("flow.yaml").read_text()
    Path("flow.yaml").write_text(
        text + "  here: {shell: cat turned.bin > here.out, inputs: turned.bin, outputs: here.out}\n"
    )
    assert workspace.flows.plan("flow.yaml").steps["turn"].reason == "output turned.bin is on far"
    assert workspace.flows.run("flow.yaml").counts() == {"done": 4}
    assert Path("here.out").read_bytes() == turned.read_bytes()


def test_what_a_host_has_by_digest_is_not_sent_again(workspace: Workspace, wire: Wire) -> None:
    Path("data.bin").write_bytes(os.urandom(LARGE))
    step = "{shell: wc -c < data.bin > NAME.txt, on: far, inputs: data.bin, outputs: NAME.txt}\n"
    Path("flow.yaml").write_text("steps:\n  a: " + step.replace("NAME", "a"))
    workspace.flows.run("flow.yaml")
    assert wire.bytes > LARGE
    before = wire.bytes
    Path("flow.yaml").write_text("steps:\n  a: " + step.replace("NAME", "a") + "  b: " + step.replace("NAME", "b"))
    assert workspace.flows.run("flow.yaml").counts() == {"done": 2}
    assert wire.bytes - before < 300_000  # the record there and back, and the commands


def test_files_go_from_one_host_to_another_by_way_of_home(workspace: Workspace, tmp_path: Path) -> None:
    Path("flow.yaml").write_text(CHAIN.format(size=1000, first="far", second="other"))
    status = workspace.flows.run("flow.yaml")
    assert status.counts() == {"done": 3}, status.to_dict()
    assert Path("a file.bin").stat().st_size == 1000
    assert not Path("turned.bin").exists()
    assert workspace.flows.plan("flow.yaml").is_up_to_date


def test_a_step_runs_again_whose_outputs_are_gone_from_its_host(workspace: Workspace, tmp_path: Path) -> None:
    Path("flow.yaml").write_text(CHAIN.format(size=1000, first="far", second="far"))
    workspace.flows.run("flow.yaml")
    for folder in [*(tmp_path / "far").glob("*/run/work"), tmp_path / "far" / ".staged"]:
        shutil.rmtree(folder)
    status = workspace.flows.run("flow.yaml", again=["sum"])
    assert (status.step("sum").state, status.step("turn").state) == ("failed", "waiting")
    assert "gone" in status.step("sum").reason
    assert workspace.flows.plan("flow.yaml").steps["turn"].reason == "output turned.bin is gone from far"
    assert workspace.flows.run("flow.yaml").counts() == {"done": 3}


def test_a_flow_waits_for_a_host_that_goes_away_and_returns(
    workspace: Workspace, other_sshd: SshServer, tmp_path: Path
) -> None:
    Path("flow.yaml").write_text(
        f"steps:\n  slow: {{shell: 'echo slow >> {tmp_path}/count; touch {tmp_path}/began; while ! test -e"
        f" {tmp_path}/go; do sleep 0.1; done; echo 1 > slow.txt', on: other, outputs: slow.txt}}\n"
        f"  here: {{shell: 'while ! test -e {tmp_path}/away; do sleep 0.1; done; touch here.txt', outputs: here.txt}}\n"
        f"  next: {{shell: 'echo next >> {tmp_path}/count; echo 2 > n.txt', inputs: here.txt, on: other,"
        " outputs: n.txt}\n"
    )
    events: list[tuple[str, ...]] = []
    results = []
    flow = threading.Thread(
        target=lambda: results.append(workspace.flows.run("flow.yaml", on_event=lambda *each: events.append(each)))
    )
    flow.start()
    wait_until((tmp_path / "began").exists)
    other_sshd.stop()
    (tmp_path / "away").touch()  # `here` ends now, and `next` finds nobody
    (tmp_path / "go").touch()
    wait_until(lambda: any(what == "waiting" and "failed" in why for _, what, why in events))
    other_sshd.start()
    flow.join(240)
    assert results and results[0].counts() == {"done": 3}, (results, events)
    assert sorted((tmp_path / "count").read_text().split()) == ["next", "slow"]
    assert Path("slow.txt").read_text() == "1\n"


def test_a_flow_gives_up_on_a_host_that_stays_away_and_goes_on_later(
    workspace: Workspace, other_sshd: SshServer
) -> None:
    Path("flow.yaml").write_text(
        "steps:\n  here: {command: touch here.txt, outputs: here.txt}\n"
        "  there: {shell: cat here.txt > there.txt, inputs: here.txt, outputs: there.txt, on: other}\n"
    )
    workspace.flows._host_timeout_s = 0.5
    other_sshd.stop()
    with pytest.raises(Transient, match="no answer for 500 ms: the connection to there failed") as error:
        workspace.flows.run("flow.yaml")
    assert error.value.hint and "resumes it" in error.value.hint
    status = workspace.flows.status("flow.yaml")
    assert status.step("here").state == "done"
    assert status.step("there").state in ("waiting", "queued")  # by how far its submission came
    other_sshd.start()
    assert workspace.flows.run("flow.yaml").counts() == {"done": 2}


@pytest.mark.thorough
def test_a_flow_gives_up_on_a_host_that_hangs_while_its_step_runs_and_takes_its_end_later(
    workspace: Workspace, other_sshd: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_CONNECT_S", 1)
    monkeypatch.setattr(commands, "_ALIVE_S", 1)
    alone = f"echo ran >> {tmp_path}/count; touch {tmp_path}/began; until [ -f {tmp_path}/go ]; do sleep 0.05; done"
    Path("flow.yaml").write_text(
        f"steps:\n  there: {{shell: '{alone}; echo 1 > there.txt', outputs: there.txt, on: other}}\n"
    )
    workspace.flows._host_timeout_s = 0.5
    events: list[tuple[str, str, str]] = []
    errors: list[Transient] = []

    def run() -> None:
        try:
            workspace.flows.run("flow.yaml", on_event=lambda *each: events.append(each))
        except Transient as error:
            errors.append(error)

    flow = threading.Thread(target=run)
    flow.start()
    wait_until((tmp_path / "began").exists)
    other_sshd.freeze()
    try:
        flow.join(240)
    finally:
        other_sshd.thaw()
    assert errors and str(errors[0]).startswith("no answer for 500 ms: "), (errors, events)
    assert ("there", "waiting") in {(step, what) for step, what, _ in events}
    (tmp_path / "go").touch()
    workspace.flows._host_timeout_s = 600
    assert workspace.flows.run("flow.yaml").counts() == {"done": 1}
    assert (tmp_path / "count").read_text() == "ran\n"


def test_names_with_blanks_quotes_and_newlines_go_there_and_back(workspace: Workspace) -> None:
    name = 'it\'s "a"\n$file.txt'
    steps = {
        "first \"one\"\n": {"command": ["cp", "raw.txt", name], "on": "far", "inputs": "raw.txt", "outputs": name},
        "it's the last": {"command": ["cp", name, f"a {name}"], "on": "far", "inputs": name, "outputs": f"a {name}"},
    }  # fmt: skip
    Path("raw.txt").write_text("1\n")
    Path("flow.json").write_text(json.dumps({"steps": steps}))
    status = workspace.flows.run("flow.json")
    assert status.counts() == {"done": 2}, status.step("it's the last").reason
    assert not Path(name).exists()
    assert Path(f"a {name}").read_text() == "1\n"
