"""MLPerf's log of a training: `mllog.txt`, with the keys that the rules of MLPerf HPC ask for."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fairmile.base.files import write_atomic, write_failure
from fairmile.meter.mllog import MLLog, read_mllog

if TYPE_CHECKING:
    import torch

    from fairmile.benchmarks.harness.session import Session
    from fairmile.benchmarks.harness.settings import TrainSettings
    from fairmile.benchmarks.harness.task import Metric, Task

FILE = "mllog.txt"
_OPT_NAMES = {"adam": "Adam", "adamw": "AdamW", "lamb": "LAMB"}  # as the committee's checker spells them
_SCHEDULERS = {"constant": "multistep", "steps": "multistep", "cosine": "cosine_annealing"}


class Journal:
    """Writes the log from the first rank; on the others it does nothing."""

    def __init__(self, session: Session, *, is_on: bool = True) -> None:
        """Begin a new log, or go on with that of a training that is resumed; one that is not on leaves it alone."""
        self._log: MLLog | None = None
        self._file = session.folder / FILE
        self._is_running = False
        self._goes_on = False
        self._is_on = is_on and session.ranks.is_first
        if self._is_on and session.is_resumed and self._file.is_file():
            self._goes_on = any(record.key == "run_start" for record in read_mllog(self._file).records)

    def __enter__(self) -> Self:
        if self._is_on and not self._goes_on:
            try:
                self._file.unlink(missing_ok=True)
            except OSError as error:
                raise write_failure(str(self._file), error) from error
            self._log = MLLog(self._file)
            self._event("cache_clear", True)
            self._start("init_start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._is_running:
            self.stop("aborted")
        if self._log is not None:
            self._log.close()
            self._log = None

    def begin(
        self,
        task: Task,
        session: Session,
        device: torch.device,
        optimizer: torch.optim.Optimizer,
        *,
        total_steps: int,
        epochs: int,
        is_over: bool,
    ) -> None:
        """Tell what is trained and how; the run starts here, unless it goes on after `epochs` or is even over."""
        self._is_running = True
        if self._goes_on:
            self._go_on(epochs, is_over)
            return
        settings, ranks = task.settings, session.ranks
        per_node = max(ranks.local_size, 1) if device.type != "cpu" else 0
        together = settings.batch_size * settings.accumulate * ranks.size
        steps = -(-len(task.training) // together)
        facts: dict[str, Any] = {
            "submission_benchmark": session.name,
            "submission_org": "unknown",
            "submission_division": "open",
            "submission_status": "research",
            "submission_platform": _name(device),
            "seed": session.seed,
            "number_of_nodes": ranks.nodes,
            "accelerators_per_node": per_node,
            "global_batch_size": together,
            "gradient_accumulation_steps": settings.accumulate,
            "train_samples": len(task.training),
            "eval_samples": len(task.validation),
            "opt_name": _OPT_NAMES.get(settings.optimizer, settings.optimizer),
            "opt_base_learning_rate": settings.learning_rate,
            "opt_learning_rate_warmup_epochs": settings.warmup_epochs,
            "opt_learning_rate_warmup_steps": round(settings.warmup_epochs * steps),
            "opt_learning_rate_warmup_factor": settings.warmup_factor,
            "opt_learning_rate_decay_boundary_epochs": list(settings.decay_epochs),
            "opt_learning_rate_decay_boundary_steps": [each * steps for each in settings.decay_epochs],
            "opt_learning_rate_decay_factor": list(settings.decay_factors),
            "opt_weight_decay": settings.weight_decay,
            **_in_words_of_deepcam(settings, optimizer, steps, total_steps),
        }
        for key, value in facts.items():
            self._event(key, value)
        if self._log is not None:
            self._log.end("init_stop")
        self._start("run_start")

    def epoch(self, number: int, *, ends: bool = False) -> None:
        """Tell that an epoch begins or ends."""
        if self._log is not None:
            (self._log.end if ends else self._log.start)(f"epoch_{'stop' if ends else 'start'}", None, _at(number))

    def evaluation(self, number: int) -> None:
        """Tell that an evaluation begins."""
        self._start("eval_start", _at(number))

    def evaluated(self, number: int, metric: Metric, scores: Mapping[str, float]) -> None:
        """Tell the score of an evaluation that ends."""
        if metric.mllog_key:
            self._event(metric.mllog_key, scores[metric.name], _at(number))
        if self._log is not None:
            self._log.end("eval_stop", None, _at(number))

    def stop(self, status: str) -> None:
        """Tell how the run ended: `success` or `aborted`."""
        self._is_running = False
        if self._log is not None:
            self._log.end("run_stop", None, {"status": status})

    def _go_on(self, epochs: int, is_over: bool) -> None:
        """Go on with the log of one run: neither that it was stopped stays, nor what is trained once more."""
        log = read_mllog(self._file)
        ends = {record.line for record in log.records if record.key == "run_stop"}
        if ends and is_over:
            return
        again = {record.line for record in log.records if record.metadata.get("epoch_num", 0) > epochs}
        gone = {*ends, *again, *log.damaged}  # a kill can leave half a line
        if gone:
            lines = self._file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            write_atomic(self._file, "".join(line for number, line in enumerate(lines, 1) if number not in gone))
        self._log = MLLog(self._file)

    def _start(self, key: str, metadata: Mapping[str, Any] | None = None) -> None:
        if self._log is not None:
            self._log.start(key, None, metadata)

    def _event(self, key: str, value: Any, metadata: Mapping[str, Any] | None = None) -> None:
        if self._log is not None:
            self._log.event(key, value, metadata)


def _in_words_of_deepcam(
    settings: TrainSettings, optimizer: torch.optim.Optimizer, steps: int, total_steps: int
) -> dict[str, Any]:
    """Return optimizer and schedule under the keys that the closed division of DeepCAM asks for.

    Its warm-up rises from `opt_lr` to that many times as much, or from 0 to `opt_lr` where the factor is 1. A schedule
    that its rules do not know has no key: the committee's checker misses it, while another value would crash it.
    """
    group = optimizer.param_groups[0]
    warm = round(settings.warmup_epochs * steps)
    first = settings.warmup_factor if warm and settings.warmup_factor else 1.0
    scheduler = _SCHEDULERS.get(settings.schedule)
    rate = settings.decay_factors[0] if settings.decay_factors else 1.0
    falls = [rate**number for number in range(1, len(settings.decay_factors) + 1)]
    if not np.allclose(falls, settings.decay_factors):
        scheduler = None
    facts = {
        "gradient_accumulation_frequency": settings.accumulate,
        "batchnorm_group_size": 1,  # each rank has statistics of its own
        "opt_lr": settings.learning_rate * first,
        "opt_betas": list(group.get("betas", ())),
        "opt_eps": group.get("eps"),
        "scheduler_lr_warmup_steps": warm,
        "scheduler_lr_warmup_factor": 1 / first,
    }
    if scheduler is not None:
        facts["scheduler_type"] = scheduler
    if scheduler == "multistep":
        milestones = [each * steps for each in settings.decay_epochs]
        facts |= {"scheduler_milestones": milestones, "scheduler_decay_rate": rate}
    if scheduler == "cosine_annealing":
        facts |= {"scheduler_t_max": total_steps - warm, "scheduler_eta_min": settings.min_learning_rate}
    if settings.optimizer == "lamb":
        facts |= {
            "opt_bias_correction": True,
            "opt_grad_averaging": True,
            "opt_max_grad_norm": settings.clip_norm,
        }
    return facts


def _at(epoch: int) -> dict[str, Any]:
    return {"epoch_num": epoch}


def _name(device: torch.device) -> str:
    if device.type != "cuda":
        return platform.machine()
    import torch

    return torch.cuda.get_device_name(device)
