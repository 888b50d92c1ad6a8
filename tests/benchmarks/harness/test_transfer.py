"""Training starts from weights of another task, with parameters that stay as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_task import SmallTask, session

from fairmile.base.errors import NotFound, UsageError
from fairmile.benchmarks.harness import checkpoints
from fairmile.benchmarks.harness.trainer import fit


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def weights_of(folder: Path) -> Path:
    """Return the checkpoint of a training whose last layer has two outputs more than a small task's."""
    weights = SmallTask().model().state_dict()
    weights |= {"4.weight": torch.ones(3, 8), "4.bias": torch.ones(3), "1.running_mean": torch.full((8,), 5.0)}
    torch.save(weights, folder / "other.pt")
    return folder / "other.pt"


def test_what_fits_by_name_and_shape_is_taken_and_the_rest_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = weights_of(tmp_path)
    task = SmallTask(learning_rate=1e-12, epochs=1, optimizer="sgd", freeze="0.*,1.*")
    found = fit(task, replace(session(tmp_path), init=file)).model.state_dict()
    given = torch.load(file, weights_only=True)
    for name in ("0.weight", "0.bias", "1.running_mean"):
        assert torch.equal(found[name], given[name]), name
    assert found["4.weight"].shape == (1, 8)
    said = capsys.readouterr().out
    assert "started from other.pt: 7 of 9 tensors; new: 4.weight, 4.bias" in said
    assert "frozen: 4 of 6 tensors, 72 of 81 parameters" in said


def test_parameters_that_are_new_and_frozen_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = replace(session(tmp_path), init=weights_of(tmp_path))
    fit(SmallTask(epochs=1, freeze="4.*"), start)
    said = capsys.readouterr().out
    assert "frozen: 2 of 6 tensors, 9 of 81 parameters; warning: 4.weight, 4.bias stay as drawn at random" in said


def test_frozen_parameters_and_their_statistics_stay_while_the_others_learn(tmp_path: Path) -> None:
    task = SmallTask(freeze="0.*,1.*", epochs=2)
    start = replace(session(tmp_path), init=weights_of(tmp_path))
    given = torch.load(start.init, weights_only=True)  # type: ignore[arg-type]
    found = fit(task, start).model.state_dict()
    for name in ("0.weight", "1.weight", "1.running_mean"):
        assert torch.equal(found[name], given[name]), name
    free = fit(SmallTask(epochs=2), replace(session(tmp_path / "free"), init=start.init)).model.state_dict()
    assert not torch.equal(free["0.weight"], given["0.weight"])
    assert not torch.equal(free["1.running_mean"], given["1.running_mean"])


def test_a_training_with_frozen_parameters_is_resumed_as_it_was(tmp_path: Path) -> None:
    start = replace(session(tmp_path), init=weights_of(tmp_path))
    fit(SmallTask(freeze="0.*", epochs=2), start)
    kept = checkpoints.load(tmp_path / checkpoints.FILE).model
    more = fit(SmallTask(freeze="0.*", epochs=4), replace(start, is_resumed=True, init=None)).model.state_dict()
    assert torch.equal(more["0.weight"], kept["0.weight"])
    assert not torch.equal(more["4.weight"], kept["4.weight"])


def test_what_makes_no_transfer_is_one_sentence(tmp_path: Path) -> None:
    file = weights_of(tmp_path)
    start = replace(session(tmp_path), init=file)
    torch.save({"head.weight": torch.ones(2)}, tmp_path / "foreign.pt")
    with pytest.raises(UsageError, match=r"foreign\.pt has no weights that fit this model"):
        fit(SmallTask(), replace(start, init=tmp_path / "foreign.pt"))
    with pytest.raises(NotFound, match=r"no such file: .*nowhere\.pt"):
        fit(SmallTask(), replace(start, init=tmp_path / "nowhere.pt"))
    with pytest.raises(UsageError, match="both checkpoint and the input init are given"):
        fit(SmallTask(checkpoint=str(file)), start)
    with pytest.raises(UsageError, match=r"'encoder\.\*' matches no parameter"):
        fit(SmallTask(freeze="0.*,encoder.*"), start)
    with pytest.raises(UsageError, match="leaves nothing to train"):
        fit(SmallTask(freeze="*"), start)
