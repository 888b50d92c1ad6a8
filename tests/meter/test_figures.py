"""The numbers that matter out of samples and logs."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest

from fairmile.base.errors import InvalidDocument, NotFound
from fairmile.meter.figures import read_samples, summarise
from fairmile.meter.lines import Channel, Log, Samples, Writer

S = 1_000_000_000
HERE = Writer("n1", 1, None, 0, 0)
POWER = Channel("gpu0.power", "W", "gauge", "nvml", "device 0 (X)", "±5 %")
READ = Channel("host.disk_read", "bytes", "counter", "procfs", "disks", "exact")
EVENTS = """\
{"writer": {"host": "n1", "rank": 0, "wall_ns": 1000000000000, "clock_ns": 0}, "p": 7}
{"channels": [{"name": "gpu0.power", "unit": "W", "source": "nvml", "scope": "device 0 (X)"}], "watch": "7-1", "p": 7}
{"sample": [100.0], "at": 0, "watch": "7-1", "p": 7}
{"sample": [100.0], "at": 10000000000, "watch": "7-1", "p": 7}
{"spans": "epoch", "at": [1000000000, 2000000000], "thread": 1, "p": 7}
{"sample": [1
"""


def measured() -> Log:
    columns: list[list[float | None]] = [[100.0, 300.0, None, 200.0], [5.0, 7.0, 9.0, 25.0]]
    return Log(samples=[Samples((POWER, READ), HERE, array("q", (0, S, 2 * S, 3 * S)), columns)])


def test_each_channel_has_its_figures() -> None:
    power, read = summarise(measured()).figures
    assert (power.mean, power.lowest, power.highest, power.last, power.samples) == (200.0, 100.0, 300.0, 200.0, 3)
    assert power.increase is None
    assert read.increase == 20.0


def test_a_counter_that_wraps_tells_its_whole_increase_and_one_set_back_none() -> None:
    wraps = Channel("cpu0.energy", "J", "counter", "rapl", "socket 0", "none", 1000.0)
    columns: list[list[float | None]] = [[900.0, 100.0, None, 950.0], [5.0, 7.0, 1.0, 25.0]]
    log = Log(samples=[Samples((wraps, READ), HERE, array("q", (0, S, 2 * S, 3 * S)), columns)])
    found = summarise(log)
    assert [each.increase for each in found.figures] == [pytest.approx(200 + 850), None]
    assert found.total.joules == found.figures[0].increase


def test_the_document_is_plain_data_with_the_energy_on_top() -> None:
    found = json.loads(json.dumps(summarise(measured(), region="DE").to_dict()))
    assert found["energy_j"] == pytest.approx(200 + 500)
    assert found["energy_is_estimate"] is False and found["energy_of"] == ["gpu0.power"]
    assert found["energies"][0]["method"] == "trapezoid"
    assert found["footprint"]["carbon"]["year"] == 2023
    assert found["channels"][0]["scope"] == "device 0 (X)" and found["channels"][0]["error"] == "±5 %"


def test_an_estimate_is_made_only_where_asked_for_and_nothing_was_measured() -> None:
    unmeasured = Log(samples=[Samples((READ,), HERE, array("q", (0, 10 * S)), [[1.0, 2.0]])])
    assert summarise(unmeasured).total.joules is None
    asked = summarise(unmeasured, watts=50.0)
    assert asked.total.joules == pytest.approx(500)
    assert asked.to_dict()["energy_is_estimate"] is True
    assert [each.method for each in summarise(measured(), watts=50.0).energies] == ["trapezoid"]


def test_our_own_log_is_read_with_its_spans_and_its_damage(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(EVENTS)
    for path in (tmp_path / "events.jsonl", tmp_path):
        found = summarise(read_samples(path))
        assert found.total.joules == pytest.approx(1000)
        assert [(each.name, each.joules) for each in found.spans] == [("epoch", pytest.approx(200))]
        assert found.damaged == 1


def test_a_log_of_cloudmesh_gpu_is_known_by_its_heading(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text("time, 3 power_draw W\n2024-01-01T00:00:00.0,10\n2024-01-01T00:00:05.0,10\n")
    assert summarise(read_samples(file)).total.joules == pytest.approx(50)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no event log"):
        read_samples(tmp_path)
    with pytest.raises(NotFound, match="no such file"):
        read_samples(tmp_path / "missing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidDocument, match="cloudmesh-gpu"):
        read_samples(tmp_path / "text")
    (tmp_path / "card").write_text('{"name": "lake"}')
    with pytest.raises(InvalidDocument, match="it is not an event log"):
        read_samples(tmp_path / "card")


def test_nothing_measured_is_a_summary_too() -> None:
    found = summarise(Log(), region="DE")
    assert (found.samples, found.total.joules, found.footprint) == (0, None, None)
    assert json.dumps(found.to_dict())
