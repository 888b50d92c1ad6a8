"""The footprint of a traced step: what each block of a model holds, as spreading it over ranks needs to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fairmile.costs.operators.work import item_bytes
from fairmile.costs.steps import StepEvent, StepTrace, Storage, TensorSpec
from fairmile.predict.memory.sharding import ModelFootprint, Tied


def footprint_of(
    trace: StepTrace,
    *,
    batch: int,
    peak_bytes: int,
    reserved_bytes: int = 0,
    workspace_bytes: int = 0,
    context_bytes: int = 0,
) -> ModelFootprint:
    """Return what the last step of a trace holds, block by block in the order of the forward pass.

    What the peak holds beyond states, activations and workspaces counts as temporary. Ranks are taken to have the same
    share of slack as the whole step, which reserves `reserved_bytes` in all.
    """
    parameters: Counter[str] = Counter()
    activations: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    for number in _kept_for_backward(trace):
        storage = trace.storages[number]
        if storage.category == "parameter":
            parameters[unit_of(storage.module)] += storage.size_bytes
        elif storage.category == "activation":
            kept = copies if _is_copy_of_parameter(trace, storage) else activations
            kept[unit_of(storage.module)] += storage.size_bytes
    gradients, optimizer = _largest_at_once(trace, "gradient"), _largest_at_once(trace, "optimizer")
    order = _order(trace, {*parameters, *activations, *copies})
    rest = peak_bytes - parameters.total() - gradients - optimizer - workspace_bytes
    rest -= activations.total() + copies.total()
    return ModelFootprint(
        {unit: float(parameters[unit]) for unit in order},
        {unit: float(activations[unit]) for unit in order},
        float(gradients),
        float(optimizer),
        temporary_bytes=float(max(rest, 0)),
        workspace_bytes=float(workspace_bytes),
        context_bytes=float(context_bytes),
        batch=batch,
        parameters=trace.parameters,
        boundary_bytes=float(_boundary(trace, batch)),
        copies_bytes={unit: float(copies[unit]) for unit in order},
        tied=_tied(trace, set(order)),
        slack_share=max(0.0, reserved_bytes / peak_bytes - 1) if peak_bytes else 0.0,
    )


def _tied(trace: StepTrace, units: set[str]) -> list[Tied]:
    """Return the parameters that blocks use in the forward pass though another one owns them."""
    used: dict[tuple[str, str], set[int]] = {}
    for op in trace.ops:
        user = unit_of(op.module)
        if op.phase != "forward" or user not in units:
            continue
        for spec in op.inputs:
            if spec.storage < 0 or trace.storages[spec.storage].category != "parameter":
                continue
            owner = unit_of(trace.storages[spec.storage].module)
            if owner != user and owner in units:
                used.setdefault((owner, user), set()).add(spec.storage)
    return [
        Tied(owner, user, float(sum(trace.storages[each].size_bytes for each in sizes)))
        for (owner, user), sizes in used.items()
    ]


def _is_copy_of_parameter(trace: StepTrace, storage: Storage) -> bool:
    """Tell whether autocast made it from a parameter: such copies are as large whatever the batch."""
    if storage.op < 0:
        return False
    op = trace.ops[storage.op]
    made_from = [trace.storages[each.storage].category for each in op.inputs if each.storage >= 0]
    return op.name.startswith("aten._to_copy") and made_from == ["parameter"]


def batch_of(trace: StepTrace) -> int:
    """Return how many samples a batch has: what the program says, or the first length that most of the inputs have.

    Inputs count as they are made, those of the loss first. Where none is made, those that came from the host count as
    they are first used.
    """
    if trace.samples:
        return trace.samples
    of_loss = _first_lengths(trace, (spec for op in trace.ops if op.phase == "forward" for spec in op.outputs))
    made = of_loss or _first_lengths(trace, (spec for op in trace.ops for spec in op.outputs))
    lengths = made or _first_lengths(trace, (spec for op in trace.ops for spec in op.inputs))
    return lengths.most_common(1)[0][0] if lengths else 1


def _first_lengths(trace: StepTrace, specs: Iterable[TensorSpec]) -> Counter[int]:
    """Count the first lengths of inputs."""
    lengths: Counter[int] = Counter()
    seen: set[int] = set()
    for spec in specs:
        if spec.storage < 0 or spec.storage in seen or trace.storages[spec.storage].category != "input":
            continue
        seen.add(spec.storage)  # what follows may be a view of it with another shape
        if spec.shape:
            lengths[spec.shape[0]] += 1
    return lengths


def unit_of(module: str) -> str:
    """Return the block that a module is part of: its path up to the first number, or its first name."""
    parts = module.split(".")
    numbered = next((at for at, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: numbered + 1])


def _last_step(trace: StepTrace) -> int:
    return max((at for at, event in enumerate(trace.events) if event[0] == StepEvent.STEP), default=0)


def _kept_for_backward(trace: StepTrace) -> set[int]:
    """Return the storages that live when backward of the last step begins; of inference all of the fullest moment."""
    alive: set[int] = set()
    begins = _last_step(trace)
    best, most = alive.copy(), -1
    for at, (kind, number, _) in enumerate(trace.events):
        if kind == StepEvent.ALLOC:
            alive.add(number)
        elif kind == StepEvent.FREE:
            alive.discard(number)
        if at < begins:
            continue
        if kind == StepEvent.BEGIN and trace.ops[number].phase == "backward":
            return set(alive)
        if not trace.training and kind == StepEvent.ALLOC:
            size = sum(trace.storages[each].size_bytes for each in alive)
            if size > most:
                best, most = set(alive), size
    return best or alive


def _largest_at_once(trace: StepTrace, category: str) -> int:
    now = most = 0
    for kind, number, _ in trace.events:
        if kind in (StepEvent.ALLOC, StepEvent.FREE) and trace.storages[number].category == category:
            now += trace.storages[number].size_bytes * (1 if kind == StepEvent.ALLOC else -1)
            most = max(most, now)
    return most


def _order(trace: StepTrace, units: set[str]) -> list[str]:
    """Return blocks in the order in which the forward pass comes to them."""
    seen = dict.fromkeys(unit_of(op.module) for op in trace.ops if op.phase == "forward")
    return [*(unit for unit in seen if unit in units), *sorted(units - set(seen))] or [""]


def _boundary(trace: StepTrace, batch: int) -> int:
    """Return the usual size of what one block hands to the next: of the first inputs with all samples the commonest."""
    first: dict[str, int] = {}
    for op in trace.ops:
        unit = unit_of(op.module)
        if op.phase != "forward" or not unit or unit in first:
            continue
        for spec in op.inputs:
            if len(spec.shape) > 1 and spec.shape[0] == batch:
                first[unit] = spec.elements * item_bytes(spec.dtype)
                break
    return Counter(first.values()).most_common(1)[0][0] if first else 0
