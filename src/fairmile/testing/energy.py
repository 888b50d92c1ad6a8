"""Conformance suite for sources of measurements: subclass it, fill in the fixture `subject`, and pytest runs it.

    class TestMySource(EnergySourceTests):
        @pytest.fixture
        def subject(self, tmp_path: Path) -> Subject:
            machine, nothing = my_machine(tmp_path), tmp_path / "nothing"
            return Subject(machine.open, machine.work, machine.unplug, lambda: MySource(Where(nothing)))

What a source cannot do at all is said by the class attributes, never by leaving out a test.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from fairmile.base.errors import Unsupported
from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.lines import read_log
from fairmile.meter.sources import SOURCES, Source
from fairmile.meter.watch import Watch
from fairmile.testing.suites import Suite, asked_only_with

UNITS = frozenset({"W", "J", "%", "°C", "MHz", "bytes", "s", "count"})


@dataclass(frozen=True)
class Subject:
    """A source and the machine it is tested with.

    `open` makes the source; `work` lets happen what it measures, so that a counter of it grows; `vanish` takes away
    what it measures while it is open; `absent` makes the source on a machine that lacks it.
    """

    open: Callable[[], Source]
    work: Callable[[], object]
    vanish: Callable[[], object]
    absent: Callable[[], Source]


class EnergySourceTests(Suite):
    """What every source must do."""

    vanishes: ClassVar[bool] = True  # what it measures can go away while it is measured
    counts: ClassVar[bool] = True  # it has a counter
    registered: ClassVar[bool] = True  # `fairmile watch --source` finds it by its name

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        raise NotImplementedError("fill in the fixture `subject`")

    @asked_only_with("registered")
    def test_it_is_known_by_its_name(self, subject: Subject) -> None:
        source = subject.open()
        assert source.name in SOURCES
        source.close()

    def test_it_is_a_source(self, subject: Subject) -> None:
        source = subject.open()
        assert isinstance(source, Source)
        source.close()

    def test_every_channel_tells_what_it_is_of_what_and_how_well(self, subject: Subject) -> None:
        source = subject.open()
        channels = source.channels()
        assert channels
        for channel in channels:
            assert channel.unit in UNITS, channel
            assert channel.kind in ("gauge", "counter"), channel
            assert channel.source and channel.scope and channel.error, channel
            assert "." in channel.name and " " not in channel.name, channel
            assert channel.unit != "J" or channel.kind == "counter", "energy is a counter, power a gauge"
            assert channel.unit != "W" or channel.kind == "gauge", "energy is a counter, power a gauge"
        source.close()

    def test_no_two_channels_have_one_name(self, subject: Subject) -> None:
        source = subject.open()
        names = [channel.name for channel in source.channels()]
        assert len(set(names)) == len(names)
        source.close()

    def test_the_channels_stay_the_same(self, subject: Subject) -> None:
        source = subject.open()
        before = source.channels()
        source.read()
        subject.work()
        source.read()
        assert source.channels() == before
        source.close()

    def test_a_reading_has_one_number_for_each_channel(self, subject: Subject) -> None:
        source = subject.open()
        for _ in range(2):
            values = source.read()
            subject.work()
            assert len(values) == len(source.channels())
            assert all(value is None or (isinstance(value, float) and math.isfinite(value)) for value in values)
        source.close()

    def test_every_channel_has_a_value_by_the_second_reading(self, subject: Subject) -> None:
        source = subject.open()
        source.read()
        subject.work()
        values = dict(zip((channel.name for channel in source.channels()), source.read(), strict=True))
        assert [name for name, value in values.items() if value is None] == []
        source.close()

    @asked_only_with("counts")
    def test_counters_grow_with_the_work_and_never_fall(self, subject: Subject) -> None:
        source = subject.open()
        before = source.read()
        subject.work()
        after = source.read()
        steps = [
            new - old
            for channel, old, new in zip(source.channels(), before, after, strict=True)
            if channel.kind == "counter" and old is not None and new is not None
        ]
        assert min(steps) >= 0
        assert max(steps) > 0
        source.close()

    @asked_only_with("vanishes")
    def test_what_vanishes_has_no_values_and_raises_nothing(self, subject: Subject) -> None:
        source = subject.open()
        source.read()
        subject.vanish()
        values = source.read()
        assert len(values) == len(source.channels())
        assert None in values
        source.close()

    def test_a_machine_that_lacks_it_says_so_in_one_sentence(self, subject: Subject) -> None:
        with pytest.raises(Unsupported) as caught:
            subject.absent()
        assert caught.value.message and "\n" not in caught.value.message
        assert not caught.value.message.endswith(".")

    def test_neither_closing_twice_nor_reading_after_it_is_an_error(self, subject: Subject) -> None:
        source = subject.open()
        source.close()
        source.close()
        assert len(source.read()) == len(source.channels())

    def test_nothing_stays_open(self, subject: Subject) -> None:
        before = len(os.listdir("/proc/self/fd"))
        source = subject.open()
        source.read()
        source.close()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_what_a_watch_writes_of_it_is_read_back(self, subject: Subject, tmp_path: Path) -> None:
        file = tmp_path / "conformance-events.jsonl"
        watch = Watch([subject.open()], file, period_s=30.0)
        with watch:
            subject.work()
        log = read_log([file])
        assert log.damaged == 0 and watch.failures == {}
        (samples,) = log.samples
        assert (samples.channels, samples.at_ns, samples.columns) == (
            watch.channels,
            watch.measured().at_ns,
            watch.measured().columns,
        )
        assert len(samples.at_ns) == 2
