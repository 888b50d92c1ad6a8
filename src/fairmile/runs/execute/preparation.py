"""What goes into a run: fetched, digested, and materialized where its program looks for it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.commands import Here
from fairmile.base.digest import sha256_file
from fairmile.base.digest_cache import DigestCache, Stamp
from fairmile.base.errors import Integrity, NotFound, SystemFailure, Unsupported, UsageError
from fairmile.base.files import safe_join, write_atomic
from fairmile.base.lazy import lazy
from fairmile.base.source_files import is_source
from fairmile.base.views import View, describe_left_behind, show_files, show_folder
from fairmile.runs.coverage import find_uncovered, variables_digest
from fairmile.runs.execute import capture
from fairmile.runs.execute.materials import bring, materialize
from fairmile.runs.execute.watching import DIGESTS, listing_digest
from fairmile.runs.needs import Need, needs_record
from fairmile.runs.parameters import program_files
from fairmile.runs.plan import RunPlan
from fairmile.runs.record.commands import local_command, python_of, recorded_spec
from fairmile.runs.record.crate import READ
from fairmile.runs.record.layout import WORK
from fairmile.runs.record.record import (
    Captured,
    CapturedCode,
    CapturedEnvironment,
    CapturedInput,
    CodeFile,
    CodeSource,
    Coverage,
    ReadFile,
    RecordedSpec,
    RunRecord,
)
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import is_job_part, is_onnx, split_coupled
from fairmile.runs.rerun import rerun_spec
from fairmile.runs.review import environment_definition, harmless_definition, is_foreign
from fairmile.runs.services import Services
from fairmile.systems.hardware import passed_on

if TYPE_CHECKING:
    from fairmile.envs.records import Environment
    from fairmile.envs.spec import parse_spec
    from fairmile.runs.execute.snapshot import code_files, keep_code, lay_code
    from fairmile.runs.record.spec import Input, RunSpec
else:
    parse_spec = lazy("fairmile.envs.spec:parse_spec")
    code_files = lazy("fairmile.runs.execute.snapshot:code_files")
    keep_code = lazy("fairmile.runs.execute.snapshot:keep_code")
    lay_code = lazy("fairmile.runs.execute.snapshot:lay_code")
    Input = lazy("fairmile.runs.record.spec:Input")

_LINK_MODE = 0o120000
_RESTORED: list[int] = [-1]  # the stamp of a file that a rerun gets from what was kept


class Preparation:
    """Fetches what the runs of a workspace, whose folder is `root`, need, and materializes it for them."""

    def __init__(self, root: Path, services: Services, environ: Mapping[str, str]) -> None:
        self._root = root
        self._assets, self._store, self._envs = services.assets, services.store, services.envs
        self._environ = environ

    def fetch_inputs(
        self,
        plan: RunPlan,
        needs: Sequence[Need],
        spec: RunSpec,
        argv: Sequence[str],
        stated: RecordedSpec | None = None,
    ) -> Captured:
        """Fetch what a run needs and return what goes in, with digests.

        `needs` are what it declares, beside what there is, `spec` what is executed of its plan, `argv` the command as
        this machine starts it. Where it is `stated` what its record will say of it, it is looked whether the digests
        cover all that the program could read.
        """
        original, environ = plan.original, dict(self._environ)
        inputs: dict[str, CapturedInput] = {}
        for name, each in spec.inputs.items():
            if each.asset:
                asset = self._assets().materialize(each.asset)
                self._check_content(asset.name, asset.root, asset.path)
                inputs[name] = CapturedInput(
                    asset=asset.name,
                    sha256=asset.root,
                    size_bytes=asset.size_bytes,
                    path=str(asset.path),
                    files=asset.files,
                )
        if plan.materials:
            brought = bring(plan.materials, self._assets())
            inputs |= {name: CapturedInput.from_dict(each) for name, each in brought.items()}
        if original is not None:  # what its program expects at a place of its own
            inputs |= {name: each for name, each in original.captured.inputs.items() if each.place}
        here = {name: each.model_dump() for name, each in spec.inputs.items() if not each.asset}
        inputs |= capture.inputs(here, self._root / DIGESTS) if here else {}
        fetched = [(name, self._assets().fetch(name)[0].root) for name in plan.sources]
        work = Path(spec.folder) if spec.folder else None
        if spec.environment:
            environment_seen = self._inside(self._build_environment(spec, original), argv, work or ".")
            environment_seen.name = spec.environment
        else:
            environment_seen = capture.environment(argv, environ, work or ".")
        if original is not None and is_foreign(original, self._root):
            code = self._compared_code(original)
        elif original is not None:
            code = replace(original.captured.code)
        else:
            code = capture.code(argv, work or Path.cwd(), spec.code) if work or spec.code else CapturedCode()
        if fetched:
            code.sources = [CodeSource(asset=name, sha256=root) for name, root in fetched]
        if original is None and code.is_known:
            code.snapshot, code.trouble = keep_code(self._store(), code)
        captured = Captured(code=code, inputs=inputs, environment=environment_seen, agent=capture.agent())
        if needs:
            captured.needs = needs_record(needs, captured)
        if stated is None:
            return captured
        reads = self._reads_again(original, captured) if original is not None else None
        program = program_files(argv, work, spec.code, environ) if work is not None else ()
        captured.coverage = Coverage(
            uncovered=find_uncovered(stated, captured, argv, self._root, work, program),
            variables_sha256=variables_digest({**environ, **spec.env}),
            reads=reads,
            restored=[path for path, read in (reads or {}).items() if read.stamp == _RESTORED],
        )
        return captured

    def materialize(self, record: RunRecord, folder: Path, *, code: bool) -> dict[str, str]:
        """Put the files that a run works on into its folder, and return what placeholders stand for.

        With `code` that means also the snapshot of a program which is not where it was, or not what it was.
        """
        given, captured = record.spec.folder, record.captured
        work = Path(given or folder / WORK)
        for each in captured.code.sources:
            self._store().materialize(each.sha256, work)
            self._check_content(each.asset, each.sha256, work)
        if code and not given and captured.code.snapshot:
            lay_code(self._store(), captured.code.snapshot, work)
        if code and not given and record.rerun_of and captured.start:
            self._lay_beside(record, folder)
        placed = {name: entry.to_dict() for name, entry in captured.inputs.items() if entry.place}
        values = materialize(placed, self._assets(), work) if placed else {}
        values |= {f"inputs.{name}": entry.path for name, entry in captured.inputs.items()}
        values["python"] = python_of(bool(record.spec.environment))
        return {**values, "run": str(folder), "source": str(work)}

    def _reads_again(self, original: Run, captured: Captured) -> dict[str, ReadFile] | None:
        """Return what a program read beside its code, as it is now; None where nobody watched it.

        What is gone raises NotFound. A rerun gets these files where its program looks for them.
        """
        if is_foreign(original, self._root):
            return self._reads_in_crate(original, captured)
        start = original.spec.folder or original.captured.start
        if not start:
            return None
        captured.start = start
        top = top_of(captured.code, Path(start))
        for name, each in captured.inputs.items():
            before = original.captured.inputs[name].path if name in original.captured.inputs else ""
            if before and Path(before).is_relative_to(top) and before != str(top):
                each.at = str(Path(before).relative_to(top))
        coverage = original.captured.coverage
        if coverage is None or coverage.reads is None:
            return None
        digests = DigestCache(self._root / DIGESTS)
        reads = {
            path: self._read_again(original, path, read, digests)
            for path, read in coverage.reads.items()
            if Path(path).is_relative_to(top) and not read.absent and not read.trouble
        }
        digests.save()
        return reads

    def _read_again(self, original: Run, path: str, before: ReadFile, digests: DigestCache) -> ReadFile:
        """Return what a rerun gets of a file that its original read: the same where that is there or was kept."""
        try:
            now = _read_now(original, path, before, digests)
        except NotFound:
            if self._kept_file(original, path, before.sha256) is None:
                raise
            return replace(before, stamp=_RESTORED)
        is_same = not before.sha256 or now.sha256 == before.sha256 or before.size_bytes is None
        is_kept = not is_same and self._kept_file(original, path, before.sha256) is not None
        return replace(before, stamp=_RESTORED) if is_kept else now

    def _kept_file(self, original: Run, path: str, digest: str) -> Path | None:
        """Return a copy of a file as a run read it: from the store, or as its sweep froze it; None where there is none.

        It lies among the runs then.
        """
        if not digest:
            return None
        kept = self._place_of(digest)
        if kept.is_file():
            return kept
        frozen = self._root.parent / "sweeps" / original.group / WORK / os.path.relpath(path, original.top)
        if original.group and frozen.is_file() and sha256_file(frozen) == digest:
            data = frozen.read_bytes()
        elif self._store().absent([digest]):
            return None
        else:
            with self._store().open(digest) as stream:
                data = stream.read()
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, data, mode=0o444)
        return kept

    def _place_of(self, digest: str) -> Path:
        return self._root / ".inputs" / f"file-{digest}"

    def _reads_in_crate(self, original: Run, captured: Captured) -> dict[str, ReadFile] | None:
        """Return the files that came with a run from elsewhere; paths of its own machine mean nothing here."""
        # A rerun of ours names where those of its original are.
        is_ours = not original.record.imported and bool(original.captured.start)
        folder = Path(original.captured.start) if is_ours else original.folder / READ
        if not folder.is_dir():
            return None
        captured.start = str(folder)
        stated = {safe_join(folder, name): original.reads[path] for name, path in original.read_beside.items()}
        return {str(path): read for path, read in stated.items() if _has_digest(path, read.sha256, read.size_bytes)}

    def _lay_beside(self, record: RunRecord, folder: Path) -> None:
        """Lay the files beside the code of a rerun that its program read; all of them where it was not watched."""
        captured, start = record.captured, Path(record.captured.start)
        top, reads = top_of(captured.code, start), captured.coverage.reads if captured.coverage is not None else None
        places = {each.at: each.path for each in captured.inputs.values() if each.at}
        restored = set(captured.coverage.restored) if captured.coverage is not None else set()
        for path, read in (reads or {}).items():
            name = str(Path(path).relative_to(top))
            if path in restored:
                places[name] = str(self._place_of(read.sha256))
            elif os.path.isdir(path):  # which the program listed: what it puts there stays its own
                (folder / WORK / name).mkdir(parents=True, exist_ok=True)
            else:
                places[name] = path
        show_files(places, folder / WORK)
        if reads is None and start.is_dir():
            outputs = [os.path.join(record.spec.subfolder, each) for each in record.spec.outputs]
            show_folder(top, folder / WORK, outputs=outputs, real=record.spec.subfolder, is_code=is_source)

    def _check_content(self, name: str, root: str, place: Path) -> None:
        """Raise Integrity where files that were laid out from the store do not have the digests their record claims.

        What is laid out may be the stored file itself, whose bytes somebody or a disk may have changed since.
        """
        digests = DigestCache(self._root / DIGESTS)
        for entry in self._store().tree(root):
            path = place / entry.path if place.is_dir() else place
            try:
                is_same = entry.mode == _LINK_MODE or digests.of(str(path), path.stat()) == entry.sha256
            except OSError as error:
                raise SystemFailure(f"cannot read {path}: {error.strerror}") from error
            if not is_same:
                raise Integrity(
                    f"{path} of {name} was changed: its sha256 is not {entry.sha256}",
                    hint="`fairmile store verify` sets damaged files aside, `fairmile store repair` fetches them again",
                )
        digests.save()

    def travelling(self, folder: Path, record: RunRecord, spec: RunSpec) -> RunSpec:
        """Return a specification for a machine that sees no file of this one; the record gets it, too."""
        if not spec.folder:
            return spec
        code = record.captured.code
        if code.is_known and not code.snapshot:
            why = code.trouble or "it was not kept"
            raise UsageError(f"the program can run only in {spec.folder}: {why}")
        kept = {entry.path for entry in self._store().tree(code.snapshot)} if code.snapshot else set()
        moved = rerun_spec(Run(record, folder), spec.inputs, kept).model_copy(update={"env": spec.env})
        record.spec = recorded_spec(moved)
        record.captured.start = spec.folder
        top = top_of(code, Path(spec.folder))
        for each in record.captured.inputs.values():  # what lies in that folder lies at the same place there
            if each.path and Path(each.path).is_relative_to(top) and each.path != str(top):
                each.at = str(Path(each.path).relative_to(top))
        return moved

    def _build_environment(self, spec: RunSpec, original: Run | None) -> Environment:
        """Build an environment as it was described for the original, unless a person named another one."""
        envs = self._envs()
        definition = environment_definition(original) if original is not None else None
        if original is None or definition is None or spec.environment != original.spec.environment:
            model = split_coupled(spec.argv)[1] if spec.coupled else ()
            is_beside = bool(model) and not is_job_part(model) and not is_onnx(model)
            if is_beside and envs.plan(spec.environment).in_container:
                raise Unsupported(
                    f"environment {spec.environment} is a container: the programs of a coupled run share memory, "
                    "which two containers do not",
                    hint="name an environment without a container",
                )
            return envs.build(spec.environment)
        if not is_foreign(original, self._root):
            return envs.build(parse_spec(definition))
        return envs.seeing(passed_on(self._environ)).build(parse_spec(harmless_definition(definition)))

    def _inside(self, environment: Environment, argv: Sequence[str], folder: str | Path) -> CapturedEnvironment:
        """Return the Python and the packages that a command finds inside an environment."""
        if environment.wrap or environment.lock.keys() & {"python", "conda"}:
            seen = _locked(environment)
        else:  # its modules may bring one
            shell = self._envs().shell(environment.digest, ("printenv", "PATH"))
            path = Here().run(shell.argv, env={**self._environ, **shell.env}, check=False).stdout.strip()
            seen = capture.environment(argv, {**self._environ, "PATH": path}, folder)
        seen.digest, seen.definition = environment.digest, dict(environment.spec)
        return seen

    def _compared_code(self, original: Run) -> CapturedCode:
        """Return what the program of a run from elsewhere is by its bytes; what else its record states is not taken."""
        snapshot = original.captured.code.snapshot
        entries = self._store().tree(snapshot) if snapshot else ()
        files = [CodeFile(name=e.path, path=e.path, sha256=e.sha256, size_bytes=e.size_bytes) for e in entries]
        return CapturedCode(files=files, snapshot=snapshot)

    def left_behind(self, spec: RunSpec) -> str:
        """Say what of the folder that a run was started from a machine which sees no file of this one will not see."""
        if not spec.folder or not Path(spec.folder).is_dir():
            return ""
        argv = local_command(spec)
        kept = code_files(capture.code(argv, Path(spec.folder), spec.code))
        inputs = [os.path.abspath(each.path) for each in spec.inputs.values() if each.path]
        return describe_left_behind(Path(spec.folder), [*map(str, kept.values()), *inputs])

    def show(self, code: CapturedCode, start: Path, folder: Path, spec: RunSpec) -> View:
        """Show what the folder holds that runs were started from, beside their code, for many of them."""
        top = top_of(code, start)
        if not start.is_dir():
            return View()
        return show_folder(top, folder / WORK, outputs=_below(spec), real=spec.subfolder, is_code=is_source)

    def inputs_again(self, original: Run, *, foreign: bool = False) -> dict[str, Input]:
        """Return where what went into a run can be had now: where it was, or in the store.

        Of a run from elsewhere a path outside of its folder is taken only where the bytes are those of the record.
        """
        inputs = {}
        for name, each in original.captured.inputs.items():
            if each.place:
                continue
            given = original.spec.inputs.get(name, Input())
            if not each.asset:
                given = self._input_again(original, name, each, foreign=foreign)
            inputs[name] = given
        return inputs

    def _input_again(self, original: Run, name: str, each: CapturedInput, *, foreign: bool) -> Input:
        id, path, digest = original.id, Path(each.path or "/-"), each.sha256
        is_own = not foreign or Path(os.path.normpath(path)).is_relative_to(original.folder)
        if path.exists() and (is_own or _has_digest(path, digest, each.size_bytes)):
            return Input(path=str(path), sha256=digest)
        store = self._store()
        kept = self._root / ".inputs" / digest
        if digest and store.complete(digest):
            store.materialize(digest, kept, is_cache=True)
            return Input(path=str(kept))
        raise NotFound(f"input {name} of run {id} does not exist: {path}", hint=f"restore it; its sha256 is {digest}")


def _read_now(original: Run, path: str, before: ReadFile, digests: DigestCache) -> ReadFile:
    """Return what a file is now that a run read; it has no digest where it had none, for it is too large."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            return ReadFile(sha256=listing_digest(path))
        digest = digests.of(path, status) if before.sha256 else ""
    except OSError as error:
        name, why = os.path.basename(path), "is gone" if isinstance(error, FileNotFoundError) else error.strerror
        stated = f"; its sha256 was {before.sha256}" if before.sha256 else ""
        raise NotFound(
            f"{name}, which run {original.id} read, {why}: {path}", hint=f"bring the file back{stated}"
        ) from error
    return ReadFile(sha256=digest, size_bytes=status.st_size, stamp=list(Stamp.of(status)))


def _has_digest(path: Path, digest: str, size_bytes: int | None) -> bool:
    """Tell whether a file or folder is what a record from elsewhere states; one of another size is not read."""
    if path.is_file() and size_bytes not in (None, path.stat().st_size):
        return False
    is_plain = path.is_file() or path.is_dir()
    return is_plain and capture.inputs({"it": {"path": str(path)}})["it"].sha256 == digest


def top_of(code: CapturedCode, start: Path) -> Path:
    """Return the folder that the snapshot of a program shows: its repository, or where it was started from."""
    root = code.root
    return Path(root) if root and start.is_relative_to(root) else start


def _below(spec: RunSpec) -> list[str]:
    """Return the patterns of a run's outputs as seen from the top of its code."""
    return [f"{spec.subfolder}/{each}" if spec.subfolder else each for each in spec.outputs]


def _locked(environment: Environment) -> CapturedEnvironment:
    """Return the Python of an environment and its packages, as they were installed."""
    python, conda = (environment.lock.get(kind, {}) for kind in ("python", "conda"))
    packages = [*python.get("packages", ()), *conda.get("packages", ())]
    versions = [each["version"] for each in packages if each["name"] == "python"]
    version = str(python.get("interpreter", {}).get("version") or next(iter(versions), ""))
    lock = sorted(f"{each['name']}=={each['version']}" for each in packages)
    interpreter = str(environment.prefix / "bin" / "python") if version else ""
    return CapturedEnvironment(python=version, interpreter=interpreter, lock=lock)
