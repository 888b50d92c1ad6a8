"""Signals that ask a process to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairmile.base.signals import AskedToEnd, asked_to_end, end_deferred


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_block_is_left_with_the_exit_code_of_the_signal(number: signal.Signals) -> None:
    with handled(number, signal.SIG_DFL):
        with pytest.raises(AskedToEnd) as asked, asked_to_end(), asked_to_end():
            signal.raise_signal(number)
        assert (asked.value.code, asked.value.number) == (128 + number, number)
        assert signal.getsignal(number) is signal.SIG_DFL


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    with handled(signal.SIGHUP, signal.SIG_IGN), asked_to_end():
        signal.raise_signal(signal.SIGHUP)


def test_a_signal_that_somebody_handles_stays_theirs() -> None:
    told: list[int] = []
    with handled(signal.SIGTERM, lambda number, _: told.append(number)), asked_to_end(), end_deferred():
        signal.raise_signal(signal.SIGTERM)
        assert told == [signal.SIGTERM]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, AskedToEnd), (signal.SIGINT, KeyboardInterrupt)])
def test_what_is_deferred_comes_at_the_end_of_the_block(number: signal.Signals, error: type[BaseException]) -> None:
    reached = False
    with pytest.raises(error), handled(signal.SIGTERM, signal.SIG_DFL), asked_to_end(), end_deferred():
        signal.raise_signal(number)
        reached = True
    assert reached
