"""Event files that a program writes are metrics of its run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fairmile.meter.tensorboard import Scalar, event_file
from fairmile.runs.runs import Runs

WRITE = """\
import pathlib, sys
from fairmile.meter import log
from fairmile.meter.tensorboard import Scalar, event_file
folder = pathlib.Path("logs")
folder.mkdir()
scalars = [Scalar(tag, 1 / (step + 1), step, 1_794_890_000.0 + step) for step in range(4) for tag in ("loss", "error")]
(folder / "events.out.tfevents.2.host").write_bytes(event_file(scalars, created_s=0))
print("epoch 1 accuracy 0.5")
if "log" in sys.argv:
    log(error=7.0)
"""


def test_scalars_are_metrics_with_their_steps_and_times(runs: Runs) -> None:
    Path("old").mkdir()
    old = Path("old", "events.out.tfevents.1.host")
    old.write_bytes(event_file([Scalar("stale", 1.0, 0, 0.0)], created_s=0))
    os.utime(old, (1000, 1000))
    run = runs.run([sys.executable, "-c", WRITE], watch_s=0)
    assert {name: (each.value, each.count, each.source) for name, each in run.metrics.items()} == {
        "loss": (0.25, 4, "event files"),
        "error": (0.25, 4, "event files"),
    }
    assert [(each.step, each.at_ns) for each in run.log().metrics if each.name == "loss"] == [
        (step, (1_794_890_000 + step) * 10**9) for step in range(4)
    ]


def test_an_event_file_that_another_program_wrote_meanwhile_is_not_taken(runs: Runs) -> None:
    Path("events.out.tfevents.1.host").write_bytes(event_file([Scalar("other", 1.0, 0, 0.0)], created_s=0))
    run = runs.run([sys.executable, "-c", WRITE], watch_s=0)
    assert set(run.metrics) == {"loss", "error"}


def test_where_not_all_that_is_written_is_seen_the_folder_is_searched(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRMILE_WATCH", "off")
    run = runs.run([sys.executable, "-c", WRITE], watch_s=0)
    assert set(run.metrics) == {"loss", "error"}


def test_what_a_program_logs_itself_goes_first(runs: Runs) -> None:
    run = runs.run([sys.executable, "-c", WRITE, "log"], watch_s=0)
    assert (run.metrics["error"].value, run.metrics["error"].count, run.metrics["error"].source) == (7.0, 1, "")
    assert run.metrics["loss"].source == "event files"


def test_a_damaged_event_file_is_noted_and_the_run_stays_done(runs: Runs) -> None:
    run = runs.run([sys.executable, "-c", "open('x.tfevents', 'wb').write(b'no records at all')"], watch_s=0)
    assert run.state == "done"
    assert run.notes == [
        "the TensorBoard event file x.tfevents was read only in part: the checksum of the length of record 1 is wrong"
    ]


@pytest.mark.thorough
def test_what_pytorch_writes_is_read_in_a_run(runs: Runs) -> None:
    pytest.importorskip("tensorboard")
    program = """\
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter() as writer:
    for step in range(3):
        writer.add_scalar("loss/train", 0.5 ** step, step)
"""
    run = runs.run([sys.executable, "-c", program], watch_s=0)
    assert (run.metrics["loss/train"].value, run.metrics["loss/train"].count) == (0.25, 3)
