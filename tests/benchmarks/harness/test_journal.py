from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_task import SmallTask, session

from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.trainer import fit
from fairmile.meter.mllog import Record, read_mllog


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def records(folder: Path) -> list[Record]:
    found = read_mllog(folder / "mllog.txt")
    assert not found.damaged
    return found.records


@pytest.mark.parametrize(("error", "is_passed"), [(0.1, True), (0.2, False)])
def test_the_checker_of_mlperf_passes_a_training_that_meets_the_target(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: float, is_passed: bool
) -> None:
    checker = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
    task = SmallTask(target=0.124, epochs=2, optimizer="sgd")
    task.scores = lambda outputs: {"mae": error}  # type: ignore[method-assign]
    fit(task, session(tmp_path, name="cosmoflow"))
    made = checker.make_checker("hpc", "3.0.0", quiet=True, werror=True)
    with caplog.at_level(logging.CRITICAL):
        found = checker.main(str(tmp_path / "mllog.txt"), "hpc_3.0.0/common.yaml", made)
    assert found[0] == is_passed


def test_what_is_trained_and_how_is_told_once(tmp_path: Path) -> None:
    warm = {"warmup_epochs": 0.5, "schedule": "steps", "decay_epochs": (1,), "decay_factors": (0.1,)}
    fit(SmallTask(batch_size=8, accumulate=2, epochs=2, **warm), session(tmp_path, seed=11))
    found = records(tmp_path)
    told = {record.key: record.value for record in found if record.type == "POINT_IN_TIME"}
    wanted = {
        "submission_benchmark": "small",
        "submission_division": "open",
        "train_samples": 88,
        "eval_samples": 21,
        "number_of_nodes": 1,
        "accelerators_per_node": 0,
        "global_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "gradient_accumulation_frequency": 2,
        "opt_learning_rate_warmup_steps": 3,
        "opt_learning_rate_decay_boundary_steps": [6],
        "opt_name": "Adam",
        "opt_base_learning_rate": 0.01,
        "seed": 11,
        "cache_clear": True,
    }
    assert told.items() >= wanted.items()
    keys = [record.key for record in found]
    assert all(keys.count(key) == 1 for key in wanted)


@pytest.mark.parametrize(
    ("given", "is_passed"),
    [
        ({"optimizer": "adamw", "schedule": "constant"}, True),
        ({"optimizer": "lamb", "clip_norm": 1.0, "warmup_epochs": 1.0, "schedule": "cosine"}, True),
        ({"optimizer": "lamb", "clip_norm": 1.0, "decay_epochs": (1, 2), "decay_factors": (0.1, 0.01)}, True),
        ({"optimizer": "lamb", "clip_norm": 0.0}, False),  # the rules clip to 1
        ({"optimizer": "adam", "epsilon": 1e-8}, False),
        ({"optimizer": "adam", "schedule": "onecycle"}, False),
        ({"optimizer": "adam", "decay_epochs": (1, 2), "decay_factors": (0.5, 0.1)}, False),  # falls by two rates
    ],
)
def test_the_log_of_deepcam_has_what_its_closed_division_asks_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any], is_passed: bool
) -> None:
    checker = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
    schedule = {"schedule": "steps"} if "decay_epochs" in given else {}
    task = SmallTask(target=0.82, epochs=3, **{"epsilon": 1e-6} | schedule | given)
    task.metric = Metric("iou", "higher", target=0.82, mllog_key="eval_accuracy")
    task.scores = lambda outputs: {"iou": 0.83}  # type: ignore[method-assign]
    fit(task, session(tmp_path, name="deepcam"))
    file = tmp_path / "mllog.txt"
    text = file.read_text().replace('"value": "open"', '"value": "closed"')
    text = text.replace('"train_samples", "value": 88', '"train_samples", "value": 121266')
    file.write_text(text.replace('"eval_samples", "value": 21', '"eval_samples", "value": 15158'))
    made = checker.make_checker("hpc", "3.0.0", quiet=True, werror=True)
    with caplog.at_level(logging.CRITICAL):
        assert checker.main(str(file), "hpc_3.0.0/common.yaml", made)[0] == is_passed


def test_the_order_is_that_of_the_rules(tmp_path: Path) -> None:
    trained = fit(SmallTask(epochs=2), session(tmp_path))
    order = [record.key for record in records(tmp_path) if record.type != "POINT_IN_TIME" or "eval" in record.key]
    epoch = ["epoch_start", "epoch_stop", "eval_start", "eval_error", "eval_stop"]
    assert order == ["init_start", "eval_samples", "init_stop", "run_start", *epoch, *epoch, "run_stop"]
    errors = [record for record in records(tmp_path) if record.key == "eval_error"]
    assert [(each.metadata["epoch_num"], each.value) for each in errors] == [
        (1, trained.history[0]["mae"]),
        (2, trained.history[1]["mae"]),
    ]


@pytest.mark.parametrize(("target", "status"), [(None, "success"), (1e9, "success"), (1e-9, "aborted")])
def test_a_run_succeeds_when_it_meets_its_target_or_has_none(tmp_path: Path, target: float | None, status: str) -> None:
    fit(SmallTask(target=target, epochs=1), session(tmp_path))
    assert records(tmp_path)[-1].metadata["status"] == status


def test_a_resumed_training_goes_on_with_its_log(tmp_path: Path) -> None:
    def stop(count: int) -> None:
        if count == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(SmallTask(at_loss=stop), session(tmp_path))
    fit(SmallTask(), session(tmp_path, is_resumed=True))
    keys = [record.key for record in records(tmp_path)]
    assert (keys.count("run_start"), keys.count("run_stop"), keys.count("eval_error")) == (1, 1, 4)
    assert records(tmp_path)[-1].metadata["status"] == "success"


def test_epochs_that_are_trained_again_after_a_kill_stand_in_the_log_once(tmp_path: Path) -> None:
    """Two epochs are kept, the third was told whole and the fourth in half when the machine went down."""
    fit(SmallTask(epochs=2), session(tmp_path))
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    fit(SmallTask(epochs=4), session(tmp_path, is_resumed=True))
    (tmp_path / "checkpoint.pt").write_bytes(kept)
    lines = (tmp_path / "mllog.txt").read_text().splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if '"epoch_start"' in line and '"epoch_num": 4' in line)
    (tmp_path / "mllog.txt").write_text("".join(lines[:last]) + lines[last][:40])
    fit(SmallTask(epochs=4), session(tmp_path, is_resumed=True))
    found = records(tmp_path)
    for key in ("epoch_start", "epoch_stop", "eval_start", "eval_error", "eval_stop"):
        assert [each.metadata["epoch_num"] for each in found if each.key == key] == [1, 2, 3, 4]
    assert [each.key for each in found].count("run_stop") == 1
    assert found[-1].key == "run_stop"


def test_a_run_killed_after_its_last_epoch_is_told_to_have_stopped(tmp_path: Path) -> None:
    fit(SmallTask(epochs=2), session(tmp_path))
    lines = (tmp_path / "mllog.txt").read_text().splitlines(keepends=True)
    (tmp_path / "mllog.txt").write_text("".join(lines[:-1]))
    fit(SmallTask(epochs=2), session(tmp_path, is_resumed=True))
    found = records(tmp_path)
    assert [each.key for each in found].count("eval_error") == 2
    assert (found[-1].key, found[-1].metadata["status"]) == ("run_stop", "success")


def test_resuming_what_is_over_leaves_its_log_alone(tmp_path: Path) -> None:
    fit(SmallTask(epochs=2), session(tmp_path))
    before = (tmp_path / "mllog.txt").read_bytes()
    fit(SmallTask(epochs=2), session(tmp_path, is_resumed=True))
    assert (tmp_path / "mllog.txt").read_bytes() == before


def test_a_new_training_begins_a_new_log(tmp_path: Path) -> None:
    for _ in range(2):
        fit(SmallTask(epochs=1), session(tmp_path))
    assert [record.key for record in records(tmp_path)].count("run_start") == 1
