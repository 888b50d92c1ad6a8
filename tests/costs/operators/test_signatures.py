"""The text that names a call: it holds all that its time depends on and nothing else, and reads back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cases import for_each

from fairmile.base.errors import Integrity, NotFound
from fairmile.costs.operators.signatures import (
    Candidate,
    candidates_of,
    merged,
    read_candidates,
    read_signature,
    read_tensors,
    signature,
    tensor,
    write_candidates,
    write_tensors,
)
from fairmile.costs.steps import Op, StepEvent, StepTrace

ADD = Op(
    "aten.add.Tensor",
    "forward",
    "layer1",
    (tensor((8, 4)), tensor((8, 4), "bfloat16", (1, 8))),
    (tensor((8, 4)),),
    ({"tensor": 0}, {"tensor": 1}),
    (("alpha", 2),),
)


def test_a_signature_reads_back_as_the_call() -> None:
    back = read_signature(signature(ADD), write_tensors(ADD.outputs))
    assert back == replace(ADD, phase="", module="")


def test_phase_module_and_storage_are_not_part_of_it() -> None:
    moved = replace(ADD, phase="backward", module="x", inputs=tuple(replace(each, storage=7) for each in ADD.inputs))
    assert signature(moved) == signature(ADD)


def test_strides_types_and_arguments_are() -> None:
    texts = {
        signature(ADD),
        signature(replace(ADD, inputs=(tensor((8, 4)), tensor((8, 4), "bfloat16")))),
        signature(replace(ADD, inputs=(tensor((8, 4)), tensor((8, 4), "float16", (1, 8))))),
        signature(replace(ADD, keywords=(("alpha", 3),))),
        signature(replace(ADD, inputs=(replace(ADD.inputs[0], storage=-1), ADD.inputs[1]))),
    }
    assert len(texts) == 5


def test_where_a_tensor_is_made_says_nothing_of_how_long_it_takes() -> None:
    made = Op("aten.full.default", "forward", "", (), (tensor((3,)),), ([3], 1.0), (("device", {"device": "cuda:0"}),))
    assert signature(made) == signature(replace(made, keywords=()))


def test_lists_of_tensors_with_gaps_read_back() -> None:
    index = Op(
        "aten.index.Tensor",
        "",
        "",
        (tensor((5, 5)), tensor((3,), "int64")),
        (),
        ({"tensor": 0}, {"tensors": [None, 1]}),
    )
    assert read_signature(signature(index)) == index


def test_equal_neighbours_are_counted() -> None:
    tensors = (tensor((3,)),) * 200 + (tensor((4,)),)
    assert write_tensors(tensors) == "200*f32[3];f32[4]"
    assert read_tensors(write_tensors(tensors)) == tensors


@for_each("text", ["", "aten.add", "aten.add.Tensor|f32[2|[[]]", "aten.add.Tensor|f32[2]|{", "a|f32[2]|[]"])
def test_a_text_that_is_no_signature_says_so(text: str) -> None:
    with pytest.raises(Integrity, match="is not an operator signature"):
        read_signature(text)


def test_a_call_seen_in_two_models_is_kept_once_with_both_names() -> None:
    (one,) = merged([Candidate(ADD, ("unet",)), Candidate(ADD, ("grid",)), Candidate(ADD, ("unet",))])
    assert one.origins == ("unet", "grid")


@pytest.mark.parametrize("name", ["list.jsonl", "list.jsonl.gz"])
def test_a_list_of_calls_reads_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_candidates([Candidate(replace(ADD, phase="", module=""), ("a", "b"))], path)
    assert read_candidates(path) == [Candidate(replace(ADD, phase="", module=""), ("a", "b"))]


def test_a_damaged_list_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    write_candidates([Candidate(ADD, ("a",))], path)
    path.write_text(path.read_text() + "[1, 2]\n")
    with pytest.raises(Integrity, match=r"list.jsonl:2: not an operator"):
        read_candidates(path)
    with pytest.raises(NotFound):
        read_candidates(tmp_path / "nothing.jsonl")


def test_only_the_last_step_of_a_trace_counts() -> None:
    other = replace(ADD, name="aten.mul.Tensor")
    events = [
        (StepEvent.BEGIN, 0, 0),
        (StepEvent.END, 0, 0),
        (StepEvent.STEP, 0, 0),
        (StepEvent.BEGIN, 0, 0),
        (StepEvent.END, 0, 0),
    ]
    events += [
        (StepEvent.STEP, 1, 0),
        (StepEvent.BEGIN, 1, 0),
        (StepEvent.END, 1, 0),
        (StepEvent.BEGIN, 2, 0),
        (StepEvent.END, 2, 0),
    ]
    trace = StepTrace([ADD, other, other], [], events, 2, "fp32", True, 0)
    assert [each.op.name for each in candidates_of(trace, "m")] == ["aten.mul.Tensor"]
