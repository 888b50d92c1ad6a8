"""From what a user says of a job to what is asked of the scheduler, by the rules of the system."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath

from fairmile.base.errors import Conflict, InvalidDocument, NotFound, Problem
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_duration
from fairmile.base.words import did_you_mean
from fairmile.jobs.request import Request
from fairmile.jobs.spec import JobSpec
from fairmile.systems.blocks import choose_sets, module_block
from fairmile.systems.model import Partition, SoftwareSet, System

DEFAULT_TIME_S = 3600.0
# What starts tasks where a system file names nothing.
_STARTERS = {"slurm": "srun", "lsf": "mpirun", "pbs": "mpiexec", "flux": "flux", "shell": "none"}
_STARTS_TASKS = frozenset({"srun", "mpirun", "mpiexec", "jsrun", "flux", "horovodrun"})
_ONE_AGENT_A_NODE = frozenset({"torchrun", "deepspeed"})
_AGENTS = _ONE_AGENT_A_NODE | {"ray"}
# These schedulers and launchers count cores; the others count hardware threads.
_COUNT_CORES = frozenset({"flux", "jsrun"})


def make_request(spec: JobSpec, system: System, *, check_account: bool = True) -> Request:
    """Return the job with every value decided, or raise InvalidDocument with everything that the system cannot give.

    What the job leaves open comes from the software set, then from the partition. `check_account` is False where a
    script is only shown: then a missing account is a note.
    """
    beside = _beside(spec, system, check_account=check_account)
    if beside is not None:
        spec = spec.model_copy(update={"launch": "srun"})
    partition, sets = _place(spec, system)
    choice = _Choice(spec, system, partition, sets)
    choice.decide()
    problems = list(_refusals(choice, check_account=check_account))
    if problems:
        raise InvalidDocument(problems)
    block = module_block(system, spec.software, partition) if spec.software else None
    lines = [*(block.text.splitlines() if block else ()), *_environment(spec, system, sets)]
    notes = [*(block.notes if block else ()), *_notes(choice), *choice.notes]
    values = choice.values
    if not spec.wrap:  # an environment that the job brings along goes before the container of a software set
        container = next((each.container for each in sets if each.container), ())
        spec = spec.model_copy(update={"wrap": container})
    return Request(
        spec=spec,
        system=system.name,
        nodes=values["nodes"],
        tasks_per_node=values["tasks_per_node"],
        cpus_per_task=values.get("cpus_per_task"),
        gpus_per_node=values["gpus_per_node"],
        time_s=choice.time_s,
        memory_gib=spec.resources.memory_gib,
        partition=partition,
        account=spec.resources.account,
        qos=choice.qos,
        exclusive=spec.resources.exclusive,
        launch=choice.launch,
        beside=beside,
        options=tuple(dict.fromkeys((*system.scheduler.options, *choice.here.options, *spec.resources.options))),
        gpu_option=system.scheduler.gpu_option,
        names_partition=choice.here.named,
        starter=choice.starter,
        lines=tuple(lines),
        notes=tuple(dict.fromkeys(notes)),
        origins=choice.origins,
    )


def _beside(spec: JobSpec, system: System, *, check_account: bool) -> Request | None:
    """Return what the second part of a heterogeneous job asks for; account and time are those of the first."""
    if spec.beside is None:
        return None
    if system.scheduler.dialect != "slurm":
        message = f"a heterogeneous job needs Slurm, {system.name} has {system.scheduler.dialect}"
        raise InvalidDocument([Problem(message, "beside", hint="give both programs the same resources")])
    if spec.launch not in (None, "srun"):
        message = f"a heterogeneous job is started by srun, not by {spec.launch}"
        raise InvalidDocument([Problem(message, "launch", hint="leave out --launch")])
    if spec.array is not None:
        raise InvalidDocument(
            [Problem("a heterogeneous job cannot be an array", "array", hint="submit its tasks one by one")]
        )
    first, own = spec.resources, spec.beside.resources
    inherited = {"account": own.account or first.account, "time_s": own.time_s or first.time_s}
    resources = own.model_copy(update=inherited)
    return make_request(
        JobSpec(argv=spec.beside.argv, resources=resources, launch="srun"), system, check_account=check_account
    )


def _place(spec: JobSpec, system: System) -> tuple[str, list[SoftwareSet]]:
    """Return the partition that the job goes to and the software sets that fit it; what is not there raises."""
    problems: list[Problem] = []
    asked = spec.resources.partition
    if asked and asked not in system.partitions:
        near = did_you_mean(asked, system.partitions)
        message = f"{system.name} has no partition {asked!r}" + (f"; {near}" if near else "")
        problems.append(Problem(message, "partition", hint=f"its partitions: {', '.join(system.partitions)}"))
        asked = ""
    sets: list[SoftwareSet] = []
    try:
        sets = choose_sets(system, spec.software, asked)
    except (NotFound, Conflict) as error:
        problems.append(Problem(error.message, "software", hint=error.hint or ""))
    wanted = [each.partition for each in sets if each.partition]
    fitting = [name for name in wanted if all(not each.partitions or name in each.partitions for each in sets)]
    first = next(iter(system.partitions)) if len(system.partitions) == 1 else ""
    place = asked or next(iter(fitting), "") or system.default_partition or first
    if not place and not problems:
        message = f"{system.name} has several partitions and no default"
        problems.append(Problem(message, "partition", hint=f"name one of {', '.join(system.partitions)}"))
    if problems:
        raise InvalidDocument(problems)
    # The default partition may be one where another set of the same framework stands.
    return place, choose_sets(system, spec.software, place)


@dataclass
class _Choice:
    """The values of a job as they are decided, each with where it comes from."""

    spec: JobSpec
    system: System
    partition: str
    sets: Sequence[SoftwareSet]
    values: dict[str, int] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)  # paths of values of the system's file that were taken
    time_s: float | None = None
    launch: str = ""
    starter: str = ""
    qos: str = ""

    @property
    def here(self) -> Partition:
        return self.system.partitions[self.partition]

    def decide(self) -> None:
        self._decide_place()
        self._take("nodes", self.spec.resources.nodes, "requested")
        self._take("nodes", self.here.min_nodes, "the minimum of the partition" * (self.here.min_nodes > 1))
        self._decide_gpus()
        self._decide_launch()
        self._decide_tasks()
        self._decide_cpus()
        self._decide_time()

    def _take(self, name: str, value: int | None, origin: str) -> None:
        """Keep the first value that is not None."""
        if value is not None and name not in self.values:
            self.values[name] = value
            self.origins[name] = origin or "default"

    def _from_sets(self, name: str) -> tuple[SoftwareSet | None, str]:
        """Return the first software set that says something of `name`, and how to call it."""
        for word, each in zip(self.spec.software, self.sets, strict=True):
            if getattr(each, name) is not None:
                return each, f"software set {word}"
        return None, ""

    def _decide_place(self) -> None:
        asked = self.spec.resources
        if asked.partition:
            self.origins["partition"] = "requested"
        elif any(each.partition == self.partition for each in self.sets):
            word = next(w for w, e in zip(self.spec.software, self.sets, strict=True) if e.partition == self.partition)
            self.origins["partition"] = f"software set {word}"
        else:
            self.origins["partition"] = f"default of {self.system.name}"
            self.used.append("default_partition")
        self.qos = asked.qos or self.here.qos
        given = {"account": asked.account, "qos": asked.qos, "memory_gib": asked.memory_gib}
        self.origins |= {name: "requested" for name, value in given.items() if value}
        if self.here.qos and not asked.qos:
            self.origins["qos"] = f"partition {self.partition}"

    def _decide_gpus(self) -> None:
        self._take("gpus_per_node", self.spec.resources.gpus_per_node, "requested")
        chosen, origin = self._from_sets("gpus_per_node")
        if chosen is not None:
            self._take("gpus_per_node", chosen.gpus_per_node, origin)
        gpu = self.here.gpu
        if gpu is None:
            self._take("gpus_per_node", 0, f"partition {self.partition} has none" if self.here.cores else "default")
        elif gpu.vendor == "graphcore":
            self._take("gpus_per_node", 0, f"{gpu.model}s are not requested as GPUs")
        elif "gpus_per_node" not in self.values:
            self.used.append(f"partitions.{self.partition}.gpu.count")
            self._take("gpus_per_node", gpu.count, f"all of partition {self.partition}")

    def _decide_launch(self) -> None:
        named = self.system.launch.launcher
        self.starter = named if named != "none" else _STARTERS.get(self.system.scheduler.dialect, "none")
        chosen, origin = self._from_sets("launch")
        if self.spec.launch is not None:
            self.launch, self.origins["launch"] = self.spec.launch, "requested"
        elif chosen is not None:
            self.launch, self.origins["launch"] = str(chosen.launch), origin
        else:
            several = self.values["nodes"] * (self.spec.resources.tasks_per_node or 1) > 1
            # A script of jsrun's systems runs on a node of its own, away from those of the job.
            if not several and self.starter != "jsrun":
                self.launch, self.origins["launch"] = "plain", "one task"
            else:
                self.launch = self.starter if self.starter != "none" else "mpirun"
                self.origins["launch"] = f"launcher of {self.system.name}" if named != "none" else "several tasks"
                if self.launch == "jsrun" and not several:
                    self._take("tasks_per_node", 1, "one task")
        if self.launch == "ray" and self.values["nodes"] == 1:
            self.launch = "plain"
            self.origins["launch"] += ": on one node a program starts Ray itself"

    def _decide_tasks(self) -> None:
        self._take("tasks_per_node", self.spec.resources.tasks_per_node, "requested")
        gpus = self.values["gpus_per_node"]
        chosen, origin = self._from_sets("tasks_per_node")
        if chosen is not None:
            # A set with one task for each of its GPUs means so for fewer of them, too.
            by_gpu = chosen.tasks_per_node == "gpus" or (
                chosen.tasks_per_node == chosen.gpus_per_node and self.origins["gpus_per_node"] == "requested"
            )
            tasks = max(gpus, 1) if by_gpu or not isinstance(chosen.tasks_per_node, int) else chosen.tasks_per_node
            self._take("tasks_per_node", tasks, f"{origin}: one for each GPU" if by_gpu else origin)
        if self.launch in _STARTS_TASKS and gpus:
            self._take("tasks_per_node", gpus, "one for each GPU")
        one = f"{self.launch} starts one agent a node" if self.launch in _AGENTS else "default"
        self._take("tasks_per_node", 1, one)

    def _decide_cpus(self) -> None:
        self._take("cpus_per_task", self.spec.resources.cpus_per_task, "requested")
        tasks, gpus, here = self.values["tasks_per_node"], self.values["gpus_per_node"], self.here
        chosen, origin = self._from_sets("cpus_per_task")
        wanted = chosen.cpus_per_task if chosen is not None else None
        if wanted is not None and (self.cpus is None or tasks * wanted <= self.cpus):
            self._take("cpus_per_task", wanted, origin)
        # A plain program has no use for a whole node, and many of them would each hold one: the scheduler decides.
        is_small = self.launch == "plain" and not gpus and not self.spec.software and not self.spec.resources.exclusive
        if here.cores is None or "cpus_per_task" in self.values or is_small:
            return
        self.used.append(f"partitions.{self.partition}.cores")
        share, part = here.cores, ""
        if here.gpu and 0 < gpus < here.gpu.count and not self.spec.resources.exclusive:
            share = max(here.cores * gpus // here.gpu.count, 1)
            part = f" × {gpus} of {here.gpu.count} GPUs"
        source = f"partition {self.partition}: {here.cores} cores{part}" + (f" / {tasks} tasks" if tasks > 1 else "")
        self._take("cpus_per_task", max(share // tasks, 1), source)

    @property
    def cpus(self) -> int | None:
        """How many CPUs, as the scheduler counts them, one node gives."""
        if self.here.cores is None:
            return None
        counts_cores = self.system.scheduler.dialect in _COUNT_CORES or self.starter in _COUNT_CORES
        return self.here.cores * (1 if counts_cores else self.here.threads_per_core)

    def _decide_time(self) -> None:
        asked, limit = self.spec.resources.time_s, self.here.max_time
        if asked is not None:
            self.time_s, self.origins["time_s"] = asked, "requested"
        elif limit is not None or self.system.scheduler.needs_time:
            self.time_s = min(DEFAULT_TIME_S, limit or DEFAULT_TIME_S)
            self.origins["time_s"] = "default"
            self.notes.append(f"No time limit given: the job gets {format_duration(self.time_s)}.")


def _refusals(choice: _Choice, *, check_account: bool) -> Iterator[Problem]:
    """Return everything that the system cannot give, each with its limit and what to do."""
    spec, rules = choice.spec, choice.system.scheduler
    if rules.needs_account and check_account and not spec.resources.account:
        message = f"jobs on {choice.system.name} need an account"
        yield Problem(message, "account", hint="give --account NAME")
    most = rules.most_array_tasks
    if spec.array is not None and most is not None and spec.array.count > most:
        message = f"{spec.array.count:,} tasks requested, {choice.system.name} allows {most:,} in one array at most"
        yield Problem(message, "array", hint="split the array")
    if choice.launch in _ONE_AGENT_A_NODE and PurePosixPath(spec.argv[0]).name in ("torchrun", "deepspeed"):
        message = f"the program is {spec.argv[0]!r}, which Fairmile starts anyway"
        yield Problem(message, "launch", hint=f"leave {spec.argv[0]!r} out, or launch plain")
    yield from _too_many_nodes(choice)
    yield from _too_much_of_a_node(choice)
    limit = choice.here.max_time
    if choice.time_s is not None and limit is not None and choice.time_s > limit:
        message = (
            f"{format_duration(choice.time_s)} requested, {_giver(choice)} allows {format_duration(limit)} at most"
        )
        yield _beyond(choice, "time", "max_time", message, lambda each: each.max_time or 0, choice.time_s)


def _too_many_nodes(choice: _Choice) -> Iterator[Problem]:
    nodes, here = choice.values["nodes"], choice.here
    if choice.system.scheduler.dialect == "shell" and nodes > 1:
        message = f"{nodes} nodes requested, {choice.system.name} is a single machine"
        yield Problem(message, "nodes", hint="use 1 node, or a system with a scheduler")
        return
    for path, most in (("max_nodes", here.max_nodes), ("nodes", here.nodes)):
        if most is not None and nodes > most:
            message = f"{_count(nodes, 'node')} requested, {_giver(choice)} allows {most:,} at most"
            yield _beyond(choice, "nodes", path, message, lambda each: each.max_nodes or each.nodes or 0, nodes)
            return
    if nodes < here.min_nodes:
        message = f"{_count(nodes, 'node')} requested, {_giver(choice)} allows {here.min_nodes:,} at least"
        fitting = [name for name, each in choice.system.partitions.items() if each.min_nodes <= nodes]
        yield Problem(message, "nodes", hint=_instead(fitting, "smaller jobs", f"request {here.min_nodes} or more"))


def _too_much_of_a_node(choice: _Choice) -> Iterator[Problem]:
    here, gpus = choice.here, choice.values["gpus_per_node"]
    if here.gpu is None and gpus and here.cores is not None:
        have = [name for name, each in choice.system.partitions.items() if each.gpu]
        message = f"{_count(gpus, 'GPU')} requested, {_giver(choice)} has none"
        yield Problem(message, "gpus_per_node", hint=_instead(have, "GPUs", "request none"))
    if here.gpu is not None and gpus > here.gpu.count:
        message = f"{_count(gpus, 'GPU')} requested, a node of {_giver(choice)} has {here.gpu.count}"
        yield _beyond(choice, "gpus_per_node", "gpu", message, _gpus, gpus, "request more nodes")
    tasks, cpus, room = choice.values["tasks_per_node"], choice.values.get("cpus_per_task", 1), choice.cpus
    if room is not None and tasks * cpus > room:
        per_core = room // (here.cores or 1)
        room_text = f"{room} ({here.cores} cores × {per_core} threads)" if per_core > 1 else f"{room} cores"
        message = f"{tasks} × {cpus} = {tasks * cpus} CPUs requested, a node of {_giver(choice)} has {room_text}"
        yield _beyond(choice, "cpus_per_task", "cores", message, _threads, tasks * cpus)
    memory = choice.spec.resources.memory_gib
    if memory is not None and here.memory_gib is not None and memory > here.memory_gib:
        message = f"{memory:g} GiB requested, a node of {_giver(choice)} has {here.memory_gib:g} GiB"
        yield _beyond(choice, "memory_gib", "memory_gib", message, lambda each: each.memory_gib or 0, memory)


def _gpus(partition: Partition) -> int:
    return partition.gpu.count if partition.gpu else 0


def _threads(partition: Partition) -> int:
    return (partition.cores or 0) * partition.threads_per_core


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def _giver(choice: _Choice) -> str:
    return f"partition {choice.partition} of {choice.system.name}"


def _instead(names: Sequence[str], what: str, otherwise: str) -> str:
    return f"{otherwise}, or use a partition with {what}: {', '.join(names)}" if names else otherwise


def _beyond(
    choice: _Choice,
    field: str,
    path: str,
    message: str,
    given: Callable[[Partition], float],
    wanted: float,
    otherwise: str = "request less",
) -> Problem:
    """Return the problem of a limit that is passed, with the partitions that give as much."""
    fitting = [name for name, each in choice.system.partitions.items() if given(each) >= wanted]
    hint = f"{otherwise}, or use partition {' or '.join(fitting)}" if fitting else otherwise
    if choice.system.is_unverified(f"partitions.{choice.partition}.{path}"):
        hint += "; this limit is unverified: correct it in a system file of your own"
    return Problem(message, field, hint=hint)


def _environment(spec: JobSpec, system: System, sets: Sequence[SoftwareSet]) -> Iterator[str]:
    """Return the lines after the modules: variables of the system, of the software, the preamble, those of the job."""
    for variables in (system.launch.environment, *(each.environment for each in sets)):
        yield from _exports(variables)
    yield from spec.preamble
    yield from _exports(spec.env)


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _notes(choice: _Choice) -> Iterator[str]:
    system, spec = choice.system, choice.spec
    if system.retired and not spec.software:  # with software the module block says so
        yield f"{system.name} was retired on {system.retired}."
    if system.scheduler.needs_account and not spec.resources.account:
        yield f"{system.name} requires an account: add one before you submit."
    if choice.here.note:
        yield f"Partition {choice.partition}: {choice.here.note}"
    doubts = [path for path in choice.used if system.is_unverified(path)]
    if doubts:
        yield f"The job uses unverified values of {system.name}: {', '.join(doubts)}."
    workers, cpus = max(choice.values["gpus_per_node"], 1), choice.values.get("cpus_per_task", 0)
    if choice.launch in _ONE_AGENT_A_NODE and choice.values["tasks_per_node"] == 1 and 0 < cpus < workers:
        yield f"The {workers} workers of a node share {cpus} CPUs; raise it with --cpus-per-task."
    if choice.launch == "deepspeed":
        yield "DeepSpeed is started the way torchrun starts programs; its script finds its rank in the environment."
    if spec.signal is None:
        return
    if system.scheduler.dialect in ("pbs", "shell"):
        who = "PBS" if system.scheduler.dialect == "pbs" else "A plain shell"
        yield f"{who} sends no signal before the limit: {spec.signal.name} is not sent."
    elif choice.launch in _ONE_AGENT_A_NODE and spec.signal.name.startswith("USR"):
        yield (
            f"torchrun passes {spec.signal.name} on to its workers where it has the option --signals-to-handle, and "
            "ends them 30 s later; an older one ends at once: TERM reaches the workers everywhere."
        )
