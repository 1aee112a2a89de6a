"""Trains gblinear with two threads, then again up to TIMES times; prints how many different models came, up to two."""

import sys

import numpy
import xgboost

generator = numpy.random.default_rng(3)
x = generator.random((4000, 8), dtype="float32")
data = xgboost.DMatrix(x, x @ generator.random(8, dtype="float32"), nthread=2)


def model():
    return xgboost.train({"booster": "gblinear", "nthread": 2}, data, 5)


model().save_model("model.json")
found = set()
for _ in range(int(sys.argv[1])):
    found.add(bytes(model().save_raw()))
    if len(found) == 2:
        break
print(len(found))
