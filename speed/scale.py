"""Measures a catalog as large as today's model hubs, and how its costs grow from 10,000 cards to 1,000,000.

For each size, in CPU time (user and system) of a process of its own: build the index from files, and the process's
largest memory; search for one word and for two; follow 1,000 changed cards by the journal of the catalog, and without
it, where each file is looked at. `loop_s` is a fixed loop in the same run, for the speed of the machine.
The cards are written by all cores before and not measured; a million take about 8 GB of disk.

Run: python speed/scale.py [SIZE]… [--folder FOLDER] [--jsonl FILE]      (default: 10000 100000)
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from cards import Writer

from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog

CHANGES = 1000
QUERIES = 1000
_PART = 2000  # cards that a worker writes at a time


def write_part(root: Path, numbers: range) -> None:
    writer = Writer()
    writer.random.seed(numbers.start)
    for number in numbers:
        body = writer.card(number)
        handle = Card(body).handle
        folder = root / "cards" / handle.kind / handle.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{handle.version}.jsonld").write_text(json.dumps(body), encoding="utf-8")


def build(home: Path) -> dict[str, float]:
    catalog = Catalog(home)
    seconds = cpu_s(catalog.reindex)
    return {"build_s": seconds, "index_mb": catalog.index_path.stat().st_size / 1e6}


def search(home: Path) -> dict[str, float]:
    catalog, writer = Catalog(home), Writer()
    writer.random.seed(7)
    catalog.search("warm")
    taken: dict[str, float] = {}
    for name, count in (("word", 1), ("two", 2)):
        texts = [writer.text(count) for _ in range(QUERIES)]
        samples = sorted(1e3 * cpu_s(partial(catalog.search, text)) for text in texts)
        taken |= {f"{name}_p50_ms": statistics.median(samples), f"{name}_p99_ms": samples[int(0.99 * QUERIES)]}
    return taken


def follow(home: Path, journal: bool) -> dict[str, float]:
    """Change cards as a sync of a source does, and time the first command after it."""
    catalog, writer = Catalog(home), Writer()
    with catalog.open_index() as index:
        rows = index._db.execute("SELECT path FROM card WHERE catalog = 'local' ORDER BY random() LIMIT ?", (CHANGES,))
        paths = [path for (path,) in rows]
    catalog.local.touch_generation(paths if journal else None)
    for path in paths:
        card = catalog.local.read(path)
        catalog.local.write(Card({**card.body, "description": writer.text(60)}), replace=True)

    def open_index() -> None:
        with catalog.open_index() as index:
            assert not index.outdated

    return {"follow_s" if journal else "follow_all_s": cpu_s(open_index)}


def cpu_s(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def loop_s() -> float:
    return cpu_s(lambda: sum(i * i for i in range(5_000_000)))


def alone(action: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """Run in a process of its own; adds its largest memory in MB."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_with_memory, action, *arguments).result()


def _with_memory(action: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    taken = action(*arguments)
    return {**taken, f"{action.__name__}_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure(home: Path, size: int) -> dict[str, float]:
    root = home / "catalog"
    parts = [range(first, min(first + _PART, size + 1)) for first in range(1, size + 1, _PART)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(write_part, root), parts))
    Catalog(home).local.touch_generation([])  # begins the journal, as a sync does
    taken: dict[str, float] = {"cards": size, "loop_s": loop_s()}
    for action, *arguments in ((build,), (search,), (follow, True), (follow, False)):
        taken |= alone(action, home, *arguments)
        print("  " + ", ".join(f"{key} {value:,.2f}" for key, value in taken.items()), flush=True)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=int, metavar="SIZE", default=[10_000, 100_000])
    parser.add_argument("--folder", type=Path, help="where the cards are written and removed again")
    parser.add_argument("--jsonl", type=Path, help="append each result as a line")
    given = parser.parse_args()
    if small := [size for size in given.sizes if size < CHANGES]:
        parser.error(f"SIZE is {small[0]}: {CHANGES} cards are changed, so give at least as many")
    if given.folder:
        try:
            given.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--folder {given.folder}: {error.strerror}")
    for size in given.sizes:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            taken = measure(Path(name), size)
        if given.jsonl:
            with given.jsonl.open("a") as file:
                file.write(json.dumps(taken) + "\n")


if __name__ == "__main__":
    main()
