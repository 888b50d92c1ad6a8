from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import NotFound, UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.match import WEIGHTS, Match

Factory = Callable[..., dict[str, Any]]


def reasons(found: list[Match]) -> dict[str, set[str]]:
    """Return the kinds of reasons by the names of model and data set."""
    return {
        f"{each.model.split('/')[-1].split('@')[0]} {each.dataset.split('/')[-1].split('@')[0]}": {
            reason.kind for reason in each.reasons
        }
        for each in found
    }


def both_ways(catalog: Catalog, model: str = "net", dataset: str = "alpha") -> set[str]:
    """Return why they fit, asked from either side; both sides must agree."""
    forward = reasons(catalog.match(model=model)).get(f"{model} {dataset}", set())
    backward = reasons(catalog.match(dataset=dataset)).get(f"{model} {dataset}", set())
    together = reasons(catalog.match(model=model, dataset=dataset)).get(f"{model} {dataset}", set())
    assert forward == backward == together
    return forward


# A statement of somebody


@pytest.mark.parametrize("relation", ["trainedOn", "testedOn", "validatedOn", "evaluatedOn", "acceptsDataset"])
def test_what_the_model_declares_is_a_reason(catalog: Catalog, card: Factory, relation: str) -> None:
    catalog.add(card("dataset", "Alpha"))
    catalog.add(card("dataset", "Other"))
    catalog.add(card("model", "Net", **{relation: {"@id": card("dataset", "Alpha")["@id"]}}))
    assert both_ways(catalog) == {"declared"}
    assert relation in catalog.match(model="net")[0].reasons[0].text


@pytest.mark.parametrize(
    "link",
    [
        "https://example.net/dataset/alpha-set/1.0",
        {"@id": "https://example.net/dataset/alpha-set/1.0"},
        [{"@id": "https://example.net/nothing"}, {"@id": "https://example.net/dataset/alpha-set/1.0"}],
        "https://doi.org/10.1234/alpha",
        "Alpha set",
        "alpha-set",
        "dataset/alpha-set",
        "alpha-set@1.0",
        "dataset/alpha-set@1.0",
        "local/dataset/alpha-set@1.0",
        {"name": "Alpha set"},
    ],
)
def test_a_link_may_be_an_address_a_name_or_a_handle(catalog: Catalog, card: Factory, link: Any) -> None:
    catalog.add(card("dataset", "Alpha set", identifier="https://doi.org/10.1234/alpha"))
    catalog.add(card("model", "Net", trainedOn=link))
    assert both_ways(catalog, dataset="alpha-set") == {"declared"}


def test_a_link_to_another_version_does_not_count_for_this_one(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha", "2.0"))
    catalog.add(card("model", "Net", trainedOn="dataset/alpha@1.0"))
    assert catalog.match(model="net") == []


@pytest.mark.parametrize(
    "links",
    [
        {"object": [{"@id": "https://example.net/dataset/alpha/1.0"}, {"@id": "https://example.net/model/net/1.0"}]},
        {"object": "alpha", "instrument": "net"},
        {"object": "alpha", "result": "model/net@1.0"},
        {"evaluationDataset": "alpha", "evaluatedMLModel": "Net"},
    ],
)
def test_a_run_of_both_is_evidence(catalog: Catalog, card: Factory, links: dict[str, Any]) -> None:
    catalog.add(card("dataset", "Alpha"))
    catalog.add(card("model", "Net"))
    catalog.add(card("run", "Training", version=None, **links))
    assert both_ways(catalog) == {"run"}
    (found,) = catalog.match(model="net")
    assert "local/run/training" in found.reasons[0].text
    assert found.score == 1.0


def test_a_run_of_the_model_on_other_data_is_no_evidence(catalog: Catalog, card: Factory) -> None:
    for name in ("Alpha", "Other"):
        catalog.add(card("dataset", name))
    catalog.add(card("model", "Net"))
    catalog.add(card("run", "Training", version=None, object="other", instrument="net"))
    assert both_ways(catalog) == set()
    assert both_ways(catalog, dataset="other") == {"run"}


def test_a_benchmark_that_lists_both_pairs_them(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha"))
    catalog.add(card("dataset", "Other"))
    catalog.add(card("model", "Net"))
    spec = {"models": ["net", "model/unknown"], "datasets": [{"@id": card("dataset", "Alpha")["@id"]}]}
    catalog.add(card("benchmark", "Contest", matchSpec=spec))
    assert both_ways(catalog) == {"benchmark"}
    assert "the benchmark local/benchmark/contest@1.0 pairs them" in catalog.match(dataset="alpha")[0].reasons[0].text


def test_a_workflow_that_takes_both_pairs_them(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha"))
    catalog.add(card("model", "Net"))
    catalog.add(card("workflow", "Pipeline", input=["alpha"], result="model/net"))
    assert both_ways(catalog) == {"workflow"}


def test_what_was_removed_is_no_evidence_and_no_candidate(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha"))
    catalog.add(card("dataset", "Gone"))
    catalog.add(card("model", "Net", trainedOn=["gone"]))
    catalog.add(card("run", "Training", version=None, object="alpha", instrument="net"))
    catalog.remove("run/training")
    catalog.remove("dataset/gone")
    assert catalog.match(model="net") == []


# Likeness


def shaped(*shape: Any) -> dict[str, Any]:
    return {"signature": {"inputs": [{"name": "x", "dtype": "float32", "shape": [-1, *shape]}]}}


def record(shape: Any) -> dict[str, Any]:
    return {"recordSet": [{"name": "r", "field": [{"name": "volume", "arrayShape": shape}]}]}


@pytest.mark.parametrize("shape", ["128,128,4", "(128, 128, 4)", "[128,128,4]", [128, 128, 4]])
def test_a_record_that_fits_the_input_is_a_reason(catalog: Catalog, card: Factory, shape: Any) -> None:
    catalog.add(card("dataset", "Alpha", scienceDomain="cosmology", **record(shape)))
    catalog.add(card("model", "Net", scienceDomain="cosmology", **shaped(128, None, 4)))
    assert both_ways(catalog) == {"signature", "domain"}
    text = next(r.text for r in catalog.match(model="net")[0].reasons if r.kind == "signature")
    assert "128×128×4" in text
    assert "?×128×?×4" in text


@pytest.mark.parametrize("shape", ["128,128", "64,128,4", "128,128,4,1", "128", "wide", None])
def test_a_record_that_does_not_fit_is_none(catalog: Catalog, card: Factory, shape: Any) -> None:
    catalog.add(card("dataset", "Alpha", mlTask="regression", scienceDomain="cosmology", **record(shape)))
    catalog.add(card("model", "Net", mlTask="regression", scienceDomain="cosmology", **shaped(128, 128, 4)))
    assert both_ways(catalog) == {"task", "domain"}


def test_an_input_of_unknown_size_fits_nothing_in_particular(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha", scienceDomain="cosmology", **record("128,128,4")))
    catalog.add(card("model", "Net", scienceDomain="cosmology", **shaped(None, -1, None)))
    assert both_ways(catalog) == set()


def test_task_and_domain_in_common_are_a_match(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha", mlTask="Image_Classification", scienceDomain="Cosmology"))
    catalog.add(card("model", "Net", mlTask=["image-classification"], scienceDomain=["cosmology"]))
    assert both_ways(catalog) == {"task", "domain"}


@pytest.mark.parametrize(
    "common",
    [
        {"scienceDomain": "cosmology"},
        {"mlTask": "regression"},
        {},
    ],
)
def test_one_mark_of_likeness_is_no_match(catalog: Catalog, card: Factory, common: dict[str, Any]) -> None:
    catalog.add(card("dataset", "Alpha", **common))
    catalog.add(card("model", "Net", **common))
    assert both_ways(catalog) == set()
    assert catalog.match(domain="cosmology") == []


def test_domain_and_format_alone_are_no_match(catalog: Catalog, card: Factory) -> None:
    reads = {"signature": {"inputs": [{"name": "x", "encodingFormat": "application/x-hdf5"}]}}
    files = [{"name": "a.h5", "encodingFormat": "application/x-hdf5"}]
    catalog.add(card("dataset", "Alpha", scienceDomain="cosmology", distribution=files))
    catalog.add(card("model", "Net", scienceDomain="cosmology", **reads))
    assert both_ways(catalog) == set()


@pytest.mark.parametrize("written", ["application/x-hdf5", "hdf5", ".h5"])
def test_a_format_that_the_model_reads_is_a_reason(catalog: Catalog, card: Factory, written: str) -> None:
    inputs = [{"name": "x", "shape": [-1, 128, 4], "encodingFormat": "application/x-hdf5"}]
    files = [{"name": "a.h5", "encodingFormat": written}]
    catalog.add(card("dataset", "Alpha", distribution=files, **record("128,4")))
    catalog.add(card("model", "Net", signature={"inputs": inputs}))
    assert both_ways(catalog) == {"signature", "format"}


def test_more_and_better_reasons_score_higher(catalog: Catalog, card: Factory) -> None:
    like = {"mlTask": "regression", "scienceDomain": "cosmology"}
    for name in ("Declared", "Run and declared", "Alike"):
        catalog.add(card("dataset", name, **like))
    catalog.add(card("model", "Net", **like, trainedOn=["declared", "run-and-declared"]))
    catalog.add(card("run", "Training", version=None, object="run-and-declared", instrument="net"))
    found = catalog.match(model="net")
    assert [each.dataset.split("/")[-1] for each in found] == ["run-and-declared@1.0", "declared@1.0", "alike@1.0"]
    alike = 1 - (1 - WEIGHTS["task"]) * (1 - WEIGHTS["domain"])
    assert found[2].score == round(alike, 3)
    assert found[1].score == round(1 - (1 - alike) * (1 - WEIGHTS["declared"]), 3)
    assert found[0].score == 1.0
    assert catalog.match(model="net", limit=1) == found[:1]


# Three ways


def test_a_domain_gives_its_pairs(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha", scienceDomain="physical cosmology"))
    catalog.add(card("dataset", "Waves", scienceDomain="seismology"))
    catalog.add(card("model", "Net", scienceDomain="cosmology", trainedOn="alpha"))
    catalog.add(card("model", "Quake", scienceDomain="seismology", trainedOn="waves"))
    assert reasons(catalog.match(domain="cosmology")) == {"net alpha": {"declared"}}
    assert reasons(catalog.match(domain="Seismology")) == {"quake waves": {"declared", "domain"}}
    (found,) = catalog.match(domain="cosmology")
    assert found.domains == ("cosmology", "physical cosmology")


def test_a_domain_narrows_the_matches_of_a_model(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha", scienceDomain="cosmology"))
    catalog.add(card("dataset", "Waves", scienceDomain="seismology"))
    catalog.add(card("model", "Net", trainedOn=["alpha", "waves"]))
    assert set(reasons(catalog.match(model="net"))) == {"net alpha", "net waves"}
    assert set(reasons(catalog.match(model="net", domain="seismology"))) == {"net waves"}


def test_values_with_quotes_and_great_length_do_no_harm(catalog: Catalog, card: Factory) -> None:
    odd = {"scienceDomain": ['the "dark" side', "x" * 3000], "mlTask": ['"', "-/:*"]}
    catalog.add(card("dataset", "Alpha", **odd))
    catalog.add(card("model", "Net", **odd, trainedOn='a "strange/name" / of / ours / here'))
    assert both_ways(catalog) == {"task", "domain"}
    assert set(reasons(catalog.match(domain='the "dark" side'))) == {"net alpha"}


@pytest.mark.parametrize("first", ["local", "there"])
def test_a_copy_in_another_catalog_is_one_match(home: Path, builtin: CatalogFolder, card: Factory, first: str) -> None:
    catalog = Catalog(home, sources={"there": "/nowhere"}, builtin=builtin)
    theirs = CatalogFolder("there", catalog.home / "sources" / "there")
    for name in (first, "there" if first == "local" else "local"):
        if name == "local":
            catalog.add(card("dataset", "Alpha", description="mine"))
        else:
            theirs.write(Card(card("dataset", "Alpha")))
            theirs.touch_generation()
        catalog.search()
    catalog.add(card("model", "Net", trainedOn="alpha"))
    assert [each.dataset for each in catalog.match(model="net")] == ["local/dataset/alpha@1.0"]


def test_something_must_be_asked_for(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="nothing to match"):
        catalog.match()


def test_a_name_of_another_kind_is_not_found(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha"))
    with pytest.raises(NotFound, match="no model named 'alpha'"):
        catalog.match(model="alpha")


def test_a_match_is_data(catalog: Catalog, card: Factory) -> None:
    catalog.add(card("dataset", "Alpha"))
    catalog.add(card("model", "Net", trainedOn="alpha"))
    assert [each.to_dict() for each in catalog.match(model="net")] == [
        {
            "model": "local/model/net@1.0",
            "dataset": "local/dataset/alpha@1.0",
            "domains": [],
            "score": 0.9,
            "reasons": [{"kind": "declared", "text": "the model's card says trainedOn"}],
        }
    ]
