"""Leaves the update of a graph out by an assertion in front of it, whose failure ends the call.

A condition around the update would have TensorFlow run the whole graph in a slower way, which takes a twentieth of a
small step (tensorflow/core/common_runtime/simple_propagator_state.h is for graphs without control flow). What a
snapshot needs is put into a staging area before the assertion, and is still there where it fails. Only where training
is then to stop: nobody gets what the call would have given.
"""

from __future__ import annotations

import os
import sys
import weakref

from .tensorflow_graph import building
from .tensorflow_staging import Area, is_one_for_all
from .tensorflow_state import as_array, put_variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_steps import Step
    from .tensorflow_update import Test

MAX_AT_ONCE = 64  # threads in the same graph


class Refusal:
    """One update."""

    def __init__(self, on_host: Callable[[dict[str, Any]], None], variables: dict[str, Any]) -> None:
        self._on_host = on_host
        self._variables = variables  # that the call has moved before, by their key in what is seen as "held"
        self._area = Area()
        self.text = f"reprokit: a step that is not finite is not applied ({self._area.name})"  # TensorFlow logs it

    def build(self, step: Step, test: Test, update: Callable[[], object], seen: dict[str, Any]) -> None:
        """In the graph that is being built: test, and what happens where all is finite."""
        tensorflow, graph = sys.modules["tensorflow"], building()
        earlier = getattr(graph, "_reprokit_refusals", [])
        good, text = test.without_branches(), tensorflow.constant(self.text)
        self._area.put(seen)  # from here on nothing may fail, or what is put is never let go of
        # A later step of the graph waits for this one, or it might be applied where this is not.
        with tensorflow.control_dependencies([self._area.kept, *[dropped for _, dropped in earlier]]):
            asserted = tensorflow.raw_ops.Assert(condition=good, data=[text])
        with tensorflow.control_dependencies([asserted]):
            dropped = self._area.drop()
        graph._reprokit_refusals = [*earlier, (self, dropped)]  # which keeps us alive
        step.passes = True
        try:
            with tensorflow.control_dependencies([dropped]):
                test.remember_without_variable()
                update()
        finally:
            step.passes = False

    def tell(self) -> None:
        """Put back what the call has moved, of which not all need have happened, and hand what was seen to the host."""
        seen = self._seen()
        for key, variable in self._variables.items():
            put_variable(variable, seen["held"][key])
        self._on_host(seen)

    def _seen(self) -> dict[str, Any]:
        """Of the call that failed: of several under way the first that is not finite, or the last to come.

        One is let go of, whichever, as each of the other calls is going to let go of one.
        """
        found: list[dict[str, Any]] = [self._area.get(place) for place in range(min(MAX_AT_ONCE, self._area.count()))]
        if not found:  # to ask for one would wait without end
            raise RuntimeError("what the call had computed is gone")
        self._area.drop()
        return found[0] if len(found) == 1 else next((seen for seen in found if not _is_finite(seen)), found[-1])

    def clear(self) -> None:
        """No call is under way; what a failed one has left is nobody's."""
        self._area.clear()


class Refusals:
    """Those of this process."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[str, Refusal] = weakref.WeakValueDictionary()

    def add(self, refusal: Refusal) -> Refusal:
        """One more, which its graph keeps."""
        self._known[refusal.text] = refusal
        return refusal

    def ended(self, error: BaseException) -> Refusal | None:
        """Which of them ended a call, if any did."""
        text = str(error) if self._known and isinstance(error, sys.modules["tensorflow"].errors.OpError) else ""
        return next((refusal for known, refusal in self._known.items() if known in text), None)

    def clear(self) -> None:
        """The only call under way has failed by itself."""
        for refusal in list(self._known.values()):
            refusal.clear()


def can_be_asserted() -> bool:
    """Whether TensorFlow leaves assertions in graphs, and all tensors lie where the staging area is."""
    config = sys.modules["tensorflow"].config
    stripped = config.optimizer.get_experimental_options().get("debug_stripper")
    compiles = config.optimizer.get_jit() or "auto_jit" in os.environ.get("TF_XLA_FLAGS", "")
    return is_one_for_all() and not (stripped or compiles or config.list_logical_devices("GPU"))


def _is_finite(seen: dict[str, Any]) -> bool:
    numbers = sys.modules["numpy"]
    known = [*seen["gradients"], seen["loss"]]
    return all(bool(numbers.isfinite(as_array(one)).all()) for one in known if one is not None)
