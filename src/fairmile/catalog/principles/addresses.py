"""Who can use an address, judged by its text alone: its protocol, and the network its host is in."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote, urlsplit

from fairmile.base.lazy import lazy_pattern
from fairmile.catalog.identity import is_iri

# Anyone can implement these; what stands in AUTHENTICATED can also ask who you are.
_WITH_HOST = frozenset(
    {"https", "http", "ftp", "ftps", "sftp", "scp", "ssh", "rsync", "rsync+ssh", "git"}
    | {"git+https", "git+http", "git+ssh", "list+https", "list+http", "s3+https"}
)
_REGISTRIES = frozenset({"oci", "oras", "docker"})
OPEN_SCHEMES = _WITH_HOST | _REGISTRIES | {"s3", "gs", "doi", "hdl", "ark", "swh", "ipfs", "data"}
AUTHENTICATED = frozenset(
    {
        "https",
        "ftps",
        "sftp",
        "scp",
        "ssh",
        "rsync",
        "rsync+ssh",
        "s3",
        "gs",
        "git+https",
        "git+ssh",
        "list+https",
        "s3+https",
    }
    | {"oci", "oras", "docker", "globus"}
)
_LOCAL_PATHS = ("file", "git+file", "list+file")
_SCP = lazy_pattern(r"^(?:[\w.-]+@)([\w.-]+|\[[0-9A-Fa-f:.]+\]):\S+$")
# Old notations of IPv4 that every resolver still takes: 127.1, 2130706433, 0x7f000001.
_IPV4_PARTS = lazy_pattern(r"(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+)){0,3}")
# RFC 6761, RFC 6762 (with its appendix G) and the names that ICANN keeps for private use.
_PRIVATE_NAMES = (
    *("localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home", "lan"),
    *("home.arpa", "test", "invalid"),
)


def scheme_of(address: str) -> str:
    """Return the scheme of the address in lower case; a relative path has none."""
    if is_iri(address):
        return address.partition(":")[0].lower()
    return "ssh" if _SCP.match(address) else ""


def unusable(address: str) -> str:
    """Return why others cannot use the address, or an empty text when they can.

    They can use an open protocol to a host of the public internet, and a path beside the card in its catalog.
    """
    scheme = scheme_of(address)
    if not scheme and "://" in address:
        return "not an open protocol"
    barred = out_of_reach(address)
    if barred or not scheme or scheme in OPEN_SCHEMES or scheme == "globus":
        return barred
    return "not an open protocol"


def out_of_reach(address: str) -> str:
    """Return why the address leads nowhere for others, such as `loopback`; empty when it may lead somewhere."""
    scheme = scheme_of(address)
    if scheme in _LOCAL_PATHS or (not scheme and address.startswith(("/", "~", "\\"))):
        return "a path on one machine"
    host = _host(address)
    if host is None:
        return ""
    if not host:
        return "no host"
    number = _ip(host)
    if number is not None:
        return _private_ip(number)
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return "loopback"
    if any(name == each or name.endswith(f".{each}") for each in _PRIVATE_NAMES):
        return "a name of a private network"
    return "" if "." in name else "a host name without a domain"


def _host(address: str) -> str | None:
    """Return the host that the address names; None for an address that names none."""
    scheme = scheme_of(address)
    scp = _SCP.match(address) if not is_iri(address) else None
    if scp:
        return scp[1].strip("[]")
    if scheme not in _WITH_HOST | _REGISTRIES:
        return None
    try:
        parts = urlsplit(address)
        host = unquote(parts.hostname or "")
    except ValueError:
        return ""
    if scheme in _REGISTRIES:
        first = parts.netloc.rpartition("@")[2]
        # Docker's own rule: docker://ubuntu:24.04 and docker://library/ubuntu name images, not hosts.
        if not parts.path.strip("/") or not (first == "localhost" or "." in first or ":" in first):
            return None
    return host


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        pass
    if not _IPV4_PARTS.fullmatch(host.rstrip(".").lower()):
        return None
    try:
        return IPv4Address(socket.inet_aton(host.rstrip(".")))
    except OSError:
        return None


def _private_ip(number: IPv4Address | IPv6Address) -> str:
    inner = number.ipv4_mapped if isinstance(number, IPv6Address) else None
    number = inner or number
    if number.is_loopback or number.is_unspecified:
        return "loopback"
    if number.is_link_local:
        return "link-local"
    if number.is_multicast or number.is_reserved or not number.is_global:
        return "a private network"
    return ""
