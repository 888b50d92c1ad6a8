"""Measures search over many cards: CPU time per query, per added card, and of a rebuild.

Peer in the same run: SQLite's own FTS5 ranking over all matches, on the same index.
Run: python speed/search.py [number of cards]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cards import DOMAINS, FRAMEWORKS, Writer, write_catalog

from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.query import fts_expression, parse_query

QUERIES = 300


def cpu_ms(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return (time.process_time() - start) * 1e3


def line(name: str, samples: list[float]) -> None:
    ordered = sorted(samples)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    print(f"{name:<34} p50 {statistics.median(ordered):8.2f} ms   p99 {p99:8.2f} ms   ({len(ordered)} samples)")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    writer = Writer()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for _ in write_catalog(home / "catalog", count, writer):
            pass
        catalog = Catalog(home)
        catalog.local.touch_generation()
        print(f"{count:,} cards; CPU time of this process")
        seconds, megabytes = cpu_ms(catalog.reindex) / 1e3, catalog.index_path.stat().st_size / 1e6
        print(f"{'rebuild of the index':<34} {seconds:.1f} s, {megabytes:.0f} MB")
        measure_queries(catalog, writer)
        measure_adding(catalog, writer, count)


def measure_queries(catalog: Catalog, writer: Writer) -> None:
    pick = writer.random.choice
    kinds: dict[str, Callable[[], str]] = {
        "one word": writer.word,
        "two words": lambda: f"{writer.word()} {writer.word()}",
        "word in nearly every card": lambda: writer.words[0],
        "prefix": lambda: writer.word()[:4] + "*",
        "word, kind and domain": lambda: f"{writer.word()} kind:model domain:{pick(DOMAINS)}",
        "facets only": lambda: f"framework:{pick(FRAMEWORKS)} domain:{pick(DOMAINS)}",
        "regex on names": lambda: f"/{writer.word()[:3]}.*{pick('abcdefghij')}$/",
        "misspelt word": lambda: pick(writer.words)[::-1] + "x",
    }
    for name, make in kinds.items():
        texts = [make() for _ in range(QUERIES)]
        line(name, [cpu_ms(lambda text=text: catalog.search(text)) for text in texts])
    with catalog.open_index() as index:
        sql = "SELECT rowid FROM latest WHERE latest MATCH ? ORDER BY bm25(latest) LIMIT 20"
        words = [writer.word() for _ in range(QUERIES // 3)]
        peer = [cpu_ms(lambda w=w: index._db.execute(sql, (fts_expression(parse_query(w)),)).fetchall()) for w in words]
        ours = [cpu_ms(lambda w=w: index.search(parse_query(w))) for w in words]
    line("peer: FTS5 ranks every match", peer)
    ratio = sum(peer) / sum(ours)
    print(f"{'ratio peer / ours, one word':<34} {ratio:.1f}")


def measure_adding(catalog: Catalog, writer: Writer, count: int) -> None:
    with catalog.open_index() as index:
        samples, whole = [], []
        for number in range(count + 1, count + 201):
            card = Card(writer.card(number))
            catalog.local.write(card)
            samples.append(cpu_ms(lambda card=card: index.put(catalog.local, card, catalog.local.generation())))
        for number in range(count + 201, count + 301):
            card = Card(writer.card(number))
            whole.append(cpu_ms(lambda card=card: catalog.add(card)))
    line("index one more card", samples)
    line("add: check, write, fsync, index", whole)


if __name__ == "__main__":
    main()
