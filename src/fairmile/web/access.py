"""Who asks, and what they may do: the one place that decides.

On the loopback interface the user who started the server has every right, and nobody else of the machine gets in: the
kernel says to whom the other end of a connection belongs. Everywhere else people need accounts and a connection that is
encrypted.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Protocol

from fairmile.access.rules import RIGHTS, Right, Viewer
from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.web.errors import Refused

EVERY_RIGHT: frozenset[Right] = frozenset(RIGHTS)
Scope = MutableMapping[str, Any]  # what ASGI says of a request: its path, headers, client
_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_ESTABLISHED = "01"
_READINGS = 5  # the kernel hands its table out in parts: a line is missing in one while other connections come and go
NOBODY = -1


@dataclass(frozen=True)
class Identity:
    """Somebody who asks: a name, rights, and the groups whose assets they may see; a visitor has no account."""

    name: str
    rights: frozenset[Right]
    groups: frozenset[str] = frozenset()
    is_visitor: bool = False
    assets: tuple[str, ...] = ()  # where a token is for the files of these alone
    by: str = ""  # how they proved who they are

    @property
    def has_account(self) -> bool:
        return bool(self.by)

    @property
    def viewer(self) -> Viewer:
        """The same person for the rules of access."""
        return Viewer("" if self.is_visitor else self.name, self.groups, "admin" in self.rights)

    def may(self, right: Right) -> bool:
        return right in self.rights

    def require(self, right: Right) -> None:
        """Refuse who lacks a right."""
        if right not in self.rights and self.is_visitor:
            raise Refused(401, "log in first", hint="use your account in a browser, or a token in a program")
        if right not in self.rights:
            raise Refused(403, f"{self.name} has no right to {right}", hint="ask the owner of this server for it")


STRANGER = Identity("visitor", frozenset(), is_visitor=True)


class Access(Protocol):
    """Tells who sent a request. It is asked for every one of them, so it must not wait for anything."""

    def identify(self, scope: Scope) -> Identity | None:
        """Return who asks; None where they must log in first; a `Refused` is raised for whom nothing is served."""
        ...


class Peer(tuple[str, int]):
    """The other end of one connection, and whether it was found to be the owner's.

    That is remembered with the connection and not by its port, which somebody else can have a moment later.
    """

    is_owner = False


class OwnerAccess:
    """On loopback: the user who started the server, with every right."""

    def __init__(self, uid: int | None = None) -> None:
        self._uids = (os.getuid() if uid is None else uid, 0)
        self._owner = Identity("owner", EVERY_RIGHT)

    def identify(self, scope: Scope) -> Identity | None:
        client = scope.get("client")
        if client is None or (isinstance(client, Peer) and client.is_owner):  # None: whoever may open a Unix socket
            return self._owner
        uid = uid_of_peer(client, scope["server"])
        if uid is not None and uid not in self._uids:
            raise Refused(403, "this server is for the user who started it", hint="start your own: fairmile serve")
        if isinstance(client, Peer):
            client.is_owner = True
        return self._owner


def uid_of_peer(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user who holds the other end of a connection; None where the system has no table of them.

    Both ends must fit: somebody else may use the same port to reach another server. Of a connection that is being
    closed the kernel no longer knows the user, and says 0, the superuser's: whoever sends a request and hangs up at
    once is nobody.
    """
    ends = f" {_as_kernel_writes(*client)} {_as_kernel_writes(*server)} "
    for _ in range(_READINGS):
        try:
            table = _TABLES[socket.AF_INET6 if ":" in server[0] else socket.AF_INET].read_text("ascii")
        except OSError:
            return None
        at = table.find(ends)
        if at >= 0:
            fields = table[at : table.find("\n", at)].split()
            return int(fields[6]) if fields[2] == _ESTABLISHED else NOBODY
    return NOBODY


def _as_kernel_writes(address: str, port: int) -> str:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    words = (packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
    return f"{b''.join(words).hex().upper()}:{port:04X}"


def is_loopback(host: str) -> bool:
    """Tell whether only processes of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def needs_accounts(host: str, *, is_encrypted: bool, has_accounts: bool, wants_accounts: bool = False) -> bool:
    """Tell whether people must log in; refuse a server that others reach without encryption or accounts."""
    if is_loopback(host) and not wants_accounts:
        return False
    why = "accounts are used" if is_loopback(host) else f"{host} can be reached from other machines"
    if not is_encrypted:
        raise UsageError(
            f"{why}, so the connection must be encrypted",
            hint="pass --cert and --key, or --behind-proxy ADDRESS where a proxy does it; or use the loopback address",
        )
    if not has_accounts:
        raise UsageError(
            f"{why}, and this server has no accounts",
            hint="add one with `fairmile access user add NAME`, or forward a port with ssh -L",
        )
    return True
