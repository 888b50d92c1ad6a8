"""What the catalog returns, beyond what its commands print."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument, NotFound
from fairmile.catalog.catalog import Catalog

Factory = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    "call",
    [
        lambda catalog: catalog.search("alpha"),
        lambda catalog: catalog.facets("kind"),
        lambda catalog: catalog.get("alpha"),
        lambda catalog: catalog.fair("alpha"),
        lambda catalog: catalog.export("alpha", "card"),
    ],
)
def test_a_result_survives_pickling(catalog: Catalog, card: Factory, call: Callable[[Catalog], Any]) -> None:
    catalog.add(card())
    result = call(catalog)
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is type(result)
    assert again.to_dict() == result.to_dict()


def test_a_card_from_a_pickle_is_shown_without_its_score(catalog: Catalog, card: Factory) -> None:
    catalog.add(card())
    assert "FAIR score" in catalog.get("alpha")._repr_html_()
    assert "FAIR score" not in pickle.loads(pickle.dumps(catalog.get("alpha")))._repr_html_()


def test_markup_in_a_card_is_shown_as_text(catalog: Catalog, card: Factory) -> None:
    catalog.add(card(description="<script>alert(1)</script>"))
    assert "<script>" not in catalog.get("alpha")._repr_html_()


def test_of_several_files_one_that_fails_does_not_stop_the_others(
    catalog: Catalog, card: Factory, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.jsonld", tmp_path / "bad.jsonld"
    catalog.add(card())
    good.write_text(catalog.get("alpha").to_json())
    bad.write_text("{")
    added = catalog.add_files([bad, good])
    assert [each.status for each in added] == ["present"]
    assert [each.file for each in added.failed] == [str(bad)]
    assert added.exit_code == 2
    assert "1 failed" in repr(added)
    with pytest.raises(InvalidDocument):
        catalog.add_files([bad])


def test_a_card_that_was_written_here_has_no_source_document(catalog: Catalog, card: Factory) -> None:
    catalog.add(card())
    with pytest.raises(NotFound, match="has no source document"):
        catalog.source_document("alpha")
