"""What a process takes of a device outside the caching allocator: the context, and what libraries load."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from fairmile.base.yaml import load
from fairmile.costs.devices import Device


def context_bytes(slug: str, *, products: int, networks: int) -> tuple[int, bool]:
    """Return what a process takes where so many threads multiply matrices and use cuDNN, and whether it was measured.

    Devices that were not measured have the table's default.
    """
    contexts: dict[str, dict[str, Any]] = libraries()["contexts"]
    known = contexts.get(slug, contexts["default"])
    total = int(known["bare"]) + int(known["kernels"]) + int(known["dnn"]) * networks
    if products:
        total += int(known["blas"]) + int(known["blas_second"]) * (products - 1)
    return total, bool(known["verified"])


def unmeasured_note(on: Device) -> str:
    """Say of a device that its libraries' memory is that of others."""
    return f"not checked: workspaces and context of {on.name} were not measured; those of other devices are used"


@cache
def libraries() -> dict[str, Any]:
    """Return what was measured of libraries' memory: by architecture, contexts by device, and how far that is off."""
    text = (
        resources.files("fairmile.costs").joinpath("data", "workspaces", "libraries.yaml").read_text(encoding="utf-8")
    )
    table: dict[str, Any] = load(text, file="libraries.yaml")
    return table
