"""What the header lines of a script ask for, and which of them a system would refuse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import field

from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_duration
from fairmile.systems.model import Partition, System

_DIRECTIVE = lazy_pattern(r"#(?P<dialect>SBATCH|BSUB|PBS|flux:|FLUX:)[ \t]+(?P<rest>[^\r\n]*)", re.ASCII)
_DIALECTS = {"SBATCH": "slurm", "BSUB": "lsf", "PBS": "pbs", "flux:": "flux", "FLUX:": "flux"}
_TIME = lazy_pattern(r"(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,4}))?(?::([0-9]{1,4}))?")
_SHORT = {"p": "partition", "t": "time", "N": "nodes", "c": "cpus-per-task"}
_ALSO = {"tasks-per-node": "ntasks-per-node"}


@dataclass(frozen=True)
class Header:
    """The scheduler's lines of a script: for each option of Slurm its last value and its line number."""

    options: dict[str, tuple[int, str]] = field(default_factory=dict)
    dialects: dict[str, int] = field(default_factory=dict)  # with the first line of each

    @classmethod
    def read(cls, lines: Sequence[tuple[int, str]]) -> Header:
        """Return what numbered lines ask for; a scheduler stops reading at the first command."""
        header = cls()
        for number, line in lines:
            directive = _DIRECTIVE.match(line)
            if directive is None:
                if line.strip() and not line.lstrip().startswith("#"):
                    break
                continue
            dialect = _DIALECTS[directive["dialect"]]
            header.dialects.setdefault(dialect, number)
            if dialect == "slurm":
                for name, value in _options(directive["rest"]):
                    header.options[name] = number, value
        return header

    @property
    def partition(self) -> str:
        """The first partition that is asked for, or nothing."""
        return self.value("partition").split(",")[0]

    @property
    def partition_line(self) -> int:
        return self.options["partition"][0]

    def value(self, name: str) -> str:
        return self.options[name][1] if name in self.options else ""


def _options(rest: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:  # a quote that never ends: the scheduler will complain better than we can
        words = rest.split()
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        following = words[at] if at < len(words) and not words[at].startswith("-") else ""
        if word.startswith("--"):
            name, mark, value = word[2:].partition("=")
            yield _ALSO.get(name, name), value if mark else following
        elif word.startswith("-") and word[1:2] in _SHORT:
            yield _SHORT[word[1]], word[2:].removeprefix("=") or following


def refusals(header: Header, system: System, where: tuple[str, Partition] | None) -> list[str]:
    """Return what in the header a system would not accept, or not understand, one sentence each with its line."""
    return [*_other_dialects(header, system), *_unknown_partitions(header, system), *_beyond(header, where)]


def _other_dialects(header: Header, system: System) -> Iterator[str]:
    ours = system.scheduler.dialect
    for dialect, number in header.dialects.items():
        if dialect != ours:
            mark = next(mark for mark, name in _DIALECTS.items() if name == dialect)
            has = "has no scheduler" if ours == "shell" else f"has {ours}"
            yield f"Line {number}: {system.name} {has}, for which '#{mark}' lines are only comments."


def _unknown_partitions(header: Header, system: System) -> Iterator[str]:
    if "partition" not in header.options or system.scheduler.dialect != "slurm":
        return
    number, value = header.options["partition"]
    for name in value.split(","):
        if name not in system.partitions:
            known = ", ".join(system.partitions)
            yield f"Line {number}: {system.name} has no partition {name!r}; it has {known}."


def _beyond(header: Header, where: tuple[str, Partition] | None) -> Iterator[str]:
    if where is None:
        return
    name, limits = where
    for option in ("gpus-per-node", "gres"):
        asked = _gpus(header.value(option), plain=option == "gpus-per-node")
        has = limits.gpu.count if limits.gpu else 0
        if asked > has:
            number = header.options[option][0]
            yield f"Line {number}: {asked} GPUs on a node exceed the {has} of {name}."
    seconds = _seconds(header.value("time"))
    if limits.max_time is not None and seconds > limits.max_time:
        number, text = header.options["time"]
        yield f"Line {number}: {text} exceeds the limit of {name}, {format_duration(limits.max_time)}."
    nodes = _number(header.value("nodes").partition("-")[0])
    most = limits.max_nodes or limits.nodes
    if most is not None and nodes > most:
        yield f"Line {header.options['nodes'][0]}: {nodes} nodes exceed the limit of {name}, {most}."
    tasks = max(_number(header.value("ntasks-per-node")), 1)
    wanted = tasks * max(_number(header.value("cpus-per-task")), 1)
    if limits.cores is not None and wanted > limits.cores * limits.threads_per_core:
        number = max(header.options[each][0] for each in ("ntasks-per-node", "cpus-per-task") if each in header.options)
        has = limits.cores * limits.threads_per_core
        yield f"Line {number}: {wanted} CPUs on a node exceed the {has} of {name}."


def _gpus(text: str, *, plain: bool) -> int:
    """Return the GPUs of `4`, `a100:4`, `gpu:4` or `gpu:a100:4,nvme:1`; other resources count nothing."""
    if plain:
        return _number(text.rpartition(":")[2])
    parts = [part.split("(")[0].split(":") for part in text.split(",")]
    return sum(_number(part[-1]) if len(part) > 1 else 1 for part in parts if part[0] in ("gpu", "gres/gpu"))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _seconds(text: str) -> float:
    """Return the seconds that Slurm reads in a time limit, where a number alone means minutes; 0 when it reads none."""
    if text.casefold() in ("infinite", "unlimited"):
        return float("inf")
    match = _TIME.fullmatch(text)
    if match is None:
        return 0.0
    days, *rest = (int(part) if part else 0 for part in match.groups())
    if match[1] or match[4]:
        hours, minutes, seconds = rest
    else:
        hours, (minutes, seconds) = 0, rest[:2]
    return days * 86400.0 + hours * 3600 + minutes * 60 + seconds
