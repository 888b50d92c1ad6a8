"""Who asks, and what they may do: the one place that decides.

On the loopback interface the user who started the server has every right, and nobody else of the machine gets in: the
kernel says to whom the other end of a connection belongs. Everywhere else people need accounts and a connection that is
encrypted.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Protocol

from fairmile.access.rules import RIGHTS, Right, Viewer
from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.web.errors import Refused

EVERY_RIGHT: frozenset[Right] = frozenset(RIGHTS)
Scope = MutableMapping[str, Any]  # what ASGI says of a request: its path, headers, client
_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_REMEMBERED_S = 2.0  # shorter than a port stays reserved after a connection has ended
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


class OwnerAccess:
    """On loopback: the user who started the server, with every right."""

    def __init__(self, uid: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._uids = (os.getuid() if uid is None else uid, 0)
        self._clock = clock
        self._owner = Identity("owner", EVERY_RIGHT)
        self._known_until: dict[str, float] = {}

    def identify(self, scope: Scope) -> Identity | None:
        client = scope.get("client")
        if client is None:  # a Unix socket: whoever may open its file
            return self._owner
        now, peer = self._clock(), _as_kernel_writes(*client)
        if self._known_until.get(peer, 0.0) < now:
            users = users_of_peers(scope["server"], peer)
            if users is not None and users.get(peer, NOBODY) not in self._uids:
                raise Refused(403, "this server is for the user who started it", hint="start your own: fairmile serve")
            # The table has all connections: the others need not be looked up one by one.
            allowed = (each for each, uid in (users or {}).items() if uid in self._uids)
            self._known_until = dict.fromkeys((peer, *allowed), now + _REMEMBERED_S)
        return self._owner


def users_of_peers(server: tuple[str, int], peer: str) -> dict[str, int] | None:
    """Return who holds the other ends of the connections to a server; None where the system has no such table.

    Both ends of a connection must fit: somebody else may use the same port to reach another server. Ends are written as
    the kernel does. Of a connection that is being closed the kernel no longer knows the user, and says 0, the
    superuser's: whoever sends a request and hangs up at once is nobody. The table is read again where `peer` is not in
    it.
    """
    users: dict[str, int] = {}
    ours = _as_kernel_writes(*server)
    for _ in range(_READINGS):
        try:
            table = _TABLES[socket.AF_INET6 if ":" in server[0] else socket.AF_INET].read_text("ascii")
        except OSError:
            return None
        lines = (line.split() for line in table.splitlines() if ours in line)
        users = {line[1]: int(line[7]) if line[3] == _ESTABLISHED else NOBODY for line in lines if line[2] == ours}
        if peer in users:
            break
    return users


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
