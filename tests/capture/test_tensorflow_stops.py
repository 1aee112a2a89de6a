"""Graphs of functions and of fit, where training is to stop at a step that is not finite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from reprokit.agent.capture.store import SnapshotFile
from tests.capture.tensorflow_steps import Done, Steps

pytestmark = pytest.mark.tensorflow

BEGIN = """
import hashlib, json, os, sys, threading
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy, tensorflow as tf
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
"""

STATES = """
def trained(x, y):
    made = model()
    made.compile(tf.keras.optimizers.Adam(1e-2), "mse", metrics=["mae"], jit_compile=False)
    code = stopped(lambda: made.fit(x, y, batch_size=8, verbose=0, shuffle=False))
    seeds = [variable for layer in made.layers for variable in layer.variables]
    return code, digest(*made.variables, *made.optimizer.variables, *seeds)
tell(good=trained(*data(5)), bad=trained(*data(8, 5)))
"""

TWO = """
first, second = tf.Variable(tf.ones([600])), tf.Variable(tf.ones([600]))
adams = [tf.keras.optimizers.Adam(0.1), tf.keras.optimizers.Adam(0.1)]
adams[0].build([first]), adams[1].build([second])
@tf.function
def both(x):
    for optimizer, variable in zip(adams, (first, second)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first * second * (x if variable is second else 1.0))
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
state = lambda: digest(first, second, *adams[0].variables, *adams[1].variables)
both(1.0)
before = state()
tell(code=stopped(both, float("nan")), same=state() == before, first=digest(first))
"""

CALLS = """
step(one)
concrete = step.get_concrete_function(one)
codes = [stopped(concrete, one * float("inf"))]
@tf.function
def around(x):
    return step(x) + 1.0
around(one)
codes += [stopped(step, one * float("nan")), stopped(around, one * float("nan"))]
tell(codes=codes, steps=int(sgd.iterations), finite=bool(numpy.isfinite(w.numpy()).all()))
"""

ERRORS = """
step(one)
for value in (6.0, 7.0):
    try:
        step(one * value)
    except tf.errors.InvalidArgumentError as error:
        tell(message="mine" in str(error))
step(one * 2)
tell(code=stopped(step, one * float("nan")))
"""

CAUGHT = """
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
"""

THREADS = """
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
"""

OVERFLOW = """
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
    adam.apply_gradients(zip(tape.gradient(loss, [half, rows, wide]), [half, rows, wide]))
at = tf.range(200)
mixed(tf.constant([60000.0, 3e38, 3e38]), at)
codes = []
for place in range(3):
    x = numpy.ones(3, "float32")
    x[place] = numpy.inf
    codes.append(stopped(mixed, tf.constant(x), at))
tell(codes=codes, steps=int(adam.iterations))
"""

LAST = """
losses = [float(step(one * value)) for value in numpy.linspace(-1, 1, 105)]
tell(code=stopped(step, one * float("nan")), losses=losses)
"""

PROCESSORS = """
(found,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(found, [tf.config.LogicalDeviceConfiguration()] * 2)
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
"""

METHOD = """
class Model(tf.keras.Model):
    def own(self, iterator):
        return {"loss": step(next(iterator)[0])}
made = Model()
made.compile()
made.train_function = made.own
x = numpy.ones((5, 4, 600), "float32")
x[3] = numpy.nan
tell(code=stopped(lambda: made.fit(x, x, batch_size=1, verbose=0, shuffle=False)))
"""

SAVED = """
class Module(tf.Module):
    def __init__(self):
        self.w, self.sgd = w, sgd
        self.vars = [getattr(variable, "value", variable) for variable in sgd.variables]
    @tf.function(input_signature=[tf.TensorSpec([4, 600])], jit_compile=JIT)
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
tell(first=first, loaded=float(again.train(one)), code=stopped(module.train, one * float("nan")), inference=inference)
"""


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    """Trainings in a directory of their own."""
    return Steps(tmp_path)


def told(done: Done) -> list[dict[str, Any]]:
    """What a script said."""
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def batch(path: Path) -> numpy.ndarray:
    """What the function was called with."""
    file = SnapshotFile(str(path))
    (name,) = [name for name in file.tensors if name.startswith("batch.")]
    return numpy.frombuffer(file.tensors[name].data, "f4")


@pytest.mark.slow
def test_the_state_is_that_before_the_step(steps: Steps) -> None:
    (found,) = told(steps.capture(BEGIN + STATES))
    assert found["good"] == [None, found["bad"][1]]
    assert found["bad"][0] == 123
    assert [steps.header()["step"], steps.header()["steps_in_epoch"]] == [5, 5]


@pytest.mark.extended
def test_no_update_behind_a_bad_one_in_the_same_graph_is_made(steps: Steps) -> None:
    (found,) = told(steps.capture(BEGIN + TWO.replace("variable is second", "variable is first", 1)))
    assert (found["code"], found["same"]) == (123, True)
    assert steps.header()["trigger"]["optimizers"] == ["optimizer#0"]
    assert len(steps.snapshots) == 1


@pytest.mark.slow
def test_of_two_updates_in_a_graph_none_is_left_where_the_second_is_bad(steps: Steps) -> None:
    (found,) = told(steps.capture(BEGIN + TWO))
    assert (found["code"], found["same"]) == (123, True)
    assert steps.header()["trigger"]["optimizers"] == ["optimizer#1"]


@pytest.fixture(scope="module")
def one_graph(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[dict[str, Any]], list[Path]]]:
    """What several trainings by the same graph said, one after another in a process, and their snapshots."""
    parts = {"calls": CALLS, "errors": ERRORS, "caught": CAUGHT, "threads": THREADS, "large": OVERFLOW}
    steps = Steps(tmp_path_factory.mktemp("one-graph"))
    count = 'len(os.listdir("run/snapshots")) if os.path.exists("run/snapshots") else 0'
    script = BEGIN + "".join(f"{text}tell(ended={name!r}, snapshots={count})\n" for name, text in parts.items())
    found: dict[str, tuple[list[dict[str, Any]], list[Path]]] = {}
    said: list[dict[str, Any]] = []
    first = 0
    for line in told(steps.capture(script, max_snapshots=20)):
        if "ended" in line:
            found[line["ended"]] = said, steps.snapshots[first : line["snapshots"]]
            said, first = [], line["snapshots"]
        else:
            said.append(line)
    return found


@pytest.mark.slow
def test_it_is_captured_however_the_graph_was_called(one_graph: dict[str, tuple[list[Any], list[Path]]]) -> None:
    said, snapshots = one_graph["calls"]
    assert said == [{"codes": [123] * 3, "steps": 2, "finite": True}]
    assert len(snapshots) == 3


@pytest.mark.slow
def test_errors_of_the_script_s_own_leave_nothing_behind(one_graph: dict[str, tuple[list[Any], list[Path]]]) -> None:
    said, (snapshot,) = one_graph["errors"]
    assert said == [{"message": True}] * 2 + [{"code": 123}]
    assert numpy.isnan(batch(snapshot)).all()


@pytest.mark.slow
def test_what_the_script_catches_within_is_its_own_error_and_not_a_captured_step(
    one_graph: dict[str, tuple[list[Any], list[Path]]],
) -> None:
    said, snapshots = one_graph["caught"]
    assert said == [{"caught": "InvalidArgumentError"}, {"code": 123}]
    assert len(snapshots) == 1


@pytest.mark.slow
def test_other_threads_in_the_same_graph_go_on(one_graph: dict[str, tuple[list[Any], list[Path]]]) -> None:
    said, (snapshot,) = one_graph["threads"]
    assert said == [{"codes": {"b": 123}}]
    assert numpy.isnan(batch(snapshot)).all()


@pytest.mark.slow
def test_the_last_losses_are_known(steps: Steps) -> None:
    (found,) = told(steps.capture(BEGIN + LAST))
    assert found["code"] == 123
    assert [float.fromhex(loss) for loss in steps.header()["losses"]] == found["losses"][-100:]


@pytest.mark.slow
def test_a_step_on_another_processor_is_captured_too(steps: Steps) -> None:
    assert told(steps.capture(BEGIN.partition("w = tf")[0] + PROCESSORS)) == [{"code": 123, "finite": True}]
    (snapshot,) = steps.snapshots
    assert numpy.isnan(batch(snapshot)).tolist() == [False, True, False, False]


@pytest.mark.slow
def test_a_train_function_may_be_one_that_nothing_can_be_noted_at(steps: Steps) -> None:
    assert told(steps.capture(BEGIN + METHOD)) == [{"code": 123}]
    assert steps.header()["step"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jit", "action", "code"),
    [
        (False, "stop", 123),
        (True, "skip", None),
        pytest.param(False, "skip", None, marks=pytest.mark.extended),
        pytest.param(True, "stop", 123, marks=pytest.mark.extended),
    ],
)
def test_a_function_that_trains_can_be_saved(steps: Steps, jit: bool, action: str, code: int | None) -> None:
    """As those are that are to be trained on devices; TensorFlow refuses graphs with variables that nobody saves."""
    (found,) = told(steps.capture(BEGIN + SAVED.replace("JIT", str(jit)), action))
    inference = found.pop("inference")
    assert found == {"first": 2400.0, "loaded": 1200.0, "code": code}
    assert inference == ["_CHECKPOINTABLE_OBJECT_GRAPH", "w/.ATTRIBUTES/VARIABLE_VALUE"]  # and nothing of ours
    assert len(steps.snapshots) == 1


@pytest.mark.slow
def test_large_numbers_of_all_kinds_are_no_alarm(one_graph: dict[str, tuple[list[Any], list[Path]]]) -> None:
    (first, second), _ = one_graph["large"]
    assert first == {"finite": True, "sum": float("inf")}
    assert second == {"codes": [123] * 3, "steps": 1}
