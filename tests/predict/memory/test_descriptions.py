"""Descriptions: what is wrong with one is named, with its line and what mends it."""

from __future__ import annotations

from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import InvalidDocument
from fairmile.base.yaml import load_located
from fairmile.predict.memory.descriptions import Rnn, Transformer, parse_description

GPT2: dict[str, Any] = {
    **{"kind": "transformer", "layers": 12, "hidden": 768, "heads": 12, "vocab": 50257},
    **{"positions": 1024, "seq": 1024, "batch": 4},
}
RESNET: dict[str, Any] = {
    **{"kind": "cnn", "side": [224, 224], "form": "resnet", "depths": [3, 4, 6, 3], "dense": [1000], "batch": 2},
}


@for_each(
    "said, words",
    [
        ({**GPT2, "hiden": 3}, "hiden: Extra inputs"),
        ({**GPT2, "heads": 7}, r"hidden \(768\) is not a multiple of heads \(7\)"),
        ({**GPT2, "kv_heads": 5}, "not a multiple of kv_heads"),
        ({**GPT2, "optimizer": "adan"}, "no optimizer named 'adan'"),
        ({**GPT2, "batch": 0}, "batch: Input should be greater"),
        ({"kind": "tree"}, "tree"),
        ({**RESNET, "side": [224]}, "side has 1 lengths, expected 2"),
        ({**RESNET, "depths": []}, "a resnet needs depths"),
        ({"kind": "cnn", "side": [8, 8], "batch": 1}, "a chain needs stages"),
    ],
)
def test_a_wrong_description_is_named_in_a_sentence(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidDocument, match=words) as caught:
        parse_description(said)
    assert caught.value.hint


def test_a_wrong_field_of_a_file_is_named_with_its_line() -> None:
    text = "kind: rnn\nbatch: 1\nlayers: 2\nhidden: 8\nseq: 3\ninputs: "
    located = load_located(f"{text}none\n", file="model.yaml")
    with pytest.raises(InvalidDocument, match=r"model\.yaml:6 inputs: "):
        parse_description(located.data, file="model.yaml", line_of=located.line)
    right = load_located(f"{text}4\n", file="model.yaml").data
    assert parse_description(right) == Rnn(batch=1, layers=2, hidden=8, seq=3, inputs=4)


@for_each(
    "said, hint",
    [
        ({"kind": "tree"}, "set kind to one of transformer, cnn, rnn, gnn"),
        ({**GPT2, "hiden": 3}, "did you mean hidden?"),
        ({**GPT2, "colour": 3}, "fields of a transformer: batch, "),
        ({**GPT2, "batch": -4}, "change it in the file, or with -a batch=VALUE"),
        ({each: GPT2[each] for each in GPT2 if each != "hidden"}, "set it in the file, or with -a hidden=VALUE"),
    ],
)
def test_the_hint_fits_what_is_wrong(said: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        parse_description(said, file="gpt.yaml")
    assert (caught.value.hint or "").startswith(hint)


def test_the_hint_for_a_description_that_is_no_file_names_no_option() -> None:
    with pytest.raises(InvalidDocument) as caught:
        parse_description({**GPT2, "batch": -4})
    assert caught.value.hint == "change it in the description"


@for_each("precision, size", [("fp32", 4), ("tf32", 4), ("bf16", 2), ("fp16", 2), ("pure_bf16", 2)])
def test_a_precision_says_how_large_an_activation_is(precision: str, size: int) -> None:
    said = parse_description({**GPT2, "precision": precision})
    assert isinstance(said, Transformer)
    assert said.compute_bytes == size
