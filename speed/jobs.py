"""Measures what a trivial job costs, ours beside PSI/J, submitit and Parsl on the same real Slurm, and on this machine.

Run: python speed/jobs.py [--case NAME]… [--jobs N] [--repeats N] [--peers PYTHON]…

    slurm     N trivial jobs (touch a file) on a Slurm of four nodes with accounting, 2 cores each, on this machine:
              ours as N jobs, as one array and as one packed job; PSI/J with its own pace and asking each second;
              submitit as N jobs and as one array; Parsl, which starts workers and hands them the tasks; and sbatch in
              a loop. `submit` is until the last job was handed over, `total` until the client knows that all have
              ended. CPU is user and system time of the client and all of its children, with its start and its
              imports. The commands of the scheduler that the client runs are counted by wrappers that stand before
              the real ones. A job asks for one core, the packed job for a node, Parsl for three.
    local     CPU of one trivial job on this machine: that of the client, of every process it starts and of the job
              itself, from the difference between many jobs and few, so that start and imports drop out

Every client is a Python of its own that ends when all of its jobs have; what they had to leave behind is counted
afterwards, outside the clock. Figures are medians over the repeats. `--peers` names an interpreter that has the other
libraries; the one that runs this is always asked. A peer that no interpreter has is left out, and said so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "support"))

from slurm_cluster import SlurmCluster, reason_to_skip  # noqa: E402
from slurm_jobs import system_text  # noqa: E402

COUNTED = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun")
ASKING = ("squeue", "sacct", "scontrol", "sinfo")
PR_SET_CHILD_SUBREAPER = 36

# Each is a program that gets the number of jobs and a folder, and calls told(submitted) when all have ended. Job
# number i touches the file FOLDER/done/i.
START = """\
import json, os, sys, time
from pathlib import Path
count, folder = int(sys.argv[1]), Path(sys.argv[2])
files = [str(folder / "done" / str(number)) for number in range(count)]
def told(start, submitted):
    print(json.dumps({"submit_s": submitted - start, "total_s": time.monotonic() - start}))
"""
OURS = (
    START
    + """\
from fairmile.jobs.machines import Machines
from fairmile.jobs.packing import packed
from fairmile.jobs.queue import Jobs
from fairmile.jobs.spec import Array, JobSpec, Resources
one = Resources(cpus_per_task=1) if sys.argv[4] == "rig" else Resources()
form, system = sys.argv[3:]
reaches = {"rig": {"file": str(folder / "rig.yaml")}} if system == "rig" else {}
jobs = Jobs(folder / "jobs", Machines([], folder / "jobs", reaches=reaches))
start = time.monotonic()
if form == "array":
    argv = ("sh", "-c", f"exec touch {folder}/done/$FAIRMILE_ARRAY_INDEX")
    ids = [jobs.submit(JobSpec(argv=argv, array=Array(count=count), resources=one), on=system).id]
elif form == "packed":
    ids = [jobs.submit(packed([["touch", file] for file in files]), on=system).id]
else:
    ids = [jobs.submit(JobSpec(argv=("touch", file), resources=one), on=system).id for file in files]
submitted = time.monotonic()
assert all(job.state == "done" for job in jobs.wait(ids))
told(start, submitted)
"""
)
PSIJ = (
    START
    + """\
from psij import Job, JobExecutor, JobSpec, ResourceSpecV1
from psij.executors.batch.slurm import SlurmExecutorConfig
kind, pace = sys.argv[3:]
config = SlurmExecutorConfig(queue_polling_interval=int(pace)) if kind == "slurm" else None
executor = JobExecutor.get_instance(kind, config=config)
start = time.monotonic()
jobs = [Job(JobSpec(executable="/usr/bin/touch", arguments=[file], resources=ResourceSpecV1(process_count=1)))
        if kind == "slurm" else Job(JobSpec(executable="/usr/bin/touch", arguments=[file])) for file in files]
for job in jobs:
    executor.submit(job)
submitted = time.monotonic()
for job in jobs:
    job.wait()
told(start, submitted)
"""
)
SUBMITIT = (
    START
    + """\
import subprocess, submitit
executor = submitit.SlurmExecutor(folder=folder / "submitit")
executor.update_parameters(time=10, partition="cpu", array_parallelism=1000)
def touch(file):
    return subprocess.run(["touch", file]).returncode
start = time.monotonic()
jobs = executor.map_array(touch, files) if sys.argv[3] == "array" else [executor.submit(touch, file) for file in files]
submitted = time.monotonic()
assert [job.result() for job in jobs] == [0] * count
told(start, submitted)
"""
)
PARSL = (
    START
    + """\
from parsl import bash_app
from parsl.config import Config
from parsl.dataflow.dflow import DataFlowKernel
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import SlurmProvider
os.environ["PATH"] = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
start = time.monotonic()
provider = SlurmProvider(partition="cpu", cores_per_node=2, init_blocks=3, max_blocks=3, exclusive=False,
                         scheduler_options="#SBATCH --mem=1500", walltime="00:10:00", launcher=SimpleLauncher(),
                         worker_init="export PATH=" + os.path.dirname(sys.executable) + ":$PATH")
executor = HighThroughputExecutor(address="127.0.0.1", max_workers_per_node=2, provider=provider)
kernel = DataFlowKernel(Config(executors=[executor], run_dir=str(folder / "parsl")))
@bash_app(data_flow_kernel=kernel)
def touch(file):
    return f"exec touch {file}"
futures = [touch(file) for file in files]
submitted = time.monotonic()
assert [future.result() for future in futures] == [0] * count
told(start, submitted)
kernel.cleanup()
"""
)
SBATCH = (
    START
    + """\
import subprocess
start = time.monotonic()
for file in files:
    subprocess.run(["sbatch", "--output=/dev/null", f"--wrap=exec touch {file}"], check=True, stdout=subprocess.DEVNULL)
submitted = time.monotonic()
while subprocess.run(["squeue", "-h"], capture_output=True).stdout:
    time.sleep(1)
told(start, submitted)
"""
)
PROCESSES = (
    START
    + """\
import subprocess
start = time.monotonic()
jobs = [subprocess.Popen(["bash", "-c", f"touch {file}; exit"]) for file in files]
submitted = time.monotonic()
for job in jobs:
    job.wait()
told(start, submitted)
"""
)


@dataclass(frozen=True)
class Entrant:
    """A client: its program, the library it needs, and its further arguments."""

    name: str
    program: str
    library: str = ""
    arguments: tuple[str, ...] = ()


@dataclass
class Result:
    """All that one entrant's repeats took."""

    values: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, measured: dict[str, float]) -> None:
        for name, value in measured.items():
            self.values.setdefault(name, []).append(value)

    def value(self, name: str) -> float:
        return statistics.median(self.values[name])


class Bench:
    """Where things are, how many jobs are made, and who runs what."""

    def __init__(self, scratch: Path, jobs: int, repeats: int, peers: Sequence[str]) -> None:
        self.scratch = scratch
        self.jobs = jobs
        self.repeats = repeats
        self._pythons = [sys.executable, *peers]
        self._known: dict[str, str] = {"": sys.executable}

    def python(self, library: str) -> str:
        """Return an interpreter that has a library; empty where none has."""
        if library not in self._known:
            question = f"import {library}"
            able = (each for each in self._pythons if _ends_well([each, "-c", question]))
            self._known[library] = next(able, "")
        return self._known[library]

    def run(self, entrant: Entrant, jobs: int, environ: dict[str, str], prepare: Callable[[Path], None]) -> Result:
        """Run an entrant once, with all of its jobs to their end."""
        result = Result()
        # Nothing is removed before the end: ext4 searches long for a place for new files where many went just before.
        name = tempfile.mkdtemp(dir=self.scratch)
        folder = Path(name)
        (folder / "done").mkdir()
        prepare(folder)
        argv = [self.python(entrant.library), "-c", entrant.program, str(jobs), name, *entrant.arguments]
        measured, said = measure(argv, {**os.environ, **environ, "HOME": name}, folder)
        try:
            measured |= json.loads(said.strip().splitlines()[-1])
        except (ValueError, IndexError):
            result.problems.append(said.strip()[-400:] or "it said nothing")
            measured |= {"submit_s": float("nan"), "total_s": float("nan")}
        done = len(list((folder / "done").iterdir()))
        if done != jobs:
            result.problems.append(f"{done} of {jobs} jobs left their file")
        result.add(measured)
        return result

    def race(
        self, entrants: Sequence[Entrant], jobs: int, environ: dict[str, str], prepare: Callable[[Path], None]
    ) -> dict[str, Result]:
        results = {each.name: Result() for each in entrants if self._is_there(each)}
        for _ in range(self.repeats):
            for each in entrants:
                if each.name in results:
                    once = self.run(each, jobs, environ, prepare)
                    results[each.name].add({name: values[0] for name, values in once.values.items()})
                    results[each.name].problems += once.problems
        return results

    def _is_there(self, entrant: Entrant) -> bool:
        if self.python(entrant.library):
            return True
        print(f"  {entrant.name}: left out, no interpreter has {entrant.library}")
        return False


def measure(argv: Sequence[str], environ: dict[str, str], folder: Path) -> tuple[dict[str, float], str]:
    """Run a command until it and every process that descends from it have ended; return what they used.

    Processes that nobody waits for come to a process of our own, which does: so the CPU of all is known.
    """
    output, figures = folder / "said", folder / "figures"
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            with output.open("wb") as said:
                subprocess.Popen(argv, env=environ, cwd=folder, stdout=said, stderr=subprocess.STDOUT)
                while True:
                    try:
                        os.wait()
                    except ChildProcessError:
                        break
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            figures.write_text(json.dumps({"cpu_s": used.ru_utime + used.ru_stime}))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return json.loads(figures.read_text()), output.read_text(errors="replace")


def slurm(bench: Bench) -> None:
    why_not = reason_to_skip(accounting=True)
    if why_not:
        print(f"\nslurm: {why_not}")
        return
    entrants = [
        Entrant("ours, jobs", OURS, arguments=("jobs", "rig")),
        Entrant("ours, one array", OURS, arguments=("array", "rig")),
        Entrant("ours, one packed job", OURS, arguments=("packed", "rig")),
        Entrant("PSI/J, asks each 30 s", PSIJ, "psij", ("slurm", "30")),
        Entrant("PSI/J, asks each second", PSIJ, "psij", ("slurm", "1")),
        Entrant("submitit, jobs", SUBMITIT, "submitit", ("jobs",)),
        Entrant("submitit, one array", SUBMITIT, "submitit", ("array",)),
        Entrant("Parsl, 3 pilot jobs", PARSL, "parsl"),
        Entrant("sbatch in a loop", SBATCH),
    ]
    with SlurmCluster(with_accounting=True) as cluster:
        _title(f"slurm: {bench.jobs} trivial jobs, 4 nodes of 2 cores, accounting on", bench)
        log = bench.scratch / "calls"
        environ = {**cluster.environ, "PATH": f"{_wrappers(bench.scratch / 'bin', log)}:{os.environ['PATH']}"}
        results: dict[str, Result] = {}

        def prepare(folder: Path) -> None:
            cluster.wait_idle()
            log.write_text("")
            (folder / "rig.yaml").write_text(system_text(cluster))

        for entrant in entrants:
            for name, result in bench.race([entrant], bench.jobs, environ, prepare).items():
                # The wrappers note one call a line; of several repeats the last is shown.
                result.add(dict(_calls(log)))
                results[name] = result
                _print_row(name, result)
    _slurm_verdicts(results, bench)


def _slurm_verdicts(results: dict[str, Result], bench: Bench) -> None:
    for name, peers in {
        "ours, jobs": ("PSI/J, asks each second", "submitit, jobs", "sbatch in a loop"),
        "ours, one array": ("submitit, one array",),
        "ours, one packed job": ("Parsl, 3 pilot jobs",),
    }.items():
        for peer in peers:
            for what, label in (("submit_s", "submit"), ("total_s", "total"), ("cpu_s", "CPU")):
                _compare(results, what, label, name, peer)
    for name in ("ours, jobs", "ours, one array", "ours, one packed job"):
        if name in results:
            result = results[name]
            asked = sum(result.value(word) for word in ASKING)
            minutes = max(result.value("total_s") / 60, 1.0)
            if name != "ours, jobs":
                handed = sum(result.value(word) for word in COUNTED) - asked
                _verdict(f"{name}: commands without those that ask", handed, at_most=2)
            _verdict(f"{name}: commands that ask, per minute", asked / minutes, at_most=2)


def _wrappers(folder: Path, log: Path) -> Path:
    folder.mkdir()
    for name in COUNTED:
        real = shutil.which(name)
        if real:
            (folder / name).write_text(f'#!/bin/sh\n[ -n "$SLURM_JOB_ID" ] || echo {name} >> {log}\nexec {real} "$@"\n')
            (folder / name).chmod(0o755)
    return folder


def _calls(log: Path) -> dict[str, float]:
    words = log.read_text().split()
    return {name: float(words.count(name)) for name in COUNTED}


def local(bench: Bench) -> None:
    few = max(bench.jobs // 10, 5)
    _title(f"local: CPU of one trivial job, from {few + bench.jobs} jobs and {few}", bench)
    entrants = [
        Entrant("ours, jobs", OURS, arguments=("jobs", "laptop")),
        Entrant("ours, one array", OURS, arguments=("array", "laptop")),
        Entrant("ours, one packed job", OURS, arguments=("packed", "laptop")),
        Entrant("PSI/J, local", PSIJ, "psij", ("local", "1")),
        Entrant("bash alone", PROCESSES),
    ]

    def prepare(folder: Path) -> None:
        return None

    small = bench.race(entrants, few, {}, prepare)
    large = bench.race(entrants, few + bench.jobs, {}, prepare)
    print(f"  {'':<28} {'CPU ms a job':>12} {'wall ms a job':>14} {'start and imports, CPU s':>26}")
    costs: dict[str, float] = {}
    for name, result in large.items():
        base = small[name]
        costs[name] = (result.value("cpu_s") - base.value("cpu_s")) / bench.jobs * 1000
        wall = (result.value("total_s") - base.value("total_s")) / bench.jobs * 1000
        rest = base.value("cpu_s") - costs[name] / 1000 * few
        problems = "; ".join([*base.problems, *result.problems]) or "all ran"
        print(f"  {name:<28} {costs[name]:12.2f} {wall:14.2f} {rest:26.2f}  {problems}")
    for name in ("ours, jobs", "ours, one array", "ours, one packed job"):
        _verdict(f"CPU ms: {name}", costs[name], at_most=5)
    if "PSI/J, local" in costs:
        _verdict("CPU: ours, jobs / PSI/J, local", costs["ours, jobs"] / costs["PSI/J, local"])
    _verdict("CPU: ours, jobs / bash alone", costs["ours, jobs"] / costs["bash alone"])


def _ends_well(argv: Sequence[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _title(text: str, bench: Bench) -> None:
    print(f"\n{text}\n  median of {bench.repeats}; load before {os.getloadavg()[0]:.1f}", flush=True)
    if text.startswith("slurm"):
        columns = " ".join(f"{name:>8}" for name in COUNTED)
        print(f"  {'':<28} {'submit s':>9} {'total s':>8} {'CPU s':>7} {columns}")


def _print_row(name: str, result: Result) -> None:
    calls = " ".join(f"{result.value(word):8.0f}" for word in COUNTED)
    times = f"{result.value('submit_s'):9.2f} {result.value('total_s'):8.2f} {result.value('cpu_s'):7.2f}"
    print(f"  {name:<28} {times} {calls}  {'; '.join(result.problems) or 'all ran'}", flush=True)


def _compare(results: dict[str, Result], what: str, label: str, name: str, peer: str) -> None:
    if name not in results or peer not in results:
        return
    if results[name].problems or results[peer].problems:
        print(f"    {label}: {name} / {peer}: not compared, one of them failed")
        return
    _verdict(f"{label}: {name} / {peer}", results[name].value(what) / results[peer].value(what))


def _verdict(label: str, value: float, *, at_most: float | None = None) -> None:
    wanted = "" if at_most is None else f"wanted ≤ {at_most:.3g}: {'holds' if value <= at_most else 'MISSED'}"
    print(f"    {label:<62} {value:7,.2f} {wanted}", flush=True)


CASES = {case.__name__: case for case in (slurm, local)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--case", action="append", choices=list(CASES), help="this case only; may be given several times"
    )
    parser.add_argument("--jobs", type=int, default=100, help="how many jobs (100)")
    parser.add_argument("--repeats", type=int, default=1, help="how often each client runs (1)")
    parser.add_argument("--peers", action="append", default=[], help="a Python that has the other libraries")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="fairmile-speed-", ignore_cleanup_errors=True) as scratch:
        bench = Bench(Path(scratch), options.jobs, options.repeats, options.peers)
        started = time.monotonic()
        print(f"{os.cpu_count()} cores, Linux {os.uname().release}, files below {scratch}")
        for name in options.case or CASES:
            CASES[name](bench)
        print(f"\n{time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
