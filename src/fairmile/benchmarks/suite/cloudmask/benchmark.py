"""The program of CloudMask: make or read scenes, fit the baselines and the U-Net, compare their masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness import classical
from fairmile.benchmarks.harness.report import report, train
from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.harness.scores import Score
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.trainer import Trained
from fairmile.benchmarks.suite.cloudmask import baselines, figures
from fairmile.benchmarks.suite.cloudmask.baselines import Baseline
from fairmile.benchmarks.suite.cloudmask.files import (
    list_scenes,
    read_patches,
    read_scene,
    scaled,
    write_patches,
)
from fairmile.benchmarks.suite.cloudmask.models import UNet, check_edge
from fairmile.benchmarks.suite.cloudmask.scenes import Scene, make_scene
from fairmile.benchmarks.suite.cloudmask.settings import Settings, choose
from fairmile.benchmarks.suite.cloudmask.tiles import mask_scene
from fairmile.meter import span

Array = NDArray[Any]
TARGET, SYNTHETIC_TARGET = 0.9, 0.88
_SOURCE = "https://arxiv.org/abs/2403.04553"
PUBLISHED = (
    {"name": "U-Net, best test accuracy", "metric": "accuracy", "value": 0.896, "source": _SOURCE},
    {"name": "U-Net, mean of five seeds", "metric": "accuracy", "value": 0.889, "source": _SOURCE},
)
_TRAIN_SHARE = 0.8
_JUDGED = 256  # patches on which baselines are judged at most
_SHOWN = 3
_FORMAT = 1  # of what is prepared; another number makes it anew


@dataclass(frozen=True)
class Data:
    """The patches of both parts, the whole scenes for test and pictures, and what they are in words."""

    training: ArraySamples
    validation: ArraySamples
    test: list[Path]
    is_real: bool
    words: str


def run(session: Session) -> None:
    """Run the benchmark as the parameters of the run say."""
    settings = choose(session.params, has_data=session.data is not None, has_gpu=torch.cuda.is_available())
    check_edge(settings.patch, settings.depth)
    if 2 * settings.margin >= settings.patch:
        raise UsageError(f"parameter margin: expected less than half of patch, found {settings.margin}")
    with span("data"):
        data = prepare(session, settings)
    trained = train(task := CloudMaskTask(settings, data), session, data.words)
    if trained is None:
        return
    with span("baselines"):
        fitted = fit_baselines(settings, data, session.seed)
        scores = baseline_scores(fitted, data)
    with span("test"):
        tested = test_scores(settings, data, trained)
    with span("plots"):
        drawn = draw(session, settings, data, trained, best_of(fitted, scores))
    report(
        task,
        session,
        trained,
        scores,
        data=data.words,
        tested=tested,
        published=PUBLISHED,
        notes=notes(data),
        figures=drawn,
    )


def prepare(session: Session, settings: Settings) -> Data:
    """Return the patches of the real scenes that were given, or of scenes made on the spot, once for all runs."""
    most = settings.train_scenes, settings.validation_scenes
    parts: list[list[Path] | range]
    if session.data is not None:
        listing = list_scenes(session.data, _TRAIN_SHARE, settings.data_seed)
        train, validation = (
            files[: limit or None] for files, limit in zip((listing.train, listing.validation), most, strict=True)
        )
        parts, test, kind = [train, validation], listing.test, session.data.name
    else:
        if min(most) < 1:
            raise UsageError("train_scenes and validation_scenes: expected at least 1 scene to make")
        parts, test = [range(most[0]), range(most[0], sum(most))], []
        kind = f"made-up scenes of {settings.patch}² pixels"
    asked = {"format": _FORMAT, "counts": most, "patch": settings.patch, "seed": settings.data_seed}
    asked["inputs"] = settings.inputs

    def image(number: Path | int) -> tuple[Scene, Array]:
        made = not isinstance(number, Path)
        scene = make_scene(number, settings.patch, settings.data_seed) if made else read_scene(number)  # type: ignore[arg-type]
        return scene, channels(settings, scene)

    def make(folder: Path) -> None:
        session.say(f"cutting {sum(map(len, parts))} scenes into patches, once for all runs")
        for name, numbers in zip(("train", "validation"), parts, strict=True):
            write_patches(folder, name, map(image, numbers), len(numbers), settings.patch)

    folder = session.prepared(asked, make)
    trained, validated = (read_patches(folder, part) for part in ("train", "validation"))
    words = f"{kind}: {len(trained):,} patches to train, {len(validated):,} to validate"
    words += f", {len(test)} scenes to test" if test else ""
    return Data(trained, validated, test, session.data is not None, words)


def channels(settings: Settings, scene: Scene) -> Array:
    """Return what the network and the baselines see of a scene."""
    return scaled(scene, differences=settings.inputs == "differences")


@dataclass(frozen=True)
class CloudMaskTask:
    """The network, its data and how it is judged."""

    settings: Settings
    data: Data

    @property
    def metric(self) -> Metric:
        is_default = not self.data.is_real and self.settings.preset == "small"
        return Metric(
            "accuracy",
            "higher",
            target=TARGET if self.data.is_real else None,
            synthetic_target=SYNTHETIC_TARGET if is_default else None,
            mllog_key="eval_accuracy",
        )

    @property
    def training(self) -> ArraySamples:
        return self.data.training

    @property
    def validation(self) -> ArraySamples:
        return self.data.validation

    def model(self) -> nn.Module:
        settings = self.settings
        return UNet(width=settings.width, depth=settings.depth, is_normalised=settings.model == "unet-bn")

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the cross entropy of all pixels."""
        weight = torch.tensor(self.settings.cloud_weight, device=batch["x"].device)
        logits = model(self._channels_first(batch["x"])).float()
        return functional.binary_cross_entropy_with_logits(logits, batch["cloud"].float(), pos_weight=weight)

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the counts of each patch: true and false clouds, false and true clear pixels."""
        mask, cloud = model(self._channels_first(batch["x"])) > 0, batch["cloud"] > 0
        kinds = (mask & cloud, mask & ~cloud, ~mask & cloud, ~mask & ~cloud)
        return {"counts": torch.stack([each.sum(dim=(1, 2)) for each in kinds], 1), "day": batch["day"]}

    def scores(self, outputs: Mapping[str, Any]) -> Mapping[str, float]:
        return baselines.scores(outputs["counts"], outputs["day"])

    def _channels_first(self, x: torch.Tensor) -> torch.Tensor:
        """Return patches as a network takes them; in memory the channels stay last, where asked."""
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        return x.float().permute(0, 3, 1, 2).contiguous(memory_format=layout)


def fit_baselines(settings: Settings, data: Data, seed: int) -> list[Baseline]:
    """Return the baselines, fitted to pixels of all training patches."""
    x, cloud = data.training.fields["x"], data.training.fields["cloud"]
    random = np.random.default_rng(settings.data_seed)
    numbers = np.sort(random.permutation(len(x))[: max(settings.baseline_pixels // 64, 1)])
    each = -(-settings.baseline_pixels // len(numbers))
    edge = settings.patch
    pixels, truth = [], []
    for number in numbers:
        at = random.integers(0, edge, (2, each))
        pixels.append(np.asarray(x[number])[at[0], at[1]])
        truth.append(np.asarray(cloud[number])[at[0], at[1]])
    return baselines.fit(np.concatenate(pixels).astype(np.float32), np.concatenate(truth), seed)


def baseline_scores(fitted: list[Baseline], data: Data) -> list[Score]:
    """Return what needs no network."""
    count = len(data.validation)
    numbers = np.linspace(0, count - 1, min(count, _JUDGED)).astype(int)
    batches = [data.validation.batch(numbers[at : at + 16]) for at in range(0, len(numbers), 16)]
    day = np.concatenate([batch["day"] for batch in batches])
    judged = "" if len(numbers) == count else f"on {len(numbers)} patches"
    scores = []
    for each in fitted:
        counts = np.concatenate([baselines.count(each.mask(batch["x"]), batch["cloud"]) for batch in batches])
        note = "; ".join(part for part in (each.note, judged) if part)
        scores.append(Score(each.kind, each.name, baselines.scores(counts, day), note))
    return scores


def best_of(fitted: list[Baseline], scores: list[Score]) -> Baseline:
    """Return the baseline with the highest accuracy."""
    values = {score.name: score.values["accuracy"] for score in scores}
    return max(fitted, key=lambda each: values[each.name])


def test_scores(settings: Settings, data: Data, trained: Trained) -> dict[str, float]:
    """Return the accuracy on the scenes that the publisher keeps for the test, masked as a whole."""
    counts = []
    for file in data.test:
        scene = read_scene(file)
        mask = mask_scene(trained.model, channels(settings, scene), settings.patch, settings.margin, trained.device)
        counts.append(baselines.count(mask[None], scene.bayes[None, ..., 0] > 0))
    return {"test_accuracy": baselines.scores(np.concatenate(counts), np.ones(0))["accuracy"]} if counts else {}


def draw(session: Session, settings: Settings, data: Data, trained: Trained, best: Baseline) -> list[str]:
    """Draw masks of whole scenes: real ones of the test or of the validation, or made ones twice as wide as a patch."""
    if data.is_real:
        listing = data.test or list_scenes(Path(str(session.data)), _TRAIN_SHARE, settings.data_seed).validation
        scenes = [read_scene(file) for file in listing[:_SHOWN]]
    else:
        first = settings.train_scenes + settings.validation_scenes
        scenes = [make_scene(first + at, 2 * settings.patch, settings.data_seed) for at in range(_SHOWN)]
    shown = []
    for scene in scenes:
        x = channels(settings, scene)
        mask = mask_scene(trained.model, x, settings.patch, settings.margin, trained.device)
        shown.append((scene, best.mask(x[None])[0], mask))
    names = figures.draw_masks(session.folder / "masks.svg", shown, best.name, settings.model)
    return [names] if names else []


def notes(data: Data) -> list[str]:
    """Return what a reader of the scores must know."""
    found = [] if classical.can_fit() else [classical.ABSENT]
    if data.is_real:
        found.append("the reference mask is a Bayesian retrieval, not the truth: accuracy is agreement with it")
        if data.test:
            found.append("test_accuracy is that of whole scenes below inference/, which no training saw")
    else:
        found.append("the mask is the true cloud of a model of radiation, so no published figure applies")
    return found
