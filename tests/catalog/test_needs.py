"""Which environment belongs to an asset."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.catalog.catalog import Catalog
from fairmile.catalog.needs import environment_of

SAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tidalNet.json"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path)


@pytest.mark.parametrize("name", ["model/cosmoflow", "program/cosmoflow-benchmark"])
def test_an_asset_leads_to_the_environment_that_it_or_its_program_names(catalog: Catalog, name: str) -> None:
    found = environment_of(catalog, name)
    assert found is not None
    assert found["name"] == "TF 2.10 Horovod"


def test_an_environment_means_itself(catalog: Catalog) -> None:
    found = environment_of(catalog, "environment/tf-2.10-horovod")
    assert found is not None
    assert found["name"] == "TF 2.10 Horovod"


def test_the_environment_described_with_a_model_is_found(catalog: Catalog) -> None:
    catalog.add(str(SAMPLE))
    found = environment_of(catalog, "model/tidalnet")
    assert found is not None
    assert found["environmentVariables"] == {"OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize("name", ["dataset/mnist", "nosuch", "not a name/@"])
def test_what_names_none_has_none(catalog: Catalog, name: str) -> None:
    assert environment_of(catalog, name) is None
