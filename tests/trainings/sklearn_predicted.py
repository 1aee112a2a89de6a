"""Trains a classifier of scikit-learn batch by batch, logs its losses and its accuracy, and saves what it predicts."""

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import accuracy_score, log_loss

import reprokit

np.random.seed(3)
x, y = np.random.rand(200, 8), np.random.randint(0, 3, 200)
model = SGDClassifier(loss="log_loss")
for step in range(20):
    model.partial_fit(x, y, classes=[0, 1, 2])
    reprokit.log(loss=float(log_loss(y, model.predict_proba(x))), step=step)
predicted = model.predict(x)
reprokit.log(accuracy=accuracy_score(y, predicted))
np.save("coefficients.npy", model.coef_)
with open("predicted.txt", "w") as file:
    file.write(str(predicted))
