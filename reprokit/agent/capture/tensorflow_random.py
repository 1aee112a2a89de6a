"""What operations with a random state of their own drew in a step: nobody can read the state, so the numbers are kept.

Such are `tf.random.uniform` in a graph, and with it the Dropout of Keras 2. When the step is done again, each is given
what it drew then.
"""

from __future__ import annotations

import sys
import weakref

from ..core.patching import replace
from ..tensorflow import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Function = Callable[..., Any]

# Functions that make operations, and the types of these.
_MADE_BY = {
    "multinomial": "Multinomial",
    "parameterized_truncated_normal": "ParameterizedTruncatedNormal",
    "random_gamma": "RandomGamma",
    "random_poisson": "RandomPoisson",
    "random_poisson_v2": "RandomPoissonV2",
    "random_shuffle": "RandomShuffle",
    "random_standard_normal": "RandomStandardNormal",
    "random_uniform": "RandomUniform",
    "random_uniform_int": "RandomUniformInt",
    "truncated_normal": "TruncatedNormal",
}
MARK = "_reprokit_captures"  # of what is wrapped, once, beside what adapters of the agent wrap
_TYPES = frozenset(_MADE_BY.values())


def watch_random_operations(drew: Function) -> None:
    """Have drew(type, tensor) give what is drawn, by all operations that are made from now on."""
    module = private_api.module("random_calls")

    def make(original: Function) -> Function:
        kind = _MADE_BY[original.__name__]

        def draw(*arguments: Any, **keywords: Any) -> Any:
            return drew(kind, original(*arguments, **keywords))

        return draw

    for name in _MADE_BY:
        replace(module, name, make, MARK)


def drawing(graph: Any) -> list[Any]:
    """The operations of a graph that draw from a state of their own, in the order of their making."""
    return [operation for operation in graph.get_operations() if operation.type in _TYPES]


def hidden(graph: Any) -> list[str]:
    """The names of those in functions that a graph calls, as branches and loops, which hand nothing out."""
    functions = graph.as_graph_def().library.function
    names = [node.name for function in functions for node in function.node_def if node.op in _TYPES]
    return list(dict.fromkeys(names))


class RandomReplay:
    """Gives the operations of a step that is done again what they drew before."""

    def __init__(self, in_xla: Callable[[], bool]) -> None:
        self._in_xla = in_xla
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()  # those of steps
        self._kept: Sequence[tuple[str, Any]] | None = None  # types, and what each drew; None: the script's own step
        self._samples: Sequence[int] | None = None
        self._of = 0
        self._eager = 0  # operations executed so far, one after the other

    def belongs(self, graph: Any) -> None:
        """A step's update is in this graph."""
        self._graphs.add(graph)

    def begins(self, kept: Sequence[tuple[str, Any]] | None, samples: Sequence[int] | None, of: int) -> None:
        """From now on these are given, of a part of the batch the rows of its samples."""
        self._kept, self._samples, self._of, self._eager = kept, samples, of, 0

    def given(self, kind: str, drawn: Any) -> Any:
        """What is known in the place of what an operation drew just now."""
        if private_api.has_value(drawn):
            return drawn if self._kept is None else self._in_eager_code(kind, drawn)
        return drawn if self._in_xla() else self._in_graph(kind, drawn)

    def _in_eager_code(self, kind: str, drawn: Any) -> Any:
        """Of a loop in eager code, or of a function that is executed operation by operation."""
        self._eager += 1
        return sys.modules["tensorflow"].convert_to_tensor(self._given(kind, self._eager - 1, private_api.value(drawn)))

    def _in_graph(self, kind: str, drawn: Any) -> Any:
        graph = weakref.ref(drawn.graph)
        place = len(drawing(drawn.graph)) - 1

        def given(drawn: Any) -> Any:
            return self._given(kind, place, drawn) if graph() in self._graphs else drawn

        tensorflow = sys.modules["tensorflow"]
        result = tensorflow.numpy_function(given, [drawn], drawn.dtype)
        return tensorflow.ensure_shape(result, drawn.shape)  # what optimises the graph is to know it as before

    def _given(self, kind: str, place: int, drawn: Any) -> Any:
        """What is known of this place, where it is of the same type and shape."""
        kept = self._kept or ()
        if place >= len(kept):
            return drawn
        kind_then, then = kept[place]
        if self._samples is not None and then.shape[:1] == (self._of,) and then.shape != drawn.shape:
            then = then[list(self._samples)]
        return then if (kind_then, then.dtype, then.shape) == (kind, drawn.dtype, drawn.shape) else drawn
