"""What is kept of models and optimizers whose tensors are variables of TensorFlow or Keras.

Only the variables are held, and only as long as their owner lives: no lifetime grows and no cycle arises.
A graph of TensorFlow 1 can be read only through a session, so there the last digests are kept instead.
"""

from __future__ import annotations

import weakref
from _thread import _local

from ..arrays import array_entry
from ..digests import distinct, weights_line
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..agent import Agent
    from ..digests import Tensor
    from .trail import TensorflowTrail as Trail

    Function = Callable[..., Any]


class NotReadableError(Exception):
    """The variables have no values that could be read now, as in a graph without its session."""


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
        """The digests now, or the last that could be had."""
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
        self._last = distinct(array_entry(name, value) for name, value in zip(names, values))
        return self._last


class AdapterRecords:
    """The records of one adapter."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._inside = _local()
        self.trail: Trail | None = None
        self.forget()

    def forget(self) -> None:
        """In a forked child: drop what the parent noted."""
        self._by_owner: weakref.WeakKeyDictionary[Any, list[VariablesRecord]] = weakref.WeakKeyDictionary()
        self._unread: list[VariablesRecord] = []  # of dead owners, until a session closes
        if self.trail is not None:
            self.trail.forget()

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

    def note(self, model: Any, epoch: int | None = None) -> None:
        """Take in the variables of a Keras model and its optimizer; write their digests where an epoch has ended."""
        self._take_in(self._record(model, "model", lambda owner: list(owner.weights)), epoch)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            self._take_in(self._record(optimizer, "optimizer", optimizer_variables), epoch)

    def trained(self, optimizer: Any, variables: list[Any]) -> None:
        """Take in an optimizer that a script's own loop drives, and the variables that it trains."""
        known = self._by_owner.get(optimizer, [])
        held = {id(variable) for record in known for variable in record._variables}
        if known and all(id(variable) in held for variable in variables):
            return
        self._record(optimizer, "optimizer", optimizer_variables).refresh()
        if len(known) < 2:
            name = self._agent.name("model")
            self._add(optimizer, VariablesRecord(optimizer, name, "Variables", lambda _: variables)).refresh()
        else:
            variables += [variable for variable in known[1]._variables if variable not in variables]
            known[1]._variables = variables

    # The trail

    def _trail_does(self, what: str, *arguments: Any) -> None:
        """A trail that fails ends, with a warning, and the training goes on."""
        try:
            if self.trail is not None:
                getattr(self.trail, what)(*arguments)
        except Exception as error:
            self.trail = None
            self._agent.warn(f"no further step is kept in the trail: {type(error).__name__}: {error}")

    def begins(self, model: Any) -> None:
        """A model of Keras begins a step."""
        optimizer = getattr(model, "optimizer", None)
        if self.trail is not None and optimizer is not None:
            self._trail_does("begins", optimizer, model)

    def stepped(self, optimizer: Any, model: Any, results: Any = None) -> None:
        """An optimizer took a step that returned this."""
        if self._agent.observer is not None:
            self._agent.observer.step()
        if self.trail is not None and optimizer is not None:
            record = self._record(optimizer, "optimizer", optimizer_variables)
            self._trail_does("stepped", optimizer, record.name, model, results)

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

    def _take_in(self, record: VariablesRecord, epoch: int | None) -> None:
        record.refresh()
        if epoch is not None:
            self._write(record, "epoch", epoch)
        elif record.of_graph:
            record.tensors()  # while there is a session

    # The end

    def session_closes(self, session: Any) -> None:
        """The last time to read what is in a session."""
        with session.as_default():
            for record in [record for records in self._by_owner.values() for record in records] + self._unread:
                try:
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
        self._write(record, "end", None)
        record.ended = True
        if record.name.startswith("optimizer"):
            line = {"object": record.name, "class": record.kind, "steps": record.steps}
            self._agent.journal.write("optimizer", line)

    def _write(self, record: VariablesRecord, at: str, epoch: int | None) -> None:
        line = weights_line(at, epoch, record.name, record.kind, record.tensors(), full=at == "end")
        self._agent.journal.write("weights", line)

    def finish(self) -> None:
        """Write the end of all that is left."""
        self._trail_does("finish")
        for record in [record for records in self._by_owner.values() for record in records] + self._unread:
            self._agent.attempt(self._end, record)

    def make_apply(self, original: Function) -> Function:
        """An optimizer's apply or apply_gradients that takes in what it trains."""

        def apply(optimizer: Any, gradients: Any, *arguments: Any, **keywords: Any) -> Any:
            gradients = list(gradients)
            if original.__name__ == "apply_gradients":
                pairs = gradients
            else:
                given = (arguments and arguments[0]) or keywords.get("trainable_variables")
                variables = given or private_api.trained(optimizer)
                pairs = list(zip(gradients, variables))
            pairs = [pair for pair in pairs if pair[0] is not None]
            self._trail_does("applies", optimizer, pairs)
            if self.nested:
                return original(optimizer, gradients, *arguments, **keywords)
            result = self.outermost(original, optimizer, gradients, *arguments, **keywords)
            trained = [variable for _, variable in pairs]
            self._agent.attempt(self.trained, optimizer, trained)
            if pairs and all(is_eager(gradient) for gradient, _ in pairs):
                self._agent.attempt(self.stepped, optimizer, trained)
            return result

        return apply


def is_eager(tensor: Any) -> bool:
    """Whether it is a tensor of TensorFlow, dense or sparse, that has a value now: no graph is being built."""
    return private_api.has_value(getattr(tensor, "values", tensor) if hasattr(tensor, "indices") else tensor)


def name_of(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer, which are a property or a method by version."""
    found = getattr(optimizer, "variables", None)
    if callable(found):
        found = found()
    return list(optimizer.weights if found is None else found)


def read(variables: list[Any]) -> list[Any]:
    """The values as arrays of NumPy, outside whatever graph is being built at the moment."""
    if private_api.ops() is None:
        return [variable.numpy() for variable in variables]
    if any(map(private_api.is_of_graph, variables)):
        return _read_graph(variables)
    with private_api.ops().init_scope():
        return [variable.numpy() for variable in variables]


def _read_graph(variables: list[Any]) -> list[Any]:
    """TensorFlow 1: by the session that is open, or else by the one that Keras made; never by a new one."""
    session = private_api.ops().get_default_session() or private_api.keras_session()
    if session is None or any(variable.graph is not session.graph for variable in variables):
        raise NotReadableError("there is no open session to read the variables in")
    values: list[Any] = session.run(variables)
    return values
