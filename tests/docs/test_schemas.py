"""docs/schemas says what each command prints with --json, as the types of its results do."""

from __future__ import annotations

from pathlib import Path

from cases import for_each

from fairmile.testing.schemas import commands, result_types, schema_files

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schemas"


@for_each("name, command", commands())
def test_every_command_says_which_results_it_prints(name: str, command: object) -> None:
    assert result_types(command), f"`fairmile {name}` needs @json_output(...)"  # type: ignore[arg-type]


def test_the_schemas_are_those_of_the_results() -> None:
    """After a wanted change: python -m fairmile.testing.schemas docs/schemas."""
    assert {file.name: file.read_text(encoding="utf-8") for file in SCHEMAS.glob("*.json")} == schema_files()
