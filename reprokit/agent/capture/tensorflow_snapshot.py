"""A step of TensorFlow that must not be applied: why, and what a snapshot holds of it."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain

from ..core import live_objects
from ..core.signal_errors import pass_on
from ..core.user_frames import variables_of
from ..tensorflow import private_api
from . import checks
from .header import ACTIVATION, CONDITION, GRADIENT, PARAMETER, SnapshotHeader, Trigger
from .tensorflow_state import (
    SCRIPT,
    TensorCollector,
    as_array,
    besides,
    digest,
    distinct_names,
    held_or_now,
    is_float,
    loss_scale,
    model_variables,
    numbers,
    plain,
    resource_id,
    take_models,
    take_optimizers,
    take_random,
)
from .variables import user_functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .settings import Conditions
    from .store import Part
    from .tensorflow_steps import StepValues

MAX_TRIGGERS = 64
_NUMBERS = ("EagerTensor", "ndarray", "RaggedTensor", "SparseTensor")


class RejectedState:
    """What a step was taken with: models, optimizers, variables and random states."""

    def __init__(self, optimizer: Any) -> None:
        self.model: Any = None
        self.optimizers: list[Any] = [optimizer]
        self.others: list[Any] = []  # what other optimizers train
        self.held: dict[int, Any] = {}  # values of what the forward pass had moved, by resource_id
        self.moved: list[Any] = []  # variables that the step wrote to before its update
        self.random: dict[str, Any] = {}  # Python's and NumPy's, by the agent, and "eager" of TensorFlow
        self.unreadable: list[str] = []  # operations of which not even what they drew is known


class RejectedStep:
    """What was seen of a step, all of it in values."""

    def __init__(self, optimizer: Any, variables: Sequence[Any], gradients: Sequence[Any], values: StepValues) -> None:
        self.optimizer = optimizer
        self.variables = [plain(variable) for variable in variables]
        self.names = distinct_names(variables)
        self.gradients = list(gradients)
        self.values = values
        self.after: list[Any] = []  # the variables as the update has made them, or left them
        self.norm_mean: float | None = None  # of steps before
        self.only_in = -1  # the replica, of several processes', where alone it is not finite
        self.facts = SnapshotHeader()  # as far as they are known
        self.state = RejectedState(optimizer)
        self.notes: list[str] = []

    def triggers(self, conditions: Conditions) -> list[Trigger]:
        """Why it must not be applied, the most telling first."""
        found = [*self._ruined_before(), *self.not_finite(), self.bad_loss(conditions.loss_above)]
        found = [trigger for trigger in found if trigger is not None]
        found = found or [trigger for trigger in self.ruined() if trigger is not None]
        if self.norm_mean is not None and not found:
            found.append(checks.jumped(self.norm(), conditions.gradient_jump or 0.0, self.norm_mean))
        if not found and self.only_in >= 0:
            found.append(checks.other_rank(self.only_in, "a gradient, loss or output is not finite"))
        where = self.facts.trigger.where
        return [trigger.with_(where=where) for trigger in found[:MAX_TRIGGERS] if trigger is not None]

    def not_finite(self) -> Iterator[Trigger | None]:
        """Judge layers' outputs and gradients."""
        for place, (name, finite) in enumerate(self.values.activations):
            if not finite:
                yield Trigger(ACTIVATION, "not finite", name=name, place=place)
        for name, gradient in zip(self.names, self.gradients):
            yield checks.elements(GRADIENT, name, *_not_finite(gradient))

    def _ruined_before(self) -> Iterator[Trigger | None]:
        """Judge the variables as they were before the step."""
        for name, variable in zip(self.names, self.variables):
            found = checks.elements(PARAMETER, name, *_not_finite(held_or_now(variable, self.state.held)))
            yield None if found is None else found.with_(was_before=True)

    def ruined(self) -> Iterator[Trigger | None]:
        """Judge the variables as they are after the update."""
        for name, value in zip(self.names, self.after):
            yield checks.elements(PARAMETER, name, *_not_finite(value))

    def norm(self) -> float:
        """Of all gradients."""
        return float(sum(_norm(gradient) ** 2 for gradient in self.gradients if gradient is not None) ** 0.5)

    def bad_loss(self, above: float | None) -> Trigger | None:
        """Judge the loss."""
        if self.values.loss is None:
            return None
        numbers = as_array(self.values.loss).astype("float64").reshape(-1).tolist()
        bad = [number for number in numbers if number - number != 0]
        return checks.loss(bad[0] if bad else max(numbers), above) if numbers else None

    def contents(self, conditions: Conditions) -> tuple[SnapshotHeader, list[Part]]:
        """Header and tensors of the snapshot."""
        taking, triggers = TensorCollector(), self.triggers(conditions) or [Trigger(CONDITION)]
        state = self.state
        number = next((n for n, one in enumerate(state.optimizers) if one is self.optimizer), 0)
        header = self.facts.with_(
            framework="keras" if state.model is not None else "tensorflow",
            trigger=triggers[0].with_(optimizers=(f"optimizer#{number}",)),
            also=tuple(triggers[1:]),
            models=tuple(self._models(taking)),
            optimizers=tuple(take_optimizers(taking, state.optimizers, state.held)),
            batches=tuple(self._batches(taking)),
            loss=self._loss(),
            random=take_random(taking, state.random, state.held, self.values.drawn),
            precision=self._precision(),
            environment={"deterministic": _deterministic()},
            **self._gradients(taking),
        )
        if state.unreadable:
            names = ", ".join(state.unreadable[:8])
            self.notes.append(f"the random states of {len(state.unreadable)} operations cannot be read: {names}")
        return header.with_(notes=(*self.notes, *taking.notes)), taking.parts

    def _batches(self, taking: TensorCollector) -> Iterator[dict[str, Any]]:
        replicas: list[int | None] = [*self.values.replicas, *[None] * len(self.values.batches)]
        for place, (batch, replica) in enumerate(zip(self.values.batches, replicas)):
            entry = _batch(taking, place, *batch)
            yield entry if replica is None else {**entry, "replica": replica}

    def _loss(self) -> dict[str, Any] | None:
        if self.values.loss is None:
            return None
        return {
            "value": float(as_array(self.values.loss).astype("float64").mean()).hex(),
            "digest": digest(self.values.loss),
        }

    def _models(self, taking: TensorCollector) -> list[dict[str, Any]]:
        known = self.state
        models = [known.model] if known.model is not None else all_owners(self.variables, known.others)
        others = besides(models, known.optimizers, [*self.variables, *known.others, *known.moved])
        return take_models(taking, models, known.held, others)

    def _gradients(self, taking: TensorCollector) -> dict[str, Any]:
        kept, digests = {}, {}
        for name, gradient in zip(self.names, self.gradients):
            if gradient is None:
                continue
            whole = dense(gradient)
            digests[name] = digest(whole)
            if _not_finite(whole)[0]:
                kept[name] = whole
        return {"gradients": taking.tensors("gradient.", kept.items()), "gradient_digests": digests}

    def _precision(self) -> dict[str, Any]:
        policy = getattr(getattr(self.state.model, "dtype_policy", None), "name", None)
        scale = loss_scale(self.optimizer)
        return {"policy": policy, "scale": None if scale is None else float(as_array(scale)).hex()}


def _batch(taking: TensorCollector, place: int, origin: str, value: Any) -> dict[str, Any]:
    node = taking.value(f"batch.{place}", value)
    return {"from": origin, "value": node, "sample_axis": 0, "samples": samples(value)}


def samples(value: Any) -> int | None:
    """How many samples a batch has: what most of its tensors have along their first axis; None if that is unclear."""
    flat = sys.modules["tensorflow"].nest.flatten(value)
    sizes = Counter(rows for rows in map(_rows, flat) if rows is not None)
    (most, count), *others = [*sizes.most_common(2), (None, 0)]
    return None if others and others[0][1] == count else most


def _rows(tensor: Any) -> int | None:
    """Return how many entries it has along its first axis."""
    shape = tensor.shape if hasattr(type(tensor), "shape") else None
    return None if shape is None or not len(shape) or shape[0] is None else int(shape[0])


def dense(gradient: Any) -> Any:
    """Return a gradient as one tensor."""
    return sys.modules["tensorflow"].convert_to_tensor(gradient) if hasattr(gradient, "indices") else gradient


def _values(gradient: Any) -> Any:
    return as_array(getattr(gradient, "values", gradient) if hasattr(gradient, "indices") else gradient)


def _not_finite(gradient: Any) -> tuple[int, int]:
    """Return how many numbers are not finite, and of how many."""
    if gradient is None:
        return 0, 0
    array = _values(gradient)
    bad = int((~sys.modules["numpy"].isfinite(numbers(array))).sum()) if is_float(array) else 0
    return bad, int(array.size)


def _norm(gradient: Any) -> float:
    values = numbers(_values(gradient)).astype("float64").reshape(-1)
    return float(sys.modules["numpy"].linalg.norm(values))


def all_owners(variables: list[Any], others: list[Any]) -> list[Any]:
    """Return the models of what one optimizer trains, and behind them those of what others do."""
    first = owners(variables)
    held = {resource_id(variable) for model in first for variable in model_variables(model)}
    return [*first, *owners([variable for variable in others if resource_id(variable) not in held])]


def owners(variables: list[Any]) -> list[Any]:
    """Return the models, of Keras or modules, that hold these variables: the fewest, each not part of another."""
    wanted = set(map(id, variables))
    kinds = (*private_api.keras_classes("Layer"), private_api.module("modules").Module)
    found: list[Any] = []
    for one in live_objects.instances(*kinds):
        if not _is_optimizer(one):
            ids = _ids(one)
            if ids & wanted:
                found.append((len(ids & wanted), len(ids), len(found), one, ids))
    found.sort(key=lambda entry: (-entry[0], -entry[1], not hasattr(entry[3], "fit"), entry[2]))
    chosen = []
    for _, _, _, one, ids in found:
        if ids & wanted:
            chosen.append(one)
            wanted -= ids
    return chosen


def _is_optimizer(one: Any) -> bool:
    return hasattr(one, "apply_gradients")


def _ids(one: Any) -> set[int]:
    try:
        return {resource_id(variable) for variable in one.variables}
    except Exception as error:  # not built
        pass_on(error)
        return set()


def _deterministic() -> str:
    config = private_api.module("config")
    return str(bool(config is not None and config.is_op_determinism_enabled()))


def in_fit(frame: Any) -> tuple[int | None, int | None]:
    """Epoch and step of the fit that a frame is called by."""
    while frame is not None:
        known = variables_of(frame) if frame.f_code.co_name == "fit" else {}
        if "epoch" in known:
            step, epoch = known.get("begin_step", known.get("step")), known["epoch"]
            return (epoch if type(epoch) is int else None), (step if type(step) is int else None)
        frame = frame.f_back
    return None, None


def local_batch(frame: Any) -> list[tuple[str, Any]]:
    """Return the batch that nobody handed over: what variables of the user's innermost function hold of numbers.

    Tensors and arrays, and dictionaries of them; lists are often those of gradients.
    """
    function = next(user_functions(frame), None)
    known = {} if function is None else variables_of(function)
    named = {name: known[name] for name in known if name[0] != "_"}
    values = {name: value for name, value in named.items() if _are_numbers(_parts(value))}
    return [(SCRIPT, _without_data(values))] if values else []


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if type(value) is dict else [value]


def _are_numbers(parts: list[Any]) -> bool:
    return bool(parts) and all(type(part).__name__ in _NUMBERS for part in parts)


def _without_data(values: dict[str, Any]) -> dict[str, Any]:
    """Without what batches are taken of: as many rows as only tensors have of which there is one with fewer, too."""
    least: dict[str, int] = {}  # rows, by what a row is
    shapes = {name: [part.shape for part in _parts(values[name]) if _rows(part) is not None] for name in values}
    for shape in chain.from_iterable(shapes.values()):
        least[str(shape[1:])] = min(int(shape[0]), least.get(str(shape[1:]), int(shape[0])))
    batches = set(least.values())
    return {
        name: values[name] for name in values if not shapes[name] or any(int(one[0]) in batches for one in shapes[name])
    }
