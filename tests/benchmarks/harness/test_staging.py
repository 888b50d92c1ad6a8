from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairmile.base.errors import Integrity, NotFound
from fairmile.benchmarks.harness import staging
from fairmile.benchmarks.harness.staging import staged


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.npy").write_bytes(os.urandom(300_000))
    (folder / "inner" / "b").write_text("text")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_without_a_wish_the_data_stays_where_it_is(data: Path) -> None:
    assert staged(data, "", {}) == data


def test_data_is_copied_once_to_the_folder_that_is_named(data: Path, tmp_path: Path) -> None:
    said: list[str] = []
    pool = tmp_path / "pool"
    copy = staged(data, str(pool), {}, said.append)
    assert pool in copy.parents
    assert content(copy) == content(data)
    assert len(said) == 1
    assert "/s)" in said[0], "it says how fast it was"
    inode = (copy / "a.npy").stat().st_ino
    assert staged(data, str(pool), {}, said.append) == copy
    assert len(said) == 1
    assert (copy / "a.npy").stat().st_ino == inode


def test_ranks_that_come_at_the_same_time_share_one_copy(data: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with ThreadPoolExecutor(4) as ranks:
        found = list(ranks.map(lambda _: staged(data, str(tmp_path / "pool"), {}, said.append), range(4)))
    assert len(set(found)) == 1
    assert len(said) == 1, "one of them copied"
    assert content(found[0]) == content(data)


def test_changed_data_is_copied_again(data: Path, tmp_path: Path) -> None:
    first = staged(data, str(tmp_path / "pool"), {}, str)
    (data / "inner" / "b").write_text("other text")
    second = staged(data, str(tmp_path / "pool"), {}, str)
    assert second != first
    assert (second / "inner" / "b").read_text() == "other text"


def test_a_copy_from_which_a_file_was_cleaned_away_is_made_again(data: Path, tmp_path: Path) -> None:
    copy = staged(data, str(tmp_path / "pool"), {}, str)
    (copy / "a.npy").unlink()
    assert staged(data, str(tmp_path / "pool"), {}, str) == copy
    assert content(copy) == content(data)


def test_auto_takes_the_first_pool_with_room_and_says_nothing_of_the_rest(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large, last = tmp_path / "small", tmp_path / "large", tmp_path / "last"

    def usage(path: Any) -> Usage:
        return Usage(0, 0, 1000 if small in Path(path).parents else 1 << 40)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    variables = {"FAIRMILE_POOLS": f"{small}{os.pathsep}{large}", "TMPDIR": str(last)}
    assert large in staged(data, "auto", variables, str).parents
    assert last in staged(data, "auto", {"TMPDIR": str(last)}, str).parents
    assert not list(small.rglob("a.npy"))


def test_where_no_pool_has_room_the_original_is_used_and_each_reason_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 1000))
    monkeypatch.setattr(staging, "_SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "file").write_text("")
    said: list[str] = []
    variables = {"FAIRMILE_POOLS": str(tmp_path / "file"), "SLURM_TMPDIR": str(tmp_path / "local")}
    assert staged(data, "auto", variables, said.append) == data
    assert len(said) == 1
    assert f"the data stays in {data}" in said[0]
    assert f"{tmp_path / 'file'}: it cannot be used" in said[0]
    assert f"{tmp_path / 'local'}: 1000 B are free" in said[0]


def test_a_pool_that_fails_in_the_middle_leaves_nothing_and_the_next_is_taken(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = staging._copy

    def full(source: Path, target: Path) -> str:
        if tmp_path / "first" in target.parents and source.name == "b":
            raise OSError(28, "No space left on device")
        return real(source, target)

    monkeypatch.setattr(staging, "_copy", full)
    variables = {"FAIRMILE_POOLS": f"{tmp_path / 'first'}{os.pathsep}{tmp_path / 'second'}"}
    copy = staged(data, "auto", variables, str)
    assert tmp_path / "second" in copy.parents
    assert content(copy) == content(data)
    assert not [each for each in (tmp_path / "first").rglob("*") if each.is_file()]


def test_a_copy_that_differs_from_what_was_read_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "sha256_file", lambda path: "0" * 64)
    with pytest.raises(Integrity, match=r"is not what was read from .*a\.npy"):
        staged(data, str(tmp_path / "pool"), {}, str)
    assert not [each for each in (tmp_path / "pool").rglob("*") if each.is_file()]


def test_data_that_is_in_the_pool_already_is_not_copied(data: Path, tmp_path: Path) -> None:
    assert staged(data, str(tmp_path), {}, str) == data


def test_the_copy_says_where_it_came_from(data: Path, tmp_path: Path) -> None:
    copy = staged(data, str(tmp_path / "pool"), {}, str)
    told = json.loads((copy.parent / "staged.json").read_text())
    assert told["from"] == str(data)
    assert set(told["sha256"]) == {"a.npy", "inner/b"}


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such folder"):
        staged(tmp_path / "none", "auto", {})
