"""Predicts the height of waves from wind: random features and ridge, a member of an ensemble for each seed."""

import argparse
from pathlib import Path

import numpy as np

from fairmile.benchmarks.harness.predictions import Predictions

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--features", type=int, default=60)
given = parser.parse_args()
seed, count = given.seed, given.features

data = np.random.default_rng(0)
wind = data.uniform(0, 20, (1200, 1))
height = 0.02 * wind**2 + 0.02 * wind * data.normal(size=wind.shape)

random = np.random.default_rng(seed)
drawn = random.integers(0, 200, 200)  # each member learns from its own draw of 200 samples
slopes, shifts = random.normal(size=(1, count)), random.uniform(-20, 20, count)
features = np.tanh(slopes * wind + shifts)
learned = features[drawn]
weights = np.linalg.solve(learned.T @ learned + 0.01 * np.eye(count), learned.T @ height[drawn])
predicted = features @ weights

Predictions("regression", predicted[200:], height[200:], ["wave height"], "m").write(Path.cwd())
print("rmse", float(np.sqrt(np.mean((predicted - height)[200:] ** 2))))
