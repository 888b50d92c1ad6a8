"""The program of CosmoFlow: make or prepare the data, fit the baselines and the network, compare them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.predictions import Predictions
from fairmile.benchmarks.harness.scores import Results, Score
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.trainer import Trained, fit
from fairmile.benchmarks.suite.cosmoflow import baselines
from fairmile.benchmarks.suite.cosmoflow.figures import draw_all
from fairmile.benchmarks.suite.cosmoflow.files import (
    CUBE,
    PARTS,
    Counts,
    Cubes,
    FileCubes,
    Listing,
    Unit,
    Universe,
    cube_name,
    has_room,
    list_part,
    read_listed,
    spread,
    write_cube,
    write_maps,
    write_universe,
)
from fairmile.benchmarks.suite.cosmoflow.models import CosmoFlow
from fairmile.benchmarks.suite.cosmoflow.settings import Settings, choose
from fairmile.benchmarks.suite.cosmoflow.universes import NAMES, Generator
from fairmile.meter import span

TARGET = 0.124  # mean absolute error, MLPerf HPC v3.0
PUBLISHED = (
    {"name": "MLPerf HPC v3.0 quality target", "metric": "mae", "value": TARGET, "source": "MLPerf HPC rules v3.0"},
    {
        "name": "reference network of v0.7",
        "metric": "mae",
        "value": 0.118,
        "source": "notebook of the reference implementation, github.com/mlcommons/hpc",
    },
)
_DRAWN = 16  # cubes whose spectra are drawn
_TURNS = tuple(itertools.permutations((2, 3, 4)))
_CHUNK = 64  # universes made at a time
_CELL_BYTES = 8  # four redshifts of int16
_FORMAT = 2  # of what is prepared; another number makes it anew


def run(session: Session) -> None:
    """Run the benchmark as the parameters of the run say."""
    settings = choose(
        session.params,
        has_data=session.data is not None,
        has_gpu=torch.cuda.is_available(),
        ranks=session.ranks.size,
    )
    with span("data"):
        data = prepare(session, settings)
    session.say(f"data: {data.words}")
    if settings.write_as != "none" and session.ranks.is_first:
        _write_published(session, settings, data)
    if settings.work == "prepare":
        return
    task = CosmoFlowTask(settings, data)
    trained = fit(task, session)  # first, since all ranks take part
    if not session.ranks.is_first:
        return
    predicted: dict[str, Any] = {}
    with span("baselines"):
        scores = baseline_scores(settings, data, predicted)
    predicted["network"] = trained.outputs["y"][_looked_at(settings, data.validation)]
    weights = sum(each.numel() for each in trained.model.parameters())
    scores.append(Score("model", "network", trained.scores, f"{weights:,} parameters"))
    with span("plots"):
        drawn = draw(session, settings, data, predicted, trained)
    session.report(
        Results(
            benchmark="cosmoflow",
            data=data.words,
            metric=task.metric,
            scores=scores,
            seed=session.seed,
            settings=dataclasses.asdict(settings),
            published=PUBLISHED,
            notes=notes(settings, data, drawn),
            figures=drawn,
        )
    )


@dataclass(frozen=True)
class Data:
    """Both parts of the cubes, and what they are in words."""

    training: Cubes | FileCubes
    validation: Cubes | FileCubes
    edge: int
    channels: int
    is_real: bool
    words: str


def prepare(session: Session, settings: Settings) -> Data:
    """Return the real data that was given, or universes that are made on the spot, once for all runs."""
    if session.data is None:
        return _made(session, settings)
    return _real(session, settings, session.data)


def _made(session: Session, settings: Settings) -> Data:
    counts = settings.train_samples, settings.validation_samples
    if min(counts) < 1:
        name = "train_samples" if counts[0] < 1 else "validation_samples"
        raise UsageError(f"parameter {name}: expected at least 1 universe to make, found {min(counts)}")
    generator = Generator(settings.size, settings.cell, settings.data_seed)

    def make(folder: Path) -> None:
        session.say(f"making {sum(counts)} universes of {settings.size}^3 cells, once for all runs")
        first = 0
        for part, many in zip(PARTS, counts, strict=True):
            write_maps(folder, part, _universes(generator, first, many), many)
            first += many

    asked = {"format": _FORMAT, **dataclasses.asdict(generator), "counts": counts}
    folder = session.prepared(asked, make)
    words = (
        f"made-up universes (Zel'dovich) of {settings.size}^3 cells of {settings.cell:g} Mpc/h at 4 redshifts: "
        f"{counts[0]} to train, {counts[1]} to validate"
    )
    parts = [Cubes.mapped(folder, part) for part in PARTS]
    return Data(parts[0], parts[1], settings.size, len(generator.redshifts), is_real=False, words=words)


def _write_published(session: Session, settings: Settings, data: Data) -> None:
    """Write universes that were made in a published layout: a folder that can be given as real data."""
    if data.is_real:
        raise UsageError("parameter write_as: only universes that are made can be written", hint="remove the data set")
    place, seed = session.folder / "cosmoUniverse", 0
    for name, part in zip(PARTS, (data.training, data.validation), strict=True):
        for number in range(len(part)):
            x, y = take(part, np.array([number]))
            file = place / name / cube_name("made", seed, 0)
            if settings.write_as == "universe":
                made = Universe(x[0], y[0], seed, dataset_tag="made-up", universe_tag=f"{settings.data_seed}-{seed}")
                write_universe(file.with_suffix(".hdf5"), made)
            else:
                write_cube(file.with_suffix(f".{settings.write_as}"), x[0], y[0])
            seed += 1
    session.say(f"written in {place}")


def _universes(generator: Generator, first: int, many: int) -> Iterator[tuple[Counts, Unit]]:
    for start in range(first, first + many, _CHUNK):
        yield generator.make(range(start, min(start + _CHUNK, first + many)))


def _real(session: Session, settings: Settings, data: Path) -> Data:
    most = settings.train_samples, settings.validation_samples
    listings = [list_part(data, part, limit) for part, limit in zip(PARTS, most, strict=True)]
    if listings[0].edge != listings[1].edge:
        raise UsageError(
            f"{data}: the cubes of train/ have an edge of {listings[0].edge} cells, of validation/ {listings[1].edge}"
        )
    counts = [min(limit or len(listing), len(listing)) for limit, listing in zip(most, listings, strict=True)]
    words = (
        f"{data.name}: cubes of {listings[0].edge}^3 cells at {listings[0].channels} redshifts, "
        f"{counts[0]} to train, {counts[1]} to validate"
    )

    def make(folder: Path) -> None:
        session.say(f"preparing {sum(counts)} cubes as memory maps, once for all runs")
        for part, listing, many in zip(PARTS, listings, counts, strict=True):
            write_maps(folder, part, _listed(listing), many)

    parts: list[Cubes | FileCubes]
    if settings.memory_map and has_room(session.cache, listings):
        folder = session.prepared({"format": _FORMAT, "counts": counts}, make)
        parts = [Cubes.mapped(folder, part) for part in PARTS]
    else:
        parts = [FileCubes(listing, many) for listing, many in zip(listings, counts, strict=True)]
        words += ", read from their files"
    return Data(parts[0], parts[1], listings[0].edge, listings[0].channels, is_real=True, words=words)


def _listed(listing: Listing) -> Iterator[tuple[Counts, Unit]]:
    # Threads unzip side by side; only a few files at a time are held.
    with ThreadPoolExecutor() as threads:
        for batch in (listing.files[at : at + _CHUNK // 4] for at in range(0, len(listing.files), _CHUNK // 4)):
            yield from threads.map(lambda file: read_listed(listing, file), batch)


@dataclass(frozen=True)
class CosmoFlowTask:
    """The network, its data and how it is judged."""

    settings: Settings
    data: Data

    @property
    def metric(self) -> Metric:
        target = TARGET if self.data.is_real and self.data.edge == CUBE else None
        return Metric("mae", "lower", target=target, mllog_key="eval_error")

    @property
    def training(self) -> Cubes | FileCubes:
        return self.data.training

    @property
    def validation(self) -> Cubes | FileCubes:
        return self.data.validation

    def model(self) -> torch.nn.Module:
        settings = self.settings
        return CosmoFlow(
            self.data.edge, channels=self.data.channels, width=settings.width, depth=settings.depth,
            dropout=settings.dropout, is_log=settings.apply_log,
        )  # fmt: skip

    def loss(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        counts = turn(batch["x"]) if self.settings.augment else batch["x"]
        return functional.mse_loss(model(self._in_layout(counts)), batch["y"])

    def predict(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"y": model(self._in_layout(batch["x"])), "truth": batch["y"]}

    def predictions(self, outputs: Mapping[str, np.ndarray[Any, Any]]) -> Predictions:
        """Return the parameters of each cube beside the true ones, both from -1 to 1; a universe is a group."""
        _, universe = np.unique(outputs["truth"], axis=0, return_inverse=True)
        return Predictions("regression", outputs["y"], outputs["truth"], NAMES, groups=universe.reshape(-1))

    def scores(self, outputs: Mapping[str, Any]) -> Mapping[str, float]:
        return baselines.scores(outputs["y"], outputs["truth"])

    def _in_layout(self, counts: torch.Tensor) -> torch.Tensor:
        """Return counts in one memory layout, whatever way they were turned: compiled kernels are made for one."""
        layout = torch.channels_last_3d if self.settings.channels_last else torch.contiguous_format
        return counts.contiguous(memory_format=layout)


def turn(counts: torch.Tensor) -> torch.Tensor:
    """Return a batch of cubes turned or mirrored at random, one of the 48 ways that leave a cube a cube."""
    way = int(torch.randint(len(_TURNS) * 8, (), device="cpu"))
    cells = counts.permute(0, 2, 3, 4, 1)
    # The four counts of a cell lie side by side: they are moved as one number, a quarter of the work.
    if is_joined := cells.is_contiguous() and cells.shape[-1] * cells.element_size() == _CELL_BYTES:
        cells = cells.view(torch.int64)
    turned = cells.permute(0, *(axis - 1 for axis in _TURNS[way // 8]), 4)
    flipped = [axis for axis in (1, 2, 3) if way % 8 >> (axis - 1) & 1]
    turned = turned.flip(flipped) if flipped else turned
    if is_joined:
        turned = turned.contiguous().view(counts.dtype)
    return turned.permute(0, 4, 1, 2, 3)


def baseline_scores(settings: Settings, data: Data, predicted: dict[str, Any]) -> list[Score]:
    """Return what needs no network, and put what it predicts into `predicted`."""
    parts = data.training, data.validation
    numbers = [_looked_at(settings, part) for part in parts]
    summaries, targets = zip(*(_summaries(part, at) for part, at in zip(parts, numbers, strict=True)), strict=True)
    predicted["mean"] = baselines.Mean.fit(targets[0]).predict(len(numbers[1]))
    ridge = baselines.Ridge.fit(summaries[0], targets[0])
    predicted["ridge"] = ridge.predict(summaries[1])
    seen = f"{len(numbers[0])} cubes to train, {len(numbers[1])} to validate"
    return [
        Score("trivial", "mean", baselines.scores(predicted["mean"], targets[1]), seen),
        Score("classical", "ridge", baselines.scores(predicted["ridge"], targets[1]), f"log P(k) and moments; {seen}"),
    ]


def _looked_at(settings: Settings, part: Cubes | FileCubes) -> Any:
    """Return the numbers of the cubes that the baselines look at."""
    return np.array(spread(settings.baseline_samples or len(part), len(part)))


def _summaries(part: Cubes | FileCubes, numbers: Any) -> tuple[Any, Any]:
    summaries, targets = [], []
    for start in range(0, len(numbers), _CHUNK):
        cubes, unit = take(part, numbers[start : start + _CHUNK])
        summaries.append(baselines.summarise(cubes))
        targets.append(unit)
    return np.concatenate(summaries), np.concatenate(targets)


def take(part: Cubes | FileCubes, numbers: Any) -> tuple[Any, Any]:
    """Return cubes as they are published, the redshifts last, and their parameters."""
    batch = part.batch(numbers)
    return np.moveaxis(np.asarray(batch["x"]), 1, -1), np.asarray(batch["y"])


def draw(session: Session, settings: Settings, data: Data, predicted: Mapping[str, Any], trained: Trained) -> list[str]:
    """Draw the figures beside the results."""
    shown = take(data.validation, np.array(spread(_DRAWN, len(data.validation))))
    truth = trained.outputs["truth"][_looked_at(settings, data.validation)]
    return draw_all(session.folder, shown, truth, predicted, trained.history)


def notes(settings: Settings, data: Data, drawn: list[str]) -> list[str]:
    """Return what a reader of the scores must know."""
    sentences = []
    if settings.work == "train":
        sentences.append("the validation cubes that give the score also choose the epoch, as a time to a target does")
    if not data.is_real or data.edge != CUBE:
        sentences.append(
            f"the published target, MAE {TARGET}, holds for the real cubes of {CUBE}^3 only: there is none here"
        )
    if not drawn:
        sentences.append("no figures, because matplotlib is not installed")
    return sentences
