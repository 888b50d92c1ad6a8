"""The conformance suites pass what is right and catch what is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from fairmile.base.errors import NotFound, UsageError
from fairmile.testing.fetchers import FolderFetcherTests, RangeFetcherTests, Served
from fairmile.transfer.remote import Body, FolderFetcher, RangeFetcher, Remote

SECRET = "hunter2"


class Shelf:
    """A folder that stands for a source elsewhere, with addresses shelf://SECRET@/PATH."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)

    def publish(self, files: Mapping[str, bytes]) -> str:
        for path, data in files.items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if len(files) == 1:
            return f"shelf:///{quote(next(iter(files)))}"
        for path in self.root.rglob("*"):
            if path.is_file() and path.relative_to(self.root).as_posix() not in files:
                path.unlink()
        return "shelf:///"

    def path(self, address: str) -> Path:
        return self.root / unquote(address.split("/", 3)[3])

    def files(self, address: str) -> dict[str, Path]:
        top = self.path(address)
        if top.is_file():
            return {top.name: top}
        found = {path.relative_to(top).as_posix(): path for path in top.rglob("*") if path.is_file()}
        if not found:
            raise NotFound(f"nothing at {address.replace(SECRET, '…')}")
        return found


MISSING = f"shelf://{SECRET}@/nowhere/lost.bin"


class GoodBody:
    is_whole = False

    def __init__(self, path: Path, start: int, stop: int | None) -> None:
        self.stream = open(path, "rb", buffering=0)  # noqa: SIM115 - it lives as long as the body
        self.start = start
        self.total_bytes: int | None = os.fstat(self.stream.fileno()).st_size
        self.validator = validator(path)
        self.left = max(0, min(stop if stop is not None else self.total_bytes, self.total_bytes) - start)
        self.stream.seek(start)

    def readinto(self, buffer: memoryview) -> int:
        count = self.stream.readinto(buffer[: self.left]) or 0
        self.left -= count
        return count

    def interrupt(self) -> None:
        self.left = 0

    def close(self) -> None:
        self.stream.close()


def validator(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


class GoodRanges:
    """The smallest right RangeFetcher."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def find(self, address: str) -> list[Remote]:
        return [
            Remote(
                f"shelf:///{quote(str(file.relative_to(self.shelf.root)))}",
                path,
                file.stat().st_size,
                (),
                validator(file),
            )
            for path, file in self.shelf.files(address).items()
        ]

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        path = self.shelf.path(remote.address)
        if not path.is_file():
            raise NotFound(f"nothing at {remote.address.replace(SECRET, '…')}")
        return GoodBody(path, start, stop)


class GoodFolders:
    """The smallest right FolderFetcher."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def find(self, address: str) -> list[Remote]:
        if "$(" in address:
            raise UsageError("a hostile address")
        return [Remote(address, path, file.stat().st_size) for path, file in self.shelf.files(address).items()]

    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        if "$(" in address:
            raise UsageError("a hostile address")
        for path, file in self.shelf.files(address).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            on_bytes(file.stat().st_size)


def ranges(fetcher: type[GoodRanges], place: Path) -> Served[RangeFetcher]:
    shelf = Shelf(place / "shelf")
    return Served(fetcher(shelf), shelf.publish, MISSING, SECRET)


def folders(fetcher: type[GoodFolders], place: Path) -> Served[FolderFetcher]:
    shelf = Shelf(place / "shelf")
    return Served(fetcher(shelf), shelf.publish, MISSING, SECRET)


class TestARightRangeFetcher(RangeFetcherTests):
    @pytest.fixture
    def served(self, tmp_path: Path) -> Served[RangeFetcher]:
        return ranges(GoodRanges, tmp_path)


class TestARightFolderFetcher(FolderFetcherTests):
    hostile = ("shelf:///$(touch {mark})",)

    @pytest.fixture
    def served(self, tmp_path: Path) -> Served[FolderFetcher]:
        return folders(GoodFolders, tmp_path)


# Broken range fetchers, and the sentence of the suite that must catch each


class WrongBodies(GoodRanges):
    """Opens bodies of another class."""

    body: type[GoodBody] = GoodBody

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        super().open(remote, start, stop).close()
        return self.body(self.shelf.path(remote.address), start, stop)


class ReadsBeyondStop(GoodRanges):
    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        return super().open(remote, start, None)


class StartsOneTooLate(GoodRanges):
    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        body = super().open(remote, start + 1 if start else 0, stop)
        body.start = start
        return body


class RefusesToStopBeyondTheEnd(GoodRanges):
    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        if stop is not None and stop > (remote.size_bytes or 0):
            raise UsageError("out of range")
        return super().open(remote, start, stop)


class SaysAWrongSize(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        return [replace(remote, size_bytes=None) for remote in super().find(address)]


class ForgetsHiddenFiles(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        return [remote for remote in super().find(address) if "/." not in f"/{remote.path}"] or super().find(address)


class SeesOnlyTheFirstLevel(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        return [remote for remote in super().find(address) if "/" not in remote.path]


class DecodesNamesTwice(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        return [replace(remote, path=unquote(remote.path)) for remote in super().find(address)]


class CutsLongNames(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        return [replace(remote, path=remote.path[:128]) for remote in super().find(address)]


class NeverChangesItsValidator(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        return [replace(remote, validator="same") for remote in super().find(address)]


class ChangesItsValidatorEachTime(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        return [replace(remote, validator=os.urandom(4).hex()) for remote in super().find(address)]


class PretendsTheOldValidator(GoodRanges):
    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        body = super().open(remote, start, stop)
        body.validator = remote.validator
        return body


class TellsTheSecret(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        try:
            return super().find(address)
        except NotFound:
            raise NotFound(f"nothing at {address}") from None


class ForgetsToSayWhere(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        try:
            return super().find(address)
        except NotFound:
            raise NotFound("there is nothing") from None


class FindsNothingSilently(GoodRanges):
    def find(self, address: str) -> list[Remote]:
        try:
            return super().find(address)
        except NotFound:
            return []


class LetsOtherErrorsThrough(GoodRanges):
    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        return GoodBody(self.shelf.path(remote.address), start, stop)


class NoEnd(GoodBody):
    ended = False

    def readinto(self, buffer: memoryview) -> int:
        count = super().readinto(buffer)
        if count or self.ended:
            return count or 1
        self.ended = True
        return 0


class SmallBufferForgotten(GoodBody):
    """Reads blocks of 4 KiB and drops what does not fit."""

    def readinto(self, buffer: memoryview) -> int:
        block = self.stream.read(min(4096, self.left))
        self.left -= len(block)
        count = min(len(block), len(buffer))
        buffer[:count] = block[:count]
        return count


class OnePositionForAll(GoodBody):
    """Every body reads through the same open file."""

    shared: dict[str, Any]

    def __init__(self, path: Path, start: int, stop: int | None) -> None:
        super().__init__(path, start, stop)
        first = self.shared.setdefault(str(path), self.stream)
        if first is not self.stream:
            self.stream.close()
            self.stream = first
        self.stream.seek(start)

    def close(self) -> None:
        self.stream.seek(0)


class LeavesAThread(GoodBody):
    gate: threading.Event

    def __init__(self, path: Path, start: int, stop: int | None) -> None:
        super().__init__(path, start, stop)
        threading.Thread(target=self.gate.wait, daemon=True).start()


class LeavesAProcess(GoodBody):
    started: list[subprocess.Popen[bytes]]

    def __init__(self, path: Path, start: int, stop: int | None) -> None:
        super().__init__(path, start, stop)
        self.started.append(subprocess.Popen(["sleep", "600"]))


class FailsWhenInterruptedLate(GoodBody):
    def interrupt(self) -> None:
        self.stream.seek(0)


class SaysItIsWhole(GoodBody):
    is_whole = True


class ClosesOnlyOnce(GoodBody):
    def close(self) -> None:
        if self.stream.closed:
            raise ValueError("closed")
        super().close()


@pytest.mark.parametrize(
    ("fetcher", "caught_by"),
    [
        (ReadsBeyondStop, "test_a_range_brings_exactly_its_bytes"),
        (StartsOneTooLate, "test_a_range_brings_exactly_its_bytes"),
        (RefusesToStopBeyondTheEnd, "test_a_range_beyond_the_end_stops_at_the_end"),
        (SaysAWrongSize, "test_one_file_is_found_with_its_name_and_size"),
        (ForgetsHiddenFiles, "test_awkward_names_in_a_folder_are_found_and_read"),
        (SeesOnlyTheFirstLevel, "test_a_folder_is_found_with_all_files_below_it"),
        (DecodesNamesTwice, "test_each_awkward_name_is_found_and_read_by_its_own_address"),
        (CutsLongNames, "test_each_awkward_name_is_found_and_read_by_its_own_address"),
        (NeverChangesItsValidator, "test_the_validator_changes_with_the_content_and_only_then"),
        (ChangesItsValidatorEachTime, "test_looking_twice_finds_the_same"),
        (PretendsTheOldValidator, "test_a_body_shows_that_the_file_is_another_one_than_was_found"),
        (TellsTheSecret, "test_what_is_missing_is_not_found_and_no_secret_is_told"),
        (ForgetsToSayWhere, "test_what_is_missing_is_not_found_and_no_secret_is_told"),
        (FindsNothingSilently, "test_what_is_missing_is_not_found_and_no_secret_is_told"),
        (LetsOtherErrorsThrough, "test_a_file_that_vanished_meanwhile_is_an_error_of_ours"),
    ],
)
def test_a_broken_range_fetcher_is_caught(fetcher: type[GoodRanges], caught_by: str, tmp_path: Path) -> None:
    assert not fails(RangeFetcherTests, caught_by, served=ranges(GoodRanges, tmp_path / "good"))
    assert fails(RangeFetcherTests, caught_by, served=ranges(fetcher, tmp_path / "broken"))


@pytest.mark.parametrize(
    ("body", "caught_by"),
    [
        (NoEnd, "test_the_whole_file_comes"),
        (SmallBufferForgotten, "test_buffers_of_any_size_are_filled"),
        (OnePositionForAll, "test_two_open_bodies_do_not_disturb_each_other"),
        (LeavesAThread, "test_closing_in_the_middle_leaves_nothing_running"),
        (LeavesAProcess, "test_closing_in_the_middle_leaves_nothing_running"),
        (FailsWhenInterruptedLate, "test_interrupting_a_closed_body_does_nothing"),
        (SaysItIsWhole, "test_a_range_brings_exactly_its_bytes"),
        (ClosesOnlyOnce, "test_a_body_closed_twice_stays_closed"),
    ],
)
def test_a_broken_body_is_caught(
    body: type[GoodBody], caught_by: str, tmp_path: Path, leftovers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairmile.testing.fetchers._PATIENCE_S", 0.5)
    served = ranges(WrongBodies, tmp_path / "good")
    assert not fails(RangeFetcherTests, caught_by, served=served)
    monkeypatch.setattr(WrongBodies, "body", body)
    assert fails(RangeFetcherTests, caught_by, served=served)


@pytest.fixture
def leftovers() -> Iterator[None]:
    """End what the broken bodies leave behind."""
    OnePositionForAll.shared = {}
    LeavesAThread.gate = threading.Event()
    LeavesAProcess.started = []
    yield
    LeavesAThread.gate.set()
    for stream in OnePositionForAll.shared.values():
        stream.close()
    for process in LeavesAProcess.started:
        process.kill()
        process.wait()


# Broken folder fetchers


class LeavesItsNotes(GoodFolders):
    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        super().bring(address, folder, on_bytes)
        (folder / ".state").write_text("done")


class KeepsWhatIsThere(GoodFolders):
    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        super().bring(address, folder, on_bytes)
        for path, data in before.items():
            path.write_bytes(data)


class MendsLineEnds(GoodFolders):
    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        super().bring(address, folder, on_bytes)
        for path in folder.rglob("*.txt"):
            path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))


class CountsTwice(GoodFolders):
    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        super().bring(address, folder, lambda count: on_bytes(2 * count))


class MakesPrograms(GoodFolders):
    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        super().bring(address, folder, on_bytes)
        for path in folder.rglob("*"):
            path.chmod(0o755)


class IgnoresAMissingSource(GoodFolders):
    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        if "nowhere" not in address:
            super().bring(address, folder, on_bytes)


class RunsAShell(GoodFolders):
    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        subprocess.run(f"echo {address}", shell=True, check=False, stdout=subprocess.DEVNULL)
        super().bring(address, folder, on_bytes)


class SwallowsTheStop(GoodFolders):
    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        try:
            super().bring(address, folder, on_bytes)
        except Exception:
            return


class LiesBeforehand(GoodFolders):
    def find(self, address: str) -> list[Remote]:
        return [replace(remote, size_bytes=7) for remote in super().find(address)]


class OneFolderForAll(GoodFolders):
    """Goes by way of one place that all share."""

    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        place = self.shelf.root.parent / "place"
        place.mkdir()
        super().bring(address, place, on_bytes)
        shutil.copytree(place, folder, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("fetcher", "caught_by"),
    [
        (LeavesItsNotes, "test_all_files_come_with_their_bytes_and_nothing_else"),
        (KeepsWhatIsThere, "test_a_half_filled_folder_is_completed"),
        (KeepsWhatIsThere, "test_what_changed_at_the_source_comes_anew"),
        (MendsLineEnds, "test_all_files_come_with_their_bytes_and_nothing_else"),
        (CountsTwice, "test_the_bytes_that_came_are_counted"),
        (MakesPrograms, "test_what_comes_can_be_read_and_replaced_by_its_owner"),
        (IgnoresAMissingSource, "test_what_is_missing_is_an_error_that_tells_no_secret"),
        (RunsAShell, "test_hostile_addresses_are_refused_and_run_nothing"),
        (SwallowsTheStop, "test_after_an_interruption_the_next_attempt_completes_it"),
        (LiesBeforehand, "test_what_is_told_beforehand_is_true"),
        (OneFolderForAll, "test_two_folders_are_filled_at_once"),
    ],
)
def test_a_broken_folder_fetcher_is_caught(fetcher: type[GoodFolders], caught_by: str, tmp_path: Path) -> None:
    for kind, is_caught in ((GoodFolders, False), (fetcher, True)):
        place = tmp_path / kind.__name__
        (place / "folder").mkdir(parents=True)
        fixtures = {"served": folders(kind, place), "folder": place / "folder", "tmp_path": place}
        assert fails(TestARightFolderFetcher, caught_by, **fixtures) is is_caught


def fails(suite: type, name: str, **fixtures: Any) -> bool:
    """Run one sentence of a suite, with each of its parameters, and tell whether any of them fails."""
    sentence = getattr(suite(), name)
    cases: list[dict[str, Any]] = [{}]
    for mark in getattr(sentence, "pytestmark", ()):
        names = (mark.args[0],) if isinstance(mark.args[0], str) else mark.args[0]
        rows = [(row,) if isinstance(mark.args[0], str) else row for row in mark.args[1]]
        cases = [{**case, **dict(zip(names, row, strict=True))} for case in cases for row in rows]
    wanted = sentence.__code__.co_varnames[1 : sentence.__code__.co_argcount]
    for case in cases:
        given = {key: value for key, value in fixtures.items() if key in wanted}
        try:
            sentence(**given, **case)
        except (Exception, pytest.fail.Exception):
            return True
    return False
