"""Fixtures of the exchange formats."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rocrate_validation import validate_crate


@pytest.fixture(scope="session")
def offline_rocrate_validator() -> Callable[..., list[str]]:
    """Return the function that has a crate judged by roc-validator without a network."""
    pytest.importorskip("rocrate_validator", reason="roc-validator is not installed")
    pytest.importorskip("rocrate", reason="the rocrate package, which brings the context, is not installed")
    return validate_crate
