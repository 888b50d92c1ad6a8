"""Pictures in a light and a dark version: a page names the light one, the site shows the one that fits."""

from __future__ import annotations

import re

_PICTURE = re.compile(r"^!\[([^\]]*)\]\(([^)\s]+)-light\.png\)$", re.MULTILINE)


def show_both(text: str) -> str:
    """Return a page in which `![alt](NAME-light.png)` shows NAME-dark.png in dark mode."""
    return _PICTURE.sub(lambda match: "\n".join(_image(match, scheme) for scheme in ("light", "dark")), text)


def _image(match: re.Match[str], scheme: str) -> str:
    alt, name = match.groups()
    return f"```{{image}} {name}-{scheme}.png\n:alt: {alt}\n:class: only-{scheme}\n```\n"
