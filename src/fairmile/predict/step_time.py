"""How long a step takes: its operators one after the other on the device, fed by a host that may be the slower one."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.costs.devices import Device, device
from fairmile.costs.operators.features import compute_dtype, layout, layout_bytes
from fairmile.costs.operators.op_times import OpTime, OpTimes, expected_s, roof_s, scaled, shipped_op_times
from fairmile.costs.operators.roofline import bound_of, least_bytes
from fairmile.costs.operators.signatures import signature, step_ops
from fairmile.costs.operators.work import Work, base_name, tensors_at, work_of
from fairmile.costs.steps import FUSED, Op, StepTrace
from fairmile.predict.compiled.fused import fused_s

MEASURED_TABLE = "h200"  # whose measured shares of the roof stand in for those of devices without a table
_LEVEL = 1.645  # standard deviations of a 90 % interval
_MODEL_SPREAD = 0.05  # of a whole step, where every operator is known
# What Python and autograd add to the bare calls of a step: learned on hosts of H200 (16 cores, torch 2.11).
_FACTOR = {"forward": 2.0, "backward": 1.3, "optimizer": 1.7}
_VIEW_US = {"forward": 5.0, "backward": 4.0}
_CHECKED = "_amp_foreach_non_finite_check"
_HOSTS = 1.5  # how many times slower or faster another host is taken to be than the one that costs were learned on
_ISSUING = {"forward": 1.2, "backward": 1.05}  # of what a recurrent call takes the host when it is called alone
_LAUNCH_SHARE = 0.25  # of a step that the device must idle to call it launch-bound

_FUSED_SPREAD = 0.15  # of its time
_COMPILED_SPREAD = 0.25  # of a whole compiled step
_FUSED_HOST_S = 12e-6  # from Python to the device


class _Issuing(NamedTuple):
    """How many times longer than bare calls compiled code takes for its own, and before the first of them."""

    fused: float
    library: float
    convolution: float
    graph_us: float


# Kernels of Inductor: fitted on three hosts with an H200, to seven compiled steps that wait for the host, five of them
# on two hosts each, which differ by up to half. Kernels that rules foresee: on two hosts, to a mixer, a graph network,
# a U-Net and ConvNeXt.
_COMPILED = {"inductor": _Issuing(1.17, 1.25, 2.3, 850.0), "rules": _Issuing(1.17, 2.3, 5.0, 800.0)}

# Calls that a backward pass makes only to compute again what was not kept.
_AGAIN = frozenset(
    (
        *("addmm", "convolution", "gelu", "relu", "silu", "_softmax", "embedding", "native_dropout", "_cudnn_rnn"),
        *("native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm"),
        *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention"),
        "_scaled_dot_product_efficient_attention",
    )
)


@dataclass(frozen=True)
class HostCosts:
    """What the computer beside the device adds to a step: it belongs to one host (its processor, its system).

    A call takes a share more than the bare one, and a view of a tensor takes time although it starts nothing. An
    optimizer looks at each tensor of each list by itself, gradients are dropped one by one, and a part that is computed
    again keeps and restores the state of random numbers.
    """

    name: str = "as calibrated"
    factor: Mapping[str, float] = field(default_factory=lambda: dict(_FACTOR))
    view_us: Mapping[str, float] = field(default_factory=lambda: dict(_VIEW_US))
    listed_us: float = 2.5  # of an optimizer for one tensor of one list
    optimizer_us: float = 300.0  # of an optimizer before its first call
    parameter_us: float = 4.0  # of dropping one gradient
    again_us: float = 700.0  # of one part that is computed again, in each of both passes
    graph_us: float = 0.0  # of compiled code before its first call
    wait_us: float = 15.0
    step_us: float = 300.0

    def scaled(self, by: float, *, calls: bool = True) -> HostCosts:
        """Return a host that takes so much longer for everything but waiting; without `calls`, those stay as told."""
        times = {name: getattr(self, name) * by for name in ("listed_us", "optimizer_us", "parameter_us", "again_us")}
        factor = {phase: value * by for phase, value in self.factor.items()} if calls else self.factor
        return replace(self, factor=factor, view_us={phase: us * by for phase, us in self.view_us.items()}, **times)

    def of_compiled(self, mode: str, by: str = "rules") -> HostCosts:
        """Return a host that runs compiled code: no autograd, no views, and with CUDA graphs hardly any calls."""
        if not mode:
            return self
        share = 1.0 if mode == "default" else 0.0
        share *= self.factor["forward"] / _FACTOR["forward"]  # how much slower this host is than the one learned on
        costs = _COMPILED.get(by, _COMPILED["rules"])
        phases = dict.fromkeys(("forward", "backward"), share * costs.library)
        phases |= {"fused": share * costs.fused, "convolution": share * costs.convolution}
        factor, graph_us = {**self.factor, **phases}, share * costs.graph_us
        return replace(self, factor=factor, view_us={}, again_us=0.0, graph_us=graph_us)

    def call_s(self, op: Op, work: Work, bare_s: float) -> float:
        """Return the seconds until the host has issued one call."""
        if work.kind == "rnn":
            return _ISSUING.get(op.phase, 1.0) * bare_s
        listed = len(tensors_at(op, 0)) if work.kind == "optimizer" else 0
        special = "fused" if op.name == FUSED else "convolution" if "convolution" in op.name else op.phase
        factor = self.factor.get(special, self.factor.get(op.phase, 1.0))
        return factor * bare_s + listed * self.listed_us * 1e-6


class OpLineDict(TypedDict):
    """`OpLine` as JSON holds it."""

    name: str
    kind: str
    signature: str
    count: int
    device_s: float
    how: str
    bound: str


@dataclass(frozen=True)
class OpLine:
    """All calls of one signature in a step and what they take on the device."""

    name: str
    kind: str
    signature: str
    count: int
    device_s: float
    how: str
    bound: str


class StepTimeDict(TypedDict):
    """`StepTime` as JSON holds it."""

    step_time_s: float
    low_s: float
    high_s: float
    device: str
    device_s: float
    host_s: float
    bound: str
    by_phase: dict[str, float]
    by_kind: dict[str, float]
    by_module: dict[str, float]
    by_how: dict[str, float]
    flops: float
    moved_bytes: int
    least_bytes: int
    roof_s: float
    compute_roof_s: float
    top: list[OpLineDict]
    notes: list[str]


@dataclass(frozen=True)
class StepTime:
    """A step's time with its 90 % interval, and what it is made of (seconds on the device)."""

    step_time_s: float
    low_s: float
    high_s: float
    device: str
    device_s: float
    host_s: float
    bound: str  # "compute" | "memory" | "launch"
    by_phase: Mapping[str, float]
    by_kind: Mapping[str, float]
    by_module: Mapping[str, float]
    by_how: Mapping[str, float]
    flops: float
    moved_bytes: int
    least_bytes: int
    roof_s: float
    compute_roof_s: float  # all operations at the peak of their types
    top: Sequence[OpLine]
    notes: Sequence[str] = ()

    @property
    def utilisation(self) -> float:
        """Return the share of the step in which the device works."""
        return min(self.device_s / self.step_time_s, 1.0) if self.step_time_s else 0.0


def step_time(
    trace: StepTrace,
    on: Device | str,
    table: OpTimes | None = None,
    host: HostCosts | None = None,
    correction: Mapping[str, float] | None = None,
    top: int = 20,
) -> StepTime:
    """Predict the time of a trace's last step.

    Without a table of the device's own, shares of the roof are those that were measured on another. `correction`
    holds factors by kind of operator, as `refined` gives them.
    """
    target = device(on) if isinstance(on, str) else on
    used = table or shipped_op_times(target.slug) or shipped_op_times(MEASURED_TABLE)
    host = (host or HostCosts()).of_compiled(trace.compiled, trace.compiled_by)
    tally = _Tally(target, trace.precision == "tf32", correction or {})
    ops = step_ops(trace)
    turns: list[_Turn] = []
    before: Op | None = None
    for op, added_s in zip(ops, _added_s(trace, ops, host), strict=True):
        work = work_of(op)
        one = _one(op, work, target, used, tally.tf32)
        call_s = host.call_s(op, work, one.host_s) + added_s
        waits = work.kind == "wait" or _waits_after(before, op)
        turns.append(_Turn(call_s, tally.add(op, work, one), work.kind == "rnn", waits))
        before = op
    total = _passed_s(turns, host)
    spread = _LEVEL * _spread(total, tally.doubts.values(), _COMPILED_SPREAD if trace.compiled else _MODEL_SPREAD)
    quick, slow = (_passed_s(turns, host, scale) for scale in (1 / _HOSTS, _HOSTS))
    sums = tally.sums
    return StepTime(
        step_time_s=total,
        low_s=total * math.exp(-math.hypot(spread, _apart(quick, total))),
        high_s=total * math.exp(math.hypot(spread, _apart(total, slow))),
        device=target.name,
        device_s=tally.device_s,
        host_s=sum(each.call_s for each in turns),
        bound=_bound(total, tally.device_s, sums["bound"]),
        by_phase=dict(sums["phase"]),
        by_kind=dict(sorted(sums["kind"].items(), key=lambda item: -item[1])),
        by_module=dict(sums["module"]),
        by_how=dict(sums["how"]),
        flops=tally.flops,
        moved_bytes=tally.moved_bytes,
        least_bytes=least_bytes(trace),
        roof_s=tally.roof_s,
        compute_roof_s=tally.compute_roof_s,
        top=tally.longest(top),
        notes=(*trace.notes, *_notes(target, used)),
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    """A call as both lanes see it: what the host takes to issue it, what the device works, and how they meet."""

    call_s: float
    busy_s: float
    is_many: bool  # a recurrent network is hundreds of kernels: the first runs while the host still issues the others
    waits: bool  # until the device is done


def _passed_s(turns: Iterable[_Turn], host: HostCosts, scale: float = 1.0) -> float:
    """Return a step's seconds where the host takes `scale` times as long for its calls."""
    at_host = at_device = 0.0
    for turn in turns:
        call_s = scale * turn.call_s
        begun = at_host if turn.is_many else at_host + call_s
        at_host += call_s
        if turn.waits:
            at_host = begun = max(at_host, at_device) + host.wait_us * 1e-6
        if turn.busy_s > 0:
            at_device = max(max(at_device, begun) + turn.busy_s, at_host)
    return max(at_host, at_device) + host.step_us * 1e-6


def _apart(low_s: float, high_s: float) -> float:
    return math.log(high_s / low_s) if low_s > 0 else 0.0


def _added_s(trace: StepTrace, ops: Sequence[Op], host: HostCosts) -> Sequence[float]:
    """Return what the host does before each call beside it: nothing of it is work of the device."""
    added = [host.view_us.get(op.phase, 0.0) * count * 1e-6 for op, count in zip(ops, _views(ops), strict=True)]
    forward = [place for place, op in enumerate(ops) if op.phase == "forward"]
    if added:
        added[0] += host.graph_us * 1e-6
    again = _computed_again(ops)
    for place in again:
        added[place] += host.again_us * 1e-6
    for place in forward:
        added[place] += len(again) * host.again_us * 1e-6 / len(forward)
    first = next((place for place, op in enumerate(ops) if op.phase == "optimizer"), None)
    if first is not None:
        added[first] += host.optimizer_us * 1e-6
        added[0] += sum(each.category == "parameter" for each in trace.storages) * host.parameter_us * 1e-6
    return added


def _views(ops: Sequence[Op]) -> Iterator[int]:
    """Yield how many tensors of each call are views: they lie otherwise than where they were last seen."""
    seen: dict[int, set[tuple[tuple[int, ...], tuple[int, ...]]]] = defaultdict(set)
    for op in ops:
        count = 0
        for spec in op.inputs if op.phase in ("forward", "backward") else ():
            known = seen[spec.storage]
            if (spec.shape, spec.strides) not in known:
                count += spec.storage >= 0 and (bool(known) or layout(spec) != "dense")
                known.add((spec.shape, spec.strides))
        for spec in op.outputs:
            seen[spec.storage] = {(spec.shape, spec.strides)}
        yield count


def _computed_again(ops: Sequence[Op]) -> list[int]:
    """Return where a backward pass begins to compute again what was not kept."""
    begins: list[int] = []
    is_again = False
    for place, op in enumerate(ops):
        if op.phase == "backward":
            if base_name(op) in _AGAIN and not is_again:
                begins.append(place)
            is_again = base_name(op) in _AGAIN or (is_again and "backward" not in op.name)
    return begins


class _Tally:
    """What the operators of a step add up to on the device."""

    def __init__(self, target: Device, tf32: bool, factors: Mapping[str, float]) -> None:
        self.target, self.tf32, self.factors = target, tf32, factors
        self.device_s = self.flops = self.roof_s = self.compute_roof_s = 0.0
        self.moved_bytes = 0
        names = ("phase", "kind", "module", "how", "bound")
        self.sums: dict[str, dict[str, float]] = {name: defaultdict(float) for name in names}
        self.doubts: dict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._lines: dict[str, OpLine] = {}

    def add(self, op: Op, work: Work, one: OpTime) -> float:
        """Count one call and return its seconds on the device."""
        # Factors belong to the table that comes along: what was measured here is as it is.
        busy_s = one.device_s * (1.0 if one.how == "here" else self.factors.get(work.kind, 1.0))
        if busy_s <= 0 or work.kind == "wait":
            return 0.0
        target, tf32 = self.target, self.tf32
        bound = bound_of(op, work, target, tf32=tf32)
        keys = {"phase": op.phase, "kind": work.kind, "module": op.module, "how": one.how, "bound": bound}
        for name, key in keys.items():
            self.sums[name][key] += busy_s
        self.doubts[f"{op.name} {one.how}"] += busy_s * one.spread  # calls of one name err together
        self.device_s += busy_s
        self.flops += work.flops
        self.moved_bytes += work.bytes + layout_bytes(op)
        self.roof_s += roof_s(op, work, target, tf32=tf32) - target.least_op_s
        self.compute_roof_s += work.flops / target.peak(compute_dtype(op), work.kind, tf32=tf32)
        text = signature(op)
        self._counts[text] += 1
        self._lines[text] = OpLine(op.name, work.kind, text, 1, busy_s, one.how, bound)
        return busy_s

    def longest(self, most: int) -> tuple[OpLine, ...]:
        """Return the signatures that take longest, all their calls together."""
        lines = [
            replace(line, count=self._counts[text], device_s=self._counts[text] * line.device_s)
            for text, line in self._lines.items()
        ]
        return tuple(sorted(lines, key=lambda each: -each.device_s)[:most])


def _spread(total: float, parts: Iterable[float], least: float) -> float:
    """Return the standard deviation of a step's time in logarithms that its operators and the model of it add."""
    return math.hypot(least, math.sqrt(sum(each**2 for each in parts)) / total) if total > 0 else least


def _waits_after(before: Op | None, op: Op) -> bool:
    """Tell whether the host reads a result between two calls: a gradient scaler asks whether all were finite."""
    return before is not None and _CHECKED in before.name and _CHECKED not in op.name


def _one(op: Op, work: Work, target: Device, table: OpTimes | None, tf32: bool) -> OpTime:
    if op.name == FUSED:
        return OpTime(fused_s(op, work, target), _FUSED_HOST_S, "roofline", _FUSED_SPREAD)
    if table is None:
        return OpTime(expected_s(op, work, target, tf32=tf32), 6e-6, "roofline", 0.5)
    return scaled(table.time_of(op, tf32=tf32), op, work, table.measured_on, target, tf32=tf32)


def _bound(total: float, device_s: float, by_bound: Mapping[str, float]) -> str:
    if total <= 0 or device_s < (1 - _LAUNCH_SHARE) * total:
        return "launch"
    return max(by_bound, key=lambda key: by_bound[key]) if by_bound else "launch"


def _notes(target: Device, table: OpTimes | None) -> tuple[str, ...]:
    if table is None:
        why = f"{target.name} and similar devices were not measured: times come from the roofline alone"
    elif table.measured_on != target:
        why = f"{target.name} was not measured: roofline efficiencies come from {table.measured_on.name}"
    else:
        return ()
    return (f"not checked: {why}", *([target.note] if target.note else []))
