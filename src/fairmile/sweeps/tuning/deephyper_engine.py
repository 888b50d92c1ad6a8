"""DeepHyper as the engine of a study: its centralised Bayesian optimisation asks, and we execute.

The search is used through `ask` and `tell` instead of its evaluators: those overshoot a number of trials, cannot be
stopped from outside, and know what was done before from a table of their own only.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairmile.base.errors import MissingExtra
from fairmile.runs.record.values import Value
from fairmile.sweeps.tuning.engine import Execute, Outcome, Trial
from fairmile.sweeps.tuning.rules import Decide, Rules, together
from fairmile.sweeps.tuning.search_space import Dimension
from fairmile.sweeps.tuning.trial_log import Entry, RecordedEngine, Records

# DeepHyper's TPE does not work; `tpe`, which stands in the settings where nothing is said, is its own default here, a
# forest of extra trees.
SURROGATES = {"random": "DUMMY", "tpe": "ET", "gp": "GP"}


class DeepHyperEngine(RecordedEngine):
    """Chooses trials by DeepHyper; see Engine.

    A pruned trial counts with the last value that it reached, a failed one as a failure, which DeepHyper avoids.
    """

    name = "deephyper"
    samplers = tuple(SURROGATES)
    # Its median stopper is left out: until enough trials compete it compares the first values of one with the last
    # ones of others (DeepHyper 0.13.2).
    pruners = ("asha",)

    def work(self, execute: Execute, *, at_once: int, worker: str, stop: Callable[[], bool]) -> None:
        """Ask, execute and tell, `at_once` trials together, until the budget is spent or `stop` says so."""
        with self.records.opened():
            if not stop() and not self.records.is_spent():
                self._work(execute, at_once, worker, stop)

    def _work(self, execute: Execute, at_once: int, worker: str, stop: Callable[[], bool]) -> None:
        asking = threading.Lock()
        search = _Search(self.records, self.records.rules.folder)
        stoppers = _Stoppers(self.records.rules, self.records.entries())

        def step() -> bool:
            with asking:
                if stop() or self.records.is_spent():
                    return False
                trial, proposal = self._begin(search, worker)
            outcome = self.records.carry_out(trial, execute, stoppers.decide(trial.number))
            with asking:
                search.tell(proposal, outcome)
            return True

        together(step, at_once)

    def _begin(self, search: _Search, worker: str) -> tuple[Trial, Mapping[str, Value]]:
        lost = next(iter(self.records.to_repeat()), None)
        if lost is not None:
            proposal = lost.proposal
            return self.records.begin(lost.params, worker, retry_of=lost.number, proposal=proposal), proposal
        proposal = search.ask()
        return self.records.begin(search.params(proposal), worker, proposal=proposal), proposal


class _Search:
    """DeepHyper's search over a space in which every dimension has a value; those that do not apply are left out."""

    def __init__(self, records: Records, folder: Path) -> None:
        with _imported():
            from deephyper.hpo import CBO, HpProblem
        self._space = records.rules.space
        self._objectives = records.rules.objectives
        self._pending: list[dict[str, Value]] = []
        problem = HpProblem()
        for place, each in enumerate(self._space.dimensions):
            problem.add_hyperparameter(_range(each), f"p{place}")
        entries, seed = records.entries(), records.rules.settings.seed
        own = None if seed is None else random.Random(f"{seed}/{len(entries)}").getrandbits(31)
        self._search = CBO(
            problem,
            random_state=own,
            log_dir=str(folder),
            checkpoint_history_to_csv=False,
            surrogate_model=SURROGATES[records.rules.settings.sampler],
            acq_optimizer="sampling",  # the default takes two seconds of CPU for each trial
        )
        self._tell([(entry.proposal, self._objective(entry)) for entry in entries if _is_over(entry)])

    def ask(self) -> dict[str, Value]:
        """Return a proposal that is not under way, where there is another one; DeepHyper would repeat itself."""
        proposals = self._ask(1)
        if proposals[0] in self._pending:
            proposals = self._ask(len(self._pending) + 1)
        proposal = next((each for each in proposals if each not in self._pending), proposals[0])
        self._pending.append(proposal)
        return proposal

    def _ask(self, count: int) -> list[dict[str, Value]]:
        proposals = self._search.ask(count)
        return [{name: _plain(value) for name, value in each.items()} for each in proposals]

    def tell(self, proposal: Mapping[str, Value], outcome: Outcome) -> None:
        if proposal in self._pending:
            self._pending.remove(dict(proposal))
        if outcome.state != "running":
            self._tell([(proposal, self._objective(outcome))])

    def params(self, proposal: Mapping[str, Value]) -> dict[str, Value]:
        """Return the parameters that a proposal of DeepHyper stands for."""
        places = {each.name: f"p{place}" for place, each in enumerate(self._space.dimensions)}
        return self._space.draw(lambda each: _value(each, proposal[places[each.name]]))

    def _tell(self, results: list[tuple[Mapping[str, Value], Any]]) -> None:
        if results:
            self._search.tell(results)

    def _objective(self, ended: Outcome | Entry) -> Any:
        """Return what DeepHyper is to make as large as it can."""
        if ended.state == "failed" or len(ended.values) != len(self._objectives):
            return "F_failed"
        pairs = zip(self._objectives, ended.values, strict=True)
        values = tuple(value if each.better == "higher" else -value for each, value in pairs)
        return values if len(values) > 1 else values[0]


def _is_over(entry: Entry) -> bool:
    return entry.state != "running" and not entry.lost and bool(entry.proposal)


class _Stoppers:
    """DeepHyper's stoppers, one for each trial, which compare through a storage in memory."""

    def __init__(self, rules: Rules, entries: Sequence[Entry]) -> None:
        self._rules = rules
        self._sign = 1 if rules.objectives[0].better == "higher" else -1
        self._made: Any = None
        settings = rules.settings
        if not settings.pruner:
            return
        with _imported():
            from deephyper.evaluator.storage import MemoryStorage
            from deephyper.stopper import SuccessiveHalvingStopper
        most = settings.steps or 10**9  # we never ask at the last step
        self._made = SuccessiveHalvingStopper(most, settings.first_rung or 1, settings.reduction)
        self._storage = MemoryStorage()
        self._storage.connect()
        self._study = self._storage.create_new_search()
        self._lock = threading.Lock()
        for entry in entries:  # what earlier trials reached is what the next ones are measured by
            decide = self.decide(entry.number)
            for step, value in entry.record().curve:
                decide(step, value)

    def decide(self, number: int) -> Decide:
        """Return what judges the values of one trial."""
        if self._made is None:
            return lambda step, value: ""
        with self._lock:
            stopper = copy.deepcopy(self._made)
            stopper.job = SimpleNamespace(id=self._storage.create_new_job(self._study), storage=self._storage)

        def decide(step: float, value: float) -> str:
            with self._lock:
                stopper.observe(step, self._sign * value)
                if not stopper.stop():
                    return ""
            return self._rules.weak(step, value)

        return decide


def _range(each: Dimension) -> Any:
    """Return a dimension in DeepHyper's words: choices and steps by their places, since it knows no others."""
    if each.kind == "choice":
        return [f"c{place}" for place in range(len(each.choices))]
    if each.step is not None and (each.kind == "uniform" or each.step != 1):
        return (0, round((each.high - each.low) / each.step))
    ends = (int(each.low), int(each.high)) if each.kind == "integer" else (float(each.low), float(each.high))
    return (*ends, "log-uniform") if each.log else ends


def _value(each: Dimension, proposed: Value) -> Value:
    if each.kind == "choice":
        return each.choices[int(str(proposed)[1:])]
    assert isinstance(proposed, (int, float))
    if each.step is not None and (each.kind == "uniform" or each.step != 1):
        value = each.low + proposed * each.step
        return int(value) if each.kind == "integer" else value
    return int(proposed) if each.kind == "integer" else float(proposed)


def _plain(value: Any) -> Value:
    """Return a value of NumPy's as Python's."""
    plain: Value = value.item() if hasattr(value, "item") else value
    return str(plain) if isinstance(plain, str) else plain


@contextmanager
def _imported() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtra("the engine deephyper needs DeepHyper", "deephyper") from error
