"""A workspace of its own for each test, impatient enough for tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.transfer.items import Silent
from fairmile.workspace import Workspace

IMPATIENT = {
    "FAIRMILE_TRANSFER_STALL": "2 s",
    "FAIRMILE_TRANSFER_RETRIES": "3",
    "FAIRMILE_TRANSFER_CONNECTIONS": "4",
    "FAIRMILE_TRANSFER_SEGMENT": "1 MiB",
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "fairmile"), **IMPATIENT}


@pytest.fixture
def watcher() -> Silent:
    return Silent()


@pytest.fixture
def workspace(environ: dict[str, str], tmp_path: Path, watcher: Silent) -> Workspace:
    return Workspace.open(environ=environ, cwd=tmp_path, watcher=watcher)


@pytest.fixture
def stored(workspace: Workspace) -> Callable[[str], bytes]:
    """Return the content of a tree of one file."""

    def content(root: str) -> bytes:
        (entry,) = workspace.store.tree(root)
        with workspace.store.open(entry.sha256) as stream:
            return stream.read()

    return content


@pytest.fixture
def local_card(workspace: Workspace, tmp_path: Path, indexed_home: Callable[[Path], Path]) -> Callable[..., str]:
    """Add a card for data at the given addresses, mirrors of one another, and return its name."""
    indexed_home(workspace.home)

    def add(data: bytes, *addresses: str, **more: object) -> str:
        name = f"data-{len(list(tmp_path.glob('*.jsonld')))}"
        entry = {
            "@type": "FileObject",
            "name": "data.bin",
            "contentUrl": addresses[0],
            "mirror": list(addresses[1:]),
            "contentSize": f"{len(data)} B",
            "sha256": hashlib.sha256(data).hexdigest(),
            **more,
        }
        card = {
            "@context": "https://w3id.org/fairmile/card/1.0/context",
            "@type": "Dataset",
            "name": name,
            "version": "1.0",
            "description": "data of a test",
            "license": "https://spdx.org/licenses/CC0-1.0",
            "creator": [{"@type": "Person", "name": "A. Tester"}],
            "distribution": [{key: value for key, value in entry.items() if value not in ([], None)}],
        }
        path = tmp_path / f"{name}.jsonld"
        path.write_text(json.dumps(card), encoding="utf-8")
        workspace.catalog.add(path)
        return f"dataset/{name}"

    return add
