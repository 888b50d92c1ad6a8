"""Training and inference of any benchmark's task, on any device, in plain PyTorch."""

from __future__ import annotations

import atexit
import dataclasses
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from fairmile.base.errors import RunFailed, UsageError
from fairmile.benchmarks.harness import checkpoints, memory
from fairmile.benchmarks.harness.checkpoints import Checkpoint
from fairmile.benchmarks.harness.journal import Journal
from fairmile.benchmarks.harness.loader import Loader
from fairmile.benchmarks.harness.loading import measure_loaders
from fairmile.benchmarks.harness.schedules import learning_rates, make_optimizer, plateau_factor
from fairmile.benchmarks.harness.session import Finished
from fairmile.benchmarks.harness.shards import sharded
from fairmile.benchmarks.harness.strategies import make_strategy
from fairmile.benchmarks.harness.transfer import freeze, hold_frozen_statistics, start_from
from fairmile.meter import log, span

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.session import Session
    from fairmile.benchmarks.harness.settings import TrainSettings
    from fairmile.benchmarks.harness.strategies import Strategy
    from fairmile.benchmarks.harness.task import ForecastingTask, Task

    Array = np.ndarray[Any, Any]

_HELD_BYTES = 64 << 20  # of predictions that wait on the device, so that not each batch is waited for

_HELD_LOSSES = 64

_SPEEDS = ("samples_per_s", "data_wait_s", "epoch_s")


@dataclass(frozen=True)
class Trained:
    """What a training or an inference leaves behind, with the best weights of all epochs."""

    model: torch.nn.Module  # not wrapped, for evaluation
    scores: Mapping[str, float]
    outputs: Mapping[str, Array]  # of all validation samples, in their order
    history: list[dict[str, float]]  # one row for each epoch; speeds only of those trained in this process
    device: torch.device


def fit(task: Task, session: Session) -> Trained:
    """Train a task as its settings say, or only evaluate it where they ask for inference."""
    if session.on_task is not None:
        session.on_task(task)
    trains = task.settings.work == "train"
    if task.settings.predictions and not hasattr(task, "predictions"):
        raise UsageError(f"parameter predictions: the benchmark {session.name} cannot keep its predictions")
    with _reproducible(task.settings), Journal(session, is_on=trains) as journal:
        strategy = make_strategy(task.settings, session.ranks)
        try:
            training = _Training(task, session, strategy, journal)
            # What is caught holds the tensors of the step that failed: they are free only after it.
            with suppress(torch.OutOfMemoryError):
                training.initialise()
                if task.settings.work == "loaders":
                    training.measure_loaders()
                    raise Finished
                trained = training.train() if trains else training.infer()
                if task.settings.predictions and session.ranks.is_first:
                    cast("ForecastingTask", task).predictions(trained.outputs).write(session.folder)
                return trained
            raise memory.explain(task, strategy, training.stage, training.parts)
        finally:
            if session.ranks.size == 1:
                strategy.close()
            else:  # ranks that parted cannot meet again, and a program may train several models
                atexit.register(strategy.close)


class _Training:
    """One training on its way: what changes from step to step, and what is done with it."""

    def __init__(self, task: Task, session: Session, strategy: Strategy, journal: Journal) -> None:
        self.task, self.session, self.strategy, self.journal = task, session, strategy, journal
        self.settings, self.metric = task.settings, task.metric
        self.state = Checkpoint(model={}, seed=session.seed, settings=dataclasses.asdict(task.settings))
        self.outputs: Mapping[str, Array] | None = None  # of the best weights
        self.stage: memory.Stage = "initialise"
        self.parts: tuple[torch.nn.Module, torch.optim.Optimizer] | None = None

    def train(self) -> Trained:
        """Train to the end and return what the best epoch gave."""
        rows, is_over = self.state.history, self._is_done()
        epochs = len(rows) if is_over else self.state.epoch
        given = self.task, self.session, self.strategy.device, self.optimizer
        self.journal.begin(*given, total_steps=self.total_steps, epochs=epochs, is_over=is_over)
        with span("training"):
            while not self._is_done():
                self._train_epoch()
        if timed := [row for row in rows if "epoch_s" in row]:
            waited = sum(row["data_wait_s"] for row in timed) / max(sum(row["epoch_s"] for row in timed), 1e-9)
            self._log(train_samples_per_s=median(row["samples_per_s"] for row in timed), data_wait_share=waited)
        if self.strategy.device.type == "cuda":
            self._log(peak_memory_bytes=torch.cuda.max_memory_allocated(self.strategy.device))
        trained = self._best()
        value = trained.scores[self.metric.name]
        self.journal.stop("success" if self.metric.target is None or self.metric.is_met(value) else "aborted")
        return trained

    def infer(self) -> Trained:
        """Evaluate the weights that were given."""
        with torch.no_grad():  # what the first batch prepares is not timed
            self.model.eval()
            self.strategy.in_precision(self.task.predict)(self.model, next(self.validation.epoch(0)))
        began = time.perf_counter()
        scores, outputs = self._evaluate(0)
        self._log(**scores, inference_samples_per_s=len(self.task.validation) / (time.perf_counter() - began))
        return self._trained(scores, outputs)

    def measure_loaders(self) -> dict[str, Any]:
        """Train a few steps with each way to feed the training, in turns; nothing of it is kept."""

        loss_of = self.strategy.in_precision(self.task.loss)

        def step(batch: Mapping[str, torch.Tensor]) -> None:
            self.strategy.backward(self.model, loss_of(self.model, batch))
            self.strategy.step(self.model, self.optimizer, self.settings.clip_norm)

        self.model.train()
        return measure_loaders(self.task, self.session, self.strategy.device, step)

    def initialise(self) -> None:
        """Make the model, bring it to the device and fill it with what a checkpoint holds."""
        with span("initialise"):
            resumed = self._prepare_model()
            self._prepare_data()
            if resumed is not None:
                self._resume(resumed)
        self.stage = "training"

    def _prepare_model(self) -> Checkpoint | None:
        settings, session, strategy = self.settings, self.session, self.strategy
        if strategy.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(strategy.device)
        _seed(session.seed)
        model = self.task.model()
        file = session.folder / checkpoints.FILE
        resumed = checkpoints.load(file) if session.is_resumed and file.is_file() else None
        fresh: Sequence[str] = ()
        if resumed is not None and settings.work == "train":
            checkpoints.check_weights(resumed.model, model, file)
            model.load_state_dict(resumed.model)
        elif session.init is not None:
            if settings.checkpoint:
                raise UsageError("both checkpoint and the input init are given", hint="leave one of them out")
            started, fresh = start_from(session.init, model)
            session.say(started)
            resumed = None
        elif settings.checkpoint or settings.work == "inference":
            given = Path(settings.checkpoint) if settings.checkpoint else file
            if not settings.checkpoint and not file.is_file():
                raise UsageError(
                    "inference needs weights, but the parameter checkpoint is not set",
                    hint="set checkpoint=FILE, such as checkpoint.pt of an earlier run",
                )
            weights = checkpoints.load(given).best_weights
            checkpoints.check_weights(weights, model, given)
            model.load_state_dict(weights)
            resumed = None
        if settings.freeze and settings.work == "train":
            session.say(freeze(settings, model, fresh))
        self.parts = strategy.prepare(model, lambda m: make_optimizer(settings, m.parameters()))
        self.model, self.optimizer = self.parts
        # Each rank draws its own numbers from here on, as for dropout; the weights above are equal on all.
        _seed(int(np.random.SeedSequence([session.seed, session.ranks.rank]).generate_state(1)[0]))
        return resumed

    def _prepare_data(self) -> None:
        settings, session, device = self.settings, self.session, self.strategy.device
        given: dict[str, Any] = {
            "device": device,
            "ranks": session.ranks,
            "seed": session.seed,
            "workers": settings.workers,
            "resident": settings.resident,
        }
        training, validation = self.task.training, self.task.validation
        if settings.shards:
            training = sharded(self.task, session, "training", training)
            validation = sharded(self.task, session, "validation", validation)
        self.training = Loader(training, batch_size=settings.batch_size, shuffle=True, **given)
        at_once = settings.eval_batch_size or settings.batch_size
        self.validation = Loader(validation, batch_size=at_once, shuffle=False, **given)
        self.steps_per_epoch = -(-self.training.steps // settings.accumulate)
        planned = settings.epochs * self.steps_per_epoch
        self.total_steps = min(planned, settings.max_steps or planned)
        self.rate = learning_rates(settings, steps_per_epoch=self.steps_per_epoch, total_steps=max(self.total_steps, 1))
        self.losses = torch.zeros(self.training.steps, device=device)

    def _resume(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint was written."""
        state, settings, ranks = self.state, self.settings, self.session.ranks
        then = checkpoint.settings.get("optimizer")
        if then != settings.optimizer:
            raise UsageError(
                f"cannot resume with optimizer {settings.optimizer}: the training started with {then}",
                hint="start a new one from its weights with checkpoint=FILE",
            )
        self.strategy.load(self.model, self.optimizer, {"model": checkpoint.model, **checkpoint.optimizer})
        state.epoch, state.step, state.history, state.best = (
            checkpoint.epoch,
            checkpoint.step,
            checkpoint.history,
            checkpoint.best,
        )
        if state.best is not None and state.best["model"] is None:
            state.best["model"] = checkpoint.model
        is_same = checkpoint.random is not None and len(checkpoint.random) == ranks.size
        if is_same and checkpoint.random is not None:
            checkpoints.set_random_state(checkpoint.random[ranks.rank].numpy(), self.strategy.device)
        # A part of an epoch only means something for the same batches.
        if is_same and checkpoint.taken is not None and checkpoint.settings.get("batch_size") == settings.batch_size:
            state.batches = min(checkpoint.batches, self.training.steps)
            self.losses[: state.batches] = checkpoint.taken[ranks.rank, 0, : state.batches].to(self.losses)
        self.session.say(f"resumed after epoch {checkpoint.epoch}, step {checkpoint.step}")

    def _is_done(self) -> bool:
        state, settings = self.state, self.settings
        if state.epoch >= settings.epochs or (state.step >= self.total_steps):
            return True
        if state.best is None or state.batches:
            return False
        if settings.stop_at_target and self.metric.is_met(state.best["scores"][self.metric.name]):
            return True
        return 0 < settings.patience <= state.epoch - int(state.best["epoch"])

    def _train_epoch(self) -> None:
        """Train one epoch, evaluate, tell about it and keep it."""
        state, number = self.state, self.state.epoch + 1
        with span("epoch", n=number):
            self.journal.epoch(number)
            row = self._steps(number)
            self.journal.epoch(number, ends=True)
        is_cut = state.batches > 0  # by max_steps
        if not is_cut:
            state.epoch = number
        state.history[number - 1 :] = [row]
        ends = is_cut or number >= self.settings.epochs or state.step >= self.total_steps
        if ends or number % self.settings.evaluate_every == 0:
            self.journal.evaluation(number)
            scores, outputs = self._evaluate(number)
            self.journal.evaluated(number, self.metric, scores)
            row.update(scores)
            self._keep_if_best(number, scores, outputs)
        self._log(
            step=number, **{name: value for name, value in row.items() if name not in ("epoch", "step", "epoch_s")}
        )
        self._say(row)
        if self.settings.save_every and (number % self.settings.save_every == 0 or ends or self._is_done()):
            self._save(state.batches)

    def _steps(self, number: int) -> dict[str, float]:
        """Take the steps of an epoch; nothing here waits for the device until the end.

        The smallest models step in less than a millisecond: what can be decided before the loop is not decided in it.
        """
        settings, strategy, state = self.settings, self.strategy, self.state
        model, optimizer, clip_norm = self.model, self.optimizer, settings.clip_norm
        last, accumulate, save_steps = self.training.steps, settings.accumulate, settings.save_steps
        factor = plateau_factor(settings, self.metric, self._past_scores())
        first = index = state.batches
        losses, loss_of = _Losses(self.losses, first), strategy.in_precision(self.task.loss)
        before = state.step
        left = min(self.steps_per_epoch - first // accumulate, self.total_steps - before)
        rates = [self.rate(step) * factor for step in range(before, before + left)]
        model.train()
        if settings.freeze:
            hold_frozen_statistics(model)

        waited_s, began = self.training.taken.waiting_s, time.perf_counter()
        batches, rate, together = self.training.epoch(number, skip=first), None, 1
        for step, due in enumerate(rates, before + 1):
            if due != rate:
                rate = due
                for group in optimizer.param_groups:
                    group["lr"] = rate
            if accumulate > 1:
                together = min(accumulate, last - index // accumulate * accumulate)
                for batch in islice(batches, index // accumulate * accumulate + together - 1 - index):
                    with strategy.no_sync(model):
                        loss = loss_of(model, batch)
                        losses.add(loss)
                        strategy.backward(model, loss / together)
                    index += 1
            loss = loss_of(model, next(batches))
            losses.add(loss)
            strategy.backward(model, loss if together == 1 else loss / together)
            index += 1
            strategy.step(model, optimizer, clip_norm)
            if save_steps and step % save_steps == 0 and index < last and step < self.total_steps:
                losses.flush()
                state.step = step
                self._save(index)
        state.step = before + left
        state.batches = index % last
        losses.flush()
        values = self.losses[:index].cpu().double().numpy()
        took_s = time.perf_counter() - began
        wait_s = self.training.taken.waiting_s - waited_s
        return self._row(number, values, first, took_s, wait_s) | {"learning_rate": self.rate(state.step - 1) * factor}

    def _row(self, number: int, losses: Array, first: int, took_s: float, wait_s: float) -> dict[str, float]:
        """Return what an epoch gave, of all ranks; a loss that is no number ends the training on all of them."""
        loader, count = self.training, len(losses)
        samples = loader.samples_in(count)
        mine = float(losses @ loader.sizes[:count]), samples, samples - loader.samples_in(first), took_s, wait_s
        broken = -1 if isfinite(mine[0]) else _first_broken(losses)
        rows = self.strategy.gather(np.asarray([[*mine, broken]])).tolist()
        totals, counts, fresh, took, wait, bad = zip(*rows, strict=True)
        if max(bad) >= 0:
            raise self._broken(number, int(min(each for each in bad if each >= 0)), count)
        slowest_s = max(*took, 1e-9)
        return {
            "epoch": number,
            "step": self.state.step,
            "train_loss": float(np.sum(totals)) / sum(counts),
            "samples_per_s": sum(fresh) / slowest_s,
            "data_wait_s": max(wait),
            "epoch_s": slowest_s,
        }

    def _broken(self, number: int, index: int, count: int) -> RunFailed:
        """Return the error of a loss that is no number since a batch of this epoch, of which `count` were taken."""
        step = self.state.step - (count - 1) // self.settings.accumulate + index // self.settings.accumulate
        return RunFailed(
            f"the loss is not finite since epoch {number}, step {step}",
            hint="try a lower learning_rate, a warm-up, clip_norm=1, or bf16 instead of fp16",
        )

    def _evaluate(self, number: int) -> tuple[dict[str, float], dict[str, Array]]:
        """Return scores and predictions of all validation samples, the same on all ranks."""
        stage, self.stage = self.stage, "evaluation"
        predict = self.strategy.in_precision(self.task.predict)
        strategy, device = self.strategy, self.strategy.device
        kept: dict[str, list[Array]] = {}
        held: list[Mapping[str, torch.Tensor]] = []
        held_bytes = 0
        # What evaluation draws must not change the training after it.
        random_of = [device] if device.type == "cuda" else []
        self._align_buffers()
        with span("evaluation", n=number), torch.random.fork_rng(devices=random_of), torch.no_grad():
            self.model.eval()
            for batch in self.validation.epoch(0):
                predicted = predict(self.model, batch)
                held.append(predicted)
                held_bytes += sum(each.numel() * each.element_size() for each in predicted.values())
                if held_bytes > _HELD_BYTES:
                    _move(held, kept)
                    held_bytes = 0
            _move(held, kept)
            own = self.validation.own  # what follows them only filled the batches up
            outputs = {name: strategy.gather(np.concatenate(parts)[:own]) for name, parts in kept.items()}
            scores = {name: float(value) for name, value in self.task.scores(outputs).items()}
            # What is decided by them must be the same on all ranks, to the last bit.
            first = strategy.gather(np.asarray([list(scores.values())]))[0]
            scores = dict(zip(scores, first.tolist(), strict=True))
        self.stage = stage
        return scores, outputs

    @torch.no_grad()
    def _align_buffers(self) -> None:
        """Give all ranks what batch norms of the first one gathered, which is also what a checkpoint holds."""
        buffers = list(self.model.buffers()) if self.session.ranks.size > 1 else []
        if not buffers:
            return
        mine = torch.cat([each.detach().double().flatten().cpu() for each in buffers]).numpy()
        first = torch.from_numpy(self.strategy.gather(mine[None])[0].copy())
        for each, values in zip(buffers, torch.split(first, [each.numel() for each in buffers]), strict=True):
            each.copy_(values.view_as(each))

    def _keep_if_best(self, number: int, scores: Mapping[str, float], outputs: Mapping[str, Array]) -> None:
        best = self.state.best
        if best is None or self.metric.is_better(scores[self.metric.name], best["scores"][self.metric.name]):
            weights = self.strategy.state(self.model)["model"]
            self.state.best = {"epoch": number, "step": self.state.step, "scores": dict(scores), "model": weights}
            self.outputs = outputs

    def _best(self) -> Trained:
        """Return the best epoch's weights and what they predict, which a resumed training finds out once more."""
        best = self.state.best
        if best is None:
            scores, outputs = self._evaluate(self.state.epoch)
            return self._trained(scores, outputs)
        if best["step"] != self.state.step:
            self.strategy.load(self.model, None, {"model": best["model"]})
        if self.outputs is None:
            _, self.outputs = self._evaluate(best["epoch"])
        return self._trained(best["scores"], self.outputs)

    def _trained(self, scores: Mapping[str, float], outputs: Mapping[str, Array]) -> Trained:
        model = self.strategy.unwrapped(self.model).eval()
        return Trained(model, scores, outputs, self.state.history, self.strategy.device)

    def _save(self, batches: int = 0) -> None:
        """Write a checkpoint; all ranks take part, the first one writes."""
        with span("checkpoint"):
            state, ranks = self.state, self.session.ranks
            self._align_buffers()
            rows = self.strategy.gather(checkpoints.random_state(self.strategy.device)[None])
            taken = None
            if batches:
                mine = np.stack([self.losses[:batches].cpu().double().numpy(), self.training.sizes[:batches]])
                all_ranks = self.strategy.gather(mine[None])
                broken = _first_broken(all_ranks[:, 0].sum(axis=0))
                if broken >= 0:  # such weights are not worth keeping
                    raise self._broken(state.epoch + 1, broken, batches)
                taken = torch.from_numpy(np.ascontiguousarray(all_ranks))
            weights = dict(self.strategy.state(self.model, self.optimizer))
            if ranks.is_first:
                best = state.best
                if best is not None and best["step"] == state.step:
                    best = {**best, "model": None}
                # Without what differs each time, equal trainings leave equal files.
                history = [{name: row[name] for name in row if name not in _SPEEDS} for row in state.history]
                whole = dataclasses.replace(
                    state, model=weights.pop("model"), optimizer=weights, batches=batches, taken=taken, best=best,
                    history=history, random=torch.from_numpy(np.ascontiguousarray(rows)),
                )  # fmt: skip
                checkpoints.save(whole, self.session.folder / checkpoints.FILE)
            self.strategy.barrier()

    def _past_scores(self) -> list[float]:
        return [row[self.metric.name] for row in self.state.history if self.metric.name in row]

    def _log(self, *, step: float | None = None, **metrics: float) -> None:
        if self.session.ranks.is_first:
            log(step=step, **metrics)

    def _say(self, row: Mapping[str, float]) -> None:
        score = f"  {self.metric.name} {row[self.metric.name]:.4g}" if self.metric.name in row else ""
        self.session.say(
            f"epoch {row['epoch']:g}/{self.settings.epochs}  loss {row['train_loss']:.4g}{score}"
            f"  {row['samples_per_s']:.4g} samples/s  {row['epoch_s']:.3g} s"
        )


class _Losses:
    """Puts losses into a tensor of their device, many at a time: a copy for each costs as much as a small layer."""

    def __init__(self, tensor: torch.Tensor, first: int) -> None:
        self._tensor, self._next = tensor, first
        self._held: list[torch.Tensor] = []

    def add(self, loss: torch.Tensor) -> None:
        self._held.append(loss.detach())
        if len(self._held) == _HELD_LOSSES:
            self.flush()

    def flush(self) -> None:
        if self._held:
            end = self._next + len(self._held)
            self._tensor[self._next : end] = torch.stack(self._held)
            self._next, self._held = end, []


def _move(held: list[Mapping[str, torch.Tensor]], kept: dict[str, list[Array]]) -> None:
    """Move predictions from the device into arrays; NumPy knows no bfloat16."""
    for outputs in held:
        for name, values in outputs.items():
            is_short = values.is_floating_point() and values.element_size() < 4
            kept.setdefault(name, []).append((values.float() if is_short else values).cpu().numpy())
    held.clear()


def _first_broken(losses: Array) -> int:
    """Return the place of the first loss that is not a finite number, or -1."""
    finite = np.isfinite(losses)
    return -1 if finite.all() else int(np.argmin(finite))


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def _reproducible(settings: TrainSettings) -> Iterator[None]:
    """Choose threads, and the fastest kernels or deterministic ones; what was chosen before comes back."""
    cudnn: Any = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads or threads)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    _use_deterministic(settings.deterministic)
    cudnn.deterministic, cudnn.benchmark = settings.deterministic, not settings.deterministic
    try:
        yield
    finally:
        _use_deterministic(before[0])
        cudnn.deterministic, cudnn.benchmark = before[1:]
        torch.set_num_threads(threads)


def _use_deterministic(wanted: bool) -> None:
    if wanted != torch.are_deterministic_algorithms_enabled():  # even to say the same again imports PyTorch's compiler
        torch.use_deterministic_algorithms(wanted)
