"""Measures the web server: CPU until the first answer, CPU of a request beyond the search, many readers at once.

Peer in the same run: a static file of about the same size from the same server. CPU time is that of the server's
process; requests per second and p99 are wall times and mean something on a quiet machine only. Ratios are of
measurements taken in turns, so that both suffer from the same load.
Run: python speed/web.py [number of cards] [number of runs] [folder that keeps them for the next time]
"""

from __future__ import annotations

import asyncio
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

from cards import Writer, write_catalog

from fairmile.workspace import Workspace

STARTS, REQUESTS, READERS, ROUNDS, TURNS, AGAIN, BATCH = 5, 400, 200, 10, 3, 10, 20
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    cards = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        place = Path(sys.argv[3] if len(sys.argv) > 3 else folder)
        environ = {**os.environ, "FAIRMILE_HOME": str(place / "home"), "HOME": str(place)}
        workspace = Workspace.open(environ=environ, cwd=place)
        writer = Writer()
        if not (place / "home" / "runs").exists():
            for _ in write_catalog(place / "home" / "catalog", cards, writer):
                pass
            workspace.catalog.local.touch_generation()
            workspace.catalog.reindex()
            write_runs(workspace, runs)
        print(f"{cards:,} cards, {runs:,} runs; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        measure_start(environ, place)
        queries = list(dict.fromkeys(f"{writer.word()} {writer.word()}" for _ in range(2 * REQUESTS)))[:REQUESTS]
        with server(environ, place) as (process, address):
            measure_requests(workspace, process.pid, address, queries)
            measure_readers(process.pid, address, queries)
            measure_pages(process.pid, address)


def write_runs(workspace: Workspace, count: int) -> None:
    """Write records as a recorder leaves them."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from run_making import make_run

    root = workspace.home / "runs"
    for number in range(count):
        values = {f"metric_{each}": number / (each + 1) for each in range(8)}
        make_run(root, f"train-{number:06x}", metrics=values, params={f"p{each}": number for each in range(8)})
    workspace.runs.reindex()


@contextmanager
def server(environ: dict[str, str], place: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "fairmile", "serve", "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, env=environ, cwd=place, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def ask(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body[:200]
    return body


def measure_start(environ: dict[str, str], place: Path) -> None:
    taken = []
    for _ in range(STARTS):
        with server(environ, place) as (process, address):
            connection = http.client.HTTPConnection(urlsplit(address).netloc)
            ask(connection, "/api/search?q=cosmology")
            taken.append(cpu_s(process.pid))
            connection.close()
    print(f"{'start to the first answer':<44} {statistics.median(taken):.2f} s CPU (at most 1.2)")


def measure_requests(workspace: Workspace, pid: int, address: str, queries: list[str]) -> None:
    """Measure searches that nobody asked for before, beside the same calls with their `to_dict()` in this process."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    whole_s = search_s = static_s = 0.0
    sizes: list[int] = []
    for at in range(0, len(queries), BATCH):
        batch = queries[at : at + BATCH]
        began, size = cpu_s(pid), len(sizes)
        sizes += [len(ask(connection, f"/api/search?q={quote(each)}&limit=20")) for each in batch]
        middle, own = cpu_s(pid), time.process_time()
        for each in batch:
            workspace.catalog.search(each, limit=21).to_dict()
        search = time.process_time() - own
        for _ in batch:
            ask(connection, "/static/page.css")
        if size:  # the first batch warms both up
            whole_s, search_s, static_s = whole_s + middle - began, search_s + search, static_s + cpu_s(pid) - middle
    per_ms = 1e3 / (len(queries) - BATCH)
    print(f"{'CPU of a search request':<44} {whole_s * per_ms:.2f} ms (search alone: {search_s * per_ms:.2f} ms)")
    print(f"{'  beyond the search':<44} {(whole_s - search_s) * per_ms:.2f} ms (at most 0.5)")
    print(
        f"{'CPU of a static file':<44} {static_s * per_ms:.2f} ms; answers have {statistics.mean(sizes) / 1e3:.1f} kB"
    )


def measure_readers(pid: int, address: str, queries: list[str]) -> None:
    places = urlsplit(address)
    assert places.hostname and places.port
    searches = [f"/api/search?q={quote(each)}&limit=20" for each in queries]
    cases = {"static file": ["/static/page.css"], "one search": searches[:1], "400 searches, again and again": searches}
    costs: dict[str, list[float]] = {name: [] for name in cases}
    waits: dict[str, list[float]] = {name: [] for name in cases}
    walls: dict[str, float] = dict.fromkeys(cases, 0.0)
    for _ in range(TURNS):
        for name, paths in cases.items():
            began, wall = cpu_s(pid), time.perf_counter()
            taken = asyncio.run(read_all(places.hostname, places.port, paths))
            walls[name] += time.perf_counter() - wall
            costs[name].append((cpu_s(pid) - began) / len(taken) * 1e3)
            waits[name] += taken
    static_ms = statistics.median(costs["static file"])
    for name in cases:
        cpu_ms = statistics.median(costs[name])
        p99_ms = sorted(waits[name])[int(0.99 * len(waits[name]))] * 1e3
        print(
            f"{f'{READERS} readers, {name}':<44} {len(waits[name]) / walls[name]:7.0f} /s   p99 {p99_ms:6.0f} ms   "
            f"CPU {cpu_ms:.2f} ms a request, {static_ms / cpu_ms:.0%} of the rate of a static file"
        )


async def read_all(host: str, port: int, paths: list[str]) -> list[float]:
    """Return how long each request took, of as many readers at once."""

    async def read(number: int) -> list[float]:
        reader, writer = await asyncio.open_connection(host, port)
        waits = []
        for round in range(ROUNDS):
            path = paths[(number * ROUNDS + round) % len(paths)]
            began = time.perf_counter()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head[:20], head
            size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(size.partition(b":")[2]))
            waits.append(time.perf_counter() - began)
        writer.close()
        return waits

    return [wait for waits in await asyncio.gather(*map(read, range(READERS))) for wait in waits]


def measure_pages(pid: int, address: str) -> None:
    """Measure pages when they are asked for first, and again."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    limits = "(at most 150), {:.0f} kB (at most 200)"
    for path, limit in {
        "/api/runs?limit=50": limits,
        "/runs": limits,
        "/runs?q=metric_3%3C500+p2%3E=100&sort=-metric_1": limits,
        "/": ", {:.0f} kB",
        "/?q=cosmology": ", {:.0f} kB",
    }.items():
        costs = []
        for _ in range(1 + AGAIN):
            began = cpu_s(pid)
            size = len(ask(connection, path))
            costs.append((cpu_s(pid) - began) * 1e3)
        again_ms = statistics.mean(costs[1:])
        print(f"{f'{path}':<50} {costs[0]:.0f} ms CPU, again {again_ms:.0f} ms {limit.format(size / 1e3)}")


if __name__ == "__main__":
    main()
