"""Descriptions of models in a few lines, for those who have neither torch nor the code."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from fairmile.base.documents import StrictDocument, without_plugins
from fairmile.base.errors import InvalidDocument, Problem

# tf32 changes how fp32 is multiplied, not its bytes; bf16 and fp16 are autocast, pure_bf16 has a master copy
Precision = Literal["fp32", "tf32", "bf16", "fp16", "pure_bf16"]
Count = Annotated[int, Field(ge=1, le=10**12, strict=True)]
Repeats = Annotated[int, Field(ge=1, le=10_000, strict=True)]  # each is computed by itself

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


class Described(StrictDocument):
    """What every kind of model says of its training."""

    batch: Count
    training: bool = True
    precision: Precision = "fp32"
    optimizer: str = "adamw"
    implementation: Literal["foreach", "fused", "loop"] = "foreach"
    recompute: Literal["none", "selective", "full"] = "none"
    fp32_gradients: bool = False  # pure_bf16 as in Megatron: gradients are summed in fp32
    accumulate: Count = 1  # batches whose gradients are summed before the optimizer's step

    @model_validator(mode="after")
    def _optimizer_is_known(self) -> Described:
        if self.optimizer not in OPTIMIZER_STATE_BYTES:
            raise ValueError(f"no optimizer named {self.optimizer!r}; known: {', '.join(OPTIMIZER_STATE_BYTES)}")
        return self

    @property
    def compute_bytes(self) -> int:
        """Of one element of an activation."""
        return 4 if self.precision in ("fp32", "tf32") else 2

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


class Transformer(Described):
    """A stack of equal blocks over a sequence of tokens, or of patches where there is no vocabulary."""

    kind: Literal["transformer"] = "transformer"
    layers: Repeats
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
            raise ValueError(f"hidden ({self.hidden}) is not a multiple of heads ({self.heads})")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})")
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


class Stage(StrictDocument):
    """Equal convolutions, each with norm and activation if said, and a pooling by two at the end."""

    channels: Count
    kernel: Count = 3
    stride: Count = 1
    repeat: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    norm: bool = True
    activation: Literal["relu", "leaky_relu", "none"] = "relu"
    pool: bool = False
    bias: bool | None = None  # where there is no norm


class Cnn(Described):
    """A convolutional network: a chain of stages, a ResNet of bottlenecks or a U-Net, and dense layers at the end."""

    kind: Literal["cnn"] = "cnn"
    dimensions: Literal[1, 2, 3] = 2
    input_channels: Count = 3
    side: tuple[Count, ...]  # length of each dimension
    form: Literal["chain", "resnet", "unet"] = "chain"
    stages: Annotated[tuple[Stage, ...], Field(max_length=100)] = ()
    depths: Annotated[tuple[Repeats, ...], Field(max_length=20)] = ()  # resnet: blocks of each stage: 3, 4, 6, 3
    width: Count = 64  # resnet, unet: channels of the first stage
    depth: Annotated[int, Field(ge=1, le=40, strict=True)] = 4  # unet: how often it halves
    outputs: Count = 1  # unet: channels of the result
    dense: Annotated[tuple[Count, ...], Field(max_length=1000)] = ()  # widths; the last is the number of outputs
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


class Rnn(Described):
    """Recurrent layers as cuDNN runs them, and a linear layer on every step's output."""

    kind: Literal["rnn"] = "rnn"
    cell: Literal["lstm", "gru", "tanh"] = "lstm"
    layers: Repeats
    hidden: Count
    seq: Count
    inputs: Count
    outputs: Count = 1
    dropout: bool = False
    bidirectional: bool = False


class Gnn(Described):
    """Message passing: each edge joins the features of its ends, a linear layer makes the message, nodes sum them."""

    kind: Literal["gnn"] = "gnn"
    nodes: Count  # of one sample of the batch
    edges: Count  # of one sample of the batch
    hidden: Count
    layers: Repeats
    inputs: Count
    message: Count | None = None  # width of a message; hidden where it is not said
    edge_features: Annotated[int, Field(ge=0)] = 0
    outputs: Count = 1


Description: TypeAlias = Annotated[Transformer | Cnn | Rnn | Gnn, Field(discriminator="kind")]
_KINDS = ("transformer", "cnn", "rnn", "gnn")
_TYPES: Mapping[str, type[Described]] = {"transformer": Transformer, "cnn": Cnn, "rnn": Rnn, "gnn": Gnn}
with without_plugins():
    _DESCRIPTIONS: TypeAdapter[Transformer | Cnn | Rnn | Gnn] = TypeAdapter(Description)


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
        raise InvalidDocument(problems, hint=_hint(data, error.errors()[0], file)) from error


def _hint(data: Any, wrong: Mapping[str, Any], file: str) -> str:
    """Return what mends a problem of a description."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind not in _KINDS:
        return f"set kind to one of {', '.join(_KINDS)}"
    name = ".".join(str(step) for step in wrong["loc"] if step not in _KINDS)
    if wrong["type"] == "extra_forbidden":
        known = list(_TYPES[kind].model_fields)
        near = difflib.get_close_matches(name, known, n=1)
        return f"did you mean {near[0]}?" if near else f"fields of a {kind}: {', '.join(known)}"
    if wrong["type"] == "missing":
        return f"set it in the file, or with -a {name}=VALUE" if file else "add it to the description"
    return f"change it in the file, or with -a {name or 'NAME'}=VALUE" if file else "change it in the description"
