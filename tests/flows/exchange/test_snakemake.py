"""The Snakefile of a flow: rules with complete commands in the same order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.base.errors import UsageError
from fairmile.flows.flows import Flows

SNAKEMAKE = Path(sys.executable).with_name("snakemake")
Write = Callable[[str], Path]
FLOW = """\
steps:
  make: {shell: 'echo "{n} {{}}" > {n}.txt', over: {n: 1..2}, outputs: '{n}.txt'}
  it's all: {shell: 'cat *.txt > all.out', inputs: '*.txt', outputs: all.out}
  tell: {command: [echo, "a b", "it's"], after: it's all}
"""


def test_each_step_is_a_rule_with_its_files_and_its_command(flows: Flows, write: Write) -> None:
    file = write(FLOW)
    flows.run(file)
    text = flows.export(file, to="snakemake").text
    assert re.findall(r"^rule (\w+):", text, re.MULTILINE) == ["all", "make_1", "make_2", "it_s_all", "tell"]
    tell = text.partition("rule tell:")[2]
    assert "'all.out'," in tell and "touch('.flow/tell')" in tell and r"echo \'a b\'" in tell


def test_what_is_unknown_cannot_be_exported(flows: Flows, write: Write) -> None:
    file = write(
        "steps:\n  a: {command: touch a.txt, outputs: '*.txt'}\n"
        "  b: {command: 'cat {f}', over: {f: {glob: '*.txt'}}, inputs: '{f}'}\n"
    )
    with pytest.raises(UsageError, match="how often 'b' is repeated is unknown until 'a' has run"):
        flows.export(file, to="snakemake")


@pytest.mark.skipif(not SNAKEMAKE.exists(), reason="needs pip install snakemake")
def test_snakemake_sees_the_same_graph_and_runs_it(flows: Flows, write: Write, tmp_path: Path) -> None:
    file = write(FLOW)
    flows.run(file)
    Path("Snakefile").write_text(flows.export(file, to="snakemake").text)
    for name in ("1.txt", "2.txt", "all.out"):
        os.remove(name)
    environ = {**os.environ, "HOME": str(tmp_path)}
    drawn = subprocess.run([SNAKEMAKE, "--dag"], env=environ, capture_output=True, text=True, check=True).stdout
    labels = dict(re.findall(r'(\d+)\[label = "(\w+)', drawn))
    edges = {(labels[one], labels[other]) for one, other in re.findall(r"(\d+) -> (\d+)", drawn)}
    assert {(one, other) for one, other in edges if other != "all"} == {
        *(("make_1", "it_s_all"), ("make_2", "it_s_all"), ("it_s_all", "tell"))
    }
    subprocess.run([SNAKEMAKE, "-q", "all", "-j", "1"], env=environ, check=True)
    assert Path("all.out").read_text() == "1 {{}}\n2 {{}}\n"
