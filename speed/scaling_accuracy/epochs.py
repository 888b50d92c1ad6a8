"""Epoch times of published trainings at a larger scale, predicted from the smaller one of the same machine.

The smaller run gives the work of one sample, after its communication and waiting are taken off; the larger run has the
same work in other portions. Nothing of the larger run but its size is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from scaling_accuracy.fitting import fit_constants
from scaling_accuracy.published import Submission

from fairmile.base.errors import UsageError
from fairmile.predict.memory.sharding import DDP_BUCKET_BYTES
from fairmile.predict.scaling.data_parallel import Effects
from fairmile.predict.scaling.step import TwoLevelLinks

# Parameters of the benchmarks' reference models, in millions, reduced in fp32.
GRADIENT_MILLIONS: Mapping[str, float] = {"cosmoflow": 8.9, "deepcam": 56.5, "oc20": 10.7, "openfold": 93.0}
# Accelerators of a node, adapters of a node, bytes per second of an adapter; nominal figures of the machines.
MACHINES: Mapping[str, tuple[int, int, float]] = {
    "coriknl": (1, 1, 10e9),
    "corigpu": (8, 4, 12.5e9),
    "daint": (1, 1, 10e9),
    "piz": (1, 1, 10e9),
    "dgxa100": (8, 8, 25e9),
    "eos": (8, 8, 50e9),
    "juwelsbooster": (4, 4, 25e9),
    "horeka": (4, 2, 25e9),
    "longhorn": (4, 1, 12.5e9),
    "perlmutter": (4, 4, 25e9),
    "abci": (4, 2, 12.5e9),
    "fugaku": (1, 1, 6.8e9),
}
_UNKNOWN_MACHINE = (4, 1, 12.5e9)
_NETWORK_EFFICIENCY = 0.8
_UNTAUGHT = Effects(straggling=0.02, half_batch=1.0)  # guesses before any pair was looked at
_INSIDE_BYTES_PER_S = 100e9
_BACKWARD_SHARE = 0.6


@dataclass(frozen=True)
class Pair:
    """Two submissions of one machine that differ in size."""

    small: Submission
    large: Submission

    @property
    def name(self) -> str:
        one, other = self.small, self.large
        return f"{one.benchmark} {one.round} {one.submitter} {one.family} {one.instance} to {other.instance}"


def find_pairs(rows: Sequence[Submission], *, strict: bool = True) -> list[Pair]:
    """Return each run with the next larger one of the same benchmark, machine, division and framework.

    They are also of the same submitter and round, unless `strict` is off: between those the program and the rules
    change. A weak-scaling row counts where its name says how many accelerators train one model; strong and weak stay
    apart, since many trainings at once share the file system. Entries repeated by later rounds count once.
    """
    groups: dict[tuple[str, ...], dict[int, Submission]] = {}
    for row in rows:
        if row.instance is None:
            continue
        key: tuple[str, ...] = (row.benchmark, row.scaling, row.family, row.division, row.framework)
        if strict:
            key += (row.submitter.lower(), row.round)
        groups.setdefault(key, {}).setdefault(row.instance, row)
    pairs = []
    for found in groups.values():
        pairs += [Pair(found[one], found[other]) for one, other in pairwise(sorted(found))]
    return pairs


def predict_epoch_s(pair: Pair, effects: Effects | None = None) -> float:
    """Return the epoch time of the larger run."""
    effects = effects or Effects()
    small, large = pair.small, pair.large
    if small.instance is None or large.instance is None or not small.epoch_s:
        raise UsageError(f"{pair.name} does not say how large its runs are or how long they took")
    batches = [row.global_batch / row.instance for row in (small, large) if row.instance]
    steps = [row.samples / row.global_batch for row in (small, large)]
    work_s = _work_s(small, small.epoch_s / steps[0], effects)
    half = effects.half_batch
    work_s *= (batches[1] + half) / (batches[0] + half)
    return steps[1] * _step_s(large, work_s, effects)


def _step_s(row: Submission, work_s: float, effects: Effects) -> float:
    assert row.instance is not None
    whole_s, last_s = _communication_s(row)
    exposed_s = max(last_s, whole_s - effects.overlap * _BACKWARD_SHARE * work_s)
    return work_s * (1 + effects.straggling * math.log(row.instance)) + exposed_s


def _work_s(row: Submission, step_s: float, effects: Effects) -> float:
    """Return the work behind a measured step: the inverse of `_step_s`, by halving."""
    low, high = 0.0, step_s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _step_s(row, middle, effects) < step_s else (low, middle)
    return high


def _communication_s(row: Submission) -> tuple[float, float]:
    """Return the time of reducing all gradients, and of the last bucket."""
    assert row.instance is not None
    per_node, rails, rate = MACHINES.get(row.family, _UNKNOWN_MACHINE)
    model = TwoLevelLinks(_INSIDE_BYTES_PER_S, rails * rate * _NETWORK_EFFICIENCY)
    size = GRADIENT_MILLIONS.get(row.benchmark, 50.0) * 4e6
    buckets = max(1, math.ceil(size / DDP_BUCKET_BYTES))
    nodes = max(1, row.instance // per_node)
    bucket_s = model.time_s("all_reduce", size / buckets, row.instance, nodes=nodes)
    return bucket_s * buckets, bucket_s


def learn_effects(pairs: Sequence[Pair], usual: Effects | None = None) -> Effects:
    """Return how much ranks wait for each other and how small batches slow a device, as the pairs show it.

    To be fair to a pair, leave it out of those that teach.
    """
    start = usual or _UNTAUGHT

    def predict_s(values: Sequence[float]) -> list[float]:
        effects = replace(start, straggling=values[0], half_batch=values[1])
        return [predict_epoch_s(pair, effects) for pair in pairs]

    found = fit_constants(
        [start.straggling, start.half_batch],
        [0.7, 0.7],
        predict_s,
        [pair.large.epoch_s for pair in pairs],
    )
    return replace(start, straggling=found[0], half_batch=found[1])
