"""A screen that is small enough for every test."""

from __future__ import annotations

import pytest

from fairmile.benchmarks.suite.uno.screens import Screen, make_screen


@pytest.fixture(scope="session")
def screen() -> Screen:
    return make_screen(1, cells=40, drugs=30, genes=16, descriptors=24)
