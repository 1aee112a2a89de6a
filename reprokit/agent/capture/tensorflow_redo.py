"""Does a captured step of TensorFlow 2 and Keras again, at the first step of the user's own script.

The script's own function is executed, in the graph that captures, on the snapshot's state and batch. To explain it, the
same function is executed operation by operation.
"""

from __future__ import annotations

import atexit
import copy
import json
import math
import sys
from contextlib import contextmanager

from ..observing import places
from . import tensorflow_state as state
from .reading import SnapshotError
from .redoing import Redoing, Seen, StepByStep
from .tensorflow_capture import Call, TensorFlowCapture
from .tensorflow_causes import line, nonfinite_count
from .tensorflow_explain import Watching
from .tensorflow_found import Found, dense, owners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any

    from . import Capture
    from .reading import SnapshotFile
    from .tensorflow_steps import Step

    Function = Callable[..., Any]

BY_ITSELF = "executed operation by operation, the step is finite: what began it is how it was compiled"
FINITE = "the step was finite this time; its gradients are not known then"


class TensorFlowRedo(TensorFlowCapture):
    """Waits for the first step of the script."""

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture)
        self.redoing = Redoing(capture)
        self._doing = False
        self._loop: _Loop | None = None  # of the script's own, in eager code
        self.last: Found | None = None  # the step that was found last
        self._test_likewise()

    def _begin_first(self, name: str, module: ModuleType) -> None:
        from .tensorflow1_redo import TensorFlow1Redo

        self._first = self._first or TensorFlow1Redo(self._capture)
        self._first.begin(name, module)

    def outermost(self, call: Call) -> Any:
        """In the place of the script's first step."""
        if self._doing:
            return call.run()
        if call.origin == "function" or not _is_built(call.model):
            result = call.run()  # which makes all variables, and tells whether it trains
            if not getattr(call.function, "_reprokit_trains", call.origin == "fit") and self.last is None:
                return result
        self._doing = True
        return self.redoing.run(lambda: _Doer(self, call, self.redoing.file))

    def found(self, found: Found) -> None:
        """A step that is not applied, which is what was looked for."""
        self.last = found
        if self._is_in_loop():
            self._stepped(found)

    def applied(self, optimizer: Any) -> None:
        """A step in eager code that was finite."""
        if self._is_in_loop() and (self._loop is None or self.is_wanted(optimizer)):
            self._stepped(None)

    def begins(self, _step: Step) -> None:
        """A step in eager code."""
        if self._loop is not None and self._is_in_loop():
            self._loop.begins()

    def _is_in_loop(self) -> bool:
        return not self._doing and getattr(self._here, "call", None) is None

    def _stepped(self, found: Found | None) -> None:
        """The first step of a loop has made all variables; from then on each is one that is done again."""
        if self._loop is not None:
            self._loop.ends(found)
            return
        made = self.redoing.attempted(lambda: {"loop": _Loop(self, self.redoing.file)})
        self._loop = made.get("loop")
        if self._loop is None:
            self.redoing.finish(made)

    def _make_next(self, original: Function) -> Function:
        get_next = super()._make_next(original)

        def get_replaced(iterator: Any, *arguments: Any) -> Any:
            value = get_next(iterator, *arguments)
            return value if self._loop is None or not self._is_in_loop() else self._loop.fetched(value)

        return get_replaced

    def _test_likewise(self) -> None:
        """Have steps tested for what the snapshot was written for."""
        try:
            trigger = self.redoing.file.header["trigger"]
        except SnapshotError:  # which the first step tells
            return
        if trigger.get("kind") == "activation":
            self._conditions.activations = True
        if trigger.get("kind") == "condition":
            is_loss = isinstance(trigger.get("limit"), str) and "loss" in str(trigger.get("what"))
            limit = float.fromhex(trigger["limit"]) if is_loss else -math.inf  # whose gradients are then always shown
            self._conditions.loss_above = limit

    def put(self, model: Any) -> None:
        """Put the state before the step into models, optimizers and random states."""
        optimizers, variables = self._trained(model)
        models = [model] if model is not None else _models(variables)
        file = self.redoing.file
        state.put_models(file, models)
        state.put_optimizers(_of_trigger(file) if len(optimizers) == 1 else file, optimizers)
        state.put_random(file)

    def _trained(self, model: Any) -> tuple[list[Any], list[Any]]:
        """The optimizers, and the variables of the one whose step was captured."""
        known = [entry for entry in self._order if entry.optimizer() is not None]
        if not known:
            return [model.optimizer], []
        number = _number(self.redoing.file)
        entry = known[number] if number < len(known) else known[-1]
        return [one.optimizer() for one in known], [state.plain(variable) for variable in entry.variables]

    def is_wanted(self, optimizer: Any) -> bool:
        """Whether this optimizer's step is the one that was captured."""
        optimizers = self._trained(None)[0]
        number = min(_number(self.redoing.file), len(optimizers) - 1)
        return optimizers[number] is optimizer


def _number(file: SnapshotFile) -> int:
    """Which optimizer's step was captured."""
    name = str(file.header["trigger"].get("optimizer")).partition("#")[2]
    return int(name) if name.isdecimal() else 0


def _of_trigger(file: SnapshotFile) -> Any:
    """The snapshot with the one optimizer whose step was captured."""
    view = copy.copy(file)
    entries = file.header.get("optimizers") or []
    view.header = {**file.header, "optimizers": entries[_number(file) :][:1] or entries[:1]}
    return view


def _models(variables: list[Any]) -> list[Any]:
    """The models that have these variables, and a list of those that are in none, as a snapshot has them."""
    models = owners(variables)
    held = {state.resource_id(variable) for model in models for variable in state.model_variables(model)}
    others = [variable for variable in variables if state.resource_id(variable) not in held]
    return [*models, *([others] if others else [])]


def _is_built(model: Any) -> bool:
    """Whether model and optimizer have all of their variables before the first step, as Keras 3 makes them."""
    return bool(getattr(model, "built", False) and getattr(getattr(model, "optimizer", None), "built", False))


class _Doer:
    """Executes the step as often as it is asked to."""

    def __init__(self, owner: TensorFlowRedo, call: Call, file: SnapshotFile) -> None:
        self._owner = owner
        self._call = call
        self._file = file
        like = call.arguments[0] if len(call.arguments) == 1 and not call.keywords else call.arguments
        if call.keywords:
            like = [*call.arguments, call.keywords]
        self._batch, self._from, self.samples = only_batch(file, like if call.origin == "function" else None)

    def execute(self, samples: Sequence[int] | None) -> Seen:
        """Execute the step on these samples."""
        self._run(samples)
        return finite() if self._owner.last is None else seen(self._owner.last)

    def _run(self, samples: Sequence[int] | None) -> None:
        self._owner.put(self._call.model)
        self._owner.last = None
        batch = self._batch if samples is None else part_of(self._batch, samples, self.samples)
        if self._call.origin == "fit" or self._from == "loader":
            self._call.run(tuple(_replaced(argument, batch) for argument in self._call.arguments))
            return
        if self._call.keywords:
            *arguments, self._call.keywords = batch
        else:
            arguments = [batch] if len(self._call.arguments) == 1 else list(batch)
        self._call.run(tuple(arguments))

    def explain(self) -> dict[str, Any] | None:
        """Execute the step operation by operation, and find what began it."""
        with _eagerly(), Watching() as watching:
            self._run(None)
        return explained(watching, self._owner.last, self._batch)


class _Loop:
    """A loop of the script's in eager code, each of whose steps is taken on the snapshot's state and batch."""

    def __init__(self, owner: TensorFlowRedo, file: SnapshotFile) -> None:
        self._owner = owner
        self._file = file
        self._batch, self._from, self._samples = only_batch(file, None)
        self._steps = StepByStep(owner.redoing, self._samples)
        self._watching: Watching | None = None
        self._begun = False
        atexit.register(self._steps.script_ends)

    @property
    def _part(self) -> Any:
        wanted = self._steps.wanted
        return self._batch if wanted is None else part_of(self._batch, wanted, self._samples)

    def fetched(self, value: Any) -> Any:
        """What a data set gives is replaced, where it is of the same build."""
        nest = sys.modules["tensorflow"].nest
        try:
            nest.assert_same_structure(value, self._batch)
        except (TypeError, ValueError):
            return value
        return self._part if self._from == "loader" else value

    def begins(self) -> None:
        """A step begins: it has the snapshot's state."""
        done = self._owner.redoing.attempted(self._prepare)
        if "trouble" in done:
            self._owner.redoing.finish(done)

    def _prepare(self) -> dict[str, Any]:
        if self._from == "script":
            put_locals(self._part)
        self._owner.put(None)
        self._begun = True
        if self._owner.redoing.settings.mode == "explain" and self._watching is None:
            self._watching = Watching().__enter__()
        return {}

    def ends(self, found: Found | None) -> None:
        """A step was taken."""
        if not self._begun:
            return
        self._begun = False
        if self._watching is not None:
            self._watching.__exit__(None, None, None)
        came = finite() if found is None else seen(found)
        self._steps.saw(came, lambda: {} if self._watching is None else explained(self._watching, found, self._batch))


def put_locals(values: Any) -> None:
    """Give the variables of the user's innermost function these values, by name."""
    frame: Any = sys._getframe(1)
    while frame is not None and not places.is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or not isinstance(values, dict):
        raise SnapshotError("the batch cannot be put into the script: it is not known where it came from")
    known = frame.f_locals
    known.update({name: value for name, value in values.items() if name in known})
    from ctypes import c_int, py_object, pythonapi

    pythonapi.PyFrame_LocalsToFast(py_object(frame), c_int(0))  # which does nothing from CPython 3.13 on, nor needs to


def only_batch(file: SnapshotFile, like: Any) -> tuple[Any, str, int]:
    """The batch of the step, where it comes from, and how many samples it has."""
    batches = [entry for entry in file.header.get("batches") or [] if isinstance(entry, dict)]
    if len(batches) != 1:
        raise SnapshotError(f"the snapshot holds {len(batches)} batches of the step, and one can be done again")
    if '"replicas"' in json.dumps(batches[0].get("value")):
        raise SnapshotError("the step was one of several replicas, which is not done again; reprokit.capture loads it")
    samples = batches[0].get("samples")
    value = state.batches(file, [like])[0]
    return value, str(batches[0].get("from")), samples if isinstance(samples, int) else 0


def _replaced(argument: Any, batch: Any) -> Any:
    """An iterator over this batch alone, in the place of one of the script's."""
    data = sys.modules["tensorflow"].data
    if isinstance(argument, data.Iterator):
        return iter(data.Dataset.from_tensors(batch))
    if isinstance(argument, data.Dataset):
        return data.Dataset.from_tensors(batch)
    return iter([batch]) if hasattr(argument, "__next__") else argument


@contextmanager
def _eagerly() -> Iterator[None]:
    """Execute what functions of TensorFlow do one operation after the other."""
    config = sys.modules["tensorflow"].config
    before = config.functions_run_eagerly()
    config.run_functions_eagerly(True)
    try:
        yield
    finally:
        config.run_functions_eagerly(before)


def explained(watching: Watching, found: Found | None, batch: Any) -> dict[str, Any]:
    """The operation that began what was found."""
    if found is None:
        return {"problems": [BY_ITSELF]}
    roots = [found.loss, *[getattr(one, "values", one) for one in found.gradients]]
    cause = watching.cause([root for root in roots if root is not None])
    if cause is None:
        return {"problems": ["no operation was seen that began it"]}
    given = sys.modules["tensorflow"].nest.flatten(batch, expand_composites=True)
    return line(cause, [one._numpy() for one in given if hasattr(one, "_numpy") and one.dtype.is_floating])


def finite() -> Seen:
    """A step that was applied."""
    return Seen({}, {}, (None, ""), notes=[FINITE])


def seen(found: Found) -> Seen:
    """What a step came to that was not applied."""
    digests: dict[str, str] = {}
    bad: dict[str, tuple[int, int]] = {}
    squares = 0.0
    for name, gradient in zip(found.names, found.gradients):  # noqa: B905
        if gradient is not None:
            digests[name] = state.digest(dense(gradient))
            array = state.as_array(getattr(gradient, "values", gradient))
            squares += float((abs(array.astype("complex128")) ** 2).sum())
            _count(bad, name, array)
    bad.update({name: (1, 1) for name, is_finite in found.activations if not is_finite})
    if found.loss is None:
        return Seen(digests, bad, (None, ""), math.sqrt(squares))
    array = state.as_array(found.loss)
    _count(bad, "loss", array)
    return Seen(digests, bad, (float(array.astype("float64").mean()), state.digest(found.loss)), math.sqrt(squares))


def _count(bad: dict[str, tuple[int, int]], name: str, array: Any) -> None:
    count = nonfinite_count(array)
    if count:
        bad[name] = (count, int(array.size))


def part_of(batch: Any, samples: Sequence[int], of: int) -> Any:
    """Of each tensor of a batch with so many rows only these."""
    tensorflow = sys.modules["tensorflow"]

    def chosen(value: Any) -> Any:
        shape = getattr(value, "shape", None)
        if shape is None or len(shape) == 0 or shape[0] != of:
            return value
        if type(value).__name__ == "SparseTensor":
            return tensorflow.sparse.from_dense(tensorflow.gather(tensorflow.sparse.to_dense(value), list(samples)))
        return tensorflow.gather(value, list(samples))

    return tensorflow.nest.map_structure(chosen, batch)
