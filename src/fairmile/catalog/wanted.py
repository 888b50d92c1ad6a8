"""Which bytes a card stands for: each file with the places that offer it, its digests, and how to get at it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from fairmile.base.digest import Checksum, parse_checksum, sha256_hex
from fairmile.base.errors import NotFound, Unsupported, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import parse_size
from fairmile.catalog import OWN_IDS
from fairmile.catalog.card import Card, as_list, id_of, text_of
from fairmile.catalog.declared import LOCAL
from fairmile.catalog.exchange.common.media_types import EXECUTABLE, EXECUTABLE_TYPE
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers import FETCHERS
from fairmile.transfer.items import check_path
from fairmile.transfer.schemes import SCHEMES, scheme_of

_CHECKSUMS = ("sha256", "sha512", "sha1", "md5", "crc32c")
_EXACT_SIZE = lazy_pattern(r"\s*[0-9]{1,18}\s*(B|bytes?)?\s*", re.IGNORECASE)
_PLAIN_ADDRESS = lazy_pattern(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?/")
_SHA256 = lazy_pattern(r"[0-9a-f]{64}")
_LIMIT = lazy_pattern(r"[1-9][0-9]{0,17}")
_METHOD = lazy_pattern(r"[A-Za-z0-9_.-]{1,64}")
_PUBLIC = "public"
_PLAIN_METHODS = ("", "file", "archive")
_OWN_PROGRAM = "card-program"  # how the names begin under which programs of cards are declared
_PAGES = lazy_pattern(r"https?://(huggingface\.co|zenodo\.org|(dx\.)?doi\.org|(www\.)?openml\.org)/", re.IGNORECASE)

_OWN_ASSETS = f"{OWN_IDS}a/"
_DATA = ("evaluationDataset", "trainedOn", "testedOn", "validatedOn", "evaluatedOn", "acceptsDataset")
_NAMED = 3


@dataclass(frozen=True)
class Wanted:
    """One file, archive, list or folder of an asset, before anybody was asked about it.

    `size_bytes` is set where the card states it to the byte; `about_bytes` is what it says roughly.
    """

    path: str
    addresses: tuple[str, ...]
    size_bytes: int | None = None
    about_bytes: int | None = None
    checksums: tuple[Checksum, ...] = ()
    unpack: bool = False
    into: str = ""
    limit: int | None = None
    program: tuple[str, ...] = ()
    mode: int = 0o644

    @property
    def is_one_file(self) -> bool:
        """Tell whether the address is that of one file for certain; else its source must be asked."""
        return bool(self.path) and scheme_of(self.addresses[0]) in ("http", "https")


def wanted(card: Card) -> list[Wanted]:
    """Return what must be brought to have an asset; NotFound with the steps to get it where no address is given."""
    entries = [entry for entry in as_list(card.get("distribution")) if isinstance(entry, Mapping)]
    with_address = [entry for entry in entries if any(text_of(value) for value in as_list(entry.get("contentUrl")))]
    unpacked = {id_of(archive) for entry in entries for archive in as_list(entry.get("containedIn"))}
    handle = str(card.handle)
    files = [_from_entry(card, handle, place, entry, unpacked) for place, entry in enumerate(with_address)]
    if not files and card.text("codeRepository"):
        files = [_from_repository(card)]
    if not files:
        data = [f"`fairmile fetch {id}`" for id in _data_sets(card)[:_NAMED]]
        ask = f"`fairmile catalog update {card.handle} --address https://…` sets where its files are"
        hint = f"its data: {', '.join(data)}" if data else access_steps(card) or (ask if entries else None)
        raise NotFound(f"{card.handle} has no URL to fetch it from", hint=hint)
    return _merged(files)


def _data_sets(card: Card) -> list[str]:
    """Return the data sets that a card is used with, as a person types them where their ids tell that."""
    ids = dict.fromkeys(target for relation, target in card.links if relation in _DATA)
    own = {id: id.removeprefix(_OWN_ASSETS).split("/") for id in ids if id.startswith(_OWN_ASSETS)}
    return [f"{own[id][0]}/{own[id][1]}" if len(own.get(id, ())) == 3 else id for id in ids]


def signature(card: Card) -> str:
    """Return what changes when a card describes other bytes than before."""
    facts = [card.get("distribution"), card.get("codeRepository"), card.version]
    # The quickest form that is the same every time; nobody else compares it.
    return sha256_hex(json.dumps(facts, sort_keys=True).encode())


def is_public(card: Card) -> bool:
    """Tell whether nothing stands between a reader and the data, as far as the card says."""
    rights = card.text("accessRights").rstrip("/").rsplit("/", 1)[-1].lower()
    return rights in ("", _PUBLIC) and card.get("isAccessibleForFree") is not False


def access_steps(card: Card) -> str:
    """Return how to get at data behind a login, in the card's own words."""
    texts = [*card.texts("conditionsOfAccess"), *card.texts("usageInfo")]
    page = card.text("url")
    steps = " ".join(texts)
    return f"{steps} See {page}".strip() if page and (steps or not is_public(card)) else steps


def _from_entry(card: Card, handle: str, place: int, entry: Mapping[str, Any], unpacked: set[str | None]) -> Wanted:
    where = f"{handle} distribution[{place}]"
    given = [
        text for value in as_list(entry.get("contentUrl")) + as_list(entry.get("mirror")) if (text := text_of(value))
    ]
    addresses = [address.strip() for address in given]
    method = text_of(entry.get("fetchMethod")) or ""
    if method and not _METHOD.fullmatch(method):
        raise UsageError(f"{where}.fetchMethod: {method[:60]!r} is not the name of a fetcher")
    for address in addresses:
        _check_trust(card, address, where)
    addresses = [recognised(address) for address in addresses]
    name = text_of(entry.get("name")) or ""
    path = check_path(_file_name(name, addresses[0]), where)
    size = text_of(entry.get("contentSize")) or ""
    about = _size(size)
    label = str(entry.get("@id", ""))
    program = _program(card, entry, where)
    is_plain = method in _PLAIN_METHODS or method in FETCHERS or method in SCHEMES
    own = f"{_OWN_PROGRAM}-{sha256_hex(repr(program).encode())[:12]}" if program else ""
    prefix = "list" if method == "file_list" else own or ("" if is_plain else method)
    if prefix:
        addresses = [f"{prefix}+{address}" for address in addresses]
    return Wanted(
        path,
        tuple(dict.fromkeys(addresses)),
        about if _EXACT_SIZE.fullmatch(size) else None,
        about,
        _checksums(entry),
        unpack=method == "archive" or bool({label, name} & {each for each in unpacked if each}),
        into="",
        limit=_limit(entry),
        program=program,
        mode=0o755 if _is_executable(entry) else 0o644,
    )


def _program(card: Card, entry: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the program that a card of one's own declares for a file; others must be in the settings."""
    words = entry.get("command")
    if words is None or text_of(entry.get("fetchMethod")) != "command":
        return ()
    if card.catalog != LOCAL:
        raise Unsupported(
            f"{where}: a card of the catalog {card.catalog!r} would run a program",
            hint="declare it in the settings under `transfer.fetchers`, or copy the card into your own catalog",
        )
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"{where}.command: expected a list of words", hint='["mytool", "get", "{url}", "{file}"]')
    return tuple(words)


def _from_repository(card: Card) -> Wanted:
    address = card.text("codeRepository").removeprefix("git+")
    revision = card.text("version")
    is_revision = bool(re.fullmatch(r"[0-9a-f]{40}|v?\d[\w.+-]*", revision))
    at = f"@{revision}" if is_revision else ""
    _check_trust(card, f"git+{address}{at}", f"{card.handle} codeRepository")
    return Wanted("", (f"git+{address}{at}",))


def recognised(address: str) -> str:
    """Return the address by which a fetcher gets at what a web page shows."""
    if not _PAGES.match(address):
        return address
    parts = urlsplit(address)
    host, path = (parts.hostname or "").lower(), parts.path
    if host == "huggingface.co" and "/resolve/" not in path:
        from_page = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)(?:/tree/([^/]+)(/.*)?)?/?", path)
        if from_page and not path.startswith(("/docs", "/spaces", "/api")):
            kind, name, revision, below = from_page.groups()
            return f"hf://{kind or ''}{name}" + (f"@{revision}" if revision else "") + (below or "")
    if host == "zenodo.org" and (record := re.fullmatch(r"/records?/(\d+)/?", path)):
        return f"zenodo:{record[1]}"
    if host in ("openml.org", "www.openml.org") and (record := re.fullmatch(r"/d/(\d+)/?", path)):
        return f"openml:{record[1]}"
    if host in ("doi.org", "dx.doi.org") and (record := re.fullmatch(r"/10\.5281/zenodo\.(\d+)", path)):
        return f"zenodo:{record[1]}"
    return address


def _check_trust(card: Card, address: str, where: str) -> None:
    """Refuse what is no address, and what a card of somebody else has no business to name."""
    if _PLAIN_ADDRESS.match(address):
        return
    scheme = scheme_of(address)
    try:
        is_address = bool(scheme) and urlsplit(address) is not None
    except ValueError:
        is_address = False
    if not is_address:
        raise UsageError(f"{where}: {shown_address(address)!r} is not an address", hint="expected SCHEME://HOST/PATH")
    # file:, git+file:, TOOL+file: reach what is on this machine; a card from elsewhere has no business there.
    if scheme.rpartition("+")[2] == "file" and card.catalog != LOCAL:
        raise Unsupported(
            f"{where}: a card of the catalog {card.catalog!r} refers to a local file",
            hint="copy the card into your own catalog with `fairmile catalog update` if you trust it",
        )


def _checksums(entry: Mapping[str, Any]) -> tuple[Checksum, ...]:
    plain = entry.get("sha256")
    if isinstance(plain, str) and _SHA256.fullmatch(plain) and not any(name in entry for name in _CHECKSUMS[1:]):
        return (Checksum("sha256", plain),)  # the usual case, which must be quick: a card may list many files
    stated = ((name, text_of(entry[name])) for name in _CHECKSUMS if name in entry)
    parsed = [parse_checksum(text, name) for name, text in stated if text]
    return tuple(each for each in parsed if each is not None)


def _file_name(name: str, address: str) -> str:
    """Return where a file stands in its asset: what the card calls it, else the end of its address."""
    return name.strip("/") or PurePosixPath(unquote(urlsplit(address).path)).name or "data"


def _size(text: str) -> int | None:
    if _EXACT_SIZE.fullmatch(text):
        return int(re.sub(r"[^0-9]", "", text))
    try:
        return parse_size(text)
    except UsageError:
        return None


def _limit(entry: Mapping[str, Any]) -> int | None:
    text = str(_extra(entry, "limit"))
    return int(text) if _LIMIT.fullmatch(text) else None


def _is_executable(entry: Mapping[str, Any]) -> bool:
    """Tell whether a file is declared executable: a web server cannot say so."""
    media_types = [text for value in as_list(entry.get("encodingFormat")) if (text := text_of(value))]
    return _extra(entry, EXECUTABLE) is True or EXECUTABLE_TYPE in media_types


def _extra(entry: Mapping[str, Any], name: str) -> Any:
    extras = [each for each in as_list(entry.get("additionalProperty")) if isinstance(each, Mapping)]
    return next((each.get("value", "") for each in extras if each.get("name") == name), "")


def _merged(files: list[Wanted]) -> list[Wanted]:
    """Return each content once: entries with one sha256 are mirrors of one another."""
    by_content: dict[str, Wanted] = {}
    for each in files:
        digest = next((sum.hex for sum in each.checksums if sum.algorithm == "sha256"), "")
        key = f"{each.path} {digest}" if digest else f"{each.path} {each.addresses}"
        if key in by_content:
            first = by_content[key]
            both = tuple(dict.fromkeys([*first.addresses, *each.addresses]))
            by_content[key] = Wanted(**{**vars(first), "addresses": both})
        else:
            by_content[key] = each
    return list(by_content.values())
