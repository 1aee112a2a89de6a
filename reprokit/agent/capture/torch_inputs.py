"""Gives a script the captured batch of a step of PyTorch in the place of its own: batches, arguments, targets."""

from __future__ import annotations

import sys
import weakref

from ..observing.torch_inputs import tensors as tensors_in
from ..pytorch import private_api
from .causes import CALLED_WITH
from .redo import EXPLAIN, MINIMISE
from .snapshot_reader import SnapshotError
from .torch_trials import BEGUN, CALLED, UNUSED, WAITING
from .variables import give, parts, standing_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ..events import BatchDue
    from .torch_batches import Batch
    from .torch_trials import StepTrials


class RedoInputs:
    """Stands between the script and what it works on."""

    def __init__(self, trials: StepTrials) -> None:
        self._trials = trials
        self._torch = trials.torch
        self._built = trials.built
        self._driver = trials.driver
        self._header = trials.captured.header
        self._like: Any = None  # what the script's loader gave
        self._iterator: Any = None  # that handed a batch out last
        self._evaluates: Any = weakref.WeakSet()  # iterators that give their own batches

    def batch_due(self, event: BatchDue) -> None:
        """Give the loop a batch, where a loader's iterator is asked for its next one."""
        trials, trial, iterator = self._trials, self._trials.trial, event.iterator
        if not trials.is_active or not trial.inputs.fetched or not self._torch.is_grad_enabled():
            return
        if trial.evaluated is not None:
            self._evaluates.add(trial.evaluated)
            trial.evaluated = None
        if iterator in self._evaluates:
            return
        self._iterator = iterator
        if trial.is_begun and trial.inputs.handed >= len(trial.inputs.fetched):
            if trial.is_used_up:
                trials.conclude()  # the loop goes on to other batches: what it does with ours, it has done
            elif not trial.losses:
                trials.unused()
        trial, inputs = trials.trial, trials.trial.inputs
        if trial.state is UNUSED:
            inputs.handed, trial.state = 0, WAITING
        trials.is_ahead = trials.is_ahead or inputs.handed >= len(inputs.fetched)
        event.replace, event.wants_own = self._replaced, self._like is None

    def _replaced(self, own: Any) -> Any:
        """Return the snapshot's batch in the place of the script's own, which is there the first time."""
        trials, trial, inputs = self._trials, self._trials.trial, self._trials.trial.inputs
        if self._like is None:
            self._like = own
        batch, samples = inputs.fetched[min(inputs.handed, len(inputs.fetched) - 1)]
        inputs.handed += 1
        if not trial.is_begun:
            trials.put()
        value = self._hand(batch, samples, self._like)
        if not trial.is_begun and (self._header.parameters or not self._header.models):
            trials.begin()  # parameters of no module may be used before one is called, if any will be
        self._built.put_random(batch.random or None)
        return value

    def _hand(self, batch: Batch, samples: list[int], like: Any) -> Any:
        """Return the part of a batch as the script is given it."""
        try:
            value = batch.part(samples, like, self._driver.fills)
        except SnapshotError as error:
            self._driver.trouble(str(error))
        if self._driver.mode == EXPLAIN:
            name = "the batch" if batch.source == "loader" else CALLED_WITH
            tensors = [(name, tensor) for tensor in tensors_in(self._torch, value)]
            self._trials.trial.inputs.tensors += tensors
            self._trials.explain()
        return value

    def called(self, module: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        """Return what a module is to be called with, that the script calls."""
        trial, inputs = self._trials.trial, self._trials.trial.inputs
        is_training = self._torch.is_grad_enabled() and bool(self._built.optimizers)
        if not is_training or self._is_evaluating(module):
            if not trial.is_begun:
                trial.state = UNUSED
                if is_training:
                    trial.evaluated = self._iterator
            return arguments, keywords
        if not inputs.handed if inputs.fetched else not self._is_wanted(module):
            return arguments, keywords
        trial.evaluated = None
        if not trial.is_begun:
            self._trials.begin()
        if trial.state is BEGUN:
            trial.state = CALLED
            self._trials.put_random()  # as it was then, whatever was drawn between
        if inputs.root is None:
            inputs.root = module
        if inputs.called and not inputs.fetched and inputs.root is module and self._is_wanted(module):
            batch, samples = inputs.called[min(inputs.calls, len(inputs.called) - 1)]
            inputs.calls += 1
            given = [arguments, keywords]
            value = self._hand(batch, samples, given)
            arguments, keywords = _moved(self._torch, value, given)
            give(sys._getframe(1), standing_for(given, [arguments, keywords]), self._variables)
        return arguments, keywords

    def _variables(self, function: str, known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield what the snapshot has for variables of one of the script's functions."""
        inputs = self._trials.trial.inputs
        if inputs.calls != len(inputs.called):  # they are those of the end
            return
        for batch, samples in inputs.variables:
            if batch.name != function:
                continue
            value = self._hand(batch, samples, dict(known))
            for name in value if isinstance(value, dict) else ():
                if name in known and _are_alike(known[name], value[name]):
                    yield name, _moved(self._torch, value[name], known[name])
        if self._driver.mode != MINIMISE:  # which would choose all samples of the batch
            loops = self._trials.captured.loops.get(function)
            for name, number in loops.items() if isinstance(loops, dict) else ():
                if type(known.get(name)) is int is type(number):
                    yield name, number

    def target(self, target: Any) -> Any:
        """Return what a loss is to be computed against; the snapshot may know the target that it was."""
        trials, trial, inputs = self._trials, self._trials.trial, self._trials.trial.inputs
        is_known = trials.is_active and trial.is_begun and inputs.targets
        if not is_known or not isinstance(target, self._torch.Tensor):
            return target
        batch, samples = inputs.targets[min(inputs.judged, len(inputs.targets) - 1)]
        inputs.judged += 1
        try:
            return batch.part(samples, None, self._driver.fills)["target"].to(target.device)
        except SnapshotError as error:
            self._driver.trouble(str(error))

    def _is_wanted(self, module: Any) -> bool:
        """Return whether the snapshot's module was called as this one is; the snapshot may not tell."""
        names = {batch.name for batch, _ in self._trials.trial.inputs.called}
        if not names or None in names or not private_api.has_children(module):
            return not names or None in names
        try:
            return self._built.name_of(module) in names
        except SnapshotError as error:
            self._driver.trouble(str(error))

    def _is_evaluating(self, module: Any) -> bool:
        """Return whether the module is not being trained, where the snapshot's models were."""
        flags = [(model.get("training") or {}).get("") for model in self._header.models]
        is_model = private_api.has_children(module)
        return (
            is_model and not module.training and bool(flags) and all(flags) and any(True for _ in module.parameters())
        )


def _are_alike(one: Any, other: Any) -> bool:
    """Whether a variable of the script's holds what it held when the snapshot was made, and no result of the step."""
    ours, theirs = ([(type(part), part.dtype) for part in parts(value)] for value in (one, other))
    is_result = any(getattr(part, "requires_grad", False) for part in parts(one))
    return type(one) is type(other) and ours == theirs and not is_result


def _put_into(value: Any, like: Any) -> Any:
    """The value, in the script's own tensor where gradients flow through that to what the script computed it from."""
    if like.requires_grad and (like.shape, like.dtype) == (value.shape, value.dtype):
        try:
            like.data.copy_(value)
        except RuntimeError:  # it is expanded: several of its elements are one
            return value
        return like
    return value


def _moved(torch: Any, value: Any, like: Any) -> Any:
    """Return the snapshot's tensors on the devices where the script's own are."""
    if isinstance(value, torch.Tensor):
        if not isinstance(like, torch.Tensor):
            return value
        return _put_into(value.to(like.device), like)
    if type(value) in (list, tuple) and isinstance(like, (list, tuple)):
        likes = [*like, *[None] * (len(value) - len(like))]
        return type(value)([_moved(torch, item, other) for item, other in zip(value, likes)])
    if type(value) is dict and isinstance(like, dict):
        return {key: _moved(torch, value[key], like.get(key)) for key in value}
    return value
