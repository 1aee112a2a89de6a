"""Saves the booster after every fifth round, and goes on from there. Arguments: "counted", "patience"."""

import os
import sys

import numpy as np
import xgboost

ROUNDS, EACH, MODEL = 40, 5, "model.json"


class Saving(xgboost.callback.TrainingCallback):
    """Saves the booster, and ends the training once it was saved so often, which no file holds."""

    def __init__(self):
        self.saved = 0

    def after_iteration(self, model, epoch, evals_log):
        if model.num_boosted_rounds() % EACH == 0:
            model.save_model(MODEL)
            self.saved += 1
        return "counted" in sys.argv and self.saved == 4


random = np.random.default_rng(0)
x = random.standard_normal((400, 8))
y = (x.sum(1) + 3 * random.standard_normal(400) > 0).astype(int)
train, held_out = xgboost.DMatrix(x[:200], y[:200]), xgboost.DMatrix(x[200:], y[200:])
settings = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, "learning_rate": 0.3}
start = xgboost.Booster(model_file=MODEL) if os.path.exists(MODEL) else None
rounds = ROUNDS - (start.num_boosted_rounds() if start else 0)
callbacks = [Saving()]
if "patience" in sys.argv:
    callbacks.append(xgboost.callback.EarlyStopping(rounds=12, min_delta=0.02))
xgboost.train(
    settings, train, rounds, [(held_out, "held_out")], verbose_eval=False, xgb_model=start, callbacks=callbacks
)
