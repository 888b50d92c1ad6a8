"""The colours of figures, and how a figure follows the theme of the page or notebook that shows it."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

# The colours of Okabe and Ito, which people with any kind of colour blindness tell apart; black and yellow left out.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b")
# From the best to the worst, dark to light on paper; each step is told from the next without colour, too (viridis).
SHADES = ("#481769", "#443983", "#38598c", "#2c738e", "#218e8d", "#22a785", "#46c06f", "#84d44b", "#cae11f")
INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"
_VARIABLES = (
    {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"}
    | {colour: f"c{at}" for at, colour in enumerate(COLOURS)}
    | {colour: f"h{at}" for at, colour in enumerate(SHADES)}
)
_COLOUR = re.compile("|".join(map(re.escape, _VARIABLES)), re.IGNORECASE)
_DROPPED = re.compile(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<defs>\s*</defs>", re.DOTALL)
_OWN = "fairmile-figure"
# How notebooks and documentation mark their theme; what marks none follows the browser.
_LIGHT_THEMES = ('[data-jp-theme-light="true"]', ".vscode-light", '[data-theme="light"]')
_DARK_THEMES = ('[data-jp-theme-light="false"]', ".vscode-dark", '[data-theme="dark"]')


def with_variables(svg: bytes) -> tuple[str, str]:
    """Return the head and the body of a figure, with variables such as `var(--ink)` in place of colours."""
    text = _DROPPED.sub("", svg.decode())
    text = text[text.index("<svg") :]
    at = text.index(">")
    return text[:at], _COLOUR.sub(lambda match: f"var(--{_VARIABLES[match[0].lower()]})", text[at:])


def follow_theme(svg: bytes) -> str:
    """Return a figure that is light or dark as the notebook or, without one, the browser is."""
    head, body = with_variables(svg)
    # Where a style sheet is taken away, each colour is still the one of a light page.
    body = re.sub(r"var\(--(\w+)\)", lambda match: f"var(--{match[1]}, {_colour(match[1])})", body)
    return f'{head} class="{_OWN}"><style>{_theme_style()}</style>{body[1:]}'


def _colour(variable: str) -> str:
    return next(colour for colour, name in _VARIABLES.items() if name == variable)


@cache
def _theme_style() -> str:
    """Return the style sheet of one figure: the colours of our pages, by theme."""
    page = resources.files("fairmile.reports").joinpath("page.css").read_text("utf-8")
    light, dark = (_declarations(block) for block in re.findall(r":root \{(.*?)\}", page, re.DOTALL)[:2])

    def under(themes: tuple[str, ...], colours: str) -> str:
        return f"{', '.join(f'{theme} .{_OWN}' for theme in themes)} {{{colours}}}"

    return (
        f".{_OWN} {{max-width: 100%; height: auto; {light}}} "
        f"@media (prefers-color-scheme: dark) {{.{_OWN} {{{dark}}}}} "
        f"{under(_LIGHT_THEMES, light)} {under(_DARK_THEMES, dark)}"
    )


def _declarations(block: str) -> str:
    names = set(_VARIABLES.values())
    return " ".join(f"--{name}: {value};" for name, value in re.findall(r"--(\w+): (#\w+);", block) if name in names)
