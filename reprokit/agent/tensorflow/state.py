"""Records of models and optimizers whose tensors are variables of TensorFlow or Keras.

The records refer only to the variables, and only while their owner lives: no lifetime is extended and no cycle arises.
A graph of TensorFlow 1 can be read only through a session, so for it the last digests are stored instead.
"""

from __future__ import annotations

import sys
import weakref
from _thread import _local

from ..core.digests import distinct
from ..events.steps import ModelEnded, OptimizerEnded, tell
from . import private_api
from .tensors import NotReadableError, entry, name_of, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..core.digests import Tensor
    from ..events.steps import Events

    Function = Callable[..., Any]


class VariablesRecord:
    """The record of one model or optimizer: its variables."""

    def __init__(self, owner: Any, name: str, kind: str, variables_of: Callable[[Any], list[Any]]) -> None:
        self.name = name
        self.kind = kind
        self.steps: int | None = None
        self.ended = False
        self._owner = weakref.ref(owner)
        self._variables_of = variables_of
        self._variables: list[Any] = []
        self._counter: Any = None  # the variable that counts an optimizer's steps
        self._last_digests: list[Tensor] | None = None

    @property
    def empty(self) -> bool:
        """Whether there are no variables, as in a model that was never built."""
        return not self._variables

    @property
    def of_graph(self) -> bool:
        """Whether the variables are in a graph and can be read only through a session."""
        return any(map(private_api.is_of_graph, self._variables))

    def refresh(self) -> None:
        """Update the list of variables; in another graph the owner has none, and the list is kept."""
        owner = self._owner()
        if owner is not None:
            self._variables = self._variables_of(owner) or self._variables
            self._counter = private_api.counter(owner, self._counter)

    def tensors(self) -> list[Tensor]:
        """Return the current digests, or the last ones if the variables cannot be read."""
        counters = [] if self._counter is None else [self._counter]
        try:
            values = read(self._variables + counters)
        except NotReadableError:
            if self._last_digests is None:
                raise
            return self._last_digests
        if counters:
            self.steps = int(values.pop())
        names = map(name_of, self._variables)
        self._last_digests = distinct(entry(name, value) for name, value in zip(names, values))
        return self._last_digests


class OptimizerStep:
    """A step of an optimizer, as reported to listeners."""

    __slots__ = ("arguments", "is_eager", "model", "name", "optimizer", "other_variables", "results", "steps")

    def __init__(
        self, optimizer: Any, model: Any, results: Any = None, *, is_eager: bool = False, others: Sequence[Any] = ()
    ) -> None:
        self.optimizer = optimizer
        self.model = model  # what it trains: an object with weights, or a list of variables
        self.results = results  # what the step returned
        self.other_variables = others  # other variables that a function reads
        self.is_eager = is_eager  # a step of an eager loop of the script
        # The arguments of the function. A handler may replace them; None ends the epoch of fit.
        self.arguments: tuple[Any, ...] | None = ()
        self.name, self.steps = "", 0  # name and step count of the optimizer, set by the trail


class VariableRecords:
    """The records of all models and optimizers of this process; reports their end."""

    def __init__(self, agent: Agent, events: Events) -> None:
        self._agent, self._events = agent, events
        self._thread = _local()
        self.forget()

    def forget(self) -> None:
        """Drop the records of the parent process in a forked child."""
        self._by_owner: weakref.WeakKeyDictionary[Any, list[VariablesRecord]] = weakref.WeakKeyDictionary()
        self._unread: list[VariablesRecord] = []  # records of deleted owners that could not be read yet

    def __contains__(self, owner: object) -> bool:
        return owner in self._by_owner

    # Framework calls may call each other; only the outermost is reported.

    @property
    def nested(self) -> bool:
        """Whether the current call is within another call of the framework, such as evaluate within fit."""
        return getattr(self._thread, "call", False)

    def outermost(self, function: Function, *arguments: Any, **keywords: Any) -> Any:
        """Make an outermost call; calls within it are nested."""
        self._thread.call = True
        try:
            return function(*arguments, **keywords)
        finally:
            self._thread.call = False

    # Models and optimizers

    def of(self, model: Any) -> list[VariablesRecord]:
        """Return the up-to-date records of a Keras model and its optimizer."""
        records = [self._record(model, "model", lambda owner: list(owner.weights))]
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            records.append(self.optimizer(optimizer))
        for record in records:
            record.refresh()
        return records

    def note(self, model: Any) -> None:
        """Record the variables of a Keras model and its optimizer; in a graph digest them while there is a session."""
        for record in self.of(model):
            if record.of_graph:
                record.tensors()

    def optimizer(self, optimizer: Any) -> VariablesRecord:
        """Return the record of an optimizer."""
        return self._record(optimizer, "optimizer", optimizer_variables)

    def trained(self, optimizer: Any, variables: list[Any]) -> None:
        """Record an optimizer of a custom training loop, and the variables that it trains."""
        records = self._by_owner.get(optimizer, [])
        known_ids = {id(variable) for record in records for variable in record._variables}
        if records and all(id(variable) in known_ids for variable in variables):
            return
        self.optimizer(optimizer).refresh()
        if len(records) < 2:
            name = self._agent.name("model")
            self._add(optimizer, VariablesRecord(optimizer, name, "Variables", lambda _: variables)).refresh()
        else:
            variables += [variable for variable in records[1]._variables if variable not in variables]
            records[1]._variables = variables

    def _record(self, owner: Any, kind: str, variables_of: Callable[[Any], list[Any]]) -> VariablesRecord:
        records = self._by_owner.get(owner)
        if records:
            return records[0]
        return self._add(owner, VariablesRecord(owner, self._agent.name(kind), type(owner).__name__, variables_of))

    def _add(self, owner: Any, record: VariablesRecord) -> VariablesRecord:
        self._by_owner.setdefault(owner, []).append(record)
        generation = self._agent.generation
        weakref.finalize(owner, self._agent.attempt, self._owner_deleted, record, generation).atexit = False
        return record

    # The end

    def session_closes(self, session: Any) -> None:
        """Digest the variables in a session that is about to close."""
        with session.as_default():
            for record in [record for records in self._by_owner.values() for record in records] + self._unread:
                try:
                    if record.of_graph:
                        record.tensors()
                except NotReadableError:  # the variables of another graph
                    continue

    def _owner_deleted(self, record: VariablesRecord, generation: int) -> None:
        if generation == self._agent.generation:
            try:
                self._end(record)
            except NotReadableError:
                self._unread.append(record)

    def _end(self, record: VariablesRecord) -> None:
        record.refresh()
        if record.ended or record.empty:
            return
        if record.of_graph:
            record.tensors()  # fails if nothing was ever read
        record.ended = True
        if record.name.startswith("optimizer"):
            tell(self._events.optimizer_ended, OptimizerEnded(record))
        else:
            tell(self._events.model_ended, ModelEnded(record))

    def finish(self) -> None:
        """Report the end of all remaining models and optimizers."""
        for record in [record for records in self._by_owner.values() for record in records] + self._unread:
            self._agent.attempt(self._end, record)


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer; `variables` is a property or a method, by version."""
    variables = getattr(optimizer, "variables", None)
    if callable(variables):
        variables = variables()
    return list(optimizer.weights if variables is None else variables)


def pairs_of(
    optimizer: Any, gradients: list[Any], arguments: tuple[Any, ...], keywords: dict[str, Any], *, by_pairs: bool
) -> list[tuple[Any, Any]]:
    """Return the gradients in a call of apply or apply_gradients, each with its variable, without None."""
    variables = None if by_pairs else (arguments and arguments[0]) or keywords.get("trainable_variables")
    pairs = gradients if by_pairs else zip(gradients, variables or private_api.trained(optimizer))
    try:
        return [(_current_value(gradient), variable) for gradient, variable in pairs if gradient is not None]
    except (TypeError, ValueError):  # they are no pairs; the optimizer itself will raise the error
        return []


def _current_value(gradient: Any) -> Any:
    """Return the current value of a gradient, which eager code often accumulates in a variable."""
    variable: Any = gradient if hasattr(gradient, "handle") else getattr(gradient, "value", None)
    is_read = hasattr(variable, "handle") and sys.modules["tensorflow"].executing_eagerly()
    return variable.read_value() if is_read else gradient
