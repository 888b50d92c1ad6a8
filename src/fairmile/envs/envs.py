"""Every environment of one root: planned, built once for everyone, listed, used, removed."""

from __future__ import annotations

import os
import platform
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from fairmile.base.commands import Result as CommandResult
from fairmile.base.commands import Runner
from fairmile.base.cores import usable_cores
from fairmile.base.digest import canonical_json, sha256_hex
from fairmile.base.errors import Conflict, DiskFailure, NotFound, SystemFailure, UsageError
from fairmile.base.files import Holder, Lock, write_atomic, write_failure
from fairmile.base.nouns import Noun
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.words import did_you_mean
from fairmile.envs.building import (
    REMOVAL_S,
    Building,
    Design,
    aside_of,
    end_leftovers,
    make_shared,
    remove_tree,
    set_aside,
)
from fairmile.envs.containers import Packaged
from fairmile.envs.exports import export
from fairmile.envs.inputs import at_home, check_document
from fairmile.envs.kernel import InstalledKernel, check_kernel, install_kernel, kernels_folder, kernelspec
from fairmile.envs.modules import ModulesStep
from fairmile.envs.records import (
    LEASE_S,
    Environment,
    EnvironmentDetails,
    EnvironmentDict,
    EnvironmentList,
    State,
    builder,
    builder_process,
    is_here,
    lock_file,
    read_all,
    read_environment,
)
from fairmile.envs.sealing import RepairedEnvironment, VerifiedEnvironment, verify
from fairmile.envs.shells import Act, render, within, without_shell
from fairmile.envs.source import unpack
from fairmile.envs.spec import EnvironmentSpec, load_spec, parse_spec
from fairmile.envs.steps import KINDS, Step, Tools, build_mark

_FORMAT = 1
_SHORT = 16
_LEAST_DIGEST = 4
_GROUP_MAY = 0o2775
_ORDER = ("modules", "conda", "builds", "python", "builds after python", "container")
_ENDINGS = (".yaml", ".yml", ".json")
What: TypeAlias = str | Path | EnvironmentSpec
# A specification that was made of something else, with notes on what of that could not be said.
Noted: TypeAlias = tuple[EnvironmentSpec, tuple[str, ...]]


class PlannedStepDict(TypedDict):
    """A step of a build as JSON."""

    name: str
    words: str
    done: bool


class EnvPlanDict(TypedDict):
    """What a build would do, as JSON."""

    name: str
    digest: str
    folder: str
    state: State
    builder: str
    trouble: str
    steps: list[PlannedStepDict]
    checks: list[str]
    notes: list[str]
    dry_run: Literal[True]


class RemovedEnvironmentDict(TypedDict):
    """An environment that was removed, or would be, as JSON."""

    removed: EnvironmentDict
    dry_run: bool


class RemovalDict(EnvironmentDict):
    """An environment that was removed, or would be, and why."""

    reason: str


class RemovalsDict(TypedDict):
    """Environments that were removed, or would be, as JSON."""

    removed: list[RemovalDict]
    dry_run: bool


class CommandDict(TypedDict):
    """A command as JSON."""

    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class PlannedStep:
    """What a step would do, and whether an earlier build has done it."""

    name: str
    words: str
    done: bool


@dataclass(frozen=True, repr=False)
class EnvPlan(Result):
    """What building an environment would do; `builder` is whoever builds it at this moment, or empty.

    `trouble` says why it cannot be built on this machine; then nobody knows its digest. `notes` say what of a card
    could not be said, or was understood differently.
    """

    name: str
    digest: str
    folder: Path
    state: State
    steps: tuple[PlannedStep, ...]
    checks: tuple[str, ...]
    builder: str
    trouble: str = ""
    notes: tuple[str, ...] = ()
    in_container: bool = False  # each program that is started gets one of its own

    @property
    def prefix(self) -> Path:
        return self.folder / "prefix"

    def to_dict(self) -> EnvPlanDict:
        """Return the plan as `fairmile env build --dry-run --json` prints it."""
        return {
            "name": self.name,
            "digest": self.digest,
            "folder": str(self.folder),
            "state": self.state,
            "builder": self.builder,
            "trouble": self.trouble,
            "steps": [{"name": each.name, "words": each.words, "done": each.done} for each in self.steps],
            "checks": list(self.checks),
            "notes": list(self.notes),
            "dry_run": True,
        }

    def summary(self) -> str:
        """Return the name, the state and the steps that are left."""
        left = ", ".join(each.name for each in self.steps if not each.done) or "nothing"
        return f"{self.name} {self.digest[:_SHORT]} {self.state}, to do: {left}"


@dataclass(frozen=True, repr=False)
class RemovedEnvironment(Result):
    """An environment that was removed, or would be with `dry_run`."""

    environment: Environment
    dry_run: bool

    def to_dict(self) -> RemovedEnvironmentDict:
        """Return the removal as `fairmile env rm --json` prints it."""
        return {"removed": self.environment.to_dict(), "dry_run": self.dry_run}

    def summary(self) -> str:
        """Return the environment."""
        return f"{'would remove' if self.dry_run else 'removed'} {self.environment.summary()}"


@dataclass(frozen=True, repr=False)
class Removal(Result):
    """An environment that is removed, and why."""

    environment: Environment
    reason: str

    def to_dict(self) -> RemovalDict:
        """Return the removal as data."""
        return {**self.environment.to_dict(), "reason": self.reason}

    def summary(self) -> str:
        """Return the environment's name and the reason."""
        return f"{self.environment.name} {self.environment.digest[:_SHORT]}: {self.reason}"


class Removals(Results[Removal]):
    """Environments that were removed, or would be with `dry_run`."""

    def __init__(self, removals: Iterable[Removal] = (), *, dry_run: bool = False) -> None:
        super().__init__(removals)
        self.dry_run = dry_run

    def to_dict(self) -> RemovalsDict:
        """Return the removals as `fairmile env gc --json` prints them."""
        return {"removed": [each.to_dict() for each in self], "dry_run": self.dry_run}

    def summary(self) -> str:
        """Return the names of the environments."""
        names = ", ".join(each.environment.name for each in self) or "nothing"
        return f"{'would remove' if self.dry_run else 'removed'} {names}"


@dataclass(frozen=True, repr=False)
class Command(Result):
    """A program to start, with the variables to add to its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]

    def to_dict(self) -> CommandDict:
        """Return the command as `fairmile env shell --json` prints it."""
        return {"argv": list(self.argv), "env": dict(self.env)}

    def summary(self) -> str:
        """Return the last words of the command, which are the program's own."""
        return f"{self.env.get('FAIRMILE_ENV', '')[:_SHORT]}: {shlex.join(without_shell(self.argv))}"


def _no_bring(address: str, sha256: str | None) -> Path:
    raise UsageError(f"{address} cannot be fetched: transfers are not configured")


def _find_nothing(name: str) -> Noted | None:
    return None


_INTERNAL = "note_use preamble seeing wrap"  # for other parts of Fairmile


class Envs(Noun, internal=_INTERNAL, package=__package__):
    """Software environments in one folder, which a group can share.

    A *reference* is a name, the beginning of a digest, or the file of a specification. Where several environments
    bear one name, the one that became ready last is meant. `find` returns the specification that a catalog has under
    a name, or makes of a JSON file of another form, or None; `bring` fetches an address into a local file; `version`
    goes into the records.
    """

    def __init__(
        self,
        root: Path,
        runner: Runner,
        *,
        environ: Mapping[str, str],
        bring: Callable[[str, str | None], Path] = _no_bring,
        find: Callable[[str], Noted | None] = _find_nothing,
        version: str = "",
    ) -> None:
        self.root = root
        self._runner = runner
        self._environ = environ
        self._bring = bring
        self._find = find
        self._version = version

    def seeing(self, environ: Mapping[str, str]) -> Envs:
        """Return the same environments, whose build commands see only these environment variables."""
        runner = _Limited(self._runner, environ)
        return Envs(self.root, runner, environ=environ, bring=self._bring, find=self._find, version=self._version)

    # Plan and build

    def plan(self, what: What) -> EnvPlan:
        """Return what building would do; nothing is changed."""
        spec, notes = self._asked(what)
        trouble = self._modules_trouble(spec)
        if trouble:
            # What else is needed is told all the same, as far as it can be seen without the modules.
            rest = self._design(spec.model_copy(update={"modules": ()}))
            steps = [PlannedStep("modules", f"load {', '.join(spec.modules)}", False)]
            steps += [PlannedStep(each.name, each.describe(), False) for each in rest.steps]
            checks = _check_texts(spec)
            return EnvPlan(spec.name, "", self.root, "absent", tuple(steps), checks, "", trouble.message, notes)
        design = self._design(spec)
        folder = self._folder(design)
        existing = read_environment(folder, lock_file(self.root, folder.name))
        ready = existing is not None and existing.ready
        marks = {file.name[3:-5] for file in (folder / "steps").glob("*.json")} if existing else set()
        steps = [PlannedStep(each.name, each.describe(), ready or each.name in marks) for each in design.steps]
        return EnvPlan(
            name=design.spec.name,
            digest=design.digest,
            folder=folder,
            state=existing.state if existing else "absent",
            steps=tuple(steps),
            checks=_check_texts(design.spec),
            builder=builder(lock_file(self.root, folder.name)),
            notes=notes,
            in_container=design.spec.container is not None,
        )

    def build(
        self, what: What, *, on_line: Callable[[str], None] = lambda _: None, wait_s: float = 86_400.0
    ) -> Environment:
        """Build an environment, or its missing parts, and return it; concurrent requests build it once.

        What a killed build finished is kept. The others wait, up to `wait_s`. An environment that is ready is checked
        again only where the specification asks for other checks than its record holds.
        """
        spec, notes = self._asked(what)
        if trouble := self._modules_trouble(spec):
            raise trouble
        design = self._design(spec)
        folder = self._folder(design)
        lock = lock_file(self.root, folder.name)
        existing = read_environment(folder, lock)
        if existing is not None and existing.ready and _same_checks(existing, design):
            self._touch(existing)
            return existing
        for note in notes:
            on_line(f"note: {note}")
        who = builder(lock)
        if who:
            on_line(f"waiting for {who}, which builds {design.spec.name}")
        self._prepare()
        with Lock(lock, timeout_s=wait_s, lease_s=LEASE_S) as held:
            existing = read_environment(folder, lock)
            building = Building(design, folder, self._tools(on_line, folder / "work"), held, self._version)
            if existing is None or not existing.ready:
                building.build()
            elif not _same_checks(existing, design):
                building.check_again(existing.record)
        return self._read(folder)

    # Look

    def ls(self) -> EnvironmentList:
        """Return every environment, ready or not, by name and age."""
        return EnvironmentList(sorted(read_all(self.root), key=lambda each: (each.name, each.used)))

    def show(self, ref: What) -> EnvironmentDetails:
        """Return one environment, with its specification, record and lock."""
        return EnvironmentDetails(**vars(self._latest(ref)))

    def _latest(self, ref: What) -> Environment:
        candidates = self._candidates(ref)
        return max(candidates, key=lambda each: (each.ready, str(each.record.get("ended", "")), each.used))

    # Use

    def preamble(self, ref: What, shell: str = "bash") -> tuple[str, ...]:
        """Return the lines that give a script the environment: modules, paths, variables."""
        environment = self._ready(ref)
        self._touch(environment)
        return render(environment.acts, shell)

    def wrap(self, ref: What) -> tuple[str, ...]:
        """Return the command that goes before a program, such as that of a container; empty if none is needed."""
        return self._ready(ref).wrap

    def shell(self, ref: What, argv: Sequence[str] = ()) -> Command:
        """Return the command that runs `argv`, or else a shell for a person, inside the environment."""
        environment = self._ready(ref)
        person = ("sh", "-i") if environment.wrap else ("bash", "--norc", "-i")  # an image need not have bash
        inner = [*environment.wrap, *(argv or person)]
        return Command(
            within(render(environment.acts), inner),
            {"PS1": f"({environment.name}) \\w \\$ ", "FAIRMILE_ENV": environment.digest},
        )

    def export(
        self, ref: What, format: str, *, base: str = "", to: str | Path | None = None, dry_run: bool = False
    ) -> Packaged:
        """Return an environment in another format (one of `exports.FORMATS`), exactly as built.

        The definition of an image starts from the image `base`, else from that of the specification. The files are
        written into the folder `to`, where given and not with `dry_run`.
        """
        exported = export(self._ready(ref), format, base=base)
        if to is None:
            return exported
        if not dry_run:
            exported.write(Path(to))
        return replace(exported, folder=str(to))

    def kernel(self, ref: What, *, system: str = "", dry_run: bool = False) -> InstalledKernel:
        """Install a Jupyter kernel for an environment, and check that it starts.

        `system` is the name of a machine that Jupyter shows beside the environment's.
        """
        environment = self._ready(ref)
        kernel = kernelspec(
            environment.name, self.preamble(ref), system=system, prefix=environment.prefix, wrap=environment.wrap
        )
        if not dry_run:
            check_kernel(kernel, self._runner)
        folder = kernels_folder(self._environ, Path(self._environ.get("HOME") or Path.home()))
        return InstalledKernel(kernel.name, install_kernel(kernel, folder, dry_run=dry_run), dry_run)

    def note_use(self, ref: What) -> None:
        """Mark an environment as used by this process until it ends, even after `exec`.

        On this machine `rm` and `gc` see for as long as it lives; on others they see the note for ten minutes.
        """
        environment, me = self._ready(ref), Holder.me()
        self._touch(environment)
        try:
            write_atomic(environment.folder / "uses" / me.token, me.text())
        except DiskFailure:
            return  # the environment of somebody else, who cannot know then

    # Verify

    def verify(self, ref: What) -> VerifiedEnvironment:
        """Return which installed files differ from those that were built; every file is read."""
        return verify(self._ready(ref))

    def repair(
        self, ref: What, *, on_line: Callable[[str], None] = lambda _: None, dry_run: bool = False
    ) -> RepairedEnvironment:
        """Build an environment again, in its own folder, if installed files differ; refused while it is used.

        If the build fails, the environment stays as it was.
        """
        verified = self.verify(ref)
        if verified.ok or dry_run:
            return RepairedEnvironment(verified, dry_run=dry_run)
        damaged = verified.environment
        spec = parse_spec(damaged.spec, origin=damaged.name)
        if self._design(spec).digest != damaged.digest:
            raise Conflict(
                f"the inputs of {damaged.name} have changed since it was built, so it cannot be built again",
                hint=f"build the new one, then `fairmile env rm {damaged.digest[:_SHORT]}`",
            )
        self.rm(damaged.digest, dry_run=True)  # which refuses what is in use
        with set_aside(damaged.folder, lock_file(self.root, damaged.folder.name)):
            self.build(spec, on_line=on_line)
        return RepairedEnvironment(verified, rebuilt=True)

    # Remove

    def rm(self, ref: What, *, force: bool = False, dry_run: bool = False) -> RemovedEnvironment:
        """Remove one environment; refused while it is used or built unless `force`.

        With `force` the programs of a build on this machine are ended. A running job is not seen.
        """
        candidates = self._candidates(ref)
        if len(candidates) > 1:
            digests = ", ".join(each.digest[:_SHORT] for each in candidates)
            raise Conflict(f"{ref} matches {len(candidates)} environments: {digests}", hint="name one by its digest")
        environment = candidates[0]
        shown = f"{environment.name} ({environment.digest[:_SHORT]})"
        at_work = builder_process(lock_file(self.root, environment.folder.name))
        if at_work is not None and not is_here(at_work):
            raise Conflict(
                f"{shown} is being built by process {at_work.pid} on {at_work.host}, which cannot be stopped from here",
                hint="stop it there, or wait for it",
            )
        if at_work is not None and not force:
            raise Conflict(
                f"{shown} is being built by process {at_work.pid} on this machine",
                hint="wait for it, or use --force to stop the build and remove it",
            )
        who = environment.holders()
        if who and not force:
            raise Conflict(
                f"{shown} is in use by {', '.join(who)}",
                hint="wait for it to end, or use --force to remove it anyway",
            )
        if not dry_run:
            self._remove(environment, force=force)
        return RemovedEnvironment(environment, dry_run)

    def gc(
        self,
        *,
        older_than_s: float,
        keep: Callable[[Environment], bool] = lambda _: False,
        dry_run: bool = False,
    ) -> Removals:
        """Remove environments unused, and builds unchanged, for `older_than_s`.

        Environments in use, under construction, or accepted by `keep` stay.
        """
        now = time.time()
        removals = Removals(dry_run=dry_run)
        for each in self.ls():
            age_s = now - each.used
            if age_s < older_than_s or each.holders() or self._builder(each) or keep(each):
                continue
            days = f"{age_s / 86_400:.0f} days"
            removals.append(Removal(each, f"not used for {days}" if each.ready else f"unfinished for {days}"))
        if not dry_run:
            for removal in removals:
                self._remove(removal.environment)
        return removals

    # Inside

    def _modules_trouble(self, spec: EnvironmentSpec) -> SystemFailure | None:
        """Say which module cannot be loaded on this machine; None where all can."""
        tools = self._tools(lambda _: None, self.root)
        failure = ModulesStep(spec.modules).trouble(tools) if spec.modules else None
        if failure is None:
            return None
        return SystemFailure(
            f"{spec.name} needs modules that this machine does not have: {failure.message}",
            hint=failure.hint or "`module spider NAME` searches modules; build it on a machine that has them",
        )

    def _design(self, spec: EnvironmentSpec) -> Design:
        tools = self._tools(lambda _: None, self.root)
        steps: list[Step] = []
        for kind in _ORDER:
            part = _part(spec, kind)
            if part is None:
                continue
            made = KINDS[kind.split()[0]](part, tools)
            steps += made
            if kind == "modules":
                # What comes after is looked for where modules are loaded; their acts need no prefix.
                tools = replace(tools, acts=_acts(made))
        here = f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}".strip()
        material = {
            "format": _FORMAT,
            "name": spec.name,
            "platform": here,
            "variables": dict(spec.variables),
            "steps": [{"name": each.name, "material": each.material()} for each in steps],
        }
        return Design(spec, tuple(steps), sha256_hex(canonical_json(material)), here)

    def _asked(self, what: What) -> Noted:
        """Return the specification that is meant, and what is to be said of how it was made."""
        if isinstance(what, EnvironmentSpec):
            return what, ()
        if _is_file(what):
            path = at_home(str(what))
            return self._of_other_form(path) or (load_spec(path), ())
        name = str(what)
        return self._find(name) or (parse_spec(self._latest(name).spec, origin=name), ())

    def _of_other_form(self, path: Path) -> Noted | None:
        try:
            check_document(path)
        except OSError:
            return None  # whoever reads it says why
        return self._find(str(path)) if path.suffix == ".json" else None

    def _tools(self, on_line: Callable[[str], None], work: Path) -> Tools:
        return Tools(
            runner=self._runner,
            bring=self._bring,
            unpack=unpack,
            work=work,
            cache=self.root / ".cache",
            environ=self._environ,
            jobs=usable_cores(),
            on_line=on_line,
        )

    def _prepare(self) -> None:
        try:
            if not self.root.exists():
                self.root.parent.mkdir(parents=True, exist_ok=True)
                # A group that shares the home shares what is in it, whatever the umask of the first who builds.
                make_shared(self.root, stat.S_IMODE(self.root.parent.stat().st_mode) & _GROUP_MAY)
            for name in (".locks", ".cache"):
                make_shared(self.root / name, stat.S_IMODE(self.root.stat().st_mode))
        except OSError as error:
            raise write_failure(str(self.root), error) from error

    def _folder(self, design: Design) -> Path:
        return self.root / f"{design.digest[:_SHORT]}-{design.spec.name}"

    def _read(self, folder: Path) -> Environment:
        environment = read_environment(folder, lock_file(self.root, folder.name))
        if environment is None:
            raise NotFound(f"no environment in {folder}")
        return environment

    def _candidates(self, ref: What) -> list[Environment]:
        if isinstance(ref, EnvironmentSpec) or _is_file(ref):
            return [self._of_design(self._design(self._asked(ref)[0]), ref)]
        word, known = str(ref), self.ls()
        named = [each for each in known if each.name == word]
        digest = word.partition("-")[0]
        if not named and len(digest) >= _LEAST_DIGEST:
            named = [each for each in known if each.digest.startswith(digest)]
        if not named and (described := self._find(word)) is not None:
            named = [self._of_design(self._design(described[0]), word)]
        if not named:
            near = did_you_mean(word, [each.name for each in known])
            raise NotFound(
                f"no environment named {word!r} was built" + (f"; {near}" if near else ""),
                hint="`fairmile env ls` lists them, `fairmile env build` makes one",
            )
        return named

    def _of_design(self, design: Design, ref: What) -> Environment:
        environment = read_environment(self._folder(design), lock_file(self.root, design.digest))
        if environment is None:
            given = design.spec.name if isinstance(ref, EnvironmentSpec) else ref
            raise NotFound(
                f"the environment {design.spec.name} ({design.digest[:_SHORT]}) was not built",
                hint=f"`fairmile env build {given}`",
            )
        return environment

    def _ready(self, ref: What) -> Environment:
        environment = self._latest(ref)
        if not environment.ready:
            why = str(environment.failure.get("message", "")).splitlines()
            raise NotFound(
                f"the environment {environment.name} ({environment.digest[:_SHORT]}) is not ready: "
                + (f"its build failed: {why[0]}" if why else f"it is {environment.state}"),
                hint=f"`fairmile env build {environment.name}` continues where it stopped",
            )
        here = platform.machine()
        if here not in str(environment.record.get("platform", here)):
            raise Conflict(
                f"the environment {environment.name} was built for {environment.record['platform']}, this is {here}"
            )
        return environment

    def _builder(self, environment: Environment) -> str:
        return builder(lock_file(self.root, environment.folder.name))

    def _remove(self, environment: Environment, *, force: bool = False) -> None:
        file = lock_file(self.root, environment.folder.name)
        deadline = time.monotonic() + REMOVAL_S
        while force and builder(file) and time.monotonic() < deadline:
            # A build whose program is ended fails and lets go of its lock; it may start another one before it looks.
            end_leftovers(build_mark(environment.folder / "work"))
            time.sleep(0.05)
        with Lock(file, timeout_s=REMOVAL_S, lease_s=LEASE_S):
            # Without its record it is no longer ready, so that nobody starts to use it meanwhile.
            (environment.folder / "record.json").unlink(missing_ok=True)
            remove_tree(environment.folder)
            remove_tree(aside_of(environment.folder))

    def _touch(self, environment: Environment) -> None:
        """Note that it is used; where that may not be written, it counts from when it was built."""
        file = environment.folder / "used"
        try:
            file.touch(mode=0o666)
        except OSError:
            return


def _part(spec: EnvironmentSpec, kind: str) -> EnvironmentSpec | None:
    """Return the specification with the builds that belong to this place of the order, None when nothing does."""
    if kind.startswith("builds"):
        after = kind != "builds"
        builds = tuple(each for each in spec.builds if each.after_python == after)
        return spec.model_copy(update={"builds": builds}) if builds else None
    return spec if getattr(spec, kind) else None


def _acts(steps: Sequence[Step]) -> tuple[Act, ...]:
    return tuple(act for step in steps for act in step.use(Path("/")).acts)


def _is_file(what: str | Path) -> bool:
    """Tell whether a reference is a file: a path from some folder, or a name that ends as documents do."""
    return isinstance(what, Path) or what.startswith(("/", "./", "../", "~")) or what.endswith(_ENDINGS)


def _same_checks(environment: Environment, design: Design) -> bool:
    wanted = [(each.run if isinstance(each.run, str) else list(each.run), each.expect) for each in design.spec.checks]
    return wanted == [(each["run"], each["expect"]) for each in environment.record.get("checks", ())]


def _check_texts(spec: EnvironmentSpec) -> tuple[str, ...]:
    return tuple(each.run if isinstance(each.run, str) else shlex.join(each.run) for each in spec.checks)


class _Limited:
    """Runs programs that see some of the variables of this process, and those that a call adds."""

    def __init__(self, runner: Runner, seen: Mapping[str, str]) -> None:
        self._runner = runner
        self._seen = seen

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any) -> CommandResult:
        """Run `argv`; see `Runner.run`."""
        hidden = sorted(os.environ.keys() - self._seen.keys() - (env or {}).keys())
        unset = [word for name in hidden for word in ("-u", name)]
        return self._runner.run(["env", *unset, *argv], env=env, **options)
