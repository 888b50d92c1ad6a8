"""Measures what stopping early saves: ASHA beside random search to the last epoch, on one real small training.

Run: python speed/tuning.py [--trials N] [--seeds N]

The training is speed/rig/digits.py, a network of two layers on scikit-learn's digits. Both studies propose the same
trials, seed by seed. Noise is the spread of the best trial of random search when it is trained again from other seeds.
Trials are trained in this process by the engine that studies use, and not as runs: to load torch and scikit-learn for
each of them takes several times as long as to train it.
The goal: the same best accuracy within noise for at most half of the epochs. Finished trials then tell how often
extrapolating their curves would have been right.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig import digits

from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.curves import hindsight
from fairmile.sweeps.tuning.engine import Execute, Outcome, Report, Settings, Trial, TrialRecord
from fairmile.sweeps.tuning.optuna_engine import OptunaEngine

ACCURACY = Objective("accuracy", "higher")
REPEATS = 5


def study(pruner: str, trials: int, seed: int, folder: Path) -> Sequence[TrialRecord]:
    """Return the trials of one study."""
    settings = Settings(
        sampler="random", pruner=pruner, trials=trials, seed=seed, steps=digits.EPOCHS, min_steps=3, reduction=3
    )
    engine = OptunaEngine(folder, digits.SPACE, [ACCURACY], settings)
    engine.work(_execute(seed), at_once=1, worker="here", stop=lambda: False)
    return engine.trials()


def _execute(seed: int) -> Execute:
    def execute(trial: Trial, report: Report) -> Outcome:
        accuracy, why = digits.train(trial.params, report, seed=1000 * seed + trial.number)
        return Outcome("pruned" if why else "done", (accuracy,), why)

    return execute


def best(trials: Sequence[TrialRecord]) -> TrialRecord:
    return max((each for each in trials if each.state == "done"), key=lambda each: each.values[0])


def epochs(trials: Sequence[TrialRecord]) -> int:
    return sum(int(each.curve[-1][0]) for each in trials if each.curve)


def again(params: Mapping[str, Any]) -> list[float]:
    """Return the accuracies of one choice of parameters, trained from other seeds."""
    return [digits.train(params, lambda epoch, accuracy: "", seed=900_000 + place)[0] for place in range(REPEATS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print(f"{given.trials} trials of {digits.EPOCHS} epochs, {given.seeds} seeds: accuracy on {digits.UNSEEN} digits")
    scores: dict[str, list[float]] = {"random": [], "asha": []}
    used = {"random": 0, "asha": 0}
    noise: list[float] = []
    full: list[Sequence[TrialRecord]] = []
    began = time.process_time()
    for seed in range(given.seeds):
        line = f"  seed {seed}:"
        for name, pruner in (("random", ""), ("asha", "asha")):
            with tempfile.TemporaryDirectory() as folder:
                trials = study(pruner, given.trials, seed, Path(folder))
            found = best(trials)
            scores[name].append(found.values[0])
            used[name] += epochs(trials)
            line += f"   {name} best {found.values[0]:.4f}, {epochs(trials):5} epochs"
            if not pruner:
                full.append(trials)
                noise.append(statistics.stdev(again(found.params)))
        print(line, flush=True)
    for name, values in scores.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"  {name:<8} best {statistics.mean(values):.4f} ± {spread:.4f} over seeds, {used[name]:6} epochs")
    lost = statistics.mean(a - b for a, b in zip(scores["random"], scores["asha"], strict=True))
    print(f"  noise: the same parameters from other seeds spread by ± {statistics.mean(noise):.4f}")
    print(
        f"  asha loses {lost:.4f} of accuracy and takes {used['asha'] / used['random']:.2f} of the epochs (goal 0.50)"
    )
    print(f"  {time.process_time() - began:.0f} s of CPU")
    print("how often curves would have been judged rightly, on the full trials of each seed")
    for seed, trials in enumerate(full):
        for each in hindsight(trials, ACCURACY.better, digits.EPOCHS):
            print(
                f"  seed {seed}: {each.method:<14} {each.judged} judged, {each.stopped} stopped, {each.right} rightly, "
                f"{each.wrong} wrongly, {each.missed} missed; {each.steps_saved / each.steps:.0%} of epochs saved"
            )


if __name__ == "__main__":
    main()
