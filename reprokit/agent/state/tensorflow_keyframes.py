"""Keeps keyframes of a training by TensorFlow or Keras: all of its variables, and those of its script.

Beside them each outermost call of a compiled function is logged, with what it returned: a replay that leaves calls out
gives that again. So are the updates of eager loops, with the small variables that changed until then. What draws from
generators, fetches batches or is Python is not left out, and needs no keyframe.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from ..capture import trees
from ..capture.store import DTYPES
from ..capture.tensorflow_state import TensorCollector
from ..core.live_objects import LiveObjects
from ..core.signal_errors import pass_on
from ..events.steps import BackwardBegan, ExecutionDue, OptimizerMade, UpdateDone, UpdateDue
from ..tensorflow import private_api
from ..tensorflow.trail import TensorflowTrail
from ..tensorflow.training_state import as_array
from .call_log import MAX_COUNT, packed
from .keyframe_files import hexadecimal
from .keyframes import MAX_LACKS, Keyframes
from .script_variables import VariableReader
from .tensorflow_calls import FunctionCalls, RegisteredVariables, content_of, iterators_in, leaves_of, tensor_of
from .tensorflow_eager import EagerUpdates
from .tensorflow_variables import TensorflowVariables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent
    from .call_log import Tensor
    from .keyframes import LargeVariables
    from .tensorflow_calls import WatchedFunction

VARIABLES, SCRIPT, UNCHANGED = "tensorflow variables", "variables", "unchanged"  # of a keyframe's state


def listener(agent: Agent, question: Mapping[str, Any], _framework: str, _events: Events) -> TensorflowKeyframes:
    """Return the listener that keeps keyframes of this process's training."""
    return TensorflowKeyframes(agent, question["keyframes"])


class ChangingTensors(TensorflowVariables):
    """The tensors and arrays of a script, without variables, and without the large ones that never change."""

    def __init__(self, variables: Iterable[Any], large: LargeVariables) -> None:
        super().__init__(variables)
        self._large = large

    def is_left_out(self, value: Any) -> bool:
        if super().is_left_out(value):
            return True
        array = as_array(value)
        return self._large.is_unchanged(array, array.nbytes, id(value))


class TensorflowKeyframes(Keyframes):
    """Keeps the keyframes of a TensorFlow training in this process."""

    def __init__(self, agent: Agent, asked: dict[str, Any]) -> None:
        self._registered = RegisteredVariables.of(agent)
        super().__init__(agent, asked, "tensorflow")

    def forget(self) -> None:
        super().forget()
        self._calls = FunctionCalls(self._registered, self._make)
        self._eager = EagerUpdates(self._registered, self._calls)
        self._optimizers = LiveObjects()
        self._last: dict[int, bytes] = {}  # values of small variables, as the log has them
        self._hindrances: list[str] = []
        self._optimizer: Any = None  # of the last update
        self._thread = get_ident()
        self._has_called = False  # whether a compiled function was called since the last update

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            BackwardBegan: self._backward_began,
            ExecutionDue: self._execution_due,
            OptimizerMade: self._optimizer_made,
            UpdateDue: self._update_due,
            UpdateDone: self._updated,
        }

    def _optimizer_made(self, event: OptimizerMade) -> None:
        self._optimizers.add(event.target)
        self._tensor_steps.expect(event.target)

    def _backward_began(self, _event: BackwardBegan) -> None:
        if private_api.executing_eagerly():
            self._tensor_steps.begin_backward()

    def _update_due(self, event: UpdateDue) -> None:
        if event.optimizer.optimizer is not None:
            self._tensor_steps.begin_backward()

    def _execution_due(self, event: ExecutionDue) -> None:
        self._calls.execution_due(event)

    # The log of calls

    def _make(
        self, call: Callable[..., Any], function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        result, is_returned = None, False
        try:
            result = call(function, *arguments, **keywords)
            is_returned = True
        finally:
            if not self._has_ended:
                try:
                    self._log(function, (arguments, keywords), result, is_returned=is_returned)
                except Exception as error:
                    self.failed(error, self._updated)
                    pass_on(error)
        return result

    def _log(self, function: Any, arguments: Any, result: Any, *, is_returned: bool) -> None:
        """Log a call, unless its function captures nothing: such a function is called by a replay, too."""
        self._has_called = True
        is_new, watched = self._calls.built(function), self._calls.of(function)
        if watched.is_pure or not self._has_room():
            return
        if is_new and len(iterators_in(arguments)) != watched.batches:
            self._hindrances.append(f"its function {watched.name} is not given what it fetches batches from")
        leaves = leaves_of(content_of(result)) if is_returned else []
        if len(leaves) > MAX_COUNT:
            self._hindrances.append(f"its function {watched.name} returns more than {MAX_COUNT} tensors")
            leaves = []
        is_made = is_new or not is_returned or private_api.is_watched()
        self._record(watched, [tensor_of(leaf) for leaf in leaves], is_made=is_made)

    def _record(self, watched: WatchedFunction, tensors: list[Tensor | None], *, is_made: bool = False) -> None:
        changed = {number: data for number, data in self._calls.small_values(watched) if self._last.get(number) != data}
        self._last.update(changed)
        name = "" if watched.is_listed else watched.name
        watched.is_listed = True
        self._draws += packed(watched.number, name, tensors, changed, is_made=is_made)

    # Steps

    def _updated(self, event: UpdateDone) -> None:
        if self._has_ended:
            return
        self._updates += 1
        self._note_step(event.optimizer)
        self._tensor_steps.updated(event.optimizer)
        if event.optimizer.is_eager and event.optimizer.optimizer is not None and self._has_room():
            self._record(self._eager.of(event.optimizer.optimizer), self._eager.drawn())
        if not self._window.updated(event.optimizer, self._optimizers):
            return
        if self._large.is_first:
            self._read()
            self._large.is_first = False
        if self._interval.is_due(self._window.step):
            self._keep()

    def _note_step(self, step: Any) -> None:
        """Note what hinders a fast-forward to the steps from here on."""
        reasons = {
            "Keras executes its steps eagerly, outside of compiled functions": not self._has_called
            and hasattr(step.model, "weights"),
            "several threads train": get_ident() != self._thread,
            "its model has no optimizer of its own, by which steps are known": step.optimizer is None,
        }
        self._hindrances += [why for why, applies in reasons.items() if applies and why not in self._hindrances]
        self._optimizer, self._has_called = step.optimizer, False

    # A keyframe

    def _read(self) -> tuple[TensorCollector, dict[str, Any], bool]:
        """Return the tensors of the state, the state, and whether some of the script's variables were left out."""
        collector, alive = TensorCollector(), dict(self._registered.alive())
        state: dict[str, Any] = {VARIABLES: [], UNCHANGED: []}
        for number, variable in alive.items():
            name, array = str(variable.name), as_array(variable)
            if array.dtype.name not in DTYPES:
                collector.notes.append(f"{name}, whose data type is {array.dtype.name}")
            elif self._large.is_unchanged(array, array.nbytes, number):
                state[UNCHANGED].append([number, name, hexadecimal(self._large.digest(number))])
            elif not self._large.is_first:
                state[VARIABLES].append([number, name, collector.tensor(f"variable.{number}", array)])
        access = ChangingTensors(alive.values(), self._large)
        reader = VariableReader(access, list(self._optimizers), self._instances)
        state[SCRIPT] = [
            [head, tail, trees.with_leaves(node, lambda leaf: collector.value(SCRIPT, leaf))]
            for head, tail, node in reader.read(sys._getframe())
        ]
        return collector, state, reader.is_bounded

    def _keep(self) -> None:
        collector, state, is_bounded = self._read()
        size = sum(part.nbytes for part in collector.parts)
        self._require_room(size)
        for part in collector.parts:
            self._put(part)
        lacks = collector.notes[:MAX_LACKS]
        if is_bounded:
            lacks.append("some of the script's variables, as they are too many or too large")
        trail = self._agent.shared.get(TensorflowTrail)
        series = {} if trail is None else trail.counts(self._optimizer)
        self._complete(state, series, lacks, self._hindrance(), size)

    def _hindrance(self) -> str:
        """Return why no fast-forward leads to the keyframe; empty if one may."""
        if not self._has_room():
            return "the log of what its functions returned is full"
        return next(iter([*self._calls.hindrances, *self._hindrances, *self._not_in_turn()]), "")
