"""How far predictions of compiled steps may be off, and what CUDA graphs add to them."""

from __future__ import annotations

from dataclasses import replace

from fairmile.costs.steps import StepEvent, StepTrace
from fairmile.predict.memory.account import MemoryAccount, SizeInterval

# Of the predicted size: 14 compiled steps that were measured took from 18 % less to 56 % more, most within 6 %.
_LEAST, _MOST = 0.8, 1.6
_GRAPHS = ("reduce-overhead", "max-autotune")


def of_compiled(taken: MemoryAccount, trace: StepTrace) -> MemoryAccount:
    """Return the account of a compiled step with intervals of its own, and the private pool of CUDA graphs."""
    notes = list(taken.notes)
    pool = 0
    if trace.compiled in _GRAPHS:
        pool = _optimizer_bytes(trace)
        notes.append("CUDA graphs keep their tensors in a private pool that the optimizer cannot use")
    reserved, device = taken.peak_reserved_bytes + pool, taken.device_used_bytes + pool
    breakdown = dict(taken.breakdown)
    if pool:
        breakdown["private pool"] = pool
    # Only what tensors take is in doubt: context and libraries are the same.
    return replace(
        taken,
        peak_reserved_bytes=reserved,
        device_used_bytes=device,
        wanted_bytes=max(taken.wanted_bytes, device),
        breakdown=breakdown,
        fits=taken.fits and device <= taken.device_bytes,
        out_of_memory=taken.out_of_memory or _too_large(device, taken),
        allocated_span=_span(taken.allocated_span, taken.peak_allocated_bytes, 0),
        reserved_span=_span(taken.reserved_span, reserved, pool),
        device_span=_span(taken.device_span, reserved, pool),
        notes=notes,
    )


def _too_large(device_bytes: int, taken: MemoryAccount) -> str | None:
    if device_bytes <= taken.device_bytes:
        return None
    return f"it takes {device_bytes - taken.device_bytes:,} bytes more than the device has"


def _span(span: SizeInterval, size: int, added: int) -> SizeInterval:
    return SizeInterval(
        max(0, span.low + added - round((1 - _LEAST) * size)), span.high + added + round((_MOST - 1) * size)
    )


def _optimizer_bytes(trace: StepTrace) -> int:
    """Return the most memory that temporary tensors of the optimizer take in the last step."""
    running, live, most = [-1], 0, 0
    ours: set[int] = set()
    for kind, number, _ in trace.events:
        if kind == StepEvent.STEP:
            ours, live, most = set(), 0, 0
        elif kind == StepEvent.BEGIN:
            running.append(number)
        elif kind == StepEvent.END:
            running.pop()
        elif kind == StepEvent.ALLOC and running[-1] >= 0 and trace.ops[running[-1]].phase == "optimizer":
            ours.add(number)
            live += trace.storages[number].size_bytes
            most = max(most, live)
        elif kind == StepEvent.FREE and number in ours:
            live -= trace.storages[number].size_bytes
    return most
