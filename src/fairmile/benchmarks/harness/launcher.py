"""Starts the processes of a run on this machine, where no launcher did."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from fairmile.base.cores import usable_cores
from fairmile.base.errors import SystemFailure

_LOOK_S = 0.05
_GRACE_S = 10.0  # for a rank that is told to end, before it is killed
_PORTS = range(10_000, 30_000)  # below those that a system gives to connections, so that none is taken meanwhile


def start_ranks(many: int, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command as so many ranks and return 0, or the exit code of the first that failed.

    When one of them fails the others are ended, as all are when this process is told to end.
    """
    shared = {
        "OMP_NUM_THREADS": str(max(_cores() // many, 1)),
        **environ,
        "WORLD_SIZE": str(many),
        "LOCAL_WORLD_SIZE": str(many),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    started: list[subprocess.Popen[bytes]] = []
    with _signals() as signals:
        try:
            for rank in map(str, range(many)):
                started.append(subprocess.Popen(command, env={**shared, "RANK": rank, "LOCAL_RANK": rank}))
            return _wait(started, signals)
        finally:
            _end(started)


def _wait(started: Sequence[subprocess.Popen[bytes]], signals: Sequence[int]) -> int:
    while True:
        codes = [each.poll() for each in started]
        failed = next((code for code in codes if code), 0)
        if failed or None not in codes:
            return failed if failed >= 0 else 128 - failed
        if signals:
            return 128 + signals[0]
        time.sleep(_LOOK_S)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for each in started:
        each.terminate()
    deadline = time.monotonic() + _GRACE_S
    for each in started:
        try:
            each.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect signals that would end this process, so that it ends its ranks before itself."""
    numbers: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        numbers.append(number)

    before = {each: signal.signal(each, tell) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield numbers
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _cores() -> int:
    return usable_cores()


def _free_port() -> int:
    for port in random.Random().sample(_PORTS, 100):
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    raise SystemFailure(
        f"none of the ports {_PORTS[0]} to {_PORTS[-1]} is free", hint="stop the programs that use them"
    )
