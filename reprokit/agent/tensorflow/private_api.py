"""Every private name of TensorFlow and Keras that the agent uses, once, with the versions in which it was seen.

Whoever needs one asks this module. Names that captures, observing and patches still use by themselves are listed all
the same: tests/agent/test_tensorflow_private_api.py says what a release lacks, and who uses a name that is not here.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


# Dotted path -> the versions it was seen in, by this project's tests: of TensorFlow, and of Keras from "keras." on.
# "until" is the last version with it, where it is not installed here. What "()" stands behind is made by the test.
SEEN: Mapping[str, str] = {
    "tensorflow.python.client.session.BaseSession()._closed": "1.14, 2.21",
    "tensorflow.python.eager.context._context": "1.14, 2.21",
    "tensorflow.python.eager.context.context()._rng": "1.14, 2.21",
    "tensorflow.python.eager.context.context()._seed": "1.14, 2.21",
    "tensorflow.python.framework.op_def_registry.get": "2.21",
    "tensorflow.python.framework.ops.EagerTensor._numpy": "1.14, 2.21",
    "tensorflow.python.framework.ops.get_default_graph": "1.14, 2.21",
    "tensorflow.python.framework.ops.get_default_session": "1.14, 2.21",
    "tensorflow.python.framework.ops.init_scope": "1.14, 2.21",
    "tensorflow.python.keras.backend._SESSION": "1.14, 2.21",
    "tensorflow.python.keras.engine.training.Model._make_test_function": "1.14",
    "tensorflow.python.keras.engine.training.Model()._feed_inputs": "1.14",
    "tensorflow.python.keras.engine.training.Model()._feed_targets": "1.14",
    "tensorflow.python.keras.engine.training.Model().optimizer._iterations": "1.14",
    "tensorflow.python.ops.resource_variable_ops.ResourceVariable()._in_graph_mode": "1.14, 2.21",
    "keras.engine.training.Model()._cluster_coordinator": "until 2.15",
    "keras.engine.training.Model()._jit_compile": "until 2.15",
    "keras.engine.training.Model()._steps_per_execution": "until 2.15",
    "keras.src.backend.tensorflow.trainer.TensorFlowTrainer._autoconvert_optionals": "3.15",
    "keras.src.models.model.Model()._flatten_layers": "3.15",
    "keras.src.models.model.Model().optimizer._iterations": "3.15",
    "keras.src.models.model.Model().optimizer._trainable_variables": "3.15",
    "keras.src.models.model.Model().weights._value": "3.15",
    "keras.src.trainers.trainer.Trainer._compute_loss": "3.15",
}
COMPUTE_LOSS = ("_compute_loss", "compute_loss")  # of a trainer of Keras 3
GRAPH_TEST_FUNCTION = "_make_test_function"  # of a model of Keras in TensorFlow 1
STEP_COMPILER = "_autoconvert_optionals"  # which Keras 3 calls with the compiled step


def ops() -> Any:
    """The module of graphs, sessions and scopes; None where nobody imported TensorFlow."""
    return sys.modules.get("tensorflow.python.framework.ops")


def context() -> Any:
    """What eager TensorFlow knows of itself; None before it was asked for."""
    return getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)


def eager_seed() -> Any:
    """The seed that the script gave eager TensorFlow."""
    return getattr(context(), "_seed", None)


def seed_generator() -> Any:
    """Python's generator of the seeds that eager operations draw; None before a seed was set."""
    return getattr(context(), "_rng", None)


def is_closed(session: Any) -> bool:
    """Whether a session has ended."""
    return bool(getattr(session, "_closed", True))


def keras_session() -> Any:
    """The session that Keras made in TensorFlow 1."""
    for name in ("tensorflow.python.keras.backend", "keras.backend", "keras.src.backend"):
        held = getattr(sys.modules.get(name), "_SESSION", None)
        session = getattr(held, "session", held)
        if hasattr(session, "run"):
            return session
    return None


def is_stateful(operation: str) -> bool:
    """Whether an operation of this name draws or keeps anything."""
    return bool(sys.modules["tensorflow.python.framework.op_def_registry"].get(operation).is_stateful)


# Tensors and variables


def has_value(tensor: Any) -> bool:
    """Whether a tensor has a value now: no graph is being built."""
    return hasattr(tensor, "_numpy")


def value(tensor: Any) -> Any:
    """The value as an array, without a copy where it lies on this side."""
    return tensor._numpy()


def is_of_graph(variable: Any) -> bool:
    """Whether it is a variable of a TensorFlow 1 graph, which has no value outside a session."""
    return bool(getattr(variable, "_in_graph_mode", type(variable).__name__ == "RefVariable"))


def plain(variable: Any) -> Any:
    """The variable of TensorFlow in one of Keras 3."""
    return getattr(variable, "_value", variable)


# Models and optimizers of Keras


def counter(optimizer: Any, default: Any = None) -> Any:
    """The variable that counts an optimizer's steps."""
    return vars(optimizer).get("_iterations", default)


def trained(optimizer: Any) -> list[Any]:
    """The variables that an optimizer of Keras 3 was built for."""
    return list(getattr(optimizer, "_trainable_variables", None) or ())


def is_compiled(model: Any) -> bool:
    """Whether XLA compiles a model's steps."""
    return bool(getattr(model, "jit_compile", getattr(model, "_jit_compile", False)))


def has_several_steps(model: Any) -> bool:
    """Whether a function of the model takes several steps, or of several replicas."""
    steps: Any = getattr(model, "_steps_per_execution", None)
    if steps is None:
        steps = getattr(model, "steps_per_execution", 1)
    is_one = int(steps.numpy() if hasattr(steps, "numpy") else steps) == 1
    return not is_one or bool(
        getattr(model, "autotune_steps_per_execution", False) or getattr(model, "_cluster_coordinator", None)
    )


def layers(model: Any) -> list[Any]:
    """All layers of a model, with those in layers."""
    flatten = getattr(model, "_flatten_layers", None)
    return list(flatten()) if flatten else []


def fed(model: Any) -> tuple[int, int]:
    """How many inputs and how many targets a function of a model in TensorFlow 1 is given."""
    return len(model._feed_inputs), len(model._feed_targets)
