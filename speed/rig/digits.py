"""A small real training: a network of two layers learns scikit-learn's digits, and logs its accuracy on unseen ones.

Run: python speed/rig/digits.py --lr 0.05 --width 64 [--optimizer sgd|adam] [--momentum 0.9] [--batch 64]
                                [--dropout 0] [--decay 1e-5] [--epochs 27] [--seed 0]

It tells its accuracy after each epoch as the metric `accuracy`, and knows nothing of tuners. `SPACE` is what a tuner
may choose, in the words of a sweep's `distributions`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fairmile.meter import log

EPOCHS = 27
UNSEEN = 600  # digits that accuracy is measured on: a step of 0.0017
SPACE: dict[str, dict[str, Any]] = {
    "lr": {"kind": "uniform", "low": 1e-4, "high": 1.0, "log": True},
    "width": {"kind": "integer", "low": 8, "high": 128, "log": True},
    "optimizer": {"kind": "choice", "choices": ["sgd", "adam"]},
    "momentum": {"kind": "uniform", "low": 0.0, "high": 0.99, "when": "optimizer == 'sgd'"},
    "batch": {"kind": "integer", "low": 16, "high": 256, "log": True},
    "dropout": {"kind": "uniform", "low": 0.0, "high": 0.7},
    "decay": {"kind": "uniform", "low": 1e-6, "high": 1e-2, "log": True},
}
DEFAULTS: dict[str, Any] = {
    "lr": 0.05, "width": 64, "optimizer": "sgd", "momentum": 0.9, "batch": 64, "dropout": 0.0, "decay": 1e-5
}  # fmt: skip


def train(
    params: Mapping[str, Any], tell: Callable[[int, float], str], *, epochs: int = EPOCHS, seed: int = 0
) -> tuple[float, str]:
    """Return the last accuracy, and why `tell` ended the training early, if it did."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    given = {**DEFAULTS, **params}
    pixels, labels = load_digits(return_X_y=True)
    x, unseen_x, y, unseen_y = (
        torch.as_tensor(part)
        for part in train_test_split(
            (pixels / 16).astype("float32"), labels, test_size=UNSEEN, random_state=0, stratify=labels
        )
    )
    accuracy, why = 0.0, ""
    with _seeded(seed):
        width = int(given["width"])
        model = torch.nn.Sequential(
            torch.nn.Linear(64, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(given["dropout"]),
            torch.nn.Linear(width, 10),
        )
        if given["optimizer"] == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam(
                model.parameters(), lr=given["lr"], weight_decay=given["decay"]
            )
        else:
            optimizer = torch.optim.SGD(
                model.parameters(), lr=given["lr"], momentum=given["momentum"], weight_decay=given["decay"]
            )
        for epoch in range(1, epochs + 1):
            model.train()
            for part in torch.randperm(len(x)).split(int(given["batch"])):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                accuracy = (model(unseen_x).argmax(1) == unseen_y).float().mean().item()
            why = tell(epoch, accuracy)
            if why:
                break
    return accuracy, why


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from a seed of one's own, on one thread: the training is too small for more."""
    import torch

    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())

    def tell(epoch: int, accuracy: float) -> str:
        log(accuracy=accuracy, step=epoch)
        print(f"epoch {epoch}: accuracy {accuracy:.4f}")
        return ""

    train(given, tell, epochs=given["epochs"], seed=given["seed"])


if __name__ == "__main__":
    main()
