"""`fairmile search`: what is typed, and what is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replay import Replay, Reply

SAMPLES = Path(__file__).parents[1] / "catalog" / "exchange" / "samples"
Fairmile = Callable[..., Any]


def names(result: Any) -> list[str]:
    assert result.code == 0, result.err
    return [re.split(r"  +", line)[1] for line in result.out.splitlines()[1:]]


def found(result: Any) -> list[str]:
    assert result.code == 0, result.err
    return [hit["handle"] for hit in result.json["results"]]


def test_words_find_assets_of_every_catalog(lake: Fairmile) -> None:
    assert "lake-temperatures@1.0" in names(lake("search", "lake"))
    assert "cosmoflow@1.0" in names(lake("search", "cosmology"))


def test_a_row_shows_kind_name_catalog_domain_size_and_the_first_sentence(fairmile: Fairmile) -> None:
    head, row = fairmile("search", "mnist", "kind:dataset", "--limit", "1").out.splitlines()
    assert head.split() == ["kind", "name", "catalog", "domain", "size", "about"]
    cells = re.split(r"  +", row)
    assert cells[:5] == ["dataset", "mnist@1.0", "builtin", "computer science", "11.0 MiB"]
    assert cells[5].startswith("Seventy thousand")
    assert cells[5].endswith(".")


def test_the_program_gets_the_same_as_data(fairmile: Fairmile) -> None:
    result = fairmile("search", "mnist", "kind:dataset", "--limit", "1", "--json")
    assert result.err == ""
    (hit,) = result.json["results"]
    assert hit["handle"] == "builtin/dataset/mnist@1.0"
    assert hit["kind"] == "dataset"
    assert hit["size_bytes"] > 0
    assert result.json["did_you_mean"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["kind:benchmark", "-domain:cosmology"],
        ["-domain:cosmology", "kind:benchmark"],
        ["--kind", "benchmark", "-domain:cosmology"],
        ["-domain:cosmology", "--kind=benchmark"],
        ["--kind", "benchmark", "--", "-domain:cosmology"],
    ],
    ids=" ".join,
)
def test_a_word_that_begins_with_a_dash_leaves_out(fairmile: Fairmile, arguments: list[str]) -> None:
    handles = found(fairmile("search", "--json", *arguments))
    assert "builtin/benchmark/mnist@1.0" in handles
    assert "builtin/benchmark/cosmoflow@3.0" not in handles
    assert all(handle.startswith("builtin/benchmark/") for handle in handles)


def test_a_word_that_begins_like_the_help_option_leaves_out_too(fairmile: Fairmile) -> None:
    handles = found(fairmile("search", "kind:model", "-handwritten", "--limit", "100", "--json"))
    assert handles
    assert "builtin/model/mnist-dnn@1.0" not in handles
    assert "builtin/model/mnist-dnn@1.0" in found(fairmile("search", "kind:model", "handwritten", "--json"))


def test_the_value_of_an_option_may_begin_with_a_dash(fairmile: Fairmile) -> None:
    result = fairmile("search", "--kind", "-model")
    assert result.code == 2
    assert "no kind named '-model'" in result.err


def test_a_phrase_in_the_quotes_of_the_shell_is_a_phrase(lake: Fairmile, place: Path) -> None:
    add_card(lake, place, "side", description="The water level rises.")
    add_card(lake, place, "apart", description="The level of the water rises.")
    side, apart = "local/dataset/side@1.0", "local/dataset/apart@1.0"
    here = ("catalog:local", "--json")
    assert found(lake("search", "water level", *here)) == [side]
    assert set(found(lake("search", "water", "level", *here))) == {side, apart}
    assert found(lake("search", "rises", "-water level", *here)) == [apart]


def test_a_field_may_have_a_value_of_several_words(fairmile: Fairmile) -> None:
    handles = found(fairmile("search", 'domain:"materials science"', "--limit", "100", "--json"))
    assert "builtin/model/ptychonn@1.0" in handles
    assert "builtin/model/cosmoflow@1.0" not in handles


def test_a_kind_may_be_given_as_an_option(fairmile: Fairmile) -> None:
    for kind in ("model", "models"):
        handles = found(fairmile("search", "cosmology", "--kind", kind, "--json"))
        assert handles
        assert all("/model/" in handle for handle in handles)


@pytest.mark.parametrize("pattern", ["^cosmo(flow|universe)$", "cosmoflow|no/such name"])
def test_a_pattern_finds_names(fairmile: Fairmile, pattern: str) -> None:
    handles = found(fairmile("search", "--regex", pattern, "--kind", "model", "--json"))
    assert handles == ["builtin/model/cosmoflow@1.0"]


def test_a_pattern_may_hold_blanks_and_slashes(lake: Fairmile, place: Path) -> None:
    add_card(lake, place, "spoken", keywords=["input/output of lakes"])
    assert found(lake("search", "--regex", "input/output of la.es", "--json")) == ["local/dataset/spoken@1.0"]


def test_a_search_without_a_hit_names_broader_ones_that_have_some(fairmile: Fairmile) -> None:
    result = fairmile("search", "cosmology", "kind:system")
    assert "`fairmile search cosmology` has results" in result.err
    for query in fairmile("search", "cosmology", "kind:system", "--json").json["broader"]:
        assert fairmile("search", *query.split(), "--json").json["results"], query


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--regex", "("], "is not a regular expression"),
        (["--regex", ""], "the pattern of --regex is empty"),
        (["kind:modle"], "no kind named 'modle'; did you mean 'model'?"),
        (["--kind", "modle"], "no kind named 'modle'; did you mean 'model'?"),
        (["domian:cosmology"], "no search field named 'domian'; did you mean 'domain'?"),
        (["--facet", "domian"], "no facet named 'domian'"),
        (["--facet", ""], "no facet named ''"),
        (["cosmology", "--facet", "domain"], "--facet cannot be combined with a search"),
        (["x" * 5000], "longer than 1000 characters"),
    ],
)
def test_what_cannot_be_searched_for_is_told(fairmile: Fairmile, arguments: list[str], message: str) -> None:
    result = fairmile("search", *arguments)
    assert result.code == 2
    assert result.out == ""
    assert message in result.err.splitlines()[0]
    assert "  hint: " in result.err or "longer than" in message


def test_a_word_that_finds_nothing_brings_the_nearest(fairmile: Fairmile) -> None:
    result = fairmile("search", "erthquake")
    assert result == (0, "", "no asset matches; did you mean earthquake?\n")
    assert fairmile("search", "erthquake", "--json").json["did_you_mean"] == ["earthquake"]


def test_a_word_near_to_none_finds_nothing_and_is_answered_with_where_to_look(fairmile: Fairmile) -> None:
    result = fairmile("search", "qqqqzzzz")
    assert result[:2] == (0, "")
    assert result.err.startswith("no asset matches\nhint: ")
    assert "--facet domain" in result.err


@pytest.mark.parametrize("word", ['say "hi"', "it's", "地震", "a/b", "--", "'; DROP TABLE card; --", "\udcff"])
def test_odd_words_do_no_harm(fairmile: Fairmile, word: str) -> None:
    result = fairmile("search", "--json", "--", word)
    assert result.code == 0
    assert isinstance(result.json["results"], list)


def test_the_limit_is_kept_and_said(fairmile: Fairmile) -> None:
    result = fairmile("search", "--limit", "3")
    assert len(result.out.splitlines()) == 4
    assert "--limit" in result.err
    everything = fairmile("search", "--limit", "10000")
    assert len(everything.out.splitlines()) > 50
    assert everything.err == ""


def test_older_versions_are_shown_on_demand(lake: Fairmile) -> None:
    assert lake("catalog", "update", "lake-temperatures", "--set", "version=1.1").code == 0
    data = ("catalog:local", "kind:dataset", "--json")
    assert found(lake("search", *data)) == ["local/dataset/lake-temperatures@1.1"]
    assert set(found(lake("search", "--all-versions", *data))) == {
        "local/dataset/lake-temperatures@1.1",
        "local/dataset/lake-temperatures@1.0",
    }


def test_a_removed_asset_is_marked(lake: Fairmile) -> None:
    assert lake("catalog", "rm", "lake-temperatures").code == 0
    assert "lake-temperatures@1.0 (removed)" in lake("search", "lake-temperatures").out


def test_an_asset_described_differently_elsewhere_is_marked(lake: Fairmile) -> None:
    assert lake("catalog", "update", "dataset/mnist", "--add", "keywords=mine").code == 0
    row = lake("search", "mnist", "kind:dataset", "--limit", "1").out.splitlines()[1]
    assert "local" in row
    assert "[also in builtin: differs]" in row


def test_the_values_of_a_field_are_listed_with_their_numbers(fairmile: Fairmile) -> None:
    result = fairmile("search", "--facet", "domain")
    assert re.search(r"^cosmology +\d+$", result.out, re.MULTILINE)
    values = fairmile("search", "--facet", "domain", "--json").json
    assert values["facet"] == "domain"
    assert values["values"]["cosmology"] >= 1


def test_a_field_that_no_card_has_is_told(fairmile: Fairmile) -> None:
    assert fairmile("search", "--facet", "project") == (0, "", "no card has a project\n")


def test_at_80_columns_every_line_fits_and_every_name_is_whole(at_terminal: Callable[..., str]) -> None:
    shown = at_terminal("search", "cosmology", columns=80)
    lines = re.sub(r"\033\[\d*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[1:2] == ["cosmoflow-benchmark@git-bec82d1f"] for line in lines)
    assert any(line.startswith("    The reference implementation") for line in lines)


def test_a_wide_terminal_shows_one_line_for_each(at_terminal: Callable[..., str]) -> None:
    shown = at_terminal("search", "cosmology", "kind:model", columns=200)
    assert len(shown.splitlines()) == 2


def add_card(fairmile: Fairmile, place: Path, name: str, **more: Any) -> None:
    card = json.loads((place / "lake.jsonld").read_text()) | {"name": name} | more
    (place / f"{name}.jsonld").write_text(json.dumps(card))
    assert fairmile("catalog", "add", f"{name}.jsonld").code == 0


def test_hubs_are_searched_shown_and_added_through_the_settings(
    fairmile: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads((SAMPLES / "zenodo" / "record.json").read_text())
    with Replay() as server:
        server.replies["/api/records?q=lake&type=dataset&size=20"] = Reply({"hits": {"hits": [record]}})
        server.replies["/api/records/10734921"] = Reply(record)
        monkeypatch.setenv("FAIRMILE_HUBS_ZENODO", server.url)
        monkeypatch.setenv("FAIRMILE_HUBS_OPENML_SEARCH", "http://127.0.0.1:9")
        result = fairmile("search", "lake", "--kind", "dataset", "--hub", "zenodo", "--hub", "openml")
        assert result.code == 0
        row = re.split(r"  +", result.out.splitlines()[1])
        assert row[:4] == ["dataset", "zenodo:10734921", "CC-BY-4.0", "1.2 KiB"]
        assert re.search(r"^warning: openml did not respond: ", result.err, re.MULTILINE)
        shown = fairmile("show", "zenodo:10734921", "--json").json
        assert shown["handle"] == "zenodo:10734921"
        assert shown["card"]["license"] == "https://spdx.org/licenses/CC-BY-4.0"
        assert fairmile("catalog", "add", "zenodo:10734921").out.startswith("added    local/dataset/lake-temperatures")
        assert fairmile("search", "lake", "--hub", "openml").code == 3


@pytest.mark.parametrize("arguments", [["--regex", "x"], ["--all-versions"], ["licence:MIT"], []], ids=" ".join)
def test_what_hubs_cannot_answer_is_refused(fairmile: Fairmile, arguments: list[str]) -> None:
    assert fairmile("search", "--hub", "zenodo", *arguments).code == 2
