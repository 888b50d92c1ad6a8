"""Ways to feed a training, measured in turns on its own data and step: threads, memory-mapped shards, the device."""

from __future__ import annotations

import json
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairmile.base.errors import UsageError
from fairmile.base.files import write_atomic
from fairmile.benchmarks.harness.loader import Loader, Tensors
from fairmile.benchmarks.harness.shards import read_shards, write_shards

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.session import Session
    from fairmile.benchmarks.harness.task import Samples, Task

Array = np.ndarray[Any, Any]

FILE = "loaders.json"
ROUNDS = 7
_ROUND_S = 0.2  # of steps, for each way
_MOST_STEPS = 200
_STUDENT = 2.447  # 0.975, of 7 rounds
_SAMPLE_BYTES = 4 << 20  # of data that is compressed to see what it saves
_SHARD_BYTES = 256 << 20  # of data that is copied to shards to measure them


@dataclass(frozen=True)
class Way:
    """One way to feed a training."""

    name: str
    workers: int = 0
    resident: bool = False
    shards: bool = False

    @property
    def settings(self) -> str:
        """Return the parameters that choose it."""
        if self.resident:
            return "resident=true"
        return f"resident=false workers={self.workers}" + (" shards=true" if self.shards else "")


WAYS = (
    Way("when needed", 0),
    Way("1 thread", 1),
    Way("2 threads", 2),
    Way("memory-mapped shards, 1 thread", 1, shards=True),
    Way("on the device", resident=True),
)


def measure_loaders(
    task: Task, session: Session, device: torch.device, step: Callable[[Tensors], None]
) -> dict[str, Any]:
    """Train some steps with each way in turns, write what each takes to a file and return it."""
    place = session.cache / session.name  # where a training would write its shards
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="loaders-", dir=place) as scratch:
        measured = _measured(task, session, device, step, Path(scratch))
    write_atomic(session.folder / FILE, json.dumps(measured, indent=1) + "\n")
    return measured


def _measured(
    task: Task, session: Session, device: torch.device, step: Callable[[Tensors], None], scratch: Path
) -> dict[str, Any]:
    """Return what each way takes."""
    loaders: dict[Way, Loader] = {}
    left_out: dict[str, str] = {"DALI": _dali()}
    for way in WAYS:
        given: dict[str, Any] = {"device": device, "ranks": session.ranks, "seed": session.seed, "shuffle": True}
        try:
            samples = _shards(task, scratch) if way.shards else task.training
        except UsageError as error:
            left_out[way.name] = str(error)
            continue
        loader = Loader(
            samples, batch_size=task.settings.batch_size, workers=way.workers, resident=way.resident, **given
        )
        if way.resident and not loader.is_resident:
            left_out[way.name] = "the data does not fit on the device, or the benchmark cannot keep it there"
        else:
            loaders[way] = loader
    rates = {way: _Rates(loader, step, device) for way, loader in loaders.items()}
    first = next(iter(rates.values()))
    count = max(1, min(_MOST_STEPS, int(_ROUND_S / max(first.time(2)[0], 1e-6))))
    for _ in range(ROUNDS):
        for each in rates.values():
            each.keep(count)
    rows = [each.row(way) for way, each in rates.items()]
    return {
        "device": str(device),
        "batch_size": task.settings.batch_size,
        "steps": count,
        "rounds": ROUNDS,
        "ways": rows,
        "answer": _answer(rates),
        "left_out": {name: why for name, why in left_out.items() if why},
        "compression": _compression(task, rows),
    }


def _shards(task: Task, folder: Path) -> Samples:
    """Return the first samples of the training as memory-mapped shards."""
    samples = task.training
    first = samples.batch(np.arange(1, dtype=np.int64)).values()
    size = sum(np.asarray(each.cpu() if isinstance(each, torch.Tensor) else each).nbytes for each in first)
    write_shards(samples, folder, max(_SHARD_BYTES // max(size, 1), task.settings.batch_size))
    return read_shards(folder)


class _Rates:
    """Seconds per step of one way, round by round."""

    def __init__(self, loader: Loader, step: Callable[[Tensors], None], device: torch.device) -> None:
        self._loader, self._step, self._device = loader, step, device
        self._batches = self._endless()
        self.step_s: list[float] = []
        self.wait_s: list[float] = []

    def _endless(self) -> Iterator[Tensors]:
        epoch = 0
        while True:
            epoch += 1
            yield from self._loader.epoch(epoch)

    def time(self, count: int) -> tuple[float, float]:
        """Return seconds per step, and those of it that waited for data."""
        waited, began = self._loader.taken.waiting_s, time.perf_counter()
        for _ in range(count):
            self._step(next(self._batches))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return (time.perf_counter() - began) / count, (self._loader.taken.waiting_s - waited) / count

    def keep(self, count: int) -> None:
        """Time a round."""
        step_s, wait_s = self.time(count)
        self.step_s.append(step_s)
        self.wait_s.append(wait_s)

    def row(self, way: Way) -> dict[str, Any]:
        step_s, wait_s = float(np.median(self.step_s)), float(np.median(self.wait_s))
        return {"name": way.name, "settings": way.settings, "step_s": step_s, "wait_share": wait_s / step_s}


def _answer(rates: dict[Way, _Rates]) -> dict[str, Any]:
    """Return the fastest way, and how much slower each other one is, with a 95 % interval over the rounds."""
    best = min(rates, key=lambda way: float(np.median(rates[way].step_s)))
    others, is_open = [], []
    for way, each in rates.items():
        if way is best:
            continue
        ratios = np.log(np.asarray(each.step_s) / np.asarray(rates[best].step_s))
        half = _STUDENT * ratios.std(ddof=1) / len(ratios) ** 0.5
        low, middle, high = np.exp([ratios.mean() - half, ratios.mean(), ratios.mean() + half]).tolist()
        others.append({"name": way.name, "ratio": middle, "low": low, "high": high})
        if low <= 1:
            is_open.append(way.name)
    return {"best": best.name, "settings": best.settings, "others": others, "cannot_tell": is_open}


def _dali() -> str:
    if find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None:
        return "installed, but the harness has no pipeline for it"
    return "not installed (nvidia-dali-cuda120)"


def _compression(task: Task, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what lossless compression of the training data would save, and whether reading is the limit at all."""
    count = min(len(task.training), max(1, task.settings.batch_size))
    batch = task.training.batch(np.arange(count, dtype=np.int64))
    arrays = [np.ascontiguousarray(np.asarray(each)) for each in batch.values()]
    arrays = [each[: max(1, _SAMPLE_BYTES // max(1, each[:1].nbytes))] for each in arrays]
    methods = [
        _compressed(name, method, arrays, shuffled) for name, method in _methods().items() for shuffled in (False, True)
    ]
    best = max(methods, key=lambda row: float(row["ratio"]))
    streamed = [row["wait_share"] for row in rows if "workers" in row["settings"]]
    share = min(streamed) if streamed else 0.0
    is_limit = share > 0.2
    if not is_limit:
        advice = f"not needed: steps wait for data for {share:.0%} of their time"
    elif best["ratio"] < 1.2:
        advice = f"not worth it: the data shrinks by a factor of {best['ratio']:.2f}"
    else:
        rate = f"{best['decompress_bytes_per_s'] / 1e6:.0f} MB/s"
        advice = f"store the data with {best['name']}: {best['ratio']:.2f} times smaller, decompressed at {rate}"
    return {"advice": advice, "reading_is_the_limit": is_limit, "methods": methods}


def _methods() -> dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]]:
    found: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
        "zlib 1": (lambda data: zlib.compress(data, 1), zlib.decompress)
    }
    for name, module in (("zstd", "zstandard"), ("lz4", "lz4.frame")):
        if find_spec(module.partition(".")[0]) is not None:
            codec = import_module(module)
            found[name] = (codec.compress, codec.decompress)
    return found


def _compressed(
    name: str, method: tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]], arrays: list[Array], shuffled: bool
) -> dict[str, Any]:
    compress, decompress = method
    data = [_bytes(each, shuffled=shuffled) for each in arrays]
    began = time.process_time()
    packed = [compress(each) for each in data]
    middle = time.process_time()
    same = [decompress(each) for each in packed] == data
    ended = time.process_time()
    size = sum(map(len, data))
    return {
        "name": f"{name} after a byte shuffle" if shuffled else name,
        "ratio": size / max(1, sum(map(len, packed))),
        "compress_bytes_per_s": size / max(middle - began, 1e-6),
        "decompress_bytes_per_s": size / max(ended - middle, 1e-6),
        "lossless": same,
    }


def _bytes(values: Array, *, shuffled: bool) -> bytes:
    """Return the bytes of an array; shuffled, the first bytes of all numbers come first, as blosc does it."""
    if not shuffled or values.itemsize == 1:
        return values.tobytes()
    return values.reshape(-1).view(np.uint8).reshape(-1, values.itemsize).T.tobytes()
