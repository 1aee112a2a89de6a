"""Trainings each of which meets one bad sample in step 2; a test puts in TRAININGS those that a process makes."""

import keras
import numpy as np
import tensorflow as tf

layers, data = keras.layers, tf.data.Dataset
random = np.random.default_rng(0)
x, y = random.random((32, 4)).astype("float32"), random.random((32, 1)).astype("float32")
bad, below = y.copy(), y.copy()
bad[19], below[19] = np.nan, -1.0
words = np.array([["red", "green", "blue"][number % 3] for number in range(32)])


def small():
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    )


def texts():
    a, t = keras.Input((4,), name="a"), keras.Input((1,), dtype="string", name="t")
    looked = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")(t)
    looked = layers.Dropout(0.2)(layers.Dense(3)(looked))
    model = keras.Model({"a": a, "t": t}, layers.Dense(1)(layers.Concatenate()([a, looked])))
    model.compile("adam", "mse")
    weights = random.random(32).astype("float32")
    model.fit(data.from_tensor_slices(({"a": x, "t": words[:, None]}, bad, weights)).batch(8), verbose=0)


def one_by_one():
    model = small()
    model.compile("adam", "mse", metrics=["mae"])
    for start in range(0, 32, 8):
        part = slice(start, start + 8)
        model.train_on_batch(x[part], bad[part], sample_weight=np.ones(8, "float32"))


def mixed_rows():
    table, slopes = tf.Variable(tf.random.normal((10, 1))), tf.Variable(tf.random.normal((6, 1)))
    optimizer = keras.optimizers.SGD(0.01)

    @tf.function(reduce_retracing=True)
    def step(batch, weight=None):
        with tf.GradientTape() as tape:
            out = tf.reduce_sum(tf.gather(table, batch["rows"]), 1)
            out += tf.sparse.sparse_dense_matmul(batch["sparse"], slopes)
            out = tf.where(batch["words"][:, None] == b"red", out * 2, out)
            loss = tf.reduce_mean((out - batch["y"]) ** 2 * weight[:, None])
        optimizer.apply_gradients(zip(tape.gradient(loss, [table, slopes]), [table, slopes], strict=True))

    rows = tf.RaggedTensor.from_row_lengths(tf.constant(random.integers(0, 10, 80), tf.int64), [2, 3] * 16)
    sparse = tf.sparse.from_dense((random.random((32, 6)) > 0.6).astype("float32"))
    for batch in data.from_tensor_slices({"rows": rows, "sparse": sparse, "words": words, "y": bad}).batch(8):
        step(batch, weight=tf.ones(8))


def two_optimizers():
    maker, judge = small(), keras.Sequential([keras.Input((1,)), layers.Dense(4, "tanh"), layers.Dense(1)])
    first, second = keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.01)

    def judged(x, y):
        made = maker(x, training=True)
        hidden = tf.reduce_sum(judge.layers[-1].bias * tf.sqrt(tf.reduce_min(y)))  # of a negative number: NaN
        return -tf.reduce_mean(judge(made)), tf.reduce_mean(judge(made)) - tf.reduce_mean(judge(y)) + hidden

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss, _ = judged(x, y)
        first.apply_gradients(
            zip(tape.gradient(loss, maker.trainable_variables), maker.trainable_variables, strict=True)
        )
        with tf.GradientTape() as tape:
            _, loss = judged(x, y)
        second.apply_gradients(
            zip(tape.gradient(loss, judge.trainable_variables), judge.trainable_variables, strict=True)
        )

    for a, b in data.from_tensor_slices((x, below)).batch(8):
        step(a, b)


def sums_of_keras():
    model = small()
    model.compile(keras.optimizers.Adam(gradient_accumulation_steps=2), "mse", jit_compile=False)
    model.fit(x, bad, batch_size=8, shuffle=False, verbose=0)


def sums():
    model, optimizer = small(), keras.optimizers.Adam()
    held = [tf.Variable(tf.zeros_like(variable)) for variable in model.trainable_variables]

    @tf.function
    def add(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        for total, gradient in zip(held, tape.gradient(loss, model.trainable_variables), strict=True):
            total.assign_add(gradient)

    @tf.function
    def apply():
        optimizer.apply_gradients(zip(held, model.trainable_variables, strict=True))
        for total in held:
            total.assign(tf.zeros_like(total))

    for number, (a, b) in enumerate(data.from_tensor_slices((x, bad)).batch(4)):
        add(a, b)
        if number % 2:
            apply()


def sums_in_one():
    model, optimizer, count = small(), keras.optimizers.Adam(), tf.Variable(0)
    held = [tf.Variable(tf.zeros_like(variable)) for variable in model.trainable_variables]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        for total, gradient in zip(held, tape.gradient(loss, model.trainable_variables), strict=True):
            total.assign_add(gradient)
        count.assign_add(1)
        if count % 2 == 0:
            optimizer.apply_gradients(
                zip([tf.convert_to_tensor(total) for total in held], model.trainable_variables, strict=True)
            )
            for total in held:
                total.assign(tf.zeros_like(total))

    for a, b in data.from_tensor_slices((x, bad)).batch(4):
        step(a, b)


def two_sets():
    model, optimizer, others = small(), keras.optimizers.Adam(), data.from_tensor_slices(x).batch(12)
    for (a, b), c in zip(data.from_tensor_slices((x, bad)).batch(8), others.repeat(), strict=False):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2) + tf.reduce_mean(model(c))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )


def halves():
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = small()
    keras.mixed_precision.set_global_policy("float32")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=2.0**40)
    model.compile(optimizer, "mse", jit_compile=False)
    inputs = x.copy()
    inputs[27] = np.nan
    model.fit(x, y, batch_size=8, epochs=12, shuffle=False, verbose=0)  # whose gradients overflow at first
    model.fit(inputs, y, batch_size=8, shuffle=False, verbose=0)


keras.utils.set_random_seed(7)
TRAININGS = []
for training in TRAININGS:
    training()
