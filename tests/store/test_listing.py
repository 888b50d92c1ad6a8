"""The files of a tree while they become known, in memory or on disk: the same listing either way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.digest import ManifestEntry, sha256_hex
from fairmile.store.listing import Listing

IN_MEMORY = pytest.mark.parametrize("in_memory", [1, 3, 1000])
NAMES = st.lists(st.sampled_from(["a", "a/b", "a-b", "a/b/c", "b", "é", "b\udcff", "a0"]), max_size=12)


def entry(path: str, number: int = 0, mode: int = 0o644) -> ManifestEntry:
    return ManifestEntry(path, number, sha256_hex(b"%d" % number), mode)


@IN_MEMORY
@given(names=NAMES)
def test_a_listing_is_a_sorted_dictionary_whose_last_entry_counts(in_memory: int, names: list[str]) -> None:
    listing, expected = Listing(in_memory=in_memory), {}
    for number, name in enumerate(names):
        listing.put(entry(name, number))
        expected[name] = entry(name, number)
    assert list(listing) == sorted(expected.values(), key=lambda each: each.path.encode("utf-8", "surrogateescape"))
    assert len(listing) == len(expected)
    assert listing.total_bytes() == sum(each.size_bytes for each in expected.values())
    assert all(listing.get(name) == each for name, each in expected.items())
    assert listing.get("absent") is None
    repeated = {name for name in names if names.count(name) > 1}
    assert listing.repeated()[0] == len(repeated)
    assert not repeated or listing.repeated()[1] in repeated


@IN_MEMORY
@given(names=NAMES)
def test_a_path_that_leads_through_a_file_is_found(in_memory: int, names: list[str]) -> None:
    listing = Listing((entry(name) for name in names), in_memory=in_memory)
    conflicts = {(name, other) for name in names for other in names if name.startswith(f"{other}/")}
    found = listing.through()
    assert found in conflicts if conflicts else found is None


@IN_MEMORY
def test_links_are_known_with_their_targets_until_a_file_takes_their_place(in_memory: int) -> None:
    listing = Listing(in_memory=in_memory)
    listing.put(entry("file", 1))
    listing.put(entry("link", 2, 0o120000), "../x")
    listing.put(entry("gone", 3, 0o120000), "y")
    listing.put(entry("gone", 4))
    assert list(listing.links()) == [("link", "../x")]
    assert listing.target("link") == "../x"
    assert listing.target("gone") is listing.target("file") is None


@IN_MEMORY
def test_what_the_check_raises_ends_the_reading(in_memory: int) -> None:
    def check() -> None:
        raise KeyboardInterrupt

    listing = Listing([entry("a"), entry("b")], check=check, in_memory=in_memory)
    with pytest.raises(KeyboardInterrupt):
        list(listing)


def test_a_size_beyond_what_a_database_counts_to_is_kept() -> None:
    listing = Listing([ManifestEntry("a", 10**19 - 1, sha256_hex(b""), 0o644)], in_memory=1)
    assert next(iter(listing)).size_bytes == 10**19 - 1
