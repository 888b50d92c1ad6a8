"""The list of JSON Schemas."""

from __future__ import annotations

from fairmile.testing.schemas import commands, result_types
from from_code.markdown import page, table


def schema_page() -> str:
    rows = [
        (
            f"[`fairmile {name}`](commands/{name.split()[0]}.md)",
            " or ".join(f"{{py:class}}`~{each.__module__}.{each.__name__}`" for each in types),
            f"[{name.replace(' ', '-')}.json](../schemas/{name.replace(' ', '-')}.json)",
        )
        for name, command in commands()
        if (types := result_types(command))
    ]
    return page(
        "Schemas",
        "What each command prints with `--json`, as a JSON Schema (draft 2020-12) written from the types of its "
        "results. A test fails when a command and its schema differ.",
        table(["command", "result", "schema"], rows),
    )
