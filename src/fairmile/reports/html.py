"""A report as one HTML file: nothing is loaded from elsewhere, all text is escaped, no script but our own may run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources

from fairmile.reports.blocks import (
    Block,
    Cell,
    Code,
    Drawing,
    Facts,
    Fold,
    Heading,
    Image,
    Note,
    Table,
    Text,
    Tiles,
    Title,
    clean,
)
from fairmile.reports.colours import follow_theme, with_variables
from fairmile.reports.figures import PAGE_WIDTH, Picture
from fairmile.reports.readings import Series

_LONG = 70  # letters; a table with a longer text is read on a phone line by line
_SHORT, _LIST = 20, 12  # letters; a text up to here, and a list, is not broken into lines
_NUMBER = re.compile(r"[-+−]?[0-9]")
_COMMAND = re.compile(r"`([^`\n]+)`")
_ID = re.compile(r'(\bid="|url\(#|href="#)')


def render(title: str, blocks: Sequence[Block]) -> str:
    """Return the whole file."""
    # `</script` and `</style` cannot occur in our own files; those of others are never put there.
    style = resources.files("fairmile.reports").joinpath("page.css").read_text("utf-8")
    script = resources.files("fairmile.reports").joinpath("page.js").read_text("utf-8")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{_Writing(blocks).body()}\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def body_of(blocks: Sequence[Block], *, figure_at: Callable[[Picture], str] | None = None) -> str:
    """Return blocks as HTML that stands inside a page of the server with `page.css`.

    `figure_at` returns the address of a figure, which `page.js` then loads when it comes into sight.
    """
    return _Writing(blocks, figure_at, is_served=True).body()


def figure_view(picture: Picture, *, narrow: bool = False, prefix: str) -> str:
    """Return a figure as HTML for screens of one kind; `prefix` keeps its ids apart from those of others."""
    svg, series = picture.readable(narrow=narrow)
    return _view("view", svg, series, prefix, picture.title)


def inline_svg(svg: bytes, prefix: str, label: str) -> str:
    """Return a figure as part of a page: in the page's colours, its ids apart from those of other figures."""
    head, body = with_variables(svg)
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head) + f' role="img" aria-label="{_text(label)}"'
    return head + _ID.sub(lambda match: f"{match[1]}{prefix}-", body)


def standalone(picture: Picture) -> str:
    """Return a figure with title and caption as part of a page that is not ours, such as a notebook."""
    svg = picture.svg()
    prefix = hashlib.sha256(svg).hexdigest()[:8]
    drawing = _ID.sub(lambda match: f"{match[1]}{prefix}-", follow_theme(svg))
    return (
        f"<figure><figcaption><b>{_text(picture.title)}</b></figcaption>{drawing}"
        f"<figcaption>{_text(picture.note)}</figcaption></figure>"
    )


class _Writing:
    """Writes blocks one after the other."""

    def __init__(
        self,
        blocks: Sequence[Block],
        figure_at: Callable[[Picture], str] | None = None,
        *,
        is_served: bool = False,
    ) -> None:
        self._blocks = blocks
        self._figure_at = figure_at
        self._is_served = is_served  # then links within the server lead somewhere
        self._figures = 0
        self._sections = 0
        self._open = False

    def body(self) -> str:
        headings = [block.text for block in self._blocks if isinstance(block, Heading)]
        links = "".join(f'<a href="#s{at}">{_text(text)}</a>' for at, text in enumerate(headings, 1))
        parts = []
        for block in self._blocks:
            parts.append(self._block(block))
            if isinstance(block, Title) and len(headings) > 2:
                parts.append(f"<nav>{links}</nav>")
        return "\n".join(parts) + ("</section>" if self._open else "")

    def _block(self, block: Block) -> str:
        match block:
            case Title():
                return _title(block)
            case Heading():
                self._sections += 1
                end, self._open = "</section>\n" if self._open else "", True
                return f'{end}<section>\n<h2 id="s{self._sections}">{_text(block.text)}</h2>'
            case Text():
                return f"<p>{prose(block.text)}</p>"
            case Note():
                return f'<p class="note {block.tone}">{prose(block.text)}</p>'
            case Tiles():
                return _tiles(block)
            case Facts():
                rows = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in block.pairs)
                return f"<dl>{rows}</dl>"
            case Table():
                return _table(block, self._is_served)
            case Image():
                return self._figure(block)
            case Drawing():
                address = f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"
                title = _text(block.title)
                caption = f"<figcaption>{_text(block.file)}</figcaption>"
                return f'<figure><h3>{title}</h3>\n<img alt="{title}" src="{address}">\n{caption}</figure>'
            case Code():
                return f'<pre tabindex="0"><code>{_text(block.text)}</code></pre>'
            case Fold():
                inside = "\n".join(map(self._block, block.blocks))
                return f"<details><summary>{_text(block.title)}</summary>\n{inside}\n</details>"

    def _figure(self, image: Image) -> str:
        self._figures += 1
        picture = image.picture
        if self._figure_at is not None:
            return _figure_to_load(picture, self._figure_at(picture))
        svg, series = picture.readable()
        views = _view("wide", svg, series, f"f{self._figures}", picture.title)
        views += _view("narrow", *picture.readable(narrow=True), f"n{self._figures}", picture.title)
        name = _text(picture.name)
        address = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
        note = f"<span>{_text(picture.note)}</span> " if picture.note else ""
        return (
            f"<figure><h3>{_text(picture.title)}</h3>\n{views}"
            f'<figcaption>{note}<a download="{name}.svg" href="{address}">SVG</a></figcaption></figure>'
        )


def _figure_to_load(picture: Picture, address: str) -> str:
    """Return the place of a figure, with its title and of about its height, that a script fills."""
    name, source = _text(picture.name), _text(address)
    note = f"<span>{_text(picture.note)}</span> " if picture.note else ""
    return (
        f'<figure data-figure="{source}"><h3>{_text(picture.title)}</h3>\n'
        f'<div><svg viewBox="0 0 {PAGE_WIDTH:g} {picture.height:g}" aria-hidden="true"></svg></div>'
        f'<noscript><img alt="{_text(picture.title)}" src="{source}.svg"></noscript>\n'
        f'<figcaption>{note}<a download="{name}.svg" href="{source}.svg">SVG</a></figcaption></figure>'
    )


def _view(kind: str, svg: bytes, series: Sequence[Series], prefix: str, label: str) -> str:
    """Return a figure for screens of one kind; the style of the page shows one of the two."""
    read = f' data-read="{escape(json.dumps(series, separators=(",", ":")), quote=True)}"' if series else ""
    return f'<div class="{kind}"{read}>{inline_svg(svg, prefix, label)}</div>\n'


def _title(title: Title) -> str:
    badge = f' <span class="badge {title.tone}">{_text(title.badge)}</span>' if title.badge else ""
    below = f'\n<p class="below">{_text(title.below)}</p>' if title.below else ""
    return f"<header><h1>{_text(title.text)}{badge}</h1>{below}</header>"


def _tiles(tiles: Tiles) -> str:
    parts = "".join(
        f'<div class="tile"><span>{_text(each.label)}</span><b>{_text(each.value)}</b>'
        f"<small>{_text(each.below)}</small></div>"
        for each in tiles.tiles
    )
    return f'<div class="tiles">{parts}</div>'


def _table(table: Table, with_links: bool) -> str:
    def side(column: str) -> str:
        return ' class="number"' if column in table.numbers else ""

    # On a phone long texts stand below each other, each with the name of its column.
    is_prose = any(len(cell.text) > _LONG and not cell.code for row in table.rows for cell in row)

    head = "".join(
        f'<th scope="col"{side(column)}><button type="button">{_breakable(column)}</button></th>'
        if column
        else "<td></td>"
        for column in table.columns
    )
    rows = "".join(
        "<tr>" + "".join(_cell(cell, column in table.numbers, column if is_prose else "", with_links)
                         for cell, column in zip(row, table.columns, strict=True)) + "</tr>\n"
        for row in table.rows
    )  # fmt: skip
    kind = ' class="prose"' if is_prose else ""
    return f'<div class="scroll"><table{kind}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>'


def _cell(cell: Cell, is_number: bool, name: str, with_links: bool) -> str:
    classes = " ".join(filter(None, ["number" if is_number else _width(cell), cell.tone]))
    named = f' class="{classes}"' if classes else ""
    order = f' data-sort="{cell.sort:.17g}"' if cell.sort is not None else ""
    labelled = f' data-name="{_text(name)}"' if name and cell.text else ""
    text = f"<code>{_text(cell.text)}</code>" if cell.code else _with_range(cell.text)
    if with_links and re.match(r"/(?!/)", cell.link):  # on this server: whatever a name holds, it leads nowhere else
        text = f'<a href="{_text(cell.link)}">{text}</a>'
    return f"<td{named}{order}{labelled}>{text}</td>"


def _width(cell: Cell) -> str:
    """Return the class that says where a text may be broken into lines, and how narrow it may get."""
    if len(cell.text) > _SHORT:
        return "" if cell.code else "text"
    return "" if ", " in cell.text and len(cell.text) > _LIST else "whole"


def _with_range(text: str) -> str:
    """Return a text whose interval, `0.5 (0.4 to 0.6)`, goes below its value on a phone."""
    value, space, interval = text.partition(" (")
    if not space or not text.endswith(")") or not _NUMBER.match(value):
        return _breakable(text)
    return f'{_text(value)} <span class="range">({_text(interval)}</span>'


def _breakable(name: str) -> str:
    """Return a name that may go on in the next line after each underscore."""
    return prose(name).replace("_", "_<wbr>")


def prose(text: str) -> str:
    """Return a sentence, in which `commands` stand out."""
    return _COMMAND.sub(r"<code>\1</code>", _text(text))


def _text(text: str) -> str:
    return escape(clean(text), quote=True)
