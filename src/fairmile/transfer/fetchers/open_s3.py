"""s3+https://HOST/BUCKET/KEY: open data of an S3 service other than Amazon's, read without credentials."""

from __future__ import annotations

import threading
from dataclasses import replace

from fairmile.base.errors import UsageError
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers.s3 import S3
from fairmile.transfer.remote import Body, Context, Remote

_PREFIX = "s3+"


class OpenS3:
    """Finds and reads objects of any service. An address can name any host, so none is shown the user's keys."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._stores: dict[str, S3] = {}
        self._lock = threading.Lock()

    def find(self, address: str) -> list[Remote]:
        """Return the object with exactly this key, else all objects below it as a folder."""
        endpoint, inner = split_address(address)
        return [
            replace(remote, address=f"{_PREFIX}{endpoint}/{remote.address.removeprefix('s3://')}")
            for remote in self._store(endpoint).find(inner)
        ]

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop`."""
        endpoint, inner = split_address(remote.address)
        return self._store(endpoint).open(replace(remote, address=inner), start, stop)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        for store in self._stores.values():
            store.close()

    def _store(self, endpoint: str) -> S3:
        with self._lock:
            if endpoint not in self._stores:
                self._stores[endpoint] = S3(self._context, open_endpoint=endpoint)
            return self._stores[endpoint]


def split_address(address: str) -> tuple[str, str]:
    """Return the address of the service, and that of the object there."""
    scheme, _, rest = address.partition("://")
    host, _, place = rest.partition("/")
    if not scheme.lower().startswith(_PREFIX) or not host or not place:
        hint = "expected s3+https://HOST/BUCKET/KEY"
        raise UsageError(f"{shown_address(address)!r} does not name an S3 object", hint=hint)
    return f"{scheme.lower().removeprefix(_PREFIX)}://{host}", f"s3://{place}"
