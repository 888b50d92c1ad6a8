"""Learns to forecast the water level from the last hours. It knows nothing of Fairmile; the levels are made up."""

import argparse

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
parser.add_argument("--hidden", type=int, default=16, help="width of the hidden layer")
parser.add_argument("--lags", type=int, default=12, help="hours that the forecast sees")
parser.add_argument("--ahead", type=int, default=3, help="hours that it looks ahead")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
rng = np.random.default_rng(args.seed)

levels = np.loadtxt("levels.csv", delimiter=",", skiprows=1)[:, 1]
starts = np.arange(len(levels) - args.lags - args.ahead + 1)
x = levels[starts[:, None] + np.arange(args.lags)]
y = levels[starts + args.lags + args.ahead - 1]
train = len(x) * 3 // 4  # the last quarter is for the test
test_x, test_y = x[train:], y[train:]

w1 = rng.standard_normal((args.lags, args.hidden)) / args.lags**0.5
b1 = np.zeros(args.hidden)
w2 = rng.standard_normal(args.hidden) / args.hidden**0.5
b2 = 0.0
for epoch in range(1, args.epochs + 1):
    loss = 0.0
    for batch in np.array_split(rng.permutation(train), train // 16):
        hidden = np.tanh(x[batch] @ w1 + b1)
        wrong = hidden @ w2 + b2 - y[batch]
        loss += np.mean(wrong**2) * len(batch) / train
        back = wrong[:, None] * w2 * (1 - hidden**2) / len(batch)
        w2, b2 = w2 - args.lr * hidden.T @ wrong / len(batch), b2 - args.lr * wrong.mean()
        w1, b1 = w1 - args.lr * x[batch].T @ back, b1 - args.lr * back.sum(0)
    rmse = np.sqrt(np.mean((np.tanh(test_x @ w1 + b1) @ w2 + b2 - test_y) ** 2))
    print(f"epoch {epoch} loss {loss:.5f} rmse {rmse:.4f}", flush=True)
np.savez("weights.npz", w1=w1, b1=b1, w2=w2, b2=b2)
