"""What the FAIR tests look at: a card read once, and what its catalog knows about it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fairmile.base.digest import parse_checksum
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.catalog.card import Card, File, as_list, format_name, id_of, text_of
from fairmile.catalog.identity import doi_of
from fairmile.catalog.kinds import KINDS, kind_of_types
from fairmile.catalog.principles.addresses import unusable
from fairmile.catalog.short_forms import expand
from fairmile.catalog.terms import Reading, read_terms

# Kinds whose content is files, and kinds whose content is code.
DATA_KINDS = frozenset({"dataset", "model"})
CODE_KINDS = frozenset({"program", "workflow"})
# A strong digest names the content; md5 and sha1 only guard against accidents.
CHECKSUMS = {"sha256": 1.0, "sha512": 1.0, "sha1": 0.5, "md5": 0.5}
# Who made it and when, wherever a kind says so: one list for the citation and for the provenance.
WHO = ("creator", "agent", "contributor", "submitter", "sharedBy", "maintainer")
WHEN = ("datePublished", "dateCreated", "dateModified", "startTime", "endTime")
_PERSISTENT = (
    ("DOI", re.compile(r"^10\.\d{4,9}/\S+$")),
    ("ARK", re.compile(r"^(?:https?://[^/\s]+/)?ark:/?\d{5,9}/\S+$", re.IGNORECASE)),
    ("Handle", re.compile(r"^(?:hdl:|https?://hdl\.handle\.net/)\S+/\S+$", re.IGNORECASE)),
    ("SWHID", re.compile(r"^(?:https?://[^/\s]+/)?swh:1:(?:cnt|dir|rev|rel|snp):[0-9a-f]{40}", re.IGNORECASE)),
    ("w3id", re.compile(r"^https?://(?:www\.)?w3id\.org/(?!fairmile(?:[/?#]|$))\S+$", re.IGNORECASE)),
    ("PURL", re.compile(r"^https?://purl\.(?:org|obolibrary\.org)/\S+$", re.IGNORECASE)),
)
# No rule of w3id.org answers for this name yet, so nobody keeps what lies below it.
_UNREGISTERED = lazy_pattern(r"^https?://(?:www\.)?w3id\.org/fairmile(?:[/?#]|$)", re.IGNORECASE)
_CLOSED_LEVELS = frozenset({"registered", "restricted", "embargoed", "closed"})
_LEVEL_NAMES = {
    "open": "public",
    "openaccess": "public",
    "c_abf2": "public",
    "c_16ec": "restricted",
    "c_f1cf": "embargoed",
    "c_14cb": "closed",
    "non_public": "closed",
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4")
_SHOWN = 80
_ASKED = 50
_WORDS = 5
# Advice nests a few levels only; what lies deeper is the user's own.
_DEEPEST = 12


@dataclass(frozen=True)
class Surroundings:
    """What the catalogs know about an asset beyond its card."""

    resolves: Callable[[str], bool]
    versions: int = 1
    indexed_in: tuple[str, ...] = ()
    tombstones: bool = True
    runs: int = 0
    file: str = ""  # of a card that is in no catalog


class Part(NamedTuple):
    """One thing a test looks at; its points are None where the card declares nothing to judge."""

    id: str
    points: float | None
    evidence: str


class Verdict(NamedTuple):
    """What a test found; its points are None where the test does not apply."""

    points: float | None
    evidence: str
    fix: str = ""
    parts: tuple[Part, ...] = ()


class Access(NamedTuple):
    """Who may have the content: a level as stated, whether it bars the public, and the conditions."""

    level: str
    stated: str
    restricted: bool
    conditions: str


@cache
def rules() -> Mapping[str, Any]:
    """Return the tables of the assessment: tests, indicators, formats, vocabularies."""
    table: Mapping[str, Any] = json.loads(
        (Path(__file__).parent.parent / "data" / "fair.json").read_text(encoding="utf-8")
    )
    return table


@cache
def _formats(group: str) -> frozenset[str]:
    return frozenset(rules()["formats"][group])


def shown(value: object) -> str:
    """Return the value as it is quoted in evidence: one line, bounded."""
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def persistent_scheme(text: str) -> str | None:
    """Return the registry that keeps the id, such as DOI, or None when none does."""
    text = text.strip()
    if doi_of(text):
        return "DOI"
    return next((name for name, pattern in _PERSISTENT if pattern.match(text)), None)


def is_unregistered(text: str) -> bool:
    """Tell whether the id looks persistent but lies below a name that no registry knows yet."""
    return bool(_UNREGISTERED.match(text.strip()))


def format_class(name: str) -> str:
    """Return open, pickle, container or unknown for the short name of a format."""
    if name in _formats("pickle") or "pickle" in name:
        return "pickle"
    if name in _formats("open") or name.endswith(("+json", "+xml")):
        return "open"
    return "container" if name in _formats("container") else "unknown"


def is_format(name: str, group: str) -> bool:
    """Tell whether the format is in the group `community` or `described`."""
    return name in _formats(group)


def digest_strength(entry: Mapping[str, Any]) -> float:
    """Return what the best digest of a file is worth: 1 for a strong one, 0 for none."""
    return max((worth for name, worth in CHECKSUMS.items() if _is_checksum(entry.get(name), name)), default=0.0)


def _is_checksum(value: object, algorithm: str) -> bool:
    return isinstance(value, str) and parse_checksum(value, algorithm) is not None


def file_addresses(entry: Mapping[str, Any]) -> list[str]:
    """Return every address of a file, its mirrors included."""
    values = as_list(entry.get("contentUrl")) + as_list(entry.get("mirror"))
    return [text.strip() for value in values if (text := text_of(value))]


def usable(addresses: Iterable[str]) -> str:
    """Return the first of the addresses that others can use, or an empty text."""
    return next((address for address in addresses if not unusable(address)), "")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return the number with its noun, in the singular or the plural."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def not_for(facts: Facts, why: str = "") -> Verdict:
    """Return the verdict of a test that makes no sense for the asset."""
    return Verdict(None, why or f"does not apply to a {facts.noun}")


class Facts:
    """A card as the tests see it; every part is read once, when first asked for."""

    def __init__(self, card: Card, surroundings: Surroundings) -> None:
        self._given = card
        self.unfilled: dict[str, str] = {}
        body = {}
        for key, value in card.body.items():
            left, word = _filled(key, value)
            if word:
                self.unfilled[key] = word
            if left is not _GONE:
                body[key] = left
        # What still holds a word of our advice says nothing yet: the tests see the card without it.
        self.card = Card(body, catalog=card.catalog) if self.unfilled else card
        self.surroundings = surroundings
        self.kind = kind_of_types(card.types) or ""
        self._answers: dict[str, bool] = {}

    @cached_property
    def name(self) -> str:
        """What the asset is called in a command."""
        card = self._given
        return str(card.handle) if self.kind else shown(card.iri or card.title) or "CARD"

    @property
    def noun(self) -> str:
        return self.kind or "asset of unknown kind"

    def has(self, key: str) -> bool:
        """Tell whether the card says anything under the key."""
        return any(value not in (None, "", [], {}) for value in as_list(self.card.body.get(key)))

    def any_of(self, keys: Iterable[str]) -> str:
        """Return the first of the keys that the card fills in, or an empty text."""
        return next((key for key in keys if self.has(key)), "")

    def quote(self, key: str) -> str:
        """Return what the card says under the key, as evidence."""
        values = as_list(self.card.body.get(key))
        if not values:
            return ""
        first = text_of(values[0])
        if first is None:
            first = (
                f"with {', '.join(map(str, values[0]))}" if isinstance(values[0], Mapping) else type(values[0]).__name__
            )
        return shown(first) + (f" and {len(values) - 1} more" if len(values) > 1 else "")

    def update(self, *changes: str) -> str:
        """Return the command that makes the changes: `set KEY=VALUE`, `add KEY=VALUE`, `unset KEY`, `file PATH` …"""
        words = [f"--{verb} {shlex.quote(what)}" for verb, _, what in (change.partition(" ") for change in changes)]
        return " ".join(["fairmile catalog update", shlex.quote(self.name), *words]) if words else ""

    def add_card(self) -> str:
        """Return the command that adds the card to a catalog."""
        return f"fairmile catalog add {shlex.quote(self.surroundings.file or 'CARD.json')}"

    def put(self, *keys: str) -> str:
        """Return the command that sets the keys."""
        return self.update(*(change for key in keys for change in self.changes_for(key)))

    def changes_for(self, key: str) -> list[str]:
        """Return the changes that fill in a property; words in capitals stand for what only its owner knows."""
        if key == "distribution":
            return self.mend_files()
        return [f"set {key}={rules()['placeholders'].get(key, 'VALUE')}"]

    def fill(self, *keys: str) -> str:
        """Return the command that sets those of the keys that are missing."""
        return self.put(*self.missing(keys))

    def define(self, words: Iterable[str]) -> str:
        """Return the command that gives the unknown words of the card a meaning, or drops what can have none."""
        changes = []
        for word in list(words)[:_WORDS]:
            # A word with @ in front belongs to JSON-LD itself: no context can define it.
            plain = not word.startswith("@") and not re.search(r"[=,\s]", word)
            changes.append(f"add @context={word}=https://w3id.org/YOUR-VOCABULARY#{word}" if plain else f"unset {word}")
        return self.update(*changes)

    def name_agent(self) -> str:
        """Return the command that names the first person or organisation of the card by a registered id."""
        key = self.any_of(WHO) or ("agent" if self.kind == "run" else "creator")
        first = next(iter(as_list(self.card.body.get(key))), None)
        name = text_of(first)
        if not name:
            return self.put(key)
        types = [str(each) for each in as_list(first.get("@type"))] if isinstance(first, Mapping) else []
        # A name alone does not say whose it is.
        wanted = "ORCID" if "Person" in types else "ROR" if "Organization" in types else "ORCID-OR-ROR"
        return self.update(f"add {key}={' '.join(name.split())} ({wanted})")

    def mend_files(self) -> list[str]:
        """Return the changes that give the files what they lack: digest, size and media type, and an address."""
        entries = [entry for entry, _ in self.files]
        unmeasured = any(
            file.size_bytes is None or not as_list(entry.get("encodingFormat")) or digest_strength(entry) < 1
            for entry, file in self.files
        )
        changes = ["file FILE-OR-FOLDER"] if unmeasured or self.bad_checksums or not entries else []
        if not self.granted and not all(usable(file_addresses(entry)) for entry in entries or [{}]):
            changes.append("address https://ADDRESS")
        return changes

    def resolves(self, target: str) -> bool:
        """Tell whether a catalog knows the target; each is asked for once."""
        if target not in self._answers:
            self._answers[target] = len(target) <= 300 and bool(self.surroundings.resolves(target))
        return self._answers[target]

    @cached_property
    def terms(self) -> Reading:
        return read_terms(self.card.body, tuple(rules()["registered"]["authorities"]))

    @cached_property
    def access(self) -> Access:
        conditions = shown(self.card.text("conditionsOfAccess"))
        rights = self.card.text("accessRights")
        if rights:
            word = rights.rstrip("/").rsplit("/", 1)[-1].rsplit("#", 1)[-1].lower()
            level = _LEVEL_NAMES.get(word, word)
            return Access(level, f"accessRights {shown(rights)!r}", level in _CLOSED_LEVELS, conditions)
        free = self.card.body.get("isAccessibleForFree")
        if isinstance(free, bool):
            return Access(
                "public" if free else "registered", f"isAccessibleForFree {str(free).lower()}", not free, conditions
            )
        return Access("", "", False, conditions)

    @property
    def granted(self) -> bool:
        """Whether the asset is restricted and says how one is let in: then no public address is asked for."""
        return self.access.restricted and bool(self.access.conditions)

    @cached_property
    def files(self) -> list[tuple[Mapping[str, Any], File]]:
        """The files that are fetched as such, not those that lie inside another one."""
        return [pair for pair in self.all_files if not pair[0].get("containedIn")] or self.all_files

    @cached_property
    def all_files(self) -> list[tuple[Mapping[str, Any], File]]:
        """Every file of the distribution, as written and as read."""
        entries = [entry for entry in as_list(self.card.body.get("distribution")) if isinstance(entry, Mapping)]
        return list(zip(entries, self.card.files, strict=True))

    @cached_property
    def addresses(self) -> list[str]:
        """The addresses the card gives for its content: the best of each file, then those of the whole."""
        given = [file_addresses(entry) for entry, _ in self.files]
        addresses = [usable(each) or each[0] for each in given if each]
        for key in ("contentUrl", "downloadUrl", "installUrl", "codeRepository", "url"):
            addresses += self.card.texts(key)
        return list(dict.fromkeys(addresses))

    @cached_property
    def bad_checksums(self) -> list[tuple[str, str, str]]:
        """Every (file, algorithm, value) that is given as a checksum and is none."""
        bad: list[tuple[str, str, str]] = []
        good = {file.name for entry, file in self.all_files if digest_strength(entry) == 1}
        for entry, file in self.all_files:
            for algorithm in CHECKSUMS:
                for value in as_list(entry.get(algorithm)):
                    if not _is_checksum(value, algorithm):
                        bad.append((file.name, algorithm, shown(text_of(value) or value)))
        # Importers move what is no checksum out of the file; it counts until the file has a right one.
        foreign = self.card.body.get("foreign")
        for document in foreign.values() if isinstance(foreign, Mapping) else ():
            sums = document.get("checksums") if isinstance(document, Mapping) else None
            for name, values in sums.items() if isinstance(sums, Mapping) else ():
                for algorithm, value in values.items() if isinstance(values, Mapping) else ():
                    if str(name) not in good:
                        bad.append((str(name), str(algorithm), shown(value)))
        return bad

    @cached_property
    def formats(self) -> list[str]:
        """Short names of the formats of the content; the file name counts where no media type is given.

        What a model's files are outweighs what `modelFormat` says they are.
        """
        names = [] if self.all_files else [format_name(text) for text in self.card.texts("modelFormat")]
        for entry, file in self.all_files:
            declared = [text for value in as_list(entry.get("encodingFormat")) if (text := text_of(value))]
            names += [format_name(text) for text in declared] or [_suffix(file.name)]
        return [name for name in dict.fromkeys(names) if name]

    @cached_property
    def fields(self) -> list[Mapping[str, Any]]:
        """The fields of the record sets and the measured variables that are described as objects."""
        fields = []
        for records in as_list(self.card.body.get("recordSet")):
            if isinstance(records, Mapping):
                fields += [field for field in as_list(records.get("field")) if isinstance(field, Mapping)]
        return fields

    @cached_property
    def links(self) -> list[tuple[str, str]]:
        """The first links to other assets, papers included, as (relation, target)."""
        pairs = list(self.card.links)
        for key in ("citation", "referencePublication"):
            pairs += [(key, target) for value in as_list(self.card.body.get(key)) if (target := _paper(value))]
        return [pair for pair in dict.fromkeys(pairs) if pair[1] != self.card.iri][:_ASKED]

    def reached(self, target: str) -> str:
        """Return how the target of a link is reached, or an empty text when nothing known leads there."""
        if self.resolves(target):
            return "in a catalog"
        scheme = persistent_scheme(target)
        if scheme:
            return f"by its {scheme}, not probed"
        return "as a package" if target.startswith("pkg:") and "@" in target else ""

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return those of the keys that the card does not fill in."""
        return [key for key in keys if not self.has(key)]

    @cached_property
    def rich(self) -> tuple[str, ...]:
        return KINDS[self.kind].rich if self.kind else ()


class _Gone:
    """Stands for a value of which nothing is left."""


_GONE = _Gone()


@cache
def _fixed() -> frozenset[tuple[str, str]]:
    """Return what the advice writes beside its placeholders, such as a direction: by itself it says nothing."""
    pairs: set[tuple[str, str]] = set()

    def collect(key: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for inner, each in value.items():
                collect(inner, each)
        elif isinstance(value, list):
            for each in value:
                collect(key, each)
        else:
            pairs.add((key, str(value)))

    for key, text in rules()["placeholders"].items():
        value = expand(key, text)
        if value != text:
            collect("", value)
    return frozenset(pairs)


@cache
def _open_words(key: str) -> frozenset[str]:
    """Return the words that the advice leaves open in the property: elsewhere they may be the user's own."""
    table = rules()["unfilled"]
    template = rules()["placeholders"].get(key, "VALUE")
    leaves = re.findall(r'"([^"]*)"', json.dumps(expand(key, template), ensure_ascii=False))
    return frozenset({template, *table["also"].get(key, ()), *(set(leaves) & set(table["words"]))})


def _placeholder(key: str, text: str) -> str:
    """Return the word of our advice that a text below the property still is or holds, or an empty text."""
    if text in _open_words(key):
        return text
    return next((word for word in rules()["unfilled"]["within"] if word in text), "")


def _filled(key: str, value: Any, depth: int = 0) -> tuple[Any, str]:
    """Return a value of the property without what is still a placeholder, and the first such word.

    The value is _GONE when nothing is left of it.
    """
    if isinstance(value, str):
        word = _placeholder(key, value)
        return (_GONE, word) if word else (value, "")
    if depth >= _DEEPEST or not isinstance(value, (Mapping, list)):
        return value, ""
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    seen = [(inner, *_filled(key, each, depth + 1)) for inner, each in pairs]
    word = next((placeholder for _, _, placeholder in seen if placeholder), "")
    if not word:
        return value, ""
    if isinstance(value, list):
        rest = [left for _, left, _ in seen if left is not _GONE]
        return (rest if rest else _GONE), word
    kept = {inner: left for inner, left, _ in seen if left is not _GONE}
    nameless = "name" in value and "name" not in kept
    empty = all((str(inner), str(each)) in _fixed() for inner, leaf in kept.items() for each in as_list(leaf))
    return (_GONE if nameless or empty else kept), word


def _suffix(name: str) -> str:
    lowered = name.lower()
    for ending in _COMPRESSED:
        if lowered.endswith(ending) and "." in lowered.removesuffix(ending):
            lowered = lowered.removesuffix(ending)
    stem, dot, suffix = lowered.rpartition(".")
    return format_name(suffix) if dot and stem and suffix.isalnum() and len(suffix) <= 12 else ""


def _paper(value: Any) -> str | None:
    if isinstance(value, Mapping):
        texts = [text_of(value.get(key)) for key in ("@id", "identifier", "sameAs", "url")]
        return next((text for text in texts if text), None) or id_of(value)
    return id_of(value)
