"""From the words of a system file to links: the accelerators of a node, the adapters of the network, their number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files as resources
from typing import TYPE_CHECKING, Any

from fairmile.base import yaml
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.collectives.links import Kind, Link, Topology
from fairmile.costs.collectives.nccl import Architecture

if TYPE_CHECKING:
    from fairmile.systems.model import Partition

_COUNT = re.compile(r"^\s*(\d+)\s*[×x*]\s*(dual-port\s+)?", re.IGNORECASE)
_SPEED = re.compile(r"(\d+(?:\.\d+)?)\s*Gbit/s", re.IGNORECASE)
_FULLY_LINKED = 4  # up to so many accelerators of one node are linked pair by pair and need no switch


@dataclass(frozen=True)
class Wiring:
    """How a partition's ranks are joined; `call_s` is what every collective costs, `notes` what the figures rest on."""

    topology: Topology
    call_s: float = 0.0
    notes: tuple[str, ...] = ()
    architecture: Architecture | None = None  # of NVIDIA's accelerators, whose library has a model of its own
    has_accelerators: bool = False


def wiring_of(partition: Partition) -> Wiring:
    """Return the links of a partition as its system file describes them; what it does not say is taken as usual."""
    notes: list[str] = []
    table = _table()
    inter, rails = _network(partition.interconnect, notes)
    if partition.gpu is None:
        row = _row(table["links"], "shared memory")
        notes.append(f"inside a node: {_source_text(row)}")
        reduce_s = 1e-9 / table["reduce_gbyte_per_s"]
        intra = _link(row, gamma_s_per_byte=reduce_s)
        inter = Link(inter.alpha_s, inter.beta_s_per_byte, reduce_s)
        return Wiring(Topology(partition.cores or 1, intra, inter, "shared memory", rails), notes=tuple(notes))
    gpus = partition.gpu
    accelerator = _row(table["accelerators"], gpus.model)
    if accelerator is None:
        accelerator = {**_row(table["links"], "PCIe 4"), "call_us": 12, "kind": "PCIe"}
        notes.append(f"the links of {gpus.model!r} are unknown: PCIe 4 is assumed")
    notes.append(f"inside a node: {_source_text(accelerator)}")
    kind: Kind = accelerator["kind"]
    if kind in ("NVSwitch", "cube mesh") and gpus.count <= _FULLY_LINKED:
        kind = "all to all"
    inter = Link(inter.alpha_s + table["accelerator_network_us"] * 1e-6, inter.beta_s_per_byte)
    topology = Topology(gpus.count, _link(accelerator), inter, kind, rails)
    architecture = accelerator.get("architecture") if gpus.vendor == "nvidia" else None
    return Wiring(topology, accelerator["call_us"] * 1e-6, tuple(notes), architecture, has_accelerators=True)


def _network(text: str, notes: list[str]) -> tuple[Link, int]:
    table = _table()
    count = _COUNT.match(text)
    rails = int(count[1]) * (2 if count[2] else 1) if count else 1
    row = _row(table["networks"], text)
    if row is None:
        row = _row(table["networks"], "InfiniBand")
        notes.append(
            f"the network {text!r} is unknown: 100 Gbit/s is assumed"
            if text
            else "no network is given: 100 Gbit/s is assumed"
        )
    speed = _SPEED.search(text)
    if speed:
        row = {**row, "gbit_per_s": float(speed[1])}
    notes.append(f"between nodes: {rails} × {_source_text(row)}")
    return _link(row), rails


def _row(rows: Iterable[Mapping[str, Any]], text: str) -> Any:
    """Return the row with the longest name that stands in a text, or None."""
    fitting = [row for row in rows if row["name"].lower() in text.lower()]
    return max(fitting, key=lambda row: len(row["name"]), default=None)


def _link(row: Mapping[str, Any], gamma_s_per_byte: float = 0.0) -> Link:
    nominal = row["gbyte_per_s"] if "gbyte_per_s" in row else row["gbit_per_s"] / 8
    return Link(row["latency_us"] * 1e-6, 1e-9 / (nominal * row["efficiency"]), gamma_s_per_byte)


def _source_text(row: Mapping[str, Any]) -> str:
    nominal = row["gbyte_per_s"] if "gbyte_per_s" in row else row["gbit_per_s"] / 8
    name = row.get("link", row["name"])
    return f"{name}, {nominal:g} GB/s, {row['efficiency']:.0%} achieved ({row['status']}: {row['source']})"


@cache
def _table() -> Mapping[str, Any]:
    file = resources("fairmile.costs") / "data" / "interconnects.yaml"
    table: Mapping[str, Any] = yaml.load(file.read_text(encoding="utf-8"), file="interconnects.yaml")
    return table
