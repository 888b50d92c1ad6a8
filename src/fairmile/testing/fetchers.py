"""Conformance suites for fetchers: subclass one, fill in the fixture `served`, and pytest runs it.

    class TestMyFetcher(RangeFetcherTests):
        @pytest.fixture
        def served(self, tmp_path: Path) -> Iterator[Served[RangeFetcher]]:
            with my_server(tmp_path / "there") as server:
                yield Served(MyFetcher(context), server.publish, missing=f"{server.address}/nowhere")

What a kind of source cannot do at all is said by the class attributes, never by leaving out a test.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import pytest

from fairmile.base.errors import FairmileError, NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.testing.suites import Suite, asked_only_with
from fairmile.transfer.remote import Body, FolderFetcher, RangeFetcher, Remote

F = TypeVar("F", RangeFetcher, FolderFetcher)

AWKWARD_NAMES = (
    "two words.txt",
    "ünïcode ☃ 数据.txt",
    'it\'s "quoted".txt',
    "100%25 + #1 & a=b?.txt",
    "$(touch mark);`x`|<y>*.txt",
    "-rf --no.txt",
    ".hidden",
    "[1]{2,3}~!@^,.txt",
    "n" * 251 + ".txt",
)
# No period shorter than the file, so that a piece from the wrong place cannot look right.
CONTENT = b"".join(number.to_bytes(4, "big") for number in range(150_000))
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Served(Generic[F]):
    """A fetcher and the source it is tested with.

    `publish` puts files, given by path, where the fetcher can reach them, replaces those that are there, and
    returns the address of the file when it is only one, else that of the folder which holds exactly these. The
    same paths get the same address each time. `missing` is an address of the same kind that leads nowhere; its
    last part must show in the error, and `secret`, a password or key within it, must not.
    """

    fetcher: F
    publish: Callable[[Mapping[str, bytes]], str]
    missing: str
    secret: str = ""


def read(body: Body, buffer_bytes: int = 1 << 16) -> bytes:
    """Read a body to its end and close it; what it does to the buffer is checked on the way."""
    pieces = []
    room = bytearray(b"\xa5" * (buffer_bytes + 8))
    try:
        while True:
            count = body.readinto(memoryview(room)[:buffer_bytes])
            assert 0 <= count <= buffer_bytes, f"readinto returned {count} for a buffer of {buffer_bytes} bytes"
            assert room[buffer_bytes:] == b"\xa5" * 8, "readinto wrote beyond its buffer"
            if not count:
                break
            pieces.append(bytes(room[:count]))
        assert body.readinto(memoryview(room)[:buffer_bytes]) == 0, "a body at its end stays there"
    finally:
        body.close()
    return b"".join(pieces)


class RangeFetcherTests(Suite):
    """What every RangeFetcher must do."""

    sizes: ClassVar[bool] = True  # the source says beforehand how large a file is
    folders: ClassVar[bool] = True  # an address may mean a folder, whose files are listed
    validators: ClassVar[bool] = True  # the source says when a file has changed
    names: ClassVar[tuple[str, ...]] = AWKWARD_NAMES  # file names that the source can hold

    @pytest.fixture
    def served(self, tmp_path: Path) -> Served[RangeFetcher]:
        raise NotImplementedError("fill in the fixture `served`")

    # Finding

    def test_it_is_a_range_fetcher(self, served: Served[RangeFetcher]) -> None:
        assert isinstance(served.fetcher, RangeFetcher)

    def test_one_file_is_found_with_its_name_and_size(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "deep/er/data.bin", CONTENT)
        assert remote.path.rpartition("/")[2] == "data.bin"
        assert remote.size_bytes == self._size(CONTENT)
        assert remote.mode in (0o644, 0o755)

    @asked_only_with("folders")
    def test_a_folder_is_found_with_all_files_below_it(self, served: Served[RangeFetcher]) -> None:
        files = {"a.txt": b"a", "b/c.txt": b"bc", "b/d/e.bin": CONTENT, "b/empty": b""}
        remotes = served.fetcher.find(served.publish(files))
        assert {remote.path: remote.size_bytes for remote in remotes} == {
            path: self._size(data) for path, data in files.items()
        }
        assert len(remotes) == len(files), "a file is listed twice"

    @asked_only_with("folders")
    def test_every_file_of_a_folder_can_be_read(self, served: Served[RangeFetcher]) -> None:
        files = {f"{number % 7}/{number}.txt": b"x" * number for number in range(40)}
        remotes = served.fetcher.find(served.publish(files))
        assert {remote.path: read(served.fetcher.open(remote, 0, None)) for remote in remotes} == files

    @asked_only_with("folders")
    def test_awkward_names_in_a_folder_are_found_and_read(self, served: Served[RangeFetcher]) -> None:
        files = {f"in {name[:40]}/{name}": name.encode() for name in self.names}
        remotes = served.fetcher.find(served.publish(files))
        assert {remote.path: read(served.fetcher.open(remote, 0, None)) for remote in remotes} == files

    def test_each_awkward_name_is_found_and_read_by_its_own_address(self, served: Served[RangeFetcher]) -> None:
        for name in self.names:
            remote = _one(served, name, name.encode())
            assert remote.path.rpartition("/")[2] == name
            assert read(served.fetcher.open(remote, 0, None)) == name.encode()

    def test_looking_twice_finds_the_same(self, served: Served[RangeFetcher]) -> None:
        address = served.publish({"data.bin": CONTENT})
        assert served.fetcher.find(address) == served.fetcher.find(address)

    def test_what_is_missing_is_not_found_and_no_secret_is_told(self, served: Served[RangeFetcher]) -> None:
        served.publish({"data.bin": CONTENT})
        with pytest.raises(NotFound) as caught:
            served.fetcher.find(served.missing)
        _says_where_without_secrets(caught.value, served)

    def test_a_file_that_vanished_meanwhile_is_an_error_of_ours(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "data.bin", CONTENT)
        with pytest.raises(FairmileError) as caught:
            read(served.fetcher.open(replace(remote, address=served.missing), 0, None))
        _says_where_without_secrets(caught.value, served)

    # Reading

    def test_the_whole_file_comes(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "data.bin", CONTENT)
        with closing(served.fetcher.open(remote, 0, None)) as body:
            assert body.start == 0
            assert body.total_bytes in (None, len(CONTENT))
            assert read(body) == CONTENT

    def test_an_empty_file_comes(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "empty", b"")
        assert remote.size_bytes == self._size(b"")
        assert read(served.fetcher.open(remote, 0, None)) == b""

    def test_a_file_of_one_byte_comes(self, served: Served[RangeFetcher]) -> None:
        assert read(served.fetcher.open(_one(served, "one", b"\0"), 0, None)) == b"\0"

    @pytest.mark.parametrize(
        ("start", "stop"),
        [
            (0, 1),
            (0, 5_000),
            (1, 2),
            (4_095, 4_097),
            (123_457, 345_678),
            (599_999, 600_000),
            (500_000, 600_000),
            (77, None),
            (599_999, None),
        ],
    )
    def test_a_range_brings_exactly_its_bytes(self, served: Served[RangeFetcher], start: int, stop: int | None) -> None:
        remote = _one(served, "data.bin", CONTENT)
        with closing(served.fetcher.open(remote, start, stop)) as body:
            assert body.start == start
            assert not body.is_whole or (start, stop) == (0, None)
            assert body.total_bytes in (None, len(CONTENT))
            assert read(body) == CONTENT[start:stop]

    def test_a_range_beyond_the_end_stops_at_the_end(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "data.bin", CONTENT)
        assert read(served.fetcher.open(remote, 599_000, 700_000)) == CONTENT[599_000:]

    @pytest.mark.parametrize("buffer_bytes", [1, 7, 4_096, 1 << 20])
    def test_buffers_of_any_size_are_filled(self, served: Served[RangeFetcher], buffer_bytes: int) -> None:
        remote = _one(served, "data.bin", CONTENT)
        stop = None if buffer_bytes > 1_000 else 12_345
        assert read(served.fetcher.open(remote, 3, stop), buffer_bytes) == CONTENT[3:stop]

    def test_two_open_bodies_do_not_disturb_each_other(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "data.bin", CONTENT)
        with (
            closing(served.fetcher.open(remote, 0, 50_000)) as first,
            closing(served.fetcher.open(remote, 300_000, 350_000)) as second,
        ):
            begun = [(body, bytearray(100), body.start) for body in (first, second)]
            for body, buffer, start in begun:
                count = body.readinto(memoryview(buffer))
                assert 0 < count <= 100
                assert buffer[:count] == CONTENT[start : start + count]
            for body, _, start in begun:
                rest = read(body)
                assert rest and rest == CONTENT[start + 50_000 - len(rest) : start + 50_000]

    def test_two_threads_read_the_same_file_at_once(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "data.bin", CONTENT)
        both_open = threading.Barrier(2, timeout=_PATIENCE_S)

        def part(start: int, stop: int) -> bytes:
            body = served.fetcher.open(remote, start, stop)
            both_open.wait()
            return read(body, 1_000)

        with ThreadPoolExecutor(2) as pool:
            halves = list(pool.map(part, (0, 300_000), (300_000, 600_000)))
        assert b"".join(halves) == CONTENT

    def test_many_ranges_over_few_threads_make_up_the_file(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "data.bin", CONTENT)
        starts = range(0, len(CONTENT), 25_000)
        with ThreadPoolExecutor(4) as pool:
            pieces = list(pool.map(lambda at: read(served.fetcher.open(remote, at, at + 25_000)), starts))
        assert b"".join(pieces) == CONTENT

    def test_a_body_opened_in_one_thread_is_read_in_another(self, served: Served[RangeFetcher]) -> None:
        body = served.fetcher.open(_one(served, "data.bin", CONTENT), 10, 400_000)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(read, body).result() == CONTENT[10:400_000]

    def test_closing_in_the_middle_leaves_nothing_running(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "data.bin", CONTENT * 8)

        def leave() -> None:
            body = served.fetcher.open(remote, 0, None)
            assert body.readinto(memoryview(bytearray(100))) > 0
            body.close()

        leave()  # what a fetcher sets up once and keeps is its right
        before = _running()
        for _ in range(5):
            leave()
        _settles_to(before)

    def test_a_body_closed_twice_stays_closed(self, served: Served[RangeFetcher]) -> None:
        body = served.fetcher.open(_one(served, "data.bin", CONTENT), 0, None)
        body.close()
        body.close()

    def test_an_interrupted_body_ends_soon(self, served: Served[RangeFetcher]) -> None:
        content = CONTENT * 8
        body = served.fetcher.open(_one(served, "data.bin", content), 0, None)
        begun, interrupted = threading.Event(), threading.Event()

        def take() -> bytes:
            first = bytearray(1_000)
            count = body.readinto(memoryview(first))
            begun.set()
            assert interrupted.wait(_PATIENCE_S)
            try:
                return bytes(first[:count]) + read(body)
            except FairmileError:
                return bytes(first[:count])

        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(take)
            assert begun.wait(_PATIENCE_S)
            body.interrupt()
            interrupted.set()
            assert content.startswith(taken.result(_PATIENCE_S))
        body.close()

    def test_interrupting_a_closed_body_does_nothing(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "data.bin", CONTENT)
        body = served.fetcher.open(remote, 0, None)
        assert body.readinto(memoryview(bytearray(10))) > 0
        body.close()
        body.interrupt()
        assert read(served.fetcher.open(remote, 0, None)) == CONTENT

    def test_after_a_body_was_left_the_next_one_is_whole(self, served: Served[RangeFetcher]) -> None:
        remote = _one(served, "data.bin", CONTENT)
        left = served.fetcher.open(remote, 0, None)
        left.readinto(memoryview(bytearray(10)))
        left.close()
        assert read(served.fetcher.open(remote, 5, None)) == CONTENT[5:]

    # Changes

    def test_the_validator_changes_with_the_content_and_only_then(self, served: Served[RangeFetcher]) -> None:
        address = served.publish({"data.bin": CONTENT})
        [before], [again] = served.fetcher.find(address), served.fetcher.find(address)
        after = _one(served, "data.bin", CONTENT[::-1] + b"more")
        assert again.validator == before.validator
        if self.validators:
            assert before.validator and after.validator
            assert before.validator != after.validator
        else:
            assert before.validator == after.validator == "", "it has validators: leave the class attribute as it is"

    @asked_only_with("validators")
    def test_a_body_shows_that_the_file_is_another_one_than_was_found(self, served: Served[RangeFetcher]) -> None:
        before = _one(served, "data.bin", CONTENT)
        with closing(served.fetcher.open(before, 1_000, 2_000)) as body:
            assert body.validator in ("", before.validator)
            assert read(body) == CONTENT[1_000:2_000]
        changed = CONTENT[::-1] + b"more"
        served.publish({"data.bin": changed})
        try:
            body = served.fetcher.open(before, 1_000, 2_000)
            validator, data = body.validator, read(body)
        except FairmileError:
            return
        assert validator != before.validator or data == CONTENT[1_000:2_000], "new bytes pass for the old ones"

    def _size(self, data: bytes) -> int | None:
        return len(data) if self.sizes else None


class FolderFetcherTests:
    """What every FolderFetcher must do."""

    counts: ClassVar[bool] = True  # on_bytes gets exactly the bytes of the files
    names: ClassVar[tuple[str, ...]] = AWKWARD_NAMES  # file names that the source can hold
    hostile: ClassVar[tuple[str, ...]] = ()  # addresses to refuse; {mark} is a file that nothing may create

    @pytest.fixture
    def served(self, tmp_path: Path) -> Served[FolderFetcher]:
        raise NotImplementedError("fill in the fixture `served`")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """The empty folder to fill; its own name is awkward too."""
        folder = tmp_path / 'here it\'s "fill-ed" ☃'
        folder.mkdir()
        return folder

    # Finding

    def test_it_is_a_folder_fetcher(self, served: Served[FolderFetcher]) -> None:
        assert isinstance(served.fetcher, FolderFetcher)

    def test_what_is_told_beforehand_is_true(self, served: Served[FolderFetcher]) -> None:
        files = {"a.txt": b"a", "b/c.bin": CONTENT}
        remotes = served.fetcher.find(served.publish(files))
        assert remotes, "an address that leads somewhere means at least one thing"
        for remote in remotes:
            if remote.path in files:
                assert remote.size_bytes in (None, len(files[remote.path]))
            else:
                assert remote.size_bytes in (None, sum(map(len, files.values())))

    def test_looking_twice_finds_the_same(self, served: Served[FolderFetcher]) -> None:
        address = served.publish({"a.txt": b"a", "b/c.bin": CONTENT})
        assert served.fetcher.find(address) == served.fetcher.find(address)

    def test_what_is_found_can_be_brought_by_its_own_address(self, served: Served[FolderFetcher], folder: Path) -> None:
        files = {"a.txt": b"a", "b/c.bin": CONTENT}
        remotes = served.fetcher.find(served.publish(files))
        if len(remotes) == 1:
            served.fetcher.bring(remotes[0].address, folder, _ignore)
            assert _files(folder) == files

    # Bringing

    def test_all_files_come_with_their_bytes_and_nothing_else(
        self, served: Served[FolderFetcher], folder: Path
    ) -> None:
        files = {"a.txt": b"a\n", "b/c.txt": b"b\r\nc\r\n", "b/d/e.bin": CONTENT, "empty": b"", "b/d/f/g/h": b"\0\xff"}
        served.fetcher.bring(served.publish(files), folder, _ignore)
        assert _files(folder) == files

    def test_one_file_comes(self, served: Served[FolderFetcher], folder: Path) -> None:
        served.fetcher.bring(served.publish({"only.bin": CONTENT}), folder, _ignore)
        assert _files(folder) == {"only.bin": CONTENT}

    def test_awkward_names_come_as_they_are(self, served: Served[FolderFetcher], folder: Path) -> None:
        files = {f"in {name[:40]}/{name}": name.encode() for name in self.names}
        served.fetcher.bring(served.publish(files), folder, _ignore)
        assert _files(folder) == files

    def test_many_files_come(self, served: Served[FolderFetcher], folder: Path) -> None:
        files = {f"{number % 11}/{number}.txt": b"%d" % number * (number % 5) for number in range(300)}
        served.fetcher.bring(served.publish(files), folder, _ignore)
        assert _files(folder) == files

    def test_what_comes_can_be_read_and_replaced_by_its_owner(
        self, served: Served[FolderFetcher], folder: Path
    ) -> None:
        served.fetcher.bring(served.publish({"a/b.txt": b"b", "c.txt": b"c"}), folder, _ignore)
        assert os.stat(folder / "a").st_mode & 0o700 == 0o700
        assert os.stat(folder / "a" / "b.txt").st_mode & 0o400
        assert not os.stat(folder / "a" / "b.txt").st_mode & 0o7111, "data became a program"

    # Going on

    def test_a_half_filled_folder_is_completed(self, served: Served[FolderFetcher], folder: Path) -> None:
        files = {"a.bin": CONTENT, "b/c.bin": CONTENT[::-1], "b/d.txt": b"d" * 1_000, "e.txt": b"e"}
        address = served.publish(files)
        (folder / "b").mkdir()
        (folder / "a.bin").write_bytes(CONTENT)
        (folder / "b" / "c.bin").write_bytes(CONTENT[::-1][:100_000])
        (folder / "b" / "d.txt").write_bytes(b"")
        served.fetcher.bring(address, folder, _ignore)
        assert _files(folder) == files

    def test_a_complete_folder_stays_as_it_is(self, served: Served[FolderFetcher], folder: Path) -> None:
        files = {"a.txt": b"a", "b/c.bin": CONTENT}
        address = served.publish(files)
        served.fetcher.bring(address, folder, _ignore)
        served.fetcher.bring(address, folder, _ignore)
        assert _files(folder) == files

    def test_after_an_interruption_the_next_attempt_completes_it(
        self, served: Served[FolderFetcher], folder: Path
    ) -> None:
        files = {f"{number}.bin": CONTENT[number:] for number in range(5)}
        address = served.publish(files)
        with pytest.raises(_Stop):
            served.fetcher.bring(address, folder, _stop)
        served.fetcher.bring(address, folder, _ignore)
        assert _files(folder) == files

    def test_what_changed_at_the_source_comes_anew(self, served: Served[FolderFetcher], folder: Path) -> None:
        served.fetcher.bring(served.publish({"a.txt": b"old", "b.txt": b"b"}), folder, _ignore)
        address = served.publish({"a.txt": b"newer", "b.txt": b"b"})
        served.fetcher.bring(address, folder, _ignore)
        assert _files(folder) == {"a.txt": b"newer", "b.txt": b"b"}

    # Counting

    def test_the_bytes_that_came_are_counted(self, served: Served[FolderFetcher], folder: Path) -> None:
        files = {"a.bin": CONTENT, "b/c.bin": CONTENT[::-1], "d.txt": b"d", "empty": b""}
        counted: list[int] = []
        served.fetcher.bring(served.publish(files), folder, counted.append)
        assert all(isinstance(count, int) and count >= 0 for count in counted)
        if self.counts:
            assert sum(counted) == sum(map(len, files.values()))
        else:
            assert sum(counted) > 0

    # Together

    def test_two_folders_are_filled_at_once(self, served: Served[FolderFetcher], tmp_path: Path) -> None:
        files = {"a.txt": b"a", "b/c.bin": CONTENT}
        address = served.publish(files)
        folders = [tmp_path / "first", tmp_path / "second"]
        for folder in folders:
            folder.mkdir()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda folder: served.fetcher.bring(address, folder, _ignore), folders))
        assert [_files(folder) for folder in folders] == [files, files]

    # Failing

    def test_what_is_missing_is_an_error_that_tells_no_secret(
        self, served: Served[FolderFetcher], folder: Path
    ) -> None:
        served.publish({"a.txt": b"a", "b.txt": b"b"})
        with pytest.raises(FairmileError) as caught:
            served.fetcher.bring(served.missing, folder, _ignore)
        _says_where_without_secrets(caught.value, served)

    def test_stopping_in_the_middle_leaves_nothing_running(self, served: Served[FolderFetcher], folder: Path) -> None:
        address = served.publish({f"{number}.bin": CONTENT for number in range(3)})
        served.fetcher.bring(address, folder, _ignore)
        before = _running()
        for number in range(3):
            fresh = folder / str(number)
            fresh.mkdir()
            with pytest.raises(_Stop):
                served.fetcher.bring(address, fresh, _stop)
        _settles_to(before)

    def test_hostile_addresses_are_refused_and_run_nothing(
        self, served: Served[FolderFetcher], folder: Path, tmp_path: Path
    ) -> None:
        mark = tmp_path / "mark"
        for template in self.hostile:
            address = template.replace("{mark}", str(mark))
            for attempt in (served.fetcher.find, lambda at: served.fetcher.bring(at, folder, _ignore)):
                with pytest.raises(FairmileError):
                    attempt(address)
                assert not mark.exists(), f"{address!r} ran a command"
        assert _files(folder) == {}


class _Stop(Exception):
    pass


def _stop(count: int) -> None:
    if count:
        raise _Stop


def _ignore(count: int) -> None:
    pass


def _one(served: Served[RangeFetcher], path: str, data: bytes) -> Remote:
    remotes = served.fetcher.find(served.publish({path: data}))
    assert len(remotes) == 1, f"one file was published and {len(remotes)} are found"
    return remotes[0]


def _files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _says_where_without_secrets(error: FairmileError, served: Served[RangeFetcher] | Served[FolderFetcher]) -> None:
    message = f"{error} {error.hint or ''}"
    last = served.missing.split("?")[0].split("#")[0].rstrip("/").rpartition("/")[2]
    assert last in message, f"the error does not say that it is about {last!r}: {message}"
    assert not served.secret or served.secret not in message, "the error tells a secret"


def _running() -> tuple[int, int, int]:
    """Return how many threads, child processes and open files this process has."""
    own = str(os.getpid())
    children = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        children += fields[1] == own
    return threading.active_count(), children, len(os.listdir("/dev/fd"))


def _settles_to(before: tuple[int, int, int]) -> None:
    """Wait until no more is running than before; servers and the system may need a moment to notice an end."""
    deadline = time.monotonic() + _PATIENCE_S
    while not all(now <= then for now, then in zip(_running(), before, strict=True)):
        now = _running()
        assert time.monotonic() < deadline, f"threads, processes, open files: {before} before, {now} are left"
        time.sleep(0.02)
