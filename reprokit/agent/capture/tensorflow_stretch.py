"""Calls of a step compiled by XLA since the state before them was held, by which the state before each is had again.

XLA updates variables where they lie as long as nobody holds what they had; else it copies them all first, a tenth of a
small step. So they are held before one call in several only, and of each call the batch. Where a step should not have
happened, the calls before it are made once more from what was held. That they come to the same bits is shown by the
bad step: it too is made again, and must come to what was there.
"""

from __future__ import annotations

import sys
import time

from .tensorflow_reading import Reader
from .tensorflow_staging import Area, is_one_for_all
from .tensorflow_state import as_array, put_variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_calls import Site
    from .tensorflow_reading import Before

CALLS = 64  # at most, of one stretch
SECONDS = 0.2  # that they take
ROOM = 1 << 26  # bytes of their batches


class Stretch:
    """The calls of one function in a row."""

    def __init__(self, function: Any, site: Site, variables: list[Any], run: Callable[..., Any]) -> None:
        self.function = function
        self.site = site
        self.is_stale = True  # something may have been written to since
        self.only_one = False  # call in each stretch, as others run beside it
        self._reader = Reader([*variables, site.known.memory.losses, site.known.memory.norms])
        self._run = run
        self._batches = Area()  # what calls were given
        # TensorFlow logs it.
        self._refusal = f"reprokit: a step that is not finite is not applied ({self._batches.name})"
        self.calls = 0
        self._since = 0.0
        self._most = 1
        self._held: Before | None = None

    # ---- at each call ------------------------------------------------------------------------------------------------

    def take(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """In the graph that is being built: keep what the function is given."""
        self.only_one = self.only_one or not self._batches.put([arguments, keywords])

    def begins(self) -> bool:
        """While the first graph is built, behind which its first call comes. Whether all variables have values yet.

        Where a function makes variables, TensorFlow builds it once more when they have.
        """
        try:
            with sys.modules["tensorflow.python.framework.ops"].init_scope():
                self.hold()
        except Exception:  # of TensorFlow's many
            return False
        return True

    def watch(self) -> None:
        """In the graph that is being built, behind the call: fail where a step should not have happened.

        A condition would do as well, but it has TensorFlow run the whole graph in a slower way.
        """
        tensorflow = sys.modules["tensorflow"]
        good = self.site.known.memory.good.read_value()
        with tensorflow.control_dependencies([self._batches.kept]):
            tensorflow.raw_ops.Assert(condition=good, data=[tensorflow.constant(self._refusal)])

    def refused(self, error: BaseException) -> bool:
        """Whether a call failed for nothing but a step that should not have happened."""
        return isinstance(error, sys.modules["tensorflow"].errors.InvalidArgumentError) and self._refusal in str(error)

    @property
    def is_over(self) -> bool:
        """Whether the state is to be held anew before the next call."""
        return self.calls >= self._most or self.is_stale or self.only_one

    def hold(self) -> None:
        """Begin anew with the present state."""
        if self.calls:
            each = (time.perf_counter() - self._since) / self.calls
            room = ROOM // max(1, self._batches.size())
            self._most = max(1, min(CALLS, room, int(SECONDS / max(each, 1e-6))))
        self._batches.clear()
        self._held = self._reader.read()
        self.calls, self.is_stale, self._since = 0, False, time.perf_counter()

    def release(self) -> None:
        """Another function is called: until the next call of this one nothing needs to be held."""
        if self._held is not None:
            self._batches.clear()
            self._held, self.calls, self.is_stale = None, 0, True

    # ---- behind a bad step -------------------------------------------------------------------------------------------

    def rebuild(self) -> Rebuilt:
        """Give variables the state before the last call."""
        self.is_stale = True
        try:
            if self._held is not None and self._batches.count() == self.calls:
                return self._rebuilt(self._held)
            problem = "its calls could not be told apart"
        except Exception as error:  # of TensorFlow's many
            problem = f"{type(error).__name__}: {error}"
        if self._held is not None:  # a good state, if an earlier one: what is there now is ruined
            _put(self._held)
        earlier = f"the state is that of up to {self.calls} steps before the step, and no batch is known"
        return Rebuilt((), {}, {}, f"{earlier}: {problem}")

    def _rebuilt(self, held: Before) -> Rebuilt:
        wrong, (arguments, keywords) = self._reader.read(), self._batches.get(self.calls - 1)
        _put(held)
        for number in range(self.calls - 1):
            self._make(self._batches.get(number))
        before = self._reader.read()
        result = self._make((arguments, keywords))
        is_same = list(map(_bits, wrong.values())) == list(map(_bits, self._reader.read().values()))
        _put(before)
        problem = "" if is_same else "the state may not be the step's: calls that were made again came to another"
        return Rebuilt(arguments, keywords, result, problem)

    def _make(self, given: Any) -> Any:
        arguments, keywords = given
        return self._run(self.function, *arguments, **keywords)


class Rebuilt:
    """A step that should not have happened, made once more and undone."""

    def __init__(self, arguments: Any, keywords: dict[str, Any], result: Any, problem: str) -> None:
        self.arguments = arguments
        self.keywords = keywords
        self.result = result  # what its call gives
        self.problem = problem  # with the state, which is not as it should be


def can_be_kept(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether all that a function is given are tensors of numbers or texts, or no tensors."""
    tensorflow = sys.modules["tensorflow"]
    flat = tensorflow.nest.flatten([arguments, keywords], expand_composites=True)
    tensors = [one for one in flat if isinstance(one, tensorflow.Tensor)]
    refused = (tensorflow.resource, tensorflow.variant)
    if not tensors or any(one.dtype in refused for one in tensors) or any(map(_is_stateful, flat)):
        return False
    return is_one_for_all()


def _is_stateful(one: Any) -> bool:
    return hasattr(one, "handle") or hasattr(one, "_iterator_resource")


def _put(state: Before) -> None:
    for variable, value in state.pairs():
        put_variable(variable, value)


def _bits(value: Any) -> bytes:
    found: bytes = as_array(value).tobytes()
    return found
