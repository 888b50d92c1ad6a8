"""A model's step is traced without a GPU: every allocation's life, as CUDA would see it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import SystemFailure, Unsupported, UsageError
from fairmile.costs.steps import Op, StepEvent, StepTrace, Storage
from fairmile.predict.fake_device.request import TraceRequest, trace_target, trace_targets
from fairmile.predict.memory.footprints import batch_of

pytest.importorskip("torch")

TARGETS = Path(__file__).with_name("targets.py")
SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
STREAM = SHARED / "perf" / "h200_alloc_traces" / "tr13.json"
ROWS = 8

_ASKED: dict[str, dict[str, Any]] = {
    "cnn": {"function": "cnn"},
    "cnn bf16 last": {"function": "cnn", "arguments": {"precision": "bf16", "channels_last": True}},
    "cnn asked last": {"function": "cnn", "channels_last": True, "precision": "bf16"},
    "mlp": {"function": "mlp"},
    "mlp bf16": {"function": "mlp", "arguments": {"precision": "bf16"}},
    "mlp cuda": {"function": "mlp", "arguments": {"cuda": True}},
    "mlp cuda bf16": {"function": "mlp", "arguments": {"cuda": True, "precision": "bf16"}},
    "mlp fp16": {"function": "mlp", "precision": "fp16"},
    "mlp fused": {"function": "mlp", "optimizer_form": "fused"},
    "mlp loop": {"function": "mlp", "optimizer_form": "loop"},
    "mlp three": {"function": "mlp", "accumulate": 3},
    "mlp inference": {"function": "mlp", "training": False},
    "transformer": {"function": "transformer"},
    "transformer bf16": {"function": "transformer", "arguments": {"precision": "bf16"}},
    "transformer again": {"function": "transformer", "arguments": {"again": True}},
    "transformer bias": {"function": "transformer", "arguments": {"precision": "bf16", "bias": "ordered"}},
    "transformer turned": {"function": "transformer", "arguments": {"precision": "bf16", "bias": "turned"}},
    "masked": {"function": "masked", "arguments": {"columns": 24}},
    "masked odd": {"function": "masked", "arguments": {"columns": 20}},
    "heads in groups": {"function": "heads_in_groups"},
    "one head of keys": {"function": "one_head_of_keys"},
    "replicated": {"function": "replicated"},
    "replicated views": {"function": "replicated", "arguments": {"views": True}},
    "lstm": {"function": "recurrent"},
    "lstm dropout": {"function": "recurrent", "arguments": {"dropout": 0.5}},
    "gru": {"function": "recurrent", "arguments": {"kind": "GRU"}},
    "lstm bf16": {"function": "recurrent", "arguments": {"precision": "bf16"}},
    "gru cell": {"function": "cell"},
    "lstm cell": {"function": "cell", "arguments": {"kind": "LSTMCell", "bias": False}},
    "graph": {"function": "graph"},
    "cosmoflow": {"function": "cosmoflow", "arguments": {"batch": 4}, "steps": 3},
    "inference": {"function": "inference", "steps": 1},
    "huge": {"function": "huge", "steps": 1},
    "shuffled": {"function": "shuffled"},
    "differentiated": {"function": "differentiated"},
    "normed": {"function": "normed"},
    "compiled": {"function": "compiled"},
    "spoken of": {"function": "spoken_of"},
    "one way": {"function": "one_way"},
    "no update": {"function": "no_update"},
    "tied": {"function": "tied"},
    "replicas": {"function": "replicas"},
    "talkative": {"function": "talkative"},
    "annotated": {"function": "annotated"},
    "loaded": {"function": "loaded"},
    "from outside": {"function": "from_outside"},
    "boxes": {"function": "boxes"},
    "drawn": {"function": "drawn"},
    "drawn again": {"function": "drawn"},
    "output only": {"function": "output_only"},
    "followed in part": {"function": "kinds", "arguments": {"rows": 1 << 27}, "partial": True},
    "choosy of many": {"function": "choosy", "arguments": {"rows": 1 << 27}},
    "choosy of all": {"function": "choosy", "arguments": {"rows": 1 << 27}, "assume": ["selected=1"]},
    "choosy": {"function": "choosy"},
    "choosy all": {"function": "choosy", "assume": ["selected=1"]},
    "choosy none": {"function": "choosy", "assume": ["selected=0"]},
    "experts": {"function": "experts"},
    "experts by masks": {"function": "experts", "arguments": {"way": "masks"}},
    "balanced experts": {"function": "experts", "assume": ["balanced-routing"]},
    "all experts": {"function": "experts", "arguments": {"way": "masks"}, "assume": ["selected=1"]},
    "hidden": {"function": "hidden"},
    "speech": {"function": "speech"},
    "distinct": {"function": "distinct"},
    "packed": {"function": "packed"},
    "changed in place": {"function": "changed_in_place"},
    "shape of data": {"function": "shape_of_data"},
    "number of data": {"function": "number_of_data"},
    # what cannot be traced
    "not followed": {"function": "kinds", "arguments": {"rows": 1 << 27}},
    "misused": {"function": "misused"},
    "misshaped": {"function": "misshaped", "arguments": {"length": "many"}},
    "no scalar": {"function": "no_scalar"},
    "no tensor": {"function": "no_tensor"},
    "no gradient": {"function": "no_gradient"},
    "no model": {"function": "no_model"},
    "no precision": {"function": "no_precision"},
    "wrong shapes": {"function": "wrong_shapes"},
    "breaks": {"function": "breaks"},
    "never there": {"function": "never_there"},
    "no samples": {"function": "no_samples"},
    "no sizes": {"function": "no_sizes"},
    "many optimizers": {"function": "many_optimizers"},
    "unready": {"function": "unready"},
    "leaves": {"function": "leaves"},
    "in C": {"function": "in_c"},
    "no function": {"function": "nobody"},
    "no argument": {"function": "mlp", "arguments": {"width": 3}},
    "no checkpoints": {"function": "mlp", "checkpointing": True},
    "no file": {"file": "nowhere.py"},
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepTrace | UsageError]:
    requests = [TraceRequest(**{"file": str(TARGETS), **asked}) for asked in _ASKED.values()]
    found = trace_targets(requests, folder=tmp_path_factory.mktemp("traces"))
    return dict(zip(_ASKED, found, strict=True))


@pytest.fixture
def of(everything: dict[str, StepTrace | UsageError]) -> Callable[[str], StepTrace]:
    def one(name: str) -> StepTrace:
        found = everything[name]
        assert isinstance(found, StepTrace), found
        return found

    return one


@pytest.fixture
def refused(everything: dict[str, StepTrace | UsageError]) -> Callable[[str], UsageError]:
    def one(name: str) -> UsageError:
        found = everything[name]
        assert isinstance(found, UsageError)
        return found

    return one


def sums(trace: StepTrace, step: int | None = None) -> Counter[str]:
    """Return the bytes by category of everything allocated, in one step or at all."""
    counted: Counter[str] = Counter()
    now = -1
    for kind, number, _ in trace.events:
        if kind == StepEvent.STEP:
            now = number
        elif kind == StepEvent.ALLOC and step in (None, now):
            counted[trace.storages[number].category] += trace.storages[number].size_bytes
    return counted


def names(trace: StepTrace, phase: str | None = None) -> Counter[str]:
    return Counter(op.name for op in trace.ops if phase in (None, op.phase))


def live(trace: StepTrace) -> Iterator[tuple[int, int, int, int]]:
    """Yield each event with the bytes that are allocated after it."""
    now = 0
    for kind, number, _ in trace.events:
        if kind == StepEvent.ALLOC:
            now += trace.storages[number].size_bytes
        elif kind == StepEvent.FREE:
            now -= trace.storages[number].size_bytes
        yield kind, number, now, 0


def made_by(trace: StepTrace, name: str) -> list[Storage]:
    return [storage for storage in trace.storages if storage.op >= 0 and trace.ops[storage.op].name == name]


def one(trace: StepTrace, name: str) -> Op:
    return next(op for op in trace.ops if op.name == name)


TRACED = [name for name in _ASKED if name not in list(_ASKED)[list(_ASKED).index("shape of data") :]]


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.thorough
def test_every_storage_is_allocated_once_and_freed_at_most_once_while_it_lives(
    of: Callable[[str], StepTrace], name: str
) -> None:
    trace, there, seen, open_ops = of(name), set(), set(), []
    for kind, number, _ in trace.events:
        if kind == StepEvent.ALLOC:
            assert number not in seen
            seen.add(number)
            there.add(number)
        elif kind == StepEvent.FREE:
            there.remove(number)
        elif kind == StepEvent.BEGIN:
            open_ops.append(number)
        elif kind == StepEvent.END:
            assert open_ops.pop() == number
    assert not open_ops
    assert all(trace.storages[number].size_bytes > 0 for number in seen)
    for op in trace.ops:
        for spec in (*op.inputs, *op.outputs):
            assert spec.storage < len(trace.storages)


@pytest.mark.parametrize("name", [name for name in TRACED if name not in ("one way", "no update", "huge", "inference")])
def test_a_step_leaves_behind_what_the_step_before_left(of: Callable[[str], StepTrace], name: str) -> None:
    trace, at_steps = of(name), []
    before = 0
    for kind, _, now, _ in live(trace):
        if kind == StepEvent.STEP:
            at_steps.append(before)
        before = now
    assert len(at_steps) == trace.steps
    assert before == (at_steps[-1] if len(at_steps) > 2 or not trace.training else at_steps[1])


def test_a_cnn_has_the_bytes_that_its_layers_say(of: Callable[[str], StepTrace]) -> None:
    trace = of("cnn")
    parameters = 3 * 16 * 9 + 2 * 16 + 16 * 32 * 9 + 32 + 32 * 10 + 10
    assert trace.parameters == parameters
    assert sums(trace, step=-1)["parameter"] == sums(trace, step=1)["gradient"] == 4 * parameters
    assert sums(trace, step=-1)["buffer"] == 2 * 16 * 4 + 8
    assert sums(trace, step=0)["optimizer"] == 4 * parameters
    assert sums(trace, step=1)["optimizer"] == 0
    assert sums(trace, step=1)["input"] == ROWS * 3 * 32 * 32 * 4 + ROWS * 8
    large, small = ROWS * 16 * 32 * 32, ROWS * 16 * 16 * 16
    kept = 4 * (large + large + 2 * 16)  # convolution; normalised and cut in place, with mean and deviation
    kept += small * 4 + small * 8  # largest of four, with indices of 8 bytes
    kept += ROWS * 32 * 16 * 16 * 4  # the second relu's output: nobody needs the convolution's
    kept += ROWS * 32 * 4  # mean over the image, for the linear layer
    kept += ROWS * 10 * 4 + 4 + 4  # log-softmax, loss and its weight
    assert sums(trace, step=1)["activation"] == kept


def test_batch_norm_of_the_second_step_belongs_to_its_module(of: Callable[[str], StepTrace]) -> None:
    trace = of("cnn")
    assert {op.module for op in trace.ops if op.name.startswith("aten.native_batch_norm")} == {"1"}
    assert one(trace, "aten.convolution_backward.default").module == "4"
    assert {storage.module for storage in trace.storages if storage.category == "buffer"} == {"1"}


def test_channels_last_convolutions_stay_so_and_copy_nothing(of: Callable[[str], StepTrace]) -> None:
    for name in ("cnn bf16 last", "cnn asked last"):
        second = [op for op in of(name).ops if op.name == "aten.convolution.default"][1]
        assert second.inputs[0].strides == (16 * 256, 1, 16 * 16, 16)
        assert second.outputs[0].strides == (32 * 256, 1, 16 * 32, 32)
        assert second.outputs[0].dtype == "bfloat16"


def test_the_backward_convolution_holds_its_data_in_order_from_before_its_outputs_to_its_end(
    of: Callable[[str], StepTrace],
) -> None:
    trace = of("shuffled")
    at = next(n for n, op in enumerate(trace.ops) if op.name == "aten.convolution_backward.default")
    data, gradient = trace.ops[at - 2], trace.ops[at - 1]
    assert [op.name for op in (data, gradient)] == ["aten.clone.default", "aten.clone.default"]
    assert data.inputs[0].storage == trace.ops[at].inputs[1].storage
    events = list(trace.events)
    freed = events.index((StepEvent.FREE, data.outputs[0].storage, 0))
    made = [events.index((StepEvent.ALLOC, spec.storage, 0)) for spec in trace.ops[at].outputs]
    assert events.index((StepEvent.ALLOC, data.outputs[0].storage, 0)) < min(made) <= max(made) < freed


def test_the_gradient_of_a_mean_of_squares_has_channels_first(of: Callable[[str], StepTrace]) -> None:
    op = one(of("shuffled"), "aten.mse_loss_backward.default")
    assert op.inputs[1].strides == (3 * 1024, 1, 3 * 32, 3)
    assert op.outputs[0].strides == (3 * 1024, 1024, 32, 1)


def test_the_gradient_of_a_norm_lies_in_order_and_what_came_in_is_copied_after_it(
    of: Callable[[str], StepTrace],
) -> None:
    trace = of("normed")
    at = next(n for n, op in enumerate(trace.ops) if op.name == "aten.native_layer_norm_backward.default")
    assert trace.ops[at].inputs[0].strides == (2048, 1, 32)
    assert trace.ops[at].outputs[0].strides == (2048, 64, 1)
    assert trace.ops[at + 1].name == "aten.clone.default"


def test_code_written_for_cuda_traces_as_code_for_the_default_device(of: Callable[[str], StepTrace]) -> None:
    for precision in ("", " bf16"):
        here, there = of(f"mlp{precision}"), of(f"mlp cuda{precision}")
        assert names(here, "backward") == names(there, "backward")
        assert sums(here, step=1) == sums(there, step=1)


def test_autocast_casts_weights_once_and_drops_the_casts_when_it_ends(of: Callable[[str], StepTrace]) -> None:
    trace = of("mlp bf16")
    matmul = [op for op in trace.ops if op.name == "aten.addmm.default"]
    assert {spec.dtype for op in matmul for spec in op.inputs} == {"bfloat16"}
    bias = matmul[0].inputs[0].storage
    assert trace.storages[bias].size_bytes == 512 * 2
    freed = list(trace.events).index((StepEvent.FREE, bias, 0))
    first_backward = next(
        at
        for at, (kind, number, _) in enumerate(trace.events)
        if kind == StepEvent.BEGIN and trace.ops[number].phase == "backward"
    )
    assert freed < first_backward  # the cast of a weight is needed for the backward, that of a bias is not
    assert trace.storages[bias].category == "temporary"
    assert trace.storages[matmul[1].inputs[2].storage].category == "activation"


def test_losses_are_computed_in_float32_under_autocast(of: Callable[[str], StepTrace]) -> None:
    assert one(of("transformer bf16"), "aten.nll_loss_forward.default").inputs[0].dtype == "float32"
    assert one(of("transformer bf16"), "aten.native_layer_norm.default").inputs[0].dtype == "float32"
    assert one(of("transformer bf16"), "aten.gelu.default").inputs[0].dtype == "bfloat16"


def test_dropout_keeps_one_byte_for_each_element(of: Callable[[str], StepTrace]) -> None:
    out, mask = one(of("transformer"), "aten.native_dropout.default").outputs
    assert mask.dtype == "bool"
    assert mask.elements == out.elements == ROWS * 16 * 64


def test_a_gradient_scaler_and_its_buffers_are_seen(of: Callable[[str], StepTrace]) -> None:
    trace = of("mlp fp16")
    assert names(trace)["aten._amp_foreach_non_finite_check_and_unscale_.default"] == 2
    assert names(trace)["aten._foreach_sqrt.default"] == 2
    assert sums(trace)["optimizer"] == 2 * 4 * trace.parameters + 4 + 4
    assert not trace.notes


def test_the_form_of_an_optimizer_decides_its_temporary_memory(of: Callable[[str], StepTrace]) -> None:
    def most(name: str) -> int:
        trace, peak, start = of(name), 0, None
        phase = ""
        for kind, number, now, _ in live(trace):
            phase = trace.ops[number].phase if kind == StepEvent.BEGIN else phase
            if phase == "optimizer" and names(trace)["aten.mm.default"]:
                start = now if start is None else start
                peak = max(peak, now)
            else:
                start = None
        return peak

    parameters = of("mlp").parameters * 4
    state = of("mlp fused")
    assert names(state)["aten._fused_adamw_.default"] == 2
    assert most("mlp") - most("mlp fused") >= parameters - 4 * 4  # each fused parameter counts its steps on the device
    assert 0 < most("mlp loop") - most("mlp fused") <= 3 * 512 * 256 * 4


def test_gradients_of_several_batches_are_added_in_place(of: Callable[[str], StepTrace]) -> None:
    one_batch, three = of("mlp"), of("mlp three")
    assert sums(three, step=1)["gradient"] == sums(one_batch, step=1)["gradient"] == 4 * three.parameters
    added = [op for op in three.ops if op.name == "aten.add_.Tensor" and op.phase == "backward"]
    assert len(added) == 2 * 2 * 4  # steps, further batches, parameters


def test_the_engine_adds_gradients_of_a_residual_in_place(of: Callable[[str], StepTrace]) -> None:
    joins = [op for op in of("transformer").ops if op.phase == "backward" and op.name.startswith("aten.add")]
    # The first gradient of a step is a view of the output layer's, and others may hold what it is a view of.
    assert [op.name for op in joins] == 2 * ["aten.add.Tensor", *3 * ["aten.add_.Tensor"]]


def test_gradients_that_are_differentiated_again_are_not_added_in_place(of: Callable[[str], StepTrace]) -> None:
    trace = of("differentiated")
    again = [op.name for op in trace.ops if op.phase == "forward" and op.name.startswith("aten.add")]
    assert "aten.add_.Tensor" not in again
    assert again.count("aten.add.Tensor") == 2 * 2  # steps; the sum of the model, and that of its two gradients


def test_attention_takes_the_kernel_that_hopper_takes(of: Callable[[str], StepTrace]) -> None:
    def used(name: str) -> set[str]:
        return {op.name.split(".")[1] for op in of(name).ops if "attention" in op.name and op.phase == "forward"}

    assert used("transformer") == {"_scaled_dot_product_efficient_attention"}
    assert used("transformer bf16") == {"_scaled_dot_product_cudnn_attention"}
    assert used("transformer bias") == {"_scaled_dot_product_efficient_attention"}  # a bias that learns
    assert used("transformer turned") == set()  # its last dimension is not the fastest: plain products
    assert "_scaled_dot_product_efficient_attention" not in used("heads in groups"), "it knows no groups of heads"
    assert not used("one head of keys"), "no kernel spreads one head over several unless it is asked to"
    log_sum = one(of("transformer bf16"), "aten._scaled_dot_product_cudnn_attention.default").outputs[1]
    assert (log_sum.elements, log_sum.dtype) == (ROWS * 4 * 16, "float32")


def test_a_replica_holds_buckets_unless_gradients_are_views_of_them(of: Callable[[str], StepTrace]) -> None:
    def built(name: str) -> int:
        trace = of(name)
        first = next(at for at, event in enumerate(trace.events) if event[0] == StepEvent.STEP)
        return sum(
            trace.storages[number].size_bytes for kind, number, _ in trace.events[:first] if kind == StepEvent.ALLOC
        )

    parameters = 4 * of("replicated").parameters
    assert built("replicated") - built("replicated views") == parameters


def test_a_mask_is_padded_to_multiples_of_eight_columns(of: Callable[[str], StepTrace]) -> None:
    assert names(of("masked"), "forward")["aten.copy_.default"] == 0
    assert names(of("masked odd"), "forward")["aten.copy_.default"] > 0


def test_a_count_finds_that_a_mask_hides_nothing(of: Callable[[str], StepTrace]) -> None:
    assert names(of("masked"), "forward")["aten.eq.Scalar"] > 0
    assert names(of("masked"), "forward")["aten.tanh.default"] == 0


def test_checkpointing_keeps_less_and_computes_again(of: Callable[[str], StepTrace]) -> None:
    plain, again = of("transformer"), of("transformer again")
    forward = names(plain, "forward")["aten.native_layer_norm.default"]
    assert names(again, "forward")["aten.native_layer_norm.default"] == forward
    assert names(again, "backward")["aten.native_layer_norm.default"] == forward
    assert names(plain, "backward")["aten.native_layer_norm.default"] == 0
    peaks = [max(now for _, _, now, _ in live(trace)) for trace in (plain, again)]
    assert sums(again, step=1)["activation"] > sums(plain, step=1)["activation"]  # some are made twice
    assert peaks[1] < 0.9 * peaks[0]
    recomputed = [s for s in made_by(again, "aten.gelu.default") if again.ops[s.op].phase == "backward"]
    assert {storage.category for storage in recomputed} == {"activation"}
    assert {storage.module for storage in recomputed} == {"1.mix.1", "2.mix.1"}


def test_a_recurrent_layer_is_one_operator_with_one_buffer_of_weights(of: Callable[[str], StepTrace]) -> None:
    trace = of("lstm")
    assert names(trace, "forward")["aten._cudnn_rnn.default"] == 2
    assert names(trace, "backward")["aten._cudnn_rnn_backward.default"] == 2
    weights = 4 * 32 * (24 + 32 + 2) + 4 * 32 * (32 + 32 + 2)
    flat = [
        storage for storage in trace.storages if storage.category == "parameter" and storage.size_bytes == 4 * weights
    ]
    assert len(flat) == 1
    output, _, _, reserve, buffer = one(trace, "aten._cudnn_rnn.default").outputs
    assert output.shape == (ROWS, 20, 32)
    assert trace.storages[buffer.storage] is flat[0]
    assert trace.storages[reserve.storage].size_bytes == (5 * 2 + 1) * 20 * ROWS * 32 * 4 + 256
    assert sums(trace, step=1)["gradient"] == 4 * (weights + 32 + 1)


def test_dropout_between_recurrent_layers_costs_a_mask_and_a_state(of: Callable[[str], StepTrace]) -> None:
    plain, dropped = of("lstm"), of("lstm dropout")
    rows = 20 * ROWS * 32
    found = [one(trace, "aten._cudnn_rnn.default").outputs[3].elements for trace in (plain, dropped)]
    assert found[1] - found[0] == rows // 8
    assert sums(dropped)["buffer"] == 6_488_064
    assert one(of("gru"), "aten._cudnn_rnn.default").outputs[2].elements == 0


def test_the_step_of_a_recurrent_cell_is_one_kernel_that_keeps_what_its_backward_reads(
    of: Callable[[str], StepTrace],
) -> None:
    gru, lstm = of("gru cell"), of("lstm cell")
    state, kept = one(gru, "aten._thnn_fused_gru_cell.default").outputs
    assert (state.shape, kept.shape) == ((ROWS, 32), (ROWS, 5 * 32))
    back = one(gru, "aten._thnn_fused_gru_cell_backward.default").outputs
    assert [each.shape for each in back] == [(ROWS, 96), (ROWS, 96), (ROWS, 32), (96,), (96,)]
    assert sums(gru, step=1)["gradient"] == 4 * 96 * (24 + 32 + 2)
    assert names(lstm, "forward")["aten._thnn_fused_lstm_cell.default"] == 2 * 5
    assert [each.shape for each in one(lstm, "aten._thnn_fused_lstm_cell.default").outputs] == [
        *((ROWS, 32), (ROWS, 32)),
        (ROWS, 4 * 32),
    ]
    back = one(lstm, "aten._thnn_fused_lstm_cell_backward_impl.default").outputs
    assert [each.shape for each in back] == [(ROWS, 128), (ROWS, 32)]
    assert sums(lstm, step=1)["gradient"] == 4 * 128 * (24 + 32)


def test_autocast_runs_a_recurrent_layer_in_float16(of: Callable[[str], StepTrace]) -> None:
    call = one(of("lstm bf16"), "aten._cudnn_rnn.default")
    assert {spec.dtype for spec in call.inputs} == {"float16"}
    assert of("lstm bf16").storages[call.outputs[3].storage].size_bytes == (5 * 2 + 1) * 20 * ROWS * 32 * 2 + 256


def test_a_graph_network_keeps_edges_and_sends_closed_over_tensors_along(of: Callable[[str], StepTrace]) -> None:
    trace = of("graph")
    assert [note for note in trace.notes if "they count as inputs" in note]
    assert names(trace, "backward")["aten.silu_backward.default"] == 2
    assert names(trace, "forward")["aten.index_add_.default"] == 2
    assert sums(trace)["input"] == 50 * 32 * 4 + 2 * 400 * 8
    kept = 4 * (400 * 64 + 400 * 32) + 4 * 50 * 32  # what is linear, what silu saw, and the sign
    assert sums(trace, step=1)["activation"] >= kept


def test_a_mean_squared_error_keeps_the_room_of_all_its_elements(of: Callable[[str], StepTrace]) -> None:
    trace = of("cosmoflow")
    assert {storage.size_bytes for storage in made_by(trace, "aten.mse_loss.default")} == {4 * 4 * 4}


def test_inference_keeps_no_gradients_and_runs_no_optimizer(of: Callable[[str], StepTrace]) -> None:
    for name in ("inference", "mlp inference", "output only"):
        trace = of(name)
        assert not trace.training
        assert {op.phase for op in trace.ops} <= {"build", "forward"}
        assert sums(trace)["gradient"] == sums(trace)["activation"] == 0


def test_a_model_larger_than_this_machine_is_traced(of: Callable[[str], StepTrace]) -> None:
    trace = of("huge")
    assert trace.parameters == 10 * 32768**2
    assert max(now for _, _, now, _ in live(trace)) > 3 * 4 * trace.parameters


def test_what_cannot_be_followed_exactly_is_noted(of: Callable[[str], StepTrace]) -> None:
    assert ["eager" in note for note in of("compiled").notes] == [True]
    assert ["zero was assumed" in note for note in of("spoken of").notes] == [True]
    assert of("mlp").notes == []


def test_tied_and_frozen_weights_count_once_and_without_gradients(of: Callable[[str], StepTrace]) -> None:
    trace = of("tied")
    assert trace.parameters == 8 * 8 + 2 * 8
    assert sums(trace, step=-1)["parameter"] == 4 * (8 * 8 + 2 * 8)
    assert sums(trace, step=1)["gradient"] == 4 * (8 * 8 + 8)


def test_one_replica_is_the_model_and_what_it_prints_is_its_own(of: Callable[[str], StepTrace]) -> None:
    for name in ("replicas", "talkative", "annotated"):
        assert names(of(name), "forward")["aten.addmm.default"] == 2
        assert of(name).notes == []
    assert sums(of("annotated"), step=-1)["buffer"] == 4 << 16


def test_a_loader_draws_its_order_on_the_host_and_weights_are_loaded(of: Callable[[str], StepTrace]) -> None:
    trace = of("loaded")
    assert (batch_of(trace), trace.notes) == (ROWS, [])
    assert sums(trace, step=1)["input"] == ROWS * 8 * 4  # labels are moved after the forward, as part of it


def test_samples_of_the_file_are_taken_along(of: Callable[[str], StepTrace]) -> None:
    trace = of("from outside")
    assert [note for note in trace.notes if "they count as inputs" in note]
    assert (batch_of(trace), sums(trace)["input"]) == (ROWS, ROWS * 8 * 4)


def test_tensors_that_modules_hold_in_lists_are_taken_along(of: Callable[[str], StepTrace]) -> None:
    trace = of("boxes")
    assert [note for note in trace.notes if "they count as inputs" in note] and not trace.stopped
    assert sums(trace)["input"] == trace.steps * ROWS * 8 * 4 + (4 + 6) * 2 * 4


def test_what_a_program_draws_is_the_same_in_every_trace(of: Callable[[str], StepTrace]) -> None:
    first, second = of("drawn"), of("drawn again")
    assert first.storages == second.storages
    assert len({storage.size_bytes for storage in first.storages if storage.category == "input"}) > 1


@pytest.mark.thorough
def test_a_process_that_ends_without_a_word_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match=r"targets\.py failed with exit code 0: no message"):
        trace_target(TraceRequest(str(TARGETS), "vanishes"), folder=tmp_path)


def test_torch_that_is_missing_is_told_with_what_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in an environment without it.
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Unsupported, match="needs torch") as told:
        trace_target(TraceRequest(str(TARGETS), "cnn"), folder=tmp_path)
    assert told.value.hint == "pip install 'fairmile[predict]'"


def test_what_never_ends_is_ended(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(SystemFailure, match=r"did not finish within 0\.5 s"):
        trace_target(TraceRequest(str(tmp_path / "step.py")), timeout_s=0.5, folder=tmp_path)


def test_arguments_that_cannot_be_handed_on_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot pass the arguments of .*targets\.py:cnn: .*Path"):
        trace_target(TraceRequest(str(TARGETS), "cnn", {"precision": tmp_path}), folder=tmp_path)


@pytest.mark.thorough
def test_files_of_the_folder_replace_no_modules_but_packages_there_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "a place with ü"
    for folder in (here, there):
        folder.mkdir()
    (here / "torch.py").write_text("raise SystemExit('not asked for')\n")
    (here / "project.py").write_text("WIDTH = 8\n")
    (there / "beside.py").write_text("ROWS = 4\n")
    (there / "step.py").write_text(
        "import torch\nfrom beside import ROWS\nfrom project import WIDTH\ndef build():\n"
        "    loss = lambda model: model(torch.randn(ROWS, WIDTH)).mean()\n"
        "    return {'model': torch.nn.Linear(WIDTH, 8), 'loss': loss, 'optimizer': None}\n"
    )
    monkeypatch.chdir(here)
    assert batch_of(trace_target(TraceRequest(str(there / "step.py")), folder=tmp_path)) == 4


def test_a_backward_that_fails_leaves_the_forward_gradients_and_the_update(of: Callable[[str], StepTrace]) -> None:
    trace = of("one way")
    assert trace.steps == 2
    assert names(trace, "forward")["aten.addmm.default"] == 2
    assert sums(trace, step=1)["gradient"] == sums(trace, step=-1)["parameter"] == 4 * (8 * 8 + 8)
    assert names(trace, "optimizer")
    assert "the trace lacks the backward pass" in trace.notes[0]
    assert "there is no way back" in trace.notes[0]
    assert "there is no way back" in trace.stopped


def test_an_update_that_fails_leaves_the_rest(of: Callable[[str], StepTrace]) -> None:
    trace = of("no update")
    assert names(trace, "backward")
    assert "the trace lacks the optimizer step" in trace.notes[0]
    assert "depends on data" in trace.stopped


def test_a_step_that_depends_on_data_is_followed_to_that_point_where_this_is_asked_for(
    of: Callable[[str], StepTrace],
) -> None:
    trace = of("followed in part")
    assert "depends on data" in trace.stopped and "aten._unique2" in trace.stopped
    parameters = 4 * (8 * 100 + 100 + 100 + 1)
    assert sums(trace, step=-1)["parameter"] == sums(trace, step=1)["gradient"] == parameters
    assert sums(trace)["optimizer"] == 2 * parameters
    assert sums(trace, step=1)["activation"] >= 4 * (1 << 27) * 100
    assert trace.steps == 2
    assert of("cnn").stopped == ""


def shapes(trace: StepTrace, name: str, phase: str = "forward") -> list[tuple[int, ...]]:
    return [tuple(op.inputs[0].shape) for op in trace.ops if op.name == name and op.phase == phase]


def test_a_mask_of_the_inputs_selects_as_many_elements_as_it_does(of: Callable[[str], StepTrace]) -> None:
    trace = of("hidden")
    assert set(shapes(trace, "aten._log_softmax.default")) == {(9, 50)}
    assert (trace.assumed, trace.stopped, trace.notes) == (False, "", [])


def test_lengths_distinct_values_and_counts_of_the_inputs_are_followed(of: Callable[[str], StepTrace]) -> None:
    sums = [op for op in of("speech").ops if op.name == "aten._ctc_loss.default"]
    assert {op.outputs[1].shape for op in sums} == {(4, 30, 2 * 7 + 1)}
    repeated = [op for op in of("distinct").ops if op.name == "aten.index_select.default" and op.phase == "forward"]
    assert {op.outputs[0].shape for op in repeated} == {(60, 8)}
    layers = [op for op in of("packed").ops if op.name == "aten._cudnn_rnn.default"]
    assert {op.inputs[0].shape for op in layers} == {(5 + 4 + 2, 8)}
    for name in ("speech", "distinct", "packed"):
        assert (of(name).assumed, of(name).stopped) == (False, "")


def test_values_that_are_changed_in_place_or_through_a_view_are_followed(of: Callable[[str], StepTrace]) -> None:
    assert set(shapes(of("changed in place"), "aten.addmm.default")) == {(8,)}
    indexed = [op for op in of("changed in place").ops if op.name == "aten.index.Tensor" and op.phase == "forward"]
    assert {op.outputs[0].shape for op in indexed} == {(2, 8)}


def test_where_weights_decide_random_values_are_assumed_and_that_is_noted(of: Callable[[str], StepTrace]) -> None:
    trace = of("experts")
    assert trace.assumed and trace.stopped == ""
    assert "aten.nonzero.default in" in trace.notes[0] and "random values were assumed" in trace.notes[0]
    routed = [
        op.inputs[1].shape[0] for op in trace.ops if op.name == "aten.addmm.default" and op.inputs[1].shape[1] == 8
    ]
    first = [rows for rows in routed if rows != 400][:4]
    assert sum(first) == 800 and min(first) > 100  # balanced, more or less


def routed(trace: StepTrace) -> list[int]:
    """Return how many rows each layer got in the first step, the router first."""
    calls = [op for op in trace.ops if op.name == "aten.addmm.default" and op.phase == "forward"]
    return [op.inputs[1].shape[0] for op in calls][: len(calls) // trace.steps]


def test_a_branch_that_weights_decide_goes_as_random_values_say(of: Callable[[str], StepTrace]) -> None:
    trace = of("experts by masks")
    first, *rest = routed(trace)
    assert first == 400 and len(rest) == 4 and all(100 < rows < 300 for rows in rest)
    assert trace.assumed and "aten._local_scalar_dense" in trace.notes[0]
    assert routed(of("all experts")) == [400, 400, 400, 400, 400]


def test_balanced_routing_gives_every_expert_as_many_rows(of: Callable[[str], StepTrace]) -> None:
    trace = of("balanced experts")
    assert routed(trace) == [400, 200, 200, 200, 200]
    assert "balanced routing was assumed" in trace.notes[0]


def test_of_a_mask_too_large_to_compute_a_half_is_selected_or_what_is_declared(of: Callable[[str], StepTrace]) -> None:
    for name, share in (("choosy of many", 0.5), ("choosy of all", 1.0)):
        trace = of(name)
        kept = {op.outputs[0].shape[0] for op in trace.ops if op.name == "aten.nonzero.default"}
        assert (kept, trace.assumed, trace.stopped) == ({round(share * (1 << 27))}, True, "")


def test_masks_of_weights_select_as_large_a_share_as_is_asked_for(of: Callable[[str], StepTrace]) -> None:
    def selected(name: str) -> set[int]:
        calls = [op for op in of(name).ops if op.name == "aten.index.Tensor" and op.phase == "forward"]
        return {op.outputs[0].shape[0] for op in calls}

    assert (selected("choosy none"), selected("choosy all")) == ({0}, {500})
    assert 200 < min(selected("choosy")) <= max(selected("choosy")) < 300
    assert "masks that select 100% were assumed" in of("choosy all").notes[0]


def test_a_number_that_is_read_from_the_inputs_is_the_number_that_they_have(of: Callable[[str], StepTrace]) -> None:
    assert of("number of data").stopped == "" and not of("number of data").assumed
    assert of("shape of data").assumed


def test_what_is_told_of_a_wrong_argument_is_handed_on_as_it_is(refused: Callable[[str], UsageError]) -> None:
    said = refused("misused")
    assert (said.message, said.hint) == ("benchmark 'targets' has no parameter 'width'", "it has depth")


def test_what_torch_says_of_arguments_ends_before_all_its_signatures(refused: Callable[[str], UsageError]) -> None:
    message = refused("misshaped").message
    assert "got (str, int" in message and len(message) < 250
    assert "expected one of" not in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("not followed", ("targets.py:", "aten._unique2", "depends on data")),
        ("no scalar", ("`loss`", "(2, 8)")),
        ("no tensor", ("`loss`", "float")),
        ("no gradient", ("`loss`", "does not depend on any parameter")),
        ("no model", ("`model`",)),
        ("no precision", ("`precision`", "fp8")),
        ("wrong shapes", ("targets.py:", "RuntimeError", "8")),
        ("breaks", ("a_package_that_is_not_there",)),
        ("never there", ("a host tensor of shape (8, 8)",)),
        ("no samples", ("(0, 8)", "the batch is empty")),
        ("no sizes", ("cannot move the model to the device", "uninitialized")),
        ("many optimizers", ("`optimizer`", "list")),
        ("unready", ("targets.py:", "not there yet")),
        ("leaves", ("targets.py:", "SystemExit: enough")),
        ("in C", ("no `model`",)),
        ("no function", ("nobody",)),
        ("no argument", ("width",)),
        ("no checkpoints", ("gradient_checkpointing_enable",)),
        ("no file", ("nowhere.py",)),
    ],
)
def test_what_cannot_be_traced_is_said_in_a_sentence(
    refused: Callable[[str], UsageError], name: str, words: tuple[str, ...]
) -> None:
    error = refused(name)
    assert all(word in str(error) for word in words), error
    assert error.hint
    assert "\n" not in str(error)


@for_each(
    "given, word",
    [
        ({"steps": 0}, "steps"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"precision": "fp4"}, "fp4"),
        ({"optimizer_form": "slow"}, "slow"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_at_once(given: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        TraceRequest(file="any.py", **given)


@pytest.mark.thorough
def test_one_request_raises_what_was_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.py"):
        trace_target(TraceRequest(file="nowhere.py"), folder=tmp_path)


@pytest.mark.skipif(not STREAM.exists(), reason=f"there is no recorded stream {STREAM}")
def test_the_recorded_stream_of_a_real_gpu_holds_every_traced_allocation_in_order(
    of: Callable[[str], StepTrace],
) -> None:
    trace = of("cosmoflow")
    recorded = [(action, size) for action, _, size in json.loads(STREAM.read_bytes()) if action == "alloc"]
    sizes = iter(size for _, size in recorded)
    steps = False
    for kind, number, _ in trace.events:
        steps = steps or kind == StepEvent.STEP
        if kind == StepEvent.ALLOC and steps:
            assert trace.storages[number].size_bytes in sizes, trace.storages[number]
