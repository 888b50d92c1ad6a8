"""`fairmile system modules` and `eval`: what a user sees, and what happens to the file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from printed_results import assert_printed

from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]

DEEP = """\
# MODULES BEGIN deep ddp
ml --force purge
ml use $OTHERSTAGES
ml Stages/2022 GCC/11.2.0 OpenMPI/4.1.2 cuDNN/8.3.1.22-CUDA-11.5 NCCL/2.11.4-CUDA-11.5 Python/3.9.6
ml -nvidia-driver/.default
# MODULES END
"""
# The byte that is no UTF-8 stands too far away to be shown as the surroundings of a change.
OLD = (
    b"#!/bin/bash\n#SBATCH --partition=dp-esb\n# caf\xe9\n\n\n\n"
    b"# MODULES BEGIN deep ddp\nml Stages/2020\n# MODULES END\nrun"
)


@pytest.fixture
def script(place: Path) -> Path:
    file = place / "train.sh"
    file.write_bytes(OLD)
    file.chmod(0o750)
    return file


def test_python_returns_what_the_commands_print(fairmile: Fairmile, script: Path) -> None:
    systems = Workspace.open().systems
    assert_printed(fairmile, systems["deep"].modules("ddp"), "system", "modules", "deep", "ddp")
    file = Path("train.sh")
    assert_printed(fairmile, systems.evaluate_file(file, to="jureca"), "system", "eval", "train.sh", "--to", "jureca")
    before = script.read_bytes()
    written = systems.evaluate_file(file, write=True)
    script.write_bytes(before)
    assert_printed(fairmile, written, "system", "eval", "train.sh", "--write")


def test_the_block_is_all_that_stdout_gets(fairmile: Fairmile) -> None:
    result = fairmile("system", "modules", "deep", "ddp")
    assert (result.code, result.out) == (0, DEEP)
    assert result.err.startswith("note: ddp on deep: The published LAMEC block")


def test_the_block_is_given_as_data(fairmile: Fairmile) -> None:
    found = fairmile("system", "modules", "jureca", "ddp", "--partition", "dc-mi200", "--json").json
    assert (found["system"], found["software"]) == ("jureca", ["ddp"])
    assert found["lines"][0] == "ml Architecture/jureca_mi200"
    assert found["text"].splitlines()[1:-1] == found["lines"]
    assert isinstance(found["notes"], list)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["depp", "ddp"], "did you mean 'deep'?"),
        (["deep", "dpd"], "did you mean 'ddp'?"),
        (["jureca", "ddp", "raytune"], "only one compiler"),
        (["jureca", "ddp", "--partition", "dc-cpu"], "not for partition 'dc-cpu'"),
    ],
)
def test_a_block_that_cannot_be_made_is_refused(fairmile: Fairmile, arguments: list[str], told: str) -> None:
    result = fairmile("system", "modules", *arguments)
    assert (result.code, result.out) == (2, "")
    assert told in result.err


def test_the_difference_is_shown_and_nothing_is_changed(fairmile: Fairmile, script: Path) -> None:
    result = fairmile("system", "eval", "train.sh")
    assert result.code == 0
    assert result.out.startswith("--- train.sh\n+++ train.sh\n@@ ")
    assert "-ml Stages/2020\n" in result.out
    assert "hint: --write changes the file" in result.err
    assert script.read_bytes() == OLD


def test_the_file_is_changed_between_its_markers_and_keeps_its_mode(fairmile: Fairmile, script: Path) -> None:
    result = fairmile("system", "eval", "train.sh", "--write")
    assert (result.code, result.out) == (0, "changed train.sh: 1 block (deep ddp)\n")
    old = b"# MODULES BEGIN deep ddp\nml Stages/2020\n# MODULES END\n"
    assert script.read_bytes() == OLD.replace(old, DEEP.encode())
    assert stat.S_IMODE(script.stat().st_mode) == 0o750


def test_a_link_stays_a_link(fairmile: Fairmile, script: Path) -> None:
    (script.parent / "link.sh").symlink_to("train.sh")
    assert fairmile("system", "eval", "link.sh", "--write").code == 0
    assert (script.parent / "link.sh").is_symlink()
    assert b"ml -nvidia-driver" in script.read_bytes()


def test_a_script_that_is_up_to_date_is_left_alone(fairmile: Fairmile, script: Path) -> None:
    fairmile("system", "eval", "train.sh", "--write")
    before = script.stat()
    result = fairmile("system", "eval", "train.sh", "--write")
    assert (result.code, result.out) == (0, "")
    assert "train.sh: nothing to change" in result.err
    assert (script.stat().st_ino, script.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_script_that_moves_is_told_what_the_new_system_refuses(fairmile: Fairmile, script: Path) -> None:
    result = fairmile("system", "eval", "train.sh", "--to", "jureca", "--add", "horovod", "--json")
    found = result.json
    assert (found["changed"], found["written"]) == (True, False)
    assert found["blocks"] == [{"system": "jureca", "software": ["ddp", "horovod"]}]
    assert any(note.startswith("Line 2: jureca has no partition 'dp-esb'") for note in found["notes"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.sh"], "no such file: nowhere.sh"),
        (["."], ". is not a regular file"),
        (["train.sh", "--remove", "heat"], "names 'heat', so it cannot be removed"),
        (["train.sh", "--remove", "ddp"], "train.sh:7: nothing would be left"),
        (["train.sh", "--to", "lummi"], "did you mean 'lumi'?"),
        (["train.sh", "--add", "nothing", "--write"], "train.sh:7: no software 'nothing' on deep"),
    ],
)
def test_what_cannot_be_done_changes_nothing(fairmile: Fairmile, script: Path, arguments: list[str], told: str) -> None:
    result = fairmile("system", "eval", *arguments)
    assert (result.code, result.out) == (2, "")
    assert told in result.err
    assert script.read_bytes() == OLD


def test_a_read_only_script_is_refused_and_stays_as_it_is(fairmile: Fairmile, script: Path) -> None:
    script.chmod(0o550)
    before = script.stat()
    result = fairmile("system", "eval", "train.sh", "--write")
    assert (result.code, result.out) == (3, "")
    assert "train.sh is read-only, so it was not changed" in result.err
    assert (script.read_bytes(), script.stat().st_ino) == (OLD, before.st_ino)


def test_a_script_with_several_names_changes_under_all_of_them(fairmile: Fairmile, script: Path) -> None:
    other = script.parent / "other.sh"
    other.hardlink_to(script)
    assert fairmile("system", "eval", "train.sh", "--write").code == 0
    assert other.samefile(script)
    assert b"ml -nvidia-driver" in other.read_bytes()
    assert stat.S_IMODE(script.stat().st_mode) == 0o750


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_a_script_of_somebody_else_stays_theirs(fairmile: Fairmile, script: Path) -> None:
    os.chown(script, 65534, 65534)
    assert fairmile("system", "eval", "train.sh", "--write").code == 0
    assert b"ml -nvidia-driver" in script.read_bytes()
    assert (script.stat().st_uid, script.stat().st_gid) == (65534, 65534)


def test_a_byte_order_mark_before_the_marker_stays(fairmile: Fairmile, place: Path) -> None:
    file = place / "marked.sh"
    file.write_bytes(b"\xef\xbb\xbf# MODULES BEGIN deep ddp\n# MODULES END\n")
    assert fairmile("system", "eval", "marked.sh", "--write").code == 0
    assert file.read_bytes() == b"\xef\xbb\xbf" + DEEP.encode()


def test_what_is_no_script_is_refused_without_waiting_for_it(fairmile: Fairmile, place: Path) -> None:
    os.mkfifo(place / "pipe.sh")
    assert "pipe.sh is not a regular file" in fairmile("system", "eval", "pipe.sh").err
    with (place / "huge.sh").open("wb") as stream:
        stream.truncate(1 << 30)
    result = fairmile("system", "eval", "huge.sh")
    assert (result.code, result.out) == (2, "")
    assert "huge.sh is larger than 4 MiB" in result.err


def test_a_file_that_cannot_be_written_is_an_error(fairmile: Fairmile, script: Path, unprivileged: list[str]) -> None:
    script.parent.chmod(0o555)
    command = [*unprivileged, sys.executable, "-m", "fairmile", "system", "eval", "train.sh", "--write"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=script.parent)
    finally:
        script.parent.chmod(0o755)
    assert (done.returncode, done.stdout) == (3, "")
    assert "no write permission" in done.stderr
    assert script.read_bytes() == OLD
