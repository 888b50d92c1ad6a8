"""The list of settings, with defaults and variables."""

from __future__ import annotations

from pathlib import Path

from fairmile.base.config import variable_name
from fairmile.workspace import options
from from_code.markdown import code, page, table

_HOME = Path("/home/you")


def settings_page() -> str:
    rows = [
        (
            code(key),
            code(str(option.default).replace(str(_HOME), "~")) if option.default not in ("", None, {}) else "empty",
            code(variable_name(key)),
            "yes" if option.safe else "after `fairmile trust`",
            option.help,
        )
        for key, option in options({"HOME": str(_HOME)}).items()
    ]
    return page(
        "Settings",
        "Fairmile reads settings in this order, and the last one wins: defaults, `/etc/fairmile/config.yaml`, "
        "`~/.config/fairmile/config.yaml`, the nearest `fairmile.yaml` upwards from your folder, variables. "
        "`fairmile doctor` shows each value in force with its origin, such as a file and line. "
        "[Settings](../sources.md#settings) has an example file.",
        table(["setting", "default", "variable", "in a project's file", "meaning"], rows),
    )
