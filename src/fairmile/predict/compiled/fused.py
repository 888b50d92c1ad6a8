"""How long kernels that Inductor writes take on a device."""

from __future__ import annotations

from fairmile.costs.devices import Device
from fairmile.costs.operators.work import Work
from fairmile.costs.steps import Op

# Learned from kernels of six compiled steps on one H200 (PyTorch 2.11), by what their text says of their work.
_LATENCY = 0.4  # of the least time of any operator: there is no library between the kernel and its launch
_READING = 0.3  # more where it waits for values
_CACHED = 1.17  # how much faster than memory what fits into the cache of the device is moved
_GATHERED, _BESIDE = 2.2, 2.1  # times the bandwidth: of reads where values say, of all else that such a kernel moves
# Operations of single precision that as much time would have done.
_ADDED = 117.0  # one addition where values say
_RANDOM = 160.0  # one random number
_WELFORD, _LOOPED = 37.0, 77.0  # one element of a running mean and spread; of an exponential within a loop

_COUNTED = ("gathered_bytes", "added", "random", "running", "looped")

# Share of the bandwidth of kernels that rules foresee, by whether they read half precision.
_RULED_EFFICIENCY = {True: 0.5, False: 0.85}


def fused_s(op: Op, work: Work, on: Device) -> float:
    """Return the seconds on the device of a kernel of Inductor, or of one that rules foresee."""
    known = dict(op.keywords)
    if not known:
        is_half = any(spec.dtype in ("bfloat16", "float16") for spec in op.inputs)
        return on.least_op_s + work.bytes / (_RULED_EFFICIENCY[is_half] * on.bandwidth_ceiling)
    counts: dict[str, int] = {name: known.get(name, 0) for name in _COUNTED}
    bandwidth, rate = on.bandwidth_ceiling, on.peak("float32", "elementwise")
    moved_s = work.bytes / (bandwidth * (_CACHED if work.bytes <= on.cache_bytes else 1.0))
    if gathered := counts["gathered_bytes"]:
        moved_s = max(moved_s, gathered / (_GATHERED * bandwidth) + work.bytes / (_BESIDE * bandwidth))
    counted_s = (_RANDOM * counts["random"] + _WELFORD * counts["running"] + _LOOPED * counts["looped"]) / rate
    start_s = on.least_op_s * (_LATENCY + _READING * bool(op.inputs))
    return start_s + max(moved_s + counted_s, _ADDED * counts["added"] / rate)
