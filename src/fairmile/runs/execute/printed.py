"""Metrics in the output of a program that logs none: `epoch 3 loss 0.41`, `val_acc: 0.93`, `{'loss': 0.5, 'step': 10}`.

Only lines of a training log count: those that name a step or a well-known quality such as loss or accuracy. Other
numbers, such as versions and sizes, are no metrics.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_named_tuple import NamedTuple

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)(?![\w.:/]|-\d)"
_WHICH = r"(?:(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval(?:uation)?|best|final|mean|average|avg|total)[ _-])?"
_QUALITY_WORDS = (
    r"loss|err|error|rmse|mse|mae|mape|nll|perplexity|ppl|wer|cer|fid|acc|accuracy|f1|auc|auroc|precision|recall|nse|"
    r"nnse|r2|score|iou|dice|bleu|reward|psnr|ssim|likelihood|elbo|residual|misfit|skill|mcc|rouge"
)
_STEP_WORDS = r"global_step|step|iteration|iter|epoch|round|episode"
_QUALITY = lazy_pattern(rf"(?:^|[^a-z])(?:{_QUALITY_WORDS})(?:$|[^a-z])")
_PAIR = lazy_pattern(
    rf"(?<![\w./])['\"]?({_WHICH}[a-z][\w./@-]{{0,60}})['\"]?[ \t]{{0,4}}[=:][ \t]{{0,4}}{_NUMBER}", re.I
)
_SPACED = lazy_pattern(rf"(?<![\w./])({_WHICH}[\w./-]{{0,30}}?(?:{_QUALITY_WORDS}))[ \t]{{1,4}}{_NUMBER}", re.I)
_STEP = lazy_pattern(rf"(?<![a-z])({_STEP_WORDS})s?['\"]?[ \t]{{0,4}}[=:#]?[ \t]{{0,4}}[\[(]?(\d+(?:\.\d+)?)", re.I)
_VARIABLE = lazy_pattern(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+){2,}=\S*")  # of the environment: HYDRA_FULL_ERROR=1
_LONGEST_LINE = 2000
_MOST_NAMES, MOST_VALUES = 50, 100_000


class PrintedMetric(NamedTuple):
    """One value of a metric, with the step that its line or an earlier line names."""

    name: str
    value: float
    step: float | None


class MetricFinder:
    """Finds the metrics that lines of output state, given one by one; parameters of the run are none."""

    def __init__(self, params: Collection[str] = ()) -> None:
        self._step: float | None = None
        self._names: set[str] = set()
        self._known = {_plain(name) for name in params}

    def find(self, line: str) -> Iterator[PrintedMetric]:
        """Yield the metrics of the next line."""
        text = line.rstrip("\r\n").rpartition("\r")[2]  # of a progress bar its last state
        if len(text) > _LONGEST_LINE:
            return
        text = _VARIABLE.sub("", text)
        steps = {match[1].lower(): float(match[2]) for match in _STEP.finditer(text)}
        if steps:
            self._step = next((value for name, value in steps.items() if name != "epoch"), steps.get("epoch"))
        values = {_plain(match[1]): match[2] for pattern in (_SPACED, _PAIR) for match in pattern.finditer(text)}
        if not steps and not any(map(_QUALITY.search, values)):
            return
        names = self._names
        for name, value in values.items():
            if name in steps or name in self._known or (name not in names and len(names) == _MOST_NAMES):
                continue
            names.add(name)
            yield PrintedMetric(name, float(value), self._step)


def find_metrics(lines: Iterable[str], *, params: Collection[str] = ()) -> Iterator[PrintedMetric]:
    """Yield the metrics that lines of output state, in their order; parameters of the run are none."""
    finder = MetricFinder(params)
    for line in lines:
        yield from finder.find(line)


def _plain(name: str) -> str:
    return re.sub(r"[ -]+", "_", name.strip()).lower()
