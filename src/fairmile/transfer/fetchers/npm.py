"""npm:[@SCOPE/]NAME[@VERSION]: the archive of an npm package, from the registry that npm's own settings name.

Without a version it is the one that the package tags `latest`; any other tag can stand in the place of a version. The
settings are those of the environment, the user and the machine; a project's own .npmrc is not read, since a fetch
belongs to no project.
"""

from __future__ import annotations

import base64
import binascii
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from fairmile.base.digest import Checksum, parse_checksum
from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import did_you_mean
from fairmile.transfer.credentials import Credentials, shown_address, without_login
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Body, Context, Remote

_REGISTRY = "https://registry.npmjs.org/"  # what npm takes without any setting
_WORD = r"[A-Za-z0-9~-][A-Za-z0-9._~-]*"
_ADDRESS = re.compile(rf"npm:((?:@({_WORD})/)?{_WORD})(?:@([A-Za-z0-9][A-Za-z0-9.+_-]*))?", re.IGNORECASE)
_VARIABLE = re.compile(r"(?<!\\)\$\{([^}?-]+)(\?|-[^}]*)?\}")
_ACCEPT = "application/vnd.npm.install-v1+json, application/json;q=0.8"


class Npm:
    """Finds the archive of a package."""

    def __init__(self, context: Context) -> None:
        self.client = Client(context)
        self._context = context

    def find(self, address: str) -> list[Remote]:
        """Return the archive that an address means, with the digests that the registry states."""
        wanted = parse_address(address)
        settings = read_settings(self._context.environ, self._context.credentials)
        registry = registry_of(settings, wanted.scope)
        url = f"{registry}{quote(wanted.name, safe='@')}"
        try:
            document = self.client.get_json(url, {"Accept": _ACCEPT, **authorization(settings, url)})
        except NotFound as error:
            raise NotFound(
                f"no npm package {wanted.name!r} at {shown_address(registry)}",
                hint="check its name; a private package needs a token in ~/.npmrc",
            ) from error
        tarball, checksums = choose(wanted, document, registry)
        own = authorization(settings, tarball)
        answer = self.client.head(tarball, own)
        name = PurePosixPath(unquote(urlsplit(tarball).path)).name
        return [Remote(tarball, name, answer.size_bytes, checksums, answer.validator, headers=own)]

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop`."""
        return self.client.open(remote.address, start, stop, headers=remote.headers, validator=remote.validator)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()


class Wanted(NamedTuple):
    """A package with its scope, and the version or tag that is meant."""

    name: str
    scope: str = ""
    version: str = "latest"


def parse_address(address: str) -> Wanted:
    """Return what an npm: address means."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UsageError(
            f"{shown_address(address)!r} does not name an npm package",
            hint="expected npm:NAME@VERSION or npm:@SCOPE/NAME@VERSION; use a version or a tag, not a range",
        )
    return Wanted(match[1], match[2] or "", match[3] or "latest")


def choose(wanted: Wanted, document: Any, registry: str) -> tuple[str, tuple[Checksum, ...]]:
    """Return the address and the checksums of the archive that a package's document names for a version or tag."""
    versions = document.get("versions") if isinstance(document, dict) else None
    if not isinstance(versions, dict):
        raise Integrity(f"{shown_address(registry)} does not describe the versions of {wanted.name}")
    tags = document.get("dist-tags")
    tags = tags if isinstance(tags, dict) else {}
    version = str(tags.get(wanted.version, wanted.version))
    about = versions.get(version)
    if about is None:
        near = did_you_mean(version, [*versions, *tags])
        raise NotFound(
            f"{wanted.name} has no version {version}" + (f"; {near}" if near else ""),
            hint=f"its newest is {tags.get('latest', 'not tagged')}",
        )
    dist = about.get("dist") if isinstance(about, dict) else None
    tarball = dist.get("tarball") if isinstance(dist, dict) else None
    if not isinstance(dist, dict) or not isinstance(tarball, str) or urlsplit(tarball).scheme not in ("http", "https"):
        raise Integrity(f"{shown_address(registry)} names no archive for {wanted.name} {version}")
    stated = [part.partition("?")[0] for part in str(dist.get("integrity") or "").split()]
    checksums = {sum.algorithm: sum for part in stated if (sum := parse_checksum(part)) is not None}
    legacy = parse_checksum(str(dist.get("shasum") or ""), "sha1")
    if legacy is not None:
        checksums.setdefault("sha1", legacy)
    if not checksums:
        raise Integrity(f"{shown_address(registry)} states no checksum that is known for {wanted.name} {version}")
    return _at_registry(tarball, registry), tuple(checksums.values())


def _at_registry(tarball: str, registry: str) -> str:
    """Return an archive's address at the registry in use: a mirror may still name the public one, as npm knows."""
    parts, own = urlsplit(tarball), urlsplit(registry)
    if parts.hostname != urlsplit(_REGISTRY).hostname or own.hostname == parts.hostname:
        return tarball
    return urlunsplit((own.scheme, own.netloc, own.path.rstrip("/") + parts.path, parts.query, ""))


# npm's settings


def registry_of(settings: Mapping[str, str], scope: str) -> str:
    """Return the registry for a scope, with a slash at its end."""
    given = (scope and settings.get(f"@{scope.lower()}:registry")) or settings.get("registry") or _REGISTRY
    bare = without_login(given)[0]
    if urlsplit(bare).scheme not in ("http", "https"):
        raise UsageError(f"{shown_address(given)!r} is not a registry", hint="see `npm config get registry`")
    return bare.rstrip("/") + "/"


def authorization(settings: Mapping[str, str], url: str) -> dict[str, str]:
    """Return the header with what npm's settings hold for exactly this host, and the path on it."""
    parts = urlsplit(url)
    path = parts.path
    while path:
        path = path.rpartition("/")[0]
        place = f"//{parts.netloc.lower()}{path}/:"
        token, basic = settings.get(f"{place}_authToken"), settings.get(f"{place}_auth")
        user, password = settings.get(f"{place}username"), settings.get(f"{place}_password")
        if token:
            return {"Authorization": f"Bearer {token}"}
        if basic:
            return {"Authorization": f"Basic {basic}"}
        if user and password:
            try:
                plain = base64.b64decode(password, validate=True)
            except binascii.Error:
                raise UsageError(f"{place}_password in .npmrc is not base64", hint="run `npm login` again") from None
            return {"Authorization": "Basic " + base64.b64encode(user.encode() + b":" + plain).decode()}
    return {}


def read_settings(environ: Mapping[str, str], credentials: Credentials) -> dict[str, str]:
    """Return npm's settings: those of the machine, then the user's, then the environment's."""
    given: dict[str, str] = {}
    for name, value in environ.items():
        if name.lower().startswith("npm_config_") and value:
            key = name[len("npm_config_") :]
            given[_normal(key if key.startswith("//") else key.lower().replace("_", "-"))] = value
    prefix = given.get("prefix") or environ.get("PREFIX")
    node = shutil.which("node", path=environ.get("PATH", ""))
    if not prefix and node:
        prefix = str(Path(node).resolve().parent.parent)
    machine = given.get("globalconfig") or (f"{prefix}/etc/npmrc" if prefix else "")
    user = given.get("userconfig") or str(credentials.home_file(".npmrc"))
    settings: dict[str, str] = {}
    for path in ("/etc/npmrc", machine, user):
        if path:
            settings.update(_settings_file(Path(path), environ))
    return settings | given


def _settings_file(path: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # absent, or not for us, as npm sees it
        return
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.lstrip().startswith((";", "#")):
            value = value.strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            yield _normal(_expanded(key.strip(), environ)), _expanded(value, environ)


def _normal(key: str) -> str:
    """Return a key as it is looked up: hosts and scopes count without regard to their case, the rest as it is."""
    place, colon, rest = key.rpartition(":")
    return f"{place.lower()}{colon}{rest}" if colon else key


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    """Return a text with ${NAME}, ${NAME-default} and ${NAME?} filled in; what is unknown stays, as npm leaves it."""

    def value(match: re.Match[str]) -> str:
        name, rule = match[1], match[2]
        if environ.get(name):
            return environ[name]
        return match[0] if rule is None else rule[1:]

    return _VARIABLE.sub(value, text)
