"""Fixtures of the exchange formats."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def offline_rocrate_validator() -> Callable[..., list[str]]:
    """Return the function that has a crate judged by roc-validator without a network."""
    pytest.importorskip("rocrate_validator", reason="roc-validator is not installed")
    pytest.importorskip("rocrate", reason="the rocrate package, which brings the context, is not installed")
    # Loaded by its path: with importlib as import mode no folder of tests is on the module path.
    spec = importlib.util.spec_from_file_location(
        "rocrate_validation", Path(__file__).with_name("rocrate_validation.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    validate: Callable[..., list[str]] = module.validate_crate
    return validate
