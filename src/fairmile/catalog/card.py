"""A card: the JSON-LD description of one version of one asset, with readers for what others ask of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.html_tables import fields_table
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.units import format_size, parse_size
from fairmile.base.words import slug
from fairmile.catalog.identity import Handle, card_digest, content_digest, valid_sha256, version_slug
from fairmile.catalog.kinds import KINDS, kind_of_types

SPDX_PREFIX = "https://spdx.org/licenses/"
_LONGEST_REPR = 200
# Properties whose values name other assets; the value is what the link means when read from the other end.
LINKS = {
    "trainedOn": "trains",
    "testedOn": "tests",
    "validatedOn": "validates",
    "evaluatedOn": "evaluates",
    "acceptsDataset": "accepted by",
    "fineTunedFrom": "base of",
    "hasEvaluation": "evaluation of",
    "evaluatedMLModel": "evaluated by",
    "evaluationDataset": "used by evaluation",
    "evaluationSoftware": "software of evaluation",
    "wasDerivedFrom": "source of",
    "wasGeneratedBy": "generated",
    "wasRevisionOf": "revised as",
    "isBasedOn": "base of",
    "hasPart": "part of",
    "isPartOf": "has part",
    "instrument": "used by",
    "object": "input of",
    "result": "result of",
    "runsOn": "runs",
    "targetMachine": "target of",
    "exampleOfWork": "example",
    "softwareRequirements": "required by",
    "environment": "environment of",
    "project": "project of",
    "about": "subject of",
    "mentions": "mentioned by",
    "supersededBy": "supersedes",
    "reproducedBy": "reproduces",
}
ENVIRONMENT_LINKS = ("environment", "softwareRequirements")  # those that may name an environment


class File(NamedTuple):
    """One file of an asset as its card declares it."""

    name: str
    url: str | None
    size_bytes: int | None
    media_type: str | None
    sha256: str | None


def as_list(value: Any) -> list[Any]:
    """Return the JSON-LD value as a list: nothing, one or many."""
    if value is None or value == "":
        return []
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and set(value) <= {"@list", "@set"}:
        return as_list(next(iter(value.values()), None))
    return [value]


def text_of(value: Any) -> str | None:
    """Return the one text that stands for a JSON-LD value: itself, its @value, its name or its @id."""
    if isinstance(value, dict):
        for key in ("@value", "name", "@id", "url", "value"):
            if isinstance(value.get(key), (str, int, float)):
                return str(value[key])
        return None
    if value is None or isinstance(value, list):
        return None
    return str(value)


def id_of(value: Any) -> str | None:
    """Return what a link points to: an @id, else the text."""
    if isinstance(value, dict):
        return value["@id"] if isinstance(value.get("@id"), str) else text_of(value)
    return value if isinstance(value, str) else None


class Card(Mapping[str, Any]):
    """One version of one asset; a read-only mapping over its JSON-LD body.

    Unknown keys are kept verbatim. `catalog` names the catalog the card was read from.
    """

    def __init__(self, body: Mapping[str, Any], *, catalog: str = "local") -> None:
        self.body: dict[str, Any] = dict(body)
        self.catalog = catalog

    def __getitem__(self, key: str) -> Any:
        return self.body[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.body)

    def __len__(self) -> int:
        return len(self.body)

    # Those of `Mapping` go by way of an exception where a key is missing.
    def __contains__(self, key: object) -> bool:
        return key in self.body

    def get(self, key: str, default: Any = None) -> Any:
        return self.body.get(key, default)

    def __repr__(self) -> str:
        text = f"<Card {self.handle}>"
        return text if len(text) <= _LONGEST_REPR else f"{text[: _LONGEST_REPR - 2]}…>"

    def _repr_html_(self) -> str:
        return fields_table(self.overview())

    def overview(self) -> dict[str, str]:
        """Return what a person looks for first: name, kind, version, description, licence, size."""
        size_bytes = sum(file.size_bytes or 0 for file in self.files)
        return {
            "name": self.title,
            "kind": self.kind,
            "version": self.version,
            "description": self.text("description"),
            "licence": self.licence or self.text("license"),
            "size": format_size(size_bytes) if size_bytes else "",
        }

    def texts(self, key: str) -> list[str]:
        """Return every text under the key."""
        value = self.body.get(key)
        if value is None:
            return []
        if type(value) is str:
            return [value] if value else []
        return [text for each in as_list(value) if (text := text_of(each)) is not None]

    def text(self, key: str) -> str:
        """Return the first text under the key, or an empty one."""
        return next(iter(self.texts(key)), "")

    @cached_property
    def types(self) -> list[str]:
        return [str(value) for value in as_list(self.body.get("@type"))]

    @cached_property
    def kind(self) -> str:
        kind = kind_of_types(self.types)
        if kind is None:
            raise UsageError(
                f"@type: {self.body.get('@type')!r} is not a kind of asset",
                hint="expected one of " + ", ".join(f"{each.types[0]} ({each.name})" for each in KINDS.values()),
            )
        return kind

    @cached_property
    def title(self) -> str:
        return self.text("name")

    @cached_property
    def name(self) -> str:
        return slug(self.title)

    @cached_property
    def version(self) -> str:
        """The version as written; a run, which has none, is told apart by its start."""
        return self.text("version") or (self.text("startTime") if self.kind == "run" else "") or "0"

    @cached_property
    def handle(self) -> Handle:
        return Handle(self.catalog, self.kind, self.name, version_slug(self.version))

    @property
    def iri(self) -> str:
        return str(self.body.get("@id", ""))

    @cached_property
    def digest(self) -> str:
        return card_digest(self.body)

    @cached_property
    def content(self) -> str | None:
        """The `ni:` digest of the bytes; declared, else computed where every file has size and sha256."""
        declared = self.text("contentDigest")
        if declared:
            return declared
        files = [(each.name, each.size_bytes, each.sha256) for each in self.files]
        whole = [
            (name, size, sha256) for name, size, sha256 in files if sha256 and (size is not None or len(files) == 1)
        ]
        return content_digest([(n, s or 0, d) for n, s, d in whole]) if len(whole) == len(files) else None

    @cached_property
    def licence(self) -> str | None:
        """The SPDX id or expression, or None when the licence is missing or not recognised."""
        for text in self.texts("license"):
            if text.startswith(SPDX_PREFIX):
                return text.removeprefix(SPDX_PREFIX).removesuffix(".html")
        return None

    @cached_property
    def files(self) -> list[File]:
        return [_file(entry) for entry in as_list(self.body.get("distribution")) if isinstance(entry, Mapping)]

    @property
    def identifiers(self) -> list[str]:
        """Every id the asset answers to: @id, identifier, sameAs."""
        texts = [self.iri, *self.texts("identifier"), *self.texts("sameAs")]
        return list(dict.fromkeys(text for text in texts if text))

    @cached_property
    def domains(self) -> list[str]:
        return self.texts("scienceDomain")

    @cached_property
    def tasks(self) -> list[str]:
        return self.texts("mlTask")

    @cached_property
    def frameworks(self) -> list[str]:
        return list(
            dict.fromkeys(text.lower() for text in self.texts("machineLearningFramework") + self.texts("framework"))
        )

    @cached_property
    def formats(self) -> list[str]:
        """Short names of the formats of model and files: onnx, hdf5, tfrecord."""
        given = self.texts("modelFormat") + [file.media_type or "" for file in self.files]
        return list(dict.fromkeys(format_name(text) for text in given if text))

    @cached_property
    def keywords(self) -> list[str]:
        words: list[str] = []
        for value in as_list(self.body.get("keywords")):
            text = text_of(value) or ""
            # A text may list several; the name of a term is one, whatever it holds.
            words += text.split(",") if isinstance(value, str) else [text]
        return [word.strip() for word in words if word.strip()]

    @property
    def links(self) -> list[tuple[str, str]]:
        """Every (relation, target) that names another asset."""
        given = [relation for relation in LINKS if relation in self.body]
        pairs = [(relation, id_of(value)) for relation in given for value in as_list(self.body[relation])]
        return [(relation, target) for relation, target in pairs if target]

    @property
    def warnings(self) -> list[dict[str, str]]:
        return [dict(entry) for entry in as_list(self.body.get("warnings")) if isinstance(entry, Mapping)]

    def to_json(self) -> str:
        """Return the card as it is written to a file."""
        return json.dumps(self.body, indent=1, ensure_ascii=False) + "\n"


@lru_cache(maxsize=1000)
def format_name(text: str) -> str:
    """Return the short name of a media type or format: `application/x-hdf5` is `hdf5`."""
    name = text.rsplit("/", 1)[-1].split(";")[0].strip().lower().lstrip(".")
    for prefix in ("vnd.", "apache.", "x-"):
        name = name.removeprefix(prefix)
    return {"h5": "hdf5", "hdf": "hdf5", "pt": "pytorch", "pth": "pytorch", "pkl": "pickle", "nc": "netcdf"}.get(
        name, name
    )


def _file(entry: Mapping[str, Any]) -> File:
    size: int | None
    try:
        size = parse_size(text_of(entry.get("contentSize")) or "")
    except UsageError:
        size = None
    url = text_of(entry.get("contentUrl"))
    name = text_of(entry.get("name")) or (str(entry.get("@id", "")) or Path(url or "").name)
    return File(
        name,
        url or None,
        size,
        text_of(entry.get("encodingFormat")),
        valid_sha256(entry.get("sha256")),
    )
