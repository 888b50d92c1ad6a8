"""Measures what recording costs: a trivial run beside peers, and lists of 10,000 runs.

Run: python speed/runs.py [--case NAME]… [--runs N] [--peers BIN]…

    record    CPU of one recorded run of `true` in one warm process over a bare spawn of it, and what Snakemake, ReFrame
              and Hydra take for the same: each from the difference between many runs and few, so that start and
              imports drop out. Hydra starts no program at all; its jobs are calls in one process.
    lists     CPU of `fairmile status` and `fairmile runs ls` on 10,000 runs, with the index at hand and without

CPU is user and system time of a process and all of its children. `--peers` names a folder with the programs
`snakemake`, `reframe` and a `python` that has Hydra; a peer that is not there is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

FAIRMILE = [sys.executable, "-c", "from fairmile.cli.main import main; main()"]
LISTED = 10_000
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


def lists() -> None:
    print(f"lists of {LISTED:,} runs, CPU of the whole command")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_runs(folder / "home" / "runs")
        for label, arguments in {
            "runs reindex": ["runs", "reindex"],
            "status": ["status"],
            "runs ls": ["runs", "ls"],
            "runs ls --state failed": ["runs", "ls", "--state", "failed"],
            "runs ls --all --json": ["runs", "ls", "--all", "--json"],
        }.items():
            print(f"  fairmile {label:<24} {cpu_s([*FAIRMILE, *arguments], folder):6.3f} s")


def _make_runs(root: Path) -> None:
    """Write records as the recorder writes them."""
    with tempfile.TemporaryDirectory() as name:
        cpu_s([sys.executable, "-c", OURS, "1"], Path(name))
        (made,) = (Path(name) / "home" / "runs").glob("true-*")
        document = json.loads((made / "run.json").read_text())
    for number in range(LISTED):
        folder = root / f"true-{number:06d}"
        folder.mkdir(parents=True)
        state = "failed" if number % 10 == 0 else "done"
        loss = {"value": 1 / (number + 1), "first": 1, "min": 0, "max": 1, "mean": 0.5, "count": 3}
        loss |= {"unit": "", "better": "lower", "tolerance": None}
        result = {**document["result"], "state": state, "metrics": {"loss": loss}}
        record = {**document, "id": folder.name, "created": 1.7e9 + number, "state": state, "result": result}
        (folder / "run.json").write_text(json.dumps(record))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=["record", "lists"])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--peers", action="append", type=Path, default=[], metavar="BIN")
    given = parser.parse_args()
    cases = given.case or ["record", "lists"]
    if "record" in cases:
        record(given.runs, [*given.peers, Path(sys.executable).parent])
    if "lists" in cases:
        lists()


if __name__ == "__main__":
    main()
