"""Saves the booster after every fifth round, and goes on from there. Arguments: "bagging", "closure", "patience"."""

import os
import sys

import lightgbm
import numpy as np

ROUNDS, EACH, MODEL = 20, 5, "model.txt"


def save(state):
    if state.model.current_iteration() % EACH == 0:
        state.model.save_model(MODEL)


def ending():
    """Return a callback that ends the training once it was called so often, which no file holds."""
    calls = 0

    def count(state):
        nonlocal calls
        calls += 1
        if calls == 16:
            raise lightgbm.callback.EarlyStopException(state.iteration, state.evaluation_result_list)

    return count


random = np.random.default_rng(0)
x = random.standard_normal((400, 8))
y = (x.sum(1) + random.standard_normal(400) > 0).astype(int)
settings = {"objective": "binary", "num_leaves": 7, "num_threads": 1, "verbose": -1, "deterministic": True}
if "bagging" in sys.argv:
    settings.update(bagging_fraction=0.7, bagging_freq=1)
start = lightgbm.Booster(model_file=MODEL) if os.path.exists(MODEL) else None
rounds = ROUNDS - (start.current_iteration() if start else 0)
callbacks, held_out = [save], []
if "closure" in sys.argv:
    callbacks.append(ending())
data = lightgbm.Dataset(x, y)
if "patience" in sys.argv:
    data, held_out = lightgbm.Dataset(x[:200], y[:200]), [lightgbm.Dataset(x[200:], y[200:])]
    callbacks.append(lightgbm.early_stopping(12, min_delta=0.02))
lightgbm.train(settings, data, rounds, held_out, init_model=start, callbacks=callbacks)
