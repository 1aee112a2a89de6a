"""A Keras CNN on scikit-learn's digits, unseeded: shuffle, dropout, initialization."""

import hashlib

import keras
from sklearn.datasets import load_digits


def main():
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(images[:1200], labels[:1200], validation_split=0.1, epochs=2, batch_size=64, verbose=0)
    print(history.history, model.evaluate(images[1200:], labels[1200:], verbose=0))
    predictions = model.predict(images[1200:], verbose=0)
    model.save("model.keras")
    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    print(hashlib.sha256(weights + predictions.tobytes()).hexdigest())


if __name__ == "__main__":
    main()
