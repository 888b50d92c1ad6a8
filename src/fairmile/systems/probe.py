"""What a machine has, asked of its own programs: here, or over ssh with the same questions."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import date

from fairmile.base.commands import Runner, Ssh
from fairmile.base.errors import SystemFailure
from fairmile.base.quick_dataclass import dataclass
from fairmile.systems import answers
from fairmile.systems.probe_result import Accelerator, Modules, ProbeResult, Program, Queue, Slurm, StoragePlace

# Programs whose version is worth knowing, and what to ask them.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "srun": ("--version",),
    "bsub": ("-V",),
    "jsrun": ("--version",),
    "qsub": ("--version",),
    "pbsnodes": ("--version",),
    "flux": ("version",),
    "mpirun": ("--version",),
    "mpiexec": ("--version",),
    "gcc": ("--version",),
    "g++": ("--version",),
    "gfortran": ("--version",),
    "clang": ("--version",),
    "nvc": ("--version",),
    "icx": ("--version",),
    "nvcc": ("--version",),
    "hipcc": ("--version",),
    "apptainer": ("--version",),
    "singularity": ("--version",),
    "podman": ("--version",),
    "docker": ("--version",),
    "ch-run": ("--version",),
}
# Components of frameworks, each with the distributions of Python packages that bring it.
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "intel-tensorflow", "tensorflow-aarch64"),
    "jax": ("jax",),
    "horovod": ("horovod",),
    "deepspeed": ("deepspeed",),
    "heat": ("heat",),
    "ray": ("ray",),
    "mpi4py": ("mpi4py",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
}
_VARIABLES = ("HOME", "PROJECT", "WORK", "SCRATCH", "PSCRATCH", "CSCRATCH", "DATA", "ARCHIVE", "TMPDIR")
_PATHS = ("/scratch", "/work", "/project", "/local", "/localscratch", "/tmp")
_GIVE_FACTS = ("lscpu", "nvidia-smi", "rocm-smi", "amd-smi", "lspci", "df", "python3")
_GIVE_ACCESS = ("bash", "scontrol", "sinfo", "lsid", "qstat")
_LOGIN_S = 90
_SPIDER_S = 180

# Asked without importing anything, since that would take seconds and may fail on a login node. Pythons before 3.8
# have no importlib.metadata.
_PYTHON = """\
import json, sys
try:
    from importlib.metadata import version
except ImportError:
    from pkg_resources import get_distribution
    version = lambda name: get_distribution(name).version
found = {}
for component, names in json.loads(sys.argv[1]).items():
    for name in names:
        try:
            found[component] = version(name)
            break
        except Exception:
            pass
print(json.dumps({"python": sys.version.split()[0], "components": found}))
"""

_FACTS = """\
say host; uname -n
say machine; uname -m
say programs; for each in {programs}; do there=$(command -v "$each") && printf '%s %s\\n' "$each" "$there"; done
say variables; {variables}
say memory; cat /proc/meminfo 2>/dev/null
say devices
for each in /sys/class/infiniband/*/ports/*; do
  [ -e "$each" ] || continue
  device=${{each%/ports/*}}
  printf '%s|' "${{device##*/}}"
  for part in link_layer rate state; do printf '%s|' "$(cat "$each/$part" 2>/dev/null)"; done
  echo
done
say interfaces; ls /sys/class/net 2>/dev/null
say end
"""

_LOGIN = """\
say programs; for each in {programs}; do there=$(type -P "$each") && printf '%s %s\\n' "$each" "$there"; done
say variables; {variables}
{modules}
if type module >/dev/null 2>&1; then
  say version; module --version 2>&1
  say available; module -t avail 2>&1
fi
say end
"""

_MODULES = """\
if ! type module >/dev/null 2>&1; then
  for each in "${LMOD_PKG:-/usr/share/lmod/lmod}/init/bash" "${MODULESHOME:-/usr/share/modules}/init/bash" \\
    /etc/profile.d/lmod.sh /etc/profile.d/modules.sh; do
    if [ -r "$each" ]; then . "$each" >/dev/null 2>&1 && type module >/dev/null 2>&1 && break; fi
  done
fi
"""

_ASK = """\
limit=; command -v timeout >/dev/null 2>&1 && limit='timeout -k 2 {seconds}'
exec 3>&1
ask() {{
  name=$1; shift; say "out $name"
  said=$($limit "$@" </dev/null 2>&1 1>&3 3>&-); code=$?
  echo; say "err $name"; printf '%s\\n' "$said"; say "code $name"; echo $code
}}
"""


@dataclass(frozen=True)
class _Answer:
    out: str
    problem: str = ""


def probe(
    runner: Runner,
    *,
    today: date,
    also: Sequence[str] = (),
    answer_s: int = 20,
    on_step: Callable[[str], None] | None = None,
) -> ProbeResult:
    """Return what the machine behind `runner` has.

    `also` names further folders to look at, which may hold variables such as `/scratch/$USER`. A program that is not
    there, fails or does not answer within `answer_s` is not an error: the result says so. Only a machine that cannot be
    reached raises. `on_step` is told what is looked at.
    """
    return _Probe(runner, also, answer_s, on_step or (lambda _: None)).ask(today)


class _Probe:
    """One look at a machine; few commands, since each may be a connection of its own."""

    def __init__(self, runner: Runner, also: Sequence[str], answer_s: int, on_step: Callable[[str], None]) -> None:
        self._runner = runner
        self._answer_s = answer_s
        self._also = [path for path in also if "<" not in path and path.isprintable()]
        self._step = on_step
        self._programs: dict[str, str] = {}
        self._variables: dict[str, str] = {}

    def ask(self, today: date) -> ProbeResult:
        names = [*PROGRAMS, *_GIVE_FACTS, *_GIVE_ACCESS]
        wanted = dict.fromkeys([*_VARIABLES, *(name for path in self._also for name in _variables_in(path))])
        words = {"programs": shlex.join(names), "variables": _print_variables(wanted)}
        self._step("processors, memory, network")
        facts = _run(self._runner, ["sh", "-c"], _FACTS.format(**words), _LOGIN_S)
        self._note(facts)
        self._step("the login shell and its modules")
        modules = self._modules(_LOGIN.format(**words, modules=_MODULES))
        places = self._places()
        self._step("programs, scheduler, file systems")
        replies = self._ask(self._questions(places))
        slurm, queues = _slurm(replies)
        python, components = answers.components(replies["python3"].out) if "python3" in replies else ("", {})
        return ProbeResult(
            host=facts.get("host", "").strip(),
            day=today,
            architecture=facts.get("machine", "").strip(),
            login=self._runner.host.rpartition("@")[2] if isinstance(self._runner, Ssh) else "",
            processor=answers.lscpu(replies["lscpu"].out if "lscpu" in replies else ""),
            memory_gib=answers.meminfo(facts.get("memory", "")),
            accelerators=tuple(_accelerators(replies)),
            scheduler=_scheduler(replies, slurm),
            slurm=slurm,
            queues=tuple(queues),
            modules=modules,
            places=tuple(self._measured(places, replies)),
            networks=tuple(
                answers.networks(facts.get("devices", ""), facts.get("interfaces", ""), _out(replies, "lspci"))
            ),
            programs=self._described(replies),
            python=python,
            components=components,
        )

    def _note(self, sections: Mapping[str, str]) -> None:
        """Keep programs and variables; what the plain shell knows comes before what the login shell does."""
        for line in sections.get("programs", "").splitlines():
            name, _, path = line.partition(" ")
            if path.startswith("/"):
                self._programs.setdefault(name, path)
        for line in sections.get("variables", "").splitlines():
            name, mark, value = line.partition("=")
            if mark and value and value.isprintable():
                self._variables.setdefault(name, value)

    def _modules(self, script: str) -> Modules:
        if "bash" not in self._programs:
            return Modules(problem="no bash")
        try:
            output = _run(self._runner, ["bash", "-lc"], script, _LOGIN_S)
        except SystemFailure as error:
            return Modules(problem=str(error))
        self._note(output)
        if "version" not in output:
            return Modules()
        kind, version = answers.module_version(output["version"])
        available = answers.module_list(output.get("available", ""))
        reachable: list[str] = []
        problem = ""
        if kind == "lmod":
            # Where a compiler brings its own modules, only this tells what can be loaded in the end.
            self._step("modules provided by other modules")
            spider = _MODULES + "say reachable; module -t spider 2>&1\nsay end\n"
            try:
                reachable = answers.module_list(
                    _run(self._runner, ["bash", "-lc"], spider, _SPIDER_S).get("reachable", "")
                )
            except SystemFailure as error:
                problem = str(error)
        stages = answers.stages(list(dict.fromkeys([*available, *reachable])))
        return Modules(kind, version, tuple(available), tuple(reachable), tuple(stages), problem)

    def _places(self) -> dict[str, str]:
        """Return where to look for file systems: by the variable, path or template that leads there."""
        places = {f"${name}": self._variables[name] for name in _VARIABLES if name in self._variables}
        places |= {path: path for path in _PATHS}
        for template in self._also:
            if all(name in self._variables for name in _variables_in(template)):
                places[template] = _NAMED.sub(lambda match: self._variables[match[1] or match[2]], template)
        return {name: path for name, path in places.items() if path.startswith("/")}

    def _questions(self, places: Mapping[str, str]) -> dict[str, list[str]]:
        asked: dict[str, list[str]] = {
            "lscpu": ["lscpu", "-J"],
            "nvidia-smi": [
                "nvidia-smi",
                "--query-gpu=name,memory.total,driver_version",
                "--format=csv,noheader,nounits",
            ],
            "amd-smi": ["amd-smi", "static", "--asic", "--vram", "--json"],
            "rocm-smi": ["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"],
            "lspci": ["lspci"],
            "scontrol": ["scontrol", "show", "config"],
            "slurm nodes": ["scontrol", "-o", "show", "node"],
            "sinfo": ["sinfo", "-h", "-e", "-o", answers.SINFO_FORMAT],
            "lsid": ["lsid"],
            "qstat": ["qstat", "-Q"],
            "flux uptime": ["flux", "uptime"],
            "python3": ["python3", "-W", "ignore", "-c", _PYTHON, json.dumps(COMPONENTS)],
        }
        asked |= {name: [name, *arguments] for name, arguments in PROGRAMS.items()}
        asked |= {f"df {name}": ["df", "-PTk", "--", path] for name, path in places.items()}
        return {name: argv for name, argv in asked.items() if argv[0] in self._programs}

    def _ask(self, questions: Mapping[str, list[str]]) -> dict[str, _Answer]:
        keys = list(questions)
        lines = [_ASK.format(seconds=self._answer_s), "LC_ALL=C; export LC_ALL"]
        for number, key in enumerate(keys):
            program, *arguments = questions[key]
            lines.append(f"ask {number} {shlex.join([self._programs[program], *arguments])}")
        output = _run(
            self._runner, ["sh", "-c"], "\n".join([*lines, "say end", ""]), self._answer_s * len(keys) + _LOGIN_S
        )
        return {key: _answer(output, str(number), questions[key][0], self._answer_s) for number, key in enumerate(keys)}

    def _measured(self, places: Mapping[str, str], replies: Mapping[str, _Answer]) -> list[StoragePlace]:
        measured: list[StoragePlace] = []
        for name, path in places.items():
            answer = replies.get(f"df {name}", _Answer("", "no df"))
            if not answer.problem:
                measured.append(answers.df(answer.out, name, path))
            elif name not in _PATHS or name in self._also:  # the usual paths are only guesses
                measured.append(StoragePlace(name, path, problem=answer.problem))
        return measured

    def _described(self, replies: Mapping[str, _Answer]) -> dict[str, Program]:
        described = {}
        for name, path in sorted(self._programs.items()):
            answer = replies.get(name, _Answer(""))
            version = answers.version(answer.out) if name in PROGRAMS and not answer.problem else ""
            described[name] = Program(path, version, answer.problem)
        return described


_NAMED = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


def _variables_in(template: str) -> list[str]:
    return [first or second for first, second in _NAMED.findall(template)]


def _print_variables(names: Sequence[str] | Mapping[str, None]) -> str:
    return "; ".join(f"printf '%s=%s\\n' {name} \"${{{name}-}}\"" for name in names)


def _run(runner: Runner, shell: Sequence[str], script: str, timeout_s: float) -> dict[str, str]:
    """Return the sections that a script prints; only its own marks begin one, whatever else is printed."""
    mark = f"@{os.urandom(8).hex()} "
    prelude = f"say() {{ printf '{mark}%s\\n' \"$1\"; }}\n"
    # As an argument and not as input, which a profile that reads its input would swallow.
    result = runner.run([*shell, prelude + script], timeout_s=timeout_s, check=False)
    sections: dict[str, str] = {}
    for part in result.stdout.split(mark)[1:]:
        name, _, text = part.partition("\n")
        sections[name] = text
    if "end" not in sections:
        messages = result.stderr.strip().splitlines()
        raise SystemFailure(
            f"the shell did not answer (exit code {result.exit_code})" + (f": {messages[-1]}" if messages else "")
        )
    return sections


def _answer(output: Mapping[str, str], key: str, program: str, answer_s: int) -> _Answer:
    out, err, code = (output.get(f"{part} {key}", "") for part in ("out", "err", "code"))
    if code.strip() == "0":
        return _Answer(out if out.strip() else err)
    if code.strip() in ("124", "137"):
        return _Answer("", f"did not answer within {answer_s} s")
    lines = [line.strip() for line in (err if err.strip() else out).splitlines() if line.strip()]
    reason = re.sub(rf"^(\S*/)?{re.escape(program)}(\[\d+\])?: (fatal: |error: )?", "", lines[-1]) if lines else ""
    return _Answer("", reason[:200] or f"ended with exit code {code.strip()}")


def _out(replies: Mapping[str, _Answer], key: str) -> str:
    return replies[key].out if key in replies else ""


def _slurm(replies: Mapping[str, _Answer]) -> tuple[Slurm | None, list[Queue]]:
    if "scontrol" not in replies or replies["scontrol"].problem:
        return None, []
    return answers.slurm_config(replies["scontrol"].out, _out(replies, "slurm nodes")), answers.sinfo(
        _out(replies, "sinfo")
    )


def _scheduler(replies: Mapping[str, _Answer], slurm: Slurm | None) -> str:
    """Return the scheduler that answers: programs alone, wrappers of other schedulers perhaps, prove nothing."""
    if slurm is not None:
        return "slurm"
    asked = {"flux uptime": "flux", "lsid": "lsf", "qstat": "pbs"}
    return next((name for key, name in asked.items() if key in replies and not replies[key].problem), "shell")


def _accelerators(replies: Mapping[str, _Answer]) -> list[Accelerator]:
    accelerators = answers.nvidia_smi(_out(replies, "nvidia-smi"))
    return accelerators + (answers.amd_smi(_out(replies, "amd-smi")) or answers.rocm_smi(_out(replies, "rocm-smi")))
