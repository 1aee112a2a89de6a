"""Every private name of TensorFlow and Keras that the agent uses, once; other modules use them through this one.

private_api.json has for each name in one of MODULES the versions in which the tests found it: of Keras if the path
begins with "keras.", else of TensorFlow. "until": the last version with it, which is not installed here. "()": the test
creates an instance. tests/agent/test_tensorflow_private_api.py lists the names that a release lacks, and uses of these
names elsewhere.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


# Modules of TensorFlow and Keras by short names; any may be missing.
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
    "replicas": "tensorflow.python.distribute.mirrored_run",
    "saving": "tensorflow.python.saved_model.save",
    "session": "tensorflow.python.client.session",
    "structures": "tensorflow.python.data.util.structure",
    "variable_calls": "tensorflow.python.ops.gen_resource_variable_ops",
    "variables": "tensorflow.python.ops.resource_variable_ops",
}
COMPUTE_LOSS = ("_compute_loss", "compute_loss")  # methods of a trainer of Keras 3
GRAPH_TEST_FUNCTION = "_make_test_function"  # method of a Keras model in TensorFlow 1
REPLICA_THREAD = "_MirroredReplicaThread"  # the class of threads that run replicas
_READERS = "TFRecordDataset TFRecordDatasetV2 TextLineDataset FixedLengthRecordDatasetV2 TensorSliceDataset"
_READING = frozenset(f"{_READERS} FlatMapDataset Const ExpandDims Identity NoOp Pack Placeholder Reshape".split())
_RESOURCE = 20  # DT_RESOURCE
_WITHOUT_VALUE = ("resource", "variant")
STEP_COMPILER = "_autoconvert_optionals"  # a method that Keras 3 calls with the compiled step


def module(name: str) -> Any:
    """Return one of MODULES; None if it was not imported."""
    return sys.modules.get(MODULES[name])


def watch_workers(wrap: Callable[..., None], report: Callable[[dict[str, object]], object]) -> None:
    """Report for each multi-worker strategy how its gradients are reduced."""

    def wrap_initialize(original: Callable[..., Any]) -> Callable[..., Any]:
        def _initialize_multi_worker(strategy: Any, *arguments: Any, **keywords: Any) -> None:
            original(strategy, *arguments, **keywords)
            options = getattr(strategy, "_communication_options", None)
            facts = {
                "ranks": getattr(strategy, "_num_workers", None),
                "implementation": str(getattr(getattr(options, "implementation", None), "value", "")),
                "bytes_per_pack": getattr(options, "bytes_per_pack", None),
            }
            report(facts)

        return _initialize_multi_worker

    wrap(module("collectives").CollectiveAllReduceExtended, "_initialize_multi_worker", wrap_initialize)


def ops() -> Any:
    """Return the module of graphs, sessions and scopes; None while TensorFlow is not imported."""
    ops_module = module("ops")  # a model of another backend may be garbage-collected while TensorFlow is imported
    return ops_module if hasattr(ops_module, "init_scope") else None


def is_watched() -> bool:
    """Return whether a gradient tape is active on this thread."""
    is_empty = getattr(module("eager"), "TFE_Py_TapeSetIsEmpty", None)
    return is_empty is not None and not is_empty()


def executing_eagerly() -> bool:
    """Return whether operations are executed now, and no graph is being built."""
    return module("context").executing_eagerly()  # type: ignore[no-any-return]


def default_graph() -> Any:
    """Return the graph being built."""
    return module("ops").get_default_graph()


def is_in_function(tensor: Any) -> bool:
    """Return whether a value is a dense tensor in the graph of a function, where variables can be assigned."""
    return "FuncGraph" in type(getattr(tensor, "graph", None)).__name__ and not hasattr(tensor, "indices")


def in_xla() -> bool:
    """Return whether the graph being built is compiled by XLA."""
    return bool(module("control_flow").GraphOrParentsInXlaContext(default_graph()))


def context() -> Any:
    """Return the eager context; None before it was created."""
    return getattr(module("context"), "_context", None)


def has_context() -> bool:
    """Return whether the eager context has initialized its devices."""
    return getattr(context(), "_context_handle", None) is not None


def executor() -> Callable[..., list[Any]]:
    """Return a function that executes an operation by name, inputs, attributes (alternating with values), and outputs.

    It takes a device, too.
    """
    current, execute = module("context").context(), module("eager").TFE_Py_Execute

    def run(name: str, inputs: Sequence[Any], attributes: Sequence[Any], outputs: int, device: str = "") -> list[Any]:
        current.ensure_initialized()  # not earlier: scripts may choose devices until then
        return execute(current._handle, device or current.device_name, name, list(inputs), tuple(attributes), outputs)  # type: ignore[no-any-return]

    return run


def pool_size(kind: str) -> int:
    """Return the number of "intra" or "inter" operation threads set by the script; 0 if it set none."""
    return getattr(context(), f"_{kind}_op_parallelism_threads", None) or 0


def compiles_graphs() -> Any:
    """Return the script's setting for compiling graphs by XLA."""
    return getattr(context(), "_optimizer_jit", None) or False


def eager_seed() -> Any:
    """Return the global eager seed set by the script."""
    return getattr(context(), "_seed", None)


def seed_generator() -> Any:
    """Return the Python generator from which eager operations draw seeds; None before a seed was set."""
    return getattr(context(), "_rng", None)


def set_eager_seed(seed: Any) -> Any:
    """Set the global eager seed; creates the generator of seeds if there is none."""
    current = context()
    if seed_generator() is None:
        current._set_global_seed(seed)
    current._seed = seed
    return current._rng


def is_closed(session: Any) -> bool:
    """Return whether a session is closed."""
    return bool(getattr(session, "_closed", True))


def keras_session() -> Any:
    """Return the session that Keras created in TensorFlow 1."""
    for name in (MODULES["keras_backend"], "keras.backend", "keras.src.backend"):
        stored = getattr(sys.modules.get(name), "_SESSION", None)
        session = getattr(stored, "session", stored)
        if hasattr(session, "run"):
            return session
    return None


def definition(operation: str) -> Any:
    """Return the definition of an operation by name; None if there is none."""
    registry = module("operations")
    find = getattr(registry, "get", None)
    return registry.get_registered_ops().get(operation) if find is None else find(operation)


def runs_of_sessions() -> tuple[Any, str, Any]:
    """Return the class of sessions, its method that runs a subgraph, and the class of prepared subgraphs."""
    session = getattr(module("session"), "BaseSession", None)
    return session, "_do_run", getattr(session, "_Callable", None)


def session_of(prepared: Any) -> Any:
    """Return the session of a prepared subgraph."""
    return prepared._session


def eager_functions() -> list[Any]:
    """Return the classes of function definitions; newer TensorFlow has atomic functions instead."""
    owners = [getattr(module(name), "_EagerDefinedFunction", None) for name in ("monomorphic", "functions")]
    return [owner for owner in owners if owner is not None]


# Graphs and datasets


def function_name(function: Any) -> str:
    """Return the name of a compiled function's Python function."""
    return str(getattr(getattr(function, "_python_function", function), "__name__", type(function).__name__))


def concrete_functions(function: Any) -> list[Any]:
    """Return the graphs that were built of a compiled function, each with its attribute `graph`."""
    cache = getattr(function, "_function_cache", None)
    return [function] if cache is None else list(cache.values())


def captured_resources(graph: Any) -> list[Any]:
    """Return the handles of variables and other resources that a function's graph captures."""
    return [captured for captured, _ in graph.captures if captured.dtype.name == "resource"]


def count_iterators(graph: Any) -> int:
    """Return how many resources but variables are arguments of a function's graph."""
    captured = {id(inner) for _, inner in graph.captures}
    given = [each for each in graph.inputs if each.dtype.name == "resource" and id(each) not in captured]
    return sum(not type_in_variable(each) for each in given)


def operations(graph: Any) -> tuple[list[str], list[str]]:
    """Return the types of the operations in a graph, and of those in functions that it calls."""
    definition = graph.as_graph_def()
    inner = [node.op for function in definition.library.function for node in function.node_def]
    return [node.op for node in definition.node], inner


def has_state(operation: str) -> bool:
    """Return whether an operation, by type, has a state or effects that are not in a resource that it is given."""
    known = definition(operation)  # a function that is called by name is none
    return bool(known is not None and known.is_stateful and not any(each.type == _RESOURCE for each in known.input_arg))


def fetch(iterator: Any) -> Any:
    """Take the next element of an iterator of a data set, without reporting it; return its tensors."""
    kinds = {"output_types": iterator._flat_output_types, "output_shapes": iterator._flat_output_shapes}
    return sys.modules["tensorflow"].raw_ops.IteratorGetNext(iterator=iterator._iterator_resource, **kinds)


def stage(dataset: Any) -> tuple[str, list[Any]]:
    """Return the kind of a data set's last stage, and the data sets before it; seen in 2.21: _ShuffleDataset."""
    if not type(dataset).__module__.startswith("tensorflow."):
        return "", []
    return type(dataset).__name__.strip("_").partition("Dataset")[0], dataset._inputs()


def rebuilds_stages() -> bool:
    """Return whether same_stage() can be called in this release; workers would get other parts of what it makes."""
    tensorflow = sys.modules["tensorflow"]
    if "TF_CONFIG" in os.environ:
        return False
    return hasattr(getattr(tensorflow, "raw_ops", None), "ShuffleDatasetV3") and module("structures") is not None


def as_is(function: Any) -> Any:
    """Return a function that autograph does not convert, which reads sources."""
    return sys.modules["tensorflow"].autograph.experimental.do_not_convert(function)


def alias(dataset: Any) -> Any:
    """Return another object for the same data set, which does not keep this one alive."""
    return sys.modules["tensorflow"].data.experimental.from_variant(dataset._variant_tensor, dataset.element_spec)


def restructured(dataset: Any, structure: Any) -> Any:
    """Return a data set of the same tensors in another structure."""
    made = sys.modules["tensorflow"].data.experimental.from_variant(dataset._variant_tensor, structure)
    made._reprokit_input = dataset  # keeps functions of Python that it calls
    return made


def take_from(dataset: Any, other: Any) -> None:
    """Let a data set have the elements of another one of the same structure."""
    dataset._variant_tensor_attr = other._variant_tensor
    dataset._reprokit_input = other


def reads_in_order(dataset: Any) -> bool:
    """Return whether a source has the same order in each iteration: it reads its files one after another, as given."""
    files = getattr(dataset, "_filenames", None)
    are_fixed = files is None or not hasattr(files, "_inputs") or stage(files)[0] == "TensorSlice"
    return are_fixed and getattr(dataset, "_num_parallel_reads", None) is None


def only_reads(dataset: Any) -> bool:
    """Return whether a stage makes of each element a data set, by operations that only read files or slice tensors."""
    kinds = operations(dataset._map_func.function.graph)
    is_ordered = getattr(dataset, "_deterministic", "default") != "false"
    return is_ordered and _READING.issuperset(kinds[0]) and _READING.issuperset(kinds[1])


def zipped(dataset: Any) -> Any:
    """Return the data sets that one zips, in their structure."""
    return dataset._datasets


def same_stage(dataset: Any, kind: str, pairs: Any) -> Any:
    """Return a data set of pairs behind the same stage as another one's last, which sees what is second in them.

    None if it is not known how.
    """
    tensorflow, structure = sys.modules["tensorflow"], module("structures")
    if kind in ("Filter", "Map", "ParallelMap"):
        function = dataset._predicate if kind == "Filter" else dataset._map_func
        if not hasattr(function.function, "graph"):  # in tf.data's debug mode
            return None
        before = dataset._input_dataset.element_spec

        def call(element: Any) -> Any:
            results = function.function(*structure.to_tensor_list(before, element))
            return structure.from_tensor_list(function.output_structure, results)

        if kind == "Filter":
            return pairs.filter(as_is(lambda _, element: call(element)))
        options = {} if kind == "Map" else _parallel(dataset)
        return pairs.map(as_is(lambda number, element: (number, call(element))), **options)
    if kind == "Shuffle":
        return _rebuilt(
            "ShuffleDatasetV3",
            pairs,
            buffer_size=dataset._buffer_size,
            seed=dataset._seed,
            seed2=dataset._seed2,
            seed_generator=tensorflow.raw_ops.DummySeedGenerator(),
            reshuffle_each_iteration=dataset._reshuffle_each_iteration,
        )
    if kind == "Cache":
        if value(dataset._filename) != b"":
            return None
        return _rebuilt("CacheDatasetV2", pairs, filename="", cache=tensorflow.raw_ops.DummyMemoryCache())
    if kind in ("Batch", "ParallelBatch"):
        options = {} if kind == "Batch" else _parallel(dataset)
        return pairs.batch(dataset._batch_size, value(dataset._drop_remainder), **options)
    if kind == "PaddedBatch":
        shapes: Any = ([], dataset._padded_shapes)
        padding = tensorflow.constant(0, "int64"), dataset._padding_values
        return pairs.padded_batch(dataset._batch_size, shapes, padding, value(dataset._drop_remainder))
    if kind == "Shard":
        return pairs.shard(dataset._num_shards, dataset._index)
    if kind == "Options":
        return pairs.with_options(dataset.options())
    if kind == "Prefetch":
        return pairs.prefetch(int(value(dataset._buffer_size)))
    return getattr(pairs, kind.lower())(dataset._count) if kind in ("Repeat", "Skip", "Take") else None


def _parallel(dataset: Any) -> dict[str, Any]:
    choice = {"true": True, "false": False}.get(dataset._deterministic)
    return {"num_parallel_calls": dataset._num_parallel_calls, "deterministic": choice}


def _rebuilt(operation: str, pairs: Any, **arguments: Any) -> Any:
    """Return a data set by its operation: methods draw seeds."""
    tensorflow, structure, spec = sys.modules["tensorflow"], module("structures"), pairs.element_spec
    made = getattr(tensorflow.raw_ops, operation)(
        input_dataset=pairs._variant_tensor,
        output_types=structure.get_flat_tensor_types(spec),
        output_shapes=structure.get_flat_tensor_shapes(spec),
        **arguments,
    )
    result = tensorflow.data.experimental.from_variant(made, spec)
    result._reprokit_input = pairs
    return result


def most_left_over(batches: Any) -> int:
    """Return how many elements a stage that makes batches may leave out, as they fill none."""
    return int(value(batches._batch_size)) - 1 if value(batches._drop_remainder) else 0


def function_graph(function: Any) -> Any:
    """Return the graph of a function in any version of TensorFlow; None if it has none."""
    graphs = [getattr(function, name, None) for name in ("graph", "_func_graph", "_sub_graph")]
    return next((graph for graph in graphs if hasattr(graph, "get_operations")), None)


def function_in(graph: Any, name: str) -> Any:
    """Return a graph's function by name."""
    get = getattr(graph, "_get_function", None)
    return None if get is None else get(name)


def of_forward(operation: Any) -> Any:
    """Return the forward operation of a gradient operation in a graph of TensorFlow 1; None for others."""
    return getattr(operation, "_original_op", None)


def stack_of(operation: Any) -> Any:
    """Return the stack at the creation of an operation; the public attribute of TensorFlow 1 reads source files."""
    return getattr(operation, "_traceback", None)


def number(value: Any) -> Any:
    """Return the creation number of an operation or tensor; None if it has none."""
    return getattr(value, "_id", None)


def python_function(function: Any) -> tuple[Any, bool]:
    """Return the Python function of a tf.function, and whether autograph converts it."""
    return function._python_function, bool(getattr(function, "_autograph", False))


def gradient_function() -> Any:
    """Return the function that computes the gradient of one operation in eager code."""
    return module("backprop")._gradient_function


def forward_operator(frame: Any) -> str:
    """Return the name of the operation whose gradient is being computed by a caller of this frame."""
    for _ in range(16):
        if frame is None:
            break
        if frame.f_code.co_name == "_gradient_function":
            return str(frame.f_locals.get("op_name", ""))
        frame = frame.f_back
    return ""


def saving() -> tuple[Any, Any]:
    """Return the module that saves models, and its class of object graph views; None if missing."""
    return module("saving"), getattr(module("saving"), "_AugmentedGraphView", None)


def children(view: Any) -> Any:
    """Return the cache of children in a view of an object graph."""
    return view._children_cache


def functions_of(dataset: Any) -> Any:
    """Return the functions that a data set calls; DatasetV1Adapter wraps the data set."""
    return getattr(dataset, "_dataset", dataset)._functions()


# Tensors and variables


def has_value(tensor: Any) -> bool:
    """Return whether a tensor is eager, with a value."""
    return hasattr(tensor, "_numpy")


def value(tensor: Any) -> Any:
    """Return the value of an eager tensor as an array, without a copy if it is in host memory."""
    return tensor._numpy()


def primary(variable: Any) -> Any:
    """Return the variable on the first device of a distributed variable; others unchanged."""
    return getattr(variable, "_primary", variable)


def state(generator: Any) -> Any:
    """Return the state variable of a tf.random.Generator; None if it is not initialized."""
    return getattr(generator, "_state_var", None)


def strategy_of(distributed: Any) -> Any:
    """Return the strategy of a distributed data set or iterator."""
    return distributed._strategy


def has_workers(strategy: Any) -> bool:
    """Return whether a strategy has several worker processes."""
    return bool(getattr(strategy.extended, "_in_multi_worker_mode", lambda: False)())


def type_in_variable(handle: Any) -> int:
    """Return the dtype of the variable of a handle; 0 for other resources."""
    data = getattr(handle, "_handle_data", None)
    types: Any = data.shape_and_type if data is not None and data.is_set else ()
    return types[0].dtype if len(types) == 1 else 0


def signature(tensor: Any) -> tuple[Any, Any]:
    """Return type and shape of an eager tensor, fast."""
    return tensor._datatype_enum(), tensor._shape_tuple()


def is_of_graph(variable: Any) -> bool:
    """Return whether a variable is in a TensorFlow 1 graph, so that it has a value only in a session."""
    return bool(getattr(variable, "_in_graph_mode", type(variable).__name__ == "RefVariable"))


def plain(variable: Any) -> Any:
    """Return the TensorFlow variable within a Keras 3 variable; others unchanged."""
    return getattr(variable, "_value", variable)


# Models and optimizers of Keras


def counter(optimizer: Any, default: Any = None) -> Any:
    """Return the variable that counts an optimizer's steps."""
    return vars(optimizer).get("_iterations", default)


def tracks(optimizer: Any) -> bool:
    """Return whether an optimizer is of Keras 3, which creates its variables in build()."""
    return hasattr(optimizer, "_tracker")


def trained(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer of Keras 3 was built for."""
    return list(getattr(optimizer, "_trainable_variables", None) or ())


def is_compiled(model: Any) -> bool:
    """Return whether the steps of a model, or a tf.function, are compiled by XLA."""
    return bool(getattr(model, "jit_compile", getattr(model, "_jit_compile", False)))


def steps_at_once(model: Any) -> int:
    """Return the number of steps per call of a model's functions; 0 if unknown."""
    steps: Any = getattr(model, "_steps_per_execution", None)
    steps = getattr(model, "steps_per_execution", 1) if steps is None else steps
    is_unknown = getattr(model, "autotune_steps_per_execution", False) or getattr(model, "_cluster_coordinator", None)
    return 0 if is_unknown else int(steps.numpy() if hasattr(steps, "numpy") else steps)


def layers(model: Any) -> list[Any]:
    """Return all layers of a model, nested ones included."""
    flatten = getattr(model, "_flatten_layers", None)
    return list(flatten()) if flatten else []


def fed(model: Any) -> tuple[int, int]:
    """Return the numbers of inputs and of targets of a model's functions in TensorFlow 1."""
    return len(model._feed_inputs), len(model._feed_targets)


def is_of_keras(name: str) -> bool:
    """Return whether a module name is in one of the packages of Keras."""
    return name.startswith(("keras.", "tf_keras.", "tensorflow.python.keras."))


def keras_classes(name: str) -> list[Any]:
    """Return the classes "Layer", "Loss" or "BaseOptimizer" ("_BaseOptimizer") of all imported versions of Keras."""
    places = "layers.layer engine.base_layer losses.loss losses optimizers.base_optimizer optimizers.optimizer".split()
    packages = ("keras.src", "keras", "tf_keras.src", "tensorflow.python.keras")
    classes = [getattr(sys.modules.get(f"{package}.{place}"), name, None) for package in packages for place in places]
    return list({id(owner): owner for owner in classes if isinstance(owner, type)}.values())


def has_variables(sources: Any) -> bool:
    """Return whether a nested value contains variables of TensorFlow or Keras 3."""
    flat = sys.modules["tensorflow"].nest.flatten(sources)
    return any(hasattr(value, "assign") or hasattr(value, "path") for value in flat)


def build(optimizer: Any, variables: list[Any]) -> None:
    """Build an optimizer of Keras 3 outside of any condition, as it would do by itself."""
    backend = module("keras3")
    if backend is None or getattr(optimizer, "built", True) or not tracks(optimizer):
        return
    with backend.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.built = True
