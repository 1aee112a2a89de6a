"""Calls of functions that XLA compiles: what they update is held before, and behind them the flag is looked at.

A graph cannot be asked for more than it hands out once XLA has compiled it, so a step that should not have happened
has, and is undone: the variables are given what they had. Its gradients are computed once more to be kept.
"""

from __future__ import annotations

import sys

from ..tensorflow import private_api
from .tensorflow_graphs import call_host, in_loop, put_back
from .tensorflow_state import FIT, SCRIPT, plain, put_variable, resource_id
from .tensorflow_steps import FunctionRecord, one_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_steps import TensorFlowStep
    from .tensorflow_updates import Rejections, UpdateSite

    Function = Callable[..., Any]
    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Pairs = list[tuple[Any, Any]]  # of variables and their values

COMPUTED_AGAIN = "the step was compiled by XLA; its gradients were computed once more to be kept"
NOT_COMPUTED_AGAIN = "the gradients could not be computed once more"


class XlaCalls:
    """The functions of a training that XLA compiles."""

    def __init__(self, rejections: Rejections) -> None:
        self.tracing: dict[str, Any] | None = None  # of a function that gives gradients: by the id of the optimizer
        self._rejections = rejections
        self._capture = rejections.capture
        self._training = rejections.training

    # ---- calls of compiled functions ---------------------------------------------------------------------------------

    def call(self, bare: Function, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call a function that XLA compiles, by what calls it as TensorFlow does."""
        record, here = FunctionRecord.of(function), self._training.here
        if here.compiled is not None or self.tracing is not None or record.reveals is function:
            return bare(function, *arguments, **keywords)
        before = self._capture.attempt(self._before, record, function, arguments, keywords)
        here.compiled = record
        try:
            result = bare(function, *arguments, **keywords)
        finally:
            here.compiled = None
        if before is not None:
            look = self._look if private_api.executing_eagerly() else self._look_in_graph
            self._capture.attempt(look, function, arguments, keywords, before)
        return result

    def expect(self, site: UpdateSite, step: TensorFlowStep) -> None:
        """Behind the call of the outermost function that is being built, its flag is to be looked at."""
        record = self._training.here.compiled
        if record is None:
            raise RuntimeError("a function compiled by XLA was built by no call of it")
        site.moved = step.variables.held
        record.sites = [*[one for one in record.sites or () if one.known is not site.known], site]
        record.moved = None

    def _before(self, record: FunctionRecord, function: Any, arguments: Arguments, keywords: Keywords) -> Pairs:
        """What the variables that a compiled function updates have before it is called."""
        if record.sites is None:  # its graph is built before, so that it is known what it updates
            self._training.here.compiled = record
            self._capture.attempt(lambda: function.get_concrete_function(*arguments, **keywords))
            self._training.here.compiled = None
            record.sites = record.sites or []
        if record.moved is None:
            moved = [variable for site in record.sites for variable, _ in site.moved.values()]
            updated = [variable for site in record.sites for variable in [*site.variables, *site.known.updated]]
            record.moved = list({resource_id(one): plain(one) for one in [*updated, *moved]}.values())
        return [(variable, variable.read_value()) for variable in record.moved]

    # ---- behind them -------------------------------------------------------------------------------------------------

    def _look(self, function: Any, arguments: Arguments, keywords: Keywords, before: Pairs) -> None:
        """Behind a call of a compiled function from eager code."""
        for site in FunctionRecord.of(function).sites or ():
            if site.known.memory.is_flagged():
                for variable, value in before:
                    put_variable(variable, value)
                self._revealed(site, function, arguments, keywords, loops=False)

    def _look_in_graph(self, function: Any, arguments: Arguments, keywords: Keywords, before: Pairs) -> None:
        """Behind a call of a compiled function from a graph that is being built."""
        tensorflow, loops = sys.modules["tensorflow"], in_loop()
        for site in FunctionRecord.of(function).sites or ():

            def host(site: UpdateSite = site) -> Any:
                def on_host(seen: dict[str, Any]) -> None:
                    self._revealed(site, function, tuple(seen["arguments"]), seen["keywords"], loops=loops)

                put_back(before)
                graph = private_api.default_graph()
                put = [one for one in graph.get_operations() if one.type == "AssignVariableOp"]
                with tensorflow.control_dependencies(put):
                    call_host(on_host, {"arguments": list(arguments), "keywords": keywords})
                return tensorflow.constant(0)

            tensorflow.cond(site.known.memory.good.read_value(), lambda: tensorflow.constant(0), host)

    def _revealed(
        self, site: UpdateSite, function: Any, arguments: Arguments, keywords: Keywords, *, loops: bool
    ) -> None:
        put_variable(site.known.memory.good, True)
        key = str(id(site.known.optimizer()))
        seen = self._capture.attempt(lambda: self._reveal(function)(*arguments, **keywords)[key])
        note = COMPUTED_AGAIN
        if seen is None:
            seen = {"gradients": [None] * len(site.variables), "loss": None, "activations": []}
            note = NOT_COMPUTED_AGAIN
        seen["batches"] = [one_of(arguments, keywords)]
        found = self._rejections.of_site(site, seen, [FIT if site.model is not None else SCRIPT])
        found.notes.append(note)
        self._rejections.end_behind(site, found, loops=loops)

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def take(self, step: TensorFlowStep, optimizer: Any, pairs: list[tuple[Any, Any]]) -> None:
        """Note gradients in the place of an update."""
        assert self.tracing is not None
        self.tracing[str(id(optimizer))] = {
            "gradients": [gradient for gradient, _ in pairs],
            "loss": step.values.loss,
            "activations": [finite for _, finite in step.values.activations],
        }

    def _reveal(self, function: Any) -> Any:
        """Return the function that gives the gradients, loss and activations of the step that another takes."""
        record = FunctionRecord.of(function)
        if record.reveals is None:
            make = sys.modules["tensorflow"].function
            is_compiled = private_api.is_compiled(function)
            record.reveals = make(self._revealing(function), jit_compile=is_compiled, autograph=False)
            FunctionRecord.of(record.reveals).reveals = record.reveals
        return record.reveals

    def _revealing(self, function: Any) -> Function:
        python, is_converted = private_api.python_function(function)
        if is_converted:  # as autograph makes it
            status = private_api.module("autograph_status")
            enabled = status.ControlStatusCtx(status=status.Status.ENABLED)
            python = private_api.module("autograph").tf_convert(python, enabled)

        def reveal(*arguments: Any, **keywords: Any) -> dict[str, Any]:
            found = self.tracing = {}
            step = self._training.begin_step()
            step.pinned = True
            try:
                python(*arguments, **keywords)
            finally:
                self.tracing = None
                step.passes = True
                put_back(list(step.variables.held.values()))
            return found

        return reveal
