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
from ..tensorflow.training_state import as_array, put_variables, read_variable, resource_id
from .tensorflow_restore import iterator_over
from .tensorflow_state import FIT, LOADER
from .tensorflow_updates import NOT_COMPUTED_AGAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .tensorflow_graphs import UpdateSite
    from .tensorflow_snapshot import RejectedStep, RejectionHandler
    from .tensorflow_steps import OutermostCall, WatchedOptimizer
    from .tensorflow_updates import XlaCalls

    Values = list[tuple[Any, Any]]  # variables and what they hold

FETCH = "IteratorGetNext"


class StepTaker:
    """Executes the calls of functions, and takes the snapshot of the one that makes the step."""

    def __init__(self, rejections: RejectionHandler, xla: XlaCalls) -> None:
        self._rejections, self._requested, self._xla = rejections, rejections.requested, xla
        self._capture = rejections.capture

    def run(self, call: OutermostCall) -> Any:
        """Execute an outermost call."""
        if not self._requested.may_be_in_call() or getattr(call.model, "run_eagerly", False):
            return call.run()
        why, place = self._hindrance(call), _place_of_iterator(call)
        batches = [] if why or place is None else self._capture.attempt(_next_of, call, place) or []
        if call.model is not None and not batches:  # or its data set is exhausted
            if why:
                self._refuse(why)
            return call.run()
        due = [watched for watched in self._rejections.training.watched if self._requested.is_next(watched)]
        before = self._capture.attempt(_values) or []
        result = call.run(_over(batches, call, place))
        self._capture.attempt(self._take, call, due, before, batches, place)
        return result

    def _refuse(self, why: str) -> None:
        if self._capture.agent is not None:
            self._capture.agent.warn(f"no snapshot of the step: {why}", "snapshot-not-whole")

    @staticmethod
    def _hindrance(call: OutermostCall) -> str:
        """Return why the step of a call cannot be taken; empty if it can."""
        if call.model is None:
            return ""
        if not private_api.steps_at_once(call.model):
            return "how many steps its function takes at once is not known"
        return "it is one of several replicas, or of Keras' own iterator" if _place_of_iterator(call) is None else ""

    def _take(
        self,
        call: OutermostCall,
        due: Sequence[WatchedOptimizer],
        before: Values,
        batches: list[Any],
        place: int | None,
    ) -> None:
        sites = [site for site in call.record.sites or () if site.watched in due or not due]
        if self._requested.is_taken or not sites:
            return
        site = sites[0]
        if call.model is None and self._requested.is_next(site.watched):  # it only added up gradients
            return
        after = [(variable, read_variable(variable)) for variable, _ in before]
        known = {resource_id(variable) for variable, _ in before}
        if any(resource_id(variable) not in known for variable in site.watched.updated):
            self._refuse("its variables are made in the step itself; take a later step")
            return
        why = _why_not_again(call, site, is_given=bool(batches))
        if why:
            self._refuse(why)
            return
        try:
            moments = self._moments(call, before, batches) if len(batches) > 1 else [before, after]
            if not _are_equal(moments[-1], after):
                self._refuse("its function takes several steps at once, which come to other bits one by one")
                return
            numbers, found = range(len(moments) - 1), None
            for number in numbers if len(numbers) > 1 else ():  # the first in which something is wrong
                found = self._computed(call, site, moments, batches, place, number)
                if found is None or found.triggers(self._capture.settings.conditions):
                    break
            else:
                found = self._computed(call, site, moments, batches, place, 0)
            if found is not None:
                self._rejections.take(found, site.watched, call, sys._getframe(1))
        finally:
            put_variables(after)

    def _moments(self, call: OutermostCall, before: Values, batches: list[Any]) -> list[Values]:
        """Make the steps that a call takes at once one by one; return the variables' values around each."""
        put_variables(before)
        moments, step = [before], self._xla.step_function(call.model)
        for batch in batches:
            step(batch)
            moments.append([(variable, read_variable(variable)) for variable, _ in before])
        return moments

    def _computed(
        self,
        call: OutermostCall,
        site: UpdateSite,
        moments: list[Values],
        batches: list[Any],
        place: int | None,
        number: int,
    ) -> RejectedStep | None:
        """Compute the gradients of one of a call's steps again; None if that is not possible."""
        put_variables(moments[number])
        own = batches[number : number + 1]
        values, note = self._xla.computed_again(
            site, lambda: self._xla.gradients_of_call(call, *own, arguments=_over(own, call, place))
        )
        if note == NOT_COMPUTED_AGAIN:
            self._refuse(note)
            return None
        after = {resource_id(variable): value for variable, value in moments[number + 1]}
        seen = {**values, "batches": own, "after": [after[resource_id(variable)] for variable in site.variables]}
        rejected = self._rejections.of_site(site, seen, [LOADER if call.model is None else FIT])
        rejected.is_requested = True
        rejected.notes.append(note)
        if len(moments) > 2:
            rejected.notes.append(
                f"its call takes {len(moments) - 1} steps at once: this one is number {number} of them"
            )
        return rejected


def _why_not_again(call: OutermostCall, site: UpdateSite, *, is_given: bool) -> str:
    """Return why the gradients of a call would be others when they are computed once more; empty if they are not."""
    if site.unreadable:
        return f"it draws random numbers whose states cannot be read ({site.unreadable[0]})"
    is_fetching = call.model is None and not is_given and any(_fetches(graph) for graph in _graphs(call))
    return (
        "its function fetches its batches itself, and not one from an iterator that it is given" if is_fetching else ""
    )


def _graphs(call: OutermostCall) -> list[Any]:
    return [each.graph for each in private_api.concrete_functions(call.function)]


def _fetches(graph: Any) -> list[str]:
    """Return the types of a graph's operations by which batches are fetched."""
    return [name for part in private_api.operations(graph) for name in part if "Iterator" in name or "Dataset" in name]


def _place_of_iterator(call: OutermostCall) -> int | None:
    """Return the place, among the arguments of a call, of the iterator from which it fetches; None if unknown."""
    kind = getattr(private_api.module("iterators"), "OwnedIterator", ())
    places = [place for place, argument in enumerate(call.arguments) if isinstance(argument, kind)]
    if len(places) != 1:
        return None
    if call.model is not None:
        return places[0] if len(call.arguments) == 1 else None
    graphs = _graphs(call)
    is_one = all(_fetches(graph) == [FETCH] == _fetches_outside(graph) for graph in graphs)
    return places[0] if graphs and is_one else None


def _fetches_outside(graph: Any) -> list[str]:
    """Return those of the operations that are in no loop, branch or called function."""
    return [name for name in private_api.operations(graph)[0] if name == FETCH]


def _next_of(call: OutermostCall, place: int) -> list[Any]:
    """Return the batches that a call fetches, without reporting them; fewer where the data set ends."""
    batches = []
    for _ in range(1 if call.model is None else private_api.steps_at_once(call.model)):
        following = call.arguments[place].get_next_as_optional()
        if not following.has_value():
            break
        batches.append(following.get_value())
    return batches


def _over(batches: list[Any], call: OutermostCall, place: int | None) -> tuple[Any, ...] | None:
    """Return the arguments of a call with an iterator of these batches alone in place of its own; None for its own."""
    if not batches or place is None:
        return None
    own = call.arguments[place]
    return (*call.arguments[:place], iterator_over(batches, own.element_spec), *call.arguments[place + 1 :])


def _values() -> Values:
    """Return all variables of the process with their values."""
    kind = private_api.module("variables").BaseResourceVariable
    return [(variable, read_variable(variable)) for variable in live_objects.instances(kind) if is_readable(variable)]


def _are_equal(left: Values, right: Values) -> bool:
    """Return whether variables have the same bytes at two moments."""
    pairs = zip(left, right)
    return all(one is other or as_array(one).tobytes() == as_array(other).tobytes() for (_, one), (_, other) in pairs)
