"""Names of files and words for formats lead to media types."""

from __future__ import annotations

import pytest

from fairmile.catalog.card import format_name
from fairmile.catalog.exchange.common.media_types import extension, is_code, is_pickle, media_type


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("onnx", "application/x-onnx"),
        ("ONNX", "application/x-onnx"),
        (".h5", "application/x-hdf5"),
        ("pb", "application/x-protobuf"),
        ("pth", "application/x-pytorch"),
        ("pkl", "application/x-pickle"),
        ("weights/best.safetensors", "application/x-safetensors"),
        ("https://x.example.net/a.nc?download=1", "application/x-netcdf"),
        ("data.csv", "text/csv"),
        ("page.html", "text/html"),
        ("my own format", None),
    ],
)
def test_a_media_type_is_found_by_word_name_or_address(text: str, expected: str | None) -> None:
    assert media_type(text) == expected


@pytest.mark.parametrize(
    ("text", "short"), [("onnx", "onnx"), ("h5", "hdf5"), ("pth", "pytorch"), ("pkl", "pickle"), ("nc", "netcdf")]
)
def test_the_short_name_of_a_format_is_what_people_search_for(text: str, short: str) -> None:
    assert format_name(media_type(text) or "") == short


def test_extensions_ignore_queries_and_folders() -> None:
    assert [extension(each) for each in ("a.b/c", "https://x.example.net/c.PY?x=a.b#c.d", "name", "c.tar.gz")] == [
        "",
        "py",
        "",
        "gz",
    ]


def test_code_and_pickles_are_told_by_their_names() -> None:
    assert is_code("scripts/clean.py") and is_code("Study.ipynb") and not is_code("data.csv")
    assert is_pickle("scaler.pkl") and is_pickle("train.pk") and is_pickle("cloudpickle") and not is_pickle("a.npy")
