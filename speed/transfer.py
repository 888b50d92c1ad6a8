"""Measures transfers against peers on links of the rig's own; every figure is a ratio to the peer in the same run.

Run as root: python speed/transfer.py [--case NAME]… [--repeats N] [--small]

    long      one 1 GiB file over 1 Gbit/s, 100 ms round trip, 0.01 % loss: ours, which verifies, against aria2c −x16
              without and with its checksum, and curl (once)
    loopback  the same file on loopback: time against curl followed by sha256sum, CPU against aria2c −x16 with its
              checksum
    equal     256 MiB from two sources of 300 Mbit/s each: from both against from one
    unequal   256 MiB and 1 GiB from sources of 400 and 50 Mbit/s: each alone (the slow one once), and together
    many      10,000 files of 8 KiB on loopback, each verified and stored, against the fastest of rclone with 16, 32
              and 64 transfers and without its HEAD requests, and aria2c −j16 (once); the peers verify nothing here
    again     a second fetch of what is known: seconds and payload bytes on the wire
    resume    kill −9 at 30, 50 and 70 %, then the same command again: bytes moved in all / size, beside aria2c and curl

The commands of a case run in turn (ours, peer, ours, peer …), each into an empty folder with an empty home; what
arrived is compared by sha256 afterwards, outside the clock. Figures are medians over the repeats, ratios are ratios of
medians; the best of the repeats stands in brackets. CPU is user and system time of a command and its children, peak
is the largest resident set of one process, never below this program's own 25 MB. Before each command, earlier writes
are flushed. Servers are nginx, their files come from the page cache. `--small` shrinks the data: a quick look whose
ratios mean nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rig.rig import Link, Measured, Rig, RigError, Server, missing

GIB, MIB = 1 << 30, 1 << 20
FAR = Link(rate_mbit=1000, rtt_ms=100, loss=0.0001)
ARIA2 = ("aria2c", "-q", "--no-conf", "--file-allocation=none", "--auto-file-renaming=false")
ARIA2_X16 = (*ARIA2, "-x16", "-k1M")
RCLONE = ("rclone", "-q", "--config", "/dev/null", "copy", "--no-traverse", "--no-check-dest", "--ignore-checksum")
KILL_AT = (0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Files:
    """What the servers hand out: path below their root → sha256; together `size_bytes`."""

    root: Path
    digests: dict[str, str]
    size_bytes: int

    @property
    def path(self) -> str:
        (only,) = self.digests
        return only

    @property
    def sha256(self) -> str:
        return self.digests[self.path]

    def wrong(self, folder: Path) -> str:
        """Say what in `folder` is not what the servers hand out; empty when all is right."""
        for path, sha256 in self.digests.items():
            file = folder / path
            if not file.is_file():
                return f"{path} is missing"
            with file.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
                    return f"{path} has other bytes"
        return ""


@dataclass(frozen=True)
class Entrant:
    """One way to bring the files: `argv` for an empty folder, into whose `out` they must come."""

    name: str
    argv: Callable[[Path], Sequence[str]]
    files: Files
    prepare: Callable[[Path], None] = lambda folder: None
    settle: Callable[[Path], None] = lambda folder: None  # after the clock, before the files are compared
    most: int = 1000


@dataclass
class Result:
    """All that one entrant's repeats took."""

    measured: list[Measured] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def value(self, name: str, of: Callable[[list[float]], float] = statistics.median) -> float:
        return of([float(getattr(each, name)) for each in self.measured])


class Bench:
    """The data, the program under test, and how often each command runs."""

    def __init__(self, scratch: Path, program: str, repeats: int, small: bool, congestion: str) -> None:
        self.scratch = scratch
        self.program = program
        self.repeats = repeats
        self.congestion = congestion
        self._scale = 16 if small else 1
        self._made: dict[str, Files] = {}
        self.has_fetch = _answers(program)

    def one_file(self, name: str, size_bytes: int) -> Files:
        """Return a file of random bytes, always the same for a name and size."""
        if name not in self._made:
            size, digest, source = size_bytes // self._scale, hashlib.sha256(), random.Random(name)
            root = self.scratch / "www"
            root.mkdir(exist_ok=True)
            with (root / name).open("wb") as stream:
                for start in range(0, size, MIB):
                    block = source.randbytes(min(MIB, size - start))
                    digest.update(block)
                    stream.write(block)
            self._made[name] = Files(root, {name: digest.hexdigest()}, size)
        return self._made[name]

    def many_files(self, count: int, size_bytes: int) -> Files:
        """Return many small files of random bytes in folders of a hundred."""
        if "many" not in self._made:
            root, source, digests = self.scratch / "many", random.Random(count), {}
            for number in range(count // self._scale):
                path = f"{number // 100:03}/{number:06}.bin"
                data = source.randbytes(size_bytes)
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
                digests[path] = hashlib.sha256(data).hexdigest()
            self._made["many"] = Files(root, digests, size_bytes * len(digests))
        return self._made["many"]

    @contextmanager
    def rig(self) -> Iterator[Rig]:
        with (
            tempfile.TemporaryDirectory(dir=self.scratch) as folder,
            Rig(Path(folder), congestion=self.congestion) as rig,
        ):
            yield rig

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Give a folder with an empty `out` and an empty `home`."""
        with tempfile.TemporaryDirectory(dir=self.scratch, ignore_cleanup_errors=True) as name:
            for part in ("out", "home"):
                Path(name, part).mkdir()
            yield Path(name)

    def race(self, rig: Rig, entrants: Sequence[Entrant]) -> dict[str, Result]:
        """Run every entrant in turn, again and again, and print one line for each."""
        results = {entrant.name: Result() for entrant in entrants}
        for turn in range(self.repeats):
            for entrant in entrants:
                if turn < entrant.most:
                    measured, problem = self._one(rig, entrant)
                    results[entrant.name].measured.append(measured)
                    results[entrant.name].problems += [problem] * bool(problem)
        _print_table(results)
        return results

    def _one(self, rig: Rig, entrant: Entrant) -> tuple[Measured, str]:
        with self.folder() as folder:
            entrant.prepare(folder)
            os.sync()
            measured = rig.run(entrant.argv(folder), environ=environ(folder), cwd=folder)
            if measured.status != 0:
                return measured, f"exit {measured.status}: {measured.output.strip()[-300:]}"
            entrant.settle(folder)
            return measured, entrant.files.wrong(folder / "out")

    def command(self, *argv: str) -> list[str]:
        return [self.program, *argv]

    def by_address(self, name: str, url: str, files: Files) -> Entrant:
        """Ours, with an address and its sha256."""

        def argv(folder: Path) -> list[str]:
            return self.command("fetch", url, "--sha256", files.sha256, "--to", str(folder / "out"))

        return Entrant(name, argv, files)

    def by_card(self, name: str, rig: Rig, servers: Sequence[Server], files: Files, *, lay: bool = True) -> Entrant:
        """Ours, with a card that names every file with size, sha256 and an address on each server."""
        lay_out = [*self.command("fetch", "dataset/rig", "--to")]

        def prepare(folder: Path) -> None:
            card = folder / "rig.jsonld"
            card.write_text(json.dumps(_card(servers, files)))
            _must(rig.run(self.command("catalog", "add", str(card)), environ=environ(folder)))

        def argv(folder: Path) -> list[str]:
            return [*lay_out, str(folder / "out")] if lay else self.command("fetch", "dataset/rig")

        def settle(folder: Path) -> None:
            if not lay:
                _must(rig.run([*lay_out, str(folder / "out")], environ=environ(folder)))

        return Entrant(name, argv, files, prepare, settle)


def environ(folder: Path) -> dict[str, str]:
    home = str(folder / "home")
    return {"PATH": os.environ["PATH"], "HOME": home, "FAIRMILE_HOME": f"{home}/fairmile", "LANG": "C.UTF-8"}


def aria2(name: str, urls: Sequence[str], files: Files, *, checked: bool = False, most: int = 1000) -> Entrant:
    """The peer of large files; with several addresses, as many connections to each."""
    check = [f"--checksum=sha-256={files.sha256}"] if checked else []

    def argv(folder: Path) -> list[str]:
        split = f"-s{16 * len(urls)}"
        return [*ARIA2_X16, split, *check, "-d", str(folder / "out"), "-o", files.path, *urls]

    return Entrant(name, argv, files, most=most)


def long(bench: Bench) -> None:
    files = bench.one_file("large.bin", GIB)
    with bench.rig() as rig:
        _title(f"long: {_size(files)} over {FAR}", rig, bench.repeats)
        url = f"{rig.serve(files.root, FAR).url}/{files.path}"
        results = bench.race(
            rig,
            [
                *_if_there(bench, bench.by_address("ours", url, files)),
                aria2("aria2c -x16", [url], files),
                aria2("aria2c -x16, its sha-256", [url], files, checked=True),
                Entrant("curl", lambda folder: ["curl", "-sfo", f"out/{files.path}", url], files, most=1),
            ],
        )
        print(f"  {'the link alone':<42} {files.size_bytes * 1500 / 1448 * 8 / 1e6 / FAR.rate_mbit:6.2f} s at least")
        _compare(results, "wall_s", "ours", "aria2c -x16", at_most=1.0)
        _compare(results, "wall_s", "ours", "aria2c -x16, its sha-256")
        _compare(results, "wall_s", "ours", "curl")
        _compare(results, "cpu_s", "ours", "aria2c -x16, its sha-256", at_most=1.2)
        _bound(results, "ours", peak_mb=150)


def loopback(bench: Bench) -> None:
    files = bench.one_file("large.bin", GIB)
    with bench.rig() as rig:
        _title(f"loopback: {_size(files)}", rig, bench.repeats)
        url = f"{rig.serve(files.root).url}/{files.path}"
        curl = 'curl -sfo "out/$1" "$2" && sha256sum "out/$1"'
        results = bench.race(
            rig,
            [
                *_if_there(bench, bench.by_address("ours", url, files)),
                Entrant("curl && sha256sum", lambda folder: ["sh", "-c", curl, "sh", files.path, url], files),
                aria2("aria2c -x16, its sha-256", [url], files, checked=True),
            ],
        )
        _compare(results, "wall_s", "ours", "curl && sha256sum", at_most=1.2)
        _compare(results, "cpu_s", "ours", "curl && sha256sum")
        _compare(results, "cpu_s", "ours", "aria2c -x16, its sha-256", at_most=1.2)
        _bound(results, "ours", peak_mb=150)


def equal(bench: Bench) -> None:
    files = bench.one_file("medium.bin", 256 * MIB)
    link = Link(rate_mbit=300, rtt_ms=FAR.rtt_ms, loss=FAR.loss)
    with bench.rig() as rig:
        _title(f"equal: {_size(files)} from two sources, each {link}", rig, bench.repeats)
        servers = [rig.serve(files.root, link) for _ in range(2)]
        urls = [f"{server.url}/{files.path}" for server in servers]
        results = bench.race(
            rig,
            [
                *_if_there(bench, bench.by_card("ours, one", rig, servers[:1], files)),
                aria2("aria2c -x16, one", urls[:1], files),
                *_if_there(bench, bench.by_card("ours, both", rig, servers, files)),
                aria2("aria2c -x16, both", urls, files),
            ],
        )
        _compare(results, "wall_s", "ours, one", "ours, both", at_least=1.7)
        _compare(results, "wall_s", "aria2c -x16, one", "aria2c -x16, both")
        _compare(results, "wall_s", "ours, both", "aria2c -x16, both")


def unequal(bench: Bench) -> None:
    for files in (bench.one_file("medium.bin", 256 * MIB), bench.one_file("large.bin", GIB)):
        links = [Link(rate_mbit=rate, rtt_ms=FAR.rtt_ms, loss=FAR.loss) for rate in (400, 50)]
        with bench.rig() as rig:
            _title(
                f"unequal: {_size(files)} from sources of {links[0]}, and {links[1].rate_mbit:g} Mbit/s",
                rig,
                bench.repeats,
            )
            fast, slow = (rig.serve(files.root, link) for link in links)
            urls = [f"{server.url}/{files.path}" for server in (fast, slow)]
            ours = [
                bench.by_card("ours, fast", rig, [fast], files),
                bench.by_card("ours, both", rig, [fast, slow], files),
                _once(bench.by_card("ours, slow", rig, [slow], files)),
            ]
            results = bench.race(
                rig,
                [
                    *_if_there(bench, *ours),
                    aria2("aria2c -x16, fast", urls[:1], files),
                    aria2("aria2c -x16, both", urls, files),
                ],
            )
            _compare(results, "wall_s", "ours, both", "ours, fast", at_most=1.0)
            _compare(results, "wall_s", "aria2c -x16, both", "aria2c -x16, fast")
            _compare(results, "wall_s", "ours, both", "aria2c -x16, both")
            _share_of_sum(results, "ours, both", ("ours, fast", "ours, slow"), at_least=0.9)


def many(bench: Bench) -> None:
    files = bench.many_files(10_000, 8 << 10)
    with bench.rig() as rig:
        _title(f"many: {len(files.digests):,} files, {_size(files)}, on loopback", rig, bench.repeats)
        server = rig.serve(files.root)
        names, addresses = bench.scratch / "names", bench.scratch / "addresses"
        names.write_text("".join(f"{path}\n" for path in files.digests))
        addresses.write_text("".join(f"{server.url}/{path}\n out={path}\n" for path in files.digests))

        def rclone(transfers: int, *more: str) -> Entrant:
            each = ["--transfers", str(transfers), "--checkers", str(transfers), *more]
            argv = [*RCLONE, *each, "--files-from", str(names), "--http-url", server.url, ":http:", "out"]
            return Entrant(" ".join([f"rclone --transfers {transfers}", *more]), lambda folder: argv, files)

        peers = [*(rclone(count) for count in (16, 32, 64)), rclone(16, "--http-no-head")]
        results = bench.race(
            rig,
            [
                *_if_there(bench, bench.by_card("ours, stored", rig, [server], files, lay=False)),
                *peers,
                *_if_there(bench, bench.by_card("ours, stored and laid out", rig, [server], files)),
                Entrant(
                    "aria2c -j16", lambda folder: [*ARIA2, "-j16", "-i", str(addresses), "-d", "out"], files, most=1
                ),
            ],
        )
        best = min((peer.name for peer in peers), key=lambda name: results[name].value("wall_s"))
        _compare(results, "wall_s", "ours, stored", best, at_most=1.0)
        _compare(results, "wall_s", "ours, stored and laid out", best)
        _compare(results, "wall_s", "ours, stored", "aria2c -j16", at_most=1 / 3)
        _compare(results, "cpu_s", "ours, stored", best)
        _bound(results, "ours, stored", peak_mb=150)


def again(bench: Bench) -> None:
    """Each row is a fetch whose bytes an earlier fetch, outside the clock, has already brought under the same home."""
    files, small = bench.one_file("medium.bin", 256 * MIB), bench.many_files(10_000, 8 << 10)
    if not bench.has_fetch:
        return print("again: `fetch` is not there yet")
    with bench.rig() as rig:
        _title(
            f"again: {_size(files)} over {FAR}, {len(small.digests):,} files on loopback", rig, max(3, bench.repeats)
        )
        far, near = rig.serve(files.root, FAR), rig.serve(small.root)
        url = f"{far.url}/{files.path}"
        first = bench.by_address("address and sha256", url, files)
        alone = Entrant("address alone", lambda folder: bench.command("fetch", url, "--to", str(folder / "out")), files)
        card = bench.by_card("card", rig, [far], files)
        folder_card = bench.by_card(f"card of {len(small.digests):,} files", rig, [near], small, lay=False)
        print(f"  {'known by':<42} {'wall s':>14} {'CPU s':>6} {'requests':>9} {'payload bytes':>14}")
        for entrant, server in ((first, far), (card, far), (alone, far), (folder_card, near)):
            _second_fetch(bench, rig, entrant, server)


def _second_fetch(bench: Bench, rig: Rig, entrant: Entrant, server: Server) -> None:
    result = Result()
    with bench.folder() as folder:
        entrant.prepare(folder)
        _must(rig.run(entrant.argv(folder), environ=environ(folder), cwd=folder))
        entrant.settle(folder)
        problem = entrant.files.wrong(folder / "out")
        before = len(server.requests())
        for _ in range(max(3, bench.repeats)):
            shutil.rmtree(folder / "out")
            (folder / "out").mkdir()
            result.measured.append(rig.run(entrant.argv(folder), environ=environ(folder), cwd=folder))
        asked = server.requests()[before:]
        entrant.settle(folder)
        problem = problem or _failures(result) or entrant.files.wrong(folder / "out")
    payload = sum(sent for method, _, sent in asked if method == "GET")
    print(
        f"  {entrant.name:<42} {_figure(result, 'wall_s')} {result.value('cpu_s'):6.2f} "
        f"{len(asked) / len(result.measured):9.1f} {payload:14,}  {problem or 'same bytes'}"
    )
    _verdict("seconds", result.value("wall_s"), at_most=0.3)
    _verdict("payload bytes", payload, at_most=0)


def resume(bench: Bench) -> None:
    files = bench.one_file("medium.bin", 256 * MIB)
    link = Link(rate_mbit=400, rtt_ms=40, loss=FAR.loss)
    with bench.rig() as rig:
        _title(
            f"resume: {_size(files)} over {link}, kill -9 at {', '.join(f'{at:.0%}' for at in KILL_AT)}",
            rig,
            bench.repeats,
        )
        server = rig.serve(files.root, link)
        url = f"{server.url}/{files.path}"
        base = aria2("aria2c -x16", [url], files)
        entrants = [
            *_if_there(bench, bench.by_address("ours", url, files)),
            base,
            Entrant(
                "aria2c -x16 --auto-save-interval=1",
                lambda folder: [*base.argv(folder)[:1], "--auto-save-interval=1", *base.argv(folder)[1:]],
                files,
            ),
            Entrant("curl -C -", lambda folder: ["curl", "-sf", "-C", "-", "-o", f"out/{files.path}", url], files),
        ]
        print(f"  {'':<42} {'moved in all / size':>24}")
        moved: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
        problems: dict[str, str] = {}
        for at in KILL_AT:
            for entrant in entrants:
                share, problem = _killed_and_resumed(bench, rig, server, entrant, at)
                moved[entrant.name].append(share)
                problems[entrant.name] = problems.get(entrant.name) or problem
        for name, shares in moved.items():
            each = "  ".join(f"{share:.2f}" for share in shares)
            print(f"  {name:<42} {each:>24}  {problems[name] or 'verified'}")


def _killed_and_resumed(bench: Bench, rig: Rig, server: Server, entrant: Entrant, at: float) -> tuple[float, str]:
    with bench.folder() as folder:
        entrant.prepare(folder)
        before = server.received_bytes()
        with rig.start(entrant.argv(folder), environ=environ(folder), cwd=folder) as command:
            while server.received_bytes() - before < at * entrant.files.size_bytes and not command.is_over():
                time.sleep(0.02)
            command.kill()
        _until_quiet(server)
        measured = rig.run(entrant.argv(folder), environ=environ(folder), cwd=folder)
        problem = f"exit {measured.status}: {measured.output.strip()[-300:]}" if measured.status else ""
        problem = problem or entrant.files.wrong(folder / "out")
        return (server.received_bytes() - before) / entrant.files.size_bytes, problem


def _until_quiet(server: Server) -> None:
    """Wait until what was under way to the killed client has come."""
    seen = -1
    while (now := server.received_bytes()) != seen:
        seen = now
        time.sleep(0.5)


def _card(servers: Sequence[Server], files: Files) -> dict[str, object]:
    def entry(path: str, sha256: str) -> dict[str, object]:
        address, *mirrors = [f"{server.url}/{path}" for server in servers]
        size = f"{files.size_bytes // len(files.digests)} B"
        known: dict[str, object] = {"contentUrl": address, "contentSize": size, "sha256": sha256}
        return {"@type": "FileObject", "name": path, **known, **({"mirror": mirrors} if mirrors else {})}

    return {
        "@context": "https://w3id.org/fairmile/card/1.0/context",
        "@type": "Dataset",
        "name": "rig",
        "version": "1.0",
        "license": "https://spdx.org/licenses/CC0-1.0",
        "distribution": [entry(path, sha256) for path, sha256 in files.digests.items()],
    }


def _once(entrant: Entrant) -> Entrant:
    return Entrant(entrant.name, entrant.argv, entrant.files, entrant.prepare, entrant.settle, most=1)


def _if_there(bench: Bench, *entrants: Entrant) -> list[Entrant]:
    return list(entrants) if bench.has_fetch else []


def _answers(program: str) -> bool:
    return subprocess.run([program, "fetch", "--help"], capture_output=True, check=False).returncode == 0


def _must(measured: Measured) -> None:
    if measured.status != 0:
        raise RigError(f"exit {measured.status}: {measured.output.strip()}")


def _failures(result: Result) -> str:
    return next((f"exit {each.status}: {each.output.strip()[-300:]}" for each in result.measured if each.status), "")


def _size(files: Files) -> str:
    return f"{files.size_bytes / MIB:,.0f} MiB"


def _title(text: str, rig: Rig, repeats: int) -> None:
    print(f"\n{text}\n  median of {repeats}; TCP {rig.congestion}; load before {os.getloadavg()[0]:.1f}", flush=True)


def _figure(result: Result, name: str) -> str:
    return f"{result.value(name):7.2f} ({result.value(name, min):.2f})"


def _print_table(results: dict[str, Result]) -> None:
    print(f"  {'':<42} {'wall s (best)':>14} {'CPU s':>6} {'peak MB':>8}")
    for name, result in results.items():
        cells = (
            f"{_figure(result, 'wall_s'):>14} {result.value('cpu_s'):6.2f} {result.value('peak_bytes', max) / 1e6:8.0f}"
        )
        print(f"  {name:<42} {cells}  {'; '.join(result.problems) or 'verified'}", flush=True)


def _compare(
    results: dict[str, Result],
    what: str,
    name: str,
    peer: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> None:
    if name not in results or peer not in results:
        return
    if results[name].problems or results[peer].problems:
        print(f"    {name} / {peer}: not compared, one of them failed")
        return
    ratio = results[name].value(what) / results[peer].value(what)
    best = results[name].value(what, min) / results[peer].value(what, min)
    label = f"{'time' if what == 'wall_s' else 'CPU'}: {name} / {peer}"
    _verdict(label, ratio, at_most=at_most, at_least=at_least, best=best)


def _bound(results: dict[str, Result], name: str, *, peak_mb: float) -> None:
    if name in results:
        _verdict(f"peak MB: {name}", results[name].value("peak_bytes", max) / 1e6, at_most=peak_mb)


def _share_of_sum(results: dict[str, Result], name: str, alone: Sequence[str], *, at_least: float) -> None:
    if name in results:
        total = sum(1 / results[each].value("wall_s") for each in alone)
        _verdict(f"speed: {name} / sum of each alone", 1 / results[name].value("wall_s") / total, at_least=at_least)


def _verdict(
    label: str, value: float, *, at_most: float | None = None, at_least: float | None = None, best: float | None = None
) -> None:
    in_brackets = "" if best is None else f" ({best:.2f})"
    wanted = ""
    if at_most is not None:
        wanted = f"wanted ≤ {at_most:.3g}: {'holds' if value <= at_most else 'MISSED'}"
    if at_least is not None:
        wanted = f"wanted ≥ {at_least:.3g}: {'holds' if value >= at_least else 'MISSED'}"
    print(f"    {label:<58} {value:7,.2f}{in_brackets:<8} {wanted}", flush=True)


CASES = {case.__name__: case for case in (long, loopback, equal, unequal, many, again, resume)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(sys.executable).with_name("fairmile")
    parser.add_argument(
        "--case", action="append", choices=list(CASES), help="this case only; may be given several times"
    )
    parser.add_argument("--repeats", type=int, default=3, help="how often each command runs (3)")
    parser.add_argument("--small", action="store_true", help="a sixteenth of the data")
    parser.add_argument("--scratch", type=Path, help="folder on the file system to measure on (the temporary one)")
    parser.add_argument("--ours", default=str(beside), help="the program under test (fairmile beside this Python)")
    parser.add_argument("--congestion", default="", help="TCP congestion control at both ends (the machine's)")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    absent = [name for name in ("aria2c", "curl", "rclone") if shutil.which(name) is None]
    why_not = missing() or (f"the peers {', '.join(absent)} are not installed" if absent else "")
    if why_not:
        raise SystemExit(why_not)
    with tempfile.TemporaryDirectory(prefix="fairmile-speed-", dir=options.scratch) as scratch:
        bench = Bench(Path(scratch), options.ours, options.repeats, options.small, options.congestion)
        print(f"{os.cpu_count()} cores, Linux {os.uname().release}, files below {scratch}")
        for name in options.case or CASES:
            try:
                CASES[name](bench)
            except RigError as error:
                raise SystemExit(f"{name}: {error}") from error


if __name__ == "__main__":
    main()
