"""Evaluates models of Keras of all kinds; keeps scores and random numbers, to be compared with those of a bare run."""

import json

import numpy as np
import tensorflow as tf

try:
    import keras
except ImportError:
    from tensorflow import keras
CASE = "some"
layers, random = keras.layers, np.random.RandomState(0)
np.random.seed(1), tf.compat.v1.set_random_seed(3) if keras.__version__ < "3" else keras.utils.set_random_seed(3)
x = random.rand(100, 12).astype("float32")
labels, halves = random.randint(0, 5, 100), random.randint(0, 2, (100, 1)).astype("float32")
values, weights = random.rand(100, 5).astype("float32"), random.rand(100).astype("float32")
scores, sparse = {}, "sparse_categorical_crossentropy"


def note(name, found):
    scores[name] = [float(value).hex() for value in (found if isinstance(found, list) else [found])]


def mlp(*tail):
    head = [layers.Dense(8, activation="relu", input_shape=(12,)), layers.Dropout(0.5)]
    return keras.models.Sequential([*head, *tail])


def evaluate(name, model, loss, *data, metrics=(), how=None, **options):
    model.compile("sgd", loss, metrics=list(metrics), **(how or {}))
    note(name, model.evaluate(*data, verbose=0, **options))
    return model


def softmax():
    return layers.Dense(5, activation="softmax")


def two_heads():
    inputs = layers.Input((12,))
    return keras.Model(inputs, [softmax()(inputs), layers.Dense(1)(inputs)])


def batches():
    while True:
        for start in range(0, 100, 25):
            yield x[start : start + 25], labels[start : start + 25]


def common(how):
    evaluate("softmax", mlp(softmax()), sparse, x, labels, metrics=["accuracy"], how=how)
    evaluate("one hot", mlp(softmax()), "categorical_crossentropy", x, np.eye(5, dtype="f4")[labels], how=how)
    evaluate("sigmoid", mlp(layers.Dense(1, activation="sigmoid")), "binary_crossentropy", x, halves, how=how)
    evaluate("weighted", mlp(layers.Dense(5)), "mse", x, values, metrics=["mae"], sample_weight=weights, how=how)
    evaluate("two heads", two_heads(), [sparse, "mse"], x, [labels, halves], how=how)
    evaluate("generator", mlp(softmax()), sparse, batches(), steps=4, how=how)
    dataset = tf.data.Dataset.from_tensor_slices((x, labels)).batch(25)
    evaluate("dataset", mlp(softmax()), sparse, dataset, steps=4, how=how)


def fitted(how):
    model = mlp(softmax())
    model.compile("sgd", sparse, metrics=["accuracy"], **how)
    found = model.fit(x, labels, epochs=2, validation_data=(x[:40], labels[:40]), verbose=0).history
    for name in found:
        note("fit " + name, [float(value) for value in found[name]])
    note("after", model.evaluate(x, labels, verbose=0))
    predicted = model.predict(x, verbose=0)
    np.save("predicted.npy", predicted)
    scores["predicted"] = predicted.tobytes().hex()
    note("on batch", model.test_on_batch(x, labels))


def modern(how):
    class Custom(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(5)

        def call(self, inputs):
            return self.dense(inputs)

        def test_step(self, data):
            inputs, truth = data
            predicted = self(inputs, training=False)
            self.compute_loss(y=truth, y_pred=predicted)
            return self.compute_metrics(inputs, truth, predicted, None)

    class Unseen(Custom):
        @tf.function
        def test_step(self, data):
            return super().test_step(data)

    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    evaluate("custom", Custom(), logits, x, labels, metrics=["accuracy"], how=how)
    evaluate("unseen", Unseen(), logits, x, labels, metrics=["accuracy"], how=how)


def stateful(how):
    recurrent = keras.Sequential([layers.Input(batch_shape=(10, 4, 3)), layers.GRU(3, stateful=True), softmax()])
    evaluate("stateful", recurrent, sparse, x.reshape(100, 4, 3), labels, batch_size=10, how=how)


def function():
    how = {"jit_compile": False}
    common(how)
    modern(how)
    stateful(how)
    fitted(how)
    evaluate("eager", mlp(softmax()), sparse, x, labels, how={"run_eagerly": True})
    evaluate("several steps", mlp(softmax()), sparse, x, labels, how={"jit_compile": False, "steps_per_execution": 3})


def several(how):
    evaluate("softmax", mlp(softmax()), sparse, x, labels, metrics=["accuracy"], how=how)
    evaluate("two heads", two_heads(), [sparse, "mse"], x, [labels, halves], how=how)
    dataset = tf.data.Dataset.from_tensor_slices((x, values, weights)).batch(25)
    evaluate("weighted", mlp(layers.Dense(5)), "mse", dataset, metrics=["mae"], how=how)


def some():
    several({"jit_compile": False})
    fitted({"jit_compile": False})


def compiled():
    several({"jit_compile": True})
    stateful({"jit_compile": True})
    fitted({"jit_compile": True})


def graph():
    common({})
    fitted({})


globals()[CASE]()
with open("scores.json", "w") as file:
    json.dump([scores, np.random.rand(), random.rand()], file)
