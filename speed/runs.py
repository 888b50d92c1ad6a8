"""Measures what recording costs: a trivial run beside peers, and lists of many runs.

Run: python speed/runs.py [--case NAME]… [--runs N] [--listed N] [--peers BIN]…

    record    CPU of one recorded run of `true` in one warm process over a bare spawn of it, and what Snakemake, ReFrame
              and Hydra take for the same: each from the difference between many runs and few, so that start and
              imports drop out. Hydra starts no program at all; its jobs are calls in one process.
    lists     CPU of `fairmile status` and `fairmile runs ls` on 100,000 runs, with the index at hand and without; of
              `fm.runs` and the page of runs, in a warm process; and of `find`, which looks at each record's time, and
              of SQLite reading the same rows

CPU is user and system time of a process and all of its children. `--peers` names a folder with the programs
`snakemake`, `reframe` and a `python` that has Hydra; a peer that is not there is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FAIRMILE = [sys.executable, "-c", "from fairmile.cli.main import main; main()"]
OURS = """\
import sys
from fairmile.workspace import Workspace
runs = Workspace.open().runs
for _ in range(int(sys.argv[1])):
    assert runs.run(["true"]).state == "done"
"""
SPAWN = """\
import subprocess, sys
for _ in range(int(sys.argv[1])):
    subprocess.run(["true"], check=True)
"""
HYDRA = """\
import sys
import hydra
@hydra.main(version_base=None, config_path=None)
def run(config):
    pass
sys.argv = ["run", "-m", f"+x=range({sys.argv[1]})"]
run()
"""
WARM = """\
import time
from fairmile.runs.record.query import RunQuery
from fairmile.runs.record.run import RunState
from fairmile.workspace import Workspace
runs = Workspace.open().runs
def measure(label, call):
    began = time.process_time()
    count = call()
    print(f"  {'warm process: ' + label:<40} {time.process_time() - began:6.3f} s, {count:,} runs", flush=True)
for name in ("the first time", "again"):
    measure(f"page of runs, {name}", lambda: runs.page(RunQuery()).total)
measure("page, lr>=0.01 loss<0.2", lambda: runs.page(RunQuery("lr>=0.01 loss<0.2")).total)
measure("page, sorted by accuracy", lambda: runs.page(RunQuery(sort="-accuracy")).total)
measure("runs.ls(limit=20)", lambda: len(runs.ls(limit=20)))
measure("runs.ls(states=failed)", lambda: len(runs.ls(states=[RunState.FAILED])))
measure("runs.ls()", lambda: len(runs.ls()))
"""
SNAKEFILE = """\
rule all:
    input: expand("done/{n}", n=range(COUNT))
rule one:
    output: "done/{n}"
    shell: "touch {output}"
"""
REFRAME = """\
import reframe as rfm
import reframe.utility.sanity as sn

@rfm.simple_test
class True_(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "true"
    n = parameter(range(COUNT))

    @sanity_function
    def ok(self):
        return sn.assert_true(1)
"""


def cpu_s(argv: list[str], folder: Path) -> float:
    """Return the CPU of a command and all of its children."""
    environ = {**os.environ, "FAIRMILE_HOME": str(folder / "home"), "HOME": str(folder)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stdout.decode(errors="replace")[-600:])
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def each_ms(make: dict[str, str], argv: list[str], few: int, many: int) -> float:
    """Return the CPU of one run, from the difference between many and few; COUNT stands for their number."""
    taken = []
    for count in (few, many):
        with tempfile.TemporaryDirectory() as name:
            for file, text in make.items():
                (Path(name) / file).write_text(text.replace("COUNT", str(count)))
            taken.append(cpu_s([word.replace("COUNT", str(count)) for word in argv], Path(name)))
    return (taken[1] - taken[0]) / (many - few) * 1e3


def record(runs: int, peers: list[Path]) -> None:
    print(f"one recorded run of `true`, CPU, from {runs} runs (peers from fewer)")
    bare = each_ms({}, [sys.executable, "-c", SPAWN, "COUNT"], 10, runs)
    ours = each_ms({}, [sys.executable, "-c", OURS, "COUNT"], 10, runs)
    print(f"  {'bare spawn':<28} {bare:8.2f} ms")
    print(f"  {'ours':<28} {ours:8.2f} ms, {ours - bare:.2f} over the bare spawn")
    few = max(runs // 5, 20)
    entrants = {
        "Snakemake": ("snakemake", {"Snakefile": SNAKEFILE}, ["-c1", "-q", "all"]),
        "ReFrame": ("reframe", {"check.py": REFRAME}, ["-c", "check.py", "-r", "--exec-policy=serial"]),
        "Hydra (nothing is started)": ("python", {"hydra_run.py": HYDRA}, ["hydra_run.py", "COUNT"]),
    }
    for name, (program, files, arguments) in entrants.items():
        found = next((each / program for each in peers if (each / program).exists()), None)
        if found is None:
            print(f"  {name}: left out, there is no {program}")
            continue
        try:
            theirs = each_ms(files, [str(found), *arguments], few // 4, few)
        except RuntimeError as error:
            print(f"  {name}: left out, it failed: {str(error).splitlines()[-1]}")
            continue
        print(f"  {name:<28} {theirs:8.2f} ms, {(theirs - bare) / (ours - bare):.1f} × ours over the bare spawn")


def lists(count: int) -> None:
    print(f"lists of {count:,} runs, CPU of the whole command")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = folder / "home" / "runs"
        _make_runs(root, count)
        for label, arguments in {
            "runs reindex": ["runs", "reindex"],
            "status": ["status"],
            "runs ls": ["runs", "ls"],
            "runs ls --state failed": ["runs", "ls", "--state", "failed"],
            "runs ls --tag night": ["runs", "ls", "--tag", "night"],
            "runs ls --all --json": ["runs", "ls", "--all", "--json"],
        }.items():
            print(f"  {f'fairmile {label}':<40} {cpu_s([*FAIRMILE, *arguments], folder):6.3f} s", flush=True)
        print(f"  {'bare Python':<40} {cpu_s([sys.executable, '-c', 'pass'], folder):6.3f} s")
        find = ["find", str(root), "-mindepth", "2", "-name", "run.json", "-newermt", "2100-01-01"]
        print(f"  {'find, the time of every record':<40} {cpu_s(find, folder):6.3f} s")
        for label, condition in {"the last 20": "1", "failed": "state = 'failed'"}.items():
            query = f"SELECT * FROM runs WHERE {condition} ORDER BY created DESC LIMIT 20"
            rows = f"import sqlite3; sqlite3.connect({str(root / '.index.sqlite')!r}).execute({query!r}).fetchall()"
            print(f"  {f'Python and SQLite, {label}':<40} {cpu_s([sys.executable, '-c', rows], folder):6.3f} s")
        print(cpu_text([sys.executable, "-c", WARM], folder), end="")


def cpu_text(argv: list[str], folder: Path) -> str:
    """Return what a program prints that measures itself."""
    environ = {**os.environ, "FAIRMILE_HOME": str(folder / "home"), "HOME": str(folder)}
    return subprocess.run(argv, env=environ, cwd=folder, stdout=subprocess.PIPE, check=True, text=True).stdout


def _make_runs(root: Path, count: int) -> None:
    """Write records as the recorder writes them, of programs with parameters, metrics, groups, systems and tags."""
    with tempfile.TemporaryDirectory() as name:
        cpu_s([sys.executable, "-c", OURS, "1"], Path(name))
        (made,) = (Path(name) / "home" / "runs").glob("true-*")
        document = json.loads((made / "run.json").read_text())
    drawn = random.Random(1)
    for number in range(count):
        name = drawn.choice(("train", "tides", "cosmoflow", "evaluate", "prepare"))
        folder = root / f"{name}-{number:06d}"
        folder.mkdir(parents=True)
        state = "failed" if number % 10 == 0 else "done"
        metrics: dict[str, dict[str, Any]] = {}
        for metric, better in (("loss", "lower"), ("accuracy", "higher"), ("samples_per_s", "higher")):
            value = drawn.random()
            metrics[metric] = {"value": value, "first": 1, "min": 0, "max": 1, "mean": 0.5, "count": 3}
            metrics[metric] |= {"unit": "", "better": better, "tolerance": None}
        params = {"lr": drawn.choice((0.1, 0.01, 0.001)), "batch": drawn.choice((8, 16, 32)), "seed": number}
        asked = {**document["spec"], "name": name, "params": params, "group": f"sweep-{number // 100}"}
        asked |= {"tags": ["night"] if number % 7 == 0 else [], "system": drawn.choice(("", "juwels", "lumi"))}
        result = {**document["result"], "state": state, "metrics": metrics}
        record = {**document, "id": folder.name, "created": 1.7e9 + number, "spec": asked}
        (folder / "run.json").write_text(json.dumps({**record, "state": state, "result": result}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=["record", "lists"])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--listed", type=int, default=100_000)
    parser.add_argument("--peers", action="append", type=Path, default=[], metavar="BIN")
    given = parser.parse_args()
    cases = given.case or ["record", "lists"]
    if "record" in cases:
        record(given.runs, [*given.peers, Path(sys.executable).parent])
    if "lists" in cases:
        lists(given.listed)


if __name__ == "__main__":
    main()
