"""A folder that one only enters starts nothing: its settings wait for `fairmile trust`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.jobs.records import Records
from fairmile.jobs.spec import JobSpec

Fairmile = Callable[..., Any]
KEYS = "home, systems, transfer.fetchers"
CARD = {
    "@context": "https://w3id.org/fairmile/card/1.0/context",
    "@type": "Dataset",
    "name": "Bait",
    "version": "1.0",
    "distribution": [{"@type": "FileObject", "name": "x", "contentUrl": "bait://host/x"}],
}


@pytest.fixture
def clone(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cloned folder whose settings start programs: over ssh for a planted job, and for addresses of a scheme."""
    monkeypatch.delenv("FAIRMILE_HOME")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.parent))
    clone = place.parent / "clone"
    (clone / "data").mkdir(parents=True)
    records = Records(clone / "data" / "jobs")
    record, _ = records.create(JobSpec(name="planted", argv=("true",)), "laptop", 1.0)
    records.note_submission(record, "4711", 1.0)
    (clone / "ssh").write_text(f"Host *\n  ProxyCommand touch {place.parent}/marker\n")
    (clone / "fairmile.yaml").write_text(
        "home: ./data\nsystems:\n  laptop: {host: 127.0.0.1, ssh_config: ./ssh}\n"
        f"transfer:\n  fetchers:\n    bait: {{command: [touch, {place.parent}/marker, '{{url}}', '{{file}}'], "
        "schemes: [bait]}\n"
    )
    (clone / "bait.jsonld").write_text(json.dumps(CARD))
    monkeypatch.chdir(clone)
    return clone


@pytest.mark.parametrize(
    "command",
    [
        ["job", "ls"],
        ["job", "show", "planted"],
        ["job", "submit", "--", "true"],
        ["job", "submit", "--on", "laptop", "--", "true"],
        ["fetch", "bait://host/x"],
        ["fetch", "bait.jsonld"],
        ["fetch", "bait+https://host/x"],
        ["status"],
        ["doctor"],
        ["search", "bait"],
        ["system", "ls"],
        ["store", "ls"],
        ["run", "--", "true"],
    ],
    ids=" ".join,
)
def test_no_command_starts_what_the_settings_of_a_clone_name(
    fairmile: Fairmile, clone: Path, tmp_path: Path, command: list[str]
) -> None:
    result = fairmile(*command)
    assert not (tmp_path / "marker").exists()
    note = f"note: {clone}/fairmile.yaml: {KEYS} have no effect until you trust this file"
    assert result.err.count(note) == 1
    assert {each.name for each in (clone / "data").iterdir()} == {"jobs"}


@pytest.mark.parametrize("command", [["job", "ls"], ["fetch", "bait://host/x"]], ids=" ".join)
def test_the_same_command_starts_it_once_the_user_trusts_the_file(
    fairmile: Fairmile, clone: Path, tmp_path: Path, command: list[str]
) -> None:
    trusted = fairmile("trust")
    assert trusted.code == 0
    assert trusted.out.startswith(f"trusted {clone}/fairmile.yaml\n")
    for shown in ("./data", "127.0.0.1", str(clone / "ssh"), f"touch, {tmp_path}/marker".split(", ")[1]):
        assert shown in trusted.out
    assert "note" not in fairmile(*command).err
    assert (tmp_path / "marker").exists()


def test_trust_ends_when_the_file_that_ssh_reads_changes(fairmile: Fairmile, clone: Path, tmp_path: Path) -> None:
    assert fairmile("trust", str(clone)).code == 0
    (clone / "ssh").write_text(f"Host *\n  ProxyCommand touch {tmp_path}/marker now\n")
    fairmile("job", "ls")
    assert not (tmp_path / "marker").exists()
    assert "changed, not in force" in fairmile("trust", "--list").out


def test_a_dry_run_shows_what_would_be_allowed_and_allows_nothing(fairmile: Fairmile, clone: Path) -> None:
    facts = fairmile("trust", "--dry-run", "--json").json
    assert list(facts["allows"]) == KEYS.split(", ")
    assert facts["names"] == [str(clone / "ssh")]
    assert facts["trusted"] is False
    assert fairmile("trust", "--list", "--json").json == {"files": []}


def test_trust_can_be_taken_back(fairmile: Fairmile, clone: Path) -> None:
    assert fairmile("trust", "fairmile.yaml").code == 0
    (listed,) = fairmile("trust", "--list", "--json").json["files"]
    assert (listed["file"], listed["current"]) == (str(clone / "fairmile.yaml"), True)
    assert fairmile("trust", "--remove").out == f"stopped trusting {clone}/fairmile.yaml\n"
    assert fairmile("trust", "--list", "--json").json == {"files": []}
    assert fairmile("trust", "--remove").code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "only a file named fairmile.yaml is read"),
        (["data"], "fairmile.yaml: no such file"),
        (["--list", "."], "--list takes neither PATH nor --remove"),
    ],
)
def test_what_cannot_be_trusted_is_one_sentence(
    fairmile: Fairmile, clone: Path, arguments: list[str], message: str
) -> None:
    result = fairmile("trust", *arguments)
    assert result.code == 2
    assert message in result.err


def test_without_a_project_there_is_nothing_to_trust(fairmile: Fairmile) -> None:
    result = fairmile("trust")
    assert (result.code, result.out) == (2, "")
    assert "no fairmile.yaml of yours in this folder or above" in result.err


def test_the_doctor_names_what_has_no_effect(fairmile: Fairmile, clone: Path) -> None:
    assert any(KEYS in problem for problem in fairmile("doctor", "--json").json["problems"])
