"""Holds a PyTorch training's state before updates, and tests what they make of the parameters.

A small model's state is held before every update, a larger one's now and then, and whenever the loss has doubled since.
"""

from __future__ import annotations

import copy
import operator
import weakref

from ..pytorch.private_api import copy_each
from ..pytorch.tensors import is_tensor
from .torch_gradients import Table
from .torch_state import parameters_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .torch_gradients import Gradients
    from .torch_held import TrainingStep
    from .torch_training import OptimizerSteps

EACH_STEP = 1 << 16  # bytes of parameters and state that are copied at each step, or so many a step on average
LARGEST = 1 << 28  # bytes that are held
LONGEST, ON_DEVICE = 100, 10  # steps between two states: at most, and at least where the parameters lie on a GPU
STATES = 3  # what an optimizer has for each parameter, itself among it, beside a history of steps
HALVES = ("torch.float16", "torch.bfloat16")  # whose optimizers' constants are easily too small


class StateCopy:
    """Parameters and states of optimizers as they were, with other tensors, schedules and GradScalers if asked for."""

    def __init__(
        self, torch: Any, optimizers: Iterable[Any], tensors: Iterable[Any] = (), others: Iterable[Any] = ()
    ) -> None:
        self._torch = torch
        self._optimizers = list(map(weakref.ref, optimizers))
        self._besides = list(tensors)
        self._others = [(other, copy.deepcopy(other.state_dict())) for other in others]
        self._tensors: list[Any] = []
        self._copies: list[Any] = []
        self._states: list[Any] = []
        self.keep()

    def keep(self) -> None:
        """Copy all as it is now."""
        tensors, self._states = list(self._besides), []
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                tensors += parameters_of(optimizer)
                groups = [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]
                self._states.append((reference, _taken(dict(optimizer.state), tensors), _taken(groups, tensors)))
        tensors = list({id(tensor): tensor for tensor in tensors}.values())
        with self._torch.no_grad():
            if len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors)):
                copy_each(self._torch, self._copies, tensors)
            else:
                self._copies = [tensor.detach().clone() for tensor in tensors]
                self._tensors = tensors

    def put_back(self) -> None:
        """Make everything what it was; the copy stays good."""
        with self._torch.no_grad():
            copy_each(self._torch, self._tensors, self._copies)
        for reference, state, groups in self._states:
            optimizer = reference()
            if optimizer is not None:
                optimizer.state.clear()
                optimizer.state.update(_taken(state, []))
                for group, values in zip(optimizer.param_groups, _taken(groups, [])):
                    group.update(values)
        for other, state in self._others:
            if state:
                other.load_state_dict(copy.deepcopy(state))


def _taken(value: Any, tensors: list[Any]) -> Any:
    """Copy containers; the tensors in them are added to a list."""
    if is_tensor(value):
        tensors.append(value)
    elif isinstance(value, dict):
        return {key: _taken(part, tensors) for key, part in value.items()}
    elif type(value) in (list, tuple):
        return type(value)([_taken(part, tensors) for part in value])
    return value


class UpdateRecord:
    """What is known of an optimizer's updates."""

    def __init__(self, period: int) -> None:
        self.period = period  # steps between two states; 0: none is held
        self.state: StateCopy | None = None
        self.step = -1  # before which it was held
        self.loss = 0.0  # when the state was held
        self.table = Table()


class Updates:
    """The updates of one process."""

    def __init__(self, torch: Any, gradients: Gradients) -> None:
        self._torch = torch
        self._gradients = gradients
        self._records: dict[int, tuple[OptimizerSteps, UpdateRecord]] = {}

    def before(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any) -> bool:
        """Hold the state where it is time; whether the parameters are to be tested after the update."""
        known = self._records.get(id(record))
        if known is None or known[0] is not record:
            known = self._records[id(record)] = record, self._new(optimizer)
        update, loss = known[1], held.losses.last[-1] if held.losses.last else 0.0
        if not update.period or update.step == record.steps:
            return bool(update.period)
        has_grown = type(loss) is float and abs(loss) > 2 * update.loss
        if update.state is not None and not has_grown and record.steps - update.step < update.period:
            return False
        if (update.state is None or update.period > 1) and not self._are_finite(update, optimizer):
            update.period = 0 if update.state is None else update.period  # they never were, or the alarm comes yet
            return False
        try:
            if update.state is None:
                update.state = StateCopy(self._torch, [optimizer])
            else:
                update.state.keep()
        except (RuntimeError, NotImplementedError):  # of kinds that cannot be copied
            update.period, update.state = 0, None
            return False
        update.step, update.loss = record.steps, abs(loss) if type(loss) is float and loss - loss == 0 else 0.0
        return True

    def _new(self, optimizer: Any) -> UpdateRecord:
        parameters = parameters_of(optimizer)
        plain = (self._torch.Tensor, self._torch.nn.Parameter)
        states = STATES + 2 * max(group.get("history_size", 0) for group in optimizer.param_groups)  # LBFGS
        size = states * sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        if size > LARGEST or not all(type(parameter) in plain for parameter in parameters):
            return UpdateRecord(0)
        if any(str(parameter.dtype) in HALVES for parameter in parameters):
            return UpdateRecord(1)
        period = min(LONGEST, -(-size // EACH_STEP))
        return UpdateRecord(max(1, period if all(p.is_cpu for p in parameters) else max(ON_DEVICE, period)))

    def _are_finite(self, update: UpdateRecord, optimizer: Any) -> bool:
        values = [parameter.data for parameter in parameters_of(optimizer)]
        test = self._gradients
        return test.are_finite_here(update.table, values) or test.are_finite(update.table, values, [])

    def is_ruined(self, record: OptimizerSteps) -> bool:
        """Whether parameters that were finite before an update are so no more."""
        known, optimizer = self._records.get(id(record)), record.reference()
        if known is None or known[0] is not record or known[1].state is None or optimizer is None:
            return False
        return not self._are_finite(known[1], optimizer)

    def put_back(self, record: OptimizerSteps) -> int:
        """Make the state what it was when it was held; returns the step before which that was."""
        update = self._records[id(record)][1]
        assert update.state is not None
        update.state.put_back()
        return update.step
