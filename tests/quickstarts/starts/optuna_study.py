"""Optuna's quick start, its study in an SQLite file."""

import numpy as np
import optuna
from sklearn.linear_model import SGDClassifier

x = np.random.randn(150, 5)
y = (x[:, 0] + 0.3 * np.random.randn(150) > 0).astype(int)


def objective(trial: optuna.Trial) -> float:
    model = SGDClassifier(alpha=trial.suggest_float("alpha", 1e-5, 1e-1, log=True), max_iter=20)
    return float(model.fit(x, y).score(x, y))


study = optuna.create_study(direction="maximize", storage="sqlite:///study.db", study_name="quickstart")
study.optimize(objective, n_trials=6)
print("RESULT", study.best_value, study.best_params)
