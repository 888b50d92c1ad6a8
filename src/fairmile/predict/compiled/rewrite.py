"""Turns the trace of an eager step into that of its compiled form, by rules, where Inductor itself cannot be run.

Forward and backward pass become kernels as Inductor would make them; the optimizer and what builds the model stay. The
whole pass counts as one graph: breaks of the graph, which keep more, are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.operators.features import channels_last
from fairmile.costs.operators.work import base_name, is_in_place, tensor_at
from fairmile.costs.steps import FUSED, Op, StepEvent, StepTrace, Storage, TensorSpec
from fairmile.predict.compiled.dataflow import Dataflow, Value, dataflow, index_bytes, is_norm
from fairmile.predict.compiled.partition import saved_values

_MASKING = "threshold_backward"
_HALF, _ALIGNED = ("bfloat16", "float16"), 8
_WORTH_PADDING = 1 << 20  # elements of the larger side
Event = tuple[int, int, int]


def compiled(trace: StepTrace, mode: str) -> StepTrace:
    """Return the trace of the same steps as torch.compile would run them."""
    writer = _Writer(trace)
    events: list[Event] = []
    for part in _parts(trace):
        events += writer.step(part) if part and part[0][0] == StepEvent.STEP else part
    notes = [each for each in trace.notes if not each.startswith("the model is compiled")]
    if trace.stopped:
        raise UsageError(
            f"a step that is followed only in part cannot be compiled: {trace.stopped}", hint="remove --compile"
        )
    notes.append("the compiled step follows from the eager one as a single graph: graph breaks are not predicted")
    notes += autotuned(mode)
    made = replace(trace, ops=writer.ops, storages=writer.storages, events=events)
    return replace(made, notes=tuple(notes), compiled=mode, compiled_by="rules")


def autotuned(mode: str) -> list[str]:
    """Return what is to be said of a mode whose gains cannot be foreseen."""
    if mode != "max-autotune":
        return []
    return ["matrix products and convolutions take the time of the library: gains of autotuning are unknown"]


def _parts(trace: StepTrace) -> Iterator[list[Event]]:
    """Yield the events of building, then those of each step."""
    part: list[Event] = []
    for event in trace.events:
        if event[0] == StepEvent.STEP:
            yield part
            part = []
        part.append((event[0], event[1], event[2]))
    yield part


@dataclass(frozen=True)
class _Call:
    """One outermost operator of a step: its events, and the storages that it allocates."""

    op: int
    events: tuple[Event, ...]
    made: tuple[int, ...]


class _Writer:
    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self.ops: list[Op] = list(trace.ops)
        self.storages: list[Storage] = list(trace.storages)

    def step(self, events: Sequence[Event]) -> list[Event]:
        """Return the events of a step with its forward and backward pass compiled."""
        calls, before, between, after = _split(events, self.ops)
        if not calls:
            return list(events)
        flow = dataflow([self.ops[each.op] for each in calls], [each.made for each in calls], self.storages)
        made = {key for each in calls for key in each.made}
        inside = [event for call in calls for event in call.events]
        freed = {number for kind, number, _ in (*between, *inside) if kind == StepEvent.FREE}
        lives = _Lives(flow, {key for key in made if key in freed}, self)
        return [*before, *self._written(flow, calls, lives, between, made), *after]

    def new_storage(self, size_bytes: int, like: Storage) -> int:
        self.storages.append(replace(like, size_bytes=size_bytes))
        return len(self.storages) - 1

    def _written(
        self, flow: Dataflow, calls: Sequence[_Call], lives: _Lives, between: Sequence[Event], made: set[int]
    ) -> Iterator[Event]:
        first_backward = next((at for at, op in enumerate(flow.ops) if op.phase == "backward"), len(calls))
        others = [event for event in between if event[0] == StepEvent.FREE and event[1] not in made]
        pending: dict[int, list[int]] = defaultdict(list)  # outputs of a group until its last member
        for place, call in enumerate(calls):
            if place == first_backward:
                yield from others  # what lives from before the pass, such as gradients of the step before
                others = []
            for key in lives.recomputed_at.get(place, ()):
                yield from self._kernel("backward", lives.inputs_again[key], [key], flow)
            kept = [key for key in call.made if key not in lives.virtual]
            if flow.fused[place]:
                group = flow.groups[place]
                pending[group] += kept
                if place == group:
                    yield from self._group(flow, lives, group, pending.pop(group))
            else:
                op = _padded(_in_layout(flow.ops[place], lives.channels_last))
                self.ops[call.op] = op
                gone = lives.virtual | lives.ends
                for event in call.events:
                    if event[0] == StepEvent.FREE and event[1] in gone:
                        continue
                    if event[0] == StepEvent.ALLOC and event[1] in lives.virtual:
                        continue
                    yield event
            for key in lives.ends_at.get(place, ()):
                yield (StepEvent.FREE, key, 0)
        yield from others

    def _group(self, flow: Dataflow, lives: _Lives, group: int, kept: list[int]) -> Iterator[Event]:
        kept = [*kept, *lives.extra.get(group, ())]
        inside = {key for at, last in enumerate(flow.groups) if last == group for key in flow.made[at]}
        inputs: list[TensorSpec] = []
        seen: set[tuple[int, bool]] = set()
        for at in lives.members[group]:
            op = flow.ops[at]
            for spec in op.inputs:
                for key in lives.read_for(spec.storage, at):
                    twice = is_norm(op) and spec.elements > 1 << 12
                    if key in inside or (key, twice) in seen:
                        continue
                    seen.add((key, twice))
                    read = spec if key == spec.storage else lives.spec_of(key)
                    inputs += [read, read] if twice else [read]
            if is_in_place(op) and (first := tensor_at(op, 0)) is not None and first.storage not in lives.virtual:
                inputs.append(first)  # written as well
        phase = flow.ops[group].phase
        yield from self._kernel(phase, inputs, kept, flow, flow.ops[group].module)

    def _kernel(
        self, phase: str, inputs: Sequence[TensorSpec], outputs: Sequence[int], flow: Dataflow, module: str = ""
    ) -> Iterator[Event]:
        specs = tuple(TensorSpec((self.storages[key].size_bytes,), (1,), "uint8", key) for key in outputs)
        self.ops.append(Op(FUSED, phase, module, tuple(inputs), specs))
        number = len(self.ops) - 1
        yield (StepEvent.BEGIN, number, 0)
        for key in outputs:
            yield (StepEvent.ALLOC, key, 0)
        yield (StepEvent.END, number, 0)


class _Lives:
    """Which storages of a pass stay in memory, and until when."""

    def __init__(self, flow: Dataflow, mortal: set[int], writer: _Writer) -> None:
        self._flow, self._writer = flow, writer
        self.members: dict[int, list[int]] = defaultdict(list)
        for place, group in enumerate(flow.groups):
            self.members[group].append(place)
        self.channels_last = _prefers_channels_last(flow.ops)
        self.extra: dict[int, list[int]] = defaultdict(list)
        self.recomputed_at: dict[int, list[int]] = defaultdict(list)
        self.inputs_again: dict[int, list[TensorSpec]] = {}
        self.ends_at: dict[int, list[int]] = defaultdict(list)
        self._masks: dict[int, int] = {}
        written = self._written_forward()
        self.saved = self._saved(written)
        self.virtual: set[int] = set()
        self._uses(mortal, written)

    def _written_forward(self) -> set[int]:
        """Return the values of the forward pass that are in memory whether they are kept or not."""
        flow, written = self._flow, set()
        for place, op in enumerate(flow.ops):
            for key in flow.used[place]:
                value = flow.values[key]
                if op.phase == "forward" and value.op >= 0 and flow.groups[value.op] != flow.groups[place]:
                    written.add(key)
        for place, keys in enumerate(flow.made):
            if not flow.fused[place]:
                written.update(keys)
        return written

    def _saved(self, written: set[int]) -> set[int]:
        flow = self._flow
        needed: set[int] = set()
        for place, op in enumerate(flow.ops):
            if op.phase != "backward":
                continue
            for key in flow.used[place]:
                value = flow.values[key]
                if value.op < 0 or flow.ops[value.op].phase != "forward":
                    continue
                needed.add(self._needed(op, key))
                if not flow.fused[place]:  # what a call of the backward pass reads is never computed again
                    flow.values[key] = replace(value, again=None)
        return saved_values(flow.values, needed, written)

    def _needed(self, op: Op, key: int) -> int:
        """Return the value that a backward operator needs of a storage: of a ReLU only where it was positive."""
        flow = self._flow
        if base_name(op) != _MASKING or len(op.inputs) < 2 or key != op.inputs[1].storage:
            return key
        if key not in self._masks:
            producer = flow.values[key].op
            mask = self._writer.new_storage(op.inputs[1].elements, self._writer.storages[key])
            self._masks[key] = mask
            flow.values[mask] = Value(mask, op.inputs[1].elements, producer, (key,))
        return self._masks[key]

    def _uses(self, mortal: set[int], written: set[int]) -> None:
        """Set which storages are never written, and where each of the others is used last."""
        flow, storages = self._flow, self._writer.storages
        last: dict[int, int] = {}
        again: dict[int, list[int]] = defaultdict(list)
        self._reads: dict[tuple[int, int], list[int]] = {}
        for place, op in enumerate(flow.ops):
            moment = flow.groups[place]
            for key in flow.used[place]:
                value = flow.values[key]
                crosses = op.phase == "backward" and value.op >= 0 and flow.ops[value.op].phase == "forward"
                if not crosses:
                    last[key] = max(last.get(key, 0), moment)
                    continue
                needed = self._needed(op, key)
                if not flow.fused[place] and needed not in self.saved and flow.values[needed].again is not None:
                    again[needed].append(moment)
                sources = self._sources(needed)
                self._reads[place, key] = sources
                for source in sources:
                    last[source] = max(last.get(source, 0), moment)
        for place, keys in enumerate(flow.made):
            for key in keys:
                if self._is_virtual(place, key, mortal, written, last):
                    self.virtual.add(key)
                elif (
                    flow.fused[place]
                    and base_name(flow.ops[place]).startswith("max_pool")
                    and key != flow.ops[place].outputs[0].storage
                ):
                    storages[key] = replace(storages[key], size_bytes=index_bytes(storages[key]))
        for mask in self._masks.values():
            if mask in self.saved:
                self.extra[flow.groups[flow.values[mask].op]].append(mask)
                mortal = mortal | {mask}
        self.ends = mortal - self.virtual
        for key in self.ends:
            made = flow.groups[flow.values[key].op]
            self.ends_at[max(last.get(key, made), made)].append(key)
        for key, moments in again.items():
            self._recompute(key, min(moments), max(moments))

    def _is_virtual(self, place: int, key: int, mortal: set[int], written: set[int], last: dict[int, int]) -> bool:
        """Tell whether a storage is only a step within one fused kernel."""
        flow = self._flow
        if key not in mortal or not flow.fused[place] or key in self.saved:
            return False
        if flow.ops[place].phase == "forward":
            return key not in written
        return last.get(key, flow.groups[place]) == flow.groups[place]

    def _recompute(self, key: int, begin: int, end: int) -> None:
        """Write a tensor once more in the backward pass, where calls that are not fused read it."""
        storages = self._writer.storages
        new = self._writer.new_storage(storages[key].size_bytes, replace(storages[key], category="temporary"))
        self._flow.values[new] = replace(self._flow.values[key], key=new)
        self.recomputed_at[begin].append(new)
        self.inputs_again[new] = [self.spec_of(source) for source in self._sources(key)]
        self.ends_at[end].append(new)

    def _sources(self, key: int) -> list[int]:
        """Return the values in memory that a value is had from: itself where it is kept."""
        value = self._flow.values.get(key)
        found: dict[int, None] = {}
        waiting, seen = [key], set()
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            value = self._flow.values.get(each)
            if value is None or each in self.saved or value.again is None:
                found[each] = None
            else:
                waiting += value.again
        return list(found)

    def read_for(self, key: int, place: int) -> list[int]:
        """Return the storages that an operator reads for one of its inputs."""
        return self._reads.get((place, key), [key] if key >= 0 else [])

    def spec_of(self, key: int) -> TensorSpec:
        return TensorSpec((self._writer.storages[key].size_bytes,), (1,), "uint8", key)


def _split(events: Sequence[Event], ops: Sequence[Op]) -> tuple[list[_Call], list[Event], list[Event], list[Event]]:
    """Return the calls of forward and backward pass, what lies before, between and behind them."""
    depth, at, begin = 0, -1, 0
    calls: list[tuple[int, int, int]] = []
    for number, (kind, op, _) in enumerate(events):
        if kind == StepEvent.BEGIN:
            if depth == 0:
                at, begin = op, number
            depth += 1
        elif kind == StepEvent.END:
            depth -= 1
            if depth == 0 and ops[at].phase in ("forward", "backward"):
                calls.append((at, begin, number + 1))
    if not calls:
        return [], list(events), [], []
    first, last = calls[0][1], calls[-1][2]
    inside = [number for _, begin, end in calls for number in range(begin, end)]
    taken = set(inside)
    between = [event for number, event in enumerate(events[first:last], first) if number not in taken]
    behind = list(events[last:])
    result = []
    since = first
    for op, begin, end in calls:
        loose = [event for event in events[since:begin] if event[0] == StepEvent.ALLOC]  # as of `torch.empty`
        own, since = (*loose, *events[begin:end]), end
        gone = {key for kind, key, _ in own if kind == StepEvent.FREE}
        made = tuple(key for kind, key, _ in own if kind == StepEvent.ALLOC and key not in gone)
        result.append(_Call(op, own, made))
    # What is dropped right behind the pass is dropped by it: the end of a backward call frees what it held.
    while behind and behind[0][0] == StepEvent.FREE:
        between.append(behind.pop(0))
    return result, list(events[:first]), between, behind


def _prefers_channels_last(ops: Sequence[Op]) -> bool:
    """Tell whether Inductor changes the layout of convolutions: not beside grouped or strongly narrowing ones."""
    weights = [(op, tensor_at(op, 1)) for op in ops if op.name.startswith("aten.convolution.")]
    if not weights:
        return False
    grouped = any(weight is not None and op.arguments[-1] not in (1, "1") and weight.shape[1] > 1
                  for op, weight in weights)  # fmt: skip
    shapes = [weight.shape for _, weight in weights if weight is not None]
    small = all(max(shape[:2]) <= 64 for shape in shapes)
    narrowing = any(2 * shape[0] <= shape[1] and max(shape[2:]) > 1 for shape in shapes)
    return not grouped and not small and not narrowing


def _in_layout(op: Op, last: bool) -> Op:
    """Return a convolution with its tensors in channels-last layout, anything else as it is."""
    if not last or not op.name.startswith("aten.convolution"):
        return op
    return replace(op, inputs=tuple(map(channels_last, op.inputs)), outputs=tuple(map(channels_last, op.outputs)))


def _padded(op: Op) -> Op:
    """Return a matrix product with its sides padded to what the fast units of half precision read, as Inductor does."""
    if base_name(op) not in ("mm", "addmm", "bmm") or any(spec.dtype not in _HALF for spec in op.inputs):
        return op
    if max(spec.elements for spec in op.inputs) < _WORTH_PADDING:
        return op
    return replace(op, inputs=tuple(map(_to_eights, op.inputs)), outputs=tuple(map(_to_eights, op.outputs)))


def _to_eights(spec: TensorSpec) -> TensorSpec:
    shape = tuple(-(-length // _ALIGNED) * _ALIGNED if length > 1 else length for length in spec.shape)
    strides, step = list(spec.strides), 1
    for axis in sorted(range(len(shape)), key=lambda axis: spec.strides[axis]):
        if strides[axis]:
            strides[axis] = step
            step *= shape[axis]
    return replace(spec, shape=shape, strides=tuple(strides))
