"""The installed command as a user runs it, in a place of its own; and what must hold after every bad day."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.workspace import Workspace

_INSTALLED = Path(sys.executable).parent / "fairmile"
COMMAND = [str(_INSTALLED)] if _INSTALLED.exists() else [sys.executable, "-m", "fairmile"]
_PATIENCE_S = 120.0
_BYTES = ("objects", "packs", "incoming", "trees")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Fairmile:
    """The command with folders and settings of its own; `before` stands before it on the command line."""

    def __init__(self, place: Path, before: Sequence[str] = (), **environ: str) -> None:
        self.place = place
        self.pool = place / "home" / "store"
        self._argv = [*before, *COMMAND]
        # What the tester has set for himself, proxies too, is not what a test is about.
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "TMPDIR") if name in os.environ}
        folders = {"HOME": str(place / "user"), "FAIRMILE_HOME": str(place / "home")}
        self.environ = {**kept, **folders, "LC_ALL": "C.UTF-8", **environ}
        (place / "user").mkdir(parents=True, exist_ok=True)

    def set(self, **settings: Any) -> None:
        """Write the user's settings file."""
        file = self.place / "user" / ".config" / "fairmile" / "config.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings), encoding="utf-8")

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start the command and return the running process."""
        return subprocess.Popen(
            [*self._argv, *map(str, arguments)],
            env=self.environ,
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return ended(self.start(*arguments))

    def fetch(self, *arguments: str | Path) -> dict[str, Any]:
        """Fetch one thing, which must succeed, and return what the command says about it."""
        (fetched,) = self.fetch_all(*arguments)
        return fetched

    def fetch_all(self, *arguments: str | Path) -> list[dict[str, Any]]:
        """Fetch several things at once."""
        done = self.run("fetch", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout)["fetched"])

    def add_card(self, name: str, files: Sequence[Mapping[str, Any]]) -> str:
        """Put a card that lists files into the user's own catalog and return what it is called."""
        card = {
            "@context": "https://w3id.org/fairmile/card/1.0/context",
            "@type": "Dataset",
            "name": name,
            "version": "1.0",
            "description": "data of a test",
            "license": "https://spdx.org/licenses/CC0-1.0",
            "creator": [{"@type": "Person", "name": "A. Tester"}],
            "distribution": [{"@type": "FileObject", **file} for file in files],
        }
        path = self.place / f"{name}.jsonld"
        path.write_text(json.dumps(card), encoding="utf-8")
        done = self.run("catalog", "add", path)
        assert done.returncode == 0, done.stderr
        return f"dataset/{name}"

    def content(self, folder: Path) -> dict[str, bytes]:
        """Return the files below a folder by their paths."""
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def assert_clean(self, *pools: Path) -> None:
        """Every byte of the store is right, and no space is taken that a clean-up does not find.

        By what `fairmile store verify` and `fairmile store gc` call, with nothing that refers to anything any more:
        folders whose links lead into the store are removed before.
        """
        store = Workspace.open(environ=self.environ, cwd=self.place).store
        report = store.verify()
        assert (report.damaged, report.incomplete) == ((), ())
        folders = pools or (self.pool,)
        for laid in {ref.details["folder"] for ref in store.refs("link")}:
            shutil.rmtree(laid)
        for path in (path for folder in folders for path in folder.rglob("*")):
            os.utime(path, (0, 0))  # a clean-up leaves alone what may still be in use
        store.gc(keep=lambda ref: False, older_than_s=0, grace_s=0)
        left = [path.relative_to(folder) for folder in folders for path in folder.rglob("*") if path.is_file()]
        remaining = [str(path) for path in left if path.parts[0] in _BYTES]
        assert remaining == [], remaining
        assert [path for path in left if path.parts[0] == "reserved" and not path.name.startswith(".")] == []


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a process and return what it said."""
    with killed_at_the_end(process):
        out, err = process.communicate(timeout=_PATIENCE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextlib.contextmanager
def killed_at_the_end(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """Leave no process behind, whatever happens in the block."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def kept_bytes(pool: Path) -> int:
    """Return how much a fetch has made safe so far: of half-done files, by their journals, and of complete ones."""
    total = 0
    with contextlib.suppress(FileNotFoundError):  # a file that gets its name just now; the next look sees it
        for journal in pool.glob("incoming/*/journal.json"):
            total += sum(stop - start for start, stop in json.loads(journal.read_text())["done"])
        total += sum(path.stat().st_size for path in [*pool.glob("packs/*.pack"), *pool.glob("objects/*/*")])
    return total


def kept_ranges(pool: Path) -> list[tuple[int, int]]:
    """Return start and stop of what the journals of half-done files say is safe."""
    journals = (json.loads(path.read_text()) for path in pool.glob("incoming/*/journal.json"))
    return [(start, stop) for journal in journals for start, stop in journal["done"]]


def wait_until(condition: Callable[[], object], *processes: subprocess.Popen[str]) -> None:
    """Wait for a condition; the test fails when a process ends before it is met."""
    deadline = time.monotonic() + _PATIENCE_S
    pause_s = 0.005
    while not condition():
        for process in processes:
            if process.poll() is not None and not condition():
                pytest.fail(f"it ended with {process.returncode}: {process.communicate()}")
        if time.monotonic() > deadline:
            pytest.fail("it waits in vain")
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.03)  # asking keeps a core from what is waited for
