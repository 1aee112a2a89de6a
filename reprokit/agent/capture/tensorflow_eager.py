"""Whether an eager step of TensorFlow may be applied."""

from __future__ import annotations

import sys

from ..frameworks.tensorflow_trail import _array
from .finite import Finite
from .tensorflow_found import loss_scale
from .tensorflow_state import as_array
from .tensorflow_update import MEMORY, WARM, Test

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .settings import Conditions
    from .tensorflow_calls import Known
    from .tensorflow_steps import Step

    Pairs = list[tuple[Any, Any]]  # of gradient and variable


class EagerTest:
    """Looks at the loss, the activations and the gradients where they lie."""

    def __init__(self, library: Any, conditions: Conditions) -> None:
        self._library = library
        self._conditions = conditions

    def passes(self, step: Step, known: Known, pairs: Pairs) -> bool:
        """Whether all that is asked for holds."""
        losses = [step.unscaled] if step.unscaled is not None else step.losses
        if not all(map(self._is_fine, losses)) or not all(bool(finite) for _, finite in step.activations):
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

    def _are_finite(self, known: Known, gradients: list[Any]) -> bool:
        arrays = [_array(getattr(one, "values", one) if hasattr(one, "indices") else one) for one in gradients]
        if self._library is None or any(array is None for array in arrays):
            step = type("NoStep", (), {"unscaled": None, "losses": [], "activations": []})()
            return bool(Test(step, gradients, type(self._conditions)(), None).in_graph())  # type: ignore[arg-type]
        sizes = [array.nbytes for array in arrays]
        if known.finite[0] != sizes:
            known.finite = sizes, Finite(self._library, sizes, [array.dtype.name for array in arrays])
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        return known.finite[1].first(addresses) is None

    def _jumps(self, known: Known, pairs: Pairs) -> bool:
        factor = self._conditions.gradient_jump
        if factor is None:
            return False
        norm = float(sys.modules["tensorflow"].linalg.global_norm([gradient for gradient, _ in pairs]))
        if known.norms >= WARM and norm > factor * known.mean:
            return True
        known.mean = norm if not known.norms else MEMORY * known.mean + (1 - MEMORY) * norm
        known.norms += 1
        return False
