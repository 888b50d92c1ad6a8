"""The validation data of a benchmark as its model takes it, and the scores of any function in place of the model."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.loader import Loader
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Task
from fairmile.benchmarks.program import PROGRAM, load

Array = np.ndarray[Any, Any]
Compute = Callable[[Mapping[str, Array]], Sequence[Array]]
_CPU = torch.device("cpu")


class _Reached(BaseException):
    """A benchmark's program has its task, and needs to do nothing more."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task


@dataclass(frozen=True)
class Validation:
    """The validation samples of a task, and how a function of arrays is scored on them."""

    task: Task
    inputs: Mapping[str, Array]  # of the first batch, by the names of the model's arguments
    answer: Any  # of the untrained model for them, in whose form outputs are handed to the task
    is_derived: bool  # the task takes derivatives of the model, which a function of arrays does not have

    def build(self) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """Return an untrained model of the task, and inputs of it."""
        return self.task.model(), tuple(torch.from_numpy(np.array(each)) for each in self.inputs.values())

    def scores(self, compute: Compute) -> dict[str, float]:
        """Return the scores of a function that computes the outputs of the model; none where they need derivatives."""
        if self.is_derived:
            return {}
        return _evaluate(self.task, _InPlace(compute, list(self.inputs), self.answer))


def open_validation(
    folder: str, params: Mapping[str, Any], data: str, seed: int, environ: Mapping[str, str] = os.environ
) -> Validation:
    """Return the validation data that a run of the benchmark in a folder has, made again if it was made."""
    session = Session.of(Path(folder).name, environ, Path.cwd())
    given = Path(data) if data else None

    def leave(task: Task) -> None:
        raise _Reached(task)

    asked = {**params, "work": "inference", "checkpoint": ""}
    fields: dict[str, Any] = {"params": asked, "seed": seed, "data": given, "is_resumed": False, "ranks": Ranks.of({})}
    own = dataclasses.replace(session, **fields, on_task=leave)
    # What the program prints on its way to its task is of no use here.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            load(Path(folder), PROGRAM).run(own)
        except _Reached as reached:
            return _look(reached.task)
    raise UsageError(f"the benchmark {session.name} trains nothing with these parameters")


def _look(task: Task) -> Validation:
    """Return the first batch as an untrained model of the task takes it, and the form of its answer."""
    torch.manual_seed(0)
    model = task.model().eval()
    taken: dict[str, Array] = {}
    answers: list[Any] = []
    derived: list[bool] = []

    def see(module: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], answer: Any) -> None:
        if not answers:
            values = {**dict(zip(_names(module, len(arguments)), arguments, strict=True)), **named}
            taken.update(
                {name: each.detach().numpy() for name, each in values.items() if isinstance(each, torch.Tensor)}
            )
            derived.append(any(isinstance(each, torch.Tensor) and each.requires_grad for each in values.values()))
            answers.append(answer)

    hook = model.register_forward_hook(see, with_kwargs=True)
    with torch.no_grad():
        task.predict(model, next(_loader(task).epoch(0)))
    hook.remove()
    return Validation(task, taken, answers[0], derived[0])


def _names(module: torch.nn.Module, count: int) -> list[str]:
    """Return names of the first arguments of a module, of those that it takes as `*others` by number."""
    places = inspect.signature(module.forward).parameters.values()
    plain = [each.name for each in places if each.kind is each.POSITIONAL_OR_KEYWORD][:count]
    return [*plain, *(f"input_{number}" for number in range(len(plain), count))]


def _loader(task: Task) -> Loader:
    settings = task.settings
    size = settings.eval_batch_size or settings.batch_size
    return Loader(task.validation, batch_size=size, device=_CPU, ranks=Ranks.of({}), seed=0, shuffle=False, workers=0)


def _evaluate(task: Task, model: torch.nn.Module) -> dict[str, float]:
    loader = _loader(task)
    kept: dict[str, list[Array]] = {}
    with torch.no_grad():
        for batch in loader.epoch(0):
            for name, each in task.predict(model, batch).items():
                kept.setdefault(name, []).append(each.numpy())
    outputs = {name: np.concatenate(parts)[: loader.own] for name, parts in kept.items()}
    return {name: float(value) for name, value in task.scores(outputs).items()}


class _InPlace(torch.nn.Module):
    """A function of arrays that a task calls as if it were its model."""

    def __init__(self, compute: Compute, names: Sequence[str], answer: Any) -> None:
        super().__init__()
        self._compute, self._names, self._answer = compute, names, answer

    def forward(self, *arguments: torch.Tensor, **named: torch.Tensor) -> Any:
        values = {**dict(zip(self._names, arguments, strict=False)), **named}
        outputs = self._compute({name: values[name].numpy() for name in self._names})
        return _in_form(self._answer, iter([torch.from_numpy(np.array(each)) for each in outputs]))


def _in_form(answer: Any, outputs: Iterator[torch.Tensor]) -> Any:
    """Return outputs one after the other in the nested form of another answer."""
    if isinstance(answer, Mapping):
        return {name: _in_form(each, outputs) for name, each in answer.items()}
    if isinstance(answer, list | tuple):
        return [_in_form(each, outputs) for each in answer]
    return next(outputs)
