"""A container image of 2 MB made of busybox, as a folder; it holds a small model program."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_FOLDERS = ("bin", "dev", "etc", "home", "mnt", "model", "proc", "root", "sys", "tmp", "usr/bin", "var/tmp")
_APPLETS = ("cat", "env", "id", "mkdir", "pwd", "sh", "sha256sum", "sleep", "touch", "wc")
MODEL = """#!/bin/sh
# Counts what it reads and says so in the place it is given.
set -eu
wc -l < "$1" > "$2"
exit "${MODEL_EXIT:-0}"
"""


def make_image(folder: Path) -> Path:
    """Return `folder` filled with an image, or skip the test where there is no static busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs the program busybox")
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True)
    shutil.copy(busybox, folder / "bin/busybox")
    for name in _APPLETS:
        os.symlink("busybox", folder / "bin" / name)
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\n")
    for name in ("hosts", "resolv.conf"):
        (folder / "etc" / name).touch()
    program = folder / "model/count.sh"
    program.write_text(MODEL)
    program.chmod(0o755)
    return folder
