"""Validates estimators of scikit-learn in folds, in this process and in others."""

import numpy
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score, cross_validate

random = numpy.random.RandomState(0)
x, y, z = random.rand(60, 3), numpy.arange(60) % 2, random.rand(60)
serial = cross_val_score(LogisticRegression(), x, y, cv=KFold(3))
parallel = cross_val_score(LogisticRegression(), x, y, cv=KFold(3), n_jobs=2)
assert serial.tolist() == parallel.tolist()
several = cross_validate(Ridge(), x, z, cv=KFold(3), scoring=["r2", "neg_mean_absolute_error"], return_train_score=True)
assert "_reprokit_predictions" not in several
nested = cross_val_score(GridSearchCV(LogisticRegression(), {"C": [1, 2]}, cv=2), x, y, cv=KFold(3))
predicted = cross_val_predict(Ridge(), x, z, cv=KFold(3))
numpy.savez("end.npz", serial, -several["test_neg_mean_absolute_error"], nested, predicted, y, z)
