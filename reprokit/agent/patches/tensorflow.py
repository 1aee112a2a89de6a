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
from . import PatchUnfit, Tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.patching import Function

_SETTERS = ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads")
_ADVICE = "install tensorflow-determinism==0.3.0 in the training's Python"
_WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "complex64": "complex128"}
# Marked as having state, they give the same in any order; the functions that they call are looked into by themselves.
_HARMLESS = frozenset(
    ["Assert", "If", "While", "Case", "PartitionedCall", "StatefulPartitionedCall", "Placeholder", "_Arg", "_Retval"]
)
_DATASET = re.compile(r"(?!Shuffle|Random|Sampling)\w*Dataset(V[0-9]+)?")


def tf_deterministic(module: Any, value: str, tell: Tell) -> None:
    """Deterministic operations, and a seed for random ones, which raise without any; the script's own replaces it."""
    module.config.experimental.enable_op_determinism()
    module.random.set_seed(int.from_bytes(os.urandom(4), "little"))
    tell.undo_by(private_api.module("config").disable_op_determinism)


def tf_threads(module: Any, value: str, tell: Tell) -> None:
    """So many threads inside of operations, and so many for operations; what the script asks for is ignored."""
    count = int(value or "1")
    threading, session = getattr(module.config, "threading", None), private_api.module("session")
    if threading is None and session is None:
        raise PatchUnfit("this TensorFlow has no setting for its threads")
    for name in _SETTERS if threading is not None else ():
        getattr(threading, name)(count)  # now, while nothing runs
        tell.swap(threading, name, functools.partial(_hold_count, count))
    if session is not None:
        make_config = getattr(module, "compat", module).v1.ConfigProto
        tell.swap(session.BaseSession, "__init__", functools.partial(_with_threads, make_config, count))


def _hold_count(count: int, original: Function) -> Function:
    def set_threads(num_threads: Any) -> None:
        original(count)

    return set_threads


def _with_threads(make_config: Any, count: int, original: Function) -> Function:
    """Return a session's constructor that takes its configuration with these counts."""

    def create(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        ours = make_config()
        if isinstance(config, make_config):
            ours.CopyFrom(config)
        ours.intra_op_parallelism_threads = ours.inter_op_parallelism_threads = count
        original(self, target, graph, ours)

    return create


# Before TensorFlow had deterministic operations of its own


def tf1_determinism(module: Any, value: str, tell: Tell) -> None:
    """`from tfdeterminism import patch; patch()`; what it prints is told instead."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            patch = getattr(importlib.import_module("tfdeterminism"), "patch", None)
    except ImportError as error:
        raise PatchUnfit(f"there is no tfdeterminism ({error}); {_ADVICE}") from None
    if patch is None:
        raise PatchUnfit(f"the tfdeterminism that is installed has no patch(), as none has from 0.4 on; {_ADVICE}")
    before = os.environ.get("TF_CUDNN_DETERMINISTIC")
    places = [module.nn, private_api.module("nn"), private_api.module("nn_ops")]
    replaced = [(place, place.bias_add) for place in places]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        patch()
    tell(" ".join(said.getvalue().split())[:300])

    def undo() -> None:
        for place, function in replaced:
            place.bias_add = function
        if before is None:
            os.environ.pop("TF_CUDNN_DETERMINISTIC", None)

    tell.undo_by(undo)


def tf_segment_sum(module: Any, value: str, tell: Tell) -> None:
    """Sums of segments in a wider type, rounded once, as NVIDIA's framework-reproducibility has them.

    What is added in another order then differs, mostly, where the rounding takes it away; float64 has no wider type.
    """
    for name in ("segment_sum", "unsorted_segment_sum"):
        for place in (module.math, private_api.module("math")):
            if hasattr(place, name):
                tell.swap(place, name, functools.partial(_widened, module))


def _widened(module: Any, original: Function) -> Function:
    def segment_sum(data: Any, *arguments: Any, **keywords: Any) -> Any:
        data = module.convert_to_tensor(data)
        wider = _WIDER.get(data.dtype.base_dtype.name)
        if wider is None:
            return original(data, *arguments, **keywords)
        return module.cast(original(module.cast(data, wider), *arguments, **keywords), data.dtype)

    return segment_sum


# tf.data


def tf_data(module: Any, value: str, tell: Tell) -> None:
    """Datasets that give their elements in order, whatever their arguments and options say."""
    datasets = private_api.module("datasets")
    callers = ((datasets.DatasetV2, ["map", "interleave"]), (datasets.DatasetV1, ["map"]))  # its interleave is V2's
    for owner, names in callers:
        for name in _with_parameter(owner, "deterministic"):
            tell.swap(owner, name, functools.partial(_changed, "deterministic", None, True))
        for name in names:
            tell.swap(owner, name, _one_by_one)
        if "with_options" in vars(owner):
            tell.swap(owner, "with_options", _with_options)
    experimental = module.data.experimental
    for name in _with_parameter(experimental, "sloppy"):
        tell.swap(experimental, name, functools.partial(_changed, "sloppy", False, False))


def _with_parameter(owner: Any, parameter: str) -> list[str]:
    """Return the public functions here that take a parameter of this name."""
    functions = [(name, function) for name, function in vars(owner).items() if inspect.isfunction(function)]
    found = [name for name, function in functions if parameter in inspect.signature(function).parameters]
    return sorted(name for name in found if not name.startswith("_"))


def _changed(name: str, for_none: Any, for_others: Any, original: Function) -> Function:
    """Return the function with one argument replaced, where it is given."""
    signature = inspect.signature(original)

    def function(*arguments: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError:  # the function itself says what is wrong
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


def _one_by_one(original: Function) -> Function:
    """Calls of a function with state go one after another, as their order says which gets which random number."""
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
    """Return whether the functions of a dataset do anything that depends on what was called before."""
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
