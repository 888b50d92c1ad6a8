"""What the recorder keeps of a program, whatever becomes of it."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from cases import for_each

from fairmile.base.errors import Conflict, DiskFailure
from fairmile.meter.lines import event_files, read_log
from fairmile.meter.meter import Meter
from fairmile.runs.execute import output_reader, program, recorder
from fairmile.runs.execute.output_reader import MetricPattern, OutputReader
from fairmile.runs.execute.processes import find_processes
from fairmile.runs.record.layout import read_record
from fairmile.runs.record.record import RecordedSpec, RunRecord
from fairmile.runs.record.run import RunState
from fairmile.runs.record.spec import MetricSpec, RunSpec
from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace

PYTHON = sys.executable


def python(text: str) -> list[str]:
    return [PYTHON, "-c", text]


class TestATrivialRun:
    def test_leaves_at_most_four_files(self, runs: Runs) -> None:
        run = runs.run(["sh", "-c", "echo hello"])
        names = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
        assert names == {"run.json", "output.log", "events.jsonl", "ro-crate-metadata.json"}

    def test_tells_its_end_and_what_it_used(self, runs: Runs) -> None:
        run = runs.run(["true"])
        assert run.state is RunState.DONE
        assert run.result.exit_code == 0
        assert 0 < run.result.elapsed_s < 60
        assert run.result.usage["cpu_s"] > 0

    def test_does_not_take_the_memory_of_its_recorder_for_its_own(self, runs: Runs) -> None:
        ballast = bytearray(200 << 20)
        ballast[::4096] = b"x" * len(ballast[::4096])
        run = runs.run(["true"])
        assert run.result.usage.get("max_rss_bytes", 0) < 100 << 20

    def test_says_how_much_memory_a_larger_program_used(self, runs: Runs) -> None:
        size_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (100 << 20)
        run = runs.run(python(f"b = bytearray({size_bytes}); b[::4096] = b'x' * len(b[::4096])"))
        assert run.result.usage["max_rss_bytes"] > size_bytes

    def test_says_of_a_smaller_one_only_what_was_seen(self, runs: Runs) -> None:
        run = runs.run(["sleep", "0.6"])
        assert 0 < run.result.usage["seen_rss_bytes"] < 20 << 20
        assert "max_rss_bytes" not in run.result.usage

    def test_has_no_energy_where_nothing_measured_it(self, runs: Runs) -> None:
        run = runs.run(["true"])
        assert run.energy_j is None

    def test_runs_where_the_person_stands(self, runs: Runs) -> None:
        run = runs.run(["pwd"])
        assert runs.output(run.id).decode().strip() == os.getcwd()

    def test_of_a_specification_without_folder_has_one_of_its_own(self, runs: Runs) -> None:
        run = runs.run(RunSpec(argv=("pwd",)))
        assert runs.output(run.id).decode().strip() == str(run.folder / "work")


class TestOutputs:
    """Recorded as outputs are files that a run made or changed, and no others."""

    def test_a_file_that_was_there_and_stays_untouched_is_none(self, runs: Runs) -> None:
        Path("out").mkdir()
        for name in ("old", "changed", "same", "replaced"):
            Path("out", name).write_text("1")
        change = "echo 2 > out/changed; printf 1 > out/same; printf 1 > out/x; mv out/x out/replaced; echo 3 > out/new"
        run = runs.run(["sh", "-c", change], outputs=("out/*",))
        assert sorted(run.result.outputs) == ["out/changed", "out/new", "out/replaced", "out/same"]
        assert run.result.untouched == ["out/old"]
        assert not runs.get(run.id).record.before

    def test_a_time_that_is_set_back_hides_no_change(self, runs: Runs) -> None:
        Path("a").write_text("1")
        run = runs.run(["sh", "-c", "touch -r a keep; printf 2 > a; touch -r keep a"], outputs=("a",))
        assert list(run.result.outputs) == ["a"]

    def test_what_an_earlier_attempt_made_stays_an_output(self, runs: Runs) -> None:
        Path("old.txt").write_text("1")
        program = "[ -e first.txt ] || { echo 1 > first.txt; exit 5; }; echo 2 > second.txt"
        run = runs.run(["sh", "-c", program], outputs=("*.txt",))
        resumed = runs.resume(run.id)
        assert sorted(resumed.result.outputs) == ["first.txt", "second.txt"]
        assert resumed.result.untouched == ["old.txt"]


class TestFailures:
    def test_an_exit_code_is_the_reason(self, runs: Runs) -> None:
        run = runs.run(["sh", "-c", "exit 3"])
        assert (run.state, run.result.exit_code, run.result.reason) == (RunState.FAILED, 3, "exit code 3")

    def test_a_signal_is_named(self, runs: Runs) -> None:
        run = runs.run(["sh", "-c", "kill -KILL $$"])
        assert run.result.signal == "KILL"
        assert run.result.exit_code == 137
        assert "SIGKILL" in run.result.reason

    def test_a_program_that_is_not_there_is_recorded_too(self, runs: Runs) -> None:
        run = runs.run(["no-such-program"])
        assert run.state is RunState.FAILED
        assert run.result.exit_code == 127
        assert "no-such-program" in run.result.reason

    def test_a_time_limit_ends_the_whole_group(self, runs: Runs, tmp_path: Path) -> None:
        marker = tmp_path / "alive"
        script = f"(sleep 1.5; touch {marker}) & sleep 60"
        run = runs.run(["sh", "-c", script], timeout_s=0.3)
        assert run.state is RunState.TIMEOUT
        assert "0.3 s" in run.result.reason
        time.sleep(1.6)
        assert not marker.exists()

    def test_the_reason_is_on_the_card(self, runs: Runs) -> None:
        run = runs.run(["sh", "-c", "exit 3"])
        card = json.loads((run.folder / "ro-crate-metadata.json").read_text())
        (action,) = [each for each in card["@graph"] if "CreateAction" in each["@type"]]
        assert action["actionStatus"].endswith("FailedActionStatus")
        assert "exit code 3" in action["error"]


class TestMetrics:
    def test_come_from_one_line_of_python(self, runs: Runs) -> None:
        text = "import fairmile as fm\nfor step in range(3): fm.log(loss=1 / (step + 1), step=step)"
        run = runs.run(python(text))
        loss = run.metrics["loss"]
        assert (loss.first, loss.value, loss.count, loss.better) == (1.0, pytest.approx(1 / 3), 3, "lower")

    def test_come_from_json_lines_in_a_file(self, runs: Runs) -> None:
        run = runs.run(["sh", "-c", """echo '{"accuracy": 0.9, "step": 1}' >> "$FAIRMILE_METRICS" """])
        assert run.metrics["accuracy"].value == 0.9
        assert not (run.folder / "metrics.jsonl").exists()

    def test_come_from_json_lines_on_a_descriptor(self, runs: Runs) -> None:
        run = runs.run(["bash", "-c", """echo '{"accuracy": 0.8}' >&$FAIRMILE_METRICS_FD"""])
        assert run.metrics["accuracy"].value == 0.8

    def test_come_from_the_output_by_a_pattern(self, runs: Runs) -> None:
        spec = {"loss": MetricSpec(pattern=r"epoch (?P<step>\d+) loss (?P<value>[\d.e-]+)", unit="1", better="lower")}
        run = runs.run(["printf", "epoch 1 loss 0.5\nepoch 2 loss 2.5e-1"], metrics=spec)
        assert (run.metrics["loss"].value, run.metrics["loss"].count, run.metrics["loss"].unit) == (0.25, 2, "1")
        assert [each.step for each in run.log().metrics] == [1, 2]

    @pytest.mark.parametrize("before", [0, 65_500, 65_530, 65_536, 200_000, 3_000_000])
    @pytest.mark.parametrize("end", ["''", "' and more' * 20_000", "chr(10)"])
    def test_are_found_anywhere_in_a_line_of_any_length_and_once(self, runs: Runs, before: int, end: str) -> None:
        metrics = {"loss": MetricSpec(pattern=r"loss ([\d.]+)")}
        text = f"print('x' * {before} + ' loss 0.125 ', end='');print('y' * 70_000 + ' loss 12.5' + {end}, end='')"
        run = runs.run(python(text), metrics=metrics)
        assert [each.value for each in run.log().metrics] == [0.125, 12.5]

    def test_that_are_not_finite_are_kept(self, runs: Runs) -> None:
        run = runs.run(python("import fairmile as fm\nfm.log(loss=float('nan'), gain=float('-inf'))"))
        assert math.isnan(run.metrics["loss"].value)
        assert run.metrics["gain"].value == -math.inf
        assert runs.rows(limit=1)[0].metrics["gain"] == -math.inf

    def test_of_spans_are_kept_with_their_calls(self, runs: Runs) -> None:
        text = "import fairmile as fm\nfor n in range(4):\n  with fm.span('epoch', n=n): pass"
        run = runs.run(python(text))
        assert run.spans["epoch"]["count"] == 4

    def test_one_text_among_numbers_costs_no_number(self, runs: Runs) -> None:
        run = runs.run(["sh", "-c", """echo '{"ok": 1, "name": "abc"}' >> $FAIRMILE_METRICS"""])
        assert run.metrics["ok"].value == 1
        assert "1 line or value is not a valid metric" in run.result.notes[0]

    def test_a_line_that_is_none_is_noted_and_harms_nothing(self, runs: Runs) -> None:
        run = runs.run(["sh", "-c", """echo 'oops' >> $FAIRMILE_METRICS; echo '{"a": 1}' >> $FAIRMILE_METRICS"""])
        assert run.metrics["a"].value == 1
        assert [event.name for event in run.log().events if event.name != "started"] == ["unreadable metric"]


class TestBadDays:
    def test_a_line_of_ten_megabytes_is_output_like_any_other(self, runs: Runs) -> None:
        metrics = {"loss": MetricSpec(pattern=r"loss (\d+)")}
        run = runs.run(python("print('x' * 10_000_000); print('loss 7')"), metrics=metrics)
        assert run.metrics["loss"].value == 7
        assert (run.folder / "output.log").stat().st_size == 10_000_001 + len("loss 7\n")

    def test_a_folder_that_vanishes_is_made_again_and_said_so(self, runs: Runs) -> None:
        run = runs.run(["sh", "-c", 'rm -rf "$FAIRMILE_RUN"'])
        assert run.state is RunState.DONE
        assert "removed during the run" in run.result.reason
        assert runs.get(run.id).state is RunState.DONE

    def test_kill_9_of_the_recorder_leaves_a_run_that_says_so(self, runs: Runs, tmp_path: Path) -> None:
        text = "from fairmile.workspace import Workspace; Workspace.open().runs.run(['sleep', '30'])"
        environ = {**os.environ, "FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        recorder = subprocess.Popen(python(text), env=environ)
        found = _wait_for_record(tmp_path / "home" / "runs")
        assert runs.state_of(runs.get(found.name)) is RunState.RUNNING
        (started,) = _events(found, "started")
        recorder.kill()
        recorder.wait()
        assert runs.rows(limit=1)[0].state is RunState.RUNNING  # as long as its program does
        with pytest.raises(Conflict, match=f"still runs without its recorder, as process {started}"):
            runs.resume(found.name)
        os.killpg(int(str(started)), signal.SIGKILL)
        _wait_until(lambda: not Path(f"/proc/{started}").exists() or _is_zombie(int(str(started))))
        settled = runs.collect(found.name)
        assert settled.state is RunState.INTERRUPTED
        assert "killed" in settled.result.reason
        assert runs.get(found.name).result.state == "interrupted"
        assert runs.rows(limit=1)[0].state is RunState.INTERRUPTED

    def test_a_program_that_outlives_its_recorder_in_a_session_of_its_own_can_be_cancelled(
        self, runs: Runs, tmp_path: Path
    ) -> None:
        program = ["sh", "-c", "setsid sleep 60"]
        text = f"from fairmile.workspace import Workspace; Workspace.open().runs.run({program})"
        environ = {**os.environ, "FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        recorder = subprocess.Popen(python(text), env=environ)
        found = _wait_for_record(tmp_path / "home" / "runs")
        _wait_until(lambda: len(find_processes(found)) == 2)
        recorder.kill()
        recorder.wait()
        assert runs.collect(found.name).state is RunState.RUNNING
        cancelled = runs.cancel(found.name)
        assert (cancelled.state, find_processes(found)) == (RunState.CANCELLED, [])
        assert runs.rows(limit=1)[0].state is RunState.CANCELLED
        with pytest.raises(Conflict, match="is cancelled"):
            runs.cancel(found.name)

    def test_a_run_whose_recorder_lives_is_cancelled_by_it(self, runs: Runs, tmp_path: Path) -> None:
        text = "from fairmile.workspace import Workspace; Workspace.open().runs.run(['sleep', '60'])"
        environ = {**os.environ, "FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        recorder = subprocess.Popen(python(text), env=environ)
        found = _wait_for_record(tmp_path / "home" / "runs")
        _wait_until(lambda: bool(find_processes(found)))
        cancelled = runs.cancel(found.name)
        recorder.wait()
        assert (cancelled.state, cancelled.result.reason) == (RunState.CANCELLED, "ended by TERM")

    def test_a_program_that_fills_the_disk_is_recorded_to_its_end(self, small_disk: Path) -> None:
        environ = {**os.environ, "FAIRMILE_HOME": str(small_disk), "HOME": str(small_disk)}
        runs = Workspace.open(environ=environ).runs
        before = runs.run(["true"])
        fill = "import fairmile as fm\nfm.log(loss=1)\n"
        fill += "import time; time.sleep(1.2)\n"  # by then the metric is on disk
        fill += "with open('ballast', 'wb') as file: file.write(bytes(64 << 20))"
        run = runs.run(RunSpec(name="fill", argv=(PYTHON, "-c", fill)))
        assert run.state is RunState.FAILED
        assert run.metrics["loss"].value == 1
        assert {row.id for row in runs.rows()} == {before.id, run.id}
        assert runs.get(run.id).state is RunState.FAILED
        assert run.result.reason.startswith(f"exit code 1; a disk was full: {small_disk} has 0 B of 16.0 MiB free")
        assert run.result.hint == "free some space, or write to another file system"

    def test_a_full_disk_that_a_program_did_not_mention_is_named(self, small_disk: Path, runs: Runs) -> None:
        fill = "cat /dev/zero > ballast 2>/dev/null; exit 4"
        run = runs.run(RunSpec(argv=("sh", "-c", fill), folder=str(small_disk)))
        assert run.result.reason == f"exit code 4; a disk was full: {small_disk} has 0 B of 16.0 MiB free"

    def test_a_run_that_finds_no_room_for_its_record_says_where(self, small_disk: Path) -> None:
        runs = Workspace.open(environ={**os.environ, "FAIRMILE_HOME": str(small_disk), "HOME": str(small_disk)}).runs
        runs.run(["true"])
        subprocess.run(["sh", "-c", f"cat /dev/zero > {small_disk}/ballast"], stderr=subprocess.DEVNULL)
        told = rf"No space left on device \({small_disk} has 0 B of 16.0 MiB free\)"
        with pytest.raises(DiskFailure, match=told):
            runs.run(["true"])

    @pytest.mark.parametrize(
        ("printed", "told"),
        [
            ("OSError: [Errno 122] Disk quota exceeded: 'a.pt'", "the quota was exceeded: OSError: [Errno 122]"),
            ("torch.OutOfMemoryError: CUDA out of memory.", "the GPU ran out of memory"),
        ],
    )
    def test_what_else_ran_out_is_told_by_the_output(self, runs: Runs, printed: str, told: str) -> None:
        run = runs.run(python(f"import sys; sys.exit({printed!r})"))
        assert run.result.reason.startswith(f"exit code 1; {told}")

    @pytest.mark.thorough
    def test_thirty_two_processes_record_into_one_workspace(self, runs: Runs, tmp_path: Path) -> None:
        text = """if True:  # forked, so that what they import is imported once
            import os, sys
            import fairmile.runs.runs
            from fairmile.workspace import Workspace
            for _ in range(32):
                if os.fork() == 0:
                    runs = Workspace.open().runs
                    for _ in range(3):
                        runs.run(["true"])
                    os._exit(0)
            sys.exit(any([os.wait()[1] for _ in range(32)]))
        """
        environ = {**os.environ, "FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        processes = subprocess.Popen(python(text), env=environ)
        listed = [len(runs.rows()) for _ in range(5)]
        assert processes.wait() == 0
        assert len(runs.rows()) == 96
        assert listed == sorted(listed)
        assert {row.state for row in runs.rows()} == {RunState.DONE}

    def test_interrupting_ends_the_program_and_records_it(self, tmp_path: Path, runs: Runs) -> None:
        text = "from fairmile.workspace import Workspace; Workspace.open().runs.run(['sleep', '30'])"
        environ = {**os.environ, "FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        script = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{text}"
        recorder = subprocess.Popen(python(script), env=environ)
        found = _wait_for_record(tmp_path / "home" / "runs")
        recorder.send_signal(signal.SIGINT)
        recorder.wait(30)
        run = runs.get(found.name)
        assert run.state is RunState.CANCELLED
        assert run.result.signal == "INT"

    def test_a_signal_to_end_is_passed_on_so_that_the_program_can_save_its_state(
        self, tmp_path: Path, runs: Runs
    ) -> None:
        program = "trap 'echo saved; exit 9' TERM; echo ready; sleep 30 & wait"
        text = f"from fairmile.workspace import Workspace; Workspace.open().runs.run(['bash', '-c', {program!r}])"
        environ = {**os.environ, "FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        recorder = subprocess.Popen(python(text), env=environ)
        found = _wait_for_record(tmp_path / "home" / "runs")
        _wait_until(lambda: (found / "output.log").read_text().startswith("ready"))
        recorder.send_signal(signal.SIGTERM)
        recorder.wait(30)
        run = runs.get(found.name)
        assert (run.state, run.result.exit_code) == (RunState.CANCELLED, 9)
        assert runs.output(run.id) == b"ready\nsaved\n"

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_signal_that_comes_while_the_program_is_being_started_reaches_it(
        self, runs: Runs, monkeypatch: pytest.MonkeyPatch, moment: str
    ) -> None:
        real = program.Program._start

        def start(self: Any, *streams: int) -> subprocess.Popen[bytes]:
            if moment == "before":
                signal.raise_signal(signal.SIGTERM)
            process = real(self, *streams)
            if moment == "after":
                signal.raise_signal(signal.SIGTERM)
            return process

        monkeypatch.setattr(program.Program, "_start", start)
        run = runs.run(["sleep", "600"])
        assert (run.state, run.result.signal) == (RunState.CANCELLED, "TERM")

    def test_a_signal_that_comes_while_a_program_cannot_be_started_ends_the_run(
        self, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = program.Program._start

        def start(self: Any, *streams: int) -> subprocess.Popen[bytes]:
            signal.raise_signal(signal.SIGTERM)
            return real(self, *streams)

        monkeypatch.setattr(program.Program, "_start", start)
        run = runs.run(["no-such-program"])
        assert (run.state, run.result.signal, run.result.exit_code) == (RunState.CANCELLED, "TERM", 143)
        assert "cannot start 'no-such-program'" in run.result.reason

    def test_an_end_with_a_large_record_finds_room_on_a_full_disk(self, small_disk: Path) -> None:
        """As the differences of a repository make it; the record is written anew beside the old one."""
        environ = {**os.environ, "FAIRMILE_HOME": str(small_disk), "HOME": str(small_disk)}
        runs = Workspace.open(environ=environ).runs
        fill = "cat /dev/zero > ballast; exit 4"
        run = runs.run(RunSpec(argv=("sh", "-c", fill), params={"long": "x" * 1_000_000}, reads_params=True))
        assert run.result.exit_code == 4
        assert runs.get(run.id).result.exit_code == 4
        assert not (run.folder / ".room").exists()

    def test_what_nohup_ignores_ends_nothing(self, tmp_path: Path, runs: Runs) -> None:
        text = "from fairmile.workspace import Workspace; Workspace.open().runs.run(['sleep', '1.5'])"
        environ = {**os.environ, "FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        recorder = subprocess.Popen(["nohup", *python(text)], env=environ, stdout=subprocess.DEVNULL)
        found = _wait_for_record(tmp_path / "home" / "runs")
        recorder.send_signal(signal.SIGHUP)
        recorder.wait(30)
        assert runs.get(found.name).state is RunState.DONE

    def test_who_interrupts_twice_does_not_wait_for_a_program_that_ignores_it(self, tmp_path: Path, runs: Runs) -> None:
        program = "trap '' INT TERM; echo ready; sleep 60 & wait; wait"
        text = f"from fairmile.workspace import Workspace; Workspace.open().runs.run(['bash', '-c', {program!r}])"
        script = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{text}"
        environ = {**os.environ, "FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        recorder = subprocess.Popen(python(script), env=environ)
        found = _wait_for_record(tmp_path / "home" / "runs")
        _wait_until(lambda: (found / "output.log").read_text().startswith("ready"))
        for _ in range(2):
            recorder.send_signal(signal.SIGINT)
            time.sleep(0.5)
        recorder.wait(60)
        run = runs.get(found.name)
        assert (run.state, run.result.signal) == (RunState.CANCELLED, "KILL")

    def test_a_word_that_no_program_can_be_given_is_recorded(self, runs: Runs) -> None:
        run = runs.run(["echo", "{x}"], params={"x": "a\0b"})
        assert (run.state, run.result.exit_code) == (RunState.FAILED, 126)

    def test_a_clock_that_is_set_back_changes_no_duration(self, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = time.time, iter(range(1_000_000))
        monkeypatch.setattr(time, "time", lambda: real() - 3600 * next(calls))
        run = runs.run(["sleep", "0.1"])
        assert 0.1 <= run.result.elapsed_s < 30
        assert run.result.ended > run.result.started


class TestSecrets:
    def test_variables_are_kept_by_an_allow_list(self, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        run = runs.run(["true"], env={"OMP_NUM_THREADS": "3"})
        assert run.captured.variables["OMP_NUM_THREADS"] == "3"
        text = (run.folder / "run.json").read_text()
        assert "HOME" not in json.loads(text)["captured"]["variables"]


def _events(folder: Path, name: str) -> list[object]:
    found: list[object] = []

    def look() -> bool:
        found[:] = [each.attributes["pid"] for each in read_log(event_files(folder)).events if each.name == name]
        return bool(found)

    _wait_until(look)
    return found


def _wait_for_record(root: Path) -> Path:
    _wait_until(lambda: any(root.glob("*/run.json")) and any(root.glob("*/events.jsonl")))
    (found,) = root.glob("*/run.json")
    assert read_record(found.parent).state == "running"
    return found.parent


def _wait_until(is_so: object) -> None:
    for _ in range(600):
        if callable(is_so) and is_so():
            return
        time.sleep(0.05)
    raise AssertionError("it never came")


def _is_zombie(pid: int) -> bool:
    return b") Z" in Path(f"/proc/{pid}/stat").read_bytes()


class TestAProgramThatLogsNoMetric:
    def test_has_those_that_it_printed_with_their_steps(self, runs: Runs) -> None:
        run = runs.run(python("for n in (1, 2): print(f'epoch {n} loss {1 / n}')"))
        assert (run.metrics["loss"].value, run.metrics["loss"].first, run.metrics["loss"].count) == (0.5, 1.0, 2)
        assert [each.step for each in read_log(event_files(run.folder)).metrics] == [1, 2]
        assert run.metrics["loss"].source == "output"

    def test_keeps_those_of_all_attempts(self, runs: Runs, tmp_path: Path) -> None:
        done = tmp_path / "done"
        text = f"import os; done = os.path.exists({str(done)!r}); print('loss', 2 - done); raise SystemExit(not done)"
        run = runs.run(python(text))
        done.touch()
        assert run.metrics["loss"].value == 2
        resumed = runs.resume(run.id)
        assert (resumed.metrics["loss"].value, resumed.metrics["loss"].count) == (1, 2)

    def test_one_that_logs_is_not_read(self, runs: Runs) -> None:
        run = runs.run(python("import fairmile; fairmile.log(loss=1.0); print('accuracy: 0.5')"))
        assert set(run.metrics) == {"loss"}


def test_what_ended_by_itself_before_it_was_stopped_is_done(tmp_path: Path) -> None:
    record = RunRecord(id="quick", spec=RecordedSpec(name="quick", argv=["sleep", "0.3"], watch_s=0))

    before = {each.pid for each in psutil.Process().children()}  # of other tests in this process

    def look() -> str:
        """Decide to stop it, but only when it is over."""
        (child,) = [each for each in psutil.Process().children() if each.pid not in before]
        _wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE)
        return "stopped early: weak"

    (tmp_path / "quick").mkdir()
    recorder.execute(tmp_path / "quick", record, argv=["sleep", "0.3"], env=os.environ, look=look)
    assert (record.state, record.result.reason) == ("done", "")


def test_a_pattern_that_other_engines_need_years_for_costs_nothing(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "events.jsonl")
    printed = tmp_path / "output"
    printed.write_bytes(b"a" * 60_000 + b"b\nvalue 3\n")
    reader = OutputReader(meter, {"v": r"(a+)+c|value (?P<value>\d+)"}, None)
    with reader.attached(str(printed), os.devnull):
        reader.drain()
    meter.close()
    assert [each.value for each in read_log([tmp_path / "events.jsonl"]).metrics] == [3.0]


@for_each("pattern", [r"(?=loss) (\d+)", r"(\d+) \1", "(["])
def test_a_pattern_that_cannot_be_searched_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression"):
        MetricSpec(pattern=pattern)


def test_without_that_engine_a_pattern_is_dropped_when_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    monkeypatch.setattr(output_reader, "_SEARCH_S", 0.05)
    pattern = MetricPattern(r"(a+)+$|loss (?P<value>\d+)")
    assert [(value, step) for _, value, step in pattern.find(b"loss 7")] == [(b"7", None)]
    with pytest.raises(TimeoutError):
        pattern.find(b"a" * 60 + b"b")
