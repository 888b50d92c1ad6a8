"""What commands on cards, data and settings print with `--json` is the `to_dict()` of one Python call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from notebook_html import notebook_html
from trusted_projects import trusted_project

from fairmile.base.results import Result, Results
from fairmile.testing.schemas import commands, result_types, schema_of
from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]
Call = Callable[[Workspace], Result]

# Of a disk that others use as well, or of the clock.
_CHANGING = ("date", "free_bytes", "inodes_free", "total_bytes", "used", "used_bytes", "why")

# Beside those of fairmile/testing/calls.py.
CASES: dict[str, Call] = {
    "search nothinglikeit": lambda w: w.catalog.search("nothinglikeit"),
    "show cosmoflow": lambda w: w.catalog.show("cosmoflow"),
    "catalog add lake.jsonld broken.jsonld --dry-run": lambda w: w.catalog.add_files(
        [Path("lake.jsonld"), Path("broken.jsonld")], dry_run=True
    ),
    "catalog export dataset/mnist --to croissant -o out --dry-run": lambda w: w.catalog.export(
        "dataset/mnist", "croissant", Path("out"), dry_run=True
    ),
    "trust --remove --dry-run": lambda w: w.trust().remove(Path("fairmile.yaml").absolute(), dry_run=True),
}


@pytest.fixture
def stocked(lake: Fairmile, place: Path) -> Fairmile:
    """The command line in a home with cards, a source, data, a pin, a pool and a trusted project."""
    (place / "broken.jsonld").write_text("{")
    (place / "tide.csv").write_text("time,level\n0,1.5\n")
    trusted_project(place, "transfer: {retries: 3, unsized: 1 GB}\n")
    for command in (
        "catalog source add group ./shared-cards",
        "store pool add scratch ./scratch --capacity 10MB",
        "fetch tide.csv",
        "store pin tide.csv --as kept",
    ):
        assert lake(*command.split()).code == 0, command
    return lake


@pytest.mark.parametrize("command", CASES)
def test_json_is_the_result_of_one_call_and_follows_its_schema(stocked: Fairmile, command: str) -> None:
    printed = stocked(*command.split(), "--json").json
    result = CASES[command](Workspace.open())
    assert _steady(printed) == _steady(result.to_dict())
    jsonschema.validate(printed, _exact(schema_of(command, (type(result),))))
    assert isinstance(result, _types_of(command))
    assert "\n" not in repr(result) and len(repr(result)) <= 200
    assert result._repr_html_().startswith("<table>")
    if isinstance(result, Results):
        assert len(result.to_pandas()) == len(result)


def test_a_card_is_shown_in_a_notebook_with_what_matters_first(stocked: Fairmile) -> None:
    text = notebook_html(Workspace.open().catalog.show("dataset/lake-temperatures"))
    for label in ("name", "kind", "version", "licence", "FAIR score"):
        assert f"<th>{label}</th>" in text


def _types_of(command: str) -> tuple[type[Result], ...]:
    return next(result_types(each) for name, each in commands() if f"{command} ".startswith(f"{name} "))


def _steady(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _steady(value) for key, value in data.items() if key not in _CHANGING}
    return [_steady(each) for each in data] if isinstance(data, list) else data


def _exact(schema: Any) -> Any:
    """Return a schema that refuses keys which it does not name."""
    if isinstance(schema, list):
        return [_exact(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return {key: _exact(value) for key, value in schema.items()} | closed
