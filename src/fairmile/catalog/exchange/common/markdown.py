"""What a README in Markdown says of an asset: its front matter, its title, its first paragraphs."""

from __future__ import annotations

import re

from fairmile.base.errors import InvalidDocument, Problem
from fairmile.base.quick_named_tuple import NamedTuple

_LONGEST_LOOK = 200_000  # characters of a README in which title and summary are looked for
_ENOUGH = 600
_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(.*)$")
_HTML_TITLE = re.compile(r"<h1[^<>]{0,200}>(.{1,300}?)</h1>", re.IGNORECASE | re.DOTALL)
_LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d{1,3}[.)])\s")
_RULE = re.compile(r"^\s*(?:-{3,}|\*{3,}|_{3,}|={3,})\s*$")
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,500}>")
_IMAGE = re.compile(r"!\[[^\]]{0,300}\]\([^)]{0,500}\)")
_LINK = re.compile(r"\[([^\]\[]{0,300})\]\(([^)]{0,500})\)")
# Sentences that templates put into every README; they say nothing about the asset.
_BOILERPLATE = re.compile(
    r"more information needed|needs more information|base template for new|raw template"
    r"|has been automatically generated|has been generated automatically",
    re.IGNORECASE,
)


class Readme(NamedTuple):
    """A README in two: the YAML of its front matter, on the lines it has in the file, and the text below."""

    front: str
    text: str


def unify_lines(text: str) -> str:
    """Return the text with LF at every line end, however it was written; CR CR LF is one line end."""
    text = text.lstrip("\ufeff")
    return text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n")


def has_front_matter(text: str) -> bool:
    """Tell whether the first line that is not blank opens a front matter."""
    return next((line.rstrip() == "---" for line in text.splitlines() if line.strip()), False)


def split_readme(text: str, *, file: str = "") -> Readme:
    """Split a README at the fences of its front matter; InvalidDocument when one is missing."""
    lines = unify_lines(text).split("\n")
    start = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[start].rstrip() != "---":
        problem = Problem(
            "has no front matter",
            file=file,
            line=start + 1,
            hint="the first line must be ---, then YAML, then --- again",
        )
        raise InvalidDocument([problem])
    for number in range(start + 1, len(lines)):
        if lines[number].rstrip() == "---":
            return Readme(
                "\n" * (start + 1) + "\n".join(lines[start + 1 : number]), "\n".join(lines[number + 1 :]).strip("\n")
            )
    problem = Problem(
        "the front matter is not closed",
        file=file,
        line=start + 1,
        hint="add a line --- after the last line of its YAML",
    )
    raise InvalidDocument([problem])


def title_of(text: str) -> str | None:
    """Return the text of the first top-level heading, without mark-up."""
    html = _HTML_TITLE.search(text, 0, _LONGEST_LOOK)
    lines = _prose_lines(text)
    for number, line in enumerate(lines):
        match = _HEADING.match(line)
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if match and len(match[1]) == 1:
            return inline_text(match[2].rstrip("# ")) or None
        if line.strip() and re.fullmatch(r" {0,3}=+\s*", following):
            return inline_text(line) or None
    return inline_text(html[1]) or None if html else None


def summary_of(text: str) -> str | None:
    """Return the first paragraphs of prose, without mark-up; None when the README has none."""
    paragraphs: list[str] = []
    paragraph: list[str] = []
    for line in [*_prose_lines(text), ""]:
        heading = bool(_HEADING.match(line)) or bool(_RULE.match(line))
        if line.strip() and not heading:
            paragraph.append(line)
            continue
        prose = _prose(paragraph)
        # A line underlined with === or --- is a heading too.
        if prose and not (_RULE.match(line) and len(paragraph) == 1):
            paragraphs.append(prose)
        paragraph = []
        if paragraphs and (heading or sum(map(len, paragraphs)) >= _ENOUGH):
            break
    return "\n\n".join(paragraphs) or None


def bibtex_of(text: str) -> str | None:
    """Return the first BibTeX entry that stands in a fenced block."""
    inside, block = False, list[str]()
    for line in text[:_LONGEST_LOOK].split("\n"):
        if _FENCE.match(line):
            if inside and block and re.match(r"\s*@[a-zA-Z]+\s*\{", block[0]):
                return "\n".join(block)
            inside, block = not inside, []
        elif inside and (line.strip() or block):
            block.append(line)
    return None


def labelled_address(text: str, label: str) -> str | None:
    """Return the address in a line such as `- **Homepage:** https://…`."""
    pattern = (
        rf"^[ \t]*[-*][ \t]+\*\*{label}\b[^*\n]{{0,40}}\*\*:?\s*(?:\[[^\]\n]{{0,200}}\]\()?<?(https?://[^\s()<>\]]+)"
    )
    match = re.search(pattern, text[:_LONGEST_LOOK], re.MULTILINE | re.IGNORECASE)
    return match[1].rstrip(".,") if match else None


def inline_text(line: str) -> str:
    """Return a line of Markdown without images, tags, emphasis and the addresses of its links."""
    bare = _LINK.sub(r"\1", _IMAGE.sub("", _TAG.sub("", line)))
    return re.sub(r"\s+", " ", bare.replace("**", "").replace("`", "")).strip()


def _prose_lines(text: str) -> list[str]:
    """Return the lines that stand outside of code blocks; a block counts as one blank line."""
    lines: list[str] = []
    fence = ""
    for line in _without_comments(text[:_LONGEST_LOOK]).split("\n"):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
            lines.append("")
        elif match and match[1] == fence:
            fence = ""
        elif not fence:
            lines.append(line)
    return lines


def _without_comments(text: str) -> str:
    kept: list[str] = []
    at = 0
    while (start := text.find("<!--", at)) >= 0 and (end := text.find("-->", start)) >= 0:
        kept.append(text[at:start])
        at = end + 3
    return "".join([*kept, text[at:]])


def _prose(paragraph: list[str]) -> str:
    if not paragraph or paragraph[0].lstrip().startswith("|") or _LIST_ITEM.match(paragraph[0]):
        return ""
    joined = inline_text(" ".join(line.lstrip("> ") for line in paragraph))
    return joined if re.search(r"\w", joined) and not _BOILERPLATE.search(joined) else ""
