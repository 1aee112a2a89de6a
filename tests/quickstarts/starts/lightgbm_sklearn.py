"""LightGBM's example of its scikit-learn interface."""

import lightgbm
import numpy as np

x = np.random.rand(300, 6)
y = x[:, 0] * 3 + np.random.rand(300)
model = lightgbm.LGBMRegressor(num_leaves=15, learning_rate=0.1, n_estimators=10, force_col_wise=True, n_jobs=1)
model.fit(x[:200], y[:200], eval_set=[(x[200:], y[200:])], eval_metric="l1")
model.booster_.save_model("model.txt")
print("RESULT", model.predict(x[:1])[0])
