"""Figures on pages whose policy allows no `style` attribute: the same, as attributes of their own."""

from __future__ import annotations

import re
from html import escape, unescape

_STYLE = re.compile(r'\sstyle="([^"]*)"')
_FONT = re.compile(r"^(?:(italic|oblique)\s+)?(?:(bold|\d00)\s+)?([\d.]+(?:px|pt|em)?)(?:/\S+)?\s+(.+)$")
_ONLY_CSS = frozenset({"white-space", "mix-blend-mode"})


def without_inline_styles(html: str) -> str:
    """Return HTML of our own making in which every `style="a: b"` is `a="b"`, as SVG allows."""
    return _STYLE.sub(lambda match: _attributes(unescape(match[1])), html)


def _attributes(style: str) -> str:
    values: dict[str, str] = {}
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        font = _FONT.match(value) if name == "font" else None
        if font is not None:
            slant, weight, size, family = font.groups()
            values |= {"font-style": slant or "normal", "font-weight": weight or "normal"}
            values |= {"font-size": size, "font-family": family}
        elif name and value and name not in _ONLY_CSS:
            values[name] = value
    return "".join(f' {name}="{escape(value, quote=True)}"' for name, value in values.items())
