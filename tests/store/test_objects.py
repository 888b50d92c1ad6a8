from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairmile.base.errors import NotFound, SystemFailure, UsageError
from fairmile.store import objects as module
from fairmile.store import packs as packs_module
from fairmile.store.objects import Damage, Objects, make_folder
from fairmile.store.packs import Pack


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def bytes_of(objects: Objects, sha256: str) -> bytes:
    with objects.open(sha256) as stream:
        return stream.read()


def add(objects: Objects, *datas: bytes) -> list[str]:
    with objects.batch() as batch:
        return [batch.add(data) for data in datas]


def small(count: int, seed: int = 0) -> list[bytes]:
    return [b"%d/%d" % (seed, number) for number in range(count)]


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def packs_of(objects: Objects) -> list[Path]:
    return sorted((objects.root / "packs").glob("*"))


def is_clean(objects: Objects) -> bool:
    """Tell whether all bytes are right and nothing half-done is left."""
    return list(objects.verify()) == [] and files_below(objects.incoming) == []


def python(script: str, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", script, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "pool")


# Adding and reading


def test_an_object_is_found_by_its_digest_with_its_size_and_bytes(objects: Objects) -> None:
    large, tiny = bytes(100_000), b"tiny"
    assert add(objects, large, tiny) == [sha(large), sha(tiny)]
    for data in (large, tiny):
        assert sha(data) in objects
        assert objects.size(sha(data)) == len(data)
        assert bytes_of(objects, sha(data)) == data
        path = objects.path(sha(data))
        assert path == objects.root / "objects" / sha(data)[:2] / sha(data)[2:]
    assert is_clean(objects)


def test_an_absent_object_is_none_and_opening_it_says_so(objects: Objects) -> None:
    assert sha(b"x") not in objects
    assert objects.size(sha(b"x")) is None
    assert objects.path(sha(b"x")) is None
    with pytest.raises(NotFound, match=f"the object {sha(b'x')} is not in the pool {objects.root}"):
        objects.open(sha(b"x"))


@pytest.mark.parametrize("more", [0, 2000], ids=["alone", "among many"])
def test_what_is_absent_of_many_is_told_in_their_order_wherever_the_others_lie(tmp_path: Path, more: int) -> None:
    objects = Objects(tmp_path / "pool")
    start = "ab"  # one folder holds them all, as a two hundred and fifty-sixth of a large store does
    folder = tmp_path / "pool" / "objects" / start
    folder.mkdir(parents=True)
    packed = add(objects, *small(20))
    loose = [start + sha(b"loose %d" % number)[2:] for number in range(60)]
    for digest in [*loose, *(start + sha(b"more %d" % number)[2:] for number in range(more))]:
        (folder / digest[2:]).touch()
    (folder / loose[7][2:]).unlink()
    (folder / loose[8][2:]).unlink()
    (folder / loose[8][2:]).symlink_to("nowhere")
    lost = sha(b"never here")
    assert objects.absent([lost, *packed, *loose]) == [lost, loose[7], loose[8]]
    assert objects.absent([loose[7], loose[6]]) == [loose[7]]


def test_asking_creates_nothing(objects: Objects) -> None:
    assert sha(b"x") not in objects
    assert list(objects.items()) == []
    assert list(objects.verify()) == []
    assert objects.remove([sha(b"x")]) == 0
    with objects.batch():
        pass
    assert not objects.root.exists()


@pytest.mark.parametrize("name", ["", "abc", "../../" + "a" * 58, "A" * 64, "g" * 64, "a" * 63 + "\n"])
def test_what_is_no_sha256_is_refused_before_it_becomes_a_path(objects: Objects, name: str) -> None:
    for ask in (objects.path, objects.size, objects.open, lambda sha256: objects.remove([sha256])):
        with pytest.raises(UsageError, match="is not a sha256"):
            ask(name)
    with pytest.raises(UsageError, match="is not a sha256"), objects.batch() as batch:
        batch.add(b"data", name)


def test_small_objects_of_a_batch_share_one_pack_and_large_ones_are_files(objects: Objects) -> None:
    datas = [*small(40), b"", bytes(objects.pack_below_bytes - 1)]
    large = bytes(objects.pack_below_bytes)
    digests = add(objects, *datas, large)
    assert len(packs_of(objects)) == 1
    assert files_below(objects.root / "objects") == [f"{sha(large)[:2]}/{sha(large)[2:]}"]
    for digest, data in zip(digests, [*datas, large], strict=True):
        assert digest in objects
        assert objects.size(digest) == len(data)
        assert bytes_of(objects, digest) == data
    assert objects.path(digests[0]) is None
    assert is_clean(objects)


@pytest.mark.parametrize(("count", "packs"), [(15, 0), (16, 1)])
def test_a_few_small_objects_are_files_of_their_own(objects: Objects, count: int, packs: int) -> None:
    digests = add(objects, *small(count))
    assert len(packs_of(objects)) == packs
    assert [digest in objects for digest in digests] == [True] * count


def test_a_pool_can_keep_every_object_as_a_file(tmp_path: Path) -> None:
    objects = Objects(tmp_path, pack_below_bytes=0)
    digests = add(objects, *small(30), b"")
    with objects.batch() as batch:
        assert batch.add_stream(io.BytesIO(b"streamed")) == (sha(b"streamed"), 8)
    assert packs_of(objects) == []
    assert all(objects.path(digest) for digest in [*digests, sha(b"streamed")])


def test_files_and_packs_are_read_only(objects: Objects) -> None:
    add(objects, *small(20), bytes(100_000))
    for folder in ("objects", "packs"):
        for file in files_below(objects.root / folder):
            assert stat.S_IMODE((objects.root / folder / file).stat().st_mode) == 0o444


def test_the_same_bytes_are_stored_once_whoever_brings_them_however(objects: Objects, tmp_path: Path) -> None:
    datas = [*small(20), bytes(100_000)]
    digests = add(objects, *datas, *datas)
    before = files_below(objects.root)
    add(Objects(objects.root), *datas)
    with objects.batch() as batch:
        for data in datas:
            batch.add_stream(io.BytesIO(data))
    (objects.incoming / "file").write_bytes(datas[-1])
    objects.adopt(objects.incoming / "file", digests[-1])
    assert files_below(objects.root) == before
    assert list(objects.items()) == sorted((sha(data), len(data)) for data in datas)


def test_a_digest_that_the_caller_computed_is_not_computed_again(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "sha256_hex", lambda data: pytest.fail("computed again"))
    with objects.batch() as batch:
        assert batch.add(b"data", sha(b"data")) == sha(b"data")
    assert sha(b"data") in objects


class Trickle(io.RawIOBase):
    """A stream that gives few bytes at a time and never more than asked for."""

    def __init__(self, data: bytes, step: int) -> None:
        self._rest, self._step = data, step
        self.most = 0

    def read(self, size: int = -1, /) -> bytes:
        self.most = max(self.most, size)
        taken, self._rest = self._rest[: min(size, self._step)], self._rest[min(size, self._step) :]
        return taken


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 3_000_000])
@pytest.mark.parametrize("step", [1_000, 10_000_000])
def test_a_stream_of_any_size_is_added_in_bounded_pieces(objects: Objects, size: int, step: int) -> None:
    data = random.Random(size).randbytes(size)
    stream = Trickle(data, step)
    with objects.batch() as batch:
        assert batch.add_stream(stream) == (sha(data), size)
    assert bytes_of(objects, sha(data)) == data
    assert stream.most <= 1 << 20
    assert is_clean(objects)


def test_a_stream_that_breaks_costs_only_itself(objects: Objects) -> None:
    class Broken(Trickle):
        def read(self, size: int = -1, /) -> bytes:
            data = super().read(size)
            if not data:
                raise ConnectionResetError("gone")
            return data

    with objects.batch() as batch:
        for size in (10, 1_000_000):
            with pytest.raises(ConnectionResetError):
                batch.add_stream(Broken(bytes(size), 5_000))
        batch.add(b"good")
    assert [digest for digest, _ in objects.items()] == [sha(b"good")]
    assert is_clean(objects)


def test_nothing_is_visible_before_the_batch_ends(objects: Objects) -> None:
    datas = [*small(20), bytes(100_000)]
    with objects.batch() as batch:
        for data in datas:
            batch.add(data)
        assert not any(sha(data) in Objects(objects.root) for data in datas)
    assert all(sha(data) in Objects(objects.root) for data in datas)


@pytest.mark.parametrize("error", [ValueError("own"), KeyboardInterrupt()])
def test_an_exception_drops_the_whole_batch(objects: Objects, error: BaseException) -> None:
    with pytest.raises(type(error)), objects.batch() as batch:
        for data in [*small(20), random.Random(1).randbytes(3 << 20)]:
            batch.add(data)
        batch.add_stream(io.BytesIO(bytes(1 << 20)))
        raise error
    assert list(objects.items()) == []
    assert files_below(objects.root) == []


def test_a_batch_that_has_ended_takes_nothing_more(objects: Objects) -> None:
    with objects.batch() as batch:
        batch.add(b"one")
    for late in (lambda: batch.add(b"two"), lambda: batch.add_stream(io.BytesIO(bytes(1 << 20)))):
        with pytest.raises(UsageError, match="the batch has ended"):
            late()
    assert is_clean(objects)


def test_many_threads_add_to_one_batch(objects: Objects) -> None:
    chance = random.Random(5)
    datas = [chance.randbytes(chance.choice([0, 10, 8_000, 60_000, 70_000])) for _ in range(600)] + small(50)
    with objects.batch() as batch, ThreadPoolExecutor(16) as pool:
        list(pool.map(batch.add, datas + datas))
    assert dict(objects.items()) == {sha(data): len(data) for data in datas}
    assert all(bytes_of(objects, sha(data)) == data for data in datas)
    assert len(packs_of(objects)) == 1
    assert is_clean(objects)


def test_a_batch_that_fails_waits_for_threads_that_are_writing(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, may_write, ends = threading.Event(), threading.Event(), []

    def slow_write(fd: int, data: bytes, offset: int) -> None:
        writes.set()
        may_write.wait()
        ends.append(os.fstat(fd).st_ino)  # fails when the file was closed meanwhile

    monkeypatch.setattr(packs_module, "write_all", slow_write)
    batch = objects.batch()

    def work() -> None:
        with pytest.raises(UsageError, match="the batch has ended"):
            for number in range(50):
                batch.add(bytes([number]) * 60_000)

    worker = threading.Thread(target=work)
    with pytest.raises(ValueError, match="own"), batch:
        worker.start()
        writes.wait()
        threading.Timer(0.05, may_write.set).start()
        raise ValueError("own")
    worker.join()
    assert len(ends) == 1
    assert files_below(objects.root) == []


def test_a_pack_grows_to_its_limit_and_then_the_next_begins(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs_module, "MAX_PACK_BYTES", 100_000)
    datas = [bytes([number]) * 9_000 for number in range(40)]
    with objects.batch() as batch:
        for data in datas + datas:
            batch.add(data)
    assert len(packs_of(objects)) == 4
    assert dict(objects.items()) == {sha(data): 9_000 for data in datas}
    assert is_clean(objects)


def test_packs_are_merged_before_they_become_many(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    datas: list[bytes] = []
    for number in range(40):
        datas += small(16, number)
        add(objects, *small(16, number))
    assert len(packs_of(objects)) < 16
    assert dict(objects.items()) == {sha(data): len(data) for data in datas}
    assert is_clean(objects)


def test_merging_keeps_a_pack_that_already_holds_what_the_others_hold(objects: Objects, tmp_path: Path) -> None:
    other = Objects(tmp_path / "other")
    add(objects, *small(40))
    add(other, *small(20))
    (all_of_it,) = packs_of(objects)
    (part_of_it,) = packs_of(other)
    shutil.copy(part_of_it, all_of_it.parent)
    objects._rewrite([Pack(str(all_of_it)), Pack(str(all_of_it.parent / part_of_it.name))])
    assert packs_of(objects) == [all_of_it]
    assert all(bytes_of(objects, sha(data)) == data for data in small(40))
    assert is_clean(objects)


def test_another_process_sees_what_was_added_and_removed(objects: Objects) -> None:
    other = Objects(objects.root)
    for number in range(5):
        (first, *rest) = add(objects, *small(20, number))
        assert bytes_of(other, first) == small(1, number)[0]
        objects.remove([first])
        assert first not in other
        assert all(digest in other for digest in rest)


def test_sharing_a_pool_of_the_same_name_costs_only_the_second_copy(objects: Objects) -> None:
    datas = small(20)
    with objects.batch() as one, Objects(objects.root).batch() as two:
        for data in datas:
            one.add(data)
        for data in reversed(datas):
            two.add(data)
    assert len(packs_of(objects)) == 1
    assert is_clean(objects)


# Adopting


def test_an_adopted_file_becomes_the_object(objects: Objects) -> None:
    make_folder(objects.root, objects.incoming / "t")
    file = objects.incoming / "t" / "file"
    file.write_bytes(b"data")
    objects.adopt(file, sha(b"data"))
    assert not file.exists()
    path = objects.path(sha(b"data"))
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert path.read_bytes() == b"data"


def test_adopting_brings_the_file_and_its_folder_to_the_disk(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    file = tmp_path / "file"
    file.write_bytes(b"data")
    objects.adopt(file, sha(b"data"))
    start = sha(b"data")[:2]
    assert synced == [str(file), str(objects.root / "objects" / start), str(objects.root / "objects")]


@pytest.mark.parametrize("damage", [b"da", b"dita", b"data and more"], ids=["short", "flipped", "long"])
def test_verified_bytes_take_the_place_of_damaged_ones(objects: Objects, tmp_path: Path, damage: bytes) -> None:
    (digest,) = add(objects, b"data")
    path = objects.path(digest)
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(damage)
    file = tmp_path / "file"
    file.write_bytes(b"data")
    objects.adopt(file, digest)
    assert path.read_bytes() == b"data"
    assert not file.exists()


def test_what_is_no_file_is_not_adopted(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir()
    for name in ("link", "folder", "none"):
        with pytest.raises(NotFound, match=f"{tmp_path}/{name} is not a file that could become the object"):
            objects.adopt(tmp_path / name, "0" * 64)


def test_a_file_of_another_file_system_is_not_adopted(objects: Objects) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(objects.root.parent).st_dev:
        pytest.skip("needs /dev/shm as another file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        file = Path(folder) / "file"
        file.write_bytes(b"data")
        with pytest.raises(UsageError, match="another file system"):
            objects.adopt(file, sha(b"data"))
    assert sha(b"data") not in objects


def test_a_lost_reply_to_a_rename_is_no_failure(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def rename_unheard(source: str, target: str) -> None:
        rename(source, target)
        raise FileNotFoundError(errno.ENOENT, "asked again, NFS no longer finds it", source)

    file = tmp_path / "file"
    file.write_bytes(b"data")
    monkeypatch.setattr(os, "rename", rename_unheard)
    objects.adopt(file, sha(b"data"))
    assert bytes_of(objects, sha(b"data")) == b"data"


# Removing


def test_removed_objects_are_gone_and_the_others_stay(objects: Objects) -> None:
    digests = add(objects, *small(100), bytes(100_000))
    before = disk_use(objects)
    freed = objects.remove([*digests[::2], sha(b"absent")])
    assert freed == before - disk_use(objects) > 100_000
    assert [digest in objects for digest in digests] == [number % 2 == 1 for number in range(101)]
    assert all(bytes_of(objects, digest) == data for digest, data in zip(digests[1::2], small(100)[1::2], strict=False))
    assert is_clean(objects)


def disk_use(objects: Objects) -> int:
    return sum((objects.root / file).stat().st_size for file in files_below(objects.root))


@pytest.mark.parametrize("left", [0, 1, 15, 16])
def test_a_pack_of_which_little_is_left_keeps_that(objects: Objects, left: int) -> None:
    digests = add(objects, *small(50))
    objects.remove(digests[left:])
    assert [digest for digest, _ in objects.items()] == sorted(digests[:left])
    assert len(packs_of(objects)) == (left >= 16)
    assert is_clean(objects)


def test_an_object_that_a_working_folder_still_holds_gives_nothing_back(objects: Objects, tmp_path: Path) -> None:
    (digest,) = add(objects, b"data")
    path = objects.path(digest)
    assert path is not None
    os.link(path, tmp_path / "linked")
    assert objects.remove([digest]) == 0
    assert digest not in objects


def test_open_files_stay_readable_when_their_object_is_removed(objects: Objects) -> None:
    loose, *packed = add(objects, bytes(100_000), *small(20))
    with objects.open(loose) as one, objects.open(packed[0]) as two:
        objects.remove([loose, *packed])
        assert (len(one.read()), two.read()) == (100_000, small(1)[0])


def test_a_crash_between_writing_a_pack_anew_and_removing_the_old_one_does_no_harm(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = add(objects, *small(50))
    with monkeypatch.context() as patch:
        patch.setattr(module, "unlink", lambda path: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            Objects(objects.root)._rewrite(objects._packs.current(), digests[:10])
    assert len(packs_of(objects)) == 2
    assert [digest for digest, _ in objects.items()] == sorted(digests)
    assert is_clean(objects)
    objects.remove(digests[:10])
    assert [digest for digest, _ in objects.items()] == sorted(digests[10:])


def test_removing_goes_on_when_another_process_writes_the_packs_anew(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = add(objects, *small(50))
    other = Objects(objects.root)
    other_did: list[int] = []
    read = packs_module.Pack.read

    def read_late(pack: packs_module.Pack, place: packs_module.PackEntry) -> bytes:
        if not other_did:
            other_did.append(1)
            other.remove(digests[:1])
        return read(pack, place)

    monkeypatch.setattr(packs_module.Pack, "read", read_late)
    objects.remove(digests[10:20])
    assert [digest for digest, _ in objects.items()] == sorted([*digests[1:10], *digests[20:]])
    assert is_clean(objects)


# Verifying


def flip(path: Path, at: int) -> None:
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))
    path.chmod(0o444)


def test_a_flipped_bit_is_found_wherever_it_is(objects: Objects) -> None:
    loose, *packed = add(objects, bytes(100_000), *small(20))
    path = objects.path(loose)
    assert path is not None
    flip(path, 50_000)
    (pack,) = packs_of(objects)
    flip(pack, 0)
    first = sha(small(1)[0])
    assert [(damage.sha256, damage.path) for damage in objects.verify()] == [(loose, path), (first, pack)]
    assert all(damage.reason.startswith("its bytes have the sha256 ") for damage in objects.verify())
    objects.remove([loose, first])
    assert [digest in objects for digest in packed] == [False] + [True] * 19
    assert is_clean(objects)


def test_a_cut_off_file_and_a_cut_off_pack_are_found(objects: Objects) -> None:
    loose, *packed = add(objects, bytes(100_000), *small(20))
    path = objects.path(loose)
    assert path is not None
    (pack,) = packs_of(objects)
    for file in (path, pack):
        os.chmod(file, 0o644)
        os.truncate(file, 60)
    fresh = Objects(objects.root)
    damages = list(fresh.verify())
    assert [(damage.sha256, damage.path) for damage in damages] == [(loose, path), ("", pack)]
    assert "cut off" in damages[1].reason
    assert not any(digest in fresh for digest in packed)


@pytest.mark.parametrize("part", ["heads", "digest", "offset", "size"])
def test_a_damaged_index_is_found_and_costs_at_most_the_object_it_no_longer_names(objects: Objects, part: str) -> None:
    digests = sorted(add(objects, *small(40)))
    (pack,) = packs_of(objects)
    last_record = pack.stat().st_size - 16 - 48
    flip(pack, {"heads": last_record - 39 * 48 - 160, "digest": last_record, "offset": last_record + 32,
                "size": last_record + 40}[part])  # fmt: skip
    fresh = Objects(objects.root)
    (damage,) = fresh.verify()
    assert (damage.sha256, damage.path) == ("", pack)
    assert "index" in damage.reason
    damage.path.unlink()
    assert [digest for digest, _ in fresh.items()] == digests[: 40 if part == "heads" else 39]
    assert is_clean(fresh)


def test_what_lies_beyond_the_end_of_a_damaged_pack_does_not_keep_the_rest_from_being_saved(objects: Objects) -> None:
    datas = [bytes([number]) * 1000 for number in range(40)]
    digests = add(objects, *datas)
    (pack,) = packs_of(objects)
    whole = pack.read_bytes()
    pack.chmod(0o644)
    pack.write_bytes(whole[:30_000] + whole[40_000:])
    fresh = Objects(objects.root)
    damaged = {damage.sha256 for damage in fresh.verify()}
    assert damaged == set(digests[30:])
    fresh.remove([digests[0]])
    assert [digest for digest, _ in fresh.items()] == sorted(digests[1:30])
    assert is_clean(fresh)


def test_a_folder_or_link_in_the_place_of_an_object_is_damage(objects: Objects) -> None:
    for start, make in (("aa", lambda path: path.mkdir()), ("bb", lambda path: path.symlink_to("/etc/passwd"))):
        path = objects.root / "objects" / start / ("c" * 62)
        path.parent.mkdir(parents=True)
        make(path)
    assert list(objects.verify()) == [
        Damage(start + "c" * 62, objects.root / "objects" / start / ("c" * 62), "it is not a file")
        for start in ("aa", "bb")
    ]


def test_a_wrong_mode_is_mended_and_not_reported(objects: Objects) -> None:
    loose, *_ = add(objects, bytes(100_000), *small(20))
    path = objects.path(loose)
    (pack,) = packs_of(objects)
    assert path is not None
    for file in (path, pack):
        file.chmod(0o664)
    assert list(objects.verify()) == []
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, pack)] == [0o444, 0o444]


def test_verifying_tells_how_many_bytes_were_read(objects: Objects) -> None:
    datas = [bytes(3_000_000), *small(20)]
    add(objects, *datas)
    counts: list[int] = []
    assert list(objects.verify(counts.append)) == []
    assert sum(counts) == sum(map(len, datas))
    assert max(counts) <= 1 << 20


def test_names_that_are_no_digests_are_passed_over(objects: Objects) -> None:
    (digest,) = add(objects, b"data")
    (objects.root / "objects" / digest[:2] / ".nfs0000001").write_text("left by NFS")
    (objects.root / "objects" / "README").write_text("a note")
    assert [found for found, _ in objects.items()] == [digest]
    assert list(objects.verify()) == []


# Random histories


class AnyHistory(RuleBasedStateMachine):
    """Whatever is added and removed, in batches that end well or not: the pool holds exactly the right objects."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.objects = Objects(Path(self.folder), pack_below_bytes=50)
        self.other = Objects(Path(self.folder), pack_below_bytes=50)
        self.expected: dict[str, bytes] = {}

    datas = st.lists(st.integers(0, 120).map(lambda number: b"%d" % number * number), max_size=40)

    @rule(datas=datas, streams=st.booleans())
    def add(self, datas: list[bytes], streams: bool) -> None:
        with self.objects.batch() as batch:
            for data in datas:
                sha256 = batch.add_stream(io.BytesIO(data))[0] if streams else batch.add(data)
                self.expected[sha256] = data

    @rule(datas=datas)
    def fail_to_add(self, datas: list[bytes]) -> None:
        with pytest.raises(KeyError), self.objects.batch() as batch:
            for data in datas:
                batch.add(data)
            raise KeyError

    @rule(datas=datas)
    def adopt(self, datas: list[bytes]) -> None:
        for data in datas[:2]:
            file = Path(self.folder) / "file"
            file.write_bytes(data)
            self.objects.adopt(file, sha(data))
            self.expected[sha(data)] = data

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.expected:
            digests = data.draw(st.sets(st.sampled_from(sorted(self.expected))))
            self.objects.remove(digests)
            for sha256 in digests:
                del self.expected[sha256]

    @invariant()
    def holds_what_it_should(self) -> None:
        for objects in (self.objects, self.other):
            assert list(objects.items()) == sorted((sha256, len(data)) for sha256, data in self.expected.items())
            for sha256, data in self.expected.items():
                assert objects.size(sha256) == len(data)
                assert bytes_of(objects, sha256) == data
        assert is_clean(self.objects)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=examples(15), stateful_step_count=10, deadline=None)


# Bad days

ADDS_FOR_EVER = """
import sys
from pathlib import Path
from fairmile.store.objects import Objects
objects = Objects(Path(sys.argv[1]))
for number in range(10**9):
    with objects.batch() as batch:
        for part in range(40):
            batch.add(b"%d/%d" % (number, part) * 1000)
        batch.add(b"%d" % number * 100_000)
        if number % 3 == 2:
            batch.add(b"")
    if number % 4 == 3:
        objects.remove([digest for digest, _ in objects.items()][::3])
    print(number, flush=True)
"""


def test_a_process_may_be_killed_at_any_moment(objects: Objects) -> None:
    chance = random.Random(7)
    for _ in range(8):
        process = python(ADDS_FOR_EVER, str(objects.root))
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.random() / 20)  # any moment is a good one
        process.kill()
        process.communicate()
        fresh = Objects(objects.root)
        assert list(fresh.verify()) == []
        assert all(bytes_of(fresh, digest) is not None for digest, _ in fresh.items())
        assert {path.split("/")[0] for path in files_below(objects.root)} <= {"objects", "packs", "incoming"}
    assert add(Objects(objects.root), *small(20)) == [sha(data) for data in small(20)]


ADDS_THE_SAME = """
import sys
from pathlib import Path
from fairmile.store.objects import Objects
objects = Objects(Path(sys.argv[1]))
sys.stdin.readline()
for number in range(6):
    with objects.batch() as batch:
        for part in range(100):
            batch.add(b"%d/%d" % (number, part))
        batch.add(b"%d" % number * 100_000)
print(sum(1 for _ in objects.items()))
"""


def test_several_processes_may_add_the_same_at_the_same_time(objects: Objects) -> None:
    workers = [python(ADDS_THE_SAME, str(objects.root)) for _ in range(3)]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    assert [finished(worker) for worker in workers] == ["606\n"] * 3
    assert is_clean(objects)


MOUNTED = """
import os, random, sys, threading
from pathlib import Path
from fairmile.base.errors import FairmileError, SystemFailure
from fairmile.store.objects import Objects
objects = Objects(Path(sys.argv[1]) / "pool")
chance = random.Random(1)

def small(batch):
    for _ in range(300):
        batch.add(chance.randbytes(8000))

def few(batch):
    for _ in range(15):
        batch.add(chance.randbytes(65_000))
    for _ in range(14):
        batch.add(chance.randbytes(65_536))

def threads(batch):
    def work():
        try:
            small(batch)
        except FairmileError:
            pass  # a caller that hides it
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

def stream(batch):
    with open("/dev/zero", "rb") as zeros:
        batch.add_stream(zeros)

if len(sys.argv) == 2:
    with objects.batch() as batch:
        for number in range(20):
            batch.add(b"%d" % number)
        kept = batch.add(b"kept" * 20_000)
    for fill in (small, few, threads, stream):
        try:
            with objects.batch() as batch:
                fill(batch)
            print("no failure")
        except FairmileError as error:
            print(isinstance(error, SystemFailure), error.message.split(": ")[-1], "|", error.hint)
    print(sum(1 for _ in objects.items()), list(objects.verify()), os.listdir(objects.incoming))
"""


def in_small_mount(folder: Path, options: str, script: str) -> str:
    mount = f"mount -t tmpfs -o {options} none {folder}"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("needs user namespaces to mount a small file system")
    return finished(python(script, str(folder), before=("unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "_")))


def test_a_full_disk_is_a_clear_failure_that_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    *failures, left = in_small_mount(tmp_path, "size=1500k", MOUNTED).splitlines()
    room = f"({tmp_path} has 0 B of 1.5 MiB free)"
    full = f"True No space left on device {room} | the disk is full: free some space, or choose another folder"
    assert failures == [full] * 4
    assert left == "21 [] []"


READ_ONLY = """
import io, sys
from pathlib import Path
from fairmile.base.errors import FairmileError, SystemFailure
from fairmile.store.objects import Objects
objects = Objects(Path(sys.argv[1]))
known = [digest for digest, _ in objects.items()]
assert all(digest in objects and objects.open(digest).read() for digest in known[:3]) and not list(objects.verify())
with objects.batch() as batch:
    assert batch.add(b"known" * 20_000) in known  # nothing new: nothing to write

def adopt():
    objects.adopt(Path(sys.argv[2]), "0" * 64)

def add_many():
    with objects.batch() as batch:
        for number in range(20):
            batch.add(b"new %d" % number)

def add_stream():
    with objects.batch() as batch:
        batch.add_stream(io.BytesIO(bytes(200_000)))

for change in (adopt, add_many, add_stream, lambda: objects.remove(known[:1]), lambda: objects.remove(known)):
    try:
        change()
        print("no failure")
    except FairmileError as error:
        print(isinstance(error, SystemFailure), error.message, "|", error.hint)
"""


def test_a_pool_that_may_not_be_written_can_be_read_and_says_so_in_one_sentence(
    objects: Objects, tmp_path: Path, unprivileged: list[str]
) -> None:
    add(objects, *small(20), b"known" * 20_000)
    (tmp_path / "file").write_bytes(b"data")
    for folder in [objects.root, *(path for path in objects.root.rglob("*") if path.is_dir())]:
        folder.chmod(0o555)
    out = finished(python(READ_ONLY, str(objects.root), str(tmp_path / "file"), before=tuple(unprivileged)))
    for folder in [objects.root, *(path for path in objects.root.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
    lines = out.splitlines()
    assert len(lines) == 5
    for line in lines:
        assert line.startswith(f"True cannot write {objects.root}/")
        assert line.endswith(": Permission denied | no write permission: ask the owner, or choose another folder")
    assert (tmp_path / "file").exists()
    assert len(list(objects.items())) == 21


# A group's pool


@pytest.fixture
def group_pool() -> Iterator[Path]:
    """A pool that root and user 23456 share as members of group 34567."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, to be two users")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # tmp_path is closed to other users
    os.chmod(folder, 0o755)
    (folder / "pool").mkdir()
    os.chown(folder / "pool", 0, 34567)
    os.chmod(folder / "pool", 0o2770)
    yield folder / "pool"
    shutil.rmtree(folder)


OTHER_USER = """
import os, sys
from pathlib import Path
from fairmile.store.objects import Objects
os.umask(0o022)
objects = Objects(Path(sys.argv[1]))
theirs = [digest for digest, _ in objects.items()]
assert all(objects.open(digest).read() for digest in theirs)
with objects.batch() as batch:
    for number in range(20):
        batch.add(b"other %d" % number)
    batch.add(b"other" * 20_000)
left = objects.incoming / "left"
objects.adopt(left, sys.argv[2])
assert not list(objects.verify())
objects.remove(theirs[::2])
assert not list(objects.verify())
"""


def test_the_users_of_a_group_share_a_pool_whatever_their_umask(group_pool: Path) -> None:
    before = os.umask(0o022)
    try:
        objects = Objects(group_pool)
        mine = add(objects, *small(20), bytes(100_000))
        (objects.incoming / "left").write_bytes(b"left by the first user")
        user = ("setpriv", "--reuid=23456", "--regid=34567", "--clear-groups")
        finished(python(OTHER_USER, str(group_pool), sha(b"left by the first user"), before=user))
    finally:
        os.umask(before)
    expected = {*sorted(mine)[1::2], *(sha(b"other %d" % number) for number in range(20)), sha(b"other" * 20_000)}
    expected.add(sha(b"left by the first user"))
    assert {digest for digest, _ in objects.items()} == expected
    assert is_clean(objects)
    for path in group_pool.rglob("*"):
        status = path.stat()
        assert status.st_gid == 34567
        assert stat.S_IMODE(status.st_mode) == (0o2770 if path.is_dir() else 0o444)


def test_folders_follow_the_umask_where_no_group_shares_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        objects = Objects(tmp_path / "pool")
        add(objects, *small(20), bytes(100_000))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in objects.root.rglob("*") if path.is_dir()} == {0o750}


def test_where_old_packs_cannot_be_removed_small_ones_are_not_merged(objects: Objects) -> None:
    add(objects, *small(16))
    (objects.root / "packs").chmod(0o1777)
    for number in range(1, 20):
        add(objects, *small(16, number))
    assert len(packs_of(objects)) == 20


def test_a_batch_whose_pack_could_not_be_written_fails_even_if_a_thread_hides_it(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", failing_at(0, os.pwrite))
    failed = 0
    with pytest.raises(SystemFailure, match="No space left on device"), objects.batch() as batch:
        for number in range(40):
            try:
                batch.add(bytes([number]) * 60_000)
            except SystemFailure:
                failed += 1
    assert failed > 20
    assert list(objects.items()) == []
    assert files_below(objects.root) == []


def failing_at(turn: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that works but for one time, when it fails as on a full disk."""
    turns = itertools.count()

    def call(*args: object, **more: object) -> object:
        if next(turns) == turn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **more)

    return call


@pytest.mark.parametrize("name", ["pwrite", "fdatasync", "fsync", "fchmod", "rename", "mkdir", "open"])
def test_whatever_call_fails_the_batch_says_so_and_leaves_nothing_half_done(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    failures = 0
    for turn in range(100):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing_at(turn, getattr(os, name)))
            try:
                with objects.batch() as batch:
                    for data in small(20, turn):
                        batch.add(data)
                    batch.add(b"%d" % turn * 100_000)
                    batch.add_stream(io.BytesIO(b"%d" % turn * 1_000_000))
                break
            except SystemFailure as error:
                assert error.hint is not None
                failures += 1
        assert is_clean(objects)
    assert failures >= 2
    assert all(sha(data) in objects for data in small(20, turn))
    assert is_clean(objects)
