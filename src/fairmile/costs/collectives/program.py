"""The program that measures collectives: it needs nothing but Python, and torch or mpi4py, where it runs.

python -m fairmile.costs.collectives --backend gloo --ranks 4 --out measured.json
torchrun --nproc-per-node 4 -m fairmile.costs.collectives --backend nccl --out measured.json
mpirun -np 4 python -m fairmile.costs.collectives --backend mpi --out measured.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairmile.base.errors import FairmileError, RunFailed, Unsupported, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_duration, format_size, parse_size
from fairmile.costs.collectives.formulas import bus_factor, collective_name
from fairmile.costs.collectives.ranks import BACKENDS, MEASURED, CollectiveCall, Ranks, open_ranks
from fairmile.costs.collectives.tables import FORMAT

DEFAULT_SIZES = tuple(4**power for power in range(2, 13))  # 16 B to 16 MiB
DEFAULT_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
_ONE_SIDED = ("broadcast", "reduce")  # whose root would run ahead if calls followed each other at once
_SAMPLE_S = 1e-3  # a sample is at least so long, so that clocks and the start of all ranks do not count
_WARM_UP = 3
_PASSES = 5
_FEWEST, _MOST = 1, 12  # samples of one pass
_MOST_CALLS = 200
_REFUSAL = re.compile(r"not? (currently )?support|unsupported|not (yet )?implemented|has no", re.IGNORECASE)


@dataclass(frozen=True)
class CollectiveTiming:
    """What one collective took for one size: of each repeat the slowest rank, of all repeats the median and others."""

    collective: str
    size_bytes: int
    ranks: int
    nodes: int
    time_s: float  # median
    best_s: float
    low_s: float  # quartiles
    high_s: float
    repeats: int


def measure(
    ranks: Ranks, collectives: Sequence[str], sizes: Sequence[int], *, seconds: float
) -> tuple[list[CollectiveTiming], list[dict[str, str]]]:
    """Measure each collective at each size, for about so many seconds each; return rows and what was left out, why."""
    nodes = len(set(ranks.gather(platform.node())))
    rows: list[CollectiveTiming] = []
    left_out: list[dict[str, str]] = []
    for name in collectives:
        try:
            calls = _prepared(ranks, name, (0,) if name == "barrier" else sizes)
        except (Unsupported, RuntimeError) as error:
            # Each rank's library refuses the same call, so that none waits for another; anything else is a failure.
            if isinstance(error, RunFailed) or not _REFUSAL.search(str(error)):
                raise
            left_out.append({"collective": name, "reason": " ".join(str(error).split())[:300]})
            continue
        rows += _timed(ranks, name, calls, nodes, seconds)
    return rows, left_out


def _prepared(ranks: Ranks, name: str, sizes: Sequence[int]) -> list[CollectiveCall]:
    """Return a call of each size that was seen to give the right result."""
    calls: dict[int, CollectiveCall] = {}
    for size in sizes:
        call = ranks.call(name, size)
        problem = next(filter(None, ranks.gather(call.check())), "")
        if problem:
            raise RunFailed(f"{name} of {size} bytes gave a wrong result: {problem}")
        calls.setdefault(call.size_bytes, call)  # small sizes that ranks share can come to the same bytes
    return list(calls.values())


def _timed(
    ranks: Ranks, name: str, calls: Sequence[CollectiveCall], nodes: int, seconds: float
) -> list[CollectiveTiming]:
    """Go over all sizes several times, so that what else the machine does for a while spoils no size alone."""
    plans = [_plan(ranks, name, call, seconds) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(_PASSES):
        for at, (call, (together, repeats)) in enumerate(zip(calls, plans, strict=True)):
            _sample(ranks, call, 1)
            samples[at] += [_sample(ranks, call, together) for _ in range(repeats)]
    return [_row(name, call, ranks, nodes, ranks.slowest(times)) for call, times in zip(calls, samples, strict=True)]


def _plan(ranks: Ranks, name: str, call: CollectiveCall, seconds: float) -> tuple[int, int]:
    """Return how many calls make a sample, and how many samples one pass takes."""
    once = min(_sample(ranks, call, 1) for _ in range(_WARM_UP))
    [once] = ranks.slowest([max(once, 1e-7)])
    together = 1 if name in _ONE_SIDED else min(_MOST_CALLS, max(1, math.ceil(_SAMPLE_S / once)))
    repeats = int(seconds / (once * together) / _PASSES)
    return together, min(_MOST, max(_FEWEST, repeats))


def _row(name: str, call: CollectiveCall, ranks: Ranks, nodes: int, slowest: Sequence[float]) -> CollectiveTiming:
    times = sorted(each / call.count for each in slowest)
    count = len(times)
    return CollectiveTiming(
        name,
        call.size_bytes,
        2 if name == "point_to_point" else ranks.size,
        nodes,
        times[count // 2],
        times[0],
        times[count // 4],
        times[3 * count // 4],
        count,
    )


def _sample(ranks: Ranks, call: CollectiveCall, calls: int) -> float:
    ranks.barrier()
    ranks.done()
    began = time.perf_counter()
    for _ in range(calls):
        call.run()
    ranks.done()
    return (time.perf_counter() - began) / calls


def main(argv: Sequence[str] | None = None) -> int:
    """Run as one rank, or start the ranks here; rank 0 writes the result and prints it."""
    arguments = _parser().parse_args(argv)
    try:
        # A batch job's script is rank 0 of Slurm already: only RANK says that others were started beside this one.
        if arguments.ranks and "RANK" not in os.environ and arguments.backend != "mpi":
            return _start_here(arguments)
        return _as_rank(arguments)
    except FairmileError as error:
        _say(error)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fairmile.costs.collectives", description="Measure collectives.")
    parser.add_argument("--backend", choices=BACKENDS, default="gloo")
    parser.add_argument("--ranks", type=int, default=0, help="number of ranks to start here (torch)")
    parser.add_argument("--sizes", default="", help="sizes per rank, such as 1KiB,1MiB")
    parser.add_argument("--collectives", default="", help=f"collectives to measure: {','.join(MEASURED)}")
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="approximate time per size and collective, in seconds"
    )
    parser.add_argument("--out", default="", help="JSON file to write the result to")
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    return parser


def _as_rank(arguments: argparse.Namespace) -> int:
    collectives = chosen_collectives(arguments.collectives.split(",") if arguments.collectives else ())
    sizes = chosen_sizes(arguments.sizes.split(",") if arguments.sizes else ())
    ranks = open_ranks(arguments.backend, os.environ, store=arguments.store)
    try:
        if ranks.size < 2:
            raise UsageError("a collective needs at least 2 ranks, but there is 1", hint="start at least two")
        rows, left_out = measure(ranks, collectives, sizes, seconds=arguments.seconds)
        if ranks.rank == 0:
            _finish(arguments, ranks, rows, left_out)
    except FairmileError as error:
        _say(error)
        ranks.abandon(error.exit_code)
        return error.exit_code
    except BaseException:
        traceback.print_exc()
        ranks.abandon(1)
        raise
    ranks.close()
    return 0


def _finish(
    arguments: argparse.Namespace, ranks: Ranks, rows: Sequence[CollectiveTiming], left_out: Sequence[dict[str, str]]
) -> None:
    document = {
        "format": FORMAT,
        "backend": arguments.backend,
        "library": ranks.library,
        "ranks": ranks.size,
        "nodes": rows[0].nodes if rows else 1,
        "points": [asdict(row) for row in rows],
        "left_out": list(left_out),
    }
    if arguments.out:
        write_atomic(Path(arguments.out), json.dumps(document, indent=1) + "\n")
    sys.stdout.write(_table(document))


def _say(error: FairmileError) -> None:
    sys.stderr.write(f"error: {error}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
    sys.stderr.flush()


def chosen_collectives(names: Sequence[str]) -> tuple[str, ...]:
    """Return the collectives to measure, the usual ones if none is named."""
    chosen = tuple(dict.fromkeys(collective_name(name) for name in names)) or DEFAULT_COLLECTIVES
    unknown = [name for name in chosen if name not in MEASURED]
    if unknown:
        raise UsageError(f"{unknown[0]} cannot be measured", hint=f"known: {', '.join(MEASURED)}")
    return chosen


def chosen_sizes(sizes: Sequence[str | int]) -> tuple[int, ...]:
    """Return the sizes to measure in bytes, the usual ones if none is named."""
    chosen = tuple(sorted({parse_size(size) for size in sizes})) or DEFAULT_SIZES
    if chosen[0] < 1:
        raise UsageError("the smallest size is 0 bytes, expected at least 1", hint="use sizes such as 1KiB,1MiB")
    return chosen


def _start_here(arguments: argparse.Namespace) -> int:
    """Start the ranks on this machine; they find each other through a file, so that no port can be taken already."""
    with tempfile.TemporaryDirectory(prefix="fairmile-ranks-") as folder:
        store = os.path.join(folder, "store")
        command = [
            sys.executable,
            "-P",
            "-m",
            "fairmile.costs.collectives",
            "--backend",
            arguments.backend,
            "--store",
            store,
        ]
        command += ["--seconds", str(arguments.seconds), "--out", arguments.out]
        command += ["--sizes", arguments.sizes, "--collectives", arguments.collectives]
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(arguments.ranks):
                environ = {
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(arguments.ranks),
                }
                started.append(subprocess.Popen(command, env=environ))
            return _waited_for(started)
        finally:
            for each in started:
                if each.poll() is None:
                    each.kill()
                each.wait()


def _waited_for(started: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return 0 when all ended well, or the first bad exit code: the others would wait for that one for ever."""
    while True:
        codes = [each.poll() for each in started]
        bad = next((code for code in codes if code), None)
        if bad is not None:
            return bad if bad > 0 else 1
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.02)


def _table(document: dict[str, Any]) -> str:
    lines = [f"{document['library']}, {document['ranks']} ranks on {document['nodes']} node(s)"]
    for row in document["points"]:
        bus = row["size_bytes"] / row["time_s"] * bus_factor(row["collective"], row["ranks"]) / 1e9
        lines.append(
            f"{row['collective']:16}{format_size(row['size_bytes']):>12}"
            f"{format_duration(row['time_s']):>12}{bus:>10.3f} GB/s"
        )
    lines += [f"{each['collective']:16}left out: {each['reason']}" for each in document["left_out"]]
    return "\n".join(lines) + "\n"
