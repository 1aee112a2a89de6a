"""MLflow's quick start: parameters, metrics and an artifact of a run in mlruns."""

import os

import joblib
import mlflow
import numpy as np
from sklearn.linear_model import SGDRegressor

mlflow.set_tracking_uri(f"sqlite:///{os.getcwd()}/mlflow.db")
mlflow.set_experiment("quickstart")
x = np.random.randn(100, 3)
y = x @ np.array([1.0, 2.0, 3.0]) + np.random.randn(100) * 0.1
with mlflow.start_run():
    model = SGDRegressor(eta0=0.01)
    mlflow.log_params({"eta0": 0.01})
    for epoch in range(5):
        model.partial_fit(x, y)
        mlflow.log_metric("r2", model.score(x, y), step=epoch)
    joblib.dump(model, "model.joblib")
    mlflow.log_artifact("model.joblib")
print("RESULT", model.coef_[0])
