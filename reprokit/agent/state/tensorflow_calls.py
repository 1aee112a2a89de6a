"""Watches the calls of compiled functions that a TensorFlow training makes, and all variables that they may change.

What a function changes are the resources that its graph captures: if all of them are variables, and nothing in it has a
state of its own, a call can be left out and its variables put in.
"""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from functools import partial

from ..capture.tensorflow_state import size_of
from ..core.patching import replace
from ..events.steps import ExecutionDue
from ..tensorflow import private_api
from ..tensorflow.decisions import OWN_PREFIX
from ..tensorflow.evaluation import LOGS
from ..tensorflow.steps import is_readable
from ..tensorflow.tensors import value, view
from .call_log import DTYPES, MAX_COUNT, MAX_DIMENSIONS, MAX_TENSOR, MAX_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..core.agent import Agent
    from .call_log import Tensor

    Function = Callable[..., Any]

MARK = "_reprokit_registered"
MAX_SMALL = MAX_COUNT  # variables of a function whose values are logged at its calls
# Operations that have a state by TensorFlow's definition, and none of their own.
_HARMLESS = frozenset("Assert NoOp PrintV2 StringFormat PartitionedCall StatefulPartitionedCall".split())
_CONTROL = frozenset("If StatelessIf While StatelessWhile Case StatelessCase".split())
_FETCHES = "IteratorGetNext"


class RegisteredVariables:
    """The variables of this process that are not reprokit's own, numbered as they were made."""

    def __init__(self) -> None:
        self.count = 0
        self._variables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers: dict[int, tuple[int, weakref.ref[Any]]] = {}  # by the handle's id; 0 for reprokit's own

    @classmethod
    def of(cls, agent: Agent) -> RegisteredVariables:
        """Return the variables of an agent's process; they are registered from the first call on."""
        registered: RegisteredVariables | None = agent.shared.get(cls)
        if registered is None:
            registered = agent.shared[cls] = cls()
            agent.listeners.append((("tensorflow",), registered.watch))
        return registered

    def watch(self, _name: str, _module: Any) -> None:
        """Register each variable that is made from now on."""
        owner = getattr(private_api.module("variables"), "BaseResourceVariable", None)
        if owner is not None:
            replace(owner, "__init__", self._make_initializer, MARK)
            vars(owner)["__init__"].autograph_info__ = None

    def _make_initializer(self, original: Function) -> Function:
        def initialize(variable: Any, *arguments: Any, **keywords: Any) -> None:
            original(variable, *arguments, **keywords)
            self._made(variable)

        return initialize

    def _made(self, variable: Any) -> None:
        handle = getattr(variable, "handle", None)
        if handle is None or not private_api.has_value(handle):  # in a graph
            return
        known = self._numbers.get(id(handle))
        if known is not None and known[1]() is handle:  # what an assignment returns
            return
        number = 0
        if not str(variable.name).rpartition("/")[2].startswith(OWN_PREFIX):
            number = self.count = self.count + 1
            self._variables[number] = variable
        self._numbers[id(handle)] = number, weakref.ref(handle)

    def number(self, handle: Any) -> int | None:
        """Return the number of the variable with a handle; 0 for reprokit's own, None for others."""
        number, reference = self._numbers.get(id(handle), (None, lambda: None))
        return number if reference() is handle else None

    def get(self, number: int) -> Any:
        """Return a variable by number; None if it is gone."""
        return self._variables.get(number)

    def alive(self) -> Iterator[tuple[int, Any]]:
        """Yield number and variable of all that are alive and have a value."""
        for number, variable in sorted(self._variables.items()):
            if is_readable(variable):
                yield number, variable


class WatchedFunction:
    """What is known of a compiled function, as far as it was built."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.is_listed = False  # whether its name is in the log
        self.is_pure = True  # whether no graph of it captures a resource, so that it is called in any case
        self.batches: int | None = None  # that a call fetches from an iterator among its arguments: none, or one
        self.variables: list[int] = []  # numbers of the small ones that it may change
        self.templates: dict[Any, Any] = {}  # results by the layout of their tensors
        self.seen: set[int] = set()  # graphs, by identity


class FunctionCalls:
    """The calls of compiled functions by the training's thread, without those that are within another one."""

    def __init__(self, registered: RegisteredVariables, handle: Callable[..., Any]) -> None:
        """Let a function make the calls: handle(call, function, arguments, keywords)."""
        self._registered, self._handle = registered, handle
        self._thread, self._is_within = get_ident(), False
        self._functions: weakref.WeakKeyDictionary[Any, WatchedFunction] = weakref.WeakKeyDictionary()
        self._count = 0
        self.hindrances: list[str] = []

    def execution_due(self, event: ExecutionDue) -> None:
        """Make the call oneself, if it is an outermost one."""
        if not self._is_within and get_ident() == self._thread and private_api.executing_eagerly():
            event.call = partial(self._call, event.call)

    def _call(self, call: Function, function: Any, *arguments: Any, **keywords: Any) -> Any:
        self._is_within = True
        try:
            return self._handle(call, function, arguments, keywords)
        finally:
            self._is_within = False

    def of(self, function: Any) -> WatchedFunction:
        """Return what is known of a function; it is numbered when it is first asked for."""
        watched = self._functions.get(function)
        if watched is None:
            self._count += 1
            watched = WatchedFunction(self._count, private_api.function_name(function))
            self._functions[function] = watched
        return watched

    def built(self, function: Any) -> bool:
        """Look at the graphs of a function that are new; return whether there are any."""
        watched = self.of(function)
        new = [each for each in private_api.concrete_functions(function) if id(each) not in watched.seen]
        for each in new:
            watched.seen.add(id(each))
            self._look(watched, each.graph)
        return bool(new)

    def _look(self, watched: WatchedFunction, graph: Any) -> None:
        """Note what a graph captures, and what hinders leaving its calls out."""
        small, unknown = dict.fromkeys(watched.variables), False
        for handle in private_api.captured_resources(graph):
            watched.is_pure = False
            number = self._registered.number(handle)
            unknown = unknown or number is None
            variable = self._registered.get(number or 0)
            if variable is not None and 0 < size_of(variable) <= MAX_VARIABLE:
                small[number or 0] = None
        watched.variables = list(small)[:MAX_SMALL]
        if watched.is_pure:
            return
        if unknown:
            self._hinder(watched, "uses a resource that is no variable, as a table or an iterator")
        outer, inner = private_api.operations(graph)
        batches, iterators = outer.count(_FETCHES), [name for name in (*outer, *inner) if name.startswith("Iterator")]
        if batches != len(iterators) or batches != private_api.count_iterators(graph) or batches > 1:
            self._hinder(watched, "fetches batches in numbers of its own, as several steps at once")
        elif watched.batches not in (None, batches):
            self._hinder(watched, "fetches batches at some calls only")
        watched.batches = batches
        for name in dict.fromkeys((*outer, *inner)):
            if private_api.has_state(name) and name not in _HARMLESS | _CONTROL:
                self._hinder(watched, f"has an operation with a state of its own ({name})")

    def _hinder(self, watched: WatchedFunction, why: str) -> None:
        self.hindrances.append(f"its function {watched.name} {why}")

    def small_values(self, watched: WatchedFunction) -> Iterator[tuple[int, bytes]]:
        """Yield number and bytes of the small variables of a function."""
        for number in watched.variables:
            variable = self._registered.get(number)
            array = None if variable is None else view(value(variable))
            if array is not None:
                yield number, array.tobytes()


def iterators_in(arguments: Any) -> list[Any]:
    """Return the iterators of data sets among arguments."""
    kind = getattr(private_api.module("iterators"), "OwnedIterator", ())
    return [leaf for leaf in _tensorflow().nest.flatten(arguments) if isinstance(leaf, kind)]


def content_of(result: Any) -> Any:
    """Return a result without the optional around it, and without what reprokit had added to it."""
    if isinstance(result, _tensorflow().experimental.Optional):
        result = result.get_value() if result.has_value() else None
    return result[LOGS] if isinstance(result, dict) and LOGS in result else result


def with_content(result: Any, content: Any) -> Any:
    """Return a result like another one, with this content."""
    optional = _tensorflow().experimental.Optional
    is_optional = isinstance(result, optional)
    inner = result.get_value() if is_optional else result
    inner = {**inner, LOGS: content} if isinstance(inner, dict) and LOGS in inner else content
    return optional.from_value(inner) if is_optional else inner


def leaves_of(content: Any) -> list[Any]:
    """Return the leaves of a result."""
    return list(_tensorflow().nest.flatten(content))


def with_leaves(content: Any, leaves: list[Any]) -> Any:
    """Return a result of the same structure with these leaves."""
    return _tensorflow().nest.pack_sequence_as(content, leaves)


def tensor_of(leaf: Any) -> Tensor | None:
    """Return what the log has of a leaf; None for what is no tensor in it."""
    array = view(leaf) if private_api.has_value(leaf) else None
    if array is None or array.dtype.name not in DTYPES or array.ndim > MAX_DIMENSIONS:
        return None
    return array.dtype.name, array.shape, array.tobytes() if array.nbytes <= MAX_TENSOR else None


def _tensorflow() -> Any:
    return sys.modules["tensorflow"]
