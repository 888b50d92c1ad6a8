"""Memory and FLOPs of a step from a small description, for those who have neither torch nor the code.

A description becomes a chain of operations that know what they keep for backward; walking the chain forwards and
backwards finds the moment that needs most. What stays out: fragmentation, and whatever the description leaves unsaid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fairmile.base.errors import InvalidDocument, NotFound, Problem
from fairmile.base.yaml import load_located
from fairmile.perf.memory.sharding import ModelFootprint

Precision = Literal["fp32", "bf16", "fp16", "pure_bf16"]  # bf16 and fp16 are autocast, pure_bf16 has a master copy
Count = Annotated[int, Field(ge=1, strict=True)]

WORKSPACE_BYTES = 65 * 2**20  # cuBLAS on Hopper: one handle forwards, one backwards
CONTEXT_BYTES = 804_061_184  # device bytes outside the allocator; torch 2.11, CUDA 13.0, H200

# State of an optimizer in bytes per parameter, all of it fp32 unless the name says otherwise.
OPTIMIZER_STATE_BYTES: Mapping[str, float] = {
    "none": 0,
    "sgd": 0,
    "momentum": 4,
    "adagrad": 4,
    "rmsprop": 4,
    "lion": 4,
    "adam": 8,
    "adamw": 8,
    "lamb": 8,
    "adam_8bit": 2,
}
_FOREACH_TEMPORARY = {"adam", "adamw", "lamb", "rmsprop", "adagrad"}  # one more copy of the parameters in the step


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Described(_Part):
    batch: Count
    training: bool = True
    precision: Precision = "fp32"
    optimizer: str = "adamw"
    implementation: Literal["foreach", "fused", "loop"] = "foreach"
    recompute: Literal["none", "selective", "full"] = "none"
    fp32_gradients: bool = False  # pure_bf16 as in Megatron: gradients are summed in fp32

    @model_validator(mode="after")
    def _optimizer_is_known(self) -> _Described:
        if self.optimizer not in OPTIMIZER_STATE_BYTES:
            raise ValueError(f"no optimizer named {self.optimizer!r}; known: {', '.join(OPTIMIZER_STATE_BYTES)}")
        return self

    @property
    def compute_bytes(self) -> int:
        """Of one element of an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def weight_bytes(self) -> int:
        return 2 if self.precision == "pure_bf16" else 4

    @property
    def gradient_bytes(self) -> int:
        return 4 if self.fp32_gradients else self.weight_bytes

    @property
    def stream_bytes(self) -> int:
        """Of one element where autocast stays with fp32: norms and the residual stream."""
        return 2 if self.precision == "pure_bf16" else 4


class Transformer(_Described):
    """A stack of equal blocks over a sequence of tokens, or of patches where there is no vocabulary."""

    kind: Literal["transformer"] = "transformer"
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count | None = None
    ffn: Count | None = None  # four times hidden
    vocab: Annotated[int, Field(ge=0, strict=True)] = 0
    seq: Count
    tied: bool = True
    attention: Literal["flash", "math"] = "flash"
    glu: bool = False
    activation: Literal["gelu", "gelu_composed", "relu", "silu"] = "gelu"  # composed: of single operations, as in GPT-2
    dropout: bool = True
    positions: Annotated[int, Field(ge=0)] = 0  # learned position embeddings
    classes: Annotated[int, Field(ge=0)] = 0  # a linear head without vocabulary
    patch: Annotated[int, Field(ge=0)] = 0  # values of one image patch that the first layer takes
    biases: bool = True
    head_transform: bool = False  # a dense layer and a norm before the vocabulary, as in BERT

    @model_validator(mode="after")
    def _fits(self) -> Transformer:
        if self.hidden % self.heads:
            raise ValueError(f"hidden, {self.hidden}, is no multiple of heads, {self.heads}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads, {self.heads}, is no multiple of kv_heads, {self.kv_heads}")
        return self

    @property
    def ffn_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def kv_share(self) -> float:
        return (self.kv_heads or self.heads) / self.heads

    @property
    def layer_parameters(self) -> int:
        h, f = self.hidden, self.ffn_width
        weights = round(h * h * (2 + 2 * self.kv_share)) + h * f * (3 if self.glu else 2)
        biases = round(h * (2 + 2 * self.kv_share)) + f * (2 if self.glu else 1) + h if self.biases else 0
        return weights + biases + 2 * h * (2 if self.biases else 1)

    @property
    def embedding_parameters(self) -> int:
        h = self.hidden
        return (self.vocab + self.positions) * h + (self.patch * h + h if self.patch else 0)

    @property
    def head_parameters(self) -> int:
        h = self.hidden
        final = 2 * h if self.biases else h
        transform = h * h + 3 * h if self.head_transform else 0
        classes = self.classes * (h + 1)
        return final + transform + classes + (0 if self.tied else self.vocab * h)

    @property
    def parameters(self) -> int:
        return self.embedding_parameters + self.layers * self.layer_parameters + self.head_parameters


class Stage(_Part):
    """Equal convolutions, each with norm and activation if said, and a pooling by two at the end."""

    channels: Count
    kernel: Count = 3
    stride: Count = 1
    repeat: Count = 1
    norm: bool = True
    activation: Literal["relu", "leaky_relu", "none"] = "relu"
    pool: bool = False
    bias: bool | None = None  # where there is no norm


class Cnn(_Described):
    """A convolutional network: a chain of stages, a ResNet of bottlenecks or a U-Net, and dense layers at the end."""

    kind: Literal["cnn"] = "cnn"
    dimensions: Literal[1, 2, 3] = 2
    input_channels: Count = 3
    side: tuple[Count, ...]  # length of each dimension
    form: Literal["chain", "resnet", "unet"] = "chain"
    stages: tuple[Stage, ...] = ()
    depths: tuple[Count, ...] = ()  # resnet: blocks of each stage, such as 3, 4, 6, 3
    width: Count = 64  # resnet, unet: channels of the first stage
    depth: Count = 4  # unet: how often it halves
    outputs: Count = 1  # unet: channels of the result
    dense: tuple[Count, ...] = ()  # widths of the dense layers, the last is the number of outputs
    dense_activation: bool = True
    dropout: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Cnn:
        if len(self.side) != self.dimensions:
            raise ValueError(f"side has {len(self.side)} lengths, expected {self.dimensions}")
        if self.form == "resnet" and not self.depths:
            raise ValueError("a resnet needs depths, such as [3, 4, 6, 3]")
        if self.form == "chain" and not (self.stages or self.dense):
            raise ValueError("a chain needs stages or dense layers")
        return self


class Rnn(_Described):
    """Recurrent layers as cuDNN runs them, and a linear layer on every step's output."""

    kind: Literal["rnn"] = "rnn"
    cell: Literal["lstm", "gru", "tanh"] = "lstm"
    layers: Count
    hidden: Count
    seq: Count
    inputs: Count
    outputs: Count = 1
    dropout: bool = False
    bidirectional: bool = False


class Gnn(_Described):
    """Message passing: each edge joins the features of its ends, a linear layer makes the message, nodes sum them."""

    kind: Literal["gnn"] = "gnn"
    nodes: Count  # of one sample of the batch
    edges: Count  # of one sample of the batch
    hidden: Count
    layers: Count
    inputs: Count
    message: Count | None = None  # width of a message; hidden where it is not said
    edge_features: Annotated[int, Field(ge=0)] = 0
    outputs: Count = 1


Description: TypeAlias = Annotated[Transformer | Cnn | Rnn | Gnn, Field(discriminator="kind")]
_KINDS = ("transformer", "cnn", "rnn", "gnn")
_DESCRIPTIONS: TypeAdapter[Transformer | Cnn | Rnn | Gnn] = TypeAdapter(Description)


def read_description(path: Path) -> Transformer | Cnn | Rnn | Gnn:
    """Return the description that a YAML or JSON file holds; problems name its lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"cannot read the description {path}: {error}") from error
    located = load_located(text, file=str(path))
    return parse_description(located.data, file=str(path), line_of=located.line)


def parse_description(
    data: Any, *, file: str = "", line_of: Callable[[Sequence[str | int]], int | None] | None = None
) -> Transformer | Cnn | Rnn | Gnn:
    """Return the description that plain data holds; InvalidDocument lists all that is wrong with it."""
    try:
        return _DESCRIPTIONS.validate_python(data)
    except ValidationError as error:
        problems = []
        for each in error.errors():
            steps = [step for step in each["loc"] if step not in _KINDS]
            message = each["msg"].removeprefix("Value error, ")
            line = line_of(steps) if line_of else None
            problems.append(Problem(message, field=".".join(str(step) for step in steps), file=file, line=line))
        raise InvalidDocument(problems, hint=f"kind is one of {', '.join(_KINDS)}") from error


@dataclass(frozen=True)
class ClosedForm:
    """What a description needs: the breakdown at the fullest moment, and the whole of each part."""

    footprint: ModelFootprint
    parameters: int
    flops_per_step: float
    peak_allocated_bytes: int
    moment: str  # "loss", "backward of …", "optimizer", "forward of …"
    breakdown: Mapping[str, int] = field(default_factory=dict)  # parts of the peak, and the context outside of it

    @property
    def device_used_bytes(self) -> int:
        """The least that the device shows: without what the allocator reserves beyond the peak."""
        return self.peak_allocated_bytes + self.breakdown["context"]


def closed_form(
    said: Transformer | Cnn | Rnn | Gnn | Mapping[str, Any],
    *,
    workspace_bytes: int = WORKSPACE_BYTES,
    context_bytes: int = CONTEXT_BYTES,
) -> ClosedForm:
    """Return memory and FLOPs of one step of what a description says."""
    described = parse_description(said) if isinstance(said, Mapping) else said
    chain = list(_chain(described))
    return _account(described, chain, workspace_bytes, context_bytes)


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
        return 20 if said.precision == "fp32" else 10 if said.precision == "pure_bf16" else 16
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


def _account(said: _Described, chain: list[_Op], workspace: int, context: int) -> ClosedForm:
    parameters = round(sum(op.parameters for op in chain))
    master = 4 if said.precision == "pure_bf16" else 0
    state = OPTIMIZER_STATE_BYTES[said.optimizer] + master if said.training else 0.0
    fixed = {"parameters": said.weight_bytes * parameters, "optimizer": state * parameters, "workspace": workspace}
    moments = list(_training_moments(said, chain) if said.training else _inference_moments(said, chain))
    moment, parts = max(moments, key=lambda each: sum(each[1].values()))
    breakdown = {
        name: round({**fixed, **parts}.get(name, 0.0))
        for name in ("parameters", "gradients", "optimizer", "activations", "temporary", "workspace")
    }
    peak = sum(breakdown.values())
    breakdown["context"] = context
    footprint = _footprint(said, chain, breakdown, state)
    flops = sum(op.flops for op in chain)
    if said.training:
        extra = {"none": 0.0, "selective": sum(op.core_flops for op in chain), "full": flops}[said.recompute]
        flops = 3 * flops + extra
    return ClosedForm(footprint, parameters, flops, peak, moment, breakdown)


def _casts(said: _Described, op: _Op) -> float:
    return 2 * (op.parameters + op.tied) if said.precision in ("bf16", "fp16") and op.cast else 0.0


def _kept(said: _Described, op: _Op) -> float:
    """Return what an operation keeps for backward, with the low-precision copy of its weights."""
    if said.recompute == "full" and op.boundary:
        return op.boundary
    return op.kept - (op.core if said.recompute == "selective" else 0.0) + _casts(said, op)


def _training_moments(said: _Described, chain: list[_Op]) -> Iterator[tuple[str, dict[str, float]]]:
    count = sum(op.parameters for op in chain)
    kept, all_gradients = 0.0, float(said.gradient_bytes * count)
    gradients = all_gradients
    for op in chain:
        whole = op.kept + _casts(said, op)
        again = whole - _kept(said, op)  # what recomputation brings back while this one goes backwards
        kept += _kept(said, op)
        yield f"forward of {op.unit}", {"activations": kept, "temporary": op.forward}
        # Gradients of what comes later in the chain are there already, its own come now.
        gradients -= said.gradient_bytes * op.parameters
        parts = {"activations": kept + again, "temporary": op.backward, "gradients": gradients}
        yield f"backward of {op.unit}", parts
    update = {"gradients": all_gradients, "temporary": _update_bytes(said, chain), "activations": chain[0].kept}
    yield "optimizer", update


def _update_bytes(said: _Described, chain: list[_Op]) -> float:
    """Return the temporaries of the optimizer's step."""
    if not said.training or said.implementation == "fused" or said.optimizer not in _FOREACH_TEMPORARY:
        return 0.0
    counts = [op.parameters for op in chain]
    return 4.0 * (sum(counts) if said.implementation == "foreach" else max(counts))


def _inference_moments(said: _Described, chain: list[_Op]) -> Iterator[tuple[str, dict[str, float]]]:
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


def _footprint(said: _Described, chain: list[_Op], breakdown: Mapping[str, int], state: float) -> ModelFootprint:
    weight = said.weight_bytes
    parameters: dict[str, float] = {}
    activations: dict[str, float] = {}
    selective: dict[str, float] = {}
    temporary: dict[str, float] = {}
    copies: dict[str, float] = {}
    for op in chain:
        parameters[op.unit] = parameters.get(op.unit, 0.0) + weight * op.parameters
        activations[op.unit] = activations.get(op.unit, 0.0) + (op.kept if said.training else 0.0)
        copies[op.unit] = copies.get(op.unit, 0.0) + (_casts(said, op) if said.training else 0.0)
        selective[op.unit] = selective.get(op.unit, 0.0) + op.core
        live = max(op.forward, op.backward) if said.training else op.forward
        temporary[op.unit] = max(temporary.get(op.unit, 0.0), live)
    count = sum(parameters.values()) / weight
    return ModelFootprint(
        parameters_bytes=parameters,
        activations_bytes=activations,
        gradients_bytes=said.gradient_bytes * count if said.training else 0.0,
        optimizer_bytes=state * count,
        temporary_bytes=max(temporary.values()),
        unit_temporary_bytes=temporary,
        update_bytes=_update_bytes(said, chain),
        workspace_bytes=breakdown["workspace"],
        context_bytes=breakdown["context"],
        batch=said.batch,
        parameters=round(count),
        boundary_bytes=max((op.boundary for op in chain), default=0.0),
        selective_bytes=selective,
        copies_bytes=copies,
    )
