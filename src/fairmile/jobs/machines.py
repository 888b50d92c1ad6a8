"""A system and the way to it: the modules, scripts and commands of a machine under one name."""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.commands import Here, Runner, Ssh
from fairmile.base.errors import FairmileError, NotFound, SystemFailure, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.nouns import Noun
from fairmile.base.paths import AnyPath, as_paths
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.units import parse_time
from fairmile.base.words import did_you_mean
from fairmile.jobs.folders import JobFolders, LocalJobFolders, RemoteJobFolders
from fairmile.jobs.schedulers import SCHEDULERS, Scheduler
from fairmile.jobs.script import Script, make_script
from fairmile.jobs.spec import JobSpec
from fairmile.systems.blocks import Block, Evaluation, evaluate, module_block
from fairmile.systems.model import Partition, System
from fairmile.systems.registry import (
    BUILT_IN,
    AddedSystem,
    FileChecks,
    RemovedSystem,
    SystemList,
    Systems,
    add_system,
    check_files,
    remove_system,
)
from fairmile.systems.script_files import read_script, rewrite_script
from fairmile.systems.system_details import SystemDetails

if TYPE_CHECKING:
    from fairmile.jobs.accounting import SystemUsage
    from fairmile.systems.change_report import ChangeReport
    from fairmile.systems.probing import SystemDraft
    from fairmile.systems.survey import Survey

# Whoever submits jobs needs none of this.
_PROBING: Registry[Callable[..., Any]] = Registry(
    "way to probe a machine",
    {
        "draft": Plugin("fairmile.systems.probing:probe_machine"),
        "survey": Plugin("fairmile.systems.probing:survey_system"),
        "report": Plugin("fairmile.systems.probing:report_changes"),
    },
)
_ACCOUNTING: Registry[Callable[..., Any]] = Registry(
    "way to read accounting", {"usage": Plugin("fairmile.jobs.accounting:read_usage")}
)

_REMOTE_FOLDER = ".fairmile/jobs"
_REACH_FIELDS = ("host", "folder", "account", "partition", "ssh_config", "file")
_ADDRESS = "ssh://"
_HERE = "here"  # as the host of a system: this machine
# How centres tell programs on which of their machines they are.
_SYSTEM_VARIABLES = ("SYSTEMNAME", "LMOD_SYSTEM_NAME", "NERSC_HOST", "BSC_MACHINE", "SLURM_CLUSTER_NAME")
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Reach:
    """How a user works on a system: where ssh finds it, which folder jobs go to, which account pays.

    `file` describes the system where no catalog of systems does. With `is_here` the user says that it is this machine.
    """

    host: str = ""
    folder: str = ""
    account: str = ""
    partition: str = ""
    ssh_config: str = ""
    file: str = ""
    is_here: bool = False

    @classmethod
    def parse(cls, name: str, given: Any, origin: str = "") -> Reach:
        """Read the setting `systems.NAME`, which stands at `origin`: a host, or a mapping of fields."""
        if isinstance(given, str):
            given = {"host": given}
        setting = f"{origin} systems.{name}".strip()
        if not isinstance(given, Mapping):
            raise UsageError(f"{setting}: expected a host or fields such as host, folder and account")
        for field, value in given.items():
            if field not in _REACH_FIELDS:
                near = did_you_mean(str(field), _REACH_FIELDS)
                raise UsageError(f"{setting}: no field named {field!r}" + (f"; {near}" if near else ""))
            if not isinstance(value, str):
                raise UsageError(f"{setting}.{field}: expected a text, found {value!r}")
            if not value.isprintable():
                raise UsageError(f"{setting}.{field}: {value!r} holds a control character")
        if given.get("host") == _HERE:
            return cls(**{**given, "host": ""}, is_here=True)
        return cls(**given)


@dataclass(frozen=True)
class Machine:
    """A system, and how its commands are run and its files reached."""

    system: System
    scheduler: Scheduler
    runner: Runner
    place: JobFolders
    reach: Reach = Reach()
    is_shipped: bool = False  # its description came along, so that nobody said that this machine is meant

    def refuse_elsewhere(self) -> None:
        """Raise SystemFailure where jobs would go to the scheduler of a machine that is another one."""
        if why := self.elsewhere:
            name = self.system.name
            raise SystemFailure(
                why,
                hint=f"name its ssh host in the settings, systems: {{{name}: {{host: USER@HOST}}}}, or "
                f"host: {_HERE} if this machine is {name}",
            )

    @cached_property
    def elsewhere(self) -> str:
        """Why no job can be submitted: this machine is another one, and no host is known. "" where it can."""
        if self.reach.host or self.reach.is_here or not self.is_shipped or not self.has_scheduler:
            return ""
        names = tuple(each.lower() for each in (self.system.name, *self.system.aliases))
        signs = [*re.split(r"[.-]", socket.gethostname()), *(os.environ.get(each, "") for each in _SYSTEM_VARIABLES)]
        if any(each.lower().startswith(names) for each in signs) or _cluster_name(self).startswith(names):
            return ""
        return f"this machine is not {self.system.name}, and the settings name no host for it"

    @property
    def has_scheduler(self) -> bool:
        """Tell whether somebody queues jobs here and knows why they ended; plain processes have nobody."""
        return self.scheduler.name != "shell"

    def limit_s(self, partition: str = "") -> float | None:
        """Return the longest time that a partition, or the default one, gives; None where nobody knows."""
        limits = self.system.partitions.get(partition or self.reach.partition or self.system.default_partition)
        return limits.max_time if limits is not None else None

    def modules(self, *software: str, partition: str = "") -> Block:
        """Return the module block of some software."""
        return module_block(self.system, software, partition)

    def script(self, spec: JobSpec, *, output: Path | None = None) -> Script:
        """Return the batch script of a job, with the settings' account and partition; write it to `output` if given."""
        script = make_script(self.filled(spec), self.system)
        if output is None:
            return script
        write_atomic(output, script.text)
        return replace(script, file=str(output))

    def filled(self, spec: JobSpec) -> JobSpec:
        """Return the job with what the settings say for this system, where it says nothing itself."""
        resources = spec.resources
        changes = {
            name: value
            for name in ("account", "partition")
            if (value := getattr(self.reach, name)) and not getattr(resources, name)
        }
        return spec.model_copy(update={"resources": resources.model_copy(update=changes)}) if changes else spec


def _cluster_name(machine: Machine) -> str:
    """Return what Slurm calls the cluster that its commands reach, "" where there is none."""
    if machine.scheduler.name != "slurm":
        return ""
    try:
        done = machine.runner.run(["scontrol", "show", "config"], timeout_s=_PATIENCE_S, check=False)
    except FairmileError:
        return ""
    name = re.search(r"^ClusterName\s*=\s*(\S+)", done.stdout, re.MULTILINE)
    return name[1].lower() if name else ""


_INTERNAL = "own_folder"  # for other parts of Fairmile


class Machines(Noun, internal=_INTERNAL, package="fairmile.systems"):
    """All systems by name; `ssh://[USER@]HOST` names any machine without a scheduler.

    The last of `folders` holds the user's own systems.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        root: Path,
        *,
        reaches: Mapping[str, Any] | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        self._reaches = {
            name: Reach.parse(name, given, (origins or {}).get(name, "")) for name, given in (reaches or {}).items()
        }
        self._folders = list(folders)
        self.registry = self._read_registry()
        self._root = root
        self._known: dict[str, Machine] = {}

    def __getitem__(self, name: str) -> Machine:
        if name not in self._known:
            self._known[name] = self._machine(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.registry.names())

    def __contains__(self, name: object) -> bool:
        return name in self.registry

    def _read_registry(self) -> Systems:
        files = {name: Path(reach.file).expanduser() for name, reach in self._reaches.items() if reach.file}
        return Systems(self._folders, files)

    @property
    def own_folder(self) -> Path:
        """The folder of the user's own systems."""
        if not self._folders:
            raise UsageError("no folder of systems is set up")
        return self._folders[-1]

    def names(self) -> list[str]:
        """Return the names of all systems."""
        return self.registry.names()

    def ls(self) -> SystemList:
        """Return a summary of each system, including those whose file cannot be used."""
        return self.registry.rows()

    def show(self, name: str) -> SystemDetails:
        """Return a system in full, with the source of its description."""
        return self.registry.show(name)

    def check(self, files: AnyPath | Sequence[AnyPath]) -> FileChecks:
        """Check files that describe systems; nothing is changed."""
        return check_files(as_paths(files))

    def add(self, file: AnyPath, *, replace: bool = False, dry_run: bool = False) -> AddedSystem:
        """Copy a valid system file into the user's own folder of systems."""
        added = add_system(Path(file), self.own_folder, replace=replace, dry_run=dry_run)
        self._forget()
        return added

    def rm(self, name: str, *, dry_run: bool = False) -> RemovedSystem:
        """Remove one of the user's own systems, given by name or alias."""
        removed = remove_system(name, self.own_folder, self.registry, dry_run=dry_run)
        self._forget()
        return removed

    def _forget(self) -> None:
        """Read descriptions again when they are next asked for."""
        self.registry = self._read_registry()
        self._known.clear()

    def probe(
        self,
        *,
        over: str = "",
        name: str = "",
        output: Path | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> SystemDraft:
        """Probe this machine, or the host `over` by ssh, and draft its system file; write it to `output` if given.

        `name` is that of the system in the draft. `on_step` gets each thing that is looked at.
        """
        draft: SystemDraft = _PROBING["draft"](over=over, name=name, output=output, on_step=on_step)
        return draft

    def survey(
        self,
        system: str,
        *,
        over: str = "",
        name: str = "",
        output: Path | None = None,
        card: Path | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> Survey:
        """Probe a machine as `probe` does, and compare it with a known system; `card` gets the result as JSON-LD."""
        options = {"over": over, "name": name, "output": output, "card": card, "on_step": on_step}
        survey: Survey = _PROBING["survey"](self.registry[system], **options)
        return survey

    def report(
        self,
        system: str,
        *,
        over: str = "",
        output: Path | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> ChangeReport:
        """Probe a machine and report what is gone, changed and new beside the file of a system, as text for an issue.

        `over` is an ssh host; `output` gets the text.
        """
        report: ChangeReport = _PROBING["report"](self.registry[system], over=over, output=output, on_step=on_step)
        return report

    def usage(self, system: str, *, since: str | float = "30d", by: str = "project") -> SystemUsage:
        """Return what all users' jobs took that ended since then: hours, efficiency, memory, energy, failures.

        `by` is project, user or partition. Read from the scheduler's accounting, as far as it shows jobs of others.
        """
        machine = self[system]
        machine.refuse_elsewhere()
        since_s = parse_time(since)
        usage: SystemUsage = _ACCOUNTING["usage"](machine.runner, machine.scheduler.name, system, since_s, by)
        return usage

    def partition(self, name: str) -> Partition:
        """Return the partition SYSTEM:PARTITION; for SYSTEM alone, the one with GPUs or the default."""
        wanted, _, part = name.partition(":")
        system = self.registry[wanted]
        known = system.partitions
        if part and part not in known:
            raise NotFound(f"{wanted} has no partition {part!r}", hint=f"there are {', '.join(known) or 'none'}")
        usual = system.default_partition or next(iter(known))
        with_gpus = [each for each in (usual, *known) if known[each].gpu is not None]
        return known[part or (with_gpus or [usual])[0]]

    def evaluate(
        self,
        text: str,
        *,
        to: str = "",
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        partition: str = "",
        file: str = "",
    ) -> Evaluation:
        """Update the module blocks of a script, move them to another system, add or remove software."""
        return evaluate(text, self.registry, to=to, add=add, remove=remove, partition=partition, file=file)

    def evaluate_file(
        self,
        script: AnyPath,
        *,
        to: str = "",
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        partition: str = "",
        write: bool = False,
    ) -> Evaluation:
        """Update the module blocks of a script file as `evaluate` does; change the file only with `write`."""
        script = Path(script)
        text = read_script(script)
        evaluation = self.evaluate(text, to=to, add=add, remove=remove, partition=partition, file=str(script))
        if not write or not evaluation.changed:
            return evaluation
        rewrite_script(script, evaluation.text)
        return replace(evaluation, written=True)

    def _machine(self, name: str) -> Machine:
        if name.startswith(_ADDRESS):
            host, _, folder = name.removeprefix(_ADDRESS).partition("/")
            if ":" in host:  # ssh takes a port in an address only
                host = f"{_ADDRESS}{host}"
            if not host:
                raise UsageError(f"{name!r} names no machine", hint="write ssh://HOST or ssh://USER@HOST")
            system = self.registry["laptop"]
            reach = Reach(host=host, folder=f"/{folder}" if folder else "")
        else:
            system = self.registry[name]
            reach = self._reaches.get(name) or self._reaches.get(system.name) or Reach()
        scheduler = SCHEDULERS[system.scheduler.dialect]()
        if not reach.host:
            place = LocalJobFolders(Path(reach.folder or self._root))
            return Machine(system, scheduler, Here(), place, reach, self.registry.origin(name) == BUILT_IN)
        config = Path(reach.ssh_config).expanduser() if reach.ssh_config else None
        runner = Ssh(reach.host, config=config, shared=connections_folder())
        return Machine(system, scheduler, runner, RemoteJobFolders(reach.folder or _REMOTE_FOLDER, runner), reach)


def connections_folder() -> Path:
    """Return a folder of the user alone, with a path short enough for sockets, where connections are shared."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(base if base and len(base) < 40 else tempfile.gettempdir(), f"fairmile-ssh-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise SystemFailure(f"cannot keep ssh connections below {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SystemFailure(
            f"{folder} must be a folder that only you can access", hint="remove it, or set XDG_RUNTIME_DIR"
        )
    return folder
