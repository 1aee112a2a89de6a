"""Copies of a PyTorch training's buffers, parameters and optimizers, and of what updates make of parameters.

Buffers are copied before the forward pass moves them. A small model's parameters are copied before every update, a
larger one's now and then, and whenever the loss has doubled since.
"""

from __future__ import annotations

import copy
import operator
import weakref

from ..pytorch.private_api import changes, copy_each
from ..pytorch.series import size_of
from ..pytorch.state import parts_of
from ..pytorch.tensors import is_tensor
from .torch_state import has_memory, parameters_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .torch_checks import FiniteTests

SMALL_BUFFER = 1 << 20
EACH_STEP = 1 << 16  # bytes of parameters and state that are copied at each step, or so many a step on average
LARGEST = 1 << 28  # bytes that are held
LONGEST, ON_DEVICE = 100, 10  # steps between two states: at most, and at least where the parameters lie on a GPU
STATES = 3  # what an optimizer has for each parameter, itself among it, beside a history of steps
HALVES = ("torch.float16", "torch.bfloat16")  # whose optimizers' constants are easily too small


class TensorCopies:
    """Copies of tensors, made again in their own memory as long as the tensors are the same."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensors: list[Any] = []
        self._copies: list[Any] = []

    def keep(self, tensors: list[Any]) -> None:
        """Copy these as they are now."""
        known = self._tensors
        with self._torch.no_grad():
            if len(tensors) == len(known) and all(map(operator.is_, tensors, known)):
                try:
                    return copy_each(self._torch, self._copies, tensors)
                except RuntimeError:  # one has another size or device now
                    pass
            self._copies = [tensor.detach().clone() for tensor in tensors]
            self._tensors = tensors
        return None

    def restore(self) -> None:
        """Make all what they were; the copies stay good."""
        with self._torch.no_grad():
            copy_each(self._torch, self._tensors, self._copies)

    def by_id(self) -> dict[int, Any]:
        """Return the copies by the id of what they are copies of."""
        return dict(zip(map(id, self._tensors), self._copies))


class BufferCopies:
    """Copies of models' buffers, made before the forward pass moves them.

    Batch normalization raises no version counter. Large buffers are masks and tables as a rule; these are copied
    anew only where their counter tells of a change.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._containers: list[dict[str, Any]] | None = None  # None: it is not known which there are
        self._slots: list[tuple[dict[str, Any], str, Any]] = []  # where each buffer was
        self._small = TensorCopies(torch)
        self._large: dict[int, tuple[int, Any, Any]] = {}  # by id: the version that was copied, the buffer and the copy
        self.is_kept = False  # as they were before the step

    def forget(self) -> None:
        """There may be others."""
        self._containers, self.is_kept = None, False

    def keep(self, models: Callable[[], list[Any]]) -> None:
        """Copy the buffers of these models as they are now; which models these are is asked only once."""
        self.is_kept = True
        if self._containers is None:
            self._containers = [buffers for module in models() for _, _, buffers in parts_of(module) if buffers]
            self._slots, self._small, self._large = [], TensorCopies(self._torch), {}
        if not self._containers:
            return
        self._slots = [(buffers, name, tensor) for buffers in self._containers for name, tensor in buffers.items()]
        tensors = list({id(tensor): tensor for _, _, tensor in self._slots if has_memory(tensor)}.values())
        self._small.keep([tensor for tensor in tensors if size_of(tensor) <= SMALL_BUFFER])
        known, self._large = self._large, {}
        for tensor in [tensor for tensor in tensors if size_of(tensor) > SMALL_BUFFER]:
            version, _, kept = known.get(id(tensor), (-1, None, None))
            kept = kept if version == changes(tensor) else tensor.detach().clone()
            self._large[id(tensor)] = changes(tensor), tensor, kept

    def kept(self) -> dict[int, Any]:
        """Return the copies by the id of what they are copies of, or of what has taken its place since."""
        found = self._small.by_id()
        found.update({key: kept for key, (_, _, kept) in self._large.items()})
        for buffers, name, tensor in self._slots:
            if id(tensor) in found and buffers.get(name) is not None:
                found[id(buffers[name])] = found[id(tensor)]
        return found

    def restore(self) -> None:
        """Make the buffers what they were, also where another tensor was assigned."""
        kept = self.kept()
        with self._torch.no_grad():
            for buffers, name, tensor in self._slots:
                if buffers.get(name) is not tensor:
                    buffers[name] = tensor
                if id(tensor) in kept:
                    tensor.copy_(kept[id(tensor)])


class StateCopy:
    """Parameters and states of optimizers as they were, with other tensors, schedules and GradScalers if asked for."""

    def __init__(
        self, torch: Any, optimizers: Iterable[Any], tensors: Iterable[Any] = (), others: Iterable[Any] = ()
    ) -> None:
        self._optimizers = list(map(weakref.ref, optimizers))
        self._besides = list(tensors)
        self._others = [(other, copy.deepcopy(other.state_dict())) for other in others]
        self._copies = TensorCopies(torch)
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
        self._copies.keep(list({id(tensor): tensor for tensor in tensors}.values()))

    def restore(self) -> None:
        """Make everything what it was; the copy stays good."""
        self._copies.restore()
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


class UpdateBackup:
    """An optimizer's state before one of its last updates, whose parameters were finite."""

    def __init__(self, torch: Any, tests: FiniteTests, optimizer: Any) -> None:
        self._torch = torch
        self._tests = tests
        self._optimizer = weakref.ref(optimizer)
        self._period = _period(torch, optimizer)  # steps between two states; 0: none is held
        self._state: StateCopy | None = None
        self._step = -1  # before which it was held
        self._loss = 0.0  # when it was held

    def keep(self, step: int, loss: object) -> bool:
        """Hold the state before this step where it is time; whether the parameters are to be tested after it."""
        if not self._period or self._step == step:
            return bool(self._period)
        has_grown = type(loss) is float and abs(loss) > 2 * self._loss
        if self._state is not None and not has_grown and step - self._step < self._period:
            return False
        if (self._state is None or self._period > 1) and not self._are_finite():
            self._period = 0 if self._state is None else self._period  # they never were, or the alarm comes yet
            return False
        try:
            if self._state is None:
                self._state = StateCopy(self._torch, [self._optimizer()])
            else:
                self._state.keep()
        except (RuntimeError, NotImplementedError):  # of kinds that cannot be copied
            self._period, self._state = 0, None
            return False
        self._step, self._loss = step, abs(loss) if type(loss) is float and loss - loss == 0 else 0.0
        return True

    def _are_finite(self) -> bool:
        return self._tests.are_finite([parameter.data for parameter in parameters_of(self._optimizer())])

    def is_ruined(self) -> bool:
        """Return whether parameters that were finite when the state was held are so no more."""
        return self._state is not None and self._optimizer() is not None and not self._are_finite()

    def restore(self) -> int:
        """Make the state what it was when it was held; returns the step before which that was."""
        assert self._state is not None
        self._state.restore()
        return self._step


def _period(torch: Any, optimizer: Any) -> int:
    """Steps between two states of an optimizer that are held; 0 where none can be."""
    parameters = parameters_of(optimizer)
    states = STATES + 2 * max(group.get("history_size", 0) for group in optimizer.param_groups)  # LBFGS
    size: int = states * sum(map(size_of, parameters))
    if size > LARGEST or not all(type(parameter) in (torch.Tensor, torch.nn.Parameter) for parameter in parameters):
        return 0
    if any(str(parameter.dtype) in HALVES for parameter in parameters):
        return 1
    least = 1 if all(parameter.is_cpu for parameter in parameters) else ON_DEVICE
    return max(least, min(LONGEST, -(-size // EACH_STEP)))
