from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fairmile.base.commands import Here
from fairmile.base.digest import scan_tree
from fairmile.base.errors import NotFound, UsageError
from fairmile.testing.fetchers import RangeFetcherTests, Served, read
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.file import File
from fairmile.transfer.remote import Context, RangeFetcher, Remote
from fairmile.transfer.settings import Settings


@pytest.fixture
def fetcher() -> File:
    return File(Context({}, Here(), Credentials({}), Settings()))


class Folder:
    """Publishes files below a folder; each set of paths has a place of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._places: dict[tuple[str, ...], Path] = {}

    def publish(self, files: Mapping[str, bytes]) -> Path:
        place = self._places.setdefault(tuple(sorted(files)), self.root / f"set {len(self._places)}")
        for path, data in files.items():
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.parent / "aside"
            aside.write_bytes(data)
            aside.replace(target)
        return place / next(iter(files)) if len(files) == 1 else place


class TestFileAddresses(RangeFetcherTests):
    @pytest.fixture
    def served(self, tmp_path: Path, fetcher: File) -> Served[RangeFetcher]:
        there = Folder(tmp_path / "there")
        return Served(fetcher, lambda files: there.publish(files).as_uri(), (tmp_path / "nowhere").as_uri())


@pytest.mark.thorough
class TestPlainPaths(RangeFetcherTests):
    @pytest.fixture
    def served(self, tmp_path: Path, fetcher: File) -> Served[RangeFetcher]:
        there = Folder(tmp_path / "there")
        return Served(fetcher, lambda files: str(there.publish(files)), str(tmp_path / "nowhere"))


def test_files_are_sorted_as_a_manifest_sorts_them_and_links_and_modes_are_kept(fetcher: File, tmp_path: Path) -> None:
    for name in ("a/z", "a.txt", "a-b", "b/c/d", "é", "tool"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "tool").chmod(0o700)
    (tmp_path / "b" / "up").symlink_to("../a.txt")
    (tmp_path / "folder").symlink_to("b")
    found = fetcher.find(str(tmp_path))
    expected = list(scan_tree(tmp_path))
    assert [(each.path, each.size_bytes, each.mode) for each in found] == [
        (each.path, each.size_bytes, each.mode) for each in expected
    ]
    link = next(each for each in found if each.path == "b/up")
    assert read(fetcher.open(link, 0, None)) == b"../a.txt"
    assert read(fetcher.open(link, 3, 5)) == b"a."


def test_a_name_that_is_no_utf8_is_found_and_read(fetcher: File, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).write_bytes(b"x")
    remote = fetcher.find(tmp_path.as_uri())[0]
    assert os.fsencode(remote.path) == b"caf\xe9"
    assert read(fetcher.open(remote, 0, None)) == b"x"


def test_a_link_that_is_named_itself_is_followed(fetcher: File, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    (tmp_path / "latest").symlink_to(tmp_path / "data")
    remote = fetcher.find(str(tmp_path / "latest"))[0]
    assert (remote.path, remote.size_bytes, remote.mode) == ("latest", 1, 0o644)
    assert read(fetcher.open(remote, 0, None)) == b"x"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "../inside-by-name-only/x"])
def test_a_link_that_leads_out_is_refused(fetcher: File, tmp_path: Path, target: str) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(target)
    with pytest.raises(UsageError, match="leads out"):
        fetcher.find(str(tmp_path / "inside"))


def test_a_relative_path_is_one_from_here(fetcher: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    remote = fetcher.find("data")[0]
    assert remote.address == (tmp_path / "data").as_uri()


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}", "FILE://LOCALHOST{}"])
def test_every_form_of_a_file_address_is_understood(fetcher: File, tmp_path: Path, form: str) -> None:
    (tmp_path / "a ?#b").write_bytes(b"x")
    assert fetcher.find(form.format(tmp_path / "a ?#b"))[0].path == "a ?#b"


@pytest.mark.parametrize(
    "address", ["", "file:", "file://", "file:data", "file:///a%00b", "a\0b", "file://elsewhere/data", "/a\ud800"]
)
def test_what_is_no_local_path_is_refused(fetcher: File, address: str) -> None:
    with pytest.raises(UsageError):
        fetcher.find(address)


def test_a_file_on_another_machine_is_pointed_to_ssh(fetcher: File) -> None:
    with pytest.raises(UsageError) as caught:
        fetcher.find("file://elsewhere/data/x")
    assert "ssh://elsewhere/data/x" in str(caught.value.hint)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_pipes_and_devices_are_refused_and_block_nothing(fetcher: File, tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "pipe")
    with pytest.raises(UsageError):
        fetcher.find(str(tmp_path / "pipe"))
    with pytest.raises(UsageError):
        fetcher.find(str(tmp_path))
    with pytest.raises(UsageError):
        fetcher.open(Remote((tmp_path / "pipe").as_uri(), "pipe"), 0, None)


def test_an_empty_folder_has_nothing_to_fetch(fetcher: File, tmp_path: Path) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    with pytest.raises(NotFound, match="has no files"):
        fetcher.find(str(tmp_path / "empty"))


def test_a_folder_cannot_be_read_as_a_file(fetcher: File, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is a folder"):
        fetcher.open(Remote(tmp_path.as_uri(), "x"), 0, None)


def test_what_may_not_be_read_is_said_with_a_way_out(tmp_path: Path, unprivileged: list[str]) -> None:
    (tmp_path / "shut").write_bytes(b"x")
    (tmp_path / "shut").chmod(0)
    script = (
        "import sys; from fairmile.base.errors import SystemFailure; from fairmile.transfer.fetchers.file import File; "
        "from fairmile.transfer.remote import Remote\n"
        "try: File(None).open(Remote(sys.argv[1], 'shut'), 0, None)\n"
        "except SystemFailure as error: print(error, error.hint)"
    )
    argv = [*unprivileged, sys.executable, "-c", script, (tmp_path / "shut").as_uri()]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "shut: Permission denied" in said
    assert "ask its owner" in said


def test_a_file_written_anew_with_the_same_size_and_time_has_another_validator(fetcher: File, tmp_path: Path) -> None:
    file, other = tmp_path / "data", tmp_path / "other"
    for path in (file, other):
        path.write_bytes(os.urandom(5))
        os.utime(path, ns=(10**18, 10**18))
    before = fetcher.find(str(file))[0].validator
    other.replace(file)
    assert fetcher.find(str(file))[0].validator != before
