"""The forms of a card's properties, as pydantic models: one place that says what each value must look like."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field

from fairmile.base.digest import parse_checksum
from fairmile.base.documents import Document
from fairmile.base.errors import UsageError
from fairmile.base.units import parse_size
from fairmile.catalog.card import as_list
from fairmile.catalog.dates import is_date
from fairmile.catalog.identity import is_iri, valid_sha256

ACCESS_RIGHTS = ("public", "registered", "restricted", "embargoed", "closed")


def _validator(test: Any, message: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if not test(value):
            raise ValueError(message.format(value=value))
        return value

    return BeforeValidator(check)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_size(value: Any) -> bool:
    try:
        parse_size(value)
    except UsageError:
        return False
    return True


Text = Annotated[str, _validator(lambda v: isinstance(v, str) and v.strip(), "expected a text, found {value!r}")]
Iri = Annotated[str, _validator(is_iri, "expected an absolute IRI such as https://… or doi:…, found {value!r}")]
Date = Annotated[
    str, _validator(lambda v: isinstance(v, str) and is_date(v), "expected a date as YYYY-MM-DD, found {value!r}")
]
Size = Annotated[
    str | int, _validator(_is_size, "expected a size such as '5943306240 B' or '5.5 GiB', found {value!r}")
]


def _checksum(algorithm: str) -> BeforeValidator:
    def right(value: Any) -> bool:
        return isinstance(value, str) and parse_checksum(value, algorithm) is not None

    return _validator(right, f"expected a {algorithm} checksum in hex, found {{value!r}}")


class _Object(Document):
    # Unknown keys are the user's own; they are kept and not judged.
    model_config = ConfigDict(extra="allow")


class FileForm(_Object):
    """A file of the distribution."""

    name: Text | None = None
    contentUrl: Text | None = None
    contentSize: Size | None = None
    encodingFormat: Text | list[Text] | None = None
    sha256: Annotated[str, _checksum("sha256")] | None = None
    md5: Annotated[str, _checksum("md5")] | None = None
    sha1: Annotated[str, _checksum("sha1")] | None = None
    crc32c: Annotated[str, _checksum("crc32c")] | None = None
    mirror: Annotated[list[Text], BeforeValidator(as_list)] | None = None


class AgentForm(_Object):
    """A person or an organisation."""

    name: Text


Agent = AgentForm | Text
Ref = Text | dict[str, Any]
T = TypeVar("T")
# One or many of a form, as JSON-LD allows; errors name the place of the wrong one.
Many = Annotated[list[T], BeforeValidator(as_list)]
Flag = Annotated[bool, _validator(lambda v: isinstance(v, bool), "expected true or false, found {value!r}")]
Digest = Annotated[str, _validator(lambda v: valid_sha256(v) is not None, "expected ni:///sha-256;…, found {value!r}")]
Keyword = Annotated[
    str | dict[str, Any],
    _validator(
        lambda v: _is_text(v.get("name") if isinstance(v, dict) else v),
        "expected a text, or a term of a vocabulary with its name, found {value!r}",
    ),
]
Version = Annotated[
    str, _validator(lambda v: isinstance(v, str) and v.strip(), "expected a text such as '1.0', found {value!r}")
]
Access = Annotated[
    str,
    _validator(
        lambda v: isinstance(v, str) and v.rsplit("/", 1)[-1].lower() in ACCESS_RIGHTS,
        "expected one of " + ", ".join(ACCESS_RIGHTS) + ", found {value!r}",
    ),
]


class CardForm(_Object):
    """The properties every kind shares, each with its form."""

    id: Iri | None = Field(default=None, alias="@id")
    name: Text
    version: Version | None = None
    description: Text | None = None
    license: Many[Text] = []
    keywords: Many[Keyword] = []
    creator: Many[Agent] = []
    contributor: Many[Agent] = []
    publisher: Many[Agent] = []
    url: Many[Iri] = []
    sameAs: Many[Iri] = []
    identifier: Many[Ref] = []
    citation: Many[Ref] = []
    distribution: Many[FileForm] = []
    conformsTo: Many[Iri] = []
    datePublished: Date | None = None
    dateModified: Date | None = None
    dateCreated: Date | None = None
    startTime: Date | None = None
    endTime: Date | None = None
    contentDigest: Digest | None = None
    scienceDomain: Many[Ref] = []
    mlTask: Many[Ref] = []
    machineLearningFramework: Many[Text] = []
    isTunable: Flag | None = None
    isAccessibleForFree: Flag | None = None
    accessRights: Many[Access] = []
