"""A small convolutional network that learns digits, validated after each epoch."""

import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(4)
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
model = keras.Sequential(
    [
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    images[:1500], labels[:1500], validation_data=(images[1500:], labels[1500:]), batch_size=32, epochs=3, verbose=0
)
