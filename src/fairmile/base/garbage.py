"""How often Python searches for garbage: a program that imports torch spends a quarter of its start on finding none."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


def search_rarely() -> None:
    """Search rarely in a process that soon ends, and not once more when it does."""
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)


@contextmanager
def no_search() -> Iterator[None]:
    """Make many objects in the block, such as large modules; afterwards Python searches as before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
