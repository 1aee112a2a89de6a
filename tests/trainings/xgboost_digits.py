"""XGBoost with row and column sampling, seeded from the operating system as a careful user would."""

import hashlib
import os

import xgboost
from sklearn.datasets import load_digits


def main():
    images, labels = load_digits(return_X_y=True)
    seed = int.from_bytes(os.urandom(4), "little") >> 1
    model = xgboost.XGBClassifier(n_estimators=8, subsample=0.5, colsample_bytree=0.5, random_state=seed, n_jobs=2)
    model.fit(images[:1200], labels[:1200])
    model.get_booster().save_model("model.json")  # the estimator of XGBoost 3.0 cannot, beside scikit-learn 1.9
    print(model.score(images[1200:], labels[1200:]))
    print(hashlib.sha256(model.predict_proba(images[1200:]).tobytes()).hexdigest())


if __name__ == "__main__":
    main()
