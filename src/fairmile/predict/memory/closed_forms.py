"""Memory and FLOPs of a step from a small description, for those who have neither torch nor the code.

A description becomes a chain of operations that know what they keep for backward; walking the chain forwards and
backwards finds the moment that needs most. What the allocator reserves beyond that is an estimate by measured steps of
the same kind. What stays out: whatever the description leaves unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from fairmile.base.quick_dataclass import dataclass
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
    description: Transformer | Cnn | Rnn | Gnn | Mapping[str, Any], on: Device | None = None, *, libraries: bool = True
) -> ClosedForm:
    """Return memory and FLOPs of one step of what a description says, on an H200 unless another GPU is named.

    Without `libraries` nothing is counted but the step itself: no workspaces, no context.
    """
    described = parse_description(description) if isinstance(description, Mapping) else description
    chain = list(_chain(described))
    overhead = _overhead_of(described, on or device(GPU)) if libraries else _Overhead()
    return _account(described, chain, overhead)


@dataclass(frozen=True)
class _Overhead:
    """What a step takes beside its own tensors."""

    workspace_bytes: int = 0
    context_bytes: int = 0
    notes: tuple[str, ...] = ()


def _overhead_of(description: Transformer | Cnn | Rnn | Gnn, on: Device) -> _Overhead:
    """Follow what PyTorch's libraries take, each thread for itself: one goes forwards, another backwards."""
    threads = 2 if description.training else 1
    products = 0 if isinstance(description, Cnn) and not description.dense else threads
    if isinstance(description, Transformer):
        # Patches are a convolution; fused attention in a low precision may be cuDNN's.
        uses_networks = bool(description.patch) or description.compute_bytes < 4
    else:
        uses_networks = isinstance(description, Rnn) or (
            isinstance(description, Cnn) and (description.form != "chain" or bool(description.stages))
        )
    rules = library_rules(on.architecture)
    context, is_known = context_bytes(on.slug, products=products, networks=threads if uses_networks else 0)
    workspace = products * rules.blas_handle_bytes + (rules.blas_epilogue_bytes if products else 0)
    notes = () if is_known and rules.verified else (unmeasured_note(on),)
    return _Overhead(workspace, context, notes)


def slack_share(description: Transformer | Cnn | Rnn | Gnn) -> tuple[float, float, float]:
    """Return the share that an allocator reserves beyond what it gives out: usual, least and most of what was measured.

    Steps of these kinds on an H200 with PyTorch's usual settings; the usual share is their mean.
    """
    if isinstance(description, Cnn):
        if description.form == "chain" and not description.stages:
            return _SLACK["dense"]
        return _SLACK["cnn_3d" if description.dimensions == 3 else "cnn"]
    return _SLACK[description.kind]


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


def _chain(description: Transformer | Cnn | Rnn | Gnn) -> Iterator[_Op]:
    if isinstance(description, Transformer):
        return _transformer(description)
    if isinstance(description, Cnn):
        return _CnnChain(description).ops()
    return _rnn(description) if isinstance(description, Rnn) else _gnn(description)


def _transformer(description: Transformer) -> Iterator[_Op]:
    tokens, h, r = description.batch * description.seq, description.hidden, description.stream_bytes
    stream = tokens * h * r
    mask = tokens * h if description.dropout and description.training else 0
    image = tokens * description.patch * 4
    yield _Op(
        "embedding",
        description.embedding_parameters,
        2.0 * tokens * description.patch * h,
        mask + tokens * 8 + image,
        2 * stream,
        2 * stream,
        cast=bool(description.patch),
    )
    for number in range(description.layers):
        yield _block(description, f"layer.{number}", tokens)
    yield _head(description, tokens, stream)


def _block(description: Transformer, unit: str, tokens: int) -> _Op:
    h, f, e, r = description.hidden, description.ffn_width, description.compute_bytes, description.stream_bytes
    scores = float(tokens) * description.heads * description.seq
    core = (
        scores * (2 * e + (1 if description.dropout else 0))
        if description.attention == "math"
        else tokens * description.heads * 4.0
    )
    attention = h * e * (2 + 2 * description.kv_share)  # queries, keys, values, and what they give
    norms = 2 * h * (r + e)  # what goes in, and what the linear layers read
    masks = 2 * h if description.dropout else 0
    mlp = f * _mlp_bytes(description)
    matrices = description.layer_parameters
    core_flops = 4.0 * tokens * description.seq * h
    return _Op(
        unit,
        matrices,
        2.0 * tokens * matrices + core_flops,
        tokens * (attention + norms + masks + mlp) + core,
        tokens * (2 * f * e + h * r) + (scores * e if description.attention == "math" else 0),
        tokens * (f * e + h * r),
        boundary=tokens * h * r,
        core=core if description.attention == "math" else 0.0,
        core_flops=core_flops,
    )


def _mlp_bytes(description: Transformer) -> float:
    """Return what a block keeps per token and element of its inner layer."""
    e = description.compute_bytes
    if description.glu:
        return 4 * e  # gate, its activation, the other half, their product
    if description.activation == "gelu_composed":
        # Power, tanh, one plus tanh stay in fp32 under autocast; half of x and the product in the low precision.
        return 20 if description.compute_bytes == 4 else 10 if description.precision == "pure_bf16" else 16
    return e if description.activation == "relu" else 2 * e


def _head(description: Transformer, tokens: int, stream: float) -> _Op:
    e = description.compute_bytes
    logits = float(tokens) * description.vocab
    transform = (
        tokens * description.hidden * (2 * e + 2 * description.stream_bytes) if description.head_transform else 0.0
    )
    low = logits * e if e < 4 else 0.0
    return _Op(
        "head",
        description.head_parameters,
        2.0 * tokens * description.vocab * description.hidden,
        logits * 4 + stream + tokens * description.hidden * e + transform,  # the log-softmax, fp32
        2 * logits * 4,  # its gradient and that of its input
        logits * 4 + low,
        tied=float(description.vocab * description.hidden) if description.tied else 0.0,
    )


class _CnnChain:
    """Walk through a convolutional network, keeping track of channels and sides."""

    def __init__(self, description: Cnn) -> None:
        self.description = description
        self.side: tuple[int, ...] = description.side
        self.channels = description.input_channels
        self.first = True

    def ops(self) -> Iterator[_Op]:
        description = self.description
        elements = self._elements(self.channels)
        low = elements * description.compute_bytes if description.compute_bytes < 4 else 0
        yield _Op("input", 0, 0.0, elements * 4 + low, 0.0, 0.0)
        if description.form == "resnet":
            yield from self._resnet()
        elif description.form == "unet":
            yield from self._unet()
        else:
            for number, stage in enumerate(description.stages):
                for _ in range(stage.repeat):
                    yield self._convolution(f"stage.{number}", stage)
                if stage.pool:
                    yield self._pool(f"stage.{number}", kept=stage.activation == "none")
        yield from self._dense()

    def _elements(self, channels: int) -> float:
        count = float(self.description.batch * channels)
        for length in self.side:
            count *= length
        return count

    def _convolution(self, unit: str, stage: Stage, *, read: bool = True, transposed: bool = False) -> _Op:
        """Keep the output of the convolution (for norm or activation) and, where it is read, of the activation."""
        e = self.description.compute_bytes
        before = self._elements(self.channels)
        step = stage.stride
        self.side = tuple(x * step for x in self.side) if transposed else tuple(-(-x // step) for x in self.side)
        after = self._elements(stage.channels)
        weights = self.channels * stage.channels * stage.kernel**self.description.dimensions
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
        e = self.description.compute_bytes
        before = self._elements(self.channels)
        self.side = tuple(max(1, x // 2) for x in self.side)
        after = self._elements(self.channels)
        return _Op(unit, 0, 0.0, after * (e + 8) + (before * e if kept else 0), (before + after) * e, 0.0)

    def _resnet(self) -> Iterator[_Op]:
        width = self.description.width
        yield self._convolution("stem", Stage(channels=width, kernel=7, stride=2))
        yield self._pool("stem")
        for level, blocks in enumerate(self.description.depths):
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
        description = self.description
        widths = [description.width * 2**level for level in range(description.depth + 1)]
        for level, width in enumerate(widths):
            for _ in range(2):
                yield self._convolution(f"down.{level}", Stage(channels=width))
            if level < description.depth:
                yield self._pool(f"down.{level}")
        for level, width in enumerate(reversed(widths[:-1])):
            unit = f"up.{level}"
            up = Stage(channels=width, kernel=2, stride=2, norm=False, activation="none", bias=True)
            yield self._convolution(unit, up, transposed=True, read=False)
            self.channels = 2 * width  # with what was skipped
            joined = self._elements(2 * width) * description.compute_bytes
            yield _Op(unit, 0, 0.0, joined, joined, joined / 2)
            for _ in range(2):
                yield self._convolution(unit, Stage(channels=width))
        yield self._convolution("out", Stage(channels=description.outputs, kernel=1, norm=False), read=False)
        scores = self._elements(description.outputs)
        yield _Op("loss", 0, 0.0, scores * 4 + scores / description.outputs * 8, 2 * scores * 4, scores * 4)

    def _dense(self) -> Iterator[_Op]:
        e, description = self.description.compute_bytes, self.description
        if not description.dense:
            return
        width = self.channels
        if description.form != "resnet":  # there the sides are averaged
            for length in self.side:
                width *= length
        for number, outputs in enumerate(description.dense):
            last = number == len(description.dense) - 1
            out = float(description.batch) * outputs
            kept = out * e * (1 + (1 if description.dropout and not last else 0)) + (
                out if description.dropout and not last else 0
            )
            yield _Op(
                f"dense.{number}",
                width * outputs + outputs,
                2.0 * description.batch * width * outputs,
                kept,
                out * e + float(description.batch) * width * e,
                out * e if description.dense_activation and not last else 0.0,
            )
            width = outputs


def _rnn(description: Rnn) -> Iterator[_Op]:
    """Follow cuDNN: a reserve for backward, a workspace for the gradients of the gates, a flat copy of the weights."""
    gates = {"lstm": 4, "gru": 3, "tanh": 1}[description.cell]
    ways = 2 if description.bidirectional else 1
    e, h = description.compute_bytes, description.hidden
    steps = float(description.batch) * description.seq
    weights = 0
    for layer in range(description.layers):
        width = description.inputs if not layer else h * ways
        weights += ways * gates * (h * width + h * h + 2 * h)
    blocks = {"lstm": 5, "gru": 4, "tanh": 1}[description.cell] * description.layers * ways
    if description.dropout:
        blocks += (description.layers - 1) * ways
    reserve = blocks * steps * h * e * 1.003
    out = steps * h * ways * e
    inputs = steps * description.inputs * 4
    yield _Op("input", 0, 0.0, inputs + (steps * description.inputs * e if e < 4 else 0), 0.0, 0.0)
    yield _Op(
        "rnn",
        weights,
        2.0 * steps * (weights - ways * description.layers * gates * 2 * h),
        reserve + out,
        gates * description.layers * ways * steps * h * e + out + inputs * e / 4 + weights * e,
        out,
        boundary=inputs,
    )
    yield _Op(
        "out",
        h * ways * description.outputs + description.outputs,
        2.0 * steps * h * ways * description.outputs,
        2 * steps * description.outputs * 4,
        out + steps * description.outputs * 4,
        steps * description.outputs * 4,
    )


def _gnn(description: Gnn) -> Iterator[_Op]:
    e, h = description.compute_bytes, description.hidden
    nodes, edges = float(description.batch) * description.nodes, float(description.batch) * description.edges
    message = description.message or h
    joined = 2 * h + description.edge_features
    yield _Op(
        "input", 0, 0.0, nodes * description.inputs * 4 + edges * 16 + edges * description.edge_features * 4, 0.0, 0.0
    )
    yield _Op(
        "embedding",
        description.inputs * h + h,
        2.0 * nodes * description.inputs * h,
        nodes * h * e,
        nodes * h * e,
        nodes * h * e,
    )
    for number in range(description.layers):
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
    yield _Op(
        "out",
        h * description.outputs + description.outputs,
        2.0 * nodes * h * description.outputs,
        nodes * description.outputs * 4,
        0,
        0,
    )


def _account(description: Transformer | Cnn | Rnn | Gnn, chain: list[_Op], overhead: _Overhead) -> ClosedForm:
    parameters = round(sum(op.parameters for op in chain))
    master = 4 if description.precision == "pure_bf16" else 0
    state = OPTIMIZER_STATE_BYTES[description.optimizer] + master if description.training else 0.0
    fixed = {"parameters": description.weight_bytes * parameters, "optimizer": state * parameters}
    fixed["workspace"] = overhead.workspace_bytes
    moments = list(
        _training_moments(description, chain) if description.training else _inference_moments(description, chain)
    )
    moment, parts = max(moments, key=lambda each: sum(each[1].values()))
    breakdown = {
        name: round({**fixed, **parts}.get(name, 0.0))
        for name in ("parameters", "gradients", "optimizer", "activations", "temporary", "workspace")
    }
    peak = sum(breakdown.values())
    usual, least, most = slack_share(description)
    breakdown |= {"slack": round(usual * peak), "context": overhead.context_bytes}
    footprint = _footprint(description, chain, breakdown, state)
    flops = sum(op.flops for op in chain)
    if description.training:
        extra = {"none": 0.0, "selective": sum(op.core_flops for op in chain), "full": flops}[description.recompute]
        flops = description.accumulate * (3 * flops + extra)
    span = f"{least:.0%}" if least == most else f"{least:.0%} to {most:.0%}"
    slack_note = f"slack is an estimate: similar measured steps reserved {span} more than they allocated"
    return ClosedForm(footprint, parameters, flops, peak, moment, breakdown, (slack_note, *overhead.notes))


def _casts(description: Described, op: _Op) -> float:
    return 2 * (op.parameters + op.tied) if description.precision in ("bf16", "fp16") and op.cast else 0.0


def _kept(description: Described, op: _Op) -> float:
    """Return what an operation keeps for backward, with the low-precision copy of its weights."""
    if description.recompute == "full" and op.boundary:
        return op.boundary
    return op.kept - (op.core if description.recompute == "selective" else 0.0) + _casts(description, op)


def _training_moments(description: Described, chain: list[_Op]) -> Iterator[tuple[str, dict[str, float]]]:
    count = sum(op.parameters for op in chain)
    kept, all_gradients = 0.0, float(description.gradient_bytes * count)
    gradients = all_gradients
    sums = description.accumulate > 1
    for op in chain:
        whole = op.kept + _casts(description, op)
        again = whole - _kept(description, op)  # what recomputation brings back while this one goes backwards
        kept += _kept(description, op)
        # Gradients of the batch before are there all the time, where those of several are summed.
        before = {"gradients": all_gradients} if sums else {}
        yield f"forward of {op.unit}", {"activations": kept, "temporary": op.forward, **before}
        # Gradients of what comes later in the chain are there already, its own come now.
        if not sums:
            gradients -= description.gradient_bytes * op.parameters
        parts = {"activations": kept + again, "temporary": op.backward, "gradients": gradients}
        yield f"backward of {op.unit}", parts
    update = {"gradients": all_gradients, "temporary": _update_bytes(description, chain), "activations": chain[0].kept}
    yield "optimizer", update


def _update_bytes(description: Described, chain: list[_Op]) -> float:
    """Return the temporaries of the optimizer's step."""
    if (
        not description.training
        or description.implementation == "fused"
        or description.optimizer not in _FOREACH_TEMPORARY
    ):
        return 0.0
    counts = [op.parameters for op in chain]
    return 4.0 * (sum(counts) if description.implementation == "foreach" else max(counts))


def _inference_moments(description: Described, chain: list[_Op]) -> Iterator[tuple[str, dict[str, float]]]:
    casts, cache = 0.0, 0.0
    held = chain[0].kept  # the input stays
    # A plain chain holds what goes in and what comes out; others also hold what is added at the end of a block.
    beside = 0.0 if isinstance(description, Cnn) and description.form != "resnet" else 1.0
    skips: dict[int, float] = {}
    before = 0.0
    for op in chain:
        casts += _casts(description, op)
        if isinstance(description, Transformer) and op.unit.startswith("layer.") and description.vocab:
            cache += (
                2.0
                * description.batch
                * description.seq
                * description.hidden
                * description.kv_share
                * description.compute_bytes
            )
        live = op.kept if op.unit == "head" else max(op.boundary + op.forward, min(op.kept, 2 * op.forward))
        extra = op.forward * (1.0 if op.unit == "head" or not op.parameters else beside)
        kept = held + cache + sum(skips.values())
        yield f"forward of {op.unit}", {"activations": kept, "temporary": live + extra + casts}
        if isinstance(description, Cnn) and description.form == "unet":
            _hold_skips(skips, op, before, description.depth)
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
    description: Transformer | Cnn | Rnn | Gnn, chain: list[_Op], breakdown: Mapping[str, int], state: float
) -> ModelFootprint:
    weight = description.weight_bytes
    parameters: dict[str, float] = {}
    activations: dict[str, float] = {}
    selective: dict[str, float] = {}
    temporary: dict[str, float] = {}
    copies: dict[str, float] = {}
    for op in chain:
        parameters[op.unit] = parameters.get(op.unit, 0.0) + weight * op.parameters
        activations[op.unit] = activations.get(op.unit, 0.0) + (op.kept if description.training else 0.0)
        copies[op.unit] = copies.get(op.unit, 0.0) + _casts(description, op)
        selective[op.unit] = selective.get(op.unit, 0.0) + op.core
        live = max(op.forward, op.backward) if description.training else op.forward
        temporary[op.unit] = max(temporary.get(op.unit, 0.0), live)
    count = sum(parameters.values()) / weight
    # Without training nothing is kept unit by unit: what is live at the fullest moment counts as a whole.
    passing = breakdown["activations"] + breakdown["temporary"] - sum(copies.values())
    tied = [Tied(chain[0].unit, op.unit, weight * op.tied) for op in chain if op.tied]
    return ModelFootprint(
        parameters_bytes=parameters,
        activations_bytes=activations,
        gradients_bytes=description.gradient_bytes * count if description.training else 0.0,
        optimizer_bytes=state * count,
        temporary_bytes=max(temporary.values()) if description.training else max(passing, 0.0),
        unit_temporary_bytes=temporary if description.training else None,
        update_bytes=_update_bytes(description, chain)
        + (chain[0].kept if description.training else 0.0),  # the input is still there
        workspace_bytes=breakdown["workspace"],
        context_bytes=breakdown["context"],
        batch=description.batch,
        parameters=round(count),
        boundary_bytes=max((op.boundary for op in chain), default=0.0),
        selective_bytes=selective,
        copies_bytes=copies,
        tied=tied,
        slack_share=slack_share(description)[0],
    )
