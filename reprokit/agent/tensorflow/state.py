"""What is kept of models and optimizers whose tensors are variables of TensorFlow or Keras.

Only the variables are held, and only as long as their owner lives: no lifetime grows and no cycle arises.
A graph of TensorFlow 1 can be read only through a session, so there the last digests are kept instead.
"""

from __future__ import annotations

import sys
import weakref
from _thread import _local

from ..core.digests import distinct
from ..events import ModelEnded, OptimizerEnded, tell
from . import private_api
from .tensors import NotReadableError, entry, name_of, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..agent import Agent
    from ..core.digests import Tensor
    from ..events import Events

    Function = Callable[..., Any]


class VariablesRecord:
    """The variables of one model or optimizer."""

    def __init__(self, owner: Any, name: str, kind: str, variables_of: Callable[[Any], list[Any]]) -> None:
        self.name = name
        self.kind = kind
        self.steps: int | None = None
        self.ended = False
        self._owner = weakref.ref(owner)
        self._variables_of = variables_of
        self._variables: list[Any] = []
        self._counter: Any = None  # the variable that counts an optimizer's steps
        self._last: list[Tensor] | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell of it, as of a model that was never built."""
        return not self._variables

    @property
    def of_graph(self) -> bool:
        """Whether its variables can be read only while there is a session."""
        return any(map(private_api.is_of_graph, self._variables))

    def refresh(self) -> None:
        """Look again which variables the owner has; another graph than theirs knows of none."""
        owner = self._owner()
        if owner is not None:
            self._variables = self._variables_of(owner) or self._variables
            self._counter = private_api.counter(owner, self._counter)

    def tensors(self) -> list[Tensor]:
        """Return the digests now, or the last that could be had."""
        counters = [] if self._counter is None else [self._counter]
        try:
            values = read(self._variables + counters)
        except NotReadableError:
            if self._last is None:
                raise
            return self._last
        if counters:
            self.steps = int(values.pop())
        names = map(name_of, self._variables)
        self._last = distinct(entry(name, value) for name, value in zip(names, values))
        return self._last


class OptimizerStep:
    """A step of an optimizer."""

    __slots__ = ("arguments", "is_eager", "model", "name", "optimizer", "others", "results", "steps")

    def __init__(
        self, optimizer: Any, model: Any, results: Any = None, *, is_eager: bool = False, others: Sequence[Any] = ()
    ) -> None:
        self.optimizer = optimizer
        self.model = model  # what it trains: an object with weights, or a list of variables
        self.results = results  # what the step returned
        self.others = others  # variables that a function reads besides
        self.is_eager = is_eager  # a loop of the script's own, whose gradients are told of when they are there
        # Of the function, in the place of which a handler may put others, or None: the epoch of fit ends here.
        self.arguments: tuple[Any, ...] | None = ()
        self.name, self.steps = "", 0  # of the optimizer, and how many it has taken, where the trail knows


class VariableRecords:
    """The records of this process, and the events of their ends."""

    def __init__(self, agent: Agent, events: Events) -> None:
        self._agent, self._events = agent, events
        self._inside = _local()
        self.forget()

    def forget(self) -> None:
        """In a forked child: drop what the parent noted."""
        self._by_owner: weakref.WeakKeyDictionary[Any, list[VariablesRecord]] = weakref.WeakKeyDictionary()
        self._unread: list[VariablesRecord] = []  # of dead owners, until a session closes

    def __contains__(self, owner: object) -> bool:
        return owner in self._by_owner

    # Framework calls may call each other; only the outermost is reported.

    @property
    def nested(self) -> bool:
        """Whether the framework itself makes the present call, as fit calls evaluate."""
        return getattr(self._inside, "call", False)

    def outermost(self, function: Function, *arguments: Any, **keywords: Any) -> Any:
        """Make a call inside of which others are nested."""
        self._inside.call = True
        try:
            return function(*arguments, **keywords)
        finally:
            self._inside.call = False

    # Models and optimizers

    def of(self, model: Any) -> list[VariablesRecord]:
        """Return the records of a Keras model and its optimizer, as they are now."""
        records = [self._record(model, "model", lambda owner: list(owner.weights))]
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            records.append(self.optimizer(optimizer))
        for record in records:
            record.refresh()
        return records

    def note(self, model: Any) -> None:
        """Take in the variables of a Keras model and its optimizer; digest them while there is a session."""
        for record in self.of(model):
            if record.of_graph:
                record.tensors()

    def optimizer(self, optimizer: Any) -> VariablesRecord:
        """Return the record of an optimizer."""
        return self._record(optimizer, "optimizer", optimizer_variables)

    def trained(self, optimizer: Any, variables: list[Any]) -> None:
        """Take in an optimizer that a script's own loop drives, and the variables that it trains."""
        known = self._by_owner.get(optimizer, [])
        held = {id(variable) for record in known for variable in record._variables}
        if known and all(id(variable) in held for variable in variables):
            return
        self.optimizer(optimizer).refresh()
        if len(known) < 2:
            name = self._agent.name("model")
            self._add(optimizer, VariablesRecord(optimizer, name, "Variables", lambda _: variables)).refresh()
        else:
            variables += [variable for variable in known[1]._variables if variable not in variables]
            known[1]._variables = variables

    def _record(self, owner: Any, kind: str, variables_of: Callable[[Any], list[Any]]) -> VariablesRecord:
        known = self._by_owner.get(owner)
        if known:
            return known[0]
        return self._add(owner, VariablesRecord(owner, self._agent.name(kind), type(owner).__name__, variables_of))

    def _add(self, owner: Any, record: VariablesRecord) -> VariablesRecord:
        self._by_owner.setdefault(owner, []).append(record)
        generation = self._agent.generation
        weakref.finalize(owner, self._agent.attempt, self._owner_dies, record, generation).atexit = False
        return record

    # The end

    def session_closes(self, session: Any) -> None:
        """The last time to read what is in a session."""
        with session.as_default():
            for record in [record for records in self._by_owner.values() for record in records] + self._unread:
                try:
                    if record.of_graph:
                        record.tensors()
                except NotReadableError:  # of another graph
                    continue

    def _owner_dies(self, record: VariablesRecord, generation: int) -> None:
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
            record.tensors()  # which fails where nothing was ever read
        record.ended = True
        if record.name.startswith("optimizer"):
            tell(self._events.optimizer_ended, OptimizerEnded(record))
        else:
            tell(self._events.model_ended, ModelEnded(record))

    def finish(self) -> None:
        """Tell the end of all that is left."""
        for record in [record for records in self._by_owner.values() for record in records] + self._unread:
            self._agent.attempt(self._end, record)


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer, which are a property or a method by version."""
    found = getattr(optimizer, "variables", None)
    if callable(found):
        found = found()
    return list(optimizer.weights if found is None else found)


def pairs_of(
    optimizer: Any, gradients: list[Any], arguments: tuple[Any, ...], keywords: dict[str, Any], *, by_pairs: bool
) -> list[tuple[Any, Any]]:
    """Return the gradients that there are, each with its variable, of a call of apply or apply_gradients."""
    known = None if by_pairs else (arguments and arguments[0]) or keywords.get("trainable_variables")
    pairs = gradients if by_pairs else zip(gradients, known or private_api.trained(optimizer))
    try:
        return [(_present(gradient), variable) for gradient, variable in pairs if gradient is not None]
    except (TypeError, ValueError):  # they are no pairs, which the optimizer itself will say
        return []


def _present(gradient: Any) -> Any:
    """Return a gradient as it is now: eager code often keeps sums of them in variables, TensorFlow's or Keras'."""
    variable: Any = gradient if hasattr(gradient, "handle") else getattr(gradient, "value", None)
    is_read = hasattr(variable, "handle") and sys.modules["tensorflow"].executing_eagerly()
    return variable.read_value() if is_read else gradient
