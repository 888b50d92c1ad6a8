"""Placeholders in a text: where `{name}` stands for a value, and where braces belong to another language.

- `{name}`, `{section.name}`, `{time.{model}}` and, as one word of a shell, `{name|quote}` are placeholders.
- `${…}` is the shell's, and `\\{…}` is none.
- Braces that hold no name are none: JSON, `{1..9}`, `{a,b}`, `{print $1}`, `{}`.
- A name that is not known need not be one in comments, in f-strings of Python on one line and, where there is no dot
  in it, as a bare statement of awk (`{print}`), in `{{name}}`, `%{name}`, `@{name}` and `exec {fd}>file`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_named_tuple import NamedTuple

_SIMPLE = lazy_pattern(r"\{([^{}\n]*)\}")
_PATH = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_PIECE = lazy_pattern(r"[A-Za-z0-9_.-]+")
_COMMENT = lazy_pattern(r"\s*#(?![A-Z]+:?\s|[!$@]|flux:)")
_F_STRING = lazy_pattern(r"(?<![\w-])(?:[rR]?[fF]|[fF][rR])[\"']")
_AWK = frozenset({"print", "next", "nextfile", "exit", "getline", "return", "break", "continue"})
_QUOTE = "|quote"
_CLOSE = lazy_pattern(r"(\|quote)?\}")
_DEEPEST = 8  # placeholders in names of placeholders
_PLAIN = lazy_pattern(r"(?<![$\\])\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_COMPOUND = lazy_pattern(r"\{[^{}]*\{|\|quote\}")
_ESCAPED = lazy_pattern(r"\\(?=\{[A-Za-z_][A-Za-z0-9_.-]*(?:\|quote)?\})")


class Name(NamedTuple):
    """A placeholder in a text, whose name may have placeholders in it; `must` tells whether it has to be defined."""

    parts: tuple[str | Name, ...]
    source: str
    line: int
    must: bool
    is_quoted: bool = False


def fill_words(words: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return words with the placeholders replaced whose names are known; all else stays as it is."""
    return tuple(_fill(word, values) if "{" in word else word for word in words)


def drop_escapes(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command that is complete, with `\\{name}` as the `{name}` that it stands for."""
    return tuple(_ESCAPED.sub("", word) if "\\{" in word else word for word in words)


def names_in(words: Sequence[str], known: Callable[[str], bool]) -> Iterator[Name]:
    """Yield the placeholders of words, also those in the names of others."""
    for word in words:
        for part in scan(word, known) if "{" in word else ():
            if isinstance(part, Name):
                yield from _with_inner(part)


def _with_inner(name: Name) -> Iterator[Name]:
    yield name
    for part in name.parts:
        if isinstance(part, Name):
            yield from _with_inner(part)


def _fill(word: str, values: Mapping[str, str]) -> str:
    if not _COMPOUND.search(word):  # as almost all, and thousands of points are filled
        return _PLAIN.sub(lambda match: values.get(match[1], match[0]), word)
    return "".join(
        part if isinstance(part, str) else _value(part, values, part.source) for part in scan(word, values.__contains__)
    )


def _value(name: Name, values: Mapping[str, str], otherwise: str) -> str:
    text = "".join(part if isinstance(part, str) else _value(part, values, part.source) for part in name.parts)
    if text not in values:
        return otherwise
    return shlex.quote(values[text]) if name.is_quoted else values[text]


def scan(text: str, is_known: Callable[[str], bool]) -> Iterator[str | Name]:
    """Yield the texts and placeholders of a text in turn."""
    begin = at = counted = 0
    line = 1
    while (at := text.find("{", at)) >= 0:
        line, counted = line + text.count("\n", counted, at), at
        match = None if at and text[at - 1] in "$\\" else _read_name(text, at, is_known, line)
        if match is None:
            at += 1
            continue
        name, end = match
        if begin < at:
            yield text[begin:at]
        yield name
        begin = at = end
    if begin < len(text):
        yield text[begin:]


def _read_name(
    text: str, at: int, is_known: Callable[[str], bool], line: int, depth: int = 0
) -> tuple[Name, int] | None:
    """Return the placeholder that begins at a brace of a line and where it ends, or None where none begins."""
    simple = _SIMPLE.match(text, at)
    if simple is not None:
        words, end = simple[1], simple.end()
        is_quoted = words.endswith(_QUOTE) and not is_known(words)
        words = words.removesuffix(_QUOTE) if is_quoted else words
        if not is_known(words) and not _PATH.fullmatch(words) and not is_known(words.partition("|")[0]):
            return None
        is_foreign = not is_quoted and _is_foreign(text, at, end, words)
        must = is_known(words) or not (is_foreign or _is_talk(text, at))
        name = Name((words,), simple[0], line, must, is_quoted)
        return None if is_quoted and not must else (name, end)
    parts: list[str | Name] = []
    here = at + 1
    while here < len(text) and text[here] not in "}|":
        piece = _PIECE.match(text, here)
        if piece is not None:
            parts.append(piece[0])
            here = piece.end()
            continue
        inner = _read_name(text, here, is_known, line, depth + 1) if text[here] == "{" and depth < _DEEPEST else None
        if inner is None:
            return None
        parts.append(inner[0])
        here = inner[1]
    close = _CLOSE.match(text, here)
    must = not _is_talk(text, at)
    if close is None or (close[1] and not must) or not any(isinstance(each, str) for each in parts):
        return None  # {{name}} is a name between braces
    whole = tuple(each if isinstance(each, str) else each._replace(must=must) for each in parts)
    return Name(whole, text[at : close.end()], line, must, bool(close[1])), close.end()


def _is_talk(text: str, at: int) -> bool:
    """Tell whether a brace stands in a comment, which says nothing to a machine, or in an f-string of Python."""
    start = text.rfind("\n", 0, at) + 1
    return _COMMENT.match(text, start, at) is not None or _F_STRING.search(text, start, at) is not None


def _is_foreign(text: str, at: int, end: int, name: str) -> bool:
    """Tell whether braces around a word that is not defined belong to another language."""
    if "." in name:
        return False
    before, after = text[max(0, at - 1) : at] or " ", text[end : end + 1] or " "
    return (
        name in _AWK
        or before in "%@"
        or (before == "{" and after == "}")
        or (before.isspace() and after in "<>")  # exec {fd}>file
    )
