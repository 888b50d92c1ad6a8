from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from pathlib import Path

import pytest
import rfc8785
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.digest import (
    Checksum,
    ManifestEntry,
    canonical_json,
    from_ni,
    manifest_text,
    merkle_root,
    ni,
    parse_checksum,
    parse_manifest,
    scan_tree,
    sha256_file,
    sha256_hex,
    swhid_content,
    swhid_directory,
)
from fairmile.base.errors import InvalidDocument, UsageError

HELLO = sha256_hex(b"Hello World!")
SHA1 = hashlib.sha1(b"x").digest()
MD5 = hashlib.md5(b"x").digest()
SHA384 = hashlib.sha384(b"x").digest()
SHA512 = hashlib.sha512(b"x").digest()


def test_the_digest_of_a_file_equals_that_of_its_bytes_and_tells_of_every_byte(tmp_path: Path) -> None:
    data = os.urandom(3 << 20) + b"tail"
    (tmp_path / "f").write_bytes(data)
    seen: list[int] = []
    assert sha256_file(tmp_path / "f", on_bytes=seen.append) == hashlib.sha256(data).hexdigest()
    assert sum(seen) == len(data)
    assert len(seen) > 1


def test_the_example_of_rfc_6920_is_met() -> None:
    assert ni(HELLO) == "ni:///sha-256;f4OxZX_x_FO5LcGBSKHWXfwtSx-j1ncoSt3SABJtkGk"


@given(st.binary(min_size=32, max_size=32))
def test_ni_names_read_back(raw: bytes) -> None:
    assert from_ni(ni(raw.hex())) == raw.hex()
    assert parse_checksum(ni(raw.hex())) == Checksum("sha256", raw.hex())


@for_each(
    "text",
    ["", "ni:///sha-256;short", "ni:///md5;f4OxZX_x_FO5LcGBSKHWXfwtSx-j1ncoSt3SABJtkGk", HELLO, ni(HELLO)[:-1] + "l"],
)
def test_what_is_no_ni_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an ni: name"):
        from_ni(text)


def test_a_ni_name_needs_a_sha256() -> None:
    with pytest.raises(UsageError, match="not a sha256"):
        ni("abc")


@for_each(
    "text, algorithm, expected",
    [
        (HELLO, None, Checksum("sha256", HELLO)),
        (HELLO.upper(), "sha256", Checksum("sha256", HELLO)),
        (f"sha256:{HELLO}", None, Checksum("sha256", HELLO)),
        (f"SHA-256={HELLO}", None, Checksum("sha256", HELLO)),
        (f"sha256-{base64.b64encode(bytes.fromhex(HELLO)).decode()}", None, Checksum("sha256", HELLO)),
        (f"sha512-{base64.b64encode(SHA512).decode()}", None, Checksum("sha512", SHA512.hex())),
        (base64.b64encode(MD5).decode(), None, Checksum("md5", MD5.hex())),
        (base64.b64encode(MD5).decode(), "md5", Checksum("md5", MD5.hex())),
        (base64.b64encode(SHA1).decode(), None, Checksum("sha1", SHA1.hex())),
        (base64.b64encode(SHA384).decode(), "sha384", Checksum("sha384", SHA384.hex())),
        (MD5.hex(), None, Checksum("md5", MD5.hex())),
        (f" md5:{MD5.hex()}\n", None, Checksum("md5", MD5.hex())),
        (ni(HELLO), "sha-256", Checksum("sha256", HELLO)),
    ],
)
def test_checksums_in_every_usual_notation(text: str, algorithm: str | None, expected: Checksum) -> None:
    assert parse_checksum(text, algorithm) == expected


@for_each(
    "text, algorithm",
    [
        ("https://example.org/data.tar.gz", None),
        ("https://example.org/data.tar.gz", "sha256"),
        ("sha256", None),
        ("sha256", "sha256"),
        ("", None),
        (HELLO[:-1], None),
        (MD5.hex(), "sha256"),
        (f"md5:{MD5.hex()}", "sha256"),
        (ni(HELLO), "md5"),
        (base64.b64encode(SHA384).decode(), None),
        (HELLO, "sha384"),
        (HELLO, "crc32"),
        ("ni:///sha-256;nonsense", None),
        ("sha256:" + MD5.hex(), None),
    ],
)
def test_what_states_no_checksum_gives_none(text: str, algorithm: str | None) -> None:
    assert parse_checksum(text, algorithm) is None


def test_canonical_json_sorts_keys_and_writes_numbers_as_rfc_8785_says() -> None:
    assert canonical_json({"b": 1.0, "a": [1e21, "é", None]}) == '{"a":[1e+21,"é",null],"b":1}'.encode()


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(1 - 2**53, 2**53 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(max_codepoint=300) | st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(max_codepoint=300)), inner),
        max_leaves=12,
    )
)
def test_canonical_json_is_what_the_reference_implementation_writes(value: object) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@for_each(
    "value, named",
    [
        ({"a": [0, 2**53]}, r"9007199254740992 at a\[1\]"),
        ({"a": {"b": float("nan")}}, r"nan at a\.b"),
        ({"a": "\ud800"}, r"at a has no canonical"),
        ({"a": "tr\udce9.py"}, r"'tr.*\.py' at a is not valid UTF-8"),
        ({"a": {1: 2}}, r"the key 1 at a"),
        ({"a": object()}, r"at a has no canonical"),
        (2**60, r"1152921504606846976 has no"),
    ],
)
def test_what_has_no_canonical_form_is_named(value: object, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        canonical_json(value)


def test_endless_nesting_has_no_canonical_form() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(UsageError, match="nested too deeply"):
        canonical_json(value)


def entry(path: str, data: bytes = b"", mode: int = 0o644) -> ManifestEntry:
    return ManifestEntry(path, len(data), sha256_hex(data), mode)


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
raw_names = st.binary(min_size=1, max_size=8).filter(
    lambda raw: b"/" not in raw and b"\0" not in raw and raw not in (b".", b"..")
)
paths = st.lists(names | raw_names.map(os.fsdecode), min_size=1, max_size=4).map("/".join)


@given(st.dictionaries(paths, st.binary(max_size=4), max_size=12))
def test_a_manifest_reads_back_sorted_by_the_bytes_of_its_paths(files: dict[str, bytes]) -> None:
    entries = [entry(path, data) for path, data in files.items()]
    text = manifest_text(entries)
    assert text.count("\n") == len(entries)
    assert text.encode().decode() == text
    assert parse_manifest(text) == sorted(entries, key=lambda one: os.fsencode(one.path))


def test_a_manifest_line_is_path_size_digest_and_mode() -> None:
    assert manifest_text([entry("a\tb\\c\n", b"x", 0o755)]) == f"a\\tb\\\\c\\n\t1\t{sha256_hex(b'x')}\t755\n"


@for_each(
    "line, reason",
    [
        ("a\t1\t" + HELLO, "found 3 fields"),
        ("a\t-1\t" + HELLO + "\t644", "size"),
        ("a\t1\tabc\t644", "sha256"),
        ("a\t1\t" + HELLO + "\t9", "octal"),
        ("a\\q\t1\t" + HELLO + "\t644", "unknown escape"),
        ("\t1\t" + HELLO + "\t644", "empty"),
    ],
)
def test_a_damaged_manifest_is_refused_with_its_line(line: str, reason: str) -> None:
    good = manifest_text([entry("a")])
    with pytest.raises(InvalidDocument, match=reason) as caught:
        parse_manifest(good + line + "\n")
    assert caught.value.problems[0].line == 2


def test_a_manifest_that_was_cut_off_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="truncated"):
        parse_manifest(manifest_text([entry("a")])[:-1])


def test_the_merkle_root_is_what_its_description_says() -> None:
    files = [entry("a.txt", b"1"), entry("d/b", b"22"), entry("d/sub/c", b"333", 0o755), entry("d.x", b"4")]
    sub = sha256_hex(f"c\t3\t{sha256_hex(b'333')}\t755\n".encode())
    folder = sha256_hex(f"b\t2\t{sha256_hex(b'22')}\t644\nsub/\t3\t{sub}\t40000\n".encode())
    top = f"a.txt\t1\t{sha256_hex(b'1')}\t644\nd.x\t1\t{sha256_hex(b'4')}\t644\nd/\t5\t{folder}\t40000\n"
    assert merkle_root(files) == sha256_hex(top.encode())
    assert merkle_root(iter(sorted(files, key=lambda one: one.path.encode()))) == sha256_hex(top.encode())
    assert merkle_root([]) == sha256_hex(b"")


def recursive_root(tree: dict[bytes, object]) -> tuple[str, int]:
    """The definition of the root written as a plain recursion over nested folders."""
    lines, total = [], 0
    for name in sorted(tree, key=lambda name: name + (b"/" if isinstance(tree[name], dict) else b"")):
        node = tree[name]
        if isinstance(node, dict):
            digest, size = recursive_root(node)
            one = ManifestEntry(os.fsdecode(name) + "/", size, digest, 0o40000)
        else:
            assert isinstance(node, ManifestEntry)
            one = ManifestEntry(os.fsdecode(name), node.size_bytes, node.sha256, node.mode)
        total += one.size_bytes
        lines.append(manifest_text([one]))
    return sha256_hex("".join(lines).encode()), total


@given(st.dictionaries(paths, st.binary(max_size=3), max_size=15))
def test_the_streamed_root_equals_the_recursive_one_or_both_see_the_clash(files: dict[str, bytes]) -> None:
    tree: dict[bytes, object] = {}
    clash = False
    for path, data in files.items():
        *folders, name = os.fsencode(path).split(b"/")
        node = tree
        for part in folders:
            inner = node.setdefault(part, {})
            clash = clash or not isinstance(inner, dict)
            node = inner if isinstance(inner, dict) else {}
        clash = clash or name in node
        node.setdefault(name, entry(path, data))
    entries = [entry(path, data) for path, data in files.items()]
    if clash:
        with pytest.raises(UsageError):
            merkle_root(entries)
    else:
        assert merkle_root(entries) == recursive_root(tree)[0]


@for_each(
    "bad",
    [
        ["a", "a"],
        ["a", "a-b", "a/b"],
        ["../a"],
        ["/a"],
        ["a//b"],
        ["a/./b"],
        [""],
    ],
)
def test_the_merkle_root_refuses_paths_that_clash_or_are_not_plain(bad: list[str]) -> None:
    with pytest.raises(UsageError):
        merkle_root([entry(path) for path in bad])


def test_a_stream_that_is_out_of_order_is_refused() -> None:
    with pytest.raises(UsageError, match="out of order"):
        merkle_root(iter([entry("b"), entry("a")]))


@for_each(
    "other",
    [
        [entry("a", b"2")],
        [entry("b", b"1")],
        [entry("a", b"1", 0o755)],
        [entry("d/a", b"1")],
        [entry("a", b"1"), entry("b")],
    ],
)
def test_any_change_to_a_tree_changes_its_root(other: list[ManifestEntry]) -> None:
    assert merkle_root(other) != merkle_root([entry("a", b"1")])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "d" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "d" / "file").write_bytes(b"one")
    (root / "d" / "deep" / "x").write_bytes(b"")
    (root / "d.txt").write_bytes(b"two")
    (root / "d-x").write_bytes(b"three")
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "name with\ttab").write_bytes(b"four")
    (root / "link").symlink_to("d/file")
    return root


def test_scanning_gives_all_files_in_order_with_size_digest_and_mode(tree: Path) -> None:
    entries = list(scan_tree(tree))
    assert [one.path for one in entries] == [
        "d-x",
        "d.txt",
        "d/deep/x",
        "d/file",
        "link",
        "name with\ttab",
        "run.sh",
    ]
    assert entries[3] == entry("d/file", b"one")
    assert entries[4] == entry("link", b"d/file", 0o120000)
    assert entries[6].mode == 0o755
    assert merkle_root(iter(entries)) == merkle_root(scan_tree(tree))


def test_the_umask_leaves_no_trace_in_the_root(tree: Path) -> None:
    before = merkle_root(scan_tree(tree))
    (tree / "d.txt").chmod(0o660)
    assert merkle_root(scan_tree(tree)) == before


@pytest.mark.parametrize("target", ["../outside", "/etc/hostname", "d/../../outside"])
def test_a_link_that_leads_out_of_the_tree_is_refused(tree: Path, target: str) -> None:
    (tree / "way-out").symlink_to(target)
    with pytest.raises(UsageError, match="leads out of"):
        list(scan_tree(tree))


def test_a_pipe_in_the_tree_is_refused(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with pytest.raises(UsageError, match="neither a file"):
        list(scan_tree(tree))
    with pytest.raises(UsageError, match="neither a file"):
        swhid_directory(tree)


def test_a_tree_deeper_than_pythons_stack_is_scanned(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    depth = 1100
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    try:
        (one,) = scan_tree(tmp_path)
        assert one.path == "d/" * depth + "f"
        assert swhid_directory(tmp_path).startswith("swh:1:dir:")
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)  # too deep for shutil.rmtree


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.autocrlf=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_swhids_equal_the_ids_of_git(tree: Path) -> None:
    (tree / os.fsdecode(b"latin-\xe9")).write_bytes(b"five")
    git(tree, "init", "-q")
    git(tree, "add", "-A", "-f")
    assert swhid_directory(tree) == "swh:1:dir:" + git(tree, "write-tree")
    assert swhid_content(b"one") == "swh:1:cnt:" + git(tree, "hash-object", "d/file")


def test_an_empty_folder_has_the_id_of_gits_empty_tree(tmp_path: Path) -> None:
    assert swhid_directory(tmp_path) == "swh:1:dir:4b825dc642cb6eb9a060e54bf8d69288fbee4904"
