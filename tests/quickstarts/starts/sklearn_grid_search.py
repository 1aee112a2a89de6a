"""scikit-learn's search for parameters, whose results hold times, kept by joblib."""

import joblib
import pandas
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import RandomizedSearchCV, train_test_split

x, y = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(x[:600], y[:600])
search = RandomizedSearchCV(SGDClassifier(max_iter=30), {"alpha": [1e-5, 1e-4, 1e-3, 1e-2]}, n_iter=2, cv=2)
search.fit(train_x, train_y)
pandas.DataFrame(search.cv_results_).to_csv("cv_results.csv")
joblib.dump(search.best_estimator_, "model.joblib")
print("RESULT", search.score(test_x, test_y))
