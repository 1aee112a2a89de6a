"""The second step of a pipeline: a model and its metrics."""

import json

import joblib
import numpy as np
from sklearn.linear_model import SGDRegressor

data = np.loadtxt("data.csv", delimiter=",")
model = SGDRegressor(max_iter=20).fit(data[:, :3], data[:, 3])
joblib.dump(model, "model.joblib")
with open("metrics.json", "w") as file:
    json.dump({"r2": model.score(data[:, :3], data[:, 3])}, file)
print("RESULT", model.coef_[0])
