"""A file on its way: what is kept of it, and what a later process makes of that."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from left_open import nothing_left_open

from fairmile.base.errors import DiskFailure
from fairmile.transfer.part import Part

SIZE = 100_000
IDENTITY = {"key": "abc", "validators": ['"etag"']}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "incoming" / "abc"


@contextmanager
def part(folder: Path, size: int = SIZE, identity: dict[str, object] = IDENTITY) -> Iterator[Part]:
    with closing(Part(folder, size, identity)) as made:
        yield made


def half_done(folder: Path) -> None:
    with part(folder) as first:
        first.write(0, memoryview(b"a" * 100))
        first.write(500, memoryview(b"b" * 100))
        first.keep([(0, 100), (500, 600)])


def test_bytes_are_written_and_read_back_at_their_places(folder: Path) -> None:
    with part(folder) as one:
        one.write(10, memoryview(b"hello"))
        buffer = memoryview(bytearray(20))
        assert one.read(8, buffer[:9]) == 9
        assert bytes(buffer[:9]) == b"\0\0hello\0\0"
        assert one.read(SIZE, buffer) == 0


def test_the_room_is_taken_before_the_first_byte(folder: Path) -> None:
    with part(folder, 5 << 20) as one:
        status = os.stat(one.path)
        assert status.st_size == 5 << 20
        assert status.st_blocks * 512 >= 5 << 20


def test_an_empty_file_needs_no_room(folder: Path) -> None:
    with part(folder, 0) as one:
        assert os.stat(one.path).st_size == 0
        assert one.done == []


def test_what_was_kept_is_there_for_the_next_process(folder: Path) -> None:
    half_done(folder)
    with part(folder) as second:
        assert second.done == [(0, 100), (500, 600)]
        buffer = memoryview(bytearray(100))
        second.read(500, buffer)
        assert bytes(buffer) == b"b" * 100


def test_what_was_written_but_not_kept_does_not_count(folder: Path) -> None:
    with part(folder) as first:
        first.write(0, memoryview(b"a" * 100))
    with part(folder) as second:
        assert second.done == []


@pytest.mark.parametrize(
    "identity",
    [{"key": "abc", "validators": ['"another"']}, {"key": "abd", "validators": ['"etag"']}, {"key": "abc"}, {}],
)
def test_for_another_file_it_starts_anew(folder: Path, identity: dict[str, object]) -> None:
    half_done(folder)
    with part(folder, identity=identity) as second:
        assert second.done == []
        second.write(0, memoryview(b"z" * 100))
    with part(folder) as third:
        assert third.done == [], "the bytes of another file pass for those of the first"


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, 0])
def test_for_another_size_it_starts_anew(folder: Path, size: int) -> None:
    half_done(folder)
    with part(folder, size) as second:
        assert second.done == []
        assert os.stat(second.path).st_size == size


def test_wrong_bytes_are_forgotten(folder: Path) -> None:
    half_done(folder)
    with part(folder) as second:
        second.forget()
        second.forget()
    with part(folder) as third:
        assert third.done == []


def test_a_journal_without_its_file_does_not_count(folder: Path) -> None:
    half_done(folder)
    (folder / "data").unlink()
    with part(folder) as second:
        assert second.done == []


def test_a_file_that_was_cut_off_does_not_count(folder: Path) -> None:
    half_done(folder)
    os.truncate(folder / "data", 50)
    with part(folder) as second:
        assert second.done == []
        assert os.stat(second.path).st_size == SIZE


def test_a_journal_cut_off_anywhere_does_not_count(folder: Path) -> None:
    half_done(folder)
    whole = (folder / "journal.json").read_bytes()
    for length in range(len(whole)):
        (folder / "journal.json").write_bytes(whole[:length])
        with part(folder) as second:
            assert second.done == []


@pytest.mark.parametrize(
    "done",
    [
        None,
        5,
        "all",
        [[0]],
        [[0, 1, 2]],
        [["0", "5"]],
        [None],
        [[-5, 10]],
        [[10, 5]],
        [[0, SIZE + 1]],
        [[1e400, 2]],
    ],
)
def test_a_journal_of_nonsense_does_not_count(folder: Path, done: object) -> None:
    half_done(folder)
    (folder / "journal.json").write_text(json.dumps({"identity": IDENTITY, "done": done}))
    with part(folder) as second:
        assert second.done == []


@given(st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 5000))))
def test_any_ranges_are_kept_and_found(tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]) -> None:
    folder = tmp_path_factory.mktemp("part") / "x"
    ranges = [(start, min(start + length, SIZE)) for start, length in spans]
    with part(folder) as one:
        one.keep(ranges)
    with part(folder) as two:
        expected = {at for start, stop in ranges for at in range(start, stop)}
        assert {at for start, stop in two.done for at in range(start, stop)} == expected


def test_a_half_written_journal_beside_the_old_one_does_no_harm(folder: Path) -> None:
    half_done(folder)
    (folder / ".journal.json").write_text('{"identity": {"ke')
    with part(folder) as second:
        assert second.done == [(0, 100), (500, 600)]
        second.keep([(0, 5)])
    with part(folder) as third:
        assert third.done == [(0, 5)]


def test_a_file_that_was_sealed_but_not_adopted_can_be_written_again(folder: Path) -> None:
    half_done(folder)
    os.chmod(folder / "data", 0o444)
    with part(folder) as second:
        assert second.done == [(0, 100), (500, 600)]
        second.write(0, memoryview(b"z"))


# When the disk refuses


def test_a_disk_without_room_is_found_before_the_first_byte(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with nothing_left_open(), pytest.raises(DiskFailure, match=r"cannot write .*data: No space left") as caught:
        Part(folder, SIZE, IDENTITY)
    assert "full" in (caught.value.hint or "")
    assert not (folder / "data").exists(), "what was not allocated is not left behind"


def test_what_was_kept_outlives_a_disk_without_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half_done(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(DiskFailure):
            Part(folder, SIZE, IDENTITY)
    with part(folder) as second:
        assert second.done == [(0, 100), (500, 600)]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskFailure, match="cannot write"):
        Part(tmp_path / "file" / "below", SIZE, IDENTITY)


def test_errors_of_the_disk_are_told_with_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with part(folder) as one:
        for name in ("pwrite", "preadv", "fdatasync"):
            monkeypatch.setattr(os, name, refuse)
        for attempt in (
            lambda: one.write(0, memoryview(b"x")),
            lambda: one.read(0, memoryview(bytearray(1))),
            lambda: one.keep([(0, 1)]),
        ):
            with pytest.raises(DiskFailure, match=f"{one.path}: Input/output error"):
                attempt()
        monkeypatch.undo()


def test_a_link_in_a_shared_folder_does_not_lead_to_a_file_of_ours(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("do not touch")
    folder.mkdir(parents=True)
    (folder / "data").symlink_to(precious)
    with pytest.raises(DiskFailure):
        Part(folder, 5, IDENTITY)
    assert precious.read_text() == "do not touch"
