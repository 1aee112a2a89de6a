"""Calls of functions that XLA compiles: what they update is held before, and behind them the flag is looked at.

A graph cannot be asked for more than it hands out once XLA has compiled it, so a step that should not have happened
has, and is undone: the variables are given what they had. Its gradients are computed once more to be kept.
"""

from __future__ import annotations

import sys

from ..tensorflow import private_api
from ..tensorflow.state import optimizer_variables
from .tensorflow_calls import one_of
from .tensorflow_graph import building, call_host, in_loop, put_back
from .tensorflow_state import FIT, SCRIPT, plain, put_variable, resource_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_calls import TrainingState, UpdateSite
    from .tensorflow_rejection import Rejections
    from .tensorflow_steps import StepTracker, TensorFlowStep

    Function = Callable[..., Any]
    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Pairs = list[tuple[Any, Any]]  # of variables and their values

COMPUTED_AGAIN = "the step was compiled by XLA; its gradients were computed once more to be kept"
NOT_COMPUTED_AGAIN = "the gradients could not be computed once more"


class XlaCalls:
    """The functions of a training that XLA compiles."""

    def __init__(self, rejections: Rejections, training: TrainingState, steps: StepTracker) -> None:
        self.rejections = rejections
        self.reveals = GradientRecomputation(steps)
        self.bare: Function = _not_there  # calls a function as TensorFlow does
        self._capture = rejections.capture
        self._here = training.here

    # ---- calls of compiled functions ---------------------------------------------------------------------------------

    def call(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call a function that XLA compiles."""
        if self._here.compiled is not None:
            return self.bare(function, *arguments, **keywords)
        if self.reveals.tracing is not None or getattr(function, "_reprokit_reveals", None) is function:
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
        if before is not None:
            is_eager = private_api.executing_eagerly()
            look = self._look if is_eager else self._look_in_graph
            self._capture.attempt(look, function, arguments, keywords, before)
        return result

    def expect(self, site: UpdateSite, step: TensorFlowStep) -> None:
        """Behind the call of the outermost function that is being built, its flag is to be looked at."""
        compiled = self._here.compiled
        if compiled is None:
            raise RuntimeError("a function compiled by XLA was built by no call of it")
        site.moved = step.variables.held
        sites = vars(compiled).setdefault("_reprokit_sites", [])
        sites[:] = [one for one in sites if one.known is not site.known] + [site]
        compiled._reprokit_moved = None

    def _before(self, function: Any, arguments: Arguments, keywords: Keywords) -> Pairs:
        """What the variables that a compiled function updates have before it is called."""
        if "_reprokit_sites" not in vars(function):
            self._capture.attempt(self._trace, function, arguments, keywords)
            function.__dict__.setdefault("_reprokit_sites", [])
        if vars(function).get("_reprokit_moved") is None:
            function._reprokit_moved = _moved_by(function)
        return [(variable, variable.read_value()) for variable in function._reprokit_moved]

    def _trace(self, function: Any, arguments: Arguments, keywords: Keywords) -> None:
        """Have a function's graph built before it is called, so that it is known what it updates."""
        self._here.compiled = function
        try:
            function.get_concrete_function(*arguments, **keywords)
        finally:
            self._here.compiled = None

    # ---- behind them -------------------------------------------------------------------------------------------------

    def _look(self, function: Any, arguments: Arguments, keywords: Keywords, before: Pairs) -> None:
        """Behind a call of a compiled function from eager code."""
        for site in function._reprokit_sites:
            if site.known.memory.is_flagged():
                for variable, value in before:
                    put_variable(variable, value)
                self._revealed(site, function, arguments, keywords, loops=False)

    def _look_in_graph(self, function: Any, arguments: Arguments, keywords: Keywords, before: Pairs) -> None:
        """Behind a call of a compiled function from a graph that is being built."""
        tensorflow, loops = sys.modules["tensorflow"], in_loop()
        for site in function._reprokit_sites:

            def host(site: UpdateSite = site) -> Any:
                def on_host(seen: dict[str, Any]) -> None:
                    self._revealed(site, function, tuple(seen["arguments"]), seen["keywords"], loops=loops)

                put_back(before)
                put = [one for one in building().get_operations() if one.type == "AssignVariableOp"]
                with tensorflow.control_dependencies(put):
                    call_host(on_host, {"arguments": list(arguments), "keywords": keywords})
                return tensorflow.constant(0)

            tensorflow.cond(site.known.memory.good.read_value(), lambda: tensorflow.constant(0), host)

    def _revealed(
        self, site: UpdateSite, function: Any, arguments: Arguments, keywords: Keywords, *, loops: bool
    ) -> None:
        put_variable(site.known.memory.good, True)
        seen = self._capture.attempt(self.reveals.of, function, arguments, keywords, site.known.optimizer())
        note = COMPUTED_AGAIN
        if seen is None:
            seen = {"gradients": [None] * len(site.variables), "loss": None, "activations": []}
            note = NOT_COMPUTED_AGAIN
        batch = (FIT if site.model is not None else SCRIPT, one_of(arguments, keywords))
        found = self.rejections.of_site(site, seen, [batch])
        found.notes.append(note)
        self.rejections.end_behind(site, found, loops=loops)


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


class GradientCollector:
    """What one tracing of a step's function takes out, by the id of the optimizer."""

    def __init__(self) -> None:
        self.sites: dict[int, dict[str, Any]] = {}

    def take(self, step: TensorFlowStep, optimizer: Any, pairs: list[tuple[Any, Any]]) -> None:
        """In the place of an update."""
        self.sites[id(optimizer)] = {
            "gradients": [gradient for gradient, _ in pairs],
            "loss": step.values.loss,
            "activations": [finite for _, finite in step.values.activations],
        }


class GradientRecomputation:
    """The functions that take gradients out, one for each function of the script's."""

    def __init__(self, steps: StepTracker) -> None:
        self._steps = steps
        self.tracing: GradientCollector | None = None

    def of(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], optimizer: Any) -> dict[str, Any]:
        """Gradients, loss and activations of the step that this function takes with these arguments."""
        revealing = getattr(function, "_reprokit_reveals", None)
        if revealing is None:
            make = sys.modules["tensorflow"].function
            revealing = make(self._revealing(function), jit_compile=private_api.is_compiled(function), autograph=False)
            function._reprokit_reveals = revealing._reprokit_reveals = revealing
        sites: dict[str, dict[str, Any]] = revealing(*arguments, **keywords)
        return sites[str(id(optimizer))]

    def _revealing(self, function: Any) -> Callable[..., Any]:
        python = _converted(function)

        def reveal(*arguments: Any, **keywords: Any) -> dict[str, dict[str, Any]]:
            reveal = self.tracing = GradientCollector()
            step = self._steps.begin()
            step.pinned = True
            try:
                python(*arguments, **keywords)
            finally:
                self.tracing = None
                step.passes = True
                for variable, value in step.variables.held.values():
                    variable.assign(value)
            return {str(key): site for key, site in reveal.sites.items()}

        return reveal


def _converted(function: Any) -> Any:
    """The Python function, as autograph makes it where it is asked to."""
    python, is_converted = private_api.python_function(function)
    status = private_api.module("autograph_status")
    enabled = status.ControlStatusCtx(status=status.Status.ENABLED)
    return private_api.module("autograph").tf_convert(python, enabled) if is_converted else python
