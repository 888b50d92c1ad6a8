"""A card drafted from what is there, and what only the owner of an asset can add to it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from urllib.parse import quote

from fairmile.base.commands import Runner
from fairmile.base.errors import UsageError
from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result
from fairmile.base.units import format_size
from fairmile.catalog.card import Card, as_list
from fairmile.catalog.describing.documents import Statements, kind_by_content, read_documents, types_of
from fairmile.catalog.describing.survey import Progress, Survey, survey
from fairmile.catalog.exchange.draft import DESCRIPTIONS
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX
from fairmile.catalog.kinds import CONTEXT_IRI, PROFILE_IRI
from fairmile.catalog.principles.addresses import unusable
from fairmile.catalog.principles.facts import file_addresses, rules, usable
from fairmile.catalog.query import kind_named

# What nothing on disk can say, in the order in which it matters; each with the question to the owner.
_QUESTIONS = {
    "license": "Which licence does the holder of the rights grant?",
    "creator": "Who made it?",
    "description": "What is it, and what is it for?",
    "version": "Which version is it?",
    "accessRights": "Who may have it: public, registered, restricted, embargoed or closed?",
    "distribution": "Where can others fetch the files?",
    "keywords": "Which words should find it?",
    "scienceDomain": "Which domain of science is it for?",
    "datePublished": "When was it published?",
}
_FROM_FILES = "files"
_OLD_PICKLE = re.compile(rb"\(*(c[\w.]+\n\w+\n|[dl]p\d+\n)")  # protocol 0 is text


# What a model file states of itself. Its readers lie above the catalog, which runs without them.
MODEL_FILES: Registry[Callable[[Path], dict[str, Any] | None]] = Registry(
    "reader of model files", {"models": Plugin("fairmile.models.formats.properties:read_properties")}
)


class QuestionDict(TypedDict):
    property: str
    question: str
    command: str


class DescriptionDict(TypedDict):
    source: str
    handle: str
    card: dict[str, Any]
    origins: dict[str, str]
    questions: list[QuestionDict]
    notes: list[str]
    files: int
    size_bytes: int
    written: NotRequired[str]
    added: NotRequired[str]


@dataclass(frozen=True)
class Question:
    """A property that only the owner can state, and the command that sets it."""

    property: str
    question: str
    command: str


@dataclass(frozen=True, repr=False)
class Description(Result):
    """A drafted card; `origins` says where each property comes from, `questions` what the owner must add."""

    source: str
    card: Card
    origins: Mapping[str, str]
    questions: tuple[Question, ...]
    notes: tuple[str, ...]
    files: int
    size_bytes: int
    written: str = ""  # the file that holds the card
    added: str = ""  # its handle in the catalog

    def to_dict(self) -> DescriptionDict:
        data: DescriptionDict = {
            "source": self.source,
            "handle": str(self.card.handle),
            "card": self.card.body,
            "origins": dict(self.origins),
            "questions": [
                {"property": each.property, "question": each.question, "command": each.command}
                for each in self.questions
            ],
            "notes": list(self.notes),
            "files": self.files,
            "size_bytes": self.size_bytes,
        }
        if self.written:
            data["written"] = self.written
        if self.added:
            data["added"] = self.added
        return data

    def summary(self) -> str:
        asked = f", {len(self.questions)} questions to its owner" if self.questions else ""
        return f"{self.card.handle}, {self.files:,} files, {format_size(self.size_bytes)}{asked}"

    def _repr_html_(self) -> str:
        questions = rows_table(["property", "question"], [(each.property, each.question) for each in self.questions])
        return self.card._repr_html_() + (questions if self.questions else "")


def describe(
    path: Path,
    runner: Runner,
    *,
    source: str = "",
    kind: str | None = None,
    address: str = "",
    on_progress: Progress | None = None,
) -> Description:
    """Return the card of a file or a folder, drafted from its files and the documents among them.

    Nothing is invented: a licence, a creator and a description stand on the card where a document says so.
    `address` is where others fetch the files.
    """
    files = survey(path, on_progress)
    statements = read_documents(path, files.names, runner) if path.is_dir() else Statements()
    chosen = kind_named(kind) if kind else statements.kind or _kind(files)
    body: dict[str, Any] = {"@context": CONTEXT_IRI, "conformsTo": [PROFILE_IRI], "@type": types_of(chosen)}
    origins = dict(statements.origins)
    body |= statements.values
    if not body.get("name"):
        body["name"] = path.resolve().name if path.is_dir() else path.name.split(".")[0] or path.name
        origins["name"] = "its name on disk"
    if not body.get("version"):
        body["version"] = DIGEST_VERSION_PREFIX + files.content_digest()[:12]
        origins["version"] = "digest of the files"
    if chosen == "model":
        facts = _model_facts(path, files)
        origins |= {key: "model file" for key in facts if key not in body}
        body |= {key: value for key, value in facts.items() if key not in body}
    body = with_files(body, files)
    origins |= {key: _FROM_FILES for key in ("distribution", "recordSet", "variableMeasured") if key in body}
    if address:
        body = with_address(body, address)
    card = Card(body, catalog="local")
    notes = (*statements.notes, *files.notes)
    asked = questions(card, choices=statements.licence_choices)
    return Description(source or str(path), card, origins, asked, notes, files.files, files.size_bytes)


def _model_facts(path: Path, files: Survey) -> dict[str, Any]:
    """Return what a model file states of itself; of one that is damaged, a note says why it states nothing."""
    try:
        return MODEL_FILES["models"](path) or {}
    except UsageError as error:
        files.notes.append(str(error))
        return {}


def describe_model(path: Path, runner: Runner, on_progress: Progress | None = None) -> Card | None:
    """Return the card of a model file, or of a folder that no document describes; None of anything else."""
    if path.is_dir() and any((path / name).is_file() for name in DESCRIPTIONS):
        return None
    if path.is_file() and _is_text(path):
        return None
    facts = MODEL_FILES["models"](path)
    if facts is None:
        return None
    return with_place(describe(path, runner, kind="model", on_progress=on_progress).card, path)


def _is_text(path: Path) -> bool:
    """Tell whether a file may be a document: what cannot be read is left to those who say so."""
    try:
        with path.open("rb") as stream:
            head = stream.read(4096)
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3
    except OSError:
        return True
    return b"\0" not in head and not _OLD_PICKLE.match(head)


def _kind(files: Survey) -> str:
    return kind_by_content(files.model_bytes, files.data_bytes, files.program_files, files.binary_files)


def with_files(body: Mapping[str, Any], surveyed: Survey) -> dict[str, Any]:
    """Return the body with these files: one of the same name is replaced, keeping its addresses."""
    fresh = {each["name"]: each for each in surveyed.distribution()}
    files: list[Any] = []
    for entry in as_list(body.get("distribution")):
        new = fresh.pop(entry.get("name"), None) if isinstance(entry, Mapping) else None
        if new is None:
            files.append(entry)
            continue
        files.append({**{key: entry[key] for key in ("contentUrl", "mirror") if key in entry}, **new})
    made = {**body, "distribution": [*files, *fresh.values()]}
    made.pop("contentDigest", None)
    is_all = len(made["distribution"]) == len(surveyed.distribution())
    content = surveyed.content if is_all else Card(made).content
    if content:
        made["contentDigest"] = content
    is_model = "MLModel" in as_list(body.get("@type"))
    if surveyed.record_sets and not is_model:
        made.setdefault("recordSet", surveyed.record_sets if len(surveyed.record_sets) > 1 else surveyed.record_sets[0])
    if surveyed.variables and not is_model:
        made.setdefault("variableMeasured", surveyed.variables)
    return made


def with_address(body: Mapping[str, Any], address: str) -> dict[str, Any]:
    """Return the body with an address for each file that others cannot fetch so far.

    An address that ends in a slash, or stands for several files, is that of their folder.
    """
    reason = unusable(address)
    if reason:
        raise UsageError(
            f"{address}: others cannot reach this address: {reason}",
            hint="use an address on the public internet, such as https://HOST/FOLDER/",
        )
    files = as_list(body.get("distribution"))
    if not _without_address(files):
        raise UsageError(
            "the card has no file that needs an address" if files else "the card declares no file",
            hint="" if files else "add the files with --file PATH",
        )
    return _addressed(body, address)


def with_place(card: Card, path: Path) -> Card:
    """Return a card for this machine: what others cannot fetch so far is fetched from where it lies."""
    if not _without_address(as_list(card.get("distribution"))):
        return card
    place = path.resolve().as_uri()
    return Card(_addressed(card.body, f"{place}/" if path.is_dir() else place), catalog=card.catalog)


def _without_address(files: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the entries of files that others cannot fetch."""
    return [
        entry
        for entry in files
        if isinstance(entry, Mapping) and not entry.get("containedIn") and not usable(file_addresses(entry))
    ]


def _addressed(body: Mapping[str, Any], address: str) -> dict[str, Any]:
    files = as_list(body.get("distribution"))
    lacking = _without_address(files)
    is_folder = address.endswith("/") or len(lacking) > 1 or lacking[0].get("@type") == "FileSet"
    made = []
    for entry in files:
        if entry in lacking:
            below = "" if entry.get("@type") == "FileSet" else quote(str(entry.get("name", "")))
            entry = {**entry, "contentUrl": f"{address.rstrip('/')}/{below}" if is_folder else address}
        made.append(entry)
    return {**body, "distribution": made}


def questions(card: Card, *, choices: Sequence[str] = ()) -> tuple[Question, ...]:
    """Return what only the owner can say and the card does not, each with the command that sets it.

    `choices` are the licences between which the text of a licence leaves the choice.
    """
    texts = dict(_QUESTIONS)
    if choices:
        texts["license"] = f"Which licence does the holder of the rights grant: {' or '.join(choices)}?"
    return tuple(Question(key, text, _command(card, key)) for key, text in texts.items() if _is_open(card, key))


def _is_open(card: Card, key: str) -> bool:
    if key == "distribution":
        return bool(_without_address(as_list(card.get(key))))
    if key == "version":
        return card.version.startswith(DIGEST_VERSION_PREFIX)
    if key == "creator":
        return not (card.texts("creator") or card.texts("author"))
    return not card.texts(key)


def _command(card: Card, key: str) -> str:
    if key == "distribution":
        change = "--address https://ADDRESS"
    else:
        verb = "--add" if key == "keywords" else "--set"
        change = f"{verb} {shlex.quote('='.join((key, rules()['placeholders'][key])))}"
    return f"fairmile catalog update {shlex.quote(str(card.handle))} {change}"
