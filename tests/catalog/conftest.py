"""Small cards and catalogs of our own for the tests of this folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.catalog.catalog import Catalog
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.kinds import CONTEXT_IRI, KINDS

Body = dict[str, Any]


def card_body(kind: str = "dataset", name: str = "Alpha", version: str = "1.0", **more: Any) -> Body:
    """Return the smallest valid card of a kind; `more` adds and replaces properties, None drops them."""
    body: Body = {
        "@context": CONTEXT_IRI,
        "@id": f"https://example.net/{kind}/{name.replace(' ', '-').lower()}/{version}",
        "@type": KINDS[kind].types[0],
        "name": name,
        "version": version,
    }
    if kind == "run":
        body |= {"startTime": "2026-01-02T03:04:05Z", "actionStatus": "CompletedActionStatus"}
    body |= more
    return {key: value for key, value in body.items() if value is not None}


def file_entry(name: str, content: bytes = b"", *, url: str = "", **more: Any) -> Body:
    """Return an entry of a distribution with the size and sha256 of a content."""
    entry: Body = {"@type": "FileObject", "@id": name, "name": name, "contentSize": f"{len(content)} B"}
    entry["sha256"] = hashlib.sha256(content).hexdigest()
    return entry | ({"contentUrl": url} if url else {}) | more


@pytest.fixture
def card() -> Callable[..., Body]:
    """The factory of small valid cards."""
    return card_body


@pytest.fixture
def file() -> Callable[..., Body]:
    """The factory of entries of a distribution."""
    return file_entry


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def builtin(tmp_path: Path) -> CatalogFolder:
    """A built-in catalog without cards, in place of the one that ships with the package."""
    return CatalogFolder("builtin", tmp_path / "builtin")


@pytest.fixture
def catalog(home: Path, builtin: CatalogFolder) -> Catalog:
    """An empty catalog."""
    return Catalog(home, builtin=builtin)


@pytest.fixture
def together() -> Callable[..., None]:
    """Run a script in several processes at once, each with its number and the given arguments; all must succeed."""

    def run(script: str, *arguments: object, workers: int = 4) -> None:
        commands = [
            [sys.executable, "-c", textwrap.dedent(script), str(n), *map(str, arguments)] for n in range(workers)
        ]
        running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
        errors = [process.communicate(timeout=300)[1] for process in running]
        assert [process.returncode for process in running] == [0] * workers, "\n".join(errors)

    return run


@pytest.fixture
def without_rights(unprivileged: list[str]) -> Callable[..., str]:
    """Run a script to which permission bits mean something, and return its output."""

    def run(script: str, *arguments: object) -> str:
        command = [*unprivileged, sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
