"""Measures what a timer, an event and a metric cost, ours beside cloudmesh's StopWatch and MLPerf's logger.

Run: python speed/meter.py [--calls N] [--repeats N] [--peers PYTHON]…

CPU is user and system time of the whole process, its threads included, over N calls; ours includes turning them into
lines, appending these to a file each second and the last flush. StopWatch keeps one number in memory; MLPerf's logger
writes to a file. Each measurement is a process of its own; entrants take turns, so that all meet the same machine.
Figures are the best and the median over the repeats. `import` is over bare Python. `--peers` names an interpreter that
has the other packages; the one that runs this is always asked. A peer that no interpreter has is left out, and said so.
All takes about half a minute.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Each is a program that gets the number of calls and a folder, and prints the CPU time of one call in µs.
MEASURE = """\
import os, resource, sys
count, folder = int(sys.argv[1]), sys.argv[2]
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
def told(start):
    print((used() - start) / count * 1e6)
"""
OURS = MEASURE + "from fairmile.meter import Meter\nmeter = Meter(folder + '/events.jsonl')\nmeter.event('warm')\n"
MODULE = (
    MEASURE
    + "os.environ['FAIRMILE_EVENTS'] = folder + '/events.jsonl'\nfrom fairmile import meter\nmeter.event('warm')\n"
)
STOPWATCH = MEASURE + "from cloudmesh.common.StopWatch import StopWatch\n"
MLPERF = (
    MEASURE
    + """\
import logging
from mlperf_logging.mllog.mllog import MLLogger
to_file = logging.getLogger("file")
to_file.propagate = False
to_file.setLevel(logging.INFO)
to_file.addHandler(logging.FileHandler(folder + "/mllog.log"))
logger = MLLogger(to_file)
"""
)
MLLOG = MEASURE + "from fairmile.meter.mllog import MLLog\nlogger = MLLog(folder + '/mllog.log')\n"


def loop(body: str, last: str = "pass") -> str:
    """Return the program part that runs `body` so many times inside a function, where names are as cheap as usual."""
    start = "start = used()\nmain()\ntold(start)\n"
    return f"def main():\n    for number in range(count):\n        {body}\n    {last}\n{start}"


def ours(body: str) -> str:
    return OURS + loop(body, "meter.flush()")


@dataclass(frozen=True)
class Entrant:
    """One thing to measure: its program, the package it needs, and how many times fewer calls suffice."""

    name: str
    program: str
    package: str = "fairmile"
    fewer: int = 1


ENTRANTS = (
    Entrant("with meter.span(…) of a meter", ours("with meter.span('x'): pass")),
    Entrant("with meter.span(…) of the module", MODULE + loop("with meter.span('x'): pass", "meter.flush()")),
    Entrant("start(), stop()", ours("meter.start('x'); meter.stop('x')")),
    Entrant("  cloudmesh start, stop", STOPWATCH + loop("StopWatch.start('x'); StopWatch.stop('x')"), "cloudmesh"),
    Entrant("span with a number n", ours("with meter.span('x', n=number): pass")),
    Entrant("span with another attribute", ours("with meter.span('x', file='train.h5'): pass"), fewer=5),
    Entrant("span with two attributes", ours("with meter.span('x', n=number, rate=0.25): pass"), fewer=5),
    Entrant("event", ours("meter.event('x')"), fewer=5),
    Entrant("  cloudmesh event", STOPWATCH + loop("StopWatch.event('x')"), "cloudmesh"),
    Entrant("metric", ours("meter.log(loss=0.25, step=number)"), fewer=5),
    Entrant("MLLOG event", MLLOG + loop("logger.event('eval_accuracy', 0.5)"), fewer=20),
    # It walks the stack for each call and takes half a millisecond.
    Entrant("  mlperf-logging event", MLPERF + loop("logger.event('eval_accuracy', 0.5)"), "mlperf_logging", 1000),
)
IMPORTS = (
    ("fairmile.meter", "fairmile"),
    ("cloudmesh.common.StopWatch", "cloudmesh"),
    ("mlperf_logging.mllog", "mlperf_logging"),
)


def finder(pythons: Sequence[str]) -> Callable[[str], str | None]:
    """Return what finds the interpreter that has a package."""
    known: dict[str, str | None] = {}

    def find(package: str) -> str | None:
        if package not in known:
            probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
            known[package] = next(
                (each for each in pythons if not subprocess.run([each, "-c", probe]).returncode), None
            )
        return known[package]

    return find


def cpu_s(argv: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", action="append", default=[], metavar="PYTHON")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    find = finder([sys.executable, *options.peers])
    found: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for entrant in ENTRANTS:
            python = find(entrant.package)
            if python is None:
                continue
            with tempfile.TemporaryDirectory() as folder:
                argv = [python, "-c", entrant.program, str(options.calls // entrant.fewer), folder]
                printed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
            found.setdefault(entrant.name, []).append(float(printed.split()[-1]))
    print(f"{'µs of CPU':<40} {'best':>8} {'median':>8}")
    for entrant in ENTRANTS:
        if entrant.name in found:
            values = found[entrant.name]
            print(f"{entrant.name:<40} {min(values):8.2f} {statistics.median(values):8.2f}")
        else:
            print(f"{entrant.name:<40} left out: no interpreter has {entrant.package}")
    print(f"{'ms of CPU over bare Python':<40} {'best':>8} {'median':>8}")
    for module, package in IMPORTS:
        python = find(package)
        if python is None:
            continue
        bare, whole = [], []
        for _ in range(options.repeats):
            bare.append(cpu_s([python, "-c", "pass"]))
            whole.append(cpu_s([python, "-c", f"import {module}"]))
        best, median = min(whole) - min(bare), statistics.median(whole) - statistics.median(bare)
        print(f"import {module:<33} {best * 1e3:8.1f} {median * 1e3:8.1f}")


if __name__ == "__main__":
    main()
