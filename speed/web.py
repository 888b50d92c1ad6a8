"""Measures the web server: CPU until the first answer, CPU of a request beyond the search, many readers at once.

Peer in the same run: a static file of about the same size from the same server. CPU time is that of the server's
process; requests per second and p99 are wall times and mean something on a quiet machine only.
Run: python speed/web.py [number of cards] [number of runs]
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

STARTS, REQUESTS, READERS, ROUNDS = 5, 400, 200, 10
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    cards = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    writer = Writer()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        environ = {**os.environ, "FAIRMILE_HOME": str(place / "home"), "HOME": folder}
        workspace = Workspace.open(environ=environ, cwd=place)
        for _ in write_catalog(place / "home" / "catalog", cards, writer):
            pass
        workspace.catalog.local.touch_generation()
        workspace.catalog.reindex()
        write_runs(workspace, runs)
        print(f"{cards:,} cards, {runs:,} runs")
        measure_start(environ, place)
        queries = [writer.word() for _ in range(REQUESTS)]
        with server(environ, place) as (process, address):
            measure_requests(workspace, process.pid, address, queries)
            measure_readers(process.pid, address, queries)
            measure_runs(process.pid, address)


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
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    paths = [f"/api/search?q={quote(each)}&limit=20" for each in queries]
    for path in paths[:20]:
        ask(connection, path)
        workspace.catalog.search(path)
    began = cpu_s(pid)
    sizes = [len(ask(connection, path)) for path in paths]
    whole_ms = (cpu_s(pid) - began) / len(paths) * 1e3
    own = time.process_time()
    for each in queries:
        workspace.catalog.search(each, limit=21)
    search_ms = (time.process_time() - own) / len(queries) * 1e3
    began = cpu_s(pid)
    for _ in paths:
        ask(connection, "/static/page.css")
    static_ms = (cpu_s(pid) - began) / len(paths) * 1e3
    print(f"{'CPU of a search request':<44} {whole_ms:.2f} ms (search alone: {search_ms:.2f} ms)")
    print(f"{'  beyond the search':<44} {whole_ms - search_ms:.2f} ms (at most 0.5)")
    print(f"{'CPU of a static file':<44} {static_ms:.2f} ms; answers have {statistics.mean(sizes) / 1e3:.1f} kB")


def measure_readers(pid: int, address: str, queries: list[str]) -> None:
    places = urlsplit(address)
    assert places.hostname and places.port
    rates = {}
    for name, paths in {
        "static file": ["/static/page.css"],
        "one search": [f"/api/search?q={quote(queries[0])}&limit=20"],
        "different searches": [f"/api/search?q={quote(each)}&limit=20" for each in queries],
    }.items():
        began, wall = cpu_s(pid), time.perf_counter()
        waits = asyncio.run(read_all(places.hostname, places.port, paths))
        wall = time.perf_counter() - wall
        cpu_ms = (cpu_s(pid) - began) / len(waits) * 1e3
        waits.sort()
        p99 = waits[int(0.99 * len(waits))] * 1e3
        rates[name] = 1 / cpu_ms
        print(
            f"{f'{READERS} readers, {name}':<44} {len(waits) / wall:7.0f} /s   p99 {p99:6.0f} ms   "
            f"CPU {cpu_ms:.2f} ms a request, {rates[name] / rates['static file']:.0%} of the rate of a static file"
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


def measure_runs(pid: int, address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    for path in ("/api/runs?limit=50", "/runs"):
        began = cpu_s(pid)
        connection.request("GET", path)
        answer = connection.getresponse()
        size = len(answer.read())
        first_ms = (cpu_s(pid) - began) * 1e3
        if answer.status == 200:
            print(f"{f'first {path}':<44} {first_ms:.0f} ms CPU (at most 150), {size / 1e3:.0f} kB (at most 200)")


if __name__ == "__main__":
    main()
