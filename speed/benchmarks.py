"""Measures the benchmarks that learn: data made, trained to a quality, read from files, and the harness's own cost.

Run: python speed/benchmarks.py [--case prepare|quality|harness]… [--benchmark NAME]… [--quick]
     [--data earthquake=CATALOG] [--device cpu|cuda]…

prepare: what it takes to make or read the data; a peer, where there is one, does the same work in the same process.
quality: samples/s of training, and the time until validation beats the trivial baseline by a margin, on CPU sizes.
harness: an epoch by the harness beside one of a plain PyTorch loop that does the same work, for what benchmarks train
         by default; they take turns in one process. The goal: at most 1 % more. Where there is a GPU, there too, with
         larger models.
Times are of the CPU, user and system, with one thread of torch; on a GPU they are of the clock. All takes about three
minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import copy
import csv
import dataclasses
import gzip
import io
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmile.base.errors import FairmileError
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.harness.schedules import learning_rates, make_optimizer
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.trainer import fit
from fairmile.benchmarks.suite.cosmoflow import baselines as cosmic
from fairmile.benchmarks.suite.cosmoflow import benchmark as cosmoflow
from fairmile.benchmarks.suite.cosmoflow.benchmark import CosmoFlowTask, Data
from fairmile.benchmarks.suite.cosmoflow.files import Cubes
from fairmile.benchmarks.suite.cosmoflow.settings import choose
from fairmile.benchmarks.suite.cosmoflow.universes import Generator
from fairmile.benchmarks.suite.earthquake import baselines as seismic
from fairmile.benchmarks.suite.earthquake import data as catalog
from fairmile.benchmarks.suite.earthquake.bins import Grid, daily_bins
from fairmile.benchmarks.suite.earthquake.context import add_context
from fairmile.benchmarks.suite.earthquake.events import read_events
from fairmile.benchmarks.suite.earthquake.models import ForecastTask
from fairmile.benchmarks.suite.earthquake.scoring import scores as nnse
from fairmile.benchmarks.suite.earthquake.settings import Settings as EarthquakeSettings
from fairmile.benchmarks.suite.earthquake.windows import split
from fairmile.benchmarks.suite.miniweather import benchmark as miniweather
from fairmile.benchmarks.suite.miniweather import solver, surrogate
from fairmile.benchmarks.suite.miniweather.kessler import Kessler
from fairmile.benchmarks.suite.miniweather.learning import Emulation
from fairmile.benchmarks.suite.miniweather.native import find_kernel
from fairmile.benchmarks.suite.miniweather.settings import Settings as MiniweatherSettings
from fairmile.benchmarks.suite.mnist.benchmark import Recognition
from fairmile.benchmarks.suite.mnist.data import made_digits
from fairmile.benchmarks.suite.mnist.settings import Settings as MnistSettings

NAMES = ("earthquake", "cosmoflow", "miniweather", "mnist")
SMALL = ("mnist", "miniweather", "sgemm", "uno")  # whose steps take less than 10 ms on a CPU
SUITE = (*NAMES, "cloudmask", "deepcam", "opencatalyst", "sgemm", "stemdl", "uno")
CASES = ("prepare", "quality", "harness")
GOAL = 0.01  # of a plain loop's time
_NEVER = 1_000_000
ROWS = 100_000  # of a catalog that the peer reads at most
CELLS = 100, 50
DISTINCT = 32  # cubes that are drawn for the harness; the others repeat them, which changes no time

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Bench:
    """What was asked for, and a folder for what is made."""

    scratch: Path
    benchmarks: Sequence[str]  # none: the usual ones of each part
    data: Mapping[str, Path]
    is_quick: bool
    devices: Sequence[str] = ("cpu",)  # of the harness

    def chosen(self, usual: Sequence[str], possible: Sequence[str] = ()) -> list[str]:
        """Return which benchmarks a part measures."""
        return [name for name in self.benchmarks or usual if name in (possible or usual)]

    @property
    def repeats(self) -> int:
        return 1 if self.is_quick else 3

    def session(self, name: str, **params: Any) -> Session:
        """Return a session of its own whose prepared data all share."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch))
        return Session(name, params, 0, None, folder, self.scratch / "cache", False, Ranks())

    @cached_property
    def catalog(self) -> Path:
        """The prepared made-up catalog."""
        catalog.prepare(None, folder := self.scratch / "catalog", EarthquakeSettings())
        return folder

    @cached_property
    def storms(self) -> Path:
        """The simulated storms, and cells drawn from them."""
        given: dict[str, Any] = {"storm_s": 450.0, "members": 1} if self.is_quick else {}
        session = self.session("miniweather", work="prepare", **given)
        with quiet():
            miniweather.run(session)
        return session.folder


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what benchmarks print from the figures."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def least_s(work: Callable[[], Any], repeats: int) -> float:
    """Return the CPU time of the fastest of some repeats."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return max(min(found), 1e-9)


def line(name: str, text: str) -> None:
    print(f"  {name:<12} {text}", flush=True)


# Prepare


def prepare(bench: Bench) -> None:
    print("prepare: CPU time")
    parts = {
        "earthquake": prepare_earthquake,
        "cosmoflow": prepare_cosmoflow,
        "miniweather": prepare_miniweather,
        "mnist": prepare_mnist,
    }
    for name in bench.chosen(NAMES):
        parts[name](bench)


def prepare_earthquake(bench: Bench) -> None:
    settings = EarthquakeSettings()
    made = bench.catalog / "events.csv.gz"
    given = bench.data.get("earthquake")
    for words, source in (("made-up", None), *([("real", given)] if given else [])):
        file = source or made
        events = len(read_events(file))
        target = bench.scratch / f"catalog-{words}"
        took_s = least_s(lambda from_=source, to=target: catalog.prepare(from_, to, settings), bench.repeats)
        line("earthquake", f"{words} catalog of {events:,} events: {took_s:.2f} s, {events / took_s:,.0f} events/s")
        if file.is_file():
            beside_python(bench, file, events, settings)


def beside_python(bench: Bench, file: Path, events: int, settings: EarthquakeSettings) -> None:
    """Compare reading and daily bins with a loop over the events, as notebooks do it."""
    grid = Grid(settings.south, settings.north, settings.west, settings.east, settings.pixel_degrees)

    def ours() -> None:
        found = read_events(file)
        daily_bins(found, grid, int(found.days[0]), int(found.days[-1] - found.days[0]) + 1)

    ours_s = least_s(ours, bench.repeats)
    read = 0

    def plain() -> None:
        nonlocal read
        read = plain_bins(file, grid)

    plain_s = least_s(plain, bench.repeats)
    rate, peer = events / ours_s, read / plain_s
    line("", f"  read and binned by day: {rate:,.0f} events/s, {rate / peer:.1f} x a loop in Python ({peer:,.0f})")


def plain_bins(file: Path, grid: Grid) -> int:
    """Sum the energy of each day and pixel, one event after the other; return how many."""
    energy: dict[tuple[int, int], float] = {}
    count, latest = 0, 0.0
    opened: Callable[..., Any] = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", newline="") as stream:
        rows = csv.reader(stream)
        names = {name: at for at, name in enumerate(next(rows))}
        when, lat, lon, mag = (names[each] for each in ("time_utc", "lat", "lon", "mag"))
        for row in rows:
            day, second = second_of(row[when])
            north, east = grid.north - float(row[lat]), float(row[lon]) - grid.west
            place = int(north / grid.pixel_degrees) * grid.columns + int(east / grid.pixel_degrees)
            if row[mag]:
                energy[day, place] = energy.get((day, place), 0.0) + 10 ** (1.5 * float(row[mag]))
            latest = max(latest, day * 86400 + second)
            count += 1
            if count == ROWS:
                break
    return count


def second_of(text: str) -> tuple[int, float]:
    """Return day and second of a time; catalogs have seconds of 60, which the standard library refuses."""
    hours, minutes, seconds = text[11:].rstrip("Z").split(":")
    return date.fromisoformat(text[:10]).toordinal(), int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def prepare_cosmoflow(bench: Bench) -> None:
    for size, cell, many in ((16, 8.0, 64), (32, 4.0, 16)):
        generator = Generator(size, cell, 2019)
        took_s = least_s(lambda of=generator, count=many: of.make(range(count)), bench.repeats)
        line("cosmoflow", f"{size}^3 universes: {many / took_s:,.0f} a second, {took_s / many * 1e3:.2f} ms each")


def prepare_miniweather(bench: Bench) -> None:
    import h5py

    grid = solver.Grid(*CELLS)
    steps = 40 if bench.is_quick else 200
    rates: dict[str, float] = {}
    for wanted in ("numpy", "c"):
        try:
            kernel = find_kernel(wanted, bench.scratch / "cache", os.environ)  # type: ignore[arg-type]
        except FairmileError as error:
            line("miniweather", f"the kernel in C is left out: {error}")
            continue
        problem, state = solver.begin(solver.find_case("thermal"), grid)
        integration = solver.Integration(problem, state, kernel)
        count = steps * (10 if wanted == "c" else 1)
        took_s = least_s(lambda of=integration, n=count: of.advance(n, grid.step_s(1.5)), bench.repeats)
        rates[wanted] = count / took_s
    told = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    ratio = f"; C is {rates['c'] / rates['numpy']:.1f} x NumPy" if len(rates) == 2 else ""
    line("miniweather", f"steps/s of {grid.nx} x {grid.nz} cells: {told}{ratio}")
    began = time.process_time()
    folder = bench.storms
    whole_s = time.process_time() - began
    with h5py.File(folder / "members.h5") as file:
        dt_s = float(file.attrs["dt_s"])
        snapshots = [np.asarray(each, np.float64) for name in file for each in file[name]]
    many = MiniweatherSettings().samples
    took_s = least_s(lambda: surrogate.sample(snapshots, dt_s, Kessler(), many, 0), bench.repeats)
    cells = sum(each[0].size for each in snapshots)
    line("miniweather", f"simulations and samples of the CPU size: {whole_s:.1f} s")
    line(
        "miniweather",
        f"Kessler's cells: {len(samples_of(folder)) / took_s:,.0f} samples/s, drawn from {cells / took_s:,.0f} cells/s",
    )


def prepare_mnist(bench: Bench) -> None:
    took_s = least_s(made_digits, 1 + bench.repeats)
    digits = made_digits()
    many = len(digits.train_labels) + len(digits.test_labels)
    line("mnist", f"{many:,} images of scikit-learn: {took_s * 1e3:.0f} ms, {many / took_s:,.0f} a second")


def samples_of(folder: Path) -> surrogate.CellSamples:
    return surrogate.CellSamples.read(folder / "samples.h5")


# Quality


@dataclass(frozen=True)
class Aim:
    """A task, and what its validation has to reach: better than the trivial baseline by a margin."""

    task: Any
    baseline: str
    trivial: float
    wanted: float


def earthquake_task(bench: Bench, **changes: Any) -> ForecastTask:
    settings = EarthquakeSettings(**{"device": "cpu", "save_every": 0, **changes})
    grid = Grid(settings.south, settings.north, settings.west, settings.east, settings.pixel_degrees)
    data = add_context(catalog.load(bench.catalog), grid, settings.scale)
    return ForecastTask.of(settings, Metric("nnse", "higher"), *split(data, settings))


def earthquake_aim(bench: Bench) -> Aim:
    task = earthquake_task(bench)
    training, validation = task.training.windows, task.validation
    found = {
        name: nnse(validation.truth("overlapping"), make(training, validation, "overlapping"))["nnse"]
        for name, (kind, make) in seismic.BASELINES.items()
        if kind == "trivial"
    }
    best = max(found, key=found.__getitem__)
    return Aim(task, best, found[best], found[best] + 0.02)


def cosmoflow_aim(bench: Bench) -> Aim:
    size = {"train_samples": 512, "validation_samples": 128, "epochs": 4} if bench.is_quick else {}
    settings = choose({"device": "cpu", "save_every": 0, **size}, has_data=False, has_gpu=False)
    with quiet():
        data = cosmoflow.prepare(bench.session("cosmoflow"), settings)
    mean = cosmic.Mean.fit(data.training.y).predict(len(data.validation))
    trivial = cosmic.scores(mean, data.validation.y)["mae"]
    return Aim(CosmoFlowTask(settings, data), "mean", trivial, 0.9 * trivial)


def miniweather_aim(bench: Bench) -> Aim:
    settings = MiniweatherSettings(device="cpu", save_every=0)
    train, test = samples_of(bench.storms).split(settings.test_share, 0)
    scaling = surrogate.Scaling.of(train, settings.target, settings.features)
    trivial = surrogate.score(scaling, test, test.before.astype(np.float64))["mse"]
    return Aim(Emulation(settings, train, test, scaling, False), "output = input", trivial, 0.1 * trivial)


def mnist_aim(bench: Bench) -> Aim:
    digits = made_digits()
    trivial = float(np.mean(digits.test_labels == np.bincount(digits.train_labels).argmax()))
    task = Recognition(MnistSettings(epochs=40, device="cpu", save_every=0), digits, False)
    return Aim(task, "most frequent digit", trivial, trivial + 0.8)


class Watched:
    """A task that ends as soon as a target is met, and notes the CPU time at each batch."""

    def __init__(self, task: Any, wanted: float) -> None:
        self._task = dataclasses.replace(task, settings=dataclasses.replace(task.settings, stop_at_target=True))
        self.settings = self._task.settings
        self.metric = dataclasses.replace(task.metric, target=wanted)
        self.marks_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def loss(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self.marks_s.append(time.process_time())
        found: torch.Tensor = self._task.loss(model, batch)
        return found

    def samples_per_s(self) -> float:
        """Return the median over the epochs."""
        size = self.settings.batch_size
        steps = -(-len(self.training) // size)
        epochs = [self.marks_s[at : at + steps] for at in range(0, len(self.marks_s), steps)]
        return statistics.median((len(each) - 1) * size / (each[-1] - each[0]) for each in epochs if len(each) > 1)


def quality(bench: Bench) -> None:
    print("quality: CPU size, one thread, until validation is better than a trivial baseline by a margin")
    aims = {
        "earthquake": earthquake_aim,
        "cosmoflow": cosmoflow_aim,
        "miniweather": miniweather_aim,
        "mnist": mnist_aim,
    }
    for name in bench.chosen(NAMES):
        aim = aims[name](bench)
        task = Watched(aim.task, aim.wanted)
        began = time.process_time()
        with quiet():
            trained = fit(task, bench.session(name))
        took_s = time.process_time() - began
        metric, value = task.metric, trained.scores[task.metric.name]
        sign = ">=" if metric.better == "higher" else "<="
        verdict = f"{took_s:.1f} s" if metric.is_met(value) else f"NOT REACHED in {took_s:.1f} s"
        line(
            name,
            f"{metric.name} {sign} {aim.wanted:.3g} ({aim.baseline}: {aim.trivial:.3g}): {verdict}, "
            f"{len(trained.history)} epochs, then {value:.3g}; {task.samples_per_s():,.0f} samples/s",
        )


# Harness


class Accompanied:
    """A task beside whose training a plain loop trains the same model: an epoch of it before each of the harness.

    An epoch of the harness is all that happens from its first batch to that of the next one.
    """

    def __init__(self, task: Any, device: torch.device, folder: Path) -> None:
        self._task, self._device, self._folder = task, device, folder
        self.settings, self.metric, self.validation = task.settings, task.metric, task.validation
        self.loss, self.predict, self.scores = task.loss, task.predict, task.scores
        self.training = bordered(task.training, self._border)
        self.steps = -(-len(task.training) // task.settings.batch_size)
        self.ours_s: list[float] = []
        self.plain_s: list[float] = []
        self._began_s: float | None = None
        self._epoch: Callable[[], None] | None = None

    def model(self) -> torch.nn.Module:
        self._model: torch.nn.Module = self._task.model()
        return self._model

    def _border(self, batches: int) -> None:
        if batches % self.steps:
            return
        now_s = self._clock()
        if self._began_s is not None:
            self.ours_s.append(now_s - self._began_s)
        if self._epoch is None:  # the model is where and how the harness wants it by now
            self._epoch = plain_loop(self._task, copy.deepcopy(self._model), self._device, self._folder)
        began_s = self._clock()
        self._epoch()
        self._began_s = self._clock()
        self.plain_s.append(self._began_s - began_s)

    def _clock(self) -> float:
        if self._device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


class _Bordered:
    """Samples that tell when a batch is asked for."""

    def __init__(self, samples: Any, border: Callable[[int], object]) -> None:
        self._samples, self._border, self._batches = samples, border, 0

    def __len__(self) -> int:
        return len(self._samples)

    def batch(self, numbers: Any) -> Any:
        self._border(self._batches)
        self._batches += 1
        return self._samples.batch(numbers)


class _BorderedResident(_Bordered):
    """The same of samples that can live on a device."""

    @property
    def size_bytes(self) -> int:
        size_bytes: int = self._samples.size_bytes
        return size_bytes

    def resident(self, device: torch.device) -> _Bordered:
        return bordered(self._samples.resident(device), self._border)


def bordered(samples: Any, border: Callable[[int], object]) -> Any:
    return (_BorderedResident if hasattr(samples, "resident") else _Bordered)(samples, border)


def plain_loop(task: Any, model: torch.nn.Module, device: torch.device, folder: Path) -> Callable[[], None]:
    """Return an epoch of training as one writes it for this task alone, with nothing left to choose.

    It does what the settings ask of the harness: a new order of samples, the learning rate of the step, clipping, the
    mean loss; where they are due, an evaluation whose best weights are kept and a checkpoint of `torch.save`. Only what
    watches is missing: waiting for data is not timed, nothing is logged, and a crash can damage the checkpoint.
    """
    settings = task.settings
    is_resident = settings.resident and hasattr(task.training, "resident")
    training, validation = (each.resident(device) if is_resident else each for each in (task.training, task.validation))
    training = bordered(training, lambda batches: None)  # as on the other side
    optimizer = make_optimizer(settings, model.parameters())
    steps = -(-len(task.training) // settings.batch_size)
    rate = learning_rates(settings, steps_per_epoch=steps, total_steps=settings.epochs * steps)
    is_constant = settings.schedule in ("constant", "plateau") and not settings.warmup_epochs
    forward = torch.autocast(device.type, torch.bfloat16)(task.loss) if settings.precision == "bf16" else task.loss
    best: dict[str, Any] = {"score": None}
    number = 0

    def read(samples: Any, numbers: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {name: torch.as_tensor(value).to(device) for name, value in samples.batch(numbers.numpy()).items()}

    def epoch() -> None:
        nonlocal number
        model.train()
        losses = []
        step = number * steps
        for numbers in torch.randperm(len(training), device=device if is_resident else None).split(settings.batch_size):
            batch = training.batch(numbers) if is_resident else read(training, numbers)
            loss = forward(model, batch)
            loss.backward()
            if settings.clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            if not is_constant:
                optimizer.param_groups[0]["lr"] = rate(step)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            step += 1
        float(torch.stack(losses).mean())
        number += 1
        if number % settings.evaluate_every == 0:
            evaluate()
        if settings.save_every and number % settings.save_every == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "plain.pt")

    @torch.no_grad()
    def evaluate() -> None:
        model.eval()
        parts: dict[str, list[Array]] = {}
        at_once = settings.eval_batch_size or settings.batch_size
        for numbers in torch.arange(len(validation), device=device if is_resident else None).split(at_once):
            batch = validation.batch(numbers) if is_resident else read(validation, numbers)
            for name, value in task.predict(model, batch).items():
                parts.setdefault(name, []).append(value.float().cpu().numpy())
        score = task.scores({name: np.concatenate(each) for name, each in parts.items()})[task.metric.name]
        if task.metric.is_better(score, best["score"]):
            best.update(score=score, model=copy.deepcopy(model.state_dict()))

    return epoch


class _Taken(Exception):
    """The task of a benchmark is known; its program need not go on."""


def default_task(bench: Bench, name: str, device: torch.device) -> Any:
    """Return the task that a user's run of a benchmark trains by default."""
    tasks: list[Any] = []

    def take(task: Any) -> None:
        tasks.append(task)
        raise _Taken

    session = dataclasses.replace(bench.session(name, device=device.type), on_task=take)
    with quiet(), contextlib.suppress(_Taken):
        import_module(f"fairmile.benchmarks.suite.{name}.benchmark").run(session)
    return tasks[0]


def harness_tasks(bench: Bench, device: torch.device) -> dict[str, Any]:
    """Return what benchmarks train by default; on a GPU larger models, whose data need no meaning."""
    if device.type == "cpu":
        tasks = {name: default_task(bench, name, device) for name in bench.chosen(SMALL, SUITE)}
        found = {f"{name}, batch {task.settings.batch_size}": task for name, task in tasks.items()}
        settings = MnistSettings(device="cpu", save_every=0, evaluate_every=_NEVER, batch_size=2, epochs=12)
        return found | {"one weight, batch 2": Least(settings)}
    found = {}
    common = {"device": device.type}
    if "cosmoflow" in bench.chosen(NAMES):
        large = {"width": 32, "depth": 5, "batch_size": 16, "optimizer": "sgd"}
        chosen = choose({**common, **large}, has_data=False, has_gpu=True)
        edge, many = 64, 512
        draw = np.random.default_rng(0)
        y = draw.uniform(-1, 1, (many, 4)).astype(np.float32)
        few = draw.poisson(1.0, (DISTINCT, edge, edge, edge, 4)).astype(np.int16)
        cubes = Cubes(np.tile(few, (many // DISTINCT, 1, 1, 1, 1)), y)
        data = Data(cubes, Cubes(cubes.x[:64], y[:64]), edge, 4, is_real=False, words="")
        found[f"CosmoFlow {edge}^3, batch {chosen.batch_size}"] = CosmoFlowTask(chosen, data)
    if "earthquake" in bench.chosen(NAMES):
        large = {"d_model": 64, "lstm_layers": 2, "batch_size": 1024, "precision": "bf16"}
        task = earthquake_task(bench, **common, **large)
        found[f"TFT, width {task.settings.d_model}, batch {task.settings.batch_size}"] = task
    return found


@dataclass(frozen=True)
class Least:
    """A task whose step is next to nothing: what an epoch takes beside a plain loop is the harness's own."""

    settings: MnistSettings
    metric: Metric = dataclasses.field(default_factory=lambda: Metric("mean", "lower"))
    training: ArraySamples = dataclasses.field(default_factory=lambda: _numbers(2048))
    validation: ArraySamples = dataclasses.field(default_factory=lambda: _numbers(8))

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(1, 1)

    def loss(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = model(batch["x"]).square().mean()
        return found

    def predict(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"y": model(batch["x"])}

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        return {"mean": float(outputs["y"].mean())}


def _numbers(many: int) -> ArraySamples:
    return ArraySamples({"x": np.ones((many, 1), np.float32)})


def harness(bench: Bench) -> None:
    for device in map(torch.device, bench.devices):
        clock = "CPU time" if device.type == "cpu" else f"clock, {torch.cuda.get_device_name()}"
        print(f"harness beside a plain loop, epoch by epoch in turns; {clock}")
        for name, task in harness_tasks(bench, device).items():
            bare = dataclasses.replace(task.settings, save_every=0, evaluate_every=_NEVER)
            beside(bench, name, dataclasses.replace(task, settings=bare), device)
            if task.settings != bare:
                beside(bench, "  evaluated and saved", task, device)


def beside(bench: Bench, name: str, task: Any, device: torch.device) -> None:
    """Train with the harness and with a plain loop in turns, and tell what one takes of the other."""
    folder = Path(tempfile.mkdtemp(dir=bench.scratch))
    # The first epoch warms up, the last has no end.
    task = dataclasses.replace(task, settings=dataclasses.replace(task.settings, epochs=max(task.settings.epochs, 3)))
    ours: list[float] = []
    plain: list[float] = []
    while not plain or sum(plain) < (0.2 if bench.is_quick else 10.0):
        watched = Accompanied(task, device, folder)
        with quiet():
            fit(watched, bench.session("harness"))
        ours += watched.ours_s[1:]
        plain += watched.plain_s[1 : len(watched.ours_s)]
    plain_us, ours_us = (statistics.median(each) / watched.steps * 1e6 for each in (plain, ours))
    own_us = [(a - b) / watched.steps * 1e6 for a, b in zip(ours, plain, strict=True)]
    middle, half = statistics.median(own_us), 2 * 1.25 * statistics.pstdev(own_us) / len(own_us) ** 0.5
    share = middle / plain_us
    verdict = "" if isinstance(task, Least) else f", goal {GOAL:.0%}"
    if verdict and middle - half > GOAL * plain_us:
        verdict += ", MISSED"
    print(
        f"  {name:<28} plain {plain_us:9,.0f} µs/step, harness {ours_us:9,.0f}: {middle:+7.1f} ± {half:.1f} µs, "
        f"{share:+.2%} ± {half / plain_us:.2%}{verdict}; {watched.steps} steps an epoch, {len(ours)} pairs",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", action="append", choices=CASES, help="only this part; may be given again")
    parser.add_argument("--benchmark", action="append", choices=SUITE, help="only this one; may be given again")
    parser.add_argument("--data", action="append", default=[], metavar="earthquake=CATALOG", help="real data, too")
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    parser.add_argument("--device", action="append", choices=there, help="of the harness; may be given again")
    parser.add_argument("--quick", action="store_true", help="small sizes and one repeat: does it work at all?")
    given = parser.parse_args()
    data = {}
    for each in given.data:
        name, _, path = each.partition("=")
        if name != "earthquake" or not Path(path).exists():
            parser.error(f"--data {each}: expected earthquake=CATALOG, a file or folder that is there")
        data[name] = Path(path)
    torch.set_num_threads(1)
    began, cpu = time.perf_counter(), time.process_time()
    parts = {"prepare": prepare, "quality": quality, "harness": harness}
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["FAIRMILE_EVENTS"] = os.devnull  # as in a run: the meter writes
    bench = Bench(Path(folder), given.benchmark or (), data, given.quick, given.device or there)
    for name in given.case or CASES:
        parts[name](bench)
    print(f"all of it {time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of CPU")


if __name__ == "__main__":
    main()
