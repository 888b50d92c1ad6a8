from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.index import Index

Factory = Callable[..., dict[str, Any]]


def names(catalog: Catalog, text: str = "", **how: Any) -> list[str]:
    return [hit.row.name for hit in catalog.search(text, **how)]


def versions(catalog: Catalog, text: str = "", **how: Any) -> list[str]:
    return [hit.row.version for hit in catalog.search(text, **how)]


# What a card is found by


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "alpha"),
        ({"description": "galaxies in boxes"}, "galaxies"),
        ({"description": "galaxies in boxes"}, "galaxy"),
        ({"description": "galaxies in boxes"}, '"in boxes"'),
        ({"description": "Étoile naine"}, "etoile"),
        ({"keywords": ["halo"]}, "halo"),
        ({"keywords": "halo, void"}, "void"),
        ({"alternateName": "Beta set"}, "beta"),
        ({"scienceDomain": "cosmology"}, "cosmology"),
        ({"mlTask": "regression"}, "regression"),
        ({"machineLearningFramework": "PyTorch"}, "pytorch"),
        ({"license": "https://spdx.org/licenses/CC-BY-4.0"}, "CC-BY-4.0"),
        ({"creator": {"@type": "Person", "name": "Ada Lovelace"}}, "lovelace"),
        ({"citation": "Lovelace 1843, Notes"}, "1843"),
        ({"https://example.net/terms/grid": {"deep": ["hexahedral"]}}, "hexahedral"),
        ({"myOwnKey": "zebrafish"}, "zebrafish"),
        ({"distribution": [{"name": "part-07.tfrecord"}]}, "tfrecord"),
    ],
)
def test_a_card_is_found_by_every_field(catalog: Catalog, card: Factory, more: dict[str, Any], text: str) -> None:
    catalog.add(card(name="Other", description="about something else"))
    catalog.add(card(**more))
    assert names(catalog, text) == ["alpha"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"scienceDomain": ["high energy physics"]}, 'domain:"High Energy Physics"'),
        ({"scienceDomain": ["high energy physics"]}, "domain:physics"),
        ({"mlTask": "image_classification"}, "task:image-classification"),
        ({"machineLearningFramework": "PyTorch"}, "framework:pytorch"),
        ({"distribution": [{"name": "a", "encodingFormat": "application/x-hdf5"}]}, "format:hdf5"),
        ({"license": "https://spdx.org/licenses/MIT"}, "licence:mit"),
        ({"license": "my own terms"}, 'licence:"my own terms"'),
        ({"keywords": ["dark matter"]}, 'tag:"dark matter"'),
        ({"creator": [{"name": "Ada Lovelace"}]}, "creator:lovelace"),
        ({"project": {"@id": "https://example.net/p", "name": "Xplacer"}}, "project:xplacer"),
        ({"funder": {"name": "NSF"}}, "funder:NSF"),
        ({"funding": {"funder": {"name": "NSF"}}}, "funder:nsf"),
        ({"targetMachine": [{"@id": "https://example.net/system/lassen"}]}, "machine:lassen"),
        ({"gpuModel": "NVIDIA V100"}, "gpu:v100"),
        ({"programmingLanguage": "Fortran"}, "language:fortran"),
        ({"accessRights": "https://example.net/access/restricted"}, "access:restricted"),
        ({"modelCategory": "CNN"}, "category:cnn"),
    ],
)
def test_a_card_is_found_by_its_facets(catalog: Catalog, card: Factory, more: dict[str, Any], text: str) -> None:
    catalog.add(card(name="Other"))
    catalog.add(card(**more))
    assert names(catalog, text) == ["alpha"]


def test_kind_and_catalog_are_matched_in_full(home: Path, builtin: CatalogFolder, card: Factory) -> None:
    catalog = Catalog(home, sources={"local-mirror": "/nowhere"}, builtin=builtin)
    CatalogFolder("local-mirror", catalog.home / "sources" / "local-mirror").write(Card(card("model", "Far")))
    catalog.add(card("model", "Near"))
    assert names(catalog, "catalog:local") == ["near"]
    assert names(catalog, "catalog:local-mirror") == ["far"]


def test_words_of_the_index_itself_find_nothing(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(scienceDomain="cosmology", keywords=["halo"]))
    for text in ("latest", "card", "kin*", "doma*", "tag*", "older"):
        assert names(catalog, text) == [], text
    assert names(catalog, "alpha -card -latest -kin*") == ["alpha"]


def test_all_words_must_match(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Alpha", description="red fish"))
    catalog.add(card(name="Beta", description="blue fish"))
    assert sorted(names(catalog, "fish")) == ["alpha", "beta"]
    assert names(catalog, "fish blue") == ["beta"]
    assert names(catalog, '"fish blue"') == []


def test_a_prefix_finds_longer_words(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Cosmology box"))
    catalog.add(card(name="Comet box"))
    assert names(catalog, "cosmo*") == ["cosmology-box"]
    assert sorted(names(catalog, "co*")) == ["comet-box", "cosmology-box"]


def test_what_is_left_out_is_not_found(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Red box", scienceDomain="optics", description="very old paint"))
    catalog.add(card(name="Blue box", scienceDomain="acoustics", description="old but very good"))
    assert names(catalog, "box -red") == ["blue-box"]
    assert names(catalog, "box -re*") == ["blue-box"]
    assert names(catalog, "box -domain:optics") == ["blue-box"]
    assert names(catalog, 'box -"very old"') == ["blue-box"]
    assert names(catalog, "-red") == ["blue-box"]


def test_an_empty_search_lists_everything(catalog: Catalog, card: Factory) -> None:
    for name in ("Alpha", "Beta"):
        catalog.add(card(name=name))
    assert sorted(names(catalog)) == ["alpha", "beta"]


# Rank


def test_a_name_ranks_before_a_keyword_and_a_keyword_before_a_description(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="One", description="has quasar in its description"))
    catalog.add(card(name="Two", keywords=["quasar"]))
    catalog.add(card(name="Quasar four"))
    catalog.add(card(name="Five", alternateName="Quasar"))
    assert names(catalog, "quasar") == ["five", "quasar-four", "two", "one"]


def test_the_exact_name_comes_first(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Net"))
    catalog.add(card(name="Net extended"))
    for _ in range(3):
        catalog.show("net-extended")
    assert names(catalog, "net") == ["net", "net-extended"]


def test_use_breaks_ties(catalog: Catalog, card: Factory) -> None:
    for name in ("Box a", "Box b", "Box c"):
        catalog.add(card(name=name))
    assert names(catalog, "box") == ["box-a", "box-b", "box-c"]
    for _ in range(2):
        catalog.show("box-c")
    catalog.show("box-b")
    assert names(catalog, "box") == ["box-c", "box-b", "box-a"]
    assert names(catalog, "kind:dataset") == ["box-c", "box-b", "box-a"]
    assert [hit.row.uses for hit in catalog.search("box")] == [2, 1, 0]


def test_use_is_kept_outside_the_card_and_orders_a_rebuilt_index(catalog: Catalog, card: Factory) -> None:
    for name in ("Box a", "Box b"):
        catalog.add(card(name=name))
    before = catalog.get("box-b").digest
    catalog.show("box-b")
    assert catalog.get("box-b").digest == before
    catalog.reindex()
    with catalog.open_index() as index:
        first = min(index.rows(range(10)), key=lambda row: row.id)
    assert (first.name, first.uses) == ("box-b", 1)
    assert names(catalog, "/^box/") == ["box-b", "box-a"]


@pytest.mark.thorough
def test_a_limit_is_kept_and_large_ones_are_filled(catalog: Catalog, card: Factory) -> None:
    with catalog.open_index() as index:
        generation = catalog.local.touch_generation()
        with index.held():
            for number in range(1200):
                body = Card(card("model", f"Net {number:04}"), catalog="local")
                catalog.local.write(body)
                index.put(catalog.local, body, generation)
    assert len(catalog.search("net", limit=7)) == 7
    assert len(catalog.search("net", limit=5000)) == 1200
    assert len(catalog.search("kind:model", limit=5000)) == 1200
    assert len(catalog.find("model", limit=5000)) == 1200


# Versions and tombstones


def test_only_the_latest_version_is_found_unless_asked(catalog: Catalog, card: Factory) -> None:
    for version in ("1.9", "1.10", "1.10rc1"):
        catalog.add(card(version=version, description=f"words{version.replace('.', '')}"))
    assert versions(catalog, "alpha") == ["1.10"]
    assert names(catalog, "words19") == []
    assert versions(catalog, "alpha", all_versions=True) == ["1.10", "1.10rc1", "1.9"]
    assert versions(catalog, "words19", all_versions=True) == ["1.9"]
    assert versions(catalog, "/alpha/") == ["1.10"]
    assert sorted(versions(catalog, "/alpha/", all_versions=True)) == ["1.10", "1.10rc1", "1.9"]


def test_the_version_before_is_the_latest_when_the_latest_is_removed(catalog: Catalog, card: Factory) -> None:
    for version in ("1.0", "2.0"):
        catalog.add(card(version=version))
    catalog.remove("alpha@2.0")
    assert versions(catalog, "alpha") == ["1.0"]


def test_what_was_removed_comes_last(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Fish", keywords=["swimmer"]))
    catalog.add(card(name="Sea", description="fish swim here"))
    catalog.remove("fish")
    hits = catalog.search("fish")
    assert [(hit.row.name, hit.row.gone) for hit in hits] == [("sea", False), ("fish", True)]
    assert [hit.row.gone for hit in catalog.search("kind:dataset")] == [False, True]
    assert names(catalog, "/fish/") == []
    assert names(catalog, "/swimmer/") == []


# Did you mean


def test_a_misspelt_word_gets_the_nearest(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Cosmology box", keywords=["galaxies", "mnist"]))
    assert catalog.search("cosmolgy").did_you_mean == ("cosmology",)
    assert "galaxies" in catalog.search("galxies").did_you_mean
    assert "cosmology" in catalog.search("cosmolgy-bxo").did_you_mean
    assert catalog.search("bxo").did_you_mean == ("box",)  # two letters changed places
    assert catalog.search("mnst").did_you_mean == ("mnist",)  # one letter is left out
    assert catalog.search("cosmology").did_you_mean == ()


def test_a_misspelt_facet_gets_the_nearest(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(scienceDomain=["cosmology", "high energy physics"]))
    assert catalog.search("domain:cosmolgy").did_you_mean == ("domain:cosmology",)
    (near,) = catalog.search('domain:"high energy phisics"').did_you_mean
    assert names(catalog, near) == ["alpha"]


# Regular expressions


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("cosmo", True),
        ("^cosmoflow$", True),
        ("flow$", True),
        ("^halo$", True),
        ("COSMO", True),
        ("flow.*halo", False),
        (r"flow\shalo", False),
        ("flow[^z]*halo", False),
        (r"flow\ssecond", False),
        ("flow[^z]*second", False),
        ("second.*void", False),
        ("^second name$", True),
        (r"\Acosmo", True),
        (r"halo\z", True),
        (r"\Aflow", False),
        ("^flow", False),
        ("cosmo|nothing", True),
        (r"\bvoid\b", True),
        ("é", True),
        ("", True),
        (r"\QcosmoFlow", True),
        (r"^\Qcosmo\E.low$", True),
        (r"\Qflow.", False),
        (r"\Qcosmo)", False),
    ],
)
def test_a_pattern_matches_one_name_or_keyword_at_a_time(
    catalog: Catalog, card: Factory, pattern: str, found: bool
) -> None:
    catalog.add(card("model", "CosmoFlow", alternateName="Second name", keywords=["halo", "big void", "Étoile"]))
    assert names(catalog, regex=pattern) == (["cosmoflow"] if found else [])


def test_a_pattern_may_hold_blanks_and_slashes_when_given_apart(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Alpha", keywords=["dark matter", "a/b"]))
    catalog.add(card(name="Beta", description="dark matter"))
    assert names(catalog, regex="dark m") == ["alpha"]
    assert names(catalog, regex="a/b") == ["alpha"]


def test_several_patterns_must_all_match(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Alpha net", keywords=["halo"]))
    catalog.add(card(name="Beta net"))
    assert names(catalog, "/net/ /halo/") == ["alpha-net"]


def test_a_pattern_respects_the_rest_of_the_search(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("model", "Box a", scienceDomain="optics"))
    catalog.add(card("dataset", "Box b", description="card latest"))
    assert names(catalog, "/box/ kind:model") == ["box-a"]
    assert names(catalog, "/box/ -domain:optics") == ["box-b"]
    assert names(catalog, "/box/ card") == ["box-b"]
    assert names(catalog, "/box/ nothing") == []


def test_a_pattern_that_is_slow_elsewhere_is_linear_here(catalog: Catalog, card: Factory) -> None:
    # Python's own engine would take 2^30 steps for each of these and never end.
    catalog.add(card(name="a" * 100 + "b", keywords=["a" * 30_000 + "!"]))
    assert names(catalog, "/(a+)+$/") == []
    assert names(catalog, "/(a|aa)+c/") == []


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)", "(", "[", ")(", "a**", r"\x{ffffff}"])
def test_what_the_linear_engine_cannot_do_is_refused_in_one_sentence(
    catalog: Catalog, card: Factory, pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    catalog.add(card())
    with pytest.raises(UsageError, match="is not a regular expression") as caught:
        catalog.search(regex=pattern)
    assert "\n" not in str(caught.value)
    assert "back-references" in str(caught.value.hint)
    assert capfd.readouterr() == ("", "")


def test_too_long_a_pattern_is_refused(catalog: Catalog) -> None:
    catalog.search(regex="a" * 200)
    with pytest.raises(UsageError, match="longer than"):
        catalog.search(regex="a" * 201)


# Facets


def test_the_values_of_a_facet_are_counted_by_asset(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Alpha", version="1.0", scienceDomain=["Optics", "alchemy"]))
    catalog.add(card(name="Alpha", version="2.0", scienceDomain=["optics", "acoustics"]))
    catalog.add(card(name="Beta", scienceDomain="optics"))
    catalog.add(card(name="Gone", scienceDomain=["optics", "alchemy"]))
    catalog.remove("gone")
    assert catalog.facets("domain") == {"optics": 2, "acoustics": 1}
    assert catalog.facets("science") == catalog.facets("domain")
    assert list(catalog.facets("domain")) == ["optics", "acoustics"]


def test_an_unknown_facet_is_refused_with_the_nearest(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="no facet named 'domian'") as caught:
        catalog.facets("domian")
    assert "domain" in str(caught.value.hint)


# Files are the truth


def fill(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("model", "Net", keywords=["halo"], trainedOn="alpha"))
    catalog.add(card(name="Alpha", version="1.0", description="galaxies"))
    catalog.add(card(name="Alpha", version="2.0", description="galaxies again"))
    catalog.add(card(name="Old", description="galaxies before"))
    catalog.remove("old", reason="wrong")


def answers(catalog: Catalog) -> list[Any]:
    texts = ("", "galaxies", "kind:model", "/net|alpha/", "halo", "galaxie*", "nonsense")
    found: list[Any] = [[hit.to_dict() for hit in catalog.search(text, all_versions=True)] for text in texts]
    found += [catalog.facets("kind"), catalog.resolve("alpha")[0].handle, catalog.catalogs()]
    return found


def test_a_deleted_index_is_rebuilt_with_the_same_answers(catalog: Catalog, card: Factory) -> None:
    fill(catalog, card)
    before = answers(catalog)
    catalog.index_path.unlink()
    assert answers(catalog) == before
    assert catalog.reindex().added == 4
    assert answers(catalog) == before


def test_the_index_follows_files_changed_by_hand(catalog: Catalog, card: Factory, tmp_path: Path) -> None:
    for name in ("Kept", "Changed", "Removed"):
        catalog.add(card(name=name, description="first"))
    stamp = catalog.local.path(Card(card(name="Kept")).handle).stat()
    changed = Card(card(name="Changed", description="second"))
    catalog.local.write(changed, replace=True)
    catalog.local.path(Card(card(name="Removed")).handle).unlink()
    catalog.local.write(Card(card(name="Added", description="second")))
    assert sorted(names(catalog)) == ["changed", "kept", "removed"]
    catalog.local.touch_generation()
    assert sorted(names(catalog)) == ["added", "changed", "kept"]
    assert sorted(names(catalog, "second")) == ["added", "changed"]
    assert names(catalog, "first") == ["kept"]
    assert names(catalog, "/removed/") == []
    assert catalog.local.path(Card(card(name="Kept")).handle).stat() == stamp


def test_unchanged_files_are_not_read_again(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Kept"))
    path = catalog.local.path(Card(card(name="Kept")).handle)
    status = path.stat()
    path.write_bytes(b"x" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    catalog.local.touch_generation()
    with catalog.open_index() as index:
        assert index.refresh(catalog.folders(), {}).damaged == []
    assert names(catalog) == ["kept"]


def test_a_damaged_card_is_reported_and_the_others_still_serve(catalog: Catalog, card: Factory) -> None:
    for name in ("Good", "Bad", "Worse", "Nameless"):
        catalog.add(card(name=name))
    catalog.local.path(Card(card(name="Bad")).handle).write_text('{"name": ')
    catalog.local.path(Card(card(name="Worse")).handle).write_text(json.dumps(["no", "card"]))
    catalog.local.path(Card(card(name="Nameless")).handle).write_text(json.dumps({"@type": "Nothing"}))
    catalog.local.touch_generation()
    assert names(catalog) == ["good"]
    assert names(catalog, "/bad|good/") == ["good"]
    report = catalog.reindex()
    assert report.added == 1
    assert sorted(path for path, _ in report.damaged) == [
        "local/dataset/bad/1.0.jsonld",
        "local/dataset/nameless/1.0.jsonld",
        "local/dataset/worse/1.0.jsonld",
    ]
    assert all(why for _, why in report.damaged)


@pytest.mark.parametrize(
    "more",
    [
        {"seed": 2**60},
        {"version": "9" * 5000},
        {"deep": json.loads("[" * 300 + "]" * 300)},
        {"deepest": json.loads("[" * 900 + "]" * 900)},
        {"keywords": [None, {}, [], 5, {"@value": "x"}]},
        {"creator": {"@list": []}, "distribution": "none", "hasPart": [[]], "matchSpec": [], "signature": 3},
        {"tombstone": "not an object"},
        {"name": ""},
        {"name": {"a": 1}},
        {"description": "word " * 100_000},
    ],
    ids=lambda value: next(iter(value)),
)
def test_a_strange_card_harms_no_other(catalog: Catalog, card: Factory, more: dict[str, Any]) -> None:
    catalog.add(card(name="Good"))
    strange = Card({**card(name="Strange"), **more})
    path = catalog.local.cards_root / "dataset" / "strange" / "1.0.jsonld"
    path.parent.mkdir(parents=True)
    path.write_text(strange.to_json())
    catalog.local.touch_generation()
    assert "good" in names(catalog)
    assert "good" in names(catalog, all_versions=True)
    assert "good" in names(catalog, "/good/")
    assert catalog.reindex().added + len(catalog.reindex().damaged) == 2


def test_a_card_in_the_wrong_place_is_reported_with_its_right_one(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Good"))
    stray = catalog.local.cards_root / "stray.jsonld"
    stray.write_text(Card(card("model", "Stray")).to_json())
    report = catalog.reindex()
    ((path, why),) = report.damaged
    assert path == "local/stray.jsonld"
    assert str(catalog.local.cards_root / "model" / "stray" / "1.0.jsonld") in why
    assert names(catalog) == ["good"]


# A damaged or foreign index file


@pytest.mark.parametrize("content", [b"", b"no database at all" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_index_is_replaced(catalog: Catalog, card: Factory, content: bytes) -> None:
    catalog.add(card())
    catalog.index_path.write_bytes(content)
    assert names(catalog) == ["alpha"]


def test_an_index_of_another_version_is_replaced(catalog: Catalog, card: Factory) -> None:
    catalog.add(card())
    with sqlite3.connect(catalog.index_path) as connection:
        connection.execute("UPDATE meta SET value = '0' WHERE key = 'schema'")
    connection.close()
    assert names(catalog) == ["alpha"]


def test_an_index_damaged_inside_is_replaced_at_the_next_use(catalog: Catalog, card: Factory) -> None:
    for number in range(60):
        catalog.add(card(name=f"Alpha {number}", description="stars " * 50))
    data = bytearray(catalog.index_path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    for start in range(4 * page, len(data), page):
        data[start : start + page] = b"\xa5" * page
    catalog.index_path.write_bytes(bytes(data))
    try:
        found = len(catalog.search("stars", limit=100))
    except SystemFailure as error:
        assert "damaged" in str(error)
        assert "again" in str(error.hint)
        found = len(catalog.search("stars", limit=100))
    assert found == 60


def test_the_journal_of_a_killed_process_is_not_played_into_a_new_index(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="Alpha"))
    journal = catalog.index_path.with_name("index.sqlite-journal")
    with _killed_in_a_transaction(catalog.index_path):
        assert journal.exists()
        old = journal.read_bytes()
    catalog.reindex()
    assert not journal.exists() or journal.read_bytes() != old
    assert names(catalog) == ["alpha"]
    with sqlite3.connect(catalog.index_path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


class _killed_in_a_transaction:
    """A process that wrote pages of the index and was killed before it could commit."""

    def __init__(self, path: Path) -> None:
        script = f"""
            import os, signal, sqlite3
            db = sqlite3.connect({str(path)!r}, isolation_level=None)
            db.execute("PRAGMA cache_size = 1")
            db.execute("BEGIN IMMEDIATE")
            for number in range(2000):
                db.execute("INSERT INTO word(word) VALUES (?)", ("x" * 500 + str(number),))
            os.kill(os.getpid(), signal.SIGKILL)
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_a_busy_index_is_not_taken_for_a_damaged_one(
    catalog: Catalog, card: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.add(card())
    holder = sqlite3.connect(catalog.index_path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **how: connect(*args, **{**how, "timeout": 0.05}))
    try:
        with pytest.raises(SystemFailure, match="in use by another process"):
            catalog.search("alpha")
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    assert names(catalog, "alpha") == ["alpha"]


@pytest.mark.filterwarnings("error")
def test_a_busy_index_leaves_no_open_file(catalog: Catalog, card: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog.add(card())
    connect = sqlite3.connect
    made: list[sqlite3.Connection] = []

    def remembered(*args: Any, **how: Any) -> sqlite3.Connection:
        made.append(connect(*args, **{**how, "timeout": 0.05}))
        return made[-1]

    with closing(connect(catalog.index_path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite3, "connect", remembered)
        with pytest.raises(SystemFailure, match="in use by another process"):
            Index.open(catalog.index_path)
    assert made
    for connection in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


# Where nothing can be written


def test_a_home_that_cannot_be_made_still_searches(tmp_path: Path, builtin: CatalogFolder, card: Factory) -> None:
    builtin.write(Card(card("model", "Shipped")))
    (tmp_path / "file").write_text("not a folder")
    catalog = Catalog(tmp_path / "file" / "home", builtin=builtin)
    assert names(catalog, "shipped") == ["shipped"]
    assert catalog.show("shipped").title == "Shipped"
    assert catalog.catalogs()[-1]["cards"] == 1
    with pytest.raises(SystemFailure, match=r"cannot (be )?writ"):
        catalog.add(card())


_READ = """
    import json, sys
    from pathlib import Path
    from fairmile.base.errors import FairmileError
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.folder import CatalogFolder
    catalog = Catalog(Path(sys.argv[1]), builtin=CatalogFolder("builtin", Path("/nowhere")))
    found = {"names": [hit.row.name for hit in catalog.search("alpha")], "shown": catalog.show("alpha").title}
    found["regex"] = [hit.row.name for hit in catalog.search("/alpha/")]
    found["versions"] = [row.version for row in catalog.versions("alpha")]
    try:
        catalog.update("alpha", set={"description": "changed"})
        found["refused"] = ""
    except FairmileError as error:
        found["refused"] = str(error)
    print(json.dumps(found))
"""


@pytest.mark.parametrize("state", ["fresh", "missing", "damaged", "old"])
def test_a_read_only_home_still_searches(
    catalog: Catalog, card: Factory, home: Path, without_rights: Callable[..., str], state: str
) -> None:
    catalog.add(card())
    if state == "missing":
        catalog.index_path.unlink()
    elif state == "damaged":
        catalog.index_path.write_bytes(b"rubbish" * 1000)
    elif state == "old":
        with sqlite3.connect(catalog.index_path) as connection:
            connection.execute("UPDATE meta SET value = '0' WHERE key = 'schema'")
        connection.close()
    places = [home, *home.rglob("*")]
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found = json.loads(without_rights(_READ, home))
    finally:
        for path in places:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert found.pop("refused")
    assert found == {"names": ["alpha"], "shown": "Alpha", "regex": ["alpha"], "versions": ["1.0"]}
    assert names(catalog, "alpha") == ["alpha"]
    assert "description" not in catalog.get("alpha")


def test_a_catalog_that_cannot_be_read_is_reported_and_the_others_still_serve(
    home: Path, builtin: CatalogFolder, card: Factory, without_rights: Callable[..., str]
) -> None:
    catalog = Catalog(home, sources={"there": "/nowhere"}, builtin=builtin)
    catalog.add(card())
    closed = CatalogFolder("there", catalog.home / "sources" / "there").write(Card(card("model", "Closed"))).parent
    script = """
        import json, sys
        from pathlib import Path
        from fairmile.catalog.catalog import Catalog
        from fairmile.catalog.folder import CatalogFolder
        nothing = CatalogFolder("builtin", Path("/nowhere"))
        catalog = Catalog(Path(sys.argv[1]), sources={"there": "/nowhere"}, builtin=nothing)
        print(json.dumps([[hit.row.name for hit in catalog.search()], catalog.reindex().damaged]))
    """
    catalog.index_path.unlink()
    home.chmod(0o777)
    closed.chmod(0)
    try:
        found, damaged = json.loads(without_rights(script, home))
    finally:
        closed.chmod(0o755)
    assert found == ["alpha"]
    assert damaged == [["there", f"{closed} cannot be read: Permission denied"]]


_LOOK = """
    import json, resource, sys
    from pathlib import Path
    from fairmile.catalog import index as module
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.folder import CatalogFolder
    home, few, room = sys.argv[1:]
    module._FEW_CARDS = int(few)
    if room:  # as a full disk: no file can grow beyond this
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), int(room)))
    catalog = Catalog(Path(home), builtin=CatalogFolder("builtin", Path("/nowhere")))
    with catalog.open_index() as index:
        outdated = index.outdated
    print(json.dumps([sorted(hit.row.name for hit in catalog.search(limit=100)), outdated]))
"""


def _leave_stale(catalog: Catalog, card: Factory) -> None:
    """Add a card that the index knows and one that it does not."""
    catalog.add(card(name="Before"))
    catalog.local.touch_generation()
    for number in range(30):
        catalog.local.write(Card(card(name=f"After {number}", description=f"stars {number} " * 500)))


@pytest.mark.parametrize("few", [2000, 5])
def test_a_stale_index_in_a_read_only_home_is_made_anew_in_memory_or_says_that_it_is_outdated(
    catalog: Catalog, card: Factory, home: Path, without_rights: Callable[..., str], few: int
) -> None:
    _leave_stale(catalog, card)
    places = [home, *home.rglob("*")]
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found, outdated = json.loads(without_rights(_LOOK, home, few, ""))
    finally:
        for path in places:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert (len(found), outdated) == ((31, False) if few == 2000 else (1, True))
    with catalog.open_index() as index:
        assert (index.count()["local"], index.outdated) == (31, False)


@pytest.mark.parametrize("few", [2000, 5])
@pytest.mark.parametrize("room", ["no lock", "a lock"])
def test_a_stale_index_on_a_full_disk_still_answers(
    catalog: Catalog, card: Factory, home: Path, few: int, room: str
) -> None:
    _leave_stale(catalog, card)
    limit = 0 if room == "no lock" else catalog.index_path.stat().st_size
    command = [sys.executable, "-c", textwrap.dedent(_LOOK), str(home), str(few), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, outdated = json.loads(done.stdout)
    assert (len(found), outdated) == ((31, False) if few == 2000 else (1, True))
    assert len(names(catalog, limit=100)) == 31


@pytest.mark.parametrize("limit", [0, 8192])
def test_an_index_that_a_full_disk_has_no_room_for_is_made_in_memory(
    catalog: Catalog, card: Factory, home: Path, limit: int
) -> None:
    _leave_stale(catalog, card)
    catalog.index_path.unlink()
    command = [sys.executable, "-c", textwrap.dedent(_LOOK), str(home), "5", str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, outdated = json.loads(done.stdout)
    assert (len(found), outdated) == (31, False)
    assert [path.name for path in home.iterdir() if path.name.startswith(".index")] == []


# Several projects that share a home


@pytest.fixture
def projects(home: Path, builtin: CatalogFolder, card: Factory) -> tuple[Catalog, Catalog]:
    """Two projects with a source each, which the index of their home both knows."""
    one = Catalog(home, sources={"one": "/nowhere"}, builtin=builtin)
    two = Catalog(home, sources={"two": "/nowhere"}, builtin=builtin)
    one.add(card(name="Common", keywords=["shared"]))
    for catalog, name in ((one, "one"), (two, "two")):
        folder = CatalogFolder(name, catalog.home / "sources" / name)
        folder.touch_generation()
        for number in (1, 2):
            folder.write(
                Card(
                    card(
                        "model",
                        "Mesh",
                        f"{number}.0",
                        description=f"from {name}",
                        keywords=[f"word{name}"],
                        scienceDomain=f"science {name}",
                        trainedOn={"@id": "https://example.net/data"},
                    )
                )
            )
        assert len(catalog.search()) == 2
    return one, two


def test_projects_with_other_sources_do_not_undo_the_index_of_each_other(projects: tuple[Catalog, Catalog]) -> None:
    before = projects[0].index_path.read_bytes()
    for catalog in (*projects, *projects):
        assert len(catalog.search()) == 2
        with catalog.open_index() as index:
            assert not index.stale(catalog.folders())
    assert projects[0].index_path.read_bytes() == before


def test_a_source_that_was_never_synced_does_not_make_projects_refresh_in_turn(
    home: Path, builtin: CatalogFolder, card: Factory
) -> None:
    one = Catalog(home, sources={"one": "/nowhere"}, builtin=builtin)
    two = Catalog(home, sources={"two": "/nowhere"}, builtin=builtin)
    one.add(card())
    assert names(one) == names(two) == ["alpha"]
    before = one.index_path.read_bytes()
    assert names(one) == names(two) == ["alpha"]
    assert one.index_path.read_bytes() == before


@pytest.mark.parametrize(("mine", "other"), [("one", "two"), ("two", "one")])
def test_a_project_sees_nothing_of_the_sources_of_another(
    projects: tuple[Catalog, Catalog], mine: str, other: str
) -> None:
    catalog = projects[0] if mine == "one" else projects[1]
    assert [hit.handle for hit in catalog.search("mesh")] == [f"{mine}/model/mesh@2.0"]
    assert [hit.also for hit in catalog.search("mesh")] == [()]
    for text in (f"word{other}", f"/word{other}/", f"catalog:{other}"):
        assert names(catalog, text) == []
    assert names(catalog, f"/word{mine}/") == names(catalog, "/mesh/") == ["mesh"]
    assert versions(catalog, "mesh", all_versions=True) == ["2.0", "1.0"]
    assert catalog.facets("domain") == {f"science {mine}": 1}
    for text in (f"wordx{other}", f"wordx{mine}"):
        assert catalog.search(text).did_you_mean == (f"word{mine}",)
    assert [row.catalog for row in catalog.versions("mesh")] == [mine, mine]
    with catalog.open_index() as index:
        rows = index.aliased("https://example.net/model/mesh/1.0")
        assert [row.catalog for row in rows] == [mine]
        assert {row.catalog for _, row in index.linking_to(["https://example.net/data"])} == {mine}
        assert {row.catalog for each in index.twins(rows).values() for row in each} == {mine}
        assert index.count() == {"local": 1, mine: 2}
        assert index.clashes(["one", "two"]) == {}
        assert index.near_values("domain", f"science {other}s") == [f"science {mine}"]


def test_cards_of_another_project_take_no_place_among_the_first_matches(
    home: Path, builtin: CatalogFolder, card: Factory
) -> None:
    many = Catalog(home, sources={"many": "/nowhere"}, builtin=builtin)
    for number in range(400):
        CatalogFolder("many", many.home / "sources" / "many").write(Card(card(name=f"Star {number}", keywords=["sun"])))
    assert len(many.search("star", limit=500)) == 400
    few = Catalog(home, builtin=builtin)
    few.add(card(name="Star of mine", keywords=["sun"]))
    for text in ("star", "sun", "", "/star/", "/sun/"):
        assert names(few, text, limit=1) == ["star-of-mine"]
    assert len(many.search("star", limit=500)) == 401


def test_a_source_whose_folder_is_gone_is_forgotten(projects: tuple[Catalog, Catalog]) -> None:
    one, two = projects
    shutil.rmtree(CatalogFolder("two", two.home / "sources" / "two").root)
    assert len(one.search("mesh")) == 1
    with closing(sqlite3.connect(one.index_path)) as connection:
        assert connection.execute("SELECT DISTINCT catalog FROM card ORDER BY 1").fetchall() == [("local",), ("one",)]
    assert names(two) == ["common"]


# Several processes


_ADD = """
    import sys
    from pathlib import Path
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.folder import CatalogFolder
    worker, home = sys.argv[1:]
    catalog = Catalog(Path(home), builtin=CatalogFolder("builtin", Path("/nowhere")))
    for number in range(25):
        body = {"@context": "x", "@type": "Dataset", "name": f"Card {worker} {number}", "version": "1.0"}
        assert [each.status for each in catalog.add(body)] == ["added"]
        if number % 5 == 0:
            assert catalog.search(f"card {worker}")
    catalog.add({"@context": "x", "@type": "Dataset", "name": "The same", "version": "1.0"})
"""
_CHANGE = """
    import sys
    from pathlib import Path
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.folder import CatalogFolder
    worker, home = sys.argv[1:]
    catalog = Catalog(Path(home), builtin=CatalogFolder("builtin", Path("/nowhere")))
    for number in range(5):
        catalog.update("alpha", add={"keywords": f"word{worker}x{number}"})
"""


@pytest.mark.thorough
def test_several_processes_add_at_once(catalog: Catalog, home: Path, together: Callable[..., None]) -> None:
    together(_ADD, home)
    assert len(catalog.search("card", limit=1000)) == 100
    assert len(catalog.search("", limit=1000)) == 101
    before = sorted(names(catalog, limit=1000))
    assert catalog.reindex().damaged == []
    assert sorted(names(catalog, limit=1000)) == before


@pytest.mark.thorough
def test_no_change_is_lost_when_several_processes_change_one_card(
    catalog: Catalog, home: Path, card: Factory, together: Callable[..., None]
) -> None:
    catalog.add(card())
    together(_CHANGE, home, workers=3)
    assert len(catalog.get("alpha")["keywords"]) == 15
    assert len(catalog.search("word0* word1* word2*")) == 1


def test_what_a_killed_process_wrote_is_found_at_the_next_use(catalog: Catalog, card: Factory, home: Path) -> None:
    catalog.add(card(name="Before"))
    script = """
        import os, signal, sys
        from pathlib import Path
        from fairmile.catalog.catalog import Catalog
        from fairmile.catalog.folder import CatalogFolder
        from fairmile.catalog.index import Index
        Index.put = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        catalog = Catalog(Path(sys.argv[1]), builtin=CatalogFolder("builtin", Path("/nowhere")))
        catalog.add({"@context": "x", "@type": "Dataset", "name": "After", "version": "1.0"})
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    catalog.add(card(name="Later"))
    assert sorted(names(catalog)) == ["after", "before", "later"]


def test_what_another_process_writes_just_before_a_change_is_not_missed(
    catalog: Catalog, card: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.add(card(name="Before"))
    real = Index.held

    def held_after_another(index: Index) -> Any:
        # The other process is killed when its card is written and not yet in the index.
        monkeypatch.setattr(Index, "held", real)
        catalog.local.touch_generation()
        catalog.local.write(Card(card(name="Other")))
        return real(index)

    monkeypatch.setattr(Index, "held", held_after_another)
    catalog.add(card(name="Mine"))
    assert sorted(names(catalog)) == ["before", "mine", "other"]


def test_links_are_looked_up_for_any_number_of_targets(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("model", "Net", trainedOn={"@id": "https://example.net/d"}))
    with catalog.open_index() as index:
        targets = [f"https://example.net/{number}" for number in range(300_000)]
        assert index.linking_to(targets) == []
        ((relation, row),) = index.linking_to([*targets, "https://example.net/d"])
        assert (relation, row.name) == ("trainedOn", "net")
        assert index.linking_to(["https://example.net/d"], "testedOn") == []


def test_an_index_in_memory_is_empty() -> None:
    with Index.in_memory() as index:
        assert index.count() == {}
        assert index.path is None


def test_where_whole_words_leave_room_words_that_begin_so_follow(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(name="cosmoflow"))
    catalog.add(card(name="cosmo"))
    assert names(catalog, "cosmo") == ["cosmo", "cosmoflow"]
    assert names(catalog, "co") == []
