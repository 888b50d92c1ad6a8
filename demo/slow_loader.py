"""A training on several ranks of which the last one reads its data slowly, to be recorded for a picture."""

import os
import time

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), int(os.environ["WORLD_SIZE"])


class Samples(Dataset):
    """Random samples; those of the last rank come from a slow disk."""

    def __len__(self):
        return 1024

    def __getitem__(self, number):
        if rank == ranks - 1:
            time.sleep(0.0025)
        return torch.randn(512), torch.randn(512)


model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))))
optimizer = torch.optim.Adam(model.parameters())
for x, y in DataLoader(Samples(), batch_size=64):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
distributed.destroy_process_group()
