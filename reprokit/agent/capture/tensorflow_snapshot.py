"""A TensorFlow step that must not be applied: its triggers, and the contents of its snapshot."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain

from ..core import live_objects
from ..core.signal_errors import pass_on
from ..core.user_frames import variables_of
from ..tensorflow import private_api
from ..tensorflow.tensor_names import distinct_names
from ..tensorflow.training_state import as_array, eager_state, plain, resource_id
from . import checks
from . import tensorflow_graphs as graphs
from .header import ACTIVATION, CONDITION, GRADIENT, PARAMETER, SnapshotHeader, Trigger, in_words
from .tensorflow_state import (
    SCRIPT,
    TensorCollector,
    digest,
    is_float,
    loss_scale,
    model_variables,
    numbers,
    saved_or_current,
    take_models,
    take_optimizers,
    take_random,
    variables_of_no_owner,
)
from .tensorflow_steps import RequestedStep, StepValues
from .variables import user_functions, user_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from . import CaptureSession
    from .random_states import RandomStates
    from .settings import Conditions
    from .store import Part
    from .tensorflow_graphs import UpdateSite
    from .tensorflow_steps import OutermostCall, TensorFlowStep, TrainingState, WatchedOptimizer

MAX_TRIGGERS = 64
_NUMBERS = ("EagerTensor", "ndarray", "RaggedTensor", "SparseTensor")


class RejectedState:
    """The state that a rejected step began with: models, optimizers, variables and random states."""

    def __init__(self, optimizer: Any) -> None:
        self.model: Any = None
        self.optimizers: list[Any] = [optimizer]
        self.others: list[Any] = []  # variables that other optimizers train
        self.saved: dict[int, Any] = {}  # values from before the step, by resource_id
        self.changed: list[Any] = []  # variables that the step wrote to before its update
        self.random: dict[str, Any] = {}  # states of Python and NumPy, and TensorFlow's as "tensorflow"
        self.unreadable: list[str] = []  # random operations of which neither state nor result is known


class RejectedStep:
    """A rejected step, with all its gradients, losses and outputs as values."""

    def __init__(self, optimizer: Any, variables: Sequence[Any], gradients: Sequence[Any], values: StepValues) -> None:
        self.optimizer = optimizer
        self.variables = [plain(variable) for variable in variables]
        self.names = distinct_names(variables)
        self.gradients = list(gradients)
        self.values = values
        self.after: list[Any] = []  # values of the variables after the update
        self.norm_mean: float | None = None  # running mean of the gradients' norm
        self.only_replica = -1  # number of the only replica that is not finite, if there is one
        self.is_requested = False  # its snapshot is taken whatever is in it, and the step is applied
        self.facts = SnapshotHeader()  # the part of the header that is known so far
        self.state = RejectedState(optimizer)
        self.notes: list[str] = []

    def triggers(self, conditions: Conditions) -> list[Trigger]:
        """Return why the step must not be applied, the most informative trigger first."""
        triggers = [*self._ruined_before(), *self.not_finite(), self.bad_loss(conditions.loss_above)]
        triggers = [trigger for trigger in triggers if trigger is not None]
        triggers = triggers or [trigger for trigger in self.ruined() if trigger is not None]
        if self.norm_mean is not None and not triggers:
            triggers.append(checks.jump_trigger(self.norm(), conditions.gradient_jump or 0.0, self.norm_mean))
        if not triggers and self.only_replica >= 0:
            triggers.append(checks.other_rank(self.only_replica, "a gradient, loss or output is not finite"))
        where = self.facts.trigger.where
        return [trigger.with_(where=where) for trigger in triggers[:MAX_TRIGGERS] if trigger is not None]

    def not_finite(self) -> Iterator[Trigger | None]:
        """Yield triggers for layers' outputs and gradients that are not finite."""
        for place, (name, finite) in enumerate(self.values.activations):
            if not finite:
                yield Trigger(ACTIVATION, "not finite", name=name, place=place)
        scale = loss_scale(self.optimizer) if self.is_requested else None
        if scale is None or float(as_array(scale)) <= 1:  # an overflow is no alarm, nor would it have led here
            for name, gradient in zip(self.names, self.gradients):
                yield checks.elements(GRADIENT, name, *_not_finite(gradient))

    def _ruined_before(self) -> Iterator[Trigger | None]:
        """Yield triggers for variables that were not finite before the step."""
        for name, variable in zip(self.names, self.variables):
            trigger = checks.elements(PARAMETER, name, *_not_finite(saved_or_current(variable, self.state.saved)))
            yield None if trigger is None else trigger.with_(was_before=True)

    def ruined(self) -> Iterator[Trigger | None]:
        """Yield triggers for variables that are not finite after the update."""
        for name, value in zip(self.names, self.after):
            yield checks.elements(PARAMETER, name, *_not_finite(value))

    def norm(self) -> float:
        """Return the L2 norm of all gradients together."""
        return float(sum(_norm(gradient) ** 2 for gradient in self.gradients if gradient is not None) ** 0.5)

    def bad_loss(self, above: float | None) -> Trigger | None:
        """Return a trigger if the loss is not finite, or above a limit."""
        if self.values.loss is None:
            return None
        numbers = as_array(self.values.loss).astype("float64").reshape(-1).tolist()
        not_finite = [number for number in numbers if number - number != 0]
        return checks.loss(not_finite[0] if not_finite else max(numbers), above) if numbers else None

    def contents(self, conditions: Conditions) -> tuple[SnapshotHeader, list[Part]]:
        """Return header and tensors of the snapshot."""
        taking, triggers = TensorCollector(), self.triggers(conditions)
        triggers, state = triggers or [checks.asked() if self.is_requested else Trigger(CONDITION)], self.state
        number = next((n for n, optimizer in enumerate(state.optimizers) if optimizer is self.optimizer), 0)
        header = self.facts.with_(
            framework="keras" if state.model is not None else "tensorflow",
            trigger=triggers[0].with_(optimizers=(f"optimizer#{number}",)),
            also=tuple(triggers[1:]),
            models=tuple(self._models(taking)),
            optimizers=tuple(take_optimizers(taking, state.optimizers, state.saved)),
            batches=tuple(self._batches(taking)),
            loss=self._loss(),
            random=take_random(taking, state.random, state.saved, self.values.drawn),
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
        state = self.state
        models = [state.model] if state.model is not None else models_of(self.variables, state.others)
        others = variables_of_no_owner(models, state.optimizers, [*self.variables, *state.others, *state.changed])
        return take_models(taking, models, state.saved, others)

    def _gradients(self, taking: TensorCollector) -> dict[str, Any]:
        bad_gradients, digests = {}, {}
        for name, gradient in zip(self.names, self.gradients):
            if gradient is None:
                continue
            tensor = dense(gradient)
            digests[name] = digest(tensor)
            if _not_finite(tensor)[0]:
                bad_gradients[name] = tensor
        return {"gradients": taking.tensors("gradient.", bad_gradients.items()), "gradient_digests": digests}

    def _precision(self) -> dict[str, Any]:
        policy = getattr(getattr(self.state.model, "dtype_policy", None), "name", None)
        scale = loss_scale(self.optimizer)
        return {"policy": policy, "scale": None if scale is None else float(as_array(scale)).hex()}


class RejectionHandler:
    """Completes the description of steps that must not be applied, and passes them on."""

    def __init__(self, capture: CaptureSession, training: TrainingState) -> None:
        self.capture = capture
        self.training = training
        self.random: RandomStates | None = None  # of Python and NumPy; set when TensorFlow is imported
        self.reject: Callable[[RejectedStep], None] = self._save  # called with a step that must not be applied
        self.requested = RequestedStep(capture, training)
        self._conditions = capture.settings.conditions
        training.step_listeners.append(self._begins)

    def _begins(self, _step: TensorFlowStep) -> None:
        if self.training.thread_state.call is None:
            self.keep_random()

    def keep_random(self) -> None:
        """Save the current random states."""
        if self.random is not None:
            self.random.keep()

    def _save(self, step: RejectedStep) -> None:
        """Save a rejected step, and report it; raises SystemExit if the training is to end."""
        triggers, path = self._write(step)
        self.capture.captured(step.facts.step, in_words(triggers[0]) if triggers else "it is not finite", path)

    def _write(self, step: RejectedStep) -> tuple[list[Trigger], str | None]:
        """Write the snapshot of a step; return what was wrong in it, and its path."""
        triggers = step.triggers(self._conditions)
        saved = self.capture.attempt(step.contents, self._conditions)
        return triggers, None if saved is None else self.capture.save(saved[0].line(), saved[1])

    def take(self, rejected: RejectedStep, watched: WatchedOptimizer, call: OutermostCall | None, frame: Any) -> None:
        """Save the step whose snapshot is requested; the training goes on."""
        self.requested.is_taken = rejected.is_requested = True
        self.capture.attempt(self._complete, rejected, watched, call, frame)
        rejected.facts = rejected.facts.with_(step=self.requested.number or 0)
        self._write(rejected)

    def handle(
        self, rejected: RejectedStep, watched: WatchedOptimizer, call: OutermostCall | None, frame: Any
    ) -> BaseException | None:
        """Complete a rejected step and capture it; return the exception that is to end the training, if any."""
        self.capture.attempt(self._complete, rejected, watched, call, frame)
        try:
            self.reject(rejected)
        except SystemExit as error:
            return error
        except Exception as error:
            self.capture.say_once(f"warning: no snapshot: {type(error).__name__}: {error}")
            pass_on(error)
        finally:
            watched.skipped += 1
        if call is not None:
            call.rolls_back = True
        return None

    def _complete(
        self, rejected: RejectedStep, watched: WatchedOptimizer, call: OutermostCall | None, frame: Any
    ) -> None:
        state = rejected.state
        state.random = {**({} if self.random is None else self.random.kept()), "tensorflow": eager_state()}
        state.optimizers = self.training.optimizers()
        state.model = None if call is None else call.model
        if state.model is None:
            others = [entry for entry in self.training.watched if entry is not watched]
            state.others = [plain(variable) for entry in others for variable in entry.alive]
            if call is not None:
                self._add_window(rejected, call)
        epoch, steps_in_epoch = in_fit(frame)
        rejected.facts = rejected.facts.with_(
            step=watched.step(state.saved),
            epoch=epoch,
            steps_in_epoch=steps_in_epoch,
            losses=tuple([loss.hex() for loss in watched.last_losses()]),
            trigger=Trigger(where=tuple(user_places(frame))),
        )
        if not rejected.values.batches:
            rejected.notes.append("the batch is not known: nothing was fetched from a data set, and no function called")

    def _add_window(self, rejected: RejectedStep, call: OutermostCall) -> None:
        """Add the batches whose gradients were accumulated, and the state before the first of them."""
        window = call.window
        earlier = [] if window is None else [past for past in window.calls if past.arguments or past.keywords]
        state, values = rejected.state, rejected.values
        if not values.batches and (call.arguments or call.keywords or not earlier):
            values.batches = [(SCRIPT, call.value)]
        values.batches = [*[(SCRIPT, past.value) for past in earlier], *values.batches]
        if window is not None and window.calls:
            state.saved = {**state.saved, **window.before}
            state.changed = [*state.changed, *[past for call in window.calls for past in call.record.written.values()]]
            state.unreadable = [*state.unreadable, *window.unread]

    # In graphs

    def host_callback(
        self, site: UpdateSite, step: TensorFlowStep, gradients: list[Any], saved: dict[int, tuple[Any, Any]]
    ) -> tuple[Callable[[dict[str, Any]], None], dict[str, Any]]:
        """Return a host function for a rejected step of a graph, and the tensors that a snapshot needs."""
        site.changed = saved
        batches = step.values.batches or graphs.batch_in_graph()
        tensors = {
            **_snapshot_tensors(site, step, gradients, batches, saved),
            "loss": step.values.loss,
            "given": graphs.numeric_inputs(step.graph),
        }
        origins = [origin for origin, _ in batches]
        loops = graphs.in_loop()

        def on_host(tensors: dict[str, Any]) -> None:
            rejected = self.of_site(site, tensors, origins)
            call = self.capture.attempt(self.training.call_with_inputs, tensors["given"], site.record)
            self.end_after_call(site, rejected, loops=loops, call=call)

        return on_host, tensors

    def call_host_together(self, strategy: Any, replica_round: graphs.ReplicaRound) -> None:
        """Call the host after the run of several replicas, with the batches of this process's replicas."""
        step, site, number, loops = replica_round.step, replica_round.site, graphs.worker(strategy), graphs.in_loop()
        if step is None or site is None:
            return
        batches, share = step.values.batches, replica_round.shares[0]
        origins = [origin for origin, _ in batches]
        tensors = {
            **_snapshot_tensors(site, step, replica_round.gradients, batches, step.variables.saved),
            "loss": share.loss,
            "where": share.failed_replica,
        }

        def on_host(tensors: dict[str, Any]) -> None:
            rejected = self.of_site(site, tensors, origins)
            rejected.norm_mean = None
            if number is not None:
                rejected.facts = rejected.facts.with_(rank=number[0], world=number[1])
            rejected.notes.append(graphs.FIRST_REPLICA_ONLY)
            rejected.only_replica = int(tensors["where"])
            rejected.values.replicas = [share.number for share in replica_round.shares]
            self.end_after_call(site, rejected, loops=loops)

        graphs.call_host(on_host, tensors)

    def of_site(self, site: UpdateSite, seen: dict[str, Any], origins: list[str]) -> RejectedStep:
        """Return the rejected step of a graph, from the values of its tensors."""
        values = StepValues(zip(origins, seen["batches"]))
        values.losses = [] if seen["loss"] is None else [seen["loss"]]
        values.activations = [(name, bool(is_finite)) for name, is_finite in zip(site.activations, seen["activations"])]
        values.drawn = list(zip(site.random_types, seen.get("drawn", ())))
        rejected = RejectedStep(site.watched.optimizer(), site.variables, seen["gradients"], values)
        rejected.state.unreadable = self.capture.attempt(lambda: site.unreadable) or []
        rejected.state.saved = dict(seen.get("held", ()))
        rejected.after = list(seen.get("after", ()))
        rejected.state.changed = [variable for variable, _ in site.changed.values()]
        self.set_norm_mean(rejected, site.watched)
        return rejected

    def set_norm_mean(self, rejected: RejectedStep, watched: WatchedOptimizer) -> None:
        """Set the mean of the gradients' norms so far, if jumps are looked for."""
        mean, count = as_array(watched.memory.norms).tolist() if self._conditions.gradient_jump is not None else (0, 0)
        rejected.norm_mean = mean if count else None

    def end_after_call(
        self, site: UpdateSite, rejected: RejectedStep, *, loops: bool, call: OutermostCall | None = None
    ) -> None:
        """Handle a rejected step; the training ends after the call, or at once within a graph's loop."""
        call = call or self.training.call()
        if call is not None and call.pending is not None:  # an earlier step of the same graph, which ends the training
            return
        if call is not None and not loops and call.captured is site.step:  # where another optimizer was to update
            site.watched.skipped += 1
            return
        if call is not None:
            call.captured = site.step
        frame = None if call is None else sys._current_frames().get(call.thread)
        pending = self.handle(rejected, site.watched, call, frame)
        if pending is None:
            return
        if rejected.facts.world is not None:
            graphs.wait_for_workers()
        if call is None:
            raise pending
        call.pending = pending
        if loops:
            raise RuntimeError("the step was captured, and no further one is taken")


def _snapshot_tensors(
    site: UpdateSite, step: TensorFlowStep, gradients: list[Any], batches: Any, saved: dict[int, tuple[Any, Any]]
) -> dict[str, Any]:
    """Return the tensors of a graph's step that a snapshot needs."""
    return {
        "gradients": gradients,
        "batches": [value for _, value in batches],
        "held": [(key, value) for key, (_, value) in saved.items()],  # no dictionary, which nest sorts: by addresses
        "activations": [finite for _, finite in step.values.activations],
        "drawn": site.random_results(),
    }


def _batch(taking: TensorCollector, place: int, origin: str, value: Any) -> dict[str, Any]:
    node = taking.value(f"batch.{place}", value)
    return {"from": origin, "value": node, "sample_axis": 0, "samples": samples(value)}


def samples(value: Any) -> int | None:
    """Return the number of samples of a batch: the most frequent size of its tensors' first axes; None if unclear."""
    flat = sys.modules["tensorflow"].nest.flatten(value)
    sizes = Counter(rows for rows in map(_rows, flat) if rows is not None)
    (most, count), *others = [*sizes.most_common(2), (None, 0)]
    return None if others and others[0][1] == count else most


def _rows(tensor: Any) -> int | None:
    """Return the size of a tensor's first axis; None if it has none."""
    shape = tensor.shape if hasattr(type(tensor), "shape") else None
    return None if shape is None or not len(shape) or shape[0] is None else int(shape[0])


def dense(gradient: Any) -> Any:
    """Return a gradient as a dense tensor."""
    return sys.modules["tensorflow"].convert_to_tensor(gradient) if hasattr(gradient, "indices") else gradient


def _values(gradient: Any) -> Any:
    return as_array(getattr(gradient, "values", gradient) if hasattr(gradient, "indices") else gradient)


def _not_finite(gradient: Any) -> tuple[int, int]:
    """Return how many numbers are not finite, and how many there are."""
    if gradient is None:
        return 0, 0
    array = _values(gradient)
    bad = int((~sys.modules["numpy"].isfinite(numbers(array))).sum()) if is_float(array) else 0
    return bad, int(array.size)


def _norm(gradient: Any) -> float:
    values = numbers(_values(gradient)).astype("float64").reshape(-1)
    return float(sys.modules["numpy"].linalg.norm(values))


def models_of(variables: list[Any], others: list[Any]) -> list[Any]:
    """Return the models of the variables that one optimizer trains, then those of the others."""
    first = owning_models(variables)
    owned = {resource_id(variable) for model in first for variable in model_variables(model)}
    return [*first, *owning_models([variable for variable in others if resource_id(variable) not in owned])]


def owning_models(variables: list[Any]) -> list[Any]:
    """Return the fewest Keras models or modules that own these variables, none of them part of another."""
    wanted_ids = set(map(id, variables))
    kinds = (*private_api.keras_classes("Layer"), private_api.module("modules").Module)
    candidates: list[Any] = []
    for instance in live_objects.instances(*kinds):
        if not _is_optimizer(instance):
            ids = _variable_ids(instance)
            if ids & wanted_ids:
                candidates.append((len(ids & wanted_ids), len(ids), len(candidates), instance, ids))
    candidates.sort(key=lambda entry: (-entry[0], -entry[1], not hasattr(entry[3], "fit"), entry[2]))
    chosen = []
    for _, _, _, instance, ids in candidates:
        if ids & wanted_ids:
            chosen.append(instance)
            wanted_ids -= ids
    return chosen


def _is_optimizer(value: Any) -> bool:
    return hasattr(value, "apply_gradients")


def _variable_ids(owner: Any) -> set[int]:
    try:
        return {resource_id(variable) for variable in owner.variables}
    except Exception as error:  # it is not built
        pass_on(error)
        return set()


def _deterministic() -> str:
    config = private_api.module("config")
    return str(bool(config is not None and config.is_op_determinism_enabled()))


def in_fit(frame: Any) -> tuple[int | None, int | None]:
    """Return epoch and step of the fit() that called this frame."""
    while frame is not None:
        variables = variables_of(frame) if frame.f_code.co_name == "fit" else {}
        if "epoch" in variables:
            step, epoch = variables.get("begin_step", variables.get("step")), variables["epoch"]
            return (epoch if type(epoch) is int else None), (step if type(step) is int else None)
        frame = frame.f_back
    return None, None


def local_batch(frame: Any) -> list[tuple[str, Any]]:
    """Return the batch from the numeric local variables of the user's innermost function.

    These are tensors, arrays, and dictionaries of them, but no lists, which often hold gradients.
    """
    function = next(user_functions(frame), None)
    variables = {} if function is None else variables_of(function)
    named = {name: variables[name] for name in variables if name[0] != "_"}
    values = {name: value for name, value in named.items() if _are_numbers(_parts(value))}
    return [(SCRIPT, _without_data_sets(values))] if values else []


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if type(value) is dict else [value]


def _are_numbers(parts: list[Any]) -> bool:
    return bool(parts) and all(type(part).__name__ in _NUMBERS for part in parts)


def _without_data_sets(values: dict[str, Any]) -> dict[str, Any]:
    """Return the variables without whole data sets: tensors with more rows than others of the same row shape."""
    fewest_rows: dict[str, int] = {}  # rows, by what a row is
    shapes = {name: [part.shape for part in _parts(values[name]) if _rows(part) is not None] for name in values}
    for shape in chain.from_iterable(shapes.values()):
        fewest_rows[str(shape[1:])] = min(int(shape[0]), fewest_rows.get(str(shape[1:]), int(shape[0])))
    batches = set(fewest_rows.values())
    return {
        name: values[name]
        for name in values
        if not shapes[name] or any(int(each[0]) in batches for each in shapes[name])
    }
