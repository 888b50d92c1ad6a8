from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmile.base.digest import ManifestEntry, merkle_root, scan_tree
from fairmile.base.errors import Conflict, Integrity, NotFound, SystemFailure, UsageError
from fairmile.store import links as module
from fairmile.store.links import PRESENT, WAYS, Materialized, materialize
from fairmile.store.objects import Objects

LINK = 0o120000


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stored(objects: Objects, files: dict[str, bytes | tuple[bytes, int]]) -> list[ManifestEntry]:
    """Store files, given as bytes or bytes and mode, and return their entries."""
    entries = []
    with objects.batch() as batch:
        for path, content in files.items():
            data, mode = content if isinstance(content, tuple) else (content, 0o644)
            entries.append(ManifestEntry(path, len(data), batch.add(data), mode))
    return entries


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return inode, time and content of every file and link below a folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_ino,
            path.lstat().st_mtime_ns,
            os.readlink(path).encode() if path.is_symlink() else path.read_bytes(),
        )
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


class Holding:
    """A source that has the same bytes for everything, or nothing at all."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def path(self, sha256: str) -> Path | None:
        return None

    def open(self, sha256: str) -> BinaryIO:
        if self._data is None:
            raise NotFound(f"the object {sha256} is gone")
        return io.BytesIO(self._data)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "pool")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "work" / "data"


FILES: dict[str, bytes | tuple[bytes, int]] = {
    "a": b"one",
    "folder/deep/b": b"two" * 100_000,
    "folder/empty": b"",
    "folder/run": (b"#!/bin/sh\n", 0o755),
    "folder/same": b"one",
    "folder/to-a": (b"../a", LINK),
    "name with blanks é\n\\": b"odd",
}


@pytest.mark.parametrize("ways", [WAYS, ("hardlink", "copy"), ("symlink",), ("copy",), ()])
@pytest.mark.parametrize("pack_below_bytes", [0, 1 << 20])
def test_a_tree_that_is_laid_is_the_tree_that_was_stored(
    tmp_path: Path, target: Path, ways: tuple[str, ...], pack_below_bytes: int
) -> None:
    objects = Objects(tmp_path / "pool", pack_below_bytes=pack_below_bytes)
    entries = stored(objects, FILES | {f"many/{number}": b"%d" % number for number in range(20)})
    files = materialize(entries, objects, target, ways=ways)
    assert (files.files, files.size_bytes) == (len(entries), sum(entry.size_bytes for entry in entries))
    assert sum(files.ways.values()) == files.files
    assert set(files.ways) <= {*ways, "copy"}
    for entry in entries:
        path = target / entry.path
        if entry.mode == LINK:
            assert os.readlink(path) == "../a"
        else:
            assert sha(path.read_bytes()) == entry.sha256
            assert stat.S_IMODE(path.stat().st_mode) == (0o555 if entry.mode == 0o755 else 0o444)
    if "symlink" not in files.ways:
        assert merkle_root(list(scan_tree(target))) == merkle_root(entries)


def test_a_hard_link_shares_the_object_and_a_symbolic_link_leads_to_it(objects: Objects, target: Path) -> None:
    entries = stored(objects, {"a": b"one"})
    path = objects.path(entries[0].sha256)
    assert path is not None
    assert materialize(entries, objects, target / "hard", ways=["hardlink"]).ways == {"hardlink": 1}
    assert (target / "hard" / "a").stat().st_ino == path.stat().st_ino
    assert materialize(entries, objects, target / "soft", ways=["symlink"]).ways == {"symlink": 1}
    assert os.readlink(target / "soft" / "a") == str(path)
    assert materialize(entries, objects, target / "copied", ways=["copy"]).ways == {"copy": 1}
    assert (target / "copied" / "a").stat().st_nlink == 1


def test_an_executable_never_shares_the_mode_of_its_object(objects: Objects, target: Path) -> None:
    entries = stored(objects, {"run": (b"#!/bin/sh\necho ran\n", 0o755), "text": b"#!/bin/sh\necho ran\n"})
    assert materialize(entries, objects, target, ways=["hardlink", "symlink"]).ways == {"copy": 1, "hardlink": 1}
    assert subprocess.run([target / "run"], capture_output=True, check=True).stdout == b"ran\n"
    assert not os.access(target / "text", os.X_OK) or os.geteuid() == 0


def test_an_object_that_somebody_could_write_to_is_not_shared(objects: Objects, target: Path) -> None:
    entries = stored(objects, {"a": b"one"})
    path = objects.path(entries[0].sha256)
    assert path is not None
    path.chmod(0o664)  # as when it came from another user's half-done transfer
    assert materialize(entries, objects, target, ways=["hardlink", "symlink"]).ways == {"copy": 1}
    assert stat.S_IMODE((target / "a").stat().st_mode) == 0o444


def test_data_cannot_be_changed_by_accident(objects: Objects, target: Path, unprivileged: list[str]) -> None:
    entries = stored(objects, {"a": b"one", "run": (b"two", 0o755)})
    for way in WAYS:
        folder = target / way
        materialize(entries, objects, folder, ways=[way])
        for name in ("a", "run"):
            done = subprocess.run(
                [*unprivileged, "sh", "-c", 'echo changed >> "$0"', folder / name], capture_output=True, check=False
            )
            assert done.returncode != 0
        assert (folder / "a").read_bytes() == b"one"


def test_copies_follow_the_umask_of_the_working_folder(objects: Objects, target: Path) -> None:
    entries = stored(objects, {"a": b"one", "folder/run": (b"two", 0o755)})
    before = os.umask(0o077)
    try:
        materialize(entries, objects, target, ways=["copy"])
    finally:
        os.umask(before)
    modes = {str(path.relative_to(target)): stat.S_IMODE(path.stat().st_mode) for path in target.rglob("*")}
    assert modes == {"a": 0o400, "folder": 0o700, "folder/run": 0o500}


def test_across_file_systems_the_next_way_is_taken_and_the_first_is_asked_once(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(objects.root.parent).st_dev:
        pytest.skip("needs /dev/shm as another file system")
    entries = stored(objects, {str(number): b"%d" % number for number in range(5)})
    asked: list[str] = []
    link = os.link
    monkeypatch.setattr(os, "link", lambda source, name: (asked.append(name), link(source, name)))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert materialize(entries, objects, Path(folder) / "1").ways == {"symlink": 5}
        assert len(asked) == 1
        assert materialize(entries, objects, Path(folder) / "2", ways=["hardlink", "copy"]).ways == {"copy": 5}
        assert sorted(os.listdir(Path(folder) / "2")) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("reason", [errno.EPERM, errno.EMLINK])
def test_one_object_that_cannot_be_linked_does_not_keep_the_others_from_it(
    objects: Objects, target: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    entries = stored(objects, {"a": b"one", "b": b"two", "c": b"three"})
    refused = objects.path(entries[1].sha256)
    link = os.link

    def link_but_one(source: str, name: str) -> None:
        if source == str(refused):
            raise OSError(reason, os.strerror(reason))
        link(source, name)

    monkeypatch.setattr(os, "link", link_but_one)
    assert materialize(entries, objects, target, ways=["hardlink", "copy"]).ways == {"hardlink": 2, "copy": 1}
    assert sorted(os.listdir(target)) == ["a", "b", "c"]


REFLINKS = """
import os, sys
from pathlib import Path
from fairmile.base.digest import ManifestEntry
from fairmile.store.links import materialize
from fairmile.store.objects import Objects
root = Path(sys.argv[1])
objects = Objects(root / "pool")
data = os.urandom(3_000_000)
with objects.batch() as batch:
    digest = batch.add(data)
    others = [batch.add(b"%d" % number) for number in range(20)]
entries = [ManifestEntry("a", len(data), digest, 0o644), ManifestEntry("run", len(data), digest, 0o755)]
entries += [ManifestEntry("packed", 1, others[0], 0o644)]
files = materialize(entries, objects, root / "work")
modes = [oct((root / "work" / entry.path).stat().st_mode & 0o7777) for entry in entries]
assert (root / "work" / "a").read_bytes() == (root / "work" / "run").read_bytes() == data
assert (root / "work" / "a").stat().st_ino != objects.path(digest).stat().st_ino
print(sorted(files.ways.items()), modes, sorted(os.listdir(root / "work")))
"""


def test_where_the_file_system_can_share_blocks_files_are_cloned_executables_too(tmp_path: Path) -> None:
    image, mount = tmp_path / "image", tmp_path / "mount"
    if os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None or shutil.which("unshare") is None:
        pytest.skip("needs root and mkfs.btrfs, to mount a file system with reflinks")
    mount.mkdir()
    image.touch()
    os.truncate(image, 64 << 20)
    subprocess.run(["mkfs.btrfs", "-q", "-M", image], check=True, capture_output=True)
    mounting = f"mount -o loop {image} {mount}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mounting], check=False, capture_output=True).returncode:
        pytest.skip("needs a loop device, to mount a file system with reflinks")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mounting} && "$@"', "_", sys.executable, "-c", REFLINKS, str(mount)],
        capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.stdout == "[('copy', 1), ('reflink', 2)] ['0o444', '0o555', '0o444'] ['a', 'packed', 'run']\n"


# What is there already


@pytest.mark.parametrize("way", WAYS)
def test_what_is_there_with_the_same_content_is_left(objects: Objects, target: Path, way: str) -> None:
    entries = stored(objects, FILES)
    materialize(entries, objects, target, ways=[way])
    (target / "own notes").write_text("mine")
    before = snapshot(target)
    assert materialize(iter(entries), objects, target).ways == {PRESENT: len(entries)}
    assert snapshot(target) == before


def test_missing_files_are_added_to_those_that_are_there(objects: Objects, target: Path) -> None:
    entries = stored(objects, FILES)
    materialize(entries, objects, target)
    (target / "folder" / "same").unlink()
    (target / "folder" / "to-a").unlink()
    files = materialize(entries, objects, target, ways=["copy"])
    assert files.ways == {PRESENT: len(entries) - 2, "copy": 2}
    assert (target / "folder" / "same").read_bytes() == b"one"


def other_bytes(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"own")


def other_size(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"my own")


def dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [other_bytes, other_size, dangling_link, pipe])
def test_other_content_is_a_conflict_that_changes_nothing_unless_it_may_be_replaced(
    objects: Objects, target: Path, change: Callable[[Path], None]
) -> None:
    entries = stored(objects, {"a": b"new", "b": b"new too", "c": b"one", "d/e": b"two"})
    materialize(entries[2:], objects, target)
    change(target / "c")
    before = sorted(str(path) for path in target.rglob("*")), (target / "c").lstat().st_ino
    with pytest.raises(Conflict, match=f"{target}/c exists with other content") as caught:
        materialize(iter(entries), objects, target)
    assert caught.value.hint is not None
    assert (sorted(str(path) for path in target.rglob("*")), (target / "c").lstat().st_ino) == before
    files = materialize(iter(entries), objects, target, replace=True)
    assert files.ways[PRESENT] == 1
    assert {path: (target / path).read_bytes() for path in "abc"} == {"a": b"new", "b": b"new too", "c": b"one"}
    assert sorted(os.listdir(target)) == ["a", "b", "c", "d"]


def test_a_link_with_another_aim_is_a_conflict_and_may_be_replaced(objects: Objects, target: Path) -> None:
    entries = stored(objects, {"a": b"one", "link": (b"a", LINK)})
    target.mkdir(parents=True)
    (target / "link").symlink_to("elsewhere")
    with pytest.raises(Conflict, match="link exists with other content"):
        materialize(entries, objects, target)
    materialize(entries, objects, target, replace=True)
    assert os.readlink(target / "link") == "a"


@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_is_never_replaced_and_neither_is_a_file_where_a_folder_is_needed(
    objects: Objects, target: Path, replace: bool
) -> None:
    entries = stored(objects, {"a": b"one", "b/c": b"two"})
    (target / "a").mkdir(parents=True)
    with pytest.raises(Conflict, match=f"{target}/a is a folder, but the data has a file of that name"):
        materialize(entries, objects, target, replace=replace)
    (target / "a").rmdir()
    (target / "b").write_text("mine")
    with pytest.raises(Conflict, match=f"{target}/b is a file or link, not a folder"):
        materialize(entries, objects, target, replace=replace)
    assert (target / "b").read_text() == "mine"


def test_a_target_that_is_a_file_is_a_conflict(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Conflict, match=f"{tmp_path}/file is a file"):
        materialize(stored(objects, {"a": b"one"}), objects, tmp_path / "file")


def test_a_target_may_itself_be_reached_through_a_link(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    materialize(stored(objects, {"a/b": b"one"}), objects, tmp_path / "link")
    assert (tmp_path / "real" / "a" / "b").read_bytes() == b"one"


def test_a_copy_that_is_there_is_digested_once(objects: Objects, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = stored(objects, {"a": b"one", "b": b"two"})
    materialize(entries, objects, target, ways=["copy"])
    digested: list[str] = []
    real = module.sha256_file
    monkeypatch.setattr(module, "sha256_file", lambda path: (digested.append(path), real(path))[1])
    materialize(entries, objects, target)
    assert digested == [f"{target}/a", f"{target}/b"]


# What may not be trusted


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", "a//b", "", ".", "a/.", "a\0b"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_path_that_could_lead_out_is_refused(objects: Objects, target: Path, path: str, is_there: bool) -> None:
    (entry,) = stored(objects, {"x": b"one"})
    if is_there:
        target.mkdir(parents=True)
        (target / "mine").write_text("")
    with pytest.raises(UsageError, match="is not a plain relative path"):
        materialize([ManifestEntry(path, 3, entry.sha256, 0o644)], objects, target)
    assert not (target.parent / "out").exists()


@pytest.mark.parametrize("replace", [False, True])
def test_a_link_in_the_target_is_not_followed(objects: Objects, target: Path, tmp_path: Path, replace: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target.mkdir(parents=True)
    (target / "a").symlink_to(outside)
    with pytest.raises(Conflict, match="a file or link, not a folder"):
        materialize(stored(objects, {"a/b": b"one"}), objects, target, replace=replace)
    assert os.listdir(outside) == []


def test_a_link_of_the_tree_is_not_followed_either(objects: Objects, target: Path) -> None:
    entries = stored(objects, {"a": (b"b", LINK), "a/x": b"one", "b/y": b"two"})
    with pytest.raises(Conflict, match="a file or link, not a folder"):
        materialize(entries, objects, target)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a", "/etc/passwd"), ("a", ".."), ("a", "../x"), ("d/a", "../../x"), ("d/a", "x/../../../y"),
        ("a", "d/l/../x"), ("d/e/a", "l/../x"), ("a", "./.."), ("a", "x\0y"), ("a", ""),
    ],
)  # fmt: skip
def test_a_link_that_may_lead_out_is_refused(objects: Objects, target: Path, path: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"the symbolic link {path} leads to "):
        materialize(stored(objects, {path: (text.encode(), LINK)}), objects, target)
    assert snapshot(target) == {}


parts = st.sampled_from(["..", ".", "a", "b", "c"])


@settings(deadline=None)
@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join),
        st.lists(parts, min_size=1, max_size=5).map("/".join),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_no_set_of_links_leads_out_together(links: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "work" / "data"
        for path, text in links.items():
            entry = ManifestEntry(path, len(text), sha(text.encode()), LINK)
            try:
                materialize([entry], Holding(text.encode()), target, replace=True)
            except (UsageError, Conflict):
                continue
        top = os.path.realpath(target)
        for path in target.rglob("*"):
            if path.is_symlink():
                real = os.path.realpath(path)
                assert real == top or real.startswith(top + "/")


def test_a_link_within_the_tree_is_laid(objects: Objects, target: Path) -> None:
    texts = {"d/up": "../a", "d/e/top": "../..", "down": "./d/up", "slash": "d/", "to-nothing": "later"}
    files: dict[str, bytes | tuple[bytes, int]] = {path: (text.encode(), LINK) for path, text in texts.items()}
    files = materialize(stored(objects, {"a": b"one"} | files), objects, target)
    assert files.ways == {"hardlink": 1, "copy": 5} or files.ways == {"reflink": 1, "copy": 5}
    assert {path: os.readlink(target / path) for path in texts} == texts
    assert (target / "down").read_bytes() == b"one"


# What fails


def test_a_missing_object_is_said_and_leaves_no_half_file(target: Path) -> None:
    with pytest.raises(NotFound, match="is gone"):
        materialize([ManifestEntry("a", 3, sha(b"one"), 0o644)], Holding(None), target)
    assert os.listdir(target) == []


def test_an_object_of_the_wrong_size_is_not_laid(objects: Objects, target: Path) -> None:
    with pytest.raises(Integrity, match="has 2 bytes, a should have 3"):
        materialize([ManifestEntry("a", 3, sha(b"one"), 0o644)], Holding(b"on"), target)
    (entry,) = stored(objects, {"a": b"one"})
    with pytest.raises(Integrity, match="has 3 bytes, a should have 4"):
        materialize([ManifestEntry("a", 4, entry.sha256, 0o644)], objects, target)
    assert os.listdir(target) == []


def test_an_unknown_way_is_refused(objects: Objects, target: Path) -> None:
    with pytest.raises(UsageError, match="'hardlnk' is not a way to materialize a file"):
        materialize([], objects, target, ways=["hardlnk"])


def test_a_name_that_the_file_system_refuses_is_a_clear_failure(objects: Objects, target: Path) -> None:
    target.mkdir(parents=True)
    (target / "a").mkdir()
    with pytest.raises(SystemFailure, match="File name too long") as caught:
        materialize(stored(objects, {"a/" + "é" * 130: b"one"}), objects, target)
    assert caught.value.hint == "choose a shorter name"
    assert snapshot(target) == {}


def test_an_empty_tree_lays_nothing(objects: Objects, target: Path) -> None:
    assert materialize([], objects, target) == Materialized({}, 0, 0)


def test_entries_are_read_once_and_as_they_are_needed(objects: Objects, target: Path) -> None:
    entries = stored(objects, {str(number): b"one" for number in range(10)})

    def watched() -> Iterable[ManifestEntry]:
        for number, entry in enumerate(entries):
            assert len(os.listdir(target) if target.exists() else []) == number
            yield entry

    assert materialize(watched(), objects, target).files == 10
