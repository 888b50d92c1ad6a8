"""Pins: names that keep bytes until the user takes them away."""

from __future__ import annotations

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.results import Result, Results
from fairmile.base.units import format_size
from fairmile.store.refs import Ref


class PinDict(TypedDict):
    label: str
    of: str
    root: str
    size_bytes: int


class PinnedDict(TypedDict):
    pin: PinDict
    dry_run: bool


class PinsDict(TypedDict):
    pins: list[PinDict]


class UnpinnedDict(TypedDict):
    unpinned: str
    dry_run: bool


@dataclass(frozen=True, repr=False)
class Pinned(Ref, Result):
    """A pin that was set, or would be."""

    dry_run: bool = False

    def to_dict(self) -> PinnedDict:
        return {"pin": _facts(self), "dry_run": self.dry_run}

    def summary(self) -> str:
        return f"{self.name} keeps {self.details['of']}, {format_size(self.size_bytes)}"

    __repr__ = Result.__repr__


class Pins(Results[Ref]):
    """The pins of a store."""

    def to_dict(self) -> PinsDict:
        return {"pins": [_facts(each) for each in self]}

    def summary(self) -> str:
        return ", ".join(each.name for each in self) or "none"


@dataclass(frozen=True, repr=False)
class Unpinned(Result):
    """A pin that was taken away, or would be."""

    label: str
    dry_run: bool

    def to_dict(self) -> UnpinnedDict:
        return {"unpinned": self.label, "dry_run": self.dry_run}


def _facts(pin: Ref) -> PinDict:
    return {"label": pin.name, "of": pin.details["of"], "root": pin.root, "size_bytes": pin.size_bytes}
