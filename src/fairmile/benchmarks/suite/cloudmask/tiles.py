"""Masks of scenes larger than a patch: overlapping patches whose edges are cut off, as the reference does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[Any]
_AT_ONCE = 16


def mask_scene(model: nn.Module, x: Array, edge: int, margin: int, device: torch.device) -> Array:
    """Return the mask of a scene (rows, columns, channels), mirrored beyond its own edges."""
    step = edge - 2 * margin
    rows, columns = x.shape[:2]
    far = [margin + -(-length // step) * step - length + margin for length in (rows, columns)]
    padded = np.pad(x, ((margin, far[0]), (margin, far[1]), (0, 0)), "symmetric")
    mask = np.zeros((rows + far[0], columns + far[1]), bool)
    places = [(row, column) for row in range(0, rows, step) for column in range(0, columns, step)]
    with torch.no_grad():
        for batch, found in _predict(model.eval(), padded, places, edge, device):
            for (row, column), each in zip(batch, found, strict=True):
                mask[row : row + step, column : column + step] = each[margin : edge - margin, margin : edge - margin]
    return mask[:rows, :columns]


def _predict(
    model: nn.Module, padded: Array, places: list[tuple[int, int]], edge: int, device: torch.device
) -> Iterator[tuple[list[tuple[int, int]], Array]]:
    for at in range(0, len(places), _AT_ONCE):
        batch = places[at : at + _AT_ONCE]
        patches = np.stack([padded[row : row + edge, column : column + edge] for row, column in batch])
        x = torch.from_numpy(patches.astype(np.float32)).to(device).permute(0, 3, 1, 2)
        yield batch, (model(x) > 0).cpu().numpy()
