"""The machine a run starts on: hardware, system software, batch job, and the variables that matter to it.

Only the standard library and `base` are needed. Everything comes from files and variables; no program is started.
What cannot change while a process lives is found once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairmile.base.cores import usable_cores
from fairmile.base.version import __version__

_MIB = 1 << 20


# Hardware


def hardware(folders: Sequence[Path] = (), *, root: Path = Path("/")) -> dict[str, Any]:
    """Return what this machine is made of, and which storage the given folders lie on.

    Keys: host, cpu, memory_bytes, gpus, interconnect, topology and storage, each as far as it can be found. `root`
    is where /proc, /sys and /dev are looked for.
    """
    fixed: dict[str, Any] = json.loads(_fixed_hardware(str(root)))
    fixed["storage"] = {str(folder): _storage(folder, root) for folder in folders}
    return fixed


@lru_cache(maxsize=8)
def _fixed_hardware(root: str) -> str:
    # As text, of which each caller gets a copy to change.
    top = Path(root)
    numa = _numa(top)
    gpus = [*_nvidia(top), *_amd(top)]
    places = {str(number): gpu.pop("numa_node") for number, gpu in enumerate(gpus) if "numa_node" in gpu}
    facts = {
        "host": os.uname().nodename,
        "cpu": {**_cpu(top), "numa_nodes": len(numa) or 1},
        "memory_bytes": _memory_bytes(top),
        "gpus": gpus,
        "interconnect": [*_infiniband(top), *_network(top)],
        "topology": {"numa": numa, "gpu_numa_nodes": places},
    }
    return json.dumps(facts)


def _read(path: Path, most_bytes: int = 65_536) -> str:
    """Return the text of a file of the kernel, empty where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read(most_bytes).decode(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _numbers(text: str) -> list[int]:
    """Return the numbers that a list of the kernel such as 0-3,8 means."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            numbers += range(int(first), int(last if last.isdigit() else first) + 1)
    return numbers


def _cpu(top: Path) -> dict[str, Any]:
    # The first processor tells the model; on a large machine the whole file takes milliseconds.
    fields: dict[str, str] = {}
    for line in _read(top / "proc/cpuinfo", 8192).splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    folder = top / "sys/devices/system/cpu"
    online = _numbers(_read(folder / "online")) or list(range(os.cpu_count() or 1))
    cores = _count_groups(folder, online, ("core_cpus_list", "thread_siblings_list"))
    sockets = _count_groups(folder, online, ("package_cpus_list", "core_siblings_list"))
    return {
        "model": _cpu_model(fields) or os.uname().machine,
        "cores": cores or len(online),
        "threads": len(online),
        "sockets": sockets or 1,
        "usable_threads": usable_cores(),
    }


def _count_groups(folder: Path, online: Sequence[int], names: Sequence[str]) -> int:
    """Return into how many groups the processors fall; one file is read for each group."""
    left, groups = dict.fromkeys(online), 0
    while left:
        first = next(iter(left))
        texts = (_read(folder / f"cpu{first}/topology" / name) for name in names)
        members = _numbers(next(filter(None, texts), ""))
        if first not in members:
            return 0
        for each in members:
            left.pop(each, None)
        groups += 1
    return groups


# The designers of ARM processors and their cores, by the ids that /proc/cpuinfo shows; as lscpu names them.
_ARM = {
    0x41: ("ARM", {0xD03: "Cortex-A53", 0xD07: "Cortex-A57", 0xD08: "Cortex-A72", 0xD0B: "Cortex-A76"}),
    0x42: ("Broadcom", {0x516: "ThunderX2"}),
    0x43: ("Cavium", {0x0A1: "ThunderX", 0x0AF: "ThunderX2"}),
    0x46: ("Fujitsu", {0x001: "A64FX"}),
    0x48: ("HiSilicon", {0xD01: "Kunpeng-920", 0xD02: "Kunpeng-920"}),
    0x4E: ("NVIDIA", {0x004: "Carmel"}),
    0x50: ("APM", {0x000: "X-Gene"}),
    0x51: ("Qualcomm", {0x001: "Oryon", 0xC00: "Falkor"}),
    0x61: ("Apple", {}),
    0x6D: ("Microsoft", {0xD49: "Azure-Cobalt-100"}),
    0xC0: ("Ampere", {0xAC3: "Ampere-1", 0xAC4: "Ampere-1a"}),
}
_NEOVERSE = {0xD0C: "N1", 0xD40: "V1", 0xD49: "N2", 0xD4F: "V2", 0xD4A: "E1", 0xD84: "V3", 0xD8E: "N3"}


def _cpu_model(fields: Mapping[str, str]) -> str:
    for key in ("model name", "cpu model", "cpu", "Processor"):
        if fields.get(key):
            return " ".join(fields[key].split())
    try:
        designer, part = int(fields["CPU implementer"], 16), int(fields["CPU part"], 16)
    except (KeyError, ValueError):
        return fields.get("uarch") or fields.get("isa") or ""
    name, parts = _ARM.get(designer, (f"ARM designer {designer:#04x}", {}))
    known = parts.get(part) or (f"Neoverse-{_NEOVERSE[part]}" if designer == 0x41 and part in _NEOVERSE else "")
    return f"{name} {known or f'part {part:#05x}'}"


def _memory_bytes(top: Path) -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _read(top / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _numa(top: Path) -> list[dict[str, Any]]:
    nodes = _matching(top / "sys/devices/system/node", r"node(\d+)")
    return [{"node": int(node.name[4:]), "cpus": _read(node / "cpulist")} for node in nodes]


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Return what lies in a folder and is called so, in the order of the numbers in its names."""
    try:
        names = [name for name in os.listdir(folder) if re.fullmatch(pattern, name)]
    except OSError:
        return []
    return [folder / name for name in sorted(names, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])]


def _nvidia(top: Path) -> list[dict[str, Any]]:
    if not (top / "proc/driver/nvidia").exists() and not _matching(top / "dev", r"nvidia\d+"):
        return []
    devices = _nvml(top) if top == Path("/") else None
    return devices if devices is not None else list(_nvidia_files(top))


def _nvml(top: Path) -> list[dict[str, Any]] | None:
    try:
        import pynvml
    except ImportError:
        return None

    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        driver = text(pynvml.nvmlSystemGetDriverVersion())
        gpus = []
        for number in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(number)
            bus = text(pynvml.nvmlDeviceGetPciInfo(device).busId)
            gpu = {
                "model": text(pynvml.nvmlDeviceGetName(device)),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(device).total),
                "uuid": text(pynvml.nvmlDeviceGetUUID(device)),
                "driver": driver,
            }
            gpus.append(gpu | _numa_of(top, bus))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    return gpus


def _nvidia_files(top: Path) -> Iterator[dict[str, Any]]:
    """Yield what the driver's own files tell, where its library cannot be asked."""
    version = re.search(r"Module\s+(\d[\d.]+)", _read(top / "proc/driver/nvidia/version"))
    for folder in sorted((top / "proc/driver/nvidia/gpus").glob("*")):
        fields = dict(re.findall(r"^([^:\n]+):\s*(.+?)\s*$", _read(folder / "information"), re.MULTILINE))
        gpu = {"model": fields.get("Model", "NVIDIA GPU"), "memory_bytes": None, "uuid": fields.get("GPU UUID", "")}
        yield gpu | {"driver": version[1] if version else ""} | _numa_of(top, folder.name)


def _numa_of(top: Path, bus: str) -> dict[str, int]:
    domain, _, rest = bus.lower().partition(":")
    # NVML writes eight digits for the domain, the kernel four.
    node = _number(_read(top / f"sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node"))
    return {} if node is None or node < 0 else {"numa_node": node}


def _amd(top: Path) -> Iterator[dict[str, Any]]:
    for card in _matching(top / "sys/class/drm", r"card\d+"):
        device = card / "device"
        if _read(device / "vendor") != "0x1002":
            continue
        gpu: dict[str, Any] = {
            "model": _read(device / "product_name") or f"AMD GPU {_read(device / 'device')}".strip(),
            "memory_bytes": _number(_read(device / "mem_info_vram_total")),
            "uuid": _read(device / "unique_id"),
            "driver": _read(top / "sys/module/amdgpu/version"),
        }
        node = _number(_read(device / "numa_node"))
        yield gpu if node is None or node < 0 else gpu | {"numa_node": node}


def _infiniband(top: Path) -> Iterator[str]:
    for port in sorted((top / "sys/class/infiniband").glob("*/ports/*")):
        if "ACTIVE" not in _read(port / "state"):
            continue
        device = port.parent.parent.name + ("" if port.name == "1" else f"/{port.name}")
        rate = re.match(r"([\d.]+) Gb/sec", _read(port / "rate"))
        yield f"{device} {_read(port / 'link_layer') or 'InfiniBand'}" + (f" {float(rate[1]):g} Gb/s" if rate else "")


def _network(top: Path) -> Iterator[str]:
    for interface in sorted((top / "sys/class/net").glob("*")):
        # Bridges and tunnels have no device; InfiniBand (type 32) is listed by its ports.
        if not (interface / "device").exists() or _read(interface / "type") == "32":
            continue
        if _read(interface / "operstate") not in ("up", "unknown"):
            continue
        megabits = _number(_read(interface / "speed")) or 0
        yield f"{interface.name} Ethernet" + (f" {megabits / 1000:g} Gb/s" if megabits > 0 else "")


def _storage(folder: Path, root: Path) -> dict[str, Any]:
    there = os.path.abspath(folder)
    while not os.path.exists(there):
        there = os.path.dirname(os.path.realpath(there))
    free = os.statvfs(there)
    return {
        **_mount(there, os.stat(there).st_dev, str(root)),
        "size_bytes": free.f_blocks * free.f_frsize,
        "free_bytes": free.f_bavail * free.f_frsize,
    }


@lru_cache(maxsize=256)
def _mount(folder: str, _device: int, root: str) -> dict[str, str]:
    """Return type and mount point of the file system that a folder lies on; the last one mounted there counts."""
    folder = os.path.realpath(folder)
    best = {"type": "", "mount": ""}
    for line in _read(Path(root) / "proc/self/mountinfo", _MIB).splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4]
        if "\\" in point:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
        if (folder + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best["mount"]):
            best = {"type": after.split()[0], "mount": point}
    return best


# Software


def software(env: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> dict[str, Any]:
    """Return the operating system and, as far as no program must be started for it, MPI, CUDA and loaded modules."""
    facts: dict[str, Any] = json.loads(_fixed_software(str(root)))
    env = env if env is not None else {}
    cuda = env.get("EBVERSIONCUDA") or env.get("CRAY_CUDATOOLKIT_VERSION") or env.get("CUDA_VERSION")
    cuda = cuda or _cuda_version(env.get("CUDA_HOME") or env.get("CUDA_PATH") or str(root / "usr/local/cuda"))
    mpi = next((f"{name} {env[key]}" for key, name in _MPI_VARIABLES.items() if env.get(key)), "")
    mpi = mpi or _mpi_version(env.get("PATH", ""))
    modules = [each for each in env.get("LOADEDMODULES", "").split(":") if each]
    facts.update({key: value for key, value in {"cuda": cuda, "mpi": mpi, "modules": modules}.items() if value})
    return facts


_MPI_VARIABLES = {
    "EBVERSIONOPENMPI": "Open MPI",
    "EBVERSIONPSMPI": "ParaStation MPI",
    "EBVERSIONIMPI": "Intel MPI",
    "EBVERSIONMVAPICH2": "MVAPICH2",
    "EBVERSIONMPICH": "MPICH",
    "CRAY_MPICH_VERSION": "Cray MPICH",
}


@lru_cache(maxsize=8)
def _fixed_software(root: str) -> str:
    release = dict(re.findall(r"^(\w+)=\"?(.*?)\"?$", _read(Path(root) / "etc/os-release"), re.MULTILINE))
    kernel = os.uname()
    driver = re.search(r"Module\s+(\d[\d.]+)", _read(Path(root) / "proc/driver/nvidia/version"))
    facts = {
        "os": release.get("PRETTY_NAME") or " ".join(filter(None, (release.get("NAME"), release.get("VERSION_ID")))),
        "kernel": kernel.release,
        "machine": kernel.machine,
        "libc": _libc(),
        "fairmile": __version__,
    }
    return json.dumps(facts | ({"nvidia_driver": driver[1]} if driver else {}))


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # not glibc
        return "musl" if list(Path("/lib").glob("ld-musl-*")) else ""


@lru_cache(maxsize=8)
def _cuda_version(folder: str) -> str:
    try:
        return str(json.loads(_read(Path(folder) / "version.json"))["cuda"]["version"])
    except (ValueError, LookupError, TypeError):
        match = re.search(r"CUDA Version (\S+)", _read(Path(folder) / "version.txt"))
        return match[1] if match else ""


@lru_cache(maxsize=8)
def _mpi_version(path: str) -> str:
    """Return the MPI whose launcher is the first on a search path, with its version."""
    mpirun = shutil.which("mpirun", path=path)
    if not mpirun:
        return ""
    prefix = Path(os.path.realpath(mpirun)).parent.parent
    folders = [*prefix.glob("lib*/pkgconfig"), *prefix.glob("lib/*/pkgconfig")]
    for name, file in (("Open MPI", "ompi.pc"), ("MPICH", "mpich.pc")):
        for folder in folders:
            version = re.search(r"^Version:\s*(\S+)", _read(folder / file), re.MULTILINE)
            if version:
                return f"{name} {version[1]}"
    return ""


# Variables. Their patterns are compiled when they are first used: a list of runs needs none of them.

_ALLOWED_STARTS = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_", "NCCL_", "RCCL_", "PYTORCH_"),
    *("TORCH_", "TORCHINDUCTOR_", "TORCHELASTIC_", "XLA_", "JAX_", "TF_", "HOROVOD_", "DS_", "GLOO_", "UCX_", "UCC_"),
    *("OMPI_MCA_", "I_MPI_", "MPICH_", "FI_", "PSM2_", "PSM3_", "HSA_", "HIP_", "ROCR_", "MIOPEN_", "CUDNN_"),
    *("CUBLAS_", "NVIDIA_TF32_"),
)
_ALLOWED_NAMES = frozenset(
    (
        *("LANG", "LC_ALL", "TZ", "PYTHONHASHSEED", "GPU_DEVICE_ORDINAL"),
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"),
        *("CUDA_MODULE_LOADING", "CUDA_CACHE_DISABLE"),
        *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST"),
        *("SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_QOS", "SLURM_JOB_ACCOUNT", "SLURM_JOB_GPUS", "SLURM_JOBID"),
        *("SLURM_NNODES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NODELIST", "SLURM_PROCID", "SLURM_LOCALID"),
        *("SLURM_NODEID", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK"),
        *("SLURM_CPUS_ON_NODE", "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"),
        *("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_CLUSTER_NAME"),
        *("SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"),
        *("SLURM_CPU_BIND", "SLURM_GPU_BIND"),
    )
)
# TF_ is also how Terraform's variables begin, which hold whatever somebody put there.
_NOT_ALLOWED_STARTS = ("TF_VAR", "TF_CLI", "TF_TOKEN", "TF_CLOUD", "TF_HTTP", "TF_WORKSPACE")
_SECRET_NAME = (
    r"(?i)TOKEN|SECRET|PASS(?:W|PHRASE|_|$)|PWD|CREDENTIAL|AUTH|JWT|COOKIE|PRIVATE|API_?KEY|ACCESS_?KEY|(?:^|_)KEYS?(?:_|$)"
    r"|(?:^|_)PAT(?:_|$)|SIGNATURE"
)
_SECRET_VALUE = (
    r"(?i)://[^/\s@]*@"  # a login in an address
    r"|(?:token|secret|passw\w*|passphrase|pwd|api_?key|access_?key|credentials?|signature|sig|auth\w*)\s*[=:]"
    r"|(?:bearer|basic)\s+\S{8}|-----BEGIN|eyJ[\w-]{8,}\.|\bgh[a-z]_\w{16}|\bgithub_pat_|\bglpat-|\bhf_\w{16}|\bsk-\w{8}|\bAKIA\w{12}"
    r"|\bxox[a-z]-|\bnpm_\w{16}|\bpypi-\w{8}"
)
_DEVICE = r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
_LONG_WORD = r"[A-Za-z0-9+=_-]{32,}"


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change how numerical programs run; never one that may hold a secret."""
    return {name: value for name, value in sorted(env.items()) if _is_recorded(name, value)}


@lru_cache(maxsize=4096)  # the runs of a sweep have the same
def _is_recorded(name: str, value: str) -> bool:
    return _is_allowed(name) and (_is_locale(value) or not looks_secret(name, value))


def _is_allowed(name: str) -> bool:
    if name in _ALLOWED_NAMES:
        return True
    is_allowed = name.startswith(_ALLOWED_STARTS) and not name.startswith(_NOT_ALLOWED_STARTS)
    return is_allowed and name not in _ALLOWED_STARTS and name.replace("_", "").isalnum()


def _is_locale(value: str) -> bool:
    """Tell whether a value is that of a locale, which most people have: no pattern need be compiled for it."""
    return value in ("C", "POSIX") or (len(value) <= 12 and value.endswith((".UTF-8", ".utf8")))


# What a record from elsewhere may set: counts, switches and seeds of numerical libraries. No name by which one of
# them loads a library or starts a program, and no value that names a file.
_SETTABLE = (
    r"(?:OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|VECLIB|NCCL|RCCL|PYTORCH|TORCH|TORCHINDUCTOR|XLA|JAX|TF|HOROVOD|GLOO|"
    r"HSA|MIOPEN|CUDNN|CUBLAS)_\w+|CUDA_(?:VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING|"
    r"MODULE_LOADING|CACHE_DISABLE)|NVIDIA_TF32_OVERRIDE|(?:HIP|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|"
    r"PYTHONHASHSEED|(?:\w+_)?SEED|LANG|LC_ALL|TZ"
)
_LOADS = r"PATH|DIR|HOME|FILE|LIB|PLUGIN|TOOL|AGENT|EXEC|CMD|COMMAND|CACHE(?!_DISABLE)|DUMP|HOOK|PROXY|URL|ADDR|SERVER"
_PLAIN_VALUE = r"(?a)[\w .,:;=+*@(){}\[\]-]*"
# What a program from elsewhere sees of a person's variables: where programs and libraries lie, the terminal, the
# language, the batch job and its launcher. Tokens, keys, agents, proxies and whatever else was exported stay out.
_PASSED_ON = (
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|TERM|COLUMNS|LINES|NO_COLOR|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|TMP|TEMP|HOSTNAME|"
    r"LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|PYTHON(?:PATH|HOME|UNBUFFERED|DONTWRITEBYTECODE|NOUSERSITE)|VIRTUAL_ENV|"
    r"CONDA_(?:PREFIX|DEFAULT_ENV|SHLVL)|CUDA_(?:HOME|PATH|ROOT)|ROCM_(?:HOME|PATH)|MPI_HOME|MODULEPATH|MODULESHOME|"
    r"LOADEDMODULES|_LMFILES_|LMOD_\w+|EBROOT\w+|"
    r"(?:SLURM|SLURMD|PMI|PMI2|PMIX|PALS|LSB|LSF|PBS|FLUX|OMPI|PRTE|MV2|HYDRA|MPIR)_\w+|"
    r"FAIRMILE_(?:ENV|POOLS|RESUME|JOB_FOLDER|ARRAY_INDEX|BIND)|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|"
    r"MASTER_ADDR|MASTER_PORT|PS1"
)


def settable(env: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of a record from elsewhere that may be set for its program."""
    return {
        name: value
        for name, value in env.items()
        if re.fullmatch(_SETTABLE, name) and not re.search(_LOADS, name) and re.fullmatch(_PLAIN_VALUE, value)
    }


def passed_on(env: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of a person that a program from elsewhere may see."""
    plain = variables(env)
    return {
        name: value
        for name, value in env.items()
        if name in plain or (re.fullmatch(_PASSED_ON, name) and not re.search(_SECRET_NAME, name.replace("PWD", "")))
    }


def looks_secret(name: str, value: str) -> bool:
    """Tell whether a variable may hold a secret, by its name or by what it holds."""
    if re.search(_SECRET_NAME, name) or re.search(_SECRET_VALUE, value):
        return True
    return any(_looks_random(word) for word in re.findall(_LONG_WORD, re.sub(_DEVICE, "", value)))


def _looks_random(word: str) -> bool:
    # Options are words joined by signs; a key is one long run, or of both cases.
    longest = max(map(len, re.split(r"[_=-]+", word)))
    mixed = bool(re.search(r"\d", word)) and bool(re.search(r"[A-Za-z]", word))
    return mixed and (
        longest >= 20 or (re.search(r"[a-z]", word) is not None and re.search(r"[A-Z]", word) is not None)
    )


_SCHEDULERS: Mapping[str, tuple[str, Mapping[str, tuple[str, ...]]]] = {
    "slurm": (
        "SLURM_JOB_ID",
        {
            "job_id": ("SLURM_JOB_ID",),
            "job_name": ("SLURM_JOB_NAME",),
            "partition": ("SLURM_JOB_PARTITION",),
            "account": ("SLURM_JOB_ACCOUNT",),
            "qos": ("SLURM_JOB_QOS",),
            "system": ("SLURM_CLUSTER_NAME",),
            "nodes": ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
            "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
            "cpus_per_task": ("SLURM_CPUS_PER_TASK",),
            "gpus": ("SLURM_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"),
            "node_list": ("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
            "array_index": ("SLURM_ARRAY_TASK_ID",),
            "restarts": ("SLURM_RESTART_COUNT",),
        },
    ),
    "lsf": (
        "LSB_JOBID",
        {
            "job_id": ("LSB_JOBID",),
            "job_name": ("LSB_JOBNAME",),
            "partition": ("LSB_QUEUE",),
            "account": ("LSB_PROJECT_NAME",),
            "tasks": ("LSB_DJOB_NUMPROC",),
            "node_list": ("LSB_MCPU_HOSTS", "LSB_HOSTS"),
            "array_index": ("LSB_JOBINDEX",),
        },
    ),
    "pbs": (
        "PBS_JOBID",
        {
            "job_id": ("PBS_JOBID",),
            "job_name": ("PBS_JOBNAME",),
            "partition": ("PBS_QUEUE",),
            "account": ("PBS_ACCOUNT",),
            "nodes": ("PBS_NUM_NODES", "PBS_NNODES"),
            "tasks": ("PBS_NP", "NCPUS"),
            "array_index": ("PBS_ARRAY_INDEX", "PBS_ARRAYID"),
        },
    ),
    "flux": (
        "FLUX_JOB_ID",
        {
            "job_id": ("FLUX_JOB_ID",),
            "nodes": ("FLUX_JOB_NNODES",),
            "tasks": ("FLUX_JOB_SIZE",),
        },
    ),
}
_COUNTS = ("nodes", "tasks", "cpus_per_task", "array_index", "restarts")


def scheduler(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the batch system says of the job that this is, empty where it is none."""
    for name, (mark, names) in _SCHEDULERS.items():
        if not env.get(mark):
            continue
        facts: dict[str, Any] = {"name": name}
        for key, sources in names.items():
            text = next((env[source] for source in sources if env.get(source)), "")
            if text and not (key == "array_index" and text == "0" and name == "lsf"):
                facts[key] = int(text) if key in _COUNTS and text.isdecimal() else text
        if name == "lsf":
            # One word for each host with its slots after it; the batch host itself runs no task.
            hosts = env.get("LSB_MCPU_HOSTS", "").split()[::2]
            facts.update({"nodes": len(hosts)} if hosts else {})
        if name == "pbs" and "nodes" not in facts and env.get("PBS_NODEFILE"):
            hosts = _read(Path(env["PBS_NODEFILE"]), 4 * _MIB).split()
            facts.update({"nodes": len(set(hosts)), "node_list": ",".join(dict.fromkeys(hosts))} if hosts else {})
        return facts
    return {}
