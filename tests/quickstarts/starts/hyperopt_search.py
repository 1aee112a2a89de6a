"""Hyperopt's quick start: trials hold the times at which they were tried."""

import pickle

import numpy as np
from hyperopt import Trials, fmin, hp, tpe

data = np.random.randn(50)
trials = Trials()
best = fmin(
    fn=lambda x: float(((data - x) ** 2).mean()),
    space=hp.uniform("x", -2, 2),
    algo=tpe.suggest,
    max_evals=15,
    trials=trials,
    show_progressbar=False,
)
with open("trials.pkl", "wb") as file:
    pickle.dump(trials.losses(), file)
print("RESULT", best["x"])
