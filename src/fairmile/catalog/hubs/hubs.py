"""All hubs as one: searched at the same time with short timeouts, and asked for the card of what they found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

from fairmile.base.errors import FairmileError, UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.catalog.card import Card
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.hubs.results import HubHit, HubHits
from fairmile.catalog.query import kind_named, parse_query
from fairmile.catalog.wanted import recognised
from fairmile.transfer.fetchers.zenodo import as_zenodo
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Context

ALL = "all"
_STALL_S = 5.0  # a hub that sends nothing for so long has failed
_PATIENCE_S = 15.0  # for one that sends, but slowly
_REFERENCE = re.compile(r"(hf|zenodo|openml):/{0,2}(\S+)", re.IGNORECASE)
_HUB_OF_SCHEME = {"hf": "huggingface", "zenodo": "zenodo", "openml": "openml"}
_HERE = "fairmile.catalog.hubs"


class Hub(Protocol):
    """A hub that can be searched."""

    KINDS: tuple[str, ...]

    def __init__(self, context: Context) -> None: ...

    def search(self, words: str, kind: str, limit: int) -> list[HubHit]:
        """Return the assets of a kind that match the words, the best first."""
        ...

    def read(self, reference: str) -> tuple[Card, Document]:
        """Return the card of an asset, and the document that the hub gave for it."""
        ...

    def close(self) -> None: ...


HUBS: Registry[type[Hub]] = Registry(
    "hub",
    {
        "huggingface": Plugin(f"{_HERE}.huggingface:HuggingFace", summary="models and data sets"),
        "zenodo": Plugin(f"{_HERE}.zenodo:Zenodo", summary="data sets and software with a DOI"),
        "openml": Plugin(f"{_HERE}.openml:OpenML", summary="data sets"),
    },
    entry_points="fairmile.hubs",
)


def reference_of(text: str) -> str:
    """Return the handle of an asset of a hub that a text is, or the address of its page; empty for any other text."""
    match = _REFERENCE.fullmatch(text)
    if match:  # a path loses one of the slashes
        scheme = match[1].lower()
        return f"{scheme}:{'//' if scheme == 'hf' else ''}{match[2]}"
    address = recognised(text)
    return address if _REFERENCE.fullmatch(address) else as_zenodo(text) or ""


def read_reference(reference: str, context: Context) -> tuple[Card, Document]:
    """Return the card of an asset of a hub, and the document that the hub gave for it."""
    name = _HUB_OF_SCHEME[reference.partition(":")[0]]
    with closing(HUBS[name](context)) as hub:
        return hub.read(reference)


def read_address(address: str, context: Context) -> Document:
    """Return what a web address serves."""
    with closing(Client(context)) as client:
        return Document.from_address(address, client)


def search(text: str, names: Sequence[str], context: Context, *, kind: str | None, limit: int) -> HubHits:
    """Return what hubs find, hub by hub in the order given; one that fails or is slow does not stop the others."""
    query = parse_query(text)
    words = " ".join([*query.words, *query.phrases, *query.prefixes])
    kinds = [value for facet, value in query.facets if facet == "kind"] + ([kind_named(kind)] if kind else [])
    refused = [facet for facet, _ in query.facets if facet != "kind"]
    if not words or refused or query.regexes or query.not_words or query.not_facets or query.not_prefixes:
        asked = f"the field {refused[0]!r}" if refused else "this search"
        raise UsageError(f"hubs cannot answer {asked}", hint="they take words, and kind:model, kind:dataset …")
    chosen = list(HUBS.names()) if ALL in names else list(dict.fromkeys(names))
    quick = context._replace(settings=replace(context.settings, stall_s=_STALL_S, retries=1))
    tasks = [(name, each) for name in chosen for each in HUBS[name].KINDS if each in (kinds or [each])]
    # Not a `with`: its end would wait for a hub that does not answer.
    pool = ThreadPoolExecutor(max(len(tasks), 1), thread_name_prefix="fairmile-hub")
    futures = {pool.submit(_ask, name, quick, words, each, limit): (name, each) for name, each in tasks}
    done, late = wait(futures, _PATIENCE_S)
    pool.shutdown(wait=False, cancel_futures=True)
    failed = {futures[each][0]: f"no answer within {_PATIENCE_S:.0f} s" for each in late}
    answers: dict[tuple[str, str], list[HubHit]] = {}
    for future in done:
        answer: Any = future.result()
        if isinstance(answer, FairmileError):
            failed[futures[future][0]] = " ".join(str(answer).split())
        else:
            answers[futures[future]] = answer
    return HubHits(_in_turn([answers[task] for task in tasks if task in answers], limit, chosen), failed)


def _ask(name: str, context: Context, words: str, kind: str, limit: int) -> list[HubHit] | FairmileError:
    try:
        with closing(HUBS[name](context)) as hub:
            return hub.search(words, kind, limit)
    except FairmileError as error:
        return error


def _in_turn(lists: Sequence[list[HubHit]], limit: int, names: Sequence[str]) -> list[HubHit]:
    """Return the best of every list in turn up to the limit, then hub by hub."""
    taken = [hits[at] for at in range(limit) for hits in lists if at < len(hits)][:limit]
    return sorted(taken, key=lambda hit: names.index(hit.hub))
