"""Learning curves continued: what a trial will have reached at its last step, and whether to stop it for that.

A method is made from the curves of finished trials and predicts the rest of another one. Whoever has a better one
registers it under the entry points `fairmile.extrapolations`: a callable that takes finished curves and returns a
`Method`.

    watch = Extrapolation("least-squares")
    watch.stop_early(finished, curve, best=0.97, better="higher", steps=30)  # why to stop, or ""
    hindsight(finished, "higher", 30)  # how often each method would have been right
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from fairmile.base.errors import MissingExtra
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.registry import Plugin, Registry
from fairmile.sweeps.model import Better
from fairmile.sweeps.tuning.engine import Curve, Settings, StopEarly, TrialRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

INSIDE = 0.9  # the share of outcomes that shall lie between `low` and `high`
FEWEST_CURVES = 9  # among fewer errors no rank bounds nine of ten further ones


class Prediction(NamedTuple):
    """An expected value, and the ends between which nine of ten outcomes lie."""

    value: float
    low: float
    high: float


UNKNOWN = Prediction(math.nan, -math.inf, math.inf)


class Method(Protocol):
    """Continues curves; what it cannot say anything about is UNKNOWN."""

    def predict(self, curve: Curve, at_step: float) -> Prediction: ...


METHODS: Registry[Callable[[Sequence[Curve]], Method]] = Registry(
    "extrapolation",
    {
        "least-squares": Plugin(
            "fairmile.sweeps.tuning.curves:LeastSquares", "tune", "parametric curves, weighted by how well they fit"
        ),
        "svr": Plugin(
            "fairmile.sweeps.tuning.curves:SupportVectors", "tune", "support-vector regression on finished curves"
        ),
        "qubo-svr": Plugin(
            "fairmile.sweeps.tuning.annealed_curves:AnnealedVectors", "tune", "the same by simulated annealing; slower"
        ),
    },
    entry_points="fairmile.extrapolations",
)


class Extrapolation:
    """Decides by one method whether a trial is worth going on with.

    Nothing is said before `startup` trials are done and the trial itself has come to `min_steps`.
    """

    def __init__(self, method: str, *, startup: int = 5, min_steps: float = 1) -> None:
        self.method = method
        self._make = METHODS[method]
        self._startup = startup
        self._min_steps = min_steps
        self._made: tuple[object, Method] | None = None

    def predict(self, curve: Curve, at_step: float, finished: Sequence[TrialRecord] = ()) -> Prediction:
        """Return what `curve` will be at a step; some methods learn it from the curves of finished trials."""
        done = [trial for trial in finished if trial.state == "done"]
        # Most calls come between two ends of trials, so that the same method, and what it learnt, serves again.
        known = [(trial.number, len(trial.curve), trial.values) for trial in done]
        made = self._made
        if made is None or made[0] != known:
            made = self._made = known, self._make([_finite(trial.curve) for trial in done])
        return made[1].predict(_finite(curve), at_step)

    def stop_early(
        self, finished: Sequence[TrialRecord], curve: Curve, best: float, better: Better, steps: float
    ) -> str:
        """Return why a trial should be stopped, or an empty text where it may still become better than `best`."""
        done = sum(trial.state == "done" for trial in finished)
        if done < self._startup or not curve or not self._min_steps <= curve[-1][0] < steps:
            return ""
        if any(_is_better(value, best, better) for _, value in curve):
            return ""
        expected = self.predict(curve, steps, finished)
        promise = expected.high if better == "higher" else expected.low
        # An infinite end and one that is no number both compare as promising.
        if not math.isfinite(promise) or _is_better(promise, best, better):
            return ""
        return (
            f"{self.method} expects {expected.value:.4g} ({expected.low:.4g} to {expected.high:.4g}) "
            f"at step {steps:g}, but {best:.4g} is already reached"
        )


def stopper(settings: Settings, better: Better) -> StopEarly | None:
    """Return what an engine asks at each new value of a trial, or None where the settings extrapolate nothing.

    Without `steps` a trial is expected to become as long as the longest that is done.
    """
    if not settings.extrapolate:
        return None
    watch = Extrapolation(settings.extrapolate, startup=settings.startup, min_steps=settings.first_rung or 1)
    pick = max if better == "higher" else min

    def stop_early(finished: Sequence[TrialRecord], curve: Curve) -> str:
        done = [trial for trial in finished if trial.state == "done" and trial.values]
        if not done:
            return ""
        steps = settings.steps or max((trial.curve[-1][0] for trial in done if trial.curve), default=0.0)
        return watch.stop_early(done, curve, pick(trial.values[0] for trial in done), better, steps)

    return stop_early


@dataclass(frozen=True)
class Hindsight:
    """What a method would have done to finished trials, each judged by those that were finished before it."""

    method: str
    judged: int  # trials that it could have stopped
    stopped: int
    right: int  # stopped, and would not have become best
    wrong: int  # stopped, and would have become best
    missed: int  # not stopped, and did not become best
    steps: float  # that the judged trials took
    steps_saved: float
    keeps_best: bool  # whether the best trial of all would have been finished

    @property
    def precision(self) -> float:
        """The share of stops that were right; 1 where nothing was stopped."""
        return self.right / self.stopped if self.stopped else 1.0


def hindsight(
    finished: Sequence[TrialRecord],
    better: Better,
    steps: float | None = None,
    *,
    methods: Sequence[str] = ("least-squares", "svr"),
    startup: int = 5,
    min_steps: float = 1,
    looks: int = 10,
) -> list[Hindsight]:
    """Replay trials that ran to their end, in the order in which they ended, and tell how each method had judged.

    A method looks at each curve `looks` times, evenly over its length. `steps` is the longest curve where not given.
    """
    done = sorted((t for t in finished if t.state == "done" and t.curve and t.values), key=_end)
    if steps is None:
        steps = max((trial.curve[-1][0] for trial in done), default=0.0)
    return [_replay(name, done, better, steps, startup, min_steps, looks) for name in methods]


def _replay(
    name: str, done: list[TrialRecord], better: Better, steps: float, startup: int, min_steps: float, looks: int
) -> Hindsight:
    watch = Extrapolation(name, startup=startup, min_steps=min_steps)
    judged = stopped = right = missed = 0
    total = saved = 0.0
    pick = max if better == "higher" else min
    winner = pick(done, key=lambda trial: trial.values[0], default=None)
    keeps_best = True
    for place, trial in enumerate(done):
        if place < max(startup, 1):
            continue
        earlier = done[:place]
        best = pick(each.values[0] for each in earlier)
        wins = _is_better(trial.values[0], best, better)
        judged += 1
        total += trial.curve[-1][0]
        for cut in _cuts(len(trial.curve), looks):
            if watch.stop_early(earlier, trial.curve[:cut], best, better, steps):
                stopped += 1
                right += not wins
                saved += trial.curve[-1][0] - trial.curve[cut - 1][0]
                keeps_best = keeps_best and trial is not winner
                break
        else:
            missed += not wins
    return Hindsight(name, judged, stopped, right, stopped - right, missed, total, saved, keeps_best)


def _cuts(length: int, looks: int) -> list[int]:
    """Return how many points of a curve are seen at each look; never all of them."""
    return sorted({max(1, round(length * look / (looks + 1))) for look in range(1, looks + 1)} - {length})


class LeastSquares:
    """Continues a curve by parametric ones, each weighted by its likelihood and, after Akaike, its parameters.

    Every family is `offset + slope × shape(step)`. Over a grid of the one number that bends a shape the other two
    follow exactly, so that nothing can fail to converge, and what the grid leaves open widens the spread: the
    prediction is the mixture of all members, each with the error of a straight-line fit. No family is the truth, so
    where enough curves are finished the spread is widened until it holds what became of nine of ten of them.
    """

    fewest = 5  # points: with fewer the noise cannot be told from the bend
    most = 256
    most_curves = 100

    def __init__(self, finished: Sequence[Curve] = ()) -> None:
        _numpy()  # a missing package is told when the method is chosen and not in the middle of a trial
        self._finished = list(finished)[-self.most_curves :]
        self._widths: dict[tuple[float, float], float] = {}

    def predict(self, curve: Curve, at_step: float) -> Prediction:
        expected = self._fit(curve, at_step)
        if not curve or not math.isfinite(expected.value):
            return expected
        key = float(curve[-1][0]), float(at_step)
        if key not in self._widths:
            self._widths[key] = self._widening(*key)
        value, wider = expected.value, self._widths[key]
        return Prediction(value, value - wider * (value - expected.low), value + wider * (expected.high - value))

    def _widening(self, seen: float, at_step: float) -> float:
        """Return by how much spreads were too small on finished curves, had they been cut at the step `seen`."""
        ratios = []
        for curve in self._finished:
            if curve and curve[-1][0] >= at_step:
                value, low, high = self._fit([point for point in curve if point[0] <= seen], at_step)
                end = next(value for step, value in curve if step >= at_step)
                width = high - value if end > value else value - low
                if 0 < width < math.inf:
                    ratios.append(abs(end - value) / width)
        return max(1.0, _bound(ratios)) if len(ratios) >= FEWEST_CURVES else 1.0

    def _fit(self, curve: Curve, at_step: float) -> Prediction:
        if len(curve) < self.fewest:
            return UNKNOWN
        thin = -(-len(curve) // self.most)
        return _fitted(tuple(curve[::-1][::thin][::-1]), at_step)


# Curves of finished trials are fitted again and again, whenever one more is finished.
@lru_cache(maxsize=16384)
def _fitted(curve: tuple[tuple[float, float], ...], at_step: float) -> Prediction:
    np = _numpy()
    points = np.asarray(curve, dtype=float)
    x, y = points[:, 0], points[:, 1]
    # Steps are counted from one and values from their mean, in units of their range: no scale is special then.
    unit = (x[-1] - x[0]) / (len(x) - 1)
    scale = float(np.ptp(y))
    if unit <= 0 or scale == 0:  # a curve that never moved may stand still for ever, or not have begun
        return UNKNOWN
    centre = float(y.mean())
    means, spreads, weights = _members((x - x[0]) / unit + 1, (y - centre) / scale, (at_step - x[0]) / unit + 1)
    low, high = _ends(means, spreads, weights)
    return Prediction(*(centre + scale * float(z) for z in (weights @ means, low, high)))


def _members(x: Array, y: Array, at: float) -> tuple[Array, Array, Array]:
    """Return prediction, its standard error, and weight of every member of every family."""
    np = _numpy()
    bends = np.geomspace(0.05, 4.0, 60)[:, None]
    rates = np.geomspace(0.1, 20.0, 60)[:, None] / x[-1]
    halves = np.geomspace(0.05, 20.0, 60)[:, None] * x[-1]
    families: list[tuple[int, Array, Array]] = [  # how many parameters, shape at all steps, shape at the asked one
        (2, np.log(x)[None, :], np.log([[at]])),
        (3, x**-bends, at**-bends),
        (3, np.exp(-rates * x), np.exp(-rates * at)),
        (3, 1 / (1 + x / halves), 1 / (1 + at / halves)),
    ]
    fits = [_constant(y)] + [_line(y, shape, asked, count) for count, shape, asked in families]
    means, spreads, scores = (np.concatenate(parts) for parts in zip(*fits, strict=True))
    weights = np.exp(-0.5 * (scores - scores.min()))
    return means, spreads, weights / weights.sum()


def _constant(y: Array) -> tuple[Array, Array, Array]:
    np = _numpy()
    n = len(y)
    error = max(float(((y - y.mean()) ** 2).sum()), _LEAST * n)
    spread = math.sqrt(error / (n - 1) * (1 + 1 / n))
    return np.array([y.mean()]), np.array([spread]), np.array([_akaike(n, error, 1)])


def _line(y: Array, shape: Array, asked: Array, count: int) -> tuple[Array, Array, Array]:
    """Fit `offset + slope × shape` for each row of `shape` in closed form."""
    np = _numpy()
    n = len(y)
    middle = shape.mean(axis=1, keepdims=True)
    moved = shape - middle
    square = np.maximum((moved**2).sum(axis=1), 1e-300)
    slope = (moved @ y) / square
    away = asked[:, 0] - middle[:, 0]
    error = np.maximum((((y - y.mean()) - slope[:, None] * moved) ** 2).sum(axis=1), _LEAST * n)
    # All members of a family share its number of parameters; each is one of as many as there are rows.
    scores = _akaike(n, error, count) + 2 * math.log(len(shape))
    spread = np.sqrt(error / (n - count) * (1 + 1 / n + away**2 / square))
    return y.mean() + slope * away, spread, scores


_LEAST = 1e-5  # of the squared range of a curve: below this, residuals are those of the grid


def _akaike(n: int, error: float | Array, parameters: int) -> Array:
    """Return Akaike's criterion, with every second point counted: what is left of neighbours is much alike.

    On real curves that took the share of outcomes within the spread from 0.4-0.7 to 0.7-0.8 before any widening.
    """
    np = _numpy()
    score: Array = n / 2 * np.log(np.asarray(error) / n) + 2 * (parameters + 1)
    return score


def _bound(errors: Sequence[float]) -> float:
    """Return what nine of ten further errors stay below; there must be FEWEST_CURVES."""
    return sorted(errors)[min(math.ceil((len(errors) + 1) * INSIDE), len(errors)) - 1]


def _ends(means: Array, spreads: Array, weights: Array) -> tuple[float, float]:
    """Return between which ends a mixture of normal distributions has nine tenths, the rest on both sides alike."""
    np = _numpy()
    from scipy.special import ndtr

    counted = weights > 1e-6
    means, spreads, weights = means[counted], spreads[counted], weights[counted] / weights[counted].sum()
    shares = np.array([(1 - INSIDE) / 2, (1 + INSIDE) / 2])
    low, high = np.full(2, (means - 12 * spreads).min()), np.full(2, (means + 12 * spreads).max())
    for _ in range(40):
        middle = (low + high) / 2
        below = ndtr((middle[:, None] - means) / spreads) @ weights < shares
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return float(high[0]), float(high[1])


class SupportVectors:
    """Learns from finished curves how a curve goes on: by its values so far, their differences and those of them.

    The spread is that of the errors on curves which were left out while learning. It is infinite while there are too
    few of them to say where nine of ten outcomes lie.
    """

    fewest_points = 3  # a second difference needs three
    most_curves = 200
    most_points = 16
    folds = 6  # parts that are left out in turn

    def __init__(self, finished: Sequence[Curve]) -> None:
        _sklearn()
        self._finished = [curve for curve in finished if len(curve) >= self.fewest_points][-self.most_curves :]
        self._learnt: dict[tuple[float, ...], tuple[Callable[[Array], float], float] | None] = {}

    def predict(self, curve: Curve, at_step: float) -> Prediction:
        np = _numpy()
        if len(curve) < self.fewest_points:
            return UNKNOWN
        seen = np.asarray(curve, dtype=float)
        count = min(len(seen), self.most_points)
        # At the steps of the curve itself where they are few, so that finished ones are read where they were written.
        steps = seen[:, 0] if count == len(seen) else np.linspace(seen[0, 0], seen[-1, 0], count)
        key = (*map(float, steps), float(at_step))
        if key not in self._learnt:
            self._learnt[key] = self._learn(steps, at_step)
        learnt = self._learnt[key]
        if learnt is None:
            return UNKNOWN
        model, spread = learnt
        value = model(_features(np.interp(steps, seen[:, 0], seen[:, 1])))
        return Prediction(value, value - spread, value + spread)

    def _learn(self, steps: Array, at_step: float) -> tuple[Callable[[Array], float], float] | None:
        """Return the regression of the value at a step on curves up to the last of `steps`, and its spread."""
        np = _numpy()
        sklearn = _sklearn()
        curves = [np.asarray(curve, dtype=float) for curve in self._finished if curve[-1][0] >= at_step]
        if len(curves) < FEWEST_CURVES:
            return None
        prefixes = [np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves]
        inputs = np.stack([_features(prefix) for prefix in prefixes])
        # What is still to come is learnt instead of the end itself, so that a curve unlike all others is continued
        # as flat and not pulled to where the others ended.
        targets = np.array(
            [np.interp(at_step, c[:, 0], c[:, 1]) - p[-1] for c, p in zip(curves, prefixes, strict=True)]
        )
        middle, scale = float(targets.mean()), float(targets.std())
        if scale == 0:
            return lambda row: float(row[0]) + middle, 0.0
        wanted = (targets - middle) / scale
        centre, spans = inputs.mean(axis=0), inputs.std(axis=0)
        rows = (inputs - centre) / np.where(spans > 0, spans, 1)
        errors = np.empty(len(rows))
        with sklearn.config_context(skip_parameter_validation=True, assume_finite=True):
            for fold in np.array_split(np.arange(len(rows)), self.folds):
                kept = np.delete(np.arange(len(rows)), fold)
                errors[fold] = self._fitted(rows[kept], wanted[kept]).predict(rows[fold]) - wanted[fold]
            model = self._fitted(rows, wanted)

        def value(row: Array) -> float:
            scaled = (row - centre) / np.where(spans > 0, spans, 1)
            return float(row[0]) + middle + scale * float(model.predict(scaled[None, :])[0])

        return value, scale * _bound(np.abs(errors).tolist())

    def _fitted(self, rows: Array, wanted: Array) -> Any:
        return _sklearn().svm.SVR(kernel="rbf", C=3.0, epsilon=0.05, gamma=1 / rows.shape[1]).fit(rows, wanted)


def _features(values: Array) -> Array:
    """Return a curve's values, the last first, then its first and second differences."""
    np = _numpy()
    features: Array = np.concatenate([values[::-1], np.diff(values), np.diff(values, 2)])
    return features


def _finite(curve: Curve) -> Curve:
    return [(step, value) for step, value in curve if math.isfinite(value)]


def _end(trial: TrialRecord) -> tuple[float, int]:
    return trial.ended or 0.0, trial.number


def _is_better(value: float, than: float, better: Better) -> bool:
    return value > than if better == "higher" else value < than


def _numpy() -> Any:
    try:
        import numpy as np
        import scipy.special  # noqa: F401  # needed beside it
    except ImportError as error:
        raise MissingExtra("extrapolating curves needs scipy", "tune") from error
    return np


def _sklearn() -> Any:
    try:
        import sklearn
        import sklearn.svm
    except ImportError as error:
        raise MissingExtra("support-vector regression needs scikit-learn", "tune") from error
    return sklearn
