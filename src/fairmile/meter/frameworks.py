"""Callbacks that tell a meter what a training framework does: epochs, batches, waiting for data, and metrics.

    Trainer(callbacks=[LightningCallback()])         # `lightning` or `pytorch_lightning`
    model.fit(…, callbacks=[KerasCallback()])        # Keras 3
    for batch in timed_batches(loader): …            # any loop

They write to the meter of the process unless they are given another one. A framework is imported when its callback is
asked for. Metrics are written by rank 0, spans by all.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from fairmile.base.errors import Unsupported
from fairmile.meter import current

T = TypeVar("T")
_END = object()


def timed_batches(batches: Iterable[T], *, meter: Any = None, name: str = "data") -> Iterator[T]:
    """Yield each batch; how long the loop waited for it, and in the end for the news that there is none, is a span."""
    meter = meter or current()
    source = iter(batches)
    while True:
        with meter.span(name):
            batch: Any = next(source, _END)
        if batch is _END:
            return
        yield batch


class _Progress:
    """The spans of a training, which begin in one call of a framework and end in another."""

    def __init__(self, meter: Any) -> None:
        self._given = meter
        self._open: dict[str, Any] = {}

    @property
    def meter(self) -> Any:
        return self._given or current()

    def begin(self, name: str, **attributes: object) -> None:
        self.end(name)
        span = self.meter.span(name, **attributes)
        span.__enter__()
        self._open[name] = span

    def end(self, name: str) -> None:
        span = self._open.pop(name, None)
        if span is not None:
            span.__exit__(None, None, None)

    def drop(self, name: str) -> None:
        """Forget a span that led to nothing."""
        self._open.pop(name, None)

    def end_all(self) -> None:
        for name in reversed(list(self._open)):
            self.end(name)

    def log(self, step: int, values: Mapping[str, Any], wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Write the values that are single numbers."""
        numbers = {name: _number(value) for name, value in values.items() if wanted(name)}
        single = {name: number for name, number in numbers.items() if number is not None}
        if "step" in single:
            single["step_"] = single.pop("step")
        if single:
            self.meter.log(step=step, **single)

    def __getstate__(self) -> dict[str, Any]:
        return {"_given": None, "_open": {}}  # another process has a meter of its own


def _number(value: Any) -> float | None:
    try:
        return float(value.item() if hasattr(value, "item") else value)  # float() of a tensor with a gradient warns
    except (TypeError, ValueError, RuntimeError):  # a text, several numbers
        return None


class _LightningHooks:
    """Tells a meter the epochs, batches, validations and metrics of a Lightning trainer."""

    def __init__(self, meter: Any = None) -> None:
        super().__init__()
        self._progress = _Progress(meter)
        self._validated: set[str] = set()  # names of metrics that only a validation changes

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._progress.meter.event("training starts", epoch=trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._progress.begin("epoch", n=trainer.current_epoch)
        self._progress.begin("data")

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._progress.end("data")
        self._progress.begin("batch")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._progress.end("batch")
        # Reading a number waits for the accelerator, so it is done no more often than the trainer itself does.
        if trainer.log_every_n_steps and (batch_idx + 1) % trainer.log_every_n_steps == 0:
            self._log(trainer, lambda name: not name.endswith("_epoch") and name not in self._validated)
        self._progress.begin("data")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self._progress.drop("data")
        self._progress.end("epoch")
        self._log(trainer, lambda name: not name.endswith("_step") and name not in self._validated)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._progress.drop("data")
        self._progress.begin("validation")
        self._before = set(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self._progress.end("validation")
        if not trainer.sanity_checking:
            self._validated |= set(trainer.callback_metrics) - self._before
            self._log(trainer, lambda name: name in self._validated)
            self._progress.begin("data")

    def on_test_start(self, trainer: Any, module: Any) -> None:
        self._progress.begin("test")

    def on_test_end(self, trainer: Any, module: Any) -> None:
        self._progress.end("test")
        self._log(trainer, lambda _: True)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._progress.drop("data")
        self._progress.end_all()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._progress.end_all()
        self._progress.meter.event("training failed", error=f"{type(exception).__name__}: {exception}")

    def _log(self, trainer: Any, wanted: Callable[[str], bool]) -> None:
        if trainer.is_global_zero:
            self._progress.log(trainer.global_step, trainer.callback_metrics, wanted)


def _lightning_class() -> type:
    bases = [importlib.import_module(name).Callback for name in _lightnings()]
    return type("LightningCallback", (_LightningHooks, *bases), {"__doc__": _LightningHooks.__doc__})


def _lightnings() -> list[str]:
    """Return the modules of Lightning in use; it goes by two names, whose classes are not the same."""
    names = ("lightning.pytorch", "pytorch_lightning")
    used = [name for name in names if sys.modules.get(name) is not None]
    if used:
        return used
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return [name]
    raise Unsupported("the Lightning callback needs lightning", hint="pip install lightning")


class _KerasHooks:
    """Tells a meter the epochs, batches, validations and metrics of a Keras model; batches' too every `every`."""

    def __init__(self, meter: Any = None, *, every: int = 0) -> None:
        super().__init__()
        self._progress = _Progress(meter)
        self._every = every
        self._step = 0
        self._in_training = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._in_training = True
        self._progress.meter.event("training starts")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._progress.begin("epoch", n=epoch)
        self._progress.begin("data")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._progress.end("data")
        self._progress.begin("batch")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._progress.end("batch")
        self._step += 1
        if self._every and self._step % self._every == 0:
            self._progress.log(self._step, logs or {})
        self._progress.begin("data")

    def on_test_begin(self, logs: Any = None) -> None:
        self._progress.drop("data")
        self._progress.begin("validation" if self._in_training else "test")

    def on_test_end(self, logs: Any = None) -> None:
        self._progress.end("validation" if self._in_training else "test")
        if not self._in_training:
            self._progress.log(self._step, logs or {})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._progress.drop("data")
        self._progress.end("epoch")
        self._progress.log(self._step, logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        self._in_training = False
        self._progress.end_all()


def _keras_class() -> type:
    try:
        keras: Any = importlib.import_module("keras")
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise
        raise Unsupported("the Keras callback needs keras 3", hint="pip install keras") from error
    return type("KerasCallback", (_KerasHooks, keras.callbacks.Callback), {"__doc__": _KerasHooks.__doc__})


_MADE = {"LightningCallback": _lightning_class, "KerasCallback": _keras_class}


def __getattr__(name: str) -> Any:
    make = _MADE.get(name)
    if make is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = make()
    # By its own name in this module, so that a callback can be sent to other processes.
    made.__module__, made.__qualname__ = __name__, name
    globals()[name] = made
    return made
