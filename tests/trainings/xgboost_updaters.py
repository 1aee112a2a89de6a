"""Tells by which updater XGBoost boosts linear models, before and after the patch is taken back."""

import json
import sys

import _reprokit_agent
import numpy
import xgboost

x = numpy.random.default_rng(1).random((50, 3))
data = xgboost.DMatrix(x, x.sum(1))


def updater(**more):
    return xgboost.train({**parameters, **more}, data, 1).save_config()


parameters = {"booster": "gblinear", "nthread": 1}
scikit = xgboost.XGBRegressor(booster="gblinear", n_estimators=1, n_jobs=1).fit(x, x.sum(1)).get_booster()
found = [updater(), updater(updater="shotgun"), scikit.save_config()]
tree = xgboost.train({"nthread": 1}, data, 1).save_config()
for name in sys.argv[1:]:
    _reprokit_agent.patches.running.undo(name)
found.append(updater())
with open("found.json", "w") as file:
    json.dump(
        [["shotgun" in text, "coord_descent" in text] for text in found] + [["coord_descent" in tree]],
        file,
    )
