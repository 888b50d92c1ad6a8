"""The log of a run, followed while it is written."""

from __future__ import annotations

from pathlib import Path

from fairmile.meter.lines import FILE
from fairmile.meter.meter import Meter
from fairmile.meter.tail import Tail, Value


def test_values_come_once_and_in_order(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert list(tail.new()) == []
    with Meter(tmp_path / FILE) as meter:
        meter.log(step=1, loss=0.5)
        meter.flush()
        assert list(tail.new()) == [Value("loss", 0.5, 1.0)]
        meter.log(loss=0.25, accuracy=0.9)
        meter.event("checkpoint")
        meter.flush()
        assert list(tail.new()) == [Value("loss", 0.25, None), Value("accuracy", 0.9, None)]
    assert list(tail.new()) == []


def test_a_line_that_is_not_whole_waits_for_its_end(tmp_path: Path) -> None:
    tail, file = Tail(tmp_path), tmp_path / FILE
    file.write_bytes(b'{"log": {"loss": 1.0}, "step": 3')
    assert list(tail.new()) == []
    with file.open("ab") as log:
        log.write(b', "p": 1}\n')
    assert list(tail.new()) == [Value("loss", 1.0, 3.0)]


def test_a_damaged_line_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"log": {"loss": \n{"log": 3}\n{"log": {"loss": "NaN"}}\n{"log": {"loss": 2}}\n')
    with (tmp_path / FILE).open("ab") as log:
        log.write(b'{"log": {"loss": 1%s}}\n{"log": %s\n' % (b"0" * 400, b"[" * 100_000))
    found = list(Tail(tmp_path).new())
    assert [each.value for each in found][1:] == [2.0]
    assert found[0].value != found[0].value


def test_what_processes_of_other_hosts_write_is_followed_too(tmp_path: Path) -> None:
    (tmp_path / "events.n2.jsonl").write_bytes(b'{"log": {"loss": 2}}\n')
    assert list(Tail(tmp_path).new()) == [Value("loss", 2.0, None)]
