"""Cards drafted from files and folders: what is found, what is left to the owner, and what is never done."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from fairmile.base.errors import Conflict, UsageError
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.describing import survey as surveying
from fairmile.catalog.describing.describe import Description

MIT = """MIT License

Copyright (c) 2024 Josiah Carberry

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""
CSV = b"station,time,temperature [degC],depth (m)\nA,2024-01-01T00:00:00Z,4.5,1\nB,2024-01-02T00:00:00Z,4.7,2\n"
CITATION = """cff-version: 1.2.0
title: Lake temperatures
type: dataset
version: "1.2"
authors:
  - {family-names: Carberry, given-names: Josiah, orcid: "https://orcid.org/0000-0002-1825-0097"}
"""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder as a scientist has it: a table, a README, a licence and a citation."""
    folder = tmp_path / "lake data"
    folder.mkdir()
    (folder / "lake.csv").write_bytes(CSV)
    (folder / "README.md").write_text(
        "# The lakes\n\n![badge](x)\n\nHourly temperatures of **three lakes**.\n\n## Use\n"
    )
    (folder / "LICENSE").write_text(MIT)
    (folder / "CITATION.cff").write_text(CITATION)
    return folder


def asked(drafted: Description) -> set[str]:
    return {each.property for each in drafted.questions}


def fields(drafted: Description) -> dict[str, dict[str, Any]]:
    sets = drafted.card.get("recordSet", [])
    return {each["name"]: each for part in (sets if isinstance(sets, list) else [sets]) for each in part["field"]}


def test_a_folder_is_described_by_its_files_and_the_documents_among_them(catalog: Catalog, lake: Path) -> None:
    drafted = catalog.describe(lake)
    card = drafted.card
    assert (card.kind, card.title, card.version) == ("dataset", "Lake temperatures", "1.2")
    assert card.text("description") == "Hourly temperatures of three lakes."
    assert card.licence == "MIT"
    assert card["creator"][0]["@id"] == "https://orcid.org/0000-0002-1825-0097"
    (table,) = [file for file in card.files if file.name == "lake.csv"]
    assert (table.size_bytes, table.sha256, table.media_type) == (
        len(CSV),
        hashlib.sha256(CSV).hexdigest(),
        "text/csv",
    )
    assert drafted.origins["license"] == "LICENSE"
    assert drafted.origins["description"] == "README.md"
    assert drafted.origins["name"] == drafted.origins["creator"] == "CITATION.cff"
    assert {name: (each.get("dataType"), each.get("unitText")) for name, each in fields(drafted).items()} == {
        "station": ("sc:Text", None),
        "time": ("sc:DateTime", None),
        "temperature": ("sc:Float", "degC"),
        "depth": ("sc:Integer", "m"),
    }
    assert json.loads(json.dumps(drafted.to_dict()))["files"] == 4


def test_nothing_is_written_unless_asked_for(catalog: Catalog, lake: Path, tmp_path: Path) -> None:
    catalog.describe(lake)
    assert not list(catalog.search(all_versions=True))
    assert catalog.describe(lake, add=True).added == "local/dataset/lake-temperatures@1.2"
    target = tmp_path / "card.jsonld"
    assert catalog.describe(lake, target=target).written == str(target)
    assert catalog.check([target]).ok
    target.write_text("{}")
    with pytest.raises(Conflict, match="already exists and differs"):
        catalog.describe(lake, target=target)
    assert target.read_text() == "{}"


def test_an_added_card_of_this_machine_s_files_leads_to_them(catalog: Catalog, lake: Path, tmp_path: Path) -> None:
    handle = catalog.describe(lake, add=True).added
    addresses = [entry["contentUrl"] for entry in catalog.get(handle)["distribution"]]
    assert all(Path(unquote(each.removeprefix("file://"))).is_relative_to(lake.resolve()) for each in addresses)
    assert "distribution" in {each.property for each in catalog.describe(lake).questions}
    catalog.publish(tmp_path / "site")
    assert "contentUrl" not in next((tmp_path / "site" / "dataset").rglob("*.jsonld")).read_text()


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_table_of_one_row_has_columns(catalog: Catalog, tmp_path: Path, end: str) -> None:
    (tmp_path / "one.csv").write_text(f"time,level [m]\n2024-01-01,4.5{end}")
    records = catalog.describe(tmp_path / "one.csv").card["recordSet"]
    assert [each["name"] for each in records["field"]] == ["time", "level"]


def test_what_only_the_owner_can_say_is_asked_with_the_command_that_sets_it(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(CSV)
    drafted = catalog.describe(tmp_path / "data.csv", add=True)
    assert not {"license", "creator", "description"} & set(drafted.card)
    assert {"license", "creator", "description", "version", "distribution", "accessRights"} <= asked(drafted)
    commands = {each.property: each.command for each in drafted.questions}
    start = f"fairmile catalog update {drafted.card.handle}"
    assert commands["license"] == f"{start} --set license=SPDX-ID-STATED-BY-THE-HOLDER"
    assert commands["creator"] == f"{start} --set 'creator=NAME (ORCID-OR-ROR)'"
    assert commands["distribution"] == f"{start} --address https://ADDRESS"


def test_the_owner_may_state_it_at_once(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(CSV)
    drafted = catalog.describe(
        tmp_path / "data.csv",
        set={"license": "CC-BY-4.0", "creator": "Ada (0000-0002-1825-0097)", "version": "1.0"},
        address="https://data.institute.edu/files/",
    )
    assert drafted.card.licence == "CC-BY-4.0"
    assert not {"license", "creator", "version", "distribution"} & asked(drafted)
    assert drafted.card.files[0].url == "https://data.institute.edu/files/data.csv"


def test_licences_that_contradict_are_left_to_the_holder(catalog: Catalog, lake: Path) -> None:
    (lake / "CITATION.cff").write_text(CITATION + "license: Apache-2.0\n")
    drafted = catalog.describe(lake)
    assert "license" not in drafted.card
    assert "license" in asked(drafted)
    assert any("CITATION.cff: Apache-2.0, LICENSE: MIT" in note for note in drafted.notes)


def test_a_changed_licence_text_is_not_named(catalog: Catalog, lake: Path) -> None:
    (lake / "LICENSE").write_text(MIT + "\nNobody may use the Software on Sundays, nor in any country at sea.\n" * 3)
    drafted = catalog.describe(lake)
    assert "license" in asked(drafted)
    assert any("LICENSE is not a known licence text" in note for note in drafted.notes)


def test_git_tells_repository_and_version_without_a_login(catalog: Catalog, lake: Path) -> None:
    (lake / "CITATION.cff").unlink()
    git = ["git", "-C", str(lake), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (
        ["init", "-q"],
        ["remote", "add", "origin", "https://me:secret@git.institute.edu/group/lake.git"],
        ["add", "."],
        ["commit", "-qm", "data"],
        ["tag", "v2.1"],
    ):
        subprocess.run([*git, *words], check=True, capture_output=True)
    drafted = catalog.describe(lake)
    assert drafted.card["codeRepository"] == "https://git.institute.edu/group/lake.git"
    assert (drafted.card.version, drafted.origins["version"]) == ("2.1", "git tag")
    assert not any(file.name.startswith(".git") for file in drafted.card.files)


def npy(dtype: str, shape: tuple[int, ...]) -> bytes:
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def tensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(24)


PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", 7, 5) + bytes(9)


@pytest.mark.parametrize(
    ("data", "media_type", "field", "shape"),
    [
        (npy("<f4", (3, 4)), "application/x-npy", "values", "3,4"),
        (packed({"x.npy": npy("<i8", (5,))}), "application/x-npz", "x", "5"),
        (PNG, "image/png", "image", "5,7"),
        (gzip.compress(CSV), "application/gzip", None, None),
        (packed({"config.json": b"", "model.weights.h5": b""}), "application/x-keras", None, None),
        (packed({"m/data.pkl": b""}), "application/x-pytorch", None, None),
        (b"GGUF" + bytes(20), "application/x-gguf", None, None),
        (tensors(), "application/x-safetensors", None, None),
        (b"SIMPLE  =                    T", "application/fits", None, None),
        (pickle.dumps({}), "application/x-pickle", None, None),
    ],
    ids=["npy", "npz", "png", "gz", "keras", "pytorch", "gguf", "safetensors", "fits", "pickle"],
)  # fmt: skip
def test_a_format_is_told_by_its_content(
    catalog: Catalog, tmp_path: Path, data: bytes, media_type: str, field: str | None, shape: str | None
) -> None:
    (tmp_path / "unnamed").write_bytes(data)
    drafted = catalog.describe(tmp_path / "unnamed")
    assert drafted.card.files[0].media_type == media_type
    if field:
        assert fields(drafted)[field]["arrayShape"] == shape


def test_scientific_files_tell_their_variables_with_units(catalog: Catalog, tmp_path: Path) -> None:
    h5py, netcdf = pytest.importorskip("h5py"), pytest.importorskip("netCDF4")
    parquet, zarr = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("zarr")
    import pyarrow

    folder = tmp_path / "files"
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("g/t", data=[[1.0, 2.0]]).attrs["units"] = "K"
    with netcdf.Dataset(folder / "b.nc", "w") as file:
        file.createDimension("x", 3)
        file.createVariable("wind", "f4", ("x",)).units = "m/s"
    parquet.write_table(pyarrow.table({"pressure [Pa]": [1.0]}), folder / "c.parquet")
    zarr.open(str(folder / "d.zarr"), mode="w", shape=(4, 4), dtype="f8", chunks=(2, 2))[:] = 1
    found = fields(catalog.describe(folder))
    assert (found["g/t"]["unitText"], found["g/t"]["arrayShape"]) == ("K", "1,2")
    assert (found["wind"]["unitText"], found["wind"]["dataType"]) == ("m/s", "cr:Float32")
    assert found["pressure"]["unitText"] == "Pa"
    assert found["values"]["arrayShape"] == "4,4"


def test_weights_make_a_model_and_code_a_program(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(tensors())
    assert catalog.describe(tmp_path).card.kind == "model"
    (tmp_path / "weights.safetensors").unlink()
    (tmp_path / "train.py").write_text("print()")
    assert catalog.describe(tmp_path).card.kind == "program"
    assert catalog.describe(tmp_path, kind="workflow").card.kind == "workflow"


def test_the_formats_inside_an_archive_are_listed(catalog: Catalog, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "data.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("in/lake.csv")
        member.size = len(CSV)
        tar.addfile(member, io.BytesIO(CSV))
    (_, inside) = catalog.describe(tmp_path / "data.tar.gz").card["distribution"]
    assert (inside["containedIn"], inside["encodingFormat"]) == ("data.tar.gz", "text/csv")


def test_hostile_files_are_bounded_and_never_executed(catalog: Catalog, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "bomb.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 4_000_000))
    (folder / "model.bin").write_bytes(b"\x80\x04c__builtin__\nopen\n(V" + str(trap).encode() + b"\nVw\ntR.")
    (folder / "long.npy").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31))
    (folder / "deep.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", 60_000) + b"[" * 60_000)
    (folder / "huge.safetensors").write_bytes(struct.pack("<Q", 90 << 20) + b"{")
    (folder / "out").symlink_to("/etc/passwd")
    drafted = catalog.describe(folder)
    assert not trap.exists()
    assert "out" not in {file.name for file in drafted.card.files}
    notes = "\n".join(drafted.notes)
    assert "model.bin is a pickle, which runs code when loaded, so it was not opened" in notes
    assert "out was skipped: it is a symbolic link" in notes
    assert "long.npy: values is not a NumPy array" in notes
    assert "huge.safetensors: its list of tensors exceeds" in notes


def test_very_many_files_are_described_as_sets_with_progress(
    home: Path, builtin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveying, "LISTED_FILES", 10)
    folder = tmp_path / "many"
    for at in range(30):
        part = folder / f"part-{at % 2}"
        part.mkdir(parents=True, exist_ok=True)
        (part / f"{at:02}.csv").write_bytes(CSV + b"C,2024-01-03T00:00:00Z,1,%d\n" % at)
    seen: list[tuple[int, int]] = []
    drafted = Catalog(home, builtin=builtin, on_progress=lambda done, total: seen.append((done, total))).describe(
        folder
    )
    assert [entry["includes"] for entry in drafted.card["distribution"]] == ["part-0/**/*.csv", "part-1/**/*.csv"]
    assert drafted.card.content
    assert len(fields(drafted)) == 4
    assert seen[-1] == (30, 30)
    digest = drafted.card.content
    (folder / "part-0" / "00.csv").write_bytes(b"a,b\n1,2\n")
    assert catalog_digest(home, builtin, folder) != digest


def catalog_digest(home: Path, builtin: Any, folder: Path) -> str | None:
    return Catalog(home, builtin=builtin).describe(folder).card.content


def test_what_an_address_leads_to_is_described_with_that_address(
    home: Path, builtin: Any, tmp_path: Path, lake: Path
) -> None:
    def fetch(address: str, folder: Path) -> None:
        (folder / "lake.csv").write_bytes((lake / "lake.csv").read_bytes())

    drafted = Catalog(home, builtin=builtin, fetch=fetch).describe("https://data.institute.edu/lake.csv")
    assert drafted.card.files[0].url == "https://data.institute.edu/lake.csv"
    assert "temperature" in fields(drafted)
    assert not list(home.glob(".describe-*"))


@pytest.mark.parametrize(
    "make", [lambda folder: folder / "gone", lambda folder: folder / "empty"], ids=["gone", "empty"]
)
def test_what_is_not_there_is_refused(catalog: Catalog, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no such file|has no files"):
        catalog.describe(make(tmp_path))


def elf(kind: int, *headers: int) -> bytes:
    """Return the head of a 64-bit ELF file of a type with these program headers."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", kind, 62, 1)
    head += struct.pack("<QQQIHHHHHH", 0, 64, 0, 0, 64, 56, len(headers), 0, 0, 0)
    return head + b"".join(struct.pack("<I", each) + bytes(52) for each in headers)


@pytest.mark.parametrize(
    ("name", "content", "media_type"),
    [
        ("solver", elf(2, 1), "application/x-executable"),
        ("solver", elf(3, 6, 3, 1), "application/x-executable"),
        ("libsolver.so.1", elf(3, 1, 2), "application/x-sharedlib"),
        ("solver.o", elf(1), "application/x-object"),
        ("libsolver.a", b"!<arch>\n" + bytes(60), "application/x-archive"),
        ("solver", b"\xcf\xfa\xed\xfe" + struct.pack("<III", 1, 2, 2) + bytes(16), "application/x-executable"),
        ("solver.exe", b"MZ\x90\x00" + bytes(60), "application/vnd.microsoft.portable-executable"),
    ],
)
def test_machine_code_is_a_binary_with_its_format(
    catalog: Catalog, tmp_path: Path, name: str, content: bytes, media_type: str
) -> None:
    (tmp_path / name).write_bytes(content)
    card = catalog.describe(tmp_path / name).card
    assert (card.kind, card.files[0].media_type) == ("binary", media_type)


def test_an_executable_script_is_described_as_one(catalog: Catalog, tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text("#!/bin/sh\n")
    assert "additionalProperty" not in catalog.describe(script).card["distribution"][0]
    script.chmod(0o755)
    (entry,) = catalog.describe(script).card["distribution"]
    assert entry["additionalProperty"] == {"@type": "PropertyValue", "name": "executable", "value": True}
