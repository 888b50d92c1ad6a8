"""A program with all that it started: real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairmile.base.errors import Unsupported
from fairmile.meter.sources import Where
from fairmile.meter.sources.process import ProcessTree
from fairmile.testing.energy import EnergySourceTests, Subject

PATIENCE_S = 30.0
# Uses processor time at each line that it is given, and says when it is done.
BUSY = """
import sys, time
for line in sys.stdin:
    end = time.process_time() + 0.05
    while time.process_time() < end: pass
    print("done", flush=True)
"""


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs that end with the test, together with all they started."""
    running: list[subprocess.Popen[str]] = []

    def start(*argv: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        running.append(subprocess.Popen(argv, text=True, start_new_session=True, **pipes))
        return running[-1]

    yield start
    for program in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


def work(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    assert program.stdout.readline() == "done\n"


def read(source: ProcessTree) -> dict[str, float | None]:
    return dict(zip((channel.name for channel in source.channels()), source.read(), strict=True))


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


class TestProcessTree(EnergySourceTests):
    @pytest.fixture
    def subject(self, started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Subject:
        program = started(sys.executable, "-c", BUSY)

        def vanish() -> None:
            program.kill()
            program.wait()

        return Subject(
            lambda: ProcessTree(Where(pid=program.pid)),
            lambda: work(program),
            vanish,
            lambda: ProcessTree(Where(pid=2**22 + 5)),
        )


def test_processor_time_memory_and_threads_are_those_of_the_process(
    started: Callable[..., subprocess.Popen[str]],
) -> None:
    program = started(sys.executable, "-c", BUSY)
    source = ProcessTree(Where(pid=program.pid), look_s=0)
    work(program)
    before = read(source)
    for _ in range(4):
        work(program)
    after = read(source)
    source.close()
    assert before["process.cpu_time"] is not None and after["process.cpu_time"] is not None
    assert 0.15 <= after["process.cpu_time"] - before["process.cpu_time"] < 5.0
    assert after["process.memory"] is not None and 1e6 < after["process.memory"] < 1e9
    assert after["process.threads"] == 1.0


def test_children_and_their_children_belong_to_the_tree(started: Callable[..., subprocess.Popen[str]]) -> None:
    program = started("sh", "-c", "(sleep 60 & sleep 60 & wait) & wait")
    source = ProcessTree(Where(pid=program.pid), look_s=0)
    until(lambda: read(source)["process.threads"] == 4.0)
    source.close()


def test_children_whose_parent_has_ended_still_belong(started: Callable[..., subprocess.Popen[str]]) -> None:
    program = started(
        "sh", "-c", "(sh -c 'sleep 60 & sleep 60 & echo forked; wait' & ) ; read line; (sleep 60 &) ; wait"
    )
    assert program.stdout is not None and program.stdout.readline() == "forked\n"
    source = ProcessTree(Where(pid=program.pid), look_s=0)
    until(lambda: read(source)["process.threads"] == 4.0)  # the first sh, the orphaned one and its two
    source.close()


def test_the_time_of_children_that_were_waited_for_is_kept(started: Callable[..., subprocess.Popen[str]]) -> None:
    code = "import time\nend=time.process_time()+0.2\nwhile time.process_time()<end: pass"
    program = started("sh", "-c", f"'{sys.executable}' -c '{code}'; echo over; read line")
    source = ProcessTree(Where(pid=program.pid), look_s=0)
    assert program.stdout is not None and program.stdout.readline() == "over\n"
    used = read(source)["process.cpu_time"]
    source.close()
    assert used is not None and used >= 0.2


def test_the_counters_never_fall_when_a_child_ends_that_nobody_waits_for(
    started: Callable[..., subprocess.Popen[str]],
) -> None:
    program = started("sh", "-c", f"""(exec '{sys.executable}' -c '{BUSY.replace("'", '"')}' <&0 &) ; sleep 60""")
    source = ProcessTree(Where(pid=program.pid), look_s=0)
    until(lambda: len(source._members) >= 3 or read(source) is None)
    before = read(source)["process.cpu_time"]
    for pid in list(source._members):
        if pid != program.pid:
            os.kill(pid, signal.SIGKILL)
    until(lambda: read(source)["process.threads"] == 1.0)
    after = read(source)["process.cpu_time"]
    source.close()
    assert before is not None and after is not None and after >= before


def test_a_stranger_does_not_belong(started: Callable[..., subprocess.Popen[str]]) -> None:
    program, stranger = started("sleep", "60"), started("sleep", "60")
    source = ProcessTree(Where(pid=program.pid), look_s=0)
    read(source)
    assert set(source._members) == {program.pid}
    assert stranger.pid in source._strangers
    source.close()


def test_a_tree_that_takes_long_to_read_is_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ProcessTree(Where())
    looks: list[int] = []
    now, used = [1000.0], [0.0]

    def sums() -> list[float | None]:
        looks.append(1)
        used[0] += 0.005  # half a second of rest, then
        return [float(len(looks))] * 5

    monkeypatch.setattr(source, "_sums", sums)
    monkeypatch.setattr("fairmile.meter.sources.process.time.monotonic", lambda: now[0])
    monkeypatch.setattr("fairmile.meter.sources.process.time.thread_time", lambda: used[0])
    told = []
    for _ in range(12):
        told.append(source.read()[0])
        now[0] += 0.1
    source.close()
    assert told == [1.0] * 5 + [2.0] * 5 + [3.0] * 2


def test_without_a_process_it_is_this_one() -> None:
    source = ProcessTree(Where())
    assert source.pid == os.getpid()
    source.close()


def test_a_process_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no process 4194309"):
        ProcessTree(Where(pid=4194309))


def test_a_program_with_brackets_in_its_name_is_read(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    program = started(str(odd), "60")
    until(lambda: b"a) S 1 (b" in Path(f"/proc/{program.pid}/stat").read_bytes())
    source = ProcessTree(Where(pid=program.pid), look_s=0)
    assert read(source)["process.threads"] == 1.0
    source.close()
