"""`fairmile doctor`: settings, catalogs, and what does not work."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trusted_projects import trusted_project

from fairmile import __version__

Fairmile = Callable[..., Any]


def test_settings_are_shown_with_their_origin(fairmile: Fairmile, place: Path, tmp_path: Path) -> None:
    (place / "fairmile.yaml").write_text("catalog:\n  base: https://data.example.org\n")
    result = fairmile("doctor")
    assert result.code == 0
    assert result.out.splitlines()[0].startswith(f"fairmile {__version__}, Python {platform.python_version()}, SQLite ")
    rows = [re.split(r"  +", line) for line in result.out.splitlines()]
    assert ["home", str(tmp_path / "home"), "environment FAIRMILE_HOME"] in rows
    assert ["catalog.base", "https://data.example.org", f"{place}/fairmile.yaml:2"] in rows
    assert [row for row in rows if row[-1] == "default"] == []


def test_the_program_gets_settings_as_data(fairmile: Fairmile, place: Path) -> None:
    trusted_project(place, "sources:\n  group: {location: ./shared-cards, type: folder}\n")
    settings = {each["key"]: each["value"] for each in fairmile("doctor", "--json").json["settings"]}
    assert settings["sources.group"] == {"location": "./shared-cards", "type": "folder"}


def test_catalogs_are_shown_with_their_state(lake: Fairmile) -> None:
    assert lake("catalog", "source", "add", "group", "./shared-cards").code == 0
    facts = lake("doctor", "--json").json
    assert [(each["name"], each["cards"]) for each in facts["catalogs"]][:2] == [("local", 2), ("group", 1)]
    assert facts["problems"] == []
    assert facts["unavailable"] == {}
    assert re.search(r"^group +folder +1 +0 +synced \d{4}-\S+ +\S+$", lake("doctor").out, re.MULTILINE)


def test_a_source_that_fails_is_a_problem(lake: Fairmile, place: Path) -> None:
    assert lake("catalog", "source", "add", "group", "./shared-cards").code == 0
    (place / "shared-cards").rename(place / "elsewhere")
    assert lake("catalog", "sync").code == 3
    result = lake("doctor")
    assert result.code == 0
    assert re.search(r"^group +folder +1 +0 +failed ", result.out, re.MULTILINE)
    assert "problem: source group: " in result.err
    assert str(place / "shared-cards") in result.err


def test_a_home_that_is_no_folder_is_a_problem(
    fairmile: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRMILE_HOME", str(place / "lake.jsonld"))
    result = fairmile("doctor", "--json")
    assert result.code == 0
    assert f"home: {place}/lake.jsonld is not a folder" in result.json["problems"]


def test_a_home_that_cannot_be_written_is_a_problem(place: Path, unprivileged: list[str]) -> None:
    (place / "locked").mkdir(mode=0o555)
    home = place / "locked" / "home"
    done = subprocess.run(
        [*unprivileged, sys.executable, "-m", "fairmile", "doctor"],
        env={**os.environ, "FAIRMILE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert f"problem: home: {home} cannot be written" in done.stderr


def test_a_catalog_that_cannot_be_read_does_not_keep_the_doctor_from_answering(fairmile: Fairmile, place: Path) -> None:
    trusted_project(place, "sources:\n  ../up: ./shared-cards\n")
    assert fairmile("search", "lake").code == 2
    result = fairmile("doctor")
    assert result.code == 0
    assert "sources.../up" in result.out
    assert "problem: '../up' cannot name a source" in result.err


def test_a_damaged_index_does_not_keep_the_doctor_from_answering(lake: Fairmile, tmp_path: Path) -> None:
    (tmp_path / "home" / "index.sqlite").write_bytes(b"not a database" * 1000)
    result = lake("doctor", "--json")
    assert result.code == 0
    assert result.json["settings"]
    assert [each["name"] for each in result.json["catalogs"]] == ["local", "builtin"]


def test_a_password_in_the_address_of_a_source_is_never_shown(fairmile: Fairmile, place: Path) -> None:
    trusted_project(place, "sources:\n  lab: https://me:hunter2@git.example.org/lab.git\n")
    for command in (
        ["doctor"],
        ["doctor", "--json"],
        ["catalog", "source", "ls"],
        ["catalog", "source", "ls", "--json"],
    ):
        result = fairmile(*command)
        assert "git.example.org" in result.out
        assert "hunter2" not in result.out + result.err


def test_pools_are_shown_with_their_room(fairmile: Fairmile, place: Path, tmp_path: Path) -> None:
    trusted_project(place, "pools:\n  scratch: {folder: ./scratch, capacity: 10 MB, speed: fast}\n")
    (place / "scratch").mkdir()
    facts = fairmile("doctor", "--json").json
    assert [(each["name"], each["folder"], each["trouble"]) for each in facts["pools"]] == [
        ("scratch", str(place / "scratch"), ""),
        ("home", str(tmp_path / "home" / "store"), ""),
    ]
    assert 0 < facts["pools"][0]["free_bytes"] <= 10_000_000
    assert facts["pools"][0]["limited_by"] == "capacity"
    assert facts["problems"] == []
    row = rf"^scratch +\S+ [KM]i?B +capacity +ok +{re.escape(str(place))}/scratch$"
    assert re.search(row, fairmile("doctor").out, re.MULTILINE)


def test_a_pool_that_cannot_be_used_is_a_problem(fairmile: Fairmile, place: Path) -> None:
    (place / "in-the-way").write_text("a file")
    trusted_project(place, "pools:\n  scratch: ./in-the-way\n")
    result = fairmile("doctor")
    assert result.code == 0
    assert re.search(r"^scratch +unknown +failed +", result.out, re.MULTILINE)
    assert f"problem: pool scratch: cannot be used: {place}/in-the-way" in result.err


def test_pools_that_are_declared_wrongly_do_not_keep_the_doctor_from_answering(fairmile: Fairmile, place: Path) -> None:
    trusted_project(place, "pools:\n  scratch: {folder: ./scratch, capacity: much}\n")
    result = fairmile("doctor", "--json")
    assert result.code == 0
    assert result.json["pools"] == []
    (problem,) = result.json["problems"]
    assert "capacity" in problem
    assert [each["name"] for each in result.json["catalogs"]] == ["local", "builtin"]


def test_a_fetcher_that_cannot_be_loaded_is_named(fairmile: Fairmile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fairmile.transfer.fetchers.zenodo", None)
    assert "fetcher zenodo" in fairmile("doctor", "--json").json["unavailable"]
    result = fairmile("doctor")
    assert result.code == 0
    assert "not available: fetcher zenodo: " in result.err


def test_a_system_file_that_cannot_be_used_is_a_problem(fairmile: Fairmile, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "systems"
    folder.mkdir()
    (folder / "box.yaml").write_text("name: box\n")
    result = fairmile("doctor")
    assert result.code == 0
    assert "problem: system box: " in result.err


def test_a_setting_of_a_system_that_is_wrong_does_not_keep_the_doctor_from_answering(
    fairmile: Fairmile, place: Path
) -> None:
    trusted_project(place, "systems:\n  lumi: {hots: x}\n")
    result = fairmile("doctor")
    assert result.code == 0
    assert "fairmile.yaml:2 systems.lumi: no field named 'hots'; did you mean 'host'?" in result.err


def test_a_scheduler_that_cannot_be_loaded_is_named(fairmile: Fairmile, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairmile.base.errors import Unsupported
    from fairmile.jobs.schedulers import SCHEDULERS

    monkeypatch.setattr(SCHEDULERS, "failures", lambda: {"tide-queue": Unsupported("its module is gone")})
    assert "not available: scheduler tide-queue: its module is gone" in fairmile("doctor").err


def test_what_is_missing_is_told_with_what_it_is_for_and_how_to_get_it(
    fairmile: Fairmile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    lines = fairmile("doctor").out.splitlines()
    rows = [re.split(r"  +", line) for line in lines]
    assert ["missing", "tune", "tuning with Optuna", "pip install 'fairmile[tune]'"] in rows
    assert any(line.startswith("works: ") and "disk" in line for line in lines)
