"""A copy of a process works on its own, and only a process that can be copied safely is."""

from __future__ import annotations

import subprocess
import sys

SHOUT = """\
import os, signal, sys, threading, time
from pathlib import Path
from fairmile.base.files import Lock
from fairmile.base.forks import Fork, can_fork

def main():
    for line in sys.stdin.buffer:
        os.write(1, f"{os.getpid() == os.getsid(0)} {sorted(os.listdir('/proc/self/fd'))} ".encode() + line.upper())
    return 7
"""


def python(text: str, *arguments: str) -> str:
    argv = [sys.executable, "-W", "error", "-c", SHOUT + text, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout


def test_a_copy_has_a_session_and_no_files_of_the_original() -> None:
    text = (
        "file = open(sys.argv[0] if os.path.exists(sys.argv[0]) else '/dev/null')\n"
        "first, second = Fork(main), Fork(main)\n"
        "first.stdin.write(b'tide\\n'); first.stdin.close()\n"
        "print(first.stdout.read(), first.wait())\n"  # it ends although the second copy is still there
        "second.send_signal(signal.SIGKILL); print(second.wait())\n"
    )
    answer, killed = python(text).splitlines()
    assert answer == "b\"True ['0', '1', '2', '3'] TIDE\\n\" 7"  # 3 is the listing itself
    assert killed == "-9"


def test_signals_of_the_original_are_not_those_of_the_copy() -> None:
    text = (
        "signal.signal(signal.SIGTERM, lambda *_: print('original'))\n"
        "copy = Fork(main); copy.stdin.write(b'x\\n'); copy.stdin.flush(); copy.stdout.read(1)\n"
        "copy.send_signal(signal.SIGTERM); print(copy.wait())\n"
    )
    assert python(text) == "-15\n"


def test_only_threads_that_renew_locks_may_be_there(tmp_path: object) -> None:
    text = (
        "print(can_fork())\n"
        "with Lock(sys.argv[1]):\n"
        "    print(can_fork())\n"
        "stop = threading.Event(); thread = threading.Thread(target=stop.wait); thread.start()\n"
        "print(can_fork()); stop.set(); thread.join()\n"
        "until = time.monotonic() + 60\n"  # the system ends a thread a moment after Python has
        "while not can_fork() and time.monotonic() < until: time.sleep(0.01)\n"
        "print(can_fork())\n"
        "sys.modules['torch'] = sys; print(can_fork())\n"
    )
    assert python(text, f"{tmp_path}/lock").split() == ["True", "True", "False", "True", "False"]


def test_a_process_with_much_memory_is_not_copied() -> None:
    assert python("data = bytearray(os.urandom(1 << 20)) * 128; print(can_fork())\n") == "False\n"
