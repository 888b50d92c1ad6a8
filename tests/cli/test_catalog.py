"""`fairmile catalog`: cards are checked, added, changed and exchanged; sources are managed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trusted_projects import trusted_project

Fairmile = Callable[..., Any]
LAKE = "local/dataset/lake-temperatures@1.0"


def write(place: Path, file: str, **more: Any) -> str:
    card = json.loads((place / "lake.jsonld").read_text()) | more
    (place / file).write_text(json.dumps(card))
    return file


def everything(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder; the index and the log of uses are no documents."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if "index.sqlite" not in path.name and path.parent.name != "usage"
    }


BAD_FILES: dict[str, bytes | None] = {
    "missing.json": None,
    "empty.json": b"",
    "binary.json": bytes(range(256)),
    "broken.json": b'{"a":',
    "broken.yaml": b"a: [1\nb: 2\n",
    "latin.json": b'{"name": "caf\xe9"}',
    "list.json": b"[1]",
    "note.txt": b"hello\n",
    "nameless.jsonld": b'{"@context": "https://w3id.org/fairmile/card/1.0/context", "@type": "Dataset"}',
    "deep.json": b"[" * 100_000,
    "name with blanks.json": b"{}",
    "-dash.json": b"{",
    "ünï.json": b"{",
}


@pytest.fixture
def bad_files(place: Path) -> Path:
    for name, data in BAD_FILES.items():
        if data is not None:
            (place / name).write_bytes(data)
    (place / "folder.json").mkdir()
    with open(place / "huge.json", "wb") as stream:
        stream.truncate(65 << 20)
    return place


# Checking


def test_a_valid_card_is_called_valid(fairmile: Fairmile) -> None:
    result = fairmile("catalog", "check", "codemeta.json")
    assert result == (0, "codemeta.json: valid\n  describes local/program/lake-tools@2.1\n", "")


def test_warnings_are_told_and_do_not_fail(fairmile: Fairmile) -> None:
    result = fairmile("catalog", "check", "lake.jsonld")
    assert result.code == 0
    assert "warning: lake.jsonld:1 creator: is missing; a dataset needs it" in result.out
    assert re.search(r"^lake.jsonld: valid, \d+ warnings$", result.out, re.MULTILINE)


def test_errors_are_told_with_file_line_field_and_hint(fairmile: Fairmile, place: Path) -> None:
    (place / "wrong.jsonld").write_text(
        '{\n "@context": "https://w3id.org/fairmile/card/1.0/context",\n "@type": "Nothing",\n "name": "x"\n}\n'
    )
    result = fairmile("catalog", "check", "wrong.jsonld")
    assert result.code == 2
    lines = result.out.splitlines()
    assert "error: wrong.jsonld:3 @type: 'Nothing' is not a kind of asset" in lines
    assert any(line.startswith("  hint: ") and "Dataset" in line for line in lines)
    assert re.match(r"wrong.jsonld: not valid, 1 error\b", lines[-1])


def test_one_bad_file_makes_the_check_fail_and_all_are_judged(fairmile: Fairmile, bad_files: Path) -> None:
    result = fairmile("catalog", "check", "lake.jsonld", "empty.json", "codemeta.json", "--json")
    assert result.code == 2
    assert [(each["file"], each["ok"]) for each in result.json["files"]] == [
        ("lake.jsonld", True),
        ("empty.json", False),
        ("codemeta.json", True),
    ]
    (problem,) = result.json["files"][1]["problems"]
    assert set(problem) == {"severity", "field", "line", "message", "hint"}


@pytest.mark.parametrize("name", [*BAD_FILES, "folder.json", "huge.json"])
@pytest.mark.parametrize("command", ["check", "add"])
def test_a_bad_file_is_told_and_nothing_is_written(
    fairmile: Fairmile, bad_files: Path, command: str, name: str
) -> None:
    home = bad_files.parent / "home"
    before = everything(home)
    result = fairmile("catalog", command, "--json", "--", name)
    assert result.code == 2
    assert "Traceback" not in result.err
    assert "bug in fairmile" not in result.err
    if command == "add":
        assert result.err.startswith("error: ")
        assert name in result.json["error"]["message"]
    else:
        assert result.json["files"][0]["ok"] is False
        assert result.json["files"][0]["problems"]
    assert everything(home) == before


def test_a_file_that_may_not_be_read_is_told(place: Path, unprivileged: list[str]) -> None:
    (place / "secret.json").write_text("{}")
    (place / "secret.json").chmod(0)
    command = [*unprivileged, sys.executable, "-m", "fairmile", "catalog", "add", "secret.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: secret.json cannot be read: ")


def test_a_format_may_be_named(fairmile: Fairmile) -> None:
    assert fairmile("catalog", "check", "codemeta.json", "--format", "codemeta").code == 0
    assert fairmile("catalog", "check", "lake.jsonld", "--format", "card").code == 0
    assert fairmile("catalog", "check", "codemeta.json", "--format", "card").code == 2


@pytest.mark.parametrize(
    "line, message",
    [
        ("check lake.jsonld --format codemeat", "no import format named 'codemeat'; did you mean 'codemeta'?"),
        ("add lake.jsonld --format codemeat", "no import format named 'codemeat'; did you mean 'codemeta'?"),
        ("export mnist --to croisant", "no export format named 'croisant'; did you mean 'croissant'?"),
    ],
)
def test_an_unknown_format_brings_the_nearest_and_all(fairmile: Fairmile, line: str, message: str) -> None:
    result = fairmile("catalog", *line.split())
    assert result.code == 2
    first, second = result.err.splitlines()
    assert first == f"error: {message}"
    assert second.startswith("  hint: known: card, ")


def test_the_help_lists_the_formats(fairmile: Fairmile) -> None:
    readers = " ".join(fairmile("catalog", "add", "--help").out.split())
    assert "card, sabath, hpcfair, rocrate, croissant" in readers
    writers = " ".join(fairmile("catalog", "export", "--help").out.split())
    assert "card, croissant, rocrate, codemeta, datacite, huggingface" in writers


# Adding


def test_a_card_is_added_once_and_then_present(fairmile: Fairmile) -> None:
    assert fairmile("catalog", "add", "lake.jsonld").out == f"added    {LAKE}\n"
    again = fairmile("catalog", "add", "lake.jsonld")
    assert again.code == 0
    assert again.out.startswith(f"present  {LAKE}")


def test_as_data_each_card_has_file_handle_status_and_warnings(fairmile: Fairmile) -> None:
    facts = fairmile("catalog", "add", "codemeta.json", "--json").json
    (card,) = facts["cards"]
    assert card["file"] == "codemeta.json"
    assert card["handle"] == "local/program/lake-tools@2.1"
    assert card["status"] == "added"
    assert card["warnings"] == []
    assert facts["dry_run"] is False


def test_a_dry_run_adds_nothing_and_does_not_claim_to(fairmile: Fairmile, place: Path) -> None:
    before = everything(place.parent / "home")
    result = fairmile("catalog", "add", "lake.jsonld", "--dry-run")
    assert result == (0, f"would add {LAKE}\n", "")
    assert fairmile("catalog", "add", "lake.jsonld", "--dry-run", "--json").json["dry_run"] is True
    assert everything(place.parent / "home") == before


def test_traps_of_the_source_are_told_as_warnings(fairmile: Fairmile, place: Path) -> None:
    (place / "CITATION.cff").write_text("cff-version: 1.2.0\nmessage: cite\ntitle: pond\nauthors: [{name: A}]\n")
    result = fairmile("catalog", "add", "CITATION.cff")
    assert result.code == 0
    assert result.out.count("\n") == 1
    assert re.search(r"^  warning: version: ", result.err, re.MULTILINE)


def test_a_file_that_fails_does_not_keep_the_others_out(fairmile: Fairmile, bad_files: Path) -> None:
    result = fairmile("catalog", "add", "lake.jsonld", "empty.json", "codemeta.json")
    assert result.code == 2
    assert result.out.splitlines() == [f"added    {LAKE}", "added    local/program/lake-tools@2.1"]
    assert result.err.startswith("error: empty.json")


def test_as_data_the_files_that_failed_stand_beside_those_added(fairmile: Fairmile, bad_files: Path) -> None:
    result = fairmile("catalog", "add", "lake.jsonld", "empty.json", "--json")
    assert result.code == 2
    assert [each["handle"] for each in result.json["cards"]] == [LAKE]
    assert [each["file"] for each in result.json["failed"]] == ["empty.json"]
    assert result.json["error"]["exit_code"] == 2


def test_a_disk_that_fails_stops_the_rest(fairmile: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRMILE_HOME", str(place / "lake.jsonld"))
    result = fairmile("catalog", "add", "lake.jsonld", "codemeta.json", "--json")
    assert result.code == 3
    assert len(result.json["failed"]) == 1


def test_another_description_under_the_same_handle_is_a_conflict(lake: Fairmile, place: Path) -> None:
    result = lake("catalog", "add", write(place, "other.jsonld", description="Another."))
    assert result.code == 2
    assert f"{LAKE} already exists with another description" in result.err
    assert "fairmile catalog update" in result.err


# Changing


def test_properties_are_set_appended_and_dropped(lake: Fairmile) -> None:
    changes = [
        "--set",
        "accessRights=public",
        "--add",
        "keywords=lake",
        "--add",
        "keywords=water",
        "--unset",
        "license",
    ]
    result = lake("catalog", "update", "lake-temperatures", *changes)
    assert result == (0, f"updated  {LAKE}\n", "")
    card = lake("show", "lake-temperatures", "--json").json["card"]
    assert card["accessRights"].endswith("public")
    assert card["keywords"] == ["lake", "water"]
    assert "license" not in card


@pytest.mark.parametrize(
    "pair, value",
    [
        ("customKey=plain text", "plain text"),
        ("customKey=a=b", "a=b"),
        ("customKey=", ""),
        ("customKey=3", 3),
        ("customKey=true", True),
        ('customKey={"a": [1]}', {"a": [1]}),
        ('customKey="3"', "3"),
        ("customKey=ünï 地震", "ünï 地震"),
        ('customKey=it\'s "quoted"', 'it\'s "quoted"'),
    ],
)
def test_a_value_is_json_or_text(lake: Fairmile, pair: str, value: Any) -> None:
    result = lake("catalog", "update", "lake-temperatures", "--set", pair, "--dry-run")
    assert result.code == 0, result.err
    assert result.json["card"]["customKey"] == value


@pytest.mark.parametrize("version", ["1.10", "2", "true", "null", "1e5"])
def test_a_version_is_a_text_even_where_it_looks_like_something_else(lake: Fairmile, version: str) -> None:
    result = lake("catalog", "update", "lake-temperatures", "--set", f"version={version}", "--dry-run")
    assert result.json["card"]["version"] == version


def test_a_new_version_is_a_new_card(lake: Fairmile) -> None:
    assert lake("catalog", "update", "lake-temperatures", "--set", "version=1.1").code == 0
    result = lake("catalog", "versions", "lake-temperatures")
    assert [line.split() for line in result.out.splitlines()] == [
        ["version", "state", "handle"],
        ["1.1", "local/dataset/lake-temperatures@1.1"],
        ["1.0", "local/dataset/lake-temperatures@1.0"],
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["lake-temperatures"], "nothing to change"),
        (["lake-temperatures", "--set", "foo"], "--set 'foo' is not KEY=VALUE"),
        (["lake-temperatures", "--add", "=foo"], "--add '=foo' is not KEY=VALUE"),
        (["lake-temperatures", "--set", 'creator={"name"'], "the value of creator is not valid JSON"),
        (["lake-temperatures", "--set", "distribution=[1,"], "the value of distribution is not valid JSON"),
        (["lake-temperatures", "--set", "name=pond"], "cannot be changed"),
        (["lake-temperatures", "--set", "@id=pond"], "@id: expected an absolute IRI"),
        (["mnist", "--set", "a=b"], "'mnist' names several assets"),
        (["nosuch", "--set", "a=b"], "no asset named 'nosuch' in the catalog"),
    ],
)
def test_what_cannot_be_changed_is_told_and_nothing_is_written(
    lake: Fairmile, place: Path, arguments: list[str], message: str
) -> None:
    before = everything(place.parent / "home")
    result = lake("catalog", "update", *arguments)
    assert result.code == 2
    assert message in result.err.splitlines()[0]
    assert everything(place.parent / "home") == before


def test_a_dry_run_prints_the_changed_card_and_writes_nothing(lake: Fairmile, place: Path) -> None:
    before = everything(place.parent / "home")
    result = lake("catalog", "update", "lake-temperatures", "--set", "accessRights=public", "--dry-run")
    assert result.json["handle"] == LAKE
    assert result.json["dry_run"] is True
    assert everything(place.parent / "home") == before


# Removing


def test_a_removed_card_leaves_a_tombstone(lake: Fairmile) -> None:
    result = lake("catalog", "rm", "lake-temperatures", "--reason", "sensor fault", "--json")
    assert result.json["handle"] == LAKE
    assert result.json["tombstone"]["reason"] == "sensor fault"
    versions = lake("catalog", "versions", "lake-temperatures", "--json").json["versions"]
    assert [(each["handle"], each["removed"]) for each in versions] == [(LAKE, True)]
    again = lake("catalog", "rm", "lake-temperatures")
    assert again.code == 2
    assert f"{LAKE} was removed" in again.err


def test_a_dry_run_removes_nothing(lake: Fairmile, place: Path) -> None:
    before = everything(place.parent / "home")
    assert lake("catalog", "rm", "lake-temperatures", "--dry-run") == (0, f"would remove {LAKE}\n", "")
    assert everything(place.parent / "home") == before


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["dataset/mnist"], "builtin/dataset/mnist@1.0 belongs to the catalog 'builtin', not to yours"),
        (["nosuch"], "no asset named 'nosuch' in the catalog"),
        (["lake-temperatures", "--successor", "nosuch"], "no asset named 'nosuch' in the catalog"),
        ([""], "'' is not a name of an asset"),
    ],
)
def test_what_cannot_be_removed_is_told(lake: Fairmile, place: Path, arguments: list[str], message: str) -> None:
    before = everything(place.parent / "home")
    result = lake("catalog", "rm", *arguments)
    assert result.code == 2
    assert message in result.err.splitlines()[0]
    assert everything(place.parent / "home") == before


# Exchange


def test_an_export_is_printed_as_it_is(fairmile: Fairmile) -> None:
    result = fairmile("catalog", "export", "dataset/mnist", "--to", "croissant")
    assert result.code == 0
    assert "http://mlcommons.org/croissant/1.1" in result.json["conformsTo"]
    documents = fairmile("catalog", "export", "dataset/mnist", "--to", "croissant", "--json").json["documents"]
    assert documents == {"croissant.json": result.out}


def test_an_export_is_written_to_a_folder(fairmile: Fairmile, place: Path) -> None:
    result = fairmile("catalog", "export", "dataset/mnist", "--to", "croissant", "-o", "new folder/out")
    assert result == (0, "wrote    new folder/out/croissant.json\n", "")
    written = (place / "new folder" / "out" / "croissant.json").read_text()
    assert written == fairmile("catalog", "export", "dataset/mnist", "--to", "croissant").out


def test_an_export_does_not_replace_a_file_of_the_user(fairmile: Fairmile, place: Path) -> None:
    (place / "README.md").write_text("My own words.\n")
    export = ("catalog", "export", "dataset/mnist", "--to", "huggingface", "-o", ".")
    result = fairmile(*export)
    assert result.code == 2
    assert result.err == (
        "error: README.md already exists and differs\n  hint: --replace overwrites it; nothing was written\n"
    )
    assert (place / "README.md").read_text() == "My own words.\n"
    assert fairmile(*export, "--replace") == (0, "wrote    README.md\n", "")
    assert "MNIST" in (place / "README.md").read_text()
    assert fairmile(*export).code == 0


def test_a_dry_run_of_an_export_writes_nothing(fairmile: Fairmile, place: Path) -> None:
    result = fairmile("catalog", "export", "dataset/mnist", "--to", "croissant", "-o", "out", "--dry-run")
    assert result == (0, "would write out/croissant.json\n", "")
    assert not (place / "out").exists()


def test_a_card_can_be_exported_as_it_is(lake: Fairmile) -> None:
    card = lake("show", "lake-temperatures", "--json").json["card"]
    assert lake("catalog", "export", "lake-temperatures", "--to", "card").json == card


def test_a_format_that_cannot_hold_the_asset_is_told(fairmile: Fairmile) -> None:
    result = fairmile("catalog", "export", "benchmark/mnist", "--to", "croissant")
    assert result.code == 2
    assert "not a benchmark" in result.err
    assert "rocrate" in result.err


@pytest.mark.parametrize("target", ["lake.jsonld/below", "/proc/fairmile/out", "x" * 300])
def test_a_folder_that_cannot_be_made_is_told(fairmile: Fairmile, target: str) -> None:
    result = fairmile("catalog", "export", "dataset/mnist", "--to", "croissant", "-o", target)
    assert result.code == 3
    assert result.out == ""
    assert result.err.startswith("error: cannot write ")


def test_a_catalog_is_published(lake: Fairmile, place: Path) -> None:
    assert lake("catalog", "publish", "site") == (0, "wrote    2 cards and index.json to site\n", "")
    listed = json.loads((place / "site" / "index.json").read_text())["cards"]
    assert all((place / "site" / each["path"]).is_file() for each in listed)
    result = lake("catalog", "publish", "site", "--catalog", "nosuch")
    assert result.code == 2
    assert "no catalog named 'nosuch'" in result.err


# Sources


@pytest.fixture
def group(lake: Fairmile) -> Fairmile:
    result = lake("catalog", "source", "add", "group", "./shared-cards")
    assert result == (0, "synced   group: 1 card, 1 changed, 0 removed\n", "")
    return lake


def test_the_cards_of_a_source_join_the_view(group: Fairmile) -> None:
    assert "group/model/lake-lstm@0.3" in group("search", "lake", "--json").out
    rows = [line.split()[:3] for line in group("catalog", "source", "ls").out.splitlines()]
    assert rows[:3] == [["catalog", "type", "cards"], ["local", "local", "2"], ["group", "folder", "1"]]
    assert rows[3][0] == "builtin"


def test_a_source_is_removed_with_its_copy(group: Fairmile, place: Path) -> None:
    assert group("catalog", "source", "rm", "group") == (0, "removed  group\n", "")
    assert "lake-lstm" not in group("search", "lake", "--json").out
    assert not (place.parent / "home" / "sources" / "group").exists()


def test_a_sync_brings_what_has_changed(group: Fairmile, place: Path) -> None:
    write(place, "shared-cards/pond.jsonld", name="pond")
    assert group("catalog", "sync").out == "synced   group: 2 cards, 1 changed, 0 removed\n"
    assert group("catalog", "sync", "group").out == "synced   group: 2 cards, 0 changed, 0 removed\n"


def test_a_source_that_fails_is_told_and_its_copy_serves(group: Fairmile, place: Path) -> None:
    (place / "shared-cards").rename(place / "elsewhere")
    result = group("catalog", "sync")
    assert result.code == 3
    assert result.out == ""
    assert result.err.startswith("failed   group: ")
    assert group("catalog", "sync", "--json").json["sources"][0]["error"]
    listing = group("catalog", "source", "ls")
    assert listing.code == 0
    assert re.search(r"^group +folder +1 +0 +failed ", listing.out, re.MULTILINE)
    assert "failed: group: " in listing.err
    assert "group/model/lake-lstm@0.3" in group("search", "lake", "--json").out


def test_a_source_with_a_mistake_in_the_settings_is_told_and_the_others_serve(lake: Fairmile, place: Path) -> None:
    trusted_project(place, "sources:\n  group: ./shared-cards\n  lab: 5\n")
    result = lake("catalog", "sync")
    assert result.code == 3
    assert result.out == "synced   group: 1 card, 1 changed, 0 removed\n"
    assert result.err.startswith("failed   lab: ")
    listing = lake("catalog", "source", "ls")
    assert re.search(r"^lab .* failed ", listing.out, re.MULTILINE)
    assert "group/model/lake-lstm@0.3" in lake("search", "lake", "--json").out


def test_what_a_source_holds_in_vain_is_told(group: Fairmile, place: Path) -> None:
    for number in range(23):
        (place / "shared-cards" / f"bad-{number}.jsonld").write_text(
            '{"@context": "https://w3id.org/fairmile/card/1.0/context"}'
        )
    result = group("catalog", "sync")
    assert result.code == 0
    assert result.err.count("  skipped: bad-") == 20
    assert "  and 3 more; list all with `fairmile catalog source ls --json`" in result.err
    catalogs = group("catalog", "source", "ls", "--json").json["catalogs"]
    assert len(catalogs[1]["problems"]) == 23


def test_a_clash_is_named(group: Fairmile, place: Path) -> None:
    write(place, "shared-cards/lake.jsonld", description="Another view of the lake.")
    assert group("catalog", "sync").code == 0
    result = group("catalog", "source", "ls")
    assert (
        "clash: group describes dataset/lake-temperatures@1.0 differently from a catalog that takes precedence"
        in result.err
    )
    assert re.search(r"^group +folder +2 +1 ", result.out, re.MULTILINE)


def test_without_sources_there_is_nothing_to_sync(lake: Fairmile) -> None:
    result = lake("catalog", "sync")
    assert result.code == 0
    assert result.out == ""
    assert "there is no source to sync\nhint: " in result.err
    assert lake("catalog", "sync", "--json").json == {"sources": [], "dry_run": False}


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["add", "group", "./elsewhere"], 3, "/elsewhere"),
        (["add", "local", "./shared-cards"], 2, "'local' cannot name a source"),
        (["add", "../up", "./shared-cards"], 2, "'../up' cannot name a source"),
        (["add", "My Group", "./shared-cards"], 2, "'My Group' cannot name a source"),
        (["add", "--", "-x", "./shared-cards"], 2, "'-x' cannot name a source"),
        (["add", "web", "http://127.0.0.1:1/cards"], 3, "http://127.0.0.1:1/cards/index.json cannot be reached"),
        (["rm", "nosuch"], 2, "no source named 'nosuch'"),
    ],
)
def test_a_source_that_cannot_be_is_told(
    lake: Fairmile,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv("FAIRMILE_TRANSFER_RETRIES", "1")
    result = lake("catalog", "source", *arguments)
    assert result.code == code
    assert message in result.err.splitlines()[0]
    assert not (place.parent / "user" / ".config").exists()
    assert [each["name"] for each in lake("catalog", "source", "ls", "--json").json["catalogs"]] == ["local", "builtin"]


def test_an_unknown_source_cannot_be_synced(group: Fairmile) -> None:
    result = group("catalog", "sync", "gruop")
    assert result.code == 2
    assert result.err.startswith("error: no source named 'gruop'")
    assert "group" in result.err.splitlines()[1]


def test_a_name_is_taken_once(group: Fairmile) -> None:
    result = group("catalog", "source", "add", "group", "./shared-cards")
    assert result.code == 2
    assert "a source named 'group' already exists" in result.err


# The index


def test_the_index_is_built_anew(lake: Fairmile, place: Path) -> None:
    (place.parent / "home" / "index.sqlite").unlink()
    result = lake("catalog", "reindex")
    assert re.fullmatch(r"indexed  \d+ cards\n", result.out)
    assert LAKE in lake("search", "lake", "--json").out


def test_a_damaged_card_is_told_and_left_out(lake: Fairmile, place: Path) -> None:
    card = place.parent / "home" / "catalog" / "cards" / "dataset" / "lake-temperatures" / "1.0.jsonld"
    card.write_text("{ damaged")
    result = lake("catalog", "reindex")
    assert result.code == 4
    assert result.out.startswith("indexed  ")
    assert "  skipped: local/dataset/lake-temperatures/1.0.jsonld: " in result.err
    damaged = lake("catalog", "reindex", "--json")
    assert damaged.code == 4
    assert damaged.json["damaged"][0]["path"] == "local/dataset/lake-temperatures/1.0.jsonld"


@pytest.mark.parametrize(
    "line",
    [
        "sync",
        "reindex",
        "publish site",
        "source add other ./shared-cards",
        "source rm group",
        "export dataset/mnist --to croissant -o site",
    ],
)
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(fairmile: Fairmile, place: Path, line: str) -> None:
    assert fairmile("catalog", "source", "add", "group", "./shared-cards").code == 0
    card = place / "shared-cards" / "lake-model.jsonld"
    card.write_text(card.read_text().replace("a week ahead", "a month ahead"))
    before = everything(place.parent)
    result = fairmile("catalog", *line.split(), "--dry-run")
    assert result.code == 0
    assert result.out.startswith("would ")
    assert everything(place.parent) == before


def test_removing_one_of_several_versions_asks_which(lake: Fairmile) -> None:
    assert lake("catalog", "update", "lake-temperatures", "--set", "version=1.1").code == 0
    result = lake("catalog", "rm", "lake-temperatures")
    assert result.code == 2
    assert "choose one: lake-temperatures@1.1, lake-temperatures@1.0" in result.err


def test_an_asset_answers_to_its_other_name(fairmile: Fairmile) -> None:
    result = fairmile("show", "cosmoUniverse_2019_05_4parE_tf_v2_mini", "--json")
    assert result.json["handle"].startswith("builtin/dataset/cosmouniverse-mini@")


def test_describe_drafts_a_card_and_asks_the_owner(fairmile: Fairmile, place: Path) -> None:
    (place / "data").mkdir()
    (place / "data" / "lake.csv").write_text("time,depth [m]\n2024-01-01,1.5\n2024-01-02,2.5\n")
    result = fairmile("catalog", "describe", "data")
    assert result.code == 0
    assert re.search(r"^lake +depth +sc:Float +m$", result.out, re.MULTILINE)
    assert "Which licence does the holder of the rights grant?" in result.out
    assert "nothing was written; `fairmile catalog describe data --add` adds the card" in result.err
    added = fairmile(
        "catalog", "describe", "data", "--set", "version=1.0", "--set", "license=MIT", "--add", "--json"
    ).json
    assert added["added"] == "local/dataset/data@1.0"
    for question in added["questions"]:
        assert question["command"].startswith("fairmile catalog update local/dataset/data@1.0 --")
    assert fairmile("show", "data", "--json").json["card"]["license"] == "https://spdx.org/licenses/MIT"


def test_an_address_that_others_cannot_use_is_refused(fairmile: Fairmile, place: Path) -> None:
    (place / "lake.csv").write_text("time,depth [m]\n2024-01-01,1.5\n2024-01-02,2.5\n")
    assert fairmile("catalog", "describe", "lake.csv", "--set", "version=1", "--add").code == 0
    result = fairmile("catalog", "update", "dataset/lake", "--address", "http://localhost:8000/lake.csv")
    assert result.code == 2
    assert "others cannot reach this address: loopback" in result.err
