"""Figures of benchmarks are readable on light and dark pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fairmile.benchmarks.harness.figures import save_figure

pytest.importorskip("matplotlib")


def test_a_figure_has_other_colours_on_a_dark_page_for_paper_and_ink(tmp_path: Path) -> None:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        axis.plot([1, 2], color="#d1495b", label="predicted")
        axis.legend()

    text = (tmp_path / save_figure(tmp_path / "one.svg", draw)).read_text()
    ElementTree.fromstring(text)  # it is still well-formed
    (style,) = re.findall(r"@media \(prefers-color-scheme: dark\) {(.*?)}</style>", text)
    drawn = set(re.findall(r'(?:fill|stroke): #\w{6}(?=[;"])', text.replace(style, "")))
    changed = set(re.findall(r'\[style\*="([^"]+)"\]', style))
    assert drawn - changed == {"stroke: #d1495b"}
    assert {"fill: #ffffff", "stroke: #000000"} <= drawn
    assert style.startswith("svg {fill: ")  # letters have no colour of their own
