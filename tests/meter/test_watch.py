"""Sampling on time, and programs run under its eyes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import for_each

from fairmile.base.commands import MissingProgram
from fairmile.base.errors import NotFound, SystemFailure, UsageError
from fairmile.meter.lines import Channel, read_log
from fairmile.meter.meter import Meter
from fairmile.meter.watch import Watch, watch_command, watch_for

PATIENCE_S = 30.0


class Counting:
    """A source that counts its readings; what `before` does happens first."""

    def __init__(self, before: Callable[[int], object] = lambda _: None, name: str = "counting") -> None:
        self.name = name
        self.readings = 0
        self.closed = 0
        self._before = before

    def channels(self) -> tuple[Channel, ...]:
        return (Channel("a.count", "count", "counter", self.name, "here", "exact"), Channel("a.twice", "count"))

    def read(self) -> list[float | None]:
        self.readings += 1
        self._before(self.readings)
        return [float(self.readings), 2.0 * self.readings]

    def close(self) -> None:
        self.closed += 1


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.002)


def test_the_first_sample_is_taken_by_start_and_the_last_by_stop() -> None:
    source = Counting()
    watch = Watch([source], period_s=3600)
    watch.start()
    assert watch.measured().column("a.count") == [1.0]
    samples = watch.stop()
    assert samples.column("a.count") == [1.0, 2.0]
    assert samples.column("a.twice") == [2.0, 4.0]
    assert source.closed == 1


def test_the_times_of_samples_are_those_of_the_wall() -> None:
    before = time.time_ns()
    with Watch([Counting()], period_s=3600) as watch:
        pass
    after = time.time_ns()
    first, last = watch.measured().at_ns
    assert before - 10**9 <= first < last <= after + 10**9


class Clock:
    """A clock that stands still but for what is slept and read; it stands in for a watch's own, thread and all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: int) -> None:
        self.now_ns = 5_000_000_000
        self._waits = waits
        for name in ("time.monotonic_ns", "time.time_ns"):
            monkeypatch.setattr(f"fairmile.meter.watch.{name}", lambda: self.now_ns)
        monkeypatch.setattr("fairmile.meter.watch.signal.pthread_sigmask", lambda *_: None)
        monkeypatch.setattr("fairmile.meter.watch.threading.Event", lambda: self)
        monkeypatch.setattr("fairmile.meter.watch.threading.Thread", Inline)

    def wait(self, seconds: float) -> bool:
        self.now_ns += round(seconds * 1e9) + 200_000  # nobody wakes up at once
        self._waits -= 1
        return self._waits < 0

    def is_set(self) -> bool:
        return True


class Inline:
    """A thread that does its work at once."""

    def __init__(self, target: Callable[[], object], **_: object) -> None:
        self.start = target


def begun_ms(
    monkeypatch: pytest.MonkeyPatch, reading_ms: Callable[[int], float], count: int
) -> tuple[list[int], Watch]:
    """Return when each of the samples behind the first began, in ms, with a period of 10 ms."""
    clock = Clock(monkeypatch, count)
    began: list[int] = []

    def read(number: int) -> None:
        began.append(clock.now_ns)
        clock.now_ns += round(reading_ms(number) * 1e6)

    watch = Watch([Counting(read)], period_s=0.01).start()
    return [(each - began[0]) // 1_000_000 for each in began[1:]], watch


def test_samples_do_not_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    began, watch = begun_ms(monkeypatch, lambda _: 3.0, 50)
    assert began == list(range(10, 501, 10))
    assert watch.skipped == 0


def test_a_late_sample_is_left_out_and_never_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    began, watch = begun_ms(monkeypatch, lambda number: 34.0 if number == 3 else 3.0, 5)
    assert began == [10, 20, 60, 70, 80]
    assert watch.skipped == 3


def test_readings_longer_than_the_period_come_as_often_as_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    began, watch = begun_ms(monkeypatch, lambda _: 12.0, 4)
    assert began == [20, 40, 60, 80]
    assert watch.skipped == 5  # 10, 30, 50, 70 and 90


def test_each_sample_is_one_line_that_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    source = Counting()
    with Watch([source], file, period_s=0.01) as watch:
        until(lambda: source.readings >= 5)
    log = read_log([file])
    assert log.damaged == 0
    (samples,) = log.samples
    assert samples == watch.measured()
    assert samples.writer.host == os.uname().nodename and samples.writer.pid == os.getpid()


def test_two_watches_share_a_log_with_lines_of_others(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"writer": {"host": "n", "rank": 3, "wall_ns": 5, "clock_ns": 1}, "p": 1}\n')
    with Watch([Counting()], file, period_s=3600) as one, Watch([Counting()], file, period_s=3600) as two:
        pass
    log = read_log([file])
    assert log.damaged == 0 and len(log.writers) == 2  # both are of one process
    found = sorted(log.samples, key=lambda samples: samples.at_ns[0])
    for samples, measured in zip(found, (one.measured(), two.measured()), strict=True):
        assert samples.columns == measured.columns
        assert list(samples.at_ns) == pytest.approx(list(measured.at_ns), abs=1e6)  # two looks at the wall's clock


def test_a_reading_that_fails_costs_its_values_and_nothing_else(tmp_path: Path) -> None:
    def fail(number: int) -> None:
        if number == 1:
            raise OSError("gone")

    with Watch([Counting(fail), Counting(name="other")], tmp_path / "log", period_s=3600) as watch:
        pass
    samples = watch.measured()
    assert samples.column("a.count") == [None, 2.0]
    assert samples.column("other.a.count") == [1.0, 2.0]
    assert watch.failures == {"counting: gone": 1}
    assert read_log([tmp_path / "log"]).samples == [samples]


@for_each("values", [[1.0], [1.0, 2.0, 3.0], []])
def test_a_reading_of_another_length_is_no_reading(values: list[float | None]) -> None:
    source = Counting()
    source.read = lambda: values  # type: ignore[method-assign]
    with Watch([source], period_s=3600) as watch:
        pass
    assert watch.measured().column("a.count") == [None, None]
    assert next(iter(watch.failures)).endswith("values for 2 channels")


def test_numbers_that_are_none_are_told_as_failed_readings(tmp_path: Path) -> None:
    source = Counting()
    source.read = lambda: [float("nan"), float("inf")]  # type: ignore[method-assign]
    with Watch([source], tmp_path / "log", period_s=3600) as watch:
        pass
    assert watch.measured().columns == [[None, None], [None, None]]
    assert read_log([tmp_path / "log"]).samples == [watch.measured()]


def test_a_name_that_two_sources_use_is_led_by_that_of_the_second() -> None:
    with Watch([Counting(), Counting(name="other")], period_s=3600) as watch:
        pass
    assert [channel.name for channel in watch.channels] == ["a.count", "a.twice", "other.a.count", "other.a.twice"]


def test_a_log_that_cannot_be_written_breaks_nothing(tmp_path: Path) -> None:
    with Watch([Counting()], tmp_path / "missing" / "log", period_s=3600) as watch:
        pass
    assert watch.measured().column("a.count") == [1.0, 2.0]
    assert list(watch.failures) == [f"cannot write {tmp_path}/missing/log: its folder no longer exists"]


@pytest.mark.parametrize("kept", [20, 300, -10])
def test_a_disk_that_was_full_for_a_while_loses_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    file = tmp_path / "log"
    whole = os.write

    def half(fd: int, data: bytes) -> int:  # what a full disk does: it takes what fits
        monkeypatch.setattr("fairmile.meter.meter.os.write", whole)
        return whole(fd, data[:kept])

    with Meter(file) as meter:
        watch = Watch([Counting()], meter, period_s=3600)
        watch.start()
        monkeypatch.setattr("fairmile.meter.meter.os.write", half)
        meter.flush()
        watch.stop()
    assert meter.failures == 1
    log = read_log([file])
    assert log.damaged == 1
    assert [samples.column("a.count") for samples in log.samples if samples.at_ns] == [[1.0, 2.0]]


def test_a_watch_may_share_the_meter_of_a_process_which_then_writes_as_one(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with Meter(file) as meter:
        meter.event("before")
        with Watch([Counting()], meter, period_s=3600) as watch:
            meter.event("within")
        meter.event("behind")
    log = read_log([file])
    assert len(log.writers) == 1 and log.damaged == 0
    assert [event.name for event in log.events] == ["before", "within", "behind"]
    assert log.samples == [watch.measured()]


def test_a_watch_that_keeps_nothing_still_writes_all(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with Watch([Counting()], file, period_s=3600, keep=False) as watch:
        pass
    assert list(watch.measured().at_ns) == []
    assert read_log([file]).samples[0].column("a.count") == [1.0, 2.0]


def test_two_sources_of_one_name_are_both_read_and_named_apart() -> None:
    sources = [Counting() for _ in range(3)]
    for source in sources:
        source.every_s = 0.005  # type: ignore[attr-defined]
    with Watch(sources, period_s=0.005) as watch:
        until(lambda: min(source.readings for source in sources) >= 4)
    names = [channel.name for channel in watch.channels]
    assert names[::2] == ["a.count", "counting.a.count", "counting.counting.a.count"]


def test_failures_that_are_all_different_do_not_pile_up() -> None:
    def fail(number: int) -> None:
        raise OSError(f"failure {number}")

    source = Counting(fail)
    with Watch([source], period_s=0.001) as watch:
        until(lambda: source.readings >= 80)
    assert len(watch.failures) <= 51
    assert sum(watch.failures.values()) == source.readings


def test_who_listens_hears_each_sample_and_cannot_break_the_watch() -> None:
    heard: list[list[float | None]] = []

    def listen(watch: Watch, values: object) -> None:
        heard.append(list(values))  # type: ignore[call-overload]
        raise RuntimeError("not my day")

    with Watch([Counting()], period_s=3600, on_sample=listen) as watch:
        pass
    assert heard == [[1.0, 2.0], [2.0, 4.0]]
    assert list(watch.failures.values()) == [2]


def test_a_source_that_is_dear_is_read_first_and_last_only() -> None:
    dear, cheap = Counting(name="dear"), Counting()
    dear.every_s = float("inf")  # type: ignore[attr-defined]
    with Watch([dear, cheap], period_s=0.005) as watch:
        until(lambda: cheap.readings >= 5)
    assert dear.readings == 2
    assert watch.measured().column("a.count")[1:-1] == [None] * (len(watch.measured().at_ns) - 2)


def test_a_source_may_be_read_less_often_than_the_others() -> None:
    dear, cheap = Counting(name="dear"), Counting()
    dear.every_s = 0.1  # type: ignore[attr-defined]
    with Watch([dear, cheap], period_s=0.005):
        until(lambda: dear.readings >= 4)
    assert cheap.readings > 3 * dear.readings


def test_a_watch_can_be_stopped_twice_and_started_once() -> None:
    source = Counting()
    watch = Watch([source], period_s=3600).start()
    assert watch.stop() == watch.stop()
    assert source.closed == 1
    with pytest.raises(UsageError, match="already been started"):
        watch.start()


@for_each("period_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_period_that_cannot_be_kept_is_refused(period_s: float) -> None:
    with pytest.raises(UsageError, match="the sampling period is"):
        Watch([], period_s=period_s)


def test_a_forked_child_neither_writes_nor_waits(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with Watch([Counting()], file, period_s=3600) as watch:
        pid = os.fork()
        if pid == 0:
            watch.stop()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    assert len(read_log([file]).samples[0].at_ns) == 2


def test_a_watch_made_before_a_fork_is_started_and_stopped_in_the_child(tmp_path: Path) -> None:
    file = tmp_path / "log"
    watch = Watch([Counting()], file, period_s=3600)
    pid = os.fork()
    if pid == 0:
        watch.start()
        watch.stop()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    (samples,) = read_log([file]).samples
    assert samples.writer.pid == pid and samples.column("a.count") == [1.0, 2.0]


# Programs


def test_a_program_runs_as_if_alone_and_its_end_is_told() -> None:
    watched = watch_command(["sh", "-c", "exit 3"], wanted=["process"], period_s=3600)
    assert watched.exit_code == 3
    assert watched.elapsed_s > 0 and watched.start_ns < watched.end_ns
    assert len(watched.samples.at_ns) == 2
    assert watched.failures == {}


def test_what_a_program_used_is_seen_at_its_end() -> None:
    code = "import time\nend=time.process_time()+0.3\nwhile time.process_time()<end: pass"
    watched = watch_command([sys.executable, "-c", code], wanted=["process"], period_s=3600)
    counted = watched.samples.column("process.cpu_time")
    assert counted[-1] is not None and counted[-1] >= 0.3
    assert watched.cpu_s is not None and watched.cpu_s == pytest.approx(counted[-1], abs=0.05)


def test_a_program_ended_by_a_signal_has_a_negative_code() -> None:
    assert watch_command(["sh", "-c", "kill -KILL $$"], wanted=[]).exit_code == -signal.SIGKILL


def test_the_log_of_a_program_is_read_back(tmp_path: Path) -> None:
    watched = watch_command(["true"], wanted=["host", "process"], file=tmp_path / "log", period_s=3600)
    assert read_log([tmp_path / "log"]).samples == [watched.samples]


def test_sources_that_are_missing_are_told(tmp_path: Path) -> None:
    watched = watch_command(["true"], wanted=["rapl", "cray"], root=tmp_path)
    assert set(watched.missing) == {"rapl", "cray"}


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingProgram, match="no-such-program-of-ours: command not found"):
        watch_command(["no-such-program-of-ours"], wanted=[])


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(SystemFailure, match="cannot run"):
        watch_command([str(tmp_path / "text")], wanted=[])


def test_an_empty_command_and_an_unknown_source_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="empty"):
        watch_command([])
    with pytest.raises(NotFound, match="no source"):
        watch_command(["touch", str(tmp_path / "mark")], wanted=["nonsense"])
    assert not (tmp_path / "mark").exists()


def test_a_program_is_watched_from_any_thread() -> None:
    codes: list[int | None] = []
    thread = threading.Thread(target=lambda: codes.append(watch_command(["sh", "-c", "exit 4"], wanted=[]).exit_code))
    thread.start()
    thread.join(PATIENCE_S)
    assert codes == [4]


PROGRAM = """
import sys
from fairmile.meter.watch import watch_command
watched = watch_command(["sh", "-c", sys.argv[1]], wanted=["process"], period_s=0.05)
print("code", watched.exit_code, flush=True)
"""


@for_each("sent", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_sent_to_the_watch_goes_on_to_the_program(sent: signal.Signals) -> None:
    name = sent.name.removeprefix("SIG")
    script = f"trap 'echo caught {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
    watch = subprocess.Popen([sys.executable, "-c", PROGRAM, script], stdout=subprocess.PIPE, text=True)
    assert watch.stdout is not None and watch.stdout.readline() == "ready\n"
    watch.send_signal(sent)
    out, _ = watch.communicate(timeout=PATIENCE_S)
    assert out == f"caught {name}\ncode 9\n"
    assert watch.returncode == 0


def test_ctrl_c_at_a_terminal_reaches_the_program_once_and_the_summary_still_comes() -> None:
    script = "trap 'echo caught' INT; echo ready; n=0; while [ $n -lt 10 ]; do sleep 0.05; n=$((n+1)); done; exit 5"
    parent, child = os.openpty()
    # The program's own session, with the terminal as its own: what a shell gives to a command in the foreground.
    code = (
        "import fcntl, os, sys, termios\n"
        "os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.tcsetpgrp(0, os.getpgrp())\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], sys.argv[2]])\n"
    )
    argv = [sys.executable, "-c", code, PROGRAM, script]
    watch = subprocess.Popen(argv, stdin=child, stdout=subprocess.PIPE, text=True)
    assert watch.stdout is not None and watch.stdout.readline() == "ready\n"
    os.write(parent, b"\x03")
    out, _ = watch.communicate(timeout=PATIENCE_S)
    os.close(parent)
    os.close(child)
    assert out == "caught\ncode 5\n"


def test_a_program_gets_its_signals_as_they_were() -> None:
    show = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    code = f"from fairmile.meter.watch import watch_command\nwatch_command({show!r}, wanted=[])"
    bare, watched = (
        subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
        for argv in (show, [sys.executable, "-c", code])
    )
    masks = [[int(line.split()[1], 16) for line in text.splitlines()] for text in (bare, watched)]
    # Two that the C library keeps for itself (32 and 33) may be ignored.
    assert [masks[1][0], masks[1][1] & ~(3 << 31)] == [masks[0][0], masks[0][1] & ~(3 << 31)]


def test_looking_for_a_time_takes_that_time() -> None:
    watched = watch_for(0.1, wanted=["host"], period_s=3600)
    assert watched.elapsed_s >= 0.1
    assert watched.exit_code is None and not watched.interrupted
    assert len(watched.samples.at_ns) == 2


def test_ctrl_c_ends_the_looking_and_keeps_what_was_measured() -> None:
    code = (
        "from fairmile.meter.watch import watch_for\n"
        "watched = watch_for(600, wanted=['host'], period_s=0.02, on_sample=lambda *_: print('x', flush=True))\n"
        "print('interrupted', watched.interrupted, len(watched.samples.at_ns) > 1)\n"
    )
    watch = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert watch.stdout is not None
    for _ in range(3):
        assert watch.stdout.readline() == "x\n"
    watch.send_signal(signal.SIGINT)
    out, _ = watch.communicate(timeout=PATIENCE_S)
    assert out.splitlines()[-1] == "interrupted True True"
