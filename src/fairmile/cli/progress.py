"""One line that shows the progress of a transfer; silent where stderr is no terminal."""

from __future__ import annotations

import shutil
import sys
import threading
import time

from fairmile.base.units import format_size
from fairmile.cli.out import Out, one_line

_EVERY_S = 0.2
_SMOOTH_S = 3.0
_BAR = 24


class TransferLine:
    """A watcher that draws bytes, rate and remaining time on stderr."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._what = ""
        self._total = 0
        self._done = 0
        self._items = (0, 0)
        self._drawn_at = 0.0
        self._rate = 0.0
        self._last = (0.0, 0)
        self._estimate_mark = ""
        self._is_shown = False
        self._is_terminal = sys.stderr.isatty()
        self.printed_notes: set[str] = set()

    def begin(self, what: str, total_bytes: int, is_estimate: bool) -> None:
        with self._lock:
            self._what, self._total, self._done, self._items = what, total_bytes, 0, (0, 0)
            self._estimate_mark = "~" if is_estimate else ""
            self._last, self._rate = (time.monotonic(), 0), 0.0

    def bytes(self, count: int) -> None:
        if not self._is_terminal:
            return
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._drawn_at >= _EVERY_S:
                self._draw(now)

    def item(self, done: int, total: int) -> None:
        with self._lock:
            self._items = (done, total)

    def note(self, text: str) -> None:
        with self._lock:
            self.printed_notes.add(text)
            self.clear()
            self._out.say(f"note: {one_line(text)}")

    def clear(self) -> None:
        """Erase the line."""
        if self._is_shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._is_shown = False

    def _draw(self, now: float) -> None:
        then, before = self._last
        passed = max(now - then, 1e-3)
        share = min(1.0, passed / _SMOOTH_S)
        self._rate = (1 - share) * self._rate + share * max(self._done - before, 0) / passed
        self._last, self._drawn_at = (now, self._done), now
        parts = [f"{format_size(self._done)} of {self._estimate_mark}{format_size(self._total)}" if self._total else ""]
        if self._items[1] > 1:
            parts.append(f"{self._items[0]:,}/{self._items[1]:,} files")
        parts.append(f"{format_size(int(self._rate))}/s")
        if self._rate and self._total > self._done:
            parts.append(f"{_clock((self._total - self._done) / self._rate)} left")
        text = "  ".join(part for part in parts if part)
        filled = min(_BAR, _BAR * self._done // self._total) if self._total else 0
        width = shutil.get_terminal_size().columns
        line = f"[{'#' * filled}{'-' * (_BAR - filled)}] {text}  {one_line(self._what)}"[: max(width - 1, 10)]
        sys.stderr.write(f"\r\033[K{line}")
        sys.stderr.flush()
        self._is_shown = True


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
