"""YAML 1.2 as plain data with line numbers; errors name file and line in plain words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fairmile.base import strict_json
from fairmile.base.errors import InvalidDocument, Problem, SystemFailure
from fairmile.base.files import Lock, write_atomic
from fairmile.base.lazy import lazy_pattern
from fairmile.base.line_numbers import Position
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.yaml_text import dump

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MOST_BYTES", "Located", "dump", "load", "load_located", "update_file"]

MOST_BYTES = 16_000_000
# Nodes that all aliases together may repeat; a "billion laughs" needs far more. A long text counts as several.
_MOST_COPIED = 100_000
_TEXT_PER_NODE = 100
_DEEPEST = 100

_INT = lazy_pattern(r"[-+]?[0-9]+")
_BASED = lazy_pattern(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = lazy_pattern(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = lazy_pattern(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS = {"": None, "~": None} | {
    form: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for form in (word, word.capitalize(), word.upper())
}
_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "null": (type(None),),
}
_PLAIN_WORDS = (
    ("found character '\\t'", "a tab is used to indent; use spaces"),
    ("mapping values are not allowed here", "unexpected ':'; check the indent, or quote the text"),
    ("found unexpected end of stream", "a quoted text is not closed"),
    ("could not find expected ':'", "a key lacks its ':'"),
    ("expected <block end>", "the indent does not match the lines above"),
    ("found duplicate anchor", "an anchor is defined twice"),
)


class RepeatedKey(InvalidDocument):
    """A key appears twice in one mapping."""


class Located:
    """Plain data together with the lines that its parts stand on."""

    def __init__(self, data: Any, places: Callable[[], Position], repeated: Sequence[Problem] = ()) -> None:
        self.data = data
        self.repeated = repeated  # keys that appear twice in one mapping, where the last one may count
        self._find_places = places
        self._places: Position | None = None

    def line(self, path: Sequence[str | int]) -> int | None:
        """Return the line of a key or item, or of the nearest part that holds it; None for an empty document."""
        if self._places is None:
            self._places = self._find_places()
        return self._places.find(path) if self.data is not None else None


def load(text: str, *, file: str = "") -> Any:
    """Return the data of a YAML 1.2 or JSON text: only dict, list, str, int, float, bool and None.

    Times, dates and words such as `no` and `on` stay text. A repeated key, a custom tag, several documents,
    aliases that repeat without bound and more than 16 MB raise InvalidDocument.
    """
    return load_located(text, file=file).data


def load_located(text: str, *, file: str = "", repeats: bool = False) -> Located:
    """Return the data of a YAML 1.2 or JSON text and remember the line of every part.

    With `repeats`, the last of repeated keys counts, as in files of tools that do not mind; `repeated` lists them.
    """
    if len(text) > MOST_BYTES or (len(text) * 4 > MOST_BYTES and len(text.encode(errors="replace")) > MOST_BYTES):
        raise InvalidDocument([Problem(f"the document is larger than {MOST_BYTES // 1_000_000} MB", file=file)])
    if text.removeprefix("\ufeff").lstrip()[:1] in ("{", "["):
        # The YAML reader splits JSON's surrogate escapes and is slower by far, so JSON is read as JSON.
        try:
            value = strict_json.load_json(text, file=file)
            return Located(value, lambda: strict_json.scan(text))
        except InvalidDocument:
            if not repeats and not _may_be_yaml(text):
                raise
    builder = _Builder(file, repeats=repeats)
    builder.read(text)
    return Located(builder.data, lambda: builder.places, builder.repeated)


def _may_be_yaml(text: str) -> bool:
    import json

    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False  # well-formed JSON that was refused for a reason that holds in YAML too


def update_file(path: str | Path, change: Callable[[Any], None]) -> None:
    """Let `change` edit the data of a YAML file in place, keeping comments and order, and write it atomically.

    A missing or empty file starts as an empty mapping. A symbolic link is followed. Several processes take turns.
    """
    import io

    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap

    real = os.path.realpath(path)
    with Lock(f"{real}.lock"):
        try:
            with open(real, encoding="utf-8") as stream:
                old = stream.read()
        except FileNotFoundError:
            old = ""
        except (OSError, UnicodeDecodeError) as error:
            raise SystemFailure(f"cannot read {path}: {error}") from error
        empty = load(old, file=str(path)) is None
        editor = YAML(typ="rt")
        editor.preserve_quotes = True
        editor.width = 1 << 20
        editor.indent(**_indents(old))
        data = CommentedMap() if empty else editor.load(old)
        change(data)
        out = io.StringIO()
        editor.dump(data, out)
        new = (old.rstrip("\n") + "\n" if empty and old.strip() else "") + out.getvalue()
        load(new, file=str(path))
        write_atomic(real, new)


def _indents(text: str) -> dict[str, int]:
    """Return the indents that a file uses, as the round-trip writer wants them."""
    mapping = re.search(r"^[^\s#-][^\n]*:[ ]*\n( +)[^\s#-]", text, re.MULTILINE)
    sequence = re.search(r"^( *)[^\s#-][^\n]*:[ ]*\n( *)-( +)\S", text, re.MULTILINE)
    offset = max(0, len(sequence[2]) - len(sequence[1])) if sequence else 2
    return {
        "mapping": len(mapping[1]) if mapping else 2,
        "sequence": offset + 1 + (len(sequence[3]) if sequence else 1),
        "offset": offset,
    }


class _Open:
    """A mapping or list whose end is not read yet."""

    def __init__(self, value: dict[Any, Any] | list[Any], place: Position, anchor: str | None) -> None:
        self.value = value
        self.place = place
        self.anchor = anchor
        self.size = 1
        self.depth = 1
        self.key: Any = None
        self.key_line = 0
        self.has_key = False
        self.merges = False  # whether the key is '<<'
        self.merged: list[dict[Any, Any]] = []


class _Anchored(NamedTuple):
    value: Any
    place: Position
    size: int
    depth: int


class _Builder:
    """Turn the event stream of the YAML reader into plain data, which leaves no room for tags that run code."""

    def __init__(self, file: str, *, repeats: bool = False) -> None:
        self.file = file
        self.repeated: list[Problem] = []
        self._repeats = repeats
        self.data: Any = None
        self.places = Position(1)
        self._stack: list[_Open] = []
        self._anchors: dict[str, _Anchored] = {}
        self._copied = 0
        self._documents = 0

    def read(self, text: str) -> None:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        try:
            for event in YAML(typ="safe", pure=True).parse(text):
                self._event(event, event.start_mark.line + 1)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._fail(_plain_words(error.problem or error.context or "cannot be read"), mark.line + 1 if mark else 1)
        except YAMLError as error:
            place = getattr(error, "position", None)
            line = text.count("\n", 0, place) + 1 if isinstance(place, int) else 1
            self._fail(f"a character that YAML does not allow ({str(error).splitlines()[0]})", line)

    def _event(self, event: Any, line: int) -> None:
        kind = type(event).__name__
        if kind == "ScalarEvent":
            size = 1 + len(event.value) // _TEXT_PER_NODE
            self._add(self._scalar(event, line), Position(line), line, event.anchor, size=size, plain=event.implicit[0])
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._start(event, {} if kind == "MappingStartEvent" else [], line)
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._end(line)
        elif kind == "AliasEvent":
            self._alias(event.anchor, line)
        elif kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                self._fail("a second document starts here ('---'), expected one document only", line)

    def _start(self, event: Any, value: dict[Any, Any] | list[Any], line: int) -> None:
        wanted = _TAG + ("map" if isinstance(value, dict) else "seq")
        if event.tag not in (None, "!", wanted):
            self._fail(f"the tag {str(event.tag).removeprefix(_TAG)!r} is not allowed", line)
        if self._stack and isinstance(self._stack[-1].value, dict) and not self._stack[-1].has_key:
            self._fail("a key must be a single word or text", line)
        if len(self._stack) >= _DEEPEST:
            self._fail(f"the document is nested more than {_DEEPEST} deep", line)
        self._stack.append(_Open(value, Position(line), event.anchor))

    def _end(self, line: int) -> None:
        done = self._stack.pop()
        if isinstance(done.value, dict):
            for source in done.merged:
                for key, value in source.items():
                    done.value.setdefault(key, value)
        self._add(done.value, done.place, done.place.line, done.anchor, size=done.size, depth=done.depth)

    def _alias(self, name: str, line: int) -> None:
        import copy

        if any(part.anchor == name for part in self._stack):
            self._fail(f"the alias *{name} contains itself", line)
        known = self._anchors.get(name)
        if known is None:
            self._fail(f"the alias *{name} has no anchor &{name} above it", line)
        self._copied += known.size
        if self._copied > _MOST_COPIED:
            self._fail("aliases repeat too much data", line)
        if len(self._stack) + known.depth > _DEEPEST:
            self._fail(f"the document is nested more than {_DEEPEST} deep", line)
        self._add(copy.deepcopy(known.value), known.place, line, None, size=known.size, depth=known.depth)

    def _add(
        self,
        value: Any,
        place: Position,
        line: int,
        anchor: str | None,
        *,
        size: int = 1,
        depth: int = 0,
        plain: bool = False,
    ) -> None:
        if anchor is not None:
            self._anchors[anchor] = _Anchored(value, place, size, depth)
        if not self._stack:
            self.data, self.places = value, place
            return
        top = self._stack[-1]
        if isinstance(top.value, list):
            top.place.inside[len(top.value)] = Position(line, place.inside)
            top.value.append(value)
        elif not top.has_key:
            self._set_key(top, value, line, plain)
            return
        elif top.merges:
            self._merge(top, value, line)
        else:
            top.value[top.key] = value
            top.place.inside[top.key] = Position(top.key_line, place.inside)
        top.has_key = False
        top.size += size
        top.depth = max(top.depth, depth + 1)

    def _set_key(self, top: _Open, key: Any, line: int, plain: bool) -> None:
        if isinstance(key, (dict, list)) or key is None:
            self._fail("a key must be a single word or text", line)
        top.merges = plain and key == "<<"
        if key in top.value or (top.merges and top.merged):
            message = f"the key {key!r} appears twice in one mapping"
            if not self._repeats or top.merges:
                raise RepeatedKey([Problem(message, file=self.file, line=line)])
            self.repeated.append(Problem(f"{message}; the last one counts", file=self.file, line=line))
        top.key, top.key_line, top.has_key = key, line, True

    def _merge(self, top: _Open, value: Any, line: int) -> None:
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            self._fail("'<<' takes a mapping or a list of mappings", line)
        top.merged.extend(sources)

    def _scalar(self, event: Any, line: int) -> Any:
        text = str(event.value)
        tag = event.tag
        if tag is None and event.implicit[0]:
            return self._resolve(text, line)
        if any("\ud800" <= character <= "\udfff" for character in text):
            try:
                text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            except UnicodeDecodeError:
                self._fail("a text has an unpaired surrogate, which is not a character", line)
        if tag in (None, "!", _TAG + "str"):
            return text
        name = str(tag).removeprefix(_TAG)
        if name not in _SCALAR_TAGS or not str(tag).startswith(_TAG):
            self._fail(f"the tag {name!r} is not allowed", line)
        value = self._resolve(text, line)
        if type(value) not in _SCALAR_TAGS[name]:
            self._fail(f"{text!r} is not {'an' if name[0] in 'aeiou' else 'a'} {name}", line)
        return float(value) if name == "float" else value

    def _resolve(self, text: str, line: int) -> Any:
        """Return what a plain scalar means in the core schema of YAML 1.2."""
        if text in _WORDS:
            return _WORDS[text]
        if text[0] not in "+-.0123456789":
            return text
        if len(text) > 1000 and _FLOAT.fullmatch(text):
            self._fail(f"the number {text[:40]}… has more than 1000 digits", line)
        if _INT.fullmatch(text):
            return int(text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        if _SPECIAL_FLOAT.fullmatch(text):
            return float(text.lower().replace(".", ""))
        return text

    def _fail(self, message: str, line: int) -> NoReturn:
        raise InvalidDocument([Problem(message, file=self.file, line=line)])


def _plain_words(problem: str) -> str:
    return next((words for start, words in _PLAIN_WORDS if problem.startswith(start)), problem)
