"""Classical models of scikit-learn as baselines, on one core so that they cost the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairmile.base.errors import MissingExtra

ABSENT = "scikit-learn is not installed: the baselines that need it were left out"


def can_fit() -> bool:
    """Tell whether scikit-learn is installed."""
    return find_spec("sklearn") is not None


def save_estimator(model: Any, file: Path) -> None:
    """Write a fitted estimator as a skops file, which runs no code when it is read."""
    if find_spec("skops") is None:
        raise MissingExtra(f"{file.name} is written by skops, which is not installed", "models")
    import skops.io

    skops.io.dump(model, file)


@contextmanager
def one_core() -> Iterator[None]:
    """Fit on one core: on small data the threads of scikit-learn mostly wait for each other."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):
        yield
