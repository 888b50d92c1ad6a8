from __future__ import annotations

import hashlib
import os
import random
import stat
import time
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmile.base.errors import Integrity, SystemFailure
from fairmile.store import packs as module
from fairmile.store.packs import Pack, PackEntry, Packs, PackWriter


def written(folder: Path, objects: dict[bytes, bytes], keep: int = 0) -> Pack:
    """Write a pack under its own name and return it."""
    folder.mkdir(exist_ok=True)
    with PackWriter(f"{folder}/new") as writer:
        for digest, data in objects.items():
            to_write = writer.add(digest, data, keep=keep)
            if to_write is not None:
                writer.write(*to_write)
        writer.end()
        writer.sync()
        os.rename(writer.path, folder / writer.name)
        return Pack(f"{folder}/{writer.name}")


def by_digest(*texts: bytes) -> dict[bytes, bytes]:
    return {hashlib.sha256(text).digest(): text for text in texts}


@settings(deadline=None, max_examples=examples(40))
@given(st.sets(st.binary(max_size=50), max_size=80))
def test_every_object_of_a_pack_is_found_and_no_other_is(
    tmp_path_factory: pytest.TempPathFactory, texts: set[bytes]
) -> None:
    objects = by_digest(*texts)
    pack = written(tmp_path_factory.mktemp("packs"), objects)
    assert pack.count == len(objects)
    for digest, data in objects.items():
        place = pack.find(digest)
        assert place is not None
        assert place == (digest, place.offset, len(data))
        assert pack.read(place) == data
        assert pack.find(digest[:31] + bytes([digest[31] ^ 1])) is None
    assert [place.digest for place in pack.places()] == sorted(objects)


def test_digests_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    objects = {b"same" + bytes([number]) * 28: b"%d" % number for number in range(5)}
    pack = written(tmp_path, objects)
    for digest, data in objects.items():
        place = pack.find(digest)
        assert place is not None
        assert pack.read(place) == data
    assert pack.find(b"same" + b"\xff" * 28) is None


@pytest.mark.parametrize("asked", [1, 3, 40, 500])
def test_what_a_pack_lacks_of_few_or_many_is_told_in_their_order(tmp_path: Path, asked: int) -> None:
    objects = by_digest(*(b"%d" % number for number in range(300)))
    pack = written(tmp_path, objects)
    here, elsewhere = list(objects), [hashlib.sha256(b"-%d" % number).digest() for number in range(asked)]
    mixed = [digest for pair in zip(elsewhere, here * 2, strict=False) for digest in pair]
    assert pack.lacking(mixed) == elsewhere
    assert pack.lacking(here) == []
    assert pack.lacking([]) == []


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 255), (255, 255), (3, 3), (254, 255), (16, 200)])
def test_the_objects_whose_digest_begins_with_certain_bytes_are_listed(tmp_path: Path, first: int, last: int) -> None:
    objects = {bytes([byte]) + bytes([more]) * 31: b"" for byte in (0, 3, 4, 200, 254, 255) for more in (0, 255)}
    pack = written(tmp_path, objects)
    assert [place.digest for place in pack.places(first, last)] == [
        digest for digest in sorted(objects) if first <= digest[0] <= last
    ]


def test_a_pack_is_read_only_and_named_by_its_index_which_stands_at_its_end(tmp_path: Path) -> None:
    pack = written(tmp_path, by_digest(b"one", b"two"))
    path = Path(pack.path)
    assert path.read_bytes().startswith(b"onetwo")
    assert hashlib.sha256(path.read_bytes()[6:]).hexdigest() == path.stem == pack.index_sha256()
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_what_waits_is_written_in_large_pieces_in_any_order(tmp_path: Path) -> None:
    objects = by_digest(*(random.Random(number).randbytes(300_000) for number in range(20)))
    pieces = []
    with PackWriter(f"{tmp_path}/new") as writer:
        for digest, data in objects.items():
            pieces += [piece for piece in [writer.add(digest, data)] if piece is not None]
        assert 4 <= len(pieces) <= 6
        for piece in reversed(pieces):
            writer.write(*piece)
        writer.end()
        writer.sync()
    pack = Pack(writer.path)
    for digest, data in objects.items():
        place = pack.find(digest)
        assert place is not None
        assert pack.read(place) == data


def test_the_first_objects_stay_in_memory_as_long_as_asked_for(tmp_path: Path) -> None:
    with PackWriter(f"{tmp_path}/new") as writer:
        assert writer.add(b"a" * 32, bytes(2 << 20), keep=3) is None
        assert writer.add(b"b" * 32, b"b", keep=3) is None
        assert [digest for digest, _ in writer.in_memory()] == ["61" * 32, "62" * 32]
        assert not os.path.exists(writer.path)
        assert writer.add(b"c" * 32, b"c", keep=3) is not None
        assert writer.in_memory() == []


def test_a_pack_has_room_up_to_its_limits_and_always_for_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PACK_BYTES", 10)
    monkeypatch.setattr(module, "MAX_PACK_OBJECTS", 3)
    with PackWriter(f"{tmp_path}/new") as writer:
        assert writer.has_room(99)
        writer.add(b"a" * 32, b"12345")
        assert writer.has_room(5)
        assert not writer.has_room(6)
        writer.add(b"b" * 32, b"")
        writer.add(b"c" * 32, b"")
        assert not writer.has_room(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "cut off or is not a pack"),
        (lambda data: b"", "cut off or is not a pack"),
        (lambda data: data[:-16] + b"\xff" * 8 + data[-8:], "too short for the"),
    ],
)
def test_a_file_that_is_no_whole_pack_is_refused(tmp_path: Path, change: object, message: str) -> None:
    path = Path(written(tmp_path, by_digest(b"one", b"two")).path)
    damaged = tmp_path / "damaged.pack"
    damaged.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(Integrity, match=message) as caught:
        Pack(str(damaged))
    assert str(damaged) in caught.value.message


def test_a_place_outside_of_the_data_is_refused(tmp_path: Path) -> None:
    pack = written(tmp_path, by_digest(b"one"))
    for place in (PackEntry(b"x" * 32, 2, 2), PackEntry(b"x" * 32, 10_000, 1)):
        with pytest.raises(Integrity, match="ends within the object 7878"):
            pack.read(place)


def test_packs_of_a_folder_that_is_not_there_are_none(tmp_path: Path) -> None:
    packs = Packs(f"{tmp_path}/none")
    assert packs.current() == []
    assert packs.find(b"a" * 32) is None


def test_a_pack_that_another_process_adds_is_found_also_in_the_same_instant(tmp_path: Path) -> None:
    packs = Packs(str(tmp_path))
    stamp = time.time_ns()
    for number in range(3):
        digest = hashlib.sha256(b"%d" % number).digest()
        os.utime(tmp_path, ns=(stamp, stamp))
        assert packs.find(digest) is None
        written(tmp_path, {digest: b"%d" % number})
        os.utime(tmp_path, ns=(stamp, stamp))  # as if the file system's clock had not moved on
        assert packs.find(digest) is not None


def test_without_refresh_only_known_packs_are_asked(tmp_path: Path) -> None:
    packs = Packs(str(tmp_path))
    (digest,) = objects = by_digest(b"one")
    assert packs.current() == []
    written(tmp_path, objects)
    assert packs.find(digest, refresh=False) is None
    assert packs.find(digest) is not None
    assert packs.find(digest, refresh=False) is not None


def test_a_folder_that_did_not_change_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, by_digest(b"one"))
    os.utime(tmp_path, ns=(10**18, 10**18))
    packs = Packs(str(tmp_path))
    assert len(packs.current()) == 1
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail("listed again"))
    assert packs.find(b"a" * 32) is None
    assert len(packs.current()) == 1


def test_an_object_whose_pack_was_written_anew_elsewhere_is_found_in_the_new_one(tmp_path: Path) -> None:
    packs = Packs(str(tmp_path))
    old = written(tmp_path, by_digest(b"one", b"two"))
    digest = hashlib.sha256(b"two").digest()
    assert packs.find(digest) is not None
    new = written(tmp_path, by_digest(b"two", b"three"))
    os.unlink(old.path)
    found = packs.find(digest, refresh=False)
    assert found is not None
    assert found[0].path == new.path
    assert packs.find(hashlib.sha256(b"one").digest()) is None


def test_a_broken_pack_is_told_and_the_others_serve(tmp_path: Path) -> None:
    (digest,) = objects = by_digest(b"one")
    written(tmp_path, objects)
    (tmp_path / "bad.pack").write_bytes(b"nonsense")
    (tmp_path / "note.txt").write_text("no pack")
    packs = Packs(str(tmp_path))
    assert packs.find(digest) is not None
    assert list(packs.broken()) == [str(tmp_path / "bad.pack")]
    (tmp_path / "bad.pack").unlink()
    assert packs.broken() == {}


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemFailure, match=f"cannot read {tmp_path}/file"):
        Packs(f"{tmp_path}/file").current()
