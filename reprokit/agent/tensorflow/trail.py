"""The trail of a training by TensorFlow: what can be seen of each step without a change to its graphs.

That is what a step returned (its loss and metrics) and the random states; each seventeenth time the weights; of a loop
that runs eagerly the gradients. Where they are asked for in graphs too, variables take them there, one for each.
"""

from __future__ import annotations

import sys
import weakref

from .. import trail_library as trail
from ..events import GradientsDue, UpdateDone, UpdateDue
from . import private_api
from .tensors import is_eager, name_of, value, values, view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..agent import Agent
    from ..events import Events, Handler, TrainingEvent
    from .state import VariableRecords

EACH = 17  # steps from one look at the weights to the next; with no factor of 16, so that the last 16 looks are kept
MAX_TABLES = 64  # of one optimizer: its variables may change that often
MAX_GENERATORS = 64  # of Keras, whose states are read with the weights
NOT_RESULTS = frozenset(["batch", "size"])  # in the logs of old Keras


class OptimizerVariables:
    """The steps of one optimizer with the variables that it trains, and what goes with them."""

    def __init__(self, variables: list[Any], library: trail.Library) -> None:
        self.variables = variables
        self.ids = list(map(id, variables))
        self.places = {place: number for number, place in enumerate(self.ids)}
        self.handle = 0
        self.sizes = [_size(variable) for variable in variables]
        self.pointers, self.address = library.buffer(2 * len(variables))

    def named(self) -> Iterator[trail.Named]:
        """Yield the tensors for the trail's table."""
        for variable, size in zip(self.variables, self.sizes):
            yield name_of(variable), _dtype(variable), _shape(variable), size


class _Steps:
    """What is known of one optimizer."""

    def __init__(self, library: trail.Library) -> None:
        self.facts, self.address = library.buffer(trail.FACTS)  # one a step under way: threads may train side by side
        self.name = ""
        self.count = 0
        self.tables = 0
        self.series: OptimizerVariables | None = None
        self.gradients: list[tuple[Any, Any]] = []  # of the step under way: variable and gradient
        self.holders: dict[int, tuple[Any, Any]] = {}  # in a graph: variable, and the one that takes its gradient
        self.generators: list[Any] = []
        self.beginning: dict[str, Any] | None = None  # the random states before the first step
        self.before = 0  # digest of the weights before it, where each step's are looked at


class TensorflowTrail:
    """The trail of this process, as far as TensorFlow makes it."""

    def __init__(self, agent: Agent, events: Events, records: VariableRecords, library: trail.Library) -> None:
        self._agent, self._events, self._records = agent, events, records
        self._library = library
        self._in_graphs = trail.wants_gradients_in_graphs(agent.run)
        self._each = 1 if trail.looks_at_each_step(agent.run) else EACH
        self._words = trail.GeneratorAddresses()
        self.forget()

    def forget(self) -> None:
        """At the beginning, and in a forked child, whose parent's file is another one."""
        self._steps: weakref.WeakKeyDictionary[Any, _Steps] = weakref.WeakKeyDictionary()
        self._handle = self._last = 0
        self._closed = False

    def _of(self, optimizer: Any) -> _Steps:
        found = self._steps.get(optimizer)
        if found is None:
            found = self._steps[optimizer] = _Steps(self._library)
        return found

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {GradientsDue: self._gradients_due, UpdateDue: self._update_due, UpdateDone: self._update_done}

    def failed(self, error: Exception, _handler: Handler) -> None:
        """The trail ends, with a warning."""
        self._events.remove(self)
        self._agent.warn(f"no further step is kept in the trail: {type(error).__name__}: {error}")

    def _gradients_due(self, event: GradientsDue) -> None:
        steps, pairs = self._of(event.optimizer), event.pairs
        if pairs and all(is_eager(gradient) for gradient, _ in pairs):
            steps.gradients = [(variable, gradient) for gradient, variable in pairs]
        elif self._in_graphs:
            for gradient, variable in pairs:
                take_in_graph(steps.holders, gradient, variable)

    def _update_due(self, event: UpdateDue) -> None:
        """A step of Keras or of a function begins. Before the first of them the random states are taken down."""
        optimizer, model = event.optimizer.optimizer, event.optimizer.model
        if optimizer is None:
            return
        steps = self._of(optimizer)
        if steps.count == 0 and steps.beginning is None:
            # Where Keras has generators of its own, their states are in the digest of some steps only.
            states = {} if seed_states(model) else {"torch": self._random([])}
            states.update(python=self._state(self._words.python()), numpy=self._state(self._words.numpy()))
            known = {name: state for name, state in states.items() if state}
            untouched = [name for name in self._agent.generators.untouched() if name in ("python", "numpy")]
            steps.beginning = {"generators": known, "untouched": untouched}
            if self._each == 1 and getattr(model, "weights", model):
                steps.before = self._weights(steps, optimizer, model)

    def _weights(self, steps: _Steps, optimizer: Any, model: Any) -> int:
        """Return the digest of the weights as they are now; 0 where some cannot be read."""
        series = self._choose(steps, optimizer, model)
        held, is_whole = self._point(steps, series, looks=True)
        digest: int = self._library.parameters(series.handle, series.address) if is_whole else 0
        del held
        return digest

    def _state(self, address: int) -> int:
        return self._library.digest(address, trail.WORDS, self._words.salt) if address else 0

    def _update_done(self, event: UpdateDone) -> None:
        step = event.optimizer
        if self._closed or step.optimizer is None:
            return
        steps = self._of(step.optimizer)
        looks = steps.count % self._each == 0
        series = steps.series
        if looks or series is None:
            series = self._choose(steps, step.optimizer, step.model)
            steps.name = self._records.optimizer(step.optimizer).name
        held, whole = self._point(steps, series, looks=looks)
        known, loss = self._results(step.results)
        self._put(steps, trail.LOSS * known | (0 if whole else trail.PARTIAL), loss)
        self._library.step(series.handle, steps.address, series.address)
        del held
        steps.count += 1
        step.name, step.steps = steps.name, steps.count
        steps.gradients = []
        self._last = series.handle

    def _choose(self, steps: _Steps, optimizer: Any, model: Any) -> OptimizerVariables:
        """Return the series of this step: a new one where the variables are others."""
        variables = list(model.weights if hasattr(model, "weights") else model)
        steps.generators = seed_states(model)[:MAX_GENERATORS]
        if steps.series is not None and steps.series.ids == list(map(id, variables)):
            return steps.series
        if not self._handle:
            self._handle = self._library.open(self._agent.run, self._agent.journal.identity)
        series = OptimizerVariables(variables, self._library)
        steps.tables += 1
        if steps.tables <= MAX_TABLES:
            name, kind, tensors = (
                self._records.optimizer(optimizer).name,
                type(optimizer).__name__,
                list(series.named()),
            )
            series.handle = self._library.series(
                self._handle, name, kind, tensors, steps.count, "tensorflow", **steps.beginning or {}
            )
        if not series.handle:
            raise RuntimeError("the trail ends here, as an optimizer's variables became others too often")
        steps.series = series
        return series

    def _point(self, steps: _Steps, series: OptimizerVariables, *, looks: bool) -> tuple[list[Any], bool]:
        """Write down where gradients and weights lie; what must live until they were read, and whether that is all."""
        count = len(series.variables)
        pointers = [0] * (2 * count)
        held = [view(value) for value in values(series.variables)] if looks else []
        for place, array in enumerate(held):
            pointers[count + place] = _address(array, series.sizes[place])
        gradients = steps.gradients or [(variable, value(holder)) for variable, holder in steps.holders.values()]
        for variable, gradient in gradients:
            found = series.places.get(id(variable))
            array = view(gradient)
            held.append(array)
            if found is not None:
                pointers[found] = _address(array, series.sizes[found])
        series.pointers[:] = pointers
        return held, all(array is not None for array in held)

    def _results(self, results: Any) -> tuple[bool, int]:
        """Return the digest of what a step returned."""
        if isinstance(results, dict):
            parts = [results[key] for key in sorted(results) if key not in NOT_RESULTS]
        else:
            parts = list(results) if isinstance(results, (list, tuple)) else [results]
        arrays = [array for array in map(view, parts) if array is not None]
        digest = 0
        for array in arrays:
            digest = self._fold(digest, array)
        return bool(arrays), digest

    def _fold(self, digest: int, array: Any) -> int:
        salt = trail.salt(array.dtype.name, array.shape)
        return self._library.fold(digest, array.__array_interface__["data"][0], array.nbytes, salt)  # type: ignore[no-any-return]

    def _random(self, generators: list[Any]) -> int:
        """TensorFlow's random state: the seeds that eager code draws, and what Keras's generators count; 0: unknown."""
        address = self._words.of(private_api.seed_generator())
        digest = self._library.fold(0, address, trail.WORDS, self._words.salt) if address else 0
        for generator in generators:
            array = view(value(generator))
            if array is not None:
                digest = self._fold(digest, array)
        return digest

    def _put(self, steps: _Steps, flags: int, loss: int) -> None:
        python, numpy = self._words.python(), self._words.numpy()
        random = self._random(steps.generators if steps.count % self._each == 0 else [])
        flags |= trail.TORCH * bool(random) | trail.PYTHON * bool(python) | trail.NUMPY * bool(numpy)
        before, steps.before = steps.before, 0
        flags |= trail.BEFORE * bool(before)
        facts = [flags, trail.HERE, 0, loss, before, 0, 0, 0, 0, 0, random, python, numpy, self._words.salt]
        steps.facts[: len(facts)] = facts

    def finish(self) -> None:
        """Give back the room that the file has at its end."""
        self._closed = True
        handle, self._handle = self._handle, 0
        if handle:
            self._library.close(handle, self._last)


def take_in_graph(holders: dict[int, tuple[Any, Any]], gradient: Any, variable: Any) -> None:
    """In a graph that is being built: a variable beside takes each gradient. It works in compiled graphs too."""
    if not private_api.is_in_function(gradient):
        return
    found = holders.get(id(variable))
    if found is None:
        tensorflow = sys.modules["tensorflow"]
        with private_api.ops().init_scope():
            zeros = tensorflow.zeros(variable.shape, gradient.dtype)
            found = variable, tensorflow.Variable(zeros, trainable=False, name="reprokit_gradient")
        holders[id(variable)] = found
    found[1].assign(gradient)


def seed_states(model: Any) -> list[Any]:
    """Return the states of the seed generators of a model of Keras 3."""
    found = getattr(model, "variables", None)
    return [one for one in found if "seed_generator_state" in name_of(one)] if isinstance(found, list) else []


def _address(array: Any, size: int) -> int:
    if array is None or array.nbytes != size:
        return 0
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def _dtype(variable: Any) -> str:
    dtype = getattr(variable, "dtype", "")
    return dtype if isinstance(dtype, str) else dtype.base_dtype.name


def _shape(variable: Any) -> list[int]:
    return [int(size) for size in variable.shape]


def _size(variable: Any) -> int:
    dtype = getattr(private_api.plain(variable), "dtype", None)
    size = int(getattr(dtype, "size", 0) or 0)
    for length in _shape(variable):
        size *= length
    return size
