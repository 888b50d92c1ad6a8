"""A run as one file: nothing is lost, whatever happens meanwhile, and nothing in a foreign file is trusted."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import textwrap
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from run_documents import lay_run, training

from fairmile.base.errors import (
    Conflict,
    DiskFailure,
    FairmileError,
    Integrity,
    NotFound,
    SystemFailure,
    UsageError,
)
from fairmile.runs.record.packing import extract, pack, read_packed, unpack
from fairmile.runs.record.record import RunRecord
from fairmile.store.limits import Limits

RECORD = json.dumps(training()).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run with files that are odd, empty, large, executable."""
    made = lay_run(tmp_path / "runs", training())
    (made / "work" / "sub" / "empty folder").mkdir(parents=True)
    (made / "work" / "sub" / "ü b.bin").write_bytes(bytes(range(256)) * 5000)
    (made / "work" / "nothing").touch()
    (made / "work" / "tool.sh").write_text("#!/bin/sh\n")
    (made / "work" / "tool.sh").chmod(0o755)
    return made


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def a_zip(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members:
            packed.writestr(name, data)
    return path


# There and back


def test_a_folder_becomes_one_file_beside_it_and_comes_back_as_it_was(folder: Path) -> None:
    before = content(folder)
    packed = pack(folder)
    assert packed == folder.with_name("train-k3x9qa.zip")
    assert os.listdir(folder.parent) == ["train-k3x9qa.zip"]
    assert unpack(packed) == folder
    assert content(folder) == before
    assert os.access(folder / "work" / "tool.sh", os.X_OK) and not os.access(folder / "work" / "nothing", os.X_OK)
    assert os.listdir(folder.parent) == ["train-k3x9qa"]


@pytest.mark.parametrize(("mode", "packed"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644)])
def test_a_packed_run_can_be_read_by_those_who_could_read_its_folder(folder: Path, mode: int, packed: int) -> None:
    folder.chmod(mode)
    file = pack(folder)
    assert stat.S_IMODE(file.stat().st_mode) == packed
    assert stat.S_IMODE(unpack(file).stat().st_mode) == mode


def test_the_record_is_shown_by_one_small_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(folder)
    monkeypatch.setattr(zipfile, "ZipFile", None)  # no directory of the file is looked at
    assert read_packed(packed) == RunRecord.from_dict(training())


def test_a_long_record_is_shown_too(folder: Path) -> None:
    document = training() | {"note": "x" * 300_000}
    (folder / "run.json").write_text(json.dumps(document))
    assert read_packed(pack(folder)).extra == {"note": document["note"]}


def test_other_programs_read_the_file(folder: Path) -> None:
    packed = pack(folder)
    done = subprocess.run([sys.executable, "-m", "zipfile", "-t", str(packed)], capture_output=True, check=False)
    assert done.returncode == 0 and b"Done" in done.stdout


def test_the_work_of_the_program_can_be_given_up(folder: Path) -> None:
    unpack(pack(folder, work=False))
    assert sorted(os.listdir(folder)) == ["events.jsonl", "output.log", "run.json"]


def test_packing_twice_is_packing_once(folder: Path) -> None:
    assert pack(folder) == pack(folder)


def test_the_record_of_a_crate_is_read_wherever_it_lies_in_the_file(tmp_path: Path) -> None:
    assert read_packed(a_zip(tmp_path / "x.zip", ("a.txt", b"a"), ("run.json", RECORD))) == RunRecord.from_dict(
        training()
    )


# What cannot be packed is left alone


def test_a_link_is_not_packed_and_nothing_is_removed(folder: Path) -> None:
    (folder / "work" / "link").symlink_to("/etc/passwd")
    before = set(os.listdir(folder))
    with pytest.raises(UsageError, match="link is a symbolic link") as caught:
        pack(folder)
    assert "work" in (caught.value.hint or "")
    assert set(os.listdir(folder)) == before and os.listdir(folder.parent) == [folder.name]


def test_what_the_points_of_a_sweep_share_is_packed_with_each(folder: Path) -> None:
    shared = folder.parent.parent / "sweeps" / "s" / "work"
    (shared / "package").mkdir(parents=True)
    (shared / "train.py").write_text("print(1)")
    (shared / "package" / "model.py").write_text("x = 1")
    for name in ("train.py", "package"):
        (folder / "work" / name).symlink_to(shared / name)
    packed = pack(folder)
    shutil.rmtree(shared)
    assert (unpack(packed) / "work" / "train.py").read_text() == "print(1)"
    assert (folder / "work" / "package" / "model.py").read_text() == "x = 1"


def test_a_link_to_another_name_is_not_taken_for_what_is_shared(folder: Path) -> None:
    secret = folder.parent.parent / "secret"
    secret.write_text("token")
    (folder / "work" / "train.py").symlink_to(secret)
    with pytest.raises(UsageError, match="is a symbolic link"):
        pack(folder)


def test_what_is_no_run_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(UsageError, match=r"no run.json"):
        pack(tmp_path / "x")
    with pytest.raises(NotFound):
        pack(tmp_path / "nowhere")


def test_a_file_that_grows_meanwhile_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_member = zipfile.ZipFile.open

    def grow(self: zipfile.ZipFile, name: object, mode: str = "r", **more: object) -> object:
        if mode == "w" and getattr(name, "filename", "") == "output.log":
            with open(folder / "output.log", "ab") as stream:
                stream.write(b"more\n")
        return open_member(self, name, mode, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(zipfile.ZipFile, "open", grow)
    with pytest.raises(Conflict, match=r"output.log changed while it was packed"):
        pack(folder)
    assert os.listdir(folder.parent) == [folder.name]


def test_a_full_disk_leaves_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFailure, match="No space left"):
        pack(folder)
    assert os.listdir(folder.parent) == [folder.name]


def test_a_file_that_does_not_read_back_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairmile.runs.record import packing

    write = packing._write

    def damage(target: Path, *rest: object) -> dict[str, str]:
        digests = write(target, *rest)  # type: ignore[arg-type]
        data = bytearray(target.read_bytes())
        data[len(data) // 2] ^= 0xFF
        target.write_bytes(data)
        return digests

    monkeypatch.setattr(packing, "_write", damage)
    before = content(folder)
    with pytest.raises(Integrity):
        pack(folder)
    assert content(folder) == before and os.listdir(folder.parent) == [folder.name]


# Killed at any moment

_KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from fairmile.runs.record import packing

verb, root, source = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
folder = root / source.name


def content(folder):
    return {str(each.relative_to(folder)): each.read_bytes() if each.is_file() else None for each in folder.rglob("*")}


def attempt(kill_at):
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        # Who is killed while it takes or leaves the lock itself makes others wait for the lease of a minute.
        if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "os.listdir") and (
            isinstance(arguments[0], str) and ".lock" not in arguments[0]
        ):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    getattr(packing, verb)(folder if verb == "pack" else folder.with_name(folder.name + ".zip"))
    os._exit(0)


wanted = content(source)
moments = 0
while True:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    shutil.copytree(source, folder)
    if verb == "unpack":
        packing.pack(folder)
    moments += 1
    child = os.fork()
    if child == 0:
        attempt(moments)
    _, status = os.waitpid(child, 0)
    packed = folder.with_name(folder.name + ".zip")
    if (folder / "run.json").exists():
        assert content(folder) == wanted, f"the folder is damaged after moment {moments}"
    else:
        assert packing.read_packed(packed).id == folder.name, f"all is lost after moment {moments}"
    assert packing.pack(folder) == packed
    left = [name for name in os.listdir(root) if ".lock" not in name]  # a lock tidies up after itself in its time
    assert left == [packed.name], f"left behind after moment {moments}: {left}"
    assert content(packing.unpack(packed)) == wanted
    if not os.WIFSIGNALED(status):
        assert os.waitstatus_to_exitcode(status) == 0
        break
print(moments)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["pack", "unpack"])
def test_a_kill_at_any_moment_leaves_the_whole_folder_or_the_whole_file(verb: str, tmp_path: Path) -> None:
    source = lay_run(tmp_path / "source", training())
    arguments = [verb, str(tmp_path / "runs"), str(source)]
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(_KILLED), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20, "it was killed at many moments"


def test_where_both_are_there_the_folder_is_the_run(folder: Path) -> None:
    packed = pack(folder)
    old = packed.read_bytes()
    unpack(packed)
    (folder / "output.log").write_text("newer")
    packed.write_bytes(old)
    assert unpack(packed) == folder and not packed.exists()
    assert (folder / "output.log").read_text() == "newer"
    packed.write_bytes(old)
    with zipfile.ZipFile(pack(folder)) as opened:
        assert opened.read("output.log") == b"newer"


def test_a_folder_without_a_run_is_not_overwritten(folder: Path) -> None:
    packed = pack(folder)
    folder.mkdir()
    (folder / "mine.txt").touch()
    with pytest.raises(Conflict, match="exists and is not a run"):
        unpack(packed)
    assert packed.is_file() and (folder / "mine.txt").is_file()


def test_two_at_once_pack_one_run_once(folder: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from fairmile.runs.record.packing import pack; pack(Path(sys.argv[1]))"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(folder)], stderr=subprocess.PIPE) for _ in range(3)]
    errors = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], errors
    assert os.listdir(folder.parent) == ["train-k3x9qa.zip"]
    assert read_packed(folder.with_name("train-k3x9qa.zip")) == RunRecord.from_dict(training())


# Files from elsewhere


def _linked() -> zipfile.ZipInfo:
    member = zipfile.ZipInfo("work/link")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


@pytest.mark.parametrize(
    ("member", "says"),
    [
        ("../evil", "leaves its folder"),
        ("/etc/evil", "absolute"),
        ("work\\evil", "backslash"),
        ("work//evil", "with the name"),
        ("./evil", "with the name"),
        (_linked(), "neither a file nor a folder"),
        ("run.json", "twice"),
        ("run.json/inside", "as a file and as a folder"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_would_do_harm_is_refused(member: str | zipfile.ZipInfo, says: str, tmp_path: Path) -> None:
    packed = a_zip(tmp_path / "x.zip", ("run.json", RECORD), (member, b"/etc/passwd"))
    with pytest.raises(UsageError, match=says):
        unpack(packed)
    assert sorted(os.listdir(tmp_path)) == ["x.zip"]


def test_what_unpacks_to_more_than_is_allowed_is_refused_before_it_is_written(tmp_path: Path) -> None:
    packed = a_zip(tmp_path / "x.zip", ("run.json", RECORD), ("zeros", bytes(10 << 20)))
    with pytest.raises(UsageError, match="unpacks to 10"):
        extract(packed, tmp_path / "x", limits=Limits(ratio_from_bytes=1 << 20))
    assert not (tmp_path / "x").exists()
    assert extract(packed, tmp_path / "x") == ["run.json", "zeros"]  # below a gibibyte it may be as dense as it likes


def _patched(packed: Path, change: Callable[[bytearray, int], None]) -> Path:
    """Change the entry of the last member in the directory of a zip file."""
    data = bytearray(packed.read_bytes())
    change(data, data.rindex(b"PK\1\2"))
    packed.write_bytes(data)
    return packed


def test_what_claims_more_than_the_disk_holds_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as made:
        made.writestr("run.json", RECORD)
        for number in range(300):
            made.writestr(f"{number}", b"x")
    data = bytearray((tmp_path / "x.zip").read_bytes())
    at = 0
    while (at := data.find(b"PK\1\2", at + 1)) >= 0:
        struct.pack_into("<L", data, at + 24, 0xFFFFFFF0)
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(DiskFailure, match="are free"):
        unpack(tmp_path / "x.zip")


def test_a_member_that_is_longer_than_stated_is_refused(tmp_path: Path) -> None:
    packed = a_zip(tmp_path / "x.zip", ("run.json", RECORD), ("big", bytes(1 << 20)))

    def lie(data: bytearray, at: int) -> None:
        struct.pack_into("<L", data, at + 24, 10)

    with pytest.raises(Integrity):
        unpack(_patched(packed, lie))
    assert os.listdir(tmp_path) == ["x.zip"]


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    packed = a_zip(tmp_path / "x.zip", ("run.json", RECORD), ("a", bytes(1 << 20)), ("b", bytes(1 << 20)))
    with zipfile.ZipFile(packed) as opened:
        place = opened.getinfo("a").header_offset

    def overlap(data: bytearray, at: int) -> None:
        struct.pack_into("<L", data, at + 42, place)

    with pytest.raises(UsageError, match="shares its bytes"):
        unpack(_patched(packed, overlap))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
def test_half_a_file_is_named_as_damaged(share: float, folder: Path) -> None:
    packed = pack(folder)
    data = packed.read_bytes()
    packed.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(Integrity, match=r"train-k3x9qa.zip"):
        unpack(packed)
    assert packed.is_file() and not folder.exists()


def test_bytes_that_changed_are_noticed(folder: Path) -> None:
    packed = pack(folder)
    data = bytearray(packed.read_bytes())
    at = data.index(b"ni") if b"fairmile-run" not in data else data.index(b"fairmile-run")
    data[at] ^= 1
    packed.write_bytes(data)
    with pytest.raises(SystemFailure, match="checksum"):
        read_packed(packed)
    with pytest.raises(Integrity):
        unpack(packed)


@pytest.mark.parametrize("data", [b"", b"PK", b"no zip file at all" * 10, b"PK\3\4" + bytes(26)])
def test_what_is_no_packed_run_is_one_sentence(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(SystemFailure, match=r"x.zip"):
        read_packed(tmp_path / "x.zip")
    with pytest.raises(FairmileError, match=r"x.zip"):
        unpack(tmp_path / "x.zip")


def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    for number, record in enumerate((b"[]", b"{", b"{}", b'{"id": "x"}')):
        with pytest.raises(SystemFailure):
            read_packed(a_zip(tmp_path / f"{number}.zip", ("run.json", record)))
    with pytest.raises(FileNotFoundError):
        read_packed(tmp_path / "nowhere.zip")


def test_a_record_that_claims_to_be_endless_is_not_read(tmp_path: Path) -> None:
    head = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, zlib.crc32(b""), 0xFFFFFFF0, 0xFFFFFFF0, 8, 0)
    (tmp_path / "x.zip").write_bytes(head + b"run.json" + bytes(100))
    with pytest.raises(SystemFailure, match="longer"):
        read_packed(tmp_path / "x.zip")


def test_a_file_with_an_empty_directory_holds_no_run(tmp_path: Path) -> None:
    stream = io.BytesIO()
    zipfile.ZipFile(stream, "w").close()
    (tmp_path / "x.zip").write_bytes(stream.getvalue())
    with pytest.raises(Integrity, match=r"holds no run.json"):
        unpack(tmp_path / "x.zip")
