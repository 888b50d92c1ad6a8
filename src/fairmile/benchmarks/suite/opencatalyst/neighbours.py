"""Neighbours of atoms in periodic cells: plain NumPy, or matscipy where it is installed, with the same result."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Edges(NamedTuple):
    """Directed edges, sorted by target, source and image: from `source` to `target`.

    The vector from target to source is positions[source] - positions[target] + images @ cell.
    """

    target: Array
    source: Array
    images: Array


def find_edges(positions: Array, cell: Array, periodic: Array, cutoff: float, most: int = 0) -> Edges:
    """Return all pairs nearer than `cutoff`; of each target the `most` nearest, where that is not 0."""
    find = _by_matscipy if _has_matscipy() else by_numpy
    edges = _sorted(*find(positions, cell, periodic, cutoff))
    return _nearest(edges, positions, cell, most) if most else edges


def by_numpy(positions: Array, cell: Array, periodic: Array, cutoff: float) -> tuple[Array, Array, Array]:
    """Compare every atom with every atom in every image of the cell that the cutoff can reach."""
    inverse = np.linalg.inv(cell)
    scaled = positions @ inverse
    home = np.where(periodic, np.floor(scaled), 0).astype(np.int64)  # atoms may lie outside of their cell
    inside = positions - home @ cell
    # The distance between the faces of the cell is one over the length of a column of the inverse.
    reach = np.where(periodic, np.ceil(cutoff * np.linalg.norm(inverse, axis=0)), 0).astype(int)
    axes = [np.arange(-each, each + 1) for each in reach]
    images = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    pairs = inside[None, :, :] - inside[:, None, :]
    target, source, image = [], [], []
    for each in images:
        distance = np.linalg.norm(pairs + each @ cell, axis=-1)
        rows, columns = np.nonzero((distance < cutoff) & (distance > 0))
        target.append(rows)
        source.append(columns)
        image.append(each - home[columns] + home[rows])
    return np.concatenate(target), np.concatenate(source), np.concatenate(image)


@cache
def _has_matscipy() -> bool:
    return find_spec("matscipy") is not None


def _by_matscipy(positions: Array, cell: Array, periodic: Array, cutoff: float) -> tuple[Array, Array, Array]:
    from matscipy.neighbours import neighbour_list

    target, source, images = neighbour_list(
        "ijS", positions=positions, cell=cell, pbc=np.asarray(periodic), cutoff=cutoff
    )
    return target, source, images


def _sorted(target: Array, source: Array, images: Array) -> Edges:
    order = np.lexsort((*images.T[::-1], source, target))
    return Edges(target[order], source[order], images[order])


def _nearest(edges: Edges, positions: Array, cell: Array, most: int) -> Edges:
    vectors = positions[edges.source] - positions[edges.target] + edges.images @ cell
    order = np.lexsort((np.linalg.norm(vectors, axis=1), edges.target))
    ordered = edges.target[order]
    place = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    kept = np.sort(order[place < most])
    return Edges(*(each[kept] for each in edges))


def find_triplets(target: Array, source: Array, shift: Array) -> tuple[Array, Array]:
    """Return pairs of edges k → j and j → i, edges sorted by target; the way back to i itself is left out."""
    count = int(max(target.max(initial=-1), source.max(initial=-1))) + 1
    starts = np.searchsorted(target, np.arange(count + 1))
    many = (starts[1:] - starts[:-1])[source]  # edges that end where this one begins
    outgoing = np.repeat(np.arange(len(target)), many)
    within = np.arange(len(outgoing)) - np.repeat(np.cumsum(many) - many, many)
    incoming = np.repeat(starts[:-1][source], many) + within
    returns = source[incoming] == target[outgoing]
    returns[returns] = np.abs(shift[incoming[returns]] + shift[outgoing[returns]]).max(1) < 1e-3
    return incoming[~returns], outgoing[~returns]
