"""The file of measured operators: one row for each signature, and what it was measured on in its first line."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from fairmile.base.errors import Integrity, NotFound, SystemFailure
from fairmile.base.files import write_atomic, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple

_COLUMNS = ("signature", "outputs", "origins", "device_us", "cold_us", "host_us", "workspace_bytes", "problem")


class OperatorTiming(NamedTuple):
    """A measured operator: microseconds on the device with its tensors in the cache and not, and on the host.

    `problem` says why there are no times. A tuple, as a table has tens of thousands.
    """

    signature: str
    outputs: str
    origins: tuple[str, ...]
    device_us: float = 0.0
    cold_us: float = 0.0
    host_us: float = 0.0
    workspace_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class TableOrigin:
    """What a table was measured on; the host's times belong to that host alone."""

    device: str
    driver: str
    torch: str
    date: str


def append_rows(path: Path, rows: Sequence[OperatorTiming]) -> None:
    """Add rows to a table that is being measured."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not path.exists():
        writer.writerow(_COLUMNS)
    writer.writerows(map(_fields, rows))
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text.getvalue())
    except OSError as error:
        raise write_failure(str(path), error) from error


def write_table(path: Path, rows: Iterable[OperatorTiming], about: TableOrigin) -> None:
    """Write a whole table; compressed where the name ends in .gz."""
    text = io.StringIO()
    text.write(f"# {about.device}; driver {about.driver}; torch {about.torch}; {about.date}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(map(_fields, rows))
    data = text.getvalue().encode()
    write_atomic(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_rows(path: Path) -> tuple[TableOrigin, list[OperatorTiming]]:
    """Return a table's rows and what it was measured on; Integrity names the line that is no row."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except FileNotFoundError as error:
        raise NotFound(f"no table of measured operators at {path}", hint="calibrate the device") from error
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise Integrity(f"{path} is damaged: {error}", hint="calibrate the device again") from error
    except OSError as error:
        raise SystemFailure(f"{path} cannot be read: {error.strerror}") from error
    about = TableOrigin("", "", "", "")
    if text.startswith("# "):
        first, _, text = text.partition("\n")
        parts = [part.strip() for part in first[2:].split(";")]
        if len(parts) == 4:
            about = TableOrigin(
                parts[0], parts[1].removeprefix("driver").strip(), parts[2].removeprefix("torch ").strip(), parts[3]
            )
    lines = csv.reader(io.StringIO(text))
    if tuple(next(lines, ())) != _COLUMNS:
        raise Integrity(f"{path} is not a table of measured operators", hint="calibrate the device again")
    return about, [_row(path, number, line) for number, line in enumerate(lines, 2) if line]


def _fields(row: OperatorTiming) -> tuple[str, ...]:
    times = (f"{row.device_us:.5g}", f"{row.cold_us:.5g}", f"{row.host_us:.4g}") if not row.problem else ("", "", "")
    return (
        row.signature,
        row.outputs,
        " ".join(row.origins),
        *times,
        str(row.workspace_bytes) if row.workspace_bytes else "",
        row.problem,
    )


def _row(path: Path, number: int, line: Sequence[str]) -> OperatorTiming:
    try:
        text, outputs, origins, device, cold, host, workspace, problem = line
        return OperatorTiming(
            text,
            outputs,
            tuple(origins.split()),
            float(device or 0),
            float(cold or 0),
            float(host or 0),
            int(workspace or 0),
            problem,
        )
    except ValueError as error:
        raise Integrity(
            f"{path}:{number}: not a measured operator: {error}", hint="calibrate the device again"
        ) from error
