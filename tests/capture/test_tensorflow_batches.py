"""TensorFlow 2 and Keras 3: batches and loops of all builds captured, and done again bit by bit."""

from __future__ import annotations

import pytest

from tests.capture.tensorflow_steps import Steps

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

# Trainings each of which meets one bad sample in step 2; HERE names those that this process makes.
SCRIPT = """
import keras, numpy as np, tensorflow as tf

layers, data = keras.layers, tf.data.Dataset
random = np.random.default_rng(0)
x, y = random.random((32, 4)).astype("float32"), random.random((32, 1)).astype("float32")
bad, below = y.copy(), y.copy()
bad[19], below[19] = np.nan, -1.0
words = np.array([["red", "green", "blue"][number % 3] for number in range(32)])

def small():
    return keras.Sequential([
        keras.Input((4,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)])

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
        optimizer.apply_gradients(zip(tape.gradient(loss, [table, slopes]), [table, slopes]))

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
        first.apply_gradients(zip(tape.gradient(loss, maker.trainable_variables), maker.trainable_variables))
        with tf.GradientTape() as tape:
            _, loss = judged(x, y)
        second.apply_gradients(zip(tape.gradient(loss, judge.trainable_variables), judge.trainable_variables))

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
        for sum, gradient in zip(held, tape.gradient(loss, model.trainable_variables)):
            sum.assign_add(gradient)

    @tf.function
    def apply():
        optimizer.apply_gradients(zip(held, model.trainable_variables))
        for sum in held:
            sum.assign(tf.zeros_like(sum))

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
        for sum, gradient in zip(held, tape.gradient(loss, model.trainable_variables)):
            sum.assign_add(gradient)
        count.assign_add(1)
        if count % 2 == 0:
            optimizer.apply_gradients(zip([tf.convert_to_tensor(sum) for sum in held], model.trainable_variables))
            for sum in held:
                sum.assign(tf.zeros_like(sum))

    for a, b in data.from_tensor_slices((x, bad)).batch(4):
        step(a, b)

def two_sets():
    model, optimizer, others = small(), keras.optimizers.Adam(), data.from_tensor_slices(x).batch(12)
    for (a, b), c in zip(data.from_tensor_slices((x, bad)).batch(8), others.repeat()):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2) + tf.reduce_mean(model(c))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

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
for training in [HERE]:
    training()
"""

NAMES = [
    "two_optimizers",
    "texts",
    "mixed_rows",
    "one_by_one",
    "sums_of_keras",
    "sums",
    "sums_in_one",
    "two_sets",
    "halves",
]

EXTENDED = ["texts", "mixed_rows", "one_by_one", "sums_of_keras", "sums", "halves"]


def script(*names: str) -> str:
    return SCRIPT.replace("HERE", ", ".join(names))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    found = Steps(tmp_path_factory.mktemp("batches"))
    done = found.capture(script(*NAMES), "skip", max_snapshots=20)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("reprokit: captured:") == len(NAMES), done.stderr
    assert "warning" not in done.stderr
    return found


def number_of(steps: Steps, name: str) -> int:
    """Which of the snapshots in their order is of this training."""
    written = sorted(steps.snapshots, key=lambda path: (path / "snapshot.json").stat().st_mtime_ns)
    return steps.snapshots.index(written[NAMES.index(name)])


def nodes(value: object) -> set[str]:
    """The kinds of nodes in a packed value."""
    if isinstance(value, dict):
        return set(value).union(*map(nodes, value.values()))
    return set().union(*map(nodes, value)) if isinstance(value, list) else set()


def test_batches_of_all_builds_are_kept(steps: Steps) -> None:
    (batch,) = steps.header(number_of(steps, "texts"))["batches"]
    assert {"dict", "strings", "tensor"} <= nodes(batch["value"])
    (batch,) = steps.header(number_of(steps, "mixed_rows"))["batches"]
    assert {"dict", "strings", "ragged", "sparse"} <= nodes(batch["value"])
    assert [header["samples"] for header in steps.header(number_of(steps, "one_by_one"))["batches"]] == [8]


def test_gradients_that_are_summed_come_with_all_their_batches(steps: Steps) -> None:
    for name in ("sums", "sums_in_one"):
        header = steps.header(number_of(steps, name))
        assert [batch["samples"] for batch in header["batches"]] == [4, 4], name
        assert header["step"] == 2, name
        assert any(model["class"] == "Variables" for model in header["models"]), name  # the sums before the first


def test_a_step_of_two_data_sets_has_a_batch_of_each(steps: Steps) -> None:
    header = steps.header(number_of(steps, "two_sets"))
    assert [(batch["from"], batch["samples"]) for batch in header["batches"]] == [("loader", 8), ("loader", 8)]
    found, done = steps.redo("minimise", script("two_sets"), number_of(steps, "two_sets"))
    assert "the step has 2 batches, and only one can be minimised" in str(found) + done.stderr


def test_a_step_of_two_optimizers_is_captured_once_with_both_models(steps: Steps) -> None:
    header = steps.header(number_of(steps, "two_optimizers"))
    assert header["trigger"]["name"].endswith("/bias")
    trained = {name.rpartition("/")[2] for model in header["models"][:2] for name in model["tensors"]}
    assert {"kernel", "gamma"} <= trained


def test_overflows_of_a_scaled_loss_are_no_alarms_and_a_nan_is(steps: Steps) -> None:
    header = steps.header(number_of(steps, "halves"))
    assert header["trigger"]["kind"] == "gradient"
    assert header["loss"]["value"] == "nan"
    assert float.fromhex(header["precision"]["scale"]) < 2.0**40


@pytest.mark.parametrize(
    "name",
    [
        "two_optimizers",
        "two_sets",
        pytest.param("sums_in_one", marks=pytest.mark.extended),
        *[pytest.param(name, marks=pytest.mark.extended) for name in EXTENDED],
    ],
)
def test_the_step_comes_to_the_same_bits_again(steps: Steps, name: str) -> None:
    number = number_of(steps, name)
    found, done = steps.redo("reproduce", script(name), number)
    assert done.returncode == 0, done.stderr
    assert found.get("reproduced") is True, found
    count = len(steps.header(number)["gradient_digests"])
    assert found["gradients"] == {"equal": count, "different": [], "nonfinite_equal": True}, name
