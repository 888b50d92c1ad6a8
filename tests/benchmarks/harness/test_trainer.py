from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_task import SmallTask, session

from fairmile import meter
from fairmile.base.errors import Integrity, NotFound, RunFailed, UsageError
from fairmile.benchmarks.harness import checkpoints, trainer
from fairmile.benchmarks.harness.trainer import Trained, fit

SPEEDS = ("samples_per_s", "data_wait_s", "epoch_s")


class Killed(BaseException):
    """Ends a training from outside."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def killer(at: int) -> Any:
    def at_loss(count: int) -> None:
        if count == at:
            raise Killed

    return at_loss


def plain(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name not in SPEEDS} for row in history]


def assert_same(found: Trained, wanted: Trained) -> None:
    assert plain(found.history) == plain(wanted.history)
    assert found.scores == wanted.scores
    for name, tensor in wanted.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor), name
    for name, values in wanted.outputs.items():
        assert np.array_equal(found.outputs[name], values), name


def test_a_model_learns_and_its_best_epoch_is_what_comes_back(tmp_path: Path) -> None:
    task = SmallTask(epochs=30, learning_rate=0.03, dropout=0.0)
    trained = fit(task, session(tmp_path))
    mean = float(np.abs(task.validation.y - task.training.y.mean()).mean())
    assert trained.scores["mae"] < mean / 4
    assert trained.scores["mae"] == min(row["mae"] for row in trained.history)
    assert not trained.model.training
    assert np.array_equal(trained.outputs["y"], task.validation.y)
    assert trained.scores == task.scores(trained.outputs)
    with torch.no_grad():
        again = trained.model(torch.from_numpy(task.validation.x))[:, 0].numpy()
    assert np.allclose(again, trained.outputs["found"], atol=1e-6)


def test_the_same_seed_gives_the_same_and_another_seed_something_else(tmp_path: Path) -> None:
    first = fit(SmallTask(), session(tmp_path / "a"))
    assert_same(fit(SmallTask(workers=2), session(tmp_path / "b")), first)
    assert fit(SmallTask(), session(tmp_path / "c", seed=8)).scores != first.scores


def test_equal_trainings_leave_equal_files(tmp_path: Path) -> None:
    for name in "ab":
        fit(SmallTask(), session(tmp_path / name))
    first, second = ((tmp_path / name / checkpoints.FILE).read_bytes() for name in "ab")
    assert first == second


def test_the_last_batch_counts_by_its_size_in_the_loss_of_an_epoch(tmp_path: Path) -> None:
    task = SmallTask(samples=20, batch_size=16, epochs=1, learning_rate=1e-12, optimizer="sgd", dropout=0.0, hidden=1)
    seen: list[tuple[float, int]] = []
    plain_loss = task.loss

    def loss(model: Any, batch: Any) -> torch.Tensor:
        found = plain_loss(model, batch)
        seen.append((float(found.detach()), len(batch["x"])))
        return found

    task.loss = loss  # type: ignore[method-assign]
    trained = fit(task, session(tmp_path))
    assert [size for _, size in seen] == [16, 4]
    assert trained.history[0]["train_loss"] == pytest.approx(sum(a * n for a, n in seen) / 20)


@pytest.mark.parametrize("at", [12, 15, 24])  # six batches an epoch: at its end, in its middle, in the last one
def test_a_training_that_was_killed_goes_on_bit_by_bit(tmp_path: Path, at: int) -> None:
    wanted = fit(SmallTask(schedule="cosine"), session(tmp_path / "whole"))
    with pytest.raises(Killed):
        fit(SmallTask(schedule="cosine", at_loss=killer(at - 1)), session(tmp_path / "cut"))
    task = SmallTask(schedule="cosine")
    found = fit(task, session(tmp_path / "cut", is_resumed=True))
    assert_same(found, wanted)
    assert task.losses == 24 - (at - 1) // 6 * 6


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_checkpoint_inside_an_epoch_goes_on_bit_by_bit(tmp_path: Path, accumulate: int) -> None:
    params = {"save_steps": 1, "accumulate": accumulate, "optimizer": "sgd", "learning_rate": 0.05}
    wanted = fit(SmallTask(**params), session(tmp_path / "whole"))
    with pytest.raises(Killed):
        fit(SmallTask(**params, at_loss=killer(10)), session(tmp_path / "cut"))
    task = SmallTask(**params)
    assert_same(fit(task, session(tmp_path / "cut", is_resumed=True)), wanted)
    assert task.losses == 14


def test_a_real_kill_leaves_a_checkpoint_that_goes_on_bit_by_bit(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
import torch
from small_task import SmallTask, session
from fairmile.benchmarks.harness.trainer import fit
torch.set_num_threads(1)
def at_loss(count):
    if count == 14:
        os.kill(os.getpid(), signal.SIGKILL)
fit(SmallTask(at_loss=at_loss), session(Path(sys.argv[1])))
"""
    support = Path(__file__).parents[2] / "support"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(support), *sys.path])}
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "cut")], env=env, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL
    wanted = fit(SmallTask(), session(tmp_path / "whole"))
    assert_same(fit(SmallTask(), session(tmp_path / "cut", is_resumed=True)), wanted)


def test_a_training_cut_by_max_steps_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    wanted = fit(SmallTask(), session(tmp_path / "whole"))
    cut = fit(SmallTask(max_steps=9), session(tmp_path / "cut"))
    assert [row["step"] for row in cut.history] == [6, 9]
    assert "mae" in cut.history[-1]
    found = fit(SmallTask(), session(tmp_path / "cut", is_resumed=True))
    assert plain(found.history) == plain(wanted.history)
    assert found.scores == wanted.scores


def test_a_training_that_is_over_is_not_trained_again(tmp_path: Path) -> None:
    wanted = fit(SmallTask(), session(tmp_path))
    task = SmallTask()
    assert_same(fit(task, session(tmp_path, is_resumed=True)), wanted)
    assert task.losses == 0


def test_what_was_kept_does_not_depend_on_how_often_it_is_evaluated(tmp_path: Path) -> None:
    often = fit(SmallTask(), session(tmp_path / "often"))
    seldom = fit(SmallTask(evaluate_every=3), session(tmp_path / "seldom"))
    assert ["mae" in row for row in seldom.history] == [False, False, True, True]
    assert seldom.history[-1]["mae"] == often.history[-1]["mae"]
    assert [row["train_loss"] for row in seldom.history] == [row["train_loss"] for row in often.history]


def test_without_being_resumed_a_checkpoint_is_not_looked_at(tmp_path: Path) -> None:
    fit(SmallTask(), session(tmp_path))
    task = SmallTask()
    fit(task, session(tmp_path))
    assert task.losses == 24


def test_batches_of_a_step_that_are_accumulated_give_the_step_of_one_large_batch(tmp_path: Path) -> None:
    given = {"optimizer": "sgd", "dropout": 0.0, "epochs": 1, "samples": 96, "hidden": 1}
    one = SmallTask(batch_size=48, **given)
    four = SmallTask(batch_size=12, accumulate=4, **given)
    for task in (one, four):
        task.model = lambda: torch.nn.Linear(6, 1)  # type: ignore[method-assign]
    found = fit(four, session(tmp_path / "b")).model.state_dict()
    for name, tensor in fit(one, session(tmp_path / "a")).model.state_dict().items():
        assert torch.allclose(found[name], tensor, atol=1e-7)


def test_the_rest_of_an_epoch_is_a_step_of_its_own(tmp_path: Path) -> None:
    trained = fit(SmallTask(accumulate=4, epochs=2), session(tmp_path))  # six batches an epoch: 4 + 2
    assert [row["step"] for row in trained.history] == [2, 4]


def test_training_stops_when_the_score_gets_no_better(tmp_path: Path) -> None:
    task = SmallTask(epochs=50, patience=3)
    values = iter([5.0, 4.0, 4.5, 4.2, 4.1, 1.0, 1.0])
    task.scores = lambda outputs: {"mae": next(values)}  # type: ignore[method-assign]
    trained = fit(task, session(tmp_path))
    assert [row["mae"] for row in trained.history] == [5.0, 4.0, 4.5, 4.2, 4.1]
    assert trained.scores == {"mae": 4.0}
    kept = checkpoints.load(tmp_path / checkpoints.FILE)
    assert kept.epoch == 5
    assert kept.best is not None
    assert kept.best["epoch"] == 2
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(kept.best_weights[name], tensor)


def test_training_stops_at_the_target_where_that_is_asked_for(tmp_path: Path) -> None:
    for asked, epochs in ((True, 2), (False, 4)):
        task = SmallTask(stop_at_target=asked, target=0.5)
        values = iter([1.0, 0.5, 0.4, 0.3])
        task.scores = lambda outputs, values=values: {"mae": next(values)}  # type: ignore[method-assign]
        assert len(fit(task, session(tmp_path / str(asked))).history) == epochs


def test_a_loss_that_is_no_number_ends_the_training_with_epoch_and_step(tmp_path: Path) -> None:
    task = SmallTask()
    good = task.loss
    task.loss = lambda *given: good(*given) * (math.nan if task.losses == 9 else 1)  # type: ignore[method-assign]
    with pytest.raises(RunFailed, match=r"the loss is not finite since epoch 2, step 9(?:\n|$)"):
        fit(task, session(tmp_path))
    assert checkpoints.load(tmp_path / checkpoints.FILE).epoch == 1
    assert '"status": "aborted"' in (tmp_path / "mllog.txt").read_text()


def test_weights_that_are_no_numbers_are_not_kept_inside_an_epoch_either(tmp_path: Path) -> None:
    task = SmallTask(save_steps=4)
    good = task.loss
    task.loss = lambda *given: good(*given) * (math.inf if task.losses == 3 else 1)  # type: ignore[method-assign]
    with pytest.raises(RunFailed, match=r"since epoch 1, step 3(?:\n|$)"):
        fit(task, session(tmp_path))
    assert not (tmp_path / checkpoints.FILE).exists()


def test_inference_gives_what_the_best_epoch_of_the_training_gave(tmp_path: Path) -> None:
    trained = fit(SmallTask(), session(tmp_path / "train"))
    file = str(tmp_path / "train" / checkpoints.FILE)
    task = SmallTask(work="inference", checkpoint=file, eval_batch_size=5)
    found = fit(task, session(tmp_path / "infer"))
    assert task.losses == 0
    assert found.history == []
    assert found.scores == pytest.approx(trained.scores, rel=1e-6)
    assert not (tmp_path / "infer" / "mllog.txt").exists()


def test_training_starts_from_weights_that_are_given(tmp_path: Path) -> None:
    weights = SmallTask().model().state_dict()
    torch.save(weights, tmp_path / "given.pt")
    task = SmallTask(checkpoint=str(tmp_path / "given.pt"), learning_rate=1e-12, epochs=1, optimizer="sgd")
    found = fit(task, session(tmp_path)).model.state_dict()
    assert torch.allclose(found["0.weight"], weights["0.weight"])


def test_bad_checkpoints_are_one_sentence_each(tmp_path: Path) -> None:
    fit(SmallTask(epochs=1), session(tmp_path))
    file = tmp_path / checkpoints.FILE
    with pytest.raises(UsageError, match=r"checkpoint\.pt belongs to another model: 0\.weight has the shape \(8, 6\)"):
        fit(SmallTask(hidden=5, checkpoint=str(file)), session(tmp_path / "other"))
    with pytest.raises(UsageError, match="belongs to another model"):
        fit(SmallTask(hidden=5), session(tmp_path, is_resumed=True))
    with pytest.raises(UsageError, match="cannot resume with optimizer sgd: the training started with adam"):
        fit(SmallTask(optimizer="sgd"), session(tmp_path, is_resumed=True))
    with pytest.raises(NotFound, match=r"no such file: .*nowhere\.pt"):
        fit(SmallTask(checkpoint=str(tmp_path / "nowhere.pt")), session(tmp_path / "other"))
    with pytest.raises(NotFound, match=r"no such file: nowhere\.pt") as caught:
        fit(SmallTask(checkpoint="nowhere.pt"), session(tmp_path / "other"))
    assert "absolute path" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="inference needs weights"):
        fit(SmallTask(work="inference"), session(tmp_path / "empty"))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(Integrity, match="is damaged"):
        fit(SmallTask(), session(tmp_path, is_resumed=True))


@pytest.mark.parametrize("name", ["epochs", "batch_size", "accumulate", "evaluate_every"])
def test_a_number_that_makes_no_training_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"parameter {name}: expected at least 1, found 0"):
        fit(SmallTask(**{name: 0}), session(tmp_path))


@pytest.mark.parametrize("name", ["weight_decay", "momentum", "eval_batch_size", "patience", "save_steps"])
def test_a_number_that_cannot_be_negative_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"parameter {name}: expected at least 0, found -1"):
        fit(SmallTask(**{name: -1}), session(tmp_path))


def test_no_checkpoint_is_written_where_none_is_wanted(tmp_path: Path) -> None:
    fit(SmallTask(save_every=0), session(tmp_path))
    assert not (tmp_path / checkpoints.FILE).exists()


def test_only_deterministic_kernels_are_used_inside_and_what_held_before_holds_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    seen: list[tuple[bool, Any, Any]] = []
    task = SmallTask(
        deterministic=True,
        epochs=1,
        at_loss=lambda count: seen.append(
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.backends.cudnn.benchmark,
                os.environ["CUBLAS_WORKSPACE_CONFIG"],
            )
        ),
    )
    fit(task, session(tmp_path))
    assert set(seen) == {(True, False, ":4096:8")}
    assert not torch.are_deterministic_algorithms_enabled()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


def test_phases_and_metrics_go_to_the_meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = meter.Meter(tmp_path / "events.jsonl", rank=0)
    monkeypatch.setattr(trainer, "span", own.span)
    monkeypatch.setattr(trainer, "log", own.log)
    fit(SmallTask(epochs=2), session(tmp_path))
    own.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    logged = [(line.get("step"), line["log"]) for line in lines if "log" in line]
    assert [step for step, _ in logged] == [1, 2, None]
    assert set(logged[0][1]) == {
        "train_loss", "learning_rate", "samples_per_s", "data_wait_s", "mae", "mse",
    }  # fmt: skip
    assert set(logged[-1][1]) == {"train_samples_per_s", "data_wait_share"}
    assert 0 <= logged[-1][1]["data_wait_share"] <= 1
    calls = {each.name: each.count for each in own.summary()}
    assert calls == {"initialise": 1, "training": 1, "epoch": 2, "evaluation": 2, "checkpoint": 2}


def test_each_epoch_is_one_short_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(SmallTask(epochs=2), session(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1/2  loss ")
    assert all(len(line) < 100 for line in lines)


def test_bf16_predictions_become_arrays(tmp_path: Path) -> None:
    trained = fit(SmallTask(precision="bf16", epochs=1), session(tmp_path))
    assert trained.outputs["found"].dtype == np.float32


def test_another_rank_writes_no_file_and_logs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "log", lambda **given: pytest.fail("logged"))
    task, place = SmallTask(), session(tmp_path)
    strategy = trainer.make_strategy(task.settings, place.ranks)
    monkeypatch.setattr(trainer, "make_strategy", lambda *given: strategy)
    fit(task, replace(place, ranks=replace(place.ranks, rank=1, size=2)))
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""
