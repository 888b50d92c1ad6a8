"""Every command beside the Python call that does the same, from the pairs that tests execute."""

from __future__ import annotations

from itertools import groupby

from fairmile.testing.calls import EXAMPLES, Example, command_names
from from_code.markdown import code, page, table


def calls_page() -> str:
    order = {name: at for at, name in enumerate(command_names())}
    examples = sorted(EXAMPLES, key=lambda each: order[each.command])
    return page(
        "Commands and calls",
        "Everything that the command line does is one call in Python, after `import fairmile as fm`. The call's "
        "`to_dict()` is what the command prints with `--json`. Tests execute these pairs and compare them, except "
        "those marked with *: they take long, need a GPU or a second machine, or do something new each time.",
        *(
            f"## fairmile {group}\n\n{table(['command', 'Python'], map(_row, pairs))}"
            for group, pairs in groupby(examples, key=lambda each: each.command.partition(" ")[0])
        ),
    )


def _row(example: Example) -> tuple[str, str]:
    mark = "" if example.is_executed else " *"
    return code(f"fairmile {example.shell}") + mark, code(example.python)
