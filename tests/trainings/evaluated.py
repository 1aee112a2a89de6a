"""Models that predict and are judged: python evaluated.py SEED; what each series must hold is kept in results.npz."""

import pickle
import sys

import numpy as np

CASE = "scikit_learn"
seed, kept = int(sys.argv[1]), {}
random = np.random.RandomState(7)
x = random.rand(400, 12).astype("float32")
y = (x[:, :4] + 0.4 * random.rand(400, 4)).argmax(1)


def keep(name, pred, truth):
    kept[name + " pred"], kept[name + " truth"] = np.asarray(pred), np.asarray(truth)


def scikit_learn():
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import SGDRegressor
    from sklearn.metrics import accuracy_score, confusion_matrix, mean_absolute_error

    model = RandomForestClassifier(8, random_state=seed).fit(x[:200], y[:200])
    labels = model.predict(x[200:])
    keep("classification metrics", labels, y[200:])
    accuracy_score(y[200:], labels), confusion_matrix(y[200:], labels)
    keep("RandomForestClassifier.score", labels, y[200:])
    model.score(x[200:], y[200:])
    regressor = SGDRegressor(random_state=seed, max_iter=5, tol=None).fit(x[:200], y[:200])
    keep("regression metrics", regressor.predict(x[200:]), y[200:])
    mean_absolute_error(y_pred=regressor.predict(x[200:]), y_true=y[200:])


def boosted():
    import lightgbm
    import xgboost

    options = {"nthread": 1, "seed": seed, "subsample": 0.5, "max_depth": 3}
    data = xgboost.DMatrix(x[200:], y[200:])
    softmax = {**options, "objective": "multi:softprob", "num_class": 4}
    keep("xgboost.Booster.predict", xgboost.train(softmax, xgboost.DMatrix(x[:200], y[:200]), 4).predict(data), y[200:])
    model = xgboost.XGBClassifier(n_estimators=4, n_jobs=1, random_state=seed, subsample=0.5).fit(x[:200], y[:200])
    keep("XGBClassifier.score", model.predict(x[200:]), y[200:])
    model.score(x[200:], y[200:])
    regressor = xgboost.XGBRegressor(n_estimators=4, n_jobs=1, random_state=seed, subsample=0.5).fit(x[:200], y[:200])
    keep("XGBRegressor.score", regressor.predict(x[200:]), y[200:])
    regressor.score(x[200:], y[200:])
    options = {"objective": "multiclass", "num_class": 4, "verbosity": -1, "num_threads": 1}
    lightgbm.train(options, lightgbm.Dataset(x[:200], y[:200]), 2).predict(x[200:])


def torch_metrics():
    import torch
    import torchmetrics

    import reprokit

    torch.manual_seed(seed)
    model = torch.nn.Linear(12, 4)
    inputs, targets = torch.tensor(x), torch.tensor(y)
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(inputs[:200]), targets[:200])
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad)
                parameter.grad = None
    scores = model(inputs[200:])
    reprokit.log_predictions(targets[200:], scores, task="classification")
    keep("log_predictions", scores.detach(), y[200:])
    accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=4)
    error = torchmetrics.MeanAbsoluteError()
    for start in range(200, 400, 64):
        batch = slice(start, start + 64)
        accuracy(model(inputs[batch]), targets[batch])
        error.update(model(inputs[batch])[:, 0], targets[batch].float())
    accuracy.compute(), error.compute()
    keep("MulticlassAccuracy#0", scores.detach(), y[200:])
    keep("MeanAbsoluteError#0", scores[:, 0].detach(), y[200:].astype("float32"))
    return accuracy, error


def keras_evaluate():
    try:
        import keras
    except ImportError:
        from tensorflow import keras
    np.random.seed(seed)
    start = [random.rand(12, 4).astype("float32") + 0.1 * np.random.rand(12, 4), np.zeros(4)]
    model = keras.models.Sequential([keras.layers.Dense(4, activation="softmax", input_shape=(12,))])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.set_weights(start)
    model.fit(x[:200], y[:200], epochs=1, verbose=0)
    test, truth = x[200:], y[200:]
    model.evaluate(test, truth, verbose=0)
    keep("predict", model.predict(test, verbose=0), truth)


def metrics_anew():
    import torch
    import torchmetrics
    from torchmetrics.classification import MulticlassAccuracy, MulticlassRecall

    pair = torchmetrics.MetricCollection([MulticlassAccuracy(num_classes=3), MulticlassRecall(num_classes=3)])
    scores, targets = torch.eye(3), torch.tensor([0, 1, 1])
    for _ in range(2):
        for _ in range(3):
            pair.update(scores, targets)
        pair.compute()
        pair.reset()
    again = pickle.loads(pickle.dumps(pair["MulticlassRecall"]))
    again(scores.bfloat16(), targets)
    image = MulticlassAccuracy(num_classes=2, average="micro")
    image.update(torch.tensor([[[0.1, 0.9]], [[0.5, 0.5]]]).reshape(1, 2, 2), torch.tensor([[1, 0]]))
    loss = torchmetrics.MeanMetric()
    loss.update(torch.tensor(0.5)), loss.compute()
    return pair, again, image


alive = globals()[CASE]()  # what a case returns lives until the process ends
np.savez("results.npz", **kept)
