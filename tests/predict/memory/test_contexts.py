"""What a process takes outside the allocator."""

from __future__ import annotations

import pytest
from cases import for_each

from fairmile.predict.memory.contexts import context_bytes

MIB = 2**20


@for_each("products, networks, mib", [(2, 2, 766.8), (2, 0, 750.8), (1, 1, 694.8), (0, 2, 636.8), (0, 0, 620.8)])
def test_each_thread_that_uses_a_library_adds_what_was_measured(products: int, networks: int, mib: float) -> None:
    size, is_known = context_bytes("h200", products=products, networks=networks)
    assert is_known
    assert size / MIB == pytest.approx(mib, abs=0.1)


def test_a_device_that_was_not_measured_has_the_default_and_says_so() -> None:
    size, is_known = context_bytes("a100-40gb", products=2, networks=2)
    assert not is_known
    assert size / MIB == pytest.approx(660.0, abs=0.1)
