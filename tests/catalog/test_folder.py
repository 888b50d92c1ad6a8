from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import NotFound, SystemFailure
from fairmile.catalog.card import Card
from fairmile.catalog.folder import CatalogFolder

Factory = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> CatalogFolder:
    return CatalogFolder("mine", tmp_path / "catalog", writable=True)


def paths(folder: CatalogFolder) -> list[str]:
    return sorted(relative for relative, _ in folder.scan())


def test_a_card_is_one_file_named_by_its_handle(folder: CatalogFolder, card: Factory) -> None:
    path = folder.write(Card(card("model", "Big Net", "1.0+cu12")))
    assert path == folder.cards_root / "model" / "big-net" / "1.0-cu12.jsonld"
    assert folder.read("model/big-net/1.0-cu12.jsonld").body == card("model", "Big Net", "1.0+cu12")


def test_a_card_read_knows_its_catalog(folder: CatalogFolder, card: Factory) -> None:
    folder.write(Card(card()))
    assert str(folder.read("dataset/alpha/1.0.jsonld").handle) == "mine/dataset/alpha@1.0"


def test_an_existing_card_is_not_overwritten_unless_asked(folder: CatalogFolder, card: Factory) -> None:
    folder.write(Card(card(description="first")))
    with pytest.raises(FileExistsError):
        folder.write(Card(card(description="second")))
    assert folder.read("dataset/alpha/1.0.jsonld")["description"] == "first"
    folder.write(Card(card(description="second")), replace=True)
    assert folder.read("dataset/alpha/1.0.jsonld")["description"] == "second"


def test_a_missing_folder_holds_no_cards(folder: CatalogFolder) -> None:
    assert paths(folder) == []
    assert folder.generation() == ""


def test_the_scan_sees_cards_and_tombstones_and_leaves_the_rest(folder: CatalogFolder, card: Factory) -> None:
    folder.write(Card(card()))
    folder.bury(Card(card("model", "Old")), {"date": "2026-01-01", "reason": "wrong"})
    place = folder.cards_root / "dataset" / "alpha"
    (place / ".tmp-123.jsonld").write_text("half")
    (place / "notes.txt").write_text("hello")
    assert paths(folder) == ["dataset/alpha/1.0.jsonld", "model/old/1.0.tombstone.json"]


def test_the_scan_follows_no_link(folder: CatalogFolder, card: Factory, tmp_path: Path) -> None:
    outside = CatalogFolder("outside", tmp_path / "outside")
    secret = outside.write(Card(card("model", "Secret")))
    folder.write(Card(card()))
    (folder.cards_root / "dataset" / "alpha" / "2.0.jsonld").symlink_to(secret)
    (folder.cards_root / "dataset" / "alpha" / "3.0.jsonld").symlink_to(tmp_path / "nowhere")
    (folder.cards_root / "model").symlink_to(outside.cards_root / "model")
    assert paths(folder) == ["dataset/alpha/1.0.jsonld"]


def test_a_card_beside_its_own_tombstone_is_not_there(folder: CatalogFolder, card: Factory) -> None:
    folder.bury(Card(card()), {"date": "2026-01-01"})
    folder.write(Card(card()))
    assert paths(folder) == ["dataset/alpha/1.0.tombstone.json"]


def test_a_changed_file_has_another_stamp(folder: CatalogFolder, card: Factory) -> None:
    path = folder.write(Card(card()))
    before = dict(folder.scan())
    os.utime(path, ns=(1, 1))
    after = dict(folder.scan())
    assert before.keys() == after.keys()
    assert before != after


def test_burying_keeps_the_card_with_the_reason(folder: CatalogFolder, card: Factory) -> None:
    folder.write(Card(card(description="about stars")))
    folder.bury(Card(card(description="about stars")), {"date": "2026-01-01", "reason": "wrong"})
    kept = folder.read("dataset/alpha/1.0.tombstone.json")
    assert kept["description"] == "about stars"
    assert kept["tombstone"] == {"date": "2026-01-01", "reason": "wrong"}
    assert not folder.path(kept.handle).exists()


def test_removing_a_card_removes_the_folders_it_leaves_empty(folder: CatalogFolder, card: Factory) -> None:
    folder.write(Card(card(version="1.0")))
    folder.write(Card(card(version="2.0")))
    folder.remove("dataset/alpha/1.0.jsonld")
    assert paths(folder) == ["dataset/alpha/2.0.jsonld"]
    folder.remove("dataset/alpha/2.0.jsonld")
    assert not (folder.cards_root / "dataset").exists()
    assert folder.cards_root.exists()


def test_every_change_gives_another_generation(folder: CatalogFolder) -> None:
    first = folder.touch_generation()
    assert folder.generation() == first
    assert folder.touch_generation() != first
    assert not folder.is_unfinished()
    folder.touch_generation(unfinished=True)
    assert folder.is_unfinished()


def test_a_catalog_that_several_users_share_is_marked_by_each_of_them() -> None:
    script = """if True:
        import sys
        from pathlib import Path
        from fairmile.catalog.folder import CatalogFolder
        print(CatalogFolder("mine", Path(sys.argv[1])).touch_generation())
    """
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    # Not in a folder of pytest, which closes those above it to others whenever another pytest starts.
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = CatalogFolder("mine", Path(place), writable=True)
        first = folder.touch_generation()
        folder.generation_file.chmod(0o444)
        folder.root.chmod(0o777)
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [*other, sys.executable, "-c", script, place]
        second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
        assert second != first
        assert folder.generation() == second


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '"text"', "3", '{"name": "\\ud800"}', "[" * 100_000, "null"],
    ids=["empty", "cut off", "list", "text", "number", "half a surrogate pair", "too deep", "null"],
)
def test_a_damaged_card_is_named_with_its_file(folder: CatalogFolder, text: str) -> None:
    path = folder.cards_root / "dataset" / "alpha" / "1.0.jsonld"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(SystemFailure, match=r"the card .*alpha/1\.0\.jsonld is damaged") as caught:
        folder.read("dataset/alpha/1.0.jsonld")
    assert "fairmile catalog check" in str(caught.value.hint)


def test_bytes_that_are_no_utf8_are_damage(folder: CatalogFolder) -> None:
    path = folder.cards_root / "dataset" / "alpha" / "1.0.jsonld"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"name": "\xff"}')
    with pytest.raises(SystemFailure, match="damaged"):
        folder.read("dataset/alpha/1.0.jsonld")


def test_a_card_that_is_gone_is_not_found(folder: CatalogFolder) -> None:
    with pytest.raises(NotFound, match="is gone") as caught:
        folder.read("dataset/alpha/1.0.jsonld")
    assert "reindex" in str(caught.value.hint)


def test_a_raw_document_is_kept_by_its_digest(folder: CatalogFolder) -> None:
    digest = "ab" * 32
    assert folder.raw(digest) is None
    folder.keep_raw(b"\x00raw\xff", digest)
    folder.keep_raw(b"other bytes are not taken for a digest that is there", digest)
    assert folder.raw(digest) == b"\x00raw\xff"
