"""docker://[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST][?platform=OS/ARCHITECTURE]: a container image of a registry.

The image comes as a folder in the OCI image layout, which Podman, Apptainer, Skopeo and Docker read (`oci:FOLDER`).
Every part is a file named by its digest. Of an image for several platforms it is the one for this machine, unless the
address names another. Without a host the registry is Docker Hub; a registry on this machine is asked without TLS.
Logins are those that `docker login` and `podman login` keep, also in credential helpers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import platform
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from fairmile.base.digest import Checksum, parse_checksum
from fairmile.base.errors import Integrity, NotFound, SystemFailure, Unsupported, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.credentials import Login, shown_address
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Body, Context, Remote

_HUB = "registry-1.docker.io"
_HUB_LOGIN = "https://index.docker.io/v1/"  # the name under which programs keep the login of Docker Hub
_DIGEST = r"sha256:[0-9a-f]{64}"
_NAME = r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
_ADDRESS = re.compile(
    rf"docker://(?:((?:[^/@?#\s]*[.:][^/@?#\s]*)|localhost)/)?({_NAME})(?::([\w][\w.-]{{0,127}}))?(?:@({_DIGEST}))?"
    r"(?:\?([^#\s]*))?(?:#(\S+))?"
)
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_HELPER = re.compile(r"[\w.-]+")
_HELPER_S = 30
_TOKEN_S = 60  # how long a token holds if the registry does not say
_MARGIN_S = 10


class Image(NamedTuple):
    """An image as an address names it; `reference` is a digest or a tag."""

    host: str
    name: str
    reference: str
    platform: str = ""
    part: str = ""  # of the layout, in addresses of single files

    @property
    def base(self) -> str:
        """The address of the image's interface at its registry."""
        host = urlsplit(f"//{self.host}").hostname or ""
        is_here = host in ("localhost", "::1") or host.startswith("127.")
        return f"{'http' if is_here else 'https'}://{self.host}/v2/{self.name}"

    @property
    def shown(self) -> str:
        return f"{self.host}/{self.name}{'@' if self.reference.startswith('sha256:') else ':'}{self.reference}"


class Docker:
    """Finds the parts of a container image and reads byte ranges of them."""

    def __init__(self, context: Context) -> None:
        self.client = Client(context)
        self._context = context
        self._lock = threading.Lock()
        self._headers: dict[str, tuple[Mapping[str, str], float]] = {}  # by image, with the time until when they hold
        self._documents: dict[str, bytes] = {}  # what was read or made while finding, by address

    def find(self, address: str) -> list[Remote]:
        """Return the files of the image's layout, each with the digest that the registry states."""
        image = parse_address(address)
        data, kind = self._manifest(image, image.reference)
        manifest = _parse(data, image)
        if kind in _INDEXES or "manifests" in manifest:
            digest = choose_platform(manifest, image.platform or _platform(), image)
            data, kind = self._manifest(image, digest)
            manifest = _parse(data, image)
        if "layers" not in manifest or "config" not in manifest:
            raise Unsupported(
                f"{image.shown} has a description of the kind {kind or 'unknown'}, not one of an image",
                hint="images of Docker before 1.10 are not read; push the image again with a newer program",
            )
        kind = str(manifest.get("mediaType") or kind or _MANIFESTS[0])
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        index = {"mediaType": kind, "digest": digest, "size": len(data)}
        files = {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}\n',
            "index.json": json.dumps({"schemaVersion": 2, "mediaType": _INDEXES[0], "manifests": [index]}).encode(),
            f"blobs/sha256/{digest[7:]}": data,
        }
        fixed = f"docker://{image.host}/{image.name}@{digest}"
        return [*self._written(fixed, files), *_blobs(fixed, [manifest["config"], *manifest["layers"]], image)]

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop`."""
        image = parse_address(remote.address)
        if not image.part.startswith("sha256:"):
            if remote.address not in self._documents:
                self.find(remote.address.partition("#")[0])
            return _Bytes(self._documents[remote.address], start)
        url = f"{image.base}/blobs/{image.part}"
        return self.client.open(url, start, stop, headers=self._authorization(image), validator=remote.validator)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()

    def _written(self, fixed: str, files: Mapping[str, bytes]) -> Iterator[Remote]:
        for path, data in files.items():
            checksum = Checksum("sha256", hashlib.sha256(data).hexdigest())
            self._documents[f"{fixed}#{path}"] = data
            yield Remote(f"{fixed}#{path}", path, len(data), (checksum,))

    def _manifest(self, image: Image, reference: str) -> tuple[bytes, str]:
        """Return a description of an image as the registry sends it, and its media type."""
        url = f"{image.base}/manifests/{quote(reference, safe=':')}"
        headers = {"Accept": ", ".join((*_INDEXES, *_MANIFESTS)), **self._authorization(image)}
        try:
            data, answer = self.client.get(url, headers)
        except NotFound as error:
            raise NotFound(
                f"no image {image._replace(reference=reference).shown}", hint="check its name and tag"
            ) from error
        if reference.startswith("sha256:") and hashlib.sha256(data).hexdigest() != reference[7:]:
            raise Integrity(f"the registry {image.host} sends another description of {image.name} than {reference}")
        return data, answer.head.headers.get("content-type", "").partition(";")[0].strip()

    def _authorization(self, image: Image) -> Mapping[str, str]:
        """Return the header that the registry asks for, kept until shortly before it expires."""
        with self._lock:
            headers, until = self._headers.get(image.base, ({}, 0.0))
            if time.monotonic() >= until:
                headers, for_s = self._log_in(image)
                self._headers[image.base] = (headers, time.monotonic() + for_s)
            return headers

    def _log_in(self, image: Image) -> tuple[Mapping[str, str], float]:
        head, _ = self.client.ask("GET", image.base.removesuffix(image.name))
        challenge = head.headers.get("www-authenticate", "")
        if head.status != 401:
            return {}, float("inf")
        login = self._login(image.host)
        basic = {} if login is None else {"Authorization": _basic(login)}
        if not challenge.lower().startswith("bearer"):
            return basic, float("inf")
        stated = dict(_CHALLENGE.findall(challenge))
        realm = stated.get("realm", "")
        if urlsplit(realm).scheme not in ("https", "http") or (
            realm.startswith("http:") and not image.base.startswith("http:")
        ):
            raise SystemFailure(f"the registry {image.host} names no place for logins that can be used")
        query = {"service": stated.get("service", ""), "scope": f"repository:{image.name}:pull"}
        answer = self.client.get_json(f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}", basic)
        token = (answer.get("token") or answer.get("access_token")) if isinstance(answer, dict) else None
        if not isinstance(token, str):
            raise SystemFailure(f"{shown_address(realm)} gives no token for {image.host}")
        seconds = answer.get("expires_in")
        holds_s = seconds if isinstance(seconds, int) and seconds > 0 else _TOKEN_S
        return {"Authorization": f"Bearer {token}"}, max(holds_s - _MARGIN_S, 1)

    # Logins

    def _login(self, host: str) -> Login | None:
        """Return what `docker login` or `podman login` keeps for a registry."""
        names = (_HUB_LOGIN, "docker.io", "index.docker.io") if host == _HUB else (host, f"https://{host}")
        for settings in self._login_files():
            helpers = settings.get("credHelpers") or {}
            for name in names:
                if helper := helpers.get(name) or settings.get("credsStore"):
                    login = self._ask_helper(str(helper), name)
                else:
                    login = _decode((settings.get("auths") or {}).get(name))
                if login is not None:
                    return login
        return None

    def _login_files(self) -> Iterator[Mapping[str, Any]]:
        environ, home = self._context.environ, self._context.credentials.home_file
        runtime = environ.get("XDG_RUNTIME_DIR")
        paths = [
            Path(environ["REGISTRY_AUTH_FILE"]) if environ.get("REGISTRY_AUTH_FILE") else None,
            Path(runtime) / "containers/auth.json" if runtime else None,
            home(environ.get("XDG_CONFIG_HOME") or ".config") / "containers/auth.json",
            home(environ.get("DOCKER_CONFIG") or ".docker") / "config.json",
        ]
        for path in paths:
            try:
                settings = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
            except OSError:
                continue
            except ValueError as error:
                raise UsageError(f"{path} is not JSON", hint="log in again, or remove it") from error
            if isinstance(settings, dict):
                yield settings

    def _ask_helper(self, helper: str, name: str) -> Login | None:
        if not _HELPER.fullmatch(helper):
            raise UsageError(f"{helper!r} is not the name of a credential helper")
        result = self._context.runner.run(
            [f"docker-credential-{helper}", "get"], input=name, timeout_s=_HELPER_S, check=False
        )
        if result.exit_code != 0:  # it has none for this registry
            return None
        try:
            answer = json.loads(result.stdout)
        except ValueError as error:
            raise SystemFailure(f"docker-credential-{helper} does not answer with JSON") from error
        return Login(str(answer.get("Username", "")), str(answer.get("Secret", "")))


class _Bytes:
    """A document in memory, read as a stream."""

    is_whole = True
    validator = ""

    def __init__(self, data: bytes, start: int) -> None:
        self.start = min(start, len(data))
        self.total_bytes: int | None = len(data)
        self._data = data
        self._position = self.start

    def readinto(self, buffer: memoryview) -> int:
        part = self._data[self._position : self._position + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def interrupt(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Nothing is open."""


def parse_address(address: str) -> Image:
    """Return the image that a docker:// address means."""
    match = _ADDRESS.fullmatch(address)
    query = parse_qs(match[5] or "", keep_blank_values=True) if match else {}
    if match is None or set(query) - {"platform"}:
        raise UsageError(
            f"{shown_address(address)!r} does not name a container image",
            hint="expected docker://HOST/NAME:TAG or docker://HOST/NAME@sha256:DIGEST; the host may be left out "
            "for Docker Hub, and ?platform=linux/arm64 chooses a platform",
        )
    host, name = match[1] or _HUB, match[2]
    if host in ("docker.io", "index.docker.io"):
        host = _HUB
    if host == _HUB and "/" not in name:
        name = f"library/{name}"
    return Image(host, name, match[4] or match[3] or "latest", query.get("platform", [""])[0], match[6] or "")


def choose_platform(index: Mapping[str, Any], wanted: str, image: Image) -> str:
    """Return the digest of the image for a platform, OS/ARCHITECTURE[/VARIANT]."""
    offered: dict[str, str] = {}
    for entry in index.get("manifests") or []:
        about = entry.get("platform") or {}
        names = [str(about[key]) for key in ("os", "architecture", "variant") if about.get(key)]
        for length in (2, 3):
            if len(names) >= length and "unknown" not in names:
                offered.setdefault("/".join(names[:length]), str(entry.get("digest", "")))
    digest = offered.get(wanted)
    if digest is None:
        raise NotFound(
            f"{image.shown} has no image for {wanted}",
            hint=f"add ?platform=… for one of: {', '.join(sorted(offered)) or 'none'}",
        )
    if not re.fullmatch(_DIGEST, digest):
        raise Integrity(f"{image.shown} names {digest!r} for {wanted}, which is not a sha256 digest")
    return digest


def _platform() -> str:
    machine = platform.machine()
    return f"linux/{_ARCHITECTURES.get(machine, machine)}"


def _parse(data: bytes, image: Image) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise Integrity(f"the registry {image.host} does not describe {image.shown} in JSON") from error
    return document if isinstance(document, dict) else {}


def _blobs(fixed: str, entries: Iterable[Any], image: Image) -> Iterator[Remote]:
    seen = set()
    for entry in entries:
        digest, size = (entry.get("digest"), entry.get("size")) if isinstance(entry, dict) else (None, None)
        checksum = parse_checksum(str(digest))
        if checksum is None or not re.fullmatch(_DIGEST, str(digest)) or not isinstance(size, int) or size < 0:
            raise Integrity(f"{image.shown} has a part without a sha256 digest and a size")
        if digest not in seen:  # an empty layer may occur several times
            seen.add(digest)
            yield Remote(f"{fixed}#{digest}", f"blobs/sha256/{checksum.hex}", size, (checksum,))


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _decode(entry: Any) -> Login | None:
    """Return the login in an entry of `auths`."""
    if not isinstance(entry, dict) or not entry.get("auth"):
        return None
    try:
        user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise UsageError("the stored login of a registry is not base64", hint="run `docker login` again") from None
    return Login(user, password)
