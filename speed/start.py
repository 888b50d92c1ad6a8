"""Measures how fast the command starts: CPU time over bare Python, best of several runs.

Run: python speed/start.py
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from cards import Writer, write_catalog

RUNS = 15
FAIRMILE = [sys.executable, "-c", "from fairmile.cli.main import main; main()"]


def cpu_ms(argv: list[str], environment: dict[str, str]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best * 1e3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        writer = Writer()
        for _ in write_catalog(home / "catalog", 1000, writer):
            pass
        environment = {**os.environ, "FAIRMILE_HOME": str(home)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([*FAIRMILE, "catalog", "reindex"], check=True, env=environment, stdout=subprocess.DEVNULL)
        bare = cpu_ms([sys.executable, "-c", "pass"], environment)
        print(f"{'bare Python':<40} {bare:6.1f} ms of CPU")
        commands = {
            "fairmile --version": ["--version"],
            "fairmile --help": ["--help"],
            "fairmile search word (1,000 cards)": ["search", writer.words[20]],
            "fairmile show NAME": ["show", "model/cosmoflow"],
        }
        for name, arguments in commands.items():
            whole = cpu_ms([*FAIRMILE, *arguments], environment)
            print(f"{name:<40} {whole:6.1f} ms of CPU, {whole - bare:6.1f} over bare Python")


if __name__ == "__main__":
    main()
