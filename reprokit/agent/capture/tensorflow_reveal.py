"""Computes a step's gradients once more and takes them out: XLA hands out nothing while a compiled step runs."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_steps import Step, Steps


class Reveal:
    """What one tracing of a step's function takes out, by the id of the optimizer."""

    def __init__(self) -> None:
        self.sites: dict[int, dict[str, Any]] = {}

    def take(self, step: Step, optimizer: Any, pairs: list[tuple[Any, Any]]) -> None:
        """In the place of an update."""
        self.sites[id(optimizer)] = {
            "gradients": [gradient for gradient, _ in pairs],
            "loss": step.loss,
            "activations": [finite for _, finite in step.activations],
        }


class Reveals:
    """The functions that take gradients out, one for each function of the script's."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.tracing: Reveal | None = None

    def of(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], optimizer: Any) -> dict[str, Any]:
        """Gradients, loss and activations of the step that this function takes with these arguments."""
        revealing = getattr(function, "_reprokit_reveals", None)
        if revealing is None:
            make = sys.modules["tensorflow"].function
            revealing = make(self._revealing(function), jit_compile=function._jit_compile, autograph=False)
            function._reprokit_reveals = revealing._reprokit_reveals = revealing
        sites: dict[str, dict[str, Any]] = revealing(*arguments, **keywords)
        return sites[str(id(optimizer))]

    def _revealing(self, function: Any) -> Callable[..., Any]:
        python = _converted(function)

        def reveal(*arguments: Any, **keywords: Any) -> dict[str, dict[str, Any]]:
            reveal = self.tracing = Reveal()
            step = self._steps.begin()
            step.pinned = True
            try:
                python(*arguments, **keywords)
            finally:
                self.tracing = None
                step.passes = True
                for variable, value in step.held.values():
                    variable.assign(value)
            return {str(key): site for key, site in reveal.sites.items()}

        return reveal


def _converted(function: Any) -> Any:
    """The Python function, as autograph makes it where it is asked to."""
    python = function._python_function
    if not getattr(function, "_autograph", False):
        return python
    api = sys.modules["tensorflow.python.autograph.impl.api"]
    context = sys.modules["tensorflow.python.autograph.core.ag_ctx"]
    return api.tf_convert(python, context.ControlStatusCtx(status=context.Status.ENABLED))
