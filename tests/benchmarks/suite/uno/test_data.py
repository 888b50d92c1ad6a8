"""Splits keep apart what they promise to keep apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.uno.data import PairSamples, split
from fairmile.benchmarks.suite.uno.screens import Screen


def test_blind_splits_share_no_cell_line_or_drug(screen: Screen) -> None:
    for how, axes in {"cells": ["cell"], "drugs": ["drug"], "both": ["cell", "drug"], "pairs": []}.items():
        parts = split(screen, how, 3)
        assert not set(parts.train) & set(parts.validation)
        for axis in ("cell", "drug"):
            number = getattr(screen, axis)
            seen = set(number[parts.train]) & set(number[parts.validation])
            assert bool(seen) == (axis not in axes), how


def test_what_chooses_a_penalty_is_as_new_as_the_test(screen: Screen) -> None:
    for how, axis in (("cells", "cell"), ("drugs", "drug")):
        parts = split(screen, how, 3)
        held = parts.like_test(0.2)
        number = getattr(screen, axis)[parts.train]
        assert held.any()
        assert not set(number[held]) & set(number[~held])


def test_published_parts_are_kept(screen: Screen) -> None:
    part = np.arange(len(screen.auc)) % 10
    published = dataclasses.replace(screen, part=np.where(part < 8, 0, part - 7).astype(np.int8))
    parts = split(published, "pairs", 3)
    assert [len(each) for each in (parts.train, parts.validation, parts.test)] == [672, 84, 84]
    assert "the published split" in parts.words
    assert len(split(published, "cells", 3).test) == 0


def test_too_few_pairs_are_refused(screen: Screen) -> None:
    one = dataclasses.replace(screen, cell=screen.cell[:1], drug=screen.drug[:1], auc=screen.auc[:1])
    with pytest.raises(UsageError, match="1 pairs are too few to split"):
        split(one, "pairs", 1)


def test_samples_gather_features_of_pairs(screen: Screen) -> None:
    samples = PairSamples.of(screen, np.array([5, 2, 9]))
    batch = samples.batch(np.array([2, 0]))
    assert np.array_equal(batch["cell"], screen.cells[screen.cell[[9, 5]]])
    resident = samples.resident(torch.device("cpu")).batch(torch.tensor([2, 0]))
    assert np.array_equal(resident["drug"].numpy(), batch["drug"])
    assert resident["auc"].tolist() == batch["auc"].tolist()
