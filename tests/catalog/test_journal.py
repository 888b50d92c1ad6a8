"""An index follows the changes that a catalog recorded, without a look at its other files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairmile.catalog import journal
from fairmile.catalog.card import Card
from fairmile.catalog.folder import CatalogFolder, Stamp
from fairmile.catalog.index import Index
from fairmile.catalog.journal import changes_since, record_changes
from fairmile.catalog.query import parse_query

Factory = Callable[..., dict[str, Any]]


class NeverScanned(CatalogFolder):
    def scan(self) -> Iterator[tuple[str, Stamp]]:
        raise AssertionError("looked at all files")


def handles(index: Index, text: str = "") -> list[str]:
    return [row.handle for row in index.search(parse_query(text))]


def test_changes_of_the_known_generation_and_after_it_are_listed_once(tmp_path: Path) -> None:
    for generation, path in (("a", "model/x/1.jsonld"), ("b", "model/y/1.jsonld"), ("c", "model/x/1.jsonld")):
        record_changes(tmp_path, generation, [path])
    assert changes_since(tmp_path, "b", "c") == ["model/y/1.jsonld", "model/x/1.jsonld"]
    assert changes_since(tmp_path, "c", "c") == ["model/x/1.jsonld"]


def test_a_journal_that_cannot_tell_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert changes_since(tmp_path, "a", "a") is None, "no journal"
    record_changes(tmp_path, "a", ["model/x/1.jsonld"])
    assert changes_since(tmp_path, "of before", "a") is None
    assert changes_since(tmp_path, "a", "of another writer") is None
    record_changes(tmp_path, "b", ["../../etc/passwd"])
    assert changes_since(tmp_path, "a", "b") is None, "a path that leads out"
    monkeypatch.setattr(journal, "_MOST_BYTES", 100)
    record_changes(tmp_path, "c", ["model/x/1.jsonld"] * 2)
    assert changes_since(tmp_path, "b", "c") is None, "it started anew"
    record_changes(tmp_path, "d", ["model/x/1.jsonld"] * 10)
    assert changes_since(tmp_path, "c", "d") is None, "more changes than it holds"


def test_an_index_follows_without_looking_at_all_files(tmp_path: Path, card: Factory) -> None:
    folder = CatalogFolder("local", tmp_path / "catalog", writable=True)
    cards = {name: Card(card(name=name)) for name in ("changes", "goes", "stays", "is buried")}
    for each in cards.values():
        folder.write(each)
    folder.touch_generation([])
    with Index.open(tmp_path / "index.sqlite") as index:
        index.refresh([folder], {})
        folder.write(Card({**cards["stays"].body, "description": "edited unnoticed"}), replace=True)
        new = Card(card(name="new"))
        paths = [path for each in (new, *cards.values()) if each.title != "stays" for path in folder.paths(each.handle)]
        folder.touch_generation(paths, unfinished=True)
        folder.write(Card({**cards["changes"].body, "description": "zebrafish"}), replace=True)
        folder.remove(folder.relative_path(cards["goes"].handle))
        # Another process looks in the middle of the change, and again after it.
        assert index.refresh([NeverScanned("local", folder.root)], {}).removed == 1
        folder.write(new)
        folder.bury(cards["is buried"], {"reason": "wrong"})
        folder.touch_generation([])
        done = index.refresh([NeverScanned("local", folder.root)], {})
        assert (done.added, done.changed, done.removed) == (2, 0, 1), "the new card, a tombstone, the buried card"
        assert handles(index, "zebrafish") == ["local/dataset/changes@1.0"]
        assert {*handles(index, "-tombstone")} >= {"local/dataset/new@1.0", "local/dataset/stays@1.0"}
        assert handles(index, "goes") == handles(index, "unnoticed") == []


def test_cards_written_in_batches_are_those_written_one_by_one(tmp_path: Path, card: Factory) -> None:
    folder = CatalogFolder("local", tmp_path / "catalog", writable=True)
    first = Card(card(name="Alpha", keywords=["halo", "Dark matter"]))
    more: list[dict[str, Any]] = [
        {"version": "1.0"},
        {"version": "1.10"},
        {"version": "1.9"},
        {"name": "Beta", "keywords": ["halo"]},
    ]
    folder.write(Card({**first.body, "name": "Empty", "version": "0.1"}))
    with Index.open(tmp_path / "one.sqlite") as one, Index.open(tmp_path / "many.sqlite") as many:
        one.refresh([folder], {})
        for number, change in enumerate(more):
            folder.write(Card({**first.body, "@id": f"https://example.org/{number}", **change}))
        folder.bury(Card({**first.body, "version": "2.0"}), {"reason": "wrong"})
        one.refresh([folder], {})
        many.refresh([folder], {})
        assert one.count() == many.count() == {"local": 5}
        for text in ("halo", "alpha", "tag:halo", "/lph/", "/dark/", "example"):
            assert handles(one, text) == handles(many, text) != [], text
        assert one.suggest("alpah") == many.suggest("alpah") == ["alpha"]
        assert one.facet_counts(["tag"]) == many.facet_counts(["tag"])
        assert one._db.execute("SELECT name FROM sqlite_master WHERE type = 'index' ORDER BY name").fetchall() == (
            many._db.execute("SELECT name FROM sqlite_master WHERE type = 'index' ORDER BY name").fetchall()
        )
