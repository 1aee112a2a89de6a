"""The state that steps of Keras' fit, of functions, or of loops that run eagerly find.

It is variables of model, metrics and optimizer, generators, and the batches.
"""

from __future__ import annotations

import atexit
import itertools
import sys

from ..capture.random_states import RandomStates, put_back
from ..capture.tensorflow_restore import restore_eager_seed, restore_variables, value_of
from ..capture.tensorflow_state import (
    TensorCollector,
    as_array,
    distinct_names,
    eager_state,
    keras_generator,
    take_random,
)
from ..events import BatchFetched, EpochEnded, FirstCallDue, ForwardBegan, UpdateDone, UpdateDue, tell
from ..tensorflow import private_api
from ..tensorflow.state import OptimizerStep, optimizer_variables
from ..tensorflow.tensors import entry, name_of
from ..tensorflow.trail import seed_states
from .tensorflow_loops import step_of_loop
from .training_state import BUFFERS, DATA, OPTIMIZER, PARAMETERS, SCALER, SETTINGS, StateAnswers, short, state_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..agent import Agent
    from ..events import Events, Handler, TrainingEvent

METRICS, SEEDS, EAGER = "metrics", "seed generators of Keras", "TensorFlow generator"
GENERATORS = {"python": "Python generator", "numpy": "NumPy generator"}
OF_OPTIMIZERS = {"learning_rate": SETTINGS, "dynamic_scale": SCALER, "step_counter": SCALER}  # by ends of names
MAX_BYTES = 512 << 20  # of batches that are kept


class KerasState:
    """Looks at a training where a step is due: one of fit before it has a batch, one of a loop where a tape begins."""

    def __init__(self, agent: Agent, answers: StateAnswers, events: Events) -> None:
        self._answers, self._events = answers, events
        self._loop: OptimizerStep | None = None  # the step that each of a loop that runs eagerly is
        self._is_loop = True  # as far as is known
        self._is_due = False  # the step of a loop: it may have several tapes
        self._batches = FitBatches(answers)
        self._random = RandomStates()
        atexit.register(agent.attempt, self._batches.finish)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            BatchFetched: self._batches.fetched,
            FirstCallDue: self._first_call_due,
            ForwardBegan: self._tape_began,
            UpdateDue: self._update_due,
            UpdateDone: self._updated,
            EpochEnded: self._batches.epoch_ended,
        }

    def failed(self, error: Exception, handler: Handler) -> None:
        """What is not known of a step is no answer."""
        self._answers.log(problem=f"{getattr(handler, '__name__', '')}: {type(error).__name__}: {error}"[:500])

    def _first_call_due(self, event: FirstCallDue) -> None:
        """Have a function built, so that it is known what it updates before it does."""
        build = getattr(event.function, "get_concrete_function", None)
        if build is not None:
            self._answers.attempt("a function was not built", lambda: build(*event.arguments, **event.keywords))

    def _tape_began(self, _event: ForwardBegan) -> None:
        """A gradient tape begins to record: in a loop that runs eagerly a step begins with it."""
        if self._is_due or not self._is_loop or not private_api.executing_eagerly():
            return
        self._loop = self._loop or self._answers.attempt("a loop was not understood", step_of_loop)
        self._is_loop = self._loop is not None
        if self._loop is not None:
            self._is_due = True
            self._loop.arguments = self._batches.last
            tell(self._events.update_due, UpdateDue(self._loop))

    def _update_due(self, event: UpdateDue) -> None:
        step, answers = event.optimizer, self._answers
        self._is_loop = self._is_loop and step.is_eager
        if step.optimizer is None or step.arguments is None:
            return
        file = answers.kept("state") if answers.is_first else None
        if file is not None:
            self._put(file, step)
        parts = self._digests(step) if answers.is_logged else {}
        if answers.is_first and answers.keeps:
            answers.attempt("the state was not kept", self._keep, step)
        self._batches.due(step)
        if answers.is_logged:
            fetched = {"": self._batches.count} if step.is_eager else {}
            answers.log_parts({**parts, DATA: self._batches.digests()}, fetched=fetched)

    def _updated(self, event: UpdateDone) -> None:
        self._is_due = False
        if self._answers.window.updated(event.optimizer) and self._answers.window.is_over:
            self._batches.finish()

    def _digests(self, step: OptimizerStep) -> dict[str, dict[str, str]]:
        found = {
            part: {name: _digest(variable) for name, variable in zip(distinct_names(variables), variables)}
            for part, variables in variables_of(step).items()
        }
        self._random.keep()
        states = {EAGER: eager_state(), **{GENERATORS[name]: one for name, one in self._random.kept().items()}}
        found.update({part: {part: state_digest(state)} for part, state in states.items() if state is not None})
        return found

    def _keep(self, step: OptimizerStep) -> None:
        taking = TensorCollector()
        variables = {
            part: taking.tensors(f"{part}.", zip(distinct_names(variables), variables))
            for part, variables in variables_of(step).items()
        }
        self._random.keep()
        random = take_random(taking, {**self._random.kept(), "eager": eager_state()}, {}, [])
        self._answers.save("state", {"variables": variables, "random": random}, taking.parts)

    def _put(self, file: Any, step: OptimizerStep) -> None:
        """Put in the parts that were asked for."""
        parts, attempt = self._answers.parts, self._answers.attempt
        private_api.build(step.optimizer, getattr(step.model, "trainable_variables", step.model))
        for part, variables in variables_of(step).items():
            if part in parts:
                attempt(part, restore_variables, file, file.header["variables"][part], variables, part)
        nodes = file.header["random"]
        chosen = [name for name in nodes if GENERATORS.get(name) in parts]
        attempt("generators", lambda: put_back({name: value_of(file, nodes[name], has_arrays=True) for name in chosen}))
        if EAGER in parts:
            attempt(EAGER, lambda: restore_eager_seed(value_of(file, nodes["tensorflow"], has_arrays=True)))


def variables_of(step: OptimizerStep) -> dict[str, list[Any]]:
    """Return the variables that a step may change, by the part of the state that they are."""
    model, of_keras = step.model, keras_generator()
    parameters = list(getattr(model, "trainable_weights", model))
    found: dict[str, list[Any]] = {PARAMETERS: parameters, OPTIMIZER: [], SETTINGS: [], SCALER: [], METRICS: []}
    if hasattr(model, "weights"):
        trained = {id(variable) for variable in parameters}
        found[BUFFERS] = [variable for variable in model.weights if id(variable) not in trained]
        found[METRICS] = [variable for metric in model.metrics for variable in metric.variables]
        found[SEEDS] = seed_states(model)
    else:
        found[SEEDS] = [variable for variable in step.other_variables if "seed_generator_state" in name_of(variable)]
        found[BUFFERS] = [
            variable for variable in step.other_variables if "seed_generator_state" not in name_of(variable)
        ]
    if of_keras is not None and not any(private_api.plain(of_keras.state) is one for one in found[SEEDS]):
        found[SEEDS].append(of_keras.state)
    for variable in optimizer_variables(step.optimizer):
        ends = [part for end, part in OF_OPTIMIZERS.items() if name_of(variable).partition(":")[0].endswith(end)]
        found[ends[0] if ends else OPTIMIZER].append(variable)
    return found


class FitBatches:
    """The batches of fit's steps: kept, or given in the place of another run's own, with the ends of its epochs."""

    def __init__(self, answers: StateAnswers) -> None:
        self._answers = answers
        self._taking = TensorCollector()
        self._nodes: list[Any] = []  # of batches that are kept, or given; None: an epoch ended
        self._file: Any = None  # of what is given
        self._position = 0  # of what is given next
        self._batch: Any = None  # of the step that is due, where it is known
        self._is_saved = False
        self.count = 0  # of batches that the script itself fetched
        self.last: tuple[Any, ...] = ()  # of them

    def fetched(self, event: BatchFetched) -> None:
        """The script has fetched a batch; a loop that runs eagerly is handed another from its first step on."""
        self.count += 1
        if 0 < self._answers.fetched.get("", 0) <= self.count and DATA in self._answers.parts:
            self._open()
            if self._position < len(self._nodes):
                event.batch = _with_tensors(event.batch, value_of(self._file, self._nodes[self._position]))
                self._position += 1
        self.last = (event.batch,)

    def due(self, step: OptimizerStep) -> None:
        """Take what a step is given, the batches of fit or a function's arguments, and hand it on; or hand it other."""
        answers, self._batch = self._answers, None
        is_of_fit = hasattr(step.model, "weights")
        iterator = step.arguments[0] if step.arguments and is_of_fit else None
        if is_of_fit and not isinstance(iterator, _tensorflow().data.Iterator):
            return
        if DATA in answers.parts and not step.is_eager:
            self._give(step, iterator)
        elif self._keeps or (answers.is_logged and not answers.every):
            if iterator is None:
                self._batch = _tensors_of(step.arguments)
            else:
                self._batch = list(itertools.islice(iterator, private_api.steps_at_once(step.model)))
            if not self._batch:  # the epoch ends here, or nothing is known
                return
            if iterator is not None:
                step.arguments = (among(self._batch, iterator.element_spec),)
            if self._keeps:
                self._nodes.append(self._taking.value(f"batch.{len(self._nodes)}", self._batch))

    @property
    def _keeps(self) -> bool:
        """Whether batches are kept now."""
        is_asked = self._answers.keeps and self._answers.window.is_open and not self._is_saved
        return is_asked and sum(part.nbytes for part in self._taking.parts) < MAX_BYTES

    def digests(self) -> dict[str, str]:
        """Return the digests of the batch, where it is known."""
        if self._batch is None:
            return {}
        leaves = _tensorflow().nest.flatten(self._batch, expand_composites=True)
        return {f"batch.{number}": _digest(leaf) for number, leaf in enumerate(leaves)}

    def epoch_ended(self, _event: EpochEnded) -> None:
        """An epoch of fit has ended."""
        if self._nodes and self._keeps:
            self._nodes.append(None)
        elif self._file is not None and self._is_at_end:
            self._position += 1

    @property
    def _is_at_end(self) -> bool:
        """Whether the epoch ends where what is given is now."""
        return self._position < len(self._nodes) and self._nodes[self._position] is None

    def _open(self) -> None:
        """Open what is given."""
        if self._file is None:
            self._file = self._answers.kept(DATA)
            self._nodes = self._file.header["batches"]

    def _give(self, step: OptimizerStep, iterator: Any) -> None:
        self._open()
        if self._position >= len(self._nodes):
            return
        if self._is_at_end:
            step.arguments = None
            return
        self._batch = value_of(self._file, self._nodes[self._position])
        if iterator is None:
            step.arguments = _with_tensors(step.arguments, self._batch)
        else:
            step.arguments = (among(self._batch, iterator.element_spec),)
        self._position += 1

    def finish(self) -> None:
        """Save what was kept."""
        if self._nodes and self._file is None and not self._is_saved:
            self._is_saved = True
            self._answers.save(DATA, {"batches": self._nodes}, self._taking.parts)


def _tensors_of(arguments: Any) -> list[Any]:
    """Return the tensors and arrays in what a function is given."""
    return [one for one in _tensorflow().nest.flatten(arguments) if _is_tensor(one)]


def _with_tensors(arguments: Any, tensors: list[Any]) -> Any:
    """Return a function's arguments with other tensors; the same where there are other numbers of them."""
    nest, rest = _tensorflow().nest, iter(tensors)
    if len(_tensors_of(arguments)) != len(tensors):
        return arguments
    return nest.pack_sequence_as(arguments, [next(rest) if _is_tensor(one) else one for one in nest.flatten(arguments)])


def _is_tensor(value: Any) -> bool:
    return private_api.has_value(value) or type(value).__module__ == "numpy"


def among(batches: list[Any], specification: Any) -> Any:
    """Return an iterator over these batches alone, of the script's own specification: no step is traced again."""
    tensorflow = _tensorflow()

    def relaxed(part: Any, known: Any) -> Any:
        is_tensor = isinstance(known, tensorflow.TensorSpec)
        return tensorflow.raw_ops.PlaceholderWithDefault(input=part, shape=known.shape) if is_tensor else part

    def whole(*parts: Any) -> Any:
        one = parts if isinstance(specification, tuple) else parts[0]
        return tensorflow.nest.map_structure(relaxed, one, specification)

    first, *others = [tensorflow.data.Dataset.from_tensors(batch).map(whole) for batch in batches]
    for other in others:
        first = first.concatenate(other)
    return iter(first)


def _digest(value: Any) -> str:
    return short(entry("", as_array(value))[3])


def _tensorflow() -> Any:
    return sys.modules["tensorflow"]
