"""An attention that compares the halves of sequences, with a schedule, validated after each epoch."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(5)
numbers = np.random.randint(1, 20, (512, 12))
labels = (numbers[:, :6].sum(1) > numbers[:, 6:].sum(1)).astype(int)
inputs = keras.Input((12,), dtype="int32")
embedded = layers.Embedding(20, 16)(inputs)
hidden = layers.LayerNormalization()(embedded + layers.MultiHeadAttention(2, 8)(embedded, embedded))
hidden = layers.Flatten()(layers.Dense(16, activation="gelu")(hidden))
model = keras.Model(inputs, layers.Dense(2)(layers.Dropout(0.1)(hidden)))
model.compile(
    keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(3e-3, 160)),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(
    numbers[:400], labels[:400], batch_size=20, epochs=4, validation_data=(numbers[400:], labels[400:]), verbose=0
)
