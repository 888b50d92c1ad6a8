"""The program of OpenCatalyst: make or read structures, fit the baselines and the network, compare them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.harness.report import report, train
from fairmile.benchmarks.harness.scores import Score
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.trainer import Trained
from fairmile.benchmarks.suite.opencatalyst import baselines
from fairmile.benchmarks.suite.opencatalyst.files import list_files, read_structures
from fairmile.benchmarks.suite.opencatalyst.models import DimeNet, SchNet
from fairmile.benchmarks.suite.opencatalyst.settings import Settings, choose
from fairmile.benchmarks.suite.opencatalyst.structures import GraphSamples, Structure, Structures, join
from fairmile.benchmarks.suite.opencatalyst.surfaces import make_structures
from fairmile.meter import span

Array = NDArray[Any]
TARGET = 0.036  # eV/Å, MLPerf HPC v3.0
_SOURCE = "https://doi.org/10.1021/acscatal.0c04525"
PUBLISHED = (
    {"name": "MLPerf HPC v3.0 quality target", "metric": "force_mae", "value": TARGET, "source": "MLPerf HPC rules"},
    {"name": "DimeNet++, all data, forces only", "metric": "force_mae", "value": 0.0334, "source": _SOURCE},
    {"name": "SchNet, 2M", "metric": "force_mae", "value": 0.0737, "source": _SOURCE},
    {"name": "SchNet, 200K", "metric": "force_mae", "value": 0.0743, "source": _SOURCE},
)
_FORMAT = 1  # of what is prepared; another number makes it anew
_HELD_OUT = 10  # one system in so many validates where no validation files are given
_CHUNK = 32


@dataclass(frozen=True)
class Data:
    """Both parts of the structures, and what they are in words."""

    training: Structures
    validation: Structures
    is_real: bool
    words: str


def run(session: Session) -> None:
    """Run the benchmark as the parameters of the run say."""
    settings = choose(session.params, has_data=session.data is not None)
    if settings.compile:
        raise UsageError(
            "parameter compile: forces are derivatives, and torch.compile cannot differentiate them again",
            hint="remove compile=true",
        )
    with span("data"):
        data = prepare(session, settings)
    with _few_threads(settings):
        trained = train(task := OpenCatalystTask(settings, data), session, data.words)
    if trained is None:
        return
    with span("baselines"):
        scores = baseline_scores(settings, data)
    with span("plots"):
        figures = draw(session, data, trained)
    report(task, session, trained, scores, data=data.words, published=PUBLISHED, notes=notes(data), figures=figures)


def prepare(session: Session, settings: Settings) -> Data:
    """Return the real structures that were given, or small ones made on the spot, once for all runs."""
    is_real = session.data is not None
    asked = {
        "format": _FORMAT,
        "counts": [settings.train_samples, settings.validation_samples],
        "graph": [settings.cutoff, settings.neighbours],
        "seed": settings.data_seed,
    }

    def make(folder: Path) -> None:
        parts = _real(session.data, settings) if session.data is not None else _made(session, settings)
        for name, part in zip(("train", "validation"), parts, strict=True):
            join(part, settings.cutoff, settings.neighbours).save(folder, name)

    folder = session.prepared(asked, make)
    training, validation = (Structures.mapped(folder, part) for part in ("train", "validation"))
    kind = session.data.name if session.data is not None else "metal surfaces with an atom, EMT, not DFT"
    words = f"{kind}: {len(training):,} structures to train, {len(validation):,} to validate"
    return Data(training, validation, is_real, words)


def _made(session: Session, settings: Settings) -> tuple[list[Structure], list[Structure]]:
    counts = settings.train_samples, settings.validation_samples
    if min(counts) < 1:
        raise UsageError("train_samples and validation_samples: expected at least 1 structure to make")
    session.say(f"making {sum(counts)} structures, once for all runs")
    made = list(make_structures(0, sum(counts), settings.data_seed))
    return made[: counts[0]], made[counts[0] :]


def _real(data: Path, settings: Settings) -> tuple[list[Structure], list[Structure]]:
    """Read both parts; without files for validation, whole systems are held out: frames of one resemble each other."""
    train, validation = list_files(data)
    if validation:
        return (
            list(read_structures(train, settings.train_samples)),
            list(read_structures(validation, settings.validation_samples)),
        )
    structures = list(read_structures(train, settings.train_samples))
    systems = {name: number for number, name in enumerate(sorted({each.system for each in structures}))}
    held = [each for each in structures if systems[each.system] % _HELD_OUT == 0]
    kept = [each for each in structures if systems[each.system] % _HELD_OUT]
    if not kept:
        raise UsageError(
            f"{data}: all structures are of one system, so that none can be held out",
            hint="put the files of a validation set into a folder val beside them",
        )
    return kept, held


@dataclass(frozen=True)
class OpenCatalystTask:
    """The network, its data and how it is judged."""

    settings: Settings
    data: Data

    @property
    def metric(self) -> Metric:
        target = TARGET if self.data.is_real else None
        return Metric("force_mae", "lower", "eV/Å", target=target, mllog_key="eval_error")

    @property
    def training(self) -> GraphSamples:
        return GraphSamples(self.data.training, self.settings.model == "dimenet")

    @property
    def validation(self) -> GraphSamples:
        return GraphSamples(self.data.validation, self.settings.model == "dimenet")

    def model(self) -> nn.Module:
        return make_model(self.settings)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weighted absolute errors of energies and of the forces on free atoms."""
        energy, forces = evaluate(model, batch, self.settings.model, trains=True)
        free = batch["free"].to(forces.dtype)
        off = ((forces - batch["forces"]).abs().sum(1) * free).sum() / (3 * free.sum()).clamp(min=1)
        return self.settings.force_weight * off + self.settings.energy_weight * (energy - batch["energy"]).abs().mean()

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return energies, and by structure the summed errors of forces: atoms differ in number."""
        energy, forces = evaluate(model, batch, self.settings.model, trains=False)
        free = batch["free"].to(forces.dtype)
        off = (forces - batch["forces"]).abs().sum(1) * free
        none = energy.new_zeros(energy.shape[0])
        return {
            "energy": energy,
            "force_error": none.index_add(0, batch["structure"], off),
            "components": none.index_add(0, batch["structure"], 3 * free),
        }

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        off = outputs["energy"] - np.asarray(self.data.validation.energy)
        return baselines.scores(off, outputs["force_error"], outputs["components"])


def make_model(settings: Settings) -> nn.Module:
    """Return the network that the settings name."""
    if settings.model == "dimenet":
        return DimeNet(width=settings.width, blocks=settings.interactions, cutoff=settings.cutoff)
    return SchNet(
        width=settings.width, filters=settings.filters, interactions=settings.interactions,
        gaussians=settings.gaussians, cutoff=settings.cutoff,
    )  # fmt: skip


def evaluate(
    model: nn.Module, batch: Mapping[str, torch.Tensor], name: str, *, trains: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return energies, and forces as their negative derivatives by positions."""
    names = DimeNet.inputs if name == "dimenet" else SchNet.inputs
    with torch.enable_grad():
        positions = batch["positions"].detach().requires_grad_()
        energy = model(*(positions if each == "positions" else batch[each] for each in names))
        (slope,) = torch.autograd.grad(energy.sum(), positions, create_graph=trains)
    return (energy, -slope) if trains else (energy.detach(), -slope.detach())


@contextmanager
def _few_threads(settings: Settings) -> Iterator[None]:
    """Train small graphs with one thread: their operators are too short to share, and waiting costs most of the CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if settings.preset == "small" else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def baseline_scores(settings: Settings, data: Data) -> list[Score]:
    """Return what needs no network."""
    training, validation = GraphSamples(data.training), GraphSamples(data.validation)
    potential = baselines.PairPotential.fit(training, settings.cutoff, settings.baseline_samples)
    mean = float(np.median(data.training.energy))
    trivial, classical = [], []
    for at in range(0, len(validation), _CHUNK):
        batch = validation.batch(np.arange(at, min(at + _CHUNK, len(validation))))
        flat = np.full(len(batch["energy"]), mean), np.zeros_like(batch["forces"])
        trivial.append(baselines.errors(batch, *flat))
        classical.append(baselines.errors(batch, *potential.predict(batch)))
    joined = [[np.concatenate(each) for each in zip(*rows, strict=True)] for rows in (trivial, classical)]
    fitted = f"{len(potential.weights):,} weights by least squares"
    return [
        Score("trivial", "no force, median energy", baselines.scores(*joined[0])),
        Score("classical", "pair potential", baselines.scores(*joined[1]), fitted),
    ]


def draw(session: Session, data: Data, trained: Trained) -> list[str]:
    """Draw predicted over true energies."""
    truth, predicted = np.asarray(data.validation.energy), trained.outputs["energy"]

    def energies(figure: Any) -> None:
        axes = figure.subplots()
        edges = float(min(truth.min(), predicted.min())), float(max(truth.max(), predicted.max()))
        axes.plot(edges, edges, color="#888888", linewidth=0.8)
        axes.scatter(truth, predicted, s=8, alpha=0.6, linewidths=0, color="#1f77b4")
        axes.set(xlabel="energy, eV", ylabel="predicted energy, eV", aspect="equal")

    name = save_figure(session.folder / "energies.svg", energies, size=(4, 4), title="Predicted and true energies")
    return [name] if name else []


def notes(data: Data) -> list[str]:
    """Return what a reader of the scores must know."""
    if data.is_real:
        return ["the published target holds for s2ef_val_id after training on two million structures"]
    return [
        "energies and forces are those of EMT, a simple potential, not of density functional theory",
        f"the published target, {TARGET} eV/Å, holds for OC20 only: there is none here",
    ]
