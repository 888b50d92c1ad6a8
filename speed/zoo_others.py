"""Training steps of kinds that no registry lists: graphs, U-Nets, state spaces, experts, transcripts and masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = tuple[nn.Module, Callable[[Any], torch.Tensor]]


class MessagePassing(nn.Module):
    """Sums, means, maxima or attention over the edges of a graph, as PyTorch Geometric computes them."""

    def __init__(self, width: int, gather: str) -> None:
        super().__init__()
        self.gather = gather
        self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.score = nn.Linear(2 * width, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        both = torch.cat([nodes[source], nodes[target]], -1)
        sent = functional.relu(self.message(both))
        if self.gather == "attention":
            scores = functional.leaky_relu(self.score(both)).squeeze(-1)
            most = torch.full((len(nodes),), -torch.inf).to(nodes).scatter_reduce(0, target, scores.detach(), "amax")
            weights = (scores - most[target]).exp()
            weights = weights / torch.zeros_like(most).index_add(0, target, weights)[target]
            sent = sent * weights[:, None]
        reduce = {"max": "amax", "mean": "mean"}.get(self.gather, "sum")
        where = target[:, None].expand_as(sent)
        got = torch.zeros_like(nodes).scatter_reduce(0, where, sent, reduce, include_self=False)
        return functional.relu(self.update(torch.cat([nodes, got], -1)))


class Graph(nn.Module):
    def __init__(self, gather: str, pool: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MessagePassing(64, gather) for _ in range(3))
        self.head, self.pool = nn.Linear(64, 10), pool

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            nodes = layer(nodes, edges)
            if self.pool:  # the upper half of the nodes stays, and the edges between those
                score = nodes.norm(dim=-1)
                kept = score.topk(len(nodes) // 2).indices
                mapped = torch.full((len(nodes),), -1, device=nodes.device)
                mapped[kept] = torch.arange(len(kept), device=nodes.device)
                edges = mapped[edges]
                edges, nodes, batch = edges[:, (edges >= 0).all(0)], nodes[kept], batch[kept]
        graphs = int(batch.max()) + 1
        return self.head(torch.zeros(graphs, 64, device=nodes.device).index_add(0, batch, nodes))


def _graph(gather: str, pool: bool = False) -> Step:
    def loss(model: Any) -> torch.Tensor:
        nodes, edges = torch.randn(500, 64), torch.randint(0, 500, (2, 3000))
        edges = torch.unique(edges, dim=1)  # no edge twice
        edges = edges[:, edges[0] != edges[1]]  # none from a node to itself
        batch = torch.sort(torch.randint(0, 8, (500,))).values
        return model(nodes, edges, batch).logsumexp(-1).mean()

    return Graph(gather, pool), loss


def _radius() -> Step:
    """Atoms whose neighbours are those within a radius of them."""

    class Atoms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds, self.filters, self.out = nn.Embedding(100, 64), nn.Linear(16, 64), nn.Linear(64, 1)

        def forward(self, kinds: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            apart = torch.cdist(places, places)
            near = (apart < 1.0) & ~torch.eye(len(places), dtype=torch.bool, device=places.device)
            source, target = near.nonzero(as_tuple=True)
            length = apart[source, target]
            basis = torch.exp(-((length[:, None] - torch.linspace(0, 1, 16, device=places.device)) ** 2))
            rows = self.kinds(kinds)
            got = torch.zeros_like(rows).index_add(0, target, rows[source] * self.filters(basis))
            energy = self.out(rows + got).sum()
            force = torch.autograd.grad(energy, places, create_graph=True)[0]
            return energy.square() + force.square().mean()

    def loss(model: Any) -> torch.Tensor:
        return model(torch.randint(1, 90, (200,)), torch.rand(200, 3, requires_grad=True))

    return Atoms(), loss


class Residual(nn.Module):
    def __init__(self, width: int, out: int, timed: int) -> None:
        super().__init__()
        self.first, self.time = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, out, 3, 1, 1)), None
        self.time = nn.Linear(timed, out)
        self.second = nn.Sequential(nn.GroupNorm(8, out), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(out, out, 3, 1, 1))
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.first(image) + self.time(functional.silu(time))[:, :, None, None]
        return self.second(hidden) + self.skip(image)


class Attention(nn.Module):
    """Self-attention over an image, and cross-attention to words where there are any."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.own = nn.MultiheadAttention(width, 4, batch_first=True)
        self.other = nn.MultiheadAttention(width, 4, kdim=words, vdim=words, batch_first=True) if words else None

    def forward(self, image: torch.Tensor, words: torch.Tensor | None) -> torch.Tensor:
        rows = self.norm(image).flatten(2).transpose(1, 2)
        rows = rows + self.own(rows, rows, rows, need_weights=False)[0]
        if self.other is not None:
            rows = rows + self.other(rows, words, words)[0]
        return image + rows.transpose(1, 2).view_as(image)


class UNet(nn.Module):
    """A diffusion model: residual blocks that know the time, with attention at the lower resolutions."""

    def __init__(self, words: int) -> None:
        super().__init__()
        widths, timed = (32, 64, 128), 128
        self.timed = timed
        self.inward = nn.Conv2d(4, widths[0], 3, 1, 1)
        self.time = nn.Sequential(nn.Linear(timed, timed), nn.SiLU(), nn.Linear(timed, timed))
        before = (widths[0], *widths)
        self.down = nn.ModuleList(Residual(one, other, timed) for one, other in zip(before, widths, strict=False))
        self.less = nn.ModuleList(nn.Conv2d(width, width, 3, 2, 1) for width in widths)
        self.middle, self.look = Residual(widths[-1], widths[-1], timed), Attention(widths[-1], words)
        self.more = nn.ModuleList(nn.Upsample(scale_factor=2) for _ in widths)
        behind = (widths[-1], *reversed(widths))
        pairs = zip(behind, reversed(widths), strict=False)
        self.up = nn.ModuleList(Residual(one + other, other, timed) for one, other in pairs)
        self.out = nn.Conv2d(widths[0], 4, 3, 1, 1)

    def forward(self, image: torch.Tensor, times: torch.Tensor, words: torch.Tensor | None = None) -> torch.Tensor:
        rates = torch.exp(-math.log(10_000) * torch.arange(self.timed // 2, device=image.device) / (self.timed // 2))
        angles = times[:, None].float() * rates[None]
        time, image, kept = self.time(torch.cat([angles.sin(), angles.cos()], -1)), self.inward(image), []
        for block, less in zip(self.down, self.less, strict=True):
            image = block(image, time)
            kept.append(image)
            image = less(image)
        image = self.look(self.middle(image, time), words)
        for more, block in zip(self.more, self.up, strict=True):
            image = block(torch.cat([more(image), kept.pop()], 1), time)
        return self.out(image)


def _unet(words: int = 0) -> Step:
    def loss(model: Any) -> torch.Tensor:
        image, times = torch.randn(2, 4, 32, 32), torch.randint(0, 1000, (2,))
        noise = torch.randn_like(image)
        share = torch.cos(times / 1000)[:, None, None, None]
        text = (torch.randn(2, 20, words),) if words else ()
        return functional.mse_loss(model(share * image + (1 - share) * noise, times, *text), noise)

    return UNet(words), loss


class StateSpace(nn.Module):
    """A selective state space: a scan over time, as a loop or as a cumulative sum of logarithms."""

    def __init__(self, is_loop: bool) -> None:
        super().__init__()
        self.is_loop = is_loop
        self.words, self.inward, self.out = nn.Embedding(200, 64), nn.Linear(64, 256), nn.Linear(128, 200)
        self.mix = nn.Conv1d(128, 128, 4, padding=3, groups=128)
        self.sizes, self.spread = nn.Linear(128, 8 + 2 * 16), nn.Linear(8, 128)
        self.decay = nn.Parameter(torch.log(torch.arange(1, 17).float()).repeat(128, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows, gate = self.inward(self.words(ids)).chunk(2, -1)
        rows = functional.silu(self.mix(rows.transpose(1, 2))[..., : ids.shape[1]].transpose(1, 2))
        rate, into, outof = self.sizes(rows).split([8, 16, 16], -1)
        step = functional.softplus(self.spread(rate))
        decay = torch.exp(-step[..., None] * self.decay.exp())
        added = step[..., None] * into[:, :, None] * rows[..., None]
        if self.is_loop:
            state, states = torch.zeros_like(added[:, 0]), []
            for at in range(ids.shape[1]):
                state = decay[:, at] * state + added[:, at]
                states.append((state * outof[:, at, None]).sum(-1))
            mixed = torch.stack(states, 1)
        else:
            lengths = decay.log().cumsum(1)
            mixed = ((added / lengths.exp().clamp_min(1e-6)).cumsum(1) * lengths.exp() * outof[:, :, None]).sum(-1)
        return self.out(mixed * functional.silu(gate))


def _words(model: nn.Module) -> Step:
    def loss(model: Any) -> torch.Tensor:
        ids = torch.randint(0, 200, (2, 64))
        return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return model, loss


class Experts(nn.Module):
    """Words go to the experts that a router chooses, by one of the ways in use."""

    def __init__(self, way: str, experts: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.way, self.experts, self.chosen = way, experts, chosen
        self.words, self.out, self.router = nn.Embedding(200, 64), nn.Linear(64, 200), nn.Linear(64, experts)
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(experts)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.words(ids).flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(self.chosen, -1)
        mixed = getattr(self, f"_{self.way}")(rows, weights, chosen)
        return self.out(rows + mixed).view(*ids.shape, -1)

    def _masks(self, rows: Any, weights: Any, chosen: Any) -> Any:
        out = torch.zeros_like(rows)
        for number, network in enumerate(self.networks):
            which = chosen == number
            if which.any():
                taken = which.any(-1)
                out[taken] += network(rows[taken]) * (weights * which).sum(-1)[taken, None]
        return out

    def _sorted(self, rows: Any, weights: Any, chosen: Any) -> Any:
        order = chosen.flatten().argsort()
        sizes = torch.bincount(chosen.flatten(), minlength=self.experts).tolist()
        parts = rows[order // self.chosen].split(sizes)
        done = torch.cat([network(part) for network, part in zip(self.networks, parts, strict=True)])
        back = torch.empty_like(done).index_copy(0, order, done).view(len(rows), self.chosen, -1)
        return (back * weights[..., None]).sum(1)

    def _capacity(self, rows: Any, weights: Any, chosen: Any) -> Any:
        room = 2 * len(rows) * self.chosen // self.experts
        mask = functional.one_hot(chosen, self.experts).permute(1, 0, 2).flatten(0, 1)
        place = (mask.cumsum(0) - 1) * mask
        fits = mask * (place < room)
        slots = functional.one_hot(place.sum(-1).clamp(max=room - 1), room).float()
        send = (fits.float()[:, :, None] * slots[:, None]).view(self.chosen, len(rows), self.experts, room)
        inside = torch.einsum("ktec,td->ecd", send, rows)
        done = torch.stack([network(part) for network, part in zip(self.networks, inside, strict=True)])
        return torch.einsum("ktec,ecd,tk->td", send, done, weights)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.words, self.layers, self.out = nn.Embedding(200, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 200)


class Masked(Encoder):
    """A share of the words is hidden, and told from the others; some words are padding."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        rows = self.words(ids).masked_fill(mask[..., None], 0)
        rows = self.layers(rows, src_key_padding_mask=padding)
        return functional.cross_entropy(self.out(rows[mask & ~padding]), ids[mask & ~padding])


def _masked() -> Step:
    def loss(model: Any) -> torch.Tensor:
        ids, lengths = torch.randint(1, 200, (4, 64)), torch.randint(32, 65, (4,))
        padding = torch.arange(64)[None] >= lengths[:, None]
        return model(ids, torch.rand(4, 64) < 0.15, padding)

    return Masked(), loss


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sound = nn.Sequential(nn.Conv1d(80, 64, 3, 2, 1), nn.ReLU(), nn.Conv1d(64, 64, 3, 2, 1), nn.ReLU())
        self.over, self.out = nn.LSTM(64, 64, 2, batch_first=True, bidirectional=True), nn.Linear(128, 30)

    def forward(self, sound: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rows = self.sound(sound).transpose(1, 2)
        packed = nn.utils.rnn.pack_padded_sequence(rows, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.over(packed)[0], batch_first=True)
        return self.out(out).log_softmax(-1).transpose(0, 1)


def _transcript() -> Step:
    def loss(model: Any) -> torch.Tensor:
        lengths = torch.tensor([100, 90, 70, 50])
        marks = torch.randint(5, 12, (4,))
        scores = model(torch.randn(4, 80, 400), lengths)
        return functional.ctc_loss(scores, torch.randint(1, 30, (4, 12)), lengths, marks, zero_infinity=True)

    return Speech(), loss


class Bags(nn.Module):
    """Tables of rows that are looked up in bags, as recommendation models have them."""

    def __init__(self, is_sparse: bool = False) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, 32, mode="sum", sparse=is_sparse) for _ in range(4))
        self.bottom, self.top = nn.Linear(13, 32), nn.Linear(32 + 10, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        rows = torch.stack([self.bottom(dense), *(table(ids, offsets) for table in self.tables)], 1)
        dots = (rows @ rows.transpose(1, 2))[:, *torch.tril_indices(5, 5, -1)]
        return self.top(torch.cat([rows[:, 0], dots], -1)).mean()


def _bags() -> Step:
    def loss(model: Any) -> torch.Tensor:
        sizes = torch.randint(1, 20, (64,))
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)[:-1]])
        return model(torch.randn(64, 13), torch.randint(0, 1000, (int(sizes.sum()),)), offsets)

    return Bags(), loss


class Nested(Encoder):
    """Sequences of different lengths without padding between them."""

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        parts = self.words(ids).split(lengths.tolist())
        rows = nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
        hidden = torch.arange(rows.shape[1], device=rows.device)[None] >= lengths[:, None]
        rows = self.layers(rows, src_key_padding_mask=hidden)
        return self.out(rows[~hidden]).logsumexp(-1).mean()


def _nested() -> Step:
    def loss(model: Any) -> torch.Tensor:
        lengths = torch.tensor([10, 50, 30, 7])
        return model(torch.randint(0, 200, (97,)), lengths)

    return Nested(), loss


class Early(nn.Module):
    """Rows leave the network early where they are sure, and the others go on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.out = nn.Linear(64, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        total = rows.new_zeros(())
        for layer in self.layers:
            rows = functional.relu(layer(rows))
            scores = self.out(rows)
            sure = scores.softmax(-1).amax(-1) > 0.1
            total = total + scores[sure].sum()
            rows = rows[~sure]
            if not len(rows):
                break
        return total + rows.sum()


def _early() -> Step:
    return Early(), lambda model: model(torch.randn(256, 64))


class Points(nn.Module):
    """Points in voxels: those in one voxel are averaged, and neighbours are found by sampling and distance."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(3, 64), nn.Linear(67, 128), nn.Linear(128, 10)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        cells, inverse, counts = torch.unique((points * 8).long(), dim=0, return_inverse=True, return_counts=True)
        rows = torch.zeros(len(cells), 64, device=points.device).index_add(0, inverse, self.first(points))
        rows = rows / counts[:, None]
        places = cells.float()
        near = torch.cdist(places, places).topk(min(8, len(cells)), largest=False).indices
        apart = places[near] - places[:, None]
        rows = self.second(torch.cat([rows[near], apart], -1)).amax(1)
        return self.out(rows.amax(0)).logsumexp(-1)


def _points() -> Step:
    return Points(), lambda model: model(torch.rand(1024, 3))


STEPS: dict[str, Callable[[], Step]] = {
    "graph, sum": lambda: _graph("sum"),
    "graph, mean": lambda: _graph("mean"),
    "graph, max": lambda: _graph("max"),
    "graph, attention": lambda: _graph("attention"),
    "graph, pooled": lambda: _graph("sum", pool=True),
    "atoms within a radius, forces": _radius,
    "U-Net of diffusion": _unet,
    "U-Net of diffusion, text": lambda: _unet(96),
    "state space, loop": lambda: _words(StateSpace(True)),
    "state space, cumulative sum": lambda: _words(StateSpace(False)),
    "experts, masks": lambda: _words(Experts("masks")),
    "experts, sorted": lambda: _words(Experts("sorted")),
    "experts, capacity": lambda: _words(Experts("capacity")),
    "masked words": _masked,
    "speech, packed LSTM, CTC": _transcript,
    "embedding bags": _bags,
    "sequences of different lengths": _nested,
    "early exits": _early,
    "points in voxels": _points,
}
