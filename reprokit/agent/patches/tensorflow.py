"""Patches of TensorFlow: its deterministic operations, its threads, and the order of elements of tf.data."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import os
import re

from ..tensorflow import private_api
from . import PatchContext, PatchRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.patching import Function

_SETTERS = ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads")
_ADVICE = "install tensorflow-determinism==0.3.0 in the training's Python"
_WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "complex64": "complex128"}
# Marked as stateful, but their results do not depend on order; the functions that they call are checked separately.
_HARMLESS = frozenset(
    ["Assert", "If", "While", "Case", "PartitionedCall", "StatefulPartitionedCall", "Placeholder", "_Arg", "_Retval"]
)
_DATASET = re.compile(r"(?!Shuffle|Random|Sampling)\w*Dataset(V[0-9]+)?")


def tf_deterministic(module: Any, value: str, context: PatchContext) -> None:
    """Enable deterministic operations, and set a seed, without which random ones raise; a script's own replaces it."""
    module.config.experimental.enable_op_determinism()
    module.random.set_seed(int.from_bytes(os.urandom(4), "little"))
    context.on_undo(private_api.module("config").disable_op_determinism)


def tf_threads(module: Any, value: str, context: PatchContext) -> None:
    """Set the numbers of threads within and between operations; later settings of the script are ignored."""
    count = int(value or "1")
    threading, session = getattr(module.config, "threading", None), private_api.module("session")
    if threading is None and session is None:
        raise PatchRefused("this TensorFlow has no setting for its threads")
    for name in _SETTERS if threading is not None else ():
        getattr(threading, name)(count)  # possible only before an operation is executed
        context.swap(threading, name, functools.partial(_hold_count, count))
    if session is not None:
        make_config = getattr(module, "compat", module).v1.ConfigProto
        context.swap(session.BaseSession, "__init__", functools.partial(_with_threads, make_config, count))


def _hold_count(count: int, original: Function) -> Function:
    def set_threads(num_threads: Any) -> None:
        original(count)

    return set_threads


def _with_threads(make_config: Any, count: int, original: Function) -> Function:
    """Return a session's constructor that sets these numbers of threads in its configuration."""

    def create(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        limited_config = make_config()
        if isinstance(config, make_config):
            limited_config.CopyFrom(config)
        limited_config.intra_op_parallelism_threads = limited_config.inter_op_parallelism_threads = count
        original(self, target, graph, limited_config)

    return create


# Before TensorFlow had deterministic operations of its own


def tf1_determinism(module: Any, value: str, context: PatchContext) -> None:
    """Call tfdeterminism.patch(); its printed text becomes a message."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            patch = getattr(importlib.import_module("tfdeterminism"), "patch", None)
    except ImportError as error:
        raise PatchRefused(f"there is no tfdeterminism ({error}); {_ADVICE}") from None
    if patch is None:
        raise PatchRefused(f"the tfdeterminism that is installed has no patch(), as none has from 0.4 on; {_ADVICE}")
    previous = os.environ.get("TF_CUDNN_DETERMINISTIC")
    modules = [module.nn, private_api.module("nn"), private_api.module("nn_ops")]
    originals = [(owner, owner.bias_add) for owner in modules]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        patch()
    context(" ".join(output.getvalue().split())[:300])

    def undo() -> None:
        for owner, function in originals:
            owner.bias_add = function
        if previous is None:
            os.environ.pop("TF_CUDNN_DETERMINISTIC", None)

    context.on_undo(undo)


def tf_segment_sum(module: Any, value: str, context: PatchContext) -> None:
    """Compute sums of segments in a wider dtype, rounded once, as NVIDIA's framework-reproducibility does.

    Differences by the order of additions then mostly vanish in the rounding. float64 has no wider dtype.
    """
    for name in ("segment_sum", "unsorted_segment_sum"):
        for owner in (module.math, private_api.module("math")):
            if hasattr(owner, name):
                context.swap(owner, name, functools.partial(_widened, module))


def _widened(module: Any, original: Function) -> Function:
    def segment_sum(data: Any, *arguments: Any, **keywords: Any) -> Any:
        data = module.convert_to_tensor(data)
        wider = _WIDER.get(data.dtype.base_dtype.name)
        if wider is None:
            return original(data, *arguments, **keywords)
        return module.cast(original(module.cast(data, wider), *arguments, **keywords), data.dtype)

    return segment_sum


# tf.data


def tf_data(module: Any, value: str, context: PatchContext) -> None:
    """Make datasets deterministic in order, whatever their arguments and options are."""
    datasets = private_api.module("datasets")
    callers = (
        (datasets.DatasetV2, ["map", "interleave"]),
        (datasets.DatasetV1, ["map"]),
    )  # V1 shares interleave with V2
    for owner, names in callers:
        for name in _with_parameter(owner, "deterministic"):
            context.swap(owner, name, functools.partial(_with_argument, "deterministic", None, True))
        for name in names:
            context.swap(owner, name, _sequential_if_stateful)
        if "with_options" in vars(owner):
            context.swap(owner, "with_options", _with_options)
    experimental = module.data.experimental
    for name in _with_parameter(experimental, "sloppy"):
        context.swap(experimental, name, functools.partial(_with_argument, "sloppy", False, False))


def _with_parameter(owner: Any, parameter: str) -> list[str]:
    """Return the names of the owner's public functions that have this parameter."""
    functions = [(name, function) for name, function in vars(owner).items() if inspect.isfunction(function)]
    names = [name for name, function in functions if parameter in inspect.signature(function).parameters]
    return sorted(name for name in names if not name.startswith("_"))


def _with_argument(name: str, for_none: Any, for_others: Any, original: Function) -> Function:
    """Return a function that replaces one argument, if it is passed."""
    signature = inspect.signature(original)

    def function(*arguments: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError:  # the original raises its own error
            return original(*arguments, **keywords)
        if name in bound.arguments:
            bound.arguments[name] = for_none if bound.arguments[name] is None else for_others
        return original(*bound.args, **bound.kwargs)

    return function


def _with_options(original: Function) -> Function:
    def with_options(self: Any, options: Any, *arguments: Any, **keywords: Any) -> Any:
        name = "deterministic" if hasattr(type(options), "deterministic") else "experimental_deterministic"
        if getattr(options, name, None) is False:
            options = type(options)().merge(options)
            setattr(options, name, True)
        return original(self, options, *arguments, **keywords)

    return with_options


def _sequential_if_stateful(original: Function) -> Function:
    """Return a map that calls stateful functions sequentially, as the order of calls decides their random numbers."""
    signature = inspect.signature(original)

    def parallel(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        bound = signature.bind(*arguments, **keywords)
        if bound.arguments.get("num_parallel_calls") is None or not _has_state(result):
            return result
        bound.arguments["num_parallel_calls"] = None
        if "deterministic" in bound.arguments:
            bound.arguments["deterministic"] = None
        return original(*bound.args, **bound.kwargs)

    return parallel


def _has_state(dataset: Any) -> bool:
    """Return whether a function of a dataset has stateful operations, whose results depend on earlier calls."""
    functions = [wrapper.function for wrapper in private_api.functions_of(dataset)]
    return any(_is_stateful(operation) for function in functions for operation in _operations(function))


def _operations(function: Any) -> Iterator[str]:
    """Yield the types of the operations of a function and of all that it calls."""
    definition = function.graph.as_graph_def()
    inner = {function.signature.name: function.node_def for function in definition.library.function}
    for nodes in (definition.node, *inner.values()):
        yield from (node.op for node in nodes if node.op not in inner)


def _is_stateful(operation: str) -> bool:
    if operation in _HARMLESS or _DATASET.fullmatch(operation):
        return False
    definition = private_api.definition(operation)
    return definition is None or bool(definition.is_stateful)
