"""Rate limits: what may be written, which hours count, and how long a transfer waits; by a clock of the test's own."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.errors import UsageError
from fairmile.transfer import limits
from fairmile.transfer.limits import Limiter, Rule, parse_limit

MB = 1_000_000
URL = "https://data.example.org/file"


class Clock:
    """The time of day and the time since the start, which go on only when somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hour: int = 12, minute: int = 0) -> None:
        self.now = 1000.0
        self._day = time.mktime((2026, 11, 15, hour, minute, 0, 0, 0, -1)) - self.now
        fake = SimpleNamespace(monotonic=lambda: self.now, localtime=time.localtime, sleep=self.wait)
        monkeypatch.setattr(limits, "time", fake)

    def time(self) -> float:
        return self._day + self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def moved(limiter: Limiter, clock: Clock, size: int, count: int, *, piece: int = 100_000, address: str = URL) -> float:
    """Bring so many pieces and return the seconds that it took."""
    begin = clock.now
    for _ in range(count):
        limiter.take(address, piece, clock.wait)
    assert piece * count == size
    return clock.now - begin


# What may be written


@pytest.mark.parametrize(
    "text, expected",
    [
        ("20 MB/s", [Rule(20e6)]),
        ("20MB/s", [Rule(20e6)]),
        ("1 MiB/s", [Rule(1048576)]),
        ("500 kB/sec", [Rule(5e5)]),
        ("1.5 GB / s", [Rule(1.5e9)]),
        ("none", [Rule(None)]),
        ("Unlimited", [Rule(None)]),
        ("20 MB/s 08:00-18:00", [Rule(20e6, 480, 1080)]),
        ("20 MB/s 8:00 - 18:00", [Rule(20e6, 480, 1080)]),
        ("20 MB/s 22:30-06:15", [Rule(20e6, 1350, 375)]),
        ("20 MB/s 18:00-24:00, none", [Rule(20e6, 1080, 1440), Rule(None)]),
        ("1 MB/s 08:00-12:00, 2 MB/s 12:00-18:00, 9 MB/s", [Rule(1e6, 480, 720), Rule(2e6, 720, 1080), Rule(9e6)]),
    ],
)
def test_a_limit_is_read(text: str, expected: list[Rule]) -> None:
    assert parse_limit(text) == expected


@pytest.mark.parametrize(
    "text, named",
    [
        ("", "''"),
        ("fast", "'fast'"),
        ("20", "'20'"),
        ("20 MB", "'20 MB'"),
        ("20 MB/min", "'20 MB/min'"),
        ("20 XB/s", "'20 XB'"),
        ("-5 MB/s", "'-5 MB'"),
        ("0 MB/s", "the rate '0 MB/s' is zero"),
        ("20 MB/s 25:00-26:00", "'25:00'"),
        ("20 MB/s 08:60-09:00", "'08:60'"),
        ("20 MB/s 24:01-09:00", "'24:01'"),
        ("20 MB/s 08:00", "20 MB/s 08:00"),
        ("20 MB/s 08:00-18:00 or so", "or so"),
        ("20 MB/s,", "'20 MB/s,'"),
        (5, "'5'"),
    ],
)
def test_what_is_no_limit_is_named_with_its_setting(text: object, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        Limiter({"data.example.org": text})  # type: ignore[dict-item]
    assert str(caught.value).startswith("transfer.limits.data.example.org: ")
    assert named in str(caught.value)
    assert caught.value.hint


# Hours


@given(start=st.integers(0, 1439), stop=st.integers(0, 1440), minute=st.integers(0, 1439))
def test_hours_may_go_over_midnight(start: int, stop: int, minute: int) -> None:
    after = (minute - start) % 1440
    length = stop - start if stop >= start else stop - start + 1440
    assert Rule(1.0, start, stop).holds(minute) is (after < length)


@pytest.mark.parametrize(
    "hour, minute, rate",
    [(8, 0, 1), (12, 0, 1), (17, 58, 1), (18, 0, 10), (21, 58, 10), (22, 0, 5), (0, 0, 5), (5, 58, 5), (6, 0, 10)],
)
def test_the_first_rule_that_holds_at_the_hour_counts(
    monkeypatch: pytest.MonkeyPatch, hour: int, minute: int, rate: int
) -> None:
    clock = Clock(monkeypatch, hour, minute)
    text = "1 MB/s 08:00-18:00, 5 MB/s 22:00-06:00, 10 MB/s"
    limiter = Limiter({"data.example.org": text}, clock=clock.time)
    moved(limiter, clock, 5 * MB, 50)  # what is saved up at the beginning is gone after this
    assert moved(limiter, clock, MB, 10) == pytest.approx(1 / rate, rel=0.01)


def test_when_the_hours_end_the_rate_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 17, 59)
    limiter = Limiter({"*": "1 MB/s 08:00-18:00, 10 MB/s"}, clock=clock.time)
    assert moved(limiter, clock, 59 * MB, 590) == pytest.approx(59, abs=0.5)
    moved(limiter, clock, 3 * MB, 30)
    assert moved(limiter, clock, 10 * MB, 100) == pytest.approx(1, abs=0.1)


def test_outside_of_all_hours_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 20)
    limiter = Limiter({"*": "1 MB/s 08:00-18:00"}, clock=clock.time)
    assert moved(limiter, clock, 100 * MB, 1000) == 0


# Rates


def test_a_host_gets_its_rate_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limiter = Limiter({"data.example.org": "2 MB/s"}, clock=clock.time)
    assert moved(limiter, clock, 20 * MB, 200) == pytest.approx(10, abs=0.3)


def test_large_pieces_wait_as_long_as_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limiter = Limiter({"*": "1 MB/s"}, clock=clock.time)
    assert moved(limiter, clock, 20 * MB, 2, piece=10 * MB) == pytest.approx(20, abs=0.3)


def test_time_without_a_transfer_is_hardly_saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limiter = Limiter({"*": "1 MB/s"}, clock=clock.time)
    moved(limiter, clock, MB, 10)
    clock.wait(3600)
    assert moved(limiter, clock, 10 * MB, 100) == pytest.approx(10, abs=0.3)


def test_what_comes_slower_than_its_limit_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limiter = Limiter({"*": "1 MB/s"}, clock=clock.time)
    for _ in range(50):
        clock.wait(0.2)
        before = clock.now
        limiter.take(URL, 100_000, clock.wait)
        assert clock.now == before


def test_another_host_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limiter = Limiter({"data.example.org": "1 MB/s"}, clock=clock.time)
    assert moved(limiter, clock, 100 * MB, 1000, address="https://example.org/file") == 0


def test_the_star_is_the_limit_of_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limiter = Limiter({"*": "1 MB/s"}, clock=clock.time)
    begin = clock.now
    for number in range(50):
        limiter.take(f"https://host-{number % 5}.example.org/file", 100_000, clock.wait)
    assert clock.now - begin == pytest.approx(5, abs=0.3)


def test_the_tighter_of_a_hosts_and_the_common_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for own, common in (("1 MB/s", "10 MB/s"), ("10 MB/s", "1 MB/s")):
        clock = Clock(monkeypatch)
        limiter = Limiter({"data.example.org": own, "*": common}, clock=clock.time)
        assert moved(limiter, clock, 10 * MB, 100) == pytest.approx(10, abs=0.3)


@pytest.mark.parametrize("address", ["https://DATA.Example.org/x", "https://me:pw@data.example.org:8443/x"])
def test_a_host_is_known_in_any_spelling(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    clock = Clock(monkeypatch)
    limiter = Limiter({"Data.Example.ORG": "1 MB/s"}, clock=clock.time)
    assert moved(limiter, clock, 5 * MB, 50, address=address) == pytest.approx(5, abs=0.3)


def test_without_limits_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert moved(Limiter({}), clock, 100 * MB, 1000) == 0
    assert moved(Limiter({"*": "none"}), clock, 100 * MB, 1000) == 0


@given(sizes=st.lists(st.integers(1, 10 * MB), min_size=1, max_size=60))
def test_over_any_pieces_the_rate_is_kept(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        limiter = Limiter({"*": "1 MB/s"}, clock=clock.time)
        begin = clock.now
        for size in sizes:
            limiter.take(URL, size, clock.wait)
        assert clock.now - begin >= sum(sizes) / MB - 0.26
        assert clock.now - begin <= sum(sizes) / MB + 0.01
