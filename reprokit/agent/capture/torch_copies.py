"""Copies of a PyTorch training's buffers, parameters and optimizer states, and backups from before updates.

Buffers are copied before the forward pass changes them. A small model's parameters are copied before every update, a
larger one's every few steps, and whenever the loss has doubled since.
"""

from __future__ import annotations

import copy
import operator
import weakref

from ..pytorch.private_api import changes, copy_each
from ..pytorch.tensor_names import parameters_of, parts_of
from ..pytorch.tensors import has_memory, is_tensor, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .torch_finite import FiniteTests

SMALL_BUFFER = 1 << 20
EACH_STEP = 1 << 16  # bytes of parameters and state that are copied a step, on average
LARGEST = 1 << 28  # bytes of parameters and state; of more no backup is made
LONGEST, ON_DEVICE = 100, 10  # steps between two backups: at most, and at least if parameters lie on a GPU
STATES = 3  # tensors for each parameter: itself and the optimizer's state, without a history of steps
_NUMBERS = frozenset([bool, int, float, str, type(None)])
HALVES = ("torch.float16", "torch.bfloat16")  # in which optimizers' small constants easily become 0


class TensorCopies:
    """Copies of tensors, refreshed in place as long as the tensors are the same."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensors: list[Any] = []
        self._copies: list[Any] = []

    def again(self) -> None:
        """Copy the current values of the same tensors."""
        self.keep(self._tensors)

    def keep(self, tensors: list[Any]) -> None:
        """Copy the current values of these tensors."""
        before = self._tensors
        with self._torch.no_grad():
            if len(tensors) == len(before) and all(map(operator.is_, tensors, before)):
                try:
                    return copy_each(self._torch, self._copies, tensors)
                except RuntimeError:  # one has another size or device now
                    pass
            self._copies = [tensor.detach().clone() for tensor in tensors]
            self._tensors = tensors
        return None

    def restore(self) -> None:
        """Write the copies back into the tensors; the copies stay valid."""
        with self._torch.no_grad():
            copy_each(self._torch, self._tensors, self._copies)

    def by_id(self) -> dict[int, Any]:
        """Return the copies by the id of the original tensor."""
        return dict(zip(map(id, self._tensors), self._copies))


class BufferCopies:
    """Copies of models' buffers, made before the forward pass changes them.

    Batch normalization raises no version counter. Large buffers are usually masks and tables; these are copied
    again only if their version counter shows a change.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._containers: list[dict[str, Any]] | None = None  # modules' _buffers; None: not looked up yet
        self._slots: list[tuple[dict[str, Any], str, Any]] = []  # where each buffer was
        self._small = TensorCopies(torch)
        self._large: dict[int, tuple[int, Any, Any]] = {}  # by id: the version that was copied, the buffer and the copy
        self.is_kept = False  # the copies are of the current step's start
        self.are_none = False  # the models are known to have no buffers

    def forget(self) -> None:
        """Look the buffers up again at the next keep(), as there may be others."""
        self._containers, self.is_kept, self.are_none = None, False, False

    def keep(self, models: Callable[[], list[Any]]) -> None:
        """Copy the current buffers of these models; ``models`` is called only the first time."""
        self.is_kept = True
        if self._containers is None:
            self._containers = [buffers for module in models() for _, _, buffers in parts_of(module) if buffers]
            self._slots, self._small, self._large = [], TensorCopies(self._torch), {}
            self.are_none = not self._containers
        if not self._containers:
            return
        self._slots = [(buffers, name, tensor) for buffers in self._containers for name, tensor in buffers.items()]
        tensors = list({id(tensor): tensor for _, _, tensor in self._slots if has_memory(tensor)}.values())
        self._small.keep([tensor for tensor in tensors if size_of(tensor) <= SMALL_BUFFER])
        large_before, self._large = self._large, {}
        for tensor in [tensor for tensor in tensors if size_of(tensor) > SMALL_BUFFER]:
            version, _, copied = large_before.get(id(tensor), (-1, None, None))
            copied = copied if version == changes(tensor) else tensor.detach().clone()
            self._large[id(tensor)] = changes(tensor), tensor, copied

    def kept(self) -> dict[int, Any]:
        """Return the copies by the id of the original buffer, and of the tensor that replaced it since."""
        copies = self._small.by_id()
        copies.update({key: copied for key, (_, _, copied) in self._large.items()})
        for buffers, name, tensor in self._slots:
            if id(tensor) in copies and buffers.get(name) is not None:
                copies[id(buffers[name])] = copies[id(tensor)]
        return copies

    def restore(self) -> None:
        """Restore the buffers, also those to which another tensor was assigned."""
        copies = self.kept()
        with self._torch.no_grad():
            for buffers, name, tensor in self._slots:
                if buffers.get(name) is not tensor:
                    buffers[name] = tensor
                if id(tensor) in copies:
                    tensor.copy_(copies[id(tensor)])


class StateCopy:
    """A copy of parameters and optimizer states, optionally also of other tensors, schedules and GradScalers."""

    def __init__(
        self, torch: Any, optimizers: Iterable[Any], tensors: Iterable[Any] = (), others: Iterable[Any] = ()
    ) -> None:
        self._optimizers = list(map(weakref.ref, optimizers))
        self._other_tensors = list(tensors)
        self._others = [(other, copy.deepcopy(other.state_dict())) for other in others]
        self._copies = TensorCopies(torch)
        self._states: list[Any] = []
        self._values: list[Any] | None = None  # all values there were, if nothing else was copied
        self.keep()

    def keep(self) -> None:
        """Copy the current values."""
        values: list[Any] = []
        for reference in self._optimizers:
            optimizer = reference()
            for group in () if optimizer is None else optimizer.param_groups:
                values += [*group["params"], *[group[key] for key in group if key != "params"]]
            for parameter, state in () if optimizer is None else optimizer.state.items():
                values += [parameter, *state.values()]
        before, self._values = self._values, values
        if before is not None and len(before) == len(values) and all(map(operator.is_, before, values)):
            self._copies.again()
            return
        self._copy()
        if not all(map(_is_flat, values)):
            self._values = None

    def _copy(self) -> None:
        tensors, self._states = list(self._other_tensors), []
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                tensors += parameters_of(optimizer)
                groups = [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]
                self._states.append((reference, _copied(dict(optimizer.state), tensors), _copied(groups, tensors)))
        self._copies.keep(list({id(tensor): tensor for tensor in tensors}.values()))

    def restore(self) -> None:
        """Restore everything; the copy stays valid."""
        self._copies.restore()
        for reference, state, groups in self._states:
            optimizer = reference()
            if optimizer is not None:
                optimizer.state.clear()
                optimizer.state.update(_copied(state, []))
                for group, values in zip(optimizer.param_groups, _copied(groups, [])):
                    group.update(values)
        for other, state in self._others:
            if state:
                other.load_state_dict(copy.deepcopy(state))


def _is_flat(value: Any) -> bool:
    """Return whether a value is a tensor, or cannot change."""
    kind = type(value)
    return kind in _NUMBERS or is_tensor(value) or (kind is tuple and _NUMBERS.issuperset(map(type, value)))


def _copied(value: Any, tensors: list[Any]) -> Any:
    """Return a copy of nested containers; append the tensors in them to ``tensors``."""
    if is_tensor(value):
        tensors.append(value)
    elif isinstance(value, dict):
        others = [part for part in value.values() if type(part) not in _NUMBERS]
        if others and len(set(map(type, others))) == 1 and is_tensor(others[0]):  # an optimizer's state of a parameter
            tensors += others
            return dict(value)
        return {key: part if type(part) in _NUMBERS else _copied(part, tensors) for key, part in value.items()}
    elif type(value) in (list, tuple):
        return type(value)([_copied(part, tensors) for part in value])
    return value


class UpdateBackup:
    """A backup of an optimizer and its parameters from before a recent update, when they were finite."""

    def __init__(self, torch: Any, tests: FiniteTests, optimizer: Any) -> None:
        self._torch = torch
        self._tests = tests
        self._optimizer = weakref.ref(optimizer)
        self._period = _period(torch, optimizer)  # steps between two backups; 0: none is made
        self._state: StateCopy | None = None
        self._step = -1  # before which the backup was made
        self._loss = 0.0  # when the backup was made
        self.without, self.limit = range(0), 0.0  # the steps before which none is made, unless a loss is larger

    def keep(self, step: int, loss: object) -> bool:
        """Back up the state before this step if it is due; return whether to test the parameters after it."""
        if not self._period or self._step == step:
            return bool(self._period)
        has_grown = type(loss) is float and abs(loss) > 2 * self._loss
        if self._state is not None and not has_grown and step - self._step < self._period:
            return False
        if (self._state is None or self._period > 1) and not self._are_finite():
            self._period = 0 if self._state is None else self._period  # never finite so far, or the alarm follows
            return False
        try:
            if self._state is None:
                self._state = StateCopy(self._torch, [self._optimizer()])
            else:
                self._state.keep()
        except (RuntimeError, NotImplementedError):  # tensors of a kind that cannot be copied
            self._period, self._state = 0, None
            return False
        self._step, self._loss = step, abs(loss) if type(loss) is float and loss - loss == 0 else 0.0
        self.without, self.limit = range(step + 1, step + self._period), 2 * self._loss
        return True

    def _are_finite(self) -> bool:
        return self._tests.are_finite([parameter.data for parameter in parameters_of(self._optimizer())])

    def is_ruined(self) -> bool:
        """Return whether parameters that were finite when the backup was made no longer are."""
        return self._state is not None and self._optimizer() is not None and not self._are_finite()

    def restore(self) -> int:
        """Restore the backup; return the step before which it was made."""
        assert self._state is not None
        self._state.restore()
        return self._step


def _period(torch: Any, optimizer: Any) -> int:
    """Return the number of steps between two backups of an optimizer; 0 if none can be made."""
    parameters = parameters_of(optimizer)
    states = STATES + 2 * max(group.get("history_size", 0) for group in optimizer.param_groups)  # LBFGS
    size: int = states * sum(map(size_of, parameters))
    if size > LARGEST or not all(type(parameter) in (torch.Tensor, torch.nn.Parameter) for parameter in parameters):
        return 0
    if any(str(parameter.dtype) in HALVES for parameter in parameters):
        return 1
    least = 1 if all(parameter.is_cpu for parameter in parameters) else ON_DEVICE
    return max(least, min(LONGEST, -(-size // EACH_STEP)))
