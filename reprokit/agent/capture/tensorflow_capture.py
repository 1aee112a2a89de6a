"""Watches the steps of TensorFlow 2 and Keras, and captures those whose gradients or loss are not finite.

Gradients are tested where an optimizer applies them: in eager code before that, in graphs by the graph itself
(tensorflow_update). Where a function compiled by XLA is called, a variable is looked at afterwards. A failure of ours
leaves the training as it is.
"""

from __future__ import annotations

import sys
import weakref
from _thread import _local, get_ident

from ..frameworks.tensorflow_trail import _array
from ..frameworks.variables import is_eager, optimizer_variables
from . import Captured
from .compiled import load as load_compiled
from .finite import Finite
from .random_states import RandomStates
from .settings import ROLLBACK, STOP
from .tensorflow_drawn import drawing, hidden, watch
from .tensorflow_found import Found, in_fit, local_batch, loss_scale, places
from .tensorflow_reading import Reader
from .tensorflow_replicas import OF_THE_FIRST, Round, replica, wait_for_workers, worker
from .tensorflow_reveal import Reveals
from .tensorflow_state import (
    as_array,
    eager_state,
    held_or_now,
    plain,
    put_variable,
    read,
    resource_id,
)
from .tensorflow_steps import Steps, put
from .tensorflow_stretch import Stretch, can_be_kept
from .tensorflow_update import LAST_LOSSES, Memory, Test, conditional, flagged, put_back
from .tensorflow_window import Window, applies, differentiates, unread, written
from .words import in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from . import Capture
    from .tensorflow_reading import Before
    from .tensorflow_steps import Step

    Function = Callable[..., Any]

MAX_FETCHED = 64
_OVER_DATA = ("scan_body", "reduce_body", "dataset_reduce", "dataset_scan")  # graphs of loops over a data set


class Call:
    """An outermost call of a training from eager code: a Keras train_function, or a function of the script's."""

    def __init__(
        self,
        origin: str,
        model: Any,
        function: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        run: Function,
    ) -> None:
        self.origin = origin
        self.model = model
        self.function = function
        self.arguments = arguments
        self.keywords = keywords
        self.thread = get_ident()
        self.pending: BaseException | None = None  # what ends the training when the call has come back
        self.rolls_back = False
        self.captured: Step | None = None  # a step of it that was not applied
        self.steps: list[Step] = []  # that were built in it
        self.window: Window | None = None
        self._run = run

    def run(self, arguments: tuple[Any, ...] | None = None, keywords: dict[str, Any] | None = None) -> Any:
        """Make the call, with other arguments where there are some."""
        given = self.keywords if keywords is None else keywords
        return self._run(self, self.arguments if arguments is None else arguments, given)


class Known:
    """What is known of an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.first: int | None = None  # its count of steps when it was first seen
        self.skipped = 0
        self.variables: list[Any] = []  # what it trains
        self.losses: list[Any] = []  # the last, of eager code
        self.finite: tuple[Any, Any] = (None, None)
        self.shares = False  # its eager steps with another optimizer, which updates behind it
        self.moved: dict[int, Any] = {}  # by resource_id: what else its steps write to, as sums of gradients
        self.mean, self.norms = 0.0, 0
        self._memory: Memory | None = None

    @property
    def memory(self) -> Memory:
        """The variables of ours in its graphs."""
        if self._memory is None:
            self._memory = Memory()
        return self._memory

    @property
    def alive(self) -> list[Any]:
        """What it trains, while it is there."""
        return [] if self.optimizer() is None else self.variables

    def last_losses(self) -> list[float]:
        """Of its good steps."""
        if self._memory is not None:
            numbers = as_array(self._memory.losses).tolist()
            return [number for number in numbers if number == number]
        return [float(as_array(loss).astype("float64").mean()) for loss in self.losses]


class Site:
    """A place where a graph applies gradients."""

    def __init__(self, known: Known, variables: list[Any], step: Step, call: Call | None) -> None:
        self.known = known
        self.step = step
        self.variables = variables
        self.model = None if call is None else call.model
        self.activations = [name for name, _ in step.activations]
        self.jumps = False
        self.draws: list[str] = []  # types of operations with a random state of their own, whose numbers are handed out
        self.moved: dict[int, tuple[Any, Any]] = {}  # what else the compiled step writes to

    def drawn(self) -> list[Any]:
        """The numbers of operations with a random state of their own, to be handed out."""
        draws = drawing(self.step.graph)
        self.draws = [draw.type for draw in draws]
        return [draw.outputs[0] for draw in draws]

    @property
    def unreadable(self) -> list[str]:
        """Operations with a random state of their own whose numbers nobody is handed."""
        graph = self.step.graph
        return [operation.name for operation in drawing(graph)[len(self.draws) :]] + hidden(graph)


class TensorFlowCapture:
    """The part for TensorFlow and Keras."""

    holds_each = False  # call of a compiled step: none may be made again from those before it

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._settings = capture.settings
        self._conditions = capture.settings.conditions
        self._here = _local()
        self._first: Any = None  # the part for TensorFlow 1
        self._steps = Steps()
        self._reveals = Reveals(self._steps)
        self._library: Any = None
        self._call_bare: Function = _call_nothing
        self._stretches: weakref.WeakSet[Stretch] = weakref.WeakSet()
        self._last_stretch: Stretch | None = None  # of the last outermost call
        self.forget()

    def forget(self) -> None:
        """At the beginning, and in a forked child."""
        self._calls: list[Call] = []
        self._known: weakref.WeakKeyDictionary[Any, Known] = weakref.WeakKeyDictionary()
        self._order: list[Known] = []
        self._good: list[tuple[Any, Any]] = []  # a state to go back to: variables and values
        self._since = 0
        if self._first is not None:
            self._first.forget()

    # ---- attaching ---------------------------------------------------------------------------------------------------

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to a module that has just been executed."""
        if str(getattr(sys.modules.get("tensorflow"), "__version__", "")).startswith("1."):
            self._begin_first(name, module)
        elif name == "tensorflow":
            self._begin_tensorflow()
        elif "optimizer" in name:
            self._watch_optimizers(module)
        else:
            self._watch_models(module)

    def _begin_first(self, name: str, module: ModuleType) -> None:
        from .tensorflow1_capture import TensorFlow1Capture

        self._first = self._first or TensorFlow1Capture(self._capture)
        self._first.begin(name, module)

    def _begin_tensorflow(self) -> None:
        path = self._settings.library
        self._library = self._capture.attempt(_library, path)
        compiled = self._capture.attempt(load_compiled, path) if self._library is not None else None
        self._random = RandomStates(self._library, None, compiled)
        self._steps.begins = self._begins
        self._steps.differentiates = self._differentiates
        self._steps.writes = self._stale
        modules, python = sys.modules, "tensorflow.python."
        self._steps.watch_tapes(modules[python + "eager.backprop"].GradientTape)
        variables = modules[python + "ops.resource_variable_ops"]
        for owner in (variables.BaseResourceVariable, variables.ResourceVariable, variables.UninitializedVariable):
            if "assign" in vars(owner):  # methods are copied from class to class there
                self._steps.watch_writes(owner)
        self._steps.watch_restores(variables)
        self._steps.watch_generators(modules[python + "ops.stateful_random_ops"].Generator)
        self._capture.attempt(watch, self.drew)
        functions = modules[python + "eager.polymorphic_function.polymorphic_function"]
        put(functions.Function, "__call__", self._make_call)
        put(modules[python + "distribute.distribute_lib"].StrategyBase, "run", self._make_run)
        iterator = modules[python + "data.ops.iterator_ops"].OwnedIterator
        for name in ("__next__", "get_next"):
            put(iterator, name, self._make_next)
        self._watch_optimizers(modules[python + "training.optimizer"])

    def _watch_optimizers(self, module: ModuleType) -> None:
        for owner in _classes(module):
            for name in ("apply", "apply_gradients"):
                if name == "apply" or "apply" not in vars(owner):
                    put(owner, name, self._make_apply)
            for name in ("scale_loss", "get_scaled_loss"):
                if "LossScale" in owner.__name__ and name in vars(owner):
                    self._steps.watch_scaling(owner, name)

    def _watch_models(self, module: ModuleType) -> None:
        for owner in _classes(module):
            put(owner, "make_train_function", self._make_make_train_function)
            if self._conditions.activations and owner.__name__ == "Layer":
                put(owner, "__call__", self._make_layer)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _make_make_train_function(self, original: Function) -> Function:
        def make_train_function(model: Any, *arguments: Any, **keywords: Any) -> Any:
            made = original(model, *arguments, **keywords)
            function = model.train_function
            if function is None or hasattr(function, "_reprokit_captured"):
                return made

            def train_function(*given: Any) -> Any:
                return self._outermost(Call("fit", model, function, given, {}, _run_plain))

            train_function._reprokit_captured = True  # type: ignore[attr-defined]
            if hasattr(function, "_reprokit_model"):
                train_function._reprokit_model = True  # type: ignore[attr-defined]
            model.train_function = train_function
            return made if made is None else train_function

        return make_train_function

    def _make_call(self, original: Function) -> Function:
        """Calls of tf.functions, from eager code and from graphs that are being built."""
        executing_eagerly = sys.modules["tensorflow.python.eager.context"].executing_eagerly
        self._call_bare = original

        def compiled(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            """A call of a function that XLA compiles, the outermost of them."""
            before = self._capture.attempt(self._before, function, arguments, keywords)
            self._here.compiled = function
            try:
                result = original(function, *arguments, **keywords)
            finally:
                self._here.compiled = None
            if isinstance(before, Stretch):
                self._capture.attempt(before.watch)
            elif before is not None:
                self._stale()
                look = self._look if executing_eagerly() else self._look_in_graph
                self._capture.attempt(look, function, arguments, keywords, before)
            return result

        def call_function(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            if not function._jit_compile or getattr(self._here, "compiled", None) is not None:
                return original(function, *arguments, **keywords)
            if self._reveals.tracing is not None or getattr(function, "_reprokit_reveals", None) is function:
                return original(function, *arguments, **keywords)
            return compiled(function, arguments, keywords)

        def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
            if not executing_eagerly() or getattr(self._here, "call", None) is not None:
                return call_function(function, arguments, keywords)
            run = _runs(call_function)
            return self._outermost(Call("function", None, function, arguments, keywords, run))

        return call

    def _outermost(self, call: Call) -> Any:
        if getattr(self._here, "call", None) is not None:
            return call.run()
        trains = call.origin == "fit" or getattr(call.function, "_reprokit_trains", True) or differentiates(call)
        if call.origin == "fit":
            self._random.keep()
        else:
            window = call.window = self._window()
            if trains and not window.calls:
                self._random.keep()
            self._capture.attempt(window.opens, call)
        stretch = getattr(call.function, "_reprokit_stretch", None)
        if stretch is None or stretch is not self._last_stretch:
            self._leave(but=stretch)
            self._last_stretch = stretch
        if stretch is not None and stretch.is_over:
            self._capture.attempt(stretch.hold)
        self._here.call = call
        self._calls.append(call)
        try:
            result = self._guarded(call)
        finally:
            self._here.call = None
            self._calls.remove(call)
            if self._reveals.tracing is None and "_reprokit_trains" not in vars(call.function):
                call.function._reprokit_trains = False
            if call.origin == "function":
                self._capture.attempt(window.closes, call)
        if trains and self._settings.action == ROLLBACK:
            self._capture.attempt(self._keep_or_go_back, call.rolls_back)
        return result

    def _window(self) -> Window:
        found: Window | None = getattr(self._here, "window", None)
        if found is None:
            found = self._here.window = Window(self._updates)
        return found

    def _updates(self) -> int:
        """How many updates all optimizers have made."""
        return sum(_iterations(known.optimizer()) or 0 for known in self._order)

    def _differentiates(self, step: Step) -> None:
        """A step asks for gradients."""
        call = self._current()
        if step.graph is not None and call is not None:
            call.function._reprokit_differentiates = True
            call.function._reprokit_graph = weakref.ref(step.graph)
            call.steps.append(step)

    def _guarded(self, call: Call) -> Any:
        """What was captured within the call ends the training behind it, also where the call then fails."""
        try:
            result = self.outermost(call)
        except BaseException as error:
            self._stale()
            if call.pending is not None and isinstance(error, Exception):
                raise call.pending from None
            raise
        stretch = getattr(call.function, "_reprokit_stretch", None)
        if stretch is not None:
            stretch.calls += 1
            if stretch.is_bad:
                self._capture.attempt(self._look_back, stretch)
        if call.pending is not None:
            raise call.pending
        return result

    def _look_back(self, stretch: Stretch) -> None:
        """Behind a call whose compiled step should not have happened."""
        (arguments, keywords), problem = stretch.rebuild()
        if problem:
            self._capture.say_once(f"warning: {problem}")
        self._revealed(stretch.site, stretch.function, arguments, keywords, loops=False, problem=problem)

    def _leave(self, but: Stretch | None) -> None:
        """Another function than the last is called, which may write to what the stretches of others hold."""
        self._stale()
        for stretch in self._stretches:
            if stretch is not but and not self._calls:
                self._capture.attempt(stretch.release)

    def _stale(self) -> None:
        """Something may write to variables beside the calls of stretches."""
        for stretch in self._stretches:
            stretch.is_stale = True

    def outermost(self, call: Call) -> Any:
        """Make an outermost call."""
        return call.run()

    def _current(self) -> Call | None:
        """The call under way in this thread; else, as in a thread of TensorFlow's own, the last that began."""
        call: Call | None = getattr(self._here, "call", None)
        return call if call is not None or not self._calls else self._calls[-1]

    def _make_run(self, original: Function) -> Function:
        """A strategy runs a step, be it the strategy that Keras uses where there is none."""

        def run(strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            if self._current() is None:
                return original(strategy, fn, args, kwargs, options)
            together = Round()
            wrapped = self._capture.attempt(self._wrap_step, fn, together)
            result = original(strategy, fn if wrapped is None else wrapped, args, kwargs, options)
            self._capture.attempt(together.end, lambda: self._call_host_together(strategy, together))
            return result

        return run

    def _wrap_step(self, fn: Function, together: Round) -> Function:
        api = sys.modules["tensorflow.python.autograph.impl.api"]
        context = sys.modules["tensorflow.python.autograph.core.ag_ctx"]
        converted = api.tf_convert(fn, context.control_status_ctx(), convert_by_default=False)

        def step_function(*arguments: Any, **keywords: Any) -> Any:
            step = self._steps.current() if self._reveals.tracing is not None else together.step
            step = step or self._steps.begin()
            step.pinned = True
            batch = ("fit" if _is_of_keras(fn) else "script", _one(arguments, keywords))
            if replica() is not None:
                together.add(step, batch)
                return converted(*arguments, **keywords)
            step.batches = [batch]
            try:
                return converted(*arguments, **keywords)
            finally:
                self._capture.attempt(self._step_ends, step)

        step_function.autograph_info__ = None  # type: ignore[attr-defined]
        return step_function

    def _step_ends(self, step: Step) -> None:
        """What a step that was not applied moved after its update, as metrics, is put back where training goes on."""
        step.pinned = False
        moved = list(step.held.values())[step.moved :]
        if step.finite is None or not step.applied or not moved or self._settings.action == STOP:
            return
        step.passes = True
        if step.graph is None:
            put_back(moved)
        else:
            tensorflow = sys.modules["tensorflow"]
            tensorflow.cond(step.finite, lambda: None, lambda: put_back(moved))

    def _make_next(self, original: Function) -> Function:
        executing_eagerly = sys.modules["tensorflow.python.eager.context"].executing_eagerly
        get_default_graph = sys.modules["tensorflow.python.framework.ops"].get_default_graph

        def get_next(iterator: Any, *arguments: Any) -> Any:
            value = original(iterator, *arguments)
            if executing_eagerly():
                step = self._steps.current()
                accumulates = step is not None and step.differentiated and not step.applied
                self._here.fetched = [*(self._fetched() if accumulates else []), value][-MAX_FETCHED:]
            else:
                get_default_graph()._reprokit_batch = value
            return value

        return get_next

    def _fetched(self) -> list[Any]:
        return getattr(self._here, "fetched", None) or []

    def _make_layer(self, original: Function) -> Function:
        """A layer's outputs are looked at where activations are asked for."""

        def call(layer: Any, *arguments: Any, **keywords: Any) -> Any:
            result = original(layer, *arguments, **keywords)
            self._capture.attempt(self._activated, layer, result)
            return result

        return call

    def _activated(self, layer: Any, result: Any) -> None:
        step = self._steps.current()
        if step is None or step.differentiated or (step.graph is not None and step.graph is not _graph()):
            return
        tensorflow = sys.modules["tensorflow"]
        flat = [one for one in tensorflow.nest.flatten(result) if getattr(one, "dtype", None) is not None]
        floats = [one for one in flat if hasattr(one, "op") or hasattr(one, "_numpy")]
        finite = [tensorflow.reduce_all(tensorflow.math.is_finite(one)) for one in floats if one.dtype.is_floating]
        if finite:
            name = str(getattr(layer, "path", None) or layer.name)
            step.activations.append((name, tensorflow.reduce_all(tensorflow.stack(finite))))

    # ---- updates -----------------------------------------------------------------------------------------------------

    def _make_apply(self, original: Function) -> Function:
        by_pairs = original.__name__ == "apply_gradients"

        def apply(optimizer: Any, gradients: Any, *arguments: Any, **keywords: Any) -> Any:
            gradients = list(gradients)
            if getattr(self._here, "applies", False):
                return original(optimizer, gradients, *arguments, **keywords)
            self._here.applies = True
            try:
                pairs = self._capture.attempt(_pairs, optimizer, gradients, by_pairs, arguments, keywords)
                if not pairs:
                    return original(optimizer, gradients, *arguments, **keywords)
                done = self._apply(optimizer, pairs, lambda: original(optimizer, gradients, *arguments, **keywords))
            finally:
                self._here.applies = False
            return done if done is not None or not by_pairs else getattr(optimizer, "iterations", None)

        return apply

    def _apply(self, optimizer: Any, pairs: list[tuple[Any, Any]], update: Function) -> Any:
        step = self._steps.current() or self._steps.begin()
        if self._reveals.tracing is not None:
            self._reveals.tracing.take(step, optimizer, pairs)
            return None
        known, one_of_several = self._know(optimizer, pairs), replica()
        if one_of_several is not None:
            return self._apply_together(one_of_several, step, known, pairs, update)
        if all(is_eager(gradient) for gradient, _ in pairs):
            return self._apply_eagerly(step, known, pairs, update)
        try:
            self._apply_in_graph(step, known, pairs, update)
        except Exception as error:
            self._capture.say_once(f"warning: steps are not captured: {type(error).__name__}: {error}")
            return update()
        return None

    def _know(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> Known:
        known = self._known.get(optimizer)
        if known is None:
            known = self._known[optimizer] = Known(optimizer)
            self._order.append(known)
            self._good = []  # of which its variables are no part
        if not known.variables:
            known.variables = [variable for _, variable in pairs]
        if known.first is None:
            known.first = _iterations(optimizer)
        return known

    def _apply_in_graph(self, step: Step, known: Known, pairs: list[tuple[Any, Any]], update: Function) -> None:
        optimizer, gradients = known.optimizer(), [gradient for gradient, _ in pairs]
        _build(optimizer, [variable for _, variable in pairs])
        call = self._current()
        site = Site(known, [variable for _, variable in pairs], step, call)
        if call is not None:
            call.function._reprokit_trains = True
            applies(call, sometimes=_graph() is not step.graph)
        scale = loss_scale(optimizer)
        allowed = None if scale is None else sys.modules["tensorflow"].convert_to_tensor(scale) > 1.0
        test = Test(step, gradients, self._conditions, known.memory, allowed)
        step.moved = len(step.held)
        if in_xla():
            self._expect(site, step)
            flagged(step, test, update, known.memory)
        else:
            if site.model is not None:
                self._hold_metrics(step, site.model)
            before, moved = step.before, [*step.held.values(), *step.updated.values()]
            known.moved.update({key: variable for key, (variable, _) in before.items()})
            self._capture.attempt(step.hold_updated, _updated(known))
            conditional(step, test, update, lambda: self._call_host(site, step, gradients, before), moved)
        step.applied = True

    def _hold_metrics(self, step: Step, model: Any) -> None:
        """Metrics are moved while the host looks at a step."""
        for metric in getattr(model, "metrics", ()):
            for variable in metric.variables:
                self._capture.attempt(step.hold, plain(variable))

    def _apply_together(
        self, replica: Any, step: Step, known: Known, pairs: list[tuple[Any, Any]], update: Function
    ) -> Any:
        """One of several replicas applies gradients that are summed over them."""
        if step.together is None:
            self._capture.say_once("warning: eager steps of several replicas are not captured, only a tf.function's")
            return update()
        if self._conditions.gradient_jump is not None:
            self._capture.say_once("warning: jumps of gradients are not looked for where there are several replicas")
        call, optimizer = self._current(), known.optimizer()
        if call is not None:
            call.function._reprokit_trains = True
            applies(call, sometimes=False)
        step.together.site = Site(known, [variable for _, variable in pairs], step, call)
        scale = loss_scale(optimizer)
        allowed = None if scale is None else sys.modules["tensorflow"].convert_to_tensor(scale) > 1.0
        step.together.take(replica, [gradient for gradient, _ in pairs], self._conditions, allowed)
        step.applied = True
        return update()

    def _apply_eagerly(self, step: Step, known: Known, pairs: list[tuple[Any, Any]], update: Function) -> Any:
        if step.finite is False and step.applied:  # it was captured where another optimizer was to update
            known.skipped += 1
            return None
        finite = self._capture.attempt(self._is_finite, step, known, pairs)
        self._shares(step, known)
        known.moved.update({key: variable for key, (variable, _) in step.held.items()})
        step.moved = len(step.held)
        step.applied = True
        if finite is False:
            step.finite = False
            self._found_eagerly(step, known, pairs)
            return None
        if known.shares:
            self._capture.attempt(step.hold_updated, _updated(known))
        step.passes = True
        try:
            result = update()
        finally:
            step.passes = False
        if step.loss is not None:
            known.losses = [*known.losses, step.loss][-LAST_LOSSES:]
        if self._settings.action == ROLLBACK and getattr(self._here, "call", None) is None:
            self._capture.attempt(self._keep_or_go_back, False)
        self.applied(known.optimizer())
        return result

    def _shares(self, step: Step, known: Known) -> None:
        """Where a further optimizer updates in the same step, what those before it update is held from then on."""
        for other in step.optimizers:
            if other is not known:
                other.shares = True
        step.optimizers.append(known)

    def _is_finite(self, step: Step, known: Known, pairs: list[tuple[Any, Any]]) -> bool:
        """Whether an eager step may be applied."""
        losses = [step.unscaled] if step.unscaled is not None else step.losses
        above = self._conditions.loss_above
        for loss in losses:
            array = as_array(loss)
            worst = float(array) if not array.shape else float(array.astype("float64").sum())
            if worst - worst != 0 and not sys.modules["numpy"].isfinite(array.astype("float64")).all():
                return False
            if above is not None and array.size and float(array.max()) > above:
                return False
        if not all(bool(finite) for _, finite in step.activations):
            return False
        scale = loss_scale(known.optimizer())
        if scale is not None and float(as_array(scale)) > 1.0:
            return True
        return self._are_finite(known, [gradient for gradient, _ in pairs]) and not self._jumps(known, pairs)

    def _are_finite(self, known: Known, gradients: list[Any]) -> bool:
        arrays = [_array(getattr(one, "values", one) if hasattr(one, "indices") else one) for one in gradients]
        if self._library is None or any(array is None for array in arrays):
            step = type("NoStep", (), {"unscaled": None, "losses": [], "activations": []})()
            return bool(Test(step, gradients, type(self._conditions)(), None).in_graph())  # type: ignore[arg-type]
        sizes = [array.nbytes for array in arrays]
        if known.finite[0] != sizes:
            known.finite = sizes, Finite(self._library, sizes, [array.dtype.name for array in arrays])
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        return known.finite[1].first(addresses) is None

    def _jumps(self, known: Known, pairs: list[tuple[Any, Any]]) -> bool:
        from .tensorflow_update import MEMORY, WARM

        factor = self._conditions.gradient_jump
        if factor is None:
            return False
        norm = float(sys.modules["tensorflow"].linalg.global_norm([gradient for gradient, _ in pairs]))
        if known.norms >= WARM and norm > factor * known.mean:
            return True
        known.mean = norm if not known.norms else MEMORY * known.mean + (1 - MEMORY) * norm
        known.norms += 1
        return False

    # ---- what was found ----------------------------------------------------------------------------------------------

    def drew(self, kind: str, drawn: Any) -> Any:
        """An operation with a random state of its own drew this; what it is to give."""
        return self._steps.drew(kind, drawn)

    def _begins(self, step: Step) -> None:
        """An eager step begins."""
        self._stale()
        if getattr(self._here, "call", None) is None:
            self._random.keep()
        step.random = eager_state
        self.begins(step)

    def begins(self, step: Step) -> None:
        """An eager step begins; for who does a step again."""

    def applied(self, optimizer: Any) -> None:
        """An eager step was applied; likewise."""

    def _found_eagerly(self, step: Step, known: Known, pairs: list[tuple[Any, Any]]) -> None:
        found = Found(known.optimizer(), [variable for _, variable in pairs], [gradient for gradient, _ in pairs])
        found.loss = step.loss
        found.held = {key: value for key, (_, value) in step.before.items()}
        found.moved = _variables(step.before)
        found.drawn = step.drawn
        found.activations = [(name, bool(finite)) for name, finite in step.activations]
        found.batches = step.batches or [("loader", value) for value in self._fetched()]
        if not found.batches and getattr(self._here, "call", None) is None:
            found.batches = local_batch(sys._getframe(1))
        if self._conditions.gradient_jump is not None and known.norms:
            found.norm_limit = self._conditions.gradient_jump * known.mean
        pending = self._handle(found, known, sys._getframe(1))
        step.passes = True
        put_back([*step.held.values(), *step.updated.values()])
        step.passes = False
        if pending is not None:
            raise pending
        if self._settings.action == ROLLBACK and getattr(self._here, "call", None) is None:
            self._capture.attempt(self._keep_or_go_back, True)

    def _handle(self, found: Found, known: Known, frame: Any) -> BaseException | None:
        """Complete what was found and have it captured; what is to end the training, if that is to happen."""
        call = self._current()
        self._capture.attempt(self._complete, found, known, call, frame)
        try:
            self.found(found)
        except SystemExit as error:
            return error
        except Exception as error:
            self._capture.say_once(f"warning: no snapshot: {type(error).__name__}: {error}")
        finally:
            known.skipped += 1
        if call is not None:
            call.rolls_back = True
        return None

    def _complete(self, found: Found, known: Known, call: Call | None, frame: Any) -> None:
        iterations = _iterations(found.optimizer, found.held)
        found.step = max(0, (iterations or 0) - (known.first or 0)) + known.skipped
        found.losses = known.last_losses()
        found.random, found.eager = self._random.kept(), eager_state()
        found.optimizers = [one for one in (entry.optimizer() for entry in self._order) if one is not None]
        if call is None or call.model is None:
            found.others = [plain(variable) for entry in self._order if entry is not known for variable in entry.alive]
        if call is not None:
            found.model = call.model
            if call.origin == "function":
                self._add_window(found, call)
        found.where = places(frame)
        found.epoch, found.steps_in_epoch = in_fit(frame)
        if not found.batches:
            found.notes.append("the batch is not known: nothing was fetched from a data set, and no function called")

    def _add_window(self, found: Found, call: Call) -> None:
        """The batches whose gradients were added up, and the state before the first of them."""
        window = call.window
        earlier = [] if window is None else [one for one in window.calls if one.arguments or one.keywords]
        if not found.batches and (call.arguments or call.keywords or not earlier):
            found.batches = [("script", _one(call.arguments, call.keywords))]
        found.batches = [*[("script", _one(one.arguments, one.keywords)) for one in earlier], *found.batches]
        if window is not None and window.calls:
            found.held = {**found.held, **window.before}
            found.moved = [*found.moved, *[one for call in window.calls for one in written(call).values()]]
            found.unreadable = [*found.unreadable, *unread(window.calls)]

    def found(self, found: Found) -> None:
        """Save a step that must not be applied, and say so; raises SystemExit where the training is to end."""
        triggers = found.triggers(self._conditions)
        saved = self._capture.attempt(found.contents, self._conditions)
        path = None if saved is None else self._capture.save(*saved)
        self._capture.captured(found.step, in_words(triggers[0]) if triggers else "it is not finite", path)

    # In graphs

    def _call_host(self, site: Site, step: Step, gradients: list[Any], before: dict[int, tuple[Any, Any]]) -> None:
        """In a graph, where a step must not be applied: hand all that a snapshot needs to a function on the host."""
        held = {str(key): value for key, (_, value) in before.items()}
        site.moved = before
        batches = step.batches or _batch_in_graph()
        seen = {
            "gradients": gradients,
            "loss": step.loss,
            "batches": [value for _, value in batches],
            "held": held,
            "activations": [finite for _, finite in step.activations],
        }
        seen["drawn"] = site.drawn()
        origins = [origin for origin, _ in batches]
        loops = _in_loop()

        def on_host(seen: dict[str, Any]) -> None:
            found = self._of_site(site, seen, list(zip(origins, seen["batches"])))  # noqa: B905
            found.held = {int(key): value for key, value in seen["held"].items()}
            self._end_behind(site, found, loops=loops)

        _call(on_host, seen)

    def _call_host_together(self, strategy: Any, together: Round) -> None:
        """The same behind the run of several replicas, with the batches of those of this process."""
        step, site, number, loops = together.step, together.site, worker(strategy), _in_loop()
        if step is None:
            return
        origins = [origin for origin, _ in step.batches]
        seen = {
            "gradients": together.gradients,
            "loss": together.shares[0].loss,
            "where": together.shares[0].where,
            "batches": [value for _, value in step.batches],
            "held": {str(key): value for key, (_, value) in step.held.items()},
            "activations": [finite for _, finite in step.activations],
            "drawn": site.drawn(),
        }

        def on_host(seen: dict[str, Any]) -> None:
            found = self._of_site(site, seen, list(zip(origins, seen["batches"])))  # noqa: B905
            found.held = {int(key): value for key, value in seen["held"].items()}
            found.norm_limit, found.place = None, number
            found.notes.append(OF_THE_FIRST)
            found.only_in = int(seen["where"])
            found.replicas = [share.number for share in together.shares]
            self._end_behind(site, found, loops=loops)

        _call(on_host, seen)

    def _of_site(self, site: Site, seen: dict[str, Any], batches: list[tuple[str, Any]]) -> Found:
        found = Found(site.known.optimizer(), site.variables, seen["gradients"])
        found.loss, found.batches = seen["loss"], batches
        found.activations = [(name, bool(one)) for name, one in zip(site.activations, seen["activations"])]  # noqa: B905
        found.drawn = list(zip(site.draws, seen.get("drawn", ())))  # noqa: B905
        found.unreadable = self._capture.attempt(lambda: site.unreadable) or []
        found.moved = _variables(site.moved)
        if self._conditions.gradient_jump is not None:
            mean, _ = as_array(site.known.memory.norms).tolist()
            found.norm_limit = self._conditions.gradient_jump * mean
        return found

    def _end_behind(self, site: Site, found: Found, *, loops: bool) -> None:
        """Handle what was found; the training ends when its call has come back, or at once where a graph loops."""
        call = self._current()
        if call is not None and not loops and call.captured is site.step:  # where another optimizer was to update
            site.known.skipped += 1
            return
        if call is not None:
            call.captured = site.step
        frame = None if call is None else sys._current_frames().get(call.thread)
        pending = self._handle(found, site.known, frame)
        if pending is None:
            return
        if found.place is not None:
            wait_for_workers()
        if call is None:
            raise pending
        call.pending = pending
        if loops:
            raise RuntimeError("the step was captured, and no further one is taken")

    def _expect(self, site: Site, step: Step) -> None:
        """Behind the call of the outermost function that XLA compiles, its flag is to be looked at."""
        compiled = getattr(self._here, "compiled", None)
        if compiled is None:
            raise RuntimeError("a function compiled by XLA was built by no call of it")
        site.moved = step.held
        sites = vars(compiled).setdefault("_reprokit_sites", [])
        sites[:] = [one for one in sites if one.known is not site.known] + [site]
        compiled._reprokit_reader = None

    def _before(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Before | Stretch:
        """What the variables that a compiled function updates have before it is called. They share the memory.

        Or the stretch that holds them.
        """
        if "_reprokit_sites" not in vars(function):
            self._capture.attempt(self._trace, function, arguments, keywords)
            function.__dict__.setdefault("_reprokit_sites", [])
        reader = vars(function).get("_reprokit_reader")
        if reader is None:
            reader = function._reprokit_reader = Reader(_moved_by(function))
        stretch = self._stretch(function, arguments, keywords) if reader.are_here else None
        return reader.read() if stretch is None else stretch

    def _stretch(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Stretch | None:
        """The stretch of the calls that the graph being built makes: one whenever Keras runs it; else None."""
        call, graph, sites = self._current(), _graph(), function._reprokit_sites
        if call is None or call.origin != "fit" or self.holds_each or len(sites) != 1 or replica() is not None:
            return None
        is_outermost = type(graph).__name__ == "FuncGraph" and type(graph.outer_graph).__name__ != "FuncGraph"
        if not is_outermost or _in_loop() or sites[0].unreadable or not can_be_kept(arguments, keywords):
            return None
        known = getattr(call.function, "_reprokit_stretch", None)
        if known is not None and known.function is not function:
            known.only_one = True
            return None
        if known is None:
            known = Stretch(function, sites[0], _moved_by(function), self._call_bare)
            if not known.begins():
                return None
            call.function._reprokit_stretch = known
            self._stretches.add(known)
        known.site = sites[0]
        known.take(arguments, keywords)
        return known

    def _trace(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Have a function's graph built before it is called, so that it is known what it updates."""
        self._here.compiled = function
        try:
            function.get_concrete_function(*arguments, **keywords)
        finally:
            self._here.compiled = None

    def _look(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], before: Before) -> None:
        """Behind a call of a compiled function from eager code."""
        for site in function._reprokit_sites:
            if site.known.memory.is_flagged():
                for variable, value in before.pairs():
                    put_variable(variable, value)
                self._revealed(site, function, arguments, keywords, loops=False)

    def _look_in_graph(
        self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], before: Before
    ) -> None:
        """Behind a call of a compiled function from a graph that is being built."""
        tensorflow, loops = sys.modules["tensorflow"], _in_loop()
        for site in function._reprokit_sites:

            def host(site: Site = site) -> Any:
                def on_host(seen: dict[str, Any]) -> None:
                    self._revealed(site, function, tuple(seen["arguments"]), seen["keywords"], loops=loops)

                put_back(before.pairs())
                put = [one for one in _graph().get_operations() if one.type == "AssignVariableOp"]
                with tensorflow.control_dependencies(put):
                    _call(on_host, {"arguments": list(arguments), "keywords": keywords})
                return tensorflow.constant(0)

            flag = site.known.memory.flag.read_value()
            tensorflow.cond(flag > 0.0, host, lambda: tensorflow.constant(0))

    def _revealed(
        self,
        site: Site,
        function: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        loops: bool,
        problem: str = "",
    ) -> None:
        put_variable(site.known.memory.flag, 0.0)
        optimizer = site.known.optimizer()
        seen = self._capture.attempt(self._reveals.of, function, arguments, keywords, optimizer)
        note = "the step was compiled by XLA; its gradients were computed once more to be kept"
        if seen is None:
            seen = {"gradients": [None] * len(site.variables), "loss": None, "activations": []}
            note = "the gradients could not be computed once more"
        found = self._of_site(site, seen, [("fit" if site.model is not None else "script", _one(arguments, keywords))])
        found.notes += [note, problem] if problem else [note]
        self._end_behind(site, found, loops=loops)

    # ---- going back --------------------------------------------------------------------------------------------------

    def _keep_or_go_back(self, goes_back: bool) -> None:
        """Go back to the state that was kept last, or keep the present one where it is time to."""
        if goes_back:
            for variable, value in self._good:
                put_variable(variable, value)
            return
        self._since += 1
        if not self._good or self._since >= self._settings.rollback_every:
            self._since = 0
            self._good = [(variable, read(variable)) for variable in self._all_variables()]

    def _all_variables(self) -> list[Any]:
        found: dict[int, Any] = {}
        for known in self._order:
            optimizer = known.optimizer()
            if optimizer is not None:
                for variable in [*known.variables, *optimizer_variables(optimizer)]:
                    found[resource_id(variable)] = plain(variable)
        return list(found.values())


def _updated(known: Known) -> list[Any]:
    """What an optimizer's update writes to."""
    return [*known.variables, *optimizer_variables(known.optimizer())]


def _variables(held: dict[int, tuple[Any, Any]]) -> list[Any]:
    return [variable for variable, _ in held.values()]


def _call_nothing(*_arguments: Any, **_keywords: Any) -> None:
    """Before TensorFlow is there."""


def _run_plain(call: Call, arguments: tuple[Any, ...], _keywords: dict[str, Any]) -> Any:
    return call.function(*arguments)


def _runs(call_function: Function) -> Function:
    return lambda call, arguments, keywords: call_function(call.function, arguments, keywords)


def _moved_by(function: Any) -> list[Any]:
    """All variables that a compiled function writes to."""
    found: dict[int, Any] = {}
    for site in function._reprokit_sites:
        found.update(_by_id([*site.variables, *optimizer_variables(site.known.optimizer()), *_variables(site.moved)]))
    return list(found.values())


def _by_id(variables: list[Any]) -> dict[int, Any]:
    return {resource_id(variable): plain(variable) for variable in variables}


def _library(path: str | None) -> Any:
    from ..trail import Library

    return None if path is None else Library(path)


def _classes(module: ModuleType) -> list[type]:
    return [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]


def _graph() -> Any:
    return sys.modules["tensorflow.python.framework.ops"].get_default_graph()


def in_xla() -> bool:
    """Whether the graph that is being built is compiled by XLA."""
    utilities = sys.modules["tensorflow.python.ops.control_flow_util"]
    return bool(utilities.GraphOrParentsInXlaContext(_graph()))


def _in_loop() -> bool:
    """Whether the graph that is being built is, or is within, the body of a loop or of a data set's reduction."""
    graph = _graph()
    while graph is not None:
        name = str(getattr(graph, "name", ""))
        if "while" in name or "educe" in name or "While" in type(graph).__name__:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _batch_in_graph() -> list[tuple[str, Any]]:
    """What was fetched last in the graph that is being built or in those around it."""
    graph = _graph()
    while graph is not None:
        if hasattr(graph, "_reprokit_batch"):
            return [("loader", graph._reprokit_batch)]
        if any(word in str(getattr(graph, "name", "")).lower() for word in _OVER_DATA):
            captured = set(map(id, graph.internal_captures))
            return [("loader", [one for one in graph.inputs if id(one) not in captured])]
        graph = getattr(graph, "outer_graph", None)
    return []


def _call(on_host: Function, seen: Any) -> None:
    """In a graph: call a function on the host with the values of all tensors in a nested value."""
    tensorflow = sys.modules["tensorflow"]
    nest = tensorflow.nest
    flat = nest.flatten(seen, expand_composites=True)
    places = [place for place, one in enumerate(flat) if _can_be_handed(tensorflow, one)]

    def call(*given: Any) -> None:
        values = list(flat)
        for place, value in zip(places, given):  # noqa: B905
            values[place] = value
        on_host(nest.pack_sequence_as(seen, values, expand_composites=True))

    tensorflow.py_function(call, [flat[place] for place in places], [])


def _can_be_handed(tensorflow: Any, one: Any) -> bool:
    is_tensor = isinstance(one, tensorflow.Tensor) or hasattr(one, "handle")
    return is_tensor and one.dtype not in (tensorflow.resource, tensorflow.variant)


def _pairs(
    optimizer: Any, gradients: list[Any], by_pairs: bool, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> list[tuple[Any, Any]]:
    """The gradients that there are, each with its variable."""
    if by_pairs:
        return [(gradient, variable) for gradient, variable in gradients if gradient is not None]
    variables = (arguments and arguments[0]) or keywords.get("trainable_variables") or optimizer._trainable_variables
    return [(gradient, variable) for gradient, variable in zip(gradients, variables) if gradient is not None]  # noqa: B905


def _iterations(optimizer: Any, held: dict[int, Any] | None = None) -> int | None:
    counter = getattr(optimizer, "_iterations", None)
    counter = getattr(getattr(optimizer, "inner_optimizer", None), "_iterations", counter)
    try:
        return int(as_array(held_or_now(counter, held or {})))
    except Exception:  # not built
        return None


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Have an optimizer of Keras 3 make its variables, where it would itself: outside of the condition."""
    module = sys.modules.get("keras.src.backend")
    if module is None or getattr(optimizer, "built", True) or not hasattr(optimizer, "_tracker"):
        return
    with module.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.built = True


def _is_of_keras(fn: Any) -> bool:
    return str(getattr(fn, "__module__", "")).startswith(("keras.", "tf_keras.", "tensorflow.python.keras."))


def _one(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The arguments of a call as one value: the only one as it is."""
    if len(arguments) == 1 and not keywords:
        return arguments[0]
    return [*arguments, keywords] if keywords else tuple(arguments)


__all__ = ["Call", "Captured", "Found", "TensorFlowCapture"]
