"""The trail of a TensorFlow training: digests of what each step shows without changes to its graphs.

These are the results of the step (loss and metrics) and the random states, the weights in each seventeenth step, and
the gradients of eager loops. If gradients in graphs are requested, too, each is assigned to a variable there.
"""

from __future__ import annotations

import sys
import weakref

from ..core import trail_library as trail
from ..events.steps import GradientsDue, UpdateDone, UpdateDue
from . import private_api
from .tensor_names import name_of
from .tensors import is_eager, value, values, view
from .training_state import seed_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent
    from .state import VariableRecords

WEIGHTS_EVERY = 17  # steps between digests of the weights; prime to 16, so that the last 16 of them are kept
MAX_GENERATORS = 64  # seed generators of Keras, whose states are read with the weights
FLOATS = "fV"  # kinds of NumPy's data types; V: bfloat16 and smaller ones
LOSS = "loss"  # in what Keras' train function returns
MAX_LOOKED_AT = 1 << 14  # bytes of the smallest of the weights
NOT_RESULTS = frozenset(["batch", "size"])  # entries in the logs of old Keras that are no results


class OptimizerVariables:
    """A series of steps of one optimizer with the same variables, and their table for the library."""

    def __init__(self, variables: list[Any], library: trail.Library) -> None:
        self.variables = variables
        self.ids = list(map(id, variables))
        self.positions = {place: number for number, place in enumerate(self.ids)}
        self.handle = 0
        self.sizes = [_size(variable) for variable in variables]
        floats = [(size, number) for number, size in enumerate(self.sizes) if "float" in _dtype(variables[number])]
        size, number = min(floats, default=(MAX_LOOKED_AT, -1))
        self.smallest = number if 0 < size < MAX_LOOKED_AT else -1  # a loss that is NaN leaves none finite
        self.pointers, self.address = library.buffer(2 * len(variables))

    def descriptions(self) -> Iterator[trail.Named]:
        """Yield name, dtype, shape and size of each variable for the trail's table."""
        for variable, size in zip(self.variables, self.sizes):
            yield name_of(variable), _dtype(variable), _shape(variable), size


class _OptimizerSteps:
    """The state of one optimizer in the trail."""

    def __init__(self, library: trail.Library) -> None:
        self.facts, self.address = library.buffer(trail.FACTS)  # of the step in progress; threads may train in parallel
        self.name = ""
        self.count = 0
        self.series: OptimizerVariables | None = None
        self.gradients: list[tuple[Any, Any]] = []  # of the step in progress: variable and gradient
        self.holders: dict[int, tuple[Any, Any]] = {}  # in a graph: variable, and the one that receives its gradient
        self.generators: list[Any] = []
        self.initial_states: dict[str, Any] | None = None  # the random states before the first step
        self.looked_at = 0  # flags of what is not finite in the step in progress
        self.is_scaled = False  # whether gradients are scaled, which overflow in a sound training
        self.before = 0  # digest of the weights before the first step, if each step's are digested


class TensorflowTrail:
    """Writes the trail of TensorFlow's steps in this process."""

    def __init__(self, agent: Agent, events: Events, records: VariableRecords, library: trail.Library) -> None:
        self._agent, self._events, self._records = agent, events, records
        self._library = library
        self._in_graphs = trail.wants_gradients_in_graphs(agent.run)
        self._begins_with_weights = trail.looks_at_each_step(agent.run)
        self._generators_every = 1 if self._begins_with_weights else WEIGHTS_EVERY
        self._weights_every = 1 if trail.looks_at_all_weights(agent.run) else WEIGHTS_EVERY
        self._words = trail.GeneratorAddresses()
        self.is_suspended = False  # only counts steps: what a replay leaves out has no digests
        agent.shared[TensorflowTrail] = self
        self.forget()

    def forget(self) -> None:
        """Reset all state: initially, and in a forked child, which gets a file of its own."""
        self._steps: weakref.WeakKeyDictionary[Any, _OptimizerSteps] = weakref.WeakKeyDictionary()
        self._file = trail.TrailFile(self._agent.run, lambda: self._agent.journal.identity, self._library)

    def _steps_of(self, optimizer: Any) -> _OptimizerSteps:
        steps = self._steps.get(optimizer)
        if steps is None:
            steps = self._steps[optimizer] = _OptimizerSteps(self._library)
        return steps

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {GradientsDue: self._gradients_due, UpdateDue: self._update_due, UpdateDone: self._update_done}

    def failed(self, error: Exception, _handler: Handler) -> None:
        """End the trail with a warning."""
        self._events.remove(self)
        self._agent.warn(f"no further step is kept in the trail: {type(error).__name__}: {error}", "trail-ended")

    def _gradients_due(self, event: GradientsDue) -> None:
        steps, pairs = self._steps_of(event.optimizer), event.pairs
        if pairs and all(is_eager(gradient) for gradient, _ in pairs):
            steps.gradients = [(variable, gradient) for gradient, variable in pairs]
        elif self._in_graphs:
            for gradient, variable in pairs:
                capture_gradient(steps.holders, gradient, variable)

    def _update_due(self, event: UpdateDue) -> None:
        """Record the random states before the first step of an optimizer."""
        optimizer, model = event.optimizer.optimizer, event.optimizer.model
        if optimizer is None:
            return
        steps = self._steps_of(optimizer)
        if steps.count == 0 and steps.initial_states is None:
            # If Keras has seed generators, their states are in the digests of some steps only.
            states = {} if seed_states(model) else {"torch": self._random([])}
            states.update(zip(("python", "numpy"), map(self._state, self._words.both())))
            generators = {name: state for name, state in states.items() if state}
            untouched = [name for name in self._agent.generators.untouched() if name in ("python", "numpy")]
            steps.initial_states = {"generators": generators, "untouched": untouched}
            if self._begins_with_weights and getattr(model, "weights", model):
                steps.before = self._weights(steps, optimizer, model)

    def _weights(self, steps: _OptimizerSteps, optimizer: Any, model: Any) -> int:
        """Return the digest of the current weights; 0 if some cannot be read."""
        series = self._series_for(steps, optimizer, model)
        arrays, is_whole = self._set_pointers(steps, series, reads_weights=True)
        digest: int = self._library.parameters(series.handle, series.address) if is_whole else 0
        del arrays
        return digest

    def _state(self, address: int) -> int:
        return self._library.digest(address, trail.WORDS, self._words.salt) if address else 0

    def _update_done(self, event: UpdateDone) -> None:
        step = event.optimizer
        if not self._file.is_open or step.optimizer is None:
            return
        steps = self._steps_of(step.optimizer)
        reads_weights = steps.count % self._weights_every == 0 and not self.is_suspended
        series = steps.series
        if reads_weights or series is None:
            series = self._series_for(steps, step.optimizer, step.model)
            steps.name = self._records.optimizer(step.optimizer).name
            steps.is_scaled = hasattr(step.optimizer, "inner_optimizer")
        arrays, is_complete = self._set_pointers(steps, series, reads_weights=reads_weights)
        flags, loss = self._results(step.results)
        flags |= steps.looked_at
        if self.is_suspended:
            steps.facts[:] = [0, trail.LATER, *[0] * (trail.FACTS - 2)]
        else:
            self._store_facts(steps, flags | (0 if is_complete else trail.PARTIAL), loss)
        self._library.step(series.handle, steps.address, series.address)
        del arrays
        steps.count += 1
        step.name, step.steps = steps.name, steps.count
        steps.gradients = []
        self._file.last = series.handle

    def steps_of(self, optimizer: Any) -> int:
        """Return how many steps an optimizer has made."""
        steps = self._steps.get(optimizer)
        return 0 if steps is None else steps.count

    def counts(self, done: Any) -> dict[str, int]:
        """Return how many steps each optimizer has made, with that of the one that is just done."""
        return {self._records.optimizer(each).name: steps.count + (each is done) for each, steps in self._steps.items()}

    def _series_for(self, steps: _OptimizerSteps, optimizer: Any, model: Any) -> OptimizerVariables:
        """Return the series for a step; begin a new one if the variables have changed."""
        variables = list(model.weights if hasattr(model, "weights") else model)
        steps.generators = seed_states(model)[:MAX_GENERATORS]
        if steps.series is not None and steps.series.ids == list(map(id, variables)):
            return steps.series
        series, name = OptimizerVariables(variables, self._library), self._records.optimizer(optimizer).name
        kind, tensors, states = type(optimizer).__name__, list(series.descriptions()), steps.initial_states or {}
        series.handle = self._file.series(name, kind, tensors, steps.count, framework="tensorflow", **states)
        steps.series = series
        return series

    def _set_pointers(
        self, steps: _OptimizerSteps, series: OptimizerVariables, *, reads_weights: bool
    ) -> tuple[list[Any], bool]:
        """Store the addresses of gradients and weights; return arrays to keep alive, and whether all can be read."""
        count = len(series.variables)
        pointers = [0] * (2 * count)
        arrays = [view(value) for value in values(series.variables)] if reads_weights else []
        for index, array in enumerate(arrays):
            pointers[count + index] = _address(array, series.sizes[index])
        steps.looked_at = trail.RUINED * (reads_weights and series.smallest >= 0 and _is_bad(arrays[series.smallest]))
        gradients = steps.gradients or [(variable, value(holder)) for variable, holder in steps.holders.values()]
        for variable, gradient in gradients:
            position = series.positions.get(id(variable))
            array = view(gradient)
            arrays.append(array)
            if position is not None:
                pointers[position] = _address(array, series.sizes[position])
            if position == series.smallest and not steps.is_scaled and _is_bad(array):
                steps.looked_at |= trail.NOT_FINITE
        series.pointers[:] = pointers
        return arrays, all(array is not None for array in arrays)

    def _results(self, results: Any) -> tuple[int, int]:
        """Digest the results of a step; return the flags of what they are, and the digest."""
        if isinstance(results, dict):
            parts = [results[key] for key in sorted(results) if key not in NOT_RESULTS]
        else:
            parts = list(results) if isinstance(results, (list, tuple)) else [results]
        arrays = [array for array in map(view, parts) if array is not None]
        digest, has_results = 0, bool(arrays)
        for array in arrays:
            digest = self._fold(digest, array)
        if isinstance(results, dict) and LOSS in results:  # a metric may be NaN in a sound training
            arrays = [array for array in [view(results[LOSS])] if array is not None]
        is_bad = any(_is_bad(array) for array in arrays if array.size == 1)
        return trail.LOSS * has_results | trail.NOT_FINITE * is_bad, digest

    def _fold(self, digest: int, array: Any) -> int:
        salt = trail.salt(array.dtype.name, array.shape)
        return self._library.fold(digest, array.__array_interface__["data"][0], array.nbytes, salt)  # type: ignore[no-any-return]

    def _random(self, generators: list[Any]) -> int:
        """Digest the generator of eager seeds and the states of Keras' seed generators; 0 if unknown."""
        address = self._words.of(private_api.seed_generator())
        digest = self._library.fold(0, address, trail.WORDS, self._words.salt) if address else 0
        for generator in generators:
            array = view(value(generator))
            if array is not None:
                digest = self._fold(digest, array)
        return digest

    def _store_facts(self, steps: _OptimizerSteps, flags: int, loss: int) -> None:
        python, numpy = self._words.both()
        random = self._random(steps.generators if steps.count % self._generators_every == 0 else [])
        flags |= trail.TORCH * bool(random) | trail.PYTHON * bool(python) | trail.NUMPY * bool(numpy)
        before, steps.before = steps.before, 0
        flags |= trail.BEFORE * bool(before)
        facts = [flags, trail.HERE, 0, loss, before, 0, 0, 0, 0, 0, random, python, numpy, self._words.salt]
        steps.facts[: len(facts)] = facts

    def finish(self) -> None:
        """Close the file."""
        self._file.close()


def capture_gradient(holders: dict[int, tuple[Any, Any]], gradient: Any, variable: Any) -> None:
    """Assign a gradient to an extra variable, in the graph being built; works in graphs compiled by XLA, too."""
    if not private_api.is_in_function(gradient):
        return
    holder = holders.get(id(variable))
    if holder is None:
        with private_api.ops().init_scope():
            zeros = sys.modules["tensorflow"].zeros(variable.shape, gradient.dtype)
            holder = variable, extra_variable(zeros, "reprokit_gradient")
        holders[id(variable)] = holder
    holder[1].assign(gradient)


def extra_variable(initial: Any, name: str, **options: Any) -> Any:
    """Return a variable of the agent's own; unlike one made by tf.Variable, each replica has its own copy."""
    variable_class = private_api.module("variables").ResourceVariable
    return variable_class(initial, trainable=False, name=name, **options)


def _is_bad(array: Any) -> bool:
    """Return whether a number in a small array is not finite."""
    if array is None or array.dtype.kind not in FLOATS:
        return False
    if array.size == 1:
        number = array.item()
        return bool(number - number != 0)
    return not sys.modules["numpy"].isfinite(array).all()


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
