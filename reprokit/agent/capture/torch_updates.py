"""Holds a PyTorch training's state before updates, and tests what they make of the parameters.

A small model's state is held before every update, a larger one's now and then, and whenever the loss has doubled since.
"""

from __future__ import annotations

from ..pytorch.tensors import is_tensor
from .torch_gradients import Table
from .torch_state import cloned, parameters_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .torch_gradients import Gradients
    from .torch_held import TrainingStep
    from .torch_watched import OptimizerSteps

EACH_STEP = 1 << 16  # bytes of parameters and state that are copied at each step, or so many a step on average
LARGEST = 1 << 28  # bytes that are held
LONGEST, ON_DEVICE = 100, 10  # steps between two states: at most, and at least where the parameters lie on a GPU
STATES = 3  # what an optimizer has for each parameter, itself among it
HALVES = ("torch.float16", "torch.bfloat16")  # whose optimizers' constants are easily too small


class HeldState:
    """Parameters and optimizer as they were before an update."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensors: list[Any] = []
        self._copies: list[Any] = []
        self._state: dict[Any, dict[str, Any]] = {}
        self._groups: list[dict[str, Any]] = []
        self.step = -1

    def keep(self, optimizer: Any, step: int) -> None:
        """Copy all of it as it is now."""
        tensors, known = parameters_of(optimizer), optimizer.state
        self._state = {}
        for parameter in list(tensors):
            if parameter in known:
                self._state[parameter] = own = dict(known[parameter])
                for key, value in own.items():
                    if is_tensor(value):
                        tensors.append(value)
                    elif isinstance(value, (dict, list)):
                        own[key] = cloned(value, {})
        self._groups = [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]
        with self._torch.no_grad():
            self._copy(tensors)
        self.step = step

    def _copy(self, tensors: list[Any]) -> None:
        if len(tensors) == len(self._tensors) and all(a is b for a, b in zip(tensors, self._tensors)):  # noqa: B905
            self._torch._foreach_copy_(self._copies, tensors)
        else:
            self._copies = [tensor.detach().clone() for tensor in tensors]
            self._tensors = tensors

    def put_back(self, optimizer: Any) -> None:
        """Make all of it what it was."""
        with self._torch.no_grad():
            for tensor, kept in zip(self._tensors, self._copies):  # noqa: B905
                tensor.copy_(kept)
        optimizer.state.clear()
        optimizer.state.update({parameter: dict(own) for parameter, own in self._state.items()})
        for group, values in zip(optimizer.param_groups, self._groups):  # noqa: B905
            group.update(values)


class UpdateRecord:
    """What is known of an optimizer's updates."""

    def __init__(self, period: int) -> None:
        self.period = period  # steps between two states; 0: none is held
        self.state: HeldState | None = None
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
        if not update.period:
            return False
        has_grown = type(loss) is float and abs(loss) > 2 * update.loss
        if update.state is not None and not has_grown and record.steps - update.state.step < update.period:
            return False
        if (update.state is None or update.period > 1) and not self._are_finite(update, optimizer):
            update.period = 0 if update.state is None else update.period  # they never were, or the alarm comes yet
            return False
        update.state = update.state or HeldState(self._torch)
        try:
            update.state.keep(optimizer, record.steps)
        except (RuntimeError, NotImplementedError):  # of kinds that cannot be copied
            update.period, update.state = 0, None
            return False
        update.loss = abs(loss) if type(loss) is float and loss - loss == 0 else 0.0
        return True

    def _new(self, optimizer: Any) -> UpdateRecord:
        parameters = parameters_of(optimizer)
        plain = (self._torch.Tensor, self._torch.nn.Parameter)
        size = STATES * sum(parameter.numel() * parameter.element_size() for parameter in parameters)
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
        state, optimizer = self._records[id(record)][1].state, record.reference()
        assert state is not None
        state.put_back(optimizer)
        return state.step
