"""Whether the result of an earlier run stands for a new one, and its files put back where they were."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.digest import ManifestEntry, sha256_file, sha256_hex
from fairmile.base.errors import FairmileError
from fairmile.base.files import safe_join, write_atomic
from fairmile.base.lazy import lazy
from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.coverage import MOST, Cover, changed_files, find_led_out, find_loose, find_newer, names_digest
from fairmile.runs.execute.watching import changed_read
from fairmile.runs.record.commands import recorded_spec
from fairmile.runs.record.layout import work_folder
from fairmile.runs.record.record import Captured, Coverage, OutputFile, ReadFile, RecordedSpec
from fairmile.runs.record.run import Run

if TYPE_CHECKING:
    from fairmile.runs.record.spec import RunSpec
    from fairmile.store.refs import Ref
    from fairmile.store.store import Store
else:
    Ref = lazy("fairmile.store.refs:Ref")

_MOST_ALIKE = 10  # older runs are not looked at
# Larger results are not kept a second time: what lost them is run again.
_MOST_KEPT_BYTES = 50_000_000
_MOST_KEPT_INPUT_BYTES = 10_000_000  # of all that one run read
_FIELDS = ("system", "resources", "model_resources", "software", "launch", "metrics", "outputs", "watch_s")
_DECLARE_OUT = "declare outputs with --out PATTERN"
_DECLARE = "to reuse results, declare inputs with --data NAME=PATH and outputs with --out PATTERN"


@dataclass(frozen=True)
class Candidate:
    """A run that is about to be executed, as far as it may be answered by an earlier one."""

    spec: RunSpec
    captured: Captured
    argv: Sequence[str]
    environ: Mapping[str, str]
    runs: Path  # the folder of all runs

    def is_asked_alike(self, earlier: Run) -> bool:
        """Tell whether an earlier run of ours was executed, measured and tagged as this one is asked for."""
        before = earlier.spec
        is_alike = all(getattr(before, name) == getattr(self.spec, name) for name in _FIELDS)
        # One that lost something, or that somebody else says happened, is no result to offer.
        is_ours = earlier.result is not None and not earlier.result.notes and not earlier.record.imported
        # What a point of a sweep, or a rerun, wrote lies in a folder of its own, declared or not, and not in this one.
        job = earlier.job
        is_here = bool(before.folder) or not self.spec.folder or (job is not None and job.task is None)
        return is_alike and is_ours and is_here and set(self.spec.tags) <= set(before.tags)

    def objection(self, earlier: Run) -> str:
        """Return why the result of a run with the same identity cannot stand for this one; empty where it can."""
        before, now = earlier.captured.coverage, self.captured.coverage
        if before is None or now is None:
            return "its record does not say what the program could read"
        if names := self._unknown(now.uncovered, before):
            return f"{self._listed(names)} {_is(names)} neither in git nor declared; {_DECLARE}"
        if names := self._unknown(before.uncovered, before):
            listed = self._listed(names, earlier.spec.folder)
            return f"{listed} {_is(names, 'was', 'were')} in its folder and not declared; {_DECLARE}"
        if before.unwatched and not self.spec.inputs:
            return f"not watched: {'; '.join(before.unwatched)}; {_DECLARE}"
        for path, read in (before.reads or {}).items():
            if how := changed_read(path, read):
                return f"{self._listed([path])}, which it read, {how}"
        if before.left is None:
            return f"what it wrote was not watched; {_DECLARE_OUT}"
        if before.left:
            return f"it wrote {self._listed(before.left)} without declaring it; {_DECLARE_OUT}"
        if self.spec.folder and before.reads is not None and before.beside_sha256 != self._beside_sha256:
            return f"files in {self._cover.top} were added or removed"
        if before.variables_sha256 != now.variables_sha256:
            return "environment variables differ"
        spec = RecordedSpec(folder=self.spec.folder, outputs=list(self.spec.outputs))
        if names := changed_files(spec, earlier.captured, self.captured, self.runs):
            return f"{self._listed(names)} changed and is not tracked by git"
        if names := self._led_out:
            return f"git does not track the content of {self._listed(names)}"
        newer = self._newer(earlier)
        return f"{newer} has changed since" if newer else ""

    def _unknown(self, uncovered: Sequence[str], before: Coverage) -> list[str]:
        """Return which of some paths an earlier run may have read unseen."""
        if before.reads is None:
            return list(uncovered)
        return [path for path in uncovered if path not in before.reads and not self._cover.is_inside(path)]

    @cached_property
    def _cover(self) -> Cover:
        return Cover(recorded_spec(self.spec), self.captured, self.runs)

    @cached_property
    def _beside_sha256(self) -> str:
        names = find_loose(self._cover, self.captured.code.git)
        return names_digest(names) if names is not None else ""

    def _newer(self, earlier: Run) -> str:
        """Return a part of the software that changed since an earlier run."""
        covered = [each.path for each in self.captured.code.files]
        covered += [self._root] if self._root else []
        env = {**self.environ, **self.spec.env}
        started = (earlier.result.started if earlier.result is not None else None) or 0.0
        return find_newer(self.argv, env, self.spec.folder or "/", covered, started)

    @property
    def _root(self) -> str:
        return self.captured.code.root

    @cached_property
    def _led_out(self) -> list[str]:
        try:
            return list(islice(find_led_out(self._root), MOST)) if self._root else []
        except FairmileError as error:
            return [f"{self._root} ({error})"]

    def _listed(self, names: Sequence[str], folder: str = "") -> str:
        inside = f"{folder or self.spec.folder}/"
        return ", ".join(name.removeprefix(inside) for name in names[:3]) + (" and more" if len(names) > 3 else "")


@dataclass(frozen=True)
class Reusable:
    """The run whose result stands for a new one, or None, and what to say about that: (verb, sentence)."""

    run: Run | None
    messages: tuple[tuple[str, str], ...] = ()


def find_reusable(asked: Candidate, earlier: Iterable[Run], open_store: Callable[[], Store]) -> Reusable:
    """Return the first of some runs with the same identity whose result stands for a new one, its files in place."""
    objection = ""
    for run in islice(filter(asked.is_asked_alike, earlier), _MOST_ALIKE):
        same = f"run {run.id} has the same command, parameters, code, inputs and packages"
        if why := asked.objection(run):
            objection = objection or f"{same}, but {why}"
            continue
        restored = restore_outputs(open_store, run, asked.spec.folder)
        if restored is None:
            objection = objection or f"{same}, but its outputs are gone and were not kept"
            continue
        messages = [("restore", f"{', '.join(restored)} from run {run.id}")] if restored else []
        return Reusable(run, (*messages, ("reuse", f"{same}; --again runs it anyway")))
    return Reusable(None, (("again", objection),) if objection else ())


def keep_outputs(open_store: Callable[[], Store], run: Run) -> None:
    """Keep the declared results of a run in the folder of a user, where others may overwrite them.

    A run that stands for no later one keeps nothing. Neither does one for whose results the store has no room.
    """
    outputs, coverage = run.outputs, run.captured.coverage
    size_bytes = sum(each.size_bytes for each in outputs.values())
    is_covered = coverage is not None and coverage.is_complete and coverage.left == []
    is_reusable = bool(run.identity) and is_covered
    if outputs and run.spec.folder and is_reusable and size_bytes <= _MOST_KEPT_BYTES:
        with contextlib.suppress(FairmileError):
            digests = {name: each.sha256 for name, each in outputs.items()}
            _keep(open_store(), _name(run.id), run.spec.folder, digests)


def keep_inputs(open_store: Callable[[], Store], run: Run) -> None:
    """Keep the small files beside its code that a run read, so that a rerun finds them after they changed.

    Hidden files, which may hold secrets, are not kept. Neither is anything for which the store has no room.
    """
    files: dict[str, ReadFile] = {}
    left_bytes = _MOST_KEPT_INPUT_BYTES
    for name, path in run.read_beside.items():
        read = run.reads[path]
        is_hidden = any(part.startswith(".") for part in Path(name).parts)
        if read.sha256 and not is_hidden and read.size_bytes is not None and read.size_bytes <= left_bytes:
            left_bytes -= read.size_bytes
            files[name] = read
    if files:
        with contextlib.suppress(FairmileError):
            _keep(open_store(), _inputs_name(run.id), run.top, {name: each.sha256 for name, each in files.items()})


def _keep(store: Store, name: str, folder: str, files: Mapping[str, str]) -> None:
    """Keep files of a folder, given with their digests, under a name; none of them where one is another by now."""
    paths = {each: Path(folder, each) for each in files}
    try:
        contents = {each: path.read_bytes() for each, path in paths.items()}
    except OSError:
        return
    if any(sha256_hex(data) != files[each] for each, data in contents.items()):  # somebody was faster
        return
    size_bytes = sum(map(len, contents.values()))
    pool = store.pools.choose(size_bytes, files=len(files), what="the files of this run").pool
    with store.objects(pool).batch() as batch:
        entries = [
            ManifestEntry(each, len(data), batch.add(data), 0o755 if os.access(paths[each], os.X_OK) else 0o644)
            for each, data in contents.items()
        ]
    root = store.put_tree(entries, pool)
    store.set_ref(Ref("run", name, root, size_bytes, len(entries), store.clock()), pool)


def forget_files(open_store: Callable[[], Store], id: str) -> None:
    """Let go of what `keep_outputs` and `keep_inputs` kept of a run."""
    store = open_store()
    store.drop_ref("run", _name(id))
    store.drop_ref("run", _inputs_name(id))


def restore_outputs(open_store: Callable[[], Store], run: Run, folder: str = "") -> list[str] | None:
    """Bring the outputs of a run back where they are gone or others, and return which; None where that cannot be done.

    They go into `folder`, or where it is empty into the run's own.
    Nothing is written before all that is missing was found, with its digest.
    """
    if run.spec.system and not run.spec.folder:  # a job elsewhere left large ones where it ran
        return []
    if run.packed:
        return None if run.outputs else []
    work = Path(folder) if folder else work_folder(run.folder, run.record.spec)
    outputs, ended = run.outputs, run.ended or 0.0
    lost = [name for name, each in outputs.items() if not _is_same(work / name, each, ended)]
    if not lost:
        return []
    store = open_store()
    ref = store.ref("run", _name(run.id))
    try:
        kept = {entry.path: entry for entry in store.tree(ref.root)} if ref is not None else {}
        contents = {name: _bytes(store, kept[name]) for name in lost if name in kept}
        if any(name not in contents or sha256_hex(contents[name]) != outputs[name].sha256 for name in lost):
            return None
        for name, data in contents.items():
            write_atomic(safe_join(work, name), data, mode=kept[name].mode)
    except FairmileError:
        return None
    return lost


def _name(id: str) -> str:
    return f"outputs {id}"


def _inputs_name(id: str) -> str:
    return f"inputs {id}"


def _bytes(store: Store, entry: ManifestEntry) -> bytes:
    with store.open(entry.sha256) as stream:
        return stream.read()


def _is_same(path: Path, recorded: OutputFile, ended: float) -> bool:
    try:
        status = path.stat()
        if status.st_size != recorded.size_bytes:
            return False
        # A large file that nobody touched since the end of its run is what was digested then.
        is_old = status.st_size > _MOST_KEPT_BYTES and status.st_ctime < ended
        return is_old or sha256_file(path) == recorded.sha256
    except OSError:
        return False


def _is(names: Sequence[str], one: str = "is", more: str = "are") -> str:
    return one if len(names) == 1 else more
