"""A program that is sure to read no arguments is not given parameters by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.runs.ignored import ignores_arguments, refused_options


@pytest.mark.parametrize(
    "text",
    [
        "print('loss 3')\n",
        "import math, os\nfrom numpy import linalg\nimport torch.nn as nn\nprint('loss', math.pi)\n",
        "import beside\nprint(beside.LOSS)\n",
    ],
)
def test_plain_python_reads_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "beside.py").write_text("LOSS = 3\n")
    (tmp_path / "train.py").write_text(text)
    assert ignores_arguments(tmp_path / "train.py")


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nprint(sys.argv)\n",
        "from argparse import ArgumentParser\n",
        "import numpy as np, click\n",
        "import somebody.elses.package\n",
        "import beside\n",
        "from package import main\n",
        "exec(open('other').read())\n",
        "import os\nos.environ['FAIRMILE_PARAMS']\n",
        "print('not Python'\n",
    ],
)
def test_what_may_read_arguments_is_not_judged(tmp_path: Path, text: str) -> None:
    (tmp_path / "beside.py").write_text("import hydra\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from .inner import main\n")
    (tmp_path / "package" / "inner.py").write_text("import sys\ndef main(): print(sys.argv)\n")
    (tmp_path / "train.py").write_text(text)
    assert not ignores_arguments(tmp_path / "train.py")


@pytest.mark.parametrize(
    ("text", "ignores"),
    [
        ("echo loss 3", True),
        ("echo $HOME ${USER}", True),
        ("echo $1", False),
        ('exec python train.py "$@"', False),
        ("while getopts n: o; do :; done", False),
        (". ./lib", False),
    ],
)
def test_shell_scripts_are_judged_by_their_positional_parameters(tmp_path: Path, text: str, ignores: bool) -> None:
    (tmp_path / "train.sh").write_text(f"#!/bin/sh\n{text}\n")
    assert ignores_arguments(tmp_path / "train.sh") == ignores


_PARSER = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--rate', '-r')\n"
_FLAG = "parser.add_argument('--fast', action=argparse.BooleanOptionalAction)\n"


@pytest.mark.parametrize(
    ("option", "is_refused"),
    [("--rte", True), ("--rate", False), ("--ra", False), ("--no-fast", False), ("--help", False), ("-x", False)],
)
def test_a_parser_that_its_file_alone_fills_refuses_what_the_file_does_not_declare(
    tmp_path: Path, option: str, is_refused: bool
) -> None:
    (tmp_path / "train.py").write_text(f"{_PARSER}{_FLAG}print(parser.parse_args())\n")
    assert refused_options(tmp_path / "train.py", [option]) == [option] * is_refused


@pytest.mark.parametrize(
    "end",
    [
        "parser.parse_known_args()\n",
        "import beside\nbeside.add_options(parser)\nparser.parse_args()\n",
        "for name in ('a', 'b'):\n    parser.add_argument(f'--{name}')\nparser.parse_args()\n",
        "import sys\nparser.parse_args(sys.argv[2:])\n",
        "parser.parse_args([])\n",
        "def options():\n    return parser\n\noptions().parse_args()\n",
    ],
)
def test_a_parser_that_may_take_more_is_not_judged(tmp_path: Path, end: str) -> None:
    (tmp_path / "train.py").write_text(_PARSER + end)
    assert refused_options(tmp_path / "train.py", ["--rte"]) == []
