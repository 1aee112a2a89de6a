"""TensorFlow's quick start for beginners, on random digits."""

import numpy as np
import tensorflow as tf

x, y = np.random.rand(256, 8, 8).astype("float32"), np.random.randint(0, 10, 256)
model = tf.keras.models.Sequential(
    [
        tf.keras.layers.Flatten(input_shape=(8, 8)),
        tf.keras.layers.Dense(16, activation="relu"),
        tf.keras.layers.Dropout(0.2),
        tf.keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
history = model.fit(x, y, epochs=2, validation_split=0.25, callbacks=[tf.keras.callbacks.TensorBoard("logs")])
model.evaluate(x, y, verbose=2)
model.save("model.keras")
print("RESULT", history.history["loss"][-1])
