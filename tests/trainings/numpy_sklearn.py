"""scikit-learn with two jobs and NumPy's global generator, no seed anywhere."""

import hashlib

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.neighbors import KNeighborsClassifier


def main():
    images, labels = load_digits(return_X_y=True)
    images = images + np.random.normal(scale=0.1, size=images.shape)
    train, test, train_labels, test_labels = train_test_split(images, labels, test_size=0.3)
    forest = RandomForestClassifier(n_estimators=40, n_jobs=2).fit(train, train_labels)
    linear = SGDClassifier(max_iter=20, tol=None, n_jobs=2).fit(train, train_labels)
    # In processes. Which of them takes which fold is a race that no entropy decides, so nothing is drawn there.
    scores = cross_val_score(KNeighborsClassifier(), train, train_labels, cv=3, n_jobs=2)
    probabilities = forest.predict_proba(test)
    np.save("linear.npy", linear.coef_)
    print(forest.score(test, test_labels), linear.score(test, test_labels), scores)
    print(hashlib.sha256(probabilities.tobytes() + linear.coef_.tobytes()).hexdigest())


if __name__ == "__main__":
    main()
