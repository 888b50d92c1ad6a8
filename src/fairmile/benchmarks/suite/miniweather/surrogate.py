"""What stands in for the microphysics of a cell: samples to learn from, scaling, and the forward pass in NumPy."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.base.files import write_atomic
from fairmile.benchmarks.suite.miniweather.archive import dataset, opened, written
from fairmile.benchmarks.suite.miniweather.kessler import CP, LATENT_HEAT, Cells, pressure_of, saturation

Array = np.ndarray[Any, Any]
Target = Literal["increments", "outputs"]
Features = Literal["excess", "raw"]
INPUTS = ("temperature", "dry", "vapour", "cloud", "rain")
OUTPUTS = ("temperature", "vapour", "cloud", "rain")
_VAPOUR, _CLOUD, _RAIN = 2, 3, 4
_KEPT = [0, _VAPOUR, _CLOUD, _RAIN]  # of the inputs, what the outputs are before the step
SLOPE = 0.1  # of LeakyReLU below zero
_CHANGE = 1e-9  # kg/m³ of water in a step that make a cell active
_SPREAD = 5.0  # of water, most values of which lie near zero: from 0 to 1 one training of six ends far from the others
_NOTHING = 1e-9  # kg/m³ of cloud and rain that count as none


@dataclass(frozen=True)
class CellSamples:
    """Cells before a step of microphysics, each with the one above it, and after it."""

    inputs: Array  # (n, 5, 2) float32
    outputs: Array  # (n, 4) float32

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def own(self) -> Array:
        """The cells themselves, (n, 5)."""
        return self.inputs[:, :, 0]

    @property
    def before(self) -> Array:
        """The four outputs as they are before the step."""
        return self.own[:, _KEPT]

    def write(self, file: Path, **attributes: Any) -> None:
        """Write them in the published schema."""
        with written(file) as handle:
            handle.create_dataset("inputs", data=self.inputs.astype(np.float32))
            handle.create_dataset("outputs", data=self.outputs.astype(np.float32))
            handle.attrs.update(attributes)

    @classmethod
    def read(cls, file: Path) -> CellSamples:
        """Read samples in the published schema, HDF5 or NetCDF-4."""
        with opened(file) as handle:
            inputs, outputs = dataset(handle, "inputs", file), dataset(handle, "outputs", file)
            for name, array, tail in (("inputs", inputs, (5, 2)), ("outputs", outputs, (4,))):
                if array.shape[1:] != tail or array.dtype.kind != "f":
                    wanted = ", ".join(map(str, ("n", *tail)))
                    raise UsageError(f"{file}: {name} is {array.shape} of {array.dtype}, expected ({wanted}) of floats")
            if len(inputs) != len(outputs) or len(inputs) < 10:
                raise UsageError(f"{file}: {len(inputs)} inputs do not fit {len(outputs)} outputs, at least 10 of each")
            samples = cls(inputs[:].astype(np.float32), outputs[:].astype(np.float32))
        for name, values in (("inputs", samples.inputs), ("outputs", samples.outputs)):
            if not np.isfinite(values).all():
                raise UsageError(f"{file}: {name} holds values that are not finite numbers")
        return samples

    def split(self, share: float, seed: int) -> tuple[CellSamples, CellSamples]:
        """Return what is learned from and what is only tested with."""
        if not 0 < share < 1:
            raise UsageError(f"parameter test_share: expected a number between 0 and 1, found {share}")
        order = np.random.default_rng(seed).permutation(len(self))
        cut = max(int(len(self) * share), 1)
        test, train = np.sort(order[:cut]), np.sort(order[cut:])
        return CellSamples(self.inputs[train], self.outputs[train]), CellSamples(self.inputs[test], self.outputs[test])


def sample(
    snapshots: Sequence[Array], dt_s: float, microphysics: Callable[[Cells, float], Cells], most: int, seed: int
) -> tuple[CellSamples, int]:
    """Return cells of snapshots, each (5, z, x), and how many are active: half of them, unless there are too few.

    Active is where water changes its state. Of each snapshot as many are taken as of every other, as far as it has
    so many.
    """
    draw = np.random.default_rng(seed)
    chosen: dict[bool, list[tuple[Array, Array]]] = {True: [], False: []}
    for snapshot in snapshots:
        cells = Cells(*snapshot)
        after = microphysics(cells, dt_s)
        above = np.concatenate([snapshot[:, 1:], snapshot[:, -1:]], axis=1)
        inputs = np.stack([snapshot, above], axis=-1).reshape(5, -1, 2).transpose(1, 0, 2)
        outputs = np.stack([after.temperature, after.vapour, after.cloud, after.rain]).reshape(4, -1).T
        is_active = (np.abs(outputs - inputs[:, _KEPT, 0])[:, 1:] > _CHANGE).any(axis=1)
        for kind, rows in ((True, np.flatnonzero(is_active)), (False, np.flatnonzero(~is_active))):
            chosen[kind].append((inputs[rows], outputs[rows]))
    active = sum(len(each) for each, _ in chosen[True])
    if active == 0:
        raise UsageError("no cell of the simulation is active: nothing condensed", hint="make storm_s longer")
    half = min(active, most // 2)
    parts = []
    for kind in (True, False):
        inputs, outputs = (np.concatenate([pair[at] for pair in chosen[kind]]) for at in (0, 1))
        rows = np.sort(draw.permutation(len(inputs))[:half])
        parts.append((inputs[rows], outputs[rows]))
    both = [np.concatenate([part[at] for part in parts]).astype(np.float32) for at in (0, 1)]
    return CellSamples(both[0], both[1]), half


# Scaling and scores


@dataclass(frozen=True)
class Scaling:
    """How physical values become those of the network: by smallest and largest value of the training data.

    With `excess` in place of the vapour stands how much of it is above saturation, in units of the most cloud there
    is and cut off where no cloud could make up for it; zero stays zero, for there everything changes. Ten units cannot
    find that out of temperature, density and vapour alone.
    """

    input_low: Array  # (5,)
    input_span: Array
    output_low: Array  # (4,) of the outputs: for the score
    output_span: Array
    target_low: Array  # of what the network predicts
    target_span: Array
    target: Target
    features: Features

    @classmethod
    def of(cls, samples: CellSamples, target: Target, features: Features) -> Scaling:
        """Return the scaling that training data give; increments keep zero where it is and get a deviation of 1."""
        own, after = samples.own.astype(np.float64), samples.outputs.astype(np.float64)
        input_low, input_span = _range(own)
        if features == "excess":
            input_low[_VAPOUR], input_span[_VAPOUR] = 0.0, max(float(own[:, _CLOUD].max()), 1e-6)
            input_span[_VAPOUR:] /= _SPREAD
        low, span = _range(after)
        if target == "increments":
            size = (after - samples.before).std(axis=0)
            low, span = np.zeros(4), np.where(size > 0, size, 1.0)
        return cls(input_low, input_span, *_range(after), low, span, target, features)

    def scaled_inputs(self, cells: Cells, excess: Array | None = None) -> Array:
        """Return flat cells as the network sees them, (5, n) in single precision."""
        scaled = np.empty((len(INPUTS), cells.dry.size), np.float32)
        for at, values in enumerate(cells):
            seen = values
            if self.features == "excess" and at == _VAPOUR:
                seen = np.maximum(excess_of(cells) if excess is None else excess, -_SPREAD * self.input_span[at])
            np.multiply(seen - self.input_low[at], 1 / self.input_span[at], out=scaled[at], casting="same_kind")
        return scaled

    def scaled_targets(self, samples: CellSamples) -> Array:
        """Return what the network is to predict, (n, 4)."""
        outputs = samples.outputs.astype(np.float64)
        wanted = outputs - samples.before if self.target == "increments" else outputs
        scaled: Array = (wanted - self.target_low) / self.target_span
        return scaled

    def change(self, at: int, predicted: Array, before: Array) -> Array:
        """Return by how much one output changes, of what the network predicts for cells that are `before` the step."""
        change: Array = predicted * self.target_span[at]
        if self.target == "outputs":
            change += self.target_low[at] - before
        return change


def excess_of(cells: Cells) -> Array:
    """Return the density of vapour above that of saturated air, below zero where there is less."""
    excess: Array = cells.vapour - cells.dry * saturation(cells.temperature, pressure_of(cells))
    return excess


def _range(values: Array) -> tuple[Array, Array]:
    low, high = values.min(axis=0), values.max(axis=0)
    return low, np.where(high > low, high - low, 1.0)


def physical(scaling: Scaling, predicted: Array, before: Array) -> Array:
    """Return the outputs, (n, 4), that predictions of a network mean for cells that are `before` the step."""
    changes = [scaling.change(at, predicted[:, at].astype(np.float64), before[:, at]) for at in range(len(OUTPUTS))]
    outputs: Array = before + np.stack(changes, axis=1)
    return outputs


def score(scaling: Scaling, samples: CellSamples, outputs: Array) -> dict[str, float]:
    """Return the scaled mean squared error, R² of each output, and its skill: what is better than no change at all.

    Skill is 1 for perfect, 0 for as good as output = input, below 0 for worse.
    """
    truth = samples.outputs.astype(np.float64)
    wrong = (outputs - truth) ** 2
    still = (samples.before - truth) ** 2
    about = (truth - truth.mean(axis=0)) ** 2
    scores = {"mse": float((wrong / scaling.output_span**2).mean())}
    for at, name in enumerate(OUTPUTS):
        scores[f"r2_{name}"] = _one_less(wrong[:, at], about[:, at])
    for at, name in enumerate(OUTPUTS):
        scores[f"skill_{name}"] = _one_less(wrong[:, at], still[:, at])
    return scores


def _one_less(part: Array, whole: Array) -> float:
    total = float(whole.sum())
    return 1 - float(part.sum()) / total if total > 0 else 0.0


# Stand-ins


@dataclass(frozen=True)
class Surrogate:
    """A linear map or a network with one hidden layer, in place of microphysics."""

    name: str
    weights: tuple[tuple[Array, Array], ...]  # (out, in) and (out,) of each layer, in single precision
    scaling: Scaling
    dt_s: float  # of the step that it learned
    rules: bool = True

    def predict(self, own: Array) -> Array:
        """Return the outputs of cells, (n, 5), as the network gives them, (n, 4)."""
        cells = Cells(*own.astype(np.float64).T)
        predicted = self._forward(self.scaling.scaled_inputs(cells))
        return physical(self.scaling, predicted.T, own[:, _KEPT])

    def __call__(self, cells: Cells, dt_s: float) -> Cells:
        """Return cells after a time step, with no water below zero.

        With `rules` a cell that is neither saturated nor holds water stays as it is; elsewhere vapour is what is left
        of all water, and the temperature what latent heat makes of it.
        """
        if abs(dt_s - self.dt_s) > 0.01 * self.dt_s:
            raise UsageError(
                f"this surrogate learned steps of {self.dt_s:.4g} s, not of {dt_s:.4g} s",
                hint="train and run it with the same nx, nz, courant and physics_steps",
            )
        shape = cells.dry.shape
        flat = Cells(*(each.ravel() for each in cells))
        excess = excess_of(flat) if self.rules or self.scaling.features == "excess" else None
        predicted = self._forward(self.scaling.scaled_inputs(flat, excess))
        change = self.scaling.change
        if excess is None or not self.rules:
            temperature, vapour, cloud, rain = (
                flat[at] + change(n, predicted[n], flat[at]) for n, at in enumerate(_KEPT)
            )
            vapour, cloud, rain = (np.maximum(each, 0) for each in (vapour, cloud, rain))
        else:
            vapour, cloud, rain = _kept(
                flat, excess, change(2, predicted[2], flat.cloud), change(3, predicted[3], flat.rain)
            )
            temperature = flat.temperature + (LATENT_HEAT / CP) * (flat.vapour - vapour) / flat.dry
        return Cells(*(each.reshape(shape) for each in (temperature, flat.dry, vapour, cloud, rain)))

    def _forward(self, x: Array) -> Array:
        for number, (weight, bias) in enumerate(self.weights):
            if number:
                np.maximum(x, np.float32(SLOPE) * x, out=x)
            x = weight @ x
            x += bias[:, None]
        return x

    @property
    def parameters(self) -> int:
        return sum(weight.size + bias.size for weight, bias in self.weights)

    def arrays(self, prefix: str) -> dict[str, Array]:
        """Return its weights by name."""
        return {
            f"{prefix}.{part}{number}": values
            for number, layer in enumerate(self.weights)
            for part, values in zip(("weight", "bias"), layer, strict=True)
        }


def _kept(cells: Cells, excess: Array, cloud_change: Array, rain_change: Array) -> tuple[Array, Array, Array]:
    """Return vapour, cloud and rain after changes, so that quiet cells stay as they are and all water is kept."""
    condensed = cells.cloud + cells.rain
    is_quiet = (excess < 0) & (condensed <= _NOTHING)
    cloud_change[is_quiet] = 0
    rain_change[is_quiet] = 0
    cloud, rain = np.maximum(cells.cloud + cloud_change, 0), np.maximum(cells.rain + rain_change, 0)
    water = cells.vapour + condensed
    vapour = water - cloud - rain
    if (vapour < 0).any():  # there is no more to condense than that
        share = np.minimum(1, water / np.maximum(cloud + rain, 1e-300))
        cloud, rain = cloud * share, rain * share
        vapour = np.maximum(water - cloud - rain, 0)
    return vapour, cloud, rain


def linear(samples: CellSamples, scaling: Scaling, dt_s: float, ridge: float = 1e-6) -> Surrogate:
    """Return the best linear map of scaled inputs, by ridge regression."""
    x = scaling.scaled_inputs(Cells(*samples.own.astype(np.float64).T)).T.astype(np.float64)
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    solution = np.linalg.solve(x.T @ x + ridge * len(x) * np.eye(x.shape[1]), x.T @ scaling.scaled_targets(samples))
    layer = (np.ascontiguousarray(solution[:-1].T, np.float32), solution[-1].astype(np.float32))
    return Surrogate("linear", (layer,), scaling, dt_s)


_SCALES = ("input_low", "input_span", "output_low", "output_span", "target_low", "target_span")


def save(file: Path, surrogates: Sequence[Surrogate], scores: Mapping[str, Mapping[str, float]]) -> None:
    """Write surrogates that share a scaling, with what they reached, as a NumPy archive."""
    scaling = surrogates[0].scaling
    about = {
        "names": [each.name for each in surrogates],
        "target": scaling.target,
        "features": scaling.features,
        "dt_s": surrogates[0].dt_s,
        "scores": {name: dict(each) for name, each in scores.items()},
    }
    arrays = {name: getattr(scaling, name) for name in _SCALES}
    for each in surrogates:
        arrays |= each.arrays(each.name)
    stream = io.BytesIO()
    np.savez(stream, about=np.array(json.dumps(about)), **arrays)
    write_atomic(file, stream.getvalue())


def load(file: Path, *, rules: bool) -> tuple[list[Surrogate], dict[str, dict[str, float]]]:
    """Read what `save` wrote."""
    if not file.is_file():
        raise NotFound(f"there is no surrogate at {file}")
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            about = json.loads(str(archive["about"]))
            scales = {name: archive[name] for name in _SCALES}
            scaling = Scaling(**scales, target=about["target"], features=about["features"])
            surrogates = []
            for name in about["names"]:
                layers = range(sum(key.startswith(f"{name}.weight") for key in archive))
                weights = tuple((archive[f"{name}.weight{n}"], archive[f"{name}.bias{n}"]) for n in layers)
                surrogates.append(Surrogate(name, weights, scaling, float(about["dt_s"]), rules))
            scores: dict[str, dict[str, float]] = about["scores"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise Integrity(f"{file} cannot be read as a surrogate: {error}", hint="make it again: step=train") from error
    return surrogates, scores
