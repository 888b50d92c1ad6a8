"""Measures what it costs to watch which files a program opens: a run that is watched beside one that is not.

Run: python speed/watching.py [--seconds S] [--repeats N] [--only PROGRAM...]

Programs compute for some seconds in Python and read files: `one` reads one data file of 8 MB, `many` opens 2,000 small
files once, `library` imports 300 modules of the standard library, `processes` starts 200 processes. `shell` is a shell
script that starts `cat` and `wc` 200 times each and then computes in one `awk`. `points` is a sweep of three points,
each of which reads the data file. Each is run by the recorder, watched by the preloaded library, by the audit hook of
Python, and not at all (`FAIRMILE_WATCH=off`). CPU is user and system time of the recorder with all of its children,
wall is the time until the record is written. Entrants take turns, and the first round, which builds the library, does
not count. A ratio is the median over rounds, each beside the run of that round that is not watched; in brackets stands
the 95 % interval of that median.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPUTE = "import sys, time\nuntil = time.process_time() + float(sys.argv[1])\n"
REST = "while time.process_time() < until:\n    sum(range(1000))\n"
PROGRAMS = {
    "one": "len(open('data.bin', 'rb').read())\n",
    "many": "for number in range(2000):\n    open(f'small/{number}.txt').read()\n",
    "library": "import pkgutil, importlib, contextlib\n"
    "for module in list(pkgutil.iter_modules())[:300]:\n"
    "    if module.name.islower() and module.name not in ('antigravity', 'this', 'idlelib', 'turtledemo'):\n"
    "        with contextlib.suppress(BaseException):\n            importlib.import_module(module.name)\n",
    "processes": "import subprocess\nfor _ in range(200):\n    subprocess.run(['true'])\n",
    "points": "len(open('data.bin', 'rb').read())\n",
}
# Numbers that awk adds in a second, roughly.
SHELL = """#!/bin/sh
for number in $(seq 200); do cat small/$number.txt > /dev/null; wc -c small/$number.txt > /dev/null; done
awk -v seconds="$1" 'BEGIN { until = seconds * 1.5e7; while (number < until) number++ }'
"""
COMMANDS = {name: ["run", "--again", f"{name}.py", "SECONDS"] for name in PROGRAMS} | {
    "points": ["sweep", "points.py", "SECONDS", "--n", "1,2,3"],
    "shell": ["run", "--again", "./shell.sh", "SECONDS"],
}
MEANS = {"none": "off", "library preloaded": "", "audit hook": "python"}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=3.0)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--only", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    given = arguments.parse_args()
    print(f"{'program':10} {'watched by':18} {'CPU s':>8} {'ratio':>22} {'wall s':>8} {'ratio':>22}")
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder, "work"))
        for program in given.only:
            measured = measure(program, Path(folder), given.seconds, given.repeats)
            for name in MEANS:
                print(f"{program:10} {name:18}", *(figures(measured, name, kind) for kind in (0, 1)), flush=True)


def figures(measured: dict[str, list[tuple[float, float]]], name: str, kind: int) -> str:
    """Return the median time of a means, and its ratio to no watch with the interval of that: order statistics."""
    ours, bare = ([each[kind] for each in measured[which]] for which in (name, "none"))
    ratios = sorted(one / other for one, other in zip(ours, bare, strict=True))
    count, rank = len(ratios), 0
    chance = 0.5**count  # that as many as `rank` lie below the true median, as with a coin
    while chance <= 0.025:
        rank += 1
        chance += math.comb(count, rank) / 2**count
    low, high = ratios[max(rank - 1, 0)], ratios[min(count - rank, count - 1)]
    return f"{statistics.median(ours):8.3f} {statistics.median(ratios):7.3f} [{low:.3f}, {high:.3f}]"


def prepare(work: Path) -> None:
    (work / "small").mkdir(parents=True)
    (work / "data.bin").write_bytes(os.urandom(8_000_000))
    for number in range(2000):
        (work / "small" / f"{number}.txt").write_text(str(number))
    for name, text in PROGRAMS.items():
        (work / f"{name}.py").write_text(COMPUTE + text + REST)
    (work / "shell.sh").write_text(SHELL)
    (work / "shell.sh").chmod(0o755)


def measure(program: str, folder: Path, seconds: float, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Return CPU and wall time of each run, by what watches."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in MEANS}
    for turn in range(repeats + 1):
        for name, choice in MEANS.items():
            before, begins = used(), time.perf_counter()
            words = [str(seconds) if word == "SECONDS" else word for word in COMMANDS[program]]
            command = [sys.executable, "-m", "fairmile", *words]
            environ = {**os.environ, "FAIRMILE_HOME": str(folder / "home"), "FAIRMILE_WATCH": choice}
            subprocess.run(command, cwd=folder / "work", env=environ, check=True, capture_output=True)
            if turn:
                measured[name].append((used() - before, time.perf_counter() - begins))
    return measured


def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
