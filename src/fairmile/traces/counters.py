"""Bytes that kernels of a GPU really move, as its hardware counts them: by ncu of NVIDIA Nsight Compute.

ncu runs the program and counts the kernels between cudaProfilerStart and cudaProfilerStop, one after another, with
caches and clocks as the program has them. What it counts holds for the program, the times between kernels do not.
"""

from __future__ import annotations

import csv
import glob
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import Integrity, Unsupported
from fairmile.base.quick_dataclass import dataclass

FILE = "counters.csv"
_READ, _WRITTEN, _TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"
_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/opt/nvidia/hpc_sdk/*/*/profilers/*/ncu")
_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
_UNITS = {
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0, "second": 1.0,
}  # fmt: skip
_PRODUCTS = re.compile(
    r"(?i)gemm|gemv|xmma|nvjet|cutlass|splitk|conv(?!ert)|wgrad|dgrad|fprop|winograd|fmha|flash|attention"
    r"|nchwtonhwc|nhwctonchw|nhwcaddpadding|rnn|lstm"
)
_TELLING = re.compile(r"(?i)functor"), re.compile(r"(?i)_kernel|launch_|copy|norm|adam|sgd|cutlass_")


class KernelTrafficDict(TypedDict):
    """`KernelTraffic` as JSON holds it."""

    kernel: str
    calls: int
    read_bytes: float
    written_bytes: float
    seconds: float
    bytes_per_s: float
    of_peak: float | None


class TrafficDict(TypedDict):
    """`Traffic` as JSON holds it."""

    device: str
    steps: int
    read_bytes: float
    written_bytes: float
    seconds: float
    bytes_per_s: float
    of_peak: float | None
    products_bytes: float
    products_model_bytes: float | None
    kernels: list[KernelTrafficDict]


@dataclass(frozen=True)
class KernelTraffic:
    """What the kernels of one name moved between the GPU and its memory in all counted steps."""

    kernel: str
    calls: int
    read_bytes: float
    written_bytes: float
    seconds: float
    bytes_per_s: float
    of_peak: float | None = None  # of the datasheet's bandwidth, where the device is known


@dataclass(frozen=True)
class Traffic:
    """What all kernels of the counted `steps` moved; with 0 steps, those of a window of time.

    `products_bytes` is the part of matrix products, convolutions and attention; `products_model_bytes` what their
    operators read and write if each tensor goes through memory once, where the trace tells their inputs.
    """

    device: str
    steps: int
    read_bytes: float
    written_bytes: float
    seconds: float
    bytes_per_s: float
    of_peak: float | None
    products_bytes: float
    products_model_bytes: float | None
    kernels: tuple[KernelTraffic, ...]


@dataclass(frozen=True)
class KernelCount:
    """One kernel that ran: bytes that it read from and wrote to the memory of the GPU, and how long it took."""

    kernel: str
    read_bytes: float
    written_bytes: float
    seconds: float


def counting_command(argv: Sequence[str], log: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the command that runs another one under ncu and writes what was counted to `log`.

    Unsupported says what is missing here: the GPU or ncu.
    """
    if not any(os.path.exists(device) for device in _DEVICES):
        raise Unsupported(
            "no NVIDIA GPU on this machine to count memory traffic on",
            hint="run it where the GPU is, such as within a job, or record times without --counters",
        )
    ncu = _ncu(environ)
    if ncu is None:
        raise Unsupported(
            "ncu of NVIDIA Nsight Compute is not installed, and nothing else reads the counters of the GPU",
            hint="install Nsight Compute, or add its folder to PATH, such as by `module load cuda`",
        )
    # As the program runs, its caches are warm and its clocks change.
    as_it_is = ["--cache-control", "none", "--clock-control", "none"]
    metrics = ",".join((_READ, _WRITTEN, _TIME))
    window = ["--profile-from-start", "off", "--target-processes", "all"]
    return [ncu, *window, *as_it_is, "--csv", "--metrics", metrics, "--log-file", str(log), *argv]


def read_counts(log: Path) -> tuple[list[KernelCount], str]:
    """Return the kernels that ncu counted, and a sentence where it says why there are none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return [], "ncu wrote no counters: it may have ended before the program"
    counts = list(_counts(text, log))
    return counts, "" if counts else _reason(text)


def kernel_label(name: str) -> str:
    """Return a kernel's name as a table shows it: without arguments, with what it computes of its template's."""
    plain = re.sub(r"<unnamed>::|\(anonymous namespace\)::|^void ", "", name)
    base = re.split(r"[<(]", plain, maxsplit=1)[0]
    inner = re.findall(r"[A-Za-z_]\w{3,}", plain[len(base) :])
    told = (each for what in _TELLING for each in inner if what.search(each) and not each.startswith("gpu_kernel"))
    functor = next(told, "")
    return base.rpartition("::")[2] + (f"<{functor}>" if functor else "")


def traffic(
    counts: Sequence[KernelCount], *, steps: int, device: str, peak_bytes_per_s: float | None, model_bytes: float | None
) -> Traffic:
    """Return what kernels moved, by name, those first that moved most."""
    by_name: dict[str, list[KernelCount]] = {}
    for each in counts:
        by_name.setdefault(kernel_label(each.kernel), []).append(each)

    def of_peak(rate: float) -> float | None:
        return rate / peak_bytes_per_s if peak_bytes_per_s else None

    kernels = []
    for name, same in by_name.items():
        read, written, seconds = _sums(same)
        rate = _rate(read + written, seconds)
        kernels.append(KernelTraffic(name, len(same), read, written, seconds, rate, of_peak(rate)))
    read, written, seconds = _sums(counts)
    rate = _rate(read + written, seconds)
    products = sum(each.read_bytes + each.written_bytes for each in counts if is_product(each.kernel))
    kernels.sort(key=lambda each: (-(each.read_bytes + each.written_bytes), each.kernel))
    return Traffic(device, steps, read, written, seconds, rate, of_peak(rate), products, model_bytes, tuple(kernels))


def is_product(kernel: str) -> bool:
    """Tell whether a kernel belongs to a matrix product, a convolution, an attention or a recurrent network."""
    name = re.split(r"[<(]", kernel.removeprefix("void "), maxsplit=1)[0]
    return bool(_PRODUCTS.search(name)) and "bn_" not in name


def _ncu(environ: Mapping[str, str]) -> str | None:
    homes = [f"{environ[name]}/bin/ncu" for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    places = [place for each in (*homes, *_PLACES) for place in sorted(glob.glob(each), reverse=True)]
    known = (place for place in places if os.access(place, os.X_OK))
    return shutil.which("ncu", path=environ.get("PATH")) or next(known, None)


def _counts(text: str, log: Path) -> Iterator[KernelCount]:
    """Yield the kernels of ncu's table; lines of ncu and of the program may stand around and within it."""
    head: list[str] = []
    parts: dict[tuple[str, str, str], dict[str, float]] = {}
    names: dict[tuple[str, str, str], str] = {}
    for line in text.splitlines():
        if not line.startswith('"'):
            continue
        row = next(csv.reader([line]))
        if row[0] == "ID":
            head = row
            continue
        if len(row) != len(head):
            continue
        fields = dict(zip(head, row, strict=True))
        try:
            kernel = fields["Host Name"], fields["Process ID"], fields["ID"]
            value = float(fields["Metric Value"].replace(",", "")) * _UNITS[fields["Metric Unit"]]
            parts.setdefault(kernel, {})[fields["Metric Name"]] = value
            names[kernel] = fields["Kernel Name"]
        except (KeyError, ValueError) as error:
            raise Integrity(f"{log}: not a table of ncu: {type(error).__name__} {error}") from error
    for kernel, metrics in parts.items():
        if metrics.keys() >= {_READ, _WRITTEN, _TIME}:
            yield KernelCount(names[kernel], metrics[_READ], metrics[_WRITTEN], metrics[_TIME])


def _reason(text: str) -> str:
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "the driver lets only administrators read the counters of the GPU: ask for "
            "NVreg_RestrictProfilingToAdminUsers=0, or run as root"
        )
    errors = re.findall(r"==ERROR==\s*(.+)", text)
    if errors:
        return f"ncu counted nothing: {errors[0].strip()}"
    return "no kernel ran in the recorded steps"


def _sums(counts: Sequence[KernelCount]) -> tuple[float, float, float]:
    return (
        sum(each.read_bytes for each in counts),
        sum(each.written_bytes for each in counts),
        sum(each.seconds for each in counts),
    )


def _rate(moved: float, seconds: float) -> float:
    return moved / seconds if seconds else 0.0
