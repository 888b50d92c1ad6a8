"""`fairmile show`: one asset for people and for programs, and how FAIR it is."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fairmile = Callable[..., Any]


def add_card(fairmile: Fairmile, place: Path, **more: Any) -> None:
    card = json.loads((place / "lake.jsonld").read_text()) | more
    (place / "own.jsonld").write_text(json.dumps(card))
    result = fairmile("catalog", "add", "own.jsonld")
    assert result.code == 0, result.err


def test_an_asset_is_described(fairmile: Fairmile) -> None:
    result = fairmile("show", "dataset/mnist")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[:2] == ["MNIST  (dataset, version 1.0)", "builtin/dataset/mnist@1.0"]
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in lines if re.match(r"\w+  +\S", line))
    assert facts["access"] == "public"
    assert facts["domain"] == "computer science"
    assert facts["id"] == "https://w3id.org/fairmile/a/dataset/mnist/1.0"
    assert facts["card"].startswith("ni:///sha-256;")
    assert "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz" in result.out


def test_labels_and_values_stand_in_two_columns(fairmile: Fairmile) -> None:
    out = fairmile("show", "benchmark/cosmoflow").out
    starts = {len(re.match(r"\S+ +", line)[0]) for line in out.splitlines() if re.match(r"\w+ +http", line)}  # type: ignore[index]
    assert len(starts) == 1


def test_the_program_gets_the_card(fairmile: Fairmile) -> None:
    facts = fairmile("show", "dataset/mnist", "--json").json
    assert facts["handle"] == "builtin/dataset/mnist@1.0"
    assert facts["card"]["name"] == "MNIST"
    assert facts["digest"].startswith("ni:///sha-256;")
    assert facts["also"] == []


@pytest.mark.parametrize(
    "name",
    [
        "model/cosmoflow",
        "builtin/model/cosmoflow",
        "builtin/model/cosmoflow@1.0",
        "https://w3id.org/fairmile/a/model/cosmoflow/1.0",
    ],
)
def test_a_name_may_be_given_in_many_ways(fairmile: Fairmile, name: str) -> None:
    assert fairmile("show", name, "--json").json["handle"] == "builtin/model/cosmoflow@1.0"


def test_a_kind_chooses_among_assets_of_one_name(fairmile: Fairmile) -> None:
    assert fairmile("show", "cosmoflow", "--kind", "model", "--json").json["handle"] == "builtin/model/cosmoflow@1.0"


def test_other_assets_of_the_name_are_told(fairmile: Fairmile) -> None:
    result = fairmile("show", "cosmoflow")
    assert "hint: model/cosmoflow has the same name" in result.err
    assert "builtin/model/cosmoflow@1.0" in fairmile("show", "cosmoflow", "--json").json["also"]


def test_another_card_of_the_asset_is_told(lake: Fairmile) -> None:
    assert lake("catalog", "update", "dataset/mnist", "--add", "keywords=mine").code == 0
    result = lake("show", "dataset/mnist")
    assert "local/dataset/mnist@1.0" in result.out
    assert "hint: the catalog 'builtin' has another card, version 1.0; 'local' takes precedence" in result.err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["cosmoflo"], "'cosmoflo' is not a file here or an asset of the catalog"),
        (["cosmoflow", "--kind", "modle"], "no kind named 'modle'; did you mean 'model'?"),
        (["cosmoflow", "--kind", "program"], "'cosmoflow' is not a file here or a program of the catalog"),
        ([""], "the name is empty"),
        (["a/b/c/d/e"], "a/b/c/d/e"),
        (["--", "-x"], "'-x' is not a file here or an asset of the catalog"),
        (["../../etc/passwd"], "../../etc/passwd"),
        (['ünï "q"'], "'ünï \"q\"' is not a file here or an asset of the catalog"),
        (["dataset/mnist", "--raw"], "builtin/dataset/mnist@1.0 has no source document"),
        (["dataset/mnist", "--raw", "--fair"], "--raw cannot be combined with --fair or --view"),
    ],
)
def test_what_cannot_be_shown_is_told(fairmile: Fairmile, arguments: list[str], message: str) -> None:
    result = fairmile("show", *arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert message in result.err.splitlines()[0]
    assert "Traceback" not in result.err


def test_the_source_document_is_printed_byte_for_byte(lake: Fairmile, place: Path) -> None:
    result = lake("show", "program/lake-tools", "--raw")
    assert result == (0, (place / "codemeta.json").read_text(), "")
    facts = lake("show", "program/lake-tools", "--raw", "--json").json
    assert facts == {"handle": "local/program/lake-tools@2.1", "document": (place / "codemeta.json").read_text()}


def test_a_removed_asset_says_when_why_and_what_takes_its_place(lake: Fairmile) -> None:
    assert lake("catalog", "update", "lake-temperatures", "--set", "version=1.1").code == 0
    successor = lake("show", "lake-temperatures@1.1", "--json").json["card"]["@id"]
    removal = ("--reason", "sensor fault", "--successor", "lake-temperatures@1.1")
    assert lake("catalog", "rm", "lake-temperatures@1.0", *removal).code == 0
    out = lake("show", "lake-temperatures@1.0").out
    assert re.search(r"^removed \d{4}-\d\d-\d\dT\S+: sensor fault$", out, re.MULTILINE)
    assert f"superseded by {successor}" in out


def test_what_is_left_out_of_long_lists_is_said(lake: Fairmile, place: Path) -> None:
    files = [
        {"@type": "FileObject", "name": f"part-{number}.csv", "contentUrl": f"https://x.example.org/{number}"}
        for number in range(53)
    ]
    add_card(
        lake,
        place,
        name="many",
        keywords=[f"word-{number}" for number in range(15)],
        citation=[f"https://doi.org/10.1000/{number}" for number in range(14)],
        isBasedOn=[f"https://x.example.org/asset/{number}" for number in range(23)],
        distribution=files,
    )
    out = lake("show", "many").out
    assert "word-11, and 3 more" in out
    assert re.search(r"^… +\d+ more links; use --json to list all$", out, re.MULTILINE)
    assert "and 3 more files; use --json to list all" in out
    assert "part-49.csv" in out
    assert "part-50.csv" not in out


def test_warnings_of_the_card_are_shown(lake: Fairmile, place: Path) -> None:
    (place / "CITATION.cff").write_text(
        "cff-version: 1.2.0\nmessage: cite\ntitle: pond\nauthors: [{name: A}]\nlicense: my own terms\n"
    )
    assert lake("catalog", "add", "CITATION.cff").code == 0
    assert re.search(r"^warning: \w+: ", lake("show", "pond").out, re.MULTILINE)


def test_nothing_in_a_card_can_steer_the_terminal(
    lake: Fairmile, at_terminal: Callable[..., str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    evil = "\033]0;owned\007\033[2J"
    add_card(lake, place, name="evil", description=evil, keywords=[evil], creator=evil, version="1\033[2J")
    for arguments in (["show", "evil"], ["search", "evil"], ["show", "evil", "--fair"]):
        shown = at_terminal(*arguments)
        assert "\033" not in shown
        assert "\007" not in shown


def test_at_80_columns_prose_folds_and_addresses_stay_whole(at_terminal: Callable[..., str]) -> None:
    shown = re.sub(r"\033\[\d*m", "", at_terminal("show", "model/cosmoflow", columns=80))
    long = [line for line in shown.splitlines() if len(line) > 80]
    assert all(re.search(r"\S{60,}$", line) for line in long)
    conditions = shown.partition("conditions")[2].splitlines()
    assert conditions[1].startswith(" " * 12)


# How FAIR it is


def test_the_score_comes_with_evidence_and_advice(lake: Fairmile) -> None:
    result = lake("show", "lake-temperatures", "--fair")
    lines = result.out.splitlines()
    assert re.match(r"\d+ of 100  F \d+  A \d+  I \d+  R \d+  local/dataset/lake-temperatures@1\.0$", lines[0])
    assert any(re.match(r"✔ F1a    \S.*: .*@id is urn:uuid:", line) for line in lines)
    assert any(line.startswith("✘ F1b    ") for line in lines)
    assert any(line.startswith("To raise the score, largest gain first;") for line in lines)
    assert any(re.match(r" 1\. fairmile catalog update ", line) for line in lines)


def test_the_score_as_data_has_every_view(lake: Fairmile) -> None:
    facts = lake("show", "lake-temperatures", "--fair", "--json").json
    assert {"handle", "score", "letters", "findings", "table_one", "indicators", "richness", "advice"} <= set(facts)
    assert len(facts["indicators"]) == 47


@pytest.mark.parametrize("name", ["dataset/mnist", "model/cosmoflow", "program/lake-tools", "benchmark/mnist"])
@pytest.mark.parametrize(
    "view, shown",
    [
        ("tests", "F1a"),
        ("table1", "Described by rich metadata"),
        ("indicators", "RDA-F1-01M"),
        ("richness", "of the properties of a rich card of this kind"),
    ],
)
def test_every_view_is_shown_for_every_kind(lake: Fairmile, name: str, view: str, shown: str) -> None:
    result = lake("show", name, "--fair", "--view", view)
    assert result.code == 0, result.err
    assert "of 100" in result.out.splitlines()[0]
    assert shown in result.out


def test_a_view_is_enough_to_ask_for_the_score(fairmile: Fairmile) -> None:
    alone = fairmile("show", "dataset/mnist", "--view", "table1")
    assert alone.out == fairmile("show", "dataset/mnist", "--fair", "--view", "table1").out


def test_a_requirement_that_does_not_apply_says_so(fairmile: Fairmile) -> None:
    out = fairmile("show", "program/torchvision", "--view", "table1").out
    assert re.search(r"^I2 +not applicable  ", out, re.MULTILINE)


def test_without_symbols_the_outcome_is_a_word(lake: Fairmile, at_terminal: Callable[..., str]) -> None:
    shown = re.sub(r"\033\[\d*m", "", at_terminal("show", "lake-temperatures", "--fair", encoding="ascii"))
    assert re.search(r"^yes  F1a ", shown, re.MULTILINE)
    assert re.search(r"^no   F1b ", shown, re.MULTILINE)
    assert "?" not in shown


def test_marks_are_coloured_at_a_terminal(at_terminal: Callable[..., str]) -> None:
    assert "\033[32m✔\033[0m F1a" in at_terminal("show", "dataset/mnist", "--fair")


ANSWERS = {
    "FILE-OR-FOLDER": "lake.csv",
    "https://ADDRESS-OF-THE-STANDARD": "http://mlcommons.org/croissant/1.1",
    "https://ADDRESS": "https://data.institute.edu/lake.csv",
    "TEXT OF 50 WORDS": "Hourly temperatures of three lakes in the north " * 7,
    "WORD-": "lake-",
    "DOMAIN": "limnology",
    "TASK": "forecasting",
    "NAME (ORCID-OR-ROR)": "Josiah Carberry (0000-0002-1825-0097)",
    "NAME (ROR)": "Brown University (05gq02987)",
    "YYYY-MM-DD": "2026-01-01",
    "=ASSET": "=builtin/dataset/mnist@1.0",
    "zenodo.NUMBER": "zenodo.42",
    "ACCESS-LEVEL": "public",
    "DOI-OF-THE-PAPER": "10.1000/182",
    "TRUE-OR-FALSE": "false",
    "SPDX-ID-STATED-BY-THE-HOLDER": "CC-BY-4.0",
    "RECORDS: FIELD TYPE": "lake: depth float [m]",
    "VARIABLE [UNIT]": "depth [m]",
}


def test_every_command_of_the_advice_raises_the_score_of_a_poor_card(fairmile: Fairmile, place: Path) -> None:
    """An owner runs them one after the other, with answers in place of the words in capitals."""
    (place / "lake.csv").write_text("time,depth [m]\n2024-01-01,1.5\n2024-01-02,2.5\n")
    poor = {
        "@context": "https://w3id.org/fairmile/card/1.0/context",
        "@type": "Dataset",
        "name": "pond",
        "version": "1",
    }
    (place / "pond.jsonld").write_text(json.dumps(poor))
    assert fairmile("catalog", "add", "pond.jsonld").code == 0
    before = start = fairmile("show", "pond", "--fair", "--json").json
    for _ in range(20):
        advised = [line for line in before["advice"] if "--set" in line or "--add" in line or "--file" in line]
        if not advised:
            break
        command = shlex.split(advised[0], comments=True)
        for word, answer in ANSWERS.items():
            command = [each.replace(word, answer) for each in command]
        result = fairmile(*command[1:])
        assert result.code == 0, (command, result.err)
        after = fairmile("show", "pond", "--fair", "--json").json
        assert after["score"] > before["score"], command
        before = after
    assert start["score"] < 40
    assert before["score"] > 90, before["advice"]
