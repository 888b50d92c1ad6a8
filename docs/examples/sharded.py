"""A training step whose program shards its model itself; `--ranks` says over how many GPUs."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def build(batch=4, width=1024, layers=12, words=512):
    """Return a transformer encoder, sharded layer by layer, its loss and its optimizer."""
    torch.distributed.init_process_group("nccl")
    layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
    for each in model.layers:
        fully_shard(each)
    fully_shard(model)

    def loss(model):
        return model(torch.randn(batch, words, width, device="cuda")).square().mean()

    return SimpleNamespace(model=model, loss=loss, optimizer=torch.optim.AdamW, precision="bf16")
