"""Systems that have files of their own are found as assets are."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import NotFound
from fairmile.workspace import Workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder: Path = tmp_path_factory.mktemp("systems")
    return Workspace.open(environ={"HOME": str(folder), "FAIRMILE_HOME": str(folder)}, cwd=folder)


@pytest.mark.parametrize(
    "where",
    [
        {"gpu": "V100"},
        {"gpu": "tesla v100"},
        {"machine": "juwels"},
        {"words": "jülich"},
        {"words": "juw*"},
        {"words": "/^JUW/"},
    ],
)
def test_a_system_is_found_by_what_its_file_tells(workspace: Workspace, where: dict[str, str]) -> None:
    assert "juwels" in [hit.row.name for hit in workspace.catalog.find("system", **where)]


@pytest.mark.parametrize("where", [{"gpu": "V1"}, {"domain": "cosmology"}, {"words": "juwels -jülich"}])
def test_a_system_is_not_found_by_what_it_is_not(workspace: Workspace, where: dict[str, str]) -> None:
    assert "juwels" not in [hit.row.name for hit in workspace.catalog.find("system", **where)]


def test_only_a_search_for_systems_lists_them(workspace: Workspace) -> None:
    assert {hit.kind for hit in workspace.catalog.search("kind:system", limit=100)} == {"system"}
    assert "system" not in {hit.kind for hit in workspace.catalog.search("jülich", limit=100)}


def test_a_system_without_a_card_says_where_it_is_shown(workspace: Workspace) -> None:
    with pytest.raises(NotFound) as caught:
        workspace.catalog.get("system/juwels")
    assert "fairmile system show juwels" in caught.value.hint
