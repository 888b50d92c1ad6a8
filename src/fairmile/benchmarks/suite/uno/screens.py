"""Screens of drugs on tumour cell lines, and made-up ones with the structure and the noise of real screens.

Cell lines of one cancer type express alike, and pathways vary within a type. Drugs of one class share a target and much
of their chemistry. A drug acts where its pathway is active: the potency depends on the cell. Each well of the dose
series is read with noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# The 21 cancer types of the published rows; the doses of a well plate, as log10 of mol/l.
_TYPES, _CLASSES, _PATHWAYS = 21, 20, 10
_DOSES = np.linspace(-8.5, -4.5, 9)
SPREAD = 0.154  # of AUC: half the published MSE between random pairs, 0.0474, is its variance
_WELL_NOISE, _PLATE_NOISE = 0.08, 0.03  # of viability: of one well, and of all wells of a curve


@dataclass(frozen=True)
class Screen:
    """Cell lines (cells, genes), drugs (drugs, descriptors), and a row for each pair that was measured."""

    cells: Array
    drugs: Array
    cell: Array  # of each row, the number of the cell line
    drug: Array
    auc: Array
    part: Array  # of each row: 0 to learn from, 1 to validate, 2 to test; all 0 if no split is published
    ceiling: float = 1.0  # R2 of the curves without noise, where they are known


def make_screen(
    seed: int, cells: int = 240, drugs: int = 120, genes: int = 128, descriptors: int = 256, share: float = 0.7
) -> Screen:
    """Return a screen that measured a share of all pairs."""
    rng = np.random.default_rng([seed, 5])
    expression, activity = _cell_lines(rng, cells, genes)
    chemistry, curves = _drugs(rng, drugs, descriptors)
    every = rng.permutation(cells * drugs)[: max(round(share * cells * drugs), 2)]
    cell, drug = np.divmod(np.sort(every), drugs)
    clean = _viability(activity[cell], {name: value[drug] for name, value in curves.items()}, rng)
    noise = rng.normal(0, _WELL_NOISE, clean.shape) + rng.normal(0, _PLATE_NOISE, (len(clean), 1))
    measured, true = _area(np.maximum(clean + noise, 0)), _area(clean)
    ceiling = 1 - float(np.square(measured - true).mean() / measured.var())
    features, descriptions, auc = (each.astype(np.float32) for each in (expression, chemistry, measured))
    return Screen(features, descriptions, cell, drug, auc, np.zeros(len(cell), np.int8), ceiling)


def _cell_lines(rng: np.random.Generator, cells: int, genes: int) -> tuple[Array, Array]:
    """Return what cell lines express, log-scaled, and how active their pathways are."""
    kind = rng.integers(0, _TYPES, cells)
    activity = rng.normal(0, 0.7, (_TYPES, _PATHWAYS))[kind] + rng.normal(0, 0.7, (cells, _PATHWAYS))
    members = rng.random((_PATHWAYS, genes)) < 0.3  # a gene belongs to some pathways
    of_type = rng.normal(0, 0.5, (_TYPES, genes))[kind]
    level = rng.normal(4, 1, genes)
    pathway = activity @ (members * rng.normal(0, 0.6, members.shape))
    return np.maximum(level + of_type + pathway + rng.normal(0, 0.5, (cells, genes)), 0), activity


def _drugs(rng: np.random.Generator, drugs: int, descriptors: int) -> tuple[Array, dict[str, Array]]:
    """Return descriptors of drugs, and what decides their curves."""
    group = rng.integers(0, _CLASSES, drugs)
    latent = rng.normal(0, 1, (_CLASSES, 8))[group] + rng.normal(0, 0.45, (drugs, 8))
    linear = latent @ rng.normal(0, 0.5, (8, descriptors)) + rng.normal(0, 0.4, (drugs, descriptors))
    counts = np.arange(descriptors) % 3 == 0  # a third of the descriptors count atoms, rings or bonds
    chemistry = np.where(counts, np.floor(np.exp(0.6 * linear)), linear)
    target = np.tanh(latent @ rng.normal(0, 0.6, (8, _PATHWAYS)))
    curves = {
        "log_ic50": -4.85 + 0.5 * latent[:, 0] + 0.3 * np.sin(2 * latent[:, 1]),
        "target": target * (np.abs(target) > 0.6),  # few pathways for each drug
        "low": 1 / (1 + np.exp(0.6 - 0.8 * latent[:, 2])),
        "slope": np.exp(rng.normal(0.1, 0.25, drugs)),
    }
    return chemistry, curves


def _viability(activity: Array, of_drug: dict[str, Array], rng: np.random.Generator) -> Array:
    """Return the share of cells that live at each dose: a Hill curve of each pair."""
    acts = (activity * of_drug["target"]).sum(1)
    own = rng.normal(0, 0.25, len(acts))  # what neither expression nor descriptors tell
    log_ic50 = of_drug["log_ic50"] - 0.8 * np.tanh(0.7 * acts) + 0.25 * activity[:, 0] + own
    low = of_drug["low"] / (1 + np.exp(0.6 * acts))
    dosed = 10 ** (of_drug["slope"][:, None] * (_DOSES - log_ic50[:, None]))
    return np.asarray(low[:, None] + (1 - low[:, None]) / (1 + dosed))


def _area(viability: Array) -> Array:
    """Return the area below curves over the logarithm of the dose, as a share of the most."""
    return np.asarray((viability[:, 1:] + viability[:, :-1]).mean(1) / 2)
