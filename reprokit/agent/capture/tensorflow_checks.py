"""Tests whether all of a TensorFlow step is finite and within its bounds: in graphs, under XLA, and in eager code."""

from __future__ import annotations

import sys

from ..tensorflow import private_api
from ..tensorflow.tensors import view
from . import checks
from .checks import MEMORY, WARM, Finite
from .settings import Conditions
from .tensorflow_state import as_array, loss_scale

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from .tensorflow_steps import WatchedOptimizer

    Function = Callable[..., Any]
    Pairs = list[tuple[Any, Any]]  # of gradient and variable

LAST_LOSSES = 100


class StepValues:
    """What a step worked on and came to, in tensors of a graph or in values."""

    def __init__(self, batches: Iterable[tuple[str, Any]] = ()) -> None:
        self.batches = list(batches)
        self.losses: list[Any] = []
        self.unscaled: Any = None  # the loss before a loss scale
        self.activations: list[tuple[str, Any]] = []  # of layers: whether their outputs are finite
        self.drawn: list[tuple[str, Any]] = []  # by operations whose random states nobody can read: type and numbers

    @property
    def tested(self) -> list[Any]:
        """The losses that must be finite."""
        return self.losses if self.unscaled is None else [self.unscaled]

    @property
    def loss(self) -> Any:
        """The loss: of several the last, before a loss scale where there is one."""
        return self.tested[-1] if self.tested else None


class OptimizerMemory:
    """Variables of ours that one optimizer's graphs keep from step to step."""

    def __init__(self) -> None:
        tensorflow = sys.modules["tensorflow"]
        variable = private_api.module("variables").ResourceVariable  # one, under any strategy
        with private_api.ops().init_scope():
            nothing = tensorflow.fill([LAST_LOSSES], tensorflow.constant(float("nan")))
            self.losses = variable(nothing, trainable=False, name="reprokit_losses")
            self.norms = variable([0.0, 0.0], trainable=False, name="reprokit_norms")  # mean, and of how many
            self.good = variable(True, trainable=False, name="reprokit_good")  # whether all compiled steps were
        self._read = private_api.module("variable_calls").read_variable_op

    @property
    def variables(self) -> list[Any]:
        """All of them."""
        return [self.losses, self.norms, self.good]

    def last_losses(self) -> list[float]:
        """All that are remembered."""
        numbers = as_array(self.losses).tolist()
        return [number for number in numbers if number == number][-LAST_LOSSES:]

    def is_flagged(self) -> bool:
        """In eager code: whether a compiled step should not have happened."""
        return not bool(self._read(self.good.handle, self.good.dtype))


def values(gradients: Sequence[Any]) -> list[Any]:
    """The numbers of gradients that can be not finite; of sparse ones those of the rows they have."""
    dense = [getattr(one, "values", one) if hasattr(one, "indices") else one for one in gradients if one is not None]
    return [one for one in dense if one.dtype.is_floating or one.dtype.is_complex]


class UpdateTest:
    """Whether a step may be applied, as a tensor of the graph that is being built."""

    def __init__(
        self,
        seen: StepValues,
        gradients: Sequence[Any],
        conditions: Conditions,
        memory: Any,
        allowed: Any = None,
    ) -> None:
        self._tensorflow: Any = sys.modules["tensorflow"]
        self._memory = memory
        self._gradients = values(gradients)
        self._allowed = allowed  # whether gradients may overflow, as those of a scaled loss
        self._losses = seen.tested
        self._conditions = conditions
        self._flags = [flag for _, flag in seen.activations]
        self.norm: Any = None

    def passes(self) -> Any:
        """Look at each number: whether the step is good."""
        if self._allowed is None:
            return self._with_conditions(self._each(self._gradients + self._losses))
        gradients = self._tensorflow.logical_or(self._allowed, self._each(self._gradients))
        return self._with_conditions(self._tensorflow.logical_and(gradients, self._each(self._losses)))

    def _each(self, tensors: list[Any]) -> Any:
        tensorflow = self._tensorflow
        if not tensors:
            return tensorflow.constant(True)
        return tensorflow.reduce_all(tensorflow.stack([_all_finite(tensorflow, one) for one in tensors]))

    def _with_conditions(self, good: Any) -> Any:
        tensorflow, conditions = self._tensorflow, self._conditions
        if conditions.loss_above is not None and self._losses:
            worst = tensorflow.reduce_max([tensorflow.reduce_max(_wide(tensorflow, one)) for one in self._losses])
            good = tensorflow.logical_and(good, worst <= conditions.loss_above)
        if conditions.gradient_jump is not None and self._gradients:
            squares = [tensorflow.reduce_sum(tensorflow.square(_wide(tensorflow, one))) for one in self._gradients]
            self.norm = tensorflow.sqrt(tensorflow.add_n(squares))
            mean, count = tensorflow.unstack(self._memory.norms.read_value())
            small = tensorflow.logical_or(count < WARM, self.norm <= conditions.gradient_jump * mean)
            good = tensorflow.logical_and(good, small)
        return tensorflow.reduce_all(tensorflow.stack([good, *self._flags])) if self._flags else good

    def remember(self) -> list[tuple[Any, Any]]:
        """What a good step writes into the memory: variable and value."""
        if not self._losses:
            return self._norms()
        known = self._memory.losses.read_value()
        losses = self._tensorflow.concat([known[1:], [self._loss()]], 0)
        return [(self._memory.losses, losses), *self._norms()]

    def _loss(self) -> Any:
        return _wide(self._tensorflow, self._tensorflow.reduce_mean(self._losses[-1]))

    def _norms(self) -> list[tuple[Any, Any]]:
        tensorflow = self._tensorflow
        if self.norm is None:
            return []
        mean, count = tensorflow.unstack(self._memory.norms.read_value())
        mean = tensorflow.where(count < 1, self.norm, MEMORY * mean + (1 - MEMORY) * self.norm)
        return [(self._memory.norms, tensorflow.stack([mean, count + 1]))]


def _wide(tensorflow: Any, value: Any) -> Any:
    value = tensorflow.abs(value) if value.dtype.is_complex else value
    return tensorflow.cast(value, tensorflow.float32)


def _all_finite(tensorflow: Any, value: Any) -> Any:
    if value.dtype.is_complex:
        value = tensorflow.stack([tensorflow.math.real(value), tensorflow.math.imag(value)])
    elif value.dtype.size == 1:
        value = tensorflow.cast(value, tensorflow.float32)
    return tensorflow.reduce_all(tensorflow.math.is_finite(value))


class EagerTest:
    """Looks at the loss, the activations and the gradients where they lie."""

    def __init__(self, library: Any, conditions: Conditions) -> None:
        self._library = library
        self._conditions = conditions

    def passes(self, seen: StepValues, known: WatchedOptimizer, pairs: Pairs) -> bool:
        """Whether all that is asked for holds."""
        if not all(map(self._is_fine, seen.tested)) or not all(bool(finite) for _, finite in seen.activations):
            return False
        scale = loss_scale(known.optimizer())
        if scale is not None and float(as_array(scale)) > 1.0:
            return True  # its gradients may overflow
        return self._are_finite(known, [gradient for gradient, _ in pairs]) and not self._jumps(known, pairs)

    def _is_fine(self, loss: Any) -> bool:
        array, above = as_array(loss), self._conditions.loss_above
        total = float(array) if not array.shape else float(array.astype("float64").sum())
        if total - total != 0 and not sys.modules["numpy"].isfinite(array.astype("float64")).all():
            return False
        return above is None or not array.size or not float(array.max()) > above

    def _are_finite(self, known: WatchedOptimizer, gradients: list[Any]) -> bool:
        arrays = [view(getattr(one, "values", one) if hasattr(one, "indices") else one) for one in gradients]
        if self._library is None or any(array is None for array in arrays):
            return bool(UpdateTest(StepValues(), gradients, Conditions(), None).passes())
        sizes = [array.nbytes for array in arrays]
        if known.finite[0] != sizes:
            known.finite = sizes, Finite(self._library, sizes, [array.dtype.name for array in arrays])
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        return known.finite[1].first(addresses) is None

    def _jumps(self, known: WatchedOptimizer, pairs: Pairs) -> bool:
        factor = self._conditions.gradient_jump
        if factor is None:
            return False
        norm = float(sys.modules["tensorflow"].linalg.global_norm([gradient for gradient, _ in pairs]))
        if known.norms.count >= WARM and checks.jump(norm, factor, known.norms.mean) is not None:
            return True
        known.norms.add(norm)
        return False
