"""A small training on one or several ranks, to be recorded."""

import os

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
if ranks > 1:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(TensorDataset(torch.randn(1536, 256), torch.randn(1536, 256)), batch_size=64):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
if ranks > 1:
    distributed.destroy_process_group()
