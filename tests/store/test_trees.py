from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmile.base.digest import ManifestEntry, manifest_text, merkle_root
from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.store.objects import Damage
from fairmile.store.trees import Trees

ZERO = "0" * 64


def entry(path: str, size: int = 1, sha256: str = "a" * 64, mode: int = 0o644) -> ManifestEntry:
    return ManifestEntry(path, size, sha256, mode)


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path / "pool")


def test_a_tree_is_stored_under_its_merkle_root_as_the_text_of_its_manifest(trees: Trees) -> None:
    entries = [entry("b/c", 3, mode=0o755), entry("a"), entry("b/é \t\\", 4), entry("link", 1, mode=0o120000)]
    root = trees.put(entries)
    assert root == merkle_root(entries)
    assert root in trees
    path = trees.root / "trees" / root[:2] / root[2:]
    assert path.read_text() == manifest_text(entries)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert list(trees.entries(root)) == sorted(entries, key=lambda entry: entry.path.encode())
    assert os.listdir(trees.root / "incoming") == []


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=5)


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.lists(names, min_size=1, max_size=3).map("/".join), unique=True, max_size=20))
def test_any_tree_comes_back_as_it_was(paths: list[str]) -> None:
    entries = [entry(path, size, f"{size:064x}") for size, path in enumerate(paths)]
    try:
        expected = merkle_root(entries)
    except UsageError:  # `.`, `..`, or a file where a folder is
        expected = None
    with tempfile.TemporaryDirectory() as folder:
        trees = Trees(Path(folder))
        if expected is None:
            with pytest.raises(UsageError):
                trees.put(entries)
            assert list(trees.roots()) == []
            return
        ordered = sorted(entries, key=lambda entry: entry.path.encode())
        assert trees.put(entries) == trees.put(iter(ordered)) == expected
        assert list(trees.entries(expected)) == ordered
        assert list(trees.digests(expected)) == [each.sha256 for each in ordered]
        assert list(trees.verify()) == []


def test_an_empty_tree_is_a_tree(trees: Trees) -> None:
    root = trees.put([])
    assert list(trees.entries(root)) == []
    assert list(trees.digests(root)) == []
    assert list(trees.verify()) == []


def test_names_that_are_not_utf8_are_kept(trees: Trees) -> None:
    entries = [entry(os.fsdecode(b"caf\xe9/\xff"))]
    root = trees.put(entries)
    assert list(trees.entries(root)) == entries
    assert list(trees.digests(root)) == [entries[0].sha256]


def test_an_iterable_must_come_sorted_and_a_list_need_not(trees: Trees) -> None:
    entries = [entry("b"), entry("a")]
    with pytest.raises(UsageError, match="'a' is out of order"):
        trees.put(iter(entries))
    assert list(trees.roots()) == []
    assert os.listdir(trees.root / "incoming") == []
    assert trees.put(entries) in trees


@pytest.mark.parametrize(
    "bad",
    [
        entry("../a"), entry("/a"), entry("a//b"), entry(""), entry("\ud800"),
        entry("a", sha256="A" * 64), entry("a", sha256=""), entry("a", -1), entry("a", 10**19), entry("a", mode=0o600),
    ],
)  # fmt: skip
def test_an_entry_that_could_not_be_laid_is_refused_and_leaves_nothing(trees: Trees, bad: ManifestEntry) -> None:
    for entries in ([bad], iter([bad])):
        with pytest.raises(UsageError):
            trees.put(entries)
    assert list(trees.roots()) == []
    assert os.listdir(trees.root / "incoming") == []


def test_what_breaks_while_entries_come_leaves_nothing(trees: Trees) -> None:
    def entries() -> Iterator[ManifestEntry]:
        yield from (entry(f"{number:06}") for number in range(5000))
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        trees.put(entries())
    assert list(trees.roots()) == []
    assert os.listdir(trees.root / "incoming") == []


@pytest.mark.thorough
def test_a_long_tree_is_written_and_read_with_little_memory(trees: Trees) -> None:
    count = 50_000
    tracemalloc.start()
    try:
        root = trees.put(entry(f"{number // 100:06}/{number:08}", number) for number in range(count))
        assert sum(found.size_bytes for found in trees.entries(root)) == sum(range(count))
        assert sum(1 for _ in trees.digests(root)) == count
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_a_tree_that_is_not_there_is_said_at_once(trees: Trees) -> None:
    assert ZERO not in trees
    with pytest.raises(NotFound, match=f"the tree {ZERO} is not in the pool {trees.root}"):
        trees.entries(ZERO)
    with pytest.raises(NotFound, match=f"the tree {ZERO} is not in the pool {trees.root}"):
        trees.digests(ZERO)
    assert not trees.root.exists()


def test_a_root_that_is_no_sha256_is_refused(trees: Trees) -> None:
    with pytest.raises(UsageError, match="is not a sha256"):
        trees.entries("../../etc/passwd")


def test_roots_are_listed_sorted_and_removed(trees: Trees) -> None:
    roots = [trees.put([entry(name)]) for name in "abcdefgh"]
    assert list(trees.roots()) == sorted(roots)
    size = os.stat(trees.root / "trees" / roots[0][:2] / roots[0][2:]).st_size
    assert trees.remove([*roots[:3], ZERO]) == 3 * size
    assert list(trees.roots()) == sorted(roots[3:])
    assert roots[0] not in trees


def test_a_damaged_tree_is_found_and_the_line_is_named(trees: Trees) -> None:
    whole, changed, cut, binary = (trees.put([entry(name + str(n)) for n in range(3)]) for name in "abcd")
    paths = {root: trees.root / "trees" / root[:2] / root[2:] for root in (changed, cut, binary)}
    for path in paths.values():
        path.chmod(0o644)
    paths[changed].write_text(paths[changed].read_text().replace("b1\t1", "b1\t2"))
    paths[cut].write_text(paths[cut].read_text()[:-1])
    paths[binary].write_bytes(b"\xff\n")
    reasons = {damage.sha256: damage for damage in trees.verify()}
    assert set(reasons) == {changed, cut, binary}
    assert all(isinstance(damage, Damage) and damage.path == paths[root] for root, damage in reasons.items())
    assert "its entries have the root" in reasons[changed].reason
    assert reasons[cut].reason.startswith(f"{paths[cut]}:3: ")
    with pytest.raises(Integrity, match=f"{paths[cut]}:3: "):
        list(trees.entries(cut))
    assert list(trees.entries(whole))


def test_the_line_of_a_damaged_tree_is_right_beyond_the_first_thousand(trees: Trees) -> None:
    root = trees.put([entry(f"{number:06}") for number in range(2500)])
    path = trees.root / "trees" / root[:2] / root[2:]
    lines = path.read_text().splitlines(keepends=True)
    lines[2099] = "nonsense\n"
    path.chmod(0o644)
    path.write_text("".join(lines))
    with pytest.raises(Integrity, match=f"{path}:2100: "):
        list(trees.entries(root))


def test_the_same_tree_is_stored_once(trees: Trees) -> None:
    root = trees.put([entry("a")])
    assert Trees(trees.root).put([entry("a")]) == root
    assert [path.name for path in trees.root.rglob("*") if path.is_file()] == [root[2:]]


@pytest.mark.parametrize(
    "change", [("\t5\t", "\t6\t"), ("a\t", "b\t"), ("a\t", "../x\t")], ids=["size", "name", "climbs"]
)
def test_a_tree_that_is_not_what_its_root_says_is_noticed_and_written_anew(
    trees: Trees, change: tuple[str, str]
) -> None:
    root = trees.put([entry("a", size=5)])
    path = trees.root / "trees" / root[:2] / root[2:]
    path.chmod(0o644)
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(Integrity, match="is damaged"):
        list(trees.entries(root))
    with pytest.raises(Integrity, match="is damaged"):
        list(trees.digests(root))
    trees.put([entry("a", size=5)])
    assert [each.path for each in trees.entries(root)] == ["a"]
    assert list(trees.digests(root)) == ["a" * 64]


@pytest.mark.parametrize(
    "change",
    [
        (b"a" * 64, b"b" * 64),
        (b"a" * 64, b"g" * 64),
        (b"a" * 64, b" " * 64),
        (b"a" * 64, b"a" * 63),
        (b"a" * 64, b"A" * 64),
        (b"\t", b" "),
        (b"\t", b"\t\t"),
        (b"\n", b""),
        (b"\n", b"\n\n"),
        (b"\t7\t", b"\t07\t"),
        (b"\t7\t", b"\t-7\t"),
        (b"\t7\t", b"\tx\t"),
        (b"\t644", b"\t755"),
        (b"d/e", b"d/\xff"),
        (b"d/e", b"x/e"),
        (b"d/e", b"e"),
        (b"d/e", b"/e"),
        (b"d/f/g", b"f/d/g"),
        (b"d/e\t7", b"d/e\t8"),
    ],
)
def test_a_tree_is_never_taken_for_whole_by_its_digests_when_its_text_changed(
    trees: Trees, change: tuple[bytes, bytes]
) -> None:
    root = trees.put([entry("d/e", 7), entry("d/f/g", 7), entry("h", 7)])
    path = trees.root / "trees" / root[:2] / root[2:]
    assert list(trees.digests(root)) == ["a" * 64] * 3
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(*change, 1))
    with pytest.raises(Integrity, match="is damaged"):
        list(trees.digests(root))


@pytest.mark.parametrize("text", [b"", b"h\t7\t" + b"a" * 64 + b"\t644\n"], ids=["empty", "cut off at a line"])
def test_a_tree_that_lost_lines_is_noticed_by_its_digests(trees: Trees, text: bytes) -> None:
    root = trees.put([entry("h", 7), entry("i", 7)])
    path = trees.root / "trees" / root[:2] / root[2:]
    path.chmod(0o644)
    path.write_bytes(text)
    with pytest.raises(Integrity, match="is damaged"):
        list(trees.digests(root))


FILLS_THE_DISK = """
import os, sys
from pathlib import Path
from fairmile.base.digest import ManifestEntry
from fairmile.base.errors import SystemFailure
from fairmile.store.trees import Trees
trees = Trees(Path(sys.argv[1]) / "pool")
try:
    trees.put(ManifestEntry(f"{number:09}", 1, "a" * 64, 0o644) for number in range(10**9))
except SystemFailure as error:
    print(error.hint, list(trees.roots()), os.listdir(trees.root / "incoming"))
"""


def test_a_full_disk_leaves_no_half_tree(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=300k none {tmp_path}"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("needs user namespaces to mount a small file system")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && "$@"', "_", sys.executable, "-c", FILLS_THE_DISK, str(tmp_path)],
        capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.stdout == "the disk is full: free some space, or choose another folder [] []\n"


def test_a_pool_that_may_not_be_written_says_so(trees: Trees, unprivileged: list[str]) -> None:
    root = trees.put([entry("a")])
    for folder in [trees.root, *(path for path in trees.root.rglob("*") if path.is_dir())]:
        folder.chmod(0o555)
    script = FILLS_THE_DISK.replace('/ "pool"', "").replace("10**9", "3")
    done = subprocess.run(
        [*unprivileged, sys.executable, "-c", script, str(trees.root)], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    for folder in [trees.root, *(path for path in trees.root.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
    assert done.stdout == f"no write permission: ask the owner, or choose another folder ['{root}'] []\n"
