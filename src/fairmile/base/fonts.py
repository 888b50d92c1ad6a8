"""Drawing with matplotlib without its notices about fonts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_font_notices() -> Iterator[None]:
    """Keep matplotlib from announcing that it builds its font cache, as it does in a new home; errors still show."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
