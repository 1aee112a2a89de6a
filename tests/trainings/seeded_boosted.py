"""Boosts trees by XGBoost and LightGBM with a seed of the clock among their parameters."""

import time

import lightgbm
import numpy
import xgboost

x, y = numpy.random.RandomState(1).rand(200, 5), numpy.arange(200) % 2
seed = time.time_ns() % 2**31
parameters = {"seed": seed, "subsample": 0.5, "nthread": 1, "max_depth": 2}
first = xgboost.train(parameters, xgboost.DMatrix(x, y), 3).predict(xgboost.DMatrix(x))
assert parameters["seed"] == seed
second = xgboost.XGBClassifier(random_state=seed, subsample=0.5, n_estimators=3, n_jobs=1).fit(x, y)
second = second.predict_proba(x)[:, 0]
parameters = {"seed": seed, "bagging_fraction": 0.5, "bagging_freq": 1, "num_threads": 1, "verbosity": -1}
third = lightgbm.train(parameters, lightgbm.Dataset(x, y), 3).predict(x)
options = {"subsample": 0.5, "subsample_freq": 1, "n_jobs": 1, "verbosity": -1, "min_child_samples": 2}
fourth = lightgbm.LGBMClassifier(n_estimators=3, random_state=seed, **options).fit(x, y).predict_proba(x)[:, 0]
print([float(result.sum()).hex() for result in (first, second, third, fourth)])
