"""The FAIR score: what each test sees, the three views of it, and the advice."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairmile.base.errors import UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.describing.describe import with_address, with_files
from fairmile.catalog.describing.survey import survey
from fairmile.catalog.fair import DATA_LEVEL, Assessment, Finding, Surroundings, assess
from fairmile.catalog.kinds import CONTEXT_IRI, KINDS, PROFILE_IRI
from fairmile.catalog.principles import CHECKS, rules
from fairmile.catalog.principles.addresses import unusable
from fairmile.catalog.short_forms import expand, extended

SHA = "8bf2edfa0f7d4acf4ac17585f05ab8f9ab8ad05f6b0dde24f7e555d5a2704c68"
WORDS = " ".join(["simulated", "clouds", "of", "matter", "for", "training"] * 10)
PERSON = {"@type": "Person", "@id": "https://orcid.org/0000-0002-1825-0097", "name": "Ada Lovelace"}
ORGANISATION = {"@type": "Organization", "@id": "https://ror.org/05v3mvq14", "name": "An Institute"}
FILE = {
    "@type": "FileObject",
    "@id": "train.h5",
    "name": "train.h5",
    "contentUrl": "https://data.institute.edu/train.h5",
    "contentSize": "1048576 B",
    "encodingFormat": "application/x-hdf5",
    "sha256": SHA,
}
FIELDS = {
    "@type": "RecordSet",
    "name": "samples",
    "field": [{"@type": "Field", "name": "density", "dataType": "http://www.wikidata.org/entity/Q29539"}],
}
# One good value for every property that the tests below may fill in.
VALUES: dict[str, Any] = {
    "version": "1.2.0",
    "description": WORDS,
    "keywords": ["cosmology", "n-body", "simulation"],
    "creator": [PERSON],
    "publisher": ORGANISATION,
    "agent": PERSON,
    "datePublished": "2024-05-01",
    "license": "https://spdx.org/licenses/CC-BY-4.0",
    "identifier": ["https://doi.org/10.5281/zenodo.1234567"],
    "accessRights": "public",
    "citation": "https://doi.org/10.1000/paper",
    "scienceDomain": "cosmology",
    "mlTask": "regression",
    "distribution": [FILE],
    "recordSet": FIELDS,
    "variableMeasured": {"@type": "PropertyValue", "name": "density", "unitText": "kg/m3"},
    "isLiveDataset": False,
    "wasDerivedFrom": "urn:known:origin",
    "wasGeneratedBy": "urn:known:run",
    "trainedOn": "urn:known:dataset",
    "evaluationMetrics": "mae",
    "evaluationResults": [{"@type": "PropertyValue", "propertyID": "mae", "value": 0.1}],
    "modelRisksBiasLimitations": "Only for one cosmology.",
    "hyperparameters": {"batch_size": 4},
    "signature": {"inputs": [{"name": "x"}], "outputs": [{"name": "y"}]},
    "matchSpec": {"domain": "cosmology", "models": ["m"], "datasets": ["d"], "metric": "mae", "direction": "lower"},
    "baselines": [{"metric": "mae", "value": 0.1}],
    "command": "python train.py",
    "softwareRequirements": ["pkg:pypi/torch@2.4.0", "pkg:pypi/numpy@2.0.0"],
    "containerImage": {"@type": "SIFImage", "name": "torch", "sha256": SHA},
    "operatingSystem": "Rocky Linux 9",
    "environmentVariables": {"OMP_NUM_THREADS": "4"},
    "processorRequirements": "one GPU",
    "programmingLanguage": "Python",
    "input": {"@type": "FormalParameter", "name": "data"},
    "output": {"@type": "FormalParameter", "name": "model"},
    "step": {"@type": "HowToStep", "position": 1, "name": "train"},
    "hasPart": "urn:known:program",
    "instrument": "urn:known:program",
    "object": "urn:known:dataset",
    "result": "urn:known:model",
    "environment": "urn:known:environment",
    "runsOn": "urn:known:system",
    "seed": 42,
    "startTime": "2026-11-01T00:00:00Z",
    "actionStatus": "CompletedActionStatus",
    "cpuCorePerNode": 64,
    "cpuModel": "a processor",
    "gpuModel": "an accelerator",
    "gpuArchitecture": "an architecture",
    "coprocessorCountPerNode": 4,
    "interconnect": "a network",
    "codeRepository": "https://git.institute.edu/group/code",
    "readme": "https://git.institute.edu/group/code/README.md",
    "issueTracker": "https://git.institute.edu/group/code/issues",
    "developmentStatus": "active",
    "usageInstructions": "Run it.",
    "conformsTo": [PROFILE_IRI, "https://w3id.org/some/community/standard"],
    "reproducedBy": "urn:known:run",
}
GENERAL = (
    *("version", "description", "keywords", "creator", "publisher", "datePublished", "license", "identifier"),
    *("accessRights", "citation", "scienceDomain", "mlTask", "wasDerivedFrom", "conformsTo", "reproducedBy", "command"),
)


def known(target: str) -> bool:
    return target.startswith(("urn:known:", "local/"))


FILES = Path()  # a folder of real files, set below
HERE = Surroundings(resolves=known, indexed_in=("local",))
ALONE = Surroundings(resolves=lambda _: False, tombstones=False)


def body(kind: str = "dataset", *keys: str, **more: Any) -> dict[str, Any]:
    """Return a card with the bare minimum and the given properties, filled with good values."""
    types = list(KINDS[kind].types)
    head = {
        "@context": CONTEXT_IRI,
        "@id": "urn:uuid:6f0c5e7a-1a43-4f3b-9c1e-3d2f8d0b7a51",
        "@type": types,
        "name": "Universe",
    }
    return copy.deepcopy({**head, **{key: VALUES[key] for key in keys}, **more})


def full(kind: str) -> dict[str, Any]:
    """Return a card that has everything its kind asks for and more."""
    more = {
        "model": ("distribution", "usageInstructions", "softwareRequirements", "wasGeneratedBy"),
        "workflow": ("codeRepository", "softwareRequirements"),
        "program": ("command",),
        "benchmark": ("softwareRequirements",),
        "run": ("agent",),
    }
    keys = dict.fromkeys((*KINDS[kind].required, *KINDS[kind].rich, *GENERAL, *more.get(kind, ())))
    identifier = [*VALUES["identifier"], "swh:1:rev:" + SHA[:40]]
    return body(kind, *(key for key in keys if key != "name"), identifier=identifier)


def judged(card: dict[str, Any], around: Surroundings = HERE) -> Assessment:
    """Assess the card as a catalog does: it counts the runs on record that the card names."""
    runs = sum(text.startswith("urn:known:run") for text in Card(card).texts("reproducedBy"))
    return assess(Card(card), replace(around, runs=around.runs or runs))


def finding(card: dict[str, Any], test: str, around: Surroundings = HERE) -> Finding:
    return next(each for each in judged(card, around).findings if each.id == test)


def answer(card: dict[str, Any], indicator: str, around: Surroundings = HERE) -> str:
    return next(each.outcome for each in judged(card, around).indicators if each.id == indicator)


# ---------------------------------------------------------------- the tables


def test_every_test_of_the_table_has_a_check_and_the_other_way_round() -> None:
    assert [test["id"] for test in rules()["tests"]] == list(CHECKS)


def test_there_are_47_indicators_in_the_published_proportions() -> None:
    ids = [each["id"] for each in rules()["indicators"]]
    assert len(set(ids)) == 47
    assert Counter(each.split("-")[1][0] for each in ids) == {"F": 8, "A": 13, "I": 14, "R": 12}
    rda = Counter(each.split("-")[1][0] for each in ids if each.startswith("RDA-"))
    assert rda == {"F": 7, "A": 12, "I": 12, "R": 10}


def test_the_41_indicators_of_rda_are_all_there() -> None:
    ids = {each["id"] for each in rules()["indicators"]}
    wanted = (
        *("F1-01M", "F1-01D", "F1-02M", "F1-02D", "F2-01M", "F3-01M", "F4-01M"),
        *("A1-01M", "A1-02M", "A1-02D", "A1-03M", "A1-03D", "A1-04M", "A1-04D", "A1-05D"),
        *("A1.1-01M", "A1.1-01D", "A1.2-01D", "A2-01M"),
        *("I1-01M", "I1-01D", "I1-02M", "I1-02D", "I2-01M", "I2-01D"),
        *("I3-01M", "I3-01D", "I3-02M", "I3-02D", "I3-03M", "I3-04M"),
        *("R1-01M", "R1.1-01M", "R1.1-02M", "R1.1-03M", "R1.2-01M", "R1.2-02M"),
        *("R1.3-01M", "R1.3-01D", "R1.3-02M", "R1.3-02D"),
    )
    assert len(wanted) == 41
    assert {f"RDA-{each}" for each in wanted} <= ids


def test_every_indicator_rests_on_tests_or_parts_that_some_card_shows() -> None:
    seen = set(CHECKS)
    for kind in KINDS:
        for each in judged(full(kind)).findings:
            seen |= {part.id for part in each.parts}
    for rule in rules()["indicators"]:
        assert {name for way in rule["ways"] for name in way} <= seen, rule["id"]


def test_every_property_a_kind_asks_for_has_a_word_to_fill_in() -> None:
    for kind in KINDS.values():
        assert {*kind.required, *kind.rich} <= {*rules()["placeholders"], "distribution"}, kind.name


def test_the_module_is_cheap_to_import() -> None:
    code = "import sys, fairmile.catalog.fair; print(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "license_expression", "rich", "ruamel", "pyoxigraph", "rfc8785"} & set(done.stdout.split())


# ---------------------------------------------------------------- findable


@pytest.mark.parametrize(
    "identifier",
    [
        "https://doi.org/10.5281/zenodo.1",
        "doi:10.5281/zenodo.1",
        "10.5281/zenodo.1",
        "ark:/12345/x1",
        "https://n2t.net/ark:12345/x1",
        "hdl:11304/a-b",
        "https://hdl.handle.net/11304/a-b",
        "swh:1:dir:" + SHA[:40],
        "https://w3id.org/universe/1",
    ],
)
def test_an_id_that_a_registry_keeps_passes(identifier: str) -> None:
    assert finding(body(identifier=identifier), "F1b").outcome == "pass"


@pytest.mark.parametrize("identifier", ["urn:uuid:1-2", "https://institute.edu/x", "ni:///sha-256;abc", "universe-1"])
def test_an_id_that_no_registry_keeps_fails(identifier: str) -> None:
    found = finding(body(identifier=identifier), "F1b")
    assert found.outcome == "fail"
    assert "--add identifier=https://doi.org/" in found.fix


@pytest.mark.parametrize(
    "identifier",
    ["https://w3id.org/fairmile/a/dataset/x/1", "http://www.w3id.org/fairmile", "HTTPS://W3ID.org/Fairmile/x"],
)
def test_our_own_w3id_name_counts_half_until_it_is_registered(identifier: str) -> None:
    found = finding(body(**{"@id": identifier}), "F1b")
    assert (found.outcome, found.points) == ("partial", 0.5)
    assert "w3id.org/fairmile is not registered yet" in found.evidence
    assert finding(body(**{"@id": identifier, "sameAs": "https://doi.org/10.5281/zenodo.1"}), "F1b").outcome == "pass"
    assert "in no catalog" in finding(body("model", trainedOn=identifier), "I3").evidence


def test_a_w3id_name_that_only_begins_like_ours_counts() -> None:
    assert finding(body(identifier="https://w3id.org/fairmiles/1"), "F1b").outcome == "pass"


@pytest.mark.parametrize(
    ("iri", "outcome"),
    [
        ("urn:uuid:1", "pass"),
        ("https://institute.edu/x", "pass"),
        ("http://example.org/DA000001", "fail"),
        ("universe", "fail"),
        ("", "fail"),
        ("odd+scheme:x", "partial"),
    ],
)
def test_the_id_must_be_an_address_of_somebody(iri: str, outcome: str) -> None:
    found = finding(body(**{"@id": iri}), "F1a")
    assert found.outcome == outcome
    assert iri in found.evidence


def test_files_without_digests_count_by_their_share() -> None:
    bare = {key: value for key, value in FILE.items() if key != "sha256"}
    found = finding(body(distribution=[FILE, bare, bare, bare]), "F1c")
    assert (found.outcome, found.points) == ("partial", 0.25)
    assert found.evidence.startswith("1 of 4 files")
    assert found.fix.endswith("--file FILE-OR-FOLDER")


def test_an_old_checksum_counts_half() -> None:
    bare = {key: value for key, value in FILE.items() if key != "sha256"}
    assert finding(body(distribution=[{**bare, "md5": "1" * 32}]), "F1c").points == 0.5


def test_a_set_of_files_inside_an_archive_needs_no_digest_of_its_own() -> None:
    inside = {
        "@type": "FileSet",
        "name": "all",
        "containedIn": "train.h5",
        "includes": "*.csv",
        "encodingFormat": "text/csv",
    }
    assert finding(body(distribution=[FILE, inside]), "F1c").outcome == "pass"


@pytest.mark.parametrize("kind", ["system", "benchmark", "environment", "workflow", "run", "program"])
def test_digests_are_not_asked_of_an_asset_without_files(kind: str) -> None:
    assert finding(body(kind), "F1c").outcome == "not applicable"


def test_a_data_set_without_files_fails() -> None:
    found = finding(body(), "F1c")
    assert found.outcome == "fail"
    assert found.fix.endswith("--file FILE-OR-FOLDER --address https://ADDRESS")


def test_a_version_named_by_a_digest_is_no_version() -> None:
    found = finding(body(version="sha256-0123456789ab"), "F1d")
    assert found.outcome == "fail"
    assert "sha256-0123456789ab" in found.evidence


def test_several_versions_must_be_linked() -> None:
    around = Surroundings(resolves=known, versions=3, indexed_in=("local",))
    found = finding(body(version="2.0"), "F1d", around)
    assert (found.outcome, found.points) == ("partial", 0.6)
    assert "wasRevisionOf" in found.fix
    assert finding(body(version="2.0", wasRevisionOf="urn:known:old"), "F1d", around).outcome == "pass"
    assert finding(body(version="sha256-0123", wasRevisionOf="urn:known:old"), "F1d", around).points == 0.4


def test_a_run_needs_no_version() -> None:
    assert finding(body("run", "startTime"), "F1d").outcome == "pass"


def test_the_citation_core_counts_five_things() -> None:
    found = finding(body("dataset", "creator"), "F2a")
    assert found.points == 0.6
    assert found.evidence == "missing: publisher, datePublished"
    assert "creator=" not in found.fix
    assert finding(body("dataset", "creator", "publisher", "datePublished"), "F2a").outcome == "pass"


def test_the_discovery_core_counts_words_and_keywords() -> None:
    found = finding(body(description="ten words " * 5, keywords=["a", "b"]), "F2b")
    assert found.points == pytest.approx((10 / 50 + 2 / 3) / 4, abs=1e-3)
    assert "description of 10 words, 2 keywords, no domain, no task" in found.evidence
    assert found.fix.count("--add keywords=") == 1


def test_a_task_is_not_asked_of_a_system() -> None:
    assert finding(body("system", "description", "keywords"), "F2b").outcome == "pass"


def test_a_url_in_the_sha256_field_fails_with_the_value_as_evidence() -> None:
    url = "https://github.com/mlcommons/croissant/issues/80"
    found = finding(body(distribution=[{**FILE, "sha256": url}]), "F3")
    assert (found.outcome, found.points) == ("fail", 0)
    assert url in found.evidence
    assert found.fix.endswith("--file FILE-OR-FOLDER")
    assert url not in found.fix


def test_a_checksum_that_an_importer_left_out_still_fails() -> None:
    bare = {key: value for key, value in FILE.items() if key != "sha256"}
    foreign = {"croissant": {"checksums": {"train.h5": {"sha256": "https://x.org/80"}}}}
    assert "https://x.org/80" in finding(body(distribution=[bare], foreign=foreign), "F3").evidence
    assert finding(body(distribution=[FILE], foreign=foreign), "F3").outcome == "pass"


def test_a_page_alone_names_the_content_only_in_part() -> None:
    assert finding(body(url="https://institute.edu/universe"), "F3").points == 0.5
    assert finding(body("program", "codeRepository"), "F3").outcome == "pass"
    assert finding(body("system"), "F3").outcome == "not applicable"


def test_being_listed_matters() -> None:
    assert finding(body("dataset", "description"), "F4").outcome == "pass"
    found = finding(body("dataset", "description"), "F4", ALONE)
    assert found.points == 0.3
    assert found.fix == "fairmile catalog add CARD.json"


# ---------------------------------------------------------------- accessible

RESTRICTED = {"accessRights": "restricted", "conditionsOfAccess": "Ask the board at https://data.institute.edu/apply"}


def test_the_access_level_must_be_stated() -> None:
    assert finding(body(), "A1a").outcome == "fail"
    assert finding(body(isAccessibleForFree=True), "A1a").outcome == "pass"
    assert finding(body(accessRights="public"), "A1a").outcome == "pass"
    assert finding(body(accessRights="http://x.org/access-right/PUBLIC"), "A1a").outcome == "pass"
    assert finding(body(conditionsOfAccess="ask"), "A1a").points == 0.5
    assert finding(body(accessRights="restricted"), "A1a").points == 0.5


@pytest.mark.parametrize("level", ["restricted", "registered", "embargoed"])
def test_restricted_data_with_conditions_and_a_place_to_sign_in_passes_all_of_a(level: str) -> None:
    card = body("dataset", **{**RESTRICTED, "accessRights": level})
    assert judged(card).letters["A"] == 100
    assert not [each for each in judged(card).findings if each.letter == "A" and each.outcome in ("partial", "fail")]


def test_restricting_an_asset_never_costs_points() -> None:
    for kind in KINDS:
        public = {**full(kind), "accessRights": "public"}
        restricted = {**public, **RESTRICTED}
        assert judged(restricted).score >= judged(public).score, kind


def test_a_restricted_asset_without_conditions_is_told_to_state_them() -> None:
    found = finding(body(accessRights="restricted"), "A1a")
    assert "--set 'conditionsOfAccess=" in found.fix


def test_restricted_content_over_plain_http_is_flagged() -> None:
    card = body(accessRights="restricted", conditionsOfAccess="ask", url="http://institute.edu/x")
    assert finding(card, "A1d").points == 0.5


def test_retrieval_is_declared_not_probed() -> None:
    found = finding(body("dataset", "distribution"), "A1b")
    assert found.outcome == "pass"
    assert "declared, not probed" in found.evidence


def test_an_unknown_card_with_half_its_addresses_gets_a_quarter() -> None:
    local = {**FILE, "contentUrl": "file:///home/me/x.h5"}
    found = finding(body(distribution=[FILE, local]), "A1b", ALONE)
    assert found.points == 0.25


@pytest.mark.parametrize(
    ("address", "points"),
    [
        ("https://x.edu/a", 1),
        ("s3://bucket/a", 1),
        ("ftp://x.edu/a", 1),
        ("data/a.h5", 1),
        ("globus://endpoint/a", 0.5),
        ("file:///home/me/a", 0),
        ("magic:xyz", 0),
    ],
)
def test_the_protocol_must_be_open(address: str, points: float) -> None:
    found = finding(body(distribution=[{**FILE, "contentUrl": address}]), "A1c")
    assert found.points == points


@pytest.mark.parametrize("address", ["file:///home/me/a", "http://127.0.0.1:8000/a", "me@login01:a"])
def test_an_address_that_only_its_owner_reaches_is_not_accessible(address: str) -> None:
    places: list[tuple[str, dict[str, Any]]] = [
        ("dataset", {"distribution": [{**FILE, "contentUrl": address}]}),
        ("dataset", {"distribution": [{**FILE, "contentUrl": [address], "mirror": address}]}),
        ("dataset", {"contentUrl": address}),
        ("dataset", {"url": address}),
        ("program", {"codeRepository": address}),
        ("program", {"downloadUrl": address}),
    ]
    for kind, place in places:
        found = judged(body(kind, "accessRights", **place))
        by_id = {each.id: each for each in found.findings}
        assert by_id["A1b"].points == 0.5, place  # the card, not its content
        assert by_id["A1c"].points == 0
        assert unusable(address) in by_id["A1b"].evidence
        assert unusable(address) in by_id["A1c"].evidence
        assert by_id["A1d"].outcome == "not applicable"
        assert by_id["F3"].points in (0, 0.5)
        assert found.letters["A"] < 75
    sign_in = body(accessRights="restricted", conditionsOfAccess=f"Sign in at {address}")
    assert finding(sign_in, "A1d").points == 0.5


def test_a_private_mirror_beside_a_public_address_takes_nothing() -> None:
    card = body(distribution=[{**FILE, "contentUrl": "http://10.0.0.1/a", "mirror": ["https://x.edu/a"]}])
    assert finding(card, "A1b").points == 1
    assert finding(card, "A1c").points == 1
    assert "https://ADDRESS" not in finding(card, "R1a").fix


def test_an_id_or_a_link_on_a_private_host_means_nothing_elsewhere() -> None:
    assert "loopback" in finding(body(**{"@id": "http://127.0.0.1/x"}), "F1a").evidence
    assert finding(body(**{"@id": "https://wiki.internal/x"}), "F1a").outcome == "fail"
    assert finding(body(citation="http://localhost/paper"), "I3").points == 0
    assert (
        "a name of a private network" in finding(body("program", codeRepository="https://git.lan/x"), "R1.2").evidence
    )


def test_a_catalog_without_tombstones_fails_unless_a_registry_keeps_a_record() -> None:
    assert finding(body(), "A2").outcome == "pass"
    assert finding(body(), "A2", ALONE).outcome == "fail"
    assert finding(body("dataset", "identifier"), "A2", ALONE).outcome == "partial"


# ---------------------------------------------------------------- interoperable


def test_a_key_without_a_meaning_is_named() -> None:
    found = finding(body(colour="blue", creator={"name": "x", "shoeSize": 44}), "I1a")
    assert found.outcome == "partial"
    assert "colour" in found.evidence
    assert "shoeSize" in found.evidence
    assert "--add '@context=colour=https://" in found.fix


def test_words_that_look_like_keywords_have_no_meaning() -> None:
    found = finding(body(**{"@title": "x"}), "I1a")
    assert "@title" in found.evidence
    assert "--unset @title" in found.fix


def test_plain_json_is_not_looked_into() -> None:
    card = body(hyperparameters={"colour": 1}, foreign={"x": {"colour": 1}}, warnings=[{"colour": "x"}])
    assert finding(card, "I1a").outcome == "pass"


def test_a_context_of_the_card_s_own_gives_keys_a_meaning() -> None:
    own = {"@context": [CONTEXT_IRI, {"my": "https://institute.edu/terms#", "colour": "my:colour"}]}
    assert finding({**body(), **own, "colour": "blue", "my:shape": "round"}, "I1a").outcome == "pass"
    assert finding({**body(), "schema:award": "x", "https://x.edu/y": "z", "fx:odd": 1}, "I1a").outcome == "pass"


def test_a_card_without_context_is_no_linked_data() -> None:
    card = {key: value for key, value in body().items() if key != "@context"}
    found = finding(card, "I1a")
    assert found.points == 0.5
    assert answer(card, "RDA-I1-01M") == "no"


@pytest.mark.parametrize(
    ("media_type", "points"),
    [
        ("application/x-hdf5", 1),
        ("application/vnd.apache.parquet", 1),
        ("text/csv", 1),
        ("application/ld+json", 1),
        ("application/x-tar", 0.5),
        ("application/vnd.pickle", 0),
        (".pth", 0),
        ("application/octet-stream", 0),
    ],
)
def test_the_format_must_be_open(media_type: str, points: float) -> None:
    assert finding(body(distribution=[{**FILE, "encodingFormat": media_type}]), "I1b").points == points


def test_pickle_beside_onnx_is_half_open() -> None:
    assert finding(body("model", modelFormat=["pickle", "application/onnx"]), "I1b").points == 0.5


def test_the_files_of_a_model_outweigh_the_format_it_claims() -> None:
    pickled = {**FILE, "name": "m.pkl", "encodingFormat": "application/vnd.pickle"}
    assert finding(body("model", modelFormat="application/onnx", distribution=[pickled]), "I1b").outcome == "fail"
    saved = {**FILE, "name": "m.onnx", "encodingFormat": "application/onnx"}
    assert finding(body("model", modelFormat="pickle", distribution=[saved]), "I1b").outcome == "pass"


def test_source_code_is_no_model() -> None:
    code = {**FILE, "name": "model.py", "encodingFormat": "text/x-python"}
    found = finding(body("model", modelFormat="application/onnx", distribution=[code]), "I1b")
    assert found.outcome == "fail"
    assert "source code, not the model" in found.evidence
    saved = {**FILE, "name": "m.onnx", "encodingFormat": "application/onnx"}
    assert finding(body("model", distribution=[code, saved]), "I1b").outcome == "pass"
    assert answer(body("model", distribution=[code]), "RDA-I1-01D") == "no"


def test_the_format_inside_an_archive_is_what_counts() -> None:
    archive = {**FILE, "name": "all.tar", "encodingFormat": "application/x-tar"}
    inside = {"@type": "FileSet", "name": "all", "containedIn": "all.tar", "encodingFormat": "application/x-hdf5"}
    assert finding(body(distribution=[archive]), "I1b").points == 0.5
    assert finding(body(distribution=[archive, inside]), "I1b").outcome == "pass"


def test_a_file_name_tells_the_format_when_no_media_type_is_given() -> None:
    bare = {key: value for key, value in FILE.items() if key != "encodingFormat"}
    assert finding(body(distribution=[{**bare, "name": "x.csv.gz"}]), "I1b").outcome == "pass"
    assert finding(body(distribution=[{**bare, "name": "x.pkl"}]), "I1b").outcome == "fail"


@pytest.mark.parametrize("kind", ["workflow", "system", "environment", "run", "program", "benchmark"])
def test_a_data_format_is_not_asked_of_other_kinds(kind: str) -> None:
    assert finding(body(kind), "I1b").outcome == "not applicable"


@pytest.mark.parametrize(
    ("kind", "key"),
    [("dataset", "recordSet"), ("model", "signature"), ("benchmark", "matchSpec"), ("run", "evaluationResults")],
)
def test_each_kind_has_its_interface(kind: str, key: str) -> None:
    assert finding(body(kind), "I1c").outcome == "fail"
    assert finding(body(kind, key), "I1c").outcome == "pass"


def test_variables_are_half_an_interface() -> None:
    assert finding(body("dataset", "variableMeasured"), "I1c").points == 0.5
    assert finding(body("workflow", "input"), "I1c").points == 0.5


def test_registered_terms_and_values_count() -> None:
    assert finding(body("dataset", "creator"), "I2").outcome == "pass"
    assert finding(body(creator="Ada Lovelace"), "I2").points == 0.7
    assert finding(body("dataset", "creator", colour="blue"), "I2").outcome == "partial"


def test_a_licence_does_not_count_as_a_registered_value() -> None:
    assert finding(body("dataset", "license"), "I2").points == 0.7


def test_terms_of_the_profile_do_not_lower_the_share_of_registered_ones() -> None:
    assert finding(body("benchmark", "creator", "matchSpec", "command", "baselines"), "I2").outcome == "pass"


def test_links_count_more_when_their_target_is_known() -> None:
    assert finding(body("model", mlTask="x"), "I3").outcome == "fail"
    assert finding(body("model", trainedOn="urn:other:x"), "I3").points == 0.4
    assert finding(body("model", trainedOn="urn:known:x"), "I3").points == 0.7
    assert finding(body("model", trainedOn="urn:known:x", citation="https://doi.org/10.1000/1"), "I3").outcome == "pass"


def test_a_link_to_nowhere_is_named() -> None:
    assert "trainedOn urn:other:x is in no catalog" in finding(body("model", trainedOn="urn:other:x"), "I3").evidence


def test_a_word_is_no_link_unless_a_catalog_knows_it() -> None:
    assert finding(body("model", trainedOn="ImageNet"), "I3").outcome == "fail"
    around = Surroundings(resolves=lambda text: text == "ImageNet")
    assert finding(body("model", trainedOn="ImageNet"), "I3", around).points == 0.7


def test_a_long_list_of_links_asks_the_catalog_a_bounded_number_of_times() -> None:
    asked: list[str] = []

    def count(text: str) -> bool:
        asked.append(text)
        return False

    judged(body(hasPart=[f"urn:part:{at}" for at in range(5000)]), Surroundings(resolves=count))
    assert len(asked) < 200


# ---------------------------------------------------------------- reusable


def test_type_size_media_type_and_variables_are_a_quarter_each() -> None:
    bare = {"@type": "FileObject", "name": "a.h5"}
    assert finding(body(distribution=[bare]), "R1a").points == 0.25
    assert finding(body("dataset", "distribution"), "R1a").points == 0.75
    assert finding(body("dataset", "distribution", "recordSet"), "R1a").outcome == "pass"
    assert finding(body("system"), "R1a").outcome == "not applicable"


def test_richness_names_what_is_missing() -> None:
    card = body("dataset", "distribution", "citation")
    assert judged(card).richness.percent == pytest.approx(100 * 2 / 6, abs=0.1)
    assert judged(card).richness.missing == ["recordSet", "variableMeasured", "scienceDomain", "isLiveDataset"]
    assert "isLiveDataset" in finding(card, "R1b").evidence
    assert finding(full("dataset"), "R1b").outcome == "pass"


def test_an_environment_must_be_pinned() -> None:
    loose = body("environment", *KINDS["environment"].rich[1:], softwareRequirements=["torch>=2", "numpy"])
    loose["containerImage"] = "docker://institute/torch:latest"
    found = finding(loose, "R1b")
    assert found.outcome == "partial"
    assert "0% of the software is pinned" in found.evidence
    loose["softwareRequirements"] = ["torch==2.4.0", "pkg:conda/numpy@2.0"]
    assert finding(loose, "R1b").outcome == "pass"


@pytest.mark.parametrize(
    ("licence", "points", "parts"),
    [
        ("https://spdx.org/licenses/CC-BY-4.0", 1.0, (1, 1, 1)),
        ("Apache 2.0", 1.0, (1, 1, 1)),
        ("https://spdx.org/licenses/MIT OR Apache-2.0", 1.0, (1, 1, 1)),
        ("https://spdx.org/licenses/CC-BY-NC-4.0", 0.8, (1, 1, 0)),
        ("https://spdx.org/licenses/Not-A-Licence", 0.4, (1, 0, 0)),
        ("Public", 0.4, (1, 0, 0)),
    ],
)
def test_the_licence_is_one_test_with_three_levels(licence: str, points: float, parts: tuple[int, ...]) -> None:
    found = finding(body(license=licence), "R1.1")
    assert found.points == points
    assert tuple(part.points for part in found.parts if part.id in ("R1.1a", "R1.1b", "R1.1c")) == parts
    assert licence in found.evidence


def test_a_missing_licence_fails_one_test_and_advice_leaves_the_licence_to_its_holder() -> None:
    failed = {each.id for each in judged({**full("dataset"), "license": None}).findings if each.outcome == "fail"}
    assert failed == {"R1.1"}
    for kind in ("dataset", "program"):
        found = finding(body(kind), "R1.1")
        assert found.fix.endswith("--set license=SPDX-ID-STATED-BY-THE-HOLDER")
        assert "only the rights holder can grant one" in found.evidence


def test_terms_of_the_source_s_own_are_quoted_and_not_replaced() -> None:
    found = finding(body(licenseRaw="SCEDC grants the right to use and display"), "R1.1")
    assert "the source says 'SCEDC grants the right to use and display'" in found.evidence
    assert found.fix.endswith("license=SPDX-ID-STATED-BY-THE-HOLDER")


@pytest.mark.parametrize("kind", list(KINDS))
def test_advice_asserts_nothing_about_the_asset(kind: str) -> None:
    """Every value it proposes is a placeholder, a value of the card itself, or about the card's own form."""
    start = {**body(kind), "creator": "Ada Lovelace", "conditionsOfAccess": "ask", "license": "my terms"}
    for card in (body(kind), start):
        for line in judged(card).advice:
            for _, key, text in changes(line):
                stated = key in CHOICES and text in (CONTEXT_IRI, PROFILE_IRI)
                assert stated or re.search(r"[A-Z]{3,}", text), line


def test_a_name_is_not_declared_to_be_a_person() -> None:
    assert finding(body(creator="Argonne"), "I2").fix.endswith("--add 'creator=Argonne (ORCID-OR-ROR)'")
    person, organisation = {"@type": "Person", "name": "Ada"}, {"@type": "Organization", "name": "ANL"}
    assert finding(body(creator=[person, "Charles"]), "I2").fix.endswith("--add 'creator=Ada (ORCID)'")
    assert finding(body(creator=organisation), "I2").fix.endswith("--add 'creator=ANL (ROR)'")


def test_a_licence_that_bars_reuse_brings_no_advice() -> None:
    assert finding(body(license="CC-BY-NC-4.0"), "R1.1").fix == ""


def test_provenance_has_levels() -> None:
    assert finding(body(), "R1.2").outcome == "fail"
    assert finding(body("dataset", "creator", "datePublished"), "R1.2").points == 0.4
    assert finding(body("dataset", "creator", "datePublished", isBasedOn="an idea"), "R1.2").points == 0.6
    assert finding(body("dataset", "creator", "datePublished", "wasDerivedFrom"), "R1.2").outcome == "pass"


def test_provenance_is_formal_when_the_source_is_in_a_catalog() -> None:
    def points(kind: str, **more: Any) -> float:
        return finding(body(kind, "creator", "datePublished", **more), "R1.2").points

    assert points("dataset", wasDerivedFrom="https://doi.org/10.5281/zenodo.1") == pytest.approx(0.8)
    assert points("dataset", wasDerivedFrom="the census") == pytest.approx(0.7)
    assert points("dataset", wasDerivedFrom=["https://institute.edu/x", "urn:known:x"]) == 1
    assert points("model", wasGeneratedBy="urn:known:run") == 1
    itself = body()["@id"]
    around = Surroundings(resolves=lambda text: text == itself)
    assert finding(body("dataset", "creator", "datePublished", wasDerivedFrom=itself), "R1.2", around).points == 0.6


def test_the_provenance_of_code_is_its_repository_and_commit() -> None:
    card = body("program", "creator", "datePublished", "codeRepository", version="1.0")
    assert finding(card, "R1.2").points == pytest.approx(0.8)
    assert finding({**card, "version": "git-abcdef0"}, "R1.2").outcome == "pass"


def test_a_run_states_its_provenance_by_inputs_and_outputs() -> None:
    assert finding(full("run"), "R1.2").outcome == "pass"


def test_a_community_profile_must_be_named_and_filled_in() -> None:
    assert finding(full("dataset"), "R1.3").outcome == "pass"
    found = finding(body(conformsTo=PROFILE_IRI), "R1.3")
    assert found.outcome == "partial"
    assert "version" in found.evidence
    assert "--add conformsTo=https://ADDRESS-OF-THE-STANDARD" in found.fix
    assert f"the usual standard for a dataset is {rules()['standards']['dataset']}" in found.evidence


def test_a_benchmark_can_be_run_again_with_command_environment_and_inputs() -> None:
    assert finding(body("benchmark"), "R2a").outcome == "fail"
    assert finding(body("benchmark", "command", "softwareRequirements", "matchSpec"), "R2a").outcome == "pass"
    assert finding(body("run", instrument="urn:other:x"), "R2a").points == pytest.approx(1 / 6, abs=1e-3)
    assert finding(body("dataset"), "R2a").outcome == "not applicable"


def test_a_reproduction_is_a_run_on_record() -> None:
    assert finding(body("benchmark"), "R2b").outcome == "fail"
    for name in ("urn:other:x", "urn:known:dataset", body()["@id"]):
        found = finding(body("benchmark", reproducedBy=name), "R2b")
        assert found.outcome == "fail"
        assert f"{name}, which is not a recorded run" in found.evidence
    assert finding(body("benchmark"), "R2b", Surroundings(resolves=known, runs=2)).outcome == "pass"


# ---------------------------------------------------------------- views


def poor() -> dict[str, Any]:
    return {"@type": "Dataset", "name": "mnist", "license": "Public", "version": "sha256-0123456789ab"}


def middle() -> dict[str, Any]:
    return body("dataset", "version", "license", "distribution", description="Pictures of digits.", creator="A. Author")


def test_a_poor_a_middling_and_a_rich_card_lie_far_apart() -> None:
    scores = [judged(poor(), ALONE).score, judged(middle()).score, judged(full("dataset")).score]
    assert scores[0] < 15
    assert 45 < scores[1] < 70
    assert scores[2] > 95


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_card_with_everything_passes_nearly_all_for_every_kind(kind: str) -> None:
    found = judged(full(kind))
    assert found.score > 94
    assert not [each.id for each in found.findings if each.outcome == "fail"]


def test_the_score_is_the_weighted_share_of_the_tests_that_apply() -> None:
    found = judged(middle())
    counted = [each for each in found.findings if each.outcome != "not applicable"]
    wanted = 100 * sum(each.weight * each.points for each in counted) / sum(each.weight for each in counted)
    assert found.score == pytest.approx(wanted, abs=0.06)
    assert list(found.letters) == ["F", "A", "I", "R"]


def test_table_one_has_its_fourteen_lines_and_the_tests_behind_them() -> None:
    rows = judged(middle()).table_one
    assert list(rows) == ["F1", "F2", "F3", "F4", "A1", "A2", "A3", "A4", "I1", "I2", "I3", "R1", "R2", "R3"]
    assert rows["R2"].tests == ("R1.1",)
    assert rows["R2"].percent == 100
    assert rows["F2"].tests == ("F1a", "F1b", "F1c", "F3")


def test_a_line_of_table_one_without_a_test_that_applies_has_no_percentage() -> None:
    assert judged(body("system")).table_one["R2"].percent is None


def test_the_indicators_are_counted_out_of_47() -> None:
    found = judged(full("dataset"))
    yes = sum(each.outcome == "yes" for each in found.indicators)
    assert len(found.indicators) == 47
    assert found.indicator_score == round(100 * yes / 47, 1)
    assert yes >= 44
    assert all(each.evidence and set(each.tests) <= set(CHECKS) for each in found.indicators)


def test_what_only_a_reader_of_the_format_can_tell_is_not_assessed_when_nothing_is_declared() -> None:
    found = judged(body())
    open_ones = {each.id for each in found.indicators if each.outcome == "not assessed"}
    assert open_ones >= DATA_LEVEL
    for each in found.indicators:
        if each.id in DATA_LEVEL:
            assert each.evidence.startswith("needs a reader of the format, counted as 0")
    assert set(found.to_dict()["not_assessed"]) == open_ones


def test_what_the_card_declares_about_its_data_is_judged() -> None:
    card = body("dataset", "distribution", "recordSet")
    assert answer(card, "RDA-I1-01D") == "yes"
    assert answer(card, "RDA-I1-02D") == "yes"
    assert answer(card, "RDA-I2-01D") == "yes"
    assert answer(card, "RDA-I3-01D") == "no"
    assert answer(card, "RDA-R1.3-01D") == "yes"
    card["recordSet"]["field"][0]["references"] = {"field": {"@id": "other/key"}}
    assert answer(card, "RDA-I3-01D") == "yes"
    assert answer(card, "RDA-I3-02D") == "yes"
    assert answer(body(distribution=[{**FILE, "encodingFormat": "text/csv"}]), "RDA-R1.3-01D") == "no"


def test_everything_is_plain_json() -> None:
    for kind in KINDS:
        text = json.dumps(judged(body(kind)).to_dict(), allow_nan=False)
        back = json.loads(text)
        assert back["score"] == judged(body(kind)).score
        assert len(back["findings"]) == len(CHECKS)
        assert back["findings"][0]["id"] == "F1a"


def test_the_linked_data_uses_the_vocabularies_of_fair_tests_and_data_quality() -> None:
    jsonld = pytest.importorskip("pyld").jsonld
    found = judged(middle())
    document = found.to_jsonld(generated_at="2026-11-15T12:00:00Z")
    nodes = jsonld.expand(document)
    by_type = Counter(kind for node in nodes for kind in node.get("@type", ()))
    assert by_type["https://w3id.org/ftr#TestResult"] == len(CHECKS)
    assert by_type["https://w3id.org/ftr#TestResultSet"] == 1
    assert by_type["https://w3id.org/ftr#Test"] == len(CHECKS)
    assert by_type["http://www.w3.org/ns/dqv#QualityMeasurement"] == len(CHECKS) + 6
    members = next(node for node in nodes if "https://w3id.org/ftr#TestResultSet" in node.get("@type", ()))
    assert len(members["http://www.w3.org/ns/prov#hadMember"]) == len(CHECKS)
    # Expansion drops what has no meaning; nothing may be dropped.
    assert sum(len(node) for node in document["@graph"]) == sum(len(node) for node in nodes)


def test_the_linked_data_of_the_same_card_has_the_same_ids() -> None:
    assert judged(middle()).to_jsonld() == judged(middle()).to_jsonld()


# ---------------------------------------------------------------- advice

MEANT: dict[str, str] = {
    "TEXT OF 50 WORDS": WORDS,
    "https://w3id.org/YOUR-SPACE/NAME": "https://w3id.org/universe/1",
    "zenodo.NUMBER": "zenodo.42",
    "DOI-OF-THE-PAPER": "10.1000/182",
    "(ORCID-OR-ROR)": "(0000-0002-1825-0097)",
    "(ORCID)": "(0000-0002-1825-0097)",
    "(ROR)": "(05v3mvq14)",
    "YYYY-MM-DD": "2026-01-01",
    "THH:MM:SSZ": "T00:00:00Z",
    "MEDIA/TYPE": "text/csv",
    "METRIC=NUMBER": "mae=0.5",
    "RECORDS: FIELD TYPE": "samples: density float [kg/m3]",
    "SIZExSIZE": "1x28",
    "REGISTRY/IMAGE:TAG@sha256:SHA256": f"docker.io/institute/torch:1@sha256:{SHA}",
    "https://ADDRESS": "https://data.institute.edu/x",
    "swh:1:dir:HASH": "swh:1:dir:" + SHA[:40],
    "swh:1:rev:HASH": "swh:1:rev:" + SHA[:40],
    "SPDX-ID": "MIT",
}


@pytest.fixture(scope="module", autouse=True)
def real_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have a file at hand that the advice asks for."""
    global FILES
    FILES = tmp_path_factory.mktemp("files")
    (FILES / "train.csv").write_text("time,density [kg/m3]\n2024-01-01,1.5\n2024-01-02,2.5\n")
    (FILES / "model.onnx").write_bytes(b"\x08\x08\x12\x00")


def changes(command: str) -> list[tuple[str, str, str]]:
    """Split a command into (flag, key, value); only commands that exist pass."""
    words = shlex.split(command, comments=True)
    if words[:3] != ["fairmile", "catalog", "update"]:
        assert words[:3] in (["fairmile", "catalog", "add"], ["fairmile", "catalog", "check"]), command
        assert len(words) == 4
        return []
    assert set(words[4::2]) <= {"--set", "--add", "--unset", "--file", "--address"}
    made = []
    for flag, what in zip(words[4::2], words[5::2], strict=True):
        key, _, value = what.partition("=")
        made.append((flag, "distribution", what) if flag in ("--file", "--address") else (flag, key, value))
        assert not value.startswith(("{", "[")), f"nobody writes JSON by hand: {command}"
    return made


def with_real_values(text: str) -> str:
    """Return the text with real values in place of the words in capitals."""
    for word, value in MEANT.items():
        text = text.replace(word, value)
    if text in ("ASSET", "DATASET", "RUN", "PROGRAM", "SYSTEM", "ENVIRONMENT", "EARLIER-VERSION"):
        return f"urn:known:{text.lower()}"
    return re.sub(r"(?<![\w-])[A-Z][A-Z0-9-]{2,}(?![\w+-]*:)(?![\w-])", lambda found: found[0].lower(), text)


def apply(card: dict[str, Any], advised: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """Change the card as the command does."""
    card = copy.deepcopy(card)
    order = ("--set", "--unset", "--add", "--file", "--address")
    for flag, key, text in sorted(advised, key=lambda change: order.index(change[0])):
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if flag == "--unset":
            del card[key]
        elif flag == "--add":
            card[key] = extended(key, card.get(key), value)
        elif flag == "--file":
            card = with_files(card, survey(Path(text)))
        elif flag == "--address":
            card = with_address(card, text)
        else:
            card[key] = expand(key, value)
    return card


def follow(card: dict[str, Any], advice: list[str]) -> dict[str, Any]:
    """Apply the advice with real values in place of the words in capitals."""
    file = str(FILES / ("model.onnx" if "MLModel" in card["@type"] else "train.csv"))
    for line in advice:
        card = apply(
            card,
            [(flag, key, file if flag == "--file" else with_real_values(text)) for flag, key, text in changes(line)],
        )
    return card


# What the advice may propose as it is: facts about the card itself, never about the asset or anybody's rights.
CHOICES = ("conformsTo", "@context")


@pytest.mark.parametrize("kind", list(KINDS))
def test_advice_pasted_without_filling_it_in_raises_nothing(kind: str) -> None:
    card = {**body(kind), "colour": "blue"}
    for start in (card, {**card, "distribution": [{"@type": "FileObject", "name": "x.tar"}]}):
        before = judged(start)
        for line in before.advice:
            pasted = [change for change in changes(line) if change[1] not in CHOICES or "YOUR-" in change[2]]
            for refused in [change for change in pasted if change[0] in ("--file", "--address")]:
                with pytest.raises(UsageError):
                    apply(start, [refused])
            pasted = [change for change in pasted if change[0] not in ("--file", "--address")]
            after = judged(apply(start, pasted))
            assert after.score <= before.score, line
            assert after.indicator_score <= before.indicator_score, line
            if pasted:
                said = " ".join(each.evidence for each in after.findings)
                assert f"{pasted[0][1]} is still the placeholder" in said, line


def test_a_placeholder_in_one_field_does_not_spoil_the_others() -> None:
    half = {"@type": "RecordSet", "name": "samples", "field": [{"name": "density"}, {"name": "FIELD"}]}
    found = finding(body(recordSet=half), "I1c")
    assert "recordSet with 1 field" in found.evidence
    assert finding(body(creator="Ada Lovelace (ORCID)"), "I2").points == 0.7
    assert "creator is still the placeholder (ORCID)" in finding(body(creator="Ada Lovelace (ORCID)"), "F2a").evidence


def test_words_that_only_look_like_placeholders_count() -> None:
    card = body(
        "dataset", "scienceDomain", "mlTask", description=f"RUN the MODEL: {WORDS}", keywords=["ORCID", "RUN", "x"]
    )
    assert finding(card, "F2b").outcome == "pass"


def test_columns_whose_names_are_placeholders_elsewhere_count() -> None:
    columns = ("NAME", "VALUE", "VERSION", "UNIT", "MODEL")
    records = {"@type": "RecordSet", "name": "table", "field": [{"@type": "Field", "name": each} for each in columns]}
    assert "recordSet with 5 fields" in finding(body(recordSet=records), "I1c").evidence


def test_every_word_that_the_advice_leaves_open_is_known_as_one() -> None:
    open_words = re.compile(r"\b[A-Z]{2}[A-Z0-9-]*\b")
    for key, text in rules()["placeholders"].items():
        if key not in CHOICES and open_words.search(text):
            said = [each.evidence for each in judged(apply(body(), [("--set", key, text)])).findings]
            assert judged(apply(body(), [("--set", key, text)])).score <= judged(body()).score, (key, said)


@pytest.mark.parametrize("kind", list(KINDS))
def test_following_the_advice_leads_to_a_high_score(kind: str) -> None:
    card = body(kind)
    before = judged(card).score
    for _ in range(3):
        card = follow(card, judged(card).advice)
    after = judged(card)
    assert after.score > 90 > before, [f"{each.id} {each.evidence}" for each in after.findings if each.points < 1]


def test_every_single_line_of_advice_raises_the_score() -> None:
    for kind in KINDS:
        card = {**body(kind), "colour": "blue"}
        found = judged(card)
        assert found.advice
        for line in found.advice:
            if " catalog update " in line:
                assert judged(follow(card, [line])).score > found.score, line


def test_the_advice_with_most_gain_comes_first() -> None:
    gains = [float(re.search(r"# up to \+([0-9.]+) by", line)[1]) for line in judged(body()).advice]  # type: ignore[index]
    assert gains == sorted(gains, reverse=True)


def test_no_two_lines_of_advice_change_the_same_property() -> None:
    for kind in KINDS:
        keys = [{key for _, key, _ in changes(line)} for line in judged({**body(kind), "colour": 1}).advice]
        assert sum(len(each) for each in keys) == len(set().union(*keys))


def test_one_command_gives_the_files_all_that_they_lack() -> None:
    card = body(distribution=[{"@type": "FileObject", "name": "train.csv", "contentUrl": "file:///home/me/train.csv"}])
    lines = [line for line in judged(card).advice if "--file" in line]
    assert len(lines) == 1
    assert lines[0].split("#")[0].endswith("--file FILE-OR-FOLDER --address https://ADDRESS  ")
    assert {"F1c", "A1b", "A1c", "R1a"} <= set(re.findall(r"[FAIR][0-9.]+[a-d]?", lines[0].split("#")[1]))
    (mended,) = follow(card, lines)["distribution"]
    data = (FILES / "train.csv").read_bytes()
    assert mended == {
        "@type": "FileObject",
        "@id": "train.csv",
        "name": "train.csv",
        "contentUrl": "https://data.institute.edu/x",
        "contentSize": f"{len(data)} B",
        "encodingFormat": "text/csv",
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def test_files_that_lack_only_an_address_are_not_measured_again() -> None:
    card = body(distribution=[{**FILE, "name": f"part-{at}.h5", "contentUrl": None} for at in range(100)])
    assert finding(card, "A1b").fix.endswith("@0 --address https://ADDRESS")
    assert all(
        entry["contentUrl"].endswith(entry["name"]) for entry in follow(card, judged(card).advice)["distribution"]
    )


def test_loose_packages_are_pinned_by_name() -> None:
    card = body("environment", *KINDS["environment"].rich[2:], softwareRequirements=["torch>=2", "numpy==2.0"])
    card["containerImage"] = "docker://institute/torch"
    fix = finding(card, "R1b").fix
    assert fix.endswith("--add softwareRequirements=torch==VERSION")
    assert apply(card, changes(fix))["softwareRequirements"] == ["torch==VERSION", "numpy==2.0"]


def test_a_card_in_no_catalog_is_added_before_it_is_changed() -> None:
    first, *others = judged(body(), replace(ALONE, file="my cards/lake.jsonld")).advice
    assert first.startswith("fairmile catalog add 'my cards/lake.jsonld'  #")
    assert all(line.startswith("fairmile catalog update ") for line in others)


def test_a_name_with_odd_characters_is_quoted_in_the_advice() -> None:
    card = {"@type": "Thing", "name": "it's; rm -rf ~"}
    for line in judged(card).advice:
        assert "rm" not in shlex.split(line, comments=True)[:3]
        changes(line)


# ---------------------------------------------------------------- properties

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["https://x.edu/a", SHA, "10 GB"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["@id", "@list", "@type", "@value", "name", "sha256", "url", "field", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
odd_keys = st.sampled_from(
    sorted(
        {
            *VALUES,
            "@context",
            "@id",
            "@type",
            "name",
            "foreign",
            "warnings",
            "contentDigest",
            "conditionsOfAccess",
            "isAccessibleForFree",
            "url",
            "licenseRaw",
            "tolerance",
        }
    )
)
calm = settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])


@calm
@given(
    kind=st.sampled_from(list(KINDS)),
    mutations=st.dictionaries(odd_keys | st.text(max_size=8), json_values, max_size=6),
)
def test_no_card_makes_the_assessment_fail(kind: str, mutations: dict[str, Any]) -> None:
    found = judged({**full(kind), **mutations})
    assert 0 <= found.score <= 100
    assert all(0 <= value <= 100 for value in found.letters.values())
    assert all(0 <= each.points <= 1 and "\n" not in each.evidence for each in found.findings)
    helpless = {each.id for each in found.findings if each.outcome in ("partial", "fail") and not each.fix}
    # Which rights to grant, and whether to swap one vocabulary for another, is left to the owner.
    assert helpless <= {"R1.1", "I2"}
    json.dumps(found.to_dict(), allow_nan=False)
    found.to_jsonld()


@calm
@given(
    kind=st.sampled_from(list(KINDS)),
    gone=st.sets(st.sampled_from(sorted({*VALUES})), max_size=40),
    data=st.data(),
)
def test_filling_in_a_recommended_property_never_lowers_the_score(
    kind: str, gone: set[str], data: st.DataObject
) -> None:
    wanted = {*KINDS[kind].required, *KINDS[kind].rich, *GENERAL} - {"name"}
    wanted |= {"distribution"} if kind == "model" else set()
    card = {key: value for key, value in full(kind).items() if key not in gone}
    missing = sorted(wanted - set(card))
    if missing:
        key = data.draw(st.sampled_from(missing))
        assert judged({**card, key: VALUES[key]}).score >= judged(card).score, key


@calm
@given(kind=st.sampled_from(list(KINDS)), gone=st.sets(st.sampled_from(sorted(VALUES)), max_size=40))
def test_advice_never_asks_for_what_is_there(kind: str, gone: set[str]) -> None:
    card = {key: value for key, value in full(kind).items() if key not in gone}
    for line in judged(card).advice:
        for flag, key, value in changes(line):
            if flag == "--set":
                assert key not in card, line
            else:
                assert value not in json.dumps(card.get(key, "")), line


def test_a_deeply_nested_card_is_read() -> None:
    nested: Any = "x"
    for _ in range(5000):
        nested = {"about": nested}
    assert 0 <= judged({**body(), "about": nested, "hyperparameters": nested}).score <= 100
