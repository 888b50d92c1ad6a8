"""What a notebook shows of a result, without how it is aligned."""

from __future__ import annotations

from typing import Any


def notebook_html(result: Any) -> str:
    """Return the HTML of a result as tests compare it."""
    text: str = result._repr_html_()
    return text.replace(' style="text-align:left"', "")
