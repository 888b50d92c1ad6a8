"""What this machine is, under the names that cloudmesh's tables use."""

from __future__ import annotations

import getpass
import os
import platform
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fairmile.base.units import format_size

_MEMORY = {
    "total": "MemTotal",
    "available": "MemAvailable",
    "free": "MemFree",
    "active": "Active",
    "inactive": "Inactive",
}


def system_attributes(*, node: str | None = None, user: str | None = None) -> dict[str, Any]:
    """Return processor, memory, system and Python of this machine; `node` and `user` stand in for the real names."""
    uname = platform.uname()
    attributes: dict[str, Any] = {
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "cpu_threads": os.cpu_count(),
        "cpu_cores": _cores() or os.cpu_count(),
        "uname.system": uname.system,
        "uname.node": node or uname.node,
        "uname.release": uname.release,
        "uname.version": uname.version,
        "uname.machine": uname.machine,
        "uname.processor": uname.processor,
        "sys.platform": sys.platform,
        "python": " ".join(sys.version.split()),
        "python.version": platform.python_version(),
        "python.pip": _pip(),
        "user": user or _user(),
        "platform.version": uname.version,
        **_memory(),
        **_release(),
    }
    attributes["date"] = str(datetime.now())
    return attributes


def _read(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _cpu() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _cores() -> int:
    cores = set()
    socket = ""
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "physical id":
            socket = value.strip()
        elif name.strip() == "core id":
            cores.add((socket, value.strip()))
    return len(cores)


def _pip() -> str:
    try:
        return version("pip")
    except PackageNotFoundError:
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        return str(os.getuid())


def _memory() -> dict[str, str]:
    sizes = {}
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdigit():
            sizes[name] = int(number[0]) * 1024
    table = {f"mem.{name}": format_size(sizes[key]) for name, key in _MEMORY.items() if key in sizes}
    if sizes.get("MemTotal") and "MemAvailable" in sizes:
        used = sizes["MemTotal"] - sizes["MemAvailable"]
        table["mem.used"] = format_size(used)
        table["mem.percent"] = f"{100 * used / sizes['MemTotal']:.1f} %"
    return table


def _release() -> dict[str, str]:
    fields = {}
    for line in _read("/etc/os-release").splitlines():
        name, mark, value = line.partition("=")
        if mark and not name.startswith("#"):
            fields[name.strip()] = value.strip().strip('"')
    return fields
