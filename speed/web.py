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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from cards import Writer, write_catalog

from fairmile.base.garbage import search_rarely
from fairmile.web.serve import ServeSettings
from fairmile.workspace import Workspace

STARTS, REQUESTS, READERS, ROUNDS, TURNS, AGAIN, BATCH = 5, 400, 200, 10, 3, 10, 20
EMPTY, TIMED = "--empty", "--timed"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    if sys.argv[1:] in ([EMPTY], [TIMED]):
        search_rarely()  # as `fairmile serve` does
        return serve_nothing() if sys.argv[1] == EMPTY else serve_timed()
    cards = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        place = Path(sys.argv[3] if len(sys.argv) > 3 else folder)
        environ = {**os.environ, "FAIRMILE_HOME": str(place / "home"), "HOME": str(place)}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users start compiled modules and templates
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
        measure_requests(environ, place, queries)
        with server(environ, place) as (process, address):
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
    """Return the CPU time of a process: of its threads, which the kernel counts in ns, and of those that have ended."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    live_s = sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return max(live_s, (int(fields[11]) + int(fields[12])) * TICK_S - TICK_S)


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


def measure_requests(environ: dict[str, str], place: Path, queries: list[str]) -> None:
    """Measure searches that nobody asked for before, less what the search takes in the very same request.

    The floor is an application that answers with nothing, under the same uvicorn with the same settings.
    """
    costs: dict[str, list[float]] = {"request": [], "search": [], "static": [], "floor": []}
    sizes: list[int] = []
    with child(TIMED, environ, place) as timed, child(EMPTY, environ, place) as empty:
        assert timed.stdin is not None and timed.stdout is not None and empty.stdout is not None
        connection = http.client.HTTPConnection(timed.stdout.readline().strip())
        floor = http.client.HTTPConnection(empty.stdout.readline().strip())
        for query in queries:
            searches = f"/api/search?q={quote(query)}&limit=20"
            for name, process, other, path in (
                ("request", timed, connection, searches),
                ("static", timed, connection, "/static/page.css"),
                ("floor", empty, floor, "/"),
            ):
                began = cpu_s(process.pid)
                body = ask(other, path)
                costs[name].append(cpu_s(process.pid) - began)
                if name == "request":
                    sizes.append(len(body))
                    timed.stdin.write("\n")
                    timed.stdin.flush()
                    costs["search"].append(float(timed.stdout.readline()))
    means = {name: statistics.mean(taken[BATCH:]) * 1e3 for name, taken in costs.items()}  # the first warm all up
    beyond, floor_ms = means["request"] - means["search"], means["floor"]
    print(f"{'CPU of a search request':<44} {means['request']:.2f} ms (search alone: {means['search']:.2f} ms)")
    print(f"{'  beyond the search':<44} {beyond:.2f} ms (at most 0.5)")
    print(
        f"{'  beyond the search and an empty answer':<44} {beyond - floor_ms:.2f} ms (empty answer: {floor_ms:.2f} ms)"
    )
    print(f"{'CPU of a static file':<44} {means['static']:.2f} ms; answers have {statistics.mean(sizes) / 1e3:.1f} kB")


@contextmanager
def child(mode: str, environ: dict[str, str], place: Path) -> Iterator[subprocess.Popen[str]]:
    """Run this program as a server that prints its address."""
    command = [sys.executable, str(Path(__file__)), mode]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environ, cwd=place, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def serve_timed() -> None:
    """Serve, and print for each line of the input what searches took since the last one, in seconds of CPU time."""
    from fairmile.catalog.lookup import Lookup
    from fairmile.catalog.results import SearchResult
    from fairmile.web.serve import serve

    spent_s = 0.0

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            nonlocal spent_s
            began = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                spent_s += time.thread_time() - began

        return run

    Lookup.search = timed(Lookup.search)  # type: ignore[method-assign]
    SearchResult.to_dict = timed(SearchResult.to_dict)  # type: ignore[method-assign]
    with serve(Workspace.open(), ServeSettings(port=0), wait=False) as serving:
        print(f"127.0.0.1:{serving.port}", flush=True)
        for _ in sys.stdin:
            print(spent_s, flush=True)
            spent_s = 0.0


def serve_nothing() -> None:
    """Answer everything with an empty body until killed."""
    import uvicorn

    from fairmile.web.server import _config, _listen

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    listener = _listen("127.0.0.1", 0)
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(_config(app, ServeSettings())).run(sockets=[listener])


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
