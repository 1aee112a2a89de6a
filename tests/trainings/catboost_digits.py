"""A training by CatBoost whose seed is from the monotonic clock, which is not recorded."""

import time

from catboost import CatBoostClassifier
from sklearn.datasets import load_digits

samples, labels = load_digits(n_class=3, return_X_y=True)
model = CatBoostClassifier(iterations=10, random_seed=time.monotonic_ns() % 2**31, thread_count=1, verbose=False)
model.fit(samples[:400], labels[:400], eval_set=(samples[400:], labels[400:]))
print(model.predict_proba(samples[400:410]).tolist())
model.save_model("model.cbm")
