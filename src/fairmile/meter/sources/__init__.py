"""Energy counters and other sources, one small file each; a missing one is explained in one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from fairmile.base.errors import FairmileError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.meter.sources.source import Source, Where

__all__ = ["SOURCES", "Found", "Source", "Where", "find_sources"]

_HERE = "fairmile.meter.sources"

SOURCES: Registry[Callable[[Where], Source]] = Registry(
    "source of measurements",
    {
        "nvidia": Plugin(
            f"{_HERE}.nvidia:Nvidia", summary="NVIDIA GPUs: power, energy, temperature, load, clocks, memory"
        ),
        "nvidia_energy": Plugin(f"{_HERE}.nvidia:NvidiaEnergy", summary="NVIDIA GPUs: energy counter"),
        "amd": Plugin(f"{_HERE}.amd:Amd", summary="AMD GPUs: power, energy, temperature, load, clocks, memory"),
        "rapl": Plugin(f"{_HERE}.rapl:Rapl", summary="energy of processors and their memory, from hardware counters"),
        "cray": Plugin(f"{_HERE}.cray:Cray", summary="power and energy of an HPE Cray node and its parts"),
        "slurm": Plugin(f"{_HERE}.slurm:Slurm", summary="energy of the job's nodes, counted by Slurm"),
        "host": Plugin(f"{_HERE}.host:Host", summary="processors, memory, disks and network of this machine"),
        "process": Plugin(f"{_HERE}.process:ProcessTree", summary="a program and its child processes"),
    },
    entry_points="fairmile.meter_sources",
)


# Read apart because of what it costs; who asks for the one means the other too.
_PARTS = {"nvidia": "nvidia_energy"}


@dataclass(slots=True)
class AvailableSources:
    """The sources that a machine has, and for each that it lacks one sentence why."""

    sources: list[Source] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Close all sources."""
        for source in self.sources:
            source.close()


def find_sources(
    wanted: Sequence[str] | None = None,
    *,
    root: Path = Path("/"),
    pid: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> AvailableSources:
    """Return the sources among `wanted` (all, where none are named) that this machine has.

    A name may be followed by the devices to look at: "nvidia:0,2". A name that no source has raises NotFound.
    `pid` is the process whose tree is measured: this one, unless given.
    """
    available = AvailableSources()
    environment = os.environ if environ is None else environ
    for each in SOURCES.names() if wanted is None else _with_parts(wanted):
        name, _, devices = each.partition(":")
        if name in _PARTS.values() and any(
            whole in available.missing for whole, part in _PARTS.items() if part == name
        ):
            continue  # why was said of the whole
        where = Where(root, pid, tuple(filter(None, devices.replace(" ", "").split(","))), environment)
        try:
            available.sources.append(SOURCES[name](where))
        except FairmileError as error:
            if name not in SOURCES:
                raise
            reason = error.message.removeprefix(f"{name}: ")
            available.missing[name] = f"{name}: {reason}" + (f"; {error.hint}" if error.hint else "")
        except (OSError, ImportError) as error:
            available.missing[name] = f"{name}: {error}"
    return available


def _with_parts(wanted: Sequence[str]) -> list[str]:
    names: dict[str, None] = {}
    for each in wanted:
        name, colon, devices = each.partition(":")
        names[each] = None
        if name in _PARTS:
            names[f"{_PARTS[name]}{colon}{devices}"] = None
    return list(names)
