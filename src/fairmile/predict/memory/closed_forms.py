"""Memory and FLOPs of a step from a small description, for those who have neither torch nor the code.

A description becomes a chain of operations that know what they keep for backward; walking the chain forwards and
backwards finds the moment that needs most. What the allocator reserves beyond that is an estimate by measured steps of
the same kind. What stays out: whatever the description leaves unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairmile.costs.devices import Device, device
from fairmile.predict.memory.contexts import context_bytes, unmeasured_note
from fairmile.predict.memory.descriptions import (
    OPTIMIZER_STATE_BYTES,
    Cnn,
    Described,
    Gnn,
    Rnn,
    Stage,
    Transformer,
    parse_description,
)
from fairmile.predict.memory.sharding import ModelFootprint, Tied
from fairmile.predict.memory.workspaces import library_rules

GPU = "h200"

# What the allocator reserved beyond what it gave out at the peak, as shares: mean, least and most of measured steps.
_SLACK: Mapping[str, tuple[float, float, float]] = {
    "transformer": (0.09, 0.02, 0.22),
    "dense": (0.0, 0.0, 0.0),
    "cnn": (0.18, 0.11, 0.24),
    "cnn_3d": (0.84, 0.72, 0.91),
    "rnn": (0.12, 0.12, 0.12),
    "gnn": (0.11, 0.11, 0.11),
}
_FOREACH_TEMPORARY = {"adam", "adamw", "lamb", "rmsprop", "adagrad"}  # one more copy of the parameters in the step


@dataclass(frozen=True)
class ClosedForm:
    """What a description needs: the breakdown at the fullest moment, and the whole of each part."""

    footprint: ModelFootprint
    parameters: int
    flops_per_step: float
    peak_allocated_bytes: int
    moment: str  # "loss", "backward of …", "optimizer", "forward of …"
    breakdown: Mapping[str, int] = field(default_factory=dict)  # parts of the peak; slack and context lie outside of it
    notes: Sequence[str] = ()

    @property
    def peak_reserved_bytes(self) -> int:
        """What the allocator then holds: an estimate."""
        return self.peak_allocated_bytes + self.breakdown["slack"]

    @property
    def device_used_bytes(self) -> int:
        """What the device then shows as used, where it has room for what the allocator holds."""
        return self.peak_reserved_bytes + self.breakdown["context"]

    @property
    def least_device_bytes(self) -> int:
        """What is left where the allocator gives all back that it does not use."""
        return self.peak_allocated_bytes + self.breakdown["context"]


def closed_form(
    said: Transformer | Cnn | Rnn | Gnn | Mapping[str, Any], on: Device | None = None, *, libraries: bool = True
) -> ClosedForm:
    """Return memory and FLOPs of one step of what a description says, on an H200 unless another GPU is named.

    Without `libraries` nothing is counted but the step itself: no workspaces, no context.
    """
    described = parse_description(said) if isinstance(said, Mapping) else said
    chain = list(_chain(described))
    around = _around(described, on or device(GPU)) if libraries else _Around()
    return _account(described, chain, around)


@dataclass(frozen=True)
class _Around:
    """What a step takes beside its own tensors."""

    workspace_bytes: int = 0
    context_bytes: int = 0
    notes: tuple[str, ...] = ()


def _around(said: Transformer | Cnn | Rnn | Gnn, on: Device) -> _Around:
    """Follow what PyTorch's libraries take, each thread for itself: one goes forwards, another backwards."""
    threads = 2 if said.training else 1
    products = 0 if isinstance(said, Cnn) and not said.dense else threads
    if isinstance(said, Transformer):
        # Patches are a convolution; fused attention in a low precision may be cuDNN's.
        uses_networks = bool(said.patch) or said.compute_bytes < 4
    else:
        uses_networks = isinstance(said, Rnn) or (isinstance(said, Cnn) and (said.form != "chain" or bool(said.stages)))
    rules = library_rules(on.architecture)
    context, is_known = context_bytes(on.slug, products=products, networks=threads if uses_networks else 0)
    workspace = products * rules.blas_handle_bytes + (rules.blas_epilogue_bytes if products else 0)
    notes = () if is_known and rules.verified else (unmeasured_note(on),)
    return _Around(workspace, context, notes)


def slack_share(said: Transformer | Cnn | Rnn | Gnn) -> tuple[float, float, float]:
    """Return the share that an allocator reserves beyond what it gives out: usual, least and most of what was measured.

    Steps of these kinds on an H200 with PyTorch's usual settings; the usual share is their mean.
    """
    if isinstance(said, Cnn):
        if said.form == "chain" and not said.stages:
            return _SLACK["dense"]
        return _SLACK["cnn_3d" if said.dimensions == 3 else "cnn"]
    return _SLACK[said.kind]


@dataclass(frozen=True)
class _Op:
    """A part of the chain in bytes at the described batch; `live` is beside what is kept, while it works."""

    unit: str
    parameters: float  # elements
    flops: float  # forward
    kept: float  # for backward
    backward: float  # gradients of its output and input, live while it goes backwards
    forward: float  # not kept, live while it goes forwards
    boundary: float = 0.0  # its input, where it opens a unit
    core: float = 0.0  # of `kept`, what selective recomputation drops
    core_flops: float = 0.0
    cast: bool = True  # autocast makes a low-precision copy of its parameters
    tied: float = 0.0  # elements of another's parameters that it uses and copies, too


def _chain(said: Transformer | Cnn | Rnn | Gnn) -> Iterator[_Op]:
    if isinstance(said, Transformer):
        return _transformer(said)
    if isinstance(said, Cnn):
        return _CnnChain(said).ops()
    return _rnn(said) if isinstance(said, Rnn) else _gnn(said)


def _transformer(said: Transformer) -> Iterator[_Op]:
    tokens, h, r = said.batch * said.seq, said.hidden, said.stream_bytes
    stream = tokens * h * r
    mask = tokens * h if said.dropout and said.training else 0
    image = tokens * said.patch * 4
    yield _Op(
        "embedding",
        said.embedding_parameters,
        2.0 * tokens * said.patch * h,
        mask + tokens * 8 + image,
        2 * stream,
        2 * stream,
        cast=bool(said.patch),
    )
    for number in range(said.layers):
        yield _block(said, f"layer.{number}", tokens)
    yield _head(said, tokens, stream)


def _block(said: Transformer, unit: str, tokens: int) -> _Op:
    h, f, e, r = said.hidden, said.ffn_width, said.compute_bytes, said.stream_bytes
    scores = float(tokens) * said.heads * said.seq
    core = scores * (2 * e + (1 if said.dropout else 0)) if said.attention == "math" else tokens * said.heads * 4.0
    attention = h * e * (2 + 2 * said.kv_share)  # queries, keys, values, and what they give
    norms = 2 * h * (r + e)  # what goes in, and what the linear layers read
    masks = 2 * h if said.dropout else 0
    mlp = f * _mlp_bytes(said)
    matrices = said.layer_parameters
    core_flops = 4.0 * tokens * said.seq * h
    return _Op(
        unit,
        matrices,
        2.0 * tokens * matrices + core_flops,
        tokens * (attention + norms + masks + mlp) + core,
        tokens * (2 * f * e + h * r) + (scores * e if said.attention == "math" else 0),
        tokens * (f * e + h * r),
        boundary=tokens * h * r,
        core=core if said.attention == "math" else 0.0,
        core_flops=core_flops,
    )


def _mlp_bytes(said: Transformer) -> float:
    """Return what a block keeps per token and element of its inner layer."""
    e = said.compute_bytes
    if said.glu:
        return 4 * e  # gate, its activation, the other half, their product
    if said.activation == "gelu_composed":
        # Power, tanh, one plus tanh stay in fp32 under autocast; half of x and the product in the low precision.
        return 20 if said.compute_bytes == 4 else 10 if said.precision == "pure_bf16" else 16
    return e if said.activation == "relu" else 2 * e


def _head(said: Transformer, tokens: int, stream: float) -> _Op:
    e = said.compute_bytes
    logits = float(tokens) * said.vocab
    transform = tokens * said.hidden * (2 * e + 2 * said.stream_bytes) if said.head_transform else 0.0
    low = logits * e if e < 4 else 0.0
    return _Op(
        "head",
        said.head_parameters,
        2.0 * tokens * said.vocab * said.hidden,
        logits * 4 + stream + tokens * said.hidden * e + transform,  # the log-softmax, fp32
        2 * logits * 4,  # its gradient and that of its input
        logits * 4 + low,
        tied=float(said.vocab * said.hidden) if said.tied else 0.0,
    )


class _CnnChain:
    """Walk through a convolutional network, keeping track of channels and sides."""

    def __init__(self, said: Cnn) -> None:
        self.said = said
        self.side: tuple[int, ...] = said.side
        self.channels = said.input_channels
        self.first = True

    def ops(self) -> Iterator[_Op]:
        said = self.said
        elements = self._elements(self.channels)
        low = elements * said.compute_bytes if said.compute_bytes < 4 else 0
        yield _Op("input", 0, 0.0, elements * 4 + low, 0.0, 0.0)
        if said.form == "resnet":
            yield from self._resnet()
        elif said.form == "unet":
            yield from self._unet()
        else:
            for number, stage in enumerate(said.stages):
                for _ in range(stage.repeat):
                    yield self._convolution(f"stage.{number}", stage)
                if stage.pool:
                    yield self._pool(f"stage.{number}", kept=stage.activation == "none")
        yield from self._dense()

    def _elements(self, channels: int) -> float:
        count = float(self.said.batch * channels)
        for length in self.side:
            count *= length
        return count

    def _convolution(self, unit: str, stage: Stage, *, read: bool = True, transposed: bool = False) -> _Op:
        """Keep the output of the convolution (for norm or activation) and, where it is read, of the activation."""
        e = self.said.compute_bytes
        before = self._elements(self.channels)
        step = stage.stride
        self.side = tuple(x * step for x in self.side) if transposed else tuple(-(-x // step) for x in self.side)
        after = self._elements(stage.channels)
        weights = self.channels * stage.channels * stage.kernel**self.said.dimensions
        bias = stage.channels if (stage.bias if stage.bias is not None else not stage.norm) else 0
        norm = 2 * stage.channels if stage.norm else 0
        outputs = before if transposed else after
        kept = after * e * ((1 if stage.norm or stage.activation == "leaky_relu" else 0) + (1 if read else 0))
        flops = 2.0 * weights * outputs / stage.channels if not transposed else 2.0 * weights * before / self.channels
        first, self.first = self.first, False
        self.channels = stage.channels
        return _Op(
            unit,
            weights + bias + norm,
            flops,
            kept,
            after * e + (0.0 if first else before * e),
            after * e,
            boundary=before * e,
        )

    def _pool(self, unit: str, *, kept: bool = False) -> _Op:
        e = self.said.compute_bytes
        before = self._elements(self.channels)
        self.side = tuple(max(1, x // 2) for x in self.side)
        after = self._elements(self.channels)
        return _Op(unit, 0, 0.0, after * (e + 8) + (before * e if kept else 0), (before + after) * e, 0.0)

    def _resnet(self) -> Iterator[_Op]:
        width = self.said.width
        yield self._convolution("stem", Stage(channels=width, kernel=7, stride=2))
        yield self._pool("stem")
        for level, blocks in enumerate(self.said.depths):
            inner, outer = width * 2**level, 4 * width * 2**level
            for number in range(blocks):
                unit, stride = f"stage.{level}.{number}", 2 if level and not number else 1
                if not number:
                    side, channels = self.side, self.channels
                    shortcut = Stage(channels=outer, kernel=1, stride=stride, activation="none")
                    yield self._convolution(unit, shortcut, read=False)
                    self.side, self.channels = side, channels
                yield self._convolution(unit, Stage(channels=inner, kernel=1))
                yield self._convolution(unit, Stage(channels=inner, stride=stride))
                yield self._convolution(unit, Stage(channels=outer, kernel=1))

    def _unet(self) -> Iterator[_Op]:
        said = self.said
        widths = [said.width * 2**level for level in range(said.depth + 1)]
        for level, width in enumerate(widths):
            for _ in range(2):
                yield self._convolution(f"down.{level}", Stage(channels=width))
            if level < said.depth:
                yield self._pool(f"down.{level}")
        for level, width in enumerate(reversed(widths[:-1])):
            unit = f"up.{level}"
            up = Stage(channels=width, kernel=2, stride=2, norm=False, activation="none", bias=True)
            yield self._convolution(unit, up, transposed=True, read=False)
            self.channels = 2 * width  # with what was skipped
            joined = self._elements(2 * width) * said.compute_bytes
            yield _Op(unit, 0, 0.0, joined, joined, joined / 2)
            for _ in range(2):
                yield self._convolution(unit, Stage(channels=width))
        yield self._convolution("out", Stage(channels=said.outputs, kernel=1, norm=False), read=False)
        scores = self._elements(said.outputs)
        yield _Op("loss", 0, 0.0, scores * 4 + scores / said.outputs * 8, 2 * scores * 4, scores * 4)

    def _dense(self) -> Iterator[_Op]:
        e, said = self.said.compute_bytes, self.said
        if not said.dense:
            return
        width = self.channels
        if said.form != "resnet":  # there the sides are averaged
            for length in self.side:
                width *= length
        for number, outputs in enumerate(said.dense):
            last = number == len(said.dense) - 1
            out = float(said.batch) * outputs
            kept = out * e * (1 + (1 if said.dropout and not last else 0)) + (out if said.dropout and not last else 0)
            yield _Op(
                f"dense.{number}",
                width * outputs + outputs,
                2.0 * said.batch * width * outputs,
                kept,
                out * e + float(said.batch) * width * e,
                out * e if said.dense_activation and not last else 0.0,
            )
            width = outputs


def _rnn(said: Rnn) -> Iterator[_Op]:
    """Follow cuDNN: a reserve for backward, a workspace for the gradients of the gates, a flat copy of the weights."""
    gates = {"lstm": 4, "gru": 3, "tanh": 1}[said.cell]
    ways = 2 if said.bidirectional else 1
    e, h = said.compute_bytes, said.hidden
    steps = float(said.batch) * said.seq
    weights = 0
    for layer in range(said.layers):
        width = said.inputs if not layer else h * ways
        weights += ways * gates * (h * width + h * h + 2 * h)
    blocks = {"lstm": 5, "gru": 4, "tanh": 1}[said.cell] * said.layers * ways
    if said.dropout:
        blocks += (said.layers - 1) * ways
    reserve = blocks * steps * h * e * 1.003
    out = steps * h * ways * e
    inputs = steps * said.inputs * 4
    yield _Op("input", 0, 0.0, inputs + (steps * said.inputs * e if e < 4 else 0), 0.0, 0.0)
    yield _Op(
        "rnn",
        weights,
        2.0 * steps * (weights - ways * said.layers * gates * 2 * h),
        reserve + out,
        gates * said.layers * ways * steps * h * e + out + inputs * e / 4 + weights * e,
        out,
        boundary=inputs,
    )
    yield _Op(
        "out",
        h * ways * said.outputs + said.outputs,
        2.0 * steps * h * ways * said.outputs,
        2 * steps * said.outputs * 4,
        out + steps * said.outputs * 4,
        steps * said.outputs * 4,
    )


def _gnn(said: Gnn) -> Iterator[_Op]:
    e, h = said.compute_bytes, said.hidden
    nodes, edges = float(said.batch) * said.nodes, float(said.batch) * said.edges
    message = said.message or h
    joined = 2 * h + said.edge_features
    yield _Op("input", 0, 0.0, nodes * said.inputs * 4 + edges * 16 + edges * said.edge_features * 4, 0.0, 0.0)
    yield _Op(
        "embedding",
        said.inputs * h + h,
        2.0 * nodes * said.inputs * h,
        nodes * h * e,
        nodes * h * e,
        nodes * h * e,
    )
    for number in range(said.layers):
        weights = joined * message + message + (message * h + h if message != h else 0)
        yield _Op(
            f"layer.{number}",
            weights,
            2.0 * edges * joined * message + (2.0 * nodes * message * h if message != h else 0),
            edges * (joined + message) * e + nodes * h * 4,
            edges * (2 * message + joined + h) * e + nodes * h * 4,
            edges * (2 * h + message) * e,
            boundary=nodes * h * 4,
        )
    yield _Op("out", h * said.outputs + said.outputs, 2.0 * nodes * h * said.outputs, nodes * said.outputs * 4, 0, 0)


def _account(said: Transformer | Cnn | Rnn | Gnn, chain: list[_Op], around: _Around) -> ClosedForm:
    parameters = round(sum(op.parameters for op in chain))
    master = 4 if said.precision == "pure_bf16" else 0
    state = OPTIMIZER_STATE_BYTES[said.optimizer] + master if said.training else 0.0
    fixed = {"parameters": said.weight_bytes * parameters, "optimizer": state * parameters}
    fixed["workspace"] = around.workspace_bytes
    moments = list(_training_moments(said, chain) if said.training else _inference_moments(said, chain))
    moment, parts = max(moments, key=lambda each: sum(each[1].values()))
    breakdown = {
        name: round({**fixed, **parts}.get(name, 0.0))
        for name in ("parameters", "gradients", "optimizer", "activations", "temporary", "workspace")
    }
    peak = sum(breakdown.values())
    usual, least, most = slack_share(said)
    breakdown |= {"slack": round(usual * peak), "context": around.context_bytes}
    footprint = _footprint(said, chain, breakdown, state)
    flops = sum(op.flops for op in chain)
    if said.training:
        extra = {"none": 0.0, "selective": sum(op.core_flops for op in chain), "full": flops}[said.recompute]
        flops = said.accumulate * (3 * flops + extra)
    span = f"{least:.0%}" if least == most else f"{least:.0%} to {most:.0%}"
    slack_note = f"slack is an estimate: measured steps of this kind had {span} beyond what was allocated"
    return ClosedForm(footprint, parameters, flops, peak, moment, breakdown, (slack_note, *around.notes))


def _casts(said: Described, op: _Op) -> float:
    return 2 * (op.parameters + op.tied) if said.precision in ("bf16", "fp16") and op.cast else 0.0


def _kept(said: Described, op: _Op) -> float:
    """Return what an operation keeps for backward, with the low-precision copy of its weights."""
    if said.recompute == "full" and op.boundary:
        return op.boundary
    return op.kept - (op.core if said.recompute == "selective" else 0.0) + _casts(said, op)


def _training_moments(said: Described, chain: list[_Op]) -> Iterator[tuple[str, dict[str, float]]]:
    count = sum(op.parameters for op in chain)
    kept, all_gradients = 0.0, float(said.gradient_bytes * count)
    gradients = all_gradients
    sums = said.accumulate > 1
    for op in chain:
        whole = op.kept + _casts(said, op)
        again = whole - _kept(said, op)  # what recomputation brings back while this one goes backwards
        kept += _kept(said, op)
        # Gradients of the batch before are there all the time, where those of several are summed.
        before = {"gradients": all_gradients} if sums else {}
        yield f"forward of {op.unit}", {"activations": kept, "temporary": op.forward, **before}
        # Gradients of what comes later in the chain are there already, its own come now.
        if not sums:
            gradients -= said.gradient_bytes * op.parameters
        parts = {"activations": kept + again, "temporary": op.backward, "gradients": gradients}
        yield f"backward of {op.unit}", parts
    update = {"gradients": all_gradients, "temporary": _update_bytes(said, chain), "activations": chain[0].kept}
    yield "optimizer", update


def _update_bytes(said: Described, chain: list[_Op]) -> float:
    """Return the temporaries of the optimizer's step."""
    if not said.training or said.implementation == "fused" or said.optimizer not in _FOREACH_TEMPORARY:
        return 0.0
    counts = [op.parameters for op in chain]
    return 4.0 * (sum(counts) if said.implementation == "foreach" else max(counts))


def _inference_moments(said: Described, chain: list[_Op]) -> Iterator[tuple[str, dict[str, float]]]:
    casts, cache = 0.0, 0.0
    held = chain[0].kept  # the input stays
    # A plain chain holds what goes in and what comes out; others also hold what is added at the end of a block.
    beside = 0.0 if isinstance(said, Cnn) and said.form != "resnet" else 1.0
    skips: dict[int, float] = {}
    before = 0.0
    for op in chain:
        casts += _casts(said, op)
        if isinstance(said, Transformer) and op.unit.startswith("layer.") and said.vocab:
            cache += 2.0 * said.batch * said.seq * said.hidden * said.kv_share * said.compute_bytes
        live = op.kept if op.unit == "head" else max(op.boundary + op.forward, min(op.kept, 2 * op.forward))
        extra = op.forward * (1.0 if op.unit == "head" or not op.parameters else beside)
        kept = held + cache + sum(skips.values())
        yield f"forward of {op.unit}", {"activations": kept, "temporary": live + extra + casts}
        if isinstance(said, Cnn) and said.form == "unet":
            _hold_skips(skips, op, before, said.depth)
        before = op.forward


def _hold_skips(skips: dict[int, float], op: _Op, before: float, depth: int) -> None:
    """Keep what each pooling on the way down reads until the way up has joined it."""
    way, _, number = op.unit.partition(".")
    if way in ("down", "up") and not op.parameters:
        if way == "down":
            skips[int(number)] = before
        else:
            del skips[depth - 1 - int(number)]


def _footprint(
    said: Transformer | Cnn | Rnn | Gnn, chain: list[_Op], breakdown: Mapping[str, int], state: float
) -> ModelFootprint:
    weight = said.weight_bytes
    parameters: dict[str, float] = {}
    activations: dict[str, float] = {}
    selective: dict[str, float] = {}
    temporary: dict[str, float] = {}
    copies: dict[str, float] = {}
    for op in chain:
        parameters[op.unit] = parameters.get(op.unit, 0.0) + weight * op.parameters
        activations[op.unit] = activations.get(op.unit, 0.0) + (op.kept if said.training else 0.0)
        copies[op.unit] = copies.get(op.unit, 0.0) + _casts(said, op)
        selective[op.unit] = selective.get(op.unit, 0.0) + op.core
        live = max(op.forward, op.backward) if said.training else op.forward
        temporary[op.unit] = max(temporary.get(op.unit, 0.0), live)
    count = sum(parameters.values()) / weight
    # Without training nothing is kept unit by unit: what is live at the fullest moment counts as a whole.
    passing = breakdown["activations"] + breakdown["temporary"] - sum(copies.values())
    tied = [Tied(chain[0].unit, op.unit, weight * op.tied) for op in chain if op.tied]
    return ModelFootprint(
        parameters_bytes=parameters,
        activations_bytes=activations,
        gradients_bytes=said.gradient_bytes * count if said.training else 0.0,
        optimizer_bytes=state * count,
        temporary_bytes=max(temporary.values()) if said.training else max(passing, 0.0),
        unit_temporary_bytes=temporary if said.training else None,
        update_bytes=_update_bytes(said, chain) + (chain[0].kept if said.training else 0.0),  # the input is still there
        workspace_bytes=breakdown["workspace"],
        context_bytes=breakdown["context"],
        batch=said.batch,
        parameters=round(count),
        boundary_bytes=max((op.boundary for op in chain), default=0.0),
        selective_bytes=selective,
        copies_bytes=copies,
        tied=tied,
        slack_share=slack_share(said)[0],
    )
