"""pypi:NAME[==VERSION[/FILENAME]]: a file of a Python package, from the indexes that pip's own settings name.

Without a version it is the newest one that is neither a pre-release nor yanked; pre-releases count where there is
nothing else. Without a file name it is the same file on every machine: the wheel for Python 3 and any platform, else
another wheel for any platform, else the source archive (.tar.gz before .zip).
"""

from __future__ import annotations

import base64
import configparser
import json
import re
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from fairmile.base.digest import Checksum, parse_checksum
from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import did_you_mean
from fairmile.transfer.credentials import Credentials, shown_address, without_login
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Body, Context, Remote

if TYPE_CHECKING:
    from packaging.version import Version

_INDEX = "https://pypi.org/simple"  # what pip takes without any setting
_ADDRESS = re.compile(r"pypi:([A-Z0-9](?:[A-Z0-9._-]*[A-Z0-9])?)(?:==([^/\s=]+)(?:/([^/\s]+))?)?", re.IGNORECASE)
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})


class PyPI:
    """Finds one file of a package."""

    def __init__(self, context: Context) -> None:
        self.client = Client(context)
        self._context = context

    def find(self, address: str) -> list[Remote]:
        """Return the file that an address means, with the digests that the index states."""
        wanted = parse_address(address)
        files, headers = self._listed(wanted)
        chosen = choose(wanted, files)
        origin = urlsplit(chosen.url)[:2]
        own = headers.get(origin, {})
        size, validator = chosen.size_bytes, ""
        if size is None:
            answer = self.client.head(chosen.url, own)
            size, validator = answer.size_bytes, answer.validator
        return [Remote(chosen.url, chosen.name, size, chosen.checksums, validator, headers=own)]

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop`."""
        return self.client.open(remote.address, start, stop, headers=remote.headers, validator=remote.validator)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()

    def _listed(self, wanted: Wanted) -> tuple[list[File], dict[tuple[str, str], Mapping[str, str]]]:
        """Return the files that the first index with the package lists, and the headers its host asks for."""
        indexes = index_addresses(self._context.environ, self._context.credentials, Path(sys.prefix))
        for index in indexes:
            bare, login = without_login(index)
            own: dict[str, str] = {}
            if login is not None:
                text = f"{login.user}:{login.password}".encode()
                own = {"Authorization": f"Basic {base64.b64encode(text).decode()}"}
            url = f"{bare.rstrip('/')}/{quote(wanted.normal_name)}/"
            try:
                body, answer = self.client.get(url, {"Accept": _ACCEPT, **own})
            except NotFound:
                continue
            files = read_index(body, answer.head.headers.get("content-type", ""), answer.url)
            if files:
                return files, {urlsplit(bare)[:2]: own}
        asked = ", ".join(shown_address(index) for index in indexes)
        raise NotFound(f"no Python package {wanted.name!r} at {asked}", hint="check its name")


class Wanted(NamedTuple):
    """A package, and the version and file of it that are meant; empty where any will do."""

    name: str
    version: str = ""
    file: str = ""

    @property
    def normal_name(self) -> str:
        """The name as indexes write it."""
        return re.sub(r"[-_.]+", "-", self.name).lower()


@dataclass(frozen=True)
class File:
    """A file as an index lists it."""

    name: str
    url: str
    checksums: tuple[Checksum, ...] = ()
    size_bytes: int | None = None
    is_yanked: bool = False


def parse_address(address: str) -> Wanted:
    """Return what a pypi: address means."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UsageError(
            f"{shown_address(address)!r} does not name a Python package", hint="expected pypi:NAME==VERSION[/FILENAME]"
        )
    return Wanted(match[1], match[2] or "", match[3] or "")


# Which index


def index_addresses(environ: Mapping[str, str], credentials: Credentials, prefix: Path) -> list[str]:
    """Return the indexes to ask, in order: pip's extra ones first, then the main one.

    The first that knows a package is the only one believed: a stranger who puts a package of the same name into the
    public index is not asked when the own index has it.
    """
    options = dict(_config_files(environ, credentials, prefix))
    for name in ("index-url", "extra-index-url", "no-index"):
        given = environ.get("PIP_" + name.upper().replace("-", "_"))
        if given:
            options[name] = given
    if options.get("no-index", "").strip().lower() in _TRUE:
        raise UsageError("pip's settings forbid any index (no-index)", hint="see `pip config list`")
    all_of_them = [*options.get("extra-index-url", "").split(), options.get("index-url", "").strip() or _INDEX]
    indexes = [index for index in all_of_them if urlsplit(index).scheme in ("http", "https")]
    if not indexes:
        raise UsageError(
            f"pip's settings name no index on the web: {shown_address(all_of_them[-1])}", hint="see `pip config list`"
        )
    return list(dict.fromkeys(indexes))


def _config_files(environ: Mapping[str, str], credentials: Credentials, prefix: Path) -> Iterator[tuple[str, str]]:
    """Yield the options of pip's configuration files, those that count more later."""
    own = environ.get("PIP_CONFIG_FILE", "")
    if own == "/dev/null":  # pip's way to say: no file at all
        return
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    paths = [*(Path(folder) / "pip/pip.conf" for folder in shared if folder), Path("/etc/pip.conf")]
    if not (own and Path(own).exists()):
        paths.append(credentials.home_file(".pip/pip.conf"))
        paths.append(credentials.home_file(environ.get("XDG_CONFIG_HOME") or ".config") / "pip/pip.conf")
    paths.append(prefix / "pip.conf")
    if own:
        paths.append(Path(own))
    for path in paths:
        yield from _config_file(path)


def _config_file(path: Path) -> Iterator[tuple[str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except OSError:  # absent, or not for us, as pip sees it
        return
    except (configparser.Error, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"{path} cannot be read: {shown_address(first)}", hint="fix it; pip needs it too") from None
    for section in ("global", "download"):
        if parser.has_section(section):
            for key, value in parser.items(section):
                yield key.lower().replace("_", "-").removeprefix("--"), value


# What an index lists


def read_index(body: bytes, kind: str, url: str) -> list[File]:
    """Return the files of a project's page, which an index sends as JSON (PEP 691) or as HTML (PEP 503)."""
    if kind.partition(";")[0].strip().lower().endswith("json"):
        try:
            document = json.loads(body)
        except ValueError as error:
            raise Integrity(f"{shown_address(url)} does not answer with the JSON it announces") from error
        entries = document.get("files") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise Integrity(f"{shown_address(url)} does not list the files of a package")
        files = [_file_of_json(entry, url) for entry in entries if isinstance(entry, dict)]
    else:
        page = _Page(url)
        page.feed(body.decode("utf-8", "replace"))
        page.close()
        files = page.files
    return [file for file in files if file.name and urlsplit(file.url).scheme in ("http", "https")]


def _file_of_json(entry: Mapping[str, Any], url: str) -> File:
    stated, size = entry.get("hashes"), entry.get("size")
    return File(
        _plain_name(str(entry.get("filename", ""))),
        urldefrag(urljoin(url, str(entry.get("url", "")))).url,
        _checksums(stated if isinstance(stated, dict) else {}),
        size if isinstance(size, int) and size >= 0 else None,
        entry.get("yanked", False) not in (False, None),  # a text, even an empty one, is the reason
    )


def _checksums(stated: Mapping[str, Any]) -> tuple[Checksum, ...]:
    parsed = (parse_checksum(str(stated[name]), name) for name in ("sha256", "sha512", "sha1", "md5") if name in stated)
    return tuple(checksum for checksum in parsed if checksum is not None)


def _plain_name(name: str) -> str:
    return "" if "/" in name or "\\" in name or name in (".", "..") else name


class _Page(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.files: list[File] = []
        self._base = url

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "base" and given.get("href"):
            self._base = urljoin(self._base, given["href"] or "")
        elif tag == "a" and given.get("href"):
            url, fragment = urldefrag(urljoin(self._base, given["href"] or ""))
            algorithm, _, value = fragment.partition("=")
            name = _plain_name(unquote(urlsplit(url).path.rpartition("/")[2]))
            self.files.append(File(name, url, _checksums({algorithm: value}), None, "data-yanked" in given))


# Which file


def choose(wanted: Wanted, files: list[File]) -> File:
    """Return the one file that is meant; see the module for the rule."""
    if wanted.file:
        for file in files:
            if file.name == wanted.file:
                return file
        near = did_you_mean(wanted.file, [file.name for file in files])
        raise NotFound(f"{wanted.name} has no file {wanted.file!r}" + (f"; {near}" if near else ""))
    by_version: dict[Version, list[File]] = {}
    for file in files:
        version = _version_of(file.name)
        if version is not None:
            by_version.setdefault(version, []).append(file)
    version = _version(wanted, by_version)
    ranked = [(rank, file.name, file) for file in by_version[version] if (rank := _rank(file.name)) is not None]
    if not ranked:
        names = sorted(file.name for file in by_version[version])
        raise NotFound(
            f"{wanted.name} {version} has only files for single platforms",
            hint=f"name one, such as pypi:{wanted.name}=={version}/{names[0]}",
        )
    return min(ranked, key=lambda each: each[:2])[2]


def _version(wanted: Wanted, by_version: Mapping[Version, list[File]]) -> Version:
    from packaging.version import InvalidVersion, Version

    if wanted.version:
        try:
            asked = Version(wanted.version)
        except InvalidVersion as error:
            raise UsageError(f"{wanted.version!r} is not a version of a Python package") from error
        if asked not in by_version:
            newest = ", ".join(str(version) for version in sorted(by_version, reverse=True)[:5])
            raise NotFound(f"{wanted.name} has no version {asked}", hint=f"the newest are: {newest or 'none'}")
        return asked
    offered = [version for version, files in by_version.items() if not all(file.is_yanked for file in files)]
    if not offered:
        raise NotFound(f"{wanted.name} has no release that is still available", hint="name a version")
    return max([version for version in offered if not version.is_prerelease] or offered)


def _version_of(name: str) -> Version | None:
    from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

    try:
        return parse_wheel_filename(name)[1] if name.endswith(".whl") else parse_sdist_filename(name)[1]
    except (InvalidSdistFilename, InvalidWheelFilename):
        return None


def _rank(name: str) -> tuple[int, int, str] | None:
    """Return how good a file serves any platform, the best with the lowest rank; None where it does not."""
    from packaging.utils import parse_wheel_filename

    if name.endswith(".whl"):
        _, _, build, tags = parse_wheel_filename(name)
        if not any(tag.abi == "none" and tag.platform == "any" for tag in tags):
            return None
        newest_build, rest = (-build[0], build[1]) if build else (0, "")
        return 0 if any(tag.interpreter == "py3" for tag in tags) else 1, newest_build, rest
    return (2 if name.endswith(".tar.gz") else 3), 0, ""
