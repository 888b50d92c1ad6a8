"""What a program prints and states while it runs: passed on, and searched for metrics that its run declares.

This travels with the recorder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from fairmile.base.patterns import compile_linear
from fairmile.meter.meter import Meter

LONGEST_LINE = 64 << 10
_SEARCH_S = 1.0  # for one line, where no engine is at hand that takes linear time
_OVERLAP = 1 << 10  # of two pieces of a longer one: no match is cut


class MetricPattern:
    """Finds a metric in a line: the group named `value`, or the first one, and the group `step` where there is one."""

    def __init__(self, text: str) -> None:
        self._limits = False
        try:
            self._pattern = compile_linear(text.encode())
        except ImportError:  # a recorder that travelled finds a bare Python, whose own engine may take for ever
            self._pattern, self._limits = re.compile(text.encode()), True
        names = {os.fsdecode(name): group for name, group in self._pattern.groupindex.items()}
        self._value, self._step = names.get("value", 1), names.get("step")

    def find(self, line: bytes) -> list[tuple[int, bytes, bytes | None]]:
        """Return the end of each match, its value and its step; TimeoutError where that takes too long."""
        with _time_limit(_SEARCH_S) if self._limits else contextlib.nullcontext():
            return [
                (match.end(), match[self._value] or match[1], match[self._step] if self._step else None)
                for match in self._pattern.finditer(line)
            ]


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError within the block after a while; only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class OutputReader:
    """Reads what a program prints and states: echoes it, and finds metrics in it."""

    def __init__(self, meter: Meter, patterns: Mapping[str, str], echo: BinaryIO | None) -> None:
        self._meter = meter
        self._patterns = {name: MetricPattern(pattern) for name, pattern in patterns.items()}
        self._echo = echo
        self._printed: BinaryIO | None = None
        self._stated: BinaryIO | None = None
        self._line, self._seen = b"", 0  # the last line that was printed, and how much of it was looked at before
        self._rest = b""

    @contextlib.contextmanager
    def attached(self, printed: str, stated: str, *, printed_from: int = 0) -> Iterator[None]:
        """Read within the block from these files; what is printed only where somebody wants to know it."""
        with contextlib.ExitStack() as files:
            self._stated = files.enter_context(open(stated, "rb", buffering=0))
            if self._patterns or self._echo is not None:
                self._printed = files.enter_context(open(printed, "rb", buffering=0))
                self._printed.seek(printed_from)
            yield

    def look(self) -> None:
        """Take what has come since the last time."""
        if self._printed is not None:
            while data := self._printed.read(1 << 20):
                self._write(data)
                if self._patterns:
                    self._find(data)
        if self._stated is not None:
            while data := self._stated.read(1 << 20):
                *lines, rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._state(line[:LONGEST_LINE])
                self._rest = rest[:LONGEST_LINE]

    def drain(self) -> None:
        """Take the rest, also a last line without an end."""
        self.look()
        self._match(self._line, self._seen)
        self._line, self._seen = b"", 0
        if self._rest:
            self._state(self._rest)
            self._rest = b""

    def _write(self, data: bytes) -> None:
        if self._echo is None:
            return
        try:
            self._echo.write(data)
            self._echo.flush()
        except (OSError, ValueError):  # whoever listened is gone; the log has it all
            self._echo = None

    def _find(self, data: bytes) -> None:
        """Find metrics in what was printed, anywhere in a line of any length: one that is too long goes by pieces."""
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._pieces(line, is_whole=True)
            self._seen = 0
        self._line = self._pieces(self._line, is_whole=False)

    def _pieces(self, line: bytes, *, is_whole: bool) -> bytes:
        """Look at a line, and return what is left of one that goes on."""
        start = 0
        while len(line) - start > LONGEST_LINE:
            piece = line[start : start + LONGEST_LINE]
            self._match(piece, self._seen, goes_on=True)
            start += LONGEST_LINE - _OVERLAP
            self._seen = _OVERLAP
        if is_whole:
            self._match(line[start:], self._seen)
        return line[start:]

    def _match(self, line: bytes, seen: int, *, goes_on: bool = False) -> None:
        for name, pattern in list(self._patterns.items()):
            try:
                for end, value, step in pattern.find(line):
                    if end <= seen or (goes_on and end == len(line)):
                        continue  # the piece before had it, or the next one has it whole
                    with contextlib.suppress(ValueError, TypeError):
                        self._meter.log(step=float(step) if step else None, **{name: float(value)})
            except TimeoutError:
                del self._patterns[name]
                self._meter.event("metric pattern dropped", metric=name, reason="searching a line takes too long")

    def _state(self, line: bytes) -> None:
        """Take a line such as {"loss": 0.5, "step": 3}."""
        if not line.strip():
            return
        try:
            stated = json.loads(line)
            step = stated.pop("step", None)
            step = None if step is None else float(step)
        except (ValueError, TypeError, AttributeError):
            self._meter.event("unreadable metric", line=line[:200].decode(errors="replace"))
            return
        for name, value in stated.items():
            try:
                self._meter.log(step=step, **{name: float(value)})
            except (ValueError, TypeError):
                self._meter.event("unreadable metric", name=name, value=str(value)[:200])
