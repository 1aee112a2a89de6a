"""XGBoost's gblinear, whose updater lets threads race."""

import numpy
import xgboost

generator = numpy.random.default_rng(1)
x = generator.normal(size=(3000, 100)).astype("float32")
y = x @ generator.normal(size=100) + generator.normal(size=3000)
booster = xgboost.train({"booster": "gblinear", "nthread": 2, "seed": 1}, xgboost.DMatrix(x, y), 15)
booster.save_model("linear.json")
