"""Taking the mappings of a strict format apart: a value of the wrong type is refused (`parts` keeps it)."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import as_list
from fairmile.catalog.dates import DATE_TERMS, is_date
from fairmile.catalog.exchange.draft import Document, Draft
from fairmile.catalog.identity import is_iri

_NAMES = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


def kind_of(value: object) -> str:
    """Return what a value of JSON or YAML is, in words."""
    return "nothing" if value is None else _NAMES.get(type(value), type(value).__name__)


def scalar_text(value: Any) -> str | None:
    """Return any scalar as text just as it stands, true and false included; None for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int, float)) else None


def unused(name: str, taken: Container[str]) -> str:
    """Return the name, with as many primes as tell it from those that are taken."""
    while name in taken:
        name += "'"
    return name


def keep_rest(draft: Draft, rest: dict[str, Any]) -> None:
    """Keep every key that nobody took; one whose name is taken already gets a prime."""
    for key, value in rest.items():
        draft.foreign[unused(key, draft.foreign)] = value


_WORDS = ("name", "description", "version", "keywords", "license", "machineLearningFramework", "mlTask", "citation")


def settle_typed(draft: Draft) -> Draft:
    """Set aside the dates and addresses that are none of a draft whose values have the right type; return the draft."""
    for key in DATE_TERMS:
        if key in draft.body and not (isinstance(draft.body[key], str) and is_date(draft.body[key])):
            _set_aside(draft, key, [draft.body.pop(key)], "is not a date")
    for key in _WORDS:
        values = as_list(draft.body.get(key))
        blank = [each for each in values if isinstance(each, str) and not each.strip()]
        if blank:
            draft.body.pop(key)
            left = [each for each in values if each not in blank]
            draft.put(key, left[0] if len(left) == 1 else left)
    addresses = as_list(draft.body.get("url"))
    wrong = [each for each in addresses if not is_iri(each)]
    if wrong:
        draft.body.pop("url")
        left = [each for each in addresses if is_iri(each)]
        draft.put("url", left[0] if len(left) == 1 else left)
        _set_aside(draft, "url", wrong, "is not an absolute address")
    return draft


def _set_aside(draft: Draft, key: str, values: list[Any], reason: str) -> None:
    for value in values:
        draft.warn(key, f"{str(value)[:200]!r} {reason}; kept as given")
    keep_rest(draft, {key: values[0] if len(values) == 1 else values})


class Fields:
    """A mapping of a document that is read by taking keys out of it.

    Each method takes the key out and returns its value, or refuses the document with the path of the key when
    the value is of the wrong kind. A key that is absent, null or an empty list gives nothing: several services
    write a missing value as one. `rest` returns what nobody took.
    """

    def __init__(self, document: Document, data: Any, path: str = "") -> None:
        self.document = document
        self.path = path
        if not isinstance(data, dict):
            raise document.refuse(f"expected a mapping, found {kind_of(data)}", field=path)
        self.data: dict[Any, Any] = dict(data)
        self._taken: dict[str, Fields | list[Fields]] = {}

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def where(self, key: str) -> str:
        """Return the path of the key in the document."""
        return f"{self.path}.{key}" if self.path else key

    def refuse(self, key: str, message: str, *, hint: str = "") -> InvalidDocument:
        """Return the error that names this key."""
        return self.document.refuse(message, field=self.where(key), hint=hint)

    def take(self, key: str) -> Any:
        """Return the value, whatever it is."""
        return self.data.pop(key, None)

    def text(self, key: str) -> str | None:
        """Return the value as text; a number is taken as it is written."""
        value = self.data.get(key)
        if value in (None, "", []):
            self.data.pop(key, None)
            return None
        text = scalar_text(value)
        if text is None or isinstance(value, bool):
            raise self.refuse(key, f"expected a text, found {kind_of(value)}")
        del self.data[key]
        return text

    def required(self, key: str, *, hint: str = "") -> str:
        """Return the value as text, or refuse the document where there is none."""
        text = self.text(key)
        if text is None:
            raise self.refuse(key, "is missing", hint=hint)
        return text

    def texts(self, key: str) -> list[str]:
        """Return one text or a list of them as a list."""
        value = self.take(key)
        values = value if isinstance(value, list) else [value]
        texts: list[str] = []
        for number, each in enumerate(values):
            if each is None or each == "":
                continue
            text = scalar_text(each)
            if text is None or isinstance(each, bool):
                place = f"{key}[{number}]" if isinstance(value, list) else key
                raise self.refuse(place, f"expected a text, found {kind_of(each)}")
            texts.append(text)
        return texts

    def mapping(self, key: str) -> Fields | None:
        """Return the mapping under the key, to be taken apart in turn."""
        value = self.data.get(key)
        if value in (None, []):
            self.data.pop(key, None)
            return None
        inner = Fields(self.document, value, self.where(key))
        del self.data[key]
        self._taken[key] = inner
        return inner

    def mappings(self, key: str) -> list[Fields]:
        """Return one mapping or a list of them, each to be taken apart in turn."""
        value = self.data.get(key)
        if value in (None, "", []):
            self.data.pop(key, None)
            return []
        if isinstance(value, list):
            many = [Fields(self.document, each, f"{self.where(key)}[{number}]") for number, each in enumerate(value)]
        else:
            many = [Fields(self.document, value, self.where(key))]
        del self.data[key]
        self._taken[key] = many
        return many

    def rest(self) -> dict[str, Any]:
        """Return every key that was not taken, verbatim and in its place; lists keep their positions."""
        remains = dict(self.data)
        for key, inner in self._taken.items():
            left: Any
            if isinstance(inner, Fields):
                left = inner.rest()
            else:
                left = [each.rest() for each in inner]
                left = left if any(left) else []
            if left:
                remains[key] = left
        return remains
