"""Takes away from Python what macOS lacks: calls of Linux, and the files below /proc and /sys."""

from __future__ import annotations

import builtins
import errno
import io
import os
import resource
import select
import socket
import time
from collections.abc import Callable
from typing import Any

LINUX_ONLY = (
    *("sched_getaffinity", "sched_setaffinity", "copy_file_range", "posix_fallocate", "posix_fadvise", "pipe2"),
    *("memfd_create", "eventfd", "pidfd_open", "splice", "getrandom", "getxattr", "listxattr", "setxattr"),
    *("removexattr", "unshare", "setns", "O_TMPFILE", "O_DIRECT", "O_PATH"),
)


def _hides(path: Any) -> bool:
    try:
        text = os.fsdecode(path)
    except TypeError:
        return False
    return text.startswith(("/proc/", "/sys/")) or text in ("/proc", "/sys")


def _without(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(path: Any = ".", *args: Any, **options: Any) -> Any:
        if not isinstance(path, int) and _hides(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return call(path, *args, **options)

    return wrapped


for _name in LINUX_ONLY:
    if hasattr(os, _name):
        delattr(os, _name)
_OTHERS: tuple[tuple[Any, str], ...] = (
    *((select, "epoll"), (resource, "prlimit"), (time, "CLOCK_BOOTTIME"), (socket, "SO_PEERCRED")),
)
for _module, _name in _OTHERS:
    if hasattr(_module, _name):
        delattr(_module, _name)
builtins.open = io.open = _without(io.open)
for _name in ("open", "stat", "lstat", "listdir", "scandir", "readlink"):
    setattr(os, _name, _without(getattr(os, _name)))
