"""The patch of tf.data: elements in order, and random functions called one after another."""

from __future__ import annotations

import inspect
import re

from ..core.patching import all_of, swap
from ..tensorflow import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from . import Tell

# Marked as having state, they give the same in any order; the functions that they call are looked into by themselves.
_HARMLESS = frozenset(
    ["Assert", "If", "While", "Case", "PartitionedCall", "StatefulPartitionedCall", "Placeholder", "_Arg", "_Retval"]
)
_DATASET = re.compile(r"(?!Shuffle|Random|Sampling)\w*Dataset(V[0-9]+)?")


def tf_data(module: Any, value: str, tell: Tell) -> None:
    """Datasets that give their elements in order, whatever their arguments and options say."""
    datasets = private_api.module("datasets")
    undos = []
    callers = ((datasets.DatasetV2, ["map", "interleave"]), (datasets.DatasetV1, ["map"]))  # its interleave is V2's
    for owner, names in callers:
        undos += [swap(owner, name, _in_order) for name in _with_parameter(owner, "deterministic")]
        undos += [swap(owner, name, _one_by_one) for name in names]
        if "with_options" in vars(owner):
            undos.append(swap(owner, "with_options", _with_options))
    experimental = module.data.experimental
    undos += [swap(experimental, name, _not_sloppy) for name in _with_parameter(experimental, "sloppy")]
    tell.undo_by(all_of(undos))


def _with_parameter(owner: Any, parameter: str) -> list[str]:
    """The public functions here that take a parameter of this name."""
    functions = [(name, function) for name, function in vars(owner).items() if inspect.isfunction(function)]
    found = [name for name, function in functions if parameter in inspect.signature(function).parameters]
    return sorted(name for name in found if not name.startswith("_"))


def _in_order(original: Callable[..., Any]) -> Callable[..., Any]:
    return _changed(original, "deterministic", lambda given: True if given is not None else None)


def _not_sloppy(original: Callable[..., Any]) -> Callable[..., Any]:
    return _changed(original, "sloppy", lambda given: False)


def _changed(original: Callable[..., Any], name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function with one argument replaced, where it is given."""
    signature = inspect.signature(original)

    def function(*arguments: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError:  # the function itself says what is wrong
            return original(*arguments, **keywords)
        if name in bound.arguments:
            bound.arguments[name] = change(bound.arguments[name])
        return original(*bound.args, **bound.kwargs)

    return function


def _with_options(original: Callable[..., Any]) -> Callable[..., Any]:
    def with_options(self: Any, options: Any, *arguments: Any, **keywords: Any) -> Any:
        name = "deterministic" if hasattr(type(options), "deterministic") else "experimental_deterministic"
        if getattr(options, name, None) is False:
            options = type(options)().merge(options)
            setattr(options, name, True)
        return original(self, options, *arguments, **keywords)

    return with_options


def _one_by_one(original: Callable[..., Any]) -> Callable[..., Any]:
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
    """Whether the functions of a dataset do anything that depends on what was called before."""
    functions = [wrapper.function for wrapper in private_api.functions_of(dataset)]
    return any(_is_stateful(operation) for function in functions for operation in _operations(function))


def _operations(function: Any) -> Iterator[str]:
    """The types of the operations of a function and of all that it calls."""
    definition = function.graph.as_graph_def()
    inner = {function.signature.name: function.node_def for function in definition.library.function}
    for nodes in (definition.node, *inner.values()):
        yield from (node.op for node in nodes if node.op not in inner)


def _is_stateful(operation: str) -> bool:
    if operation in _HARMLESS or _DATASET.fullmatch(operation):
        return False
    definition = private_api.definition(operation)
    return definition is None or bool(definition.is_stateful)
