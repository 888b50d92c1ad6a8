"""Progress is stated once and shown where somebody looks: a terminal, a notebook, or a function of the caller."""

from __future__ import annotations

import io
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
from cases import for_each

from fairmile.base import progress as module
from fairmile.base.progress import (
    CountProgress,
    LastLine,
    NotebookBar,
    Progress,
    TerminalLine,
    TransferProgress,
    display_here,
    echo_of,
    watching,
    working,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time, which the test moves on."""
    times = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: times[0])
    yield times


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a notebook displays, in place of one another."""
    shown: list[Any] = []

    class Handle:
        def update(self, content: Any) -> None:
            shown.append(content)

    def display(content: Any, display_id: bool) -> Handle:
        shown.append(content)
        return Handle()

    kernel = types.SimpleNamespace(kernel=object())
    package = types.ModuleType("IPython")
    package.get_ipython = lambda: kernel  # type: ignore[attr-defined]
    part = types.ModuleType("IPython.display")
    part.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    return shown


@for_each(
    "progress, text",
    [
        (Progress("tides", 1024, 4096, "bytes", 1024.0), "1.0 KiB of 4.0 KiB  1.0 KiB/s  0:03 left  tides"),
        (Progress("tides", 10, 20, "bytes", is_estimate=True), "10 B of ~20 B  0 B/s  tides"),
        (Progress("tides", 10, 20, "bytes", files=(1, 3)), "10 B of 20 B  1/3 files  0 B/s  tides"),
        (Progress("tides", 7, None, "bytes", 7.0), "7 B/s  tides"),
        (Progress("sweep x", 1_000, 4_600, "points", 1.0), "1,000 of 4,600  1:00:00 left  sweep x"),
        (Progress("calibration", 12, 120, "seconds", note="cuda"), "12 s of 2m  cuda  calibration"),
        (Progress("train.py", note="epoch 3\n\x1b[31mloss"), "epoch 3 [31mloss  train.py"),
    ],
)
def test_it_says_how_much_is_done_and_how_long_the_rest_takes(progress: Progress, text: str) -> None:
    assert str(progress) == text


def test_a_transfer_states_bytes_with_their_rate(now: list[float]) -> None:
    stated: list[Progress] = []
    transfer = TransferProgress(stated.append)
    transfer.begin("tides", 300, False)
    now[0] += 3
    transfer.bytes(150)
    transfer.bytes(50)  # too soon to be worth a look
    now[0] += 3
    transfer.item(1, 2)
    transfer.bytes(100)
    assert [(each.done, each.total, each.per_s, each.files) for each in stated] == [
        (150, 300, 50.0, (0, 0)),
        (300, 300, 50.0, (1, 2)),
    ]


def test_what_a_transfer_notes_goes_to_whoever_asked_for_notes() -> None:
    stated: list[Progress] = []
    notes: list[str] = []
    TransferProgress(stated.append, notes.append).note("a mirror stopped responding")
    TransferProgress(stated.append).note("another process is fetching it")
    assert notes == ["a mirror stopped responding"]
    assert [each.note for each in stated] == ["another process is fetching it"]


def test_a_count_tells_how_long_the_rest_takes_by_what_was_done_since_the_first_look(now: list[float]) -> None:
    stated: list[Progress] = []
    count = CountProgress(stated.append, "sweep x", "points")
    count(4, 10)  # four were done before
    now[0] += 4
    count(6, 10)
    assert [(each.done, each.per_s) for each in stated] == [(4, 0.0), (6, 0.5)]


def test_of_a_program_the_last_whole_line_is_stated(now: list[float]) -> None:
    stated: list[Progress] = []
    stream = LastLine(stated.append, "train.py")
    stream.write(b"epoch 1\nepo")
    now[0] += 1
    stream.write(b"ch 2\n\n")
    now[0] += 1
    stream.write(b"50 %\r60 %\r")
    assert [each.note for each in stated] == ["epoch 1", "epoch 2", "60 %"]


def test_output_is_printed_where_stdout_takes_texts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    stream = echo_of(True, None, "train.py")
    assert stream is not None
    stream.write("é".encode()[:1])
    stream.write("é".encode()[1:] + b"\xff")
    stream.flush()
    assert sys.stdout.getvalue() == "é\ufffd"  # type: ignore[attr-defined]
    assert echo_of(False, None, "train.py") is None


def test_a_terminal_shows_one_line_that_is_taken_away_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with watching(True) as watch:
        assert isinstance(watch, TerminalLine)
        watch(Progress("sweep x", 1, 4, "points"))
    text = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert text == "\r\033[K[######------------------] 1 of 4  sweep x\r\033[K"


def test_nothing_is_shown_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert display_here() is None
    with watching(True) as watch:
        assert watch is None


def test_the_caller_can_switch_it_off_or_take_it_over(shown: list[Any]) -> None:
    stated: list[Progress] = []
    with watching(False) as watch:
        assert watch is None
    with watching(stated.append) as watch:
        assert watch is not None
        watch(Progress("sweep x", 1, 4))
    assert (shown, len(stated)) == ([], 1)


def test_a_notebook_shows_a_bar_and_in_the_end_how_long_it_took(shown: list[Any], now: list[float]) -> None:
    with watching(True) as watch:
        assert isinstance(watch, NotebookBar)
        watch(Progress("sweep <x>", 1, 4, "points"))
        assert shown == []  # what is over in a moment needs no bar
        now[0] += 1
        watch(Progress("sweep <x>", 2, 4, "points"))
        now[0] += 1
        watch(Progress("sweep <x>", 4, 4, "points"))
    bar, _, end = shown
    assert 'value="0.5000"' in bar._repr_html_() and "2 of 4 · sweep &lt;x&gt;" in bar._repr_html_()
    assert repr(bar) == "2 of 4  sweep <x>"
    assert (repr(end), end._repr_html_()) == (
        "sweep <x>: 4 points in 2 s",
        "<small>sweep &lt;x&gt;: 4 points in 2 s</small>",
    )


def test_work_that_cannot_be_counted_states_what_it_does_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.001)
    stated: list[Progress] = []
    is_stated = threading.Event()

    def watch(progress: Progress) -> None:
        stated.append(progress)
        if progress.note.startswith("tracing a batch of 8"):
            is_stated.set()

    with working(watch, "step.py:build", "tracing the step") as state:
        state("tracing a batch of 8")
        assert is_stated.wait(20)
    assert stated[-1].what == "step.py:build" and stated[-1].total is None


def test_work_of_a_known_length_fills_a_bar(monkeypatch: pytest.MonkeyPatch, shown: list[Any]) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.001)
    is_drawn = threading.Event()
    monkeypatch.setattr(NotebookBar, "_show", lambda bar, content: (shown.append(content), is_drawn.set()))
    with working(True, "calibration", "measuring operators", total_s=120):
        assert is_drawn.wait(20)
    assert 'value="0.0000"' in shown[0]._repr_html_() and "0 s of 2m · measuring operators" in shown[0]._repr_html_()


def test_the_thread_that_states_progress_takes_no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.001)
    masks: list[set[int]] = []
    is_stated = threading.Event()

    def watch(progress: Progress) -> None:
        masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        is_stated.set()

    with working(watch, "train.py", "recording"):
        assert is_stated.wait(20)
    assert {signal.SIGINT, signal.SIGTERM} <= masks[0]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_terminal_that_shows_the_output_of_a_program_shows_no_line_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.001)
    monkeypatch.setattr(sys, "stderr", Terminal())
    threads = threading.active_count()
    with working(True, "train.py", "recording", has_own_output=True):
        assert threading.active_count() == threads
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
