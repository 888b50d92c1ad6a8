"""What devices can do: peaks, bandwidth, memory and power, from datasheets and, where measured, from measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from fairmile.base.errors import Integrity, NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.base.yaml import load

_US = 1e-6
# Libraries compute products of fp32 with the units for tf32 in convolutions and recurrent networks unless told not to.
TF32_BY_DEFAULT = ("conv", "rnn")


@dataclass(frozen=True)
class Device:
    """A kind of accelerator; rates are dense, bandwidth is the datasheet's, `measured` holds ceilings that were met."""

    slug: str
    name: str
    architecture: str
    aliases: tuple[str, ...]
    peak_flops_per_s: Mapping[str, float]  # by "float32", "tf32", …, "float64_matrix" where products are faster
    memory_bytes: int
    bandwidth_bytes_per_s: float
    multiprocessors: int
    cache_bytes: int
    link_bytes_per_s: float
    idle_w: float
    max_w: float
    least_op_s: float  # on the device, however small the operator
    source: str
    date: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def peak(self, dtype: str, kind: str = "gemm", *, tf32: bool = False) -> float:
        """Return operations per second at the roof for operands of `dtype` in an operator of `kind`."""
        peaks = self.peak_flops_per_s
        if kind not in ("gemm", "conv", "attention", "rnn"):
            # Everything else runs on the plain units, in 32 bits.
            return peaks["float64"] if dtype in ("float64", "complex128") else peaks["float32"]
        if dtype in ("float64", "complex128"):
            return peaks.get("float64_matrix", peaks["float64"]) if kind == "gemm" else peaks["float64"]
        if dtype in ("float32", "complex64"):
            return peaks.get("tf32", peaks["float32"]) if tf32 or kind in TF32_BY_DEFAULT else peaks["float32"]
        if dtype == "int8" or dtype.startswith("float8"):  # units of one byte an operand are as fast for either
            return peaks.get("float8", peaks["float16"])
        return peaks.get(dtype, peaks["float16"] if dtype == "bfloat16" else peaks["float32"])

    @property
    def bandwidth_ceiling(self) -> float:
        """Return bytes per second as measured, or nine tenths of the datasheet's."""
        return float(self.measured.get("bandwidth_bytes_per_s", 0.9 * self.bandwidth_bytes_per_s))


def device(name: str) -> Device:
    """Return a device by its name or an alias, case and punctuation aside; NotFound suggests the nearest."""
    table = _by_name()
    known = table.get(_plain(name))
    if known is None:
        names = sorted({alias for each in table.values() for alias in (each.slug, *each.aliases)})
        hint = did_you_mean(name, names) or f"known: {', '.join(device_names())}"
        raise NotFound(f"no device named {name!r}", hint=hint)
    return known


def device_names() -> list[str]:
    """Return the short names of all devices."""
    return sorted({each.slug for each in _by_name().values()})


@cache
def _by_name() -> dict[str, Device]:
    devices: dict[str, Device] = {}
    folder = files("fairmile.costs") / "data" / "devices"
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if each.name.endswith(".yaml"):
            one = read_device(each)
            for name in (one.slug, one.name, *one.aliases):
                devices[_plain(name)] = one
    return devices


def read_device(file: Traversable) -> Device:
    """Read one device's file; Integrity says what it lacks."""
    fields = load(file.read_text(encoding="utf-8"), file=str(file))
    try:
        return Device(
            slug=file.name.removesuffix(".yaml"),
            name=str(fields["name"]),
            architecture=str(fields["architecture"]),
            aliases=tuple(map(str, fields.get("aliases", ()))),
            peak_flops_per_s={str(key): float(value) for key, value in fields["peak_flops_per_s"].items()},
            memory_bytes=int(fields["memory_bytes"]),
            bandwidth_bytes_per_s=float(fields["bandwidth_bytes_per_s"]),
            multiprocessors=int(fields["multiprocessors"]),
            cache_bytes=int(fields["cache_bytes"]),
            link_bytes_per_s=float(fields["link_bytes_per_s"]),
            idle_w=float(fields["idle_w"]),
            max_w=float(fields["max_w"]),
            least_op_s=float(fields["least_op_us"]) * _US,
            source=str(fields["source"]),
            date=str(fields["date"]),
            measured=dict(fields.get("measured") or {}),
            note=str(fields.get("note", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Integrity(
            f"{file} is not a device description: {error}", hint="compare it with another device's file"
        ) from error


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())
