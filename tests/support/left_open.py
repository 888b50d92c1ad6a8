"""What a part of a test leaves open: threads and files, apart from those that others end or close meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fail where a thread or an open file is there after the block that was not there before it.

    What an earlier test left to end by itself, such as a connection of its server, may do so at any moment.
    """
    threads, files = set(threading.enumerate()), _open_files()
    yield
    assert not set(threading.enumerate()) - threads
    assert not _open_files() - files


def _open_files() -> Counter[str]:
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the look itself, or closed since
            found[str(Path("/proc/self/fd", number).readlink())] += 1
    return found
