from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay import Replay, Reply

from fairmile.base.commands import Here
from fairmile.base.errors import Integrity, InvalidDocument, NotFound, Unsupported, UsageError
from fairmile.base.files import safe_join
from fairmile.testing.fetchers import RangeFetcherTests, Served, read
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.file_list import FileList, read_list
from fairmile.transfer.remote import Context, RangeFetcher
from fairmile.transfer.settings import Settings

BASE = "https://example.net/lists/all.txt"


@pytest.fixture
def fetcher() -> Iterator[FileList]:
    with closing(FileList(Context({}, Here(), Credentials({}), Settings(retries=1)))) as made:
        yield made


@pytest.mark.thorough
class TestConformance(RangeFetcherTests):
    """A list says neither sizes nor what changed; each file of it has one line."""

    sizes = False
    folders = False
    validators = False

    @pytest.fixture
    def served(self, tmp_path: Path, fetcher: FileList) -> Served[RangeFetcher]:
        root = tmp_path / "there"

        def publish(files: Mapping[str, bytes]) -> str:
            for path, data in files.items():
                target = root / "data" / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            lines = "".join(f"data/{quote(path)}\n" for path in files)
            (root / "list.txt").write_text(lines, encoding="utf-8")
            return f"list+{(root / 'list.txt').as_uri()}"

        return Served(fetcher, publish, f"list+{root.as_uri()}/nowhere.txt")


# Reading a list


def paths(text: str, base: str = BASE, limit: int | None = None) -> dict[str, str]:
    return {remote.address: remote.path for remote in read_list(text, base, limit)}


def test_each_line_is_a_file_named_by_its_end() -> None:
    text = "https://a.net/x/one.h5\nhttps://b.net/two%20words.h5?download=1\nftp://c.net/three.h5\n"
    assert paths(text) == {
        "https://a.net/x/one.h5": "one.h5",
        "https://b.net/two%20words.h5?download=1": "two words.h5",
        "ftp://c.net/three.h5": "three.h5",
    }


def test_comments_blanks_and_other_line_ends_do_not_matter() -> None:
    text = "# header\r\n\r\n  https://a.net/one.h5  \r\n\t\n  # more\nhttps://a.net/two.h5"
    assert list(paths(text).values()) == ["one.h5", "two.h5"]


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("one.h5", "https://example.net/lists/one.h5"),
        ("../data/one.h5", "https://example.net/data/one.h5"),
        ("/one.h5", "https://example.net/one.h5"),
        ("//other.net/one.h5", "https://other.net/one.h5"),
        ("12:00.h5", "https://example.net/lists/12:00.h5"),
        ("ünïcode.h5", "https://example.net/lists/ünïcode.h5"),
    ],
)
def test_an_address_may_be_relative_to_the_list(line: str, address: str) -> None:
    assert list(paths(line)) == [address]


def test_the_limit_counts_lines_and_changes_no_path() -> None:
    text = "# header\nhttps://a.net/train/1.h5\nhttps://a.net/test/1.h5\nhttps://a.net/2.h5\n"
    whole = paths(text)
    assert whole == {
        "https://a.net/train/1.h5": "train/1.h5",
        "https://a.net/test/1.h5": "test/1.h5",
        "https://a.net/2.h5": "2.h5",
    }
    assert paths(text, limit=2) == {"https://a.net/train/1.h5": "train/1.h5"}
    assert paths(text, limit=100) == whole


def test_what_is_wrong_beyond_the_limit_does_not_matter() -> None:
    assert paths("a.h5\nno address at all\n", limit=1) == {"https://example.net/lists/a.h5": "a.h5"}


def test_an_address_listed_twice_counts_once() -> None:
    assert len(read_list("a.h5\na.h5\nhttps://example.net/lists/a.h5\n", BASE, None)) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://a.net/x/1\nhttps://a.net/y/1\n", ["x/1", "y/1"]),
        ("https://a.net/x/z/1\nhttps://a.net/y/z/1\nhttps://a.net/x/z/2\n", ["x/z/1", "y/z/1", "2"]),
        ("https://a.net/1\nhttps://b.net/1\n", ["a.net/1", "b.net/1"]),
        ("https://a.net/get?id=1\nhttps://a.net/get?id=2\n", ["a.net/get?id=1", "a.net/get?id=2"]),
        # a file may not have the name of a folder that another file lies in
        ("https://a.net/x\nhttps://b.net/x/1\nhttps://c.net/y/1\n", ["a.net/x", "x/1", "y/1"]),
    ],
)
def test_files_of_one_name_keep_the_folders_that_tell_them_apart(text: str, expected: list[str]) -> None:
    assert list(paths(text).values()) == expected


def test_files_that_nothing_tells_apart_get_a_digest() -> None:
    found = list(paths("http://a.net/1\nhttps://a.net/1\n").values())
    assert len(set(found)) == 2
    assert all(path.startswith("a.net/") and path.endswith("-1") for path in found)


def test_a_name_that_is_too_long_is_cut_and_stays_itself() -> None:
    long = ["x" * 300 + ".h5", "x" * 301 + ".h5"]
    found = list(paths("\n".join(long)).values())
    assert len(set(found)) == 2
    assert all(len(path.encode()) <= 255 and path.endswith(".h5") for path in found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("two words.h5", "contains a space"),
        ("<html>", "angle bracket"),
        ("https://a.net/x y", "contains a space"),
        ("https://a.net/folder/", "names a folder, not a file"),
        ("https://a.net", "names a folder, not a file"),
        ("..", "names a folder, not a file"),
        ("%2e%2e", "names a folder, not a file"),
        ("https:///x", "names no host"),
        ("mailto:someone", "names no host"),
        ("https://[broken/x", "is not an address"),
        ("file:///etc/passwd", "a file of this machine"),
        ("list+https://a.net/list.txt", "is not an address of a file"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(line: str, message: str) -> None:
    with pytest.raises(InvalidDocument, match=message) as caught:
        read_list(f"good.h5\n\n{line}\n", BASE, None)
    assert str(caught.value).startswith(f"{BASE}:3: ")


def test_all_bad_lines_are_told_at_once_without_secrets() -> None:
    with pytest.raises(InvalidDocument) as caught:
        read_list("https://me:hunter2@a.net/\nb c\n", "https://me:hunter2@example.net/list.txt", None)
    assert [problem.line for problem in caught.value.problems] == [1, 2]
    assert "hunter2" not in " ".join(map(str, caught.value.problems))


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_list_is_an_error(text: str) -> None:
    with pytest.raises(NotFound, match=r"all\.txt lists no address"):
        read_list(text, BASE, None)


def test_a_list_of_this_machine_may_name_its_files() -> None:
    assert paths("x.h5\nfile:///srv/y.h5\n", "file:///data/list.txt") == {
        "file:///data/x.h5": "x.h5",
        "file:///srv/y.h5": "y.h5",
    }


part = st.text(st.sampled_from("ab.-_% ?&é\\\n"), min_size=1, max_size=4)
address = st.builds(
    lambda host, folders, name, query: f"https://{host}.net/{'/'.join(map(quote, (*folders, name)))}{query}",
    st.sampled_from("xy"),
    st.lists(part, max_size=3),
    part,
    st.sampled_from(["", "?a=1", "?b=2/../x"]),
)


@given(st.lists(address, min_size=1, max_size=12))
def test_paths_are_safe_and_never_collide(addresses: list[str]) -> None:
    usable = [each for each in addresses if _is_usable(each)]
    if not usable:
        return
    found = [remote.path for remote in read_list("\n".join(usable), BASE, None)]
    assert len(found) == len(set(found)) == len(set(usable))
    folders = {str(parent) for path in found for parent in PurePosixPath(path).parents}
    assert not folders & set(found)
    for path in found:
        safe_join(Path("/nowhere"), path)
        assert all(len(os.fsencode(name)) <= 255 for name in path.split("/"))


def _is_usable(each: str) -> bool:
    try:
        read_list(each, BASE, None)
    except InvalidDocument:
        return False
    return bool(urlsplit(each).netloc)


# Over the web


@pytest.fixture
def web() -> Iterator[Replay]:
    with Replay() as replay:
        yield replay


def test_a_list_and_its_files_come_over_http(web: Replay, fetcher: FileList) -> None:
    web.replies["/all.txt"] = Reply(b"\xef\xbb\xbf# data\na/1.bin\nb/1.bin\nc.bin\n")
    web.replies |= {"/a/1.bin": Reply(b"first"), "/b/1.bin": Reply(b"second"), "/c.bin": Reply(b"third")}
    found = fetcher.find(f"list+{web.url}/all.txt")
    contents = {remote.path: read(fetcher.open(remote, 1, None)) for remote in found}
    assert contents == {"a/1.bin": b"irst", "b/1.bin": b"econd", "c.bin": b"hird"}
    assert [remote.path for remote in fetcher.find(f"list+{web.url}/all.txt#limit=2")] == ["a/1.bin"]


def test_a_login_page_is_no_list(web: Replay, fetcher: FileList) -> None:
    web.replies["/all.txt"] = Reply(b"<!DOCTYPE html>\n<html><body>Please log in</body></html>\n")
    with pytest.raises(InvalidDocument, match="'<!DOCTYPE html>' is not an address"):
        fetcher.find(f"list+{web.url}/all.txt")


def test_bytes_are_no_list(web: Replay, fetcher: FileList) -> None:
    web.replies["/all.txt"] = Reply(b"\x89HDF\r\n\x1a\n\xff\xfe")
    with pytest.raises(Integrity, match=r"all\.txt is not text"):
        fetcher.find(f"list+{web.url}/all.txt")


def test_an_unknown_fragment_is_refused(fetcher: FileList) -> None:
    with pytest.raises(UsageError, match="expected #limit=N, found #first=5"):
        fetcher.find("list+https://a.net/all.txt#first=5")


def test_an_address_of_many_files_cannot_stand_in_a_list(web: Replay, fetcher: FileList) -> None:
    web.replies["/all.txt"] = Reply(b"git+https://a.net/x.git\n")
    [remote] = fetcher.find(f"list+{web.url}/all.txt")
    with pytest.raises(Unsupported, match="is not allowed in a list"):
        fetcher.open(remote, 0, None)
