"""Boosting with a validation set, by XGBoost or LightGBM, seeded from the operating system."""

import os
import sys

import numpy as np

seed = int.from_bytes(os.urandom(4), "little") >> 1
generator = np.random.default_rng(0)
features = generator.normal(size=(400, 6)).astype("float32")
classes = (features[:, 0] + 0.5 * features[:, 1] ** 2 > 0.4).astype("int32")
train, valid = (features[:300], classes[:300]), (features[300:], classes[300:])
chosen = {"max_depth": 6, "learning_rate": 0.3, "subsample": 0.5, "seed": seed}
if sys.argv[1] == "xgboost":
    import xgboost

    parts = [xgboost.DMatrix(x, y) for x, y in (train, valid)]
    settings = {**chosen, "objective": "binary:logistic", "nthread": 2}
    evals = [(parts[0], "train"), (parts[1], "valid")]
    model = xgboost.train(settings, parts[0], 6, evals=evals, verbose_eval=False)
    margin = model.predict(parts[1], output_margin=True)
else:
    import lightgbm

    data = lightgbm.Dataset(*train, free_raw_data=False)
    sets = [data, lightgbm.Dataset(*valid, reference=data)]
    settings = {**chosen, "bagging_freq": 1, "objective": "binary", "num_threads": 2, "verbose": -1}
    model = lightgbm.train(settings, data, 6, valid_sets=sets, valid_names=["train", "valid"])
    margin = model.predict(valid[0], raw_score=True)
print(float(np.abs(margin).sum()))
