"""Libraries that are built from one C file where they are needed, by the compiler that is there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairmile.base.paths import find_program

# `cc` comes last: where it is a wrapper, it links libraries that no program asked for.
_COMPILERS = ("gcc", "clang", "cc")
_LONGEST_S = 60


def build_library(source: bytes, folder: Path, env: Mapping[str, str], flags: Sequence[str]) -> bytes:
    """Return a shared library, empty where there is no C compiler; what it needs meanwhile is in `folder`.

    CalledProcessError says that the compiler refused, TimeoutExpired that it did not end.
    """
    compiler = next(filter(None, (find_program(name, env.get("PATH")) for name in _COMPILERS)), "")
    if not compiler:
        return b""
    import tempfile

    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as own:
        made, code = Path(own, "library.so"), Path(own, "library.c")
        code.write_bytes(source)
        command = [compiler, "-shared", "-fPIC", "-O2", *flags, "-o", str(made), str(code), "-ldl", "-lpthread"]
        subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_S)
        return made.read_bytes()
