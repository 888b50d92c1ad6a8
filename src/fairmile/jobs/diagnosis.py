"""Why a job failed, in words, with what to do about it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TypedDict

from fairmile.base.lazy import lazy_pattern
from fairmile.base.paths import find_program
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.symptoms import DISK, GPU_MEMORY, MEMORY, QUOTA, TIME, Symptom, find_line
from fairmile.base.units import format_duration
from fairmile.jobs.judge import REASONS, TaskStatus
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import State


class DiagnosisDict(TypedDict):
    """A diagnosis as JSON."""

    what: str
    advice: str
    line: str
    resumable: bool


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What went wrong, what to do, the line of the output that says so, and whether resuming unchanged can help."""

    what: str
    advice: str
    line: str = ""
    resumable: bool = False

    def to_dict(self) -> DiagnosisDict:
        """Return the diagnosis as data."""
        return {"what": self.what, "advice": self.advice, "line": self.line, "resumable": self.resumable}

    def summary(self) -> str:
        """Return what went wrong and what to do."""
        return f"{self.what}; {self.advice}"


REJECTED = "the program rejected its arguments"
_EXTRA = Symptom(r"pip install 'fairmile\[[a-z0-9,-]+\]'", "a part of Fairmile is not installed there", "")
_ARGUMENTS = Symptom(r"Could not override '[^'\n]*'[^\n]*|Flags parsing error[^\n]*", REJECTED, "")
# How argparse, click, absl and Hydra name an argument that they do not know.
_UNKNOWN_ARGUMENT = lazy_pattern(
    r"(?:unrecognized arguments: |[Nn]o such option:? '?|Unknown command line flag '|Could not override ')"
    r"([^\s'=]+[\w])"
)
_PACKAGE = Symptom(r"ModuleNotFoundError: No module named .+", "a Python package is missing in the environment", "")
_LOCAL_MEMORY = "reduce what each process holds, such as the batch size or the number of workers"
_LOCAL_TIME = "raise --timeout, or save checkpoints, which a resumed run continues from"
# The name to install, where it is not the name to import.
_DISTRIBUTIONS = {
    "Bio": "biopython",
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "hydra": "hydra-core",
    "osgeo": "gdal",
    "pl_bolts": "lightning-bolts",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
}
# The first that matches tells the most.
_SIGNS: tuple[Symptom, ...] = (
    _EXTRA,
    _ARGUMENTS,
    GPU_MEMORY,
    MEMORY,
    TIME,
    DISK,
    QUOTA,
    _PACKAGE,
    Symptom(
        r"error while loading shared libraries: .+",
        "a library is missing",
        "load the module that provides it: `fairmile system modules` lists those of a framework",
    ),
    Symptom(
        r"NCCL (?:WARN|error)[^\n]*|ncclSystemError[^\n]*|ncclUnhandledCudaError[^\n]*",
        "the GPUs could not communicate",
        "set NCCL_DEBUG=INFO with --env and check which network it uses",
    ),
    Symptom(
        r"(?:RendezvousTimeoutError|RendezvousConnectionError|The client socket has timed out)[^\n]*",
        "the processes could not connect to each other",
        "check that the first node can be reached from the others, and that the launcher starts one task per node",
    ),
    Symptom(r"Permission denied[^\n]*", "permission denied for a file", "check its permissions and its owner"),
    Symptom(
        r"[^\n]*: (?:command )?not found",
        "a program is missing",
        "check its name, or load the module or environment that provides it",
    ),
    Symptom(
        r"No such file or directory[^\n]*",
        "a file is missing",
        "check its path: a program sees the folder it starts in",
    ),
)
# Errors that a program makes again however often it is run.
_BUG = lazy_pattern(
    r"^(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|ImportError|AttributeError|TypeError): .*",
    re.MULTILINE,
)
_FRAME = lazy_pattern(r'^ *File "([^"\n]+)", line (\d+)', re.MULTILINE)
_LIBRARY = lazy_pattern(r"/(?:site-packages|dist-packages|lib/python3[^/]*)/|^<")
_BY_STATE = {
    State.TIMED_OUT: TIME,
    State.OUT_OF_MEMORY: MEMORY,
    State.NODE_FAILED: Symptom("", "a node failed", "submit it again; --retries 2 does so by itself"),
    State.PREEMPTED: Symptom(
        "", "it was preempted by a job of higher priority", "submit it again; --retries 2 does so by itself"
    ),
    State.LOST: Symptom("", "it vanished", "submit it again; if it happens again, ask the support of the system"),
    State.CANCELLED: Symptom("", "it was cancelled", "if that was not intended, submit it again"),
}


_RESUMABLE = (TIME, DISK, QUOTA)  # the same command can succeed after these; the others need a change first


def diagnose(
    status: TaskStatus,
    output: str,
    spec: JobSpec,
    *,
    log: str = "fairmile job log JOB --err",
    environment: str = "",
    in_place: bool = False,
) -> Diagnosis:
    """Return why a job ended as it did; the scheduler's word first, then what its output tells.

    `log` is the command that prints the output. `environment` is the one the program ran in. `in_place` tells that no
    scheduler took part, so that options of one do not help.
    """
    if status.state in _BY_STATE:
        symptom = _BY_STATE[status.state]
        what, line = symptom.what, (find_line(symptom, output) if symptom.pattern else None) or ""
        if status.state is State.TIMED_OUT and spec.resources.time_s:
            what += f" after {format_duration(spec.resources.time_s)}"
        advice = _advice(symptom, line, spec, environment, in_place)
        return Diagnosis(status.sentence or what, advice, line, symptom is not MEMORY)
    if status.sentence == REASONS["folder"]:
        return Diagnosis(status.sentence, "make it, or give another one with --folder", _last(output))
    if status.sentence == REASONS["modules"]:
        return Diagnosis(
            "a module could not be loaded", "`fairmile system probe --on SYSTEM` tells which are there", _last(output)
        )
    if status.exit_code == 2 and re.search(r"(?mi)^usage: ", output):  # how argparse, click and others answer
        return Diagnosis(REJECTED, _arguments_advice(spec.argv, output), _last(output))
    for symptom in _SIGNS:
        line = find_line(symptom, output) or ""
        if line:
            advice = _advice(symptom, line if symptom is not _ARGUMENTS else output, spec, environment, in_place)
            line = _last(output) if symptom is _EXTRA else line
            return Diagnosis(symptom.what, advice, line, symptom in _RESUMABLE)
    if (bug := _find_bug(output)) is not None:
        return bug
    if status.signal == "KILL":
        memory = _LOCAL_MEMORY if in_place else MEMORY.advice
        return Diagnosis(status.sentence, f"if memory ran out, {memory}", resumable=True)
    if status.exit_code == 127:
        return Diagnosis(f"no program {spec.argv[0]!r}", "check its name and the environment", _last(output))
    last = _last(output)
    is_refused = status.exit_code == 2 and last.startswith("error: ")  # what the program was given, it refuses again
    return Diagnosis(status.sentence or "it failed", f"`{log}` prints its output", last, resumable=not is_refused)


def _find_bug(output: str) -> Diagnosis | None:
    """Return the error in a Python program that its last traceback tells, with the line to correct."""
    errors = list(_BUG.finditer(output))
    if not errors:
        return None
    frames = [match for match in _FRAME.finditer(output, 0, errors[-1].start()) if not _LIBRARY.search(match[1])]
    where = f"{os.path.basename(frames[-1][1])}, line {frames[-1][2]}" if frames else "the program"
    return Diagnosis("the program has an error", f"correct {where}, and run it again", errors[-1][0][:300])


def _advice(symptom: Symptom, line: str, spec: JobSpec, environment: str, in_place: bool) -> str:
    """Return what to do about a symptom: the exact command where one is known."""
    if symptom is _EXTRA and (command := re.search(symptom.pattern, line)):
        return command[0]
    if symptom is _ARGUMENTS:
        return _arguments_advice(spec.argv, line)
    if symptom is _PACKAGE:
        return _package_advice(line, spec.argv, environment, in_place)
    if in_place and symptom is _BY_STATE[State.CANCELLED]:
        return ""
    if in_place and symptom in (TIME, MEMORY):
        return _LOCAL_TIME if symptom is TIME else _LOCAL_MEMORY
    return symptom.advice


def _arguments_advice(argv: Sequence[str], output: str) -> str:
    unknown = _UNKNOWN_ARGUMENT.search(output)
    correct = f"correct {unknown[1]}" if unknown else "correct the arguments"
    all_of_them = "the arguments" if unknown else "them"
    script = next((place for place, word in enumerate(argv) if word.endswith(".py")), 0)
    if argv[script].endswith(".py") or os.path.basename(argv[0]) not in ("sh", "bash", "env", "srun", "mpirun"):
        command = [word.removeprefix("{source}/") for word in argv[: script + 1]]  # where sweeps find their own copy
        return f"{correct}: `{shlex.join([*command, '--help'])}` lists {all_of_them}"
    return f"{correct}: its output lists {all_of_them}"


def _package_advice(line: str, argv: Sequence[str], environment: str, in_place: bool) -> str:
    module = line.rpartition("No module named ")[2].strip("'\" ").partition(".")[0]
    package = _DISTRIBUTIONS.get(module, module)
    if environment:
        return f"add {package} to the environment {environment} and build it again"
    python = argv[0] if os.path.basename(argv[0]).startswith("python") else ""
    place = find_program(python, os.environ.get("PATH")) if in_place and python else ""
    if place and place != sys.executable and module.isidentifier() and find_spec(module):
        return f"`{python}` is {place}: activate the environment of {sys.executable}, which has {package}"
    install = f"{shlex.quote(python)} -m pip install {package}" if python else f"pip install {package}"
    return f"`{install}`, or name an environment that has it with --environment"


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    # The sentence is above its advice.
    sentences = [line for line in lines if not line.lstrip().startswith("hint: ")] or lines
    return sentences[-1].strip()[:300] if sentences else ""
