"""Measuring the benchmarks: the parts run, and the plain loop that the harness is held against does the same work."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "speed" / "benchmarks.py"

torch = pytest.importorskip("torch")
pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def speed() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("speed_benchmarks", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["speed_benchmarks"] = module
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)
    del sys.modules["speed_benchmarks"]


def _bench(speed: ModuleType, folder: Path, *names: str) -> Any:
    return speed.Bench(folder, names, {}, is_quick=True)


@pytest.mark.thorough
def test_what_it_is_told_wrong_is_said_in_a_sentence(
    speed: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--data", "earthquake=/no/such/catalog"])
    with pytest.raises(SystemExit) as ended:
        speed.main()
    assert ended.value.code == 2
    assert "expected earthquake=CATALOG" in capsys.readouterr().err


def test_preparing_is_told_for_each_benchmark(speed: ModuleType, tmp_path: Path, capsys: Any) -> None:
    speed.prepare(_bench(speed, tmp_path, "earthquake", "cosmoflow", "mnist"))
    told = capsys.readouterr().out
    for words in ("events/s", "a loop in Python", "16^3 universes", "32^3 universes", "1,797 images"):
        assert words in told


def test_the_loop_in_python_reads_every_event(speed: ModuleType, tmp_path: Path) -> None:
    bench = _bench(speed, tmp_path)
    file = bench.catalog / "events.csv.gz"
    assert speed.plain_bins(file, speed.Grid()) == len(speed.read_events(file))


@pytest.mark.thorough
def test_training_ends_when_the_margin_over_the_baseline_is_reached(
    speed: ModuleType, tmp_path: Path, capsys: Any
) -> None:
    speed.quality(_bench(speed, tmp_path, "mnist"))
    told = capsys.readouterr().out
    assert "accuracy >= 0.9 (most frequent digit: 0.1" in told
    assert "NOT REACHED" not in told and "samples/s" in told


@pytest.mark.thorough
def test_harness_and_plain_loop_take_turns_and_train_alike(speed: ModuleType, tmp_path: Path) -> None:
    device = torch.device("cpu")
    bench = _bench(speed, tmp_path, "mnist")
    task = speed.harness_tasks(bench, device)["mnist, batch 32"]
    epochs = 4
    settings = speed.dataclasses.replace(task.settings, epochs=epochs, dropout=0.0, clip_norm=1.0)
    beside = speed.Accompanied(speed.dataclasses.replace(task, settings=settings), device, tmp_path)
    trained = speed.fit(beside, bench.session("harness"))
    assert len(beside.plain_s) == epochs and len(beside.ours_s) == epochs - 1
    assert min(*beside.plain_s, *beside.ours_s) > 0
    kept = torch.load(tmp_path / "plain.pt", weights_only=True)
    model = task.model()
    before = [each.detach().clone() for each in model.parameters()]
    model.load_state_dict(kept["model"])
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert {float(each["step"]) for each in kept["optimizer"]["state"].values()} == {epochs * beside.steps}
    model.eval()
    with torch.no_grad():
        guesses = task.predict(model, {"image": torch.from_numpy(task.digits.test_images)})["guess"].numpy()
    learned = float(np.mean(guesses == task.digits.test_labels))
    assert abs(learned - trained.scores["accuracy"]) < 0.1


def test_a_benchmark_is_measured_as_a_user_runs_it(speed: ModuleType, tmp_path: Path) -> None:
    bench = _bench(speed, tmp_path, "mnist")
    task = speed.default_task(bench, "mnist", torch.device("cpu"))
    settings = task.settings
    assert (settings.batch_size, settings.epochs, settings.evaluate_every, settings.save_every) == (32, 40, 1, 1)
