"""Uses estimators of scikit-learn, and one of its own, in most of the ways that there are."""

import inspect
import pickle

import numpy
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC


class Mine(ClassifierMixin, BaseEstimator):
    def fit(self, x, y):
        self.classes_ = numpy.unique(y)
        return self

    def predict(self, x):
        return numpy.zeros(len(x), int)


x, y = numpy.random.RandomState(0).rand(40, 3), numpy.arange(40) % 2
assert "_reprokit_original" not in vars(vars(Mine)["predict"])
assert list(inspect.signature(LogisticRegression.predict).parameters) == ["self", "X"]
assert pickle.loads(pickle.dumps(accuracy_score)) is accuracy_score
assert not hasattr(SVC(probability=False), "predict_proba")
mine = pickle.loads(pickle.dumps(clone(Mine()).fit(x, y)))
assert mine.score(x, y) == 0.5
search = GridSearchCV(make_pipeline(LogisticRegression()), {"logisticregression__C": [1, 2]}, cv=2, n_jobs=2).fit(x, y)
cross_val_score(LogisticRegression(), x, y, cv=2)
search.predict_proba(x)
try:
    LogisticRegression().predict(x)
except Exception as error:
    print(type(error).__name__)
