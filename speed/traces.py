"""Measures reading and analysing the traces of eight ranks beside HolisticTraceAnalysis, and compares the totals.

Run: python speed/traces.py [--ranks N] [--size-mb N] [--repeat N] [--peer PYTHON] [--keep FOLDER] [--big-mb N]

Traces are made by speed/rig/kineto.py: what the PyTorch profiler writes of a training on GPUs, 50 MB a rank. The peer
(HolisticTraceAnalysis 0.5.0 with pandas 2, since it fails with 3) loads them and computes its temporal breakdown,
overlap of communication with computation and kernel breakdown; ours loads them, puts ranks on one clock, matches
collectives and computes breakdown, waiting, critical path and findings. Both are programs of their own, started in
turn; CPU time holds all their processes, memory the largest one alone. The goal: at most a tenth of the CPU time, at
most half of the memory, the same totals. Then two real ranks of gloo, of which the peer has nothing to tell, and one
large file, whose memory must not follow its size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig import kineto

PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas==2.3.3")
OURS = """
import json, sys
from pathlib import Path
from fairmile.traces.reading import read_traces
from fairmile.traces.analyze import analyze
found = analyze(read_traces(Path(sys.argv[1])))
ranks = {}
for each in found.breakdown.ranks:
    device = each.device
    ranks[each.rank] = None if device is None else [
        1e6 * device.idle_s, 1e6 * device.compute_s, 1e6 * device.non_compute_s, 1e6 * device.span_s,
        100 * device.overlap_s / device.communication_s if device.communication_s else 0.0]
steps = [each.total for each in found.breakdown.ranks]
print(json.dumps({
    "ranks": ranks, "events": found.events, "collectives": sum(len(each.meetings) for each in found.waiting.calls),
    "communication_s": [each.communication_s for each in steps], "notes": list(found.notes),
    "findings": [each.title for each in found.findings][:3],
}, default=str))
"""
LOAD = """
import json, sys
from pathlib import Path
from fairmile.traces.reading import read_traces
table = read_traces(Path(sys.argv[1]))
print(json.dumps({"events": len(table), "notes": table.notes}))
"""
THEIRS = """
import json, sys
if __name__ == "__main__":
    from hta.trace_analysis import TraceAnalysis
    trace = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
    times = trace.get_temporal_breakdown(visualize=False)
    overlap = trace.get_comm_comp_overlap(visualize=False)
    trace.get_gpu_kernel_breakdown(visualize=False)
    names = ["idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)"]
    ranks = {int(row["rank"]): [float(row[name]) for name in names] for _, row in times.iterrows()}
    for _, row in overlap.iterrows():
        ranks[int(row["rank"])].append(float(row["comp_comm_overlap_pctg"]))
    print(json.dumps({"ranks": ranks}))
"""
GLOO = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
def rank_main(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=int(sys.argv[2]))
    done = lambda profile: profile.export_chrome_trace(f"{folder}/rank{rank}.json")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule,
                                record_shapes=True, on_trace_ready=done) as profile:
        for _ in range(int(sys.argv[2]) + 2):
            optimizer.zero_grad()
            model(torch.randn(32, 256)).sum().backward()
            optimizer.step()
            profile.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(rank_main, (2, sys.argv[1]), nprocs=2)
"""
WHAT = ("idle µs", "compute µs", "other µs", "span µs", "overlap %")


@dataclass(frozen=True)
class Measured:
    """What a program took, all its processes together, and what it printed last."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    answer: dict[str, Any] | None
    output: str

    def __str__(self) -> str:
        return f"{self.cpu_s:7.2f} CPU s, {self.wall_s:7.1f} s, {self.peak_mb:6.0f} MB"


def measure(argv: list[str], folder: Path) -> Measured:
    """Run a program to its end; what it prints last is JSON."""
    code = folder.parent / f"program-{os.getpid()}.py"
    code.write_text(argv[1])
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        started = subprocess.Popen(
            [argv[0], str(code), *argv[2:]], stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder.parent
        )
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - began
        output.seek(0)
        text = output.read().strip()
    code.unlink()
    last = text.splitlines()[-1] if text else ""
    answer = json.loads(last) if not started.returncode and last.startswith("{") else None
    return Measured(used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss / 1024, answer, text)


def peer_python(given: Path | None, folder: Path) -> Path | str:
    """Return a Python that has the peer, or why there is none."""
    if given is not None:
        return given
    steps = [[sys.executable, "-m", "venv", str(folder)]]
    steps += [[str(folder / "bin/python"), "-m", "pip", "install", "-q", *PACKAGES]]
    for step in steps:
        done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return (done.stdout.strip().splitlines() or ["no reason given"])[-1]
    return folder / "bin/python"


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Say how far the totals of both lie apart; the peer rounds overlap to a hundredth of a per cent."""
    worst = [0.0] * len(WHAT)
    for rank, values in theirs["ranks"].items():
        mine = ours["ranks"][rank]
        print(
            f"    rank {rank}: "
            + ", ".join(f"{name} {one:.2f} / {two:.2f}" for name, one, two in zip(WHAT, mine, values, strict=True))
        )
        worst = [max(far, abs(one - two)) for far, one, two in zip(worst, mine, values, strict=True)]
    print("    farthest apart: " + ", ".join(f"{name} {far:.3f}" for name, far in zip(WHAT, worst, strict=True)))


def eight_ranks(folder: Path, python: Path | str, ranks: int, size_mb: int, repeat: int) -> None:
    traces = folder / "gpu"
    traces.mkdir(exist_ok=True)
    if not list(traces.glob("rank*.json")):
        kineto.write_ranks(traces, ranks, size_mb * 1_000_000)
    total = sum(file.stat().st_size for file in traces.iterdir())
    print(f"{ranks} ranks, {total / 1e6:.0f} MB")
    mine = [measure([sys.executable, OURS, str(traces)], traces) for _ in range(repeat)]
    for each in mine:
        print(f"  ours   {each}")
        if each.answer is None:
            raise SystemExit(each.output[-2000:])
    print(f"  ours, loading alone   {measure([sys.executable, LOAD, str(traces)], traces)}")
    if isinstance(python, str):
        print(f"  HolisticTraceAnalysis: left out, it cannot be installed: {python}")
        return
    peer = measure([str(python), THEIRS, str(traces)], traces)
    print(f"  peer   {peer}")
    if peer.answer is None:
        print(f"  peer failed: {peer.output[-500:]}")
        return
    mine.append(measure([sys.executable, OURS, str(traces)], traces))
    print(f"  ours   {mine[-1]}")
    cpu_s, peak = statistics.median(each.cpu_s for each in mine), max(each.peak_mb for each in mine)
    print(
        f"  CPU time {cpu_s / peer.cpu_s:.3f} of the peer's (goal 0.100), memory {peak / peer.peak_mb:.2f} (goal 0.50)"
    )
    assert mine[-1].answer is not None
    print("  totals, ours / peer")
    compare(mine[-1].answer, peer.answer)


def gloo(folder: Path, python: Path | str) -> None:
    traces = folder / "gloo"
    traces.mkdir(exist_ok=True)
    made = measure([sys.executable, GLOO, str(traces), "10"], traces)
    if len(list(traces.glob("rank*.json"))) != 2:
        print(f"two ranks of gloo: left out: {made.output[-300:]}")
        return
    (traces / "meet").unlink(missing_ok=True)
    mine = measure([sys.executable, OURS, str(traces)], traces)
    print("two real ranks of gloo")
    if mine.answer is None:
        raise SystemExit(mine.output[-2000:])
    said = ", ".join(f"{each:.4f}" for each in mine.answer["communication_s"])
    print(
        f"  ours: {mine.answer['collectives']} collectives matched, communication {said} s; {mine.answer['findings']}"
    )
    if not isinstance(python, str):
        peer = measure([str(python), THEIRS, str(traces)], traces)
        print(f"  peer: {peer.answer['ranks'] if peer.answer else 'fails: ' + peer.output.splitlines()[-1][:150]}")


def large(folder: Path, size_mb: int) -> None:
    traces = folder / "large"
    traces.mkdir(exist_ok=True)
    kineto.write_ranks(traces, 1, size_mb * 1_000_000)
    taken = measure([sys.executable, LOAD, str(traces)], traces)
    size = sum(file.stat().st_size for file in traces.iterdir())
    events = taken.answer["events"] if taken.answer else 0
    print(
        f"one rank of {size / 1e6:.0f} MB, {events:,} events: {taken}, {taken.peak_mb * 2**20 / size:.2f} bytes a byte"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--size-mb", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--big-mb", type=int, default=1000, help="0 leaves it out")
    parser.add_argument("--peer", type=Path, help="a Python that has HolisticTraceAnalysis and pandas 2")
    parser.add_argument("--keep", type=Path, help="a folder for the traces instead of a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep.resolve() if given.keep else Path(scratch)
        folder.mkdir(exist_ok=True, parents=True)
        python = peer_python(given.peer, Path(scratch) / "peer")
        eight_ranks(folder, python, given.ranks, given.size_mb, given.repeat)
        gloo(folder, python)
        if given.big_mb:
            large(folder, given.big_mb)


if __name__ == "__main__":
    main()
