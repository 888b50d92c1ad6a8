"""Names of a pool: small files that survive anything and refuse nonsense."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.store.refs import Ref, Refs

ROOT = "ab" * 32
REF = Ref("card", "builtin/dataset/mnist@1.0", ROOT, 120, 3, 1_700_000_000.0, {"signature": "x"})
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=400)


@pytest.fixture
def refs(tmp_path: Path) -> Refs:
    return Refs(tmp_path)


def test_a_name_is_found_again_with_all_it_stands_for(refs: Refs) -> None:
    refs.put(REF)
    assert refs.get("card", REF.name) == REF
    assert list(refs.all()) == [REF]
    assert list(refs.all("url")) == []


def test_the_same_name_of_two_kinds_is_two_names(refs: Refs) -> None:
    refs.put(REF)
    refs.put(replace(REF, kind="pin"))
    assert refs.drop("card", REF.name)
    assert refs.get("card", REF.name) is None
    assert refs.get("pin", REF.name) == replace(REF, kind="pin")


def test_a_name_written_again_stands_for_the_new_tree(refs: Refs) -> None:
    refs.put(REF)
    refs.put(replace(REF, root="cd" * 32))
    assert [ref.root for ref in refs.all()] == ["cd" * 32]


@given(name=NAMES, other=NAMES)
def test_any_printable_text_is_a_name_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, name: str, other: str
) -> None:
    refs = Refs(tmp_path_factory.mktemp("pool"))
    refs.put(replace(REF, kind="url", name=name))
    refs.put(replace(REF, kind="url", name=other, root="cd" * 32))
    found = refs.get("url", name)
    assert found is not None
    assert found.root == (ROOT if name != other else "cd" * 32)
    assert len(list(refs.all())) == len({name, other})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "thing"}, "kind: expected one of card, url, pin, run"),
        ({"root": "short"}, "root: expected the 64 hex digits of a tree"),
        ({"name": ""}, "name: expected a text"),
        ({"name": "two\nlines"}, "name: expected a text"),
        ({"name": "half \ud800"}, "name: expected a text"),
        ({"files": "3"}, "files: expected int"),
        ({"size_bytes": True}, "size_bytes: expected int"),
        ({"details": ["a"]}, "details: expected keys"),
        ({"details": {"speed": float("nan")}}, "cannot be written as JSON"),
        ({"details": {"set": {1}}}, "cannot be written as JSON"),
    ],
)
def test_nonsense_is_refused_and_nothing_is_written(refs: Refs, change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        refs.put(replace(REF, **change))
    assert list(refs.all()) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"card"', "{}", json.dumps({"kind": "card"}), REF.to_json().replace(ROOT, "no root")]
)
def test_a_file_that_says_nothing_is_told_and_passed_over(refs: Refs, text: str) -> None:
    refs.put(REF)
    path = refs.path("card", REF.name)
    path.write_text(text)
    assert list(refs.all()) == []
    assert refs.get("card", REF.name) is None
    [(where, why)] = refs.damaged()
    assert where == path
    assert why


def test_a_file_that_is_no_text_is_told(refs: Refs) -> None:
    refs.put(REF)
    refs.path("card", REF.name).write_bytes(b"\xff\xfe")
    assert len(list(refs.damaged())) == 1


def test_a_file_under_another_name_is_told(refs: Refs) -> None:
    refs.put(REF)
    path = refs.path("card", REF.name)
    path.rename(path.with_name("other.json"))
    assert refs.get("card", REF.name) is None
    [(_, why)] = refs.damaged()
    assert "does not belong in this file" in why


def test_half_written_files_are_no_names(refs: Refs) -> None:
    refs.put(REF)
    (refs.folder / "card" / ".tmp-0123").write_text("half")
    assert list(refs.all()) == [REF]
    assert list(refs.damaged()) == []


def test_dropping_what_is_not_there_says_so(refs: Refs) -> None:
    assert not refs.drop("card", "unknown")


def test_a_use_is_noted_by_the_file_servers_clock(refs: Refs) -> None:
    refs.put(REF)
    path = refs.path("card", REF.name)
    os.utime(path, (1000, 1000))
    [old] = refs.all()
    refs.touch(old)
    [new] = refs.all()
    assert (old.used, old.created) == (1000, REF.created)
    assert new.used == path.stat().st_mtime > 1000
    assert new == old, "when it was used is not a part of what a name stands for"


def test_a_use_that_cannot_be_noted_is_no_error(refs: Refs) -> None:
    refs.touch(REF)


def test_a_pool_without_a_folder_has_no_names(tmp_path: Path) -> None:
    refs = Refs(tmp_path / "gone")
    assert list(refs.all()) == []
    assert list(refs.damaged()) == []
    assert refs.get("card", "x") is None
    assert refs.owner(REF) is None


def test_a_folder_that_a_group_shares_stays_shared(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    refs = Refs(tmp_path)
    refs.put(REF)
    assert refs.path("card", REF.name).parent.stat().st_mode & 0o7777 == 0o2775
    assert refs.owner(REF) == os.getuid()


def test_a_folder_in_the_way_is_told(refs: Refs) -> None:
    refs.path("card", REF.name).mkdir(parents=True)
    with pytest.raises(SystemFailure, match="cannot"):
        refs.put(REF)
    with pytest.raises(SystemFailure, match="cannot remove"):
        refs.drop("card", REF.name)
