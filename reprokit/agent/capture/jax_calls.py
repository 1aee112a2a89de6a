"""Watches the calls of JAX's jitted functions: a step is an outermost call of one that computes gradients.

What JAX offers instead is worse: its compiled programs show flat arrays only, and C++ calls them past Python. So
jax.jit returns a function that calls what it returned before, for equinox.filter_jit and flax.nnx.jit, too. Donation
is switched off, as the arguments are the state before the step: this costs memory, and changes no bits.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref

from ..core.patching import replace
from ..core.user_frames import is_own, is_users, variables_of
from .header import GRADIENT, LOSS
from .settings import NEEDS_JIT, NEEDS_ONE_DEVICE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from . import CaptureSession

    Function = Callable[..., Any]

FEEDBACK_STEPS = 4  # of a function, after which it is known which outputs are its next inputs
EAGER_GRADIENTS = 3  # outside of jitted functions, before any step: then they are the steps
_NOT_WATCHED = ("jax", "jaxlib", "keras", __name__.partition(".")[0])  # whose own functions are no steps of a script
_SHOWN = ("_cache_size", "_fun", "_jit_info", "clear_cache", "eval_shape", "lower", "trace")  # of a jitted function
_DONATION = ("donate_argnums", "donate_argnames")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class StepHistory:
    """What is known of a function from its earlier calls, however often it was jitted."""

    def __init__(self) -> None:
        self.differentiates = False  # it computed gradients while it was traced
        self.steps = 0
        self.fed_back: dict[int, int] = {}  # outputs that were the next call's inputs, by their positions
        self.outputs: list[Any] = []  # weak references to those of the last call, during the first steps
        self.roles: dict[int, tuple[str, str]] | None = None  # outputs that are a loss or gradients: kind and path

    def note_inputs(self, leaves: Sequence[Any]) -> None:
        """Find out which of these inputs are outputs of the call before."""
        positions = {id(leaf): position for position, leaf in enumerate(leaves)}
        for number, reference in enumerate(self.outputs):
            output = reference()
            if output is not None and id(output) in positions:
                self.fed_back[number] = positions[id(output)]

    def note_outputs(self, leaves: Sequence[Any]) -> None:
        """Remember outputs, without keeping them alive."""
        few = self.steps < FEEDBACK_STEPS
        self.outputs = [weakref.ref(leaf) if is_array(leaf) else _nothing for leaf in leaves] if few else []


def _nothing() -> None:
    return None


class JittedFunction:
    """A jitted function of the script, and which of its arguments are static."""

    def __init__(self, function: Function, jitted: Function, options: Mapping[str, Any], history: StepHistory) -> None:
        self.function = function
        self.jitted = jitted
        self.history = history
        self.name = str(getattr(function, "__qualname__", "") or type(function).__name__)
        self.parameters = _positional(function)
        numbers, names = options.get("static_argnums"), options.get("static_argnames")
        self._numbers = {int(number) for number in _several(numbers)}
        self._names = {str(name) for name in _several(names)}
        count = len(self.parameters)
        self._names.update([self.parameters[n] for n in self._numbers if -count <= n < count])
        self._numbers.update([n for n, name in enumerate(self.parameters) if name in self._names])

    def is_static(self, position: int, count: int) -> bool:
        """Return whether the positional argument at this position, of so many, is static."""
        return position in self._numbers or position - count in self._numbers

    def dynamic(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that are not static, in which JAX looks for arrays."""
        count = len(arguments)
        positional = tuple([each for n, each in enumerate(arguments) if not self.is_static(n, count)])
        return positional, {name: value for name, value in keywords.items() if name not in self._names}

    def merged(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], dynamic: tuple[Sequence[Any], Mapping[str, Any]]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments with others in place of those that are not static."""
        rest, count = iter(dynamic[0]), len(arguments)
        positional = [each if self.is_static(n, count) else next(rest) for n, each in enumerate(arguments)]
        return positional, {**keywords, **dynamic[1]}


class StepCall:
    """A finished call that was a step: its inputs and outputs as arrays with names."""

    def __init__(
        self,
        jitted: JittedFunction,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        result: Any,
        names: Sequence[str] | None = None,
    ) -> None:
        self.leaves: list[Any] = sys.modules["jax"].tree_util.tree_leaves(result)  # values of the outputs
        self.jitted = jitted
        self.arguments = arguments
        self.keywords = keywords
        self.result = result
        self.number = jitted.history.steps  # of the function's steps before
        self._names = names  # of its inputs, if these are in the place of others
        self._inputs: list[tuple[str, Any]] | None = None
        self._outputs: list[tuple[str, Any]] | None = None

    @property
    def inputs(self) -> list[tuple[str, Any]]:
        """Names and values of the inputs, in JAX's order."""
        if self._inputs is None:
            tree, jitted, count = sys.modules["jax"].tree_util, self.jitted, len(self.arguments)
            pairs = tree.tree_flatten_with_path(jitted.dynamic(self.arguments, self.keywords))[0]
            names = [name for n, name in enumerate(jitted.parameters) if not jitted.is_static(n, count)]
            of_jax = [_input_name(path, names, tree) for path, _ in pairs]
            given = self._names or _given_names([leaf for _, leaf in pairs], tree)
            joined = [name or own for name, own in zip(given, of_jax)]
            is_unique = len(set(joined)) == len(joined)
            self._inputs = list(zip(joined if is_unique else of_jax, [leaf for _, leaf in pairs]))
        return self._inputs

    @property
    def outputs(self) -> list[tuple[str, Any]]:
        """Names and values of the outputs, in JAX's order."""
        if self._outputs is None:
            tree = sys.modules["jax"].tree_util
            pairs = tree.tree_flatten_with_path(self.result)[0]
            self._outputs = [(f"result{tree.keystr(path)}", leaf) for path, leaf in pairs]
        return self._outputs

    def source_of(self, output: int) -> tuple[int, bool] | None:
        """Return the input of which an output is the new value, and whether that is certain; None if it is none.

        It is certain where the script passed the output to the next call, or where names and shapes are the same.
        """
        known = self.jitted.history.fed_back.get(output)
        if known is not None and known < len(self.inputs):
            return known, True
        name, value = self.outputs[output]
        alike = [n for n, (_, leaf) in enumerate(self.inputs) if _form(leaf) == _form(value)]
        if not alike:
            return None
        best = max(alike, key=lambda n: (_common_end(name, self.inputs[n][0]), -n))
        return best, _common_end(name, self.inputs[best][0]) > 0


class JitWatch:
    """Patches jax.jit and what computes gradients, and reports each step to ``step_done``."""

    def __init__(self, capture: CaptureSession, step_done: Callable[[StepCall], None]) -> None:
        self._capture = capture
        self._step_done = step_done
        self._thread = threading.local()  # .calls: jitted functions being called; .seen: of find_roles
        self._histories: weakref.WeakKeyDictionary[Any, StepHistory] = weakref.WeakKeyDictionary()
        self._eager_gradients = 0
        self._is_any_step = False
        self._donates = False  # whether functions keep what the script says of donation
        self.jit: Any = None  # JAX's own

    def begin(self, module: ModuleType, *, captures: bool = True) -> None:
        """Patch the module that defines jax.jit, before jax and others import its functions.

        Unless steps are captured, functions donate what the script says.
        """
        self.jit, self._donates = vars(module)["jit"], not captures
        replace(module, "jit", self._make_jit)
        replace(module, "value_and_grad", self._make_differentiating)  # jax.grad calls it
        replace(module, "vjp", self._make_vjp)
        replace(module, "pmap", self._make_pmap)

    def unavailable(self, reason: str) -> None:
        """Report that steps of JAX are not captured."""
        self._capture.unavailable("jax", sys.modules["jax"].__version__, reason)

    # Jitted functions

    def _make_jit(self, original: Function) -> Function:
        def jit(*functions: Any, **options: Any) -> Any:
            if not functions and original(**options) is not None:  # from 0.8.1 on a decorator
                return lambda function: jit(function, **options)
            if len(functions) != 1 or not callable(functions[0]) or _is_of_library(functions[0]):
                return original(*functions, **options)
            kept = {name: options[name] for name in options if self._donates or name not in _DONATION}
            jitted = original(functions[0], **kept)
            return self._capture.attempt(self._watched, functions[0], jitted, options) or original(
                functions[0], **options
            )

        return jit

    def _watched(self, function: Function, jitted: Function, options: Mapping[str, Any]) -> Function:
        record = JittedFunction(function, jitted, options, self._history_of(function))
        history = record.history

        @functools.wraps(jitted)
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls = self._calls()
            calls.append(history)
            try:
                result = jitted(*arguments, **keywords)
            finally:
                calls.pop()
            if history.differentiates:
                if calls:  # it may have been traced by an earlier call
                    self._differentiated()
                else:
                    self._capture.attempt(self._called, record, arguments, keywords, result)
            return result

        for name in _SHOWN:
            if hasattr(jitted, name):
                setattr(call, name, getattr(jitted, name))
        return call

    def _history_of(self, function: Function) -> StepHistory:
        try:
            return self._histories.setdefault(getattr(function, "__func__", function), StepHistory())
        except TypeError:  # neither hashable nor weakly referable
            return StepHistory()

    def _calls(self) -> list[StepHistory]:
        thread = self._thread
        if not hasattr(thread, "calls"):
            thread.calls = []
        calls: list[StepHistory] = thread.calls
        return calls

    def _called(
        self, record: JittedFunction, arguments: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        history, tracer = record.history, sys.modules["jax"].core.Tracer
        step = StepCall(record, arguments, keywords, result)
        if any(isinstance(leaf, tracer) for leaf in step.leaves):  # it is part of what someone else traces
            return
        self._is_any_step = True
        if history.steps < FEEDBACK_STEPS:
            history.note_inputs([leaf for _, leaf in step.inputs])
        self._step_done(step)
        history.steps += 1
        if history.steps <= FEEDBACK_STEPS:
            history.note_outputs(step.leaves)

    # Gradients

    def _make_differentiating(self, original: Function) -> Function:
        def value_and_grad(*arguments: Any, **keywords: Any) -> Any:
            function = original(*arguments, **keywords)

            @functools.wraps(function)
            def call(*arguments: Any, **keywords: Any) -> Any:
                result = function(*arguments, **keywords)
                self._capture.attempt(self._note_gradients, result)
                return result

            return call

        return value_and_grad

    def _make_vjp(self, original: Function) -> Function:
        def vjp(*arguments: Any, **keywords: Any) -> Any:
            self._differentiated()
            return original(*arguments, **keywords)

        return vjp

    def _make_pmap(self, original: Function) -> Function:
        def pmap(*arguments: Any, **keywords: Any) -> Any:
            self._capture.attempt(self.unavailable, NEEDS_ONE_DEVICE)
            return original(*arguments, **keywords)

        return pmap

    def _differentiated(self) -> None:
        for history in self._calls():
            history.differentiates = True

    def _note_gradients(self, result: Any) -> None:
        seen = getattr(self._thread, "seen", None)
        if seen is not None:
            seen.append(result)
        elif not self._calls():
            self._eager_gradients += 1
            if self._eager_gradients == EAGER_GRADIENTS and not self._is_any_step:
                self.unavailable(NEEDS_JIT)

    def roles(self, step: StepCall) -> dict[int, tuple[str, str]]:
        """Return which outputs are a loss or gradients, by tracing the function once more: kind, and path or name."""
        history = step.jitted.history
        if history.roles is None:
            history.roles = self._capture.attempt(self._find_roles, step) or {}
        return history.roles

    def _find_roles(self, step: StepCall) -> dict[int, tuple[str, str]]:
        jax: Any = sys.modules["jax"]
        tree, jitted, roles = jax.tree_util, step.jitted, {}
        seen: list[Any] = []
        self._thread.seen = seen

        def traced(*dynamic: Any) -> Any:
            arguments, keywords = jitted.merged(step.arguments, step.keywords, dynamic)
            result = jitted.function(*arguments, **keywords)
            places = {id(leaf): number for number, leaf in enumerate(tree.tree_leaves(result))}
            for value, gradients in seen:
                named = [(LOSS, "", leaf) for leaf in tree.tree_leaves(value)[:1]]
                named += [(GRADIENT, tree.keystr(p), leaf) for p, leaf in tree.tree_flatten_with_path(gradients)[0]]
                roles.update({places[id(leaf)]: (kind, path) for kind, path, leaf in named if id(leaf) in places})
            return None

        self._calls().append(StepHistory())
        try:
            jax.eval_shape(traced, *jitted.dynamic(step.arguments, step.keywords))
        finally:
            self._calls().pop()
            self._thread.seen = None
        return roles

    def forget(self) -> None:
        """Drop the calls in progress, in a forked child."""
        self._thread = threading.local()


def is_array(leaf: Any) -> bool:
    """Return whether a leaf is an array of JAX."""
    return isinstance(leaf, sys.modules["jax"].Array)


def _is_of_library(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] in _NOT_WATCHED


def _several(value: Any) -> Sequence[Any]:
    return () if value is None else (value,) if isinstance(value, (int, str)) else tuple(value)


def _positional(function: Function) -> list[str]:
    """Return the names of a function's positional parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]


def _input_name(path: Sequence[Any], names: Sequence[str], tree: Any) -> str:
    """Return a name for the input at a path into positional arguments and keywords: state.params['bias']."""
    key = getattr(path[1], "idx", None)
    if key is None:
        first = str(path[1].key)
    else:
        first = names[key] if key < len(names) else f"arguments[{key}]"
    return f"{first}{tree.keystr(path[2:])}"


def _given_names(leaves: Sequence[Any], tree: Any) -> list[str]:
    """Return the names of arrays in the call by which the script came here, if that is one of another library.

    Those of equinox and flax.nnx pass on lists of arrays, which name none. Arrays that are there twice have no name.
    """
    outermost, frame = None, inspect.currentframe()
    while frame is not None and not is_users(frame.f_code.co_filename):
        outermost = outermost if is_own(frame.f_code.co_filename) else frame
        frame = frame.f_back
    if outermost is None:
        return [""] * len(leaves)
    values, code = variables_of(outermost), outermost.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    flags, others = code.co_flags, iter(code.co_varnames[count:])
    positional = values.get(next(others), ()) if flags & inspect.CO_VARARGS else ()
    keywords = values.get(next(others), {}) if flags & inspect.CO_VARKEYWORDS else {}
    function: Any = values.get(code.co_varnames[0]) if count else None
    names = _positional(function) if callable(function) else []
    given = {names[n] if n < len(names) else f"arguments[{n}]": value for n, value in enumerate(positional)}
    found: dict[int, list[str]] = {}
    for name, value in {**given, **keywords}.items():
        for path, leaf in tree.tree_flatten_with_path(value)[0]:
            found.setdefault(id(leaf), []).append(f"{name}{tree.keystr(path)}")
    for leaf in leaves:
        found.setdefault(id(leaf), []).append("")
    several = [found[id(leaf)] if is_array(leaf) else [] for leaf in leaves]
    return [each[0] if len(each) == 2 else "" for each in several]


def _form(value: Any) -> tuple[Any, Any]:
    return getattr(value, "shape", None), getattr(value, "dtype", None)


def _common_end(left: str, right: str) -> int:
    """Return how many keys two names have in common at their ends: .params['bias'] are two."""
    count, keys = 0, (_keys(left), _keys(right))
    while count < min(map(len, keys)) and keys[0][-1 - count] == keys[1][-1 - count]:
        count += 1
    return count


def _keys(name: str) -> list[str]:
    """Return the attributes and texts by which a name leads to its leaf; numbers are no names."""
    words = name.replace("[", ".").replace("]", "").split(".")[1:]
    return [word for word in words if word and not word.isdigit()]
