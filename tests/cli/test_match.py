"""`fairmile match`: pairs with their reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Fairmile = Callable[..., Any]


def test_a_model_gets_its_data_sets_with_reasons(fairmile: Fairmile) -> None:
    result = fairmile("match", "--model", "cosmoflow")
    assert result.code == 0
    heads = [line for line in result.out.splitlines() if not line.startswith(" ")]
    assert "1.00  builtin/model/cosmoflow@1.0  ×  builtin/dataset/cosmouniverse-mini@2.0" in heads
    assert "      benchmark: the benchmark builtin/benchmark/cosmoflow@3.0 pairs them" in result.out.splitlines()


def test_a_data_set_gets_its_models(fairmile: Fairmile) -> None:
    matches = fairmile("match", "--dataset", "mnist", "--json").json["matches"]
    assert matches[0]["model"] == "builtin/model/mnist-dnn@1.0"
    assert {"kind", "text"} == set(matches[0]["reasons"][0])


def test_a_domain_gets_its_pairs(fairmile: Fairmile) -> None:
    matches = fairmile("match", "--domain", "seismology", "--json").json["matches"]
    assert matches
    assert all("seismology" in match["domains"] for match in matches)


def test_the_limit_is_kept(fairmile: Fairmile) -> None:
    assert len(fairmile("match", "--model", "cosmoflow", "--limit", "2", "--json").json["matches"]) == 2


def test_nothing_to_match_is_told(fairmile: Fairmile) -> None:
    result = fairmile("match")
    assert result.code == 2
    assert result.err == "error: nothing to match\n  hint: use --model NAME, --dataset NAME or --domain NAME\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "cosmoflo"], "no model named 'cosmoflo' in the catalog"),
        (["--dataset", "cosmoflow"], "no dataset named 'cosmoflow' in the catalog"),
        (["--model", ""], ""),
    ],
)
def test_an_unknown_name_is_told(fairmile: Fairmile, arguments: list[str], message: str) -> None:
    result = fairmile("match", *arguments, "--json")
    assert result.code == 2
    assert message in result.json["error"]["message"]
    assert result.err.startswith("error: ")


@pytest.mark.parametrize(
    "arguments, hint",
    [
        (["--domain", "seismolgy"], "did you mean 'seismology'?"),
        (["--domain", "qqq"], "`fairmile search --facet domain` lists the domains"),
        (["--model", "cosmoflow", "--dataset", "mnist"], "trainedOn"),
    ],
)
def test_where_nothing_fits_the_next_step_is_told(fairmile: Fairmile, arguments: list[str], hint: str) -> None:
    result = fairmile("match", *arguments)
    assert result.code == 0
    assert result.out == ""
    assert result.err.startswith("no match\nhint: ")
    assert hint in result.err


def test_where_nothing_fits_the_data_is_an_empty_list(fairmile: Fairmile) -> None:
    result = fairmile("match", "--domain", "qqq", "--json")
    assert result.json == {"matches": []}
    assert result.err == ""
