"""Every setting with its default, and the files that hold settings."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.config import Option
from fairmile.base.errors import UsageError
from fairmile.base.units import parse_duration, parse_size
from fairmile.transfer.settings import Settings

PROJECT_FILE = "fairmile.yaml"
CHOSEN_FILE = "FAIRMILE_CONFIG"  # the variable that names a settings file to read in place of the project's
_SITE_FILE = Path("/etc/fairmile/config.yaml")
_LONGEST_STALL_S = 86_400.0
_LARGEST_BUFFER_BYTES = 1 << 30
_TRANSFER = Settings()


def _path(value: Any) -> Path:
    if not isinstance(value, (str, Path)) or not str(value):
        raise UsageError(f"expected a folder, found {value!r}")
    return Path(value).expanduser()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"expected a text, found {value!r}")
    return value


def _web_address(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise UsageError(f"expected an address that begins with https://, found {value!r}")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"expected name: location pairs, found {value!r}")
    return dict(value)


def _count(value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1000:
        raise UsageError(f"expected a number from 1 to 1000, found {value!r}")
    return int(text)


def _positive_size(value: Any) -> int:
    size = parse_size(value)
    if size < 64 << 10:
        raise UsageError(f"expected at least 64 KiB, found {value!r}")
    return size


def _buffer_size(value: Any) -> int:
    size = parse_size(value)
    if size > _LARGEST_BUFFER_BYTES:
        raise UsageError(f"expected at most 1 GiB, found {value!r}")
    return size


def _seconds(value: Any) -> float:
    seconds = float(value) if isinstance(value, (int, float)) else float(parse_duration(str(value)))
    if not 0 < seconds <= _LONGEST_STALL_S:
        raise UsageError(f"expected a duration above zero and of a day at most, found {value!r}")
    return seconds


def _destinations(value: Any) -> tuple[str, ...]:
    from fairmile.notify import parse_destinations

    return parse_destinations(value)


def _pue(value: Any) -> float:
    from fairmile.meter.footprint import pue_of

    return pue_of(value)


def _table(value: Any) -> Path | None:
    return _path(value) if value else None


def _user_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's own folder; a batch job may run without HOME, then the password database knows it."""
    try:
        return Path(environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise UsageError("no folder to work in: HOME is not set", hint="set FAIRMILE_HOME or HOME") from None


def _is_ours(file: Path) -> bool:
    """Tell whether a project file is there and nobody else could have planted it."""
    return file.is_file() and file.stat().st_uid in (os.getuid(), 0)


def options(environ: Mapping[str, str]) -> dict[str, Option]:
    """Return every setting with its default and its meaning.

    A new setting is not safe: in a project file it has no effect until the user trusts that file. Only numbers and
    names that can neither start a program nor lead reads, writes or credentials elsewhere are marked as safe.
    """
    data = Path(environ.get("XDG_DATA_HOME") or _user_folder(environ) / ".local" / "share")

    def safe(default: Any, parse: Callable[[Any], Any], help: str) -> Option:
        return Option(default, parse, help, safe=True)

    return {
        "home": Option(data / "fairmile", _path, "folder that holds cards, sources and the index"),
        "catalog.base": safe("", _text, "address below which new cards get their ids; empty: urn:uuid"),
        "sources": Option({}, _mapping, "other catalogs: name: location, or name: {location, type, revision}"),
        "access.oidc": Option({}, _mapping, "where people log in to your server: {issuer, client_id, groups, …}"),
        "pools": Option({}, _mapping, "folders for data: name: folder, or name: {folder, capacity, purge, speed, …}"),
        "systems": Option({}, _mapping, "how you reach systems: name: host, or name: {host, folder, account, file, …}"),
        "notify.to": Option((), _destinations, "who to notify when long work ends: e-mail or web addresses, commands"),
        "notify.after": safe(600.0, _seconds, "notify only of work that took at least this long"),
        "flows.host_timeout": safe(259_200.0, _seconds, "how long a flow waits for a host that does not answer"),
        "footprint.region": safe("", _text, "region of your power supply, such as DE; adds cost and CO₂ to runs"),
        "footprint.pue": safe(1.0, _pue, "power usage effectiveness of the data centre"),
        "footprint.table": Option(None, _table, "your own table of regions; empty: the built-in table"),
        "transfer.connections": safe(_TRANSFER.connections, _count, "connections per source of a large file"),
        "transfer.segment": safe(_TRANSFER.segment_bytes, _positive_size, "largest byte range per request"),
        "transfer.stall": safe(_TRANSFER.stall_s, _seconds, "drop a connection that delivers nothing for this long"),
        "transfer.unsized": Option(
            _TRANSFER.unsized_bytes, _positive_size, "largest file to accept if neither card nor source states its size"
        ),
        "transfer.retries": safe(_TRANSFER.retries, _count, "consecutive failures before a source is given up"),
        "transfer.socket_buffer": safe(0, _buffer_size, "receive buffer of a socket; 0: chosen by the system"),
        "transfer.limits": safe({}, _mapping, "bandwidth by host, or * for all: `20 MB/s 08:00-18:00, 200 MB/s`"),
        "transfer.fetchers": Option({}, _mapping, "programs that download: name: {command: [argv…], schemes: […]}"),
        **{
            f"hubs.{name}": Option(address, _web_address, f"address of the API of {name}")
            for name, address in _TRANSFER.hubs.items()
        },
        "transfer.s3_endpoint": Option("", _text, "address of an S3 service other than Amazon's"),
        "transfer.globus_collection": Option("", _text, "Globus collection of this machine, which receives transfers"),
        "transfer.globus_root": Option("/", _text, "folder of this machine at the root of that collection"),
    }


def user_file(environ: Mapping[str, str]) -> Path:
    settings = Path(environ.get("XDG_CONFIG_HOME") or _user_folder(environ) / ".config").expanduser()
    return settings / "fairmile" / "config.yaml"


def find_project(folder: Path) -> Path | None:
    """Return the nearest project file upwards from a folder; one that another user owns is passed over."""
    return next((f for each in (folder, *folder.parents) if _is_ours(f := each / PROJECT_FILE)), None)


def project_file(path: str | Path) -> Path:
    """Return the project file that a path means, itself or its folder."""
    file = Path(path).absolute()
    file = file / PROJECT_FILE if file.is_dir() else file
    if file.name != PROJECT_FILE:
        raise UsageError(f"{path}: only a file named {PROJECT_FILE} is read in a project's folder")
    return file


def settings_files(environ: Mapping[str, str], folder: Path) -> tuple[list[Path], Path | None]:
    """Return the settings files that the user or the site chose, and the project file that merely lies there."""
    files = [_SITE_FILE, user_file(environ)]
    if not environ.get(CHOSEN_FILE):
        return files, find_project(folder)
    chosen = Path(os.path.abspath(folder / Path(environ[CHOSEN_FILE]).expanduser()))
    if not chosen.is_file():
        raise UsageError(f"{CHOSEN_FILE}: {chosen} is not a file", hint=f"name a settings file, or unset {CHOSEN_FILE}")
    return [*files, chosen], None


def ignored_text(file: str, keys: Sequence[str]) -> str:
    """Return the sentence about settings that need trust."""
    verb = "has" if len(keys) == 1 else "have"
    return f"{file}: {', '.join(keys)} {verb} no effect until you trust this file: read it, then run `fairmile trust`"
