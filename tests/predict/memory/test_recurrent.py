"""What cuDNN's recurrent layers take and keep, against what they took on one H200."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from cases import for_each

from fairmile.predict.memory.recurrent import RecurrentCall, recurrent_workspace_bytes, reserve_bytes

LSTM = RecurrentCall("lstm", "float32", 2, 1, False, 200, 64, 512, 80)


def measured() -> list[tuple[RecurrentCall, int, int, int]]:
    """Calls with the workspace of the forward and of the backward pass and what was kept in between."""
    lines = Path(__file__).with_name("recurrent_measured.csv").read_text(encoding="utf-8").splitlines()
    found = []
    for kind, dtype, *numbers in list(csv.reader(lines))[2:]:
        layers, directions, dropout, steps, batch, hidden, inputs, projection, *seen = map(int, numbers)
        call = RecurrentCall(
            kind, dtype, layers, directions, bool(dropout), steps, batch, hidden, inputs, projection=projection
        )
        found.append((call, *seen))
    return found  # type: ignore[return-value]


def test_what_is_kept_for_the_backward_is_exact() -> None:
    rows = measured()
    assert len(rows) > 300
    assert [call for call, _, _, kept in rows if reserve_bytes(call) != kept] == []


def test_workspaces_are_those_measured() -> None:
    far = set()
    for call, forward, backward, _ in measured():
        for seen, got in ((forward, call), (backward, replace(call, backward=True))):
            assert recurrent_workspace_bytes(got) == pytest.approx(seen, rel=0.016)
            if abs(recurrent_workspace_bytes(got) - seen) > 64:
                far.add((call.kind, call.layers, call.steps, call.batch, call.hidden))
    # Stacks that go backward over few steps at a time, where the sequence itself is short.
    assert far == {("rnn", 2, 70, 64, 650), ("gru", 2, 33, 7, 96)}


def test_narrow_layers_run_persistently_forward_and_not_backward() -> None:
    narrow = RecurrentCall("rnn", "float32", 4, 1, False, 200, 128, 384, 32)
    assert narrow.is_persistent and not replace(narrow, backward=True).is_persistent
    assert recurrent_workspace_bytes(narrow) == 599_508_224
    assert recurrent_workspace_bytes(replace(narrow, backward=True)) == 174_048_512


@for_each("change", [{"dtype": "bfloat16"}, {"packed": True}, {"projection": 64}, {"hidden": 193}])
def test_other_layers_do_not_run_persistently(change: dict[str, object]) -> None:
    narrow = RecurrentCall("lstm", "float32", 1, 1, False, 96, 256, 128, 8)
    assert narrow.is_persistent
    assert not replace(narrow, **change).is_persistent  # type: ignore[arg-type]


def test_one_wide_layer_of_float16_runs_persistently_where_widths_and_batch_fit() -> None:
    fits = RecurrentCall("rnn", "float16", 1, 1, False, 365, 64, 1024, 128)
    assert fits.is_persistent
    for change in ({"layers": 2}, {"directions": 2}, {"inputs": 100}, {"batch": 60}, {"batch": 96}, {"kind": "gru"}):
        assert not replace(fits, **change).is_persistent  # type: ignore[arg-type]


def test_gates_of_long_sequences_are_computed_piece_by_piece() -> None:
    """Past 256 steps each further one takes a state and its input; until then also its four gates."""
    wide = replace(LSTM, layers=3, batch=128, hidden=1024, inputs=64)
    state, data = 128 * 1024 * 4, 128 * 64 * 4

    def grown(steps: int) -> int:
        longer = recurrent_workspace_bytes(replace(wide, steps=steps + 1))
        return longer - recurrent_workspace_bytes(replace(wide, steps=steps))

    assert grown(100) == 5 * state + data
    assert grown(300) == state + data


def test_inference_takes_no_more_than_training() -> None:
    long = replace(LSTM, steps=1000)
    assert recurrent_workspace_bytes(replace(long, training=False)) < recurrent_workspace_bytes(long)


def test_no_steps_need_no_workspace() -> None:
    assert recurrent_workspace_bytes(replace(LSTM, steps=0)) == 0


@for_each(
    "kind, dtype, layers, directions, steps, batch, hidden, inputs, bytes_",
    [
        ("lstm", "float32", 2, 1, 200, 64, 512, 64, 166_855_424),
        ("lstm", "float16", 3, 1, 60, 32, 128, 16, 36_418_048),
        ("gru", "float32", 2, 2, 300, 64, 256, 40, 280_929_024),
        ("gru", "float32", 1, 1, 400, 32, 192, 300, 182_267_392),
        ("gru", "float16", 2, 1, 50, 256, 1024, 1500, 193_370_368),
        ("rnn", "float16", 2, 1, 200, 64, 512, 64, 46_662_400),
        ("rnn", "float32", 2, 2, 300, 64, 256, 40, 276_046_592),
        ("rnn", "float32", 2, 1, 50, 256, 1024, 1500, 223_455_488),
    ],
)
def test_inference_takes_what_was_measured(
    kind: str,
    dtype: str,
    layers: int,
    directions: int,
    steps: int,
    batch: int,
    hidden: int,
    inputs: int,
    bytes_: int,
) -> None:
    call = RecurrentCall(kind, dtype, layers, directions, False, steps, batch, hidden, inputs, training=False)
    assert recurrent_workspace_bytes(call) == bytes_
