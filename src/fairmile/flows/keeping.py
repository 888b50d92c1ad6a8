"""The outputs of steps in the store, by digest: kept when a flow ends, and put back where they were deleted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.digest import ManifestEntry, sha256_file
from fairmile.base.errors import FairmileError, Integrity, NotFound
from fairmile.base.files import safe_join, written_aside
from fairmile.flows.model import Flow
from fairmile.flows.state import Entry, FlowState
from fairmile.runs.record.run import Run
from fairmile.store.refs import Ref

if TYPE_CHECKING:
    from fairmile.runs.runs import Runs
    from fairmile.store.store import Store

MOST_KEPT_BYTES = 50_000_000  # of one step; larger outputs are kept where the step says `keep: true`


def keep_outputs(state: FlowState, flow: Flow, folder: Path, store: Store) -> str:
    """Keep what all steps gave, as one tree; what the store has already is not read again.

    Where the store has no room, nothing is kept, and why is returned: a step whose output is deleted then runs again.
    """
    wanted: dict[str, tuple[str, os.stat_result]] = {}
    for entry in state.done.values():
        wanted |= _worth_keeping(entry, flow, folder)
    if not wanted:
        return ""
    size_bytes = sum(status.st_size for _, status in wanted.values())
    try:
        absent = set(store.absent({digest for digest, _ in wanted.values()}))
        new = [status.st_size for digest, status in wanted.values() if digest in absent]
        pool = store.pools.choose(sum(new), files=len(new) + 1, what=f"the outputs of flow {state.id}").pool
        with store.objects(pool).batch() as batch:
            for path, (digest, _) in list(wanted.items()):
                if digest not in absent:
                    continue
                with open(folder / path, "rb") as stream:
                    if batch.add_stream(stream)[0] != digest:  # somebody was faster
                        del wanted[path]
        entries = [
            ManifestEntry(path, status.st_size, digest, _mode(status)) for path, (digest, status) in wanted.items()
        ]
        root = store.put_tree(sorted(entries, key=lambda each: os.fsencode(each.path)), pool)
        store.set_ref(Ref("run", f"outputs of flow {state.id}", root, size_bytes, len(entries), store.clock()), pool)
    except (FairmileError, OSError) as error:
        return f"outputs are not in the store, so that deleted ones cannot be restored: {error}"
    return ""


def _worth_keeping(entry: Entry, flow: Flow, folder: Path) -> dict[str, tuple[str, os.stat_result]]:
    step = flow.steps.get(entry.step.partition("[")[0])
    keep = step.keep if step is not None else None
    if keep is False:
        return {}
    files: dict[str, tuple[str, os.stat_result]] = {}
    for path, digest in entry.outputs.items():
        try:
            status = os.stat(folder / path)
        except OSError:
            continue
        if os.path.isfile(folder / path):
            files[path] = digest, status
    size_bytes = sum(status.st_size for _, status in files.values())
    return files if keep or size_bytes <= MOST_KEPT_BYTES else {}


def _mode(status: os.stat_result) -> int:
    return 0o755 if status.st_mode & 0o100 else 0o644


def restore_outputs(entry: Entry, folder: Path, store: Store) -> list[str]:
    """Put back the outputs of a step that are gone, and return which; nothing that is there is touched."""
    gone = [path for path in entry.outputs if not os.path.lexists(folder / path)]
    if lost := store.absent(entry.outputs[path] for path in gone):
        raise NotFound(f"the store no longer holds {lost[0]}", hint="run the step again")
    for path in gone:
        _write(store, entry.outputs[path], safe_join(folder, path))
    return gone


def _write(store: Store, digest: str, target: Path) -> None:
    with written_aside(target) as aside:
        with store.open(digest) as source, open(aside, "wb") as stream:
            while piece := source.read(1 << 20):
                stream.write(piece)
        if sha256_file(aside) != digest:
            raise Integrity(f"the store holds other bytes than {digest}", hint="`fairmile store verify` finds them")


def copy_outputs(run: Run, folder: Path, runs: Runs) -> None:
    """Put what a run in a folder of its own made where the flow looks for it, with its digest checked."""
    for name, output in run.outputs.items():
        target = safe_join(folder, name)
        if target.is_file() and target.stat().st_size == output.size_bytes and sha256_file(target) == output.sha256:
            continue
        runs.bring_output(run, name, target)
