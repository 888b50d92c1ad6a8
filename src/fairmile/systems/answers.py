"""What the programs of a machine print, turned into data: text in, data out, nothing is run here."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairmile.systems.probe_result import Accelerator, Network, Nodes, Processor, Queue, Slurm, StoragePlace

_MIB_PER_GIB = 1024
_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+~-]*")
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):(\d\d)(?::(\d\d))?")
_GRES = re.compile(r"gpu(?::(?P<model>[^:(,]*[^:(,\d][^:(,]*))?(?::(?P<count>\d+))?(?:\([^)]*\))?(?:,|$)")
_ON_THE_BUS = {"infiniband": "InfiniBand", "omni-path": "Omni-Path", "cassini": "Slingshot"}
_STAGE_MODULES = ("Stages", "LUMI", "StdEnv", "Stage")


def lscpu(text: str) -> Processor:
    """Return the processors that `lscpu -J` describes; a dash or a missing field is not known."""
    data = _json(text)
    rows = data.get("lscpu") if isinstance(data, dict) else None
    fields = dict(_lscpu_fields(rows if isinstance(rows, list) else []))
    threads = _count(fields.get("Thread(s) per core")) or 1
    groups = _count(fields.get("Socket(s)"))
    each = _count(fields.get("Core(s) per socket"))
    cpus = _count(fields.get("CPU(s)"))
    cores = groups * each if groups and each else cpus // threads if cpus else None
    return Processor(fields.get("Model name", ""), groups, cores, threads)


def _lscpu_fields(rows: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield field names and values; newer versions nest what belongs to one processor."""
    for row in rows:
        if not isinstance(row, dict):
            continue
        yield str(row.get("field", "")).rstrip(":"), str(row.get("data") or "")
        yield from _lscpu_fields(row.get("children") or [])


def meminfo(text: str) -> float | None:
    """Return the GiB of memory that /proc/meminfo states."""
    match = re.search(r"^MemTotal:\s+(\d+) kB$", text, re.MULTILINE)
    return round(int(match[1]) / 1024**2, 1) if match else None


def nvidia_smi(text: str) -> list[Accelerator]:
    """Return the GPUs in `name, memory.total, driver_version` of nvidia-smi as CSV without header and units."""
    accelerators = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0] and not cells[0].startswith("["):
            memory = round(int(cells[1]) / _MIB_PER_GIB, 1) if cells[1].isdigit() else None
            accelerators.append(Accelerator(cells[0], "nvidia", memory, cells[2]))
    return accelerators


def rocm_smi(text: str) -> list[Accelerator]:
    """Return the GPUs in `rocm-smi --showproductname --showmeminfo vram --json`."""
    data = _json(text)
    cards = [(name, each) for name, each in data.items() if name.startswith("card")] if isinstance(data, dict) else []
    accelerators = []
    for _, card in sorted(cards, key=lambda pair: _count(pair[0].removeprefix("card")) or 0):
        if not isinstance(card, dict):
            continue
        fields = {str(key).casefold(): str(value) for key, value in card.items()}
        size = fields.get("vram total memory (b)", "")
        memory = round(int(size) / 1024**3, 1) if size.isdigit() else None
        names = (fields.get("card series"), fields.get("device name"), fields.get("card model"))
        model = next((name for name in names if name and name != "N/A"), "AMD GPU")
        accelerators.append(Accelerator(model, "amd", memory))
    return accelerators


def amd_smi(text: str) -> list[Accelerator]:
    """Return the GPUs in `amd-smi static --asic --vram --json`, in the form of older and of newer versions."""
    data = _json(text)
    rows = data.get("gpu_data", [data]) if isinstance(data, dict) else data
    accelerators = []
    for row in rows if isinstance(rows, list) else []:
        asic = row.get("asic") if isinstance(row, dict) else None
        if not isinstance(asic, dict):
            continue
        size = (row.get("vram") or {}).get("size")
        size = size if isinstance(size, dict) else {"value": size, "unit": "MB"}
        scale = {"MB": _MIB_PER_GIB, "GB": 1, "B": 1024**3}.get(str(size.get("unit")))
        value = size.get("value")
        memory = round(value / scale, 1) if isinstance(value, (int, float)) and scale else None
        accelerators.append(Accelerator(str(asic.get("market_name") or "AMD GPU"), "amd", memory))
    return accelerators


def slurm_config(text: str, nodes: str = "") -> Slurm:
    """Return what `scontrol show config` says, and `scontrol -o show node` of the nodes' architectures."""
    pairs = (line.partition("=") for line in text.splitlines())
    fields = {name.strip(): value.strip() for name, mark, value in pairs if mark}
    kinds = Counter(re.findall(r"(?<!\S)Arch=(\S+)", nodes))
    # The highest index of an array is one less than this number, and indexes begin with 0.
    most = _count(fields.get("MaxArraySize"))
    option = "none"
    if "gpu" in re.split(r"[,\s]", fields.get("GresTypes", "")):
        option = "gpus-per-node" if fields.get("SelectType", "").endswith("cons_tres") else "gres"
    return Slurm(
        version=fields.get("SLURM_VERSION", ""),
        cluster=fields.get("ClusterName", ""),
        accounting=fields.get("AccountingStorageType", "").removeprefix("accounting_storage/")
        not in ("none", "(null)", ""),
        most_array_tasks=most,
        gpu_option=option,
        architectures=tuple(name for name, _ in kinds.most_common()),
    )


SINFO_FORMAT = "%P|%a|%D|%c|%z|%m|%G|%l|%s"


def sinfo(text: str) -> list[Queue]:
    """Return the partitions in `sinfo -h -e -o SINFO_FORMAT`, one line for each kind of nodes in each."""
    rows: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == SINFO_FORMAT.count("|") + 1 and cells[0]:
            rows.setdefault(cells[0], []).append(cells)
    return [_queue(name, lines) for name, lines in rows.items()]


def _queue(name: str, lines: list[list[str]]) -> Queue:
    kinds = sorted((_nodes(cells) for cells in lines), key=lambda kind: -kind.count)
    least, _, most = lines[0][8].partition("-")
    return Queue(
        name=name.rstrip("*"),
        kinds=tuple(kinds),
        max_time_s=slurm_time(lines[0][7]),
        min_nodes=_count(least) or 1,
        max_nodes=_count(most or least),
        default=name.endswith("*"),
        up=lines[0][1] == "up",
    )


def _nodes(cells: list[str]) -> Nodes:
    _, _, count, cpus, shape, memory, gres, _, _ = cells
    sockets, cores, threads = [*(_count(part) for part in shape.split(":")), None, None, None][:3]
    gpus, model = gres_gpus(gres)
    megabytes = _count(memory)
    return Nodes(
        count=_count(count) or 0,
        cpus=_count(cpus),
        sockets=sockets,
        cores=sockets * cores if sockets and cores else None,
        threads_per_core=threads or 1,
        memory_gib=round(megabytes / _MIB_PER_GIB, 1) if megabytes else None,
        gpus=gpus,
        gpu_model=model,
    )


def gres_gpus(text: str) -> tuple[int, str]:
    """Return how many GPUs a node has by its generic resources, such as `gpu:a100:4(S:0-1),nvme:1`, and their model."""
    total, models = 0, []
    for match in _GRES.finditer(text):
        if match.start() == 0 or text[match.start() - 1] == ",":
            total += int(match["count"] or 1)
            models += [match["model"]] if match["model"] else []
    return total, " and ".join(dict.fromkeys(models))


def slurm_time(text: str) -> float | None:
    """Return the seconds of a time limit as sinfo prints it; None where there is no limit."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, first, second, third = match.groups()
    parts = (int(first), int(second), int(third)) if third else (0, int(first), int(second))
    return int(days or 0) * 86400.0 + parts[0] * 3600 + parts[1] * 60 + parts[2]


def df(text: str, name: str, path: str) -> StoragePlace:
    """Return the place that `df -PTk PATH` describes."""
    lines = [line for line in text.splitlines() if line.strip()]
    cells = lines[-1].split() if len(lines) > 1 else []
    if len(cells) < 7 or not (cells[2].isdigit() and cells[4].isdigit()):
        return StoragePlace(name, path, problem="df printed nothing about it")
    return StoragePlace(name, path, cells[1], int(cells[2]) * 1024, int(cells[4]) * 1024)


def networks(devices: str, interfaces: str, lspci: str = "") -> list[Network]:
    """Return the fast networks in lines `device|link layer|rate|state`, in names of interfaces, else on the bus."""
    fast = []
    for line in devices.splitlines():
        device, layer, rate, state = [*(cell.strip() for cell in line.split("|")), "", "", ""][:4]
        if not device or (state and "ACTIVE" not in state):
            continue
        kind = "Omni-Path" if device.startswith("hfi1") else "RoCE" if layer == "Ethernet" else layer or "InfiniBand"
        speed = re.match(r"([\d.]+) Gb/sec(?: \(\d+X (\w+)\))?", rate)
        shown = " ".join(filter(None, [speed[2], f"{speed[1]} Gbit/s"])) if speed else ""
        fast.append(Network(kind, device, shown))
    fast += [Network("Slingshot", name) for name in sorted(interfaces.split()) if re.fullmatch(r"hsn\d+", name)]
    if not fast:
        for line in lspci.splitlines():
            kind = next((kind for mark, kind in _ON_THE_BUS.items() if mark in line.casefold()), "")
            if kind:
                fast.append(Network(kind, line.split()[0]))
    return fast


def module_list(text: str) -> list[str]:
    """Return the modules with their versions in a terse list of Lmod or environment-modules."""
    names = [line.strip() for line in text.splitlines()]
    kept = [re.sub(r"(?:\([^)]*\)|<[^>]*>)+$", "", name) for name in names if name and not name.endswith((":", "/"))]
    return list(dict.fromkeys(name for name in kept if re.fullmatch(r"[\w.+@/-]+", name) and not name.startswith("-")))


def stages(modules: Sequence[str]) -> list[str]:
    """Return the stages that modules offer, oldest first, as system files name them: `2022`, `LUMI/22.08`."""
    names: list[str] = []
    for kind in _STAGE_MODULES:
        versions = sorted(name.partition("/")[2] for name in modules if name.startswith(f"{kind}/"))
        names += versions if kind == "Stages" else [f"{kind}/{version}" for version in versions]
    return names


def module_version(text: str) -> tuple[str, str]:
    """Return which module system `module --version` comes from, and its version."""
    kind = "lmod" if re.search(r"Lua|Lmod", text) else "environment-modules" if "Modules" in text else "none"
    match = _VERSION.search(text)
    return kind, match[0] if match else ""


def version(text: str) -> str:
    """Return the version in what a program prints of itself, or its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    release = next((line for line in lines if "release" in line and _VERSION.search(line)), "")  # nvcc's fourth line
    for line in filter(None, [release, *lines]):
        # What stands in brackets is the version of the package, or of something else.
        match = _VERSION.search(re.sub(r"\([^)]*\)", "", line)) or _VERSION.search(line)
        if match:
            return match[0].rstrip(".,-")
    return lines[0][:80] if lines else ""


def components(text: str) -> tuple[str, Mapping[str, str]]:
    """Return the version of Python and of the frameworks' components that our question to it printed."""
    data = _json(text)
    if not isinstance(data, dict) or not isinstance(data.get("components"), dict):
        return "", {}
    return str(data.get("python", "")), {str(name): str(value) for name, value in data["components"].items()}


def _json(text: str) -> Any:
    """Return the JSON in a text, which a warning may precede; None where there is none."""
    for start in (0, min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=0)):
        try:
            return json.loads(text[start:])
        except (ValueError, RecursionError):
            continue
    return None


def _count(text: str | None) -> int | None:
    """Return the number that a text begins with: `96+` is at least 96; 0 and anything else is not known."""
    match = re.match(r"\d{1,12}", text.strip()) if text else None
    return int(match[0]) or None if match else None
