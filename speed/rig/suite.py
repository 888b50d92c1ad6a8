"""Runs the default of every benchmark with several seeds on one machine, each recorded, and compares them in one table.

    PYTHONPATH=src python speed/rig/suite.py [OPTION ...] OUT [BENCHMARK [ARGUMENT ...]]

Options are --at-once N, --seeds 1,2, --cpu or --both, and --limit SECONDS. Without a benchmark all are run, qsvr with
one seed since it has seeds of its own; what follows one goes to `fairmile run`. OUT gets `suite.tar.gz`, the runs
without their weights, `table.md` and `table.json`. With --cpu each run has one thread and sees no GPU. With --both the
first seed also runs on the GPU, one benchmark after the other beside those on CPUs, so that the energy that the GPU
counts is that of one run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HEAVY = ("cosmoflow", "earthquake", "cloudmask", "deepcam")  # first, so that the last to end are short
NAMES = (*HEAVY, "opencatalyst", "stemdl", "miniweather", "uno", "sgemm", "mnist", "qsvr")
ONE_SEED, NO_GPU = ("qsvr",), ("qsvr",)
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
MOST_BYTES = 1 << 20  # of a file that is kept


def main() -> None:
    """Run the seeds of each benchmark and write what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seeds", default="1,2,3,4,5")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cpu", action="store_true")
    where.add_argument("--both", action="store_true")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which no run starts and none goes on")
    parser.add_argument("run", nargs=argparse.REMAINDER, help="one benchmark, and arguments of `fairmile run`")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + given.limit
    environ = {**os.environ, "XDG_DATA_HOME": str(Path(os.environ.get("TMPDIR", "/tmp")) / "suite" / given.out.name)}
    seeds = given.seeds.split(",")
    wanted = [given.run] if given.run else [[name] for name in NAMES]
    on_cpu = environ | CPU_ONLY if given.cpu or given.both else environ
    with ThreadPoolExecutor(given.at_once) as threads, ThreadPoolExecutor(1) as gpu:
        for words in wanted:
            more = ["-p", "device=cpu"] if given.both and words[0] not in NO_GPU else []
            for seed in seeds[:1] if words[0] in ONE_SEED else seeds:
                threads.submit(run, [*words, *more], seed, on_cpu, ends)
            if more:
                gpu.submit(run, [*words, "-p", "device=cuda"], seeds[0], environ | {"OMP_NUM_THREADS": "2"}, ends)
    for arguments in (["-o", str(given.out / "table.md")], ["--json"]):
        done = fairmile(["benchmark", "compare", *arguments], environ, 60)
        if arguments == ["--json"]:
            (given.out / "table.json").write_text(done.stdout)
        print(done.stderr[-1000:])
    pack(Path(environ["XDG_DATA_HOME"]) / "fairmile" / "runs", given.out / "suite.tar.gz")
    print((given.out / "table.md").read_text())


def run(words: list[str], seed: str, environ: dict[str, str], ends: float) -> None:
    """Run one seed and say how it ended."""
    left, began = ends - time.monotonic(), time.monotonic()
    if left < 5:
        print(f"-- {' '.join(words)} seed {seed}: not started, no time left", flush=True)
        return
    done = fairmile(["run", "--anyway", "--seed", seed, "--timeout", f"{left:.0f}s", *words], environ, left + 30)
    took = time.monotonic() - began
    print(f"-- {' '.join(words)} seed {seed}: {took:.1f} s, exit {done.returncode}", flush=True)
    if done.returncode:
        print((done.stdout + done.stderr)[-1500:], flush=True)


def fairmile(arguments: list[str], environ: dict[str, str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command of Fairmile by this interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "fairmile", *arguments], env=environ, capture_output=True, text=True, timeout=limit_s
    )


def pack(runs: Path, archive: Path) -> None:
    """Keep the folders of the runs without what is large."""

    def small(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if member.size > MOST_BYTES or member.name.endswith((".pt", ".so")) else member

    with tarfile.open(archive, "w:gz") as packed:
        packed.add(runs, "runs", filter=small)


if __name__ == "__main__":
    main()
