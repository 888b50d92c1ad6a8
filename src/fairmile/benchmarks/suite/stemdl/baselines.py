"""What a network has to beat: the most frequent space group, and trees on profiles that no rotation changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairmile.benchmarks.harness.classical import can_fit, one_core
from fairmile.benchmarks.harness.scores import Score
from fairmile.benchmarks.harness.task import Samples
from fairmile.benchmarks.suite.stemdl.crystals import PATTERSON_POWERS, patterson_waves
from fairmile.benchmarks.suite.stemdl.data import POTENTIAL_PIXELS

Array = np.ndarray[Any, Any]
_RINGS, _SECTORS, _HARMONICS = 16, 24, (2, 3, 4, 6)
_TREES, _CHUNK, _MOST = 200, 512, 20_000
_AROUND, _DAMPING = 5, 1e-3  # pixels of a map, along each side, that decide about the one in the middle


def scores(predicted: Array, groups: Array) -> dict[str, float]:
    """Return the macro F1 over the groups that occur, and the share of right answers."""
    known = np.unique(groups)
    right = [float(np.sum((predicted == each) & (groups == each))) for each in known]
    named = [float(np.sum(predicted == each) + np.sum(groups == each)) for each in known]
    f1 = np.mean([2 * hit / count for hit, count in zip(right, named, strict=True)])
    return {"f1_macro": float(f1), "top1": float(np.mean(predicted == groups))}


def baseline_scores(training: Samples, validation: Samples, groups: Array, seed: int) -> list[Score]:
    """Return what needs no network."""
    numbers = np.random.default_rng(seed).permutation(len(training))[:_MOST]
    train, known, potentials = _read(training, numbers)
    test, _, true = _read(validation, np.arange(len(validation)))
    commonest = np.bincount(known).argmax()
    found = [Score("trivial", "most frequent group", scores(np.full(len(groups), commonest), groups))]
    if true is not None and potentials is not None:
        mean = np.broadcast_to(potentials.mean(0), true.shape)
        found[0] = Score("trivial", found[0].name, {**found[0].values, "potential_r2": potential_r2(mean, true)})
    if can_fit():
        from sklearn.ensemble import ExtraTreesClassifier
        from sklearn.linear_model import LogisticRegression

        centre, spread = train.mean(0), train.std(0) + 1e-6
        with one_core():
            linear = LogisticRegression(max_iter=200).fit((train - centre) / spread, known)
            trees = ExtraTreesClassifier(_TREES, random_state=seed % 2**32).fit(train, known)
            answers = {"linear": linear.predict((test - centre) / spread), "extra trees": trees.predict(test)}
        found += [Score("classical", name, scores(each, groups)) for name, each in answers.items()]
        if true is not None and potentials is not None:
            maps = [_patterson_maps(*each) for each in ((training, numbers), (validation, np.arange(len(validation))))]
            restored = _restored(maps[0], potentials, known, maps[1], answers["extra trees"])
            name = "least squares on Patterson maps"
            found.append(Score("classical", name, {"potential_r2": potential_r2(restored, true)}))
    return found


def _restored(maps: Array, potentials: Array, known: Array, test: Array, groups: Array) -> Array:
    """Return potentials by least squares from the pixels around each in the maps, for each space group apart."""
    found = np.zeros((len(test), *potentials.shape[1:]))
    for group in np.unique(groups):
        learned = _neighbours(maps[known == group])
        if len(learned):
            square = learned.T @ learned + _DAMPING * len(learned) * np.eye(learned.shape[1])
            weights = np.linalg.solve(square, learned.T @ potentials[known == group].ravel())
            found[groups == group] = (_neighbours(test[groups == group]) @ weights).reshape(-1, *found.shape[1:])
    return found


def _neighbours(maps: Array) -> Array:
    """Return for each pixel of maps (samples, projections, powers, 16, 16) those around it, and a constant."""
    reach = _AROUND // 2
    padded = np.pad(maps, ((0, 0), (0, 0), (0, 0), (reach, reach), (reach, reach)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (_AROUND, _AROUND), axis=(3, 4))
    pixels = np.moveaxis(windows, 2, 4).reshape(-1, maps.shape[2] * _AROUND**2)
    return np.concatenate([pixels, np.ones((len(pixels), 1))], axis=1)


def _patterson_maps(samples: Samples, numbers: Array) -> Array:
    """Return Patterson maps (samples, projections, powers, 16, 16), each of unit strength."""
    patterns = np.concatenate(
        [np.asarray(samples.batch(numbers[at : at + _CHUNK])["patterns"]) for at in range(0, len(numbers), _CHUNK)]
    )
    cosines, sines, scattered = patterson_waves(patterns.shape[-1], POTENTIAL_PIXELS)
    maps = []
    for power in PATTERSON_POWERS:
        amplitudes = np.exp((patterns / 10 - 17) * power) * scattered
        each = cosines @ amplitudes @ cosines.T - sines @ amplitudes @ sines.T
        maps.append(each / (np.sqrt(np.square(each).mean((2, 3), keepdims=True)) + 1e-6))
    return np.stack(maps, 2)


def potential_r2(predicted: Array, true: Array) -> float:
    """Return R2 of potentials over all pixels."""
    variance = float(np.square(true - true.mean()).mean())
    return 1 - float(np.square(predicted - true).mean()) / max(variance, 1e-30)


def _read(samples: Samples, numbers: Array) -> tuple[Array, Array, Array | None]:
    """Return profiles, space groups and, where there are any, potentials."""
    chunks = [samples.batch(numbers[at : at + _CHUNK]) for at in range(0, len(numbers), _CHUNK)]
    has_potential = "potential" in chunks[0]
    return (
        np.concatenate([profiles(np.asarray(each["patterns"])) for each in chunks]),
        np.concatenate([np.asarray(each["group"]) for each in chunks]),
        np.concatenate([np.asarray(each["potential"]) for each in chunks]) if has_potential else None,
    )


def profiles(patterns: Array) -> Array:
    """Return means over rings, and the strength of angular harmonics in them: no rotation changes either."""
    pixels = patterns.shape[-1]
    line = np.arange(pixels) - pixels // 2
    radius, angle = np.hypot(line[:, None], line), np.arctan2(line[:, None], line)
    ring = np.minimum((radius * 2 * _RINGS / pixels).astype(int), _RINGS)
    sector = ((angle + np.pi) / (2 * np.pi) * _SECTORS).astype(int) % _SECTORS
    cell = np.where(ring < _RINGS, ring * _SECTORS + sector, _RINGS * _SECTORS).ravel()
    places = np.zeros((len(cell), _RINGS * _SECTORS + 1), np.float32)
    places[np.arange(len(cell)), cell] = 1
    places /= np.maximum(places.sum(0), 1)
    polar = (patterns.reshape(-1, pixels**2) @ places)[:, :-1].reshape(-1, _RINGS, _SECTORS)
    harmonics = np.abs(np.fft.rfft(polar, axis=2))[:, :, list(_HARMONICS)] / _SECTORS
    return np.asarray(np.concatenate([polar.mean(2, keepdims=True), harmonics], axis=2).reshape(len(patterns), -1))
