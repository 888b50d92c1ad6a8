"""Print the peak of what torch's own tracker counts in steps of a model that fully_shard shards, as JSON.

The first argument is the number of ranks. Each further one is a list of options of `fully_shard`.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as group
from parallel_targets import WIDTH, Chain
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

COUNTER_BYTES = 4  # AdamW's count of steps, which is on the host but counts here


def peak_bytes(ranks: int, reshard: bool, mixed: bool) -> int:
    mesh = init_device_mesh("cpu", (ranks,))
    options = {"mesh": mesh, "reshard_after_forward": reshard}
    if mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with FakeTensorMode():
        model = Chain()
        for block in model.blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tracker = FSDPMemTracker(model, optimizer)
        with tracker:
            for step in range(2):
                optimizer.zero_grad(set_to_none=True)
                model(torch.randn(32, WIDTH)).pow(2).mean().backward()
                optimizer.step()
                if not step:
                    tracker.reset_mod_stats()
    total = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return int(total) - COUNTER_BYTES * len(list(model.parameters()))


ranks = int(sys.argv[1])
group.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
sys.stdout.write(json.dumps([peak_bytes(ranks, *json.loads(each)) for each in sys.argv[2:]]))
