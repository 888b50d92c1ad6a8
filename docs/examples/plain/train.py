"""Trains a small network to tell two spirals apart. It knows nothing of Fairmile."""

import argparse

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--hidden", type=int, default=32)
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
rng = np.random.default_rng(args.seed)


def spirals(count):
    turn = np.sqrt(rng.random(count)) * 3 * np.pi
    side = rng.integers(0, 2, count)
    x = np.stack([turn * np.cos(turn + np.pi * side), turn * np.sin(turn + np.pi * side)], axis=1) / 10
    return x + 0.03 * rng.standard_normal((count, 2)), side


x, y = spirals(2000)
test_x, test_y = spirals(500)
w1, b1 = 2 * rng.standard_normal((2, args.hidden)), np.zeros(args.hidden)
w2, b2 = rng.standard_normal((args.hidden, args.hidden)) / args.hidden**0.5, np.zeros(args.hidden)
w3, b3 = rng.standard_normal(args.hidden) / args.hidden**0.5, 0.0
for epoch in range(args.epochs):
    loss = 0.0
    for batch in rng.permutation(len(x)).reshape(-1, 20):
        h1 = np.tanh(x[batch] @ w1 + b1)
        h2 = np.tanh(h1 @ w2 + b2)
        p = 1 / (1 + np.exp(-(h2 @ w3 + b3)))
        loss -= np.mean(np.log(np.where(y[batch] == 1, p, 1 - p) + 1e-9)) * len(batch) / len(x)
        g3 = (p - y[batch])[:, None] / len(batch)
        g2 = g3 * w3 * (1 - h2**2)
        g1 = g2 @ w2.T * (1 - h1**2)
        w3, b3 = w3 - args.lr * (h2.T @ g3)[:, 0], b3 - args.lr * g3.sum()
        w2, b2 = w2 - args.lr * h1.T @ g2, b2 - args.lr * g2.sum(0)
        w1, b1 = w1 - args.lr * x[batch].T @ g1, b1 - args.lr * g1.sum(0)
    guess = np.tanh(np.tanh(test_x @ w1 + b1) @ w2 + b2) @ w3 + b3 > 0
    print(f"epoch {epoch + 1} loss {loss:.4f} accuracy {np.mean(guess == test_y):.3f}", flush=True)
np.savez("weights.npz", w1=w1, b1=b1, w2=w2, b2=b2, w3=w3, b3=b3)
