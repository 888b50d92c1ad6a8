"""How far a long call is: a line in a terminal, a bar in a notebook, a function of the caller, or nothing.

Whoever works states a `Progress`; whoever watches is a function that takes one, such as a `TerminalLine`.
"""

from __future__ import annotations

import codecs
import itertools
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol, cast

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_duration, format_size

_EVERY_S = 0.2
_PATIENCE_S = 0.5  # a notebook keeps what it has shown, so that what takes less is not worth a bar
_SMOOTH_S = 3.0
_BAR = 24
_LONGEST_LINE = 120


@dataclass(frozen=True)
class Progress:
    """How far a call is: what it works on, how much of it is done, and what it said last.

    `total` is None where it is unknown, and only a guess with `is_estimate`. `per_s` is the present rate.
    """

    what: str
    done: int = 0
    total: int | None = None
    unit: str = ""  # of both, such as `bytes` or `points`
    per_s: float = 0.0
    files: tuple[int, int] = (0, 0)
    is_estimate: bool = False
    note: str = ""

    @property
    def share(self) -> float | None:
        """How much is done, from 0 to 1; None where that is unknown."""
        return min(self.done / self.total, 1.0) if self.total else None

    def __str__(self) -> str:
        mark = "~" if self.is_estimate else ""
        parts = [f"{self._amount(self.done)} of {mark}{self._amount(self.total)}"] if self.total else []
        if self.files[1] > 1:
            parts.append(f"{self.files[0]:,}/{self.files[1]:,} files")
        if self.unit == "bytes":
            parts.append(f"{format_size(int(self.per_s))}/s")
        if self.per_s and self.total and self.total > self.done:
            parts.append(f"{_clock((self.total - self.done) / self.per_s)} left")
        return "  ".join(part for part in (*parts, _one_line(self.note), _one_line(self.what)) if part)

    def _amount(self, number: int) -> str:
        if self.unit == "seconds":
            return format_duration(number)
        return format_size(number) if self.unit == "bytes" else f"{number:,}"


Watch = Callable[[Progress], None]


class Display(Protocol):
    """Shows how far a call is to a person."""

    def __call__(self, progress: Progress) -> None:
        """Show this in place of what was shown before."""
        ...

    def clear(self) -> None:
        """Take away what is shown."""
        ...


class TerminalLine:
    """A line on stderr that is drawn over and over; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._is_shown = False

    def __call__(self, progress: Progress) -> None:
        if not self._is_terminal:
            return
        share = progress.share
        bar = f"[{'#' * int(_BAR * share):-<{_BAR}}] " if share is not None else ""
        width = max(shutil.get_terminal_size().columns - 1, 10)
        sys.stderr.write(f"\r\033[K{(bar + str(progress))[:width]}")
        sys.stderr.flush()
        self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._is_shown = False


class NotebookBar:
    """A bar in the output of a cell; what remains of it is how long it took."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._handle: Any = None
        self._last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        self._last = progress
        if self._handle is None and time.monotonic() - self._began < _PATIENCE_S:
            return
        self._show(_Shown(str(progress), progress.share, is_over=False))

    def clear(self) -> None:
        if self._handle is None or self._last is None:
            return
        last, took = self._last, format_duration(time.monotonic() - self._began)
        unit = "" if last.unit == "bytes" else f" {last.unit}"
        is_counted = bool(last.total) and last.unit != "seconds"
        text = f": {last._amount(last.done)}{unit} in {took}" if is_counted else f" took {took}"
        self._show(_Shown(_one_line(last.what) + text, None, is_over=True))

    def _show(self, shown: _Shown) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown)


@dataclass(frozen=True)
class _Shown:
    """What a notebook shows of a bar."""

    text: str
    share: float | None
    is_over: bool

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from html import escape

        text = f"<small>{escape(self.text).replace('  ', ' · ')}</small>"
        if self.is_over:
            return text
        value = "" if self.share is None else f' value="{self.share:.4f}"'
        return f'<progress max="1"{value} style="width: 12em"></progress> {text}'


def display_here() -> Display | None:
    """Return what shows progress to the person at this process: none where nobody looks."""
    if _is_in_notebook():
        return NotebookBar()
    return TerminalLine() if sys.stderr is not None and sys.stderr.isatty() else None


def _is_in_notebook() -> bool:
    shell = sys.modules.get("IPython")  # a process that has not imported it is no kernel
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


@contextmanager
def watching(progress: bool | Watch) -> Iterator[Watch | None]:
    """Give whoever watches a call: the caller's own function, or what shows it here; None where nobody does."""
    if callable(progress):
        yield progress
        return
    display = display_here() if progress else None
    try:
        yield display
    finally:
        if display is not None:
            display.clear()


@contextmanager
def working(
    progress: bool | Watch, what: str, doing: str, *, total_s: float | None = None, has_own_output: bool = False
) -> Iterator[Callable[[str], None]]:
    """Show how long a call works at one thing that cannot be counted; give a function that states what it does now.

    `total_s` is how long it takes at most. A terminal shows nothing of a call `has_own_output`, which goes there.
    """
    is_drawn_over = has_own_output and not callable(progress) and not _is_in_notebook()
    with watching(False if is_drawn_over else progress) as watch:
        if watch is None:
            yield lambda _: None
            return
        note, is_over, began = [doing], threading.Event(), time.monotonic()

        def tick() -> None:
            while not is_over.wait(_PATIENCE_S):
                passed_s = time.monotonic() - began
                if total_s is None:
                    watch(Progress(what, note=f"{note[0]}, {format_duration(int(passed_s) or passed_s)}"))
                else:
                    watch(Progress(what, min(int(passed_s), int(total_s)), int(total_s), "seconds", note=note[0]))

        thread = threading.Thread(target=tick, daemon=True)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for other threads
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            yield lambda text: note.__setitem__(0, text)
        finally:
            is_over.set()
            thread.join()


class TransferProgress:
    """Watches a transfer (a `transfer.items.Watcher`) and states bytes, rate and remaining time."""

    def __init__(self, watch: Watch, on_note: Callable[[str], None] | None = None) -> None:
        self._watch = watch
        self._on_note = on_note
        self._lock = threading.Lock()
        self._what, self._total, self._is_estimate = "", 0, False
        self._done = 0
        self._files = (0, 0)
        self._stated_at = 0.0
        self._rate = 0.0
        self._last = (0.0, 0)

    def begin(self, what: str, total_bytes: int, is_estimate: bool) -> None:
        with self._lock:
            self._what, self._total, self._is_estimate = what, total_bytes, is_estimate
            self._done, self._files = 0, (0, 0)
            self._last, self._rate = (time.monotonic(), 0), 0.0

    def bytes(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._stated_at >= _EVERY_S or self._done == self._total:
                self._state(now)

    def item(self, done: int, total: int) -> None:
        with self._lock:
            self._files = (done, total)

    def note(self, text: str) -> None:
        with self._lock:
            if self._on_note is not None:
                self._on_note(text)
            else:
                self._watch(Progress(self._what, note=text))

    def _state(self, now: float) -> None:
        then, before = self._last
        passed = max(now - then, 1e-3)
        share = min(1.0, passed / _SMOOTH_S)
        self._rate = (1 - share) * self._rate + share * max(self._done - before, 0) / passed
        self._last, self._stated_at = (now, self._done), now
        total = self._total or None
        self._watch(
            Progress(self._what, self._done, total, "bytes", self._rate, self._files, is_estimate=self._is_estimate)
        )


class CountProgress:
    """States how many of some things are done, and from that how long the rest takes."""

    def __init__(self, watch: Watch | None, what: str, unit: str) -> None:
        self._watch = watch
        self._what, self._unit = what, unit
        self._began = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """State that so many of all are done."""
        if self._watch is None:
            return
        self._first = done if self._first is None else self._first
        rate = (done - self._first) / max(time.monotonic() - self._began, 1e-3)
        self._watch(Progress(self._what, done, total, self._unit, rate))

    def one_of(self, total: int) -> Callable[[object], None]:
        """Return what is called as each of them ends."""
        ended = itertools.count(1)
        return lambda _: self(next(ended), total)


class LastLine:
    """A binary stream for the output of a program, which states its last line."""

    def __init__(self, watch: Watch, what: str) -> None:
        self._watch, self._what = watch, what
        self._rest = b""
        self._stated_at = 0.0

    def write(self, data: bytes) -> int:
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[-_LONGEST_LINE:]
        last = next((line for line in reversed(lines) if line.strip()), b"")
        now = time.monotonic()
        if last and now - self._stated_at >= _EVERY_S:
            self._stated_at = now
            self._watch(Progress(self._what, note=last[:_LONGEST_LINE].decode(errors="replace")))
        return len(data)

    def flush(self) -> None:
        return None


class Printed:
    """A binary stream that prints on whatever stdout is: that of a notebook takes texts alone."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes) -> int:
        sys.stdout.write(self._decoder.decode(data))
        return len(data)

    def flush(self) -> None:
        sys.stdout.flush()


def echo_of(echo: bool, watch: Watch | None, what: str) -> BinaryIO | None:
    """Return where a program's output goes: all of it to stdout, or its last line to whoever watches."""
    if echo:
        return cast("BinaryIO", Printed())
    return cast("BinaryIO", LastLine(watch, what)) if watch is not None else None


def _one_line(text: str) -> str:
    """Return somebody else's text without what could steer a terminal, on one line."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
