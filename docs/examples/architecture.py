"""Tells two spirals apart with a network whose architecture is its parameters: layers, widths, activation, skips."""

import json
import os

import numpy as np

chosen = json.loads(os.environ["FAIRMILE_PARAMS"])
widths = [chosen[f"width_{layer}"] for layer in range(1, chosen["layers"] + 1)]
activation = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0), "sine": np.sin}[chosen["activation"]]

draw = np.random.default_rng(0)
turn = np.sqrt(draw.uniform(0, 1, 600)) * 7
sign = np.where(np.arange(600) % 2, 1.0, -1.0)
points = np.stack([sign * turn * np.cos(turn), sign * turn * np.sin(turn)], 1) / 7 + draw.normal(0, 0.02, (600, 2))


def features(inputs: np.ndarray) -> np.ndarray:
    """Return what the hidden layers make of points; their weights are drawn, only the last layer is learned."""
    random, layers = np.random.default_rng(1), [inputs]
    for width in widths:
        shape = (layers[-1].shape[1], width)
        layers.append(
            activation(layers[-1] @ random.normal(0, 4, shape) / shape[0] ** 0.5 + random.normal(0, 1, width))
        )
    return np.concatenate(layers if chosen["skips"] else [inputs, layers[-1]], 1)


hidden = features(points)
learned, kept = hidden[:400], hidden[400:]
weights = np.linalg.solve(learned.T @ learned + 0.1 * np.eye(hidden.shape[1]), learned.T @ sign[:400])
print("accuracy", float(np.mean(np.sign(kept @ weights) == sign[400:])))
print("parameters", hidden.shape[1])
