"""A generated screen has the structure of a real one."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.benchmarks.suite.uno.screens import SPREAD, Screen, make_screen


def test_responses_spread_as_the_published_ones() -> None:
    screens = [make_screen(seed) for seed in range(8)]
    assert np.mean([each.auc.std() for each in screens]) == pytest.approx(SPREAD, rel=0.1)
    assert all(np.median(each.auc) > each.auc.mean() for each in screens), "most drugs leave most cells alive"
    assert all(0.8 < each.ceiling < 0.97 for each in screens)


def test_each_pair_is_measured_once_at_most(screen: Screen) -> None:
    assert len(np.unique(screen.cell * 1000 + screen.drug)) == len(screen.auc) == round(0.7 * 40 * 30)
    assert screen.cells.dtype == screen.drugs.dtype == screen.auc.dtype == np.float32


def test_expression_has_low_rank_and_some_descriptors_are_counts() -> None:
    screen = make_screen(1)
    spread = np.linalg.svd((screen.cells - screen.cells.mean(0)) / screen.cells.std(0), compute_uv=False) ** 2
    assert spread[:30].sum() > 0.7 * spread.sum()
    assert (screen.drugs[:, ::3] == np.floor(screen.drugs[:, ::3])).all()


def test_a_screen_is_the_same_each_time(screen: Screen) -> None:
    again = make_screen(1, cells=40, drugs=30, genes=16, descriptors=24)
    assert np.array_equal(again.auc, screen.auc)
    assert not np.array_equal(make_screen(2, cells=40, drugs=30, genes=16, descriptors=24).auc, screen.auc)
