"""A logistic regression by NumPy that logs its loss and its predictions, and saves its weights."""

import numpy as np

import reprokit

x = np.random.default_rng(7).normal(size=(100, 3))
y = (x.sum(1) > 0).astype(int)
w = np.random.normal(size=3)
for epoch in range(3):
    p = 1 / (1 + np.exp(-x @ w))
    reprokit.log(epoch=epoch, loss=float(np.mean((p - y) ** 2)))
    w -= 0.1 * x.T @ (p - y) / len(y)
reprokit.log_predictions(y, (x @ w > 0).astype(int))
np.save("w.npy", w)
