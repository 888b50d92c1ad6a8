"""Processes of an exploration: each is asked by a line of JSON, and answers by one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fairmile.base.errors import RunFailed

_PREPARING_S = 600.0
_TURN_S = 120.0


def run_module(module: str, argument: str, folder: Path) -> int:
    """Run a module to its end and return its exit code."""
    argv = [sys.executable, "-P", "-m", module, argument]
    return subprocess.run(argv, cwd=folder, env=_variables(), check=False).returncode


def _variables() -> dict[str, str]:
    """Return the variables of a process, by which it finds Fairmile where that only travelled along with a run."""
    own = Path(__file__).parents[3]
    if own != Path.cwd():
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(own), os.environ.get("PYTHONPATH"))))}


def read_kib(file: str, name: str) -> int:
    """Return a number of KiB that the kernel states, 0 where it does not."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


class Worker:
    """The process of one candidate."""

    def __init__(self, job: str, folder: Path, scratch: Path) -> None:
        scratch.mkdir(parents=True)
        # A cache of compiled code that others filled would shorten the first call.
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(scratch), "TRITON_CACHE_DIR": str(scratch / "triton")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fairmile.models.explore.worker", job],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**_variables(), **caches},
            text=True,
        )
        self._started: dict[str, Any] = {}

    def wait_imported(self) -> None:
        """Wait until the process has imported its runtime, or has failed to."""
        self._started = self._attempt()

    def load(self) -> dict[str, Any]:
        """Have the process load its model, and return what it says of it, or why it cannot."""
        if "refused" in self._started:
            return self._started
        self._send({"load": True})
        return self._attempt()

    def _attempt(self) -> dict[str, Any]:
        try:
            return self._read(_PREPARING_S)
        except RunFailed as error:
            return {"refused": error.message}

    def _send(self, question: Mapping[str, Any]) -> None:
        _pipe(self._process.stdin).write(json.dumps(question) + "\n")
        _pipe(self._process.stdin).flush()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Send a line and return the answer."""
        self._send(question)
        return self._read(_TURN_S)

    def _read(self, limit_s: float) -> dict[str, Any]:
        stream = _pipe(self._process.stdout)
        if not select.select([stream], [], [], limit_s)[0]:
            raise RunFailed(f"it did not answer within {limit_s:.0f} s")
        line = stream.readline()
        if not line:
            code = self._process.wait()
            raise RunFailed(f"its process ended with exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def memory_bytes(self) -> int:
        """Return the memory that the process has now."""
        return read_kib(f"/proc/{self._process.pid}/status", "VmRSS") * 1024

    def close(self) -> None:
        """End the process; a second call does nothing."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
