"""Weights & Biases' quick start, offline."""

import numpy as np
import wandb
from sklearn.linear_model import SGDRegressor

x = np.random.randn(200, 4)
y = x @ np.random.randn(4)
run = wandb.init(project="quickstart", mode="offline", config={"lr": 0.01, "epochs": 5})
model = SGDRegressor(learning_rate="constant", eta0=0.01)
for _ in range(5):
    model.partial_fit(x, y)
    run.log({"r2": model.score(x, y)})
run.finish()
print("RESULT", model.coef_[0])
