"""What the tests of traces run as two ranks: a small training, whose rank 1 dawdles between steps, and collectives.

Arguments: folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 6
DAWDLES_S = 0.06


def main(folder: Path) -> None:
    """Be one of the ranks: train, then call collectives, and write the trace of each."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    train(folder, rank)
    call_collectives(folder, rank)
    dist.destroy_process_group()


def train(folder: Path, rank: int) -> None:
    """Train for a few steps and write the trace of this rank."""
    inner = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    model = DistributedDataParallel(inner, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16 * (STEPS + 2), 64)), batch_size=16)
    plan = schedule(wait=0, warmup=2, active=STEPS, repeat=1)

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))

    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True, on_trace_ready=write
    ) as profiler:
        for (batch,) in data:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 1:
                time.sleep(DAWDLES_S)
            profiler.step()


def call_collectives(folder: Path, rank: int) -> None:
    """Write a trace of two steps of collectives and messages, and what the flight recorder holds of all."""
    plan = schedule(wait=0, warmup=1, active=2)

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(str(folder / f"collectives_rank{rank}.json"))

    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True, on_trace_ready=write
    ) as profiler:
        for _ in range(3):
            x, doubles = torch.ones(1000), torch.ones(500, dtype=torch.float64)
            works: list[Any] = [dist.all_reduce(each, async_op=True) for each in (x, doubles)]
            for work in works:
                work.wait()
            dist.all_gather([torch.empty(1000) for _ in range(2)], x)
            if rank == 0:
                dist.send(x, 1)
            else:
                dist.recv(x, 0)
            dist.barrier()
            profiler.step()
    recorded: Any = torch._C._distributed_c10d  # type: ignore[attr-defined]
    (folder / f"flight_rank_{rank}.json").write_bytes(recorded._dump_fr_trace_json())
    (folder / f"flight_rank_{rank}").write_bytes(recorded._dump_fr_trace())


def run_ranks(folder: Path) -> None:
    """Run this program as two ranks."""
    environment = os.environ | {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(folder)]
    ranks = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE) for rank in (0, 1)
    ]
    for each in ranks:
        _, said = each.communicate(timeout=300)
        assert each.returncode == 0, said.decode()[-2000:]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
