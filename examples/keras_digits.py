"""Trains a small convolutional network on scikit-learn's digits with Keras. It sets no seed."""

import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from sklearn.datasets import load_digits

EPOCHS = 5


def digest(model: keras.Model) -> str:
    return hashlib.sha256(b"".join(weights.tobytes() for weights in model.get_weights())).hexdigest()


def main() -> None:
    digits = load_digits()
    images, labels = (digits.images / 16)[..., None].astype("float32"), digits.target
    model = keras.Sequential(
        [
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(images[:1500], labels[:1500], batch_size=32, epochs=EPOCHS, verbose=2)
    predicted = model.predict(images[1500:], verbose=0).argmax(1)
    model.save("digits.keras")
    correct = int((predicted == labels[1500:]).sum())
    print(f"loss {history.history['loss'][-1]!r} correct {correct}/297 weights {digest(model)}")


if __name__ == "__main__":
    main()
