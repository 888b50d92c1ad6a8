"""Lightning, Keras and plain loops: what they do is in the log of the meter."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fairmile.meter import frameworks
from fairmile.meter.frameworks import timed_batches
from fairmile.meter.lines import Log, event_files, read_log
from fairmile.meter.meter import Meter

EPOCHS, BATCHES = 2, 4


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    return Meter(tmp_path / "events.jsonl")


def written(meter: Meter) -> Log:
    meter.close()
    assert meter.file is not None
    return read_log([Path(meter.file)])


def counts(log: Log) -> Counter[str]:
    found: Counter[str] = Counter()
    for spans in log.spans:
        found[spans.name] += len(spans.durations_ns)
    return found


def values(log: Log, name: str) -> list[tuple[float | None, float]]:
    return [(each.step, each.value) for each in log.metrics if each.name == name]


def assert_sendable(name: str) -> None:
    """A trainer that starts its ranks as processes pickles its callbacks."""
    made = getattr(frameworks, name)
    assert type(pickle.loads(pickle.dumps(made()))) is made


# A plain loop


def test_a_loop_over_timed_batches_sees_every_batch_and_the_waits_are_spans(meter: Meter) -> None:
    assert list(timed_batches(range(5), meter=meter)) == [0, 1, 2, 3, 4]
    assert counts(written(meter)) == {"data": 6}  # the last one learns that there is no more


def test_what_the_loop_does_with_a_batch_is_not_counted_as_waiting(meter: Meter) -> None:
    inside: list[int] = []
    for _ in timed_batches([1, 2], meter=meter, name="wait"):
        with meter.span("work"):
            inside.append(1)
    log = written(meter)
    [waits], [work] = ([each for each in log.spans if each.name == name] for name in ("wait", "work"))
    ends = [start + duration for start, duration in zip(waits.starts_ns, waits.durations_ns, strict=True)]
    assert all(end <= start for end, start in zip(ends, work.starts_ns, strict=False))


def test_an_error_of_the_loader_reaches_the_loop(meter: Meter) -> None:
    def broken() -> Any:
        yield 1
        raise OSError("the disk is gone")

    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(timed_batches(broken(), meter=meter))


# Lightning


def _trained_with_lightning(module: Any, meter: Meter, folder: Path, **more: Any) -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from fairmile.meter.frameworks import LightningCallback

    class Model(module.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.fails = more.pop("fails", False)

        def training_step(self, batch: Any, index: int) -> Any:
            if self.fails and self.global_step == 1:
                raise FloatingPointError("it diverged")
            loss = self.layer(batch[0]).square().mean()
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self.layer(batch[0]).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    environments = importlib.import_module(f"{module.__name__}.plugins.environments")
    loader = DataLoader(TensorDataset(torch.ones(2 * BATCHES, 2)), batch_size=2)
    callback = LightningCallback(meter)
    assert isinstance(callback, module.Callback)
    trainer = module.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=2,
        default_root_dir=folder,
        callbacks=[callback],
        # Looking for its cluster, Lightning would start MPI within the process of the tests.
        plugins=[environments.LightningEnvironment()],
    )
    trainer.fit(Model(), loader, loader)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_lightning_tells_epochs_batches_waits_validations_and_metrics(meter: Meter, tmp_path: Path) -> None:
    module = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    _trained_with_lightning(module, meter, tmp_path)
    log = written(meter)
    assert_sendable("LightningCallback")
    found = counts(log)
    assert (found["epoch"], found["batch"]) == (EPOCHS, EPOCHS * BATCHES)
    assert found["data"] == EPOCHS * BATCHES
    assert found["validation"] == EPOCHS + 1  # Lightning tries the validation before it trains
    [epochs] = [each for each in log.spans if each.name == "epoch"]
    assert [said and said["n"] for said in epochs.attributes] == list(range(EPOCHS))
    assert [step for step, _ in values(log, "train_loss_step")] == [2, 4, 6, 8]
    assert [step for step, _ in values(log, "train_loss_epoch")] == [BATCHES, 2 * BATCHES]
    validated = values(log, "val_loss")
    assert [step for step, _ in validated] == [BATCHES, 2 * BATCHES]
    assert validated[1][1] < validated[0][1], "it trains, so the numbers are those of the model"


@pytest.mark.filterwarnings("ignore")
def test_a_training_that_fails_leaves_its_spans_and_the_reason(meter: Meter, tmp_path: Path) -> None:
    module = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    with pytest.raises(FloatingPointError):
        _trained_with_lightning(module, meter, tmp_path, fails=True)
    log = written(meter)
    assert counts(log)["batch"] == 2 and counts(log)["epoch"] == 1
    assert log.events[-1].attributes["error"] == "FloatingPointError: it diverged"


@pytest.mark.thorough
def test_lightning_works_by_its_old_name(tmp_path: Path) -> None:
    if importlib.util.find_spec("pytorch_lightning") is None:
        pytest.skip("pytorch_lightning is not installed")
    # In a process of its own: which of the two is meant is told by what the program has imported.
    script = (
        "import pickle, sys; from pathlib import Path; sys.path[:0] = [sys.argv[2], sys.argv[3]]\n"
        "import pytorch_lightning as module\n"
        "from fairmile.meter.frameworks import LightningCallback\n"
        "from fairmile.meter.meter import Meter\n"
        "import test_frameworks\n"
        "assert isinstance(pickle.loads(pickle.dumps(LightningCallback())), module.Callback)\n"
        "meter = Meter(Path(sys.argv[1]) / 'events.jsonl')\n"
        "test_frameworks._trained_with_lightning(module, meter, Path(sys.argv[1]))\n"
        "meter.close()\n"
    )
    here = Path(__file__).parent
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path), str(here), str(here.parent / "support")]
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert counts(read_log(event_files(tmp_path)))["epoch"] == EPOCHS


# Keras


@pytest.fixture(scope="module")
def keras(tmp_path_factory: pytest.TempPathFactory) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
    return pytest.importorskip("keras", reason="keras is not installed")


@pytest.mark.filterwarnings("ignore")
def test_keras_tells_epochs_batches_waits_validations_and_metrics(keras: Any, meter: Meter) -> None:
    import numpy as np

    from fairmile.meter.frameworks import KerasCallback

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
    x, y = np.ones((2 * BATCHES, 2)), np.zeros((2 * BATCHES, 1))
    callback = KerasCallback(meter, every=2)
    history = model.fit(
        x, y, batch_size=2, epochs=EPOCHS, validation_data=(x, y), verbose=0, callbacks=[callback], shuffle=False
    )
    model.evaluate(x, y, batch_size=2, verbose=0, callbacks=[callback])
    log = written(meter)
    found = counts(log)
    assert {name: found[name] for name in ("epoch", "batch", "validation", "test")} == {
        "epoch": EPOCHS,
        "batch": EPOCHS * BATCHES,
        "validation": EPOCHS,
        "test": 1,
    }
    assert found["data"] == EPOCHS * BATCHES
    at_the_end = [(step, value) for step, value in values(log, "val_loss")]
    assert [step for step, _ in at_the_end] == [BATCHES, 2 * BATCHES]
    assert [value for _, value in at_the_end] == pytest.approx(history.history["val_loss"])
    steps = [step for step, _ in values(log, "mae")]
    assert steps == [2, 4, 4, 6, 8, 8, 8], "every second batch, the end of each epoch, and the test"


def test_a_callback_of_keras_can_be_sent_to_another_process(keras: Any) -> None:
    assert_sendable("KerasCallback")


# Frameworks that are not there


@pytest.mark.parametrize(("name", "package"), [("LightningCallback", "lightning"), ("KerasCallback", "keras")])
def test_a_missing_framework_is_one_sentence_with_the_remedy(name: str, package: str, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "for name in ('lightning', 'lightning.pytorch', 'pytorch_lightning', 'keras'):\n"
        "    sys.modules[name] = None\n"
        "from fairmile.base.errors import Unsupported\n"
        "import fairmile.meter.frameworks as frameworks\n"
        "try:\n"
        f"    frameworks.{name}\n"
        "except Unsupported as error:\n"
        f"    assert 'pip install {package}' in error.hint, error.hint\n"
        "else:\n"
        "    sys.exit('nothing was missing')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_framework_is_imported_before_its_callback_is_asked_for() -> None:
    script = (
        "import sys, fairmile.meter.frameworks\n"
        "assert not {'torch', 'lightning', 'pytorch_lightning', 'keras', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
