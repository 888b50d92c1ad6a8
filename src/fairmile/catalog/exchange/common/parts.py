"""Taking the mappings of a lenient format apart: a value not understood stays in place (`taking` refuses it)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fairmile.base.yaml import dump
from fairmile.catalog.card import Card
from fairmile.catalog.dates import is_date
from fairmile.catalog.exchange.draft import EMPTY, Draft
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX

T = TypeVar("T")
_GONE = object()


def as_text(value: Any) -> str | None:
    """Return a text without the blanks around it, or a number as text; None for blank texts, truths and all else."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return None


def take_each(node: dict[str, Any], key: str, convert: Callable[[Any], T | None]) -> list[T]:
    """Pop every value under the key that `convert` understands, and return what it made of them.

    `convert` returns None for what it does not understand and must then have popped nothing; of a mapping it
    understands it pops what it uses. A mapping that remains keeps its place in the list.
    """
    value = node.get(key)
    items = value if isinstance(value, list) else [value]
    taken: list[T] = []
    rest: list[Any] = []
    for item in items:
        made = None if item is None else convert(item)
        if made is not None:
            taken.append(made)
        rest.append(item if made is None else item if isinstance(item, dict) and item else _GONE)
    if not any(isinstance(item, dict) for item in rest):
        rest = [item for item in rest if item is not _GONE]
    if taken and all(item is _GONE for item in rest):
        del node[key]
    elif taken:
        node[key] = [{} if item is _GONE else item for item in rest] if isinstance(value, list) else rest[0]
    return taken


def take_one(node: dict[str, Any], key: str, convert: Callable[[Any], T | None]) -> T | None:
    """Pop the value under the key when it is one alone and `convert` understands it."""
    value = node.get(key)
    if isinstance(value, list) and len(value) != 1:
        return None
    return next(iter(take_each(node, key, convert)), None)


def take_text(node: dict[str, Any], *keys: str) -> str | None:
    """Pop the one text under the first of the keys that holds one."""
    return next((text for key in keys if (text := take_one(node, key, as_text)) is not None), None)


def take_texts(node: dict[str, Any], key: str) -> list[str]:
    """Pop every text under the key, be it one or a list of them."""
    return take_each(node, key, as_text)


def take_value(node: dict[str, Any], key: str, known: Callable[[str], bool]) -> Any:
    """Pop the texts, and of mappings the keys that are known, in the shape they have; None when there is none."""
    many = isinstance(node.get(key), list)
    kept = take_each(node, key, lambda value: take_known(value, known))
    if not kept:
        return None
    return kept if many else kept[0]


def take_known(value: Any, known: Callable[[str], bool]) -> Any:
    """Return a text as it is, and of a mapping what stands under known keys at any depth, which is popped."""
    if not isinstance(value, dict):
        return value if as_text(value) is not None else None
    made: dict[str, Any] = {}
    for key in [key for key in value if known(key)]:
        inner = value[key]
        if isinstance(inner, dict) or (isinstance(inner, list) and any(isinstance(each, dict) for each in inner)):
            part = take_value(value, key, known)
            if part is not None:
                made[key] = part
        elif not isinstance(inner, list) or not any(isinstance(each, list) for each in inner):
            made[key] = value.pop(key)
    return made or None


def one_or_many(values: list[Any]) -> Any:
    """Return the only value itself, several as a list without repeats, none as None."""
    kept = unique(values)
    return kept[0] if len(kept) == 1 else kept or None


def unique(values: Iterable[T]) -> list[T]:
    """Return the JSON values in their order, each once."""
    kept: dict[str, T] = {}
    for value in values:
        kept.setdefault(json.dumps(value, sort_keys=True), value)
    return list(kept.values())


def plain(value: Any) -> Any:
    """Return a YAML value as JSON holds it: keys are texts, and a number that is not finite is a text."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else yaml_text(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return yaml_text(value)
    return value


def yaml_text(value: Any) -> str:
    """Return a YAML scalar as it is written."""
    return dump(value).strip()


def number_as_written(text: str, key: str, value: str) -> str:
    """Return the spelling a number has in the text of its document: 1.10 is read as the number 1.1."""
    pattern = rf'^[ \t{{,]*"?{re.escape(key)}"?[ \t]*:[ \t]*([0-9]+(?:\.[0-9]+)?)[ \t]*(?:[,}}#]|$)'
    try:
        number = float(value)
    except ValueError:
        return value
    return next((spelling for spelling in re.findall(pattern, text, re.MULTILINE) if float(spelling) == number), value)


def version_as_written(draft: Draft, text: str, version: str) -> str:
    """Return a version that the source gives as a number in the source's own spelling, with a warning."""
    version = number_as_written(text, "version", version)
    draft.warn("version", f"is a number in the source; read as {version!r}")
    return version


def take_date(draft: Draft, node: dict[str, Any], key: str, term: str) -> None:
    """Move the date under the key to the term of the card; what is none stays, with a warning."""
    text = as_text(node.get(key))
    if text is None:
        return
    if is_date(text):
        node.pop(key)
        draft.put(term, text)
    else:
        draft.warn(key, f"{text[:80]!r} is not a date; left out")


def warn_of_empty_licences(draft: Draft, node: Mapping[str, Any], key: str) -> None:
    """Record that the source has a list of licences with nothing in it."""
    if node.get(key) == []:
        draft.warn("license", "the source lists no licence: its list is empty")


def with_rest(made: Any, rest: Any) -> Any:
    """Return what was made with the remainder of its source laid over it; what was made wins."""
    if isinstance(made, dict) and isinstance(rest, Mapping):
        merged = {key: with_rest(value, rest[key]) if key in rest else value for key, value in made.items()}
        return {
            **merged,
            **{key: value for key, value in rest.items() if key not in made and value not in EMPTY},
        }
    if isinstance(made, list) and isinstance(rest, list) and len(made) == len(rest):
        return [with_rest(value, more) for value, more in zip(made, rest, strict=True)]
    return made


def given_version(card: Card) -> str:
    """Return the version the card was given; empty when it only carries one named by a digest."""
    version = card.text("version")
    return "" if version.startswith(DIGEST_VERSION_PREFIX) else version
