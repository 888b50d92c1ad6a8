"""Measures flows beside Snakemake and doit in the same run, as CPU time of a command with its start.

Run: python speed/flows.py [--steps N] [--peers FOLDER]

    fan      1 → 18 → 1 steps of `sleep 0.1`, the median of five
    chains   two shell steps each, `echo` and `cp`, two at a time, and once more; per step beyond that second time
    plan     Fairmile's plan of 10,000 and 100,000 such steps that never ran, and of 10,000 that are up to date
    yaml     10,000 steps written out one by one, planned for the first and the second time

`--peers` names a folder with the programs `snakemake` and `doit` (`python -m venv F; F/bin/pip install snakemake doit`
gives F/bin); a peer that is not there is left out, and that is said. Peak is the largest resident set of a process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

FAIRMILE = [str(Path(sys.executable).with_name("fairmile"))]  # as users start it, and the peers are started
FAN = """\
steps:
  first: {shell: sleep 0.1; touch first, outputs: first}
  middle: {shell: 'sleep 0.1; touch m{n}', over: {n: 1..18}, inputs: first, outputs: 'm{n}'}
  last: {shell: sleep 0.1; touch last, inputs: 'm*', outputs: last}
"""
FAN_SNAKE = """\
rule all:
    input: "last"
rule first:
    output: "first"
    shell: "sleep 0.1; touch first"
rule middle:
    input: "first"
    output: "m{n}"
    shell: "sleep 0.1; touch {output}"
rule last:
    input: expand("m{n}", n=range(1, 19))
    output: "last"
    shell: "sleep 0.1; touch last"
"""
FAN_DOIT = """\
def task_first():
    return {"actions": ["sleep 0.1; touch first"], "targets": ["first"]}
def task_middle():
    for n in range(1, 19):
        yield {"name": str(n), "actions": [f"sleep 0.1; touch m{n}"], "file_dep": ["first"], "targets": [f"m{n}"]}
def task_last():
    return {"actions": ["sleep 0.1; touch last"], "file_dep": [f"m{n}" for n in range(1, 19)], "targets": ["last"]}
"""


def chains(steps: int) -> str:
    values = f"'range(0,{steps // 2})'"
    return (
        f"steps:\n  a: {{shell: 'echo {{n}} > a{{n}}', over: {{n: {values}}}, outputs: 'a{{n}}'}}\n"
        f"  b: {{shell: 'cp a{{n}} b{{n}}', over: {{n: {values}}}, inputs: 'a{{n}}', outputs: 'b{{n}}'}}\n"
    )


def chains_snake(steps: int) -> str:
    return (
        f'rule all:\n    input: expand("b{{n}}", n=range({steps // 2}))\n'
        'rule a:\n    output: "a{n}"\n    shell: "echo {wildcards.n} > {output}"\n'
        'rule b:\n    input: "a{n}"\n    output: "b{n}"\n    shell: "cp {input} {output}"\n'
    )


def chains_doit(steps: int) -> str:
    return (
        f"def task_a():\n    for n in range({steps // 2}):\n"
        '        yield {"name": str(n), "actions": [f"echo {n} > a{n}"], "targets": [f"a{n}"], "uptodate": [True]}\n'
        f"def task_b():\n    for n in range({steps // 2}):\n"
        '        yield {"name": str(n), "actions": [f"cp a{n} b{n}"], "file_dep": [f"a{n}"], "targets": [f"b{n}"]}\n'
    )


Cost = tuple[float, float, float]


def measure(argv: list[str], folder: Path, environ: dict[str, str]) -> Cost:
    """Return CPU seconds, seconds and peak in MB of a command."""
    begins = time.perf_counter()
    process = subprocess.Popen(argv, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise SystemExit(f"{argv} failed:\n{said.decode(errors='replace')[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - begins, usage.ru_maxrss * unit / 1e6


class Tools:
    """The commands that are compared, each in folders of its own."""

    def __init__(self, top: Path, peers: Path | None) -> None:
        self._top = top
        self._bin = peers
        self._environ = {**os.environ, "HOME": str(top / "home"), "FAIRMILE_HOME": str(top / "home")}
        # Users start compiled modules, as the installers of the peers leave them.
        self._environ.pop("PYTHONDONTWRITEBYTECODE", None)
        (top / "home").mkdir()

    def has(self, name: str) -> bool:
        return self._bin is not None and (self._bin / name).exists()

    def folder(self, name: str, file: str, text: str) -> Path:
        folder = self._top / name
        folder.mkdir(exist_ok=True)
        (folder / file).write_text(text)
        return folder

    def fairmile(self, folder: Path, *words: str) -> Cost:
        return measure([*FAIRMILE, "flow", *words], folder, self._environ)

    def settle(self, folder: Path) -> None:
        """Have all steps of the chains in a folder done, as if they had been run."""
        measure([sys.executable, "-c", SETTLE], folder, self._environ)

    def snakemake(self, folder: Path, *words: str) -> Cost:
        assert self._bin is not None
        return measure([str(self._bin / "snakemake"), "-q", "all", *words], folder, self._environ)

    def doit(self, folder: Path, *words: str) -> Cost:
        assert self._bin is not None
        return measure([str(self._bin / "doit"), *words], folder, self._environ)


SETTLE = """\
import hashlib, pathlib
from fairmile.flows.state import Entry
from fairmile.workspace import Workspace

flows = Workspace.open().flows
source = flows.read("flow.yaml")
planner, state = flows._planner(source), flows._opened(source, {})
with state.held():
    round = planner.look(state)
    for name in list(round.steps):
        planned = round.decide(name)
        outputs = {}
        for path in planned.node.outputs:
            pathlib.Path(path).write_text(f"{planned.node.values['n']}\\n")
            outputs[path] = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
        program = planner.program(planned.node).digest
        state.note(Entry(name, "done", planned.key, name, program, planned.params, planned.inputs, outputs))
        round.close(name, is_done=True)
"""


def show(what: str, who: str, cost: Cost, more: str = "") -> None:
    cpu, wall, peak = cost
    print(f"{what:<12} {who:<10} {cpu:8.2f} s CPU {wall:8.2f} s {peak:7.0f} MB  {more}".rstrip())


def compare(tools: Tools, what: str, texts: tuple[str, str, str], steps: int, times: int = 1) -> None:
    """Run the same graph with each tool, and again when nothing is stale; show the median of several times."""
    files = {"fairmile": "flow.yaml", "snakemake": "Snakefile", "doit": "dodo.py"}
    runs: dict[str, Callable[[Path], Cost]] = {
        "fairmile": lambda folder: tools.fairmile(folder, "run", "flow.yaml", "-j", "2"),
        "snakemake": lambda folder: tools.snakemake(folder, "-j", "2"),
        "doit": lambda folder: tools.doit(folder, "-n", "2"),
    }
    costs: dict[str, list[tuple[Cost, Cost]]] = {}
    for number in range(times):
        for (who, file), text in zip(files.items(), texts, strict=True):
            if who == "fairmile" or tools.has(who):
                folder = tools.folder(f"{what}-{who}-{number}", file, text)
                costs.setdefault(who, []).append((runs[who](folder), runs[who](folder)))
    for who, pairs in costs.items():
        first, again = (sorted(each)[times // 2] for each in zip(*pairs, strict=True))
        show(what, who, first, f"{(first[0] - again[0]) / steps * 1000:.1f} ms a step")
        show(f"{what} again", who, again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="steps of the chains that are run")
    parser.add_argument("--peers", type=Path, help="folder with the programs snakemake and doit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flows-") as top:
        tools = Tools(Path(top), options.peers)
        for name in ("snakemake", "doit"):
            if not tools.has(name):
                print(f"{name} is not there: left out")
        tools.fairmile(tools.folder("warm", "flow.yaml", FAN), "run", "flow.yaml")  # compiles what is imported
        compare(tools, "fan", (FAN, FAN_SNAKE, FAN_DOIT), 20, times=5)
        steps = options.steps
        compare(tools, "chains", (chains(steps), chains_snake(steps), chains_doit(steps)), steps)
        for count in (10_000, 100_000):
            folder = tools.folder(f"plan-{count}", "flow.yaml", chains(count))
            show("plan", "fairmile", tools.fairmile(folder, "plan", "flow.yaml"), f"{count:,} steps, never run")
            if count == 10_000:
                tools.settle(folder)
                show("plan", "fairmile", tools.fairmile(folder, "plan", "flow.yaml"), "10,000 steps, nothing stale")
        written = "".join(f"  s{n}: {{command: echo {n}, outputs: out{n}}}\n" for n in range(10_000))
        folder = tools.folder("yaml", "flow.yaml", f"steps:\n{written}")
        show("yaml", "fairmile", tools.fairmile(folder, "plan", "flow.yaml"), "10,000 written out, first time")
        show("yaml", "fairmile", tools.fairmile(folder, "plan", "flow.yaml"), "second time")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
