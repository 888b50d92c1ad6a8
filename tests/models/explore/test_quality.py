"""A data set judges outputs by its own metric."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.base.errors import UsageError
from fairmile.models.explore.quality import loss_of, quality_of


def test_labels_are_judged_by_accuracy_and_rows_that_fill_up_the_last_portion_do_not_count() -> None:
    shares = [np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0.4, 0.6], [0.9, 0.1]])]
    assert quality_of([[each] for each in shares], np.array([0, 1, 0])) == ("accuracy", pytest.approx(2 / 3))
    assert quality_of([[np.array([1, 2])]], np.array([1, 2])) == ("accuracy", 1.0)


def test_numbers_are_judged_by_rmse() -> None:
    assert quality_of([[np.array([[1.0], [2.0]])]], np.array([1.0, 4.0])) == ("rmse", pytest.approx(2**0.5))


def test_targets_of_another_size_are_refused() -> None:
    with pytest.raises(UsageError, match="do not fit targets"):
        quality_of([[np.zeros((2, 3))]], np.zeros(2))


def test_a_loss_is_a_difference_of_accuracy_or_a_ratio_of_errors() -> None:
    assert loss_of("accuracy", 0.75, 0.5) == -0.25
    assert loss_of("rmse", 1.5, 1.0) == 0.5
