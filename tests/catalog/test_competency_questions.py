"""The five questions that the HPC-FAIR project's final report asks of a catalog, on a small graph of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairmile.catalog.catalog import Catalog

Factory = Callable[..., dict[str, Any]]


@pytest.fixture
def graph(catalog: Catalog, card: Factory) -> Catalog:
    """Three projects, three machines, and the data sets, models and workflows between them."""

    def project(name: str, funder: str) -> dict[str, Any]:
        iri = f"https://example.net/project/{name.lower()}"
        return {"@id": iri, "@type": "ResearchProject", "name": name, "funder": {"name": funder}}

    def to(kind: str, name: str) -> dict[str, str]:
        return {"@id": card(kind, name)["@id"]}

    xplacer, heteromap, weather = project("Xplacer", "NSF"), project("HeteroMap", "NSF"), project("Weather", "DOE")
    catalog.add(card("system", "Lassen", gpuModel="NVIDIA V100", gpuArchitecture="Volta"))
    catalog.add(card("system", "Corona", gpuModel="AMD MI50"))
    catalog.add(card("system", "Sierra", gpuModel=["NVIDIA V100"]))
    catalog.add(card("program", "NPB", alternateName="NAS Parallel Benchmarks"))
    catalog.add(card("program", "Rodinia"))

    perf = {"about": "performance prediction", "keywords": ["performance prediction"]}
    catalog.add(card("dataset", "Placement traces", project=xplacer, **perf))
    catalog.add(card("dataset", "Placement labels", project=xplacer, keywords=["labels"]))
    catalog.add(card("dataset", "Mapping timings", project=heteromap, **perf))
    catalog.add(card("dataset", "Storm tracks", project=weather, **perf))

    catalog.add(card("model", "Placer", targetMachine=to("system", "Lassen"), project=xplacer))
    catalog.add(card("model", "Mapper", targetMachine=[to("system", "Corona"), to("system", "Sierra")]))
    catalog.add(card("model", "Forecaster", targetMachine="Corona"))

    mapping = {"keywords": ["heterogeneous mapping"]}
    catalog.add(card("workflow", "Map NPB", result=to("model", "Mapper"), object=to("program", "NPB"), **mapping))
    catalog.add(
        card("workflow", "Map Rodinia", result=to("model", "Mapper"), object=to("program", "Rodinia"), **mapping)
    )
    catalog.add(card("workflow", "Place NPB", result=to("model", "Placer"), object=to("program", "NPB"), **mapping))
    catalog.add(card("workflow", "Run NPB", object=to("program", "NPB"), **mapping))
    return catalog


def test_question_1_the_data_sets_of_a_project(graph: Catalog) -> None:
    found = graph.find("dataset", project="Xplacer")
    assert sorted(hit.iri for hit in found) == [
        "https://example.net/dataset/placement-labels/1.0",
        "https://example.net/dataset/placement-traces/1.0",
    ]
    assert {hit.iri for hit in graph.search("kind:dataset project:xplacer")} == {hit.iri for hit in found}


def test_question_2_the_models_for_a_machine(graph: Catalog) -> None:
    assert [hit.title for hit in graph.find("model", machine="lassen")] == ["Placer"]
    assert [hit.title for hit in graph.search("kind:model machine:lassen")] == ["Placer"]
    assert sorted(hit.title for hit in graph.find("model", targetMachine=graph.get("corona"))) == [
        "Forecaster",
        "Mapper",
    ]


def test_question_3_the_models_for_machines_with_a_gpu(graph: Catalog) -> None:
    machines = graph.find("system", gpu="Nvidia V100")
    assert sorted(hit.title for hit in machines) == ["Lassen", "Sierra"]
    assert sorted(hit.title for hit in graph.find("model", targetMachine=machines)) == ["Mapper", "Placer"]
    assert graph.find("model", targetMachine=graph.find("system", gpu="H200")) == []


def test_question_4_the_data_sets_of_a_funder_about_a_topic(graph: Catalog) -> None:
    found = graph.find("dataset", '"performance prediction"', funder="NSF")
    assert sorted(hit.title for hit in found) == ["Mapping timings", "Placement traces"]
    typed = graph.search('kind:dataset funder:nsf "performance prediction"')
    assert {hit.iri for hit in typed} == {hit.iri for hit in found}


def test_question_5_the_workflows_that_make_models_for_a_topic_on_a_program_and_a_gpu(graph: Catalog) -> None:
    machines = graph.find("system", gpu="AMD")
    models = graph.find("model", targetMachine=machines)
    programs = graph.find("program", "NPB")
    found = graph.find("workflow", "heterogeneous mapping", result=models, object=programs)
    assert [hit.title for hit in found] == ["Map NPB"]


def test_the_questions_are_answered_after_a_rebuild_and_after_a_change(graph: Catalog) -> None:
    graph.reindex()
    graph.update("model/placer", set={"targetMachine": "Corona"})
    assert graph.find("model", machine="lassen") == []
    assert len(graph.find("model", machine="corona")) == 3
    graph.remove("dataset/placement-labels")
    live = [hit.title for hit in graph.find("dataset", project="Xplacer") if not hit.row.gone]
    assert live == ["Placement traces"]
