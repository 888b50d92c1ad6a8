"""conda:[CHANNEL[/PLATFORM]::]NAME[==VERSION[=BUILD]]: the archive of one conda package, without its dependencies.

CHANNEL is a name or an address, conda-forge if it is left out. PLATFORM is one of conda's, such as linux-64; without
it packages for this machine and for any machine count. Of several that match it is the one with the highest version,
then the highest build number. The index of the channel is read by py-rattler, in its shards where there are any.
"""

from __future__ import annotations

import re
from typing import Any

from fairmile.base.coroutines import finish
from fairmile.base.digest import Checksum
from fairmile.base.errors import Integrity, MissingExtra, NotFound, Transient, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Body, Context, Remote

_CHANNEL = "conda-forge"
_PLATFORMS = r"noarch|(?:linux|osx|win|emscripten|wasi|freebsd)-\w+"
_ADDRESS = re.compile(rf"conda:(?:(\S+?)(?:/({_PLATFORMS}))?::)?([A-Za-z0-9_][\w.-]*)(?:==?([^=\s]+)(?:=(\S+))?)?")


class Wanted(NamedTuple):
    """A package of a channel; empty where any will do."""

    name: str
    channel: str = _CHANNEL
    platform: str = ""
    version: str = ""
    build: str = ""

    @property
    def spec(self) -> str:
        """What conda calls a match specification."""
        return self.name + (f"=={self.version}" if self.version else "") + (f"={self.build}" if self.build else "")


class Conda:
    """Finds the archive of a package in the index of its channel."""

    def __init__(self, context: Context) -> None:
        try:
            import rattler
            import rattler.exceptions
        except ImportError as error:
            raise MissingExtra("conda packages need py-rattler", "conda") from error
        self._rattler: Any = rattler
        self._context = context
        self.client = Client(context)

    def find(self, address: str) -> list[Remote]:
        """Return the archive that an address means, with the digest that the channel states."""
        wanted = parse_address(address)
        records = self._records(wanted)
        if not records:
            versions = sorted({record.version for record in self._records(Wanted(*wanted[:3]))}, reverse=True)
            known = ", ".join(str(version) for version in versions[:5])
            raise NotFound(
                f"no conda package {wanted.spec} in {shown_address(wanted.channel)}",
                hint=f"the newest versions are: {known}" if known else "check its name, channel and platform",
            )
        best = max(records, key=lambda each: (each.version, each.build_number, str(each.build), each.file_name))
        digests = (("sha256", best.sha256), ("md5", best.md5))
        checksums = tuple(Checksum(name, digest.hex()) for name, digest in digests if digest is not None)
        if not checksums:
            raise Integrity(f"{shown_address(wanted.channel)} states no checksum for {best.file_name}")
        return [Remote(best.url, best.file_name, best.size, checksums)]

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop`."""
        return self.client.open(remote.address, start, stop, validator=remote.validator)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()

    def _records(self, wanted: Wanted) -> list[Any]:
        rattler, environ = self._rattler, self._context.environ
        cache = self._context.credentials.home_file(environ.get("XDG_CACHE_HOME") or ".cache") / "rattler/cache"
        networking = rattler.networking
        client = rattler.Client([networking.RetryMiddleware(3), networking.AuthenticationMiddleware()])
        platforms = [wanted.platform] if wanted.platform else [str(rattler.Subdir.current()), "noarch"]

        async def ask() -> Any:
            gateway = rattler.Gateway(cache_dir=cache / "repodata", client=client)
            return await gateway.query([wanted.channel], platforms, [wanted.spec], recursive=False)

        try:
            answer = finish(ask())
        except (rattler.exceptions.InvalidMatchSpecError, rattler.exceptions.InvalidChannelError) as error:
            raise UsageError(f"{shown_address(wanted.spec)!r} does not name a conda package: {error}") from error
        except rattler.exceptions.GatewayError as error:
            reason = shown_address(" ".join(str(error).split()))
            if "could not find subdir" in reason:
                raise NotFound(
                    f"no conda channel {shown_address(wanted.channel)}: {reason}", hint="check its name or address"
                ) from error
            raise Transient(f"cannot read the conda channel {shown_address(wanted.channel)}: {reason}") from error
        return [record for records in answer for record in records]


def parse_address(address: str) -> Wanted:
    """Return the package that a conda: address means."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UsageError(
            f"{shown_address(address)!r} does not name a conda package",
            hint="expected conda:NAME==VERSION or conda:CHANNEL::NAME==VERSION=BUILD",
        )
    return Wanted(match[3], match[1] or _CHANNEL, match[2] or "", match[4] or "", match[5] or "")
