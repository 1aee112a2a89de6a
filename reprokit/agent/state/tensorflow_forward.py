"""Fast-forwards a replay of a training by TensorFlow or Keras to a keyframe: compiled functions give what they gave.

All else runs as it is: loops, callbacks, generators, and the iterators from which these functions fetch batches. The
log has what each call returned, and the small variables that it changed, as those of metrics: losses are the
recording's, and a script that stops or schedules by them goes the recording's way. At the keyframe all variables are
put in.

Where a loop updates eagerly, layers and gradient tapes give their first results again, and updates do nothing: of what
such a loop computes the small variables are the recording's, and losses are not.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from functools import partial

from ..capture.tensorflow_restore import array_of
from ..core.signal_errors import pass_on
from ..events.steps import (
    DifferentiationDue,
    ExecutionDue,
    GradientsApplied,
    GradientsDue,
    LayerDue,
    UpdateDone,
    tell,
)
from ..tensorflow import private_api
from ..tensorflow.tensors import value, view
from ..tensorflow.trail import TensorflowTrail
from ..tensorflow.training_state import as_array, put_variable
from .call_log import calls_in
from .fast_forward import AllNames, open_keyframe, refuse, restored
from .keyframe_files import hexadecimal
from .script_variables import VariableSetter
from .tensorflow_calls import (
    FunctionCalls,
    RegisteredVariables,
    content_of,
    iterators_in,
    leaves_of,
    tensor_of,
    with_content,
    with_leaves,
)
from .tensorflow_eager import EagerUpdates, FirstEagerResults
from .tensorflow_keyframes import SCRIPT, UNCHANGED, VARIABLES
from .tensorflow_variables import TensorflowVariables
from .unheld_variables import UnheldVariables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent
    from .call_log import LoggedCall, Tensor
    from .tensorflow_calls import WatchedFunction

    Function = Callable[..., Any]
    Given = tuple[tuple[Any, ...], dict[str, Any]]  # arguments and keywords

_RUNNING = "builtins.generator"  # a thread of a data set may be within it; it ran as it is


def listener(agent: Agent, question: Mapping[str, Any], _framework: str, events: Events) -> TensorflowForward | None:
    """Return the listener that fast-forwards this process's training."""
    if question.get("debug"):
        agent.shared[UnheldVariables] = UnheldVariables()
    return TensorflowForward(agent, question["from_keyframe"], events) if agent.generation == 0 else None


class OtherPath(Exception):
    """What a replay did otherwise than its recording, so that the log of calls does not fit."""


class TensorflowForward:
    """Leaves compiled functions out until the keyframe, and puts its state in."""

    def __init__(self, agent: Agent, asked: Mapping[str, Any], events: Events) -> None:
        self._agent, self._events, self._thread = agent, events, get_ident()
        self._registered = RegisteredVariables.of(agent)
        self._calls = FunctionCalls(self._registered, self._make)
        self._eager, self._results = EagerUpdates(self._registered, self._calls), FirstEagerResults()
        self._logged = 0  # records that were used
        self._unheld: UnheldVariables | None = agent.shared.get(UnheldVariables)
        self._asked, self._updates, self._count = asked, int(asked["updates"]), 0
        self.is_skipping = False
        try:
            self._file = open_keyframe(agent, asked)
            self._records = calls_in(self._file.draws)
        except Exception as error:
            refuse(agent, str(error))
            raise
        # Another process, which takes no steps, has no such log.
        self.is_skipping = self._file.process == agent.journal.identity
        os.register_at_fork(after_in_child=self._end)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            DifferentiationDue: self._differentiation_due,
            ExecutionDue: self._execution_due,
            GradientsDue: self._gradients_due,
            LayerDue: self._layer_due,
            UpdateDone: self._updated,
        }

    def failed(self, error: Exception, _handler: Handler) -> None:
        """End the replay: nothing after a state that was put in by half is an answer."""
        self._end()
        refuse(self._agent, str(error) if isinstance(error, OtherPath) else f"{type(error).__name__}: {error}")

    def _execution_due(self, event: ExecutionDue) -> None:
        if self.is_skipping:
            self._calls.execution_due(event)

    def _set_trail(self, *, is_suspended: bool) -> None:
        trail = self._agent.shared.get(TensorflowTrail)
        if trail is not None:
            trail.is_suspended = is_suspended

    def _end(self) -> None:
        self.is_skipping = False
        self._set_trail(is_suspended=False)

    # Eager loops

    def _is_eager(self) -> bool:
        return self.is_skipping and get_ident() == self._thread and private_api.executing_eagerly()

    def _layer_due(self, event: LayerDue) -> None:
        if self._is_eager():
            call = event.call
            event.call = lambda layer, *arguments, **keywords: self._results.of_layer(
                call, lambda: self._logged, layer, arguments, keywords
            )

    def _differentiation_due(self, event: DifferentiationDue) -> None:
        if self._is_eager():
            call = event.call
            event.call = lambda tape, target, sources, *arguments, **keywords: self._results.of_tape(
                call, tape, target, sources, arguments, keywords
            )

    def _gradients_due(self, event: GradientsDue) -> None:
        """Leave an update out, but for the first one, in which its optimizer makes variables."""
        if self._is_eager():
            self._set_trail(is_suspended=True)
            if self._results.may_skip(event.optimizer, [variable for _, variable in event.pairs]):
                applied = GradientsApplied(event.optimizer, event.pairs)
                event.update = partial(tell, self._events.gradients_applied, applied)

    # Calls

    def _make(self, call: Function, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make a call, or give what it gave; what goes wrong with that ends the replay, and the call is made."""
        self._set_trail(is_suspended=True)
        watched = self._calls.of(function)
        if watched.is_pure:  # or it is unknown: the first call builds its graph
            result = call(function, *arguments, **keywords)
            self._calls.built(function)
            return result if watched.is_pure else self._given(result, self._next_of, watched, result)
        return self._again(call, function, (arguments, keywords), watched)

    def _attempt(self, function: Function, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            self.failed(error, self._updated)
            pass_on(error)
            return None

    def _given(self, made: Any, function: Function, *arguments: Any) -> Any:
        """Return what a function gives, or what the call made if it fails; tensors have no truth value."""
        given = self._attempt(function, *arguments)
        return made if given is None else given

    def _again(self, call: Function, function: Any, given: Given, watched: WatchedFunction) -> Any:
        record = self._attempt(self._next, watched)
        template = None if record is None or record.is_made else watched.templates.get(_layout(record.tensors))
        if template is None:
            result = call(function, *given[0], **given[1])
            self._calls.built(function)
            return result if record is None else self._given(result, self._give, watched, record, result)
        for iterator in iterators_in(given) if watched.batches else ():
            private_api.fetch(iterator)
        return self._attempt(self._give, watched, record, template)

    def _next_of(self, watched: WatchedFunction, result: Any) -> Any:
        return self._give(watched, self._next(watched), result)

    def _next(self, watched: WatchedFunction) -> LoggedCall:
        """Return the next record of the log, which must be of this function."""
        record = next(self._records, None)
        if record is None:
            raise OtherPath(f"the script calls functions oftener than its recording, {watched.name} at last")
        if (record.function, record.name) != (watched.number, watched.name):
            raise OtherPath(f"the script calls {watched.name} where its recording calls {record.name}")
        self._logged += 1
        return record

    def _give(self, watched: WatchedFunction, record: LoggedCall, result: Any) -> Any:
        """Return a result like this one, with the tensors that are in the log, and put the small variables in."""
        content = content_of(result)
        leaves = leaves_of(content)
        own = [tensor_of(leaf) for leaf in leaves]
        if _layout(own) != _layout(record.tensors):
            raise OtherPath(f"{watched.name} returns other tensors than in its recording")
        watched.templates[_layout(own)] = result
        self._put_small(record)
        constant = sys.modules["tensorflow"].constant
        for place, tensor in enumerate(record.tensors):
            if tensor is not None and tensor[2] is not None:
                array = view(leaves[place])
                kept = sys.modules["numpy"].frombuffer(tensor[2], array.dtype).reshape(array.shape)
                leaves[place] = constant(kept)
        return with_content(result, with_leaves(content, leaves))

    def _put_small(self, record: LoggedCall) -> None:
        for number, data in record.variables.items():
            variable = self._registered.get(number)
            array = None if variable is None else view(value(variable))
            if array is None or array.nbytes != len(data):
                raise OtherPath(f"the script has no such variable as number {number} of its recording")
            put_variable(variable, sys.modules["numpy"].frombuffer(data, array.dtype).reshape(array.shape))

    # Steps

    def _updated(self, event: UpdateDone) -> None:
        if not self.is_skipping:
            return
        if event.optimizer.is_eager:
            record = self._next(self._eager.of(event.optimizer.optimizer))
            self._eager.put_back(record.tensors)
            self._put_small(record)
        self._count += 1
        if self._count == 1 and self._unheld is not None:
            self._unheld.note(sys._getframe())
        if self._count < self._updates:
            return
        if next(self._records, None) is not None:
            raise OtherPath("the script calls functions less often than its recording")
        self._end()
        self._put_in()
        restored(self._agent, self._asked, self._file)

    def _put_in(self) -> None:
        """Put all of the keyframe's state in."""
        state = self._file.state
        alive = dict(self._registered.alive())
        kept, unchanged = state[VARIABLES], state[UNCHANGED]
        names = {number: str(variable.name) for number, variable in alive.items()}
        missing = [name for number, name, _ in (*kept, *unchanged) if names.get(number) != name]
        if missing:
            raise OtherPath(f"the script has no variable {missing[0]} as its recording has")
        for number, name, key in kept:
            array, own = array_of(self._file.tensors[key]), as_array(alive[number])
            if (array.dtype, array.shape) != (own.dtype, own.shape):
                raise OtherPath(f"{name} has another type or shape than in its recording")
            put_variable(alive[number], array)
        for number, name, digest in unchanged:
            if self._digest(as_array(alive[number])) != digest:
                raise OtherPath(f"{name}, which never changes in its recording, has changed")
        rows = [[head, tail, settled] for head, tail, node in state[SCRIPT] for settled in [_settled(node)] if settled]
        if self._unheld is not None:
            self._unheld.look(rows, sys._getframe())
        setter = VariableSetter(TensorflowVariables(alive.values(), self._file), AllNames())
        setter.restore(rows, sys._getframe())

    def _digest(self, array: Any) -> str:
        return hexadecimal(self._file.library.digest(array.__array_interface__["data"][0], array.nbytes, 0))


def _layout(tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
    return tuple([tensor and tensor[:2] for tensor in tensors])


def _settled(node: Any) -> Any:
    """Return a node of a variable without functions that are generators; None if nothing is left of it."""
    ((kind, content),) = node.items()
    if kind == "object" and content[0] == _RUNNING:
        return None
    if kind == "object":
        pairs = [[name, settled] for name, child in content[1] for settled in [_settled(child)] if settled]
        return {"object": [content[0], pairs]} if pairs else None
    if kind == "dict":
        return {"dict": [[key, _settled(child) or {"left_out": ""}] for key, child in content]}
    if kind in ("list", "tuple", "deque", "values"):
        return {kind: [_settled(child) or {"left_out": ""} for child in content]}
    return node
