"""A flow is carried out once: what fails, what is killed, who else is at it, what comes after what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.base.errors import Conflict
from fairmile.flows.flows import Flows
from fairmile.flows.state import FlowState
from fairmile.workspace import Workspace

Write = Callable[[str], Path]
PROGRAM = "from fairmile.cli.main import main; main()"


def states(flows: Flows, file: Path) -> dict[str, str]:
    return {step.name: step.state for step in flows.status(file).steps}


def test_each_step_is_a_run_with_its_inputs_outputs_and_metrics(workspace: Workspace, write: Write) -> None:
    Path("raw.txt").write_text("3\n")
    file = write(
        "steps:\n  fit: {shell: 'cat raw.txt > fit.txt; echo loss=0.25', inputs: raw.txt, outputs: fit.txt,\n"
        "        params: {rate: 0.1}, metrics: {loss: {pattern: 'loss=([0-9.]+)'}}}\n"
    )
    status = workspace.flows.run(file)
    run = workspace.runs.get(status.step("fit").run)
    assert (run.group, run.params["rate"], run.metrics["loss"].value) == (status.id, 0.1, 0.25)
    assert run.captured.inputs["raw"].sha256
    assert list(run.outputs) == ["fit.txt"]
    assert workspace.flows.log(file, "fit").output == b"loss=0.25\n"


def test_what_comes_after_a_failure_is_left_out_and_a_later_start_goes_on(flows: Flows, write: Write) -> None:
    file = write(
        "steps:\n"
        "  good: {shell: echo 1 >> good.txt, outputs: good.txt}\n"
        "  bad: {shell: test -e mended && touch bad.txt, after: good, outputs: bad.txt}\n"
        "  next: {shell: touch next.txt, inputs: bad.txt, outputs: next.txt}\n"
        "  other: {shell: touch other.txt, outputs: other.txt}\n"
    )
    status = flows.run(file)
    assert {step.name: step.state for step in status.steps} == {
        **{"good": "done", "other": "done", "bad": "failed", "next": "left out"}
    }
    assert status.step("bad").reason == "exit code 1"
    assert status.step("next").reason == "`bad` failed"
    assert states(flows, file) == {step.name: step.state for step in status.steps}
    Path("mended").touch()
    assert flows.run(file).counts() == {"done": 4}
    assert Path("good.txt").read_text() == "1\n"


def test_conditions_on_failures_and_metrics_decide(flows: Flows, write: Write) -> None:
    file = write(
        "steps:\n"
        "  fit: {shell: echo loss=0.5, metrics: {loss: {pattern: 'loss=([0-9.]+)'}}}\n"
        "  high: {command: touch high, when: fit.loss > 0.1, outputs: high}\n"
        "  low: {command: touch low, when: fit.loss < 0.1, outputs: low}\n"
        "  after-low: {command: touch after-low, inputs: low, outputs: after-low}\n"
        "  bad: {command: 'false'}\n"
        "  tell: {shell: echo told >> told, after: bad, when: failed, outputs: told}\n"
        "  untold: {command: touch untold, after: fit, when: failed, outputs: untold}\n"
        "  report: {command: touch report, after: [bad, fit], when: always, outputs: report}\n"
    )
    expected = {
        **{"fit": "done", "high": "done", "low": "left out", "after-low": "left out", "bad": "failed"},
        **{"tell": "done", "untold": "left out", "report": "done"},
    }
    assert {step.name: step.state for step in flows.run(file).steps} == states(flows, file) == expected
    flows.run(file)
    assert Path("told").read_text() == "told\ntold\n"  # once for each failure


def test_a_step_is_tried_again_as_often_as_it_may(flows: Flows, write: Write) -> None:
    file = write("steps:\n  a: {shell: echo x >> tries; test $(wc -l < tries) -ge 3, retries: 2, backoff: 0.01s}\n")
    assert flows.run(file).counts() == {"done": 1}
    assert Path("tries").read_text() == "x\n" * 3


def test_a_step_that_takes_too_long_ends(flows: Flows, write: Write) -> None:
    file = write("steps:\n  a: {command: sleep 600, timeout: 0.5s}\n")
    assert flows.run(file).step("a").state == "timeout"


def test_success_without_a_declared_output_is_a_failure(flows: Flows, write: Write) -> None:
    file = write("steps:\n  a: {command: 'true', outputs: a.txt}\n")
    step = flows.run(file).step("a")
    assert (step.state, step.reason) == ("failed", "it succeeded, but did not write its output a.txt")


def test_an_input_that_changes_under_a_step_makes_it_run_again(flows: Flows, write: Write) -> None:
    Path("raw.txt").write_text("1\n")
    file = write("steps:\n  a: {shell: cat raw.txt > a.txt; echo 2 > raw.txt, inputs: raw.txt, outputs: a.txt}\n")
    assert flows.run(file).step("a").reason == "input raw.txt changed while it ran"
    assert flows.plan(file).steps["a"].reason == "input raw.txt has another digest"


def test_names_with_blanks_quotes_and_newlines_are_names(flows: Flows, write: Write) -> None:
    document = {
        "steps": {
            "it's \"one\"\nstep": {"command": ["sh", "-c", 'echo "$1" > "$2"', "-", "{v}", "it's {v}.txt"],
                                   "over": {"v": ["a b", "q'\"", "x\ny"]}, "outputs": "it's {v}.txt"},
            "all": {"shell": "cat *.txt > all.out", "inputs": "*.txt", "outputs": "all.out"},
        }
    }  # fmt: skip
    file = write(json.dumps(document))
    assert flows.run(file).counts() == {"done": 4}
    assert Path("all.out").read_text() == "a b\nq'\"\nx\ny\n"
    assert flows.plan(file).is_up_to_date


def test_outputs_that_the_store_has_no_room_for_are_told(workspace: Workspace, write: Write) -> None:
    workspace.home.mkdir(exist_ok=True)
    (workspace.home / "store").write_text("no folder")
    events: list[tuple[str, ...]] = []
    file = write("steps:\n  a: {command: touch a, outputs: a}\n")
    assert workspace.flows.run(file, on_event=lambda *event: events.append(event)).counts() == {"done": 1}
    ((step, what, why),) = (each for each in events if each[1] == "not kept")
    assert (step, what) == ("", "not kept")
    assert why.startswith("outputs are not in the store, so that deleted ones cannot be restored: ")


def test_nothing_is_deleted_that_the_flow_did_not_make(flows: Flows, write: Write) -> None:
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine\n")
    file = write("steps:\n  a: {shell: echo 1 > out/a.txt, outputs: 'out/*.txt'}\n")
    flows.run(file)
    os.remove("out/a.txt")
    flows.run(file)
    assert Path("out/mine.txt").read_text() == "mine\n"
    assert Path("out/a.txt").read_text() == "1\n"


def started(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, "flow", *arguments], env=environ, stderr=subprocess.DEVNULL)


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_killed_coordinator_is_gone_on_with_and_nothing_runs_twice(
    flows: Flows, write: Write, tmp_path: Path
) -> None:
    file = write(
        "steps:\n"
        "  quick: {shell: 'echo quick >> count; touch q{n}', over: {n: 1..4}, outputs: 'q{n}'}\n"
        "  slow: {shell: 'echo slow >> count; while ! test -e go; do sleep 0.05; done; touch s',\n"
        "         inputs: 'q*', outputs: s}\n"
        "  last: {shell: echo last >> count, inputs: s}\n"
    )
    process = started(tmp_path, "run", str(file), "-j", "2")
    wait_for(lambda: Path("count").exists() and "slow" in Path("count").read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert states(flows, file)["slow"] == "running"
    Path("go").touch()
    assert flows.run(file, at_once=2).counts() == {"done": 6}
    assert Counter(Path("count").read_text().split()) == {"quick": 4, "slow": 1, "last": 1}


def test_who_comes_second_is_told_who_is_at_it_and_can_end_it(flows: Flows, write: Write, tmp_path: Path) -> None:
    file = write("steps:\n  a: {shell: touch began; exec sleep 600}\n  b: {command: touch b, after: a}\n")
    process = started(tmp_path, "run", str(file))
    wait_for(Path("began").exists)
    with pytest.raises(Conflict, match=f"is being run by process {process.pid}"):
        flows.run(file)
    assert flows.status(file).holder.startswith(f"process {process.pid} on ")
    ended = flows.cancel(file)
    assert (ended.holder.split()[1], len(ended.runs)) == (str(process.pid), 1)
    assert process.wait(300) == 1
    assert states(flows, file)["a"] == "cancelled"
    assert not Path("b").exists()


def test_a_line_that_a_kill_cut_short_is_passed_over(flows: Flows, write: Write) -> None:
    file = write("steps:\n  a: {command: touch a, outputs: a}\n  b: {command: touch b, outputs: b}\n")
    status = flows.run(file)
    journal = flows.root / status.id / "steps.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert len(FlowState(flows.root / status.id).done) == 1  # they end in any order
    assert flows.run(file).counts() == {"done": 2}
    assert set(FlowState(flows.root / status.id).done) == {"a", "b"}


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.thorough)])
def test_many_steps_join_in_one(flows: Flows, write: Write, count: int) -> None:
    file = write(
        "steps:\n"
        f"  a: {{command: 'touch a{{n}}', over: {{n: 'range(0,{count})'}}, outputs: 'a{{n}}'}}\n"
        "  b: {command: 'touch b', inputs: 'a*', outputs: b}\n"
    )
    assert flows.run(file, at_once=2).counts() == {"done": count + 1}
    assert flows.plan(file).is_up_to_date
