"""Images and their digits as samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Images:
    """Images and their digits, in memory or on a device."""

    images: Array | torch.Tensor
    labels: Array | torch.Tensor

    @property
    def size_bytes(self) -> int:
        return self.images.nbytes

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, numbers: Any) -> dict[str, Any]:
        """Return images and digits with these numbers."""
        return {"image": self.images[numbers], "digit": self.labels[numbers]}

    def resident(self, device: torch.device) -> Images:
        """Return the same on a device."""
        return Images(torch.as_tensor(self.images, device=device), torch.as_tensor(self.labels, device=device))


def scaled(images: torch.Tensor) -> torch.Tensor:
    """Return pixels between 0 and 1."""
    return images.float() / 255
