"""When the digest of a file need not be found again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairmile.base import digest_cache
from fairmile.base.digest import sha256_file
from fairmile.base.digest_cache import DigestCache, Stamp


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is worth caching, of which every change counts as settled."""
    monkeypatch.setattr(digest_cache, "_SETTLED_NS", -1)
    path = tmp_path / "data.bin"
    path.write_bytes(b"1" * (100 << 10))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file that was read for its digest."""
    found: list[str] = []

    def read(path: str) -> str:
        found.append(os.path.basename(path))
        return sha256_file(path)

    monkeypatch.setattr(digest_cache, "sha256_file", read)
    return found


def digest(cache: Path, file: Path) -> str:
    digests = DigestCache(cache)
    found = digests.of(str(file), file.stat())
    digests.save()
    return found


def test_a_file_that_did_not_change_is_read_once(file: Path, tmp_path: Path, reads: list[str]) -> None:
    cache = tmp_path / "digests.json"
    assert digest(cache, file) == digest(cache, file) == sha256_file(file)
    assert reads == ["data.bin"]


@pytest.mark.parametrize("way", ["in place", "in place, time set back", "replaced, time set back"])
def test_a_change_of_the_same_size_is_seen(file: Path, tmp_path: Path, way: str) -> None:
    cache = tmp_path / "digests.json"
    before, status = digest(cache, file), file.stat()
    target = file if way.startswith("in place") else tmp_path / "other"
    target.write_bytes(b"2" * status.st_size)
    if way.endswith("set back"):
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    target.replace(file)
    assert digest(cache, file) == sha256_file(file) != before


def test_another_hard_link_is_no_change(file: Path, tmp_path: Path, reads: list[str]) -> None:
    cache = tmp_path / "digests.json"
    digest(cache, file)
    os.link(file, tmp_path / "link")
    digest(cache, file)
    assert reads == ["data.bin"]
    assert Stamp.of(file.stat()).key[-1] == 0


def test_a_file_that_just_changed_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(bytes(100 << 10))
    digests = DigestCache()
    for _ in range(2):
        digests.of(str(file), file.stat())
    assert len(reads) == 2


def test_a_damaged_cache_is_none(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "digests.json"
    for text in ("{", "[]", '{"/a": [1, 2]}'):
        cache.write_text(text)
        assert digest(cache, file) == sha256_file(file)


def test_of_too_many_digests_those_that_were_not_used_for_longest_are_forgotten(
    tmp_path: Path, file: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_cache, "_MOST_ENTRIES", 2)
    cache = tmp_path / "digests.json"
    files = [file, *(tmp_path / name for name in ("second.bin", "third.bin"))]
    for each in files[1:]:
        each.write_bytes(file.read_bytes())
    digest(cache, files[0])
    digest(cache, files[1])
    digests = DigestCache(cache)
    digests.of(str(files[0]), files[0].stat())  # used again beside a new one
    digests.of(str(files[2]), files[2].stat())
    digests.save()
    reads.clear()
    for each in (files[0], files[2], files[1]):
        digest(cache, each)
    assert reads == ["second.bin"]
