"""Takes the snapshot of the one step of TensorFlow or Keras that a replay is asked for; the training goes on as it was.

Graphs stay as they were in the recording, as a test or a call of the host in them may change last bits. The call that
makes the step runs with the batch that it would have fetched. Then all variables are put back for a moment: the
snapshot is of that state, and the gradients are computed once more.
"""

from __future__ import annotations

import sys

from ..core import live_objects
from ..tensorflow import private_api
from ..tensorflow.steps import is_readable
from ..tensorflow.training_state import put_variables, read_variable, resource_id
from .tensorflow_state import FIT
from .tensorflow_updates import NOT_COMPUTED_AGAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .tensorflow_graphs import UpdateSite
    from .tensorflow_snapshot import RejectionHandler
    from .tensorflow_steps import OutermostCall, WatchedOptimizer
    from .tensorflow_updates import XlaCalls


class StepTaker:
    """Executes the calls of functions, and takes the snapshot of the one that makes the step."""

    def __init__(self, rejections: RejectionHandler, xla: XlaCalls) -> None:
        self._rejections, self._requested, self._xla = rejections, rejections.requested, xla
        self._capture = rejections.capture

    def run(self, call: OutermostCall) -> Any:
        """Execute an outermost call."""
        if not self._requested.may_be_in_call() or getattr(call.model, "run_eagerly", False):
            return call.run()
        why = self._hindrance(call)
        batch = None if why or call.model is None else self._capture.attempt(next_of, call.arguments[0])
        if call.model is not None and batch is None:  # or its data set is exhausted
            if why:
                self._refuse(why)
            return call.run()
        due = [watched for watched in self._rejections.training.watched if self._requested.is_next(watched)]
        before = self._capture.attempt(_values) or []
        result = call.run(None if batch is None else (iterator_of(batch, call.arguments[0]),))
        self._capture.attempt(self._take, call, due, before, batch)
        return result

    def _refuse(self, why: str) -> None:
        if self._capture.agent is not None:
            self._capture.agent.warn(f"no snapshot of the step: {why}", "snapshot-not-whole")

    @staticmethod
    def _hindrance(call: OutermostCall) -> str:
        """Return why the step of a call cannot be taken; empty if it can."""
        if call.model is None:
            return ""
        if getattr(call.model, "steps_per_execution", 1) not in (1, None):
            return "its function takes several steps at once (steps_per_execution)"
        kind = getattr(private_api.module("iterators"), "OwnedIterator", ())
        iterator = call.arguments[0] if len(call.arguments) == 1 else None
        if not isinstance(iterator, kind):
            return "it is one of several replicas, or of Keras' own iterator"
        tensorflow = sys.modules["tensorflow"]
        specs = tensorflow.nest.flatten(iterator.element_spec)
        is_dense = all(isinstance(spec, tensorflow.TensorSpec) for spec in specs)
        return "" if is_dense else "its batches are not of dense tensors alone"

    def _take(
        self, call: OutermostCall, due: Sequence[WatchedOptimizer], before: list[tuple[Any, Any]], batch: Any
    ) -> None:
        sites = [site for site in call.record.sites or () if site.watched in due or not due]
        if self._requested.is_taken or not sites:
            return
        site = sites[0]
        if call.model is None and self._requested.is_next(site.watched):  # it only added up gradients
            return
        after = [(variable, read_variable(variable)) for variable, _ in before]
        seen_after = list(map(read_variable, site.variables))
        known = {resource_id(variable) for variable, _ in before}
        if any(resource_id(variable) not in known for variable in site.watched.updated):
            self._refuse("its variables are made in the step itself; take a later step")
            return
        why = _why_not_again(call, site)
        if why:
            self._refuse(why)
            return
        put_variables(before)
        try:
            values, note = self._xla.computed_again(site, lambda: self._xla.gradients_of_call(call, batch))
            if note == NOT_COMPUTED_AGAIN:
                self._refuse(note)
                return
            origins = [] if call.model is None else [FIT]
            seen = {**values, "batches": [] if call.model is None else [batch], "after": seen_after}
            rejected = self._rejections.of_site(site, seen, origins)
            rejected.notes.append(note)
            self._rejections.take(rejected, site.watched, call, sys._getframe(1))
        finally:
            put_variables(after)


def _why_not_again(call: OutermostCall, site: UpdateSite) -> str:
    """Return why the gradients of a call would be others when they are computed once more; empty if they are not."""
    if site.unreadable:
        return f"it draws random numbers whose states cannot be read ({site.unreadable[0]})"
    graphs = [each.graph for each in private_api.concrete_functions(call.function)] if call.model is None else []
    names = [name for graph in graphs for part in private_api.operations(graph) for name in part]
    is_fetching = any("Iterator" in name or "Dataset" in name for name in names)
    return "its function fetches its batches itself" if is_fetching else ""


def _values() -> list[tuple[Any, Any]]:
    """Return all variables of the process with their values."""
    kind = private_api.module("variables").BaseResourceVariable
    return [(variable, read_variable(variable)) for variable in live_objects.instances(kind) if is_readable(variable)]


def next_of(iterator: Any) -> Any:
    """Return the next batch of a data set's iterator, without reporting it; None if there is none."""
    tensorflow = sys.modules["tensorflow"]
    try:
        tensors = private_api.fetch(iterator)
    except tensorflow.errors.OutOfRangeError:
        return None
    return tensorflow.nest.pack_sequence_as(iterator.element_spec, tensors)


def iterator_of(batch: Any, like: Any) -> Any:
    """Return an iterator of this batch alone, for which a function needs no other graph than for its own iterator."""
    tensorflow, spec = sys.modules["tensorflow"], like.element_spec
    relaxed = tensorflow.compat.v1.placeholder_with_default

    def with_shapes(*parts: Any) -> Any:
        whole = parts if type(batch) is tuple else parts[0]
        return tensorflow.nest.map_structure(lambda tensor, own: relaxed(tensor, own.shape), whole, spec)

    return iter(tensorflow.data.Dataset.from_tensors(batch).map(with_shapes))
