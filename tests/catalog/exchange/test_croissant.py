"""Croissant in and out: every version is read, every trap becomes a warning, and its validator accepts our exports."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st
from mutations import UNKNOWN, VALUES, add_unknown_key, anything, replace_a_value, values_under

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import croissant
from fairmile.catalog.exchange.draft import Document, Draft, finish
from fairmile.catalog.profile import check_body

SAMPLES = Path(__file__).parent / "samples" / "croissant"
PATHS = sorted(SAMPLES.iterdir())
SHA256 = "8bf2edfa0f7d4acf4ac17585f05ab8f9ab8ad05f6b0dde24f7e555d5a2704c68"


def document(body: Any, name: str = "croissant.json") -> Document:
    return Document(name, json.dumps(body).encode())


def sample(name: str) -> Draft:
    [draft] = croissant.read(Document.from_file(SAMPLES / name))
    return draft


def card_of(source: Document) -> Card:
    [draft] = croissant.read(source)
    return finish(draft, source, "croissant")


def a_description(**more: Any) -> dict[str, Any]:
    context = {
        "@vocab": "https://schema.org/",
        "cr": "http://mlcommons.org/croissant/",
        "dct": "http://purl.org/dc/terms/",
    }
    head = {"@context": context, "@type": "Dataset", "dct:conformsTo": "http://mlcommons.org/croissant/1.1"}
    return {**head, "name": "d", **more}


def messages(draft: Draft, field: str) -> str:
    return "; ".join(entry["message"] for entry in draft.warnings if entry["field"] == field)


# Recognising


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_sample_is_recognised_and_gives_a_card_that_passes_its_check(path: Path) -> None:
    source = Document.from_file(path)
    assert croissant.recognises(source)
    assert [problem for problem in check_body(card_of(source).body) if problem.severity == "error"] == []


@pytest.mark.parametrize("type", ["sc:Dataset", "Dataset", "https://schema.org/Dataset", "http://schema.org/Dataset"])
def test_a_dataset_is_recognised_in_every_spelling_of_its_type(type: str) -> None:
    body = {**a_description(), "@type": type}
    assert croissant.recognises(document(body))
    assert croissant.read(document(body))[0].body["name"] == "d"


@pytest.mark.parametrize(
    "body",
    [
        {"@context": "https://schema.org/", "@type": "Dataset", "name": "plain schema.org"},
        {"@type": "sc:Person", "name": "nobody"},
        {"@graph": []},
        [],
        "text",
        None,
    ],
)
def test_what_is_not_croissant_is_not_recognised(body: Any) -> None:
    assert not croissant.recognises(document(body))


def test_a_file_object_is_enough_to_be_croissant() -> None:
    body = {
        "@context": {"@vocab": "https://schema.org/"},
        "@type": "Dataset",
        "distribution": {"@type": "sc:FileObject"},
    }
    assert croissant.recognises(document(body))


def test_broken_json_is_not_recognised_and_is_refused_with_its_line() -> None:
    broken = Document("x.json", b'{"@type": "Dataset",\n "name": }')
    assert not croissant.recognises(broken)
    with pytest.raises(InvalidDocument, match=r"x\.json:2"):
        croissant.read(broken)


@pytest.mark.parametrize("body", [[], "text", 3, None, {"@type": "sc:Person"}, {"name": "no type"}])
def test_what_describes_no_dataset_is_refused(body: Any) -> None:
    with pytest.raises(InvalidDocument, match=r"croissant\.json"):
        croissant.read(document(body))


# Reading


def test_names_of_0_8_become_ids_that_the_parts_use_to_name_each_other() -> None:
    body = sample("v0_8_names_as_ids.json").body
    archive, tables = body["distribution"]
    assert (archive["@id"], archive["@type"], archive["contentSize"]) == ("levels.zip", "FileObject", "36809 B")
    assert (tables["@type"], tables["containedIn"], tables["includes"]) == ("FileSet", {"@id": "levels.zip"}, "*.csv")
    harbours, levels = body["recordSet"]
    assert (harbours["@id"], harbours["key"]) == ("harbours", {"@id": "harbours/code"})
    assert harbours["data"] == [{"code": "A", "label": "North"}, {"code": "B", "label": "South"}]
    harbour, metres = levels["field"]
    assert harbour["references"] == {"field": {"@id": "harbours/code"}}
    assert metres["@type"] == "Field"
    assert metres["source"] == {
        "fileSet": {"@id": "tables"},
        "extract": {"column": "level"},
        "transform": {"regex": "([0-9.]+) m"},
    }
    assert body["citation"] == "A. Gauge: Three harbours, 2019"


def test_every_spelling_of_a_name_is_the_same_name() -> None:
    draft = sample("v1_0_every_prefix.json")
    body = draft.body
    assert body["name"] == "prefixed"
    assert body["description"] == "Every name is spelled in full."
    assert body["license"] == "https://spdx.org/licenses/MIT"
    assert body["scienceDomain"] == "hydrology"
    assert body["citation"] == "A. Nonymous 2024"
    assert body["fx:ownWord"] == "kept"
    [file] = body["distribution"]
    assert file["sha256"] == "6b51d431df5d7f141cbececcf79edf3dd861c3b4069f0b11661a3eefacbba918"
    assert (file["contentUrl"], file["contentSize"]) == ("data/one.csv", "12 B")
    assert body["recordSet"]["field"]["source"] == {"fileObject": {"@id": "one.csv"}, "extract": {"column": "a"}}
    assert body["recordSet"]["field"]["dataType"] == "sc:Integer"


def test_what_only_a_catalog_may_say_of_a_card_is_not_taken_from_a_document() -> None:
    draft = sample("v1_0_every_prefix.json")
    assert "trustLevel" not in draft.body
    assert draft.foreign["fx:trustLevel"] == "high"


def test_a_url_in_the_sha256_field_becomes_a_warning() -> None:
    draft = sample("v1_0_traps.json")
    assert "sha256" not in draft.body["distribution"][0]
    assert "is not a sha256 checksum" in messages(draft, "distribution[0].sha256")
    assert draft.foreign["checksums"]["repo"] == {"sha256": "https://github.com/mlcommons/croissant/issues/80"}


def test_the_word_sha256_in_the_sha256_field_becomes_a_warning() -> None:
    draft = sample("v1_0_traps.json")
    assert "sha256" not in draft.body["distribution"][1]
    assert "'sha256' is not a sha256 checksum" in messages(draft, "distribution[1].sha256")


def test_an_md5_in_base64_is_read_as_hex_with_a_warning() -> None:
    draft = sample("v1_0_traps.json")
    assert draft.body["distribution"][1]["md5"] == "d41d8cd98f00b204e9800998ecf8427e"
    assert "read as hex" in messages(draft, "distribution[1].md5")


def test_sizes_as_people_write_them_become_bytes_or_a_warning() -> None:
    draft = sample("v1_0_traps.json")
    _, annotations, report, blank, *_ = draft.body["distribution"]
    assert annotations["contentSize"] == f"{round(97.73 * 1024**4)} B"
    assert report["contentSize"] == "1000000 B"
    assert "'90 pages'" in messages(draft, "distribution[2].contentSize")
    assert "contentSize" not in blank
    assert "not a size" in messages(draft, "distribution[3].contentSize")


def test_an_empty_licence_and_a_missing_name_become_warnings() -> None:
    source = Document.from_file(SAMPLES / "v1_0_traps.json")
    card = card_of(source)
    fields = [entry["field"] for entry in card.warnings]
    assert "license" in fields and "name" in fields
    assert card.title == "v1_0_traps"
    assert card.licence is None


def test_values_that_are_not_what_they_should_be_are_kept_apart_with_a_warning() -> None:
    draft = sample("v1_0_traps.json")
    for key, value in (("url", "not an address"), ("datePublished", "last spring"), ("isAccessibleForFree", "yes")):
        assert key not in draft.body
        assert draft.foreign[key] == value
        assert repr(value) in messages(draft, key)


def test_rai_stays_on_the_card_and_unknown_keys_are_kept_verbatim() -> None:
    draft = sample("v1_0_traps.json")
    assert draft.body["rai:dataCollection"] == "Caught by hand."
    assert draft.body["rai:dataBiases"] == ["small", "wet"]
    assert draft.foreign["lab:bench"] == {"@type": "lab:Bench", "lab:number": 7}
    assert draft.foreign["audience"] == "everyone"
    assert draft.foreign["emptyThing"] is None
    assert draft.foreign["@context"]["lab"] == "https://lab.example/terms#"


def test_a_bare_address_is_a_file_and_what_is_none_is_kept() -> None:
    draft = sample("v1_0_traps.json")
    assert draft.body["distribution"][-1]["contentUrl"] == "https://hub.example/readme.txt"
    assert draft.foreign["distribution"] == 17


def test_several_languages_give_one_text_and_are_kept() -> None:
    draft = sample("v1_1_rich.json")
    assert draft.body["name"] == "Ocean eddies"
    assert draft.foreign["name"] == {"en": "Ocean eddies", "fr": "Tourbillons"}


def test_a_licence_node_is_read_by_its_address() -> None:
    card = card_of(Document.from_file(SAMPLES / "v1_1_rich.json"))
    assert card.licence == "CC-BY-4.0"
    assert card["foreign"]["croissant"]["license"]["name"] == "CC BY"


def test_the_citation_comes_first_and_others_stay() -> None:
    citation = sample("v1_1_rich.json").body["citation"]
    assert citation[0] == "Carberry: Eddies, 2025"
    assert citation[1]["name"] == "On eddies"


def test_provenance_usage_and_creators_of_1_1_are_read() -> None:
    body = sample("v1_1_rich.json").body
    assert body["wasDerivedFrom"] == {"@id": "https://data.example/altimetry"}
    assert body["usageInfo"] == {"@type": "odrl:Offer", "odrl:permission": "odrl:use"}
    assert [each["@type"] for each in body["creator"]] == ["Person", "Organization"]
    assert body["version"] == "2"


def test_a_foreign_key_named_like_one_of_ours_is_kept_beside_it() -> None:
    bad = {"@type": "cr:FileObject", "@id": "a", "sha256": "none", "contentSize": "much", "contentUrl": ""}
    body = a_description(sizes="big", checksums=["x"], files=1, distribution=[bad])
    foreign = croissant.read(document(body))[0].foreign
    assert foreign["checksums"] == {"a": {"sha256": "none"}}
    assert foreign["checksums (2)"] == ["x"]
    assert foreign["sizes (2)"] == "big"
    assert foreign["files (2)"] == 1


# Writing


def a_card(**more: Any) -> Card:
    body = {
        "@context": "https://w3id.org/fairmile/card/1.0/context",
        "conformsTo": ["https://w3id.org/fairmile/card/1.0", "http://mlcommons.org/croissant/1.1"],
        "@id": "urn:fairmile:dataset:tides",
        "@type": "Dataset",
        "name": "Tides",
        "version": "2.0.0",
        "description": "Water levels.",
        "license": "https://spdx.org/licenses/CC-BY-4.0",
        "keywords": ["water", "harbour"],
        "scienceDomain": "oceanography",
        "creator": [{"@type": "Organization", "@id": "https://ror.org/05v3mvq14", "name": "NERSC"}],
        "datePublished": "2019-05-01",
        "url": "https://tides.example/",
        "citation": "@misc{tides}",
        "isAccessibleForFree": True,
        "distribution": [a_file()],
    }
    return Card({**body, **more})


def a_file(**more: Any) -> dict[str, Any]:
    entry = {
        "@type": "FileObject",
        "@id": "main.csv",
        "name": "main.csv",
        "contentUrl": "https://tides.example/main.csv",
        "contentSize": "120 B",
        "encodingFormat": "text/csv",
        "sha256": SHA256,
    }
    return {key: value for key, value in {**entry, **more}.items() if value is not None}


def a_record_set(**more: Any) -> dict[str, Any]:
    source = {"fileObject": {"@id": "main.csv"}, "extract": {"column": "level"}}
    field = {"@type": "Field", "@id": "rows/level", "name": "level", "dataType": "sc:Float", "source": source}
    return {"@type": "RecordSet", "@id": "rows", "name": "rows", "field": [{**field, **more}]}


FULL = {
    "sameAs": ["https://doi.org/10.1234/tides"],
    "identifier": ["doi:10.1234/tides", {"@type": "PropertyValue", "propertyID": "local", "value": "7"}],
    "publisher": {"@type": "Organization", "name": "Harbour office"},
    "maintainer": {"@type": "Person", "name": "Ann", "email": "ann@tides.example"},
    "contentDigest": "ni:///sha-256;i_Lt-g99Ss9KwXWF8Fq4-auK0F9rDd4k9-VV1aJwTGg",
    "variableMeasured": [{"@type": "PropertyValue", "name": "level", "unitText": "m"}],
    "temporalCoverage": "2001/2019",
    "conditionsOfAccess": "none",
    "accessRights": "public",
    "usageInfo": {"@type": "CreativeWork", "url": "https://tides.example/use"},
    "wasDerivedFrom": ["urn:fairmile:dataset:raw"],
    "isLiveDataset": False,
    "funding": {"@type": "Grant", "name": "Sea grant", "funder": {"@type": "Organization", "name": "Sea fund"}},
    "project": {"@type": "Project", "name": "Tides of the bay"},
    "tags": {"anything": [1, None, {"deep": True}]},
    "hpc:custom": "with a prefix",
    "rai:dataBiases": ["small"],
    "odd key": {"no": ["vocabulary", None]},
    "mlTask": ["regression"],
    "licenseRaw": "cc-by-4.0",
    "recordSet": [a_record_set()],
}
CARDS = {
    "plain": a_card(),
    "full": a_card(**FULL),
    "no files": Card({key: value for key, value in a_card().items() if key != "distribution"}),
    "no checksum": a_card(distribution=[a_file(sha256=None)], recordSet=[a_record_set()]),
    "no address": a_card(distribution=[a_file(contentUrl=None)]),
    "nothing known of the file": a_card(distribution=[{"@type": "FileObject", "@id": "x", "name": "x"}]),
    "only md5": a_card(distribution=[a_file(sha256=None, md5="117fe38c073b34d79950be871f7e2c0c")]),
    "only sha512": a_card(distribution=[a_file(sha256=None, sha512="a" * 128)]),
    "a checksum that is none": a_card(distribution=[a_file(sha256="sha256")]),
    "no media type": a_card(distribution=[a_file(encodingFormat=None)]),
    "several media types": a_card(distribution=[a_file(encodingFormat=["text/csv", "text/plain"])]),
    "a size in numbers": a_card(distribution=[a_file(contentSize=120)]),
    "a size that is rounded": a_card(distribution=[a_file(contentSize="6.3 GB")]),
    "blanks in an id": a_card(distribution=[a_file(**{"@id": "my file.csv"})]),
    "files of one name": a_card(distribution=[a_file(), a_file(contentUrl="https://tides.example/2/main.csv")]),
    "file set": a_card(
        distribution=[
            a_file(),
            {"@type": "FileSet", "@id": "set", "name": "set", "containedIn": {"@id": "main.csv"}, "includes": "*"},
        ]
    ),
    "creators untyped": a_card(creator=["Ann", {"@type": "Person", "name": "Bob"}, {"name": "Eve"}]),
    "creator alone": a_card(creator="Ann"),
    "citations": a_card(citation=["first", {"@type": "ScholarlyArticle", "name": "second"}]),
    "article": a_card(citation={"@type": "ScholarlyArticle", "@id": "https://doi.org/10.1234/a", "name": "An article"}),
    "dates that are none": a_card(datePublished="spring", dateModified="2020"),
    "licences": a_card(license=["https://spdx.org/licenses/MIT", "own terms"]),
    "keyword nodes": a_card(keywords=["a", {"@type": "DefinedTerm", "name": "b"}]),
    "field without source": a_card(recordSet=[a_record_set(source=None)]),
    "field without type": a_card(recordSet=[a_record_set(dataType=None)]),
    "source nowhere": a_card(recordSet=[a_record_set(source={"fileObject": {"@id": "gone"}})]),
    "ids that clash": a_card(recordSet=[{**a_record_set(), "@id": "main.csv"}]),
    "inline data": a_card(
        recordSet=[
            {
                "@type": "RecordSet",
                "@id": "split",
                "field": [{"@type": "Field", "@id": "split/name", "name": "name", "dataType": "sc:Text"}],
                "data": [{"name": "train"}, {"name": "test"}],
            }
        ]
    ),
    "imported": card_of(Document.from_file(SAMPLES / "v1_0_traps.json")),
    "imported old": card_of(Document.from_file(SAMPLES / "v0_8_names_as_ids.json")),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*CARDS, *(path.name for path in PATHS)])
def test_the_validator_accepts_every_export(name: str, tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    card = CARDS[name] if name in CARDS else card_of(Document.from_file(SAMPLES / name))
    path = tmp_path / "croissant.json"
    path.write_text(croissant.write(card)["croissant.json"], encoding="utf-8")
    dataset = mlcroissant.Dataset(jsonld=str(path))
    assert dataset.metadata.issues.errors == set()
    assert dataset.metadata.name == card.title


@pytest.mark.filterwarnings("ignore")
def test_the_validator_would_refuse_a_file_without_checksum(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    body = json.loads(croissant.write(a_card())["croissant.json"])
    del body["distribution"][0]["sha256"]
    with pytest.raises(mlcroissant.ValidationError, match="md5"):
        mlcroissant.Dataset(jsonld=body)


@for_each("name", CARDS)
def test_reading_an_export_gives_the_card_again(name: str) -> None:
    card = CARDS[name]
    again = card_of(Document("croissant.json", croissant.write(card)["croissant.json"].encode()))
    # Of these an import says its own: the profiles, where the card came from, and the digest of its files.
    own = {"conformsTo", "sourceDocument", "contentDigest", "warnings", "foreign"}
    if name in ("dates that are none", "keyword nodes", "a checksum that is none"):
        own |= {"datePublished", "keywords", "licenseRaw"}
    if name == "licences":
        own |= {"licenseRaw", "license"}
    assert {key: value for key, value in again.items() if key not in own} == {
        key: value for key, value in card.items() if key not in own
    }
    assert set(card.texts("conformsTo")) - {"http://mlcommons.org/croissant/1.0"} <= set(again.texts("conformsTo"))
    for warning in card.warnings:
        assert warning in again.warnings
    assert not [entry for entry in again.warnings if "contentSize" in entry["field"] and entry not in card.warnings]
    for key, value in card.get("foreign", {}).get("croissant", {}).items():
        assert again["foreign"]["croissant"][key] == value


def test_a_file_without_checksum_is_written_as_a_set_of_one_and_no_checksum_is_invented() -> None:
    body = json.loads(croissant.write(CARDS["no checksum"])["croissant.json"])
    [file] = body["distribution"]
    assert file["@type"] == "cr:FileSet"
    assert file["includes"] == "main.csv"
    assert file["contentUrl"] == "https://tides.example/main.csv"
    assert "checksum is not known" in file["description"]
    assert not {"sha256", "md5"} & set(file)
    assert body["recordSet"][0]["field"][0]["source"]["fileSet"] == {"@id": "main.csv"}


def test_a_live_dataset_needs_no_checksum() -> None:
    card = a_card(isLiveDataset=True, distribution=[a_file(sha256=None)])
    body = json.loads(croissant.write(card)["croissant.json"])
    assert body["distribution"][0]["@type"] == "cr:FileObject"


def test_untyped_creators_are_credited_and_not_called_persons() -> None:
    body = json.loads(croissant.write(CARDS["creators untyped"])["croissant.json"])
    assert body["creator"] == [{"@type": "sc:Person", "name": "Bob"}]
    assert body["creditText"] == "Ann; Eve"


def test_terms_of_the_profile_travel_with_their_prefixes() -> None:
    body = json.loads(croissant.write(CARDS["full"])["croissant.json"])
    assert body["fx:scienceDomain"] == "oceanography"
    assert body["prov:wasDerivedFrom"] == ["urn:fairmile:dataset:raw"]
    assert body["sc:producer"]["name"] == "Tides of the bay"
    assert body["hpc:custom"] == "with a prefix"
    assert json.loads(body["fx:verbatim"])["odd key"] == {"no": ["vocabulary", None]}
    assert body["@context"]["hpc"] == "https://hpc-fair.github.io/ontology#"
    assert isinstance(body["@context"], dict)


def test_what_a_catalog_counts_is_not_exported() -> None:
    text = croissant.write(a_card(usageCount=99, trustLevel="high"))["croissant.json"]
    assert "99" not in text and "trustLevel" not in text


@pytest.mark.thorough
def test_the_demo_tells_a_valid_export_from_a_broken_one(tmp_path: Path) -> None:
    pytest.importorskip("mlcroissant")
    script = Path(__file__).parents[3] / "demo" / "validate_export.py"
    text = croissant.write(a_card())["croissant.json"]
    for name, content, code in (("good", text, 0), ("bad", text.replace('"sha256"', '"sha"'), 1)):
        path = tmp_path / f"{name}.json"
        path.write_text(content, encoding="utf-8")
        done = subprocess.run([sys.executable, script, "croissant", path], capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert done.stdout.startswith("mlcroissant ") and done.stdout.count("\n") == 1


# Anything at all

OTHERS = VALUES | st.sampled_from(
    [
        [],
        {},
        "",
        " ",
        0,
        True,
        [[]],
        [{}],
        [None],
        {"@id": 1},
        {"@id": "x"},
        {"@value": {}},
        {"@type": []},
        {"name": None},
    ]
)


@anything
@given(data=st.data())
def test_an_unknown_key_is_never_lost_wherever_it_stands(data: st.DataObject) -> None:
    body = json.loads(data.draw(st.sampled_from(PATHS)).read_text())
    place, value = add_unknown_key(data, body)
    card = card_of(document(body))
    assert any(found == value for found in values_under(card.body, UNKNOWN)), place


@pytest.mark.thorough
@anything
@given(data=st.data())
def test_a_value_of_another_type_gives_a_card_or_a_refusal(data: st.DataObject) -> None:
    body = json.loads(data.draw(st.sampled_from(PATHS)).read_text())
    replace_a_value(data, body, OTHERS)
    before = copy.deepcopy(body)
    source = document(body)
    croissant.recognises(source)
    try:
        card = card_of(source)
    except InvalidDocument:
        return
    assert body == before
    assert [problem for problem in check_body(card.body) if problem.severity == "error"] == []
    assert card.digest and card.handle
    again = card_of(Document("croissant.json", croissant.write(card)["croissant.json"].encode()))
    assert again.title == card.title


@anything
@given(data=st.data())
def test_whatever_a_card_holds_is_written_and_read_again(data: st.DataObject) -> None:
    keys = st.sampled_from(
        sorted({*FULL, "name", "distribution", "creator", "license", "citation", "warnings", "foreign"})
    )
    body = data.draw(st.dictionaries(keys, OTHERS, max_size=5))
    written = croissant.write(Card({**a_card().body, **body}))["croissant.json"]
    source = Document("croissant.json", written.encode())
    assert croissant.recognises(source)
    assert card_of(source).kind == "dataset"
