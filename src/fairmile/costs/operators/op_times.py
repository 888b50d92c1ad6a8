"""How long an operator takes: measured where its signature was, else worked out from its nearest measured relatives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import as_file, files
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.devices import Device, device
from fairmile.costs.operators.features import (
    Features,
    Recurrence,
    bias_s,
    compute_dtype,
    features_of,
    idling,
    indexing_s,
    layout_bytes,
    recurrence,
    strain,
)
from fairmile.costs.operators.fitted import Family, fitted
from fairmile.costs.operators.signatures import read_signature, signature
from fairmile.costs.operators.table import OperatorTiming, TableOrigin, read_rows
from fairmile.costs.operators.work import Work, kind_of_name, work_of
from fairmile.costs.steps import Op

_NEIGHBOURS = 60
_NOISE = 0.04  # of a measured time, in logarithms
_REACH = 5.0  # factors of two over which a neighbour's efficiency says something
_SIGNAL = 0.8  # how far efficiencies of one family lie apart, in logarithms
_DOUBT = {
    "conv": 2.0,
    "fft": 1.5,
}  # how much farther off relatives are than their likeness says: a library chooses among kernels
_HOST_US = 6.0  # of a call that nothing is known about
_HOST_NAMES = 10  # operators, from which two hosts are compared: single ones differ by chance
_LEAST_OWN = 0.3  # of a measured time that is a convolution's own, whatever its bias takes
_MOMENT_S = 4e-6  # of one cell on the device, however small; the next one waits for it
_KERNEL_US = 5.0  # of the host for one cell, where each is launched by itself
_COLD_SHARE = 0.5  # how much of a model's reads miss the cache, where that makes a difference
# What operators reach of the roof where nothing was measured, and how wrong that can be.
_EFFICIENCY = {"gemm": 0.7, "conv": 0.4, "attention": 0.45, "rnn": 0.3, "fft": 0.3, "linalg": 0.05}
_ROOF_SPREAD = 0.5
_SCALED_SPREAD = 0.25
_TF32_SPREAD = 0.25  # of products in TF32 beside those in bfloat16: 252 were measured in both


# Kinds whose calls are compared with one another.
_PLAIN = ("elementwise", "copy", "fill")


@dataclass(frozen=True, slots=True)
class OpTime:
    """A prediction: seconds on the device and on the host, and how it came about.

    `spread` is the standard deviation of the device's time in logarithms, which for small ones is a share.
    """

    device_s: float
    host_s: float
    how: str  # "here" | "exact" | "interpolated" | "scaled" | "roofline" | "view"
    spread: float


@dataclass(frozen=True, slots=True)
class _Known:
    host_us: float
    features: Features
    ratio: float  # log of measured over smooth
    host_ratio: float  # the same of the host's time, where it depends on sizes


@dataclass(frozen=True, slots=True)
class _Near:
    """What relatives say of a call: logs of its times over the smooth ones, the spread, and the nearest's host."""

    ratio: float
    host_ratio: float
    spread: float
    host_us: float


class OpTimes:
    """A device's table of measured operators, asked for any operator."""

    def __init__(
        self, rows: Iterable[OperatorTiming], measured_on: Device, about: TableOrigin, cold_share: float = _COLD_SHARE
    ) -> None:
        self.rows = [each for each in rows if not each.problem]
        self.measured_on = measured_on
        self.about = about
        self.cold_share = cold_share
        self._exact = {each.signature: each for each in self.rows}
        self._by_kind: dict[str, list[OperatorTiming]] = defaultdict(list)
        hosts: dict[str, list[float]] = defaultdict(list)
        for row in self.rows:
            name = row.signature.partition("|")[0]
            self._by_kind[kind_of_name(name)].append(row)
            hosts[name].append(row.host_us)
        self._hosts = {name: sorted(times)[len(times) // 4] for name, times in hosts.items()}
        self._families: dict[tuple[str, ...], Mapping[str, Family]] = {}  # by the kinds that are read together
        self._known: dict[str, _Known] = {}
        self._here: frozenset[str] = frozenset()
        self.host_factor = 1.0  # of all host's times that are not the table's: see `joined`
        self._answers: dict[tuple[str, bool], OpTime] = {}

    def without(self, origin: str) -> OpTimes:
        """Return the table as it would be had a model never been measured: rows that it alone asked for are gone."""
        kept = [each for each in self.rows if each.origins != (origin,)]
        other = OpTimes(kept, self.measured_on, self.about, self.cold_share)
        other._known = self._known  # what was read once need not be read again
        return other

    def joined(self, own: OpTimes) -> OpTimes:
        """Return the table with rows that were measured here in place of its own of the same signatures.

        What they answer is told as "here". Calls of a name that this host has timed take the host as long as here,
        others as long as in the table times `host_factor`.
        """
        by = self._host_factor(own)
        rows = {text: row if by == 1 else row._replace(host_us=by * row.host_us) for text, row in self._exact.items()}
        other = OpTimes((rows | own._exact).values(), self.measured_on, self.about, self.cold_share)
        other._hosts = {name: by * us for name, us in self._hosts.items()} | own._hosts
        other.host_factor = by
        other._here = frozenset(own._exact)
        return other

    def _host_factor(self, own: OpTimes) -> float:
        """Return how many times as long as the table's host this one takes for its calls; 1 where few names tell."""
        both = [own._hosts[name] / us for name, us in self._hosts.items() if us > 0 and own._hosts.get(name, 0) > 0]
        return median(both) if len(both) >= _HOST_NAMES else 1.0

    def time_of(self, op: Op, *, tf32: bool = False) -> OpTime:
        """Return the time of a call on the device that the table was measured on."""
        key = (signature(op), tf32)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self._time_of(op, key[0], tf32)
        return answer

    def _time_of(self, op: Op, text: str, tf32: bool) -> OpTime:
        work = work_of(op)
        row = self._exact.get(text)
        if row is not None and not (tf32 and _gains_from_tf32(op, work)):
            how = "view" if work.kind == "view" else "here" if text in self._here else "exact"
            return OpTime(self._us(row) * 1e-6, self._host_us(op, work, row.host_us) * 1e-6, how, _NOISE)
        host_s = self._host_us(op, work, None) * 1e-6
        if work.kind in ("view", "wait"):
            return OpTime(0.0, host_s, "view", 0.0)
        if tf32 and work.kind == "gemm" and _gains_from_tf32(op, work):
            # Half the peak and twice the bytes of the same product in a short type.
            short = self.time_of(_shortened(op))
            how = "roofline" if short.how == "roofline" else "interpolated"
            return OpTime(2 * short.device_s, host_s, how, math.hypot(short.spread, _TF32_SPREAD))
        if not (tf32 and _gains_from_tf32(op, work)):
            asked = features_of(op, work)
            near = self._interpolated(asked, _PLAIN if asked.family == "plain" else _together(work.kind))
            if near is not None:
                own_s = _smooth_s(op, work, self.measured_on) * math.exp(near.ratio)
                device_s = own_s + bias_s(op, self.measured_on)
                many = _host_smooth_us(op)
                host_us = many * math.exp(near.host_ratio) if many else self._host_us(op, work, near.host_us)
                spread = near.spread * _DOUBT.get(work.kind, 1.0)
                return OpTime(device_s, host_us * 1e-6, "interpolated", spread)
        return OpTime(expected_s(op, work, self.measured_on, tf32=tf32), host_s, "roofline", _ROOF_SPREAD)

    def _host_us(self, op: Op, work: Work, own_us: float | None) -> float:
        """Return the host's microseconds: those of calls of one name differ by chance, save where lists are given."""
        if own_us is not None and work.kind in ("optimizer", "rnn"):
            return own_us
        return self._hosts.get(op.name, _HOST_US)

    def _us(self, row: OperatorTiming) -> float:
        return row.device_us + self.cold_share * (row.cold_us - row.device_us)

    def _families_of(self, kinds: tuple[str, ...]) -> Mapping[str, Family]:
        """Return the rows of some kinds, sorted into families; a step uses few of all kinds."""
        families = self._families.get(kinds)
        if families is None:
            rows = list(chain.from_iterable(self._by_kind.get(kind, ()) for kind in kinds))
            families = fitted(rows, self.measured_on, self.cold_share, lambda: self._sorted(rows))
            self._families[kinds] = families
        return families

    def _sorted(self, rows: list[OperatorTiming]) -> dict[str, Family]:
        by_family: dict[str, list[_Known]] = defaultdict(list)
        for row in rows:
            known = self._known.get(row.signature)
            if known is None and row.device_us > 0:
                known = self._known[row.signature] = self._learnt(row)
            if known is not None:
                by_family[known.features.family].append(known)
        return {name: _family(members) for name, members in by_family.items()}

    def _learnt(self, row: OperatorTiming) -> _Known:
        op = read_signature(row.signature, row.outputs)
        work = work_of(op)
        device_s = self._us(row) * 1e-6
        own_s = max(device_s - bias_s(op, self.measured_on), _LEAST_OWN * device_s)
        ratio = math.log(own_s / _smooth_s(op, work, self.measured_on))
        many = _host_smooth_us(op)
        host_ratio = math.log(max(row.host_us, 1.0) / many) if many else 0.0
        return _Known(row.host_us, features_of(op, work), ratio, host_ratio)

    def _interpolated(self, asked: Features, kinds: tuple[str, ...]) -> _Near | None:
        """Return what the nearest relatives say, None where there are none."""
        import numpy as np

        family = self._families_of(kinds).get(asked.family)
        if family is None:
            return None
        weights = np.array(asked.weights)
        own = np.array([family.words.get(word, -1) for word in asked.marks], dtype=np.int64)
        distance2 = ((family.numbers - np.array(asked.numbers)) ** 2).sum(axis=1)
        distance2 += ((family.marks != own) * weights).sum(axis=1)
        nearest = np.argsort(distance2, kind="stable")[:_NEIGHBOURS]
        numbers, ratios, marks = family.numbers[nearest], family.ratios[nearest], family.marks[nearest]
        between = ((numbers[:, None, :] - numbers[None, :, :]) ** 2).sum(axis=2)
        between += ((marks[:, None, :] != marks[None, :, :]) * weights).sum(axis=2)
        to_asked = _likeness(np.sqrt(distance2[nearest]))
        matrix = _likeness(np.sqrt(between)) + (_NOISE / _SIGNAL) ** 2 * np.eye(len(nearest))
        solved = np.linalg.solve(matrix, np.column_stack([to_asked, np.ones(len(nearest)), ratios]))
        means = solved[:, 2:].sum(axis=0) / solved[:, 1].sum()
        estimates = means + to_asked @ (solved[:, 2:] - means * solved[:, 1:2])
        unknown = max(1.0 - float(to_asked @ solved[:, 0]), 0.0)
        spread = math.sqrt(_NOISE**2 + _SIGNAL**2 * unknown)
        return _Near(float(estimates[0]), float(estimates[1]), spread, float(family.host_us[nearest[0]]))


def _together(kind: str) -> tuple[str, ...]:
    """Return the kinds that are read with one: the answer must not depend on which was asked for first."""
    return _PLAIN if kind in _PLAIN else (kind,)


def _family(members: list[_Known]) -> Family:
    import numpy as np

    words: dict[str, int] = {}
    numbered = [[words.setdefault(word, len(words)) for word in each.features.marks] for each in members]
    marks = np.array(numbered, dtype=np.int64).reshape(len(members), -1)
    numbers = np.array([each.features.numbers for each in members], dtype=np.float64).reshape(len(members), -1)
    ratios = np.array([(each.ratio, each.host_ratio) for each in members])
    return Family(numbers, ratios, marks, words, np.array([each.host_us for each in members]))


def roof_s(op: Op, work: Work, on: Device, *, tf32: bool = False) -> float:
    """Return the least time of a call: all its operations at the peak, or all its bytes at the bandwidth."""
    compute = work.flops / on.peak(compute_dtype(op), work.kind, tf32=tf32)
    return on.least_op_s + max(compute, work.bytes / on.bandwidth_ceiling)


def _smooth_s(op: Op, work: Work, on: Device) -> float:
    """Return a time that grows smoothly with all that an operator does; measured ones are kept as multiples of it."""
    compute = work.flops * strain(op, work, on.multiprocessors) / on.peak(compute_dtype(op), work.kind)
    moved = (work.bytes + layout_bytes(op)) * idling(op, work, on.multiprocessors)
    at_once = on.least_op_s + compute + indexing_s(op, work, moved / on.bandwidth_ceiling, on.multiprocessors)
    cells = recurrence(op)
    if cells is None:
        return at_once
    if cells.way == "standard":
        return at_once + cells.length * (1 + cells.layers) * _MOMENT_S * _kernels(cells)
    gates = {2: 4, 3: 3}.get(cells.mode, 1)
    return at_once + cells.length * cells.layers * (0.4e-6 + 0.25e-6 * gates * (cells.hidden / 96) ** 2)


def _host_smooth_us(op: Op) -> float:
    """Return the host's time that grows with the kernels of a call, 0 where it starts one or two of them."""
    cells = recurrence(op)
    if cells is None:
        return 0.0
    if cells.way != "standard":
        return 150.0
    return 150.0 + cells.length * cells.layers * _KERNEL_US * _kernels(cells)


def _kernels(cells: Recurrence) -> float:
    """Return how many times the two kernels of a cell it takes: a projection is a third, which the next cell awaits."""
    return 1.5 if cells.is_projected else 1.0


def expected_s(op: Op, work: Work, on: Device, *, tf32: bool = False) -> float:
    """Return the time of a call by what operators of its kind usually reach of the roof."""
    if work.kind in ("view", "wait"):
        return 0.0
    compute = work.flops / on.peak(compute_dtype(op), work.kind, tf32=tf32) / _EFFICIENCY.get(work.kind, 1.0)
    return on.least_op_s + max(compute, work.bytes / on.bandwidth_ceiling)


def scaled(time: OpTime, op: Op, work: Work, measured_on: Device, to: Device, *, tf32: bool = False) -> OpTime:
    """Return a time on one device as it would be on another that reaches the same share of its roof."""
    if work.kind in ("view", "wait") or measured_on == to:
        return time
    ratio = roof_s(op, work, to, tf32=tf32) / roof_s(op, work, measured_on, tf32=tf32)
    how = time.how if time.how == "roofline" else "scaled"
    return replace(time, device_s=time.device_s * ratio, how=how, spread=math.hypot(time.spread, _SCALED_SPREAD))


def read_op_times(path: Path, on: Device | None = None) -> OpTimes:
    """Read a table; the device is the one it names unless told."""
    about, rows = read_rows(path)
    return OpTimes(rows, on or device(about.device), about)


@cache
def shipped_op_times(slug: str = "h200") -> OpTimes | None:
    """Return the table that comes with the package, None where there is none for the device."""
    entry = files("fairmile.costs") / "data" / "op_times" / f"{slug}.csv.gz"
    if not entry.is_file():
        return None
    with as_file(entry) as path:
        return read_op_times(path, device(slug))


def _gains_from_tf32(op: Op, work: Work) -> bool:
    return work.kind in ("gemm", "attention") and compute_dtype(op) == "float32"


def _shortened(op: Op) -> Op:
    inputs, outputs = (tuple(replace(each, dtype="bfloat16") for each in part) for part in (op.inputs, op.outputs))
    return replace(op, inputs=inputs, outputs=outputs)


def _likeness(distance: Any) -> Any:
    import numpy as np

    scaled_distance = math.sqrt(3) * distance / _REACH
    return (1 + scaled_distance) * np.exp(-scaled_distance)
