"""Samples in memory: arrays by field, on the host or on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.base.errors import UsageError

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]


class ArraySamples:
    """Samples that are arrays in memory, or tensors on a device, by the names of their fields."""

    def __init__(self, fields: Mapping[str, Array | torch.Tensor]) -> None:
        lengths = {name: len(value) for name, value in fields.items()}
        if len(set(lengths.values())) != 1:
            raise UsageError(
                f"the fields of samples differ in length: {lengths}" if lengths else "samples need a field"
            )
        self.fields = dict(fields)
        self.size_bytes = sum(int(value.nbytes) for value in fields.values())
        self._count = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._count

    def batch(self, numbers: Any) -> dict[str, Any]:
        """Return the samples with these numbers: an array, or a tensor on the device where the samples are."""
        return {name: value[numbers] for name, value in self.fields.items()}

    def resident(self, device: torch.device) -> ArraySamples:
        """Return the same samples with their data on a device."""
        import torch

        return _DeviceSamples(
            {
                name: (value if isinstance(value, torch.Tensor) else torch.from_numpy(_plain(value))).to(device)
                for name, value in self.fields.items()
            }
        )


class _DeviceSamples(ArraySamples):
    """Samples that are tensors, from which tensors pick."""

    def batch(self, numbers: Any) -> dict[str, Any]:
        return {name: value.index_select(0, numbers) for name, value in self.fields.items()}  # type: ignore[union-attr]


def _plain(value: Array) -> Array:
    """Return an array that torch takes: native, contiguous and writable."""
    return np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
