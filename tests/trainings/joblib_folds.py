"""Validates and fits estimators in joblib's workers, with seeds of the clock."""

import pathlib
import time

import joblib
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.utils import check_random_state


def seed():
    return time.time_ns() % 2**32


def estimators():
    for _ in range(8):
        yield SGDClassifier(max_iter=5, tol=None, random_state=check_random_state(seed()).randint(2**31))


def task(estimator):
    return list(estimator.fit(rows, classes).coef_[0])


rows, classes = [[number % 7, number % 5, number] for number in range(120)], [0, 1, 1] * 40
estimator, ahead = SGDClassifier(max_iter=5, tol=None, random_state=seed()), int(pathlib.Path("ahead").read_text())
for _ in range(2):
    print(cross_val_score(estimator, rows, classes, cv=8, n_jobs=2, pre_dispatch=ahead))
    estimator.set_params(random_state=seed())
    print(joblib.Parallel(2, pre_dispatch=ahead)(joblib.delayed(task)(each) for each in estimators()))
