from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.harness import checkpoints
from fairmile.benchmarks.harness.checkpoints import Checkpoint

CPU = torch.device("cpu")


def made() -> Checkpoint:
    return Checkpoint(
        model={"w": torch.arange(400.0), "n": torch.tensor(3)},
        optimizer={
            "optimizer": {"state": {0: {"exp_avg": torch.ones(4)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
        },
        epoch=3,
        step=30,
        history=[{"epoch": 1, "mae": 0.1}],
        best={"epoch": 2, "step": 20, "scores": {"mae": 0.1}, "model": {"w": torch.zeros(400), "n": torch.tensor(2)}},
        random=torch.zeros(2, 5, dtype=torch.uint8),
        settings={"epochs": 3, "decay_epochs": (1, 2)},
        seed=5,
    )


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    checkpoints.save(made(), tmp_path / "c.pt")
    found = checkpoints.load(tmp_path / "c.pt")
    for field in dataclasses.fields(Checkpoint):
        assert repr(getattr(found, field.name)) == repr(getattr(made(), field.name))
    assert torch.equal(found.model["w"], torch.arange(400.0))
    assert torch.equal(found.best_weights["w"], torch.zeros(400))
    assert [each.name for each in tmp_path.iterdir()] == ["c.pt"]


def test_any_pytorch_can_read_the_file(tmp_path: Path) -> None:
    checkpoints.save(made(), tmp_path / "c.pt")
    plain = torch.load(tmp_path / "c.pt", weights_only=True)
    assert torch.equal(plain["model"]["w"], torch.arange(400.0))


def test_a_byte_that_flipped_anywhere_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "c.pt"
    checkpoints.save(made(), file)
    whole = file.read_bytes()
    for place in (0, 300, len(whole) // 2, len(whole) - 200, len(whole) - 3):
        broken = bytearray(whole)
        broken[place] ^= 1
        file.write_bytes(broken)
        with pytest.raises(Integrity, match=r"c\.pt is damaged: its content does not match its digest") as caught:
            checkpoints.load(file)
        assert "remove" in (caught.value.hint or "")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path, share: float) -> None:
    file = tmp_path / "c.pt"
    checkpoints.save(made(), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(Integrity, match=r"c\.pt is damaged"):
        checkpoints.load(file)


def test_a_checkpoint_whose_digest_was_taken_away_is_refused(tmp_path: Path) -> None:
    torch.save({"format": 1, "model": {}}, tmp_path / "c.pt")
    with pytest.raises(Integrity, match="its digest is missing"):
        checkpoints.load(tmp_path / "c.pt")


def test_weights_alone_are_taken_from_any_file_of_pytorch(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    found = checkpoints.load(tmp_path / "weights.pt")
    assert torch.equal(found.best_weights["weight"], model.weight)


def test_a_file_never_runs_code(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    torch.save({"w": _Trap(str(trap))}, tmp_path / "evil.pt")
    with pytest.raises(UsageError, match=r"evil\.pt contains more than tensors and plain values"):
        checkpoints.load(tmp_path / "evil.pt")
    assert not trap.exists()


def test_a_file_of_something_else_is_told_apart(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("weights, honestly")
    with pytest.raises(UsageError, match="holds no weights"):
        checkpoints.load(tmp_path / "list.pt")
    with pytest.raises(Integrity, match=r"text\.pt is damaged: it cannot be read"):
        checkpoints.load(tmp_path / "text.pt")
    with pytest.raises(NotFound, match="no such file: "):
        checkpoints.load(tmp_path / "none.pt")


def test_weights_of_another_model_are_named(tmp_path: Path) -> None:
    model, file = torch.nn.Linear(3, 2), tmp_path / "w.pt"
    with pytest.raises(UsageError, match=r"w\.pt belongs to another model: it lacks bias and has gain that this model"):
        checkpoints.check_weights({"weight": torch.zeros(2, 3), "gain": torch.zeros(1)}, model, file)
    with pytest.raises(UsageError, match=r"weight has the shape \(2, 4\), expected \(2, 3\)"):
        checkpoints.check_weights({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, model, file)
    many = {f"layer{i}": torch.zeros(1) for i in range(9)} | model.state_dict()
    with pytest.raises(UsageError, match="has layer0, layer1, layer2 and 6 more that"):
        checkpoints.check_weights(many, model, file)
    checkpoints.check_weights(model.state_dict(), model, file)


def test_all_generators_go_on_where_they_were() -> None:
    random.gauss(0, 1)  # leaves a second number waiting
    np.random.standard_normal()
    state = checkpoints.random_state(CPU)
    first = _drawn()
    assert _drawn() != first
    checkpoints.set_random_state(state, CPU)
    assert _drawn() == first
    assert checkpoints.random_state(CPU).shape == state.shape


def _drawn() -> list[float]:
    return [random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.rand(), float(torch.rand(1))]


class _Trap:
    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> object:
        return open, (self.file, "w")
