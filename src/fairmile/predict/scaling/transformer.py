"""The step time of a transformer over data, tensor and pipeline parallel ranks, by a few physical constants.

Matrices take their FLOPs at an efficiency that saturates with each of their three sizes; everything else takes its
bytes; a host that cannot launch fast enough sets a floor. Seventeen constants have usual values, which
speed/scaling_accuracy fits to published runs.
"""

from __future__ import annotations

import math

from fairmile.base.quick_dataclass import dataclass
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.memory.sharding import Layout
from fairmile.predict.scaling.step import A100, Collectives, NodeModel, StepParts

_FLOOR_SHARPNESS = 6.0  # how sharply the host's floor takes over from the device
_STREAM_PASSES = 14.0  # times a block's input-sized tensors are read or written forwards: norms, residuals, dropout
_INNER_PASSES = 4.5  # the same for tensors of the inner width
_SCORE_PASSES = 6.0  # the same for attention's scores: scale, mask, softmax, dropout
_HEAD_BYTES = 16.0  # per token and word: softmax and loss in fp32, forwards and backwards
_BACKWARD_PASSES = 1.6  # element-wise work backwards, of that forwards
_MEMORY_EFFICIENCY = 0.77  # of the nominal bandwidth, for element-wise work
GRADIENT_BYTES = 4.0  # per parameter, where gradients are reduced in fp32


@dataclass(frozen=True)
class Constants:
    """What a device, its links and its software do; usual values are those of A100 nodes with NVLink."""

    matrix_efficiency: float = 0.80  # of the peak, for large matrices
    rows_half: float = 250.0  # sizes at which each dimension halves that efficiency
    columns_half: float = 150.0
    inner_half: float = 150.0
    attention_efficiency: float = 0.50
    memory_bytes_per_s: float = 1.2e12
    kernel_s: float = 6e-6
    layer_launch_s: float = 1e-3  # the host's time to launch one block one way
    collective_launch_s: float = 60e-6
    collective_s: float = 50e-6  # per doubling of the ranks
    link_bytes_per_s: float = 230e9  # inside a node, bus bandwidth
    node_bytes_per_s: float = 160e9  # of all adapters of a node
    hop_s: float = 3e-4  # one hand-over between stages
    hop_bytes_per_s: float = 12e9
    optimizer_bytes: float = 20.0  # moved per parameter in an update
    step_s: float = 5e-3  # once per step
    fill_share: float = 0.9  # of a stage's time, per stage that the pipeline fills

    @classmethod
    def of_device(cls, memory_bytes_per_s: float) -> Constants:
        """Return the usual constants of a device with this nominal memory bandwidth."""
        return cls(memory_bytes_per_s=_MEMORY_EFFICIENCY * memory_bytes_per_s)


class TransformerModel:
    """Predicts the step of any transformer in any layout on one kind of machine.

    `overlap` is the share of the last backward pass that hides the reduction of gradients: 0 where it comes after,
    as in Megatron. With `collectives`, their times are taken instead of the fitted links. `straggling` is what the
    slowest rank adds to the work, per e-fold of the ranks.
    """

    def __init__(
        self,
        constants: Constants | None = None,
        machine: NodeModel = A100,
        *,
        collectives: Collectives | None = None,
        overlap: float = 0.0,
        straggling: float = 0.0,
    ) -> None:
        self.constants = constants or Constants()
        self.machine = machine
        self.collectives = collectives
        self.overlap = overlap
        self.straggling = straggling

    def step(self, model: Transformer, layout: Layout) -> StepParts:
        """Return where the time of one step goes."""
        c, p, m = self.constants, layout.pipeline, layout.micro_batches
        forward_s, backward_s, again_s = self._layer(model, layout)
        reduce_s = self._tensor_reduce_s(model, layout)
        passes = 2 + (1 if layout.recompute == "full" else 0)
        tensor_s = 2 * passes * reduce_s
        compute_s = forward_s + backward_s + again_s
        launch_s = c.layer_launch_s * (passes + 1)
        if layout.tensor > 1:
            launch_s += 2 * passes * c.collective_launch_s * math.log2(layout.tensor)
        layer_s = _soft_max(compute_s + tensor_s, launch_s)
        hidden = layer_s / (compute_s + tensor_s)
        per_stage = model.layers / p
        head_s = self._head_s(model, layout)
        head_tensor_s = 2 * reduce_s if model.vocab else 0.0
        hop_s = self._hop_s(model, layout)
        stage_s = layer_s * per_stage
        # The last stage also has the head; the pipeline runs at its pace and is filled by the others.
        bubble_s = (p - 1) * (stage_s + hop_s) * c.fill_share / layout.interleave
        work_s = m * (compute_s * hidden * per_stage + head_s)
        return StepParts(
            compute_s=work_s,
            tensor_s=m * (tensor_s * hidden * per_stage + head_tensor_s),
            bubble_s=bubble_s,
            hops_s=m * hop_s * layout.interleave,
            data_s=self._data_s(model, layout, backward_s * hidden * per_stage),
            optimizer_s=self._optimizer_s(model, layout),
            wait_s=self.straggling * math.log(layout.ranks) * (work_s + bubble_s),
            overhead_s=c.step_s,
        )

    def _matrix_s(self, rows: float, columns: float, inner: float) -> float:
        c = self.constants
        halves = (1 + c.rows_half / rows) * (1 + c.columns_half / columns) * (1 + c.inner_half / inner)
        return 2 * rows * columns * inner * halves / (self.machine.peak_flops * c.matrix_efficiency) + c.kernel_s

    def _layer(self, model: Transformer, layout: Layout) -> tuple[float, float, float]:
        """Return the times of one block: forwards, backwards, recomputed."""
        c, t = self.constants, layout.tensor
        tokens, h, f = layout.micro_batch * model.seq, model.hidden, model.ffn_width
        matrices_s = (
            self._matrix_s(tokens, h * (1 + 2 * model.kv_share) / t, h)
            + self._matrix_s(tokens, h, h / t)
            + (2 if model.glu else 1) * self._matrix_s(tokens, f / t, h)
            + self._matrix_s(tokens, h, f / t)
        )
        scores_s = 0.0
        core_s = 4.0 * tokens * model.seq * h / t / (self.machine.peak_flops * c.attention_efficiency) + 2 * c.kernel_s
        if model.attention == "math":
            scores = float(tokens) * model.seq * model.heads / t
            scores_s = scores * model.compute_bytes * _SCORE_PASSES / c.memory_bytes_per_s
        split = t if layout.sequence_parallel else 1
        inner_passes = _INNER_PASSES * (1.5 if model.glu else 1.0)
        moved = tokens * model.compute_bytes * (_STREAM_PASSES * h / split + inner_passes * f / t)
        others_s = moved / c.memory_bytes_per_s + 12 * c.kernel_s
        forward_s = matrices_s + core_s + scores_s + others_s
        # Where scores are not kept, backwards computes them once more.
        cores = 2.0 if model.attention == "math" else 2.5
        backward_s = 2 * matrices_s + cores * core_s + _BACKWARD_PASSES * (others_s + scores_s)
        core_again_s = core_s + scores_s if model.attention == "math" else 0.0
        again_s = {"none": 0.0, "selective": core_again_s, "full": forward_s}[layout.recompute]
        return forward_s, backward_s, again_s

    def _head_s(self, model: Transformer, layout: Layout) -> float:
        if not model.vocab:
            return 0.0
        tokens, words = layout.micro_batch * model.seq, model.vocab / layout.tensor
        return 3 * self._matrix_s(tokens, words, model.hidden) + (
            tokens * words * _HEAD_BYTES / self.constants.memory_bytes_per_s
        )

    def _tensor_reduce_s(self, model: Transformer, layout: Layout) -> float:
        if layout.tensor == 1:
            return 0.0
        size = float(layout.micro_batch * model.seq * model.hidden * model.compute_bytes)
        nodes = -(-layout.tensor // self.machine.gpus_per_node)
        return self._all_reduce_s(size, layout.tensor, nodes)

    def _all_reduce_s(self, size_bytes: float, ranks: int, nodes: int) -> float:
        c = self.constants
        if self.collectives is not None:
            return self.collectives.time_s("all_reduce", size_bytes, ranks, nodes=nodes)
        rate = c.link_bytes_per_s if nodes == 1 else min(c.link_bytes_per_s, c.node_bytes_per_s)
        return c.collective_s * math.log2(ranks) + 2 * (ranks - 1) / ranks * size_bytes / rate

    def _hop_s(self, model: Transformer, layout: Layout) -> float:
        if layout.pipeline == 1:
            return 0.0
        size = layout.micro_batch * model.seq * model.hidden * model.compute_bytes / layout.tensor
        return 2 * (self.constants.hop_s + size / self.constants.hop_bytes_per_s)

    def _rank_parameters(self, model: Transformer, layout: Layout) -> float:
        blocks = model.layers * model.layer_parameters / layout.pipeline
        return (blocks + model.embedding_parameters + model.head_parameters) / layout.tensor

    def _data_s(self, model: Transformer, layout: Layout, last_backward_s: float) -> float:
        if layout.data == 1:
            return 0.0
        c, nodes = self.constants, self.machine.data_nodes(layout)
        size = self._rank_parameters(model, layout) * GRADIENT_BYTES
        if self.collectives is not None:
            size *= self.machine.sharing(layout, nodes)
            time_s = self.collectives.time_s("all_reduce", size, layout.data, nodes=nodes)
        elif nodes > 1:
            # Every group of a node sends through the same adapters.
            groups = min(layout.tensor, self.machine.gpus_per_node)
            time_s = c.collective_s + 2 * (nodes - 1) / nodes * size * groups / c.node_bytes_per_s
        else:
            time_s = self._all_reduce_s(size, layout.data, 1)
        if layout.zero >= 2:
            # Ranks keep only their share of the gradients, so that every micro-batch's are scattered at once.
            again, last_backward_s = layout.micro_batches, last_backward_s * layout.micro_batches
            if layout.zero == 2:
                time_s *= 0.5 * again + 0.5
            else:
                # Parameters are gathered twice in every micro-batch, in the precision of the work.
                gathers = 2 + (1 if layout.recompute == "full" else 0)
                time_s *= (0.5 + 0.5 * gathers * model.compute_bytes / GRADIENT_BYTES) * again
        return time_s - min(0.95 * time_s, self.overlap * last_backward_s)

    def _optimizer_s(self, model: Transformer, layout: Layout) -> float:
        mine = self._rank_parameters(model, layout) / (layout.data if layout.zero else 1)
        return mine * self.constants.optimizer_bytes / self.constants.memory_bytes_per_s


def _soft_max(one: float, other: float) -> float:
    ratio = min(one, other) / max(one, other)
    return float(max(one, other) * (1 + ratio**_FLOOR_SHARPNESS) ** (1 / _FLOOR_SHARPNESS))
