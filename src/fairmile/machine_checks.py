"""What this machine lacks for which feature, and the command that installs it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Literal, TypedDict

from fairmile.base.commands import Here
from fairmile.base.files import describe_room
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.results import Result
from fairmile.base.units import format_size
from fairmile.store.quota import Quotas

State = Literal["ok", "missing", "warning"]

_LEAST_FREE_BYTES = 1 << 30
_NEARLY = 0.9  # of a quota
_MOST_SKEW_S = 2.0
_WRITTEN = "runs, stored data and environments"
_RELEASED = 1_760_000_000.0  # no clock that is right shows an earlier time


class CheckDict(TypedDict):
    """One thing that was looked for; `fix` is empty where it is there."""

    name: str
    state: State
    detail: str
    serves: str
    fix: str


@dataclass(frozen=True, repr=False)
class Check(Result):
    """One thing that was looked for: what it serves, what was found, and what to do about it."""

    name: str
    state: State
    detail: str
    serves: str
    fix: str = ""

    def to_dict(self) -> CheckDict:
        return {
            "name": self.name,
            "state": self.state,
            "detail": self.detail,
            "serves": self.serves,
            "fix": self.fix,
        }

    def summary(self) -> str:
        return ", ".join(filter(None, (f"{self.name} {self.state}", self.detail, self.fix)))


class _Extra(NamedTuple):
    modules: tuple[str, ...]
    serves: str


_ZSTANDARD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
EXTRAS: Mapping[str, _Extra] = {
    "archives": _Extra(
        ("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",), "Zstandard archives"
    ),
    "atoms": _Extra(("matscipy",), "faster neighbour lists of atoms"),
    "benchmarks": _Extra(("torch", "h5py", "sklearn", "matplotlib", "ase"), "the built-in benchmarks"),
    "conda": _Extra(("rattler",), "conda packages in environments"),
    "course": _Extra(("nbconvert",), "the course"),
    "deephyper": _Extra(("deephyper",), "tuning with DeepHyper"),
    "globus": _Extra(("globus_sdk",), "Globus transfers"),
    "huggingface": _Extra(("huggingface_hub",), "uploads to Hugging Face"),
    "interop": _Extra(("mlflow", "openml", "mlcroissant", "rocrate"), "exchange with MLflow, OpenML and others"),
    "keyring": _Extra(("keyring",), "logins from the system's keyring"),
    "models": _Extra(("onnx", "onnxruntime", "onnxscript", "safetensors", "skl2onnx"), "conversion and use of models"),
    "notebooks": _Extra(("ipykernel", "papermill"), "sweeps over notebooks"),
    "openvino": _Extra(("openvino",), "models in OpenVINO"),
    "pilot": _Extra(("parsl",), "sweeps on pilot jobs"),
    "plots": _Extra(("matplotlib",), "figures in reports"),
    "predict": _Extra(("torch",), "predictions of memory and time"),
    "quantum": _Extra(("dimod", "dwave.samplers"), "faster annealing on a CPU, D-Wave"),
    "ray": _Extra(("ray",), "tuning with Ray Tune"),
    "rdf": _Extra(("pyoxigraph",), "reading HPC Ontology"),
    "s3": _Extra(("botocore",), "S3 with credentials"),
    "science": _Extra(("h5py", "netCDF4", "pyarrow", "zarr"), "HDF5, NetCDF, Parquet and Zarr files"),
    "submit": _Extra(("mlperf_logging",), "the checkers of MLCommons for submissions"),
    "traces": _Extra(("msgspec", "otf2"), "traces of PyTorch, Chrome and OTF2"),
    "tune": _Extra(("optuna", "cmaes", "sklearn", "scipy"), "tuning with Optuna"),
    "web": _Extra(("fastapi", "uvicorn", "jinja2"), "pages and REST of `fairmile serve`"),
}


class _Programs(NamedTuple):
    any_of: tuple[str, ...]
    serves: str
    packages: str  # of Debian, Fedora and their kin


_PROGRAMS: Mapping[str, _Programs] = {
    "git": _Programs(("git",), "commits in records, git addresses", "git"),
    "ssh": _Programs(("ssh",), "systems over ssh", "openssh-client"),
    "rsync": _Programs(("rsync",), "rsync addresses", "rsync"),
    "C compiler": _Programs(("cc", "gcc", "clang"), "source builds, MiniWeather in C", "gcc"),
    "C++ compiler": _Programs(("c++", "g++", "clang++"), "source builds", "g++"),
    "Fortran compiler": _Programs(("gfortran", "ifx", "flang"), "source builds, the Fortran meter", "gfortran"),
    "container runtime": _Programs(("apptainer", "podman", "docker", "ch-run"), "environments in containers", "podman"),
    "MPI": _Programs(("mpirun", "mpiexec", "srun"), "programs on several nodes", "openmpi-bin"),
}
_FEDORA = {"openssh-client": "openssh-clients", "g++": "gcc-c++", "gfortran": "gcc-gfortran", "openmpi-bin": "openmpi"}
_SCHEDULERS = {"Slurm": "sbatch", "LSF": "bsub", "PBS": "qsub", "Flux": "flux"}


def check_machine(home: Path) -> tuple[Check, ...]:
    """Return every check: extras, programs, scheduler, network, disk, quota, byte code and clock."""
    return (
        *(_extra(name, extra) for name, extra in EXTRAS.items()),
        *(_program(name, programs) for name, programs in _PROGRAMS.items()),
        _scheduler(),
        _ports(),
        _disk(home),
        *_quota(home),
        _bytecode(),
        _clock(home),
    )


def _extra(name: str, extra: _Extra) -> Check:
    missing = [module for module in extra.modules if not _is_installed(module)]
    if missing:
        return Check(name, "missing", f"no {', '.join(missing)}", extra.serves, f"pip install 'fairmile[{name}]'")
    return Check(name, "ok", _version(extra.modules[0]), extra.serves)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent is missing, or half a module
        return False


def _version(module: str) -> str:
    try:
        return f"{module} {metadata.version(module.replace('.', '-').replace('_', '-'))}"
    except metadata.PackageNotFoundError:  # its package has another name
        return module


def _program(name: str, programs: _Programs) -> Check:
    path = next(filter(None, map(shutil.which, programs.any_of)), "")
    if path:
        return Check(name, "ok", path, programs.serves)
    return Check(
        name, "missing", f"no {' or '.join(programs.any_of)}", programs.serves, _installation(programs.packages)
    )


def _installation(package: str) -> str:
    """Return how a package of the system is installed here."""
    if shutil.which("apt-get"):
        return f"sudo apt-get install {package}"
    if shutil.which("dnf"):
        return f"sudo dnf install {_FEDORA.get(package, package)}"
    if "LMOD_CMD" in os.environ or "MODULESHOME" in os.environ:
        return f"load the module that has {package}: `module avail`"
    return f"install {package} with your package manager"


def _scheduler() -> Check:
    serves = "jobs through a batch system from this machine"
    for name, program in _SCHEDULERS.items():
        if path := shutil.which(program):
            return Check("scheduler", "ok", f"{name}, {path}", serves)
    fix = "`fairmile run --on SYSTEM` reaches one over ssh; `fairmile system ls` lists systems"
    return Check("scheduler", "missing", f"no {', '.join(_SCHEDULERS.values())}", serves, fix)


def _ports() -> Check:
    """Check what ranks of a distributed program need: a port on this machine, and its name as an address."""
    serves = "distributed training, pilot jobs"
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            port = server.getsockname()[1]
    except OSError as error:
        return Check("ports", "warning", f"no port can be opened: {error.strerror}", serves, "sudo ip link set lo up")
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, port)
    except OSError:
        fix = f"echo '127.0.1.1 {name}' | sudo tee -a /etc/hosts"
        return Check("ports", "warning", f"the host name {name} has no address", serves, fix)
    return Check("ports", "ok", f"a port can be opened, {name} has an address", serves)


def _disk(home: Path) -> Check:
    room = describe_room(home)
    folder = _nearest(home)
    try:
        status = os.statvfs(folder)
    except OSError as error:
        return Check("disk", "warning", f"{folder}: {error.strerror}", _WRITTEN, "set `home` to a folder you can use")
    is_short = status.f_bavail * status.f_frsize < _LEAST_FREE_BYTES or (status.f_files > 0 and not status.f_favail)
    if is_short:
        fix = "fairmile store gc --dry-run, fairmile env gc --dry-run; or set FAIRMILE_HOME to another disk"
        return Check("disk", "warning", room, _WRITTEN, fix)
    return Check("disk", "ok", room, _WRITTEN)


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest above it that exists."""
    return next((each for each in (folder, *folder.absolute().parents) if each.exists()), Path("/"))


def _quota(home: Path) -> Iterator[Check]:
    folder = _nearest(home)
    for quota in Quotas(Here()).of(folder):
        used, limit = format_size(quota.used_bytes), format_size(quota.limit_bytes or 0)
        detail = f"{quota.kind} {quota.id}: {used}" + (f" of {limit}" if quota.limit_bytes else "")
        shares = [
            used / limit
            for used, limit in ((quota.used_bytes, quota.limit_bytes), (quota.used_files, quota.limit_files))
            if limit
        ]
        if max(shares, default=0.0) > _NEARLY:
            fix = "fairmile store gc --dry-run, fairmile runs pack RUN; or set FAIRMILE_HOME to another disk"
            yield Check("quota", "warning", detail, _WRITTEN, fix)
        else:
            yield Check("quota", "ok", detail, _WRITTEN)


def _bytecode() -> Check:
    """Check whether Python finds its own compiled form of Fairmile, or compiles it at each start."""
    serves = "a quick start of every command"
    loaded = [
        str(getattr(module, "__file__", "")) for name, module in sys.modules.items() if name.startswith("fairmile.")
    ]
    files = [Path(file) for file in loaded if file.endswith(".py")]
    stale = [file for file in files if not _is_compiled(file)]
    if not stale:
        return Check("byte code", "ok", f"{len(files)} modules compiled", serves)
    folder = Path(__file__).parent
    compile_all = f"env -u PYTHONDONTWRITEBYTECODE {sys.executable} -m compileall -q {folder}"
    if sys.dont_write_bytecode:
        detail = "PYTHONDONTWRITEBYTECODE is set: Python compiles Fairmile at each start"
        return Check("byte code", "warning", detail, serves, compile_all)
    if not os.access(folder, os.W_OK):
        detail = f"{folder} cannot be written: Python compiles Fairmile at each start"
        return Check("byte code", "warning", detail, serves, f"as its owner: {compile_all}")
    return Check("byte code", "ok", f"{len(stale)} of {len(files)} modules compiled now", serves)


def _is_compiled(file: Path) -> bool:
    try:
        with open(importlib.util.cache_from_source(str(file)), "rb") as stream:
            header = stream.read(16)
        flags, mtime = (int.from_bytes(header[at : at + 4], "little") for at in (4, 8))
        return bool(flags) or mtime == int(file.stat().st_mtime) & 0xFFFFFFFF
    except (OSError, NotImplementedError):
        return False


def _clock(home: Path) -> Check:
    """Compare the clock with that of the disk, which leases and times of records depend on."""
    serves, fix = "times in records, signed requests", "sudo timedatectl set-ntp true"
    now = time.time()
    if now < _RELEASED:
        return Check("clock", "warning", f"shows {time.strftime('%Y-%m-%d', time.gmtime(now))}", serves, fix)
    folder = _nearest(home)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".fairmile-clock-") as file:
            skew_s = os.fstat(file.fileno()).st_mtime - time.time()
    except OSError:
        return Check("clock", "ok", "not compared: home cannot be written", serves)
    if abs(skew_s) > _MOST_SKEW_S:
        return Check("clock", "warning", f"differs by {skew_s:.0f} s from the clock of {folder}", serves, fix)
    return Check("clock", "ok", f"agrees with that of {folder}", serves)
