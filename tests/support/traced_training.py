"""A small training that the tests of traces run as two ranks; rank 1 dawdles between steps. Arguments: folder."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 6
DAWDLES_S = 0.06


def main(folder: Path) -> None:
    """Train for a few steps and write the trace of this rank."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
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
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
