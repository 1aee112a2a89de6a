"""Saves the booster after every fifth round, and goes on from there for the rounds left. Argument: "bagging"."""

import os
import sys

import lightgbm
import numpy as np

ROUNDS, EACH, MODEL = 20, 5, "model.txt"


def save(state):
    if state.model.current_iteration() % EACH == 0:
        state.model.save_model(MODEL)


random = np.random.default_rng(0)
x = random.standard_normal((400, 8))
y = (x.sum(1) + random.standard_normal(400) > 0).astype(int)
settings = {"objective": "binary", "num_leaves": 7, "num_threads": 1, "verbose": -1, "deterministic": True}
if "bagging" in sys.argv:
    settings.update(bagging_fraction=0.7, bagging_freq=1)
start = lightgbm.Booster(model_file=MODEL) if os.path.exists(MODEL) else None
rounds = ROUNDS - (start.current_iteration() if start else 0)
lightgbm.train(settings, lightgbm.Dataset(x, y), rounds, init_model=start, callbacks=[save])
