"""A short suite that a machine passes through its own scheduler, and the record of how it did."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict

from fairmile.base.errors import Conflict, FairmileError, InvalidDocument, NotFound, Unsupported, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.version import __version__
from fairmile.jobs.launchers import workers_per_node
from fairmile.jobs.queue import Jobs, JobStatus
from fairmile.jobs.request import Request
from fairmile.jobs.request_rules import make_request
from fairmile.jobs.spec import Array, JobSpec, Resources
from fairmile.jobs.states import State
from fairmile.systems.model import FileSystem

Outcome = Literal["passed", "failed", "not applicable"]
_OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "not applicable")

_JOB_S = 600.0  # what a job of the suite asks for: short jobs start soon
_PATIENCE_S = 4 * 3600.0
_TAIL = 2000
_TASKS = 2
_ROOT_IS_REFUSED = "mpirun has detected an attempt to run as root"
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
# How each vendor's program says how many GPUs there are; AMD's was never run against a real one.
_COUNTERS = {
    "nvidia": ("nvidia-smi", "nvidia-smi -L | grep -c '^GPU '"),
    "amd": ("rocm-smi", r"rocm-smi -i | grep -o 'GPU\[[0-9]*\]' | sort -u | grep -c ."),
}

_LOOK = r"""
say() { printf 'fairmile %s\n' "$*"; }
for tool in python3 mpirun mpiexec srun jsrun flux torchrun; do
  if command -v "$tool" >/dev/null; then say tool "$tool" "$(command -v "$tool")"; fi
done
if command -v python3 >/dev/null; then
  say python "$(python3 --version 2>&1)"
  for module in torch mpi4py; do
    said=$(python3 -c "import $module; print($module.__version__)" 2>&1) && say module "$module" "$said"
  done
fi
try_folder() {
  if [ ! -d "$2" ]; then say folder "$1" missing "$2"; return; fi
  file=$(mktemp "$2/.fairmile-XXXXXX" 2>/dev/null) || { say folder "$1" closed "$2"; return; }
  if echo written > "$file" && [ "$(cat "$file")" = written ]; then say folder "$1" good "$2"
  else say folder "$1" bad "$2"; fi
  rm -f -- "$file"
}
"""
_RANK = r"${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${FLUX_TASK_RANK:-${SLURM_PROCID:-none}}}}}"
# Each line of these is one write: processes that share a file must not cut one another's lines.
_MPI_HELLO = """\
import os

from mpi4py import MPI

world = MPI.COMM_WORLD
os.write(1, f"fairmile rank {world.rank} sum {world.allreduce(world.rank + 1)}\\n".encode())
"""
_DDP_HELLO = """\
import os

import torch

on_gpu = torch.cuda.is_available()
if on_gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
rank = torch.distributed.get_rank()
total = torch.full((1,), rank + 1, device="cuda" if on_gpu else "cpu")
torch.distributed.all_reduce(total)
os.write(1, f"fairmile rank {rank} sum {int(total)}\\n".encode())
torch.distributed.destroy_process_group()
"""


class CheckDict(TypedDict):
    """One check as JSON; `output` is the end of the job's output."""

    name: str
    outcome: Outcome
    reason: str
    output: str
    seconds: float | None
    job: str


class CertificateRecordDict(TypedDict):
    """A certificate as it is kept."""

    system: str
    title: str
    scheduler: str
    fairmile: str
    started: str
    ended: str
    passed: bool
    checks: list[CheckDict]


class CertificateDict(CertificateRecordDict):
    """A certificate as JSON; `file` is where its record is kept."""

    file: str


class CertificationPlanDict(TypedDict):
    """The checks that would be made, as JSON."""

    system: str
    checks: list[str]
    dry_run: Literal[True]


@dataclass(frozen=True, repr=False)
class Check(Result):
    """One check of a machine and its outcome; `output` is the end of the job's output."""

    name: str
    outcome: Outcome
    reason: str = ""
    output: str = ""
    seconds: float | None = None
    job: str = ""

    def to_dict(self) -> CheckDict:
        """Return the check as data."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "reason": self.reason,
            "output": self.output,
            "seconds": self.seconds,
            "job": self.job,
        }

    def summary(self) -> str:
        """Return the name, the outcome and the reason."""
        return f"{self.name} {self.outcome}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, repr=False)
class CertificationPlan(Result):
    """The checks that certification of a system would make."""

    system: str
    checks: tuple[str, ...]

    def to_dict(self) -> CertificationPlanDict:
        """Return the plan as `fairmile system certify --dry-run --json` prints it."""
        return {"system": self.system, "checks": list(self.checks), "dry_run": True}

    def summary(self) -> str:
        """Return the system and the checks."""
        return f"{self.system}, {len(self.checks)} checks: {', '.join(self.checks)}"


@dataclass(frozen=True, repr=False)
class Certificate(Result):
    """What a machine could do on one day, check by check; `file` is where the record is kept."""

    system: str
    title: str
    scheduler: str
    started: datetime
    ended: datetime
    checks: tuple[Check, ...]
    file: str = ""

    @property
    def passed(self) -> bool:
        return all(check.outcome != "failed" for check in self.checks)

    def counts(self) -> dict[Outcome, int]:
        """Return the number of checks with each outcome."""
        outcomes = [check.outcome for check in self.checks]
        return {outcome: outcomes.count(outcome) for outcome in _OUTCOMES if outcome in outcomes}

    def to_dict(self) -> CertificateDict:
        """Return the certificate as `fairmile system certify --json` prints it."""
        return {**self.record(), "file": self.file}

    def summary(self) -> str:
        """Return the system and the number of checks with each outcome."""
        numbers = ", ".join(f"{number} {outcome}" for outcome, number in self.counts().items())
        return f"{self.system}: {len(self.checks)} checks: {numbers}"

    def record(self) -> CertificateRecordDict:
        """Return what is kept."""
        return {
            "system": self.system,
            "title": self.title,
            "scheduler": self.scheduler,
            "fairmile": __version__,
            "started": _stamp(self.started),
            "ended": _stamp(self.ended),
            "passed": self.passed,
            "checks": [check.to_dict() for check in self.checks],
        }

    def card(self) -> dict[str, Any]:
        """Return the certificate as JSON-LD in the words of schema.org."""
        return {
            "@context": "https://schema.org/",
            "@type": "Dataset",
            "name": f"Certification of {self.system}, {self.started.date()}",
            "description": f"What jobs of a short suite could do on {self.title}.",
            "dateCreated": str(self.started.date()),
            "about": {"@type": "Thing", "name": self.title, "identifier": self.system},
            "measurementTechnique": f"jobs submitted by Fairmile {__version__} through {self.scheduler}",
            "variableMeasured": [
                {"@type": "PropertyValue", "name": each.name, "value": each.outcome, "description": each.reason}
                for each in self.checks
            ],
        }

    def keep(self, folder: Path) -> Certificate:
        """Write the record and its card below a folder of certificates."""
        file = folder / self.system / f"{self.started.strftime('%Y-%m-%dT%H%M%SZ')}.json"
        write_atomic(file, json.dumps({**self.record(), "card": self.card()}, indent=1) + "\n")
        return replace(self, file=str(file))


def certify(
    jobs: Jobs,
    name: str,
    *,
    software: Sequence[str] | None = None,
    resources: Resources | None = None,
    patience_s: float = _PATIENCE_S,
    watch: Callable[[Check], None] = lambda check: None,
) -> Certificate:
    """Run the suite on a system and return what came of it; None for `software` means all sets of the system.

    Jobs of checks that failed stay to be looked at, none of them running. `watch` gets each check when it is known.
    What the system cannot be asked at all, for want of an account perhaps, raises.
    """
    suite = _Suite(jobs, name, software, resources or Resources(), patience_s, watch)
    started = datetime.now(UTC)
    try:
        suite.run(suite.first())
        suite.run(suite.second())
    finally:
        suite.end()
    system = suite.machine.system
    return Certificate(
        system.name, system.title, system.scheduler.dialect, started, datetime.now(UTC), tuple(suite.checks)
    )


def plan(
    jobs: Jobs, name: str, *, software: Sequence[str] | None = None, resources: Resources | None = None
) -> CertificationPlan:
    """Return the checks that certification would make; raise what it would raise."""
    suite = _Suite(jobs, name, software, resources or Resources(), _PATIENCE_S, lambda check: None)
    steps = suite.first()
    for label in ("", *suite.software):
        suite.facts[label] = _Facts({suite.starter}, {"torch": "", "mpi4py": ""})
    return CertificationPlan(name, tuple(check for step in [*steps, *suite.second()] for check in step.names))


@dataclass(frozen=True)
class _Ended:
    """A job of the suite that has ended."""

    status: JobStatus
    out: str
    errors: str

    @property
    def seconds(self) -> float | None:
        times = self.status.status
        known = times.started is not None and times.ended is not None
        return (times.ended or 0.0) - (times.started or 0.0) if known else None

    def lines(self, word: str) -> list[list[str]]:
        """Return the rest of every line of output that starts with our mark and a word."""
        rows = [line.split() for line in self.out.splitlines()]
        return [row[2:] for row in rows if row[:2] == ["fairmile", word]]

    def check(self, name: str, outcome: Outcome, reason: str = "") -> Check:
        output = (self.out + self.errors)[-_TAIL:]
        return Check(name, outcome, reason, output, self.seconds, self.status.id)

    def wrong(self) -> str:
        """Say why the job did not end well; empty where it did."""
        return "" if self.status.state is State.DONE else _outcome(self.status)


@dataclass(frozen=True)
class _Step:
    """A job, the checks it answers, and how they are read off it."""

    names: tuple[str, ...]
    spec: JobSpec
    read: Callable[[_Ended], list[Check]]
    is_cancelled: bool = False


@dataclass
class _Facts:
    """What a job found on its node."""

    tools: set[str]
    modules: dict[str, str]
    gpus: int = 0


class _Suite:
    """The suite on one system, as far as it has come."""

    def __init__(
        self,
        jobs: Jobs,
        name: str,
        software: Sequence[str] | None,
        resources: Resources,
        patience_s: float,
        watch: Callable[[Check], None],
    ) -> None:
        self.jobs = jobs
        self.name = name
        self.machine = jobs.machines[name]
        self.resources = resources.model_copy(update={"time_s": resources.time_s or _JOB_S})
        self.patience_s = patience_s
        self.watch = watch
        self.software = tuple(self.machine.system.software if software is None else software)
        self.checks: list[Check] = []
        self.facts: dict[str, _Facts] = {}
        self.starter = ""
        self.tag = f"certify-{secrets.token_hex(3)}"  # the name of its jobs: those without an answer are found by it

    # The steps

    def first(self) -> list[_Step]:
        """Return what any machine is asked."""
        alone = self.resources.model_copy(update={"nodes": None})
        one = {"resources": alone, "launch": "plain"}
        script = "echo to stdout; echo to stderr >&2; exit 7"
        steps = [
            _Step(("job",), _sh("true", **one), _ends_well("job")),
            _Step(("exit code and output",), _sh(script, **one), _read_exit_code),
            _Step(("array",), _sh('echo "task $FAIRMILE_ARRAY_INDEX"', **one, array=Array(count=3)), self._read_array),
            _Step(("cancel",), _sh(f"sleep {_JOB_S:.0f}", **one), _read_cancelled, is_cancelled=True),
        ]
        # What this system cannot be asked at all is said here, before any job is made.
        starter = self._resolved(steps[0].spec).starter
        self.starter = starter if starter != "none" else "mpirun"
        steps.append(self._look("", one))
        steps += [self._look(label, {**one, "software": (label,)}) for label in self.software]
        return steps

    def second(self) -> list[_Step]:
        """Return what is asked only where the first steps found what it takes."""
        steps = []
        several = self.resources.model_copy(update={"tasks_per_node": _TASKS})
        for label, facts in self.facts.items():
            fields: dict[str, Any] = {"software": (label,)} if label else {}
            together = {**fields, "resources": several, "launch": self.starter}
            steps += [] if label else self._launched(together, facts)
            steps += self._mpi(label, together, facts)
            # Without GPUs torchrun starts as many processes as there are tasks.
            resources = self.resources if facts.gpus else several
            steps += self._ddp(label, {**fields, "resources": resources, "launch": "torchrun"}, facts)
        return steps

    def _look(self, label: str, fields: dict[str, Any]) -> _Step:
        names = [_named(label, "modules")] if label else []
        names.append(_named(label, "python"))
        lines = [_LOOK]
        if not label:
            names += ["GPUs", *(f"file system {name}" for name in self.machine.system.file_systems)]
            lines += [f'if command -v {tool} >/dev/null; then say gpus {vendor} "$({count})"; fi'
                      for vendor, (tool, count) in _COUNTERS.items()]  # fmt: skip
            lines += [_folder_line(name, each) for name, each in self.machine.system.file_systems.items()]
        spec = JobSpec(argv=("bash", "look.sh"), texts={"look.sh": "\n".join([*lines, ""])}, **fields)
        return _Step(tuple(names), spec, lambda ended: self._read_look(label, spec, ended))

    def _launched(self, fields: dict[str, Any], facts: _Facts) -> list[_Step]:
        name = "tasks started together"
        if self.starter not in facts.tools:
            return self._skip(name, f"no {self.starter}")
        spec = _sh(f'echo "fairmile rank {_RANK} on ${{SLURMD_NODENAME:-$HOSTNAME}}"', **fields)
        return [_Step((name,), spec, lambda ended: [self._read_ranks(name, spec, ended)])]

    def _mpi(self, label: str, fields: dict[str, Any], facts: _Facts) -> list[_Step]:
        name = _named(label, "MPI")
        if self.starter not in facts.tools:
            return self._skip(name, f"no {self.starter}")
        if "mpi4py" not in facts.modules:
            return self._skip(name, "python3 has no mpi4py")
        spec = JobSpec(argv=("python3", "hello.py"), texts={"hello.py": _MPI_HELLO}, **fields)
        return [_Step((name,), spec, lambda ended: [self._read_ranks(name, spec, ended)])]

    def _ddp(self, label: str, fields: dict[str, Any], facts: _Facts) -> list[_Step]:
        name = _named(label, "torch, distributed")
        if "torch" not in facts.modules:
            return self._skip(name, "python3 has no torch")
        spec = JobSpec(argv=("python3", "hello.py"), texts={"hello.py": _DDP_HELLO}, **fields)
        return [_Step((name,), spec, lambda ended: [self._read_ranks(name, spec, ended)])]

    def _skip(self, name: str, reason: str) -> list[_Step]:
        self._note([Check(name, "not applicable", reason)])
        return []

    # Running them

    def run(self, steps: Sequence[_Step]) -> None:
        """Submit all steps, wait for them together, and read each; what is refused, or gets no answer, has failed."""
        submitted = [(step, job) for step in steps if (job := self._submitted(step)) is not None]
        ends = self.jobs.wait([job.id for _, job in submitted], timeout_s=self.patience_s)
        self.end()
        for (step, _), end in zip(submitted, ends, strict=True):
            try:
                checks = step.read(self._ended(end)) if end.is_over else [self._late(name, end) for name in step.names]
            except FairmileError as error:
                checks = [Check(name, "failed", str(error), job=end.id) for name in step.names]
            self._note(checks)
            if end.is_over and all(check.outcome != "failed" for check in checks):
                with contextlib.suppress(FairmileError):  # it has ended, and is only kept longer
                    self.jobs.rm([end.id])

    def _submitted(self, step: _Step) -> JobStatus | None:
        """Submit a step, and cancel it where that is what is tried; None where that could not be done."""
        outcome: Outcome = "failed"
        try:
            job = self.jobs.submit(step.spec.model_copy(update={"name": self.tag}), system=self.name)
            if step.is_cancelled:
                self.jobs.cancel([job.id])
            return job
        except Unsupported as error:
            outcome, reason = "not applicable", str(error)
        except (InvalidDocument, UsageError, NotFound, Conflict) as error:
            reason = f"refused: {error}"
        except FairmileError as error:
            reason = str(error)
        self._note([Check(name, outcome, reason) for name in step.names])
        return None

    def end(self) -> None:
        """Cancel whatever of the suite is still under way, also jobs of which no answer came back."""
        left = [job.id for job in self.jobs.ls(live=True) if job.name == self.tag]
        for id in left:
            with contextlib.suppress(FairmileError):  # one that cannot be reached must not keep the others running
                self.jobs.cancel([id])

    def _ended(self, end: JobStatus) -> _Ended:
        out, errors = (
            self.jobs.log(end.id, errors=which, tail=True).decode(errors="replace") for which in (False, True)
        )
        return _Ended(end, out, errors)

    def _late(self, name: str, end: JobStatus) -> Check:
        reason = f"it was {end.state} for {self.patience_s:.0f} s and was cancelled"
        return Check(name, "failed", reason, job=end.id)

    def _note(self, checks: Sequence[Check]) -> None:
        for check in checks:
            self.checks.append(check)
            self.watch(check)

    # Reading them

    def _read_array(self, ended: _Ended) -> list[Check]:
        outputs = [self.jobs.log(ended.status.id, task=index).decode(errors="replace").strip() for index in range(3)]
        wrong = ended.wrong()
        if not wrong and outputs != ["task 0", "task 1", "task 2"]:
            wrong = f"its tasks printed {outputs}"
        return [ended.check("array", "failed" if wrong else "passed", wrong)]

    def _read_look(self, label: str, spec: JobSpec, ended: _Ended) -> list[Check]:
        wrong = ended.wrong()
        if wrong:
            names = [_named(label, "modules" if label else "python")]
            return [ended.check(name, "failed", wrong) for name in names]
        tools, modules = {row[0] for row in ended.lines("tool")}, {row[0]: row[1] for row in ended.lines("module")}
        self.facts[label] = facts = _Facts(tools, modules, self._resolved(spec).gpus_per_node)
        checks = [ended.check(_named(label, "modules"), "passed")] if label else []
        versions = [" ".join(row) for row in ended.lines("python")]
        versions_text = ", ".join([*versions, *(f"{name} {version}" for name, version in facts.modules.items())])
        outcome: Outcome = "passed" if versions else "failed"
        checks.append(ended.check(_named(label, "python"), outcome, versions_text or "no python3"))
        if not label:
            checks += [self._read_gpus(spec, ended), *self._read_folders(ended)]
        return checks

    def _read_gpus(self, spec: JobSpec, ended: _Ended) -> Check:
        request = self._resolved(spec)
        gpu = self.machine.system.partitions[request.partition].gpu
        seen = {row[0]: int(row[1]) for row in ended.lines("gpus") if len(row) > 1 and row[1].isdecimal()}
        if gpu is None or not request.gpus_per_node:
            others = "".join(f"; {count} of {vendor} were seen" for vendor, count in seen.items() if count)
            return ended.check("GPUs", "not applicable", f"none is registered for {request.partition}{others}")
        if gpu.vendor not in _COUNTERS:
            return ended.check("GPUs", "not applicable", f"cannot count GPUs of vendor {gpu.vendor}")
        number = seen.get(gpu.vendor)
        if number is None:
            return ended.check("GPUs", "failed", f"{_COUNTERS[gpu.vendor][0]} is not installed, which counts them")
        reason = f"{request.gpus_per_node} × {gpu.model} requested, {number} seen"
        return ended.check("GPUs", "passed" if number == request.gpus_per_node else "failed", reason)

    def _read_folders(self, ended: _Ended) -> list[Check]:
        folders = {row[0]: (row[1], " ".join(row[2:])) for row in ended.lines("folder")}
        checks = []
        for name in self.machine.system.file_systems:
            word, place = folders.get(name, ("bad", ""))
            outcome, reason = _FOLDERS[word]
            checks.append(ended.check(f"file system {name}", outcome, f"{place} {reason}".strip()))
        return checks

    def _read_ranks(self, name: str, spec: JobSpec, ended: _Ended) -> Check:
        wrong = ended.wrong()
        if wrong and _ROOT_IS_REFUSED in ended.errors:
            return ended.check(name, "not applicable", "mpirun does not run for root without OMPI_ALLOW_RUN_AS_ROOT=1")
        if wrong:
            return ended.check(name, "failed", wrong)
        request = self._resolved(spec)
        wanted = request.nodes * workers_per_node(request)
        rows = ended.lines("rank")
        ranks = sorted(row[0] for row in rows)
        if ranks != sorted(map(str, range(wanted))):
            reason = f"{wanted} processes expected ranks from 0 on, found {', '.join(ranks) or 'not known'}"
            return ended.check(name, "failed", reason)
        sums = {row[2] for row in rows if row[1] == "sum"}
        if sums - {str(wanted * (wanted + 1) // 2)}:
            return ended.check(name, "failed", f"{wanted} processes summed up to {', '.join(sorted(sums))}")
        return ended.check(name, "passed", f"{wanted} processes on {request.nodes} node{'s'[: request.nodes - 1]}")

    def _resolved(self, spec: JobSpec) -> Request:
        return make_request(self.machine.filled(spec), self.machine.system)


_FOLDERS: dict[str, tuple[Outcome, str]] = {
    "good": ("passed", "was written and read"),
    "missing": ("failed", "is not there"),
    "unset": ("failed", "is not set in a job"),
    "closed": ("not applicable", "exists, but is not writable at its top"),
    "bad": ("failed", "does not return what was written"),
    "unknown": ("not applicable", "has a placeholder that only you can fill in"),
}


def _sh(script: str, **fields: Any) -> JobSpec:
    return JobSpec(argv=("bash", "-c", script), **fields)


def _named(label: str, name: str) -> str:
    return f"{label}: {name}" if label else name


def _ends_well(name: str) -> Callable[[_Ended], list[Check]]:
    def read(ended: _Ended) -> list[Check]:
        wrong = ended.wrong()
        return [ended.check(name, "failed" if wrong else "passed", wrong)]

    return read


def _read_exit_code(ended: _Ended) -> list[Check]:
    name, code = "exit code and output", ended.status.status.exit_code
    if code != 7:
        return [
            ended.check(name, "failed", f"the program ended with 7, the job reports {code}: {_outcome(ended.status)}")
        ]
    if (ended.out, ended.errors) != ("to stdout\n", "to stderr\n"):
        return [ended.check(name, "failed", f"expected two lines, found {ended.out!r} and {ended.errors!r}")]
    return [ended.check(name, "passed")]


def _read_cancelled(ended: _Ended) -> list[Check]:
    is_cancelled = ended.status.state is State.CANCELLED
    return [
        ended.check("cancel", "passed" if is_cancelled else "failed", "" if is_cancelled else _outcome(ended.status))
    ]


def _outcome(status: JobStatus) -> str:
    return f"{status.state}: {status.status.sentence}" if status.status.sentence else str(status.state)


def _folder_line(name: str, each: FileSystem) -> str:
    """Return the line of shell that tries a file system; of its path only variables are expanded."""
    if "<" in each.path:
        return f"say folder {name} unknown {shlex.quote(each.path)}"
    names = _VARIABLE.findall(each.path)
    literals = _VARIABLE.split(each.path)[::2]
    words = [shlex.quote(literal) if literal else "" for literal in literals]
    path = words[0] + "".join(f'"${which}"{word}' for which, word in zip(names, words[1:], strict=True))
    are_set = " && ".join(f'[ -n "${{{which}:-}}" ]' for which in names) or "true"
    otherwise = f"say folder {name} unset {shlex.quote(each.path)}"
    return f"if {are_set}; then try_folder {name} {path}; else {otherwise}; fi"


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
