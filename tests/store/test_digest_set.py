"""A set of digests that may not fit into memory."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.store.digest_set import DigestSet

DIGESTS = st.lists(st.integers(0, 40).map(lambda number: hashlib.sha256(str(number).encode()).hexdigest()))


@given(DIGESTS, DIGESTS, st.integers(1, 50))
def test_it_behaves_like_a_sorted_set_in_memory_and_on_disk(inside: list[str], asked: list[str], room: int) -> None:
    with DigestSet(inside, in_memory=room) as digests:
        assert list(digests) == sorted(set(inside))
        assert len(digests) == len(set(inside))
        assert [each in digests for each in asked] == [each in set(inside) for each in asked]


def test_what_is_no_text_is_not_in_it() -> None:
    assert 7 not in DigestSet()


def test_a_text_that_is_no_digest_cannot_be_added() -> None:
    with pytest.raises(ValueError, match="hex"):
        DigestSet(["not hex"])
