"""The newest Python that Fairmile supports, with Fairmile and its course installed: set up once, kept in a cache.

It lacks PyTorch, whose wheels for it come with gigabytes of CUDA.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fairmile.base.files import Lock
from fairmile.envs.python import uv_index_settings

ROOT = Path(__file__).parents[2]
_EXTRAS = "course,web"
_WITHOUT = "torch ; python_version < '3'"
_TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "jupytext")


class Unavailable(Exception):
    """No such Python is installed, and none can be downloaded."""


def newest_version() -> str:
    """Return the newest version that pyproject.toml states, such as 3.13."""
    stated = re.findall(r"Programming Language :: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    return max(stated, key=lambda version: int(version.partition(".")[2]))


def environment() -> Path:
    """Return the folder of programs of an environment on that Python, with this checkout installed in it."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairmile-tests"
    caches.mkdir(parents=True, exist_ok=True)
    folder = caches / f"python{newest_version()}-{hashlib.sha256(bytes(ROOT)).hexdigest()[:8]}"
    parts = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    digest = hashlib.sha256(b"\0".join([*parts, *map(str.encode, (_EXTRAS, _WITHOUT, *_TOOLS))])).hexdigest()
    with Lock(folder.with_name(f"{folder.name}.lock"), timeout_s=1500):
        complete = folder / "complete"
        if not complete.exists() or complete.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder)
            complete.write_text(digest)
    return folder / "bin"


def _make(folder: Path) -> None:
    python = next(_interpreters(newest_version()), None)
    if python is None:
        raise Unavailable(f"no Python {newest_version()} here, and uv cannot download one")
    _uv("venv", "-q", "--python", str(python), str(folder))
    overrides = folder / "overrides.txt"
    overrides.write_text(_WITHOUT)
    install = ["pip", "install", "-q", "--python", str(folder / "bin" / "python"), "--overrides", str(overrides)]
    try:
        _uv(*install, "-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[{_EXTRAS}]", *_TOOLS)
    except subprocess.CalledProcessError:
        try:
            _uv(*install, "--dry-run", "--no-cache", "--reinstall", "iniconfig")
        except subprocess.CalledProcessError:
            raise Unavailable("no package index can be reached") from None
        raise


def _interpreters(version: str) -> Iterator[Path]:
    """Yield Pythons of a version: on PATH, of pyenv, and at last one that uv downloads."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = [Path(folder) / f"python{version}" for folder in os.get_exec_path()]
    for program in [*on_path, *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]:
        if program.exists() and _is_python(program, version):
            yield program
    try:
        _uv("python", "install", "-q", version)
        yield Path(_uv("python", "find", "-q", "--managed-python", version).strip())
    except subprocess.CalledProcessError:
        return


def _is_python(program: Path, version: str) -> bool:
    # A version manager leaves programs on PATH that only say that such a Python is not chosen.
    probe = "import sys, sqlite3, ssl, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([program, "-I", "-c", probe], capture_output=True, text=True)
    return done.stdout.strip() == version


def _uv(*words: str) -> str:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if uv is None:
        raise Unavailable("there is no uv")
    environ = {**os.environ, **uv_index_settings(os.environ)}
    done = subprocess.run([uv, *words], env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout
