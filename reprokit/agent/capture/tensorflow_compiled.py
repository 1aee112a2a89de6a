"""Calls of functions that XLA compiles: what they update is held before, and behind them the flag is looked at.

A graph cannot be asked for more than it hands out once XLA has compiled it, so a step that should not have happened
has, and is undone: the variables are given what they had.
"""

from __future__ import annotations

import sys
import weakref

from ..frameworks.variables import optimizer_variables
from .tensorflow_graph import building, call_host, in_loop
from .tensorflow_reading import Reader
from .tensorflow_replicas import replica
from .tensorflow_state import plain, put_variable, resource_id
from .tensorflow_stretch import Stretch, can_be_kept
from .tensorflow_update import put_back

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_calls import Call, Site
    from .tensorflow_capture import TensorFlowCapture
    from .tensorflow_reading import Before
    from .tensorflow_reveal import Reveals
    from .tensorflow_steps import Step

    Function = Callable[..., Any]
    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]

COMPUTED_AGAIN = "the step was compiled by XLA; its gradients were computed once more to be kept"
NOT_COMPUTED_AGAIN = "the gradients could not be computed once more"


class Compiled:
    """The functions of a training that XLA compiles."""

    def __init__(self, owner: TensorFlowCapture, reveals: Reveals) -> None:
        self._owner = owner
        self._capture = owner.capture
        self._reveals = reveals
        self.bare: Function = _not_there  # calls a function as TensorFlow does
        self._here = owner.here
        self._stretches: weakref.WeakSet[Stretch] = weakref.WeakSet()
        self.has_stretches = False  # or has had some
        self._last: Stretch | None = None  # of the last outermost call

    # ---- outermost calls, of which a compiled one may be part --------------------------------------------------------

    def begins(self, call: Call) -> None:
        """An outermost call: the state is held before it where that was not done for one shortly before."""
        stretch = call.traced.stretch
        if stretch is None or stretch is not self._last:
            self._leave(but=stretch)
            self._last = stretch
        if stretch is not None and stretch.is_over:
            self._capture.attempt(stretch.hold)

    def refused(self, call: Call, error: BaseException) -> bool:
        """Whether it failed for nothing but a compiled step that should not have happened."""
        stretch = call.traced.stretch
        if stretch is not None and stretch.refused(error):
            return True
        self.written()
        return False

    def undone(self, call: Call) -> Any:
        """Undo such a step; what its call gives."""
        stretch = call.traced.stretch
        assert stretch is not None
        stretch.calls += 1
        found = self._capture.attempt(self._look_back, stretch)
        if found is not None:
            return found
        self._capture.attempt(put_variable, stretch.site.known.memory.good, True)  # or all further calls would fail
        return {}

    def _leave(self, but: Stretch | None) -> None:
        """Another function than the last is called, which may write to what the stretches of others hold."""
        self.written()
        for stretch in self._stretches:
            if stretch is not but and not self._owner.calls:
                self._capture.attempt(stretch.release)

    def written(self) -> None:
        """Something may write to variables beside the calls of stretches."""
        if self.has_stretches:
            for stretch in self._stretches:
                stretch.is_stale = True

    def _look_back(self, stretch: Stretch) -> Any:
        """Behind a call whose compiled step should not have happened; what the call gives."""
        step = stretch.rebuild()
        if step.problem:
            self._capture.say_once(f"warning: {step.problem}")
        self._revealed(stretch.site, stretch.function, step.arguments, step.keywords, loops=False, problem=step.problem)
        return step.result

    # ---- calls of compiled functions ---------------------------------------------------------------------------------

    def call(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call a function that XLA compiles."""
        if self._here.compiled is not None:
            return self.bare(function, *arguments, **keywords)
        if self._reveals.tracing is not None or getattr(function, "_reprokit_reveals", None) is function:
            return self.bare(function, *arguments, **keywords)
        return self._call_outermost(function, arguments, keywords)

    def _call_outermost(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """No other function that XLA compiles calls this one."""
        before = self._capture.attempt(self._before, function, arguments, keywords)
        self._here.compiled = function
        try:
            result = self.bare(function, *arguments, **keywords)
        finally:
            self._here.compiled = None
        if isinstance(before, Stretch):
            self._capture.attempt(before.watch)
        elif before is not None:
            self.written()
            is_eager = sys.modules["tensorflow.python.eager.context"].executing_eagerly()
            look = self._look if is_eager else self._look_in_graph
            self._capture.attempt(look, function, arguments, keywords, before)
        return result

    def expect(self, site: Site, step: Step) -> None:
        """Behind the call of the outermost function that is being built, its flag is to be looked at."""
        compiled = self._here.compiled
        if compiled is None:
            raise RuntimeError("a function compiled by XLA was built by no call of it")
        site.moved = step.held
        sites = vars(compiled).setdefault("_reprokit_sites", [])
        sites[:] = [one for one in sites if one.known is not site.known] + [site]
        compiled._reprokit_reader = None

    def _before(self, function: Any, arguments: Arguments, keywords: Keywords) -> Before | Stretch:
        """What the variables that a compiled function updates have before it is called. They share the memory.

        Or the stretch that holds them.
        """
        if "_reprokit_sites" not in vars(function):
            self._capture.attempt(self._trace, function, arguments, keywords)
            function.__dict__.setdefault("_reprokit_sites", [])
        reader = vars(function).get("_reprokit_reader")
        if reader is None:
            reader = function._reprokit_reader = Reader(_moved_by(function))
        stretch = self._stretch(function, arguments, keywords) if reader.are_here else None
        return reader.read() if stretch is None else stretch

    def _stretch(self, function: Any, arguments: Arguments, keywords: Keywords) -> Stretch | None:
        """The stretch of the calls that the graph being built makes: one whenever Keras runs it; else None."""
        call, graph, sites = self._owner.current(), building(), function._reprokit_sites
        if call is None or call.origin != "fit" or self._owner.holds_each or len(sites) != 1 or replica() is not None:
            return None
        is_outermost = type(graph).__name__ == "FuncGraph" and type(graph.outer_graph).__name__ != "FuncGraph"
        if not is_outermost or in_loop() or sites[0].unreadable or not can_be_kept(arguments, keywords):
            return None
        known = call.traced.stretch
        if known is not None and known.function is not function:
            known.only_one = True
            return None
        if known is None:
            known = Stretch(function, sites[0], _moved_by(function), self.bare)
            if not known.begins():
                return None
            call.traced.stretch = known
            self._stretches.add(known)
            self.has_stretches = True
        known.site = sites[0]
        known.take(arguments, keywords)
        return known

    def _trace(self, function: Any, arguments: Arguments, keywords: Keywords) -> None:
        """Have a function's graph built before it is called, so that it is known what it updates."""
        self._here.compiled = function
        try:
            function.get_concrete_function(*arguments, **keywords)
        finally:
            self._here.compiled = None

    # ---- behind them -------------------------------------------------------------------------------------------------

    def _look(self, function: Any, arguments: Arguments, keywords: Keywords, before: Before) -> None:
        """Behind a call of a compiled function from eager code."""
        for site in function._reprokit_sites:
            if site.known.memory.is_flagged():
                for variable, value in before.pairs():
                    put_variable(variable, value)
                self._revealed(site, function, arguments, keywords, loops=False)

    def _look_in_graph(self, function: Any, arguments: Arguments, keywords: Keywords, before: Before) -> None:
        """Behind a call of a compiled function from a graph that is being built."""
        tensorflow, loops = sys.modules["tensorflow"], in_loop()
        for site in function._reprokit_sites:

            def host(site: Site = site) -> Any:
                def on_host(seen: dict[str, Any]) -> None:
                    self._revealed(site, function, tuple(seen["arguments"]), seen["keywords"], loops=loops)

                put_back(before.pairs())
                put = [one for one in building().get_operations() if one.type == "AssignVariableOp"]
                with tensorflow.control_dependencies(put):
                    call_host(on_host, {"arguments": list(arguments), "keywords": keywords})
                return tensorflow.constant(0)

            tensorflow.cond(site.known.memory.good.read_value(), lambda: tensorflow.constant(0), host)

    def _revealed(
        self, site: Site, function: Any, arguments: Arguments, keywords: Keywords, *, loops: bool, problem: str = ""
    ) -> None:
        put_variable(site.known.memory.good, True)
        seen = self._capture.attempt(self._reveals.of, function, arguments, keywords, site.known.optimizer())
        note = COMPUTED_AGAIN
        if seen is None:
            seen = {"gradients": [None] * len(site.variables), "loss": None, "activations": []}
            note = NOT_COMPUTED_AGAIN
        batch = ("fit" if site.model is not None else "script", one_of(arguments, keywords))
        found = self._owner.of_site(site, seen, [batch])
        found.notes += [note, problem] if problem else [note]
        self._owner.end_behind(site, found, loops=loops)


def one_of(arguments: Arguments, keywords: Keywords) -> Any:
    """The arguments of a call as one value: the only one as it is."""
    if len(arguments) == 1 and not keywords:
        return arguments[0]
    return [*arguments, keywords] if keywords else tuple(arguments)


def _not_there(*_arguments: Any, **_keywords: Any) -> None:
    """Before TensorFlow is."""


def _moved_by(function: Any) -> list[Any]:
    """All variables that a compiled function writes to."""
    found: dict[int, Any] = {}
    for site in function._reprokit_sites:
        moved = [variable for variable, _ in site.moved.values()]
        updated = [*site.variables, *optimizer_variables(site.known.optimizer()), *moved]
        found.update({resource_id(variable): plain(variable) for variable in updated})
    return list(found.values())
