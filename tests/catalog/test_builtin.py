"""The catalog that ships with the package: every card whole, true to the profile, linked, and FAIR enough."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from pyld import jsonld

from fairmile.base.commands import Here
from fairmile.base.digest import parse_checksum, sha256_hex
from fairmile.base.units import parse_size
from fairmile.catalog.card import SPDX_PREFIX, Card, as_list
from fairmile.catalog.fair import Surroundings, assess
from fairmile.catalog.identity import content_digest, is_iri
from fairmile.catalog.kinds import CONTEXT_IRI, KINDS, PROFILE_IRI
from fairmile.catalog.licences import licence_iri
from fairmile.catalog.profile import check_body
from fairmile.flows.files import read_flow
from fairmile.testing.fetchers import read
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.data import Data
from fairmile.transfer.remote import Context
from fairmile.transfer.settings import Settings

DATA = Path(str(files("fairmile.catalog"))) / "data"
ROOT = DATA / "cards"
SUITE = Path(str(files("fairmile.benchmarks"))) / "suite"
BASE = "https://w3id.org/fairmile/a/"
LEAST_SCORE = 80
ALGORITHMS = ("md5", "sha1", "sha256", "sha512")
# Assets whose publisher states no licence with an SPDX id: an honest gap, which the card's conditionsOfAccess explains.
LICENCE_UNSTATED = {
    "dataset/cosmouniverse-mini@2.0": "the portal of the data states none",
    "dataset/cosmouniverse-raw@2019-05": "the portal of the data states none",
    "dataset/cosmouniverse-small@1.0": "the portal of the data states none",
    "dataset/cosmouniverse@2.0": "the portal of the data states none",
    "dataset/deepcam-cam5@1.0": "neither the data nor the reference implementation states one for the data",
    "dataset/imagenet-ilsvrc2012-validation@2012": "terms of access of ImageNet, which have no SPDX id",
    "dataset/diabetes-lars@1.0": "the page that holds it states none",
    "dataset/kessler-microphysics-samples@1.0": "the file lies outside the licensed repository and states none",
    "dataset/scsn-earthquake-catalog@1932-2026": "terms of the data center, which have no SPDX id",
    "dataset/slstr-cloud-ds1@1.0": "Copernicus terms for the source, none for the compilation",
    "dataset/southern-california-daily-seismicity@1950-2019": "the repository that holds it has no licence file",
    "dataset/stemdl-cbed@1.0": "the documents of the benchmark state none for the deposit",
    "dataset/stemdl-ds1a@1.0": "the S3 service states none",
    "dataset/uno-top21-auc@1.0": "the download folder states none",
    "model/resnet-50@imagenet1k-v2": "torchvision states one for its code, none for its weights",
}
# What keeps a card below the score that the others reach: gaps of the asset itself, which no honest card can close.
EXPECTED = {
    "benchmark": """
        cloudmask cosmoflow deepcam earthquake miniweather mnist opencatalyst qsvr resnet50-inference sgemm stemdl uno
    """,
    "model": """
        cloudmask-u-net cosmoflow deeplabv3plus-xception dimenetplusplus earthquake-tft kessler-mlp
        mnist-dnn qubo-svr resnet-50 schnet sgemm-decision-tree stemdl-resnet-50 uno
    """,
    "dataset": """
        cosmouniverse cosmouniverse-mini cosmouniverse-small deepcam-cam5 diabetes-lars mnist
        kessler-microphysics-samples oc20-s2ef-200k oc20-s2ef-2m oc20-s2ef-val_id ptychonn-20191008_39 slstr-cloud-ds1
        scsn-earthquake-catalog sgemm-gpu-kernel-performance southern-california-daily-seismicity stemdl-cbed
        stemdl-ds1a uno-top21-auc
    """,
    "environment": "tf-2.10-horovod ucx-gdrcopy yaml-cpp",
    "workflow": """
        cloudmask-pipeline cosmoflow-pipeline deepcam-pipeline earthquake-pipeline miniweather-pipeline mnist-pipeline
        opencatalyst-pipeline stemdl-pipeline uno-pipeline
    """,
}


def _name(path: Path) -> str:
    if path.parent.parent == SUITE:  # its folder holds one version
        return f"benchmark/{path.parent.name}@{json.loads(path.read_text(encoding='utf-8'))['version']}"
    return f"{path.parent.parent.name}/{path.parent.name}@{path.name.removesuffix('.jsonld')}"


SHIPPED = sorted(ROOT.rglob("*.jsonld"))
PATHS = [*SHIPPED, *sorted(SUITE.glob("*/card.jsonld"))]
CARDS = {_name(path): Card(json.loads(path.read_text(encoding="utf-8")), catalog="builtin") for path in PATHS}
IRIS = {card.iri for card in CARDS.values()}
HANDLES = {str(card.handle) for card in CARDS.values()}
TERMS: Mapping[str, Any] = json.loads((DATA / "context.jsonld").read_text(encoding="utf-8"))["@context"]
each_card = for_each("name", CARDS)
each_benchmark = for_each("name", [name for name, card in CARDS.items() if card.kind == "benchmark"])


def _kind_of_value(key: str) -> str:
    term = TERMS[key]
    return str(term.get("@type", "")) if isinstance(term, Mapping) else ""


def _pairs(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, down to where plain JSON begins."""
    if isinstance(node, list):
        for item in node:
            yield from _pairs(item)
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield key, value
            if key in TERMS and _kind_of_value(key) != "@json":
                yield from _pairs(value)


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _texts(value)
    elif isinstance(node, list):
        for item in node:
            yield from _texts(item)


def _only_the_bundled_context(url: str, options: Any) -> dict[str, Any]:
    assert url == CONTEXT_IRI, f"a card asks for the context {url}"
    return {
        "contentType": "application/ld+json",
        "contextUrl": None,
        "documentUrl": url,
        "document": {"@context": TERMS},
    }


def _resolves(target: str) -> bool:
    return target in IRIS or target in HANDLES


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_assets_that_the_benchmarks_need_are_there(kind: str) -> None:
    names = {card.handle.name for card in CARDS.values() if card.kind == kind}
    assert set(EXPECTED[kind].split()) <= names


def test_nothing_but_cards_lies_in_the_folder() -> None:
    assert sorted(path for path in ROOT.rglob("*") if path.is_file()) == SHIPPED


@for_each("path", PATHS)
def test_a_file_holds_the_bytes_that_the_program_writes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == Card(json.loads(text)).to_json()


@each_card
def test_a_card_lies_under_its_kind_name_and_version(name: str) -> None:
    handle = CARDS[name].handle
    assert name == f"{handle.kind}/{handle.name}@{handle.version}"
    assert re.fullmatch(r"[a-z0-9._-]+", handle.name)
    assert CARDS[name].iri == f"{BASE}{handle.kind}/{handle.name}/{handle.version}"


def test_no_two_cards_share_a_handle_or_an_id() -> None:
    assert len({card.handle for card in CARDS.values()}) == len(PATHS)
    assert len(IRIS) == len(PATHS)


@each_card
def test_a_card_follows_the_profile(name: str) -> None:
    body = CARDS[name].body
    assert body["@context"] == CONTEXT_IRI
    assert PROFILE_IRI in body["conformsTo"]
    found = {(problem.severity, problem.field, problem.message) for problem in check_body(body)}
    if name in LICENCE_UNSTATED:
        found = {problem for problem in found if problem[:2] != ("warning", "license")}
    assert found == set()


@each_card
def test_a_card_has_all_that_its_kind_requires(name: str) -> None:
    card = CARDS[name]
    missing = {key for key in KINDS[card.kind].required if not as_list(card.get(key))}
    assert missing == ({"license"} if name in LICENCE_UNSTATED else set())


def test_the_table_of_unstated_licences_lists_no_card_in_vain() -> None:
    assert {name for name, card in CARDS.items() if not card.get("license")} == set(LICENCE_UNSTATED)


@pytest.mark.parametrize("name", LICENCE_UNSTATED)
def test_where_no_licence_is_stated_the_conditions_say_so(name: str) -> None:
    said = " ".join([*CARDS[name].texts("conditionsOfAccess"), *CARDS[name].texts("licenseRaw")]).lower()
    assert "licence" in said or "terms" in said or "reuse right" in said


@each_card
def test_a_licence_is_an_spdx_address(name: str) -> None:
    for text in CARDS[name].texts("license"):
        assert text.startswith(SPDX_PREFIX)
        assert licence_iri(text) == text


@each_card
def test_every_key_is_a_term_of_the_bundled_context(name: str) -> None:
    unknown = {key for key, _ in _pairs(CARDS[name].body) if not key.startswith("@") and key not in TERMS}
    assert unknown == set()


@each_card
def test_every_type_is_a_class_of_the_bundled_context(name: str) -> None:
    types = {text for key, value in _pairs(CARDS[name].body) if key == "@type" for text in as_list(value)}
    assert types <= set(TERMS)


@each_card
def test_a_card_expands_with_the_bundled_context_alone(name: str) -> None:
    body = CARDS[name].body
    expanded = jsonld.expand(body, {"documentLoader": _only_the_bundled_context, "base": CARDS[name].iri})
    assert len(expanded) == 1
    assert expanded[0]["@id"] == CARDS[name].iri
    assert len(expanded[0]) == len(body) - 1, "a key was dropped in expansion"


@each_card
def test_a_value_that_should_be_an_address_is_one(name: str) -> None:
    local = ("fileObject", "fileSet", "mainEntity")  # these name a file of the same card
    for key, value in _pairs(CARDS[name].body):
        if key in TERMS and _kind_of_value(key) == "@id" and key not in local:
            for text in as_list(value):
                assert is_iri(text if isinstance(text, str) else text["@id"]), f"{key}: {text!r}"


@each_card
def test_links_within_the_catalog_lead_to_a_card(name: str) -> None:
    assert {text for text in _texts(CARDS[name].body) if text.startswith(BASE)} <= IRIS


@each_card
def test_every_link_is_an_absolute_address_and_not_to_itself(name: str) -> None:
    card = CARDS[name]
    for relation, target in card.links:
        assert is_iri(target), f"{relation}: {target!r}"
        assert target != card.iri, relation


@each_card
def test_files_have_sizes_that_parse_and_checksums_that_are_checksums(name: str) -> None:
    card = CARDS[name]
    entries = [entry for entry in as_list(card.get("distribution")) if isinstance(entry, Mapping)]
    names = Counter(entry["@id"] for entry in entries)
    assert all(count == 1 for count in names.values()), names
    for entry in entries:
        assert entry["encodingFormat"]
        assert entry.get("contentUrl") or entry.get("containedIn"), f"{entry['@id']} is nowhere"
        if "containedIn" in entry:
            assert entry["containedIn"]["@id"] in names
        if "contentSize" in entry:
            assert parse_size(entry["contentSize"]) > 0
        for algorithm in ALGORITHMS:
            if algorithm in entry:
                checksum = parse_checksum(entry[algorithm], algorithm)
                assert checksum is not None
                assert checksum.hex == entry[algorithm]


@for_each("name", [name for name, card in CARDS.items() if card.kind == "workflow"])
def test_a_workflow_holds_a_flow_whose_steps_run_assets_of_the_catalog(name: str, tmp_path: Path) -> None:
    card = CARDS[name]
    (entry,) = card["distribution"]
    assert entry["name"] == card["mainEntity"]
    (remote,) = Data(Context({}, Here(), Credentials({}), Settings())).find(entry["contentUrl"])
    text = read(Data(Context({}, Here(), Credentials({}), Settings())).open(remote, 0, None))
    assert (sha256_hex(text), f"{len(text)} B") == (entry["sha256"], entry["contentSize"])
    (tmp_path / entry["name"]).write_bytes(text)
    flow = read_flow(tmp_path / entry["name"]).flow
    assert list(flow.steps) == [step["name"] for step in card["step"]]
    assert {step.run for step in flow.steps.values()} <= {f"{each.kind}/{each.handle.name}" for each in CARDS.values()}
    defaults = {each["name"]: each["defaultValue"] for each in card["input"]}
    assert {name: flow.steps["train"].params[name] for name in defaults} == defaults


@for_each("name", [name for name, card in CARDS.items() if card.text("contentDigest")])
def test_a_content_digest_is_that_of_the_files(name: str) -> None:
    fetched = [(file.name, file.size_bytes or 0, file.sha256) for file in CARDS[name].files if file.sha256]
    assert CARDS[name].text("contentDigest") == content_digest(fetched)


@each_card
def test_record_fields_name_files_of_the_same_card(name: str) -> None:
    card = CARDS[name]
    files = {entry["@id"] for entry in as_list(card.get("distribution"))}
    for records in as_list(card.get("recordSet")):
        for field in records["field"]:
            source = field["source"]
            assert (source.get("fileSet") or source.get("fileObject"))["@id"] in files
            assert field["@id"].startswith(records["@id"] + "/")


@each_card
def test_a_card_says_enough_to_be_found(name: str) -> None:
    card = CARDS[name]
    assert len(card.text("description").split()) >= 50
    assert len(set(card.keywords)) >= 3
    assert card.domains
    assert card.texts("creator")
    assert card.texts("conditionsOfAccess")


@each_card
def test_a_published_result_is_a_number_with_its_source(name: str) -> None:
    for entry in as_list(CARDS[name].get("evaluationResults")):
        assert isinstance(entry["value"], (int, float)), entry
        assert entry["propertyID"], entry
        assert entry.get("citation") or entry.get("description"), entry


@each_benchmark
def test_a_benchmark_names_models_data_and_a_metric_with_its_direction(name: str) -> None:
    card = CARDS[name]
    spec = card["matchSpec"]
    kinds = {iri: each.kind for each in CARDS.values() for iri in [each.iri]}
    assert spec["models"] and {kinds[iri] for iri in spec["models"]} == {"model"}
    assert spec["datasets"] and {kinds[iri] for iri in spec["datasets"]} == {"dataset"}
    assert spec["direction"] in ("higher", "lower")
    assert spec["metric"] in {entry["propertyID"] for entry in card["evaluationMetrics"]}
    assert spec["domain"] in card.domains
    assert spec["rule"]
    assert isinstance(spec.get("target", 0), (int, float))


@each_benchmark
def test_a_benchmark_has_a_baseline_in_one_of_its_metrics(name: str) -> None:
    card = CARDS[name]
    metrics = {entry["propertyID"] for entry in card["evaluationMetrics"]}
    assert card["baselines"]
    for baseline in card["baselines"]:
        assert baseline["metric"] in metrics
        assert isinstance(baseline["value"], (int, float))
        assert baseline["name"] and baseline["source"]


@each_benchmark
def test_models_of_a_benchmark_accept_one_of_its_data_sets(name: str) -> None:
    spec = CARDS[name]["matchSpec"]
    for model in (card for card in CARDS.values() if card.iri in spec["models"]):
        accepted = {*model.texts("acceptsDataset"), *model.texts("trainedOn"), *model.texts("evaluatedOn")}
        assert accepted & set(spec["datasets"]), model.handle


def _is_ror(iri: str) -> bool:
    """Tell whether the id has ROR's form and its check digits (ISO 7064, 97-10, over Crockford's base 32)."""
    match = re.fullmatch(r"https://ror\.org/(0[0-9a-hjkmnp-tv-z]{6})([0-9]{2})", iri)
    if match is None:
        return False
    number = 0
    for letter in match[1]:
        number = number * 32 + "0123456789abcdefghjkmnpqrstvwxyz".index(letter)
    return 98 - number * 100 % 97 == int(match[2])


@each_card
def test_organisations_and_revisions_have_ids_that_can_exist(name: str) -> None:
    for text in _texts(CARDS[name].body):
        if "ror.org/" in text:
            assert _is_ror(text), text
        if text.startswith("swh:"):
            assert re.fullmatch(r"swh:1:rev:[0-9a-f]{40}", text), text


def test_a_mistyped_organisation_id_is_noticed() -> None:
    assert _is_ror("https://ror.org/02jbv0t02")
    assert not _is_ror("https://ror.org/02jbv0t03")
    assert not _is_ror("https://ror.org/03jbv0t02")


@each_card
def test_a_card_is_fair_enough_by_our_own_score(name: str) -> None:
    assessment = assess(CARDS[name], Surroundings(resolves=_resolves, indexed_in=("builtin",)))
    assert assessment.score >= LEAST_SCORE, "\n".join(assessment.advice)


@each_card
def test_a_card_does_not_derive_from_its_own_page_or_from_a_paper(name: str) -> None:
    card = CARDS[name]
    papers = {entry["@id"] if isinstance(entry, Mapping) else entry for entry in as_list(card.get("citation"))}
    assert not set(card.texts("wasDerivedFrom")) & {*card.texts("url"), *papers}


@pytest.mark.parametrize("name", ["cosmoflow", "deepcam", "opencatalyst"])
def test_a_time_that_was_measured_under_older_rules_says_so(name: str) -> None:
    results = CARDS[f"benchmark/{name}@3.0"]["evaluationResults"]
    older = [entry for entry in results if "v2.0" in str(entry.get("citation"))]
    assert older
    assert all("v2.0" in entry["name"] for entry in older)
