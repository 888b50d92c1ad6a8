"""OC20's S2EF files: frames of extended XYZ, and beside them the systems and reference energies of the frames."""

from __future__ import annotations

import lzma
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import Integrity, NotFound
from fairmile.benchmarks.suite.opencatalyst.structures import Structure

Array = NDArray[Any]
_ELEMENTS = (
    "X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr "
    "Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt "
    "Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu"
)
SYMBOLS = _ELEMENTS.split()
_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS)}
_FRAME_FILE = re.compile(r".*\.extxyz(\.xz)?")
_PROPERTIES = "species:S:1:pos:R:3:move_mask:L:1:tags:I:1:forces:R:3"
_COLUMNS = ("species", "pos", "forces")


def list_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files to train with, and those below a folder named for validation."""
    files = sorted(each for each in folder.rglob("*") if _FRAME_FILE.fullmatch(each.name))
    if not files:
        raise NotFound(f"{folder} holds no .extxyz files", hint="expected the files of an S2EF archive of OC20")

    def validates(file: Path) -> bool:
        return any(re.match(r"(s2ef_)?val", part) for part in file.relative_to(folder).parts[:-1])

    return [each for each in files if not validates(each)], [each for each in files if validates(each)]


def read_structures(files: Sequence[Path], most: int = 0) -> Iterator[Structure]:
    """Yield the structures of files in order; at most `most` of them, where that is not 0, evenly from all files."""
    each_most = -(-most // max(len(files), 1)) if most else 0
    left = most or None
    for file in files:
        for place, structure in enumerate(_frames(file)):
            if left == 0 or (each_most and place >= each_most):
                break
            yield structure
            left = left if left is None else left - 1


def write_structures(file: Path, structures: Sequence[Structure], reference_energy: float = 0.0) -> None:
    """Write structures as OC20 publishes them: frames, and a table of systems and reference energies."""
    frames, table = [], []
    for number, each in enumerate(structures):
        lattice = " ".join(f"{value:.8f}" for value in np.ravel(each.cell))
        energy = each.energy + reference_energy
        head = f'Lattice="{lattice}" Properties={_PROPERTIES} energy={energy:.10f} pbc="T T T"'
        frames.append(f"{len(each.numbers)}\n{head}\n")
        for atom, position, free, force in zip(each.numbers, each.positions, each.free, each.forces, strict=True):
            numbers = " ".join(f"{value:.8f}" for value in position)
            pulls = " ".join(f"{value:.8f}" for value in force)
            frames.append(f"{SYMBOLS[atom]} {numbers} {'T' if free else 'F'} {int(free)} {pulls}\n")
        table.append(f"{each.system},frame{number},{reference_energy}\n")
    with _open(file, "wt") as stream:
        stream.write("".join(frames))
    with _open(_table_of(file), "wt") as stream:
        stream.write("".join(table))


def _open(file: Path, mode: str) -> Any:
    return lzma.open(file, mode) if file.suffix == ".xz" else open(file, mode)


def _table_of(file: Path) -> Path:
    return file.with_name(file.name.replace(".extxyz", ".txt"))


def _frames(file: Path) -> Iterator[Structure]:
    table = _table_of(file)
    rows: list[str] | None = None
    if table.is_file():
        with _open(table, "rt") as stream:
            rows = stream.read().splitlines()
    try:
        with _open(file, "rt") as stream:
            for number, count in enumerate(iter(stream.readline, "")):
                if not count.strip():
                    continue
                head, lines = stream.readline(), [stream.readline().split() for _ in range(int(count))]
                row = rows[number].split(",") if rows is not None else ["", "", "0"]
                yield _frame(head, lines, system=row[0], reference=float(row[2]))
    except (ValueError, IndexError, KeyError, EOFError, lzma.LZMAError) as error:
        raise Integrity(f"{file} cannot be read as frames of extended XYZ: {error}", hint="fetch it again") from error


def _frame(head: str, lines: list[list[str]], *, system: str, reference: float) -> Structure:
    """Return one frame; the columns are where `Properties` says."""
    values = dict(part.split("=", 1) for part in shlex.split(head) if "=" in part)
    kinds = values["Properties"].split(":")
    columns, first = {}, 0
    for name, width in zip(kinds[::3], map(int, kinds[2::3]), strict=True):
        columns[name] = slice(first, first + width)
        first += width
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise ValueError(f"no column {missing[0]}")
    if any(len(line) < first for line in lines):
        raise ValueError("a line is cut off")
    moves = columns.get("move_mask")
    return Structure(
        numbers=np.array([_NUMBERS[line[columns["species"]][0]] for line in lines]),
        positions=np.array([line[columns["pos"]] for line in lines], float),
        cell=np.array(values["Lattice"].split(), float).reshape(3, 3),
        free=np.array([moves is None or line[moves][0] == "T" for line in lines]),
        energy=float(values["energy"]) - reference,
        forces=np.array([line[columns["forces"]] for line in lines], float),
        system=system,
    )
