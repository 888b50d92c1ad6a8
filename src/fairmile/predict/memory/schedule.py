"""A trace turned into what the allocator is asked for, in order, with what libraries ask for in between."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field, replace

from fairmile.base.errors import Integrity
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.steps import Op, StepEvent, StepTrace, TensorSpec
from fairmile.predict.memory.workspaces import PRODUCTS, BlockGroup, Workspaces

WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """A block wanted, or one given back where `size_bytes` is -1; `op` is the operator that runs, -1 outside any."""

    key: int
    size_bytes: int
    op: int


@dataclass
class Schedule:
    """Requests of building and of each step; categories and modules are those of the keys.

    `renamed` joins what the last step leaves to what it found: (key it made, key it gave back), for its repetition.
    """

    parts: list[list[BlockRequest]] = field(default_factory=list)  # building, then step by step
    categories: dict[int, str] = field(default_factory=dict)
    modules: dict[int, str] = field(default_factory=dict)
    renamed: list[tuple[int, int]] = field(default_factory=list)
    products: set[str] = field(default_factory=set)  # threads that multiply matrices
    networks: set[str] = field(default_factory=set)  # threads that use cuDNN
    has_neighbours: bool = False  # whether workspaces were taken from the nearest measured call
    repeatable: bool = False


def schedule(trace: StepTrace, workspaces: Workspaces) -> Schedule:
    """Return the requests of a trace on a device whose libraries behave as `workspaces` says."""
    return _Scheduler(trace, workspaces).run()


class _Scheduler:
    def __init__(self, trace: StepTrace, workspaces: Workspaces) -> None:
        self._trace = trace
        self._workspaces = workspaces
        self._result = Schedule(parts=[[]])
        self._next = len(trace.storages)
        self._running: list[int] = []
        self._made = 0
        self._groups: list[BlockGroup] = []
        self._held: list[int] = []
        self._epilogues: set[str] = set()
        self._copies: dict[int, TensorSpec] = {}
        self._kept: dict[int, int] = {}

    def run(self) -> Schedule:
        storages = self._trace.storages
        live: set[int] = set()
        for kind, number, _ in self._trace.events:
            if kind == StepEvent.ALLOC:
                storage = storages[number]
                live.add(number)
                self._ask(number, self._kept.get(number, storage.size_bytes), storage.category, storage.module)
                if self._groups and storage.op == (self._running[-1] if self._running else -1):
                    self._made += 1
                    self._take()
            elif kind == StepEvent.FREE:
                if number not in live:
                    raise Integrity(
                        f"the trace frees block {number}, which is not allocated", hint="trace the step again"
                    )
                live.remove(number)
                self._give(number)
            elif kind == StepEvent.BEGIN:
                self._begin(number)
            elif kind == StepEvent.END:
                self._end()
            else:
                self._result.parts.append([])
        self._join()
        return self._result

    def _begin(self, number: int) -> None:
        self._running.append(number)
        if len(self._running) > 1:
            return
        op = self._seen(self._trace.ops[number])
        self._kept = self._workspaces.kept_bytes(op)
        self._groups = sorted((*self._handles(op), *self._workspaces.of(op)), key=lambda each: each.after)
        self._made = 0
        self._take()

    def _seen(self, op: Op) -> Op:
        """A convolution's bias sums the gradient as it came, not the copy that the convolution reads."""
        if op.name == "aten.clone.default" and op.outputs:
            self._copies[op.outputs[0].storage] = op.inputs[0]
        elif op.name == "aten.convolution_backward.default":
            came = self._copies.get(op.inputs[0].storage)
            if came is not None and came.shape == op.inputs[0].shape:  # else the program itself copied it
                return replace(op, inputs=(replace(op.inputs[0], strides=came.strides), *op.inputs[1:]))
        return op

    def _end(self) -> None:
        self._running.pop()
        if self._running:
            return
        self._made = 1 << 30
        self._take()
        for key in reversed(self._held):
            self._give(key)
        self._held.clear()

    def _take(self) -> None:
        """Take and give back the groups whose turn has come."""
        while self._groups and self._groups[0].after <= self._made:
            group = self._groups.pop(0)
            keys = [self._ask(None, size, WORKSPACE, "") for size in group.sizes_bytes if size]
            if group.until == "end":
                self._held += keys
            elif group.until == "now":
                for key in reversed(keys):
                    self._give(key)

    def _handles(self, op: Op) -> list[BlockGroup]:
        """The first product of a thread makes a handle with a workspace, the first with a bias one more."""
        name = op.name.removeprefix("aten.").split(".")[0]
        thread = "backward" if op.phase == "backward" else "forward"
        rules = self._workspaces.rules
        sizes: list[int] = []
        if name in PRODUCTS and op.inputs and op.inputs[0].storage >= 0:
            if thread not in self._result.products:
                self._result.products.add(thread)
                sizes.append(rules.blas_handle_bytes)
            if name == "addmm" and thread not in self._epilogues and len(op.inputs[0].shape) == 1:
                self._epilogues.add(thread)
                sizes.append(rules.blas_epilogue_bytes)
        elif name.startswith("convolution") or "cudnn" in name:
            self._result.networks.add(thread)
            self._result.has_neighbours |= "attention" not in name
        return [BlockGroup(1, tuple(sizes), until="never")] if sizes else []

    def _ask(self, key: int | None, size: int, category: str, module: str) -> int:
        if key is None:
            key = self._next
            self._next += 1
        self._result.categories[key] = category
        self._result.modules[key] = module
        self._result.parts[-1].append(BlockRequest(key, size, self._running[-1] if self._running else -1))
        return key

    def _give(self, key: int) -> None:
        self._result.parts[-1].append(BlockRequest(key, -1, self._running[-1] if self._running else -1))

    def _join(self) -> None:
        """Match what the last step leaves behind with what it gave back of earlier steps, by size and order."""
        steps = len(self._result.parts) - 1
        if steps < 1:
            return
        last = self._result.parts[-1]
        sizes = {each.key: each.size_bytes for part in self._result.parts for each in part if each.size_bytes >= 0}
        made = [each.key for each in last if each.size_bytes >= 0]
        gone = {each.key for each in last if each.size_bytes < 0}
        left: dict[int, list[int]] = defaultdict(list)
        for key in made:
            if key not in gone:
                left[sizes[key]].append(key)
        ours = set(made)
        groups: dict[int, list[int]] = defaultdict(list)
        for key in sorted(gone - ours, key=lambda each: each):
            groups[sizes[key]].append(key)
        self._result.repeatable = True
        for size, keys in left.items():
            match = groups.get(size, [])
            if len(match) != len(keys):
                self._result.repeatable = False
            self._result.renamed += list(zip(keys, match, strict=False))
        if any(len(keys) != len(left.get(size, [])) for size, keys in groups.items()):
            self._result.repeatable = False
