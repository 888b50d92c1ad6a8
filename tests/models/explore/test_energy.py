"""Energy by sample comes from the counters of the metering; where none counts, nothing is ranked by it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import Unsupported
from fairmile.meter.lines import Channel
from fairmile.models.convert.request import Request
from fairmile.models.explore.energy import Counter, check_counted
from fairmile.models.explore.exploration import Place, explore_model, plan_exploration
from fairmile.models.explore.program import Exploration, Measured
from fairmile.models.explore.request import Candidate, Exploring
from fairmile.models.explore.worker import turn


class Meter:
    """A source of two sockets and a memory that adds what each reading is said to."""

    def __init__(self, *readings: Sequence[float | None]) -> None:
        self._readings = iter(readings)

    def channels(self) -> tuple[Channel, ...]:
        scopes = ("socket 0", "socket 1", "memory of socket 0")
        return tuple(Channel(f"c{n}.energy", "J", "counter", "rapl", each, "") for n, each in enumerate(scopes))

    def read(self) -> list[float | None]:
        return list(next(self._readings))

    def close(self) -> None:
        return


class Slow:
    """A model whose calls take longer than the time between two readings."""

    def call(self) -> None:
        time.sleep(0.006)


def sockets(root: Path, *microjoules: int) -> Path:
    for number, value in enumerate(microjoules):
        zone = root / "sys/class/powercap" / f"intel-rapl:{number}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "name").write_text(f"package-{number}\n")
        (zone / "max_energy_range_uj").write_text("262143328850\n")
        (zone / "energy_uj").write_text(f"{value}\n")
    return root


def test_the_processors_are_counted_over_all_sockets(tmp_path: Path) -> None:
    counter = Counter("cpu", root=sockets(tmp_path, 1_000_000, 2_500_000))
    assert counter.source == "rapl"
    assert counter.read() == 3.5
    sockets(tmp_path, 4_000_000, 2_500_000)
    assert counter.read() == 6.5
    counter.close()
    check_counted("cpu", root=tmp_path)


def test_a_machine_without_a_counter_is_told_which_are_missing(tmp_path: Path) -> None:
    with pytest.raises(
        Unsupported, match="nothing counts the energy of the processors here: rapl: no /sys/class"
    ) as caught:
        check_counted("cpu", root=tmp_path)
    assert "cray: no " in caught.value.message
    assert caught.value.hint == "choose --best latency, throughput or size"


def test_neither_a_plan_nor_a_run_is_made_without_a_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    exploration = sys.modules[plan_exploration.__module__]  # `fm.models.explore` is the verb

    def refuse(device: str) -> None:
        raise Unsupported(f"no counter for {device}")

    monkeypatch.setattr(exploration, "check_counted", refuse)
    asked = Exploring(Request("onnx", "model.onnx", "onnx"), batches=(1,), best="energy")
    nothing: Any = None
    with pytest.raises(Unsupported, match="no counter for cpu"):
        plan_exploration(nothing, asked, "model.onnx", Place())
    with pytest.raises(Unsupported, match="no counter for cpu"):
        explore_model(nothing, asked, "model.onnx", Place(), again=False)


def test_a_turn_takes_its_share_of_the_joules_between_two_moves_of_the_counter() -> None:
    # Read before and after each call that waits for a move: the second one comes with the third call after the turn.
    meter = Meter((1, 2, 50), (4, 3, 90), (5, 3, 90), (5, 3, 90), (5, 3, 90), (9, 7, 95))
    engine = Slow()
    done = turn(engine, Counter("cpu", sources=[meter]), 5, with_energy=True)  # type: ignore[arg-type]
    assert len(done["times"]) == 5
    assert done["energy_j"] == 9.0 * 5 / 8  # the memory is not part of a socket


def test_a_counter_that_does_not_move_counts_nothing() -> None:
    still = Counter("cpu", sources=[Meter(*[(7, 7, 7)] * 400)])
    assert turn(Slow(), still, 2, with_energy=True)["energy_j"] is None  # type: ignore[arg-type]


def test_a_turn_in_which_a_counter_starts_again_is_taken_again() -> None:
    readings = [(80, 0, 0), (90, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (5, 0, 0)]
    counter = Counter("cpu", sources=[Meter(*readings)])
    assert turn(Slow(), counter, 2, with_energy=True)["energy_j"] == 2.0  # type: ignore[arg-type]
    gone = Counter("cpu", sources=[Meter(*[(None, None, None)] * 12)])
    assert turn(Slow(), gone, 2, with_energy=True)["energy_j"] is None  # type: ignore[arg-type]


def test_joules_are_shown_for_one_sample_and_rank_the_candidates(tmp_path: Path) -> None:
    asked = Exploring(Request("onnx", "model.onnx", "onnx"), batches=(8,), best="energy")
    known = {"loss": 0.0, "error": 0.0, "typical_error": 0.0, "quality": None, "way": "", "provider": ""}
    known |= {"first_call_s": 1.0, "load_s": 1.0, "size_bytes": 10}
    nobody: Any = None
    measured = Measured(Candidate("torch", "fp32", 8, 1), nobody, known)
    measured.turns = [{"times": [0.1] * 5, "energy_j": joules, "memory_bytes": 1} for joules in (80.0, 240.0)]
    assert [measured.cost("energy", done) for done in measured.turns] == [2.0, 6.0]
    row = Exploration(asked, tmp_path)._row(measured)
    assert row["energy_per_sample_j"] == 4.0  # 320 J for 2 turns of 5 calls of 8 samples
