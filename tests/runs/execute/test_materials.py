"""Materials come from addresses, lie where a program looks for them, and are what their record says."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import Integrity, UsageError
from fairmile.runs.execute.materials import Material, bring, materialize, plan_materials
from fairmile.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(environ={"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}, cwd=tmp_path)


@pytest.fixture
def levels(tmp_path: Path) -> Path:
    file = tmp_path / "levels.csv"
    file.write_text("2.5\n3.0\n")
    return file


def test_a_file_lies_under_the_name_that_its_program_expects(workspace: Workspace, levels: Path) -> None:
    table = Material("dataset.table", levels.as_uri(), "data/table", file="table.csv")
    inputs = json.loads(json.dumps(bring([table], workspace.assets)))
    places = materialize(inputs, workspace.assets, levels.parent / "work")
    assert places == {"dataset.table": str(levels.parent / "work" / "data" / "table" / "table.csv")}
    assert Path(places["dataset.table"]).read_text() == levels.read_text()
    assert inputs["dataset.table"]["asset"] == levels.as_uri()


def test_an_archive_is_unpacked_where_it_lies(workspace: Workspace, levels: Path) -> None:
    archive = levels.with_name("levels.tar.gz")
    with tarfile.open(archive, "w:gz") as stream:
        stream.add(levels, "deep/levels.csv")
    inputs = bring([Material("data", archive.as_uri(), "data", unpack=True)], workspace.assets)
    places = materialize(inputs, workspace.assets, levels.parent / "work")
    assert (Path(places["data"]) / "deep" / "levels.csv").read_text() == levels.read_text()


def test_other_inputs_are_left_alone_and_no_place_leads_out(workspace: Workspace, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert materialize({"plain": {"path": "/data"}}, workspace.assets, work) == {}
    with pytest.raises(UsageError):
        materialize({"evil": {"place": "../elsewhere"}}, workspace.assets, work)


@pytest.mark.parametrize(
    "stated", [{"size_bytes": 3}, {"checksums": {"md5": "0" * 32}}, {"checksums": {"sha256": "0" * 64}}]
)
def test_what_is_not_as_stated_is_refused(workspace: Workspace, levels: Path, stated: dict[str, Any]) -> None:
    with pytest.raises(Integrity):
        bring([Material("data", levels.as_uri(), "data", **stated)], workspace.assets)


def test_a_right_digest_of_another_kind_is_enough(workspace: Workspace, levels: Path) -> None:
    md5 = hashlib.md5(levels.read_bytes()).hexdigest()
    entry = bring([Material("data", levels.as_uri(), "data", checksums={"md5": md5})], workspace.assets)["data"]
    assert entry["checksum"] == hashlib.sha256(levels.read_bytes()).hexdigest()


def test_a_plan_tells_what_would_be_fetched_and_what_cannot_be_asked(workspace: Workspace, levels: Path) -> None:
    there = Material("a", levels.as_uri(), "a", label="levels")
    gone = Material("b", levels.with_name("gone.csv").as_uri(), "b", size_bytes=77)
    (first, size), (second, known) = plan_materials([there, gone], workspace.assets)
    assert first.startswith("levels: ") and size == 8
    assert second.startswith("b: ") and "unavailable now" in second and known == 77
