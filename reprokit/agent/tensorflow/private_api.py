"""Every private name of TensorFlow and Keras that the agent uses, once, with the versions in which it was seen.

Whoever needs one asks this module: tests/agent/test_tensorflow_private_api.py says what a release lacks, and who
uses a name by itself.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


# Its own modules, of which any may be missing.
MODULES: Mapping[str, str] = {
    "atomic": "tensorflow.python.eager.polymorphic_function.atomic_function",
    "autograph": "tensorflow.python.autograph.impl.api",
    "autograph_status": "tensorflow.python.autograph.core.ag_ctx",
    "backprop": "tensorflow.python.eager.backprop",
    "build": "tensorflow.python.platform.build_info",
    "callbacks": "tensorflow.python.framework.op_callbacks",
    "collectives": "tensorflow.python.distribute.collective_all_reduce_strategy",
    "concrete": "tensorflow.python.eager.polymorphic_function.concrete_function",
    "config": "tensorflow.python.framework.config",
    "context": "tensorflow.python.eager.context",
    "control_flow": "tensorflow.python.ops.control_flow_util",
    "datasets": "tensorflow.python.data.ops.dataset_ops",
    "distribute": "tensorflow.python.distribute.distribute_lib",
    "eager": "tensorflow.python.pywrap_tfe",
    "functions": "tensorflow.python.eager.function",
    "generators": "tensorflow.python.ops.stateful_random_ops",
    "iterators": "tensorflow.python.data.ops.iterator_ops",
    "keras": "tensorflow.python.keras.engine.training",
    "keras3": "keras.src.backend",
    "keras_backend": "tensorflow.python.keras.backend",
    "keras_model": "keras.src.models.model",
    "keras_policy": "keras.src.dtype_policies.dtype_policy",
    "keras_state": "keras.src.backend.common.global_state",
    "keras_steps": "keras.src.backend.tensorflow.trainer",
    "keras_trainer": "keras.src.trainers.trainer",
    "math": "tensorflow.python.ops.math_ops",
    "modules": "tensorflow.python.module.module",
    "monomorphic": "tensorflow.python.eager.polymorphic_function.monomorphic_function",
    "nn": "tensorflow.python.ops.nn",
    "nn_ops": "tensorflow.python.ops.nn_ops",
    "operations": "tensorflow.python.framework.op_def_registry",
    "ops": "tensorflow.python.framework.ops",
    "optimizers": "tensorflow.python.training.optimizer",
    "polymorphic": "tensorflow.python.eager.polymorphic_function.polymorphic_function",
    "random_calls": "tensorflow.python.ops.gen_random_ops",
    "saving": "tensorflow.python.saved_model.save",
    "session": "tensorflow.python.client.session",
    "variable_calls": "tensorflow.python.ops.gen_resource_variable_ops",
    "variables": "tensorflow.python.ops.resource_variable_ops",
}
# A name in one of them -> the versions it was seen in, by this project's tests: of Keras where its own path begins with
# "keras.", else of TensorFlow. "until" is the last with it, where that is not installed here. The test makes what "()"
# stands behind.
SEEN: Mapping[str, str] = {
    "atomic.AtomicFunction.call_flat": "2.21",
    "autograph.tf_convert": "2.21",
    "autograph_status.ControlStatusCtx": "2.21",
    "autograph_status.Status": "2.21",
    "autograph_status.control_status_ctx": "2.21",
    "backprop.GradientTape": "2.21",
    "backprop._gradient_function": "2.21",
    "build.build_info": "2.21",
    "callbacks.add_op_callback": "2.21",
    "collectives.CollectiveAllReduceExtended._initialize_multi_worker": "2.21",
    "concrete.ConcreteFunction": "2.21",
    "config.disable_op_determinism": "2.21",
    "config.is_op_determinism_enabled": "2.21",
    "config.tensor_float_32_execution_enabled": "2.21",
    "context._context": "1.14, 2.21",
    "context.context()._context_handle": "1.14, 2.21",
    "context.context()._handle": "2.21",
    "context.context()._inter_op_parallelism_threads": "1.14, 2.21",
    "context.context()._intra_op_parallelism_threads": "1.14, 2.21",
    "context.context()._optimizer_jit": "1.14, 2.21",
    "context.context()._rng": "1.14, 2.21",
    "context.context()._seed": "1.14, 2.21",
    "context.context()._set_global_seed": "2.21",
    "context.executing_eagerly": "1.14, 2.21",
    "control_flow.GraphOrParentsInXlaContext": "2.21",
    "datasets.DatasetV1Adapter()._dataset": "1.14, 2.21",
    "datasets.DatasetV2._functions": "1.14, 2.21",
    "distribute.Strategy().extended._in_multi_worker_mode": "2.21",
    "distribute.StrategyBase": "2.21",
    "eager.TFE_Py_Execute": "2.21",
    "eager.TFE_Py_FastPathExecute": "2.21",
    "eager.TFE_Py_RegisterGradientFunction": "2.21",
    "eager.TFE_Py_TapeSetIsEmpty": "2.21",
    "eager.TFE_Py_TapeGradient": "2.21",
    "functions._EagerDefinedFunction": "1.14",
    "generators.Generator()._state_var": "2.21",
    "iterators.OwnedIterator": "2.21",
    "keras.Model()._feed_inputs": "1.14",
    "keras.Model()._feed_targets": "1.14",
    "keras.Model().optimizer._iterations": "1.14",
    "keras.Model._make_test_function": "1.14",
    "keras.engine.training.Model()._cluster_coordinator": "until 2.15",
    "keras.engine.training.Model()._jit_compile": "until 2.15",
    "keras.engine.training.Model()._steps_per_execution": "until 2.15",
    "keras3.name_scope": "3.15",
    "keras_backend._SESSION": "1.14, 2.21",
    "keras_model.Model()._flatten_layers": "3.15",
    "keras_model.Model().optimizer._iterations": "3.15",
    "keras_model.Model().optimizer._tracker": "3.15",
    "keras_model.Model().optimizer._trainable_variables": "3.15",
    "keras_model.Model().weights._value": "3.15",
    "keras_policy.dtype_policy": "3.15",
    "keras_state.get_global_attribute": "3.15",
    "keras_steps.TensorFlowTrainer._autoconvert_optionals": "3.15",
    "keras_trainer.Trainer._compute_loss": "3.15",
    "math.segment_sum": "1.14, 2.21",
    "modules.Module": "2.21",
    "monomorphic._EagerDefinedFunction": "until 2.13",
    "nn.bias_add": "1.14, 2.21",
    "nn_ops.bias_add": "1.14, 2.21",
    "operations.get": "2.21",
    "operations.get_registered_ops": "1.14",
    "ops.EagerTensor._datatype_enum": "1.14, 2.21",
    "ops.EagerTensor._handle_data": "2.21",
    "ops.EagerTensor._id": "2.21",
    "ops.EagerTensor._numpy": "1.14, 2.21",
    "ops.EagerTensor._shape_tuple": "1.14, 2.21",
    "ops.Graph._get_function": "1.14, 2.21",
    "ops.Operation()._id": "1.14, 2.21",
    "ops.Operation()._original_op": "1.14, 2.21",
    "ops.Operation()._traceback": "1.14",
    "ops.convert_to_tensor": "1.14, 2.21",
    "ops.get_default_graph": "1.14, 2.21",
    "ops.get_default_session": "1.14, 2.21",
    "ops.init_scope": "1.14, 2.21",
    "polymorphic.Function()._autograph": "2.21",
    "polymorphic.Function()._jit_compile": "2.21",
    "polymorphic.Function()._python_function": "2.21",
    "saving._AugmentedGraphView": "2.21",
    "saving._AugmentedGraphView()._children_cache": "2.21",
    "saving.save_and_return_nodes": "2.21",
    "session.BaseSession()._closed": "1.14, 2.21",
    "session.BaseSession._Callable": "1.14, 2.21",
    "session.BaseSession._do_run": "1.14, 2.21",
    "tensorflow.distribute.DistributedDataset()._strategy": "2.21",
    "tensorflow.distribute.DistributedVariable()._primary": "2.21",
    "variable_calls.read_variable_op": "2.21",
    "variables.BaseResourceVariable": "2.21",
    "variables.ResourceVariable()._in_graph_mode": "1.14, 2.21",
    "variables.UninitializedVariable": "2.21",
}
COMPUTE_LOSS = ("_compute_loss", "compute_loss")  # of a trainer of Keras 3
GRAPH_TEST_FUNCTION = "_make_test_function"  # of a model of Keras in TensorFlow 1
STEP_COMPILER = "_autoconvert_optionals"  # which Keras 3 calls with the compiled step


def module(name: str) -> Any:
    """One of MODULES; None where nobody imported it."""
    return sys.modules.get(MODULES[name])


def watch_workers(wrap: Callable[..., None], told: Callable[[dict[str, object]], object]) -> None:
    """Tell, of each strategy of several workers, what adds their gradients."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _initialize_multi_worker(strategy: Any, *arguments: Any, **keywords: Any) -> None:
            original(strategy, *arguments, **keywords)
            options = getattr(strategy, "_communication_options", None)
            told(
                {
                    "ranks": getattr(strategy, "_num_workers", None),
                    "implementation": str(getattr(getattr(options, "implementation", None), "value", "")),
                    "bytes_per_pack": getattr(options, "bytes_per_pack", None),
                }
            )

        return _initialize_multi_worker

    wrap(module("collectives").CollectiveAllReduceExtended, "_initialize_multi_worker", make)


def ops() -> Any:
    """Return the module of graphs, sessions and scopes; None where nobody imported TensorFlow, or it is not done yet.

    A model of another backend may end, as garbage, while TensorFlow is imported.
    """
    found = module("ops")
    return found if hasattr(found, "init_scope") else None


def is_watched() -> bool:
    """Return whether a gradient tape watches what is computed here."""
    is_empty = getattr(module("eager"), "TFE_Py_TapeSetIsEmpty", None)
    return is_empty is not None and not is_empty()


def executing_eagerly() -> bool:
    """Return whether what is called here is executed, and no graph is being built."""
    return module("context").executing_eagerly()  # type: ignore[no-any-return]


def default_graph() -> Any:
    """Return the graph that is being built."""
    return module("ops").get_default_graph()


def is_in_function(tensor: Any) -> bool:
    """Return whether it is a dense tensor of a function's graph, which may write to variables of ours."""
    return "FuncGraph" in type(getattr(tensor, "graph", None)).__name__ and not hasattr(tensor, "indices")


def in_xla() -> bool:
    """Return whether the graph that is being built is compiled by XLA."""
    return bool(module("control_flow").GraphOrParentsInXlaContext(default_graph()))


def context() -> Any:
    """Return what eager TensorFlow knows of itself; None before it was asked for."""
    return getattr(module("context"), "_context", None)


def has_context() -> bool:
    """Return whether eager TensorFlow has begun to use devices."""
    return getattr(context(), "_context_handle", None) is not None


def executor() -> Callable[..., list[Any]]:
    """A function that executes an operation: its name, inputs, attributes and their values by turns, and outputs.

    It may be given a device too.
    """
    known, execute = module("context").context(), module("eager").TFE_Py_Execute

    def run(name: str, inputs: Sequence[Any], attributes: Sequence[Any], outputs: int, device: str = "") -> list[Any]:
        known.ensure_initialized()  # now, and not before: until then scripts choose devices
        return execute(known._handle, device or known.device_name, name, list(inputs), tuple(attributes), outputs)  # type: ignore[no-any-return]

    return run


def pool_size(kind: str) -> int:
    """How many threads work in ("intra") or between ("inter") operations, as the script said; 0 where it did not."""
    return getattr(context(), f"_{kind}_op_parallelism_threads", None) or 0


def compiles_graphs() -> Any:
    """Return what the script said of XLA for its graphs."""
    return getattr(context(), "_optimizer_jit", None) or False


def eager_seed() -> Any:
    """Return the seed that the script gave eager TensorFlow."""
    return getattr(context(), "_seed", None)


def seed_generator() -> Any:
    """Python's generator of the seeds that eager operations draw; None before a seed was set."""
    return getattr(context(), "_rng", None)


def set_eager_seed(seed: Any) -> Any:
    """Set the seed; the generator then gives its first seeds again, where there was none."""
    known = context()
    if seed_generator() is None:
        known._set_global_seed(seed)
    known._seed = seed
    return known._rng


def is_closed(session: Any) -> bool:
    """Return whether a session has ended."""
    return bool(getattr(session, "_closed", True))


def keras_session() -> Any:
    """Return the session that Keras made in TensorFlow 1."""
    for name in (MODULES["keras_backend"], "keras.backend", "keras.src.backend"):
        held = getattr(sys.modules.get(name), "_SESSION", None)
        session = getattr(held, "session", held)
        if hasattr(session, "run"):
            return session
    return None


def definition(operation: str) -> Any:
    """Return what TensorFlow knows of an operation of this name; None of none."""
    registry = module("operations")
    find = getattr(registry, "get", None)
    return registry.get_registered_ops().get(operation) if find is None else find(operation)


def runs_of_sessions() -> tuple[Any, str, Any]:
    """The class of sessions, its method that runs a part of a graph, and the class of parts prepared for that."""
    session = getattr(module("session"), "BaseSession", None)
    return session, "_do_run", getattr(session, "_Callable", None)


def session_of(prepared: Any) -> Any:
    """Return the session of a part of a graph that is prepared to run."""
    return prepared._session


def eager_functions() -> list[Any]:
    """Return the classes of functions' definitions, of which there are none since there are atomic functions."""
    owners = [getattr(module(name), "_EagerDefinedFunction", None) for name in ("monomorphic", "functions")]
    return [owner for owner in owners if owner is not None]


# Graphs and datasets


def function_graph(function: Any) -> Any:
    """Return the graph of a function of any version of TensorFlow; None where there is none."""
    graphs = [getattr(function, name, None) for name in ("graph", "_func_graph", "_sub_graph")]
    return next((graph for graph in graphs if hasattr(graph, "get_operations")), None)


def function_in(graph: Any, name: str) -> Any:
    """Return what a graph knows of a function of this name."""
    get = getattr(graph, "_get_function", None)
    return None if get is None else get(name)


def of_forward(operation: Any) -> Any:
    """Return the operation whose gradient this is, in a graph of TensorFlow 1; None of others."""
    return getattr(operation, "_original_op", None)


def stack_of(operation: Any) -> Any:
    """Who made an operation, as TensorFlow 1 knows it: it looks into each source file where one asks in public."""
    return getattr(operation, "_traceback", None)


def number(made: Any) -> Any:
    """Return the place of an operation, or a tensor, in the order of their making; None of what has none."""
    return getattr(made, "_id", None)


def python_function(function: Any) -> tuple[Any, bool]:
    """Return what a tf.function was made of, and whether autograph is to rewrite it."""
    return function._python_function, bool(getattr(function, "_autograph", False))


def gradient_function() -> Any:
    """Return what computes the gradient of one operation in eager code."""
    return module("backprop")._gradient_function


def forward_operator(frame: Any) -> str:
    """Return of which operation the gradient is computed by one of the functions that called this frame."""
    for _ in range(16):
        if frame is None:
            break
        if frame.f_code.co_name == "_gradient_function":
            return str(frame.f_locals.get("op_name", ""))
        frame = frame.f_back
    return ""


def saving() -> tuple[Any, Any]:
    """Return the module that saves models, and its class of what it sees in one; None where this release has none."""
    return module("saving"), getattr(module("saving"), "_AugmentedGraphView", None)


def children(view: Any) -> Any:
    """Return what a view of a model knows of the children of objects."""
    return view._children_cache


def functions_of(dataset: Any) -> Any:
    """Return the functions that a dataset calls; an adapter for the first version holds it."""
    return getattr(dataset, "_dataset", dataset)._functions()


# Tensors and variables


def has_value(tensor: Any) -> bool:
    """Return whether a tensor has a value now: no graph is being built."""
    return hasattr(tensor, "_numpy")


def value(tensor: Any) -> Any:
    """Return the value as an array, without a copy where it lies on this side."""
    return tensor._numpy()


def primary(variable: Any) -> Any:
    """Of a variable of several devices that of the first."""
    return getattr(variable, "_primary", variable)


def state(generator: Any) -> Any:
    """Return the variable with the state of a tf.random.Generator; None of one that was not initialized."""
    return getattr(generator, "_state_var", None)


def strategy_of(distributed: Any) -> Any:
    """Return the strategy by which a dataset, or its iterator, is given to replicas."""
    return distributed._strategy


def has_workers(strategy: Any) -> bool:
    """Return whether several processes train together."""
    return bool(getattr(strategy.extended, "_in_multi_worker_mode", lambda: False)())


def type_in_variable(handle: Any) -> int:
    """Return the type of what is in the variable that a handle is of; 0 of another resource."""
    data = getattr(handle, "_handle_data", None)
    known: Any = data.shape_and_type if data is not None and data.is_set else ()
    return known[0].dtype if len(known) == 1 else 0


def signature(tensor: Any) -> tuple[Any, Any]:
    """Type and shape of an eager tensor, fast."""
    return tensor._datatype_enum(), tensor._shape_tuple()


def is_of_graph(variable: Any) -> bool:
    """Return whether it is a variable of a TensorFlow 1 graph, which has no value outside a session."""
    return bool(getattr(variable, "_in_graph_mode", type(variable).__name__ == "RefVariable"))


def plain(variable: Any) -> Any:
    """Return the variable of TensorFlow in one of Keras 3."""
    return getattr(variable, "_value", variable)


# Models and optimizers of Keras


def counter(optimizer: Any, default: Any = None) -> Any:
    """Return the variable that counts an optimizer's steps."""
    return vars(optimizer).get("_iterations", default)


def tracks(optimizer: Any) -> bool:
    """Return whether an optimizer is of Keras 3, which makes its variables when it knows what it trains."""
    return hasattr(optimizer, "_tracker")


def trained(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer of Keras 3 was built for."""
    return list(getattr(optimizer, "_trainable_variables", None) or ())


def is_compiled(model: Any) -> bool:
    """Return whether XLA compiles a model's steps, or a tf.function."""
    return bool(getattr(model, "jit_compile", getattr(model, "_jit_compile", False)))


def steps_at_once(model: Any) -> int:
    """Return how many steps a function of the model takes; 0 where that is not known."""
    steps: Any = getattr(model, "_steps_per_execution", None)
    steps = getattr(model, "steps_per_execution", 1) if steps is None else steps
    is_unknown = getattr(model, "autotune_steps_per_execution", False) or getattr(model, "_cluster_coordinator", None)
    return 0 if is_unknown else int(steps.numpy() if hasattr(steps, "numpy") else steps)


def layers(model: Any) -> list[Any]:
    """Return all layers of a model, with those in layers."""
    flatten = getattr(model, "_flatten_layers", None)
    return list(flatten()) if flatten else []


def fed(model: Any) -> tuple[int, int]:
    """Return how many inputs and how many targets a function of a model in TensorFlow 1 is given."""
    return len(model._feed_inputs), len(model._feed_targets)


def is_of_keras(name: str) -> bool:
    """Return whether a module of this name is of one of Keras' packages."""
    return name.startswith(("keras.", "tf_keras.", "tensorflow.python.keras."))


def keras_classes(name: str) -> list[Any]:
    """Return the classes "Layer" or "Loss" of all the Keras that were imported."""
    places = ("layers.layer", "engine.base_layer", "losses.loss", "losses")
    packages = ("keras.src", "keras", "tf_keras.src", "tensorflow.python.keras")
    found = [getattr(sys.modules.get(f"{package}.{place}"), name, None) for package in packages for place in places]
    return list({id(owner): owner for owner in found if isinstance(owner, type)}.values())


def has_variables(sources: Any) -> bool:
    """Return whether a nested value has variables, of TensorFlow or of Keras 3, in it."""
    flat = sys.modules["tensorflow"].nest.flatten(sources)
    return any(hasattr(one, "assign") or hasattr(one, "path") for one in flat)


def build(optimizer: Any, variables: list[Any]) -> None:
    """Let an optimizer of Keras 3 make its variables outside of any condition, as it would itself."""
    backend = module("keras3")
    if backend is None or getattr(optimizer, "built", True) or not tracks(optimizer):
        return
    with backend.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.built = True
