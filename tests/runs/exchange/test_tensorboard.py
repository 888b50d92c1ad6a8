"""Metrics of runs as TensorBoard event files, seen by TensorBoard itself, and event files of others as runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_documents import lay_run, training, trivial

from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.meter.lines import event_files, read_log
from fairmile.meter.tensorboard import Scalar, event_file
from fairmile.runs.exchange import EXCHANGES
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run

pytestmark = pytest.mark.filterwarnings("ignore")


def _run(folder: Path, document: dict[str, object]) -> Run:
    return Run(RunRecord.from_dict(document), lay_run(folder / "runs", document))


def test_tensorboard_shows_the_metrics_of_a_run(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = _run(tmp_path, training())
    (file,) = EXCHANGES["tensorboard"].export(run, tmp_path / "logs")
    assert file.parent == tmp_path / "logs" / run.id
    accumulator = accumulators.EventAccumulator(str(file.parent)).Reload()
    logged = [each for each in read_log(event_files(run.folder)).metrics if each.name == "loss"]
    assert logged
    seen = accumulator.Scalars("loss")
    assert [each.step for each in seen] == [each.step for each in logged]
    assert [each.value for each in seen] == pytest.approx([each.value for each in logged])
    assert [each.wall_time for each in seen] == pytest.approx([each.at_ns / 1e9 for each in logged])


def test_what_was_exported_comes_in_as_a_run_with_the_same_metrics(tmp_path: Path) -> None:
    run = _run(tmp_path, training())
    EXCHANGES["tensorboard"].export(run, tmp_path / "logs")
    (imported,) = EXCHANGES["tensorboard"].read(tmp_path / "logs")
    laid = imported.lay(tmp_path / "in")
    assert laid.record.spec.name == run.id
    assert laid.metrics["loss"].count == run.metrics["loss"].count
    assert laid.metrics["loss"].value == pytest.approx(run.metrics["loss"].value)
    assert [path.name for path in (tmp_path / "in" / "work").iterdir()] == imported.files[-1].split("/")[-1:]


def test_each_folder_of_a_logging_folder_is_a_run(tmp_path: Path) -> None:
    for part, value in (("train", 1.0), ("validation", 2.0)):
        (tmp_path / part).mkdir()
        data = event_file([Scalar("loss", value, 3, 1000.0)], created_s=1000.0)
        (tmp_path / part / "events.out.tfevents.1").write_bytes(data)
    runs = {
        each.record.spec.name: each.lay(tmp_path / "in" / each.id) for each in EXCHANGES["tensorboard"].read(tmp_path)
    }
    assert {name: run.metrics["loss"].value for name, run in runs.items()} == {"train": 1.0, "validation": 2.0}


def test_what_cannot_be_exported_or_read_is_said(tmp_path: Path) -> None:
    run = _run(tmp_path, training())
    EXCHANGES["tensorboard"].export(run, tmp_path / "logs")
    with pytest.raises(Conflict, match="already holds run"):
        EXCHANGES["tensorboard"].export(run, tmp_path / "logs")
    with pytest.raises(UsageError, match="logged no metric"):
        EXCHANGES["tensorboard"].export(_run(tmp_path, trivial("done") | {"id": "run-mute"}), tmp_path / "other")
    assert not (tmp_path / "other").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no event file with scalars"):
        EXCHANGES["tensorboard"].read(tmp_path / "empty")
    with pytest.raises(NotFound):
        EXCHANGES["tensorboard"].read(tmp_path / "none")
