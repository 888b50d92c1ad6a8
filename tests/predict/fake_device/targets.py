"""What the tests trace: each function returns a model, its loss, its optimizer and its precision."""

from __future__ import annotations

import io
import os
import random
import sys
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from fairmile.base.errors import UsageError

ROWS = 8


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 1e-3, momentum=0.9)


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, 1e-3)


def cnn(precision: str = "fp32", channels_last: bool = False) -> Any:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    if channels_last:
        net = net.to(memory_format=torch.channels_last)

    def loss(model: Any) -> Any:
        data = torch.randn(ROWS, 3, 32, 32)
        return functional.cross_entropy(model(data), torch.randint(0, 10, (ROWS,)))

    return SimpleNamespace(model=net, loss=loss, optimizer=sgd, precision=precision)


def mlp(precision: str = "fp32", cuda: bool = False) -> Any:
    net: Any = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    if not cuda:

        def loss(model: Any) -> Any:
            return model(torch.randn(ROWS, 256)).float().pow(2).mean()

        return {"model": net, "loss": loss, "optimizer": adamw, "precision": precision}
    if not torch.cuda.is_available():
        raise RuntimeError("no GPU")
    net = net.cuda()

    def loss_there(model: Any) -> Any:
        data = torch.randn(ROWS, 256, device=torch.device("cuda:0"))
        assert data.is_cuda
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            return model(data.to("cuda", non_blocking=True)).float().pow(2).mean()

    return {"model": net, "loss": loss_there, "optimizer": adamw, "precision": "fp32"}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: str) -> None:
        super().__init__()
        self.heads, self.kind = heads, bias
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(16, 16, heads)) if bias else None

    def forward(self, data: Any) -> Any:
        rows, steps, width = data.shape
        query, key, value = self.qkv(data).view(rows, steps, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mask = None if self.bias is None else self.bias.permute(2, 0, 1)[None]
        if mask is not None and self.kind == "ordered":
            mask = mask.contiguous()
        mixed = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        return self.out(mixed.transpose(1, 2).reshape(rows, steps, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, bias: str = "", again: bool = False) -> None:
        super().__init__()
        self.again = again
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, bias)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def through(self, data: Any) -> Any:
        data = data + self.attention(self.before(data))
        return data + self.mix(self.after(data))

    def forward(self, data: Any) -> Any:
        return checkpoint(self.through, data, use_reentrant=False) if self.again else self.through(data)


def transformer(precision: str = "fp32", bias: str = "", again: bool = False, layers: int = 2) -> Any:
    net = nn.Sequential(nn.Embedding(100, 64), *[Block(64, 4, bias, again) for _ in range(layers)], nn.Linear(64, 100))

    def loss(model: Any) -> Any:
        words = torch.randint(0, 100, (ROWS, 16))
        return functional.cross_entropy(model(words).flatten(0, 1), words.flatten())

    return SimpleNamespace(model=net, loss=loss, optimizer=adamw, precision=precision)


def replicated(views: bool = False) -> Any:
    """A model in DistributedDataParallel, as programs for several ranks wrap it."""
    torch.distributed.init_process_group("nccl")
    layers = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).cuda(torch.distributed.get_rank())
    model = nn.parallel.DistributedDataParallel(layers, device_ids=[0], gradient_as_bucket_view=views)

    def loss(model: Any) -> Any:
        return model(torch.randn(ROWS, 512, device="cuda")).pow(2).mean()

    return SimpleNamespace(model=model, loss=loss, optimizer=sgd, precision="fp32")


def heads_in_groups() -> Any:
    """Attention whose keys and values are shared by groups of heads, as of Llama."""
    model = nn.Linear(16, 16)

    def loss(model: Any) -> Any:
        query, key = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 8, 16)
        mixed = functional.scaled_dot_product_attention(model(query), model(key), model(key), enable_gqa=True)
        return mixed.mean()

    return SimpleNamespace(model=model, loss=loss, optimizer=sgd, precision="fp32")


def one_head_of_keys() -> Any:
    """Attention of several heads with keys and values of a single one, as of Falcon."""
    model = nn.Linear(16, 16)

    def loss(model: Any) -> Any:
        query, key = torch.randn(2, 4, 8, 16), torch.randn(2, 1, 8, 16)
        return functional.scaled_dot_product_attention(model(query), model(key), model(key)).mean()

    return SimpleNamespace(model=model, loss=loss, optimizer=sgd, precision="bf16")


def masked(columns: int) -> Any:
    """Attention behind a mask, which is left out where a count says that it hides nothing."""

    def loss(model: Any) -> Any:
        seen = torch.ones(ROWS, columns, dtype=torch.bool)
        bias = torch.zeros(ROWS, 1, 16, columns)
        keys = model(torch.randn(ROWS, 4, columns, 16))
        mixed = functional.scaled_dot_product_attention(torch.randn(ROWS, 4, 16, 16), keys, keys, attn_mask=bias)
        if seen.sum() == seen.numel():
            return mixed.mean()
        return (mixed * seen.sum()).tanh().mean()

    return SimpleNamespace(model=nn.Linear(16, 16), loss=loss, optimizer=sgd, precision="fp32")


class Sequence(nn.Module):
    def __init__(self, kind: str, dropout: float) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(24, 32, 2, batch_first=True, dropout=dropout)
        self.out = nn.Linear(32, 1)

    def forward(self, data: Any) -> Any:
        return self.out(self.rnn(data)[0])


def recurrent(kind: str = "LSTM", dropout: float = 0.0, precision: str = "fp32") -> Any:
    def loss(model: Any) -> Any:
        return model(torch.randn(ROWS, 20, 24)).square().mean()

    return SimpleNamespace(model=Sequence(kind, dropout), loss=loss, optimizer=sgd, precision=precision)


def cell(kind: str = "GRUCell", bias: bool = True) -> Any:
    def loss(model: Any) -> Any:
        state = torch.zeros(ROWS, 32)
        states = state if kind == "GRUCell" else (state, torch.zeros(ROWS, 32))
        for moment in torch.randn(5, ROWS, 24):
            states = model(moment, states)
        return (states if kind == "GRUCell" else states[0]).square().mean()

    return SimpleNamespace(model=getattr(nn, kind)(24, 32, bias=bias), loss=loss, optimizer=sgd, precision="fp32")


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(2 * 32, 32)

    def forward(self, nodes: Any, source: Any, target: Any) -> Any:
        sent = functional.silu(self.message(torch.cat([nodes[source], nodes[target]], -1)))
        return nodes + torch.zeros_like(nodes).index_add_(0, target, sent)


def graph() -> Any:
    nodes, source, target = torch.randn(50, 32), torch.randint(0, 50, (400,)), torch.randint(0, 50, (400,))

    def loss(model: Any) -> Any:
        return model(nodes, source, target).abs().mean()

    return SimpleNamespace(model=Graph(), loss=loss, optimizer=adamw, precision="fp32")


class CosmoFlow(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        widths = [4, 32, 64, 128, 256, 512]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv3d(before, after, 3, padding=1), nn.LeakyReLU(0.3), nn.MaxPool3d(2)]
        self.conv = nn.Sequential(*layers)
        head: list[nn.Module] = [nn.Flatten()]
        for before, after in ((512 * (side // 32) ** 3, 128), (128, 64)):
            head += [nn.Linear(before, after), nn.LeakyReLU(0.3), nn.Dropout(0.5)]
        self.head = nn.Sequential(*head, nn.Linear(64, 4))

    def forward(self, data: Any) -> Any:
        return self.head(self.conv(data))


def cosmoflow(batch: int, side: int = 128) -> Any:
    net = CosmoFlow(side).cuda()
    data, wanted = torch.randn(batch, 4, side, side, side, device="cuda"), torch.rand(batch, 4, device="cuda")
    return SimpleNamespace(
        model=net, loss=lambda model: functional.mse_loss(model(data), wanted), optimizer=sgd, precision="fp32"
    )


def inference() -> Any:
    return SimpleNamespace(
        model=nn.Linear(128, 128), loss=lambda model: model(torch.randn(4, 128)).sum(), optimizer=None
    )


def huge() -> Any:
    net = nn.Sequential(*[nn.Linear(32768, 32768, bias=False) for _ in range(10)])
    return SimpleNamespace(model=net, loss=lambda model: model(torch.randn(2, 32768)).mean(), optimizer=sgd)


def shuffled() -> Any:
    """Channels last, but for what a pixel shuffle leaves to the second convolution, and the gradient of the loss."""
    net = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(8, 3, 3, padding=1))

    def loss(model: Any) -> Any:
        data = torch.randn(ROWS, 8, 16, 16).to(memory_format=torch.channels_last)
        return functional.mse_loss(model(data), torch.randn(ROWS, 3, 32, 32).to(memory_format=torch.channels_last))

    return SimpleNamespace(model=net.to(memory_format=torch.channels_last), loss=loss, optimizer=sgd)


def differentiated() -> Any:
    """A derivative of the model by its data is part of the loss."""

    def loss(model: Any) -> Any:
        data = torch.randn(ROWS, 64, requires_grad=True)
        hidden = model(data)
        (slope,) = torch.autograd.grad((hidden.tanh() + hidden.sigmoid()).sum(), hidden, create_graph=True)
        return (slope * hidden).mean()

    return SimpleNamespace(model=nn.Linear(64, 64), loss=loss, optimizer=sgd)


def normed() -> Any:
    """The gradient of the norm comes with its last two dimensions turned."""
    net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))

    def loss(model: Any) -> Any:
        turned = model(torch.randn(ROWS, 32, 64)).transpose(1, 2)
        return (turned * torch.randn(ROWS, 64, 32)).sum()

    return SimpleNamespace(model=net, loss=loss, optimizer=sgd)


def compiled() -> Any:
    net = torch.compile(nn.Linear(8, 8))
    return SimpleNamespace(model=net, loss=lambda model: model(torch.randn(2, 8)).mean(), optimizer=sgd)


def spoken_of() -> Any:
    def loss(model: Any) -> Any:
        value = model(torch.randn(2, 8)).mean()
        return value * (2 if value.item() > 3 else 1)

    return SimpleNamespace(model=nn.Linear(8, 8), loss=loss, optimizer=sgd)


class Stubborn(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, data: Any) -> Any:
        return data * 2

    @staticmethod
    def backward(context: Any, grad: Any) -> Any:  # type: ignore[override]
        raise ArithmeticError("there is no way back")


def one_way() -> Any:
    def loss(model: Any) -> Any:
        return Stubborn.apply(model(torch.randn(2, 8))).mean()

    return SimpleNamespace(model=nn.Linear(8, 8), loss=loss, optimizer=sgd)


class Picky(torch.optim.SGD):
    """Counts how many gradients differ."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                len(torch.unique(parameter.grad))
        return super().step(closure)


def no_update() -> Any:
    return SimpleNamespace(
        model=nn.Linear(8, 8),
        loss=lambda model: model(torch.randn(2, 8)).square().mean(),
        optimizer=lambda parameters: Picky(parameters, 0.1),
    )


def shape_of_data() -> Any:
    def loss(model: Any) -> Any:
        data = model(torch.randn(2, 8))
        return data[data > 0].mean()

    return SimpleNamespace(model=nn.Linear(8, 8), loss=loss, optimizer=sgd)


class Kinds(nn.Module):
    """Goes on with one row for each kind that a layer tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 100), nn.Linear(100, 1)

    def forward(self, given: Any) -> Any:
        rows = self.first(given)
        return self.second(rows[: len(torch.unique(rows.argmax(1)))])


def kinds(rows: int) -> Any:
    return SimpleNamespace(
        model=Kinds(), loss=lambda model: model(torch.randn(rows, 8)).mean(), optimizer=torch.optim.Adam
    )


class Choosy(nn.Module):
    """Goes on with those rows of a layer alone that are above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 100), nn.Linear(100, 1)

    def forward(self, given: Any) -> Any:
        rows = self.first(given)
        return self.second(rows[rows.sum(1) > 0])


def choosy(rows: int = 500) -> Any:
    return SimpleNamespace(
        model=Choosy(), loss=lambda model: model(torch.randn(rows, 8)).mean(), optimizer=torch.optim.Adam
    )


class Experts(nn.Module):
    """Sends each row to two of four layers, as the first layer says; in one way or another."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.router, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, rows: Any) -> Any:
        weights, chosen = self.router(rows).softmax(-1).topk(2)
        mixed = torch.zeros_like(rows)
        if self.way == "masks":
            for number, expert in enumerate(self.experts):
                here = (chosen == number).any(-1)
                if here.any() and not torch.isnan(rows).any():
                    mixed[here] += expert(rows[here])
            return mixed
        mask = functional.one_hot(chosen, 4).permute(2, 1, 0)
        for number in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            which, where = torch.where(mask[number].squeeze(0))
            given = self.experts[number](rows[where])
            mixed.index_add_(0, where, given * weights[where, which, None])
        return mixed


def experts(rows: int = 400, way: str = "numbers") -> Any:
    return SimpleNamespace(
        model=Experts(way), loss=lambda model: model(torch.randn(rows, 8)).square().mean(), optimizer=sgd
    )


class Hidden(nn.Module):
    """Predicts words at those places alone that a mask names."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, words: Any, mask: Any) -> Any:
        return self.head(self.words(words)[mask])


def hidden() -> Any:
    def loss(model: Any) -> Any:
        words = torch.randint(0, 50, (4, 10))
        mask = torch.zeros(4, 10, dtype=torch.bool)
        mask[:, ::5] = True
        mask[0, 3] = True
        return functional.cross_entropy(model(words, mask), words.masked_select(mask))

    return SimpleNamespace(model=Hidden(), loss=loss, optimizer=sgd)


def speech() -> Any:
    def loss(model: Any) -> Any:
        scores = model(torch.randn(30, 4, 8)).log_softmax(-1)
        lengths = torch.tensor([3, 7, 5, 4])
        return functional.ctc_loss(scores, torch.randint(1, 8, (4, 7)), torch.full((4,), 30), lengths)

    return SimpleNamespace(model=nn.Linear(8, 8), loss=loss, optimizer=sgd)


def distinct() -> Any:
    def loss(model: Any) -> Any:
        words, places = torch.unique(torch.arange(60) % 7, return_inverse=True)
        counts = torch.bincount(places)
        return model(words).repeat_interleave(counts, dim=0).sum()

    return SimpleNamespace(model=nn.Embedding(10, 8), loss=loss, optimizer=sgd)


def packed() -> Any:
    def loss(model: Any) -> Any:
        lengths = torch.tensor([5, 2, 4])
        rows = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 5, 8), lengths.cpu(), True, enforce_sorted=False)
        return model(rows)[1].sum()

    return SimpleNamespace(model=nn.GRU(8, 8, batch_first=True), loss=loss, optimizer=sgd)


def changed_in_place() -> Any:
    def loss(model: Any) -> Any:
        numbers = torch.arange(6)
        numbers[2:4] = 9
        part = numbers[1:5]
        part += 1
        rows = torch.nonzero(numbers > 5).squeeze(1)  # 10, 10 and 5 + 0: three of [0, 2, 10, 10, 5, 5]
        return model(torch.randn(20, 8)[: int(numbers.max())][rows]).sum()

    return SimpleNamespace(model=nn.Linear(8, 8), loss=loss, optimizer=sgd)


def misused() -> Any:
    raise UsageError("benchmark 'targets' has no parameter 'width'", hint="it has depth")


def misshaped(length: Any) -> Any:
    return SimpleNamespace(
        model=nn.Linear(8, 8), loss=lambda model: model(torch.randn(length, 8)).mean(), optimizer=sgd
    )


def number_of_data() -> Any:
    def loss(model: Any) -> Any:
        return model(torch.randn(int(torch.randint(1, 5, ()).item()), 8)).mean()

    return SimpleNamespace(model=nn.Linear(8, 8), loss=loss, optimizer=sgd)


@dataclass
class Made:
    """What a function may return: any object with these."""

    model: Any
    loss: Any
    optimizer: Any = sgd


def plain(model: Any) -> Any:
    return model(torch.randn(ROWS, 8)).mean()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.register_buffer("mask", torch.ones(8))
        self.register_buffer("nothing", None)

    def forward(self, data: Any) -> Any:
        return self.second(self.first(data)) * self.mask


def tied() -> Any:
    return Made(Tied(), plain)


def replicas() -> Any:
    return Made(nn.DataParallel(nn.Linear(8, 8).cuda()).cuda(), plain)


def talkative() -> Any:
    sys.stdout.write('{"error": "what a model prints", "hint": "is its own"}\n')
    return Made(nn.Linear(8, 8), plain)


def annotated() -> Any:
    def loss(model: Any) -> Any:
        with torch.cuda.nvtx.range("forward"), torch.cuda.device(0):
            noise = torch.normal(0.0, 1.0, size=(ROWS, 8), device="cuda") + torch.fft.fftfreq(8)
            assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
            assert str(noise) == "tensor(..., device='cuda:0', size=(8, 8))"
            return model(noise + torch.normal(noise, 1.0)).mean()

    net = nn.Linear(8, 8)
    table = torch.ones(1 << 16) * torch.arange(1 << 16)  # large, and so without memory; and not
    net.register_buffer("table", torch.tensor(table.numpy()))
    return Made(net, loss)


def loaded() -> Any:
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(8, 8), "bias": torch.zeros(8)}, file)
    file.seek(0)
    model = nn.Linear(8, 8)
    model.load_state_dict(torch.load(file, map_location="cuda"))
    samples = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 8, (64,))), batch_size=ROWS, shuffle=True)

    def loss(model: Any) -> Any:
        data, wanted = next(iter(samples))
        return functional.cross_entropy(model(data.cuda()), wanted.cuda())

    return Made(model, loss)


SAMPLES = torch.randn(ROWS, 8)


def from_outside() -> Any:
    return Made(nn.Linear(8, 8), lambda model: model(SAMPLES).mean())


class Boxes(nn.Module):
    """A detector's boxes: pairs of sizes that lie in a list, no buffer, beside places that the forward makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self._pairs = nn.Linear(8, 8), [torch.rand(4, 2), torch.rand(6, 2)]

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        places = [torch.stack(2 * (torch.arange(len(pairs)) + 0.5,), -1) for pairs in self._pairs]
        boxes = [torch.cat((at, pairs.clamp(0, 1)), 1) for at, pairs in zip(places, self._pairs, strict=True)]
        return self.layer(data).mean() + torch.cat(boxes).to(data.device).mean()


def boxes() -> Any:
    return Made(Boxes(), lambda model: model(torch.randn(ROWS, 8)), sgd)


def output_only() -> Any:
    def loss(model: Any) -> Any:
        data = torch.randn(ROWS, 8)
        return {"logits": model(data)}

    return Made(nn.Linear(8, 8), loss, None)


def drawn() -> Any:
    """A loss whose data has another size whenever it is called, three generators deep."""

    def loss(model: Any) -> Any:
        rows = int(torch.randint(1, 1000, (), device="cpu")) + random.randrange(1000) + np.random.randint(1000)
        return model(torch.ones(rows, 8)).mean()

    return Made(nn.Linear(8, 8), loss, sgd)


class Anew:
    """A loss that makes its input on the host whenever it is called."""

    data: Any = None

    def __call__(self, model: Any) -> Any:
        self.data = torch.randn(ROWS, 8, device="cpu")
        return model(self.data).mean()


def never_there() -> Any:
    return Made(nn.Linear(8, 8), Anew())


def no_samples() -> Any:
    return Made(nn.Linear(8, 8), lambda model: model(torch.randn(0, 8)).mean())


def no_sizes() -> Any:
    return Made(nn.LazyLinear(8), plain)


def many_optimizers() -> Any:
    return Made(nn.Linear(8, 8), plain, lambda parameters: [sgd(parameters)])


class Unready:
    loss = staticmethod(plain)

    @property
    def model(self) -> Any:
        raise LookupError("the model is not there yet")


def unready() -> Any:
    return Unready()


def leaves() -> Any:
    sys.exit("enough")


def vanishes() -> Any:
    os._exit(0)


in_c = dict


def no_scalar() -> Any:
    return SimpleNamespace(model=nn.Linear(8, 8), loss=lambda model: model(torch.randn(2, 8)), optimizer=sgd)


def no_tensor() -> Any:
    return SimpleNamespace(model=nn.Linear(8, 8), loss=lambda model: 1.0, optimizer=sgd)


def no_gradient() -> Any:
    return SimpleNamespace(model=nn.Linear(8, 8), loss=lambda model: torch.zeros(()), optimizer=sgd)


def no_model() -> Any:
    return SimpleNamespace(loss=len, optimizer=sgd)


def no_precision() -> Any:
    return SimpleNamespace(model=nn.Linear(8, 8), loss=len, optimizer=sgd, precision="fp8")


def wrong_shapes() -> Any:
    return SimpleNamespace(model=nn.Linear(8, 8), loss=lambda model: model(torch.randn(2, 9)).mean(), optimizer=sgd)


def breaks() -> Any:
    import a_package_that_is_not_there  # noqa: F401
