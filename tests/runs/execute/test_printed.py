"""Metrics in the output of programs that log none."""

from __future__ import annotations

import math

from cases import for_each

from fairmile.runs.execute.printed import find_metrics


def metrics(text: str, **options) -> list[tuple[str, float, float | None]]:
    return [tuple(each) for each in find_metrics(text.split("\n"), **options)]


@for_each(
    "line, expected",
    [
        ("epoch 3 loss 0.41", [("loss", 0.41, 3)]),
        ("Epoch 3/10: train_loss=1.5e-3, val_loss=.25", [("train_loss", 0.0015, 3), ("val_loss", 0.25, 3)]),
        ("[step 200] Loss: 2.3026", [("loss", 2.3026, 200)]),
        ("final accuracy=0.93", [("final_accuracy", 0.93, None)]),
        ("val loss: 0.5 train loss: 0.4", [("val_loss", 0.5, None), ("train_loss", 0.4, None)]),
        ("{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 1.0}", [("loss", 0.5, 1), ("learning_rate", 5e-05, 1)]),
        ("25/25 [====] - 1s - loss: 0.31 - accuracy: 0.9", [("loss", 0.31, None), ("accuracy", 0.9, None)]),
        ("epoch=2 step=40 mse: 7", [("mse", 7, 40)]),
        ("Test set: Average loss: 0.0431, Accuracy: 9851/10000 (99%)", [("average_loss", 0.0431, None)]),
    ],
)
def test_a_line_of_a_training_log_states_metrics(line, expected):
    assert sorted(metrics(line)) == sorted(expected)


@for_each(
    "line",
    [
        "Python version: 3.11",
        "listening on port: 8080",
        "2026-11-17 12:30:45 INFO starting",
        "batch_size=64 workers=4",
        "lossless compression: 3",
        "see https://example.org/loss:1",
        "loss: 1.2.3",
        "accuracy: 12:30:00",
        "error code ENOENT",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    ],
)
def test_other_numbers_are_no_metrics(line):
    assert metrics(line) == []


def test_values_that_are_not_finite_count():
    (nan, inf) = metrics("step 1 loss nan\nstep 2 loss=-inf\n")
    assert math.isnan(nan[1]) and inf[1:] == (-math.inf, 2)


def test_a_step_holds_until_the_next_one():
    text = "Epoch 1/2\nloss: 0.5\nEpoch 2/2\nloss: 0.4\n"
    assert metrics(text) == [("loss", 0.5, 1), ("loss", 0.4, 2)]


def test_of_a_progress_bar_the_last_state_counts():
    assert metrics("loss: 0.9\rloss: 0.7\rloss: 0.5\n") == [("loss", 0.5, None)]


def test_a_parameter_of_the_run_is_no_metric():
    assert metrics("epoch 1 lr=0.1 max-loss=3 loss=0.5", params=["lr", "max_loss"]) == [("loss", 0.5, 1)]


def test_names_and_lines_are_bounded():
    many = "".join(f"step 1 k{number}=1\n" for number in range(80))
    assert len({name for name, *_ in metrics(many)}) == 50
    assert metrics("x" * 3000 + " loss: 1") == []
