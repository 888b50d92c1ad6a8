"""Fetchers, one small file each; the scheme of an address picks one."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.base.words import did_you_mean
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers.command import KNOWN, Command, CommandFetcher, parse_command
from fairmile.transfer.remote import Context, FolderFetcher, RangeFetcher

Fetcher = RangeFetcher | FolderFetcher
_HERE = "fairmile.transfer.fetchers"

FETCHERS: Registry[type] = Registry(
    "fetcher",
    {
        "http": Plugin(f"{_HERE}.http:Http", summary="web addresses, over many connections"),
        "ftp": Plugin(f"{_HERE}.ftp:Ftp", summary="FTP servers"),
        "file": Plugin(f"{_HERE}.file:File", summary="files and folders of this machine"),
        "ssh": Plugin(f"{_HERE}.ssh:Ssh", summary="files of a machine reached by ssh"),
        "rsync": Plugin(f"{_HERE}.rsync:Rsync", summary="rsync servers, and rsync over ssh"),
        "s3": Plugin(f"{_HERE}.s3:S3", summary="Amazon S3 and compatible stores"),
        "git": Plugin(f"{_HERE}.git:Git", summary="git repositories, Git LFS included"),
        "globus": Plugin(f"{_HERE}.globus:Globus", extra="globus", summary="Globus collections"),
        "huggingface": Plugin(f"{_HERE}.huggingface:HuggingFace", summary="models and data sets of the hub"),
        "zenodo": Plugin(f"{_HERE}.zenodo:Zenodo", summary="records with a DOI"),
        "pypi": Plugin(f"{_HERE}.pypi:PyPI", summary="Python packages as carriers of data"),
        "npm": Plugin(f"{_HERE}.npm:Npm", summary="npm packages as carriers of data"),
        "file_list": Plugin(f"{_HERE}.file_list:FileList", summary="a text file with an address per line"),
    },
    entry_points="fairmile.fetchers",
)

_REPOSITORY = re.compile(r"(?:https?|ssh)://[^?#\s]+\.git(?:@[^/?#\s]+)?(?:#.*)?")

# Which fetcher serves the scheme of an address; those of declared commands and of entry points come on top.
SCHEMES = {
    "http": "http",
    "https": "http",
    "ftp": "ftp",
    "ftps": "ftp",
    "file": "file",
    "ssh": "ssh",
    "scp": "ssh",
    "sftp": "ssh",
    "rsync": "rsync",
    "rsync+ssh": "rsync",
    "s3": "s3",
    "git": "git",
    "git+https": "git",
    "git+http": "git",
    "git+ssh": "git",
    "git+file": "git",
    "globus": "globus",
    "hf": "huggingface",
    "zenodo": "zenodo",
    "doi": "zenodo",
    "pypi": "pypi",
    "npm": "npm",
    "list+https": "file_list",
    "list+http": "file_list",
    "list+file": "file_list",
}


def scheme_of(address: str) -> str:
    """Return the scheme of an address, in lower case; empty where it has none."""
    head, colon, _ = address.partition(":")
    is_scheme = colon and head[:1].isalpha() and head.replace("+", "").replace("-", "").replace(".", "").isalnum()
    return head.lower() if is_scheme and head.isascii() else ""


class Fetchers:
    """The fetchers of one workspace, each made at its first use."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: dict[str, Fetcher] = {}
        self._ranged: dict[str, RangeFetcher | None] = {}
        self._making = threading.Lock()
        self._declared = dict(context.settings.fetchers)

    def of(self, address: str) -> Fetcher:
        """Return the fetcher that serves an address."""
        scheme = scheme_of(address)
        if not scheme:
            raise UsageError(f"{shown_address(address)!r} is no address", hint="expected SCHEME://HOST/PATH")
        if _REPOSITORY.fullmatch(address):
            return self.named("git")
        name = SCHEMES.get(scheme)
        return self.named(name) if name is not None else self._by_program(scheme)

    def declare(self, name: str, settings: Mapping[str, Any]) -> None:
        """Let addresses that begin with `name+` be fetched by a program, as `transfer.fetchers` does."""
        self._declared[name] = settings

    def _by_program(self, scheme: str) -> Fetcher:
        """Return the program for a scheme: TOOL+SCHEME names one, and some schemes are those of one program."""
        tool, plus, _ = scheme.partition("+")
        names = [*self._declared, *KNOWN]
        own = {each: name for name in names for each in self._command(name).schemes if each not in SCHEMES}
        name = tool if plus and tool in names else own.get(scheme) or (scheme if scheme in FETCHERS else "")
        if name in FETCHERS:
            return self.named(name)
        if not name:
            known = [*SCHEMES, *own, *(f"{each}+https" for each in names)]
            near = did_you_mean(scheme, known)
            raise UsageError(
                f"no fetcher knows addresses that begin with {scheme}:" + (f"; {near}" if near else ""),
                hint=f"known: {', '.join([*SCHEMES, *own])}; TOOL+https:// with a program of `transfer.fetchers`",
            )
        return self._made.setdefault(f"+{name}", CommandFetcher(self._context, self._command(name)))

    def _command(self, name: str) -> Command:
        return parse_command(name, self._declared.get(name))

    def ranged(self, address: str) -> RangeFetcher | None:
        """Return the fetcher of an address where it reads byte ranges, else None."""
        scheme = address.partition(":")[0]
        if scheme not in self._ranged or ".git" in address:
            fetcher = self.of(address)
            found = fetcher if isinstance(fetcher, RangeFetcher) else None
            if ".git" in address:
                return found
            self._ranged[scheme] = found
        return self._ranged[scheme]

    def named(self, name: str) -> Fetcher:
        """Return a fetcher by its name."""
        with self._making:  # a second one would keep connections that nobody closes
            if name not in self._made:
                made: Fetcher = FETCHERS[name](self._context)
                self._made[name] = made
            return self._made[name]

    def close(self) -> None:
        """Close what the fetchers keep open."""
        for fetcher in self._made.values():
            close = getattr(fetcher, "close", None)
            if close is not None:
                close()
        self._made.clear()
