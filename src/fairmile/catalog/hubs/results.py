"""What a search of hubs returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NotRequired, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.catalog.licences import spdx_expression

_LONGEST_DESCRIPTION = 300


class HubHitDict(TypedDict):
    hub: str
    handle: str
    kind: str
    name: str
    url: str
    version: NotRequired[str]
    licence: NotRequired[str]
    size_bytes: NotRequired[int]
    description: NotRequired[str]


class HubSearchDict(TypedDict):
    results: list[HubHitDict]
    failed: dict[str, str]


@dataclass(frozen=True, repr=False)
class HubHit(Result):
    """One asset of a hub; `handle` is what `show`, `fetch` and `catalog add` take."""

    hub: str
    handle: str
    kind: str
    name: str
    url: str
    version: str = ""
    licence: str = ""
    size_bytes: int | None = None
    description: str = ""

    def to_dict(self) -> HubHitDict:
        data: HubHitDict = {
            "hub": self.hub,
            "handle": self.handle,
            "kind": self.kind,
            "name": self.name,
            "url": self.url,
        }
        if self.version:
            data["version"] = self.version
        if self.licence:
            data["licence"] = self.licence
        if self.size_bytes is not None:
            data["size_bytes"] = self.size_bytes
        if self.description:
            data["description"] = self.description
        return data

    def summary(self) -> str:
        return self.handle


class HubHits(Results[HubHit]):
    """The assets that hubs found, hub by hub; `failed` says why a hub did not answer."""

    def __init__(self, hits: Iterable[HubHit] = (), failed: dict[str, str] | None = None) -> None:
        super().__init__(hits)
        self.failed = dict(failed or {})

    def to_dict(self) -> HubSearchDict:
        return {"results": [hit.to_dict() for hit in self], "failed": self.failed}

    def summary(self) -> str:
        failed = f", {', '.join(self.failed)} did not answer" if self.failed else ""
        return f"{len(self):,} assets{failed}"


def as_text(value: Any) -> str:
    """Return a text or a number as one line of text; empty for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    return " ".join(str(value).split())


def as_licence(value: Any) -> str:
    """Return the SPDX id of a licence where it is certain, else the word of the hub."""
    text = as_text(value)
    return spdx_expression(text) or text


def as_size(values: Sequence[Any]) -> int | None:
    """Return the sum of sizes; None where one is not known."""
    whole = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0]
    return sum(whole) if whole and len(whole) == len(values) else None


def shortened(text: str) -> str:
    """Return the beginning of a description."""
    return text if len(text) <= _LONGEST_DESCRIPTION else text[: _LONGEST_DESCRIPTION - 1] + "…"
