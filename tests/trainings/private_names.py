"""Which of the private names that come by standard input the frameworks of this interpreter lack, as JSON."""

import importlib
import json
import sys

NAMES = json.load(sys.stdin)
if any(name.startswith(("tensorflow.", "keras.")) for name in NAMES):
    import numpy
    import tensorflow

    try:
        import keras
    except ImportError:
        keras = tensorflow.keras


def trained_model():
    """A model that has taken a step."""
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
    model.compile("sgd", "mse")
    model.fit(numpy.zeros((2, 2)), numpy.zeros((2, 1)), verbose=0)
    return model


def eager_context():
    """TensorFlow's context, with a seed."""
    from tensorflow.python.eager import context

    with context.eager_mode():
        tensorflow.compat.v1.set_random_seed(1)
        tensorflow.random.uniform([1])
    return context.context()


def session():
    """A session of TensorFlow 1."""
    return tensorflow.compat.v1.Session()


def operation():
    """An operation of a graph."""
    with tensorflow.Graph().as_default():
        return tensorflow.constant(1.0).op


def graph_view():
    """What TensorFlow sees in a model that it saves."""
    from tensorflow.python.saved_model import save

    return save._AugmentedGraphView(tensorflow.Module())


def distributed(name):
    """A dataset for several devices, a variable of them, or the strategy itself."""
    strategy = tensorflow.distribute.MirroredStrategy(["CPU:0"])
    if name == "DistributedDataset":
        return strategy.experimental_distribute_dataset(tensorflow.data.Dataset.from_tensors([1.0]))
    with strategy.scope():
        return strategy if name == "Strategy" else tensorflow.Variable(1.0)


MADE = {
    "context": eager_context,
    "BaseSession": session,
    "DatasetV1Adapter": lambda: tensorflow.compat.v1.data.Dataset.from_tensors([1.0]),
    "DistributedDataset": lambda: distributed("DistributedDataset"),
    "DistributedVariable": lambda: distributed("DistributedVariable"),
    "Function": lambda: tensorflow.function(lambda: 1.0),
    "Generator": lambda: tensorflow.random.Generator.from_seed(1),
    "Model": trained_model,
    "Operation": operation,
    "Strategy": lambda: distributed("Strategy"),
    "_AugmentedGraphView": graph_view,
    "ResourceVariable": lambda: (
        tensorflow.Variable(1.0, use_resource=True) if hasattr(tensorflow, "get_variable") else tensorflow.Variable(1.0)
    ),
}


def find(path):
    """What a dotted path leads to; a part with brackets is called, lists lead to their first element."""
    parts = path.split(".")
    for number in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:number]))
        except ImportError:
            continue
        for part in parts[number:]:
            value = value[0] if isinstance(value, list) else value
            name = part[:-2] if part.endswith("()") else ""
            value = (MADE.get(name) or getattr(value, name))() if name else getattr(value, part)
        return
    raise AttributeError(path)


lacking = []
for name in NAMES:
    try:
        find(name)
    except AttributeError:
        lacking.append(name)
print(json.dumps(lacking))
