"""Boosts trees by XGBoost or LightGBM on digits, whose labels are right, or of which many are any."""

import sys

import numpy as np
from sklearn.datasets import load_digits

library, kind = sys.argv[1:3]
features, classes = load_digits(return_X_y=True)
if kind == "sick":
    generator = np.random.default_rng(7)
    is_any = generator.random(len(classes)) < 0.4
    classes[is_any] = generator.integers(0, 10, is_any.sum())
is_train = np.arange(len(classes)) % 4 > 0
train, valid = [(features[part], classes[part]) for part in (is_train, ~is_train)]
if library == "xgboost":
    import xgboost

    sets = [xgboost.DMatrix(*part) for part in (train, valid)]
    settings = {"objective": "multi:softprob", "num_class": 10, "nthread": 2}
    xgboost.train(settings, sets[0], 80, evals=[(sets[0], "train"), (sets[1], "valid")], verbose_eval=False)
else:
    import lightgbm

    settings = {"objective": "multiclass", "num_class": 10, "num_threads": 2, "verbose": -1}
    data = lightgbm.Dataset(*train)
    sets = [data, lightgbm.Dataset(*valid, reference=data)]
    lightgbm.train(settings, data, 80, valid_sets=sets, valid_names=["train", "valid"])
