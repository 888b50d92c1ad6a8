"""The directive lines of a batch script, one function for each scheduler's dialect.

A job that has a folder of its own (`files.folder`) writes its two logs there. Slurm does so itself, since it appends
after a requeue and knows the number of an array task; with LSF, PBS and Flux the script redirects its own output, and
what the scheduler has to say goes to `scheduler.log` beside them. Without a folder, the logs are named after the
job and land where it was submitted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.jobs.request import JobFiles, Request

SCHEDULER_LOG = "scheduler.log"
WRITES_LOGS = frozenset({"slurm", "shell"})  # whose header sees to `files.stdout` and `files.stderr`

_PLAIN = lazy_pattern(r"[A-Za-z0-9_./:,=@%+^{}\[\]-]*")
_WORD = lazy_pattern(r"[A-Za-z0-9_.:+@-]+")
_CONDITIONS = {
    "slurm": {"ok": "afterok", "failed": "afternotok", "any": "afterany"},
    "pbs": {"ok": "afterok", "failed": "afternotok", "any": "afterany"},
    "flux": {"ok": "afterok", "failed": "afternotok", "any": "afterany"},
    "lsf": {"ok": "done", "failed": "exit", "any": "ended"},
}


def slurm_directives(request: Request, files: JobFiles) -> list[str]:
    """Return the `#SBATCH` lines; the key stands in the job's comment."""
    lines = [f"#SBATCH {option}" for option in (*_slurm_asked(request, files), *request.options)]
    if request.beside is not None:
        second = (*_slurm_place(request.beside), *request.beside.options)
        lines += ["#SBATCH hetjob", *(f"#SBATCH {option}" for option in second)]
    return lines


def _slurm_asked(request: Request, files: JobFiles) -> Iterator[str]:
    yield f"--job-name={request.spec.name}"
    yield from _slurm_place(request)
    if request.array is not None:
        yield f"--array=0-{request.array.count - 1}" + _at_once(request)
    if request.signal is not None:
        # `B:` sends it to the script alone, which passes it on: without it only programs that srun started get it.
        yield f"--signal=B:{request.signal.name}@{math.ceil(request.signal.before_s)}"
    yield "--requeue" if request.spec.requeue else "--no-requeue"
    yield "--open-mode=append"
    if files.folder:
        folder = files.folder.rstrip("/").replace("%", "%%")
        for option, name in (("output", files.stdout), ("error", files.stderr)):
            yield f"--{option}={_quoted(folder + '/' + name.replace('%', '%%').replace('{index}', '%a'))}"
    else:
        label = "%x-%A_%a" if request.array is not None else "%x-%j"
        yield from (f"--output={label}.out", f"--error={label}.err")
    yield from _given("--comment={}", checked_key(files))
    if files.after:
        parts = (f"{word}:{':'.join(ids)}" for word, ids in _dependencies("slurm", files))
        yield f"--dependency={','.join(parts)}"
        yield "--kill-on-invalid-dep=yes"  # else it waits for ever


def _slurm_place(request: Request) -> Iterator[str]:
    """Yield what a job asks for, of which a heterogeneous one has several."""
    asked = request.spec.resources
    yield from _given("--account={}", request.account)
    yield from _given("--partition={}", request.partition if request.names_partition else "")
    yield from _given("--qos={}", request.qos)
    yield f"--nodes={request.nodes}"
    yield f"--ntasks-per-node={request.tasks_per_node}"
    yield from _given("--cpus-per-task={}", request.cpus_per_task)
    if request.gpus_per_node:
        if request.gpu_option in ("gpus-per-node", "both"):
            yield f"--gpus-per-node={request.gpus_per_node}"
        if request.gpu_option in ("gres", "both"):
            yield f"--gres=gpu:{request.gpus_per_node}"
    if request.memory_gib is not None:
        yield f"--mem={_mebibytes(request.memory_gib)}M"
    if request.time_s is not None:
        yield f"--time={_slurm_time(request.time_s)}"
    yield from _given("--constraint={}", _quoted(asked.constraint))
    yield from _given("--reservation={}", asked.reservation)
    if request.exclusive:
        yield "--exclusive"


def _slurm_time(seconds: float) -> str:
    days, rest = divmod(math.ceil(seconds), 86400)
    return (f"{days}-" if days else "") + _clock(rest)


def lsf_directives(request: Request, files: JobFiles) -> list[str]:
    """Return the `#BSUB` lines; the key stands in the job's description.

    LSF counts array tasks from 1.
    """
    return [f"#BSUB {option}" for option in (*_lsf_asked(request, files), *request.options)]


def _lsf_asked(request: Request, files: JobFiles) -> Iterator[str]:
    asked = request.spec.resources
    name = request.spec.name
    yield f"-J {name}" if request.array is None else f'-J "{name}[1-{request.array.count}]{_at_once(request)}"'
    yield from _given("-P {}", request.account)
    yield from _given("-q {}", request.partition if request.names_partition else "")
    yield from _given("-sla {}", request.qos)
    yield from _lsf_resources(request)
    if request.time_s is not None:
        minutes = math.ceil(request.time_s / 60)
        yield f"-W {minutes // 60}:{minutes % 60:02}"
    yield from _given('-R "select[{}]"', asked.constraint)
    yield from _given("-U {}", asked.reservation)
    if request.exclusive:
        yield "-x"
    if request.signal is not None:
        yield f"-wa {request.signal.name} -wt {math.ceil(request.signal.before_s / 60)}"
    yield "-r" if request.spec.requeue else "-rn"
    if files.folder:
        log = _quoted(f"{files.folder.rstrip('/').replace('%', '%%')}/{SCHEDULER_LOG}")
        yield from (f"-o {log}", f"-e {log}")
    else:
        label = f"{name}-%J" + ("_%I" if request.array is not None else "")
        yield from (f"-o {label}.out", f"-e {label}.err")
    yield from _given("-Jd {}", checked_key(files))
    if files.after:
        tests = [f"{word}({job})" for word, ids in _dependencies("lsf", files) for job in ids]
        yield f'-w "{" && ".join(tests)}" -ti'  # which ends it where that can no longer be; else it waits for ever


def _lsf_resources(request: Request) -> Iterator[str]:
    if request.starter == "jsrun":  # such systems give whole nodes; jsrun cuts them up
        yield f"-nnodes {request.nodes}"
        return
    yield f"-n {request.tasks}"
    wanted = [f"span[ptile={request.tasks_per_node}]"]
    if request.cpus_per_task is not None:
        wanted.append(f"affinity[core({request.cpus_per_task})]")
    if request.memory_gib is not None:
        wanted.append(f"rusage[mem={_mebibytes(request.memory_gib)}MB]")
    yield f'-R "{" ".join(wanted)}"'
    if request.gpus_per_node:
        yield f'-gpu "num={request.gpus_per_node}:mode=shared"'


def pbs_directives(request: Request, files: JobFiles) -> list[str]:
    """Return the `#PBS` lines; the key stands in the job's variable FAIRMILE_KEY."""
    return [f"#PBS {option}" for option in (*_pbs_asked(request, files), *request.options)]


def _pbs_asked(request: Request, files: JobFiles) -> Iterator[str]:
    asked = request.spec.resources
    yield f"-N {request.spec.name}"
    yield from _given("-A {}", request.account)
    queue = asked.reservation or (request.partition if request.names_partition else "")  # a reservation is a queue
    yield from _given("-q {}", queue)
    yield from _given("-l qos={}", request.qos)
    yield f"-l select={_pbs_chunk(request)}"
    if not any("place=" in option for option in request.options):
        yield "-l place=scatter" + (":excl" if request.exclusive else "")
    if request.time_s is not None:
        yield f"-l walltime={_clock(math.ceil(request.time_s))}"
    if request.array is not None:
        last = request.array.count - 1
        # A range needs two ends; with this step its second one is left out.
        yield f"-J {f'0-{last}' if last else '0-1:2'}" + _at_once(request)
    yield "-r y" if request.spec.requeue else "-r n"
    if files.folder:
        number = ".^array_index^" if request.array is not None else ""
        log = f"{files.folder.rstrip('/')}/{SCHEDULER_LOG.replace('.', f'{number}.')}"
        yield from (f"-o {_quoted(log)}", "-j oe")
    yield from _given("-v FAIRMILE_KEY={}", checked_key(files))
    if files.after:
        parts = (f"{word}:{':'.join(ids)}" for word, ids in _dependencies("pbs", files))
        yield f"-W depend={','.join(parts)}"


def _pbs_chunk(request: Request) -> str:
    chunk = [str(request.nodes)]
    if request.cpus_per_task is not None:
        chunk.append(f"ncpus={request.tasks_per_node * request.cpus_per_task}")
    chunk.append(f"mpiprocs={request.tasks_per_node}")
    if request.cpus_per_task is not None:
        chunk.append(f"ompthreads={request.cpus_per_task}")
    if request.gpus_per_node and request.gpu_option != "none":
        chunk.append(f"ngpus={request.gpus_per_node}")
    if request.memory_gib is not None:
        chunk.append(f"mem={_mebibytes(request.memory_gib)}mb")
    if request.spec.resources.constraint:
        chunk.append(request.spec.resources.constraint)
    return ":".join(chunk)


def flux_directives(request: Request, files: JobFiles) -> list[str]:
    """Return the `# flux:` lines, without an array, which batch scripts cannot be there, and without a key."""
    return [f"# flux: {option}" for option in (*_flux_asked(request, files), *request.options)]


def _flux_asked(request: Request, files: JobFiles) -> Iterator[str]:
    asked = request.spec.resources
    yield f"--job-name={request.spec.name}"
    yield from _given("--bank={}", request.account)
    yield from _given("--queue={}", request.partition if request.names_partition else "")
    # One slot is the share of one node, however many tasks are started in it.
    yield from (f"--nodes={request.nodes}", f"--nslots={request.nodes}")
    if request.cpus_per_task is not None:
        yield f"--cores-per-slot={request.tasks_per_node * request.cpus_per_task}"
    if request.gpus_per_node:
        yield f"--gpus-per-slot={request.gpus_per_node}"
    if request.exclusive:
        yield "--exclusive"
    if request.time_s is not None:
        yield f"--time-limit={math.ceil(request.time_s)}s"
    yield from _given("--requires={}", _quoted(asked.constraint))
    if request.signal is not None:
        yield f"--signal={request.signal.name}@{math.ceil(request.signal.before_s)}s"
    log = f"{files.folder.rstrip('/')}/{SCHEDULER_LOG}" if files.folder else f"{request.spec.name}-{{{{id}}}}.out"
    yield f"--output={_quoted(log)}"
    for word, ids in _dependencies("flux", files):
        yield from (f"--dependency={word}:{job}" for job in ids)


def _given(pattern: str, value: object) -> Iterable[str]:
    return [pattern.format(value)] if value not in (None, "") else []


def _at_once(request: Request) -> str:
    return f"%{request.array.at_once}" if request.array is not None and request.array.at_once else ""


def _mebibytes(gibibytes: float) -> int:
    return math.ceil(gibibytes * 1024)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _quoted(word: str) -> str:
    """Return a word as directive lines take it; the schedulers know double quotes there, but no line breaks."""
    if not word.isprintable() or '"' in word or "\\" in word:
        raise UsageError(
            f"{word!r} is not allowed in the header of a batch script",
            hint="choose a folder without quotation marks, backslashes and control characters in its name",
        )
    return word if _PLAIN.fullmatch(word) else f'"{word}"'


def checked_key(files: JobFiles) -> str:
    """Return the key of a job, which a scheduler keeps as one word; empty where it has none."""
    if files.key and not _WORD.fullmatch(files.key):
        raise UsageError(f"{files.key!r} is not a key for a job", hint="use letters, digits and . _ : + @ -")
    return files.key


def _dependencies(dialect: str, files: JobFiles) -> list[tuple[str, list[str]]]:
    """Return each condition in the scheduler's word with the jobs that it is about."""
    jobs: dict[str, list[str]] = {}
    for job, condition in files.after:
        if not re.fullmatch(r"[A-Za-z0-9_.\[\]-]+|ƒ[A-Za-z0-9]+", job):
            raise UsageError(f"{job!r} is not an id of a job")
        jobs.setdefault(_CONDITIONS[dialect][condition], []).append(job)
    return list(jobs.items())
