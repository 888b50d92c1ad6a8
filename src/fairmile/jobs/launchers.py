"""How a program is started inside a job, as lines of shell.

Every word that comes from a user, a request or a system file is quoted. Variables of the scheduler stand only where
they are written here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.jobs.request import Request
from fairmile.systems.model import System

_PYTHON = lazy_pattern(r"python(3(\.\d+)?)?")
# How a process learns whether it is the first of those that a launcher started.
_RANK = {
    "srun": "SLURM_PROCID",
    "mpirun": "OMPI_COMM_WORLD_RANK",
    "mpiexec": "PMI_RANK",
    "jsrun": "OMPI_COMM_WORLD_RANK",
    "flux": "FLUX_TASK_RANK",
}
_HOST_FILES = {"pbs": '"$PBS_NODEFILE"', "lsf": '"$LSB_DJOB_HOSTFILE"'}
_RAY_VARIABLES = ("MASTER_PORT", "RAY_HEAD", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
_RAY_PATIENCE_S = 300  # after which the program begins with the nodes that have joined
_SIGNALS_OF_TORCHRUN = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


@dataclass(frozen=True)
class Launch:
    """Lines that come before, and the one command that is the program: its process gets the job's signals."""

    prepare: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class _Cut:
    """How many processes a launcher starts on how many nodes, and what each of them gets."""

    nodes: int
    per_node: int
    cpus: int | None
    gpus: int  # of a node
    agents: bool = False  # one agent a node that starts the workers itself: nothing may be bound

    @property
    def all(self) -> int:
        return self.nodes * self.per_node


def make_launch(request: Request, system: System) -> Launch:
    """Return how the job's program is started on its nodes."""
    threads = _threads(request)
    cut = _Cut(request.nodes, request.tasks_per_node, request.cpus_per_task, request.gpus_per_node)
    words = _quoted(request.spec.wrap, request.spec.argv)
    if request.launch in ("torchrun", "deepspeed"):
        prepare, command = _torchrun(request, system)
        return Launch((*threads, *prepare), command)
    if request.launch == "plain":
        return Launch(threads, words)
    if request.launch == "ray":
        return Launch(tuple(_ray(request, system)), words)
    if request.beside is not None:
        return Launch(threads, _started_beside(cut, request, request.beside, system))
    if request.launch == "horovodrun":
        prepare, command = _horovodrun(request)
        return Launch((*threads, *prepare), f"{command} {words}")
    return Launch(threads, f"{_started(request.launch, cut, request, system)} {words}")


def _started_beside(cut: _Cut, request: Request, second: Request, system: System) -> str:
    """Return the command that starts both programs of a heterogeneous job as one MPI job."""
    second_cut = _Cut(second.nodes, second.tasks_per_node, second.cpus_per_task, second.gpus_per_node)
    own_threads = [f"OMP_NUM_THREADS={max(second.cpus_per_task or 1, 1)}"]
    wrap = request.spec.wrap
    return " ".join(
        [
            _started("srun", cut, request, system).replace("srun ", "srun --het-group=0 ", 1),
            _quoted(wrap, request.spec.argv),
            ":",
            _started("srun", second_cut, second, system).replace("srun ", "--het-group=1 ", 1),
            _quoted(["env", *own_threads], wrap, second.spec.argv),
        ]
    )


def _quoted(*words: Sequence[str]) -> str:
    return shlex.join([word for part in words for word in part])


def workers_per_node(request: Request) -> int:
    """Return how many processes of the program one node gets."""
    if request.launch in ("torchrun", "deepspeed") and request.tasks_per_node == 1:
        return max(request.gpus_per_node, 1)
    return 1 if request.launch == "plain" else request.tasks_per_node


def _threads(request: Request) -> tuple[str, ...]:
    if request.cpus_per_task is None or "OMP_NUM_THREADS" in request.spec.env:
        return ()
    cpus = request.cpus_per_task * request.tasks_per_node // workers_per_node(request)
    return (f"export OMP_NUM_THREADS={max(cpus, 1)}",)


def _started(starter: str, cut: _Cut, request: Request, system: System) -> str:
    """Return the words that start processes on the nodes, up to where the program stands."""
    rules = system.launch
    # The rules are those of the system's own launcher; another one that was asked for knows nothing of them.
    binding = shlex.join(shlex.split(rules.binding)) if rules.binding and starter == rules.launcher else ""
    words: list[str]
    if starter == "srun":
        words = list(_srun(cut, "" if cut.agents else rules.mpi))
    elif starter == "mpirun":
        words = list(_mpirun(cut, request, system.scheduler.dialect))
    elif starter == "mpiexec":
        words = ["mpiexec", "-n", str(cut.all), "--ppn", str(cut.per_node)]
    elif starter == "jsrun":
        words = list(_jsrun(cut))
    else:
        words = list(_flux(cut))
    return " ".join(filter(None, [*words, binding]))


def _srun(cut: _Cut, mpi: str) -> Iterator[str]:
    yield from ("srun", f"--nodes={cut.nodes}", f"--ntasks={cut.all}", f"--ntasks-per-node={cut.per_node}")
    if cut.cpus is not None:
        yield f"--cpus-per-task={cut.cpus}"  # since Slurm 22.05 srun does not take it from the job
    if mpi:
        yield f"--mpi={mpi}"
    yield "--kill-on-bad-exit=1"  # else the others wait for the one that died until the time is up


def _mpirun(cut: _Cut, request: Request, dialect: str) -> Iterator[str]:
    yield from ("mpirun", "-np", str(cut.all))
    if dialect == "shell":
        return
    yield from ("--map-by", f"ppr:{cut.per_node}:node")
    if cut.agents or (cut.cpus or 1) > 1:
        yield from ("--bind-to", "none")  # else all threads of a process share one core
    if dialect in _HOST_FILES:
        yield from ("--hostfile", _HOST_FILES[dialect])
        # Unlike srun, the daemons of these schedulers hand no variables over.
        names = ["PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "FAIRMILE_JOB_ID", "FAIRMILE_JOB_FOLDER"]
        names += [*_RAY_VARIABLES] if request.launch == "ray" else []
        for name in dict.fromkeys([*names, "FAIRMILE_NODES", *request.spec.env]):
            yield from ("-x", name)


def _jsrun(cut: _Cut) -> Iterator[str]:
    """Return jsrun with one resource set for each task, or for each node where its GPUs cannot be shared out."""
    cpus = cut.cpus or 1
    if cut.gpus % cut.per_node == 0:
        numbers = (cut.all, cut.per_node, 1, cpus, cut.gpus // cut.per_node)
    else:
        numbers = (cut.nodes, 1, cut.per_node, cpus * cut.per_node, cut.gpus)
    yield "jsrun"
    for option, number in zip(("-n", "-r", "-a", "-c", "-g"), numbers, strict=True):
        yield f"{option}{number}"
    yield "-brs" if cut.agents else f"-bpacked:{cpus}"


def _flux(cut: _Cut) -> Iterator[str]:
    yield from ("flux", "run", f"--nodes={cut.nodes}", f"--ntasks={cut.all}")
    if cut.cpus is not None:
        yield f"--cores-per-task={cut.cpus}"
    if cut.gpus and cut.gpus % cut.per_node == 0:
        yield f"--gpus-per-task={cut.gpus // cut.per_node}"
    if cut.agents:
        yield from ("-o", "cpu-affinity=off", "-o", "gpu-affinity=off")


def _torchrun(request: Request, system: System) -> tuple[list[str], str]:
    """Return torchrun on each node; several nodes meet at the first one, at a port that the job's id gives."""
    runner, program = _torch_words(request.spec.argv)
    workers = [f"--nnodes={request.nodes}", f"--nproc-per-node={workers_per_node(request)}"]
    prepare = list(_hand_signals_on(request))
    before = [*request.spec.wrap, *runner]
    starter = "mpirun" if request.starter == "none" else request.starter
    cpus = None if request.cpus_per_task is None else request.cpus_per_task * request.tasks_per_node
    start = _started(starter, _Cut(request.nodes, 1, cpus, request.gpus_per_node, agents=True), request, system)
    if request.nodes == 1:
        there = f"{start} " if starter == "jsrun" else ""  # elsewhere the script runs on the node itself
        return prepare, there + _quoted(before, ["--standalone", *workers], program)
    prepare += _meeting_point(request, system)
    prepare.append("# Each node knows by its number whether it is where they meet; torchrun would guess it by names.")
    meet = '--rdzv-backend=c10d --rdzv-id="$FAIRMILE_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'
    known = '"$1"' if len(before) == 1 else f'"${{@:1:{len(before)}}}"'
    first = f'exec {known} --rdzv-conf=is_host=$(({_RANK[starter]} == 0)) "${{@:{len(before) + 1}}}"'
    words = [start, f"bash -c {shlex.quote(first)} bash", f"{_quoted(before, workers)} {meet}", _quoted(program)]
    return prepare, " \\\n        ".join(words)


def _torch_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return torchrun, with the interpreter that the program names, and the program as torchrun takes it."""
    first, *rest = argv
    if _PYTHON.fullmatch(PurePosixPath(first).name):
        runner = ["torchrun"] if "/" not in first else [first, "-m", "torch.distributed.run"]
        is_module = len(rest) > 1 and rest[0] == "-m"
        if is_module or (rest and not rest[0].startswith("-")):
            return runner, rest
        return runner, ["--no-python", *argv]
    return ["torchrun"], list(argv) if first.endswith(".py") else ["--no-python", *argv]


def _meeting_point(request: Request, system: System) -> Iterator[str]:
    """Return the lines that set MASTER_ADDR and MASTER_PORT, unless the job sets them itself."""
    if "MASTER_ADDR" not in request.spec.env:
        if request.starter == "jsrun":  # there the script runs on a node that is listed but not one of the job's
            yield 'for MASTER_ADDR in $FAIRMILE_NODES; do [ "${MASTER_ADDR%%.*}" = "${HOSTNAME%%.*}" ] || break; done'
        else:
            yield "MASTER_ADDR=${FAIRMILE_NODES%% *}"
        suffix = system.launch.rendezvous_suffix
        if suffix:
            yield f'fairmile_fast=${{MASTER_ADDR%%.*}}{suffix}${{MASTER_ADDR#"${{MASTER_ADDR%%.*}}"}}'
            yield 'if getent hosts "$fairmile_fast" >/dev/null; then MASTER_ADDR=$fairmile_fast; fi'
        yield "export MASTER_ADDR"
    if "MASTER_PORT" not in request.spec.env:
        yield "fairmile_digits=000000000${FAIRMILE_JOB_ID//[^0-9]/}"
        index = " + ${FAIRMILE_ARRAY_INDEX:-0}" if request.array is not None else ""
        # Below the range from which Linux gives out ports by itself.
        yield f"export MASTER_PORT=$((10000 + (10#${{fairmile_digits: -9}}{index}) % 20000))"


def _ray(request: Request, system: System) -> Iterator[str]:
    """Yield the lines that start Ray: its head on the first node, where the program runs, workers on the others."""
    starter = "mpirun" if request.starter == "none" else request.starter
    cpus = None if request.cpus_per_task is None else request.cpus_per_task * request.tasks_per_node
    cut = _Cut(request.nodes, 1, cpus, request.gpus_per_node, agents=True)
    start = _started(starter, cut, request, system)
    if starter == "srun":  # the program may start steps of its own
        start = start.replace("srun ", "srun --overlap ", 1)
    given = [f"--num-cpus={cpus}"] if cpus is not None else []
    # Its own range of ports for workers begins where ours for meeting points does.
    given += ["--min-worker-port=0", "--max-worker-port=0"]
    words = _quoted(request.spec.wrap, ["ray", "start", "--block", "--disable-usage-stats", *given])
    yield from _meeting_point(request, system)
    yield 'RAY_HEAD=$(getent hosts "$MASTER_ADDR" | { read -r address _; echo "$address"; })'
    yield 'export RAY_HEAD=${RAY_HEAD:-$MASTER_ADDR} RAY_ADDRESS="${RAY_HEAD:-$MASTER_ADDR}:$MASTER_PORT"'
    yield "# Who else can reach these nodes must not start anything on this cluster."
    yield "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')"
    yield "# The others try until the head is there."
    meet = '--head --include-dashboard=false --node-ip-address="$RAY_HEAD" --port="$MASTER_PORT"'
    meet += ' --ray-client-server-port="$((MASTER_PORT + 1))"'  # its usual port is one of ours
    head = f'if (({_RANK[starter]} == 0)); then exec "$@" {meet}; fi'
    others = 'for ((try = 0; try < 60; try++)); do "$@" --address="$RAY_ADDRESS" && exit; sleep 1; done; exit 1'
    gpus = f" --num-gpus={request.gpus_per_node}"
    yield f"{start} bash -c {shlex.quote(f'{head}; {others}')} bash {words}{gpus} &"
    status = _quoted(request.spec.wrap, ["ray", "status"])
    count = f"$({status} 2>/dev/null | grep -c ' node_')"
    yield f'until [ "{count}" -ge {request.nodes} ] || ((SECONDS > {_RAY_PATIENCE_S})); do sleep 1; done'


def _hand_signals_on(request: Request) -> Iterator[str]:
    if request.signal is not None and f"SIG{request.signal.name}" not in _SIGNALS_OF_TORCHRUN:
        yield f"export PET_SIGNALS_TO_HANDLE={','.join((*_SIGNALS_OF_TORCHRUN, f'SIG{request.signal.name}'))}"


def _horovodrun(request: Request) -> tuple[list[str], str]:
    workers = request.tasks_per_node
    if request.nodes == 1:
        return [], f"horovodrun -np {workers} -H localhost:{workers}"
    prepare = [f'fairmile_hosts=$(printf "%s:{workers}," $FAIRMILE_NODES)']
    return prepare, f'horovodrun -np {request.tasks} -H "${{fairmile_hosts%,}}"'
