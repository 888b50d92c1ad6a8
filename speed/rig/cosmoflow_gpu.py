"""CosmoFlow on one GPU: kernels against the roofline, the harness against a plain loop, the loader, memory, learning.

Run: python speed/rig/cosmoflow_gpu.py make|kernels|harness|loader|memory|learn|run FOLDER …
The parts need what `make` leaves in FOLDER; each prints lines of text and adds them to FOLDER/figures.txt. `run` is one
run of the benchmark, for torchrun. All of them with their torchrun cases: bash speed/rig/cosmoflow_gpu.sh FOLDER
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fairmile.base.errors import FairmileError
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.trainer import fit
from fairmile.benchmarks.suite.cosmoflow import baselines, benchmark
from fairmile.benchmarks.suite.cosmoflow.benchmark import CosmoFlowTask, Data
from fairmile.benchmarks.suite.cosmoflow.files import PARTS, Cubes
from fairmile.benchmarks.suite.cosmoflow.models import SLOPE, Block, CosmoFlow, training_flops
from fairmile.benchmarks.suite.cosmoflow.settings import choose
from fairmile.benchmarks.suite.cosmoflow.universes import Generator

PEAK = {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12}  # H200 SXM, dense, datasheet
COUNTS = {128: (192, 16, 1.0), 64: (2048, 256, 4.0), 16: (4096, 512, 8.0)}  # to train, to validate, Mpc/h per cell
SHARE = 0.3  # of the device's memory that the question for too large a batch is given
LARGE_DISTINCT = 48  # universes of 128^3 that are made; the rest repeat them, which changes no time


def say(folder: Path, text: str) -> None:
    print(text, flush=True)
    with (folder / "figures.txt").open("a") as out:
        out.write(text + "\n")


def _some(given: tuple[int, float, range]) -> tuple[Any, Any, Any]:
    size, cell, numbers = given
    x, y = Generator(size, cell, 2019).make(numbers)
    return x, y, baselines.summarise(x) if size == 64 else None


def make(folder: Path, sizes: list[int], processes: int) -> None:
    """Make the universes of some sizes, as memory maps."""
    for size in sizes:
        train, check, cell = COUNTS[size]
        total, step = (LARGE_DISTINCT, 1) if size == 128 else (train + check, 16)
        began = time.perf_counter()
        jobs = [(size, cell, range(at, min(at + step, total))) for at in range(0, total, step)]
        with ProcessPoolExecutor(processes) as pool:
            found = list(pool.map(_some, jobs))
        x, y = np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])
        took_s = time.perf_counter() - began
        place = folder / str(size)
        place.mkdir(parents=True, exist_ok=True)
        numbers = np.arange(train + check) % len(x)
        for part, rows in zip(PARTS, (numbers[:train], numbers[train:]), strict=True):
            np.save(place / f"{part}_x.npy", x[rows])
            np.save(place / f"{part}_y.npy", y[rows])
        if size == 64:
            summaries = np.concatenate([each[2] for each in found])
            np.save(place / "summaries.npy", summaries)
        say(folder, f"made {total} universes of {size}^3 in {took_s:.1f} s with {processes} processes")


class Plain(CosmoFlow):
    """The same network with its layers in the order in which they are written down."""

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        x = torch.log1p(counts.to(self.last.weight.dtype))
        for block in self.blocks:
            assert isinstance(block, Block)
            y = functional.conv3d(x, block.convolution.weight, block.bias, padding=1)
            x = functional.max_pool3d(functional.leaky_relu(y, SLOPE), 2)
        return self._dense(x)


class Padded(CosmoFlow):
    """The same network with four empty channels, which tensor cores may like better."""

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        x = functional.pad(torch.log1p(counts.to(self.last.weight.dtype)), (0, 0, 0, 0, 0, 0, 0, 4))
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            weight = block.convolution.weight
            if number == 0:
                weight = functional.pad(weight, (0, 0, 0, 0, 0, 0, 0, 4))
            x = functional.max_pool3d(functional.conv3d(x, weight, padding=1), 2)
            x = functional.leaky_relu(x + block.bias.to(x.dtype)[:, None, None, None], SLOPE)
        return self._dense(x)


class Halved(CosmoFlow):
    """The same network, pooled by the maximum of pairs, which a compiler can fuse; equal numbers share a gradient."""

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        x = torch.log1p(counts.to(self.last.weight.dtype))
        for block in self.blocks:
            assert isinstance(block, Block)
            x = functional.conv3d(x, block.convolution.weight, padding=1)
            x = torch.maximum(x[:, :, ::2], x[:, :, 1::2])
            x = torch.maximum(x[:, :, :, ::2], x[:, :, :, 1::2])
            x = torch.maximum(x[..., ::2], x[..., 1::2])
            x = functional.leaky_relu(x + block.bias.to(x.dtype)[:, None, None, None], SLOPE)
        return self._dense(x)


def _precision(name: str) -> Callable[[], Any]:
    is_tf32 = name == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    torch.backends.cudnn.allow_tf32 = is_tf32
    if name == "bf16":
        return lambda: torch.autocast("cuda", torch.bfloat16)
    return nullcontext


def _timed(step: Callable[[], Any], warm: int = 3, least_s: float = 1.0) -> float:
    """Return the median time of a step by events."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    spent: list[float] = []
    began = time.perf_counter()
    while len(spent) < 10 or (time.perf_counter() - began < least_s and len(spent) < 200):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        step()
        last.record()
        last.synchronize()
        spent.append(first.elapsed_time(last) / 1e3)
    return float(np.median(spent))


def kernels(folder: Path, only: str = "") -> None:
    """Time the training step of the network alone, with data on the device, in many variants."""
    torch.backends.cudnn.benchmark = True
    say(folder, f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    samples = Cubes.mapped(folder / "128", "train").resident(torch.device("cuda"))
    eager: list[tuple[type[CosmoFlow], str, str, bool, bool, int]] = [
        (Plain, "as written", "fp32", False, False, 4),
        (Plain, "as written", "tf32", False, False, 4),
        (Plain, "as written", "bf16", True, False, 4),
        *((CosmoFlow, "ours", precision, cl, False, 4) for precision in PEAK for cl in (False, True)),
        *((CosmoFlow, "ours", "bf16", True, False, size) for size in (1, 2, 8, 16, 28)),
    ]
    compiled_too: list[tuple[type[CosmoFlow], str, str, bool, bool, int]] = [
        (CosmoFlow, "ours", "bf16", True, True, 4),
        (Halved, "max of pairs", "bf16", True, True, 4),
        (CosmoFlow, "ours", "bf16", True, True, 16),
        (Padded, "8 channels", "bf16", True, False, 4),
        (CosmoFlow, "ours", "tf32", True, True, 4),
    ]
    cases = (compiled_too if only == "compiled" else eager) if only else [*eager, *compiled_too]
    flops = training_flops(128)
    say(folder, f"128^3: {flops / 1e9:.1f} GFLOP per sample, forward and backward")
    say(folder, "network | precision | channels-last | compiled | batch | ms/step | samples/s | of peak | peak memory")
    profiled = False
    for kind, name, precision, cl, compiled, size in cases:
        torch._dynamo.reset()
        began = time.perf_counter()
        step = _plain_step(kind, samples, precision, cl, compiled, size)
        torch.cuda.reset_peak_memory_stats()
        took_s = _timed(step, least_s=0.7)
        share = flops * size / took_s / PEAK[precision]
        memory = torch.cuda.max_memory_allocated() / 2**30
        say(
            folder,
            f"{name} | {precision} | {cl} | {compiled} | {size} | {took_s * 1e3:.2f} | {size / took_s:.0f} | "
            f"{share:.1%} | {memory:.1f} GiB | (all of it {time.perf_counter() - began:.1f} s)",
        )
        if kind is CosmoFlow and precision == "bf16" and cl and size == 16 and not profiled:
            profiled = True
            _profile(folder, step)
        del step
        torch.cuda.empty_cache()


def _plain_step(
    kind: type[CosmoFlow], samples: Cubes, precision: str, cl: bool, compiled: bool, size: int, edge: int = 128
) -> Callable[[], None]:
    """Return a plain PyTorch training step on data that lies on the device."""
    torch.manual_seed(0)
    context = _precision(precision)
    model = kind(edge).cuda()
    layout = torch.channels_last_3d if cl else torch.contiguous_format
    if cl:
        model = model.to(memory_format=layout)
    if compiled:
        model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    model.train()
    numbers = _forever(len(samples), size)

    def step() -> None:
        batch = samples.batch(next(numbers))
        with context():
            loss = functional.mse_loss(model(batch["x"].contiguous(memory_format=layout)), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _forever(count: int, size: int) -> Iterator[torch.Tensor]:
    while True:
        mixed = torch.randperm(count, device="cuda")
        for at in range(0, count - size + 1, size):
            yield mixed[at : at + size]


def _profile(folder: Path, step: Callable[[], None]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)[:14]
    total = sum(row.self_device_time_total for row in found.key_averages())
    for row in rows:
        say(
            folder,
            f"    {row.self_device_time_total / total:5.1%} {row.self_device_time_total / 3e3:7.3f} ms {row.key[:90]}",
        )


def _task(folder: Path, edge: int, many: int, params: dict[str, Any]) -> CosmoFlowTask:
    settings = choose({"preset": "mlperf", **params}, has_data=False, has_gpu=True)
    parts = [Cubes.mapped(folder / str(edge), part) for part in PARTS]
    train = Cubes(parts[0].x[:many], parts[0].y[:many])
    return CosmoFlowTask(settings, Data(train, parts[1], edge, 4, is_real=False, words=""))


def _session(folder: Path, seed: int = 0) -> Session:
    place = folder / "runs" / f"{time.time_ns()}"
    place.mkdir(parents=True)
    return Session("cosmoflow", {}, seed, None, place, folder, False, Ranks())


def harness(folder: Path) -> None:
    """Compare the harness with a plain loop in this process: same data, same kernels, same steps."""
    torch.backends.cudnn.benchmark = True
    say(folder, "edge | batch | precision | plain loop, ms/step | harness, ms/step | harness costs")
    for edge, size, many in ((128, 4, 96), (128, 16, 96), (64, 4, 512), (64, 32, 2048)):
        torch.backends.cudnn.benchmark = True
        samples = Cubes.mapped(folder / str(edge), "train")
        held = Cubes(samples.x[:many], samples.y[:many]).resident(torch.device("cuda"))
        steps = many // size
        step = _plain_step(CosmoFlow, held, "bf16", True, False, size, edge)
        plain, ours = [], []
        for _ in range(2):
            plain += _epochs(step, steps)
            task = _task(folder, edge, many, {"epochs": 6, "batch_size": size, "save_every": 0, "evaluate_every": 6})
            trained = fit(task, _session(folder))
            ours += [row["epoch_s"] / steps for row in trained.history[2:]]
        before_s, after_s = float(np.median(plain)), float(np.median(ours))
        say(
            folder,
            f"{edge} | {size} | bf16 | {before_s * 1e3:.3f} (best {min(plain) * 1e3:.3f}) | {after_s * 1e3:.3f} "
            f"(best {min(ours) * 1e3:.3f}) | {after_s / before_s - 1:+.2%} (best {min(ours) / min(plain) - 1:+.2%})",
        )


def _epochs(step: Callable[[], None], steps: int, epochs: int = 6) -> list[float]:
    spent = []
    for _ in range(epochs):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        spent.append((time.perf_counter() - began) / steps)
    return spent[2:]


def loader(folder: Path) -> None:
    """Train from memory maps: how many samples come per second, and how long the program waits for them."""
    say(folder, "edge | data | threads | samples/s | waiting")
    for resident, workers in ((True, 0), (False, 0), (False, 1), (False, 2), (False, 4), (False, 8)):
        params = {"epochs": 4, "batch_size": 4, "save_every": 0, "evaluate_every": 4}
        task = _task(folder, 128, 192, {**params, "resident": resident, "workers": workers})
        trained = fit(task, _session(folder))
        rows = trained.history[1:]
        rate = float(np.median([row["samples_per_s"] for row in rows]))
        wait = sum(row["data_wait_s"] for row in rows) / sum(row["epoch_s"] for row in rows)
        place = "on the device" if resident else "memory map"
        say(folder, f"128 | {place} | {workers} | {rate:.0f} ({rate * 16.8e-3:.1f} GB/s) | {wait:.1%}")


def memory(folder: Path) -> None:
    """Ask for a batch that is too large, then for the one that is said to fit."""
    torch.cuda.set_per_process_memory_fraction(SHARE)
    for asked, edge in ((192, 128),):
        params = {"epochs": 1, "max_steps": 2, "save_every": 0, "resident": False}
        largest = 0
        began = time.perf_counter()
        try:
            fit(_task(folder, edge, asked, {**params, "batch_size": asked, "eval_batch_size": 4}), _session(folder))
            say(folder, f"{edge}^3 batch {asked} fits")
        except FairmileError as error:
            say(folder, f"error: {error}\nhint: {error.hint}  ({time.perf_counter() - began:.1f} s)")
            found = [word for word in str(error.hint).replace("`", " ").split() if word.startswith("batch_size=")]
            largest = int(found[0].partition("=")[2]) if found else 0
        torch.cuda.empty_cache()
        if largest:
            for size in (largest, int(largest * 1.1)):
                try:
                    fit(
                        _task(folder, edge, asked, {**params, "batch_size": size, "eval_batch_size": 4}),
                        _session(folder),
                    )
                    say(folder, f"{edge}^3 batch {size} fits: peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
                except FairmileError as error:
                    say(folder, f"{edge}^3 batch {size} does not fit: {error}")
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


def learn(folder: Path) -> None:
    """Train with several settings and precisions: what they reach, and how long it takes."""
    say(folder, "edge | settings | precision | seed | MAE | by parameter | seconds")
    base = {"preset": "small", "save_every": 0, "evaluate_every": 100}
    cases: list[tuple[int, int, dict[str, Any]]] = []
    for many, epochs, size, rate in (
        (4096, 20, 16, 2e-3), (4096, 20, 16, 4e-3), (4096, 20, 32, 4e-3), (4096, 20, 32, 8e-3),
        (2048, 30, 16, 4e-3), (1024, 10, 16, 4e-3), (512, 8, 16, 4e-3),
    ):  # fmt: skip
        given = {**base, "epochs": epochs, "batch_size": size, "learning_rate": rate, "precision": "fp32"}
        cases.append((16, many, given))
    cases += [(16, 4096, {**base, "batch_size": 16, "precision": p, "epochs": 10}) for p in ("fp32", "bf16")]
    summaries, cubes = np.load(folder / "64" / "summaries.npy"), Cubes.mapped(folder / "64", "train")
    truth = np.load(folder / "64" / "validation_y.npy")
    ridge = baselines.Ridge.fit(summaries[: len(cubes)], cubes.y).predict(summaries[len(cubes) :])
    mean = baselines.Mean.fit(cubes.y).predict(len(truth))
    for name, found in (("mean", mean), ("ridge", ridge)):
        say(folder, f"64 | {name} of {len(cubes)} | {_scores(baselines.scores(found, truth))}")
    large = {**base, "width": 32, "depth": 5, "batch_size": 16, "learning_rate": 1e-3, "epochs": 40}
    cases += [(64, 2048, {**large, "precision": precision}) for precision in ("bf16", "tf32")]
    for edge, many, params in cases:
        began = time.perf_counter()
        trained = fit(_task(folder, edge, many, params), _session(folder))
        shown = {name: params[name] for name in ("epochs", "batch_size", "learning_rate") if name in params}
        say(
            folder,
            f"{edge} | {many} {shown} | {params['precision']} | 0 | {_scores(trained.scores)} | "
            f"{time.perf_counter() - began:.1f}",
        )


def _scores(scores: Any) -> str:
    return f"{scores['mae']:.4f} | " + " ".join(f"{value:.3f}" for name, value in scores.items() if "mae_" in name)


def run(folder: Path) -> None:
    """Run the benchmark once as a launcher started it."""
    session = Session.of("cosmoflow", os.environ, folder)
    benchmark.run(dataclasses.replace(session, cache=folder / "cache"))


def main(argv: list[str]) -> None:
    what, folder = argv[0], Path(argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if what == "make":
        make(folder, [int(each) for each in argv[3:]], int(argv[2]))
    else:
        parts: dict[str, Callable[..., None]] = {
            "kernels": kernels,
            "harness": harness,
            "loader": loader,
            "memory": memory,
            "learn": learn,
            "run": run,
        }
        parts[what](folder, *argv[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
