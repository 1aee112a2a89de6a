"""Wrappers of TensorFlow and Keras that report updates and computations, also while graphs are being built.

A listener may replace the function of an update or a call, for example by one that executes it on a condition.
The records of a run and captures share these wrappers, which are installed only for events that have a handler.
"""

from __future__ import annotations

import sys
import weakref
from _thread import _local

from ..core.patching import replace
from ..events.steps import (
    BackwardBegan,
    BatchFetched,
    DifferentiationDue,
    ExecutionDue,
    ForwardBegan,
    ForwardEnded,
    FunctionDue,
    GradientsApplied,
    GradientsDue,
    LayerDue,
    LoaderBegan,
    LoaderExhausted,
    LossScaled,
    OutputComputed,
    RandomDrawn,
    ReplicasDue,
    TrainFunctionDue,
    VariableChanges,
    tell,
)
from . import private_api
from .evaluation import backend_of
from .state import pairs_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

    from ..events.steps import Events, Handlers, TrainingEvent

    Function = Callable[..., Any]

MARK = "_reprokit_captures"  # marks functions wrapped here, in addition to the wrappers of events.py
TRAIN_FUNCTION = "_reprokit_captured"  # marks the wrapped train_function of a model
OWN_PREFIX = "reprokit_"  # begins the names of all variables that reprokit creates
_WRITES = (
    "assign",
    "assign_add",
    "assign_sub",
    *[f"scatter_{nd}{name}" for nd in ("", "nd_") for name in ("sub", "add", "max", "min", "mul", "div", "update")],
)
# Functions that create operations with a hidden random state, and the types of these operations.
RANDOM_OPERATIONS = {
    "multinomial": "Multinomial",
    "parameterized_truncated_normal": "ParameterizedTruncatedNormal",
    "random_gamma": "RandomGamma",
    "random_poisson": "RandomPoisson",
    "random_poisson_v2": "RandomPoissonV2",
    "random_shuffle": "RandomShuffle",
    "random_standard_normal": "RandomStandardNormal",
    "random_uniform": "RandomUniform",
    "random_uniform_int": "RandomUniformInt",
    "truncated_normal": "TruncatedNormal",
}
_generators: weakref.WeakSet[Any] = weakref.WeakSet()  # all instances of tf.random.Generator created since then


def generators() -> list[Any]:
    """Return the initialized random generators of the script in the order of their creation."""
    initialized = [generator for generator in _generators if private_api.state(generator) is not None]
    return sorted(initialized, key=lambda generator: generator._reprokit_number)


class _ApplyThread(_local):
    """Whether a thread is applying gradients."""

    applies = False


class MergedEvents:
    """The handlers of several Events objects, in the order in which they were added."""

    def __init__(self) -> None:
        self._added: tuple[Events, ...] = ()

    def add(self, events: Events) -> None:
        """Report to the listeners of this object, too."""
        self._added += (events,)

    def __getattr__(self, name: str) -> Handlers:
        """Return the handlers of an event by its attribute name in Events."""
        first, *others = [getattr(events, name) for events in self._added]
        return sum(others, first)  # type: ignore[no-any-return]


class TensorFlowDecisions:
    """Wraps updates and calls, so that listeners can observe or replace them."""

    _events = MergedEvents()  # one wrapper serves all listeners of this process
    _thread = _ApplyThread()

    def __init__(self, events: Events, own_variables: Callable[[], Iterable[Any]] | None = None) -> None:
        self._events.add(events)
        self._saving = None if own_variables is None else _SavedModelHooks(own_variables)
        self._count = 0  # random generators so far

    def watch(self, name: str, module: ModuleType) -> None:
        """Instrument TensorFlow, or a module of Keras, right after its import."""
        if name == "tensorflow":
            self._watch_tensorflow()
        elif "optimizer" in name:
            self._watch_optimizers(module)
        else:
            for owner in _classes(module):
                if backend_of(owner) == "tensorflow":
                    self._wrap(owner, "make_train_function", self._make_make_train_function, "function_due")
                if owner.__name__ in ("Layer", "Loss"):
                    self._wrap(owner, "__call__", self._make_layer, "layer_due", "output_computed")

    def _watch_tensorflow(self) -> None:
        self._watch_optimizers(private_api.module("optimizers"))
        tape, variables = private_api.module("backprop").GradientTape, private_api.module("variables")
        self._report_call(tape, "__enter__", "forward_began", lambda tape: ForwardBegan(tape, (), {}))
        self._report_call(
            tape, "__exit__", "forward_ended", lambda tape, *_error: ForwardEnded(ForwardBegan(tape, (), {}), None)
        )
        self._wrap(tape, "gradient", self._make_gradient, "backward_began", "differentiation_due")
        for owner in (variables.BaseResourceVariable, variables.ResourceVariable, variables.UninitializedVariable):
            for name in _WRITES if "assign" in vars(owner) else ():  # these classes copy methods from each other
                self._report_call(owner, name, "variable_changes", lambda variable, *_, **__: VariableChanges(variable))
        if self._saving is not None:
            self._watch_state(self._saving)
        calls = private_api.module("random_calls") if self._events.random_drawn else None
        for name in RANDOM_OPERATIONS if calls is not None else ():
            replace(calls, name, self._make_draw, MARK)
        called = [private_api.module("polymorphic").Function]
        if private_api.module("concrete") is not None:  # TensorFlow 2.13
            called.append(private_api.module("concrete").ConcreteFunction)
        for owner in called:
            self._wrap(owner, "__call__", self._make_call, "function_due", "execution_due")
        self._wrap(private_api.module("distribute").StrategyBase, "run", self._make_run, "replicas_due")
        for name in ("__next__", "get_next"):
            self._wrap(
                private_api.module("iterators").OwnedIterator,
                name,
                self._make_next,
                "batch_fetched",
                "loader_exhausted",
            )

    def _watch_state(self, hooks: _SavedModelHooks) -> None:
        generator = private_api.module("generators").Generator
        _wrap(generator, "__init__", self._make_generator)
        if hasattr(generator, "skip"):  # which each draw calls
            self._report_call(
                generator, "skip", "variable_changes", lambda drawn, *_: VariableChanges(private_api.state(drawn))
            )
        graph = getattr(getattr(sys.modules["tensorflow"], "__internal__", None), "FuncGraph", None)
        if graph is not None and not hasattr(graph.variables.fset, MARK):
            graph.variables = graph.variables.setter(hooks.make_set_variables(graph.variables.fset))
        saving, view = private_api.saving()
        if view is not None and hasattr(saving, "save_and_return_nodes"):
            _wrap(saving, "save_and_return_nodes", hooks.make_save)
            _wrap(view, "list_children", hooks.make_list_children)

    def _watch_optimizers(self, module: ModuleType) -> None:
        for owner in _classes(module):
            self._wrap(
                owner, "apply" if "apply" in vars(owner) else "apply_gradients", self._make_apply, "gradients_due"
            )
            for name in ("scale_loss", "get_scaled_loss"):
                if "LossScale" in owner.__name__:
                    self._wrap(owner, name, self._make_scale, "loss_scaled")

    def _wrap(self, owner: Any, name: str, make: Callable[[Function], Function], *handlers: str) -> None:
        """Replace a method by make(original) if one of these events has a handler."""
        if any(getattr(self._events, event) for event in handlers):
            _wrap(owner, name, make)

    # Gradients

    def _report_call(self, owner: Any, name: str, handlers: str, make: Callable[..., TrainingEvent]) -> None:
        """Wrap a method, to report an event made from its arguments before each call."""
        events = self._events

        def make_call(original: Function) -> Function:
            def call(*arguments: Any, **keywords: Any) -> Any:
                tell(getattr(events, handlers), make(*arguments, **keywords))
                return original(*arguments, **keywords)

            return call

        self._wrap(owner, name, make_call, handlers)

    def _make_gradient(self, original: Function) -> Function:
        def gradient(tape: Any, target: Any, sources: Any, *arguments: Any, **keywords: Any) -> Any:
            if private_api.has_variables(sources):
                tell(self._events.backward_began, BackwardBegan(target, tape=tape))
            due = DifferentiationDue(original)
            tell(self._events.differentiation_due, due)
            return due.call(tape, target, sources, *arguments, **keywords)

        return gradient

    def _make_scale(self, original: Function) -> Function:
        def scale(optimizer: Any, loss: Any) -> Any:
            scaled = original(optimizer, loss)
            tell(self._events.loss_scaled, LossScaled(loss, scaled))
            return scaled

        return scale

    def _make_apply(self, original: Function) -> Function:
        """Wrap the update of an optimizer; of nested optimizers (loss scaling) only the outermost is reported."""
        thread, by_pairs = self._thread, original.__name__ == "apply_gradients"

        def apply(optimizer: Any, gradients: Any, *arguments: Any, **keywords: Any) -> Any:
            gradients = list(gradients)
            if thread.applies:
                return original(optimizer, gradients, *arguments, **keywords)
            pairs = pairs_of(optimizer, gradients, arguments, keywords, by_pairs=by_pairs)

            def update() -> Any:
                result = original(optimizer, gradients, *arguments, **keywords)
                tell(self._events.gradients_applied, GradientsApplied(optimizer, pairs))
                return result

            thread.applies = True
            try:
                due = GradientsDue(optimizer, pairs, update)
                if pairs:
                    tell(self._events.gradients_due, due)
                done = due.update() if due.update else None
            finally:
                thread.applies = False
            return done if done is not None or not by_pairs else getattr(optimizer, "iterations", None)

        return apply

    # Variables and numbers

    def _make_generator(self, original: Function) -> Function:
        def begin(generator: Any, *arguments: Any, **keywords: Any) -> None:
            original(generator, *arguments, **keywords)
            generator._reprokit_number = self._count = self._count + 1
            _generators.add(generator)

        return begin

    def _make_draw(self, original: Function) -> Function:
        kind = RANDOM_OPERATIONS[original.__name__]

        def draw(*arguments: Any, **keywords: Any) -> Any:
            event = RandomDrawn(kind, original(*arguments, **keywords))
            tell(self._events.random_drawn, event)
            return event.drawn

        return draw

    def _make_layer(self, original: Function) -> Function:
        def call(layer: Any, *arguments: Any, **keywords: Any) -> Any:
            due = LayerDue(layer, original)
            tell(self._events.layer_due, due)
            result = due.call(layer, *arguments, **keywords)
            tell(self._events.output_computed, OutputComputed(layer, result))
            return result

        return call

    def _make_next(self, original: Function) -> Function:
        def get_next(iterator: Any, *arguments: Any) -> Any:
            began = vars(iterator).get("_reprokit_began")
            if began is None:
                began = iterator._reprokit_began = LoaderBegan(None, ("", 0), None)
            try:
                event = BatchFetched(original(iterator, *arguments), began)
            except Exception:
                tell(self._events.loader_exhausted, LoaderExhausted(began))
                raise
            tell(self._events.batch_fetched, event)
            return event.batch

        return get_next

    # Calls. TensorFlow records the stack at each call: few frames of the agent should be on it.

    def _make_call(self, original: Function) -> Function:
        events = self._events

        def execute(function: Any, *arguments: Any, **keywords: Any) -> Any:
            due = ExecutionDue(function, original)
            tell(events.execution_due, due)
            return due.call(function, *arguments, **keywords)

        def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
            due = FunctionDue(function, arguments, keywords, execute if events.execution_due else original)
            tell(self._events.function_due, due)
            return due.call(function, *arguments, **keywords)

        return call

    def _make_make_train_function(self, original: Function) -> Function:
        """Wrap make_train_function, so that the calls of train functions are reported."""

        def make_train_function(model: Any, *arguments: Any, **keywords: Any) -> Any:
            making = TrainFunctionDue(model, original)
            tell(self._events.train_function_due, making)
            returned = making.make(model, *arguments, **keywords)
            function = model.train_function
            if function is None or hasattr(function, TRAIN_FUNCTION):
                return returned

            def train_function(*given: Any) -> Any:
                due = FunctionDue(function, given, {}, _call, model, train_function)
                tell(self._events.function_due, due)
                return due.call(function, *given)

            setattr(train_function, TRAIN_FUNCTION, True)
            model.train_function = train_function
            return returned if returned is None else train_function

        return make_train_function

    def _make_run(self, original: Function) -> Function:
        """Wrap Strategy.run, which also the default strategy of Keras calls for each step."""

        def run(strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            due = ReplicasDue(strategy, fn, lambda function: original(strategy, function, args, kwargs, options))
            tell(self._events.replicas_due, due)
            return due.call(due.function)

        return run


class _SavedModelHooks:
    """Lets tf.saved_model save graphs that use variables of reprokit, which it would refuse as untracked."""

    def __init__(self, variables: Callable[[], Iterable[Any]]) -> None:
        self._variables = variables
        self._lists_own_variables = False

    @staticmethod
    def make_set_variables(original: Function) -> Function:
        """Have a graph list its variables in the order of its inputs.

        TensorFlow lists them by address, and Keras' export numbers them in that order. Captures change the addresses.
        """

        def set_variables(graph: Any, variables: Any) -> None:
            if not isinstance(variables, (list, tuple)):  # the variables that a graph has used, as a set
                order = {id(captured): position for position, (captured, _) in enumerate(graph.captures)}
                handles = {
                    id(variable): id(getattr(private_api.primary(variable), "handle", None)) for variable in variables
                }
                variables = sorted(variables, key=lambda variable: order.get(handles[id(variable)], len(order)))
            original(graph, variables)

        setattr(set_variables, MARK, True)
        return set_variables

    def make_save(self, original: Function) -> Function:
        """Wrap saving: if TensorFlow refuses a variable of reprokit, before writing anything, list them and retry."""

        def save(*arguments: Any, **keywords: Any) -> Any:
            try:
                return original(*arguments, **keywords)
            except AssertionError as error:
                if OWN_PREFIX not in str(error):
                    raise
            self._lists_own_variables = True
            try:
                return original(*arguments, **keywords)
            finally:
                self._lists_own_variables = False

        return save

    def make_list_children(self, original: Function) -> Function:
        """Wrap list_children, to list the variables of reprokit as children of the saved object while needed."""

        def list_children(view: Any, saved: Any) -> Any:
            if self._lists_own_variables and saved is view.root:
                list(original(view, saved))  # this builds graphs, which may create more variables
                children = private_api.children(view)[saved]
                children.update(
                    {f"_{OWN_PREFIX}{number}": variable for number, variable in enumerate(self._variables())}
                )
            return original(view, saved)

        return list_children


def _call(function: Function, *arguments: Any) -> Any:
    return function(*arguments)


def _classes(module: ModuleType) -> list[type]:
    return [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]


def _wrap(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
    """Replace a method by make(original), once; autograph must not convert the replacement."""
    replace(owner, name, make, MARK)
    if name in vars(owner):
        vars(owner)[name].autograph_info__ = None
