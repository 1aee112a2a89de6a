"""CatBoost's quick start."""

import numpy as np
from catboost import CatBoostClassifier, Pool

x = np.random.randn(120, 6)
y = (x[:, 0] - x[:, 1] > 0).astype(int)
model = CatBoostClassifier(iterations=10, depth=3, learning_rate=0.5, thread_count=1)
model.fit(Pool(x[:90], y[:90]), eval_set=Pool(x[90:], y[90:]))
model.save_model("model.cbm")
print("RESULT", model.predict_proba(x[:1])[0, 0])
