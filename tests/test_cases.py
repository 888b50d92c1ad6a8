"""A test of many small cases names each that fails."""

from __future__ import annotations

import pytest
from cases import for_each


@for_each("half, whole", [(2, 5), (4, 8)])
def _doubles(plus: int, half: int, whole: int) -> None:
    assert 2 * half + plus == whole


def test_all_cases_are_tried_and_those_that_fail_are_named() -> None:
    with pytest.raises(ExceptionGroup) as failure:
        _doubles(plus=0)
    (one,) = failure.value.exceptions
    assert failure.value.message == "1 of 2 cases fail"
    assert one.__notes__ == ["case: half=2, whole=5"]
