from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.digest import ni
from fairmile.base.errors import Conflict, InvalidDocument, NotFound, SystemFailure, UsageError
from fairmile.catalog.builtin import builtin_folder
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.index import Index
from fairmile.catalog.results import Added

Factory = Callable[..., dict[str, Any]]
SPDX = "https://spdx.org/licenses/"


def statuses(added: list[Any]) -> list[str]:
    return [each.status for each in added]


def handles(catalog: Catalog, text: str = "", **how: Any) -> list[str]:
    return [hit.handle for hit in catalog.search(text, **how)]


def files(home: Path) -> dict[str, bytes]:
    """Return every card, tombstone and raw document below a home."""
    return {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file() and "index" not in path.name}


def with_source(home: Path, builtin: CatalogFolder, *bodies: dict[str, Any], **how: Any) -> Catalog:
    """Return a catalog with a source named `there` that holds these cards."""
    catalog = Catalog(home, sources={"there": "/nowhere"}, builtin=builtin, **how)
    for body in bodies:
        CatalogFolder("there", catalog.home / "sources" / "there").write(Card(body))
    CatalogFolder("there", catalog.home / "sources" / "there").touch_generation()
    return catalog


# Adding


def test_a_new_card_is_added_as_it_came(catalog: Catalog, card: Factory) -> None:
    body = card(unknownKey={"kept": ["verbatim", 1.5, None]})
    (added,) = catalog.add(body)
    assert added == Added("local/dataset/alpha@1.0", "added", [])
    assert catalog.get("alpha").body == body


def test_the_same_card_again_is_present(catalog: Catalog, card: Factory, home: Path) -> None:
    catalog.add(card())
    before = files(home)
    assert statuses(catalog.add(card())) == ["present"]
    assert statuses(catalog.add(Card(card()))) == ["present"]
    assert files(home) == before


def test_the_order_of_keys_makes_no_other_card(catalog: Catalog, card: Factory) -> None:
    catalog.add(card())
    assert statuses(catalog.add(dict(reversed(card().items())))) == ["present"]


def test_the_same_handle_with_another_description_is_a_conflict(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(description="first"))
    with pytest.raises(Conflict, match=r"local/dataset/alpha@1\.0 already exists with another description") as caught:
        catalog.add(card(description="second"))
    assert "fairmile catalog update local/dataset/alpha@1.0" in str(caught.value.hint)
    assert catalog.get("alpha")["description"] == "first"


def standing(results: Sequence[Added]) -> list[tuple[str, str, str]]:
    return [(result.status, result.stands_as, result.because) for result in results]


def test_the_same_content_under_another_name_is_present_and_says_where(
    catalog: Catalog, card: Factory, file: Factory, home: Path
) -> None:
    catalog.add(card(name="Alpha", distribution=[file("a.bin", b"bytes")]))
    beta = card(name="Beta", distribution=[file("b.bin", b"bytes")])
    before = files(home)
    assert standing(catalog.add(beta)) == [("present", "local/dataset/alpha@1.0", "content")]
    assert files(home) == before
    assert statuses(catalog.add(beta, anyway=True)) == ["added"]
    assert sorted(handles(catalog)) == ["local/dataset/alpha@1.0", "local/dataset/beta@1.0"]


def test_content_of_many_files_is_recognised_in_any_order(catalog: Catalog, card: Factory, file: Factory) -> None:
    parts = [file("a", b"one"), file("b", b"two")]
    catalog.add(card(name="Alpha", distribution=parts))
    added = catalog.add(card(name="Beta", distribution=parts[::-1]))
    assert standing(added) == [("present", "local/dataset/alpha@1.0", "content")]


def test_a_declared_digest_counts_in_any_notation(catalog: Catalog, card: Factory, file: Factory) -> None:
    digest = hashlib.sha256(b"bytes").hexdigest()
    catalog.add(card(name="Alpha", contentDigest=f"sha256:{digest.upper()}"))
    added = catalog.add(card(name="Beta", distribution=[file("b.bin", b"bytes")]))
    assert standing(added) == [("present", "local/dataset/alpha@1.0", "content")]


def test_the_same_source_is_present_and_says_where(catalog: Catalog, card: Factory) -> None:
    url = "https://example.net/data.tar"
    catalog.add(card(name="Alpha", distribution=[{"name": "d", "contentUrl": url}]))
    beta = card(name="Beta", distribution=[{"name": "x", "contentUrl": url}])
    assert standing(catalog.add(beta)) == [("present", "local/dataset/alpha@1.0", "source")]
    assert statuses(catalog.add(beta, anyway=True)) == ["added"]


def test_another_part_of_the_same_source_is_another_asset(catalog: Catalog, card: Factory) -> None:
    url = "https://example.net/list.txt"
    catalog.add(card(name="All", distribution=[{"name": "d", "contentUrl": url}]))
    sample = card(name="Sample", distribution=[{"name": "d", "contentUrl": url, "fx:limit": 100}])
    assert statuses(catalog.add(sample)) == ["added"]


def test_another_version_may_share_content_and_source(catalog: Catalog, card: Factory, file: Factory) -> None:
    parts = [file("a.bin", b"bytes", url="https://example.net/a.bin")]
    catalog.add(card(version="1.0", distribution=parts))
    assert statuses(catalog.add(card(version="2.0", distribution=parts))) == ["added"]


def test_what_stands_in_another_catalog_is_recognised(
    home: Path, builtin: CatalogFolder, card: Factory, file: Factory
) -> None:
    parts = [file("a.bin", b"bytes")]
    catalog = with_source(home, builtin, card(name="Alpha", distribution=parts))
    added = catalog.add(card(name="Beta", distribution=parts))
    assert standing(added) == [("present", "there/dataset/alpha@1.0", "content")]


def test_the_content_of_a_removed_asset_may_come_back_under_another_name(
    catalog: Catalog, card: Factory, file: Factory
) -> None:
    parts = [file("a.bin", b"bytes", url="https://example.net/a.bin")]
    catalog.add(card(name="Wrong name", distribution=parts))
    catalog.remove("wrong-name")
    assert statuses(catalog.add(card(name="Right name", distribution=parts))) == ["added"]


def test_anyway_does_not_overwrite(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(description="first"))
    with pytest.raises(Conflict):
        catalog.add(card(description="second"), anyway=True)


@pytest.mark.parametrize("first", [True, False])
def test_a_dry_run_says_what_would_happen_and_changes_nothing(
    catalog: Catalog, card: Factory, home: Path, first: bool
) -> None:
    if not first:
        catalog.add(card())
    before = files(home)
    assert statuses(catalog.add(card(), dry_run=True)) == ["added" if first else "present"]
    assert files(home) == before
    if not first:
        with pytest.raises(Conflict):
            catalog.add(card(description="other"), dry_run=True)


def test_an_invalid_card_is_refused_with_its_field(catalog: Catalog, card: Factory, tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match="datePublished: expected a date") as caught:
        catalog.add(card(datePublished="soon", version=None))
    assert {problem.field for problem in caught.value.problems} == {"datePublished", "version"}
    path = tmp_path / "card.jsonld"
    path.write_text(json.dumps(card(datePublished="soon"), indent=1))
    with pytest.raises(InvalidDocument, match=r"card\.jsonld:7 datePublished: expected a date"):
        catalog.add(path)
    assert handles(catalog) == []


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), "\ud800", {3: 4}])
def test_what_no_card_can_hold_is_refused(catalog: Catalog, card: Factory, value: Any, home: Path) -> None:
    with pytest.raises(UsageError, match="canonical JSON"):
        catalog.add(card(mine=value))
    assert not (home / "catalog").exists()
    catalog.add(card())
    before = files(home)
    with pytest.raises(UsageError, match="canonical JSON"):
        catalog.update("alpha", set={"mine": value})
    assert files(home) == before


def test_an_id_is_minted_and_stays_the_same(
    catalog: Catalog, card: Factory, home: Path, builtin: CatalogFolder
) -> None:
    body = card(**{"@id": None})
    catalog.add(body)
    minted = catalog.get("alpha").iri
    assert minted.startswith("urn:uuid:")
    assert statuses(catalog.add(body)) == ["present"]
    sited = Catalog(home.with_name("other"), base="https://example.org/catalog/", builtin=builtin)
    sited.add(body)
    assert sited.get("alpha").iri == "https://example.org/catalog/a/dataset/alpha/1.0"


@pytest.mark.parametrize(
    ("given", "kept", "raw"),
    [
        (SPDX + "MIT", SPDX + "MIT", None),
        ("MIT", SPDX + "MIT", "MIT"),
        ("Apache 2.0", SPDX + "Apache-2.0", "Apache 2.0"),
        (["mit", "my own terms"], [SPDX + "MIT", "my own terms"], ["mit", "my own terms"]),
        ("my own terms", "my own terms", None),
        ([], [], None),
    ],
)
def test_a_licence_is_brought_to_spdx_and_what_was_written_is_kept(
    catalog: Catalog, card: Factory, given: Any, kept: Any, raw: Any
) -> None:
    catalog.add(card(license=given))
    found = catalog.get("alpha")
    assert (found["license"], found.get("licenseRaw")) == (kept, raw)
    assert statuses(catalog.add(card(license=given))) == ["present"]


CODEMETA = {
    "@context": "https://w3id.org/codemeta/3.0",
    "@type": "SoftwareSourceCode",
    "name": "Foreign code",
    "version": "0.3",
    "license": "https://spdx.org/licenses/MIT",
    "codeRepository": "https://example.net/foreign.git",
    "strange:key": 7,
}


def test_a_foreign_document_is_kept_as_it_came_by_its_digest(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "codemeta.json"
    path.write_text(json.dumps(CODEMETA, indent=3))
    (added,) = catalog.add(path)
    assert (added.handle, added.status) == ("local/program/foreign-code@0.3", "added")
    card = catalog.get("foreign-code")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert card["sourceDocument"]["sha256"] == digest
    assert catalog.raw_document(card) == path.read_bytes()
    assert (catalog.home / "catalog" / "raw" / digest[:2] / digest).read_bytes() == path.read_bytes()
    assert catalog.get(digest).iri == card.iri
    assert statuses(catalog.add(path)) == ["present"]


def test_a_format_that_is_named_is_used_and_its_document_kept(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "odd name.txt"
    path.write_text(json.dumps(CODEMETA))
    catalog.add(path, format="codemeta")
    assert catalog.raw_document(catalog.get("foreign-code")) == path.read_bytes()


def test_an_exported_card_can_be_added_elsewhere(catalog: Catalog, tmp_path: Path, builtin: CatalogFolder) -> None:
    path = tmp_path / "codemeta.json"
    path.write_text(json.dumps(CODEMETA))
    catalog.add(path)
    catalog.export("foreign-code", "card", tmp_path / "out")
    other = Catalog(tmp_path / "other", builtin=builtin)
    assert statuses(other.add(tmp_path / "out" / "foreign-code.jsonld")) == ["added"]
    assert other.get("foreign-code").digest == catalog.get("foreign-code").digest
    assert other.raw_document(other.get("foreign-code")) is None


@pytest.mark.parametrize("text", ['{"a": 1}', "", "nonsense", "[]"])
def test_a_document_of_no_known_format_is_refused(catalog: Catalog, tmp_path: Path, text: str) -> None:
    path = tmp_path / "what.json"
    path.write_text(text)
    with pytest.raises(InvalidDocument, match=r"what\.json"):
        catalog.add(path)
    with pytest.raises(UsageError, match="cannot be read"):
        catalog.add(tmp_path / "missing.json")


def sabath_pair(tmp_path: Path) -> Path:
    """Write a foreign document that describes several assets."""
    path = tmp_path / "model.json"
    path.write_text(
        json.dumps(
            {
                "name": "net",
                "description": "a net",
                "git": {"origin": "https://example.net/net.git"},
                "requirements": {"python": "3.11", "pip": ["numpy"]},
                "run": {"small": ["python train.py"]},
            }
        )
    )
    return path


def test_nothing_is_added_when_one_of_several_assets_conflicts(
    catalog: Catalog, tmp_path: Path, home: Path, builtin: CatalogFolder
) -> None:
    path = sabath_pair(tmp_path)
    planned = catalog.add(path, format="sabath", dry_run=True)
    assert len(planned) > 1
    # The last asset is there already, with another description.
    other = Catalog(tmp_path / "other", builtin=builtin)
    other.add(path, format="sabath")
    last = other.get(planned[-1].handle)
    catalog.add({**last.body, "description": "something else"})
    before = files(home)
    with pytest.raises(Conflict, match=last.name):
        catalog.add(path, format="sabath")
    assert files(home) == before
    assert handles(catalog) == [planned[-1].handle]


def test_nothing_is_left_when_writing_one_of_several_fails(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sabath_pair(tmp_path)
    planned = catalog.add(path, format="sabath", dry_run=True)
    # A file that the index does not know stands where the last card would go.
    kind, name, version = planned[-1].handle.replace("@", "/").split("/")[1:]
    stray = catalog.local.cards_root / kind / name / f"{version}.jsonld"
    stray.parent.mkdir(parents=True)
    stray.write_text("damaged")
    catalog.local.touch_generation()
    with pytest.raises(Conflict, match=r"already exists, but is not in the index"):
        catalog.add(path, format="sabath")
    assert [relative for relative, _ in catalog.local.scan()] == [f"{kind}/{name}/{version}.jsonld"]
    assert handles(catalog) == []
    stray.unlink()
    assert statuses(catalog.add(path, format="sabath")) == ["added"] * len(planned)


# Changing


def test_properties_are_set_appended_and_dropped(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(keywords="one", description="old", url="https://example.net/x"))
    changed = catalog.update("alpha", set={"description": "new"}, add={"keywords": ["two"]}, unset=["url"])
    assert catalog.get("alpha").body == changed.body
    assert changed["description"] == "new"
    assert changed["keywords"] == ["one", "two"]
    assert "url" not in changed
    assert changed.iri == card()["@id"]
    assert handles(catalog, "new") == ["local/dataset/alpha@1.0"]
    assert handles(catalog, "old") == []


def test_a_changed_licence_is_brought_to_spdx(catalog: Catalog, card: Factory) -> None:
    catalog.add(card())
    changed = catalog.update("alpha", set={"license": "Apache 2.0"})
    assert (changed["license"], changed["licenseRaw"]) == (SPDX + "Apache-2.0", "Apache 2.0")
    changed = catalog.update("alpha", add={"license": "mit"})
    assert changed["license"] == [SPDX + "Apache-2.0", SPDX + "MIT"]
    changed = catalog.update("alpha", set={"license": SPDX + "MIT"})
    assert changed["license"] == SPDX + "MIT"
    assert "licenseRaw" not in changed


def test_changed_files_have_another_content(catalog: Catalog, card: Factory, file: Factory) -> None:
    catalog.add(card(contentDigest=ni(hashlib.sha256(b"old").hexdigest()), distribution=[file("a", b"old")]))
    changed = catalog.update("alpha", set={"distribution": [file("a", b"new")]})
    assert changed["contentDigest"] == ni(hashlib.sha256(b"new").hexdigest())
    assert catalog.get(hashlib.sha256(b"new").hexdigest()).name == "alpha"
    with pytest.raises(NotFound):
        catalog.get(hashlib.sha256(b"old").hexdigest())


def test_a_new_version_is_a_new_card_linked_to_the_old_one(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(description="old"))
    new = catalog.update("alpha", set={"version": "2.0", "description": "new"})
    assert str(new.handle) == "local/dataset/alpha@2.0"
    assert new["wasRevisionOf"] == card()["@id"]
    assert new.iri != card()["@id"]
    assert catalog.get("alpha@1.0")["description"] == "old"
    assert catalog.get("alpha")["description"] == "new"
    with pytest.raises(Conflict, match="already exists"):
        catalog.update("alpha@1.0", set={"version": "2.0"})


@pytest.mark.parametrize(
    "change",
    [{"name": "Beta"}, {"@type": "MLModel"}, {"name": None}, {"name": ""}],
    ids=["name", "kind", "no", "empty"],
)
def test_an_asset_cannot_be_renamed(catalog: Catalog, card: Factory, change: dict[str, Any]) -> None:
    catalog.add(card())
    with pytest.raises(UsageError, match="cannot be changed"):
        catalog.update("alpha", set=change)
    with pytest.raises(UsageError, match="cannot be changed"):
        catalog.update("alpha", unset=["name"])


def test_a_change_that_breaks_the_profile_is_refused(catalog: Catalog, card: Factory, home: Path) -> None:
    catalog.add(card())
    before = files(home)
    with pytest.raises(InvalidDocument, match="datePublished: expected a date"):
        catalog.update("alpha", set={"datePublished": "soon"})
    with pytest.raises(InvalidDocument, match="version: is missing"):
        catalog.update("alpha", unset=["version"])
    with pytest.raises(InvalidDocument, match="version: expected a text"):
        catalog.update("alpha", set={"version": 2})
    assert files(home) == before


def test_a_dry_update_changes_nothing(catalog: Catalog, card: Factory, home: Path) -> None:
    catalog.add(card())
    before = files(home)
    assert catalog.update("alpha", set={"description": "new"}, dry_run=True)["description"] == "new"
    assert files(home) == before


def test_a_card_of_another_catalog_is_changed_as_a_local_copy(
    home: Path, builtin: CatalogFolder, card: Factory
) -> None:
    catalog = with_source(home, builtin, card(description="theirs"))
    before = files(home / "sources")
    changed = catalog.update("alpha", set={"description": "mine"})
    assert str(changed.handle) == "local/dataset/alpha@1.0"
    assert catalog.get("alpha")["description"] == "mine"
    assert catalog.get("there/dataset/alpha")["description"] == "theirs"
    assert files(home / "sources") == before
    with pytest.raises(Conflict, match=r"local/dataset/alpha@1\.0 already exists"):
        catalog.update("there/dataset/alpha", set={"description": "theirs again"})
    assert catalog.get("alpha")["description"] == "mine"


def test_a_bare_name_of_several_kinds_is_not_changed(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("model", "Alpha"))
    catalog.add(card("dataset", "Alpha"))
    with pytest.raises(UsageError, match="'alpha' names several assets") as caught:
        catalog.update("alpha", set={"url": "https://example.net"})
    assert "model/alpha, dataset/alpha" in str(caught.value.hint)
    with pytest.raises(UsageError, match="'alpha' names several assets"):
        catalog.remove("alpha")
    assert catalog.update("model/alpha", set={"url": "https://example.net"}).kind == "model"
    assert catalog.update("alpha", kind="data", set={"url": "https://example.net"}).kind == "dataset"


# Removing


def test_a_removed_card_leaves_a_tombstone(catalog: Catalog, card: Factory, home: Path, builtin: CatalogFolder) -> None:
    catalog = Catalog(home, builtin=builtin, clock=lambda: 1_767_225_600.0)
    catalog.add(card(description="about stars"))
    catalog.add(card(name="Beta"))
    assert catalog.remove("alpha", reason="wrong", successor="beta", dry_run=True)["tombstone"]["reason"] == "wrong"
    assert not catalog.resolve("alpha")[0].gone
    buried = catalog.remove("alpha", reason="wrong", successor="beta")
    grave = {"date": "2026-01-01T00:00:00Z", "reason": "wrong", "supersededBy": card(name="Beta")["@id"]}
    assert buried["tombstone"] == grave
    found = catalog.get("alpha")
    assert (found["tombstone"], found["description"]) == (grave, "about stars")
    assert catalog.resolve("alpha")[0].gone
    assert found.digest == Card(card(description="about stars")).digest


def test_the_name_of_a_removed_card_stays_reserved(catalog: Catalog, card: Factory) -> None:
    catalog.add(card())
    catalog.remove("alpha")
    with pytest.raises(Conflict, match="was removed and its name stays reserved"):
        catalog.add(card())
    with pytest.raises(NotFound, match="was removed"):
        catalog.remove("alpha")
    with pytest.raises(NotFound, match="was removed"):
        catalog.update("alpha", set={"description": "x"})
    catalog.add(card(version="2.0"))
    with pytest.raises(Conflict, match="stays reserved"):
        catalog.update("alpha", set={"version": "1.0"})
    assert not catalog.resolve("alpha")[0].gone


def test_a_reserved_name_is_not_taken_by_a_copy(home: Path, builtin: CatalogFolder, card: Factory) -> None:
    catalog = with_source(home, builtin, card(name="Other"))
    catalog.add(card())
    catalog.remove("alpha")
    CatalogFolder("there", catalog.home / "sources" / "there").write(Card(card()))
    CatalogFolder("there", catalog.home / "sources" / "there").touch_generation()
    assert catalog.resolve("alpha")[0].handle == "there/dataset/alpha@1.0"
    with pytest.raises(Conflict, match="stays reserved"):
        catalog.update("alpha", set={"description": "x"})


def test_an_unknown_successor_removes_nothing(catalog: Catalog, card: Factory) -> None:
    catalog.add(card())
    with pytest.raises(NotFound):
        catalog.remove("alpha", successor="nothing")
    assert not catalog.resolve("alpha")[0].gone


def test_a_card_of_another_catalog_is_not_removed(home: Path, builtin: CatalogFolder, card: Factory) -> None:
    builtin.write(Card(card("model", "Shipped")))
    catalog = with_source(home, builtin, card())
    with pytest.raises(UsageError, match="belongs to the catalog 'there'") as caught:
        catalog.remove("alpha")
    assert "source rm there" in str(caught.value.hint)
    with pytest.raises(UsageError, match="belongs to the catalog 'builtin'"):
        catalog.remove("shipped")


# Versions


def test_versions_are_ordered_as_versions_are(catalog: Catalog, card: Factory) -> None:
    for version in ("1.9", "1.10", "1.10rc1", "0.9", "1.10.1", "2.0"):
        catalog.add(card(version=version))
    catalog.remove("alpha@2.0")
    found = catalog.versions("alpha")
    assert [row.version for row in found] == ["1.10.1", "1.10", "1.10rc1", "1.9", "0.9", "2.0"]
    assert [row.gone for row in found] == [False] * 5 + [True]
    assert catalog.get("alpha").version == "1.10.1"
    with pytest.raises(NotFound):
        catalog.versions("beta")


# What a name means


def test_of_several_names_the_cards_that_exist_are_returned_in_their_order(catalog: Catalog, card: Factory) -> None:
    catalog.add(card())
    catalog.add(card(name="Beta"))
    names = ["beta", "nothing/of the kind@1", "absent", "not a name at all/", "local/dataset/alpha@1.0", "alpha@9"]
    assert [each.handle.name for each in catalog.existing(names)] == ["beta", "alpha"]


@pytest.fixture
def named(catalog: Catalog, card: Factory, file: Factory) -> Catalog:
    """A catalog with one data set of two files and a DOI, and another asset."""
    catalog.add(
        card(
            name="Alpha Set",
            identifier=["https://doi.org/10.5281/Zenodo.123", "OpenML-61"],
            sameAs="https://example.org/same",
            distribution=[file("a", b"one"), file("b", b"two")],
        )
    )
    catalog.add(card("model", "Other"))
    return catalog


@pytest.mark.parametrize(
    "name",
    [
        "alpha-set",
        "Alpha Set",
        " alpha-set ",
        "ALPHA-SET",
        "dataset/alpha-set",
        "data/alpha-set",
        "local/alpha-set",
        "alpha-set@1.0",
        "dataset/alpha-set@1.0",
        "local/dataset/alpha-set@1.0",
        "https://example.net/dataset/alpha-set/1.0",
        "https://example.org/same",
        "OpenML-61",
        "doi:10.5281/zenodo.123",
        "DOI:10.5281/Zenodo.123",
        "https://doi.org/10.5281/zenodo.123",
        "http://dx.doi.org/10.5281/ZENODO.123",
        "10.5281/zenodo.123",
        hashlib.sha256(b"one").hexdigest(),
        hashlib.sha256(b"two").hexdigest().upper(),
        "sha256:" + hashlib.sha256(b"two").hexdigest(),
        ni(hashlib.sha256(b"two").hexdigest()),
    ],
)
def test_an_asset_answers_to_its_names_ids_and_digests(named: Catalog, name: str) -> None:
    row, others = named.resolve(name)
    assert (row.handle, others) == ("local/dataset/alpha-set@1.0", [])
    assert named.get(name).title == "Alpha Set"


def test_an_asset_answers_to_the_digest_of_its_card_and_of_its_content(named: Catalog) -> None:
    card = named.get("alpha-set")
    assert card.content is not None
    for digest in (card.digest, card.content):
        assert named.get(digest).iri == card.iri


def test_a_name_with_a_colon_is_a_name(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("model", "llama:7b"))
    assert catalog.get("llama:7b").title == "llama:7b"


@pytest.mark.parametrize(
    "name",
    [
        *("nothing", "model/alpha-set", "there/dataset/alpha-set", "https://example.net/nothing"),
        *("ab" * 32, "doi:10.1/none", "10.5281/none", "urn:uuid:none", "ni:///sha-256;none"),
    ],
)
def test_what_is_not_there_is_not_found(named: Catalog, name: str) -> None:
    with pytest.raises(NotFound, match="no asset named"):
        named.get(name)


@pytest.mark.parametrize("name", ["", "a/b/c/d", "/", "@1.0", "local/banana/alpha-set"])
def test_what_cannot_be_a_name_is_refused(named: Catalog, name: str) -> None:
    with pytest.raises(UsageError, match="is not a"):
        named.get(name)


def test_not_found_tells_the_nearest_names(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Cosmo Universe"))
    catalog.add(card("model", "CosmoFlow"))
    with pytest.raises(NotFound) as caught:
        catalog.get("cosmo-univrese")
    assert caught.value.hint == "did you mean cosmo-universe?"
    with pytest.raises(NotFound, match="no model named 'cosmoflwo'") as caught:
        catalog.get("cosmoflwo", kind="models")
    assert caught.value.hint == "did you mean cosmoflow?"
    with pytest.raises(NotFound) as caught:
        catalog.get("xyzzy")
    assert caught.value.hint == "try `fairmile search xyzzy`"


def test_an_unknown_kind_is_refused(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="no kind named 'modle'; did you mean 'model'"):
        catalog.get("x", kind="modle")


def test_a_bare_name_of_several_kinds_means_the_first_and_tells_the_others(catalog: Catalog, card: Factory) -> None:
    for kind in ("dataset", "model", "benchmark"):
        catalog.add(card(kind, "Alpha"))
    row, others = catalog.resolve("alpha")
    assert row.kind == "benchmark"
    assert [each.kind for each in others] == ["model", "dataset"]
    assert catalog.get("alpha", kind="model").kind == "model"


# One view over several catalogs


def test_local_ranks_before_sources_in_their_order_before_the_builtin(
    home: Path, builtin: CatalogFolder, card: Factory
) -> None:
    builtin.write(Card(card(description="shipped")))
    catalog = Catalog(home, sources={"zeta": "/z", "eta": "/e"}, builtin=builtin)
    assert catalog.get("alpha")["description"] == "shipped"
    for name in ("eta", "zeta", "local"):
        folder = catalog.local if name == "local" else CatalogFolder(name, catalog.home / "sources" / name)
        folder.write(Card(card(description=f"of {name}")))
        folder.touch_generation()
        assert catalog.get("alpha")["description"] == f"of {name}"
        assert handles(catalog, "alpha") == [f"{name}/dataset/alpha@1.0"]
    (hit,) = catalog.search("alpha")
    assert (hit.also, hit.clash) == (("zeta", "eta", "builtin"), True)
    assert hit.to_dict()["also_in"] == ["zeta", "eta", "builtin"]
    row, others = catalog.resolve("alpha")
    assert [row.catalog, *(each.catalog for each in others)] == ["local", "zeta", "eta", "builtin"]
    facts = catalog.catalogs()
    assert [each["name"] for each in facts] == ["local", "zeta", "eta", "builtin"]
    assert [each["clashes"] for each in facts] == [[], *[["dataset/alpha@1.0"]] * 3]
    assert [each["cards"] for each in facts] == [1, 1, 1, 1]


def test_the_same_card_in_two_catalogs_is_no_clash(home: Path, builtin: CatalogFolder, card: Factory) -> None:
    catalog = with_source(home, builtin, card())
    catalog.add(card())
    (hit,) = catalog.search("alpha")
    assert (hit.handle, hit.also, hit.clash) == ("local/dataset/alpha@1.0", ("there",), False)
    assert [each["clashes"] for each in catalog.catalogs()] == [[], [], []]


def test_a_hit_is_a_card_that_matches(home: Path, builtin: CatalogFolder, card: Factory) -> None:
    catalog = with_source(home, builtin, card(name="Mnist", description="preferences", license=SPDX + "MIT"))
    catalog.add(card(name="Mnist", description="digits", license=SPDX + "CC0-1.0"))
    assert handles(catalog, "mnist") == ["local/dataset/mnist@1.0"]
    assert handles(catalog, "digits") == ["local/dataset/mnist@1.0"]
    assert handles(catalog, "preferences") == ["there/dataset/mnist@1.0"]
    assert handles(catalog, "licence:mit") == ["there/dataset/mnist@1.0"]
    assert handles(catalog, "mnist catalog:there") == ["there/dataset/mnist@1.0"]
    assert [hit.handle for hit in catalog.find("dataset", licence="mit")] == ["there/dataset/mnist@1.0"]


def test_what_is_removed_here_is_still_found_there(home: Path, builtin: CatalogFolder, card: Factory) -> None:
    catalog = with_source(home, builtin, card())
    catalog.add(card())
    catalog.remove("alpha")
    (hit,) = catalog.search("alpha")
    assert (hit.handle, hit.row.gone, hit.also) == ("there/dataset/alpha@1.0", False, ())


def test_mirrors_do_not_crowd_out_other_assets(home: Path, builtin: CatalogFolder, card: Factory) -> None:
    names = ("m1", "m2", "m3", "m4")
    catalog = Catalog(home, sources={name: f"/{name}" for name in names}, builtin=builtin)
    for name in names:
        for number in range(20):
            CatalogFolder(name, catalog.home / "sources" / name).write(Card(card("model", f"Net {number}")))
        CatalogFolder(name, catalog.home / "sources" / name).touch_generation()
    assert len(catalog.search("net", limit=15)) == 15
    assert len(catalog.search("net", limit=50)) == 20


def test_a_source_taken_out_of_the_settings_is_no_longer_seen(
    home: Path, builtin: CatalogFolder, card: Factory
) -> None:
    assert handles(with_source(home, builtin, card())) == ["there/dataset/alpha@1.0"]
    assert handles(Catalog(home, builtin=builtin)) == []


# Finding by facets and links


def test_find_takes_facets_and_links(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha", project={"@id": "https://example.net/p", "name": 'The "P" project'}))
    catalog.add(card("model", "Net", trainedOn="alpha", scienceDomain="optics"))
    catalog.add(card("model", "Other", trainedOn="beta", scienceDomain="optics"))
    data = catalog.find("dataset", project='The "P" project')
    assert [hit.title for hit in data] == ["Alpha"]
    for target in (data, data[0], catalog.get("alpha"), "alpha", [catalog.get("alpha"), "nothing"]):
        assert [hit.title for hit in catalog.find("model", trainedOn=target)] == ["Net"]
    assert catalog.find("model", domain="acoustics", trainedOn=data) == []
    assert catalog.find("model", "other", trainedOn=data) == []
    assert catalog.find("dataset", trainedOn=data) == []
    assert catalog.find("model", trainedOn=[]) == []


@pytest.mark.thorough
def test_find_sees_links_however_many_assets_there_are(catalog: Catalog, card: Factory) -> None:
    with catalog.open_index() as index, index.held():
        generation = catalog.local.touch_generation()
        for number in range(1100):
            each = Card(card("model", f"Net {number:04}"))
            catalog.local.write(each)
            index.put(catalog.local, each, generation)
    catalog.add(card("model", "Zz last", trainedOn="alpha"))
    assert [hit.title for hit in catalog.find("model", trainedOn="alpha")] == ["Zz last"]


def test_find_refuses_what_is_no_facet_and_no_link(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="no facet or link named 'trainedon'") as caught:
        catalog.find("model", trainedon="x")
    assert "trainedOn" in str(caught.value.hint)
    with pytest.raises(UsageError, match="the facet 'domain' takes a string"):
        catalog.find("model", domain=["x"])


# Checking and exchange


def test_checking_gives_a_verdict_for_each_file_and_changes_nothing(
    catalog: Catalog, card: Factory, tmp_path: Path, home: Path
) -> None:
    good, bad, foreign = tmp_path / "good.jsonld", tmp_path / "bad.jsonld", tmp_path / "codemeta.json"
    good.write_text(json.dumps(card()))
    bad.write_text('{"@context": ')
    foreign.write_text(json.dumps(CODEMETA))
    verdicts = catalog.check([good, bad, foreign, tmp_path / "missing.json"])
    assert [verdict.ok for verdict in verdicts] == [True, False, True, False]
    assert verdicts[0].handles == ["local/dataset/alpha@1.0"]
    assert verdicts[1].problems[0].line == 1
    assert verdicts[2].handles == ["local/program/foreign-code@0.3"]
    assert "cannot be read" in verdicts[3].problems[0].message
    assert not (home / "catalog").exists()


def test_an_export_is_returned_and_written_where_asked(catalog: Catalog, card: Factory, tmp_path: Path) -> None:
    catalog.add(card())
    documents = catalog.export("alpha", "card", tmp_path / "out")
    assert documents == {"alpha.jsonld": catalog.get("alpha").to_json()}
    assert (tmp_path / "out" / "alpha.jsonld").read_text() == documents["alpha.jsonld"]
    with pytest.raises(NotFound, match="no export format named 'croisant'; did you mean 'croissant'"):
        catalog.export("alpha", "croisant")


def test_publishing_an_unknown_catalog_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no catalog named 'there'") as caught:
        catalog.publish(tmp_path, catalog="there")
    assert "local, builtin" in str(caught.value.hint)


def test_the_fair_score_sees_what_surrounds_the_card(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(version="1.0"))
    alone = catalog.fair("alpha").score
    catalog.update("alpha", set={"version": "2.0"})
    assert catalog.fair("alpha").score > alone


# Sources in the settings


def test_a_source_is_declared_in_the_settings_and_synced(
    home: Path, builtin: CatalogFolder, card: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "config.yaml"
    settings.write_text("# mine\nhome: /somewhere\n")
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "a.jsonld").write_text(json.dumps(card()))
    catalog = Catalog(home, builtin=builtin, settings_file=settings)
    monkeypatch.chdir(tmp_path)
    report = catalog.add_source("there", "cards")
    assert (report.cards, report.error) == (1, "")
    assert handles(catalog) == ["there/dataset/alpha@1.0"]
    text = settings.read_text()
    assert text.startswith("# mine\nhome: /somewhere\n")
    assert f"location: {tmp_path / 'cards'}" in text
    with pytest.raises(Conflict, match="a source named 'there' already exists"):
        catalog.add_source("there", "cards")
    catalog.remove_source("there")
    assert "there" not in settings.read_text()
    assert handles(catalog) == []
    assert not (home / "sources" / "there").exists()
    with pytest.raises(NotFound, match="no source named 'there'"):
        catalog.remove_source("there")


def test_nothing_is_declared_when_the_first_sync_fails(home: Path, builtin: CatalogFolder, tmp_path: Path) -> None:
    settings = tmp_path / "config.yaml"
    catalog = Catalog(home, builtin=builtin, settings_file=settings)
    with pytest.raises(SystemFailure, match="the source 'there' cannot be synced"):
        catalog.add_source("there", str(tmp_path / "nowhere"))
    assert not settings.exists()
    assert not (home / "sources" / "there").exists()
    assert [each["name"] for each in catalog.catalogs()] == ["local", "builtin"]


@pytest.mark.parametrize("name", ["local", "Builtin", "a b", "../x"])
def test_a_source_needs_a_name_of_its_own(catalog: Catalog, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a source"):
        catalog.add_source(name, "/data")


def test_a_source_of_another_file_is_not_removed(home: Path, builtin: CatalogFolder, tmp_path: Path) -> None:
    settings = tmp_path / "config.yaml"
    settings.write_text("sources:\n")
    catalog = Catalog(home, sources={"there": "/x"}, builtin=builtin, settings_file=settings)
    with pytest.raises(UsageError, match="is not declared in"):
        catalog.remove_source("there")
    assert "there" in [each["name"] for each in catalog.catalogs()]


def test_syncing_an_unknown_source_names_the_nearest(home: Path, builtin: CatalogFolder) -> None:
    catalog = Catalog(home, sources={"partner": "/x"}, builtin=builtin)
    with pytest.raises(NotFound, match="no source named 'partnr'") as caught:
        catalog.sync(["partnr"])
    assert "partner" in str(caught.value.hint)


# Use


def test_use_is_counted_where_it_can_be(catalog: Catalog, card: Factory, home: Path) -> None:
    catalog.add(card())
    catalog.get("alpha")
    assert catalog.search("alpha")[0].row.uses == 0
    catalog.show("alpha")
    catalog.export("alpha", "card")
    assert catalog.search("alpha")[0].to_dict()["uses"] == 2
    (log,) = (home / "usage").iterdir()
    assert log.read_text() == "dataset/alpha\n" * 2
    catalog.reindex()
    assert catalog.search("alpha")[0].row.uses == 2


def test_progress_is_told_while_cards_are_indexed(home: Path, builtin: CatalogFolder, card: Factory) -> None:
    told: list[tuple[int, int]] = []
    catalog = Catalog(home, builtin=builtin, on_progress=lambda done, of: told.append((done, of)))
    for number in range(3):
        catalog.local.write(Card(card(name=f"Alpha {number}")))
    catalog.reindex()
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_builtin_catalog_ships_whole(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    report = catalog.reindex()
    assert report.damaged == []
    assert report.added == len(list(builtin_folder().scan())) > 0
    assert catalog.catalogs()[-1] == {
        "name": "builtin",
        "type": "builtin",
        "cards": report.added,
        "clashes": [],
        "location": str(builtin_folder().root),
    }


def test_rows_of_a_catalog_that_is_no_longer_there_are_not_served(
    home: Path, builtin: CatalogFolder, card: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_source(home, builtin, card()).search()
    # As on a compute node that may read the index but not refresh it.
    monkeypatch.setattr(Index, "stale", lambda *_: False)
    catalog = Catalog(home, builtin=builtin)
    assert handles(catalog) == []
    with pytest.raises(NotFound):
        catalog.get("alpha")


def test_only_a_run_on_record_bears_out_that_an_asset_was_reproduced(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("model", "Alpha", reproducedBy=["https://example.net/run/1"]))

    def reproduced() -> str:
        return next(each.outcome for each in catalog.fair("alpha").findings if each.id == "R2b")

    assert reproduced() == "fail"
    catalog.add({**card("run", "Again"), "@id": "https://example.net/run/1"})
    assert reproduced() == "pass"


def test_a_version_that_is_not_there_brings_those_that_are(named: Catalog) -> None:
    with pytest.raises(NotFound, match=r"'alpha-set' has no version '9'") as caught:
        named.get("alpha-set@9")
    assert str(caught.value.hint).startswith("versions: ")


def test_the_copy_of_another_projects_source_of_the_same_name_does_not_serve(
    home: Path, builtin: CatalogFolder, card: Factory, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.jsonld").write_text(json.dumps(card(name=f"of {name}")))
    one = Catalog(home, sources={"group": str(tmp_path / "a")}, builtin=builtin)
    other = Catalog(home, sources={"group": str(tmp_path / "b")}, builtin=builtin)
    one.sync()
    assert handles(one) == ["group/dataset/of-a@1.0"]
    assert handles(other) == []
    assert [each["synced_at"] for each in other.catalogs() if each["name"] == "group"] == [""]
    other.sync()
    assert handles(other) == ["group/dataset/of-b@1.0"]
    assert handles(one) == []


def test_a_misspelt_key_of_a_file_is_a_warning_when_a_card_is_added(
    catalog: Catalog, card: Callable[..., Any], file: Callable[..., Any]
) -> None:
    entry = file("a.bin", b"bytes", url="https://example.net/a.bin") | {"mirrors": ["https://example.com/a.bin"]}
    (added,) = catalog.add(card(distribution=[entry]))
    (warning,) = added.warnings
    assert warning["field"] == "distribution[0].mirrors"
    assert warning["message"].endswith("did you mean 'mirror'?")
