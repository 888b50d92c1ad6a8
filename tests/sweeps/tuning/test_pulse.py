"""A worker's pulse: whether it lives where nobody can look."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fairmile.base.files import Holder
from fairmile.sweeps.tuning.pulse import Pulse, has_no_pulse

OLD_S = 3600.0


def elsewhere() -> Holder:
    return Holder.me()._replace(host="node7")


def stop(folder: Path, worker: Holder) -> None:
    os.utime(folder / f"pulse-{worker.token}", (time.time() - OLD_S,) * 2)


def test_who_beats_lives_and_who_has_not_for_long_is_gone(tmp_path):
    worker = elsewhere()
    with Pulse(tmp_path, worker):
        assert not has_no_pulse(tmp_path, worker)
        stop(tmp_path, worker)
        assert has_no_pulse(tmp_path, worker)


def test_who_can_be_seen_is_not_judged_by_it_since_a_laptop_that_slept_wakes_all_at_once(tmp_path):
    worker = Holder.me()
    with Pulse(tmp_path, worker):
        stop(tmp_path, worker)
        assert not has_no_pulse(tmp_path, worker)


def test_who_never_had_one_may_live(tmp_path):
    assert not has_no_pulse(tmp_path, elsewhere())
    assert not has_no_pulse(tmp_path, Holder.parse("damaged", 0))


def test_nothing_of_it_is_left(tmp_path):
    worker = elsewhere()
    with Pulse(tmp_path, worker):
        has_no_pulse(tmp_path, worker)
        assert [file.name for file in tmp_path.iterdir()] == [f"pulse-{worker.token}"]
    assert list(tmp_path.iterdir()) == []
