"""What a call without an installed extra must answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairmile.base.errors import MissingExtra


@contextmanager
def needs_extra(extra: str, sentence: str = "needs? ") -> Iterator[None]:
    """Expect a MissingExtra whose hint is the command that installs the extra, and nothing else."""
    with pytest.raises(MissingExtra, match=sentence) as caught:
        yield
    assert caught.value.hint == f"pip install 'fairmile[{extra}]'"
