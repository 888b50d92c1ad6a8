"""Fits a tide curve to noisy water levels by gradient descent; small enough to run anywhere."""

import math
import random
import sys

import fairmile as fm

rate, epochs = float(sys.argv[1]), int(sys.argv[2])
random.seed(int(sys.argv[3]) if len(sys.argv) > 3 else 1)

with fm.span("data"):
    hours = [0.25 * k for k in range(400)]
    levels = [1.8 * math.cos(2 * math.pi * t / 12.42 - 0.6) + random.gauss(0, 0.1) for t in hours]

cosine = sine = 0.0
for epoch in range(epochs):
    with fm.span("epoch", n=epoch):
        error = loss = gain_c = gain_s = 0.0
        for t, level in zip(hours, levels, strict=True):
            c, s = math.cos(2 * math.pi * t / 12.42), math.sin(2 * math.pi * t / 12.42)
            error = cosine * c + sine * s - level
            loss += error * error / len(hours)
            gain_c += 2 * error * c / len(hours)
            gain_s += 2 * error * s / len(hours)
        cosine, sine = cosine - rate * gain_c, sine - rate * gain_s
    fm.log(loss=loss, amplitude_error=abs(math.hypot(cosine, sine) - 1.8), step=epoch)

print(f"amplitude {math.hypot(cosine, sine):.3f} m")
with open("tide.txt", "w") as file:
    file.write(f"{cosine:.6f} {sine:.6f}\n")
