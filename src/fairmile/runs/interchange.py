"""Runs that leave the house in another form, and runs of others that come in."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.errors import Conflict, UsageError
from fairmile.base.files import safe_join, write_failure
from fairmile.runs.exchange import EXCHANGES, Files, ImportedRun
from fairmile.runs.execute.snapshot import keep_folder
from fairmile.runs.record.crate import CODE, INPUTS
from fairmile.runs.record.layout import write_record
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.run import Run

if TYPE_CHECKING:
    from fairmile.store.store import Store
    from fairmile.transfer.remote import Context

_UPLOADS = "mlflow, clearml, openml or zenodo"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def export_run(run: Run, store: Store, format: str, target: Path, *, with_inputs: bool) -> list[Path]:
    """Write a run in another form, with its code where the form has a place for it, and return the files."""
    most_bytes = sys.maxsize if with_inputs else 0
    with _code(run, store) as code:
        return EXCHANGES[format].export(run, target, code=code, most_input_bytes=most_bytes)


def upload_run(
    run: Run, store: Store, format: str, context: Context, *, publish: bool = False, dry_run: bool = False
) -> list[str]:
    """Send a run to a server of a platform; a dry run says all that would leave this machine."""
    exchange = EXCHANGES[format]
    if not hasattr(exchange, "upload"):
        raise UsageError(f"runs cannot be uploaded to {format}", hint=f"--upload works with --to {_UPLOADS}")
    if publish and not getattr(exchange, "PUBLISHES", False):
        raise UsageError(f"{format} has no drafts to publish", hint="leave out --publish")
    if not run.state.is_end:
        raise Conflict(f"run {run.id} is {run.state}", hint="wait until it ends")
    options = {"publish": True} if publish else {}
    with _code(run, store) as code:
        sent: list[str] = exchange.upload(run, context, code=code, dry_run=dry_run, **options)
    return sent


@contextlib.contextmanager
def _code(run: Run, store: Store) -> Iterator[Files]:
    """Lay the program of a run into a folder for as long as the block."""
    with tempfile.TemporaryDirectory(prefix="fairmile-code-") as scratch:
        code = Path(scratch) / "code"
        if run.captured.code.snapshot:
            store.materialize(run.captured.code.snapshot, code)
        names = [(str(path.relative_to(code)), path) for path in sorted(code.rglob("*")) if path.is_file()]
        yield lambda: names


def import_runs(ledger: Ledger, store: Callable[[], Store], source: Path, format: str, *, dry_run: bool) -> list[Run]:
    """Take in the runs that a file or folder of another form holds; one that is here already is left as it is."""
    runs = []
    for each in EXCHANGES[format].read(source):
        known = known_run(ledger, each, source)
        if known is None and not dry_run:
            known = _taken_in(each, ledger, store)
        elif known is not None and not dry_run:
            known = _with_inputs(known, each, ledger)
        runs.append(known or Run(each.record, Path()))
    return runs


def known_run(ledger: Ledger, imported: ImportedRun, source: Path) -> Run | None:
    """Return the run that is here already under the id of one that comes in; another of that id raises Conflict."""
    id = imported.id
    if not _ID.fullmatch(id):
        raise UsageError(f"{source}: {id!r} is not a valid run id")
    known = ledger.find(id)
    stated = imported.record
    if known is not None and (known.record.spec, known.record.result) != (stated.spec, stated.result):
        raise Conflict(f"a different run {id} already exists", hint=f"`fairmile runs rm {id}` makes room for it")
    return known


def _taken_in(imported: ImportedRun, ledger: Ledger, store: Callable[[], Store]) -> Run:
    """Lay an imported run among ours; its code goes to the store, and its inputs are where they came with it."""
    folder = safe_join(ledger.root, imported.id)
    try:
        ledger.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(str(ledger.root), error) from error
    with tempfile.TemporaryDirectory(dir=ledger.root, prefix=".import-") as scratch:
        fresh = Path(scratch) / folder.name
        record = imported.lay(fresh).record.copy()
        if (fresh / CODE).is_dir():
            record.captured.code.snapshot = keep_folder(store(), fresh / CODE)
        for name, each in record.captured.inputs.items():
            if safe_join(fresh, f"{INPUTS}/{name}").exists():
                each.path = str(folder / INPUTS / name)
        record.imported = {"from": imported.source, "time": time.time()}
        record.job = None
        write_record(fresh, record)
        fresh.chmod(0o700)  # as every run's
        fresh.rename(folder)
    return ledger.get(imported.id)


def _with_inputs(known: Run, imported: ImportedRun, ledger: Ledger) -> Run:
    """Take the inputs that came with a run that is here without them; all else of it stays as it is."""
    names = {each.split("/")[1] for each in imported.files if each.startswith(f"{INPUTS}/")}
    record = known.record.copy()
    inputs = record.captured.inputs
    missing = [name for name in inputs if name in names and not Path(inputs[name].path or "/-").exists()]
    if not missing or known.packed:
        return known
    with tempfile.TemporaryDirectory(dir=ledger.root, prefix=".import-") as scratch:
        imported.lay(fresh := Path(scratch) / known.id)
        (known.folder / INPUTS).mkdir(exist_ok=True)
        for name in missing:
            target = safe_join(known.folder, f"{INPUTS}/{name}")
            if not target.exists():
                safe_join(fresh, f"{INPUTS}/{name}").rename(target)
            inputs[name].path = str(target)
    write_record(known.folder, record)
    return ledger.get(known.id)
