"""Graphs of functions and of fit that end at a step that is not finite; each case tells what it came to."""

import gc
import hashlib
import json
import os
import re
import threading
import weakref

import numpy
import tensorflow as tf

CASE = "states"
layers = tf.keras.layers


def model():
    tf.keras.utils.set_random_seed(3)
    dense = [layers.Dense(64, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    return tf.keras.Sequential([tf.keras.Input((16,)), *dense])


def data(batches, *bad):
    generator = numpy.random.default_rng(0)
    x, y = generator.standard_normal((64, 16)), generator.standard_normal((64, 1))
    for batch in bad:
        y[8 * batch + 3] = numpy.nan
    return x[: 8 * batches].astype("float32"), y[: 8 * batches].astype("float32")


def digest(*variables):
    return hashlib.sha256(b"".join(numpy.asarray(one).tobytes() for one in variables)).hexdigest()[:16]


def stopped(function, *arguments):
    try:
        function(*arguments)
    except SystemExit as error:
        return error.code


def tell(**found):
    print(json.dumps(found), flush=True)


if CASE == "processors":
    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
w = tf.Variable(tf.ones([4, 600]))
sgd = tf.keras.optimizers.SGD(0.5)
sgd.build([w])


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * x)
    sgd.apply_gradients([(tape.gradient(loss, w), w)])
    least = tf.reduce_min(x)
    tf.raw_ops.Assert(condition=tf.logical_or(abs(least - 6.5) >= 1.0, tf.math.is_nan(least)), data=["mine"])
    return loss


one = tf.ones([4, 600])


def states():
    def trained(x, y):
        made = model()
        made.compile(tf.keras.optimizers.Adam(1e-2), "mse", metrics=["mae"], jit_compile=False)
        code = stopped(lambda: made.fit(x, y, batch_size=8, verbose=0, shuffle=False))
        seeds = [variable for layer in made.layers for variable in layer.variables]
        return code, digest(*made.variables, *made.optimizer.variables, *seeds)

    tell(good=trained(*data(5)), bad=trained(*data(8, 5)))


def two(bad=1):
    first, second = tf.Variable(tf.ones([600])), tf.Variable(tf.ones([600]))
    adams = [tf.keras.optimizers.Adam(0.1), tf.keras.optimizers.Adam(0.1)]
    adams[0].build([first]), adams[1].build([second])

    @tf.function
    def both(x):
        for optimizer, variable in zip(adams, (first, second), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(first * second * (x if variable is (first, second)[bad] else 1.0))
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    def state():
        return digest(first, second, *adams[0].variables, *adams[1].variables)

    both(1.0)
    before = state()
    tell(code=stopped(both, float("nan")), same=state() == before, first=digest(first))


def first_of_two():
    two(bad=0)


def calls():
    step(one)
    concrete = step.get_concrete_function(one)
    codes = [stopped(concrete, one * float("inf"))]

    @tf.function
    def around(x):
        return step(x) + 1.0

    around(one)
    codes += [stopped(step, one * float("nan")), stopped(around, one * float("nan"))]
    tell(codes=codes, steps=int(sgd.iterations), finite=bool(numpy.isfinite(w.numpy()).all()))


def errors():
    step(one)
    for value in (6.0, 7.0):
        try:
            step(one * value)
        except tf.errors.InvalidArgumentError as error:
            tell(message="mine" in str(error))
    step(one * 2)
    tell(code=stopped(step, one * float("nan")))


def caught():
    class Model(tf.keras.Model):
        def train_step(self, data):
            try:
                return {"loss": step(data[0])}
            except Exception as error:
                tell(caught=type(error).__name__)
                return {"loss": 0.0}

    made = Model()
    made.compile(run_eagerly=True)
    x = numpy.ones((5, 4, 600), "float32")
    x[1], x[3] = 6.0, numpy.nan
    tell(code=stopped(lambda: made.fit(x, x, batch_size=1, verbose=0, shuffle=False)))


def threads():
    step(one)
    begin, codes = threading.Barrier(3), {}

    def train(name, value, bad):
        begin.wait()
        for number in range(60):
            code = stopped(step, one * (float("nan") if number == bad else value))
            if code:
                codes[name] = code
                return

    threads = [threading.Thread(target=train, args=given) for given in (("a", 1.5, -1), ("b", 2.5, 30), ("c", 3.5, -1))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    tell(codes=codes)


def fits():
    codes, over = {}, threading.Event()

    def train(name, *bad):
        made = tf.keras.Sequential([tf.keras.Input((16,)), layers.Dense(1)], name=name)
        made.compile("sgd", "mse", jit_compile=False)
        try:
            while not over.is_set():
                code = stopped(lambda: made.fit(*data(8, *bad), batch_size=8, verbose=0, shuffle=False))
                if code or bad:
                    codes[name] = code
                    return
        finally:
            if bad:
                over.set()

    threads = [threading.Thread(target=train, args=given) for given in (("first",), ("bad", 7), ("last",))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    tell(codes=codes)


def overflow():
    w.assign(0.0 * one)
    step(one * 3e38)
    tell(finite=bool(numpy.isfinite(w.numpy()).all()), sum=float(tf.reduce_sum(one * 3e38)))
    half = tf.Variable(tf.ones([600], tf.float16))
    rows = tf.Variable(tf.zeros([300, 4]))
    wide = tf.Variable(tf.zeros([700], tf.float64))
    adam = tf.keras.optimizers.SGD(1.0)
    adam.build([half, rows, wide])

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None], tf.int32)])
    def mixed(x, at):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(half, tf.float32) * x[0]) + tf.reduce_sum(tf.gather(rows, at) * x[1])
            loss += tf.cast(tf.reduce_sum(wide * tf.cast(x[2], tf.float64)), tf.float32)
        adam.apply_gradients(zip(tape.gradient(loss, [half, rows, wide]), [half, rows, wide], strict=True))

    at = tf.range(200)
    mixed(tf.constant([60000.0, 3e38, 3e38]), at)
    codes = []
    for place in range(3):
        x = numpy.ones(3, "float32")
        x[place] = numpy.inf
        codes.append(stopped(mixed, tf.constant(x), at))
    tell(codes=codes, steps=int(adam.iterations))


def last():
    losses = [float(step(one * value)) for value in numpy.linspace(-1, 1, 105)]
    tell(code=stopped(step, one * float("nan")), losses=losses)


def processors():
    v, optimizer = tf.Variable(tf.ones([4])), tf.keras.optimizers.SGD(0.5)

    @tf.function
    def there(x):
        with tf.device("/CPU:1"):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(v * x)
            optimizer.apply_gradients([(tape.gradient(loss, v), v)])
        return loss

    there(tf.ones([4]))
    tell(code=stopped(there, tf.constant([1.0, float("nan"), 1.0, 1.0])), finite=bool(numpy.isfinite(v.numpy()).all()))


def method():
    class Model(tf.keras.Model):
        def own(self, iterator):
            return {"loss": step(next(iterator)[0])}

    made = Model()
    made.compile()
    made.train_function = made.own
    x = numpy.ones((5, 4, 600), "float32")
    x[3] = numpy.nan
    tell(code=stopped(lambda: made.fit(x, x, batch_size=1, verbose=0, shuffle=False)))


def saved(jit=False):
    class Module(tf.Module):
        def __init__(self):
            self.w, self.sgd = w, sgd
            self.vars = [getattr(variable, "value", variable) for variable in sgd.variables]

        @tf.function(input_signature=[tf.TensorSpec([4, 600])], jit_compile=jit)
        def train(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.w * x)
            self.sgd.apply_gradients([(tape.gradient(loss, self.w), self.w)])
            return loss

    module = Module()
    first = float(module.train(one))
    tf.saved_model.save(module, "saved")
    other = tf.Module()
    other.w, other.infer = w, tf.function(lambda x: w * x, input_signature=[tf.TensorSpec([4, 600])])
    tf.saved_model.save(other, "inference")
    inference = [name for name, _ in tf.train.list_variables("inference/variables/variables")]
    again = tf.saved_model.load("saved")
    functions = module.train.get_concrete_function().graph.as_graph_def().library.function
    hosts = [one for one in functions if any(node.op == "EagerPyFunc" for node in one.node_def)]
    names = [
        re.fullmatch(".*readvariableop_?([0-9]*)", given.name) for one in hosts for given in one.signature.input_arg
    ]
    numbers = [int(name[1] or 0) for name in names if name]
    many = [tf.Variable(float(number)) for number in range(12)]
    read = tf.function(lambda: tf.add_n(many)).get_concrete_function().variables
    tell(
        first=first,
        loaded=float(again.train(one)),
        code=stopped(module.train, one * float("nan")),
        inference=inference,
        order=[int(variable) for variable in read],
        held=numbers,
    )


def saved_by_xla():
    saved(jit=True)


def dropped():
    made = model()
    made.compile("sgd", "mse", jit_compile=False)
    made.fit(*data(2), batch_size=8, verbose=0)
    reference = weakref.ref(made)
    del made
    gc.collect()
    tell(alive=reference() is not None)


def one_graph():
    for case in calls, errors, caught, threads, overflow, dropped:
        case()
        snapshots = len(os.listdir("run/snapshots")) if os.path.exists("run/snapshots") else 0
        tell(ended=case.__name__, snapshots=snapshots)


globals()[CASE]()
