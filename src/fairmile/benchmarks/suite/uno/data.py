"""What of a screen is learned from and what is tested: pairs at random, new cell lines, new drugs, or both new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.uno.screens import Screen

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]
Split = Literal["pairs", "cells", "drugs", "both"]
_HELD_OUT = 0.2
_WORDS = {
    "pairs": "random pairs of known cell lines and drugs",
    "cells": "cell lines never seen in training",
    "drugs": "drugs never seen in training",
    "both": "cell lines and drugs never seen in training",
}


@dataclass(frozen=True)
class Parts:
    """The screen, and the numbers of the rows to learn from, to validate and to test with; the last may be none."""

    screen: Screen
    train: Array
    validation: Array
    test: Array
    how: Split
    words: str

    def like_test(self, share: float) -> Array:
        """Return which rows to learn from are held out in the way of the test, to choose settings of a method."""
        rng = np.random.default_rng(3)
        screen, train = self.screen, self.train
        if self.how == "pairs":
            return _held_out(rng, len(train), share)
        axes = [each for each, how in zip(_axes(screen), ("cells", "drugs"), strict=True) if self.how in (how, "both")]
        held = np.zeros(len(train), bool)
        for _, number in axes:
            known = np.unique(number[train])
            held |= np.isin(number[train], known[_held_out(rng, len(known), share)])
        return held


def split(screen: Screen, how: Split, seed: int) -> Parts:
    """Return the parts as published, or a fifth of pairs, cell lines or drugs for the test."""
    if how == "pairs" and screen.part.any():
        train, validation, test = (np.flatnonzero(screen.part == number) for number in range(3))
        return _checked(screen, train, validation, test, how, "the published split: ")
    rng = np.random.default_rng([seed, 9])
    new_cell, new_drug = (_held_out(rng, len(each))[number] for each, number in _axes(screen))
    if how == "pairs":
        tested = _held_out(rng, len(screen.auc))
        learned = ~tested
    else:
        tested = {"cells": new_cell, "drugs": new_drug, "both": new_cell & new_drug}[how]
        learned = ~tested if how != "both" else ~(new_cell | new_drug)
    none = np.empty(0, np.int64)
    return _checked(screen, np.flatnonzero(learned), np.flatnonzero(tested), none, how)


def _axes(screen: Screen) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return (screen.cells, screen.cell), (screen.drugs, screen.drug)


def _held_out(rng: np.random.Generator, many: int, share: float = _HELD_OUT) -> Array:
    """Return which of this number of things are for the test."""
    held = np.zeros(many, bool)
    held[rng.permutation(many)[: max(round(share * many), 1)]] = True
    return held


def _checked(screen: Screen, train: Array, validation: Array, test: Array, how: Split, about: str = "") -> Parts:
    if not len(train) or not len(validation):
        raise UsageError(f"{len(screen.auc):,} pairs are too few to split: {len(train)} to learn from")
    more = f" and {len(test):,}" if len(test) else ""
    words = (
        f"{len(screen.cells):,} cell lines, {len(screen.drugs):,} drugs, {len(train):,} pairs to learn from, "
        f"{len(validation):,}{more} to test ({about}{_WORDS[how]})"
    )
    return Parts(screen, train, validation, test, how, words)


class PairSamples:
    """Pairs, whose features are gathered from those of cell lines and drugs."""

    def __init__(self, cells: Any, drugs: Any, cell: Any, drug: Any, auc: Any) -> None:
        self._fields = cells, drugs, cell, drug, auc
        self.size_bytes = sum(int(each.nbytes) for each in self._fields)

    @classmethod
    def of(cls, screen: Screen, rows: Array) -> PairSamples:
        """Return these rows of a screen."""
        return cls(screen.cells, screen.drugs, screen.cell[rows], screen.drug[rows], screen.auc[rows])

    def __len__(self) -> int:
        return len(self._fields[-1])

    def batch(self, numbers: Any) -> Mapping[str, Any]:
        """Return the features and responses of these pairs."""
        cells, drugs, cell, drug, auc = self._fields
        return {"cell": cells[cell[numbers]], "drug": drugs[drug[numbers]], "auc": auc[numbers]}

    def resident(self, device: torch.device) -> PairSamples:
        """Return the same with everything on a device."""
        import torch

        return PairSamples(*(torch.as_tensor(each, device=device) for each in self._fields))
